//! Every way into a node ends inside it: nothing that runs there reaches the machine below.

use std::process::Output;

use cobalt_lab::control::Fault;
use cobalt_lab::node::pid_one;
use cobalt_lab::testing::output_inside;
use tokio::process::{Child, Command};

use crate::{TestLab, cobalt, kubectl, name};

/// A process of the machine below, with an id that no process of the node has.
pub struct Bystander(Child);

impl Bystander {
    pub async fn of(lab: &TestLab, node: &str) -> Self {
        loop {
            let mut command = Command::new("sleep");
            let child = command.arg("1000").kill_on_drop(true).spawn().unwrap();
            let bystander = Self(child);
            let free = format!("! test -e /proc/{}", bystander.id());
            if lab.attempt(node, &["sh", "-c", &free]).await.is_ok() {
                return bystander;
            }
        }
    }

    fn id(&self) -> String {
        self.0.id().unwrap().to_string()
    }

    #[track_caller]
    fn assert_unharmed(&mut self, way: &str) {
        let ended = self.0.try_wait().unwrap();
        assert_eq!(ended, None, "{way} has hit a process of the machine below");
    }
}

/// In the order of [`NAMESPACES`].
async fn namespaces_of_init(lab: &TestLab, node: &str) -> Vec<String> {
    let pid = init(lab, node).await;
    let link = |kind: &&str| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
    let text = |kind| link(kind).to_string_lossy().into_owned();
    NAMESPACES.iter().map(text).collect()
}

const NAMESPACES: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];

async fn init(lab: &TestLab, node: &str) -> u32 {
    let status = lab.status().await.unwrap();
    let mut nodes = status.nodes.iter();
    let found = nodes.find(|candidate| candidate.name == node).unwrap();
    pid_one(node, &found.observed).unwrap()
}

/// Whether a process with this /proc/PID/status could set the clock.
fn may_set_the_clock(status: &str) -> bool {
    const SYS_TIME: u32 = 25;
    let set = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
    let set = u64::from_str_radix(set.unwrap().trim(), 16).unwrap();
    set & (1 << SYS_TIME) != 0
}

/// The command and the function that tests use: what they run is in the node's namespaces, in no
/// process group of the caller, and cannot signal a process of the machine below.
pub async fn nothing_gets_out(lab: &TestLab, node: &str) {
    let mut bystander = Bystander::of(lab, node).await;
    let namespaces = namespaces_of_init(lab, node).await;
    let by_command = async |words: &[&str]| {
        let exec = ["lab", "exec", "--name", name(lab), node, "--"];
        cobalt(&[&exec, words].concat())
    };
    stays_inside(by_command, &mut bystander, &namespaces).await;
    let by_function = async |words: &[&str]| output_inside(lab, node, words).await.unwrap();
    stays_inside(by_function, &mut bystander, &namespaces).await;

    let status = format!("/proc/{}/status", init(lab, node).await);
    let status = std::fs::read_to_string(status).unwrap();
    assert!(!may_set_the_clock(&status), "{status}");

    for fault in [Fault::Kill, Fault::Stop] {
        let unit = format!("{node}/{}", bystander.id());
        lab.fault(fault, &unit).await.unwrap_err();
        bystander.assert_unharmed("a fault of a unit");
    }
}

async fn stays_inside(
    run: impl AsyncFn(&[&str]) -> Output,
    bystander: &mut Bystander,
    namespaces: &[String],
) {
    let text = async |words: &[&str]| String::from_utf8(run(words).await.stdout).unwrap();
    let id = bystander.id();
    let kill = format!("kill {id}");
    // Most of these begin with a builtin of the shell that enters the node.
    for words in [
        ["kill", &id].as_slice(),
        &["kill", "-0", &id],
        &["exec", "kill", &id],
        &["eval", &kill],
        &["sh", "-c", &kill],
    ] {
        let output = run(words).await;
        assert!(!output.status.success(), "{words:?}: {output:?}");
        bystander.assert_unharmed(&format!("{words:?}"));
    }
    let links = NAMESPACES.map(|kind| format!("/proc/self/ns/{kind}"));
    let mut readlink = vec!["readlink"];
    readlink.extend(links.iter().map(String::as_str));
    let seen = text(&readlink).await;
    assert_eq!(seen.lines().collect::<Vec<_>>(), namespaces);

    // The kernel shows a process group or session of another pid namespace as 0.
    let group = text(&["cut", "-d", " ", "-f", "5,6", "/proc/self/stat"]).await;
    let ids: Vec<&str> = group.split_whitespace().collect();
    assert!(ids.len() == 2 && !ids.contains(&"0"), "{group}");

    let status = text(&["cat", "/proc/self/status"]).await;
    assert!(!may_set_the_clock(&status), "{status}");
}

/// A privileged pod in the node's pid namespace is in the node, too.
pub async fn no_pod_gets_out(lab: &TestLab, node: &str, pod: &str) {
    let mut bystander = Bystander::of(lab, node).await;
    let script = format!(
        "kill {} 2>/dev/null && echo hit; readlink /proc/self/ns/pid",
        bystander.id()
    );
    let seen = kubectl(lab, &["exec", pod, "--", "sh", "-c", &script]);
    bystander.assert_unharmed("kubectl exec");
    let pid = init(lab, node).await;
    let own = std::fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap();
    assert_eq!(seen.trim(), own.to_string_lossy());
}

/// While a node boots, who enters it is refused or inside, and never in the machine's root.
pub async fn nobody_enters_too_early(lab: &TestLab, node: &str, boots: impl Future<Output = ()>) {
    let outside = std::fs::read_link("/proc/self/ns/mnt").unwrap();
    // The lab's directory is in the machine's root, and in no node's.
    let dir = lab.dir().to_str().unwrap();
    let script = "readlink /proc/self/ns/mnt; test -e \"$1\" && echo \"$1\"";
    let enters = async {
        loop {
            let entered = output_inside(lab, node, &["sh", "-c", script, "sh", dir]).await;
            let said = entered.map(|output| output.stdout).unwrap_or_default();
            let said = String::from_utf8(said).unwrap();
            assert!(!said.contains(dir), "in the machine's root: {said}");
            assert_ne!(said.trim(), outside.to_string_lossy());
        }
    };
    tokio::select! {
        () = boots => {}
        () = enters => {}
    }
}
