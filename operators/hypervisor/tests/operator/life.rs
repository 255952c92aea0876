//! A host from its first Node to the last trace of it.

use cobalt_api::conditions::{HypervisorCondition as Type, Reason, Status};
use cobalt_api::hypervisor::{CheckResult, Hypervisor, Phase};
use cobalt_api::names::{annotations, finalizers, labels, leases};
use cobalt_api::ovsnode::OvsNode;
use cobalt_openstack::compute::ServiceStatus;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::cloud::{TEST_AGGREGATE, ZONE};
use crate::support::{PATIENCE, Site, unique, until};

fn check(object: &Hypervisor, name: &str) -> CheckResult {
    let checks = &object.status.as_ref().unwrap().checks;
    checks
        .iter()
        .find(|check| check.name == name)
        .unwrap()
        .result
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_becomes_active_works_and_leaves_nothing_behind() {
    let site = Site::new("life").await;
    let (first, second) = (unique("first"), unique("second"));
    let operator = site.operator();

    // From nothing to Active. The first of its kind has nobody to migrate to.
    site.host(&first).await;
    let object = site.phase(&first, Phase::Active).await;
    assert_eq!(check(&object, "boot"), CheckResult::Passed);
    assert_eq!(check(&object, "migrate-out"), CheckResult::Skipped);
    assert_eq!(object.labels()[labels::ZONE], ZONE);
    assert!(
        object
            .finalizers()
            .contains(&finalizers::REGISTERED_HOST.to_owned())
    );
    assert_eq!(object.spec.aggregates(), [ZONE]);
    let service = site.cloud.service(&first).await.unwrap();
    assert_eq!(service.status, ServiceStatus::Enabled);
    assert_eq!(site.cloud.aggregates(&first).await, [ZONE]);
    assert_eq!(site.cloud.traits(&first).await, ["CUSTOM_COBALT_TEST"]);

    // The second one has.
    site.host(&second).await;
    let object = site.phase(&second, Phase::Active).await;
    assert_eq!(check(&object, "migrate-out"), CheckResult::Passed);
    assert_eq!(check(&object, "migrate-in"), CheckResult::Passed);
    let left = site.cloud.test_servers(&format!("ohooc--{second}")).await;
    assert_eq!(left, [""; 0]);

    // Somebody changes Nova and Placement behind our back: it is repaired.
    let nova = site.cloud.client();
    let zones = nova.compute().aggregates().await.unwrap();
    let zone = zones.iter().find(|one| one.name == ZONE).unwrap();
    nova.compute().remove_host(zone.id, &second).await.unwrap();
    until("the host is back in its zone", || async {
        (site.cloud.aggregates(&second).await == [ZONE]).then_some(())
    })
    .await;

    // Maintenance, and back in the middle of it.
    let vm = site.cloud.boot(&unique("vm"), &second).await;
    // It cannot be moved.
    site.cloud
        .server_action(&vm, json!({ "suspend": null }))
        .await;
    site.patch(
        &second,
        json!({ "spec": { "maintenance": "manual", "maintenanceReason": "a fan" } }),
    )
    .await;
    site.condition(&second, Type::Evicting, Status::True, Reason::Running)
        .await;
    let service = site.cloud.service(&second).await.unwrap();
    assert_eq!(service.status, ServiceStatus::Disabled);
    assert!(service.disabled_reason.unwrap().contains("a fan"));
    site.patch(&second, json!({ "spec": { "maintenance": "" } }))
        .await;
    site.phase(&second, Phase::Active).await;
    until("the service is enabled", || async {
        let service = site.cloud.service(&second).await.unwrap();
        (service.status == ServiceStatus::Enabled).then_some(())
    })
    .await;
    assert!(site.evictions().get_opt(&second).await.unwrap().is_none());

    // It leaves for good. The instance holds it up until it is gone, whatever an Eviction says.
    site.fake_ended_eviction(&second, Reason::Succeeded).await;
    site.patch(&second, json!({ "spec": { "maintenance": "termination" } }))
        .await;
    site.hypervisor(&second, "waits for the instance", |object| {
        let status = object.status.as_ref();
        let wait = status.and_then(|status| status.waiting_for.as_ref());
        wait.is_some_and(|wait| wait.message.as_ref().is_some_and(|text| text.contains(&vm)))
    })
    .await;
    assert!(site.cloud.service(&second).await.is_some());
    // Its agent claims to be the other host: Nova and Placement are asked by name all the same.
    let other = site.hypervisors().get(&first).await.unwrap();
    let other = other.status.unwrap().hypervisor_id.unwrap();
    let forged = json!({ "status": { "hypervisorId": other } });
    site.hypervisors()
        .patch_status(&second, &PatchParams::default(), &Patch::Merge(&forged))
        .await
        .unwrap();
    site.cloud.delete(&vm).await;
    site.cloud.stop_host(&second).await;
    site.phase(&second, Phase::Decommissioned).await;
    assert!(site.cloud.has_nothing_of(&second).await);
    let left = site.cloud.aggregates(&first).await;
    assert_eq!(left, [ZONE], "the other host is untouched");
    let provider = nova.placement().provider_named(&first).await.unwrap();
    assert_eq!(provider.unwrap().uuid, other, "and so is its provider");
    drop(operator);
}

/// What the Open vSwitch agent says decides about a host, in whichever namespace it says it. It may
/// have said it before the host was one of ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_waits_for_its_bridges_and_is_not_ready_without_open_vswitch() {
    let site = Site::new("bridges").await;
    let name = unique("bridges");
    let nodes: Api<OvsNode> = Api::namespaced(site.client.clone(), &site.namespace().await);
    let node = serde_json::from_value(json!({
        "apiVersion": "ovs.c5c3.io/v1alpha1", "kind": "OVSNode",
        "metadata": { "name": name }, "spec": { "nodeRef": { "name": name } },
    }));
    let node: OvsNode = node.unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let fake_agent_says = async |bridges: (bool, &str), ready: (bool, &str)| {
        let condition = |type_: &str, (good, message): (bool, &str)| {
            json!({
                "type": type_, "status": if good { "True" } else { "False" },
                "reason": "Test", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        let all = [
            condition("AllBridgesHealthy", bridges),
            condition("Ready", ready),
        ];
        let (how, patch) = (
            PatchParams::default(),
            Patch::Merge(json!({ "status": { "conditions": all } })),
        );
        nodes.patch_status(&name, &how, &patch).await.unwrap();
    };
    let broken = (false, "br-int is missing");
    fake_agent_says(broken, broken).await;

    let operator = site.operator();
    operator.rounds(1).await;
    site.host(&name).await;
    site.hypervisor(&name, "waits for its bridges", |object| {
        let status = object.status.as_ref();
        let wait = status.and_then(|status| status.waiting_for.as_ref());
        let text = wait.and_then(|wait| wait.message.as_deref());
        text.is_some_and(|text| text.contains("bridges: br-int is missing"))
    })
    .await;
    let good = (true, "3 bridges");
    fake_agent_says(good, good).await;
    let object = site.phase(&name, Phase::Active).await;
    assert_eq!(check(&object, "bridges"), CheckResult::Passed);

    fake_agent_says(good, (false, "ovs-vswitchd does not answer")).await;
    let says = |object: &Hypervisor, status: Status, text: &str| {
        let all = object.status.as_ref().map(|status| &status.conditions);
        let ready = all.and_then(|all| cobalt_api::conditions::find(all, Type::Ready));
        ready.is_some_and(|one| one.status == status.as_str() && one.message.contains(text))
    };
    site.hypervisor(&name, "not ready", |object| {
        let text = "Open vSwitch: ovs-vswitchd does not answer";
        says(object, Status::False, text)
    })
    .await;
    fake_agent_says(good, good).await;
    site.hypervisor(&name, "ready", |object| says(object, Status::True, ""))
        .await;

    // The host loses its power: nobody renews the Lease, and the kubelet is silent.
    site.make_namespace(leases::NODE_AGENT_NAMESPACE).await;
    let beats: Api<Lease> = Api::namespaced(site.client.clone(), leases::NODE_AGENT_NAMESPACE);
    let beat = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "holderIdentity": "agent", "leaseDurationSeconds": 1,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        },
    }));
    let beat: Lease = beat.unwrap();
    beats.create(&PostParams::default(), &beat).await.unwrap();
    let silent = json!({ "status": { "conditions": [{
        "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "lastTransitionTime": "2026-01-01T00:00:30Z",
    }] } });
    let how = PatchParams::default();
    let patched = site
        .nodes()
        .patch_status(&name, &how, &Patch::Merge(&silent))
        .await;
    patched.unwrap();
    // What the agents said last is not known any more. The stand-in for the node agent writes at
    // once again, which the operator does not fight.
    let object = site
        .condition(
            &name,
            Type::LibVirtConnection,
            Status::Unknown,
            Reason::AgentSilent,
        )
        .await;
    let all = &object.status.as_ref().unwrap().conditions;
    let libvirt = cobalt_api::conditions::find(all, Type::LibVirtConnection).unwrap();
    let since = "since 2026-01-01T00:00:00Z";
    assert!(libvirt.message.contains(since), "{}", libvirt.message);
    let stale = |node: Option<&OvsNode>| {
        let status = node.and_then(|node| node.status.as_ref());
        status.is_some_and(|status| {
            let mut all = status.conditions.iter();
            all.all(|one| one.status == "Unknown" && one.reason == "AgentSilent")
        })
    };
    let marked = await_condition(nodes.clone(), &name, stale);
    tokio::time::timeout(PATIENCE, marked)
        .await
        .unwrap()
        .unwrap();
    site.condition(
        &name,
        Type::LibVirtConnection,
        Status::True,
        Reason::Connected,
    )
    .await;
    operator.rounds(2).await;
    let object = site.hypervisors().get(&name).await.unwrap();
    let all = &object.status.as_ref().unwrap().conditions;
    assert!(cobalt_api::conditions::is_true(
        all,
        Type::LibVirtConnection
    ));

    // Both are back.
    let renewed = json!({ "spec": { "renewTime": "2026-01-01T00:10:00.000000Z" } });
    beats
        .patch(&name, &how, &Patch::Merge(&renewed))
        .await
        .unwrap();
    let ready = json!({ "status": { "conditions": [{
        "type": "Ready", "status": "True", "reason": "KubeletReady",
        "lastTransitionTime": "2026-01-01T00:10:00Z",
    }] } });
    let patched = site
        .nodes()
        .patch_status(&name, &how, &Patch::Merge(&ready))
        .await;
    patched.unwrap();
    fake_agent_says(good, good).await;
    site.hypervisor(&name, "ready", |object| says(object, Status::True, ""))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn w13_w19_a_host_that_fails_its_test_is_given_up_and_can_be_tried_again() {
    let site = Site::new("fails").await;
    let name = unique("fails");
    site.cloud.add_host(&name).await;
    site.cloud.knob("fail_spawn", &name, true).await;
    let _operator = site.operator_with(&["--test-attempts", "2"], &[]);
    site.join(&site.node(&name, "true")).await;
    let object = site.phase(&name, Phase::Aborted).await;
    assert_eq!(check(&object, "boot"), CheckResult::Failed);
    let status = object.status.as_ref().unwrap();
    let condition = cobalt_api::conditions::find(&status.conditions, Type::Onboarding).unwrap();
    assert!(
        condition.message.contains("cobalt onboard retry"),
        "{}",
        condition.message
    );
    let service = site.cloud.service(&name).await.unwrap();
    assert_eq!(service.status, ServiceStatus::Disabled);
    assert_eq!(
        site.cloud.test_servers(&format!("ohooc--{name}")).await,
        [""; 0]
    );
    // It stays away from tenants.
    assert!(
        site.cloud
            .aggregates(&name)
            .await
            .contains(&TEST_AGGREGATE.to_owned())
    );

    site.cloud.knob("fail_spawn", &name, false).await;
    let wish = json!({ "metadata": { "annotations": { annotations::RETRY_ONBOARDING: "now" } } });
    site.patch(&name, wish).await;
    let object = site.phase(&name, Phase::Active).await;
    assert_eq!(check(&object, "boot"), CheckResult::Passed);
    site.hypervisor(&name, "the wish is gone", |object| {
        !object
            .annotations()
            .contains_key(annotations::RETRY_ONBOARDING)
    })
    .await;
}
