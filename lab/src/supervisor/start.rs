//! How a lab starts: all parts at once, each waiting only for what it needs.
//!
//! ```text
//! addresses, bridges ─┬─ control planes of Kubernetes ── their nodes ── DNS ─┐
//!                     ├─ OVN's databases, switch ────────────────────────────┼─ OpenStack ready
//!                     └─ OpenStack's machine, hypervisors without Kubernetes ┘  ── servers, BMCs
//!
//! Servers wait for the charts instead when charts are installed: see `cli`.
//! ```

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::task::JoinSet;

use super::Supervisor;
use crate::access::Access;
use crate::cgroup::Layout;
use crate::cluster::{Cluster, ClusterConfig, Role, Site};
use crate::config::{LabConfig, Record, read_json};
use crate::net::{Block, NodeLink, add_bridge, lay_cables};
use crate::node::files::{self, Layer};
use crate::node::logins::Logins;
use crate::node::{Node, NodeSpec, Power, hypervisor, kubernetes, new_uuid, ovn};
use crate::paths::make_dir;
use crate::pki::{Authority, write_private};
use crate::plan::{Bind, Flavour, Kind, Machine, OPENSTACK, Plan, REGION, bridge};
use crate::{bmc, charts, command, dns, firewall, light, openstack, played, registry};

/// What all machines of a lab must agree on.
pub(super) struct Blueprint {
    plan: Plan,
    /// Signs the certificates of libvirt.
    libvirt: Authority,
    /// How hypervisors log in to each other.
    logins: Logins,
}

impl Supervisor {
    /// Takes the lab's addresses. Not to be cancelled half-way: a guard route that was added and
    /// not noted would stay.
    pub(super) async fn reserve(&self) -> Result<()> {
        if self.order.config.has_machines() {
            let step = self.report().step("reserve addresses and guard them");
            let block = self.reserve_block().await?;
            self.parts.lock().await.block = Some(block);
            step.done();
        }
        Ok(())
    }

    /// The record names the block before it is taken: a supervisor that is killed in between
    /// leaves a name too many rather than a route that nobody knows of.
    async fn reserve_block(&self) -> Result<Block> {
        for block in Block::candidates().await? {
            let record = Record {
                id: self.id.clone(),
                name: self.order.config.name.clone(),
                block: Some(block),
            };
            record.write(&self.dir)?;
            if block.take().await {
                return Ok(block);
            }
        }
        bail!(
            "no free address range for a lab: all of 10.128.0.0/9 is in use; `cobalt lab status` \
             lists the labs, `cobalt lab clean` removes what dead ones left"
        )
    }

    pub(super) async fn start(self: &Arc<Self>) -> Result<()> {
        let config = &self.order.config;
        let block = self.parts.lock().await.block;
        let blueprint = match block {
            Some(block) => Some(Arc::new(self.draw(config, block).await?)),
            None => None,
        };
        let mut starting = JoinSet::new();
        for cluster in config.clusters.iter().filter(|c| c.kubernetes).cloned() {
            starting.spawn(Arc::clone(self).start_cluster(cluster, blueprint.clone()));
        }
        if let Some(blueprint) = &blueprint {
            for (what, machines) in groups_without_kubernetes(&blueprint.plan) {
                let (lab, blueprint) = (Arc::clone(self), Arc::clone(blueprint));
                starting.spawn(async move {
                    let step = lab.report().step(what);
                    lab.boot_all(&blueprint, machines, None).await?;
                    step.done();
                    Ok(())
                });
            }
        }
        if let Some(light) = config.light.clone() {
            starting.spawn(Arc::clone(self).start_light(light));
        }
        while let Some(result) = starting.join_next().await {
            result.context("a task of the lab failed")??;
        }
        if let Some(blueprint) = blueprint.filter(|_| config.openstack.is_some()) {
            self.finish_openstack(&blueprint.plan).await?;
        }
        if config.bmc {
            self.start_bmcs().await?;
        }
        self.write_kubeconfig().await
    }

