//! The heartbeat Lease of the node, and who of several agents reports for it.
//!
//! It is renewed only while libvirt answers: whoever watches the Lease learns that the instances of
//! this host may be in trouble although its kubelet is well. An annotation says why it is not
//! renewed. The holder of the Lease is the one agent that reports; a second one waits until the
//! first has let go of it or has been silent for the duration of the Lease. Silence is measured with
//! this process's own clock, so a wall clock that jumps harms nobody.
//!
//! Whoever starts the instances of a dead host elsewhere waits for the whole duration after the last
//! renewal that it has seen. [`Term`] says until when this agent may start instances: it stops before
//! anybody may think that the host is dead.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cobalt_api::names::{annotations, leases};
use cobalt_runtime::{jitter, within};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::PostParams;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::metrics::Metrics;

const DEADLINE: Duration = Duration::from_secs(8);
/// How long libvirt may take to answer a heartbeat's question.
const LIBVIRT_DEADLINE: Duration = Duration::from_secs(5);

/// For how long after a renewal the agent acts on instances: 5/8 of the duration of the Lease, 25 s of
/// 40 s. The rest is for a start that libvirt is busy with when that time is over
/// (`--libvirt-timeout`, 15 s).
#[must_use]
pub fn acts_for(duration: Duration) -> Duration {
    duration * 5 / 8
}

/// Until when this process may act on instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// When the last renewal was sent that the API server has accepted.
    renewed: Option<Instant>,
    /// When this process began to try.
    began: Instant,
    duration: Duration,
    /// Another one after a break in which somebody may have taken the host for dead.
    number: u64,
}

impl Term {
    /// One that has not begun.
    #[must_use]
    pub fn new(duration: Duration, began: Instant) -> Self {
        Self {
            renewed: None,
            began,
            duration,
            number: 0,
        }
    }

    /// After a renewal that was sent at this time.
    #[must_use]
    pub fn renew(self, at: Instant) -> Self {
        let broken = self
            .renewed
            .is_some_and(|before| at.saturating_duration_since(before) >= self.duration);
        Self {
            renewed: Some(at),
            number: self.number + u64::from(broken),
            ..self
        }
    }

    /// When it ends, unless the Lease is renewed before.
    #[must_use]
    pub fn ends(&self) -> Option<Instant> {
        Some(self.renewed? + acts_for(self.duration))
    }

    /// Whether instances may be acted on.
    #[must_use]
    pub fn holds(&self, now: Instant) -> bool {
        self.ends().is_some_and(|ends| now < ends)
    }

    /// When a renewal is late. A process that has just begun is not late with its first one: libvirt may
    /// not be connected yet.
    #[must_use]
    pub fn late_at(&self) -> Instant {
        self.renewed.unwrap_or(self.began) + acts_for(self.duration)
    }

    /// Which one it is.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }
}

/// Who reports for this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// The Lease cannot be read; reporting does not depend on it.
    Unknown,
    /// This process.
    Me,
    /// Another one.
    Other(String),
}

/// How the Lease is kept.
#[derive(Debug, Clone)]
pub struct LeaseConfig {
    /// Who this process is.
    pub identity: String,
    /// How often it is renewed.
    pub renew: Duration,
    /// How long a renewal is good for.
    pub duration: Duration,
}

/// What another holder's Lease looked like, and since when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Silence {
    renewed: Option<Timestamp>,
    holder: String,
    since: Instant,
}

/// What to do with the Lease. Pure.
#[derive(Debug, PartialEq)]
enum Step {
    /// Write this.
    Write(Box<Lease>),
    /// Another one holds it.
    Wait(String),
    /// It says already what it should.
    Nothing,
}

/// Decides. `trouble` is why libvirt does not answer.
fn decide(
    lease: Option<&Lease>,
    silence: &mut Option<Silence>,
    config: &LeaseConfig,
    node: &str,
    trouble: Option<&str>,
    now: (Instant, Timestamp),
) -> Step {
    let spec = lease.and_then(|lease| lease.spec.as_ref());
    let holder = spec
        .and_then(|spec| spec.holder_identity.as_deref())
        .filter(|holder| !holder.is_empty());
    let renewed = spec.and_then(|spec| spec.renew_time.as_ref().map(|time| time.0));
    if let Some(holder) = holder.filter(|holder| *holder != config.identity) {
        let same = silence
            .as_ref()
            .is_some_and(|seen| seen.renewed == renewed && seen.holder == holder);
        if !same {
            *silence = Some(Silence {
                renewed,
                holder: holder.to_owned(),
                since: now.0,
            });
        }
        let silent = silence
            .as_ref()
            .map_or(Duration::ZERO, |seen| now.0.duration_since(seen.since));
        if silent < config.duration {
            return Step::Wait(holder.to_owned());
        }
    }
    *silence = None;
    let mine = holder == Some(config.identity.as_str());
    let mut new = lease.cloned().unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(node.to_owned()),
            namespace: Some(leases::NODE_AGENT_NAMESPACE.to_owned()),
            ..ObjectMeta::default()
        },
        spec: None,
    });
    let spec = new.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(config.identity.clone());
    spec.lease_duration_seconds = i32::try_from(config.duration.as_secs()).ok();
    if !mine {
        spec.acquire_time = Some(MicroTime(now.1));
        spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
    }
    let notes = new.metadata.annotations.get_or_insert_with(BTreeMap::new);
    match trouble {
        None => {
            spec.renew_time = Some(MicroTime(now.1));
            notes.remove(annotations::NOT_RENEWED_BECAUSE);
        }
        Some(trouble) => {
            notes.insert(
                annotations::NOT_RENEWED_BECAUSE.to_owned(),
                trouble.to_owned(),
            );
        }
    }
    if lease == Some(&new) {
        Step::Nothing
    } else {
        Step::Write(Box::new(new))
    }
}

