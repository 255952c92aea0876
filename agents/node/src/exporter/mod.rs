//! What libvirt counts, as metrics in the names that libvirt's exporters have in common.
//!
//! Pure: one bulk read in, text out. The text is written family by family straight into one string,
//! and nothing is kept between two scrapes: what has left the host leaves no series behind.
//! Every series of a virtual machine has its UUID beside its name, so that nobody has to join names.

mod families;
mod params;
mod text;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use cobalt_libvirt::{DomainStats, NodeInfo};
use uuid::Uuid;

use self::families::{BLOCK, DOMAIN, Family, INTERFACE, NODE_MEMORY, Unit, VCPU};
use self::params::Params;
use self::text::{Kind, Label, Text, Value};
use crate::context::Domains;
use crate::facts::domain::DomainFacts;

/// What was read from libvirt. What a driver cannot give is absent.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// The version of libvirt.
    pub lib_version: Option<String>,
    /// The version of the virtual machine monitor.
    pub hypervisor_version: Option<String>,
    /// The host.
    pub node: Option<NodeInfo>,
    /// Nanoseconds that the host's processors have spent, by what they did.
    pub node_cpu: BTreeMap<String, u64>,
    /// KiB of the host's memory, by what they are.
    pub node_memory: BTreeMap<String, u64>,
    /// Every virtual machine with its statistics.
    pub domains: Vec<DomainStats>,
}

/// Appends the metrics. Without a reading libvirt is not up, and that is all there is to say.
pub fn write(out: &mut String, reading: Option<&Reading>, facts: &Domains) {
    let mut text = Text::new(out);
    let help = "Whether libvirt has answered this scrape";
    text.family("libvirt_up", Kind::Gauge, help)
        .sample(&[], u64::from(reading.is_some()));
    let Some(reading) = reading else {
        return;
    };
    host(&mut text, reading);
    let vms = Vm::all(&reading.domains);
    let count = u64::try_from(vms.len()).unwrap_or(u64::MAX);
    let help = "Virtual machines, running or not";
    text.family("libvirt_domains", Kind::Gauge, help)
        .sample(&[], count);
    meta(&mut text, &vms, facts);
    for family in DOMAIN {
        family.begin(&mut text);
        for vm in &vms {
            vm.sample(&mut text, family, None, &[]);
        }
    }
    memory_used(&mut text, &vms);
    for family in VCPU {
        family.begin(&mut text);
        for vm in &vms {
            for vcpu in vm.params.devices(family.group) {
                vm.sample(
                    &mut text,
                    family,
                    Some(vcpu),
                    &[("vcpu", &vcpu.to_string())],
                );
            }
        }
    }
    block_meta(&mut text, &vms);
    for (families, group) in [(BLOCK, "block"), (INTERFACE, "net")] {
        for family in families {
            family.begin(&mut text);
            for vm in &vms {
                for (device, name) in vm.devices(group) {
                    vm.sample(&mut text, family, Some(device), &[("target_device", name)]);
                }
            }
        }
    }
}

impl Family {
    fn begin(&self, text: &mut Text<'_>) {
        text.family(self.name, self.kind, self.help);
    }
}

/// A virtual machine, ready to be looked up in.
struct Vm<'a> {
    name: &'a str,
    uuid: Uuid,
    uuid_text: String,
    active: bool,
    params: Params<'a>,
}

impl<'a> Vm<'a> {
    /// All of them by name. One that is listed twice counts once: no two series may be the same.
    fn all(domains: &'a [DomainStats]) -> Vec<Self> {
        let mut seen = BTreeSet::new();
        let mut all: Vec<Self> = domains
            .iter()
            .filter(|stats| seen.insert(stats.domain.uuid))
            .map(|stats| Self {
                name: &stats.domain.name,
                uuid: stats.domain.uuid,
                uuid_text: stats.domain.uuid.to_string(),
                active: stats.domain.id.is_some(),
                params: Params::new(stats.params.iter()),
            })
            .collect();
        all.sort_by_key(|vm| (vm.name, vm.uuid));
        all
    }

