//! The HA agent at work: collects failures, lets them settle, and has done what is decided.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cobalt_api::conditions::HypervisorCondition;
use cobalt_api::hypervisor::HaPolicy;
use cobalt_libvirt::{Connection, Domain, DomainState, Event, Lifecycle};
use cobalt_runtime::{Note, Severity, chain};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::decide::{Action, Case, Decision, History, Restart, Situation, decide};
use super::trigger::{self, Duty, Failure, Memory};
use super::{HaConfig, HaMetrics, act};
use crate::context::Context;
use crate::lease::{Holder, Term};

/// How long libvirt may take to answer a question. A start may take longer and has the connection's
/// own deadline.
const LIBVIRT_DEADLINE: Duration = Duration::from_secs(5);
/// When libvirt does not answer, it is asked again after this long.
const ASK_AGAIN: Duration = Duration::from_secs(2);
const TURN: Duration = Duration::from_secs(60);

/// A failure that settles.
#[derive(Debug, Clone)]
struct Pending {
    name: String,
    failure: Failure,
    due: Instant,
    /// The term of the Lease in which it failed.
    term: u64,
    /// It was said that it waits for the Lease.
    waits: bool,
}

/// What came of an action.
#[derive(Debug)]
pub(super) struct Done {
    uuid: Uuid,
    name: String,
    failure: Failure,
    action: Action,
    result: Result<String, String>,
    /// How the instance was after it.
    situation: Option<Situation>,
}

#[derive(Debug)]
pub(super) struct Agent {
    ctx: Context,
    config: HaConfig,
    metrics: HaMetrics,
    holder: watch::Receiver<Holder>,
    term: watch::Receiver<Term>,
    /// The Lease was not renewed in time when that was last looked at.
    lapsed: bool,
    memory: Memory,
    history: History,
    /// The policies of instances; they stay for a while when an instance is gone.
    policies: BTreeMap<Uuid, (Option<HaPolicy>, Instant)>,
    /// Instances that ran when they were last seen.
    ran: BTreeSet<Uuid>,
    pending: BTreeMap<Uuid, Pending>,
    /// Instances that are acted on, and what has happened to them since.
    busy: BTreeMap<Uuid, Option<Pending>>,
    pub(super) tasks: JoinSet<Done>,
}

