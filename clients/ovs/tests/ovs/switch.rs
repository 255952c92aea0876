//! Switches of both releases: their rows as events, transactions, unixctl, every door.

use std::collections::BTreeMap;

use cobalt_lab::LabConfig;
use cobalt_lab::plan::Flavour;
use cobalt_ovs::ovsdb::vswitch::{self, Bridge, Interface, Manager, OpenVswitch, Port};
use cobalt_ovs::ovsdb::{
    ChangeKind, Condition, Connection, Monitor, Operation, Row, Select, Table, Tables, Until, Value,
};
use cobalt_ovs::{ConnectError, Error, Identity, Options, Remote, Tls, Unixctl};

use crate::{Host, TestLab, Watcher, corpus, faults, flows, patient, proxy};

#[tokio::test(flavor = "multi_thread")]
async fn switches_of_both_releases_tell_what_they_do() {
    let flavours = [Flavour::Bookworm, Flavour::Trixie];
    let mut config = LabConfig::with_hypervisors("ovs", &flavours);
    config.ovn = true;
    let lab = TestLab::up(config).await;
    let old = Host::find(&lab, "hv1").await;
    let new = Host::find(&lab, "hv2").await;
    for (host, release, number) in [(&old, "3.1", 1), (&new, "3.5", 2)] {
        let (port, address) = (
            format!("vm{number}"),
            format!("02:00:00:00:00:0{number} 192.0.2.{number}"),
        );
        flows::plug(&lab, host, &port, &address).await;
        flows::cookies_are_rows_of_the_southbound_database(&lab, host, &port).await;
        rows_follow_the_switch(&lab, host).await;
        transactions_are_carried_out_or_refused(host).await;
        commands_are_answered_or_refused(&lab, host, release).await;
        servers_of_every_age_are_followed(&lab, host).await;
        certificates_open_the_door(&lab, host).await;
        flows::flows_are_told_by_every_version(&lab, host).await;
        corpus::record(&lab, host, release).await;
    }
    for host in [&old, &new] {
        faults::a_stopped_switch_is_noticed(&lab, host).await;
        faults::a_database_that_is_killed_is_followed_again(&lab, host).await;
    }
    lab.down().await.unwrap();
}

pub fn tables() -> Tables {
    Tables::new()
        .table::<OpenVswitch>()
        .table::<Bridge>()
        .table::<Port>()
        .table::<Manager>()
        .select(Select::<Interface>::all().without(&["statistics"]))
}

pub fn monitor(remote: Remote, options: Options) -> Watcher {
    let remotes = vec![remote];
    Watcher::new(Monitor::new(vswitch::DATABASE, remotes, tables(), options))
}

pub fn interface<'a>(monitor: &'a Monitor, name: &str) -> Option<&'a Interface> {
    let mut rows = monitor.rows::<Interface>().map(|(_, row)| row);
    rows.find(|row| row.name == name)
}

/// What the switch's own tool says of interfaces: names and OpenFlow numbers.
async fn as_the_tool_says(lab: &TestLab, host: &Host) -> BTreeMap<String, Option<i64>> {
    let command = "ovs-vsctl --format=json --columns=name,ofport list Interface";
    let told = lab.sh(&host.name, command).await;
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let rows: Vec<(String, Value)> = serde_json::from_value(told["data"].clone()).unwrap();
    rows.into_iter()
        .map(|(name, ofport)| {
            let row = Row::new().with("ofport", ofport.atom().unwrap().clone());
            (name, row.get("ofport"))
        })
        .collect()
}

