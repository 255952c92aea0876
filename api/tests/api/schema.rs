//! A walk over the generated schemas.

use std::sync::LazyLock;

use cobalt_api::crds;
use serde_json::Value;

/// One place in a schema.
#[derive(Clone, Debug)]
pub struct Node {
    /// The plural of the kind.
    pub plural: String,
    /// Where it is: names joined by dots, `[]` for an entry of a list, `*` for a value of a map.
    pub path: String,
    /// Its parent demands it.
    pub required: bool,
    /// What the schema says there.
    pub schema: Value,
}

/// Every place of every schema, from `spec` and `status` down.
pub fn nodes() -> &'static [Node] {
    static ALL: LazyLock<Vec<Node>> = LazyLock::new(walk_all);
    &ALL
}

fn walk_all() -> Vec<Node> {
    let mut nodes = Vec::new();
    for crd in crate::support::definitions() {
        let schema = crds::schema_of(crd).expect("a definition has a schema");
        let plural = &crd.spec.names.plural;
        for name in ["spec", "status"] {
            let required = requires(&schema, name);
            walk(
                &mut nodes,
                plural,
                name,
                required,
                &schema["properties"][name],
            );
        }
    }
    nodes
}

fn walk(nodes: &mut Vec<Node>, plural: &str, path: &str, required: bool, schema: &Value) {
    nodes.push(Node {
        plural: plural.to_owned(),
        path: path.to_owned(),
        required,
        schema: schema.clone(),
    });
    if let Some(Value::Object(properties)) = schema.get("properties") {
        for (name, property) in properties {
            let required = requires(schema, name);
            walk(nodes, plural, &format!("{path}.{name}"), required, property);
        }
    }
    if let Some(items) = schema.get("items") {
        walk(nodes, plural, &format!("{path}[]"), false, items);
    }
    if let Some(values) = schema.get("additionalProperties") {
        walk(nodes, plural, &format!("{path}.*"), false, values);
    }
}

fn requires(schema: &Value, name: &str) -> bool {
    schema["required"]
        .as_array()
        .is_some_and(|names| names.iter().any(|found| found == name))
}

impl Node {
    /// The place in the words of `deployed.txt`.
    pub fn line(&self) -> String {
        let schema = &self.schema;
        let mut line = format!("{} {} ", self.plural, self.path);
        if schema["x-kubernetes-int-or-string"] == true {
            line += "quantity";
        } else {
            line += schema["type"].as_str().expect("a place has a type");
        }
        if let Some(format) = schema["format"].as_str() {
            line += &format!("/{format}");
        }
        if self.required {
            line += " required";
        }
        match &schema["default"] {
            Value::Null => {}
            Value::Object(_) => line += " default",
            default => line += &format!(" default={default}"),
        }
        for limit in ["minLength", "maxLength", "minimum", "maximum"] {
            if let Some(number) = schema[limit].as_f64() {
                line += &format!(" {limit}={number}");
            }
        }
        for limit in ["minItems", "maxItems", "minProperties", "maxProperties"] {
            if let Some(number) = schema[limit].as_i64() {
                line += &format!(" {limit}={number}");
            }
        }
        if schema.get("pattern").is_some() {
            line += " pattern";
        }
        if let Some(values) = schema["enum"].as_array() {
            let values: Vec<_> = values.iter().filter_map(Value::as_str).collect();
            line += &format!(" enum={}", values.join("|"));
        }
        match self.rules().len() {
            0 => {}
            count => line += &format!(" rules={count}"),
        }
        if let Some(keys) = schema["x-kubernetes-list-map-keys"].as_array() {
            let keys: Vec<_> = keys.iter().filter_map(Value::as_str).collect();
            line += &format!(" map={}", keys.join(","));
        } else if let Some(kind) = schema["x-kubernetes-list-type"].as_str() {
            line += &format!(" list={kind}");
        }
        line
    }

    /// What the schema can refuse here: the keyword of each limit.
    pub fn limits(&self) -> Vec<String> {
        let mut limits = Vec::new();
        for keyword in [
            "minLength",
            "maxLength",
            "minimum",
            "maximum",
            "minItems",
            "maxItems",
            "minProperties",
            "maxProperties",
            "pattern",
            "enum",
        ] {
            if self.schema.get(keyword).is_some() {
                limits.push(keyword.to_owned());
            }
        }
        if let Some("map" | "set") = self.schema["x-kubernetes-list-type"].as_str() {
            limits.push("duplicate".to_owned());
        }
        // A required property with a default is filled in, so that its absence is never refused.
        if self.required && self.schema.get("default").is_none() {
            limits.push("required".to_owned());
        }
        limits
    }

    /// The messages of the CEL rules here.
    pub fn rules(&self) -> Vec<Option<String>> {
        self.schema["x-kubernetes-validations"]
            .as_array()
            .map(|rules| {
                rules
                    .iter()
                    .map(|rule| rule["message"].as_str().map(str::to_owned))
                    .collect()
            })
            .unwrap_or_default()
    }
}
