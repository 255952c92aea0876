//! Recorded failures, and the decisions about them as tables.

use std::time::{Duration, Instant};

use cobalt_api::conditions::{HypervisorCondition, Status};
use cobalt_api::hypervisor::HaPolicy;
use cobalt_libvirt::{
    Domain, DomainState, DomainStatus, Event, IoErrorAction, Lifecycle, WatchdogAction,
    lifecycle_detail as detail,
};
use proptest::prelude::*;
use uuid::Uuid;

use super::decide::{
    Action, Case, HaConfig, History, Record, Restart, Situation, decide, statement,
};
use super::trigger::{Duty, Failure, Memory, Trigger, by_state};
use crate::lease::Holder;

fn domain() -> Domain {
    Domain {
        name: "ev".into(),
        uuid: Uuid::from_u128(9),
        id: Some(3),
    }
}

fn lifecycle(event: Lifecycle, detail: i32) -> Event {
    Event::Lifecycle {
        domain: domain(),
        event,
        detail,
    }
}

fn watchdog(action: WatchdogAction) -> Event {
    Event::Watchdog {
        domain: domain(),
        action,
    }
}

fn io_error(action: IoErrorAction) -> Event {
    Event::IoError {
        domain: domain(),
        source: "/d.qcow2".into(),
        device: "ide0-0-0".into(),
        action,
        reason: "enospc".into(),
    }
}

fn reboot() -> Event {
    Event::Reboot { domain: domain() }
}

fn memory_failure(action: i32) -> Event {
    Event::MemoryFailure {
        domain: domain(),
        recipient: 1,
        action,
        flags: 0,
    }
}

/// The failures in a sequence of events, and whether they are ours.
fn failures(events: &[Event]) -> Vec<(Trigger, bool)> {
    let mut memory = Memory::default();
    let now = Instant::now();
    events
        .iter()
        .filter_map(|event| memory.read(event, now))
        .map(|(_, failure)| (failure.trigger, failure.duty == Duty::Ours))
        .collect()
}

const STOPPED_FAILED: fn() -> Event = || lifecycle(Lifecycle::Stopped, detail::STOPPED_FAILED);

