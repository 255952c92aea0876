//! Doors between the operator and Nova and Placement: they keep a record of what goes through, and
//! can answer in the service's place, keep silent, or end the operator in the middle of a call.

use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use cobalt_lab::testing::free_port;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use crate::cloud::Cloud;

/// A call that came.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub method: String,
    pub path: String,
    pub body: Value,
    /// What the service answered. Nothing: the call did not get through.
    pub status: Option<u16>,
}

impl Call {
    /// Whether it changes something. A console is read by a POST.
    pub fn writes(&self) -> bool {
        self.method != "GET" && self.body.get("os-getConsoleOutput").is_none()
    }

    /// Whether the service did it.
    pub fn worked(&self) -> bool {
        self.status.is_some_and(|status| status < 300)
    }

    /// A method, and a part of the path.
    pub fn is(&self, method: &str, part: &str) -> bool {
        self.method == method && self.path.contains(part)
    }

    pub fn creates_server(&self) -> bool {
        self.method == "POST" && self.path.ends_with("/servers")
    }

    pub fn deletes_server(&self) -> bool {
        self.is("DELETE", "/servers/")
    }

    /// Whether it lets the scheduler use a service.
    pub fn enables(&self) -> bool {
        self.is("PUT", "/os-services/") && self.body["status"] == "enabled"
    }

    /// Whether it speaks of this.
    pub fn names(&self, what: &str) -> bool {
        self.path.contains(what) || self.body.to_string().contains(what)
    }
}

/// What becomes of a call.
pub enum Fate {
    /// It goes through.
    Through,
    /// It is answered here.
    Answer(u16, &'static str, Vec<(&'static str, &'static str)>),
    /// It goes through, and then this happens instead of the answer.
    DoneThen(Box<dyn FnOnce() + Send>),
    /// No answer ever.
    Never,
}

type Rule = Box<dyn FnMut(&Call) -> Fate + Send>;

struct Shared {
    to: String,
    client: hyper_util::client::legacy::Client<HttpConnector, Full<Bytes>>,
    calls: Arc<Mutex<Vec<Call>>>,
    rule: Arc<Mutex<Rule>>,
}

/// One door before Nova and one before Placement, with one rule and one record.
#[derive(Clone)]
pub struct Doors {
    nova: String,
    placement: String,
    calls: Arc<Mutex<Vec<Call>>>,
    rule: Arc<Mutex<Rule>>,
}

impl Doors {
    /// Before both, open.
    pub async fn before(cloud: &Cloud) -> Self {
        let shut = ShutDoors::before(cloud).await;
        shut.build().await
    }

    /// What the operator is told.
    pub fn environment(&self) -> [(&str, &str); 2] {
        [
            ("OS_COMPUTE_ENDPOINT_OVERRIDE", &self.nova),
            ("OS_PLACEMENT_ENDPOINT_OVERRIDE", &self.placement),
        ]
    }

    /// From now on.
    pub fn rule(&self, rule: impl FnMut(&Call) -> Fate + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    /// Everything goes through again.
    pub fn open(&self) {
        self.rule(|_| Fate::Through);
    }

    /// What came so far, in the order in which it was answered.
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// The changes that the services made.
    pub fn changes(&self) -> Vec<Call> {
        let mut calls = self.calls();
        calls.retain(|call| call.writes() && call.worked());
        calls
    }

    /// Forgets what came so far.
    pub fn forget(&self) {
        self.calls.lock().unwrap().clear();
    }
}

/// Doors that are not there yet: whoever comes finds nobody who listens.
pub struct ShutDoors {
    to: [String; 2],
    ports: [std::net::SocketAddr; 2],
}

impl ShutDoors {
    pub async fn before(cloud: &Cloud) -> Self {
        Self {
            to: [
                cloud.endpoint("compute").await,
                cloud.endpoint("placement").await,
            ],
            ports: [free_port(), free_port()],
        }
    }

    /// What the operator is told.
    pub fn urls(&self) -> [String; 2] {
        self.ports.map(|port| format!("http://{port}"))
    }

    /// From now on somebody listens.
    pub async fn build(self) -> Doors {
        let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
        let rule: Arc<Mutex<Rule>> = Arc::new(Mutex::new(Box::new(|_| Fate::Through)));
        let [nova, placement] = self.urls();
        for (to, port) in self.to.into_iter().zip(self.ports) {
            let shared = Arc::new(Shared {
                to,
                client: hyper_util::client::legacy::Client::builder(TokioExecutor::new())
                    .build_http(),
                calls: Arc::clone(&calls),
                rule: Arc::clone(&rule),
            });
            let listener = tokio::net::TcpListener::bind(port).await.unwrap();
            let router = axum::Router::new().fallback(pass).with_state(shared);
            tokio::spawn(async move { axum::serve(listener, router).await });
        }
        Doors {
            nova,
            placement,
            calls,
            rule,
        }
    }
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    // What has come in is brought to its end, whether or not the caller lives to see it.
    tokio::spawn(answer(shared, request)).await.unwrap()
}

async fn answer(shared: Arc<Shared>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let path = head
        .uri
        .path_and_query()
        .map_or("/", |path| path.as_str())
        .to_owned();
    let mut call = Call {
        method: head.method.to_string(),
        path,
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
        status: None,
    };
    let fate = (shared.rule.lock().unwrap())(&call);
    match fate {
        Fate::Through => forward(&shared, head, body, call).await,
        Fate::Answer(status, text, headers) => {
            shared.calls.lock().unwrap().push(call);
            let mut answer = Response::builder().status(status);
            for (name, value) in headers {
                answer = answer.header(name, value);
            }
            answer.body(Body::from(text)).unwrap()
        }
        Fate::DoneThen(then) => {
            forward(&shared, head, body, call).await;
            then();
            std::future::pending().await
        }
        Fate::Never => {
            call.status = None;
            shared.calls.lock().unwrap().push(call);
            std::future::pending().await
        }
    }
}

async fn forward(
    shared: &Shared,
    head: http::request::Parts,
    body: Bytes,
    mut call: Call,
) -> Response {
    let mut request = http::Request::builder()
        .method(head.method)
        .uri(format!("{}{}", shared.to, call.path));
    for (name, value) in &head.headers {
        if name != http::header::HOST {
            request = request.header(name, value);
        }
    }
    let answer = shared
        .client
        .request(request.body(Full::from(body)).unwrap())
        .await;
    match answer {
        Ok(answer) => {
            let (head, body) = answer.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            call.status = Some(head.status.as_u16());
            shared.calls.lock().unwrap().push(call);
            let mut response = Response::new(Body::from(body));
            *response.status_mut() = head.status;
            for (name, value) in &head.headers {
                if name != http::header::TRANSFER_ENCODING && name != http::header::CONTENT_LENGTH {
                    response.headers_mut().append(name, value.clone());
                }
            }
            response
        }
        Err(_) => Response::builder().status(502).body(Body::empty()).unwrap(),
    }
}
