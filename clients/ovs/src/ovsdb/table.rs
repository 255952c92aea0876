//! Typed tables: what a row looks like in Rust, and which of its columns changed.

use std::fmt;

use uuid::Uuid;

use super::field::Kind;
use super::value::Value;

/// A set of columns of one table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Columns(u64);

impl Columns {
    /// How many columns a table may have.
    pub const MAX: usize = 64;

    /// The first so many columns.
    pub(crate) fn first(count: usize) -> Self {
        let mut columns = Self::default();
        (0..count.min(Self::MAX)).for_each(|index| columns.insert(index));
        columns
    }

    /// Adds a column.
    pub fn insert(&mut self, index: usize) {
        self.0 |= Self::bit(index);
    }

    /// Removes a column.
    pub fn remove(&mut self, index: usize) {
        self.0 &= !Self::bit(index);
    }

    /// Whether it has a column.
    pub fn contains(self, index: usize) -> bool {
        self.0 & Self::bit(index) != 0
    }

    /// Whether it has none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn bit(index: usize) -> u64 {
        u32::try_from(index)
            .ok()
            .and_then(|index| 1_u64.checked_shl(index))
            .unwrap_or(0)
    }
}

/// A table, with a row of it as the type. [`crate::ovsdb_table!`] writes it.
pub trait Table: Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// Its name in the schema.
    const NAME: &'static str;
    /// Its columns, as far as they are wanted.
    const COLUMNS: &'static [&'static str];
    /// What each of them holds.
    const KINDS: &'static [Kind];
    /// Both names, as changes refer to them.
    const NAMES: &'static Names = &Names {
        table: Self::NAME,
        columns: Self::COLUMNS,
    };

    /// The number of a column.
    fn column(name: &str) -> Option<usize> {
        Self::COLUMNS.iter().position(|column| *column == name)
    }

    /// Sets a column. What does not fit leaves it empty, and gives `false`.
    fn set(&mut self, column: usize, value: &Value) -> bool;

    /// Changes a column by what a server sends as a difference.
    fn change(&mut self, column: usize, value: &Value) -> bool;

    /// Which columns are not the same.
    fn difference(&self, other: &Self) -> Columns;
}

/// What happened to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    /// It is new.
    Inserted,
    /// Some of its columns are new.
    Modified,
    /// It is gone.
    Deleted,
}

/// What a table and its columns are called.
#[derive(Debug, PartialEq, Eq)]
pub struct Names {
    table: &'static str,
    columns: &'static [&'static str],
}

/// A row that is not as it was. There may be as many of them as there are rows, so it is small.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The row.
    pub uuid: Uuid,
    /// What happened to it.
    pub kind: ChangeKind,
    columns: Columns,
    names: &'static Names,
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<&str> = self.columns().collect();
        let (kind, table, uuid) = (self.kind, self.table(), self.uuid);
        write!(f, "{kind:?} {table} {uuid} {columns:?}")
    }
}

impl Change {
    pub(crate) fn new<T: Table>(uuid: Uuid, kind: ChangeKind, columns: Columns) -> Self {
        Self {
            uuid,
            kind,
            columns,
            names: T::NAMES,
        }
    }

    /// Its table.
    pub fn table(&self) -> &'static str {
        self.names.table
    }

    /// Whether a column of this row may have another value than before.
    pub fn touches(&self, column: &str) -> bool {
        self.kind != ChangeKind::Modified || self.columns().any(|name| name == column)
    }

    /// The columns with other values, for a row that was modified.
    pub fn columns(&self) -> impl Iterator<Item = &'static str> {
        let changed = self.columns;
        let names = self.names.columns.iter().enumerate();
        names.filter_map(move |(index, name)| changed.contains(index).then_some(*name))
    }
}

