//! What looks wrong, with its cause as the name and what to do about it.
//!
//! One cause, one finding: what only follows from another fault is not told again. Each finding
//! has the time it may last before it is an issue, because instances come and go all day and every
//! one of them looks wrong for a moment.

use std::collections::BTreeSet;
use std::time::Duration;

use cobalt_api::ovsnode::Severity;

use super::Snapshot;
use super::status::{Members, bond_members};
use crate::observe::Link;
use crate::observe::daemon::Daemon;
use crate::observe::southbound::{Place, Southbound};
use crate::observe::switch::{Interface, Switch};
use crate::settings::Settings;

/// Declares the kinds with how bad they are and what to do.
macro_rules! kinds {
    ($($(#[$about:meta])* $kind:ident, $severity:ident, $remedy:literal;)*) => {
        /// What kind of issue it is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind {
            $($(#[$about])* $kind,)*
        }

        impl Kind {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// As one CamelCase word.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($kind),)*
                }
            }

            /// How bad it is.
            #[must_use]
            pub fn severity(self) -> Severity {
                match self {
                    $(Self::$kind => Severity::$severity,)*
                }
            }

            /// What to do about it.
            #[must_use]
            pub fn remedy(self) -> &'static str {
                match self {
                    $(Self::$kind => $remedy,)*
                }
            }
        }
    };
}

kinds! {
    /// The agent has no connection to OVSDB.
    OvsdbUnreachable, Critical,
        "Look at ovsdb-server on the node (systemctl status ovsdb-server) and start it. Until then \
         ovs-vswitchd forwards nothing new.";
    /// ovs-vswitchd does not run.
    VswitchdDown, Critical,
        "Start ovs-vswitchd (systemctl start ovs-vswitchd) and look at its log. Nothing is forwarded \
         in user space meanwhile; what the database says of interfaces is old.";
    /// ovs-vswitchd does not answer.
    VswitchdSilent, Critical,
        "ovs-vswitchd is stopped or hangs: look at its state and stack on the node, then restart it \
         (systemctl restart ovs-vswitchd).";
    /// ovs-vswitchd has not carried out its configuration.
    ConfigurationNotApplied, Critical,
        "ovs-vswitchd does not carry out what the database says: look at its log, then restart it.";
    /// A bridge does not answer OpenFlow.
    BridgeSilent, Critical,
        "Look at the bridge's log lines in ovs-vswitchd.log, and whether it takes OpenFlow 1.3 or \
         newer (ovs-vsctl get Bridge NAME protocols).";
    /// The bridge that OVN fills is not there.
    IntegrationBridgeMissing, Critical,
        "ovn-controller makes it: look whether that runs, and at external_ids:ovn-bridge.";
    /// ovn-controller does not run.
    OvnControllerDown, Critical,
        "Start ovn-controller (systemctl start ovn-controller). Flows stay as they are; instances \
         that come get no network.";
    /// ovn-controller does not answer.
    OvnControllerSilent, Critical,
        "ovn-controller is stopped or hangs: look at its state and stack on the node, then restart it.";
    /// ovn-controller is not connected to the southbound database.
    SouthboundDisconnected, Critical,
        "Look at the network between the node and the southbound database, its certificates, and \
         external_ids:ovn-remote. Flows stay as they are; changes do not arrive.";
    /// The agent itself has no connection to the southbound database.
    SouthboundUnreachable, Warning,
        "ovn-controller is connected, this agent is not: look at the agent's certificates and \
         network policy. Orphan ports and stale flows are not looked for.";
    /// The southbound database does not know the node.
    ChassisMissing, Critical,
        "ovn-controller registers the node: look at its log for a chassis of the same name or \
         address, and at external_ids:system-id.";
    /// The node is behind the southbound database.
    SouthboundLag, Warning,
        "ovn-controller does not get its flows into ovs-vswitchd: look at both logs, and at \
         ovn-appctl inc-engine/show-stats.";
    /// An interface could not be added.
    InterfaceError, Warning,
        "Look whether the device is on the node (ip link); if the instance is gone, remove the port \
         (ovs-vsctl del-port).";
    /// The device under a port is gone.
    DeviceGone, Warning,
        "If the instance is gone, remove the port (ovs-vsctl del-port); if not, its device has to \
         be made again: restart the instance.";
    /// A port is for a logical port that OVN does not know.
    OrphanPort, Warning,
        "Nobody will ever make flows for it: remove the port (ovs-vsctl del-port), or look in \
         Neutron why its logical port is gone.";
    /// OVN has not made flows for a port.
    PortNotInstalled, Warning,
        "Look at the binding in the southbound database (ovn-sbctl find Port_Binding) and at \
         ovn-controller.log.";
    /// A device takes smaller packets than it should.
    MtuMismatch, Warning,
        "Packets that are larger than the MTU of the device are lost without a word. Find out who \
         changed the device and set it back (ip link set DEVICE mtu N), or reboot the instance hard, \
         which makes its device anew.";
    /// A port is bound elsewhere, too: an instance that moves, or one that was left behind.
    PortBoundElsewhere, Info,
        "Expected while the instance migrates. If none does, remove the port here.";
    /// A flow belongs to nothing in OVN.
    StaleFlow, Warning,
        "Restart ovn-controller, which makes all flows anew; if the flow comes back, find who else \
         writes to the bridge.";
    /// A flow sends packets to a port that is not there.
    FlowToMissingPort, Warning,
        "Restart ovn-controller if the flow is its own; packets that meet the flow are lost.";
    /// No member of a bond carries traffic.
    BondDown, Critical,
        "Look at the links and at LACP on the switch's side: the node has no network over this bond.";
    /// A member of a bond carries no traffic.
    BondMemberDown, Warning,
        "Look at the cable, the optics and the switch's port; the other members carry the traffic.";
    /// The link of a network card is down.
    LinkDown, Warning,
        "Look at the cable, the optics and the switch's port.";
    /// A bridge has no connection to its OpenFlow controller.
    ControllerDisconnected, Warning,
        "Look at the controller and at the network to it (ovs-vsctl list Controller).";
}

