//! The Hypervisor follows its Node, level by level.

use std::collections::BTreeMap;

use cobalt_api::conditions::{self, HypervisorCondition as Type, Reason, Status};
use cobalt_api::hypervisor::{Hypervisor, Maintenance, Phase};
use cobalt_api::names::{FieldManager, annotations, finalizers, labels};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions::is_deleted};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cloud::ZONE;
use crate::support::{PATIENCE, Site, unique, until};
use crate::writes::Writes;

/// Labels that a Hypervisor has from its Node.
const COPIED: [&str; 9] = [
    labels::HOSTNAME,
    labels::BUILDING_BLOCK,
    labels::METAL_CLUSTER,
    labels::METAL_NAME,
    labels::METAL_TYPE,
    labels::WORKER_GROUP,
    labels::WORKER_POOL,
    labels::REGION,
    labels::ZONE,
];

async fn create(site: &Site, node: &Node) {
    let params = PostParams::default();
    site.nodes().create(&params, node).await.unwrap();
}

async fn patch_node(site: &Site, name: &str, patch: Value) {
    let params = PatchParams::default();
    site.nodes()
        .patch(name, &params, &Patch::Merge(&patch))
        .await
        .unwrap();
}

async fn patch_node_status(site: &Site, name: &str, patch: Value) {
    let params = PatchParams::default();
    site.nodes()
        .patch_status(name, &params, &Patch::Merge(&patch))
        .await
        .unwrap();
}

async fn set_labels(site: &Site, name: &str, labels: &BTreeMap<&str, Option<String>>) {
    patch_node(site, name, json!({ "metadata": { "labels": labels } })).await;
}

fn is_held(object: &Hypervisor) -> bool {
    let all = object.finalizers();
    all.iter().any(|one| one == finalizers::REGISTERED_HOST)
}

fn waits_for_nova(object: &Hypervisor) -> bool {
    let status = object.status.as_ref();
    let wait = status.and_then(|status| status.waiting_for.as_ref());
    wait.is_some_and(|wait| wait.reason == "NovaRegistration")
}

#[tokio::test(flavor = "multi_thread")]
async fn w24_labels_and_annotations_appear_change_and_are_removed() {
    let site = Site::new("follows").await;
    let name = unique("follows");
    let _operator = site.operator();
    let mut node = site.node(&name, labels::LIFECYCLE_SKIP_TESTS);
    for key in COPIED {
        node.labels_mut().insert(key.to_owned(), "one".to_owned());
    }
    node.labels_mut()
        .insert("example.com/other".to_owned(), "own".to_owned());
    node.annotations_mut()
        .insert(annotations::AGGREGATES.to_owned(), " b, a,b ,".to_owned());
    create(&site, &node).await;
    let object = site
        .hypervisor(&name, "appears", |object| object.status.is_some())
        .await;
    for key in COPIED {
        assert_eq!(object.labels()[key], "one", "{key}");
    }
    let key_of_selector = site.selector();
    let (key, value) = key_of_selector.split_once('=').unwrap();
    assert_eq!(object.labels()[key], value, "keys of the selector");
    assert!(!object.labels().contains_key("example.com/other"));
    assert_eq!(object.spec.aggregates(), ["b", "a", "one"]);
    assert_eq!(object.spec.custom_traits(), ["CUSTOM_COBALT_TEST"]);
    assert!(object.spec.skip_tests());
    let owner = &object.owner_references()[0];
    assert_eq!(
        owner.uid,
        site.nodes().get(&name).await.unwrap().uid().unwrap()
    );
    assert_eq!((owner.kind.as_str(), owner.controller), ("Node", None));

    // They change.
    let two = COPIED.map(|key| (key, Some("two".to_owned()))).into();
    set_labels(&site, &name, &two).await;
    site.hypervisor(&name, "new labels", |object| {
        COPIED.iter().all(|key| object.labels()[*key] == "two")
            && object.spec.aggregates() == ["b", "a", "two"]
    })
    .await;
    let lists = json!({ "metadata": { "annotations": {
        annotations::AGGREGATES: "c",
        annotations::CUSTOM_TRAITS: "CUSTOM_B,CUSTOM_A",
    } } });
    patch_node(&site, &name, lists).await;
    site.hypervisor(&name, "new lists", |object| {
        object.spec.aggregates() == ["c", "two"]
            && object.spec.custom_traits() == ["CUSTOM_B", "CUSTOM_A"]
    })
    .await;

    // They go. What others have put on the Hypervisor stays.
    site.patch(
        &name,
        json!({ "metadata": { "labels": { "example.com/theirs": "yes" } } }),
    )
    .await;
    let gone = COPIED.map(|key| (key, None)).into();
    set_labels(&site, &name, &gone).await;
    let lists = json!({ "metadata": { "annotations": {
        annotations::AGGREGATES: null,
        annotations::CUSTOM_TRAITS: null,
    } } });
    patch_node(&site, &name, lists).await;
    let object = site
        .hypervisor(&name, "nothing left", |object| {
            COPIED.iter().all(|key| !object.labels().contains_key(*key))
                && object.spec.aggregates().is_empty()
                && object.spec.custom_traits().is_empty()
        })
        .await;
    assert_eq!(object.labels()["example.com/theirs"], "yes");
    assert_eq!(object.labels()[key], value);
}

