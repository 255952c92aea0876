//! A node: a real small machine in namespaces of its own, with systemd as pid 1. Kubernetes
//! nodes, hypervisors, and the machines of OVN and OpenStack are all made like this.
//!
//! Its root is an overlay of a shared Debian tree and a directory of its own; `/var` is a
//! plain directory, because containerd cannot put its overlays on an overlay. This module is
//! the node's power supply: it boots it, sees how it ended, and boots it again after a reboot.
//! The node's systemd says itself when it has booted, as it does to a container manager.
//!
//! ```text
//!        boot                     pid 1 ends with SIGHUP (reboot)
//!  Off ---------> On ---------------------------------------------> On, new boot id
//!   ^              |  SIGINT (power-off), anything else (crash, power loss)
//!   +--------------+
//! ```

pub mod files;
pub mod hypervisor;
pub mod kubernetes;
pub mod logins;
pub mod ovn;
pub mod stage;

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use tokio::net::UnixDatagram;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot, watch};

use crate::cgroup::Layout;
use crate::cluster::Role;
use crate::command::{Run, patience};
use crate::net::NodeLink;
use crate::plan::{Bind, Kind};
use crate::process::{children, kill, open_log, spawn};

/// Everything that the stages of a boot need; they read it from a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSpec {
    /// The lab's id.
    pub lab: String,
    /// The node's name, also its hostname.
    pub name: String,
    /// The node's directory.
    pub dir: PathBuf,
    /// What it is.
    pub kind: Kind,
    /// The Kubernetes cluster that it is a node of.
    pub cluster: Option<Role>,
    /// The shared layers of its root file system, the uppermost first.
    pub layers: Vec<PathBuf>,
    /// What it sees of the machine below.
    pub binds: Vec<Bind>,
    /// How many NUMA cells it shows; 0: those of the machine below.
    pub numa_cells: u8,
    /// This program, for the stages of a boot.
    pub exe: PathBuf,
    /// The machine's serial number, so to speak: machine-id and more derive from it.
    pub uuid: String,
    /// New at each boot.
    pub boot_id: String,
    /// The name of its control group.
    pub group: String,
    /// The machine's control groups.
    pub layout: Layout,
    /// Its network.
    pub link: NodeLink,
}

impl NodeSpec {
    fn file(&self) -> PathBuf {
        self.dir.join("spec.json")
    }

    /// Where its systemd says that it has booted.
    pub fn notify_socket(&self) -> PathBuf {
        self.dir.join("notify")
    }
}

/// What a person can do to a node's power.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Power {
    /// Switch it on.
    On,
    /// Shut it down in an orderly way and leave it off.
    Off,
    /// Shut it down in an orderly way and start it again.
    Reboot,
    /// Pull the plug.
    Loss,
}

/// What is known of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// Whether it has power.
    pub on: bool,
    /// Whether it has booted: all its units were started.
    pub booted: bool,
    /// How often it has booted.
    pub boots: u32,
    /// The id of the current or last boot.
    pub boot_id: String,
    /// How it ended last: `off`, `reboot` or `crash`.
    pub last_end: Option<String>,
    /// Whether all its cables are pulled.
    pub cut: bool,
    /// Cables to other machines that are pulled on their own.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub cut_cables: BTreeSet<String>,
    /// Whether its processes are stopped.
    pub frozen: bool,
    /// The machine's process that carries it; its only child is the node's pid 1.
    pub carrier: Option<u32>,
}

#[derive(Debug)]
enum Order {
    Power(Power, oneshot::Sender<Result<()>>),
    Cut(Option<String>, bool, oneshot::Sender<Result<()>>),
    Freeze(bool, oneshot::Sender<Result<()>>),
}

/// The switchboard of one node.
#[derive(Debug)]
pub struct Node {
    /// What it is made of; `boot_id` is that of the first boot.
    pub spec: NodeSpec,
    orders: mpsc::Sender<Order>,
    observed: watch::Receiver<Observed>,
}

