//! Where it is measured: a lab with a hypervisor, OVN and an API server, and what a watch shows of
//! its OVSNode.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cobalt_api::conditions::{OvsNodeCondition, is_true};
use cobalt_api::ovsnode::{OvsNode, OvsNodeStatus};
use cobalt_lab::cluster::{ClusterConfig, Role};
use cobalt_lab::plan::Flavour;
use cobalt_lab::testing::{install_definitions, run_inside};
use cobalt_lab::{Lab, LabConfig, node};
use cobalt_ovs::ovsdb::vswitch::{self, Bridge};
use cobalt_ovs::ovsdb::{Monitor, Tables};
use cobalt_ovs::{Options, Remote};
use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::inside::Network;

/// The hypervisor.
pub const HOST: &str = "hv1";
/// Where its OVSNode is.
pub const NAMESPACE: &str = "default";
/// The bridge that changes.
const BRIDGE: &str = "br-int";
/// The cluster with the API server.
const CLUSTER: Role = Role::ControlPlane;
/// How long anything may take before it counts as broken.
const PATIENCE: Duration = Duration::from_secs(120);

/// The lab.
pub struct Site {
    lab: Lab,
    root: PathBuf,
    network: Network,
    seen: Seen,
    /// Where the northbound database is.
    northbound: String,
}

/// What a watch shows of the OVSNode, and since when.
#[derive(Debug, Clone)]
pub struct Seen(watch::Receiver<Option<(Instant, Arc<OvsNode>)>>);

impl Site {
    /// Starts it.
    pub async fn up() -> Result<Self> {
        eprintln!("starting a lab");
        let mut config = LabConfig::with_hypervisors("bench-ovs", &[Flavour::Bookworm]);
        config.ovn = true;
        config.clusters.push(ClusterConfig {
            controllers: false,
            audit: true,
            ..ClusterConfig::new(CLUSTER)
        });
        let lab = cobalt_lab::testing::lab(config).await?;
        let client = lab.client(CLUSTER).await?;
        install_definitions(&client, &cobalt_api::crds::all()).await?;
        let status = lab.status().await?;
        let found = status.nodes.iter().find(|node| node.name == HOST);
        let found = found.with_context(|| format!("the lab has no {HOST}"))?;
        let pid_one = node::pid_one(HOST, &found.observed)?;
        let members = status.nodes.iter();
        let members = members.filter(|node| node.name.starts_with("ovn"));
        let members: Vec<String> = members
            .map(|node| format!("tcp:{}:6641", node.address))
            .collect();
        Ok(Self {
            lab,
            root: PathBuf::from(format!("/proc/{pid_one}/root")),
            network: Network::of(pid_one),
            seen: Seen::start(client),
            northbound: members.join(","),
        })
    }

    /// Takes it down.
    pub async fn down(&self) -> Result<()> {
        self.lab.down().await
    }

    /// What the watch shows.
    pub fn seen(&self) -> Seen {
        self.seen.clone()
    }

    /// The network of the hypervisor.
    pub fn network(&self) -> Network {
        self.network.clone()
    }

    /// An admin.
    pub async fn client(&self) -> Result<Client> {
        self.lab.client(CLUSTER).await
    }

    /// A port from which packets can be sent to somebody who is not there.
    pub async fn add_sender(&self, name: &str) -> Result<()> {
        self.sh(&format!(
            "ovs-vsctl --timeout=60 add-port {BRIDGE} {name} -- set Interface {name} type=internal
             ip link set {name} up
             ip address add 198.51.100.1/24 dev {name}
             ip neighbour add 198.51.100.2 lladdr 02:00:00:00:00:99 dev {name}"
        ))
        .await
    }

