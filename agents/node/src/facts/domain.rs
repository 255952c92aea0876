//! One virtual machine, from its XML: what it holds, and where on the host it has to be.
//!
//! - Memory is the element `memory`, not `currentMemory`: that is what the guest may take at any
//!   moment, what Nova has booked, and it does not change with the balloon.
//! - Virtual processors are those that are plugged in now, pinned or not.
//! - Places are host places: the nodesets of `numatune` and the cpusets of `vcpupin` and `vcpu`. The
//!   number of a guest's cell only joins its size to its nodeset (W79).

use std::collections::BTreeMap;

use cobalt_api::hypervisor::HaPolicy;
use roxmltree::Node;
use uuid::Uuid;

use crate::facts::metadata::{self, Nova};
use crate::facts::set::Set;
use crate::facts::xml::{self, Error};
use crate::facts::{Warnings, units};

/// What the XML of a virtual machine says. Small: every instance's facts stay in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DomainFacts {
    /// The UUID, which is Nova's server id.
    pub uuid: Uuid,
    /// The name in libvirt.
    pub name: String,
    /// It runs.
    pub active: bool,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its virtual processors that are plugged in.
    pub vcpus: u32,
    /// The part of the memory that has to be on some NUMA nodes of the host, in bytes. Never more
    /// than all of it; the rest may be anywhere.
    pub memory_on: Vec<Bound>,
    /// The part of the virtual processors that has to run on some processors of the host.
    pub vcpus_on: Vec<Bound>,
    /// What happens to it when it fails, if it says so.
    pub ha_policy: Option<HaPolicy>,
    /// A higher one is saved first, if it says so.
    pub priority: Option<i32>,
    /// What Nova says about it.
    pub nova: Option<Box<Nova>>,
    /// What was odd and was taken leniently.
    pub warnings: Vec<String>,
}

/// An amount that is bound to a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// How much.
    pub amount: u64,
    /// Nodes or processors of the host.
    pub on: Set,
}

/// What is known of an instance whose XML is of no use.
#[must_use]
pub fn unreadable(name: &str, uuid: Uuid, active: bool) -> DomainFacts {
    DomainFacts {
        uuid,
        name: name.to_owned(),
        active,
        ..DomainFacts::default()
    }
}

/// Reads the XML of an instance.
///
/// # Errors
///
/// When the text is not the XML of an instance with a UUID and a name.
pub fn parse(text: &str) -> Result<DomainFacts, Error> {
    let document = xml::document(text, "domain")?;
    let domain = document.root_element();
    let uuid = xml::value(xml::child(domain, "uuid")).ok_or(Error::Missing("uuid"))?;
    let uuid = Uuid::parse_str(&uuid).map_err(|_| Error::Uuid(uuid.chars().take(64).collect()))?;
    let name = xml::value(xml::child(domain, "name")).ok_or(Error::Missing("name"))?;
    let mut warnings = Warnings::default();
    let guest_cells = guest_cells(domain, &mut warnings);
    let memory_bytes = memory(domain, &guest_cells, &mut warnings);
    let memory_on = memory_on(domain, &guest_cells, memory_bytes, &mut warnings);
    let vcpus = vcpus(domain, &mut warnings);
    let vcpus_on = vcpus_on(domain, vcpus, &mut warnings);
    let more = xml::child(domain, "metadata")
        .map(|node| metadata::read(node, &mut warnings))
        .unwrap_or_default();
    Ok(DomainFacts {
        uuid,
        name,
        active: domain.attribute("id").is_some_and(|id| id.trim() != "-1"),
        memory_bytes,
        vcpus,
        memory_on,
        vcpus_on,
        ha_policy: more.ha_policy,
        priority: more.priority,
        nova: more.nova,
        warnings: warnings.0,
    })
}

/// An element with an amount of memory; `None` if it is not there or cannot be read.
fn size(parent: Node<'_, '_>, name: &str, warnings: &mut Warnings) -> Option<u64> {
    let node = xml::child(parent, name)?;
    match units::bytes(xml::text(node), node.attribute("unit")) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            warnings.add(|| format!("{name}: {error}"));
            None
        }
    }
}

/// The memory of each guest cell, with the memory devices that are plugged into it.
fn guest_cells(domain: Node<'_, '_>, warnings: &mut Warnings) -> BTreeMap<u32, u64> {
    let mut cells = BTreeMap::new();
    let numa = xml::at(domain, &["cpu", "numa"]);
    let all = numa.iter().flat_map(|numa| xml::children(*numa, "cell"));
    for (index, cell) in (0..).zip(all) {
        // Without a number, the place in the list is the number.
        let id = cell.attribute("id").map_or(Ok(index), units::number);
        let memory = cell.attribute("memory").unwrap_or("0");
        match (id, units::bytes(memory, cell.attribute("unit"))) {
            (Ok(id), Ok(bytes)) => {
                let cell: &mut u64 = cells.entry(id).or_insert(0);
                *cell = cell.saturating_add(bytes);
            }
            (Err(error), _) | (_, Err(error)) => warnings.add(|| format!("cpu/numa/cell: {error}")),
        }
    }
    let devices = xml::child(domain, "devices");
    let modules = devices
        .iter()
        .flat_map(|devices| xml::children(*devices, "memory"));
    for target in modules.filter_map(|module| xml::child(module, "target")) {
        let node = xml::child(target, "node").and_then(|node| units::number(xml::text(node)).ok());
        if let (Some(bytes), Some(node)) = (size(target, "size", warnings), node) {
            let cell: &mut u64 = cells.entry(node).or_insert(0);
            *cell = cell.saturating_add(bytes);
        }
    }
    cells
}

