//! Whether changes may be sent, asked as late as possible: when bytes are written to a connection.
//!
//! A call waits for its budget, for a token, for a retry and for a connection. Whoever may change
//! things only for a while, as the leader of several processes, cannot ask before the call.
//!
//! Changes have connections of their own, so that every byte that leaves on one belongs to a change.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use tower::Service;

/// Says whether changes may be sent, now.
#[derive(Clone)]
pub struct Gate(Arc<dyn Fn() -> bool + Send + Sync>);

impl Gate {
    /// `is_open` is asked often, and must not block.
    pub fn new(is_open: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_open))
    }

    pub(crate) fn is_open(&self) -> bool {
        (self.0)()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gate(open: {})", self.is_open())
    }
}

/// Nothing was written, because the gate is closed.
#[derive(Debug, thiserror::Error)]
#[error("the gate is closed")]
struct Closed;

/// Whether an error came about because the gate is closed. Then the request did not leave as a whole, and
/// a service does nothing with a part of one.
pub(crate) fn is_closed(error: &(dyn std::error::Error + 'static)) -> bool {
    let inside = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    error.is::<Closed>()
        || inside.is_some_and(|inside| is_closed(inside))
        || error.source().is_some_and(is_closed)
}

/// Makes connections that nothing is written to while the gate is closed.
#[derive(Debug, Clone)]
pub(crate) struct Gated<T> {
    pub connector: T,
    pub gate: Option<Gate>,
}

impl<T> Service<Uri> for Gated<T>
where
    T: Service<Uri>,
    T::Future: Send + 'static,
{
    type Response = GatedStream<T::Response>;
    type Error = T::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let (connecting, gate) = (self.connector.call(to), self.gate.clone());
        Box::pin(async move {
            let stream = connecting.await?;
            Ok(GatedStream { stream, gate })
        })
    }
}

#[derive(Debug)]
pub(crate) struct GatedStream<T> {
    stream: T,
    gate: Option<Gate>,
}

impl<T> GatedStream<T> {
    fn check(&self) -> io::Result<()> {
        match &self.gate {
            Some(gate) if !gate.is_open() => Err(io::Error::other(Closed)),
            _ => Ok(()),
        }
    }
}

impl<T: Connection> Connection for GatedStream<T> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

impl<T: Read + Unpin> Read for GatedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<T: Write + Unpin> Write for GatedStream<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
