//! Hypervisors of the lab with what the agent's tasks need to run on each: a connection to libvirt
//! that is kept up, a Hypervisor object, a recorder.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cobalt_lab::guests::MicroDomain;
use cobalt_lab::node;
use cobalt_lab::plan::Flavour;
use cobalt_libvirt::{
    Connection, CreateFlags, Domain, Event, EventKind, EventStream, Options, Uri,
};
use cobalt_node_agent::context::{Conditions, Context};
use cobalt_node_agent::lease::{Holder, Term};
use cobalt_node_agent::metrics::Metrics;
use cobalt_node_agent::virt::{self, Outputs, VirtConfig};
use cobalt_runtime::{Health, Observed, Recorder, watch_object};
use futures::StreamExt;
use kube::{Api, Client};
use tokio::sync::{broadcast, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::{Hosts, create_hypervisor, server, unique};

/// How long anything may take. Nothing waits for it when all is well.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// The namespace of Migrations.
pub const NAMESPACE: &str = "default";

/// Waits with patience.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: nothing happened"),
    }
}

/// A lab with hypervisors, and the agents' surroundings on each.
pub struct Rig {
    /// Their agents' surroundings, in order.
    pub hosts: Vec<Host>,
    /// The machines; they end last.
    pub lab: Hosts,
}

/// A host.
pub struct Host {
    /// What the lab calls it.
    pub machine: String,
    /// What Kubernetes calls it.
    pub node: String,
    /// A connection of the test's own.
    pub libvirt: Connection,
    /// What the tasks get.
    pub ctx: Context,
    /// Who holds the node's Lease.
    pub holder: watch::Sender<Holder>,
    /// Until when the agent may act; for ever, unless a test has another one.
    pub term: watch::Sender<Term>,
    _end: DropGuard,
}

/// A term of the Lease that does not end.
pub fn long_term() -> Term {
    let now = Instant::now();
    Term::new(Duration::from_secs(1 << 20), now).renew(now)
}

impl Rig {
    /// Starts it.
    pub async fn start(name: &str, flavours: &[Flavour]) -> Self {
        let lab = Hosts::start(name, flavours).await;
        let (_, client) = server().await;
        let mut hosts = Vec::new();
        for number in 1..=flavours.len() {
            let machine = format!("hv{number}");
            let socket = lab.libvirt_socket(&machine).await;
            hosts.push(Host::start(machine, &socket, client.clone()).await);
        }
        Self { hosts, lab }
    }

    /// Runs a shell script inside a machine, and its success is part of the test.
    pub async fn sh(&self, host: usize, script: &str) -> String {
        self.lab.sh(&self.hosts[host].machine, script).await
    }

    /// Kills the process of an instance.
    pub async fn kill(&self, host: usize, domain: &Domain) {
        let name = &domain.name;
        self.sh(
            host,
            &format!("kill -9 $(cat /run/libvirt/qemu/{name}.pid)"),
        )
        .await;
    }
}

