//! The Migration objects of this node: their names, which of them is whose, and when they go. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cobalt_api::migration::{Migration, MigrationEnd, MigrationResult, MigrationStatus, Role};
use cobalt_api::names::labels;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde_json::{Value, json};
use uuid::Uuid;

use super::machine::Now;
use super::text;

/// How far apart the beginning in an object and the beginning by the job may be. Both come from the
/// clock of one host.
const SAME_START: SignedDuration = SignedDuration::from_secs(5);
/// How far apart the clocks of two hosts may be.
const HOST_CLOCKS: SignedDuration = SignedDuration::from_secs(30);
/// How much older than the first sign of an arrival its object may be: disks are copied first.
const BEFORE_ARRIVAL: SignedDuration = SignedDuration::from_mins(10);
/// How long an old object is looked at before it may go: by then a clock that was wrong at boot has
/// been set.
const LOOKED_AT: Duration = Duration::from_secs(5 * 60);

/// The name of a migration's object: no other migration of the instance has begun in the same
/// millisecond.
#[must_use]
pub fn name(instance: Uuid, started: Timestamp) -> String {
    let millis = u64::try_from(started.as_millisecond()).unwrap_or(0);
    format!("{instance}-{}", text::base36(millis))
}

/// The object without its status.
#[must_use]
pub fn head(name: &str, namespace: &str, instance: Uuid, node: &str) -> Value {
    json!({
        "apiVersion": "kvm.cloud.sap/v1alpha1",
        "kind": "Migration",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {
                labels::SOURCE_NODE: node,
                labels::INSTANCE: instance.to_string(),
            },
        },
        "spec": {},
    })
}

/// The source's part of the status.
#[must_use]
pub fn source_part(status: &MigrationStatus) -> Value {
    json!({
        "apiVersion": "kvm.cloud.sap/v1alpha1",
        "kind": "Migration",
        "status": status,
    })
}

/// The destination's part of the status.
#[must_use]
pub fn destination_part(entry: &MigrationEnd) -> Value {
    json!({
        "apiVersion": "kvm.cloud.sap/v1alpha1",
        "kind": "Migration",
        "status": { "ends": [entry] },
    })
}

/// What the agent keeps of an object of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// The instance.
    pub instance: Uuid,
    /// When it began.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub finished: Option<Timestamp>,
    /// The source's part wants something that only the destination's entry had.
    pub amendable: bool,
    /// The destination, as it says itself.
    pub destination: Option<String>,
    /// How it ended, as the destination says.
    pub destination_result: Option<MigrationResult>,
    /// When this process saw it first.
    pub seen: Instant,
    /// This process saw it end, and when.
    pub ended: Option<Instant>,
}

impl Known {
    /// What is worth keeping; `None` for an object that is not one of ours.
    #[must_use]
    pub fn of(object: &Migration, before: Option<&Self>, now: Instant) -> Option<Self> {
        let instance = object.labels().get(labels::INSTANCE)?.parse().ok()?;
        let status = object.status.as_ref();
        let entry = status.and_then(|status| end(status, Role::Destination));
        let finished = status.and_then(|status| status.finished.as_ref().map(|time| time.0));
        let saw_it_run = before.is_some_and(|before| before.finished.is_none());
        let ended = match before {
            Some(before) if before.ended.is_some() => before.ended,
            _ => (finished.is_some() && saw_it_run).then_some(now),
        };
        Some(Self {
            instance,
            started: status.and_then(|status| status.started.as_ref().map(|time| time.0)),
            finished,
            amendable: status.and_then(amend).is_some(),
            destination: entry.map(|entry| entry.node.clone()),
            destination_result: entry.and_then(|entry| entry.result),
            seen: before.map_or(now, |before| before.seen),
            ended,
        })
    }

    /// Whether the object has been there long enough. What this process saw end is measured by a
    /// clock that never jumps. Of older ones the wall clock tells; when it was set back, they go
    /// after having been looked at for the whole time.
    #[must_use]
    pub fn due(&self, ttl: Duration, now: Now) -> bool {
        let Some(finished) = self.finished else {
            return false;
        };
        let since = |then: Instant| now.instant.saturating_duration_since(then);
        if let Some(ended) = self.ended {
            return since(ended) >= ttl;
        }
        let age = now.wall.duration_since(finished);
        let old = Duration::try_from(age).is_ok_and(|age| age >= ttl);
        since(self.seen) >= ttl || (old && since(self.seen) >= LOOKED_AT.min(ttl))
    }
}

