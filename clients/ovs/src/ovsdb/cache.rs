//! The rows of the tables that are monitored, kept up to date in place.
//!
//! An update goes from the bytes of a message straight into the rows: there is no tree of JSON in
//! between, and columns that nobody asked for are passed over. A complete reading is compared with
//! what is there, so that after a reconnect only what really differs is a change.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserializer, Serialize};
use uuid::Uuid;

use super::operation::Condition;
use super::schema::Schema;
use super::table::{Change, ChangeKind, Columns, Table};
use super::value::Value;

/// Which rows and columns of a table are wanted.
#[derive(Debug)]
pub struct Select<T> {
    columns: Columns,
    conditions: Vec<Condition>,
    rows: std::marker::PhantomData<T>,
}

impl<T: Table> Default for Select<T> {
    fn default() -> Self {
        Self::all()
    }
}

impl<T: Table> Select<T> {
    /// All rows, with all columns of the type.
    pub fn all() -> Self {
        Self {
            columns: Columns::first(T::COLUMNS.len()),
            conditions: Vec::new(),
            rows: std::marker::PhantomData,
        }
    }

    /// Without these columns, which keep their defaults then. One that changes all the time, such
    /// as `statistics`, is better read when it is needed.
    #[must_use]
    pub fn without(mut self, columns: &[&str]) -> Self {
        for column in columns {
            if let Some(index) = T::column(column) {
                self.columns.remove(index);
            }
        }
        self
    }

    /// Only rows that meet this condition, or one of the others that are given.
    #[must_use]
    pub fn when(mut self, condition: Condition) -> Self {
        self.conditions.push(condition);
        self
    }
}

/// The tables to be monitored, and their rows once they are.
#[derive(Default)]
pub struct Tables {
    tables: Vec<Box<dyn Stored>>,
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.tables.iter().map(|table| (table.name(), table.len()));
        f.debug_map().entries(names).finish()
    }
}

/// What is asked of the server for one table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct TableRequest {
    columns: Vec<&'static str>,
    #[serde(rename = "where", skip_serializing_if = "Vec::is_empty")]
    conditions: Vec<Condition>,
}

impl TableRequest {
    /// The same for all rows.
    pub fn unconditional(self) -> Self {
        Self {
            conditions: Vec::new(),
            ..self
        }
    }
}

/// What is asked of the server, by table.
pub(crate) type Requests = BTreeMap<&'static str, [TableRequest; 1]>;

impl Tables {
    /// No tables yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// With all rows of a table.
    #[must_use]
    pub fn table<T: Table>(self) -> Self {
        self.select(Select::<T>::all())
    }

    /// With some of a table.
    #[must_use]
    pub fn select<T: Table>(mut self, select: Select<T>) -> Self {
        self.tables.retain(|table| table.name() != T::NAME);
        self.tables.push(Box::new(Rows {
            wanted: select.columns,
            present: Columns::default(),
            conditions: select.conditions,
            rows: BTreeMap::<Uuid, T>::new(),
            fresh: None,
            current: None,
        }));
        self
    }

    /// The rows of a table; none if it is not monitored.
    pub fn rows<T: Table>(&self) -> impl Iterator<Item = (Uuid, &T)> {
        let rows = self.stored::<T>().into_iter().flat_map(|table| &table.rows);
        rows.map(|(uuid, row)| (*uuid, row))
    }

    /// A row.
    pub fn get<T: Table>(&self, uuid: Uuid) -> Option<&T> {
        self.stored::<T>()?.rows.get(&uuid)
    }

    /// How many rows of a table there are.
    pub fn count<T: Table>(&self) -> usize {
        self.stored::<T>().map_or(0, |table| table.rows.len())
    }

    /// Whether the server has a column, so that its value means something.
    pub fn has_column<T: Table>(&self, column: &str) -> bool {
        self.stored::<T>()
            .zip(T::column(column))
            .is_some_and(|(table, index)| table.present.contains(index))
    }

    fn stored<T: Table>(&self) -> Option<&Rows<T>> {
        let mut found = self.tables.iter().filter_map(|table| {
            let table: &dyn Any = table.as_ref();
            table.downcast_ref::<Rows<T>>()
        });
        found.next()
    }

    /// Learns what the server has, and says whether that is other than before.
    pub(crate) fn learn(&mut self, schema: &Schema) -> bool {
        let mut changed = false;
        for table in &mut self.tables {
            changed |= table.learn(schema);
        }
        changed
    }

    /// What to ask the server for.
    pub(crate) fn requests(&self, schema: &Schema) -> Requests {
        let known = self
            .tables
            .iter()
            .filter(|table| schema.has_table(table.name()));
        known
            .map(|table| (table.name(), [table.request(schema)]))
            .collect()
    }

