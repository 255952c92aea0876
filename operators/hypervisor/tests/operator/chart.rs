//! The chart: what it renders, what it refuses, what its alerts and dashboards see.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cobalt_api::names::{leases, taints};
use cobalt_lab::testing::{ApiServer, api_server, promtool};
use serde_json::{Value, json};

/// A folder of this repository.
pub fn repository(below: &str) -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = crate_dir.ancestors().nth(2).unwrap();
    root.join(below)
}

/// Runs a program to its end: what it printed, or what it complained about.
pub fn run(program: &Path, arguments: &[&str], input: &str) -> Result<String, String> {
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
pub fn render(
    server: &ApiServer,
    release: &str,
    namespace: &str,
    settings: &[&str],
) -> Result<Vec<Value>, String> {
    let chart = "charts/hypervisor-operator";
    render_chart(server, chart, release, namespace, settings)
}

/// Renders a chart of this repository as a release.
pub fn render_chart(
    server: &ApiServer,
    chart: &str,
    release: &str,
    namespace: &str,
    settings: &[&str],
) -> Result<Vec<Value>, String> {
    let chart = repository(chart);
    let mut arguments = vec!["template", release, chart.to_str().unwrap()];
    arguments.extend(["--namespace", namespace]);
    for setting in settings {
        // JSON keeps types as they are written.
        arguments.extend(["--set-json", setting]);
    }
    let rendered = run(&server.bin.join("helm"), &arguments, "")?;
    let documents = rendered
        .split("\n---\n")
        .filter(|text| text.contains("kind: "));
    Ok(documents.map(yaml).collect())
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A file of the chart.
fn file(name: &str) -> Value {
    let path = repository("charts/hypervisor-operator").join(name);
    yaml(&std::fs::read_to_string(path).unwrap())
}

/// Everything that is optional.
const EVERYTHING: &[&str] = &[
    "agents={\"secretReaders\":{\"enabled\":true}}",
    "lifecycle={\"image\":\"r.example/pause:1\"}",
    "mirror={\"secretName\":\"mirror\",\"name\":\"qa\"}",
    "labelSelector=\"pool in (a,b)\"",
    "test={\"skip\":true}",
    "networkPolicy={\"enabled\":true,\"metricsFrom\":[{\"podSelector\":{}}]}",
    "podMonitor={\"enabled\":true,\"labels\":{\"prometheus\":\"x\"}}",
    "alerts={\"enabled\":true,\"ruleLabels\":{\"team\":\"compute\"}}",
    "dashboards={\"perses\":{\"enabled\":true},\"grafana\":{\"enabled\":true}}",
    "customResourceMetrics={\"enabled\":true}",
];

/// What the API server would make of objects; it checks and defaults them and keeps nothing.
fn dry_run(server: &ApiServer, objects: &[Value]) -> Vec<Value> {
    let config = format!("--kubeconfig={}", server.kubeconfig.display());
    let kubectl = server.bin.join("kubectl");
    // The node agent's chart makes it.
    let leases = json!({ "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": leases::NODE_AGENT_NAMESPACE } });
    let apply = ["apply", "--server-side", "-f=-"];
    let arguments = [&[config.as_str()], &apply[..]].concat();
    run(&kubectl, &arguments, &leases.to_string()).unwrap();

    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    let dry = ["--dry-run=server", "-o=json"];
    let arguments = [&[config.as_str()], &apply[..], &dry[..]].concat();
    let printed = run(&kubectl, &arguments, &list.to_string()).unwrap();
    let mut made = Vec::new();
    for object in serde_json::Deserializer::from_str(&printed).into_iter::<Value>() {
        let object = object.unwrap();
        match object["items"].as_array() {
            Some(items) => made.extend(items.iter().cloned()),
            None => made.push(object),
        }
    }
    made
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let all = objects.iter();
    all.filter(|object| object["kind"] == kind).collect()
}

/// The Deployment of a release, checked by the API server.
fn deployment(server: &ApiServer, settings: &[&str]) -> Value {
    let rendered = render(server, "hypervisor-operator", "default", settings).unwrap();
    let only = of_kind(&rendered, "Deployment")[0].clone();
    dry_run(server, &[only]).remove(0)
}

/// The value of a flag, if it is given.
fn flag<'a>(deployment: &'a Value, name: &str) -> Option<&'a str> {
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let all = container["args"].as_array().unwrap().iter();
    let mut all = all.filter_map(|argument| argument.as_str());
    all.find_map(|argument| match argument.split_once('=') {
        Some((flag, value)) if flag == name => Some(value),
        None if argument == name => Some(""),
        _ => None,
    })
}

