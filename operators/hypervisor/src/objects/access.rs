//! Who may read a node's Secrets: an account of its own whose Role names these Secrets only.
//!
//! All agents share one ServiceAccount, and RBAC cannot tell its tokens apart. The agent asks for a
//! token of the account `<prefix><node>`; an admission policy lets it have its own node's only.

use cobalt_api::names::FieldManager;
use serde_json::json;

use super::certificate::secret_name;
use super::{Kind, ObjectKey, Owner, Wanted};

/// Where the accounts are, and what they read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessConfig {
    /// The namespace of the agents, where the Secrets are, too.
    pub namespace: String,
    /// An account is this and the name of the node, as the agents know it.
    pub prefix: String,
    /// A Secret with the key for Ceph, which every node reads.
    pub ceph_secret: Option<String>,
}

const KINDS: [Kind; 3] = [Kind::ServiceAccount, Kind::Role, Kind::RoleBinding];

pub(super) fn keys(node: &str, config: &AccessConfig) -> [ObjectKey; 3] {
    let name = format!("{}{node}", config.prefix);
    KINDS.map(|kind| ObjectKey::new(kind, &config.namespace, &name))
}

pub(super) fn want(owner: &Owner<'_>, config: &AccessConfig, wanted: &mut Wanted) {
    let keys = keys(owner.name, config);
    if !owner.is_hypervisor() {
        return wanted.remove.extend(keys);
    }
    if owner.is_being_deleted() {
        return;
    }
    for key in keys {
        let body = match key.kind {
            Kind::Role => {
                let mut secrets = vec![secret_name(owner.name)];
                secrets.extend(config.ceph_secret.clone());
                json!({
                    "rules": [{
                        "apiGroups": [""],
                        "resources": ["secrets"],
                        "verbs": ["get", "list", "watch"],
                        "resourceNames": secrets,
                    }],
                })
            }
            Kind::RoleBinding => json!({
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "Role",
                    "name": key.name,
                },
                "subjects": [{
                    "kind": "ServiceAccount",
                    "name": key.name,
                    "namespace": key.namespace,
                }],
            }),
            _ => json!({ "automountServiceAccountToken": false }),
        };
        wanted.add(owner.object(key, FieldManager::NodeAccess, &[], body));
    }
}
