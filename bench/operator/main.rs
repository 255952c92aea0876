//! Measures the hypervisor operator against a real API server, and prints one table: what was
//! measured, the bar, and what the Go operator did on the same kind of machine.
//!
//! Thousands of hosts are answered for by `FakeNova`: a real Nova with so many does not fit on the
//! machine. A hundred hosts at once are onboarded on the light OpenStack, which has a real Nova.

mod fake_nova;
#[path = "../common/operator.rs"]
mod operator;
mod plot;
#[path = "../common/process.rs"]
mod process;
#[path = "../common/scrape.rs"]
mod scrape;
mod site;
#[path = "../common/table.rs"]
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use cobalt_api::hypervisor::Phase;
use cobalt_lab::LabConfig;
use cobalt_lab::light::LightConfig;

use crate::fake_nova::FakeNova;
use crate::operator::Operator;
use crate::plot::plot;
use crate::scrape::sum;
use crate::site::{Site, THREE};
use crate::table::{Table, seconds};

/// The most that a whole fleet may take of memory, and three hosts of it.
const FLEET_MIB: f64 = 45.0;
const THREE_MIB: f64 = 15.0;
/// A few lists for each interval of a minute.
const CALLS_PER_MINUTE: u64 = 12;

/// Measures the hypervisor operator
#[derive(Debug, Parser)]
struct Arguments {
    /// The operator, as it is shipped
    #[arg(long, default_value = "target/dist/cobalt-hypervisor-operator")]
    operator: PathBuf,
    /// How many hosts the fleet has; none leaves it out
    #[arg(long, default_value_t = 2000)]
    hosts: usize,
    /// How many hosts are onboarded at once; none leaves it out
    #[arg(long, default_value_t = 100)]
    onboard: u16,
}

