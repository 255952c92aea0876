//! Clusters behave as clusters do.

use std::time::Duration;

use cobalt_lab::cluster::{ClusterConfig, Role};
use cobalt_lab::{Lab, LabConfig};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};

use crate::{inside, kubectl, lab, labs, name, run};

/// Debian's static busybox crashes in its wget; its nc does not.
const GET_WEB: &str = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 web 80 | tail -n 1";

const WORKLOADS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lab/workloads.yaml");

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_run_every_kind_of_workload() {
    let lab = lab(LabConfig::with_nodes("work", 3)).await;
    kubectl(&lab, &["apply", "-f", WORKLOADS]);

    let wait = |what: &str| kubectl(&lab, &["rollout", "status", what, "--timeout=120s"]);
    wait("deployment/web");
    wait("daemonset/agent");
    wait("statefulset/store");
    kubectl(
        &lab,
        &[
            "wait",
            "--for=condition=complete",
            "job/once",
            "--timeout=120s",
        ],
    );

    let placed = [
        "get",
        "pods",
        "-l",
        "app=web",
        "-o",
        "jsonpath={.items[*].spec.nodeName}",
    ];
    let mut nodes: Vec<String> = kubectl(&lab, &placed)
        .split(' ')
        .map(ToOwned::to_owned)
        .collect();
    nodes.sort();
    assert_eq!(nodes, ["n1", "n2", "n3"], "one replica per node");
    let agents = [
        "get",
        "daemonset",
        "agent",
        "-o",
        "jsonpath={.status.numberReady}",
    ];
    assert_eq!(kubectl(&lab, &agents), "3");
    let agent = kubectl(
        &lab,
        &[
            "get",
            "pods",
            "-l",
            "app=agent",
            "--field-selector=spec.nodeName=n1",
            "-o",
            "name",
        ],
    );
    inside::no_pod_gets_out(&lab, "n1", agent.trim()).await;

    assert_eq!(
        kubectl(&lab, &["logs", "job/once"]),
        "job says from-a-configmap\n"
    );
    let host = kubectl(&lab, &["exec", "store-0", "--", "hostname"]);
    assert_eq!(host, "store-0\n");

    // Names, Services and pods across nodes: from every node to every replica.
    let mut answers = std::collections::BTreeSet::new();
    for pod in kubectl(&lab, &["get", "pods", "-l", "app=web", "-o", "name"]).lines() {
        for _ in 0..8 {
            let page = kubectl(&lab, &["exec", pod, "--", "sh", "-c", GET_WEB]);
            assert!(page.starts_with("web-"), "{page}");
            answers.insert(page);
        }
    }
    assert_eq!(
        answers.len(),
        3,
        "the Service reaches every replica: {answers:?}"
    );

    // A pod that was deleted comes back with its volume.
    kubectl(&lab, &["delete", "pod", "store-0", "--wait=true"]);
    wait("statefulset/store");
    let starts = kubectl(&lab, &["exec", "store-0", "--", "cat", "/data/starts"]);
    assert_eq!(starts, "started\nstarted\n");

    // A failing liveness probe restarts its container.
    let pods: kube::Api<Pod> =
        kube::Api::namespaced(lab.client(Role::Hypervisor).await.unwrap(), "default");
    let restarted = |pod: Option<&Pod>| {
        let statuses = pod.and_then(|pod| pod.status.as_ref()?.container_statuses.as_ref());
        statuses.is_some_and(|all| all.iter().any(|status| status.restart_count > 0))
    };
    let waiting = kube::runtime::wait::await_condition(pods, "dies", restarted);
    tokio::time::timeout(Duration::from_secs(120), waiting)
        .await
        .unwrap()
        .unwrap();
    lab.down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_labs_live_side_by_side() {
    let configs = ["one", "two"].map(|name| LabConfig::with_nodes(name, 1));
    let [one, two] = labs(configs).await;
    let (first, second) = (one.status().await.unwrap(), two.status().await.unwrap());
    assert_ne!(first.id, second.id);
    assert_ne!(first.addresses, second.addresses);
    for lab in [&*one, &*two] {
        // Each has a node of the same name, and it is its own.
        assert_eq!(kubectl(lab, &["get", "nodes", "-o", "name"]), "node/n1\n");
    }
    let machine = |lab: &Lab| {
        kubectl(
            lab,
            &["get", "node", "n1", "-o", "jsonpath={.status.nodeInfo}"],
        )
    };
    assert_ne!(
        machine(&one),
        machine(&two),
        "two machines with ids of their own"
    );

    // The end of one takes nothing away from the other: it still makes volumes, for example.
    one.down().await.unwrap();
    assert_eq!(kubectl(&two, &["get", "nodes", "-o", "name"]), "node/n1\n");
    kubectl(&two, &["apply", "-f", WORKLOADS]);
    let store = ["rollout", "status", "statefulset/store", "--timeout=120s"];
    kubectl(&two, &store);
    two.down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_has_several_clusters() {
    let mut config = LabConfig::api_only("region");
    let cluster = config.clusters.pop().unwrap();
    config.clusters = [Role::Management, Role::ControlPlane, Role::Hypervisor]
        .map(|role| ClusterConfig {
            role,
            ..cluster.clone()
        })
        .to_vec();
    let lab = cobalt_lab::testing::lab(config).await.unwrap();
    kubectl(
        &lab,
        &[
            "--context",
            "control-plane",
            "create",
            "namespace",
            "only-here",
        ],
    );
    let namespaces = kubectl(&lab, &["get", "namespaces", "-o", "name"]);
    assert!(
        !namespaces.contains("only-here"),
        "the default context is the hypervisor cluster"
    );
    lab.down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn played_nodes_are_ready_and_keep_their_leases() {
    let mut config = LabConfig::api_only("played");
    config.clusters[0].played_nodes = 200;
    let lab = cobalt_lab::testing::lab(config).await.unwrap();
    let client = lab.client(Role::Hypervisor).await.unwrap();
    let nodes: kube::Api<Node> = kube::Api::all(client.clone());
    let all = nodes.list(&Default::default()).await.unwrap();
    assert_eq!(all.items.len(), 200);
    assert!(
        all.iter()
            .all(|node| crate::ready(Some(node)).as_deref() == Some("True"))
    );

    let leases: kube::Api<Lease> = kube::Api::namespaced(client, "kube-node-lease");
    let renewed = |lease: Option<&Lease>| lease.and_then(|l| l.spec.clone()?.renew_time);
    let first = renewed(Some(&leases.get("played-7").await.unwrap()));
    assert!(first.is_some());
    let later = |lease: Option<&Lease>| renewed(lease) > first;
    kube::runtime::wait::await_condition(leases, "played-7", later)
        .await
        .unwrap();
    lab.down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_may_write_its_own_node_only() {
    let lab = lab(LabConfig::with_nodes("auth", 2)).await;
    let node = |config: &str, arguments: &[&str]| {
        let mut command = vec!["lab", "exec", "--name", name(&lab), "n1", "--", "kubectl"];
        command.extend(["--kubeconfig", config]);
        command.extend(arguments);
        crate::cobalt(&command)
    };
    let config = "/etc/kubernetes/kubelet.conf";
    let own = node(config, &["annotate", "node", "n1", "lab/test=1"]);
    assert!(
        own.status.success(),
        "{}",
        String::from_utf8_lossy(&own.stderr)
    );
    let other = node(config, &["annotate", "node", "n2", "lab/test=1"]);
    let refusal = String::from_utf8_lossy(&other.stderr);
    assert!(refusal.contains("only its own Node object"), "{refusal}");
    let protected = node(
        config,
        &["label", "node", "n1", "node-restriction.kubernetes.io/x=1"],
    );
    let refusal = String::from_utf8_lossy(&protected.stderr);
    assert!(
        refusal.contains("is not allowed to modify labels"),
        "{refusal}"
    );
    let list = node(config, &["get", "secrets", "-A"]);
    let refusal = String::from_utf8_lossy(&list.stderr);
    assert!(refusal.contains("forbidden"), "{refusal}");
    lab.down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_is_there_when_asked_for() {
    let mut config = LabConfig::api_only("audit");
    config.clusters[0].audit = true;
    let lab = cobalt_lab::testing::lab(config).await.unwrap();
    kubectl(&lab, &["create", "namespace", "seen"]);
    let log = crate::cobalt_ok(&["lab", "logs", "--name", name(&lab), "hypervisor/audit"]);
    let created = log.lines().any(|line| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        event["verb"] == "create" && event["objectRef"]["name"] == "seen"
    });
    assert!(created, "{log}");
    lab.down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_has_tokens_and_admission_policies() {
    let server = cobalt_lab::testing::api_server().await.unwrap();
    let admin =
        |arguments: &[&str]| run(&server.bin.join("kubectl"), &server.kubeconfig, arguments);
    admin(&["create", "namespace", "policies"]);
    admin(&["-n", "policies", "create", "serviceaccount", "agent"]);
    let token = admin(&["-n", "policies", "create", "token", "agent"]);
    let review = TokenReview {
        spec: TokenReviewSpec {
            token: token.trim().into(),
            ..Default::default()
        },
        ..Default::default()
    };
    let reviews: kube::Api<TokenReview> = kube::Api::all(server.client().await.unwrap());
    let status = reviews
        .create(&Default::default(), &review)
        .await
        .unwrap()
        .status
        .unwrap();
    assert_eq!(
        status.user.unwrap().username.as_deref(),
        Some("system:serviceaccount:policies:agent")
    );

    admin(&[
        "apply",
        "-f",
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lab/policy.yaml"),
    ]);
    let client = server.client().await.unwrap();
    let maps: kube::Api<ConfigMap> = kube::Api::namespaced(client, "policies");
    let map = |name: &str| ConfigMap {
        metadata: kube::api::ObjectMeta {
            name: Some(name.into()),
            ..Default::default()
        },
        ..Default::default()
    };
    // The server takes a moment to load a policy; until then it lets everything pass.
    let mut refusal = None;
    for attempt in 0..600 {
        let name = format!("forbidden-{attempt}");
        match maps.create(&Default::default(), &map(&name)).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(error) => {
                refusal = Some(error.to_string());
                break;
            }
        }
    }
    let refusal = refusal.expect("the policy never took effect");
    assert!(refusal.contains("choose another name"), "{refusal}");
    maps.create(&Default::default(), &map("fine"))
        .await
        .unwrap();
}
