//! From what is seen to what is said and done: pure, without a clock or a socket.
//!
//! The status is the only memory that counts. A row is `Moving` from before Nova is asked until it
//! is known what came of it, so that a crash in between leaves a question that Nova can answer. What
//! was read is asked for again whenever it is too old for the question at hand.

use std::collections::{BTreeMap, BTreeSet};

use cobalt_api::conditions::{self, EvictionCondition as Type, Reason, Status, Wanted};
use cobalt_api::eviction::{
    Eviction, EvictionInstance, EvictionStatus, InstanceCounts, InstanceState as State, Method,
    Outcome, PreflightReason, Strategy, Verdict,
};
use cobalt_api::names::finalizers;
use cobalt_api::wait::Wait;
use cobalt_openstack::compute::{Migration, MigrationStatus, Server, ServerStatus};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::budget::Room;
use super::seen::{Action, Asked, Order, Seen, Stalled};
use super::verdict::{Judged, judge, priority};
use crate::pass::cut;

/// Two empty lists have this much time between them.
const BETWEEN_EMPTY: SignedDuration = SignedDuration::from_secs(1);
/// While something is under way, new servers are looked for this often.
const LIST_EVERY: SignedDuration = SignedDuration::from_secs(30);
/// While something is waited for that is not ours.
const LIST_WAITING: SignedDuration = SignedDuration::from_secs(5);
/// While a shelved instance is let go of, which is no migration.
const LIST_OFFLOADED: SignedDuration = SignedDuration::from_secs(2);
/// How often Placement is asked again for an instance that nobody has room for.
const TARGETS_EVERY: SignedDuration = SignedDuration::from_secs(30);
/// Migrations under way are looked at no more often than this, and no more rarely.
const SHORTEST: SignedDuration = SignedDuration::from_millis(1000);
const LONGEST: SignedDuration = SignedDuration::from_secs(5);
/// Each other one that is under way makes the wait between two looks so much longer, up to so many.
const PER_OTHER: SignedDuration = SignedDuration::from_millis(150);
const MOST_OTHERS: i32 = 4;
/// Placement is glanced at no more often than this, and no more rarely.
const GLANCE_SHORTEST: SignedDuration = SignedDuration::from_millis(400);
const GLANCE_LONGEST: SignedDuration = SignedDuration::from_secs(2);
/// Several that were begun together end together: one look for them.
const GATHER: SignedDuration = SignedDuration::from_millis(300);
/// What has ended gives up its place at once; as long as others take it, what came of it is looked at
/// no more often than this.
const ENDED_EVERY: SignedDuration = SignedDuration::from_secs(2);
/// Nova takes this long at most until a migration holds what its instance held. After that an
/// instance that still holds it is not on its way.
const BEGINS: SignedDuration = SignedDuration::from_secs(3);
/// How many of the newest moves say how long one takes.
const USUAL_OF: usize = 8;
/// A request that Nova took shows in its migrations or on its server within this time.
const SHOWS: SignedDuration = SignedDuration::from_secs(60);
/// A list in which Nova is not busy with a server, and a record that says so much later that its
/// migration goes on: nobody is at it. The two change at most this far apart.
const FORSAKEN: SignedDuration = SignedDuration::from_secs(20);
/// Numbers of a transfer that no agent tells are read this often, once it takes long: each is a call
/// of its own, and there may be many at a time.
const TRANSFER_AFTER: SignedDuration = SignedDuration::from_secs(20);
const TRANSFER_EVERY: SignedDuration = SignedDuration::from_secs(30);
/// An abort that had no effect is asked for again.
const ABORT_EVERY: SignedDuration = SignedDuration::from_secs(10);
/// The wait after the first failed attempt; three times as long after each other one.
const FIRST_BACKOFF: i64 = 5;
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
}

/// What a glance at Placement says.
#[derive(Debug, Clone, Copy)]
enum Glance {
    /// All are on their way.
    Underway,
    /// One has ended, or more.
    Ended {
        /// When that was seen.
        at: Timestamp,
        /// How many; which ones is not said.
        count: usize,
        /// Of those that may have, how many are known to have gone to a certain host.
        targeted: usize,
    },
}

/// What became of a row's attempt.
enum Course {
    /// It goes on.
    Underway,
    /// It cannot be said before something is read.
    Unknown,
    /// Nova was not asked, or did not hear: ask.
    NotBegun,
    /// It left.
    Left { to: Option<String> },
    /// There is no such server any more.
    Gone,
    /// It did not work.
    Failed(String),
}