/// Something that looks wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind it is.
    pub kind: Kind,
    /// What it is about: a bridge, a port, a daemon ...
    pub object: String,
    /// The story. No times: each change is a write.
    pub message: String,
    /// How long it may last.
    pub grace: Duration,
    /// What must stay the same while it lasts: something that moves on is slow, and not stuck.
    pub mark: i64,
}

fn finding(kind: Kind, object: &str, message: String) -> Finding {
    Finding {
        kind,
        object: object.to_owned(),
        message,
        grace: Duration::ZERO,
        mark: 0,
    }
}

impl Finding {
    fn after(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    fn while_at(mut self, mark: i64) -> Self {
        self.mark = mark;
        self
    }
}

/// Everything that looks wrong.
#[must_use]
pub fn findings(snapshot: &Snapshot, settings: &Settings) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Link::Down { why, .. } = &snapshot.database {
        let message = format!("No connection to OVSDB: {why}");
        found.push(finding(Kind::OvsdbUnreachable, "ovsdb-server", message));
    }
    vswitchd(snapshot, settings, &mut found);
    if let Some(switch) = &snapshot.switch {
        if switch.southbound.is_some() {
            ovn(snapshot, switch, settings, &mut found);
        }
        interfaces(snapshot, switch, settings, &mut found);
        bonds(switch, &mut found);
        missing_ports(snapshot, switch, settings, &mut found);
        for (name, bridge) in &switch.bridges {
            for (target, _) in bridge
                .controllers
                .iter()
                .filter(|(_, connected)| !**connected)
            {
                let message = format!("Bridge {name} has no connection to its controller {target}");
                let object = format!("{name}/{target}");
                let lost = finding(Kind::ControllerDisconnected, &object, message);
                found.push(lost.after(settings.port_grace));
            }
        }
    }
    found
}

