//! The client against real libvirt: QEMU of two releases, Cloud Hypervisor's driver, and what they
//! say, kept as files.

// Helpers of tests may fail loudly, as tests do.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod cloud;
mod corpus;
mod fake;
mod faults;
mod life;
mod migration;
mod qemu;
mod record;

use std::path::PathBuf;
use std::time::Duration;

use cobalt_lab::guests::MicroDomain;
use cobalt_lab::plan::Flavour;
use cobalt_lab::testing::run_inside;
use cobalt_lab::{Lab, LabConfig, node};
use cobalt_libvirt::{
    Connection, CreateFlags, Domain, Event, EventKind, EventStream, Options, Uri,
};
use futures::StreamExt;

/// Where hypervisors see the guests.
const MICRO: &str = "/opt/guests/micro.elf";
/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A lab that is taken down also when its test fails.
struct TestLab(Lab);

impl std::ops::Deref for TestLab {
    type Target = Lab;
    fn deref(&self) -> &Lab {
        &self.0
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        if self.0.dir().is_dir() {
            let name = self.0.dir().file_name().unwrap();
            let mut down = std::process::Command::new(cobalt_lab::testing::program().unwrap());
            down.args(["lab", "down", "--name"]).arg(name);
            drop(down.output());
        }
    }
}

async fn lab(name: &str, flavours: &[Flavour]) -> TestLab {
    let config = LabConfig::with_hypervisors(name, flavours);
    TestLab(cobalt_lab::testing::lab(config).await.unwrap())
}

/// A hypervisor of a lab.
struct Host {
    name: String,
    address: String,
    /// Its root directory, from outside.
    root: PathBuf,
}

impl Host {
    async fn find(lab: &Lab, name: &str) -> Self {
        let status = lab.status().await.unwrap();
        let found = status.nodes.iter().find(|node| node.name == name).unwrap();
        let pid = node::pid_one(name, &found.observed).unwrap();
        Self {
            name: name.to_owned(),
            address: found.address.to_string(),
            root: PathBuf::from(format!("/proc/{pid}/root")),
        }
    }

    fn tcp(&self) -> Uri {
        format!("qemu+tcp://{}/system", self.address)
            .parse()
            .unwrap()
    }

    async fn open(&self) -> Connection {
        let uri = record::recorded(&self.tcp()).await;
        let libvirt = Connection::open(&uri, &Options::default()).await.unwrap();
        // The recorder learns the release from it.
        libvirt.ping().await.unwrap();
        libvirt
    }
}

/// Runs a shell script inside a machine.
async fn sh(lab: &Lab, host: &str, script: &str) -> String {
    run_inside(lab, host, &["sh", "-ec", script]).await.unwrap()
}

/// Waits until a guest's console has shown for this many times that it has booted.
async fn booted(lab: &Lab, host: &str, guest: &str, times: u32) {
    let wait = format!(
        "timeout 60 sh -c 'tail -n +1 -F /var/log/libvirt/qemu/{guest}-serial.log 2>/dev/null | \
         grep -m{times} \"^tick 1[^0-9]*$\"'"
    );
    sh(lab, host, &wait).await;
}

/// The XML of a micro guest.
fn guest(name: &str, words: &str, machine: &str, devices: &str) -> String {
    let uuid = node::new_uuid().unwrap();
    let domain = MicroDomain {
        name,
        uuid: &uuid,
        memory_mib: 48,
        kernel: MICRO.as_ref(),
        command_line: words,
        machine,
        extra_devices: devices,
    };
    // A guest that has crashed can be looked at.
    let crash = |action| format!("<on_crash>{action}</on_crash>");
    domain.xml().replace(&crash("destroy"), &crash("preserve"))
}

/// Defines a guest and starts it.
async fn start(libvirt: &Connection, xml: &str) -> Domain {
    let domain = libvirt.define_xml(xml).await.unwrap();
    assert_eq!(domain.id, None);
    let running = libvirt.create(&domain, CreateFlags::NONE).await.unwrap();
    assert!(running.id.is_some(), "{running:?}");
    running
}

/// Events, and what of them has been seen.
struct Watcher {
    events: EventStream,
    seen: Vec<Event>,
}

impl Watcher {
    async fn new(libvirt: &Connection) -> Self {
        Self {
            events: libvirt.subscribe(EventKind::ALL).await.unwrap(),
            seen: Vec::new(),
        }
    }

    /// Waits for an event of a guest, also among those that came while another was waited for.
    async fn wait(&mut self, name: &str, what: &str, wanted: impl Fn(&Event) -> bool) -> Event {
        let matches = |event: &Event| {
            event.domain().is_some_and(|domain| domain.name == name) && wanted(event)
        };
        if let Some(event) = self.seen.iter().find(|event| matches(event)) {
            return event.clone();
        }
        let waiting = async {
            loop {
                let event = self.events.next().await.unwrap();
                self.seen.push(event.clone());
                if matches(&event) {
                    return event;
                }
            }
        };
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(event) => event,
            Err(_) => panic!("no {what} of {name}; seen: {:#?}", self.seen),
        }
    }

    fn forget(&mut self, name: &str) {
        self.seen
            .retain(|event| event.domain().is_none_or(|domain| domain.name != name));
    }
}
