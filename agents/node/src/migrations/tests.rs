//! Whole migrations, event by event, as they were recorded, and properties of all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cobalt_api::migration::{Migration, MigrationEnd, MigrationResult, MigrationStatus, Role};
use cobalt_libvirt::{
    Domain, Event, Lifecycle, TypedParams, TypedValue, lifecycle_detail as detail,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use uuid::Uuid;

use super::arrival::{Arrival, Incoming};
use super::book::{Act, Book, Reading};
use super::machine::{Aftermath, Now, Outgoing, Place, verdict};
use super::object::{self, Known};
use super::sample::Sample;
use super::sample::tests::{job_completed, live};
use super::signal;

const EVERY: Duration = Duration::from_secs(5);

fn domain() -> Domain {
    Domain {
        name: "slow".into(),
        uuid: Uuid::from_u128(7),
        id: Some(1),
    }
}

fn lifecycle(event: Lifecycle, detail: i32) -> Event {
    Event::Lifecycle {
        domain: domain(),
        event,
        detail,
    }
}

fn iteration(iteration: i32) -> Event {
    Event::MigrationIteration {
        domain: domain(),
        iteration,
    }
}

fn gone(place: Place) -> Reading {
    Reading::NoJob(Aftermath {
        place,
        completed: None,
        destination: None,
    })
}

fn running(elapsed: u64) -> Reading {
    Reading::Job(Sample::of(&live(elapsed, 5)).unwrap())
}

/// A host under test, and its clock.
struct Host {
    book: Book,
    begin: Instant,
    millis: u64,
    acts: Vec<Act>,
}

impl Host {
    fn new() -> Self {
        Self {
            book: Book::new(EVERY),
            begin: Instant::now(),
            millis: 0,
            acts: Vec::new(),
        }
    }

    fn now(&self) -> Now {
        Now {
            instant: self.begin + Duration::from_millis(self.millis),
            wall: Timestamp::from_second(1_794_909_600).unwrap()
                + SignedDuration::from_millis(i64::try_from(self.millis).unwrap()),
        }
    }

    fn at(&mut self, millis: u64) -> &mut Self {
        assert!(millis >= self.millis, "time goes on");
        self.millis = millis;
        self
    }

    fn event(&mut self, event: &Event) -> &mut Self {
        if let Some((domain, signal)) = signal::read(event) {
            let acts = self.book.signal(domain, signal, self.now());
            self.acts.extend(acts);
        }
        self
    }

    fn read(&mut self, reading: Reading) -> &mut Self {
        let acts = self.book.read(&domain(), reading, self.now());
        self.acts.extend(acts);
        self
    }

    fn look(&mut self, running: Option<bool>, completed: Option<Sample>) -> &mut Self {
        let completed = completed.map(Box::new);
        let look = Arrival::Look { running, completed };
        let acts = self.book.look(domain().uuid, look, self.now());
        self.acts.extend(acts);
        self
    }

    fn out(&self) -> Vec<Outgoing> {
        let out = |act: &Act| match act {
            Act::Out(_, outgoing) => Some((**outgoing).clone()),
            Act::In(..) => None,
        };
        self.acts.iter().filter_map(out).collect()
    }

    fn incoming(&self) -> Vec<Incoming> {
        let incoming = |act: &Act| match act {
            Act::In(_, incoming) => Some((**incoming).clone()),
            Act::Out(..) => None,
        };
        self.acts.iter().filter_map(incoming).collect()
    }

    /// The last word about the migration away.
    fn end(&self) -> MigrationStatus {
        let out = self.out();
        let last = out.last().expect("something was said");
        last.status(&domain().uuid.to_string(), "hv1", "label1")
    }
}

#[test]
fn the_recorded_migration_is_one_object_from_begin_to_end() {
    let mut host = Host::new();
    host.at(730).event(&iteration(1)).read(running(20));
    assert_eq!(host.out().len(), 1, "it is created at once");
    host.at(1730).read(running(1000));
    host.at(3054)
        .event(&iteration(2))
        .event(&lifecycle(Lifecycle::Suspended, detail::SUSPENDED_MIGRATED));
    host.at(3057).event(&iteration(3));
    host.at(3372)
        .event(&lifecycle(Lifecycle::Stopped, detail::STOPPED_MIGRATED));
    host.at(3373).event(&Event::JobCompleted {
        domain: domain(),
        params: job_completed(),
    });
    assert_eq!(host.out().len(), 2, "begin and end are all that is written");
    assert!(host.book.is_idle());
    let end = host.end();
    assert_eq!(end.result, Some(MigrationResult::Succeeded));
    assert_eq!(end.type_.as_deref(), Some("success"));
    assert_eq!(end.operation.as_deref(), Some("migration_out"));
    assert_eq!(end.origin.as_deref(), Some("label1"));
    assert_eq!(end.err_msg, None);
    assert_eq!(end.downtime.as_deref(), Some("103ms"));
    assert_eq!(end.data_remaining.as_deref(), Some("0 B"));
    let source = object::end(&end, Role::Source).unwrap();
    assert_eq!(source.node, "hv1");
    assert_eq!(source.stats.as_ref().unwrap().elapsed_millis, Some(3404));
    assert!(end.finished.unwrap().0 >= end.started.unwrap().0);
}

#[test]
fn the_end_is_seen_without_the_final_event() {
    let mut host = Host::new();
    host.event(&iteration(1)).read(running(20));
    host.at(3000)
        .event(&lifecycle(Lifecycle::Stopped, detail::STOPPED_MIGRATED));
    // The look comes before libvirt could send the numbers.
    host.at(3001).read(gone(Place::Gone));
    assert_eq!(host.out().len(), 1);
    host.at(4000).read(gone(Place::Gone));
    assert_eq!(host.end().result, Some(MigrationResult::Succeeded));
    // The event that was late is no second migration.
    host.at(4001).event(&Event::JobCompleted {
        domain: domain(),
        params: job_completed(),
    });
    assert_eq!(host.out().len(), 2);
}

#[test]
fn a_migration_that_was_over_before_it_was_asked_about_is_not_lost() {
    let mut host = Host::new();
    host.at(5000).event(&iteration(1)).read(gone(Place::Gone));
    host.event(&lifecycle(Lifecycle::Stopped, detail::STOPPED_MIGRATED));
    host.event(&Event::JobCompleted {
        domain: domain(),
        params: job_completed(),
    });
    let out = host.out();
    assert_eq!(out.len(), 1);
    assert_eq!(host.end().result, Some(MigrationResult::Succeeded));
    assert_eq!(
        out[0].started,
        host.now().wall - SignedDuration::from_millis(3404),
        "the job says when it began"
    );
}

#[test]
fn an_abort_ends_it_although_libvirt_says_nothing() {
    let mut host = Host::new();
    host.event(&iteration(1)).read(running(20));
    host.at(6000).read(gone(Place::Here));
    assert_eq!(host.end().result, None, "libvirt may still say it");
    host.at(7000).read(gone(Place::Here));
    let end = host.end();
    assert_eq!(end.result, Some(MigrationResult::Failed));
    assert!(end.err_msg.unwrap().contains("still runs on the source"));
    assert!(host.book.is_idle(), "nothing is looked at any more");
}

#[test]
fn a_cancellation_that_libvirt_tells_of_is_one() {
    let mut cancelled = live(5000, 5);
    cancelled.job_type = cobalt_libvirt::JobType::Cancelled;
    // Either it is kept, or it is seen while the job ends.
    let mut kept = Host::new();
    kept.event(&iteration(1)).read(running(20));
    kept.at(6000).read(Reading::NoJob(Aftermath {
        place: Place::Here,
        completed: Sample::of(&cancelled),
        destination: None,
    }));
    let mut seen = Host::new();
    seen.event(&iteration(1)).read(running(20));
    seen.at(5900)
        .read(Reading::Job(Sample::of(&cancelled).unwrap()));
    seen.at(6900).read(gone(Place::Here));
    seen.at(7900).read(gone(Place::Here));
    for host in [kept, seen] {
        assert_eq!(host.end().result, Some(MigrationResult::Cancelled));
        assert_eq!(host.end().type_.as_deref(), Some("cancelled"));
    }
}

#[test]
fn what_libvirt_says_about_a_failure_is_passed_on() {
    let mut failed = live(5000, 5);
    failed.job_type = cobalt_libvirt::JobType::Failed;
    failed.params = failed
        .params
        .with("errmsg", TypedValue::String("connection reset".into()));
    let mut host = Host::new();
    host.event(&iteration(1)).read(running(20));
    host.at(6000).read(Reading::NoJob(Aftermath {
        place: Place::Here,
        completed: Sample::of(&failed),
        destination: None,
    }));
    let end = host.end();
    assert_eq!(end.result, Some(MigrationResult::Failed));
    assert_eq!(end.err_msg.as_deref(), Some("connection reset"));
}

#[test]
fn a_source_that_dies_on_the_way_is_a_failure() {
    for (number, word) in [
        (detail::STOPPED_CRASHED, "crashed"),
        (detail::STOPPED_DESTROYED, "destroyed"),
        (detail::STOPPED_FAILED, "failed"),
    ] {
        let mut host = Host::new();
        host.event(&iteration(1)).read(running(20));
        host.at(2000).event(&lifecycle(Lifecycle::Stopped, number));
        let end = host.end();
        assert_eq!(end.result, Some(MigrationResult::Failed));
        assert!(end.err_msg.unwrap().contains(word));
    }
}

#[test]
fn post_copy_and_its_failure_are_said_at_once() {
    let mut host = Host::new();
    host.event(&iteration(1)).read(running(20));
    host.at(1000)
        .event(&lifecycle(Lifecycle::Suspended, detail::SUSPENDED_POSTCOPY));
    assert_eq!(host.out().len(), 2);
    host.at(2000).event(&lifecycle(
        Lifecycle::Suspended,
        detail::SUSPENDED_POSTCOPY_FAILED,
    ));
    assert_eq!(host.out().len(), 3);
    assert!(host.end().err_msg.unwrap().contains("recovered"));
    assert_eq!(host.end().result, None, "it can still be recovered");
    host.at(3000)
        .event(&lifecycle(Lifecycle::Stopped, detail::STOPPED_MIGRATED));
    host.at(4000).read(gone(Place::Gone));
    assert_eq!(host.end().result, Some(MigrationResult::Succeeded));
    assert_eq!(host.end().err_msg, None);
}

#[test]
fn saving_an_instance_is_not_a_migration() {
    let mut host = Host::new();
    let save = Sample::of(&live(10, 2)).unwrap();
    host.event(&lifecycle(Lifecycle::Suspended, detail::SUSPENDED_PAUSED))
        .event(&iteration(1))
        .read(Reading::Job(save))
        .event(&iteration(2));
    let params = TypedParams::default().with("operation", TypedValue::Int(2));
    host.event(&Event::JobCompleted {
        domain: domain(),
        params,
    });
    host.event(&lifecycle(Lifecycle::Stopped, detail::STOPPED_SAVED));
    assert!(host.acts.is_empty());
    assert!(host.book.is_idle());
}

#[test]
fn w62_a_failed_migration_is_not_watched_and_the_next_one_is() {
    let mut host = Host::new();
    host.event(&iteration(1)).read(running(20));
    host.at(6000).read(gone(Place::Here));
    host.at(7000).read(gone(Place::Here));
    assert!(host.book.is_idle());
    host.at(7250).event(&iteration(1)).read(running(10));
    assert!(!host.book.is_idle());
    // The third comes so soon that the second's end was not even sure.
    host.at(19_000).read(gone(Place::Here));
    host.at(19_500).event(&iteration(1)).read(running(10));
    let out = host.out();
    let names: BTreeSet<String> = out
        .iter()
        .map(|out| object::name(domain().uuid, out.started))
        .collect();
    assert_eq!(names.len(), 3, "each has its object");
    let ended = out.iter().filter(|out| out.result().is_some());
    assert_eq!(ended.count(), 2);
}

#[test]
fn an_answer_that_overtakes_the_event_does_not_decide() {
    let mut host = Host::new();
    host.event(&iteration(1)).read(running(20));
    // The instance is gone already, and the event that says where to is on its way.
    host.at(6000).read(gone(Place::Gone));
    host.at(6010)
        .event(&lifecycle(Lifecycle::Stopped, detail::STOPPED_MIGRATED))
        .event(&Event::JobCompleted {
            domain: domain(),
            params: job_completed(),
        });
    assert_eq!(host.end().result, Some(MigrationResult::Succeeded));
}

#[test]
fn w63_a_plain_resume_marks_nothing_on_either_end() {
    let mut host = Host::new();
    for number in [
        detail::RESUMED_UNPAUSED,
        detail::RESUMED_MIGRATED,
        detail::RESUMED_FROM_SNAPSHOT,
    ] {
        host.event(&lifecycle(Lifecycle::Suspended, detail::SUSPENDED_PAUSED))
            .event(&lifecycle(Lifecycle::Resumed, number));
    }
    assert!(host.acts.is_empty());
    // On a source in the middle of a migration neither.
    host.event(&iteration(1)).read(running(20));
    host.event(&lifecycle(Lifecycle::Resumed, detail::RESUMED_UNPAUSED))
        .event(&lifecycle(Lifecycle::Resumed, detail::RESUMED_MIGRATED));
    assert_eq!(host.out().len(), 1);
    assert_eq!(host.end().result, None);
    assert_eq!(
        host.end().destination,
        None,
        "the source is not the destination"
    );
}

#[test]
fn w64_progress_is_written_every_few_seconds_however_often_it_is_read() {
    let mut host = Host::new();
    host.event(&iteration(1)).read(running(0));
    for second in 1..=60 {
        host.at(second * 1000).read(running(second * 1000));
    }
    assert_eq!(host.out().len(), 1 + 60 / 5);
}

#[test]
fn the_recorded_arrival_fails_once_and_then_succeeds() {
    let mut host = Host::new();
    host.event(&lifecycle(Lifecycle::Started, detail::STARTED_MIGRATED));
    host.at(1000).look(Some(false), None);
    host.at(6143)
        .event(&lifecycle(Lifecycle::Stopped, detail::STOPPED_FAILED));
    host.at(7406)
        .event(&lifecycle(Lifecycle::Started, detail::STARTED_MIGRATED));
    host.at(9842)
        .event(&lifecycle(Lifecycle::Resumed, detail::RESUMED_MIGRATED));
    let kept = Sample::of(&live(3391, 4)).unwrap();
    host.at(10_000).look(Some(true), Some(kept));
    let results: Vec<Option<MigrationResult>> =
        host.incoming().iter().map(Incoming::result).collect();
    assert_eq!(
        results,
        [
            None,
            Some(MigrationResult::Failed),
            None,
            Some(MigrationResult::Succeeded)
        ]
    );
    let last = host.incoming().pop().unwrap().entry("hv2");
    assert_eq!(last.role, Role::Destination);
    assert_eq!(last.stats.unwrap().elapsed_millis, Some(3391));
    assert!(host.book.is_idle());
}

#[test]
fn an_arrival_whose_events_were_missed_ends_by_looking() {
    let mut come = Host::new();
    let acts = come.book.arriving(&domain(), false, come.now());
    come.acts.extend(acts);
    for second in 1..=20 {
        come.at(second * 1000).look(Some(true), None);
    }
    assert_eq!(
        come.incoming().last().unwrap().result(),
        Some(MigrationResult::Succeeded)
    );
    let mut lost = Host::new();
    let acts = lost.book.arriving(&domain(), false, lost.now());
    lost.acts.extend(acts);
    lost.at(1000).look(None, None);
    assert_eq!(
        lost.incoming().last().unwrap().result(),
        Some(MigrationResult::Failed)
    );
}

#[test]
fn an_arrival_in_post_copy_is_not_over_while_it_runs() {
    let mut host = Host::new();
    host.event(&lifecycle(Lifecycle::Started, detail::STARTED_MIGRATED))
        .event(&lifecycle(Lifecycle::Resumed, detail::RESUMED_POSTCOPY));
    for second in 1..=20 {
        host.at(second * 1000).look(Some(true), None);
    }
    assert_eq!(host.incoming().len(), 1);
    host.event(&lifecycle(Lifecycle::Resumed, detail::RESUMED_MIGRATED));
    let kept = Sample::of(&live(20_000, 4)).unwrap();
    host.at(21_000).look(Some(true), Some(kept));
    assert_eq!(
        host.incoming().last().unwrap().result(),
        Some(MigrationResult::Succeeded)
    );
}

#[test]
fn success_is_never_what_is_left_when_nothing_is_known() {
    let case = |place, completed, destination| {
        let (result, error) = verdict(&Aftermath {
            place,
            completed,
            destination,
        });
        assert_eq!(result == MigrationResult::Succeeded, error.is_none());
        result
    };
    let done = |job_type| {
        let mut job = live(10, 5);
        job.job_type = job_type;
        Sample::of(&job)
    };
    use MigrationResult::{Failed, Succeeded, Unknown};
    assert_eq!(case(Place::Gone, None, None), Unknown);
    assert_eq!(case(Place::Gone, None, Some(Failed)), Unknown);
    assert_eq!(case(Place::Gone, None, Some(Succeeded)), Succeeded);
    assert_eq!(case(Place::Left, None, None), Succeeded);
    assert_eq!(case(Place::Here, None, Some(Succeeded)), Failed);
    assert_eq!(case(Place::Off("crashed"), None, None), Failed);
    assert_eq!(
        case(Place::Gone, done(cobalt_libvirt::JobType::Completed), None),
        Succeeded
    );
    assert_eq!(
        case(Place::Here, done(cobalt_libvirt::JobType::Completed), None),
        Failed
    );
    // What is kept of an arrival says nothing about the departure.
    let mut came = live(10, 4);
    came.job_type = cobalt_libvirt::JobType::Completed;
    assert_eq!(case(Place::Gone, Sample::of(&came), None), Unknown);
}

// Objects.

fn started(second: i64) -> Timestamp {
    Timestamp::from_second(1_794_909_600 + second).unwrap()
}

fn stored(second: i64, finished: Option<i64>, node: &str) -> (String, Migration) {
    let name = object::name(domain().uuid, started(second));
    let mut object = object::blank(&name, domain().uuid, node);
    object.status = Some(MigrationStatus {
        started: Some(Time(started(second))),
        finished: finished.map(|second| Time(started(second))),
        ..MigrationStatus::default()
    });
    (name, object)
}

fn known(objects: &[(String, Migration)]) -> BTreeMap<String, Known> {
    let known = |(name, object): &(String, Migration)| {
        (
            name.clone(),
            Known::of(object, None, Instant::now()).unwrap(),
        )
    };
    objects.iter().map(known).collect()
}

fn entry(node: &str, result: Option<MigrationResult>) -> MigrationEnd {
    MigrationEnd {
        role: Role::Destination,
        node: node.into(),
        updated: None,
        result,
        error: None,
        stats: None,
    }
}

#[test]
fn an_agent_that_starts_in_the_middle_finds_the_object_again() {
    let open = stored(0, None, "hv1");
    let all = known(&[stored(-100, Some(-90), "hv1"), open.clone()]);
    let uuid = domain().uuid;
    assert_eq!(
        object::same_migration(&all, uuid, started(1)),
        Some(&open.0)
    );
    // Another migration than the one that nobody closed.
    assert_eq!(object::same_migration(&all, uuid, started(60)), None);
    assert_eq!(
        object::same_migration(&all, Uuid::from_u128(8), started(1)),
        None
    );
}

#[test]
fn a_clock_that_was_set_back_makes_no_name_twice() {
    let all = known(&[stored(50, Some(55), "hv1")]);
    let uuid = domain().uuid;
    let at = object::later_than_known(&all, uuid, started(10));
    assert!(at > started(50));
    assert!(!all.contains_key(&object::name(uuid, at)));
    assert_eq!(
        object::later_than_known(&all, uuid, started(60)),
        started(60)
    );
    assert_eq!(
        object::later_than_known(&all, Uuid::from_u128(8), started(10)),
        started(10)
    );
}

#[test]
fn a_name_is_a_dns_label() {
    let name = object::name(domain().uuid, started(0));
    assert!(name.len() <= 63, "{name}");
    assert!(
        name.chars()
            .all(|c| c.is_ascii_digit() || c.is_ascii_lowercase() || c == '-')
    );
}

#[test]
fn an_arrival_belongs_to_the_newest_object_that_another_host_has_open() {
    let of = |objects: &[(String, Migration)], began| {
        let objects = objects.iter().cloned().collect();
        object::of_arrival(&objects, "hv2", started(began), true)
    };
    let (old, mut told) = stored(-100, Some(-50), "hv1");
    told.status.as_mut().unwrap().ends = vec![entry("hv2", Some(MigrationResult::Succeeded))];
    let old = (old, told);
    let open = stored(0, None, "hv1");
    let mine = stored(1, None, "hv2");
    let all = [old.clone(), open.clone(), mine.clone()];
    assert_eq!(of(&all, 1), Some(open.0.clone()));
    // It has not appeared yet.
    assert_eq!(of(&[old.clone(), mine], 1), None);
    // It was fast.
    let fast = stored(0, Some(1), "hv1");
    assert_eq!(of(&[old, fast.clone()], 1), Some(fast.0));
    // What a dead agent left open long ago is another one.
    assert_eq!(of(&[stored(-7200, None, "hv3")], 1), None);
}

#[test]
fn the_destination_completes_what_the_source_could_not_know() {
    let (_, object) = stored(0, Some(9), "hv1");
    let mut status = object.status.unwrap();
    assert_eq!(object::amend(&status), None);
    status.result = Some(MigrationResult::Unknown);
    status.err_msg = Some("nobody saw it".into());
    status.ends = vec![entry("hv2", Some(MigrationResult::Succeeded))];
    let amended = object::amend(&status).unwrap();
    assert_eq!(amended.destination.as_deref(), Some("hv2"));
    assert_eq!(amended.result, Some(MigrationResult::Succeeded));
    assert_eq!(amended.err_msg, None);
    assert!(amended.ends.is_empty(), "the other's entry is not ours");
    // Written once, there is nothing to add.
    let written = MigrationStatus {
        ends: status.ends.clone(),
        ..amended
    };
    assert_eq!(object::amend(&written), None);
    // A failure stays one, whatever the destination says.
    status.result = Some(MigrationResult::Failed);
    let amended = object::amend(&status).unwrap();
    assert_eq!(amended.result, Some(MigrationResult::Failed));
    // A running one is the business of its machine.
    status.finished = None;
    assert_eq!(object::amend(&status), None);
}

#[test]
fn objects_go_after_their_time_whatever_the_wall_clock_does() {
    let ttl = Duration::from_secs(3600);
    let begin = Instant::now();
    let now = |after: u64, wall: i64| Now {
        instant: begin + Duration::from_secs(after),
        wall: started(wall),
    };
    let (_, running) = stored(0, None, "hv1");
    let (_, ended) = stored(0, Some(10), "hv1");
    let open = Known::of(&running, None, begin).unwrap();
    assert!(!open.due(ttl, now(1_000_000, 1_000_000)), "it runs");
    // Seen to end: the wall clock does not matter.
    let seen = Known::of(&ended, Some(&open), begin).unwrap();
    assert!(!seen.due(ttl, now(3599, 1_000_000)));
    assert!(seen.due(ttl, now(3600, -1_000_000)));
    // And that is remembered when it changes once more.
    let amended = Known::of(&ended, Some(&seen), begin + ttl).unwrap();
    assert!(amended.due(ttl, now(3600, 0)));
    // Found by a new process: the wall clock tells, after a while.
    let found = Known::of(&ended, None, begin).unwrap();
    assert!(!found.due(ttl, now(0, 10 + 3600)), "the clock may be wrong");
    assert!(!found.due(ttl, now(600, 10 + 3599)));
    assert!(found.due(ttl, now(600, 10 + 3600)));
    // The clock was set back: not early, and not never.
    assert!(!found.due(ttl, now(3599, -1_000_000)));
    assert!(found.due(ttl, now(3600, -1_000_000)));
}

// Properties.

/// Everything that can happen to an instance.
#[derive(Debug, Clone, Copy)]
enum Happening {
    Event(Lifecycle, i32),
    Iteration,
    Completed,
    Job,
    NoJob(Place),
    Looks(Option<bool>),
}

fn happening() -> impl Strategy<Value = Happening> {
    let lifecycle = prop_oneof![
        Just((Lifecycle::Started, 0..5)),
        Just((Lifecycle::Suspended, 0..9)),
        Just((Lifecycle::Resumed, 0..5)),
        Just((Lifecycle::Stopped, 0..8)),
        Just((Lifecycle::Crashed, 0..2)),
    ];
    prop_oneof![
        4 => lifecycle.prop_flat_map(|(event, details)| details.prop_map(move |detail| Happening::Event(event, detail))),
        2 => Just(Happening::Iteration),
        1 => Just(Happening::Completed),
        6 => Just(Happening::Job),
        2 => prop_oneof![
            Just(Place::Here), Just(Place::Left), Just(Place::Gone), Just(Place::Off("crashed"))
        ].prop_map(Happening::NoJob),
        2 => prop_oneof![Just(None), Just(Some(true)), Just(Some(false))].prop_map(Happening::Looks),
    ]
}

proptest! {
    #[test]
    fn it_always_ends_and_no_instance_has_two_open_migrations(
        all in prop::collection::vec((happening(), 0_u64..2500), 0..120),
    ) {
        let mut host = Host::new();
        let mut open: BTreeSet<Timestamp> = BTreeSet::new();
        let mut phases = 0;
        for (happening, wait) in all {
            let millis = host.millis + wait;
            host.at(millis);
            let before = host.acts.len();
            match happening {
                Happening::Event(event, detail) => {
                    phases += usize::from(event == Lifecycle::Suspended && detail >= 7);
                    host.event(&lifecycle(event, detail));
                }
                Happening::Iteration => { host.event(&iteration(1)); }
                Happening::Completed => {
                    host.event(&Event::JobCompleted { domain: domain(), params: job_completed() });
                }
                Happening::Job => { host.read(running(millis % 5000)); }
                Happening::NoJob(place) => { host.read(gone(place)); }
                Happening::Looks(running) => { host.look(running, None); }
            }
            for act in host.acts.iter().skip(before) {
                if let Act::Out(_, outgoing) = act {
                    if outgoing.result().is_some() {
                        open.remove(&outgoing.started);
                    } else {
                        open.insert(outgoing.started);
                    }
                    prop_assert!(open.len() <= 1, "{:?}", open);
                }
            }
        }
        // Written are the begin and the end of each, its phases, and every few seconds.
        let ends = host.out().iter().filter(|out| out.result().is_some()).count();
        let bound = 2 * (ends + 1) + phases + usize::try_from(host.millis / 5000).unwrap();
        prop_assert!(host.out().len() <= bound, "{} writes, {bound} allowed", host.out().len());
        // Once libvirt says that nothing runs, nothing is open.
        let millis = host.millis + 1000;
        host.at(millis).read(gone(Place::Gone)).look(None, None);
        host.at(millis + 1000).read(gone(Place::Gone));
        prop_assert!(host.book.is_idle());
        let last = host.out().last().map(|out| out.result().is_some());
        prop_assert!(last != Some(false));
    }
}

/// The beginnings of all migrations that are open after each thing that was said.
fn open_at_once(host: &Host) -> usize {
    let mut open = BTreeSet::new();
    let mut most = 0;
    for outgoing in host.out() {
        if outgoing.result().is_some() {
            open.remove(&outgoing.started);
        } else {
            open.insert(outgoing.started);
        }
        most = most.max(open.len());
    }
    most
}

#[test]
fn a_job_that_is_read_after_the_instance_has_left_makes_no_second_open_migration() {
    let mut host = Host::new();
    host.at(1116)
        .event(&lifecycle(Lifecycle::Stopped, detail::STOPPED_MIGRATED))
        .event(&lifecycle(Lifecycle::Suspended, detail::SUSPENDED_POSTCOPY))
        .event(&lifecycle(Lifecycle::Started, 0));
    host.at(2397).event(&iteration(1));
    host.at(4108).event(&lifecycle(Lifecycle::Started, 0));
    host.at(6116).read(running(1116));
    assert_eq!(open_at_once(&host), 1);
    // The job began after the instance had left, so it is another one, and the first is over.
    assert_eq!(host.end().result, Some(MigrationResult::Succeeded));
}

#[test]
fn the_beginning_that_was_said_stays_when_the_job_is_read_later() {
    let mut host = Host::new();
    host.at(6000)
        .event(&lifecycle(Lifecycle::Stopped, detail::STOPPED_MIGRATED))
        .event(&lifecycle(Lifecycle::Suspended, detail::SUSPENDED_POSTCOPY));
    // The same job: it began before the instance left.
    host.at(11_000).read(running(9000));
    let begins: BTreeSet<Timestamp> = host.out().iter().map(|out| out.started).collect();
    assert_eq!((begins.len(), host.out().len()), (1, 2));
    assert_eq!(host.end().result, None);
}
