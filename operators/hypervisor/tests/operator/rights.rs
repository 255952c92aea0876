//! What the operator's account may do: RBAC and the admission policy of the chart, against a real API
//! server.

use std::time::{Duration, Instant};

use cobalt_api::hypervisor::{Hypervisor, HypervisorSpec};
use cobalt_api::names::{labels, leases, taints};
use cobalt_hypervisor_operator::objects::{
    AccessConfig, CertificateConfig, Kind, LifecycleConfig, ObjectsConfig, Observed, act,
    difference, wanted,
};
use cobalt_lab::testing::{ApiServer, api_server, install_definitions, threat_model_table};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
    ResourceExt,
};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::chart::{render, render_chart, run};

/// The release, and so the operator's account.
const RELEASE: &str = "hypervisor-operator";

/// The image of the pods that hold nodes.
const IMAGE: &str = "r.example/hold:1";

/// What the names of the accounts begin with that read a node's Secrets.
const PREFIX: &str = "agent-secrets-";

/// The chart, installed with everything that is optional, or with nothing of it.
struct Installed {
    server: ApiServer,
    admin: Client,
    operator: Client,
    namespace: String,
}

impl Installed {
    async fn with(purpose: &str, optional: bool) -> Self {
        let server = api_server().await.unwrap();
        let admin = server.client().await.unwrap();
        let namespace = format!("operator-{purpose}-{}", std::process::id());
        let certificates: CustomResourceDefinition =
            serde_saphyr::from_str(CERTIFICATES_CRD).unwrap();
        install_definitions(&admin, &[certificates]).await.unwrap();
        let operator = client_as(&server, &namespace, RELEASE).await;
        let installed = Self {
            server,
            admin,
            operator,
            namespace,
        };
        let namespaces = [
            installed.namespace.clone(),
            installed.lifecycle_namespace(),
            leases::NODE_AGENT_NAMESPACE.to_owned(),
        ];
        let namespaces = namespaces.map(
            |name| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }),
        );
        installed.apply(&namespaces);
        let lifecycle = match optional {
            true => json!({ "image": IMAGE, "namespace": installed.lifecycle_namespace() }),
            false => json!({ "namespace": installed.lifecycle_namespace() }),
        };
        let agents = json!({
            "secretReaders": {
                "enabled": optional, "prefix": PREFIX, "namespace": installed.namespace,
                "cephSecretName": "ceph",
            },
        });
        let settings = [format!("lifecycle={lifecycle}"), format!("agents={agents}")];
        let settings = settings.each_ref().map(String::as_str);
        let mut objects =
            render(&installed.server, RELEASE, &installed.namespace, &settings).unwrap();
        // Nobody runs pods here.
        objects.retain(|object| object["kind"] != "Deployment");
        installed.apply(&objects);
        until_in_force(&installed.operator, &objects).await;
        installed
    }

    /// Stands for kube-system, which tests share.
    fn lifecycle_namespace(&self) -> String {
        format!("{}-lifecycle", self.namespace)
    }

    fn apply(&self, objects: &[Value]) {
        let config = format!("--kubeconfig={}", self.server.kubeconfig.display());
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        let arguments = [
            &config,
            "apply",
            "--server-side",
            "--force-conflicts",
            "-f=-",
        ];
        let kubectl = self.server.bin.join("kubectl");
        run(&kubectl, &arguments, &list.to_string()).unwrap();
    }

    /// A kind, and the namespace that the operator writes it in.
    fn resource(&self, plural: &str) -> (ApiResource, Option<String>) {
        let own = Some(self.namespace.clone());
        let lifecycle = Some(self.lifecycle_namespace());
        let rbac = "rbac.authorization.k8s.io";
        let (group, kind, namespace) = match plural {
            "nodes" => ("", "Node", None),
            "pods" => ("", "Pod", own),
            "secrets" => ("", "Secret", own),
            "serviceaccounts" => ("", "ServiceAccount", own),
            "roles" => (rbac, "Role", own),
            "rolebindings" => (rbac, "RoleBinding", own),
            "certificates" => ("cert-manager.io", "Certificate", own),
            "deployments" => ("apps", "Deployment", lifecycle),
            "poddisruptionbudgets" => ("policy", "PodDisruptionBudget", lifecycle),
            other => panic!("no kind {other}"),
        };
        let kind = GroupVersionKind::gvk(group, "v1", kind);
        (ApiResource::from_gvk_with_plural(&kind, plural), namespace)
    }

    fn api(&self, client: &Client, plural: &str) -> Api<DynamicObject> {
        let (resource, namespace) = self.resource(plural);
        match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        }
    }

    /// Applies an object as the operator does, and says what came of it.
    async fn apply_as_operator(&self, plural: &str, name: &str, body: &Value) -> String {
        self.apply_as(&self.operator, plural, name, body, false)
            .await
    }

    async fn apply_as_admin(&self, plural: &str, name: &str, body: &Value) -> String {
        self.apply_as(&self.admin, plural, name, body, false).await
    }

    async fn apply_as(
        &self,
        client: &Client,
        plural: &str,
        name: &str,
        body: &Value,
        dry_run: bool,
    ) -> String {
        let (resource, _) = self.resource(plural);
        let mut body = body.clone();
        body["apiVersion"] = resource.api_version.into();
        body["kind"] = resource.kind.into();
        body["metadata"]["name"] = name.into();
        let params = PatchParams {
            dry_run,
            ..PatchParams::apply("test").force()
        };
        let api = self.api(client, plural);
        outcome(api.patch(name, &params, &Patch::Apply(body)).await)
    }

    /// Returns as soon as the policy holds the operator: the API server learns of a policy a moment
    /// after it was created, and tells nobody when.
    async fn until_policy_holds(&self) {
        let begun = Instant::now();
        let foreign = json!({ "spec": { "secretName": "other" } });
        loop {
            let seen = self
                .apply_as(&self.operator, "certificates", "other", &foreign, true)
                .await;
            if seen == "own-certificates" {
                return;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "the policy is not in force: {seen}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Asks for each line of the page's table; all that is not as expected is told.
    async fn check(&self, column: usize) {
        let mut wrong = Vec::new();
        let mut asked = 0;
        for words in threat_model_table("operator").unwrap() {
            let (group, resource) = match words[0].split_once('/') {
                Some((group, resource)) => (group, resource),
                None => ("", words[0].as_str()),
            };
            let (resource, part) = match resource.split_once(':') {
                Some((resource, part)) => (resource, Some(part.to_owned())),
                None => (resource, None),
            };
            let place = match words[1].as_str() {
                "own" => Some(self.namespace.clone()),
                "lifecycle" => Some(self.lifecycle_namespace()),
                "heartbeats" => Some(leases::NODE_AGENT_NAMESPACE.to_owned()),
                "all" => None,
                other => Some(other.to_owned()),
            };
            let wanted: Vec<&str> = words[column].split(',').collect();
            for verb in VERBS {
                let attributes = ResourceAttributes {
                    group: Some(group.to_owned()),
                    resource: Some(resource.to_owned()),
                    subresource: part.clone(),
                    namespace: place.clone(),
                    verb: Some((*verb).to_owned()),
                    ..ResourceAttributes::default()
                };
                asked += 1;
                let seen = allowed(&self.operator, attributes).await;
                if seen != wanted.contains(verb) {
                    wrong.push(format!("{verb} {} in {}: {seen}", words[0], words[1]));
                }
            }
        }
        assert!(asked > 100);
        assert!(wrong.is_empty(), "of {asked}:\n{}", wrong.join("\n"));
    }
}

/// Whether a client may do something.
async fn allowed(client: &Client, attributes: ResourceAttributes) -> bool {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = reviews.create(&PostParams::default(), &review).await;
    answer.unwrap().status.unwrap().allowed
}

/// Returns as soon as a client may do something: the API server learns of Roles and bindings a moment
/// after they were created, and tells nobody when.
async fn until_allowed(client: &Client, attributes: &ResourceAttributes) {
    let begun = Instant::now();
    while !allowed(client, attributes.clone()).await {
        let waited = begun.elapsed();
        assert!(
            waited < Duration::from_secs(60),
            "not in force: {attributes:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns as soon as what Roles give to a client is in force.
async fn until_in_force(client: &Client, objects: &[Value]) {
    let roles = objects.iter().filter(|object| {
        ["ClusterRole", "Role"]
            .iter()
            .any(|kind| object["kind"] == *kind)
    });
    for role in roles {
        let rule = &role["rules"][0];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let attributes = ResourceAttributes {
            group: Some(text(&rule["apiGroups"][0])),
            resource: Some(text(&rule["resources"][0])),
            namespace: role["metadata"]["namespace"].as_str().map(str::to_owned),
            verb: Some(text(&rule["verbs"][0])),
            ..ResourceAttributes::default()
        };
        until_allowed(client, &attributes).await;
    }
}

/// A client with the rights of an account.
async fn client_as(server: &ApiServer, namespace: &str, account: &str) -> Client {
    let file = kube::config::Kubeconfig::read_from(&server.kubeconfig).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(file, &options)
        .await
        .unwrap();
    config.auth_info.impersonate = Some(format!("system:serviceaccount:{namespace}:{account}"));
    let own = format!("serviceaccounts:{namespace}");
    let groups = ["serviceaccounts", &own, "authenticated"];
    let groups = groups.map(|group| format!("system:{group}"));
    config.auth_info.impersonate_groups = Some(groups.to_vec());
    Client::try_from(config).unwrap()
}

/// In one word: `yes`, `rbac`, the rule of the policy, or the error.
fn outcome<T>(answer: kube::Result<T>) -> String {
    match answer {
        Ok(_) => "yes".into(),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let rule = status.message.split("denied request: ").nth(1);
            match rule.and_then(|rule| rule.split(':').next()) {
                Some(rule) => rule.to_owned(),
                None if status.message.contains("attempting to grant") => "escalation".to_owned(),
                None if status.message.contains(" cannot ") => "rbac".to_owned(),
                None => status.message.clone(),
            }
        }
        Err(error) => error.to_string(),
    }
}

/// All that is asked for.
const VERBS: &[&str] = &[
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "escalate",
    "bind",
];

#[tokio::test]
async fn w90_the_operator_has_the_rights_it_needs_and_no_other() {
    let installed = Installed::with("all", true).await;
    installed.check(2).await;
    let installed = Installed::with("default", false).await;
    installed.check(3).await;
}

#[tokio::test]
async fn the_operator_runs_where_pods_may_do_nothing_special() {
    let installed = Installed::with("restricted", true).await;
    let namespace = &installed.namespace;
    installed.apply(&[json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": namespace,
            "labels": { "pod-security.kubernetes.io/enforce": "restricted" },
        },
    })]);
    let rendered = render(&installed.server, RELEASE, namespace, &[]).unwrap();
    let mut all = rendered.iter();
    let deployment = all.find(|object| object["kind"] == "Deployment").unwrap();
    let pods = installed.api(&installed.admin, "pods");
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let pod = |name: &str, spec: &Value| -> DynamicObject {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec,
        });
        serde_json::from_value(pod).unwrap()
    };
    let mut spec = deployment["spec"]["template"]["spec"].clone();
    let answer = pods.create(&params, &pod("operator", &spec)).await;
    assert_eq!(outcome(answer), "yes");
    // It is this that was asked.
    spec["hostNetwork"] = true.into();
    let refused = pods
        .create(&params, &pod("other", &spec))
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("PodSecurity"), "{refused}");
}

