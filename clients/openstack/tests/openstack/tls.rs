//! TLS with an authority of one's own, on a fake peer with a certificate of its own.

use std::sync::{Arc, Mutex};

use cobalt_openstack::{Client, Config, Credentials, CredentialsError, Error, Source};
use serde_json::json;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::fake::{Act, Fake, converse, login};

struct Tls {
    url: String,
    ca: String,
}

async fn start() -> Tls {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "https://localhost:{}",
        listener.local_addr().unwrap().port()
    );
    let base = url.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            let base = base.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let handler = move |seen: &crate::fake::Seen| match seen.path.as_str() {
                    "/v3/auth/tokens" => login(&base, 1, 3600),
                    _ => Act::json(200, &json!({ "services": [] })),
                };
                converse(stream, Arc::new(Mutex::new(Vec::new())), Arc::new(handler)).await;
            });
        }
    });
    Tls {
        url,
        ca: made.cert.pem(),
    }
}

async fn credentials(url: &str, ca: Option<String>) -> Credentials {
    let fake = Fake::start(|_| Act::Silence).await;
    Credentials {
        auth_url: url.to_owned(),
        ca,
        ..fake.credentials()
    }
}

async fn client(url: &str, ca: Option<String>) -> Client {
    Client::new(Config::new(Source::given(credentials(url, ca).await)))
}

#[tokio::test]
async fn an_authority_of_its_own_is_trusted_and_no_other() {
    let tls = start().await;
    let trusting = client(&tls.url, Some(tls.ca.clone())).await;
    trusting.compute().services("x").await.unwrap();
    let error = client(&tls.url, Some(start().await.ca))
        .await
        .check(&[])
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    let error = client(&tls.url, None).await.check(&[]).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn certificates_that_are_none_are_told() {
    let error = client("https://localhost:1", Some("-----BEGIN".into()))
        .await
        .check(&[])
        .await;
    let error = error.unwrap_err();
    assert!(
        matches!(error, Error::Credentials(CredentialsError::Certificates(_))),
        "{error}"
    );
}
