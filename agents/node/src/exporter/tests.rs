//! The exporter on real statistics, and on names that are out to break its text.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cobalt_libvirt::{Domain, DomainStats, TypedParams, TypedValue};
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::facts::metadata::Nova;

/// Reads what `virsh domstats` prints. It does not print types, ids and UUIDs; these are made up.
fn domstats(text: &str) -> Vec<DomainStats> {
    let mut all: Vec<DomainStats> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("Domain: '") {
            let number = u128::try_from(all.len()).unwrap() + 1;
            let name = name.strip_suffix('\'').unwrap();
            all.push(stats(name, number, TypedParams::default()));
        } else if let Some((name, value)) = line.trim().split_once('=') {
            let value = match (value, value.parse()) {
                (_, Ok(number)) => TypedValue::ULong(number),
                ("yes", _) => TypedValue::Bool(true),
                ("no", _) => TypedValue::Bool(false),
                (text, _) => TypedValue::String(text.to_owned()),
            };
            let last = all.last_mut().unwrap();
            if name == "state.state" && value == TypedValue::ULong(5) {
                last.domain.id = None;
            }
            last.params = std::mem::take(&mut last.params).with(name, value);
        }
    }
    all
}

fn stats(name: &str, uuid: u128, params: TypedParams) -> DomainStats {
    let domain = Domain {
        name: name.to_owned(),
        uuid: Uuid::from_u128(uuid),
        id: Some(1),
    };
    DomainStats { domain, params }
}

fn text(domains: Vec<DomainStats>) -> String {
    let reading = Reading {
        domains,
        ..Reading::default()
    };
    let mut out = String::new();
    write(&mut out, Some(&reading), &Domains::new());
    out
}

/// A series: its name and its labels.
type Series = (String, BTreeMap<String, String>);

/// Reads the text format as strictly as anybody could: each family once, announced by help and type,
/// with samples of its own name only, and no series twice.
fn parse(text: &str) -> Result<BTreeMap<Series, String>, String> {
    let mut series = BTreeMap::new();
    let mut families = BTreeSet::new();
    let mut lines = text
        .strip_suffix('\n')
        .ok_or("no last newline")?
        .split('\n')
        .peekable();
    while let Some(line) = lines.next() {
        let help = line
            .strip_prefix("# HELP ")
            .ok_or_else(|| format!("no help: {line}"))?;
        let (family, _) = help
            .split_once(' ')
            .ok_or_else(|| format!("no help text: {line}"))?;
        let line = lines.next().ok_or("no type")?;
        let kind = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.strip_prefix(family)?.strip_prefix(' '))
            .ok_or_else(|| format!("no type: {line}"))?;
        if !["counter", "gauge"].contains(&kind) || !families.insert(family) {
            return Err(format!("bad or second family: {line}"));
        }
        let mut samples = 0;
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let (labels, value) =
                sample(family, line).ok_or_else(|| format!("bad sample: {line}"))?;
            if series.insert((family.to_owned(), labels), value).is_some() {
                return Err(format!("twice: {line}"));
            }
            samples += 1;
        }
        if samples == 0 {
            return Err(format!("no samples: {family}"));
        }
    }
    Ok(series)
}

fn sample(family: &str, line: &str) -> Option<(BTreeMap<String, String>, String)> {
    let mut rest = line.strip_prefix(family)?;
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (name, after) = rest.split_once("=\"")?;
            let word = |c: char| c.is_ascii_lowercase() || c == '_';
            let mut value = String::new();
            let mut characters = after.chars();
            loop {
                match characters.next()? {
                    '"' => break,
                    '\\' => value.push(match characters.next()? {
                        'n' => '\n',
                        same @ ('\\' | '"') => same,
                        _ => return None,
                    }),
                    other => value.push(other),
                }
            }
            let fresh = labels.insert(name.to_owned(), value).is_none();
            if !name.chars().all(word) || !fresh {
                return None;
            }
            rest = characters.as_str();
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}')?;
    }
    let value = rest.strip_prefix(' ')?;
    let number = |c: char| c.is_ascii_digit() || c == '.';
    (value.chars().all(number) && value.parse::<f64>().is_ok()).then(|| (labels, value.to_owned()))
}

