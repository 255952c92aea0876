//! The decoders over what real servers have said, whole and damaged. Run the tests with
//! `RECORD_CORPUS=1` to make the files of `tests/corpus` anew.

use std::path::PathBuf;

use bytes::Bytes;
use cobalt_ovs::fuzzing;
use cobalt_ovs::openflow::{self, FlowFilter, Version};
use cobalt_ovs::ovsdb::southbound::{self, Chassis, PortBinding};
use cobalt_ovs::ovsdb::vswitch::{self, Bridge, Interface, OpenVswitch, Port};
use cobalt_ovs::ovsdb::{Monitor, Row, Tables, Value};
use cobalt_ovs::{Options, Remote};
use serde_json::value::RawValue;

use crate::switch::interface;
use crate::{Host, TestLab, Watcher, patient, proxy};

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// All recorded streams of a kind: release, name, bytes.
fn recorded(kind: &str) -> Vec<(String, String, Vec<u8>)> {
    let mut found = Vec::new();
    for release in std::fs::read_dir(corpus()).unwrap() {
        let release = release.unwrap();
        for file in std::fs::read_dir(release.path()).unwrap() {
            let file = file.unwrap();
            let text = |name: std::ffi::OsString| name.into_string().unwrap();
            let name = text(file.file_name());
            if name.starts_with(kind) {
                let bytes = std::fs::read(file.path()).unwrap();
                found.push((text(release.file_name()), name, bytes));
            }
        }
    }
    found.sort();
    assert!(found.len() >= 2, "the corpus is incomplete");
    found
}

/// Makes the files anew, if that is wanted.
pub async fn record(lab: &TestLab, host: &Host, release: &str) {
    if std::env::var_os("RECORD_CORPUS").is_none() {
        return;
    }
    let dir = corpus().join(release);
    std::fs::create_dir_all(&dir).unwrap();
    let (remote, said) = proxy::recorded(host.database()).await;
    let tables = Tables::new()
        .table::<OpenVswitch>()
        .table::<Bridge>()
        .table::<Port>()
        .table::<Interface>();
    let monitor = Monitor::new(vswitch::DATABASE, vec![remote], tables, Options::default());
    let mut watcher = Watcher::new(monitor);
    watcher.synced().await;
    let add = "ovs-vsctl add-port br-int recorded -- set Interface recorded type=internal \
               external_ids:iface-id=vm9";
    lab.sh(&host.name, add).await;
    watcher
        .until("the rows", |monitor| {
            interface(monitor, "recorded").is_some_and(|row| row.ofport > Some(0))
        })
        .await;
    lab.sh(&host.name, "ovs-vsctl del-port recorded").await;
    watcher
        .until("the rows", |monitor| {
            interface(monitor, "recorded").is_none()
        })
        .await;
    std::fs::write(dir.join("ovsdb-vswitch"), &*said.lock().unwrap()).unwrap();

    let (_, member) = lab.members(6642).await.remove(0);
    let (remote, said) = proxy::recorded(member).await;
    let tables = Tables::new().table::<Chassis>().table::<PortBinding>();
    let monitor = Monitor::new(
        southbound::DATABASE,
        vec![remote],
        tables,
        Options::default(),
    );
    Watcher::new(monitor).synced().await;
    std::fs::write(dir.join("ovsdb-southbound"), &*said.lock().unwrap()).unwrap();

    for version in Version::ALL {
        let management = Remote::Unix(host.run().join("br-int.mgmt"));
        let (remote, said) = proxy::recorded(management).await;
        let opened = openflow::Connection::open_with(&remote, &[version], &patient()).await;
        let mut bridge = opened.unwrap();
        bridge.flows(FlowFilter::ALL, |_| ()).await.unwrap();
        bridge.aggregate(FlowFilter::ALL).await.unwrap();
        bridge.tables().await.unwrap();
        bridge.port_stats().await.unwrap();
        bridge.ports().await.unwrap();
        let name = format!("openflow-{version}");
        std::fs::write(dir.join(name), &*said.lock().unwrap()).unwrap();
    }
}

/// `[found, last transaction, updates]`, or only updates.
fn updates(json: &Bytes) -> Option<(bool, Bytes)> {
    if let Ok((_, _, updates)) = serde_json::from_slice::<(bool, uuid::Uuid, &RawValue)>(json) {
        return Some((true, json.slice_ref(updates.get().as_bytes())));
    }
    let (_, _, updates) = serde_json::from_slice::<(&str, uuid::Uuid, &RawValue)>(json).ok()?;
    Some((false, json.slice_ref(updates.get().as_bytes())))
}

#[test]
fn every_recorded_row_is_read() {
    for (release, name, bytes) in recorded("ovsdb") {
        let messages = fuzzing::split(&bytes);
        assert_eq!(messages.iter().map(Bytes::len).sum::<usize>(), bytes.len());
        let mut tables = fuzzing::tables();
        let (mut whole, mut later) = (0, 0);
        for message in &messages {
            let (kind, json) = fuzzing::rpc(message).unwrap();
            assert_ne!(kind, "other", "{release} {name}");
            if let Some((all, updates)) = updates(&json) {
                let changes = fuzzing::apply(&mut tables, &updates, all).unwrap();
                whole += usize::from(all);
                later += usize::from(!all) * changes.len();
            }
        }
        assert_eq!(whole, 1, "{release} {name}");
        if name == "ovsdb-vswitch" {
            assert!(later > 2, "{release}: {later}");
            let rows = tables.rows::<Interface>().map(|(_, row)| row);
            let eno1 = rows.into_iter().find(|row| row.name == "eno1").unwrap();
            assert!(eno1.statistics["rx_packets"] > 0 && eno1.ofport > Some(0));
            assert_eq!(eno1.lacp_current, Some(true));
            assert_eq!(tables.count::<Bridge>(), 3);
            let names = tables.rows::<Interface>().map(|(_, row)| row.name.as_str());
            assert!(!names.into_iter().any(|name| name == "recorded"));
        } else {
            assert_eq!(tables.count::<Chassis>(), 2);
        }
    }
}

