//! Tests of `services`.

use super::*;

type Units = BTreeMap<&'static str, UnitState>;

fn state(load: &str, active: &str, sub: &str) -> UnitState {
    UnitState {
        load: load.into(),
        active: active.into(),
        sub: sub.into(),
    }
}

/// Everything that is not named is not installed.
fn host(named: &[(&'static str, &str)]) -> Units {
    let mut all: Units = units()
        .into_iter()
        .map(|unit| (unit, state("not-found", "inactive", "dead")))
        .collect();
    for (unit, active) in named {
        all.insert(unit, state("loaded", active, ""));
    }
    all
}

fn said(service: &Service, named: &[(&'static str, &str)]) -> (Status, Reason, String) {
    let statement = judge(service, &host(named)).statement;
    (statement.status, statement.reason, statement.message)
}

#[test]
fn w52_every_state_of_a_unit_is_a_valid_condition() {
    for (active, status, reason) in [
        ("active", Status::True, Reason::Running),
        ("reloading", Status::True, Reason::Running),
        ("refreshing", Status::True, Reason::Running),
        ("inactive", Status::False, Reason::Stopped),
        ("deactivating", Status::False, Reason::Stopped),
        ("activating", Status::False, Reason::Stopped),
        ("maintenance", Status::False, Reason::Stopped),
        ("failed", Status::False, Reason::Failed),
        ("a word of next year", Status::Unknown, Reason::Failed),
    ] {
        for service in SERVICES {
            let unit = service.forms[0].unit;
            let got = said(service, &[(unit, active)]);
            assert_eq!((got.0, got.1), (status, reason), "{unit} {active}");
            assert!(service.condition.reasons().contains(&reason));
            assert_eq!(got.2, format!("{unit} is {active}, loaded"));
        }
    }
}

#[test]
fn w53_modular_and_socket_activated_daemons_are_libvirt() {
    for (named, status, speaker) in [
        (
            &[("virtqemud.service", "active")][..],
            Status::True,
            "virtqemud.service",
        ),
        (
            &[("virtchd.service", "active")],
            Status::True,
            "virtchd.service",
        ),
        // A monolithic daemon that was replaced does not speak any more.
        (
            &[
                ("libvirtd.service", "inactive"),
                ("virtqemud.service", "active"),
            ],
            Status::True,
            "virtqemud.service",
        ),
        (
            &[
                ("libvirtd.service", "failed"),
                ("virtqemud.service", "active"),
            ],
            Status::True,
            "virtqemud.service",
        ),
        // Idle daemons end, and their socket starts them again.
        (
            &[
                ("libvirtd.service", "inactive"),
                ("libvirtd.socket", "active"),
            ],
            Status::True,
            "libvirtd.socket",
        ),
        (
            &[
                ("virtchd.service", "inactive"),
                ("virtchd.socket", "active"),
            ],
            Status::True,
            "virtchd.socket",
        ),
        // One that failed is not idle.
        (
            &[
                ("libvirtd.service", "failed"),
                ("libvirtd.socket", "active"),
            ],
            Status::False,
            "libvirtd.service",
        ),
        (
            &[
                ("libvirtd.service", "activating"),
                ("libvirtd.socket", "active"),
            ],
            Status::False,
            "libvirtd.service",
        ),
        (
            &[
                ("libvirtd.service", "inactive"),
                ("libvirtd.socket", "failed"),
            ],
            Status::False,
            "libvirtd.service",
        ),
    ] {
        let got = said(&LIBVIRT, named);
        assert_eq!(got.0, status, "{named:?}");
        assert!(got.2.starts_with(speaker), "{named:?}: {}", got.2);
    }
}

#[test]
fn a_unit_that_is_only_a_name_does_not_hide_its_dead_daemons() {
    let alive = [
        ("openvswitch-switch.service", "active"),
        ("ovs-vswitchd.service", "active"),
        ("ovsdb-server.service", "active"),
    ];
    assert_eq!(said(&OPEN_VSWITCH, &alive).0, Status::True);
    for (daemon, active, reason) in [
        ("ovs-vswitchd.service", "inactive", Reason::Stopped),
        ("ovs-vswitchd.service", "failed", Reason::Failed),
        ("ovsdb-server.service", "failed", Reason::Failed),
        ("ovsdb-server.service", "activating", Reason::Stopped),
    ] {
        let mut named = alive.to_vec();
        named.push((daemon, active));
        let got = said(&OPEN_VSWITCH, &named);
        assert_eq!((got.0, got.1), (Status::False, reason), "{daemon} {active}");
        assert!(got.2.starts_with(daemon), "{}", got.2);
        assert!(got.2.contains("openvswitch-switch.service"), "{}", got.2);
    }
}

#[test]
fn what_is_not_installed_is_said_so_and_is_no_failure() {
    for service in SERVICES {
        let judged = judge(service, &host(&[]));
        assert_eq!(judged.verdict, Verdict::NotInstalled);
        assert_eq!(judged.statement.status, Status::False);
        assert_eq!(judged.statement.reason, Reason::Stopped);
        assert!(judged.statement.message.contains("not installed"));
    }
    let mut masked = host(&[]);
    masked.insert("libvirtd.service", state("masked", "inactive", "dead"));
    assert!(
        judge(&LIBVIRT, &masked)
            .statement
            .message
            .contains("masked")
    );
    let mut broken = host(&[]);
    broken.insert("libvirtd.service", state("bad-setting", "inactive", "dead"));
    assert_eq!(judge(&LIBVIRT, &broken).verdict, Verdict::Failed);
}

#[test]
fn w70_nothing_stays_true_while_systemd_is_away() {
    for reason in [Reason::Disconnected, Reason::ConnectFailed] {
        let judged = disconnected(reason, "the bus is gone");
        assert_eq!(judged.statement.status, Status::Unknown);
        for service in SERVICES {
            assert!(service.condition.reasons().contains(&reason));
        }
    }
}
