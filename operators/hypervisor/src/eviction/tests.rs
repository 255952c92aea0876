//! Verdicts and decisions, one at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cobalt_api::conditions::{self, EvictionCondition, Reason, Status};
use cobalt_api::eviction::{
    Eviction, EvictionInstance, EvictionSpec, EvictionStatus, InstanceState, Method, Outcome,
    Strategy, Verdict,
};
use cobalt_api::names::finalizers;
use cobalt_openstack::compute::{ComputeService, Server};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::budget::{Limits, Room};
use super::decide::{Decision, decide};
use super::seen::{
    Action, Asked, Group, MoveMethod, Policy, Reads, Seen, Source, Stalled, Trouble,
};
use super::signs::{Probe, Record};
use super::survey::Survey;
use super::transfer::Transfer;
use super::verdict::{judge, priority};
use super::witness::{Place, Report};
use crate::fleet::Identity;
use crate::host::Read;

mod witness;

const HOST: &str = "source";

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

#[allow(clippy::needless_pass_by_value, reason = "callers write it in place")]
fn server(id: &str, more: Value) -> Server {
    let mut all = json!({
        "id": id, "name": format!("name-{id}"), "status": "ACTIVE",
        "OS-EXT-SRV-ATTR:host": HOST, "flavor": { "ram": 512, "vcpus": 1 },
    });
    let object = all.as_object_mut().unwrap();
    object.extend(more.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

fn read<T>(value: T) -> Option<Read<T>> {
    Some(Read { at: now(), value })
}

/// Read after the list of servers.
fn later<T>(value: T) -> Option<Read<T>> {
    let at = now() + SignedDuration::from_millis(1);
    Some(Read { at, value })
}

fn place_on(host: &str) -> Place {
    Place::On {
        host: host.to_owned(),
        status: "ACTIVE".to_owned().into(),
        busy: false,
        fault: None,
    }
}

fn silent() -> Report {
    Report::Silent("a test".to_owned())
}

/// Everything was read, and these servers are there.
fn reads(servers: Vec<Server>) -> Reads {
    let hosts = vec!["t1".to_owned(), "t2".to_owned()];
    let targets = servers.iter().map(|one| (one.id.clone(), hosts.clone()));
    Reads {
        targets: read(Ok(targets.collect())),
        migrations: read(Vec::new()),
        servers: read(servers),
        libvirt: read(silent()),
        agents: ["t1", "t2"]
            .map(|host| (host.to_owned(), read(silent()).unwrap()))
            .into(),
        errors: later(BTreeMap::new()),
        enabled: read(false),
        ..Reads::default()
    }
}

fn seen(reads: Reads, status: EvictionStatus) -> Seen {
    let spec = EvictionSpec {
        hypervisor: HOST.to_owned(),
        reason: "a test".to_owned(),
        ..EvictionSpec::default()
    };
    let mut eviction = Eviction::new(HOST, spec);
    eviction.metadata.finalizers = Some(vec![finalizers::EVICTION_IN_FLIGHT.to_owned()]);
    eviction.status = Some(status);
    let service: ComputeService = serde_json::from_value(json!({
        "id": "service", "binary": "nova-compute", "host": HOST,
        "status": "disabled", "state": "up",
    }))
    .unwrap();
    let policy = Policy::default();
    Seen {
        eviction: Arc::new(eviction),
        source: Source {
            exists: true,
            identity: Ok(Some(Identity {
                host: HOST.to_owned(),
                service: service.into(),
                hypervisor_id: Some("provider".to_owned()),
            })),
            was_registered: true,
        },
        reads,
        taken: BTreeMap::new(),
        room: Room::free(policy.limits),
        policy: Arc::new(policy),
    }
}

fn change(seen: &mut Seen, how: impl FnOnce(&mut Eviction)) {
    how(Arc::make_mut(&mut seen.eviction));
}

fn running(rows: Vec<EvictionInstance>) -> EvictionStatus {
    EvictionStatus {
        started_at: Some(Time(ago(60))),
        instances: rows,
        ..EvictionStatus::default()
    }
}

fn moving(id: &str) -> EvictionInstance {
    EvictionInstance {
        state: InstanceState::Moving,
        since: Some(Time(ago(10))),
        deadline: Some(Time(now() + SignedDuration::from_secs(600))),
        attempt: Some(1),
        method: Some(Method::Live),
        after_migration_id: Some(5),
        ..EvictionInstance::new(id)
    }
}

fn migration(id: i64, server: &str, status: &str) -> cobalt_openstack::compute::Migration {
    serde_json::from_value(json!({
        "id": id, "instance_uuid": server, "status": status, "migration_type": "live-migration",
        "source_compute": HOST, "dest_compute": "t1",
    }))
    .unwrap()
}

fn row<'a>(decision: &'a Decision, id: &str) -> &'a EvictionInstance {
    let mut rows = decision.status.instances.iter();
    rows.find(|row| row.id == id).unwrap()
}

#[test]
fn verdicts() {
    for (more, verdict, method, reason) in [
        (json!({}), Verdict::Movable, Some(Method::Live), None),
        (
            json!({ "status": "PAUSED" }),
            Verdict::Movable,
            Some(Method::Live),
            None,
        ),
        (
            json!({ "status": "SHUTOFF" }),
            Verdict::MovableCold,
            Some(Method::Cold),
            None,
        ),
        (
            json!({ "status": "SHELVED" }),
            Verdict::MovableCold,
            Some(Method::Offload),
            None,
        ),
        (
            json!({ "status": "SUSPENDED" }),
            Verdict::Blocked,
            None,
            Some("UnsupportedState"),
        ),
        (
            json!({ "status": "RESCUE" }),
            Verdict::Blocked,
            None,
            Some("UnsupportedState"),
        ),
        (
            json!({ "status": "SOMETHING_NEW" }),
            Verdict::Blocked,
            None,
            Some("UnsupportedState"),
        ),
        (
            json!({ "status": "ERROR" }),
            Verdict::Blocked,
            None,
            Some("InError"),
        ),
        (
            json!({ "status": "BUILD" }),
            Verdict::Unknown,
            None,
            Some("TaskInProgress"),
        ),
        (
            json!({ "status": "RESIZE" }),
            Verdict::Unknown,
            None,
            Some("TaskInProgress"),
        ),
        (
            json!({ "status": "VERIFY_RESIZE" }),
            Verdict::Unknown,
            None,
            Some("TaskInProgress"),
        ),
        (
            json!({ "OS-EXT-STS:task_state": "deleting" }),
            Verdict::Unknown,
            None,
            Some("TaskInProgress"),
        ),
        (
            json!({ "locked": true }),
            Verdict::Movable,
            Some(Method::Live),
            Some("Locked"),
        ),
        (
            json!({ "flavor": { "ram": 1, "extra_specs": { "pci_passthrough:alias": "gpu:1" } } }),
            Verdict::Unknown,
            Some(Method::Live),
            Some("PassthroughDevice"),
        ),
        (
            json!({ "flavor": { "ram": 1, "extra_specs": { "resources:VGPU": "1" } } }),
            Verdict::Unknown,
            Some(Method::Live),
            Some("PassthroughDevice"),
        ),
        (
            json!({ "flavor": { "ram": 1, "extra_specs": { "accel:device_profile": "fpga" } } }),
            Verdict::Blocked,
            None,
            Some("PassthroughDevice"),
        ),
        (
            json!({ "status": "SHUTOFF",
                    "flavor": { "ram": 1, "extra_specs": { "accel:device_profile": "fpga" } } }),
            Verdict::Blocked,
            None,
            Some("PassthroughDevice"),
        ),
        (
            json!({ "flavor": { "ram": 1, "extra_specs": { "hw:mem_encryption": "True" } } }),
            Verdict::Blocked,
            None,
            Some("UnsupportedState"),
        ),
        (
            json!({ "status": "SHUTOFF",
                    "flavor": { "ram": 1, "extra_specs": { "hw:mem_encryption": "True" } } }),
            Verdict::MovableCold,
            Some(Method::Cold),
            None,
        ),
        (
            json!({ "status": "SHUTOFF",
                    "flavor": { "ram": 1, "extra_specs": { "pci_passthrough:alias": "gpu:1" } } }),
            Verdict::MovableCold,
            Some(Method::Cold),
            None,
        ),
        (
            json!({ "flavor": { "ram": 1, "disk": 20 } }),
            Verdict::Movable,
            Some(Method::Live),
            Some("LocalStorage"),
        ),
    ] {
        let server = server("a", more.clone());
        let judged = judge(
            &server,
            &EvictionInstance::new("a"),
            &reads(vec![server.clone()]),
        );
        assert_eq!(judged.preflight.verdict, verdict, "{more}");
        assert_eq!(judged.method, method, "{more}");
        let first = judged
            .preflight
            .reasons
            .first()
            .map(|one| one.reason.as_str());
        assert_eq!(first, reason, "{more}");
        // Whoever reads it knows what to do.
        assert!(
            judged
                .preflight
                .reasons
                .iter()
                .all(|one| one.message.is_some()),
            "{more}"
        );
    }
}