    /// Applies an update: JSON of `<table-updates>`, of any of the three versions.
    ///
    /// After an error some of it may have been applied, and `changes` says what.
    pub(crate) fn apply(
        &mut self,
        updates: &[u8],
        changes: &mut Vec<Change>,
    ) -> Result<(), serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_slice(updates);
        let seed = TablesSeed {
            tables: self,
            changes,
        };
        seed.deserialize(&mut deserializer)?;
        deserializer.end()
    }

    /// Applies a complete reading. After an error nothing of it has been applied.
    pub(crate) fn replace(
        &mut self,
        updates: &[u8],
        changes: &mut Vec<Change>,
    ) -> Result<(), serde_json::Error> {
        for table in &mut self.tables {
            table.begin_all();
        }
        // Changes count only if all of them do.
        let mut found = Vec::new();
        let applied = self.apply(updates, &mut found);
        if applied.is_ok() {
            changes.append(&mut found);
        }
        for table in &mut self.tables {
            table.end_all(applied.is_ok(), changes);
        }
        applied
    }
}

/// How a row comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coming {
    /// All of it that is not default.
    Whole,
    /// What differs from what is there.
    Difference,
}

/// A table whose type is not known.
trait Stored: Any + Send + Sync {
    fn name(&self) -> &'static str;
    fn len(&self) -> usize;
    fn learn(&mut self, schema: &Schema) -> bool;
    fn request(&self, schema: &Schema) -> TableRequest;
    fn begin_all(&mut self);
    fn end_all(&mut self, good: bool, changes: &mut Vec<Change>);
    /// Begins a row; `false` if it cannot be changed because it is not there.
    fn begin(&mut self, uuid: Uuid, coming: Coming) -> bool;
    fn column(&self, name: &str) -> Option<usize>;
    fn value(&mut self, column: usize, value: &Value);
    fn end(&mut self, changes: &mut Vec<Change>);
    fn delete(&mut self, uuid: Uuid, changes: &mut Vec<Change>);
}

struct Rows<T> {
    wanted: Columns,
    present: Columns,
    conditions: Vec<Condition>,
    rows: BTreeMap<Uuid, T>,
    /// The rows of a complete reading that is under way.
    fresh: Option<BTreeMap<Uuid, T>>,
    current: Option<Current<T>>,
}

/// The row that is being read.
struct Current<T> {
    uuid: Uuid,
    coming: Coming,
    /// The row, if it comes whole.
    row: T,
    /// What was named, if it is a difference.
    changed: Columns,
}

impl<T: Table> Rows<T> {
    fn usable(&self, schema: &Schema) -> Columns {
        let mut usable = Columns::default();
        for (index, (column, kind)) in T::COLUMNS.iter().zip(T::KINDS).enumerate() {
            match schema.column(T::NAME, column) {
                Some(found) if found == *kind && self.wanted.contains(index) => {
                    usable.insert(index);
                }
                Some(found) if found != *kind => {
                    tracing::warn!(
                        table = T::NAME, column, expected = ?kind, ?found,
                        "the column is of another kind on this server, and is left out"
                    );
                }
                _ => {}
            }
        }
        usable
    }
}

impl<T: Table> Stored for Rows<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn learn(&mut self, schema: &Schema) -> bool {
        let usable = self.usable(schema);
        std::mem::replace(&mut self.present, usable) != usable
    }

    fn request(&self, schema: &Schema) -> TableRequest {
        let usable = self.usable(schema);
        let columns = T::COLUMNS.iter().enumerate();
        let columns = columns.filter(|(index, _)| usable.contains(*index));
        TableRequest {
            columns: columns.map(|(_, name)| *name).collect(),
            conditions: self.conditions.clone(),
        }
    }

    fn begin_all(&mut self) {
        self.fresh = Some(BTreeMap::new());
    }

    fn end_all(&mut self, good: bool, changes: &mut Vec<Change>) {
        self.current = None;
        let Some(fresh) = self.fresh.take().filter(|_| good) else {
            return;
        };
        let gone = self.rows.keys().filter(|uuid| !fresh.contains_key(uuid));
        changes.extend(
            gone.map(|uuid| Change::new::<T>(*uuid, ChangeKind::Deleted, Columns::default())),
        );
        self.rows = fresh;
    }

    fn begin(&mut self, uuid: Uuid, coming: Coming) -> bool {
        self.current = Some(Current {
            uuid,
            coming,
            row: T::default(),
            changed: Columns::default(),
        });
        coming == Coming::Whole || (self.fresh.is_none() && self.rows.contains_key(&uuid))
    }

    fn column(&self, name: &str) -> Option<usize> {
        T::column(name)
    }

    fn value(&mut self, column: usize, value: &Value) {
        let Some(current) = &mut self.current else {
            return;
        };
        let fits = match current.coming {
            Coming::Whole => current.row.set(column, value),
            Coming::Difference => {
                current.changed.insert(column);
                let row = self.rows.get_mut(&current.uuid);
                row.is_some_and(|row| row.change(column, value))
            }
        };
        if !fits {
            let name = T::COLUMNS.get(column);
            tracing::warn!(table = T::NAME, column = ?name, ?value, "a value of another type");
        }
    }

    fn end(&mut self, changes: &mut Vec<Change>) {
        let Some(Current {
            uuid,
            coming,
            row,
            changed,
        }) = self.current.take()
        else {
            return;
        };
        if coming == Coming::Difference {
            changes.push(Change::new::<T>(uuid, ChangeKind::Modified, changed));
            return;
        }
        match self.rows.get(&uuid) {
            None => changes.push(Change::new::<T>(
                uuid,
                ChangeKind::Inserted,
                Columns::default(),
            )),
            Some(old) => {
                let different = old.difference(&row);
                if !different.is_empty() {
                    changes.push(Change::new::<T>(uuid, ChangeKind::Modified, different));
                }
            }
        }
        self.fresh
            .as_mut()
            .unwrap_or(&mut self.rows)
            .insert(uuid, row);
    }

    fn delete(&mut self, uuid: Uuid, changes: &mut Vec<Change>) {
        self.current = None;
        if self.rows.remove(&uuid).is_some() {
            changes.push(Change::new::<T>(
                uuid,
                ChangeKind::Deleted,
                Columns::default(),
            ));
        }
    }
}

