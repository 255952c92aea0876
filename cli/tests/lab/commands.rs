//! `cobalt lab` as people and scripts use it.

use std::process::Command;

use crate::{cobalt_ok, cobalt_refused};

#[tokio::test(flavor = "multi_thread")]
async fn a_person_starts_uses_and_ends_a_lab() {
    let name = format!("person-{}", std::process::id());
    let lab = ["--name", name.as_str()];
    cobalt_ok(&["lab", "up", "--api-only", "--name", &name]);

    // `eval "$(cobalt lab env)"` is all that a shell needs.
    let cobalt = env!("CARGO_BIN_EXE_cobalt");
    let script = format!("eval \"$({cobalt} lab env --name {name})\" && kubectl get namespaces");
    let shell = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(
        shell.status.success(),
        "{}",
        String::from_utf8_lossy(&shell.stderr)
    );
    assert!(String::from_utf8_lossy(&shell.stdout).contains("kube-system"));

    let status = cobalt_ok(&["lab", "status", lab[0], lab[1], "-o", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status[0]["state"], "ready");
    let processes: Vec<&str> = status[0]["clusters"][0]["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|process| process["name"].as_str().unwrap())
        .collect();
    assert_eq!(processes, ["hypervisor/etcd", "hypervisor/apiserver"]);
    assert!(cobalt_ok(&["lab", "status", lab[0], lab[1]]).contains("ready"));

    let list = cobalt_ok(&["lab", "logs", lab[0], lab[1]]);
    assert!(
        list.contains("hypervisor/apiserver") && list.contains("supervisor"),
        "{list}"
    );
    assert!(!cobalt_ok(&["lab", "logs", lab[0], lab[1], "hypervisor/apiserver"]).is_empty());

    let refused = |arguments: &[&str], remedy: &str| {
        let said = cobalt_refused(&[arguments, &lab].concat());
        assert!(said.contains(remedy), "{arguments:?}: {said}");
    };
    refused(&["lab", "up", "--api-only"], "runs already");
    refused(
        &["lab", "fault", "kill", "nothing"],
        "targets are hypervisor/etcd",
    );
    refused(&["lab", "fault", "cut", "hypervisor/etcd"], "cut a machine");
    refused(&["lab", "power", "off", "n1"], "there is no node n1");
    refused(&["lab", "logs", "nothing"], "there are: ");

    cobalt_ok(&["lab", "down", lab[0], lab[1]]);
    // A second time is fine: it is down.
    cobalt_ok(&["lab", "down", lab[0], lab[1]]);
    refused(&["lab", "env"], "there is no lab named");
}

#[test]
fn mistakes_are_told_with_a_remedy() {
    for (arguments, remedy) in [
        (&["lab", "up", "--name", "Not Good"][..], "1 to 32 of a-z"),
        (&["lab", "up", "--nodes", "101"], "--played-nodes"),
        (
            &["lab", "up", "--clusters", "storage,storage"],
            "named twice",
        ),
        (&["lab", "up", "--with", "teapot"], "possible values: kube"),
        (
            &["lab", "up", "--flavours", "trixie"],
            "add `hypervisors` to --with",
        ),
        (
            &[
                "lab",
                "up",
                "--with",
                "hypervisors",
                "--nodes",
                "1",
                "--flavours",
                "trixie,trixie",
            ],
            "at most one for each",
        ),
        (
            &[
                "lab",
                "up",
                "--with",
                "kube,hypervisors",
                "--clusters",
                "storage",
            ],
            "add hypervisor to --clusters",
        ),
        (&["lab", "up", "--servers", "1"], "need `openstack`"),
        (
            &["lab", "up", "--with", "openstack", "--servers", "1"],
            "need hypervisors to run on",
        ),
        (
            &["lab", "up", "--with", "openstack,openstack-light"],
            "exclude each other",
        ),
        (&["lab", "up", "--with", "ovn,bmc"], "bmc needs nodes"),
        (&["lab", "up", "--chart", "/nowhere"], "is not a Helm chart"),
        (
            &["lab", "power", "explode", "n1"],
            "possible values: on, off, reboot, loss",
        ),
    ] {
        let said = cobalt_refused(arguments);
        assert!(said.contains(remedy), "{arguments:?}: {said}");
    }
}

#[test]
fn a_machine_without_go_is_told_what_to_install() {
    let cache = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_cobalt"))
        .args(["lab", "prepare", "--api-only"])
        .env("COBALT_CACHE", cache.path())
        .env("PATH", "/nonexistent")
        .env_remove("KUBEBUILDER_ASSETS")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        said.contains("install Go") && said.contains("KUBEBUILDER_ASSETS"),
        "{said}"
    );
}

#[test]
fn a_relative_directory_is_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_cobalt"))
        .args(["lab", "status"])
        .env("COBALT_LABS", "here")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("COBALT_LABS=here is not an absolute path"),
        "{said}"
    );
}
