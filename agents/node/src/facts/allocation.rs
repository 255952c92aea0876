//! The host and its running virtual machines, as the status counts them.
//!
//! Each cell has its share of every instance, so that the cells always add up to the host (W79):
//!
//! - Memory that is bound to nodes is shared out over these nodes, and virtual processors that are
//!   pinned over the cells of the host's processors they are pinned to.
//! - What is not bound, or bound to nothing that this host has, is shared out over all cells. A
//!   scheduler that fills cells needs this: the kernel puts such an instance somewhere, and a cell
//!   that looked empty would be given out twice.
//!
//! Shares follow the size of the cells, in whole processors and in KiB. All instances with the same
//! place are added up before they are shared out, so that sixty instances with one processor each
//! do not end up in the first cell, and the order of the instances does not matter.

use std::collections::BTreeMap;

use cobalt_api::hypervisor::{Capabilities, Cell, Resources as Quantities, resources as names};

use crate::facts::capabilities::{Host, HostCell};
use crate::facts::domain::{Bound, DomainFacts};
use crate::facts::units;

/// Memory is shared out in these; libvirt counts in them.
const KIB: u64 = 1024;

/// The part of the status that is about resources.
#[derive(Debug, Clone, PartialEq)]
pub struct Resources {
    /// What the host has, as libvirt says it.
    pub capabilities: Capabilities,
    /// What the host has.
    pub capacity: Quantities,
    /// What the instances hold.
    pub allocation: Quantities,
    /// What may be given out.
    pub effective_capacity: Quantities,
    /// The same for each NUMA cell, by its number.
    pub cells: Vec<Cell>,
}