#[tokio::test]
async fn the_chart_has_the_version_of_the_operator_and_no_lint() {
    let server = api_server().await.unwrap();
    let chart = repository("charts/hypervisor-operator");
    let folder = chart.to_str().unwrap();
    run(&server.bin.join("helm"), &["lint", "--strict", folder], "").unwrap();
    let chart = file("Chart.yaml");
    for field in ["version", "appVersion"] {
        assert_eq!(chart[field], env!("CARGO_PKG_VERSION"), "{field}");
    }
}

#[tokio::test]
async fn the_defaults_are_accepted_and_give_the_operator_no_more_than_it_needs() {
    let server = api_server().await.unwrap();
    let deployment = deployment(&server, &[]);
    assert_eq!(deployment["spec"]["replicas"], 2);
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let image = format!(
        "cobaltcore.dev/cobalt-hypervisor-operator:{}",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(container["image"], image);
    assert!(pod["hostNetwork"].is_null() && pod["hostPID"].is_null());
    let user = &pod["securityContext"];
    assert_eq!(user["runAsNonRoot"], true);
    assert_eq!(user["runAsUser"], 65532);
    assert_eq!(user["seccompProfile"]["type"], "RuntimeDefault");
    let rights = &container["securityContext"];
    assert_eq!(rights["capabilities"], json!({ "drop": ["ALL"] }));
    assert_eq!(rights["readOnlyRootFilesystem"], true);
    assert_eq!(rights["allowPrivilegeEscalation"], false);
    assert_eq!(rights["privileged"], false);
    let wanted = json!({
        "requests": { "cpu": "20m", "memory": "48Mi" }, "limits": { "memory": "128Mi" },
    });
    assert_eq!(container["resources"], wanted);
    // Two of them apart where that is possible, and never stuck where it is not.
    let apart = &pod["affinity"]["podAntiAffinity"];
    assert!(apart["requiredDuringSchedulingIgnoredDuringExecution"].is_null());
    let term = &apart["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"];
    assert_eq!(term["topologyKey"], "kubernetes.io/hostname");
    let spread = &pod["topologySpreadConstraints"][0];
    assert_eq!(spread["whenUnsatisfiable"], "ScheduleAnyway");
    // One leads, in the Lease of the pod's own namespace.
    assert_eq!(flag(&deployment, "--leader-elect"), Some(""));
    for (name, field) in [
        ("POD_NAME", "metadata.name"),
        ("POD_NAMESPACE", "metadata.namespace"),
    ] {
        let env = container["env"].as_array().unwrap();
        let variable = env.iter().find(|variable| variable["name"] == name);
        let source = &variable.unwrap()["valueFrom"]["fieldRef"]["fieldPath"];
        assert_eq!(source, field, "{name}");
    }
    // It is needed before any node is ready, and leaves one that is being offboarded.
    let tolerated: Vec<&str> = pod["tolerations"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|toleration| toleration["key"].as_str())
        .collect();
    assert_eq!(tolerated, [taints::CRITICAL_COMPONENTS_NOT_READY]);
}

#[tokio::test]
async fn w46_credentials_are_a_mounted_secret_and_never_in_the_chart() {
    let server = api_server().await.unwrap();
    let setting = "openstack={\"secretName\":\"keystone\",\
                   \"environment\":{\"OS_REGION_NAME\":\"qa\"}}";
    let settings = [EVERYTHING, &[setting]].concat();
    let rendered = render(&server, "hypervisor-operator", "default", &settings).unwrap();
    assert!(of_kind(&rendered, "Secret").is_empty());
    let deployment = deployment(&server, &settings);
    let pod = &deployment["spec"]["template"]["spec"];
    let folder = flag(&deployment, "--openstack-directory").unwrap();
    let container = &pod["containers"][0];
    let mounts = container["volumeMounts"].as_array().unwrap();
    let mount = mounts
        .iter()
        .find(|mount| mount["mountPath"] == folder)
        .unwrap();
    // A subPath would not follow a rotated password.
    assert!(mount["subPath"].is_null());
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = volumes
        .iter()
        .find(|volume| volume["name"] == mount["name"]);
    let secret = &volume.unwrap()["secret"];
    assert_eq!(secret["secretName"], "keystone");
    // Nobody else in the pod reads it; the operator starts before it is there.
    assert_eq!(
        (&secret["defaultMode"], &secret["optional"]),
        (&json!(0o440), &json!(true))
    );
    let env = container["env"].as_array().unwrap();
    assert!(env.contains(&json!({ "name": "OS_REGION_NAME", "value": "qa" })));
    assert!(
        env.iter()
            .all(|variable| variable["valueFrom"]["secretKeyRef"].is_null())
    );
}

#[tokio::test]
async fn values_change_what_they_say() {
    let server = api_server().await.unwrap();
    let deployment = deployment(
        &server,
        &[
            "image={\"registry\":\"r.example:5000\",\"tag\":\"9\"}",
            "replicas=1",
            "labelSelector=\"pool=a\"",
            "workers=3",
            "agents={\"namespaces\":[\"b\",\"a\"],\"secretReaders\":{\"enabled\":true,\
             \"prefix\":\"agent-secrets-\",\"namespace\":\"kvm\",\"cephSecretName\":\"ceph\"}}",
            "certificates={\"namespace\":\"monsoon3\"}",
            "test={\"skip\":true,\"network\":\"net 1\",\"volumeType\":\"\",\"volumeGib\":1}",
            "lifecycle={\"image\":\"r.example/pause:1\",\"namespace\":\"garden\"}",
            "mirror={\"secretName\":\"mirror\",\"name\":\"qa\",\"interval\":\"7s\"}",
            "metrics={\"port\":9000}",
            "log={\"level\":\"debug,kube=warn\"}",
        ],
    );
    assert_eq!(deployment["spec"]["replicas"], 1);
    for (name, value) in [
        ("--label-selector", "pool=a"),
        ("--workers", "3"),
        ("--agent-namespaces", "b,a"),
        ("--secrets-namespace", "kvm"),
        ("--ceph-secret-name", "ceph"),
        ("--secrets-account-prefix", "agent-secrets-"),
        ("--certificate-namespace", "monsoon3"),
        ("--skip-tests", ""),
        ("--test-network", "net 1"),
        ("--test-volume-type", ""),
        ("--test-volume-gib", "1"),
        ("--lifecycle-image", "r.example/pause:1"),
        ("--lifecycle-namespace", "garden"),
        ("--mirror-kubeconfig", "/etc/cobalt/mirror/kubeconfig"),
        ("--mirror-name", "qa"),
        ("--mirror-interval", "7s"),
        ("--metrics-bind-address", ":9000"),
        ("--log-level", "debug,kube=warn"),
    ] {
        assert_eq!(flag(&deployment, name), Some(value), "{name}");
    }
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(
        container["image"],
        "r.example:5000/cobalt-hypervisor-operator:9"
    );
    assert_eq!(container["ports"][0]["containerPort"], 9000);
    assert_eq!(
        container["volumeMounts"][1]["mountPath"],
        "/etc/cobalt/mirror"
    );
}

#[tokio::test]
async fn what_is_off_is_not_asked_for() {
    let server = api_server().await.unwrap();
    let deployment = deployment(&server, &[]);
    for name in [
        "--label-selector",
        "--secrets-account-prefix",
        "--skip-tests",
        "--mirror-kubeconfig",
    ] {
        assert_eq!(flag(&deployment, name), None, "{name}");
    }
    assert_eq!(flag(&deployment, "--lifecycle-image"), Some(""));
    // Where the release is, its agents and their Secrets are.
    assert_eq!(flag(&deployment, "--agent-namespaces"), Some("default"));
    assert_eq!(
        flag(&deployment, "--certificate-namespace"),
        Some("default")
    );
    let single = render(&server, "a", "default", &["replicas=1"]).unwrap();
    // It would forbid every drain.
    assert!(of_kind(&single, "PodDisruptionBudget").is_empty());
}

#[tokio::test]
async fn every_flag_is_one_that_the_operator_has() {
    let server = api_server().await.unwrap();
    let operator = Path::new(env!("CARGO_BIN_EXE_cobalt-hypervisor-operator"));
    let help = run(operator, &["--help"], "").unwrap();
    let deployment = deployment(&server, EVERYTHING);
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let arguments = container["args"].as_array().unwrap();
    assert!(arguments.len() > 25, "{arguments:?}");
    for argument in arguments {
        let name = argument.as_str().unwrap().split('=').next().unwrap();
        let mut words = help.split_whitespace();
        assert!(words.any(|word| word == name), "{name}: {help}");
    }
    for name in ["POD_NAME", "POD_NAMESPACE"] {
        assert!(help.contains(&format!("[env: {name}=")), "{name}: {help}");
    }
}

#[tokio::test]
async fn everything_that_can_be_asked_for_is_accepted_by_the_api_server() {
    let server = api_server().await.unwrap();
    let mut objects = render(&server, "hypervisor-operator", "default", EVERYTHING).unwrap();
    // The Prometheus operator is not here.
    objects.retain(|object| object["apiVersion"] != "monitoring.coreos.com/v1");
    let made = dry_run(&server, &objects);
    for (kind, count) in [
        ("Deployment", 1),
        ("PodDisruptionBudget", 1),
        ("NetworkPolicy", 1),
        ("ValidatingAdmissionPolicy", 1),
        ("ConfigMap", 3),
        ("ClusterRole", 1),
        ("Role", 7),
        ("RoleBinding", 7),
    ] {
        assert_eq!(of_kind(&made, kind).len(), count, "{kind}");
    }
}

#[tokio::test]
async fn w90_two_releases_share_no_name() {
    let server = api_server().await.unwrap();
    let names = |release: &str, namespace: &str| -> BTreeSet<String> {
        let objects = render(&server, release, namespace, EVERYTHING).unwrap();
        let name = |object: &Value| {
            let metadata = &object["metadata"];
            format!(
                "{} {}/{}",
                object["kind"], metadata["namespace"], metadata["name"]
            )
        };
        objects.iter().map(name).collect()
    };
    let first = names("a", "one");
    assert!(first.len() >= 20, "{first:#?}");
    for (release, namespace) in [("b", "one"), ("a", "two")] {
        let second = names(release, namespace);
        let both: Vec<&String> = first.intersection(&second).collect();
        assert!(both.is_empty(), "{both:#?}");
    }
}

#[tokio::test]
async fn bad_values_are_refused_with_the_place_and_the_reason() {
    let server = api_server().await.unwrap();
    for (setting, place, reason) in [
        ("imgae={}", "'imgae'", "not allowed"),
        ("image={\"digest\":\"x\"}", "'digest'", "not allowed"),
        ("image={\"tag\":\"a b\"}", "/image/tag", "pattern"),
        ("replicas=\"2\"", "/replicas", "want integer"),
        ("replicas=-1", "/replicas", "minimum"),
        ("workers=0", "/workers", "minimum"),
        // Passwords, wherever one may think of putting them.
        (
            "openstack={\"password\":\"x\"}",
            "'password'",
            "not allowed",
        ),
        (
            "secret={\"servicePassword\":\"x\"}",
            "'secret'",
            "not allowed",
        ),
        (
            "openstack={\"environment\":{\"OS_PASSWORD\":\"x\"}}",
            "'OS_PASSWORD'",
            "not allowed",
        ),
        (
            "openstack={\"environment\":{\"OS_APPLICATION_CREDENTIAL_SECRET\":\"x\"}}",
            "'OS_APPLICATION_CREDENTIAL_SECRET'",
            "not allowed",
        ),
        (
            "openstack={\"environment\":{\"OS_PW_CMD\":\"x\"}}",
            "'OS_PW_CMD'",
            "not allowed",
        ),
        (
            "openstack={\"secretName\":\"\"}",
            "/openstack/secretName",
            "pattern",
        ),
        (
            "openstack={\"novaInterval\":\"60\"}",
            "/openstack/novaInterval",
            "pattern",
        ),
        (
            "agents={\"namespaces\":[\"A\"]}",
            "/agents/namespaces/0",
            "pattern",
        ),
        (
            "agents={\"secretReaders\":{\"namespace\":\"A\"}}",
            "/agents/secretReaders/namespace",
            "pattern",
        ),
        (
            "agents={\"secretReaders\":{\"prefix\":\"\"}}",
            "/agents/secretReaders/prefix",
            "pattern",
        ),
        ("labelSelector=\"a;b\"", "/labelSelector", "pattern"),
        ("test={\"flavor\":1}", "/test/flavor", "want string"),
        ("test={\"deadline\":\"soon\"}", "/test/deadline", "pattern"),
        // What it is tomorrow nobody knows today.
        (
            "lifecycle={\"image\":\"busybox\"}",
            "/lifecycle/image",
            "pattern",
        ),
        (
            "lifecycle={\"image\":\"busybox:latest\"}",
            "/lifecycle/image",
            "'not' failed",
        ),
        ("mirror={\"secretName\":\"x\"}", "/mirror/name", "minLength"),
        ("metrics={\"port\":0}", "/metrics/port", "minimum"),
        ("log={\"format\":\"xml\"}", "/log/format", "one of"),
    ] {
        let refused = render(&server, "a", "default", &[setting]).unwrap_err();
        assert!(
            refused.contains(place) && refused.contains(reason),
            "{setting}: {refused}"
        );
    }
}

#[tokio::test]
async fn w88_prometheus_scrapes_what_is_served() {
    let server = api_server().await.unwrap();
    let plain = render(&server, "a", "default", &[]).unwrap();
    let mut kinds = plain.iter().map(|object| &object["apiVersion"]);
    assert!(!kinds.any(|version| version == "monitoring.coreos.com/v1"));
    let all = render(&server, "a", "default", EVERYTHING).unwrap();
    let monitor = of_kind(&all, "PodMonitor")[0];
    assert_eq!(monitor["metadata"]["labels"]["prometheus"], "x");
    let pod = &of_kind(&all, "Deployment")[0]["spec"]["template"];
    // It selects the pods, and names a port that they have.
    let selected = monitor["spec"]["selector"]["matchLabels"]
        .as_object()
        .unwrap();
    assert!(!selected.is_empty());
    for (label, value) in selected {
        assert_eq!(&pod["metadata"]["labels"][label], value, "{label}");
    }
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    let container = &pod["spec"]["containers"][0];
    let ports = container["ports"].as_array().unwrap();
    let port = ports
        .iter()
        .find(|port| port["name"] == endpoint["port"])
        .unwrap();
    let arguments = container["args"].as_array().unwrap();
    let served = format!("--metrics-bind-address=:{}", port["containerPort"]);
    assert!(arguments.contains(&json!(served)));
    // The endpoint is plain and asks for no token.
    assert!(endpoint["scheme"].is_null() && endpoint["tlsConfig"].is_null());
    // The labels that the rules need.
    let relabelings = endpoint["relabelings"].as_array().unwrap();
    let job = json!({ "targetLabel": "job", "replacement": JOB });
    assert!(relabelings.contains(&job), "{relabelings:?}");
    assert!(
        relabelings
            .iter()
            .any(|rule| rule["targetLabel"] == "partition")
    );

    let rules = &of_kind(&all, "PrometheusRule")[0]["spec"];
    let rendered: Vec<&Value> = rules_of(rules).collect();
    let source = file("files/alerts.yaml");
    assert_eq!(rendered.len(), rules_of(&source).count());
    for rule in rendered {
        assert_eq!(rule["labels"]["team"], "compute", "{rule}");
        let source = rules_of(&source).find(|other| other["alert"] == rule["alert"]);
        // Prometheus, not helm, fills in what the text has in braces.
        let source = source.unwrap();
        assert_eq!(source["annotations"], rule["annotations"]);
        assert_eq!(source["expr"], rule["expr"]);
    }
}

/// The job of the operator's metrics.
const JOB: &str = "hypervisor-operator";

/// What the operator exports: each metric, and its labels.
pub const METRICS: &[(&str, &[&str])] = &[
    ("cobalt_operator_leader", &[]),
    ("cobalt_operator_passes_total", &["outcome"]),
    ("cobalt_operator_pass_seconds_bucket", &["le"]),
    (
        "cobalt_operator_actions_total",
        &["controller", "action", "outcome"],
    ),
    ("cobalt_operator_status_writes_total", &[]),
    ("cobalt_operator_queue_depth", &[]),
    ("cobalt_operator_queue_oldest_seconds", &[]),
    (
        "cobalt_operator_openstack_requests_total",
        &["service", "call", "outcome"],
    ),
    (
        "cobalt_operator_openstack_request_seconds_bucket",
        &["service", "call", "le"],
    ),
    ("cobalt_operator_openstack_breaker_open", &["service"]),
    ("cobalt_operator_nova_snapshot_age_seconds", &[]),
    ("cobalt_hypervisor_phase", &["hypervisor", "zone", "phase"]),
    (
        "cobalt_hypervisor_condition",
        &["hypervisor", "zone", "condition", "status", "reason"],
    ),
    (
        "cobalt_hypervisor_waiting_since_seconds",
        &["hypervisor", "zone", "reason"],
    ),
    ("cobalt_hypervisor_instances", &["hypervisor", "zone"]),
    ("cobalt_hypervisor_evicted", &["hypervisor", "zone"]),
    (
        "cobalt_eviction_state",
        &["eviction", "hypervisor", "state"],
    ),
    (
        "cobalt_eviction_last_progress_seconds",
        &["eviction", "hypervisor"],
    ),
];

/// What Prometheus and the PodMonitor add to each.
const TARGET: &[&str] = &["job", "instance", "partition"];

/// The selectors of a query: each metric with its labels, `{...}` or none.
fn selectors(query: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = query;
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    while let Some(at) = rest.find(word) {
        let tail = &rest[at..];
        let end = tail.find(|c| !word(c)).unwrap_or(tail.len());
        let (name, after) = tail.split_at(end);
        let labels = match after.starts_with('{').then(|| after.find('}')).flatten() {
            Some(close) => &after[1..close],
            None => "",
        };
        let metric = ["cobalt_", "kube_customresource_"];
        if name == "up" || metric.iter().any(|prefix| name.starts_with(prefix)) {
            found.push((name, labels));
        }
        rest = &after[labels.len()..];
    }
    found
}

/// The labels that a selector asks for.
fn asked(labels: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    // What is between quotes is a value.
    let outside = labels.split('"').filter(move |_| {
        inside = !inside;
        inside
    });
    outside
        .flat_map(|part| part.split(['=', '~', '!', ',']))
        .map(str::trim)
        .filter(|name| !name.is_empty())
}

/// The labels that a query groups or joins by.
fn grouped(query: &str) -> BTreeSet<&str> {
    let lists = query
        .split(" by (")
        .skip(1)
        .chain(query.split(" on (").skip(1));
    let lists = lists.filter_map(|rest| rest.split(')').next());
    lists
        .flat_map(|list| list.split(',').map(str::trim))
        .collect()
}

/// Whether a query asks for what is exported, of this job only.
fn check_query(query: &str, known: &dyn Fn(&str) -> Option<Vec<String>>) {
    let selectors = selectors(query);
    assert!(!selectors.is_empty(), "{query}");
    let mut all = BTreeSet::new();
    for (metric, labels) in selectors {
        let exported = known(metric).unwrap_or_else(|| panic!("no metric {metric}: {query}"));
        for label in asked(labels) {
            assert!(
                exported.iter().any(|known| known == label),
                "{label} of {metric}: {query}"
            );
        }
        // Of another operator in the same Prometheus we know nothing.
        if !metric.starts_with("kube_") {
            let job = format!("job=\"{JOB}\"");
            assert!(labels.contains(&job), "{metric} of every job: {query}");
        }
        all.extend(exported);
    }
    for label in grouped(query) {
        assert!(all.contains(label), "no label {label}: {query}");
    }
}

/// The labels of a metric of the operator.
fn exported(metric: &str) -> Option<Vec<String>> {
    let own = METRICS.iter().find(|(name, _)| *name == metric);
    let labels = match own {
        Some((_, labels)) => labels.iter(),
        None if metric == "up" => [].iter(),
        None => return None,
    };
    Some(
        labels
            .chain(TARGET)
            .map(|&label| label.to_owned())
            .collect(),
    )
}

/// Runs promtool on text as a file of rules.
fn check_rules(tool: &Path, rules: &Value) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    std::fs::write(&path, rules.to_string()).unwrap();
    run(tool, &["check", "rules", path.to_str().unwrap()], "").unwrap();
}

