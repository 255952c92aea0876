//! From what is seen to what is said and done: pure, without a clock or a socket.
//!
//! The status is the only memory that counts. A row is `Moving` from before Nova is asked until it
//! is known what came of it, so that a crash in between leaves a question that Nova can answer. What
//! was read is asked for again whenever it is too old for the question at hand.
//!
//! A turn has this order: what is on the host (here), what became of those on their way (`follow`),
//! whether the others can be moved (`rest`), whether it is over (`end`) and nothing is left (`agree`),
//! who goes next (`start`), and what is read again when (`look`).

use std::collections::{BTreeMap, BTreeSet};

use cobalt_api::conditions::{self, EvictionCondition as Type, Reason, Status, Wanted};
use cobalt_api::eviction::{
    Eviction, EvictionInstance, EvictionStatus, InstanceCounts, InstanceState as State, Method,
    Outcome, Strategy,
};
use cobalt_api::names::finalizers;
use cobalt_api::wait::Wait;
use cobalt_openstack::compute::Server;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use self::look::Glance;
use super::budget::Room;
use super::seen::{Action, Seen};
use super::witness::Report;
use crate::pass::cut;

mod age;
mod agree;
mod arrive;
mod end;
mod follow;
mod look;
mod rest;
mod start;
mod stuck;

/// Two empty lists have this much time between them.
const BETWEEN_EMPTY: SignedDuration = SignedDuration::from_secs(1);
/// The schema's limit.
const MOST_ROWS: usize = 1024;

/// What is said and done.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The status as it shall be.
    pub status: EvictionStatus,
    /// What is to be done, after the status is written.
    pub actions: BTreeSet<Action>,
    /// When to look again although nothing has changed.
    pub wake: Option<Timestamp>,
}

/// Why the eviction comes to an end before every instance has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Cancelled,
    TimedOut,
}

/// Decides.
#[must_use]
pub fn decide(seen: &Seen, now: Timestamp) -> Decision {
    let mut turn = Turn::new(seen, now);
    turn.run();
    turn.finish()
}

struct Turn<'a> {
    seen: &'a Seen,
    now: Timestamp,
    status: EvictionStatus,
    before: Option<Wait>,
    actions: BTreeSet<Action>,
    wake: Option<Timestamp>,
    room: Room,
    /// The present list of servers by id; empty if there is none.
    servers: BTreeMap<&'a str, &'a Server>,
    stop: Option<Stop>,
    /// How those can be moved that can.
    methods: BTreeMap<String, Method>,
    /// What Placement says of those that are `Moving`. What came of those that have ended, and which
    /// they are, Nova is asked later; their places are free.
    glance: Option<Glance>,
    /// One could go if it were known which targets have their places back.
    cramped: bool,
    /// The cell of the host does not answer.
    cell_down: bool,
}

impl<'a> Turn<'a> {
    fn new(seen: &'a Seen, now: Timestamp) -> Self {
        let mut status = seen.eviction.status.clone().unwrap_or_default();
        let before = status.waiting_for.take();
        let servers = seen.reads.servers.iter().flat_map(|read| &read.value);
        let mut turn = Self {
            seen,
            now,
            before,
            actions: BTreeSet::new(),
            wake: None,
            room: seen.room.clone(),
            servers: servers.map(|one| (one.id.as_str(), one)).collect(),
            stop: None,
            methods: BTreeMap::new(),
            glance: None,
            cramped: false,
            cell_down: false,
            status,
        };
        turn.rebase();
        turn
    }

    fn finish(mut self) -> Decision {
        self.status.observed_generation = self.seen.eviction.metadata.generation;
        Decision {
            status: self.status,
            actions: self.actions,
            wake: self.wake,
        }
    }

    fn run(&mut self) {
        let eviction = &self.seen.eviction;
        if self.status.outcome.is_some() {
            return self.release();
        }
        let deleted = eviction.metadata.deletion_timestamp.is_some();
        if deleted && !is_held(eviction) {
            return;
        }
        self.stop = self.stops();
        if self.status.started_at.is_none() && !self.begins() {
            return;
        }
        let asked = self
            .status
            .instances
            .iter()
            .any(|row| row.attempt.is_some());
        if self.stop.is_some() && !(asked && self.seen.source.exists) {
            self.cancel_rest();
            let counts = InstanceCounts::of(&self.status.instances);
            return self.stopped(counts);
        }
        if let Some(trouble) = &self.seen.reads.trouble
            && trouble.retry_at > self.now
        {
            self.wake_at(trouble.retry_at);
            self.wait("Nova", trouble.text.clone());
            return self.say_running();
        }
        if !eviction.spec.dry_run() && !deleted && !is_held(eviction) {
            // Nothing is moved before a deletion can be noticed.
            self.actions.insert(Action::Hold);
        }
        let Some(host) = self.host() else {
            return self.say_running();
        };
        if !self.reads(&host) {
            return self.say_running();
        }
        self.rows(&host);
        self.follow(&host);
        self.judge_rest(&host);
        if self.ends(&host) {
            return;
        }
        if !eviction.spec.dry_run() && self.stop.is_none() && is_held(eviction) {
            self.start();
        }
        self.look_again(&host);
        self.say_running();
    }

