//! The HA agent: reacts when something happens to an instance.
//!
//! `trigger` says which events are failures, `decide` what is done about one (both pure), `act` does
//! it. A failure is left to settle for a moment, because its events come together and a failure of
//! the host shows in many instances; then the instance is looked at, and what is done depends on how
//! it is by then. Whoever was faster (a person, Nova) is not fought: an instance that runs again, or
//! was stopped by somebody, is left alone.
//!
//! What was done is kept in memory only. An agent that starts anew may restart an instance as often
//! as configured once more; the waits between restarts double, and an Eviction that is under way is
//! found by its name, so nothing runs away.
//!
//! While the node's Lease cannot be renewed nothing is done: when its duration has passed, somebody
//! else may start the instances elsewhere. A failure waits until the Lease is renewed; if that took as
//! long as the Lease lasts, the instance is left alone.

mod act;
mod agent;
pub mod decide;
pub mod metrics;
pub mod trigger;

#[cfg(test)]
mod tests;

use std::time::Duration;

use cobalt_libvirt::Event;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use agent::Agent;
pub use decide::HaConfig;
pub use metrics::HaMetrics;

use crate::context::Context;
use crate::lease::{Holder, Term};

const PULSE: Duration = Duration::from_secs(180);

/// Runs until it is cancelled.
pub async fn run(
    ctx: Context,
    config: HaConfig,
    mut holder: watch::Receiver<Holder>,
    mut term: watch::Receiver<Term>,
    metrics: HaMetrics,
    cancel: CancellationToken,
) {
    let pulse = ctx.health.pulse("ha", PULSE);
    let mut events = ctx.events.subscribe();
    let mut libvirt = ctx.libvirt.clone();
    let mut domains = ctx.domains.clone();
    let mut hypervisor = ctx.hypervisor.clone();
    let mut agent = Agent::new(ctx, config, metrics, holder.clone(), term.clone());
    agent.learn_policies();
    agent.scan().await;
    loop {
        pulse.beat();
        agent.say_whether_it_acts();
        tokio::select! {
            () = cancel.cancelled() => return,
            event = events.recv() => match event {
                Ok(event) if matches!(*event, Event::Overflow) => agent.scan().await,
                Ok(event) => agent.event(&event),
                Err(broadcast::error::RecvError::Lagged(_)) => agent.scan().await,
                Err(broadcast::error::RecvError::Closed) => return,
            },
            changed = domains.changed() => {
                if changed.is_err() { return }
                agent.learn_policies();
            }
            changed = libvirt.changed() => {
                if changed.is_err() { return }
                agent.scan().await;
            }
            changed = holder.changed() => {
                if changed.is_err() { return }
                agent.scan().await;
            }
            changed = term.changed() => if changed.is_err() { return },
            changed = hypervisor.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(agent.next_due()) => agent.settle().await,
            Some(done) = agent.tasks.join_next() => {
                if let Ok(done) = done {
                    agent.done(done);
                }
            }
        }
    }
}
