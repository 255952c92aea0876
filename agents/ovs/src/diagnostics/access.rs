//! Who asks, and whether they may: the API server knows both. And the line that says what they did.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use cobalt_runtime::within;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::Semaphore;

use super::Refusal;
use crate::metrics::{Metrics, RequestLabels};

/// What a token for this agent and for nobody else is made for.
pub const AUDIENCE: &str = "cobalt-ovs-agent";
/// The Role of the chart that has both rights.
const ROLE: &str = "cobalt-ovs-diagnostics";
/// Where the API server says which token it was.
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";
const DEADLINE: Duration = Duration::from_secs(10);
/// Longer ones nobody has.
const MAX_TOKEN: usize = 16 * 1024;
/// What servers say of a client that went away before its answer.
const GONE: u16 = 499;
/// How many callers the API server is asked about at once.
const REVIEWS: usize = 4;

/// Asks the API server.
#[derive(Clone)]
pub struct Access {
    client: Client,
    namespace: Arc<str>,
    node: Arc<str>,
    turns: Arc<Semaphore>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// What one has to be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// To ask.
    Get,
    /// To capture.
    Create,
}

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Create => "create",
        }
    }
}

/// Who asks.
#[derive(Debug, Clone, Default)]
pub struct Caller {
    /// Their name.
    pub user: String,
    /// Which of their tokens it was, if the API server tells.
    pub credential: Option<String>,
    info: UserInfo,
}

impl Access {
    /// For the OVSNode of a node.
    #[must_use]
    pub fn new(client: Client, namespace: Arc<str>, node: Arc<str>) -> Self {
        let turns = Arc::new(Semaphore::new(REVIEWS));
        Self {
            client,
            namespace,
            node,
            turns,
        }
    }

    /// Who asks, by their token.
    ///
    /// # Errors
    ///
    /// When nobody knows them, or nobody can be asked.
    pub async fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, Refusal> {
        let token = bearer(headers).ok_or_else(|| {
            Refusal::new(
                StatusCode::UNAUTHORIZED,
                "no token: send the header \"Authorization: Bearer TOKEN\" with a token of \
                 `kubectl create token`, or use `cobalt ovs`",
            )
        })?;
        let audiences = [Some(vec![AUDIENCE.to_owned()]), None];
        let mut why = None;
        for audiences in audiences {
            let spec = TokenReviewSpec {
                audiences,
                token: token.to_owned(),
            };
            let review = TokenReview {
                spec,
                ..TokenReview::default()
            };
            let api: Api<TokenReview> = Api::all(self.client.clone());
            let reviewed = self
                .ask(api.create(&PostParams::default(), &review))
                .await?;
            let status = reviewed.status.unwrap_or_default();
            if status.authenticated == Some(true) {
                return Ok(Caller::new(status.user.unwrap_or_default()));
            }
            why = why.or(status.error);
        }
        let why = why.map_or_else(String::new, |why| format!(" ({why})"));
        Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            format!(
                "the API server does not know this token{why}: it may have expired; make a new one"
            ),
        ))
    }

    /// Whether they may.
    ///
    /// # Errors
    ///
    /// When they may not, or nobody can be asked.
    pub async fn authorize(&self, caller: &Caller, verb: Verb) -> Result<(), Refusal> {
        let resource = ResourceAttributes {
            group: Some("ovs.c5c3.io".to_owned()),
            resource: Some("ovsnodes".to_owned()),
            subresource: Some("diagnostics".to_owned()),
            namespace: Some(self.namespace.as_ref().to_owned()),
            name: Some(self.node.as_ref().to_owned()),
            verb: Some(verb.as_str().to_owned()),
            ..ResourceAttributes::default()
        };
        let info = caller.info.clone();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                resource_attributes: Some(resource),
                user: info.username,
                groups: info.groups,
                uid: info.uid,
                extra: info.extra,
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let reviewed = self
            .ask(api.create(&PostParams::default(), &review))
            .await?;
        if reviewed.status.is_some_and(|status| status.allowed) {
            return Ok(());
        }
        let (user, verb) = (&caller.user, verb.as_str());
        let (namespace, node) = (&self.namespace, &self.node);
        Err(Refusal::new(
            StatusCode::FORBIDDEN,
            format!(
                "{user} may not {verb} ovsnodes/diagnostics of group ovs.c5c3.io for {node} in \
                 namespace {namespace}: bind the Role {ROLE} of that namespace (chart ovs-agent) \
                 to them, or use `cobalt ovs`"
            ),
        ))
    }

    async fn ask<T>(&self, asked: impl Future<Output = kube::Result<T>>) -> Result<T, Refusal> {
        let asking = async {
            // It is never closed.
            let _turn = self.turns.acquire().await;
            within(DEADLINE, asked).await
        };
        let answer = tokio::time::timeout(DEADLINE * 2, asking).await;
        let answer = answer.unwrap_or_else(|_| Err("too many ask at once".to_owned()));
        answer.map_err(|error| {
            Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!(
                    "the API server cannot be asked who you are and what you may do: {error}; try \
                     again when it answers"
                ),
            )
        })
    }
}

