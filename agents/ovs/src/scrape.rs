//! `/metrics`: the agent's own metrics, and what the switch counts.
//!
//! Names and labels are those of the exporters that OpenStack clouds run (`ovs_interface_*`,
//! `ovs_bridge_*`), so that their dashboards work. Counters of interfaces are read when somebody
//! scrapes, with a deadline that ends before Prometheus' own.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use cobalt_api::ovsnode::Issue;
use cobalt_runtime::{chain, metrics};
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::decide::Snapshot;
use crate::decide::status::bond_members;
use crate::observe::counters::{self, AllCounters};
use crate::observe::switch::{Interface, Switch};
use crate::report::Inputs;

/// Prometheus gives up after 10 s.
const DEADLINE: Duration = Duration::from_secs(8);

/// `GET /metrics`.
pub fn routes(
    inputs: Inputs,
    issues: watch::Receiver<Vec<Issue>>,
    registry: Arc<Registry>,
) -> Router {
    let handler = async move || {
        let snapshot = inputs.clone().snapshot();
        let connection = inputs.connection.borrow().clone();
        let counters = match connection {
            Some(connection) => counters::read(&connection, DEADLINE).await,
            None => Ok(AllCounters::new()),
        };
        let counters = counters.unwrap_or_else(|error| {
            tracing::warn!(error = chain(&error), "failed to read counters");
            AllCounters::new()
        });
        let mut body = metrics::text(&registry);
        write(&mut body, &snapshot, &counters, &issues.borrow());
        ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], body)
    };
    Router::new().route("/metrics", get(handler))
}

/// A family of metrics.
struct Family<'a> {
    text: &'a mut String,
    name: &'a str,
}

impl<'a> Family<'a> {
    fn new(text: &'a mut String, name: &'a str, kind: &str, help: &str) -> Self {
        // Writing to a string cannot fail.
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
        Self { text, name }
    }

    fn sample(&mut self, labels: &[(&str, &str)], value: i64) {
        self.text.push_str(self.name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            write!(self.text, "{before}{label}=\"{}\"", escape(text)).ok();
        }
        let after = if labels.is_empty() { "" } else { "}" };
        writeln!(self.text, "{after} {value}").ok();
    }
}

fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}

/// What the switch says, as text.
fn write(text: &mut String, snapshot: &Snapshot, counters: &AllCounters, issues: &[Issue]) {
    let up = snapshot.database.is_up() && snapshot.vswitchd.answers();
    let help = "Whether ovsdb-server and ovs-vswitchd answer";
    Family::new(text, "ovs_up", "gauge", help).sample(&[], up.into());
    let version = snapshot.vswitchd.version();
    if let Some(version) = version {
        let help = "The version of ovs-vswitchd, as a label";
        Family::new(text, "ovs_build_info", "gauge", help).sample(&[("version", version)], 1);
    }
    daemons(text, snapshot);
    write_issues(text, issues);
    let Some(switch) = &snapshot.switch else {
        return;
    };
    let help = "Whether DPDK is initialized";
    let dpdk = switch.dpdk.is_some().into();
    Family::new(text, "ovs_dpdk_initialized", "gauge", help).sample(&[], dpdk);
    if switch.southbound.is_some() {
        let connected = snapshot.ovn_controller.connected() == Some(true);
        let name = "ovn_controller_southbound_database_connected";
        let help = "Whether ovn-controller is connected to the southbound database";
        Family::new(text, name, "gauge", help).sample(&[], connected.into());
    }
    bridges(text, snapshot, switch);
    bonds(text, switch);
    interfaces(text, switch, counters);
}

fn daemons(text: &mut String, snapshot: &Snapshot) {
    let help = "Whether a daemon answers";
    let mut family = Family::new(text, "cobalt_ovs_agent_daemon_answers", "gauge", help);
    for (name, daemon) in [
        ("ovs-vswitchd", &snapshot.vswitchd),
        ("ovsdb-server", &snapshot.ovsdb_server),
        ("ovn-controller", &snapshot.ovn_controller),
    ] {
        family.sample(&[("daemon", name)], daemon.answers().into());
    }
}

fn write_issues(text: &mut String, issues: &[Issue]) {
    let mut counts = BTreeMap::<(&str, &str), i64>::new();
    for issue in issues {
        let kind = issue.kind.as_deref().unwrap_or("Unknown");
        *counts.entry((kind, issue.severity.as_str())).or_default() += 1;
    }
    let help = "Issues of the OVSNode, by kind";
    let mut family = Family::new(text, "cobalt_ovs_agent_issues", "gauge", help);
    for ((kind, severity), count) in counts {
        family.sample(&[("kind", kind), ("severity", severity)], count);
    }
}

fn bridges(text: &mut String, snapshot: &Snapshot, switch: &Switch) {
    let help = "Ports of a bridge";
    let mut family = Family::new(text, "ovs_bridge_port_count", "gauge", help);
    for (name, bridge) in &switch.bridges {
        let ports = i64::try_from(bridge.ports.len()).unwrap_or(i64::MAX);
        let labels = [
            ("bridge", name.as_str()),
            ("datapath_type", &bridge.datapath_type),
        ];
        family.sample(&labels, ports);
    }
    let help = "OpenFlow flows of a bridge";
    let mut family = Family::new(text, "ovs_bridge_flow_count", "gauge", help);
    for (name, bridge) in &switch.bridges {
        if let Some(flows) = snapshot.flows.get(name).and_then(|flows| flows.total()) {
            let labels = [
                ("bridge", name.as_str()),
                ("datapath_type", &bridge.datapath_type),
            ];
            family.sample(&labels, flows);
        }
    }
}

