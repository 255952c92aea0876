//! `cobalt undrain`: calls a drain off, or puts a drained host back into service.
//!
//! The wish is the cleared maintenance; the operator takes its Eviction back and enables the host. An
//! Eviction that the operator does not take back is cancelled.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use cobalt_api::conditions::{self, HypervisorCondition as Type, Reason};
use cobalt_api::eviction::{Eviction, EvictionStatus};
use cobalt_api::hypervisor::{Hypervisor, Maintenance};
use futures::StreamExt;
use futures::stream::select_all;
use kube::ResourceExt;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;

use super::begin::has_ended;
use super::cluster::{Cluster, Sight, Written};
use super::follow::print_changes;
use super::view::Drain;
use crate::output::Format;
use crate::text::clean;

/// More steps than it needs, however busy others are.
const STEPS: usize = 20;

/// Why a host is not put back, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "automation has taken it out of service (maintenance is auto), not a drain: what set that \
         takes it back"
    )]
    Automation,
    #[error(
        "it is dead or dying, and its instances are being recovered (maintenance is ha), which is \
         no drain: it comes back when that is over"
    )]
    Recovery,
    #[error(
        "its node goes away for good (maintenance is termination): it does not come back; keep \
         the node, or let it go"
    )]
    Termination,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Clear the maintenance.
    Clear,
    /// Cancel this Eviction.
    Cancel { name: String },
    /// Nothing is left to be asked for.
    Nothing,
}

/// The next step, from a host and its Evictions.
///
/// # Errors
///
/// Why it is not undone.
pub fn decide(host: &Hypervisor, evictions: &[Eviction]) -> Result<Step, Refusal> {
    match host.spec.maintenance() {
        Maintenance::Manual => return Ok(Step::Clear),
        Maintenance::Auto => return Err(Refusal::Automation),
        Maintenance::Ha => return Err(Refusal::Recovery),
        Maintenance::Termination => return Err(Refusal::Termination),
        Maintenance::Unset => {}
    }
    let to_cancel = evictions
        .iter()
        .find(|one| is_under_way(one) && !one.spec.cancel() && !is_taken_back(host, one));
    Ok(to_cancel.map_or(Step::Nothing, |one| Step::Cancel {
        name: one.name_any(),
    }))
}

/// Whether an Eviction moves instances, or is about to.
fn is_under_way(eviction: &Eviction) -> bool {
    !has_ended(eviction)
        && !eviction.spec.dry_run()
        && eviction.metadata.deletion_timestamp.is_none()
}

/// Whether the operator deletes an Eviction because the maintenance is over.
fn is_taken_back(host: &Hypervisor, eviction: &Eviction) -> bool {
    let is_controlled = eviction
        .owner_references()
        .iter()
        .any(|owner| owner.kind == "Hypervisor" && owner.controller == Some(true));
    let is_same = eviction.name_any() == host.name_any();
    is_same && is_controlled && is_said_to_evict(host)
}

fn is_said_to_evict(host: &Hypervisor) -> bool {
    conditions::find(conditions_of(host), Type::Evicting).is_some()
}

fn conditions_of(
    host: &Hypervisor,
) -> &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition] {
    host.status
        .as_ref()
        .map_or(&[][..], |status| status.conditions.as_slice())
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// The maintenance was cleared.
    pub cleared: bool,
    /// These Evictions were cancelled.
    pub cancelled: Vec<String>,
}

/// Asks for all that puts a host back into service.
///
/// # Errors
///
/// Why it could not be asked for.
pub async fn begin(cluster: &Cluster, node: &str) -> Result<Undone> {
    let mut undone = Undone::default();
    for _ in 0..STEPS {
        let host = cluster.hypervisor(node).await?;
        let evictions = cluster.evictions_of(node).await?;
        let step = match decide(&host, &evictions) {
            Ok(step) => step,
            Err(refusal) => bail!("{node} is not put back into service: {refusal}"),
        };
        match step {
            Step::Clear => {
                let patch = json!({
                    "metadata": { "resourceVersion": host.resource_version() },
                    "spec": { "maintenance": null, "maintenanceReason": null },
                });
                let written = cluster.change_hypervisor(node, &patch).await?;
                undone.cleared |= written == Written::Done;
            }
            Step::Cancel { name } => {
                let patch = json!({ "spec": { "cancel": true } });
                let written = cluster.change_eviction(&name, &patch).await?;
                if written == Written::Done {
                    undone.cancelled.push(name);
                }
            }
            Step::Nothing => return Ok(undone),
        }
    }
    bail!(
        "{node} is changed by others all the time; see who they are (`kubectl get hv {node} -o \
         yaml --show-managed-fields`), then try again"
    )
}

