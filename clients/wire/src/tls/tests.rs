use std::net::{IpAddr, Ipv4Addr};

use cobalt_lab::pki::{self, Authority};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

fn server(authority: &Authority) -> pki::Identity {
    authority.host("hv1", ADDRESS).unwrap()
}

fn der(pem: &str) -> CertificateDer<'static> {
    certificates(pem.as_bytes()).unwrap().remove(0)
}

#[derive(Debug)]
struct Shown(Arc<CertifiedKey>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// A handshake with a server that shows this certificate, and signs with a key that need not be its
/// own.
async fn handshake(
    config: Arc<ClientConfig>,
    name: &str,
    certificate: &str,
    key: &str,
) -> io::Result<()> {
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let key = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
    let shown = Shown(Arc::new(CertifiedKey::new(vec![der(certificate)], key)));
    let server = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(DEFAULT_VERSIONS)
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(shown));
    let (here, there) = tokio::io::duplex(64 * 1024);
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connector = TlsConnector::from(config);
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let (connected, _) = tokio::join!(connector.connect(name, here), acceptor.accept(there));
    connected.map(drop)
}

fn pinning(certificate: &str, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let pin = der(certificate);
    let config = pinned(&[version], move |shown| *shown == pin).unwrap();
    Arc::new(config.with_no_client_auth())
}

#[test]
fn certificates_that_are_none_say_which_file_it_is() {
    let absent = Path::new("/nonexistent/ca.pem");
    let error = Tls::from_files(absent, absent, absent, Identity::Host).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/ca.pem"), "{error}");
    let error = Tls::from_pem(b"", b"", b"", Identity::Host).unwrap_err();
    assert_eq!(
        error.to_string(),
        "TLS with the authority failed: no certificate in PEM"
    );
}

#[test]
fn a_key_does_not_show_itself() {
    let authority = Authority::new("test").unwrap();
    let identity = authority.client("me").unwrap();
    let (ca, certificate) = (authority.pem(), identity.certificate.as_bytes());
    let error = Tls::from_pem(ca.as_bytes(), certificate, b"no key", Identity::Host).unwrap_err();
    assert!(error.to_string().contains("the key"), "{error}");
    let key = identity.key.as_bytes();
    let tls = Tls::from_pem(ca.as_bytes(), certificate, key, Identity::Host).unwrap();
    assert_eq!(format!("{tls:?}"), "Tls");
}

#[tokio::test]
async fn a_certificate_without_the_name_is_taken_only_where_the_authority_is_enough() {
    let (ours, theirs) = (
        Authority::new("ours").unwrap(),
        Authority::new("theirs").unwrap(),
    );
    let me = ours.client("me").unwrap();
    let (good, foreign) = (server(&ours), server(&theirs));
    for (identity, shown, signing, name, accepted) in [
        (Identity::Host, &good, &good, "192.0.2.1", true),
        (Identity::Host, &good, &good, "192.0.2.9", false),
        (Identity::Host, &good, &foreign, "192.0.2.1", false),
        (Identity::Authority, &good, &good, "192.0.2.9", true),
        (Identity::Authority, &good, &foreign, "192.0.2.9", false),
        (Identity::Authority, &foreign, &foreign, "192.0.2.1", false),
    ] {
        let (ca, certificate, key) = (ours.pem(), me.certificate.as_bytes(), me.key.as_bytes());
        let tls = Tls::from_pem(ca.as_bytes(), certificate, key, identity).unwrap();
        let done = handshake(tls.config, name, &shown.certificate, &signing.key).await;
        assert_eq!(done.is_ok(), accepted, "{identity:?} {name}: {done:?}");
    }
}

#[tokio::test]
async fn a_pinned_certificate_is_accepted_and_no_other() {
    let authority = Authority::new("test").unwrap();
    let (wanted, other) = (server(&authority), server(&authority));
    for version in [&TLS12, &TLS13] {
        let config = pinning(&wanted.certificate, version);
        handshake(config.clone(), "any", &wanted.certificate, &wanted.key)
            .await
            .unwrap();
        let error = handshake(config, "any", &other.certificate, &other.key).await;
        let error = error.unwrap_err();
        let found = AnotherCertificate::of(&error).unwrap();
        assert_eq!(found.0, der(&other.certificate));
    }
}

#[tokio::test]
async fn a_server_with_the_pinned_certificate_must_have_its_key() {
    let authority = Authority::new("test").unwrap();
    let (wanted, thief) = (server(&authority), server(&authority));
    for version in [&TLS12, &TLS13] {
        let config = pinning(&wanted.certificate, version);
        let error = handshake(config, "any", &wanted.certificate, &thief.key).await;
        let error = error.unwrap_err();
        assert!(AnotherCertificate::of(&error).is_none(), "{error}");
    }
}