impl Node {
    /// Makes the power supply; the node is still off.
    pub fn new(spec: NodeSpec) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (orders, inbox) = mpsc::channel(16);
        let (publish, observed) = watch::channel(Observed {
            on: false,
            booted: false,
            boots: 0,
            boot_id: spec.boot_id.clone(),
            last_end: None,
            cut: false,
            cut_cables: BTreeSet::new(),
            frozen: false,
            carrier: None,
        });
        let supply = Supply {
            spec: spec.clone(),
            publish,
            child: None,
            notify: None,
            waiting: Vec::new(),
        };
        (
            Self {
                spec,
                orders,
                observed,
            },
            supply.run(inbox),
        )
    }

    /// What is known of it now.
    pub fn observed(&self) -> Observed {
        self.observed.borrow().clone()
    }

    /// Changes its power; returns when the change has happened (a boot has begun, the machine
    /// is off), not when the node is Ready.
    pub async fn power(&self, power: Power) -> Result<()> {
        let (answer, result) = oneshot::channel();
        self.orders
            .send(Order::Power(power, answer))
            .await
            .map_err(|_| gone())?;
        let deadline = patience(Duration::from_secs(180));
        tokio::time::timeout(deadline, result)
            .await
            .with_context(|| format!("{} did not follow within {deadline:?}", self.spec.name))?
            .map_err(|_| gone())?
    }

    /// Waits until it has booted, and fails when a unit of it did.
    pub async fn booted(&self) -> Result<()> {
        let name = &self.spec.name;
        let mut observed = self.observed.clone();
        let deadline = patience(Duration::from_secs(180));
        let console = || crate::process::log_end(&self.spec.dir.join("console.log"));
        let seen = tokio::time::timeout(deadline, observed.wait_for(|o| o.booted || !o.on))
            .await
            .map_err(|_| anyhow!("{name} did not boot within {deadline:?}:\n{}", console()))?
            .map_err(|_| gone())?
            .clone();
        if !seen.on {
            bail!("{name} went off while it booted:\n{}", console());
        }
        let Some(unit) = self.broken_unit().await? else {
            return Ok(());
        };
        let status = format!("systemctl status --no-pager --full --lines=15 {unit}; true");
        let status = self.output(&["sh", "-c", &status]).await?;
        bail!("the unit {unit} of {name} does not run:\n{status}")
    }

    /// A unit that failed.
    async fn broken_unit(&self) -> Result<Option<String>> {
        if self.spec.kind == Kind::Hypervisor {
            // Returns when they run or have failed; systemd may be trying again.
            let mut start = vec!["systemctl", "start"];
            start.extend(hypervisor::SERVICES);
            if let Err(error) = self.output(&start).await {
                tracing::warn!(error = format!("{error:#}"), "a service did not start");
            }
        }
        let list = [
            "systemctl",
            "list-units",
            "--state=failed",
            "--plain",
            "--no-legend",
        ];
        let units = self.output(&list).await?;
        Ok(units.split_whitespace().next().map(ToOwned::to_owned))
    }

    /// Runs a program inside and returns what it printed.
    pub async fn output(&self, arguments: &[&str]) -> Result<String> {
        let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        self.run(&arguments, Duration::from_secs(60)).await
    }

    /// The same, with a deadline of the caller's.
    pub async fn run(&self, arguments: &[String], deadline: Duration) -> Result<String> {
        let command = enter(pid_one(&self.spec.name, &self.observed())?, arguments);
        let (program, arguments) = command.split_first().context("an empty command")?;
        Run::new(program, arguments)
            .deadline(deadline)
            .output()
            .await
            .with_context(|| format!("on {}", self.spec.name))
    }

    /// Pulls or reconnects one cable to another machine, or all cables.
    pub async fn cut(&self, cable: Option<&str>, cut: bool) -> Result<()> {
        let (answer, result) = oneshot::channel();
        self.orders
            .send(Order::Cut(cable.map(ToOwned::to_owned), cut, answer))
            .await
            .map_err(|_| gone())?;
        result.await.map_err(|_| gone())?
    }

    /// Stops or continues all its processes.
    pub async fn freeze(&self, frozen: bool) -> Result<()> {
        let (answer, result) = oneshot::channel();
        self.orders
            .send(Order::Freeze(frozen, answer))
            .await
            .map_err(|_| gone())?;
        result.await.map_err(|_| gone())?
    }
}

fn gone() -> anyhow::Error {
    anyhow!("the lab is going down")
}

/// The process id of a node's pid 1 as the machine sees it. Refused until pid 1 has left the
/// machine's root: who entered earlier would work on the machine's own files.
pub fn pid_one(name: &str, observed: &Observed) -> Result<u32> {
    let pid = first_process(name, observed)?;
    if !is_inside(pid) {
        return Err(only_begun(name));
    }
    Ok(pid)
}

/// The first process in a node's pid namespace, from the first moment of a boot on.
fn first_process(name: &str, observed: &Observed) -> Result<u32> {
    let carrier = observed
        .carrier
        .filter(|_| observed.on)
        .with_context(|| format!("{name} is off; `cobalt lab power on {name}` switches it on"))?;
    let first = children(carrier).first().copied();
    first.ok_or_else(|| only_begun(name))
}

