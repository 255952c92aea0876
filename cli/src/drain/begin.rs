//! How a drain begins: the Eviction that empties the host, and the maintenance that keeps the
//! scheduler away.
//!
//! It goes step by step: both objects are read, [`decide`] says the next step, and after it both are
//! read again. What others do meanwhile is found, joined or refused, never overwritten.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use cobalt_api::conditions::{self, HypervisorCondition as Type};
use cobalt_api::duration;
use cobalt_api::eviction::{Eviction, EvictionSpec};
use cobalt_api::hypervisor::{Hypervisor, Maintenance, Phase};
use cobalt_api::names::labels;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::cluster::Cluster;

/// Why, where nobody has said it.
const REASON: &str = "cobalt drain";
/// More steps than a drain needs, however busy others are.
const STEPS: usize = 20;

/// What a person wants of the drain.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    pub reason: Option<String>,
    pub parallelism: Option<i32>,
    pub deadline: Option<String>,
}

/// Why a host cannot be drained, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("its Hypervisor is being deleted")]
    BeingDeleted,
    #[error(
        "the operator does not manage it (spec.lifecycleEnabled is false); label its Node with {}",
        labels::LIFECYCLE
    )]
    LifecycleOff,
    #[error("the operator has not seen it yet; see whether the operator runs")]
    Unseen,
    #[error("it is being onboarded; `cobalt onboard status` says what it waits for")]
    Onboarding,
    #[error("it has left Nova: there is nothing to move")]
    Decommissioned,
    #[error(
        "automation has taken it out of service (maintenance is auto), and empties it; \
         `kubectl get evi` shows how far it is"
    )]
    Automation,
    #[error("it is dead or dying, and its instances are being recovered (maintenance is ha)")]
    Recovery,
    #[error(
        "its node goes away for good, and it is emptied for that (maintenance is termination, the \
         spec is frozen); `kubectl get evi` shows how far it is"
    )]
    Termination,
    #[error(
        "an Eviction of its name is under way that does not empty the host; wait until it has \
         ended, or delete it"
    )]
    OtherEviction,
    #[error(
        "an earlier drain is being called off; `cobalt undrain --wait` follows that, then try again"
    )]
    BeingUndrained,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Delete the Eviction of an earlier drain.
    Delete { uid: String },
    /// Wait until it is gone.
    AwaitDeletion { uid: String },
    /// Make the Eviction.
    Create,
    /// Change what the Eviction under way is told.
    Change { spec: Value },
    /// Take the host out of service.
    TakeOut,
    /// The drain is under way.
    Follow { uid: String },
}

/// A drain that is under way.
#[derive(Clone, Debug, Serialize)]
pub struct Begun {
    #[serde(rename = "name")]
    pub node: String,
    pub uid: String,
    /// It was under way before.
    pub joined: bool,
}

/// Whether a host can be drained at all.
///
/// # Errors
///
/// Why not.
pub fn check(host: &Hypervisor) -> Result<(), Refusal> {
    if host.metadata.deletion_timestamp.is_some() && !has_lost_its_node(host) {
        return Err(Refusal::BeingDeleted);
    }
    match host.spec.maintenance() {
        Maintenance::Unset | Maintenance::Manual => {}
        Maintenance::Auto => return Err(Refusal::Automation),
        Maintenance::Ha => return Err(Refusal::Recovery),
        Maintenance::Termination => return Err(Refusal::Termination),
    }
    if !host.spec.lifecycle_enabled() {
        return Err(Refusal::LifecycleOff);
    }
    let Some(status) = &host.status else {
        return Err(Refusal::Unseen);
    };
    if conditions::is_true(&status.conditions, Type::Onboarding) {
        return Err(Refusal::Onboarding);
    }
    match status.phase {
        Some(Phase::Initial | Phase::Onboarding | Phase::Testing | Phase::Ready) => {
            Err(Refusal::Onboarding)
        }
        Some(Phase::Decommissioned) => Err(Refusal::Decommissioned),
        Some(Phase::Active | Phase::Evicting | Phase::Maintenance | Phase::Aborted) => Ok(()),
        // Written by an operator that knows no phases.
        None if conditions::find(&status.conditions, Type::Onboarding).is_some() => Ok(()),
        None => Err(Refusal::Unseen),
    }
}

