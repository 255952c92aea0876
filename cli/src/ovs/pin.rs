//! Trust in one certificate: the one that the OVSNode names. There is no authority to set up, and
//! nobody else is ever shown a token.

use rustls::{ClientConfig, Error, version};
use sha2::{Digest, Sha256};

/// A configuration of TLS that accepts the certificate with this SHA-256, in lower-case hexadecimal,
/// and no other.
///
/// # Errors
///
/// Never with the provider that is built in.
pub fn config(sha256: &str) -> Result<ClientConfig, Error> {
    let sha256 = sha256.to_owned();
    let config = cobalt_wire::pinned(&[&version::TLS13], move |certificate| {
        format!("{:x}", Sha256::digest(certificate)) == sha256
    });
    Ok(config?.with_no_client_auth())
}