#[test]
fn a_device_is_tried_once_and_then_waits_for_the_server_to_be_off() {
    let gpu = json!({ "ram": 1, "extra_specs": { "pci_passthrough:alias": "gpu:1" } });
    let refused = EvictionInstance {
        attempt: Some(1),
        method: Some(Method::Live),
        avoid: vec!["t1".to_owned(), "t2".to_owned()],
        error: Some("400: not with this device".to_owned()),
        since: Some(Time(ago(10))),
        ..EvictionInstance::new("a")
    };
    let running_gpu = server("a", json!({ "flavor": gpu }));
    let decision = decide(
        &seen(reads(vec![running_gpu]), running(vec![refused.clone()])),
        now(),
    );
    let after = row(&decision, "a");
    assert_eq!(after.state, InstanceState::Blocked);
    assert_eq!(after.error, refused.error, "Nova's words are kept");
    let finding = &after.preflight.as_ref().unwrap().reasons[0];
    assert_eq!(finding.reason, "PassthroughDevice");
    assert!(finding.message.as_ref().unwrap().contains("stop it"));

    // Who could not take it while it ran may take it now.
    let off = server("a", json!({ "status": "SHUTOFF", "flavor": gpu }));
    let decision = decide(&seen(reads(vec![off]), running(vec![refused])), now());
    let after = row(&decision, "a");
    assert_eq!(
        (after.state, after.method, after.attempt),
        (InstanceState::Moving, Some(Method::Cold), Some(2))
    );
    assert!(after.avoid.is_empty());
}

#[test]
fn what_never_ends_is_given_up_and_nobody_turns_without_a_pause() {
    let stuck = EvictionInstance {
        state: InstanceState::Blocked,
        since: Some(Time(ago(3601))),
        ..EvictionInstance::new("stuck")
    };
    let deleting = json!({ "OS-EXT-STS:task_state": "deleting" });
    let alone = seen(
        reads(vec![server("stuck", deleting.clone())]),
        running(vec![stuck.clone()]),
    );
    let decision = decide(&alone, now());
    assert_eq!(row(&decision, "stuck").state, InstanceState::Failed);

    // As long as others are on their way, it is waited for.
    let servers = vec![server("stuck", deleting), server("a", json!({}))];
    let mut busy = seen(reads(servers), running(vec![stuck, moving("a")]));
    busy.reads.migrations = read(vec![migration(6, "a", "running")]);
    let decision = decide(&busy, now());
    assert_eq!(row(&decision, "stuck").state, InstanceState::Blocked);
    assert!(decision.wake.unwrap() > now(), "{:?}", decision.wake);
}

#[test]
fn a_migration_that_nobody_brings_to_its_end_has_failed() {
    let began = |seconds| EvictionInstance {
        since: Some(Time(ago(seconds))),
        to: Some("t1".to_owned()),
        ..moving("a")
    };
    // Begun so many seconds ago, listed so many, what Nova says of the server, and the end of it.
    for (begun, listed, more, over) in [
        (100, 30, json!({}), true),
        (100, 30, json!({ "status": "ERROR" }), true),
        (100, 30, json!({ "status": "MIGRATING" }), false),
        (
            100,
            30,
            json!({ "OS-EXT-STS:task_state": "migrating" }),
            false,
        ),
        (100, 10, json!({}), false),
        (80, 30, json!({}), false),
    ] {
        let mut seen = seen(
            reads(vec![server("a", more.clone())]),
            running(vec![began(begun)]),
        );
        seen.reads.servers.as_mut().unwrap().at = ago(listed);
        seen.reads.migrations = read(vec![migration(6, "a", "queued")]);
        let decision = decide(&seen, now());
        let after = row(&decision, "a");
        let expected = if over {
            InstanceState::Pending
        } else {
            InstanceState::Moving
        };
        assert_eq!(after.state, expected, "{begun} {listed} {more}");
        if over {
            let error = after.error.as_ref().unwrap();
            assert!(error.contains("migration 6 says queued"), "{error}");
            assert!(after.avoid.is_empty(), "it is no fault of the target");
        }
    }
    // It is not here any more: Nova is asked where it is.
    let mut gone = seen(reads(vec![]), running(vec![began(100)]));
    gone.reads.servers.as_mut().unwrap().at = ago(30);
    gone.reads.migrations = read(vec![migration(6, "a", "running")]);
    let ask = Action::ReadServer {
        server: "a".to_owned(),
    };
    assert!(decide(&gone, now()).actions.contains(&ask));
    for (found, expected) in [
        (None, InstanceState::Gone),
        (Some("t1"), InstanceState::Moved),
        (Some(HOST), InstanceState::Moving),
    ] {
        let found = Read {
            at: ago(29),
            value: found.map_or(Place::Gone, place_on),
        };
        gone.reads.elsewhere = [("a".to_owned(), found)].into();
        assert_eq!(row(&decide(&gone, now()), "a").state, expected);
    }
}

#[test]
fn verdicts_by_room_and_group() {
    let judged = |reads: &Reads, row: &EvictionInstance| {
        let judged = judge(&server("a", json!({})), row, reads);
        let reasons: Vec<String> = judged
            .preflight
            .reasons
            .iter()
            .map(|one| one.reason.clone())
            .collect();
        (judged.preflight.verdict, judged.preflight.hosts, reasons)
    };
    let plain = EvictionInstance::new("a");
    let all = vec![server("a", json!({})), server("b", json!({}))];
    let mut reads = reads(all);
    assert_eq!(judged(&reads, &plain), (Verdict::Movable, Some(2), vec![]));

    let failed = EvictionInstance {
        avoid: vec!["t1".to_owned(), "t2".to_owned()],
        ..plain.clone()
    };
    let (verdict, _, why) = judged(&reads, &failed);
    assert_eq!(
        (verdict, why),
        (Verdict::Unknown, vec!["NoValidHost".to_owned()])
    );

    let group = |together| Group {
        name: "g".to_owned(),
        together,
        most: 1,
        members: ["a".to_owned(), "b".to_owned()].into(),
    };
    reads.groups = vec![group(true)];
    assert_eq!(
        judged(&reads, &plain),
        (Verdict::Blocked, None, vec!["AffinityGroup".to_owned()])
    );
    reads.groups = vec![group(false)];
    assert_eq!(judged(&reads, &plain).0, Verdict::Movable);
    reads.groups.clear();

    let kinds = BTreeSet::from(["direct".to_owned()]);
    reads.devices = [("a".to_owned(), kinds)].into();
    let note = "PassthroughDevice".to_owned();
    assert_eq!(
        judged(&reads, &plain),
        (Verdict::Movable, Some(2), vec![note])
    );
    reads.devices.clear();

    reads.targets = read(Ok([("a".to_owned(), Vec::new())].into()));
    assert_eq!(
        judged(&reads, &plain),
        (Verdict::Blocked, Some(0), vec!["NoCapacity".to_owned()])
    );
    reads.targets = read(Err("away".to_owned()));
    assert_eq!(
        judged(&reads, &plain).0,
        Verdict::Unknown,
        "it is tried all the same"
    );
    assert!(
        judge(&server("a", json!({})), &plain, &reads)
            .method
            .is_some()
    );
}

