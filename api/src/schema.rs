//! From Rust types to the structural schemas of Kubernetes.
//!
//! schemars describes a type in JSON Schema; Kubernetes wants a subset of that. kube's own
//! conversion marks every `Option` as `nullable`, which would make the API server store nulls that
//! the deployed schema drops. So the conversion is done here, and the generated schema says exactly
//! what the fleet's schema says: no `nullable`, no unknown formats, defaults and required lists as
//! they are.

use schemars::{JsonSchema, Schema, generate::SchemaSettings, json_schema};
use serde_json::{Map, Value, json};

/// Marks a property as required although the Rust field is optional.
const REQUIRED: &str = "x-cobalt-required";
/// Carries a default that is meant for the API server. The defaults that schemars finds are those of
/// the Rust type, and an absent value has to stay absent.
const DEFAULT: &str = "x-cobalt-default";

/// The fields of a condition, in the words of this project.
const CONDITION_REASON: &str = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$";
const CONDITION_TYPE: &str = concat!(
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?",
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
);
const QUANTITY: &str = concat!(
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))",
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
);
/// A UUID in either case.
pub(crate) const UUID: &str =
    "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$";

/// Field attribute: the property is required by the schema, though Rust may leave it out.
pub(crate) fn required(schema: &mut Schema) {
    schema.insert(REQUIRED.to_owned(), Value::Bool(true));
}

/// Field or type attribute: adds a CEL rule. The message tells the person what to do.
pub(crate) fn rule(rule: &'static str, message: &'static str) -> impl FnMut(&mut Schema) {
    move |schema| {
        let rules = schema
            .ensure_object()
            .entry("x-kubernetes-validations")
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(rules) = rules {
            rules.push(json!({ "message": message, "rule": rule }));
        }
    }
}

/// Field attribute: a list whose entries are told apart by one of their fields.
pub(crate) fn map_by(key: &'static str) -> impl FnMut(&mut Schema) {
    move |schema| {
        schema.insert("x-kubernetes-list-type".to_owned(), json!("map"));
        schema.insert("x-kubernetes-list-map-keys".to_owned(), json!([key]));
    }
}

/// Field attribute: a list that is replaced as a whole.
pub(crate) fn atomic(schema: &mut Schema) {
    schema.insert("x-kubernetes-list-type".to_owned(), json!("atomic"));
}

/// Field attribute: a default that the API server fills in.
pub(crate) fn default(value: impl Into<Value>) -> impl FnMut(&mut Schema) {
    let value = value.into();
    move |schema| {
        schema.insert(DEFAULT.to_owned(), value.clone());
    }
}

/// An integer without a format.
pub(crate) fn integer(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer" })
}

/// A quantity, as a number or in the notation of Kubernetes.
pub(crate) fn quantity(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [{ "type": "integer" }, { "type": "string" }],
        "pattern": QUANTITY,
        "x-kubernetes-int-or-string": true,
    })
}

/// A map from resource names to quantities.
pub(crate) fn quantities(generator: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": quantity(generator) })
}

/// The UUIDs of servers; a set.
pub(crate) fn server_ids(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 1024,
        "x-kubernetes-list-type": "set",
        "items": {
            "type": "string",
            "maxLength": 36,
            "x-kubernetes-validations": [{
                "message": "instances are listed by server id: write the id that \
                    `openstack server list` shows, a UUID in lower case",
                "rule": "self.matches('^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')",
            }],
        },
    })
}

/// The conditions of an object, one per type.
pub(crate) fn conditions(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "description": "One statement about the object.",
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": {
                    "description": "When the status last changed.",
                    "type": "string",
                    "format": "date-time",
                },
                "message": {
                    "description": "Details for people. May be empty.",
                    "type": "string",
                    "maxLength": crate::conditions::MESSAGE_MAX,
                },
                "observedGeneration": {
                    "description": "The generation of the object that this is about.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
                "reason": {
                    "description": "Why the status is what it is, as one CamelCase word.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": CONDITION_REASON,
                },
                "status": {
                    "description": "Whether it holds.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "type": {
                    "description": "What the statement is about.",
                    "type": "string",
                    "maxLength": 316,
                    "pattern": CONDITION_TYPE,
                },
            },
        },
    })
}