#[tokio::test(flavor = "multi_thread")]
async fn w29_a_new_hypervisor_has_the_defaults_of_its_definition() {
    let site = Site::new("defaults").await;
    let (with, without, guest) = (unique("with"), unique("without"), unique("no-driver"));
    let operator = site.operator();
    create(&site, &site.node(&with, "true")).await;
    let mut node = site.node(&without, "true");
    node.labels_mut().remove(labels::LIFECYCLE);
    create(&site, &node).await;
    let mut node = site.node(&guest, "true");
    node.labels_mut().remove(labels::VIRT_DRIVER);
    create(&site, &node).await;

    let object = site
        .hypervisor(&with, "appears", |object| object.status.is_some())
        .await;
    let spec = serde_json::to_value(&object.spec).unwrap();
    for (key, default) in [
        ("reboot", json!(false)),
        ("evacuateOnReboot", json!(true)),
        ("lifecycleEnabled", json!(true)),
        ("skipTests", json!(false)),
        ("allowedProjects", json!([])),
        ("highAvailability", json!(true)),
        ("createCertManagerCertificate", json!(false)),
        ("installCertificate", json!(true)),
    ] {
        assert_eq!(spec[key], default, "{key}");
    }
    assert!(is_held(&object));

    let object = site
        .hypervisor(&without, "appears", |object| object.status.is_some())
        .await;
    assert!(!object.spec.lifecycle_enabled(), "nobody has asked for it");
    assert!(!is_held(&object), "a host that is not ours goes freely");
    let status = object.status.unwrap();
    assert_eq!(status.phase, Some(Phase::Initial));

    operator.rounds(2).await;
    let other = site.hypervisors().get_opt(&guest).await.unwrap();
    assert!(other.is_none(), "a Node without the label is no hypervisor");
    // It becomes one.
    let label = [(labels::VIRT_DRIVER, Some("libvirt".to_owned()))].into();
    set_labels(&site, &guest, &label).await;
    site.hypervisor(&guest, "appears", |_| true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn w38_a_node_changes_while_its_host_leaves() {
    let site = Site::new("frozen").await;
    let name = unique("frozen");
    let _operator = site.operator();
    create(&site, &site.node(&name, "true")).await;
    site.hypervisor(&name, "waits for Nova", waits_for_nova)
        .await;

    // The machine is to go: the host leaves by itself, and says so.
    let condition = |status: &str| {
        json!({ "status": { "conditions": [{
            "type": "Terminating", "status": status, "reason": "Machine", "message": "a new image",
        }] } })
    };
    patch_node_status(&site, &name, condition("True")).await;
    let object = site
        .condition(&name, Type::Terminating, Status::True, Reason::Terminating)
        .await;
    let all = &object.status.as_ref().unwrap().conditions;
    let text = &conditions::find(all, Type::Terminating).unwrap().message;
    assert!(text.contains("a new image"), "{text}");
    site.hypervisor(&name, "leaves", |object| {
        object.spec.maintenance() == Maintenance::Termination
    })
    .await;

    // The API server refuses any change of the spec now; labels and the status go on.
    let changes = json!({ "metadata": {
        "annotations": { annotations::CUSTOM_TRAITS: "CUSTOM_LATE" },
        "labels": { labels::WORKER_POOL: "late" },
    } });
    patch_node(&site, &name, changes).await;
    let address = json!({ "status": { "addresses": [
        { "type": "InternalIP", "address": "10.9.8.7" },
    ] } });
    patch_node_status(&site, &name, address).await;
    let object = site
        .hypervisor(&name, "the address and the label are new", |object| {
            let status = object.status.as_ref().unwrap();
            status.internal_ip.as_deref() == Some("10.9.8.7")
                && object.labels().get(labels::WORKER_POOL).map(String::as_str) == Some("late")
        })
        .await;
    assert_eq!(object.spec.custom_traits(), ["CUSTOM_COBALT_TEST"]);

    // It stays after all.
    patch_node_status(&site, &name, condition("False")).await;
    site.hypervisor(&name, "does not terminate", |object| {
        let all = &object.status.as_ref().unwrap().conditions;
        conditions::find(all, Type::Terminating).is_none()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn w42_a_hand_in_the_spec_is_told_and_can_be_taken_back() {
    let site = Site::new("tainted").await;
    let name = unique("tainted");
    let _operator = site.operator();
    create(&site, &site.node(&name, "true")).await;
    site.condition(&name, Type::Tainted, Status::False, Reason::NoKubectl)
        .await;
    let api: Api<Hypervisor> = site.hypervisors();
    let by = |manager: &str| PatchParams {
        field_manager: Some(manager.to_owned()),
        ..PatchParams::default()
    };
    // A label changes no generation, and counts.
    let label = json!({ "metadata": { "labels": { "example.com/hand": "yes" } } });
    api.patch(&name, &by("kubectl-label"), &Patch::Merge(&label))
        .await
        .unwrap();
    let object = site
        .condition(&name, Type::Tainted, Status::True, Reason::Kubectl)
        .await;
    let all = &object.status.as_ref().unwrap().conditions;
    let tainted = conditions::find(all, Type::Tainted).unwrap();
    assert!(tainted.message.contains("kubectl-label"), "{tainted:?}");
    assert_eq!(tainted.observed_generation, object.metadata.generation);
    // What the hand has set is taken back: nothing of it is left.
    let label = json!({ "metadata": { "labels": { "example.com/hand": null } } });
    api.patch(&name, &by("kubectl-label"), &Patch::Merge(&label))
        .await
        .unwrap();
    site.condition(&name, Type::Tainted, Status::False, Reason::NoKubectl)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn w40_w48_heartbeats_and_two_addresses_cost_no_write() {
    let site = Site::new("heartbeats").await;
    let names = [unique("beats"), unique("beats"), unique("beats")];
    let operator = site.operator();
    let addresses = |all: [&str; 2], beat: &str| {
        json!({ "status": {
            "addresses": all.map(|one| json!({ "type": "InternalIP", "address": one })),
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady",
                "message": format!("beat {beat}"), "lastHeartbeatTime": beat,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        } })
    };
    for name in &names {
        create(&site, &site.node(name, "true")).await;
        let status = addresses(["10.1.1.1", "fd00::1"], "2026-01-01T00:00:00Z");
        patch_node_status(&site, name, status).await;
        site.hypervisor(name, "has an address", |object| {
            let status = object.status.as_ref();
            waits_for_nova(object)
                && status.is_some_and(|one| one.internal_ip.as_deref() == Some("10.1.1.1"))
        })
        .await;
    }
    operator.rounds(2).await;
    let writes = Writes::of(&site).await;
    for beat in 1..=9 {
        let time = format!("2026-01-01T00:0{beat}:00Z");
        // The kubelet gives the addresses in another order now and then.
        let order = match beat % 2 {
            0 => ["10.1.1.1", "fd00::1"],
            _ => ["fd00::1", "10.1.1.1"],
        };
        for name in &names {
            patch_node_status(&site, name, addresses(order, &time)).await;
        }
    }
    operator.rounds(2).await;
    assert_eq!(writes.count().await, 0);
    // The same watch shows a real change: the address that it had is gone.
    let one = addresses(["fd00::1", "fd00::2"], "2026-01-01T00:10:00Z");
    patch_node_status(&site, &names[0], one).await;
    site.hypervisor(&names[0], "has the other address", |object| {
        let status = object.status.as_ref().unwrap();
        status.internal_ip.as_deref() == Some("fd00::1")
    })
    .await;
    assert_eq!(writes.count().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_node_is_another_host() {
    let site = Site::new("renamed").await;
    let (old, new) = (unique("old"), unique("new"));
    let _operator = site.operator();
    create(&site, &site.node(&old, "true")).await;
    site.hypervisor(&old, "waits for Nova", waits_for_nova)
        .await;
    let uid = site.hypervisors().get(&old).await.unwrap().uid().unwrap();
    site.delete_node(&old).await;
    create(&site, &site.node(&new, "true")).await;
    let object = site
        .hypervisor(&new, "waits for Nova", waits_for_nova)
        .await;
    assert_eq!(object.owner_references()[0].name, new);
    // This API server has no garbage collector: its part is done here. Nova never knew the host,
    // so nothing holds it.
    site.hypervisors()
        .delete(&old, &DeleteParams::default())
        .await
        .unwrap();
    let gone = await_condition(site.hypervisors(), &old, is_deleted(&uid));
    tokio::time::timeout(PATIENCE, gone).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn w14_a_lifecycle_that_was_switched_off_can_be_switched_on() {
    let site = Site::new("switched").await;
    let name = unique("switched");
    site.cloud.knob("silent_console", &name, true).await;
    let _operator = site.operator();
    site.host(&name).await;
    site.condition(&name, Type::Onboarding, Status::True, Reason::Testing)
        .await;
    // Off in the middle of the tests: they are given up, and the host is left alone.
    set_labels(&site, &name, &[(labels::LIFECYCLE, None)].into()).await;
    let object = site
        .condition(&name, Type::Onboarding, Status::False, Reason::Aborted)
        .await;
    assert!(!object.spec.lifecycle_enabled());
    assert!(!is_held(&object));
    let left = site.cloud.test_servers(&format!("ohooc--{name}")).await;
    assert_eq!(left, [""; 0]);
    // On again.
    site.cloud.knob("silent_console", &name, false).await;
    let on = [(labels::LIFECYCLE, Some("true".to_owned()))].into();
    set_labels(&site, &name, &on).await;
    let object = site.phase(&name, Phase::Active).await;
    assert!(is_held(&object));
    assert_eq!(site.cloud.aggregates(&name).await, [ZONE]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_partitions_do_not_touch_each_other() {
    let site = Site::new("partition").await;
    let half = |number: &str| format!("{},example.com/half={number}", site.selector());
    let (left, right) = (unique("left"), unique("right"));
    let (one, two) = (
        site.operator_of(&half("1"), &[], &[]),
        site.operator_of(&half("2"), &[], &[]),
    );
    for (name, number) in [(&left, "1"), (&right, "2")] {
        let mut node = site.node(name, "true");
        node.labels_mut()
            .insert("example.com/half".to_owned(), number.to_owned());
        create(&site, &node).await;
        let object = site
            .hypervisor(name, "waits for Nova", waits_for_nova)
            .await;
        assert_eq!(object.labels()["example.com/half"], number);
    }
    one.rounds(1).await;
    two.rounds(1).await;
    // With one half's operator away, nobody writes that half.
    two.kill().await;
    let writes = Writes::of(&site).await;
    let pool = |value: &str| [(labels::WORKER_POOL, Some(value.to_owned()))].into();
    set_labels(&site, &right, &pool("a")).await;
    set_labels(&site, &left, &pool("a")).await;
    site.hypervisor(&left, "follows", |object| {
        object.labels().contains_key(labels::WORKER_POOL)
    })
    .await;
    one.rounds(2).await;
    assert_eq!(writes.until_now(&right).await.len(), 0);
    // It follows as soon as its own operator is back.
    let _two = site.operator_of(&half("2"), &[], &[]);
    let object = site
        .hypervisor(&right, "follows", |object| {
            object.labels().contains_key(labels::WORKER_POOL)
        })
        .await;
    let managers = object.managed_fields().iter();
    let ours = FieldManager::Hypervisor.as_str();
    assert!(
        managers
            .filter_map(|one| one.manager.as_deref())
            .any(|one| one == ours)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_joins_a_partition_brings_its_objects() {
    let site = Site::new("joins").await;
    let half = |number: &str| format!("{},example.com/half={number}", site.selector());
    let namespace = site.namespace().await;
    let arguments = [
        "--lifecycle-image",
        "registry.example.com/hold:1",
        "--lifecycle-namespace",
        &namespace,
    ];
    let name = unique("moves");
    let one = site.operator_of(&half("1"), &arguments, &[]);
    let two = site.operator_of(&half("2"), &arguments, &[]);
    let mut node = site.node(&name, "true");
    let labels = node.labels_mut();
    labels.insert("example.com/half".to_owned(), "1".to_owned());
    create(&site, &node).await;
    let deployments: Api<Deployment> = Api::namespaced(site.client.clone(), &namespace);
    let hold = format!("maint-{name}");
    until("the node is held", || async {
        deployments.get_opt(&hold).await.unwrap()
    })
    .await;
    // The other one has seen the objects, and they are nothing to it.
    one.rounds(1).await;
    two.rounds(1).await;
    one.kill().await;

    let moved = [("example.com/half", Some("2".to_owned()))].into();
    set_labels(&site, &name, &moved).await;
    site.hypervisor(&name, "has moved", |object| {
        object.labels()["example.com/half"] == "2"
    })
    .await;
    two.rounds(2).await;
    // They are as they shall be: nothing is applied.
    assert!(!two.log().contains("change=Apply"), "{}", two.log());

    // From now on they are looked after.
    let patch = json!({ "spec": { "replicas": 0 } });
    let params = PatchParams::default();
    let patch = Patch::Merge(&patch);
    deployments.patch(&hold, &params, &patch).await.unwrap();
    until("it is as it shall be again", || async {
        let found = deployments.get(&hold).await.unwrap();
        (found.spec?.replicas == Some(1)).then_some(())
    })
    .await;
}