fn memory(domain: Node<'_, '_>, cells: &BTreeMap<u32, u64>, warnings: &mut Warnings) -> u64 {
    if let Some(bytes) = size(domain, "memory", warnings) {
        return bytes;
    }
    let (from, bytes) = match size(domain, "currentMemory", warnings) {
        Some(bytes) => ("currentMemory", bytes),
        None => (
            "its cells",
            cells.values().copied().fold(0, u64::saturating_add),
        ),
    };
    warnings.add(|| format!("it does not say how much memory it has; {from} counts"));
    bytes
}

/// A set in an attribute. `None` if there is none, or it cannot be read.
fn set(node: Node<'_, '_>, attribute: &str, warnings: &mut Warnings) -> Option<Set> {
    match node.attribute(attribute)?.parse() {
        Ok(set) => Some(set),
        Err(error) => {
            let name = node.tag_name().name();
            warnings.add(|| format!("{name}: {attribute}: {error}"));
            None
        }
    }
}

fn memory_on(
    domain: Node<'_, '_>,
    cells: &BTreeMap<u32, u64>,
    memory_bytes: u64,
    warnings: &mut Warnings,
) -> Vec<Bound> {
    let Some(tune) = xml::child(domain, "numatune") else {
        return Vec::new();
    };
    // The mode (strict, preferred, interleave, restrictive) says how hard the kernel tries. Where
    // the memory is meant to be is the same.
    let mut default = xml::child(tune, "memory").and_then(|all| set(all, "nodeset", warnings));
    let mut nodes: BTreeMap<u32, Set> = BTreeMap::new();
    for node in xml::children(tune, "memnode") {
        let cell = node
            .attribute("cellid")
            .and_then(|id| units::number(id).ok());
        match (cell, set(node, "nodeset", warnings)) {
            (Some(cell), Some(set)) => drop(nodes.insert(cell, set)),
            (None, _) => warnings.add(|| "a memnode does not say which cell it is for".to_owned()),
            (Some(_), None) => {}
        }
    }
    if cells.is_empty() && default.is_none() {
        // libvirt does not write this; it can only mean that the memory is on these nodes.
        default = nodes.values().cloned().reduce(|all, set| all.union(&set));
    }
    let mut bound = Groups::new(memory_bytes);
    for (cell, bytes) in cells {
        bound.take(*bytes, nodes.get(cell).or(default.as_ref()));
    }
    if bound.short {
        warnings.add(|| "its cells have more memory than it has; the total counts".to_owned());
    }
    bound.rest(default.as_ref())
}

fn vcpus(domain: Node<'_, '_>, warnings: &mut Warnings) -> u32 {
    // libvirt's own default.
    let Some(node) = xml::child(domain, "vcpu") else {
        return 1;
    };
    let current = node.attribute("current");
    let counted = current.map(units::number::<u32>);
    let counted = counted.filter(Result::is_ok);
    match counted.unwrap_or_else(|| units::number(xml::text(node))) {
        Ok(vcpus) => vcpus,
        Err(error) => {
            warnings.add(|| format!("vcpu: {error}; one counts"));
            1
        }
    }
}

fn vcpus_on(domain: Node<'_, '_>, vcpus: u32, warnings: &mut Warnings) -> Vec<Bound> {
    // Processors can be plugged in one by one; then they are listed.
    let listed: Option<Set> = xml::child(domain, "vcpus").map(|all| {
        xml::children(all, "vcpu")
            .filter(|vcpu| vcpu.attribute("enabled") == Some("yes"))
            .filter_map(|vcpu| units::number(vcpu.attribute("id")?).ok())
            .collect()
    });
    let online = listed.unwrap_or_else(|| Set::up_to(vcpus));
    let default = xml::child(domain, "vcpu").and_then(|all| set(all, "cpuset", warnings));
    let mut pins: BTreeMap<u32, Set> = BTreeMap::new();
    let tune = xml::child(domain, "cputune");
    for pin in tune.iter().flat_map(|tune| xml::children(*tune, "vcpupin")) {
        let vcpu = pin.attribute("vcpu").and_then(|id| units::number(id).ok());
        match (vcpu, set(pin, "cpuset", warnings)) {
            (Some(vcpu), Some(set)) => {
                if pins.insert(vcpu, set).is_some() {
                    warnings.add(|| format!("vcpu {vcpu} is pinned twice; the last pin counts"));
                }
            }
            (None, _) => warnings.add(|| "a vcpupin does not say which vcpu it is for".to_owned()),
            (Some(_), None) => {}
        }
    }
    let mut bound = Groups::new(u64::from(vcpus));
    for (_, set) in pins.iter().filter(|(vcpu, _)| online.contains(**vcpu)) {
        bound.take(1, Some(set));
    }
    bound.rest(default.as_ref())
}

/// Amounts by their place, never more than there is.
struct Groups<'a> {
    left: u64,
    short: bool,
    places: BTreeMap<&'a Set, u64>,
}

impl<'a> Groups<'a> {
    fn new(left: u64) -> Self {
        Self {
            left,
            short: false,
            places: BTreeMap::new(),
        }
    }

    fn take(&mut self, amount: u64, on: Option<&'a Set>) {
        self.short |= amount > self.left;
        let amount = amount.min(self.left);
        self.left -= amount;
        if let Some(on) = on
            && amount > 0
        {
            *self.places.entry(on).or_insert(0) += amount;
        }
    }

    fn rest(mut self, on: Option<&'a Set>) -> Vec<Bound> {
        self.take(self.left, on);
        let places = self.places.into_iter();
        places
            .map(|(on, amount)| Bound {
                amount,
                on: on.clone(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