#[test]
fn priorities() {
    for (more, expected) in [
        (json!({}), 0),
        (
            json!({ "metadata": { "cobalt:eviction_priority": "7" } }),
            7,
        ),
        (
            json!({ "metadata": { "cobalt:eviction_priority": "soon" } }),
            0,
        ),
        (
            json!({ "flavor": { "extra_specs": { "cobalt:ha_priority": "3" } } }),
            3,
        ),
    ] {
        assert_eq!(priority(&server("a", more.clone())), expected, "{more}");
    }
}

#[test]
fn what_is_important_goes_first_and_then_what_is_small() {
    let large = server("a", json!({ "flavor": { "ram": 4096 } }));
    let small = server("b", json!({ "flavor": { "ram": 64 } }));
    let first =
        json!({ "flavor": { "ram": 8192 }, "metadata": { "cobalt:eviction_priority": "1" } });
    let all = vec![large, small, server("c", first)];
    let mut seen = seen(reads(all), running(Vec::new()));
    change(&mut seen, |eviction| eviction.spec.parallelism = Some(2));
    let decision = decide(&seen, now());
    let states: Vec<_> = decision
        .status
        .instances
        .iter()
        .map(|row| (row.id.as_str(), row.state))
        .collect();
    assert_eq!(
        states,
        [
            ("a", InstanceState::Pending),
            ("b", InstanceState::Moving),
            ("c", InstanceState::Moving)
        ]
    );
    let asked = decision
        .actions
        .iter()
        .filter(|one| matches!(one, Action::Move { .. }));
    assert_eq!(asked.count(), 2);
    let row = row(&decision, "c");
    assert_eq!((row.attempt, row.migration_id), (Some(1), None));
    assert!(
        row.deadline.is_some(),
        "the intent is complete before it is carried out"
    );
    assert_eq!(
        decision.status.outstanding_ram_mb,
        Some(4096 + 64 + 8192),
        "W41"
    );
}

#[test]
fn nothing_begins_before_its_time() {
    let fresh = EvictionStatus::default;
    let servers = || reads(vec![server("a", json!({}))]);

    // The host takes new instances.
    let mut open = seen(servers(), fresh());
    if let Ok(Some(identity)) = &mut open.source.identity {
        identity.service.status = cobalt_openstack::compute::ServiceStatus::Enabled;
    }
    let decision = decide(&open, now());
    assert_eq!(
        decision.status.waiting_for.as_ref().unwrap().reason,
        "HostDisabled"
    );
    assert!(decision.status.started_at.is_none() && decision.actions.is_empty());
    let preflight = conditions::status(
        &decision.status.conditions,
        EvictionCondition::PreflightChecksSucceeded,
    );
    assert_eq!(preflight, Some(Status::False));

    // One instance alone may leave it, and a plan may be made.
    let mut one = open.clone();
    change(&mut one, |eviction| {
        eviction.spec.instances = vec!["a".to_owned()];
    });
    assert!(decide(&one, now()).status.started_at.is_some());
    let mut plan = open.clone();
    change(&mut plan, |eviction| eviction.spec.dry_run = Some(true));
    let decision = decide(&plan, now());
    assert!(decision.status.started_at.is_some());

    // It cannot disappear unnoticed.
    let mut free = seen(servers(), running(Vec::new()));
    change(&mut free, |eviction| eviction.metadata.finalizers = None);
    let decision = decide(&free, now());
    assert!(decision.actions.contains(&Action::Hold));
    assert!(
        !decision
            .actions
            .iter()
            .any(|one| matches!(one, Action::Move { .. }))
    );

    // Evacuation is not this.
    let mut dead = seen(servers(), fresh());
    change(&mut dead, |eviction| {
        eviction.spec.strategy = Some(Strategy::Evacuate);
    });
    let decision = decide(&dead, now());
    assert_eq!(decision.status.outcome, Some(Outcome::Failed));
    let said = conditions::find(&decision.status.conditions, EvictionCondition::Evicting).unwrap();
    assert!(said.message.contains("LiveMigrate"), "{}", said.message);
}

#[test]
fn w1_a_host_that_nova_lost_is_no_success() {
    let mut lost = seen(Reads::default(), EvictionStatus::default());
    lost.source.identity = Ok(None);
    let decision = decide(&lost, now());
    assert_eq!(decision.status.outcome, Some(Outcome::Failed));
    let reason = conditions::reason(&decision.status.conditions, EvictionCondition::Evicting);
    assert_eq!(reason, Some(Reason::Failed));
    lost.source.was_registered = false;
    lost.reads.libvirt = later(silent());
    assert_eq!(
        decide(&lost, now()).status.outcome,
        Some(Outcome::Succeeded)
    );
}

#[test]
fn w3_the_host_is_empty_when_it_was_read_so_twice() {
    let mut moved = moving("a");
    moved.state = InstanceState::Moved;
    let mut empty = seen(reads(Vec::new()), running(vec![moved]));
    empty.reads.empties = vec![now()];
    empty.reads.libvirt = later(silent());
    if let Ok(Some(identity)) = &mut empty.source.identity {
        identity.hypervisor_id = None;
    }
    assert_eq!(decide(&empty, now()).status.outcome, None);
    empty.reads.empties = vec![ago(1), now()];
    let decision = decide(&empty, now());
    assert_eq!(decision.status.outcome, Some(Outcome::Succeeded));
    assert!(decision.actions.contains(&Action::Release));
    // One that came in the meantime is included.
    empty.reads.servers = read(vec![server("late", json!({}))]);
    let decision = decide(&empty, now());
    assert_eq!(decision.status.outcome, None);
    assert_eq!(row(&decision, "late").state, InstanceState::Moving);
}

#[test]
fn after_a_crash_nova_says_what_came_of_it() {
    let here = |more| reads(vec![server("a", more)]);
    let moves = |decision: &Decision| {
        decision
            .actions
            .iter()
            .any(|one| matches!(one, Action::Move { .. }))
    };

    // Nova was never asked.
    let decision = decide(&seen(here(json!({})), running(vec![moving("a")])), now());
    assert!(moves(&decision));
    assert_eq!(row(&decision, "a").attempt, Some(1), "the same attempt");

    // Nova is at it, and has no migration yet.
    let busy = json!({ "status": "MIGRATING", "OS-EXT-STS:task_state": "migrating" });
    let decision = decide(&seen(here(busy), running(vec![moving("a")])), now());
    assert!(!moves(&decision));

    // It has one: of this attempt, and not of an earlier one.
    let mut followed = seen(here(json!({})), running(vec![moving("a")]));
    followed.reads.migrations = read(vec![migration(5, "a", "error")]);
    assert!(moves(&decide(&followed, now())));
    followed.reads.migrations = read(vec![
        migration(6, "a", "running"),
        migration(5, "a", "error"),
    ]);
    let decision = decide(&followed, now());
    assert!(!moves(&decision));
    assert_eq!(
        (
            row(&decision, "a").migration_id,
            row(&decision, "a").to.as_deref()
        ),
        (Some(6), Some("t1"))
    );

    // It is over.
    followed.reads.migrations = read(vec![migration(6, "a", "completed")]);
    assert_eq!(
        row(&decide(&followed, now()), "a").state,
        InstanceState::Moved
    );
}

#[test]
fn w5_what_fails_later_says_why_and_is_tried_elsewhere() {
    let mut failed = seen(
        reads(vec![server("a", json!({}))]),
        running(vec![moving("a")]),
    );
    failed.reads.migrations = read(vec![migration(6, "a", "error")]);
    let request_id = Some("req-1".to_owned());
    failed.reads.asked.insert(
        "a".to_owned(),
        Asked::Accepted {
            at: ago(5),
            request_id,
        },
    );
    let decision = decide(&failed, now());
    let wanted = Action::ReadReason {
        server: "a".to_owned(),
        request: "req-1".to_owned(),
    };
    assert!(decision.actions.contains(&wanted), "{:?}", decision.actions);
    failed
        .reads
        .reasons
        .insert("req-1".to_owned(), Some("the cable is cut".to_owned()));
    let decision = decide(&failed, now());
    let after = row(&decision, "a");
    assert_eq!(after.state, InstanceState::Pending);
    assert_eq!(after.error.as_deref(), Some("the cable is cut"));
    assert_eq!(after.avoid, ["t1"]);
    assert_eq!(
        decision.status.waiting_for.as_ref().unwrap().reason,
        "NextAttempt"
    );

    // In a moment.
    change(&mut failed, |eviction| {
        eviction.status = Some(decision.status.clone());
    });
    let later = now() + SignedDuration::from_secs(11);
    failed.reads.servers.as_mut().unwrap().at = later;
    let decision = decide(&failed, later);
    let wanted = Action::Move {
        server: "a".to_owned(),
        method: MoveMethod::Live,
        target: Some("t2".to_owned()),
    };
    assert!(decision.actions.contains(&wanted), "{:?}", decision.actions);
    assert_eq!(row(&decision, "a").after_migration_id, Some(6));
}

