//! The machines of OVN's control plane, and the switch that hypervisors are cabled to.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Node;
use super::files::Layer;
use crate::command::patience;
use crate::plan::{BOND_MEMBERS, Kind, Machine, switch_port};

const NORTHBOUND: u16 = 6641;
const SOUTHBOUND: u16 = 6642;

/// Where clients find the northbound database.
pub fn northbound(members: &[Ipv4Addr]) -> String {
    remotes(members, NORTHBOUND)
}

/// Where clients find the southbound database.
pub fn southbound(members: &[Ipv4Addr]) -> String {
    remotes(members, SOUTHBOUND)
}

fn remotes(members: &[Ipv4Addr], port: u16) -> String {
    let all: Vec<String> = members
        .iter()
        .map(|address| format!("tcp:{address}:{port}"))
        .collect();
    all.join(",")
}

/// One member of both databases, with a northd; the northds choose the active one among them.
pub fn member(layer: &Layer, machine: &Machine, members: &[Ipv4Addr]) -> Result<()> {
    let own = machine.address;
    let mut options = vec![
        format!("--ovn-northd-nb-db={}", northbound(members)),
        format!("--ovn-northd-sb-db={}", southbound(members)),
    ];
    for database in ["nb", "sb"] {
        options.extend([
            format!("--db-{database}-addr={own}"),
            format!("--db-{database}-create-insecure-remote=yes"),
            format!("--db-{database}-cluster-local-addr={own}"),
            // A leader that is gone is missed after a second.
            format!("--db-{database}-election-timer=1000"),
        ]);
        if let Some(first) = members.first().filter(|&&first| first != own) {
            options.push(format!("--db-{database}-cluster-remote-addr={first}"));
        }
    }
    layer.put(
        "etc/default/ovn-central",
        &format!("OVN_CTL_OPTS=\"{}\"\n", options.join(" ")),
    )?;
    layer.enable(&["ovn-central.service"])
}

/// Waits until a member has joined the clusters of both databases: its units are started long before
/// that.
pub async fn wait_until_joined(node: &Node) -> Result<()> {
    if node.spec.kind != Kind::Ovn {
        return Ok(());
    }
    let timeout = format!("--timeout={}", patience(Duration::from_secs(60)).as_secs());
    for (part, database) in [("nb", "OVN_Northbound"), ("sb", "OVN_Southbound")] {
        let server = format!("unix:/run/ovn/ovn{part}_db.sock");
        // It connects again and again until the server runs.
        let wait = [
            "ovsdb-client",
            &timeout,
            "wait",
            &server,
            database,
            "connected",
        ];
        node.output(&wait)
            .await
            .with_context(|| format!("{} does not join {database}", node.spec.name))?;
    }
    Ok(())
}

/// The other end of every hypervisor's bond.
pub fn switch<'a>(layer: &Layer, hypervisors: impl Iterator<Item = &'a Machine>) -> Result<()> {
    let mut commands =
        vec!["--may-exist add-br br-tor -- set Bridge br-tor datapath_type=netdev".to_owned()];
    for node in hypervisors {
        let ports: Vec<String> = (0..BOND_MEMBERS.len())
            .map(|number| switch_port(&node.name, number))
            .collect();
        commands.push(format!(
            "--may-exist add-bond br-tor bond-{} {} {BOND_SETTINGS}",
            node.name,
            ports.join(" ")
        ));
    }
    network_unit(layer, &format!("ovs-vsctl {}\n", commands.join(" -- ")))?;
    layer.enable(&["openvswitch-switch.service", NETWORK_UNIT])
}

/// Both ends negotiate actively and miss a silent partner after three seconds.
pub const BOND_SETTINGS: &str = "lacp=active bond_mode=balance-tcp other_config:lacp-time=fast";

/// The unit that sets bridges up once the switch process runs.
pub const NETWORK_UNIT: &str = "lab-network.service";

/// Writes it; `script` may run at every boot.
pub fn network_unit(layer: &Layer, script: &str) -> Result<()> {
    layer.program(
        "usr/local/sbin/lab-network",
        &format!("#!/bin/sh\nset -e\n{script}"),
    )?;
    layer.put(
        &format!("etc/systemd/system/{NETWORK_UNIT}"),
        "[Unit]\nDescription=bridges and bonds\nRequires=ovs-vswitchd.service\n\
         After=ovs-vswitchd.service\nBefore=ovn-controller.service libvirtd.service\n\
         [Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/local/sbin/lab-network\n",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_know_every_member() {
        let members = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
        assert_eq!(southbound(&members), "tcp:10.0.0.1:6642,tcp:10.0.0.2:6642");
    }
}
