//! Makes a fresh machine able to run labs: packages, programs, trees, images, guests, OpenStack.
//!
//! Everything is idempotent; when nothing is missing, nothing is done and nothing is said.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::command::{Run, which};
use crate::config::LabConfig;
use crate::guests::Guests;
use crate::images::{self, Sources};
use crate::paths::Paths;
use crate::plan::Flavour;
use crate::report::Report;
use crate::tree::{self, Suite};
use crate::{binaries, cloud_hypervisor, guests, light, openstack, python};

/// Programs of the machine that machines of a lab need, and the Debian package of each.
const PROGRAMS: &[(&str, &str)] = &[
    ("busybox", "busybox-static"),
    ("gcc", "gcc"),
    ("ip", "iproute2"),
    ("mmdebstrap", "mmdebstrap"),
    ("mount", "mount"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
];

/// And what Python programs need.
const PYTHON_PROGRAMS: &[(&str, &str)] = &[("python3", "python3"), ("pip3", "python3-pip")];

/// The disk space that binaries, their build, trees and a lab take, with room to spare.
const DISK_BYTES: u64 = 12 << 30;

/// What a lab is made of; empty where it needs none of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Prepared {
    /// The Kubernetes programs.
    pub kubernetes: Option<PathBuf>,
    /// The layouts of the base images.
    pub images: Vec<PathBuf>,
    /// The root file systems of machines, by the name of their suite.
    pub trees: BTreeMap<String, PathBuf>,
    /// The layer with libvirt's Cloud Hypervisor driver.
    pub cloud_hypervisor: Option<PathBuf>,
    /// What virtual machines boot.
    pub guests: Option<Guests>,
    /// OpenStack's packages for the machines, by the version of their Python.
    pub packages: BTreeMap<String, PathBuf>,
    /// OpenStack's first state.
    pub openstack: Option<PathBuf>,
    /// For programs that run on the machine itself.
    pub python: Option<Python>,
    /// The first state of the light OpenStack.
    pub light: Option<PathBuf>,
}

/// The machine's own Python, with packages.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Python {
    /// The interpreter.
    pub program: PathBuf,
    /// The directory for PYTHONPATH.
    pub packages: PathBuf,
}

/// What a lab needs, seen from its configuration.
struct Needs {
    machines: bool,
    kubernetes: bool,
    suites: Vec<Suite>,
    cloud_hypervisor: bool,
    hypervisors: bool,
    openstack: bool,
    light: bool,
    bmc: bool,
}

impl Needs {
    fn of(config: &LabConfig) -> Self {
        let machines = config.has_machines();
        let flavours = config.flavours();
        let mut suites = Vec::new();
        if machines {
            suites.push(Suite::Bookworm);
        }
        if flavours.iter().any(|f| f.suite() == Suite::Trixie) {
            suites.push(Suite::Trixie);
        }
        Self {
            machines,
            kubernetes: config.has_kubernetes(),
            suites,
            cloud_hypervisor: flavours.contains(&Flavour::CloudHypervisor),
            hypervisors: config.hypervisors().is_some(),
            openstack: config.openstack.is_some(),
            light: config.light.is_some(),
            bmc: config.bmc,
        }
    }

    /// The Pythons that OpenStack's packages are needed for inside machines.
    fn pythons(&self) -> Vec<&'static str> {
        let suites = self.suites.iter().filter(|_| self.openstack);
        suites.map(|suite| suite.python()).collect()
    }

    fn is_ready(&self, paths: &Paths) -> bool {
        (!self.kubernetes || binaries::is_ready(paths))
            && self
                .suites
                .iter()
                .all(|&suite| tree::is_ready(paths, suite))
            && (!self.cloud_hypervisor || cloud_hypervisor::is_ready(paths))
            && (!self.hypervisors || guests::is_ready(paths))
            && self
                .pythons()
                .iter()
                .all(|version| python::is_ready(paths, version))
    }
}

