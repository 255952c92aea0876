//! Whether it is over and with what outcome, and what is said until then.

use cobalt_api::conditions::{self, EvictionCondition as Type, Reason, Status};
use cobalt_api::eviction::{
    EvictionInstance, InstanceCounts, InstanceState as State, Outcome, Verdict,
};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{Stop, Turn, is_held};
use crate::eviction::seen::Action;

impl Turn<'_> {
    /// Whether the eviction is over.
    pub(super) fn ends(&mut self, host: &str) -> bool {
        let counts = InstanceCounts::of(&self.status.instances);
        let eviction = &self.seen.eviction;
        if eviction.spec.dry_run() {
            let unread = |row: &EvictionInstance| {
                row.state == State::Pending && !self.servers.contains_key(row.id.as_str())
            };
            if self.status.instances.iter().any(unread) {
                return false;
            }
            // Whatever Nova is busy with is a verdict as good as the others.
            let text = plan(&self.status.instances);
            self.say(
                Type::PreflightChecksSucceeded,
                Status::True,
                Reason::Succeeded,
                &text,
            );
            let outcome = match counts.failed {
                0 => Outcome::Succeeded,
                _ => failure(counts),
            };
            self.end(outcome, &text);
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
        if !self.have_arrived() {
            return false;
        }
        let counts = InstanceCounts::of(&self.status.instances);
        if counts.failed > 0 {
            let outcome = failure(counts);
            self.end(outcome, &summary(counts));
            return true;
        }
        let Some(notes) = self.agree(host, whole) else {
            self.go_on_waiting();
            return self.status.outcome.is_some();
        };
        let text = [vec![summary(counts)], notes].concat().join("; ");
        self.end(Outcome::Succeeded, &text);
        true
    }

    /// The end of one that was stopped.
    pub(super) fn stopped(&mut self, counts: InstanceCounts) {
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
    pub(super) fn cancel_rest(&mut self) {
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
    pub(super) fn give_up(&mut self, why: &str) {
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

    /// The end.
    pub(super) fn end(&mut self, outcome: Outcome, text: &str) {
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

    pub(super) fn release(&mut self) {
        if is_held(&self.seen.eviction) {
            self.actions.insert(Action::Release);
        }
    }

    pub(super) fn say_running(&mut self) {
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
}

/// The outcome when some have not left.
pub(super) fn failure(counts: InstanceCounts) -> Outcome {
    if counts.moved + counts.gone > 0 {
        Outcome::PartiallyFailed
    } else {
        Outcome::Failed
    }
}

/// The verdicts in one sentence, and what to do.
fn plan(rows: &[EvictionInstance]) -> String {
    let verdicts = rows.iter().map(|row| {
        let gone = matches!(row.state, State::Moved | State::Gone);
        let said = row.preflight.as_ref().map(|one| one.verdict);
        said.or_else(|| gone.then_some(Verdict::Movable))
            .unwrap_or(Verdict::Unknown)
    });
    let (mut can, mut cannot, mut unknown) = (0, 0, 0);
    for verdict in verdicts {
        match verdict {
            Verdict::Movable | Verdict::MovableCold => can += 1,
            Verdict::Blocked => cannot += 1,
            Verdict::Unknown => unknown += 1,
        }
    }
    let mut text = format!(
        "{} instances: {can} can be moved, {cannot} cannot",
        rows.len()
    );
    if unknown > 0 {
        text.push_str(&format!(", of {unknown} it is not known"));
    }
    if cannot > 0 {
        text.push_str("; what to do about it is in their preflight");
    }
    text
}

pub(super) fn summary(counts: InstanceCounts) -> String {
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
