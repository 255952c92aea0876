//! The status of the OVSNode: what it should be, and whether it already is.
//!
//! Server-side apply removes what its owner leaves out, so what is not known yet is taken over from
//! the status as it is.

use std::collections::BTreeMap;

use cobalt_api::conditions::{self, OvsNodeCondition, Reason, Status, Wanted};
use cobalt_api::ovsnode::{
    Bond, BondMember, BondStatus, Bridge, BridgeStatus, FlowStats, Interfaces, Issue, LinkStatus,
    Metrics, OvnController, OvsNode, OvsNodeStatus, PhysicalInterface, Severity, TableFlows,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::Snapshot;
use super::findings::Kind;
use crate::observe::Link;
use crate::observe::daemon::Daemon;
use crate::observe::switch::{self, Port, Switch};

/// The members of a bond, as they are.
#[derive(Debug)]
pub struct Members<'a> {
    /// It negotiates.
    pub lacp: bool,
    /// Each, by name.
    pub members: Vec<Member<'a>>,
}

/// A member of a bond.
#[derive(Debug)]
pub struct Member<'a> {
    /// Its name.
    pub name: &'a str,
    /// It can carry traffic.
    pub active: bool,
    /// Whether its link is up.
    pub link_up: Option<bool>,
    /// Whether LACP has agreed on it.
    pub lacp_current: Option<bool>,
}

/// Judges a bond member by member: the bond as a whole may say that it has negotiated while one
/// carries nothing. None for a port that is no bond.
#[must_use]
pub fn bond_members(port: &Port) -> Option<Members<'_>> {
    let bond = port.bond.as_ref()?;
    let heard = |interface: &switch::Interface| interface.lacp_current == Some(true);
    let agreed = port.interfaces.values().any(heard);
    // Without an answer it acts as if it did not negotiate, if it was told to.
    let needs_lacp = bond.lacp && (agreed || !bond.fallback);
    let members = port.interfaces.iter().map(|(name, interface)| Member {
        name,
        active: interface.link_up == Some(true) && (!needs_lacp || heard(interface)),
        link_up: interface.link_up,
        lacp_current: bond.lacp.then_some(interface.lacp_current.unwrap_or(false)),
    });
    Some(Members {
        lacp: bond.lacp,
        members: members.collect(),
    })
}

/// The status as it should be.
#[must_use]
pub fn wanted(
    snapshot: &Snapshot,
    issues: Vec<Issue>,
    node: &OvsNode,
    now: Timestamp,
) -> OvsNodeStatus {
    let current = node.status.clone().unwrap_or_default();
    let conditions = conditions(snapshot, &issues, &current, now);
    let mut status = OvsNodeStatus {
        issues,
        conditions,
        ..current
    };
    let version = |daemon: &Daemon| daemon.version().map(str::to_owned);
    if let Some(version) = version(&snapshot.ovsdb_server) {
        status.ovsd_version = Some(version);
    }
    if let Some(switch) = &snapshot.switch {
        fill(&mut status, snapshot, switch);
    }
    if let Some(version) = version(&snapshot.vswitchd) {
        status.ovs_version = Some(version);
    }
    if snapshot.counters.is_some() {
        status.metrics = snapshot.counters;
    }
    // Of another agent than this one nobody gets an answer there.
    status.diagnostics.clone_from(&snapshot.diagnostics);
    status
}

fn fill(status: &mut OvsNodeStatus, snapshot: &Snapshot, switch: &Switch) {
    if status.ovs_version.is_none() {
        status.ovs_version.clone_from(&switch.ovs_version);
    }
    status.dpdk_enabled = Some(switch.dpdk.is_some());
    status.dpdk_version = switch.dpdk.clone().filter(|version| !version.is_empty());
    let flows_before: BTreeMap<String, i64> = status
        .bridges
        .iter()
        .filter_map(|bridge| Some((bridge.name.clone(), bridge.flows?)))
        .collect();
    status.bridges = switch
        .bridges
        .iter()
        .map(|(name, facts)| Bridge {
            name: name.clone(),
            ports: Some(i64::try_from(facts.ports.len()).unwrap_or(i64::MAX)),
            flows: snapshot
                .flows
                .get(name)
                .and_then(|flows| flows.total())
                .or_else(|| flows_before.get(name).copied()),
            datapath_type: Some(facts.datapath_type.clone()),
            status: Some(bridge_status(snapshot, name, facts, &status.issues)),
            controller_connected: (!facts.controllers.is_empty())
                .then(|| facts.controllers.values().any(|connected| *connected)),
        })
        .collect();
    status.interfaces = Some(interfaces(switch));
    let ovn = status.ovn_controller.take();
    status.ovn_controller = switch.southbound.as_ref().map(|remote| OvnController {
        connected: match &snapshot.ovn_controller {
            Daemon::Unknown => ovn.and_then(|ovn| ovn.connected),
            daemon => Some(daemon.connected() == Some(true)),
        },
        sb_connection: Some(remote.clone()),
        chassis_id: switch.chassis.clone(),
    });
    if let Some(stats) = flow_stats(snapshot) {
        status.flow_stats = Some(stats);
    }
}