impl Agent {
    pub(super) fn new(
        ctx: Context,
        config: HaConfig,
        metrics: HaMetrics,
        holder: watch::Receiver<Holder>,
        term: watch::Receiver<Term>,
    ) -> Self {
        Self {
            ctx,
            config,
            metrics,
            holder,
            term,
            lapsed: false,
            memory: Memory::default(),
            history: History::default(),
            policies: BTreeMap::new(),
            ran: BTreeSet::new(),
            pending: BTreeMap::new(),
            busy: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Another agent of this node reacts, and reports.
    fn stands_by(&self) -> bool {
        matches!(*self.holder.borrow(), Holder::Other(_))
    }

    /// It holds the Lease, and could not renew it in time.
    fn has_lapsed(&self, now: Instant) -> bool {
        *self.holder.borrow() == Holder::Me && !self.term.borrow().holds(now)
    }

    /// Says whether instances that fail are acted on, where that has changed.
    pub(super) fn say_whether_it_acts(&mut self) {
        let now = Instant::now();
        let lapsed = self.has_lapsed(now);
        if lapsed && now < self.term.borrow().late_at() {
            // The first renewal is on its way.
            return;
        }
        self.history.prune(self.config.window, now);
        let braked = !self.history.brake_is_over();
        self.metrics.braked.set(i64::from(braked));
        self.metrics.lapsed.set(i64::from(lapsed));
        let holder = self.holder.borrow().clone();
        let hypervisor = self.ctx.hypervisor.borrow().object().cloned();
        // Without its Hypervisor there is nothing to write to.
        let enabled = hypervisor.is_none_or(|found| found.spec.high_availability());
        let said = super::decide::statement(&holder, lapsed, enabled, braked, &self.config);
        if let Some(statement) = said {
            let text = statement.message.clone();
            self.ctx
                .conditions
                .set(HypervisorCondition::InstanceRecovery, statement);
            if lapsed != self.lapsed {
                let (severity, reason) = if lapsed {
                    (Severity::Warning, "InstanceRecoveryStopped")
                } else {
                    (Severity::Normal, "InstanceRecoveryResumed")
                };
                let note = Note {
                    severity,
                    reason,
                    action: "Notify",
                    text,
                };
                let about = self.ctx.hypervisor_reference();
                self.ctx.recorder.report(&about, note);
            }
        }
        self.lapsed = lapsed;
    }

    fn connection(&self) -> Option<Connection> {
        self.ctx.libvirt.borrow().clone()
    }

    pub(super) fn learn_policies(&mut self) {
        let now = Instant::now();
        for (uuid, facts) in self.ctx.domains.borrow().iter() {
            self.policies.insert(*uuid, (facts.ha_policy, now));
        }
        let window = self.config.window;
        let there = self.ctx.domains.borrow().clone();
        self.policies.retain(|uuid, (_, seen)| {
            there.contains_key(uuid) || now.saturating_duration_since(*seen) < window
        });
    }

    pub(super) fn event(&mut self, event: &Event) {
        if let Event::Lifecycle { domain, event, .. } = event {
            match event {
                Lifecycle::Started | Lifecycle::Resumed => drop(self.ran.insert(domain.uuid)),
                Lifecycle::Stopped => drop(self.ran.remove(&domain.uuid)),
                _ => {}
            }
        }
        if let Some((domain, failure)) = self.memory.read(event, Instant::now()) {
            self.failed(&domain, failure);
        }
    }

    /// Looks at every instance: events may have been missed.
    pub(super) async fn scan(&mut self) {
        let Some(connection) = self.connection() else {
            return;
        };
        let connection = connection.with_call_timeout(LIBVIRT_DEADLINE);
        let states = match act::states(&connection).await {
            Ok(states) => states,
            Err(error) => {
                tracing::debug!(error = chain(&error), "failed to look at the instances");
                return;
            }
        };
        let mut running = BTreeSet::new();
        for (domain, status) in states {
            if status.state == DomainState::Running {
                running.insert(domain.uuid);
            }
            self.memory.found(domain.uuid, status, Instant::now());
            let ran = self.ran.contains(&domain.uuid);
            if let Some(failure) = trigger::by_state(status, ran) {
                self.failed(&domain, failure);
            }
        }
        self.ran = running;
    }

    /// An instance has failed.
    fn failed(&mut self, domain: &Domain, failure: Failure) {
        if self.stands_by() {
            return;
        }
        let (uuid, now) = (domain.uuid, Instant::now());
        self.metrics.failed(failure.trigger);
        self.history.prune(self.config.window, now);
        let pending = Pending {
            name: domain.name.clone(),
            due: now + self.history.wait(uuid, self.config.settle),
            term: self.term.borrow().number(),
            waits: false,
            failure,
        };
        if let Duty::Nobody(why) = &pending.failure.duty {
            let why = why.clone();
            return self.notify(uuid, &pending, &why);
        }
        self.history.failed(uuid, now);
        match self.busy.get_mut(&uuid) {
            Some(since) => *since = Some(pending),
            // The first event of a failure says best what it is.
            None => drop(self.pending.entry(uuid).or_insert(pending)),
        }
    }

    pub(super) fn next_due(&self) -> tokio::time::Instant {
        let due = self.pending.values().map(|pending| pending.due).min();
        let now = Instant::now();
        // When the Lease is not renewed in time, that is to be said.
        let lapses = Some(self.term.borrow().late_at()).filter(|at| *at > now);
        let turn = now + TURN;
        let first = due.unwrap_or(turn).min(lapses.unwrap_or(turn)).min(turn);
        tokio::time::Instant::from_std(first)
    }

    /// Decides about every failure that has settled.
    pub(super) async fn settle(&mut self) {
        let now = Instant::now();
        self.history.prune(self.config.window, now);
        let due: Vec<Uuid> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.due <= now)
            .map(|(uuid, _)| *uuid)
            .collect();
        for uuid in due {
            if self.has_lapsed(now) {
                self.wait_for_lease(uuid, now);
                continue;
            }
            let seen = match self.connection() {
                Some(connection) => {
                    let connection = connection.with_call_timeout(LIBVIRT_DEADLINE);
                    act::situation(&connection, uuid).await.ok()
                }
                None => None,
            };
            let Some((domain, situation)) = seen else {
                // Without libvirt nothing is known, and nothing can be done.
                if let Some(pending) = self.pending.get_mut(&uuid) {
                    pending.due = now + ASK_AGAIN;
                }
                continue;
            };
            if let Some(pending) = self.pending.remove(&uuid) {
                self.handle(uuid, domain, situation, pending);
            }
        }
    }

    /// Whoever is not known to be alive must not start what others may start.
    fn wait_for_lease(&mut self, uuid: Uuid, now: Instant) {
        let Some(pending) = self.pending.get_mut(&uuid) else {
            return;
        };
        pending.due = now + ASK_AGAIN;
        let waited = std::mem::replace(&mut pending.waits, true);
        let pending = pending.clone();
        if !waited {
            let failure = &pending.failure;
            let note = Note {
                severity: Severity::Warning,
                reason: failure.trigger.reason(),
                action: "Wait",
                text: format!(
                    "{}: {}; nothing is done before the Lease of the node is renewed",
                    failure.trigger, failure.detail
                ),
            };
            self.report(uuid, &pending.name, note);
        }
    }

    fn handle(
        &mut self,
        uuid: Uuid,
        domain: Option<Domain>,
        situation: Situation,
        pending: Pending,
    ) {
        let hypervisor = self.ctx.hypervisor.borrow().object().cloned();
        let spec = hypervisor.as_ref().map(|hypervisor| &hypervisor.spec);
        let own = self.policies.get(&uuid).and_then(|(policy, _)| *policy);
        let case = Case {
            trigger: pending.failure.trigger,
            duty: &pending.failure.duty,
            situation,
            policy: own
                .or_else(|| spec.and_then(|spec| spec.ha_policy))
                .unwrap_or(self.config.policy),
            // Without its Hypervisor the agent does not know whether it may.
            enabled: spec.is_some_and(|spec| spec.high_availability()),
            holder: *self.holder.borrow() == Holder::Me,
            interrupted: self.term.borrow().number() != pending.term,
            record: self.history.record(uuid),
        };
        let Decision {
            action,
            why,
            braked,
        } = decide(&case, &self.config);
        tracing::debug!(instance = %uuid, ?case, ?action, why, "decided");
        match (action, domain) {
            _ if braked => self.brake(uuid, &pending, &why),
            (Action::Restart(how), Some(domain)) => {
                self.say_failure(uuid, &pending, "Restart");
                self.restart(domain, how, pending);
            }
            (Action::Evict, _) => {
                self.say_failure(uuid, &pending, "Evict");
                self.evict(uuid, pending, &why);
            }
            (Action::Notify | Action::Restart(_), _) => self.notify(uuid, &pending, &why),
        }
    }

    fn restart(&mut self, domain: Domain, how: Restart, pending: Pending) {
        let uuid = domain.uuid;
        self.history.restarted(uuid, Instant::now());
        self.busy.insert(uuid, None);
        let connection = self.connection();
        self.tasks.spawn(async move {
            let result = match &connection {
                Some(connection) => act::restart(connection, &domain, how)
                    .await
                    .map(|()| "restarted".to_owned())
                    .map_err(|error| chain(&error)),
                None => Err("libvirt is not connected".to_owned()),
            };
            let situation = match &connection {
                Some(connection) => act::situation(connection, uuid).await.ok(),
                None => None,
            };
            Done {
                uuid,
                name: pending.name,
                failure: pending.failure,
                action: Action::Restart(how),
                result,
                situation: situation.map(|(_, situation)| situation),
            }
        });
    }

    fn evict(&mut self, uuid: Uuid, pending: Pending, why: &str) {
        self.history.evicted(uuid, Instant::now());
        self.busy.insert(uuid, None);
        let ctx = self.ctx.clone();
        let reason = format!("{}: {}; {why}", pending.name, pending.failure.trigger);
        self.tasks.spawn(async move {
            let result = act::evict(&ctx, uuid, &reason).await;
            Done {
                uuid,
                name: pending.name,
                failure: pending.failure,
                action: Action::Evict,
                result,
                situation: None,
            }
        });
    }

    /// An action has ended.
    pub(super) fn done(&mut self, done: Done) {
        let since = self.busy.remove(&done.uuid).flatten();
        let trigger = done.failure.trigger;
        self.metrics
            .acted(trigger, done.action, done.result.is_ok());
        let note = match (done.action, &done.result) {
            (Action::Evict, Ok(name)) => Note {
                severity: Severity::Normal,
                reason: "InstanceEvicted",
                action: "Evict",
                text: format!("Eviction {name} moves it"),
            },
            (Action::Evict, Err(error)) => Note {
                severity: Severity::Warning,
                reason: "InstanceEvictionFailed",
                action: "Evict",
                text: format!("failed to ask for its Eviction: {error}"),
            },
            (_, Ok(_)) => Note {
                severity: Severity::Normal,
                reason: "InstanceRestarted",
                action: "Restart",
                text: "it was restarted".to_owned(),
            },
            (_, Err(error)) => Note {
                severity: Severity::Warning,
                reason: "InstanceRestartFailed",
                action: "Restart",
                text: format!("failed to restart it: {error}"),
            },
        };
        self.report(done.uuid, &done.name, note);
        let down =
            matches!(done.action, Action::Restart(_)) && done.situation != Some(Situation::Running);
        // Nobody may tell that it is still down, or down again.
        let again = since.or_else(|| {
            down.then(|| Pending {
                name: done.name,
                failure: done.failure,
                due: Instant::now(),
                term: self.term.borrow().number(),
                waits: false,
            })
        });
        if let Some(mut again) = again {
            again.due = Instant::now() + self.history.wait(done.uuid, self.config.settle);
            self.pending.entry(done.uuid).or_insert(again);
        }
    }

    fn say_failure(&self, uuid: Uuid, pending: &Pending, action: &'static str) {
        let failure = &pending.failure;
        let note = Note {
            severity: Severity::Warning,
            reason: failure.trigger.reason(),
            action,
            text: format!("{}: {}", failure.trigger, failure.detail),
        };
        self.report(uuid, &pending.name, note);
    }

    /// Nothing is done; that is said once per window and instance, however often it fails.
    fn notify(&mut self, uuid: Uuid, pending: &Pending, why: &str) {
        let failure = &pending.failure;
        self.metrics.acted(failure.trigger, Action::Notify, true);
        if self.history.is_news(uuid, failure.trigger, Instant::now()) {
            let note = Note {
                severity: Severity::Warning,
                reason: failure.trigger.reason(),
                action: "Notify",
                text: format!("{}: {}; left alone: {why}", failure.trigger, failure.detail),
            };
            self.report(uuid, &pending.name, note);
        }
    }

    /// The host has failed. That is said once; each instance that is left down because of it is named.
    fn brake(&mut self, uuid: Uuid, pending: &Pending, why: &str) {
        self.metrics.braked.set(1);
        self.notify(uuid, pending, why);
        if self.history.brake_is_news(Instant::now()) {
            let note = Note {
                severity: Severity::Warning,
                reason: "ManyInstancesFail",
                action: "Notify",
                text: format!("{why}; no instance is restarted or evicted until that is over"),
            };
            let about = self.ctx.hypervisor_reference();
            self.ctx.recorder.report(&about, note);
        }
    }

    /// An Event about one instance of the host. It names the instance in its reference as well, so
    /// that the Events of one instance are found without reading their text.
    fn report(&self, uuid: Uuid, name: &str, mut note: Note) {
        note.text = format!("instance {name} ({uuid}): {}", note.text);
        let mut about = self.ctx.hypervisor_reference();
        about.field_path = Some(format!("status.instances{{{uuid}}}"));
        self.ctx.recorder.report(&about, note);
    }
}
