use super::super::findings::findings;
use super::super::ledger::Ledger;
use super::super::tests::{card, healthy, port, tap, with_flows, with_interface, with_switch};
use super::*;
use crate::settings::tests::seconds;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn node() -> OvsNode {
    OvsNode::new("hv1", cobalt_api::ovsnode::OvsNodeSpec::default())
}

/// The status of a snapshot whose findings have lasted for long.
fn status_of(snapshot: &Snapshot) -> OvsNodeStatus {
    let mut ledger = Ledger::default();
    ledger.judge(findings(snapshot, &seconds()), at(0));
    let issues = ledger.judge(findings(snapshot, &seconds()), at(60)).issues;
    wanted(snapshot, issues, &node(), at(60))
}

fn says(status: &OvsNodeStatus, condition: OvsNodeCondition) -> (&str, &str) {
    let found = conditions::find(&status.conditions, condition).unwrap();
    (&found.status, &found.reason)
}

#[test]
fn where_questions_are_answered_is_told_and_taken_back() {
    let diagnostics = cobalt_api::ovsnode::Diagnostics {
        url: "https://192.0.2.1:9476".into(),
        certificate_sha256: "0".repeat(64),
    };
    let mut snapshot = healthy();
    snapshot.diagnostics = Some(diagnostics.clone());
    let told = status_of(&snapshot);
    assert_eq!(told.diagnostics, Some(diagnostics));
    let mut written = node();
    written.status = Some(told);
    let back = wanted(&healthy(), Vec::new(), &written, at(60));
    assert_eq!(back.diagnostics, None);
    assert!(!is_written(&back, &written, false));
}

#[test]
fn a_healthy_node_says_so_in_every_field() {
    let status = status_of(&healthy());
    for condition in OvsNodeCondition::ALL {
        assert_eq!(says(&status, *condition).0, "True", "{condition}");
    }
    assert_eq!(status.ovs_version.as_deref(), Some("3.1.0"));
    assert_eq!(status.ovsd_version.as_deref(), Some("3.1.0"));
    assert_eq!(
        (status.dpdk_enabled, status.dpdk_version),
        (Some(false), None)
    );
    let bridges: Vec<_> = status
        .bridges
        .iter()
        .map(|bridge| {
            (
                bridge.name.as_str(),
                bridge.ports,
                bridge.flows,
                bridge.status,
            )
        })
        .collect();
    let active = Some(BridgeStatus::Active);
    assert_eq!(
        bridges,
        [
            ("br-int", Some(1), Some(8), active),
            ("br-provider", Some(1), Some(1), active)
        ]
    );
    let interfaces = status.interfaces.unwrap();
    let cards: Vec<_> = interfaces
        .physical
        .iter()
        .map(|card| {
            (
                card.name.as_str(),
                card.status,
                card.speed.as_deref(),
                card.bond.as_deref(),
            )
        })
        .collect();
    let up = Some(LinkStatus::Up);
    assert_eq!(
        cards,
        [
            ("eno1", up, Some("25Gbps"), Some("bond0")),
            ("eno2", up, Some("25Gbps"), Some("bond0"))
        ]
    );
    let bond = &interfaces.bonds[0];
    assert_eq!((bond.members, bond.active_members), (Some(2), Some(2)));
    assert_eq!(bond.lacp.as_deref(), Some("negotiated"));
    let ovn = status.ovn_controller.unwrap();
    assert_eq!(ovn.connected, Some(true));
    assert_eq!(ovn.chassis_id.as_deref(), Some("hv1"));
    let flows = status.flow_stats.unwrap();
    assert_eq!(flows.total_flows, Some(9));
    let tables: Vec<_> = flows
        .flows_per_table
        .iter()
        .map(|t| (t.table, t.flows))
        .collect();
    assert_eq!(tables, [(0, 6), (8, 3)]);
    assert!(status.issues.is_empty());
}

