//! What real libvirt says about a host with two NUMA cells and about odd instances, through the
//! connection that the agent reads with, up to the status.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use cobalt_api::hypervisor::{HaPolicy, Hypervisor, HypervisorStatus};
use cobalt_lab::plan::Flavour;
use cobalt_libvirt::{Affect, Connection, CreateFlags, Domain, Metadata, Options, Uri};
use cobalt_node_agent::context::Conditions;
use cobalt_node_agent::facts::metadata::NAMESPACE;
use cobalt_node_agent::inventory::Inventory;
use cobalt_node_agent::metrics::Metrics;
use cobalt_node_agent::status::{self, Known};
use cobalt_node_agent::virt::{self, Outputs, VirtConfig};
use cobalt_runtime::Health;
use jiff::Timestamp;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::{Hosts, PATIENCE};

/// The agent's connection to the one hypervisor of a lab, and a second one to change things with.
struct Host {
    _hosts: Hosts,
    libvirt: Connection,
    inventory: watch::Receiver<Option<Arc<Inventory>>>,
    _end: DropGuard,
}

impl Host {
    async fn start(flavour: Flavour, driver: &str) -> Self {
        let hosts = Hosts::start("facts", &[flavour]).await;
        let socket = hosts.libvirt_socket("hv1").await;
        let uri = format!("{driver}:///system?socket={}", socket.display());
        let uri: Uri = uri.parse().unwrap();
        let libvirt = Connection::open(&uri, &Options::default()).await.unwrap();
        let (sender, inventory) = watch::channel(None);
        let outputs = Outputs {
            connection: watch::Sender::new(None),
            events: broadcast::Sender::new(64),
            inventory: sender,
            domains: watch::Sender::default(),
            conditions: Conditions::default(),
            metrics: Metrics::default(),
            health: Health::default(),
        };
        let config = VirtConfig {
            uri,
            options: Options::default(),
            resync: Duration::from_secs(3600),
        };
        let cancel = CancellationToken::new();
        tokio::spawn(virt::run(config, outputs, cancel.clone()));
        Self {
            _hosts: hosts,
            libvirt,
            inventory,
            _end: cancel.drop_guard(),
        }
    }

    async fn define(&self, xml: &str) -> Domain {
        self.libvirt.define_xml(xml).await.unwrap()
    }

    async fn run(&self, xml: &str) -> Domain {
        let domain = self.define(xml).await;
        let none = CreateFlags::NONE;
        self.libvirt.create(&domain, none).await.unwrap()
    }

    /// Waits until the inventory is so, and returns the status that follows from it.
    async fn status(&self, wanted: impl Fn(&Inventory) -> bool) -> HypervisorStatus {
        let mut seen = self.inventory.clone();
        let so = seen.wait_for(|seen| seen.as_deref().is_some_and(&wanted));
        let Ok(Ok(inventory)) = tokio::time::timeout(PATIENCE, so)
            .await
            .map(|seen| seen.map(|seen| seen.clone()))
        else {
            panic!("the inventory stays {:?}", self.inventory.borrow());
        };
        let unread = inventory.as_deref().map(Inventory::unreadable);
        assert_eq!(unread.unwrap_or_default(), Vec::<String>::new());
        let known = Known {
            inventory,
            ..Known::default()
        };
        status::wanted(&known, &Hypervisor::default(), Timestamp::now())
    }

    fn policy(inventory: &Inventory, domain: &Domain) -> Option<HaPolicy> {
        inventory.domains.get(&domain.uuid)?.facts.ha_policy
    }
}

fn active(inventory: &Inventory) -> usize {
    let all = inventory.domains.values();
    all.filter(|entry| entry.facts.active).count()
}

/// `cpu memory` of the host and of each cell.
fn held(status: &HypervisorStatus) -> Vec<String> {
    let cells = status.cells.iter().map(|cell| &cell.allocation);
    std::iter::once(&status.allocation)
        .chain(cells)
        .flatten()
        .map(|held| format!("{} {}", held["cpu"].0, held["memory"].0))
        .collect()
}

fn domain(name: &str, inner: &str, devices: &str) -> String {
    format!(
        "<domain type='qemu'><name>{name}</name>{inner}<os><type arch='x86_64' machine='q35'>hvm\
         </type><kernel>/opt/guests/micro.elf</kernel></os><features><acpi/></features>\
         <devices><controller type='usb' model='none'/><memballoon model='none'/>{devices}</devices>\
         </domain>"
    )
}

/// Two processors on host processor 1, one on 0. Memory on node 0: the second node of the lab's
/// host cannot take any.
fn pinned(name: &str, nodes: [u32; 2], mode: &str) -> String {
    let [first, second] = nodes;
    let inner = format!(
        "<memory unit='MiB'>129</memory><vcpu current='3'>4</vcpu><cputune>\
         <vcpupin vcpu='0' cpuset='1'/><vcpupin vcpu='1' cpuset='1'/>\
         <vcpupin vcpu='2' cpuset='0-1,^1'/><emulatorpin cpuset='0-1'/></cputune><numatune>\
         <memnode cellid='0' mode='{mode}' nodeset='{first}'/>\
         <memnode cellid='1' mode='{mode}' nodeset='{second}'/></numatune><cpu><numa>\
         <cell id='0' cpus='0-1' memory='65' unit='MiB'/>\
         <cell id='1' cpus='2-3' memory='64' unit='MiB'/></numa></cpu>"
    );
    domain(name, &inner, "")
}

