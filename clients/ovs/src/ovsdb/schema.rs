//! Schemas: which tables and columns a server has, and what they hold.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::field::Kind;

/// The schema of a database.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Schema {
    /// The name of the database.
    pub name: String,
    /// The version of the schema.
    #[serde(default)]
    pub version: String,
    /// Its tables.
    #[serde(default)]
    tables: BTreeMap<String, TableSchema>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
struct TableSchema {
    #[serde(default)]
    columns: BTreeMap<String, ColumnSchema>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct ColumnSchema {
    #[serde(rename = "type")]
    kind: TypeSchema,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum TypeSchema {
    Full {
        #[serde(default)]
        value: Option<IgnoredAny>,
        #[serde(default)]
        max: Option<Max>,
    },
    Plain(IgnoredAny),
}

/// The largest number of elements: a number, or `"unlimited"`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum Max {
    Number(u64),
    Unlimited(IgnoredAny),
}

impl Schema {
    /// Whether there is such a table.
    pub fn has_table(&self, table: &str) -> bool {
        self.tables.contains_key(table)
    }

    /// What a column holds; `None` if there is no such column.
    pub fn column(&self, table: &str, column: &str) -> Option<Kind> {
        let column = self.tables.get(table)?.columns.get(column)?;
        Some(match &column.kind {
            TypeSchema::Full { value: Some(_), .. } => Kind::Map,
            TypeSchema::Full {
                max: None | Some(Max::Number(0 | 1)),
                ..
            }
            | TypeSchema::Plain(_) => Kind::Single,
            TypeSchema::Full { .. } => Kind::Set,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_columns_follow_from_their_types() {
        let text = r#"{"name":"D","version":"1.2.3","cksum":"1 2","tables":{"T":{"isRoot":true,
            "columns":{
            "name":{"type":"string","mutable":false},
            "scalar":{"type":{"key":"integer"}},
            "optional":{"type":{"key":{"type":"integer","minInteger":0},"min":0,"max":1}},
            "set":{"type":{"key":{"type":"uuid","refTable":"P"},"min":0,"max":"unlimited"}},
            "few":{"type":{"key":"integer","min":0,"max":4096}},
            "map":{"type":{"key":"string","value":"string","min":0,"max":"unlimited"}}}}}}"#;
        let schema: Schema = serde_json::from_str(text).unwrap();
        assert_eq!(
            (schema.name.as_str(), schema.version.as_str()),
            ("D", "1.2.3")
        );
        for (column, kind) in [
            ("name", Some(Kind::Single)),
            ("scalar", Some(Kind::Single)),
            ("optional", Some(Kind::Single)),
            ("set", Some(Kind::Set)),
            ("few", Some(Kind::Set)),
            ("map", Some(Kind::Map)),
            ("absent", None),
        ] {
            assert_eq!(schema.column("T", column), kind, "{column}");
        }
        assert!(schema.has_table("T") && !schema.has_table("U"));
        assert_eq!(schema.column("U", "name"), None);
    }
}