fn only_begun(name: &str) -> anyhow::Error {
    anyhow!("{name} has only begun to boot")
}

/// Whether a process is a node's init. A boot executes systemd as its last step, after it has
/// changed the root.
fn is_inside(pid: u32) -> bool {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
    let comm = read("comm").unwrap_or_default();
    comm.starts_with("systemd") && is_init_of_a_namespace(&read("status").unwrap_or_default())
}

/// Whether /proc/PID/status is about pid 1 of a pid namespace below the reader's.
fn is_init_of_a_namespace(status: &str) -> bool {
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let pids: Vec<&str> = pids.unwrap_or_default().split_whitespace().collect();
    pids.len() > 1 && pids.last() == Some(&"1")
}

/// What the entering shell runs. The shell has joined all namespaces of the node, but only what it
/// forks is in the pid namespace. So it must not run a word of the caller itself: a plain `"$@"`
/// takes `kill` for the shell's builtin, which signals a process of the machine below. `exec` in a
/// subshell takes programs only, and the subshell is inside.
///
/// Without a terminal the program gets a session of its own, else a `kill 0` in the node would
/// reach the caller's process group. On a terminal it stays in that group, like any foreground job.
const INSIDE: &str = "if [ -t 0 ] || [ -t 1 ] || [ -t 2 ]; then (exec \"$@\"); \
                      else (exec setsid -- \"$@\"); fi; exit $?";

/// The kernel has one clock, that of the machine below: no process of a node may set it.
const NO_CLOCK: &str = "--bounding-set=-sys_time";

/// A command that runs a program inside a node, in all its namespaces. A forking nsenter would keep
/// the node from ever ending (systemd-shutdown stops all processes, and the fork waits for a
/// stopped child), and a plain exec would leave the program without a parent that collects it:
/// hence the shell.
pub fn enter(pid_one: u32, arguments: &[String]) -> Vec<String> {
    let pid = pid_one.to_string();
    let mut command: Vec<String> = [
        "nsenter",
        "-F",
        "-t",
        &pid,
        "-a",
        "env",
        "-i",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/kubernetes",
        "HOME=/root",
        "LANG=C.UTF-8",
        "container=lab",
    ]
    .map(ToOwned::to_owned)
    .to_vec();
    command.push(format!(
        "TERM={}",
        std::env::var("TERM").unwrap_or_else(|_| "dumb".into())
    ));
    command.extend(["setpriv", NO_CLOCK, "sh", "-c", INSIDE, "sh"].map(ToOwned::to_owned));
    command.extend_from_slice(arguments);
    command
}

/// The task behind a [`Node`].
struct Supply {
    spec: NodeSpec,
    publish: watch::Sender<Observed>,
    child: Option<Child>,
    notify: Option<UnixDatagram>,
    /// Who waits for the node to end, and whether it shall boot again then.
    waiting: Vec<(Power, oneshot::Sender<Result<()>>)>,
}

