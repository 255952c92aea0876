//! What makes a node a hypervisor: libvirt with its three doors, Open vSwitch, ovn-controller.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Node;
use super::files::Layer;
use super::ovn::{BOND_SETTINGS, NETWORK_UNIT, network_unit, southbound};
use crate::command::patience;
use crate::pki::Authority;
use crate::plan::{BOND_MEMBERS, Kind, Machine};

const UNITS: &[&str] = &[
    "libvirtd-admin.socket",
    "libvirtd-ro.socket",
    "libvirtd-tcp.socket",
    "libvirtd-tls.socket",
    "libvirtd.service",
    "libvirtd.socket",
    "openvswitch-switch.service",
    "ovn-host.service",
    "virtlockd.socket",
    "virtlogd.socket",
    NETWORK_UNIT,
];

/// The services without which it is none.
pub const SERVICES: [&str; 4] = [
    "libvirtd.service",
    "ovn-controller.service",
    "ovs-vswitchd.service",
    "ovsdb-server.service",
];

/// Writes it. `ovn` are the members of OVN's databases; without them there is no switch either.
pub fn write(
    layer: &Layer,
    machine: &Machine,
    tunnel: Ipv4Addr,
    ovn: &[Ipv4Addr],
    authority: &Authority,
) -> Result<()> {
    let identity = authority.host(&machine.name, machine.address.into())?;
    layer.put("etc/pki/CA/cacert.pem", &authority.pem())?;
    // It serves with it, and calls other hypervisors for migrations.
    for side in ["server", "client"] {
        layer.put(
            &format!("etc/pki/libvirt/{side}cert.pem"),
            &identity.certificate,
        )?;
        layer.secret(
            &format!("etc/pki/libvirt/private/{side}key.pem"),
            &identity.key,
        )?;
    }
    open_vswitch(layer, machine, tunnel, ovn)?;
    layer.enable(UNITS)
}

fn open_vswitch(
    layer: &Layer,
    machine: &Machine,
    tunnel: Ipv4Addr,
    ovn: &[Ipv4Addr],
) -> Result<()> {
    let name = &machine.name;
    layer.put("etc/openvswitch/system-id.conf", &format!("{name}\n"))?;
    let mut ids = vec![
        format!("hostname={name}"),
        // No kernel module is needed.
        "ovn-bridge-datapath-type=netdev".to_owned(),
        "ovn-encap-type=geneve".to_owned(),
        format!("ovn-encap-ip={tunnel}"),
        "ovn-bridge-mappings=physnet1:br-provider,extnet:br-ex".to_owned(),
        "ovn-remote-probe-interval=5000".to_owned(),
        "ovn-openflow-probe-interval=5".to_owned(),
        "ovn-monitor-all=true".to_owned(),
    ];
    if !ovn.is_empty() {
        ids.push(format!("ovn-remote=\\\"{}\\\"", southbound(ovn)));
    }
    let ids: Vec<String> = ids
        .into_iter()
        .map(|id| format!("external-ids:{id}"))
        .collect();
    layer.put(
        "etc/systemd/system/ovsdb-server.service.d/lab.conf",
        &format!(
            "[Service]\nExecStartPost=/usr/bin/ovs-vsctl --no-wait set Open_vSwitch . {}\n",
            ids.join(" ")
        ),
    )?;
    let mut commands: Vec<String> = ["br-int", "br-provider", "br-ex"]
        .iter()
        .map(|bridge| {
            format!("--may-exist add-br {bridge} -- set Bridge {bridge} datapath_type=netdev")
        })
        .collect();
    commands.push("set Bridge br-int fail_mode=secure".to_owned());
    if !machine.cables.is_empty() {
        commands.push(format!(
            "--may-exist add-bond br-provider bond0 {} {BOND_SETTINGS}",
            BOND_MEMBERS.join(" ")
        ));
    }
    network_unit(
        layer,
        &format!(
            "ovs-vsctl {}\nip address replace {tunnel}/24 dev br-provider\n\
             for link in br-provider br-ex br-int; do ip link set $link up; done\n",
            commands.join(" -- ")
        ),
    )
}

/// Waits until the bond has negotiated and OVN knows the hypervisor: both are events of OVSDB.
pub async fn wait_until_joined(node: &Node) -> Result<()> {
    if node.spec.kind != Kind::Hypervisor || node.spec.link.cables.is_empty() {
        return Ok(());
    }
    let seconds = patience(Duration::from_secs(60)).as_secs();
    let timeout = format!("--timeout={seconds}");
    let mut command = vec!["ovs-vsctl", &timeout];
    for (index, member) in BOND_MEMBERS.iter().enumerate() {
        command.extend((index > 0).then_some("--"));
        command.extend(["wait-until", "Interface", member, "lacp_current=true"]);
    }
    node.output(&command)
        .await
        .with_context(|| format!("the bond of {} does not negotiate", node.spec.name))?;
    let chassis = format!(
        "ovn-sbctl --db=$(ovs-vsctl get Open_vSwitch . external-ids:ovn-remote | tr -d '\"') \
         --no-leader-only {timeout} wait-until Chassis {}",
        node.spec.name
    );
    node.output(&["sh", "-c", &chassis])
        .await
        .with_context(|| format!("{} does not join OVN", node.spec.name))
        .map(drop)
}
