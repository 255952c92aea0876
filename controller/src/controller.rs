//! Runs a controller: each key of its queue is observed, decided and acted on.
//!
//! A key whose action failed is tried again, later each time, up to five minutes. A key whose object
//! changes is reconciled at once, whatever it waits for.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cobalt_runtime::{Backoff, Key, Pulse, Queue, chain, work};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::KubeError;

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(300);

/// What follows a successful action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing, until something that is watched changes.
    AwaitChange,
    /// Reconcile the key again after this time.
    After(Duration),
}

/// One controller. It reads stores and writes through the client of its [`App`](crate::App).
pub trait Controller: Send + Sync + 'static {
    /// Its name in logs and metrics.
    const NAME: &'static str;
    /// Which object.
    type Key: Key + Display + Sync;
    /// Everything that a decision needs.
    type Observation: Send;
    /// What is to be done.
    type Plan: Send;

    /// Waits until the stores are complete: before that, absence means nothing.
    fn until_ready(&self) -> impl Future<Output = ()> + Send;

    /// Reads everything that the decision needs; `None` if the object is gone.
    fn observe(&self, key: &Self::Key) -> Option<Self::Observation>;

    /// Decides, without I/O and without a clock; `None` if there is nothing to do.
    fn decide(&self, observation: &Self::Observation) -> Option<Self::Plan>;

    /// Carries a plan out.
    fn act(
        &self,
        key: &Self::Key,
        observation: Self::Observation,
        plan: Self::Plan,
    ) -> impl Future<Output = Result<Next, KubeError>> + Send;
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    controller: &'static str,
    outcome: &'static str,
}

/// What is counted of every controller of a process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    reconciles: Family<ReconcileLabels, Counter>,
}

impl Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "cobalt_controller_reconciles",
            "Reconciled keys by outcome: gone, unchanged, acted, or why the action failed",
            self.reconciles.clone(),
        );
    }

    fn count(&self, controller: &'static str, outcome: &'static str) {
        let labels = ReconcileLabels {
            controller,
            outcome,
        };
        self.reconciles.get_or_create(&labels).inc();
    }
}

pub(crate) struct Runner<C: Controller> {
    pub(crate) controller: C,
    pub(crate) queue: Queue<C::Key>,
    pub(crate) metrics: Metrics,
    /// Of the keys whose last action failed.
    pub(crate) retries: Mutex<BTreeMap<C::Key, Backoff>>,
}

impl<C: Controller> Runner<C> {
    /// Works on the queue until it is cancelled; actions under way are brought to their end.
    pub(crate) async fn run(self, workers: usize, pulse: Pulse, cancel: CancellationToken) {
        let ready = self.controller.until_ready();
        // Watches that were told to end are never ready.
        if cancel.run_until_cancelled(ready).await.is_none() {
            return;
        }
        let queue = self.queue.clone();
        let runner = Arc::new(self);
        work(queue, workers, pulse, cancel, move |key| {
            let runner = Arc::clone(&runner);
            async move { runner.reconcile(key).await }
        })
        .await;
    }

    async fn reconcile(&self, key: C::Key) {
        let outcome = match self.controller.observe(&key) {
            None => "gone",
            Some(observation) => match self.controller.decide(&observation) {
                None => "unchanged",
                Some(plan) => match self.controller.act(&key, observation, plan).await {
                    Ok(next) => {
                        if let Next::After(wait) = next {
                            self.queue.add_after(key.clone(), wait);
                        }
                        "acted"
                    }
                    Err(error) => return self.failed(key, &error),
                },
            },
        };
        tracing::debug!(controller = C::NAME, object = %key, outcome, "reconciled");
        self.metrics.count(C::NAME, outcome);
        self.retries().remove(&key);
    }

    fn failed(&self, key: C::Key, error: &KubeError) {
        let wait = {
            let mut retries = self.retries();
            let backoff = || Backoff::new(FIRST_RETRY, LONGEST_RETRY);
            let backoff = retries.entry(key.clone()).or_insert_with(backoff);
            backoff.next_wait()
        };
        tracing::warn!(
            controller = C::NAME,
            object = %key,
            error = chain(error),
            retry_seconds = wait.as_secs(),
            "failed to reconcile"
        );
        self.metrics.count(C::NAME, error.reason());
        self.queue.add_after(key, wait);
    }

    fn retries(&self) -> std::sync::MutexGuard<'_, BTreeMap<C::Key, Backoff>> {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use cobalt_runtime::Health;
    use tokio::sync::watch;

    use super::*;

    /// Fails so often, then succeeds.
    struct Flaky {
        failures: u32,
        acts: watch::Sender<u32>,
    }

    impl Controller for Flaky {
        const NAME: &'static str = "flaky";
        type Key = u32;
        type Observation = u32;
        type Plan = ();

        async fn until_ready(&self) {}

        fn observe(&self, key: &u32) -> Option<u32> {
            (*key > 0).then_some(*key)
        }

        fn decide(&self, observation: &u32) -> Option<()> {
            (*observation > 1).then_some(())
        }

        async fn act(&self, _: &u32, _: u32, (): ()) -> Result<Next, KubeError> {
            self.acts.send_modify(|acts| *acts += 1);
            if *self.acts.borrow() > self.failures {
                return Ok(Next::AwaitChange);
            }
            Err(KubeError::Timeout {
                request: "act".to_owned(),
                after: Duration::from_secs(1),
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_action_is_tried_again_until_it_succeeds_and_nothing_else_is_done() {
        let (acts, mut acted) = watch::channel(0);
        let queue = Queue::new();
        for key in 0..3 {
            queue.add(key);
        }
        let metrics = Metrics::default();
        let runner = Runner {
            controller: Flaky { failures: 4, acts },
            queue,
            metrics: metrics.clone(),
            retries: Mutex::default(),
        };
        let cancel = CancellationToken::new();
        let pulse = Health::default().pulse("flaky", Duration::from_secs(60));
        let run = tokio::spawn(runner.run(1, pulse, cancel.clone()));
        acted.wait_for(|acts| *acts == 5).await.unwrap();
        // A key that comes again would do so within the longest retry.
        let again = acted.wait_for(|acts| *acts > 5);
        assert!(
            tokio::time::timeout(LONGEST_RETRY * 2, again)
                .await
                .is_err()
        );
        cancel.cancel();
        run.await.unwrap();
        let count = |outcome| {
            let labels = ReconcileLabels {
                controller: "flaky",
                outcome,
            };
            metrics.reconciles.get_or_create(&labels).get()
        };
        assert_eq!(
            ["gone", "unchanged", "acted", "timeout"].map(count),
            [1, 1, 1, 4]
        );
    }
}