/// Puts hosts back into service, and follows them if that is wanted.
///
/// # Errors
///
/// Why one of them could not be asked for.
pub async fn run(
    cluster: &Cluster,
    nodes: &[String],
    wait: bool,
    format: Format,
) -> Result<ExitCode> {
    let mut hosts = Vec::new();
    for node in nodes {
        let undone = begin(cluster, node).await?;
        format.progress(&format!("{node}: {}\n", tell(&undone)));
        hosts.push(json!({
            "name": node, "cleared": undone.cleared, "cancelled": undone.cancelled,
        }));
    }
    let mut good = true;
    if wait {
        for (node, host) in nodes.iter().zip(&mut hosts) {
            let is_back = follow(cluster, node, format).await?;
            if let Some(fields) = host.as_object_mut() {
                fields.insert("inService".to_owned(), json!(is_back));
            }
            good &= is_back;
        }
    }
    format.document(&json!({ "hosts": hosts }))?;
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What was asked for, for people.
fn tell(undone: &Undone) -> String {
    match (undone.cleared, undone.cancelled.as_slice()) {
        (true, _) => "goes back into service; what is under way is called off".to_owned(),
        (false, []) => "not in maintenance, and nothing is under way: nothing to undo".to_owned(),
        (false, names) => format!("cancelled: the Eviction {}", names.join(", ")),
    }
}

/// How far the way back is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    /// It is waiting for this.
    Waiting(String),
    /// The scheduler may use it, and nothing is under way.
    Back,
    /// It will not come back by itself.
    Stuck(String),
}

/// How far a host is, given what is under way.
fn way(host: &Hypervisor, under_way: &[String]) -> Way {
    let mode = host.spec.maintenance();
    if mode != Maintenance::Unset {
        return Way::Stuck(format!("maintenance is {} again", mode.as_str()));
    }
    if !host.spec.lifecycle_enabled() {
        return Way::Stuck(
            "the operator does not manage it: nobody enables it in Nova but you".to_owned(),
        );
    }
    if !under_way.is_empty() {
        let names = under_way.join(", ");
        return Way::Waiting(format!("the Eviction {names} is still being cancelled"));
    }
    let all = conditions_of(host);
    let said = |condition| {
        let wait = host.status.as_ref()?.waiting_for.as_ref();
        let wait = wait.map(|wait| wait.message.as_deref().unwrap_or(&wait.reason));
        let found = conditions::find(all, condition).map(|found| found.message.as_str());
        wait.or(found).filter(|text| !text.is_empty()).map(clean)
    };
    if is_said_to_evict(host) {
        return Way::Waiting(
            said(Type::Evicting)
                .unwrap_or_else(|| "the operator has not taken it back yet".to_owned()),
        );
    }
    if conditions::is_true(all, Type::HypervisorDisabled) {
        let text = said(Type::HypervisorDisabled)
            .unwrap_or_else(|| "Nova has not enabled it yet".to_owned());
        if conditions::reason(all, Type::HypervisorDisabled) == Some(Reason::Failed) {
            let message = conditions::find(all, Type::HypervisorDisabled);
            let message = message.map_or(text, |found| clean(&found.message));
            return Way::Stuck(message);
        }
        return Way::Waiting(text);
    }
    Way::Back
}

/// What a watch has shown.
enum Seen {
    Host(Option<Box<Hypervisor>>),
    Eviction(String, Option<Box<Eviction>>),
}

