//! The lab against the real thing: every test starts real clusters, and most of them real nodes.

// Helpers of tests may fail loudly, as tests do.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod commands;
mod faults;
mod kubernetes;
mod leftovers;
mod machine;

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use cobalt_lab::cluster::Role;
use cobalt_lab::{Lab, LabConfig};
use k8s_openapi::api::core::v1::Node;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Runs the `cobalt` of this build.
fn cobalt(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cobalt"))
        .args(arguments)
        .output()
        .unwrap()
}

/// Runs it, and its success is part of the test.
fn cobalt_ok(arguments: &[&str]) -> String {
    let output = cobalt(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "cobalt {arguments:?} failed: {said}"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs it, and returns why it failed.
fn cobalt_refused(arguments: &[&str]) -> String {
    let output = cobalt(arguments);
    assert!(
        !output.status.success(),
        "cobalt {arguments:?} was not refused"
    );
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A lab that ends with this process, and its share of the machine.
struct TestLab {
    lab: Lab,
    _share: SemaphorePermit<'static>,
}

impl std::ops::Deref for TestLab {
    type Target = Lab;
    fn deref(&self) -> &Lab {
        &self.lab
    }
}

/// Starts a lab. All tests together have four nodes at a time: more would be slower on two
/// cores, and the kernel allows a user only so many inotify instances.
async fn lab(name: &str, nodes: u8) -> TestLab {
    static NODES: Semaphore = Semaphore::const_new(4);
    let _share = NODES.acquire_many(u32::from(nodes)).await.unwrap();
    let lab = cobalt_lab::testing::lab(LabConfig::with_nodes(name, nodes))
        .await
        .unwrap();
    TestLab { lab, _share }
}

/// The name by which commands know a lab.
fn name(lab: &Lab) -> &str {
    lab.dir().file_name().unwrap().to_str().unwrap()
}

/// kubectl with a lab's kubeconfig.
fn kubectl(lab: &Lab, arguments: &[&str]) -> String {
    let program = lab.bin().unwrap().join("kubectl");
    run(&program, &lab.kubeconfig(), arguments)
}

fn run(program: &Path, kubeconfig: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .env("KUBECONFIG", kubeconfig)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{} {arguments:?}: {said}",
        program.display()
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until a node's Ready condition has this status; a watch, not a poll.
async fn wait_for_ready(lab: &Lab, node: &str, status: &str) {
    let nodes: kube::Api<Node> = kube::Api::all(lab.client(Role::Hypervisor).await.unwrap());
    let is = |object: Option<&Node>| ready(object).as_deref() == Some(status);
    let waiting = kube::runtime::wait::await_condition(nodes.clone(), node, is);
    if tokio::time::timeout(Duration::from_secs(120), waiting)
        .await
        .is_err()
    {
        let last = nodes.get(node).await;
        panic!("{node} never became Ready={status}; last seen: {last:?}");
    }
}

fn ready(node: Option<&Node>) -> Option<String> {
    let conditions = node?.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|c| c.type_ == "Ready")
        .map(|c| c.status.clone())
}
