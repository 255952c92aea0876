//! What the tests share: a namespace with the chart's account in it, Nodes, Pods, and injectors as
//! processes that use that account. Each test has Pods of its own, by a label.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cobalt_lab::testing::{ApiServer, api_server, free_port};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client as Http;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

/// Everything that is waited for, on a machine where other tests build.
pub const PATIENCE: Duration = Duration::from_secs(120);
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// Not one that the API server sets itself.
pub const BLOCK: &str = "kubernetes.metal.cloud.sap/bb";
pub const NAME: &str = "kubernetes.metal.cloud.sap/name";

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

/// A folder of this repository.
pub fn repository(below: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.unwrap().join(below)
}

/// Runs a program to its end: what it printed, or what it complained about.
pub async fn run(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .await
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

/// The objects of the chart.
pub async fn render(
    server: &ApiServer,
    namespace: &str,
    settings: &[&str],
) -> Result<Vec<Value>, String> {
    let chart = repository("charts/labels-injector");
    let mut arguments = vec!["template", "labels-injector", chart.to_str().unwrap()];
    arguments.extend(["--namespace", namespace]);
    for setting in settings {
        arguments.extend(["--set-json", setting]);
    }
    let rendered = run(&server.bin.join("helm"), &arguments).await?;
    let documents = rendered.split("\n---\n");
    let documents = documents.filter(|text| text.contains("kind: "));
    Ok(documents
        .map(|text| serde_saphyr::from_str(text).unwrap())
        .collect())
}

pub struct Site {
    pub client: Client,
    pub namespace: String,
    folder: tempfile::TempDir,
    kubeconfig: PathBuf,
}

impl Site {
    /// A namespace in which the chart is installed, but for its Deployment.
    pub async fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("{name}-{}-{number}", std::process::id());
        let server = api_server().await.unwrap();
        let client = server.client().await.unwrap();
        let site = Self {
            client,
            folder: tempfile::tempdir().unwrap(),
            kubeconfig: server.kubeconfig.clone(),
            namespace,
        };
        let own = |kind: &str, name: &str| {
            json!({ "apiVersion": "v1", "kind": kind,
                "metadata": { "name": name, "namespace": site.namespace } })
        };
        let mut namespace = own("Namespace", &site.namespace);
        namespace["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("namespace");
        // Pods need an account, which no controller makes here.
        let mut objects = vec![namespace, own("ServiceAccount", "default")];
        let chart = render(&server, &site.namespace, &[]).await.unwrap();
        let needed = chart
            .into_iter()
            .filter(|object| object["kind"] != "Deployment");
        objects.extend(needed.filter(|object| object["kind"] != "PodDisruptionBudget"));
        for object in objects {
            site.apply(object).await;
        }
        site
    }

    async fn apply(&self, object: Value) {
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let types = object.types.clone().unwrap();
        let kind = kube::core::GroupVersionKind::try_from(&types).unwrap();
        let mut resource = kube::core::ApiResource::from_gvk(&kind);
        if types.kind.ends_with("Policy") {
            resource.plural = "validatingadmissionpolicies".to_owned();
        }
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), &namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let params = PatchParams::apply("test").force();
        api.patch(&object.name_any(), &params, &Patch::Apply(&object))
            .await
            .unwrap();
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// A name that no other test has.
    pub fn named(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    pub async fn node(&self, name: &str, labels: Value) {
        let node = json!({ "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": self.named(name), "labels": labels } });
        let node: Node = serde_json::from_value(node).unwrap();
        let params = PostParams::default();
        self.nodes().create(&params, &node).await.unwrap();
    }

    pub async fn label_node(&self, name: &str, labels: Value) {
        let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
        let params = PatchParams::default();
        self.nodes()
            .patch(&self.named(name), &params, &patch)
            .await
            .unwrap();
    }

    /// Creates a Pod, on a Node if one is named.
    pub async fn pod(&self, name: &str, node: Option<&str>, mut labels: Value) {
        labels["test"] = json!(self.namespace);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": labels },
            "spec": { "nodeName": node.map(|node| self.named(node)),
                "containers": [{ "name": "c", "image": "example.com/c:1" }] },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let params = PostParams {
            field_manager: Some("kube-controller-manager".to_owned()),
            ..PostParams::default()
        };
        self.pods().create(&params, &pod).await.unwrap();
    }

    /// Does what the scheduler does.
    pub async fn bind(&self, pod: &str, node: &str) {
        let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": pod },
            "target": { "apiVersion": "v1", "kind": "Node", "name": self.named(node) } });
        let params = PostParams::default();
        let pods = self.pods();
        let made = pods.create_subresource::<Value, Value>("binding", pod, &params, &binding);
        made.await.unwrap();
    }

    /// Waits until these labels of a Pod are as wanted; `null` is a label that it does not have.
    pub async fn has(&self, pod: &str, wanted: Value) {
        let matches = |object: Option<&Pod>| {
            object.is_some_and(|pod| {
                let wanted = wanted.as_object().unwrap().iter();
                wanted
                    .map(|(key, value)| (pod.labels().get(key), value.as_str()))
                    .all(|(found, wanted)| found.map(String::as_str) == wanted)
            })
        };
        let found = await_condition(self.pods(), pod, matches);
        if tokio::time::timeout(PATIENCE, found).await.is_err() {
            let now = self.pods().get(pod).await.unwrap();
            panic!(
                "{pod} never had {wanted}; it has {:?}\n{}",
                now.labels(),
                self.logs()
            );
        }
    }

    /// What the injectors of this test have logged.
    pub fn logs(&self) -> String {
        let files = std::fs::read_dir(self.folder.path()).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        let logs = paths.filter(|path| path.extension().is_some_and(|kind| kind == "log"));
        logs.map(|path| std::fs::read_to_string(path).unwrap())
            .collect()
    }

    /// The labels of a Pod, now.
    pub async fn labels(&self, pod: &str) -> Value {
        json!(self.pods().get(pod).await.unwrap().labels())
    }

    /// The version of every Pod: whoever writes one changes it.
    pub async fn versions(&self) -> Vec<(String, Option<String>)> {
        let all = self.pods().list(&ListParams::default()).await.unwrap();
        let pairs = all
            .iter()
            .map(|pod| (pod.name_any(), pod.resource_version()));
        pairs.collect()
    }

    /// Starts an injector for the Pods of this test, with the rights of the chart and nothing else.
    pub fn injector(&self, identity: &str, arguments: &[&str]) -> Injector {
        let admin = std::fs::read_to_string(&self.kubeconfig).unwrap();
        let mut config: Value = serde_saphyr::from_str(&admin).unwrap();
        let account = format!("system:serviceaccount:{}:labels-injector", self.namespace);
        for user in config["users"].as_array_mut().unwrap() {
            user["user"]["as"] = json!(account);
            let groups = ["system:serviceaccounts", "system:authenticated"];
            user["user"]["as-groups"] = json!(groups);
        }
        let kubeconfig = self.folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        let log = self.folder.path().join(format!("{identity}.log"));
        let (metrics, health) = (free_port(), free_port());
        let child = Command::new(env!("CARGO_BIN_EXE_cobalt-labels-injector"))
            .args(["--leader-elect", "--identity", identity])
            .args(["--leader-elect-namespace", &self.namespace])
            .args(["--pod-selector", &format!("test={}", self.namespace)])
            .args(["--metrics-bind-address", &metrics.to_string()])
            .args(["--health-probe-bind-address", &health.to_string()])
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .env(
                "LOG_LEVEL",
                "debug,kube=info,hyper=info,tower=info,rustls=info",
            )
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Injector { child, metrics }
    }
}