fn vswitchd(snapshot: &Snapshot, settings: &Settings, found: &mut Vec<Finding>) {
    let name = "ovs-vswitchd";
    match &snapshot.vswitchd {
        Daemon::Absent { why } => {
            found.push(finding(
                Kind::VswitchdDown,
                name,
                format!("{name} does not run: {why}"),
            ));
            return;
        }
        Daemon::Silent => {
            let message = format!("{name} is there and does not answer");
            found.push(finding(Kind::VswitchdSilent, name, message));
            return;
        }
        Daemon::Unknown | Daemon::Answers { .. } => {}
    }
    let Some(switch) = snapshot
        .switch
        .as_ref()
        .filter(|_| snapshot.database.is_up())
    else {
        return;
    };
    if switch.cur_cfg < switch.next_cfg {
        let message = format!("{name} has not carried out the configuration that is wanted");
        let behind = finding(Kind::ConfigurationNotApplied, name, message);
        found.push(
            behind
                .after(settings.configuration_lag)
                .while_at(switch.cur_cfg),
        );
    }
    for bridge in switch.bridges.keys() {
        let problem = snapshot
            .flows
            .get(bridge)
            .and_then(|flows| flows.problem.as_ref());
        if let Some(problem) = problem {
            let message = format!("Bridge {bridge} does not answer OpenFlow: {}", problem.why);
            let silent = finding(Kind::BridgeSilent, bridge, message);
            found.push(silent.after(settings.answer_timeout));
        }
    }
}

fn ovn(snapshot: &Snapshot, switch: &Switch, settings: &Settings, found: &mut Vec<Finding>) {
    let name = "ovn-controller";
    match &snapshot.ovn_controller {
        Daemon::Absent { why } => {
            let message = format!("{name} does not run: {why}");
            found.push(finding(Kind::OvnControllerDown, name, message));
            return;
        }
        Daemon::Silent => {
            let message = format!("{name} is there and does not answer");
            found.push(finding(Kind::OvnControllerSilent, name, message));
            return;
        }
        Daemon::Unknown => return,
        Daemon::Answers { .. } => {}
    }
    let bridge = &switch.integration_bridge;
    if !switch.bridges.contains_key(bridge) {
        let message = format!("There is no bridge {bridge}, which OVN needs");
        let missing = finding(Kind::IntegrationBridgeMissing, bridge, message);
        found.push(missing.after(settings.configuration_lag));
    }
    let remote = switch.southbound.as_deref().unwrap_or_default();
    if snapshot.ovn_controller.connected() == Some(false) {
        let message = format!("{name} is not connected to the southbound database {remote}");
        found.push(finding(Kind::SouthboundDisconnected, name, message));
        return;
    }
    let Some(southbound) = &snapshot.southbound else {
        return;
    };
    match &southbound.link {
        Link::Up => {}
        Link::Down { why, .. } => {
            let message = format!("The agent has no connection to the southbound database: {why}");
            let cut = finding(Kind::SouthboundUnreachable, remote, message);
            found.push(cut.after(settings.southbound_lag));
            return;
        }
        Link::Unknown => return,
    }
    chassis(switch, southbound, settings, found);
    // What ovs-vswitchd does not do now says nothing about who wanted it.
    if snapshot.vswitchd.answers() {
        for (cookie, flows) in &southbound.strangers {
            let (count, table) = (flows.count, flows.table);
            let message = format!(
                "{count} flow(s) of bridge {bridge} have the cookie {cookie:#x}, which belongs to \
                 nothing in OVN; the first is in table {table}"
            );
            let stale = finding(Kind::StaleFlow, &format!("{bridge}/{cookie:#x}"), message);
            found.push(stale.after(settings.flow_grace));
        }
    }
}

fn chassis(
    switch: &Switch,
    southbound: &Southbound,
    settings: &Settings,
    found: &mut Vec<Finding>,
) {
    let name = switch.chassis.as_deref().unwrap_or_default();
    if !southbound.chassis {
        let message = format!("The southbound database knows no chassis {name}");
        let missing = finding(Kind::ChassisMissing, name, message);
        found.push(missing.after(settings.southbound_lag));
    } else if let (Some(wanted), Some(done)) = (southbound.nb_cfg, southbound.chassis_nb_cfg)
        && done < wanted
    {
        let message =
            format!("Chassis {name} has not carried out what the southbound database wants");
        let behind = finding(Kind::SouthboundLag, name, message);
        found.push(behind.after(settings.southbound_lag).while_at(done));
    }
}