/// Keeps the Lease until it is cancelled, then lets go of it.
pub async fn run(
    ctx: Context,
    config: LeaseConfig,
    holder: watch::Sender<Holder>,
    term: watch::Sender<Term>,
    metrics: Metrics,
    cancel: CancellationToken,
) {
    let api: Api<Lease> = Api::namespaced(ctx.client.clone(), leases::NODE_AGENT_NAMESPACE);
    let pulse = ctx.health.pulse("lease", config.renew * 3 + DEADLINE * 4);
    let mut silence = None;
    let mut libvirt = ctx.libvirt.clone();
    loop {
        pulse.beat();
        let trouble = trouble(&ctx).await;
        let sent = Instant::now();
        let outcome = beat(&api, &ctx, &config, &mut silence, trouble.as_deref()).await;
        let seen = match outcome {
            Ok(seen) => {
                ctx.health.set_missing("lease", None);
                if trouble.is_none() && seen == Holder::Me {
                    metrics.heartbeat_renewals.inc();
                    term.send_modify(|term| *term = term.renew(sent));
                }
                seen
            }
            Err(error) => {
                tracing::warn!(error, "failed to keep the heartbeat Lease");
                ctx.health.set_missing("lease", Some(error));
                // Whoever was known to hold it still does, as far as anybody knows.
                holder.borrow().clone()
            }
        };
        holder.send_if_modified(|known| {
            let new = *known != seen;
            if new {
                tracing::info!(holder = ?seen, "who reports for this node");
                *known = seen;
            }
            new
        });
        tokio::select! {
            () = tokio::time::sleep(jitter(config.renew)) => {}
            // A lost or found libvirt is said at once.
            changed = libvirt.changed() => if changed.is_err() { break },
            () = cancel.cancelled() => break,
        }
    }
    if *holder.borrow() == Holder::Me
        && let Err(error) = release(&api, &ctx, &config).await
    {
        tracing::warn!(error, "failed to let go of the heartbeat Lease");
    }
}

/// Why the heartbeat must not be renewed.
async fn trouble(ctx: &Context) -> Option<String> {
    let connection = ctx.libvirt.borrow().clone();
    let Some(connection) = connection else {
        return Some("the agent is not connected to libvirt".to_owned());
    };
    let asked = connection
        .with_call_timeout(LIBVIRT_DEADLINE)
        .lib_version()
        .await;
    // The text is the same each time, so that saying it again is not a write.
    asked
        .err()
        .map(|error| format!("libvirt does not answer: {error}"))
}

async fn beat(
    api: &Api<Lease>,
    ctx: &Context,
    config: &LeaseConfig,
    silence: &mut Option<Silence>,
    trouble: Option<&str>,
) -> Result<Holder, String> {
    let lease = within(DEADLINE, api.get_opt(&ctx.node)).await?;
    let now = (Instant::now(), Timestamp::now());
    match decide(lease.as_ref(), silence, config, &ctx.node, trouble, now) {
        Step::Wait(other) => Ok(Holder::Other(other)),
        Step::Nothing => Ok(Holder::Me),
        Step::Write(new) if lease.is_some() => {
            within(
                DEADLINE,
                api.replace(&ctx.node, &PostParams::default(), &new),
            )
            .await?;
            Ok(Holder::Me)
        }
        Step::Write(new) => {
            within(DEADLINE, api.create(&PostParams::default(), &new)).await?;
            Ok(Holder::Me)
        }
    }
}

