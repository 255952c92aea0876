//! The chart: what it renders, what it refuses, what its alerts see, and what its rights are.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cobalt_api::names::{labels, taints};
use cobalt_lab::testing::{ApiServer, promtool, threat_model_table};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::support::server;

fn repository(below: &str) -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).unwrap().join(below)
}

/// Runs a program to its end: what it printed, or what it complained about.
fn run(program: &Path, arguments: &[&str], input: &str) -> Result<String, String> {
    use std::io::Write;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    // Who does not read it has closed the pipe, and its exit status tells the rest.
    drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

/// Renders the chart as a release.
fn render(
    server: &ApiServer,
    release: &str,
    namespace: &str,
    settings: &[&str],
) -> Result<String, String> {
    let chart = repository("charts/ovs-agent");
    let mut arguments = vec!["template", release, chart.to_str().unwrap()];
    arguments.extend(["--namespace", namespace]);
    for setting in settings {
        // JSON keeps types as they are written.
        arguments.extend(["--set-json", setting]);
    }
    run(&server.bin.join("helm"), &arguments, "")
}

fn kubectl(server: &ApiServer, arguments: &[&str], input: &str) -> String {
    let config = format!("--kubeconfig={}", server.kubeconfig.display());
    let all = [&[config.as_str()], arguments].concat();
    run(&server.bin.join("kubectl"), &all, input).unwrap()
}

/// The DaemonSet of a release, checked and completed by the API server, which keeps nothing.
fn daemon_set(server: &ApiServer, settings: &[&str]) -> Value {
    let rendered = render(server, "ovs-agent", "default", settings).unwrap();
    let mut documents = rendered.split("\n---\n");
    let only = documents.find(|document| document.contains("kind: DaemonSet"));
    let arguments = [
        "apply",
        "--server-side",
        "--dry-run=server",
        "-o=json",
        "-f=-",
    ];
    serde_json::from_str(&kubectl(server, &arguments, only.unwrap())).unwrap()
}

/// An environment variable of the agent.
fn value_of<'a>(set: &'a Value, name: &str) -> &'a Value {
    let env = &set["spec"]["template"]["spec"]["containers"][0]["env"];
    let mut all = env.as_array().unwrap().iter();
    all.find(|variable| variable["name"] == name)
        .unwrap_or(&Value::Null)
}

#[tokio::test]
async fn the_chart_has_the_version_of_the_agent_and_no_lint() {
    let (server, _) = server().await;
    let chart = repository("charts/ovs-agent");
    let folder = chart.to_str().unwrap();
    run(&server.bin.join("helm"), &["lint", "--strict", folder], "").unwrap();
    let text = std::fs::read_to_string(chart.join("Chart.yaml")).unwrap();
    for field in ["version", "appVersion"] {
        let line = format!("\n{field}: {}\n", env!("CARGO_PKG_VERSION"));
        assert!(text.contains(&line), "{text}");
    }
}

