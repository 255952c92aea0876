//! Shares of hosts and cells.

use proptest::prelude::*;

use super::*;
use crate::facts::capabilities;
use crate::facts::set::Set;

const GIB: u64 = 1 << 30;

fn host(cells: &[(u32, u64, &str)]) -> Host {
    let mut host = Host {
        arch: Some("x86_64".into()),
        ..Host::default()
    };
    for &(id, gib, cpus) in cells {
        let cpus: Set = cpus.parse().unwrap_or_default();
        host.memory_bytes += gib * GIB;
        host.cpus += u32::try_from(cpus.len()).unwrap();
        host.cells.push(HostCell {
            id,
            memory_bytes: gib * GIB,
            cpus,
        });
    }
    host
}

fn two() -> Host {
    host(&[(0, 64, "0-31"), (1, 64, "32-63")])
}

fn vm(vcpus: u32, gib: u64, cpuset: &str, nodeset: &str) -> DomainFacts {
    let bound = |amount: u64, set: &str| {
        let on = set.parse().ok()?;
        Some(Bound { amount, on })
    };
    DomainFacts {
        active: true,
        vcpus,
        memory_bytes: gib * GIB,
        vcpus_on: bound(u64::from(vcpus), cpuset).into_iter().collect(),
        memory_on: bound(gib * GIB, nodeset).into_iter().collect(),
        ..DomainFacts::default()
    }
}

fn none() -> BTreeMap<String, f64> {
    BTreeMap::new()
}

/// `cpu memory` of some quantities.
fn short(quantities: &Quantities) -> String {
    assert_eq!(quantities.len(), 2);
    format!("{} {}", quantities["cpu"].0, quantities["memory"].0)
}

fn held(host: &Host, domains: &[DomainFacts]) -> Vec<String> {
    let found = resources(host, domains, &none());
    let cells = found
        .cells
        .iter()
        .map(|cell| cell.allocation.as_ref().unwrap());
    std::iter::once(&found.allocation)
        .chain(cells)
        .map(short)
        .collect()
}

#[test]
fn w79_each_cell_has_what_is_pinned_to_it() {
    let cases: &[(&[DomainFacts], &[&str])] = &[
        (&[], &["0 0", "0 0", "0 0"]),
        (&[vm(6, 24, "32-63", "1")], &["6 24Gi", "0 0", "6 24Gi"]),
        (
            &[vm(6, 24, "32-63", "1"), vm(4, 8, "0-31", "0")],
            &["10 32Gi", "4 8Gi", "6 24Gi"],
        ),
        // Over both, with a remainder.
        (
            &[vm(5, 3, "0-63", "0-1")],
            &["5 3Gi", "3 1536Mi", "2 1536Mi"],
        ),
        // Pinned to three processors here and one there.
        (&[vm(8, 1, "29-32", "0")], &["8 1Gi", "6 1Gi", "2 0"]),
    ];
    for (domains, expected) in cases {
        assert_eq!(held(&two(), domains), *expected);
    }
}

#[test]
fn w79_a_real_instance_with_crossed_cells_is_booked_on_the_hosts_nodes() {
    let domain = crate::facts::domain::parse(
        "<domain id='1'><name>a</name><uuid>7d0f4a52-0c7e-4d9b-8a4b-6a1f2c3d4e5f</uuid>\
         <memory unit='GiB'>24</memory><vcpu>6</vcpu><cputune><vcpupin vcpu='0' cpuset='32-63'/>\
         <vcpupin vcpu='1' cpuset='32-63'/></cputune><numatune>\
         <memnode cellid='0' mode='strict' nodeset='1'/></numatune><cpu><numa>\
         <cell id='0' cpus='0-5' memory='24' unit='GiB'/></numa></cpu></domain>",
    )
    .unwrap();
    // Two of six processors are pinned; the others are shared out.
    assert_eq!(held(&two(), &[domain]), ["6 24Gi", "2 0", "4 24Gi"]);
}

