//! The status that is wanted, and the status that is there.

use std::sync::Arc;

use cobalt_api::conditions::{Reason, Status};
use cobalt_api::hypervisor::DomainCapabilities;
use proptest::prelude::*;
use uuid::Uuid;

use self::server::written;
use super::*;
use crate::context::Statement;
use crate::facts::capabilities::{Host, HostCell};
use crate::facts::domain::DomainFacts;
use crate::inventory::Entry;

mod server;

const GIB: u64 = 1 << 30;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn hypervisor(status: &Value) -> Hypervisor {
    serde_json::from_value(json!({
        "apiVersion": "kvm.cloud.sap/v1",
        "kind": "Hypervisor",
        "metadata": { "name": "hv1", "uid": "u1", "generation": 7 },
        "spec": { "overcommit": { "cpu": 2, "memory": 1.25 } },
        "status": status,
    }))
    .unwrap()
}

fn host(cells: u32) -> Host {
    let mut host = Host {
        arch: Some("x86_64".into()),
        ..Host::default()
    };
    for id in 0..cells {
        host.memory_bytes += 64 * GIB;
        host.cpus += 16;
        host.cells.push(HostCell {
            id,
            memory_bytes: 64 * GIB,
            cpus: (id * 16..id * 16 + 16).collect(),
        });
    }
    host
}

fn inventory(cells: u32, domains: u32) -> Inventory {
    let domains = (0..domains).map(|number| {
        let uuid = Uuid::from_u128(u128::from(number) * 7919);
        let facts = DomainFacts {
            uuid,
            name: format!("instance-{:08x}", number % 17),
            active: !number.is_multiple_of(5),
            memory_bytes: 3 * GIB,
            vcpus: 3,
            ..DomainFacts::default()
        };
        let entry = Entry {
            facts: Arc::new(facts),
            state: Some("running"),
            reason: None,
            unreadable: None,
        };
        (uuid, entry)
    });
    Inventory {
        lib_version: Some("9.0.0".into()),
        hypervisor_version: Some("7.2.22".into()),
        host: Some(Arc::new(host(cells))),
        domain_capabilities: Some(Arc::new(DomainCapabilities::default())),
        domains: domains.collect(),
    }
}

fn known(inventory: Inventory) -> Known {
    Known {
        inventory: Some(Arc::new(inventory)),
        ..Known::default()
    }
}

fn statement(status: Status, message: &str) -> Option<Statement> {
    Some(Statement {
        status,
        reason: Reason::Connected,
        message: message.to_owned(),
    })
}

/// Everything the agent can know.
fn everything() -> Known {
    let all = [
        (
            HypervisorCondition::LibVirtConnection,
            statement(Status::True, "connected"),
        ),
        (
            HypervisorCondition::LibvirtdService,
            statement(Status::True, "active"),
        ),
        (
            HypervisorCondition::ShutdownInhibited,
            statement(Status::False, "no lock"),
        ),
    ];
    Known {
        operating_system: Some(OperatingSystem {
            version: Some("12".into()),
            ..OperatingSystem::default()
        }),
        update_status: Some(UpdateStatus::default()),
        conditions: all.into_iter().collect(),
        ..known(inventory(2, 4))
    }
}

/// What the deployed agent leaves behind, and what others have written beside it.
fn deployed() -> Value {
    json!({
        "libVirtVersion": "9.0.0",
        "hypervisorVersion": "8.2.2",
        "operatingSystem": { "version": "1592.1", "prettyVersion": "\"Garden Linux 1592.1\"", "firmwareDate": null },
        "updateStatus": { "inProgress": false, "installed": "unknown", "retry": 3 },
        "instances": [{ "id": "7d0f4a52-0c7e-4d9b-8a4b-6a1f2c3d4e5f", "name": "instance-1", "active": true }],
        "capabilities": { "cpuArch": "x86_64", "memory": "270582939648", "cpus": "64" },
        "domainCapabilities": {
            "arch": "x86_64", "hypervisorType": "kvm", "supportedDevices": ["video"],
            "supportedCpuModes": ["mode/custom"], "supportedFeatures": ["sgx"],
        },
        "allocation": { "cpu": "8", "memory": "32Gi" },
        "capacity": { "cpu": "64", "memory": "270582939648" },
        "cells": [{
            "cellID": 0,
            "allocation": { "cpu": "0", "memory": "0" },
            "capacity": { "cpu": "64", "memory": "270582939648" },
        }],
        "numInstances": 1,
        "hypervisorId": "c48f6247-abe4-4a24-824e-ea39e108874f",
        "serviceId": "2b6f0c1d-58e7-4a90-9d1c-0c9b8a7f6e5d",
        "traits": ["COMPUTE_NODE"],
        "aggregates": [{ "name": "bb092", "uuid": "5a4b3c2d-1e0f-4a9b-8c7d-6e5f4a3b2c1d" }],
        "internalIp": "10.180.4.18",
        "evicted": false,
        "specHash": "6b86b273ff34",
        "conditions": [
            condition("Ready", "True", "Ready", "in service"),
            condition("libvirtd.service", "True", "Running", "active"),
            condition("LibVirtConnection", "True", "Connected", ""),
            condition("Example", "True", "Whatever", "of somebody else"),
        ],
    })
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-08-01T09:50:00Z",
    })
}

