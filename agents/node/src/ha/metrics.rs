//! The metrics of the HA agent.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::decide::Action;
use super::trigger::Trigger;

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TriggerLabels {
    /// A closed set: [`Trigger`].
    pub trigger: &'static str,
}

/// What was done about it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ActionLabels {
    /// A closed set: [`Trigger`].
    pub trigger: &'static str,
    /// A closed set: [`Action`].
    pub action: &'static str,
    /// `ok` or `failed`.
    pub result: &'static str,
}

/// Counters of the HA agent. A clone counts into the same.
#[derive(Debug, Clone, Default)]
pub struct HaMetrics {
    /// Failures of instances.
    pub events: Family<TriggerLabels, Counter>,
    /// What was done about them.
    pub actions: Family<ActionLabels, Counter>,
    /// 1 while so many instances fail that none is acted on.
    pub braked: Gauge,
    /// 1 while the node's Lease is not renewed, and none is acted on.
    pub lapsed: Gauge,
}

impl HaMetrics {
    /// Counts a failure.
    pub fn failed(&self, trigger: Trigger) {
        let trigger = trigger.name();
        self.events.get_or_create(&TriggerLabels { trigger }).inc();
    }

    /// Counts an action.
    pub fn acted(&self, trigger: Trigger, action: Action, ok: bool) {
        let labels = ActionLabels {
            trigger: trigger.name(),
            action: action.name(),
            result: if ok { "ok" } else { "failed" },
        };
        self.actions.get_or_create(&labels).inc();
    }

    /// Makes them visible.
    pub fn register(&self, registry: &mut Registry) {
        let name = |name: &str| format!("cobalt_node_agent_ha_{name}");
        registry.register(name("events"), "Failures of instances", self.events.clone());
        registry.register(
            name("actions"),
            "What was done about failures of instances",
            self.actions.clone(),
        );
        registry.register(
            name("braked"),
            "Whether so many instances fail that none is acted on",
            self.braked.clone(),
        );
        registry.register(
            name("lease_lapsed"),
            "Whether no instance is acted on because the Lease of the node is not renewed",
            self.lapsed.clone(),
        );
    }
}
