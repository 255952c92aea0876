//! Tests of `shutdown`.

use cobalt_api::conditions::HypervisorCondition;
use cobalt_api::eviction::{EvictionSpec, EvictionStatus, Outcome};

use super::*;

fn view() -> View {
    View {
        wanted: Some(true),
        away: None,
        lock: Lock::Held,
        going: None,
        released: None,
        active: 3,
        drain: Drain::None,
        delay: Some(Duration::from_secs(1800)),
        wanted_delay: None,
        leftovers: Some(Vec::new()),
    }
}

fn running(moving: bool) -> Drain {
    Drain::Running {
        name: "hv1".into(),
        state: "1 of 3 moved".into(),
        moving,
    }
}

fn ended(outcome: &str) -> Drain {
    Drain::Ended {
        name: "hv1".into(),
        outcome: outcome.into(),
    }
}

fn release(why: &str) -> Option<Action> {
    Some(Action::Release(why.into()))
}

#[test]
fn w65_every_state_has_its_action_and_the_lock_is_let_go_of_in_the_end() {
    let going = Some(Going::Down);
    let away = Some("the bus is gone".to_owned());
    let refused = || Lock::Refused("no".into());
    let left = "the Eviction \"hv1\" has ended: Failed; 3 active instances left";
    let table = [
        // Taking and letting go of the lock.
        (
            View {
                lock: Lock::Free,
                ..view()
            },
            Some(Action::Take),
        ),
        (
            View {
                lock: Lock::Old,
                ..view()
            },
            Some(Action::Take),
        ),
        (
            View {
                lock: refused(),
                ..view()
            },
            Some(Action::Take),
        ),
        (view(), None),
        (
            View {
                lock: Lock::Free,
                away: away.clone(),
                ..view()
            },
            None,
        ),
        (
            View {
                lock: Lock::Old,
                away: away.clone(),
                ..view()
            },
            None,
        ),
        (
            View {
                wanted: None,
                lock: Lock::Free,
                ..view()
            },
            None,
        ),
        (
            View {
                wanted: None,
                ..view()
            },
            None,
        ),
        (
            View {
                wanted: Some(false),
                ..view()
            },
            release("spec.evacuateOnReboot is false"),
        ),
        (
            View {
                wanted: Some(false),
                lock: Lock::Free,
                ..view()
            },
            None,
        ),
        // A shutdown.
        (View { going, ..view() }, Some(Action::Evict)),
        (
            View {
                going,
                drain: Drain::Failing("away".into()),
                ..view()
            },
            Some(Action::Evict),
        ),
        (
            View {
                going,
                drain: running(true),
                ..view()
            },
            None,
        ),
        (
            View {
                going,
                drain: running(false),
                ..view()
            },
            None,
        ),
        (
            View {
                going,
                drain: ended("Failed"),
                ..view()
            },
            release(left),
        ),
        (
            View {
                going,
                active: 0,
                ..view()
            },
            release("no instance is active"),
        ),
        (
            View {
                going,
                active: 0,
                drain: running(false),
                ..view()
            },
            release("no instance is active"),
        ),
        // The last guest runs elsewhere, and Nova has not finished with it here.
        (
            View {
                going,
                active: 0,
                drain: running(true),
                ..view()
            },
            None,
        ),
        // A lock from before the bus was lost still holds the shutdown up.
        (
            View {
                going,
                lock: Lock::Old,
                ..view()
            },
            Some(Action::Evict),
        ),
        // Without a lock nothing can be held up, and nothing is moved away.
        (
            View {
                going,
                lock: Lock::Free,
                ..view()
            },
            None,
        ),
        (
            View {
                going,
                lock: refused(),
                ..view()
            },
            None,
        ),
        (
            View {
                going,
                lock: Lock::Free,
                drain: running(true),
                ..view()
            },
            None,
        ),
        (
            View {
                going: Some(Going::Asleep),
                ..view()
            },
            Some(Action::Evict),
        ),
        (
            View {
                going,
                wanted: Some(false),
                drain: running(true),
                ..view()
            },
            release("spec.evacuateOnReboot is false"),
        ),
        // It was called off, or the host is back: only what was made here is taken back.
        (
            View {
                leftovers: None,
                ..view()
            },
            Some(Action::Look),
        ),
        (
            View {
                leftovers: Some(vec!["hv1".into()]),
                ..view()
            },
            Some(Action::Cancel("hv1".into())),
        ),
        (
            View {
                wanted: Some(false),
                lock: Lock::Free,
                leftovers: Some(vec!["hv1".into()]),
                ..view()
            },
            Some(Action::Cancel("hv1".into())),
        ),
        // While a shutdown is under way, or logind cannot say that none is, nothing is cancelled.
        (
            View {
                going,
                drain: running(true),
                leftovers: Some(vec!["hv1".into()]),
                ..view()
            },
            None,
        ),
        (
            View {
                away: away.clone(),
                leftovers: Some(vec!["hv1".into()]),
                ..view()
            },
            None,
        ),
        // logind's limit is raised where that was asked for.
        (
            View {
                wanted_delay: Some((Duration::from_secs(3600), None)),
                ..view()
            },
            Some(Action::SetDelay(Duration::from_secs(3600))),
        ),
        (
            View {
                wanted_delay: Some((Duration::from_secs(60), None)),
                ..view()
            },
            None,
        ),
        (
            View {
                drain: running(false),
                ..view()
            },
            None,
        ),
        (
            View {
                drain: running(false),
                lock: Lock::Free,
                ..view()
            },
            Some(Action::Take),
        ),
        (
            View {
                drain: ended("Succeeded"),
                ..view()
            },
            None,
        ),
    ];
    for (view, wanted) in table {
        let (actions, statement) = decide(&view);
        assert_eq!(actions.first(), wanted.as_ref(), "{view:?}");
        let reasons = HypervisorCondition::ShutdownInhibited.reasons();
        assert!(reasons.contains(&statement.reason), "{view:?}");
        assert!(!statement.message.is_empty());
        // Nothing is said to be held without a lock.
        let held = matches!(view.lock, Lock::Held | Lock::Old);
        assert!(
            held || statement.status != Status::True,
            "{view:?}: {statement:?}"
        );
    }
}

