//! Several operators, of which one acts.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support::{Operator, Site, kill, unique, until};

/// One of the operators that compete.
fn candidate(site: &Site, namespace: &str, identity: &str) -> Operator {
    let arguments = ["--leader-elect", "--leader-elect-namespace", namespace];
    let arguments = [&arguments[..], &["--identity", identity]].concat();
    site.operator_with(&arguments, &[])
}

async fn leads(operator: &Operator) -> bool {
    operator.metric("cobalt_operator_leader ").await == 1.0
}

async fn until_leads(operator: &Operator) {
    until("it leads", || async { leads(operator).await.then_some(()) }).await;
}

/// The Lease of this test's operators, by who holds it.
async fn holder(site: &Site, namespace: &str) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(site.client.clone(), namespace);
    let all = leases.list(&ListParams::default()).await.unwrap().items;
    let [lease] = all.as_slice() else {
        return None;
    };
    lease.spec.as_ref()?.holder_identity.clone()
}

async fn until_holds(site: &Site, namespace: &str, identity: &str) {
    until("the Lease is held", || async {
        let holder = holder(site, namespace).await?;
        holder.starts_with(&format!("{identity}_")).then_some(())
    })
    .await;
}

/// A new Node gets its Hypervisor: somebody acts.
async fn acts(site: &Site) {
    let name = unique("led");
    let node = site.node(&name, "true");
    site.nodes()
        .create(&PostParams::default(), &node)
        .await
        .unwrap();
    site.hypervisor(&name, "appears", |_| true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_acts_and_the_other_takes_over_when_it_is_killed_or_stopped() {
    let site = Site::new("leader").await;
    let namespace = site.namespace().await;
    let first = candidate(&site, &namespace, "first");
    until_leads(&first).await;
    until_holds(&site, &namespace, "first").await;
    let second = candidate(&site, &namespace, "second");
    acts(&site).await;
    second.looks(2).await;
    assert!(!leads(&second).await, "it waits for its turn");

    // Nobody renews the Lease any more.
    first.kill().await;
    until_leads(&second).await;
    until_holds(&site, &namespace, "second").await;
    acts(&site).await;

    // One that is told to end lets go of the Lease, and nobody has to wait for it.
    let third = candidate(&site, &namespace, "third");
    third.looks(1).await;
    assert!(!leads(&third).await, "it waits for its turn");
    let ended = second.stop().await;
    assert!(ended.success(), "{ended}");
    let now = holder(&site, &namespace).await.unwrap();
    assert!(!now.starts_with("second_"), "it holds on to the Lease");
    until_leads(&third).await;
    acts(&site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_slept_too_long_ends_and_writes_nothing() {
    let site = Site::new("asleep").await;
    let namespace = site.namespace().await;
    let mut first = candidate(&site, &namespace, "first");
    until_leads(&first).await;
    let second = candidate(&site, &namespace, "second");
    acts(&site).await;
    kill(first.pid(), "STOP");
    until_holds(&site, &namespace, "second").await;
    until_leads(&second).await;
    acts(&site).await;

    // There is something to do, and only the one that wakes up could do it.
    kill(second.pid(), "STOP");
    let name = unique("nobody");
    let node = site.node(&name, "true");
    site.nodes()
        .create(&PostParams::default(), &node)
        .await
        .unwrap();
    kill(first.pid(), "CONT");
    let ended = first.ended().await;
    assert_eq!(ended.code(), Some(1), "{}", first.log());
    assert!(first.log().contains("the Lease"), "{}", first.log());
    let object = site.hypervisors().get_opt(&name).await.unwrap();
    assert!(object.is_none(), "it wrote although it did not lead");
    second.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_the_operator_before_is_respected() {
    let site = Site::new("gos-lease").await;
    let namespace = site.namespace().await;
    // Which one it is, is found from one of ours.
    let ours = candidate(&site, &namespace, "ours");
    until_leads(&ours).await;
    assert!(ours.stop().await.success());
    let leases: Api<Lease> = Api::namespaced(site.client.clone(), &namespace);
    let all = leases.list(&ListParams::default()).await.unwrap().items;
    let name = all[0].name_any();
    let write = async |spec: serde_json::Value| {
        let params = PatchParams::default();
        let patch = json!({ "spec": spec });
        leases
            .patch(&name, &params, &Patch::Merge(&patch))
            .await
            .unwrap();
    };
    // As client-go writes it.
    let now = || {
        let now = jiff::Timestamp::now();
        now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
    };
    let taken = now();
    let held = || {
        json!({
            "holderIdentity": "hypervisor-operator-7d9f8b5c4-x2x7k_6f1c2a34-5b6d-4e7f-8a9b-0c1d2e3f4a5b",
            "leaseDurationSeconds": 15,
            "acquireTime": taken,
            "renewTime": now(),
            "leaseTransitions": 41,
        })
    };
    write(held()).await;
    let ours = candidate(&site, &namespace, "ours");
    let host = unique("held");
    let node = site.node(&host, "true");
    site.nodes()
        .create(&PostParams::default(), &node)
        .await
        .unwrap();
    // It knows the fleet, and does nothing for as long as the other one renews, which does so by the
    // clock.
    let renews = async {
        loop {
            write(held()).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    };
    tokio::select! {
        () = ours.looks(4) => {}
        () = renews => {}
    }
    write(held()).await;
    assert!(!leads(&ours).await);
    let object = site.hypervisors().get_opt(&host).await.unwrap();
    assert!(object.is_none(), "two operators would act");
    // As client-go lets go.
    write(json!({
        "holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": now(), "renewTime": now(),
    }))
    .await;
    until_leads(&ours).await;
    site.hypervisor(&host, "appears", |_| true).await;
    let lease = leases.get(&name).await.unwrap().spec.unwrap();
    assert_eq!(lease.lease_transitions, Some(42));
}
