//! What the host task counts.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Which service it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct UnitLabels {
    /// A closed set: the conditions that are about units.
    pub unit: &'static str,
}

/// How a try to update ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct UpdateLabels {
    /// A closed set: `installed` and `failed`.
    pub result: &'static str,
}

/// Counters and gauges of the host task. A clone counts into the same.
#[derive(Debug, Clone, Default)]
pub struct HostMetrics {
    /// 1 while the service runs.
    pub units_up: Family<UnitLabels, Gauge>,
    /// 1 while the system bus is connected.
    pub bus_connected: Gauge,
    /// Connections to the system bus that were made.
    pub bus_connects: Counter,
    /// 1 while a shutdown waits for the agent.
    pub shutdown_inhibited: Gauge,
    /// Operating system updates by their result.
    pub os_updates: Family<UpdateLabels, Counter>,
}

impl HostMetrics {
    /// Makes them visible.
    pub fn register(&self, registry: &mut Registry) {
        let name = |name: &str| format!("cobalt_node_agent_{name}");
        registry.register(
            name("unit_up"),
            "Whether a service of the host runs",
            self.units_up.clone(),
        );
        registry.register(
            name("bus_connected"),
            "Whether the system bus is connected",
            self.bus_connected.clone(),
        );
        registry.register(
            name("bus_connects"),
            "Connections to the system bus that were made",
            self.bus_connects.clone(),
        );
        registry.register(
            name("shutdown_inhibited"),
            "Whether a shutdown of the host waits until its instances have left",
            self.shutdown_inhibited.clone(),
        );
        registry.register(
            name("os_updates"),
            "Operating system updates by their result",
            self.os_updates.clone(),
        );
    }
}
