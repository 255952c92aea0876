//! Server-side apply with a deadline. The caller sends only what it owns, and only on change.

use std::fmt::Debug;
use std::time::Duration;

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why an apply did not happen.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The object is not there.
    #[error("\"{name}\" does not exist")]
    NotFound {
        /// The object.
        name: String,
    },
    /// The API server took too long; whether it has applied is not known.
    #[error("the API server did not answer within {} s", .after.as_secs())]
    Timeout {
        /// The deadline.
        after: Duration,
    },
    /// The API server refused it or was not reached.
    #[error("failed to apply \"{name}\"")]
    Request {
        /// The object.
        name: String,
        /// What happened.
        #[source]
        source: Box<kube::Error>,
    },
}

impl ApplyError {
    /// Whether the content was refused, so that the same content would be refused again.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Request { source, .. }
            if matches!(&**source, kube::Error::Api(status) if (400..=422).contains(&status.code) && status.code != 409))
    }
}

/// Applies the fields of an object that `manager` owns.
///
/// # Errors
///
/// When the API server refuses it, is not reached, or does not answer in time.
pub async fn apply<K>(
    api: &Api<K>,
    name: &str,
    manager: &str,
    content: &(impl Serialize + Debug),
    deadline: Duration,
) -> Result<K, ApplyError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let params = PatchParams::apply(manager).force();
    let patch = Patch::Apply(content);
    within(name, deadline, api.patch(name, &params, &patch)).await
}

/// Applies the fields of an object's status that `manager` owns.
///
/// # Errors
///
/// When the API server refuses it, is not reached, or does not answer in time.
pub async fn apply_status<K>(
    api: &Api<K>,
    name: &str,
    manager: &str,
    content: &(impl Serialize + Debug),
    deadline: Duration,
) -> Result<K, ApplyError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let params = PatchParams::apply(manager).force();
    let patch = Patch::Apply(content);
    within(name, deadline, api.patch_status(name, &params, &patch)).await
}

async fn within<K>(
    name: &str,
    after: Duration,
    request: impl Future<Output = kube::Result<K>>,
) -> Result<K, ApplyError> {
    match tokio::time::timeout(after, request).await {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Err(ApplyError::NotFound {
            name: name.to_owned(),
        }),
        Ok(Err(source)) => Err(ApplyError::Request {
            name: name.to_owned(),
            source: Box::new(source),
        }),
        Err(_) => Err(ApplyError::Timeout { after }),
    }
}
