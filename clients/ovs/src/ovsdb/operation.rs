//! Transactions: what can be asked of a database in one step, and what comes of it.

use serde::Serialize;
use uuid::Uuid;

use super::row::Row;
use super::table::Table;
use super::value::Value;

/// How a column is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Function {
    /// Is the value.
    #[serde(rename = "==")]
    Equal,
    /// Is not the value.
    #[serde(rename = "!=")]
    NotEqual,
    /// Is less.
    #[serde(rename = "<")]
    Less,
    /// Is not more.
    #[serde(rename = "<=")]
    AtMost,
    /// Is more.
    #[serde(rename = ">")]
    More,
    /// Is not less.
    #[serde(rename = ">=")]
    AtLeast,
    /// Has all of these elements.
    #[serde(rename = "includes")]
    Includes,
    /// Has none of these elements.
    #[serde(rename = "excludes")]
    Excludes,
}

/// Which rows are meant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Condition(String, Function, Value);

impl Condition {
    /// A comparison.
    pub fn new(column: &str, function: Function, value: impl Into<Value>) -> Self {
        Self(column.to_owned(), function, value.into())
    }

    /// The column is this value.
    pub fn equal(column: &str, value: impl Into<Value>) -> Self {
        Self::new(column, Function::Equal, value)
    }

    /// The column has these elements.
    pub fn includes(column: &str, value: impl Into<Value>) -> Self {
        Self::new(column, Function::Includes, value)
    }

    /// The row with this identity.
    pub fn row(uuid: Uuid) -> Self {
        Self::equal("_uuid", uuid)
    }
}

/// How a column is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Mutator {
    /// Adds a number.
    #[serde(rename = "+=")]
    Add,
    /// Takes a number away.
    #[serde(rename = "-=")]
    Subtract,
    /// Adds elements of a set, or pairs whose key is not there yet.
    #[serde(rename = "insert")]
    Insert,
    /// Removes elements, pairs or keys.
    #[serde(rename = "delete")]
    Delete,
}

/// A change of a column.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mutation(String, Mutator, Value);

impl Mutation {
    /// A change of a column.
    pub fn new(column: &str, mutator: Mutator, value: impl Into<Value>) -> Self {
        Self(column.to_owned(), mutator, value.into())
    }
}

/// Whether a `wait` waits for rows to be so, or not to be so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Until {
    /// The rows are these.
    #[serde(rename = "==")]
    Equal,
    /// The rows are not these.
    #[serde(rename = "!=")]
    NotEqual,
}

/// A step of a transaction. All steps happen, or none.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Operation {
    /// Adds a row.
    Insert {
        /// To this table.
        table: String,
        /// With these columns.
        row: Row,
        /// Under this name in the other steps; see [`super::Atom::Named`].
        #[serde(rename = "uuid-name", skip_serializing_if = "Option::is_none")]
        uuid_name: Option<String>,
    },
    /// Reads rows.
    Select {
        /// Of this table.
        table: String,
        /// That meet all of these conditions.
        #[serde(rename = "where")]
        conditions: Vec<Condition>,
        /// These columns of them, or all.
        #[serde(skip_serializing_if = "Option::is_none")]
        columns: Option<Vec<String>>,
    },
    /// Sets columns.
    Update {
        /// Of this table.
        table: String,
        /// Of the rows that meet all of these conditions.
        #[serde(rename = "where")]
        conditions: Vec<Condition>,
        /// To these values.
        row: Row,
    },
    /// Changes columns.
    Mutate {
        /// Of this table.
        table: String,
        /// Of the rows that meet all of these conditions.
        #[serde(rename = "where")]
        conditions: Vec<Condition>,
        /// In this way.
        mutations: Vec<Mutation>,
    },
    /// Removes rows.
    Delete {
        /// Of this table.
        table: String,
        /// That meet all of these conditions.
        #[serde(rename = "where")]
        conditions: Vec<Condition>,
    },
    /// Goes on only if rows are as they are expected: what guards a read-modify-write.
    Wait {
        /// Of this table.
        table: String,
        /// That meet all of these conditions.
        #[serde(rename = "where")]
        conditions: Vec<Condition>,
        /// These columns.
        columns: Vec<String>,
        /// Are these, or not.
        until: Until,
        /// What is expected.
        rows: Vec<Row>,
        /// How many milliseconds it may wait; 0 to look once.
        timeout: u64,
    },
    /// Says in the server's log what the transaction is for.
    Comment {
        /// What to say.
        comment: String,
    },
}

