//! The agent's own metrics.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// A call of diagnostics.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// A closed set: the paths that there are, and `other`.
    pub path: &'static str,
    /// What became of it.
    pub code: u16,
}

/// Counters and gauges of the agent. A clone counts into the same.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Writes of the OVSNode.
    pub status_writes: Counter,
    /// Writes of it that failed.
    pub status_write_failures: Counter,
    /// 1 while OVSDB is connected.
    pub ovsdb_connected: Gauge,
    /// Updates that OVSDB has sent.
    pub ovsdb_updates: Counter,
    /// 1 while the southbound database is connected.
    pub southbound_connected: Gauge,
    /// Times that the flows of all bridges were read.
    pub flow_reads: Counter,
    /// Calls of diagnostics.
    pub diagnostics_requests: Family<RequestLabels, Counter>,
    /// Captures under way.
    pub captures: Gauge,
    /// Packets that a capture should have had.
    pub capture_dropped: Counter,
}

impl Metrics {
    /// Makes them visible.
    pub fn register(&self, registry: &mut Registry) {
        let name = |name: &str| format!("cobalt_ovs_agent_{name}");
        registry.register(
            name("status_writes"),
            "Writes of the status of the OVSNode",
            self.status_writes.clone(),
        );
        registry.register(
            name("status_write_failures"),
            "Writes of the status of the OVSNode that failed",
            self.status_write_failures.clone(),
        );
        registry.register(
            name("ovsdb_connected"),
            "Whether the agent is connected to the local OVSDB",
            self.ovsdb_connected.clone(),
        );
        registry.register(
            name("ovsdb_updates"),
            "Updates that the local OVSDB has sent",
            self.ovsdb_updates.clone(),
        );
        registry.register(
            name("southbound_connected"),
            "Whether the agent itself is connected to OVN's southbound database",
            self.southbound_connected.clone(),
        );
        registry.register(
            name("flow_reads"),
            "Times that the flows of all bridges were read",
            self.flow_reads.clone(),
        );
        registry.register(
            name("diagnostics_requests"),
            "Calls of diagnostics, by what became of them",
            self.diagnostics_requests.clone(),
        );
        registry.register(
            name("captures"),
            "Captures under way",
            self.captures.clone(),
        );
        registry.register(
            name("capture_dropped"),
            "Packets that captures lost because nobody took them in time",
            self.capture_dropped.clone(),
        );
    }
}