    /// The labels of its series, with some more.
    fn labels<'b>(&'b self, more: &[Label<'b>]) -> Vec<Label<'b>> {
        [&[("domain", self.name), ("uuid", &self.uuid_text)], more].concat()
    }

    /// A sample, if libvirt has told the statistic.
    fn sample(
        &self,
        text: &mut Text<'_>,
        family: &Family,
        device: Option<u32>,
        more: &[Label<'_>],
    ) {
        // Of a machine that is off libvirt tells the processor time of its own process.
        if family.group == "cpu" && !self.active {
            return;
        }
        if let Some(value) = self.params.number(family.group, device, family.field) {
            text.sample(&self.labels(more), family.unit.of(value));
        }
    }

    /// The devices of a group that have a name of their own: without one their series could not be
    /// told apart.
    fn devices(&self, group: &'static str) -> impl Iterator<Item = (u32, &'a str)> {
        let mut seen = BTreeSet::new();
        self.params.devices(group).filter_map(move |device| {
            let name = self.params.text(group, Some(device), "name")?;
            seen.insert(name).then_some((device, name))
        })
    }
}

fn host(text: &mut Text<'_>, reading: &Reading) {
    let versions: Vec<Label<'_>> = [
        ("hypervisor_running", &reading.hypervisor_version),
        ("libvirtd_running", &reading.lib_version),
    ]
    .into_iter()
    .filter_map(|(label, version)| Some((label, version.as_deref()?)))
    .collect();
    if !versions.is_empty() {
        let help = "Versions of libvirt and of the virtual machine monitor";
        text.family("libvirt_versions_info", Kind::Gauge, help)
            .sample(&versions, 1);
    }
    if let Some(node) = &reading.node {
        let help = "Active processors of the host";
        text.family("libvirt_node_cpus", Kind::Gauge, help)
            .sample(&[], u64::from(node.cpus));
        let help = "Memory of the host";
        text.family("libvirt_node_memory_total_bytes", Kind::Gauge, help)
            .sample(&[], Unit::Kibibytes.of(node.memory_kib));
    }
    for (field, name, help) in NODE_MEMORY {
        if let Some(kib) = reading.node_memory.get(*field) {
            text.family(name, Kind::Gauge, help)
                .sample(&[], Unit::Kibibytes.of(*kib));
        }
    }
    let help = "Time that the processors of the host have spent, by what they did";
    text.family("libvirt_node_cpu_seconds_total", Kind::Counter, help);
    for (mode, nanoseconds) in &reading.node_cpu {
        text.sample(&[("mode", mode)], Unit::Nanoseconds.of(*nanoseconds));
    }
}

/// Who a virtual machine is, to join other series with.
fn meta(text: &mut Text<'_>, vms: &[Vm<'_>], facts: &Domains) {
    let help = "Who a virtual machine is, with what Nova has written into it";
    text.family("libvirt_domain_info_meta", Kind::Gauge, help);
    for vm in vms {
        let nova = facts.get(&vm.uuid).map(|facts| nova_labels(facts));
        text.sample(&vm.labels(&nova.unwrap_or_default()), 1);
    }
}

/// Where a disk is; network disks have no path.
fn block_meta(text: &mut Text<'_>, vms: &[Vm<'_>]) {
    let help = "Where a disk of a virtual machine is";
    text.family("libvirt_domain_block_meta", Kind::Gauge, help);
    for vm in vms {
        for (device, name) in vm.devices("block") {
            if let Some(path) = vm.params.text("block", Some(device), "path") {
                let labels = [("target_device", name), ("source_file", path)];
                text.sample(&vm.labels(&labels), 1);
            }
        }
    }
}

/// How much of its memory a guest uses, if its balloon driver tells.
fn memory_used(text: &mut Text<'_>, vms: &[Vm<'_>]) {
    let help = "Share of its memory that the guest uses";
    let name = "libvirt_domain_memory_stats_used_percent";
    text.family(name, Kind::Gauge, help);
    for vm in vms {
        let of = |field| vm.params.number("balloon", None, field);
        if let (Some(available @ 1..), Some(usable)) = (of("available"), of("usable")) {
            let used = u128::from(available.saturating_sub(usable));
            let billionths = used * 100 * 1_000_000_000 / u128::from(available);
            text.sample(&vm.labels(&[]), Value::billionths(billionths));
        }
    }
}

/// What Nova has written, in the labels that exporters have for it.
fn nova_labels(facts: &DomainFacts) -> Vec<Label<'_>> {
    let Some(nova) = &facts.nova else {
        return Vec::new();
    };
    [
        ("instance_name", &nova.name),
        ("flavor", &nova.flavor),
        ("project_name", &nova.project_name),
        ("project_uuid", &nova.project_id),
        ("user_name", &nova.user_name),
        ("user_uuid", &nova.user_id),
    ]
    .into_iter()
    .filter_map(|(label, value)| Some((label, value.as_deref()?)))
    .collect()
}
