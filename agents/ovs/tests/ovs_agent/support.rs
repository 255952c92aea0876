//! What the tests share: an API server with our kinds, hypervisors with switches, and agents as
//! processes.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use cobalt_api::conditions::{self, OvsNodeCondition};
use cobalt_api::ovsnode::{Issue, OvsNode, OvsNodeStatus};
use cobalt_lab::testing::{ApiServer, api_server, install_definitions, run_inside};
use cobalt_lab::{Lab, LabConfig};
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;

use crate::inside::Network;

/// Everything that is waited for, on a machine where other tests build.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// Where the objects are.
pub const NAMESPACE: &str = "default";

const METRICS: u16 = 9475;
const DIAGNOSTICS: u16 = 9476;
const HEALTH: u16 = 8082;

/// The API server with our kinds. Each test has its own client, because a client belongs to the
/// runtime of its test.
pub async fn server() -> (&'static ApiServer, Client) {
    static SERVER: OnceCell<ApiServer> = OnceCell::const_new();
    let server = SERVER
        .get_or_init(async || {
            let server = api_server().await.unwrap();
            let client = server.client().await.unwrap();
            let definitions = cobalt_api::crds::all();
            install_definitions(&client, &definitions).await.unwrap();
            server
        })
        .await;
    (server, server.client().await.unwrap())
}

/// A name that no other test uses.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{}-{number}", std::process::id())
}

/// A lab that is taken down also when its test fails.
pub struct Hosts(Lab);

impl std::ops::Deref for Hosts {
    type Target = Lab;
    fn deref(&self) -> &Lab {
        &self.0
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let name = self.0.dir().file_name().unwrap();
        let program = cobalt_lab::testing::program().unwrap();
        let mut down = std::process::Command::new(program);
        down.args(["lab", "down", "--name"]).arg(name);
        drop(down.output());
    }
}

impl Hosts {
    pub async fn start(config: LabConfig) -> Self {
        Self(cobalt_lab::testing::lab(config).await.unwrap())
    }

    /// Runs a shell script on a host, and its success is part of the test.
    pub async fn sh(&self, host: &str, script: &str) -> String {
        run_inside(self, host, &["sh", "-ec", script])
            .await
            .unwrap()
    }

    /// The first process of a host, as this machine sees it.
    pub async fn pid_one(&self, host: &str) -> u32 {
        let status = self.0.status().await.unwrap();
        let node = status.nodes.iter().find(|node| node.name == host).unwrap();
        cobalt_lab::node::pid_one(host, &node.observed).unwrap()
    }

    /// A path of a host as this machine sees it.
    pub async fn path(&self, host: &str, path: &str) -> PathBuf {
        let pid = self.pid_one(host).await;
        PathBuf::from(format!("/proc/{pid}/root{path}"))
    }

    /// The flags of an agent for a host.
    pub async fn flags(&self, host: &str) -> Vec<String> {
        let ovs = self.path(host, "/run/openvswitch").await;
        let ovn = self.path(host, "/run/ovn").await;
        vec![
            format!("--ovs-rundir={}", ovs.display()),
            format!("--ovn-rundir={}", ovn.display()),
        ]
    }

    /// The members of one of OVN's databases, and where each is.
    pub async fn members(&self, port: u16) -> (Vec<String>, String) {
        let status = self.0.status().await.unwrap();
        let members = status.nodes.iter();
        let members = members.filter(|node| node.name.starts_with("ovn"));
        let addresses: Vec<String> = members.map(|node| node.address.to_string()).collect();
        let remotes = addresses.iter().map(|at| format!("tcp:{at}:{port}"));
        let remotes: Vec<String> = remotes.collect();
        (addresses, remotes.join(","))
    }

    /// ovn-nbctl, whichever member leads.
    pub async fn northbound(&self, command: &str) -> String {
        let (_, at) = self.members(6641).await;
        let script = format!("ovn-nbctl --no-leader-only --timeout=60 --db={at} {command}");
        self.sh("hv1", &script).await
    }

    /// A virtual machine, as far as the network is concerned.
    pub async fn plug(&self, host: &str, number: u8) {
        self.northbound(&format!(
            "--may-exist ls-add ls -- --may-exist lsp-add ls vm{number} -- \
             lsp-set-addresses vm{number} '02:00:00:00:00:{number:02} 192.0.2.{number}'"
        ))
        .await;
        self.sh(
            host,
            &format!(
                "ovs-vsctl add-port br-int if{number} -- set Interface if{number} type=internal \
                 external_ids:iface-id=vm{number}
                 ovs-vsctl --timeout=60 wait-until Interface if{number} \
                 external_ids:ovn-installed=true"
            ),
        )
        .await;
    }
}

/// An agent as a process.
pub struct Agent {
    child: Child,
    address: Ipv4Addr,
    /// Where that address is; out here if not in a host.
    network: Option<Network>,
    log: PathBuf,
    /// Its settings, one file each.
    pub settings: PathBuf,
    _dir: tempfile::TempDir,
}

impl Agent {
    /// Starts an agent for a node, with more flags.
    pub fn start(kubeconfig: &Path, node: &str, flags: &[String]) -> Self {
        Self::start_inside(None, kubeconfig, node, flags)
    }

