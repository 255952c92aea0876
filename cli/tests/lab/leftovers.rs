//! Nothing of a lab stays on the machine, however it ends.

use std::process::{Command, Stdio};

use cobalt_lab::LabConfig;
use cobalt_lab::plan::Flavour;
use cobalt_lab::process::signal_pid;
use rustix::process::Signal;

use crate::machine::{Machine, settings};
use crate::{cobalt, cobalt_ok, cobalt_refused, lab, name};

#[tokio::test(flavor = "multi_thread")]
async fn a_lab_that_goes_down_leaves_nothing_and_changes_no_setting() {
    let before = settings();
    let mut config = LabConfig::with_nodes("tidy", 1);
    config.clusters[0].hypervisors = Some(Vec::new());
    config.ovn = true;
    let lab = lab(config).await;
    let status = lab.status().await.unwrap();
    assert!(Machine::of(&status.id).is_inhabited());
    assert_eq!(
        settings(),
        before,
        "a running node changes no setting of the machine"
    );
    let range = status.addresses.unwrap();
    assert_eq!(Machine::guards(&range).len(), 1, "the guard route is there");
    cobalt_ok(&["lab", "down", "--name", name(&lab)]);
    let after = Machine::of(&status.id);
    assert!(after.is_clean(), "{after:?}");
    assert!(Machine::guards(&range).is_empty());
    assert!(!lab.dir().exists());
    assert_eq!(settings(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_lab_left_is_removed_by_clean() {
    let mut config = LabConfig::with_hypervisors("killed", &[Flavour::Bookworm; 2]);
    config.ovn = true;
    let lab = lab(config).await;
    let status = lab.status().await.unwrap();
    signal_pid(status.pid.unwrap(), Signal::KILL).unwrap();
    let left = Machine::of(&status.id);
    assert!(
        left.is_inhabited(),
        "a killed supervisor can clean nothing: {left:?}"
    );

    cobalt_ok(&["lab", "clean"]);
    let after = Machine::of(&status.id);
    assert!(after.is_clean(), "{after:?}");
    assert!(Machine::guards(&status.addresses.unwrap()).is_empty());
    assert!(!lab.dir().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lab_ends_with_its_owner() {
    let mut owner = Command::new("sleep").arg("1000").spawn().unwrap();
    let mut config = cobalt_lab::LabConfig::api_only(format!("owned-{}", std::process::id()));
    config.owner = Some(owner.id());
    let paths = cobalt_lab::paths::Paths::from_env().unwrap();
    drop(rustls::crypto::ring::default_provider().install_default());
    let lab = cobalt_lab::Lab::up(
        &paths,
        config,
        env!("CARGO_BIN_EXE_cobalt").as_ref(),
        &cobalt_lab::report::Report::silent(),
    )
    .await
    .unwrap();
    let lock = std::fs::File::open(lab.dir().join("lock")).unwrap();
    owner.kill().unwrap();
    owner.wait().unwrap();
    // The supervisor holds it until its very end.
    tokio::task::spawn_blocking(move || lock.lock())
        .await
        .unwrap()
        .unwrap();
    assert!(!lab.dir().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_start_leaves_nothing() {
    // After the addresses, while machines boot, and when most of them have booted.
    for line in 1..=3 {
        let name = format!("interrupted{line}-{}", std::process::id());
        let mut up = Command::new(env!("CARGO_BIN_EXE_cobalt"))
            // So many that the last of them boots for some seconds after the third line.
            .args(["lab", "up", "--with", "hypervisors,ovn", "--nodes", "4"])
            .args(["--name", &name])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = std::io::BufReader::new(up.stderr.take().unwrap());
        let mut lines = std::io::BufRead::lines(said);
        lines.next().unwrap().unwrap();
        // Not right before the signal: the lab might be ready by then.
        let status = status_of(&name);
        for _ in 1..line {
            lines.next().unwrap().unwrap();
        }
        signal_pid(up.id(), Signal::INT).unwrap();
        // Whatever else it says must not keep it from ending.
        lines.for_each(drop);
        let ended = up.wait().unwrap();
        if ended.success() {
            cobalt_ok(&["lab", "down", "--name", &name]);
        }
        assert!(!ended.success(), "it was ready before the signal came");
        let after = Machine::of(&status);
        assert!(after.is_clean(), "{after:?}");
        assert!(cobalt_refused(&["lab", "env", "--name", &name]).contains("there is no lab"));
    }
}

fn status_of(name: &str) -> String {
    let text = cobalt(&["lab", "status", "--name", name, "-o", "json"]).stdout;
    let status: serde_json::Value = serde_json::from_slice(&text).unwrap();
    status[0]["id"].as_str().unwrap().to_owned()
}
