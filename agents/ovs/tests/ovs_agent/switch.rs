//! A region that is well, and one thing after the other that is not. All in one lab, because a lab
//! takes longer to start than a fault to be found.

use cobalt_api::ovsnode::{BondStatus, BridgeStatus, LinkStatus, OvsNodeStatus};
use cobalt_lab::LabConfig;
use cobalt_lab::plan::Flavour;

use crate::faults;
use crate::support::{Agent, Hosts, Shown, server, unique};

/// A host of the lab with its agent.
pub struct Site {
    pub lab: Hosts,
    pub agent: Agent,
    pub shown: Shown,
}

impl Site {
    /// Runs a shell script on the host.
    pub async fn sh(&self, script: &str) -> String {
        self.lab.sh("hv1", script).await
    }
}

pub fn thresholds() -> Vec<String> {
    [
        "--refresh-interval=1h",
        "--answer-timeout=2s",
        "--configuration-lag=500ms",
        "--southbound-lag=1s",
        "--port-grace=500ms",
        "--flow-grace=1500ms",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_is_found_named_and_cleared() {
    let flavours = [Flavour::Bookworm, Flavour::Trixie];
    let mut config = LabConfig::with_hypervisors("ovsagent", &flavours);
    config.ovn = true;
    let lab = Hosts::start(config).await;
    let (server, client) = server().await;
    let start = async |host: &str| {
        let shown = Shown::new(&client, unique(host));
        let flags = [thresholds(), lab.flags(host).await].concat();
        (Agent::start(&server.kubeconfig, &shown.name, &flags), shown)
    };
    let (agent, shown) = start("hv1").await;
    let (mut other, other_shown) = start("hv2").await;
    for (number, host) in [(1, "hv1"), (2, "hv2")] {
        lab.plug(host, number).await;
    }
    for (host, shown, release) in [("hv1", &shown, "3.1"), ("hv2", &other_shown, "3.5")] {
        every_field_is_told(&shown.well().await, host, release);
    }
    other.end().await;

    let mut site = Site { lab, agent, shown };
    nothing_is_written_while_nothing_changes(&site).await;
    metrics_are_served(&site).await;
    faults::interfaces(&site).await;
    faults::settings_are_taken_without_a_restart(&site).await;
    faults::times_stay(&mut site, server).await;
    faults::flows(&site).await;
    faults::bonds(&site).await;
    faults::ovn_controller(&site).await;
    faults::southbound(&site).await;
    faults::vswitchd(&site).await;
    faults::ovsdb(&site).await;
    site.shown.well().await;
    site.agent.end().await;
    site.lab.down().await.unwrap();
}

fn every_field_is_told(status: &OvsNodeStatus, host: &str, release: &str) {
    for version in [&status.ovs_version, &status.ovsd_version] {
        assert!(
            version.as_ref().unwrap().starts_with(release),
            "{version:?}"
        );
    }
    assert_eq!(
        (status.dpdk_enabled, &status.dpdk_version),
        (Some(false), &None)
    );
    let names: Vec<&str> = status
        .bridges
        .iter()
        .map(|bridge| bridge.name.as_str())
        .collect();
    assert_eq!(names, ["br-ex", "br-int", "br-provider"]);
    for bridge in &status.bridges {
        assert_eq!(bridge.datapath_type.as_deref(), Some("netdev"));
        assert_eq!(bridge.status, Some(BridgeStatus::Active));
        assert!(bridge.ports.is_some_and(|ports| ports > 0), "{bridge:?}");
        assert!(bridge.flows.is_some(), "{bridge:?}");
    }
    let interfaces = status.interfaces.as_ref().unwrap();
    let cards: Vec<_> = interfaces
        .physical
        .iter()
        .map(|card| (card.name.as_str(), card.status, card.bond.as_deref()))
        .collect();
    let up = Some(LinkStatus::Up);
    assert_eq!(
        cards,
        [("eno1", up, Some("bond0")), ("eno2", up, Some("bond0"))]
    );
    assert!(
        interfaces.physical[0]
            .speed
            .as_ref()
            .unwrap()
            .ends_with("bps")
    );
    let bond = &interfaces.bonds[0];
    assert_eq!(bond.mode.as_deref(), Some("balance-tcp"));
    assert_eq!(
        (bond.status, bond.lacp.as_deref()),
        (Some(BondStatus::Active), Some("negotiated"))
    );
    assert_eq!((bond.members, bond.active_members), (Some(2), Some(2)));
    let ovn = status.ovn_controller.as_ref().unwrap();
    assert_eq!(
        (ovn.connected, ovn.chassis_id.as_deref()),
        (Some(true), Some(host))
    );
    assert!(ovn.sb_connection.as_ref().unwrap().starts_with("tcp:"));
    let flows = status.flow_stats.as_ref().unwrap();
    assert!(flows.total_flows.is_some() && !flows.flows_per_table.is_empty());
    assert!(status.metrics.unwrap().packets_sent.is_some());
}

async fn nothing_is_written_while_nothing_changes(site: &Site) {
    let before = site
        .agent
        .metric("cobalt_ovs_agent_status_writes_total")
        .await;
    let reads = site.agent.metric("cobalt_ovs_agent_flow_reads_total").await;
    // Packets are counted all the time, and flows were read again and again.
    site.agent
        .counts("cobalt_ovs_agent_flow_reads_total", reads + 10.0)
        .await;
    let after = site
        .agent
        .metric("cobalt_ovs_agent_status_writes_total")
        .await;
    assert_eq!(before.to_bits(), after.to_bits(), "{}", site.agent.log());
}

async fn metrics_are_served(site: &Site) {
    let agent = &site.agent;
    let eno1 = r#"{bridge="br-provider",port="bond0",interface="eno1",type=""}"#;
    assert!(
        agent
            .metric(&format!("ovs_interface_tx_packets{eno1}"))
            .await
            > 0.0
    );
    for (name, value) in [
        ("ovs_up", 1.0),
        ("ovn_controller_southbound_database_connected", 1.0),
        ("cobalt_ovs_agent_southbound_connected", 1.0),
        (
            r#"cobalt_ovs_agent_daemon_answers{daemon="ovn-controller"}"#,
            1.0,
        ),
        (
            r#"ovs_bridge_port_count{bridge="br-ex",datapath_type="netdev"}"#,
            1.0,
        ),
    ] {
        let found = agent.metric(name).await;
        assert!((found - value).abs() < 0.5, "{name} is {found}");
    }
}
