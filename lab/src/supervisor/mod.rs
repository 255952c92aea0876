//! The process that owns a lab: it starts everything, answers on the control socket, and takes
//! everything down when it is asked to, when its owner ends, or on SIGTERM.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::{Node as KubeNode, PersistentVolume};
use kube::runtime::{WatchStreamExt, watcher};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cgroup::Layout;
use crate::cluster::{Cluster, ClusterConfig, Role, Site};
use crate::config::{Order, Record, read_json};
use crate::control::{
    Answer, ClusterStatus, Fault, NodeStatus, ProcessStatus, Request, State, Status, socket,
};
use crate::net::{Block, NodeLink, add_bridge};
use crate::node::{Node, NodeSpec, Power, enter, files, new_uuid, pid_one};
use crate::pki::write_private;
use crate::report::{Event, Report};
use crate::{command, dns, played, registry, sweep};

/// A lab under way.
struct Supervisor {
    dir: PathBuf,
    order: Order,
    id: String,
    exe: PathBuf,
    shutdown: CancellationToken,
    state: watch::Sender<(State, Option<String>)>,
    /// All progress so far; who connects late still sees the whole story.
    history: watch::Sender<Vec<Event>>,
    parts: Mutex<Parts>,
}

/// What has been started so far.
#[derive(Default)]
struct Parts {
    block: Option<Block>,
    clusters: BTreeMap<Role, Cluster>,
    nodes: BTreeMap<String, (Role, Arc<Node>)>,
    tasks: JoinSet<()>,
}

/// Runs the supervisor of the lab in `dir` until the lab is down.
pub async fn run(dir: &Path) -> Result<()> {
    let order: Order = read_json(&dir.join("order.json"))?;
    let record = Record::read(dir)?;
    // Standard input is the lab's lock, taken by the launcher and held until the kernel takes it
    // back: how everybody knows that this lab lives.
    if !sweep::is_alive(dir) {
        bail!("nobody holds the lock of this lab: `cobalt lab up` starts a supervisor");
    }
    let listener = UnixListener::bind(socket(dir)).context("failed to make the control socket")?;
    // A copy of its own: a rebuild must not change the program under a running lab.
    let exe = dir.join("cobalt");
    let current = std::env::current_exe().context("failed to find this program")?;
    if std::fs::hard_link(&current, &exe).is_err() {
        std::fs::copy(&current, &exe).context("failed to copy this program")?;
    }
    let lab = Arc::new(Supervisor {
        dir: dir.to_owned(),
        order,
        id: record.id.clone(),
        exe,
        shutdown: CancellationToken::new(),
        state: watch::Sender::new((State::Starting, None)),
        history: watch::Sender::new(Vec::new()),
        parts: Mutex::default(),
    });
    println!("listening");

    let mut services = JoinSet::new();
    services.spawn(serve(Arc::clone(&lab), listener));
    services.spawn(until_told(Arc::clone(&lab)));
    let reserved = lab.reserve().await;
    let started = tokio::select! {
        result = async { reserved?; lab.start().await } => result,
        () = lab.shutdown.cancelled() => Err(anyhow!("taken down while it was starting")),
    };
    let failed = match started {
        Ok(()) => {
            lab.state.send_replace((State::Ready, None));
            lab.shutdown.cancelled().await;
            false
        }
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the lab did not come up");
            lab.state
                .send_replace((State::Failed, Some(format!("{error:#}"))));
            !lab.shutdown.is_cancelled()
        }
    };
    lab.take_down().await;
    if failed {
        // The logs stay for whoever wants to know; the next `up` removes them.
        drop(std::fs::remove_file(socket(dir)));
        let error = lab.state.borrow().1.clone().unwrap_or_default();
        std::fs::write(dir.join("error"), error).context("failed to record the error")?;
    } else {
        crate::paths::remove_tree(dir)?;
    }
    Ok(())
}

impl Supervisor {
    fn report(&self) -> Report {
        let history = self.history.clone();
        Report::new(move |event| history.send_modify(|events| events.push(event)))
    }

    /// Takes the lab's addresses. Not to be cancelled half-way: a guard route that was added and
    /// not noted would stay.
    async fn reserve(&self) -> Result<()> {
        if self.order.config.has_nodes() {
            let step = self.report().step("reserve addresses and guard them");
            let block = self.reserve_block().await?;
            self.parts.lock().await.block = Some(block);
            step.done();
        }
        Ok(())
    }