/// The entry of an end.
#[must_use]
pub fn end(status: &MigrationStatus, role: Role) -> Option<&MigrationEnd> {
    status.ends.iter().find(|end| end.role == role)
}

/// The unfinished object of an instance whose migration began at `started`.
#[must_use]
pub fn same_migration(
    known: &BTreeMap<String, Known>,
    instance: Uuid,
    started: Timestamp,
) -> Option<&String> {
    known
        .iter()
        .filter(|(_, object)| object.instance == instance && object.finished.is_none())
        .filter(|(_, object)| {
            // An object without a status was created a moment before the agent ended.
            object
                .started
                .is_none_or(|begun| started.duration_since(begun).abs() <= SAME_START)
        })
        .map(|(name, _)| name)
        .next_back()
}

/// A beginning that is later than that of every known migration of the instance, so that names are
/// unique and the newest is the last, even if the clock was set back.
#[must_use]
pub fn later_than_known(
    known: &BTreeMap<String, Known>,
    instance: Uuid,
    started: Timestamp,
) -> Timestamp {
    let prefix = format!("{instance}-");
    let newest = known
        .range(prefix.clone()..)
        .map_while(|(name, _)| name.strip_prefix(&prefix))
        .filter_map(|suffix| i64::from_str_radix(suffix, 36).ok())
        .max();
    match newest {
        Some(newest) if newest >= started.as_millisecond() => {
            Timestamp::from_millisecond(newest.saturating_add(1)).unwrap_or(started)
        }
        _ => started,
    }
}

/// The source's own part of a status that was read, with what the destination's entry adds to a
/// finished one. `None`: it adds nothing.
#[must_use]
pub fn amend(status: &MigrationStatus) -> Option<MigrationStatus> {
    let entry = end(status, Role::Destination)?;
    status.finished.as_ref()?;
    let unknown = status.result == Some(MigrationResult::Unknown);
    let succeeded = unknown && entry.result == Some(MigrationResult::Succeeded);
    if status.destination.is_some() && !succeeded {
        return None;
    }
    let mut own = own(status);
    own.destination = Some(entry.node.clone());
    if succeeded {
        own.result = Some(MigrationResult::Succeeded);
        own.type_ = Some("success".to_owned());
        own.err_msg = None;
        for end in &mut own.ends {
            end.result = own.result;
            end.error = None;
        }
    }
    Some(own)
}

/// The source's own part of a status that was read.
#[must_use]
pub fn own(status: &MigrationStatus) -> MigrationStatus {
    let mut own = status.clone();
    own.ends.retain(|end| end.role == Role::Source);
    own
}

/// The object that an arriving instance belongs to: the newest unfinished one that another host
/// owns. A fast migration may be finished already; then it is the newest one that lacks the word of
/// its destination.
#[must_use]
pub fn of_arrival(
    objects: &BTreeMap<String, Migration>,
    node: &str,
    began: Timestamp,
    from_start: bool,
) -> Option<String> {
    let fits = |object: &Migration| {
        let status = object.status.as_ref()?;
        let source = object.labels().get(labels::SOURCE_NODE)?;
        let started = status.started.as_ref()?.0;
        let recent = began.duration_since(started) <= BEFORE_ARRIVAL;
        let spoken = end(status, Role::Destination).is_some_and(|end| end.result.is_some());
        let fits = source != node && !spoken && (recent || !from_start);
        let finished = status.finished.as_ref().map(|time| time.0);
        // What ended before the arrival began is an earlier one; clocks of hosts differ a little.
        let ended_before = finished.is_some_and(|at| began.duration_since(at) > HOST_CLOCKS);
        (fits && !ended_before).then_some((finished.is_none(), started))
    };
    objects
        .iter()
        .filter_map(|(name, object)| Some((fits(object)?, name)))
        .max()
        .map(|(_, name)| name.clone())
}

/// An object of which only the name and the labels are known, for tests and for closing.
#[must_use]
pub fn blank(name: &str, instance: Uuid, node: &str) -> Migration {
    Migration {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([
                (labels::SOURCE_NODE.to_owned(), node.to_owned()),
                (labels::INSTANCE.to_owned(), instance.to_string()),
            ])),
            ..ObjectMeta::default()
        },
        ..Migration::default()
    }
}
