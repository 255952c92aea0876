//! The Kubernetes objects that go with a hypervisor node.
//!
//! Inputs: a Node, its Hypervisor and the configuration. Outputs: what is wanted for the node
//! ([`wanted`]), what of it is not there yet ([`difference`]), and the calls that make it so
//! ([`act`]). The first two are pure.
//!
//! | objects | what for | wanted |
//! |---|---|---|
//! | Certificate | libvirt's TLS material | unless the node agent asks for it itself |
//! | ServiceAccount, Role, RoleBinding | the agent reads its own node's Secrets | always |
//! | PodDisruptionBudget, Deployment | Gardener neither uses nor drains the node too early | while the operator manages the host |
//! | a taint of the Node | pods leave an empty host that goes away | after an eviction that succeeded |
//!
//! Invariants: nothing is written when nothing differs, so a heartbeat of a node costs no write.
//! Every object belongs to its Node and goes with it. What does not carry our mark is never removed.
//! An object that cannot be made is a [`Problem`] and holds up no other.

mod access;
mod agents;
mod apply;
mod certificate;
mod compare;
mod lifecycle;
mod taint;
mod trim;

use std::collections::BTreeMap;
use std::fmt;

use cobalt_api::Hypervisor;
use cobalt_api::names::{FieldManager, labels};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

pub use access::AccessConfig;
pub use agents::{AgentPod, is_due, judge, list_agent_pods};
pub use apply::{ActError, act};
pub use certificate::CertificateConfig;
pub use compare::{Change, Difference, Observed, difference};
pub use lifecycle::{Hold, HoldPod, LifecycleConfig, Release, hold};
pub use taint::TaintChange;
pub use trim::{
    trim_certificate, trim_deployment, trim_disruption_budget, trim_role, trim_role_binding,
    trim_service_account,
};

/// The longest name of an object, in bytes.
const NAME_MAX: usize = 253;

/// What is made for nodes, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectsConfig {
    /// Certificates. None: not ours to ask for; those that are there stay.
    pub certificate: Option<CertificateConfig>,
    /// Who reads a node's Secrets. None: not ours to say; what is there stays.
    pub access: Option<AccessConfig>,
    /// Holding nodes.
    pub lifecycle: LifecycleConfig,
}

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An identity whose token the node's agent asks for.
    ServiceAccount,
    /// What that identity may read.
    Role,
    /// Ties the two together.
    RoleBinding,
    /// Asks cert-manager for a certificate.
    Certificate,
    /// Keeps the pod that holds a node.
    PodDisruptionBudget,
    /// Runs the pod that holds a node.
    Deployment,
}

impl Kind {
    /// How the API server calls it.
    #[must_use]
    pub fn resource(self) -> ApiResource {
        match self {
            Self::ServiceAccount => ApiResource::erase::<ServiceAccount>(&()),
            Self::Role => ApiResource::erase::<Role>(&()),
            Self::RoleBinding => ApiResource::erase::<RoleBinding>(&()),
            Self::PodDisruptionBudget => ApiResource::erase::<PodDisruptionBudget>(&()),
            Self::Deployment => ApiResource::erase::<Deployment>(&()),
            Self::Certificate => {
                let kind = GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate");
                ApiResource::from_gvk_with_plural(&kind, "certificates")
            }
        }
    }

    /// The label selector that finds all objects of this kind that may be ours. What holds a node
    /// is found by the label that every operator before this one has given it, too.
    #[must_use]
    pub fn selector(self) -> String {
        match self {
            Self::PodDisruptionBudget | Self::Deployment => {
                labels::MAINTENANCE_CONTROLLER.to_owned()
            }
            Self::ServiceAccount | Self::Role | Self::RoleBinding | Self::Certificate => format!(
                "{}={}",
                labels::MANAGED_BY,
                labels::MANAGED_BY_HYPERVISOR_OPERATOR
            ),
        }
    }
}

/// Which object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ObjectKey {
    fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// An object as it shall be.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedObject {
    /// Which object.
    pub key: ObjectKey,
    /// Who applies it.
    pub manager: FieldManager,
    /// All of its fields that are ours.
    pub content: Value,
}

/// What is wanted for a node. What is neither in `apply` nor in `remove` stays as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wanted {
    /// The node.
    pub node: String,
    /// Objects that shall be there, in the order in which they are made.
    pub apply: Vec<WantedObject>,
    /// Objects that shall not be there, if they are ours.
    pub remove: Vec<ObjectKey>,
    /// What to change about the Node's taints.
    pub taint: Option<TaintChange>,
    /// What cannot be made.
    pub problems: Vec<Problem>,
}

