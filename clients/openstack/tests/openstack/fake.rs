//! A fake cloud: one small HTTP server that answers as a test tells it to. It logs everybody in.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cobalt_openstack::{Client, Config, Credentials, Reference, Secret, Source};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

/// A request that the fake got.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    /// With the query.
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Value,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        all.find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

/// What it does then.
#[derive(Debug, Clone)]
pub enum Act {
    /// Status, further headers, body.
    Answer(u16, Vec<(&'static str, String)>, String),
    /// Says nothing, ever.
    Silence,
    /// Promises a long body and hangs up in the middle.
    Cut,
    /// A body that does not end.
    Endless,
}

impl Act {
    pub fn json(status: u16, body: &Value) -> Self {
        Self::Answer(status, Vec::new(), body.to_string())
    }
}

type Handler = dyn Fn(&Seen) -> Act + Send + Sync;

pub struct Fake {
    pub url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fake {
    /// Logins are answered by the fake itself, everything else by the handler.
    pub async fn start(handler: impl Fn(&Seen) -> Act + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let logins = AtomicUsize::new(0);
        let base = url.clone();
        Self::serve(listener, url, move |seen| {
            if seen.path == "/v3/auth/tokens" {
                let number = logins.fetch_add(1, Ordering::SeqCst) + 1;
                return login(&base, number, 3600);
            }
            handler(seen)
        })
    }

    /// The handler answers everything, logins too.
    pub fn serve(
        listener: TcpListener,
        url: String,
        handler: impl Fn(&Seen) -> Act + Send + Sync + 'static,
    ) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let handler: Arc<Handler> = Arc::new(handler);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(converse(stream, log.clone(), handler.clone()));
            }
        });
        Self { url, seen, task }
    }

    /// Requests other than logins.
    pub fn seen(&self) -> Vec<Seen> {
        let mut seen = self.seen.lock().unwrap().clone();
        seen.retain(|seen| seen.path != "/v3/auth/tokens");
        seen
    }

    pub fn logins(&self) -> usize {
        let all = self.seen.lock().unwrap().len();
        all - self.seen().len()
    }

    /// What the last login said.
    pub fn last_login(&self) -> Value {
        let seen = self.seen.lock().unwrap();
        let last = seen.iter().rfind(|seen| seen.path == "/v3/auth/tokens");
        last.unwrap().body.clone()
    }

    pub fn credentials(&self) -> Credentials {
        let domain = Reference::Id("default".into());
        Credentials::password(
            &self.url,
            Reference::named_in("admin", domain.clone()),
            Secret::new("admin"),
            Reference::named_in("admin", domain),
        )
    }

    pub fn config(&self) -> Config {
        Config {
            deadline: Duration::from_secs(20),
            ..Config::new(Source::given(self.credentials()))
        }
    }

    pub fn client(&self) -> Client {
        Client::new(self.config())
    }
}

/// A token with a catalog that leads back here.
pub fn login(base: &str, number: usize, life: i64) -> Act {
    let issued: jiff::Timestamp = "2001-01-01T00:00:00Z".parse().unwrap();
    let expires = issued + jiff::SignedDuration::from_secs(life);
    let entry = |kind: &str, path: &str| {
        json!({ "type": kind, "endpoints": [
            { "interface": "public", "region_id": "one", "url": format!("{base}{path}") },
        ]})
    };
    let body = json!({ "token": {
        "issued_at": issued.to_string(), "expires_at": expires.to_string(),
        "project": { "id": "p1" }, "user": { "id": "u1" },
        "catalog": [
            entry("compute", "/compute/v2.1"), entry("placement", "/placement"),
            entry("image", "/image"), entry("network", "/network"),
            entry("volumev3", "/volume/v3/p1"),
        ],
    }});
    let token = vec![("X-Subject-Token", format!("token-{number}"))];
    Act::Answer(201, token, body.to_string())
}

pub async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    log: Arc<Mutex<Vec<Seen>>>,
    handler: Arc<Handler>,
) {
    while let Some(seen) = read(&mut stream).await {
        log.lock().unwrap().push(seen.clone());
        match handler(&seen) {
            Act::Silence => std::future::pending().await,
            Act::Answer(status, headers, body) => {
                let mut text = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n", body.len());
                for (name, value) in headers {
                    text.push_str(&format!("{name}: {value}\r\n"));
                }
                text.push_str("\r\n");
                text.push_str(&body);
                if stream.write_all(text.as_bytes()).await.is_err() {
                    return;
                }
            }
            Act::Cut => {
                let text = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"servers\": [";
                drop(stream.write_all(text.as_bytes()).await);
                return;
            }
            Act::Endless => {
                let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
                let mut failed = stream.write_all(head.as_bytes()).await.is_err();
                while !failed {
                    failed = stream.write_all(chunk.as_bytes()).await.is_err();
                }
                return;
            }
        }
    }
}

async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Option<Seen> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    Some(Seen {
        method: first.next()?.to_owned(),
        path: first.next()?.to_owned(),
        headers,
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    })
}