#[test]
fn what_was_written_is_not_written_again() {
    let cases = [
        (everything(), vec![Value::Null, json!({}), deployed()]),
        (Known::default(), vec![Value::Null, json!({}), deployed()]),
        // A driver that answers nothing. What somebody else owns cannot be taken away with it, so
        // the report itself has to know what it has sent.
        (known(Inventory::default()), vec![Value::Null, json!({})]),
    ];
    for (known, before) in cases {
        for status in before {
            let before = hypervisor(&status);
            let after = written(&before, &wanted(&known, &before, at(100)));
            let again = wanted(&known, &after, at(200));
            assert!(is_written(&again, &after), "{status}\n{again:?}");
        }
    }
}

#[test]
fn a_new_object_is_written() {
    let new = hypervisor(&Value::Null);
    assert!(!is_written(&wanted(&everything(), &new, at(1)), &new));
    let empty = hypervisor(&json!({}));
    assert!(!is_written(&wanted(&everything(), &empty, at(1)), &empty));
}

#[test]
fn another_notation_of_a_quantity_is_no_reason_to_write() {
    let before = hypervisor(&json!({}));
    let known = known(inventory(2, 4));
    let after = written(&before, &wanted(&known, &before, at(1)));
    let mut text = serde_json::to_string(&after).unwrap();
    for (ours, theirs) in [
        ("\"128Gi\"", "\"137438953472\""),
        ("\"64Gi\"", "\"65536Mi\""),
    ] {
        assert!(text.contains(ours), "{text}");
        text = text.replace(ours, theirs);
    }
    let theirs: Hypervisor = serde_json::from_str(&text).unwrap();
    assert!(is_written(&wanted(&known, &theirs, at(2)), &theirs));
    // A difference is one.
    let other: Hypervisor = serde_json::from_str(&text.replace("65536Mi", "65537Mi")).unwrap();
    assert!(!is_written(&wanted(&known, &other, at(2)), &other));
}

#[test]
fn w50_eight_cells_and_sixty_instances_are_the_same_bytes_each_time() {
    let object = hypervisor(&deployed());
    let bytes = || {
        let known = known(inventory(8, 60));
        patch(&wanted(&known, &object, at(1)), &object)
            .unwrap()
            .to_string()
    };
    assert_eq!(bytes(), bytes());
    let patch: Value = serde_json::from_str(&bytes()).unwrap();
    let cells = patch["status"]["cells"].as_array().unwrap();
    let order: Vec<i64> = cells
        .iter()
        .map(|cell| cell["cellID"].as_i64().unwrap())
        .collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 7]);
    let after = written(&object, &wanted(&known(inventory(8, 60)), &object, at(1)));
    assert!(is_written(
        &wanted(&known(inventory(8, 60)), &after, at(2)),
        &after
    ));
}

