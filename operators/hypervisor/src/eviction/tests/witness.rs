//! Nothing is left only if Nova, Placement and libvirt agree.

use cobalt_openstack::compute::{MigrationKind, MigrationStatus};

use super::*;
use crate::eviction::witness::{Claim, Claims, Domain};

fn moved(id: &str) -> EvictionInstance {
    EvictionInstance {
        state: InstanceState::Moved,
        since: Some(Time(ago(5))),
        ..EvictionInstance::new(id)
    }
}

fn domain(state: &str) -> Domain {
    Domain {
        runs: state == "running",
        state: state.to_owned(),
        crashed: state == "crashed",
    }
}

fn domains(all: &[(&str, &str)]) -> Report {
    let all = all.iter();
    Report::Domains(
        all.map(|(id, state)| ((*id).to_owned(), domain(state)))
            .collect(),
    )
}

/// A whole host that Nova has listed as empty twice, and nothing else is known.
fn emptied() -> Seen {
    let mut seen = seen(reads(Vec::new()), running(vec![moved("a")]));
    seen.reads.empties = vec![ago(2), now()];
    seen
}

fn claims(cell_down: bool, by: &[(&str, Claim)]) -> Claims {
    let by = by.iter();
    Claims {
        cell_down,
        by: by
            .map(|(id, claim)| ((*id).to_owned(), claim.clone()))
            .collect(),
    }
}

fn holders(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|one| (*one).to_owned()).collect()
}

fn asks(decision: &Decision, name: &str) -> bool {
    decision.actions.iter().any(|one| one.name() == name)
}

fn waits(decision: &Decision) -> Option<&str> {
    let wait = decision.status.waiting_for.as_ref();
    wait.map(|wait| wait.reason.as_str())
}

fn then() -> Timestamp {
    now() + SignedDuration::from_millis(10)
}

fn on(host: &str, busy: bool) -> Claim {
    Claim::Server(Place::On {
        host: host.to_owned(),
        status: "ACTIVE".to_owned().into(),
        busy,
        fault: None,
    })
}

#[test]
fn two_empty_lists_of_a_cell_that_is_down_are_no_success() {
    let mut seen = emptied();
    seen.reads.libvirt = later(silent());
    assert!(asks(&decide(&seen, then()), "read-holders"));

    // Placement still has the servers that Nova does not list.
    seen.reads.holders = later(holders(&["vm"]));
    let decision = decide(&seen, then());
    assert_eq!(decision.status.outcome, None);
    assert!(asks(&decision, "read-claims"));
    let unknown = Claim::Server(Place::CellDown);
    for (cell_down, claim) in [(false, unknown), (true, Claim::Nobody)] {
        seen.reads.claims = later(claims(cell_down, &[("vm", claim)]));
        let mut seen = seen.clone();
        // However long it takes.
        for hours in 0..5 {
            let at = then() + SignedDuration::from_hours(hours);
            let decision = decide(&seen, at);
            assert_eq!(decision.status.outcome, None);
            assert_eq!(waits(&decision), Some("CellDown"));
            let text = decision.status.waiting_for.clone().unwrap().message;
            assert!(text.unwrap().contains("vm"));
            change(&mut seen, |one| one.status = Some(decision.status));
        }
        assert!(asks(
            &decide(&seen, then() + SignedDuration::from_secs(5)),
            "read-servers"
        ));
    }
}

#[test]
fn a_server_whose_cell_is_down_has_not_left() {
    let found = |place: Place| {
        let mut pending = EvictionInstance::new("a");
        pending.since = Some(Time(ago(20)));
        // It was in the list of the host once.
        pending.status = Some("ACTIVE".to_owned());
        let mut seen = seen(reads(Vec::new()), running(vec![pending]));
        seen.reads.elsewhere = [("a".to_owned(), later(place).unwrap())].into();
        decide(&seen, then())
    };
    let decision = found(Place::CellDown);
    assert_eq!(row(&decision, "a").state, InstanceState::Pending);
    assert_eq!(waits(&decision), Some("CellDown"));
    let decision = found(Place::Nowhere("ERROR".to_owned().into()));
    assert_eq!(row(&decision, "a").state, InstanceState::Pending);
    assert_eq!(waits(&decision), Some("WitnessesDisagree"));
    let decision = found(Place::Offloaded);
    assert_eq!(row(&decision, "a").state, InstanceState::Moved);
    let decision = found(Place::Gone);
    assert_eq!(row(&decision, "a").state, InstanceState::Gone);
}