/// A name, events, and the failures in them.
type Recorded = (&'static str, Vec<Event>, Vec<(Trigger, bool)>);

#[test]
fn w80_every_failure_that_libvirt_tells_of_is_seen() {
    let crashed = lifecycle(Lifecycle::Crashed, detail::CRASHED_PANICKED);
    let cases: Vec<Recorded> = vec![
        (
            "QEMU was killed",
            vec![STOPPED_FAILED()],
            vec![(Trigger::Crash, true)],
        ),
        (
            "a panic that is kept",
            vec![
                lifecycle(Lifecycle::Suspended, detail::SUSPENDED_PAUSED),
                crashed.clone(),
            ],
            vec![(Trigger::Panic, true)],
        ),
        (
            "a panic that ends the process",
            vec![
                crashed,
                lifecycle(Lifecycle::Stopped, detail::STOPPED_CRASHED),
            ],
            vec![(Trigger::Panic, true), (Trigger::Crash, true)],
        ),
        (
            "a panic with a crash kernel",
            vec![lifecycle(Lifecycle::Crashed, detail::CRASHED_CRASHLOADED)],
            vec![(Trigger::Panic, false)],
        ),
        (
            "a watchdog that pauses",
            vec![
                watchdog(WatchdogAction::Pause),
                lifecycle(Lifecycle::Suspended, detail::SUSPENDED_WATCHDOG),
            ],
            vec![(Trigger::Watchdog, true)],
        ),
        (
            "a watchdog that does nothing",
            vec![watchdog(WatchdogAction::None)],
            vec![(Trigger::Watchdog, true)],
        ),
        (
            "a watchdog that resets",
            vec![watchdog(WatchdogAction::Reset), reboot(), reboot()],
            vec![(Trigger::Watchdog, false)],
        ),
        (
            "a watchdog that powers off",
            vec![watchdog(WatchdogAction::PowerOff), STOPPED_FAILED()],
            vec![(Trigger::Watchdog, false)],
        ),
        (
            "a watchdog that shuts down",
            vec![
                watchdog(WatchdogAction::Shutdown),
                lifecycle(Lifecycle::Shutdown, detail::SHUTDOWN_GUEST),
                lifecycle(Lifecycle::Stopped, detail::STOPPED_SHUTDOWN),
            ],
            vec![(Trigger::Watchdog, false)],
        ),
        (
            "a disk that pauses",
            vec![
                io_error(IoErrorAction::Pause),
                lifecycle(Lifecycle::Suspended, detail::SUSPENDED_IOERROR),
            ],
            vec![(Trigger::IoError, true)],
        ),
        (
            "a disk whose errors the guest gets",
            vec![
                io_error(IoErrorAction::Report),
                io_error(IoErrorAction::None),
            ],
            vec![(Trigger::IoError, false), (Trigger::IoError, false)],
        ),
        (
            "a reboot that fails",
            vec![reboot(), reboot(), STOPPED_FAILED()],
            vec![(Trigger::FailedReboot, true)],
        ),
        (
            "memory that is lost",
            vec![memory_failure(2), STOPPED_FAILED()],
            vec![
                (Trigger::MemoryFailure, false),
                (Trigger::MemoryFailure, true),
            ],
        ),
        (
            "memory that is lost, and QEMU resets",
            vec![memory_failure(3), reboot()],
            vec![(Trigger::MemoryFailure, false)],
        ),
        (
            "memory that the guest copes with",
            vec![memory_failure(0), memory_failure(1)],
            vec![],
        ),
    ];
    for (name, events, wanted) in cases {
        assert_eq!(failures(&events), wanted, "{name}");
    }
}

#[test]
fn what_people_and_migrations_do_is_no_failure() {
    let cases: Vec<(&str, Vec<Event>)> = vec![
        (
            "shut down by the guest",
            vec![
                lifecycle(Lifecycle::Shutdown, detail::SHUTDOWN_GUEST),
                lifecycle(Lifecycle::Stopped, detail::STOPPED_SHUTDOWN),
            ],
        ),
        (
            "destroyed",
            vec![
                lifecycle(Lifecycle::Shutdown, detail::SHUTDOWN_HOST),
                lifecycle(Lifecycle::Stopped, detail::STOPPED_DESTROYED),
            ],
        ),
        (
            "destroyed in the middle of a reboot",
            vec![
                reboot(),
                lifecycle(Lifecycle::Stopped, detail::STOPPED_DESTROYED),
            ],
        ),
        (
            "saved",
            vec![lifecycle(Lifecycle::Stopped, detail::STOPPED_SAVED)],
        ),
        (
            "paused and resumed",
            vec![
                lifecycle(Lifecycle::Suspended, detail::SUSPENDED_PAUSED),
                lifecycle(Lifecycle::Resumed, detail::RESUMED_UNPAUSED),
            ],
        ),
        ("rebooted", vec![reboot(), reboot()]),
        (
            "migrated away",
            vec![
                lifecycle(Lifecycle::Suspended, detail::SUSPENDED_MIGRATED),
                lifecycle(Lifecycle::Stopped, detail::STOPPED_MIGRATED),
            ],
        ),
        (
            "an arrival that was aborted",
            vec![
                lifecycle(Lifecycle::Started, detail::STARTED_MIGRATED),
                Event::ControlError { domain: domain() },
                STOPPED_FAILED(),
            ],
        ),
    ];
    for (name, events) in cases {
        assert_eq!(failures(&events), [], "{name}");
    }
}

#[test]
fn an_instance_that_may_run_elsewhere_is_not_started_here() {
    for number in [
        detail::SUSPENDED_MIGRATED,
        detail::SUSPENDED_POSTCOPY,
        detail::SUSPENDED_POSTCOPY_FAILED,
    ] {
        let events = [lifecycle(Lifecycle::Suspended, number), STOPPED_FAILED()];
        assert_eq!(failures(&events), [(Trigger::Crash, false)]);
    }
    // When the migration did not happen, it is an instance like any other.
    let back = [
        lifecycle(Lifecycle::Suspended, detail::SUSPENDED_MIGRATED),
        lifecycle(Lifecycle::Resumed, detail::RESUMED_MIGRATED),
        STOPPED_FAILED(),
    ];
    assert_eq!(failures(&back), [(Trigger::Crash, true)]);
    // And when it has come, too.
    let come = [
        lifecycle(Lifecycle::Started, detail::STARTED_MIGRATED),
        lifecycle(Lifecycle::Resumed, detail::RESUMED_MIGRATED),
        STOPPED_FAILED(),
    ];
    assert_eq!(failures(&come), [(Trigger::Crash, true)]);
}

#[test]
fn an_arrival_that_was_found_by_its_state_may_fail_too() {
    let mut memory = Memory::default();
    let status = DomainStatus {
        state: DomainState::Paused,
        reason: 2,
    };
    memory.found(domain().uuid, status, Instant::now());
    assert_eq!(memory.read(&STOPPED_FAILED(), Instant::now()), None);
}

#[test]
fn an_old_reboot_explains_nothing() {
    let mut memory = Memory::default();
    let begin = Instant::now();
    memory.read(&reboot(), begin);
    let later = begin + Duration::from_secs(60);
    let (_, failure) = memory.read(&STOPPED_FAILED(), later).unwrap();
    assert_eq!(failure.trigger, Trigger::Crash);
}

#[test]
fn the_state_tells_what_events_did_not() {
    let found = |state, reason, ran| {
        by_state(DomainStatus { state, reason }, ran).map(|failure: Failure| failure.trigger)
    };
    assert_eq!(found(DomainState::Crashed, 1, false), Some(Trigger::Panic));
    assert_eq!(found(DomainState::Paused, 5, false), Some(Trigger::IoError));
    assert_eq!(
        found(DomainState::Paused, 6, false),
        Some(Trigger::Watchdog)
    );
    assert_eq!(found(DomainState::Shutoff, 6, true), Some(Trigger::Crash));
    // It may have been off for weeks.
    assert_eq!(found(DomainState::Shutoff, 6, false), None);
    assert_eq!(found(DomainState::Shutoff, 1, true), None);
    assert_eq!(found(DomainState::Paused, 1, true), None);
    assert_eq!(found(DomainState::Running, 1, true), None);
}

fn config() -> HaConfig {
    HaConfig::default()
}

fn case(policy: HaPolicy, situation: Situation, record: Record) -> Case<'static> {
    Case {
        trigger: Trigger::Crash,
        duty: &Duty::Ours,
        situation,
        policy,
        enabled: true,
        holder: true,
        interrupted: false,
        record,
    }
}

