//! What Pods get, keep and lose.

use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::support::{BLOCK, NAME, Site, ZONE, until};

/// `make test-slow` runs the quiet fleet with 5,000.
fn fleet() -> u32 {
    let pods = std::env::var("COBALT_TEST_PODS");
    pods.map_or(200, |pods| pods.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn w84_labels_come_at_binding_follow_the_node_and_go_with_it() {
    let site = Site::new("follow").await;
    site.node("n1", json!({ ZONE: "a", "other": "x" })).await;
    site.pod("free", None, json!({})).await;
    site.pod("lost", Some("late"), json!({})).await;
    site.pod("early", Some("n1"), json!({})).await;
    let injector = site.injector("one", &[]);
    let named = site.named("n1");
    site.has("early", json!({ ZONE: "a", NAME: named, "other": null }))
        .await;
    // Neither a Pod without a Node nor one whose Node is unknown was touched.
    for pod in ["free", "lost"] {
        assert_eq!(site.labels(pod).await, json!({ "test": site.namespace }));
    }
    site.bind("free", "n1").await;
    site.has("free", json!({ ZONE: "a", NAME: named })).await;
    site.node("late", json!({ NAME: "rack1-3" })).await;
    site.has("lost", json!({ NAME: "rack1-3", ZONE: null }))
        .await;

    site.label_node("n1", json!({ ZONE: "b" })).await;
    for pod in ["early", "free"] {
        site.has(pod, json!({ ZONE: "b" })).await;
    }
    site.label_node("n1", json!({ ZONE: null })).await;
    for pod in ["early", "free"] {
        site.has(pod, json!({ ZONE: null, NAME: named })).await;
    }
    // A Node that is deleted takes nothing away: its Pods are on it until they end.
    let writes = injector.writes().await;
    let nodes = site.nodes();
    nodes
        .delete(&named, &DeleteParams::default())
        .await
        .unwrap();
    site.pod("last", Some("late"), json!({})).await;
    site.has("last", json!({ NAME: "rack1-3" })).await;
    site.has("early", json!({ NAME: named })).await;
    assert_eq!(injector.writes().await, writes + 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn w83_nothing_is_written_when_nothing_changes() {
    let site = Site::new("quiet").await;
    let pods = fleet();
    for node in 0..10 {
        site.node(&format!("n{node}"), json!({ ZONE: "a" })).await;
    }
    for pod in 0..pods {
        let node = format!("n{}", pod % 10);
        site.pod(&format!("p{pod}"), Some(&node), json!({})).await;
    }
    let first = site.injector("first", &[]);
    first.reconciled(pods).await;
    until("each Pod was written once", || async {
        (first.writes().await >= f64::from(pods)).then_some(())
    })
    .await;
    let (selector, all) = (format!("{ZONE}=a"), ListParams::default());
    let labelled = site.pods().list(&all.labels(&selector)).await.unwrap();
    assert_eq!(labelled.items.len(), pods as usize);
    assert_eq!(first.writes().await, f64::from(pods));
    let before = site.versions().await;

    // Heartbeats and labels that nobody asked for wake nobody.
    for node in 0..10 {
        site.label_node(&format!("n{node}"), json!({ "other": "y" }))
            .await;
    }
    // The first is killed: its successor looks at every Pod and finds nothing to do.
    drop(first);
    let second = site.injector("second", &[]);
    second.reconciled(pods).await;
    assert_eq!(second.writes().await, 0.0);
    assert_eq!(site.versions().await, before);
    // It works: the next change is written, and only that.
    site.label_node("n3", json!({ ZONE: "b" })).await;
    site.has("p3", json!({ ZONE: "b" })).await;
    until("all Pods of the Node follow", || async {
        let on_node = f64::from(pods / 10);
        (second.writes().await == on_node).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_of_others_stay_and_those_of_a_predecessor_are_taken_over() {
    let site = Site::new("foreign").await;
    site.node("n1", json!({ BLOCK: "a" })).await;
    // A ReplicaSet may select its Pods by this label: changed, it would start another Pod.
    site.pod("theirs", Some("n1"), json!({ BLOCK: "z" })).await;
    site.pod("before", Some("n1"), json!({})).await;
    let patch = Patch::Merge(json!({ "metadata": { "labels": { BLOCK: "old", NAME: "old" } } }));
    let params = PatchParams {
        field_manager: Some("manager".to_owned()),
        ..PatchParams::default()
    };
    site.pods().patch("before", &params, &patch).await.unwrap();
    let _injector = site.injector("one", &["--take-over-from", "manager"]);
    let named = site.named("n1");
    site.has("before", json!({ BLOCK: "a", NAME: named })).await;
    site.has("theirs", json!({ BLOCK: "z", NAME: named })).await;
    let events: Api<Event> = Api::namespaced(site.client.clone(), &site.namespace);
    let event = until("the conflict is reported", || async {
        let all = events.list(&ListParams::default()).await.unwrap();
        all.into_iter()
            .find(|event| event.reason.as_deref() == Some("LabelConflict"))
    })
    .await;
    assert_eq!(event.regarding.unwrap().name.as_deref(), Some("theirs"));
    assert!(
        event
            .note
            .unwrap()
            .contains("\"z\" here and \"a\" on the Node")
    );

    site.label_node("n1", json!({ BLOCK: null })).await;
    site.has("before", json!({ BLOCK: null })).await;
    site.has("theirs", json!({ BLOCK: "z" })).await;
    // The owner gives it up: now it is the Node's.
    site.label_node("n1", json!({ BLOCK: "c" })).await;
    site.has("before", json!({ BLOCK: "c" })).await;
    let patch = Patch::Merge(json!({ "metadata": { "labels": { BLOCK: null } } }));
    site.pods()
        .patch("theirs", &PatchParams::default(), &patch)
        .await
        .unwrap();
    site.has("theirs", json!({ BLOCK: "c" })).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_works_and_the_other_goes_on_when_it_is_killed() {
    let site = Site::new("leader").await;
    site.node("n1", json!({ ZONE: "a" })).await;
    site.pod("p1", Some("n1"), json!({})).await;
    let first = site.injector("first", &[]);
    first.leads().await;
    let second = site.injector("second", &[]);
    until("the second answers", || {
        second.metric("cobalt_controller_leader")
    })
    .await;
    site.label_node("n1", json!({ ZONE: "b" })).await;
    site.has("p1", json!({ ZONE: "b" })).await;
    assert_eq!(second.metric("cobalt_controller_leader ").await, Some(0.0));
    assert_eq!(second.writes().await, 0.0);
    drop(first);
    site.label_node("n1", json!({ ZONE: "c" })).await;
    site.has("p1", json!({ ZONE: "c" })).await;
    assert_eq!(second.metric("cobalt_controller_leader ").await, Some(1.0));
    assert_eq!(second.writes().await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_tasks_end_in_order_when_it_is_told_to() {
    let site = Site::new("end").await;
    let injector = site.injector("one", &[]);
    injector.leads().await;
    let status = injector.terminate().await;
    let log = site.logs();
    assert!(status.success(), "{log}");
    assert!(!log.contains("did not end in time"), "{log}");
}