impl Supply {
    async fn run(mut self, mut inbox: mpsc::Receiver<Order>) {
        loop {
            let ended = async {
                match &mut self.child {
                    Some(child) => child.wait().await,
                    None => std::future::pending().await,
                }
            };
            let mut message = [0; 4096];
            let told = async {
                match &self.notify {
                    Some(socket) => socket.recv(&mut message).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                order = inbox.recv() => match order {
                    Some(order) => self.follow(order).await,
                    None => return,
                },
                status = ended => self.ended(status.ok()).await,
                length = told => {
                    let text = message.get(..length.unwrap_or(0)).unwrap_or_default();
                    if text.split(|&byte| byte == b'\n').any(|line| line == b"READY=1") {
                        self.publish.send_modify(|observed| observed.booted = true);
                    }
                }
            }
        }
    }

    async fn follow(&mut self, order: Order) {
        // A caller that has gone away does not change what happens to the node.
        match order {
            Order::Power(power, answer) => {
                match self.begin(power).await {
                    Ok(true) => self.waiting.push((power, answer)),
                    Ok(false) => drop(answer.send(Ok(()))),
                    Err(error) => drop(answer.send(Err(error))),
                };
            }
            Order::Cut(cable, cut, answer) => {
                self.publish.send_modify(|observed| match cable {
                    Some(name) if cut => drop(observed.cut_cables.insert(name)),
                    Some(name) => drop(observed.cut_cables.remove(&name)),
                    None => observed.cut = cut,
                });
                let result = if self.child.is_some() {
                    self.set_cables().await
                } else {
                    Ok(())
                };
                drop(answer.send(result));
            }
            Order::Freeze(frozen, answer) => {
                let result = if self.child.is_some() {
                    self.spec.layout.freeze(&self.spec.group, frozen)
                } else {
                    Err(anyhow!("{} is off", self.spec.name))
                };
                if result.is_ok() {
                    self.publish
                        .send_modify(|observed| observed.frozen = frozen);
                }
                drop(answer.send(result));
            }
        }
    }

    /// Starts a change; true when it is complete only once the node has ended.
    async fn begin(&mut self, power: Power) -> Result<bool> {
        let on = self.child.is_some();
        match power {
            Power::On if on => Ok(false),
            Power::On => self.boot().await.map(|()| false),
            Power::Off | Power::Loss if !on => Ok(false),
            Power::Reboot if !on => {
                bail!(
                    "{0} is off; `cobalt lab power on {0}` switches it on",
                    self.spec.name
                )
            }
            Power::Loss => {
                self.thaw();
                let observed = self.publish.borrow().clone();
                kill(first_process(&self.spec.name, &observed)?);
                Ok(true)
            }
            Power::Off | Power::Reboot if self.publish.borrow().frozen => {
                bail!(
                    "{0} is stopped; `cobalt lab fault cont {0}` continues it",
                    self.spec.name
                )
            }
            Power::Off => self.systemctl("poweroff").map(|()| true),
            Power::Reboot => self.systemctl("reboot").map(|()| true),
        }
    }

    /// Pulls the cables that shall be pulled and connects the others.
    async fn set_cables(&self) -> Result<()> {
        let observed = self.publish.borrow().clone();
        let link = &self.spec.link;
        link.set_carrier(!observed.cut).await?;
        for cable in &link.cables {
            let connected = !observed.cut && !observed.cut_cables.contains(&cable.name);
            // At the other end: when that machine is off there is nothing to pull.
            if let Err(error) = link.set_cable(cable, connected).await {
                tracing::debug!(cable = cable.name, error = format!("{error:#}"), "no cable");
            }
        }
        Ok(())
    }

    /// A stopped process takes no signal, not even the last one.
    fn thaw(&self) {
        if self.publish.borrow().frozen && self.spec.layout.freeze(&self.spec.group, false).is_ok()
        {
            self.publish.send_modify(|observed| observed.frozen = false);
        }
    }

    /// Asks the node's systemd. The answer is the end of the node.
    fn systemctl(&self, verb: &str) -> Result<()> {
        let observed = self.publish.borrow().clone();
        let command = enter(
            pid_one(&self.spec.name, &observed)?,
            &[
                "systemctl".to_owned(),
                "--no-block".to_owned(),
                verb.to_owned(),
            ],
        );
        let (program, arguments) = command.split_first().context("an empty command")?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(open_log(&self.spec.dir.join("console.log"))?)
            .spawn()
            .context("failed to start nsenter")?;
        // Collects the process; it ends with the node at the latest.
        #[allow(
            clippy::disallowed_methods,
            reason = "it ends with the process that it waits for"
        )]
        drop(tokio::spawn(async move { child.wait().await }));
        Ok(())
    }

    async fn boot(&mut self) -> Result<()> {
        self.spec.boot_id = new_uuid()?;
        let spec = serde_json::to_vec(&self.spec).context("failed to encode the node")?;
        crate::paths::write_atomic(&self.spec.file(), &spec)?;
        self.spec.layout.prepare(&self.spec.group).await?;
        self.spec.link.unplug().await;
        self.spec.link.plug().await?;
        self.set_cables().await?;
        let socket = self.spec.notify_socket();
        drop(std::fs::remove_file(&socket));
        let notify = UnixDatagram::bind(&socket)
            .with_context(|| format!("failed to make {}", socket.display()))?;
        self.notify = Some(notify);
        let mut command = Vec::new();
        if matches!(self.spec.layout, Layout::V2 { systemd: true, .. }) {
            let unit = format!("--unit={}", self.spec.group);
            command.extend(
                [
                    "systemd-run",
                    "--quiet",
                    "--collect",
                    "--scope",
                    &unit,
                    // Without a description the command line becomes it, and systemd cannot
                    // read that back at its next reload.
                    "--description=a node of a lab",
                    "--property=Delegate=yes",
                    "--property=KillSignal=SIGKILL",
                    "--property=TasksMax=infinity",
                ]
                .map(ToOwned::to_owned),
            );
        }
        command.push(self.spec.exe.to_string_lossy().into_owned());
        command.extend(["lab", "node-stage", "enter"].map(ToOwned::to_owned));
        command.push(self.spec.file().to_string_lossy().into_owned());
        let child = spawn(&command, &self.spec.lab, &self.spec.dir.join("console.log"))
            .with_context(|| format!("failed to boot {}", self.spec.name))?;
        self.publish.send_modify(|observed| {
            observed.on = true;
            observed.booted = false;
            observed.boots += 1;
            observed.boot_id.clone_from(&self.spec.boot_id);
            observed.carrier = child.id();
            observed.frozen = false;
        });
        self.child = Some(child);
        Ok(())
    }

    async fn ended(&mut self, status: Option<ExitStatus>) {
        self.child = None;
        self.notify = None;
        let end = status.map_or("crash", how_it_ended);
        self.publish.send_modify(|observed| {
            observed.on = false;
            observed.booted = false;
            observed.carrier = None;
            observed.last_end = Some(end.to_owned());
        });
        self.spec.link.unplug().await;
        let mut result = self.spec.layout.remove(&self.spec.group).await;
        let rebooting = end == "reboot"
            || (end == "off"
                && self
                    .waiting
                    .iter()
                    .any(|(power, _)| *power == Power::Reboot));
        if rebooting && result.is_ok() {
            result = self.boot().await;
        }
        if let Err(error) = &result {
            tracing::error!(
                node = self.spec.name,
                error = format!("{error:#}"),
                "node is stuck"
            );
        }
        for (_, answer) in self.waiting.drain(..) {
            let copy = match &result {
                Ok(()) => Ok(()),
                Err(error) => Err(anyhow!("{error:#}")),
            };
            drop(answer.send(copy));
        }
    }
}

