//! Makes a fresh machine able to run labs: packages, programs, the nodes' tree, base images.
//!
//! Everything is idempotent; when nothing is missing, nothing is done and nothing is said.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::command::{Run, which};
use crate::config::LabConfig;
use crate::images::{self, Sources};
use crate::paths::Paths;
use crate::report::Report;
use crate::{binaries, tree};

/// Programs of the machine that nodes need, and the Debian package of each.
const PROGRAMS: &[(&str, &str)] = &[
    ("busybox", "busybox-static"),
    ("gcc", "gcc"),
    ("ip", "iproute2"),
    ("mmdebstrap", "mmdebstrap"),
    ("mount", "mount"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
];

/// The disk space that binaries, their build, the tree and a lab take, with room to spare.
const DISK_BYTES: u64 = 8 << 30;

/// What a lab is made of.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The Kubernetes programs.
    pub bin: PathBuf,
    /// For labs with nodes.
    pub nodes: Option<PreparedNodes>,
}

/// What nodes are made of.
#[derive(Debug, Clone)]
pub struct PreparedNodes {
    /// The shared root file system.
    pub tree: PathBuf,
    /// The layouts of the base images.
    pub images: Vec<PathBuf>,
}

/// Makes what is missing. Labs without nodes need only the Kubernetes programs, and no root.
pub async fn prepare(paths: &Paths, with_nodes: bool, report: &Report) -> Result<Prepared> {
    if !with_nodes {
        check_disk(paths, binaries::is_ready(paths))?;
        return Ok(Prepared {
            bin: binaries::ensure(paths, report).await?,
            nodes: None,
        });
    }
    if !rustix::process::geteuid().is_root() {
        bail!(
            "nodes need root: they are made of namespaces, mounts and control groups. Run it with \
             sudo, or start a lab without nodes (`--nodes 0`)"
        );
    }
    check_disk(paths, binaries::is_ready(paths) && tree::is_ready(paths))?;
    packages(report).await?;
    // The Go build is the long one; the tree is mostly a download.
    let (bin, tree) =
        tokio::try_join!(binaries::ensure(paths, report), tree::ensure(paths, report))?;
    let dir = paths.cache.join("images");
    let sources = Sources {
        coredns: Some(bin.join("coredns")),
        busybox: which("busybox").context("busybox is missing")?,
        ..Sources::default()
    };
    let images = tokio::task::spawn_blocking(move || images::ensure(&dir, &sources)).await??;
    let images = images.into_iter().map(|image| image.layout).collect();
    Ok(Prepared {
        bin,
        nodes: Some(PreparedNodes { tree, images }),
    })
}

/// Installs the packages that are missing, or says which ones.
async fn packages(report: &Report) -> Result<()> {
    let mut missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| which(program).is_none())
        .map(|&(_, package)| package)
        .collect();
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    if which("apt-get").is_none() {
        bail!("these programs are missing, by the names of their Debian packages: {names}");
    }
    let step = report.long_step(format!("install {names}"), Duration::from_secs(15));
    let apt = |arguments: &[&str]| {
        Run::new("apt-get", ["-q", "-y", "-o", "DPkg::Lock::Timeout=300"])
            .arguments(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .deadline(Duration::from_secs(15 * 60))
    };
    let hint = format!("failed to install {names}; install them by hand and try again");
    apt(&["update"])
        .output()
        .await
        .with_context(|| hint.clone())?;
    let mut install = vec!["install", "--no-install-recommends"];
    install.extend(&missing);
    apt(&install).output().await.with_context(|| hint)?;
    step.done();
    Ok(())
}

/// inotify instances that a node (kubelet, systemd, containerd ...) and a control plane hold.
const INOTIFY_PER_NODE: usize = 15;
const INOTIFY_PER_CLUSTER: usize = 13;

/// The kernel limits inotify instances per user, to 128 where nobody raised it. A node that gets
/// none never becomes Ready and hardly says why, so it is told here. The lab changes no setting
/// of the machine by itself.
pub fn check_inotify(config: &LabConfig) -> Result<()> {
    let path = "/proc/sys/fs/inotify/max_user_instances";
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {path}"))?;
    let limit: usize = text
        .trim()
        .parse()
        .with_context(|| format!("{path} is no number"))?;
    let nodes: usize = config
        .clusters
        .iter()
        .map(|cluster| usize::from(cluster.nodes))
        .sum();
    let needed = nodes * INOTIFY_PER_NODE + config.clusters.len() * INOTIFY_PER_CLUSTER;
    let used = inotify_instances();
    if used + needed > limit {
        bail!(
            "this machine allows {limit} inotify instances per user; {used} are in use and this \
             lab needs about {needed} more. Raise the limit with `sysctl -w \
             fs.inotify.max_user_instances=1024`, or take another lab down"
        );
    }
    Ok(())
}

/// How many this user's processes hold now.
fn inotify_instances() -> usize {
    let own = rustix::process::geteuid().as_raw();
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|process| process.metadata().is_ok_and(|data| data.uid() == own))
        .flat_map(|process| {
            std::fs::read_dir(process.path().join("fd"))
                .into_iter()
                .flatten()
        })
        .flatten()
        .filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok())
        .filter(|target| target.as_os_str() == "anon_inode:inotify")
        .count()
}

fn check_disk(paths: &Paths, prepared: bool) -> Result<()> {
    for dir in [&paths.cache, &paths.labs] {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("failed to make {}", dir.display()))?;
        let free = free_bytes(dir)?;
        // A prepared machine only needs room for the lab itself.
        let needed = if prepared { DISK_BYTES / 8 } else { DISK_BYTES };
        if free < needed {
            bail!(
                "{} has {} MiB free, and a lab needs {} MiB: free some space, or point \
                 COBALT_CACHE and COBALT_LABS at another disk",
                dir.display(),
                free >> 20,
                needed >> 20
            );
        }
    }
    Ok(())
}

fn free_bytes(dir: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(dir)
        .with_context(|| format!("failed to ask for the free space of {}", dir.display()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
