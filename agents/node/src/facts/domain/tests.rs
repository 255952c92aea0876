//! Instances as libvirt writes them, and as it should not.

use proptest::prelude::*;

use super::*;

const UUID: &str = "7d0f4a52-0c7e-4d9b-8a4b-6a1f2c3d4e5f";
const GIB: u64 = 1 << 30;

fn xml(inner: &str) -> String {
    format!("<domain type='kvm' id='3'><name>vm</name><uuid>{UUID}</uuid>{inner}</domain>")
}

fn facts(inner: &str) -> DomainFacts {
    parse(&xml(inner)).unwrap()
}

fn bound(amount: u64, on: &str) -> Bound {
    Bound {
        amount,
        on: on.parse().unwrap(),
    }
}

const MEMORY: &str = "<memory unit='GiB'>8</memory>";
const TWO_CELLS: &str = "<cpu><numa><cell id='0' cpus='0-1' memory='3' unit='GiB'/>\
    <cell id='1' cpus='2-3' memory='5242880'/></numa></cpu>";

#[test]
fn w79_a_guest_cell_that_is_pinned_elsewhere_is_where_it_is_pinned() {
    // Guest cell 0 is on host node 1. Its own number says nothing about the host.
    let found = facts(
        "<memory unit='KiB'>25149440</memory><currentMemory unit='KiB'>25149440</currentMemory>\
         <vcpu placement='static'>6</vcpu><cputune>\
         <vcpupin vcpu='0' cpuset='32-63,160-191'/><vcpupin vcpu='1' cpuset='32-63,160-191'/>\
         <vcpupin vcpu='2' cpuset='32-63,160-191'/><vcpupin vcpu='3' cpuset='32-63,160-191'/>\
         <vcpupin vcpu='4' cpuset='32-63,160-191'/><vcpupin vcpu='5' cpuset='32-63,160-191'/>\
         <emulatorpin cpuset='32-63,160-191'/></cputune>\
         <numatune><memory mode='strict' nodeset='1'/>\
         <memnode cellid='0' mode='strict' nodeset='1'/></numatune>\
         <cpu><numa><cell id='0' cpus='0-5' memory='25149440' unit='KiB'/></numa></cpu>",
    );
    assert_eq!(found.memory_on, [bound(25_149_440 << 10, "1")]);
    assert_eq!(found.vcpus_on, [bound(6, "32-63,160-191")]);
    assert_eq!((found.vcpus, found.memory_bytes), (6, 25_149_440 << 10));
    assert_eq!(found.warnings, Vec::<String>::new());
}

#[test]
fn w51_an_instance_without_tuning_memory_or_cells_is_read() {
    let plain = facts(&format!("{MEMORY}<vcpu>4</vcpu>"));
    assert_eq!((plain.memory_bytes, plain.vcpus), (8 * GIB, 4));
    assert!(plain.memory_on.is_empty() && plain.vcpus_on.is_empty());
    assert!(plain.warnings.is_empty());
    let cases = [
        ("", 0, 1),
        ("<cputune/><numatune/><cpu/><vcpu/>", 0, 1),
        ("<cpu><numa/></cpu><vcpu>2</vcpu>", 0, 2),
        ("<currentMemory unit='GiB'>2</currentMemory>", 2 * GIB, 1),
        (TWO_CELLS, 8 * GIB, 1),
    ];
    for (inner, memory, vcpus) in cases {
        let found = facts(inner);
        assert_eq!(
            (found.memory_bytes, found.vcpus),
            (memory, vcpus),
            "{inner}"
        );
        let said = found
            .warnings
            .iter()
            .any(|text| text.contains("how much memory"));
        assert!(said, "{inner}: {:?}", found.warnings);
    }
}

