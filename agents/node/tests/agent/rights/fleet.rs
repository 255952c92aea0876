//! A fleet of two nodes with the chart's rights, and what comes of asking for something.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use cobalt_api::eviction::EvictionSpec;
use cobalt_api::hypervisor::Hypervisor;
use cobalt_api::names::{labels, leases};
use cobalt_lab::testing::{ApiServer, api_server};
use cobalt_node_agent::evictions;
use cobalt_node_agent::tls::certificate;
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

use super::page;
use crate::chart::{render, repository, run};

/// An installed chart, two nodes, and an object of each kind for each of them.
pub struct Fleet {
    server: ApiServer,
    pub admin: Client,
    /// The namespace of the release.
    pub namespace: String,
    /// The nodes A and B.
    pub nodes: [String; 2],
}

/// The release, and so the agents' account.
pub const RELEASE: &str = "node-agent";

/// A server, for the names of Evictions.
const SERVER: &str = "0b5f2c5e-93b8-4d2a-8a4b-6b0f6d2b7c11";

/// The audience of the lab's API server.
const AUDIENCE: &str = "https://kubernetes.default.svc";

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
            format!(
                "tls={}",
                json!({
                    "enabled": true, "createCertificates": true,
                    "nodeAddresses": { &fleet.nodes[0]: ["10.0.0.1"] },
                })
            ),
            format!("apiAudiences={}", json!([AUDIENCE])),
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
            for kind in ["hypervisors", "evictions", "drains", "migrations", "leases"] {
                fleet.admin_creates(kind, node).await;
            }
            for kind in ["secrets", "certificates", "events"] {
                fleet.admin_creates(kind, node).await;
            }
        }
        fleet
    }

    pub fn kubectl(&self, arguments: &[&str], input: &str) -> Result<String, String> {
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

    /// Gives the agents' account every right, so that the policy alone refuses.
    pub async fn grant_everything(&self) {
        self.apply(&format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata:\n  \
             name: {0}\nroleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: ClusterRole\n  \
             name: cluster-admin\nsubjects:\n  - kind: ServiceAccount\n    name: {RELEASE}\n    \
             namespace: {0}\n",
            self.namespace
        ));
        // The API server learns of it a moment later, and tells nobody when.
        let token = self.token(RELEASE, None).await.unwrap();
        let pods = self.api(&self.client_with(token).await, "pods");
        let begun = Instant::now();
        while pods.list(&ListParams::default()).await.is_err() {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "the right is not in force"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// A kind, and the namespace that its objects are in.
    fn resource(&self, plural: &str) -> (ApiResource, Option<&str>) {
        let own = Some(self.namespace.as_str());
        let (group, version, kind, namespace) = match plural {
            "hypervisors" => ("kvm.cloud.sap", "v1", "Hypervisor", None),
            "evictions" | "instance-evictions" | "drains" => {
                ("kvm.cloud.sap", "v1", "Eviction", None)
            }
            "migrations" | "foreign-migrations" => ("kvm.cloud.sap", "v1alpha1", "Migration", own),
            "leases" => (
                "coordination.k8s.io",
                "v1",
                "Lease",
                Some(leases::NODE_AGENT_NAMESPACE),
            ),
            "certificates" => ("cert-manager.io", "v1", "Certificate", own),
            "events" => ("events.k8s.io", "v1", "Event", Some("default")),
            "core-events" => ("", "v1", "Event", Some("default")),
            "secrets" => ("", "v1", "Secret", own),
            "pods" => ("", "v1", "Pod", own),
            "nodes" => ("", "v1", "Node", None),
            other => panic!("no kind {other}"),
        };
        let kind = GroupVersionKind::gvk(group, version, kind);
        let plural = plural.rsplit('-').next().unwrap_or(plural);
        let plural = if plural == "drains" {
            "evictions"
        } else {
            plural
        };
        (ApiResource::from_gvk_with_plural(&kind, plural), namespace)
    }

    pub fn api(&self, client: &Client, plural: &str) -> Api<DynamicObject> {
        let (resource, namespace) = self.resource(plural);
        match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        }
    }

    /// The object of a kind that belongs to a node, as its agent makes it.
    pub fn object(&self, kind: &str, node: &str) -> DynamicObject {
        let mut hypervisor = Hypervisor::new(node, Default::default());
        hypervisor.metadata.uid = Some("u".into());
        // All the labels that an agent copies.
        let copied = labels::FROM_NODE_TO_HYPERVISOR.iter();
        let copied = copied.map(|label| ((*label).to_owned(), "x".to_owned()));
        hypervisor.metadata.labels = Some(copied.collect());
        let eviction = |id: &str, deadline: Option<&str>, instances: &[&str]| {
            let spec = EvictionSpec {
                hypervisor: node.to_owned(),
                reason: "a test".to_owned(),
                deadline: deadline.map(str::to_owned),
                instances: instances.iter().map(ToString::to_string).collect(),
                ..EvictionSpec::default()
            };
            let name = format!("{node}-{id}");
            let eviction = evictions::eviction(&name, spec, Some(&hypervisor));
            serde_json::to_value(eviction).unwrap()
        };
        let mut object = match kind {
            "evictions" => eviction("0123abcd", Some("30m"), &[]),
            "instance-evictions" => eviction(SERVER, None, &[SERVER]),
            "drains" => json!({
                "metadata": { "name": node },
                "spec": { "hypervisor": node, "reason": "maintenance" },
            }),
            "certificates" => {
                let ip = (node == self.nodes[0]).then_some([10, 0, 0, 1].into());
                let issuer = "nova-hypervisor-agents-ca-issuer";
                certificate::wanted(&hypervisor, node, &self.namespace, issuer, ip)
            }
            "migrations" => json!({
                "metadata": {
                    "name": format!("migration-{node}"),
                    "labels": { labels::SOURCE_NODE: node, labels::INSTANCE: SERVER },
                },
                "spec": {},
            }),
            "hypervisors" => json!({
                "metadata": { "name": node }, "spec": { "lifecycleEnabled": false },
            }),
            "events" => json!({
                "metadata": { "name": format!("{node}.1") },
                "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "Test",
                "action": "Test", "note": "a test",
                "reportingController": "cobalt-node-agent", "reportingInstance": node,
                "regarding": {
                    "apiVersion": "kvm.cloud.sap/v1", "kind": "Hypervisor", "name": node,
                },
            }),
            // As writers of before send it: the API server checks less of these.
            "core-events" => json!({
                "metadata": { "name": format!("{node}.1") },
                "type": "Normal", "reason": "Test", "action": "Test", "message": "a test",
                "reportingComponent": "cobalt-node-agent", "reportingInstance": node,
                "involvedObject": {
                    "apiVersion": "kvm.cloud.sap/v1", "kind": "Hypervisor", "name": node,
                },
            }),
            "pods" => json!({
                "metadata": { "name": format!("agent-{node}") },
                "spec": {
                    "nodeName": node,
                    "serviceAccountName": RELEASE,
                    "containers": [{ "name": "agent", "image": "none" }],
                },
            }),
            "secrets" => json!({ "metadata": { "name": format!("tls-libvirt-{node}") } }),
            _ => json!({ "metadata": { "name": node } }),
        };
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
            "leases" => json!({ "spec": { "leaseDurationSeconds": 41 } }),
            "certificates" => json!({ "spec": { "revisionHistoryLimit": 2 } }),
            "events" => json!({
                "series": { "count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z" },
            }),
            "core-events" => json!({ "count": 2 }),
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
            "create" => outcome(api.create(&post, &object).await),
            "apply" => {
                let mut object = object;
                match kind {
                    // A change of more than cancel.
                    "evictions" => object.data["spec"]["reason"] = "another".into(),
                    _ => merge(&mut object.data, &content),
                }
                object.data.as_object_mut().unwrap().remove("metadata");
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
                    match kind {
                        "evictions" => object.data["spec"]["reason"] = "another".into(),
                        "leases" => merge(&mut object.data, &content),
                        _ => drop(object.labels_mut().insert("test".into(), "yes".into())),
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

    /// Tries a table of the page; `columns` are those of what is expected of A's and of B's object.
    pub async fn check(&self, client: &Client, table: &str, columns: [usize; 2]) {
        let mut wrong = Vec::new();
        let mut tried = 0;
        for row in page::table(table) {
            for (node, column) in self.nodes.iter().zip(columns) {
                let wanted = &row[column];
                if wanted == "-" {
                    continue;
                }
                tried += 1;
                let seen = self.attempt(client, &row[0], &row[1], node).await;
                if seen != *wanted {
                    wrong.push(format!(
                        "{} {} of {node}: {seen}, not {wanted}",
                        row[1], row[0]
                    ));
                }
            }
        }
        assert!(tried > 10);
        assert!(wrong.is_empty(), "of {tried}:\n{}", wrong.join("\n"));
    }

    /// Tries the rows of the page's table of fields that are about one of these kinds, as A's agent.
    pub async fn check_fields(&self, client: &Client, kinds: &[&str]) {
        let [a, b] = &self.nodes;
        let mut wrong = Vec::new();
        let rows = page::table("node-agent-fields");
        let rows: Vec<_> = rows
            .iter()
            .filter(|row| kinds.contains(&row[0].as_str()))
            .collect();
        for kind in kinds {
            assert!(rows.iter().any(|row| row[0] == *kind), "no row of {kind}");
        }
        for row in rows {
            let [kind, verb, field, text, wanted] = row.as_slice() else {
                panic!("{row:?}");
            };
            let value = page::value(text, a, b);
            let seen = self.change(client, kind, verb, field, value).await;
            if seen != *wanted {
                wrong.push(format!(
                    "{verb} {kind} {field} {text}: {seen}, not {wanted}"
                ));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Tries to write one field of A's object of a kind; nothing is kept.
    async fn change(
        &self,
        client: &Client,
        kind: &str,
        verb: &str,
        field: &str,
        value: Value,
    ) -> String {
        let [a, b] = &self.nodes;
        if kind == "tokens" {
            let mut request = json!({});
            page::set(&mut request, field, value);
            let request = serde_json::from_value(request).unwrap();
            return self.ask_for_token(client, a, &request).await;
        }
        let api = self.api(client, kind);
        let object = match kind {
            "foreign-migrations" => self.object("migrations", b),
            kind => self.object(kind, a),
        };
        let name = object.name_any();
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let mut content = json!({});
        match verb {
            "create" => {
                let post = PostParams {
                    dry_run: true,
                    ..PostParams::default()
                };
                let mut object = serde_json::to_value(object).unwrap();
                page::set(&mut object, field, value);
                let object = serde_json::from_value(object).unwrap();
                outcome(api.create(&post, &object).await)
            }
            "merge" => {
                page::set(&mut content, field, value);
                outcome(api.patch(&name, &params, &Patch::Merge(content)).await)
            }
            "status" => {
                page::set(&mut content, field, value);
                let patch = Patch::Merge(content);
                outcome(api.patch_status(&name, &params, &patch).await)
            }
            other => panic!("no verb {other}"),
        }
    }

    /// Asks for a token of the account that reads a node's Secrets.
    async fn ask_for_token(&self, client: &Client, node: &str, request: &TokenRequest) -> String {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &self.namespace);
        let account = format!("{RELEASE}-secrets-{node}");
        let params = PostParams::default();
        let answer = accounts.create_token_request(&account, &params, request);
        outcome(answer.await)
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
