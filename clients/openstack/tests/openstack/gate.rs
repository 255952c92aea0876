//! A client whose leave to change things ends while a call waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cobalt_openstack::{Client, Config, Error, Gate};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::fake::{Act, Fake, login};

const SERVER: &str = "00000000-0000-4000-8000-000000000001";

/// A gate, and what closes it.
fn gate() -> (Gate, Arc<AtomicBool>) {
    let open = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&open);
    (Gate::new(move || asked.load(Ordering::SeqCst)), open)
}

fn client(fake: &Fake, gate: Gate) -> Client {
    Client::new(Config {
        gate: Some(gate),
        ..fake.config()
    })
}

fn methods(fake: &Fake) -> Vec<String> {
    let seen = fake.seen().into_iter();
    seen.map(|seen| seen.method).collect()
}

#[tokio::test]
async fn a_change_that_waited_for_its_login_is_not_sent_when_the_gate_has_closed() {
    let (gate, open) = gate();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let base = url.clone();
    let fake = Fake::serve(listener, url, move |seen| {
        if seen.path == "/v3/auth/tokens" {
            open.store(false, Ordering::SeqCst);
            return login(&base, 1, 3600);
        }
        Act::json(200, &json!({"aggregates": []}))
    });
    let client = client(&fake, gate);
    let refused = client.compute().delete_server(SERVER).await.unwrap_err();
    assert!(matches!(refused, Error::NotAllowed { .. }), "{refused:?}");
    assert!(!refused.is_uncertain() && !refused.is_transient());
    assert_eq!(methods(&fake), [""; 0]);
    // Who may not change anything may look.
    client.compute().aggregates().await.unwrap();
    assert_eq!(methods(&fake), ["GET"]);
}

#[tokio::test]
async fn a_change_is_not_repeated_when_the_gate_has_closed() {
    let (gate, open) = gate();
    let fake = Fake::start(move |_| {
        open.store(false, Ordering::SeqCst);
        Act::json(503, &json!({}))
    })
    .await;
    let client = client(&fake, gate);
    let refused = client.compute().delete_server(SERVER).await.unwrap_err();
    assert!(matches!(refused, Error::NotAllowed { .. }), "{refused:?}");
    assert_eq!(methods(&fake), ["DELETE"]);
}

/// What comes between the look and the bytes is the making of a connection: TLS, here with a server that
/// reads the client's hello and closes the gate before it says hello itself.
#[tokio::test]
async fn a_change_that_waited_for_its_connection_is_not_sent_when_the_gate_has_closed() {
    let (gate, open) = gate();
    let secret = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let nova = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nova_url = format!("https://localhost:{}", nova.local_addr().unwrap().port());
    let key = rustls_key(&secret);
    let got = tokio::spawn(async move {
        let (stream, _) = nova.accept().await.unwrap();
        let mut hello = [0];
        // It is there to be read again by the handshake.
        stream.peek(&mut hello).await.unwrap();
        open.store(false, Ordering::SeqCst);
        let mut request = Vec::new();
        if let Ok(mut stream) = key.accept(stream).await {
            stream.read_to_end(&mut request).await.ok();
            stream.shutdown().await.ok();
        }
        request
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let fake = Fake::serve(listener, url, move |_| login(&nova_url, 1, 3600));
    let mut credentials = fake.credentials();
    credentials.ca = Some(secret.cert.pem());
    let client = Client::new(Config {
        gate: Some(gate),
        credentials: cobalt_openstack::Source::given(credentials),
        ..fake.config()
    });
    let refused = client.compute().delete_server(SERVER).await.unwrap_err();
    assert!(matches!(refused, Error::NotAllowed { .. }), "{refused:?}");
    assert_eq!(String::from_utf8(got.await.unwrap()).unwrap(), "");
}

fn rustls_key(secret: &rcgen::CertifiedKey<rcgen::KeyPair>) -> tokio_rustls::TlsAcceptor {
    use tokio_rustls::rustls::{ServerConfig, crypto, pki_types::PrivateKeyDer};
    let key = PrivateKeyDer::Pkcs8(secret.signing_key.serialize_der().into());
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![secret.cert.der().clone()], key)
        .unwrap();
    tokio_rustls::TlsAcceptor::from(Arc::new(config))
}
