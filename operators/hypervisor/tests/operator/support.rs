//! What the tests share: an API server with our kinds, Nodes, and operators as processes. Each test
//! has a partition of its own, as operators in one cluster have: a label selector.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cobalt_api::conditions::{
    self, EvictionCondition, HypervisorCondition, Reason, Status, Wanted,
};
use cobalt_api::eviction::{Eviction, EvictionSpec};
use cobalt_api::hypervisor::{Hypervisor, Phase};
use cobalt_api::names::{FieldManager, annotations, labels};
use cobalt_lab::testing::{ApiServer, api_server, free_port, install_definitions};
use futures::StreamExt;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;

use crate::cloud::{Cloud, ZONE, cloud};

/// Everything that is waited for, on a machine where other tests build.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// The label that separates the tests.
const PARTITION: &str = "cobalt.test/partition";

/// Waits for something that nobody tells about: asks again and again.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, ask: impl Fn() -> F) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A name that no other test uses.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{}-{number}", std::process::id())
}

pub async fn server() -> (&'static ApiServer, Client) {
    static SERVER: OnceCell<ApiServer> = OnceCell::const_new();
    let server = SERVER
        .get_or_init(|| async {
            let server = api_server().await.unwrap();
            let client = server.client().await.unwrap();
            install_definitions(&client, &cobalt_api::crds::all())
                .await
                .unwrap();
            server
        })
        .await;
    (server, server.client().await.unwrap())
}

/// One test's part of the world.
pub struct Site {
    pub client: Client,
    pub cloud: &'static Cloud,
    pub partition: String,
    pub kubeconfig: PathBuf,
    logs: tempfile::TempDir,
}

impl Site {
    pub async fn new(name: &str) -> Self {
        Self::at(cloud().await, name).await
    }

    pub async fn at(cloud: &'static Cloud, name: &str) -> Self {
        let (server, client) = server().await;
        Self {
            client,
            cloud,
            partition: unique(name),
            kubeconfig: server.kubeconfig.clone(),
            logs: tempfile::tempdir().unwrap(),
        }
    }

    /// In a cluster of its own.
    pub async fn in_cluster(cloud: &'static Cloud, kubeconfig: PathBuf) -> Self {
        let client = cobalt_runtime::client_from_file(&kubeconfig).await.unwrap();
        install_definitions(&client, &cobalt_api::crds::all())
            .await
            .unwrap();
        // A server that has just learned of a kind asks for patience.
        let hypervisors: Api<Hypervisor> = Api::all(client.clone());
        let evictions: Api<Eviction> = Api::all(client.clone());
        until("the new kinds are served", || async {
            let all = ListParams::default();
            hypervisors.list(&all).await.ok()?;
            evictions.list(&all).await.ok()
        })
        .await;
        Self {
            client,
            cloud,
            partition: unique("cluster"),
            kubeconfig,
            logs: tempfile::tempdir().unwrap(),
        }
    }

    /// The namespace of Leases and agents.
    pub async fn namespace(&self) -> String {
        self.make_namespace(&self.partition).await;
        self.partition.clone()
    }

