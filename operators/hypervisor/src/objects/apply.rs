//! Carries out what [`super::difference`] has found, each change within a deadline.

use std::fmt;
use std::time::Duration;

use cobalt_api::names::FieldManager;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::{DynamicObject, Status};
use kube::{Api, Client};

use super::compare::Change;
use super::taint::{self, TaintChange};
use super::{Kind, ObjectKey, WantedObject};

/// So often a change of the taints is tried, each time on the Node as it is by then.
const TAINT_TRIES: usize = 8;

/// Why a change was not made. It is safe to make it again.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// Its namespace is not there.
    #[error("failed to {change}: the namespace \"{namespace}\" does not exist, create it")]
    NoNamespace {
        /// What was to be done.
        change: String,
        /// The namespace.
        namespace: String,
    },
    /// cert-manager is not there.
    #[error("failed to {change}: the cluster knows no Certificates, install cert-manager")]
    NoCertManager {
        /// What was to be done.
        change: String,
    },
    /// The API server refused it or was not reached.
    #[error("failed to {change}")]
    Request {
        /// What was to be done.
        change: String,
        /// What happened.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server took too long; whether it is done is not known.
    #[error("failed to {change}: the API server did not answer within {} s", .after.as_secs())]
    Timeout {
        /// What was to be done.
        change: String,
        /// The deadline.
        after: Duration,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apply(object) => write!(f, "apply {}", object.key),
            Self::Remove { key, .. } => write!(f, "remove {key}"),
            Self::Taint(TaintChange { node, present, .. }) => {
                let word = if *present { "taint" } else { "untaint" };
                write!(f, "{word} node \"{node}\"")
            }
        }
    }
}

/// Makes one change.
///
/// # Errors
///
/// When the API server refuses it, is not reached, or does not answer in time.
pub async fn act(client: &Client, change: &Change, deadline: Duration) -> Result<(), ActError> {
    let request = async {
        match change {
            Change::Apply(object) => apply(client, object).await,
            Change::Remove { key, uid } => remove(client, key, uid).await,
            Change::Taint(change) => change_taint(client, change).await,
        }
    };
    let source = match tokio::time::timeout(deadline, request).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(source)) => source,
        Err(_) => {
            return Err(ActError::Timeout {
                change: change.to_string(),
                after: deadline,
            });
        }
    };
    Err(match (&source, change) {
        // An object need not be there to be applied: it is something else that is not.
        (kube::Error::Api(status), Change::Apply(object)) if status.code == 404 => {
            missing(change, object, status).unwrap_or_else(|| request_error(change, source))
        }
        _ => request_error(change, source),
    })
}

fn request_error(change: &Change, source: kube::Error) -> ActError {
    ActError::Request {
        change: change.to_string(),
        source: Box::new(source),
    }
}

/// What an object needs that is not there.
fn missing(change: &Change, object: &WantedObject, status: &Status) -> Option<ActError> {
    let details = status.details.as_ref();
    if details.is_some_and(|details| details.kind == "namespaces") {
        return Some(ActError::NoNamespace {
            change: change.to_string(),
            namespace: object.key.namespace.clone(),
        });
    }
    (object.key.kind == Kind::Certificate).then(|| ActError::NoCertManager {
        change: change.to_string(),
    })
}

fn api(client: &Client, key: &ObjectKey) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), &key.namespace, &key.kind.resource())
}

async fn apply(client: &Client, object: &WantedObject) -> kube::Result<()> {
    let params = PatchParams::apply(object.manager.as_str()).force();
    let patch = Patch::Apply(&object.content);
    let api = api(client, &object.key);
    api.patch_metadata(&object.key.name, &params, &patch)
        .await?;
    Ok(())
}

async fn remove(client: &Client, key: &ObjectKey, uid: &str) -> kube::Result<()> {
    let params = DeleteParams::background().preconditions(Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: None,
    });
    match api(client, key).delete(&key.name, &params).await {
        Ok(_) => Ok(()),
        // It is gone, or another one has its name, which the next look will judge.
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn change_taint(client: &Client, change: &TaintChange) -> kube::Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    let params = PatchParams {
        field_manager: Some(FieldManager::NodeLifecycle.as_str().to_owned()),
        ..PatchParams::default()
    };
    let mut taints = change.seen.clone();
    let mut tries = 0;
    while let Some(patch) = taint::patch(&taints, change.present) {
        let patch = serde_json::from_value(patch).map_err(kube::Error::SerdeError)?;
        let patch = Patch::Json::<()>(patch);
        tries += 1;
        match api.patch_metadata(&change.node, &params, &patch).await {
            Ok(_) => return Ok(()),
            // There is nothing left to taint.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            // A test has failed: the taints are not those that were seen.
            Err(kube::Error::Api(status))
                if [409, 422].contains(&status.code) && tries < TAINT_TRIES => {}
            Err(error) => return Err(error),
        }
        taints = match api.get_opt(&change.node).await? {
            Some(node) => taint::taints_of(&node).to_vec(),
            None => return Ok(()),
        };
    }
    Ok(())
}