async fn rows_follow_the_switch(lab: &TestLab, host: &Host) {
    let mut watcher = monitor(host.database(), Options::default());
    let (resumed, changes) = watcher.synced().await;
    assert!(!resumed);
    assert!(
        changes
            .iter()
            .all(|change| change.kind == ChangeKind::Inserted)
    );
    let told = as_the_tool_says(lab, host).await;
    let same = |monitor: &Monitor| {
        let rows = monitor.rows::<Interface>();
        let rows = rows.map(|(_, row)| (row.name.clone(), row.ofport));
        rows.collect::<BTreeMap<_, _>>() == told
    };
    watcher.until("what the tool says", same).await;
    let negotiated = |monitor: &Monitor| {
        interface(monitor, "eno1").is_some_and(|row| {
            row.lacp_current == Some(true) && row.link_state.as_deref() == Some("up")
        })
    };
    watcher
        .until("a bond that has negotiated", negotiated)
        .await;
    let monitor = &watcher.monitor;
    let bonds = monitor.rows::<Port>().map(|(_, port)| port);
    let bonds: Vec<&Port> = bonds.filter(|port| port.lacp.is_some()).collect();
    assert_eq!((bonds.len(), bonds[0].interfaces.len()), (1, 2));
    let eno1 = interface(monitor, "eno1").unwrap();
    let (_, tunnel) = monitor
        .rows::<Interface>()
        .find(|(_, row)| row.kind == "geneve")
        .unwrap();
    assert!(tunnel.options.contains_key("remote_ip"), "{tunnel:?}");
    assert!(
        watcher
            .monitor
            .tables()
            .has_column::<Interface>("lacp_current")
    );
    // It was not asked for.
    assert!(
        !watcher
            .monitor
            .tables()
            .has_column::<Interface>("statistics")
    );
    assert!(eno1.statistics.is_empty());

    // A port comes, is told about, has no device, and goes.
    let add = "ovs-vsctl --no-wait add-port br-int ghost -- set Interface ghost external_ids:a=b";
    lab.sh(&host.name, add).await;
    let come = |monitor: &Monitor, name: &str| interface(monitor, name).is_some();
    watcher
        .until("the rows", |monitor| come(monitor, "ghost"))
        .await;
    watcher
        .until("the rows", |monitor| {
            interface(monitor, "ghost").is_some_and(|row| row.ofport == Some(-1))
        })
        .await;
    let ghost = interface(&watcher.monitor, "ghost").unwrap();
    assert_eq!(ghost.external_ids["a"], "b");
    assert!(
        ghost
            .error
            .as_ref()
            .is_some_and(|error| error.contains("ghost")),
        "{ghost:?}"
    );
    let set = "ovs-vsctl --no-wait set Interface ghost external_ids:a=c external_ids:d=e";
    lab.sh(&host.name, set).await;
    let change = watcher
        .change("external_ids", |change| {
            change.table() == "Interface" && change.touches("external_ids")
        })
        .await;
    assert_eq!(change.kind, ChangeKind::Modified);
    let ids: Vec<_> = interface(&watcher.monitor, "ghost")
        .unwrap()
        .external_ids
        .iter()
        .collect();
    assert_eq!(ids.len(), 2, "{ids:?}");
    lab.sh(&host.name, "ovs-vsctl --no-wait del-port ghost")
        .await;
    watcher
        .until("the rows", |monitor| !come(monitor, "ghost"))
        .await;
    // Nothing of the port is left in its bridge either: the set was changed in place.
    let ports = watcher
        .monitor
        .rows::<Bridge>()
        .flat_map(|(_, bridge)| &bridge.ports);
    let dangling: Vec<_> = ports
        .filter(|port| watcher.monitor.get::<Port>(**port).is_none())
        .collect();
    assert_eq!(dangling, Vec::<&uuid::Uuid>::new());
}

