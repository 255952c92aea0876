//! The host task on real machines: systemd 252 and 257, their bus, logind and hostnamed.

use std::fmt::Debug;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cobalt_api::conditions::{self, HypervisorCondition as Type, Reason, Status};
use cobalt_api::eviction::Eviction;
use cobalt_api::hypervisor::{Hypervisor, HypervisorStatus};
use cobalt_lab::Lab;
use cobalt_lab::guests::MicroDomain;
use cobalt_lab::node::{self, Power};
use cobalt_lab::plan::Flavour;
use cobalt_lab::report::Report;
use cobalt_lab::testing::ApiServer;
use k8s_openapi::api::core::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::support::{Hosts, server, unique};

const PATIENCE: Duration = Duration::from_secs(120);
const HOST: &str = "hv1";

/// A machine, its Hypervisor and the agent in it.
struct Host {
    /// Ends before its machine.
    agent: Option<Agent>,
    lab: Hosts,
    server: &'static ApiServer,
    client: Client,
    /// The name of the Hypervisor: the API server is shared.
    node: String,
    /// More flags of the agent.
    flags: &'static [&'static str],
}

/// The agent's process, inside the machine: logind wants to know who asks.
struct Agent {
    /// It ends with the agent.
    shell: Child,
    pid: i32,
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Where its machine has gone down it is gone as well, and its number may be another's.
        if matches!(self.shell.try_wait(), Ok(None)) {
            let pid = rustix::process::Pid::from_raw(self.pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
        }
    }
}

impl Host {
    async fn start(flavour: Flavour, spec: Value) -> Self {
        let (server, client) = server().await;
        let node = unique("host");
        let hypervisor: Hypervisor = serde_json::from_value(json!({
            "apiVersion": "kvm.cloud.sap/v1", "kind": "Hypervisor",
            "metadata": { "name": node, "labels": { "topology.kubernetes.io/zone": "z1" } },
            "spec": spec,
        }))
        .unwrap();
        let api: Api<Hypervisor> = Api::all(client.clone());
        api.create(&PostParams::default(), &hypervisor)
            .await
            .unwrap();
        let mut host = Self {
            agent: None,
            lab: Hosts::start("host", &[flavour]).await,
            server,
            client,
            node,
            flags: &[],
        };
        host.start_agent().await;
        host
    }

    /// A libvirtd that is stopped while somebody connects may call that a failure.
    async fn stop_libvirt(&self) {
        self.sh(&format!(
            "systemctl stop {LIBVIRT_UNITS}; systemctl reset-failed libvirtd.service || true"
        ))
        .await;
    }

    async fn pid_one(&self) -> u32 {
        let status = self.lab.status().await.unwrap();
        node::pid_one(HOST, &status.nodes[0].observed).unwrap()
    }

