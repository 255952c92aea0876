//! The Kubernetes client, with a deadline on connecting and without hidden retries.
//!
//! kube's own retries may hold one call for minutes; every caller here has a loop that tries again
//! and says so, so a call fails fast instead.

use std::path::Path;
use std::time::Duration;

use axum::http::{Method, Request};
use kube::client::Body;
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::BoxError;

use crate::Term;

/// Long enough for a far or busy API server.
const CONNECT: Duration = Duration::from_secs(10);
/// Longer than a watch is silent: the server ends a watch after 290 s at the latest.
const READ: Duration = Duration::from_secs(305);
const WRITE: Duration = Duration::from_secs(30);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no usable configuration.
    #[error("no Kubernetes configuration: run in a cluster, or set KUBECONFIG")]
    Infer(#[source] Box<InferConfigError>),
    /// The configuration has no usable identity or authority.
    #[error("failed to use the Kubernetes configuration")]
    Build(#[source] Box<kube::Error>),
    /// The configuration file is not readable.
    #[error("failed to read the Kubernetes configuration")]
    Kubeconfig(#[from] KubeconfigError),
}

/// A client for the cluster this process runs in, or the one that KUBECONFIG names.
///
/// # Errors
///
/// When there is no usable configuration. The API server need not be there.
pub async fn client() -> Result<Client, ClientError> {
    build(infer().await?)
}

/// The same, and the address of the API server.
///
/// # Errors
///
/// When there is no usable configuration. The API server need not be there.
pub async fn client_and_address() -> Result<(Client, String), ClientError> {
    let config = infer().await?;
    let address = config.cluster_url.to_string();
    Ok((build(config)?, address))
}

/// A client of the same cluster with another identity.
///
/// # Errors
///
/// When there is no usable configuration.
pub async fn client_with_token(token: String) -> Result<Client, ClientError> {
    let mut config = infer().await?;
    config.auth_info = kube::config::AuthInfo {
        token: Some(token.into()),
        ..Default::default()
    };
    build(config)
}

/// A client for the cluster that the current context of a file names.
///
/// # Errors
///
/// When the file is not a usable configuration. The API server need not be there.
pub async fn client_from_file(path: &Path) -> Result<Client, ClientError> {
    let file = Kubeconfig::read_from(path)?;
    let options = KubeConfigOptions::default();
    build(Config::from_custom_kubeconfig(file, &options).await?)
}

/// The same client for what only the leader may do: it changes nothing while `term` does not hold.
#[must_use]
pub fn led(client: Client, term: Term) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        let may = *request.method() == Method::GET || term.holds();
        async move {
            if may {
                client.send(request).await.map_err(BoxError::from)
            } else {
                Err(NotLeading.into())
            }
        }
    });
    Client::new(service, namespace)
}

/// This process does not lead any more, and changes nothing.
#[derive(Debug, thiserror::Error)]
#[error("this process does not lead any more")]
struct NotLeading;

async fn infer() -> Result<Config, ClientError> {
    Config::infer()
        .await
        .map_err(|error| ClientError::Infer(Box::new(error)))
}

fn build(mut config: Config) -> Result<Client, ClientError> {
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(READ);
    config.write_timeout = Some(WRITE);
    config.default_retry = false;
    Client::try_from(config).map_err(|error| ClientError::Build(Box::new(error)))
}
