//! The server: HTTPS with a certificate that the agent makes itself when it starts.
//!
//! The OVSNode has the hash of that certificate, and only the agent may write it there; who asks
//! takes this one and no other. So nobody has to run an authority for it, and a token is never sent
//! to a stranger.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response, StatusCode};
use cobalt_api::ovsnode::Diagnostics;
use cobalt_runtime::{Backoff, Health, Limits, chain, serve_on};
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::access::{Access, Audit};
use super::arguments::{self, Question};
use super::capture::Captures;
use super::questions::Questions;
use super::{Refusal, answer, pcap};
use crate::metrics::Metrics;

const LIMITS: Limits = Limits {
    connections: 32,
    head: Duration::from_secs(10),
    // Somebody may look at a page of a capture before reading on.
    stall: Duration::from_secs(60),
};

/// A certificate of our own.
#[derive(Clone)]
pub struct Identity {
    config: Arc<ServerConfig>,
    /// The SHA-256 of the certificate, in hexadecimal.
    pub sha256: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The configuration holds the key.
        f.debug_struct("Identity")
            .field("sha256", &self.sha256)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// Makes one. It lives as long as the process and is nowhere else.
    ///
    /// # Errors
    ///
    /// When there is no randomness.
    pub fn make(node: &str) -> anyhow::Result<Self> {
        let key = KeyPair::generate().context("failed to make a key")?;
        let name = "cobalt-ovs-agent".to_owned();
        let mut parameters =
            CertificateParams::new(vec![name]).context("failed to make a certificate")?;
        let subject = &mut parameters.distinguished_name;
        subject.push(rcgen::DnType::CommonName, node);
        let certificate = parameters
            .self_signed(&key)
            .context("failed to sign a certificate")?;
        let hash = Sha256::digest(certificate.der());
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("failed to set up TLS")?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .context("failed to set up TLS")?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            config: Arc::new(config),
            sha256: hash.iter().map(|byte| format!("{byte:02x}")).collect(),
        })
    }

    /// Where it is served, as the OVSNode has it.
    #[must_use]
    pub fn published(&self, node: IpAddr, port: u16) -> Diagnostics {
        Diagnostics {
            url: format!("https://{}", SocketAddr::new(node, port)),
            certificate_sha256: self.sha256.clone(),
        }
    }
}

/// What calls need.
#[derive(Debug, Clone)]
pub struct Services {
    /// Who may.
    pub access: Access,
    /// What is answered with text.
    pub questions: Questions,
    /// What is answered with packets.
    pub captures: Captures,
    /// What is counted.
    pub metrics: Metrics,
}

/// Serves until it is cancelled. A port that is taken is tried again.
pub async fn serve(
    address: SocketAddr,
    identity: Identity,
    services: Services,
    health: Health,
    cancel: CancellationToken,
) {
    let Some(listener) = listen(address, &health, &cancel).await else {
        return;
    };
    let router = Router::new().fallback(handle).with_state(services);
    let acceptor = TlsAcceptor::from(Arc::clone(&identity.config));
    let greet = |socket| {
        let acceptor = acceptor.clone();
        async move { acceptor.accept(socket).await }
    };
    serve_on(listener, router, LIMITS, greet, cancel).await;
}

async fn listen(
    address: SocketAddr,
    health: &Health,
    cancel: &CancellationToken,
) -> Option<TcpListener> {
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                health.set_missing("diagnostics", None);
                return Some(listener);
            }
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(%address, error, "failed to listen");
                let missing = format!("failed to listen on {address}: {error}");
                health.set_missing("diagnostics", Some(missing));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_wait()) => {}
            () = cancel.cancelled() => return None,
        }
    }
}

/// Anything that is asked: who asks is looked at first, and what they ask only then.
async fn handle(State(services): State<Services>, request: Request) -> Response<Body> {
    let (request, body) = request.into_parts();
    let path = request.uri.path();
    let query = request.uri.query().unwrap_or_default();
    let mut audit = Audit::new(
        request.method.to_string(),
        path.chars().take(256).collect(),
        arguments::label(path),
        arguments::shown(path, query),
        services.metrics.clone(),
    );
    let no_body = body.is_end_stream();
    let result = match services.admit(&request, no_body, &mut audit).await {
        Ok(Question::Capture(wanted)) => {
            let limits = [
                ("x-capture-seconds", wanted.seconds),
                ("x-capture-bytes", wanted.bytes),
            ];
            match services.captures.begin(wanted).await {
                Ok(started) => {
                    let port = HeaderValue::from_str(&started.port);
                    let mut response = Response::new(started.stream(audit));
                    let headers = response.headers_mut();
                    headers.insert(CONTENT_TYPE, HeaderValue::from_static(pcap::CONTENT_TYPE));
                    for (name, limit) in limits {
                        headers.insert(name, limit.into());
                    }
                    if let Ok(port) = port {
                        headers.insert("x-capture-port", port);
                    }
                    return response;
                }
                Err(refusal) => Err(refusal),
            }
        }
        Ok(question) => services.questions.answer(&question).await,
        Err(refusal) => Err(refusal),
    };
    let response = match result {
        Ok(content) => answer(StatusCode::OK, &content),
        Err(refusal) => refusal.response(),
    };
    let bytes = response.body().size_hint().exact().unwrap_or(0);
    audit.answered(response.status(), bytes);
    response
}

impl Services {
    /// Finds out who asks and whether they may, and reads what they ask.
    async fn admit(
        &self,
        request: &Parts,
        no_body: bool,
        audit: &mut Audit,
    ) -> Result<Question, Refusal> {
        let (path, query) = (request.uri.path(), request.uri.query());
        let caller = self.access.authenticate(&request.headers).await?;
        let caller = audit.caller.insert(caller);
        self.access.authorize(caller, arguments::verb(path)).await?;
        let query = query.unwrap_or_default();
        if query.len() > arguments::MAX_QUERY {
            return Err(Refusal::bad(format!(
                "the arguments are longer than {} bytes",
                arguments::MAX_QUERY
            )));
        }
        if !no_body {
            return Err(Refusal::bad(
                "a body is not taken: send arguments in the URL",
            ));
        }
        let limits = self.captures.limits();
        arguments::read(&request.method, path, query, limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_has_a_certificate_of_its_own() {
        let (one, other) = (
            Identity::make("hv1").unwrap(),
            Identity::make("hv1").unwrap(),
        );
        assert_eq!(one.sha256.len(), 64);
        assert_ne!(one.sha256, other.sha256);
        assert!(!format!("{one:?}").contains("config"));
    }

    #[test]
    fn addresses_are_published_so_that_they_can_be_called() {
        let identity = Identity::make("hv1").unwrap();
        let url = |node: &str| identity.published(node.parse().unwrap(), 9476).url;
        assert_eq!(url("192.0.2.1"), "https://192.0.2.1:9476");
        assert_eq!(url("2001:db8::1"), "https://[2001:db8::1]:9476");
    }
}
