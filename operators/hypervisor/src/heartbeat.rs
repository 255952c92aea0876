//! Which node agents still renew their heartbeat Leases, by this process's own clock: wall clocks of
//! hosts differ, and jump.
//!
//! A Lease that is not renewed for its duration and a margin is late. Before that is believed the
//! Lease is read once more, because a watch can stand still.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cobalt_api::names::annotations;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;

/// Added to the duration of a Lease: some renewals may be lost on a busy API server.
const MARGIN: Duration = Duration::from_secs(20);
/// Of a Lease that does not say it.
const DURATION: Duration = Duration::from_secs(40);

/// What a Lease says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// When the agent renewed it last, by the agent's clock.
    pub renewed: Option<Timestamp>,
    /// Its agent says why it does not renew it, and has not ended: libvirt does not answer. That is
    /// the agent's own report, and no silence.
    pub excused: bool,
    duration: Duration,
}

impl Beat {
    /// Of a Lease.
    #[must_use]
    pub fn of(lease: &Lease) -> Self {
        let spec = lease.spec.as_ref();
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
        let says_why = lease
            .annotations()
            .contains_key(annotations::NOT_RENEWED_BECAUSE);
        Self {
            renewed: spec.and_then(|spec| spec.renew_time.as_ref().map(|time| time.0)),
            excused: says_why && holder.is_some_and(|holder| !holder.is_empty()),
            duration: seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map_or(DURATION, Duration::from_secs),
        }
    }
}

#[derive(Debug)]
struct Seen {
    beat: Beat,
    /// When this process saw it change last.
    since: Instant,
    /// Its host was woken because it is late.
    told: bool,
}

impl Seen {
    fn is_late(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= self.beat.duration + MARGIN
    }
}

/// The heartbeats of all hosts. A clone is the same.
#[derive(Debug, Clone, Default)]
pub struct Heartbeats(Arc<Mutex<BTreeMap<Arc<str>, Seen>>>);

impl Heartbeats {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A Lease was seen. Returns whether its host has to be looked at: it was late, and is not.
    pub fn saw(&self, host: &str, beat: Beat, now: Instant) -> bool {
        let mut all = self.all();
        match all.get_mut(host) {
            // The same again says nothing new.
            Some(seen) if seen.beat == beat => false,
            Some(seen) => {
                let was_told = seen.told;
                *seen = Seen {
                    beat,
                    since: now,
                    told: false,
                };
                was_told
            }
            None => {
                let seen = Seen {
                    beat,
                    since: now,
                    told: false,
                };
                all.insert(host.into(), seen);
                false
            }
        }
    }

    /// There is no Lease any more: nothing can be said of its host.
    pub fn forget(&self, host: &str) {
        self.all().remove(host);
    }

    /// Hosts whose Leases have become late since the last time.
    #[must_use]
    pub fn newly_late(&self, now: Instant) -> Vec<Arc<str>> {
        let mut all = self.all();
        let late = all
            .iter_mut()
            .filter(|(_, seen)| !seen.told && seen.is_late(now));
        late.map(|(host, seen)| {
            seen.told = true;
            Arc::clone(host)
        })
        .collect()
    }

    /// The last heartbeat of a host, if it is late.
    #[must_use]
    pub fn late(&self, host: &str, now: Instant) -> Option<Beat> {
        let all = self.all();
        let seen = all.get(host).filter(|seen| seen.is_late(now))?;
        Some(seen.beat.clone())
    }

    /// Whether a host has a Lease.
    #[must_use]
    pub fn knows(&self, host: &str) -> bool {
        self.all().contains_key(host)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(renewed: &str, holder: Option<&str>, why: Option<&str>) -> Beat {
        let notes = why.map(|why| json!({ annotations::NOT_RENEWED_BECAUSE: why }));
        let lease = json!({
            "metadata": { "name": "hv1", "annotations": notes },
            "spec": {
                "holderIdentity": holder, "leaseDurationSeconds": 40, "renewTime": renewed,
            },
        });
        Beat::of(&serde_json::from_value(lease).unwrap())
    }

    #[test]
    fn a_lease_is_late_by_the_observers_clock_alone() {
        let begin = Instant::now();
        let all = Heartbeats::default();
        // The host's wall clock is years behind; that proves nothing.
        let old = lease("2001-01-01T00:00:00.000000Z", Some("me"), None);
        assert!(!all.saw("hv1", old.clone(), begin));
        let later = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(all.late("hv1", later(59)), None);
        assert!(all.newly_late(later(59)).is_empty());
        // Seeing the same again, as after a new list, is no sign of life.
        assert!(!all.saw("hv1", old.clone(), later(58)));
        assert_eq!(all.newly_late(later(60)), ["hv1".into()]);
        assert!(all.newly_late(later(61)).is_empty(), "it is told once");
        assert_eq!(all.late("hv1", later(61)), Some(old));
        // It is back, with a clock that was set back.
        let back = lease("2000-01-01T00:00:00.000000Z", Some("me"), None);
        assert!(all.saw("hv1", back, later(70)), "its host is looked at");
        assert_eq!(all.late("hv1", later(129)), None);
        assert_eq!(all.newly_late(later(130)), ["hv1".into()]);
        all.forget("hv1");
        assert!(!all.knows("hv1") && all.late("hv1", later(999)).is_none());
    }

    #[test]
    fn an_agent_that_says_why_is_not_silent_until_it_ends() {
        let time = "2026-01-01T00:00:00.000000Z";
        assert!(!lease(time, Some("me"), None).excused);
        assert!(lease(time, Some("me"), Some("libvirt does not answer")).excused);
        assert!(!lease(time, None, Some("the agent was told to end")).excused);
        assert!(!lease(time, Some(""), Some("the agent was told to end")).excused);
    }
}
