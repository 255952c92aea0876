//! How a connection behaves: deadlines, keepalive, bounds, certificates.

use std::path::Path;
use std::time::Duration;

use cobalt_wire::{Identity, Keepalive};

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

/// Certificates for TLS: our own, its key, and the authority of the server, whose certificate has to
/// be for the host that is called.
#[derive(Debug, Clone)]
pub struct Tls(pub(crate) cobalt_wire::Tls);

impl Tls {
    /// From PEM files.
    pub fn from_files(ca: &Path, certificate: &Path, key: &Path) -> Result<Self, Error> {
        let tls = cobalt_wire::Tls::from_files(ca, certificate, key, Identity::Host)?;
        Ok(Self(tls))
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
        let tls = cobalt_wire::Tls::from_pem(ca, certificate, key, Identity::Host)?;
        Ok(Self(tls))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_missing_is_named() {
        let error = Tls::from_pki(Path::new("/nonexistent")).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("/nonexistent/CA/cacert.pem"), "{error}");
    }
}
