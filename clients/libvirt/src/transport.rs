//! Connected byte streams: unix, tcp, tls.

use std::io;
use std::path::Path;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::error::Error;
use crate::options::Tls;
use crate::uri::{Transport, Uri};

/// What libvirt says after the handshake when it takes the client's certificate.
const ACCEPTED: u8 = 1;

/// Where bytes come from.
pub type Input = Box<dyn AsyncRead + Send + Unpin>;
/// Where bytes go.
pub type Output = Box<dyn AsyncWrite + Send + Unpin>;

/// Connects.
pub async fn connect(uri: &Uri, tls: Option<&Tls>) -> Result<(Input, Output), Error> {
    match &uri.transport {
        Transport::Unix(_) => match uri.socket() {
            Some(socket) => unix(socket).await,
            None => Err(Error::BadArgument("the URI names no socket".to_owned())),
        },
        Transport::Tcp(host, port) => {
            let (input, output) = tcp(host, *port).await?.into_split();
            Ok((Box::new(input), Box::new(output)))
        }
        Transport::Tls(host, port) => {
            let tls = tls.ok_or_else(|| {
                let needed =
                    "a tls URI needs Options::tls: a client certificate, its key and the authority";
                Error::BadArgument(needed.to_owned())
            })?;
            encrypted(host, *port, tls).await
        }
    }
}

/// Connects to a socket of this machine.
pub async fn unix(path: &Path) -> Result<(Input, Output), Error> {
    let stream = UnixStream::connect(path)
        .await
        .map_err(|source| Error::Connect {
            address: path.display().to_string(),
            source,
        })?;
    let (input, output) = stream.into_split();
    Ok((Box::new(input), Box::new(output)))
}

async fn tcp(host: &str, port: u16) -> Result<TcpStream, Error> {
    let fail = |source| Error::Connect {
        address: format!("{host}:{port}"),
        source,
    };
    let stream = TcpStream::connect((host, port)).await.map_err(fail)?;
    // Calls are small, and each is waited for.
    stream.set_nodelay(true).map_err(fail)?;
    Ok(stream)
}

async fn encrypted(host: &str, port: u16, tls: &Tls) -> Result<(Input, Output), Error> {
    let fail = |problem: String| Error::Tls {
        address: format!("{host}:{port}"),
        problem,
    };
    let name = ServerName::try_from(host.to_owned()).map_err(|error| fail(error.to_string()))?;
    let stream = tcp(host, port).await?;
    let connector = TlsConnector::from(tls.config.clone());
    let mut stream = connector
        .connect(name, stream)
        .await
        .map_err(|error| fail(error.to_string()))?;
    // With TLS 1.3 a refused certificate shows here, not in the handshake.
    let refused = |why: &str| fail(format!("libvirt does not take our certificate: {why}"));
    match stream.read_u8().await {
        Ok(ACCEPTED) => {}
        Ok(other) => return Err(refused(&format!("it said {other} instead of 1"))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(refused("it closed the connection"));
        }
        Err(error) => return Err(refused(&error.to_string())),
    }
    let (input, output) = tokio::io::split(stream);
    Ok((Box::new(input), Box::new(output)))
}