#[test]
fn what_was_not_seen_stays_as_it_was() {
    let mut object = node();
    let before = status_of(&healthy());
    object.status = Some(before.clone());
    let after = wanted(&Snapshot::default(), Vec::new(), &object, at(99));
    assert_eq!(after, before);
}

#[test]
fn a_lost_database_is_said_and_what_was_known_stays() {
    let mut snapshot = healthy();
    snapshot.database = Link::Up.down("refused".into());
    let status = status_of(&snapshot);
    assert_eq!(
        says(&status, OvsNodeCondition::OvsdbConnected),
        ("False", "Disconnected")
    );
    assert_eq!(
        says(&status, OvsNodeCondition::AllBridgesHealthy).0,
        "Unknown"
    );
    assert_eq!(
        says(&status, OvsNodeCondition::Ready),
        ("False", "NotReady")
    );
    assert_eq!(status.bridges.len(), 2);
    snapshot.database = Link::Unknown.down("refused".into());
    let status = status_of(&snapshot);
    assert_eq!(
        says(&status, OvsNodeCondition::OvsdbConnected),
        ("False", "ConnectFailed")
    );
}

#[test]
fn a_switch_that_is_away_takes_its_bridges_down() {
    for away in [Daemon::Silent, Daemon::Absent { why: "x".into() }] {
        let mut snapshot = healthy();
        snapshot.vswitchd = away;
        let status = status_of(&snapshot);
        assert!(
            status
                .bridges
                .iter()
                .all(|b| b.status == Some(BridgeStatus::Down))
        );
        assert_eq!(
            says(&status, OvsNodeCondition::AllBridgesHealthy),
            ("False", "Degraded")
        );
        assert_eq!(says(&status, OvsNodeCondition::Ready).0, "False");
    }
}

#[test]
fn a_bond_is_counted_by_member_and_degrades_its_bridge() {
    let names = ["br-provider", "bond0", "eno1"];
    let cut = with_interface(healthy(), names, |card| card.link_up = Some(false));
    let status = status_of(&cut);
    let interfaces = status.interfaces.as_ref().unwrap();
    let bond = &interfaces.bonds[0];
    assert_eq!(bond.status, Some(BondStatus::Degraded));
    assert_eq!(bond.active_members, Some(1));
    assert_eq!(bond.member_states[0].active, Some(false));
    assert_eq!(interfaces.physical[0].speed, None);
    assert_eq!(status.bridges[1].status, Some(BridgeStatus::Degraded));
    assert_eq!(
        says(&status, OvsNodeCondition::AllBondsHealthy),
        ("False", "Degraded")
    );
    let names = ["br-provider", "bond0", "eno2"];
    let both = with_interface(cut, names, |card| card.lacp_current = Some(false));
    let status = status_of(&both);
    let bond = &status.interfaces.as_ref().unwrap().bonds[0];
    assert_eq!(bond.status, Some(BondStatus::Down));
}

#[test]
fn a_bond_that_may_fall_back_works_without_an_answer() {
    let silent = |fallback| {
        let snapshot = with_switch(healthy(), |switch| {
            let bridge = switch.bridges.get_mut("br-provider").unwrap();
            let bond = bridge.ports.get_mut("bond0").unwrap();
            bond.bond.as_mut().unwrap().fallback = fallback;
            for card in bond.interfaces.values_mut() {
                card.lacp_current = Some(false);
            }
        });
        status_of(&snapshot).interfaces.unwrap().bonds[0].clone()
    };
    assert_eq!(silent(false).status, Some(BondStatus::Down));
    assert_eq!(silent(true).status, Some(BondStatus::Active));
    assert_eq!(silent(true).lacp.as_deref(), Some("configured"));
}

