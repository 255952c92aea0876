//! Migrations: one object for each, written by the agents of both hosts.
//!
//! The agent of the source makes the object and decides how the migration ended; the agent of the
//! destination finds it by the instance and keeps an entry of its own in it. Progress is read from
//! libvirt every second and written every few seconds; nothing is read or written while nothing
//! moves, but for a rare look at all jobs, because libvirt does not tell that one has begun.
//!
//! `signal` says what an event means, `machine` how one migration goes, `book` keeps them all,
//! `object` knows whose object is whose (all pure); `look` asks libvirt and `write` writes.

pub mod arrival;
pub mod book;
mod engine;
pub mod look;
pub mod machine;
pub mod metrics;
pub mod object;
pub mod sample;
pub mod signal;
mod text;
pub mod write;

#[cfg(test)]
mod tests;

use std::time::Duration;

use cobalt_api::migration::Migration;
use cobalt_api::names::labels;
use cobalt_runtime::{Backoff, chain, jitter};
use futures::StreamExt;
use futures::stream::BoxStream;
use kube::Api;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use engine::Engine;
pub use metrics::MigrationMetrics;

use crate::context::Context;
use crate::lease::Holder;

/// How often running migrations are looked at.
const SAMPLE: Duration = Duration::from_secs(1);
/// How often all jobs are looked at: a migration that copies disks first sends no event for a while.
const SCAN: Duration = Duration::from_secs(30);
const WATCH_RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Longer than any wait of the loop.
const PULSE: Duration = Duration::from_secs(180);

/// How migrations are written.
#[derive(Debug, Clone)]
pub struct MigrationConfig {
    /// How often the progress of one is written.
    pub write_interval: Duration,
    /// How long one is kept after its end.
    pub ttl: Duration,
}

/// Runs until it is cancelled.
pub async fn run(
    ctx: Context,
    config: MigrationConfig,
    mut holder: watch::Receiver<Holder>,
    metrics: MigrationMetrics,
    cancel: CancellationToken,
) {
    let pulse = ctx.health.pulse("migrations", PULSE);
    let mut events = ctx.events.subscribe();
    let mut libvirt = ctx.libvirt.clone();
    let mut own = own_objects(&ctx);
    let mut watch_backoff = Backoff::new(WATCH_RETRY.0, WATCH_RETRY.1);
    let mut engine = Engine::new(ctx, config, metrics);
    let mut scan_at = tokio::time::Instant::now();
    let mut sample_at = scan_at;
    let mut sweep_at = scan_at + engine.sweep_interval();
    loop {
        pulse.beat();
        let active = !matches!(*holder.borrow_and_update(), Holder::Other(_));
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = holder.changed() => {
                if changed.is_err() { return }
                engine.forget();
                scan_at = tokio::time::Instant::now();
            }
            event = events.recv() => match event {
                Ok(event) if active => engine.event(&event).await,
                // Another agent of this node writes.
                Ok(_) => {}
                Err(broadcast::error::RecvError::Lagged(_)) => scan_at = tokio::time::Instant::now(),
                Err(broadcast::error::RecvError::Closed) => return,
            },
            changed = libvirt.changed() => {
                if changed.is_err() { return }
                scan_at = tokio::time::Instant::now();
            }
            () = tokio::time::sleep_until(scan_at), if active => {
                engine.scan().await;
                scan_at = tokio::time::Instant::now() + jitter(SCAN);
            }
            () = tokio::time::sleep_until(sample_at), if active && !engine.book.is_idle() => {
                engine.sample().await;
                sample_at = tokio::time::Instant::now() + SAMPLE;
            }
            () = tokio::time::sleep_until(sweep_at), if active => {
                engine.sweep();
                sweep_at = tokio::time::Instant::now() + engine.sweep_interval();
            }
            seen = own.next() => match seen {
                Some(Ok(seen)) => {
                    if matches!(seen, watcher::Event::InitDone) {
                        watch_backoff.reset();
                        engine.ctx.health.set_missing("migrations", None);
                        // Whatever was left unfinished is to be looked after now.
                        scan_at = tokio::time::Instant::now();
                    }
                    engine.seen(seen);
                }
                Some(Err(error)) => {
                    let reason = chain(&error);
                    tracing::debug!(error = reason, "watch of Migrations interrupted");
                    if !engine.synced {
                        engine.ctx.health.set_missing("migrations", Some(reason));
                    }
                    own = resume_later(own, watch_backoff.next_wait());
                }
                None => own = own_objects(&engine.ctx),
            },
            Some(_) = engine.tasks.join_next() => {}
        }
    }
}

type Watch = BoxStream<'static, watcher::Result<watcher::Event<DeserializeGuard<Migration>>>>;

/// The Migrations that this node owns.
fn own_objects(ctx: &Context) -> Watch {
    let api: Api<DeserializeGuard<Migration>> = Api::namespaced(ctx.client.clone(), &ctx.namespace);
    let config =
        watcher::Config::default().labels(&format!("{}={}", labels::SOURCE_NODE, ctx.node));
    watcher::watcher(api, config).boxed()
}

/// The same watch after a wait, while everything else goes on.
fn resume_later(watch: Watch, wait: Duration) -> Watch {
    futures::stream::once(async move {
        tokio::time::sleep(wait).await;
        watch
    })
    .flatten()
    .boxed()
}