#[test]
fn while_a_cell_is_down_one_server_is_asked_for_and_not_all() {
    let rows = ["a", "b", "c"].map(EvictionInstance::new).to_vec();
    let mut seen = seen(reads(Vec::new()), running(rows));
    let count = |seen: &Seen| {
        let actions = decide(seen, now()).actions;
        let asked = actions.iter().filter(|one| one.name() == "read-server");
        asked.count()
    };
    assert_eq!(count(&seen), 3);
    let down = |at| Read {
        at,
        value: Place::CellDown,
    };
    seen.reads.elsewhere = [("b".to_owned(), down(now()))].into();
    assert_eq!(count(&seen), 0);
    seen.reads.elsewhere = [("b".to_owned(), down(ago(5)))].into();
    assert_eq!(count(&seen), 1);
}

#[test]
fn an_offloaded_server_has_left_when_nova_says_so_and_not_when_it_is_not_listed() {
    let mut offload = moving("a");
    offload.method = Some(Method::Offload);
    let mut seen = seen(reads(Vec::new()), running(vec![offload]));
    let decision = decide(&seen, then());
    assert_eq!(row(&decision, "a").state, InstanceState::Moving);
    assert!(asks(&decision, "read-server"));
    seen.reads.elsewhere = [("a".to_owned(), later(Place::Offloaded).unwrap())].into();
    let decision = decide(&seen, then());
    assert_eq!(row(&decision, "a").state, InstanceState::Moved);
}

#[test]
fn a_domain_that_libvirt_still_has_is_a_contradiction() {
    let mut seen = emptied();
    seen.reads.holders = later(BTreeSet::new());
    let decision = decide(&seen, then());
    assert!(asks(&decision, "read-domains"));
    assert_eq!(decision.status.outcome, None);

    seen.reads.libvirt = later(domains(&[("ghost", "shutoff")]));
    let mut at = then();
    for (seconds, reason) in [(0, "Libvirt"), (14, "Libvirt"), (2, "WitnessesDisagree")] {
        at += SignedDuration::from_secs(seconds);
        let decision = decide(&seen, at);
        assert_eq!(decision.status.outcome, None);
        assert_eq!(waits(&decision), Some(reason));
        let text = decision.status.waiting_for.clone().unwrap().message;
        assert!(text.unwrap().contains("ghost (shutoff)"));
        change(&mut seen, |one| one.status = Some(decision.status));
    }
    let over = decide(&seen, at + seen.policy.host_patience);
    assert_eq!(over.status.outcome, Some(Outcome::PartiallyFailed));

    seen.reads.libvirt = later(domains(&[]));
    let decision = decide(&seen, at);
    assert_eq!(decision.status.outcome, Some(Outcome::Succeeded));
}

#[test]
fn who_was_not_asked_is_named() {
    let mut seen = emptied();
    seen.reads.holders = later(BTreeSet::new());
    seen.reads.libvirt = later(silent());
    let decision = decide(&seen, then());
    assert_eq!(decision.status.outcome, Some(Outcome::Succeeded));
    let all = &decision.status.conditions;
    let said = conditions::find(all, EvictionCondition::Evicting).unwrap();
    assert!(said.message.contains("libvirt was not asked: a test"));
}

#[test]
fn placement_has_to_answer() {
    let mut seen = emptied();
    seen.reads.libvirt = later(domains(&[]));
    seen.reads.placement_trouble = later("it is away".to_owned());
    let decision = decide(&seen, then());
    assert_eq!(decision.status.outcome, None);
    assert_eq!(waits(&decision), Some("Placement"));
    assert!(!asks(&decision, "read-holders"));
    let decision = decide(&seen, then() + SignedDuration::from_secs(3));
    assert!(asks(&decision, "read-holders"));
}

