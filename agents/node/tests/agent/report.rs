//! What the Hypervisor says of a host, and when it is written.

use cobalt_api::conditions::HypervisorCondition;
use cobalt_lab::plan::Flavour;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::support::{
    Agent, Hosts, condition, create_hypervisor, delete_hypervisor, hypervisors, says, server,
    state, unique, wait_until,
};

const LIBVIRT: HypervisorCondition = HypervisorCondition::LibVirtConnection;

#[tokio::test(flavor = "multi_thread")]
async fn w77_it_starts_without_anything_and_says_what_is_missing() {
    let (server, client) = server().await;
    let node = unique("bare");
    let agent = Agent::start(
        &server.kubeconfig,
        &node,
        &[
            "--libvirt-uri=qemu+unix:///system?socket=/nonexistent/libvirt-sock",
            "--bus-address=unix:path=/nonexistent/bus",
        ],
    );
    agent.serves().await;
    let (code, _) = agent.get(8081, "/healthz").await.unwrap();
    assert_eq!(code, 200, "waiting for others is healthy");
    // Its Hypervisor appears later, and it speaks at once.
    create_hypervisor(&client, &node).await;
    let seen = wait_until(&client, &node, "not connected", |hypervisor| {
        says(hypervisor, LIBVIRT, "False", "ConnectFailed")
    })
    .await;
    let message = &condition(&seen, LIBVIRT).unwrap().message;
    assert!(message.contains("/nonexistent/libvirt-sock"), "{message}");
    let (code, body) = agent.get(8081, "/readyz").await.unwrap();
    assert_eq!(code, 503, "{body}");
    assert!(body.contains("libvirt"), "{body}");
    delete_hypervisor(&client, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_to_an_instance_is_reported_and_nothing_else_is_written() {
    let (server, client) = server().await;
    let hosts = Hosts::start("report", &[Flavour::Bookworm]).await;
    let node = unique("report");
    create_hypervisor(&client, &node).await;
    hosts.define("hv1", "walker", "").await;
    let uri = hosts.libvirt_flag("hv1").await;
    let bus = format!("--bus-address={}", hosts.bus("hv1").await);
    let mut agent = Agent::start(&server.kubeconfig, &node, &[&uri, &bus]);

    let seen = wait_until(
        &client,
        &node,
        "connected, with one instance",
        |hypervisor| {
            says(hypervisor, LIBVIRT, "True", "Connected")
                && state(hypervisor, "walker") == Some("shutoff")
        },
    )
    .await;
    let status = seen.status.unwrap();
    assert_eq!(status.num_instances, Some(1));
    assert_eq!(status.lib_virt_version.as_deref(), Some("9.0.0"));
    assert_eq!(status.cells.len(), 2, "hv1 shows two NUMA cells");
    let ids: Vec<i64> = status.cells.iter().map(|cell| cell.cell_id).collect();
    assert_eq!(ids, [0, 1]);
    assert!(status.capacity.is_some() && status.effective_capacity == status.capacity);

    for (verb, wanted) in [
        ("start", Some("running")),
        ("suspend", Some("paused")),
        ("resume", Some("running")),
        ("destroy", Some("shutoff")),
        ("undefine", None),
    ] {
        hosts.virsh("hv1", &[verb, "walker"]).await;
        wait_until(&client, &node, verb, |hypervisor| {
            state(hypervisor, "walker") == wanted
        })
        .await;
    }

    // A new spec changes what follows from it.
    let patch = json!({ "spec": { "overcommit": { "cpu": 2.0 } } });
    let api = hypervisors(&client);
    api.patch(&node, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    wait_until(&client, &node, "overcommitted", |hypervisor| {
        let status = hypervisor.status.as_ref().unwrap();
        status.effective_capacity != status.capacity
    })
    .await;

    // Told to end, it does; started anew, it has nothing to write.
    agent.end().await;
    let seen = api.get(&node).await.unwrap();
    let again = Agent::start(
        &server.kubeconfig,
        &node,
        &[&uri, &bus, "--resync-interval=100ms"],
    );
    again.serves().await;
    again
        .counts("cobalt_node_agent_full_reads_total", 5.0)
        .await;
    let now = api.get(&node).await.unwrap();
    assert_eq!(now.status, seen.status, "{}", again.log());
    assert_eq!(
        now.resource_version(),
        seen.resource_version(),
        "{}",
        again.log()
    );
    assert!(again.metric("cobalt_node_agent_status_writes_total").await < 1.0);
    delete_hypervisor(&client, &node).await;
}

/// libvirt tells that a guest has stopped before it forgets it, and does not tell the latter of one
/// that has left by a migration.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_left_by_a_migration_is_not_reported_any_more() {
    let (server, client) = server().await;
    let hosts = Hosts::start("leaving", &[Flavour::Bookworm, Flavour::Bookworm]).await;
    let node = unique("leaving");
    create_hypervisor(&client, &node).await;
    let uri = hosts.libvirt_flag("hv1").await;
    let agent = Agent::start(&server.kubeconfig, &node, &[&uri]);
    // After the last of the reads that follow a connection.
    agent.serves().await;
    agent
        .counts("cobalt_node_agent_full_reads_total", 3.0)
        .await;
    const GUESTS: i64 = 8;
    for number in 0..GUESTS {
        let name = format!("leaver-{number}");
        hosts.define("hv1", &name, "").await;
        hosts.virsh("hv1", &["start", &name]).await;
    }
    let counts = async |what: &str, active: bool, wanted: usize| {
        wait_until(&client, &node, what, |hypervisor| {
            let status = hypervisor.status.as_ref();
            let all = status.map_or(&[][..], |status| status.instances.as_slice());
            all.len() == wanted && all.iter().all(|one| one.active == active)
        })
        .await
    };
    counts("all run", true, 8).await;
    let script = format!(
        "for n in $(seq 0 {}); do virsh migrate --live --p2p --persistent --undefinesource \
         leaver-$n qemu+tcp://hv2/system & done; wait; virsh list --all --name",
        GUESTS - 1
    );
    let left = hosts.sh("hv1", &script).await;
    assert!(!left.contains("leaver"), "{left}");
    counts("none is left", false, 0).await;
    delete_hypervisor(&client, &node).await;
}
