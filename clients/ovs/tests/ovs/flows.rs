//! Flows, tables and ports as the switch tells them by each version of OpenFlow, compared with what
//! its own tool says.

use std::collections::{BTreeMap, BTreeSet};

use cobalt_ovs::openflow::{Action, Connection, FlowFilter, Version, ports};
use cobalt_ovs::ovsdb::southbound::{
    self, Chassis, DatapathBinding, LogicalFlow, MulticastGroup, PortBinding,
};
use cobalt_ovs::ovsdb::{Monitor, Tables};
use cobalt_ovs::{ConnectError, Error, Options, Remote};

use crate::{Host, TestLab, Watcher, patient};

/// More flows than fit into one part of an answer.
const FLOWS: usize = 3000;

fn management(host: &Host, bridge: &str) -> Remote {
    Remote::Unix(host.run().join(format!("{bridge}.mgmt")))
}

pub async fn flows_are_told_by_every_version(lab: &TestLab, host: &Host) {
    lab.sh(
        &host.name,
        "ovs-vsctl add-br br-flows -- set Bridge br-flows datapath_type=netdev
         ovs-vsctl add-port br-flows a -- set Interface a type=internal ofport_request=5
         ovs-ofctl del-flows br-flows
         ovs-ofctl -O OpenFlow15 add-flow br-flows \
         'cookie=0xabc000,table=9,priority=7,ip,in_port=5,actions=output:777,clone(output:778),\
ct(commit,table=3),resubmit(,8),NORMAL'",
    )
    .await;
    let fill = format!(
        "for i in $(seq {FLOWS}); do echo \"cookie=$i,table=10,priority=1,\
         ip,nw_src=10.0.$((i / 250)).$((i % 250)),actions=output:5\"; done | \
         ovs-ofctl -O OpenFlow15 add-flows br-flows -"
    );
    lab.sh(&host.name, &fill).await;
    for version in Version::ALL {
        as_the_tool_says(lab, host, version).await;
    }
    versions_are_negotiated(lab, host).await;
    lab.sh(&host.name, "ovs-vsctl del-br br-flows").await;
}

async fn as_the_tool_says(lab: &TestLab, host: &Host, version: Version) {
    let remote = management(host, "br-flows");
    let opened = Connection::open_with(&remote, &[version], &patient()).await;
    let mut bridge = opened.unwrap();
    assert_eq!(bridge.version(), version);
    bridge.ping().await.unwrap();
    bridge.barrier().await.unwrap();
    let id = lab
        .sh(&host.name, "ovs-vsctl get Bridge br-flows datapath_id")
        .await;
    let features = bridge.features().await.unwrap();
    assert_eq!(format!("\"{:016x}\"", features.datapath_id), id.trim());

    let sum = bridge.aggregate(FlowFilter::ALL).await.unwrap();
    let (mut cookies, mut strange) = (BTreeMap::<u64, u32>::new(), Vec::new());
    let visited = bridge
        .flows(FlowFilter::ALL, |flow| {
            *cookies.entry(flow.cookie).or_default() += 1;
            assert!(flow.packets.is_some() && flow.duration.is_some());
            assert_eq!(flow.idle.is_some(), version == Version::V15);
            if flow.table == 9 {
                let mut actions = Vec::new();
                flow.for_each_action(|action| actions.push(action)).unwrap();
                let outputs = flow.output_ports().unwrap();
                strange.push((flow.priority, flow.matches().in_port(), actions, outputs));
            } else {
                assert_eq!(flow.output_ports(), Ok(vec![5]));
                assert_eq!(flow.matches().fields().filter(Result::is_ok).count(), 2);
            }
        })
        .await;
    visited.unwrap();
    assert_eq!(usize::try_from(sum.flows).unwrap(), FLOWS + 1);
    assert_eq!(cookies.len(), FLOWS + 1);
    assert!(cookies.values().all(|count| *count == 1));
    let [(priority, in_port, actions, outputs)] = &strange[..] else {
        panic!("{strange:?}");
    };
    assert_eq!((*priority, *in_port), (7, Some(5)));
    assert_eq!(*outputs, [777, 778]);
    let expected = [
        Action::Output(777),
        Action::Output(778),
        Action::Track(Some(3)),
        Action::Resubmit(8),
        Action::Output(ports::NORMAL),
    ];
    assert_eq!(*actions, expected);

    // The switch filters, too.
    let count =
        async |bridge: &mut Connection, filter| bridge.aggregate(filter).await.unwrap().flows;
    let table = FlowFilter {
        table: Some(9),
        ..FlowFilter::ALL
    };
    let port = FlowFilter {
        out_port: Some(777),
        ..FlowFilter::ALL
    };
    let cookie = FlowFilter {
        cookie: 17,
        cookie_mask: u64::MAX,
        ..FlowFilter::ALL
    };
    for filter in [table, port, cookie] {
        assert_eq!(count(&mut bridge, filter).await, 1, "{filter:?}");
    }

    let tables = bridge.tables().await.unwrap();
    let filled: Vec<_> = tables.iter().filter(|table| table.flows > 0).collect();
    assert_eq!((filled[0].table, filled[0].flows), (9, 1));
    assert_eq!(
        (filled[1].table, usize::try_from(filled[1].flows).unwrap()),
        (10, FLOWS)
    );

    let described = bridge.ports().await.unwrap();
    let names: Vec<_> = described
        .iter()
        .map(|port| (port.port, port.name.as_str()))
        .collect();
    assert!(
        names.contains(&(5, "a")) && names.contains(&(ports::LOCAL, "br-flows")),
        "{names:?}"
    );
    let down = described.iter().find(|port| port.port == 5).unwrap();
    assert!(down.admin_down && down.link_down, "{down:?}");
    let told = lab.sh(&host.name, "cat /sys/class/net/a/address").await;
    let address: Vec<String> = down
        .address
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(address.join(":"), told.trim());
    let counters = bridge.port_stats().await.unwrap();
    let counted: BTreeSet<u32> = counters.iter().map(|port| port.port).collect();
    assert_eq!(counted, described.iter().map(|port| port.port).collect());
    assert!(
        counters.iter().all(|port| port.rx_packets.is_some()),
        "{counters:?}"
    );
}

