//! Trust in one certificate: the one that the OVSNode names. There is no authority to set up, and
//! nobody else is ever shown a token.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, ring::default_provider, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme, version,
};
use sha2::{Digest, Sha256};

/// A configuration of TLS that accepts the certificate with this SHA-256, in lower-case hexadecimal,
/// and no other.
///
/// # Errors
///
/// Never with the provider that is built in.
pub fn config(sha256: &str) -> Result<ClientConfig, Error> {
    let provider = Arc::new(default_provider());
    let pinned = Pinned {
        sha256: sha256.to_owned(),
        provider: Arc::clone(&provider),
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(pinned))
        .with_no_client_auth();
    Ok(config)
}

/// Whether a handshake has failed because the peer has another certificate.
pub fn is_another(error: &std::io::Error) -> bool {
    let inner = error.get_ref();
    let inner = inner.and_then(|inner| inner.downcast_ref::<Error>());
    matches!(
        inner,
        Some(Error::InvalidCertificate(
            CertificateError::ApplicationVerificationFailure
        ))
    )
}

/// The SHA-256 of a certificate, as an OVSNode has it.
fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    format!("{:x}", Sha256::digest(certificate))
}

/// The name does not matter, nor the time: the certificate is known. That the peer has its key does.
#[derive(Debug)]
struct Pinned {
    sha256: String,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if fingerprint(certificate) == self.sha256 {
            return Ok(ServerCertVerified::assertion());
        }
        let another = CertificateError::ApplicationVerificationFailure;
        Err(Error::InvalidCertificate(another))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rustls::ServerConfig;
    use rustls::pki_types::PrivateKeyDer;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    struct Identity {
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    }

    fn identity() -> Identity {
        let made = rcgen::generate_simple_self_signed(vec!["any".to_owned()]).unwrap();
        Identity {
            certificate: made.cert.der().clone(),
            key: PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into()),
        }
    }

    /// Shows a certificate, and signs with a key that need not be its own.
    #[derive(Debug)]
    struct Shown(Arc<rustls::sign::CertifiedKey>);

    impl rustls::server::ResolvesServerCert for Shown {
        fn resolve(
            &self,
            _hello: rustls::server::ClientHello<'_>,
        ) -> Option<Arc<rustls::sign::CertifiedKey>> {
            Some(Arc::clone(&self.0))
        }
    }

    /// What a handshake comes to with a peer that shows this certificate and signs with this key.
    async fn handshake(
        sha256: &str,
        certificate: &CertificateDer<'static>,
        key: &PrivateKeyDer<'static>,
    ) -> std::io::Result<()> {
        let key = rustls::crypto::ring::sign::any_supported_type(key).unwrap();
        let shown = rustls::sign::CertifiedKey::new(vec![certificate.clone()], key);
        let server = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Shown(Arc::new(shown))));
        let (here, there) = tokio::io::duplex(64 * 1024);
        let name = ServerName::try_from("192.0.2.1").unwrap();
        let connector = TlsConnector::from(Arc::new(config(sha256).unwrap()));
        let acceptor = TlsAcceptor::from(Arc::new(server));
        let (connected, _) = tokio::join!(connector.connect(name, here), acceptor.accept(there));
        connected.map(|_| ())
    }

    #[tokio::test]
    async fn one_certificate_is_accepted_and_no_other() {
        let (agent, other) = (identity(), identity());
        let pin = fingerprint(&agent.certificate);
        handshake(&pin, &agent.certificate, &agent.key)
            .await
            .unwrap();
        let error = handshake(&pin, &other.certificate, &other.key).await;
        assert!(is_another(&error.unwrap_err()));
    }

    #[tokio::test]
    async fn who_shows_the_certificate_must_have_its_key() {
        let (agent, thief) = (identity(), identity());
        let pin = fingerprint(&agent.certificate);
        let error = handshake(&pin, &agent.certificate, &thief.key).await;
        let error = error.unwrap_err();
        assert!(!is_another(&error), "{error}");
    }
}
