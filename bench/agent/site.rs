//! Where it is measured: a lab with three hypervisors and an API server, the guests on them, and what
//! a watch shows of their Hypervisors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cobalt_api::conditions::{self, HypervisorCondition};
use cobalt_api::hypervisor::{Hypervisor, HypervisorSpec};
use cobalt_api::names::leases;
use cobalt_lab::cluster::{ClusterConfig, Role};
use cobalt_lab::guests::MicroDomain;
use cobalt_lab::plan::Flavour;
use cobalt_lab::testing::{install_definitions, run_inside};
use cobalt_lab::{Lab, LabConfig, node};
use cobalt_libvirt::{Connection, CreateFlags, Domain, ListDomains, Options};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;

/// The host that carries the guests; it shows two NUMA cells.
pub const MAIN: &str = "hv2";
/// A host with one NUMA cell.
pub const ONE_CELL: &str = "hv1";
/// A host with eight NUMA cells.
pub const EIGHT_CELLS: &str = "hv3";
const CELLS: [(&str, u8); 3] = [(ONE_CELL, 1), (MAIN, 2), (EIGHT_CELLS, 8)];

/// Where the agents write Migrations.
pub const NAMESPACE: &str = "cobalt-system";
/// The cluster with the API server.
const CLUSTER: Role = Role::ControlPlane;
/// Where hypervisors see the guest.
const MICRO: &str = "/opt/guests/micro.elf";
/// How long anything may take before it counts as broken.
const PATIENCE: Duration = Duration::from_secs(120);
/// Guests that are started at the same time.
/// Guests beyond these are paused: emulated, sixty of them take a third of two processors, and the
/// API server would be timed as it waits for them.
const AWAKE: usize = 10;
const AT_ONCE: usize = 4;

/// The lab.
pub struct Site {
    lab: Lab,
    client: Client,
    machines: BTreeMap<String, Machine>,
}

/// A hypervisor.
#[derive(Debug)]
pub struct Machine {
    pid_one: u32,
    seen: Seen,
}

/// What a watch shows of a Hypervisor, and since when.
#[derive(Debug, Clone)]
pub struct Seen(watch::Receiver<Option<(Instant, Arc<Hypervisor>)>>);

impl Site {
    /// Starts it.
    pub async fn up() -> Result<Self> {
        eprintln!("starting a lab");
        let mut config = LabConfig::with_hypervisors("bench-agent", &[Flavour::Bookworm; 3]);
        for cluster in &mut config.clusters {
            cluster.numa_cells = CELLS.map(|(_, cells)| cells).to_vec();
        }
        config.clusters.push(ClusterConfig {
            controllers: false,
            audit: true,
            ..ClusterConfig::new(CLUSTER)
        });
        let lab = cobalt_lab::testing::lab(config).await?;
        let client = lab.client(CLUSTER).await?;
        install(&client).await?;
        let status = lab.status().await?;
        let mut machines = BTreeMap::new();
        for (name, _) in CELLS {
            create_hypervisor(&client, name).await?;
            let found = status.nodes.iter().find(|node| node.name == name);
            let found = found.with_context(|| format!("the lab has no {name}"))?;
            let pid_one = node::pid_one(name, &found.observed)?;
            let seen = Seen::start(client.clone(), name);
            machines.insert(name.to_owned(), Machine { pid_one, seen });
        }
        Ok(Self {
            lab,
            client,
            machines,
        })
    }

    /// Takes it down.
    pub async fn down(&self) -> Result<()> {
        self.lab.down().await
    }

    /// A hypervisor.
    pub fn machine(&self, host: &str) -> Result<&Machine> {
        self.machines
            .get(host)
            .with_context(|| format!("there is no {host}"))
    }

    /// What the watch shows of one.
    pub fn seen(&self, host: &str) -> Result<Seen> {
        Ok(self.machine(host)?.seen.clone())
    }

    /// The admin's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.lab.cluster_kubeconfig(CLUSTER)
    }

    /// Where an agent's log goes.
    pub fn log(&self, host: &str) -> PathBuf {
        self.lab.dir().join(format!("logs/agent-{host}.log"))
    }

    /// What the API server has done.
    pub fn audit_log(&self) -> PathBuf {
        let name = format!("logs/{}-audit.log", CLUSTER.name());
        self.lab.dir().join(name)
    }

    /// A path for a socket.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.lab.dir().join(name)
    }

    /// Makes the Hypervisor anew, so that nothing was reported yet.
    pub async fn forget(&self, host: &str) -> Result<()> {
        let api: Api<Hypervisor> = Api::all(self.client.clone());
        let old = api.get(host).await.context("failed to read a Hypervisor")?;
        api.delete(host, &DeleteParams::default())
            .await
            .context("failed to delete a Hypervisor")?;
        create_hypervisor(&self.client, host).await?;
        let mut seen = self.seen(host)?;
        seen.until(|new| new.uid() != old.uid()).await.map(drop)
    }

    /// Runs a shell script on a hypervisor.
    pub async fn sh(&self, host: &str, script: &str) -> Result<()> {
        run_inside(&self.lab, host, &["sh", "-ec", script]).await?;
        Ok(())
    }

    /// A connection to a hypervisor's libvirt.
    pub async fn libvirt(&self, host: &str) -> Result<Connection> {
        let socket = self.machine(host)?.libvirt_socket();
        let uri = format!("qemu+unix:///system?socket={}", socket.display()).parse()?;
        Ok(Connection::open(&uri, &Options::default()).await?)
    }

    /// The guests of a hypervisor, by name.
    pub async fn guests(&self, host: &str) -> Result<Vec<Domain>> {
        let mut all = self.libvirt(host).await?.domains(ListDomains::ALL).await?;
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Starts guests until there are so many.
    pub async fn grow(&self, host: &str, count: usize) -> Result<()> {
        let libvirt = self.libvirt(host).await?;
        let there = libvirt.domains(ListDomains::ALL).await?.len();
        stream::iter(there..count)
            .map(|number| start_guest(&libvirt, number))
            .buffer_unordered(AT_ONCE)
            .try_collect::<Vec<()>>()
            .await?;
        if there < count {
            eprintln!("{host} has {count} guests");
        }
        Ok(())
    }
}