/// The token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    let fits = !token.is_empty() && token.len() <= MAX_TOKEN;
    (scheme.eq_ignore_ascii_case("bearer") && fits).then_some(token)
}

impl Caller {
    fn new(info: UserInfo) -> Self {
        let extra = info.extra.as_ref().and_then(|extra| extra.get(CREDENTIAL));
        Self {
            user: info.username.clone().unwrap_or_default(),
            credential: extra.and_then(|values| values.first()).cloned(),
            info,
        }
    }
}

/// The line about a call: written once, when it is over. It never has a token.
#[derive(Debug)]
pub struct Audit {
    /// Who asked; nobody that is known, before they are.
    pub caller: Option<Caller>,
    method: String,
    path: String,
    label: &'static str,
    arguments: String,
    since: Instant,
    metrics: Metrics,
    written: bool,
}

/// What became of a capture.
struct Packets<'a> {
    taken: u64,
    dropped: u64,
    end: &'a str,
}

impl Drop for Audit {
    /// Who asked went away before there was an answer.
    fn drop(&mut self) {
        if !self.written {
            self.write(GONE, 0, None);
        }
    }
}

impl Audit {
    /// Of a call that begins now. The label is the path if it is a known one.
    #[must_use]
    pub fn new(
        method: String,
        path: String,
        label: &'static str,
        arguments: String,
        metrics: Metrics,
    ) -> Self {
        Self {
            caller: None,
            method,
            path,
            label,
            arguments,
            since: Instant::now(),
            metrics,
            written: false,
        }
    }

    /// It was answered.
    pub fn answered(mut self, status: StatusCode, bytes: u64) {
        self.write(status.as_u16(), bytes, None);
    }

    /// It was a capture, and that has ended.
    pub fn captured(mut self, bytes: u64, packets: u64, dropped: u64, end: &str) {
        let packets = Packets {
            taken: packets,
            dropped,
            end,
        };
        self.write(StatusCode::OK.as_u16(), bytes, Some(&packets));
    }

    fn write(&mut self, status: u16, bytes: u64, packets: Option<&Packets<'_>>) {
        self.count(status);
        let (user, credential) = self.who();
        tracing::info!(
            target: "audit",
            user,
            credential,
            method = self.method,
            path = self.path,
            arguments = self.arguments,
            status,
            bytes,
            packets = packets.map(|packets| packets.taken),
            dropped = packets.map(|packets| packets.dropped),
            end = packets.map(|packets| packets.end),
            milliseconds = self.milliseconds(),
            "diagnostics"
        );
    }

    fn who(&self) -> (&str, &str) {
        let caller = self.caller.as_ref();
        let user = caller.map_or("", |caller| caller.user.as_str());
        let credential = caller.and_then(|caller| caller.credential.as_deref());
        (user, credential.unwrap_or_default())
    }

    fn milliseconds(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn count(&mut self, code: u16) {
        self.written = true;
        let labels = RequestLabels {
            path: self.label,
            code,
        };
        self.metrics
            .diagnostics_requests
            .get_or_create(&labels)
            .inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_from_their_header_only() {
        for (header, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer ", None),
            ("Bearer", None),
            ("Basic abc", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, header.parse().unwrap());
            assert_eq!(bearer(&headers), token, "{header}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