/// The structural schema of a type.
pub(crate) fn structural<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value();
    clean(&mut schema);
    schema
}

/// The object that has nothing but the defaults of a schema's properties.
pub(crate) fn defaults(schema: &Value) -> Value {
    let mut object = Map::new();
    if let Some(Value::Object(properties)) = schema.get("properties") {
        for (name, property) in properties {
            if let Some(default) = property.get("default") {
                object.insert(name.clone(), default.clone());
            }
        }
    }
    Value::Object(object)
}

/// Rewrites one schema, and all that it contains.
fn clean(schema: &mut Value) {
    let Value::Object(schema) = schema else {
        return;
    };
    schema.remove("title");
    schema.remove("$schema");
    schema.remove("default");
    if let Some(default) = schema.remove(DEFAULT) {
        schema.insert("default".to_owned(), default);
    }
    drop_null(schema);
    collect_enum(schema);
    if let Some(Value::String(format)) = schema.get("format")
        && !["int32", "int64", "date-time"].contains(&format.as_str())
    {
        schema.remove("format");
    }
    if let Some(Value::String(description)) = schema.get_mut("description") {
        *description = reflow(description);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(key) {
            clean(inner);
        }
    }
    let mut required: Vec<Value> = match schema.remove("required") {
        Some(Value::Array(names)) => names,
        _ => Vec::new(),
    };
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for (name, property) in properties.iter_mut() {
            clean(property);
            if let Value::Object(property) = property
                && property.remove(REQUIRED).is_some()
            {
                required.push(json!(name));
            }
        }
    }
    if !required.is_empty() {
        required.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
        required.dedup();
        schema.insert("required".to_owned(), Value::Array(required));
    }
}

/// An `Option` is its value or absent; null is not a third thing.
fn drop_null(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(alternatives)) = schema.get_mut("anyOf") {
        let before = alternatives.len();
        alternatives.retain(|alternative| alternative.get("type") != Some(&json!("null")));
        if before > alternatives.len()
            && let [Value::Object(only)] = alternatives.as_slice()
        {
            let only = only.clone();
            schema.remove("anyOf");
            for (key, value) in only {
                schema.entry(key).or_insert(value);
            }
        }
    }
}

/// An enum whose variants have descriptions comes as alternatives of one constant each. Kubernetes
/// wants one list of values; the descriptions become a list in the text.
fn collect_enum(schema: &mut Map<String, Value>) {
    let Some(Value::Array(variants)) = schema.get("oneOf") else {
        return;
    };
    let mut values = Vec::new();
    let mut lines = Vec::new();
    for variant in variants {
        let Some(value) = variant.get("const") else {
            return;
        };
        if let (Some(name), Some(text)) = (
            value.as_str(),
            variant.get("description").and_then(Value::as_str),
        ) {
            lines.push(format!(
                "- {}: {}",
                if name.is_empty() { "\"\"" } else { name },
                flow(text)
            ));
        }
        values.push(value.clone());
    }
    schema.remove("oneOf");
    schema.insert("type".to_owned(), json!("string"));
    schema.insert("enum".to_owned(), Value::Array(values));
    let about = schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let text = format!("{about}\n\n{}", lines.join("\n"));
    schema.insert(
        "description".to_owned(),
        Value::String(text.trim().to_owned()),
    );
}

/// Joins the lines of each paragraph; a list keeps one line per entry.
fn reflow(text: &str) -> String {
    text.split("\n\n")
        .map(|paragraph| {
            if paragraph.starts_with("- ") {
                paragraph.to_owned()
            } else {
                flow(paragraph)
            }
        })
        .collect::<Vec<_>>()
        .join("\n\n")
}

fn flow(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