/// How a bridge is. A port of one instance that is wrong does not make it worse; a link that all of
/// them use does.
fn bridge_status(
    snapshot: &Snapshot,
    name: &str,
    bridge: &switch::Bridge,
    issues: &[Issue],
) -> BridgeStatus {
    let told = |kind: Kind, object: &str| {
        issues.iter().any(|issue| {
            issue.kind.as_deref() == Some(kind.as_str()) && issue.object.as_deref() == Some(object)
        })
    };
    if snapshot.vswitchd.is_away() || told(Kind::BridgeSilent, name) {
        return BridgeStatus::Down;
    }
    let bond_is_short = |port: &Port| {
        bond_members(port).is_some_and(|bond| bond.members.iter().any(|member| !member.active))
    };
    let interface_is_wrong = |port: &Port| {
        port.interfaces.iter().any(|(name, interface)| {
            interface.iface_id.is_none()
                && [Kind::InterfaceError, Kind::DeviceGone, Kind::LinkDown]
                    .iter()
                    .any(|kind| told(*kind, name))
        })
    };
    let controller_is_lost = |target: &str| {
        let object = format!("{name}/{target}");
        told(Kind::ControllerDisconnected, &object)
    };
    let degraded = bridge.ports.values().any(bond_is_short)
        || bridge.ports.values().any(interface_is_wrong)
        || bridge
            .controllers
            .keys()
            .any(|target| controller_is_lost(target));
    if degraded {
        BridgeStatus::Degraded
    } else {
        BridgeStatus::Active
    }
}

fn link_status(up: Option<bool>) -> Option<LinkStatus> {
    Some(match up {
        Some(true) => LinkStatus::Up,
        Some(false) => LinkStatus::Down,
        None => LinkStatus::Unknown,
    })
}

fn interfaces(switch: &Switch) -> Interfaces {
    let mut found = Interfaces::default();
    let ports = switch.bridges.values().flat_map(|bridge| &bridge.ports);
    for (name, port) in ports {
        let bond = bond_members(port);
        for (interface, facts) in &port.interfaces {
            if bond.is_none() && !facts.is_physical() {
                continue;
            }
            // A link that is down has no speed.
            let speed = facts
                .link_speed
                .filter(|speed| *speed > 0 && facts.link_up == Some(true));
            found.physical.push(PhysicalInterface {
                name: interface.clone(),
                status: link_status(facts.link_up),
                speed: speed.map(speed_for_people),
                bits_per_second: speed,
                bond: bond.is_some().then(|| name.clone()),
            });
        }
        if let (Some(bond), Some(settings)) = (bond, &port.bond) {
            found.bonds.push(bond_status(name, &bond, &settings.mode));
        }
    }
    found.physical.sort_by(|a, b| a.name.cmp(&b.name));
    found.physical.dedup_by(|a, b| a.name == b.name);
    found.bonds.sort_by(|a, b| a.name.cmp(&b.name));
    found.bonds.dedup_by(|a, b| a.name == b.name);
    found
}

fn bond_status(name: &str, bond: &Members<'_>, mode: &str) -> Bond {
    let count = |wanted: fn(&Member<'_>) -> bool| {
        let count = bond.members.iter().filter(|member| wanted(member)).count();
        i32::try_from(count).unwrap_or(i32::MAX)
    };
    let (members, active) = (count(|_| true), count(|member| member.active));
    let negotiated = count(|member| member.lacp_current == Some(true)) > 0;
    Bond {
        name: name.to_owned(),
        mode: Some(mode.to_owned()),
        status: Some(match active {
            0 => BondStatus::Down,
            active if active < members => BondStatus::Degraded,
            _ => BondStatus::Active,
        }),
        members: Some(members),
        active_members: Some(active),
        lacp: Some(
            match (bond.lacp, negotiated) {
                (false, _) => "off",
                (true, false) => "configured",
                (true, true) => "negotiated",
            }
            .to_owned(),
        ),
        member_states: bond
            .members
            .iter()
            .map(|member| BondMember {
                name: member.name.to_owned(),
                active: Some(member.active),
                status: link_status(member.link_up),
                lacp_current: member.lacp_current,
            })
            .collect(),
    }
}

