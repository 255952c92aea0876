//! The API server as commands reach it: when it cannot be reached, the error says which address was
//! tried, where that address comes from, and what to do.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use http::Request;
use kube::Client;
use kube::client::Body;
use tower::BoxError;

/// How long the API server may take to begin an answer. Shorter than the deadlines of the commands,
/// which do not know the address.
const SILENCE: Duration = Duration::from_secs(20);
/// How long a call may take as a whole.
const DEADLINE: Duration = Duration::from_secs(30);

/// Why the API server was not reached.
#[derive(Debug, thiserror::Error)]
#[error(
    "the API server {address} (from {origin}) cannot be reached: {cause}; see whether it runs and \
     whether this machine reaches it (`kubectl cluster-info`), or set KUBECONFIG to another cluster"
)]
struct Unreachable {
    address: Arc<str>,
    origin: Arc<str>,
    cause: String,
}

/// A client of the cluster that KUBECONFIG names.
///
/// # Errors
///
/// When there is no usable configuration.
pub async fn client() -> Result<Client> {
    let (client, address) = cobalt_runtime::client_and_address().await?;
    Ok(naming(client, address.into(), origin().into()))
}

/// Where the address of the API server comes from.
fn origin() -> String {
    match std::env::var("KUBECONFIG") {
        Ok(path) if !path.is_empty() => format!("KUBECONFIG={path}"),
        _ => "~/.kube/config, or the cluster that this program runs in".to_owned(),
    }
}

/// The same client, whose errors name the server.
fn naming(client: Client, address: Arc<str>, origin: Arc<str>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        let (address, origin) = (Arc::clone(&address), Arc::clone(&origin));
        async move {
            let cause = match tokio::time::timeout(SILENCE, client.send(request)).await {
                Ok(Ok(response)) => return Ok(response),
                // The address has nothing to do with it.
                Ok(Err(error @ kube::Error::Auth(_))) => return Err(BoxError::from(error)),
                Ok(Err(error)) => innermost(&error),
                Err(_) => format!("it does not answer within {} s", SILENCE.as_secs()),
            };
            Err(BoxError::from(Unreachable {
                address,
                origin,
                cause,
            }))
        }
    });
    Client::new(service, namespace)
}

/// The cause of causes, which says what the operating system or TLS said.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// The answer to a call.
///
/// # Errors
///
/// When the API server refuses it, is not reached, or does not answer in time.
pub async fn answer<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T> {
    let answer = tokio::time::timeout(DEADLINE, call)
        .await
        .context("the API server does not answer; try again when it does")?;
    Ok(answer?)
}

/// An error with all its causes in one line, each said once.
pub fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let next = cause.to_string();
        // kube's word for whatever its transport says.
        let next = next.strip_prefix("ServiceError: ").unwrap_or(&next);
        if text.ends_with(next) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(next);
    }
    text
}

#[cfg(test)]
mod tests {
    use cobalt_api::hypervisor::Hypervisor;
    use kube::Api;

    use super::*;

    /// A client of a server that does this with each request.
    fn client<F>(act: impl Fn() -> F + Send + Sync + Clone + 'static) -> Client
    where
        F: Future<Output = Result<http::Response<Body>, BoxError>> + Send + 'static,
    {
        let service = tower::service_fn(move |_: Request<Body>| act());
        let client = Client::new(service, "default");
        naming(
            client,
            "https://192.0.2.1:6443/".into(),
            "KUBECONFIG=/k".into(),
        )
    }

    async fn read(client: Client) -> String {
        let api: Api<Hypervisor> = Api::all(client);
        let read = answer(api.get("hv1")).await;
        explain(&read.context("failed to read").unwrap_err())
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_is_not_reached_is_named_once() {
        let refused = || async {
            let source = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
            Err(BoxError::from(source))
        };
        let expected = "failed to read: the API server https://192.0.2.1:6443/ (from \
                        KUBECONFIG=/k) cannot be reached: connection refused; see whether it runs \
                        and whether this machine reaches it (`kubectl cluster-info`), or set \
                        KUBECONFIG to another cluster";
        assert_eq!(read(client(refused)).await, expected);
        let said = read(client(std::future::pending)).await;
        assert!(said.contains("it does not answer within 20 s"), "{said}");
        assert!(said.contains("https://192.0.2.1:6443/"), "{said}");
    }

    #[tokio::test]
    async fn what_the_api_server_says_stays_as_it_is() {
        let missing = || async {
            let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
                "message":"hypervisors \"hv1\" not found","reason":"NotFound","code":404}"#;
            let response = http::Response::builder().status(404);
            Ok(response.body(Body::from(status.as_bytes().to_vec()))?)
        };
        let said = read(client(missing)).await;
        assert!(said.contains("not found"), "{said}");
        assert!(!said.contains("192.0.2.1"), "{said}");
    }
}