#[test]
fn who_has_failed_is_taken_again_if_there_is_nobody_else() {
    let tried = |attempt, avoid: &[&str]| EvictionInstance {
        attempt: Some(attempt),
        method: Some(Method::Live),
        since: Some(Time(ago(130))),
        avoid: avoid.iter().map(|host| (*host).to_owned()).collect(),
        ..EvictionInstance::new("a")
    };
    for (row, expected) in [
        (tried(1, &["t1"]), Some("t2")),
        (tried(2, &["t2", "t1"]), Some("t2")),
        (tried(2, &["t1", "t2"]), Some("t1")),
        (tried(3, &["t1", "t2"]), None),
    ] {
        let seen = seen(
            reads(vec![server("a", json!({}))]),
            running(vec![row.clone()]),
        );
        let decision = decide(&seen, now());
        let moves = decision.actions.iter().find_map(|action| match action {
            Action::Move { target, .. } => target.as_deref(),
            _ => None,
        });
        assert_eq!(moves, expected, "{row:?}");
        let failed = decision.status.instances[0].state == InstanceState::Failed;
        assert_eq!(failed, expected.is_none(), "{row:?}");
    }
}

#[test]
fn an_error_that_a_move_left_behind_is_repaired_when_the_guest_runs() {
    let mut tried = moving("a");
    tried.state = InstanceState::Pending;
    let broken = || reads(vec![server("a", json!({ "status": "ERROR" }))]);
    let mut seen = seen(broken(), running(vec![tried.clone()]));
    assert!(decide(&seen, now()).actions.contains(&Action::ReadRunning));
    seen.reads.running = read(BTreeSet::from(["a".to_owned()]));
    let repair = Action::Repair {
        server: "a".to_owned(),
    };
    assert!(decide(&seen, now()).actions.contains(&repair));

    // Nobody sees it running: it is left alone.
    seen.reads.running = read(BTreeSet::new());
    let decision = decide(&seen, now());
    assert!(!decision.actions.contains(&repair));
    assert_eq!(row(&decision, "a").state, InstanceState::Blocked);

    // One that was never moved has another story.
    change(&mut seen, |eviction| {
        eviction.status = Some(running(Vec::new()));
    });
    seen.reads.running = read(BTreeSet::from(["a".to_owned()]));
    assert!(!decide(&seen, now()).actions.contains(&repair));

    // Somebody does not want it.
    change(&mut seen, |eviction| {
        eviction.status = Some(running(vec![tried]));
    });
    seen.policy = Arc::new(Policy {
        reset_errors: false,
        ..Policy::default()
    });
    assert!(!decide(&seen, now()).actions.contains(&repair));
}

#[test]
fn w6_one_that_takes_too_long_is_aborted() {
    let mut row_late = moving("a");
    row_late.deadline = Some(Time(ago(1)));
    let mut late = seen(reads(vec![server("a", json!({}))]), running(vec![row_late]));
    late.reads.migrations = read(vec![migration(6, "a", "running")]);
    let abort = Action::Abort {
        server: "a".to_owned(),
        migration: 6,
    };
    let decision = decide(&late, now());
    assert!(decision.actions.contains(&abort));
    assert!(row(&decision, "a").error.is_some());

    // Nova cannot: that is said, and its end is awaited.
    let refused = Some("400: not now".to_owned());
    late.reads.aborts.insert(
        "a".to_owned(),
        Read {
            at: now(),
            value: refused,
        },
    );
    let decision = decide(&late, now());
    assert!(!decision.actions.contains(&abort), "not at once again");
    assert!(
        row(&decision, "a")
            .error
            .as_ref()
            .unwrap()
            .contains("400: not now")
    );
    assert_eq!(row(&decision, "a").state, InstanceState::Moving);
}

#[test]
fn one_that_does_not_converge_gets_what_the_policy_says() {
    let mut stalled = seen(
        reads(vec![server("a", json!({}))]),
        running(vec![moving("a")]),
    );
    stalled.reads.migrations = read(vec![migration(6, "a", "running")]);
    let stall = Policy::default().stall;
    let before = Transfer::next(None, ago(200), 500, 1000, stall);
    let transfer = Transfer::next(Some(&before), now(), 500, 1000, stall);
    stalled.reads.transfers.insert("a".to_owned(), transfer);
    let does = |seen: &Seen, policy: Stalled| {
        let mut seen = seen.clone();
        seen.policy = Arc::new(Policy {
            stalled: policy,
            ..Policy::default()
        });
        let actions = decide(&seen, now()).actions;
        let has = |wanted: &str| actions.iter().any(|one| one.name() == wanted);
        (has("force-complete"), has("abort"))
    };
    assert_eq!(does(&stalled, Stalled::Wait), (false, false));
    assert_eq!(does(&stalled, Stalled::ForceComplete), (true, false));
    assert_eq!(does(&stalled, Stalled::Abort), (false, true));
    stalled.reads.forced.insert("a".to_owned());
    assert_eq!(
        does(&stalled, Stalled::ForceComplete),
        (false, false),
        "once"
    );
    let decision = decide(&stalled, now());
    assert_eq!(row(&decision, "a").progress, Some(50));
}

#[test]
fn a_cancelled_eviction_aborts_and_leaves_the_rest() {
    let rows = vec![moving("a"), EvictionInstance::new("b")];
    let servers = vec![
        server("a", json!({ "status": "MIGRATING" })),
        server("b", json!({})),
    ];
    let mut cancelled = seen(reads(servers), running(rows));
    cancelled.reads.migrations = read(vec![migration(6, "a", "running")]);
    change(&mut cancelled, |eviction| eviction.spec.cancel = Some(true));
    let decision = decide(&cancelled, now());
    assert!(decision.actions.contains(&Action::Abort {
        server: "a".to_owned(),
        migration: 6
    }));
    assert_eq!(row(&decision, "b").state, InstanceState::Cancelled);
    assert_eq!(
        decision.status.outcome, None,
        "the end of the abort is awaited"
    );
    cancelled.reads.migrations = read(vec![migration(6, "a", "cancelled")]);
    cancelled.reads.servers = read(vec![server("a", json!({})), server("b", json!({}))]);
    let decision = decide(&cancelled, now());
    assert_eq!(
        decision.status.outcome, None,
        "what the abort has left is looked at"
    );
    change(&mut cancelled, |eviction| {
        eviction.status = Some(decision.status.clone());
    });
    let later = now() + SignedDuration::from_secs(1);
    cancelled.reads.servers.as_mut().unwrap().at = later;
    assert_eq!(
        decide(&cancelled, later).status.outcome,
        Some(Outcome::Cancelled)
    );
}

#[test]
fn a_dead_host_is_waited_for_and_given_up() {
    let mut dead = seen(
        reads(vec![server("a", json!({}))]),
        running(vec![EvictionInstance::new("a")]),
    );
    if let Ok(Some(identity)) = &mut dead.source.identity {
        identity.service.state = cobalt_openstack::compute::ServiceState::Down;
    }
    let decision = decide(&dead, now());
    assert_eq!(
        decision.status.waiting_for.as_ref().unwrap().reason,
        "HostDown"
    );
    assert!(
        !decision
            .actions
            .iter()
            .any(|one| matches!(one, Action::Move { .. }))
    );
    change(&mut dead, |eviction| {
        eviction.status = Some(decision.status.clone());
    });
    let decision = decide(&dead, now() + SignedDuration::from_mins(11));
    assert_eq!(decision.status.outcome, Some(Outcome::Failed));
    assert!(row(&decision, "a").error.as_ref().unwrap().contains("down"));
}

