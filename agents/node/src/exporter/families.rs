//! The families: what they are called, and which statistic of libvirt they show.

use super::text::{Kind, Value};

/// What libvirt counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// What the metric counts in.
    Plain,
    /// KiB; the metric has bytes.
    Kibibytes,
    /// Nanoseconds; the metric has seconds.
    Nanoseconds,
}

impl Unit {
    /// The value of a metric.
    pub fn of(self, value: u64) -> Value {
        match self {
            Self::Plain => Value::from(value),
            Self::Kibibytes => Value::from(value.saturating_mul(1024)),
            Self::Nanoseconds => Value::billionths(u128::from(value)),
        }
    }
}

/// A family that shows one statistic.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// What it is.
    pub help: &'static str,
    /// The group of the statistic.
    pub group: &'static str,
    /// The statistic in its group.
    pub field: &'static str,
    /// What the statistic counts in.
    pub unit: Unit,
}

/// A group and a statistic in it.
type Source = (&'static str, &'static str);

const fn family(
    kind: Kind,
    name: &'static str,
    (group, field): Source,
    unit: Unit,
    help: &'static str,
) -> Family {
    Family {
        name,
        kind,
        help,
        group,
        field,
        unit,
    }
}

const fn counter(name: &'static str, from: Source, unit: Unit, help: &'static str) -> Family {
    family(Kind::Counter, name, from, unit, help)
}

const fn gauge(name: &'static str, from: Source, unit: Unit, help: &'static str) -> Family {
    family(Kind::Gauge, name, from, unit, help)
}

/// One sample per virtual machine.
pub const DOMAIN: &[Family] = &[
    gauge(
        "libvirt_domain_info_vstate",
        ("state", "state"),
        Unit::Plain,
        "State: 0 none, 1 running, 2 blocked, 3 paused, 4 shutting down, 5 shut off, 6 crashed, 7 suspended by the guest",
    ),
    gauge(
        "libvirt_domain_info_maximum_memory_bytes",
        ("balloon", "maximum"),
        Unit::Kibibytes,
        "Memory that the virtual machine may have at most",
    ),
    gauge(
        "libvirt_domain_info_memory_usage_bytes",
        ("balloon", "current"),
        Unit::Kibibytes,
        "Memory that the virtual machine has now",
    ),
    gauge(
        "libvirt_domain_info_virtual_cpus",
        ("vcpu", "current"),
        Unit::Plain,
        "Virtual processors that the virtual machine has now",
    ),
    counter(
        "libvirt_domain_info_cpu_time_seconds_total",
        ("cpu", "time"),
        Unit::Nanoseconds,
        "Processor time of the virtual machine, its monitor included",
    ),
    gauge(
        "libvirt_domain_memory_stats_actual_balloon_bytes",
        ("balloon", "current"),
        Unit::Kibibytes,
        "Size of the balloon, which is the memory that the guest has",
    ),
    gauge(
        "libvirt_domain_memory_stats_rss_bytes",
        ("balloon", "rss"),
        Unit::Kibibytes,
        "Memory of the host that the virtual machine takes",
    ),
    gauge(
        "libvirt_domain_memory_stats_available_bytes",
        ("balloon", "available"),
        Unit::Kibibytes,
        "Memory that the guest's system sees",
    ),
    gauge(
        "libvirt_domain_memory_stats_usable_bytes",
        ("balloon", "usable"),
        Unit::Kibibytes,
        "Memory that the guest could use without swapping",
    ),
    gauge(
        "libvirt_domain_memory_stats_unused_bytes",
        ("balloon", "unused"),
        Unit::Kibibytes,
        "Memory that the guest leaves empty",
    ),
    gauge(
        "libvirt_domain_memory_stats_disk_cache_bytes",
        ("balloon", "disk_caches"),
        Unit::Kibibytes,
        "Memory of the guest that caches files",
    ),
    counter(
        "libvirt_domain_memory_stats_major_fault_total",
        ("balloon", "major_fault"),
        Unit::Plain,
        "Page faults of the guest that had to wait for a disk",
    ),
    counter(
        "libvirt_domain_memory_stats_minor_fault_total",
        ("balloon", "minor_fault"),
        Unit::Plain,
        "Page faults of the guest that needed no disk",
    ),
    // These two grow; deployed dashboards know them by names without a suffix.
    counter(
        "libvirt_domain_memory_stats_swap_in_bytes",
        ("balloon", "swap_in"),
        Unit::Kibibytes,
        "What the guest has read from its swap space",
    ),
    counter(
        "libvirt_domain_memory_stats_swap_out_bytes",
        ("balloon", "swap_out"),
        Unit::Kibibytes,
        "What the guest has written to its swap space",
    ),
];

