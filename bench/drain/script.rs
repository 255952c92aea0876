//! What there is to beat: a script that does nothing but ask Nova, and the algorithm that moves one
//! server at a time and looks every ten seconds.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::site::{PATIENCE, SOURCE, Site};

/// How long a drain took, and how often Nova was asked for it.
#[derive(Debug, Clone, Copy)]
pub struct Drained {
    /// The time until the host was empty.
    pub took: Duration,
    /// Calls of Nova.
    pub calls: u64,
}

/// Asks for up to `parallel` servers at a time to be moved, and lists the host once a second until
/// it is empty. It stores nothing, checks nothing and gives up on nothing.
pub async fn bare(site: &Site, parallel: usize) -> Result<Drained> {
    let (begin, before) = (Instant::now(), site.calls());
    let mut asked = BTreeSet::new();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while begin.elapsed() < PATIENCE {
        ticks.tick().await;
        let servers = site.servers(SOURCE).await?;
        if servers.is_empty() {
            return Ok(Drained {
                took: begin.elapsed(),
                calls: site.calls() - before,
            });
        }
        let (moving, waiting): (Vec<_>, Vec<_>) = servers
            .iter()
            .partition(|server| asked.contains(&server.id));
        let room = parallel.saturating_sub(moving.len());
        let next: Vec<&str> = waiting
            .iter()
            .take(room)
            .map(|server| server.id.as_str())
            .collect();
        let compute = site.openstack.compute();
        let posts = next.iter().map(|id| compute.live_migrate(id, None));
        futures::future::try_join_all(posts).await?;
        asked.extend(next.into_iter().map(ToOwned::to_owned));
    }
    bail!("the script never ended")
}

/// One server after the other, as the operator that is deployed does it: it looks ten seconds after
/// it has asked, and goes on a second after it saw a server gone.
pub async fn serial(site: &Site) -> Result<Drained> {
    let (begin, before) = (Instant::now(), site.calls());
    for server in site.servers(SOURCE).await? {
        loop {
            if begin.elapsed() > PATIENCE {
                bail!("the serial algorithm never ended");
            }
            let compute = site.openstack.compute();
            let now = compute.server(&server.id).await?;
            if now.host.as_deref() != Some(SOURCE) {
                break;
            }
            if now.task_state.is_none() {
                compute.live_migrate(&server.id, None).await?;
            }
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(Drained {
        took: begin.elapsed(),
        calls: site.calls() - before,
    })
}