#[test]
fn what_another_eviction_has_in_hand_is_left_to_it() {
    let mut second = seen(reads(vec![server("a", json!({}))]), running(Vec::new()));
    second.taken.insert("a".to_owned(), "first".to_owned());
    let decision = decide(&second, now());
    assert!(
        !decision
            .actions
            .iter()
            .any(|one| matches!(one, Action::Move { .. }))
    );
    assert_eq!(
        decision.status.waiting_for.as_ref().unwrap().reason,
        "OtherEviction"
    );
}

#[test]
fn nothing_is_concluded_while_nova_is_away() {
    let mut away = seen(reads(Vec::new()), running(vec![moving("a")]));
    away.reads.trouble = Some(Trouble {
        text: "503".to_owned(),
        count: 1,
        retry_at: now() + SignedDuration::from_secs(4),
    });
    let decision = decide(&away, now());
    assert!(decision.actions.is_empty());
    assert_eq!(decision.status.waiting_for.as_ref().unwrap().reason, "Nova");
    assert_eq!(row(&decision, "a").state, InstanceState::Moving);
    assert_eq!(decision.wake, Some(now() + SignedDuration::from_secs(4)));
}

#[test]
fn what_has_not_changed_is_not_said_anew() {
    let mut same = seen(
        reads(vec![server("a", json!({}))]),
        running(vec![moving("a")]),
    );
    same.reads.migrations = read(vec![migration(6, "a", "running")]);
    same.reads.asked.insert(
        "a".to_owned(),
        Asked::Accepted {
            at: ago(5),
            request_id: None,
        },
    );
    let first = decide(&same, now());
    change(&mut same, |eviction| {
        eviction.status = Some(first.status.clone());
    });
    let second = decide(&same, now() + SignedDuration::from_millis(700));
    assert_eq!(first.status, second.status);
}

/// A cold migration has to be confirmed, and its record may come later than the answer: one that has
/// left is not believed to have left by itself before migrations were read once more.
#[test]
fn what_is_not_listed_any_more_may_have_a_migration_that_is_not_known_yet() {
    let mut cold = moving("a");
    cold.method = Some(Method::Cold);
    let mut left = seen(reads(Vec::new()), running(vec![cold]));
    left.reads.migrations.as_mut().unwrap().at = ago(1);
    let asks = |seen: &Seen, wanted: &str| {
        let actions = decide(seen, now()).actions;
        actions.iter().any(|one| one.name() == wanted)
    };
    assert!(asks(&left, "read-migrations") && !asks(&left, "read-server"));
    left.reads.migrations = read(vec![migration(6, "a", "finished")]);
    assert!(asks(&left, "confirm"));
    // There is none, and never was.
    left.reads.migrations = Some(Read {
        at: now() + SignedDuration::from_millis(1),
        value: Vec::new(),
    });
    assert!(asks(&left, "read-server"));
}

/// A failed or aborted live migration leaves ERROR behind, which an older list does not show.
#[test]
fn after_a_failed_attempt_the_server_is_looked_at_anew() {
    let tried = EvictionInstance {
        since: Some(Time(ago(16))),
        attempt: Some(1),
        ..EvictionInstance::new("a")
    };
    let list = Action::ReadServers {
        host: HOST.to_owned(),
    };
    let moves = |action: &Action| matches!(action, Action::Move { .. });
    // The end of the attempt is kept as a full second: a list of that second may be older.
    for (listed, is_new) in [(ago(16), false), (ago(15), true)] {
        let mut reads = reads(vec![server("a", json!({}))]);
        reads.servers.as_mut().unwrap().at = listed;
        let decision = decide(&seen(reads, running(vec![tried.clone()])), now());
        assert_eq!(decision.actions.contains(&list), !is_new, "{decision:#?}");
        assert_eq!(decision.actions.iter().any(moves), is_new, "{decision:#?}");
    }
}

/// A drain with moves that took so many seconds each, and others that Nova took so many
/// milliseconds ago; migrations were read just now.
fn underway(took: &[i64], asked: &[i64]) -> Seen {
    let mut rows = Vec::new();
    let mut migrations = Vec::new();
    let mut taken = BTreeMap::new();
    for (id, milliseconds) in (100..).zip(asked) {
        let name = format!("m{id}");
        let at = now() - SignedDuration::from_millis(*milliseconds);
        migrations.insert(0, migration(id, &name, "running"));
        taken.insert(
            name.clone(),
            Asked::Accepted {
                at,
                request_id: None,
            },
        );
        rows.push(moving(&name));
    }
    for (id, seconds) in (6..100).rev().zip(took) {
        let name = format!("d{id}");
        let mut ended = migration(id, &name, "completed");
        ended.created_at = Some(ago(*seconds));
        ended.updated_at = Some(now());
        migrations.push(ended);
        rows.push(EvictionInstance {
            state: InstanceState::Moved,
            since: Some(Time(now())),
            migration_id: Some(id),
            ..EvictionInstance::new(name)
        });
    }
    let mut seen = seen(reads(vec![server("m100", json!({}))]), running(rows));
    seen.reads.migrations = read(migrations);
    seen.reads.asked = taken;
    seen
}

#[test]
fn migrations_are_looked_at_when_they_should_be_at_their_end() {
    for (what, took, asked, wait) in [
        ("nothing is known", &[][..], &[0][..], 1250),
        ("one is overdue: not at once again", &[2], &[9000], 1000),
        ("a little later than usual", &[2], &[0], 2500),
        ("the mean counts", &[1, 2, 1, 2], &[0], 1875),
        ("a quick one is not overlooked", &[60], &[0], 5500),
        ("one alone that takes long", &[60], &[20_000], 5000),
        ("others go on meanwhile", &[1], &[9000, 9000, 9000], 1300),
        ("many", &[1], &[9000; 12], 1600),
        ("many that take long", &[9], &[9000; 12], 3000),
        ("the first of them", &[3], &[2000, 0], 1500),
    ] {
        let decision = decide(&underway(took, asked), now());
        let wake = decision.wake.unwrap().duration_since(now());
        assert_eq!(wake, SignedDuration::from_millis(wait), "{what}");
        let looks = |one: &Action| matches!(one, Action::ReadMigrations { .. });
        assert!(!decision.actions.iter().any(looks), "{what}");
    }
}

#[test]
fn placement_says_when_to_look() {
    let looks = |seen: &Seen, later: i64| {
        let decision = decide(seen, now() + SignedDuration::from_millis(later));
        let mut actions = decision.actions.iter();
        actions.any(|one| matches!(one, Action::ReadMigrations { .. }))
    };
    // Asked so many milliseconds ago, who holds something, and when migrations are looked at.
    type Case = (
        &'static str,
        &'static [i64],
        &'static [&'static str],
        &'static [(i64, bool)],
    );
    let cases: [Case; 9] = [
        (
            "its migration holds it",
            &[900],
            &["x"],
            &[(1250, false), (3900, false)],
        ),
        ("it has ended", &[900], &[], &[(399, false), (400, true)]),
        (
            "a stranger is none of ours",
            &[900],
            &["stranger"],
            &[(400, true)],
        ),
        (
            "others may join",
            &[900, 900],
            &["x"],
            &[(999, false), (1000, true)],
        ),
        (
            "all have ended",
            &[900, 900],
            &[],
            &[(399, false), (400, true)],
        ),
        (
            "two are on their way",
            &[900, 900],
            &["x", "y"],
            &[(1600, false)],
        ),
        ("it has not begun yet", &[900], &["m100"], &[(1250, false)]),
        (
            "it never began",
            &[9000],
            &["m100"],
            &[(999, false), (1000, true)],
        ),
        (
            "it was asked for after the glance",
            &[-100],
            &[],
            &[(1250, false)],
        ),
    ];
    for (what, asked, holders, expected) in cases {
        let mut seen = underway(&[], asked);
        let holders = holders.iter().map(|one| (*one).to_owned()).collect();
        seen.reads.holders = read(holders);
        seen.reads.strangers = ["stranger".to_owned()].into();
        for (later, is_due) in expected {
            assert_eq!(looks(&seen, *later), *is_due, "{what} after {later} ms");
        }
    }
    // What is old says nothing, and Placement is asked anew.
    let mut seen = underway(&[], &[900]);
    seen.reads.holders = read(["x".to_owned()].into());
    assert!(looks(&seen, 4001));
    let decision = decide(&seen, now() + SignedDuration::from_millis(400));
    let mut actions = decision.actions.iter();
    assert!(actions.any(|one| matches!(one, Action::ReadHolders { .. })));
}