/// Makes what is missing. Labs without machines need no root.
pub async fn prepare(paths: &Paths, config: &LabConfig, report: &Report) -> Result<Prepared> {
    let needs = Needs::of(config);
    if needs.machines && !rustix::process::geteuid().is_root() {
        bail!(
            "this lab needs root: its machines are made of namespaces, mounts and control groups. \
             Run it with sudo, or start one without machines (`--nodes 0`)"
        );
    }
    check_disk(paths, needs.is_ready(paths))?;
    let mut programs = Vec::new();
    if needs.machines {
        programs.extend(PROGRAMS);
    }
    let with_python = needs.openstack || needs.light || needs.bmc;
    if with_python {
        programs.extend(PYTHON_PROGRAMS);
    }
    packages(&programs, report).await?;

    // The Go build is the long one; trees are mostly downloads.
    let kubernetes = async {
        if needs.kubernetes {
            return binaries::ensure(paths, report).await.map(Some);
        }
        Ok(None)
    };
    let trees = async {
        let mut trees = BTreeMap::new();
        for &suite in &needs.suites {
            let tree = tree::ensure(paths, suite, report).await?;
            trees.insert(suite.name().to_owned(), tree);
        }
        let mut layer = None;
        if needs.cloud_hypervisor {
            let built = cloud_hypervisor::ensure(paths, report).await?;
            let tree = trees.get(Suite::Trixie.name()).context("no trixie tree")?;
            cloud_hypervisor::check_fits(&built, tree)?;
            layer = Some(built);
        }
        anyhow::Ok((trees, layer))
    };
    let guests = async {
        if needs.hypervisors || needs.openstack {
            return guests::ensure(paths, report).await.map(Some);
        }
        Ok(None)
    };
    let packages = async {
        let mut packages = BTreeMap::new();
        for version in needs.pythons() {
            let dir = python::ensure(paths, version, report).await?;
            packages.insert(version.to_owned(), dir);
        }
        let mut own = None;
        if with_python {
            let (program, version) = python::machine_version().await?;
            let packages = python::ensure(paths, &version, report).await?;
            own = Some(Python { program, packages });
        }
        anyhow::Ok((packages, own))
    };
    let (kubernetes, (trees, cloud_hypervisor), guests, (packages, python)) =
        tokio::try_join!(kubernetes, trees, guests, packages)?;
    for &suite in &needs.suites {
        if let (Some(tree), Some(dir)) = (trees.get(suite.name()), packages.get(suite.python())) {
            python::compile_in(tree, dir).await?;
        }
    }
    let mut prepared = Prepared {
        kubernetes,
        trees,
        cloud_hypervisor,
        guests,
        packages,
        python,
        ..Prepared::default()
    };
    if let Some(bin) = prepared.kubernetes.as_ref().filter(|_| needs.machines) {
        prepared.images = base_images(paths, bin).await?;
    }
    if needs.openstack {
        prepared.openstack = Some(openstack_template(paths, &prepared, report).await?);
    }
    if let Some(python) = prepared.python.as_ref().filter(|_| needs.light) {
        let template = light::template(paths, &python.program, &python.packages, report);
        prepared.light = Some(template.await?);
    }
    Ok(prepared)
}

async fn base_images(paths: &Paths, bin: &Path) -> Result<Vec<PathBuf>> {
    let dir = paths.cache.join("images");
    let sources = Sources {
        coredns: Some(bin.join("coredns")),
        busybox: which("busybox").context("busybox is missing")?,
        ..Sources::default()
    };
    let images = tokio::task::spawn_blocking(move || images::ensure(&dir, &sources)).await??;
    Ok(images.into_iter().map(|image| image.layout).collect())
}

async fn openstack_template(
    paths: &Paths,
    prepared: &Prepared,
    report: &Report,
) -> Result<PathBuf> {
    let suite = Suite::Bookworm;
    let tree = prepared
        .trees
        .get(suite.name())
        .context("OpenStack without a tree")?;
    let packages = prepared
        .packages
        .get(suite.python())
        .context("OpenStack without its packages")?;
    let guests = prepared
        .guests
        .as_ref()
        .context("OpenStack without guests")?;
    openstack::template(paths, tree, packages, guests, report).await
}

/// Installs the packages that are missing, or says which ones.
async fn packages(programs: &[&(&str, &'static str)], report: &Report) -> Result<()> {
    let mut missing: Vec<&str> = programs
        .iter()
        .filter(|(program, _)| which(program).is_none())
        .map(|(_, package)| *package)
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

/// inotify instances that a control plane and the parts of machines hold.
const INOTIFY_PER_CLUSTER: usize = 13;
const INOTIFY_PER_MACHINE: usize = 5;
const INOTIFY_PER_KUBERNETES_NODE: usize = 10;
const INOTIFY_PER_HYPERVISOR: usize = 3;

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
    let needed = inotify_needs(config);
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

/// How many a lab will hold, about.
pub fn inotify_needs(config: &LabConfig) -> usize {
    let mut needed = 0;
    for cluster in &config.clusters {
        let mut node = INOTIFY_PER_MACHINE;
        if cluster.kubernetes {
            needed += INOTIFY_PER_CLUSTER;
            node += INOTIFY_PER_KUBERNETES_NODE;
        }
        if cluster.hypervisors.is_some() {
            node += INOTIFY_PER_HYPERVISOR;
        }
        needed += usize::from(cluster.nodes) * node;
    }
    if config.ovn {
        // Three members and the switch.
        needed += 4 * INOTIFY_PER_MACHINE;
    }
    if config.openstack.is_some() {
        needed += INOTIFY_PER_MACHINE;
    }
    needed
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
