//! Whether libvirtd uses the certificate: it is told to reload, and then asked by a handshake.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cobalt_api::conditions::{Reason, Status};
use cobalt_libvirt::{AdminConnection, Error, Options};
use cobalt_runtime::chain;
use cobalt_wire::AnotherCertificate;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DEFAULT_VERSIONS};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::material::{Facts, Identity};
use crate::context::Statement;

const DEADLINE: Duration = Duration::from_secs(5);
/// A daemon has two servers: this one, and the one that has the TLS port.
const ADMINISTRATION: &str = "admin";

/// What came of telling libvirtd to load its certificates again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// It did.
    Reloaded,
    /// It answered that it could not.
    Refused(String),
    /// It was not reached, or gave no answer.
    Unreachable(String),
}

/// What a handshake has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// libvirtd presents this certificate and accepts it from a caller.
    InUse,
    /// It presents another one.
    Another(String),
    /// It presents this certificate and does not accept it from a caller.
    CallerRefused(String),
    /// Nobody listens there.
    NobodyListens,
    /// There was no handshake.
    Failed(String),
}

/// Tells libvirtd to load its certificates again.
pub async fn tell(admin_socket: &Path) -> Told {
    let options = Options {
        connect_timeout: DEADLINE,
        call_timeout: DEADLINE,
        ..Options::default()
    };
    let opened = async {
        let admin = AdminConnection::open(admin_socket, &options).await?;
        let servers = admin.servers().await?;
        Ok::<_, Error>((admin, servers))
    };
    let (admin, servers) = match opened.await {
        Ok(opened) => opened,
        Err(error) => return Told::Unreachable(chain(&error)),
    };
    let Some(server) = servers.iter().find(|server| *server != ADMINISTRATION) else {
        return Told::Unreachable(format!("{} has no server", admin_socket.display()));
    };
    match admin.update_tls_files_of(server).await {
        Ok(()) => Told::Reloaded,
        Err(error) if error.code().is_some() && !error.is_not_supported() => {
            Told::Refused(chain(&error))
        }
        Err(error) => Told::Unreachable(chain(&error)),
    }
}

/// Makes a TLS connection to libvirtd as another hypervisor would.
pub async fn look(address: SocketAddr, node: &str, identity: &Identity) -> Seen {
    match tokio::time::timeout(DEADLINE, handshake(address, node, identity)).await {
        Ok(seen) => seen,
        Err(_) => Seen::Failed(format!("no answer within {} s", DEADLINE.as_secs())),
    }
}

async fn handshake(address: SocketAddr, node: &str, identity: &Identity) -> Seen {
    let stream = match TcpStream::connect(address).await {
        Ok(stream) => stream,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            return Seen::NobodyListens;
        }
        Err(error) => return Seen::Failed(chain(&error)),
    };
    let Some(wanted) = identity.key.cert.first() else {
        return Seen::Failed("there is no certificate to look for".to_owned());
    };
    let config = match client_config(wanted.clone(), identity) {
        Ok(config) => config,
        Err(error) => return Seen::Failed(chain(&error)),
    };
    let name = ServerName::try_from(node.to_owned())
        .unwrap_or_else(|_| ServerName::IpAddress(address.ip().into()));
    let connected = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await;
    let mut stream = match connected {
        Ok(stream) => stream,
        Err(error) => {
            return match AnotherCertificate::of(&error) {
                Some(AnotherCertificate(found)) => Seen::Another(name_of(found)),
                None => Seen::Failed(chain(&error)),
            };
        }
    };
    // libvirt says with one byte that it accepts the caller's certificate.
    let answer = stream.read_u8().await;
    // A peer that just goes away is an error in libvirtd's log.
    stream.shutdown().await.ok();
    match answer {
        Ok(1) => Seen::InUse,
        Ok(other) => Seen::CallerRefused(format!("it answers {other}")),
        Err(error) => Seen::CallerRefused(chain(&error)),
    }
}

/// Accepts one certificate only: stricter than any authority.
fn client_config(
    wanted: CertificateDer<'static>,
    identity: &Identity,
) -> Result<ClientConfig, rustls::Error> {
    let config = cobalt_wire::pinned(DEFAULT_VERSIONS, move |found| *found == wanted)?;
    let own = SingleCertAndKey::from(Arc::clone(&identity.key));
    Ok(config.with_client_cert_resolver(Arc::new(own)))
}

