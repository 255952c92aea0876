//! OVN and Open vSwitch: packets of virtual machines, while parts of the network die.

use cobalt_lab::LabConfig;
use cobalt_lab::control::Fault;
use cobalt_lab::node::Power;
use cobalt_lab::plan::Flavour;
use cobalt_lab::report::Report;

use crate::{TestLab, lab};

/// The member that leads the southbound database.
const LEADER: &str =
    "ovs-appctl -t /run/ovn/ovnsb_db.ctl cluster/status OVN_Southbound | grep -q '^Role: leader'";

/// Succeeds on a member that has joined both databases.
const JOINED: &str = "for database in nb/OVN_Northbound sb/OVN_Southbound; do
    socket=/run/ovn/ovn${database%%/*}_db.ctl
    ovs-appctl -t $socket cluster/status ${database#*/} | grep '^Status: cluster member'
done";

impl TestLab {
    /// A virtual machine, as far as the network is concerned: a port of the logical switch `ls`
    /// and a namespace on a hypervisor behind it.
    async fn plug(&self, host: &str, number: u8) {
        self.northbound(&format!(
            "--may-exist ls-add ls -- --may-exist lsp-add ls vm{number} -- \
             lsp-set-addresses vm{number} '02:00:00:00:00:{number:02} 192.0.2.{number}'"
        ))
        .await;
        self.sh(
            host,
            &format!(
                "ovs-vsctl add-port br-int tap{number} -- set Interface tap{number} type=internal \
                 external_ids:iface-id=vm{number}
                 ip netns add vm{number}
                 ip link set tap{number} netns vm{number}
                 ip -n vm{number} link set tap{number} address 02:00:00:00:00:{number:02} mtu 1400 up
                 ip -n vm{number} address add 192.0.2.{number}/24 dev tap{number}
                 ovs-vsctl --timeout=60 wait-until Interface tap{number} \
                 external_ids:ovn-installed=true"
            ),
        )
        .await;
    }

    /// ovn-nbctl, whichever member leads.
    async fn northbound(&self, command: &str) -> String {
        let at = self.database(6641).await;
        let script = format!("ovn-nbctl --no-leader-only --timeout=60 --db={at} {command}");
        self.sh("hv1", &script).await
    }

    /// The members of one of OVN's databases that are there.
    async fn database(&self, port: u16) -> String {
        let status = self.status().await.unwrap();
        let members: Vec<String> = status
            .nodes
            .iter()
            .filter(|node| node.name.starts_with("ovn") && node.observed.on)
            .map(|node| format!("tcp:{}:{port}", node.address))
            .collect();
        members.join(",")
    }

    /// Whether packets get through now. The first one may be lost: it makes the flows.
    async fn reaches(&self, host: &str, from: u8, to: u8) {
        let ping = format!("ip netns exec vm{from} ping -q -i 0.2 -w 20 -c 3 192.0.2.{to}");
        self.sh(host, &ping).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interface_that_the_switch_has_put_down_by_mistake_comes_up_again() {
    let lab = lab(LabConfig::with_hypervisors("taps", &[Flavour::Bookworm])).await;
    // As Nova and libvirt do it: the port is there before the interface. Some of them lose the race
    // that lab/src/node/hypervisor.rs tells of; the last one is put down for sure.
    lab.sh(
        "hv1",
        "for i in $(seq 100); do ovs-vsctl --no-wait add-port br-int tap$i
         ip tuntap add tap$i mode tap; ip link set tap$i up; done
         ovs-vsctl --timeout=60 wait-until Interface tap100 'ofport>=1'
         ip link set tap100 down
         timeout 60 sh -c 'while ip -o link show | grep tap | grep -qv \"[<,]UP[>,]\"; do sleep 0.1; done'",
    )
    .await;
    lab.down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_flow_while_a_bond_member_and_the_southbound_leader_die() {
    let mut config = LabConfig::with_hypervisors("networks", &[Flavour::Bookworm, Flavour::Trixie]);
    config.ovn = true;
    let lab = lab(config).await;
    for member in ["ovn1", "ovn2", "ovn3"] {
        lab.sh(member, JOINED).await;
    }
    lab.plug("hv1", 1).await;
    lab.plug("hv2", 2).await;
    lab.reaches("hv1", 1, 2).await;
    let tunnels = lab.run("hv1", &["ovs-vsctl", "show"]).await;
    assert!(tunnels.contains("type: geneve"), "{tunnels}");

    // One member of the bond is cut: the other carries on.
    lab.fault(Fault::Cut, "hv1/eno1").await.unwrap();
    let wait = |state: &str| {
        format!("ovs-vsctl --timeout=60 wait-until Interface eno1 lacp_current={state}")
    };
    lab.sh("hv1", &wait("false")).await;
    lab.reaches("hv1", 1, 2).await;
    lab.fault(Fault::Heal, "hv1/eno1").await.unwrap();
    lab.sh("hv1", &wait("true")).await;

    // The leader's machine loses its power: the others choose a new one, and changes arrive.
    let mut leader = None;
    for member in ["ovn1", "ovn2", "ovn3"] {
        if lab.attempt(member, &["sh", "-c", LEADER]).await.is_ok() {
            leader = Some(member);
        }
    }
    let leader = leader.expect("a leader");
    let silent = Report::silent();
    lab.power(leader, Power::Loss, &silent).await.unwrap();
    lab.reaches("hv1", 1, 2).await;
    lab.plug("hv1", 3).await;
    lab.reaches("hv2", 2, 3).await;

    // It comes back as a member.
    lab.power(leader, Power::On, &silent).await.unwrap();
    let joined =
        "timeout 60 ovsdb-client wait unix:/run/ovn/ovnsb_db.sock OVN_Southbound connected";
    lab.sh(leader, joined).await;

    // A reboot of the switch cuts everybody off for a moment; bonds negotiate again.
    lab.power("tor", Power::Reboot, &silent).await.unwrap();
    lab.sh("hv1", &wait("true")).await;
    lab.sh("hv2", &wait("true")).await;
    lab.reaches("hv1", 1, 2).await;

    // ovn-controller crashes when the southbound database has not been filled yet, as in a region
    // that is just being made. It is started again until northd has come round to it.
    let members = ["ovn1", "ovn2", "ovn3"];
    let northd = |order| format!("ovs-appctl -t /run/ovn/ovn-northd.*.ctl {order}");
    for member in members {
        lab.sh(member, &northd("pause")).await;
    }
    let southbound = lab.database(6642).await;
    lab.sh(
        "hv2",
        &format!("ovn-sbctl --db={southbound} --timeout=60 destroy SB_Global ."),
    )
    .await;
    // More often than systemd's usual limit. The first of these lines may come before anybody listens.
    lab.sh(
        "hv2",
        "systemctl restart ovn-controller
         timeout 60 journalctl --follow --lines=0 --unit=ovn-controller | \
         grep -qE 'restart counter is at ([7-9]|[1-9][0-9]+)'",
    )
    .await;
    for member in members {
        lab.sh(member, &northd("resume")).await;
    }
    lab.plug("hv2", 4).await;
    lab.reaches("hv1", 1, 4).await;
    lab.down().await.unwrap();
}
