//! What libvirt says about the host and its instances, as plain data.

use std::collections::BTreeMap;
use std::sync::Arc;

use cobalt_api::hypervisor::{DomainCapabilities, Instance};
use uuid::Uuid;

use crate::context::Domains;
use crate::facts::capabilities::Host;
use crate::facts::domain::DomainFacts;

/// All that was read. A value that the driver cannot give is absent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Inventory {
    /// The version of libvirt.
    pub lib_version: Option<String>,
    /// The version of the virtual machine monitor.
    pub hypervisor_version: Option<String>,
    /// What the host has.
    pub host: Option<Arc<Host>>,
    /// What a virtual machine can have.
    pub domain_capabilities: Option<Arc<DomainCapabilities>>,
    /// The instances.
    pub domains: BTreeMap<Uuid, Entry>,
}

/// An instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// What its XML says.
    pub facts: Arc<DomainFacts>,
    /// Its state in one word.
    pub state: Option<&'static str>,
    /// Why, in one word; absent for the plain cases.
    pub reason: Option<&'static str>,
    /// Why its XML could not be read. It is counted, and what it holds is not known.
    pub unreadable: Option<String>,
}

impl Inventory {
    /// The instances for the status: running ones first, then by name, then by id.
    #[must_use]
    pub fn instances(&self) -> Vec<Instance> {
        let mut all: Vec<Instance> = self
            .domains
            .iter()
            .map(|(uuid, entry)| Instance {
                id: uuid.to_string(),
                name: entry.facts.name.clone(),
                active: entry.facts.active,
                state: entry.state.map(str::to_owned),
                reason: entry.reason.map(str::to_owned),
            })
            .collect();
        // They are in the order of their ids, and stay so where all else is equal.
        all.sort_by(|a, b| b.active.cmp(&a.active).then_with(|| a.name.cmp(&b.name)));
        all
    }

    /// The instances for the other tasks.
    #[must_use]
    pub fn facts(&self) -> Domains {
        self.domains
            .iter()
            .map(|(uuid, entry)| (*uuid, Arc::clone(&entry.facts)))
            .collect()
    }

    /// The instances that could not be read, with the reason of each.
    #[must_use]
    pub fn unreadable(&self) -> Vec<String> {
        self.domains
            .values()
            .filter_map(|entry| {
                let reason = entry.unreadable.as_ref()?;
                Some(format!("{}: {reason}", entry.facts.name))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::domain;

    fn inventory(domains: &[(u128, &str, bool, Option<&str>)]) -> Inventory {
        let entries = domains.iter().map(|&(uuid, name, active, unreadable)| {
            let uuid = Uuid::from_u128(uuid);
            let entry = Entry {
                facts: Arc::new(domain::unreadable(name, uuid, active)),
                state: Some(if active { "running" } else { "shutoff" }),
                reason: None,
                unreadable: unreadable.map(str::to_owned),
            };
            (uuid, entry)
        });
        Inventory {
            domains: entries.collect(),
            ..Inventory::default()
        }
    }

    #[test]
    fn instances_are_in_one_order_also_when_names_repeat() {
        let inventory = inventory(&[
            (5, "b", false, None),
            (4, "a", true, None),
            (3, "c", true, None),
            (2, "a", true, None),
            (1, "a", false, None),
        ]);
        let found = inventory.instances();
        let order: Vec<(bool, &str, &str)> = found
            .iter()
            .map(|instance| (instance.active, instance.name.as_str(), &instance.id[35..]))
            .collect();
        let expected = [
            (true, "a", "2"),
            (true, "a", "4"),
            (true, "c", "3"),
            (false, "a", "1"),
            (false, "b", "5"),
        ];
        assert_eq!(order, expected);
        assert_eq!(found[0].state.as_deref(), Some("running"));
        assert_eq!(inventory.facts().len(), 5);
    }

    #[test]
    fn an_unreadable_instance_is_listed_and_named() {
        let inventory = inventory(&[
            (1, "a", true, Some("the XML has no \"name\"")),
            (2, "b", true, None),
        ]);
        assert_eq!(inventory.instances().len(), 2);
        assert_eq!(inventory.unreadable(), ["a: the XML has no \"name\""]);
    }
}