impl<'a> Turn<'a> {
    fn new(seen: &'a Seen, now: Timestamp) -> Self {
        let mut status = seen.eviction.status.clone().unwrap_or_default();
        let before = status.waiting_for.take();
        let servers = seen.reads.servers.iter().flat_map(|read| &read.value);
        Self {
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
            status,
        }
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
        (self.now.duration_since(started) >= limit).then_some(Stop::TimedOut)
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
                self.end(
                    Outcome::Succeeded,
                    "Nova never knew the host: there is nothing to move",
                );
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
        let host = host.to_owned();
        if !servers {
            self.actions
                .insert(Action::ReadServers { host: host.clone() });
        }
        if !migrations {
            self.actions.insert(Action::ReadMigrations { host });
        }
        if !servers || !migrations {
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

    /// Brings every row that is on its way, or not on the host, up to date.
    fn follow(&mut self, host: &str) {
        let mut rows = std::mem::take(&mut self.status.instances);
        for row in &mut rows {
            match row.state {
                State::Moving => {
                    let course = self.course(row, host);
                    self.apply(row, course);
                }
                State::Pending | State::Blocked if !self.servers.contains_key(row.id.as_str()) => {
                    let course = self.whereabouts(row, host);
                    self.apply(row, course);
                }
                _ => {}
            }
            if row.state == State::Moving {
                self.room.take(row.to.as_deref());
            }
        }
        self.status.instances = rows;
        self.glance = self.glance();
        if let Some(Glance::Ended {
            count, targeted, ..
        }) = self.glance
        {
            self.room.give_back(count, count.saturating_sub(targeted));
        }
    }

    /// What became of the present attempt.
    fn course(&mut self, row: &mut EvictionInstance, host: &str) -> Course {
        let reads = &self.seen.reads;
        let asked = reads.asked.get(&row.id);
        match asked {
            Some(Asked::Waiting) => return Course::Underway,
            Some(Asked::Refused(text)) => return Course::Failed(text.clone()),
            Some(Asked::Accepted { request_id, .. }) => row.request_id.clone_from(request_id),
            Some(Asked::Unclear { .. }) | None => {}
        }
        if let Some(migration) = self.migration(row).cloned() {
            return self.course_of(row, &migration, host);
        }
        // Since when what Nova says is about this attempt.
        let since = match asked {
            Some(Asked::Accepted { at, .. } | Asked::Unclear { at, .. }) => *at,
            _ => row.since.as_ref().map_or(self.now, |since| since.0),
        };
        let listed = reads.servers.as_ref().filter(|read| read.at > since);
        let followed = reads.migrations.as_ref().filter(|read| read.at > since);
        if listed.is_none() || followed.is_none() {
            let host = host.to_owned();
            // Where the request is known to be taken, its migration will tell.
            let waits = matches!(asked, Some(Asked::Accepted { .. }))
                && row.method != Some(Method::Offload);
            if listed.is_none() && !(waits && self.now.duration_since(since) < SHOWS) {
                self.actions
                    .insert(Action::ReadServers { host: host.clone() });
            }
            if followed.is_none() && !waits {
                self.actions.insert(Action::ReadMigrations { host });
            }
            return Course::Underway;
        }
        let Some(server) = self.servers.get(row.id.as_str()) else {
            let offloaded = row.method == Some(Method::Offload);
            if offloaded || followed.map(|read| read.at) > listed.map(|read| read.at) {
                return self.whereabouts(row, host);
            }
            // What brought it away may be known by now, and may have to be confirmed.
            let host = host.to_owned();
            self.actions.insert(Action::ReadMigrations { host });
            return Course::Underway;
        };
        if !is_idle(server) {
            return Course::Underway;
        }
        if !matches!(asked, Some(Asked::Accepted { .. })) {
            return Course::NotBegun;
        }
        match self.why(row) {
            Some(text) => Course::Failed(text),
            None if self.now.duration_since(since) > SHOWS => {
                Course::Failed("Nova took the request, and nothing came of it".to_owned())
            }
            None => Course::Underway,
        }
    }

    /// The migration of the present attempt.
    fn migration(&self, row: &EvictionInstance) -> Option<&'a Migration> {
        let all = &self.seen.reads.migrations.as_ref()?.value;
        let mut own = all.iter().filter(|one| one.server == row.id);
        match row.migration_id {
            Some(id) => own.find(|one| one.id == id),
            None => own.find(|one| row.after_migration_id.is_none_or(|after| one.id > after)),
        }
    }

    fn course_of(
        &mut self,
        row: &mut EvictionInstance,
        migration: &Migration,
        host: &str,
    ) -> Course {
        row.migration_id = Some(migration.id);
        if migration.dest_compute.is_some() {
            row.to.clone_from(&migration.dest_compute);
        }
        match &migration.status {
            MigrationStatus::Completed | MigrationStatus::Confirmed | MigrationStatus::Done => {
                Course::Left {
                    to: migration.dest_compute.clone(),
                }
            }
            MigrationStatus::Finished => {
                self.actions.insert(Action::Confirm {
                    server: row.id.clone(),
                });
                Course::Underway
            }
            MigrationStatus::Cancelled | MigrationStatus::Reverted => Course::Failed(
                row.error
                    .clone()
                    .unwrap_or_else(|| "the migration was aborted".to_owned()),
            ),
            MigrationStatus::Failed | MigrationStatus::Error => {
                if let Some(text) = row.error.clone().filter(|_| self.was_aborted(row)) {
                    return Course::Failed(text);
                }
                match self.why(row) {
                    Some(text) => Course::Failed(text),
                    None => Course::Unknown,
                }
            }
            _ => {
                if let Some(course) = self.forsaken(row, migration, host) {
                    return course;
                }
                self.progress(row);
                self.drive(row, migration);
                Course::Underway
            }
        }
    }

    /// What became of a row whose migration nobody brings to its end: it is said to go on, and Nova
    /// has not been busy with its server for a while, or has it here no more.
    fn forsaken(
        &mut self,
        row: &mut EvictionInstance,
        migration: &Migration,
        host: &str,
    ) -> Option<Course> {
        let reads = &self.seen.reads;
        let (listed, followed) = (reads.servers.as_ref()?.at, reads.migrations.as_ref()?.at);
        let began = row.since.as_ref().map_or(self.now, |since| since.0);
        if listed < began + SHOWS || followed < listed + FORSAKEN {
            return None;
        }
        match self.servers.get(row.id.as_str()) {
            Some(server) if is_idle(server) => {
                // It is no fault of the target.
                row.to = None;
                Some(Course::Failed(format!(
                    "Nova's migration {} says {}, and Nova is not busy with the server any more: \
                     the nova-compute that drove it was restarted",
                    migration.id,
                    migration.status.as_str()
                )))
            }
            Some(_) => None,
            None => match self.whereabouts(row, host) {
                Course::Underway => None,
                course => Some(course),
            },
        }
    }

    fn was_aborted(&self, row: &EvictionInstance) -> bool {
        self.seen.reads.aborts.contains_key(&row.id)
    }

    /// Why the present attempt failed, by the action that its request became. `None`: it is being
    /// read.
    fn why(&mut self, row: &EvictionInstance) -> Option<String> {
        let Some(request) = &row.request_id else {
            return Some("the migration failed; the logs of nova-compute say why".to_owned());
        };
        match self.seen.reads.reasons.get(request) {
            Some(Some(text)) => Some(text.clone()),
            Some(None) => Some(format!("the migration failed; see the request {request}")),
            None => {
                let server = row.id.clone();
                let request = request.clone();
                self.actions.insert(Action::ReadReason { server, request });
                None
            }
        }
    }

    fn progress(&mut self, row: &mut EvictionInstance) {
        if let Some(transfer) = self.seen.reads.transfers.get(&row.id) {
            row.progress = transfer.percent();
        }
    }

    /// A live migration that takes too long, stalls, or is not wanted any more.
    fn drive(&mut self, row: &mut EvictionInstance, migration: &Migration) {
        let live = row.method == Some(Method::Live);
        let since = row.since.as_ref().map_or(self.now, |since| since.0);
        let transfer = self.seen.reads.transfers.get(&row.id);
        if live && self.now.duration_since(since) >= TRANSFER_AFTER {
            let read = transfer.is_some_and(|one| self.now.duration_since(one.at) < TRANSFER_EVERY);
            if !read {
                self.actions.insert(Action::ReadTransfer {
                    server: row.id.clone(),
                    migration: migration.id,
                });
            }
        }
        let late = row
            .deadline
            .as_ref()
            .is_some_and(|deadline| deadline.0 <= self.now);
        if !late && let Some(deadline) = &row.deadline {
            self.wake_at(deadline.0);
        }
        let stalled = transfer.is_some_and(|one| {
            self.now.duration_since(one.lowest.1) >= self.seen.policy.stall && one.remaining > 0
        });
        let why = match self.stop {
            Some(Stop::Cancelled) => "the eviction was cancelled",
            Some(Stop::TimedOut) => "the deadline of the eviction passed",
            None if late => "the attempt took too long",
            None if stalled && self.seen.policy.stalled == Stalled::Abort => {
                "the guest changes its memory faster than it is sent"
            }
            None => {
                if stalled {
                    let text = "the guest changes its memory faster than it is sent";
                    row.error = Some(text.to_owned());
                    if self.seen.policy.stalled == Stalled::ForceComplete
                        && !self.seen.reads.forced.contains(&row.id)
                        && migration.status == MigrationStatus::Running
                    {
                        self.actions.insert(Action::ForceComplete {
                            server: row.id.clone(),
                            migration: migration.id,
                        });
                    }
                }
                return;
            }
        };
        if !live {
            row.error = Some(format!(
                "{why}; Nova cannot stop a cold migration: its end is awaited"
            ));
            return;
        }
        let abort = self.seen.reads.aborts.get(&row.id);
        row.error = Some(match abort.and_then(|abort| abort.value.as_ref()) {
            Some(refused) => cut(
                format!("{why}; it was to be aborted, and Nova says: {refused}"),
                2048,
            ),
            None => why.to_owned(),
        });
        match abort {
            Some(abort) if self.now.duration_since(abort.at) < ABORT_EVERY => {
                self.wake_at(abort.at + ABORT_EVERY);
            }
            _ => {
                self.actions.insert(Action::Abort {
                    server: row.id.clone(),
                    migration: migration.id,
                });
            }
        }
    }

    /// Where an instance is that is not on the host.
    fn whereabouts(&mut self, row: &EvictionInstance, host: &str) -> Course {
        if row.method == Some(Method::Offload) && row.state == State::Moving {
            return Course::Left { to: None };
        }
        let listed = self
            .seen
            .reads
            .servers
            .as_ref()
            .map_or(Timestamp::MIN, |read| read.at);
        match self.seen.reads.elsewhere.get(&row.id) {
            // Newer than the list that does not have it.
            Some(read) if read.at >= listed => match &read.value {
                None => Course::Gone,
                Some(on) if on == host => Course::Underway,
                Some(on) => Course::Left {
                    to: Some(on.clone()).filter(|on| !on.is_empty()),
                },
            },
            _ => {
                self.actions.insert(Action::ReadServer {
                    server: row.id.clone(),
                });
                Course::Unknown
            }
        }
    }

    fn apply(&mut self, row: &mut EvictionInstance, course: Course) {
        match course {
            Course::Underway | Course::Unknown => {}
            Course::NotBegun => {
                if self.stop.is_some() {
                    return self.settle(row, State::Cancelled);
                }
                let method = row.method.unwrap_or(Method::Live);
                self.actions.insert(Action::Move {
                    server: row.id.clone(),
                    method: method.into(),
                    target: row.to.clone(),
                });
            }
            Course::Left { to } => {
                row.to = to.or_else(|| row.to.take());
                row.error = None;
                row.progress = Some(100);
                self.settle(row, State::Moved);
                let name = label(row);
                self.say(
                    Type::MigratingInstance,
                    Status::False,
                    Reason::Succeeded,
                    &format!("{name} has left"),
                );
            }
            Course::Gone => {
                row.error = None;
                self.settle(row, State::Gone);
                let name = label(row);
                self.say(
                    Type::MigratingInstance,
                    Status::False,
                    Reason::Succeeded,
                    &format!("{name} is gone"),
                );
            }
            Course::Failed(text) => self.failed(row, &text),
        }
    }

    /// An attempt came to nothing.
    fn failed(&mut self, row: &mut EvictionInstance, text: &str) {
        // A request that was refused says nothing about the target.
        let target = row.to.take().filter(|_| row.migration_id.is_some());
        row.error = Some(cut(text.to_owned(), 2048));
        row.progress = None;
        let name = label(row);
        self.say(
            Type::MigratingInstance,
            Status::False,
            Reason::Failed,
            &format!("{name}: {text}"),
        );
        if let Some(target) = target.filter(|_| self.stop.is_none())
            && !row.avoid.contains(&target)
            && row.avoid.len() < 64
        {
            row.avoid.push(target);
        }
        self.settle(row, State::Pending);
    }

    fn settle(&mut self, row: &mut EvictionInstance, state: State) {
        row.state = state;
        row.since = Some(self.time());
        row.deadline = None;
    }

    /// Judges those that are not on their way, and settles those that will not be.
    fn judge_rest(&mut self, host: &str) {
        let mut rows = std::mem::take(&mut self.status.instances);
        let others_busy = rows.iter().any(|row| {
            row.state == State::Moving
                || (row.state == State::Pending && self.stop.is_none() && !self.exhausted(row))
        });
        for row in &mut rows {
            if !matches!(row.state, State::Pending | State::Blocked) {
                continue;
            }
            let Some(server) = self.servers.get(row.id.as_str()).copied() else {
                continue;
            };
            if !self.listed_since(row) {
                self.list_after(row, host);
                continue;
            }
            let judged = judge(server, row, &self.seen.reads);
            row.preflight = Some(judged.preflight.clone());
            if let Some(method) = judged.method {
                self.methods.insert(row.id.clone(), method);
                if row.method.is_some_and(|before| before != method) {
                    row.avoid.clear();
                }
            }
            self.rest(row, server, &judged, others_busy);
        }
        self.status.instances = rows;
    }

    /// Whether the list is newer than the end of the last attempt, which leaves ERROR behind.
    fn listed_since(&self, row: &EvictionInstance) -> bool {
        let listed = self.seen.reads.servers.as_ref().map(|read| read.at);
        row.attempt.is_none() || listed.is_some_and(|listed| listed >= settled_for_sure(row))
    }

    fn list_after(&mut self, row: &EvictionInstance, host: &str) {
        let at = settled_for_sure(row);
        if at <= self.now {
            let host = host.to_owned();
            self.actions.insert(Action::ReadServers { host });
        } else {
            self.wake_at(at);
        }
    }

    fn exhausted(&self, row: &EvictionInstance) -> bool {
        row.attempt.unwrap_or(0) >= self.seen.policy.attempts
    }

    fn rest(
        &mut self,
        row: &mut EvictionInstance,
        server: &Server,
        judged: &Judged,
        others_busy: bool,
    ) {
        let since = row.since.as_ref().map_or(self.now, |since| since.0);
        // A failed or aborted live migration leaves ERROR behind although the guest runs on.
        let tried = row.attempt.is_some();
        if judged.may_run && tried && self.seen.policy.reset_errors && self.repairs(row) {
            return;
        }
        if self.stop.is_some() {
            return self.settle(row, State::Cancelled);
        }
        if self.seen.eviction.spec.dry_run() {
            let state = if judged.preflight.verdict == Verdict::Blocked {
                State::Blocked
            } else {
                State::Pending
            };
            if row.state != state {
                self.settle(row, state);
            }
            return;
        }
        if judged.confirm {
            self.actions.insert(Action::Confirm {
                server: server.id.clone(),
            });
        }
        let reasons = &judged.preflight.reasons;
        let refused_by_all = reasons
            .iter()
            .any(|one| one.reason == PreflightReason::NoValidHost.as_str());
        if !judged.passes && (self.exhausted(row) || refused_by_all) {
            self.settle(row, State::Failed);
            return self.tell_failed(row);
        }
        let Some(_) = judged.method else {
            let until = since + self.patience_with(judged);
            if row.state != State::Blocked {
                self.settle(row, State::Blocked);
            } else if until > self.now {
                self.wake_at(until);
            } else if !others_busy {
                let reasons: Vec<&str> = reasons
                    .iter()
                    .filter_map(|one| one.message.as_deref())
                    .collect();
                row.error = Some(cut(reasons.join("; "), 2048));
                self.settle(row, State::Failed);
                self.tell_failed(row);
            }
            return;
        };
        if row.state == State::Blocked {
            self.settle(row, State::Pending);
        }
    }

    /// What ends by itself is given as long as an attempt.
    fn patience_with(&self, judged: &Judged) -> SignedDuration {
        if judged.passes {
            self.seen.policy.instance_deadline
        } else {
            self.seen.policy.patience
        }
    }

    fn tell_failed(&mut self, row: &EvictionInstance) {
        let text = row.error.clone().unwrap_or_default();
        let name = label(row);
        self.say(
            Type::MigratingInstance,
            Status::False,
            Reason::Failed,
            &format!("{name}: {text}"),
        );
    }

    /// Sets a server right whose guest runs. Whether that is under way.
    fn repairs(&mut self, row: &EvictionInstance) -> bool {
        let since = row.since.as_ref().map_or(self.now, |since| since.0);
        let listed = self.seen.reads.servers.as_ref().map(|read| read.at);
        if let Some(at) = self.seen.reads.repaired.get(&row.id) {
            // Until a list that is newer tells otherwise.
            return listed.is_none_or(|listed| listed <= *at);
        }
        match &self.seen.reads.running {
            Some(read) if read.at >= since => {
                if read.value.contains(&row.id) {
                    self.actions.insert(Action::Repair {
                        server: row.id.clone(),
                    });
                    return true;
                }
                false
            }
            _ => {
                self.actions.insert(Action::ReadRunning);
                true
            }
        }
    }

    /// Whether the eviction is over.
    fn ends(&mut self, host: &str) -> bool {
        let counts = InstanceCounts::of(&self.status.instances);
        let eviction = &self.seen.eviction;
        if eviction.spec.dry_run() {
            // Whatever Nova is busy with is a verdict as good as the others.
            let text = format!(
                "{} instances: {} can be moved, {} cannot",
                counts.total,
                counts.total - counts.blocked,
                counts.blocked
            );
            self.say(
                Type::PreflightChecksSucceeded,
                Status::True,
                Reason::Succeeded,
                &text,
            );
            self.end(Outcome::Succeeded, &text);
            return true;
        }
        if counts.pending + counts.blocked + counts.moving > 0 {
            return self.host_is_dead();
        }
        if self.stop.is_some() {
            self.stopped(counts);
            return true;
        }
        // Nothing was overlooked that came after the last list.
        let last = self
            .status
            .instances
            .iter()
            .filter_map(|row| row.since.as_ref())
            .map(|since| since.0)
            .max();
        let listed = self.seen.reads.servers.as_ref().map(|read| read.at);
        let newer = listed.is_some_and(|listed| last.is_none_or(|last| listed > last));
        let whole = eviction.spec.instances.is_empty();
        if !newer && whole {
            self.actions.insert(Action::ReadServers {
                host: host.to_owned(),
            });
            return false;
        }
        if counts.failed > 0 {
            let outcome = failure(counts);
            self.end(outcome, &summary(counts));
            return true;
        }
        if whole && self.seen.reads.empty < 2 {
            // Whoever is on his way to the host is in Placement before he is in Nova's list: where
            // nobody holds anything, that is as good as a second list.
            let holders = self.seen.reads.holders.as_ref();
            match holders.filter(|read| Some(read.at) > listed) {
                Some(read) if read.value.is_empty() => {
                    self.end(Outcome::Succeeded, &summary(counts));
                    return true;
                }
                None => self.read_holders(),
                Some(_) => {}
            }
            let next = listed.map_or(self.now, |listed| listed + BETWEEN_EMPTY);
            if next <= self.now {
                self.actions.insert(Action::ReadServers {
                    host: host.to_owned(),
                });
            } else {
                self.wake_at(next);
            }
            return false;
        }
        self.end(Outcome::Succeeded, &summary(counts));
        true
    }

    /// The end of one that was stopped.
    fn stopped(&mut self, counts: InstanceCounts) {
        match self.stop {
            Some(Stop::TimedOut) => {
                self.end(
                    Outcome::TimedOut,
                    &format!("the deadline passed: {}", summary(counts)),
                );
            }
            _ => self.end(
                Outcome::Cancelled,
                &format!("cancelled: {}", summary(counts)),
            ),
        }
    }

    /// Those that have not left stay.
    fn cancel_rest(&mut self) {
        let time = self.time();
        for row in &mut self.status.instances {
            if matches!(row.state, State::Pending | State::Blocked | State::Moving) {
                row.state = State::Cancelled;
                row.since = Some(time.clone());
                row.deadline = None;
            }
        }
    }

    /// Instances of a host that does not report cannot be moved; after a while they are given up.
    fn host_is_dead(&mut self) -> bool {
        if self.seen.source.is_up() {
            return false;
        }
        let text = "the nova-compute of the host does not report: its instances cannot be moved \
                    while it is down";
        if self.waited("HostDown", self.seen.policy.host_patience) {
            self.give_up(
                "the host is down, and its instances cannot be moved: mend the host and \
                          drain it again, or fence it and evacuate them",
            );
            return true;
        }
        self.wait("HostDown", text.to_owned());
        false
    }

    /// Ends with every instance that has not left as failed.
    fn give_up(&mut self, why: &str) {
        let time = self.time();
        for row in &mut self.status.instances {
            if matches!(row.state, State::Pending | State::Blocked | State::Moving) {
                row.state = State::Failed;
                row.since = Some(time.clone());
                row.deadline = None;
                row.error = Some(why.to_owned());
            }
        }
        let counts = InstanceCounts::of(&self.status.instances);
        let outcome = failure(counts);
        self.end(outcome, &format!("{why}; {}", summary(counts)));
    }

    /// Starts as many as there is room for.
    fn start(&mut self) {
        if !self.seen.source.is_up() {
            return;
        }
        let parallel = self
            .seen
            .eviction
            .spec
            .parallelism
            .and_then(|most| usize::try_from(most).ok());
        let ended = match self.glance {
            Some(Glance::Ended { count, .. }) => count,
            Some(Glance::Underway) | None => 0,
        };
        let mut moving = self
            .status
            .instances
            .iter()
            .filter(|row| row.state == State::Moving)
            .count()
            .saturating_sub(ended);
        let newest = self
            .seen
            .reads
            .migrations
            .iter()
            .flat_map(|read| &read.value)
            .map(|one| one.id)
            .max();
        let mut turns: Vec<usize> = Vec::new();
        let mut taken_by = None;
        let mut next_try: Option<Timestamp> = None;
        for (index, row) in self.status.instances.iter().enumerate() {
            if row.state != State::Pending || !self.servers.contains_key(row.id.as_str()) {
                continue;
            }
            if let Some(other) = self.seen.taken.get(&row.id) {
                taken_by = Some(other.clone());
                continue;
            }
            let mut after = self.tries_at(row);
            if !self.listed_since(row) {
                after = after.max(self.now + BETWEEN_EMPTY);
            }
            if after > self.now {
                next_try = Some(next_try.map_or(after, |present| present.min(after)));
                continue;
            }
            turns.push(index);
        }
        turns.sort_by_key(|index| self.turn_of(*index));
        let mut full = None;
        for index in turns {
            full = self.room.full();
            if full.is_some() || parallel.is_some_and(|most| moving >= most) {
                break;
            }
            let Some(row) = self.status.instances.get(index) else {
                continue;
            };
            let Some(target) = self.target(row) else {
                full = Some("the hosts that have room");
                self.cramped = true;
                continue;
            };
            let Some(method) = self.methods.get(&row.id).copied() else {
                continue;
            };
            let target = target.filter(|_| method != Method::Offload);
            let (now, deadline) = (
                self.time(),
                Time(self.second() + self.seen.policy.instance_deadline),
            );
            let Some(row) = self.status.instances.get_mut(index) else {
                continue;
            };
            row.state = State::Moving;
            row.since = Some(now);
            row.deadline = Some(deadline);
            row.attempt = Some(row.attempt.unwrap_or(0) + 1);
            row.method = Some(method);
            row.to.clone_from(&target);
            row.after_migration_id = newest;
            row.migration_id = None;
            row.request_id = None;
            row.progress = None;
            self.actions.insert(Action::Move {
                server: row.id.clone(),
                method: method.into(),
                target: target.clone(),
            });
            self.room.take(target.as_deref());
            moving += 1;
        }
        if let Some(at) = next_try {
            self.wake_at(at);
        }
        if moving > 0 {
            return;
        }
        if let Some(whose) = full {
            self.wait(
                "Budget",
                format!("as many instances as may are on their way for {whose}"),
            );
            self.wake_in(SignedDuration::from_secs(2));
        } else if let Some(other) = taken_by {
            self.wait(
                "OtherEviction",
                format!("the Eviction \"{other}\" has its instances in hand"),
            );
        } else if next_try.is_some() {
            self.wait(
                "NextAttempt",
                "an instance is tried again in a moment".to_owned(),
            );
        }
    }

    /// When a row may be tried again.
    fn tries_at(&self, row: &EvictionInstance) -> Timestamp {
        let Some(attempt) = row.attempt else {
            return Timestamp::MIN;
        };
        let since = row.since.as_ref().map_or(self.now, |since| since.0);
        let times = 3_i64.saturating_pow(u32::try_from(attempt - 1).unwrap_or(0));
        since + SignedDuration::from_secs(FIRST_BACKOFF.saturating_mul(times).min(120))
    }

    /// Who goes first: those that have not been tried, by priority, then by size.
    fn turn_of(&self, index: usize) -> (i32, i32, u64, String) {
        let Some(row) = self.status.instances.get(index) else {
            return (0, 0, 0, String::new());
        };
        let server = self.servers.get(row.id.as_str());
        let first = server.map_or(0, |server| priority(server));
        let size = server.map_or(0, |server| server.flavor.ram);
        let size = match self.seen.policy.order {
            Order::SmallestFirst => size,
            Order::LargestFirst => u64::MAX - size,
        };
        (row.attempt.unwrap_or(0), -first, size, row.id.clone())
    }

    /// Where a row goes. `Some(None)`: the scheduler finds a host; `None`: there is no place now.
    fn target(&self, row: &EvictionInstance) -> Option<Option<String>> {
        if row.avoid.is_empty() && self.room.admits(None) {
            return Some(None);
        }
        let known = self
            .seen
            .reads
            .targets
            .as_ref()
            .and_then(|read| read.value.as_ref().ok());
        let Some(hosts) = known.and_then(|targets| targets.get(&row.id)) else {
            return self.room.admits(None).then_some(None);
        };
        hosts
            .iter()
            .filter(|host| !row.avoid.contains(host) && self.room.admits(Some(host)))
            .min_by_key(|host| self.room.coming(Some(host)))
            .map(|host| Some(host.clone()))
    }

    /// What is to be read again, and when.
    fn look_again(&mut self, host: &str) {
        let host = host.to_owned();
        let counts = InstanceCounts::of(&self.status.instances);
        let waiting =
            |row: &&EvictionInstance| self.seen.reads.asked.get(&row.id) == Some(&Asked::Waiting);
        let moving = || {
            self.status
                .instances
                .iter()
                .filter(|row| row.state == State::Moving)
        };
        let offloads = moving().any(|row| row.method == Some(Method::Offload));
        // As long as Nova has not answered, there is nothing to look at.
        if moving().any(|row| !waiting(&row) && !self.starts(row)) {
            let due = self.next_look();
            if due <= self.now {
                self.actions
                    .insert(Action::ReadMigrations { host: host.clone() });
                self.wake_in(SHORTEST);
            } else {
                self.wake_at(due);
            }
            self.glance_again();
        }
        let every = match () {
            () if offloads => LIST_OFFLOADED,
            () if counts.moving > 0 || counts.pending > 0 => LIST_EVERY,
            () => LIST_WAITING,
        };
        let listed = self
            .seen
            .reads
            .servers
            .as_ref()
            .map_or(Timestamp::MIN, |read| read.at);
        if listed + every <= self.now {
            self.actions.insert(Action::ReadServers { host });
        } else {
            self.wake_at(listed + every);
        }
        let no_room = self.status.instances.iter().any(|row| {
            let reasons = row.preflight.iter().flat_map(|one| &one.reasons);
            row.state == State::Blocked
                && reasons
                    .clone()
                    .any(|one| one.reason == PreflightReason::NoCapacity.as_str())
        });
        let asked = self
            .seen
            .reads
            .targets
            .as_ref()
            .map_or(Timestamp::MIN, |read| read.at);
        if no_room
            || self
                .seen
                .reads
                .targets
                .as_ref()
                .is_some_and(|read| read.value.is_err())
        {
            if asked + TARGETS_EVERY <= self.now {
                self.read_targets();
            } else {
                self.wake_at(asked + TARGETS_EVERY);
            }
        }
        if counts.moving == 0 && counts.pending == 0 && counts.blocked > 0 {
            let names: Vec<String> = self
                .status
                .instances
                .iter()
                .filter(|row| row.state == State::Blocked)
                .take(3)
                .map(label)
                .collect();
            let text = format!(
                "{} instances cannot be moved as they are: {}{}",
                counts.blocked,
                names.join(", "),
                if counts.blocked > 3 { ", ..." } else { "" }
            );
            self.wait("Blocked", text);
        }
    }

    /// Whether a row's move is only now being asked for.
    fn starts(&self, row: &EvictionInstance) -> bool {
        self.actions
            .iter()
            .any(|action| matches!(action, Action::Move { server, .. } if *server == row.id))
    }

    /// When migrations are to be looked at: when the first should be at its end, by how long the
    /// others took; not so often that Nova notices.
    fn next_look(&self) -> Timestamp {
        let reads = &self.seen.reads;
        let last = reads
            .migrations
            .as_ref()
            .map_or(Timestamp::MIN, |read| read.at);
        if reads.news.is_some_and(|news| news > last) {
            return last;
        }
        let usual = self.usual();
        let rows = self.status.instances.iter();
        let rows = rows.filter(|row| row.state == State::Moving);
        let moving = rows.clone().count();
        let asked: Vec<Timestamp> = rows.filter_map(|row| self.asked_at(row)).collect();
        match self.glance {
            Some(Glance::Ended { at, count, .. }) if moving > count => {
                let mut all = self.status.instances.iter();
                let more = all.any(|row| row.state == State::Pending && row.attempt.is_none());
                let batched = more && !self.cramped;
                let every = if batched { ENDED_EVERY } else { SHORTEST };
                return (at + GATHER).max(last + every);
            }
            Some(Glance::Ended { .. }) => return last + GLANCE_SHORTEST,
            Some(Glance::Underway) => return last + LONGEST,
            None => {}
        }
        // One alone leaves its place empty from its end until the next look; of several, others go on.
        let others = i32::try_from(asked.len()).map_or(MOST_OTHERS, |all| all - 1);
        let others = others.clamp(0, MOST_OTHERS);
        let shortest = SHORTEST + PER_OTHER * others;
        let gap = if others > 0 { usual / 3 } else { usual / 8 };
        let gap = gap.clamp(shortest, LONGEST);
        // A little later than usual, so that one look is enough.
        let expected = usual.min(LONGEST) + (usual / 4).min(SHORTEST / 2);
        let first = asked.into_iter().min().map(|asked| asked + expected);
        first.map_or(last + gap, |first| (last + gap).max(first))
    }

    /// What Placement says of those that are on their way: a migration holds what its instance held
    /// until it ends. `None`: it does not say.
    fn glance(&self) -> Option<Glance> {
        let reads = &self.seen.reads;
        let holders = reads.holders.as_ref()?;
        if self.now.duration_since(holders.at) > GLANCE_LONGEST * 2 {
            return None;
        }
        let (mut gone, mut targeted) = (0_usize, 0_usize);
        for row in &self.status.instances {
            let asked = self.asked_at(row).filter(|_| row.state == State::Moving);
            let Some(asked) = asked.filter(|asked| *asked < holders.at) else {
                continue;
            };
            if !holders.value.contains(&row.id) {
                gone += 1;
                targeted += usize::from(row.to.is_some());
            } else if holders.at.duration_since(asked) > BEGINS {
                return None;
            }
        }
        let rows: BTreeSet<&str> = self
            .status
            .instances
            .iter()
            .map(|row| row.id.as_str())
            .collect();
        let is_migration = |one: &&String| {
            !rows.contains(one.as_str())
                && !self.servers.contains_key(one.as_str())
                && !reads.strangers.contains(*one)
        };
        let migrations = holders.value.iter().filter(is_migration).count();
        Some(match gone.saturating_sub(migrations) {
            0 => Glance::Underway,
            count => Glance::Ended {
                at: holders.at,
                count,
                targeted,
            },
        })
    }

    fn read_holders(&mut self) {
        if let Ok(Some(identity)) = &self.seen.source.identity
            && let Some(provider) = identity.hypervisor_id.clone()
        {
            self.actions.insert(Action::ReadHolders { provider });
        }
    }

    /// Glances at Placement in time.
    fn glance_again(&mut self) {
        let every = (self.usual() / 8).clamp(GLANCE_SHORTEST, GLANCE_LONGEST);
        let last = self.seen.reads.holders.as_ref().map(|read| read.at);
        match last.map(|last| last + every) {
            Some(due) if due > self.now => self.wake_at(due),
            _ => self.read_holders(),
        }
    }

    /// When Nova took the request of a row; `None` while it has not answered. The row itself knows
    /// no more than the second.
    fn asked_at(&self, row: &EvictionInstance) -> Option<Timestamp> {
        match self.seen.reads.asked.get(&row.id) {
            Some(Asked::Waiting) => None,
            Some(Asked::Accepted { at, .. } | Asked::Unclear { at, .. }) => Some(*at),
            Some(Asked::Refused(_)) | None => row.since.as_ref().map(|since| since.0),
        }
    }

    /// How long the newest moves took. Nova tells whole seconds, so that the mean of some is nearer
    /// to the truth than any of them.
    fn usual(&self) -> SignedDuration {
        let own = |one: &&Migration| {
            let mut rows = self.status.instances.iter();
            one.status.is_success() && rows.any(|row| row.migration_id == Some(one.id))
        };
        let lasted: Vec<SignedDuration> = self
            .seen
            .reads
            .migrations
            .iter()
            .flat_map(|read| &read.value)
            .filter(own)
            .filter_map(|one| Some(one.updated_at?.duration_since(one.created_at?)))
            .take(USUAL_OF)
            .collect();
        match i32::try_from(lasted.len()) {
            Ok(count @ 1..) => lasted.into_iter().sum::<SignedDuration>() / count,
            _ => SHORTEST,
        }
    }

    fn say_running(&mut self) {
        if self.status.outcome.is_some() || self.status.started_at.is_none() {
            return;
        }
        let counts = InstanceCounts::of(&self.status.instances);
        if self.seen.reads.targets.is_some()
            && conditions::find(&self.status.conditions, Type::PreflightChecksSucceeded)
                .is_none_or(|one| one.status != "True")
            && !self.servers.is_empty()
        {
            let text = format!(
                "{} instances: {} cannot be moved as they are",
                counts.total, counts.blocked
            );
            self.say(
                Type::PreflightChecksSucceeded,
                Status::True,
                Reason::Succeeded,
                &text,
            );
        }
        let text = match self.stop {
            Some(Stop::Cancelled) => format!("being cancelled: {}", summary(counts)),
            Some(Stop::TimedOut) => format!("the deadline passed: {}", summary(counts)),
            None => summary(counts),
        };
        self.say(Type::Evicting, Status::True, Reason::Running, &text);
        self.count(counts);
        self.foretell(counts);
    }

    fn count(&mut self, counts: InstanceCounts) {
        self.status.counts = Some(counts);
        let left: Vec<&EvictionInstance> = self
            .status
            .instances
            .iter()
            .filter(|row| !matches!(row.state, State::Moved | State::Gone))
            .collect();
        self.status.outstanding_ram_mb = Some(left.iter().filter_map(|row| row.memory_mb).sum());
        let ids = left.iter().map(|row| row.id.clone()).collect();
        self.status.outstanding_instances = ids;
    }

    /// When it will end, by the speed so far; said anew only when it has changed much.
    fn foretell(&mut self, counts: InstanceCounts) {
        let done = counts.moved + counts.gone;
        let left = counts.pending + counts.moving;
        let started = self.status.started_at.as_ref().map(|started| started.0);
        let (Some(started), true) = (started, done > 0 && left > 0 && self.stop.is_none()) else {
            self.status.eta = None;
            return;
        };
        let took = self.now.duration_since(started);
        let takes = took.saturating_mul(left) / done;
        let new = self.second() + takes;
        let said = self.status.eta.as_ref().map(|eta| eta.0);
        let tolerance = (takes / 5).max(SignedDuration::from_secs(15));
        if said.is_none_or(|said| said.duration_since(new).abs() > tolerance) {
            self.status.eta = Some(Time(new));
        }
    }

    /// The end.
    fn end(&mut self, outcome: Outcome, text: &str) {
        let reason = match outcome {
            Outcome::Succeeded => Reason::Succeeded,
            Outcome::PartiallyFailed => Reason::PartiallyFailed,
            Outcome::Failed => Reason::Failed,
            Outcome::Cancelled => Reason::Cancelled,
            Outcome::TimedOut => Reason::TimedOut,
        };
        self.say(Type::Evicting, Status::False, reason, text);
        let time = self.time();
        self.status.started_at.get_or_insert_with(|| time.clone());
        self.status.finished_at = Some(time);
        self.status.outcome = Some(outcome);
        self.status.waiting_for = None;
        self.status.eta = None;
        let counts = InstanceCounts::of(&self.status.instances);
        self.count(counts);
        self.release();
    }

    fn release(&mut self) {
        if is_held(&self.seen.eviction) {
            self.actions.insert(Action::Release);
        }
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
        let until = before.since.0 + long;
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

/// Whether Nova is not busy with a server.
fn is_idle(server: &Server) -> bool {
    server.task_state.as_deref().is_none_or(str::is_empty)
        && !matches!(
            server.status,
            ServerStatus::Migrating | ServerStatus::Resize
        )
}

/// When a row has come into its state for sure: what is kept is the full second before.
fn settled_for_sure(row: &EvictionInstance) -> Timestamp {
    let since = row.since.as_ref();
    since.map_or(Timestamp::MIN, |since| {
        since.0 + SignedDuration::from_secs(1)
    })
}

/// What people call an instance.
#[must_use]
pub fn label(row: &EvictionInstance) -> String {
    row.name.clone().unwrap_or_else(|| row.id.clone())
}

/// The outcome when some have not left.
fn failure(counts: InstanceCounts) -> Outcome {
    if counts.moved + counts.gone > 0 {
        Outcome::PartiallyFailed
    } else {
        Outcome::Failed
    }
}

fn summary(counts: InstanceCounts) -> String {
    let mut text = format!(
        "{} of {} instances have left",
        counts.moved + counts.gone,
        counts.total
    );
    for (count, what) in [
        (counts.moving, "on their way"),
        (counts.blocked, "cannot be moved as they are"),
        (counts.failed, "failed"),
        (counts.cancelled, "stay"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    text
}
