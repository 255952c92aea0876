//! Tests of `update`.

use cobalt_api::conditions::HypervisorCondition;

use super::*;

const BOOT: &str = "boot-1";

fn view(record: &UpdateStatus) -> View<'_> {
    View {
        wanted: Some("2.0"),
        reboot: true,
        running: Some("1.0"),
        record,
        stored: true,
        job: Job::None,
        trouble: None,
        rested: true,
        rebooting: false,
        boot: BOOT,
        obstacles: &[],
    }
}

fn record(in_progress: bool, retry: i64) -> UpdateStatus {
    UpdateStatus {
        in_progress: Some(in_progress),
        retry: Some(retry),
        version: Some("2.0".into()),
        ..blank()
    }
}

fn installed() -> UpdateStatus {
    UpdateStatus {
        installed: Some("2.0".into()),
        boot_id: Some(BOOT.into()),
        ..record(false, 3)
    }
}

fn check(view: &View<'_>, step: &Step, status: Status, reason: Reason) -> Decision {
    let decision = decide(view);
    assert_eq!(&decision.step, step, "{view:?}");
    let said = decision.statement.clone().unwrap();
    assert_eq!(
        (said.status, said.reason),
        (status, reason),
        "{view:?}: {said:?}"
    );
    assert!(
        HypervisorCondition::OperatingSystemUpdate
            .reasons()
            .contains(&reason)
    );
    decision
}

#[test]
fn what_is_begun_is_recorded_first_and_carried_over_a_restart_of_the_agent() {
    // The record of the deployed agent knows no version.
    let old = UpdateStatus {
        retry: Some(0),
        in_progress: Some(true),
        ..UpdateStatus::default()
    };
    let first = check(&view(&old), &Step::Nothing, Status::True, Reason::Running);
    assert_eq!(first.record, record(true, 3));
    let unstored = View {
        stored: false,
        ..view(&first.record)
    };
    check(&unstored, &Step::Nothing, Status::True, Reason::Running);
    let start = Step::Start("systemd-sysupdate@2.0.service".into());
    let second = check(&view(&first.record), &start, Status::True, Reason::Running);
    assert_eq!(second.record, first.record);
    let busy = View {
        job: Job::Running,
        ..view(&first.record)
    };
    check(&busy, &Step::Nothing, Status::True, Reason::Running);
}

#[test]
fn w72_three_failures_are_the_end_until_somebody_asks_again() {
    let mut known = record(true, 3);
    for left in [2, 1] {
        let failed = View {
            job: Job::Failed("disk full".into()),
            ..view(&known)
        };
        let decision = check(&failed, &Step::Rest, Status::True, Reason::Running);
        assert!(decision.job_is_done);
        assert_eq!(decision.record.retry, Some(left));
        let resting = View {
            rested: false,
            ..view(&decision.record)
        };
        check(&resting, &Step::Rest, Status::True, Reason::Running);
        let again = check(
            &view(&decision.record),
            &Step::Nothing,
            Status::True,
            Reason::Running,
        );
        known = again.record;
    }
    let failed = View {
        job: Job::Failed("disk full".into()),
        ..view(&known)
    };
    let decision = check(&failed, &Step::Nothing, Status::False, Reason::Stopped);
    let message = decision.statement.unwrap().message;
    for part in ["disk full", "3 tries", "set it again"] {
        assert!(message.contains(part), "{message}");
    }
    let over = decision.record;
    assert_eq!((over.retry, over.in_progress), (Some(0), Some(false)));
    // Nothing moves it, and it is said again after a restart of the agent.
    let still = check(&view(&over), &Step::Nothing, Status::False, Reason::Stopped);
    assert_eq!(still.record, over);
    assert!(still.statement.unwrap().message.contains("disk full"));
    // Another version does, and the same one after it was taken back.
    let other = View {
        wanted: Some("3.0"),
        ..view(&over)
    };
    assert_eq!(decide(&other).record.retry, Some(TRIES));
    let taken_back = decide(&View {
        wanted: None,
        ..view(&over)
    });
    assert_eq!(
        (taken_back.statement, taken_back.record.version.as_deref()),
        (None, None)
    );
    let again = check(
        &view(&taken_back.record),
        &Step::Nothing,
        Status::True,
        Reason::Running,
    );
    assert_eq!(again.record, record(true, 3));
}

