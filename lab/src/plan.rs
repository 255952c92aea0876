//! Which machines a lab has: names, addresses, cables. Pure, so that every machine can know all
//! the others before the first one boots.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cluster::Role;
use crate::config::LabConfig;
use crate::net::{Block, Cable, PodRoutes, Subnets};
use crate::sweep;
use crate::tree::Suite;

/// What a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A node of a Kubernetes cluster.
    Node,
    /// The same with libvirt, Open vSwitch and OVN; also without Kubernetes.
    Hypervisor,
    /// A member of OVN's databases.
    Ovn,
    /// OpenStack's control plane.
    Openstack,
    /// The switch that the hypervisors' bonds end at.
    Switch,
}

/// The software of a hypervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Flavour {
    /// Debian 12: libvirt 9.0, QEMU 7.2, Open vSwitch 3.1.
    Bookworm,
    /// Debian 13: libvirt 11.3, QEMU 10.0, Open vSwitch 3.5.
    Trixie,
    /// Debian 13 with libvirt's Cloud Hypervisor driver; its VMM is a stand-in.
    CloudHypervisor,
}

impl Flavour {
    /// The release that it is made of.
    pub fn suite(self) -> Suite {
        match self {
            Self::Bookworm => Suite::Bookworm,
            Self::Trixie | Self::CloudHypervisor => Suite::Trixie,
        }
    }
}

/// A machine to be.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its name, also its host name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The Kubernetes cluster that it is a node of.
    pub cluster: Option<Role>,
    /// Its number among its like, from 1.
    pub index: u8,
    /// Its address.
    pub address: Ipv4Addr,
    /// The name of its control group and network namespace.
    pub group: String,
    /// The outer end of its cable.
    pub link: String,
    /// The bridge that it is on.
    pub bridge: String,
    /// Its software.
    pub flavour: Flavour,
    /// How many NUMA cells it shows; 0: those of the machine below.
    pub numa_cells: u8,
    /// Kubernetes' routes; also of a machine beside the nodes.
    pub pods: Option<PodRoutes>,
    /// Cables to other machines.
    pub cables: Vec<Cable>,
}

/// All machines of a lab.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The lab's addresses.
    pub block: Block,
    /// The machines.
    pub machines: Vec<Machine>,
}

/// The cluster whose network OVN, OpenStack and the hypervisors share.
pub const REGION: Role = Role::Hypervisor;

/// The name of the switch.
pub const SWITCH: &str = "tor";

/// The name of the machine that OpenStack's control plane runs on.
pub const OPENSTACK: &str = "openstack";

/// How many members OVN's databases have.
const OVN_MEMBERS: u8 = 3;

/// The members of every hypervisor's bond.
pub const BOND_MEMBERS: [&str; 2] = ["eno1", "eno2"];

impl Plan {
    /// The machines of a lab with this id.
    pub fn new(config: &LabConfig, id: &str, block: Block) -> Self {
        let mut machines = Vec::new();
        let flavours = config.flavours();
        for cluster in &config.clusters {
            let subnets = block.cluster(cluster.role.index());
            let place = Place::new(id, cluster.role, subnets);
            for index in 1..=cluster.nodes {
                let (kind, prefix) = match cluster.hypervisors {
                    Some(_) => (Kind::Hypervisor, "hv".to_owned()),
                    None => (Kind::Node, cluster.role.letter().to_string()),
                };
                let name = format!("{prefix}{index}");
                let mut machine = place.machine(name, kind, index, subnets.node(index));
                machine.link = format!("{}{index}", place.bridge);
                if kind == Kind::Hypervisor
                    && let Some(flavour) = flavours.get(usize::from(index) - 1)
                {
                    machine.flavour = *flavour;
                }
                if cluster.kubernetes {
                    machine.cluster = Some(cluster.role);
                    machine.pods = Some(PodRoutes {
                        subnets,
                        own: Some(index),
                        count: cluster.nodes,
                    });
                }
                if kind == Kind::Hypervisor {
                    let cells = cluster.numa_cells.get(usize::from(index) - 1).copied();
                    machine.numa_cells = cells.unwrap_or(if index == 1 { 2 } else { 0 });
                }
                machines.push(machine);
            }
        }
        let subnets = block.cluster(REGION.index());
        let place = Place::new(id, REGION, subnets);
        if config.openstack.is_some() {
            machines.push(place.control(OPENSTACK.into(), Kind::Openstack, 1, 0));
        }
        if config.ovn {
            for index in 1..=OVN_MEMBERS {
                machines.push(place.control(format!("ovn{index}"), Kind::Ovn, index, index));
            }
            if machines.iter().any(|m| m.kind == Kind::Hypervisor) {
                let rack = format!("{}rack", sweep::group_prefix(id));
                let mut switch = place.control(SWITCH.into(), Kind::Switch, 1, 10);
                for node in &mut machines {
                    if node.kind == Kind::Hypervisor {
                        connect(&rack, &mut switch, node);
                    }
                }
                machines.push(switch);
            }
        }
        // Pods talk to the machines beside the nodes, too.
        let pods = machines.iter().find_map(|machine| {
            let pods = machine.pods.clone();
            pods.filter(|_| machine.cluster == Some(REGION))
        });
        for machine in machines.iter_mut().filter(|m| m.cluster.is_none()) {
            machine.pods = pods.clone().map(|pods| PodRoutes { own: None, ..pods });
        }
        Self { block, machines }
    }