/// reboot(2) in a pid namespace ends its pid 1 with SIGHUP (reboot) or SIGINT (off, halt).
fn how_it_ended(status: ExitStatus) -> &'static str {
    match (status.signal(), status.code()) {
        (Some(1), _) | (_, Some(129)) => "reboot",
        (Some(2), _) | (_, Some(130)) => "off",
        _ => "crash",
    }
}

/// A random id from the kernel.
pub fn new_uuid() -> Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid")
        .context("failed to read a random id from the kernel")?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_pid_one_tells_what_happened() {
        for (raw, end) in [
            (1, "reboot"),
            (2, "off"),
            (9, "crash"),
            (129 << 8, "reboot"),
            (0, "crash"),
        ] {
            assert_eq!(how_it_ended(ExitStatus::from_raw(raw)), end, "{raw}");
        }
    }

    #[test]
    fn only_the_init_of_a_nested_namespace_is_entered() {
        assert!(is_init_of_a_namespace("Name:\tsystemd\nNSpid:\t4711\t1\n"));
        // The machine's own init, a process of a node, one of the machine, no process.
        for status in ["NSpid:\t1\n", "NSpid:\t4711\t17\n", "NSpid:\t4711\n", ""] {
            assert!(!is_init_of_a_namespace(status), "{status}");
        }
        assert!(!is_inside(std::process::id()));
    }

    /// What a shell does that was entered with these words, but for the namespaces.
    fn entering_shell(words: &[&str]) -> std::process::Output {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let command = enter(1, &words);
        let shell = command.iter().position(|word| word == "sh").unwrap();
        let (program, arguments) = command[shell..].split_first().unwrap();
        let mut command = std::process::Command::new(program);
        command.args(arguments).output().unwrap()
    }

    #[test]
    fn the_entering_shell_runs_no_builtin_of_its_own_for_the_caller() {
        for builtin in ["eval", "export", "trap", "."] {
            let output = entering_shell(&[builtin, "echo built in"]);
            assert!(!output.status.success(), "{builtin}: {output:?}");
            assert!(output.stdout.is_empty(), "{builtin}: {output:?}");
        }
        let status = |words: &[&str]| entering_shell(words).status.code();
        assert_eq!(status(&["sh", "-c", "exit 7"]), Some(7));
        assert_eq!(status(&["/nonexistent"]), Some(127));
    }

    #[test]
    fn what_is_run_inside_shares_no_process_group_with_its_caller() {
        let output = entering_shell(&["cut", "-d", " ", "-f", "1,5,6", "/proc/self/stat"]);
        let text = String::from_utf8(output.stdout).unwrap();
        let [pid, group, session] = text.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{text}");
        };
        assert_eq!((group, session), (pid, pid));
    }
}