fn record(restarts: u32, evicted: bool) -> Record {
    Record {
        restarts,
        evicted,
        failing: 1,
    }
}

#[test]
fn the_policy_decides_and_escalates() {
    use HaPolicy as P;
    use Situation as S;
    let start = Action::Restart(Restart::Start);
    let reset = Action::Restart(Restart::Reset);
    for (policy, situation, restarts, evicted, wanted) in [
        (P::Notify, S::Off, 0, false, Action::Notify),
        (P::Restart, S::Off, 0, false, start),
        (P::Restart, S::Halted, 0, false, reset),
        (P::Restart, S::Off, 2, false, start),
        // Restarted as often as it may be: away with it, once.
        (P::Restart, S::Off, 3, false, Action::Evict),
        (P::Restart, S::Off, 3, true, Action::Notify),
        // Nothing to start it from.
        (P::Restart, S::Gone, 0, false, Action::Evict),
        (P::Restart, S::Gone, 0, true, Action::Notify),
        (P::Evict, S::Off, 0, false, Action::Evict),
        (P::Evict, S::Gone, 0, false, Action::Evict),
        (P::Evict, S::Halted, 0, true, Action::Notify),
        // Somebody was faster.
        (P::Restart, S::Running, 0, false, Action::Notify),
        (P::Restart, S::Handled, 0, false, Action::Notify),
        (P::Evict, S::Running, 0, false, Action::Notify),
    ] {
        let decision = decide(
            &case(policy, situation, record(restarts, evicted)),
            &config(),
        );
        assert_eq!(
            decision.action, wanted,
            "{policy} {situation:?} {restarts} {evicted}: {}",
            decision.why
        );
        assert!(!decision.why.is_empty());
    }
}

#[test]
fn a_watchdog_that_only_reports_leaves_a_hanging_instance() {
    let hanging = Case {
        trigger: Trigger::Watchdog,
        ..case(HaPolicy::Restart, Situation::Running, record(0, false))
    };
    let decision = decide(&hanging, &config());
    assert_eq!(decision.action, Action::Restart(Restart::Reset));
}

#[test]
fn nothing_is_done_where_the_agent_may_not_or_need_not() {
    let plain = case(HaPolicy::Restart, Situation::Off, record(0, false));
    let nobody = Duty::Nobody("the watchdog resets it".into());
    for (name, case) in [
        (
            "spec.highAvailability",
            Case {
                enabled: false,
                ..plain.clone()
            },
        ),
        (
            "Lease",
            Case {
                holder: false,
                ..plain.clone()
            },
        ),
        (
            "another host",
            Case {
                interrupted: true,
                ..plain.clone()
            },
        ),
        (
            "the watchdog resets it",
            Case {
                duty: &nobody,
                ..plain
            },
        ),
    ] {
        let decision = decide(&case, &config());
        assert_eq!(decision.action, Action::Notify);
        assert!(decision.why.contains(name), "{}", decision.why);
    }
}