/// A bridge says which versions it takes.
async fn versions_are_negotiated(lab: &TestLab, host: &Host) {
    let remote = management(host, "br-flows");
    // By default, all of them.
    let bridge = Connection::open(&remote, &patient()).await.unwrap();
    assert_eq!(bridge.version(), Version::V15);
    for (protocols, expected) in [
        ("OpenFlow10,OpenFlow13", Some(Version::V13)),
        ("OpenFlow10,OpenFlow14", Some(Version::V14)),
        ("OpenFlow10", None),
    ] {
        let set = format!("ovs-vsctl set Bridge br-flows protocols={protocols}");
        lab.sh(&host.name, &set).await;
        match (Connection::open(&remote, &patient()).await, expected) {
            (Ok(mut bridge), Some(expected)) => {
                assert_eq!(bridge.version(), expected);
                let sum = bridge.aggregate(FlowFilter::ALL).await.unwrap();
                assert_eq!(usize::try_from(sum.flows).unwrap(), FLOWS + 1);
            }
            (Err(error), None) => {
                assert!(matches!(error, Error::Closed(_)), "{error}");
                assert!(error.to_string().contains("1.3, 1.4 and 1.5"), "{error}");
            }
            (other, _) => panic!("{protocols}: {other:?}"),
        }
    }
    // Over the network, too.
    let listen = "ovs-vsctl remove Bridge br-flows protocols OpenFlow10 -- \
                  set-controller br-flows ptcp:6653";
    lab.sh(&host.name, listen).await;
    let remote = Remote::Tcp(host.address.clone(), 6653);
    let mut bridge = Connection::open(&remote, &patient()).await.unwrap();
    let sum = bridge.aggregate(FlowFilter::ALL).await.unwrap();
    assert_eq!(usize::try_from(sum.flows).unwrap(), FLOWS + 1);
    let unknown = Connection::of(&host.run(), "br-nothing", &patient()).await;
    assert!(
        matches!(
            unknown,
            Err(Error::Connect(ConnectError::Unreachable { .. }))
        ),
        "{unknown:?}"
    );
}

/// A virtual machine, as far as the network is concerned: a port of a logical switch.
pub async fn plug(lab: &TestLab, host: &Host, name: &str, address: &str) {
    let members = lab.members(6641).await;
    let at: Vec<String> = members
        .iter()
        .map(|(_, remote)| remote.to_string())
        .collect();
    lab.sh(
        &host.name,
        &format!(
            "ovn-nbctl --no-leader-only --timeout=60 --db={} --may-exist ls-add ls -- \
             lsp-add ls {name} -- lsp-set-addresses {name} '{address}'
             ovs-vsctl add-port br-int {name} -- set Interface {name} type=internal \
             external_ids:iface-id={name}
             ovs-vsctl --timeout=60 wait-until Interface {name} external_ids:ovn-installed=true",
            at.join(",")
        ),
    )
    .await;
}

/// How flows that nobody wants any more are found: ovn-controller gives each the identity of a row.
pub async fn cookies_are_rows_of_the_southbound_database(lab: &TestLab, host: &Host, port: &str) {
    let members = lab.members(6642).await;
    let southbound = members.into_iter().map(|(_, remote)| remote).collect();
    let tables = Tables::new()
        .table::<Chassis>()
        .table::<PortBinding>()
        .table::<DatapathBinding>()
        .table::<LogicalFlow>()
        .table::<MulticastGroup>();
    let monitor = Monitor::new(southbound::DATABASE, southbound, tables, Options::default());
    let mut watcher = Watcher::new(monitor);
    let bound = |monitor: &Monitor| {
        let chassis = monitor
            .rows::<Chassis>()
            .find(|(_, row)| row.name == host.name);
        let chassis = chassis.map(|(uuid, _)| uuid);
        let mut bindings = monitor.rows::<PortBinding>();
        bindings.any(|(_, row)| {
            row.logical_port == port && row.chassis == chassis && row.up == Some(true)
        })
    };
    watcher.until("the binding", bound).await;

    let remote = management(host, "br-int");
    let mut bridge = Connection::open(&remote, &patient()).await.unwrap();
    let mut cookies = BTreeSet::new();
    let visited = bridge.flows(FlowFilter::ALL, |flow| {
        cookies.extend((flow.cookie != 0).then_some(flow.cookie));
    });
    visited.await.unwrap();
    assert!(cookies.len() > 20, "{cookies:?}");
    watcher
        .until("the rows", |monitor| {
            let flows = monitor.rows::<LogicalFlow>().map(|(uuid, _)| uuid);
            let ports = monitor.rows::<PortBinding>().map(|(uuid, _)| uuid);
            let groups = monitor.rows::<MulticastGroup>().map(|(uuid, _)| uuid);
            let chassis = monitor.rows::<Chassis>().map(|(uuid, _)| uuid);
            let rows = flows.chain(ports).chain(groups).chain(chassis);
            let known: BTreeSet<u64> = rows.map(southbound::cookie).collect();
            cookies.is_subset(&known)
        })
        .await;
}
