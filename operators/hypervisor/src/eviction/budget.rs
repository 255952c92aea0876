//! How many instances may move at the same time: per source, per target, per zone and in all.
//!
//! A migration whose target the scheduler has not told yet counts for every target: it may be any
//! of them. So the limit of a target holds although the scheduler chooses.

use std::collections::{BTreeMap, BTreeSet};

use cobalt_api::eviction::{Eviction, EvictionInstance, InstanceState};
use kube::ResourceExt;

/// The operator's limits. The last migration within a limit may start, the next one waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Off one host.
    pub source: usize,
    /// Onto one host.
    pub target: usize,
    /// Off the hosts of one zone.
    pub zone: usize,
    /// Of all hosts of this operator.
    pub cluster: usize,
}

/// A migration under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The Hypervisor that the instance leaves.
    pub source: String,
    /// Its zone.
    pub zone: Option<String>,
    /// Where the instance goes, as Nova calls the host; absent while the scheduler has not said.
    pub target: Option<String>,
}

/// All migrations under way, by Eviction and instance.
#[derive(Debug, Default)]
pub struct Ledger {
    claims: BTreeMap<String, BTreeMap<String, Claim>>,
}

impl Ledger {
    /// What an Eviction has under way now, instead of what it had.
    pub fn set(&mut self, eviction: &str, claims: BTreeMap<String, Claim>) {
        if claims.is_empty() {
            self.claims.remove(eviction);
        } else {
            self.claims.insert(eviction.to_owned(), claims);
        }
    }

    /// What an Eviction's rows say is under way: for those that have not had their turn yet.
    pub fn recall(&mut self, eviction: &Eviction, zone: Option<&str>) {
        let uid = eviction.uid().unwrap_or_default();
        let rows = eviction.status.as_ref().map(|status| &status.instances[..]);
        let source = &eviction.spec.hypervisor;
        self.set(&uid, claims(source, zone, rows.unwrap_or_default()));
    }

    /// Of one host, only what these Evictions have under way.
    pub fn keep(&mut self, source: &str, evictions: &BTreeSet<String>) {
        self.claims.retain(|uid, claims| {
            evictions.contains(uid) || claims.values().all(|claim| claim.source != source)
        });
    }

    /// The room that the others leave to an Eviction.
    #[must_use]
    pub fn room(&self, eviction: &str, source: &str, zone: Option<&str>, limits: Limits) -> Room {
        let mut room = Room {
            limits,
            source: 0,
            zone: 0,
            cluster: 0,
            targets: BTreeMap::new(),
            anywhere: 0,
        };
        let others = self.claims.iter().filter(|(uid, _)| *uid != eviction);
        for claim in others.flat_map(|(_, claims)| claims.values()) {
            room.cluster += 1;
            room.source += usize::from(claim.source == source);
            room.zone += usize::from(zone.is_some() && claim.zone.as_deref() == zone);
            room.go(claim.target.as_deref());
        }
        room
    }

    /// How many are under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.claims.values().map(BTreeMap::len).sum()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }
}

/// What an Eviction's rows say is under way.
#[must_use]
pub fn claims(
    source: &str,
    zone: Option<&str>,
    rows: &[EvictionInstance],
) -> BTreeMap<String, Claim> {
    rows.iter()
        .filter(|row| row.state == InstanceState::Moving)
        .map(|row| {
            let claim = Claim {
                source: source.to_owned(),
                zone: zone.map(ToOwned::to_owned),
                target: row.to.clone(),
            };
            (row.id.clone(), claim)
        })
        .collect()
}

/// What is under way, as one Eviction sees it: first that of others, then its own, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// The limits.
    pub limits: Limits,
    source: usize,
    zone: usize,
    cluster: usize,
    targets: BTreeMap<String, usize>,
    anywhere: usize,
}

impl Room {
    /// Everything is free.
    #[must_use]
    pub fn free(limits: Limits) -> Self {
        Ledger::default().room("", "", None, limits)
    }

    fn go(&mut self, target: Option<&str>) {
        match target {
            Some(target) => *self.targets.entry(target.to_owned()).or_default() += 1,
            None => self.anywhere += 1,
        }
    }

