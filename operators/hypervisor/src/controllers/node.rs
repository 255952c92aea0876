//! What the Node says about its host: its address, whether it goes away, whether somebody has
//! edited the Hypervisor by hand.

use cobalt_api::conditions::{HypervisorCondition as Type, Reason, Status};
use cobalt_api::names::node_conditions;
use k8s_openapi::api::core::v1::Node;

use crate::pass::Pass;

/// Says it.
pub fn decide(pass: &mut Pass) {
    let host = pass.host;
    if let Some(node) = &host.node {
        if let Some(address) = internal_ip(node, pass.status.internal_ip.as_deref()) {
            pass.status.internal_ip = Some(address.to_owned());
        }
        match terminating(node) {
            Some(why) => pass.say(Type::Terminating, Status::True, Reason::Terminating, why),
            // A machine that was to go and stays after all.
            None => pass.unsay(Type::Terminating),
        }
    } else if host.has_lost_its_node() {
        let text = "the Node is gone; the host leaves, and comes back if its Node does before that";
        pass.say(Type::Terminating, Status::True, Reason::Terminating, text);
    }
    match host
        .hypervisor
        .as_ref()
        .and_then(|known| known.edited_by.as_deref())
    {
        Some(who) => pass.say(
            Type::Tainted,
            Status::True,
            Reason::Kubectl,
            format!("⚠️ edited with {who}"),
        ),
        None => pass.say(Type::Tainted, Status::False, Reason::NoKubectl, "🟢"),
    }
    // As deployed, and so that taking a fleet over does not take it away from every host.
    let known = host.hypervisor.as_ref();
    let generation = known.and_then(|known| known.object.metadata.generation);
    let mut all = pass.status.conditions.iter_mut();
    if let Some(tainted) = all.find(|one| one.type_ == Type::Tainted.as_str()) {
        tainted.observed_generation = generation;
    }
}

/// The first internal address, unless the present one is still among them: a node of two address
/// families keeps the one it has.
fn internal_ip<'a>(node: &'a Node, present: Option<&str>) -> Option<&'a str> {
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let mut internal = addresses
        .iter()
        .filter(|address| address.type_ == "InternalIP")
        .map(|address| address.address.as_str());
    let first = internal.clone().next();
    internal.find(|address| Some(*address) == present).or(first)
}

/// Why the node goes away for good, if it does.
#[must_use]
pub fn terminating(node: &Node) -> Option<String> {
    if node.metadata.deletion_timestamp.is_some() {
        return Some("the Node is being deleted".to_owned());
    }
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|condition| {
        condition.type_ == node_conditions::TERMINATING && condition.status == "True"
    })?;
    let text = found.message.as_deref().or(found.reason.as_deref());
    Some(format!(
        "the machine of the Node is being removed{}",
        text.map(|text| format!(": {text}")).unwrap_or_default()
    ))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{NodeAddress, NodeStatus};

    use super::*;

    #[test]
    fn w40_a_dual_stack_node_keeps_its_address() {
        let address = |address: &str| NodeAddress {
            address: address.to_owned(),
            type_: "InternalIP".to_owned(),
        };
        let node = |all: &[&str]| Node {
            status: Some(NodeStatus {
                addresses: Some(all.iter().map(|one| address(one)).collect()),
                ..NodeStatus::default()
            }),
            ..Node::default()
        };
        let both = node(&["10.0.0.1", "fd00::1"]);
        let turned = node(&["fd00::1", "10.0.0.1"]);
        assert_eq!(internal_ip(&both, None), Some("10.0.0.1"));
        assert_eq!(internal_ip(&turned, Some("10.0.0.1")), Some("10.0.0.1"));
        assert_eq!(
            internal_ip(&node(&["10.0.0.2"]), Some("10.0.0.1")),
            Some("10.0.0.2")
        );
        assert_eq!(internal_ip(&node(&[]), Some("10.0.0.1")), None);
    }
}