const SAMPLES: &[(&str, &str, usize)] = &[
    (
        "9.0",
        include_str!("../../tests/samples/libvirt/domstats-running.txt"),
        1,
    ),
    (
        "11.3",
        include_str!("../../tests/samples/libvirt/domstats-11.3.txt"),
        1,
    ),
    (
        "migrating",
        include_str!("../../tests/samples/libvirt/domstats-migrating.txt"),
        1,
    ),
    (
        "21 machines",
        include_str!("../../tests/samples/libvirt/domstats-21vms.txt"),
        21,
    ),
    (
        "devices",
        include_str!("../../tests/samples/libvirt/domstats-devices.txt"),
        2,
    ),
];

#[test]
fn the_text_of_real_statistics_is_sound() {
    for (name, sample, machines) in SAMPLES {
        let text = text(domstats(sample));
        let series = parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let one = (("libvirt_domains".to_owned()), BTreeMap::new());
        assert_eq!(series[&one], machines.to_string(), "{name}");
        let metas = series
            .keys()
            .filter(|(name, _)| name == "libvirt_domain_info_meta");
        assert_eq!(metas.count(), *machines, "{name}");
    }
}

#[test]
fn a_machine_without_devices_has_exactly_these_series() {
    let labels = "domain=\"vm1\",uuid=\"00000000-0000-0000-0000-000000000001\"";
    let wanted = [
        ("libvirt_up", "", "1"),
        ("libvirt_domains", "", "1"),
        ("libvirt_domain_info_meta", "{}", "1"),
        ("libvirt_domain_info_vstate", "{}", "1"),
        ("libvirt_domain_info_maximum_memory_bytes", "{}", "67108864"),
        ("libvirt_domain_info_memory_usage_bytes", "{}", "67108864"),
        ("libvirt_domain_info_virtual_cpus", "{}", "1"),
        ("libvirt_domain_info_cpu_time_seconds_total", "{}", "0.52"),
        (
            "libvirt_domain_memory_stats_actual_balloon_bytes",
            "{}",
            "67108864",
        ),
        ("libvirt_domain_memory_stats_rss_bytes", "{}", "50044928"),
        ("libvirt_domain_vcpu_state", "{0}", "1"),
        ("libvirt_domain_vcpu_time_seconds_total", "{0}", "0.12"),
        ("libvirt_domain_vcpu_wait_seconds_total", "{0}", "0"),
        (
            "libvirt_domain_vcpu_delay_seconds_total",
            "{0}",
            "0.135759909",
        ),
        (
            "kvm_domain_libvirt_vcpu_delay_nanoseconds_total",
            "{0}",
            "135759909",
        ),
    ]
    .map(|(name, form, value)| match form {
        "" => format!("{name} {value}"),
        "{}" => format!("{name}{{{labels}}} {value}"),
        _ => format!("{name}{{{labels},vcpu=\"0\"}} {value}"),
    });
    let text = text(domstats(SAMPLES[0].1));
    let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(samples, wanted);
}

#[test]
fn disks_and_interfaces_have_their_series_by_target() {
    let series = parse(&text(domstats(SAMPLES[4].1))).unwrap();
    let of = |name: &str, machine: &str, device: &str| {
        let found = series.iter().find(|((family, labels), _)| {
            family == name && labels["domain"] == machine && labels["target_device"] == device
        });
        found.map(|(_, value)| value.as_str())
    };
    for (name, device, wanted) in DEVICES {
        assert_eq!(of(name, "devices", device), *wanted, "{name} {device}");
    }
    let disk = series.keys().find(|(family, labels)| {
        family == "libvirt_domain_block_meta" && labels["target_device"] == "vdc"
    });
    let path = "/var/lib/libvirt/images/c \"c\".qcow2";
    assert_eq!(disk.unwrap().1["source_file"], path);
}

