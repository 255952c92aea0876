//! What a lab shall be, and the two files by which others know it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::cluster::{ClusterConfig, Role};
use crate::net::Block;
use crate::paths::write_atomic;

/// What a person or a test asks for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LabConfig {
    /// Its name; labs of different names live side by side.
    pub name: String,
    /// Its clusters.
    pub clusters: Vec<ClusterConfig>,
    /// A process whose end ends the lab; none for a lab that stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
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
        if self.clusters.is_empty() {
            bail!("a lab needs at least one cluster");
        }
        for (index, cluster) in self.clusters.iter().enumerate() {
            if cluster.nodes > MAX_NODES {
                bail!(
                    "{} nodes in the {} cluster are more than {MAX_NODES}; for tests about \
                     thousands use --played-nodes",
                    cluster.nodes,
                    cluster.role.name()
                );
            }
            if cluster.played_nodes > MAX_PLAYED_NODES {
                bail!(
                    "{} played nodes are more than {MAX_PLAYED_NODES}",
                    cluster.played_nodes
                );
            }
            if cluster.nodes > 0 && !cluster.controllers {
                bail!(
                    "the {} cluster has nodes and no controllers",
                    cluster.role.name()
                );
            }
            if self
                .clusters
                .iter()
                .take(index)
                .any(|other| other.role == cluster.role)
            {
                bail!("the {} cluster is named twice", cluster.role.name());
            }
        }
        Ok(())
    }

    /// Whether any cluster has real nodes.
    pub fn has_nodes(&self) -> bool {
        self.clusters.iter().any(|cluster| cluster.nodes > 0)
    }

    /// Only the API server, without nodes and controllers.
    pub fn api_only(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            clusters: vec![ClusterConfig {
                role: Role::Hypervisor,
                nodes: 0,
                played_nodes: 0,
                controllers: false,
                audit: false,
            }],
            owner: None,
        }
    }

    /// A hypervisor cluster with real nodes.
    pub fn with_nodes(name: impl Into<String>, nodes: u8) -> Self {
        let mut config = Self::api_only(name);
        for cluster in &mut config.clusters {
            cluster.nodes = nodes;
            cluster.controllers = true;
        }
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
    /// The Kubernetes programs.
    pub bin: PathBuf,
    /// The nodes' tree.
    pub tree: Option<PathBuf>,
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
            (change(|c| c.clusters.clear()), "at least one cluster"),
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