fn rules_of(file: &Value) -> impl Iterator<Item = &Value> {
    let groups = file["groups"].as_array().unwrap().iter();
    groups.flat_map(|group| group["rules"].as_array().unwrap())
}

#[tokio::test]
async fn w87_the_alerts_fire_when_they_should_and_only_then() {
    let tool = promtool().await.unwrap();
    let rules = repository("charts/hypervisor-operator/files/alerts.yaml");
    run(&tool, &["check", "rules", rules.to_str().unwrap()], "").unwrap();
    let files = ["tests/alerts.yaml", "tests/weeks.yaml"];
    for file in files {
        let tests = repository("charts/hypervisor-operator").join(file);
        run(&tool, &["test", "rules", tests.to_str().unwrap()], "").unwrap();
    }

    // Each was seen to fire and not to fire.
    let tests = files.map(file);
    let cases: Vec<&Value> = tests
        .iter()
        .flat_map(|tests| tests["tests"].as_array().unwrap())
        .filter_map(|test| test["alert_rule_test"].as_array())
        .flatten()
        .collect();
    for rule in rules_of(&file("files/alerts.yaml")) {
        let own = cases
            .iter()
            .filter(|case| case["alertname"] == rule["alert"]);
        let fires = |case: &&&Value| !case["exp_alerts"].as_array().unwrap().is_empty();
        let (fire, quiet): (Vec<&&Value>, Vec<&&Value>) = own.partition(fires);
        assert!(!fire.is_empty() && !quiet.is_empty(), "{}", rule["alert"]);
    }
}

