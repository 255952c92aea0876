//! Hypervisors with real libvirt and real guests: what they run, how it moves, how it breaks.

use std::path::Path;

use cobalt_lab::control::Fault;
use cobalt_lab::guests::MicroDomain;
use cobalt_lab::node::Power;
use cobalt_lab::plan::Flavour;
use cobalt_lab::report::Report;
use cobalt_lab::{LabConfig, node};

use crate::{TestLab, cobalt_ok, lab, name};

/// Where hypervisors see the guests.
const MICRO: &str = "/opt/guests/micro.elf";

impl TestLab {
    /// Defines a micro guest on a hypervisor, and starts it.
    async fn start_guest(&self, host: &str, name: &str, options: &str, devices: &str) {
        let uuid = node::new_uuid().unwrap();
        let domain = MicroDomain {
            name,
            uuid: &uuid,
            memory_mib: 64,
            kernel: Path::new(MICRO),
            command_line: options,
            machine: "q35",
            extra_devices: devices,
        };
        let xml = domain.xml().replace(
            "<on_crash>destroy</on_crash>",
            "<on_crash>preserve</on_crash>",
        );
        self.sh(host, &format!("cat >/root/{name}.xml <<'X'\n{xml}\nX"))
            .await;
        self.run(host, &["virsh", "define", &format!("/root/{name}.xml")])
            .await;
        self.run(host, &["virsh", "start", name]).await;
    }

    /// What a guest has counted, as its console on this hypervisor shows it.
    async fn ticks(&self, host: &str, name: &str) -> Vec<u32> {
        let log = self.sh(host, &format!("cat {}", console(name))).await;
        log.lines()
            .filter_map(|line| line.strip_prefix("tick ")?.trim().parse().ok())
            .collect()
    }

    /// Waits until a line appears on a guest's console.
    async fn console_shows(&self, host: &str, name: &str, line: &str) {
        let wait = format!(
            "timeout 60 sh -c 'tail -n +1 -F {} 2>/dev/null | grep -q -m1 \"^{line}\"'",
            console(name)
        );
        self.sh(host, &wait).await;
    }

    async fn state(&self, host: &str, name: &str) -> String {
        let command = ["virsh", "domstate", "--reason", name];
        self.run(host, &command).await.trim().to_owned()
    }

    /// Waits until libvirt has told an event of a guest, which `action` provokes.
    async fn event(&self, host: &str, name: &str, event: &str, text: &str, action: &str) {
        let script = format!(
            "timeout 60 virsh event --domain {name} --event {event} --loop >/tmp/event-{name} & \
             {action}; timeout 60 sh -c \
             'tail -n +1 -F /tmp/event-{name} 2>/dev/null | grep -q -m1 \"{text}\"'; kill $!"
        );
        self.sh(host, &script).await;
    }
}

fn console(name: &str) -> String {
    format!("/var/log/libvirt/qemu/{name}-serial.log")
}