#[test]
fn a_port_of_one_instance_does_not_make_the_node_unready_and_an_uplink_does() {
    let broken = |snapshot| {
        with_interface(snapshot, ["br-int", "tap1", "tap1"], |tap| {
            tap.ofport = Some(-1);
            tap.error = Some("No such device".into());
        })
    };
    let status = status_of(&broken(healthy()));
    assert_eq!(status.issues.len(), 1);
    assert_eq!(says(&status, OvsNodeCondition::Ready).0, "True");
    let uplink = with_switch(healthy(), |switch| {
        let mut card = card(9);
        card.error = Some("No such device".into());
        let (name, port) = port("eno9", card);
        switch
            .bridges
            .get_mut("br-provider")
            .unwrap()
            .ports
            .insert(name, port);
    });
    let status = status_of(&uplink);
    assert_eq!(status.bridges[1].status, Some(BridgeStatus::Degraded));
    assert_eq!(says(&status, OvsNodeCondition::Ready).0, "False");
}

#[test]
fn where_there_is_no_ovn_nobody_waits_for_it() {
    let mut snapshot = with_switch(healthy(), |switch| switch.southbound = None);
    snapshot.southbound = None;
    snapshot.ovn_controller = Daemon::Absent {
        why: "no pidfile".into(),
    };
    let status = status_of(&snapshot);
    assert_eq!(
        says(&status, OvsNodeCondition::OvnControllerConnected).0,
        "Unknown"
    );
    assert_eq!(says(&status, OvsNodeCondition::Ready).0, "True");
    assert_eq!(status.ovn_controller, None);
}

#[test]
fn counters_are_a_difference_only_when_they_are_due() {
    let mut object = node();
    assert!(!is_written(&status_of(&healthy()), &object, false));
    object.status = Some(status_of(&healthy()));
    let mut busy = with_flows(healthy(), "br-int", |flows| {
        flows.tables = Some([(0, 99)].into());
    });
    busy.counters = Some(Metrics {
        drops: Some(5),
        ..Metrics::default()
    });
    let later = status_of(&busy);
    assert!(is_written(&later, &object, false));
    assert!(!is_written(&later, &object, true));
    let mut changed = changes(&later, &object);
    changed.sort();
    assert_eq!(changed, ["bridges", "flowStats", "metrics"]);
    // That there is one at all is news.
    let unread = with_flows(healthy(), "br-int", |flows| flows.tables = None);
    object.status = Some(status_of(&unread));
    assert!(!is_written(&status_of(&healthy()), &object, false));
    // So is a port.
    object.status = Some(status_of(&healthy()));
    let more = with_switch(healthy(), |switch| {
        let (name, port) = port("tap2", tap(4, "vm2"));
        switch
            .bridges
            .get_mut("br-int")
            .unwrap()
            .ports
            .insert(name, port);
    });
    assert!(!is_written(&status_of(&more), &object, false));
}

#[test]
fn times_stay_while_a_condition_stays() {
    let mut object = node();
    object.status = Some(status_of(&healthy()));
    let again = wanted(&healthy(), Vec::new(), &object, at(99));
    assert!(is_written(&again, &object, true));
}

#[test]
fn speeds_are_written_as_people_say_them() {
    for (bits, said) in [
        (25_000_000_000, "25Gbps"),
        (2_500_000_000, "2.5Gbps"),
        (100_000_000, "100Mbps"),
        (9_600, "9.6Kbps"),
        (300, "300bps"),
    ] {
        assert_eq!(speed_for_people(bits), said);
    }
}

#[test]
fn a_condition_that_the_operator_marked_as_stale_is_taken_back() {
    let mut marked = node();
    marked.status = Some(status_of(&healthy()));
    for condition in &mut marked.status.as_mut().unwrap().conditions {
        condition.status = "Unknown".to_owned();
        condition.reason = "AgentSilent".to_owned();
    }
    let again = wanted(&healthy(), Vec::new(), &marked, at(99));
    assert!(!is_written(&again, &marked, false));
    for condition in OvsNodeCondition::ALL {
        assert_eq!(says(&again, *condition).0, "True", "{condition}");
    }
}
