//! What a lab shall be, and the two files by which others know it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::cluster::{ClusterConfig, Role};
use crate::light::LightConfig;
use crate::net::Block;
use crate::paths::write_atomic;
use crate::plan::{Flavour, REGION};
use crate::setup::Prepared;

/// What a person or a test asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LabConfig {
    /// Its name; labs of different names live side by side.
    pub name: String,
    /// Its clusters.
    #[serde(default)]
    pub clusters: Vec<ClusterConfig>,
    /// OVN's databases and northd; hypervisors join them.
    #[serde(default)]
    pub ovn: bool,
    /// OpenStack's control plane; hypervisors join it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub openstack: Option<OpenStackConfig>,
    /// OpenStack without machines: real services, fake hypervisors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub light: Option<LightConfig>,
    /// A Redfish BMC for each node.
    #[serde(default)]
    pub bmc: bool,
    /// A process whose end ends the lab; none for a lab that stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
}

/// What OpenStack shall have.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenStackConfig {
    /// How many servers are booted before the lab is ready.
    #[serde(default)]
    pub servers: u8,
    /// MiB per second for live migrations; 0 for no limit. A few make them slow enough to watch.
    #[serde(default)]
    pub migration_bandwidth: u32,
}

impl LabConfig {
    /// Checks it, so that mistakes are told before anything is started.
    pub fn validate(&self) -> Result<()> {
        let name = &self.name;
        let well_formed = !name.is_empty()
            && name.len() <= 32
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        if !well_formed {
            bail!(
                "the lab's name {name:?} must have 1 to 32 of a-z, 0-9 and -, and not begin with -"
            );
        }
        if self.clusters.is_empty() && !self.ovn && self.openstack.is_none() && self.light.is_none()
        {
            bail!("a lab needs a cluster, OVN or OpenStack");
        }
        for (index, cluster) in self.clusters.iter().enumerate() {
            self.validate_cluster(cluster)?;
            if self
                .clusters
                .iter()
                .take(index)
                .any(|other| other.role == cluster.role)
            {
                bail!("the {} cluster is named twice", cluster.role.name());
            }
        }
        if self.openstack.is_some() && !self.ovn {
            bail!("openstack needs ovn: Neutron keeps its networks there");
        }
        if self.openstack.is_some() && self.light.is_some() {
            bail!("openstack and openstack-light exclude each other");
        }
        if let Some(openstack) = self.openstack.as_ref().filter(|o| o.servers > 0) {
            let hosts = self.hypervisors().map_or(0, |cluster| cluster.nodes);
            if hosts == 0 {
                bail!("{} servers need hypervisors to run on", openstack.servers);
            }
        }
        if self.bmc && !self.clusters.iter().any(|cluster| cluster.nodes > 0) {
            bail!("bmc needs nodes whose power it switches");
        }
        Ok(())
    }

    fn validate_cluster(&self, cluster: &ClusterConfig) -> Result<()> {
        let role = cluster.role.name();
        if cluster.nodes > MAX_NODES {
            bail!(
                "{} nodes in the {role} cluster are more than {MAX_NODES}; for tests about \
                 thousands use --played-nodes",
                cluster.nodes,
            );
        }
        if cluster.played_nodes > MAX_PLAYED_NODES {
            bail!(
                "{} played nodes are more than {MAX_PLAYED_NODES}",
                cluster.played_nodes
            );
        }
        if cluster.kubernetes && cluster.nodes > 0 && !cluster.controllers {
            bail!("the {role} cluster has nodes and no controllers");
        }
        match &cluster.hypervisors {
            Some(_) if cluster.role != REGION => {
                bail!("only the {} cluster has hypervisors", REGION.name())
            }
            Some(_) if cluster.nodes == 0 => bail!("hypervisors need nodes"),
            Some(flavours) if flavours.len() > usize::from(cluster.nodes) => {
                bail!(
                    "{} flavours for {} nodes: name at most one for each",
                    flavours.len(),
                    cluster.nodes
                )
            }
            None if !cluster.kubernetes => bail!("nodes without Kubernetes must be hypervisors"),
            _ => Ok(()),
        }
    }

    /// Whether anything of it is a machine in namespaces, which needs root.
    pub fn has_machines(&self) -> bool {
        self.ovn || self.openstack.is_some() || self.clusters.iter().any(|c| c.nodes > 0)
    }

    /// The cluster of hypervisors.
    pub fn hypervisors(&self) -> Option<&ClusterConfig> {
        self.clusters
            .iter()
            .find(|cluster| cluster.hypervisors.is_some())
    }

    /// The software of every hypervisor, in their order.
    pub fn flavours(&self) -> Vec<Flavour> {
        // Servers of OpenStack move, and QEMU 7.2 loses what an emulated guest writes meanwhile:
        // its dirty log misses writes by way of translations that the guest has had before.
        let usual = match self.openstack {
            Some(_) => Flavour::Trixie,
            None => Flavour::Bookworm,
        };
        let cluster = self.hypervisors();
        let named = cluster.and_then(|cluster| cluster.hypervisors.as_deref());
        let named = named.unwrap_or_default();
        let count = cluster.map_or(0, |cluster| usize::from(cluster.nodes));
        let all = named.iter().copied().chain(std::iter::repeat(usual));
        all.take(count).collect()
    }

    /// Whether any part of it is Kubernetes.
    pub fn has_kubernetes(&self) -> bool {
        self.clusters.iter().any(|cluster| cluster.kubernetes)
    }