/// What the sample with devices has to show.
const DEVICES: &[(&str, &str, Option<&str>)] = &[
    (
        "libvirt_domain_block_stats_read_bytes_total",
        "vda",
        Some("4608"),
    ),
    (
        "libvirt_domain_block_stats_read_requests_total",
        "vda",
        Some("2"),
    ),
    (
        "libvirt_domain_block_stats_read_time_seconds_total",
        "vdb",
        Some("0.004288561"),
    ),
    (
        "libvirt_domain_block_stats_write_bytes_total",
        "vdc",
        Some("0"),
    ),
    (
        "libvirt_domain_block_stats_flush_time_seconds_total",
        "vdc",
        Some("0"),
    ),
    ("libvirt_domain_block_stats_allocation", "vda", Some("0")),
    (
        "libvirt_domain_block_stats_capacity_bytes",
        "vdb",
        Some("8388608"),
    ),
    (
        "libvirt_domain_block_stats_physicalsize_bytes",
        "vdc",
        Some("200704"),
    ),
    ("libvirt_domain_block_stats_capacity_bytes", "vdd", None),
    (
        "libvirt_domain_interface_stats_receive_bytes_total",
        "tap-a",
        Some("1220"),
    ),
    (
        "libvirt_domain_interface_stats_receive_packets_total",
        "tap-a",
        Some("14"),
    ),
    (
        "libvirt_domain_interface_stats_receive_errors_total",
        "tap-a",
        Some("0"),
    ),
    (
        "libvirt_domain_interface_stats_receive_drops_total",
        "tap-a",
        Some("0"),
    ),
    (
        "libvirt_domain_interface_stats_transmit_bytes_total",
        "tap-b",
        Some("1632"),
    ),
    (
        "libvirt_domain_interface_stats_transmit_packets_total",
        "tap-c",
        Some("11"),
    ),
    (
        "libvirt_domain_interface_stats_transmit_errors_total",
        "tap-c",
        Some("0"),
    ),
    (
        "libvirt_domain_interface_stats_transmit_drops_total",
        "tap-c",
        Some("0"),
    ),
];

#[test]
fn a_machine_that_is_off_has_its_disks_and_no_processor_time_of_libvirts_own() {
    let series = parse(&text(domstats(SAMPLES[4].1))).unwrap();
    let names: BTreeSet<&str> = series
        .keys()
        .filter(|(_, labels)| labels.get("domain").is_some_and(|name| name == "off"))
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(
        names,
        BTreeSet::from([
            "libvirt_domain_block_meta",
            "libvirt_domain_block_stats_allocation",
            "libvirt_domain_block_stats_capacity_bytes",
            "libvirt_domain_block_stats_physicalsize_bytes",
            "libvirt_domain_info_maximum_memory_bytes",
            "libvirt_domain_info_memory_usage_bytes",
            "libvirt_domain_info_meta",
            "libvirt_domain_info_virtual_cpus",
            "libvirt_domain_info_vstate",
            "libvirt_domain_memory_stats_actual_balloon_bytes",
        ])
    );
}

#[test]
fn what_nova_has_written_is_told_as_far_as_it_goes() {
    let nova = Nova {
        name: Some("db \"1\"".into()),
        flavor: Some("m1.large".into()),
        project_id: Some("p1".into()),
        ..Nova::default()
    };
    let facts = DomainFacts {
        nova: Some(Box::new(nova)),
        ..DomainFacts::default()
    };
    let reading = Reading {
        domains: vec![stats("instance-01", 1, TypedParams::default())],
        ..Reading::default()
    };
    let mut out = String::new();
    let known = Domains::from([(Uuid::from_u128(1), Arc::new(facts))]);
    write(&mut out, Some(&reading), &known);
    let line = "libvirt_domain_info_meta{domain=\"instance-01\",\
                uuid=\"00000000-0000-0000-0000-000000000001\",\
                instance_name=\"db \\\"1\\\"\",flavor=\"m1.large\",project_uuid=\"p1\"} 1";
    assert!(out.lines().any(|found| found == line), "{out}");
}

#[test]
fn a_libvirt_that_is_away_is_not_up_and_has_no_other_series() {
    let mut out = String::new();
    write(&mut out, None, &Domains::new());
    let series = parse(&out).unwrap();
    let up = ("libvirt_up".to_owned(), BTreeMap::new());
    assert_eq!(series, BTreeMap::from([(up, "0".to_owned())]));
}

#[test]
fn the_host_is_told_as_far_as_it_is_known() {
    let mut reading = Reading {
        lib_version: Some("9.0.0".into()),
        node_cpu: BTreeMap::from([("user".into(), 1_500_000_000), ("idle".into(), 7)]),
        node_memory: BTreeMap::from([("free".into(), 2), ("total".into(), 8)]),
        ..Reading::default()
    };
    let told = |reading: &Reading| {
        let mut out = String::new();
        write(&mut out, Some(reading), &Domains::new());
        parse(&out).unwrap();
        out.lines()
            .filter(|line| !line.starts_with('#'))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        told(&reading),
        [
            "libvirt_up 1",
            "libvirt_versions_info{libvirtd_running=\"9.0.0\"} 1",
            "libvirt_node_memory_free_bytes 2048",
            "libvirt_node_cpu_seconds_total{mode=\"idle\"} 0.000000007",
            "libvirt_node_cpu_seconds_total{mode=\"user\"} 1.5",
            "libvirt_domains 0",
        ]
    );
    reading.node = Some(NodeInfo {
        model: "x86_64".into(),
        memory_kib: 4,
        cpus: 2,
        mhz: 2445,
        nodes: 1,
        sockets: 1,
        cores: 2,
        threads: 1,
    });
    let lines = told(&reading);
    assert!(
        lines.contains(&"libvirt_node_cpus 2".to_owned()),
        "{lines:?}"
    );
    assert!(
        lines.contains(&"libvirt_node_memory_total_bytes 4096".to_owned()),
        "{lines:?}"
    );
}