impl Operation {
    /// Reads the columns of a typed table; read a row with [`Row::read`].
    ///
    /// Every column must exist on the server. Where releases differ, name the columns.
    pub fn select<T: Table>(conditions: Vec<Condition>) -> Self {
        let columns = std::iter::once("_uuid").chain(T::COLUMNS.iter().copied());
        Self::Select {
            table: T::NAME.to_owned(),
            conditions,
            columns: Some(columns.map(str::to_owned).collect()),
        }
    }

    /// Sets columns of one row.
    pub fn update_row(table: &str, uuid: Uuid, row: Row) -> Self {
        Self::Update {
            table: table.to_owned(),
            conditions: vec![Condition::row(uuid)],
            row,
        }
    }

    /// Sets keys of a map such as `external_ids`, whether they are there or not, and leaves the
    /// other keys alone.
    pub fn set_keys(
        table: &str,
        conditions: Vec<Condition>,
        column: &str,
        pairs: &[(&str, &str)],
    ) -> Self {
        let keys = Value::set(pairs.iter().map(|(key, _)| *key));
        let pairs = Value::string_map(pairs.iter().copied());
        Self::Mutate {
            table: table.to_owned(),
            conditions,
            mutations: vec![
                Mutation::new(column, Mutator::Delete, keys),
                Mutation::new(column, Mutator::Insert, pairs),
            ],
        }
    }
}

/// What came of a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// How many rows were meant.
    pub count: u64,
    /// The identity of the new row.
    pub uuid: Option<Uuid>,
    /// The rows that were read.
    pub rows: Vec<Row>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ovsdb::Atom;
    use crate::ovsdb::southbound::Encap;

    fn written(operation: &Operation) -> serde_json::Value {
        serde_json::to_value(operation).unwrap()
    }

    #[test]
    fn operations_have_the_form_of_the_rfc() {
        let insert = Operation::Insert {
            table: "Port".to_owned(),
            row: Row::new()
                .with("name", "p")
                .with("interfaces", Atom::Named("i".to_owned())),
            uuid_name: Some("p".to_owned()),
        };
        let expected = json!({ "op": "insert", "table": "Port", "uuid-name": "p",
            "row": { "name": "p", "interfaces": ["named-uuid", "i"] } });
        assert_eq!(written(&insert), expected);
        let select = Operation::select::<Encap>(vec![Condition::equal("type", "geneve")]);
        let expected = json!({ "op": "select", "table": "Encap",
            "where": [["type", "==", "geneve"]],
            "columns": ["_uuid", "chassis_name", "type", "ip", "options"] });
        assert_eq!(written(&select), expected);
        let keys = Operation::set_keys("Open_vSwitch", vec![], "external_ids", &[("k", "v")]);
        let expected = json!({ "op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [
            ["external_ids", "delete", ["set", ["k"]]],
            ["external_ids", "insert", ["map", [["k", "v"]]]]] });
        assert_eq!(written(&keys), expected);
        let wait = Operation::Wait {
            table: "T".to_owned(),
            conditions: vec![Condition::new("n", Function::AtLeast, 3)],
            columns: vec!["n".to_owned()],
            until: Until::NotEqual,
            rows: vec![Row::new().with("n", 3)],
            timeout: 0,
        };
        let expected = json!({ "op": "wait", "table": "T", "where": [["n", ">=", 3]],
            "columns": ["n"], "until": "!=", "rows": [{ "n": 3 }], "timeout": 0 });
        assert_eq!(written(&wait), expected);
        let delete = Operation::Delete {
            table: "T".to_owned(),
            conditions: vec![Condition::row(Uuid::nil())],
        };
        let nil = "00000000-0000-0000-0000-000000000000";
        let expected = json!({ "op": "delete", "table": "T",
            "where": [["_uuid", "==", ["uuid", nil]]] });
        assert_eq!(written(&delete), expected);
        let update = Operation::update_row("T", Uuid::nil(), Row::new().with("a", Value::EMPTY));
        assert_eq!(written(&update)["row"], json!({ "a": ["set", []] }));
        let comment = Operation::Comment {
            comment: "why".to_owned(),
        };
        assert_eq!(
            written(&comment),
            json!({ "op": "comment", "comment": "why" })
        );
    }
}
