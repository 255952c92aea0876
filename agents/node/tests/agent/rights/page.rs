//! docs/threat-model.md: its tables say what is tried, so the page cannot tell something else than
//! what the API server does.

use serde_json::Value;

use crate::chart::repository;

/// Stands for a text that is too long for whatever field.
const LONG: usize = 2000;

/// The rows of a table of the page, without its head.
pub fn table(name: &str) -> Vec<Vec<String>> {
    let page = std::fs::read_to_string(repository("docs/threat-model.md")).unwrap();
    let marker = format!("<!-- table: {name} -->\n");
    let (_, after) = page
        .split_once(&marker)
        .unwrap_or_else(|| panic!("no {marker}"));
    let lines = after.lines().skip_while(|line| line.is_empty());
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    let rows: Vec<Vec<String>> = rows
        .map(|line| {
            let cells = line.trim_matches('|').split('|');
            cells
                .map(|cell| cell.trim().trim_matches('`').to_owned())
                .collect()
        })
        .collect();
    assert!(rows.len() > 10, "{name} has {} rows", rows.len());
    rows
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