async fn release(api: &Api<Lease>, ctx: &Context, config: &LeaseConfig) -> Result<(), String> {
    let Some(mut lease) = within(DEADLINE, api.get_opt(&ctx.node)).await? else {
        return Ok(());
    };
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    if spec.holder_identity.as_ref() != Some(&config.identity) {
        return Ok(());
    }
    spec.holder_identity = None;
    let because = "the agent was told to end".to_owned();
    let notes = lease.metadata.annotations.get_or_insert_with(BTreeMap::new);
    notes.insert(annotations::NOT_RENEWED_BECAUSE.to_owned(), because);
    within(
        DEADLINE,
        api.replace(&ctx.node, &PostParams::default(), &lease),
    )
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(identity: &str) -> LeaseConfig {
        LeaseConfig {
            identity: identity.to_owned(),
            renew: Duration::from_secs(10),
            duration: Duration::from_secs(40),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn written(step: Step) -> Lease {
        match step {
            Step::Write(lease) => *lease,
            other => panic!("{other:?}"),
        }
    }

    fn renewed(lease: &Lease) -> Option<Timestamp> {
        lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0)
    }

    #[test]
    fn a_beat_renews_while_libvirt_answers_and_says_why_when_it_does_not() {
        let begin = Instant::now();
        let mut none = None;
        let me = config("me");
        let first = written(decide(None, &mut none, &me, "hv1", None, (begin, at(100))));
        assert_eq!(renewed(&first), Some(at(100)));
        let mute = written(decide(
            Some(&first),
            &mut none,
            &me,
            "hv1",
            Some("mute"),
            (begin, at(110)),
        ));
        assert_eq!(renewed(&mute), Some(at(100)));
        let notes = mute.metadata.annotations.clone().unwrap();
        assert_eq!(notes[annotations::NOT_RENEWED_BECAUSE], "mute");
        // Saying the same again is not a write.
        let again = decide(
            Some(&mute),
            &mut none,
            &me,
            "hv1",
            Some("mute"),
            (begin, at(120)),
        );
        assert_eq!(again, Step::Nothing);
        let back = written(decide(
            Some(&mute),
            &mut none,
            &me,
            "hv1",
            None,
            (begin, at(130)),
        ));
        assert_eq!(renewed(&back), Some(at(130)));
        assert!(back.metadata.annotations.unwrap().is_empty());
    }

    #[test]
    fn the_agent_stops_acting_before_anybody_may_take_its_host_for_dead() {
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let term = Term::new(Duration::from_secs(40), begin);
        assert!(!term.holds(begin), "it never held the Lease");
        assert_eq!(term.late_at(), at(25), "its first renewal is awaited");
        let term = term.renew(begin);
        assert_eq!(term.ends(), Some(at(25)));
        assert!(term.holds(at(24)) && !term.holds(at(25)));
        // A renewal in time, and one that comes late, but before anybody may act.
        let term = term.renew(at(10)).renew(at(49));
        assert!(term.holds(at(73)) && !term.holds(at(74)));
        assert_eq!(term.number(), 0);
        // The whole duration has passed: what was before says nothing any more.
        let term = term.renew(at(89));
        assert!(term.holds(at(90)));
        assert_eq!(term.number(), 1);
        // An observer waits for the whole duration after a renewal, which it sees later than it was
        // sent; whatever the duration is, the agent has stopped by then.
        for seconds in [1, 8, 40, 600] {
            let duration = Duration::from_secs(seconds);
            assert!(acts_for(duration) <= duration - duration / 4);
        }
    }

    #[test]
    fn a_second_agent_waits_until_the_first_is_silent_by_its_own_clock() {
        let begin = Instant::now();
        let mut none = None;
        let first = written(decide(
            None,
            &mut none,
            &config("a"),
            "hv1",
            None,
            (begin, at(100)),
        ));
        let b = config("b");
        let mut silence = None;
        // The wall clock is a year ahead: that alone proves nothing.
        let far = at(100 + 31_536_000);
        let step = decide(Some(&first), &mut silence, &b, "hv1", None, (begin, far));
        assert_eq!(step, Step::Wait("a".into()));
        let later = begin + Duration::from_secs(39);
        let step = decide(Some(&first), &mut silence, &b, "hv1", None, (later, far));
        assert_eq!(step, Step::Wait("a".into()));
        // A renewal begins the wait anew.
        let mut alive = first.clone();
        alive.spec.as_mut().unwrap().renew_time = Some(MicroTime(at(138)));
        let step = decide(Some(&alive), &mut silence, &b, "hv1", None, (later, far));
        assert_eq!(step, Step::Wait("a".into()));
        let silent = later + Duration::from_secs(40);
        let taken = written(decide(
            Some(&alive),
            &mut silence,
            &b,
            "hv1",
            None,
            (silent, far),
        ));
        let spec = taken.spec.unwrap();
        assert_eq!(spec.holder_identity.as_deref(), Some("b"));
        assert_eq!(spec.lease_transitions, Some(2));
    }

    #[test]
    fn a_lease_that_was_let_go_of_is_taken_at_once() {
        let begin = Instant::now();
        let mut none = None;
        let mut free = written(decide(
            None,
            &mut none,
            &config("a"),
            "hv1",
            None,
            (begin, at(1)),
        ));
        free.spec.as_mut().unwrap().holder_identity = None;
        let step = decide(
            Some(&free),
            &mut none,
            &config("b"),
            "hv1",
            None,
            (begin, at(2)),
        );
        let spec = written(step).spec.unwrap();
        assert_eq!(spec.holder_identity.as_deref(), Some("b"));
    }
}
