//! What the token of a node's agent may do: RBAC and the admission policy of the chart, against a real
//! API server. No kubelet is needed: the API server puts the node of a pod into the pod's token. What
//! is tried, and what comes of it, is in the tables of docs/threat-model.md.

mod fields;
mod fleet;
mod page;

use cobalt_api::names::labels;
use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use fleet::{Fleet, RELEASE, outcome};

#[tokio::test]
async fn w75_an_agents_token_reaches_its_own_nodes_objects_only() {
    let fleet = Fleet::install("own").await;
    let [a, b] = &fleet.nodes;
    let agent = fleet.agent(a).await;
    fleet.check(&agent, "node-agent", [2, 3]).await;

    // The way to its Secrets: a token of its own node's account, and of no other.
    let account = |node: &str| format!("{RELEASE}-secrets-{node}");
    let own = fleet.token_by(&agent, &account(a), None).await;
    let own = own.unwrap();
    for (other, rule) in [
        (account(b), "own-token"),
        (RELEASE.to_owned(), "rbac"),
        ("default".to_owned(), "rbac"),
    ] {
        let refused = fleet.token_by(&agent, &other, None).await;
        assert_eq!(outcome(refused), rule, "{other}");
    }
    let reader = fleet.client_with(own).await;
    fleet.check(&reader, "secret-reader", [2, 3]).await;
}

#[tokio::test]
async fn w75_the_policy_holds_where_rbac_is_too_wide() {
    let fleet = Fleet::install("wide").await;
    let [a, b] = &fleet.nodes;
    let agent = fleet.agent(a).await;
    fleet.grant_everything().await;
    fleet.check(&agent, "node-agent", [4, 5]).await;
    for (account, rule) in [
        (format!("{RELEASE}-secrets-{a}"), "yes"),
        (format!("{RELEASE}-secrets-{b}"), "own-token"),
        (RELEASE.to_owned(), "own-token"),
    ] {
        let answer = fleet.token_by(&agent, &account, None).await;
        assert_eq!(outcome(answer), rule, "{account}");
    }
}

#[tokio::test]
async fn w75_a_token_without_a_node_writes_nothing() {
    let fleet = Fleet::install("claim").await;
    let [a, _] = &fleet.nodes;
    // The policy is in force.
    fleet.agent(a).await;
    let token = fleet.token(RELEASE, None).await.unwrap();
    let nobody = fleet.client_with(token).await;
    for (kind, verb) in [
        ("hypervisors", "status"),
        ("evictions", "create"),
        ("migrations", "apply"),
        ("leases", "create"),
        ("certificates", "create"),
        ("events", "create"),
    ] {
        let seen = fleet.attempt(&nobody, kind, verb, a).await;
        assert_eq!(seen, "node-claim", "{verb} {kind}");
    }
    let account = format!("{RELEASE}-secrets-{a}");
    let refused = fleet.token_by(&nobody, &account, None).await;
    assert_eq!(outcome(refused), "node-claim");
}

#[tokio::test]
async fn w75_each_end_of_a_migration_writes_its_own_entry() {
    let fleet = Fleet::install("ends").await;
    let [a, b] = &fleet.nodes;
    let (source, destination) = (fleet.agent(a).await, fleet.agent(b).await);
    let name = format!("migration-{a}");
    let apply = async |client: &Client, manager: &str, status: Value| {
        let object = json!({
            "apiVersion": "kvm.cloud.sap/v1alpha1", "kind": "Migration",
            "metadata": { "name": name }, "status": status,
        });
        let params = PatchParams::apply(manager).force();
        let api = fleet.api(client, "migrations");
        outcome(
            api.patch_status(&name, &params, &Patch::Apply(object))
                .await,
        )
    };
    let merge = async |client: &Client, status: Value| {
        let api = fleet.api(client, "migrations");
        let patch = Patch::Merge(json!({ "status": status }));
        outcome(
            api.patch_status(&name, &PatchParams::default(), &patch)
                .await,
        )
    };
    let end = |role: &str, node: &str| json!({ "role": role, "node": node });
    let failed = |role: &str, node: &str| json!({ "role": role, "node": node, "result": "Failed" });

    let started = "2026-01-01T00:00:00Z";
    let first =
        json!({ "started": started, "origin": a, "type": "unbounded", "ends": [end("Source", a)] });
    assert_eq!(apply(&source, "source", first).await, "yes");
    // The destination adds its entry, and changes it.
    let entry = json!({ "ends": [end("Destination", b)] });
    assert_eq!(apply(&destination, "destination", entry).await, "yes");
    let entry = json!({ "ends": [failed("Destination", b)] });
    assert_eq!(apply(&destination, "destination", entry).await, "yes");

    let refused = "own-migration";
    for (what, status) in [
        (
            "the source's entry",
            json!({ "ends": [failed("Source", a), failed("Destination", b)] }),
        ),
        (
            "the source's entry, taken over",
            json!({ "ends": [end("Source", b), failed("Destination", b)] }),
        ),
        (
            "the source's entry, removed",
            json!({ "ends": [failed("Destination", b)] }),
        ),
        ("a field that is there once", json!({ "errMsg": "no" })),
        ("a new field", json!({ "result": "Failed" })),
        ("a field, removed", json!({ "type": null })),
    ] {
        assert_eq!(merge(&destination, status).await, refused, "{what}");
    }
    // Nor does the source speak for the destination.
    let both = json!({ "ends": [end("Source", a), end("Destination", b)] });
    assert_eq!(merge(&source, both).await, refused);
    let other = json!({ "ends": [end("Source", a), failed("Destination", a)] });
    assert_eq!(merge(&source, other).await, refused);
    // Its own entry and the rest are its own.
    let last = json!({ "type": "failed", "errMsg": "gone", "ends": [failed("Source", a), failed("Destination", b)] });
    assert_eq!(merge(&source, last).await, "yes");
    let object = fleet.api(&source, "migrations").get(&name).await.unwrap();
    assert_eq!(object.data["status"]["errMsg"], "gone");
    // Nobody gives an object away, or takes one.
    let label = |node: &str| json!({ "metadata": { "labels": { labels::SOURCE_NODE: node } } });
    for (client, node) in [(&source, b), (&destination, b)] {
        let api = fleet.api(client, "migrations");
        let patch = Patch::Merge(label(node));
        let seen = outcome(api.patch(&name, &PatchParams::default(), &patch).await);
        assert_eq!(seen, refused);
    }
}