async fn transactions_are_carried_out_or_refused(host: &Host) {
    let ovsdb = Connection::open(&host.database(), &patient())
        .await
        .unwrap();
    let databases = ovsdb.databases().await.unwrap();
    assert!(
        databases.contains(&vswitch::DATABASE.to_owned()),
        "{databases:?}"
    );
    let schema = ovsdb.schema(vswitch::DATABASE).await.unwrap();
    assert!(schema.has_table("Interface") && !schema.version.is_empty());
    ovsdb.ping().await.unwrap();

    let transact =
        async |operations: &[Operation]| ovsdb.transact(vswitch::DATABASE, operations).await;
    let mark = |value| {
        Operation::set_keys(
            "Open_vSwitch",
            Vec::new(),
            "external_ids",
            &[("cobalt-test", value)],
        )
    };
    let read = Operation::select::<OpenVswitch>(Vec::new());
    let outcomes = transact(&[mark("1"), read.clone()]).await.unwrap();
    assert_eq!((outcomes[0].count, outcomes[1].rows.len()), (1, 1));
    let row: OpenVswitch = outcomes[1].rows[0].read();
    assert_eq!(row.external_ids["cobalt-test"], "1");
    assert!(!row.bridges.is_empty() && row.external_ids.contains_key("system-id"));

    // All or nothing: the second step is refused, and the first has not happened.
    let bad = Operation::Update {
        table: "Open_vSwitch".to_owned(),
        conditions: Vec::new(),
        row: Row::new().with("next_cfg", "a text"),
    };
    let refused = transact(&[mark("2"), bad]).await.unwrap_err();
    assert!(matches!(refused, Error::Ovsdb { .. }), "{refused}");
    let absent = Operation::Wait {
        table: "Bridge".to_owned(),
        conditions: vec![Condition::equal("name", "br-int")],
        columns: vec!["name".to_owned()],
        until: Until::Equal,
        rows: Vec::new(),
        timeout: 0,
    };
    let guarded = transact(&[absent, mark("3")]).await.unwrap_err();
    assert_eq!(guarded.ovsdb().unwrap().error, "timed out");
    let outcomes = transact(&[read]).await.unwrap();
    let row: OpenVswitch = outcomes[0].rows[0].read();
    assert_eq!(row.external_ids["cobalt-test"], "1");
    let unknown = ovsdb.schema("Nothing").await.unwrap_err();
    assert!(unknown.ovsdb().unwrap().is_unknown_database(), "{unknown}");
    let name = OpenVswitch::NAME;
    let unknown = ovsdb
        .transact(
            vswitch::DATABASE,
            &[Operation::update_row(name, uuid::Uuid::nil(), Row::new())],
        )
        .await
        .unwrap();
    assert_eq!(unknown[0].count, 0);
}

async fn commands_are_answered_or_refused(lab: &TestLab, host: &Host, release: &str) {
    let vswitchd = Unixctl::of(&host.run(), "ovs-vswitchd", &patient())
        .await
        .unwrap();
    let version = vswitchd.version().await.unwrap();
    assert_eq!(
        version,
        lab.sh(&host.name, "ovs-appctl version")
            .await
            .lines()
            .next()
            .unwrap()
    );
    assert!(version.contains(&format!(" {release}.")), "{version}");
    let ovsdb = Unixctl::of(&host.run(), "ovsdb-server", &patient())
        .await
        .unwrap();
    let databases = ovsdb.call("ovsdb-server/list-dbs", &[]).await.unwrap();
    assert!(
        databases.lines().any(|line| line == vswitch::DATABASE),
        "{databases}"
    );
    let run = host.root.join("run/ovn");
    let controller = Unixctl::of(&run, "ovn-controller", &patient())
        .await
        .unwrap();
    let status = controller.call("connection-status", &[]).await.unwrap();
    assert!(status.trim().ends_with("connected"), "{status}");

    // Many at once, on one connection.
    let (bond, trace, refused, wrong) = tokio::join!(
        vswitchd.call("bond/show", &["bond0"]),
        vswitchd.call("ofproto/trace", &["br-provider", "in_port=eno1,arp"]),
        vswitchd.call("no/such", &[]),
        vswitchd.call("bond/show", &["\"quoted\" \u{e9}\n"]),
    );
    assert!(bond.unwrap().contains("lacp_status: "));
    assert!(trace.unwrap().contains("Datapath actions"));
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::Unixctl { .. }), "{refused}");
    assert!(
        refused.to_string().contains("not a valid command"),
        "{refused}"
    );
    assert!(matches!(wrong, Err(Error::Unixctl { .. })), "{wrong:?}");

    let absent = Unixctl::of(&host.run(), "ovn-northd", &patient())
        .await
        .unwrap_err();
    assert!(matches!(absent, Error::NotRunning { .. }), "{absent}");
}