/// The Role of the account that reads a node's Secrets.
fn reader_role(secrets: &[&str]) -> Value {
    json!({ "rules": [{
        "apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"],
        "resourceNames": secrets,
    }] })
}

fn reader_binding(role: &str, account: &str, namespace: &str) -> Value {
    json!({
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": namespace }],
    })
}

#[tokio::test]
async fn the_operator_makes_accounts_that_read_one_nodes_secrets_and_gives_no_other_right() {
    let installed = Installed::with("readers", true).await;
    installed.until_policy_holds().await;
    let namespace = installed.namespace.clone();
    let name = format!("{PREFIX}hv1");
    let role = reader_role(&["tls-libvirt-hv1", "ceph"]);
    for (plural, body) in [
        (
            "serviceaccounts",
            json!({ "automountServiceAccountToken": false }),
        ),
        ("roles", role.clone()),
        ("rolebindings", reader_binding(&name, &name, &namespace)),
    ] {
        let seen = installed.apply_as_operator(plural, &name, &body).await;
        assert_eq!(seen, "yes", "{plural}");
    }
    // The account does what it is for, and nothing else.
    let reader = client_as(&installed.server, &namespace, &name).await;
    let named = ResourceAttributes {
        resource: Some("secrets".to_owned()),
        name: Some("tls-libvirt-hv1".to_owned()),
        namespace: Some(namespace.clone()),
        verb: Some("get".to_owned()),
        ..ResourceAttributes::default()
    };
    until_allowed(&reader, &named).await;
    let secrets = installed.api(&reader, "secrets");
    for (secret, seen) in [("tls-libvirt-hv1", None), ("tls-libvirt-hv2", Some("rbac"))] {
        let answer = secrets.get_opt(secret).await;
        match seen {
            None => assert!(matches!(answer, Ok(None)), "{secret}"),
            Some(seen) => assert_eq!(outcome(answer), seen, "{secret}"),
        }
    }

    // More than it has itself it cannot give, whatever the policy says.
    for (what, rule) in [
        (
            "to write",
            json!({ "apiGroups": [""], "resources": ["secrets"], "verbs": ["update"],
                "resourceNames": ["tls-libvirt-hv1"] }),
        ),
        (
            "to run",
            json!({ "apiGroups": [""], "resources": ["pods"], "verbs": ["create"] }),
        ),
    ] {
        let seen = installed
            .apply_as_operator("roles", &name, &json!({ "rules": [rule] }))
            .await;
        assert!(
            ["escalation", "own-readers"].contains(&seen.as_str()),
            "{what}: {seen}"
        );
    }
    // What it has it gives in this one form only.
    for (what, plural, at, body) in [
        ("another name", "roles", "reader", role.clone()),
        ("another name", "serviceaccounts", "reader", json!({})),
        ("no node", "roles", "agent-secrets", role.clone()),
        ("all Secrets", "roles", &name, reader_role(&[])),
        (
            "another node's",
            "roles",
            &name,
            reader_role(&["tls-libvirt-hv2"]),
        ),
        (
            "the credentials of OpenStack",
            "roles",
            &name,
            reader_role(&["tls-libvirt-hv1", "hypervisor-operator-openstack"]),
        ),
        (
            "somebody else",
            "rolebindings",
            &name,
            reader_binding(&name, "default", &namespace),
        ),
        (
            "another place",
            "rolebindings",
            &name,
            reader_binding(&name, &name, "default"),
        ),
        (
            "another Role",
            "rolebindings",
            &format!("{PREFIX}hv2"),
            reader_binding(&name, &format!("{PREFIX}hv2"), &namespace),
        ),
    ] {
        let seen = installed.apply_as_operator(plural, at, &body).await;
        assert_eq!(seen, "own-readers", "{what}");
    }
    // Nor does it take away what is not its own.
    let foreign = installed.apply_as_admin("roles", "foreign", &role).await;
    assert_eq!(foreign, "yes");
    let roles = installed.api(&installed.operator, "roles");
    let params = DeleteParams::default();
    assert_eq!(
        outcome(roles.delete("foreign", &params).await),
        "own-readers"
    );
    assert_eq!(outcome(roles.delete(&name, &params).await), "yes");
}

