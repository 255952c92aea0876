//! The chart: what it renders, what it refuses, what its alerts see.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cobalt_api::names::{labels, leases, taints};
use cobalt_lab::testing::{ApiServer, api_server, promtool};
use serde_json::Value;

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
) -> Result<String, String> {
    let chart = repository("charts/node-agent");
    let mut arguments = vec!["template", release, chart.to_str().unwrap()];
    arguments.extend(["--namespace", namespace]);
    for setting in settings {
        // JSON keeps types as they are written.
        arguments.extend(["--set-json", setting]);
    }
    run(&server.bin.join("helm"), &arguments, "")
}

/// What the API server would make of manifests; it checks and defaults them and keeps nothing.
fn dry_run(server: &ApiServer, manifests: &str) -> Vec<Value> {
    let config = format!("--kubeconfig={}", server.kubeconfig.display());
    let arguments = [
        &config,
        "apply",
        "--server-side",
        "--dry-run=server",
        "-o=json",
        "-f=-",
    ];
    let printed = run(&server.bin.join("kubectl"), &arguments, manifests).unwrap();
    let stream = serde_json::Deserializer::from_str(&printed).into_iter::<Value>();
    let mut objects = Vec::new();
    for object in stream {
        let object = object.unwrap();
        match object["items"].as_array() {
            Some(items) => objects.extend(items.iter().cloned()),
            None => objects.push(object),
        }
    }
    objects
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let all = objects.iter();
    all.filter(|object| object["kind"] == kind).collect()
}

/// The DaemonSet of a release, checked by the API server.
fn daemon_set(server: &ApiServer, settings: &[&str]) -> Value {
    let rendered = render(server, "node-agent", "default", settings).unwrap();
    let documents: Vec<&str> = rendered.split("\n---\n").collect();
    let only = documents
        .iter()
        .find(|document| document.contains("kind: DaemonSet"))
        .unwrap();
    dry_run(server, only).remove(0)
}

#[tokio::test]
async fn the_chart_has_the_version_of_the_agent_and_no_lint() {
    let server = api_server().await.unwrap();
    let chart = repository("charts/node-agent");
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
    let server = api_server().await.unwrap();
    let set = daemon_set(&server, &[]);
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let image = format!(
        "cobaltcore.dev/cobalt-node-agent:{}",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(container["image"], image);
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    assert!(pod["hostNetwork"].is_null() && pod["hostPID"].is_null());
    assert_eq!(
        pod["securityContext"]["seccompProfile"]["type"],
        "RuntimeDefault"
    );
    let rights = &container["securityContext"];
    assert_eq!(
        rights["capabilities"],
        serde_json::json!({ "drop": ["ALL"] })
    );
    assert_eq!(rights["readOnlyRootFilesystem"], true);
    assert_eq!(rights["allowPrivilegeEscalation"], false);
    assert_eq!(rights["privileged"], false);
    assert!(pod["initContainers"].is_null());
    let mounts: Vec<(&Value, &Value)> = container["volumeMounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| (&mount["mountPath"], &mount["readOnly"]))
        .collect();
    let readable = Value::Bool(true);
    let (libvirt, dbus) = (Value::from("/run/libvirt"), Value::from("/run/dbus"));
    assert_eq!(mounts, [(&libvirt, &readable), (&dbus, &readable)]);
    // Whoever has to be sure that a new agent runs does not wait for libvirt.
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/healthz");
}

#[tokio::test]
async fn values_change_what_they_say() {
    let server = api_server().await.unwrap();
    let set = daemon_set(
        &server,
        &[
            "libvirtGroup=108",
            "hostNetwork=true",
            "readiness=\"complete\"",
            "tls={\"enabled\":true,\"pkiFolder\":\"/var/lib/pki\",\"qemuGroup\":64055}",
            "image={\"registry\":\"r.example:5000\",\"tag\":\"9\"}",
            "nodeSelector={\"pool\":\"a\"}",
            "host={\"shutdownDelay\":\"30m\"}",
        ],
    );
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let user = &pod["securityContext"];
    assert_eq!(user["runAsNonRoot"], true);
    assert_eq!(user["runAsUser"], 65532);
    assert_eq!(user["supplementalGroups"], serde_json::json!([108, 64055]));
    assert_eq!(pod["hostNetwork"], true);
    assert_eq!(pod["nodeSelector"]["pool"], "a");
    assert_eq!(container["image"], "r.example:5000/cobalt-node-agent:9");
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");
    // The folder where logind is told how long to wait is there only when it is to be told.
    let logind = &pod["volumes"][2]["hostPath"]["path"];
    assert_eq!(logind, "/etc/systemd/logind.conf.d");
    assert_eq!(container["volumeMounts"][2]["mountPath"], *logind);
    assert_eq!(value_of(&set, "SHUTDOWN_DELAY")["value"], "30m");
    assert_eq!(value_of(&set, "LOGIND_FOLDER")["value"], *logind);
    let pki = &pod["volumes"][3]["hostPath"]["path"];
    assert_eq!(pki, "/var/lib/pki");
    assert_eq!(value_of(&set, "PKI_PATH")["value"], "/var/lib/pki");
    assert_eq!(value_of(&set, "QEMU_GROUP")["value"], "64055");
    // The check of the certificate needs no network of the host.
    let address = value_of(&set, "LIBVIRT_TLS_ADDRESS");
    assert_eq!(address["value"], "$(HOST_IP_ADDRESS):16514");
}

/// An environment variable of the agent.
fn value_of<'a>(set: &'a Value, name: &str) -> &'a Value {
    let env = &set["spec"]["template"]["spec"]["containers"][0]["env"];
    let all = env.as_array().unwrap();
    let found = all.iter().find(|variable| variable["name"] == name);
    found.unwrap_or(&Value::Null)
}

