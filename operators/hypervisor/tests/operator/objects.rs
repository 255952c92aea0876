//! The objects of a node on a real API server, and the hold on a real node with a real kubelet.

mod hold;
mod rights;
mod taints;

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cobalt_api::conditions::{HypervisorCondition, Reason, Status};
use cobalt_api::hypervisor::{Hypervisor, HypervisorSpec, HypervisorStatus};
use cobalt_hypervisor_operator::objects::{
    AccessConfig, CertificateConfig, Change, Difference, HoldPod, Kind, LifecycleConfig, ObjectKey,
    ObjectsConfig, Observed, act, difference, keys, list_agent_pods, trim_certificate,
    trim_deployment, trim_disruption_budget, trim_role, trim_role_binding, trim_service_account,
    wanted,
};
use cobalt_lab::testing::{ApiServer, api_server, install_definitions};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const DEADLINE: Duration = Duration::from_secs(30);

/// A stand-in for cert-manager's definition: its group and names, no checks, and a default, which
/// nobody of us has set.
const CERTIFICATES: &str = r#"{
  "apiVersion": "apiextensions.k8s.io/v1",
  "kind": "CustomResourceDefinition",
  "metadata": { "name": "certificates.cert-manager.io" },
  "spec": {
    "group": "cert-manager.io",
    "names": { "kind": "Certificate", "listKind": "CertificateList", "plural": "certificates", "singular": "certificate" },
    "scope": "Namespaced",
    "versions": [{
      "name": "v1",
      "served": true,
      "storage": true,
      "subresources": { "status": {} },
      "schema": { "openAPIV3Schema": {
        "type": "object",
        "properties": { "spec": {
          "type": "object",
          "properties": { "revisionHistoryLimit": { "type": "integer", "default": 1 } },
          "x-kubernetes-preserve-unknown-fields": true
        } },
        "x-kubernetes-preserve-unknown-fields": true
      } }
    }]
  }
}"#;

async fn server() -> (&'static ApiServer, Client) {
    static SERVER: OnceCell<ApiServer> = OnceCell::const_new();
    let server = SERVER.get_or_init(prepare).await;
    (server, server.client().await.unwrap())
}

async fn prepare() -> ApiServer {
    let server = api_server().await.unwrap();
    let client = server.client().await.unwrap();
    let certificates = serde_json::from_str(CERTIFICATES).unwrap();
    install_definitions(&client, &[certificates]).await.unwrap();
    server
}

/// A client that is made as described.
async fn client_with(kubeconfig: &Path, change: impl FnOnce(&mut kube::Config)) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options);
    let mut config = config.await.unwrap();
    change(&mut config);
    Client::try_from(config).unwrap()
}

fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{}-{number}", std::process::id())
}

/// A hypervisor node without a machine, and a namespace of its own for its objects.
struct Site {
    server: &'static ApiServer,
    client: Client,
    node: String,
    config: ObjectsConfig,
}

impl Site {
    async fn new(purpose: &str) -> Self {
        let (server, client) = server().await;
        let name = unique(purpose);
        create::<Namespace>(
            &Api::all(client.clone()),
            json!({ "metadata": { "name": name } }),
        )
        .await;
        create::<Node>(
            &Api::all(client.clone()),
            json!({ "metadata": { "name": name, "labels": {
                "nova.openstack.cloud.sap/virt-driver": "kvm",
                "kubernetes.io/hostname": name,
            } } }),
        )
        .await;
        // The API server gives a new node a taint of its own.
        let nodes: Api<Node> = Api::all(client.clone());
        let params = PatchParams::default();
        let clean = json!({ "spec": { "taints": null } });
        nodes
            .patch(&name, &params, &Patch::Merge(clean))
            .await
            .unwrap();
        let status = json!({ "status": { "addresses": [
            { "type": "InternalIP", "address": "10.0.0.1" },
            { "type": "InternalIP", "address": "fd00::1" },
            { "type": "Hostname", "address": name },
        ] } });
        nodes
            .patch_status(&name, &params, &Patch::Merge(status))
            .await
            .unwrap();
        let config = ObjectsConfig {
            certificate: Some(CertificateConfig {
                namespace: name.clone(),
                issuer_name: "issuer".into(),
            }),
            access: Some(AccessConfig {
                namespace: name.clone(),
                prefix: "secrets-".into(),
                ceph_secret: Some("ceph".into()),
            }),
            lifecycle: LifecycleConfig {
                namespace: name.clone(),
                pod: Some(HoldPod::busybox("busybox:1".into())),
            },
        };
        Self {
            server,
            client,
            node: name,
            config,
        }
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.node)
    }

    async fn difference(&self, hypervisor: Option<&Hypervisor>) -> Difference {
        let node = self.nodes().get(&self.node).await.unwrap();
        let wanted = wanted(&node, hypervisor, &self.config);
        difference(
            &wanted,
            &observe(&self.client, &self.node, &self.config).await,
        )
    }

    /// Makes it so, and says which kinds were written.
    async fn reconcile(&self, hypervisor: Option<&Hypervisor>) -> Vec<Kind> {
        let found = self.difference(hypervisor).await;
        assert_eq!(found.problems, []);
        carry_out(&self.client, &found.changes).await
    }
}

