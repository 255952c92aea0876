//! The Debian root file systems that all machines of a lab share, made once with mmdebstrap.
//!
//! A tree is the read-only lower layer of every machine of its suite. It has the packages of all
//! roles and enables none of their units: what a machine is decides its own layer. Nothing in it
//! may reach the machine below: what would load modules, set machine-wide kernel settings or
//! touch disks is masked here.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cache;
use crate::command::Run;
use crate::paths::{Paths, remove_tree};
use crate::report::Report;

/// A Debian release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suite {
    /// Debian 12: systemd 252, libvirt 9.0, QEMU 7.2, OVS 3.1.
    Bookworm,
    /// Debian 13: systemd 257, libvirt 11.3, QEMU 10.0, OVS 3.5.
    Trixie,
}

impl Suite {
    /// As Debian calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Trixie => "trixie",
        }
    }

    /// The Python of the release.
    pub fn python(self) -> &'static str {
        match self {
            Self::Bookworm => "3.11",
            Self::Trixie => "3.13",
        }
    }

    fn packages(self) -> Vec<&'static str> {
        let mut all = PACKAGES.to_vec();
        if self == Self::Bookworm {
            all.extend(CONTROL_PLANE_PACKAGES);
        }
        all
    }
}

/// What any node may be: a Kubernetes node, a hypervisor, a switch.
const PACKAGES: &[&str] = &[
    "ca-certificates",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "dbus",
    "ethtool",
    "iproute2",
    "iptables",
    "iputils-ping",
    "kmod",
    "libpam-systemd",
    "libvirt-clients",
    "libvirt-daemon-driver-qemu",
    "libvirt-daemon-system",
    "netcat-openbsd",
    "openssh-client",
    "openssh-server",
    "openvswitch-switch",
    "ovn-host",
    "procps",
    "python3",
    "python3-libvirt",
    "python3-setuptools",
    "qemu-system-x86",
    "qemu-utils",
    "runc",
    "systemd",
    "systemd-container",
    "systemd-sysv",
    "tcpdump",
    "udev",
];

/// The machines of OVN's and OpenStack's control planes are all bookworm.
const CONTROL_PLANE_PACKAGES: &[&str] = &["mariadb-server", "ovn-central", "rabbitmq-server"];

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
    "libvirt-guests.service",
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
    "uuidd.socket",
];

/// Whatever packages enabled is disabled again by emptying these directories.
const WANTED: &[&str] = &[
    "etc/systemd/system/multi-user.target.wants",
    "etc/systemd/system/openvswitch-switch.service.requires",
    "etc/systemd/system/sockets.target.wants",
];

/// Files that all machines share, and their modes.
const FILES: &[(&str, u32, &str)] = &[
    (
        // The journal is in the machine's own /var, so it can be read after a crash.
        "etc/systemd/journald.conf.d/lab.conf",
        0o644,
        "[Journal]\nStorage=persistent\nSystemMaxUse=64M\nReadKMsg=no\nRateLimitBurst=0\n\
         SyncIntervalSec=5s\n",
    ),
    (
        "etc/systemd/system.conf.d/lab.conf",
        0o644,
        "[Manager]\nDefaultTimeoutStopSec=10s\nDefaultTasksMax=infinity\n",
    ),
    (
        // It would try to load the kernel's datapath and, failing that, unload the bridge module
        // of the machine below, with every bridge that is there.
        "usr/share/openvswitch/scripts/ovs-kmod-ctl",
        0o755,
        "#!/bin/sh\nexit 0\n",
    ),
    (
        "etc/libvirt/libvirtd.conf",
        0o644,
        "host_uuid_source = \"machine-id\"\nunix_sock_rw_perms = \"0770\"\n\
         auth_unix_rw = \"none\"\nauth_unix_ro = \"none\"\nauth_tcp = \"none\"\n\
         max_clients = 500\nkeepalive_interval = 5\nkeepalive_count = 5\n",
    ),
    (
        "etc/libvirt/qemu.conf",
        0o644,
        "user = \"root\"\ngroup = \"root\"\ndynamic_ownership = 0\nremember_owner = 0\n\
         security_driver = \"none\"\nmax_core = 0\nkeepalive_interval = 5\n\
         keepalive_count = 5\n",
    ),
    // Debian's default is to end when idle.
    ("etc/default/libvirtd", 0o644, "LIBVIRTD_ARGS=\n"),
    ("etc/machine-id", 0o444, ""),
    ("etc/resolv.conf", 0o644, ""),
];