#[test]
fn many_instances_that_fail_are_a_failing_host() {
    for failing in 1..20 {
        let many = Record {
            failing,
            ..record(0, false)
        };
        let decision = decide(&case(HaPolicy::Restart, Situation::Off, many), &config());
        assert_eq!(decision.braked, failing > config().brake, "{failing}");
        assert_eq!(decision.action == Action::Notify, decision.braked);
    }
    // A policy that only notifies is not held back: every instance is named.
    let many = Record {
        failing: 100,
        ..record(0, false)
    };
    let decision = decide(&case(HaPolicy::Notify, Situation::Off, many), &config());
    assert!(!decision.braked);
}

#[test]
fn the_condition_says_why_no_instance_is_acted_on() {
    let say = |holder: &Holder, lapsed, enabled, braked| {
        statement(holder, lapsed, enabled, braked, &config()).map(|statement| {
            let reasons = HypervisorCondition::InstanceRecovery.reasons();
            assert!(reasons.contains(&statement.reason));
            (statement.status, statement.message)
        })
    };
    let (status, _) = say(&Holder::Me, false, true, false).unwrap();
    assert_eq!(status, Status::True);
    for (lapsed, enabled, braked, word) in [
        (true, true, false, "Lease"),
        (true, true, true, "Lease"),
        (false, false, false, "spec.highAvailability"),
        (false, true, true, "more than 5 failed within 600 s"),
    ] {
        let (status, message) = say(&Holder::Me, lapsed, enabled, braked).unwrap();
        assert_eq!(status, Status::False);
        assert!(message.contains(word), "{message}");
    }
    // Another agent speaks for the node.
    assert_eq!(say(&Holder::Other("b".into()), true, true, true), None);
    assert_eq!(say(&Holder::Unknown, true, true, true), None);
}

#[test]
fn waits_double_with_each_restart_and_history_ends_with_the_window() {
    let mut history = History::default();
    let (uuid, begin) = (domain().uuid, Instant::now());
    let settle = Duration::from_secs(1);
    for seconds in [1, 2, 4, 8, 16, 32, 64, 64, 64] {
        assert_eq!(history.wait(uuid, settle), Duration::from_secs(seconds));
        history.restarted(uuid, begin);
    }
    history.evicted(uuid, begin);
    history.failed(uuid, begin);
    let window = Duration::from_secs(600);
    history.prune(window, begin + Duration::from_secs(599));
    assert_eq!(
        history.record(uuid),
        Record {
            restarts: 9,
            evicted: true,
            failing: 1
        }
    );
    history.prune(window, begin + window);
    assert_eq!(history.record(uuid), Record::default());
}

#[test]
fn the_same_word_about_the_same_instance_is_said_once() {
    let mut history = History::default();
    let (uuid, begin) = (domain().uuid, Instant::now());
    assert!(history.is_news(uuid, Trigger::IoError, begin));
    assert!(!history.is_news(uuid, Trigger::IoError, begin));
    assert!(history.is_news(uuid, Trigger::Watchdog, begin));
    assert!(history.is_news(Uuid::from_u128(1), Trigger::IoError, begin));
}

proptest! {
    /// However an instance fails, within any window it is restarted at most as often as configured
    /// and evicted at most once.
    #[test]
    fn actions_are_bounded(
        failures in prop::collection::vec((0_u64..120, any::<bool>(), 0_usize..3), 1..300),
        restarts in 0_u32..5,
    ) {
        let config = HaConfig { restarts, ..HaConfig::default() };
        let mut history = History::default();
        let uuid = domain().uuid;
        let begin = Instant::now();
        let mut now = begin;
        let mut restarted: Vec<Instant> = Vec::new();
        let mut evicted: Vec<Instant> = Vec::new();
        for (gap, gone, policy) in failures {
            now += Duration::from_secs(gap);
            history.prune(config.window, now);
            history.failed(uuid, now);
            let situation = if gone { Situation::Gone } else { Situation::Off };
            let case = case(HaPolicy::ALL[policy], situation, history.record(uuid));
            match decide(&case, &config).action {
                Action::Restart(_) => { history.restarted(uuid, now); restarted.push(now); }
                Action::Evict => { history.evicted(uuid, now); evicted.push(now); }
                Action::Notify => {}
            }
        }
        for at in &restarted {
            let within = restarted.iter().filter(|other| *other >= at && **other < *at + config.window).count();
            prop_assert!(within <= usize::try_from(restarts).unwrap());
        }
        for at in &evicted {
            let within = evicted.iter().filter(|other| *other >= at && **other < *at + config.window).count();
            prop_assert!(within <= 1);
        }
    }
}
