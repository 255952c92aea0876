//! The taint that makes pods leave a host that goes away.
//!
//! The taints of a Node are one list that many write: the node controller, Gardener, people. For
//! server-side apply the list is one value, so whoever applies it takes all taints away from the
//! others; a merge patch replaces it, too. A JSON patch names one entry. It is applied to the Node
//! as it is then, tests included, and again if somebody else was faster, so it cannot lose another's
//! taint: it adds at the end of a list that is there, makes a list only where there is none, and
//! removes an entry only after a test that it is ours.

use cobalt_api::names::taints;
use k8s_openapi::api::core::v1::{Node, Taint};
use serde_json::{Value, json};

/// The effect of our taint.
const NO_EXECUTE: &str = "NoExecute";

/// Puts our taint on a Node or takes it off.
#[derive(Debug, Clone, PartialEq)]
pub struct TaintChange {
    /// The Node.
    pub node: String,
    /// Whether it shall have the taint.
    pub present: bool,
    /// The taints when this was decided.
    pub seen: Vec<Taint>,
}

impl TaintChange {
    pub(super) fn of(node: &Node, name: &str, present: bool) -> Option<Self> {
        let seen = taints_of(node);
        (place(seen).is_some() != present).then(|| Self {
            node: name.to_owned(),
            present,
            seen: seen.to_vec(),
        })
    }
}

pub(super) fn taints_of(node: &Node) -> &[Taint] {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    taints.unwrap_or_default()
}

/// Whether the node has our taint.
pub(super) fn is_tainted(node: &Node) -> bool {
    place(taints_of(node)).is_some()
}

fn place(taints: &[Taint]) -> Option<usize> {
    taints
        .iter()
        .position(|taint| taint.key == taints::OFFBOARDING && taint.effect == NO_EXECUTE)
}

/// The JSON patch that makes it so. `None`: it is so. Pure.
pub(super) fn patch(taints: &[Taint], present: bool) -> Option<Value> {
    let ours = json!({ "key": taints::OFFBOARDING, "effect": NO_EXECUTE });
    match (place(taints), present) {
        (Some(_), true) | (None, false) => None,
        (None, true) if taints.is_empty() => Some(json!([
            // Absent is null.
            { "op": "test", "path": "/spec/taints", "value": null },
            { "op": "add", "path": "/spec/taints", "value": [ours] },
        ])),
        (None, true) => Some(json!([
            { "op": "add", "path": "/spec/taints/-", "value": ours },
        ])),
        (Some(index), false) => Some(json!([
            { "op": "test", "path": format!("/spec/taints/{index}/key"), "value": taints::OFFBOARDING },
            { "op": "test", "path": format!("/spec/taints/{index}/effect"), "value": NO_EXECUTE },
            { "op": "remove", "path": format!("/spec/taints/{index}") },
        ])),
    }
}
