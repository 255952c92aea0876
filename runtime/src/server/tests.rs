use axum::routing::get;
use futures::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::*;

/// Longer than any test runs.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);
const SHORT: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(60);

const LIMITS: Limits = Limits {
    connections: 4,
    head: NEVER,
    stall: NEVER,
};

struct Server {
    address: std::net::SocketAddr,
    _stop: tokio_util::sync::DropGuard,
    _tasks: JoinSet<()>,
}

impl Server {
    async fn start(limits: Limits, router: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let greet = |socket| std::future::ready(Ok::<Socket, io::Error>(socket));
        tasks.spawn(serve_on(listener, router, limits, greet, stop.clone()));
        Self {
            address,
            _stop: stop.drop_guard(),
            _tasks: tasks,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Asks, and gives the whole answer.
    async fn ask(&self, path: &str) -> String {
        let mut stream = self.connect().await;
        send(&mut stream, path).await;
        rest(stream).await
    }
}

async fn send(stream: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

/// What comes until the server closes the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut text)).await;
    // A reset is an end, too.
    drop(read.expect("the server never closed the connection"));
    String::from_utf8(text).unwrap()
}

fn health() -> Router {
    Router::new().route("/healthz", get(async || "ok"))
}

#[tokio::test]
async fn many_idle_connections_do_not_keep_healthz_from_answering() {
    let server = Server::start(LIMITS, health()).await;
    let mut idle = Vec::new();
    for _ in 0..50 {
        idle.push(server.connect().await);
    }
    assert!(server.ask("/healthz").await.ends_with("ok"));
    // There were never more than the limit: the others were closed, the oldest first.
    let closed = idle.len() + 1 - LIMITS.connections;
    for stream in idle.drain(..closed) {
        assert_eq!(rest(stream).await, "");
    }
    // The youngest ones are as good as ever.
    let mut last = idle.pop().unwrap();
    send(&mut last, "/healthz").await;
    assert!(rest(last).await.ends_with("ok"));
}

#[tokio::test]
async fn a_client_that_never_sends_its_head_is_dropped() {
    let limits = Limits {
        head: SHORT,
        ..LIMITS
    };
    let server = Server::start(limits, health()).await;
    let mut slow = server.connect().await;
    slow.write_all(b"GET /healthz HTTP/1.1\r\nHo")
        .await
        .unwrap();
    assert!(!rest(slow).await.contains("200 OK"));
    // And so is one that stays after its first request. It has time to send that one.
    let limits = Limits {
        head: Duration::from_millis(500),
        ..LIMITS
    };
    let server = Server::start(limits, health()).await;
    let mut lasting = server.connect().await;
    let request = b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n";
    lasting.write_all(request).await.unwrap();
    assert!(rest(lasting).await.contains("200 OK"));
}

#[tokio::test]
async fn a_client_that_never_completes_its_handshake_is_dropped() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits {
        head: SHORT,
        ..LIMITS
    };
    let never = |socket: Socket| async move {
        let _socket = socket;
        std::future::pending::<io::Result<Socket>>().await
    };
    let mut tasks = JoinSet::new();
    let stop = CancellationToken::new();
    tasks.spawn(serve_on(listener, health(), limits, never, stop));
    let stream = TcpStream::connect(address).await.unwrap();
    assert_eq!(rest(stream).await, "");
}

/// A route whose answer has no end, and what is told when the answer is given up.
fn endless() -> (Router, mpsc::Receiver<()>) {
    let (told, given_up) = mpsc::channel(1);
    let told = Arc::new(Mutex::new(Some(told)));
    let route = get(async move || {
        let told = told.lock().unwrap().take();
        let chunk = Bytes::from(vec![b'x'; 1 << 20]);
        Body::from_stream(stream::repeat_with(move || {
            let _held = &told;
            Ok::<_, io::Error>(chunk.clone())
        }))
    });
    (Router::new().route("/endless", route), given_up)
}

#[tokio::test]
async fn a_client_that_never_reads_is_dropped() {
    let (router, mut given_up) = endless();
    let limits = Limits {
        stall: SHORT,
        ..LIMITS
    };
    let server = Server::start(limits, router).await;
    let mut mute = server.connect().await;
    send(&mut mute, "/endless").await;
    // The sender is dropped with the body.
    let told = tokio::time::timeout(PATIENCE, given_up.recv()).await;
    assert_eq!(told.expect("the answer was never given up"), None);
}

#[tokio::test]
async fn clients_that_do_not_read_are_pushed_out_by_new_ones() {
    let (router, mut given_up) = endless();
    let limits = Limits {
        connections: 1,
        ..LIMITS
    };
    let server = Server::start(limits, router.merge(health())).await;
    let mut mute = server.connect().await;
    send(&mut mute, "/endless").await;
    // Before its request is read the connection is idle, and pushed out as such.
    mute.read_u8().await.unwrap();
    // Until the socket is full the request counts as in progress, and others are refused.
    let answered = async { while !server.ask("/healthz").await.ends_with("ok") {} };
    let answered = tokio::time::timeout(PATIENCE, answered).await;
    answered.expect("/healthz never answered");
    let told = tokio::time::timeout(PATIENCE, given_up.recv()).await;
    assert_eq!(told.expect("the answer was never given up"), None);
}

#[tokio::test]
async fn a_request_in_progress_is_not_pushed_out() {
    let (go, gone) = mpsc::channel::<()>(1);
    let (begin, mut begun) = mpsc::channel::<()>(1);
    let gone = Arc::new(tokio::sync::Mutex::new(gone));
    let slow = get(async move || {
        begin.send(()).await.unwrap();
        gone.lock().await.recv().await;
        "done"
    });
    let limits = Limits {
        connections: 1,
        ..LIMITS
    };
    let server = Server::start(limits, Router::new().route("/slow", slow)).await;
    let mut first = server.connect().await;
    send(&mut first, "/slow").await;
    begun.recv().await.unwrap();
    assert_eq!(rest(server.connect().await).await, "");
    go.send(()).await.unwrap();
    assert!(rest(first).await.ends_with("done"));
}
