//! `/metrics`: the agent's own metrics, and what libvirt counts.
//!
//! libvirt is asked when somebody scrapes, with one bulk call and a deadline that ends before
//! Prometheus' own: what the agent knows about itself is told even if libvirt is mute. Scrapes at the
//! same time share one answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use cobalt_libvirt::{
    Connection, Domain, DomainStats, Error, ListDomains, StatsFlags, StatsGroups, Supported,
    TypedParams,
};
use cobalt_runtime::{chain, metrics};
use futures::future::{BoxFuture, Shared, WeakShared};
use futures::{FutureExt, StreamExt, stream};
use prometheus_client::registry::Registry;

use crate::context::{Context, Domains};
use crate::exporter::{self, Reading};

/// Prometheus gives up after 10 s.
const DEADLINE: Duration = Duration::from_secs(8);
/// Questions to libvirt at the same time, where one does not answer all.
const AT_ONCE: usize = 8;

/// The answer to a scrape.
type Answer = BoxFuture<'static, Bytes>;

/// `GET /metrics`.
pub fn routes(ctx: Context, registry: Arc<Registry>) -> Router {
    let running = Arc::new(Mutex::new(None));
    let handler = async move || {
        let answer = join(&running, || {
            answer(ctx.clone(), Arc::clone(&registry)).boxed()
        });
        ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], answer.await)
    };
    Router::new().route("/metrics", get(handler))
}

/// The answer that is being made, or a new one. It ends with the last one who waits for it.
fn join(
    running: &Mutex<Option<WeakShared<Answer>>>,
    new: impl FnOnce() -> Answer,
) -> Shared<Answer> {
    let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(answer) = running.as_ref().and_then(WeakShared::upgrade) {
        return answer;
    }
    let answer = new().shared();
    *running = answer.downgrade();
    answer
}

async fn answer(ctx: Context, registry: Arc<Registry>) -> Bytes {
    let connection = ctx.libvirt.borrow().clone();
    let facts = Arc::clone(&ctx.domains.borrow());
    let reading = match connection {
        Some(connection) => read(&connection.with_call_timeout(DEADLINE), &facts).await,
        None => None,
    };
    let mut body = metrics::text(&registry);
    exporter::write(&mut body, reading.as_ref(), &facts);
    body.into()
}

/// Everything that a scrape shows. Only the statistics are essential.
async fn read(connection: &Connection, facts: &Domains) -> Option<Reading> {
    let (domains, lib_version, hypervisor_version, node, node_cpu, node_memory) = tokio::join!(
        statistics(connection, facts),
        connection.lib_version(),
        connection.hypervisor_version(),
        connection.node_info(),
        connection.node_cpu_stats(),
        connection.node_memory_stats(),
    );
    match domains {
        Ok(domains) => Some(Reading {
            lib_version: lib_version.ok().map(|version| version.to_string()),
            hypervisor_version: hypervisor_version.ok().map(|version| version.to_string()),
            node: node.ok(),
            node_cpu: node_cpu.unwrap_or_default(),
            node_memory: node_memory.unwrap_or_default(),
            domains,
        }),
        Err(error) => {
            let error = chain(&error);
            tracing::warn!(error, "failed to read statistics from libvirt");
            None
        }
    }
}

/// The statistics of every virtual machine. A driver that has none has a list and their states; the
/// rest is what their XML says.
async fn statistics(connection: &Connection, facts: &Domains) -> Result<Vec<DomainStats>, Error> {
    // No performance counters and no dirty rates: they cost, and nobody asks for them.
    let groups = StatsGroups::STATE
        | StatsGroups::CPU
        | StatsGroups::BALLOON
        | StatsGroups::VCPU
        | StatsGroups::INTERFACE
        | StatsGroups::BLOCK;
    // Nobody waits for a machine whose monitor hangs: it shows what can be known without it.
    let stats = connection.all_stats_with(groups, StatsFlags::NOWAIT).await;
    if let Some(all) = stats.supported()? {
        return Ok(all);
    }
    let domains = connection.domains(ListDomains::ALL).await?;
    let all = stream::iter(domains)
        .map(|domain| one(connection, domain, facts))
        .buffered(AT_ONCE);
    Ok(all.collect().await)
}

/// What can be known of a virtual machine without statistics.
async fn one(connection: &Connection, domain: Domain, facts: &Domains) -> DomainStats {
    let mut params = TypedParams::default();
    // One that has gone meanwhile is listed without a state.
    if let Ok(status) = connection.state(&domain).await {
        params = params.with("state.state", status.state.number());
    }
    if let Some(facts) = facts.get(&domain.uuid) {
        params = params
            .with("balloon.maximum", facts.memory_bytes / 1024)
            .with("vcpu.current", facts.vcpus);
    }
    DomainStats { domain, params }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// Answers that wait for a permit each, and how many were begun.
    #[derive(Default)]
    struct Made {
        begun: Arc<AtomicUsize>,
        running: Mutex<Option<WeakShared<Answer>>>,
    }

    impl Made {
        fn scrape(&self, permits: &Arc<Semaphore>) -> Shared<Answer> {
            join(&self.running, || {
                let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
                let permits = Arc::clone(permits);
                async move {
                    permits.acquire().await.unwrap().forget();
                    Bytes::from(number.to_string())
                }
                .boxed()
            })
        }
    }

    #[tokio::test]
    async fn scrapes_at_the_same_time_share_an_answer_and_later_ones_do_not() {
        let made = Made::default();
        let permits = Arc::new(Semaphore::new(0));
        let (one, two) = (made.scrape(&permits), made.scrape(&permits));
        permits.add_permits(1);
        let (one, two) = tokio::join!(one, two);
        assert_eq!((&one[..], &two[..]), (&b"1"[..], &b"1"[..]));
        permits.add_permits(1);
        assert_eq!(&made.scrape(&permits).await[..], b"2");
    }

    #[tokio::test]
    async fn an_answer_that_nobody_waits_for_any_more_is_not_told_later() {
        let made = Made::default();
        let permits = Arc::new(Semaphore::new(0));
        let mut one = made.scrape(&permits);
        assert!(futures::poll!(&mut one).is_pending());
        drop(one);
        permits.add_permits(1);
        assert_eq!(&made.scrape(&permits).await[..], b"2");
    }
}
