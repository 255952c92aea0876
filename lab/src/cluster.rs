//! One Kubernetes control plane: etcd, API server, and where wanted controller-manager and
//! scheduler, as processes of the machine.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::command::patience;
use crate::net::Subnets;
use crate::pki::{Pki, write_private};
use crate::plan::Flavour;
use crate::process::{Process, Recipe};

/// The clusters of a region.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Runs the other clusters.
    Management,
    /// OpenStack's services.
    ControlPlane,
    /// The hosts of virtual machines.
    Hypervisor,
    /// Ceph.
    Storage,
    /// The third site that breaks ties.
    Arbiter,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Management,
        Self::ControlPlane,
        Self::Hypervisor,
        Self::Storage,
        Self::Arbiter,
    ];

    /// The name in kubeconfigs, directories and output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Management => "management",
            Self::ControlPlane => "control-plane",
            Self::Hypervisor => "hypervisor",
            Self::Storage => "storage",
            Self::Arbiter => "arbiter",
        }
    }

    /// The letter that names of its nodes and links start with; hypervisors are plain `n`odes.
    pub fn letter(self) -> char {
        match self {
            Self::Management => 'm',
            Self::ControlPlane => 'c',
            Self::Hypervisor => 'n',
            Self::Storage => 's',
            Self::Arbiter => 'a',
        }
    }

    /// Its place in the lab's address block.
    pub fn index(self) -> u8 {
        self as u8
    }
}

/// What a cluster shall have.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConfig {
    /// Which one.
    pub role: Role,
    /// How many real nodes.
    pub nodes: u8,
    /// Whether it has Kubernetes; without it its nodes are machines of their own.
    pub kubernetes: bool,
    /// Whether its nodes are hypervisors, and of which flavours; nodes beyond the list have the
    /// usual one ([`LabConfig::flavours`](crate::LabConfig::flavours)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hypervisors: Option<Vec<Flavour>>,
    /// How many NUMA cells each hypervisor shows, in their order; the first shows two unless this
    /// says otherwise, those beyond the list show what the machine below has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numa_cells: Vec<u8>,
    /// Node objects without a machine; the lab plays their kubelets.
    #[serde(default)]
    pub played_nodes: u32,
    /// Whether controller-manager and scheduler run. Needed as soon as there is a node.
    pub controllers: bool,
    /// Whether the API server writes an audit log.
    #[serde(default)]
    pub audit: bool,
}

impl ClusterConfig {
    /// A complete control plane without nodes.
    pub fn new(role: Role) -> Self {
        Self {
            role,
            nodes: 0,
            kubernetes: true,
            hypervisors: None,
            numa_cells: Vec::new(),
            played_nodes: 0,
            controllers: true,
            audit: false,
        }
    }
}

/// Where a cluster's processes find each other.
#[derive(Debug)]
pub struct Site<'a> {
    /// The lab's id.
    pub lab: &'a str,
    /// The cluster's directory.
    pub dir: &'a Path,
    /// The logs' directory.
    pub logs: &'a Path,
    /// The Kubernetes programs.
    pub bin: &'a Path,
    /// The cluster's addresses; none for a cluster without nodes, which lives on loopback.
    pub subnets: Option<Subnets>,
}

/// A control plane under way.
#[derive(Debug)]
pub struct Cluster {
    /// Which one.
    pub role: Role,
    /// Its certificates.
    pub pki: Pki,
    /// The URL of its API server.
    pub server: String,
    /// The admin's kubeconfig.
    pub kubeconfig: PathBuf,
    /// Its processes, in starting order.
    pub processes: Vec<Process>,
}

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