    fn stops(&self) -> Option<Stop> {
        let eviction = &self.seen.eviction;
        if eviction.spec.cancel() || eviction.metadata.deletion_timestamp.is_some() {
            return Some(Stop::Cancelled);
        }
        let started = self.status.started_at.as_ref()?.0;
        let limit = eviction.spec.deadline().ok().flatten()?;
        let limit = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
        self.is_over(started, limit).then_some(Stop::TimedOut)
    }

    /// The first step. Whether to go on.
    fn begins(&mut self) -> bool {
        let eviction = &self.seen.eviction;
        if self.stop.is_some() {
            self.end(Outcome::Cancelled, "it was cancelled before it began");
            return false;
        }
        if eviction.spec.strategy() == Strategy::Evacuate {
            self.end(
                Outcome::Failed,
                "the strategy Evacuate is for a dead host that was fenced, which is not done yet: \
                 use LiveMigrate, or evacuate its instances with Nova",
            );
            return false;
        }
        if !self.seen.source.exists {
            self.wait(
                "Hypervisor",
                format!("there is no Hypervisor \"{}\"", eviction.spec.hypervisor),
            );
            return false;
        }
        let identity = match &self.seen.source.identity {
            Err(why) => {
                self.wait("Nova", why.clone());
                return false;
            }
            Ok(None) if self.seen.source.was_registered => {
                self.say(
                    Type::PreflightChecksSucceeded,
                    Status::False,
                    Reason::Failed,
                    "Nova does not know the host any more",
                );
                self.end(
                    Outcome::Failed,
                    "Nova does not know the host any more, so nobody knows what runs on it: see \
                     whether its nova-compute service was deleted or renamed",
                );
                return false;
            }
            Ok(None) => {
                self.never_known();
                return false;
            }
            Ok(Some(identity)) => identity,
        };
        let whole = eviction.spec.instances.is_empty();
        if whole && !eviction.spec.dry_run() && identity.is_enabled() {
            let text = format!(
                "the host takes new instances: set spec.maintenance of the Hypervisor \"{}\", or \
                 disable its nova-compute service",
                eviction.spec.hypervisor
            );
            self.say(
                Type::PreflightChecksSucceeded,
                Status::False,
                Reason::Failed,
                &text,
            );
            self.wait("HostDisabled", text);
            return false;
        }
        self.status.started_at = Some(self.time());
        self.status
            .hypervisor_service_id
            .clone_from(&identity.hypervisor_id);
        true
    }

    /// Nova does not know the host and never did: then nothing is there, unless libvirt has domains.
    fn never_known(&mut self) {
        let seen = self.seen;
        let Some(read) = &seen.reads.libvirt else {
            self.actions.insert(Action::ReadDomains);
            return self.wait("Libvirt", "libvirt of the host is asked".to_owned());
        };
        match &read.value {
            Report::Domains(domains) if !domains.is_empty() => {
                let text = format!(
                    "Nova does not know the host, and libvirt has {} domains there",
                    domains.len()
                );
                self.libvirt_again();
                self.wait("WitnessesDisagree", text);
            }
            Report::Domains(_) | Report::Silent(_) => self.end(
                Outcome::Succeeded,
                "Nova never knew the host: there is nothing to move",
            ),
        }
    }

    /// What Nova calls the host, and whether it lives.
    fn host(&mut self) -> Option<String> {
        match &self.seen.source.identity {
            Ok(Some(identity)) => Some(identity.host.clone()),
            Ok(None) => {
                // It was there when this began: nothing is concluded from its absence.
                let text = "Nova does not know the host any more: its nova-compute service was \
                            deleted or renamed";
                if self.waited("HostUnknown", self.seen.policy.host_patience) {
                    self.give_up(text);
                } else {
                    self.wait("HostUnknown", text.to_owned());
                }
                None
            }
            Err(why) => {
                self.wait("Nova", why.clone());
                None
            }
        }
    }

    /// Whether all has been read that the rest needs.
    fn reads(&mut self, host: &str) -> bool {
        let reads = &self.seen.reads;
        let fresh = |at: Option<Timestamp>| {
            at.is_some_and(|at| {
                self.status
                    .started_at
                    .as_ref()
                    .is_some_and(|start| at >= start.0)
            })
        };
        let servers = fresh(reads.servers.as_ref().map(|read| read.at));
        let migrations = fresh(reads.migrations.as_ref().map(|read| read.at));
        let libvirt = fresh(reads.libvirt.as_ref().map(|read| read.at));
        let host = host.to_owned();
        if !servers {
            self.actions
                .insert(Action::ReadServers { host: host.clone() });
        }
        if !migrations {
            self.actions.insert(Action::ReadMigrations { host });
        }
        if !libvirt {
            self.actions.insert(Action::ReadDomains);
        }
        if !servers || !migrations || !libvirt {
            return false;
        }
        if reads.targets.is_none() && !self.servers.is_empty() {
            self.read_targets();
            return false;
        }
        true
    }

