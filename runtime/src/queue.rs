//! A queue of keys to work on: each waits once, none is worked on twice at the same time.
//!
//! A key that is added while it waits keeps its place, or gets an earlier one; a key that is added
//! while it is worked on waits again when that is done. Keys are handed out in the order of the time
//! they are due. So a storm of changes to one object is one piece of work, and nobody is starved.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::Pulse;

/// How often a loop that has nothing to do shows that it lives.
const BEAT: Duration = Duration::from_secs(5);

/// What a key must be.
pub trait Key: Clone + Ord + Debug + Send + 'static {}

impl<K: Clone + Ord + Debug + Send + 'static> Key for K {}

/// When a key is due, and its place among those that are due at the same time.
type Turn = (Instant, u64);

/// What waits and what is worked on.
#[derive(Debug)]
struct State<K> {
    order: BTreeSet<(Turn, K)>,
    waiting: BTreeMap<K, Turn>,
    /// With the turn that was asked for meanwhile.
    in_work: BTreeMap<K, Option<Turn>>,
    added: u64,
}

impl<K: Key> State<K> {
    fn new() -> Self {
        Self {
            order: BTreeSet::new(),
            waiting: BTreeMap::new(),
            in_work: BTreeMap::new(),
            added: 0,
        }
    }

    /// Adds a key. Whether somebody who waits may have to know.
    fn add(&mut self, key: K, at: Instant) -> bool {
        self.added = self.added.wrapping_add(1);
        let turn = (at, self.added);
        if let Some(again) = self.in_work.get_mut(&key) {
            *again = Some(again.map_or(turn, |earlier| earlier.min(turn)));
            return false;
        }
        if let Some(earlier) = self.waiting.get(&key) {
            if *earlier <= turn {
                return false;
            }
            self.order.remove(&(*earlier, key.clone()));
        }
        self.waiting.insert(key.clone(), turn);
        self.order.insert((turn, key))
    }

    /// Hands out the key that has been due for longest.
    fn take(&mut self, now: Instant) -> Option<(K, Instant)> {
        if self.next_due()? > now {
            return None;
        }
        let ((due, _), key) = self.order.pop_first()?;
        self.waiting.remove(&key);
        self.in_work.insert(key.clone(), None);
        Some((key, due))
    }

    /// The work on a key is done. Whether it waits again.
    fn done(&mut self, key: &K) -> bool {
        match self.in_work.remove(key) {
            Some(Some(turn)) => {
                self.waiting.insert(key.clone(), turn);
                self.order.insert((turn, key.clone()))
            }
            Some(None) | None => false,
        }
    }

    /// Forgets a key that is not due yet.
    fn remove_delayed(&mut self, key: &K, now: Instant) {
        if let Some(again) = self.in_work.get_mut(key) {
            again.take_if(|(due, _)| *due > now);
        }
        if let Some(turn) = self.waiting.get(key).filter(|(due, _)| *due > now) {
            self.order.remove(&(*turn, key.clone()));
            self.waiting.remove(key);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.order.first().map(|((due, _), _)| *due)
    }

    fn due(&self, now: Instant) -> usize {
        let is_due = |((due, _), _): &&(Turn, K)| *due <= now;
        self.order.iter().take_while(is_due).count()
    }
}

#[derive(Debug)]
struct Shared<K> {
    state: Mutex<State<K>>,
    news: Notify,
}

/// Keys to work on. A clone is the same queue.
#[derive(Debug)]
pub struct Queue<K>(Arc<Shared<K>>);

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Key> Default for Queue<K> {
    fn default() -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State::new()),
            news: Notify::new(),
        }))
    }
}

impl<K: Key> Queue<K> {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Work on this key as soon as possible.
    pub fn add(&self, key: K) {
        self.add_after(key, Duration::ZERO);
    }

    /// Work on this key after a while. If it waits already, the earlier time counts.
    pub fn add_after(&self, key: K, wait: Duration) {
        let at = Instant::now() + wait;
        if self.lock().add(key, at) {
            self.0.news.notify_one();
        }
    }

    /// Do not work on this key later. One that is due stays.
    pub fn remove_delayed(&self, key: &K) {
        self.lock().remove_delayed(key, Instant::now());
    }

    /// The next key, as soon as one is due. It is nobody else's until the [`Work`] is dropped.
    pub async fn next(&self) -> Work<K> {
        loop {
            let now = Instant::now();
            let (taken, next_due) = {
                let mut state = self.lock();
                (state.take(now), state.next_due())
            };
            if let Some((key, due)) = taken {
                return Work {
                    queue: self.clone(),
                    key,
                    waited: now.saturating_duration_since(due),
                };
            }
            let until_due = async {
                match next_due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            // Each key that is added wakes the one that has waited longest, so that of several who
            // wait, one always knows of the earliest key.
            tokio::select! {
                () = self.0.news.notified() => {}
                () = until_due => {}
            }
        }
    }

    /// How many keys are due and wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().due(Instant::now())
    }

    /// Whether no key is due and waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.oldest().is_none()
    }

    /// How long the key that waits longest has been due.
    #[must_use]
    pub fn oldest(&self) -> Option<Duration> {
        let next_due = self.lock().next_due();
        Instant::now().checked_duration_since(next_due?)
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key that is worked on.
#[derive(Debug)]
pub struct Work<K: Key> {
    queue: Queue<K>,
    key: K,
    waited: Duration,
}

impl<K: Key> Work<K> {
    /// What to work on.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.key
    }

    /// How long it was due before it was handed out.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl<K: Key> Drop for Work<K> {
    fn drop(&mut self) {
        if self.queue.lock().done(&self.key) {
            self.queue.0.news.notify_one();
        }
    }
}

/// Works on the keys of a queue, so many at a time, until it is cancelled; then what has begun is
/// brought to its end. The handler adds its key again if there is more to do.
///
/// The loop beats while a worker is free or becomes free: the pulse may be silent for as long as all
/// of them may be busy, and for 5 s at least.
///
/// # Panics
///
/// When a handler does: that is a bug, and the process ends with the task that runs this.
pub async fn work<K, F, R>(
    queue: Queue<K>,
    workers: usize,
    pulse: Pulse,
    cancel: CancellationToken,
    handler: F,
) where
    K: Key,
    F: Fn(K) -> R,
    R: Future<Output = ()> + Send + 'static,
{
    let mut running = JoinSet::new();
    let mut beat = tokio::time::interval(BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let free = running.len() < workers.max(1);
        tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            Some(ended) = running.join_next() => {
                pass_on(ended);
                pulse.beat();
            }
            work = queue.next(), if free => {
                let task = handler(work.key().clone());
                running.spawn(async move {
                    task.await;
                    drop(work);
                });
                pulse.beat();
            }
            _ = beat.tick(), if free => pulse.beat(),
        }
    }
    while let Some(ended) = running.join_next().await {
        pass_on(ended);
    }
}

fn pass_on(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests;