impl Cluster {
    /// Starts etcd and the API server, waits until it is ready, then starts the rest.
    pub async fn start(config: &ClusterConfig, site: &Site<'_>) -> Result<Self> {
        // Ports are chosen here and used a moment later; in between somebody else may take one.
        let mut attempt = 1;
        loop {
            match Self::start_once(config, site).await {
                Err(error) if attempt < 3 && format!("{error:#}").contains("address already") => {
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    async fn start_once(config: &ClusterConfig, site: &Site<'_>) -> Result<Self> {
        let role = config.role;
        crate::paths::remove_tree(site.dir)?;
        std::fs::create_dir_all(site.dir)
            .with_context(|| format!("failed to make {}", site.dir.display()))?;
        let address = site.subnets.map_or(LOOPBACK, Subnets::machine);
        let mut names: Vec<IpAddr> = vec![LOOPBACK.into(), address.into()];
        names.extend(site.subnets.map(|subnets| IpAddr::from(subnets.service(1))));
        let pki = Pki::create(&site.dir.join("pki"), &names)?;
        let [etcd, peer, controllers, scheduler] = free_ports(LOOPBACK)?;
        let [api] = free_ports(address)?;
        let server = format!("https://{address}:{api}");
        let kubeconfig = site.dir.join("admin.conf");
        let admin = pki.client("admin", "system:masters")?;
        write_private(&kubeconfig, &pki.kubeconfig(role.name(), &server, &admin))?;

        let recipe = |component: &str, command: Vec<String>| Recipe {
            name: format!("{}/{component}", role.name()),
            command: command.into_iter().map(Into::into).collect(),
            log: site.logs.join(format!("{}-{component}.log", role.name())),
            lab: site.lab.to_owned(),
        };
        let mut processes = vec![recipe("etcd", etcd_command(site, etcd, peer)).start()?];
        let command = api_command(config, site, &pki, address, api, etcd);
        processes.push(recipe("apiserver", command).start()?);
        let mut cluster = Self {
            role,
            pki,
            server,
            kubeconfig,
            processes,
        };
        cluster
            .wait_until_ready(patience(Duration::from_secs(120)))
            .await?;
        if config.controllers {
            let command = cluster.controllers_command(site, controllers)?;
            cluster
                .processes
                .push(recipe("controller-manager", command).start()?);
            let command = cluster.scheduler_command(site, scheduler)?;
            cluster
                .processes
                .push(recipe("scheduler", command).start()?);
            cluster.wait_for_service_account().await?;
        }
        Ok(cluster)
    }

    /// An admin client.
    pub async fn client(&self) -> Result<kube::Client> {
        client(&self.kubeconfig).await
    }

    /// Waits until the API server answers `ok` on /readyz.
    pub async fn wait_until_ready(&mut self, deadline: Duration) -> Result<()> {
        let client = self.client().await?;
        let began = tokio::time::Instant::now();
        loop {
            for process in &mut self.processes {
                process.must_run()?;
            }
            let request = http_get("/readyz")?;
            let answer =
                tokio::time::timeout(Duration::from_secs(5), client.request_text(request)).await;
            let last = match answer {
                Ok(Ok(text)) if text == "ok" => return Ok(()),
                Ok(Ok(text)) => text,
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer within 5 s".to_owned(),
            };
            if began.elapsed() > deadline {
                bail!(
                    "the API server {} is not ready after {deadline:?}: {last}",
                    self.server
                );
            }
            // There is no event for "the port is open now".
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Pods can only be made once the controller-manager has made the default account.
    async fn wait_for_service_account(&self) -> Result<()> {
        use k8s_openapi::api::core::v1::ServiceAccount;
        let accounts: kube::Api<ServiceAccount> =
            kube::Api::namespaced(self.client().await?, "default");
        let made = kube::runtime::wait::await_condition(
            accounts,
            "default",
            |account: Option<&ServiceAccount>| account.is_some(),
        );
        let deadline = patience(Duration::from_secs(60));
        tokio::time::timeout(deadline, made)
            .await
            .with_context(|| {
                format!(
                    "the controller-manager made no default service account within {deadline:?}"
                )
            })??;
        Ok(())
    }

    fn controllers_command(&self, site: &Site<'_>, port: u16) -> Result<Vec<String>> {
        let config = self.pki.component(
            self.role.name(),
            &self.server,
            "system:kube-controller-manager",
        )?;
        let volumes = site.dir.join("volumes");
        std::fs::create_dir_all(&volumes)
            .with_context(|| format!("failed to make {}", volumes.display()))?;
        let mut command = Vec::new();
        if site.subnets.is_some() {
            // Its own provisioner makes volumes below a fixed path: in a mount namespace of its
            // own that path is the cluster's directory, which every node sees at the same place.
            // It is laid over /tmp instead of being made there: who removed it there would take
            // the mounts of all other labs away with it.
            let layer = site.dir.join("tmp");
            std::fs::create_dir_all(&layer)
                .with_context(|| format!("failed to make {}", layer.display()))?;
            command = words(&[
                "unshare",
                "--mount",
                "--propagation=private",
                "sh",
                "-c",
                OVER_TMP,
            ]);
            command.push(layer.to_string_lossy().into_owned());
            command.push(volumes.to_string_lossy().into_owned());
        }
        command.push(program(site, "kube-controller-manager"));
        command.extend(common_flags(&config, port));
        command.extend([
            "--use-service-account-credentials".into(),
            "--enable-hostpath-provisioner".into(),
            // A dead node is seen after 16 s; Kubernetes' default is 50 s.
            "--node-monitor-period=1s".into(),
            format!("--node-monitor-grace-period={NODE_GRACE_SECONDS}s"),
            format!(
                "--service-account-private-key-file={}",
                self.pki.path("service-accounts.key")
            ),
            format!("--root-ca-file={}", self.pki.path("ca.crt")),
            format!("--cluster-signing-cert-file={}", self.pki.path("ca.crt")),
            format!("--cluster-signing-key-file={}", self.pki.path("ca.key")),
        ]);
        Ok(command)
    }

    fn scheduler_command(&self, site: &Site<'_>, port: u16) -> Result<Vec<String>> {
        let config = self
            .pki
            .component(self.role.name(), &self.server, "system:kube-scheduler")?;
        let mut command = vec![program(site, "kube-scheduler")];
        command.extend(common_flags(&config, port));
        Ok(command)
    }
}

/// Lays a directory with the mount point over /tmp. The directory is a file system of its own and
/// the volumes are held open, because both may be below /tmp themselves.
const OVER_TMP: &str = "mount -t tmpfs tmpfs \"$0\" && mkdir \"$0/hostpath_pv\" && exec 9<\"$1\" && \
    mount -t overlay -o \"lowerdir=$0:/tmp\" overlay /tmp && \
    mount --no-canonicalize --bind /proc/self/fd/9 /tmp/hostpath_pv && exec 9<&- && \
    shift && exec \"$@\"";

/// Seconds until a silent node counts as gone.
pub const NODE_GRACE_SECONDS: u32 = 16;

/// A client from a kubeconfig file.
pub async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    let config = kube::config::Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("failed to read {}", kubeconfig.display()))?;
    let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

/// What controller-manager and scheduler have in common.
fn common_flags(kubeconfig: &Path, port: u16) -> [String; 6] {
    let kubeconfig = kubeconfig.display();
    [
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        format!("--bind-address={LOOPBACK}"),
        format!("--secure-port={port}"),
        "--leader-elect=false".into(),
    ]
}

fn etcd_command(site: &Site<'_>, port: u16, peer: u16) -> Vec<String> {
    let client = format!("http://{LOOPBACK}:{port}");
    let peer = format!("http://{LOOPBACK}:{peer}");
    vec![
        program(site, "etcd"),
        "--name=lab".into(),
        format!("--data-dir={}", site.dir.join("etcd").display()),
        // A lab's data need not survive a power loss of the machine.
        "--unsafe-no-fsync".into(),
        "--log-level=warn".into(),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=lab={peer}"),
    ]
}

fn api_command(
    config: &ClusterConfig,
    site: &Site<'_>,
    pki: &Pki,
    address: Ipv4Addr,
    port: u16,
    etcd: u16,
) -> Vec<String> {
    // Without nodes nobody reaches Service addresses; any private range serves.
    let services = site
        .subnets
        .map_or_else(|| "10.0.0.0/24".to_owned(), Subnets::services);
    let mut command = vec![
        program(site, "kube-apiserver"),
        format!("--etcd-servers=http://{LOOPBACK}:{etcd}"),
        format!("--bind-address={address}"),
        format!("--advertise-address={address}"),
        format!("--secure-port={port}"),
        format!("--service-cluster-ip-range={services}"),
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
        "--allow-privileged=true".into(),
        format!("--client-ca-file={}", pki.path("ca.crt")),
        format!("--tls-cert-file={}", pki.path("apiserver.crt")),
        format!("--tls-private-key-file={}", pki.path("apiserver.key")),
        format!("--kubelet-certificate-authority={}", pki.path("ca.crt")),
        format!(
            "--kubelet-client-certificate={}",
            pki.path("apiserver-kubelet-client.crt")
        ),
        format!(
            "--kubelet-client-key={}",
            pki.path("apiserver-kubelet-client.key")
        ),
        "--kubelet-preferred-address-types=InternalIP".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!(
            "--service-account-key-file={}",
            pki.path("service-accounts.pub")
        ),
        format!(
            "--service-account-signing-key-file={}",
            pki.path("service-accounts.key")
        ),
        format!(
            "--requestheader-client-ca-file={}",
            pki.path("front-ca.crt")
        ),
        "--requestheader-allowed-names=front-proxy".into(),
        "--requestheader-username-headers=X-Remote-User".into(),
        "--requestheader-group-headers=X-Remote-Group".into(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
        format!("--proxy-client-cert-file={}", pki.path("front-client.crt")),
        format!("--proxy-client-key-file={}", pki.path("front-client.key")),
        "--enable-aggregator-routing=true".into(),
    ];
    if config.audit {
        let policy = site.dir.join("audit-policy.yaml");
        let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
                    rules: [{level: RequestResponse}]\n";
        if std::fs::write(&policy, text).is_ok() {
            command.push(format!("--audit-policy-file={}", policy.display()));
            let log = site.logs.join(format!("{}-audit.log", config.role.name()));
            command.push(format!("--audit-log-path={}", log.display()));
        }
    }
    command
}

fn program(site: &Site<'_>, name: &str) -> String {
    site.bin.join(name).to_string_lossy().into_owned()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// A GET request for a raw path of an API server.
pub fn http_get(path: &str) -> Result<http::Request<Vec<u8>>> {
    http::Request::get(path)
        .body(Vec::new())
        .context("failed to build a request")
}

/// Ports that are free now, all different.
fn free_ports<const N: usize>(address: Ipv4Addr) -> Result<[u16; N]> {
    let mut listeners = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = std::net::TcpListener::bind((address, 0))
            .with_context(|| format!("failed to find a free port on {address}"))?;
        *port = listener
            .local_addr()
            .context("failed to read a port")?
            .port();
        listeners.push(listener);
    }
    Ok(ports)
}