/// Whether the operator holds a Hypervisor whose Node is gone until its instances have left.
fn has_lost_its_node(host: &Hypervisor) -> bool {
    host.status.as_ref().is_some_and(|status| {
        conditions::is_true(&status.conditions, Type::Terminating)
            && conditions::is_false(&status.conditions, Type::Offboarded)
    })
}

/// The next step. `made` is the Eviction that this drain has made, if it has: when that has ended
/// meanwhile, this drain has.
///
/// # Errors
///
/// Why the host cannot be drained.
pub fn decide(
    host: &Hypervisor,
    eviction: Option<&Eviction>,
    made: Option<&str>,
    wish: &Wish,
) -> Result<Step, Refusal> {
    check(host)?;
    let manual = host.spec.maintenance() == Maintenance::Manual;
    if !manual && is_said_to_evict(host) {
        // The operator deletes what it finds until that has been taken back.
        return Err(Refusal::BeingUndrained);
    }
    let Some(eviction) = eviction else {
        return Ok(Step::Create);
    };
    let uid = eviction.uid().unwrap_or_default();
    if eviction.metadata.deletion_timestamp.is_some() {
        return Ok(Step::AwaitDeletion { uid });
    }
    if has_ended(eviction) && made != Some(uid.as_str()) {
        return Ok(Step::Delete { uid });
    }
    if eviction.spec.cancel() {
        return Err(Refusal::BeingUndrained);
    }
    let spec = &eviction.spec;
    if spec.dry_run() || !spec.instances.is_empty() || spec.hypervisor != host.name_any() {
        return Err(Refusal::OtherEviction);
    }
    if let Some(spec) = changes(spec, wish) {
        return Ok(Step::Change { spec });
    }
    let why = host.spec.maintenance_reason.as_deref();
    if !manual || wish.reason.is_some() && why != wish.reason.as_deref() {
        return Ok(Step::TakeOut);
    }
    Ok(Step::Follow { uid })
}

fn is_said_to_evict(host: &Hypervisor) -> bool {
    host.status
        .as_ref()
        .is_some_and(|status| conditions::find(&status.conditions, Type::Evicting).is_some())
}

/// Whether an Eviction has come to its end, a good one or not.
pub fn has_ended(eviction: &Eviction) -> bool {
    eviction
        .status
        .as_ref()
        .is_some_and(|status| status.outcome.is_some())
}

/// What an Eviction under way is to be told, if anything.
fn changes(spec: &EvictionSpec, wish: &Wish) -> Option<Value> {
    let mut changes = Map::new();
    if wish.parallelism.is_some() && wish.parallelism != spec.parallelism {
        changes.insert("parallelism".to_owned(), json!(wish.parallelism));
    }
    let same = |one: &str, other: &str| duration::parse(one) == duration::parse(other);
    let present = spec.deadline.as_deref().unwrap_or_default();
    if let Some(deadline) = wish.deadline.as_deref().filter(|wish| !same(wish, present)) {
        changes.insert("deadline".to_owned(), json!(deadline));
    }
    if let Some(reason) = wish.reason.as_ref().filter(|wish| **wish != spec.reason) {
        changes.insert("reason".to_owned(), json!(reason));
    }
    (!changes.is_empty()).then(|| Value::Object(changes))
}

/// Why: what was said now, or what stands there, or that it was us.
fn reason(host: &Hypervisor, wish: &Wish) -> String {
    let manual = host.spec.maintenance() == Maintenance::Manual;
    let present = host.spec.maintenance_reason.clone();
    let present = present.filter(|why| manual && !why.is_empty());
    wish.reason
        .clone()
        .or(present)
        .unwrap_or_else(|| REASON.to_owned())
}

/// The Eviction of a host as the operator would make it, with what the person wants.
fn eviction(host: &Hypervisor, wish: &Wish) -> Eviction {
    let node = host.name_any();
    let spec = EvictionSpec {
        hypervisor: node.clone(),
        reason: reason(host, wish),
        parallelism: wish.parallelism,
        deadline: wish.deadline.clone(),
        ..EvictionSpec::default()
    };
    let mut eviction = Eviction::new(&node, spec);
    eviction.metadata.labels = Some(transfer_labels(host));
    eviction.metadata.owner_references = Some(vec![OwnerReference {
        controller: Some(true),
        block_owner_deletion: Some(true),
        ..owner(host)
    }]);
    eviction
}