#[test]
fn trouble_with_the_bus_burns_no_try() {
    let known = record(true, 2);
    let trouble = View {
        trouble: Some("no bus"),
        rested: false,
        ..view(&known)
    };
    let decision = check(&trouble, &Step::Rest, Status::True, Reason::Running);
    assert_eq!(decision.record, known);
    assert!(decision.statement.unwrap().message.contains("no bus"));
    let rested = View {
        rested: true,
        ..trouble
    };
    assert!(matches!(decide(&rested).step, Step::Start(_)));
}

#[test]
fn no_reboot_without_success_leave_and_health() {
    let known = record(true, 3);
    let done = View {
        job: Job::Succeeded,
        ..view(&known)
    };
    let decision = check(&done, &Step::Nothing, Status::True, Reason::Running);
    assert_eq!(decision.record, installed());
    let installed = installed();
    check(
        &view(&installed),
        &Step::Reboot,
        Status::True,
        Reason::Running,
    );
    let unstored = View {
        stored: false,
        ..view(&installed)
    };
    check(&unstored, &Step::Nothing, Status::True, Reason::Running);
    let asked = View {
        rebooting: true,
        ..view(&installed)
    };
    check(&asked, &Step::Nothing, Status::True, Reason::Running);
    let later = View {
        reboot: false,
        ..view(&installed)
    };
    check(&later, &Step::Nothing, Status::True, Reason::Completed);
    let obstacles = ["libvirt does not run".to_owned()];
    let gated = View {
        obstacles: &obstacles,
        ..view(&installed)
    };
    let decision = check(&gated, &Step::Nothing, Status::True, Reason::Running);
    assert!(
        decision
            .statement
            .unwrap()
            .message
            .contains("libvirt does not run")
    );
    let refused = View {
        trouble: Some("blocked"),
        rested: false,
        ..view(&installed)
    };
    check(&refused, &Step::Rest, Status::True, Reason::Running);
}

#[test]
fn after_the_boot_the_version_that_runs_tells_whether_it_worked() {
    let known = installed();
    let new = View {
        running: Some("2.0"),
        boot: "boot-2",
        ..view(&known)
    };
    let decision = check(&new, &Step::Nothing, Status::True, Reason::Completed);
    assert_eq!(decision.record.installed.as_deref(), Some("2.0"));
    // The old one again: no loop.
    let old = View {
        boot: "boot-2",
        ..view(&known)
    };
    let decision = check(&old, &Step::Nothing, Status::False, Reason::Stopped);
    assert_eq!(decision.record, known);
    assert!(decision.statement.unwrap().message.contains("1.0 runs"));
    // Set again, it is installed again.
    let taken_back = decide(&View {
        wanted: None,
        boot: "boot-2",
        ..view(&known)
    });
    let again = View {
        boot: "boot-2",
        ..view(&taken_back.record)
    };
    assert_eq!(decide(&again).record, record(true, 3));
    // Nobody knows a version called latest.
    let latest = UpdateStatus {
        installed: Some(LATEST.into()),
        version: Some(LATEST.into()),
        ..known
    };
    let after = View {
        wanted: Some(LATEST),
        boot: "boot-2",
        ..view(&latest)
    };
    check(&after, &Step::Nothing, Status::True, Reason::Completed);
    // A boot that cannot be told apart is the same one.
    let unknown = View {
        boot: "",
        ..view(&latest)
    };
    assert!(decide(&unknown).statement.unwrap().status == Status::True);
}

