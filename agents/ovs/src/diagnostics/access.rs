//! Who asks, and whether they may: the API server knows both. And the line that says what they did.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cobalt_api::names::audiences;
use cobalt_runtime::within;
use k8s_openapi::api::authentication::v1::{
    TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo,
};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::Refusal;
use crate::metrics::{Metrics, RequestLabels};

/// The Role of the chart that has both rights, and the ServiceAccount that it is bound to.
const ROLE: &str = "cobalt-ovs-diagnostics";
/// Where the API server says which token it was.
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";
const DEADLINE: Duration = Duration::from_secs(10);
/// Longer ones nobody has.
const MAX_TOKEN: usize = 16 * 1024;
/// What servers say of a client that went away before its answer.
const GONE: u16 = 499;
/// The longest life of a token, in seconds: what `kubectl create token` asks for unless told
/// otherwise. A token that was stolen is of no use for longer.
const LONGEST_LIFE: i64 = 3600;
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
                "no token: use `cobalt ovs`, or send the header \"Authorization: Bearer TOKEN\" with a \
                 token of `kubectl create token` for the audience of this agent",
            )
        })?;
        let review = TokenReview {
            spec: TokenReviewSpec {
                audiences: Some(vec![audiences::ovs_diagnostics(&self.node)]),
                token: token.to_owned(),
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let reviewed = self
            .ask(api.create(&PostParams::default(), &review))
            .await?;
        let status = reviewed.status.unwrap_or_default();
        admit(&self.namespace, &self.node, status, &Claims::read(token))
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

/// What a token says of itself. Nobody has checked it, so it may only make the judgement stricter
/// or a refusal clearer.
#[derive(Debug, Default, PartialEq, Eq)]
struct Claims {
    audiences: Vec<String>,
    /// How long it is good for, in seconds.
    life: Option<i64>,
}

impl Claims {
    /// Of a JWT. Another kind of token says nothing.
    fn read(token: &str) -> Self {
        let payload = token.split('.').nth(1).unwrap_or_default();
        let payload = URL_SAFE_NO_PAD.decode(payload).unwrap_or_default();
        let claims: Value = serde_json::from_slice(&payload).unwrap_or_default();
        let audiences = match claims.get("aud") {
            Some(Value::String(one)) => vec![one.clone()],
            Some(Value::Array(all)) => {
                let all = all.iter().filter_map(Value::as_str);
                all.map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        let time = |name| claims.get(name).and_then(Value::as_i64);
        Self {
            audiences,
            life: time("exp").and_then(|exp| exp.checked_sub(time("iat")?)),
        }
    }
}

/// Whether a token that the API server has reviewed is good for the agent of this node.
fn admit(
    namespace: &str,
    node: &str,
    status: TokenReviewStatus,
    claims: &Claims,
) -> Result<Caller, Refusal> {
    let audience = audiences::ovs_diagnostics(node);
    let remedy = format!(
        "use `cobalt ovs`, or make one with `kubectl -n {namespace} create token {ROLE} --audience \
         {audience}`"
    );
    let refuse = |why: String| Err(Refusal::new(StatusCode::UNAUTHORIZED, why));
    let is_known = status.authenticated == Some(true);
    let confirmed = status.audiences.unwrap_or_default();
    if is_known && confirmed.contains(&audience) {
        return match claims.life.filter(|life| *life > LONGEST_LIFE) {
            None => Ok(Caller::new(status.user.unwrap_or_default())),
            Some(life) => refuse(format!(
                "this token is good for {life} s, and the agent takes none that is good for more \
                 than {LONGEST_LIFE} s: {remedy}"
            )),
        };
    }
    // An API server that knows the token and says nothing of the audience means its own.
    if is_known || !claims.audiences.is_empty() && !claims.audiences.contains(&audience) {
        let whom = match claims.audiences.as_slice() {
            [] => "the API server".to_owned(),
            all => all.join(", "),
        };
        return refuse(format!(
            "this token is for {whom}, not for the agent of {node}: {remedy}"
        ));
    }
    let why = status
        .error
        .map_or_else(String::new, |why| format!(" ({why})"));
    refuse(format!(
        "the API server does not know this token{why}: it may have expired; {remedy}"
    ))
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

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn claims_are_read_from_a_jwt_and_anything_else_says_nothing() {
        let cases: [(String, &[&str], Option<i64>); 5] = [
            (
                token(r#"{"aud":["a","b"],"exp":1600,"iat":1000}"#),
                &["a", "b"],
                Some(600),
            ),
            (token(r#"{"aud":"a","exp":1600}"#), &["a"], None),
            (
                token(r#"{"aud":7,"exp":-2,"iat":9223372036854775807}"#),
                &[],
                None,
            ),
            ("nonsense".to_owned(), &[], None),
            (".!.".to_owned(), &[], None),
        ];
        for (token, audiences, life) in cases {
            let audiences = audiences.iter().map(|one| (*one).to_owned()).collect();
            assert_eq!(Claims::read(&token), Claims { audiences, life }, "{token}");
        }
    }

    #[test]
    fn only_a_short_token_for_this_node_is_taken() {
        let own = "cobalt-ovs-agent.hv1";
        let other = "cobalt-ovs-agent.hv2";
        let server = "https://kubernetes.default.svc";
        type Case<'a> = (
            Option<bool>,
            &'a [&'a str],
            &'a str,
            Option<i64>,
            Option<&'a str>,
        );
        let cases: [Case; 9] = [
            (Some(true), &[own], own, Some(600), None),
            (Some(true), &[own], own, Some(3600), None),
            // Not a JWT, and the API server vouches for it.
            (Some(true), &[own], "", None, None),
            (Some(true), &[own], own, Some(3601), Some("good for 3601 s")),
            (
                None,
                &[],
                other,
                Some(600),
                Some("is for cobalt-ovs-agent.hv2, not for the agent of hv1"),
            ),
            (
                Some(false),
                &[],
                server,
                Some(600),
                Some("is for https://kubernetes.default.svc"),
            ),
            // An authenticator that knows no audiences speaks for the API server alone.
            (Some(true), &[], "", None, Some("is for the API server")),
            (
                Some(true),
                &[server],
                server,
                Some(600),
                Some("is for https://kubernetes.default.svc"),
            ),
            (
                None,
                &[],
                own,
                Some(600),
                Some("does not know this token (expired)"),
            ),
        ];
        for (authenticated, confirmed, claimed, life, refusal) in cases {
            let status = TokenReviewStatus {
                authenticated,
                audiences: Some(confirmed.iter().map(|one| (*one).to_owned()).collect()),
                error: (authenticated != Some(true)).then(|| "expired".to_owned()),
                user: None,
            };
            let claims = Claims {
                audiences: [claimed]
                    .map(str::to_owned)
                    .into_iter()
                    .filter(|one| !one.is_empty())
                    .collect(),
                life,
            };
            match (admit("ovn-system", "hv1", status, &claims), refusal) {
                (Ok(_), None) => {}
                (Err(refused), Some(words)) => {
                    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
                    let text = refused.text;
                    assert!(text.contains(words), "{text}");
                    assert!(text.contains("--audience cobalt-ovs-agent.hv1"), "{text}");
                }
                (admitted, refusal) => panic!("{claimed}: {admitted:?}, not {refusal:?}"),
            }
        }
    }
}
