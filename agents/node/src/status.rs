//! The agent's part of a Hypervisor's status: what it should be, and whether it already is.
//!
//! Pure. Server-side apply removes what its owner leaves out, so what is not known yet (libvirt was
//! not reached since the start, say) is taken over from the status as it is.

use std::collections::BTreeMap;

use cobalt_api::conditions::{self, HypervisorCondition, Wanted};
use cobalt_api::hypervisor::{
    Hypervisor, HypervisorStatus, OperatingSystem, Resources, UpdateStatus,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use crate::context::Statements;
use crate::facts::{allocation, units};
use crate::inventory::Inventory;

/// The conditions that this agent writes.
pub const OWN_CONDITIONS: &[HypervisorCondition] = &[
    HypervisorCondition::LibvirtdService,
    HypervisorCondition::OpenvswitchService,
    HypervisorCondition::LibVirtConnection,
    HypervisorCondition::SystemdConnection,
    HypervisorCondition::ShutdownInhibited,
    HypervisorCondition::InstanceRecovery,
    HypervisorCondition::OperatingSystemUpdate,
    HypervisorCondition::TlsCertificateInstalled,
];

/// What the tasks know. `None` is "not known yet".
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// From libvirt.
    pub inventory: Option<std::sync::Arc<Inventory>>,
    /// From systemd.
    pub operating_system: Option<OperatingSystem>,
    /// From the update.
    pub update_status: Option<UpdateStatus>,
    /// From all.
    pub conditions: Statements,
}

/// The agent's fields and conditions as they should be.
#[must_use]
pub fn wanted(known: &Known, hypervisor: &Hypervisor, now: Timestamp) -> HypervisorStatus {
    let current = hypervisor.status.clone().unwrap_or_default();
    let generation = hypervisor.metadata.generation;
    let mut status = own(&current);
    if let Some(inventory) = &known.inventory {
        fill(&mut status, inventory, hypervisor);
    }
    if let Some(system) = &known.operating_system {
        status.operating_system = Some(system.clone());
    }
    if let Some(update) = &known.update_status {
        status.update_status = Some(update.clone());
    }
    status.conditions = conditions(&known.conditions, &current.conditions, generation, now);
    status
}

fn fill(status: &mut HypervisorStatus, inventory: &Inventory, hypervisor: &Hypervisor) {
    let or_unknown = |text: &Option<String>| Some(text.clone().unwrap_or_else(|| "unknown".into()));
    status.lib_virt_version = or_unknown(&inventory.lib_version);
    status.hypervisor_version = or_unknown(&inventory.hypervisor_version);
    status.domain_capabilities = inventory
        .domain_capabilities
        .as_ref()
        .map(|capabilities| capabilities.as_ref().clone());
    status.instances = inventory.instances();
    status.num_instances = Some(i64::try_from(status.instances.len()).unwrap_or(i64::MAX));
    let Some(host) = &inventory.host else {
        return;
    };
    let active = inventory
        .domains
        .values()
        .map(|entry| entry.facts.as_ref())
        .filter(|facts| facts.active);
    let none = BTreeMap::new();
    let overcommit = hypervisor.spec.overcommit.as_ref().unwrap_or(&none);
    let resources = allocation::resources(host, active, overcommit);
    status.capabilities = Some(resources.capabilities);
    status.capacity = Some(resources.capacity);
    status.allocation = Some(resources.allocation);
    status.effective_capacity = Some(resources.effective_capacity);
    status.cells = resources.cells;
}

fn conditions(
    known: &Statements,
    current: &[Condition],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    OWN_CONDITIONS
        .iter()
        .filter_map(|&condition| match known.get(&condition) {
            None => conditions::find(current, condition).cloned(),
            Some(None) => None,
            Some(Some(statement)) => {
                // Only what depends on the spec says which spec it has seen: for the others a new
                // generation would be a write that says nothing.
                let observed_generation = follows_spec(condition).then_some(generation).flatten();
                let wanted = Wanted {
                    condition,
                    status: statement.status,
                    reason: statement.reason,
                    message: statement.message.clone(),
                    observed_generation,
                };
                Some(wanted.build(current, now))
            }
        })
        .collect()
}

fn follows_spec(condition: HypervisorCondition) -> bool {
    matches!(
        condition,
        HypervisorCondition::OperatingSystemUpdate
            | HypervisorCondition::ShutdownInhibited
            | HypervisorCondition::TlsCertificateInstalled
    )
}

