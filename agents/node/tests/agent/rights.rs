//! What the token of a node's agent may do: RBAC and the admission policy of the chart, against a real
//! API server. No kubelet is needed: the API server puts the node of a pod into the pod's token.

mod fleet;

use cobalt_api::names::labels;
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use fleet::{Fleet, RELEASE, outcome};

/// Each line: the kind, the verb, and what comes of it for node A's agent: with the chart's rights on
/// its own node's object, on node B's object; then, where RBAC were as wide as it can be, again on
/// both. `yes`, `rbac` (RBAC refuses), or the rule of the policy that refuses; `-` is not tried.
const AGENT: &str = "
hypervisors   get          yes              yes              -                -
hypervisors   list         yes              yes              -                -
hypervisors   list-all     yes              yes              -                -
hypervisors   watch        yes              yes              -                -
hypervisors   create       rbac             rbac             own-hypervisor   own-hypervisor
hypervisors   apply        rbac             rbac             own-hypervisor   own-hypervisor
hypervisors   merge        rbac             rbac             own-hypervisor   own-hypervisor
hypervisors   replace      rbac             rbac             own-hypervisor   own-hypervisor
hypervisors   status       yes              own-hypervisor   yes              own-hypervisor
hypervisors   put-status   rbac             rbac             yes              own-hypervisor
hypervisors   delete       rbac             rbac             own-hypervisor   own-hypervisor
hypervisors   delete-all   rbac             rbac             -                -

evictions     get          yes              yes              -                -
evictions     list-all     yes              yes              -                -
evictions     watch        yes              yes              -                -
evictions     create       yes              own-eviction     yes              own-eviction
evictions     apply        own-eviction     own-eviction     own-eviction     own-eviction
evictions     merge        yes              own-eviction     yes              own-eviction
evictions     replace      rbac             rbac             own-eviction     own-eviction
evictions     status       rbac             rbac             own-eviction     own-eviction
evictions     put-status   rbac             rbac             own-eviction     own-eviction
evictions     delete       rbac             rbac             own-eviction     own-eviction

migrations    get          yes              yes              -                -
migrations    list-all     yes              yes              -                -
migrations    watch        yes              yes              -                -
migrations    create       yes              own-migration    yes              own-migration
migrations    apply        yes              own-migration    yes              own-migration
migrations    merge        yes              own-migration    yes              own-migration
migrations    replace      rbac             rbac             yes              own-migration
migrations    status       yes              own-migration    yes              own-migration
migrations    put-status   rbac             rbac             yes              own-migration
migrations    delete       yes              own-migration    yes              own-migration
migrations    delete-all   rbac             rbac             own-migration    own-migration

leases        get          yes              yes              -                -
leases        list         rbac             rbac             -                -
leases        watch        rbac             rbac             -                -
leases        create       yes              own-lease        yes              own-lease
leases        apply        rbac             rbac             yes              own-lease
leases        merge        rbac             rbac             yes              own-lease
leases        replace      yes              own-lease        yes              own-lease
leases        delete       rbac             rbac             own-lease        own-lease

secrets       get          rbac             rbac             -                -
secrets       list         rbac             rbac             -                -
secrets       list-all     rbac             rbac             -                -
secrets       watch        rbac             rbac             -                -
secrets       create       rbac             rbac             no-secrets       no-secrets
secrets       merge        rbac             rbac             no-secrets       no-secrets
secrets       replace      rbac             rbac             no-secrets       no-secrets
secrets       delete       rbac             rbac             no-secrets       no-secrets

certificates  get          yes              yes              -                -
certificates  list-all     rbac             rbac             -                -
certificates  create       yes              own-certificate  yes              own-certificate
certificates  apply        yes              own-certificate  yes              own-certificate
certificates  merge        yes              own-certificate  yes              own-certificate
certificates  status       rbac             rbac             own-certificate  own-certificate
certificates  delete       rbac             rbac             own-certificate  own-certificate