/// Why something for a node cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The name that it would have is not one.
    #[error(
        "node \"{node}\": a {kind:?} cannot have the name \"{name}\", which has to be a DNS name of at most {NAME_MAX} bytes: shorten the name of the node or what is put before it"
    )]
    Name {
        /// The node.
        node: String,
        /// The kind of the object.
        kind: Kind,
        /// The name it would have.
        name: String,
    },
    /// The Node was not read whole.
    #[error(
        "a Node without a name or a UID can own nothing: it has to be read from the API server"
    )]
    Nameless,
    /// cert-manager is not there.
    #[error(
        "node \"{node}\" gets no certificate: the cluster knows no Certificates of cert-manager.io/v1. Install cert-manager, or turn certificates off"
    )]
    NoCertManager {
        /// The node.
        node: String,
    },
}

/// The keys under which a node's objects are looked for, as configured.
#[must_use]
pub fn keys(node: &str, config: &ObjectsConfig) -> Vec<ObjectKey> {
    let mut keys = lifecycle::keys(node, &config.lifecycle);
    keys.extend(
        config
            .certificate
            .iter()
            .map(|config| certificate::key(node, config)),
    );
    keys.extend(
        config
            .access
            .iter()
            .flat_map(|config| access::keys(node, config)),
    );
    keys
}

/// What is wanted for a node. Pure.
///
/// Of the Node it looks at name, UID, labels, deletion timestamp, taints and addresses; a copy that
/// was trimmed of one of them would be taken for a node that has none. Of the Hypervisor it looks at
/// the spec and the conditions.
///
/// Without a Hypervisor nothing is known of the host yet, and what holds a node stays as it is.
#[must_use]
pub fn wanted(node: &Node, hypervisor: Option<&Hypervisor>, config: &ObjectsConfig) -> Wanted {
    let Some(owner) = Owner::of(node) else {
        return Wanted {
            problems: vec![Problem::Nameless],
            ..Wanted::default()
        };
    };
    let mut wanted = Wanted {
        node: owner.name.to_owned(),
        ..Wanted::default()
    };
    if let Some(config) = &config.access {
        access::want(&owner, config, &mut wanted);
    }
    if let Some(config) = &config.certificate {
        certificate::want(&owner, hypervisor, config, &mut wanted);
    }
    lifecycle::want(&owner, hypervisor, &config.lifecycle, &mut wanted);
    wanted
}

/// The Node that owns what is made for it.
struct Owner<'a> {
    node: &'a Node,
    name: &'a str,
    uid: &'a str,
}

impl<'a> Owner<'a> {
    fn of(node: &'a Node) -> Option<Self> {
        Some(Self {
            node,
            name: node
                .metadata
                .name
                .as_deref()
                .filter(|name| !name.is_empty())?,
            uid: node.metadata.uid.as_deref().filter(|uid| !uid.is_empty())?,
        })
    }

    fn label(&self, key: &str) -> Option<&'a str> {
        self.node
            .metadata
            .labels
            .as_ref()?
            .get(key)
            .map(String::as_str)
    }

    fn is_hypervisor(&self) -> bool {
        self.label(labels::VIRT_DRIVER).is_some()
    }

    fn is_being_deleted(&self) -> bool {
        self.node.metadata.deletion_timestamp.is_some()
    }

    /// An object that goes with this node.
    fn object(
        &self,
        key: ObjectKey,
        manager: FieldManager,
        more_labels: &[(&str, &str)],
        body: Value,
    ) -> Result<WantedObject, Problem> {
        if !is_dns_name(&key.name) {
            return Err(Problem::Name {
                node: self.name.to_owned(),
                kind: key.kind,
                name: key.name,
            });
        }
        let ours = (labels::MANAGED_BY, labels::MANAGED_BY_HYPERVISOR_OPERATOR);
        let labels: BTreeMap<_, _> = more_labels.iter().copied().chain([ours]).collect();
        let resource = key.kind.resource();
        let mut content = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "labels": labels,
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid },
                ],
            },
        });
        if let (Some(content), Value::Object(body)) = (content.as_object_mut(), body) {
            content.extend(body);
        }
        compare::mark(&mut content);
        Ok(WantedObject {
            key,
            manager,
            content,
        })
    }
}

impl Wanted {
    fn add(&mut self, object: Result<WantedObject, Problem>) {
        match object {
            Ok(object) => self.apply.push(object),
            Err(problem) => self.problems.push(problem),
        }
    }
}

/// Whether the API server takes it as a name: dot-separated words of a-z, 0-9 and -, which neither
/// begin nor end with -.
fn is_dns_name(name: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty()
            && !word.starts_with('-')
            && !word.ends_with('-')
            && word
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    name.len() <= NAME_MAX && name.split('.').all(is_word)
}

#[cfg(test)]
mod tests;
