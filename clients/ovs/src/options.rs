//! How a connection behaves: deadlines, keepalive, bounds, certificates.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use crate::error::Error;

/// How a connection behaves, to any of the servers.
///
/// ```
/// use std::time::Duration;
/// use cobalt_ovs::Options;
///
/// let options = Options { call_timeout: Duration::from_secs(2), ..Options::default() };
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    /// How long it may take until the server has taken the connection.
    pub connect_timeout: Duration,
    /// How long each call may take, the time in the queue included.
    pub call_timeout: Duration,
    /// Whether and how a silent OVSDB server is noticed.
    pub keepalive: Option<Keepalive>,
    /// How long a JSON message may be. A longer one closes the connection.
    pub max_message: usize,
    /// Certificates, for `ssl` remotes.
    pub tls: Option<Tls>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(10),
            keepalive: Some(Keepalive::default()),
            max_message: 64 * 1024 * 1024,
            tls: None,
        }
    }
}

/// How a silent peer is noticed: it is asked, and the connection ends when it stays silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// After how much silence it is asked, and asked again.
    pub interval: Duration,
    /// How many questions may remain without an answer.
    pub count: u32,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            count: 3,
        }
    }
}

/// Certificates for TLS: our own, its key, and the authority of the server.
#[derive(Clone)]
pub struct Tls {
    pub(crate) config: Arc<ClientConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The configuration holds the key.
        f.write_str("Tls")
    }
}

/// What a server's certificate has to prove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// That it is of our authority, and for the host that is called.
    Host,
    /// That it is of our authority. Open vSwitch's own programs ask for no more, and the
    /// certificates of `ovs-pki` name no host.
    Authority,
}

impl Tls {
    /// From PEM files.
    pub fn from_files(
        ca: &Path,
        certificate: &Path,
        key: &Path,
        identity: Identity,
    ) -> Result<Self, Error> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|error| Error::Tls {
                address: path.display().to_string(),
                problem: format!("failed to read it: {error}"),
            })
        };
        Self::build(
            (&ca.display(), &read(ca)?),
            (&certificate.display(), &read(certificate)?),
            (&key.display(), &read(key)?),
            identity,
        )
    }

    /// From PEM texts.
    pub fn from_pem(
        ca: &[u8],
        certificate: &[u8],
        key: &[u8],
        identity: Identity,
    ) -> Result<Self, Error> {
        Self::build(
            (&"the authority", ca),
            (&"the certificate", certificate),
            (&"the key", key),
            identity,
        )
    }

    fn build(
        (ca_name, ca): (&dyn fmt::Display, &[u8]),
        (certificate_name, certificate): (&dyn fmt::Display, &[u8]),
        (key_name, key): (&dyn fmt::Display, &[u8]),
        identity: Identity,
    ) -> Result<Self, Error> {
        let fail = |name: &dyn fmt::Display, problem: &dyn fmt::Display| Error::Tls {
            address: name.to_string(),
            problem: problem.to_string(),
        };
        let mut roots = RootCertStore::empty();
        for authority in certificates(ca).map_err(|error| fail(ca_name, &error))? {
            roots
                .add(authority)
                .map_err(|error| fail(ca_name, &error))?;
        }
        let chain = certificates(certificate).map_err(|error| fail(certificate_name, &error))?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| fail(key_name, &format!("no private key in PEM: {error}")))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = Verifier::new(roots, identity, provider.clone())
            .map_err(|error| fail(ca_name, &error))?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| fail(&"this machine", &error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(chain, key)
            .map_err(|error| fail(certificate_name, &error))?;
        Ok(Self {
            config: Arc::new(config),
        })
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("no certificate in PEM: {error}"))?;
    if found.is_empty() {
        return Err("no certificate in PEM".to_owned());
    }
    Ok(found)
}

/// The usual verification, which may leave out the name of the host and nothing else.
#[derive(Debug)]
struct Verifier {
    usual: Arc<WebPkiServerVerifier>,
    identity: Identity,
}

impl Verifier {
    fn new(
        roots: RootCertStore,
        identity: Identity,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, rustls::client::VerifierBuilderError> {
        let usual =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
        Ok(Self { usual, identity })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.usual.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        match verified {
            // The name is looked at last: everything else holds.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.identity == Identity::Authority => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let authority = cobalt_lab::pki::Authority::new("test").unwrap();
        let identity = authority.client("me").unwrap();
        let (ca, certificate) = (authority.pem(), identity.certificate.as_bytes());
        let error =
            Tls::from_pem(ca.as_bytes(), certificate, b"no key", Identity::Host).unwrap_err();
        assert!(error.to_string().contains("the key"), "{error}");
        let key = identity.key.as_bytes();
        let tls = Tls::from_pem(ca.as_bytes(), certificate, key, Identity::Host).unwrap();
        assert_eq!(format!("{tls:?}"), "Tls");
    }

    #[test]
    fn a_certificate_without_the_name_is_taken_only_where_the_authority_is_enough() {
        let ours = cobalt_lab::pki::Authority::new("ours").unwrap();
        let theirs = cobalt_lab::pki::Authority::new("theirs").unwrap();
        let address = "192.0.2.1".parse().unwrap();
        let server = |authority: &cobalt_lab::pki::Authority| {
            let pem = authority.host("hv1", address).unwrap().certificate;
            certificates(pem.as_bytes()).unwrap().remove(0)
        };
        let verify = |identity, certificate: &CertificateDer<'_>, name: &'static str| {
            let mut roots = RootCertStore::empty();
            for root in certificates(ours.pem().as_bytes()).unwrap() {
                roots.add(root).unwrap();
            }
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let name = ServerName::try_from(name).unwrap();
            Verifier::new(roots, identity, provider)
                .unwrap()
                .verify_server_cert(certificate, &[], &name, &[], UnixTime::now())
                .is_ok()
        };
        let (good, foreign) = (server(&ours), server(&theirs));
        assert!(verify(Identity::Host, &good, "192.0.2.1"));
        assert!(!verify(Identity::Host, &good, "192.0.2.9"));
        assert!(verify(Identity::Authority, &good, "192.0.2.9"));
        assert!(!verify(Identity::Authority, &foreign, "192.0.2.1"));
    }
}