fn interfaces(snapshot: &Snapshot, switch: &Switch, settings: &Settings, found: &mut Vec<Finding>) {
    let ovn = snapshot
        .southbound
        .as_deref()
        .filter(|southbound| southbound.link.is_up());
    // Without ovn-controller nothing is installed, and that is told already.
    let installs = snapshot.ovn_controller.connected() == Some(true);
    for (bridge, port, name, interface) in switch.interfaces() {
        let what = match &interface.iface_id {
            Some(id) => format!("Port {name} of bridge {bridge} (logical port {id})"),
            None => format!("Interface {name} of bridge {bridge}"),
        };
        let bonded = switch
            .bridges
            .get(bridge)
            .and_then(|bridge| bridge.ports.get(port))
            .is_some_and(|port| port.bond.is_some());
        if interface.error.is_some() || interface.ofport == Some(-1) {
            let why = interface.error.as_deref().unwrap_or("it got no number");
            let message = format!("{what} could not be added: {why}");
            found.push(finding(Kind::InterfaceError, name, message).after(settings.port_grace));
        } else if device_is_gone(interface) {
            let message = format!("{what} has lost its device");
            found.push(finding(Kind::DeviceGone, name, message).after(settings.port_grace));
        } else if interface.is_physical()
            && !bonded
            && interface.link_up == Some(false)
            && interface.admin_up == Some(true)
        {
            let message = format!("The link of {name} (bridge {bridge}) is down");
            found.push(finding(Kind::LinkDown, name, message));
        } else if let Some(id) = &interface.iface_id
            && installs
            && bridge == switch.integration_bridge
            && !interface.ovn_installed
        {
            let (kind, why) = match ovn.map(|ovn| ovn.bindings.get(id)) {
                Some(None) => (
                    Kind::OrphanPort,
                    "OVN knows no such logical port".to_owned(),
                ),
                Some(Some(Place::Elsewhere(chassis))) => (
                    Kind::PortBoundElsewhere,
                    format!("it is bound to chassis {chassis}"),
                ),
                Some(Some(Place::Here | Place::Nowhere)) | None => (
                    Kind::PortNotInstalled,
                    "OVN has made no flows for it".to_owned(),
                ),
            };
            found.push(finding(kind, name, format!("{what}: {why}")).after(settings.port_grace));
        } else if let Some(why) = wrong_mtu(interface, ovn) {
            let message = format!("{what} {why}");
            found.push(finding(Kind::MtuMismatch, name, message).after(settings.port_grace));
        }
    }
}

/// Why the MTU of a device is wrong. An instance's must not be smaller than what DHCP tells the
/// instance; a larger one loses nothing. Another device has what ovs-vswitchd was asked for. Where
/// nobody says an MTU, any is right. What the database says of an internal device may be old: it may
/// be in another network namespace.
fn wrong_mtu(interface: &Interface, ovn: Option<&Southbound>) -> Option<String> {
    let mtu = interface.mtu.filter(|mtu| *mtu > 0)?;
    let id = interface.iface_id.as_ref();
    let id = id.filter(|_| interface.kind != "internal");
    let told = ovn.zip(id).and_then(|(ovn, id)| ovn.mtus.get(id));
    match (told, interface.mtu_request) {
        (Some(told), _) if mtu < *told => Some(format!(
            "has the MTU {mtu}, and DHCP tells its instance {told}"
        )),
        (_, Some(request)) if request != mtu => Some(format!(
            "has the MTU {mtu}, and ovs-vswitchd was asked for {request} (mtu_request)"
        )),
        _ => None,
    }
}

