//! What the tests share: an API server with our kinds, hypervisors, and agents as processes.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use cobalt_api::conditions::HypervisorCondition;
use cobalt_api::hypervisor::{Hypervisor, HypervisorSpec};
use cobalt_lab::guests::MicroDomain;
use cobalt_lab::plan::Flavour;
use cobalt_lab::testing::{ApiServer, api_server, install_definitions, run_inside};
use cobalt_lab::{Lab, LabConfig};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

/// Everything that is waited for, on a machine where other tests build.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The API server with our kinds and the namespace of the Leases. Each test has its own client,
/// because a client belongs to the runtime of its test.
pub async fn server() -> (&'static ApiServer, Client) {
    static SERVER: OnceCell<ApiServer> = OnceCell::const_new();
    let server = SERVER.get_or_init(prepare).await;
    (server, server.client().await.unwrap())
}

async fn prepare() -> ApiServer {
    let server = api_server().await.unwrap();
    let client = server.client().await.unwrap();
    install_definitions(&client, &cobalt_api::crds::all())
        .await
        .unwrap();
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(cobalt_api::names::leases::NODE_AGENT_NAMESPACE.to_owned());
    let namespaces: Api<Namespace> = Api::all(client);
    match namespaces.create(&PostParams::default(), &namespace).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => panic!("{error}"),
    }
    server
}

/// A name that no other test uses.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{}-{number}", std::process::id())
}

/// Hypervisors, a few at a time: two cores and the kernel's inotify instances are soon used up.
pub struct Hosts {
    lab: Lab,
    _share: SemaphorePermit<'static>,
}

impl std::ops::Deref for Hosts {
    type Target = Lab;
    fn deref(&self) -> &Lab {
        &self.lab
    }
}

impl Drop for Hosts {
    /// A test that fails leaves its lab running; the next test needs the room.
    fn drop(&mut self) {
        let name = self.lab.dir().file_name().unwrap().to_str().unwrap();
        let program = cobalt_lab::testing::program().unwrap();
        let down = std::process::Command::new(program)
            .args(["lab", "down", "--name", name])
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .status();
        drop(down);
    }
}

impl Hosts {
    pub async fn start(name: &str, flavours: &[Flavour]) -> Self {
        Self::with(LabConfig::with_hypervisors(name, flavours)).await
    }

    pub async fn with(config: LabConfig) -> Self {
        static MACHINES: Semaphore = Semaphore::const_new(3);
        let machines: u8 = config.clusters.iter().map(|cluster| cluster.nodes).sum();
        let share = MACHINES.acquire_many(machines.into()).await.unwrap();
        let lab = cobalt_lab::testing::lab(config).await.unwrap();
        Self { lab, _share: share }
    }

    /// Runs a program on a host, and its success is part of the test.
    pub async fn run(&self, host: &str, arguments: &[&str]) -> String {
        run_inside(&self.lab, host, arguments).await.unwrap()
    }

    /// Runs a shell script on a host.
    pub async fn sh(&self, host: &str, script: &str) -> String {
        self.run(host, &["sh", "-ec", script]).await
    }

    pub async fn virsh(&self, host: &str, words: &[&str]) -> String {
        self.run(host, &[&["virsh"], words].concat()).await
    }

    /// A path of a host as this machine sees it. It changes with each boot.
    pub async fn path(&self, host: &str, path: &str) -> PathBuf {
        let status = self.lab.status().await.unwrap();
        let node = status.nodes.iter().find(|node| node.name == host).unwrap();
        let pid = cobalt_lab::node::pid_one(host, &node.observed).unwrap();
        PathBuf::from(format!("/proc/{pid}/root{path}"))
    }

    pub async fn libvirt_socket(&self, host: &str) -> PathBuf {
        self.path(host, "/run/libvirt/libvirt-sock").await
    }

    /// The agent's flag for a host's libvirt.
    pub async fn libvirt_flag(&self, host: &str) -> String {
        let socket = self.libvirt_socket(host).await;
        format!(
            "--libvirt-uri=qemu+unix:///system?socket={}",
            socket.display()
        )
    }

    pub async fn bus(&self, host: &str) -> String {
        let socket = self.path(host, "/run/dbus/system_bus_socket").await;
        format!("unix:path={}", socket.display())
    }

    /// Defines a micro guest, and returns its UUID.
    pub async fn define(&self, host: &str, name: &str, options: &str) -> String {
        let uuid = cobalt_lab::node::new_uuid().unwrap();
        let xml = micro(name, &uuid, options);
        self.define_xml(host, &xml).await;
        uuid
    }

    pub async fn define_xml(&self, host: &str, xml: &str) {
        self.sh(
            host,
            &format!("cat >/root/domain.xml <<'X'\n{xml}\nX\nvirsh define /root/domain.xml"),
        )
        .await;
    }
}