#[test]
fn w89_alerts_ask_for_what_the_operator_exports_and_for_no_other_job() {
    let alerts = file("files/alerts.yaml");
    for rule in rules_of(&alerts) {
        check_query(rule["expr"].as_str().unwrap(), &exported);
    }
    assert!(rules_of(&alerts).count() >= 14);
}

#[test]
fn every_alert_says_what_to_do_and_where_to_read_more() {
    let guide = repository("docs/hypervisor-operator.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let headings: BTreeSet<String> = guide
        .lines()
        .filter_map(|line| line.trim_start_matches('#').strip_prefix(' '))
        .map(|heading| heading.to_lowercase().replace(' ', "-"))
        .collect();
    for rule in rules_of(&file("files/alerts.yaml")) {
        let alert = rule["alert"].as_str().unwrap();
        for annotation in ["summary", "description"] {
            let text = rule["annotations"][annotation].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{alert} has no {annotation}");
        }
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(
            ["critical", "warning", "info"].contains(&severity),
            "{alert}"
        );
        let url = rule["annotations"]["runbook_url"].as_str().unwrap();
        let (page, anchor) = url.split_once('#').unwrap();
        assert!(page.ends_with("/docs/hypervisor-operator.md"), "{url}");
        assert_eq!(anchor, alert.to_lowercase());
        assert!(headings.contains(anchor), "the runbook has no {alert}");
    }
}

#[test]
fn the_runbook_names_fields_that_are_there() {
    let guide = repository("docs/hypervisor-operator.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let definitions = cobalt_api::crds::all();
    let own = definitions
        .iter()
        .filter(|crd| ["Hypervisor", "Eviction"].contains(&crd.spec.names.kind.as_str()));
    let schemas: Vec<Value> = own
        .map(|crd| cobalt_api::crds::schema_of(crd).unwrap())
        .collect();
    let mut fields = 0;
    for part in ["spec", "status"] {
        for after in guide.split(&format!("{{.{part}.")).skip(1) {
            let end = after.find(|c: char| !c.is_ascii_alphanumeric()).unwrap();
            let field = &after[..end];
            let known = |schema: &Value| {
                let fields = &schema["properties"][part]["properties"];
                !fields[field].is_null()
            };
            assert!(schemas.iter().any(known), "no field {part}.{field}");
            fields += 1;
        }
    }
    assert!(fields >= 10);
}

/// The panels of the dashboard.
fn panels() -> Vec<Value> {
    let source = file("files/dashboard.yaml");
    let rows = source["rows"].as_array().unwrap().iter();
    rows.flat_map(|row| row["panels"].as_array().unwrap().clone())
        .collect()
}

/// The metrics that kube-state-metrics makes by our file, with their labels.
fn custom_resource_metrics() -> Vec<(String, Vec<String>)> {
    let keys = |value: &Value| -> Vec<String> {
        let fields = value.as_object().into_iter().flatten();
        fields.map(|(name, _)| name.clone()).collect()
    };
    let mut all = Vec::new();
    for resource in file("files/custom-resource-metrics.yaml")["spec"]["resources"]
        .as_array()
        .unwrap()
    {
        for metric in resource["metrics"].as_array().unwrap() {
            let mut labels = keys(&resource["labelsFromPath"]);
            for kind in ["info", "gauge"] {
                labels.extend(keys(&metric["each"][kind]["labelsFromPath"]));
            }
            let name = metric["name"].as_str().unwrap();
            all.push((format!("kube_customresource_{name}"), labels));
        }
    }
    all
}

#[tokio::test]
async fn every_query_of_the_dashboard_is_sound_and_asks_for_what_is_exported() {
    let tool = promtool().await.unwrap();
    let custom = custom_resource_metrics();
    let known = |metric: &str| {
        let of_custom = || {
            let found = custom.iter().find(|(name, _)| name == metric);
            found.map(|(_, labels)| labels.clone())
        };
        exported(metric).or_else(of_custom)
    };
    let mut rules = Vec::new();
    for panel in panels() {
        for query in panel["queries"].as_array().unwrap() {
            let query = query["query"].as_str().unwrap();
            check_query(query, &known);
            let custom = query.contains("kube_customresource_");
            assert_eq!(custom, panel["customResources"] == true, "{query}");
            rules.push(json!({ "record": format!("query:{}", rules.len()), "expr": query }));
        }
    }
    assert!(rules.len() >= 15);
    check_rules(
        &tool,
        &json!({ "groups": [{ "name": "dashboard", "rules": rules }] }),
    );
}

#[tokio::test]
async fn both_dashboards_show_every_panel() {
    let server = api_server().await.unwrap();
    for (settings, custom) in [
        (EVERYTHING, true),
        (&EVERYTHING[..EVERYTHING.len() - 1], false),
    ] {
        let objects = render(&server, "a", "default", settings).unwrap();
        let dashboard = |label: &str, key: &str| -> Value {
            let maps = of_kind(&objects, "ConfigMap").into_iter();
            let mut maps = maps.filter(|map| !map["metadata"]["labels"][label].is_null());
            let text = maps.next().unwrap()["data"][key].as_str().unwrap();
            serde_json::from_str(text).unwrap()
        };
        let perses = dashboard("perses.dev/resource", "hypervisor-overview.json");
        let grafana = dashboard("grafana_dashboard", "hypervisor-overview.json");
        let wanted: Vec<Value> = panels()
            .into_iter()
            .filter(|panel| custom || panel["customResources"] != true)
            .collect();
        let queries = |panel: &Value| -> Vec<Value> {
            let queries = panel["queries"].as_array().unwrap().iter();
            queries.map(|query| query["query"].clone()).collect()
        };

        let shown = perses["spec"]["panels"].as_object().unwrap();
        assert_eq!(shown.len(), wanted.len());
        for panel in &wanted {
            let mut shown = shown.values();
            let same = shown.find(|shown| shown["spec"]["display"]["name"] == panel["title"]);
            let shown: Vec<Value> = same.unwrap()["spec"]["queries"]
                .as_array()
                .unwrap()
                .iter()
                .map(|query| query["spec"]["plugin"]["spec"]["query"].clone())
                .collect();
            assert_eq!(shown, queries(panel));
        }
        // Each panel is in the layout once, and nothing else is.
        let mut placed = Vec::new();
        for row in perses["spec"]["layouts"].as_array().unwrap() {
            for item in row["spec"]["items"].as_array().unwrap() {
                let reference = item["content"]["$ref"].as_str().unwrap();
                placed.push(reference.strip_prefix("#/spec/panels/").unwrap().to_owned());
                let edge = item["x"].as_u64().unwrap() + item["width"].as_u64().unwrap();
                assert!(edge <= 24);
            }
        }
        placed.sort();
        let mut names: Vec<String> = shown.keys().cloned().collect();
        names.sort();
        assert_eq!(placed, names);

        let shown = grafana["panels"].as_array().unwrap();
        let ids: BTreeSet<u64> = shown
            .iter()
            .map(|panel| panel["id"].as_u64().unwrap())
            .collect();
        assert_eq!(ids.len(), shown.len());
        for panel in &wanted {
            let same = shown.iter().find(|shown| shown["title"] == panel["title"]);
            let shown: Vec<Value> = same.unwrap()["targets"]
                .as_array()
                .unwrap()
                .iter()
                .map(|target| target["expr"].clone())
                .collect();
            assert_eq!(shown, queries(panel));
        }
        let rows = shown.iter().filter(|panel| panel["type"] == "row").count();
        assert_eq!(shown.len(), wanted.len() + rows);
    }
}

#[test]
fn kube_state_metrics_reads_fields_that_are_there() {
    let mut paths = 0;
    for resource in file("files/custom-resource-metrics.yaml")["spec"]["resources"]
        .as_array()
        .unwrap()
    {
        let kind = resource["groupVersionKind"]["kind"].as_str().unwrap();
        let definitions = cobalt_api::crds::all();
        let mut own = definitions.iter().filter(|crd| crd.spec.names.kind == kind);
        let schema = cobalt_api::crds::schema_of(own.next().unwrap()).unwrap();
        let schema = &schema;
        let mut check = |schema: &Value, path: &Value| -> Value {
            let mut at = schema.clone();
            for step in path.as_array().unwrap() {
                let step = step.as_str().unwrap();
                if step == "metadata" {
                    return Value::Null;
                }
                at = at["properties"][step].clone();
                assert!(!at.is_null(), "{kind} has no {path}");
            }
            paths += 1;
            at
        };
        let labels = |value: &Value| -> Vec<Value> {
            let fields = value["labelsFromPath"].as_object().into_iter().flatten();
            fields.map(|(_, path)| path.clone()).collect()
        };
        for path in labels(resource) {
            check(schema, &path);
        }
        for metric in resource["metrics"].as_array().unwrap() {
            let (info, gauge) = (&metric["each"]["info"], &metric["each"]["gauge"]);
            for path in labels(info) {
                check(schema, &path);
            }
            if !gauge.is_null() {
                let field = check(schema, &gauge["path"]);
                for path in labels(gauge).iter().chain(gauge.get("valueFrom")) {
                    check(&field["items"], path);
                }
            }
        }
    }
    assert!(paths >= 20, "{paths}");
}

#[tokio::test]
async fn the_namespace_of_the_heartbeats_outlives_the_release() {
    let server = api_server().await.unwrap();
    let none = render(&server, "a", "default", &[]).unwrap();
    assert!(of_kind(&none, "Namespace").is_empty());
    let setting = "heartbeats={\"createNamespace\":true}";
    let rendered = render(&server, "a", "default", &[setting]).unwrap();
    let namespace = of_kind(&rendered, "Namespace")[0];
    assert_eq!(namespace["metadata"]["name"], leases::NODE_AGENT_NAMESPACE);
    let policy = &namespace["metadata"]["annotations"]["helm.sh/resource-policy"];
    assert_eq!(policy, "keep");
}