#[tokio::test(flavor = "multi_thread")]
async fn guests_run_migrate_and_survive_libvirt_on_both_releases() {
    let config = LabConfig::with_hypervisors("hypervisors", &[Flavour::Bookworm, Flavour::Trixie]);
    let lab = lab(config).await;
    for (host, version) in [("hv1", "9.0"), ("hv2", "11.3")] {
        let said = lab.run(host, &["virsh", "version", "--daemon"]).await;
        assert!(
            said.contains(&format!("daemon: {version}")),
            "{host}: {said}"
        );
    }
    // Every door of a hypervisor is open to its peer.
    for uri in [
        "qemu:///system",
        "qemu+tcp://hv2/system",
        "qemu+tls://hv2/system",
    ] {
        lab.run("hv1", &["virsh", "-c", uri, "list"]).await;
    }
    let capabilities = lab.run("hv1", &["virsh", "capabilities"]).await;
    assert!(capabilities.contains("<cells num='2'>"), "{capabilities}");

    // A migration, also to a newer release: the guest does not notice.
    lab.start_guest("hv1", "walker", "dirty=4 ws=8", "").await;
    lab.console_shows("hv1", "walker", "tick 2").await;
    let migrate = ["virsh", "migrate", "--live", "--p2p", "--persistent"];
    let target = "qemu+tcp://hv2/system";
    let arguments = [&migrate[..], &["--undefinesource", "walker", target]].concat();
    lab.run("hv1", &arguments).await;
    let before = *lab.ticks("hv1", "walker").await.last().unwrap();
    lab.console_shows("hv2", "walker", &format!("tick {}", before + 3))
        .await;
    let after = lab.ticks("hv2", "walker").await;
    assert!(
        after[0] >= before && after.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "it counted to {before} on hv1 and then {after:?} on hv2"
    );

    // libvirt's end is not the guests' end.
    lab.fault(Fault::Kill, "hv2/libvirtd").await.unwrap();
    let more = format!("tick {}", after.last().unwrap() + 3);
    lab.console_shows("hv2", "walker", &more).await;
    assert!(lab.state("hv2", "walker").await.contains("running"));

    let journal = cobalt_ok(&["lab", "logs", "--name", name(&lab), "hv2/libvirtd"]);
    assert!(journal.contains("libvirt version: 11.3"), "{journal}");

    // Power loss is.
    let silent = Report::silent();
    lab.power("hv2", Power::Loss, &silent).await.unwrap();
    lab.power("hv2", Power::On, &silent).await.unwrap();
    assert!(lab.state("hv2", "walker").await.contains("shut off"));
    lab.down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_can_be_aborted_and_guests_fail_on_command() {
    let config = LabConfig::with_hypervisors("guests", &[Flavour::Bookworm; 2]);
    let lab = lab(config).await;

    // Slow enough to be aborted; the guest stays and counts on.
    lab.start_guest("hv1", "stayer", "dirty=16 ws=32", "").await;
    lab.console_shows("hv1", "stayer", "tick 1").await;
    lab.run("hv1", &["virsh", "migrate-setspeed", "stayer", "1"])
        .await;
    let aborted = lab
        .sh(
            "hv1",
            "virsh migrate --live --p2p stayer qemu+tcp://hv2/system >/tmp/m 2>&1 & job=$!; \
             timeout 60 sh -c 'until virsh domjobinfo stayer | grep -q \"Memory processed\"; do :; done'; \
             virsh domjobabort stayer; wait $job || cat /tmp/m",
        )
        .await;
    assert!(aborted.contains("canceled"), "{aborted}");
    let before = *lab.ticks("hv1", "stayer").await.last().unwrap();
    let next = format!("tick {}", before + 2);
    lab.console_shows("hv1", "stayer", &next).await;
    assert!(
        lab.run("hv2", &["virsh", "list", "--all", "--name"])
            .await
            .trim()
            .is_empty()
    );

    // It panics when it is told to, and hangs until the watchdog bites.
    lab.start_guest("hv1", "panics", "panic=2", "").await;
    lab.event("hv1", "panics", "lifecycle", "Crashed", ":")
        .await;
    assert!(lab.state("hv1", "panics").await.contains("crashed"));
    let dog = "<watchdog model='i6300esb' action='pause'/>";
    lab.start_guest("hv1", "hangs", "wdt=2 hang=3", dog).await;
    lab.event("hv1", "hangs", "watchdog", "pause", ":").await;
    assert!(
        lab.state("hv1", "hangs")
            .await
            .contains("paused (watchdog)")
    );

    // The power button is obeyed.
    let off = "virsh shutdown stayer";
    lab.event("hv1", "stayer", "lifecycle", "Stopped", off)
        .await;
    lab.down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cloud_hypervisor_driver_answers_beside_qemus() {
    let config = LabConfig::with_hypervisors("cloud", &[Flavour::CloudHypervisor]);
    let lab = lab(config).await;
    let uri = "ch+tcp://hv1/system";
    // The driver insists on a kernel; its VMM is a stand-in that boots none.
    lab.sh(
        "hv1",
        "cat >/root/cloud.xml <<'X'\n<domain type='kvm'><name>cloud</name>\
         <memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64'>hvm</type>\
         <kernel>/opt/guests/vmlinuz</kernel></os></domain>\nX",
    )
    .await;
    let virsh = |words: &[&'static str]| [&["virsh", "-c", uri], words].concat();
    let state = virsh(&["domstate", "cloud"]);
    lab.run("hv1", &virsh(&["define", "/root/cloud.xml"])).await;
    for (verb, expected) in [
        ("start", "running"),
        ("suspend", "paused"),
        ("resume", "running"),
        ("destroy", "shut off"),
    ] {
        lab.run("hv1", &virsh(&[verb, "cloud"])).await;
        assert_eq!(lab.run("hv1", &state).await.trim(), expected, "{verb}");
    }
    // What it cannot do it says.
    let refused = lab.attempt("hv1", &virsh(&["domstats", "cloud"])).await;
    assert!(refused.unwrap_err().contains("not supported"));
    lab.run("hv1", &["virsh", "-c", "qemu+tcp://hv1/system", "list"])
        .await;
    lab.down().await.unwrap();
}