#[test]
fn memory_is_where_its_nodeset_is() {
    let cases: &[(&str, &[Bound])] = &[
        // One nodeset for all, in every mode.
        (
            "<memory mode='strict' nodeset='0-1'/>",
            &[bound(8 * GIB, "0-1")],
        ),
        (
            "<memory mode='interleave' nodeset='0-3,^2'/>",
            &[bound(8 * GIB, "0-1,3")],
        ),
        (
            "<memory mode='preferred' nodeset='1'/>",
            &[bound(8 * GIB, "1")],
        ),
        (
            "<memory mode='restrictive' nodeset='7'/>",
            &[bound(8 * GIB, "7")],
        ),
        // Cells crossed.
        (
            "<memnode cellid='0' mode='strict' nodeset='1'/>\
             <memnode cellid='1' mode='strict' nodeset='0'/>",
            &[bound(5 * GIB, "0"), bound(3 * GIB, "1")],
        ),
        // One cell has its own, the other has what all have.
        (
            "<memory mode='strict' nodeset='2'/><memnode cellid='1' nodeset='3'/>",
            &[bound(3 * GIB, "2"), bound(5 * GIB, "3")],
        ),
        // Both on one node are one amount.
        (
            "<memnode cellid='0' nodeset='1'/><memnode cellid='1' nodeset='1'/>",
            &[bound(8 * GIB, "1")],
        ),
        // The other cell may be anywhere.
        ("<memnode cellid='0' nodeset='1'/>", &[bound(3 * GIB, "1")]),
        // numad decides, and does not say.
        ("<memory mode='strict' placement='auto'/>", &[]),
    ];
    for (tune, expected) in cases {
        let found = facts(&format!("{MEMORY}{TWO_CELLS}<numatune>{tune}</numatune>"));
        assert_eq!(found.memory_on, *expected, "{tune}");
        assert!(found.warnings.is_empty(), "{:?}", found.warnings);
    }
}

#[test]
fn memory_devices_belong_to_the_cell_they_are_plugged_into() {
    let found = facts(
        "<memory unit='GiB'>10</memory><numatune><memnode cellid='0' nodeset='1'/>\
         <memnode cellid='1' nodeset='0'/></numatune><cpu><numa>\
         <cell id='0' cpus='0' memory='4' unit='GiB'/><cell id='1' cpus='1' memory='4' unit='GiB'/>\
         </numa></cpu><devices><memory model='dimm'><target><size unit='GiB'>2</size>\
         <node>1</node></target></memory></devices>",
    );
    assert_eq!(found.memory_on, [bound(6 * GIB, "0"), bound(4 * GIB, "1")]);
    assert!(found.warnings.is_empty());
}

#[test]
fn processors_are_those_that_are_plugged_in_and_not_the_pins() {
    let pins = "<cputune><vcpupin vcpu='0' cpuset='0-3,^1'/><vcpupin vcpu='1' cpuset='4'/>\
        <vcpupin vcpu='3' cpuset='4'/></cputune>";
    let cases: &[(&str, u32, &[Bound])] = &[
        // Two of four have no pin that counts.
        ("<vcpu>4</vcpu>", 4, &[bound(1, "0,2-3"), bound(2, "4")]),
        // What has no pin has what all have.
        (
            "<vcpu cpuset='8-9'>4</vcpu>",
            4,
            &[bound(1, "0,2-3"), bound(2, "4"), bound(1, "8-9")],
        ),
        // Only two are plugged in: the pin of the fourth waits for it.
        (
            "<vcpu current='2'>4</vcpu>",
            2,
            &[bound(1, "0,2-3"), bound(1, "4")],
        ),
        (
            "<vcpu current='2'>4</vcpu><vcpus><vcpu id='0' enabled='yes'/>\
             <vcpu id='1' enabled='no'/><vcpu id='2' enabled='no'/><vcpu id='3' enabled='yes'/></vcpus>",
            2,
            &[bound(1, "0,2-3"), bound(1, "4")],
        ),
        ("<vcpu current='many'>1</vcpu>", 1, &[bound(1, "0,2-3")]),
    ];
    for (vcpu, count, expected) in cases {
        let found = facts(&format!("{MEMORY}{vcpu}{pins}"));
        assert_eq!(found.vcpus, *count, "{vcpu}");
        assert_eq!(found.vcpus_on, *expected, "{vcpu}");
    }
}

