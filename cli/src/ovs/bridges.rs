//! Bridges and ports as an agent tells them, and as people read them: what is wrong first.

use std::fmt::Write as _;

use cobalt_api::ovsnode::{self, Issue, OvsNodeStatus, Severity};
use serde::Deserialize;
use serde_json::Value;

use crate::text::{clean, table};

/// The answer of an agent. What it does not know is absent.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Bridges {
    pub bridges: Vec<Bridge>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bridge {
    pub name: String,
    pub datapath_type: Option<String>,
    pub fail_mode: Option<String>,
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Port {
    pub name: String,
    pub tag: Option<i64>,
    pub bond: Option<Bond>,
    pub interfaces: Vec<Interface>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bond {
    pub mode: Option<String>,
    /// Whether it negotiates, or how.
    pub lacp: Value,
    /// The member that is active.
    pub active: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Interface {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub ofport: Option<i64>,
    pub admin_state: Option<String>,
    pub link_state: Option<String>,
    pub mac: Option<String>,
    pub mtu: Option<i64>,
    pub iface_id: Option<String>,
    pub attached_mac: Option<String>,
    pub error: Option<String>,
    pub ovn_installed: Option<bool>,
}

impl Interface {
    fn link(&self) -> &'static str {
        let is = |state: &Option<String>, wanted: &str| state.as_deref() == Some(wanted);
        if is(&self.admin_state, "down") {
            "off"
        } else if is(&self.link_state, "up") {
            "up"
        } else if is(&self.link_state, "down") {
            "down"
        } else {
            "-"
        }
    }

    /// What can be seen of the interface alone; the agent's issues know more.
    fn wrong(&self) -> Option<String> {
        if let Some(error) = given(self.error.as_deref()) {
            return Some(clean(error));
        }
        if self.ofport == Some(-1) {
            return Some("it could not be added".to_owned());
        }
        if self.link() == "down" {
            return Some("link down".to_owned());
        }
        let is_logical = given(self.iface_id.as_deref()).is_some();
        (is_logical && self.ovn_installed == Some(false)).then(|| "not installed by OVN".to_owned())
    }
}

fn given(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

/// How bad it is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Critical,
    Warning,
    /// The agent has not judged it, or not yet.
    Seen,
    Info,
    Fine,
}

impl Rank {
    fn of(severity: Severity) -> Self {
        match severity {
            Severity::Critical => Self::Critical,
            Severity::Warning => Self::Warning,
            Severity::Info => Self::Info,
        }
    }
}

/// What is wrong with something, and how bad that is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Judgement {
    rank: Rank,
    text: String,
}

impl Judgement {
    const FINE: Self = Self {
        rank: Rank::Fine,
        text: String::new(),
    };

    /// By the issues of an object.
    fn of(issues: &[Issue], object: &str) -> Self {
        let mut all: Vec<&Issue> = issues
            .iter()
            .filter(|issue| issue.object.as_deref() == Some(object))
            .collect();
        all.sort_by_key(|issue| Rank::of(issue.severity));
        let names: Vec<String> = all.iter().map(|issue| kind(issue)).collect();
        Self {
            rank: all
                .first()
                .map_or(Rank::Fine, |issue| Rank::of(issue.severity)),
            text: names.join(", "),
        }
    }

    fn worse(self, other: Self) -> Self {
        if other.rank < self.rank { other } else { self }
    }
}

/// The kind of an issue, or what it says.
pub fn kind(issue: &Issue) -> String {
    clean(given(issue.kind.as_deref()).unwrap_or(&issue.message))
}

/// A line of the table of a bridge.
struct Row {
    rank: Rank,
    cells: [String; 9],
}

const HEAD: [&str; 9] = [
    "  PORT",
    "TYPE",
    "OFPORT",
    "LINK",
    "TAG",
    "MTU",
    "MAC",
    "LOGICAL PORT",
    "WHAT IS WRONG",
];

fn shown(value: Option<&str>) -> String {
    given(value).map_or_else(|| "-".to_owned(), clean)
}

fn number(value: Option<i64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn named(rank: Rank, depth: usize, name: &str) -> String {
    let mark = if rank < Rank::Info { "! " } else { "  " };
    format!("{mark}{}{}", "  ".repeat(depth), clean(name))
}

/// The lines of a port: its own, and one for each member of a bond.
fn rows(port: &Port, issues: &[Issue]) -> Vec<Row> {
    let tag = number(port.tag);
    let whole = Judgement::of(issues, &port.name);
    let line = |interface: &Interface, depth: usize, found: Judgement, tag: &str| Row {
        rank: found.rank,
        cells: [
            named(found.rank, depth, &interface.name),
            shown(interface.kind.as_deref().filter(|kind| *kind != "system")),
            number(interface.ofport),
            interface.link().to_owned(),
            tag.to_owned(),
            number(interface.mtu),
            shown(given(interface.attached_mac.as_deref()).or(interface.mac.as_deref())),
            shown(interface.iface_id.as_deref()),
            found.text,
        ],
    };
    let judge = |interface: &Interface| {
        let seen = interface.wrong().map_or(Judgement::FINE, |text| Judgement {
            rank: Rank::Seen,
            text,
        });
        let member = format!("{}/{}", port.name, interface.name);
        let told = Judgement::of(issues, &member);
        // The same name is the same thing for people.
        let own = if interface.name == port.name {
            Judgement::FINE
        } else {
            Judgement::of(issues, &interface.name)
        };
        told.worse(own).worse(seen)
    };
    if let ([only], None) = (port.interfaces.as_slice(), &port.bond)
        && only.name == port.name
    {
        let found = whole.worse(judge(only));
        return vec![line(only, 0, found, &tag)];
    }
    let mut members: Vec<Row> = port
        .interfaces
        .iter()
        .map(|interface| line(interface, 1, judge(interface), "-"))
        .collect();
    members.sort_by(|a, b| (a.rank, &a.cells).cmp(&(b.rank, &b.cells)));
    let rank = members
        .iter()
        .map(|row| row.rank)
        .fold(whole.rank, Rank::min);
    let dash = || "-".to_owned();
    let cells = [
        named(rank, 0, &port.name),
        port.bond.as_ref().map_or_else(dash, |_| "bond".to_owned()),
        dash(),
        dash(),
        tag,
        dash(),
        dash(),
        dash(),
        whole.text,
    ];
    std::iter::once(Row { rank, cells })
        .chain(members)
        .collect()
}

/// A bond in one line.
fn bond(name: &str, bond: &Bond) -> String {
    let mode = given(bond.mode.as_deref()).unwrap_or("active-backup");
    let lacp = match &bond.lacp {
        Value::Bool(true) => "on",
        Value::String(how) if !how.is_empty() => how,
        _ => "off",
    };
    let mut out = format!("{name}: bond, {mode}, LACP {lacp}");
    if let Some(active) = given(bond.active.as_deref()) {
        write!(out, ", active {active}").ok();
    }
    clean(&out)
}

/// All bridges with their ports, what is wrong first.
pub fn live(bridges: &Bridges, status: &OvsNodeStatus) -> String {
    let mut all: Vec<(Rank, &Bridge, Vec<Row>)> = bridges
        .bridges
        .iter()
        .map(|bridge| {
            let mut ports: Vec<Vec<Row>> = bridge
                .ports
                .iter()
                .map(|port| rows(port, &status.issues))
                .collect();
            let rank = |port: &Vec<Row>| port.first().map_or(Rank::Fine, |row| row.rank);
            let name = |port: &Vec<Row>| port.first()?.cells.first().cloned();
            ports.sort_by_cached_key(|port| (rank(port), name(port)));
            let own = Judgement::of(&status.issues, &bridge.name).rank;
            let worst = ports.first().map_or(own, |port| own.min(rank(port)));
            (worst, bridge, ports.into_iter().flatten().collect())
        })
        .collect();
    all.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
    let mut out = String::new();
    for (_, bridge, rows) in all {
        let known = status.bridges.iter().find(|one| one.name == bridge.name);
        let mut facts = vec![datapath(bridge.datapath_type.as_deref())];
        if let Some(mode) = given(bridge.fail_mode.as_deref()) {
            facts.push(format!("fail mode {}", clean(mode)));
        }
        let ports = i64::try_from(bridge.ports.len()).unwrap_or(i64::MAX);
        facts.extend(counts(Some(ports), known));
        writeln!(out, "\n{}: {}", clean(&bridge.name), facts.join(", ")).ok();
        for port in &bridge.ports {
            if let Some(found) = &port.bond {
                writeln!(out, "{}", bond(&port.name, found)).ok();
            }
        }
        if !rows.is_empty() {
            let cells: Vec<[String; 9]> = rows.into_iter().map(|row| row.cells).collect();
            out.push_str(&table(HEAD, &cells));
        }
    }
    out
}

/// The bridges as far as the OVSNode knows them.
pub fn last_written(status: &OvsNodeStatus) -> String {
    let mut bridges: Vec<&ovsnode::Bridge> = status.bridges.iter().collect();
    bridges.sort_by_key(|bridge| {
        use ovsnode::BridgeStatus as S;
        let rank = match bridge.status {
            Some(S::Down) => 0,
            Some(S::Degraded) => 1,
            None => 2,
            Some(S::Active) => 3,
        };
        (rank, bridge.name.as_str())
    });
    let mut out = String::new();
    for bridge in bridges {
        let mut facts = vec![datapath(bridge.datapath_type.as_deref())];
        facts.extend(counts(bridge.ports, Some(bridge)));
        writeln!(out, "\n{}: {}", clean(&bridge.name), facts.join(", ")).ok();
    }
    let Some(interfaces) = &status.interfaces else {
        return out;
    };
    if !interfaces.bonds.is_empty() {
        let word = |word: Option<&str>| shown(word);
        let rows: Vec<[String; 5]> = interfaces
            .bonds
            .iter()
            .map(|bond| {
                let members: Vec<String> = bond
                    .member_states
                    .iter()
                    .map(|member| {
                        let state = match member.active {
                            Some(true) => "active",
                            Some(false) => "NOT active",
                            None => "unknown",
                        };
                        format!("{} {state}", clean(&member.name))
                    })
                    .collect();
                [
                    clean(&bond.name),
                    word(bond.status.map(ovsnode::BondStatus::as_str)),
                    word(bond.mode.as_deref()),
                    word(bond.lacp.as_deref()),
                    members.join(", "),
                ]
            })
            .collect();
        let head = ["BOND", "STATUS", "MODE", "LACP", "MEMBERS"];
        write!(out, "\n{}", table(head, &rows)).ok();
    }
    if !interfaces.physical.is_empty() {
        let rows: Vec<[String; 4]> = interfaces
            .physical
            .iter()
            .map(|card| {
                [
                    clean(&card.name),
                    shown(card.status.map(ovsnode::LinkStatus::as_str)),
                    shown(card.speed.as_deref()),
                    shown(card.bond.as_deref()),
                ]
            })
            .collect();
        let head = ["CARD", "LINK", "SPEED", "BOND"];
        write!(out, "\n{}", table(head, &rows)).ok();
    }
    out
}

fn datapath(kind: Option<&str>) -> String {
    match given(kind) {
        None | Some("system") => "datapath system".to_owned(),
        Some(kind) => format!("datapath {}", clean(kind)),
    }
}

fn many(count: i64, what: &str) -> String {
    let end = if count == 1 { "" } else { "s" };
    format!("{count} {what}{end}")
}

/// What is counted of a bridge, and whether it works.
fn counts(ports: Option<i64>, known: Option<&ovsnode::Bridge>) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(ports) = ports {
        out.push(many(ports, "port"));
    }
    if let Some(flows) = known.and_then(|bridge| bridge.flows) {
        out.push(many(flows, "flow"));
    }
    if known.and_then(|bridge| bridge.controller_connected) == Some(false) {
        out.push("controller NOT connected".to_owned());
    }
    if let Some(status) = known.and_then(|bridge| bridge.status) {
        out.push(status.as_str().to_owned());
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_interface_looks_wrong_by_itself() {
        let cases = [
            (json!({}), "-", None),
            (json!({ "adminState": "up", "linkState": "up" }), "up", None),
            (
                json!({ "adminState": "up", "linkState": "down" }),
                "down",
                Some("link down"),
            ),
            // It is so because somebody wants it.
            (
                json!({ "adminState": "down", "linkState": "down" }),
                "off",
                None,
            ),
            (json!({ "ofport": -1 }), "-", Some("it could not be added")),
            (
                json!({ "ofport": -1, "error": "no such\ndevice" }),
                "-",
                Some("no such device"),
            ),
            (json!({ "error": "" }), "-", None),
            (
                json!({ "ifaceId": "id", "ovnInstalled": false }),
                "-",
                Some("not installed by OVN"),
            ),
            // No logical port has nothing to be installed.
            (json!({ "ovnInstalled": false }), "-", None),
        ];
        for (given, link, wrong) in cases {
            let interface: Interface = serde_json::from_value(given.clone()).unwrap();
            assert_eq!(interface.link(), link, "{given}");
            assert_eq!(interface.wrong().as_deref(), wrong, "{given}");
        }
    }

    #[test]
    fn a_bond_is_told_in_one_line() {
        let cases = [
            (json!({}), "b: bond, active-backup, LACP off"),
            (
                json!({ "mode": "balance-tcp", "lacp": true, "active": "eno1" }),
                "b: bond, balance-tcp, LACP on, active eno1",
            ),
            (
                json!({ "mode": "balance-slb", "lacp": "passive", "active": null }),
                "b: bond, balance-slb, LACP passive",
            ),
            (
                json!({ "lacp": false, "active": "x\u{1b}c" }),
                "b: bond, active-backup, LACP off, active x c",
            ),
        ];
        for (given, expected) in cases {
            let found: Bond = serde_json::from_value(given).unwrap();
            assert_eq!(bond("b", &found), expected);
        }
    }
}