/// Prints what changes until the host is back; returns whether it is.
async fn follow(cluster: &Cluster, node: &str, format: Format) -> Result<bool> {
    // What is now is no news; what becomes of it is, even before a watch begins.
    let evictions = cluster.evictions_of(node).await?.into_iter();
    let mut drains: BTreeMap<String, Drain> = evictions
        .filter(|one| !has_ended(one) && !one.spec.dry_run())
        .map(|one| (one.name_any(), view(node, one.status)))
        .collect();
    let names: Vec<String> = drains.keys().cloned().collect();
    let host = watcher::watch_object(cluster.hypervisors.clone(), node)
        .default_backoff()
        .map(|seen| seen.map(|seen| Seen::Host(seen.map(Box::new))))
        .boxed();
    let others = names.iter().map(|name| {
        let changes = watcher::watch_object(cluster.evictions.clone(), name).default_backoff();
        let name = name.clone();
        changes
            .map(move |seen| seen.map(|seen| Seen::Eviction(name.clone(), seen.map(Box::new))))
            .boxed()
    });
    let mut changes = select_all(std::iter::once(host).chain(others));
    let mut under_way = names;
    let mut seen_host = None;
    let mut said = String::new();
    let mut sight = Sight::default();
    let mut is_silent = false;
    while let Some(change) = changes.next().await {
        match change {
            Err(error) if sight.is_lost(&error, Instant::now()) => {
                return Err(error).context("failed to watch the host; it goes on without us");
            }
            Err(_) => {
                if !is_silent {
                    eprintln!("{node}: the API server does not answer; trying again");
                }
                is_silent = true;
                continue;
            }
            Ok(Seen::Host(None)) => bail!("the Hypervisor \"{node}\" was deleted"),
            Ok(Seen::Host(Some(host))) => seen_host = Some(host),
            Ok(Seen::Eviction(name, seen)) => {
                if seen.as_deref().is_none_or(has_ended) {
                    under_way.retain(|other| *other != name);
                }
                if let Some(seen) = seen {
                    let after = view(node, seen.status);
                    if let Some(before) = drains.get(&name) {
                        print_changes(before, &after, format);
                    }
                    drains.insert(name, after);
                }
            }
        }
        is_silent = false;
        sight.sees();
        let Some(host) = &seen_host else { continue };
        match way(host, &under_way) {
            Way::Back => {
                format.progress(&format!("{node}: back in service\n"));
                return Ok(true);
            }
            Way::Stuck(why) => {
                format.progress(&format!("{node}: not back in service: {why}\n"));
                return Ok(false);
            }
            Way::Waiting(what) if what != said => {
                format.progress(&format!("{node}: waiting: {what}\n"));
                said = what;
            }
            Way::Waiting(_) => {}
        }
    }
    bail!("the watch has ended; `cobalt undrain {node} --wait` follows it again")
}

/// What is known of an Eviction.
fn view(node: &str, status: Option<EvictionStatus>) -> Drain {
    Drain {
        node: node.to_owned(),
        seen: true,
        outcome: status.as_ref().and_then(|status| status.outcome),
        status,
        ..Drain::default()
    }
}

