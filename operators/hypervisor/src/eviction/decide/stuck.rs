//! Servers that Nova says it migrates while nobody does: the process that drove the migration is
//! dead. They are recognised by the absence of any change, said, and set right or given up.
//!
//! ```text
//!  last sign of life --60 s--> the wait NovaStuck is said --stuck patience--> Nova is asked
//!    no nova-conductor runs: wait for one (NovaConductor)
//!    there is a record:      abort it, 10 s
//!    the agent sees the guest running here: reset the state; the next attempt follows
//!    else: the row ends, and its error says what to do by hand
//! ```

use cobalt_api::eviction::{EvictionInstance, Method};
use cobalt_openstack::compute::{Migration, MigrationStatus, Server, ServerStatus};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::follow::{ABORT_EVERY, Course, is_idle};
use super::{Turn, label};
use crate::eviction::seen::{Action, Asked};

/// Without a sign of life for so long it is said.
const SAID_AFTER: SignedDuration = SignedDuration::from_secs(60);
/// How often Nova is asked whether a nova-conductor runs again.
const PROBE_EVERY: SignedDuration = SignedDuration::from_secs(10);

impl Turn<'_> {
    /// What becomes of a row on its way whose server Nova is busy with. `None`: there are signs of
    /// life, or it is too early to say.
    pub(super) fn stuck(
        &mut self,
        row: &EvictionInstance,
        record: Option<&Migration>,
    ) -> Option<Course> {
        let reads = &self.seen.reads;
        let server = self.servers.get(row.id.as_str()).copied()?;
        if is_idle(server) {
            return None;
        }
        let name = label(row);
        if let Some(probe) = reads
            .probes
            .get(&row.id)
            .filter(|read| !read.value.conductor && reads.signs.last(&row.id) <= Some(read.at))
        {
            let long = self.seen.policy.instance_deadline;
            let mut deadline = row.deadline.iter();
            let late = deadline.any(|at| self.passes_at(at.0, long) <= self.now);
            if self.stop.is_some() || late {
                return Some(Course::Abandoned(by_hand(
                    row,
                    "no nova-conductor runs, so that nobody drives its migration",
                )));
            }
            let text = format!(
                "no nova-conductor runs: {name} waits for one to go on with its migration, or to \
                 be tried again"
            );
            self.wait("NovaConductor", text);
            let next = probe.at + PROBE_EVERY;
            if next <= self.now {
                self.probe(row);
            } else {
                self.wake_at(next);
            }
            return Some(Course::Underway);
        }
        let sign = self.last_sign(row, record);
        let patience = self.stuck_patience(row);
        let said = self.over_at(sign, patience.min(SAID_AFTER));
        let until = self.over_at(sign, patience);
        let listed = reads.servers.as_ref().map(|read| read.at)?;
        if self.now < said {
            self.wake_at(said);
            return None;
        }
        if listed <= sign {
            return None;
        }
        let what = record.map_or_else(
            || "there is no migration of it".to_owned(),
            |record| {
                format!(
                    "its migration {} says {}",
                    record.id,
                    record.status.as_str()
                )
            },
        );
        self.wait_until(
            "NovaStuck",
            format!("Nova says that it migrates {name}, {what}, and nothing changes any more"),
            sign,
            until,
        );
        if self.now < until {
            self.wake_at(until);
            return None;
        }
        let Some(probe) = reads.probes.get(&row.id).filter(|read| read.at >= until) else {
            self.probe(row);
            return Some(Course::Underway);
        };
        let live = row.method == Some(Method::Live);
        if let Some(open) = probe.value.migration.as_ref().filter(|_| live) {
            match reads.aborts.get(&row.id).map(|abort| abort.at) {
                None => {
                    let server = row.id.clone();
                    let migration = open.id;
                    self.actions.insert(Action::Abort { server, migration });
                    return Some(Course::Underway);
                }
                Some(asked) if self.now < asked + ABORT_EVERY => {
                    self.wake_at(asked + ABORT_EVERY);
                    return Some(Course::Underway);
                }
                Some(_) => {}
            }
        }
        Some(self.set_right(row, until))
    }

    /// A server that Nova says somebody migrates, before this Eviction has asked for anything: if
    /// there is no migration, and nothing has changed for the whole patience, it is set right.
    pub(super) fn set_right_before_move(&mut self, row: &EvictionInstance, server: &Server) {
        let migrating = server.status == ServerStatus::Migrating
            || server.task_state.as_deref() == Some("migrating");
        let dry = self.seen.eviction.spec.dry_run();
        if !migrating || dry || self.stop.is_some() || !self.seen.policy.reset_errors {
            return;
        }
        let sign = self.last_sign(row, None);
        let until = self.over_at(sign, self.seen.policy.stuck_patience);
        if self.now < until {
            return self.wake_at(until);
        }
        let probe = self.seen.reads.probes.get(&row.id);
        let Some(probe) = probe.filter(|read| read.at >= until) else {
            return self.probe(row);
        };
        if probe.value.conductor && probe.value.migration.is_none() {
            self.set_right(row, until);
        }
    }

    /// Sets the state of a server right if its guest runs here.
    fn set_right(&mut self, row: &EvictionInstance, until: Timestamp) -> Course {
        let reads = &self.seen.reads;
        if row.method.is_some_and(|method| method != Method::Live) {
            return Course::Abandoned(by_hand(row, "nobody brings its migration to an end"));
        }
        if !self.seen.policy.reset_errors {
            return Course::Abandoned(by_hand(
                row,
                "nobody drives its migration any more, and --eviction-reset-errors is off",
            ));
        }
        if let Some(at) = reads.repaired.get(&row.id) {
            let listed = reads.servers.as_ref().map(|read| read.at);
            if listed.is_some_and(|listed| listed > *at) {
                return Course::Abandoned(by_hand(
                    row,
                    "nobody drives its migration any more, and Nova did not reset its state",
                ));
            }
            return Course::Underway;
        }
        match &reads.running {
            Some(read) if read.at >= until => {
                if !read.value.contains(&row.id) {
                    return Course::Abandoned(by_hand(
                        row,
                        "nobody drives its migration any more, and the agent of the host does not \
                         see its guest running here",
                    ));
                }
                let server = row.id.clone();
                self.actions.insert(Action::Repair { server });
            }
            _ => {
                self.actions.insert(Action::ReadRunning);
            }
        }
        Course::Underway
    }

    /// Whether the state of a row's server was reset during the present attempt, which is over then.
    pub(super) fn was_reset(&self, row: &EvictionInstance) -> bool {
        let began = row.since.as_ref().map_or(Timestamp::MAX, |since| since.0);
        let reset = self.seen.reads.repaired.get(&row.id);
        let listed = self.seen.reads.servers.as_ref().map(|read| read.at);
        reset.is_some_and(|at| *at > began && listed.is_some_and(|listed| listed > *at))
    }

    fn probe(&mut self, row: &EvictionInstance) {
        let server = row.id.clone();
        self.actions.insert(Action::ReadStuck { server });
    }

    /// A cold migration changes nothing in Nova while it copies disks, which may take long.
    fn stuck_patience(&self, row: &EvictionInstance) -> SignedDuration {
        let policy = &self.seen.policy;
        if row.method == Some(Method::Live) {
            policy.stuck_patience
        } else {
            policy.stuck_patience.max(policy.instance_deadline)
        }
    }

    fn last_sign(&self, row: &EvictionInstance, record: Option<&Migration>) -> Timestamp {
        let reads = &self.seen.reads;
        let asked = match reads.asked.get(&row.id) {
            Some(Asked::Accepted { at, .. } | Asked::Unclear { at, .. }) => Some(*at),
            _ => None,
        };
        let began = row.since.as_ref().map_or(self.now, |since| since.0);
        // In the queue of nova-compute it is as alive as those before it.
        let queued = record.is_some_and(|one| one.status == MigrationStatus::Queued);
        let ahead = reads.signs.last_ahead_of_queue().filter(|_| queued);
        [asked, reads.signs.last(&row.id), ahead]
            .into_iter()
            .flatten()
            .fold(began, Timestamp::max)
    }

    /// A wait with an end, which began when something was last seen.
    fn wait_until(&mut self, reason: &str, text: String, since: Timestamp, until: Timestamp) {
        if self.status.waiting_for.is_some() {
            return;
        }
        self.wait(reason, text);
        let second = |at: Timestamp| Time(Timestamp::from_second(at.as_second()).unwrap_or(at));
        if let Some(wait) = &mut self.status.waiting_for {
            wait.since = second(since);
            wait.deadline = Some(second(until));
        }
    }
}

fn by_hand(row: &EvictionInstance, why: &str) -> String {
    format!(
        "{why}: see on which host its guest runs, then reset its state (openstack server set \
         --state active {}) and drain the host again",
        row.id
    )
}
