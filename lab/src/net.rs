//! Addresses, the bridge of a cluster and the cables of its machines.
//!
//! A lab owns one /13 of 10.128.0.0/9. Its first act is an `unreachable` route for all of it,
//! so that no packet for a lab address can leave the machine when a bridge is missing; adding
//! that route is also how the range is reserved, so two labs cannot take the same one. Nodes
//! have no default route, and the machine does not forward.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::command::{Run, run};

/// Low priority: every real route is preferred to the guard.
const GUARD_METRIC: &str = "4000";

/// The addresses of one lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The second octet of the first address; a multiple of 8, at least 128.
    octet: u8,
}

/// The addresses of one cluster within its lab's block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnets {
    block: Block,
    cluster: u8,
}

impl Block {
    /// The blocks that overlap nothing the machine has a route to.
    pub async fn candidates() -> Result<Vec<Self>> {
        let routes = Run::new("ip", ["-4", "route", "show", "table", "all"])
            .output()
            .await?;
        let taken = parse_routes(&routes);
        let free = (128..=248)
            .step_by(8)
            .map(|octet| Self { octet })
            .filter(|block| {
                !taken
                    .iter()
                    .any(|&range| overlaps(range, (block.first(), 13)))
            })
            .collect();
        Ok(free)
    }

    /// Adds the guard route; false when another lab was faster.
    pub async fn take(self) -> bool {
        let route = [
            "route",
            "add",
            "unreachable",
            &self.range(),
            "metric",
            GUARD_METRIC,
        ];
        run("ip", route).await.is_ok()
    }

    /// Gives the block back.
    pub async fn release(self) -> Result<()> {
        run(
            "ip",
            [
                "route",
                "del",
                "unreachable",
                &self.range(),
                "metric",
                GUARD_METRIC,
            ],
        )
        .await
    }

    /// The addresses of the cluster with this index.
    pub fn cluster(self, cluster: u8) -> Subnets {
        Subnets {
            block: self,
            cluster,
        }
    }

    /// The address at which a hypervisor ends its tunnels.
    pub fn tunnel(self, index: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.octet + 6, 0, index.saturating_add(10))
    }

    /// The network of virtual machines; it exists in tunnels only.
    pub fn tenant(self) -> String {
        format!("10.{}.0.0/24", self.octet + 7)
    }

    /// The network of the virtual machines that hypervisors are tried out with.
    pub fn test_tenant(self) -> String {
        format!("10.{}.1.0/24", self.octet + 7)
    }

    /// The whole range in CIDR notation.
    pub fn range(self) -> String {
        format!("{}/13", self.first())
    }

    fn first(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.octet, 0, 0)
    }
}

impl Subnets {
    /// The machine's own address on the cluster's bridge; the API server listens there.
    pub fn machine(self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.block.octet, self.cluster, 1)
    }

    /// The address of a node, counted from 1.
    pub fn node(self, index: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.block.octet, self.cluster, index.saturating_add(10))
    }

    /// The address of a machine that is no node: OpenStack, OVN, switches.
    pub fn control(self, index: u8) -> Ipv4Addr {
        Ipv4Addr::new(
            10,
            self.block.octet,
            self.cluster,
            index.saturating_add(200),
        )
    }

    /// The range of Services.
    pub fn services(self) -> String {
        format!("10.{}.{}.0/24", self.block.octet, 32 + self.cluster)
    }

    /// A Service address: 1 is the API server, 10 is DNS.
    pub fn service(self, index: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.block.octet, 32 + self.cluster, index)
    }

    /// The range of all pods.
    pub fn pods(self) -> String {
        format!("10.{}.0.0/16", self.pod_octet())
    }

    /// The range of one node's pods.
    pub fn pods_of(self, index: u8) -> String {
        format!("10.{}.{index}.0/24", self.pod_octet())
    }

    fn pod_octet(self) -> u8 {
        self.block.octet + 1 + self.cluster
    }
}

/// The bridge of a cluster.
pub async fn add_bridge(name: &str, subnets: Subnets) -> Result<()> {
    batch(&[
        format!("link add {name} type bridge"),
        format!("addr add {}/24 dev {name}", subnets.machine()),
        format!("link set {name} up"),
    ])
    .await
    .with_context(|| format!("failed to make the bridge {name}"))
}