/// Writes a [`Table`]: a struct with a field for each column that is wanted.
///
/// A field is called like its column, or says which one it is for. Optional columns are
/// `Option<T>`, sets are `BTreeSet<T>`, maps are `BTreeMap<K, V>`; `T` is `i64`, `f64`, `bool`,
/// `String` or `Uuid`. A column that the server does not have keeps its default, as does one that
/// is of another kind there.
///
/// ```
/// use std::collections::BTreeMap;
///
/// cobalt_ovs::ovsdb_table! {
///     /// What little we want to know of an interface.
///     pub struct Link: "Interface" {
///         /// Its name.
///         name: String,
///         /// What it is.
///         kind = "type": String,
///         /// Its number in its bridge.
///         ofport: Option<i64>,
///         /// What others say of it.
///         external_ids: BTreeMap<String, String>,
///     }
/// }
/// ```
#[macro_export]
macro_rules! ovsdb_table {
    ($(#[$about:meta])* $visibility:vis struct $row:ident: $table:literal {
        $($(#[$note:meta])* $field:ident $(= $column:literal)?: $type:ty),* $(,)?
    }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Default, PartialEq)]
        $visibility struct $row {
            $($(#[$note])* pub $field: $type,)*
        }

        impl $crate::ovsdb::Table for $row {
            const NAME: &'static str = $table;
            const COLUMNS: &'static [&'static str] =
                &[$($crate::ovsdb_table!(@column $field $($column)?)),*];
            const KINDS: &'static [$crate::ovsdb::Kind] =
                &[$(<$type as $crate::ovsdb::Field>::KIND),*];

            #[allow(unused)]
            fn set(&mut self, column: usize, value: &$crate::ovsdb::Value) -> bool {
                let mut index = 0;
                $(if column == index {
                    return $crate::ovsdb::Field::set(&mut self.$field, value);
                }
                index += 1;)*
                false
            }

            #[allow(unused)]
            fn change(&mut self, column: usize, value: &$crate::ovsdb::Value) -> bool {
                let mut index = 0;
                $(if column == index {
                    return $crate::ovsdb::Field::change(&mut self.$field, value);
                }
                index += 1;)*
                false
            }

            #[allow(unused)]
            fn difference(&self, other: &Self) -> $crate::ovsdb::Columns {
                let mut columns = $crate::ovsdb::Columns::default();
                let mut index = 0;
                $(if self.$field != other.$field {
                    columns.insert(index);
                }
                index += 1;)*
                columns
            }
        }
    };
    (@column $field:ident) => { stringify!($field) };
    (@column $field:ident $column:literal) => { $column };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ovsdb::vswitch::{Bridge, Interface, OpenVswitch, Port};

    #[test]
    fn columns_are_found_by_name_and_no_table_has_too_many() {
        fn check<T: Table>() {
            assert!(T::COLUMNS.len() <= Columns::MAX, "{}", T::NAME);
            assert_eq!(T::COLUMNS.len(), T::KINDS.len());
            for (index, name) in T::COLUMNS.iter().enumerate() {
                assert_eq!(T::column(name), Some(index));
            }
            assert_eq!(T::column("_uuid"), None);
        }
        check::<OpenVswitch>();
        check::<Bridge>();
        check::<Port>();
        check::<Interface>();
        assert!(Interface::column("type").is_some() && Interface::column("kind").is_none());
    }

    #[test]
    fn differences_are_told_by_column() {
        let (mut one, other) = (Interface::default(), Interface::default());
        assert!(one.difference(&other).is_empty());
        let ofport = Interface::column("ofport").unwrap();
        assert!(one.set(ofport, &Value::from(3)));
        let columns = one.difference(&other);
        let change = |kind| Change::new::<Interface>(Uuid::nil(), kind, columns);
        let modified = change(ChangeKind::Modified);
        assert_eq!(modified.columns().collect::<Vec<_>>(), ["ofport"]);
        assert!(modified.touches("ofport") && !modified.touches("name"));
        assert!(change(ChangeKind::Deleted).touches("name"));
        let shown = format!("{modified:?}");
        assert!(
            shown.ends_with("[\"ofport\"]") && shown.contains("Interface"),
            "{shown}"
        );
        assert!(size_of::<Change>() <= 40);
        assert!(!one.set(1000, &Value::EMPTY));
    }

    #[test]
    fn sets_of_columns_take_any_number() {
        let mut columns = Columns::first(3);
        columns.insert(1000);
        columns.remove(0);
        assert!(columns.contains(2) && !columns.contains(0) && !columns.contains(1000));
        assert_eq!(Columns::first(1000), Columns(u64::MAX));
    }
}
