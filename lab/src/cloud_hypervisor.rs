//! The Cloud Hypervisor flavour of a node: a layer over a Debian tree that has libvirt.
//!
//! ```text
//!  overlay  lowerdir = LAYER : TREE
//!                        │      └ Debian's libvirt library, QEMU driver, clients, units
//!                        └ libvirtd and the ch driver, built here; a stand-in for the VMM
//! ```
//!
//! Debian's libvirt has no ch driver. The same source gives it, together with a `libvirtd` that
//! loads it; all else stays Debian's, so `qemu://` is what it is on other nodes, and `ch://` is
//! there as well. No unit needs to be enabled for it: whoever reaches this libvirtd, through
//! `libvirtd.socket` or `libvirtd-tcp.socket`, reaches both. No Debian package has Cloud
//! Hypervisor itself: its place has a stand-in that runs no guest.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::command::Run;
use crate::paths::{Paths, make_dir, remove_tree};
use crate::report::Report;
use crate::tree::LEAN;

/// The suite of the tree that the layer is for.
const SUITE: &str = "trixie";

/// What this configuration of libvirt needs. All that Debian's own needs would be three times as
/// much to download.
const BUILD_PACKAGES: &[&str] = &[
    "gcc",
    "gettext",
    "libc6-dev",
    "libcap-ng-dev",
    "libcurl4-gnutls-dev",
    "libglib2.0-dev",
    "libgnutls28-dev",
    "libjson-c-dev",
    "libnl-3-dev",
    "libnl-route-3-dev",
    "libpcap0.8-dev",
    "libpciaccess-dev",
    "libsasl2-dev",
    "libtirpc-dev",
    "libudev-dev",
    "libxml2-dev",
    "libxml2-utils",
    "meson",
    "ninja-build",
    "patch",
    "pkgconf",
    "xsltproc",
    "xz-utils",
];

const BUILD_SCRIPT: &str = include_str!("../cloud-hypervisor/build.sh");
const STAND_IN: &str = include_str!("../cloud-hypervisor/stand-in.py");
const DROP_IN: &str = include_str!("../cloud-hypervisor/libvirtd.conf");

/// The source package's version, inside the layer.
const VERSION: &str = "usr/share/cobalt-lab/libvirt-version";

/// For trees of another Debian than the machine's, mmdebstrap of Debian 12 needs it; later ones
/// do not have it.
const MERGED_USR_HOOK: &str = "/usr/share/mmdebstrap/hooks/merged-usr";

