//! Leader election with a Lease. It is fail-stop: whoever has lost the Lease must end.
//!
//! The Lease has the shape that the Go library (client-go) writes, so that a Go program and a program
//! of ours exclude each other: holder, duration, times, number of transitions; an empty holder is a
//! Lease that was let go of. What keeps two from leading at the same time:
//!
//! - A write carries the version that was read: of two writers one is refused.
//! - The holder counts from the moment it sent its last accepted renewal, and stops after
//!   `renew_deadline`. The others count from the moment they saw the record change, which is later,
//!   and wait for `duration`, which is longer. Each uses its own clock for both ends, so only the
//!   rates of clocks matter, never what they show.
//! - A holder that finds the record not its own ends, whoever did it.
//! - Whoever acts as the leader looks at the [`Term`] right before: a process that slept notices by its
//!   own clock, before anybody has told it.
//!
//! Those who wait watch the Lease: one that was let go of is taken at once.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::{Observed, chain, jitter, watch_object};

const NO_ANSWER: &str = "the API server did not answer";

/// Which Lease, who asks for it, and how it is kept.
#[derive(Debug, Clone)]
pub struct LeaderConfig {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// Who this process is. No other process may ever have the same: see [`LeaderConfig::new`].
    pub identity: String,
    /// How long a renewal keeps others away, in whole seconds.
    pub duration: Duration,
    /// How long the holder may go without a renewal before it ends. Shorter than the duration: the
    /// difference is what clocks may differ in their rates.
    pub renew_deadline: Duration,
    /// How often the holder renews.
    pub retry: Duration,
}

impl LeaderConfig {
    /// The usual times, and an identity of this process: `instance` (the pod) and a random part.
    #[must_use]
    pub fn new(namespace: &str, name: &str, instance: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: format!("{instance}_{:016x}", RandomState::new().hash_one(instance)),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }

    fn check(&self) -> Result<(), LeaderError> {
        let whole = Duration::from_secs(self.duration.as_secs());
        let reason = if self.identity.is_empty() {
            "the identity is empty: an empty holder is a Lease that nobody holds"
        } else if self.retry.is_zero() {
            "the retry is zero"
        } else if self.retry * 2 > self.renew_deadline {
            "the renew deadline is shorter than two retries: one failed renewal would end it"
        } else if self.renew_deadline >= whole {
            "the duration is not longer than the renew deadline: two could lead at the same time"
        } else {
            return Ok(());
        };
        Err(LeaderError::Config { reason })
    }

    /// A call that hangs leaves time for another one.
    fn call_deadline(&self) -> Duration {
        self.renew_deadline / 2
    }
}

/// Who leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leadership {
    /// Not known; the reason says why.
    Unknown(String),
    /// Another one, by its identity.
    Other(String),
    /// This process.
    Me,
}

/// Until when this process leads without another renewal, for whoever acts.
#[derive(Debug, Clone, Default)]
pub struct Term(Arc<Mutex<Held>>);

#[derive(Debug, Clone, Copy, Default)]
enum Held {
    #[default]
    Never,
    Until(Instant),
    Always,
}

impl Term {
    /// Of a process that needs no election.
    #[must_use]
    pub fn unlimited() -> Self {
        Self(Arc::new(Mutex::new(Held::Always)))
    }

    /// Whether this process leads, now.
    #[must_use]
    pub fn holds(&self) -> bool {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Held::Never => false,
            Held::Until(end) => Instant::now() < end,
            Held::Always => true,
        }
    }

    fn set(&self, until: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) =
            until.map_or(Held::Never, Held::Until);
    }
}

/// Why this process does not lead, and never will again.
#[derive(Debug, thiserror::Error)]
pub enum LeaderError {
    /// The times do not fit together.
    #[error("leader election cannot work: {reason}")]
    Config {
        /// What is wrong.
        reason: &'static str,
    },
    /// Somebody else wrote the Lease.
    #[error("the Lease \"{lease}\" was taken away: {state}")]
    TakenAway {
        /// The Lease.
        lease: String,
        /// What it is now.
        state: String,
    },
    /// The API server did not accept a renewal in time.
    #[error("the Lease \"{lease}\" was not renewed within {} s: {reason}", .within.as_secs())]
    NotRenewed {
        /// The Lease.
        lease: String,
        /// The renew deadline.
        within: Duration,
        /// What stood in the way at last.
        reason: String,
    },
}

