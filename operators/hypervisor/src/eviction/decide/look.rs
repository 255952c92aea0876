//! What is read again, and when: so that nothing is overlooked and Nova is not asked in vain.

use std::collections::BTreeSet;

use cobalt_api::eviction::{
    EvictionInstance, InstanceCounts, InstanceState as State, Method, PreflightReason,
};
use cobalt_openstack::compute::Migration;
use jiff::{SignedDuration, Timestamp};

use super::agree::AGAIN;
use super::arrive::is_arriving;
use super::{Turn, label};
use crate::eviction::seen::{Action, Asked};

/// While something is under way, new servers are looked for this often.
const LIST_EVERY: SignedDuration = SignedDuration::from_secs(30);
/// While something is waited for that is not ours.
const LIST_WAITING: SignedDuration = SignedDuration::from_secs(5);
/// While a shelved instance is let go of, which is no migration.
const LIST_OFFLOADED: SignedDuration = SignedDuration::from_secs(2);
/// How often Placement and Nova's server groups are asked again for an instance that waits for room, or
/// for its group to go.
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

/// What a glance at Placement says.
#[derive(Debug, Clone, Copy)]
pub(super) enum Glance {
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

impl Turn<'_> {
    /// What is to be read again, and when.
    pub(super) fn look_again(&mut self, host: &str) {
        let host = host.to_owned();
        let counts = InstanceCounts::of(&self.status.instances);
        let waiting =
            |row: &&EvictionInstance| self.seen.reads.asked.get(&row.id) == Some(&Asked::Waiting);
        let moving = || {
            self.status
                .instances
                .iter()
                .filter(|row| row.state == State::Moving && !is_arriving(row))
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
            () if self.cell_down => AGAIN,
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
        let crashed = PreflightReason::GuestNotRunning.as_str();
        let waits_for_nova = self.status.instances.iter().any(|row| {
            let mut reasons = row.preflight.iter().flat_map(|one| &one.reasons);
            row.state == State::Blocked && reasons.any(|one| one.reason == crashed)
        });
        if waits_for_nova {
            // It may be started again, too.
            self.libvirt_within(LIST_WAITING);
        }
        let by_others = [PreflightReason::NoCapacity, PreflightReason::AffinityGroup];
        let by_others = by_others.map(PreflightReason::as_str);
        let helped_by_others = self.status.instances.iter().any(|row| {
            let mut reasons = row.preflight.iter().flat_map(|one| &one.reasons);
            row.state == State::Blocked
                && reasons.any(|one| by_others.contains(&one.reason.as_str()))
        });
        let asked = self
            .seen
            .reads
            .targets
            .as_ref()
            .map_or(Timestamp::MIN, |read| read.at);
        if helped_by_others
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
        let rows = rows.filter(|row| row.state == State::Moving && !is_arriving(row));
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
    pub(super) fn glance(&self) -> Option<Glance> {
        let reads = &self.seen.reads;
        let holders = reads.holders.as_ref()?;
        if self.now.duration_since(holders.at) > GLANCE_LONGEST * 2 {
            return None;
        }
        let (mut gone, mut targeted) = (0_usize, 0_usize);
        for row in &self.status.instances {
            let moving = row.state == State::Moving && !is_arriving(row);
            let asked = self.asked_at(row).filter(|_| moving);
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

    pub(super) fn read_holders(&mut self) {
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
    pub(super) fn asked_at(&self, row: &EvictionInstance) -> Option<Timestamp> {
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
}