#[test]
fn odd_elements_are_warnings_and_the_rest_counts() {
    let cases: &[(&str, &str)] = &[
        (
            "<memory unit='pages'>1</memory>",
            "memory: \"pages\" is not a unit",
        ),
        (
            "<memory>-1</memory>",
            "memory: \"-1\" is not a whole number",
        ),
        (
            "<memory unit='EiB'>99</memory>",
            "memory: \"99 EiB\" is too large",
        ),
        (
            "<vcpu>x</vcpu>",
            "vcpu: \"x\" is not a whole number; one counts",
        ),
        (
            "<vcpu>4294967296</vcpu>",
            "vcpu: \"4294967296\" is too large; one counts",
        ),
        (
            "<vcpu cpuset='a'>1</vcpu>",
            "vcpu: cpuset: \"a\" is not a set of numbers",
        ),
        (
            "<cputune><vcpupin vcpu='0' cpuset='3-1'/></cputune>",
            "vcpupin: cpuset: \"3-1\" is not a set of numbers",
        ),
        (
            "<cputune><vcpupin cpuset='1'/></cputune>",
            "a vcpupin does not say which vcpu it is for",
        ),
        (
            "<cputune><vcpupin vcpu='0' cpuset='1'/><vcpupin vcpu='0' cpuset='2'/></cputune>",
            "vcpu 0 is pinned twice; the last pin counts",
        ),
        (
            "<numatune><memory nodeset=''/></numatune>",
            "memory: nodeset: \"\" is not a set of numbers",
        ),
        (
            "<numatune><memnode nodeset='0'/></numatune>",
            "a memnode does not say which cell it is for",
        ),
        (
            "<cpu><numa><cell id='-1' memory='1'/></numa></cpu>",
            "cpu/numa/cell: \"-1\" is not a whole number",
        ),
        (
            "<memory>1</memory><numatune><memory nodeset='0'/></numatune>\
             <cpu><numa><cell id='0' memory='2'/></numa></cpu>",
            "its cells have more memory than it has; the total counts",
        ),
    ];
    for (inner, warning) in cases {
        let found = facts(inner);
        let said = found.warnings.iter().any(|text| text == warning);
        assert!(said, "{inner}: {:?}", found.warnings);
    }
    let twice = facts("<memory>1</memory><memory>2</memory><memory>3</memory>");
    assert_eq!(twice.memory_bytes, 1024);
}

#[test]
fn a_thousand_odd_elements_are_a_handful_of_warnings() {
    let pins: String = (0..1000)
        .map(|vcpu| format!("<vcpupin vcpu='{vcpu}' cpuset='x{vcpu}'/>"))
        .collect();
    let found = facts(&format!("<cputune>{pins}</cputune>"));
    assert_eq!(found.warnings.len(), Warnings::MAX);
}

#[test]
fn memory_nodes_without_guest_cells_bind_all_of_the_memory() {
    let found = facts(&format!(
        "{MEMORY}<numatune><memnode cellid='0' nodeset='1'/><memnode cellid='1' nodeset='3'/></numatune>"
    ));
    assert_eq!(found.memory_on, [bound(8 * GIB, "1,3")]);
}

#[test]
fn an_instance_is_active_while_it_has_an_id() {
    let with = |attributes: &str| {
        let text = format!("<domain {attributes}><name>a</name><uuid>{UUID}</uuid></domain>");
        parse(&text).unwrap().active
    };
    assert!(with("type='qemu' id='12'"));
    assert!(with("id='0'"));
    assert!(!with("type='qemu'"));
    assert!(!with("id='-1'"));
}

#[test]
fn the_metadata_is_found() {
    let found = facts(
        "<metadata><cobalt:instance xmlns:cobalt='https://cobaltcore.dev/xmlns/instance/1.0'>\
         <cobalt:ha policy='evict'/></cobalt:instance></metadata>",
    );
    assert_eq!(found.ha_policy, Some(HaPolicy::Evict));
    let found = facts("<metadata/>");
    assert_eq!(
        (found.ha_policy, found.priority, found.nova),
        (None, None, None)
    );
}

