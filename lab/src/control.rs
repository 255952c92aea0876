//! How others talk to a lab's supervisor: lines of JSON on a socket in the lab's directory.
//!
//! A client sends one request; the supervisor answers with any number of progress events and
//! one result, then closes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::access::Access;
use crate::cluster::Role;
use crate::command::patience;
use crate::node::{Observed, Power};
use crate::plan::Kind;
use crate::report::{Event, Report};

/// What can be asked of a supervisor.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "request")]
pub enum Request {
    /// Wait until the lab is ready, with progress.
    Ready,
    /// Tell what runs.
    Status,
    /// Take the lab down.
    Down,
    /// Change a node's power.
    Power {
        /// The node.
        node: String,
        /// What to do.
        action: Power,
        /// Whether to wait until the node is Ready, where that can be expected.
        wait: bool,
    },
    /// Break something, or mend it.
    Fault {
        /// What to do.
        action: Fault,
        /// A machine, a unit or cable of it (`n1/kubelet`, `hv1/eno1`), or a process
        /// (`hypervisor/etcd`).
        target: String,
    },
}

/// A fault, or the end of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// Kill a process or unit; a killed control-plane process stays dead until it is healed.
    Kill,
    /// Stop it (SIGSTOP): it is there and does not answer.
    Stop,
    /// Continue what was stopped.
    Cont,
    /// Pull all network cables of a machine, or one.
    Cut,
    /// Undo every fault of the target.
    Heal,
}

/// One line of an answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// Progress.
    Progress(Event),
    /// Done.
    Ok,
    /// The state of the lab.
    Status(Box<Status>),
    /// Refused or failed.
    Error(String),
}

/// What a lab is and what runs in it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// `starting`, `ready`, `failed` or `dead`.
    pub state: State,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The supervisor.
    pub pid: Option<u32>,
    /// Its directory.
    pub dir: PathBuf,
    /// A kubeconfig with a context per cluster.
    pub kubeconfig: PathBuf,
    /// The Kubernetes programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bin: Option<PathBuf>,
    /// The addresses that it may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<String>,
    /// How to log in to its OpenStack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
    /// Its clusters.
    pub clusters: Vec<ClusterStatus>,
    /// Processes that belong to no cluster.
    pub processes: Vec<ProcessStatus>,
    /// Its machines.
    pub nodes: Vec<NodeStatus>,
}

/// The state of a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Not complete yet.
    Starting,
    /// Complete.
    Ready,
    /// It did not come up; its logs are kept.
    Failed,
    /// Its supervisor is gone.
    Dead,
}

impl State {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::Dead => "dead",
        }
    }
}

/// A cluster of a lab.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Which one.
    pub role: Role,
    /// The API server's URL.
    pub server: String,
    /// The admin's kubeconfig.
    pub kubeconfig: PathBuf,
    /// Its processes.
    pub processes: Vec<ProcessStatus>,
}

/// A process of a lab.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessStatus {
    /// `CLUSTER/COMPONENT`.
    pub name: String,
    /// Its process id while it runs.
    pub pid: Option<u32>,
    /// Where its output goes.
    pub log: PathBuf,
}

/// A machine of a lab.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The Kubernetes cluster that it is a node of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Role>,
    /// Its address.
    pub address: std::net::Ipv4Addr,
    /// Its BMC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bmc: Option<String>,
    /// What is known of it.
    #[serde(flatten)]
    pub observed: Observed,
    /// Its console.
    pub log: PathBuf,
}

/// The socket of a lab.
pub fn socket(dir: &Path) -> PathBuf {
    dir.join("control.sock")
}

/// Sends a request and returns the result; progress goes to `report`.
pub async fn call(dir: &Path, request: &Request, report: &Report) -> Result<Answer> {
    let stream = UnixStream::connect(socket(dir)).await.with_context(|| {
        format!(
            "the lab in {} does not run; `cobalt lab status` tells more",
            dir.display()
        )
    })?;
    let (reader, mut writer) = stream.into_split();
    let mut line = serde_json::to_vec(request).context("failed to encode a request")?;
    line.push(b'\n');
    writer
        .write_all(&line)
        .await
        .context("failed to reach the supervisor")?;
    let mut lines = BufReader::new(reader).lines();
    // Long requests report progress; one that says nothing for so long hangs.
    let silence = patience(Duration::from_secs(300));
    loop {
        let line = tokio::time::timeout(silence, lines.next_line())
            .await
            .with_context(|| format!("the supervisor said nothing for {silence:?}"))?
            .context("failed to read from the supervisor")?
            .ok_or_else(|| {
                anyhow!(
                    "the supervisor ended; its log is {}",
                    dir.join("logs/supervisor.log").display()
                )
            })?;
        match serde_json::from_str(&line).context("the supervisor speaks another version")? {
            Answer::Progress(event) => report.send(event),
            Answer::Error(text) => bail!("{text}"),
            result => return Ok(result),
        }
    }
}