fn bonds(text: &mut String, switch: &Switch) {
    let ports = switch.bridges.values().flat_map(|bridge| &bridge.ports);
    let help = "Whether a member of a bond carries traffic";
    let mut family = Family::new(text, "cobalt_ovs_agent_bond_member_active", "gauge", help);
    for (bond, port) in ports {
        for member in bond_members(port).iter().flat_map(|bond| &bond.members) {
            family.sample(
                &[("bond", bond), ("member", member.name)],
                member.active.into(),
            );
        }
    }
}

/// A family about interfaces: its name, its kind, its help, and where its value is from.
type InterfaceFamily = (
    &'static str,
    &'static str,
    &'static str,
    fn(&Interface) -> Option<i64>,
);

fn state(up: Option<bool>) -> Option<i64> {
    Some(up.map_or(-1, i64::from))
}

const INTERFACES: &[InterfaceFamily] = &[
    (
        "ovs_interface_admin_state",
        "gauge",
        "Whether an interface was set up: 1, 0, or -1 where it is not known",
        |interface| state(interface.admin_up),
    ),
    (
        "ovs_interface_link_state",
        "gauge",
        "Whether the link of an interface is up: 1, 0, or -1 where it is not known",
        |interface| state(interface.link_up),
    ),
    (
        "ovs_interface_link_resets",
        "counter",
        "How often the link of an interface came or went",
        |interface| interface.link_resets,
    ),
    (
        "ovs_interface_link_speed_bps",
        "gauge",
        "The speed of an interface in bits per second",
        |interface| interface.link_speed,
    ),
    (
        "ovs_interface_mtu_bytes",
        "gauge",
        "The largest packet of an interface",
        |interface| interface.mtu,
    ),
];

/// Counters: what they are called in OVSDB and in metrics, and what they mean.
const COUNTERS: &[(&str, &str, &str)] = &[
    (
        "rx_packets",
        "ovs_interface_rx_packets",
        "Packets that came in",
    ),
    ("rx_bytes", "ovs_interface_rx_bytes", "Bytes that came in"),
    (
        "rx_dropped",
        "ovs_interface_rx_dropped",
        "Packets that came in and were dropped",
    ),
    (
        "rx_errors",
        "ovs_interface_rx_errors",
        "Packets that came in with errors",
    ),
    (
        "tx_packets",
        "ovs_interface_tx_packets",
        "Packets that went out",
    ),
    ("tx_bytes", "ovs_interface_tx_bytes", "Bytes that went out"),
    (
        "tx_dropped",
        "ovs_interface_tx_dropped",
        "Packets to go out that were dropped",
    ),
    (
        "tx_errors",
        "ovs_interface_tx_errors",
        "Packets that could not go out",
    ),
    ("collisions", "ovs_interface_collisions", "Collisions"),
];

fn labels<'a>(
    (bridge, port, name, interface): (&'a str, &'a str, &'a str, &'a Interface),
) -> [(&'a str, &'a str); 4] {
    [
        ("bridge", bridge),
        ("port", port),
        ("interface", name),
        ("type", &interface.kind),
    ]
}

fn interfaces(text: &mut String, switch: &Switch, counters: &AllCounters) {
    for (name, kind, help, value) in INTERFACES {
        let mut family = Family::new(text, name, kind, help);
        for one in switch.interfaces() {
            if let Some(value) = value(one.3) {
                family.sample(&labels(one), value);
            }
        }
    }
    for (counter, name, help) in COUNTERS {
        let mut family = Family::new(text, name, "counter", help);
        for one in switch.interfaces() {
            let value = counters.get(one.2).and_then(|all| all.get(*counter));
            // One that is not known is -1.
            if let Some(value) = value.filter(|value| **value >= 0) {
                family.sample(&labels(one), *value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::findings::{Kind, findings};
    use crate::decide::ledger::Ledger;
    use crate::decide::tests::{healthy, with_interface};
    use crate::settings::tests::seconds;

    #[test]
    fn metrics_have_the_names_that_exporters_use() {
        let mut text = String::new();
        let statistics = BTreeMap::from([("rx_packets".into(), 38), ("tx_bytes".into(), -1)]);
        let counters = AllCounters::from([("eno1".into(), statistics)]);
        let cut = with_interface(healthy(), ["br-provider", "bond0", "eno1"], |card| {
            card.link_up = Some(false);
        });
        let found = findings(&cut, &seconds());
        let issues = Ledger::default()
            .judge(found, jiff::Timestamp::UNIX_EPOCH)
            .issues;
        write(&mut text, &cut, &counters, &issues);
        let eno1 = r#"{bridge="br-provider",port="bond0",interface="eno1",type=""}"#;
        for line in [
            "ovs_up 1".to_owned(),
            r#"ovs_build_info{version="3.1.0"} 1"#.to_owned(),
            r#"ovs_bridge_port_count{bridge="br-int",datapath_type="netdev"} 1"#.to_owned(),
            r#"ovs_bridge_flow_count{bridge="br-int",datapath_type="netdev"} 8"#.to_owned(),
            "ovn_controller_southbound_database_connected 1".to_owned(),
            format!("ovs_interface_link_state{eno1} 0"),
            format!("ovs_interface_rx_packets{eno1} 38"),
            r#"cobalt_ovs_agent_bond_member_active{bond="bond0",member="eno1"} 0"#.to_owned(),
            format!(
                r#"cobalt_ovs_agent_issues{{kind="{}",severity="Warning"}} 1"#,
                Kind::BondMemberDown.as_str()
            ),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("tx_bytes{"), "{text}");
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escape("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
