//! Control groups on the three layouts that machines have: v1 (one hierarchy per controller),
//! hybrid (v1 plus an empty v2 hierarchy) and v2 (one hierarchy).
//!
//! On v1 a node has a group of the same name in every hierarchy. On v2 it has a single group
//! with two leaves, because a group that passes controllers on may hold no process itself:
//! `supply` holds the processes of the machine that carry the node, `node` holds the node.
//! Where systemd runs the machine it owns every group, so the node's group is a scope that
//! systemd delegates.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hierarchy {
    /// Where the machine has it mounted.
    pub path: PathBuf,
    /// `None` for v2, else the mount options that select it (`cpu,cpuacct`, `none,name=systemd`).
    pub options: Option<String>,
}

/// What this machine has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "layout")]
pub enum Layout {
    /// v1, with or without a v2 hierarchy beside it.
    V1 {
        /// All of them.
        hierarchies: Vec<Hierarchy>,
    },
    /// v2 alone.
    V2 {
        /// Where it is mounted.
        root: PathBuf,
        /// Whether systemd is the machine's pid 1.
        systemd: bool,
    },
}

impl Layout {
    /// Finds out.
    pub fn detect() -> Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")
            .context("failed to read /proc/self/mountinfo")?;
        Self::parse(&mounts, Path::new("/run/systemd/system").is_dir())
    }

    fn parse(mountinfo: &str, systemd: bool) -> Result<Self> {
        let mut hierarchies = Vec::new();
        for line in mountinfo.lines() {
            let Some((left, right)) = line.split_once(" - ") else {
                continue;
            };
            let Some(path) = left.split(' ').nth(4) else {
                continue;
            };
            let mut right = right.split(' ');
            let kind = right.next().unwrap_or_default();
            let options = right.nth(1).unwrap_or_default();
            if !path.starts_with("/sys/fs/cgroup") {
                continue;
            }
            match kind {
                "cgroup2" if path == "/sys/fs/cgroup" => {
                    return Ok(Self::V2 {
                        root: path.into(),
                        systemd,
                    });
                }
                "cgroup2" => hierarchies.push(Hierarchy {
                    path: path.into(),
                    options: None,
                }),
                "cgroup" => hierarchies.push(Hierarchy {
                    path: path.into(),
                    options: Some(selecting(options)),
                }),
                _ => {}
            }
        }
        if hierarchies.is_empty() {
            bail!("no cgroup hierarchy is mounted below /sys/fs/cgroup: nodes cannot run here");
        }
        Ok(Self::V1 { hierarchies })
    }

    /// `v1`, `hybrid` or `v2`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::V2 { .. } => "v2",
            Self::V1 { hierarchies } if hierarchies.iter().any(|h| h.options.is_none()) => "hybrid",
            Self::V1 { .. } => "v1",
        }
    }

    /// Makes the groups of a node, or cleans the ones that an earlier boot left.
    pub async fn prepare(&self, group: &str) -> Result<()> {
        self.remove(group).await?;
        match self {
            Self::V1 { hierarchies } => {
                for hierarchy in hierarchies {
                    let path = hierarchy.path.join(group);
                    make(&path)?;
                    // A new cpuset group is empty, and no process can join it before it is not.
                    for file in ["cpuset.cpus", "cpuset.mems"] {
                        let from = hierarchy.path.join(file);
                        if from.exists() {
                            std::fs::copy(&from, path.join(file))
                                .with_context(|| format!("failed to set {file} of {group}"))?;
                        }
                    }
                }
            }
            Self::V2 { systemd: true, .. } => {} // systemd makes the scope.
            Self::V2 {
                root,
                systemd: false,
            } => {
                // In a container the root group passes controllers on only when it is empty.
                if root.join("cgroup.type").exists() {
                    let init = root.join("init");
                    make(&init)?;
                    // One that forks meanwhile leaves a child behind: hence more than once.
                    for _ in 0..10 {
                        for pid in processes(root) {
                            // One that has just ended cannot be moved, and need not be.
                            drop(std::fs::write(init.join("cgroup.procs"), pid));
                        }
                    }
                }
                pass_controllers_on(root)?;
                make(&root.join(group))?;
            }
        }
        Ok(())
    }

    /// Kills what is left in a group and removes it, with everything below.
    pub async fn remove(&self, group: &str) -> Result<()> {
        let roots: Vec<PathBuf> = match self {
            Self::V1 { hierarchies } => hierarchies
                .iter()
                .map(|hierarchy| hierarchy.path.join(group))
                .collect(),
            Self::V2 {
                root,
                systemd: false,
            } => vec![root.join(group)],
            Self::V2 {
                root,
                systemd: true,
            } => {
                vec![root.join(format!("system.slice/{group}.scope"))]
            }
        };
        let roots: Vec<PathBuf> = roots.into_iter().filter(|root| root.is_dir()).collect();
        if roots.is_empty() {
            return Ok(());
        }
        // The kernel frees a killed process a moment after the kill; there is no event for it
        // on v1, so the loop looks again, for a bounded time.
        for _ in 0..100 {
            let mut groups = Vec::new();
            for root in &roots {
                collect(root, &mut groups);
            }
            for pid in groups.iter().flat_map(|group| processes(group)) {
                crate::process::kill(pid.parse().unwrap_or_default());
            }
            for group in &groups {
                drop(std::fs::remove_dir(group));
            }
            if roots.iter().all(|root| !root.exists()) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("the control group {group} cannot be removed: a process in it does not end")
    }

    /// Stops or continues every process of a node.
    pub fn freeze(&self, group: &str, frozen: bool) -> Result<()> {
        let (file, value) = match self {
            Self::V1 { hierarchies } => {
                let freezer = hierarchies
                    .iter()
                    .find(|h| h.options.as_deref().is_some_and(|o| o.contains("freezer")))
                    .context("this machine has no freezer control group")?;
                let value = if frozen { "FROZEN" } else { "THAWED" };
                (freezer.path.join(group).join("freezer.state"), value)
            }
            Self::V2 { root, systemd } => {
                let value = if frozen { "1" } else { "0" };
                let name = if *systemd {
                    format!("system.slice/{group}.scope")
                } else {
                    group.into()
                };
                (root.join(name).join("node/cgroup.freeze"), value)
            }
        };
        std::fs::write(&file, value).with_context(|| format!("failed to write {}", file.display()))
    }

    /// Every group of the machine whose name starts with `prefix`.
    pub fn find(&self, prefix: &str) -> Vec<String> {
        let roots: Vec<PathBuf> = match self {
            Self::V1 { hierarchies } => hierarchies.iter().map(|h| h.path.clone()).collect(),
            Self::V2 {
                root,
                systemd: false,
            } => vec![root.clone()],
            Self::V2 {
                root,
                systemd: true,
            } => vec![root.join("system.slice")],
        };
        let mut names: Vec<String> = roots
            .iter()
            .flat_map(|root| std::fs::read_dir(root).into_iter().flatten().flatten())
            .filter(|entry| entry.path().is_dir())
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with(prefix))
            .map(|name| name.strip_suffix(".scope").unwrap_or(&name).to_owned())
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

/// The group that this process is in, on v2.
pub fn own_group(root: &Path) -> Result<PathBuf> {
    let text =
        std::fs::read_to_string("/proc/self/cgroup").context("failed to read /proc/self/cgroup")?;
    let path = text
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .context("this process is in no v2 control group")?;
    Ok(root.join(path.trim_start_matches('/')))
}

/// The controllers without which no pod starts.
const NEEDED: [&str; 3] = ["cpu", "memory", "pids"];

/// Lets the children of a group use every controller that it has.
pub fn pass_controllers_on(group: &Path) -> Result<()> {
    let file = group.join("cgroup.controllers");
    let controllers = std::fs::read_to_string(&file)
        .with_context(|| format!("failed to read {}", file.display()))?;
    for controller in controllers.split_whitespace() {
        // One at a time: a single one that is refused must not cost the others.
        drop(std::fs::write(
            group.join("cgroup.subtree_control"),
            format!("+{controller}"),
        ));
    }
    let file = group.join("cgroup.subtree_control");
    let passed = std::fs::read_to_string(&file)
        .with_context(|| format!("failed to read {}", file.display()))?;
    let missing: Vec<&str> = NEEDED
        .into_iter()
        .filter(|needed| !passed.split_whitespace().any(|name| name == *needed))
        .collect();
    if !missing.is_empty() {
        bail!(
            "the control group {} cannot pass on {}, which nodes need: in a container they must \
             be delegated to it",
            group.display(),
            missing.join(", ")
        );
    }
    Ok(())
}

/// Moves this process into a group.
pub fn join(group: &Path) -> Result<()> {
    std::fs::write(group.join("cgroup.procs"), "0")
        .with_context(|| format!("failed to join {}", group.display()))
}

/// Makes a group.
pub fn make(group: &Path) -> Result<()> {
    std::fs::create_dir_all(group).with_context(|| format!("failed to make {}", group.display()))
}

/// A group and all groups below it, deepest first.
fn collect(group: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect(&entry.path(), into);
        }
    }
    into.push(group.to_owned());
}