/// A device of the system that was deleted under its port. Those of other kinds may be in another
/// network namespace, and look the same.
fn device_is_gone(interface: &Interface) -> bool {
    matches!(interface.kind.as_str(), "" | "system")
        && interface.ifindex == Some(0)
        && interface.link_up == Some(false)
}

fn bonds(switch: &Switch, found: &mut Vec<Finding>) {
    for (bridge, facts) in &switch.bridges {
        for (name, port) in &facts.ports {
            let Some(Members { members, .. }) = bond_members(port) else {
                continue;
            };
            if members.iter().all(|member| !member.active) {
                let message = format!("No member of bond {name} (bridge {bridge}) carries traffic");
                found.push(finding(Kind::BondDown, name, message));
                continue;
            }
            for member in members.iter().filter(|member| !member.active) {
                let why = match member.link_up {
                    Some(true) => "LACP has not agreed with the other side",
                    Some(false) => "its link is down",
                    None => "it has no device",
                };
                let member = member.name;
                let message = format!(
                    "Member {member} of bond {name} (bridge {bridge}) carries no traffic: {why}"
                );
                let object = format!("{name}/{member}");
                found.push(finding(Kind::BondMemberDown, &object, message));
            }
        }
    }
}

fn missing_ports(
    snapshot: &Snapshot,
    switch: &Switch,
    settings: &Settings,
    found: &mut Vec<Finding>,
) {
    if !snapshot.vswitchd.answers() {
        return;
    }
    for (name, bridge) in &switch.bridges {
        let Some(flows) = snapshot
            .flows
            .get(name)
            .filter(|flows| flows.problem.is_none())
        else {
            continue;
        };
        let interfaces = bridge
            .ports
            .values()
            .flat_map(|port| port.interfaces.values());
        let ports: BTreeSet<u32> = interfaces
            .filter_map(|interface| u32::try_from(interface.ofport?).ok())
            .collect();
        for (port, flows) in flows
            .outputs
            .iter()
            .filter(|(port, _)| !ports.contains(port))
        {
            let (count, table) = (flows.count, flows.table);
            let message = format!(
                "{count} flow(s) of bridge {name} send packets to port {port}, which is not there; \
                 the first is in table {table}"
            );
            let lost = finding(Kind::FlowToMissingPort, &format!("{name}/{port}"), message);
            found.push(lost.after(settings.flow_grace));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{
        healthy, port, tap, with_flows, with_interface, with_southbound, with_switch,
    };
    use super::*;
    use crate::observe::flows::{Problem, Sample};
    use crate::settings::tests::seconds;

    fn kinds(snapshot: &Snapshot) -> Vec<(Kind, String)> {
        let found = findings(snapshot, &seconds());
        found
            .into_iter()
            .map(|finding| (finding.kind, finding.object))
            .collect()
    }

    #[track_caller]
    fn only(snapshot: &Snapshot, kind: Kind, object: &str) {
        assert_eq!(kinds(snapshot), [(kind, object.to_owned())]);
    }

    fn down(why: &str) -> Link {
        Link::Up.down(why.to_owned())
    }

    fn absent() -> Daemon {
        Daemon::Absent {
            why: "refused".into(),
        }
    }

    #[test]
    fn a_healthy_node_has_nothing_and_neither_has_one_that_was_not_seen() {
        assert_eq!(kinds(&healthy()), []);
        assert_eq!(kinds(&Snapshot::default()), []);
    }

    #[test]
    fn kinds_fit_into_the_schema() {
        for kind in Kind::ALL {
            assert!(kind.as_str().len() <= 64 && kind.remedy().len() <= 2048);
            assert!(kind.remedy().ends_with('.'), "{}", kind.remedy());
        }
    }

    #[test]
    fn daemons_that_are_away_are_one_finding_each() {
        let mut snapshot = healthy();
        snapshot.vswitchd = absent();
        only(&snapshot, Kind::VswitchdDown, "ovs-vswitchd");
        snapshot.vswitchd = Daemon::Silent;
        snapshot = with_flows(snapshot, "br-int", |flows| {
            let why = "no answer".to_owned();
            flows.problem = Some(Problem { silent: true, why });
        });
        // That its bridges are silent, too, follows from it.
        only(&snapshot, Kind::VswitchdSilent, "ovs-vswitchd");
        snapshot.vswitchd = healthy().vswitchd;
        only(&snapshot, Kind::BridgeSilent, "br-int");
        snapshot.database = down("refused");
        only(&snapshot, Kind::OvsdbUnreachable, "ovsdb-server");

        let mut snapshot = healthy();
        snapshot.ovn_controller = absent();
        only(&snapshot, Kind::OvnControllerDown, "ovn-controller");
        snapshot.ovn_controller = Daemon::Silent;
        only(&snapshot, Kind::OvnControllerSilent, "ovn-controller");
        // Where there is no OVN nobody misses it.
        let snapshot = with_switch(snapshot, |switch| switch.southbound = None);
        assert_eq!(kinds(&snapshot), []);
    }

    #[test]
    fn a_switch_that_is_behind_is_found_and_one_that_moves_on_is_another_finding() {
        let at = |cur_cfg| {
            let behind = with_switch(healthy(), |switch| {
                switch.next_cfg = 9;
                switch.cur_cfg = cur_cfg;
            });
            findings(&behind, &seconds())
        };
        let [behind] = &at(7)[..] else { panic!() };
        assert_eq!(
            (behind.kind, behind.mark),
            (Kind::ConfigurationNotApplied, 7)
        );
        assert_eq!(behind.grace, Duration::from_secs(1));
        assert_eq!(at(8)[0].mark, 8);
        assert!(at(9).is_empty());
    }

    #[test]
    fn the_southbound_database_is_looked_at_from_both_sides() {
        let mut snapshot = healthy();
        snapshot.ovn_controller = Daemon::Answers {
            version: "23.03".into(),
            connected: Some(false),
        };
        only(&snapshot, Kind::SouthboundDisconnected, "ovn-controller");
        let cut = with_southbound(healthy(), |southbound| southbound.link = down("refused"));
        only(&cut, Kind::SouthboundUnreachable, "tcp:10.0.0.1:6642");
        let unknown = with_southbound(healthy(), |southbound| southbound.chassis = false);
        only(&unknown, Kind::ChassisMissing, "hv1");
        let behind = with_southbound(healthy(), |southbound| southbound.nb_cfg = Some(8));
        only(&behind, Kind::SouthboundLag, "hv1");
        let missing = with_switch(healthy(), |switch| {
            switch.bridges.remove("br-int");
        });
        only(&missing, Kind::IntegrationBridgeMissing, "br-int");
    }

    #[test]
    fn interfaces_are_found_by_what_is_wrong_with_them() {
        let names = ["br-int", "tap1", "tap1"];
        let no_device = with_interface(healthy(), names, |tap| {
            tap.ofport = Some(-1);
            tap.error = Some("No such device".into());
            tap.ovn_installed = false;
        });
        only(&no_device, Kind::InterfaceError, "tap1");
        let gone = with_interface(healthy(), names, |tap| {
            tap.ifindex = Some(0);
            tap.link_up = Some(false);
        });
        only(&gone, Kind::DeviceGone, "tap1");
        // It is in another network namespace.
        let elsewhere = with_interface(gone, names, |tap| tap.kind = "internal".into());
        assert_eq!(kinds(&elsewhere), []);

        let new = with_interface(healthy(), names, |tap| tap.ovn_installed = false);
        only(&new, Kind::PortNotInstalled, "tap1");
        let orphan = with_southbound(new.clone(), |southbound| southbound.bindings.clear());
        only(&orphan, Kind::OrphanPort, "tap1");
        let moving = with_southbound(new, |southbound| {
            let place = Place::Elsewhere("hv2".into());
            southbound.bindings.insert("vm1".into(), place);
        });
        only(&moving, Kind::PortBoundElsewhere, "tap1");
        let uplink = with_switch(healthy(), |switch| {
            let mut card = tap(9, "");
            card.iface_id = None;
            card.driver = Some("ice".into());
            card.link_up = Some(false);
            let (name, port) = port("eno9", card);
            switch
                .bridges
                .get_mut("br-provider")
                .unwrap()
                .ports
                .insert(name, port);
        });
        only(&uplink, Kind::LinkDown, "eno9");
    }

    #[test]
    fn a_tap_with_a_smaller_mtu_than_its_network_is_found() {
        let names = ["br-int", "tap1", "tap1"];
        let wrong = with_interface(healthy(), names, |tap| tap.mtu = Some(1300));
        only(&wrong, Kind::MtuMismatch, "tap1");
        let text = findings(&wrong, &seconds()).remove(0);
        assert!(
            text.message
                .contains("MTU 1300, and DHCP tells its instance 1442"),
            "{text:?}"
        );
        assert_eq!(text.grace, seconds().port_grace);
        // The network has got a larger one, and the device has not.
        let changed = with_southbound(healthy(), |southbound| {
            southbound.mtus.insert("vm1".into(), 8942);
        });
        only(&changed, Kind::MtuMismatch, "tap1");
        // Larger ones lose nothing, and a person may tell an instance a smaller one by DHCP.
        let large = with_interface(healthy(), names, |tap| tap.mtu = Some(1500));
        assert_eq!(kinds(&large), []);
        // Nobody says what is right.
        let unknown = with_southbound(wrong.clone(), |southbound| southbound.mtus.clear());
        assert_eq!(kinds(&unknown), []);
        let away = with_southbound(wrong.clone(), |southbound| southbound.link = down("x"));
        only(&away, Kind::SouthboundUnreachable, "tcp:10.0.0.1:6642");
        // It is in another network namespace.
        let internal = with_interface(wrong, names, |tap| tap.kind = "internal".into());
        assert_eq!(kinds(&internal), []);
        let unread = with_interface(healthy(), names, |tap| tap.mtu = None);
        assert_eq!(kinds(&unread), []);

        // What ovs-vswitchd was asked for and could not do.
        let card = |request| {
            with_interface(healthy(), ["br-provider", "bond0", "eno1"], |card| {
                card.mtu = Some(1500);
                card.mtu_request = Some(request);
            })
        };
        only(&card(9000), Kind::MtuMismatch, "eno1");
        assert_eq!(kinds(&card(1500)), []);
    }

    #[test]
    fn bonds_are_judged_by_member() {
        let member = |snapshot, name, change: fn(&mut Interface)| {
            with_interface(snapshot, ["br-provider", "bond0", name], change)
        };
        // LACP may still say that it has agreed.
        let cut = member(healthy(), "eno1", |card| card.link_up = Some(false));
        only(&cut, Kind::BondMemberDown, "bond0/eno1");
        let silent = member(healthy(), "eno1", |card| card.lacp_current = Some(false));
        only(&silent, Kind::BondMemberDown, "bond0/eno1");
        let both = member(cut, "eno2", |card| card.lacp_current = Some(false));
        only(&both, Kind::BondDown, "bond0");
    }

    #[test]
    fn flows_that_nobody_wants_are_found() {
        let sample = Sample {
            table: 44,
            count: 1,
        };
        let stale = with_southbound(healthy(), |southbound| {
            southbound.strangers.insert(0xdead_beef, sample);
        });
        only(&stale, Kind::StaleFlow, "br-int/0xdeadbeef");
        let lost = with_flows(healthy(), "br-int", |flows| {
            flows.outputs = [(3, sample), (77, sample)].into();
        });
        only(&lost, Kind::FlowToMissingPort, "br-int/77");
    }

    #[test]
    fn a_controller_that_is_not_reached_is_found() {
        let snapshot = with_switch(healthy(), |switch| {
            let bridge = switch.bridges.get_mut("br-provider").unwrap();
            bridge.controllers.insert("tcp:10.0.0.9:6653".into(), false);
        });
        only(
            &snapshot,
            Kind::ControllerDisconnected,
            "br-provider/tcp:10.0.0.9:6653",
        );
    }
}
