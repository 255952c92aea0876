//! The Evictions that this agent makes.

use std::collections::BTreeMap;

use cobalt_api::eviction::{Eviction, EvictionSpec};
use cobalt_api::hypervisor::Hypervisor;
use cobalt_api::names::{FieldManager, labels};
use kube::api::PostParams;
use kube::{Resource, ResourceExt};

/// An Eviction that belongs to the Hypervisor and has its labels. While that is not known, it is
/// made all the same.
#[must_use]
pub fn eviction(name: &str, spec: EvictionSpec, hypervisor: Option<&Hypervisor>) -> Eviction {
    let mut eviction = Eviction::new(name, spec);
    if let Some(hypervisor) = hypervisor {
        eviction.metadata.owner_references = hypervisor.owner_ref(&()).map(|owner| vec![owner]);
        let copied: BTreeMap<String, String> = hypervisor
            .labels()
            .iter()
            .filter(|(label, _)| labels::FROM_NODE_TO_HYPERVISOR.contains(&label.as_str()))
            .map(|(label, value)| (label.clone(), value.clone()))
            .collect();
        eviction.metadata.labels = (!copied.is_empty()).then_some(copied);
    }
    eviction
}

/// Who makes it.
#[must_use]
pub fn create_params() -> PostParams {
    PostParams {
        field_manager: Some(FieldManager::NodeAgent.as_str().to_owned()),
        ..PostParams::default()
    }
}
