//! The agent's own metrics.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// What kind of event it was.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EventLabels {
    /// A closed set: the kinds of libvirt's events.
    pub event: &'static str,
}

/// Counters and gauges of the agent. A clone counts into the same.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Writes of the Hypervisor's status.
    pub status_writes: Counter,
    /// Writes of it that failed.
    pub status_write_failures: Counter,
    /// Renewals of the heartbeat Lease.
    pub heartbeat_renewals: Counter,
    /// Events of libvirt.
    pub events: Family<EventLabels, Counter>,
    /// 1 while libvirt is connected.
    pub libvirt_connected: Gauge,
    /// Connections to libvirt that were made.
    pub libvirt_connects: Counter,
    /// Times that everything was read.
    pub full_reads: Counter,
    /// Instances that were read because of an event.
    pub domain_reads: Counter,
    /// Instances that could not be read.
    pub domains_unreadable: Gauge,
}

impl Metrics {
    /// Makes them visible.
    pub fn register(&self, registry: &mut Registry) {
        let name = |name: &str| format!("cobalt_node_agent_{name}");
        registry.register(
            name("status_writes"),
            "Writes of the status of the Hypervisor",
            self.status_writes.clone(),
        );
        registry.register(
            name("status_write_failures"),
            "Writes of the status of the Hypervisor that failed",
            self.status_write_failures.clone(),
        );
        registry.register(
            name("heartbeat_renewals"),
            "Renewals of the heartbeat Lease",
            self.heartbeat_renewals.clone(),
        );
        registry.register(
            name("libvirt_events"),
            "Events that libvirt has sent",
            self.events.clone(),
        );
        registry.register(
            name("libvirt_connected"),
            "Whether libvirt is connected",
            self.libvirt_connected.clone(),
        );
        registry.register(
            name("libvirt_connects"),
            "Connections to libvirt that were made",
            self.libvirt_connects.clone(),
        );
        registry.register(
            name("full_reads"),
            "Times that everything was read from libvirt",
            self.full_reads.clone(),
        );
        registry.register(
            name("domain_reads"),
            "Instances that were read from libvirt because of an event",
            self.domain_reads.clone(),
        );
        registry.register(
            name("domains_unreadable"),
            "Instances whose description cannot be read",
            self.domains_unreadable.clone(),
        );
    }
}