/// Every list of packages also lists sources, in both of apt's formats.
const WITH_SOURCES: &str = r#"--setup-hook=for list in "$1"/etc/apt/sources.list \
    "$1"/etc/apt/sources.list.d/*; do
    [ -f "$list" ] || continue
    sed -i -e 's/^Types: deb$/Types: deb deb-src/' -e '/^deb /{p;s//deb-src /}' "$list"
done"#;

/// Not the description of the source package: some mirrors lack it, and apt checks the archives
/// against its signed index anyway.
const FETCH_SOURCE: &str = r#"--customize-hook=mkdir "$1/build" && chroot "$1" sh -ec '
    cd /build
    apt-get source -q --download-only --tar-only libvirt
    apt-get source -q --download-only --diff-only libvirt'"#;

/// The layer's directory; made when it is not there (about three minutes, and a gigabyte of disk
/// while it is made).
pub async fn ensure(paths: &Paths, report: &Report) -> Result<PathBuf> {
    let dir = cache::once(location(paths), report, async |partial| {
        make_dir(partial)?;
        let tree = partial.join("tree");
        let step = report.long_step(
            format!("make a Debian tree that can build libvirt ({SUITE})"),
            Duration::from_secs(65),
        );
        make_build_tree(&tree).await?;
        step.done();
        let step = report.long_step(
            "build libvirt's Cloud Hypervisor driver",
            Duration::from_secs(90),
        );
        build(&tree).await?;
        step.done();
        assemble(&tree, &partial.join(LAYER))?;
        remove_tree(&tree)
    })
    .await?;
    Ok(dir.join(LAYER))
}

/// The layer within its place in the cache.
const LAYER: &str = "layer";

/// Whether the layer exists already.
pub fn is_ready(paths: &Paths) -> bool {
    location(paths).is_dir()
}

/// Fails unless the tree has the very libvirt that the layer was built from: the driver uses what
/// is private to it, and a libvirtd that cannot load the driver does not start.
pub fn check_fits(layer: &Path, tree: &Path) -> Result<()> {
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
    };
    let built = read(layer.join(VERSION))?;
    let status = read(tree.join("var/lib/dpkg/status"))?;
    let installed = installed_version(&status, "libvirt0")
        .with_context(|| format!("{} has no libvirt", tree.display()))?;
    if built.trim() != installed {
        bail!(
            "{} was built from libvirt {}, and {} has {installed}: remove the older of the two \
             directories, and it is made again",
            layer.display(),
            built.trim(),
            tree.display()
        );
    }
    Ok(())
}

/// The version of a package in dpkg's status file.
fn installed_version<'a>(status: &'a str, package: &str) -> Option<&'a str> {
    let name = format!("Package: {package}");
    status
        .split("\n\n")
        .find(|paragraph| paragraph.lines().any(|line| line == name))?
        .lines()
        .find_map(|line| line.strip_prefix("Version: "))
}

/// Keyed by everything that makes it, so that a changed recipe gives a new layer.
fn location(paths: &Paths) -> PathBuf {
    let scripts = [BUILD_SCRIPT, STAND_IN, DROP_IN, WITH_SOURCES, FETCH_SOURCE];
    let key = cache::key(BUILD_PACKAGES.iter().chain(&scripts));
    paths.cache.join(format!("libvirt-ch-{key}"))
}

/// The directory below `/usr/lib` that has this machine's libraries.
fn multiarch() -> String {
    format!("{}-linux-gnu", std::env::consts::ARCH)
}

/// A program in namespaces of its own. When it is killed, its children are too, and no mount of
/// theirs is left on the machine, where the next removal of the tree could go through it.
fn contained() -> Run {
    Run::new(
        "unshare",
        ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"],
    )
}

async fn make_build_tree(target: &Path) -> Result<()> {
    let mut mmdebstrap = contained().arguments(["mmdebstrap", "--quiet", "--variant=apt"]);
    if Path::new(MERGED_USR_HOOK).is_dir() {
        mmdebstrap = mmdebstrap.arguments([format!("--hook-dir={MERGED_USR_HOOK}")]);
    }
    mmdebstrap
        .arguments([format!("--include={}", BUILD_PACKAGES.join(","))])
        .arguments(LEAN)
        .arguments([WITH_SOURCES, FETCH_SOURCE, SUITE])
        .arguments([target])
        .deadline(Duration::from_secs(20 * 60))
        .output()
        .await
        .context("failed to make the Debian tree that builds libvirt")
        .map(drop)
}

async fn build(tree: &Path) -> Result<()> {
    let script = tree.join("build/build.sh");
    std::fs::write(&script, BUILD_SCRIPT)
        .with_context(|| format!("failed to write {}", script.display()))?;
    contained()
        .arguments(["--net"])
        .arguments([format!("--root={}", tree.display())])
        // The labs that run meanwhile come first.
        .arguments(["nice", "-n", "10", "sh", "/build/build.sh", &multiarch()])
        .deadline(Duration::from_secs(60 * 60))
        .output()
        .await
        .context("failed to build libvirt with its Cloud Hypervisor driver")
        .map(drop)
}

/// Puts what nodes need, and nothing else, into the new layer.
fn assemble(tree: &Path, layer: &Path) -> Result<()> {
    let read = |name: &str| {
        let path = tree.join("build").join(name);
        std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))
    };
    let drivers = format!("usr/lib/{}/libvirt/connection-driver", multiarch());
    let files: [(&str, u32, Vec<u8>); 5] = [
        ("usr/sbin/libvirtd", 0o755, read("out/src/libvirtd")?),
        (
            &format!("{drivers}/libvirt_driver_ch.so"),
            0o644,
            read("out/src/libvirt_driver_ch.so")?,
        ),
        ("usr/bin/cloud-hypervisor", 0o755, STAND_IN.into()),
        (
            "usr/lib/systemd/system/libvirtd.service.d/cloud-hypervisor.conf",
            0o644,
            DROP_IN.into(),
        ),
        (VERSION, 0o644, read("version")?),
    ];
    for (name, mode, content) in files {
        put(layer, name, mode, &content)
            .with_context(|| format!("failed to write {name} into {}", layer.display()))?;
    }
    Ok(())
}

/// Writes a file with its directories. The modes do not depend on the umask: a directory of the
/// layer hides the tree's, and what nodes may do must not depend on who made it.
fn put(layer: &Path, name: &str, mode: u32, content: &[u8]) -> std::io::Result<()> {
    let permissions = std::fs::Permissions::from_mode;
    let file = layer.join(name);
    for dir in file.ancestors().skip(1) {
        std::fs::create_dir_all(dir)?;
        std::fs::set_permissions(dir, permissions(0o755))?;
        if dir == layer {
            break;
        }
    }
    std::fs::write(&file, content)?;
    std::fs::set_permissions(&file, permissions(mode))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::command::which;

    /// The stand-in as libvirt starts it, and libvirt's end of its event monitor.
    struct StandIn {
        dir: tempfile::TempDir,
        child: Child,
        events: BufReader<std::fs::File>,
    }

    impl StandIn {
        fn start() -> Self {
            let python = which("python3").expect("python3 is missing: install it");
            let dir = tempfile::tempdir().unwrap();
            let pipe = dir.path().join("events");
            let listener = UnixListener::bind(dir.path().join("api")).unwrap();
            rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
            let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
            assert!(made.success());
            // Whatever a test waits for comes to an end with the process.
            let child = Command::new("timeout")
                .arg("60")
                .arg(python)
                .args(["-c", STAND_IN, "--api-socket"])
                .arg(format!("fd={}", listener.as_raw_fd()))
                .arg("--event-monitor")
                .arg(format!("path={}", pipe.display()))
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let events = BufReader::new(std::fs::File::open(pipe).unwrap());
            Self { dir, child, events }
        }

        /// The status and the body of the answer.
        fn put(&self, name: &str, body: &str) -> (u16, String) {
            let mut stream = UnixStream::connect(self.dir.path().join("api")).unwrap();
            let timeout = Some(Duration::from_secs(20));
            stream.set_read_timeout(timeout).unwrap();
            let length = body.len();
            write!(
                stream,
                "PUT /api/v1/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n\
                 {body}"
            )
            .unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            let status = head.split(' ').nth(1).unwrap().parse().unwrap();
            (status, body.to_owned())
        }

        fn state(&self) -> String {
            let (status, body) = self.put("vm.info", "");
            assert_eq!(status, 200, "{body}");
            let info: serde_json::Value = serde_json::from_str(&body).unwrap();
            info["state"].as_str().unwrap().to_owned()
        }

        /// The next event, `SOURCE:NAME`.
        fn event(&mut self) -> String {
            let mut document = String::new();
            while !document.ends_with("}\n\n") {
                assert_ne!(self.events.read_line(&mut document).unwrap(), 0);
            }
            let event: serde_json::Value = serde_json::from_str(&document).unwrap();
            let part = |key| event[key].as_str().unwrap();
            format!("{}:{}", part("source"), part("event"))
        }
    }

    impl Drop for StandIn {
        fn drop(&mut self) {
            // `timeout` passes it on. An error means that it is gone already.
            drop(crate::process::signal_pid(
                self.child.id(),
                rustix::process::Signal::TERM,
            ));
            drop(self.child.wait());
        }
    }

    #[test]
    fn the_stand_in_plays_the_life_of_a_guest_and_ends_when_libvirt_destroys_it() {
        let mut vmm = StandIn::start();
        assert_eq!(vmm.put("vm.boot", "").0, 500, "nothing is created yet");
        let config = r#"{"cpus": {"boot_vcpus": 2}, "console": {"mode": "Pty"}}"#;
        assert_eq!(vmm.put("vm.create", config).0, 204);
        assert_eq!(vmm.state(), "Created");
        for (request, state) in [
            ("vm.boot", "Running"),
            ("vm.pause", "Paused"),
            ("vm.resume", "Running"),
            ("vm.reboot", "Running"),
            ("vm.shutdown", "Created"),
        ] {
            assert_eq!(vmm.put(request, "").0, 204, "{request}");
            assert_eq!(vmm.state(), state, "{request}");
        }
        assert_eq!(vmm.put("vm.pause", "").0, 500, "it does not run");
        assert_eq!(vmm.put("vm.no-such", "").0, 404);
        let events: Vec<String> = (0..10).map(|_| vmm.event()).collect();
        assert_eq!(
            events,
            [
                "vmm:starting",
                "vm:booting",
                "vm:booted",
                "vm:pausing",
                "vm:paused",
                "vm:resuming",
                "vm:resumed",
                "vm:rebooting",
                "vm:rebooted",
                "vm:shutdown",
            ]
        );
        std::fs::remove_file(vmm.dir.path().join("events")).unwrap();
        assert!(vmm.child.wait().unwrap().success());
    }

    #[test]
    fn only_the_libvirt_that_it_was_built_from_fits() {
        let dir = tempfile::tempdir().unwrap();
        let (layer, tree) = (dir.path().join("layer"), dir.path().join("tree"));
        put(&layer, VERSION, 0o644, b"11.3.0-3+deb13u3\n").unwrap();
        let status = |version: &str| {
            let text = format!(
                "Package: libvirt0-extra\nVersion: 1\n\nPackage: libvirt0\nStatus: install ok \
                 installed\nVersion: {version}\n\nPackage: zlib1g\nVersion: 2\n"
            );
            put(&tree, "var/lib/dpkg/status", 0o644, text.as_bytes()).unwrap();
        };
        status("11.3.0-3+deb13u3");
        check_fits(&layer, &tree).unwrap();
        status("11.3.0-3+deb13u1");
        let text = format!("{:#}", check_fits(&layer, &tree).unwrap_err());
        assert!(
            text.contains("deb13u3") && text.contains("deb13u1"),
            "{text}"
        );
    }
}