    /// Decides on all machines and makes the bridges that they will be on.
    async fn draw(&self, config: &LabConfig, block: Block) -> Result<Blueprint> {
        let plan = Plan::new(config, &self.id, block);
        let mut bridges: BTreeSet<Role> = config
            .clusters
            .iter()
            .filter(|cluster| cluster.nodes > 0)
            .map(|cluster| cluster.role)
            .collect();
        if config.ovn || config.openstack.is_some() {
            bridges.insert(REGION);
        }
        for &role in &bridges {
            add_bridge(&bridge(&self.id, role), block.cluster(role.index())).await?;
        }
        // What one bridge may do another may, too.
        if let Some(role) = bridges.first() {
            let name = bridge(&self.id, *role);
            firewall::check(&self.id, &name, block.cluster(role.index())).await?;
        }
        if let Some((rack, cables)) = plan.cables() {
            lay_cables(&rack, &cables).await?;
        }
        let libvirt = Authority::new("libvirt")?;
        if config.hypervisors().is_some() {
            self.write_libvirt_client(&libvirt)?;
        }
        Ok(Blueprint {
            plan,
            libvirt,
            logins: Logins::new()?,
        })
    }

    /// What a client on this machine needs for `qemu+tls`.
    fn write_libvirt_client(&self, authority: &Authority) -> Result<()> {
        let dir = self.dir.join("libvirt");
        make_dir(&dir)?;
        let admin = authority.client("admin")?;
        write_private(&dir.join("cacert.pem"), &authority.pem())?;
        write_private(&dir.join("clientcert.pem"), &admin.certificate)?;
        write_private(&dir.join("clientkey.pem"), &admin.key)
    }

    async fn start_cluster(
        self: Arc<Self>,
        config: ClusterConfig,
        blueprint: Option<Arc<Blueprint>>,
    ) -> Result<()> {
        let report = self.report();
        let role = config.role;
        let name = role.name();
        let bin = self.kubernetes_programs()?;
        let blueprint = blueprint.filter(|_| config.nodes > 0);
        let subnets = blueprint
            .as_ref()
            .map(|blueprint| blueprint.plan.block.cluster(role.index()));
        let step = report.step(format!("{name}: control plane"));
        let dir = self.dir.join(name);
        let logs = self.dir.join("logs");
        let site = Site {
            lab: &self.id,
            dir: &dir,
            logs: &logs,
            bin: &bin,
            subnets,
        };
        let cluster = Cluster::start(&config, &site).await?;
        let client = cluster.client().await?;
        let kubeconfig = cluster.kubeconfig.clone();
        self.parts.lock().await.clusters.insert(role, cluster);
        step.done();
        if config.played_nodes > 0 {
            let step = report.step(format!("{name}: {} played nodes", config.played_nodes));
            played::create(&client, "played", config.played_nodes).await?;
            let keep = played::keep(client.clone(), "played".into(), config.played_nodes);
            self.parts.lock().await.tasks.spawn(keep);
            step.done();
        }
        let (Some(blueprint), Some(subnets)) = (blueprint, subnets) else {
            return Ok(());
        };

        let volumes = dir.join("volumes");
        make_dir(&volumes)?;
        self.parts
            .lock()
            .await
            .tasks
            .spawn(open_volumes(client.clone(), volumes));
        let registry = self.start_registry(subnets.machine()).await?;
        let machines: Vec<Machine> = blueprint
            .plan
            .machines
            .iter()
            .filter(|machine| machine.cluster == Some(role))
            .cloned()
            .collect();
        let step = report.step(format!("{name}: {} nodes", machines.len()));
        // DNS is applied while the nodes boot.
        tokio::try_join!(
            self.boot_all(&blueprint, machines, Some(&registry)),
            dns::apply(&bin, &kubeconfig, subnets.service(10))
        )?;
        step.done();
        let step = report.step(format!("{name}: DNS"));
        dns::wait(&bin, &kubeconfig).await?;
        step.done();
        Ok(())
    }

    fn kubernetes_programs(&self) -> Result<PathBuf> {
        self.order
            .prepared
            .kubernetes
            .clone()
            .context("a cluster without Kubernetes' programs")
    }

    /// The lab's own registry, on the cluster's bridge only.
    async fn start_registry(&self, address: Ipv4Addr) -> Result<String> {
        let listener = tokio::net::TcpListener::bind((address, 0))
            .await
            .with_context(|| format!("failed to open the registry on {address}"))?;
        let at = listener
            .local_addr()
            .context("failed to read the registry's address")?;
        let images = self.dir.join("images");
        let shutdown = self.shutdown.clone();
        self.parts.lock().await.tasks.spawn(async move {
            if let Err(error) = registry::serve(listener, images, shutdown).await {
                tracing::error!(error = %error, "the registry ended");
            }
        });
        Ok(at.to_string())
    }

