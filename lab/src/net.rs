//! Addresses, the bridge of a cluster and the links of nodes.
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

/// What a node's network looks like; made anew at each boot, as after a real power cycle.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeLink {
    /// The network namespace.
    pub netns: String,
    /// The machine's end of the cable.
    pub link: String,
    /// The cluster's bridge.
    pub bridge: String,
    /// The cluster's addresses.
    pub subnets: Subnets,
    /// The node's number, from 1.
    pub index: u8,
    /// The numbers of all nodes of the cluster.
    pub count: u8,
}

impl NodeLink {
    /// Plugs the node in.
    pub async fn plug(&self) -> Result<()> {
        let Self {
            netns,
            link,
            bridge,
            subnets,
            index,
            count,
        } = self;
        run("ip", ["netns", "add", netns]).await?;
        let mut lines = vec![
            format!("link add {link} type veth peer name eth0 netns {netns}"),
            format!("link set {link} master {bridge} up"),
            // The machine itself reaches pods too: webhooks, tests.
            format!(
                "route replace {} via {}",
                subnets.pods_of(*index),
                subnets.node(*index)
            ),
        ];
        batch(&lines).await?;
        lines = vec![
            "link set lo up".into(),
            format!("addr add {}/24 dev eth0", subnets.node(*index)),
            "link set eth0 up".into(),
            // Only for the look-up: kube-proxy rewrites the address.
            format!("route add {} dev eth0", subnets.services()),
        ];
        for other in (1..=*count).filter(|other| other != index) {
            lines.push(format!(
                "route add {} via {}",
                subnets.pods_of(other),
                subnets.node(other)
            ));
        }
        Run::new("ip", ["-n", netns, "-batch", "-"])
            .input(lines.join("\n"))
            .output()
            .await
            .with_context(|| format!("failed to set up the network of {netns}"))
            .map(drop)
    }

    /// Unplugs it and forgets the namespace. What is gone already is fine.
    pub async fn unplug(&self) {
        // Deleting the link first makes it vanish at once; with the namespace alone it lingers.
        drop(run("ip", ["link", "del", &self.link]).await);
        drop(run("ip", ["netns", "del", &self.netns]).await);
    }

    /// Pulls or reconnects the cable.
    pub async fn set_carrier(&self, connected: bool) -> Result<()> {
        let state = if connected { "up" } else { "down" };
        run("ip", ["link", "set", &self.link, state]).await?;
        if connected {
            // The kernel dropped the route with the link.
            let (pods, node) = (
                self.subnets.pods_of(self.index),
                self.subnets.node(self.index),
            );
            run("ip", ["route", "replace", &pods, "via", &node.to_string()]).await?;
        }
        Ok(())
    }
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
        let mut seen: Vec<(Ipv4Addr, u8)> = Vec::new();
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
