//! The Kubernetes client, with a deadline on connecting and without hidden retries.
//!
//! kube's own retries may hold one call for minutes; every caller here has a loop that tries again
//! and says so, so a call fails fast instead.
//!
//! The stack below [`Client`] is made here and not by kube, because a leader's change has to be checked
//! behind everything that waits: see [`led`].

use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use axum::http::{Method, Request};
use hyper::body::{Frame, SizeHint};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

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

/// A client for the cluster of a configuration. Its timeouts and retries are replaced.
///
/// # Errors
///
/// When the configuration has no usable identity or authority.
pub fn client_from_config(config: Config) -> Result<Client, ClientError> {
    build(config)
}

/// The same client for what only the leader may do: it changes nothing while `term` does not hold.
///
/// The term is looked at when the call is made and once more when the request is about to be written to
/// its connection: a call may wait for a token and for a connection, and the term may end meanwhile. The
/// second look is made by clients of this module only.
#[must_use]
pub fn led(client: Client, term: Term) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let client = client.clone();
        let is_read = *request.method() == Method::GET;
        let may = is_read || term.holds();
        if !is_read {
            request.extensions_mut().insert(term.clone());
        }
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
    let client = if config.proxy_url.is_some() {
        // It knows what it can do about a proxy, and says so.
        Client::try_from(config)
    } else {
        stack(&config)
    };
    client.map_err(|error| ClientError::Build(Box::new(error)))
}

/// What kube makes of a configuration, with [`Watched`] bodies at the very bottom.
fn stack(config: &Config) -> kube::Result<Client> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    let https = config.rustls_https_connector_with_connector(http)?;
    let mut connector = TimeoutConnector::new(https);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let connections: legacy::Client<_, Watched> =
        legacy::Client::builder(TokioExecutor::new()).build(connector);
    let send = tower::service_fn(move |request: Request<Body>| {
        let connections = connections.clone();
        let term = request.extensions().get::<Term>().cloned();
        async move {
            // A request without a body is not looked at again.
            if term.as_ref().is_some_and(|term| !term.holds()) {
                return Err(BoxError::from(NotLeading));
            }
            let request = request.map(|body| Watched { body, term });
            connections.request(request).await.map_err(BoxError::from)
        }
    });
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .service(send);
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// The body of a request, which ends in an error if it is asked for when the term is over.
///
/// It is asked for by the connection that is about to write it: no wait is left but that for the network.
/// A server that gets a head without its body does nothing. Every change that the API server knows has a
/// body.
struct Watched {
    body: Body,
    term: Option<Term>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.term.as_ref().is_some_and(|term| !term.holds()) {
            return Poll::Ready(Some(Err(NotLeading.into())));
        }
        Pin::new(&mut self.body)
            .poll_frame(context)
            .map_err(BoxError::from)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
