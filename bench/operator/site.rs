//! Where it is measured: an API server with thousands of Nodes, and what a watch shows of their
//! Hypervisors.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cobalt_api::conditions::{self, HypervisorCondition, Reason, Status, Wanted};
use cobalt_api::hypervisor::{Hypervisor, Phase};
use cobalt_api::names::{annotations, labels};
use cobalt_lab::cluster::{ClusterConfig, Role};
use cobalt_lab::testing::install_definitions;
use cobalt_lab::{Lab, LabConfig};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::fake_nova;
use crate::scrape::sum;

/// The availability zone of all hosts; that of the light OpenStack.
pub const ZONE: &str = "lab-a";
/// The traits that all hosts want.
pub const TRAITS: [&str; 2] = ["CUSTOM_KVM_GEN2", "CUSTOM_NUMASIZE_C48_M729"];
/// A label that three hosts have.
pub const THREE: &str = "example.com/three";

const CLUSTER: Role = Role::ControlPlane;
/// How long anything may take before it counts as broken.
const PATIENCE: Duration = Duration::from_secs(600);
/// Objects that are written at the same time.
const AT_ONCE: usize = 16;

/// The building block of a host, which is an aggregate, too.
pub fn block(number: usize) -> String {
    format!("bb{:03}", number / 20)
}

/// The lab.
pub struct Site {
    lab: Lab,
    /// The API server.
    pub client: Client,
    seen: watch::Receiver<Arc<Seen>>,
}

/// What the watch has shown.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// What each host is at.
    pub hosts: BTreeMap<String, State>,
}

/// What a host is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// The phase.
    pub phase: Option<Phase>,
    /// Since when it was shown.
    pub since: Instant,
}

impl Seen {
    /// How many hosts are in a phase.
    pub fn count(&self, phase: Phase) -> usize {
        let in_phase = |state: &&State| state.phase == Some(phase);
        self.hosts.values().filter(in_phase).count()
    }
}

impl Site {
    /// Starts it.
    pub async fn up() -> Result<Self> {
        eprintln!("starting an API server");
        let mut config = LabConfig::empty("bench-operator");
        config.clusters.push(ClusterConfig {
            controllers: false,
            ..ClusterConfig::new(CLUSTER)
        });
        let lab = cobalt_lab::testing::lab(config).await?;
        let client = lab.client(CLUSTER).await?;
        install_definitions(&client, &cobalt_api::crds::all()).await?;
        let seen = follow(client.clone());
        Ok(Self { lab, client, seen })
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

    /// Makes Nodes as Gardener and the kubelet do, each in the aggregate of its zone and of its
    /// building block, or of its zone alone.
    pub async fn nodes(&self, names: &[String], blocks: bool) -> Result<()> {
        let api: Api<Node> = Api::all(self.client.clone());
        let make = |(number, name): (usize, &String)| {
            let (api, name) = (api.clone(), name.clone());
            async move {
                let mut node: Node = serde_json::from_value(node(number, &name))?;
                if !blocks {
                    node.annotations_mut().remove(annotations::AGGREGATES);
                }
                api.create(&PostParams::default(), &node).await?;
                let patch = json!({ "status": node_status("2026-01-01T00:00:00Z") });
                let params = PatchParams::default();
                api.patch_status(&name, &params, &Patch::Merge(&patch))
                    .await?;
                anyhow::Ok(())
            }
        };
        at_once(names.iter().enumerate().map(make))
            .await
            .context("failed to make the Nodes")
    }

    /// Every kubelet says that it lives.
    pub async fn heartbeats(&self, names: &[String], time: &str) -> Result<()> {
        let api: Api<Node> = Api::all(self.client.clone());
        let beat = |name: &String| {
            let (api, name) = (api.clone(), name.clone());
            async move {
                let patch = json!({ "status": { "conditions": node_conditions(time) } });
                let params = PatchParams::default();
                api.patch_status(&name, &params, &Patch::Strategic(&patch))
                    .await?;
                anyhow::Ok(())
            }
        };
        at_once(names.iter().map(beat))
            .await
            .context("failed to write heartbeats")
    }

    /// Writes the status of hosts in service, as the operator and the agents before ours do.
    pub async fn onboarded(&self, names: &[String]) -> Result<()> {
        let api: Api<Hypervisor> = Api::all(self.client.clone());
        let write = |(number, name): (usize, &String)| {
            let (api, name) = (api.clone(), name.clone());
            async move {
                let patch = json!({ "status": onboarded_status(number, &name) });
                let params = PatchParams {
                    field_manager: Some("onboarding".to_owned()),
                    ..PatchParams::default()
                };
                api.patch_status(&name, &params, &Patch::Merge(&patch))
                    .await?;
                anyhow::Ok(())
            }
        };
        at_once(names.iter().enumerate().map(write))
            .await
            .context("failed to write the status")
    }

    /// Waits until the watch has shown something.
    pub async fn until(&self, what: &str, holds: impl Fn(&Seen) -> bool) -> Result<Arc<Seen>> {
        let mut seen = self.seen.clone();
        let found = seen.wait_for(|seen| holds(seen));
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(found) => Ok(Arc::clone(&*found?)),
            Err(_) => bail!("never seen: {what}"),
        }
    }

