//! Those that are not on their way: whether they can be moved, and when they are given up.

use cobalt_api::conditions::{EvictionCondition as Type, Reason, Status};
use cobalt_api::eviction::{
    EvictionInstance, InstanceState as State, PreflightFinding, PreflightReason, Verdict,
};
use cobalt_openstack::compute::Server;
use jiff::{SignedDuration, Timestamp};

use super::{Turn, label};
use crate::eviction::seen::Action;
use crate::eviction::verdict::{Judged, judge};
use crate::pass::cut;

impl Turn<'_> {
    /// Judges those that are not on their way, and settles those that will not be.
    pub(super) fn judge_rest(&mut self, host: &str) {
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
            let mut judged = judge(server, row, &self.seen.reads);
            self.unless_host_is_down(&mut judged);
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

    /// Nothing can leave a host that is down. A drain waits for it; a plan says so.
    fn unless_host_is_down(&self, judged: &mut Judged) {
        if !self.seen.eviction.spec.dry_run() || self.seen.source.is_up() {
            return;
        }
        judged.method = None;
        judged.preflight.verdict = Verdict::Blocked;
        judged.preflight.reasons.insert(
            0,
            PreflightFinding {
                reason: PreflightReason::HostDown.as_str().to_owned(),
                message: Some(
                    "the nova-compute of its host is down: bring it back, or fence the host and \
                     evacuate its servers"
                        .to_owned(),
                ),
            },
        );
    }

    /// Whether the list is newer than the end of the last attempt, which leaves ERROR behind.
    pub(super) fn listed_since(&self, row: &EvictionInstance) -> bool {
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
        self.set_right_before_move(row, server);
        let reasons = &judged.preflight.reasons;
        if !judged.passes && self.exhausted(row) {
            self.settle(row, State::Failed);
            return self.tell_failed(row);
        }
        let Some(_) = judged.method else {
            let until = self.over_at(since, self.patience_with(judged));
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

    /// Says of a row what its error is.
    pub(super) fn tell_failed(&mut self, row: &EvictionInstance) {
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
}

/// When a row has come into its state for sure: what is kept is the full second before.
fn settled_for_sure(row: &EvictionInstance) -> Timestamp {
    let since = row.since.as_ref();
    since.map_or(Timestamp::MIN, |since| {
        since.0 + SignedDuration::from_secs(1)
    })
}