/// What a candidate remembers, by its own clock.
#[derive(Debug, Default)]
struct Memory {
    /// The record of another holder, and since when it is as it is.
    seen: Option<(LeaseSpec, Instant)>,
    /// When the last renewal that was accepted was sent; `None` while this process does not lead.
    renewed: Option<Instant>,
}

impl Memory {
    /// Until when this process leads without another renewal.
    fn leads_until(&self, config: &LeaderConfig) -> Option<Instant> {
        self.renewed.map(|sent| sent + config.renew_deadline)
    }

    /// A write was accepted. An answer that took too long proves nothing any more.
    fn accepted(&mut self, config: &LeaderConfig, sent: Instant, now: Instant) {
        if now < sent + config.renew_deadline {
            self.renewed = Some(sent);
        }
    }
}

/// What to do with the Lease.
#[derive(Debug, PartialEq)]
enum Step {
    /// Write this: it takes or renews it.
    Write(Box<Lease>),
    /// Another one has it, at least until then unless it lets go.
    Wait { holder: String, until: Instant },
    /// This process led and does not any more: the record says this.
    TakenAway(String),
    /// This process led for too long without a renewal.
    NotRenewed,
}

fn holder(lease: Option<&Lease>) -> Option<&str> {
    let spec = lease?.spec.as_ref()?;
    spec.holder_identity
        .as_deref()
        .filter(|holder| !holder.is_empty())
}

/// Decides. `lease` is what was read, `None` if there is none.
fn decide(
    lease: Option<&Lease>,
    memory: &mut Memory,
    config: &LeaderConfig,
    now: Instant,
    wall: Timestamp,
) -> Step {
    let holder = holder(lease);
    let mine = holder == Some(config.identity.as_str());
    if let Some(until) = memory.leads_until(config) {
        if !mine {
            return Step::TakenAway(match (lease, holder) {
                (None, _) => "it was deleted".to_owned(),
                (Some(_), None) => "nobody holds it".to_owned(),
                (Some(_), Some(other)) => format!("\"{other}\" holds it"),
            });
        }
        if now >= until {
            return Step::NotRenewed;
        }
    }
    match lease.map(|lease| &lease.spec) {
        Some(Some(spec)) if holder.is_some() && !mine => {
            let same = memory.seen.as_ref().is_some_and(|(seen, _)| seen == spec);
            if !same {
                memory.seen = Some((spec.clone(), now));
            }
        }
        Some(_) => memory.seen = None,
        // Deleted under its holder, who may not know yet: the wait goes on.
        None => {}
    }
    if let Some((seen, since)) = &memory.seen {
        let promised = seen
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .filter(|seconds| *seconds > 0);
        let until = *since + promised.map_or(config.duration, Duration::from_secs);
        if now < until {
            let holder = seen.holder_identity.clone().unwrap_or_default();
            return Step::Wait { holder, until };
        }
    }
    let mut new = lease.cloned().unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(config.name.clone()),
            namespace: Some(config.namespace.clone()),
            ..ObjectMeta::default()
        },
        spec: None,
    });
    let transitions = lease
        .and_then(|lease| lease.spec.as_ref())
        .map(|spec| spec.lease_transitions.unwrap_or(0).saturating_add(1));
    let spec = new.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(config.identity.clone());
    spec.lease_duration_seconds = i32::try_from(config.duration.as_secs()).ok();
    spec.renew_time = Some(MicroTime(wall));
    if !mine {
        spec.acquire_time = Some(MicroTime(wall));
        spec.lease_transitions = Some(transitions.unwrap_or(0));
    }
    Step::Write(Box::new(new))
}

/// The record that lets go of a Lease, if it is ours.
fn let_go(lease: &Lease, config: &LeaderConfig, wall: Timestamp) -> Option<Lease> {
    if holder(Some(lease)) != Some(config.identity.as_str()) {
        return None;
    }
    let mut free = lease.clone();
    let spec = free.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(1);
    spec.renew_time = Some(MicroTime(wall));
    spec.acquire_time = Some(MicroTime(wall));
    Some(free)
}

