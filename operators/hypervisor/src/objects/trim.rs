//! Keeps of an observed object what [`super::difference`] looks at. There are six for each node.

use cobalt_api::names::{annotations, labels};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{DynamicObject, TypeMeta};

use super::Kind;

fn metadata(whole: ObjectMeta) -> ObjectMeta {
    const LABELS: [&str; 2] = [labels::MANAGED_BY, labels::MAINTENANCE_CONTROLLER];
    ObjectMeta {
        name: whole.name,
        namespace: whole.namespace,
        uid: whole.uid,
        deletion_timestamp: whole.deletion_timestamp,
        owner_references: whole.owner_references,
        labels: whole.labels.map(|mut map| {
            map.retain(|key, _| LABELS.contains(&key.as_str()));
            map
        }),
        annotations: whole.annotations.map(|mut map| {
            map.retain(|key, _| key == annotations::APPLIED);
            map
        }),
        ..ObjectMeta::default()
    }
}

/// Of a Deployment: without its status.
#[must_use]
pub fn trim_deployment(whole: Deployment) -> Deployment {
    Deployment {
        metadata: metadata(whole.metadata),
        spec: whole.spec,
        status: None,
    }
}

/// Of a PodDisruptionBudget: without its status.
#[must_use]
pub fn trim_disruption_budget(whole: PodDisruptionBudget) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: metadata(whole.metadata),
        spec: whole.spec,
        status: None,
    }
}

/// Of a ServiceAccount: without what others hang on it.
#[must_use]
pub fn trim_service_account(whole: ServiceAccount) -> ServiceAccount {
    ServiceAccount {
        metadata: metadata(whole.metadata),
        automount_service_account_token: whole.automount_service_account_token,
        ..ServiceAccount::default()
    }
}

/// Of a Role.
#[must_use]
pub fn trim_role(whole: Role) -> Role {
    Role {
        metadata: metadata(whole.metadata),
        ..whole
    }
}

/// Of a RoleBinding.
#[must_use]
pub fn trim_role_binding(whole: RoleBinding) -> RoleBinding {
    RoleBinding {
        metadata: metadata(whole.metadata),
        ..whole
    }
}

/// Of a Certificate: without its status. What a list leaves out is put in: what it is.
#[must_use]
pub fn trim_certificate(mut whole: DynamicObject) -> DynamicObject {
    let resource = Kind::Certificate.resource();
    whole.types = Some(TypeMeta {
        api_version: resource.api_version,
        kind: resource.kind,
    });
    whole.metadata = metadata(whole.metadata);
    if let Some(data) = whole.data.as_object_mut() {
        data.retain(|key, _| key == "spec");
    }
    whole
}