fn processes(group: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().map(ToOwned::to_owned).collect()
}

/// The mount options that name a v1 hierarchy: `rw` and the like are not among them.
fn selecting(options: &str) -> String {
    let wanted: Vec<&str> = options
        .split(',')
        .filter(|o| {
            let general = [
                "rw",
                "ro",
                "relatime",
                "xattr",
                "noprefix",
                "clone_children",
            ];
            !general.contains(o) && !o.starts_with("release_agent")
        })
        .collect();
    match wanted.as_slice() {
        [name] if name.starts_with("name=") => format!("none,{name}"),
        names => names.join(","),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
33 30 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
";

    #[test]
    fn the_three_layouts_are_told_apart() {
        let hybrid = Layout::parse(HYBRID, true).unwrap();
        assert_eq!(hybrid.name(), "hybrid");
        let Layout::V1 { hierarchies } = &hybrid else {
            panic!("{hybrid:?}")
        };
        let options: Vec<_> = hierarchies.iter().map(|h| h.options.as_deref()).collect();
        assert_eq!(
            options,
            [Some("cpu,cpuacct"), Some("none,name=systemd"), None]
        );

        let v1: String = HYBRID
            .lines()
            .take(3)
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(Layout::parse(&v1, false).unwrap().name(), "v1");

        let v2 = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let expected = Layout::V2 {
            root: "/sys/fs/cgroup".into(),
            systemd: true,
        };
        assert_eq!(Layout::parse(v2, true).unwrap(), expected);
    }

    #[test]
    fn a_machine_without_control_groups_is_refused() {
        let error = Layout::parse("22 1 0:20 / /proc rw - proc proc rw\n", false).unwrap_err();
        assert!(error.to_string().contains("no cgroup hierarchy"), "{error}");
    }
}
