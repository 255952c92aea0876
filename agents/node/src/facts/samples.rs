//! Instances as real libvirt writes them, on the host that they ran on.
//!
//! `numa` and `hotplug` ran with their memory on node 0. `crossed` and `ch-node1` are defined only:
//! their host shows two nodes, and the kernel under it has one.

use cobalt_api::hypervisor::HaPolicy;

use super::allocation;
use super::capabilities::{self, Host};
use super::domain::{self, Bound, DomainFacts};

const MIB: u64 = 1 << 20;

macro_rules! sample {
    ($name:literal) => {
        include_str!(concat!("../../tests/samples/libvirt/", $name, ".xml"))
    };
}

fn host() -> Host {
    capabilities::parse(sample!("capabilities-two-cells-9.0")).unwrap()
}

fn read(text: &str) -> DomainFacts {
    let facts = domain::parse(text).unwrap();
    assert_eq!(facts.warnings, Vec::<String>::new());
    facts
}

fn bound(amount: u64, on: &str) -> Bound {
    let on = on.parse().unwrap();
    Bound { amount, on }
}

/// What each cell of the host holds: processors and memory.
fn cells(facts: &DomainFacts) -> Vec<(String, String)> {
    let found = allocation::resources(&host(), [facts], &[].into());
    let held = found.cells.into_iter().filter_map(|cell| cell.allocation);
    held.map(|held| (held["cpu"].0.clone(), held["memory"].0.clone()))
        .collect()
}

fn words(cells: &[(String, String)]) -> Vec<(&str, &str)> {
    let words = cells.iter().map(|(cpu, memory)| (&**cpu, &**memory));
    words.collect()
}

#[test]
fn the_host_shows_two_cells() {
    let host = host();
    assert_eq!(host.cells.len(), 2);
    assert_eq!((host.memory_bytes, host.cpus), (24_684_100 << 10, 2));
}

#[test]
fn a_running_instance_with_pins_and_nodes_on_both_releases() {
    for text in [
        sample!("domain-numa-live-9.0"),
        sample!("domain-numa-live-11.3"),
    ] {
        let facts = read(text);
        assert_eq!(facts.name, "instance-0000002a");
        assert!(facts.active);
        assert_eq!((facts.memory_bytes, facts.vcpus), (129 * MIB, 3));
        assert_eq!(facts.memory_on, [bound(129 * MIB, "0")]);
        assert_eq!(facts.vcpus_on, [bound(1, "0"), bound(2, "1")]);
        assert_eq!(words(&cells(&facts)), [("1", "129Mi"), ("2", "0")]);
        // `virsh metadata` has set it, over what the flavor says.
        assert_eq!(facts.ha_policy, Some(HaPolicy::Restart));
        assert_eq!(facts.priority, Some(10));
        let nova = facts.nova.unwrap();
        assert_eq!(nova.name.as_deref(), Some("shop"));
        assert_eq!(nova.flavor.as_deref(), Some("m1.numa"));
        assert_eq!(
            nova.project_id.as_deref(),
            Some("3a5f1c2b4d6e4f708192a3b4c5d6e7f8")
        );
    }
}

#[test]
fn w79_a_defined_instance_whose_cells_are_crossed() {
    let facts = read(sample!("domain-numa-crossed-9.0"));
    assert!(!facts.active);
    assert_eq!(
        facts.memory_on,
        [bound(64 * MIB, "0"), bound(65 * MIB, "1")]
    );
    assert_eq!(words(&cells(&facts)), [("1", "64Mi"), ("2", "65Mi")]);
    assert_eq!(facts.ha_policy, Some(HaPolicy::Evict));
}

#[test]
fn a_running_instance_with_a_memory_module_on_both_releases() {
    for text in [
        sample!("domain-hotplug-live-9.0"),
        sample!("domain-hotplug-live-11.3"),
    ] {
        let facts = read(text);
        assert_eq!(facts.memory_bytes, 257 * MIB);
        assert_eq!(facts.memory_on, [bound(257 * MIB, "0")]);
    }
}

#[test]
fn w51_a_running_instance_with_nothing_but_memory_on_both_releases() {
    for text in [
        sample!("domain-plain-live-9.0"),
        sample!("domain-plain-live-11.3"),
    ] {
        let facts = read(text);
        assert_eq!((facts.memory_bytes, facts.vcpus), (62 * MIB, 2));
        assert!(facts.memory_on.is_empty() && facts.vcpus_on.is_empty());
        assert_eq!(words(&cells(&facts)), [("1", "31Mi"), ("1", "31Mi")]);
    }
}

#[test]
fn w79_cloud_hypervisors_driver_pins_guest_cell_0_to_node_1() {
    let live = read(sample!("domain-ch-live-11.3"));
    assert!(live.active);
    assert_eq!(live.vcpus_on, [bound(1, "0"), bound(2, "1")]);
    assert_eq!(live.ha_policy, Some(HaPolicy::Evict));
    let defined = read(sample!("domain-ch-node1-11.3"));
    assert!(!defined.active);
    assert_eq!(defined.memory_on, [bound(65 * MIB, "1")]);
    assert_eq!(words(&cells(&defined)), [("1", "0"), ("2", "65Mi")]);
}