async fn carry_out(client: &Client, changes: &[Change]) -> Vec<Kind> {
    let mut written = Vec::new();
    for change in changes {
        act(client, change, DEADLINE).await.unwrap();
        match change {
            Change::Apply(object) => written.push(object.key.kind),
            Change::Remove { key, .. } => written.push(key.kind),
            Change::Taint(_) => {}
        }
    }
    written
}

async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: DeserializeOwned + Clone + Debug + Serialize,
{
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap()
}

async fn get<K>(client: &Client, key: &ObjectKey) -> Option<K>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
    K::DynamicType: Default,
{
    let api: Api<K> = Api::namespaced(client.clone(), &key.namespace);
    api.get_opt(&key.name).await.unwrap()
}

/// What reflectors would have.
async fn observe(client: &Client, node: &str, config: &ObjectsConfig) -> Observed {
    let mut observed = Observed {
        certificates_are_served: true,
        ..Observed::default()
    };
    for key in keys(node, config) {
        match key.kind {
            Kind::ServiceAccount => {
                let found = get(client, &key).await.map(trim_service_account);
                observed.service_account = found.map(Arc::new);
            }
            Kind::Role => observed.role = get(client, &key).await.map(trim_role).map(Arc::new),
            Kind::RoleBinding => {
                let found = get(client, &key).await.map(trim_role_binding);
                observed.role_binding = found.map(Arc::new);
            }
            Kind::PodDisruptionBudget => {
                let found = get(client, &key).await.map(trim_disruption_budget);
                observed.disruption_budget = found.map(Arc::new);
            }
            Kind::Deployment => {
                observed.deployment = get(client, &key).await.map(trim_deployment).map(Arc::new);
            }
            Kind::Certificate => {
                let found = match dynamic(client, &key).get(&key.name).await {
                    Ok(found) => Some(found),
                    // It is not there, or its kind is not.
                    Err(kube::Error::Api(status)) if status.code == 404 => None,
                    Err(error) => panic!("{error}"),
                };
                observed.certificate = found.map(trim_certificate).map(Arc::new);
            }
        }
    }
    observed
}

fn dynamic(client: &Client, key: &ObjectKey) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), &key.namespace, &key.kind.resource())
}

/// The version of each object, which every write changes.
async fn versions(site: &Site) -> Vec<(ObjectKey, Option<String>)> {
    let mut versions = Vec::new();
    for key in keys(&site.node, &site.config) {
        let found = dynamic(&site.client, &key)
            .get_opt(&key.name)
            .await
            .unwrap();
        versions.push((
            key,
            found.and_then(|object| object.metadata.resource_version),
        ));
    }
    versions
}

fn hypervisor(name: &str, conditions: &[(HypervisorCondition, Status, Reason)]) -> Hypervisor {
    let mut hypervisor = Hypervisor::new(name, HypervisorSpec::default());
    let conditions = conditions.iter().map(|(kind, status, reason)| Condition {
        type_: kind.as_str().to_owned(),
        status: status.as_str().to_owned(),
        reason: reason.as_str().to_owned(),
        message: String::new(),
        observed_generation: None,
        last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
    });
    hypervisor.status = Some(HypervisorStatus {
        conditions: conditions.collect(),
        ..HypervisorStatus::default()
    });
    hypervisor
}

