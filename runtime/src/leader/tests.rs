//! The decision by tables, and a simulation of two candidates with bad clocks and a bad network.

use proptest::prelude::*;

use super::*;

fn config(identity: &str) -> LeaderConfig {
    LeaderConfig {
        identity: identity.to_owned(),
        ..LeaderConfig::new("kube-system", "leader", "pod")
    }
}

fn wall(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn written(step: Step) -> Lease {
    match step {
        Step::Write(lease) => *lease,
        other => panic!("{other:?}"),
    }
}

fn spec(lease: &Lease) -> &LeaseSpec {
    lease.spec.as_ref().unwrap()
}

/// A record as another holder writes it.
fn held(by: &str, renewed: i64, duration: Option<i32>) -> Lease {
    Lease {
        metadata: ObjectMeta::default(),
        spec: Some(LeaseSpec {
            holder_identity: Some(by.to_owned()),
            lease_duration_seconds: duration,
            acquire_time: Some(MicroTime(wall(0))),
            renew_time: Some(MicroTime(wall(renewed))),
            lease_transitions: Some(7),
            ..LeaseSpec::default()
        }),
    }
}

#[test]
fn a_lease_that_nobody_holds_is_taken_at_once() {
    let me = config("me");
    let now = Instant::now();
    let first = decide(None, &mut Memory::default(), &me, now, wall(5));
    let first = written(first);
    assert_eq!(spec(&first).holder_identity.as_deref(), Some("me"));
    assert_eq!(spec(&first).lease_duration_seconds, Some(15));
    assert_eq!(spec(&first).lease_transitions, Some(0));
    assert_eq!(spec(&first).acquire_time, Some(MicroTime(wall(5))));

    for free in [held("", 1, Some(1)), held("", 1, None)] {
        let taken = decide(Some(&free), &mut Memory::default(), &me, now, wall(5));
        assert_eq!(spec(&written(taken)).lease_transitions, Some(8));
    }
    let mut bare = held("", 1, None);
    bare.spec = None;
    let taken = decide(Some(&bare), &mut Memory::default(), &me, now, wall(5));
    assert_eq!(spec(&written(taken)).lease_transitions, Some(0));
}

#[test]
fn another_holder_is_waited_for_as_long_as_it_promised_by_our_clock() {
    let me = config("me");
    let begin = Instant::now();
    for (promised, waits) in [(Some(4), 4), (Some(60), 60), (None, 15), (Some(0), 15)] {
        let mut memory = Memory::default();
        // Its clock is years behind ours: that proves nothing.
        let theirs = held("other", 100, promised);
        let until = begin + seconds(waits);
        let wait = Step::Wait {
            holder: "other".into(),
            until,
        };
        let ours = wall(1_800_000_000);
        let early = until - Duration::from_millis(1);
        for now in [begin, early] {
            let step = decide(Some(&theirs), &mut memory, &me, now, ours);
            assert_eq!(step, wait, "{promised:?}");
        }
        let taken = written(decide(Some(&theirs), &mut memory, &me, until, ours));
        assert_eq!(spec(&taken).holder_identity.as_deref(), Some("me"));
        assert_eq!(spec(&taken).lease_duration_seconds, Some(15));
        assert_eq!(spec(&taken).lease_transitions, Some(8));
        assert_eq!(spec(&taken).acquire_time, Some(MicroTime(ours)));
    }
}

#[test]
fn any_change_of_the_record_begins_the_wait_anew() {
    let me = config("me");
    let mut memory = Memory::default();
    let mut now = Instant::now();
    for renewed in [100, 102, 101] {
        let theirs = held("other", renewed, Some(15));
        let step = decide(Some(&theirs), &mut memory, &me, now, wall(0));
        let until = now + seconds(15);
        assert!(matches!(step, Step::Wait { until: u, .. } if u == until));
        now += seconds(14);
    }
}

#[test]
fn a_lease_deleted_under_its_holder_is_not_taken_before_the_holder_must_have_ended() {
    let me = config("me");
    let mut memory = Memory::default();
    let begin = Instant::now();
    let theirs = held("other", 100, Some(15));
    decide(Some(&theirs), &mut memory, &me, begin, wall(0));
    let step = decide(None, &mut memory, &me, begin + seconds(14), wall(0));
    assert!(matches!(step, Step::Wait { .. }), "{step:?}");
    let step = decide(None, &mut memory, &me, begin + seconds(15), wall(0));
    assert_eq!(spec(&written(step)).lease_transitions, Some(0));
}

#[test]
fn a_renewal_changes_nothing_but_its_time() {
    let me = config("me");
    let now = Instant::now();
    let mut mine = held("me", 100, Some(15));
    mine.metadata.annotations = Some([("kept".to_owned(), "yes".to_owned())].into());
    let mut memory = Memory::default();
    memory.accepted(&me, now, now);
    let renewed = written(decide(Some(&mine), &mut memory, &me, now, wall(110)));
    mine.spec.as_mut().unwrap().renew_time = Some(MicroTime(wall(110)));
    assert_eq!(renewed, mine);
}

#[test]
fn a_leader_ends_when_the_record_is_not_its_own_or_too_old() {
    let me = config("me");
    let begin = Instant::now();
    let leads = || Memory {
        seen: None,
        renewed: Some(begin),
    };
    let cases = [
        (Some(held("other", 1, Some(15))), "\"other\" holds it"),
        (Some(held("", 1, Some(1))), "nobody holds it"),
        (None, "it was deleted"),
    ];
    for (lease, says) in cases {
        let step = decide(lease.as_ref(), &mut leads(), &me, begin, wall(0));
        assert_eq!(step, Step::TakenAway(says.into()));
    }
    let mine = held("me", 1, Some(15));
    let late = begin + me.renew_deadline;
    let step = decide(Some(&mine), &mut leads(), &me, late, wall(0));
    assert_eq!(step, Step::NotRenewed);
}

#[test]
fn an_answer_that_comes_too_late_makes_no_leader() {
    let me = config("me");
    let sent = Instant::now();
    let mut memory = Memory::default();
    memory.accepted(&me, sent, sent + me.renew_deadline);
    assert_eq!(memory.leads_until(&me), None);
    memory.accepted(&me, sent, sent + seconds(9));
    assert_eq!(memory.leads_until(&me), Some(sent + me.renew_deadline));
}

#[test]
fn only_the_holder_lets_go() {
    let me = config("me");
    assert_eq!(let_go(&held("other", 1, None), &me, wall(2)), None);
    let free = let_go(&held("me", 1, Some(15)), &me, wall(2)).unwrap();
    let json = serde_json::to_value(&free.spec).unwrap();
    let expected = serde_json::json!({
        "holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 7,
        "acquireTime": "1970-01-01T00:00:02.000000Z", "renewTime": "1970-01-01T00:00:02.000000Z",
    });
    assert_eq!(json, expected);
}

#[test]
fn times_that_do_not_fit_are_refused() {
    let check = |change: fn(&mut LeaderConfig)| {
        let mut config = config("me");
        change(&mut config);
        config.check().is_ok()
    };
    assert!(check(|_| {}));
    assert!(!check(|config| config.identity.clear()));
    assert!(!check(|config| config.retry = Duration::ZERO));
    assert!(!check(|config| config.retry = seconds(6)));
    assert!(!check(|config| config.renew_deadline = seconds(15)));
    // The record has whole seconds only.
    assert!(!check(|config| {
        config.renew_deadline = Duration::from_millis(15_200);
        config.duration = Duration::from_millis(15_500);
    }));
}

#[test]
fn two_processes_of_one_pod_have_two_identities() {
    let [a, b] = [1, 2].map(|_| LeaderConfig::new("n", "l", "pod").identity);
    assert!(a.starts_with("pod_"));
    assert_ne!(a, b);
}

/// What happens to a request.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// It is done, and the answer arrives.
    Works,
    /// It never arrives.
    Lost,
    /// It is done, and the answer is lost.
    Unanswered,
    /// The sender gives up, and it is done some time later.
    Late,
    /// The sender is told to end and lets go of the Lease.
    Release,
}