    /// Boots machines side by side and waits until all of them are complete.
    async fn boot_all(
        self: &Arc<Self>,
        blueprint: &Arc<Blueprint>,
        machines: Vec<Machine>,
        registry: Option<&str>,
    ) -> Result<()> {
        let mut booting = JoinSet::new();
        for machine in machines {
            let (lab, blueprint) = (Arc::clone(self), Arc::clone(blueprint));
            let registry = registry.map(ToOwned::to_owned);
            booting.spawn(async move {
                let node = lab.make(&blueprint, &machine, registry.as_deref()).await?;
                node.power(Power::On).await?;
                lab.complete(&node).await?;
                // Only here: a member that comes back later may be without a majority.
                ovn::wait_until_joined(&node).await
            });
        }
        while let Some(result) = booting.join_next().await {
            result.context("a task of the lab failed")??;
        }
        Ok(())
    }

    /// Writes a machine's files and builds its power supply in; it is still off.
    async fn make(
        &self,
        blueprint: &Blueprint,
        machine: &Machine,
        registry: Option<&str>,
    ) -> Result<Arc<Node>> {
        let spec = self.spec(machine)?;
        let layer = files::base(&spec, &blueprint.plan.hosts()).await?;
        if let (Some(role), Some(registry)) = (machine.cluster, registry) {
            let parts = self.parts.lock().await;
            let cluster = parts.clusters.get(&role).context("the cluster is gone")?;
            kubernetes::write(&layer, &spec, cluster, registry)?;
        }
        self.write_role(blueprint, machine, &spec, &layer).await?;
        let (node, supply) = Node::new(spec);
        let node = Arc::new(node);
        let mut parts = self.parts.lock().await;
        parts.tasks.spawn(supply);
        parts
            .nodes
            .insert(node.spec.name.clone(), Arc::clone(&node));
        Ok(node)
    }

    async fn write_role(
        &self,
        blueprint: &Blueprint,
        machine: &Machine,
        spec: &NodeSpec,
        layer: &Layer,
    ) -> Result<()> {
        let plan = &blueprint.plan;
        let members = plan.ovn();
        let var = spec.dir.join("var");
        match machine.kind {
            Kind::Node => Ok(()),
            Kind::Ovn => ovn::member(layer, machine, &members),
            Kind::Switch => ovn::switch(layer, plan.of(Kind::Hypervisor)),
            Kind::Hypervisor => {
                let tunnel = plan.block.tunnel(machine.index);
                hypervisor::write(layer, machine, tunnel, &members, &blueprint.libvirt)?;
                let Some(site) = site(plan) else {
                    return Ok(());
                };
                let config = self.order.config.openstack.as_ref();
                let bandwidth = config.map_or(0, |config| config.migration_bandwidth);
                let (name, address) = (&machine.name, machine.address);
                blueprint.logins.write(layer, address)?;
                openstack::compute_files(layer, &var, name, address, &site, bandwidth)
            }
            Kind::Openstack => {
                let template = self
                    .order
                    .prepared
                    .openstack
                    .as_ref()
                    .context("OpenStack without its first state")?;
                let site = site(plan).context("OpenStack without a site")?;
                openstack::control_plane_files(layer, &var, template, &site).await
            }
        }
    }

    fn spec(&self, machine: &Machine) -> Result<NodeSpec> {
        let Machine { name, flavour, .. } = machine;
        let suite = flavour.suite();
        let tree = self
            .order
            .prepared
            .trees
            .get(suite.name())
            .with_context(|| format!("{name} without a tree"))?;
        let mut layers = vec![tree.clone()];
        if *flavour == Flavour::CloudHypervisor {
            let layer = self.order.prepared.cloud_hypervisor.clone();
            layers.insert(0, layer.context("no Cloud Hypervisor layer")?);
        }
        Ok(NodeSpec {
            lab: self.id.clone(),
            name: name.clone(),
            kind: machine.kind,
            cluster: machine.cluster,
            dir: self.dir.join("nodes").join(name),
            layers,
            binds: self.binds(machine)?,
            numa_cells: machine.numa_cells,
            exe: self.exe.clone(),
            uuid: new_uuid()?,
            boot_id: new_uuid()?,
            group: machine.group.clone(),
            layout: Layout::detect()?,
            link: NodeLink {
                netns: machine.group.clone(),
                link: machine.link.clone(),
                bridge: machine.bridge.clone(),
                address: machine.address,
                pods: machine.pods.clone(),
                cables: machine.cables.clone(),
            },
        })
    }

