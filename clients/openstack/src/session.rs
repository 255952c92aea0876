//! A login, kept fresh: one token for everybody, renewed before it ends, one login at a time.
//!
//! A token is good until it expires or a service rejects it. From some time before its end a new
//! one is fetched; whoever calls meanwhile uses the old one, and goes on using it while Keystone is
//! away. Credentials are read again at each login and every few seconds: when they changed, the
//! next token is made from the new ones. How long a token lives is reckoned from the two times that
//! Keystone gives, so the clock of this machine does not matter.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Method, Request};
use http_body_util::Full;
use jiff::Timestamp;
use serde::Deserialize;
use tokio::time::timeout_at;

use crate::catalog::Catalog;
use crate::credentials::{Credentials, Identity};
use crate::decode::{body, or_default, time};
use crate::error::{Call, Error, Result};
use crate::gate::Gate;
use crate::http::{Answer, Http};
use crate::lanes::{Deadline, Lanes, described};
use crate::refusal::{Refusal, request_id};
use crate::service::Service;
use crate::source::{Source, run_command};

/// How often files are looked at, and how soon a renewal that failed is tried again.
const LOOK: Duration = Duration::from_secs(10);
/// A token is renewed when this much of its life is left, or a quarter if that is less. Nova hands
/// it on to other services in the course of a request, so its last minutes are not used.
const MARGIN: Duration = Duration::from_secs(600);
/// How long credentials that Keystone refused are not tried again: it may lock the user out.
const REFUSED: Duration = Duration::from_secs(30);
/// What a token lives if Keystone does not say.
const UNKNOWN_LIFE: Duration = Duration::from_secs(300);

/// A token and what belongs to it.
#[derive(Debug)]
pub(crate) struct Login {
    pub token: HeaderValue,
    pub http: Http,
    pub credentials: Credentials,
    pub project_id: Option<String>,
    pub user_id: Option<String>,
    catalog: Catalog,
    renew: Instant,
    end: Instant,
}

#[derive(Debug)]
pub(crate) struct Session {
    source: Source,
    lanes: Arc<Lanes>,
    largest: usize,
    gate: Option<Gate>,
    state: Mutex<State>,
    /// Held by the one that logs in.
    writer: tokio::sync::Mutex<Writer>,
}

#[derive(Debug)]
struct State {
    login: Option<Arc<Login>>,
    /// When to look at the files, or to renew the token.
    due: Instant,
}

#[derive(Debug, Default)]
struct Writer {
    refused: Option<(Credentials, Instant, Refusal)>,
    /// Made for these certificates.
    http: Option<(Option<String>, Http)>,
    /// The addresses without TLS that were warned of.
    plain: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Token {
    #[serde(default, deserialize_with = "time")]
    issued_at: Option<Timestamp>,
    #[serde(default, deserialize_with = "time")]
    expires_at: Option<Timestamp>,
    #[serde(default, deserialize_with = "or_default")]
    catalog: Catalog,
    project: Option<Id>,
    user: Option<Id>,
}

#[derive(Deserialize)]
struct Id {
    id: Option<String>,
}

impl Login {
    pub fn endpoint(&self, service: Service) -> Result<String> {
        match service {
            Service::Identity => Ok(self.credentials.identity_url()),
            service => self.catalog.endpoint(service, &self.credentials),
        }
    }

    /// The addresses that are called without TLS, apart from this machine's own.
    fn plain(&self) -> BTreeSet<String> {
        let all = Service::ALL.into_iter();
        all.filter_map(|service| self.endpoint(service).ok())
            .filter(|url| is_plain(url))
            .collect()
    }
}

fn is_plain(url: &str) -> bool {
    let Ok(uri) = url.parse::<http::Uri>() else {
        return false;
    };
    let host = uri.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_local = match host.parse::<std::net::IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost",
    };
    uri.scheme_str() == Some("http") && !is_local
}

impl Session {
    pub fn new(source: Source, lanes: Arc<Lanes>, largest: usize, gate: Option<Gate>) -> Self {
        Self {
            source,
            lanes,
            largest,
            gate,
            state: Mutex::new(State {
                login: None,
                due: Instant::now(),
            }),
            writer: tokio::sync::Mutex::default(),
        }
    }

    /// The same user for something else.
    pub fn scoped(&self, scope: crate::credentials::Scope) -> Self {
        let source = self.source.clone().scoped(scope);
        Self::new(source, self.lanes.clone(), self.largest, self.gate.clone())
    }

    /// A login that is good, and not the one that was `rejected`.
    pub async fn login(
        &self,
        rejected: Option<&Arc<Login>>,
        deadline: Deadline,
    ) -> Result<Arc<Login>> {
        let (usable, due) = self.usable(rejected);
        let mut writer = match usable {
            Some(login) if !due => return Ok(login),
            // Somebody renews it already.
            Some(login) => match self.writer.try_lock() {
                Ok(writer) => writer,
                Err(_) => return Ok(login),
            },
            None => match timeout_at(deadline.until(), self.writer.lock()).await {
                Ok(writer) => writer,
                Err(_) => return Err(too_late(deadline)),
            },
        };
        // Somebody else may have done it while this one waited.
        let (usable, due) = self.usable(rejected);
        let Some(old) = usable else {
            let credentials = self.read_source(deadline).await?;
            return self.log_in(&mut writer, credentials, deadline).await;
        };
        if !due {
            return Ok(old);
        }
        let renewed = match self.read_source(deadline).await {
            Ok(same) if same == old.credentials && Instant::now() < old.renew => {
                self.look_again(LOOK, old.renew);
                return Ok(old);
            }
            Ok(credentials) => self.log_in(&mut writer, credentials, deadline).await,
            Err(error) => Err(error),
        };
        renewed.or_else(|error| {
            tracing::warn!(
                error = described(&error),
                "failed to renew the login; the old one is used"
            );
            self.look_again(LOOK, old.end);
            Ok(old)
        })
    }

