//! The faults: each is provoked, found, named with a remedy, and cleared.

use cobalt_api::conditions::OvsNodeCondition;
use cobalt_api::ovsnode::{BridgeStatus, OvsNode, Severity};
use cobalt_lab::control::Fault;
use cobalt_lab::testing::ApiServer;

use crate::support::{Agent, is, issue};
use crate::switch::Site;

impl Site {
    /// Does something, waits until an issue says what came of it, undoes it, and waits until all is
    /// well again.
    async fn provoke(&self, kind: &str, object: &str, begin: &str, end: &str) {
        self.sh(begin).await;
        let issue = self.shown.issue(kind, object).await;
        assert!(
            issue.remedy.is_some() && issue.detected_at.is_some(),
            "{issue:?}"
        );
        self.sh(end).await;
        self.shown.well().await;
    }

    async fn fault(&self, fault: Fault, target: &str) {
        self.lab.fault(fault, target).await.unwrap();
    }
}

/// systemd starts a daemon that was killed; here it shall stay dead.
fn stay_dead(unit: &str) -> String {
    format!(
        "mkdir -p /run/systemd/system/{unit}.service.d
         printf '[Service]\\nRestart=no\\n' >/run/systemd/system/{unit}.service.d/dead.conf
         systemctl daemon-reload
         systemctl kill --signal=KILL {unit}"
    )
}

fn bridge_is(node: &OvsNode, name: &str, status: BridgeStatus) -> bool {
    let bridges = node.status.iter().flat_map(|status| &status.bridges);
    let mut bridges = bridges.filter(|bridge| bridge.name == name);
    bridges.any(|bridge| bridge.status == Some(status))
}

/// How many ports br-int has.
fn ports(node: &OvsNode) -> i64 {
    let bridges = node.status.iter().flat_map(|status| &status.bridges);
    let bridges = bridges.filter(|bridge| bridge.name == "br-int");
    bridges.filter_map(|bridge| bridge.ports).sum()
}

