//! The same by the operator: from the Eviction that is made to its outcome.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cobalt_api::eviction::{Eviction, EvictionSpec, EvictionStatus, Outcome};
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::await_condition;

use crate::operator::Operator;
use crate::process::Usage;
use crate::scrape::sum;
use crate::script::Drained;
use crate::site::{PATIENCE, SOURCE, Site};

const NAME: &str = "drain";
const REQUESTS: &str = "cobalt_operator_openstack_requests_total";
/// What the operator lists of the whole fleet now and then, whatever is drained.
const LISTS: [&str; 3] = ["list services", "list hypervisors", "list aggregates"];

/// What a drain took.
#[derive(Debug)]
pub struct Ours {
    /// Until the outcome, with the calls that the drain made.
    pub drained: Drained,
    /// Until all servers were known to be away that could be moved.
    pub away: Duration,
    /// Calls of Placement.
    pub placement: u64,
    /// Lists of the fleet that fell into the time; they are not in `drained`.
    pub lists: u64,
    /// Time on a processor.
    pub cpu: Duration,
    /// Memory at the end.
    pub usage: Usage,
}

/// Starts an operator that has no limits but those of the Eviction, and looks at the fleet at its
/// start alone.
pub fn start(program: &Path, site: &Site, log: &str) -> Result<Operator> {
    Operator::start(
        program,
        &site.kubeconfig(),
        &site.environment(),
        &[
            "--nova-interval=10m",
            "--eviction-per-source=64",
            "--eviction-per-target=64",
            "--eviction-per-zone=64",
        ],
        &site.log(log),
    )
}

/// Empties the host. `stuck` servers cannot be moved: then it is over when all others are away.
pub async fn drain(
    program: &Path,
    site: &Site,
    log: &str,
    count: usize,
    parallel: usize,
    stuck: usize,
) -> Result<Ours> {
    let mut operator = start(program, site, log)?;
    operator.until_quiet().await?;
    let before = Asked::of(&operator).await?;
    let cpu = operator.usage()?.cpu;
    let spec = EvictionSpec {
        hypervisor: SOURCE.to_owned(),
        reason: "it is measured".to_owned(),
        parallelism: Some(i32::try_from(parallel)?),
        ..EvictionSpec::default()
    };
    let begin = Instant::now();
    let eviction = Eviction::new(NAME, spec);
    site.evictions()
        .create(&PostParams::default(), &eviction)
        .await?;
    let wanted = i32::try_from(count - stuck)?;
    until(site, "all servers away", |status| {
        status.counts.is_some_and(|counts| counts.moved == wanted) || status.outcome.is_some()
    })
    .await?;
    let away = begin.elapsed();
    if stuck == 0 {
        let status = until(site, "an outcome", |status| status.outcome.is_some()).await?;
        if status.outcome != Some(Outcome::Succeeded) {
            bail!("the drain ended with {:?}", status.outcome);
        }
    }
    let took = begin.elapsed();
    let usage = operator.usage()?;
    let after = Asked::of(&operator).await?;
    site.evictions()
        .delete(NAME, &DeleteParams::default())
        .await?;
    let gone = await_condition(site.evictions(), NAME, |one: Option<&Eviction>| {
        one.is_none()
    });
    let gone = tokio::time::timeout(PATIENCE, gone).await;
    gone.context("the Eviction never went")??;
    operator.stop().await?;
    let lists = after.lists - before.lists;
    Ok(Ours {
        drained: Drained {
            took,
            calls: after.compute - before.compute - lists,
        },
        away,
        placement: after.placement - before.placement,
        lists,
        cpu: usage.cpu.saturating_sub(cpu),
        usage,
    })
}

async fn until(
    site: &Site,
    what: &str,
    wanted: impl Fn(&EvictionStatus) -> bool,
) -> Result<EvictionStatus> {
    let seen = await_condition(site.evictions(), NAME, |one: Option<&Eviction>| {
        let status = one.and_then(|one| one.status.as_ref());
        status.is_some_and(&wanted)
    });
    let seen = tokio::time::timeout(PATIENCE, seen).await;
    let seen = seen.with_context(|| format!("never seen: {what}"))??;
    Ok(seen.and_then(|one| one.status).unwrap_or_default())
}

/// What the operator has asked OpenStack since its start.
struct Asked {
    compute: u64,
    placement: u64,
    lists: u64,
}

impl Asked {
    async fn of(operator: &Operator) -> Result<Self> {
        let scrape = operator.scrape().await?;
        let of = |service: &str, call: &str| {
            let service = format!("service=\"{service}\"");
            let call = format!("call=\"{call}");
            sum(&scrape, |line| {
                line.starts_with(REQUESTS) && line.contains(&service) && line.contains(&call)
            })
        };
        Ok(Self {
            compute: of("compute", ""),
            placement: of("placement", ""),
            lists: LISTS.iter().map(|call| of("compute", call)).sum(),
        })
    }
}