fn thousand_disks() -> String {
    let mut disks = "<controller type='scsi' model='virtio-scsi'/>".to_owned();
    for number in 0..1000_u32 {
        // sda to sdz, sdaa, and so on: libvirt makes a controller for each gap.
        let (mut name, mut left) = (String::new(), number + 1);
        while left > 0 {
            let letter = u8::try_from((left - 1) % 26).unwrap();
            name.insert(0, char::from(b'a' + letter));
            left = (left - 1) / 26;
        }
        write!(
            disks,
            "<disk type='file' device='disk'><source file='/var/lib/{number}.img'/>\
             <target dev='sd{name}' bus='scsi'/></disk>"
        )
        .unwrap();
    }
    disks
}

/// Everything that QEMU's driver has an answer to.
async fn qemu(flavour: Flavour, version: &str) {
    let host = Host::start(flavour, "qemu+unix").await;
    let empty = host.status(|_| true).await;
    assert_eq!(empty.lib_virt_version.as_deref(), Some(version));
    assert_eq!(empty.num_instances, Some(0));
    assert_eq!(held(&empty), ["0 0", "0 0", "0 0"]);
    let info = host.libvirt.node_info().await.unwrap();
    let capabilities = empty.capabilities.unwrap();
    assert_eq!(capabilities.cpu_arch.as_deref(), Some("x86_64"));
    assert_eq!(capabilities.cpus.unwrap().0, info.cpus.to_string());
    let can = empty.domain_capabilities.unwrap();
    let kind = can.hypervisor_type.as_deref();
    assert!(matches!(kind, Some("kvm" | "qemu")), "{kind:?}");
    let modes = can.supported_cpu_modes.unwrap();
    assert!(modes.contains(&"mode/custom".to_owned()), "{modes:?}");

    // One that is pinned, and one that is shared out.
    let shop = host.run(&pinned("shop", [0, 0], "preferred")).await;
    let status = host.status(|seen| active(seen) == 1).await;
    assert_eq!(held(&status), ["3 129Mi", "1 129Mi", "2 0"]);
    let plain = domain("plain", "<memory unit='MB'>64</memory><vcpu>2</vcpu>", "");
    host.run(&plain).await;
    let status = host.status(|seen| active(seen) == 2).await;
    assert_eq!(held(&status), ["5 191Mi", "2 160Mi", "3 31Mi"]);
    // What does not run holds nothing: crossed cells (W79), and a thousand disks.
    host.define(&pinned("crossed", [1, 0], "strict")).await;
    host.define(&domain("many", "<memory>65536</memory>", &thousand_disks()))
        .await;
    let status = host.status(|seen| seen.domains.len() == 4).await;
    assert_eq!(held(&status), ["5 191Mi", "2 160Mi", "3 31Mi"]);
    let names: Vec<&str> = status.instances.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["plain", "shop", "crossed", "many"]);

    // A policy that is set on a running instance is seen at once.
    let element = Metadata::Element(NAMESPACE);
    let content = "<instance><ha policy='evict'/></instance>";
    host.libvirt
        .set_metadata(&shop, element, Some(content), Some("cobalt"), Affect::LIVE)
        .await
        .unwrap();
    host.status(|seen| Host::policy(seen, &shop) == Some(HaPolicy::Evict))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn w79_odd_instances_are_counted_where_they_are_on_libvirt_9() {
    Box::pin(qemu(Flavour::Bookworm, "9.0.0")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn w79_odd_instances_are_counted_where_they_are_on_libvirt_11() {
    Box::pin(qemu(Flavour::Trixie, "11.3.0")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cloud_hypervisors_driver_cannot_answer_is_absent() {
    let host = Host::start(Flavour::CloudHypervisor, "ch+unix").await;
    let empty = host.status(|_| true).await;
    assert_eq!(empty.lib_virt_version.as_deref(), Some("11.3.0"));
    assert_eq!(empty.domain_capabilities, None);
    assert_eq!(
        empty.capabilities.unwrap().cpu_arch.as_deref(),
        Some("x86_64")
    );
    let cells = empty.cells.len();
    // The driver insists on a kernel; its VMM is a stand-in that boots none.
    let xml = "<domain type='kvm'><name>cloud</name><memory unit='MiB'>64</memory><vcpu>2</vcpu>\
        <os><type arch='x86_64'>hvm</type><kernel>/opt/guests/vmlinuz</kernel></os></domain>";
    host.run(xml).await;
    let status = host.status(|seen| active(seen) == 1).await;
    assert_eq!(held(&status)[0], "2 64Mi");
    assert_eq!(status.cells.len(), cells);
}
