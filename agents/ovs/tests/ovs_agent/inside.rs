//! From outside into the network of a lab's host, and questions to an agent there. The bench uses it,
//! too.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Method, Request, Response, StatusCode};
use cobalt_wire::AnotherCertificate;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::DEFAULT_VERSIONS;
use rustls::pki_types::ServerName;
use sha2::{Digest, Sha256};
use tokio::task::JoinHandle;

/// The network of a host, by the process that is its first.
#[derive(Debug, Clone)]
pub struct Network(PathBuf);

impl Network {
    /// Of the host whose first process this is.
    pub fn of(pid_one: u32) -> Self {
        Self(PathBuf::from(format!("/proc/{pid_one}/ns/net")))
    }

    /// How `nsenter` takes it.
    pub fn flag(&self) -> String {
        format!("--net={}", self.0.display())
    }

    /// Does something there. What is opened there stays there.
    pub fn within<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let namespace = File::open(&self.0)?;
        let worker = std::thread::spawn(move || {
            let kind = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(namespace.as_fd(), kind)?;
            work()
        });
        let done = worker.join();
        done.unwrap_or_else(|_| Err(io::Error::other("the thread has failed")))
    }

    /// Connects to somebody there.
    pub fn connect(&self, address: SocketAddr) -> io::Result<tokio::net::TcpStream> {
        let patience = Duration::from_secs(10);
        let stream = self.within(move || TcpStream::connect_timeout(&address, patience))?;
        stream.set_nonblocking(true)?;
        tokio::net::TcpStream::from_std(stream)
    }

    /// Something that sends there.
    pub fn sender(&self, from: &'static str) -> io::Result<UdpSocket> {
        self.within(move || UdpSocket::bind(from))
    }

    /// Whoever connects to an address there gets to this one out here.
    pub fn door(&self, at: SocketAddr, to: SocketAddr) -> io::Result<Door> {
        let listener = self.within(move || TcpListener::bind(at))?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        Ok(Door(tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((mut inner, _)) = listener.accept().await {
                open.spawn(async move {
                    if let Ok(mut outer) = tokio::net::TcpStream::connect(to).await {
                        drop(tokio::io::copy_bidirectional(&mut inner, &mut outer).await);
                    }
                });
            }
        })))
    }
}

/// Passes connections on, until it is dropped.
#[derive(Debug)]
pub struct Door(JoinHandle<()>);

impl Drop for Door {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The hash of a certificate, as an OVSNode has it.
fn sha256(certificate: &[u8]) -> String {
    format!("{:x}", Sha256::digest(certificate))
}

/// Who asks an agent.
#[derive(Debug, Clone)]
pub struct Asker {
    /// Where the agent is; out here, if in no other network.
    pub network: Option<Network>,
    /// Its address there.
    pub address: SocketAddr,
    /// The certificate that is taken.
    pub sha256: String,
    /// What is shown; nothing without it.
    pub token: Option<String>,
}

/// An answer that is being read. The connection ends with it.
#[derive(Debug)]
pub struct Answer {
    response: Response<Incoming>,
    unread: Vec<u8>,
    connection: JoinHandle<()>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Asker {
    /// The same with another token.
    #[allow(dead_code, reason = "the bench has one")]
    pub fn with_token(&self, token: Option<&str>) -> Self {
        Self {
            token: token.map(str::to_owned),
            ..self.clone()
        }
    }

    /// Asks, and gives the answer as soon as it begins.
    pub async fn ask(&self, method: Method, target: &str) -> io::Result<Answer> {
        let stream = match &self.network {
            Some(network) => network.connect(self.address)?,
            None => tokio::net::TcpStream::connect(self.address).await?,
        };
        let pin = self.sha256.clone();
        let config = cobalt_wire::pinned(DEFAULT_VERSIONS, move |found| sha256(found) == pin);
        let config = config.map_err(io::Error::other)?.with_no_client_auth();
        let name = ServerName::from(self.address.ip());
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = connector.connect(name, stream).await;
        let stream = stream.map_err(|error| match AnotherCertificate::of(&error) {
            Some(found) => io::Error::other(format!("another certificate: {}", sha256(&found.0))),
            None => error,
        })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        let connection = tokio::spawn(async move { drop(connection.await) });
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header("host", "agent");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request
            .body(Empty::<Bytes>::new())
            .map_err(io::Error::other)?;
        let response = sender.send_request(request).await;
        Ok(Answer {
            response: response.map_err(io::Error::other)?,
            unread: Vec::new(),
            connection,
        })
    }
}

/// A packet of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(dead_code, reason = "the bench wants to know only that it came")]
pub struct Captured {
    /// When, since 1970.
    pub time: Duration,
    /// How long it was.
    pub length: u32,
    /// What there is of it.
    pub frame: Vec<u8>,
}

#[allow(dead_code, reason = "the bench reads the first packet only")]
impl Answer {
    /// How it went.
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// All of it.
    pub async fn text(mut self) -> io::Result<String> {
        while self.more().await? {}
        String::from_utf8(std::mem::take(&mut self.unread)).map_err(io::Error::other)
    }

    /// The beginning of a pcap file: how much of each packet there is.
    pub async fn begin(&mut self) -> io::Result<u32> {
        let header = self.take(24).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if header.get(..4) != Some(&[0x4d, 0x3c, 0xb2, 0xa1]) {
            return Err(io::Error::other("this is no pcap"));
        }
        Ok(word(&header, 16))
    }

    /// The next packet; none at the end.
    pub async fn packet(&mut self) -> io::Result<Option<Captured>> {
        let Some(header) = self.take(16).await? else {
            return Ok(None);
        };
        let (seconds, nanoseconds) = (word(&header, 0), word(&header, 4));
        let kept = usize::try_from(word(&header, 8)).map_err(io::Error::other)?;
        let frame = self.take(kept).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(Some(Captured {
            time: Duration::new(seconds.into(), nanoseconds),
            length: word(&header, 12),
            frame,
        }))
    }

    /// All packets up to the end.
    pub async fn packets(&mut self) -> io::Result<Vec<Captured>> {
        let mut all = Vec::new();
        while let Some(packet) = self.packet().await? {
            all.push(packet);
        }
        Ok(all)
    }

    /// So many bytes; none at the end.
    async fn take(&mut self, count: usize) -> io::Result<Option<Vec<u8>>> {
        while self.unread.len() < count {
            if !self.more().await? {
                return match self.unread.len() {
                    0 => Ok(None),
                    _ => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
        let rest = self.unread.split_off(count);
        Ok(Some(std::mem::replace(&mut self.unread, rest)))
    }

    async fn more(&mut self) -> io::Result<bool> {
        let Some(frame) = self.response.body_mut().frame().await else {
            return Ok(false);
        };
        let frame = frame.map_err(io::Error::other)?;
        if let Some(data) = frame.data_ref() {
            self.unread.extend_from_slice(data);
        }
        Ok(true)
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let part = bytes.get(at..).and_then(|rest| rest.first_chunk());
    part.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