#[test]
fn a_lock_that_is_refused_does_not_keep_the_eviction_of_an_earlier_shutdown_alive() {
    let after_a_reboot = View {
        lock: Lock::Refused("no".into()),
        leftovers: Some(vec!["hv1".into(), "hv1-0123abcd".into()]),
        ..view()
    };
    let (actions, _) = decide(&after_a_reboot);
    assert_eq!(actions, [Action::Take, Action::Cancel("hv1".into())]);
}

#[test]
fn the_condition_says_what_is_waited_for() {
    let going = Some(Going::Down);
    for (view, status, parts) in [
        (
            view(),
            Status::True,
            &["until no instance is active", "at most 30m"][..],
        ),
        (
            View {
                delay: Some(Duration::from_secs(5)),
                ..view()
            },
            Status::True,
            &["at most 5s", "InhibitDelayMaxSec", "shutdownGracePeriod"],
        ),
        (
            View {
                going,
                drain: running(true),
                ..view()
            },
            Status::True,
            &["3 active instances", "Eviction \"hv1\"", "1 of 3 moved"],
        ),
        (
            View {
                going,
                active: 0,
                drain: running(true),
                ..view()
            },
            Status::True,
            &["Nova to finish its last moves", "Eviction \"hv1\""],
        ),
        (
            View {
                delay: Some(Duration::from_secs(5)),
                wanted_delay: Some((Duration::from_secs(60), Some("read-only".into()))),
                ..view()
            },
            Status::True,
            &["could not raise it", "read-only"],
        ),
        (
            View {
                going,
                drain: Drain::Failing("no route".into()),
                ..view()
            },
            Status::True,
            &["could not be made", "no route"],
        ),
        (
            View {
                going,
                lock: Lock::Free,
                released: Some("empty".into()),
                ..view()
            },
            Status::False,
            &["goes on", "empty"],
        ),
        (
            View {
                lock: Lock::Free,
                away: Some("no bus".into()),
                ..view()
            },
            Status::False,
            &["would not wait", "no bus"],
        ),
        (
            View {
                lock: Lock::Held,
                away: Some("no bus".into()),
                ..view()
            },
            Status::Unknown,
            &["no bus"],
        ),
    ] {
        let (_, statement) = decide(&view);
        assert_eq!(statement.status, status, "{view:?}");
        for part in parts {
            assert!(statement.message.contains(part), "{}", statement.message);
        }
    }
}