events        get          rbac             rbac             -                -
events        list-all     rbac             rbac             -                -
events        create       yes              own-event        yes              own-event
events        merge        yes              own-event        yes              own-event
events        delete       rbac             rbac             yes              own-event

nodes         get          rbac             rbac             -                -
nodes         merge        rbac             rbac             -                -
pods          list-all     rbac             rbac             -                -
pods          create       rbac             rbac             -                -
pods          delete       rbac             rbac             -                -
";

/// The same for the account that reads node A's Secrets. It never meets the policy.
const READER: &str = "
secrets       get          yes              rbac             -                -
secrets       list         yes              rbac             -                -
secrets       watch        yes              rbac             -                -
secrets       list-all     rbac             rbac             -                -
secrets       create       rbac             rbac             -                -
secrets       merge        rbac             rbac             -                -
secrets       replace      rbac             rbac             -                -
secrets       delete       rbac             rbac             -                -
hypervisors   get          rbac             rbac             -                -
hypervisors   status       rbac             rbac             -                -
evictions     create       rbac             rbac             -                -
migrations    create       rbac             rbac             -                -
leases        get          rbac             rbac             -                -
";

#[tokio::test]
async fn w75_an_agents_token_reaches_its_own_nodes_objects_only() {
    let fleet = Fleet::install("own").await;
    let [a, b] = &fleet.nodes;
    let agent = fleet.agent(a).await;
    fleet.check(&agent, AGENT, [2, 3]).await;

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
    fleet.check(&reader, READER, [2, 3]).await;
}

#[tokio::test]
async fn w75_the_policy_holds_where_rbac_is_too_wide() {
    let fleet = Fleet::install("wide").await;
    let [a, b] = &fleet.nodes;
    let agent = fleet.agent(a).await;
    fleet.apply(&format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata:\n  name: {0}\n\
         roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: ClusterRole\n  name: cluster-admin\n\
         subjects:\n  - kind: ServiceAccount\n    name: {RELEASE}\n    namespace: {0}\n",
        fleet.namespace
    ));
    fleet.check(&agent, AGENT, [4, 5]).await;
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

#[tokio::test]
async fn w75_an_agents_certificate_and_eviction_name_its_own_node_throughout() {
    let fleet = Fleet::install("names").await;
    let [a, b] = &fleet.nodes;
    let agent = fleet.agent(a).await;
    let post = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    for (field, value) in [
        ("secretName", json!(format!("tls-libvirt-{b}"))),
        ("commonName", json!(b)),
        ("dnsNames", json!([a, b])),
        ("isCA", json!(true)),
    ] {
        let mut object = fleet.object("certificates", a);
        object.data["spec"][field] = value;
        let api = fleet.api(&agent, "certificates");
        let seen = outcome(api.create(&post, &object).await);
        assert_eq!(seen, "own-certificate", "{field}");
    }
    // The names of other nodes' Evictions stay free, also of a node whose name begins with this one's.
    let api = fleet.api(&agent, "evictions");
    let mut object = fleet.object("evictions", a);
    let id = "0b5f2c5e-93b8-4d2a-8a4b-6b0f6d2b7c11";
    for (name, wanted) in [
        (a.clone(), "yes"),
        (format!("{a}-0123abcd"), "yes"),
        (format!("{a}-0123abcd-9"), "yes"),
        (format!("{a}-{id}"), "yes"),
        (format!("{a}-{id}-2"), "yes"),
        (b.clone(), "own-eviction"),
        (format!("{b}-{id}"), "own-eviction"),
        (format!("{a}-b"), "own-eviction"),
        (format!("{a}1"), "own-eviction"),
    ] {
        object.metadata.name = Some(name.clone());
        assert_eq!(outcome(api.create(&post, &object).await), wanted, "{name}");
    }
    // The refusal tells the rule and what to do; a name that the server makes is judged as well.
    object.metadata.name = None;
    object.metadata.generate_name = Some(format!("{b}-"));
    let refused = api.create(&post, &object).await.unwrap_err().to_string();
    assert!(
        refused.contains(&format!("named {a} or {a}-ID only")),
        "{refused}"
    );
}
