//! The client: one call, its deadline, its retries.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};

use crate::breaker::{BreakerConfig, BreakerState};
use crate::credentials::Scope;
use crate::decode::{Body, body};
use crate::error::{Call, Error, Result};
use crate::gate::Gate;
use crate::http::Answer;
use crate::lanes::{Deadline, Lanes};
use crate::observer::{Observer, Silent};
use crate::query::Query;
use crate::refusal::request_id;
use crate::service::Service;
use crate::session::{Login, Session};
use crate::source::Source;

pub(crate) const USER_AGENT: &str = concat!("cobalt-openstack/", env!("CARGO_PKG_VERSION"));
/// How often an idempotent call is tried in all.
const ATTEMPTS: u32 = 4;
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// How a client behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// Who to be.
    pub credentials: Source,
    /// How long a call may take, with its retries and a login if it needs one. A list has this
    /// time for each page.
    pub deadline: Duration,
    /// How many calls of one service may be under way.
    pub budget: usize,
    /// When a service is left alone.
    pub breaker: BreakerConfig,
    /// How many things a page of a list has; Nova gives no more than 1000.
    pub page: u32,
    /// The largest answer that is read, in bytes.
    pub largest: usize,
    /// Is told about each request.
    pub observer: Arc<dyn Observer>,
    /// Whether changes may be sent; without one, always. A change that it stops is [`Error::NotAllowed`].
    pub gate: Option<Gate>,
}

impl Config {
    /// What is right for an operator.
    #[must_use]
    pub fn new(credentials: Source) -> Self {
        Self {
            credentials,
            deadline: Duration::from_secs(30),
            budget: 8,
            breaker: BreakerConfig::default(),
            page: 500,
            largest: 64 << 20,
            observer: Arc::new(Silent),
            gate: None,
        }
    }
}

/// A client of one cloud. Clones share everything.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    session: Session,
    lanes: Arc<Lanes>,
    deadline: Duration,
    page: u32,
    largest: usize,
    /// Held while an aggregate changes.
    aggregates: Arc<Mutex<()>>,
}

/// One call.
#[derive(Debug)]
pub(crate) struct Ask {
    pub service: Service,
    /// From a closed set, for messages and metrics.
    pub name: &'static str,
    pub method: Method,
    pub path: String,
    pub query: Query,
    /// The version of the API that it is written for.
    pub version: Option<&'static str>,
    pub body: Option<Value>,
    /// Whether doing it twice is the same as doing it once.
    pub idempotent: bool,
}

impl Ask {
    pub fn new(service: Service, method: Method, name: &'static str, path: String) -> Self {
        let idempotent = method != Method::POST;
        Self {
            service,
            name,
            method,
            path,
            query: Query::new(),
            version: None,
            body: None,
            idempotent,
        }
    }

    pub fn query(mut self, query: Query) -> Self {
        self.query = query;
        self
    }

    pub fn version(mut self, version: &'static str) -> Self {
        self.version = Some(version);
        self
    }

    pub fn body(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }

    fn call(&self) -> Call {
        Call {
            service: self.service,
            name: self.name,
            path: self.path.clone(),
        }
    }
}

/// What a service said to a request that it took.
#[derive(Debug)]
pub(crate) struct Reply {
    call: Call,
    answer: Answer,
}

impl Reply {
    /// What is below a key.
    pub fn read<T: DeserializeOwned>(&self, key: &'static str) -> Result<T> {
        self.read_page(key).map(|body| body.value)
    }

    fn read_page<T: DeserializeOwned>(&self, key: &'static str) -> Result<Body<T>> {
        body(&self.answer.body, key).map_err(|source| self.malformed(source))
    }

    /// The whole document.
    pub fn read_all<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.answer.body).map_err(|source| self.malformed(source))
    }

    pub fn request_id(&self) -> Option<String> {
        request_id(&self.answer.headers)
    }

    fn malformed(&self, source: serde_json::Error) -> Error {
        Error::Malformed {
            call: self.call.clone(),
            request_id: self.request_id(),
            source,
        }
    }
}