#[test]
fn what_is_not_pinned_is_shared_out_by_the_size_of_the_cells() {
    let uneven = host(&[(0, 96, "0-47"), (1, 32, "48-63"), (5, 0, "")]);
    assert_eq!(
        held(&uneven, &[vm(8, 16, "", "")]),
        ["8 16Gi", "6 12Gi", "2 4Gi", "0 0"]
    );
    // Sixty small instances do not pile up in the first cell.
    let small: Vec<DomainFacts> = (0..60).map(|_| vm(1, 1, "", "")).collect();
    assert_eq!(held(&two(), &small), ["60 60Gi", "30 30Gi", "30 30Gi"]);
}

#[test]
fn places_that_the_host_does_not_have_lose_nothing() {
    let cases: &[(DomainFacts, &[&str])] = &[
        (vm(4, 8, "100-200", "7"), &["4 8Gi", "2 4Gi", "2 4Gi"]),
        (vm(4, 8, "63-200", "1-7"), &["4 8Gi", "0 0", "4 8Gi"]),
    ];
    for (domain, expected) in cases {
        assert_eq!(held(&two(), std::slice::from_ref(domain)), *expected);
    }
    // A cell without memory, a host without any, and a host without cells.
    let bare = host(&[(0, 4, "0"), (1, 0, "1")]);
    assert_eq!(
        held(&bare, &[vm(1, 2, "1", "1")]),
        ["1 2Gi", "0 0", "1 2Gi"]
    );
    let empty = host(&[(0, 0, ""), (1, 0, "")]);
    assert_eq!(
        held(&empty, &[vm(2, 2, "", "")]),
        ["2 2Gi", "1 1Gi", "1 1Gi"]
    );
    assert_eq!(held(&host(&[]), &[vm(2, 2, "0", "0")]), ["2 2Gi"]);
}

#[test]
fn amounts_beyond_64_bits_stop_at_the_end() {
    let mut huge = vm(u32::MAX, 1, "0-3", "0");
    huge.memory_bytes = u64::MAX;
    huge.memory_on[0].amount = u64::MAX;
    let found = held(&two(), &[huge.clone(), huge]);
    assert_eq!(found[0], "8589934590 18446744073709551615");
    assert_eq!(found[1], "8589934590 18446744073709551615");
}

/// Overcommit, and the host and its cells under it.
type Case = (&'static [(&'static str, f64)], &'static [&'static str]);

#[test]
fn effective_capacity_is_capacity_times_overcommit_rounded_down() {
    let host = host(&[(0, 3, "0-2"), (1, 3, "3-4")]);
    let cases: &[Case] = &[
        (&[], &["5 6Gi", "3 3Gi", "2 3Gi"]),
        (&[("cpu", 1.5)], &["7 6Gi", "4 3Gi", "3 3Gi"]),
        (
            &[("cpu", 200.0), ("memory", 1.25)],
            &["1k 7680Mi", "600 3840Mi", "400 3840Mi"],
        ),
        // What hosts do not have, and what the schema refuses.
        (
            &[("hugepages", 9.0), ("CPU", 9.0)],
            &["5 6Gi", "3 3Gi", "2 3Gi"],
        ),
        (
            &[("cpu", 0.5), ("memory", f64::NAN)],
            &["5 6Gi", "3 3Gi", "2 3Gi"],
        ),
        (
            &[("cpu", f64::MAX)],
            &[
                "18446744073709551615 6Gi",
                "18446744073709551615 3Gi",
                "18446744073709551615 3Gi",
            ],
        ),
    ];
    for (overcommit, expected) in cases {
        let overcommit = overcommit
            .iter()
            .map(|(name, factor)| ((*name).to_owned(), *factor));
        let found = resources(&host, [], &overcommit.collect());
        let cells = found
            .cells
            .iter()
            .map(|cell| cell.effective_capacity.as_ref().unwrap());
        let all: Vec<String> = std::iter::once(&found.effective_capacity)
            .chain(cells)
            .map(short)
            .collect();
        assert_eq!(all, *expected);
    }
}