#[test]
fn who_holds_something_of_the_host_is_told_apart() {
    let resize = |kind, status| Claim::Migration {
        server: "s".to_owned(),
        kind,
        status,
    };
    let finished = |kind| resize(kind, MigrationStatus::Finished);
    let here = domains(&[]);
    for (claim, libvirt, wait, confirms) in [
        (Claim::Nobody, silent(), None, false),
        (on("other", false), here.clone(), None, false),
        (
            on("other", false),
            silent(),
            Some("WitnessesDisagree"),
            false,
        ),
        (
            on("other", true),
            here.clone(),
            Some("WitnessesDisagree"),
            false,
        ),
        (
            on(HOST, false),
            here.clone(),
            Some("WitnessesDisagree"),
            false,
        ),
        (
            finished(MigrationKind::Resize),
            here.clone(),
            Some("UnconfirmedResize"),
            false,
        ),
        (
            finished(MigrationKind::Cold),
            here.clone(),
            Some("UnconfirmedResize"),
            true,
        ),
        (
            resize(MigrationKind::Live, MigrationStatus::Running),
            here,
            Some("MigrationUnderWay"),
            false,
        ),
    ] {
        let mut seen = emptied();
        seen.reads.holders = later(holders(&["x"]));
        seen.reads.libvirt = later(libvirt);
        seen.reads.claims = later(claims(false, &[("x", claim.clone())]));
        let decision = decide(&seen, then());
        assert_eq!(waits(&decision), wait, "{claim:?}");
        assert_eq!(decision.status.outcome, None, "{claim:?}");
        assert_eq!(asks(&decision, "confirm"), confirms, "{claim:?}");
        // The host was listed as empty after that.
        seen.reads.claims = before_the_list(claims(false, &[("x", claim.clone())]));
        let decision = decide(&seen, then());
        let outcome = wait.is_none().then_some(Outcome::Succeeded);
        assert_eq!(decision.status.outcome, outcome, "{claim:?}");
        assert_eq!(asks(&decision, "read-claims"), wait.is_some(), "{claim:?}");
    }
}

/// Read before the list of servers.
fn before_the_list<T>(value: T) -> Option<Read<T>> {
    let at = now() - SignedDuration::from_secs(1);
    Some(Read { at, value })
}

#[test]
fn a_revert_between_the_list_and_the_look_at_its_holder_is_no_empty_host() {
    // Placement had the migration; when Nova is asked who that is, it has been reverted, and its server
    // is on the host again, after the list that does not have it.
    let mut seen = emptied();
    seen.reads.holders = later(holders(&["m"]));
    seen.reads.libvirt = later(silent());
    seen.reads.claims = later(claims(false, &[("m", Claim::Nobody)]));
    let decision = decide(&seen, then() + SignedDuration::from_secs(5));
    assert_eq!(decision.status.outcome, None);
    assert!(asks(&decision, "read-servers"));
}

#[test]
fn a_resize_that_nobody_confirms_is_no_success_after_all() {
    let mut seen = emptied();
    seen.reads.holders = later(holders(&["m"]));
    seen.reads.libvirt = later(domains(&[]));
    let claim = Claim::Migration {
        server: "s".to_owned(),
        kind: MigrationKind::Resize,
        status: MigrationStatus::Finished,
    };
    seen.reads.claims = later(claims(false, &[("m", claim)]));
    let decision = decide(&seen, then());
    change(&mut seen, |one| one.status = Some(decision.status));
    let over = decide(&seen, then() + seen.policy.instance_deadline);
    assert_eq!(over.status.outcome, Some(Outcome::PartiallyFailed));
}

#[test]
fn what_another_eviction_of_the_host_has_seen_does_not_count() {
    let mut seen = seen(
        reads(Vec::new()),
        EvictionStatus {
            started_at: Some(Time(now())),
            ..EvictionStatus::default()
        },
    );
    seen.reads.libvirt = later(silent());
    seen.reads.holders = later(holders(&["x"]));
    seen.reads.claims = before_the_list(claims(false, &[("x", Claim::Nobody)]));
    // One look was before this one began.
    seen.reads.empties = vec![ago(2), now()];
    assert_eq!(decide(&seen, then()).status.outcome, None);
    change(&mut seen, |one| {
        one.status.as_mut().unwrap().started_at = Some(Time(ago(3)));
    });
    assert_eq!(
        decide(&seen, then()).status.outcome,
        Some(Outcome::Succeeded)
    );
}

