//! Who may read this node's Secrets, and watches of them.
//!
//! All agents share one ServiceAccount, and RBAC cannot tell its tokens apart; admission policies
//! could, and do not see reads. So each node has a ServiceAccount of its own whose Role names
//! exactly this node's Secrets. The agent asks for a short-lived token of it (a policy lets it ask
//! for its own node's only) and reads the Secrets with that.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cobalt_runtime::{Backoff, ClientError, Observed, chain, watch_object};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::context::Context;

const DEADLINE: Duration = Duration::from_secs(10);
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long a token is asked for. A stolen one is of use for no longer.
const LIFETIME: Duration = Duration::from_secs(3600);
/// The API server grants no shorter life.
const SHORTEST: Duration = Duration::from_secs(600);
/// Under which name the readiness says what is missing.
const MISSING: &str = "secrets";

/// Whose Secrets are read.
#[derive(Debug, Clone)]
pub struct SecretsConfig {
    /// The node's ServiceAccount is this and the name of the node. Empty: the agent's own account
    /// may read the Secrets.
    pub account_prefix: String,
    /// A new token is asked for after this at the latest: an account that was removed and made
    /// anew has made the token worthless before its time.
    pub renew: Duration,
}

impl SecretsConfig {
    /// A prefix, and a new token every ten minutes.
    #[must_use]
    pub fn new(account_prefix: String) -> Self {
        Self {
            account_prefix,
            renew: Duration::from_secs(600),
        }
    }
}

/// Whether this node's Secrets can be read now.
#[derive(Clone)]
enum Access {
    /// With this client.
    Open(Client),
    /// Not yet.
    Waiting(String),
}

/// The way to this node's Secrets. A clone is cheap.
#[derive(Clone)]
pub struct SecretsAccess(watch::Receiver<Access>);

impl fmt::Debug for SecretsAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretsAccess").finish_non_exhaustive()
    }
}

/// Where the task puts the client; keeps it out of everybody else's hands.
pub struct SecretsOutput(watch::Sender<Access>);

impl fmt::Debug for SecretsOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretsOutput").finish_non_exhaustive()
    }
}

/// The way to the Secrets, and the end that [`run`] gets.
#[must_use]
pub fn channel() -> (SecretsOutput, SecretsAccess) {
    let waiting = Access::Waiting("no token was asked for yet".to_owned());
    let (sender, receiver) = watch::channel(waiting);
    (SecretsOutput(sender), SecretsAccess(receiver))
}

impl SecretsAccess {
    /// Watches one Secret until nobody looks any more, with whatever client is the current one.
    pub async fn watch(
        mut self,
        namespace: &str,
        name: &str,
        seen: watch::Sender<Observed<Secret>>,
    ) {
        loop {
            let access = self.0.borrow_and_update().clone();
            let watching = async {
                match access {
                    Access::Open(client) => {
                        let api = Api::namespaced(client, namespace);
                        watch_object(api, name, seen.clone()).await;
                    }
                    Access::Waiting(reason) => {
                        say_waiting(&seen, reason);
                        seen.closed().await;
                    }
                }
            };
            tokio::select! {
                () = watching => return,
                changed = self.0.changed() => if changed.is_err() {
                    // Nobody will renew it; what is known stays.
                    return seen.closed().await;
                },
            }
        }
    }
}

/// What was seen once stays.
fn say_waiting(seen: &watch::Sender<Observed<Secret>>, reason: String) {
    seen.send_if_modified(|state| {
        let unknown = matches!(state, Observed::Unknown(_));
        if unknown {
            *state = Observed::Unknown(reason);
        }
        unknown
    });
}

/// Keeps the way to the Secrets open until it is cancelled. `connect` makes a client of a token:
/// [`cobalt_runtime::client_with_token`].
pub async fn run<F, C>(
    ctx: Context,
    config: SecretsConfig,
    connect: F,
    output: SecretsOutput,
    cancel: CancellationToken,
) where
    F: Fn(String) -> C + Send,
    C: Future<Output = Result<Client, ClientError>> + Send,
{
    let keep = async {
        if config.account_prefix.is_empty() {
            output.0.send_replace(Access::Open(ctx.client.clone()));
            return std::future::pending().await;
        }
        let account = format!("{}{}", config.account_prefix, ctx.node);
        keep_token(&ctx, &account, config.renew, connect, &output.0).await;
    };
    tokio::select! {
        () = keep => {}
        () = cancel.cancelled() => {}
    }
}

