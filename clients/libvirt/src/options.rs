//! How a connection behaves: deadlines, keepalive, bounds, certificates.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::Error;
use crate::message::DEFAULT_MAX_MESSAGE;

/// How a connection behaves.
///
/// ```
/// use std::time::Duration;
/// use cobalt_libvirt::Options;
///
/// let options = Options { call_timeout: Duration::from_secs(5), ..Options::default() };
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    /// How long it may take until libvirt has taken the connection.
    pub connect_timeout: Duration,
    /// How long each call may take, the time in the queue included.
    pub call_timeout: Duration,
    /// Whether and how a silent peer is noticed.
    pub keepalive: Option<Keepalive>,
    /// How long a message may be. A longer one closes the connection.
    pub max_message: usize,
    /// How many calls libvirt works on at the same time; more wait here for their turn.
    ///
    /// libvirtd stops reading from a client that has `max_client_requests` (5) calls running, and
    /// then does not see that the client is alive. One less keeps the keepalive working.
    pub max_in_flight: usize,
    /// Certificates, for `tls` URIs.
    pub tls: Option<Tls>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(30),
            keepalive: Some(Keepalive::default()),
            max_message: DEFAULT_MAX_MESSAGE,
            max_in_flight: 4,
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

impl Tls {
    /// From PEM files.
    pub fn from_files(ca: &Path, certificate: &Path, key: &Path) -> Result<Self, Error> {
        let read = |path: &Path| {
            std::fs::read(path)
                .map_err(|error| tls_error(path, &format!("failed to read it: {error}")))
        };
        Self::build(
            (&ca.display(), &read(ca)?),
            (&certificate.display(), &read(certificate)?),
            (&key.display(), &read(key)?),
        )
    }

    /// From a directory as libvirt lays it out, usually `/etc/pki`: `CA/cacert.pem`,
    /// `libvirt/clientcert.pem` and `libvirt/private/clientkey.pem`.
    pub fn from_pki(dir: &Path) -> Result<Self, Error> {
        Self::from_files(
            &dir.join("CA/cacert.pem"),
            &dir.join("libvirt/clientcert.pem"),
            &dir.join("libvirt/private/clientkey.pem"),
        )
    }

    /// From PEM texts.
    pub fn from_pem(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<Self, Error> {
        Self::build(
            (&"the authority", ca),
            (&"the certificate", certificate),
            (&"the key", key),
        )
    }

    fn build(
        (ca_name, ca): (&dyn fmt::Display, &[u8]),
        (certificate_name, certificate): (&dyn fmt::Display, &[u8]),
        (key_name, key): (&dyn fmt::Display, &[u8]),
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
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| fail(&"this machine", &error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| fail(certificate_name, &error))?;
        Ok(Self {
            config: Arc::new(config),
        })
    }
}

fn tls_error(path: &Path, problem: &str) -> Error {
    Error::Tls {
        address: path.display().to_string(),
        problem: problem.to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_that_are_none_say_which_file_it_is() {
        let absent = Path::new("/nonexistent");
        let error = Tls::from_pki(absent).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/CA/cacert.pem"), "{error}");
        let error = Tls::from_pem(b"", b"", b"").unwrap_err().to_string();
        assert_eq!(
            error,
            "TLS with the authority failed: no certificate in PEM"
        );
    }

    #[test]
    fn a_key_does_not_show_itself() {
        let authority = cobalt_lab::pki::Authority::new("test").unwrap();
        let identity = authority.client("me").unwrap();
        let (ca, certificate) = (authority.pem(), identity.certificate.as_bytes());
        let error = Tls::from_pem(ca.as_bytes(), certificate, b"no key").unwrap_err();
        assert!(error.to_string().contains("the key"), "{error}");
        let tls = Tls::from_pem(ca.as_bytes(), certificate, identity.key.as_bytes()).unwrap();
        assert_eq!(format!("{tls:?}"), "Tls");
    }
}