/// `25Gbps`, `2.5Gbps`, `100Mbps`.
fn speed_for_people(bits: i64) -> String {
    const UNITS: [(i64, &str); 3] = [
        (1_000_000_000, "Gbps"),
        (1_000_000, "Mbps"),
        (1_000, "Kbps"),
    ];
    for (unit, name) in UNITS {
        if bits >= unit {
            let tenths = bits / (unit / 10);
            return match tenths % 10 {
                0 => format!("{}{name}", tenths / 10),
                part => format!("{}.{part}{name}", tenths / 10),
            };
        }
    }
    format!("{bits}bps")
}

fn flow_stats(snapshot: &Snapshot) -> Option<FlowStats> {
    let known = snapshot
        .flows
        .values()
        .filter_map(|flows| flows.tables.as_ref());
    let mut tables = BTreeMap::<u8, i64>::new();
    let mut any = false;
    for bridge in known {
        any = true;
        for (table, count) in bridge {
            *tables.entry(*table).or_default() += i64::from(*count);
        }
    }
    any.then(|| FlowStats {
        total_flows: Some(tables.values().sum()),
        flows_per_table: tables
            .into_iter()
            .map(|(table, flows)| TableFlows {
                table: table.into(),
                flows,
            })
            .collect(),
    })
}

fn conditions(
    snapshot: &Snapshot,
    issues: &[Issue],
    current: &OvsNodeStatus,
    now: Timestamp,
) -> Vec<Condition> {
    use OvsNodeCondition as C;
    let mut all: Vec<Condition> = Vec::new();
    let mut say = |condition, statement: Option<(Status, Reason, String)>| {
        let built = match statement {
            Some((status, reason, message)) => Some(
                Wanted {
                    condition,
                    status,
                    reason,
                    message,
                    observed_generation: None,
                }
                .build(&current.conditions, now),
            ),
            None => conditions::find(&current.conditions, condition).cloned(),
        };
        all.extend(built);
    };
    let database = database(snapshot);
    let ovn = ovn_controller(snapshot);
    let bridges = bridges(snapshot, issues);
    let bonds = bonds(snapshot);
    let ready = ready(snapshot, issues, [&database, &ovn, &bridges, &bonds]);
    say(C::Ready, ready);
    say(C::OvsdbConnected, database);
    say(C::OvnControllerConnected, ovn);
    say(C::AllBridgesHealthy, bridges);
    say(C::AllBondsHealthy, bonds);
    all
}

type Statement = Option<(Status, Reason, String)>;

fn database(snapshot: &Snapshot) -> Statement {
    match &snapshot.database {
        Link::Unknown => None,
        Link::Up => Some((Status::True, Reason::Connected, "OVSDB answers".to_owned())),
        Link::Down { why, lost } => {
            let reason = if *lost {
                Reason::Disconnected
            } else {
                Reason::ConnectFailed
            };
            let message = format!("{why}; what is said of the switch is from before");
            Some((Status::False, reason, message))
        }
    }
}

fn ovn_controller(snapshot: &Snapshot) -> Statement {
    let no_ovn = snapshot
        .switch
        .as_ref()
        .is_some_and(|switch| switch.southbound.is_none());
    if no_ovn {
        let message = "the switch belongs to no OVN: external_ids:ovn-remote is not set";
        return Some((Status::Unknown, Reason::ConnectFailed, message.to_owned()));
    }
    match &snapshot.ovn_controller {
        Daemon::Unknown => None,
        Daemon::Absent { why } => Some((
            Status::False,
            Reason::ConnectFailed,
            format!("ovn-controller does not run: {why}"),
        )),
        Daemon::Silent => Some((
            Status::False,
            Reason::ConnectFailed,
            "ovn-controller is there and does not answer".to_owned(),
        )),
        Daemon::Answers { connected, .. } => match connected {
            Some(true) => Some((
                Status::True,
                Reason::Connected,
                "ovn-controller is connected to the southbound database".to_owned(),
            )),
            Some(false) => Some((
                Status::False,
                Reason::Disconnected,
                "ovn-controller is not connected to the southbound database".to_owned(),
            )),
            None => Some((
                Status::Unknown,
                Reason::ConnectFailed,
                "this release of ovn-controller does not tell".to_owned(),
            )),
        },
    }
}

