//! Keeps the host in its Nova aggregates: those of `spec.aggregates`, or, while it is tested, its
//! zone and the test aggregate. It takes the host out of what the operator put it into, and of
//! nothing else.

use std::collections::BTreeSet;

use cobalt_api::conditions::{HypervisorCondition as Type, Reason, Status};
use cobalt_api::hypervisor::{Aggregate, HypervisorStatus};

use crate::action::Action;
use crate::fleet::{Fleet, Identity};
use crate::host::Host;
use crate::pass::Pass;

/// What the operator may take the host out of.
fn owned(status: &HypervisorStatus) -> BTreeSet<String> {
    match &status.owned_aggregates {
        Some(owned) => owned.iter().cloned().collect(),
        None => status
            .aggregates
            .iter()
            .map(|one| one.name.clone())
            .collect(),
    }
}

/// What onboarding still waits for: the host is in all aggregates of its spec, and not in the one
/// of the tests.
#[must_use]
pub fn missing(host: &Host, identity: &Identity) -> Option<String> {
    let fleet = match &host.fleet {
        Ok(fleet) => fleet,
        Err(why) => return Some(why.clone()),
    };
    let spec = host.spec();
    let wanted = spec.aggregates();
    let is_in = |name: &String| {
        fleet
            .aggregates
            .get(name)
            .is_some_and(|one| one.hosts.contains(identity.host.as_str()))
    };
    if let Some(name) = wanted.iter().find(|name| !is_in(name)) {
        return Some(host.or_failure(
            Action::JOIN_AGGREGATE,
            format!("the host is being put into the aggregate \"{name}\""),
        ));
    }
    let test = &host.settings.test_aggregate;
    if !wanted.contains(test) && is_in(test) {
        return Some(host.or_failure(
            Action::LEAVE_AGGREGATE,
            format!("the host is being taken out of the aggregate \"{test}\""),
        ));
    }
    None
}

/// What is wanted now, and what the condition says once it is so.
struct Goal {
    names: BTreeSet<String>,
    status: Status,
    reason: Reason,
    text: &'static str,
}

fn goal(pass: &Pass) -> Option<Goal> {
    let host = pass.host;
    let spec = host.spec();
    let onboarding = pass.state(Type::Onboarding);
    if host.leaves() {
        let evicted = pass.state(Type::Evicting) == Some((Status::False, Some(Reason::Succeeded)));
        return evicted.then(|| Goal {
            names: BTreeSet::new(),
            status: Status::False,
            reason: Reason::Terminating,
            text: "the host leaves: it is in no aggregate",
        });
    }
    let under_test = |reason, text| {
        let mut names: BTreeSet<String> = host.zone().map(ToOwned::to_owned).into_iter().collect();
        names.insert(host.settings.test_aggregate.clone());
        Some(Goal {
            names,
            status: Status::False,
            reason,
            text,
        })
    };
    let skips = spec.skip_tests() || host.settings.skip_tests;
    match onboarding {
        Some((Status::True, Some(Reason::Initial | Reason::Testing))) if !skips => under_test(
            Reason::TestAggregates,
            "the host is in its zone and kept for the tests",
        ),
        Some((Status::True, Some(Reason::Handover)))
            if super::traits::are_right(host, &pass.status) != Some(true) =>
        {
            // What is not known, as after a restart, is no reason to go back.
            let wrong = super::traits::are_right(host, &pass.status) == Some(false);
            if skips || !wrong {
                return None;
            }
            under_test(Reason::WaitingForTraits, "the traits come first")
        }
        Some((Status::True, Some(Reason::Handover)) | (Status::False, Some(Reason::Succeeded))) => {
            Some(Goal {
                names: spec.aggregates().iter().cloned().collect(),
                status: Status::True,
                reason: Reason::Succeeded,
                text: "the host is in the aggregates of the spec",
            })
        }
        _ => None,
    }
}