/// Counts. `overcommit` says how many times a resource is given out; what is not in it is given out
/// once, and a resource that hosts do not have is passed over.
#[must_use]
pub fn resources<'a>(
    host: &Host,
    domains: impl IntoIterator<Item = &'a DomainFacts>,
    overcommit: &BTreeMap<String, f64>,
) -> Resources {
    let memory = |cell: &HostCell| cell.memory_bytes;
    let cpus = |cell: &HostCell| cell.cpus.len();
    let mut held = Amounts::default();
    let mut memory_shares = Shares::new(&host.cells, memory);
    let mut cpu_shares = Shares::new(&host.cells, cpus);
    for domain in domains {
        let vcpus = u64::from(domain.vcpus);
        held.memory = held.memory.saturating_add(domain.memory_bytes);
        held.cpus = held.cpus.saturating_add(vcpus);
        memory_shares.add(domain.memory_bytes, &domain.memory_on, |cell, bound| {
            // A node without memory that is named all the same is better than no node.
            u64::from(bound.on.contains(cell.id)) * cell.memory_bytes.max(1)
        });
        cpu_shares.add(vcpus, &domain.vcpus_on, |cell, bound| {
            bound.on.common(&cell.cpus)
        });
    }
    let factor = Factors::new(overcommit);
    let memory_shares = memory_shares.share(KIB);
    let cpu_shares = cpu_shares.share(1);
    let cells = host.cells.iter().zip(memory_shares.iter().zip(cpu_shares));
    let cells = cells.map(|(cell, (held_memory, held_cpus))| {
        let capacity = Amounts {
            memory: memory(cell),
            cpus: cpus(cell),
        };
        let held = Amounts {
            memory: *held_memory,
            cpus: held_cpus,
        };
        Cell {
            cell_id: i64::from(cell.id),
            allocation: Some(held.quantities()),
            capacity: Some(capacity.quantities()),
            effective_capacity: Some(factor.effective(capacity).quantities()),
        }
    });
    let capacity = Amounts {
        memory: host.memory_bytes,
        cpus: u64::from(host.cpus),
    };
    Resources {
        capabilities: Capabilities {
            cpu_arch: Some(host.arch.clone().unwrap_or_else(|| "unknown".to_owned())),
            memory: Some(units::memory(capacity.memory)),
            cpus: Some(units::count(capacity.cpus)),
        },
        capacity: capacity.quantities(),
        allocation: held.quantities(),
        effective_capacity: factor.effective(capacity).quantities(),
        cells: cells.collect(),
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Amounts {
    memory: u64,
    cpus: u64,
}

impl Amounts {
    fn quantities(self) -> Quantities {
        BTreeMap::from([
            (names::CPU.to_owned(), units::count(self.cpus)),
            (names::MEMORY.to_owned(), units::memory(self.memory)),
        ])
    }
}

struct Factors {
    memory: f64,
    cpus: f64,
}

impl Factors {
    fn new(overcommit: &BTreeMap<String, f64>) -> Self {
        // The schema refuses less than one. Where it has let it pass, giving out nothing at all
        // would be the worse answer.
        let factor = |name: &str| overcommit.get(name).map_or(1.0, |factor| factor.max(1.0));
        Self {
            memory: factor(names::MEMORY),
            cpus: factor(names::CPU),
        }
    }

    fn effective(&self, capacity: Amounts) -> Amounts {
        Amounts {
            memory: units::times(capacity.memory, self.memory),
            cpus: units::times(capacity.cpus, self.cpus),
        }
    }
}

/// Amounts of one resource that are still to be shared out, by the weights of the cells.
struct Shares<'a> {
    cells: &'a [HostCell],
    anywhere: Vec<u64>,
    amounts: BTreeMap<Vec<u64>, u64>,
}

impl<'a> Shares<'a> {
    fn new(cells: &'a [HostCell], size: impl Fn(&HostCell) -> u64) -> Self {
        let mut anywhere: Vec<u64> = cells.iter().map(size).collect();
        if anywhere.iter().all(|weight| *weight == 0) {
            anywhere.fill(1);
        }
        Self {
            cells,
            anywhere,
            amounts: BTreeMap::new(),
        }
    }

    /// One instance: what is bound, and the rest.
    fn add(&mut self, total: u64, bound: &[Bound], weight: impl Fn(&HostCell, &Bound) -> u64) {
        let mut left = total;
        for bound in bound {
            let amount = bound.amount.min(left);
            left -= amount;
            let weights: Vec<u64> = self.cells.iter().map(|cell| weight(cell, bound)).collect();
            if weights.iter().all(|weight| *weight == 0) {
                left += amount;
            } else {
                let sum = self.amounts.entry(weights).or_insert(0);
                *sum = sum.saturating_add(amount);
            }
        }
        let sum = self.amounts.entry(self.anywhere.clone()).or_insert(0);
        *sum = sum.saturating_add(left);
    }

    /// The share of each cell.
    fn share(&self, unit: u64) -> Vec<u64> {
        let mut cells = vec![0_u64; self.cells.len()];
        for (weights, amount) in &self.amounts {
            let shares = apportion(*amount, weights, unit);
            for (cell, share) in cells.iter_mut().zip(shares) {
                *cell = cell.saturating_add(share);
            }
        }
        cells
    }
}

/// Shares an amount out in proportion to the weights, in whole units. What is left over goes to
/// those who were rounded down most, the first of equals first. Nothing is lost.
fn apportion(amount: u64, weights: &[u64], unit: u64) -> Vec<u64> {
    let total: u128 = weights.iter().copied().map(u128::from).sum();
    let (whole, odd) = (amount / unit, amount % unit);
    let exact = weights.iter().map(|weight| {
        let product = u128::from(whole) * u128::from(*weight);
        (product.checked_div(total), product.checked_rem(total))
    });
    // (share, index, rounded down by)
    let mut shares: Vec<(u64, usize, u128)> = exact
        .enumerate()
        .map(|(index, (share, rest))| {
            let share = u64::try_from(share.unwrap_or(0)).unwrap_or(u64::MAX);
            (share, index, rest.unwrap_or(0))
        })
        .collect();
    shares.sort_by_key(|(_, index, rest)| (std::cmp::Reverse(*rest), *index));
    let given = shares
        .iter()
        .map(|(share, ..)| *share)
        .fold(0, u64::saturating_add);
    let left = usize::try_from(whole.saturating_sub(given)).unwrap_or(usize::MAX);
    for (share, ..) in shares.iter_mut().take(left) {
        *share = share.saturating_add(1);
    }
    shares.sort_by_key(|(_, index, _)| *index);
    let mut shares: Vec<u64> = shares
        .iter()
        .map(|(share, ..)| share.saturating_mul(unit))
        .collect();
    let first = weights
        .iter()
        .zip(&mut shares)
        .find(|(weight, _)| **weight > 0);
    if let Some((_, share)) = first {
        *share = share.saturating_add(odd);
    }
    shares
}

#[cfg(test)]
mod tests;