#[test]
fn what_is_not_a_version_does_not_get_into_the_name_of_a_unit() {
    assert_eq!(unit("latest").unwrap(), "systemd-sysupdate.service");
    assert_eq!(unit("1877.8").unwrap(), "systemd-sysupdate@1877.8.service");
    assert_eq!(
        unit("v2_1-rc1").unwrap(),
        "systemd-sysupdate@v2_1-rc1.service"
    );
    let long = "1".repeat(65);
    for bad in [
        "", "-1", ".1", "1/2", "1 2", "a\\x2db", "1@2", "1%i", "ä", "../x", "1\n", &long,
    ] {
        assert!(unit(bad).is_err(), "{bad:?}");
        let known = blank();
        if !bad.is_empty() {
            let refused = View {
                wanted: Some(bad),
                ..view(&known)
            };
            check(&refused, &Step::Nothing, Status::False, Reason::Stopped);
        }
    }
}

#[test]
fn w71_only_a_program_that_ran_to_its_end_has_succeeded() {
    let run = |active: &str, sub: &str, result: &str, exited: u64| UnitRun {
        active: active.into(),
        sub: sub.into(),
        result: result.into(),
        status: 0,
        exited,
        may_run: true,
    };
    for (job, unit, wanted) in [
        (None, run("activating", "start", "success", 0), Job::Running),
        (None, run("inactive", "dead", "success", 0), Job::Running),
        (
            Some("done"),
            run("activating", "start", "success", 0),
            Job::Running,
        ),
        (
            Some("done"),
            run("active", "running", "success", 0),
            Job::Running,
        ),
        (
            Some("done"),
            run("deactivating", "stop", "success", 0),
            Job::Running,
        ),
        (
            Some("done"),
            run("active", "exited", "success", 7),
            Job::Succeeded,
        ),
        (
            Some("done"),
            run("inactive", "dead", "success", 7),
            Job::Succeeded,
        ),
    ] {
        assert_eq!(outcome(job, &unit), wanted, "{job:?} {unit:?}");
    }
    let skipped = UnitRun {
        may_run: false,
        ..run("inactive", "dead", "success", 7)
    };
    for (job, unit) in [
        ("done", run("inactive", "dead", "success", 0)),
        ("done", run("inactive", "dead", "exit-code", 7)),
        ("done", run("failed", "failed", "exit-code", 7)),
        ("failed", run("failed", "failed", "exit-code", 7)),
        ("canceled", run("inactive", "dead", "success", 0)),
        ("timeout", run("activating", "start", "success", 0)),
        ("dependency", run("inactive", "dead", "success", 7)),
        ("done", skipped),
    ] {
        let got = outcome(Some(job), &unit);
        assert!(matches!(got, Job::Failed(_)), "{job} {unit:?}: {got:?}");
    }
}

#[test]
fn a_reboot_is_refused_while_instances_are_active_and_logind_does_not_wait_for_them() {
    let well = Gate {
        libvirt_runs: true,
        open_vswitch_is_well: true,
        active: 2,
        evacuates: true,
        waits: true,
        delay: Some(Duration::from_secs(1800)),
    };
    let short = Some(Duration::from_secs(5));
    for (gate, words) in [
        (well, &[][..]),
        (
            Gate {
                delay: short,
                ..well
            },
            &["2 instances", "at most 5s", "--shutdown-delay"],
        ),
        // An empty host has nothing to wait for.
        (
            Gate {
                delay: short,
                active: 0,
                ..well
            },
            &[],
        ),
        (
            Gate {
                delay: None,
                ..well
            },
            &[],
        ),
        (
            Gate {
                waits: false,
                ..well
            },
            &["would not wait"],
        ),
        (
            Gate {
                evacuates: false,
                ..well
            },
            &["evacuateOnReboot"],
        ),
        (
            Gate {
                libvirt_runs: false,
                active: 0,
                ..well
            },
            &["libvirt"],
        ),
    ] {
        let all = obstacles(&gate);
        assert_eq!(all.is_empty(), words.is_empty(), "{gate:?}: {all:?}");
        for word in words {
            assert!(all[0].contains(word), "{all:?}");
        }
        // Whatever is against it is in the condition, and told as an Event.
        let installed = installed();
        let view = View {
            obstacles: &all,
            ..view(&installed)
        };
        let decision = decide(&view);
        assert_eq!(decision.reboot_waits.is_some(), !words.is_empty());
        assert_eq!(decision.step == Step::Reboot, words.is_empty());
    }
}