    /// Makes a namespace, unless it is there.
    pub async fn make_namespace(&self, name: &str) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.to_owned());
        match namespaces.create(&PostParams::default(), &namespace).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("{error}"),
        }
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub fn hypervisors(&self) -> Api<Hypervisor> {
        Api::all(self.client.clone())
    }

    pub fn evictions(&self) -> Api<Eviction> {
        Api::all(self.client.clone())
    }

    /// A Node as Gardener and the kubelet make it.
    pub fn node(&self, name: &str, lifecycle: &str) -> Node {
        serde_json::from_value(json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {
                    PARTITION: self.partition,
                    labels::VIRT_DRIVER: "libvirt",
                    labels::LIFECYCLE: lifecycle,
                    labels::HOSTNAME: name,
                    labels::ZONE: ZONE,
                },
                "annotations": { annotations::CUSTOM_TRAITS: "CUSTOM_COBALT_TEST" },
            },
        }))
        .unwrap()
    }

    /// A host: in Nova, as a Node, and with a node agent that has reported.
    pub async fn host(&self, name: &str) {
        self.cloud.add_host(name).await;
        self.join(&self.node(name, "true")).await;
    }

    /// Makes a Node; the stand-in for its agent reports once the Hypervisor is there.
    pub async fn join(&self, node: &Node) {
        self.nodes()
            .create(&PostParams::default(), node)
            .await
            .unwrap();
        self.fake_agent(&node.name_any());
    }

    /// Stands in for a host's agent.
    pub fn fake_agent(&self, name: &str) {
        tokio::spawn(fake_agent(self.client.clone(), name.to_owned()));
    }

    /// Starts an operator.
    pub fn operator(&self) -> Operator {
        self.operator_with(&[], &[])
    }

    pub fn operator_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Operator {
        self.operator_of(&self.selector(), arguments, environment)
    }

    /// Nodes and Hypervisors of this test.
    pub fn selector(&self) -> String {
        format!("{PARTITION}={}", self.partition)
    }

    /// Starts an operator for another part of the fleet.
    pub fn operator_of(
        &self,
        selector: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Operator {
        let number = unique("operator");
        let log = self.logs.path().join(format!("{number}.log"));
        let (port, health) = (free_port(), free_port());
        let mut command = Command::new(env!("CARGO_BIN_EXE_cobalt-hypervisor-operator"));
        command
            .args(["--agent-namespaces", "default"])
            .args(["--label-selector", selector])
            .args(["--test-volume-type", "", "--certificate-namespace", ""])
            .args(["--health-probe-bind-address", &health.to_string()])
            .args(["--metrics-bind-address", &port.to_string()])
            .args(["--log-level", "info,cobalt_hypervisor_operator=debug"])
            .args(arguments)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("NOVA_INTERVAL", "6s")
            .envs(self.cloud.access.environment())
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&log).unwrap())
            .stderr(std::fs::File::create(log.with_extension("err")).unwrap())
            .kill_on_drop(true);
        let child = command.spawn().unwrap();
        Operator {
            child,
            log,
            metrics: port,
            health,
        }
    }

    /// Waits until a Hypervisor is as wanted.
    pub async fn hypervisor(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&Hypervisor) -> bool,
    ) -> Hypervisor {
        let condition = |object: Option<&Hypervisor>| object.is_some_and(&wanted);
        let found = await_condition(self.hypervisors(), name, condition);
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(found) => found.unwrap().unwrap(),
            Err(_) => {
                let now = self.hypervisors().get_opt(name).await.unwrap();
                let status = now.and_then(|now| now.status);
                panic!(
                    "{name} never: {what}\n{}",
                    serde_json::to_string_pretty(&status).unwrap()
                )
            }
        }
    }

    pub async fn phase(&self, name: &str, phase: Phase) -> Hypervisor {
        self.hypervisor(name, phase.as_str(), |object| {
            object
                .status
                .as_ref()
                .is_some_and(|status| status.phase == Some(phase))
        })
        .await
    }

    pub async fn condition(
        &self,
        name: &str,
        condition: HypervisorCondition,
        status: Status,
        reason: Reason,
    ) -> Hypervisor {
        let what = format!(
            "{}={}/{}",
            condition.as_str(),
            status.as_str(),
            reason.as_str()
        );
        self.hypervisor(name, &what, |object| {
            let all = object
                .status
                .as_ref()
                .map_or(&[][..], |status| status.conditions.as_slice());
            conditions::status(all, condition) == Some(status)
                && conditions::reason(all, condition) == Some(reason)
        })
        .await
    }

    /// What a host was said to wait for, from now on.
    pub fn waits_of(&self, name: &str) -> Waits {
        let waits = Waits::default();
        let all = Arc::clone(&waits.0);
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let objects = watcher(self.hypervisors(), config).default_backoff();
        tokio::spawn(async move {
            let mut objects = std::pin::pin!(objects.applied_objects());
            while let Some(object) = objects.next().await {
                let Ok(Some(status)) = object.map(|object| object.status) else {
                    continue;
                };
                if let Some(wait) = status.waiting_for {
                    let text = format!("{}: {}", wait.reason, wait.message.unwrap_or_default());
                    let mut all = all.lock().unwrap();
                    if all.last() != Some(&text) {
                        all.push(text);
                    }
                }
            }
        });
        waits
    }

    /// What a person does with kubectl.
    pub async fn patch(&self, name: &str, patch: Value) {
        let params = PatchParams::default();
        self.hypervisors()
            .patch(name, &params, &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    /// An Eviction of the host that an operator before this one has ended, rightly or not. It is
    /// made before the host is to be emptied.
    pub async fn fake_ended_eviction(&self, name: &str, reason: Reason) {
        let spec = EvictionSpec {
            hypervisor: name.to_owned(),
            reason: "of an operator before this one".to_owned(),
            ..EvictionSpec::default()
        };
        let eviction = Eviction::new(name, spec);
        self.evictions()
            .create(&PostParams::default(), &eviction)
            .await
            .unwrap();
        let wanted = Wanted {
            condition: EvictionCondition::Evicting,
            status: Status::False,
            reason,
            message: "said by a stand-in".to_owned(),
            observed_generation: None,
        };
        let status = json!({ "status": { "conditions": [wanted.build(&[], Timestamp::now())] } });
        let params = PatchParams::default();
        self.evictions()
            .patch_status(name, &params, &Patch::Merge(&status))
            .await
            .unwrap();
    }

    /// A plan by the name of the host: until it is gone, the host is not emptied.
    pub async fn hold_up_eviction(&self, name: &str) {
        let spec = EvictionSpec {
            hypervisor: name.to_owned(),
            reason: "a test".to_owned(),
            dry_run: Some(true),
            ..EvictionSpec::default()
        };
        let plan = Eviction::new(name, spec);
        self.evictions()
            .create(&PostParams::default(), &plan)
            .await
            .unwrap();
    }

    /// Takes it away.
    pub async fn let_evict(&self, name: &str) {
        self.evictions()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    pub async fn delete_node(&self, name: &str) {
        self.nodes()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }
}

/// What a host was said to wait for, in this order: "reason: message".
#[derive(Clone, Default)]
pub struct Waits(Arc<Mutex<Vec<String>>>);

impl Waits {
    /// What was said so far does not count.
    pub fn forget(&self) {
        self.0.lock().unwrap().clear();
    }

    /// Nothing with these words was said so far.
    pub fn never_said(&self, words: &str) {
        let all = self.0.lock().unwrap();
        assert!(!all.iter().any(|text| text.contains(words)), "{all:#?}");
    }

    /// Waits until all of these words were said in one.
    pub async fn said(&self, words: &[&str]) {
        let what = || async {
            let all = self.0.lock().unwrap();
            let fits = |text: &&String| words.iter().all(|word| text.contains(word));
            all.iter().find(fits).map(|_| ())
        };
        let said = tokio::time::timeout(PATIENCE, until(&format!("{words:?} is said"), what)).await;
        assert!(
            said.is_ok(),
            "{words:?} never: {:#?}",
            self.0.lock().unwrap()
        );
    }
}

/// Says what a node agent would say of a healthy host.
async fn fake_agent(client: Client, name: String) {
    let api: Api<Hypervisor> = Api::all(client);
    loop {
        let there = await_condition(api.clone(), &name, |object: Option<&Hypervisor>| {
            object.is_some_and(|object| {
                let status = object.status.as_ref();
                let all = status.map_or(&[][..], |status| status.conditions.as_slice());
                !conditions::is_true(all, HypervisorCondition::LibVirtConnection)
            })
        });
        if there.await.is_err() {
            return;
        }
        let wanted = Wanted {
            condition: HypervisorCondition::LibVirtConnection,
            status: Status::True,
            reason: Reason::Connected,
            message: "said by a stand-in".to_owned(),
            observed_generation: None,
        };
        let status = json!({
            "apiVersion": "kvm.cloud.sap/v1",
            "kind": "Hypervisor",
            "metadata": { "name": name },
            "status": { "numInstances": 0, "conditions": [wanted.build(&[], Timestamp::now())] },
        });
        let params = PatchParams::apply(FieldManager::NodeAgent.as_str()).force();
        if api
            .patch_status(&name, &params, &Patch::Apply(&status))
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// A running operator. It ends with the test.
pub struct Operator {
    child: Child,
    log: PathBuf,
    /// Where its metrics are.
    pub metrics: SocketAddr,
    /// Where its health is.
    pub health: SocketAddr,
}

impl Operator {
    pub fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// kill -9.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// As Kubernetes ends a pod.
    pub async fn stop(mut self) -> std::process::ExitStatus {
        kill(self.pid(), "TERM");
        let ended = self.ended().await;
        // The next leader waits for it.
        let log = self.log();
        assert!(!log.contains("did not end in time"), "{log}");
        ended
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> std::process::ExitStatus {
        tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .unwrap()
            .unwrap()
    }

    /// Waits for its end, which may never come.
    pub async fn died(&mut self) {
        self.child.wait().await.unwrap();
    }

    /// Whether it runs.
    pub fn is_up(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// What it says about itself now; empty while it does not listen.
    pub async fn scrape(&self) -> String {
        get(self.metrics, "/metrics").await.unwrap_or_default().1
    }

    /// The sum of all series that begin so.
    pub async fn metric(&self, prefix: &str) -> f64 {
        let scrape = self.scrape().await;
        let of = scrape.lines().filter(|line| line.starts_with(prefix));
        of.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// Waits until it has asked Nova so many times more and no host waits for its turn: what it
    /// was going to do is done.
    pub async fn rounds(&self, more: u32) {
        self.looks(more).await;
        until("no host waits for its turn", || async {
            let waiting = self.metric("cobalt_operator_queue_depth ").await;
            (waiting == 0.0).then_some(())
        })
        .await;
    }

    /// Waits until it has asked Nova so many times more, which one that does not lead does, too.
    pub async fn looks(&self, more: u32) {
        const LISTS: &str =
            "cobalt_operator_openstack_requests_total{service=\"compute\",call=\"list aggregates\"";
        let wanted = self.metric(LISTS).await + f64::from(more);
        until("it asks Nova", || async {
            (self.metric(LISTS).await >= wanted).then_some(())
        })
        .await;
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
            + &std::fs::read_to_string(self.log.with_extension("err")).unwrap_or_default()
    }
}

/// Asks a program of this test: the status and the body.
pub async fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let client: hyper_util::client::legacy::Client<HttpConnector, Full<axum::body::Bytes>> =
        hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http();
    let uri = format!("http://{address}{path}").parse().unwrap();
    let answer = tokio::time::timeout(PATIENCE, client.get(uri))
        .await
        .unwrap();
    let answer = answer.ok()?;
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.ok()?.to_bytes();
    Some((status, String::from_utf8_lossy(&body).into_owned()))
}

/// Sends a signal to a process that the test has started.
pub fn kill(pid: u32, signal: &str) {
    let status = std::process::Command::new("kill")
        .args([&format!("-{signal}"), &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

impl Drop for Operator {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let start = lines.len().saturating_sub(60);
            eprintln!(
                "the end of the operator's log:\n{}",
                lines[start..].join("\n")
            );
        }
    }
}