    /// Name and address of every machine.
    pub fn hosts(&self) -> Vec<(String, Ipv4Addr)> {
        self.machines
            .iter()
            .map(|machine| (machine.name.clone(), machine.address))
            .collect()
    }

    /// The rack and the cables in it: pairs of ends, by their names there.
    pub fn cables(&self) -> Option<(String, Vec<(String, String)>)> {
        let ends: Vec<&Cable> = self
            .of(Kind::Hypervisor)
            .flat_map(|machine| &machine.cables)
            .collect();
        let pairs = ends.iter().map(|cable| {
            let other = format!("{SWITCH}.{}", cable.peer_name);
            (cable.parked.clone(), other)
        });
        Some((ends.first()?.rack.clone(), pairs.collect()))
    }

    /// The machines of one kind.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Machine> {
        self.machines.iter().filter(move |m| m.kind == kind)
    }

    /// The addresses of OVN's databases; none without OVN.
    pub fn ovn(&self) -> Vec<Ipv4Addr> {
        self.of(Kind::Ovn).map(|machine| machine.address).collect()
    }

    /// The address of OpenStack's control plane.
    pub fn openstack(&self) -> Option<Ipv4Addr> {
        self.of(Kind::Openstack).map(|m| m.address).next()
    }
}

/// The bridge of a cluster.
pub fn bridge(id: &str, role: Role) -> String {
    format!("{}{}", sweep::link_prefix(id), role.letter())
}

/// What the machines of one bridge have in common.
struct Place<'a> {
    id: &'a str,
    bridge: String,
    subnets: Subnets,
}

impl<'a> Place<'a> {
    fn new(id: &'a str, role: Role, subnets: Subnets) -> Self {
        Self {
            id,
            bridge: bridge(id, role),
            subnets,
        }
    }

    fn machine(&self, name: String, kind: Kind, index: u8, address: Ipv4Addr) -> Machine {
        Machine {
            kind,
            cluster: None,
            index,
            address,
            group: format!("{}{name}", sweep::group_prefix(self.id)),
            link: String::new(),
            bridge: self.bridge.clone(),
            flavour: Flavour::Bookworm,
            numa_cells: 0,
            pods: None,
            cables: Vec::new(),
            name,
        }
    }

    fn control(&self, name: String, kind: Kind, index: u8, place: u8) -> Machine {
        let mut machine = self.machine(name, kind, index, self.subnets.control(place));
        machine.link = format!("{}x{place}", self.bridge);
        machine
    }
}

/// Two cables from a hypervisor to the switch.
fn connect(rack: &str, switch: &mut Machine, node: &mut Machine) {
    for (number, member) in BOND_MEMBERS.iter().enumerate() {
        let port = switch_port(&node.name, number);
        let end = |here: &Machine, name: &str, there: &Machine, peer_name: &str| Cable {
            name: name.to_owned(),
            parked: format!("{}.{name}", here.name),
            rack: rack.to_owned(),
            peer: there.group.clone(),
            peer_name: peer_name.to_owned(),
        };
        let (inner, outer) = (
            end(node, member, switch, &port),
            end(switch, &port, node, member),
        );
        node.cables.push(inner);
        switch.cables.push(outer);
    }
}

/// The switch's port for a member of a node's bond, counted from 0.
pub fn switch_port(node: &str, member: usize) -> String {
    format!("{node}-{}", member + 1)
}

/// A directory or file that a machine sees at another place.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bind {
    /// On the machine below.
    pub from: PathBuf,
    /// Inside, without the leading slash.
    pub to: PathBuf,
    /// Whether it is protected.
    pub read_only: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OpenStackConfig;

    fn region(nodes: u8) -> Plan {
        let mut config = LabConfig::region("region", nodes);
        config.openstack = Some(OpenStackConfig::default());
        let block = serde_json::from_str("{\"octet\":128}").unwrap();
        Plan::new(&config, "0a1f", block)
    }

    #[test]
    fn everything_has_a_name_and_an_address_of_its_own() {
        let plan = region(100);
        let mut names: Vec<String> = Vec::new();
        for machine in &plan.machines {
            names.extend([
                machine.name.clone(),
                machine.address.to_string(),
                machine.link.clone(),
            ]);
            for cable in &machine.cables {
                names.push(cable.parked.clone());
            }
        }
        // The kernel's limit of interface names.
        assert!(plan.machines.iter().all(|m| m.link.len() <= 15));
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn machines_beside_the_nodes_know_the_way_to_all_pods() {
        let plan = region(2);
        for machine in &plan.machines {
            let pods = machine.pods.as_ref().unwrap();
            let own = machine.cluster.map(|_| machine.index);
            assert_eq!((pods.own, pods.count), (own, 2), "{}", machine.name);
        }
        let plain = LabConfig::with_hypervisors("plain", &[Flavour::Bookworm]);
        let plain = Plan::new(&plain, "0a1f", plan.block);
        assert!(plain.machines.iter().all(|machine| machine.pods.is_none()));
    }

    #[test]
    fn both_ends_of_a_cable_agree() {
        let plan = region(3);
        let (_, pairs) = plan.cables().unwrap();
        assert_eq!(pairs.len(), 6);
        let ends: Vec<&Cable> = plan.machines.iter().flat_map(|m| &m.cables).collect();
        for (one, other) in pairs {
            let find = |parked: &str| ends.iter().find(|cable| cable.parked == parked).unwrap();
            let (one, other) = (find(&one), find(&other));
            assert_eq!((&one.name, &other.name), (&other.peer_name, &one.peer_name));
            assert!(one.parked.len() <= 15 && other.parked.len() <= 15);
        }
    }
}