/// Decides.
pub fn decide(pass: &mut Pass) {
    let host = pass.host;
    let spec = host.spec();
    if host.hypervisor.is_none() || !spec.lifecycle_enabled() || host.is_deleted() {
        return;
    }
    let Some(goal) = goal(pass) else {
        if host.leaves() && pass.condition(Type::AggregatesUpdated).is_some() {
            pass.say(
                Type::AggregatesUpdated,
                Status::False,
                Reason::EvictionInProgress,
                "the aggregates stay until the host is empty",
            );
        }
        return;
    };
    let (Ok(fleet), Ok(Some(identity))) = (&host.fleet, host.identity()) else {
        return;
    };
    let unknown: Vec<&str> = goal
        .names
        .iter()
        .filter(|name| !fleet.aggregates.contains_key(*name))
        .map(String::as_str)
        .collect();
    if !unknown.is_empty() {
        let text = format!(
            "Nova has no aggregate \"{}\": make it",
            unknown.join("\", \"")
        );
        pass.wait("Aggregates", text.clone(), None);
        return pass.say(Type::AggregatesUpdated, Status::False, Reason::Failed, text);
    }
    let changes = changes(fleet, &identity, &goal.names, &leaveable(pass));
    if changes.is_empty() {
        return settled(pass, fleet, &goal);
    }
    let mut failed = None;
    for change in changes {
        if let Some(failure) = pass.act(change) {
            failed = Some(failure.text.clone());
        }
    }
    if let Some(text) = failed {
        pass.say(Type::AggregatesUpdated, Status::False, Reason::Failed, text);
    }
}

fn leaveable(pass: &Pass) -> BTreeSet<String> {
    let mut names = owned(&pass.status);
    names.insert(pass.host.settings.test_aggregate.clone());
    names
}

/// Joins come first, so that the host is never in no zone; but a zone is left before another one is
/// joined, because Nova has a host in one zone only.
fn changes(
    fleet: &Fleet,
    identity: &Identity,
    wanted: &BTreeSet<String>,
    leaveable: &BTreeSet<String>,
) -> Vec<Action> {
    let host = &identity.host;
    let mut zones = Vec::new();
    let mut joins = Vec::new();
    let mut leaves = Vec::new();
    let is_in = |name: &String| {
        let found = fleet.aggregates.get(name)?;
        Some((found, found.hosts.contains(host.as_str())))
    };
    for name in wanted {
        if let Some((found, false)) = is_in(name) {
            joins.push(Action::JoinAggregate {
                id: found.id,
                name: name.clone(),
                host: host.clone(),
            });
        }
    }
    for name in leaveable.difference(wanted) {
        if let Some((found, true)) = is_in(name) {
            let leave = Action::LeaveAggregate {
                id: found.id,
                name: name.clone(),
                host: host.clone(),
            };
            if found.availability_zone.is_some() {
                zones.push(leave);
            } else {
                leaves.push(leave);
            }
        }
    }
    zones.into_iter().chain(joins).chain(leaves).collect()
}

/// Nova has what is wanted.
fn settled(pass: &mut Pass, fleet: &Fleet, goal: &Goal) {
    let shown: Vec<Aggregate> = goal
        .names
        .iter()
        .filter_map(|name| fleet.aggregates.get(name))
        .map(|one| Aggregate {
            name: one.name.clone(),
            uuid: one.uuid.clone(),
            metadata: Some(one.metadata.clone()).filter(|all| !all.is_empty()),
        })
        .collect();
    // The order is that of whoever wrote it.
    let same = shown.len() == pass.status.aggregates.len()
        && shown.iter().all(|one| {
            pass.status.aggregates.iter().any(|other| {
                let metadata = other.metadata.as_ref().filter(|all| !all.is_empty());
                other.name == one.name
                    && other.uuid == one.uuid
                    && metadata == one.metadata.as_ref()
            })
        });
    if !same {
        pass.status.aggregates = shown;
    }
    if owned(&pass.status) != goal.names {
        pass.status.owned_aggregates = Some(goal.names.iter().cloned().collect());
    }
    let present = pass.state(Type::AggregatesUpdated);
    if present != Some((goal.status, Some(goal.reason))) {
        pass.say(Type::AggregatesUpdated, goal.status, goal.reason, goal.text);
    }
}