#[tokio::test]
async fn who_may_not_read_secrets_cannot_let_others_read_them() {
    // Why the operator has to have that right itself.
    let installed = Installed::with("escalation", false).await;
    let rule = json!({
        "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"],
        "verbs": ["create", "get", "patch"],
    });
    let role = json!({
        "kind": "Role", "metadata": { "namespace": installed.namespace }, "rules": [rule],
    });
    let binding = reader_binding("writer", "writer", &installed.namespace);
    for (plural, body) in [("roles", &role), ("rolebindings", &binding)] {
        let made = installed.apply_as_admin(plural, "writer", body).await;
        assert_eq!(made, "yes");
    }
    let writer = client_as(&installed.server, &installed.namespace, "writer").await;
    until_in_force(&writer, &[role]).await;
    let named = reader_role(&["tls-libvirt-hv1"]);
    let seen = installed
        .apply_as(&writer, "roles", "reader", &named, false)
        .await;
    assert_eq!(seen, "escalation");
}

/// A Deployment that holds a node, as the operator makes it.
fn holder(name: &str) -> Value {
    json!({
        "metadata": { "labels": { labels::MAINTENANCE_CONTROLLER: name } },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": { labels::MAINTENANCE_CONTROLLER: name } },
            "template": {
                "metadata": { "labels": { labels::MAINTENANCE_CONTROLLER: name } },
                "spec": {
                    "hostNetwork": true,
                    "automountServiceAccountToken": false,
                    "terminationGracePeriodSeconds": 1,
                    "tolerations": [{ "effect": "NoExecute", "operator": "Exists" }],
                    "containers": [{
                        "name": "sleep", "image": IMAGE, "command": ["sleep", "inf"],
                        "securityContext": { "capabilities": { "drop": ["ALL"] } },
                        "startupProbe": { "exec": { "command": ["true"] } },
                    }],
                },
            },
        },
    })
}