impl Host {
    async fn start(machine: String, socket: &Path, client: Client) -> Self {
        let node = unique(&machine);
        let uri = format!("qemu:///system?socket={}", socket.display());
        let uri: Uri = uri.parse().unwrap();
        let options = Options {
            call_timeout: PATIENCE,
            ..Options::default()
        };
        let libvirt = Connection::open(&uri, &options).await.unwrap();

        create_hypervisor(&client, &node).await;

        let cancel = CancellationToken::new();
        let connection = watch::Sender::new(None);
        let domains = watch::Sender::default();
        let events = broadcast::Sender::new(1024);
        let hypervisor = watch::Sender::new(Observed::Unknown(String::new()));
        let (recorder, write) = Recorder::new(client.clone(), "cobalt-node-agent", &node);
        let holder = watch::Sender::new(Holder::Me);
        let ctx = Context {
            node: Arc::from(node.as_str()),
            node_label: Arc::from(node.as_str()),
            namespace: Arc::from(NAMESPACE),
            client: client.clone(),
            libvirt: connection.subscribe(),
            events: events.clone(),
            hypervisor: hypervisor.subscribe(),
            domains: domains.subscribe(),
            conditions: Conditions::default(),
            operating_system: Arc::default(),
            update_status: Arc::default(),
            recorder,
            health: Health::default(),
        };
        let outputs = Outputs {
            connection,
            events,
            inventory: watch::Sender::new(None),
            domains,
            conditions: ctx.conditions.clone(),
            metrics: Metrics::default(),
            health: ctx.health.clone(),
        };
        let config = VirtConfig {
            uri,
            options: Options::default(),
            resync: Duration::from_secs(3600),
        };
        tokio::spawn(virt::run(config, outputs, cancel.clone()));
        let stop = cancel.clone();
        tokio::spawn(async move { stop.run_until_cancelled(write).await });
        let (name, stop) = (node.clone(), cancel.clone());
        tokio::spawn(async move {
            let watch = watch_object(Api::all(client), &name, hypervisor);
            stop.run_until_cancelled(watch).await;
        });
        let host = Self {
            machine,
            node,
            libvirt,
            ctx,
            holder,
            term: watch::Sender::new(long_term()),
            _end: cancel.drop_guard(),
        };
        let mut connected = host.ctx.libvirt.clone();
        let up = connected.wait_for(Option::is_some);
        drop(within("connect to libvirt", up).await.unwrap());
        let mut seen = host.ctx.hypervisor.clone();
        let there = seen.wait_for(|seen| seen.object().is_some());
        drop(within("see the Hypervisor", there).await.unwrap());
        host
    }

    /// A micro guest that is defined and runs.
    pub async fn guest(&self, guest: &Guest<'_>) -> Domain {
        let none = CreateFlags::NONE;
        let xml = guest.xml();
        if guest.transient {
            return self.libvirt.create_xml(&xml, none).await.unwrap();
        }
        let domain = self.libvirt.define_xml(&xml).await.unwrap();
        self.libvirt.create(&domain, none).await.unwrap()
    }

    /// Events from now on.
    pub async fn events(&self, kinds: &[EventKind]) -> EventStream {
        self.libvirt.subscribe(kinds).await.unwrap()
    }
}

/// Waits for an event.
pub async fn event(events: &mut EventStream, what: &str, wanted: impl Fn(&Event) -> bool) {
    let mut seen = Vec::new();
    let waiting = async {
        while let Some(event) = events.next().await {
            if wanted(&event) {
                return true;
            }
            seen.push(format!("{event:?}"));
        }
        false
    };
    match tokio::time::timeout(PATIENCE, waiting).await {
        Ok(true) => {}
        _ => panic!("{what} did not come; seen: {seen:#?}"),
    }
}

/// A micro guest.
pub struct Guest<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it does.
    pub command_line: &'a str,
    /// `pc` or `q35`.
    pub machine: &'a str,
    /// More devices.
    pub devices: &'a str,
    /// What libvirt does when it panics.
    pub on_crash: &'a str,
    /// The HA policy in its metadata.
    pub policy: Option<&'a str>,
    /// Without a definition.
    pub transient: bool,
}

impl Default for Guest<'_> {
    fn default() -> Self {
        Self {
            name: "guest",
            command_line: "",
            machine: "q35",
            devices: "",
            on_crash: "destroy",
            policy: None,
            transient: false,
        }
    }
}

impl Guest<'_> {
    fn xml(&self) -> String {
        let uuid = node::new_uuid().unwrap();
        let domain = MicroDomain {
            name: self.name,
            uuid: &uuid,
            memory_mib: 64,
            kernel: Path::new("/opt/guests/micro.elf"),
            command_line: self.command_line,
            machine: self.machine,
            extra_devices: self.devices,
        };
        let metadata = self.policy.map_or_else(String::new, |policy| {
            format!(
                "<metadata><cobalt:instance xmlns:cobalt='{}'><cobalt:ha policy='{policy}'/>\
                 </cobalt:instance></metadata>",
                cobalt_node_agent::facts::metadata::NAMESPACE
            )
        });
        domain
            .xml()
            .replace(
                "<on_crash>destroy</on_crash>",
                &format!("<on_crash>{}</on_crash>", self.on_crash),
            )
            .replace("<memory unit", &format!("{metadata}<memory unit"))
    }
}