#[test]
fn what_placement_says_has_ended_leaves_its_place_to_another() {
    // Who holds something, with one under way, and whether the next is begun.
    for (what, holders, asked, expected) in [
        ("it has ended", &["next"][..], 900, true),
        ("its migration holds it", &["next", "x"], 900, false),
        ("it was asked for after the glance", &["next"], -100, false),
        ("it never began", &["next", "m100"], 9000, false),
        ("somebody else came", &["next", "new"], 900, false),
        ("a stranger was there", &["next", "stranger"], 900, true),
    ] {
        let mut seen = underway(&[], &[asked]);
        // The third waits for a place, too: what came of the first has time.
        let listed = ["m100", "next", "third"].map(|id| server(id, json!({})));
        let listed = listed.to_vec();
        seen.reads.servers = read(listed);
        seen.reads.targets = read(Ok(BTreeMap::from([(
            "next".to_owned(),
            vec!["target".to_owned()],
        )])));
        let holders = holders.iter().chain(&["third"]);
        seen.reads.holders = read(holders.map(|one| (*one).to_owned()).collect());
        seen.reads.strangers = ["stranger".to_owned()].into();
        for limited_by_the_eviction in [true, false] {
            let mut seen = seen.clone();
            if limited_by_the_eviction {
                change(&mut seen, |eviction| eviction.spec.parallelism = Some(1));
            } else {
                seen.room.limits = Limits {
                    source: 1,
                    target: 1,
                    zone: 1,
                    cluster: 1,
                };
            }
            let decision = decide(&seen, now());
            let mut actions = decision.actions.iter();
            let begun =
                actions.any(|one| matches!(one, Action::Move { server, .. } if server == "next"));
            assert_eq!(begun, expected, "{what}");
            let later = now() + SignedDuration::from_millis(1999);
            let decision = decide(&seen, later);
            let mut actions = decision.actions.iter();
            let looks = actions.any(|one| matches!(one, Action::ReadMigrations { .. }));
            assert!(!looks || !expected, "{what}: what came of it has time");
            assert_eq!(
                row(&decision, "m100").state,
                InstanceState::Moving,
                "{what}"
            );
        }
    }
}

#[test]
fn migrations_from_before_a_restart_are_no_strangers() {
    let holders = BTreeSet::from(["a".to_owned(), "x".to_owned()]);
    for (rows, expected) in [
        (
            vec![EvictionInstance::new("a")],
            BTreeSet::from(["x".to_owned()]),
        ),
        (vec![moving("b")], BTreeSet::new()),
    ] {
        let seen = seen(reads(vec![server("a", json!({}))]), running(rows));
        let mut reads = Reads {
            targets: None,
            ..seen.reads
        };
        reads.meet(&seen.eviction, holders.clone());
        assert_eq!(reads.strangers, expected);
    }
}

#[test]
fn an_empty_list_counts_as_two_where_nobody_holds_anything() {
    let moved = EvictionInstance {
        state: InstanceState::Moved,
        since: Some(Time(ago(5))),
        ..EvictionInstance::new("a")
    };
    let mut seen = seen(reads(Vec::new()), running(vec![moved]));
    seen.reads.empties = vec![now()];
    seen.reads.libvirt = later(silent());
    let later = now() + SignedDuration::from_millis(100);
    for (holders, at, ends) in [
        (&[][..], later, true),
        (&[], now(), false),
        (&["somebody"], later, false),
    ] {
        let value = holders.iter().map(|one| (*one).to_owned()).collect();
        seen.reads.holders = Some(Read { at, value });
        let decision = decide(&seen, later);
        let asks = decision
            .actions
            .iter()
            .any(|one| matches!(one, Action::ReadHolders { .. }));
        assert_eq!(decision.status.outcome.is_some(), ends, "{holders:?}");
        assert_eq!(asks, at == now(), "{holders:?}");
    }
    // Somebody holds something, and Nova knows nobody: it is asked a second time.
    let decision = decide(&seen, now() + SignedDuration::from_secs(1));
    assert!(decision.actions.contains(&Action::ReadServers {
        host: HOST.to_owned()
    }));
}

#[test]
fn only_the_newest_moves_say_how_long_one_takes() {
    let took = [[2; 8].as_slice(), &[60; 8]].concat();
    let decision = decide(&underway(&took, &[0]), now());
    let wake = decision.wake.unwrap().duration_since(now());
    assert_eq!(wake, SignedDuration::from_millis(2500));
}

#[test]
fn a_request_without_an_answer_is_not_looked_at() {
    let mut seen = underway(&[1], &[0]);
    seen.reads.asked.insert("m100".to_owned(), Asked::Waiting);
    let decision = decide(&seen, now() + SignedDuration::from_secs(10));
    let looks = |one: &Action| matches!(one, Action::ReadMigrations { .. });
    assert!(!decision.actions.iter().any(looks));
}

#[test]
fn a_transfer_that_nova_does_not_tell_is_not_asked_for_again_at_once() {
    let mut seen = underway(&[], &[25_000]);
    change(&mut seen, |eviction| {
        let rows = eviction.status.iter_mut().flat_map(|it| &mut it.instances);
        rows.for_each(|row| row.since = Some(Time(ago(25))));
    });
    let asks = |seen: &Seen, at: Timestamp| {
        let actions = decide(seen, at).actions;
        let mut transfers = actions.iter();
        transfers.any(|one| matches!(one, Action::ReadTransfer { .. }))
    };
    assert!(asks(&seen, now()));
    seen.reads.untold("m100".to_owned(), now());
    assert!(!asks(&seen, now() + SignedDuration::from_secs(14)));
    assert!(asks(&seen, now() + SignedDuration::from_secs(15)));

    // It is told later, and has not stalled before that.
    let later = now() + SignedDuration::from_secs(600);
    let stall = seen.policy.stall;
    let told = Transfer::next(seen.reads.transfers.get("m100"), later, 50, 100, stall);
    assert!(!told.has_stalled(later, stall));
    assert_eq!(told.percent(), Some(50));
}

/// A row on its way for so many seconds, whose server Nova says it migrates.
fn said_to_migrate(seconds: i64, migrations: Vec<cobalt_openstack::compute::Migration>) -> Seen {
    let row = EvictionInstance {
        since: Some(Time(ago(seconds))),
        ..moving("a")
    };
    let migrating = json!({ "status": "MIGRATING", "OS-EXT-STS:task_state": "migrating" });
    let mut seen = seen(reads(vec![server("a", migrating)]), running(vec![row]));
    let at = ago(seconds);
    let request_id = Some("req-1".to_owned());
    let accepted = Asked::Accepted { at, request_id };
    seen.reads.asked.insert("a".to_owned(), accepted);
    seen.reads.signs.listed(&migrations, at);
    seen.reads.migrations = read(migrations);
    seen
}

fn does(decision: &Decision, wanted: &str) -> bool {
    decision.actions.iter().any(|one| one.name() == wanted)
}

fn probed(seen: &mut Seen, migration: Option<i64>, conductor: bool) {
    let open = seen.reads.migrations.as_ref().unwrap().value.iter();
    let mut open = open.filter(|one| Some(one.id) == migration);
    let probe = Probe {
        migration: open.next().map(Record::from),
        conductor,
    };
    seen.reads.probes = [(
        "a".to_owned(),
        Read {
            at: now(),
            value: probe,
        },
    )]
    .into();
}

