//! Who goes next, and where to.

use cobalt_api::eviction::{EvictionInstance, InstanceState as State, Method};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::arrive::is_arriving;
use super::look::Glance;
use super::{BETWEEN_EMPTY, Turn};
use crate::eviction::seen::{Action, Order};
use crate::eviction::verdict::priority;

/// The wait after the first failed attempt; three times as long after each other one.
const FIRST_BACKOFF: i64 = 10;

impl Turn<'_> {
    /// Starts as many as there is room for.
    pub(super) fn start(&mut self) {
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
            .filter(|row| row.state == State::Moving && !is_arriving(row))
            .count()
            .saturating_sub(ended);
        let newest = self
            .seen
            .reads
            .migrations
            .iter()
            .flat_map(|read| &read.value)
            .map(|one| one.id);
        // A list from while the cell was down is empty, and an earlier attempt must not be taken for
        // the one that begins now.
        let rows = self.status.instances.iter();
        let known = rows.flat_map(|row| row.migration_id.max(row.after_migration_id));
        let newest = newest.chain(known).max();
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
            if method == Method::Live && self.libvirt_is_old() {
                self.actions.insert(Action::ReadDomains);
                break;
            }
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
        // Who has failed is taken if there is nobody else, the one that failed first before others.
        let failed = |host: &&String| row.avoid.iter().position(|avoided| avoided == *host);
        let fresh = hosts.iter().any(|host| failed(&host).is_none());
        hosts
            .iter()
            .filter(|host| self.room.admits(Some(host)) && !(fresh && failed(host).is_some()))
            .min_by_key(|host| (failed(host), self.room.coming(Some(host))))
            .map(|host| Some(host.clone()))
    }
}
