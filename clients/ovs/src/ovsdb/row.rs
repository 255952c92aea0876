//! Rows as they come: columns by name. What a `select` returns, and what an `insert` takes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::table::Table;
use super::value::{Atom, FromAtom, Value};

/// A row: columns by name.
///
/// ```
/// use cobalt_ovs::ovsdb::Row;
///
/// let row = Row::new().with("name", "br-int").with("stp_enable", false);
/// assert_eq!(row.get::<String>("name").as_deref(), Some("br-int"));
/// assert_eq!(row.get::<bool>("rstp_enable"), None);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Row(BTreeMap<String, Value>);

impl Row {
    /// A row without columns.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with a column more.
    #[must_use]
    pub fn with(mut self, column: &str, value: impl Into<Value>) -> Self {
        self.0.insert(column.to_owned(), value.into());
        self
    }

    /// The value of a column.
    pub fn value(&self, column: &str) -> Option<&Value> {
        self.0.get(column)
    }

    /// The only value of a column; `None` where the column is empty or absent, or has another
    /// type.
    pub fn get<T: FromAtom>(&self, column: &str) -> Option<T> {
        self.value(column)?.atom().and_then(T::from_atom)
    }

    /// All values of a column that have this type.
    pub fn all<T: FromAtom>(&self, column: &str) -> Vec<T> {
        let atoms = self.value(column).map_or(&[][..], Value::atoms);
        atoms.iter().filter_map(T::from_atom).collect()
    }

    /// The value under a key of a map such as `external_ids`.
    pub fn in_map<T: FromAtom>(&self, column: &str, key: &str) -> Option<T> {
        let Value::Map(pairs) = self.value(column)? else {
            return None;
        };
        let found = pairs
            .iter()
            .find(|(name, _)| matches!(name, Atom::String(name) if name == key));
        found.and_then(|(_, value)| T::from_atom(value))
    }

    /// Its identity, if it was asked for (`_uuid`).
    pub fn uuid(&self) -> Option<Uuid> {
        self.get("_uuid")
    }

    /// All columns, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The row as one of a table. Columns that are absent keep their defaults.
    pub fn read<T: Table>(&self) -> T {
        let mut row = T::default();
        for (name, value) in self.iter() {
            if let Some(index) = T::column(name) {
                row.set(index, value);
            }
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ovsdb::vswitch::Interface;

    #[test]
    fn columns_are_read_by_name_and_type() {
        let text = r#"{"_uuid":["uuid","604144e0-4aa0-41fd-8c25-e82163c015b1"],"name":"tap1",
            "ofport":3,"error":["set",[]],"external_ids":["map",[["iface-id","vm1"]]],
            "statistics":["map",[["rx_packets",38]]],"trunks":["set",[1,2]]}"#;
        let row: Row = serde_json::from_str(text).unwrap();
        assert_eq!(row.uuid().unwrap().as_fields().0, 0x6041_44e0);
        assert_eq!(row.get::<i64>("ofport"), Some(3));
        assert_eq!(row.get::<String>("ofport"), None);
        assert_eq!(row.get::<String>("error"), None);
        assert_eq!(row.all::<i64>("trunks"), [1, 2]);
        assert_eq!(
            row.in_map::<String>("external_ids", "iface-id").unwrap(),
            "vm1"
        );
        assert_eq!(row.in_map::<String>("external_ids", "vm-id"), None);
        let interface: Interface = row.read();
        assert_eq!(
            (interface.name.as_str(), interface.ofport),
            ("tap1", Some(3))
        );
        assert_eq!(interface.statistics.get("rx_packets"), Some(&38));
        let again: Row = serde_json::from_str(&serde_json::to_string(&row).unwrap()).unwrap();
        assert_eq!(again, row);
    }
}