fn name_of(certificate: &CertificateDer<'_>) -> String {
    match X509Certificate::from_der(certificate) {
        Ok((_, found)) => format!(
            "\"{}\" with the serial number {}",
            found.subject(),
            found.raw_serial_as_string()
        ),
        Err(_) => "one that cannot be read".to_owned(),
    }
}

/// What follows from both. Pure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What the condition says.
    pub statement: Statement,
    /// libvirtd has read the files and does not want them: those before are better.
    pub take_back: bool,
}

/// What holds after the files were written. `None` for `told`: libvirtd was told before.
#[must_use]
pub fn verdict(facts: &Facts, told: Option<&Told>, seen: &Seen, address: SocketAddr) -> Verdict {
    let ready = |note: &str| Verdict {
        statement: Statement {
            status: Status::True,
            reason: Reason::Ready,
            message: format!("{}{note}", describe(facts)),
        },
        take_back: false,
    };
    let not_in_use = |why: String, take_back| Verdict {
        statement: Statement {
            status: Status::False,
            reason: Reason::FailedToStartUpdateTlsService,
            message: format!("{}; libvirtd does not use it: {why}", describe(facts)),
        },
        take_back,
    };
    let saw = match seen {
        Seen::InUse => return ready(""),
        Seen::Another(another) => format!("it presents {another}"),
        Seen::CallerRefused(why) => format!("it presents it and refuses it from a caller: {why}"),
        Seen::NobodyListens => format!("nobody listens at {address}"),
        Seen::Failed(why) => format!("no handshake with {address}: {why}"),
    };
    match told {
        // libvirtd runs, and has no TLS to reload. QEMU reads the files at each migration.
        Some(Told::Refused(why)) if *seen == Seen::NobodyListens => ready(&format!(
            "; for QEMU only: libvirtd does not listen with TLS at {address} ({why})"
        )),
        Some(Told::Refused(why)) => not_in_use(format!("it refuses it: {why}"), true),
        Some(Told::Unreachable(why)) => {
            not_in_use(format!("it cannot be told to reload: {why}; {saw}"), false)
        }
        Some(Told::Reloaded) | None => not_in_use(saw, false),
    }
}

/// The certificate in words that change only with it.
#[must_use]
pub fn describe(facts: &Facts) -> String {
    format!("{}, valid until {}", facts.subject, facts.not_after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            subject: "O=nova, CN=hv1".into(),
            serial: "01".into(),
            not_before: "2026-06-01T00:00:00Z".parse().unwrap(),
            not_after: "2026-07-01T00:00:00Z".parse().unwrap(),
        }
    }

    #[test]
    fn w73_a_certificate_that_is_not_in_use_is_never_ready() {
        let why = || "why".to_owned();
        let tolds = [
            None,
            Some(Told::Reloaded),
            Some(Told::Refused(why())),
            Some(Told::Unreachable(why())),
        ];
        let seens = [
            Seen::InUse,
            Seen::Another(why()),
            Seen::CallerRefused(why()),
            Seen::NobodyListens,
            Seen::Failed(why()),
        ];
        let address = "127.0.0.1:16514".parse().unwrap();
        for told in &tolds {
            for seen in &seens {
                let verdict = verdict(&facts(), told.as_ref(), seen, address);
                let said = format!("{told:?} {seen:?}: {}", verdict.statement.message);
                let refused = matches!(told, Some(Told::Refused(_)));
                let no_tls = refused && *seen == Seen::NobodyListens;
                let ready = *seen == Seen::InUse || no_tls;
                assert_eq!(verdict.statement.status == Status::True, ready, "{said}");
                let reason = if ready {
                    Reason::Ready
                } else {
                    Reason::FailedToStartUpdateTlsService
                };
                assert_eq!(verdict.statement.reason, reason, "{said}");
                assert_eq!(verdict.take_back, refused && !ready, "{said}");
                assert!(
                    verdict
                        .statement
                        .message
                        .starts_with("O=nova, CN=hv1, valid until 2026-07-01")
                );
                assert!(ready || said.contains("does not use it"), "{said}");
                assert_eq!(no_tls, said.contains("for QEMU only"), "{said}");
            }
        }
    }
}