#[cfg(test)]
mod tests {
    use cobalt_api::conditions::Status;
    use cobalt_api::eviction::{EvictionSpec, Outcome};
    use cobalt_api::hypervisor::{HypervisorSpec, HypervisorStatus};
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};

    use super::*;

    fn host(maintenance: Maintenance, conditions: &[(Type, Status, Reason)]) -> Hypervisor {
        let spec = HypervisorSpec {
            maintenance: Some(maintenance),
            ..HypervisorSpec::default()
        };
        let mut host = Hypervisor::new("hv1", spec);
        let condition = |(type_, status, reason): &(Type, Status, Reason)| Condition {
            type_: type_.as_str().to_owned(),
            status: status.as_str().to_owned(),
            reason: reason.as_str().to_owned(),
            message: format!("{type_} is {status}"),
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
            observed_generation: None,
        };
        host.status = Some(HypervisorStatus {
            conditions: conditions.iter().map(condition).collect(),
            ..HypervisorStatus::default()
        });
        host
    }

    fn eviction(name: &str, change: impl Fn(&mut Eviction)) -> Eviction {
        let mut one = Eviction::new(name, EvictionSpec::default());
        change(&mut one);
        one
    }

    fn owned(one: &mut Eviction) {
        one.metadata.owner_references = Some(vec![OwnerReference {
            kind: "Hypervisor".to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        }]);
    }

    const EVICTING: (Type, Status, Reason) = (Type::Evicting, Status::True, Reason::Running);

    #[test]
    fn every_state_has_its_next_step() {
        use Maintenance as M;
        let ended = |one: &mut Eviction| {
            one.status = Some(EvictionStatus {
                outcome: Some(Outcome::Failed),
                ..EvictionStatus::default()
            });
        };
        let cancel = |name: &str| Ok(Step::Cancel { name: name.into() });
        type Case = (M, bool, Vec<Eviction>, Result<Step, Refusal>);
        let cases: [Case; 12] = [
            (
                M::Manual,
                true,
                vec![eviction("hv1", owned)],
                Ok(Step::Clear),
            ),
            (M::Manual, false, vec![], Ok(Step::Clear)),
            (M::Auto, true, vec![], Err(Refusal::Automation)),
            (M::Ha, false, vec![], Err(Refusal::Recovery)),
            (M::Termination, true, vec![], Err(Refusal::Termination)),
            (M::Unset, false, vec![], Ok(Step::Nothing)),
            // The operator takes it back itself, if it has ever noticed it.
            (
                M::Unset,
                true,
                vec![eviction("hv1", owned)],
                Ok(Step::Nothing),
            ),
            (M::Unset, false, vec![eviction("hv1", owned)], cancel("hv1")),
            (
                M::Unset,
                true,
                vec![eviction("mine", owned)],
                cancel("mine"),
            ),
            (M::Unset, true, vec![eviction("hv1", |_| ())], cancel("hv1")),
            (
                M::Unset,
                false,
                vec![
                    eviction("over", ended),
                    eviction("plan", |one| one.spec.dry_run = Some(true)),
                    eviction("off", |one| one.spec.cancel = Some(true)),
                    eviction("bare", |_| ()),
                ],
                cancel("bare"),
            ),
            (
                M::Unset,
                false,
                vec![eviction("going", |one| {
                    one.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
                })],
                Ok(Step::Nothing),
            ),
        ];
        for (maintenance, evicting, evictions, expected) in cases {
            let conditions: &[_] = if evicting { &[EVICTING] } else { &[] };
            let host = host(maintenance, conditions);
            assert_eq!(
                decide(&host, &evictions),
                expected,
                "{maintenance} {evictions:?}"
            );
        }
    }

    #[test]
    fn the_way_back_ends_in_service_or_with_a_reason() {
        use Maintenance as M;
        let disabled = |reason| (Type::HypervisorDisabled, Status::True, reason);
        let enabled = (Type::HypervisorDisabled, Status::False, Reason::Succeeded);
        let waiting = |text: &str| Way::Waiting(text.to_owned());
        let none: &[String] = &[];
        let cases: [(Hypervisor, &[String], Way); 7] = [
            (host(M::Unset, &[enabled]), none, Way::Back),
            (host(M::Unset, &[]), none, Way::Back),
            (
                host(M::Unset, &[enabled]),
                &["hv1".to_owned()],
                waiting("the Eviction hv1 is still being cancelled"),
            ),
            (
                host(M::Unset, &[EVICTING, disabled(Reason::Succeeded)]),
                none,
                waiting("Evicting is True"),
            ),
            (
                host(M::Unset, &[disabled(Reason::Succeeded)]),
                none,
                waiting("HypervisorDisabled is True"),
            ),
            (
                host(M::Unset, &[disabled(Reason::Failed)]),
                none,
                Way::Stuck("HypervisorDisabled is True".to_owned()),
            ),
            (
                host(M::Ha, &[]),
                none,
                Way::Stuck("maintenance is ha again".to_owned()),
            ),
        ];
        for (host, under_way, expected) in cases {
            assert_eq!(way(&host, under_way), expected, "{host:?}");
        }
        let mut unmanaged = host(M::Unset, &[enabled]);
        unmanaged.spec.lifecycle_enabled = Some(false);
        assert!(matches!(way(&unmanaged, &[]), Way::Stuck(_)));
    }
}
