//! A fleet of two nodes with the chart's rights, and what comes of asking for something.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use cobalt_api::names::{labels, leases};
use cobalt_lab::testing::{ApiServer, api_server};
use futures::StreamExt;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
    WatchParams,
};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::chart::{render, repository, run};

/// An installed chart, two nodes, and an object of each kind for each of them.
pub struct Fleet {
    server: ApiServer,
    admin: Client,
    /// The namespace of the release.
    pub namespace: String,
    /// The nodes A and B.
    pub nodes: [String; 2],
}

/// The release, and so the agents' account.
pub const RELEASE: &str = "node-agent";

impl Fleet {
    pub async fn install(purpose: &str) -> Self {
        let server = api_server().await.unwrap();
        let admin = server.client().await.unwrap();
        let namespace = format!("rights-{purpose}-{}", std::process::id());
        let nodes = ["a", "b"].map(|node| format!("{purpose}-{node}-{}", std::process::id()));
        let fleet = Self {
            server,
            admin,
            namespace,
            nodes,
        };
        let helm = fleet.server.bin.join("helm");
        let crds = repository("charts/cobalt-crds");
        let crds = run(&helm, &["template", crds.to_str().unwrap()], "").unwrap();
        fleet.apply(&crds);
        fleet.apply(CERTIFICATES_CRD);
        fleet.wait_for_definitions();
        fleet.apply(&format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {}}}}}",
            fleet.namespace
        ));
        let settings = [
            format!("nodes={}", json!(fleet.nodes)),
            "tls={\"enabled\":true,\"createCertificates\":true}".to_owned(),
        ];
        let settings = settings.each_ref().map(String::as_str);
        let chart = render(&fleet.server, RELEASE, &fleet.namespace, &settings).unwrap();
        // Nobody runs pods here.
        let chart: Vec<&str> = chart
            .split("\n---\n")
            .filter(|document| !document.contains("kind: DaemonSet"))
            .collect();
        fleet.apply(&chart.join("\n---\n"));
        for node in &fleet.nodes {
            for kind in ["nodes", "pods"] {
                fleet.admin_creates(kind, node).await;
            }
            for kind in ["hypervisors", "evictions", "migrations", "leases"] {
                fleet.admin_creates(kind, node).await;
            }
            for kind in ["secrets", "certificates", "events"] {
                fleet.admin_creates(kind, node).await;
            }
        }
        fleet
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let config = format!("--kubeconfig={}", self.server.kubeconfig.display());
        let all = [&[config.as_str()], arguments].concat();
        run(&self.server.bin.join("kubectl"), &all, input)
    }

    pub fn apply(&self, manifests: &str) {
        let arguments = ["apply", "--server-side", "--force-conflicts", "-f=-"];
        self.kubectl(&arguments, manifests).unwrap();
    }

    fn wait_for_definitions(&self) {
        let names = ["hypervisors", "evictions", "migrations"]
            .map(|plural| format!("crd/{plural}.kvm.cloud.sap"));
        let mut arguments = vec!["wait", "--for=condition=established", "--timeout=60s"];
        arguments.extend(names.each_ref().map(String::as_str));
        arguments.push("crd/certificates.cert-manager.io");
        self.kubectl(&arguments, "").unwrap();
    }

    async fn admin_creates(&self, kind: &str, node: &str) {
        let api = self.api(&self.admin, kind);
        let object = self.object(kind, node);
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("{kind} of {node}: {error}"),
        }
        if kind == "migrations" {
            let status = json!({ "status": { "started": "2026-01-01T00:00:00Z", "origin": node } });
            let params = PatchParams::default();
            let name = object.name_any();
            api.patch_status(&name, &params, &Patch::Merge(status))
                .await
                .unwrap();
        }
    }

    /// A token of an account; of the agent on `node` if there is one.
    pub async fn token(&self, account: &str, node: Option<&str>) -> kube::Result<String> {
        self.token_by(&self.admin, account, node).await
    }

    pub async fn token_by(
        &self,
        client: &Client,
        account: &str,
        node: Option<&str>,
    ) -> kube::Result<String> {
        let bound = match node {
            Some(node) => {
                let pods: Api<Pod> = Api::namespaced(self.admin.clone(), &self.namespace);
                let pod = pods.get(&format!("agent-{node}")).await?;
                Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: Some(pod.name_any()),
                    uid: pod.uid(),
                })
            }
            None => None,
        };
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                bound_object_ref: bound,
                expiration_seconds: Some(3600),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &self.namespace);
        let answer = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await?;
        Ok(answer.status.unwrap().token.unwrap())
    }

    pub async fn client_with(&self, token: String) -> Client {
        let file = kube::config::Kubeconfig::read_from(&self.server.kubeconfig).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(file, &options)
            .await
            .unwrap();
        config.auth_info = kube::config::AuthInfo {
            token: Some(token.into()),
            ..Default::default()
        };
        Client::try_from(config).unwrap()
    }

    /// The agent on a node, as soon as the policy holds it: the API server learns of a policy a moment
    /// after it was created, and tells nobody when.
    pub async fn agent(&self, node: &str) -> Client {
        let token = self.token(RELEASE, Some(node)).await.unwrap();
        let client = self.client_with(token).await;
        let api = self.api(&client, "leases");
        let foreign = self.object("leases", &format!("nobody-{}", self.namespace));
        let begun = Instant::now();
        loop {
            let params = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            let outcome = outcome(api.create(&params, &foreign).await);
            if outcome == "own-lease" {
                return client;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "the policy is not in force: {outcome}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// A kind, and the namespace that its objects are in.
    fn resource(&self, plural: &str) -> (ApiResource, Option<&str>) {
        let own = Some(self.namespace.as_str());
        let (group, version, kind, namespace) = match plural {
            "hypervisors" => ("kvm.cloud.sap", "v1", "Hypervisor", None),
            "evictions" => ("kvm.cloud.sap", "v1", "Eviction", None),
            "migrations" => ("kvm.cloud.sap", "v1alpha1", "Migration", own),
            "leases" => (
                "coordination.k8s.io",
                "v1",
                "Lease",
                Some(leases::NODE_AGENT_NAMESPACE),
            ),
            "certificates" => ("cert-manager.io", "v1", "Certificate", own),
            "events" => ("events.k8s.io", "v1", "Event", Some("default")),
            "secrets" => ("", "v1", "Secret", own),
            "pods" => ("", "v1", "Pod", own),
            "nodes" => ("", "v1", "Node", None),
            other => panic!("no kind {other}"),
        };
        let kind = GroupVersionKind::gvk(group, version, kind);
        (ApiResource::from_gvk_with_plural(&kind, plural), namespace)
    }

    pub fn api(&self, client: &Client, plural: &str) -> Api<DynamicObject> {
        let (resource, namespace) = self.resource(plural);
        match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        }
    }

    /// The object of a kind that belongs to a node.
    pub fn object(&self, kind: &str, node: &str) -> DynamicObject {
        let name = match kind {
            "migrations" => format!("migration-{node}"),
            "secrets" => format!("tls-libvirt-{node}"),
            "certificates" => format!("libvirt-{node}"),
            "pods" => format!("agent-{node}"),
            _ => node.to_owned(),
        };
        let mut object = json!({ "metadata": { "name": name } });
        match kind {
            "migrations" => {
                object["metadata"]["labels"] = json!({ labels::SOURCE_NODE: node });
                object["spec"] = json!({});
            }
            "hypervisors" => object["spec"] = json!({ "lifecycleEnabled": false }),
            "evictions" => object["spec"] = json!({ "hypervisor": node, "reason": "a test" }),
            "certificates" => {
                object["spec"] = json!({
                    "secretName": format!("tls-libvirt-{node}"),
                    "commonName": node,
                    "dnsNames": [node, format!("{node}.example")],
                });
            }
            "events" => {
                let about =
                    json!({ "apiVersion": "kvm.cloud.sap/v1", "kind": "Hypervisor", "name": node });
                let more = json!({
                    "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "Test",
                    "action": "Test", "reportingController": "test", "reportingInstance": node,
                    "regarding": about,
                });
                object
                    .as_object_mut()
                    .unwrap()
                    .extend(more.as_object().unwrap().clone());
            }
            "pods" => {
                object["spec"] = json!({
                    "nodeName": node,
                    "serviceAccountName": RELEASE,
                    "containers": [{ "name": "agent", "image": "none" }],
                });
            }
            _ => {}
        }
        let (resource, _) = self.resource(kind);
        object["apiVersion"] = resource.api_version.into();
        object["kind"] = resource.kind.into();
        serde_json::from_value(object).unwrap()
    }

    /// Tries a verb on a node's object; nothing is kept.
    pub async fn attempt(&self, client: &Client, kind: &str, verb: &str, node: &str) -> String {
        let api = self.api(client, kind);
        let object = self.object(kind, node);
        let name = object.name_any();
        let post = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let patch = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let delete = DeleteParams {
            dry_run: true,
            ..DeleteParams::default()
        };
        let only = format!("metadata.name={name}");
        let content = match kind {
            "evictions" => json!({ "spec": { "cancel": true } }),
            "hypervisors" => json!({ "spec": { "evacuateOnReboot": true } }),
            _ => json!({ "metadata": { "annotations": { "test": "yes" } } }),
        };
        let status = match kind {
            "hypervisors" => json!({ "status": { "numInstances": 7 } }),
            "migrations" => json!({ "status": { "errMsg": "a test" } }),
            "evictions" => json!({ "status": { "outstandingRamMb": 7 } }),
            _ => json!({ "status": { "revision": 7 } }),
        };
        match verb {
            "get" => outcome(api.get(&name).await),
            "list" => outcome(api.list(&ListParams::default().fields(&only)).await),
            "list-all" => outcome(api.list(&ListParams::default()).await),
            "watch" => {
                let params = WatchParams::default().fields(&only);
                match api.watch(&params, "0").await {
                    Ok(stream) => match std::pin::pin!(stream).next().await {
                        Some(first) => outcome(first),
                        None => "nothing".to_owned(),
                    },
                    Err(error) => outcome::<()>(Err(error)),
                }
            }
            "create" => {
                let mut object = object;
                if kind == "evictions" {
                    object.metadata.name = Some(format!("{node}-0123abcd"));
                }
                outcome(api.create(&post, &object).await)
            }
            "apply" => {
                let mut object = object;
                if kind == "evictions" {
                    // A change of more than cancel.
                    object.data["spec"]["reason"] = "another".into();
                }
                object.metadata.annotations = Some([("test".into(), "yes".into())].into());
                let patch = PatchParams {
                    dry_run: true,
                    ..PatchParams::apply("test").force()
                };
                outcome(api.patch(&name, &patch, &Patch::Apply(&object)).await)
            }
            "merge" => outcome(api.patch(&name, &patch, &Patch::Merge(&content)).await),
            "status" => outcome(
                api.patch_status(&name, &patch, &Patch::Merge(&status))
                    .await,
            ),
            "replace" | "put-status" => {
                let admin = self.api(&self.admin, kind);
                let mut object = admin.get(&name).await.unwrap();
                if verb == "replace" {
                    object.labels_mut().insert("test".into(), "yes".into());
                    if kind == "evictions" {
                        object.data["spec"]["reason"] = "another".into();
                    }
                    return outcome(api.replace(&name, &post, &object).await);
                }
                merge(&mut object.data, &status);
                outcome(api.replace_status(&name, &post, &object).await)
            }
            "delete" => outcome(api.delete(&name, &delete).await),
            "delete-all" => outcome(api.delete_collection(&delete, &ListParams::default()).await),
            other => panic!("no verb {other}"),
        }
    }

    /// Tries a table; `columns` are those of what is expected of A's and of B's object.
    pub async fn check(&self, client: &Client, table: &str, columns: [usize; 2]) {
        let mut wrong = Vec::new();
        let mut tried = 0;
        for line in table.lines().filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            for (node, column) in self.nodes.iter().zip(columns) {
                let wanted = words[column];
                if wanted == "-" {
                    continue;
                }
                tried += 1;
                let seen = self.attempt(client, words[0], words[1], node).await;
                if seen != wanted {
                    wrong.push(format!(
                        "{} {} of {node}: {seen}, not {wanted}",
                        words[1], words[0]
                    ));
                }
            }
        }
        assert!(tried > 10);
        assert!(wrong.is_empty(), "of {tried}:\n{}", wrong.join("\n"));
    }
}