pub async fn interfaces(site: &Site) {
    site.provoke(
        "InterfaceError",
        "tapghost",
        "ovs-vsctl --no-wait add-port br-int tapghost -- set Interface tapghost \
         external_ids:iface-id=ghost",
        "ovs-vsctl del-port tapghost",
    )
    .await;
    site.provoke(
        "OrphanPort",
        "orphan",
        "ovs-vsctl add-port br-int orphan -- set Interface orphan type=internal \
         external_ids:iface-id=nobody",
        "ovs-vsctl del-port orphan",
    )
    .await;
    site.provoke(
        "DeviceGone",
        "gone",
        "ip tuntap add gone mode tap
         ovs-vsctl add-port br-ex gone
         ovs-vsctl --timeout=60 wait-until Interface gone 'ofport>=1'
         ip link delete gone",
        "ovs-vsctl del-port gone",
    )
    .await;
    // A tap of an instance, as Nova plugs it, and the DHCP options that Neutron gives it.
    let dhcp = "dhcp-options-set-options $(cat /tmp/dhcp) server_id=192.0.2.254 \
                server_mac=02:00:00:00:00:fe lease_time=3600";
    site.lab
        .northbound("create DHCP_Options cidr=192.0.2.0/24 >/tmp/dhcp")
        .await;
    site.lab.northbound(&format!("{dhcp} mtu=1442")).await;
    site.lab
        .northbound(
            "--may-exist lsp-add ls vm-mtu -- \
             lsp-set-addresses vm-mtu '02:00:00:00:00:77 192.0.2.77' -- \
             lsp-set-dhcpv4-options vm-mtu $(cat /tmp/dhcp)",
        )
        .await;
    site.sh("ip tuntap add tapmtu mode tap
         ip link set tapmtu mtu 1442 up
         ovs-vsctl add-port br-int tapmtu -- set Interface tapmtu external_ids:iface-id=vm-mtu
         ovs-vsctl --timeout=60 wait-until Interface tapmtu external_ids:ovn-installed=true")
        .await;
    site.shown.well().await;
    site.provoke(
        "MtuMismatch",
        "tapmtu",
        "ip link set tapmtu mtu 1300",
        "ip link set tapmtu mtu 1442",
    )
    .await;
    // The network gets another MTU: that is followed.
    site.sh("ip link set tapmtu mtu 1400").await;
    site.shown.issue("MtuMismatch", "tapmtu").await;
    site.lab.northbound(&format!("{dhcp} mtu=1400")).await;
    site.shown.well().await;
    site.sh("ovs-vsctl del-port tapmtu; ip link delete tapmtu")
        .await;
    site.lab
        .northbound("lsp-del vm-mtu -- destroy DHCP_Options $(cat /tmp/dhcp)")
        .await;
    site.provoke(
        "ControllerDisconnected",
        "br-ex/tcp:127.0.0.1:9",
        "ovs-vsctl set-controller br-ex tcp:127.0.0.1:9",
        "ovs-vsctl del-controller br-ex",
    )
    .await;
}

pub async fn settings_are_taken_without_a_restart(site: &Site) {
    site.agent.set("port-grace", "1h");
    // The log tells when it was taken; nothing else does, while nothing is wrong.
    let taken = async {
        while !site.agent.log().contains("port_grace: 3600s") {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(crate::support::PATIENCE, taken)
        .await
        .unwrap();
    let add = "ovs-vsctl add-port br-int orphan -- set Interface orphan type=internal \
               external_ids:iface-id=nobody";
    site.sh(add).await;
    let before = site.shown.until("anything", |_| true).await;
    site.sh("ovs-vsctl add-port br-int more -- set Interface more type=internal")
        .await;
    let node = site
        .shown
        .until("one port more", |node| ports(node) > ports(&before))
        .await;
    assert!(issue(&node, "OrphanPort", "orphan").is_none(), "{node:?}");
    site.agent.set("port-grace", "300ms");
    site.shown.issue("OrphanPort", "orphan").await;
    std::fs::remove_file(site.agent.settings.join("port-grace")).unwrap();
    site.sh("ovs-vsctl del-port orphan -- del-port more").await;
    site.shown.well().await;
}

pub async fn times_stay(site: &mut Site, server: &ApiServer) {
    let add = "ovs-vsctl add-port br-int orphan -- set Interface orphan type=internal \
               external_ids:iface-id=nobody";
    site.sh(add).await;
    let first = site.shown.issue("OrphanPort", "orphan").await;
    let before = site.shown.until("anything", |_| true).await;
    // Another agent goes on with it, although the grace is longer than it has to wait.
    site.agent.end().await;
    let flags = site.lab.flags("hv1").await;
    let mut patient = flags.clone();
    patient.push("--port-grace=1h".to_owned());
    let mut next = Agent::start(&server.kubeconfig, &site.shown.name, &patient);
    site.sh("ovs-vsctl add-port br-int more -- set Interface more type=internal")
        .await;
    let more = |node: &OvsNode| ports(node) > ports(&before);
    let node = site.shown.until("one port more", more).await;
    assert_eq!(issue(&node, "OrphanPort", "orphan"), Some(&first));
    site.sh("ovs-vsctl del-port orphan -- del-port more").await;
    site.shown.well().await;
    next.end().await;
    let flags = [crate::switch::thresholds(), flags].concat();
    site.agent = Agent::start(&server.kubeconfig, &site.shown.name, &flags);
    site.agent.answers("/readyz", |code, _| code == 200).await;
}

pub async fn flows(site: &Site) {
    site.provoke(
        "StaleFlow",
        "br-int/0xdeadbeef",
        "ovs-ofctl -O OpenFlow15 add-flow br-int \
         'cookie=0xdeadbeef,table=44,priority=7777,ip,nw_dst=203.0.113.7,actions=drop'",
        "ovs-ofctl -O OpenFlow15 del-flows br-int cookie=0xdeadbeef/-1",
    )
    .await;
    site.provoke(
        "FlowToMissingPort",
        "br-ex/777",
        "ovs-ofctl -O OpenFlow15 add-flow br-ex \
         'table=3,priority=7,ip,nw_dst=203.0.113.7,actions=clone(output:777)'",
        "ovs-ofctl -O OpenFlow15 del-flows br-ex table=3",
    )
    .await;
}

pub async fn bonds(site: &Site) {
    site.fault(Fault::Cut, "hv1/eno1").await;
    let cut = site.shown.issue("BondMemberDown", "bond0/eno1").await;
    assert_eq!(cut.severity, Severity::Warning);
    let node = site.shown.until("degraded", |node| {
        is(node, OvsNodeCondition::AllBondsHealthy, "False")
            && bridge_is(node, "br-provider", BridgeStatus::Degraded)
    });
    let status = node.await.status.unwrap();
    let bond = &status.interfaces.as_ref().unwrap().bonds[0];
    assert_eq!((bond.members, bond.active_members), (Some(2), Some(1)));
    site.fault(Fault::Heal, "hv1/eno1").await;
    site.shown.well().await;

    // The other side is silent while the links are up.
    site.fault(Fault::Stop, "tor/ovs-vswitchd").await;
    let down = site.shown.issue("BondDown", "bond0").await;
    assert_eq!(down.severity, Severity::Critical);
    site.fault(Fault::Cont, "tor/ovs-vswitchd").await;
    site.shown.well().await;
}

pub async fn ovn_controller(site: &Site) {
    let shown = &site.shown;
    site.fault(Fault::Stop, "hv1/ovn-controller").await;
    shown.issue("OvnControllerSilent", "ovn-controller").await;
    shown
        .until("not connected", |node| {
            is(node, OvsNodeCondition::OvnControllerConnected, "False")
        })
        .await;
    site.fault(Fault::Cont, "hv1/ovn-controller").await;
    shown.well().await;

    site.sh(&stay_dead("ovn-controller")).await;
    let dead = shown.issue("OvnControllerDown", "ovn-controller").await;
    assert_eq!(dead.severity, Severity::Critical);
    site.sh("systemctl restart ovn-controller").await;
    shown.well().await;
}

pub async fn southbound(site: &Site) {
    let shown = &site.shown;
    // It answers, and does nothing.
    site.sh("ovn-appctl -t ovn-controller debug/pause").await;
    let bump = "set NB_Global . nb_cfg=$(($(date +%s)))";
    site.lab.northbound(bump).await;
    shown.issue("SouthboundLag", "hv1").await;
    site.sh("ovn-appctl -t ovn-controller debug/resume").await;
    shown.well().await;

    // Only the host is cut off from the databases.
    let (addresses, _) = site.lab.members(6642).await;
    let routes = |what: &str| {
        let routes = addresses.iter();
        let routes: Vec<String> = routes
            .map(|at| format!("ip route {what} blackhole {at}/32"))
            .collect();
        routes.join("\n")
    };
    site.sh(&routes("add")).await;
    let cut = shown
        .issue("SouthboundDisconnected", "ovn-controller")
        .await;
    assert_eq!(cut.severity, Severity::Critical);
    site.sh(&routes("delete")).await;
    shown.well().await;

    // The database forgets the host.
    let (_, southbound) = site.lab.members(6642).await;
    site.sh("ovn-appctl -t ovn-controller debug/pause").await;
    site.sh(&format!(
        "ovn-sbctl --no-leader-only --timeout=60 --db={southbound} chassis-del hv1"
    ))
    .await;
    shown.issue("ChassisMissing", "hv1").await;
    site.sh("ovn-appctl -t ovn-controller debug/resume").await;
    shown.well().await;
}

pub async fn vswitchd(site: &Site) {
    let shown = &site.shown;
    site.fault(Fault::Stop, "hv1/ovs-vswitchd").await;
    shown.issue("VswitchdSilent", "ovs-vswitchd").await;
    shown
        .until("bridges down", |node| {
            bridge_is(node, "br-int", BridgeStatus::Down)
                && is(node, OvsNodeCondition::AllBridgesHealthy, "False")
                && is(node, OvsNodeCondition::OvsdbConnected, "True")
        })
        .await;
    site.fault(Fault::Cont, "hv1/ovs-vswitchd").await;
    shown.well().await;

    // It answers, and is behind.
    site.provoke(
        "ConfigurationNotApplied",
        "ovs-vswitchd",
        "ovs-vsctl --no-wait set Open_vSwitch . cur_cfg=0",
        "ovs-vsctl --timeout=60 set Open_vSwitch . external_ids:test=1",
    )
    .await;

    site.sh(&stay_dead("ovs-vswitchd")).await;
    let dead = shown.issue("VswitchdDown", "ovs-vswitchd").await;
    assert!(
        dead.message.contains("ovs-vswitchd does not run"),
        "{dead:?}"
    );
    // Its rows look as healthy as before.
    let rows = site
        .sh("ovs-vsctl --no-wait get Interface if1 external_ids:ovn-installed")
        .await;
    assert!(rows.contains("true"), "{rows}");
    site.sh("systemctl restart ovs-vswitchd").await;
    shown.well().await;
}

pub async fn ovsdb(site: &Site) {
    let shown = &site.shown;
    site.fault(Fault::Stop, "hv1/ovsdb-server").await;
    let silent = shown.issue("OvsdbUnreachable", "ovsdb-server").await;
    assert_eq!(silent.severity, Severity::Critical);
    let node = shown.until("disconnected", |node| {
        is(node, OvsNodeCondition::OvsdbConnected, "False")
            && is(node, OvsNodeCondition::AllBridgesHealthy, "Unknown")
    });
    // What was known stays.
    assert_eq!(node.await.status.unwrap().bridges.len(), 3);
    site.fault(Fault::Cont, "hv1/ovsdb-server").await;
    shown.well().await;

    site.sh(&stay_dead("ovsdb-server")).await;
    shown.issue("OvsdbUnreachable", "ovsdb-server").await;
    assert!((site.agent.metric("ovs_up").await).abs() < 0.5);
    site.sh("systemctl restart ovsdb-server ovs-vswitchd ovn-controller")
        .await;
    shown.well().await;
}