#[tokio::test]
async fn the_operators_deployments_are_pods_that_do_nothing() {
    let installed = Installed::with("holders", true).await;
    installed.until_policy_holds().await;
    let name = "maint-hv1";
    assert_eq!(
        installed
            .apply_as_operator("deployments", name, &holder(name))
            .await,
        "yes"
    );
    let budget = json!({
        "metadata": { "labels": { labels::MAINTENANCE_CONTROLLER: name } },
        "spec": { "minAvailable": 1,
            "selector": { "matchLabels": { labels::MAINTENANCE_CONTROLLER: name } } },
    });
    let plural = "poddisruptionbudgets";
    assert_eq!(
        installed.apply_as_operator(plural, name, &budget).await,
        "yes"
    );

    // Each would be a way to more rights: an account of that namespace, the host, its Secrets.
    let pod = "/spec/template/spec";
    for (what, at, value) in [
        (
            "another account",
            format!("{pod}/serviceAccountName"),
            json!("admin"),
        ),
        (
            "another image",
            format!("{pod}/containers/0/image"),
            json!("evil:1"),
        ),
        (
            "the host's processes",
            format!("{pod}/hostPID"),
            json!(true),
        ),
        (
            "the host's files",
            format!("{pod}/volumes"),
            json!([{ "name": "host", "hostPath": { "path": "/" } }]),
        ),
        (
            "all of the host",
            format!("{pod}/containers/0/securityContext"),
            json!({ "privileged": true }),
        ),
        (
            "capabilities",
            format!("{pod}/containers/0/securityContext"),
            json!({ "capabilities": { "add": ["SYS_ADMIN"] } }),
        ),
        (
            "a Secret",
            format!("{pod}/containers/0/env"),
            json!([{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }]),
        ),
        (
            "all of a Secret",
            format!("{pod}/containers/0/envFrom"),
            json!([{ "secretRef": { "name": "s" } }]),
        ),
        (
            "another container",
            format!("{pod}/initContainers"),
            json!([{ "name": "a", "image": "evil:1" }]),
        ),
    ] {
        let mut body = holder(name);
        let (parent, field) = at.rsplit_once('/').unwrap();
        body.pointer_mut(parent).unwrap()[field] = value;
        let seen = installed
            .apply_as_operator("deployments", name, &body)
            .await;
        assert_eq!(seen, "own-lifecycle", "{what}");
    }
    // The others' Deployments of that namespace stay as they are.
    let with_label = |name: &str, label: &str| {
        let mut body = holder(name);
        body["metadata"]["labels"] = json!({ label: "yes" });
        body
    };
    for (name, body) in [
        ("coredns", holder("coredns")),
        (name, with_label(name, "app")),
    ] {
        let seen = installed
            .apply_as_operator("deployments", name, &body)
            .await;
        assert_eq!(seen, "own-lifecycle", "{name}");
    }
    let foreign = with_label("coredns", "app");
    let made = installed
        .apply_as_admin("deployments", "coredns", &foreign)
        .await;
    assert_eq!(made, "yes");
    let api = installed.api(&installed.operator, "deployments");
    let params = DeleteParams::default();
    assert_eq!(
        outcome(api.delete("coredns", &params).await),
        "own-lifecycle"
    );
    assert_eq!(outcome(api.delete(name, &params).await), "yes");
}