    fn read_targets(&mut self) {
        if let Ok(Some(identity)) = &self.seen.source.identity {
            let provider = identity.hypervisor_id.clone();
            self.actions.insert(Action::ReadTargets { provider });
        }
    }

    /// Makes the rows say what is on the host.
    fn rows(&mut self, host: &str) {
        let wanted: BTreeSet<&str> = self
            .seen
            .eviction
            .spec
            .instances
            .iter()
            .map(String::as_str)
            .collect();
        let listed_at = self
            .seen
            .reads
            .servers
            .as_ref()
            .map_or(self.now, |read| read.at);
        let time = self.time();
        // Those that are here, and those that were asked for by name and may not be.
        let here = self.servers.keys().copied();
        let in_scope = here.filter(|id| wanted.is_empty() || wanted.contains(id));
        let new: BTreeSet<&str> = in_scope
            .chain(wanted.iter().copied())
            .filter(|id| !self.status.instances.iter().any(|row| row.id == *id))
            .collect();
        // Those that there is no room for come when others have left.
        let left = MOST_ROWS.saturating_sub(self.status.instances.len());
        for id in new.into_iter().take(left) {
            self.status.instances.push(EvictionInstance {
                since: Some(time.clone()),
                from: Some(host.to_owned()),
                ..EvictionInstance::new(id)
            });
        }
        for row in &mut self.status.instances {
            let Some(server) = self.servers.get(row.id.as_str()) else {
                continue;
            };
            row.name = Some(cut(server.name.clone(), 255)).filter(|name| !name.is_empty());
            row.status = Some(cut(server.status.as_str().to_owned(), 64));
            row.memory_mb = i64::try_from(server.flavor.ram).ok();
            let since = row.since.as_ref().map_or(Timestamp::MIN, |since| since.0);
            let newer = listed_at >= since + SignedDuration::from_secs(2);
            if matches!(row.state, State::Moved | State::Gone) && newer {
                // It was away and is here again.
                *row = EvictionInstance {
                    name: row.name.clone(),
                    status: row.status.clone(),
                    memory_mb: row.memory_mb,
                    from: Some(host.to_owned()),
                    since: Some(time.clone()),
                    avoid: row.avoid.clone(),
                    ..EvictionInstance::new(row.id.clone())
                };
            }
        }
        self.status.instances.sort_by(|a, b| a.id.cmp(&b.id));
    }

    fn settle(&mut self, row: &mut EvictionInstance, state: State) {
        row.state = state;
        row.since = Some(self.time());
        row.deadline = None;
    }

    fn say(&mut self, condition: Type, status: Status, reason: Reason, message: &str) {
        let wanted = Wanted {
            condition,
            status,
            reason,
            message: cut(message.to_owned(), 1024),
            observed_generation: None,
        };
        let new = wanted.build(&self.status.conditions, self.second());
        conditions::set(&mut self.status.conditions, new);
    }

    /// The first who waits is heard.
    fn wait(&mut self, reason: &str, message: String) {
        if self.status.waiting_for.is_some() {
            return;
        }
        let before = self
            .before
            .as_ref()
            .filter(|before| before.reason == reason);
        self.status.waiting_for = Some(Wait {
            reason: reason.to_owned(),
            message: Some(cut(message, 1024)),
            since: before.map_or_else(|| self.time(), |before| before.since.clone()),
            deadline: None,
        });
    }

    /// Whether something has been waited for at least so long.
    fn waited(&mut self, reason: &str, long: SignedDuration) -> bool {
        let Some(before) = self
            .before
            .as_ref()
            .filter(|before| before.reason == reason)
        else {
            self.wake_in(long);
            return false;
        };
        let until = self.over_at(before.since.0, long);
        self.wake_at(until);
        until <= self.now
    }

    fn wake_in(&mut self, wait: SignedDuration) {
        self.wake_at(self.now + wait);
    }

    fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |present| present.min(at)));
    }

    /// Now, as the API server keeps it.
    fn second(&self) -> Timestamp {
        Timestamp::from_second(self.now.as_second()).unwrap_or(self.now)
    }

    fn time(&self) -> Time {
        Time(self.second())
    }
}

/// Whether the Eviction cannot disappear unnoticed.
#[must_use]
pub fn is_held(eviction: &Eviction) -> bool {
    eviction
        .finalizers()
        .iter()
        .any(|one| one == finalizers::EVICTION_IN_FLIGHT)
}

/// What people call an instance.
#[must_use]
pub fn label(row: &EvictionInstance) -> String {
    row.name.clone().unwrap_or_else(|| row.id.clone())
}
