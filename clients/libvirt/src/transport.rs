//! Connected byte streams: unix, tcp, tls.

use std::io;

use cobalt_wire::{ConnectError, Input, Output};
use tokio::io::AsyncReadExt;

use crate::error::Error;
use crate::options::Tls;
use crate::uri::{Transport, Uri};

/// What libvirt says after the handshake when it takes the client's certificate.
const ACCEPTED: u8 = 1;

/// Connects.
pub async fn connect(uri: &Uri, tls: Option<&Tls>) -> Result<(Input, Output), Error> {
    match &uri.transport {
        Transport::Unix(_) => match uri.socket() {
            Some(socket) => Ok(cobalt_wire::unix(socket).await?),
            None => Err(Error::BadArgument("the URI names no socket".to_owned())),
        },
        Transport::Tcp(host, port) => {
            let address = format!("{host}:{port}");
            Ok(cobalt_wire::tcp(&address, host, *port).await?)
        }
        Transport::Tls(host, port) => {
            let tls = tls.ok_or_else(|| {
                let needed =
                    "a tls URI needs Options::tls: a client certificate, its key and the authority";
                Error::BadArgument(needed.to_owned())
            })?;
            Ok(encrypted(host, *port, tls).await?)
        }
    }
}

async fn encrypted(host: &str, port: u16, tls: &Tls) -> Result<(Input, Output), ConnectError> {
    let address = format!("{host}:{port}");
    let (mut input, output) = tls.0.connect(&address, host, port).await?;
    // With TLS 1.3 a refused certificate shows here, not in the handshake.
    let why = match input.read_u8().await {
        Ok(ACCEPTED) => return Ok((input, output)),
        Ok(other) => format!("it said {other} instead of 1"),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it closed the connection".to_owned()
        }
        Err(error) => error.to_string(),
    };
    let problem = format!("libvirt does not take our certificate: {why}");
    Err(ConnectError::tls(address, problem))
}