    /// How often the operator's kinds were written, as the API server counts requests.
    pub async fn writes(&self) -> Result<u64> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = self.client.request_text(request).await?;
        let label = |line: &str, key: &str| -> String {
            let value = line.split_once(&format!("{key}=\""));
            let value = value.and_then(|(_, rest)| rest.split_once('"'));
            value.map(|(value, _)| value.to_owned()).unwrap_or_default()
        };
        Ok(sum(&text, |line| {
            let status_of_node =
                label(line, "resource") == "nodes" && label(line, "subresource") == "status";
            line.starts_with("apiserver_request_total{")
                && ["APPLY", "PATCH", "POST", "PUT", "DELETE"].contains(&&*label(line, "verb"))
                && [
                    "hypervisors",
                    "evictions",
                    "nodes",
                    "events",
                    "deployments",
                    "poddisruptionbudgets",
                ]
                .contains(&&*label(line, "resource"))
                && !status_of_node
        }))
    }
}

async fn at_once<F: Future<Output = Result<()>>>(all: impl Iterator<Item = F>) -> Result<()> {
    stream::iter(all)
        .buffer_unordered(AT_ONCE)
        .try_collect::<Vec<()>>()
        .await
        .map(drop)
}

fn follow(client: Client) -> watch::Receiver<Arc<Seen>> {
    let (sender, receiver) = watch::channel(Arc::default());
    tokio::spawn(async move {
        let api: Api<Hypervisor> = Api::all(client);
        let objects = watcher(api, watcher::Config::default())
            .default_backoff()
            .applied_objects();
        let mut objects = std::pin::pin!(objects);
        while let Some(object) = objects.next().await {
            let Ok(object) = object else { continue };
            let phase = object.status.as_ref().and_then(|status| status.phase);
            sender.send_modify(|seen: &mut Arc<Seen>| {
                let seen = Arc::make_mut(seen);
                let state = seen
                    .hosts
                    .entry(object.name_any())
                    .or_insert_with(|| State {
                        phase: None,
                        since: Instant::now(),
                    });
                if state.phase != phase {
                    state.phase = phase;
                    state.since = Instant::now();
                }
            });
        }
    });
    receiver
}

