//! What became of those that are on their way, and of those that are not on the host.

use cobalt_api::conditions::{EvictionCondition as Type, Reason, Status};
use cobalt_api::eviction::{
    EvictionInstance, InstanceState as State, Method, Preflight, PreflightFinding, PreflightReason,
    Verdict,
};
use cobalt_openstack::compute::{Migration, MigrationStatus, Server, ServerStatus};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::arrive::{Arrival, in_error, is_arriving};
use super::look::Glance;
use super::{Stop, Turn, label};
use crate::eviction::seen::{Action, Asked, Stalled};
use crate::eviction::witness::Place;
use crate::pass::cut;

/// A request that Nova took shows in its migrations or on its server within this time.
const SHOWS: SignedDuration = SignedDuration::from_secs(60);
/// A list in which Nova is not busy with a server, and a record that says so much later that its
/// migration goes on: nobody is at it. The two change at most this far apart.
const FORSAKEN: SignedDuration = SignedDuration::from_secs(20);
/// Numbers of a transfer that no agent tells are read this often, once it takes long: each is a call
/// of its own, and there may be many at a time.
const TRANSFER_AFTER: SignedDuration = SignedDuration::from_secs(20);
const TRANSFER_EVERY: SignedDuration = SignedDuration::from_secs(15);
/// By so much Nova's clock may be behind the API server's.
const CLOCKS: SignedDuration = SignedDuration::from_secs(60);
/// The schema's limit.
const MOST_AVOIDED: usize = 64;
/// An abort that had no effect is asked for again.
pub(super) const ABORT_EVERY: SignedDuration = SignedDuration::from_secs(10);

/// Why an attempt has failed whose server was set right.
const LOST: &str = "Nova lost the migration: nobody drove it any more, and the state of the server was \
                    reset";

/// What became of a row's attempt.
pub(super) enum Course {
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
    /// Nova has left it half done, and it is not tried again: this is to be done by hand.
    Abandoned(String),
    /// It is not on the host any more, and not well where it is: there is nothing to try again.
    Lost(String),
}