    /// The admin's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.lab.cluster_kubeconfig(CLUSTER)
    }

    /// Where the agent's log goes.
    pub fn log(&self) -> PathBuf {
        self.lab.dir().join("logs/ovs-agent.log")
    }

    /// A path of the hypervisor, from outside.
    pub fn inside(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    async fn sh(&self, script: &str) -> Result<()> {
        run_inside(&self.lab, HOST, &["sh", "-ec", script]).await?;
        Ok(())
    }

    /// Gives the switch so many ports, and flows that nobody wonders about.
    pub async fn fill(&self, ports: usize, flows: usize) -> Result<()> {
        let add = format!(
            "for i in $(seq {ports}); do
               printf -- '-- add-port {BRIDGE} p%d -- set Interface p%d type=internal ' $i $i
             done | xargs ovs-vsctl --timeout=120"
        );
        self.sh(&add).await?;
        let fill = format!(
            "for i in $(seq {flows}); do echo \"table=200,priority=1,ip,\
             nw_src=10.0.$((i / 250)).$((i % 250)),actions=drop\"; done | \
             ovs-ofctl -O OpenFlow15 add-flows {BRIDGE} -"
        );
        self.sh(&fill).await
    }

    /// Adds or removes a port.
    pub async fn toggle(&self, add: bool) -> Result<()> {
        let script = if add {
            format!(
                "ovs-vsctl --no-wait add-port {BRIDGE} toggle -- set Interface toggle type=internal"
            )
        } else {
            "ovs-vsctl --no-wait del-port toggle".to_owned()
        };
        self.sh(&script).await
    }

    /// An instance comes, gets its network, and goes.
    pub async fn instance(&self, number: usize) -> Result<()> {
        let nbctl = format!(
            "ovn-nbctl --no-leader-only --timeout=60 --db={}",
            self.northbound
        );
        let (high, low) = (number / 200 % 200, number % 200 + 10);
        self.sh(&format!(
            "{nbctl} --may-exist ls-add churn -- lsp-add churn vm{number} -- \
             lsp-set-addresses vm{number} '02:00:00:01:{high:02x}:{low:02x} 198.18.{high}.{low}'
             ovs-vsctl --no-wait add-port {BRIDGE} tap{number} -- set Interface tap{number} \
             external_ids:iface-id=vm{number}
             ip tuntap add tap{number} mode tap
             ip link set tap{number} up
             ovs-vsctl --timeout=60 wait-until Interface tap{number} external_ids:ovn-installed=true
             ip link delete tap{number}
             ovs-vsctl del-port tap{number}
             {nbctl} lsp-del vm{number}"
        ))
        .await
    }

    /// The database of the switch, as this process follows it.
    pub fn ovsdb(&self) -> Ovsdb {
        let remote = Remote::Unix(self.inside("run/openvswitch/db.sock"));
        let tables = Tables::new().table::<Bridge>();
        let monitor = Monitor::new(vswitch::DATABASE, vec![remote], tables, Options::default());
        Ovsdb(monitor)
    }

    fn audit(&self) -> Result<Vec<u8>> {
        let name = format!("logs/{}-audit.log", CLUSTER.name());
        std::fs::read(self.lab.dir().join(name)).context("failed to read the audit log")
    }

    /// How long the audit log is.
    pub fn audit_length(&self) -> Result<usize> {
        Ok(self.audit()?.len())
    }

    /// Writes of the OVSNode from a place of the audit log on.
    pub fn writes(&self, from: usize) -> Result<usize> {
        let log = self.audit()?;
        let new = log.get(from..).context("the audit log was cut")?;
        let lines = new
            .split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty());
        let mut count = 0;
        for line in lines {
            let entry: Value =
                serde_json::from_slice(line).context("failed to parse the audit log")?;
            let text = |path: &str| entry.pointer(path).and_then(Value::as_str);
            let write = matches!(
                text("/verb"),
                Some("create" | "update" | "patch" | "delete")
            );
            count += usize::from(write && text("/objectRef/resource") == Some("ovsnodes"));
        }
        Ok(count)
    }
}

/// The database of the switch.
pub struct Ovsdb(Monitor);

impl Ovsdb {
    fn count(&self) -> Option<usize> {
        let mut bridges = self.0.rows::<Bridge>().map(|(_, row)| row);
        Some(bridges.find(|row| row.name == BRIDGE)?.ports.len())
    }