/// What the switch's own tool writes as JSON are values of OVSDB, too.
#[test]
fn every_interface_of_the_tool_is_read() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/samples/interfaces.json");
    let table: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let headings: Vec<String> = serde_json::from_value(table["headings"].clone()).unwrap();
    let data: Vec<Vec<Value>> = serde_json::from_value(table["data"].clone()).unwrap();
    let rows = data.into_iter().map(|values| {
        let columns = headings.iter().zip(values);
        columns.fold(Row::new(), |row, (name, value)| row.with(name, value))
    });
    let interfaces: Vec<Interface> = rows.map(|row| row.read()).collect();
    assert_eq!(interfaces.len(), 16);
    let [patch, sw1, tap] = ["patch-br-ex-int", "sw1", "tapvm1"]
        .map(|name| interfaces.iter().find(|row| row.name == name).unwrap());
    assert_eq!((patch.kind.as_str(), patch.mtu), ("patch", None));
    assert_eq!(patch.options["peer"], "patch-int-br-ex");
    assert_eq!(
        (sw1.lacp_current, sw1.link_speed),
        (Some(true), Some(10_000_000_000))
    );
    assert_eq!(
        (sw1.statistics["rx_dropped"], sw1.ofport, sw1.ifindex),
        (1, Some(1), Some(6))
    );
    assert_eq!(tap.external_ids["vm-id"], "vm-1");
    assert_eq!(
        (tap.admin_state.as_deref(), tap.error.as_ref()),
        (Some("down"), None)
    );
}

/// Kinds of parts that are recorded, and how many things of each there are at least.
const PARTS: [(u16, usize); 5] = [(1, 10), (2, 1), (3, 250), (4, 2), (13, 2)];

fn version(number: u8) -> Version {
    *Version::ALL
        .iter()
        .find(|version| version.number() == number)
        .unwrap()
}

#[test]
fn every_recorded_flow_is_read() {
    for (release, name, bytes) in recorded("openflow") {
        let mut found = [0; 5];
        for (number, kind, body) in fuzzing::split_openflow(&bytes) {
            if kind != 19 {
                continue;
            }
            assert_eq!(format!("openflow-{}", version(number)), name, "{release}");
            let part = u16::from_be_bytes([body[0], body[1]]);
            let count = fuzzing::openflow(version(number), part, &body[8..]).unwrap();
            let place = PARTS.iter().position(|(kind, _)| *kind == part).unwrap();
            found[place] += count;
            if part == 1 {
                let read = fuzzing::flows(version(number), &body[8..], |flow| {
                    assert!(flow.output_ports().is_ok(), "{flow:?}");
                    assert!(flow.instructions().all(|instruction| instruction.is_ok()));
                    assert!(flow.matches().fields().all(|field| field.is_ok()));
                });
                read.unwrap();
            }
        }
        for ((_, least), found) in PARTS.iter().zip(found) {
            assert!(found >= *least, "{release} {name}: {found} of {least}");
        }
    }
}

/// Whatever is done to a message, the worst that happens is an error.
#[test]
fn no_damage_to_a_message_panics() {
    for (_, _, bytes) in recorded("openflow") {
        for (number, kind, body) in fuzzing::split_openflow(&bytes) {
            if kind != 19 {
                continue;
            }
            let part = u16::from_be_bytes([body[0], body[1]]);
            // Enough of each: what follows is the same again.
            let body = &body[8..body.len().min(1500)];
            for length in 0..body.len() {
                drop(fuzzing::openflow(version(number), part, &body[..length]));
            }
            for position in 0..body.len() {
                for damage in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut damaged = body.to_vec();
                    damaged[position] = damage;
                    drop(fuzzing::openflow(version(number), part, &damaged));
                }
            }
        }
    }
    for (_, _, bytes) in recorded("ovsdb") {
        for message in fuzzing::split(&bytes) {
            let Some((_, json)) = fuzzing::rpc(&message) else {
                continue;
            };
            let Some((all, updates)) = updates(&json) else {
                continue;
            };
            // Every so many bytes: each try reads all of it.
            for position in (0..updates.len()).step_by(updates.len() / 60 + 1) {
                fuzzing::apply(&mut fuzzing::tables(), &updates[..position], all);
                for damage in [0, b'"', b'[', b'{', b'}', b',', b'9', 0xff] {
                    let mut damaged = updates.to_vec();
                    damaged[position] = damage;
                    fuzzing::apply(&mut fuzzing::tables(), &damaged, all);
                    let mut damaged = message.to_vec();
                    damaged[position] = damage;
                    fuzzing::split(&damaged);
                    drop(fuzzing::rpc(&Bytes::from(damaged)));
                }
            }
        }
    }
}