/// Asks for the Lease and keeps it. Who leads is told through `leading`; only while `term` holds may
/// this process act as the leader.
///
/// When it is cancelled it lets go of the Lease, so that the next one takes over at once: cancel it
/// after everything that only the leader does has ended.
///
/// # Errors
///
/// When this process led and does not any more: it must end, because what it has begun can no longer
/// be kept apart from what the next leader does. Also when the configuration cannot work.
pub async fn lead(
    client: Client,
    config: LeaderConfig,
    leading: watch::Sender<Leadership>,
    term: Term,
    cancel: CancellationToken,
) -> Result<(), LeaderError> {
    config.check()?;
    let unread = "the Lease was not read yet".to_owned();
    let (seen, changes) = watch::channel(Observed::Unknown(unread));
    let watched = Api::namespaced(client.clone(), &config.namespace);
    let name = config.name.clone();
    // Without it, reading the Lease now and then still works.
    let watching = async { watch_object(watched, &name, seen).await }
        .boxed()
        .then(|()| std::future::pending::<()>());
    let mut candidate = Candidate {
        api: Api::namespaced(client, &config.namespace),
        config,
        leading,
        term,
        changes,
        memory: Memory::default(),
        known: None,
        wrote: false,
        trouble: NO_ANSWER.to_owned(),
    };
    let end = tokio::select! {
        lost = candidate.run().boxed() => Err(lost),
        () = cancel.cancelled() => Ok(()),
        () = watching => Ok(()),
    };
    candidate.term.set(None);
    match &end {
        Ok(()) => {
            candidate.say(Leadership::Unknown("told to end".to_owned()));
            candidate.release().await;
        }
        Err(lost) => candidate.say(Leadership::Unknown(lost.to_string())),
    }
    end
}

/// Why a write was not accepted.
enum Refusal {
    /// Somebody else was faster.
    Conflict,
    /// Anything else.
    Other(String),
}

struct Candidate {
    api: Api<Lease>,
    config: LeaderConfig,
    leading: watch::Sender<Leadership>,
    term: Term,
    /// What the watch has seen. It may be older than what is known.
    changes: watch::Receiver<Observed<Lease>>,
    memory: Memory,
    /// The newest Lease that was read or written; `None` if it has to be read.
    known: Option<Arc<Lease>>,
    /// Whether anything was ever sent, so that there may be something to let go of.
    wrote: bool,
    /// What stood in the way of the last renewal.
    trouble: String,
}

impl Candidate {
    async fn run(&mut self) -> LeaderError {
        loop {
            let attempt = match self.memory.leads_until(&self.config) {
                Some(until) => timeout_at(until, self.attempt()).await,
                None => Ok(self.attempt().await),
            };
            let again = match attempt {
                Ok(Ok(again)) => again,
                Ok(Err(lost)) => return lost,
                Err(_) => return self.not_renewed(),
            };
            self.wait(again).await;
        }
    }

    /// Takes or renews the Lease if that is possible. Says when to try again.
    async fn attempt(&mut self) -> Result<Instant, LeaderError> {
        let lease = match self.known.take() {
            Some(lease) => Some(lease),
            None => match self.call(self.api.get_opt(&self.config.name)).await {
                Ok(lease) => lease.map(Arc::new),
                Err(refusal) => return Ok(self.failed(refusal)),
            },
        };
        let now = Instant::now();
        let memory = &mut self.memory;
        match decide(
            lease.as_deref(),
            memory,
            &self.config,
            now,
            Timestamp::now(),
        ) {
            Step::Wait { holder, until } => {
                self.say(Leadership::Other(holder));
                // The watch hears each renewal before that.
                Ok(until.min(now + self.config.retry * 2))
            }
            Step::TakenAway(state) => Err(LeaderError::TakenAway {
                lease: self.lease(),
                state,
            }),
            Step::NotRenewed => Err(self.not_renewed()),
            Step::Write(new) => {
                self.wrote = true;
                let params = PostParams::default();
                let written = if lease.is_some() {
                    let replaced = self.api.replace(&self.config.name, &params, &new);
                    self.call(replaced).await
                } else {
                    self.call(self.api.create(&params, &new)).await
                };
                match written {
                    Ok(lease) => {
                        self.known = Some(Arc::new(lease));
                        self.trouble = NO_ANSWER.to_owned();
                        self.memory.accepted(&self.config, now, Instant::now());
                        self.term.set(self.memory.leads_until(&self.config));
                        if self.memory.renewed.is_some() {
                            self.say(Leadership::Me);
                        }
                        Ok(now + self.config.retry)
                    }
                    Err(refusal) => Ok(self.failed(refusal)),
                }
            }
        }
    }