#[test]
fn the_patch_has_the_agents_fields_and_no_others() {
    let object = hypervisor(&deployed());
    let patch = patch(&wanted(&everything(), &object, at(1)), &object).unwrap();
    let names: Vec<&String> = patch["status"].as_object().unwrap().keys().collect();
    assert_eq!(
        names,
        [
            "libVirtVersion",
            "hypervisorVersion",
            "operatingSystem",
            "updateStatus",
            "instances",
            "capabilities",
            "domainCapabilities",
            "allocation",
            "capacity",
            "effectiveCapacity",
            "cells",
            "numInstances",
            "conditions",
        ]
    );
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    let types: Vec<&str> = conditions
        .iter()
        .map(|one| one["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        types,
        ["libvirtd.service", "LibVirtConnection", "ShutdownInhibited"]
    );
    let names: Vec<&String> = patch.as_object().unwrap().keys().collect();
    assert_eq!(names, ["apiVersion", "kind", "metadata", "status"]);
    assert_eq!(patch["metadata"], json!({ "name": "hv1", "uid": "u1" }));
}

#[test]
fn lists_that_have_become_empty_are_sent_as_empty() {
    let object = hypervisor(&deployed());
    let known = known(inventory(0, 0));
    let patch = patch(&wanted(&known, &object, at(1)), &object).unwrap();
    assert_eq!(patch["status"]["instances"], json!([]));
    assert_eq!(patch["status"]["cells"], json!([]));
    assert_eq!(patch["status"]["numInstances"], json!(0));
}

#[test]
fn what_is_not_known_stays_as_it_was_written_also_by_the_deployed_agent() {
    let object = hypervisor(&deployed());
    let nothing = wanted(&Known::default(), &object, at(1));
    assert_eq!(nothing, own(object.status.as_ref().unwrap()));
    assert!(is_written(&nothing, &object));
    // The host could not be read, and its instances could.
    let mut inventory = inventory(2, 3);
    inventory.host = None;
    let partly = wanted(&known(inventory), &object, at(1));
    assert_eq!(partly.capacity, object.status.as_ref().unwrap().capacity);
    assert_eq!(partly.cells, object.status.as_ref().unwrap().cells);
    assert_eq!(partly.num_instances, Some(3));
    assert_eq!(partly.operating_system, nothing.operating_system);
}

#[test]
fn conditions_keep_their_time_while_their_status_is_the_same() {
    let object = hypervisor(&deployed());
    let say = |status, message: &str| {
        let condition = HypervisorCondition::LibVirtConnection;
        let known = Known {
            conditions: [(condition, statement(status, message))]
                .into_iter()
                .collect(),
            ..Known::default()
        };
        let all = wanted(&known, &object, at(1000)).conditions;
        conditions::find(&all, condition).unwrap().clone()
    };
    let same = say(Status::True, "other words");
    assert_eq!(
        same.last_transition_time.0.to_string(),
        "2026-08-01T09:50:00Z"
    );
    assert_eq!(same.message, "other words");
    assert_eq!(same.observed_generation, None);
    assert_eq!(say(Status::False, "").last_transition_time.0, at(1000));
}

#[test]
fn conditions_of_others_are_neither_sent_nor_looked_at() {
    let mut object = hypervisor(&deployed());
    let known = everything();
    let sent = wanted(&known, &object, at(1));
    assert!(
        sent.conditions
            .iter()
            .all(|one| !["Ready", "Example"].contains(&one.type_.as_str()))
    );
    let mut after = written(&object, &sent);
    for condition in &mut after.status.as_mut().unwrap().conditions {
        if ["Ready", "Example"].contains(&condition.type_.as_str()) {
            condition.status = "False".into();
        }
    }
    assert!(is_written(&wanted(&known, &after, at(2)), &after));
    // A condition that was taken back is left out, and one that nobody spoke of stays.
    let back = Known {
        conditions: [(HypervisorCondition::LibVirtConnection, None)]
            .into_iter()
            .collect(),
        ..Known::default()
    };
    let sent = wanted(&back, &object, at(1));
    let types: Vec<&str> = sent
        .conditions
        .iter()
        .map(|one| one.type_.as_str())
        .collect();
    assert_eq!(types, ["libvirtd.service"]);
    object.status = None;
    assert_eq!(wanted(&back, &object, at(1)).conditions, []);
}

#[test]
fn only_what_follows_the_spec_names_its_generation() {
    let object = hypervisor(&json!({}));
    let found = wanted(&everything(), &object, at(1)).conditions;
    let generation = |type_: &str| {
        let condition = found.iter().find(|one| one.type_ == type_).unwrap();
        condition.observed_generation
    };
    assert_eq!(generation("ShutdownInhibited"), Some(7));
    assert_eq!(generation("LibVirtConnection"), None);
}

#[test]
fn only_running_instances_hold_resources_and_overcommit_counts() {
    let object = hypervisor(&json!({}));
    let found = wanted(&known(inventory(2, 5)), &object, at(1));
    assert_eq!(found.num_instances, Some(5));
    assert_eq!(found.instances.iter().filter(|one| one.active).count(), 4);
    let text =
        |quantities: &Option<Resources>, name: &str| quantities.as_ref().unwrap()[name].0.clone();
    assert_eq!(text(&found.allocation, "cpu"), "12");
    assert_eq!(text(&found.allocation, "memory"), "12Gi");
    assert_eq!(text(&found.capacity, "cpu"), "32");
    assert_eq!(text(&found.effective_capacity, "cpu"), "64");
    assert_eq!(text(&found.effective_capacity, "memory"), "160Gi");
    assert_eq!(text(&found.cells[1].effective_capacity, "memory"), "80Gi");
}

#[test]
fn a_condition_that_the_operator_marked_as_stale_is_taken_back() {
    let before = hypervisor(&json!({}));
    let known = everything();
    let mut marked = written(&before, &wanted(&known, &before, at(1)));
    for condition in &mut marked.status.as_mut().unwrap().conditions {
        condition.status = "Unknown".to_owned();
        condition.reason = "AgentSilent".to_owned();
    }
    let again = wanted(&known, &marked, at(2));
    assert!(!is_written(&again, &marked));
    assert!(
        again
            .conditions
            .iter()
            .all(|one| one.reason != "AgentSilent")
    );
    assert!(is_written(&again, &written(&marked, &again)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_inventory_is_written_once(cells in 0_u32..9, domains in 0_u32..70, old: bool) {
        let before = hypervisor(&if old { deployed() } else { Value::Null });
        let known = Known { conditions: everything().conditions, ..known(inventory(cells, domains)) };
        let after = written(&before, &wanted(&known, &before, at(1)));
        prop_assert!(is_written(&wanted(&known, &after, at(2)), &after));
    }
}

/// A status with something in every field. A new field does not compile until it is here.
fn every_field() -> HypervisorStatus {
    use cobalt_api::hypervisor::{
        Aggregate, Capabilities, Cell, Check, CheckResult, Instance, Phase,
    };
    use cobalt_api::wait::Wait;
    let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0));
    let resources = BTreeMap::from([("cpu".to_owned(), Default::default())]);
    let condition = |condition: &HypervisorCondition| Condition {
        type_: condition.as_str().to_owned(),
        status: "True".to_owned(),
        reason: "Test".to_owned(),
        message: String::new(),
        observed_generation: None,
        last_transition_time: time.clone(),
    };
    HypervisorStatus {
        phase: Some(Phase::Active),
        waiting_for: Some(Wait {
            reason: "Test".into(),
            message: None,
            since: time.clone(),
            deadline: None,
        }),
        checks: vec![Check {
            name: "x".into(),
            result: CheckResult::Passed,
            message: None,
            since: None,
            attempt: None,
        }],
        lib_virt_version: Some("1".into()),
        hypervisor_version: Some("1".into()),
        operating_system: Some(OperatingSystem::default()),
        update_status: Some(UpdateStatus::default()),
        instances: vec![Instance::default()],
        capabilities: Some(Capabilities::default()),
        domain_capabilities: Some(DomainCapabilities::default()),
        allocation: Some(resources.clone()),
        capacity: Some(resources.clone()),
        effective_capacity: Some(resources),
        cells: vec![Cell::default()],
        num_instances: Some(1),
        hypervisor_id: Some("x".into()),
        service_id: Some("x".into()),
        traits: vec!["x".into()],
        owned_traits: Some(vec!["x".into()]),
        owned_aggregates: Some(vec!["x".into()]),
        aggregates: vec![Aggregate::default()],
        internal_ip: Some("x".into()),
        evicted: Some(true),
        conditions: HypervisorCondition::ALL.iter().map(condition).collect(),
        spec_hash: Some("x".into()),
    }
}

#[test]
fn the_policy_of_the_chart_lets_the_agent_write_exactly_what_it_writes() {
    let list = include_str!("../../../../charts/node-agent/files/agent-status.yaml");
    let (fields, conditions) = list.split_once("conditions:\n").unwrap();
    let items = |part: &str| -> Vec<String> {
        let items = part.lines().filter_map(|line| line.strip_prefix("  - "));
        let mut items: Vec<String> = items.map(str::to_owned).collect();
        items.sort_unstable();
        items
    };
    let Ok(Value::Object(own)) = serde_json::to_value(own(&every_field())) else {
        panic!("a status is an object");
    };
    let mut written: Vec<String> = own.keys().cloned().collect();
    written.retain(|field| field != "conditions");
    written.sort_unstable();
    assert_eq!(items(fields), written);
    let mut types: Vec<String> = OWN_CONDITIONS
        .iter()
        .map(|condition| condition.as_str().to_owned())
        .collect();
    types.sort_unstable();
    assert_eq!(items(conditions), types);
}