    /// How many ports the bridge has.
    pub async fn ports(&mut self) -> Result<usize> {
        let waiting = async {
            loop {
                if let Some(count) = self.count() {
                    return count;
                }
                self.0.next().await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting)
            .await
            .context("OVSDB does not answer")
    }

    /// Waits until the bridge has another number of ports: when, and how many.
    pub async fn change(&mut self) -> Result<(Instant, usize)> {
        let before = self.count();
        let waiting = async {
            loop {
                self.0.next().await;
                if let Some(count) = self.count().filter(|count| Some(*count) != before) {
                    return (Instant::now(), count);
                }
            }
        };
        tokio::time::timeout(PATIENCE, waiting)
            .await
            .context("no change came")
    }
}

impl Seen {
    fn start(client: Client) -> Self {
        let (sender, receiver) = watch::channel(None);
        let config = watcher::Config::default().fields(&format!("metadata.name={HOST}"));
        tokio::spawn(async move {
            let objects = watcher(Api::<OvsNode>::namespaced(client, NAMESPACE), config)
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

    async fn until(
        &mut self,
        holds: impl Fn(&OvsNodeStatus) -> bool,
    ) -> Result<(Instant, OvsNodeStatus)> {
        let holds = |seen: &Option<(Instant, Arc<OvsNode>)>| {
            let status = seen.as_ref().and_then(|(_, object)| object.status.as_ref());
            status.is_some_and(&holds)
        };
        if let Ok(found) = tokio::time::timeout(PATIENCE, self.0.wait_for(holds)).await {
            let (at, object) = found?.clone().context("nothing was seen")?;
            return Ok((at, object.status.clone().unwrap_or_default()));
        }
        let last = self.0.borrow().clone();
        let status = last.and_then(|(_, object)| object.status.clone());
        anyhow::bail!("it was not seen within {PATIENCE:?}; last: {status:?}")
    }

    /// Waits until all is well and was read.
    pub async fn well(mut self) -> Result<OvsNodeStatus> {
        let well = |status: &OvsNodeStatus| {
            is_true(&status.conditions, OvsNodeCondition::Ready)
                && status.flow_stats.is_some()
                && status.metrics.is_some()
        };
        Ok(self.until(well).await?.1)
    }

    /// The certificate of the agent that answers questions.
    pub async fn certificate(mut self) -> Result<String> {
        let (_, status) = self.until(|status| status.diagnostics.is_some()).await?;
        let diagnostics = status.diagnostics.context("no diagnostics")?;
        Ok(diagnostics.certificate_sha256)
    }

    /// When the watch showed so many ports.
    pub async fn ports(mut self, count: usize) -> Result<Instant> {
        let shows = |status: &OvsNodeStatus| {
            let mut bridges = status.bridges.iter().filter(|bridge| bridge.name == BRIDGE);
            bridges.any(|bridge| bridge.ports == i64::try_from(count).ok())
        };
        Ok(self.until(shows).await?.0)
    }

    /// Collects every issue that is shown from now on.
    pub fn collect_issues(mut self) -> Collector {
        let (end, mut ended) = watch::channel(false);
        let collecting = tokio::spawn(async move {
            let mut found = BTreeSet::new();
            loop {
                let object = self.0.borrow_and_update().clone();
                let status = object.and_then(|(_, object)| object.status.clone());
                for issue in status.iter().flat_map(|status| &status.issues) {
                    found.insert(issue.message.clone());
                }
                tokio::select! {
                    changed = self.0.changed() => if changed.is_err() { return found },
                    _ = ended.changed() => return found,
                }
            }
        });
        Collector(end, collecting)
    }
}

/// Who collects issues.
pub struct Collector(watch::Sender<bool>, JoinHandle<BTreeSet<String>>);

impl Collector {
    /// What was shown.
    pub async fn found(self) -> Vec<String> {
        self.0.send_replace(true);
        self.1.await.unwrap_or_default().into_iter().collect()
    }
}