    async fn start(self: &Arc<Self>) -> Result<()> {
        let config = &self.order.config;
        let mut starting = JoinSet::new();
        for cluster in config.clusters.clone() {
            starting.spawn(Arc::clone(self).start_cluster(cluster));
        }
        while let Some(result) = starting.join_next().await {
            result.context("a task of the lab failed")??;
        }
        self.write_kubeconfig().await
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

    async fn start_cluster(self: Arc<Self>, config: ClusterConfig) -> Result<()> {
        let report = self.report();
        let role = config.role;
        let name = role.name();
        let block = self.parts.lock().await.block.filter(|_| config.nodes > 0);
        let subnets = block.map(|block| block.cluster(role.index()));
        let bridge = format!("{}{}", sweep::link_prefix(&self.id), role.letter());
        if let Some(subnets) = subnets {
            add_bridge(&bridge, subnets).await?;
        }
        let step = report.step(format!("{name}: control plane"));
        let dir = self.dir.join(name);
        let logs = self.dir.join("logs");
        let site = Site {
            lab: &self.id,
            dir: &dir,
            logs: &logs,
            bin: &self.order.bin,
            subnets,
        };
        let cluster = Cluster::start(&config, &site).await?;
        let client = cluster.client().await?;
        let kubeconfig = cluster.kubeconfig.clone();
        step.done();
        if config.played_nodes > 0 {
            let step = report.step(format!("{name}: {} played nodes", config.played_nodes));
            played::create(&client, "played", config.played_nodes).await?;
            let keep = played::keep(client.clone(), "played".into(), config.played_nodes);
            self.parts.lock().await.tasks.spawn(keep);
            step.done();
        }
        let Some(subnets) = subnets else {
            self.parts.lock().await.clusters.insert(role, cluster);
            return Ok(());
        };

        let registry = self.start_registry(subnets.machine()).await?;
        let specs = self.node_specs(&config, &bridge, subnets, &dir.join("volumes"))?;
        let hosts: Vec<_> = specs
            .iter()
            .map(|spec| (spec.name.clone(), subnets.node(spec.link.index)))
            .collect();
        for spec in &specs {
            files::write(spec, &cluster, &hosts, &registry).await?;
        }
        self.parts.lock().await.clusters.insert(role, cluster);
        self.parts
            .lock()
            .await
            .tasks
            .spawn(open_volumes(client.clone(), dir.join("volumes")));

        let step = report.step(format!("{name}: {} nodes", specs.len()));
        let mut booting = JoinSet::new();
        for spec in specs {
            let (node, supply) = Node::new(spec);
            let node = Arc::new(node);
            let mut parts = self.parts.lock().await;
            parts.tasks.spawn(supply);
            parts
                .nodes
                .insert(node.spec.name.clone(), (role, Arc::clone(&node)));
            drop(parts);
            let client = client.clone();
            booting.spawn(async move {
                node.power(Power::On).await?;
                wait_until_ready(&client, &node).await
            });
        }
        // Applied while the nodes boot.
        dns::apply(&self.order.bin, &kubeconfig, subnets.service(10)).await?;
        while let Some(result) = booting.join_next().await {
            result.context("a task of the lab failed")??;
        }
        step.done();
        let step = report.step(format!("{name}: DNS"));
        dns::wait(&self.order.bin, &kubeconfig).await?;
        step.done();
        Ok(())
    }

    /// The lab's own registry, on the cluster's bridge only.
    async fn start_registry(&self, address: std::net::Ipv4Addr) -> Result<String> {
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

    fn node_specs(
        &self,
        config: &ClusterConfig,
        bridge: &str,
        subnets: crate::net::Subnets,
        volumes: &Path,
    ) -> Result<Vec<NodeSpec>> {
        let tree = self
            .order
            .tree
            .clone()
            .context("a lab with nodes and without a tree")?;
        let layout = Layout::detect()?;
        std::fs::create_dir_all(volumes)
            .with_context(|| format!("failed to make {}", volumes.display()))?;
        (1..=config.nodes)
            .map(|index| {
                let name = format!("{}{index}", config.role.letter());
                let group = format!("{}{name}", sweep::group_prefix(&self.id));
                Ok(NodeSpec {
                    lab: self.id.clone(),
                    dir: self.dir.join("nodes").join(&name),
                    tree: tree.clone(),
                    bin: self.order.bin.clone(),
                    volumes: volumes.to_owned(),
                    exe: self.exe.clone(),
                    uuid: new_uuid()?,
                    boot_id: new_uuid()?,
                    layout: layout.clone(),
                    link: NodeLink {
                        netns: group.clone(),
                        link: format!("{bridge}{index}"),
                        bridge: bridge.to_owned(),
                        subnets,
                        index,
                        count: config.nodes,
                    },
                    group,
                    name,
                })
            })
            .collect()
    }

    /// One kubeconfig with a context per cluster, the hypervisor cluster first.
    async fn write_kubeconfig(&self) -> Result<()> {
        let mut lists = serde_json::Map::new();
        let parts = self.parts.lock().await;
        let preferred = [Role::Hypervisor];
        let current = preferred
            .iter()
            .chain(parts.clusters.keys())
            .find(|role| parts.clusters.contains_key(role))
            .context("a lab without a cluster")?;
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

    async fn status(&self) -> Status {
        let (state, error) = self.state.borrow().clone();
        let mut parts = self.parts.lock().await;
        let addresses = parts.block.map(Block::range);
        let mut clusters = Vec::new();
        for cluster in parts.clusters.values_mut() {
            let processes = cluster
                .processes
                .iter_mut()
                .map(|process| ProcessStatus {
                    name: process.recipe.name.clone(),
                    pid: if process.ended().is_some() {
                        None
                    } else {
                        process.pid()
                    },
                    log: process.recipe.log.clone(),
                })
                .collect();
            clusters.push(ClusterStatus {
                role: cluster.role,
                server: cluster.server.clone(),
                kubeconfig: cluster.kubeconfig.clone(),
                processes,
            });
        }
        let nodes = parts
            .nodes
            .values()
            .map(|(role, node)| NodeStatus {
                name: node.spec.name.clone(),
                role: *role,
                address: node.spec.link.subnets.node(node.spec.link.index),
                observed: node.observed(),
                log: node.spec.dir.join("console.log"),
            })
            .collect();
        Status {
            name: self.order.config.name.clone(),
            id: self.id.clone(),
            state,
            error,
            pid: Some(std::process::id()),
            dir: self.dir.clone(),
            kubeconfig: self.dir.join("kubeconfig"),
            bin: self.order.bin.clone(),
            addresses,
            clusters,
            nodes,
        }
    }

    async fn node(&self, name: &str) -> Result<(Role, Arc<Node>)> {
        let parts = self.parts.lock().await;
        parts.nodes.get(name).cloned().with_context(|| {
            let names: Vec<&str> = parts.nodes.keys().map(String::as_str).collect();
            format!(
                "there is no node {name}; this lab has: {}",
                names.join(", ")
            )
        })
    }

    async fn power(&self, name: &str, action: Power, wait: bool, report: &Report) -> Result<()> {
        let (role, node) = self.node(name).await?;
        let step = report.step(format!(
            "{name}: power {}",
            format!("{action:?}").to_lowercase()
        ));
        node.power(action).await?;
        step.done();
        let observed = node.observed();
        // A node without network or with stopped processes cannot become Ready.
        if wait && matches!(action, Power::On | Power::Reboot) && !observed.cut {
            let step = report.step(format!("{name}: Ready"));
            let client = {
                let parts = self.parts.lock().await;
                parts
                    .clusters
                    .get(&role)
                    .context("the node's cluster is gone")?
                    .client()
                    .await?
            };
            wait_until_ready(&client, &node).await?;
            step.done();
        }
        Ok(())
    }

    async fn fault(&self, action: Fault, target: &str) -> Result<()> {
        if let Ok((_, node)) = self.node(target).await {
            return node_fault(&node, action).await;
        }
        if let Some((name, unit)) = target.split_once('/')
            && let Ok((_, node)) = self.node(name).await
        {
            return unit_fault(&node, unit, action).await;
        }
        let mut parts = self.parts.lock().await;
        let names: Vec<String> = parts
            .clusters
            .values()
            .flat_map(|cluster| cluster.processes.iter().map(|p| p.recipe.name.clone()))
            .collect();
        let process = parts
            .clusters
            .values_mut()
            .flat_map(|cluster| &mut cluster.processes)
            .find(|process| process.recipe.name == target)
            .with_context(|| {
                format!(
                    "there is no {target}; targets are nodes (n1), units of nodes (n1/kubelet) \
                     and processes: {}",
                    names.join(", ")
                )
            })?;
        match action {
            Fault::Kill => {
                process.kill().await;
                Ok(())
            }
            Fault::Stop => process.signal(Signal::STOP),
            Fault::Cont => process.signal(Signal::CONT),
            Fault::Cut => bail!("{target} has no network of its own; cut a node"),
            Fault::Heal if process.ended().is_some() => {
                *process = process.recipe.start()?;
                Ok(())
            }
            Fault::Heal => process.signal(Signal::CONT),
        }
    }

    /// Takes everything down. The same code cleans up after a crash.
    async fn take_down(&self) {
        let mut parts = self.parts.lock().await;
        parts.tasks.abort_all();
        while parts.tasks.join_next().await.is_some() {}
        parts.nodes.clear();
        for (_, cluster) in std::mem::take(&mut parts.clusters) {
            for mut process in cluster.processes {
                process.kill().await;
            }
        }
        let record = Record {
            id: self.id.clone(),
            name: self.order.config.name.clone(),
            block: parts.block,
        };
        if let Err(error) = sweep::lab(&record).await {
            tracing::error!(
                error = format!("{error:#}"),
                "the lab left something behind"
            );
        }
    }
}

async fn node_fault(node: &Node, action: Fault) -> Result<()> {
    match action {
        Fault::Kill => node.power(Power::Loss).await,
        Fault::Stop => node.freeze(true).await,
        Fault::Cont => node.freeze(false).await,
        Fault::Cut => node.cut(true).await,
        Fault::Heal => {
            let observed = node.observed();
            if observed.frozen {
                node.freeze(false).await?;
            }
            if observed.cut {
                node.cut(false).await?;
            }
            node.power(Power::On).await
        }
    }
}

async fn unit_fault(node: &Node, unit: &str, action: Fault) -> Result<()> {
    let systemctl: &[&str] = match action {
        Fault::Kill => &["kill", "--signal=KILL"],
        Fault::Stop => &["kill", "--signal=STOP"],
        Fault::Cont => &["kill", "--signal=CONT"],
        Fault::Heal => &["restart"],
        Fault::Cut => bail!("a unit has no network of its own; cut {}", node.spec.name),
    };
    let mut arguments = vec!["systemctl".to_owned()];
    arguments.extend(systemctl.iter().map(|&word| word.to_owned()));
    arguments.push(unit.to_owned());
    let command = enter(pid_one(&node.spec.name, &node.observed())?, &arguments);
    let (program, arguments) = command.split_first().context("an empty command")?;
    command::run(program, arguments).await
}

/// Waits until the node of this boot, not of an earlier one, is Ready.
async fn wait_until_ready(client: &kube::Client, node: &Node) -> Result<()> {
    let nodes: kube::Api<KubeNode> = kube::Api::all(client.clone());
    let name = node.spec.name.clone();
    let boot = node.observed().boot_id;
    let ready = |object: Option<&KubeNode>| {
        let Some(status) = object.and_then(|node| node.status.as_ref()) else {
            return false;
        };
        let this_boot = status
            .node_info
            .as_ref()
            .is_some_and(|info| info.boot_id == boot);
        this_boot
            && status
                .conditions
                .iter()
                .flatten()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let waiting = kube::runtime::wait::await_condition(nodes, &name, ready);
    let deadline = command::patience(Duration::from_secs(180));
    tokio::time::timeout(deadline, waiting).await.map_err(|_| {
        anyhow!(
            "{name} is not Ready after {deadline:?}; its console:\n{}\n`cobalt lab exec {name} -- \
             journalctl -u kubelet` tells more",
            crate::process::log_end(&node.spec.dir.join("console.log"))
        )
    })??;
    Ok(())
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

/// Ends the lab on a signal, when its owner ends, or when its starter ends before it is ready.
async fn until_told(lab: Arc<Supervisor>) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return;
    };
    let starter = async {
        let mut state = lab.state.subscribe();
        let settled = async {
            drop(state.wait_for(|(state, _)| *state != State::Starting).await);
        };
        tokio::select! {
            () = end_of(Some(lab.order.starter)) => {}
            () = settled => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = end_of(lab.order.config.owner) => {}
        () = starter => {}
        () = lab.shutdown.cancelled() => {}
    }
    lab.shutdown.cancel();
}

/// Returns when a process has ended; never for none.
async fn end_of(pid: Option<u32>) {
    let Some(pid) = pid
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw)
    else {
        return std::future::pending().await;
    };
    // No such process: it has ended.
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    let (tell, ended) = oneshot::channel();
    // A thread of its own, which the end of this program need not wait for.
    std::thread::spawn(move || {
        let mut events = [PollFd::new(&handle, PollFlags::IN)];
        while rustix::event::poll(&mut events, None) == Err(Errno::INTR) {}
        tell.send(())
    });
    drop(ended.await);
}

async fn serve(lab: Arc<Supervisor>, listener: UnixListener) {
    let mut clients = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    clients.spawn(answer(Arc::clone(&lab), stream));
                }
                Err(error) => tracing::warn!(error = %error, "failed to accept a client"),
            },
            Some(_) = clients.join_next() => {}
        }
    }
}