    /// What a machine sees of this one.
    fn binds(&self, machine: &Machine) -> Result<Vec<Bind>> {
        let prepared = &self.order.prepared;
        let mut binds = Vec::new();
        let mut bind = |from: &Path, to: &str, read_only: bool| {
            binds.push(Bind {
                from: from.to_owned(),
                to: to.into(),
                read_only,
            });
        };
        if let Some(role) = machine.cluster {
            bind(&self.kubernetes_programs()?, kubernetes::PROGRAMS, true);
            let volumes = self.dir.join(role.name()).join("volumes");
            bind(&volumes, kubernetes::VOLUMES, false);
        }
        if machine.kind == Kind::Hypervisor {
            let guests = prepared.guests.as_ref().and_then(|g| g.micro.parent());
            bind(guests.context("no guests")?, "opt/guests", true);
        }
        let python = machine.flavour.suite().python();
        if matches!(machine.kind, Kind::Hypervisor | Kind::Openstack)
            && let Some(packages) = prepared.packages.get(python)
        {
            bind(packages, "opt/openstack", true);
            if machine.kind == Kind::Hypervisor {
                // As with shared storage: a server's disk is wherever the server is.
                let instances = self.dir.join("instances");
                make_dir(&instances)?;
                bind(&instances, "var/lib/nova/instances", false);
            }
        }
        Ok(binds)
    }

    async fn start_light(self: Arc<Self>, config: light::LightConfig) -> Result<()> {
        let prepared = &self.order.prepared;
        let (Some(python), Some(template)) = (&prepared.python, &prepared.light) else {
            bail!("the light OpenStack without Python or its first state");
        };
        let step = self
            .report()
            .step(format!("light OpenStack, {} hosts", config.hosts.len()));
        let started = light::start(
            &config,
            &self.id,
            &self.dir.join("openstack"),
            &self.dir.join("logs"),
            &python.program,
            &python.packages,
            template,
        )
        .await?;
        let mut parts = self.parts.lock().await;
        parts.processes.extend(started.processes);
        parts.access = Some(started.access);
        step.done();
        Ok(())
    }

    /// Waits for hypervisors to join, makes the tenant networks, boots servers.
    async fn finish_openstack(&self, plan: &Plan) -> Result<()> {
        let Some(site) = site(plan) else {
            return Ok(());
        };
        let config = self.order.config.openstack.clone().unwrap_or_default();
        let hosts = plan.of(Kind::Hypervisor).count();
        let control = self.node(OPENSTACK).await?;
        let step = self
            .report()
            .step(format!("openstack: services, networks, {hosts} hosts"));
        let deadline = command::patience(Duration::from_secs(180));
        let command = openstack::ready_command(hosts, plan.block, deadline);
        control.run(&command, deadline).await?;
        step.done();
        let access = openstack::access(&site);
        self.parts.lock().await.access = Some(access.clone());
        if self.order.config.has_kubernetes() {
            self.publish(&access).await?;
        }
        if config.servers > 0 {
            let step = self
                .report()
                .step(format!("openstack: {} servers", config.servers));
            let command = openstack::boot_command(config.servers, deadline);
            control.run(&command, deadline).await?;
            step.done();
        }
        Ok(())
    }

    /// Puts the way into OpenStack where components look for it.
    async fn publish(&self, access: &Access) -> Result<()> {
        let client = {
            let parts = self.parts.lock().await;
            match parts.clusters.get(&REGION) {
                Some(cluster) => cluster.client().await?,
                None => return Ok(()),
            }
        };
        let deadline = command::patience(Duration::from_secs(30));
        tokio::time::timeout(deadline, charts::publish(client, access))
            .await
            .context("the API server took no Secret within half a minute")?
    }