    /// A lab without anything yet.
    pub fn empty(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            clusters: Vec::new(),
            ovn: false,
            openstack: None,
            light: None,
            bmc: false,
            owner: None,
        }
    }

    /// Only the API server, without nodes and controllers.
    pub fn api_only(name: impl Into<String>) -> Self {
        let mut cluster = ClusterConfig::new(Role::Hypervisor);
        cluster.controllers = false;
        Self {
            clusters: vec![cluster],
            ..Self::empty(name)
        }
    }

    /// A hypervisor cluster with plain nodes.
    pub fn with_nodes(name: impl Into<String>, nodes: u8) -> Self {
        let mut cluster = ClusterConfig::new(Role::Hypervisor);
        cluster.nodes = nodes;
        Self {
            clusters: vec![cluster],
            ..Self::empty(name)
        }
    }

    /// One of each thing that must be built or downloaded; not a lab that could start.
    pub fn everything() -> Self {
        let flavours = [Flavour::Bookworm, Flavour::Trixie, Flavour::CloudHypervisor];
        let mut config = Self::with_hypervisors("prepare", &flavours);
        for cluster in &mut config.clusters {
            cluster.kubernetes = true;
        }
        config.ovn = true;
        config.openstack = Some(OpenStackConfig::default());
        config.light = Some(LightConfig::hosts(1));
        config.bmc = true;
        config
    }

    /// Hypervisors of these flavours, without Kubernetes.
    pub fn with_hypervisors(name: impl Into<String>, flavours: &[Flavour]) -> Self {
        let mut config = Self::with_nodes(name, u8::try_from(flavours.len()).unwrap_or(u8::MAX));
        for cluster in &mut config.clusters {
            cluster.kubernetes = false;
            cluster.hypervisors = Some(flavours.to_vec());
        }
        config
    }

    /// Everything: Kubernetes, hypervisors, OVN and OpenStack.
    pub fn region(name: impl Into<String>, nodes: u8) -> Self {
        let mut config = Self::with_nodes(name, nodes);
        for cluster in &mut config.clusters {
            cluster.hypervisors = Some(Vec::new());
        }
        config.ovn = true;
        config.openstack = Some(OpenStackConfig::default());
        config
    }
}

/// Addresses of nodes start at .11 of a /24.
pub const MAX_NODES: u8 = 100;

const MAX_PLAYED_NODES: u32 = 20_000;

/// What the supervisor is started with.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Order {
    /// What was asked for.
    pub config: LabConfig,
    /// Who asked; as long as the lab is not ready, their end ends it.
    pub starter: u32,
    /// What it is made of.
    pub prepared: Prepared,
}

/// What a sweep must know of a lab.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Four hexadecimal digits, in the names of everything the lab makes.
    pub id: String,
    /// The lab's name.
    pub name: String,
    /// Its addresses, once they are reserved.
    pub block: Option<Block>,
}

impl Record {
    /// Reads the record of a lab's directory.
    pub fn read(dir: &Path) -> Result<Self> {
        read_json(&dir.join("lab.json"))
    }

    /// Writes it.
    pub fn write(&self, dir: &Path) -> Result<()> {
        write_json(&dir.join("lab.json"), self)
    }
}

/// Reads a JSON file.
pub fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes =
        std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| format!("failed to parse {}", path.display()))
}

/// Writes a JSON file atomically.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    let bytes = serde_json::to_vec_pretty(value).context("failed to encode")?;
    write_atomic(path, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hypervisors_that_are_not_named_have_the_usual_software() {
        let mut config = LabConfig::with_hypervisors("two", &[Flavour::CloudHypervisor]);
        config.clusters[0].nodes = 2;
        let named = Flavour::CloudHypervisor;
        assert_eq!(config.flavours(), [named, Flavour::Bookworm]);
        config.openstack = Some(OpenStackConfig::default());
        assert_eq!(config.flavours(), [named, Flavour::Trixie]);
        assert_eq!(LabConfig::with_nodes("none", 3).flavours(), []);
    }

    #[test]
    fn mistakes_are_told_before_anything_starts() {
        let good = LabConfig::with_nodes("region-1", 3);
        good.validate().unwrap();
        let change = |edit: fn(&mut LabConfig)| {
            let mut config = good.clone();
            edit(&mut config);
            config.validate().unwrap_err().to_string()
        };
        for (error, wanted) in [
            (change(|c| c.name = "Region".into()), "must have 1 to 32"),
            (change(|c| c.name = "../x".into()), "must have 1 to 32"),
            (change(|c| c.clusters.clear()), "needs a cluster"),
            (
                change(|c| c.openstack = Some(OpenStackConfig::default())),
                "needs ovn",
            ),
            (
                change(|c| c.clusters[0].kubernetes = false),
                "must be hypervisors",
            ),
            (
                change(|c| c.clusters[0].hypervisors = Some(vec![Flavour::Trixie; 4])),
                "at most one for each",
            ),
            (
                change(|c| {
                    c.ovn = true;
                    c.openstack = Some(OpenStackConfig {
                        servers: 1,
                        ..OpenStackConfig::default()
                    });
                }),
                "need hypervisors",
            ),
            (change(|c| c.clusters[0].nodes = 101), "--played-nodes"),
            (
                change(|c| c.clusters[0].controllers = false),
                "no controllers",
            ),
            (
                change(|c| c.clusters.extend(c.clusters.clone())),
                "named twice",
            ),
        ] {
            assert!(error.contains(wanted), "{error}");
        }
    }
}
