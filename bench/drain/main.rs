//! Measures drains of a host through real Nova: a bare script and the operator with the same
//! parallelism beside each other in the same run, and prints one table.

#[path = "../common/operator.rs"]
mod operator;
mod ours;
#[path = "../common/process.rs"]
mod process;
#[path = "../common/scrape.rs"]
mod scrape;
mod script;
mod site;
#[path = "../common/table.rs"]
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::ours::Ours;
use crate::script::Drained;
use crate::site::{SOURCE, Site};
use crate::table::{Table, seconds};

/// The most that an operator with a few hosts may take of memory.
const MIB: f64 = 20.0;

/// Measures drains
#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// The operator, as it is shipped
    #[arg(long, default_value = "target/dist/cobalt-hypervisor-operator")]
    operator: PathBuf,
    /// How many servers the host has; none leaves it out
    #[arg(long, default_value_t = 20)]
    servers: usize,
    /// How many servers a full host has, which is emptied with the largest parallelism alone; none
    /// leaves it out
    #[arg(long, default_value_t = 60)]
    many: usize,
    /// How many may move at the same time
    #[arg(long, value_delimiter = ',', default_value = "1,4,8")]
    parallel: Vec<usize>,
    /// How many seconds a migration takes
    #[arg(long, value_delimiter = ',', default_value = "0,5")]
    seconds: Vec<u64>,
    /// Run the serial algorithm, too (4 minutes), and not only say what it took elsewhere
    #[arg(long)]
    serial: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // What is dropped ends: the operator with this future, the lab with this process.
    let ended = tokio::select! {
        ended = Box::pin(run(&arguments)) => ended,
        error = interrupted() => Err(error),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn interrupted() -> anyhow::Error {
    let signals = (|| {
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        std::io::Result::Ok((interrupt, terminate))
    })();
    match signals {
        Ok((mut interrupt, mut terminate)) => {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            anyhow::anyhow!("interrupted")
        }
        Err(error) => anyhow::Error::new(error).context("failed to wait for signals"),
    }
}

/// Whether all bars were met. What fails is a row, too: the others are worth knowing.
async fn run(arguments: &Arguments) -> Result<bool> {
    let mut table = Table::new(
        "drain of a host (VMs, a migration's time, parallel)",
        "bare script; Go operator",
    );
    let before = load()?;
    let site = Site::up().await?;
    if let Err(error) = Box::pin(measure(arguments, &site, &mut table)).await {
        table.failed("the drains", &error);
    }
    site.down().await?;
    let after = load()?;
    table.note(&format!(
        "load of the machine (1, 5, 15 minutes): {before} before, {after} after\n"
    ));
    print!("{table}");
    Ok(table.all_met())
}

/// Who else used the machine: Nova is bound by the processor.
fn load() -> Result<String> {
    let text = std::fs::read_to_string("/proc/loadavg").context("failed to read the load")?;
    Ok(text.split(' ').take(3).collect::<Vec<_>>().join(" "))
}

async fn measure(arguments: &Arguments, site: &Site, table: &mut Table) -> Result<()> {
    eprintln!("bringing the hosts into service");
    let mut operator = ours::start(&arguments.operator, site, "onboarding")?;
    site.onboard().await?;
    operator.stop().await?;
    let most = arguments.parallel.iter().copied().max();
    let most = most.context("--parallel has to say a number")?;
    let count = arguments.servers;
    if count > 0 {
        eprintln!("booting {count} servers");
        site.boot(count).await?;
        let mut free = None;
        for &time in &arguments.seconds {
            for &parallel in &arguments.parallel {
                let ours = pair(arguments, site, table, count, time, parallel).await?;
                if parallel == most {
                    free.get_or_insert((time, ours.away));
                }
            }
        }
        if let Some((time, without)) = free {
            stuck(arguments, site, table, count, time, most, without).await?;
        }
        if arguments.serial {
            serial(site, table, count).await?;
        }
    }
    let count = arguments.many;
    if count > 0 {
        eprintln!("booting {count} servers");
        site.let_in(true).await?;
        site.boot(count).await?;
        for &time in &arguments.seconds {
            let ours = pair(arguments, site, table, count, time, most).await?;
            let cpu = seconds(ours.cpu);
            table.fact("  operator: CPU", &cpu, "-");
            let usage = ours.usage;
            table.memory("  operator: RSS", usage.rss_kib, usage.peak_kib, MIB, "-");
        }
    }
    Ok(())
}

/// Gets the host ready: the scheduler is kept out, migrations take so long.
async fn prepare(site: &Site, time: u64) -> Result<()> {
    site.let_in(false).await?;
    site.turn_knobs(json!({ "live_migration_seconds": time }))
        .await
}

/// The script, then the operator.
async fn pair(
    arguments: &Arguments,
    site: &Site,
    table: &mut Table,
    count: usize,
    time: u64,
    parallel: usize,
) -> Result<Ours> {
    let name = format!("{count} VMs, {time} s, parallel {parallel}");
    eprintln!("{name}: the script");
    prepare(site, time).await?;
    let script = script::bare(site, parallel).await?;
    site.bring_back(count).await?;
    eprintln!("{name}: the operator");
    prepare(site, time).await?;
    let log = format!("{count}-{time}-{parallel}");
    let ours = ours::drain(&arguments.operator, site, &log, count, parallel, 0).await?;
    site.bring_back(count).await?;
    let (go_time, go_calls) = match (count, time) {
        (20, 0) => ("216.8 s", "62"),
        (20, 5) => ("204.1 s", "62"),
        _ => ("-", "-"),
    };
    let bar = script.took.mul_f64(1.2);
    let others = format!("{}; {go_time}", seconds(script.took));
    table.within(&name, ours.drained.took, bar, &others);
    let others = format!("{}; {go_calls}", script.calls);
    table.at_most("  calls of Nova", ours.drained.calls, script.calls, &others);
    if ours.lists > 0 {
        let lists = ours.lists.to_string();
        table.fact("  lists of the fleet meanwhile, not counted", &lists, "-");
    }
    table.fact("  calls of Placement", &ours.placement.to_string(), "0; -");
    Ok(ours)
}

/// One server cannot be moved: the one that is asked for first.
async fn stuck(
    arguments: &Arguments,
    site: &Site,
    table: &mut Table,
    count: usize,
    time: u64,
    parallel: usize,
    without: Duration,
) -> Result<()> {
    let name = format!("  one cannot: the other {} are away", count - 1);
    eprintln!("one of {count} servers cannot be moved");
    prepare(site, time).await?;
    let servers = site.servers(SOURCE).await?;
    let first = servers.iter().map(|server| server.id.as_str()).min();
    site.turn_knobs(json!({ "fail_live_migration": [first] }))
        .await?;
    let ours = ours::drain(&arguments.operator, site, "stuck", count, parallel, 1).await?;
    site.bring_back(count).await?;
    let all = format!("{count} VMs, {time} s, parallel {parallel}: all are away");
    table.fact(&all, &seconds(without), "-");
    let go = if count == 20 { "-; never" } else { "-" };
    table.within(&name, ours.away, without.mul_f64(1.2), go);
    Ok(())
}

async fn serial(site: &Site, table: &mut Table, count: usize) -> Result<()> {
    eprintln!("one server after the other, with ten seconds between two looks");
    prepare(site, 0).await?;
    let Drained { took, calls } = script::serial(site).await?;
    site.bring_back(count).await?;
    let name = format!("{count} VMs, 0 s, one at a time every 10 s (not ours)");
    table.fact(&name, "-", &format!("{}, {calls} calls", seconds(took)));
    Ok(())
}
