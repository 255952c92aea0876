//! The status on a real API server: its defaults, its owners, and that the same is not written twice.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cobalt_api::conditions::{HypervisorCondition, Reason, Status};
use cobalt_api::hypervisor::{Hypervisor, UpdateStatus};
use cobalt_api::names::FieldManager;
use cobalt_node_agent::context::Statement;
use cobalt_node_agent::facts::{capabilities, domain, domain_capabilities};
use cobalt_node_agent::inventory::{Entry, Inventory};
use cobalt_node_agent::status::{self, Known};
use cobalt_runtime::apply_status;
use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::server;

const DEADLINE: Duration = Duration::from_secs(30);
const CAPABILITIES: &str = include_str!("../samples/libvirt/capabilities-two-cells-9.0.xml");
const DOMAIN_CAPABILITIES: &str = include_str!("../samples/libvirt/domcapabilities-kvm.xml");
const DOMAIN: &str = include_str!("../samples/libvirt/domain-numa-live-9.0.xml");

/// The Hypervisors of the shared API server.
async fn hypervisors() -> Api<Hypervisor> {
    let (_, client) = server().await;
    Api::all(client)
}

async fn create(api: &Api<Hypervisor>, prefix: &str) -> Result<Hypervisor> {
    let object: Hypervisor = serde_json::from_value(json!({
        "apiVersion": "kvm.cloud.sap/v1",
        "kind": "Hypervisor",
        "metadata": { "name": format!("{prefix}-{}", std::process::id()) },
        "spec": { "overcommit": { "cpu": 2, "memory": 1.15 } },
    }))?;
    Ok(api.create(&PostParams::default(), &object).await?)
}

fn known() -> Result<Known> {
    let facts = domain::parse(DOMAIN)?;
    let entry = Entry {
        facts: Arc::new(facts.clone()),
        state: Some("running"),
        reason: None,
        unreadable: None,
    };
    let inventory = Inventory {
        lib_version: Some("9.0.0".into()),
        hypervisor_version: None,
        host: Some(Arc::new(capabilities::parse(CAPABILITIES)?)),
        domain_capabilities: Some(Arc::new(domain_capabilities::parse(DOMAIN_CAPABILITIES)?)),
        domains: [(facts.uuid, entry)].into_iter().collect(),
    };
    let statement = Statement {
        status: Status::True,
        reason: Reason::Connected,
        message: "connected".into(),
    };
    Ok(Known {
        inventory: Some(Arc::new(inventory)),
        operating_system: None,
        // All of it is left to the defaults.
        update_status: Some(UpdateStatus::default()),
        conditions: [(HypervisorCondition::LibVirtConnection, Some(statement))]
            .into_iter()
            .collect(),
    })
}

async fn write(api: &Api<Hypervisor>, object: &Hypervisor, known: &Known) -> Result<Hypervisor> {
    let wanted = status::wanted(known, object, Timestamp::now());
    let patch = status::patch(&wanted, object)?;
    let manager = FieldManager::NodeAgent.as_str();
    Ok(apply_status(api, &object.name_any(), manager, &patch, DEADLINE).await?)
}

fn is_written(object: &Hypervisor, known: &Known) -> bool {
    status::is_written(&status::wanted(known, object, Timestamp::now()), object)
}

/// As the deployed agent writes: a merge patch under another name.
async fn deployed(api: &Api<Hypervisor>, name: &str, status: &Value) -> Result<Hypervisor> {
    let params = PatchParams {
        field_manager: Some("manager".into()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({ "status": status }));
    Ok(api.patch_status(name, &params, &patch).await?)
}

#[tokio::test]
async fn what_the_api_server_returns_is_what_was_wanted() -> Result<()> {
    let api = hypervisors().await;
    let object = create(&api, "status-fresh").await?;
    let known = known()?;
    assert!(!is_written(&object, &known));
    let after = write(&api, &object, &known).await?;
    assert!(is_written(&after, &known), "{:?}", after.status);
    let read = api.get(&object.name_any()).await?;
    assert!(is_written(&read, &known), "{:?}", read.status);
    // Were it sent all the same, nothing would change.
    let again = write(&api, &read, &known).await?;
    assert_eq!(again.resource_version(), read.resource_version());
    let status = serde_json::to_value(&read.status)?;
    assert_eq!(status["updateStatus"]["retry"], 3);
    assert_eq!(status["hypervisorVersion"], "unknown");
    assert_eq!(status["cells"][1]["allocation"]["cpu"], "2");
    assert_eq!(status["cells"][0]["allocation"]["memory"], "129Mi");
    api.delete(&object.name_any(), &DeleteParams::default())
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_status_of_the_deployed_agent_is_taken_over_and_others_keep_theirs() -> Result<()> {
    let api = hypervisors().await;
    let name = create(&api, "status-swap").await?.name_any();
    let condition = |type_: &str| {
        json!({
            "type": type_, "status": "True", "reason": "Ready", "message": "theirs",
            "lastTransitionTime": "2026-08-01T09:50:00Z",
        })
    };
    let object = deployed(
        &api,
        &name,
        &json!({
            "libVirtVersion": "8.0.0",
            "operatingSystem": { "version": "1592.1", "prettyVersion": "\"Garden Linux 1592.1\"" },
            "instances": [{ "id": "7d0f4a52-0c7e-4d9b-8a4b-6a1f2c3d4e5f", "name": "gone", "active": true }],
            "numInstances": 1,
            "capacity": { "cpu": "2", "memory": "25276518400" },
            "cells": [{ "cellID": 1 }, { "cellID": 0 }],
            "hypervisorId": "c48f6247-abe4-4a24-824e-ea39e108874f",
            "traits": ["COMPUTE_NODE"],
            "conditions": [condition("Ready"), condition("LibVirtConnection"), condition("HaEnabled")],
        }),
    )
    .await?;
    // Nothing known is nothing written.
    assert!(is_written(&object, &Known::default()));
    let known = known()?;
    assert!(!is_written(&object, &known));
    let after = write(&api, &object, &known).await?;
    assert!(is_written(&after, &known), "{:?}", after.status);
    let status = serde_json::to_value(&after.status)?;
    assert_eq!(
        status["hypervisorId"],
        "c48f6247-abe4-4a24-824e-ea39e108874f"
    );
    assert_eq!(status["traits"], json!(["COMPUTE_NODE"]));
    assert_eq!(status["operatingSystem"]["version"], "1592.1");
    assert_eq!(status["instances"][0]["name"], "instance-0000002a");
    assert_eq!(status["cells"][0]["cellID"], 0);
    let conditions = status["conditions"].as_array().context("conditions")?;
    let messages: Vec<(&str, &str)> = conditions
        .iter()
        .filter_map(|one| Some((one["type"].as_str()?, one["message"].as_str()?)))
        .collect();
    let expected = [
        ("Ready", "theirs"),
        ("LibVirtConnection", "connected"),
        ("HaEnabled", "theirs"),
    ];
    assert_eq!(messages, expected);
    // The status is the same, so its time is.
    assert_eq!(conditions[1]["lastTransitionTime"], "2026-08-01T09:50:00Z");
    // Their notation of our numbers is no reason to write.
    let theirs = deployed(
        &api,
        &name,
        &json!({ "capacity": { "memory": "25276518400" } }),
    )
    .await?;
    assert_ne!(theirs.resource_version(), after.resource_version());
    assert!(is_written(&theirs, &known));
    api.delete(&name, &DeleteParams::default()).await?;
    Ok(())
}