/// A Hypervisor as an owner that does not control what it owns.
pub fn owner(host: &Hypervisor) -> OwnerReference {
    OwnerReference {
        api_version: Hypervisor::api_version(&()).into_owned(),
        kind: Hypervisor::kind(&()).into_owned(),
        name: host.name_any(),
        uid: host.uid().unwrap_or_default(),
        controller: None,
        block_owner_deletion: None,
    }
}

/// Labels that everything made for a host carries.
pub fn transfer_labels(host: &Hypervisor) -> BTreeMap<String, String> {
    let all = host.metadata.labels.iter().flatten();
    all.filter(|(key, _)| labels::FROM_NODE_TO_HYPERVISOR.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Begins the drain of a host, or joins the one that is under way.
///
/// # Errors
///
/// Why it cannot be; nothing is left of what was begun.
pub async fn begin(cluster: &Cluster, node: &str, wish: &Wish) -> Result<Begun> {
    let mut made = None;
    let error = match steps(cluster, node, wish, &mut made).await {
        Ok(begun) => return Ok(begun),
        Err(error) => error,
    };
    // An Eviction without its maintenance would be half a drain.
    let deleted = match &made {
        Some(uid) => cluster.delete(node, uid).await,
        None => Ok(()),
    };
    Err(match deleted {
        Ok(()) => error,
        Err(left) => error.context(format!("{left:#}")),
    })
}

async fn steps(
    cluster: &Cluster,
    node: &str,
    wish: &Wish,
    made: &mut Option<String>,
) -> Result<Begun> {
    for _ in 0..STEPS {
        let host = cluster.hypervisor(node).await?;
        let present = cluster.eviction(node).await?;
        let step = match decide(&host, present.as_ref(), made.as_deref(), wish) {
            Ok(step) => step,
            Err(refusal) => bail!("{node} cannot be drained: {refusal}"),
        };
        match step {
            Step::Delete { uid } => cluster.delete(node, &uid).await?,
            Step::AwaitDeletion { uid } => cluster.gone(node, &uid).await?,
            Step::Create => {
                let new = cluster.create(&eviction(&host, wish)).await?;
                *made = new.and_then(|new| new.uid()).or_else(|| made.take());
            }
            Step::Change { spec } => {
                let patch = json!({ "spec": spec });
                cluster.change_eviction(node, &patch).await?;
            }
            Step::TakeOut => {
                let patch = json!({
                    "metadata": { "resourceVersion": host.resource_version() },
                    "spec": {
                        "maintenance": Maintenance::Manual,
                        "maintenanceReason": reason(&host, wish),
                    },
                });
                cluster.change_hypervisor(node, &patch).await?;
            }
            Step::Follow { uid } => {
                return Ok(Begun {
                    node: node.to_owned(),
                    joined: made.as_deref() != Some(uid.as_str()),
                    uid,
                });
            }
        }
    }
    bail!(
        "{node} is changed by others all the time; see who they are (`kubectl get hv {node} -o \
         yaml --show-managed-fields`), then try again"
    )
}

#[cfg(test)]
mod tests {
    use cobalt_api::conditions::{Reason, Status};
    use cobalt_api::eviction::{EvictionStatus, Outcome};
    use cobalt_api::hypervisor::{HypervisorSpec, HypervisorStatus};
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

    use super::*;

    fn condition(type_: Type, status: Status, reason: Reason) -> Condition {
        Condition {
            type_: type_.as_str().to_owned(),
            status: status.as_str().to_owned(),
            reason: reason.as_str().to_owned(),
            message: String::new(),
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            observed_generation: None,
        }
    }

    /// A host that takes workload.
    fn host() -> Hypervisor {
        let mut host = Hypervisor::new("hv1", HypervisorSpec::default());
        host.metadata.uid = Some("host".to_owned());
        host.status = Some(HypervisorStatus {
            phase: Some(Phase::Active),
            conditions: vec![condition(
                Type::Onboarding,
                Status::False,
                Reason::Succeeded,
            )],
            ..HypervisorStatus::default()
        });
        host
    }

    fn maintained(kind: Maintenance) -> Hypervisor {
        let mut host = host();
        host.spec.maintenance = Some(kind);
        host.spec.maintenance_reason = Some("a fan".to_owned());
        host
    }

    fn in_phase(phase: Phase) -> Hypervisor {
        let mut host = host();
        host.status.as_mut().unwrap().phase = Some(phase);
        host
    }

    fn with(change: impl Fn(&mut Hypervisor)) -> Hypervisor {
        let mut host = host();
        change(&mut host);
        host
    }

    fn under_way(change: impl Fn(&mut Eviction)) -> Eviction {
        let mut one = eviction(&host(), &Wish::default());
        one.metadata.uid = Some("one".to_owned());
        change(&mut one);
        one
    }

    #[test]
    fn what_cannot_be_drained_is_refused() {
        use Refusal as R;
        let deleted = |host: &mut Hypervisor| {
            host.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        };
        let onboards = |host: &mut Hypervisor| {
            let status = host.status.as_mut().unwrap();
            status.phase = None;
            status.conditions = vec![condition(Type::Onboarding, Status::True, Reason::Testing)];
        };
        let without_node = |host: &mut Hypervisor| {
            deleted(host);
            let status = host.status.as_mut().unwrap();
            status.phase = Some(Phase::Evicting);
            status.conditions.extend([
                condition(Type::Terminating, Status::True, Reason::Terminating),
                condition(Type::Offboarded, Status::False, Reason::Offboarding),
            ]);
        };
        let old = |host: &mut Hypervisor| host.status.as_mut().unwrap().phase = None;
        let cases = [
            (host(), Ok(())),
            (maintained(Maintenance::Manual), Ok(())),
            (with(old), Ok(())),
            (in_phase(Phase::Evicting), Ok(())),
            (in_phase(Phase::Maintenance), Ok(())),
            (in_phase(Phase::Aborted), Ok(())),
            (with(deleted), Err(R::BeingDeleted)),
            (with(without_node), Ok(())),
            (
                with(|host| host.spec.lifecycle_enabled = Some(false)),
                Err(R::LifecycleOff),
            ),
            (with(|host| host.status = None), Err(R::Unseen)),
            (
                with(|host| host.status = Some(HypervisorStatus::default())),
                Err(R::Unseen),
            ),
            (with(onboards), Err(R::Onboarding)),
            (in_phase(Phase::Initial), Err(R::Onboarding)),
            (in_phase(Phase::Onboarding), Err(R::Onboarding)),
            (in_phase(Phase::Testing), Err(R::Onboarding)),
            (in_phase(Phase::Ready), Err(R::Onboarding)),
            (in_phase(Phase::Decommissioned), Err(R::Decommissioned)),
            (maintained(Maintenance::Auto), Err(R::Automation)),
            (maintained(Maintenance::Ha), Err(R::Recovery)),
            (maintained(Maintenance::Termination), Err(R::Termination)),
        ];
        for (host, expected) in cases {
            assert_eq!(check(&host), expected, "{host:?}");
        }
    }

    #[test]
    fn every_state_has_its_next_step() {
        let follow = || Ok(Step::Follow { uid: "one".into() });
        let ended = |one: &mut Eviction| {
            one.status = Some(EvictionStatus {
                outcome: Some(Outcome::Succeeded),
                ..EvictionStatus::default()
            });
        };
        let going = |one: &mut Eviction| {
            one.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        };
        let returning = with(|host| {
            let status = host.status.as_mut().unwrap();
            status
                .conditions
                .push(condition(Type::Evicting, Status::True, Reason::Running));
        });
        let mut drained = returning.clone();
        drained.spec.maintenance = Some(Maintenance::Manual);
        let manual = || maintained(Maintenance::Manual);
        let cases: [(Hypervisor, Option<Eviction>, Result<Step, Refusal>); 12] = [
            (host(), None, Ok(Step::Create)),
            (manual(), None, Ok(Step::Create)),
            (host(), Some(under_way(|_| ())), Ok(Step::TakeOut)),
            (manual(), Some(under_way(|_| ())), follow()),
            (drained, Some(under_way(|_| ())), follow()),
            (
                manual(),
                Some(under_way(ended)),
                Ok(Step::Delete { uid: "one".into() }),
            ),
            (
                manual(),
                Some(under_way(going)),
                Ok(Step::AwaitDeletion { uid: "one".into() }),
            ),
            (
                returning,
                Some(under_way(going)),
                Err(Refusal::BeingUndrained),
            ),
            (
                host(),
                Some(under_way(|one| one.spec.cancel = Some(true))),
                Err(Refusal::BeingUndrained),
            ),
            (
                host(),
                Some(under_way(|one| one.spec.dry_run = Some(true))),
                Err(Refusal::OtherEviction),
            ),
            (
                host(),
                Some(under_way(|one| one.spec.instances = vec!["vm".into()])),
                Err(Refusal::OtherEviction),
            ),
            (
                host(),
                Some(under_way(|one| one.spec.hypervisor = "hv2".into())),
                Err(Refusal::OtherEviction),
            ),
        ];
        for (host, eviction, expected) in cases {
            let step = decide(&host, eviction.as_ref(), None, &Wish::default());
            assert_eq!(step, expected, "{host:?} {eviction:?}");
        }
        // It was faster than we looked.
        let own = under_way(ended);
        let step = decide(&manual(), Some(&own), Some("one"), &Wish::default());
        assert_eq!(step, follow());
        let step = decide(&host(), Some(&own), Some("one"), &Wish::default());
        assert_eq!(step, Ok(Step::TakeOut));
    }

    #[test]
    fn a_drain_under_way_is_told_what_is_new_and_nothing_else() {
        let present = under_way(|one| {
            one.spec.deadline = Some("90m".to_owned());
            one.spec.parallelism = Some(2);
        });
        let wish = |parallelism, deadline: Option<&str>, reason: Option<&str>| Wish {
            parallelism,
            deadline: deadline.map(str::to_owned),
            reason: reason.map(str::to_owned),
        };
        let cases = [
            (wish(None, None, None), None),
            (wish(Some(2), Some("1h30m"), Some(REASON)), None),
            (wish(Some(4), None, None), Some(json!({ "parallelism": 4 }))),
            (
                wish(Some(2), Some("2h"), Some("a disk")),
                Some(json!({ "deadline": "2h", "reason": "a disk" })),
            ),
        ];
        for (wish, expected) in cases {
            assert_eq!(changes(&present.spec, &wish), expected, "{wish:?}");
        }
    }

    #[test]
    fn the_reason_is_the_new_one_or_the_present_one() {
        let wish = Wish {
            reason: Some("a disk".to_owned()),
            ..Wish::default()
        };
        let manual = maintained(Maintenance::Manual);
        assert_eq!(reason(&manual, &wish), "a disk");
        assert_eq!(reason(&manual, &Wish::default()), "a fan");
        assert_eq!(reason(&host(), &Wish::default()), REASON);
        // A new reason is written although the host is out of service.
        let present = under_way(|one| one.spec.reason = "a disk".to_owned());
        assert_eq!(
            decide(&manual, Some(&present), None, &wish),
            Ok(Step::TakeOut)
        );
    }

    #[test]
    fn an_eviction_is_owned_and_labelled_as_the_operators_own() {
        let host = with(|host| {
            host.labels_mut().insert(labels::ZONE.into(), "a".into());
            host.labels_mut().insert("else".into(), "b".into());
        });
        let made = eviction(&host, &Wish::default());
        assert_eq!(made.name_any(), "hv1");
        assert_eq!(made.labels().len(), 1);
        assert_eq!(made.labels()[labels::ZONE], "a");
        let owner = &made.owner_references()[0];
        assert_eq!(
            (owner.kind.as_str(), owner.uid.as_str()),
            ("Hypervisor", "host")
        );
        assert_eq!(owner.api_version, "kvm.cloud.sap/v1");
        assert_eq!(owner.controller, Some(true));
        assert_eq!(owner.block_owner_deletion, Some(true));
    }
}