#[tokio::test]
async fn w76_the_environment_is_complete_and_the_label_is_left_out_unless_it_has_a_field() {
    let server = api_server().await.unwrap();
    let set = daemon_set(&server, &[]);
    for (name, field) in [
        ("HOSTNAME", "spec.nodeName"),
        ("NAMESPACE", "metadata.namespace"),
        ("POD_NAME", "metadata.name"),
    ] {
        let source = &value_of(&set, name)["valueFrom"]["fieldRef"]["fieldPath"];
        assert_eq!(source, field, "{name}");
    }
    assert!(value_of(&set, "NODE_LABEL").is_null());
    let field = "metadata.labels['kubernetes.metal.cloud.sap/name']";
    let set = daemon_set(&server, &[&format!("nodeLabelFieldPath=\"{field}\"")]);
    let source = &value_of(&set, "NODE_LABEL")["valueFrom"]["fieldRef"]["fieldPath"];
    assert_eq!(source, field);
}

#[tokio::test]
async fn w76_the_agent_stays_on_a_node_that_is_being_offboarded() {
    let server = api_server().await.unwrap();
    let set = daemon_set(&server, &[]);
    let pod = &set["spec"]["template"]["spec"];
    let tolerated: BTreeSet<&str> = pod["tolerations"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|toleration| toleration["operator"] == "Exists" && toleration["effect"].is_null())
        .filter_map(|toleration| toleration["key"].as_str())
        .collect();
    let wanted = [taints::OFFBOARDING, taints::CRITICAL_COMPONENTS_NOT_READY];
    assert_eq!(tolerated, BTreeSet::from(wanted));
    let terms = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let expression = &terms["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!(expression["key"], labels::VIRT_DRIVER);
}

#[tokio::test]
async fn w76_every_variable_is_one_that_the_agent_reads() {
    let server = api_server().await.unwrap();
    let help = run(
        Path::new(env!("CARGO_BIN_EXE_cobalt-node-agent")),
        &["--help"],
        "",
    )
    .unwrap();
    let all = [
        "tls={\"enabled\":true,\"qemuGroup\":64055}",
        "ceph={\"secretName\":\"ceph\",\"secretUuid\":\"0b5f2c5e-93b8-4d2a-8a4b-6b0f6d2b7c11\"}",
        "nodeLabelFieldPath=\"spec.nodeName\"",
        "host={\"shutdownDelay\":\"30m\"}",
    ];
    let set = daemon_set(&server, &all);
    let env = &set["spec"]["template"]["spec"]["containers"][0]["env"];
    let names: Vec<&str> = env
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|variable| variable["name"].as_str())
        .collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(help.contains(&format!("[env: {name}=")), "{name}: {help}");
    }
}