#[test]
fn a_thousand_devices_are_read() {
    let disk = "<disk type='file' device='disk'>\n  <driver name='qemu' type='raw' cache='none'/>\n  \
        <source file='/var/lib/nova/instances/a &amp; b/disk' index='1'/>\n  <backingStore/>\n  \
        <target dev='vda' bus='virtio'/>\n  <alias name='virtio-disk0'/>\n  \
        <address type='pci' domain='0x0000' bus='0x04' slot='0x00' function='0x0'/>\n</disk>\n";
    let found = facts(&format!("{MEMORY}<devices>{}</devices>", disk.repeat(1000)));
    assert_eq!(found.memory_bytes, 8 * GIB);
    assert!(found.warnings.is_empty());
}

#[test]
fn what_is_no_instance_is_an_error_that_says_so() {
    let cases = [
        ("", "failed to parse the XML"),
        ("\0\0\0\u{4}", "failed to parse the XML"),
        ("<domain><name>a</name>", "failed to parse the XML"),
        ("<domain><name>a</nome></domain>", "failed to parse the XML"),
        (
            "<network/>",
            "the XML is about \"network\" and not about \"domain\"",
        ),
        ("<domain><name>a</name></domain>", "the XML has no \"uuid\""),
        (
            "<domain><name>a</name><uuid>12345-abc</uuid></domain>",
            "\"12345-abc\" is not a UUID",
        ),
        (
            &format!("<domain><name> </name><uuid>{UUID}</uuid></domain>"),
            "the XML has no \"name\"",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(parse(text).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn an_unreadable_instance_holds_nothing_that_is_known() {
    let uuid = Uuid::parse_str(UUID).unwrap();
    let found = unreadable("vm", uuid, true);
    assert_eq!(
        (found.name.as_str(), found.uuid, found.active),
        ("vm", uuid, true)
    );
    assert_eq!((found.memory_bytes, found.vcpus), (0, 0));
}

/// Numbers, sets and units as they are, and as they should not be.
fn odd() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9]{1,3}",
        "[0-9]{18,22}",
        "[0-9]{1,2}-[0-9]{1,3}(,\\^[0-9]{1,2})?",
        "(KiB|MB|g|EiB|pages|)",
        "[a-zA-Zä§ ,^.+-]{0,8}",
    ]
}

proptest! {
    #[test]
    fn no_value_breaks_it_and_the_parts_never_exceed_the_whole(
        v in prop::collection::vec(odd(), 16),
        order in Just((0..5).collect::<Vec<usize>>()).prop_shuffle(),
    ) {
        let parts = [
            format!("<memory unit='{}'>{}</memory>", v[0], v[1]),
            format!("<vcpu current='{}' cpuset='{}'>{}</vcpu>", v[2], v[3], v[4]),
            format!(
                "<cputune><vcpupin vcpu='{}' cpuset='{}'/><vcpupin vcpu='1' cpuset='{}'/></cputune>",
                v[5], v[6], v[7]
            ),
            format!(
                "<numatune><memory nodeset='{}'/><memnode cellid='{}' nodeset='{}'/></numatune>",
                v[8], v[9], v[10]
            ),
            format!(
                "<cpu><numa><cell id='{}' memory='{}' unit='{}'/><cell id='{}' memory='{}'/></numa></cpu>",
                v[11], v[12], v[13], v[14], v[15]
            ),
        ];
        let inner: String = order.iter().map(|index| parts[*index].as_str()).collect();
        let found = facts(&inner);
        let sum = |bound: &[Bound]| bound.iter().map(|bound| u128::from(bound.amount)).sum::<u128>();
        prop_assert!(sum(&found.memory_on) <= u128::from(found.memory_bytes));
        prop_assert!(sum(&found.vcpus_on) <= u128::from(found.vcpus));
        prop_assert!(found.warnings.len() <= Warnings::MAX);
    }

    #[test]
    fn no_text_breaks_it(text in "\\PC{0,200}|(<[a-z/!?]{0,6}[ a-z='>]{0,6}){0,20}") {
        drop(parse(&text));
    }
}