/// Servers that know less of the protocol, which a proxy makes of the real one.
async fn servers_of_every_age_are_followed(lab: &TestLab, host: &Host) {
    for unknown in [
        &["monitor_cond_since"][..],
        &["monitor_cond_since", "monitor_cond"],
    ] {
        // Without `monitor_cond` there is no `_Server` either.
        let remote = proxy::forgetful(host.database(), unknown).await;
        let mut watcher = monitor(remote, Options::default());
        let (resumed, _) = watcher.synced().await;
        assert!(!resumed && interface(&watcher.monitor, "eno1").is_some());
        let add = "ovs-vsctl --no-wait add-port br-int aged -- set Interface aged external_ids:a=b";
        lab.sh(&host.name, add).await;
        watcher
            .until("the rows", |monitor| interface(monitor, "aged").is_some())
            .await;
        lab.sh(
            &host.name,
            "ovs-vsctl --no-wait set Interface aged external_ids:c=d",
        )
        .await;
        watcher
            .until("the rows", |monitor| {
                interface(monitor, "aged").is_some_and(|row| row.external_ids.len() == 2)
            })
            .await;
        lab.sh(&host.name, "ovs-vsctl --no-wait del-port aged")
            .await;
        watcher
            .until("the rows", |monitor| interface(monitor, "aged").is_none())
            .await;
    }
}

async fn certificates_open_the_door(lab: &TestLab, host: &Host) {
    lab.sh(
        &host.name,
        "cd /etc/pki; ovs-vsctl --no-wait set-ssl $PWD/libvirt/private/serverkey.pem \
         $PWD/libvirt/servercert.pem $PWD/CA/cacert.pem -- set-manager pssl:6640",
    )
    .await;
    let mut watcher = monitor(host.database(), Options::default());
    let listening = |monitor: &Monitor| {
        monitor
            .rows::<Manager>()
            .any(|(_, row)| row.status.contains_key("bound_port"))
    };
    watcher.until("the listener", listening).await;
    let remote = Remote::Ssl(host.address.clone(), 6640);
    let files = lab.dir().join("libvirt");
    let file = |name: &str| files.join(name);
    let tls = Tls::from_files(
        &file("cacert.pem"),
        &file("clientcert.pem"),
        &file("clientkey.pem"),
        Identity::Host,
    );
    let options = Options {
        tls: Some(tls.unwrap()),
        ..Options::default()
    };
    let mut encrypted = monitor(remote.clone(), options);
    encrypted.synced().await;
    assert!(interface(&encrypted.monitor, "eno1").is_some());

    let bare = Connection::open(&remote, &Options::default())
        .await
        .unwrap_err();
    assert!(bare.to_string().contains("Options::tls"), "{bare}");
    let nobody = cobalt_lab::pki::Authority::new("nobody").unwrap();
    let identity = nobody.client("nobody").unwrap();
    let authority = std::fs::read(file("cacert.pem")).unwrap();
    let (certificate, key) = (identity.certificate.as_bytes(), identity.key.as_bytes());
    // Neither is a server of another authority taken, nor are we with a certificate of another.
    for (ca, what) in [(nobody.pem().as_bytes(), "theirs"), (&authority, "ours")] {
        let tls = Tls::from_pem(ca, certificate, key, Identity::Authority).unwrap();
        let options = Options {
            tls: Some(tls),
            ..Options::default()
        };
        let refused = async { Connection::open(&remote, &options).await?.ping().await };
        let refused = refused.await.unwrap_err();
        let expected = matches!(
            refused,
            Error::Connect(ConnectError::Tls { .. }) | Error::Closed(_)
        );
        assert!(expected, "{what}: {refused}");
    }
    lab.sh(&host.name, "ovs-vsctl --no-wait del-manager -- del-ssl")
        .await;
}