impl<'a> Turn<'a> {
    /// Brings every row that is on its way, or not on the host, up to date.
    pub(super) fn follow(&mut self, host: &str) {
        let mut rows = std::mem::take(&mut self.status.instances);
        for row in &mut rows {
            match row.state {
                State::Moving => {
                    let course = self.course(row, host);
                    self.apply(row, course);
                }
                State::Pending | State::Blocked if !self.servers.contains_key(row.id.as_str()) => {
                    let course = self.whereabouts(row, host);
                    let course = self.unless_never_here(row, course, host);
                    self.apply(row, course);
                }
                _ => {}
            }
            if row.state == State::Moving && !is_arriving(row) {
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
            return self.stuck(row, None).unwrap_or(Course::Underway);
        }
        if self.was_reset(row) {
            return Course::Failed(LOST.to_owned());
        }
        if followed.map(|read| read.at) < listed.map(|read| read.at) {
            // While the cell was down there were no migrations in the list.
            let host = host.to_owned();
            self.actions.insert(Action::ReadMigrations { host });
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
                if self.was_reset(row) {
                    // It is no fault of the target.
                    row.to = None;
                    return Course::Failed(LOST.to_owned());
                }
                if let Some(course) = self.forsaken(row, migration, host) {
                    return course;
                }
                if let Some(course) = self.stuck(row, Some(migration)) {
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
        // A request may have been repeated long after its row began to move.
        let began = self.asked_at(row).unwrap_or(self.now);
        if listed < self.over_at(began, SHOWS) || followed < listed + FORSAKEN {
            return None;
        }
        match self.servers.get(row.id.as_str()) {
            Some(server) if is_idle(server) => {
                // It is no fault of the target.
                row.to = None;
                Some(Course::Failed(format!(
                    "Nova's migration {} says {}, and Nova is not busy with the server any more: \
                     perhaps the nova-compute that drove it was restarted",
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
            Some(None) => Some(format!(
                "the migration failed, or somebody aborted it; see the request {request}"
            )),
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
        let long = self.seen.policy.instance_deadline;
        let deadline = row.deadline.as_ref();
        let deadline = deadline.map(|deadline| self.passes_at(deadline.0, long));
        let late = deadline.is_some_and(|deadline| deadline <= self.now);
        if let Some(deadline) = deadline.filter(|_| !late) {
            self.wake_at(deadline);
        }
        let stalled = transfer.is_some_and(|one| one.has_stalled(self.now, self.seen.policy.stall));
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
        let listed = self
            .seen
            .reads
            .servers
            .as_ref()
            .map_or(Timestamp::MIN, |read| read.at);
        match self.seen.reads.elsewhere.get(&row.id) {
            // Newer than the list that does not have it.
            Some(read) if read.at >= listed => match read.value.clone() {
                Place::Gone => Course::Gone,
                Place::CellDown => self.cell_is_down(),
                Place::Offloaded => Course::Left { to: None },
                Place::Nowhere(status) => self.nowhere(row, &status),
                Place::On { host: on, .. } if on == host => Course::Underway,
                Place::On {
                    host: on,
                    status: ServerStatus::Error,
                    fault,
                    ..
                } => Course::Lost(in_error(&on, fault.as_deref())),
                Place::On { host: on, .. } => Course::Left { to: Some(on) },
            },
            _ => {
                let all = &self.seen.reads.elsewhere;
                let down = || all.values().filter(|read| read.value == Place::CellDown);
                if down().any(|read| read.at >= listed) {
                    return self.cell_is_down();
                }
                // While the cell is known to be down, one is enough to see that it is back.
                let asks = |one: &Action| matches!(one, Action::ReadServer { .. });
                if down().next().is_none() || !self.actions.iter().any(asks) {
                    self.actions.insert(Action::ReadServer {
                        server: row.id.clone(),
                    });
                }
                self.go_on_waiting();
                Course::Unknown
            }
        }
    }

    /// A server that was asked for by its id, and is not on the host, has left only if it was there
    /// when the Eviction began. Else the id is wrong.
    fn unless_never_here(&self, row: &mut EvictionInstance, course: Course, host: &str) -> Course {
        // What was in the list of the host once has its state from there.
        if row.status.is_some() || row.attempt.is_some() {
            return course;
        }
        let wrong = match &course {
            Course::Left { .. } if self.left_since(row, host) => return course,
            Course::Left { to: Some(on) } => format!(
                "it is on {on}, and was not on {host} when this Eviction began: evict it from \
                 there, or correct the id"
            ),
            Course::Left { to: None } => format!(
                "it is on no host, and was not on {host} when this Eviction began: correct the id"
            ),
            Course::Gone => match self.seen.reads.deleted.get(&row.id) {
                Some(Some(last)) if last == host => return course,
                Some(Some(_)) => format!("it was deleted, and was never on {host}: correct the id"),
                _ => "Nova has no server with this id: correct it".to_owned(),
            },
            _ => return course,
        };
        row.preflight = Some(Preflight {
            verdict: Verdict::Blocked,
            hosts: None,
            reasons: vec![PreflightFinding {
                reason: PreflightReason::NotOnHost.as_str().to_owned(),
                message: Some(wrong.clone()),
            }],
        });
        Course::Abandoned(wrong)
    }

    /// Whether Nova moved a server off the host since the Eviction was asked for.
    fn left_since(&self, row: &EvictionInstance, host: &str) -> bool {
        let asked = self.seen.eviction.creation_timestamp().map(|time| time.0);
        let asked = asked.map_or(Timestamp::MIN, |asked| asked - CLOCKS);
        let all = self.seen.reads.migrations.iter();
        all.flat_map(|read| &read.value).any(|one| {
            one.server == row.id
                && one.source_compute.as_deref() == Some(host)
                && one.status.is_success()
                && one.updated_at.is_none_or(|ended| ended >= asked)
        })
    }

    /// Nothing is concluded while Nova does not know where its servers are.
    fn cell_is_down(&mut self) -> Course {
        self.cell_down = true;
        self.wait(
            "CellDown",
            "the database of the host's Nova cell does not answer: Nova does not know where its \
             servers are"
                .to_owned(),
        );
        Course::Unknown
    }

    /// A server that is on no host and is not offloaded: it is being moved, or was lost.
    fn nowhere(&mut self, row: &EvictionInstance, status: &ServerStatus) -> Course {
        let since = row.since.as_ref().map_or(self.now, |since| since.0);
        let until = since + self.seen.policy.patience;
        let text = format!(
            "Nova says that {} is {status} and on no host, which does not mean that it has left",
            label(row)
        );
        if until <= self.now && row.deadline.as_ref().is_none_or(|end| end.0 <= self.now) {
            return Course::Lost(text);
        }
        self.wait("WitnessesDisagree", text);
        Course::Unknown
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
                match self.arrival(row) {
                    Arrival::Seen => {}
                    Arrival::NotYet => return,
                    Arrival::Lost(text) => return self.lose(row, text),
                }
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
            Course::Abandoned(text) => {
                row.error = Some(cut(text, 2048));
                row.progress = None;
                self.tell_failed(row);
                let state = if self.stop.is_some() {
                    State::Cancelled
                } else {
                    State::Failed
                };
                self.settle(row, state);
            }
            Course::Lost(text) => self.lose(row, text),
        }
    }

    /// It has left the host, and is not what it was.
    pub(super) fn lose(&mut self, row: &mut EvictionInstance, text: String) {
        row.error = Some(cut(text, 2048));
        row.progress = None;
        self.settle(row, State::Failed);
        self.tell_failed(row);
    }

    /// An attempt came to nothing.
    fn failed(&mut self, row: &mut EvictionInstance, text: &str) {
        // A request that was refused says nothing about the target.
        let target = row.to.take().filter(|_| row.migration_id.is_some());
        row.error = Some(cut(text.to_owned(), 2048));
        row.progress = None;
        self.tell_failed(row);
        if let Some(target) = target.filter(|_| self.stop.is_none()) {
            // The one that failed last stands last.
            row.avoid.retain(|avoided| *avoided != target);
            if row.avoid.len() < MOST_AVOIDED {
                row.avoid.push(target);
            }
        }
        self.settle(row, State::Pending);
    }
}

/// Whether Nova is not busy with a server.
pub(super) fn is_idle(server: &Server) -> bool {
    server.task_state.as_deref().is_none_or(str::is_empty)
        && !matches!(
            server.status,
            ServerStatus::Migrating | ServerStatus::Resize
        )
}