    /// The root of the machine, from outside.
    async fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.pid_one().await))
    }

    /// As a pod of the host's network would run: the machine's files and processes, and a network
    /// that has the API server.
    async fn start_agent(&mut self) {
        self.agent = None;
        let root = self.root().await;
        let program = root.join("root/agent");
        // The one before this may still run from that file: it cannot be written then.
        if !program.exists() {
            std::fs::copy(env!("CARGO_BIN_EXE_cobalt-node-agent"), &program).unwrap();
            std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        }
        std::fs::copy(&self.server.kubeconfig, root.join("root/kubeconfig")).unwrap();
        let log = std::fs::File::create(self.log()).unwrap();
        let pid = self.pid_one().await.to_string();
        let mut shell = Command::new("nsenter")
            .args(["-F", "-t", &pid, "-m", "-p", "sh", "-c"])
            .args(["\"$@\" & echo $!; exec >&-; wait", "sh", "/root/agent"])
            .args(["--node", &self.node, "--os-release", "/etc/os-release"])
            .args(["--libvirt-uri", "qemu+unix:///system"])
            .args(self.flags)
            .args([
                "--metrics-bind-address",
                "0",
                "--health-probe-bind-address",
                "0",
            ])
            .env("KUBECONFIG", "/root/kubeconfig")
            .env("UPDATE_RETRY_INTERVAL", "200ms")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        let pid = lines.next_line().await.unwrap().unwrap().parse().unwrap();
        self.agent = Some(Agent { shell, pid });
    }

    fn log(&self) -> PathBuf {
        self.lab.dir().join("logs").join("agent.log")
    }

    async fn run(&self, arguments: &[&str]) -> String {
        self.lab.run(HOST, arguments).await
    }

    async fn sh(&self, script: &str) -> String {
        self.run(&["sh", "-ec", script]).await
    }

    async fn inhibitors(&self) -> String {
        self.run(&["systemd-inhibit", "--list", "--no-pager"]).await
    }

    /// Waits until the Hypervisor's status is as wanted; a watch, not a poll.
    async fn until(
        &self,
        what: &str,
        wanted: impl Fn(&HypervisorStatus) -> bool,
    ) -> HypervisorStatus {
        let api: Api<Hypervisor> = Api::all(self.client.clone());
        let is = |object: Option<&Hypervisor>| {
            object
                .and_then(|object| object.status.as_ref())
                .is_some_and(&wanted)
        };
        let waiting = await_condition(api.clone(), &self.node, is);
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(found) => found.unwrap().unwrap().status.unwrap(),
            Err(_) => {
                let last = api.get(&self.node).await.unwrap().status;
                let log = std::fs::read_to_string(self.log()).unwrap_or_default();
                panic!("never: {what}; last seen: {last:#?}\nthe agent's log:\n{log}");
            }
        }
    }

    /// Waits until a condition says this, and its message has these words.
    async fn condition(
        &self,
        condition: Type,
        status: Status,
        reason: Reason,
        words: &[&str],
    ) -> String {
        let what = format!("{condition:?} {status:?} {reason:?} {words:?}");
        let found = self
            .until(&what, |now| {
                conditions::find(&now.conditions, condition).is_some_and(|found| {
                    found.status == status.as_str()
                        && found.reason == reason.as_str()
                        && words.iter().all(|word| found.message.contains(word))
                })
            })
            .await;
        let found = conditions::find(&found.conditions, condition).unwrap();
        found.message.clone()
    }

    async fn set_spec(&self, spec: Value) {
        let api: Api<Hypervisor> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({ "spec": spec }));
        api.patch(&self.node, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// The reasons of the Events about the Hypervisor.
    async fn events(&self) -> Vec<String> {
        let api: Api<Event> = Api::all(self.client.clone());
        let about = ListParams::default().fields(&format!("involvedObject.name={}", self.node));
        let list = api.list(&about).await.unwrap();
        list.items
            .into_iter()
            .filter_map(|event| event.reason)
            .collect()
    }

    /// The agent says that a guest runs; that it is defined is not enough.
    async fn guest_runs(&self) {
        self.until("the guest runs", |now| {
            now.instances.iter().any(|instance| instance.active)
        })
        .await;
    }

    /// Waits for an Event about the Hypervisor. Events are written a moment after what they tell.
    async fn event(&self, reason: &str) {
        let told = async {
            while !self.events().await.iter().any(|event| event == reason) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        within(reason, told).await;
    }

    async fn down(self) {
        self.lab.down().await.unwrap();
    }
}

async fn within<T>(what: impl Debug, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("never: {what:?}"),
    }
}

const LIBVIRT_UNITS: &str = "libvirtd.service libvirtd.socket libvirtd-ro.socket \
                             libvirtd-admin.socket libvirtd-tcp.socket libvirtd-tls.socket";

