//! What libvirt's XML says, as plain data. Pure: from text to facts, and from facts to the status.
//!
//! | module | what |
//! |---|---|
//! | `capabilities` | the host: architecture, memory, processors, NUMA cells |
//! | `domain_capabilities` | what a virtual machine can have on this host |
//! | `domain` | one virtual machine: what it holds, and where on the host |
//! | `metadata` | what others have written into a virtual machine's XML: HA policy, Nova's names |
//! | `allocation` | the host and its virtual machines as the status counts them |
//! | `units`, `set`, `xml` | libvirt's numbers, Kubernetes' quantities, cpusets, XML with bounds |
//!
//! One odd element never hides the rest: it becomes a warning, and the nearest safe value counts.
//! Only what is no XML, or not about the thing it should be about, is an error.

pub mod allocation;
pub mod capabilities;
pub mod domain;
pub mod domain_capabilities;
pub mod metadata;
#[cfg(test)]
mod samples;
pub mod set;
pub mod units;
pub mod xml;

/// What was odd and was taken leniently. Bounded: an odd list has one cause.
#[derive(Debug, Default)]
struct Warnings(Vec<String>);

impl Warnings {
    const MAX: usize = 8;

    fn add(&mut self, warning: impl FnOnce() -> String) {
        if self.0.len() < Self::MAX {
            let warning = warning();
            if !self.0.contains(&warning) {
                self.0.push(warning);
            }
        }
    }
}
