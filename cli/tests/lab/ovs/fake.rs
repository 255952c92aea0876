//! `FakeAgent` stands in for the agent of a node. TLS and tokens are real: it has a certificate of
//! its own, and asks the API server about each token as the agent does. What it answers is what a
//! test wants.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use percent_encoding::percent_decode_str;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// What it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The method and the path.
    pub what: String,
    pub arguments: BTreeMap<String, String>,
    /// Whose token it was shown.
    pub user: String,
    /// Whom that token is for, and nobody else.
    pub audience: String,
}

/// What it does when it is asked.
pub enum Act {
    Json(u16, Value),
    /// Sends something that may not be JSON.
    Text(u16, &'static str),
    /// Sends what a test sends. An error cuts the connection in the middle.
    Packets(mpsc::Receiver<io::Result<Bytes>>),
    /// Hangs up without an answer.
    HangUp,
}

type Plan = dyn Fn(&Call) -> Act + Send + Sync;
/// What happens before the first handshake.
type Before = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is seen of it.
#[derive(Debug, Default)]
struct Seen {
    connections: AtomicU32,
    calls: Mutex<Vec<Call>>,
}

pub struct FakeAgent {
    address: SocketAddr,
    sha256: String,
    seen: Arc<Seen>,
    /// It ends with the test.
    _tasks: JoinSet<()>,
}

impl FakeAgent {
    /// Starts one that answers like this.
    pub async fn start(
        client: &Client,
        plan: impl Fn(&Call) -> Act + Send + Sync + 'static,
    ) -> Self {
        let (_, nothing) = oneshot::channel();
        Self::start_after(client, nothing, plan).await
    }

    /// Starts one that does something when somebody has connected, before the first handshake.
    pub async fn start_after(
        client: &Client,
        before: oneshot::Receiver<Before>,
        plan: impl Fn(&Call) -> Act + Send + Sync + 'static,
    ) -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["cobalt-ovs-agent".into()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let plan: Arc<Plan> = Arc::new(plan);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(
            listener,
            TlsAcceptor::from(Arc::new(config)),
            before,
            client.clone(),
            Arc::clone(&seen),
            plan,
        ));
        Self {
            address,
            sha256: format!("{:x}", Sha256::digest(made.cert.der())),
            seen,
            _tasks: tasks,
        }
    }

    /// What its OVSNode says of it.
    pub fn diagnostics(&self) -> Value {
        json!({ "url": format!("https://{}", self.address), "certificateSha256": self.sha256 })
    }

    /// What it was asked so far.
    pub fn calls(&self) -> Vec<Call> {
        self.seen.calls.lock().unwrap().clone()
    }

    /// The only thing that it was asked.
    #[track_caller]
    pub fn call(&self) -> Call {
        let calls = self.calls();
        assert_eq!(calls.len(), 1, "{calls:?}");
        calls[0].clone()
    }

    /// How often somebody has connected.
    pub fn connections(&self) -> u32 {
        self.seen.connections.load(Ordering::Relaxed)
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    before: oneshot::Receiver<Before>,
    client: Client,
    seen: Arc<Seen>,
    plan: Arc<Plan>,
) {
    let mut before = Some(before);
    let mut tasks = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        seen.connections.fetch_add(1, Ordering::Relaxed);
        if let Some(before) = before.take()
            && let Ok(act) = before.await
        {
            act.await;
        }
        let acceptor = acceptor.clone();
        let (client, seen, plan) = (client.clone(), Arc::clone(&seen), Arc::clone(&plan));
        tasks.spawn(async move {
            // A caller who does not trust it goes away.
            let Ok(stream) = acceptor.accept(stream).await else {
                return;
            };
            let service = service_fn(move |request| {
                answer(
                    client.clone(),
                    Arc::clone(&seen),
                    Arc::clone(&plan),
                    request,
                )
            });
            let serving = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            // An answer that was cut is an error here.
            serving.await.ok();
        });
    }
}

type Body = BoxBody<Bytes, io::Error>;

async fn answer(
    client: Client,
    seen: Arc<Seen>,
    plan: Arc<Plan>,
    request: Request<Incoming>,
) -> io::Result<Response<Body>> {
    let Some((user, audience)) = user(&client, &request).await else {
        let refusal = json!({ "error": "the token is not for an agent" });
        return Ok(respond(401, refusal.to_string()));
    };
    let call = Call {
        what: format!("{} {}", request.method(), request.uri().path()),
        arguments: arguments(request.uri().query().unwrap_or_default()),
        user,
        audience,
    };
    seen.calls.lock().unwrap().push(call.clone());
    match plan(&call) {
        Act::Json(code, value) => Ok(respond(code, value.to_string())),
        Act::Text(code, text) => Ok(respond(code, text.to_owned())),
        Act::Packets(packets) => {
            let frames = futures::stream::unfold(packets, |mut packets| async {
                let next: io::Result<Bytes> = packets.recv().await?;
                Some((next.map(Frame::data), packets))
            });
            let given = |name: &str, default: &str| {
                let given = call.arguments.get(name).cloned();
                given.unwrap_or_else(|| default.to_owned())
            };
            let response = Response::builder()
                .header("content-type", "application/vnd.tcpdump.pcap")
                .header("x-capture-seconds", given("seconds", "30"))
                .header("x-capture-bytes", given("bytes", "16777216"));
            Ok(response.body(StreamBody::new(frames).boxed()).unwrap())
        }
        Act::HangUp => Err(io::Error::other("as the test wants")),
    }
}

fn respond(code: u16, text: String) -> Response<Body> {
    let body = Full::new(Bytes::from(text)).map_err(|never: Infallible| match never {});
    let response = Response::builder()
        .status(code)
        .header("content-type", "application/json");
    response.body(body.boxed()).unwrap()
}

/// Whose token it is, and whom it is for, if that is one agent and the API server says so.
async fn user(client: &Client, request: &Request<Incoming>) -> Option<(String, String)> {
    let token = request.headers().get("authorization")?.to_str().ok()?;
    let token = token.strip_prefix("Bearer ")?;
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    let [Value::String(audience)] = claims["aud"].as_array()?.as_slice() else {
        return None;
    };
    let audience = audience.clone();
    let review = TokenReview {
        spec: TokenReviewSpec {
            token: token.to_owned(),
            audiences: Some(vec![audience.clone()]),
        },
        ..TokenReview::default()
    };
    let reviews: Api<TokenReview> = Api::all(client.clone());
    let reviewed = reviews.create(&PostParams::default(), &review).await;
    let status = reviewed.unwrap().status?;
    let is_for_us = status.audiences?.contains(&audience);
    let is_known = status.authenticated? && is_for_us;
    Some((status.user?.username.filter(|_| is_known)?, audience))
}

fn arguments(query: &str) -> BTreeMap<String, String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let decode = |text: &str| percent_decode_str(text).decode_utf8().unwrap().into_owned();
    pairs
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}
