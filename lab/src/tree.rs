//! The Debian root file system that all nodes share, made once with mmdebstrap.
//!
//! It is the read-only lower layer of every node. Nothing in it may reach the machine below:
//! what would load modules, set machine-wide kernel settings or touch disks is masked here.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::command::Run;
use crate::paths::{Paths, lock, remove_tree};
use crate::report::Report;

const SUITE: &str = "bookworm";

const PACKAGES: &[&str] = &[
    "ca-certificates",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "dbus",
    "iproute2",
    "iptables",
    "kmod",
    "libpam-systemd",
    "procps",
    "runc",
    "systemd",
    "systemd-sysv",
    "udev",
];

/// Terminals, timers, and units that are about the machine below.
const MASKED: &[&str] = &[
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "dev-hugepages.mount",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "getty@.service",
    "logrotate.timer",
    "modprobe@.service",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-modules-load.service",
    "systemd-networkd-wait-online.service",
    "systemd-pstore.service",
    "systemd-sysctl.service",
    "systemd-tmpfiles-clean.timer",
];

/// Files that all nodes share.
const FILES: &[(&str, &str)] = &[
    (
        // The journal is in the node's own /var, so it can be read after a crash.
        "etc/systemd/journald.conf.d/lab.conf",
        "[Journal]\nStorage=persistent\nSystemMaxUse=64M\nReadKMsg=no\nRateLimitBurst=0\n\
         SyncIntervalSec=5s\n",
    ),
    (
        "etc/systemd/system.conf.d/lab.conf",
        "[Manager]\nDefaultTimeoutStopSec=10s\nDefaultTasksMax=infinity\n",
    ),
    ("etc/machine-id", ""),
    ("etc/resolv.conf", ""),
];

/// Removed after the installation: what would identify one machine, and the brake on services.
const REMOVED: &[&str] = &[
    "usr/sbin/policy-rc.d",
    "var/lib/dbus/machine-id",
    "etc/hostname",
    "etc/resolv.conf",
];

/// The tree's directory; made when it is not there (about a minute).
pub async fn ensure(paths: &Paths, report: &Report) -> Result<PathBuf> {
    let tree = location(paths);
    if tree.is_dir() {
        return Ok(tree);
    }
    std::fs::create_dir_all(&paths.cache)
        .with_context(|| format!("failed to make {}", paths.cache.display()))?;
    let _lock = lock(tree.with_extension("lock"), report).await?;
    if tree.is_dir() {
        return Ok(tree);
    }
    let step = report.long_step(
        format!("make the nodes' Debian tree ({SUITE})"),
        Duration::from_secs(75),
    );
    // What an interrupted run left. The lock is ours, so nobody is writing it.
    let partial = tree.with_extension("partial");
    remove_tree(&partial)?;
    debootstrap(&partial).await?;
    configure(&partial)?;
    std::fs::rename(&partial, &tree)
        .with_context(|| format!("failed to install {}", tree.display()))?;
    step.done();
    Ok(tree)
}

/// Whether the tree exists already.
pub fn is_ready(paths: &Paths) -> bool {
    location(paths).is_dir()
}

/// Keyed by everything that makes it, so that a changed recipe gives a new tree.
fn location(paths: &Paths) -> PathBuf {
    let mut hasher = Sha256::new();
    for word in PACKAGES.iter().chain(MASKED).chain(REMOVED) {
        hasher.update(word);
    }
    for (name, content) in FILES {
        hasher.update(name);
        hasher.update(content);
    }
    let hash: String = hasher
        .finalize()
        .iter()
        .take(6)
        .map(|b| format!("{b:02x}"))
        .collect();
    paths.cache.join(format!("tree-{SUITE}-{hash}"))
}

async fn debootstrap(target: &Path) -> Result<()> {
    let include = format!("--include={}", PACKAGES.join(","));
    // No service may start while packages are installed.
    let brake = "--essential-hook=mkdir -p \"$1/usr/sbin\" && \
                 printf '#!/bin/sh\\nexit 101\\n' >\"$1/usr/sbin/policy-rc.d\" && \
                 chmod 755 \"$1/usr/sbin/policy-rc.d\"";
    Run::new(
        "mmdebstrap",
        ["--quiet", "--variant=minbase", &include, brake],
    )
    .arguments([
        "--aptopt=APT::Install-Recommends \"false\"",
        "--aptopt=Acquire::Languages \"none\"",
        "--aptopt=Acquire::Retries \"3\"",
        "--dpkgopt=path-exclude=/usr/share/man/*",
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*",
        "--dpkgopt=path-exclude=/usr/share/info/*",
        SUITE,
    ])
    .arguments([target])
    .deadline(Duration::from_secs(20 * 60))
    .output()
    .await
    .context("failed to make the nodes' Debian tree")
    .map(drop)
}

fn configure(tree: &Path) -> Result<()> {
    for name in REMOVED {
        let path = tree.join(name);
        if path.symlink_metadata().is_ok() {
            std::fs::remove_file(&path)
                .with_context(|| format!("failed to remove {}", path.display()))?;
        }
    }
    for (name, content) in FILES {
        let path = tree.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)
                .with_context(|| format!("failed to make {}", parent.display()))?;
        }
        std::fs::write(&path, content)
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    for unit in MASKED {
        let link = tree.join("etc/systemd/system").join(unit);
        if link.symlink_metadata().is_ok() {
            std::fs::remove_file(&link)
                .with_context(|| format!("failed to remove {}", link.display()))?;
        }
        symlink("/dev/null", &link)
            .with_context(|| format!("failed to mask {unit} in {}", tree.display()))?;
    }
    Ok(())
}