#[test]
fn a_real_host_is_written_as_the_deployed_agent_writes_it() {
    let text = include_str!("../../../tests/samples/libvirt/capabilities.xml");
    let found = resources(&capabilities::parse(text).unwrap(), [], &none());
    assert_eq!(
        serde_json::to_value(&found.capabilities).unwrap(),
        serde_json::json!({ "cpuArch": "x86_64", "memory": "6906436Ki", "cpus": "2" })
    );
    assert_eq!(
        serde_json::to_value(&found.cells).unwrap(),
        serde_json::json!([{
            "cellID": 0,
            "allocation": { "cpu": "0", "memory": "0" },
            "capacity": { "cpu": "2", "memory": "6906436Ki" },
            "effectiveCapacity": { "cpu": "2", "memory": "6906436Ki" },
        }])
    );
}

fn any_host() -> impl Strategy<Value = Host> {
    prop::collection::vec((0_u64..1 << 40, 0_u32..64), 1..9).prop_map(|cells| {
        let mut host = Host::default();
        let mut first = 0;
        for (id, (memory_bytes, cpus)) in (0..).zip(cells) {
            host.cells.push(HostCell {
                id: id * 2,
                memory_bytes,
                cpus: (first..first + cpus).collect(),
            });
            first += cpus;
        }
        host
    })
}

fn any_bound(most: u64) -> impl Strategy<Value = Vec<Bound>> {
    let one = (0..=most, prop::collection::btree_set(0_u32..80, 1..10));
    let one = one.prop_map(|(amount, on)| Bound {
        amount,
        on: on.into_iter().collect(),
    });
    prop::collection::vec(one, 0..4)
}

prop_compose! {
    fn any_vm()(vcpus in 0_u32..300, memory_bytes in 0_u64..1 << 42)(
        memory_on in any_bound(memory_bytes),
        vcpus_on in any_bound(u64::from(vcpus)),
        vcpus in Just(vcpus),
        memory_bytes in Just(memory_bytes),
    ) -> DomainFacts {
        DomainFacts { vcpus, memory_bytes, memory_on, vcpus_on, ..DomainFacts::default() }
    }
}

proptest! {
    #[test]
    fn the_cells_add_up_to_the_host_and_the_order_does_not_matter(
        host in any_host(),
        domains in prop::collection::vec(any_vm(), 0..12),
    ) {
        let found = resources(&host, &domains, &none());
        for name in [names::CPU, names::MEMORY] {
            let amount = |quantities: &Quantities| {
                let text = units::comparable(&quantities[name]).0;
                text.trim_end_matches('n').parse::<i128>().unwrap()
            };
            let cells = found.cells.iter().map(|cell| amount(cell.allocation.as_ref().unwrap()));
            prop_assert_eq!(cells.sum::<i128>(), amount(&found.allocation));
        }
        let backwards = resources(&host, domains.iter().rev(), &none());
        prop_assert_eq!(found, backwards);
    }

    #[test]
    fn shares_are_fair_and_nothing_is_lost(
        amount: u64,
        weights in prop::collection::vec(0_u64..1 << 45, 1..9),
        unit in prop::sample::select(vec![1_u64, 1024]),
    ) {
        let shares = apportion(amount, &weights, unit);
        let total: u128 = weights.iter().copied().map(u128::from).sum();
        if total == 0 {
            prop_assert!(shares.iter().all(|share| *share == 0));
            return Ok(());
        }
        prop_assert_eq!(shares.iter().copied().map(u128::from).sum::<u128>(), u128::from(amount));
        for (share, weight) in shares.iter().zip(&weights) {
            let exact = u128::from(amount) * u128::from(*weight) / total;
            // A unit more or less, and the odd bytes.
            prop_assert!(u128::from(*share).abs_diff(exact) <= 2 * u128::from(unit));
            prop_assert!(*weight > 0 || *share == 0);
        }
    }
}
