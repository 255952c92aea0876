//! Server-side apply: each writer owns its own fields and conditions.

use anyhow::Result;
use cobalt_api::{
    Hypervisor, HypervisorSpec, HypervisorStatus,
    conditions::{self, HypervisorCondition, Reason, Status, Wanted},
    hypervisor::{Instance, Phase},
    names::FieldManager,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::support::{server, unique};

fn condition(condition: HypervisorCondition, status: Status, reason: Reason) -> Condition {
    Wanted {
        condition,
        status,
        reason,
        message: String::new(),
        observed_generation: Some(1),
    }
    .build(&[], Timestamp::from_second(1_760_000_000).unwrap())
}

async fn apply(
    api: &Api<Hypervisor>,
    name: &str,
    manager: FieldManager,
    status: &HypervisorStatus,
) -> Result<Hypervisor> {
    let object = json!({
        "apiVersion": Hypervisor::api_version(&()),
        "kind": Hypervisor::kind(&()),
        "metadata": { "name": name },
        "status": status,
    });
    Ok(api
        .patch_status(
            name,
            &PatchParams::apply(manager.as_str()),
            &Patch::Apply(object),
        )
        .await?)
}

#[tokio::test]
async fn two_writers_own_different_conditions_of_one_list() -> Result<()> {
    use HypervisorCondition as C;
    let (_, client) = server().await?;
    let api: Api<Hypervisor> = Api::all(client);
    let name = unique("ssa");
    api.create(
        &PostParams::default(),
        &Hypervisor::new(&name, HypervisorSpec::default()),
    )
    .await?;

    let connected = condition(C::LibVirtConnection, Status::True, Reason::Connected);
    let agent = HypervisorStatus {
        instances: vec![Instance {
            id: "i".into(),
            name: "n".into(),
            active: true,
            ..Instance::default()
        }],
        conditions: vec![connected.clone()],
        ..HypervisorStatus::default()
    };
    apply(&api, &name, FieldManager::NodeAgent, &agent).await?;
    let ready = condition(C::Ready, Status::True, Reason::Ready);
    let operator = HypervisorStatus {
        phase: Some(Phase::Active),
        conditions: vec![ready.clone()],
        ..HypervisorStatus::default()
    };
    let both = apply(&api, &name, FieldManager::Operator, &operator)
        .await?
        .status
        .unwrap();
    assert_eq!(
        conditions::find(&both.conditions, C::LibVirtConnection),
        Some(&connected)
    );
    assert_eq!(conditions::find(&both.conditions, C::Ready), Some(&ready));
    assert_eq!(both.instances, agent.instances);

    // The agent changes its condition; the operator's stays.
    let lost = condition(C::LibVirtConnection, Status::False, Reason::Disconnected);
    let agent = HypervisorStatus {
        conditions: vec![lost.clone()],
        ..agent
    };
    let both = apply(&api, &name, FieldManager::NodeAgent, &agent)
        .await?
        .status
        .unwrap();
    assert_eq!(
        conditions::find(&both.conditions, C::LibVirtConnection),
        Some(&lost)
    );
    assert_eq!(conditions::find(&both.conditions, C::Ready), Some(&ready));

    // Neither takes the other's by accident.
    let stolen = HypervisorStatus {
        conditions: vec![condition(C::Ready, Status::False, Reason::NotReady)],
        ..HypervisorStatus::default()
    };
    let refused = apply(&api, &name, FieldManager::NodeAgent, &stolen)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("conflict"), "{refused}");

    // What the agent no longer applies goes away, and nothing else does.
    let nothing = HypervisorStatus::default();
    let left = apply(&api, &name, FieldManager::NodeAgent, &nothing)
        .await?
        .status
        .unwrap();
    assert_eq!(left.conditions, [ready]);
    assert_eq!(left.instances, []);
    assert_eq!(left.phase, Some(Phase::Active));

    // The same again is no write.
    let before = apply(&api, &name, FieldManager::Operator, &operator)
        .await?
        .metadata;
    let after = apply(&api, &name, FieldManager::Operator, &operator)
        .await?
        .metadata;
    assert_eq!(before.resource_version, after.resource_version);
    api.delete(&name, &DeleteParams::default()).await?;
    Ok(())
}