    async fn read_source(&self, deadline: Deadline) -> Result<Credentials> {
        match timeout_at(deadline.until(), self.source.read()).await {
            Ok(credentials) => Ok(credentials?),
            Err(_) => Err(too_late(deadline)),
        }
    }

    /// The login at hand unless it ended or was rejected, and whether there is something to do
    /// about it.
    fn usable(&self, rejected: Option<&Arc<Login>>) -> (Option<Arc<Login>>, bool) {
        let now = Instant::now();
        let state = self.lock();
        let login = state.login.clone().filter(|login| {
            now < login.end && rejected.is_none_or(|rejected| !Arc::ptr_eq(login, rejected))
        });
        (login, now >= state.due)
    }

    fn look_again(&self, after: Duration, latest: Instant) {
        let at = Instant::now() + after;
        // Past its end the login is not usable anyway.
        self.lock().due = if latest > Instant::now() {
            at.min(latest)
        } else {
            at
        };
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn log_in(
        &self,
        writer: &mut Writer,
        credentials: Credentials,
        deadline: Deadline,
    ) -> Result<Arc<Login>> {
        let begun = Instant::now();
        if let Some((refused, at, refusal)) = &writer.refused
            && *refused == credentials
            && at.elapsed() < REFUSED
        {
            return Err(Error::Refused {
                call: call(),
                refusal: Box::new(refusal.clone()),
            });
        }
        let http = match &writer.http {
            Some((ca, http)) if *ca == credentials.ca => http.clone(),
            _ => {
                let ca = credentials.ca.as_deref();
                let http = Http::new(ca, self.largest, self.gate.clone())?;
                writer.http = Some((credentials.ca.clone(), http.clone()));
                http
            }
        };
        let answer = self.ask(&http, &credentials, deadline).await;
        if let Err(Error::Refused { refusal, .. }) = &answer
            && matches!(refusal.status, 401 | 403)
        {
            writer.refused = Some((credentials.clone(), Instant::now(), (**refusal).clone()));
        }
        let login = read(&answer?, http, credentials, begun)?;
        writer.refused = None;
        let plain = login.plain();
        if !plain.is_empty() && plain != writer.plain {
            tracing::warn!(
                addresses = ?plain,
                "OpenStack is called without TLS: whoever is on the network reads tokens and \
                 passwords; use https in OS_AUTH_URL and in the catalog"
            );
        }
        writer.plain = plain;
        let login = Arc::new(login);
        self.lock().login = Some(login.clone());
        self.look_again(LOOK, login.renew);
        tracing::debug!(
            user = login.user_id,
            project = login.project_id,
            "logged in to OpenStack"
        );
        Ok(login)
    }

    async fn ask(
        &self,
        http: &Http,
        credentials: &Credentials,
        deadline: Deadline,
    ) -> Result<Answer> {
        let password = match &credentials.identity {
            Identity::PasswordCommand { command, .. } => {
                match timeout_at(deadline.until(), run_command(command)).await {
                    Ok(password) => Some(password?),
                    Err(_) => return Err(too_late(deadline)),
                }
            }
            _ => None,
        };
        let body = credentials.auth_body(password.as_ref()).to_string();
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}/auth/tokens", credentials.identity_url()))
            .header("Content-Type", "application/json")
            .header("Accept", "application/json")
            .header("User-Agent", crate::client::USER_AGENT)
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| Error::Invalid {
                call: call(),
                source: error.into(),
            })?;
        self.lanes
            .send(http, &call(), request, self.largest, deadline)
            .await
    }
}

fn call() -> Call {
    Call {
        service: Service::Identity,
        name: "log in",
        path: "/auth/tokens".into(),
    }
}

fn too_late(deadline: Deadline) -> Error {
    Error::TimedOut {
        call: call(),
        after: deadline.elapsed(),
    }
}

fn read(answer: &Answer, http: Http, credentials: Credentials, begun: Instant) -> Result<Login> {
    let malformed = |source| Error::Malformed {
        call: call(),
        request_id: request_id(&answer.headers),
        source,
    };
    let document: Token = body(&answer.body, "token").map_err(malformed)?.value;
    let mut token = answer
        .headers
        .get("x-subject-token")
        .cloned()
        .ok_or_else(|| malformed(serde::de::Error::custom("there is no token in it")))?;
    token.set_sensitive(true);
    let life = match (document.issued_at, document.expires_at) {
        (Some(issued), Some(expires)) => {
            Duration::try_from(expires.duration_since(issued)).unwrap_or_default()
        }
        _ => UNKNOWN_LIFE,
    };
    let end = begun + life;
    Ok(Login {
        token,
        http,
        credentials,
        project_id: document.project.and_then(|project| project.id),
        user_id: document.user.and_then(|user| user.id),
        catalog: document.catalog,
        renew: end.checked_sub(MARGIN.min(life / 4)).unwrap_or(end),
        end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_tls_is_noticed_unless_it_is_this_machine() {
        for (url, plain) in [
            ("http://keystone.example.org:5000/v3", true),
            ("http://192.0.2.1:8774/v2.1", true),
            ("http://[2001:db8::1]/v3", true),
            ("https://192.0.2.1:8774/v2.1", false),
            ("http://127.0.0.1:5000/v3", false),
            ("http://[::1]:5000/v3", false),
            ("http://localhost:5000", false),
            ("not a url", false),
        ] {
            assert_eq!(is_plain(url), plain, "{url}");
        }
    }
}
