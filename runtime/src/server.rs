//! The one loop that serves HTTP, for health, metrics and diagnostics alike, on a port that anybody
//! may connect to.
//!
//! Clients cannot use it up:
//! - There are at most [`Limits::connections`]. One more pushes out the connection that has waited for
//!   its client the longest; a connection with a request in progress is not pushed out. So a probe is
//!   answered however many connections others hold open.
//! - A client that does not send a whole request head within [`Limits::head`] is dropped, also between
//!   two requests.
//! - A client that reads nothing for [`Limits::stall`] while there is something to read is dropped.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::{Backoff, chain};

/// The longest head of a request.
const MAX_HEAD: usize = 64 * 1024;
/// How long requests may take to end when the process does.
const GOODBYE: Duration = Duration::from_secs(5);

/// What clients may use of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The connections at the same time.
    pub connections: usize,
    /// How long a client may take for a TLS handshake, and then for each request head, counted from the
    /// end of the request before.
    pub head: Duration,
    /// How long a client may read nothing of its answer.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            head: Duration::from_secs(10),
            stall: Duration::from_secs(20),
        }
    }
}

/// Serves a router until it is cancelled. `greet` does the handshake of a new connection.
pub async fn serve_on<Greet, Greeted, Stream>(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    greet: Greet,
    cancel: CancellationToken,
) where
    Greet: Fn(Socket) -> Greeted,
    Greeted: Future<Output = io::Result<Stream>> + Send + 'static,
    Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let places = Places::default();
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    let mut connections = JoinSet::new();
    let accepting = async {
        loop {
            while connections.try_join_next().is_some() {}
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(error = chain(&error), "failed to accept a connection");
                    tokio::time::sleep(backoff.next_wait()).await;
                    continue;
                }
            };
            backoff.reset();
            let Some(seat) = places.take(limits.connections) else {
                tracing::debug!("refused a connection: all others have a request in progress");
                continue;
            };
            // Short answers and single packets of a stream are not held back.
            drop(stream.set_nodelay(true));
            let socket = Socket {
                stream,
                stall: limits.stall,
                blocked: None,
                place: Arc::clone(&seat.place),
            };
            let greeting = greet(socket);
            connections.spawn(connection(
                greeting,
                router.clone(),
                limits,
                seat,
                cancel.clone(),
            ));
        }
    };
    cancel.run_until_cancelled(accepting).await;
    let drain = async { while connections.join_next().await.is_some() {} };
    // Who still has not got the answer then does not get it.
    drop(tokio::time::timeout(GOODBYE, drain).await);
}

async fn connection<Stream>(
    greeting: impl Future<Output = io::Result<Stream>>,
    router: Router,
    limits: Limits,
    seat: Seat,
    cancel: CancellationToken,
) where
    Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let place = Arc::clone(&seat.place);
    let serve = async {
        let stream = match tokio::time::timeout(limits.head, greeting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::debug!(error = chain(&error), "a handshake failed");
                return;
            }
            Err(_) => {
                tracing::debug!("a client did not complete its handshake in time");
                return;
            }
        };
        let answers = tower::service_fn(move |request: Request<hyper::body::Incoming>| {
            let serving = Serving::begin(&place);
            let answer = router.clone().oneshot(request.map(Body::new));
            async move {
                let answer: Result<Response, std::convert::Infallible> = answer.await;
                answer.map(|answer| answer.map(|body| Answer { body, serving }))
            }
        });
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(answers));
        let mut served = std::pin::pin!(served);
        let ended = tokio::select! {
            ended = served.as_mut() => ended,
            () = cancel.cancelled() => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(error = chain(&error), "a connection ended");
        }
    };
    if seat.pushed_out.run_until_cancelled(serve).await.is_none() {
        tracing::debug!("closed an idle connection for a new one");
    }
}

/// What is known of a connection by those who want its place.
#[derive(Debug)]
struct Place(Mutex<Progress>);

#[derive(Debug)]
struct Progress {
    /// A request was read and its answer has not been produced to its end.
    serving: bool,
    /// Since when no request is in progress.
    idle: Instant,
    /// Since when the client does not read.
    blocked: Option<Instant>,
}

impl Place {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when it is the client's turn.
    fn waits_for_client(&self) -> Option<Instant> {
        let progress = self.lock();
        match progress.blocked {
            Some(since) => Some(since),
            None => (!progress.serving).then_some(progress.idle),
        }
    }
}

/// All connections, in the order in which they came.
#[derive(Debug, Clone, Default)]
struct Places(Arc<Mutex<Connections>>);

/// Each with the token that closes it.
type Connections = BTreeMap<u64, (Arc<Place>, CancellationToken)>;

impl Places {
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection. `None` if all are taken and nobody can be pushed out.
    fn take(&self, most: usize) -> Option<Seat> {
        let mut all = self.lock();
        if all.len() >= most.max(1) {
            let waiting = all.iter().filter_map(|(number, (place, _))| {
                place.waits_for_client().map(|since| (since, *number))
            });
            let (_, longest) = waiting.min()?;
            if let Some((_, pushed_out)) = all.remove(&longest) {
                pushed_out.cancel();
            }
        }
        let number = all.last_key_value().map_or(0, |(last, _)| last + 1);
        let place = Arc::new(Place(Mutex::new(Progress {
            serving: false,
            idle: Instant::now(),
            blocked: None,
        })));
        let pushed_out = CancellationToken::new();
        all.insert(number, (Arc::clone(&place), pushed_out.clone()));
        Some(Seat {
            places: self.clone(),
            number,
            place,
            pushed_out,
        })
    }
}

/// A connection's own place. It is free again when this is dropped.
#[derive(Debug)]
struct Seat {
    places: Places,
    number: u64,
    place: Arc<Place>,
    pushed_out: CancellationToken,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut all = self.places.lock();
        // Somebody else may have got the number of one that was pushed out.
        if all
            .get(&self.number)
            .is_some_and(|(place, _)| Arc::ptr_eq(place, &self.place))
        {
            all.remove(&self.number);
        }
    }
}

/// A request is in progress while this lives.
#[derive(Debug)]
struct Serving(Arc<Place>);

impl Serving {
    fn begin(place: &Arc<Place>) -> Self {
        place.lock().serving = true;
        Self(Arc::clone(place))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut progress = self.0.lock();
        progress.serving = false;
        progress.idle = Instant::now();
    }
}

/// The body of an answer. The request is in progress until the last of it was taken.
struct Answer {
    body: Body,
    #[allow(dead_code)] // It is there to be dropped.
    serving: Serving,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The socket of a client, which fails when the client does not read for too long.
#[derive(Debug)]
pub struct Socket {
    stream: TcpStream,
    stall: Duration,
    blocked: Option<Pin<Box<Sleep>>>,
    place: Arc<Place>,
}

impl Socket {
    /// Watches how long a write waits for the client.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            if self.blocked.take().is_some() {
                self.place.lock().blocked = None;
            }
            return written;
        }
        let (stall, place) = (self.stall, &self.place);
        let deadline = self.blocked.get_or_insert_with(|| {
            place.lock().blocked = Some(Instant::now());
            Box::pin(tokio::time::sleep(stall))
        });
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not read its answer",
        )))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.watch(context, written)
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

#[cfg(test)]
mod tests;