    /// One more of the Eviction's own is under way.
    pub fn take(&mut self, target: Option<&str>) {
        self.source += 1;
        self.zone += 1;
        self.cluster += 1;
        self.go(target);
    }

    /// So many of the Eviction's own are under way no more; of some of them nobody had said where
    /// they go.
    pub fn give_back(&mut self, count: usize, anywhere: usize) {
        for used in [&mut self.source, &mut self.zone, &mut self.cluster] {
            *used = used.saturating_sub(count);
        }
        self.anywhere = self.anywhere.saturating_sub(anywhere);
    }

    /// What has to end before another one may leave the host, if something has.
    #[must_use]
    pub fn full(&self) -> Option<&'static str> {
        let Limits {
            source,
            zone,
            cluster,
            ..
        } = self.limits;
        [
            (self.source >= source, "this host"),
            (self.zone >= zone, "this zone"),
            (self.cluster >= cluster, "this operator"),
        ]
        .into_iter()
        .find_map(|(full, whose)| full.then_some(whose))
    }

    /// Whether one more may go to a target. `None`: to whichever the scheduler takes.
    #[must_use]
    pub fn admits(&self, target: Option<&str>) -> bool {
        self.coming(target) < self.limits.target
    }

    /// How many may be on their way to a target, at most. `None`: to the fullest.
    #[must_use]
    pub fn coming(&self, target: Option<&str>) -> usize {
        let known = match target {
            Some(target) => self.targets.get(target).copied().unwrap_or(0),
            None => self.targets.values().copied().max().unwrap_or(0),
        };
        known + self.anywhere
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        source: 2,
        target: 2,
        zone: 3,
        cluster: 4,
    };

    fn claim(source: &str, zone: &str, target: Option<&str>) -> Claim {
        Claim {
            source: source.to_owned(),
            zone: Some(zone.to_owned()),
            target: target.map(ToOwned::to_owned),
        }
    }

    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.set(
            "one",
            [("a".to_owned(), claim("hv1", "z1", Some("t1")))].into(),
        );
        ledger.set("two", [("b".to_owned(), claim("hv1", "z1", None))].into());
        ledger
    }

    #[test]
    fn others_count_and_the_own_do_not() {
        let ledger = ledger();
        assert_eq!(ledger.len(), 2);
        let room = ledger.room("three", "hv1", Some("z1"), LIMITS);
        assert_eq!(room.full(), Some("this host"));
        let room = ledger.room("one", "hv1", Some("z1"), LIMITS);
        assert_eq!(room.full(), None);
    }

    #[test]
    fn each_limit_holds() {
        let ledger = ledger();
        let mut room = ledger.room("three", "hv2", Some("z1"), LIMITS);
        assert_eq!(room.full(), None);
        room.take(Some("t9"));
        assert_eq!(room.full(), Some("this zone"));
        let mut room = ledger.room("three", "hv2", Some("z2"), LIMITS);
        room.take(None);
        assert_eq!(room.full(), None);
        room.take(None);
        assert_eq!(room.full(), Some("this host"));
    }

    #[test]
    fn an_unknown_target_may_be_any() {
        let room = ledger().room("three", "hv2", Some("z1"), LIMITS);
        assert!(!room.admits(Some("t1")), "one is known, one may be");
        assert!(room.admits(Some("t2")), "one may be");
        assert!(!room.admits(None), "the scheduler may take t1");
        assert!(Room::free(LIMITS).admits(None));
    }

    #[test]
    fn what_a_host_has_no_more_is_no_claim() {
        let mut ledger = ledger();
        ledger.keep("hv2", &BTreeSet::new());
        assert_eq!(ledger.len(), 2, "of another host");
        ledger.keep("hv1", &["one".to_owned()].into());
        assert_eq!(ledger.len(), 1);
        ledger.keep("hv1", &BTreeSet::new());
        assert!(ledger.is_empty());
    }

    #[test]
    fn what_has_ended_is_no_claim() {
        let mut ledger = ledger();
        ledger.set("one", BTreeMap::new());
        ledger.set("two", BTreeMap::new());
        assert!(ledger.is_empty());
    }
}
