//! The controller: one key per bound Pod.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cobalt_api::names::FieldManager;
use cobalt_controller::{App, Controller, KubeError, Next, Watch, call};
use cobalt_runtime::{Change, Note, ObjectKey, Presence, Queue, Recorder, Severity, Store};
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use prometheus_client::metrics::counter::Counter;
use serde_json::{Value, json};

use crate::config::Config;
use crate::decide::{Conflict, Observation, Plan, decide};
use crate::pods::{BoundPod, PodsByNode, Scope, labels_of_node};

/// The name of the operator and of its Lease.
pub const NAME: &str = "cobalt-labels-injector";

const DEADLINE: Duration = Duration::from_secs(10);

/// Declares the watches and the controller.
pub fn build(app: &mut App, config: &Config) {
    let scope = Arc::new(Scope {
        labels: config.labels.iter().cloned().collect(),
        manager: FieldManager::LabelsInjector.as_str().to_owned(),
        take_over_from: config.take_over_from.iter().cloned().collect(),
    });
    let queue: Queue<ObjectKey> = Queue::new();
    let pods_by_node = PodsByNode::default();

    let (kept, index, woken) = (Arc::clone(&scope), pods_by_node.clone(), queue.clone());
    // Pods without a Node are the scheduler's business: the API server does not send them.
    let mut selection = watcher::Config::default().fields("spec.nodeName!=");
    if !config.pod_selector.is_empty() {
        selection = selection.labels(&config.pod_selector);
    }
    let watch = Watch {
        name: "pods",
        presence: Presence::Required,
        selection,
    };
    let pods = app.watch(
        watch,
        Api::all(app.client()),
        move |pod: Pod| BoundPod::new(pod, &kept),
        move |key, change| {
            index.update(key, &change);
            woken.add(key.clone());
        },
    );

    let (kept, woken) = (scope, queue.clone());
    let watch = Watch {
        name: "nodes",
        presence: Presence::Required,
        selection: watcher::Config::default(),
    };
    let nodes = app.watch(
        watch,
        Api::all(app.client()),
        move |node: Node| labels_of_node(node, &kept),
        move |key, change| {
            // A Node that is gone takes its Pods with it: their labels stay true until then.
            if let Change::Applied { .. } = change {
                for pod in pods_by_node.on(key.name()) {
                    woken.add(pod);
                }
            }
        },
    );

    let (writes, conflicts) = (Counter::default(), Counter::default());
    let registry = app.registry();
    let help = "Writes to Pods";
    registry.register("cobalt_labels_injector_writes", help, writes.clone());
    let help =
        "Labels of Pods found with a value that is not the Node's and that somebody else set";
    registry.register("cobalt_labels_injector_conflicts", help, conflicts.clone());
    let injector = Injector {
        client: app.client(),
        recorder: app.recorder(),
        pods,
        nodes,
        writes,
        conflicts,
    };
    app.controller(injector, queue, config.workers);
}

struct Injector {
    client: Client,
    recorder: Recorder,
    pods: Store<Option<BoundPod>>,
    nodes: Store<BTreeMap<String, String>>,
    writes: Counter,
    conflicts: Counter,
}

impl Controller for Injector {
    const NAME: &'static str = "labels-injector";
    type Key = ObjectKey;
    type Observation = Observation;
    type Plan = Plan;

    async fn until_ready(&self) {
        self.pods.until_ready().await;
        self.nodes.until_ready().await;
    }

    fn observe(&self, key: &ObjectKey) -> Option<Observation> {
        let pod = self.pods.get(key)?;
        // Without its Node nothing is known of what the Pod should have; its arrival wakes the Pod.
        let node = self.nodes.named(&(*pod).as_ref()?.node)?;
        Some(Observation { pod, node })
    }

    fn decide(&self, observation: &Observation) -> Option<Plan> {
        decide((*observation.pod).as_ref()?, &observation.node)
    }

    async fn act(
        &self,
        key: &ObjectKey,
        observation: Observation,
        plan: Plan,
    ) -> Result<Next, KubeError> {
        let Some(pod) = &*observation.pod else {
            return Ok(Next::AwaitChange);
        };
        self.report(key, pod, &plan.conflicts);
        // With the uid nothing is written to another Pod of the same name, and none is created.
        let metadata = |labels: Value| json!({ "uid": pod.uid, "labels": labels });
        if !plan.remove.is_empty() {
            let removed: BTreeMap<&String, ()> = plan.remove.iter().map(|key| (key, ())).collect();
            let content = json!({ "metadata": metadata(json!(removed)) });
            self.write(key, &PatchParams::default(), &Patch::Merge(content))
                .await?;
        }
        if let Some(labels) = plan.apply {
            let content = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": metadata(json!(labels)),
            });
            let mut params = PatchParams::apply(FieldManager::LabelsInjector.as_str());
            params.force = plan.force;
            self.write(key, &params, &Patch::Apply(content)).await?;
        }
        Ok(Next::AwaitChange)
    }
}

impl Injector {
    async fn write(
        &self,
        key: &ObjectKey,
        params: &PatchParams,
        patch: &Patch<Value>,
    ) -> Result<(), KubeError> {
        let namespace = key.namespace().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let request = pods.patch_metadata(key.name(), params, patch);
        call(&format!("patch Pod {key}"), DEADLINE, request).await?;
        self.writes.inc();
        Ok(())
    }

    fn report(&self, key: &ObjectKey, pod: &BoundPod, conflicts: &[Conflict]) {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: key.namespace().map(str::to_owned),
            name: Some(key.name().to_owned()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
        for conflict in conflicts {
            self.conflicts.inc();
            let Conflict { label, pod, node } = conflict;
            let text = format!(
                "the label {label} is \"{pod}\" here and \"{node}\" on the Node; somebody else set it, \
                 so it is left alone. Remove it from the Pod to get the Node's value"
            );
            self.recorder.report(
                &about,
                Note {
                    severity: Severity::Warning,
                    reason: "LabelConflict",
                    action: "CopyLabels",
                    text,
                },
            );
        }
    }
}