/// Removed after the installation: what would identify one machine, the brake on services, and
/// what every machine would carry along in its /var for nothing.
const REMOVED: &[&str] = &[
    "usr/sbin/policy-rc.d",
    "var/lib/dbus/machine-id",
    "etc/hostname",
    "etc/machine-id",
    "etc/resolv.conf",
    "etc/ssh/ssh_host_ecdsa_key",
    "etc/ssh/ssh_host_ecdsa_key.pub",
    "etc/ssh/ssh_host_ed25519_key",
    "etc/ssh/ssh_host_ed25519_key.pub",
    "etc/ssh/ssh_host_rsa_key",
    "etc/ssh/ssh_host_rsa_key.pub",
    "etc/libvirt/qemu/networks/autostart/default.xml",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/lib/dpkg/info",
    "var/lib/mysql",
];

/// A tree's directory; made when it is not there (one to two minutes).
pub async fn ensure(paths: &Paths, suite: Suite, report: &Report) -> Result<PathBuf> {
    cache::once(location(paths, suite), report, async |partial| {
        let step = report.long_step(
            format!("make the machines' Debian tree ({})", suite.name()),
            Duration::from_secs(100),
        );
        debootstrap(suite, partial).await?;
        configure(partial)?;
        step.done();
        Ok(())
    })
    .await
}

/// Whether a tree exists already.
pub fn is_ready(paths: &Paths, suite: Suite) -> bool {
    location(paths, suite).is_dir()
}

/// Keyed by everything that makes it, so that a changed recipe gives a new tree.
fn location(paths: &Paths, suite: Suite) -> PathBuf {
    let mut parts: Vec<String> = suite
        .packages()
        .iter()
        .chain(MASKED)
        .chain(WANTED)
        .chain(REMOVED)
        .map(|&word| word.to_owned())
        .collect();
    for (name, mode, content) in FILES {
        parts.push(format!("{name} {mode:o} {content}"));
    }
    let key = cache::key(&parts);
    paths.cache.join(format!("tree-{}-{key}", suite.name()))
}

/// What keeps a tree small, and a download that falters going.
pub const LEAN: [&str; 6] = [
    "--aptopt=APT::Install-Recommends \"false\"",
    "--aptopt=Acquire::Languages \"none\"",
    "--aptopt=Acquire::Retries \"3\"",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
];

async fn debootstrap(suite: Suite, target: &Path) -> Result<()> {
    let include = format!("--include={}", suite.packages().join(","));
    // No service may start while packages are installed.
    let brake = "--essential-hook=mkdir -p \"$1/usr/sbin\" && \
                 printf '#!/bin/sh\\nexit 101\\n' >\"$1/usr/sbin/policy-rc.d\" && \
                 chmod 755 \"$1/usr/sbin/policy-rc.d\"";
    // An mmdebstrap that is older than the suite cannot unpack its base without this hook.
    let merged = Path::new("/usr/share/mmdebstrap/hooks/merged-usr");
    let newer = (suite != Suite::Bookworm && merged.is_dir())
        .then(|| format!("--hook-dir={}", merged.display()));
    Run::new(
        "mmdebstrap",
        ["--quiet", "--variant=minbase", &include, brake],
    )
    .arguments(newer)
    .arguments(LEAN)
    .arguments(["--dpkgopt=path-exclude=/usr/share/info/*", suite.name()])
    .arguments([target])
    .deadline(Duration::from_secs(20 * 60))
    .output()
    .await
    .with_context(|| {
        format!(
            "failed to make the machines' Debian tree ({}); is Debian's archive reachable?",
            suite.name()
        )
    })
    .map(drop)
}

fn configure(tree: &Path) -> Result<()> {
    for name in REMOVED {
        remove(&tree.join(name))?;
    }
    for name in WANTED {
        let dir = tree.join(name);
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            remove(&entry.path())?;
        }
    }
    for (name, mode, content) in FILES {
        let path = tree.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)
                .with_context(|| format!("failed to make {}", parent.display()))?;
        }
        std::fs::write(&path, content)
            .and_then(|()| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(*mode)))
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    for unit in MASKED {
        let link = tree.join("etc/systemd/system").join(unit);
        remove(&link)?;
        symlink("/dev/null", &link)
            .with_context(|| format!("failed to mask {unit} in {}", tree.display()))?;
    }
    Ok(())
}

/// Removes a file, a link or a directory; what is not there is fine.
fn remove(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Ok(data) if data.is_dir() => remove_tree(path),
        Ok(_) => std::fs::remove_file(path)
            .with_context(|| format!("failed to remove {}", path.display())),
        Err(_) => Ok(()),
    }
}