/// In one word: `yes`, `rbac`, the rule of the policy, or the error.
pub fn outcome<T: Debug>(answer: kube::Result<T>) -> String {
    match answer {
        Ok(_) => "yes".into(),
        // What is there already was not refused.
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => "yes".into(),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let rule = status.message.split("denied request: ").nth(1);
            match rule.and_then(|rule| rule.split(':').next()) {
                Some(rule) => rule.to_owned(),
                None if status.message.contains(" cannot ") => "rbac".to_owned(),
                None => status.message.clone(),
            }
        }
        Err(error) => error.to_string(),
    }
}

/// Sets the fields of an object.
fn merge(object: &mut Value, fields: &Value) {
    match (object, fields) {
        (Value::Object(object), Value::Object(fields)) => {
            for (name, value) in fields {
                merge(object.entry(name).or_insert(Value::Null), value);
            }
        }
        (object, fields) => *object = fields.clone(),
    }
}

/// Stands in for cert-manager's definition: names and nothing else.
const CERTIFICATES_CRD: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: certificates.cert-manager.io
spec:
  group: cert-manager.io
  names: { kind: Certificate, listKind: CertificateList, plural: certificates, singular: certificate }
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      subresources: { status: {} }
      schema:
        openAPIV3Schema: { type: object, x-kubernetes-preserve-unknown-fields: true }
"#;