#[test]
fn a_host_that_nova_never_knew_may_have_domains() {
    let mut seen = seen(Reads::default(), EvictionStatus::default());
    seen.source.identity = Ok(None);
    seen.source.was_registered = false;
    let decision = decide(&seen, then());
    assert_eq!(decision.status.outcome, None);
    assert!(asks(&decision, "read-domains"));
    seen.reads.libvirt = later(domains(&[("a", "running")]));
    let decision = decide(&seen, then());
    assert_eq!(decision.status.outcome, None);
    assert_eq!(waits(&decision), Some("WitnessesDisagree"));
}

#[test]
fn a_crashed_guest_is_not_live_migrated() {
    let active = || server("a", json!({}));
    let row = EvictionInstance::new("a");
    let mut reads = reads(vec![active()]);
    for (libvirt, method) in [
        (domains(&[("a", "running")]), Some(Method::Live)),
        (domains(&[("a", "crashed")]), None),
        (domains(&[]), None),
        // Who cannot be asked does not know better than Nova.
        (silent(), Some(Method::Live)),
    ] {
        reads.libvirt = read(libvirt);
        let judged = judge(&active(), &row, &reads);
        assert_eq!(judged.method, method, "{:?}", reads.libvirt);
        if method.is_none() {
            let finding = &judged.preflight.reasons[0];
            assert_eq!(finding.reason, "GuestNotRunning");
            assert_eq!(judged.preflight.verdict, Verdict::Blocked);
        }
    }
    // Nova has noticed.
    reads.libvirt = read(domains(&[("a", "crashed")]));
    let off = server("a", json!({ "status": "SHUTOFF" }));
    assert_eq!(judge(&off, &row, &reads).method, Some(Method::Cold));
}

#[test]
fn libvirt_is_asked_right_before_a_live_migration() {
    let mut seen = seen(reads(vec![server("a", json!({}))]), running(Vec::new()));
    seen.reads.libvirt = read(domains(&[("a", "running")]));
    assert!(asks(&decide(&seen, now()), "move"));
    let decision = decide(&seen, now() + SignedDuration::from_secs(11));
    assert!(asks(&decision, "read-domains") && !asks(&decision, "move"));
}

/// Nova says of one that it has moved to `t1`.
fn completed(libvirt: Report) -> Seen {
    let mut seen = seen(reads(Vec::new()), running(vec![moving("a")]));
    seen.reads.migrations = read(vec![migration(6, "a", "completed")]);
    seen.reads.agents = [("t1".to_owned(), later(libvirt).unwrap())].into();
    seen
}

#[test]
fn one_has_moved_when_it_runs_on_its_target() {
    let mut unasked = completed(silent());
    unasked.reads.agents.clear();
    let decision = decide(&unasked, then());
    assert_eq!(row(&decision, "a").state, InstanceState::Moving);
    assert!(asks(&decision, "read-arrivals") && !asks(&decision, "read-migrations"));

    for libvirt in [domains(&[("a", "running")]), silent()] {
        let decision = decide(&completed(libvirt), then());
        let row = row(&decision, "a");
        assert_eq!((row.state, &row.error), (InstanceState::Moved, &None));
    }
}

