//! What is kept of Pods and Nodes: the labels that are copied, and who set them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use cobalt_api::names::labels::{METAL_NAME, REGION, ZONE};
use cobalt_runtime::{Change, ObjectKey};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

use crate::config::is_label_value;

/// Kubernetes 1.35 and newer writes these labels of the Node into a Pod as it is bound, in the name of
/// whoever binds it, and never again. So whoever owns them, they are meant to be the Node's.
const SET_AT_BINDING: [&str; 2] = [REGION, ZONE];

/// Which labels are copied, and whose values are replaced.
#[derive(Debug)]
pub struct Scope {
    /// The keys.
    pub labels: BTreeSet<String>,
    /// The field manager of this injector.
    pub manager: String,
    /// The field managers whose labels count as the injector's own.
    pub take_over_from: BTreeSet<String>,
}

/// Who set a label, by field manager.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owners {
    /// This injector.
    pub injector: bool,
    /// A manager that it takes labels over from, or the API server at the binding.
    pub predecessor: bool,
    /// Anybody else: the label is theirs and is left alone.
    pub foreign: bool,
}

/// A label of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodLabel {
    /// Its value.
    pub value: String,
    /// Who set it.
    pub owners: Owners,
}

/// A Pod that is bound to a Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundPod {
    /// Distinguishes it from another Pod of the same name.
    pub uid: String,
    /// The Node.
    pub node: Arc<str>,
    /// It is being deleted.
    pub terminating: bool,
    /// Those of its labels that are in the scope.
    pub labels: BTreeMap<String, PodLabel>,
}

impl BoundPod {
    /// Keeps what is needed of a Pod; `None` if it is bound to no Node.
    #[must_use]
    pub fn new(pod: Pod, scope: &Scope) -> Option<Self> {
        let node = pod.spec?.node_name.filter(|node| !node.is_empty())?;
        let meta = pod.metadata;
        let fields = meta.managed_fields.unwrap_or_default();
        let labels = meta.labels.unwrap_or_default().into_iter();
        let labels = labels
            .filter(|(key, _)| scope.labels.contains(key))
            .map(|(key, value)| {
                let owners = owners(&key, &fields, scope);
                (key, PodLabel { value, owners })
            })
            .collect();
        Some(Self {
            uid: meta.uid.unwrap_or_default(),
            node: node.into(),
            terminating: meta.deletion_timestamp.is_some(),
            labels,
        })
    }
}

/// Who set a label. One that nobody owns up to is foreign.
fn owners(key: &str, fields: &[ManagedFieldsEntry], scope: &Scope) -> Owners {
    let field = format!("f:{key}");
    let mut owners = Owners::default();
    for entry in fields {
        let tree = entry.fields_v1.as_ref().map(|fields| &fields.0);
        let labels = tree.and_then(|tree| tree.get("f:metadata")?.get("f:labels"));
        if labels.and_then(|labels| labels.get(&field)).is_none() {
            continue;
        }
        match entry.manager.as_deref().unwrap_or_default() {
            manager if manager == scope.manager => owners.injector = true,
            manager if scope.take_over_from.contains(manager) => owners.predecessor = true,
            _ => owners.foreign = true,
        }
    }
    owners.foreign |= owners == Owners::default();
    if owners.foreign && SET_AT_BINDING.contains(&key) {
        owners.foreign = false;
        owners.predecessor = true;
    }
    owners
}

/// The labels that a Node gives to its Pods. A Node without a name in the bare-metal inventory is
/// known there by its own name.
#[must_use]
pub fn labels_of_node(node: Node, scope: &Scope) -> BTreeMap<String, String> {
    let meta = node.metadata;
    let mut labels = meta.labels.unwrap_or_default();
    labels.retain(|key, _| scope.labels.contains(key));
    if scope.labels.contains(METAL_NAME)
        && let Some(name) = meta.name.filter(|name| is_label_value(name))
    {
        labels.entry(METAL_NAME.to_owned()).or_insert(name);
    }
    labels
}

/// Which Pods run on a Node. A clone is the same index.
#[derive(Debug, Clone, Default)]
pub struct PodsByNode(Arc<Mutex<BTreeMap<Arc<str>, BTreeSet<ObjectKey>>>>);

impl PodsByNode {
    /// Follows a change of a Pod.
    pub fn update(&self, key: &ObjectKey, change: &Change<'_, Option<BoundPod>>) {
        let node = |pod: &Option<BoundPod>| pod.as_ref().map(|pod| Arc::clone(&pod.node));
        let (before, now) = match change {
            Change::Applied { before, now } => (before.and_then(|pod| node(pod)), node(now)),
            Change::Deleted { before } => (node(before), None),
        };
        if before == now {
            return;
        }
        let mut index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = before
            && let Some(pods) = index.get_mut(&before)
        {
            pods.remove(key);
            if pods.is_empty() {
                index.remove(&before);
            }
        }
        if let Some(now) = now {
            index.entry(now).or_default().insert(key.clone());
        }
    }