/// What every release has to do.
async fn units_facts_and_the_lock_follow_the_host(flavour: Flavour, systemd: &str, release: &str) {
    let spec = json!({ "evacuateOnReboot": true });
    let host = Box::pin(Host::start(flavour, spec)).await;
    let connected = (Status::True, Reason::Connected);
    let version = format!("systemd {systemd}");
    host.condition(
        Type::SystemdConnection,
        connected.0,
        connected.1,
        &[&version],
    )
    .await;
    let running = (Status::True, Reason::Running);
    let libvirtd = Type::LibvirtdService;
    let ovs = Type::OpenvswitchService;
    host.condition(
        libvirtd,
        running.0,
        running.1,
        &["libvirtd.service is active"],
    )
    .await;
    host.condition(
        ovs,
        running.0,
        running.1,
        &["openvswitch-switch.service is active"],
    )
    .await;

    // Facts of hostnamed, of the file and of the kernel.
    let status = host
        .until("the operating system", |now| now.operating_system.is_some())
        .await;
    let system = status.operating_system.unwrap();
    let kernel = host.run(&["uname", "-r"]).await;
    assert_eq!(system.kernel_release.as_deref(), Some(kernel.trim()));
    assert_eq!(system.version.as_deref(), Some(release));
    let pretty = system.pretty_version.unwrap();
    assert!(pretty.starts_with("Debian GNU/Linux"), "{pretty}");
    assert!(system.kernel_command_line.is_some());

    // A stopped service, and a started one.
    host.stop_libvirt().await;
    host.condition(libvirtd, Status::False, Reason::Stopped, &["inactive"])
        .await;
    host.sh("systemctl start libvirtd.service").await;
    host.condition(
        libvirtd,
        running.0,
        running.1,
        &["libvirtd.service is active"],
    )
    .await;
    // Killed, and started again by systemd: it ends as running whatever is between.
    host.sh("systemctl kill -s KILL libvirtd.service; systemctl restart libvirtd.service")
        .await;
    host.condition(
        libvirtd,
        running.0,
        running.1,
        &["libvirtd.service is active"],
    )
    .await;

    // Debian's unit of Open vSwitch stays active over a dead daemon.
    host.sh("mkdir -p /run/systemd/system/ovs-vswitchd.service.d
         printf '[Service]\\nRestart=no\\n' >/run/systemd/system/ovs-vswitchd.service.d/no.conf
         systemctl daemon-reload
         systemctl kill -s KILL ovs-vswitchd.service")
        .await;
    let words = [
        "ovs-vswitchd.service is failed",
        "openvswitch-switch.service is active",
    ];
    host.condition(ovs, Status::False, Reason::Failed, &words)
        .await;
    host.sh("systemctl reset-failed ovs-vswitchd; systemctl start ovs-vswitchd")
        .await;
    host.condition(ovs, running.0, running.1, &[]).await;

    // The lock: its owner is in logind's list, and the condition warns of a short limit.
    let inhibited = Type::ShutdownInhibited;
    let warning = ["at most 5s", "InhibitDelayMaxSec"];
    host.condition(inhibited, Status::True, Reason::Ready, &warning)
        .await;
    let list = host.inhibitors().await;
    assert!(
        list.contains("cobalt-node-agent") && list.contains("delay"),
        "{list}"
    );
    host.set_spec(json!({ "evacuateOnReboot": false })).await;
    host.condition(
        inhibited,
        Status::False,
        Reason::Stopped,
        &["evacuateOnReboot"],
    )
    .await;
    assert!(!host.inhibitors().await.contains("cobalt-node-agent"));
    host.set_spec(json!({ "evacuateOnReboot": true })).await;
    host.condition(inhibited, Status::True, Reason::Ready, &[])
        .await;
    assert!(host.inhibitors().await.contains("cobalt-node-agent"));

    // Without a bus nothing stays true, and all of it comes back with the bus (W70).
    host.sh("mv /run/dbus/system_bus_socket /run/dbus/away; systemctl kill -s KILL dbus.service")
        .await;
    let lost = (Status::Unknown, Reason::Disconnected);
    host.condition(
        Type::SystemdConnection,
        Status::False,
        Reason::Disconnected,
        &[],
    )
    .await;
    host.condition(libvirtd, lost.0, lost.1, &[]).await;
    host.condition(ovs, lost.0, lost.1, &[]).await;
    host.condition(inhibited, Status::Unknown, Reason::Failed, &[])
        .await;
    host.sh("mv /run/dbus/away /run/dbus/system_bus_socket
         systemctl start dbus.service; systemctl restart systemd-logind")
        .await;
    host.condition(
        Type::SystemdConnection,
        connected.0,
        connected.1,
        &[&version],
    )
    .await;
    host.condition(libvirtd, running.0, running.1, &[]).await;
    host.condition(ovs, running.0, running.1, &[]).await;
    host.condition(inhibited, Status::True, Reason::Ready, &[])
        .await;
    let list = host.inhibitors().await;
    assert_eq!(list.matches("cobalt-node-agent").count(), 1, "{list}");
    host.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_facts_and_the_lock_follow_a_host_with_systemd_252() {
    Box::pin(units_facts_and_the_lock_follow_the_host(
        Flavour::Bookworm,
        "252",
        "12",
    ))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_facts_and_the_lock_follow_a_host_with_systemd_257() {
    Box::pin(units_facts_and_the_lock_follow_the_host(
        Flavour::Trixie,
        "257",
        "13",
    ))
    .await;
}

/// Installs a version when its file is there; fails when it says so; waits otherwise.
const SYSUPDATE: &str = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo run >>/root/runs-%i; \
                         until test -e /root/ok-%i; do test ! -e /root/bad-%i || exit 7; \
                         sleep 0.1; done'\n";

#[tokio::test(flavor = "multi_thread")]
async fn updates_end_whatever_happens_and_a_power_off_waits_for_the_drain() {
    let spec = json!({ "evacuateOnReboot": true, "reboot": false });
    let mut host = Box::pin(Host::start(Flavour::Bookworm, spec)).await;
    let update = Type::OperatingSystemUpdate;
    let unit = host
        .root()
        .await
        .join("etc/systemd/system/systemd-sysupdate@.service");
    std::fs::write(&unit, SYSUPDATE).unwrap();
    host.sh("systemctl daemon-reload; touch /root/bad-2.0")
        .await;

    // Three failures, and no fourth (W72).
    host.set_spec(json!({ "version": "2.0" })).await;
    let words = ["2.0", "3 tries", "exit-code", "set it again"];
    host.condition(update, Status::False, Reason::Stopped, &words)
        .await;
    let runs = host.sh("cat /root/runs-2.0").await;
    assert_eq!(runs.lines().count(), 3);
    let spec = host.until("the record", |now| {
        let record = now.update_status.as_ref();
        record.is_some_and(|record| record.retry == Some(0) && record.in_progress == Some(false))
    });
    spec.await;
    // What is no version reaches no unit.
    host.set_spec(json!({ "version": "../2.0" })).await;
    host.condition(update, Status::False, Reason::Stopped, &["no version"])
        .await;
    // A unit that does not exist ends as well.
    host.set_spec(json!({ "version": "latest" })).await;
    host.condition(
        update,
        Status::False,
        Reason::Stopped,
        &["systemd-sysupdate.service"],
    )
    .await;

    // Activating is running (W71), also for an agent that comes later.
    host.set_spec(json!({ "version": "3.0" })).await;
    host.condition(
        update,
        Status::True,
        Reason::Running,
        &["systemd-sysupdate@3.0.service runs"],
    )
    .await;
    // It says so before it asks systemd.
    host.sh("timeout 60 sh -c 'until test -e /root/runs-3.0; do sleep 0.1; done'")
        .await;
    host.start_agent().await;
    let log = host.log();
    within("the takeover", log_says(&log, "goes on")).await;
    host.sh("touch /root/ok-3.0").await;
    host.condition(
        update,
        Status::True,
        Reason::Completed,
        &["3.0", "next reboot"],
    )
    .await;
    assert_eq!(host.sh("cat /root/runs-3.0").await.lines().count(), 1);

    // The health gate: no reboot without libvirt.
    let guest = MicroDomain {
        name: "stayer",
        uuid: &node::new_uuid().unwrap(),
        memory_mib: 16,
        kernel: Path::new("/opt/guests/micro.elf"),
        command_line: "",
        machine: "q35",
        extra_devices: "",
    };
    let xml = host.root().await.join("root/stayer.xml");
    std::fs::write(xml, guest.xml()).unwrap();
    host.sh("virsh define /root/stayer.xml; virsh start stayer")
        .await;
    host.guest_runs().await;
    host.stop_libvirt().await;
    host.condition(Type::LibvirtdService, Status::False, Reason::Stopped, &[])
        .await;
    host.set_spec(json!({ "reboot": true })).await;
    host.condition(
        update,
        Status::True,
        Reason::Running,
        &["libvirt does not run"],
    )
    .await;
    host.sh("systemctl start --no-block libvirtd.service").await;
    // Nor while an instance is active and logind would not wait until it has left.
    let words = ["1 instances are active", "at most 5s", "--shutdown-delay"];
    host.condition(update, Status::True, Reason::Running, &words)
        .await;
    host.event("RebootWaits").await;
    // The libvirtd that has just started may still be connecting to the guest. Ending it then is
    // answered with "domain is not running", while pausing it waits.
    host.sh("virsh suspend stayer; virsh destroy stayer").await;
    // It reboots. The old version runs again, which is a failure and not a loop.
    powered(&host.lab, |node| node.boots == 2 && node.booted).await;
    host.flags = &["--shutdown-delay", "5m"];
    host.start_agent().await;
    host.condition(
        update,
        Status::False,
        Reason::Stopped,
        &["3.0", "but 12 runs"],
    )
    .await;
    host.set_spec(json!({ "version": null, "reboot": false }))
        .await;
    host.until("no condition", |now| {
        conditions::find(&now.conditions, update).is_none()
    })
    .await;

    // A power-off waits until the guest has left, as long as the agent has told logind.
    let inhibited = Type::ShutdownInhibited;
    host.condition(inhibited, Status::True, Reason::Ready, &["at most 5m"])
        .await;
    host.sh("grep InhibitDelayMaxSec=300 /etc/systemd/logind.conf.d/99-z-cobalt-node-agent.conf")
        .await;
    host.run(&["virsh", "start", "stayer"]).await;
    host.guest_runs().await;
    host.run(&["systemctl", "poweroff"]).await;
    let words = ["1 active instance", "Eviction", "not begun", "at most 5m"];
    host.condition(inhibited, Status::True, Reason::Running, &words)
        .await;
    let evictions: Api<Eviction> = Api::all(host.client.clone());
    let boot = host.sh("cut -c 1-8 /proc/sys/kernel/random/boot_id").await;
    let name = format!("{}-{}", host.node, boot.trim());
    let eviction = evictions.get(&name).await.unwrap();
    assert_eq!(eviction.spec.hypervisor, host.node);
    assert_eq!(eviction.owner_references()[0].name, host.node);
    assert_eq!(eviction.labels()["topology.kubernetes.io/zone"], "z1");
    assert_eq!(eviction.spec.deadline.as_deref(), Some("5m"));
    assert!(eviction.is_for_shutdown() && !eviction.spec.cancel());
    let list = host.inhibitors().await;
    let log = std::fs::read_to_string(host.log()).unwrap_or_default();
    assert!(list.contains("cobalt-node-agent"), "{list}\n{log}");
    host.run(&["virsh", "destroy", "stayer"]).await;
    powered(&host.lab, |node| {
        !node.on && node.last_end.as_deref() == Some("off")
    })
    .await;
    for reason in ["ShutdownRequested", "EvictionCreated", "ShutdownReleased"] {
        host.event(reason).await;
    }
    // The agent of the next boot takes the Eviction back: it is not to drain the host now.
    let silent = Report::silent();
    host.lab.power(HOST, Power::On, &silent).await.unwrap();
    host.start_agent().await;
    let cancelled = |eviction: Option<&Eviction>| eviction.is_some_and(|one| one.spec.cancel());
    let waiting = await_condition(evictions, &name, cancelled);
    within("the Eviction is cancelled", waiting).await.unwrap();
    host.event("EvictionCancelled").await;
    host.down().await;
}

/// Waits until a line of a log has these words.
async fn log_says(log: &Path, words: &str) {
    let mut follow = Command::new("tail")
        .args(["-n", "+1", "-F"])
        .arg(log)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line.contains(words) {
            return;
        }
    }
}

/// Waits until the machine's power is as wanted. The supervisor tells it only when asked.
async fn powered(lab: &Lab, wanted: impl Fn(&node::Observed) -> bool) {
    let mut last = None;
    let waiting = async {
        loop {
            let status = lab.status().await.unwrap();
            let observed = &status.nodes[0].observed;
            if wanted(observed) {
                return;
            }
            last = Some(observed.clone());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        panic!("the machine's power; last seen: {last:?}");
    }
}
