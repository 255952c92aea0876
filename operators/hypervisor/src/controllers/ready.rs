//! The summary: the condition `Ready`, and the phase in one word.

use cobalt_api::conditions::{self, HypervisorCondition as Type, OvsNodeCondition, Reason, Status};
use cobalt_api::hypervisor::{Maintenance, Phase};

use crate::host::Host;
use crate::pass::Pass;

/// Says both.
pub fn decide(pass: &mut Pass) {
    if pass.host.hypervisor.is_none() {
        return;
    }
    let (status, reason, text) = ready(pass);
    pass.say(Type::Ready, status, reason, text);
    pass.status.phase = Some(phase(pass));
}

fn message(pass: &Pass, condition: Type) -> String {
    pass.condition(condition)
        .map(|found| found.message.clone())
        .unwrap_or_default()
}

fn ready(pass: &Pass) -> (Status, Reason, String) {
    let host = pass.host;
    let spec = host.spec();
    let no = |reason, text: String| (Status::False, reason, text);
    if matches!(pass.state(Type::Offboarded), Some((Status::True, _))) {
        return no(Reason::Offboarded, message(pass, Type::Offboarded));
    }
    if let Some(why) = host.conflict() {
        return no(Reason::IdentityConflict, why);
    }
    if matches!(pass.state(Type::Terminating), Some((Status::True, _))) {
        return no(Reason::Terminating, message(pass, Type::Terminating));
    }
    let onboarding = pass.state(Type::Onboarding);
    if let Some((Status::True, _)) = onboarding {
        let waits = pass
            .status
            .waiting_for
            .as_ref()
            .and_then(|wait| wait.message.clone());
        let text = waits.unwrap_or_else(|| message(pass, Type::Onboarding));
        return no(Reason::Onboarding, format!("onboarding: {text}"));
    }
    if spec.maintenance() != Maintenance::Unset {
        return match pass.state(Type::Evicting) {
            Some((Status::True, _)) => no(Reason::Evicting, message(pass, Type::Evicting)),
            _ if pass.status.evicted == Some(true) => no(
                Reason::Evicted,
                "the host is empty and out of service".to_owned(),
            ),
            Some((_, Some(reason))) if reason != Reason::Succeeded => no(
                Reason::Maintenance,
                format!(
                    "the Eviction ended as {}: {}",
                    reason.as_str(),
                    message(pass, Type::Evicting)
                ),
            ),
            _ => no(
                Reason::Maintenance,
                format!("maintenance is {}", spec.maintenance().as_str()),
            ),
        };
    }
    match onboarding {
        None if !spec.lifecycle_enabled() => no(
            Reason::Onboarding,
            "not onboarded: the Node has no lifecycle label".to_owned(),
        ),
        None => {
            let waits = pass
                .status
                .waiting_for
                .as_ref()
                .and_then(|wait| wait.message.clone());
            no(
                Reason::Onboarding,
                format!("not onboarded: {}", waits.unwrap_or_default()),
            )
        }
        Some((_, Some(Reason::Succeeded))) => match unhealthy(pass, host) {
            Some(text) => no(Reason::NotReady, text),
            None => (
                Status::True,
                Reason::Ready,
                "the host takes workload".to_owned(),
            ),
        },
        Some(_) => no(
            Reason::Onboarding,
            format!(
                "onboarding was given up: {}",
                message(pass, Type::Onboarding)
            ),
        ),
    }
}

/// What keeps an onboarded host from its work. What nobody reports is no reason.
fn unhealthy(pass: &Pass, host: &Host) -> Option<String> {
    let mut all = Vec::new();
    let conditions = host
        .node
        .as_ref()
        .and_then(|node| node.status.as_ref()?.conditions.as_ref());
    let ready = conditions.and_then(|all| all.iter().find(|one| one.type_ == "Ready"));
    if let Some(ready) = ready.filter(|ready| ready.status != "True") {
        let why = ready.reason.as_deref().unwrap_or("no reason");
        all.push(format!("the Node is not ready ({why})"));
    }
    for condition in [Type::LibVirtConnection, Type::HypervisorDisabled] {
        let bad = match condition {
            Type::HypervisorDisabled => Status::True,
            _ => Status::False,
        };
        let silent = matches!(pass.state(condition), Some((_, Some(Reason::AgentSilent))));
        if silent || matches!(pass.state(condition), Some((status, _)) if status == bad) {
            all.push(format!(
                "{}: {}",
                condition.as_str(),
                message(pass, condition)
            ));
        }
    }
    if matches!(host.identity(), Ok(None)) {
        all.push("Nova does not know the host any more".to_owned());
    }
    let ovs = host.ovs.as_ref().and_then(|ovs| ovs.status.as_ref());
    let ovs = ovs.and_then(|status| conditions::find(&status.conditions, OvsNodeCondition::Ready));
    if let Some(ovs) = ovs.filter(|ovs| ovs.status == Status::False.as_str()) {
        all.push(format!("Open vSwitch: {}", ovs.message));
    }
    (!all.is_empty()).then(|| all.join("; "))
}

/// The maintenance is over, and Nova does not say so yet.
fn host_is_being_enabled(pass: &Pass) -> bool {
    pass.state(Type::HypervisorDisabled) == Some((Status::True, Some(Reason::Succeeded)))
        && pass.state(Type::Onboarding) == Some((Status::False, Some(Reason::Succeeded)))
}

fn phase(pass: &Pass) -> Phase {
    let spec = pass.host.spec();
    if matches!(pass.state(Type::Offboarded), Some((Status::True, _))) {
        return Phase::Decommissioned;
    }
    if pass.host.has_lost_its_node() {
        return Phase::Evicting;
    }
    match pass.state(Type::Onboarding) {
        Some((Status::True, Some(Reason::Testing))) => return Phase::Testing,
        Some((Status::True, Some(Reason::Handover))) => return Phase::Ready,
        Some((Status::True, _)) => return Phase::Onboarding,
        _ => {}
    }
    if spec.maintenance() != Maintenance::Unset {
        return match pass.state(Type::Evicting) {
            Some((Status::True, _)) => Phase::Evicting,
            _ => Phase::Maintenance,
        };
    }
    if host_is_being_enabled(pass) {
        return Phase::Maintenance;
    }
    match pass.state(Type::Onboarding) {
        None => Phase::Initial,
        Some((_, Some(Reason::Succeeded))) => Phase::Active,
        Some(_) => Phase::Aborted,
    }
}