#[tokio::test]
async fn the_defaults_are_accepted_and_give_the_agent_no_more_than_it_needs() {
    let (server, _) = server().await;
    let set = daemon_set(server, &[]);
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let image = format!(
        "cobaltcore.dev/cobalt-ovs-agent:{}",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(container["image"], image);
    assert!(pod["hostNetwork"] == true && pod["hostPID"].is_null());
    let rights = &container["securityContext"];
    // Those of captures.
    assert_eq!(
        rights["capabilities"],
        json!({ "drop": ["ALL"], "add": ["NET_RAW", "NET_ADMIN"] })
    );
    assert_eq!(rights["readOnlyRootFilesystem"], true);
    assert_eq!(rights["allowPrivilegeEscalation"], false);
    assert_eq!(rights["privileged"], false);
    let mounts = container["volumeMounts"].as_array().unwrap();
    assert!(
        mounts.iter().all(|mount| mount["readOnly"] == true),
        "{mounts:?}"
    );
    assert_eq!(mounts.len(), 3);
    // On a network that others are on, health is for the node alone.
    assert_eq!(
        value_of(&set, "HEALTH_PROBE_BIND_ADDRESS")["value"],
        "127.0.0.1:8082"
    );
    assert_eq!(container["livenessProbe"]["httpGet"]["host"], "127.0.0.1");
    assert_eq!(value_of(&set, "DIAGNOSTICS_BIND_ADDRESS")["value"], ":9476");
    let field = &value_of(&set, "NODE_IP")["valueFrom"]["fieldRef"]["fieldPath"];
    assert_eq!(*field, "status.hostIP");
    let tolerated: BTreeSet<&str> = pod["tolerations"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|toleration| toleration["key"].as_str())
        .collect();
    let wanted = [taints::OFFBOARDING, taints::CRITICAL_COMPONENTS_NOT_READY];
    assert_eq!(tolerated, BTreeSet::from(wanted));
    let terms = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let expression = &terms["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!(expression["key"], labels::VIRT_DRIVER);
}

#[tokio::test]
async fn values_change_what_they_say_and_every_variable_is_one_that_the_agent_reads() {
    let (server, _) = server().await;
    let settings = [
        "socketGroup=108",
        "hostNetwork=false",
        "readiness=\"complete\"",
        "ovn={\"tlsSecretName\":\"ovn\",\"verifyHost\":true,\"staleFlows\":false}",
        "image={\"registry\":\"r.example:5000\",\"tag\":\"9\"}",
    ];
    let set = daemon_set(server, &settings);
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(pod["securityContext"]["runAsUser"], 65532);
    assert_eq!(pod["securityContext"]["supplementalGroups"], json!([108]));
    assert!(pod["hostNetwork"].is_null());
    assert_eq!(container["image"], "r.example:5000/cobalt-ovs-agent:9");
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");
    assert_eq!(
        value_of(&set, "HEALTH_PROBE_BIND_ADDRESS")["value"],
        ":8082"
    );
    assert_eq!(value_of(&set, "SKIP_STALE_FLOWS")["value"], "true");
    // Captures are not possible: the capabilities would be for nothing.
    let no_more = json!({ "drop": ["ALL"] });
    assert_eq!(container["securityContext"]["capabilities"], no_more);
    let field = &value_of(&set, "NODE_IP")["valueFrom"]["fieldRef"]["fieldPath"];
    assert_eq!(*field, "status.podIP");
    let agent = Path::new(env!("CARGO_BIN_EXE_cobalt-ovs-agent"));
    let help = run(agent, &["--help"], "").unwrap();
    let env = container["env"].as_array().unwrap();
    assert!(env.len() > 12, "{env:?}");
    for name in env.iter().filter_map(|variable| variable["name"].as_str()) {
        assert!(help.contains(&format!("[env: {name}")), "{name}: {help}");
    }
}

#[tokio::test]
async fn captures_and_diagnostics_can_be_left_out() {
    let (server, _) = server().await;
    let capabilities = |set: &Value| {
        set["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilities"].clone()
    };
    for setting in [
        "diagnostics={\"capture\":false}",
        "diagnostics={\"enabled\":false}",
        "hostNetwork=false",
        "socketGroup=108",
    ] {
        let set = daemon_set(server, &[setting]);
        assert_eq!(capabilities(&set), json!({ "drop": ["ALL"] }), "{setting}");
    }
    let off = ["diagnostics={\"enabled\":false}"];
    let set = daemon_set(server, &off);
    assert_eq!(value_of(&set, "DIAGNOSTICS_BIND_ADDRESS")["value"], "0");
    let all = render(server, "ovs-agent", "default", &off).unwrap();
    assert!(!all.contains("tokenreviews") && !all.contains("cobalt-ovs-diagnostics"));
}

#[tokio::test]
async fn settings_are_a_config_map_so_that_no_agent_is_restarted() {
    let (server, _) = server().await;
    let render = |settings: &[&str]| render(server, "a", "default", settings).unwrap();
    let documents =
        |text: &str| -> BTreeSet<String> { text.split("\n---\n").map(str::to_owned).collect() };
    let before = documents(&render(&[]));
    let after = documents(&render(&["settings={\"port-grace\":\"2m\"}"]));
    let changed: Vec<&String> = after.difference(&before).collect();
    assert_eq!(changed.len(), 1, "{changed:#?}");
    assert!(changed[0].contains("kind: ConfigMap") && changed[0].contains("port-grace: \"2m\""));
    // Each of them is a flag of the agent.
    let agent = Path::new(env!("CARGO_BIN_EXE_cobalt-ovs-agent"));
    let help = run(agent, &["--help"], "").unwrap();
    let (_, data) = changed[0].split_once("\ndata:\n").unwrap();
    let names = data.lines().filter_map(|line| line.split_once(':'));
    let names: Vec<&str> = names.map(|(name, _)| name.trim()).collect();
    assert_eq!(names.len(), 6);
    for name in names {
        assert!(help.contains(&format!("--{name} <")), "{name}: {help}");
    }
}

#[tokio::test]
async fn bad_values_are_refused_with_the_place_and_the_reason() {
    let (server, _) = server().await;
    for (setting, place, reason) in [
        ("imgae={}", "'imgae'", "not allowed"),
        ("image={\"tag\":\"a b\"}", "/image/tag", "pattern"),
        ("socketGroup=\"ovs\"", "/socketGroup", "want integer"),
        ("hostNetwork=\"yes\"", "/hostNetwork", "want boolean"),
        ("readiness=\"maybe\"", "/readiness", "one of"),
        ("ovs={\"runFolder\":\"/\"}", "/ovs/runFolder", "pattern"),
        ("ovn={\"tls\":true}", "'tls'", "not allowed"),
        (
            "settings={\"port-grace\":\"30\"}",
            "/settings/port-grace",
            "pattern",
        ),
        (
            "settings={\"patience\":\"30s\"}",
            "'patience'",
            "not allowed",
        ),
        ("metrics={\"port\":0}", "/metrics/port", "minimum"),
        (
            "diagnostics={\"captureMaxSeconds\":0}",
            "/diagnostics/captureMaxSeconds",
            "minimum",
        ),
    ] {
        let refused = render(server, "a", "default", &[setting]).unwrap_err();
        assert!(
            refused.contains(place) && refused.contains(reason),
            "{setting}: {refused}"
        );
    }
}

#[tokio::test]
async fn the_alerts_fire_when_they_should_and_only_then() {
    let (server, _) = server().await;
    let plain = render(server, "a", "default", &[]).unwrap();
    assert!(!plain.contains("monitoring.coreos.com"));
    let settings = [
        "podMonitor={\"enabled\":true}",
        "alerts={\"enabled\":true,\"ruleLabels\":{\"team\":\"network\"}}",
    ];
    let all = render(server, "a", "default", &settings).unwrap();
    assert!(all.contains("kind: PodMonitor") && all.contains("kind: PrometheusRule"));
    assert_eq!(
        all.matches("team: network").count(),
        all.matches("- alert: ").count()
    );

    let tool = promtool().await.unwrap();
    let rules = repository("charts/ovs-agent/files/alerts.yaml");
    run(&tool, &["check", "rules", rules.to_str().unwrap()], "").unwrap();
    let tests = repository("charts/ovs-agent/tests/alerts.yaml");
    run(&tool, &["test", "rules", tests.to_str().unwrap()], "").unwrap();
    // Every metric is one of the agent's.
    let source = ["src/scrape.rs", "src/metrics.rs"]
        .map(|file| repository("agents/ovs").join(file))
        .map(|path| std::fs::read_to_string(path).unwrap())
        .concat();
    let rules = std::fs::read_to_string(rules).unwrap();
    let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names: BTreeSet<&str> = words
        .filter(|word| {
            ["cobalt_ovs_agent_", "ovs_", "ovn_"]
                .iter()
                .any(|p| word.starts_with(p))
        })
        .collect();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        let own = name.strip_suffix("_total").unwrap_or(name);
        let own = own.strip_prefix("cobalt_ovs_agent_").unwrap_or(own);
        let known = source.contains(&format!("{own}\""));
        assert!(known, "no metric {name}");
    }
}

/// Sets the field at a JSON pointer, and makes what is missing on the way.
fn set(object: &mut Value, pointer: &str, value: Value) {
    let mut place = object;
    for name in pointer.split('/').skip(1) {
        place = &mut place[name];
    }
    *place = value;
}

struct Fleet {
    server: &'static ApiServer,
    admin: Client,
    namespace: String,
    nodes: [String; 2],
}

const RELEASE: &str = "ovs-agent";

impl Fleet {
    async fn install() -> Self {
        let (server, admin) = server().await;
        let process = std::process::id();
        let fleet = Self {
            server,
            admin,
            namespace: format!("ovs-rights-{process}"),
            nodes: ["a", "b"].map(|node| format!("ovs-rights-{node}-{process}")),
        };
        let namespace = &fleet.namespace;
        fleet.apply(&format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}"
        ));
        let chart = render(server, RELEASE, namespace, &[]).unwrap();
        // Nobody runs pods here.
        let chart: Vec<&str> = chart
            .split("\n---\n")
            .filter(|document| !document.contains("kind: DaemonSet"))
            .collect();
        fleet.apply(&chart.join("\n---\n"));
        for node in &fleet.nodes {
            for kind in ["nodes", "pods", "ovsnodes", "events"] {
                let object = fleet.object(kind, node);
                let api = fleet.api(&fleet.admin, kind);
                api.create(&PostParams::default(), &object).await.unwrap();
            }
        }
        fleet
    }

    fn apply(&self, manifests: &str) {
        let arguments = ["apply", "--server-side", "--force-conflicts", "-f=-"];
        kubectl(self.server, &arguments, manifests);
    }

    async fn client_with(&self, pod: Option<&str>) -> Client {
        let bound = match pod {
            Some(node) => {
                let pods: Api<Pod> = Api::namespaced(self.admin.clone(), &self.namespace);
                let pod = pods.get(node).await.unwrap();
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
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin.clone(), &self.namespace);
        let params = PostParams::default();
        let answer = accounts.create_token_request(RELEASE, &params, &request);
        let token = answer.await.unwrap().status.unwrap().token.unwrap();
        let file = kube::config::Kubeconfig::read_from(&self.server.kubeconfig).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(file, &options).await;
        let mut config = config.unwrap();
        config.auth_info = kube::config::AuthInfo {
            token: Some(token.into()),
            ..Default::default()
        };
        Client::try_from(config).unwrap()
    }

    fn api(&self, client: &Client, plural: &str) -> Api<DynamicObject> {
        let (group, version, kind, namespaced) = match plural {
            "ovsnodes" => ("ovs.c5c3.io", "v1alpha1", "OVSNode", true),
            "events" => ("events.k8s.io", "v1", "Event", true),
            "secrets" => ("", "v1", "Secret", true),
            "pods" => ("", "v1", "Pod", true),
            "nodes" => ("", "v1", "Node", false),
            other => panic!("no kind {other}"),
        };
        let kind = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, plural);
        if namespaced {
            Api::namespaced_with(client.clone(), &self.namespace, &resource)
        } else {
            Api::all_with(client.clone(), &resource)
        }
    }

    fn object(&self, kind: &str, node: &str) -> DynamicObject {
        let mut object = json!({ "metadata": { "name": node } });
        let (version, name) = match kind {
            "ovsnodes" => {
                object["spec"] = json!({ "nodeRef": { "name": node } });
                ("ovs.c5c3.io/v1alpha1", "OVSNode")
            }
            "events" => {
                object = json!({
                    "metadata": { "name": format!("{node}.1"), "namespace": self.namespace },
                    "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "Test",
                    "action": "Test", "reportingController": "cobalt-ovs-agent",
                    "reportingInstance": node,
                    "regarding": {
                        "apiVersion": "ovs.c5c3.io/v1alpha1", "kind": "OVSNode", "name": node,
                        "namespace": self.namespace,
                    },
                });
                ("events.k8s.io/v1", "Event")
            }
            "pods" => {
                object["spec"] = json!({
                    "nodeName": node,
                    "serviceAccountName": RELEASE,
                    "containers": [{ "name": "agent", "image": "none" }],
                });
                ("v1", "Pod")
            }
            _ => ("v1", "Node"),
        };
        object["apiVersion"] = version.into();
        object["kind"] = name.into();
        serde_json::from_value(object).unwrap()
    }

    /// Tries a verb on a node's object; nothing is kept.
    async fn attempt(&self, client: &Client, kind: &str, verb: &str, node: &str) -> String {
        let api = self.api(client, kind);
        let mut object = self.object(kind, node);
        let dry_run = true;
        let post = PostParams {
            dry_run,
            ..PostParams::default()
        };
        let apply = PatchParams {
            dry_run,
            ..PatchParams::apply("test").force()
        };
        match verb {
            "get" => outcome(api.get(node).await),
            "list" => outcome(api.list(&ListParams::default()).await),
            "create" => outcome(api.create(&post, &object).await),
            "apply" => outcome(api.patch(node, &apply, &Patch::Apply(&object)).await),
            // Another name, for the same node.
            "alias" => {
                let name = format!("{node}-alias");
                object.metadata.name = Some(name.clone());
                outcome(api.patch(&name, &apply, &Patch::Apply(&object)).await)
            }
            // The same name, for another node.
            "pretend" => {
                object.data["spec"]["nodeRef"]["name"] = "other".into();
                outcome(api.patch(node, &apply, &Patch::Apply(&object)).await)
            }
            "status" => {
                object.data = json!({ "status": { "ovsVersion": "1" } });
                outcome(api.patch_status(node, &apply, &Patch::Apply(&object)).await)
            }
            "delete" => {
                let delete = DeleteParams {
                    dry_run,
                    ..DeleteParams::default()
                };
                outcome(api.delete(&object.name_any(), &delete).await)
            }
            other => panic!("no verb {other}"),
        }
    }

    /// Who may ask an agent, and who may ask for a token to do so.
    fn check_diagnostics(&self) {
        let namespace = &self.namespace;
        let agents = format!("system:serviceaccount:{namespace}:{RELEASE}");
        let asker = format!("system:serviceaccount:{namespace}:cobalt-ovs-diagnostics");
        let person = "somebody".to_owned();
        self.apply(&format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata:\n  \
             name: {person}\n  namespace: {namespace}\nroleRef:\n  \
             apiGroup: rbac.authorization.k8s.io\n  kind: Role\n  \
             name: cobalt-ovs-diagnostics-user\nsubjects:\n  - kind: User\n    name: {person}\n"
        ));
        let config = format!("--kubeconfig={}", self.server.kubeconfig.display());
        let may = |who: &str, what: &[&str]| {
            let who = format!("--as={who}");
            let begin = [
                config.as_str(),
                "auth",
                "can-i",
                "-q",
                "-n",
                namespace,
                &who,
            ];
            let program = self.server.bin.join("kubectl");
            run(&program, &[&begin[..], what].concat(), "").is_ok()
        };
        let get = ["get", "ovsnodes.ovs.c5c3.io", "--subresource=diagnostics"];
        let create = [
            "create",
            "ovsnodes.ovs.c5c3.io",
            "--subresource=diagnostics",
        ];
        let write = ["patch", "ovsnodes.ovs.c5c3.io", "--subresource=status"];
        let own = [
            "create",
            "serviceaccounts/cobalt-ovs-diagnostics",
            "--subresource=token",
        ];
        let other = [
            "create",
            &format!("serviceaccounts/{RELEASE}"),
            "--subresource=token",
        ];
        let find = ["get", "ovsnodes.ovs.c5c3.io"];
        let review = ["create", "tokenreviews.authentication.k8s.io"];
        let begun = Instant::now();
        // The API server learns of a binding a moment after it was made.
        while !may(&person, &find) {
            assert!(begun.elapsed() < Duration::from_secs(60), "no right");
        }
        for (who, what, allowed) in [
            (&asker, &get[..], true),
            (&asker, &create, true),
            (&asker, &write, false),
            (&asker, &own, false),
            (&asker, &review, false),
            (&person, &find, true),
            (&person, &own, true),
            (&person, &other, false),
            (&person, &get, false),
            (&agents, &review, true),
            (&agents, &create, false),
        ] {
            assert_eq!(may(who, what), allowed, "{who}: {what:?}");
        }
    }

    async fn check(&self, client: &Client, columns: [usize; 2]) {
        let mut wrong = Vec::new();
        for row in threat_model_table("ovs-agent").unwrap() {
            for (node, column) in self.nodes.iter().zip(columns) {
                let seen = self.attempt(client, &row[0], &row[1], node).await;
                if seen != row[column] {
                    wrong.push(format!("{} {} of {node}: {seen}", row[1], row[0]));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Tries to write one field of A's objects, row by row; nothing is kept.
    async fn check_fields(&self, client: &Client) {
        let [a, b] = &self.nodes;
        let mut wrong = Vec::new();
        for row in threat_model_table("ovs-agent-fields").unwrap() {
            let [kind, verb, field, text, wanted] = row.as_slice() else {
                panic!("{row:?}");
            };
            let long = "x".repeat(2000);
            let value = text.replace("NODE", a).replace("OTHER", b);
            let value = value.replace("LONG", &long);
            let value: Value = serde_json::from_str(&value).unwrap();
            let api = self.api(client, kind);
            let object = self.object(kind, a);
            let seen = if verb == "create" {
                let mut object = serde_json::to_value(object).unwrap();
                set(&mut object, field, value);
                let object = serde_json::from_value(object).unwrap();
                let params = PostParams {
                    dry_run: true,
                    ..PostParams::default()
                };
                outcome(api.create(&params, &object).await)
            } else {
                let mut content = json!({});
                set(&mut content, field, value);
                let params = PatchParams {
                    dry_run: true,
                    ..PatchParams::default()
                };
                let patch = Patch::Merge(content);
                outcome(api.patch(&object.name_any(), &params, &patch).await)
            };
            if seen != *wanted {
                wrong.push(format!(
                    "{verb} {kind} {field} {text}: {seen}, not {wanted}"
                ));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// In one word: `yes`, `rbac`, the rule of the policy, or the error.
fn outcome<T>(answer: kube::Result<T>) -> String {
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

#[tokio::test]
async fn an_agents_token_reaches_its_own_nodes_objects_only() {
    let fleet = Fleet::install().await;
    let [a, _] = &fleet.nodes;
    let agent = fleet.client_with(Some(a)).await;
    // The API server learns of a policy a moment after it was created, and tells nobody when.
    let begun = Instant::now();
    while fleet.attempt(&agent, "ovsnodes", "create", "nobody").await != "own-ovsnode" {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "the policy is not in force"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    fleet.check(&agent, [2, 3]).await;
    fleet.check_fields(&agent).await;
    fleet.check_diagnostics();
    let nobody = fleet.client_with(None).await;
    for (kind, verb) in [
        ("ovsnodes", "apply"),
        ("ovsnodes", "status"),
        ("events", "create"),
    ] {
        let seen = fleet.attempt(&nobody, kind, verb, a).await;
        assert_eq!(seen, "node-claim", "{verb} {kind}");
    }
    // The policy holds where RBAC is too wide.
    let namespace = &fleet.namespace;
    fleet.apply(&format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata:\n  \
         name: {namespace}\nroleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: ClusterRole\n  \
         name: cluster-admin\nsubjects:\n  - kind: ServiceAccount\n    name: {RELEASE}\n    \
         namespace: {namespace}\n"
    ));
    while fleet.attempt(&agent, "secrets", "list", a).await == "rbac" {
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "the right is not in force"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    fleet.check(&agent, [4, 5]).await;
    // It makes no object of its own name for another node; the schema keeps one that is there.
    let delete = DeleteParams::default();
    fleet
        .api(&fleet.admin, "ovsnodes")
        .delete(a, &delete)
        .await
        .unwrap();
    let attempts = [("pretend", "own-ovsnode"), ("apply", "yes")];
    for (verb, wanted) in attempts {
        let seen = fleet.attempt(&agent, "ovsnodes", verb, a).await;
        assert_eq!(seen, wanted, "{verb}");
    }
}
