//! TLS as a client: our certificate, and which certificates of a server are accepted.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring::default_provider, verify_tls12_signature,
    verify_tls13_signature,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DEFAULT_VERSIONS, DigitallySignedStruct, Error,
    OtherError, RootCertStore, SignatureScheme, SupportedProtocolVersion,
};

use crate::ConnectError;

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
    ) -> Result<Self, ConnectError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|error| {
                ConnectError::tls(path.display(), format!("failed to read it: {error}"))
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
    ) -> Result<Self, ConnectError> {
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
    ) -> Result<Self, ConnectError> {
        let authorities = certificates(ca).map_err(|error| ConnectError::tls(ca_name, error))?;
        let provider = Arc::new(default_provider());
        let accepted = Accepted::of_authority(authorities, identity, &provider)
            .map_err(|error| ConnectError::tls(ca_name, error))?;
        let chain = certificates(certificate)
            .map_err(|error| ConnectError::tls(certificate_name, error))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
            ConnectError::tls(key_name, format!("no private key in PEM: {error}"))
        })?;
        let config = accepting(accepted, provider, DEFAULT_VERSIONS)
            .map_err(|error| ConnectError::tls("this machine", error))?
            .with_client_auth_cert(chain, key)
            .map_err(|error| ConnectError::tls(certificate_name, error))?;
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

/// Begins a configuration that accepts a server by its certificate, whatever authority, name and
/// time it has. The server must have the certificate's key.
///
/// # Errors
///
/// None of the versions is supported by the provider that is built in.
pub fn pinned(
    versions: &[&'static SupportedProtocolVersion],
    is_pinned: impl Fn(&CertificateDer<'_>) -> bool + Send + Sync + 'static,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Error> {
    let accepted = Accepted::Pinned(Box::new(is_pinned));
    accepting(accepted, Arc::new(default_provider()), versions)
}

fn accepting(
    accepted: Accepted,
    provider: Arc<CryptoProvider>,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Error> {
    let algorithms = provider.signature_verification_algorithms;
    let verifier = Verifier {
        accepted,
        algorithms,
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    Ok(config)
}

/// The server has another certificate than the pinned one: this.
#[derive(Debug, thiserror::Error)]
#[error("the server has another certificate")]
pub struct AnotherCertificate(pub CertificateDer<'static>);

impl AnotherCertificate {
    /// Whether a handshake has failed because of that.
    pub fn of(error: &io::Error) -> Option<&Self> {
        match error.get_ref()?.downcast_ref()? {
            Error::Other(OtherError(error)) => error.downcast_ref(),
            _ => None,
        }
    }
}

/// Which certificates are accepted.
enum Accepted {
    /// Those of an authority, verified as usual except for the name if [`Identity`] says so.
    OfAuthority(Arc<WebPkiServerVerifier>, Identity),
    /// Those that this function knows.
    Pinned(Box<dyn Fn(&CertificateDer<'_>) -> bool + Send + Sync>),
}

impl Accepted {
    fn of_authority(
        authorities: Vec<CertificateDer<'static>>,
        identity: Identity,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority).map_err(|error| error.to_string())?;
        }
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map(|usual| Self::OfAuthority(usual, identity))
            .map_err(|error| error.to_string())
    }
}

/// Decides on a server's certificate, and checks in any case that the server has its key.
struct Verifier {
    accepted: Accepted,
    algorithms: WebPkiSupportedAlgorithms,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier")
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let (usual, identity) = match &self.accepted {
            Accepted::OfAuthority(usual, identity) => (usual, *identity),
            Accepted::Pinned(is_pinned) if is_pinned(certificate) => {
                return Ok(ServerCertVerified::assertion());
            }
            Accepted::Pinned(_) => {
                let another = AnotherCertificate(certificate.clone().into_owned());
                return Err(OtherError(Arc::new(another)).into());
            }
        };
        match usual.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // The name is looked at last: everything else holds.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if identity == Identity::Authority => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
