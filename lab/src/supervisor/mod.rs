//! The process that owns a lab: it starts everything, answers on the control socket, and takes
//! everything down when it is asked to, when its owner ends, or on SIGTERM.

mod faults;
mod start;

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::cluster::{Cluster, Role};
use crate::config::{Order, Record, read_json};
use crate::control::{
    Answer, ClusterStatus, NodeStatus, ProcessStatus, Request, State, Status, socket,
};
use crate::net::Block;
use crate::node::{Node, hypervisor};
use crate::plan::Kind;
use crate::process::Process;
use crate::report::{Event, Report};
use crate::sweep;

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
    nodes: BTreeMap<String, Arc<Node>>,
    /// Processes of the machine itself that belong to no cluster.
    processes: Vec<Process>,
    access: Option<Access>,
    /// The URLs of the nodes' BMCs.
    bmcs: BTreeMap<String, String>,
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

    async fn status(&self) -> Status {
        let (state, error) = self.state.borrow().clone();
        let mut parts = self.parts.lock().await;
        let addresses = parts.block.map(Block::range);
        let mut clusters = Vec::new();
        for cluster in parts.clusters.values_mut() {
            clusters.push(ClusterStatus {
                role: cluster.role,
                server: cluster.server.clone(),
                kubeconfig: cluster.kubeconfig.clone(),
                processes: cluster.processes.iter_mut().map(process_status).collect(),
            });
        }
        let processes = parts.processes.iter_mut().map(process_status).collect();
        let nodes = parts
            .nodes
            .values()
            .map(|node| NodeStatus {
                name: node.spec.name.clone(),
                kind: node.spec.kind,
                cluster: node.spec.cluster,
                address: node.spec.link.address,
                bmc: parts.bmcs.get(&node.spec.name).cloned(),
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
            bin: self.order.prepared.kubernetes.clone(),
            addresses,
            access: parts.access.clone(),
            clusters,
            processes,
            nodes,
        }
    }

    async fn node(&self, name: &str) -> Result<Arc<Node>> {
        let parts = self.parts.lock().await;
        parts.nodes.get(name).cloned().with_context(|| {
            let names: Vec<&str> = parts.nodes.keys().map(String::as_str).collect();
            format!(
                "there is no node {name}; this lab has: {}",
                names.join(", ")
            )
        })
    }

    /// Takes everything down. The same code cleans up after a crash.
    async fn take_down(&self) {
        let mut parts = self.parts.lock().await;
        parts.tasks.abort_all();
        while parts.tasks.join_next().await.is_some() {}
        for (_, node) in std::mem::take(&mut parts.nodes) {
            if node.spec.kind == Kind::Hypervisor
                && let Err(error) = hypervisor::keep_probe(&node.spec).await
            {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "nothing was kept for later labs"
                );
            }
        }
        let mut processes = std::mem::take(&mut parts.processes);
        for (_, cluster) in std::mem::take(&mut parts.clusters) {
            processes.extend(cluster.processes);
        }
        for mut process in processes {
            process.kill().await;
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

fn process_status(process: &mut Process) -> ProcessStatus {
    ProcessStatus {
        name: process.recipe.name.clone(),
        pid: if process.ended().is_some() {
            None
        } else {
            process.pid()
        },
        log: process.recipe.log.clone(),
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