    /// Starts an agent in the network of a host, through a command.
    pub fn start_inside(
        inside: Option<(&Network, &[&str])>,
        kubeconfig: &Path,
        node: &str,
        flags: &[String],
    ) -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        // An address of its own for each, so that no two agents ever want the same port.
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, high | 0x80, low, NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let settings = dir.path().join("settings");
        std::fs::create_dir(&settings).unwrap();
        let output = std::fs::File::create(&log).unwrap();
        let program = env!("CARGO_BIN_EXE_cobalt-ovs-agent");
        let mut command = match inside {
            Some((network, through)) => {
                let mut command = Command::new("nsenter");
                command.arg(network.flag()).args(through).arg(program);
                command
            }
            None => Command::new(program),
        };
        let child = command
            .args(["--node", node, "--namespace", NAMESPACE])
            .arg(format!("--metrics-bind-address={address}:{METRICS}"))
            .arg(format!("--health-probe-bind-address={address}:{HEALTH}"))
            .env(
                "DIAGNOSTICS_BIND_ADDRESS",
                format!("{address}:{DIAGNOSTICS}"),
            )
            .arg(format!("--settings-dir={}", settings.display()))
            .args(["--probe-interval=500ms", "--flow-interval=500ms"])
            .args(flags)
            .env("KUBECONFIG", kubeconfig)
            .env(
                "LOG_LEVEL",
                "debug,kube=info,hyper=info,rustls=info,tower=info",
            )
            .stdin(Stdio::null())
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            child,
            address,
            network: inside.map(|(network, _)| network.clone()),
            log,
            settings,
            _dir: dir,
        }
    }

    /// Changes a setting while it runs.
    pub fn set(&self, name: &str, value: &str) {
        std::fs::write(self.settings.join(name), value).unwrap();
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = self.child.id().expect("the agent runs").cast_signed();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// SIGTERM, and its end in order.
    pub async fn end(&mut self) {
        self.signal(rustix::process::Signal::TERM);
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status = status.expect("the agent does not end").unwrap();
        assert!(status.success(), "{status}\n{}", self.log());
    }

    /// SIGKILL: it can do nothing about it.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Where it answers questions.
    pub fn diagnostics(&self) -> SocketAddr {
        SocketAddr::from((self.address, DIAGNOSTICS))
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// An answer of its HTTP servers: the status code and the body.
    pub async fn get(&self, port: u16, path: &str) -> std::io::Result<(u16, String)> {
        let address = SocketAddr::from((self.address, port));
        let mut stream = match &self.network {
            Some(network) => network.connect(address)?,
            None => tokio::net::TcpStream::connect(address).await?,
        };
        let request = format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        Ok((code.unwrap_or(0), body.to_owned()))
    }

    /// All metrics.
    pub async fn metrics(&self) -> String {
        self.get(METRICS, "/metrics").await.unwrap().1
    }

    /// A metric, by its name with its labels.
    pub async fn metric(&self, name: &str) -> f64 {
        let body = self.metrics().await;
        let line = body
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .unwrap_or_else(|| panic!("no {name} in {body}"));
        line.parse().unwrap()
    }

    /// Waits until a metric has come to a value. Nothing tells when it does.
    pub async fn counts(&self, name: &str, least: f64) {
        let asked = async {
            while self.metric(name).await < least {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, asked).await.is_err() {
            panic!("{name} does not come to {least}:\n{}", self.log());
        }
    }

    /// Waits until its health has this answer.
    pub async fn answers(&self, path: &str, wanted: impl Fn(u16, &str) -> bool) {
        let asked = async {
            loop {
                if let Ok((code, body)) = self.get(HEALTH, path).await
                    && wanted(code, &body)
                {
                    return;
                }
                // Nothing tells when another process changes its mind.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, asked).await.is_err() {
            panic!("{path} has another answer:\n{}", self.log());
        }
    }
}

/// A node of the tests, as the API server shows it.
pub struct Shown {
    pub name: String,
    pub api: Api<OvsNode>,
}

impl Shown {
    pub fn new(client: &Client, name: String) -> Self {
        let api = Api::namespaced(client.clone(), NAMESPACE);
        Self { name, api }
    }

    /// Waits until the OVSNode is as `what` says.
    pub async fn until(&self, what: &str, is: impl Fn(&OvsNode) -> bool) -> OvsNode {
        let condition = |object: Option<&OvsNode>| object.is_some_and(&is);
        let waiting = await_condition(self.api.clone(), &self.name, condition);
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(Ok(Some(object))) => object,
            Ok(other) => panic!("{}: {what}: {other:?}", self.name),
            Err(_) => {
                let last = self.api.get_opt(&self.name).await;
                let last = last.map(|last| last.and_then(|last| last.status));
                panic!(
                    "{} never came to be: {what}; last seen: {last:#?}",
                    self.name
                );
            }
        }
    }

    /// Waits until there is an issue, and returns it.
    pub async fn issue(&self, kind: &str, object: &str) -> Issue {
        let what = format!("{kind} of {object}");
        let node = self.until(&what, |node| issue(node, kind, object).is_some());
        issue(&node.await, kind, object).cloned().unwrap()
    }

    /// Waits until all is well.
    pub async fn well(&self) -> OvsNodeStatus {
        let node = self.until("well", |node| {
            let status = node.status.as_ref();
            let calm = status.is_some_and(|status| status.issues.is_empty());
            calm && OvsNodeCondition::ALL
                .iter()
                .all(|condition| is(node, *condition, "True"))
        });
        node.await.status.unwrap()
    }
}

/// An issue of an OVSNode.
pub fn issue<'a>(node: &'a OvsNode, kind: &str, object: &str) -> Option<&'a Issue> {
    let issues = &node.status.as_ref()?.issues;
    issues.iter().find(|issue| {
        issue.kind.as_deref() == Some(kind) && issue.object.as_deref() == Some(object)
    })
}

/// Whether a condition has a status.
pub fn is(node: &OvsNode, condition: OvsNodeCondition, wanted: &str) -> bool {
    let status = node.status.as_ref();
    let found = status.and_then(|status| conditions::find(&status.conditions, condition));
    found.is_some_and(|found| found.status == wanted)
}