#[tokio::test]
async fn w90_two_releases_share_no_name() {
    let server = api_server().await.unwrap();
    let names = |release: &str, namespace: &str| -> BTreeSet<String> {
        let settings = ["nodes=[\"hv1\"]", "lease={\"createNamespace\":false}"];
        let text = render(&server, release, namespace, &settings).unwrap();
        text.split("\n---\n")
            .filter(|document| document.contains("kind: "))
            .map(|document| {
                let field = |name: &str| {
                    let line = document.lines().find(|line| line.trim().starts_with(name));
                    line.unwrap_or_default().trim().to_owned()
                };
                [field("kind: "), field("name: "), field("namespace: ")].join(" ")
            })
            .collect()
    };
    let first = names("a", "one");
    assert!(first.len() >= 13, "{first:#?}");
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
        (
            "image={\"pullPolicy\":\"Sometimes\"}",
            "/image/pullPolicy",
            "one of",
        ),
        ("image={\"tag\":\"a b\"}", "/image/tag", "pattern"),
        ("libvirtGroup=\"libvirt\"", "/libvirtGroup", "want integer"),
        ("hostNetwork=\"yes\"", "/hostNetwork", "want boolean"),
        ("readiness=\"maybe\"", "/readiness", "one of"),
        ("libvirt={\"uri\":\"xen:///\"}", "/libvirt/uri", "pattern"),
        (
            "libvirt={\"timeout\":\"15\"}",
            "/libvirt/timeout",
            "pattern",
        ),
        (
            "libvirt={\"socketFolder\":\"/\"}",
            "/libvirt/socketFolder",
            "pattern",
        ),
        ("nodes=[\"HV1\"]", "/nodes/0", "pattern"),
        ("nodes=[\"a\",\"a\"]", "/nodes", "equal"),
        ("ha={\"policy\":\"pray\"}", "/ha/policy", "one of"),
        ("ha={\"restarts\":-1}", "/ha/restarts", "minimum"),
        ("metrics={\"port\":0}", "/metrics/port", "minimum"),
        ("log={\"format\":\"xml\"}", "/log/format", "one of"),
        (
            "nodeLabelFieldPath=\"metadata.labels\"",
            "/nodeLabelFieldPath",
            "pattern",
        ),
        (
            "updateStrategy={\"maxUnavailable\":\"0%\"}",
            "/updateStrategy",
            "pattern",
        ),
        ("tls={\"enabled\":1}", "/tls/enabled", "want boolean"),
    ] {
        let refused = render(&server, "a", "default", &[setting]).unwrap_err();
        assert!(
            refused.contains(place) && refused.contains(reason),
            "{setting}: {refused}"
        );
    }
}

#[tokio::test]
async fn what_needs_the_prometheus_operator_is_there_only_when_it_is_asked_for() {
    let server = api_server().await.unwrap();
    let plain = render(&server, "a", "default", &[]).unwrap();
    assert!(!plain.contains("monitoring.coreos.com"));
    let settings = [
        "podMonitor={\"enabled\":true,\"labels\":{\"prometheus\":\"x\"}}",
        "alerts={\"enabled\":true,\"ruleLabels\":{\"team\":\"compute\"}}",
    ];
    let all = render(&server, "a", "default", &settings).unwrap();
    assert!(all.contains("kind: PodMonitor") && all.contains("prometheus: x"));
    assert!(all.contains("kind: PrometheusRule"));
    let alerts = all.matches("- alert: ").count();
    assert!(alerts >= 7);
    assert_eq!(all.matches("team: compute").count(), alerts);
    // Prometheus, not helm, fills these in.
    assert!(all.contains("{{ $labels.node }}"));
}

#[tokio::test]
async fn the_alerts_fire_when_they_should_and_only_then() {
    let tool = promtool().await.unwrap();
    let rules = repository("charts/node-agent/files/alerts.yaml");
    run(&tool, &["check", "rules", rules.to_str().unwrap()], "").unwrap();
    let tests = repository("charts/node-agent/tests/alerts.yaml");
    run(&tool, &["test", "rules", tests.to_str().unwrap()], "").unwrap();
}

#[test]
fn w87_every_metric_of_an_alert_is_one_of_the_agents() {
    let rules = repository("charts/node-agent/files/alerts.yaml");
    let rules = std::fs::read_to_string(rules).unwrap();
    let mut sources = String::new();
    let mut folders = vec![repository("agents/node/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                sources.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let named = rules
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("cobalt_node_agent_") || word.starts_with("libvirt_"));
    let names: BTreeSet<&str> = named.collect();
    assert!(names.len() >= 7, "{names:?}");
    // The sources have a name as a whole, or what a function puts before it and the rest.
    let registered = |name: &str| {
        let halves = name.match_indices('_').map(|(at, _)| name.split_at(at + 1));
        let mut halves =
            halves.filter(|(head, _)| sources.contains(&format!("\"{head}{{name}}\"")));
        sources.contains(&format!("\"{name}\""))
            || halves.any(|(_, rest)| sources.contains(&format!("\"{rest}\"")))
    };
    for name in names {
        let own = name.strip_suffix("_total").unwrap_or(name);
        assert!(registered(own), "no metric {name}");
    }
}

#[tokio::test]
async fn the_namespace_of_the_heartbeats_outlives_the_release() {
    let server = api_server().await.unwrap();
    let rendered = render(&server, "a", "default", &[]).unwrap();
    let document = rendered
        .split("\n---\n")
        .find(|document| document.contains("kind: Namespace"))
        .unwrap();
    let objects = dry_run(&server, document);
    let namespace = of_kind(&objects, "Namespace")[0];
    assert_eq!(namespace["metadata"]["name"], leases::NODE_AGENT_NAMESPACE);
    let policy = &namespace["metadata"]["annotations"]["helm.sh/resource-policy"];
    assert_eq!(policy, "keep");
}
