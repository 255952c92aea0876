//! Where it is measured: one lab with an API server and the light OpenStack, a host to be emptied,
//! hosts that take its servers.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cobalt_api::eviction::Eviction;
use cobalt_api::hypervisor::{Hypervisor, Phase};
use cobalt_api::names::labels;
use cobalt_lab::access::Access;
use cobalt_lab::cluster::{ClusterConfig, Role};
use cobalt_lab::light::LightConfig;
use cobalt_lab::testing::install_definitions;
use cobalt_lab::{Lab, LabConfig};
use cobalt_openstack::compute::{
    NewServer, NewServerNetworks, RootDisk, Server, ServerFilter, ServerState, ServerStatus,
};
use cobalt_openstack::{
    Client as OpenStack, Config, Credentials, Observer, Outcome, Reference, Secret, Service, Source,
};
use futures::{StreamExt, TryStreamExt, stream};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use serde_json::{Value, json};

/// The availability zone of the light OpenStack.
const ZONE: &str = "lab-a";
/// The host that is emptied, and those that take its servers.
pub const SOURCE: &str = "hv1";
const TARGETS: [&str; 2] = ["hv2", "hv3"];
const CLUSTER: Role = Role::ControlPlane;
/// How long anything may take before it counts as broken.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// What is made or brought back at the same time.
const AT_ONCE: usize = 8;
/// More than anybody here asks for: Nova itself holds up nothing.
const MIGRATIONS_AT_ONCE: u32 = 64;

/// The lab.
pub struct Site {
    lab: Lab,
    access: Access,
    /// The API server.
    pub client: Client,
    /// The cloud, as an administrator.
    pub openstack: OpenStack,
    calls: Arc<Calls>,
}

/// Counts what this program asks Nova.
#[derive(Debug, Default)]
struct Calls(AtomicU64);