/// A key of an object, turned into something else without a copy.
struct Key<F>(F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for Key<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for Key<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok((self.0)(text))
    }
}

macro_rules! map_seed {
    ($seed:ident, $what:literal) => {
        impl<'de> DeserializeSeed<'de> for $seed<'_> {
            type Value = ();

            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
                deserializer.deserialize_map(self)
            }
        }

        impl<'de> Visitor<'de> for $seed<'_> {
            type Value = ();

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($what)
            }

            fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
                while self.entry(&mut map)? {}
                Ok(())
            }
        }
    };
}

/// `{table: {row: update}}`
struct TablesSeed<'a> {
    tables: &'a mut Tables,
    changes: &'a mut Vec<Change>,
}

map_seed!(TablesSeed, "updates of tables");

impl TablesSeed<'_> {
    fn entry<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<bool, A::Error> {
        let tables = &mut self.tables.tables;
        let find = |name: &str| tables.iter().position(|table| table.name() == name);
        let Some(found) = map.next_key_seed(Key(find))? else {
            return Ok(false);
        };
        match found.and_then(|index| tables.get_mut(index)) {
            Some(table) => map.next_value_seed(TableSeed {
                table: table.as_mut(),
                changes: self.changes,
            })?,
            None => drop(map.next_value::<IgnoredAny>()?),
        }
        Ok(true)
    }
}

/// `{row: update}`
struct TableSeed<'a> {
    table: &'a mut dyn Stored,
    changes: &'a mut Vec<Change>,
}

map_seed!(TableSeed, "updates of rows");

impl TableSeed<'_> {
    fn entry<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<bool, A::Error> {
        let Some(uuid) = map.next_key::<Uuid>()? else {
            return Ok(false);
        };
        map.next_value_seed(RowSeed {
            table: self.table,
            changes: self.changes,
            uuid,
            told: false,
        })?;
        Ok(true)
    }
}

/// `{"insert": row}`, `{"modify": difference}`, `{"delete": null}`; the first version of the
/// protocol has `{"old": ..., "new": row}`, and a row without `new` is gone.
struct RowSeed<'a> {
    table: &'a mut dyn Stored,
    changes: &'a mut Vec<Change>,
    uuid: Uuid,
    /// What became of the row has been told.
    told: bool,
}

impl<'de> DeserializeSeed<'de> for RowSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RowSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the update of a row")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let coming = |key: &str| match key {
            "initial" | "insert" | "new" => Some(Coming::Whole),
            "modify" => Some(Coming::Difference),
            // "delete", "old", and what we do not know.
            _ => None,
        };
        while let Some(coming) = map.next_key_seed(Key(coming))? {
            let Some(coming) = coming else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            self.told = true;
            if !self.table.begin(self.uuid, coming) {
                let (table, uuid) = (self.table.name(), self.uuid);
                return Err(A::Error::custom(format_args!(
                    "row {uuid} of {table} is changed, and was never there"
                )));
            }
            map.next_value_seed(ColumnsSeed { table: self.table })?;
            self.table.end(self.changes);
        }
        if !self.told {
            self.table.delete(self.uuid, self.changes);
        }
        Ok(())
    }
}

/// `{column: value}`
struct ColumnsSeed<'a> {
    table: &'a mut dyn Stored,
}

map_seed!(ColumnsSeed, "columns of a row");

impl ColumnsSeed<'_> {
    fn entry<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<bool, A::Error> {
        match map.next_key_seed(Key(|name: &str| self.table.column(name)))? {
            None => return Ok(false),
            Some(Some(column)) => {
                let value = map.next_value::<Value>()?;
                self.table.value(column, &value);
            }
            Some(None) => drop(map.next_value::<IgnoredAny>()?),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