#[test]
fn one_that_is_in_error_or_runs_nowhere_on_its_target_has_failed() {
    for libvirt in [domains(&[]), domains(&[("a", "crashed")])] {
        let mut seen = completed(libvirt);
        let decision = decide(&seen, then());
        assert_eq!(row(&decision, "a").state, InstanceState::Moving);
        assert!(asks(&decision, "read-server"));
        change(&mut seen, |one| one.status = Some(decision.status));
        let on = |status: &str, at: Timestamp| {
            let value = Place::On {
                host: "t1".to_owned(),
                status: status.to_owned().into(),
                busy: false,
                fault: Some("the domain is gone".to_owned()),
            };
            [("a".to_owned(), Read { at, value })].into()
        };
        seen.reads.elsewhere = on("ERROR", now());
        let decision = decide(&seen, then());
        let failed = row(&decision, "a");
        assert_eq!(failed.state, InstanceState::Failed);
        let error = failed.error.as_ref().unwrap();
        assert!(
            error.contains("ERROR on t1 (the domain is gone)"),
            "{error}"
        );

        // Nova has noticed nothing.
        let late = then() + SignedDuration::from_secs(61);
        seen.reads.elsewhere = on("ACTIVE", late);
        seen.reads.agents.get_mut("t1").unwrap().at = late;
        let decision = decide(&seen, late);
        assert_eq!(row(&decision, "a").state, InstanceState::Failed);
        assert_ne!(decision.status.outcome, Some(Outcome::Succeeded));
    }
    // Its owner has stopped it since.
    let mut stopped = completed(domains(&[("a", "shutoff")]));
    let value = Place::On {
        host: "t1".to_owned(),
        status: "SHUTOFF".to_owned().into(),
        busy: false,
        fault: None,
    };
    stopped.reads.elsewhere = [("a".to_owned(), Read { at: now(), value })].into();
    let decision = decide(&stopped, then());
    assert_eq!(row(&decision, "a").state, InstanceState::Moved);
}

#[test]
fn where_no_agent_can_be_asked_nova_is_asked_once_who_is_in_error() {
    let mut moved = moved("a");
    (moved.migration_id, moved.to) = (Some(6), Some("t1".to_owned()));
    let mut seen = seen(reads(Vec::new()), running(vec![moved]));
    seen.reads.empties = vec![now()];
    seen.reads.libvirt = later(silent());
    seen.reads.holders = later(BTreeSet::new());
    seen.reads.errors = None;
    let decision = decide(&seen, then());
    assert_eq!(decision.status.outcome, None);
    assert!(asks(&decision, "read-errors"));
    let fault = |id: &str| BTreeMap::from([(id.to_owned(), "no domain".to_owned())]);
    seen.reads.errors = later(fault("another"));
    let decision = decide(&seen, then());
    assert_eq!(decision.status.outcome, Some(Outcome::Succeeded));
    seen.reads.errors = later(fault("a"));
    let decision = decide(&seen, then());
    assert_eq!(decision.status.outcome, Some(Outcome::Failed));
    assert!(
        row(&decision, "a")
            .error
            .as_ref()
            .unwrap()
            .contains("no domain")
    );
}

#[test]
fn a_host_that_the_scheduler_may_use_is_not_empty() {
    let mut seen = emptied();
    seen.reads.libvirt = later(silent());
    // It was closed, and that is too long ago.
    seen.reads.holders = later(BTreeSet::new());
    seen.reads.enabled = Some(Read {
        at: ago(3),
        value: false,
    });
    let decision = decide(&seen, then());
    assert_eq!((decision.status.outcome, waits(&decision)), (None, None));
    assert!(asks(&decision, "read-service"));

    seen.reads.enabled = later(true);
    let decision = decide(&seen, then());
    assert_eq!(decision.status.outcome, None);
    assert_eq!(waits(&decision), Some("HostDisabled"));
    assert!(!asks(&decision, "read-service"));
    change(&mut seen, |one| one.status = Some(decision.status));
    let soon = then() + SignedDuration::from_secs(2);
    let decision = decide(&seen, soon);
    assert!(asks(&decision, "read-service"));
    assert_eq!(waits(&decision), Some("HostDisabled"));
    // Nobody closes it: it does not succeed.
    let hours = then() + SignedDuration::from_hours(1);
    let outcome = decide(&seen, hours).status.outcome;
    assert_eq!(outcome, Some(Outcome::PartiallyFailed));

    // Who was let in until then is in Placement: it is asked after that.
    let closed = now() + SignedDuration::from_millis(5);
    seen.reads.enabled = Some(Read {
        at: closed,
        value: false,
    });
    let decision = decide(&seen, then());
    assert_eq!(decision.status.outcome, None);
    assert!(asks(&decision, "read-holders"));
    seen.reads.holders.as_mut().unwrap().at = closed;
    let decision = decide(&seen, then());
    assert_eq!(decision.status.outcome, Some(Outcome::Succeeded));
}
