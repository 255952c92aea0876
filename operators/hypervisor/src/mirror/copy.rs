//! What a copy says, whether it says what the original does, and what to do about it. Pure.

use std::collections::BTreeMap;

use cobalt_api::names::labels;
use kube::ResourceExt;
use kube::core::{ApiResource, DynamicObject};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

/// A digest of all that is copied: labels, spec and status. Two objects with the same one say the
/// same. It is kept instead of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest([u8; 16]);

/// A copy, as the other cluster has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// Which object it is: one that is made anew has another.
    pub uid: String,
    /// What it says.
    pub digest: Digest,
}

/// What was written last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// What the original said.
    pub original: Digest,
    /// What the copy said then. It differs where the other cluster has another version of the kind,
    /// or where somebody else has added to the copy: writing the same again would change nothing.
    pub copy: Digest,
}

/// What to do about one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The copy is as it should be.
    Nothing,
    /// Make it, or make it say what the original says.
    Write,
    /// The original is gone.
    Delete,
}

/// Decides.
#[must_use]
pub fn decide(original: Option<Digest>, copy: Option<Digest>, written: Option<Written>) -> Step {
    match (original, copy) {
        (None, None) => Step::Nothing,
        (None, Some(_)) => Step::Delete,
        (Some(_), None) => Step::Write,
        (Some(original), Some(copy)) => {
            let as_written = written == Some(Written { original, copy });
            if original == copy || as_written {
                Step::Nothing
            } else {
                Step::Write
            }
        }
    }
}

/// The digest of an object.
#[must_use]
pub fn digest(object: &DynamicObject) -> Digest {
    let mut hash = Sha256::new();
    for (key, value) in copied_labels(object) {
        feed_text(&mut hash, key);
        feed_text(&mut hash, value);
    }
    for part in ["spec", "status"] {
        feed_text(&mut hash, part);
        // No status and an empty one are the same.
        let value = object.data.get(part).filter(|value| !is_empty(value));
        feed(&mut hash, value.unwrap_or(&Value::Null));
    }
    let mut short = [0; 16];
    short
        .iter_mut()
        .zip(hash.finalize())
        .for_each(|(to, from)| *to = from);
    Digest(short)
}

fn copied_labels(object: &DynamicObject) -> impl Iterator<Item = (&String, &String)> {
    let all = object.labels().iter();
    all.filter(|(key, _)| *key != labels::MIRROR_OF)
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty)
}

/// Each value begins with what it is and how long, so that no two have the same bytes. The order of
/// fields does not count.
fn feed(hash: &mut Sha256, value: &Value) {
    match value {
        Value::Null => hash.update("null"),
        Value::Bool(value) => hash.update(if *value { "true" } else { "false" }),
        Value::Number(number) => {
            hash.update("number");
            feed_text(hash, &number.to_string());
        }
        Value::String(text) => {
            hash.update("text");
            feed_text(hash, text);
        }
        Value::Array(values) => {
            hash.update("list");
            feed_length(hash, values.len());
            values.iter().for_each(|value| feed(hash, value));
        }
        Value::Object(fields) => {
            hash.update("map");
            feed_length(hash, fields.len());
            let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
            for (key, value) in sorted {
                feed_text(hash, key);
                feed(hash, value);
            }
        }
    }
}

fn feed_text(hash: &mut Sha256, text: &str) {
    feed_length(hash, text.len());
    hash.update(text);
}

fn feed_length(hash: &mut Sha256, length: usize) {
    hash.update(u64::try_from(length).unwrap_or(u64::MAX).to_le_bytes());
}

/// Whether a copy of this cluster is what an object with these labels is.
#[must_use]
pub fn is_ours(labels: &BTreeMap<String, String>, cluster: &str) -> bool {
    labels
        .get(labels::MIRROR_OF)
        .is_some_and(|owner| owner == cluster)
}

/// The copy without its status, as it is applied. With a `uid` it is that object or none.
#[must_use]
pub fn object(
    original: &DynamicObject,
    resource: &ApiResource,
    cluster: &str,
    uid: Option<&str>,
) -> Value {
    let mut labels: Map<String, Value> = copied_labels(original)
        .map(|(key, value)| (key.clone(), value.clone().into()))
        .collect();
    labels.insert(labels::MIRROR_OF.to_owned(), cluster.into());
    let mut metadata = metadata(original);
    metadata.insert("labels".to_owned(), labels.into());
    if let Some(uid) = uid {
        metadata.insert("uid".to_owned(), uid.into());
    }
    json!({
        "apiVersion": resource.api_version, "kind": resource.kind,
        "metadata": metadata,
        "spec": original.data.get("spec").cloned().unwrap_or_else(|| json!({})),
    })
}

/// The status of the copy, as it is applied.
#[must_use]
pub fn status(original: &DynamicObject, resource: &ApiResource) -> Value {
    json!({
        "apiVersion": resource.api_version, "kind": resource.kind,
        "metadata": metadata(original),
        "status": original.data.get("status").cloned().unwrap_or_else(|| json!({})),
    })
}

/// Whether there is a status to copy.
#[must_use]
pub fn has_status(original: &DynamicObject) -> bool {
    let status = original.data.get("status");
    status.is_some_and(|status| !status.is_null() && !is_empty(status))
}

fn metadata(original: &DynamicObject) -> Map<String, Value> {
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), original.name_any().into());
    if let Some(namespace) = original.namespace() {
        metadata.insert("namespace".to_owned(), namespace.into());
    }
    metadata
}