/// One sample per virtual processor.
pub const VCPU: &[Family] = &[
    gauge(
        "libvirt_domain_vcpu_state",
        ("vcpu", "state"),
        Unit::Plain,
        "State of a virtual processor: 0 offline, 1 running, 2 blocked",
    ),
    counter(
        "libvirt_domain_vcpu_time_seconds_total",
        ("vcpu", "time"),
        Unit::Nanoseconds,
        "Time that a virtual processor has run",
    ),
    counter(
        "libvirt_domain_vcpu_wait_seconds_total",
        ("vcpu", "wait"),
        Unit::Nanoseconds,
        "Time that a virtual processor has waited for input or output",
    ),
    counter(
        "libvirt_domain_vcpu_delay_seconds_total",
        ("vcpu", "delay"),
        Unit::Nanoseconds,
        "Time that a virtual processor was ready and the host did not run it, which the guest sees as steal",
    ),
    // The scheduler's name for the same.
    counter(
        "kvm_domain_libvirt_vcpu_delay_nanoseconds_total",
        ("vcpu", "delay"),
        Unit::Plain,
        "The same as libvirt_domain_vcpu_delay_seconds_total in nanoseconds, as Cortex asks for it",
    ),
];

/// One sample per disk.
pub const BLOCK: &[Family] = &[
    counter(
        "libvirt_domain_block_stats_read_bytes_total",
        ("block", "rd.bytes"),
        Unit::Plain,
        "Bytes that were read from a disk",
    ),
    counter(
        "libvirt_domain_block_stats_read_requests_total",
        ("block", "rd.reqs"),
        Unit::Plain,
        "Reads of a disk",
    ),
    counter(
        "libvirt_domain_block_stats_read_time_seconds_total",
        ("block", "rd.times"),
        Unit::Nanoseconds,
        "Time that reads of a disk took",
    ),
    counter(
        "libvirt_domain_block_stats_write_bytes_total",
        ("block", "wr.bytes"),
        Unit::Plain,
        "Bytes that were written to a disk",
    ),
    counter(
        "libvirt_domain_block_stats_write_requests_total",
        ("block", "wr.reqs"),
        Unit::Plain,
        "Writes to a disk",
    ),
    counter(
        "libvirt_domain_block_stats_write_time_seconds_total",
        ("block", "wr.times"),
        Unit::Nanoseconds,
        "Time that writes to a disk took",
    ),
    counter(
        "libvirt_domain_block_stats_flush_requests_total",
        ("block", "fl.reqs"),
        Unit::Plain,
        "Flushes of a disk",
    ),
    counter(
        "libvirt_domain_block_stats_flush_time_seconds_total",
        ("block", "fl.times"),
        Unit::Nanoseconds,
        "Time that flushes of a disk took",
    ),
    gauge(
        "libvirt_domain_block_stats_allocation",
        ("block", "allocation"),
        Unit::Plain,
        "Offset of the highest byte that was written to a disk",
    ),
    gauge(
        "libvirt_domain_block_stats_capacity_bytes",
        ("block", "capacity"),
        Unit::Plain,
        "Size of a disk as the guest sees it",
    ),
    gauge(
        "libvirt_domain_block_stats_physicalsize_bytes",
        ("block", "physical"),
        Unit::Plain,
        "Size of a disk's container on the host",
    ),
];

/// One sample per interface, from the guest's side of it.
pub const INTERFACE: &[Family] = &[
    counter(
        "libvirt_domain_interface_stats_receive_bytes_total",
        ("net", "rx.bytes"),
        Unit::Plain,
        "Bytes that an interface has received",
    ),
    counter(
        "libvirt_domain_interface_stats_receive_packets_total",
        ("net", "rx.pkts"),
        Unit::Plain,
        "Packets that an interface has received",
    ),
    counter(
        "libvirt_domain_interface_stats_receive_errors_total",
        ("net", "rx.errs"),
        Unit::Plain,
        "Errors while an interface received",
    ),
    counter(
        "libvirt_domain_interface_stats_receive_drops_total",
        ("net", "rx.drop"),
        Unit::Plain,
        "Packets to an interface that were dropped",
    ),
    counter(
        "libvirt_domain_interface_stats_transmit_bytes_total",
        ("net", "tx.bytes"),
        Unit::Plain,
        "Bytes that an interface has sent",
    ),
    counter(
        "libvirt_domain_interface_stats_transmit_packets_total",
        ("net", "tx.pkts"),
        Unit::Plain,
        "Packets that an interface has sent",
    ),
    counter(
        "libvirt_domain_interface_stats_transmit_errors_total",
        ("net", "tx.errs"),
        Unit::Plain,
        "Errors while an interface sent",
    ),
    counter(
        "libvirt_domain_interface_stats_transmit_drops_total",
        ("net", "tx.drop"),
        Unit::Plain,
        "Packets of an interface that were dropped",
    ),
];

/// The host's memory: libvirt's word for it, the family, its help.
pub const NODE_MEMORY: &[(&str, &str, &str)] = &[
    (
        "free",
        "libvirt_node_memory_free_bytes",
        "Memory of the host that is free",
    ),
    (
        "buffers",
        "libvirt_node_memory_buffers_bytes",
        "Memory of the host in buffers",
    ),
    (
        "cached",
        "libvirt_node_memory_cached_bytes",
        "Memory of the host that caches files",
    ),
];
