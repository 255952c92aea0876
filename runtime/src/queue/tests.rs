//! The queue against a model, and its waiting with a clock that jumps.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use proptest::prelude::*;
use tokio::sync::Semaphore;

use super::*;
use crate::Health;

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

#[tokio::test(start_paused = true)]
async fn keys_come_in_the_order_they_are_due_and_each_once() {
    let queue = Queue::new();
    queue.add_after("later", seconds(20));
    queue.add_after("sooner", seconds(10));
    queue.add("now");
    queue.add("now");
    queue.add("then");
    assert_eq!(queue.len(), 2);
    let mut seen = Vec::new();
    let begin = Instant::now();
    for _ in 0..4 {
        let work = queue.next().await;
        seen.push((*work.key(), begin.elapsed().as_secs()));
    }
    assert_eq!(
        seen,
        [("now", 0), ("then", 0), ("sooner", 10), ("later", 20)]
    );
    assert!(queue.is_empty());
    assert!(queue.next().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn the_earlier_time_wins() {
    let queue = Queue::new();
    queue.add_after("a", seconds(10));
    queue.add_after("a", seconds(60));
    queue.add_after("b", seconds(60));
    queue.add_after("b", seconds(5));
    queue.add_after("c", seconds(60));
    queue.add("c");
    let begin = Instant::now();
    for expected in [("c", 0), ("b", 5), ("a", 10)] {
        let work = queue.next().await;
        assert_eq!((*work.key(), begin.elapsed().as_secs()), expected);
    }
    assert!(queue.next().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_key_in_work_comes_again_only_when_that_is_done() {
    let queue = Queue::new();
    queue.add("a");
    let work = queue.next().await;
    queue.add_after("a", seconds(30));
    queue.add("a");
    queue.add("b");
    assert_eq!(queue.next().await.key(), &"b");
    assert!(queue.next().now_or_never().is_none());
    assert_eq!(queue.len(), 0);
    let (again, ()) = tokio::join!(queue.next(), async { drop(work) });
    assert_eq!(again.key(), &"a");
    drop(again);
    assert!(queue.next().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_due_can_be_taken_back_and_what_is_due_cannot() {
    let queue = Queue::new();
    queue.add_after("delayed", seconds(1));
    queue.add("due");
    queue.remove_delayed(&"delayed");
    queue.remove_delayed(&"due");
    let work = queue.next().await;
    assert_eq!(work.key(), &"due");
    queue.add_after("due", seconds(1));
    queue.remove_delayed(&"due");
    drop(work);
    tokio::time::advance(seconds(2)).await;
    assert!(queue.next().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn how_long_the_oldest_waits_is_counted_from_when_it_was_due() {
    let queue = Queue::new();
    queue.add_after("a", seconds(10));
    assert_eq!(queue.oldest(), None);
    tokio::time::advance(seconds(13)).await;
    assert_eq!(queue.oldest(), Some(seconds(3)));
    assert_eq!(queue.next().await.waited(), seconds(3));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_wakes_for_the_key_that_is_next() {
    let queue = Queue::new();
    queue.add_after("far", seconds(1000));
    let take = || {
        let queue = queue.clone();
        tokio::spawn(async move {
            let work = queue.next().await;
            let seen = (*work.key(), Instant::now());
            // It keeps its key, as a long piece of work does.
            std::mem::forget(work);
            seen
        })
    };
    let begin = Instant::now();
    let workers = [take(), take()];
    tokio::task::yield_now().await;
    queue.add_after("first", seconds(10));
    queue.add_after("second", seconds(20));
    let mut seen = Vec::new();
    for worker in workers {
        let (key, at) = worker.await.unwrap();
        seen.push((key, (at - begin).as_secs()));
    }
    seen.sort_unstable();
    assert_eq!(seen, [("first", 10), ("second", 20)]);
}

#[tokio::test(start_paused = true)]
async fn so_many_work_at_a_time_and_what_has_begun_is_brought_to_its_end() {
    let queue = Queue::new();
    (0..5).for_each(|key| queue.add(key));
    let cancel = CancellationToken::new();
    let pulse = Health::default().pulse("work", seconds(60));
    let gate = Arc::new(Semaphore::new(0));
    let begun = Arc::new(Semaphore::new(0));
    let ended = Arc::new(AtomicUsize::new(0));
    let handler = {
        let (gate, begun, ended) = (gate.clone(), begun.clone(), ended.clone());
        move |_| {
            let (gate, begun, ended) = (gate.clone(), begun.clone(), ended.clone());
            async move {
                begun.add_permits(1);
                gate.acquire().await.unwrap().forget();
                ended.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let working = tokio::spawn(work(queue.clone(), 3, pulse, cancel.clone(), handler));
    begun.acquire_many(3).await.unwrap().forget();
    assert_eq!(queue.len(), 2);
    assert!(begun.try_acquire().is_err());
    gate.add_permits(1);
    begun.acquire().await.unwrap().forget();
    assert_eq!(queue.len(), 1);
    cancel.cancel();
    gate.add_permits(3);
    working.await.unwrap();
    assert_eq!(ended.load(Ordering::Relaxed), 4);
    assert_eq!(queue.len(), 1);
}

#[tokio::test]
async fn a_handler_that_panics_ends_its_loop() {
    let queue = Queue::new();
    queue.add("a");
    let pulse = Health::default().pulse("work", seconds(60));
    let handler = |_| async { panic!("a bug") };
    let working = work(queue, 2, pulse, CancellationToken::new(), handler);
    let ended = std::panic::AssertUnwindSafe(working).catch_unwind().await;
    assert_eq!(ended.unwrap_err().downcast_ref(), Some(&"a bug"));
}

#[tokio::test(start_paused = true)]
async fn the_loop_beats_while_a_worker_is_free_and_not_while_none_is() {
    let health = Health::default();
    let queue = Queue::new();
    let pulse = health.pulse("work", seconds(60));
    let cancel = CancellationToken::new();
    let gate = Arc::new(Semaphore::new(0));
    let handler = {
        let gate = gate.clone();
        move |_| {
            let gate = gate.clone();
            async move { gate.acquire().await.unwrap().forget() }
        }
    };
    let working = tokio::spawn(work(queue.clone(), 2, pulse, cancel.clone(), handler));
    queue.add("a");
    tokio::time::sleep(seconds(600)).await;
    assert!(health.stuck().is_empty());
    queue.add("b");
    tokio::time::sleep(seconds(600)).await;
    assert_eq!(health.stuck(), ["work stands still for 600 s"]);
    gate.add_permits(2);
    tokio::time::sleep(seconds(600)).await;
    assert!(health.stuck().is_empty());
    cancel.cancel();
    working.await.unwrap();
}

#[derive(Debug, Clone)]
enum Event {
    Add(u8, u64),
    RemoveDelayed(u8),
    Take,
    Done(prop::sample::Index),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let wait = prop_oneof![Just(0_u64), 0..20_u64];
    prop_oneof![
        4 => (0..6_u8, wait).prop_map(|(key, wait)| Event::Add(key, wait)),
        1 => (0..6_u8).prop_map(Event::RemoveDelayed),
        3 => Just(Event::Take),
        2 => any::<prop::sample::Index>().prop_map(Event::Done),
        1 => (0..15_u64).prop_map(Event::Pass),
    ]
}

/// What every key's turn is, told in the simplest way: when, and in which place.
#[derive(Default)]
struct Model {
    wanted: BTreeMap<u8, Turn>,
    in_work: BTreeSet<u8>,
    added: u64,
}

impl Model {
    fn next(&self, now: Instant) -> Option<u8> {
        let due = self.wanted.iter();
        due.filter(|(key, (at, _))| *at <= now && !self.in_work.contains(key))
            .min_by_key(|(_, turn)| **turn)
            .map(|(key, _)| *key)
    }
}

proptest! {
    #[test]
    fn no_key_is_lost_and_none_is_in_work_twice(events in proptest::collection::vec(event(), 0..200)) {
        let mut now = Instant::now();
        let mut queue = State::new();
        let mut model = Model::default();
        for event in events {
            match event {
                Event::Add(key, wait) => {
                    let at = now + seconds(wait);
                    queue.add(key, at);
                    model.added += 1;
                    let turn = (at, model.added);
                    let wanted = model.wanted.entry(key).or_insert(turn);
                    *wanted = turn.min(*wanted);
                }
                Event::RemoveDelayed(key) => {
                    queue.remove_delayed(&key, now);
                    if model.wanted.get(&key).is_some_and(|(at, _)| *at > now) {
                        model.wanted.remove(&key);
                    }
                }
                Event::Take => {
                    let taken = queue.take(now).map(|(key, _)| key);
                    prop_assert_eq!(taken, model.next(now));
                    if let Some(key) = taken {
                        model.wanted.remove(&key);
                        prop_assert!(model.in_work.insert(key), "{} twice at once", key);
                    }
                }
                Event::Done(which) => {
                    let in_work: Vec<u8> = model.in_work.iter().copied().collect();
                    if !in_work.is_empty() {
                        let key = *which.get(&in_work);
                        queue.done(&key);
                        model.in_work.remove(&key);
                    }
                }
                Event::Pass(time) => now += seconds(time),
            }
            let due = |(key, (at, _)): &(&u8, &Turn)| *at <= now && !model.in_work.contains(key);
            prop_assert_eq!(queue.due(now), model.wanted.iter().filter(due).count());
        }
        // In the end all that was wanted comes, each once.
        for key in std::mem::take(&mut model.in_work) {
            queue.done(&key);
        }
        now += seconds(1000);
        while let Some((key, _)) = queue.take(now) {
            prop_assert!(model.wanted.remove(&key).is_some(), "{} was not wanted", key);
            queue.done(&key);
        }
        prop_assert!(model.wanted.is_empty(), "lost: {:?}", model.wanted);
    }
}