/// What a machine's network looks like; made anew at each boot, as after a real power cycle.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeLink {
    /// The network namespace.
    pub netns: String,
    /// The outer end of the cable to the bridge.
    pub link: String,
    /// The bridge.
    pub bridge: String,
    /// Its address on the bridge.
    pub address: Ipv4Addr,
    /// The routes of a Kubernetes node.
    pub pods: Option<PodRoutes>,
    /// Cables to other machines.
    pub cables: Vec<Cable>,
}

/// How the pods of a cluster's nodes reach each other, and the machines beside the nodes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PodRoutes {
    /// The cluster's addresses.
    pub subnets: Subnets,
    /// The node's number, from 1; none for a machine that has no pods of its own.
    pub own: Option<u8>,
    /// How many nodes the cluster has.
    pub count: u8,
}

/// One end of a cable between two machines. Cables are laid once and outlive the power of both:
/// who loses power disappears from the other end, as on real hardware, and takes no interface
/// away there. While a machine is off its end hangs in the rack, a namespace of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cable {
    /// The interface here.
    pub name: String,
    /// Its name in the rack.
    pub parked: String,
    /// The rack.
    pub rack: String,
    /// The other machine's network namespace.
    pub peer: String,
    /// The interface there.
    pub peer_name: String,
}

/// Lays cables: pairs of ends, by their names in the rack.
pub async fn lay_cables(rack: &str, cables: &[(String, String)]) -> Result<()> {
    if cables.is_empty() {
        return Ok(());
    }
    run("ip", ["netns", "add", rack]).await?;
    let lines: Vec<String> = cables
        .iter()
        .map(|(one, other)| format!("link add {one} type veth peer name {other}"))
        .collect();
    Run::new("ip", ["-n", rack, "-batch", "-"])
        .input(lines.join("\n"))
        .output()
        .await
        .context("failed to lay cables between machines")
        .map(drop)
}

impl NodeLink {
    /// Plugs the machine in.
    pub async fn plug(&self) -> Result<()> {
        let Self {
            netns,
            link,
            bridge,
            address,
            ..
        } = self;
        run("ip", ["netns", "add", netns]).await?;
        let mut outside = vec![
            format!("link add {link} type veth peer name eth0 netns {netns}"),
            format!("link set {link} master {bridge} up"),
        ];
        let mut inside = vec![
            "link set lo up".into(),
            format!("addr add {address}/24 dev eth0"),
            "link set eth0 up".into(),
        ];
        if let Some(PodRoutes {
            subnets,
            own,
            count,
        }) = &self.pods
        {
            if let Some(index) = *own {
                // The machine itself reaches pods too: webhooks, tests.
                let pods = subnets.pods_of(index);
                outside.push(format!("route replace {pods} via {address}"));
                // Only for the look-up: kube-proxy rewrites the address.
                inside.push(format!("route add {} dev eth0", subnets.services()));
            }
            for other in (1..=*count).filter(|other| Some(*other) != *own) {
                let (pods, via) = (subnets.pods_of(other), subnets.node(other));
                inside.push(format!("route add {pods} via {via}"));
            }
        }
        batch(&outside).await?;
        Run::new("ip", ["-n", netns, "-batch", "-"])
            .input(inside.join("\n"))
            .output()
            .await
            .with_context(|| format!("failed to set up the network of {netns}"))?;
        for cable in &self.cables {
            let Cable {
                name, parked, rack, ..
            } = cable;
            let here = [
                "-n", rack, "link", "set", parked, "netns", netns, "name", name,
            ];
            run("ip", here).await?;
            run("ip", ["-n", netns, "link", "set", name, "up"]).await?;
        }
        Ok(())
    }

    /// Unplugs it and forgets the namespace. What is gone already is fine.
    pub async fn unplug(&self) {
        let netns = &self.netns;
        for cable in &self.cables {
            let Cable {
                name, parked, rack, ..
            } = cable;
            drop(run("ip", ["-n", netns, "link", "set", name, "down"]).await);
            let back = [
                "-n", netns, "link", "set", name, "netns", rack, "name", parked,
            ];
            drop(run("ip", back).await);
        }
        // Deleting the link first makes it vanish at once; with the namespace alone it lingers.
        drop(run("ip", ["link", "del", &self.link]).await);
        drop(run("ip", ["netns", "del", netns]).await);
    }