/// The part of a status that is the agent's.
#[must_use]
pub fn own(status: &HypervisorStatus) -> HypervisorStatus {
    HypervisorStatus {
        lib_virt_version: status.lib_virt_version.clone(),
        hypervisor_version: status.hypervisor_version.clone(),
        operating_system: status.operating_system.clone(),
        update_status: status.update_status.clone(),
        instances: status.instances.clone(),
        num_instances: status.num_instances,
        capabilities: status.capabilities.clone(),
        domain_capabilities: status.domain_capabilities.clone(),
        allocation: status.allocation.clone(),
        capacity: status.capacity.clone(),
        effective_capacity: status.effective_capacity.clone(),
        cells: status.cells.clone(),
        conditions: OWN_CONDITIONS
            .iter()
            .filter_map(|&condition| conditions::find(&status.conditions, condition).cloned())
            .collect(),
        ..HypervisorStatus::default()
    }
}

/// Whether the object says already what it should. Another writer's notation, or a value that the
/// API server has filled in, is no difference.
#[must_use]
pub fn is_written(wanted: &HypervisorStatus, hypervisor: &Hypervisor) -> bool {
    let Some(status) = &hypervisor.status else {
        return false;
    };
    let found = own(status);
    found == *wanted || comparable(found) == comparable(wanted.clone())
}

/// The names of the fields and conditions that a write changes, for the log.
#[must_use]
pub fn changes(wanted: &HypervisorStatus, hypervisor: &Hypervisor) -> Vec<String> {
    let fields = |status: HypervisorStatus| match serde_json::to_value(comparable(status)) {
        Ok(Value::Object(mut fields)) => {
            let conditions = fields.remove("conditions");
            for condition in conditions.iter().filter_map(Value::as_array).flatten() {
                let name = condition.get("type").and_then(Value::as_str);
                fields.insert(name.unwrap_or_default().to_owned(), condition.clone());
            }
            fields
        }
        _ => serde_json::Map::new(),
    };
    let before = fields(hypervisor.status.as_ref().map(own).unwrap_or_default());
    let after = fields(wanted.clone());
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name))
        .cloned()
        .collect()
}

/// The form in which two statuses that say the same are the same: with the defaults of the schema,
/// and with one notation for each quantity.
fn comparable(mut status: HypervisorStatus) -> HypervisorStatus {
    let unknown = |text: &mut Option<String>| {
        text.get_or_insert_with(|| "unknown".to_owned());
    };
    unknown(&mut status.lib_virt_version);
    unknown(&mut status.hypervisor_version);
    status.num_instances.get_or_insert(0);
    if let Some(update) = &mut status.update_status {
        update.in_progress.get_or_insert(false);
        unknown(&mut update.installed);
        update.retry.get_or_insert(3);
    }
    if let Some(capabilities) = &mut status.domain_capabilities {
        unknown(&mut capabilities.arch);
        unknown(&mut capabilities.hypervisor_type);
        capabilities.supported_devices.get_or_insert_default();
        capabilities.supported_cpu_modes.get_or_insert_default();
        capabilities.supported_features.get_or_insert_default();
    }
    let mut all: Vec<&mut Resources> = Vec::new();
    all.extend(&mut status.allocation);
    all.extend(&mut status.capacity);
    all.extend(&mut status.effective_capacity);
    for cell in &mut status.cells {
        all.extend(&mut cell.allocation);
        all.extend(&mut cell.capacity);
        all.extend(&mut cell.effective_capacity);
    }
    let mut quantities: Vec<_> = all.into_iter().flat_map(BTreeMap::values_mut).collect();
    if let Some(capabilities) = &mut status.capabilities {
        unknown(&mut capabilities.cpu_arch);
        quantities.extend(&mut capabilities.memory);
        quantities.extend(&mut capabilities.cpus);
    }
    for quantity in quantities {
        *quantity = units::comparable(quantity);
    }
    status
}

/// What is sent to the API server.
///
/// # Errors
///
/// When the status cannot be written as JSON.
pub fn patch(wanted: &HypervisorStatus, hypervisor: &Hypervisor) -> serde_json::Result<Value> {
    let mut status = serde_json::to_value(wanted)?;
    // Another writer may own these lists; left out they would stay as they are.
    if let Value::Object(fields) = &mut status {
        for (name, empty) in [
            ("instances", wanted.instances.is_empty()),
            ("cells", wanted.cells.is_empty()),
        ] {
            if empty {
                fields.insert(name.to_owned(), json!([]));
            }
        }
    }
    Ok(json!({
        "apiVersion": Hypervisor::api_version(&()),
        "kind": Hypervisor::kind(&()),
        "metadata": { "name": hypervisor.name_any(), "uid": hypervisor.uid() },
        "status": status,
    }))
}

#[cfg(test)]
mod tests;