#[test]
fn a_migration_without_a_record_that_nobody_drives_is_said_and_then_set_right() {
    let waits = |decision: &Decision| {
        let wait = decision.status.waiting_for.as_ref();
        wait.map(|wait| wait.reason.clone())
    };
    // Nova may take a moment, and nobody is alarmed by that.
    assert_eq!(waits(&decide(&said_to_migrate(30, vec![]), now())), None);
    let decision = decide(&said_to_migrate(90, vec![]), now());
    assert_eq!(waits(&decision).as_deref(), Some("NovaStuck"));
    let wait = decision.status.waiting_for.as_ref().unwrap();
    assert_eq!(wait.since, Time(ago(90)), "since the last sign of life");
    assert_eq!(wait.deadline, Some(Time(ago(90 - 300))));
    assert!(!does(&decision, "read-stuck") && !does(&decision, "repair"));

    // The patience is over.
    let mut late = said_to_migrate(301, vec![]);
    assert!(does(&decide(&late, now()), "read-stuck"));
    probed(&mut late, None, true);
    assert!(does(&decide(&late, now()), "read-running"));
    late.reads.running = read(BTreeSet::from(["a".to_owned()]));
    let decision = decide(&late, now());
    assert!(does(&decision, "repair") && !does(&decision, "move"));
    assert_eq!(row(&decision, "a").state, InstanceState::Moving);

    // It was set right: the attempt is over, and says why.
    late.reads.repaired.insert("a".to_owned(), now());
    let later = now() + SignedDuration::from_secs(1);
    late.reads.servers = Some(Read {
        at: later,
        value: vec![server("a", json!({}))],
    });
    let decision = decide(&late, later);
    let after = row(&decision, "a");
    assert_eq!(
        (after.state, after.attempt),
        (InstanceState::Pending, Some(1))
    );
    assert!(
        after.error.as_ref().unwrap().contains("Nova lost"),
        "{after:?}"
    );
}

#[test]
fn what_cannot_be_set_right_ends_with_what_to_do() {
    let mut unseen = said_to_migrate(301, vec![]);
    probed(&mut unseen, None, true);
    unseen.reads.running = read(BTreeSet::new());
    let mut unwanted = unseen.clone();
    unwanted.reads.running = read(BTreeSet::from(["a".to_owned()]));
    unwanted.policy = Arc::new(Policy {
        reset_errors: false,
        ..Policy::default()
    });
    let mut refused = unseen.clone();
    refused.reads.running = read(BTreeSet::from(["a".to_owned()]));
    refused
        .reads
        .repaired
        .insert("a".to_owned(), Timestamp::MIN);
    for seen in [unseen, unwanted, refused] {
        let decision = decide(&seen, now());
        assert!(!does(&decision, "repair"), "{decision:#?}");
        let after = row(&decision, "a");
        assert_eq!(after.state, InstanceState::Failed);
        let error = after.error.as_ref().unwrap();
        assert!(
            error.contains("openstack server set --state active a"),
            "{error}"
        );

        // Called off, it ends as well.
        let mut cancelled = seen.clone();
        change(&mut cancelled, |eviction| eviction.spec.cancel = Some(true));
        let decision = decide(&cancelled, now());
        assert_eq!(row(&decision, "a").state, InstanceState::Cancelled);
        assert_eq!(decision.status.outcome, Some(Outcome::Cancelled));
    }
}

#[test]
fn while_no_conductor_runs_nothing_is_tried_again_and_a_cancellation_ends() {
    let mut dead = said_to_migrate(301, vec![]);
    probed(&mut dead, None, false);
    dead.reads.signs.hold("a", now());
    dead.reads.running = read(BTreeSet::from(["a".to_owned()]));
    let decision = decide(&dead, now());
    let wait = decision.status.waiting_for.as_ref().unwrap();
    assert_eq!(wait.reason, "NovaConductor");
    assert!(!does(&decision, "repair") && !does(&decision, "move"));
    assert_eq!(row(&decision, "a").state, InstanceState::Moving);
    let later = now() + SignedDuration::from_secs(10);
    assert!(
        does(&decide(&dead, later), "read-stuck"),
        "it is asked for again"
    );
    change(&mut dead, |eviction| eviction.spec.cancel = Some(true));
    let decision = decide(&dead, now());
    assert_eq!(row(&decision, "a").state, InstanceState::Cancelled);
    assert_eq!(decision.status.outcome, Some(Outcome::Cancelled));
    // The agent has seen libvirt migrate it since: it is under way, whatever was answered before.
    let later = now() + SignedDuration::from_secs(1);
    dead.reads.signs.heard("a", later);
    let decision = decide(&dead, later);
    assert_eq!(row(&decision, "a").state, InstanceState::Moving);
    assert_eq!(decision.status.outcome, None);
}

#[test]
fn a_record_that_nobody_changes_is_aborted_before_the_server_is_set_right() {
    let all = vec![migration(6, "a", "running")];
    let mut stuck = said_to_migrate(301, all.clone());
    assert!(does(&decide(&stuck, now()), "read-stuck"));
    probed(&mut stuck, Some(6), true);
    stuck.reads.running = read(BTreeSet::from(["a".to_owned()]));
    let decision = decide(&stuck, now());
    assert!(does(&decision, "abort") && !does(&decision, "repair"));
    let refused = Read {
        at: ago(10),
        value: Some("400: not now".to_owned()),
    };
    stuck.reads.aborts.insert("a".to_owned(), refused);
    assert!(does(&decide(&stuck, now()), "repair"));

    // Signs of life: the agent sees it move, or its record changes.
    let mut heard = said_to_migrate(301, all.clone());
    heard.reads.signs.heard("a", ago(5));
    assert!(!does(&decide(&heard, now()), "read-stuck"));
    assert_eq!(decide(&heard, now()).status.waiting_for, None);
    let mut listed = said_to_migrate(301, all);
    let mut newer = migration(6, "a", "running");
    newer.updated_at = Some(ago(4000));
    listed.reads.signs.listed(&[newer], ago(5));
    assert!(!does(&decide(&listed, now()), "read-stuck"));
    // In the queue of nova-compute it is as alive as the one before it.
    let queue = vec![migration(7, "b", "running"), migration(6, "a", "queued")];
    let mut queued = said_to_migrate(301, queue);
    let mut newer = migration(7, "b", "running");
    newer.updated_at = Some(ago(4000));
    queued.reads.signs.listed(&[newer], ago(5));
    assert!(!does(&decide(&queued, now()), "read-stuck"));
}

#[test]
fn a_leftover_from_before_the_eviction_is_set_right_if_nova_has_no_migration_of_it() {
    let waiting = EvictionInstance {
        state: InstanceState::Blocked,
        since: Some(Time(ago(301))),
        ..EvictionInstance::new("a")
    };
    let migrating = json!({ "status": "MIGRATING", "OS-EXT-STS:task_state": "migrating" });
    let mut left = seen(reads(vec![server("a", migrating)]), running(vec![waiting]));
    assert!(does(&decide(&left, now()), "read-stuck"));
    left.reads.migrations = read(vec![migration(6, "a", "running")]);
    left.reads.running = read(BTreeSet::from(["a".to_owned()]));
    probed(&mut left, Some(6), true);
    assert!(
        !does(&decide(&left, now()), "repair"),
        "somebody's migration"
    );
    probed(&mut left, None, true);
    assert!(does(&decide(&left, now()), "repair"));
}

#[test]
fn a_plan_says_that_nothing_can_leave_a_host_that_is_down() {
    let mut plan = seen(reads(vec![server("a", json!({}))]), running(Vec::new()));
    change(&mut plan, |eviction| eviction.spec.dry_run = Some(true));
    let verdict = |seen: &Seen| {
        let decision = decide(seen, now());
        let preflight = row(&decision, "a").preflight.clone().unwrap();
        (preflight, decision.status)
    };
    assert_eq!(verdict(&plan).0.verdict, Verdict::Movable);
    if let Ok(Some(identity)) = &mut plan.source.identity {
        identity.service.state = cobalt_openstack::compute::ServiceState::Down;
    }
    let (preflight, status) = verdict(&plan);
    assert_eq!(preflight.verdict, Verdict::Blocked);
    assert_eq!(preflight.reasons[0].reason, "HostDown");
    let message = preflight.reasons[0].message.as_ref().unwrap();
    assert!(message.contains("bring it back"), "{message}");
    let said = conditions::find(&status.conditions, EvictionCondition::Evicting).unwrap();
    assert!(
        said.message.contains("0 can be moved, 1 cannot"),
        "{}",
        said.message
    );
}

