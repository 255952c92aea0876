//! Measures the OVS agent on a real switch with OVN and a real API server, and prints one table:
//! what was measured, and the bar.
//!
//! One lab with one hypervisor that has as many ports and flows as asked for. Changes are made
//! through OVSDB and seen through a watch by this one process, so that one clock measures both. The
//! agent runs with its defaults.

mod agent;
mod captures;
#[path = "../../agents/ovs/tests/ovs_agent/inside.rs"]
mod inside;
#[path = "../common/process.rs"]
mod process;
mod site;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::agent::Agent;
use crate::process::Usage;
use crate::site::Site;
use crate::table::{Table, mib};

/// Slower than the pace at which the agent writes after a burst, and no divisor of anything, so that
/// no phase is met again and again.
const RHYTHM: Duration = Duration::from_millis(613);
const RSS_BAR_MIB: f64 = 16.0;
const CPU_BAR_PERCENT: f64 = 1.0;

/// Measures the OVS agent
#[derive(Debug, Parser)]
struct Arguments {
    /// The agent, as it is shipped
    #[arg(long, default_value = "target/dist/cobalt-ovs-agent")]
    agent: PathBuf,
    /// Ports of the integration bridge
    #[arg(long, default_value_t = 150)]
    ports: usize,
    /// Flows beside those that OVN makes
    #[arg(long, default_value_t = 3000)]
    flows: usize,
    /// How many changes are timed
    #[arg(long, default_value_t = 200)]
    changes: usize,
    /// Minutes in which nothing changes
    #[arg(long, default_value_t = 2)]
    idle_minutes: u64,
    /// Minutes in which instances come and go, and nothing may be called wrong
    #[arg(long, default_value_t = 2)]
    churn_minutes: u64,
    /// How many captures are timed
    #[arg(long, default_value_t = 50)]
    captures: usize,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match Box::pin(run(&arguments)).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all bars were met. What fails is a row, too: the others are worth knowing.
async fn run(arguments: &Arguments) -> Result<bool> {
    let site = Site::up().await?;
    let mut table = Table::default();
    if let Err(error) = Box::pin(measure_all(arguments, &site, &mut table)).await {
        table.failed("the rest", &error);
    }
    site.down().await?;
    print!("{table}");
    Ok(table.all_met())
}

async fn measure_all(arguments: &Arguments, site: &Site, table: &mut Table) -> Result<()> {
    eprintln!("{} ports, {} flows", arguments.ports, arguments.flows);
    site.fill(arguments.ports, arguments.flows).await?;
    let mut agent = Agent::start(&arguments.agent, site).await?;
    let status = site.seen().well().await?;
    let flows = status.flow_stats.and_then(|stats| stats.total_flows);
    let ports: i64 = status
        .bridges
        .iter()
        .filter_map(|bridge| bridge.ports)
        .sum();
    let size = format!("{ports} ports, {} flows", flows.unwrap_or(0));
    ensure!(flows.is_some_and(|flows| flows >= i64::try_from(arguments.flows).unwrap_or(0)));

    eprintln!("timing {} changes", arguments.changes);
    match changes(site, arguments.changes).await {
        Ok(times) => table.spread("OVSDB change to watch", &times, Some(100)),
        Err(error) => table.failed("OVSDB change to watch", &error),
    }
    match idle(arguments, site, &agent).await {
        Ok(idle) => idle.rows(arguments.idle_minutes, &size, table),
        Err(error) => table.failed("idle", &error),
    }
    match churn(arguments, site).await {
        Ok(churned) => {
            let name = format!("issues in {} min of churn", arguments.churn_minutes);
            let text = format!("{} ({} instances)", churned.issues.len(), churned.instances);
            table.row(&name, &text, "0", churned.issues.is_empty());
            for issue in churned.issues {
                eprintln!("false alarm: {issue}");
            }
        }
        Err(error) => table.failed("churn", &error),
    }
    memory(table, "RSS (anonymous) after it", agent.usage()?);
    agent.stop().await?;
    let timed = captures::first_packets(&arguments.agent, site, arguments.captures);
    match Box::pin(timed).await {
        Ok(times) => table.spread("question to first captured packet", &times, Some(100)),
        Err(error) => table.failed("question to first captured packet", &error),
    }
    Ok(())
}

fn memory(table: &mut Table, name: &str, usage: Usage) {
    let (rss, anonymous) = (mib(usage.rss_kib), mib(usage.anonymous_kib));
    let ours = format!("{rss:.1} ({anonymous:.1}) MiB");
    let bar = format!("<= {RSS_BAR_MIB:.0} MiB");
    table.row(name, &ours, &bar, rss <= RSS_BAR_MIB);
}

/// Adds and removes a port, and times each from OVSDB's own update to the watch.
async fn changes(site: &Site, count: usize) -> Result<Vec<Duration>> {
    let mut ovsdb = site.ovsdb();
    ovsdb.ports().await?;
    let mut times = Vec::new();
    for number in 0..count {
        tokio::time::sleep(RHYTHM).await;
        let add = number % 2 == 0;
        let (done, updated) = tokio::join!(site.toggle(add), ovsdb.change());
        done?;
        let (at, ports) = updated?;
        let shown = site.seen().ports(ports).await?;
        times.push(shown.saturating_duration_since(at));
    }
    Ok(times)
}

struct Idle {
    usage: Usage,
    cpu_percent: f64,
    writes: usize,
    refreshes: usize,
}

impl Idle {
    fn rows(&self, minutes: u64, size: &str, table: &mut Table) {
        let name = format!("writes in {minutes} idle min");
        let bar = format!("<= {} (refresh)", self.refreshes);
        table.row(
            &name,
            &self.writes.to_string(),
            &bar,
            self.writes <= self.refreshes,
        );
        let cpu = self.cpu_percent;
        let bar = format!("< {CPU_BAR_PERCENT:.0} % of a core");
        let name = format!("CPU, {size}");
        table.row(&name, &format!("{cpu:.2} %"), &bar, cpu < CPU_BAR_PERCENT);
        memory(table, &format!("RSS (anonymous), {size}"), self.usage);
    }
}

async fn idle(arguments: &Arguments, site: &Site, agent: &Agent) -> Result<Idle> {
    let minutes = arguments.idle_minutes;
    eprintln!("idle for {minutes} minutes");
    // What came before has settled by then.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (before, log) = (agent.usage()?, site.audit_length()?);
    let begin = Instant::now();
    tokio::time::sleep(Duration::from_secs(minutes * 60)).await;
    let (after, time) = (agent.usage()?, begin.elapsed());
    let cpu = after.cpu.saturating_sub(before.cpu);
    Ok(Idle {
        usage: after,
        cpu_percent: cpu.as_secs_f64() * 100.0 / time.as_secs_f64().max(1.0),
        writes: site.writes(log)?,
        // Counters are written every five minutes.
        refreshes: usize::try_from(minutes.div_ceil(5)).context("too many minutes")?,
    })
}

struct Churned {
    instances: usize,
    issues: Vec<String>,
}

/// Plugs and unplugs instances, and collects whatever is called wrong meanwhile.
async fn churn(arguments: &Arguments, site: &Site) -> Result<Churned> {
    let minutes = arguments.churn_minutes;
    eprintln!("instances come and go for {minutes} minutes");
    let until = Instant::now() + Duration::from_secs(minutes * 60);
    let issues = site.seen().collect_issues();
    let mut instances = 0;
    while Instant::now() < until {
        instances += 1;
        site.instance(instances).await?;
    }
    // The longest grace is a minute.
    tokio::time::sleep(Duration::from_secs(65)).await;
    Ok(Churned {
        instances,
        issues: issues.found().await,
    })
}