    /// The Pods of a Node.
    #[must_use]
    pub fn on(&self, node: &str) -> Vec<ObjectKey> {
        let index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pods = index.get(node).into_iter().flatten();
        pods.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scope() -> Scope {
        Scope {
            labels: ["zone", METAL_NAME].map(str::to_owned).into(),
            manager: "us".to_owned(),
            take_over_from: ["manager".to_owned()].into(),
        }
    }

    fn pod(node: &str, managers: &[&str]) -> Pod {
        let entries: Vec<_> = managers
            .iter()
            .map(|manager| {
                json!({ "manager": manager,
                    "fieldsV1": { "f:metadata": { "f:labels": { "f:zone": {} } } } })
            })
            .collect();
        serde_json::from_value(json!({
            "metadata": { "name": "a", "namespace": "x", "uid": "1", "managedFields": entries,
                "labels": { "zone": "z", "app": "b" } },
            "spec": { "nodeName": node, "containers": [] },
        }))
        .unwrap()
    }

    #[test]
    fn the_owners_of_a_label_are_read_from_the_managed_fields() {
        let owners = |injector, predecessor, foreign| Owners {
            injector,
            predecessor,
            foreign,
        };
        for (managers, wanted) in [
            (&["us"][..], owners(true, false, false)),
            (&["manager"], owners(false, true, false)),
            (&["us", "manager"], owners(true, true, false)),
            (&["kube-controller-manager"], owners(false, false, true)),
            (&["us", "kubectl"], owners(true, false, true)),
            // Somebody has cleared the managed fields.
            (&[], owners(false, false, true)),
        ] {
            let kept = BoundPod::new(pod("n", managers), &scope()).unwrap();
            let labels: Vec<_> = kept.labels.into_iter().collect();
            let value = "z".to_owned();
            let wanted = PodLabel {
                value,
                owners: wanted,
            };
            assert_eq!(labels, [("zone".to_owned(), wanted)], "{managers:?}");
        }
    }

    #[test]
    fn what_the_api_server_sets_at_the_binding_is_nobody_elses() {
        let scope = Scope {
            labels: [ZONE.to_owned()].into(),
            ..scope()
        };
        let label = json!({ "manager": "kube-scheduler",
            "fieldsV1": { "f:metadata": { "f:labels": { format!("f:{ZONE}"): {} } } } });
        let pod = serde_json::from_value(json!({
            "metadata": { "labels": { ZONE: "a" }, "managedFields": [label] },
            "spec": { "nodeName": "n", "containers": [] },
        }));
        let kept = BoundPod::new(pod.unwrap(), &scope).unwrap();
        let owners = kept.labels[ZONE].owners;
        assert!(owners.predecessor && !owners.foreign && !owners.injector);
    }

    #[test]
    fn w84_a_pod_without_a_node_is_none_of_ours() {
        assert_eq!(BoundPod::new(pod("", &["us"]), &scope()), None);
    }

    #[test]
    fn a_node_without_a_name_label_gives_its_own_name_if_that_can_be_a_label() {
        let node = |name: &str, labels: serde_json::Value| -> Node {
            serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } }))
                .unwrap()
        };
        let given = |node| labels_of_node(node, &scope());
        let both = |zone: &str, name: &str| -> BTreeMap<String, String> {
            let pairs = [("zone", zone), (METAL_NAME, name)];
            pairs
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into()
        };
        let labels = json!({ "zone": "z", "other": "x" });
        assert_eq!(given(node("n1", labels)), both("z", "n1"));
        let labels = json!({ "zone": "z", METAL_NAME: "rack1-3" });
        assert_eq!(given(node("n1", labels)), both("z", "rack1-3"));
        assert!(given(node(&"n".repeat(64), json!({}))).is_empty());
    }

    #[test]
    fn the_index_follows_a_pod_that_is_recreated_on_another_node() {
        let index = PodsByNode::default();
        let key = ObjectKey::namespaced("x", "a");
        let on = |node: &str| Arc::new(BoundPod::new(pod(node, &["us"]), &scope()));
        let (first, second) = (on("n1"), on("n2"));
        let applied = |before, now| Change::Applied { before, now };
        index.update(&key, &applied(None, &first));
        assert_eq!(index.on("n1"), std::slice::from_ref(&key));
        index.update(&key, &applied(Some(&first), &second));
        assert!(index.on("n1").is_empty());
        assert_eq!(index.on("n2"), std::slice::from_ref(&key));
        index.update(&key, &Change::Deleted { before: &second });
        assert!(index.on("n2").is_empty());
    }
}
