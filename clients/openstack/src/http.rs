//! One request over HTTP/1.1, in plain text or with TLS.
//!
//! Made of hyper-util's client and hyper-rustls because both are in every binary already through
//! kube; reqwest would add itself and a URL parser for proxies, redirects and cookies that are
//! not wanted here. No proxy is ever used and no redirect followed: the only addresses that are called
//! are Keystone's and those of its catalog.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::credentials::CredentialsError;
use crate::gate::{Gate, Gated, is_closed};

const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// Shorter than the servers' own patience (Apache's is 5 s), so that a request is hardly ever
/// written to a connection that the other side is just closing.
const IDLE: Duration = Duration::from_secs(4);

type Pool = Client<HttpsConnector<Gated<HttpConnector>>, Full<Bytes>>;

/// The connections.
#[derive(Debug, Clone)]
pub(crate) struct Http {
    reads: Pool,
    /// Of their own if there is a gate: nothing else is written to them.
    changes: Pool,
    gate: Option<Gate>,
    largest: usize,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

#[derive(Debug)]
pub(crate) enum SendError {
    TooLarge,
    /// It was a change, and the gate is closed. It was not sent.
    NotAllowed,
    Broken {
        /// Whether the request may have arrived.
        sent: bool,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Http {
    /// `ca` is the text of a PEM file. Answers have at most `largest` bytes. Changes are sent only while
    /// the gate is open.
    pub fn new(
        ca: Option<&str>,
        largest: usize,
        gate: Option<Gate>,
    ) -> Result<Self, CredentialsError> {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_DEADLINE));
        connector.set_nodelay(true);
        connector.set_keepalive(Some(Duration::from_secs(30)));
        connector.enforce_http(false);
        let tls = tls(ca)?;
        let pool = |gate: Option<Gate>| {
            let connector = connector.clone();
            let connector = HttpsConnectorBuilder::new()
                .with_tls_config(tls.clone())
                .https_or_http()
                .enable_http1()
                .wrap_connector(Gated { connector, gate });
            Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(IDLE)
                .build(connector)
        };
        let reads: Pool = pool(None);
        let changes = match &gate {
            Some(gate) => pool(Some(gate.clone())),
            None => reads.clone(),
        };
        Ok(Self {
            reads,
            changes,
            gate,
            largest,
        })
    }

    /// Sends a request and reads the whole answer. The caller sets the deadline.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
        changes: bool,
    ) -> Result<Answer, SendError> {
        let pool = if changes { &self.changes } else { &self.reads };
        if changes && self.gate.as_ref().is_some_and(|gate| !gate.is_open()) {
            return Err(SendError::NotAllowed);
        }
        let answer = pool.request(request).await;
        let (head, body) = answer
            .map_err(|error| {
                if is_closed(&error) {
                    return SendError::NotAllowed;
                }
                SendError::Broken {
                    sent: !error.is_connect(),
                    source: error.into(),
                }
            })?
            .into_parts();
        let body = Limited::new(body, self.largest).collect().await;
        let body = body.map_err(|error| {
            if error.is::<LengthLimitError>() {
                SendError::TooLarge
            } else {
                SendError::Broken {
                    sent: true,
                    source: error,
                }
            }
        })?;
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: body.to_bytes(),
        })
    }
}

fn tls(ca: Option<&str>) -> Result<ClientConfig, CredentialsError> {
    let bad = |error: &dyn std::fmt::Display| CredentialsError::Certificates(error.to_string());
    let mut roots = RootCertStore::empty();
    match ca {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
                let certificate = certificate.map_err(|error| bad(&error))?;
                roots.add(certificate).map_err(|error| bad(&error))?;
            }
            if roots.is_empty() {
                return Err(bad(&"there is no certificate in it"));
            }
        }
        // A machine without any is fine as long as everything is in plain text.
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    // Named here, so that nothing depends on what the program installed.
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