impl Client {
    /// Makes a client. Nothing is called yet: a cloud that is away is no reason not to start.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let lanes = Arc::new(Lanes::new(config.budget, config.breaker, config.observer));
        Self {
            inner: Arc::new(Inner {
                session: Session::new(
                    config.credentials,
                    lanes.clone(),
                    config.largest,
                    config.gate,
                ),
                lanes,
                deadline: config.deadline,
                page: config.page.max(1),
                largest: config.largest,
                aggregates: Arc::default(),
            }),
        }
    }

    /// The same user for something else, with a token of its own; budgets and breakers are shared.
    #[must_use]
    pub fn scoped(&self, scope: Scope) -> Self {
        let inner = &self.inner;
        Self {
            inner: Arc::new(Inner {
                session: inner.session.scoped(scope),
                lanes: inner.lanes.clone(),
                deadline: inner.deadline,
                page: inner.page,
                largest: inner.largest,
                aggregates: Arc::clone(&inner.aggregates),
            }),
        }
    }

    /// One change of an aggregate at a time. Nova tells its schedulers the aggregate as the call has
    /// seen it: of two at the same time, the one that is told last may know nothing of the other, and
    /// the schedulers believe it until the aggregate changes again.
    pub(crate) async fn change_of_aggregates(&self) -> MutexGuard<'_, ()> {
        self.inner.aggregates.lock().await
    }

    /// How a service does, as far as calls have shown.
    #[must_use]
    pub fn state(&self, service: Service) -> BreakerState {
        self.inner.lanes.state(service)
    }

    /// Logs in, if that is not done yet, and looks whether a service is in the catalog: for a clear
    /// message at the start.
    pub async fn check(&self, services: &[Service]) -> Result<Account> {
        let login = self
            .login(None, Deadline::after(self.inner.deadline))
            .await?;
        for service in services {
            login.endpoint(*service)?;
        }
        Ok(Account {
            user_id: login.user_id.clone(),
            project_id: login.project_id.clone(),
        })
    }

    async fn login(&self, rejected: Option<&Arc<Login>>, deadline: Deadline) -> Result<Arc<Login>> {
        self.inner.session.login(rejected, deadline).await
    }

    /// Makes a call, again if that is harmless and may help, within one deadline.
    pub(crate) async fn ask(&self, ask: Ask) -> Result<Reply> {
        let deadline = Deadline::after(self.inner.deadline);
        let call = ask.call();
        let mut login = self.login(None, deadline).await?;
        let mut fresh = false;
        let mut wait = FIRST_WAIT;
        let mut attempt = 1;
        loop {
            let error = match self.send(&ask, &call, &login, deadline).await {
                Ok(answer) => return Ok(Reply { call, answer }),
                Err(error) => error,
            };
            // The token has ended, or was revoked: nothing was done, so any call may be repeated.
            if error.is_unauthorized() && !fresh {
                fresh = true;
                login = self.login(Some(&login), deadline).await?;
                continue;
            }
            if !ask.idempotent || attempt >= ATTEMPTS || !may_pass(&error) {
                return Err(error);
            }
            let pause = error.retry_after().unwrap_or_else(|| jitter(wait));
            // The caller knows better what to do with the rest of the time.
            if !deadline.allows(pause) {
                return Err(error);
            }
            tracing::debug!(service = %call.service, call = call.name, attempt, ?pause,
                error = %error, "a call failed and is repeated");
            tokio::time::sleep(pause).await;
            wait = wait.saturating_mul(2);
            attempt += 1;
        }
    }

    async fn send(
        &self,
        ask: &Ask,
        call: &Call,
        login: &Login,
        deadline: Deadline,
    ) -> Result<Answer> {
        let url = login.endpoint(ask.service)?;
        let mut request = Request::builder()
            .method(&ask.method)
            .uri(format!("{url}{}{}", ask.path, ask.query.as_str()))
            .header("X-Auth-Token", &login.token)
            .header("Accept", "application/json")
            .header("User-Agent", USER_AGENT);
        if let Some(version) = ask.version {
            request = request.header(
                "OpenStack-API-Version",
                format!("{} {version}", ask.service),
            );
        }
        let body = match &ask.body {
            Some(body) => {
                request = request.header("Content-Type", "application/json");
                Bytes::from(body.to_string())
            }
            None => Bytes::new(),
        };
        let request = request
            .body(Full::new(body))
            .map_err(|error| Error::Invalid {
                call: call.clone(),
                source: error.into(),
            })?;
        let inner = &self.inner;
        inner
            .lanes
            .send(&login.http, call, request, inner.largest, deadline)
            .await
    }

    /// Reads a list to its end.
    ///
    /// The thing that a page ended with may be gone when the next one is asked for. Services answer
    /// that with 400; then the list is read anew, once.
    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        list: impl Fn(Query) -> Ask,
        query: Query,
        key: &'static str,
    ) -> Result<Vec<T>> {
        let mut anew = false;
        let mut all = Vec::new();
        let mut marker: Option<String> = None;
        let mut seen = std::collections::BTreeSet::new();
        let mut page = 1;
        loop {
            let query = query.clone().with("limit", self.inner.page.to_string());
            let reply = match self.ask(list(query.maybe("marker", marker.as_ref()))).await {
                Err(error) if error.status() == Some(400) && marker.is_some() && !anew => {
                    anew = true;
                    all.clear();
                    seen.clear();
                    marker = None;
                    page = 1;
                    continue;
                }
                result => result?,
            };
            let part: Body<Vec<T>> = reply.read_page(key)?;
            let empty = part.value.is_empty();
            all.extend(part.value);
            match part.next {
                Some(next) if !empty => {
                    if !seen.insert(next.clone()) {
                        let call = reply.call;
                        return Err(Error::Endless { call, page });
                    }
                    marker = Some(next);
                    page += 1;
                }
                _ => return Ok(all),
            }
        }
    }
}

/// Who the client is for the cloud.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The user.
    pub user_id: Option<String>,
    /// The project, unless the scope is the system.
    pub project_id: Option<String>,
}

/// Whether the same call may work in a moment.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } => true,
        // For the same generation it never does.
        Error::Refused { refusal, .. } if refusal.is_generation_conflict() => false,
        Error::Refused { refusal, .. } => match refusal.status {
            408 | 429 | 500 | 502 | 503 | 504 => true,
            // Nova says so of things that are busy for a moment.
            409 => refusal.retry_after.is_some(),
            _ => false,
        },
        _ => false,
    }
}

/// Between the half and the whole of a duration, so that many callers do not come back at once.
pub(crate) fn jitter(full: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let half = full / 2;
    let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
    let random = RandomState::new().hash_one(0_u8);
    half + Duration::from_nanos(random.checked_rem(nanos).unwrap_or(0))
}
