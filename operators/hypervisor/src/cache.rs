//! What the operator keeps of each object: at thousands of hosts, what it never reads is megabytes.

use std::sync::Arc;

use cobalt_api::eviction::Eviction;
use cobalt_api::hypervisor::Hypervisor;
use cobalt_api::migration::{Migration, Role};
use cobalt_api::names::{FieldManager, annotations, labels, node_conditions};
use cobalt_api::ovsnode::OvsNode;
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube::ResourceExt;
use serde_json::Value;

use crate::eviction::engine::Heard;
use crate::host::{Known, Settings};
use crate::kept::Kept;
use crate::pass::cut;

/// How much of the reason of an Eviction is kept.
const LONGEST_REASON: usize = 1024;

/// A Node without what changes with every heartbeat.
#[must_use]
pub fn node(mut node: Node, settings: &Settings) -> Node {
    let keeps_label = |key: &String| {
        labels::FROM_NODE_TO_HYPERVISOR.contains(&key.as_str())
            || settings.selector_labels.contains(key)
            || [labels::LIFECYCLE, labels::VIRT_DRIVER].contains(&key.as_str())
    };
    let keeps_annotation = |key: &String| {
        [annotations::AGGREGATES, annotations::CUSTOM_TRAITS].contains(&key.as_str())
    };
    node.labels_mut().retain(|key, _| keeps_label(key));
    node.annotations_mut()
        .retain(|key, _| keeps_annotation(key));
    let metadata = ObjectMeta {
        name: node.metadata.name,
        uid: node.metadata.uid,
        labels: node.metadata.labels,
        annotations: node.metadata.annotations,
        creation_timestamp: node.metadata.creation_timestamp,
        deletion_timestamp: node.metadata.deletion_timestamp,
        ..ObjectMeta::default()
    };
    let status = node.status.unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default().into_iter();
    let conditions = conditions
        .filter(|one| one.type_ == "Ready" || one.type_ == node_conditions::TERMINATING)
        .map(|mut one| {
            one.last_heartbeat_time = None;
            if one.type_ == "Ready" {
                one.message = None;
            }
            one
        });
    Node {
        metadata,
        spec: Some(NodeSpec {
            taints: node.spec.unwrap_or_default().taints,
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            addresses: status.addresses,
            conditions: Some(conditions.collect()),
            ..NodeStatus::default()
        }),
    }
}

/// A Hypervisor without what the agent measures, and with what its managed fields say.
#[must_use]
pub fn hypervisor(mut object: Hypervisor) -> Known {
    let managed = object.metadata.managed_fields.take().unwrap_or_default();
    object.metadata.annotations.iter_mut().for_each(|all| {
        let kept = [annotations::RETRY_ONBOARDING, annotations::ONBOARDED];
        all.retain(|key, _| kept.contains(&key.as_str()));
    });
    if let Some(status) = &mut object.status {
        status.operating_system = None;
        status.update_status = None;
        status.instances = Vec::new();
        status.capabilities = None;
        status.domain_capabilities = None;
        status.allocation = None;
        status.capacity = None;
        status.effective_capacity = None;
        status.cells = Vec::new();
        status.conditions.shrink_to_fit();
    }
    object.spec.groups = Vec::new();
    object.spec.bookings = Vec::new();
    Known {
        edited_by: edited_by(&managed),
        owns_aggregates: owns(&managed, "f:aggregates"),
        owns_traits: owns(&managed, "f:customTraits"),
        object,
    }
}

/// The program by which a person edited the object, as long as something of that edit is left. The
/// status does not count.
fn edited_by(managed: &[ManagedFieldsEntry]) -> Option<String> {
    managed
        .iter()
        .filter(|entry| entry.subresource.as_deref().unwrap_or_default().is_empty())
        .filter_map(|entry| entry.manager.as_deref())
        .find(|manager| manager.starts_with("kubectl"))
        .map(ToOwned::to_owned)
}

/// Whether the operator set a field of the spec from the Node.
fn owns(managed: &[ManagedFieldsEntry], field: &str) -> bool {
    managed
        .iter()
        .filter(|entry| entry.manager.as_deref() == Some(FieldManager::Hypervisor.as_str()))
        .filter_map(|entry| entry.fields_v1.as_ref())
        .any(|fields| {
            fields
                .0
                .pointer(&format!("/f:spec/{field}"))
                .is_some_and(Value::is_object)
        })
}

/// An Eviction; without its rows, once it is over.
#[must_use]
pub fn eviction(mut eviction: Eviction) -> Eviction {
    eviction.metadata.managed_fields = None;
    eviction.metadata.annotations = eviction.metadata.annotations.and_then(|mut all| {
        all.retain(|key, _| key == annotations::DRAINED_WITH);
        (!all.is_empty()).then_some(all)
    });
    eviction.metadata.labels = None;
    // A node agent may write it, in any length.
    eviction.spec.reason = cut(eviction.spec.reason, LONGEST_REASON);
    if let Some(status) = &mut eviction.status
        && status.outcome.is_some()
    {
        status.instances = Vec::new();
        status.outstanding_instances = Vec::new();
    }
    eviction
}

/// What is heard of a migration: the host that it leaves, the instance, and how far it is.
#[must_use]
pub fn migration(migration: Migration) -> Option<(String, String, Heard)> {
    let status = migration.status?;
    let source = status.ends.iter().find(|end| end.role == Role::Source)?;
    let stats = source.stats.clone().unwrap_or_default();
    let bytes = |count: Option<i64>| {
        count
            .and_then(|count| u64::try_from(count).ok())
            .unwrap_or(0)
    };
    let heard = Heard {
        ended: status.result.is_some() || source.result.is_some(),
        remaining: bytes(stats.data_remaining_bytes),
        total: bytes(stats.data_total_bytes),
        throttle: stats.throttle_percent,
    };
    Some((source.node.clone(), status.instance?, heard))
}

/// The conditions of an OVSNode.
#[must_use]
pub fn ovs(ovs: OvsNode) -> OvsNode {
    let mut small = OvsNode::new(&ovs.name_any(), ovs.spec);
    let conditions = ovs
        .status
        .map(|status| status.conditions)
        .unwrap_or_default();
    small.status = Some(cobalt_api::ovsnode::OvsNodeStatus {
        conditions,
        ..Default::default()
    });
    small
}

/// What a status write returned, as it would have come from the watch.
#[must_use]
pub fn written(object: Hypervisor) -> Arc<Kept<Known>> {
    Arc::new(Kept::new(&hypervisor(object)))
}