impl Observer for Calls {
    fn on_call(&self, service: Service, _: &'static str, _: Outcome, _: Duration) {
        if service == Service::Compute {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Site {
    /// Starts it.
    pub async fn up() -> Result<Self> {
        eprintln!("starting an API server and a light OpenStack");
        let mut config = LabConfig::empty("bench-drain");
        config.clusters.push(ClusterConfig {
            controllers: false,
            ..ClusterConfig::new(CLUSTER)
        });
        let hosts = [SOURCE].into_iter().chain(TARGETS);
        config.light = Some(LightConfig {
            hosts: hosts.map(ToOwned::to_owned).collect(),
            concurrent_live_migrations: MIGRATIONS_AT_ONCE,
            ..LightConfig::default()
        });
        let lab = Box::pin(cobalt_lab::testing::lab(config)).await?;
        let client = lab.client(CLUSTER).await?;
        install_definitions(&client, &cobalt_api::crds::all()).await?;
        let access = lab.status().await?.access.context("no access")?;
        let calls = Arc::default();
        let openstack = administrator(&access, Arc::clone(&calls));
        Ok(Self {
            lab,
            access,
            client,
            openstack,
            calls,
        })
    }

    /// Takes it down.
    pub async fn down(&self) -> Result<()> {
        self.lab.down().await
    }

    /// The admin's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.lab.cluster_kubeconfig(CLUSTER)
    }

    /// Where a log goes.
    pub fn log(&self, name: &str) -> PathBuf {
        self.lab.dir().join(format!("logs/operator-{name}.log"))
    }

    /// The variables that OpenStack's clients read.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        self.access.environment()
    }

    /// How often this program has asked Nova.
    pub fn calls(&self) -> u64 {
        self.calls.0.load(Ordering::Relaxed)
    }

    /// The Evictions.
    pub fn evictions(&self) -> Api<Eviction> {
        Api::all(self.client.clone())
    }

    /// Makes the Nodes, and waits until an operator has brought all hosts into service.
    pub async fn onboard(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let hypervisors: Api<Hypervisor> = Api::all(self.client.clone());
        for name in [SOURCE].into_iter().chain(TARGETS) {
            let node: Node = serde_json::from_value(json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": { "name": name, "labels": {
                    labels::VIRT_DRIVER: "ch",
                    labels::LIFECYCLE: labels::LIFECYCLE_SKIP_TESTS,
                    labels::HOSTNAME: name,
                    labels::ZONE: ZONE,
                } },
            }))?;
            nodes.create(&PostParams::default(), &node).await?;
        }
        for name in [SOURCE].into_iter().chain(TARGETS) {
            let active = await_condition(hypervisors.clone(), name, |one: Option<&Hypervisor>| {
                let status = one.and_then(|one| one.status.as_ref());
                status.is_some_and(|status| status.phase == Some(Phase::Active))
            });
            let active = tokio::time::timeout(PATIENCE, active).await;
            active.with_context(|| format!("{name} was never Active"))??;
        }
        Ok(())
    }

    /// Whether the scheduler may use the host that is emptied.
    pub async fn let_in(&self, open: bool) -> Result<()> {
        let compute = self.openstack.compute();
        let service = compute.service_of(SOURCE).await?;
        let id = service.context("Nova does not know the host")?.id;
        if open {
            compute.enable_service(&id).await?;
        } else {
            compute.disable_service(&id, "it is emptied").await?;
        }
        Ok(())
    }

    /// The servers on a host.
    pub async fn servers(&self, host: &str) -> Result<Vec<Server>> {
        let compute = self.openstack.compute();
        Ok(compute.servers(&ServerFilter::on(host)).await?)
    }

    /// Boots servers on the host until it has so many. The scheduler has to be let in.
    pub async fn boot(&self, count: usize) -> Result<()> {
        let present = self.servers(SOURCE).await?.len();
        stream::iter(present..count)
            .map(|number| self.boot_one(format!("vm-{number:02}")))
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        self.all_at_home(count).await
    }

    async fn boot_one(&self, name: String) -> Result<()> {
        let new = NewServer {
            name,
            flavor: "1".to_owned(),
            root: RootDisk::Blank { gib: 1 },
            networks: NewServerNetworks::None,
            host: Some(SOURCE.to_owned()),
            availability_zone: None,
            metadata: [].into(),
        };
        let id = self.openstack.compute().create_server(&new).await?;
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            let server = self.openstack.compute().server(&id).await?;
            match server.status {
                ServerStatus::Active => return Ok(()),
                ServerStatus::Error => bail!("a server could not be made: {:?}", server.fault),
                _ => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
        bail!("a server was never made")
    }

    /// Brings all servers back to the host.
    pub async fn bring_back(&self, count: usize) -> Result<()> {
        self.turn_knobs(json!({ "live_migration_seconds": 0, "fail_live_migration": [] }))
            .await?;
        self.let_in(true).await?;
        let compute = self.openstack.compute();
        for server in self.servers(SOURCE).await? {
            // A migration that failed has left it so; its guest runs.
            if server.status == ServerStatus::Error {
                compute.reset_state(&server.id, ServerState::Active).await?;
            }
        }
        let mut away = Vec::new();
        for target in TARGETS {
            away.extend(self.servers(target).await?);
        }
        let back = |server: Server| async move {
            let compute = self.openstack.compute();
            let begin = Instant::now();
            let mut idle = true;
            while begin.elapsed() < PATIENCE {
                if idle {
                    // Also again: Nova needs a while to tell Placement that the host is let in.
                    compute.live_migrate(&server.id, Some(SOURCE)).await?;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
                let now = compute.server(&server.id).await?;
                idle = now.task_state.is_none();
                if now.host.as_deref() == Some(SOURCE) && idle {
                    return Ok(());
                }
            }
            bail!("{} never came back", server.name)
        };
        stream::iter(away)
            .map(back)
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        self.all_at_home(count).await
    }

    /// Whether the host has all servers, each of them well.
    async fn all_at_home(&self, count: usize) -> Result<()> {
        let servers = self.servers(SOURCE).await?;
        let well = |one: &&Server| one.status == ServerStatus::Active && one.task_state.is_none();
        let here: BTreeSet<&str> = servers
            .iter()
            .filter(well)
            .map(|server| server.id.as_str())
            .collect();
        if here.len() != count {
            bail!("{} of {count} servers are on the host", here.len());
        }
        Ok(())
    }

    /// Changes what the light OpenStack does.
    pub async fn turn_knobs(&self, knobs: Value) -> Result<()> {
        let url = self.access.control_url.as_ref().context("no control")?;
        let client: HttpClient<_, Full<axum::body::Bytes>> =
            HttpClient::builder(TokioExecutor::new()).build_http();
        let request = http::Request::patch(format!("{url}/knobs"))
            .header("Content-Type", "application/json")
            .body(Full::from(knobs.to_string()))?;
        let answer = tokio::time::timeout(Duration::from_secs(30), client.request(request)).await;
        let answer = answer.context("no answer")??;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("{knobs}: {status} {}", String::from_utf8_lossy(&body));
        }
        Ok(())
    }
}

fn administrator(access: &Access, calls: Arc<Calls>) -> OpenStack {
    let domain = Reference::named(&access.domain);
    let credentials = Credentials {
        region: Some(access.region.clone()),
        ..Credentials::password(
            &access.auth_url,
            Reference::named_in(&access.username, domain.clone()),
            Secret::new(&access.password),
            Reference::named_in(&access.project, domain),
        )
    };
    OpenStack::new(Config {
        deadline: Duration::from_secs(120),
        observer: calls,
        ..Config::new(Source::given(credentials))
    })
}
