//! Bounds how many Evictions of one host the operator keeps. A node agent makes them without anybody
//! having asked, and one that runs wild, or whose token was stolen, must not end the operator by
//! memory: what is too much is deleted, and said in an Event of the host.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cobalt_api::eviction::Eviction;
use cobalt_runtime::{Note, Recorder, Severity, Store, within};
use futures::StreamExt;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};

use crate::eviction::decide::is_held;
use crate::kept::Row;
use crate::metrics::Metrics;

/// So many Evictions of one host that its agent has made are kept, whether they have ended or not:
/// more than a host has instances.
pub const PER_HOST: usize = 256;
/// So many are deleted at a time.
const AT_A_TIME: usize = 16;
const DEADLINE: Duration = Duration::from_secs(15);

/// How many Evictions each host has.
#[derive(Debug, Default)]
pub struct Counts(BTreeMap<String, usize>);

impl Counts {
    /// There is one more. Returns whether that is too much.
    pub fn add(&mut self, host: &str) -> bool {
        let count = self.0.entry(host.to_owned()).or_default();
        *count += 1;
        *count > PER_HOST
    }

    /// There is one less.
    pub fn remove(&mut self, host: &str) {
        if let Some(count) = self.0.get_mut(host) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(host);
            }
        }
    }
}

/// Which Evictions of a host are too much: of those that its agent has made, first those that ended
/// longest ago, then the newest that nobody has begun with. What people and the operator make stays.
#[must_use]
pub fn choose(host: &str, all: &[Arc<Eviction>]) -> Vec<Arc<Eviction>> {
    let mut made: Vec<&Arc<Eviction>> = all.iter().filter(|one| by_agent(host, one)).collect();
    let surplus = made.len().saturating_sub(PER_HOST);
    let has_ended = |one: &Eviction| {
        let status = one.status.as_ref();
        status.is_some_and(|status| status.outcome.is_some())
    };
    made.retain(|one| one.metadata.deletion_timestamp.is_none() && !is_held(one));
    let created =
        |one: &Arc<Eviction>| (one.creation_timestamp().map(|time| time.0), one.name_any());
    made.sort_by_cached_key(|one| created(one));
    let (ended, open): (Vec<_>, Vec<_>) = made.into_iter().partition(|one| has_ended(one));
    ended
        .into_iter()
        .chain(open.into_iter().rev())
        .take(surplus)
        .cloned()
        .collect()
}

/// The names that an agent gives: its node's, and the id of a boot or of an instance.
fn by_agent(host: &str, eviction: &Eviction) -> bool {
    let name = eviction.name_any();
    let id = name
        .strip_prefix(host)
        .and_then(|rest| rest.strip_prefix('-'));
    id.is_some_and(|id| id.len() >= 8 && id.chars().all(|c| c.is_ascii_hexdigit() || c == '-'))
}

/// Deletes what is too much.
pub struct Surplus {
    /// The API server.
    pub client: Client,
    /// All Evictions.
    pub evictions: Store<Eviction>,
    /// The hosts of this operator.
    pub hypervisors: Store<Row>,
    /// Where Events go.
    pub recorder: Recorder,
    /// Counters.
    pub metrics: Metrics,
}

impl fmt::Debug for Surplus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surplus").finish_non_exhaustive()
    }
}

impl Surplus {
    /// A turn for one host.
    pub async fn turn(&self, host: Arc<str>) {
        let Some(known) = self.hypervisors.named(&host).and_then(|row| row.read()) else {
            return;
        };
        let all = self.evictions.all().into_iter().map(|(_, one)| one);
        let all: Vec<Arc<Eviction>> = all.filter(|one| *one.spec.hypervisor == *host).collect();
        let surplus = choose(&host, &all);
        if surplus.is_empty() {
            return;
        }
        let text = format!(
            "{} Evictions were made by the agent of the host, of which {PER_HOST} are kept: see why \
             it makes so many",
            all.len()
        );
        tracing::warn!(
            host = &*host,
            count = all.len(),
            "too many Evictions of one host"
        );
        let mut about = known.object.object_ref(&());
        about.field_path = Some("Evictions".to_owned());
        let note = Note {
            severity: Severity::Warning,
            reason: "TooManyEvictions",
            action: "Evict",
            text,
        };
        self.recorder.report(&about, note);
        let api: Api<Eviction> = Api::all(self.client.clone());
        let api = &api;
        let delete = |one: Arc<Eviction>| async move { self.delete(api, &one).await };
        futures::stream::iter(surplus)
            .for_each_concurrent(AT_A_TIME, delete)
            .await;
    }