fn node(number: usize, name: &str) -> Value {
    let mut labels = json!({
        labels::VIRT_DRIVER: "ch",
        labels::LIFECYCLE: labels::LIFECYCLE_SKIP_TESTS,
        labels::HOSTNAME: name,
        labels::ZONE: ZONE,
        labels::REGION: "lab",
        labels::BUILDING_BLOCK: block(number),
        labels::METAL_CLUSTER: "lab",
        labels::METAL_NAME: name,
        labels::METAL_TYPE: "kvm",
        labels::WORKER_GROUP: "kvm-a",
        labels::WORKER_POOL: "kvm-a",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
    });
    if let Some(labels) = labels.as_object_mut().filter(|_| number < 3) {
        labels.insert(THREE.to_owned(), json!("yes"));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name, "labels": labels, "annotations": {
            annotations::AGGREGATES: block(number),
            annotations::CUSTOM_TRAITS: TRAITS.join(","),
        } },
    })
}

fn node_conditions(beat: &str) -> Value {
    let condition = |of: &str, status: &str| {
        json!({
            "type": of, "status": status, "reason": format!("Kubelet{of}"),
            "message": "as the kubelet says it, in a sentence of the usual length",
            "lastHeartbeatTime": beat, "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    json!([
        condition("MemoryPressure", "False"),
        condition("DiskPressure", "False"),
        condition("PIDPressure", "False"),
        condition("Ready", "True"),
    ])
}

/// As long as that of a real node.
fn node_status(beat: &str) -> Value {
    let images: Vec<Value> = (0..30)
        .map(|number| {
            let name = format!("registry.example.com/a/path/of/some/length/image-{number}");
            json!({ "names": [format!("{name}@sha256:{number:064}"), name], "sizeBytes": 123_456_789 })
        })
        .collect();
    json!({
        "addresses": [
            { "type": "InternalIP", "address": "10.0.0.1" },
            { "type": "Hostname", "address": "node" },
        ],
        "conditions": node_conditions(beat),
        "images": images,
    })
}

fn onboarded_status(number: usize, name: &str) -> Value {
    let say = |condition, status, reason| {
        let wanted = Wanted {
            condition,
            status,
            reason,
            message: "said before".to_owned(),
            observed_generation: None,
        };
        wanted.build(&[], Timestamp::UNIX_EPOCH)
    };
    let all = [
        say(
            HypervisorCondition::Onboarding,
            Status::False,
            Reason::Succeeded,
        ),
        say(
            HypervisorCondition::TraitsUpdated,
            Status::True,
            Reason::Succeeded,
        ),
        say(
            HypervisorCondition::AggregatesUpdated,
            Status::True,
            Reason::Succeeded,
        ),
        say(
            HypervisorCondition::HypervisorDisabled,
            Status::False,
            Reason::Succeeded,
        ),
        say(HypervisorCondition::Ready, Status::True, Reason::Ready),
        say(
            HypervisorCondition::LibVirtConnection,
            Status::True,
            Reason::Connected,
        ),
    ];
    let instances: Vec<Value> = (0..20)
        .map(|number| {
            let id = fake_nova::hypervisor_id(&format!("{name}/{number}"));
            json!({ "id": id, "name": format!("instance-{number:08x}"), "active": true })
        })
        .collect();
    let cells: Vec<Value> = (0..2)
        .map(|cell| {
            json!({
                "cellID": cell,
                "allocation": { "cpu": "8", "memory": "32Gi" },
                "capacity": { "cpu": "64", "memory": "528000Mi" },
            })
        })
        .collect();
    let mut status = fake_nova::status(number, name);
    for (key, value) in [
        ("conditions", json!(all)),
        ("waitingFor", Value::Null),
        ("phase", Value::Null),
        ("numInstances", json!(instances.len())),
        ("instances", json!(instances)),
        ("cells", json!(cells)),
        ("libVirtVersion", json!("10.7.0")),
        ("hypervisorVersion", json!("44.0.0")),
        ("internalIp", json!("10.0.0.1")),
    ] {
        if let Some(status) = status.as_object_mut() {
            status.insert(key.to_owned(), value);
        }
    }
    debug_assert!(conditions::is_true(&all, HypervisorCondition::Ready));
    status
}
