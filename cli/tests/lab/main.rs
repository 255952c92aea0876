//! The lab against the real thing: every test starts real clusters, and most of them real nodes.

// Helpers of tests may fail loudly, as tests do.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod bmc;
mod cloud;
mod commands;
mod drain;
mod faults;
mod hypervisors;
mod inside;
mod kubernetes;
mod leftovers;
mod light;
mod machine;
mod networks;
mod obstacles;
mod openstack;
mod output;
mod ovs;
mod session;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use cobalt_lab::cluster::Role;
use cobalt_lab::testing::output_inside;
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
    _share: Arc<SemaphorePermit<'static>>,
}

impl std::ops::Deref for TestLab {
    type Target = Lab;
    fn deref(&self) -> &Lab {
        &self.lab
    }
}

/// A test that fails leaves its lab running; the next test needs the room.
impl Drop for TestLab {
    fn drop(&mut self) {
        if self.lab.dir().is_dir() {
            cobalt(&["lab", "down", "--name", name(&self.lab)]);
        }
    }
}

impl TestLab {
    /// Runs a program inside a machine, and its success is part of the test.
    async fn run(&self, node: &str, arguments: &[&str]) -> String {
        match self.attempt(node, arguments).await {
            Ok(output) => output,
            Err(error) => panic!("{node}: {arguments:?}: {error}"),
        }
    }

    /// Runs a shell script inside a machine.
    async fn sh(&self, node: &str, script: &str) -> String {
        self.run(node, &["sh", "-ec", script]).await
    }

    /// Runs a program inside a machine; what it said on standard error when it failed.
    async fn attempt(&self, node: &str, arguments: &[&str]) -> Result<String, String> {
        let output = output_inside(&self.lab, node, arguments).await.unwrap();
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Starts a lab.
async fn lab(config: LabConfig) -> TestLab {
    let [lab] = labs([config]).await;
    lab
}

/// A share of the machine for labs. All tests together stay below the kernel's limit of inotify
/// instances per user, which also keeps them from crowding two cores. A test takes its share at
/// once: who holds one and waits for another could wait for ever.
async fn share(configs: &[LabConfig]) -> Arc<SemaphorePermit<'static>> {
    static SHARES: Semaphore = Semaphore::const_new(100);
    let needs = configs.iter().map(cobalt_lab::setup::inotify_needs);
    let share = u32::try_from(needs.sum::<usize>()).unwrap();
    Arc::new(SHARES.acquire_many(share).await.unwrap())
}

/// Starts labs side by side.
async fn labs<const N: usize>(configs: [LabConfig; N]) -> [TestLab; N] {
    let share = share(&configs).await;
    let starting = configs.map(cobalt_lab::testing::lab);
    let started = futures::future::join_all(starting).await;
    let labs: Vec<TestLab> = started
        .into_iter()
        .map(|lab| TestLab {
            lab: lab.unwrap(),
            _share: Arc::clone(&share),
        })
        .collect();
    labs.try_into().ok().unwrap()
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