impl Machine {
    /// The socket of its libvirt, from outside.
    pub fn libvirt_socket(&self) -> PathBuf {
        self.inside("run/libvirt/libvirt-sock")
    }

    /// The socket of its D-Bus, from outside.
    pub fn bus_socket(&self) -> PathBuf {
        self.inside("run/dbus/system_bus_socket")
    }

    fn inside(&self, path: &str) -> PathBuf {
        Path::new("/proc")
            .join(self.pid_one.to_string())
            .join("root")
            .join(path)
    }
}

impl Seen {
    fn start(client: Client, name: &str) -> Self {
        let (sender, receiver) = watch::channel(None);
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        tokio::spawn(async move {
            let objects = watcher(Api::<Hypervisor>::all(client), config)
                .default_backoff()
                .applied_objects();
            let mut objects = std::pin::pin!(objects);
            while let Some(object) = objects.next().await {
                if let Ok(object) = object {
                    sender.send_replace(Some((Instant::now(), Arc::new(object))));
                }
            }
        });
        Self(receiver)
    }

    /// When it was seen that something holds.
    pub async fn until(&mut self, holds: impl Fn(&Hypervisor) -> bool) -> Result<Instant> {
        let holds = |seen: &Option<(Instant, Arc<Hypervisor>)>| {
            seen.as_ref().is_some_and(|(_, object)| holds(object))
        };
        if let Ok(found) = tokio::time::timeout(PATIENCE, self.0.wait_for(holds)).await {
            return Ok(found?.as_ref().context("nothing was seen")?.0);
        }
        let last = self.0.borrow().clone();
        let status = last
            .and_then(|(_, object)| object.status.clone())
            .unwrap_or_default();
        anyhow::bail!(
            "it was not seen within {PATIENCE:?}; instances: {:?}, conditions: {:?}",
            status.instances,
            status.conditions
        )
    }
}

/// Whether the agent is connected to libvirt.
pub fn connected(hypervisor: &Hypervisor) -> bool {
    says_connected(hypervisor) == Some(true)
}

/// Whether the agent says that it is not.
pub fn disconnected(hypervisor: &Hypervisor) -> bool {
    says_connected(hypervisor) == Some(false)
}

fn says_connected(hypervisor: &Hypervisor) -> Option<bool> {
    let status = hypervisor.status.as_ref()?;
    let condition = conditions::find(&status.conditions, HypervisorCondition::LibVirtConnection)?;
    Some(condition.status == "True")
}

/// The state of an instance, as the status has it.
pub fn state<'a>(hypervisor: &'a Hypervisor, guest: &Domain) -> Option<&'a str> {
    let instances = &hypervisor.status.as_ref()?.instances;
    let found = instances
        .iter()
        .find(|instance| instance.id == guest.uuid.to_string());
    found?.state.as_deref()
}

async fn install(client: &Client) -> Result<()> {
    install_definitions(client, &cobalt_api::crds::all()).await?;
    let api: Api<Namespace> = Api::all(client.clone());
    for name in [NAMESPACE, leases::NODE_AGENT_NAMESPACE] {
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.to_owned());
        api.create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("failed to make the namespace {name}"))?;
    }
    Ok(())
}

async fn create_hypervisor(client: &Client, name: &str) -> Result<()> {
    let api: Api<Hypervisor> = Api::all(client.clone());
    let hypervisor = Hypervisor::new(name, HypervisorSpec::default());
    api.create(&PostParams::default(), &hypervisor)
        .await
        .with_context(|| format!("failed to make the Hypervisor {name}"))?;
    Ok(())
}

async fn start_guest(libvirt: &Connection, number: usize) -> Result<()> {
    let guest = MicroDomain {
        name: &format!("guest-{number:03}"),
        uuid: &node::new_uuid()?,
        memory_mib: 16,
        kernel: Path::new(MICRO),
        command_line: "",
        machine: "pc",
        extra_devices: "",
    };
    let domain = libvirt.define_xml(&guest.xml()).await?;
    libvirt.create(&domain, CreateFlags::NONE).await?;
    if number > AWAKE {
        libvirt.suspend(&domain).await?;
    }
    Ok(())
}
