//! Connected byte streams: unix, tcp, TLS.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::BytesMut;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::{ConnectError, Tls};

/// Where bytes come from.
pub type Input = Box<dyn AsyncRead + Send + Sync + Unpin>;
/// Where bytes go.
pub type Output = Box<dyn AsyncWrite + Send + Sync + Unpin>;

/// Connects to a socket of this machine.
pub async fn unix(path: &Path) -> Result<(Input, Output), ConnectError> {
    let connected = UnixStream::connect(path).await;
    let stream = connected.map_err(|source| ConnectError::Unreachable {
        address: path.display().to_string(),
        source,
    })?;
    let (input, output) = stream.into_split();
    Ok((Box::new(input), Box::new(output)))
}

/// Connects over the network. Errors show the address.
pub async fn tcp(address: &str, host: &str, port: u16) -> Result<(Input, Output), ConnectError> {
    let (input, output) = tcp_stream(address, host, port).await?.into_split();
    Ok((Box::new(input), Box::new(output)))
}

async fn tcp_stream(address: &str, host: &str, port: u16) -> Result<TcpStream, ConnectError> {
    let fail = |source| ConnectError::Unreachable {
        address: address.to_owned(),
        source,
    };
    let stream = TcpStream::connect((host, port)).await.map_err(fail)?;
    // Calls are small, and each is waited for.
    stream.set_nodelay(true).map_err(fail)?;
    Ok(stream)
}

impl Tls {
    /// Connects over the network, encrypted. Errors show the address.
    pub async fn connect(
        &self,
        address: &str,
        host: &str,
        port: u16,
    ) -> Result<(Input, Output), ConnectError> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| ConnectError::tls(address, error))?;
        let stream = tcp_stream(address, host, port).await?;
        let stream = TlsConnector::from(self.config.clone())
            .connect(name, stream)
            .await
            .map_err(|error| ConnectError::tls(address, error))?;
        let (input, output) = tokio::io::split(stream);
        Ok((Box::new(input), Box::new(output)))
    }
}

/// One deadline for all steps of the opening of a connection.
pub async fn within<T, E: From<ConnectError>>(
    address: &impl fmt::Display,
    after: Duration,
    opening: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let late = |_| ConnectError::Timeout {
        address: address.to_string(),
        after,
    };
    tokio::time::timeout(after, opening).await.map_err(late)?
}

/// Reads some bytes; the end of the stream is an error. May be dropped half-way without losing one.
pub async fn read(input: &mut Input, buffer: &mut BytesMut) -> io::Result<()> {
    match input.read_buf(buffer).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// The way to the peer, with the bytes that have not been sent.
pub struct Outgoing {
    output: Output,
    unsent: BytesMut,
    /// Something is to be sent, or may be in the buffers of the transport.
    unwritten: bool,
}

impl Outgoing {
    /// Nothing is to be sent yet.
    pub fn new(output: Output) -> Self {
        Self {
            output,
            unsent: BytesMut::new(),
            unwritten: false,
        }
    }

    /// Adds bytes for [`Self::write`] to send.
    pub fn push(&mut self, bytes: &[u8]) {
        self.unsent.extend_from_slice(bytes);
        self.unwritten = true;
    }

    /// How many bytes have not been sent.
    pub fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Whether [`Self::write`] has something to do.
    pub fn is_unwritten(&self) -> bool {
        self.unwritten
    }

    /// Sends some bytes, or flushes if all are sent. May be dropped half-way without losing one.
    pub async fn write(&mut self) -> io::Result<()> {
        if self.unsent.is_empty() {
            self.output.flush().await?;
            self.unwritten = false;
        } else if self.output.write_buf(&mut self.unsent).await? == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }

    /// The way to the peer alone.
    pub fn into_output(self) -> Output {
        self.output
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field("unsent", &self.unsent.len())
            .finish_non_exhaustive()
    }
}