async fn answer(lab: Arc<Supervisor>, stream: UnixStream) {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    let Ok(Some(line)) = lines.next_line().await else {
        return;
    };
    let (progress, mut events) = mpsc::channel::<Event>(256);
    let report = Report::new(move |event| {
        // A client that reads nothing misses progress, not the result.
        drop(progress.try_send(event));
    });
    let handled = async {
        let result = match serde_json::from_str(&line) {
            Ok(request) => handle(&lab, request, &report).await,
            Err(error) => Err(anyhow!("not a request: {error}")),
        };
        drop(report);
        result.unwrap_or_else(|error| Answer::Error(format!("{error:#}")))
    };
    let mut handled = std::pin::pin!(handled);
    let last = loop {
        tokio::select! {
            biased;
            Some(event) = events.recv() => {
                if send(&mut writer, &Answer::Progress(event)).await.is_err() {
                    return;
                }
            }
            last = &mut handled => break last,
        }
    };
    while let Ok(event) = events.try_recv() {
        if send(&mut writer, &Answer::Progress(event)).await.is_err() {
            return;
        }
    }
    // A client that has gone away needs no answer.
    drop(send(&mut writer, &last).await);
}

async fn send(writer: &mut tokio::net::unix::OwnedWriteHalf, answer: &Answer) -> Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    writer.write_all(&line).await?;
    Ok(())
}