pub struct Injector {
    /// Killed when this is dropped.
    child: Child,
    metrics: SocketAddr,
}

impl Injector {
    /// The sum of the series that begin so; nothing while it does not answer.
    pub async fn metric(&self, series: &str) -> Option<f64> {
        let http: Http<_, Empty<&[u8]>> = Http::builder(TokioExecutor::new()).build_http();
        let address = format!("http://{}/metrics", self.metrics).parse().unwrap();
        let answer = http.get(address).await.ok()?;
        let body = answer.into_body().collect().await.ok()?.to_bytes();
        let text = String::from_utf8_lossy(&body);
        let own = text.lines().filter(|line| line.starts_with(series));
        Some(
            own.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
                .sum(),
        )
    }

    /// Waits until it has looked at so many Pods.
    pub async fn reconciled(&self, pods: u32) {
        until("all Pods are reconciled", || async {
            let seen = self.metric("cobalt_controller_reconciles_total").await?;
            (seen >= f64::from(pods)).then_some(())
        })
        .await;
    }

    /// Waits until it has the Lease.
    pub async fn leads(&self) {
        until("it leads", || async {
            let leads = self.metric("cobalt_controller_leader ").await?;
            (leads == 1.0).then_some(())
        })
        .await;
    }

    /// Asks it to end, as Kubernetes does, and waits until it has.
    pub async fn terminate(mut self) -> std::process::ExitStatus {
        let id = self.child.id().unwrap().to_string();
        run(Path::new("/bin/kill"), &["-TERM", &id]).await.unwrap();
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        ended.unwrap().unwrap()
    }

    pub async fn writes(&self) -> f64 {
        let writes = self.metric("cobalt_labels_injector_writes_total").await;
        writes.unwrap()
    }
}