    async fn start_bmcs(&self) -> Result<()> {
        let python = self.order.prepared.python.as_ref();
        let python = python.context("BMCs without Python")?;
        let (block, nodes) = {
            let parts = self.parts.lock().await;
            let nodes: Vec<bmc::BmcNode> = parts
                .nodes
                .values()
                .filter(|node| matches!(node.spec.kind, Kind::Node | Kind::Hypervisor))
                .zip(bmc::FIRST_PORT..)
                .map(|(node, port)| bmc::BmcNode {
                    name: node.spec.name.clone(),
                    uuid: node.spec.uuid.clone(),
                    port,
                })
                .collect();
            (parts.block.context("BMCs without machines")?, nodes)
        };
        let step = self.report().step(format!("{} BMCs", nodes.len()));
        let address = block.cluster(REGION.index()).machine();
        let site = bmc::BmcSite {
            lab_id: &self.id,
            lab_dir: &self.dir,
            dir: &self.dir.join("bmc"),
            logs: &self.dir.join("logs"),
            python: &python.program,
            packages: &python.packages,
            address,
            user: bmc::USER,
            password: bmc::PASSWORD,
        };
        let process = bmc::start(&site, &nodes).await?;
        let mut parts = self.parts.lock().await;
        parts.processes.push(process);
        for node in nodes {
            let url = bmc::url(address, &node);
            parts.bmcs.insert(node.name, url);
        }
        step.done();
        Ok(())
    }

    /// One kubeconfig with a context per cluster, the hypervisor cluster first.
    async fn write_kubeconfig(&self) -> Result<()> {
        let mut lists = serde_json::Map::new();
        let parts = self.parts.lock().await;
        let preferred = [REGION];
        let Some(current) = preferred
            .iter()
            .chain(parts.clusters.keys())
            .find(|role| parts.clusters.contains_key(role))
        else {
            return Ok(());
        };
        for list in ["clusters", "users", "contexts"] {
            let mut all = Vec::new();
            for cluster in parts.clusters.values() {
                let mut one: serde_json::Value = read_json(&cluster.kubeconfig)?;
                if let Some(entries) = one.get_mut(list).and_then(|value| value.as_array_mut()) {
                    all.append(entries);
                }
            }
            lists.insert(list.to_owned(), all.into());
        }
        let mut merged = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": current.name(),
        });
        if let Some(fields) = merged.as_object_mut() {
            fields.append(&mut lists);
        }
        write_private(&self.dir.join("kubeconfig"), &merged.to_string())
    }
}

/// The machines that wait for no control plane, by the step that boots them.
fn groups_without_kubernetes(plan: &Plan) -> Vec<(String, Vec<Machine>)> {
    let kinds = [
        (Kind::Openstack, "openstack: control plane's machine"),
        (Kind::Ovn, "ovn: databases"),
        (Kind::Switch, "ovn: switch"),
        (Kind::Hypervisor, "hypervisors"),
    ];
    kinds
        .into_iter()
        .map(|(kind, what)| {
            let machines: Vec<Machine> = plan
                .of(kind)
                .filter(|machine| machine.cluster.is_none())
                .cloned()
                .collect();
            (format!("{what} ({})", machines.len()), machines)
        })
        .filter(|(_, machines)| !machines.is_empty())
        .collect()
}

fn site(plan: &Plan) -> Option<openstack::Site> {
    Some(openstack::Site {
        openstack: plan.openstack()?,
        ovn: plan.ovn(),
    })
}

/// The provisioner makes volumes with mode 0750, and host paths know no fsGroup: opens each for
/// containers that do not run as root.
async fn open_volumes(client: kube::Client, volumes: PathBuf) {
    use futures::StreamExt;
    use std::os::unix::fs::PermissionsExt;
    let all: kube::Api<PersistentVolume> = kube::Api::all(client);
    let mut stream = std::pin::pin!(
        watcher(all, watcher::Config::default())
            .default_backoff()
            .applied_objects()
    );
    while let Some(volume) = stream.next().await {
        let path = volume
            .ok()
            .and_then(|volume| volume.spec?.host_path)
            .map(|host| host.path);
        let Some(name) = path.as_deref().and_then(|path| Path::new(path).file_name()) else {
            continue;
        };
        // Not every volume is one of the provisioner's.
        let mode = std::fs::Permissions::from_mode(0o777);
        drop(std::fs::set_permissions(volumes.join(name), mode));
    }
}
