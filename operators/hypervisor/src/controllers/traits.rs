//! Keeps the custom traits of a host in Placement: adds what `spec.customTraits` wants, removes what
//! the operator added before and is not wanted any more, and touches nothing else.

use std::collections::BTreeSet;

use cobalt_api::conditions::{HypervisorCondition as Type, Reason, Status};
use cobalt_api::hypervisor::HypervisorStatus;

use crate::action::Action;
use crate::host::Host;
use crate::pass::Pass;

const CUSTOM: &str = "CUSTOM_";

/// What the operator may remove: what it says it has set; of an earlier operator, every custom one.
#[must_use]
pub fn owned(status: &HypervisorStatus) -> BTreeSet<String> {
    match &status.owned_traits {
        Some(owned) => owned.iter().cloned().collect(),
        None => {
            let custom = |name: &&String| name.starts_with(CUSTOM);
            status.traits.iter().filter(custom).cloned().collect()
        }
    }
}

/// What differs from what is wanted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Difference {
    add: BTreeSet<String>,
    remove: BTreeSet<String>,
}

/// The provider as Nova names it; an id in the status could be that of another host.
fn provider(host: &Host) -> Result<Option<String>, String> {
    Ok(host.identity()?.and_then(|found| found.hypervisor_id))
}

/// `Ok(None)`: Placement was not asked yet, or Nova does not name the provider.
fn difference(host: &Host, status: &HypervisorStatus) -> Result<Option<Difference>, String> {
    let fleet = host.fleet.as_ref().map_err(Clone::clone)?;
    let Some(provider) = &provider(host)? else {
        return Ok(None);
    };
    let spec = host.spec();
    let wanted: BTreeSet<String> = spec.custom_traits().iter().cloned().collect();
    let mut found = Difference::default();
    for name in &wanted {
        match fleet.has_trait(provider, name) {
            None => return Ok(None),
            Some(true) => {}
            Some(false) => {
                found.add.insert(name.clone());
            }
        }
    }
    for name in owned(status).difference(&wanted) {
        match fleet.has_trait(provider, name) {
            None => return Ok(None),
            Some(false) => {}
            Some(true) => {
                found.remove.insert(name.clone());
            }
        }
    }
    Ok(Some(found))
}

/// Whether Placement has what is wanted. `None`: that is not known.
#[must_use]
pub fn are_right(host: &Host, status: &HypervisorStatus) -> Option<bool> {
    let found = difference(host, status).ok()??;
    Some(found == Difference::default())
}

/// What onboarding still waits for.
#[must_use]
pub fn missing(host: &Host, status: &HypervisorStatus) -> Option<String> {
    match difference(host, status) {
        Err(why) => Some(why),
        Ok(None) => Some("Placement is asked about the traits of the host".to_owned()),
        Ok(Some(found)) if found == Difference::default() => None,
        Ok(Some(found)) => {
            let names: Vec<&str> = found
                .add
                .iter()
                .chain(&found.remove)
                .map(String::as_str)
                .collect();
            let names = names.join(", ");
            let text = format!("traits of the host are being changed: {names}");
            Some(host.or_failure(Action::SET_TRAITS, text))
        }
    }
}

/// Decides.
pub fn decide(pass: &mut Pass) {
    let host = pass.host;
    let spec = host.spec();
    if host.hypervisor.is_none() || !spec.lifecycle_enabled() || host.leaves() || host.is_deleted()
    {
        return;
    }
    let handover = pass.state(Type::Onboarding) == Some((Status::True, Some(Reason::Handover)));
    let onboarded = pass.state(Type::Onboarding) == Some((Status::False, Some(Reason::Succeeded)));
    if !handover && !onboarded {
        return;
    }
    let difference = match difference(host, &pass.status) {
        Ok(Some(difference)) => difference,
        // The next round of the fleet tells.
        Ok(None) => {
            pass.waits_for_nova |= handover;
            return;
        }
        Err(_) => return,
    };
    let Ok(Some(provider)) = provider(host) else {
        return;
    };
    if difference == Difference::default() {
        return settled(pass, handover);
    }
    // Those of them that are there are the operator's, also while others are refused.
    let spec = host.spec();
    let is_set = |name: &&String| !difference.add.contains(*name);
    let set = spec.custom_traits().iter().filter(is_set).cloned();
    let before = owned(&pass.status);
    if host.failures.contains_key(Action::SET_TRAITS) {
        let all: BTreeSet<String> = before.iter().cloned().chain(set).collect();
        if all != before {
            pass.status.owned_traits = Some(all.into_iter().collect());
        }
    }
    let failure = pass.act(Action::SetTraits {
        provider,
        add: difference.add,
        remove: difference.remove,
    });
    if let Some(failure) = failure {
        let text = failure.text.clone();
        pass.say(Type::TraitsUpdated, Status::False, Reason::Failed, text);
    }
}

/// Placement has what is wanted.
fn settled(pass: &mut Pass, handover: bool) {
    let host = pass.host;
    let spec = host.spec();
    let wanted: BTreeSet<String> = spec.custom_traits().iter().cloned().collect();
    if owned(&pass.status) != wanted {
        pass.status.owned_traits = Some(wanted.iter().cloned().collect());
    }
    if let Some(read) = &host.reads.traits {
        pass.status.traits = read.value.iter().cloned().collect();
        if pass.status.owned_traits.is_none() && owned(&pass.status) != wanted {
            pass.status.owned_traits = Some(wanted.iter().cloned().collect());
        }
    }
    let said = pass.condition(Type::TraitsUpdated).is_some();
    if said || handover || !wanted.is_empty() {
        let present = pass.condition(Type::TraitsUpdated);
        let good = present.is_some_and(|one| one.status == Status::True.as_str());
        if !good {
            pass.say(
                Type::TraitsUpdated,
                Status::True,
                Reason::Succeeded,
                "Placement has the traits of the spec",
            );
        }
    }
}
