//! How old something is, by stamps that another process may have written by another clock.
//!
//! Within one process time is steady ([`crate::clock`]). After a restart the wall clock may have been
//! set meanwhile. A stamp from the future counts as now, and is written so. And a deadline that has
//! passed while nobody looked is given a little time: the clock may have been set forward, and then
//! nothing is late.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Turn;

/// So long this process looks at something before it says that its time is over.
const GRACE: SignedDuration = SignedDuration::from_mins(5);

impl Turn<'_> {
    /// Sets stamps from the future to now.
    pub(super) fn rebase(&mut self) {
        let (now, latest) = (self.second(), self.now);
        let past = |time: &mut Option<Time>, latest: Timestamp, now: Timestamp| {
            if let Some(time) = time.as_mut().filter(|time| time.0 > latest) {
                time.0 = now;
            }
        };
        let status = &mut self.status;
        past(&mut status.started_at, latest, now);
        let long = self.seen.policy.instance_deadline;
        for row in &mut status.instances {
            past(&mut row.since, latest, now);
            past(&mut row.deadline, latest + long, now + long);
        }
        if let Some(wait) = self.before.as_mut().filter(|wait| wait.since.0 > latest) {
            wait.since = Time(now);
        }
    }

    /// When it is so long since something happened, at the earliest.
    pub(super) fn over_at(&self, since: Timestamp, long: SignedDuration) -> Timestamp {
        let over = since.checked_add(long).unwrap_or(Timestamp::MAX);
        over.max(self.grace(long))
    }

    /// Whether it is so long since something happened.
    pub(super) fn is_over(&self, since: Timestamp, long: SignedDuration) -> bool {
        self.over_at(since, long) <= self.now
    }

    /// When a deadline counts as passed, of something that may take so long.
    pub(super) fn passes_at(&self, deadline: Timestamp, long: SignedDuration) -> Timestamp {
        deadline.max(self.grace(long))
    }

    fn grace(&self, long: SignedDuration) -> Timestamp {
        let watched = self.seen.reads.watched_since;
        watched.map_or(Timestamp::MIN, |watched| watched + long.min(GRACE))
    }
}