async fn handle(lab: &Arc<Supervisor>, request: Request, report: &Report) -> Result<Answer> {
    match request {
        Request::Status => Ok(Answer::Status(Box::new(lab.status().await))),
        Request::Ready => {
            let (mut history, mut state) = (lab.history.subscribe(), lab.state.subscribe());
            let mut seen = 0;
            loop {
                let (now, error) = state.borrow_and_update().clone();
                let news: Vec<Event> = history
                    .borrow_and_update()
                    .iter()
                    .skip(seen)
                    .cloned()
                    .collect();
                seen += news.len();
                news.into_iter().for_each(|event| report.send(event));
                match now {
                    State::Ready => return Ok(Answer::Ok),
                    State::Failed | State::Dead => {
                        bail!("{}", error.unwrap_or_else(|| "the lab failed".into()))
                    }
                    State::Starting => {}
                }
                tokio::select! {
                    changed = history.changed() => changed?,
                    changed = state.changed() => changed?,
                }
            }
        }
        Request::Down => {
            lab.shutdown.cancel();
            Ok(Answer::Ok)
        }
        Request::Power { node, action, wait } => lab
            .power(&node, action, wait, report)
            .await
            .map(|()| Answer::Ok),
        Request::Fault { action, target } => lab.fault(action, &target).await.map(|()| Answer::Ok),
    }
}

/// Puts an image into a lab's registry by linking its layout.
pub fn add_image(dir: &Path, layout: &Path) -> Result<()> {
    let name = layout
        .file_name()
        .context("an image layout without a name")?;
    let images = dir.join("images");
    std::fs::create_dir_all(&images)
        .with_context(|| format!("failed to make {}", images.display()))?;
    let link = images.join(name);
    let layout = std::fs::canonicalize(layout)
        .with_context(|| format!("there is no image layout {}", layout.display()))?;
    if !layout.join("oci-layout").is_file() {
        bail!("{} is not an OCI image layout", layout.display());
    }
    drop(std::fs::remove_file(&link));
    symlink(&layout, &link).with_context(|| format!("failed to add {}", layout.display()))
}