const ALL: [Kind; 6] = [
    Kind::ServiceAccount,
    Kind::Role,
    Kind::RoleBinding,
    Kind::Certificate,
    Kind::PodDisruptionBudget,
    Kind::Deployment,
];

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_writes_nothing() {
    let site = Site::new("quiet").await;
    let hypervisor = hypervisor(&site.node, &[]);
    assert_eq!(site.reconcile(Some(&hypervisor)).await, ALL);
    let before = versions(&site).await;
    assert!(
        before.iter().all(|(_, version)| version.is_some()),
        "{before:?}"
    );

    let heartbeat = json!({ "status": { "conditions": [{
        "type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    }] } });
    let node = site.nodes();
    node.patch_status(
        &site.node,
        &PatchParams::default(),
        &Patch::Strategic(heartbeat),
    )
    .await
    .unwrap();
    assert_eq!(
        site.difference(Some(&hypervisor)).await,
        Difference::default()
    );

    // Even an apply that is not needed would change nothing.
    let wanted = wanted(
        &node.get(&site.node).await.unwrap(),
        Some(&hypervisor),
        &site.config,
    );
    let again: Vec<_> = wanted.apply.into_iter().map(Change::Apply).collect();
    carry_out(&site.client, &again).await;
    assert_eq!(versions(&site).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_add_stays_and_what_they_change_is_mended() {
    let mut site = Site::new("drift").await;
    let hypervisor = hypervisor(&site.node, &[]);
    site.reconcile(Some(&hypervisor)).await;
    let label = json!({ "metadata": { "labels": { "of": "somebody" }, "annotations": { "of": "somebody" } } });
    for key in keys(&site.node, &site.config) {
        let api = dynamic(&site.client, &key);
        let params = PatchParams::default();
        api.patch(&key.name, &params, &Patch::Merge(&label))
            .await
            .unwrap();
    }
    assert_eq!(site.reconcile(Some(&hypervisor)).await, []);

    // Another image, another Secret, another address, and somebody who scales.
    site.config.lifecycle.pod = Some(HoldPod::busybox("busybox:2".into()));
    site.config.access.as_mut().unwrap().ceph_secret = None;
    let address =
        json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "10.0.0.2" }] } });
    let params = PatchParams::default();
    site.nodes()
        .patch_status(&site.node, &params, &Patch::Merge(address))
        .await
        .unwrap();
    let expected = [Kind::Role, Kind::Certificate, Kind::Deployment];
    assert_eq!(site.reconcile(Some(&hypervisor)).await, expected);
    assert_eq!(site.reconcile(Some(&hypervisor)).await, []);

    let maint = format!("maint-{}", site.node);
    let scale = json!({ "spec": { "replicas": 3 } });
    let deployments = site.api::<Deployment>();
    deployments
        .patch(&maint, &params, &Patch::Merge(scale))
        .await
        .unwrap();
    site.api::<ServiceAccount>()
        .delete(&format!("secrets-{}", site.node), &Default::default())
        .await
        .unwrap();
    let expected = [Kind::ServiceAccount, Kind::Deployment];
    assert_eq!(site.reconcile(Some(&hypervisor)).await, expected);
    let deployment = deployments.get(&maint).await.unwrap();
    assert_eq!(deployment.spec.unwrap().replicas, Some(1));

    for key in keys(&site.node, &site.config) {
        let found = dynamic(&site.client, &key).get(&key.name).await.unwrap();
        let stays =
            found.metadata.labels.unwrap().get("of").map(String::as_str) == Some("somebody");
        assert_eq!(stays, key.kind != Kind::ServiceAccount, "{key}");
        let owners = found.metadata.owner_references.unwrap();
        assert_eq!(
            (owners.len(), owners[0].name.as_str()),
            (1, site.node.as_str()),
            "{key}"
        );
    }
    let certificate = keys(&site.node, &site.config)
        .into_iter()
        .find(|key| key.kind == Kind::Certificate)
        .unwrap();
    let certificate = dynamic(&site.client, &certificate)
        .get(&certificate.name)
        .await
        .unwrap();
    assert_eq!(certificate.data["spec"]["ipAddresses"], json!(["10.0.0.2"]));
    assert_eq!(certificate.data["spec"]["dnsNames"], json!([site.node]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_wanted_is_removed_and_nothing_else() {
    let mut site = Site::new("remove").await;
    let mut hypervisor = hypervisor(&site.node, &[]);
    site.reconcile(Some(&hypervisor)).await;
    hypervisor.spec.lifecycle_enabled = Some(false);
    let hold = [Kind::PodDisruptionBudget, Kind::Deployment];
    assert_eq!(site.reconcile(Some(&hypervisor)).await, hold);
    assert_eq!(site.reconcile(Some(&hypervisor)).await, []);

    // It comes back, and goes with its image.
    hypervisor.spec.lifecycle_enabled = None;
    assert_eq!(site.reconcile(Some(&hypervisor)).await, hold);
    let found = site.difference(Some(&hypervisor)).await;
    site.config.lifecycle.pod = None;
    let stale = site.difference(Some(&hypervisor)).await;
    assert_eq!((found.changes.len(), stale.changes.len()), (0, 2));
    assert_eq!(site.reconcile(Some(&hypervisor)).await, hold);

    // Another one has taken the name since: it is not the one that was meant.
    let other = json!({
        "metadata": { "name": format!("maint-{}", site.node) },
        "spec": { "minAvailable": 1, "selector": {} },
    });
    create(
        &site.api::<k8s_openapi::api::policy::v1::PodDisruptionBudget>(),
        other,
    )
    .await;
    carry_out(&site.client, &stale.changes).await;
    assert_eq!(site.reconcile(Some(&hypervisor)).await, []);
    let left = versions(&site).await;
    let left: Vec<_> = left
        .iter()
        .filter(|(_, version)| version.is_some())
        .map(|(key, _)| key.kind)
        .collect();
    assert!(left.contains(&Kind::PodDisruptionBudget), "{left:?}");

    // The node is no hypervisor any more.
    let labels =
        json!({ "metadata": { "labels": { "nova.openstack.cloud.sap/virt-driver": null } } });
    site.nodes()
        .patch(&site.node, &PatchParams::default(), &Patch::Merge(labels))
        .await
        .unwrap();
    let mut removed = site.reconcile(None).await;
    removed.sort();
    assert_eq!(removed, ALL[..4]);
}

/// What the deployed operator has made is taken over: its selector cannot be changed, its container
/// has a name, and its certificates may sign others.
#[tokio::test(flavor = "multi_thread")]
async fn the_deployed_hold_is_taken_over() {
    let site = Site::new("takeover").await;
    let name = format!("maint-{}", site.node);
    let tie = json!({ "cobaltcore-maintenance-controller": name });
    let uid = site.nodes().get(&site.node).await.unwrap().metadata.uid;
    let metadata = json!({
        "name": name,
        "labels": tie,
        "ownerReferences": [
            { "apiVersion": "v1", "kind": "Node", "name": site.node, "uid": uid, "blockOwnerDeletion": true },
        ],
    });
    let deployed = [
        (
            Kind::PodDisruptionBudget,
            json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata,
                "spec": { "minAvailable": 1, "selector": { "matchLabels": tie } },
            }),
        ),
        (
            Kind::Deployment,
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
                "spec": {
                    "replicas": 1,
                    "selector": { "matchLabels": tie },
                    "template": { "metadata": { "labels": tie }, "spec": { "containers": [{
                        "name": "sleep", "image": "private/busybox:latest", "command": ["sleep", "inf"],
                        "startupProbe": { "exec": { "command": ["/bin/false"] }, "failureThreshold": 1 },
                    }] } },
                },
            }),
        ),
    ];
    for (kind, object) in &deployed {
        let api = dynamic(
            &site.client,
            &ObjectKey {
                kind: *kind,
                namespace: site.node.clone(),
                name: name.clone(),
            },
        );
        let params = PatchParams::apply("maintenance");
        api.patch(&name, &params, &Patch::Apply(object))
            .await
            .unwrap();
    }
    let certificate = ObjectKey {
        kind: Kind::Certificate,
        namespace: site.node.clone(),
        name: format!("libvirt-{}", site.node),
    };
    let certificates = dynamic(&site.client, &certificate);
    let signs = json!({
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": { "name": certificate.name },
        "spec": { "usages": ["server auth", "cert sign"], "duration": "8h" },
    });
    create(&certificates, signs).await;

    let mut hypervisor = hypervisor(&site.node, &[]);
    assert_eq!(site.reconcile(Some(&hypervisor)).await, ALL);
    assert_eq!(site.reconcile(Some(&hypervisor)).await, []);
    let spec = &certificates.get(&certificate.name).await.unwrap().data["spec"];
    assert!(!spec["usages"].to_string().contains("cert sign"), "{spec}");
    assert_eq!(spec["duration"], "1128h0m0s");
    let spec = site
        .api::<Deployment>()
        .get(&name)
        .await
        .unwrap()
        .spec
        .unwrap();
    let containers = spec.template.spec.unwrap().containers;
    assert_eq!(containers.len(), 1, "{containers:?}");
    let probe = containers[0].startup_probe.clone().unwrap();
    assert_eq!(probe.failure_threshold, Some(i32::MAX));
    assert_eq!(probe.exec.unwrap().command.unwrap(), ["false"]);

    // And what it left on a host that it no longer manages goes, too.
    hypervisor.spec.lifecycle_enabled = Some(false);
    site.reconcile(Some(&hypervisor)).await;
    for (kind, object) in &deployed {
        let api = dynamic(
            &site.client,
            &ObjectKey {
                kind: *kind,
                namespace: site.node.clone(),
                name: name.clone(),
            },
        );
        let params = PatchParams::apply("maintenance");
        api.patch(&name, &params, &Patch::Apply(object))
            .await
            .unwrap();
    }
    let hold = [Kind::PodDisruptionBudget, Kind::Deployment];
    assert_eq!(site.reconcile(Some(&hypervisor)).await, hold);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_names_are_accepted() {
    let (_, client) = server().await;
    let site = Site::new("long").await;
    let name = format!("{}.{}", "a".repeat(170), site.node);
    let mut node = site.nodes().get(&site.node).await.unwrap();
    node.metadata.name = Some(name.clone());
    let found = wanted(&node, Some(&hypervisor(&name, &[])), &site.config);
    assert_eq!(found.problems, []);
    let changes: Vec<_> = found.apply.into_iter().map(Change::Apply).collect();
    assert_eq!(carry_out(&client, &changes).await, ALL);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_missing_is_said() {
    let mut site = Site::new("nowhere").await;
    let nowhere = unique("nowhere");
    site.config
        .certificate
        .as_mut()
        .unwrap()
        .namespace
        .clone_from(&nowhere);
    site.config.lifecycle.namespace.clone_from(&nowhere);
    let found = site.difference(Some(&hypervisor(&site.node, &[]))).await;
    let mut failed = 0;
    for change in &found.changes {
        if let Err(error) = act(&site.client, change, DEADLINE).await {
            let text = error.to_string();
            assert!(
                text.contains(&format!("the namespace \"{nowhere}\" does not exist")),
                "{text}"
            );
            failed += 1;
        }
    }
    assert_eq!((found.changes.len(), failed), (6, 3));
}

/// More than two pages, of two namespaces, beside pods of other nodes.
#[tokio::test(flavor = "multi_thread")]
async fn agent_pods_are_listed_whole() {
    let site = Site::new("pods").await;
    let (one, other) = (site.node.clone(), unique("pods"));
    let namespaces = Api::<Namespace>::all(site.client.clone());
    create(&namespaces, json!({ "metadata": { "name": other } })).await;
    let pods = |namespace: &str| Api::<Pod>::namespaced(site.client.clone(), namespace);
    for namespace in [&one, &other] {
        let accounts = Api::<ServiceAccount>::namespaced(site.client.clone(), namespace);
        create(&accounts, json!({ "metadata": { "name": "default" } })).await;
    }
    let pod = |name: String, node: &str, tolerations: Value| {
        json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": node, "tolerations": tolerations,
                "containers": [{ "name": "pause", "image": "pause:1" }],
            },
        })
    };
    futures::stream::iter(0..215)
        .for_each_concurrent(8, |number| {
            let (pods, pod) = (
                pods(&one),
                pod(format!("agent-{number:03}"), &site.node, json!([])),
            );
            async move { drop(create(&pods, pod).await) }
        })
        .await;
    create(&pods(&other), pod("alone".into(), &site.node, json!([]))).await;
    create(
        &pods(&other),
        pod("elsewhere".into(), "another-node", json!([])),
    )
    .await;
    let tolerant = pod(
        "tolerant".into(),
        &site.node,
        json!([{ "operator": "Exists" }]),
    );
    create(&pods(&other), tolerant).await;

    let all = [other.clone(), one.clone(), one.clone()];
    let found = list_agent_pods(&site.client, &all, &site.node, DEADLINE)
        .await
        .unwrap();
    let mut names: Vec<_> = found.iter().map(|pod| pod.name.clone()).collect();
    names.sort();
    names.dedup();
    assert_eq!((found.len(), names.len()), (216, 216));
    assert!(names.contains(&"alone".to_owned()), "{names:?}");
}
