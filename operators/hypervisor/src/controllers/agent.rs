//! What a dead agent said last is not taken for a fact: the operator says that it is not known any
//! more, since when, and takes that back from nobody: an agent that returns writes its own again.

use cobalt_api::conditions::{
    self, HypervisorCondition as Type, OvsNodeCondition, Reason, Status, Wanted,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::host::{Host, Silence};
use crate::pass::Pass;

/// The node agent's conditions that claim a fact of this moment. Others are about something that it
/// has done, and stay.
const CURRENT: [Type; 6] = [
    Type::LibvirtdService,
    Type::OpenvswitchService,
    Type::LibVirtConnection,
    Type::SystemdConnection,
    Type::ShutdownInhibited,
    Type::InstanceRecovery,
];

/// All conditions of an OVSNode are facts of this moment.
const OVS: [OvsNodeCondition; 5] = [
    OvsNodeCondition::Ready,
    OvsNodeCondition::OvsdbConnected,
    OvsNodeCondition::OvnControllerConnected,
    OvsNodeCondition::AllBridgesHealthy,
    OvsNodeCondition::AllBondsHealthy,
];

fn is_marked(condition: &Condition) -> bool {
    condition.reason == Reason::AgentSilent.as_str()
}

/// Decides.
pub fn decide(pass: &mut Pass) {
    let host = pass.host;
    let present: Vec<Type> = CURRENT
        .into_iter()
        .filter(|condition| pass.condition(*condition).is_some())
        .collect();
    let marked = |pass: &Pass, condition| pass.condition(condition).is_some_and(is_marked);
    let Some(silence) = host.silence.as_ref() else {
        let speaks = pass
            .condition(Type::LibVirtConnection)
            .is_some_and(|one| !is_marked(one));
        for condition in present {
            // An agent that is back says all that it knows at once; what is left nobody says.
            if speaks && marked(pass, condition) {
                pass.unsay(condition);
            }
        }
        return;
    };
    let spoke = present.iter().all(|one| !marked(pass, *one));
    if spoke && host.marked.as_ref() == Some(silence) {
        // It was marked for this silence, and the agent has written since: it lives, and only its
        // Lease is not renewed.
        return;
    }
    for condition in present {
        if !marked(pass, condition) {
            pass.say(
                condition,
                Status::Unknown,
                Reason::AgentSilent,
                text(silence),
            );
        }
    }
    pass.marks = true;
}

fn text(silence: &Silence) -> String {
    let since = since(silence.renewed);
    format!(
        "the node agent is silent: it has not renewed its Lease since {since}; what it reported of \
         the host is from then"
    )
}

fn since(time: Option<Timestamp>) -> String {
    time.map_or_else(|| "it was made".to_owned(), |time| time.to_string())
}

/// Why the agents of a host cannot be alive: its Node is not ready, and its node agent is silent or
/// was never there.
#[must_use]
pub fn dead(host: &Host) -> Option<String> {
    let conditions = host.node.as_ref()?.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|one| one.type_ == "Ready")?;
    if ready.status == "True" {
        return None;
    }
    match &host.silence {
        Some(silence) => Some(format!(
            "the Node is not ready, and its node agent has been silent since {}",
            since(silence.renewed)
        )),
        // Without a kubelet nobody knows; with one that says so itself the host is alive.
        None if !host.has_lease && ready.status == "Unknown" => {
            let since = ready.last_transition_time.as_ref().map(|time| time.0);
            Some(format!(
                "the kubelet of the Node has been silent since {}",
                since.map_or_else(|| "its first report".to_owned(), |time| time.to_string())
            ))
        }
        None => None,
    }
}

/// What is to be written into the OVSNode of a dead host: its conditions are not known any more.
#[must_use]
pub fn stale_ovs(host: &Host, why: &str, now: Timestamp) -> Vec<Condition> {
    let status = host.ovs.as_ref().and_then(|ovs| ovs.status.as_ref());
    let all = status.map_or(&[][..], |status| status.conditions.as_slice());
    OVS.into_iter()
        .filter(|condition| conditions::find(all, *condition).is_some_and(|one| !is_marked(one)))
        .map(|condition| {
            let wanted = Wanted {
                condition,
                status: Status::Unknown,
                reason: Reason::AgentSilent,
                message: format!("{why}; what was reported of the switch is from then"),
                observed_generation: None,
            };
            wanted.build(all, now)
        })
        .collect()
}