#[tokio::test]
async fn without_an_image_what_was_made_before_is_removed_and_nothing_is_made() {
    let installed = Installed::with("off", false).await;
    installed.until_policy_holds().await;
    let name = "maint-hv1";
    let seen = installed
        .apply_as_operator("deployments", name, &holder(name))
        .await;
    assert_eq!(seen, "rbac");
    let made = installed
        .apply_as_admin("deployments", name, &holder(name))
        .await;
    assert_eq!(made, "yes");
    let api = installed.api(&installed.operator, "deployments");
    assert_eq!(
        outcome(api.delete(name, &DeleteParams::default()).await),
        "yes"
    );
    let role = reader_role(&["tls-libvirt-hv1"]);
    let seen = installed
        .apply_as_operator("roles", &format!("{PREFIX}hv1"), &role)
        .await;
    assert_eq!(seen, "rbac");
}

#[tokio::test]
async fn of_a_node_the_operator_writes_its_own_taint_only() {
    let installed = Installed::with("taints", true).await;
    installed.until_policy_holds().await;
    let name = format!("operator-taints-{}", std::process::id());
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": { labels::VIRT_DRIVER: "libvirt" } },
        "spec": { "taints": [{ "key": "foreign", "effect": "NoSchedule" }] },
    });
    installed.apply(&[node]);
    let api = installed.api(&installed.operator, "nodes");
    let patch = async |operations: Value| {
        let operations = serde_json::from_value(operations).unwrap();
        let patch: Patch<()> = Patch::Json(operations);
        outcome(api.patch(&name, &PatchParams::default(), &patch).await)
    };
    let own = json!({ "key": taints::OFFBOARDING, "effect": "NoExecute" });
    let add = |path: &str, value: Value| json!([{ "op": "add", "path": path, "value": value }]);
    assert_eq!(patch(add("/spec/taints/-", own.clone())).await, "yes");
    for (what, operations) in [
        (
            "another taint",
            add(
                "/spec/taints/-",
                json!({ "key": "a", "effect": "NoExecute" }),
            ),
        ),
        (
            "without the other's taint",
            add("/spec/taints", json!([own])),
        ),
        ("a label", add("/metadata/labels/a", json!("b"))),
        (
            "an annotation",
            add("/metadata/annotations", json!({ "a": "b" })),
        ),
        (
            "a finalizer",
            add("/metadata/finalizers", json!(["example.com/a"])),
        ),
        ("out of service", add("/spec/unschedulable", json!(true))),
    ] {
        assert_eq!(patch(operations).await, "own-taint", "{what}");
    }
    // The API server may have put taints of its own before it.
    let node = api.get(&name).await.unwrap();
    let taints = node.data["spec"]["taints"].as_array().unwrap().clone();
    let place = taints
        .iter()
        .position(|taint| taint["key"] == taints::OFFBOARDING);
    let remove = format!("/spec/taints/{}", place.unwrap());
    assert_eq!(
        patch(json!([{ "op": "remove", "path": remove }])).await,
        "yes"
    );
    let after = api.get(&name).await.unwrap();
    assert_eq!(
        after.data["spec"]["taints"].as_array().unwrap().len(),
        taints.len() - 1
    );
    assert_eq!(after.name_any(), name);
    let admin = installed.api(&installed.admin, "nodes");
    admin.delete(&name, &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn the_operators_certificates_are_those_of_libvirt() {
    let installed = Installed::with("certificates", true).await;
    installed.until_policy_holds().await;
    // As the operator makes it.
    let node = json!({ "metadata": {
        "name": "hv1", "uid": "u", "labels": { labels::VIRT_DRIVER: "kvm" },
    } });
    let config = objects_config(&installed.namespace);
    let host = Hypervisor::new("hv1", HypervisorSpec::default());
    let node = serde_json::from_value(node).unwrap();
    let all = wanted(&node, Some(&host), &config).apply;
    let mut all = all.into_iter();
    let made = all.find(|object| object.key.kind == Kind::Certificate);
    let made = made.unwrap().content;
    let mut wrong = Vec::new();
    for row in threat_model_table("operator-fields").unwrap() {
        let [plural, _, field, text, expected] = row.as_slice() else {
            panic!("{row:?}");
        };
        let mut body = made.clone();
        let mut place = &mut body;
        for name in field.split('/').skip(1) {
            place = &mut place[name];
        }
        *place = serde_json::from_str(text).unwrap();
        let name = body["metadata"]["name"].as_str().unwrap().to_owned();
        let seen = installed.apply_as_operator(plural, &name, &body).await;
        if seen != *expected {
            wrong.push(format!("{field} {text}: {seen}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What the operator is told by its chart.
fn objects_config(namespace: &str) -> ObjectsConfig {
    ObjectsConfig {
        certificate: Some(CertificateConfig {
            namespace: namespace.to_owned(),
            issuer_name: "nova-hypervisor-agents-ca-issuer".to_owned(),
        }),
        access: Some(AccessConfig {
            namespace: namespace.to_owned(),
            prefix: PREFIX.to_owned(),
            ceph_secret: None,
        }),
        lifecycle: LifecycleConfig {
            namespace: format!("{namespace}-lifecycle"),
            pod: None,
        },
    }
}

/// The token of the agent's pod on a node, which the kubelet would mount.
async fn agent_on(installed: &Installed, node: &str) -> Client {
    let pods: Api<Pod> = Api::namespaced(installed.admin.clone(), &installed.namespace);
    let pod = json!({
        "metadata": { "name": node },
        "spec": {
            "nodeName": node, "serviceAccountName": "agent",
            "containers": [{ "name": "agent", "image": "none" }],
        },
    });
    let pod = serde_json::from_value(pod).unwrap();
    let pod = pods.create(&PostParams::default(), &pod).await.unwrap();
    let bound = json!({ "spec": { "audiences": [], "boundObjectRef": {
        "apiVersion": "v1", "kind": "Pod", "name": node, "uid": pod.uid(),
    } } });
    let token = token(installed, &installed.admin, "agent", bound)
        .await
        .unwrap();
    client_with_token(installed, token).await
}

async fn token(
    installed: &Installed,
    client: &Client,
    account: &str,
    request: Value,
) -> kube::Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &installed.namespace);
    let request: TokenRequest = serde_json::from_value(request).unwrap();
    let params = PostParams::default();
    let answer = accounts.create_token_request(account, &params, &request);
    Ok(answer.await?.status.unwrap().token.unwrap())
}

async fn client_with_token(installed: &Installed, token: String) -> Client {
    let file = kube::config::Kubeconfig::read_from(&installed.server.kubeconfig).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(file, &options);
    let mut config = config.await.unwrap();
    config.auth_info = kube::config::AuthInfo {
        token: Some(token.into()),
        ..Default::default()
    };
    Client::try_from(config).unwrap()
}

#[tokio::test]
async fn without_a_list_of_nodes_agents_read_their_secrets_with_the_accounts_of_the_operator() {
    let installed = Installed::with("charts", true).await;
    installed.until_policy_holds().await;
    let namespace = installed.namespace.clone();
    // The other chart, beside it and without `nodes`.
    let settings = [
        "fullnameOverride=\"agent\"",
        "tls={\"enabled\":true}",
        "lease={\"createNamespace\":false}",
    ];
    let chart = "charts/node-agent";
    let mut objects =
        render_chart(&installed.server, chart, "agent", &namespace, &settings).unwrap();
    objects.retain(|object| object["kind"] != "DaemonSet");
    installed.apply(&objects);
    let [a, b] = ["a", "b"].map(|node| format!("charts-{node}-{}", std::process::id()));
    for node in [&a, &b] {
        let object = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": node, "labels": { labels::VIRT_DRIVER: "kvm" } },
        });
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": format!("tls-libvirt-{node}"), "namespace": namespace },
        });
        installed.apply(&[object, secret]);
        // With the rights that its chart gives it, the operator makes the accounts.
        let nodes: Api<Node> = Api::all(installed.operator.clone());
        let object = nodes.get(node).await.unwrap();
        let config = objects_config(&namespace);
        let found = difference(&wanted(&object, None, &config), &Observed::default());
        for change in &found.changes {
            act(&installed.operator, change, Duration::from_secs(30))
                .await
                .unwrap();
        }
    }
    let agent = agent_on(&installed, &a).await;
    let account = |node: &str| format!("{PREFIX}{node}");
    // The API server learns of Roles and policies a moment later, and tells nobody when.
    let begun = Instant::now();
    let ask = async |account: String| {
        outcome(
            token(
                &installed,
                &agent,
                &account,
                json!({ "spec": { "audiences": [] } }),
            )
            .await,
        )
    };
    loop {
        let seen = ask(account(&b)).await;
        if seen == "own-token" {
            break;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "a token of another node: {seen}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for other in [RELEASE, "agent", "default"] {
        let seen = ask(other.to_owned()).await;
        let refused = ["own-token", "rbac"].contains(&seen.as_str());
        // The operator's and the agents' own account are here; "default" needs a controller.
        assert!(refused || seen.contains("not found"), "{other}: {seen}");
    }
    let request = json!({ "spec": { "audiences": [] } });
    let own = token(&installed, &agent, &account(&a), request)
        .await
        .unwrap();
    let reader = client_with_token(&installed, own).await;
    let secrets = installed.api(&reader, "secrets");
    let own = format!("tls-libvirt-{a}");
    while outcome(secrets.get(&own).await) != "yes" {
        assert!(begun.elapsed() < Duration::from_secs(120), "not readable");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let other = format!("tls-libvirt-{b}");
    assert_eq!(outcome(secrets.get(&other).await), "rbac");
    assert_eq!(outcome(secrets.list(&ListParams::default()).await), "rbac");
    let admin = installed.api(&installed.admin, "nodes");
    for node in [&a, &b] {
        admin.delete(node, &DeleteParams::default()).await.unwrap();
    }
}

/// Stands in for cert-manager's definition: its group and names, no checks, and a default. All tests of
/// this crate install the same one, because they share the API server.
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
        openAPIV3Schema:
          type: object
          properties:
            spec:
              type: object
              properties: { revisionHistoryLimit: { type: integer, default: 1 } }
              x-kubernetes-preserve-unknown-fields: true
          x-kubernetes-preserve-unknown-fields: true
"#;
