//! docs/threat-model.md: its tables say what is tried, so the page cannot tell something else than
//! what the API server does.

use serde_json::Value;

/// Stands for a text that is too long for whatever field.
const LONG: usize = 2000;

/// The rows of a table of the page, without its head.
pub fn table(name: &str) -> Vec<Vec<String>> {
    cobalt_lab::testing::threat_model_table(name).unwrap()
}

/// The value of a field, for the nodes of a test.
pub fn value(text: &str, node: &str, other: &str) -> Value {
    let text = text
        .replace("NODE", node)
        .replace("OTHER", other)
        .replace("LONG", &"x".repeat(LONG));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Sets the field at a JSON pointer, and makes what is missing on the way.
pub fn set(object: &mut Value, pointer: &str, value: Value) {
    let mut place = object;
    for name in pointer.split('/').skip(1) {
        let name = name.replace("~1", "/");
        place = match place {
            Value::Array(items) => &mut items[name.parse::<usize>().unwrap()],
            Value::Object(fields) => fields.entry(name).or_insert(Value::Null),
            place => {
                *place = Value::Object(serde_json::Map::new());
                &mut place[name]
            }
        };
    }
    *place = value;
}
