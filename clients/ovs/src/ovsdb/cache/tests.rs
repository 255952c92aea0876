use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::ovsdb::southbound::LogicalFlow;
use crate::ovsdb::vswitch::{Bridge, Interface, Port};

const FIRST: &str = "604144e0-4aa0-41fd-8c25-e82163c015b1";
const SECOND: &str = "0cd93de0-f432-4c96-8e52-034cbbf189eb";

fn uuid(text: &str) -> Uuid {
    text.parse().unwrap()
}

fn apply(tables: &mut Tables, updates: &Json) -> Result<Vec<Change>, String> {
    let mut changes = Vec::new();
    let applied = tables.apply(updates.to_string().as_bytes(), &mut changes);
    applied.map(|()| changes).map_err(|error| error.to_string())
}

fn replace(tables: &mut Tables, updates: &Json) -> Result<Vec<Change>, String> {
    let mut changes = Vec::new();
    let applied = tables.replace(updates.to_string().as_bytes(), &mut changes);
    applied.map(|()| changes).map_err(|error| error.to_string())
}

/// Changes as table, row and what happened: short enough for an assertion.
fn told(changes: &[Change]) -> Vec<(&'static str, String, ChangeKind)> {
    let change = |change: &Change| (change.table(), change.uuid.to_string(), change.kind);
    changes.iter().map(change).collect()
}

fn two_interfaces() -> (Tables, Json) {
    let mut tables = Tables::new().table::<Interface>().table::<Bridge>();
    let all = json!({ "Interface": {
        FIRST: { "initial": { "name": "tap1", "ofport": 3, "type": "internal",
            "external_ids": ["map", [["iface-id", "vm1"]]] } },
        SECOND: { "initial": { "name": "tap2", "error": "no such device" } } } });
    assert_eq!(replace(&mut tables, &all).unwrap().len(), 2);
    (tables, all)
}

#[test]
fn rows_come_change_and_go() {
    let (mut tables, _) = two_interfaces();
    let row = tables.get::<Interface>(uuid(FIRST)).unwrap();
    assert_eq!(
        (row.name.as_str(), row.kind.as_str(), row.ofport),
        ("tap1", "internal", Some(3))
    );
    assert_eq!(row.external_ids["iface-id"], "vm1");
    // What is default is not sent.
    assert_eq!((row.link_state.as_ref(), row.statistics.len()), (None, 0));

    let changes = apply(
        &mut tables,
        &json!({ "Interface": {
        FIRST: { "modify": { "link_state": "up", "ofport": ["set", []],
            "external_ids": ["map", [["iface-id", "vm1"], ["ovn-installed", "true"]]] } },
        SECOND: { "delete": null } } }),
    )
    .unwrap();
    let expected = [
        ("Interface", FIRST.to_owned(), ChangeKind::Modified),
        ("Interface", SECOND.to_owned(), ChangeKind::Deleted),
    ];
    assert_eq!(told(&changes), expected);
    assert!(changes[0].touches("ofport") && !changes[0].touches("name"));
    let row = tables.get::<Interface>(uuid(FIRST)).unwrap();
    assert_eq!((row.link_state.as_deref(), row.ofport), (Some("up"), None));
    assert_eq!(
        row.external_ids.keys().collect::<Vec<_>>(),
        ["ovn-installed"]
    );
    assert_eq!(tables.count::<Interface>(), 1);

    let changes = apply(
        &mut tables,
        &json!({ "Bridge": {
        SECOND: { "insert": { "name": "br-int", "ports": ["set", [["uuid", FIRST]]] } } } }),
    );
    assert_eq!(told(&changes.unwrap())[0].2, ChangeKind::Inserted);
    let toggle = json!({ "Bridge": { SECOND: { "modify": {
        "ports": ["set", [["uuid", FIRST], ["uuid", SECOND]]] } } } });
    apply(&mut tables, &toggle).unwrap();
    let bridge = tables.get::<Bridge>(uuid(SECOND)).unwrap();
    assert_eq!(bridge.ports, [uuid(SECOND)].into());
}

#[test]
fn the_first_version_of_the_protocol_is_read_too() {
    let (mut tables, _) = two_interfaces();
    let changes = apply(
        &mut tables,
        &json!({ "Interface": {
        FIRST: { "new": { "name": "tap1", "ofport": 4, "type": "internal",
            "external_ids": ["map", [["iface-id", "vm1"]]] }, "old": { "ofport": 3 } },
        SECOND: { "old": { "name": "tap2" } } } }),
    )
    .unwrap();
    assert_eq!(changes[0].columns().collect::<Vec<_>>(), ["ofport"]);
    assert_eq!(changes[1].kind, ChangeKind::Deleted);
}

#[test]
fn a_second_reading_tells_only_what_differs() {
    let (mut tables, all) = two_interfaces();
    assert_eq!(replace(&mut tables, &all).unwrap(), []);
    let other = json!({ "Interface": {
        FIRST: { "initial": { "name": "tap1", "ofport": 9, "type": "internal",
            "external_ids": ["map", [["iface-id", "vm1"]]] } } } });
    let changes = replace(&mut tables, &other).unwrap();
    let expected = [
        ("Interface", FIRST.to_owned(), ChangeKind::Modified),
        ("Interface", SECOND.to_owned(), ChangeKind::Deleted),
    ];
    assert_eq!(told(&changes), expected);
    assert_eq!(changes[0].columns().collect::<Vec<_>>(), ["ofport"]);
    assert_eq!(tables.count::<Interface>(), 1);
}

