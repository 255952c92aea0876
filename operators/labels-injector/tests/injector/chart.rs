//! The chart: what it renders and refuses, what its account may do, what its alerts see.

use cobalt_lab::testing::{api_server, promtool};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::{Site, ZONE, render, repository, run, until};

#[tokio::test]
async fn the_chart_has_no_lint_and_refuses_what_kubernetes_would() {
    let server = api_server().await.unwrap();
    let chart = repository("charts/labels-injector");
    let lint = ["lint", "--strict", chart.to_str().unwrap()];
    run(&server.bin.join("helm"), &lint).await.unwrap();
    for bad in ["labels=[]", "labels=[\"a b\"]", "workers=0", "replica=1"] {
        assert!(render(&server, "default", &[bad]).await.is_err(), "{bad}");
    }
    let everything = ["podMonitor={\"enabled\":true}", "alerts={\"enabled\":true}"];
    let objects = render(&server, "default", &everything).await.unwrap();
    for kind in ["PodMonitor", "PrometheusRule", "PodDisruptionBudget"] {
        assert!(
            objects.iter().any(|object| object["kind"] == kind),
            "{kind}"
        );
    }
    let deployment = objects
        .iter()
        .find(|object| object["kind"] == "Deployment")
        .unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let image = format!(
        "cobaltcore.dev/cobalt-labels-injector:{}",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(container["image"], image);
    assert_eq!(
        container["securityContext"]["capabilities"],
        json!({ "drop": ["ALL"] })
    );
}

#[tokio::test]
async fn the_alerts_fire_when_they_should_and_not_otherwise() {
    let tests = repository("charts/labels-injector/tests/alerts.yaml");
    let promtool = promtool().await.unwrap();
    run(&promtool, &["test", "rules", tests.to_str().unwrap()])
        .await
        .unwrap();
}

/// A client with the account of the chart.
async fn as_injector(site: &Site) -> kube::Client {
    let server = api_server().await.unwrap();
    let kubeconfig = kube::config::Kubeconfig::read_from(&server.kubeconfig).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap();
    let account = format!("system:serviceaccount:{}:labels-injector", site.namespace);
    config.auth_info.impersonate = Some(account);
    let groups = ["system:serviceaccounts", "system:authenticated"];
    config.auth_info.impersonate_groups = Some(groups.map(str::to_owned).to_vec());
    kube::Client::try_from(config).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_changes_the_copied_labels_of_pods_and_nothing_else() {
    let site = Site::new("rights").await;
    site.pod("p1", None, json!({ "app": "web" })).await;
    let pods: Api<Pod> = Api::namespaced(as_injector(&site).await, &site.namespace);
    let patch = async |content: Value| {
        let dry = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let answer = pods.patch("p1", &dry, &Patch::Strategic(content)).await;
        answer.map(drop).map_err(|error| error.to_string())
    };
    let image =
        json!({ "spec": { "containers": [{ "name": "c", "image": "example.com/evil:1" }] } });
    until("the policy is in force", || async {
        patch(image.clone()).await.is_err().then_some(())
    })
    .await;
    patch(json!({ "metadata": { "labels": { ZONE: "a" } } }))
        .await
        .unwrap();
    let reference = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1" }]);
    for (content, why) in [
        (image, "does not change the spec"),
        (
            json!({ "metadata": { "labels": { "app": "db" } } }),
            "changes no label but",
        ),
        (
            json!({ "metadata": { "labels": { "app": null } } }),
            "changes no label but",
        ),
        (
            json!({ "metadata": { "labels": { "new": "x" } } }),
            "changes no label but",
        ),
        (
            json!({ "metadata": { "annotations": { "a": "b" } } }),
            "no annotation",
        ),
        (
            json!({ "metadata": { "finalizers": ["a.example/b"] } }),
            "no annotation",
        ),
        (
            json!({ "metadata": { "ownerReferences": reference } }),
            "no annotation",
        ),
    ] {
        let refused = patch(content.clone()).await.unwrap_err();
        assert!(refused.contains(why), "{content}: {refused}");
    }
    let deleted = pods.delete("p1", &DeleteParams::default()).await;
    assert!(deleted.unwrap_err().to_string().contains("cannot delete"));
    let read = pods.get("p1").await;
    assert!(read.unwrap_err().to_string().contains("cannot get"));
}