#[derive(Debug)]
enum Phase {
    Idle,
    Read(Option<Lease>),
    Sent(Lease, Instant),
    Accepted(Lease, Instant),
}

/// One candidate: its own clock begins anywhere and runs at its own rate.
#[derive(Debug)]
struct Candidate {
    config: LeaderConfig,
    memory: Memory,
    phase: Phase,
    known: Option<Lease>,
    begin: Instant,
    rate: u32,
}

#[derive(Debug, Default)]
struct Server {
    lease: Option<Lease>,
    version: u32,
    late: Vec<Lease>,
}

impl Server {
    fn write(&mut self, mut new: Lease) -> Option<Lease> {
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        if version(&new) != self.lease.as_ref().and_then(version) {
            return None;
        }
        self.version += 1;
        new.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(new.clone());
        Some(new)
    }
}

impl Candidate {
    fn now(&self, time: Duration) -> Instant {
        self.begin + time * self.rate / 1000
    }

    fn leads(&self, time: Duration) -> bool {
        let until = self.memory.leads_until(&self.config);
        until.is_some_and(|until| self.now(time) < until)
    }

    /// The process ends, and another one takes its place.
    fn restart(&mut self) {
        self.config.identity.push('+');
        self.memory = Memory::default();
        self.phase = Phase::Idle;
        self.known = None;
    }