    async fn delete(&self, api: &Api<Eviction>, eviction: &Eviction) {
        let name = eviction.name_any();
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: eviction.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match within(DEADLINE, api.delete(&name, &params)).await {
            Ok(_) => {
                self.metrics.surplus_evictions.inc();
            }
            Err(error) => tracing::warn!(name, error, "a surplus Eviction was not deleted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use cobalt_api::eviction::{EvictionSpec, EvictionStatus, Outcome};
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn eviction(name: &str, second: i64, ended: bool) -> Arc<Eviction> {
        let mut one = Eviction::new(name, EvictionSpec::default());
        let time = Timestamp::from_second(second).unwrap();
        one.metadata.creation_timestamp = Some(Time(time));
        one.status = ended.then(|| EvictionStatus {
            outcome: Some(Outcome::Failed),
            ..EvictionStatus::default()
        });
        Arc::new(one)
    }

    fn many(count: i64, ended: bool) -> Vec<Arc<Eviction>> {
        let name = |second| format!("hv1-{second:08x}");
        (0..count)
            .map(|second| eviction(&name(second), second, ended))
            .collect()
    }

    fn seconds(all: &[Arc<Eviction>]) -> Vec<i64> {
        let time = |one: &Arc<Eviction>| one.creation_timestamp().unwrap().0.as_second();
        all.iter().map(time).collect()
    }

    #[test]
    fn an_agent_that_makes_evictions_without_end_does_not_fill_the_memory() {
        let limit = i64::try_from(PER_HOST).unwrap();
        assert!(choose("hv1", &many(limit, false)).is_empty());
        // The newest that nobody has begun with go; the first ones are worked on.
        let chosen = choose("hv1", &many(limit + 3, false));
        assert_eq!(seconds(&chosen), [limit + 2, limit + 1, limit]);
        // Before them those that ended, the oldest first.
        let chosen = choose("hv1", &many(limit + 3, true));
        assert_eq!(seconds(&chosen), [0, 1, 2]);
        let mut mixed = many(limit + 1, false);
        mixed.push(eviction("hv1-ffffffff", 9, true));
        let chosen = choose("hv1", &mixed);
        assert_eq!(seconds(&chosen), [9, limit]);
    }

    #[test]
    fn what_people_and_the_operator_make_stays() {
        let limit = i64::try_from(PER_HOST).unwrap();
        let mut all = many(limit, false);
        // Of the operator, of a person, of another host whose name begins alike.
        for name in ["hv1", "hv1-by-hand", "by-hand", "hv11-00000000"] {
            all.push(eviction(name, 0, true));
        }
        assert!(choose("hv1", &all).is_empty());
        let mut held = many(limit + 1, false);
        for one in &mut held {
            let finalizer = cobalt_api::names::finalizers::EVICTION_IN_FLIGHT;
            Arc::make_mut(one).metadata.finalizers = Some(vec![finalizer.to_owned()]);
        }
        assert!(choose("hv1", &held).is_empty(), "something is under way");
    }

    #[test]
    fn hosts_are_counted_by_themselves() {
        let mut counts = Counts::default();
        for _ in 0..PER_HOST {
            assert!(!counts.add("hv1"));
        }
        assert!(!counts.add("hv2"));
        assert!(counts.add("hv1"));
        counts.remove("hv1");
        counts.remove("hv1");
        assert!(!counts.add("hv1"));
        counts.remove("hv2");
        counts.remove("hv2");
        assert!(!counts.0.contains_key("hv2"));
    }
}