#[test]
fn an_id_that_was_never_on_the_host_is_an_error() {
    let elsewhere = |on: Option<&str>| Read {
        at: now(),
        value: match on {
            None => Place::Gone,
            Some("") => Place::Offloaded,
            Some(host) => place_on(host),
        },
    };
    let left = |ended: i64| {
        let mut left = migration(6, "a", "completed");
        left.updated_at = Some(ago(ended));
        vec![left]
    };
    // Where it is, where it was when it was deleted, migrations off the host, and what is said.
    let other = Some("hv9".to_owned());
    for (on, deleted, migrations, state, text) in [
        (
            None,
            None,
            vec![],
            InstanceState::Failed,
            "no server with this id",
        ),
        (
            None,
            other,
            vec![],
            InstanceState::Failed,
            "never on source",
        ),
        (None, Some(HOST.to_owned()), vec![], InstanceState::Gone, ""),
        (
            Some("t1"),
            None,
            vec![],
            InstanceState::Failed,
            "it is on t1",
        ),
        (
            Some("t1"),
            None,
            left(3600),
            InstanceState::Failed,
            "it is on t1",
        ),
        (Some("t1"), None, left(5), InstanceState::Moved, ""),
        (Some(""), None, vec![], InstanceState::Failed, "on no host"),
    ] {
        for dry_run in [false, true] {
            let here = server("b", json!({}));
            let mut asked = seen(reads(vec![here]), running(Vec::new()));
            change(&mut asked, |eviction| {
                eviction.spec.instances = vec!["a".to_owned()];
                eviction.spec.dry_run = Some(dry_run);
                eviction.metadata.creation_timestamp = Some(Time(ago(60)));
            });
            asked.reads.migrations = read(migrations.clone());
            let before = decide(&asked, now());
            assert!(does(&before, "read-server"));
            assert_eq!(before.status.outcome, None, "it is looked for first");
            asked.reads.elsewhere = [("a".to_owned(), elsewhere(on))].into();
            asked.reads.libvirt = later(silent());
            asked.reads.deleted = [("a".to_owned(), deleted.clone())].into();
            let decision = decide(&asked, now());
            let after = row(&decision, "a");
            assert_eq!(after.state, state, "{after:#?}");
            let failed = state == InstanceState::Failed;
            let outcome = if failed {
                Outcome::Failed
            } else {
                Outcome::Succeeded
            };
            assert_eq!(decision.status.outcome, Some(outcome), "{after:#?}");
            assert!(after.error.as_deref().unwrap_or_default().contains(text));
            if failed {
                let preflight = after.preflight.as_ref().unwrap();
                assert_eq!(preflight.verdict, Verdict::Blocked);
                assert_eq!(preflight.reasons[0].reason, "NotOnHost");
            }
        }
    }
}

#[test]
fn an_instance_that_was_on_the_host_and_left_by_itself_is_no_error() {
    let listed = EvictionInstance {
        status: Some("ACTIVE".to_owned()),
        ..EvictionInstance::new("a")
    };
    let mut left = seen(reads(Vec::new()), running(vec![listed]));
    change(&mut left, |eviction| {
        eviction.spec.instances = vec!["a".to_owned()];
    });
    left.reads.elsewhere = [(
        "a".to_owned(),
        Read {
            at: now(),
            value: place_on("t1"),
        },
    )]
    .into();
    assert_eq!(row(&decide(&left, now()), "a").state, InstanceState::Moved);
    left.reads.elsewhere = [(
        "a".to_owned(),
        Read {
            at: now(),
            value: Place::Gone,
        },
    )]
    .into();
    assert_eq!(row(&decide(&left, now()), "a").state, InstanceState::Gone);
}

#[test]
fn what_no_host_takes_is_said_with_the_real_reason() {
    let survey = |closed, full, apart| Survey {
        others: 3,
        closed,
        full,
        apart,
        ..Survey::default()
    };
    for (survey, reason, text) in [
        (
            survey(3, 0, 0),
            "NoCapacity",
            "3 disabled, in maintenance or being drained",
        ),
        (survey(1, 2, 0), "NoCapacity", "2 without room"),
        (
            survey(1, 0, 2),
            "AffinityGroup",
            "2 taken by another member",
        ),
    ] {
        let mut reads = reads(vec![server("a", json!({}))]);
        reads.targets = read(Ok([("a".to_owned(), Vec::new())].into()));
        reads.surveys = [("a".to_owned(), survey)].into();
        let judged = judge(&server("a", json!({})), &EvictionInstance::new("a"), &reads);
        assert_eq!(judged.preflight.verdict, Verdict::Blocked);
        let finding = &judged.preflight.reasons[0];
        assert_eq!(finding.reason, reason);
        let message = finding.message.as_ref().unwrap();
        assert!(message.contains(text), "{message}");
    }
    // Another zone may not be for it.
    let mut reads = reads(vec![server("a", json!({}))]);
    let survey = Survey {
        hosts: vec!["t1".to_owned(), "t2".to_owned()],
        of_other_zones: true,
        ..survey(3, 0, 0)
    };
    reads.surveys = [("a".to_owned(), survey)].into();
    let judged = judge(&server("a", json!({})), &EvictionInstance::new("a"), &reads);
    assert_eq!(judged.preflight.verdict, Verdict::Unknown);
    assert!(judged.method.is_some(), "it is tried");
}

#[test]
fn stamps_of_a_clock_that_was_set_back_neither_block_nor_burn_attempts() {
    let ahead = |hours: i64| Time(now() + SignedDuration::from_hours(hours));
    let mut row_ahead = moving("a");
    (row_ahead.since, row_ahead.deadline) = (Some(ahead(3)), Some(ahead(4)));
    let failed = EvictionInstance {
        since: Some(ahead(3)),
        attempt: Some(1),
        ..EvictionInstance::new("b")
    };
    let mut status = running(vec![row_ahead, failed]);
    status.started_at = Some(ahead(3));
    let servers = vec![server("a", json!({})), server("b", json!({}))];
    let mut back = seen(reads(servers), status);
    back.reads.migrations = read(vec![migration(6, "a", "running")]);
    let decision = decide(&back, now());
    assert_eq!(decision.status.started_at, Some(Time(now())));
    let moved = row(&decision, "a");
    assert_eq!(
        (moved.state, moved.attempt),
        (InstanceState::Moving, Some(1))
    );
    assert_eq!(moved.since, Some(Time(now())));
    let hour = Policy::default().instance_deadline;
    assert_eq!(moved.deadline, Some(Time(now() + hour)));
    assert_eq!(row(&decision, "b").since, Some(Time(now())));
    // The next attempt comes after its pause, and not after three hours.
    change(&mut back, |eviction| {
        eviction.status = Some(decision.status.clone());
    });
    let later = now() + SignedDuration::from_secs(11);
    back.reads.servers.as_mut().unwrap().at = later;
    let decision = decide(&back, later);
    assert_eq!(
        row(&decision, "b").state,
        InstanceState::Moving,
        "{decision:#?}"
    );
}

#[test]
fn what_passed_while_nobody_looked_is_given_a_little_time() {
    // The clock was set forward while the operator was restarted.
    let mut late = moving("a");
    (late.since, late.deadline) = (Some(Time(ago(9000))), Some(Time(ago(5400))));
    let mut status = running(vec![late]);
    status.started_at = Some(Time(ago(9000)));
    let mut seen = seen(
        reads(vec![server("a", json!({ "status": "MIGRATING" }))]),
        status,
    );
    change(&mut seen, |eviction| {
        eviction.spec.deadline = Some("2h".to_owned());
    });
    seen.reads.migrations = read(vec![migration(6, "a", "running")]);
    seen.reads.signs.heard("a", now());
    seen.reads.watched_since = Some(ago(10));
    let decision = decide(&seen, now());
    assert!(!does(&decision, "abort"), "{decision:#?}");
    assert!(
        decision.wake.unwrap() > now(),
        "nobody turns without a pause"
    );
    seen.reads.watched_since = Some(ago(301));
    let decision = decide(&seen, now());
    assert!(does(&decision, "abort"));
    let said = conditions::find(&decision.status.conditions, EvictionCondition::Evicting).unwrap();
    assert!(
        said.message.contains("the deadline passed"),
        "{}",
        said.message
    );
}