    fn go_on(&mut self, server: &mut Server, fate: Fate, time: Duration) {
        let now = self.now(time);
        let shows = Timestamp::from_second(0).unwrap() + time / 2;
        if self.memory.renewed.is_some() && !self.leads(time) {
            return self.restart();
        }
        if matches!(fate, Fate::Release) {
            let lease = server.lease.clone();
            let free = lease.and_then(|lease| let_go(&lease, &self.config, shows));
            self.restart();
            free.and_then(|free| server.write(free));
            return;
        }
        self.phase = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => Phase::Read(self.known.take().or_else(|| server.lease.clone())),
            Phase::Read(lease) => {
                match decide(lease.as_ref(), &mut self.memory, &self.config, now, shows) {
                    Step::Write(new) => Phase::Sent(*new, now),
                    Step::Wait { .. } => Phase::Idle,
                    Step::TakenAway(_) | Step::NotRenewed => return self.restart(),
                }
            }
            Phase::Sent(new, sent) => match fate {
                Fate::Works => server
                    .write(new)
                    .map_or(Phase::Idle, |lease| Phase::Accepted(lease, sent)),
                Fate::Unanswered => {
                    server.write(new);
                    Phase::Idle
                }
                Fate::Late => {
                    server.late.push(new);
                    Phase::Idle
                }
                Fate::Lost | Fate::Release => Phase::Idle,
            },
            Phase::Accepted(lease, sent) => {
                self.memory.accepted(&self.config, sent, now);
                self.known = Some(lease);
                Phase::Idle
            }
        };
    }
}

/// Two candidates whose clocks run at the given thousandths of the true rate.
fn candidates(rates: [u32; 2]) -> [Candidate; 2] {
    let candidate = |identity: &str, rate| Candidate {
        config: config(identity),
        memory: Memory::default(),
        phase: Phase::Idle,
        known: None,
        begin: Instant::now() + seconds(u64::from(rate)),
        rate,
    };
    [candidate("a", rates[0]), candidate("b", rates[1])]
}

/// Lets them go on, and says who came to lead, in order. Fails if two lead at the same time.
fn simulate(rates: [u32; 2], events: &[(usize, Fate, u64)]) -> Vec<String> {
    let mut server = Server::default();
    let mut both = candidates(rates);
    let mut time = Duration::ZERO;
    let mut leaders: Vec<String> = Vec::new();
    for (who, fate, pause) in events {
        time += Duration::from_millis(*pause);
        if let Some(late) = server.late.pop()
            && *pause % 3 == 0
        {
            server.write(late);
        }
        both[*who].go_on(&mut server, *fate, time);
        let leading: Vec<&Candidate> = both.iter().filter(|one| one.leads(time)).collect();
        assert!(leading.len() < 2, "two lead at {time:?}: {both:#?}");
        if let Some(one) = leading.first()
            && leaders.last() != Some(&one.config.identity)
        {
            leaders.push(one.config.identity.clone());
        }
    }
    leaders
}

#[test]
fn in_the_simulation_the_second_takes_over_from_a_silent_or_leaving_first() {
    let works = |who| (who, Fate::Works, 100);
    let take = |who| [works(who); 4];
    let mut events = [take(0), take(1)].concat();
    // The first is silent for longer than the duration, by the clock of the second.
    events.push((1, Fate::Works, 16_000));
    events.extend(take(1));
    events.push((1, Fate::Release, 100));
    events.extend(take(0));
    events.extend(take(0));
    let leaders = simulate([1000, 1000], &events);
    assert_eq!(leaders, ["a", "b", "a+"]);
}

#[test]
fn in_the_simulation_a_slow_answer_counts_from_when_it_was_asked_for() {
    let works = |who, pause| (who, Fate::Works, pause);
    // The first reads, decides and has its write accepted; the second sees that at once.
    let mut events = vec![
        works(0, 0),
        works(0, 0),
        works(0, 0),
        works(1, 0),
        works(1, 0),
    ];
    // The answer takes nine seconds; six more, and the second may take it.
    events.extend([works(0, 9_000), works(1, 6_100)]);
    events.extend([works(1, 0); 3]);
    assert_eq!(simulate([1000, 1000], &events), ["a", "b"]);
}

/// One of them takes a few steps in a row, then time goes by: that is how one overtakes the other.
fn events() -> impl Strategy<Value = Vec<(usize, Fate, u64)>> {
    let fate = prop_oneof![
        16 => Just(Fate::Works),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Unanswered),
        1 => Just(Fate::Late),
        1 => Just(Fate::Release),
    ];
    let pause = prop_oneof![2 => 0..200_u64, 1 => 3_000..17_000_u64];
    let steps = proptest::collection::vec((fate, 0..100_u64), 1..6);
    let burst = (0..2_usize, pause, steps).prop_map(|(who, pause, mut steps)| {
        if let Some((_, first)) = steps.first_mut() {
            *first = pause;
        }
        steps
            .into_iter()
            .map(move |(fate, pause)| (who, fate, pause))
            .collect::<Vec<_>>()
    });
    proptest::collection::vec(burst, 1..60).prop_map(|bursts| bursts.concat())
}

fn rate() -> impl Strategy<Value = u32> {
    prop_oneof![Just(900), Just(1100), 900..=1100_u32]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Clocks may differ by a tenth from the truth, each in its own direction.
    #[test]
    fn never_do_two_lead_at_the_same_time(
        rates in [rate(), rate()],
        events in events(),
    ) {
        simulate(rates, &events);
    }
}
