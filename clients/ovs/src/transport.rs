//! Connected byte streams: unix, tcp, ssl.

use std::path::Path;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::error::Error;
use crate::options::{Options, Tls};
use crate::remote::Remote;

/// Where bytes come from.
pub type Input = Box<dyn AsyncRead + Send + Sync + Unpin>;
/// Where bytes go.
pub type Output = Box<dyn AsyncWrite + Send + Sync + Unpin>;

/// Connects, within the time that the options give.
pub async fn connect(remote: &Remote, options: &Options) -> Result<(Input, Output), Error> {
    let connecting = async {
        match remote {
            Remote::Unix(path) => unix(path).await,
            Remote::Tcp(host, port) => {
                let (input, output) = tcp(remote, host, *port).await?.into_split();
                Ok((Box::new(input) as Input, Box::new(output) as Output))
            }
            Remote::Ssl(host, port) => {
                let tls = options.tls.as_ref().ok_or_else(|| {
                    Error::BadArgument(format!(
                        "{remote} needs Options::tls: a client certificate, its key and the authority"
                    ))
                })?;
                encrypted(remote, host, *port, tls).await
            }
        }
    };
    let after = options.connect_timeout;
    match tokio::time::timeout(after, connecting).await {
        Ok(connected) => connected,
        Err(_) => Err(Error::ConnectTimeout {
            address: remote.to_string(),
            after,
        }),
    }
}

async fn unix(path: &Path) -> Result<(Input, Output), Error> {
    let connected = UnixStream::connect(path).await;
    let stream = connected.map_err(|source| Error::Connect {
        address: path.display().to_string(),
        source,
    })?;
    let (input, output) = stream.into_split();
    Ok((Box::new(input), Box::new(output)))
}

async fn tcp(remote: &Remote, host: &str, port: u16) -> Result<TcpStream, Error> {
    let fail = |source| Error::Connect {
        address: remote.to_string(),
        source,
    };
    let stream = TcpStream::connect((host, port)).await.map_err(fail)?;
    // Calls are small, and each is waited for.
    stream.set_nodelay(true).map_err(fail)?;
    Ok(stream)
}

async fn encrypted(
    remote: &Remote,
    host: &str,
    port: u16,
    tls: &Tls,
) -> Result<(Input, Output), Error> {
    let fail = |problem: String| Error::Tls {
        address: remote.to_string(),
        problem,
    };
    let name = ServerName::try_from(host.to_owned()).map_err(|error| fail(error.to_string()))?;
    let stream = tcp(remote, host, port).await?;
    let connector = TlsConnector::from(tls.config.clone());
    let stream = connector
        .connect(name, stream)
        .await
        .map_err(|error| fail(error.to_string()))?;
    let (input, output) = tokio::io::split(stream);
    Ok((Box::new(input), Box::new(output)))
}
