//! Machines on which a lab cannot start: each is told what is wrong and what to do, and nothing
//! is left half done.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use cobalt_lab::paths::Paths;
use cobalt_lab::process::signal_pid;
use cobalt_lab::report::Report;
use cobalt_lab::tree::{self, Suite};
use rustix::process::Signal;

/// Runs a script as root of namespaces of its own; `$COBALT` is the program.
fn isolated(unshare: &[&str], directory: &Path, script: &str) -> Output {
    Command::new("unshare")
        .args(unshare)
        .args(["sh", "-ec", script])
        .env("COBALT", env!("CARGO_BIN_EXE_cobalt"))
        .env("COBALT_LABS", directory.join("labs"))
        .env("DIRECTORY", directory)
        .output()
        .unwrap()
}

fn refused(output: &Output, reason: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it was not refused: {said}");
    assert!(said.contains(reason), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_firewall_that_would_cut_machines_off_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let paths = Paths::from_env().unwrap();
    let report = Report::silent();
    let tree = tree::ensure(&paths, Suite::Bookworm, &report)
        .await
        .unwrap();
    for (rule, reason) in [
        ("-P INPUT DROP", "iptables -I INPUT -i cb+ -j ACCEPT"),
        (
            "-A INPUT ! -i lo -j REJECT",
            "iptables -I INPUT -i cb+ -j ACCEPT",
        ),
    ] {
        // A network of its own, so that the machine's firewall is left alone.
        let script = format!(
            "ip link set lo up; chroot {} iptables {rule}; \
             $COBALT lab up --with ovn --name walled || failed=1; \
             ip route show | grep . && echo 'a route is left' >&2; exit ${{failed:-0}}",
            tree.display()
        );
        refused(&isolated(&["--net"], directory.path(), &script), reason);
    }
}

#[test]
fn without_root_and_without_space_it_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let up = "$COBALT lab up --with hypervisors --name poor";
    let nobody = ["--user", "--map-user=65534"];
    refused(
        &isolated(&nobody, directory.path(), up),
        "this lab needs root",
    );
    let small = format!(
        "mount -t tmpfs -o size=64m tmpfs $DIRECTORY; export COBALT_CACHE=$DIRECTORY/cache; {up}"
    );
    let full = isolated(&["--mount"], directory.path(), &small);
    refused(&full, "MiB free, and a lab needs");
}

/// A program in front of the real ones.
fn fake(directory: &Path, name: &str, script: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let bin = directory.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let program = bin.join(name);
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    format!("{}:{path}", bin.display())
}

#[test]
fn a_package_that_cannot_be_had_and_an_interrupted_download_leave_no_tree() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("cache");
    let trees = || {
        let entries = std::fs::read_dir(&cache).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names
            .filter(|name| name.starts_with("tree-") && !name.contains('.'))
            .collect::<Vec<_>>()
    };
    let up = |path: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cobalt"));
        command
            .args(["lab", "up", "--with", "ovn", "--name", "unlucky"])
            .env("COBALT_CACHE", &cache)
            .env("COBALT_LABS", directory.path().join("labs"))
            .env("PATH", path)
            .stderr(Stdio::piped());
        command
    };

    let broken = "echo 'E: Unable to locate package ovn-central' >&2; exit 100";
    let path = fake(directory.path(), "mmdebstrap", broken);
    let output = up(&path).output().unwrap();
    refused(&output, "Unable to locate package ovn-central");
    refused(&output, "is Debian's archive reachable?");
    assert_eq!(trees(), [""; 0]);

    // It has begun to write the tree when the person changes their mind.
    let slow = "for last; do :; done; mkdir -p $last/usr; echo $$ >$last/pid; exec sleep 1000";
    let path = fake(directory.path(), "mmdebstrap", slow);
    let mut started = up(&path).spawn().unwrap();
    let pid = pid_of_download(&cache);
    signal_pid(started.id(), Signal::INT).unwrap();
    assert!(!started.wait().unwrap().success());
    assert_eq!(trees(), [""; 0]);
    let left = Path::new("/proc").join(pid.trim());
    let ended = (0..500).any(|_| {
        std::thread::park_timeout(std::time::Duration::from_millis(20));
        !left.exists()
    });
    assert!(ended, "the download goes on after Ctrl-C");
}

/// The process id that the slow download wrote, once it is there.
fn pid_of_download(cache: &Path) -> String {
    for _ in 0..500 {
        let entries = std::fs::read_dir(cache).into_iter().flatten().flatten();
        for entry in entries {
            let text = std::fs::read_to_string(entry.path().join("pid")).unwrap_or_default();
            if text.ends_with('\n') {
                return text;
            }
        }
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
    panic!("the download did not begin");
}