/// The description of a micro guest.
pub fn micro(name: &str, uuid: &str, options: &str) -> String {
    MicroDomain {
        name,
        uuid,
        memory_mib: 16,
        kernel: Path::new("/opt/guests/micro.elf"),
        command_line: options,
        machine: "q35",
        extra_devices: "",
    }
    .xml()
}

/// An agent as a process.
pub struct Agent {
    child: Child,
    address: Ipv4Addr,
    log: PathBuf,
    _dir: tempfile::TempDir,
}

impl Agent {
    /// Starts an agent for a node, with more flags.
    pub fn start(kubeconfig: &Path, node: &str, flags: &[&str]) -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        // An address of its own for each, so that no two agents ever want the same port.
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, high | 0x80, low, NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let output = std::fs::File::create(&log).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_cobalt-node-agent"))
            .args(["--node", node, "--namespace", "default"])
            .arg(format!("--metrics-bind-address={address}:9177"))
            .arg(format!("--health-probe-bind-address={address}:8081"))
            .args(flags)
            .env("KUBECONFIG", kubeconfig)
            .env(
                "LOG_LEVEL",
                "debug,kube=info,hyper=info,rustls=info,tower=info",
            )
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            child,
            address,
            log,
            _dir: dir,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("the agent runs")
    }

    /// SIGKILL.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// SIGTERM, and its end in order.
    pub async fn end(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.pid().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status = status.expect("the agent does not end").unwrap();
        assert!(status.success(), "{status}\n{}", self.log());
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// An answer of its HTTP servers: the status code and the body.
    pub async fn get(&self, port: u16, path: &str) -> std::io::Result<(u16, String)> {
        let address = SocketAddr::from((self.address, port));
        let mut stream = tokio::net::TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        Ok((code.unwrap_or(0), body.to_owned()))
    }

    /// A metric without labels.
    pub async fn metric(&self, name: &str) -> f64 {
        let (_, body) = self.get(9177, "/metrics").await.unwrap();
        let line = body
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .unwrap_or_else(|| panic!("no {name} in {body}"));
        line.parse().unwrap()
    }

    /// Waits until a metric without labels has come to a value. Nothing tells when it does.
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

    /// Waits until the process serves its health.
    pub async fn serves(&self) {
        let asked = async {
            while self.get(8081, "/healthz").await.is_err() {
                // Nothing tells when a port of another process opens.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, asked).await.is_err() {
            panic!("the agent does not serve:\n{}", self.log());
        }
    }
}

/// The Hypervisors of the API server.
pub fn hypervisors(client: &Client) -> Api<Hypervisor> {
    Api::all(client.clone())
}

/// Creates the Hypervisor of a node.
pub async fn create_hypervisor(client: &Client, node: &str) -> Hypervisor {
    let hypervisor = Hypervisor::new(node, HypervisorSpec::default());
    hypervisors(client)
        .create(&PostParams::default(), &hypervisor)
        .await
        .unwrap()
}

pub async fn delete_hypervisor(client: &Client, node: &str) {
    drop(
        hypervisors(client)
            .delete(node, &DeleteParams::default())
            .await,
    );
}

/// Waits until the Hypervisor of a node is as `what` says.
pub async fn wait_until(
    client: &Client,
    node: &str,
    what: &str,
    is: impl Fn(&Hypervisor) -> bool,
) -> Hypervisor {
    let api = hypervisors(client);
    let condition = |object: Option<&Hypervisor>| object.is_some_and(&is);
    let waiting = await_condition(api.clone(), node, condition);
    match tokio::time::timeout(PATIENCE, waiting).await {
        Ok(Ok(Some(object))) => object,
        Ok(other) => panic!("{node}: {what}: {other:?}"),
        Err(_) => {
            let last = api.get_opt(node).await;
            panic!("{node} never came to be: {what}; last seen: {last:#?}");
        }
    }
}

/// A condition of a Hypervisor.
pub fn condition(hypervisor: &Hypervisor, kind: HypervisorCondition) -> Option<&Condition> {
    let status = hypervisor.status.as_ref()?;
    cobalt_api::conditions::find(&status.conditions, kind)
}

/// Whether a condition of a Hypervisor has this status and reason.
pub fn says(
    hypervisor: &Hypervisor,
    kind: HypervisorCondition,
    status: &str,
    reason: &str,
) -> bool {
    condition(hypervisor, kind).is_some_and(|c| c.status == status && c.reason == reason)
}

/// The state of an instance in a Hypervisor's status.
pub fn state<'a>(hypervisor: &'a Hypervisor, name: &str) -> Option<&'a str> {
    let status = hypervisor.status.as_ref()?;
    let instance = status
        .instances
        .iter()
        .find(|instance| instance.name == name)?;
    instance.state.as_deref()
}
