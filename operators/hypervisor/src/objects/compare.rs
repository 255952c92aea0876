//! What is wanted against what is there.
//!
//! An object is as wanted when it says all that we want it to say. What else it says is the API
//! server's defaults or somebody else's. What we said once and do not want any more is not found
//! that way, so each object carries a digest of all that was applied.

use std::sync::Arc;

use cobalt_api::names::{annotations, labels};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::core::DynamicObject;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::taint::TaintChange;
use super::{Kind, ObjectKey, Problem, Wanted, WantedObject};

/// What is there for a node, looked up by [`super::keys`], all of it from complete lists: an object
/// that was only not seen yet would be taken for missing.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// The ServiceAccount.
    pub service_account: Option<Arc<ServiceAccount>>,
    /// The Role.
    pub role: Option<Arc<Role>>,
    /// The RoleBinding.
    pub role_binding: Option<Arc<RoleBinding>>,
    /// The PodDisruptionBudget.
    pub disruption_budget: Option<Arc<PodDisruptionBudget>>,
    /// The Deployment.
    pub deployment: Option<Arc<Deployment>>,
    /// The Certificate.
    pub certificate: Option<Arc<DynamicObject>>,
    /// Whether the cluster knows Certificates at all.
    pub certificates_are_served: bool,
}

impl Observed {
    fn get(&self, key: &ObjectKey) -> Option<Value> {
        let found = match key.kind {
            Kind::ServiceAccount => self.service_account.as_deref().map(serde_json::to_value),
            Kind::Role => self.role.as_deref().map(serde_json::to_value),
            Kind::RoleBinding => self.role_binding.as_deref().map(serde_json::to_value),
            Kind::Certificate => self.certificate.as_deref().map(serde_json::to_value),
            Kind::PodDisruptionBudget => {
                self.disruption_budget.as_deref().map(serde_json::to_value)
            }
            Kind::Deployment => self.deployment.as_deref().map(serde_json::to_value),
        };
        let found = found?.ok()?;
        let is =
            |pointer, value: &str| found.pointer(pointer).and_then(Value::as_str) == Some(value);
        let same = is("/metadata/name", &key.name) && is("/metadata/namespace", &key.namespace);
        same.then_some(found)
    }
}

/// One write.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Apply an object.
    Apply(WantedObject),
    /// Remove an object.
    Remove {
        /// Which object.
        key: ObjectKey,
        /// Exactly this one, and none that has taken its name.
        uid: String,
    },
    /// Change the Node's taints.
    Taint(TaintChange),
}

/// What there is to do for a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Difference {
    /// Writes, in order.
    pub changes: Vec<Change>,
    /// What cannot be done, and why.
    pub problems: Vec<Problem>,
}

/// What has to be written so that what is there becomes what is wanted. Pure.
#[must_use]
pub fn difference(wanted: &Wanted, observed: &Observed) -> Difference {
    let mut difference = Difference {
        problems: wanted.problems.clone(),
        ..Difference::default()
    };
    for object in &wanted.apply {
        if object.key.kind == Kind::Certificate && !observed.certificates_are_served {
            let node = wanted.node.clone();
            difference.problems.push(Problem::NoCertManager { node });
        } else if !observed
            .get(&object.key)
            .is_some_and(|found| says(&found, &object.content, ""))
        {
            difference.changes.push(Change::Apply(object.clone()));
        }
    }
    for key in &wanted.remove {
        let found = observed.get(key);
        let ours = found.filter(|found| is_ours(found, &wanted.node) && !is_going(found));
        let uid = ours.and_then(|found| Some(found.pointer("/metadata/uid")?.as_str()?.to_owned()));
        difference.changes.extend(uid.map(|uid| Change::Remove {
            key: key.clone(),
            uid,
        }));
    }
    difference
        .changes
        .extend(wanted.taint.clone().map(Change::Taint));
    difference
}

/// Whether an object carries our mark, or that of the operator before us, and belongs to the node.
fn is_ours(found: &Value, node: &str) -> bool {
    let label = |key: &str| found.get("metadata")?.get("labels")?.get(key)?.as_str();
    let marked = label(labels::MANAGED_BY) == Some(labels::MANAGED_BY_HYPERVISOR_OPERATOR)
        || label(labels::MAINTENANCE_CONTROLLER).is_some();
    let owners = found
        .pointer("/metadata/ownerReferences")
        .and_then(Value::as_array);
    let owned = owners.is_some_and(|owners| {
        owners.iter().any(|owner| {
            owner.get("kind") == Some(&json!("Node")) && owner.get("name") == Some(&json!(node))
        })
    });
    marked && owned
}

fn is_going(found: &Value) -> bool {
    found.pointer("/metadata/deletionTimestamp").is_some()
}

/// Writes a digest of an object into it.
pub(super) fn mark(content: &mut Value) {
    let digest = Sha256::digest(content.to_string().as_bytes());
    let digest: String = digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    if let Some(metadata) = content.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert(
            "annotations".into(),
            json!({ annotations::APPLIED: digest }),
        );
    }
}

/// Whether `have` says all that `want` says; `field` is where both are found.
fn says(have: &Value, want: &Value, field: &str) -> bool {
    match (have, want) {
        (Value::Object(have), Value::Object(want)) => want
            .iter()
            .all(|(field, want)| have.get(field).is_some_and(|have| says(have, want, field))),
        (Value::Array(have), Value::Array(want)) => match identity(field) {
            Some(identity) => want.iter().all(|want| {
                have.iter()
                    .any(|have| have.get(identity) == want.get(identity) && says(have, want, ""))
            }),
            None => {
                have.len() == want.len()
                    && have
                        .iter()
                        .zip(want)
                        .all(|(have, want)| says(have, want, ""))
            }
        },
        (have, want) => have == want,
    }
}

/// By what the entries of a list are told apart, where others may add their own. All other lists
/// are one value.
fn identity(field: &str) -> Option<&'static str> {
    match field {
        "ownerReferences" => Some("uid"),
        "containers" => Some("name"),
        _ => None,
    }
}