async fn keep_token<F, C>(
    ctx: &Context,
    account: &str,
    renew: Duration,
    connect: F,
    output: &watch::Sender<Access>,
) where
    F: Fn(String) -> C,
    C: Future<Output = Result<Client, ClientError>>,
{
    let api: Api<ServiceAccount> = Api::namespaced(ctx.client.clone(), &ctx.namespace);
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    loop {
        let wait = match open(&api, &ctx.namespace, account, &connect).await {
            Ok((client, lifetime)) => {
                backoff.reset();
                ctx.health.set_missing(MISSING, None);
                tracing::debug!(account, ?lifetime, "got a token");
                output.send_replace(Access::Open(client));
                renew_after(lifetime).min(renew)
            }
            Err(reason) => {
                tracing::warn!(account, reason, "no token to read this node's Secrets with");
                ctx.health.set_missing(MISSING, Some(reason.clone()));
                // A client that was there may be good for a while.
                output.send_if_modified(|access| {
                    let waits = matches!(access, Access::Waiting(_));
                    if waits {
                        *access = Access::Waiting(reason);
                    }
                    waits
                });
                backoff.next_wait()
            }
        };
        tokio::time::sleep(wait).await;
    }
}

/// A token, a client with it, and how long it is good for.
async fn open<F, C>(
    api: &Api<ServiceAccount>,
    namespace: &str,
    account: &str,
    connect: &F,
) -> Result<(Client, Duration), String>
where
    F: Fn(String) -> C,
    C: Future<Output = Result<Client, ClientError>>,
{
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            expiration_seconds: i64::try_from(LIFETIME.as_secs()).ok(),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let params = PostParams::default();
    let asked = api.create_token_request(account, &params, &request);
    let answer = match tokio::time::timeout(DEADLINE, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
            return Err(format!(
                "the ServiceAccount {namespace}/{account}, which may read this node's Secrets, does not exist"
            ));
        }
        Ok(Err(error)) => {
            return Err(format!(
                "failed to get a token of the ServiceAccount {namespace}/{account}: {}",
                chain(&error)
            ));
        }
        Err(_) => {
            return Err(format!(
                "the API server gave no token within {} s",
                DEADLINE.as_secs()
            ));
        }
    };
    let granted = answer.spec.and_then(|spec| spec.expiration_seconds);
    let lifetime = granted
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or(LIFETIME, Duration::from_secs);
    let token = answer.status.and_then(|status| status.token);
    let token = token.ok_or("the API server answered without a token")?;
    let client = connect(token).await.map_err(|error| chain(&error))?;
    Ok((client, lifetime))
}

/// At 80 % of its life: the last fifth is for the API server to be away.
fn renew_after(lifetime: Duration) -> Duration {
    lifetime.max(SHORTEST / 10) * 4 / 5
}

/// A watch of a Secret as a task keeps it: the future, and what is seen.
pub fn watch_secret(
    access: &SecretsAccess,
    namespace: &Arc<str>,
    name: &str,
) -> (
    impl Future<Output = ()> + Send + use<>,
    watch::Receiver<Observed<Secret>>,
) {
    let (sender, seen) =
        watch::channel(Observed::Unknown("the API server was not asked yet".into()));
    let (access, namespace, name) = (access.clone(), Arc::clone(namespace), name.to_owned());
    let watching = async move { access.watch(&namespace, &name, sender).await };
    (watching, seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_renewed_while_a_fifth_of_its_life_is_left() {
        for (lifetime, wanted) in [(3600, 2880), (600, 480), (0, 48)] {
            let wait = renew_after(Duration::from_secs(lifetime));
            assert_eq!(wait, Duration::from_secs(wanted));
        }
    }

    #[test]
    fn what_was_seen_once_stays_while_there_is_no_token() {
        let (seen, _) = watch::channel(Observed::Unknown("asking".to_owned()));
        say_waiting(&seen, "no account".into());
        assert!(matches!(&*seen.borrow(), Observed::Unknown(reason) if reason == "no account"));
        seen.send_replace(Observed::Absent);
        say_waiting(&seen, "no account".into());
        assert!(matches!(&*seen.borrow(), Observed::Absent));
    }
}