#[test]
fn memory_use_is_told_only_if_the_guest_tells_and_never_divides_by_nothing() {
    let name = "libvirt_domain_memory_stats_used_percent";
    for (available, usable, wanted) in [
        (Some(1000), Some(250), Some("75")),
        (Some(3), Some(2), Some("33.333333333")),
        (Some(10), Some(20), Some("0")),
        (Some(0), Some(0), None),
        (Some(10), None, None),
        (None, Some(10), None),
    ] {
        let mut params = TypedParams::default();
        for (field, value) in [("balloon.available", available), ("balloon.usable", usable)] {
            if let Some(value) = value {
                params = params.with(field, TypedValue::ULong(value));
            }
        }
        let series = parse(&text(vec![stats("vm", 1, params)])).unwrap();
        let found = series.iter().find(|((family, _), _)| family == name);
        assert_eq!(
            found.map(|(_, value)| value.as_str()),
            wanted,
            "{available:?} {usable:?}"
        );
    }
}

#[test]
fn what_libvirt_repeats_or_does_not_name_makes_no_series_twice() {
    let number = TypedValue::ULong(1);
    let name = |text: &str| TypedValue::String(text.to_owned());
    let params = TypedParams::default()
        .with("block.0.name", name("vda"))
        .with("block.0.rd.bytes", number.clone())
        .with("block.1.name", name("vda"))
        .with("block.1.rd.bytes", number.clone())
        .with("block.2.rd.bytes", number.clone())
        .with("net.0.rx.bytes", number);
    let twice = stats("vm", 1, params.clone());
    // The same name on another machine is another machine.
    let series = parse(&text(vec![twice.clone(), twice, stats("vm", 2, params)])).unwrap();
    let count = |name: &str| series.keys().filter(|(family, _)| family == name).count();
    assert_eq!(count("libvirt_domain_info_meta"), 2);
    assert_eq!(count("libvirt_domain_block_stats_read_bytes_total"), 2);
    assert_eq!(
        count("libvirt_domain_interface_stats_receive_bytes_total"),
        0
    );
}

#[test]
fn the_order_in_which_libvirt_answers_does_not_show() {
    let mut all = domstats(SAMPLES[3].1);
    let before = text(all.clone());
    all.reverse();
    assert_eq!(text(all), before);
}

proptest! {
    #[test]
    fn any_name_comes_back_as_it_was(name in "\\PC*|[\"\\\\\n{}=, a]{0,12}", disk in ".*", path in any::<String>()) {
        let params = TypedParams::default()
            .with("block.0.name", TypedValue::String(disk.clone()))
            .with("block.0.path", TypedValue::String(path.clone()))
            .with("block.0.capacity", TypedValue::ULong(1));
        let series = parse(&text(vec![stats(&name, 1, params)])).map_err(TestCaseError::fail)?;
        let meta = series.keys().find(|(family, _)| family == "libvirt_domain_block_meta");
        let labels = &meta.unwrap().1;
        prop_assert_eq!(&labels["domain"], &name);
        prop_assert_eq!(&labels["target_device"], &disk);
        prop_assert_eq!(&labels["source_file"], &path);
    }

    #[test]
    fn any_statistics_make_a_sound_text(
        params in prop::collection::vec(("(block|net|vcpu|cpu|balloon|state|x)\\.([0-3]\\.)?(name|path|time|state|rd\\.bytes|rx\\.bytes|current|delay)", any::<u64>(), any::<i64>(), 0..4_u8), 0..40),
    ) {
        let params = params.into_iter().fold(TypedParams::default(), |all, (name, number, signed, kind)| {
            all.with(&name, match kind {
                0 => TypedValue::ULong(number),
                1 => TypedValue::Long(signed),
                2 => TypedValue::String(number.to_string()),
                _ => TypedValue::Double(0.5),
            })
        });
        parse(&text(vec![stats("vm", 1, params)])).map_err(TestCaseError::fail)?;
    }
}
