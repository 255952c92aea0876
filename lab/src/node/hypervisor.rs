//! What makes a node a hypervisor: libvirt with its three doors, Open vSwitch, ovn-controller.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::files::Layer;
use super::ovn::{BOND_SETTINGS, NETWORK_UNIT, network_unit, southbound};
use super::{Node, NodeSpec};
use crate::command::{patience, run};
use crate::paths::remove_tree;
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
    TAPS_UNIT,
];

/// Keeps the instances' interfaces up. The userspace datapath sets an interface promiscuous by
/// reading its flags and writing them back; when libvirt switches the interface on in between, it
/// is switched off again, for good (seen for 4 of 150 interfaces), and the instance has no network.
const TAPS_UNIT: &str = "lab-taps.service";

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
    layer.program(
        "usr/local/sbin/lab-taps",
        "#!/bin/sh\n\
         ip -o monitor link | while read -r _ name flags _; do\n\
         case $name,$flags in\n\
         tap*,*[\\<,]UP[\\>,]*) ;;\n\
         tap*) ip link set \"${name%:}\" up ;;\n\
         esac\n\
         done\n",
    )?;
    layer.put(
        &format!("etc/systemd/system/{TAPS_UNIT}"),
        "[Unit]\nDescription=keep the interfaces of instances up\nBefore=libvirtd.service\n\
         [Service]\nExecStart=/usr/local/sbin/lab-taps\nRestart=always\n",
    )?;
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
    // It crashes while the southbound database is still empty, until northd has filled it. systemd
    // would give up after five times.
    layer.put(
        "etc/systemd/system/ovn-controller.service.d/lab.conf",
        "[Unit]\nStartLimitIntervalSec=0\n",
    )?;
    let mut commands: Vec<String> = ["br-int", "br-provider", "br-ex"]
        .iter()
        .map(|bridge| {
            format!("--may-exist add-br {bridge} -- set Bridge {bridge} datapath_type=netdev")
        })
        .collect();
    commands.push("set Bridge br-int fail_mode=secure".to_owned());
    let mut silence = String::new();
    if !machine.cables.is_empty() {
        let members = BOND_MEMBERS.join(" ");
        commands.push(format!(
            "--may-exist add-bond br-provider bond0 {members} {BOND_SETTINGS}"
        ));
        // The kernel sees what arrives at a member of the bond, too, and would answer for the
        // tunnel's address with the member's own: who believes that never reaches the tunnel.
        silence = format!(
            "for member in {members}; do echo 8 >/proc/sys/net/ipv4/conf/$member/arp_ignore; done\n"
        );
    }
    network_unit(
        layer,
        &format!(
            "{silence}ovs-vsctl {}\nip address replace {tunnel}/24 dev br-provider\n\
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

/// Where libvirt keeps what it found out about QEMU. Asking costs 1.6 s of CPU on each
/// hypervisor; the answer holds for all of a tree, and libvirt checks itself whether it still does.
const PROBED: &str = "var/cache/libvirt/qemu";

/// What an earlier hypervisor of the same tree found out.
fn kept_probe(spec: &NodeSpec) -> Option<PathBuf> {
    let mut name = spec.layers.last()?.clone().into_os_string();
    name.push(".libvirt");
    Some(name.into())
}

/// Gives a new hypervisor what an earlier one found out.
pub async fn give_probe(spec: &NodeSpec) -> Result<()> {
    match kept_probe(spec) {
        Some(kept) if kept.is_dir() => {
            let to = spec.dir.join(PROBED);
            remove_tree(&to)?;
            copy(&kept, &to).await
        }
        _ => Ok(()),
    }
}

/// Keeps what a hypervisor found out, for later ones.
pub async fn keep_probe(spec: &NodeSpec) -> Result<()> {
    let found = spec.dir.join(PROBED);
    let Some(kept) = kept_probe(spec).filter(|kept| !kept.exists()) else {
        return Ok(());
    };
    let probed = std::fs::read_dir(found.join("capabilities"));
    if probed.is_ok_and(|mut entries| entries.next().is_some()) {
        let partial = kept.with_extension(format!("{}.partial", std::process::id()));
        copy(&found, &partial).await?;
        // Whoever was faster has kept the same.
        if std::fs::rename(&partial, &kept).is_err() {
            remove_tree(&partial)?;
        }
    }
    Ok(())
}

async fn copy(from: &Path, to: &Path) -> Result<()> {
    run("cp", ["-a".as_ref(), from.as_os_str(), to.as_os_str()]).await
}