fn bridges(snapshot: &Snapshot, issues: &[Issue]) -> Statement {
    let switch = snapshot.switch.as_ref()?;
    let faulty: Vec<String> = switch
        .bridges
        .iter()
        .map(|(name, facts)| (name, bridge_status(snapshot, name, facts, issues)))
        .filter(|(_, status)| *status != BridgeStatus::Active)
        .map(|(name, status)| format!("{name} is {status}"))
        .collect();
    healthy(snapshot, &faulty, "every bridge works")
}

fn bonds(snapshot: &Snapshot) -> Statement {
    let switch = snapshot.switch.as_ref()?;
    let faulty: Vec<String> = interfaces(switch)
        .bonds
        .iter()
        .filter(|bond| bond.status != Some(BondStatus::Active))
        .map(|bond| {
            let state = bond.status.map_or("Unknown", BondStatus::as_str);
            let (active, members) = (bond.active_members, bond.members);
            format!(
                "{} is {state}: {} of {} members carry traffic",
                bond.name,
                active.unwrap_or(0),
                members.unwrap_or(0)
            )
        })
        .collect();
    healthy(snapshot, &faulty, "every bond has all its members")
}

fn healthy(snapshot: &Snapshot, faulty: &[String], good: &str) -> Statement {
    Some(if !faulty.is_empty() {
        (Status::False, Reason::Degraded, faulty.join("; "))
    } else if !snapshot.database.is_up() {
        let message = "not known: OVSDB does not answer".to_owned();
        (Status::Unknown, Reason::Degraded, message)
    } else {
        (Status::True, Reason::Healthy, good.to_owned())
    })
}

/// All is well when every statement is, and nothing is critical. Where there is no OVN nobody waits
/// for it.
fn ready(snapshot: &Snapshot, issues: &[Issue], statements: [&Statement; 4]) -> Statement {
    let [database, ovn, bridges, bonds] = statements;
    let has_ovn = snapshot
        .switch
        .as_ref()
        .is_none_or(|switch| switch.southbound.is_some());
    let mut wrong: Vec<&str> = [
        (database, true),
        (ovn, has_ovn),
        (bridges, true),
        (bonds, true),
    ]
    .into_iter()
    .filter(|(_, counts)| *counts)
    .filter_map(|(statement, _)| statement.as_ref())
    .filter(|(status, ..)| *status != Status::True)
    .map(|(.., message)| message.as_str())
    .collect();
    let critical = issues
        .iter()
        .filter(|issue| issue.severity == Severity::Critical);
    wrong.extend(critical.map(|issue| issue.message.as_str()));
    if !wrong.is_empty() {
        return Some((Status::False, Reason::NotReady, wrong.join("; ")));
    }
    // What was not seen yet is not well.
    let seen = database.is_some() && bridges.is_some() && (ovn.is_some() || !has_ovn);
    seen.then(|| (Status::True, Reason::Ready, "the switch works".to_owned()))
}

/// Whether the object says already what it should. Counters count only when they are due.
#[must_use]
pub fn is_written(wanted: &OvsNodeStatus, node: &OvsNode, counters_too: bool) -> bool {
    let Some(status) = &node.status else {
        return false;
    };
    if counters_too {
        status == wanted
    } else {
        without_counters(status.clone()) == without_counters(wanted.clone())
    }
}

/// What is left of a status without what changes all the time. That a counter is there stays.
fn without_counters(mut status: OvsNodeStatus) -> OvsNodeStatus {
    for bridge in &mut status.bridges {
        bridge.flows = bridge.flows.map(|_| 0);
    }
    if status.flow_stats.is_some() {
        status.flow_stats = Some(FlowStats::default());
    }
    if status.metrics.is_some() {
        status.metrics = Some(Metrics::default());
    }
    status
}

/// The names of the fields and conditions that a write changes, for the log.
#[must_use]
pub fn changes(wanted: &OvsNodeStatus, node: &OvsNode) -> Vec<String> {
    let fields = |status: &OvsNodeStatus| match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let before = node.status.as_ref().map(fields).unwrap_or_default();
    let after = fields(wanted);
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let differ = |name: &&&String| before.get(**name) != after.get(**name);
    names
        .iter()
        .filter(differ)
        .map(|name| (*name).clone())
        .collect()
}

/// What is sent to the API server.
///
/// # Errors
///
/// When the status cannot be written as JSON.
pub fn patch(wanted: &OvsNodeStatus, node: &OvsNode) -> serde_json::Result<Value> {
    Ok(json!({
        "apiVersion": OvsNode::api_version(&()),
        "kind": OvsNode::kind(&()),
        "metadata": { "name": node.name_any(), "namespace": node.namespace(), "uid": node.uid() },
        "status": serde_json::to_value(wanted)?,
    }))
}

#[cfg(test)]
mod tests;