    /// Pulls or reconnects the cable to the bridge.
    pub async fn set_carrier(&self, connected: bool) -> Result<()> {
        run("ip", ["link", "set", &self.link, state(connected)]).await?;
        let own = self.pods.as_ref().and_then(|pods| Some((pods, pods.own?)));
        if let Some((pods, index)) = own.filter(|_| connected) {
            // The kernel dropped the route with the link.
            let (pods, node) = (pods.subnets.pods_of(index), self.address.to_string());
            run("ip", ["route", "replace", &pods, "via", &node]).await?;
        }
        Ok(())
    }

    /// Pulls or reconnects a cable to another machine, at the other end, as a switch would.
    pub async fn set_cable(&self, cable: &Cable, connected: bool) -> Result<()> {
        let (peer, name) = (&cable.peer, &cable.peer_name);
        run("ip", ["-n", peer, "link", "set", name, state(connected)]).await
    }
}

fn state(connected: bool) -> &'static str {
    if connected { "up" } else { "down" }
}

async fn batch(lines: &[String]) -> Result<()> {
    Run::new("ip", ["-batch", "-"])
        .input(lines.join("\n"))
        .output()
        .await
        .map(drop)
}

/// The destinations in the output of `ip route`.
fn parse_routes(text: &str) -> Vec<(Ipv4Addr, u8)> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let first = words.next()?;
            let kinds = [
                "unreachable",
                "local",
                "broadcast",
                "blackhole",
                "prohibit",
                "throw",
            ];
            let destination = if kinds.contains(&first) {
                words.next()?
            } else {
                first
            };
            let (address, length) = destination.split_once('/').unwrap_or((destination, "32"));
            Some((address.parse().ok()?, length.parse().ok()?))
        })
        .collect()
}

fn overlaps(a: (Ipv4Addr, u8), b: (Ipv4Addr, u8)) -> bool {
    let shorter = a.1.min(b.1);
    // A route to everything says nothing about a lab's range.
    if shorter == 0 {
        return false;
    }
    let mask = u32::MAX << (32 - u32::from(shorter.min(32)));
    u32::from(a.0) & mask == u32::from(b.0) & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_every_kind_are_seen() {
        let text = "default via 192.0.2.1 dev eth0\n192.0.2.0/24 dev eth0 proto kernel\n\
                    unreachable 10.128.0.0/13 metric 4000\nlocal 10.136.0.1 dev cb table local\n";
        assert_eq!(
            parse_routes(text),
            [
                (Ipv4Addr::new(192, 0, 2, 0), 24),
                (Ipv4Addr::new(10, 128, 0, 0), 13),
                (Ipv4Addr::new(10, 136, 0, 1), 32),
            ]
        );
    }

    #[test]
    fn only_real_overlaps_count() {
        let block = (Ipv4Addr::new(10, 136, 0, 0), 13);
        for (address, length, expected) in [
            ([10, 143, 255, 255], 32, true),
            ([10, 0, 0, 0], 8, true),
            ([10, 144, 0, 0], 13, false),
            ([0, 0, 0, 0], 0, false),
        ] {
            assert_eq!(
                overlaps((address.into(), length), block),
                expected,
                "{address:?}"
            );
        }
    }

    #[test]
    fn ranges_of_one_lab_are_apart() {
        let block = Block { octet: 248 };
        let mut seen: Vec<(Ipv4Addr, u8)> = parse_routes(&format!(
            "{}/24\n{}",
            Ipv4Addr::from(u32::from(block.tunnel(0)) & 0xffff_ff00),
            block.tenant()
        ));
        seen.extend(parse_routes(&block.test_tenant()));
        assert!(seen.iter().all(|&r| overlaps(r, (block.first(), 13))));
        for index in 0..5 {
            let subnets = block.cluster(index);
            for range in [
                format!("{}/24", subnets.machine()),
                subnets.services(),
                subnets.pods(),
            ] {
                let range = parse_routes(&range).pop().unwrap();
                assert!(overlaps(range, (block.first(), 13)), "{range:?} is outside");
                assert!(
                    !seen.iter().any(|&other| overlaps(other, range)),
                    "{range:?}"
                );
                seen.push(range);
            }
        }
    }
}