fn main() -> ExitCode {
    match start(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs it until it is done or told to end: what it has started ends with it.
fn start(arguments: &Arguments) -> Result<bool> {
    let runtime = tokio::runtime::Runtime::new().context("failed to start")?;
    let ended = runtime.block_on(async {
        let told = cobalt_runtime::shutdown_signal().context("failed to receive signals")?;
        told.run_until_cancelled(Box::pin(run(arguments)))
            .await
            .context("told to end")?
    });
    // A lab that did not come up may still be waited for.
    runtime.shutdown_background();
    ended
}

/// Whether all bars were met. What fails is a row, too: the others are worth knowing.
async fn run(arguments: &Arguments) -> Result<bool> {
    let mut table = Table::new("hypervisor operator", "Go operator");
    if arguments.hosts > 0 {
        let site = Site::up().await?;
        if let Err(error) = Box::pin(fleet(arguments, &site, &mut table)).await {
            table.failed("the fleet", &error);
        }
        site.down().await?;
    }
    if arguments.onboard > 0 {
        let site = Site::up().await?;
        if let Err(error) = Box::pin(onboarding(arguments, &site, &mut table)).await {
            table.failed("onboarding", &error);
        }
        site.down().await?;
    }
    print!("{table}");
    Ok(table.all_met())
}

/// Starts an operator with what a fleet in production has.
fn launch(arguments: &Arguments, site: &Site, nova: &FakeNova, more: &[&str]) -> Result<Operator> {
    let all = [&["--lifecycle-image", "registry.example.com/hold:1"], more].concat();
    Operator::start(
        &arguments.operator,
        &site.kubeconfig(),
        &nova.environment(),
        &all,
        &site.log("fleet"),
    )
}

async fn fleet(arguments: &Arguments, site: &Site, table: &mut Table) -> Result<()> {
    let count = arguments.hosts;
    let hosts: Vec<String> = (0..count)
        .map(|number| format!("node{number:04}"))
        .collect();
    eprintln!("making {count} Nodes");
    site.nodes(&hosts, true).await?;
    let nova = FakeNova::start().await?;

    eprintln!("{count} hosts that Nova does not know");
    let before = site.writes().await?;
    let begin = Instant::now();
    let mut operator = launch(arguments, site, &nova, &[])?;
    site.until("all Hypervisors", |seen| {
        seen.count(Phase::Initial) == count
    })
    .await?;
    let made = begin.elapsed();
    operator.until_quiet().await?;
    let writes = site.writes().await? - before;
    let go = if count == 2000 { "122-147 s" } else { "-" };
    table.fact(
        &format!("{count} hosts unknown to Nova: all objects"),
        &seconds(made),
        go,
    );
    table.fact(
        "  writes (object, status, Event, budget, Deployment)",
        &writes.to_string(),
        "11988",
    );
    let usage = operator.usage()?;
    table.memory("  RSS", usage.rss_kib, usage.peak_kib, FLEET_MIB, "136 MiB");
    nova.take_calls();
    let before = site.writes().await?;
    minute().await;
    let calls: u64 = nova.take_calls().values().sum();
    // Nova is looked at more often while a host waits for it.
    table.at_most(
        "  calls of OpenStack in a minute",
        calls,
        CALLS_PER_MINUTE * 6,
        "1912",
    );
    let writes = site.writes().await? - before;
    table.at_most("  writes in that minute", writes, 0, "-");
    operator.stop().await?;
    quiet_start(arguments, site, &nova, table, "  restart").await?;

    eprintln!("{count} onboarded hosts");
    site.onboarded(&hosts).await?;
    nova.know(&hosts);
    let before = site.writes().await?;
    let begin = Instant::now();
    let mut operator = launch(arguments, site, &nova, &[])?;
    site.until("all Active", |seen| seen.count(Phase::Active) == count)
        .await?;
    let taken = begin.elapsed();
    operator.until_quiet().await?;
    let writes = site.writes().await? - before;
    table.fact(
        &format!("{count} onboarded hosts (FakeNova): taken over"),
        &seconds(taken),
        "-",
    );
    table.fact(
        "  writes (phase; probe of the pod that holds a node)",
        &writes.to_string(),
        "-",
    );
    let usage = operator.usage()?;
    table.memory("  RSS", usage.rss_kib, usage.peak_kib, FLEET_MIB, "-");
    operator.stop().await?;

    let mut operator = quiet_start(arguments, site, &nova, table, "  restart").await?;
    nova.take_calls();
    minute().await;
    let calls = nova.take_calls();
    let sum: u64 = calls.values().sum();
    table.at_most(
        "  calls of OpenStack in a minute",
        sum,
        CALLS_PER_MINUTE,
        "-",
    );
    if sum > CALLS_PER_MINUTE {
        eprintln!("{calls:?}");
    }
    eprintln!("heartbeats");
    let (before, cpu) = (site.writes().await?, operator.usage()?.cpu);
    site.heartbeats(&hosts, "2026-01-01T00:05:00Z").await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let writes = site.writes().await? - before;
    let name = format!("  writes for {count} heartbeats of nodes");
    table.at_most(&name, writes, 0, "200 for 100");
    let cpu = operator.usage()?.cpu.saturating_sub(cpu);
    table.fact("  CPU for them", &seconds(cpu), "-");
    let begin = Instant::now();
    operator.scrape().await?;
    table.fact("  scrape", &seconds(begin.elapsed()), "-");
    let usage = operator.usage()?;
    table.memory(
        "  RSS after all that",
        usage.rss_kib,
        usage.peak_kib,
        FLEET_MIB,
        "-",
    );
    operator.stop().await?;

    eprintln!("three hosts of {count}");
    let selector = ["--label-selector", THREE];
    let mut operator = launch(arguments, site, &nova, &selector)?;
    operator.until_quiet().await?;
    let usage = operator.usage()?;
    let name = format!("RSS, label selector that matches 3 of {count}");
    table.memory(&name, usage.rss_kib, usage.peak_kib, THREE_MIB, "82 MiB");
    operator.stop().await
}

/// Starts an operator where there is nothing to do, and measures how that goes.
async fn quiet_start(
    arguments: &Arguments,
    site: &Site,
    nova: &FakeNova,
    table: &mut Table,
    name: &str,
) -> Result<Operator> {
    let before = site.writes().await?;
    let operator = launch(arguments, site, nova, &[])?;
    let quiet = operator.until_quiet().await?;
    let bar = Duration::from_secs(5);
    table.within(&format!("{name}: quiet after"), quiet, bar, "20 s");
    // Another look at Nova, at the traits that the hosts want.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let writes = site.writes().await? - before;
    table.at_most(&format!("{name}: writes"), writes, 0, "4000");
    let usage = operator.usage()?;
    let name = format!("{name}: RSS");
    table.memory(
        &name,
        usage.rss_kib,
        usage.peak_kib,
        FLEET_MIB,
        "142 MiB (peak 187)",
    );
    table.fact("  CPU since the start", &seconds(usage.cpu), "-");
    Ok(operator)
}

async fn minute() {
    tokio::time::sleep(Duration::from_secs(60)).await;
}

async fn onboarding(arguments: &Arguments, site: &Site, table: &mut Table) -> Result<()> {
    let count = usize::from(arguments.onboard);
    eprintln!("starting a light OpenStack with {count} hosts");
    let mut config = LabConfig::empty("bench-nova");
    let light = LightConfig::hosts(arguments.onboard);
    let hosts = light.hosts.clone();
    config.light = Some(light);
    let lab = Box::pin(cobalt_lab::testing::lab(config)).await?;
    let access = lab.status().await?.access.context("no access")?;
    eprintln!("onboarding {count} hosts at once");
    let mut operator = Operator::start(
        &arguments.operator,
        &site.kubeconfig(),
        &access.environment(),
        &[],
        &site.log("onboarding"),
    )?;
    operator.until_quiet().await?;
    let begin = Instant::now();
    site.nodes(&hosts, false).await?;
    let seen = site
        .until("all Active", |seen| seen.count(Phase::Active) == count)
        .await?;
    let done: Vec<Duration> = seen
        .hosts
        .values()
        .map(|state| state.since.saturating_duration_since(begin))
        .collect();
    let last = done.iter().max().copied().unwrap_or_default();
    table.fact(
        &format!("{count} hosts at once, real Nova, no tests: all Active"),
        &seconds(last),
        "-",
    );
    let requests = "cobalt_operator_openstack_requests_total";
    let calls = sum(&operator.scrape().await?, |line| line.starts_with(requests));
    table.fact("  calls of OpenStack", &calls.to_string(), "-");
    let title = "hosts Active over time, from the first Node on";
    table.note(&plot(title, &done, count));
    operator.stop().await?;
    lab.down().await
}