    /// Waits until then, or until the watch sees something that changes what to do.
    async fn wait(&mut self, until: Instant) {
        let leads_until = self.memory.leads_until(&self.config);
        let until = leads_until.map_or(until, |end| end.min(until));
        loop {
            let changed = tokio::select! {
                () = sleep_until(until) => None,
                changed = self.changes.changed() => Some(changed),
            };
            match changed {
                None => {
                    if leads_until.is_none() {
                        self.known = None;
                    }
                    return;
                }
                // The watch has ended; time goes on.
                Some(Err(_)) => return sleep_until(until).await,
                Some(Ok(())) => {}
            }
            let seen = self.changes.borrow_and_update().object().cloned();
            let mine = holder(seen.as_deref()) == Some(self.config.identity.as_str());
            if leads_until.is_none() {
                self.known = seen;
                return;
            }
            if !mine {
                // Perhaps only what was there before this process took it: ask.
                self.known = None;
                return;
            }
        }
    }

    fn failed(&mut self, refusal: Refusal) -> Instant {
        let leads = self.memory.renewed.is_some();
        let retry = jitter(self.config.retry);
        let (reason, wait) = match refusal {
            Refusal::Conflict => (
                "another one wrote it at the same time".to_owned(),
                retry / 10,
            ),
            Refusal::Other(reason) => (reason, retry),
        };
        if leads {
            tracing::warn!(lease = self.lease(), reason, "the Lease was not renewed");
        } else if wait == retry {
            self.say(Leadership::Unknown(reason.clone()));
        }
        self.trouble = reason;
        Instant::now() + wait
    }

    async fn release(&self) {
        if !self.wrote {
            return;
        }
        let released = async {
            loop {
                let lease = self.call(self.api.get_opt(&self.config.name)).await?;
                let now = Timestamp::now();
                let free = lease.and_then(|lease| let_go(&lease, &self.config, now));
                let Some(free) = free else { return Ok(()) };
                let params = PostParams::default();
                let replaced = self.api.replace(&self.config.name, &params, &free);
                match self.call(replaced).await {
                    // A renewal that was under way came first.
                    Err(Refusal::Conflict) => {}
                    other => return other.map(drop),
                }
            }
        };
        let lease = self.lease();
        match timeout(self.config.call_deadline(), released).await {
            Ok(Ok(())) => tracing::info!(lease, "let go of the Lease"),
            Ok(Err(Refusal::Other(error))) => {
                tracing::warn!(lease, error, "failed to let go of the Lease: it runs out");
            }
            Ok(Err(Refusal::Conflict)) | Err(_) => {
                tracing::warn!(lease, "did not let go of the Lease in time: it runs out");
            }
        }
    }

    async fn call<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, Refusal> {
        let deadline = self.config.call_deadline();
        match timeout(deadline, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Err(Refusal::Conflict),
            Ok(Err(error)) => Err(Refusal::Other(chain(&error))),
            Err(_) => Err(Refusal::Other(format!(
                "the API server did not answer within {} s",
                deadline.as_secs()
            ))),
        }
    }

    fn say(&self, now: Leadership) {
        self.leading.send_if_modified(|known| {
            let new = *known != now;
            if new {
                tracing::info!(lease = self.lease(), leader = ?now, "who leads");
                *known = now;
            }
            new
        });
    }

    fn lease(&self) -> String {
        format!("{}/{}", self.config.namespace, self.config.name)
    }

    fn not_renewed(&self) -> LeaderError {
        LeaderError::NotRenewed {
            lease: self.lease(),
            within: self.config.renew_deadline,
            reason: self.trouble.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