#[test]
fn a_reading_that_fails_changes_nothing() {
    let (mut tables, all) = two_interfaces();
    let bad = json!({ "Interface": {
        FIRST: { "initial": { "name": "other" } }, "no uuid": { "initial": {} } } });
    assert!(replace(&mut tables, &bad).is_err());
    assert_eq!(replace(&mut tables, &all).unwrap(), []);
}

#[test]
fn what_cannot_be_is_an_error_and_what_does_not_fit_is_one_column() {
    let (mut tables, _) = two_interfaces();
    let unknown = json!({ "Bridge": { FIRST: { "modify": { "name": "x" } } } });
    let error = apply(&mut tables, &unknown).unwrap_err();
    assert!(error.contains("was never there"), "{error}");
    for updates in [
        json!([]),
        json!({ "Bridge": [] }),
        json!({ "Bridge": { FIRST: 1 } }),
    ] {
        assert!(apply(&mut tables, &updates).is_err(), "{updates}");
    }
    let odd = json!({ "Interface": { FIRST: { "modify": { "ofport": "three", "name": "t" } } } });
    assert_eq!(apply(&mut tables, &odd).unwrap().len(), 1);
    let row = tables.get::<Interface>(uuid(FIRST)).unwrap();
    assert_eq!((row.name.as_str(), row.ofport), ("t", None));
    // Tables and columns that nobody asked for.
    let foreign = json!({ "QoS": { FIRST: { "insert": { "type": "x" } } },
        "Interface": { FIRST: { "modify": { "lldp": ["map", []] } } } });
    assert_eq!(apply(&mut tables, &foreign).unwrap().len(), 1);
    // A row of which nothing but the identity is wanted.
    let mut flows = Tables::new().table::<LogicalFlow>();
    let row = json!({ "Logical_Flow": { FIRST: { "initial": {} } } });
    assert_eq!(replace(&mut flows, &row).unwrap().len(), 1);
}

fn schema(columns: &Json) -> Schema {
    let tables = json!({ "Interface": { "columns": columns } });
    serde_json::from_value(json!({ "name": "Open_vSwitch", "version": "1", "tables": tables }))
        .unwrap()
}

#[test]
fn only_columns_that_are_wanted_and_there_are_asked_for() {
    let statistics = json!({ "type": { "key": "string", "value": "integer", "min": 0,
        "max": "unlimited" } });
    let all = schema(
        &json!({ "name": { "type": "string" }, "statistics": statistics,
        // Of another kind than the type has it.
        "ofport": { "type": { "key": "integer", "min": 0, "max": "unlimited" } },
        "of_no_interest": { "type": "string" } }),
    );
    let select = Select::<Interface>::all().when(Condition::equal("type", "internal"));
    let mut tables = Tables::new().select(select).table::<Port>();
    assert!(tables.learn(&all) && !tables.learn(&all));
    let expected = json!({ "Interface": [{ "columns": ["name", "statistics"],
        "where": [["type", "==", "internal"]] }] });
    assert_eq!(
        serde_json::to_value(tables.requests(&all)).unwrap(),
        expected
    );
    assert!(tables.has_column::<Interface>("name"));
    assert!(!tables.has_column::<Interface>("ofport"));
    assert!(!tables.has_column::<Interface>("mtu"));
    assert!(!tables.has_column::<Bridge>("name"));
    assert!(tables.learn(&schema(&json!({ "name": { "type": "string" } }))));
    // The same table again is another wish for it, not a second table.
    let tables = tables.select(Select::<Interface>::all().without(&["statistics", "nonsense"]));
    let expected = json!({ "Interface": [{ "columns": ["name"] }] });
    assert_eq!(
        serde_json::to_value(tables.requests(&all)).unwrap(),
        expected
    );
}

proptest! {
    /// Whatever the transactions of a server, the rows end up as on the server, both by following
    /// each and by reading all again.
    #[test]
    fn following_a_server_gives_its_rows(
        steps in proptest::collection::vec((0..4_u128, 0..4_i64, 0..3_u8), 1..30),
    ) {
        use std::collections::BTreeSet;
        let mut server = BTreeMap::<Uuid, (i64, BTreeSet<Uuid>)>::new();
        let mut tables = Tables::new().table::<Bridge>();
        for (row, number, what) in steps {
            let id = Uuid::from_u128(row);
            let port = Uuid::from_u128(u128::try_from(number).unwrap() + 100);
            let port_set = json!(["set", [["uuid", port]]]);
            let name = number.to_string();
            let update = match (what, server.get_mut(&id)) {
                (0, _) => {
                    server.remove(&id);
                    json!({ "delete": null })
                }
                (_, None) => {
                    server.insert(id, (number, [port].into()));
                    json!({ "insert": { "name": name, "ports": port_set } })
                }
                (_, Some((old, ports))) => {
                    *old = number;
                    if !ports.remove(&port) {
                        ports.insert(port);
                    }
                    json!({ "modify": { "name": name, "ports": port_set } })
                }
            };
            apply(&mut tables, &json!({ "Bridge": { id.to_string(): update } })).unwrap();
        }
        let rows = tables.rows::<Bridge>();
        let seen: BTreeMap<Uuid, (i64, BTreeSet<Uuid>)> = rows
            .map(|(id, row)| (id, (row.name.parse().unwrap(), row.ports.clone())))
            .collect();
        prop_assert_eq!(&seen, &server);
        let whole: serde_json::Map<String, Json> = server
            .iter()
            .map(|(id, (name, ports))| {
                let ports: Vec<Json> = ports.iter().map(|port| json!(["uuid", port])).collect();
                let row = json!({ "name": name.to_string(), "ports": ["set", ports] });
                (id.to_string(), json!({ "initial": row }))
            })
            .collect();
        prop_assert_eq!(replace(&mut tables, &json!({ "Bridge": whole })).unwrap(), []);
    }
}