fn eviction(outcome: Option<Outcome>) -> Eviction {
    let mut eviction = Eviction::new(
        "hv1",
        EvictionSpec {
            hypervisor: "hv1".into(),
            reason: "maintenance".into(),
            ..EvictionSpec::default()
        },
    );
    eviction.status = Some(EvictionStatus {
        outcome,
        ..EvictionStatus::default()
    });
    eviction
}

#[test]
fn w66_the_end_of_an_eviction_is_read_from_what_the_operator_writes() {
    assert_eq!(outcome(&eviction(None)), None);
    for end in Outcome::ALL {
        assert_eq!(
            outcome(&eviction(Some(*end))).as_deref(),
            Some(end.as_str())
        );
    }
    let mut old = eviction(None);
    let condition = |status| {
        conditions::Wanted {
            condition: EvictionCondition::Evicting,
            status,
            reason: Reason::Succeeded,
            message: String::new(),
            observed_generation: None,
        }
        .build(&[], jiff::Timestamp::UNIX_EPOCH)
    };
    old.status.as_mut().unwrap().conditions = vec![condition(Status::True)];
    assert_eq!(outcome(&old), None);
    old.status.as_mut().unwrap().conditions = vec![condition(Status::False)];
    assert_eq!(outcome(&old).as_deref(), Some("Succeeded"));
}

#[test]
fn w68_a_finished_or_another_eviction_is_never_taken_for_this_shutdown() {
    assert_eq!(candidate(None, "hv1"), Candidate::Free);
    assert_eq!(candidate(Some(&eviction(None)), "hv1"), Candidate::Join);
    let over = eviction(Some(Outcome::Succeeded));
    let mut some = eviction(None);
    some.spec.instances = vec!["a".into()];
    let mut dry = eviction(None);
    dry.spec.dry_run = Some(true);
    let mut cancelled = eviction(None);
    cancelled.spec.cancel = Some(true);
    let mut other = eviction(None);
    other.spec.hypervisor = "hv2".into();
    for taken in [over, some, dry, cancelled, other] {
        assert_eq!(candidate(Some(&taken), "hv1"), Candidate::Taken);
    }
    let names: Vec<String> = names("hv1", "0123abcd-ef00-4000-8000-000000000000").collect();
    assert_eq!(names[..2], ["hv1-0123abcd", "hv1-0123abcd-2"]);
    let unknown: Vec<String> = super::names("hv1", "").collect();
    assert_eq!(unknown[0], "hv1-00000000");
}

#[test]
fn w69_no_lock_of_before_is_in_the_way_of_a_new_one() {
    let refused = Lock::Refused("not now".into());
    for lock in [Lock::Free, Lock::Old, refused] {
        // As often as it takes.
        let before = View { lock, ..view() };
        for _ in 0..3 {
            assert_eq!(decide(&before).0, [Action::Take], "{before:?}");
        }
    }
    assert_eq!(decide(&view()).0, []);
}

#[test]
fn a_move_that_nova_has_not_finished_is_seen_in_the_eviction() {
    let mut going = eviction(None);
    let counts = |moving| cobalt_api::eviction::InstanceCounts {
        total: 2,
        moving,
        ..Default::default()
    };
    for (moving, expected) in [(1, true), (0, false)] {
        going.status.as_mut().unwrap().counts = Some(counts(moving));
        assert!(matches!(drain(&going), Drain::Running { moving, .. } if moving == expected));
    }
}
