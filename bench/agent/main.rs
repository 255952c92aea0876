//! Measures the node agent against real libvirt and a real API server, and prints one table: what
//! was measured, the bar, and what the Go agent did on the same kind of machine.
//!
//! One lab with three hypervisors that show 1, 2 and 8 NUMA cells; the second carries the guests.
//! Events and the watch are seen by this one process, so that one clock measures both.

mod agent;
mod measure;
#[path = "../common/process.rs"]
mod process;
mod site;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

use crate::agent::Agent;
use crate::site::Site;
use crate::table::{Table, milliseconds, spread};

/// How often what takes long is measured.
const ROUNDS: usize = 5;

/// Measures the node agent
#[derive(Debug, Parser)]
struct Arguments {
    /// The agent, as it is shipped
    #[arg(long, default_value = "target/dist/cobalt-node-agent")]
    agent: PathBuf,
    /// How many events are timed for each number of guests
    #[arg(long, default_value_t = 200)]
    events: usize,
    /// How many guests run beside the one that makes the events
    #[arg(long, value_delimiter = ',', default_value = "0,20,60")]
    guests: Vec<usize>,
    /// Minutes in which nothing changes
    #[arg(long, default_value_t = 2)]
    idle_minutes: u64,
    /// How many events the agent has to survive without growing
    #[arg(long, default_value_t = 10_000)]
    storm: usize,
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
    // The others only idle.
    let mut idlers = Vec::new();
    for host in [site::ONE_CELL, site::EIGHT_CELLS] {
        site.grow(host, 2).await?;
        idlers.push(Agent::start(&arguments.agent, site, host, None).await?);
    }
    let mut agent = Agent::start(&arguments.agent, site, site::MAIN, None).await?;
    for &guests in &arguments.guests {
        eprintln!("timing {} events with {guests} guests", arguments.events);
        site.grow(site::MAIN, guests + 1).await?;
        let name = format!("event to watch, {guests} guests");
        let go = match guests {
            0 => "36 / - / 80 ms",
            60 => "155 / - / 285 ms",
            _ => "-",
        };
        match measure::events(site, site::MAIN, arguments.events).await {
            Ok(times) => table.spread(&name, &times, Some(50), go),
            Err(error) => table.failed(&name, &error),
        }
    }
    let guests = arguments.guests.iter().max().copied().unwrap_or(0);
    idle(arguments, site, &agent, guests, table).await?;

    match measure::scrapes(&agent, 20).await {
        Ok(scrapes) => {
            let text = format!(
                "{} ms, {} KiB",
                spread(&scrapes.times),
                scrapes.bytes / 1024
            );
            table.row(&format!("scrape, {guests} guests"), &text, "-", true, "-");
        }
        Err(error) => table.failed("scrape", &error),
    }

    eprintln!("{} events as fast as libvirt makes them", arguments.storm);
    match measure::storm(site, site::MAIN, arguments.storm).await {
        Ok(storm) => {
            let seconds = storm.lasted.as_secs_f64();
            let name = format!("storm of {} events in {seconds:.0} s", storm.events);
            let settled = milliseconds(storm.settled);
            let text = format!("{} writes, right {settled} after", storm.writes);
            table.row(&name, &text, "-", true, "-");
            table.memory(
                &format!("RSS after {} events more", storm.events),
                agent.usage()?,
                "-",
            );
        }
        Err(error) => table.failed("storm", &error),
    }

    eprintln!("killing libvirtd");
    match recoveries(site).await {
        Ok((told, right)) => {
            table.spread("libvirtd killed: condition False", &told, None, "never");
            table.spread(
                "libvirtd back: condition and status right",
                &right,
                Some(2000),
                "33 s",
            );
        }
        Err(error) => table.failed("libvirtd back: condition and status right", &error),
    }
    agent.stop().await?;

    eprintln!("full reports");
    let name = format!("full report after connect, {guests} guests");
    match reports(arguments, site).await {
        Ok(times) => table.spread(&name, &times, Some(200), "-"),
        Err(error) => table.failed(&name, &error),
    }
    for idler in &mut idlers {
        idler.stop().await?;
    }
    Ok(())
}

async fn idle(
    arguments: &Arguments,
    site: &Site,
    agent: &Agent,
    guests: usize,
    table: &mut Table,
) -> Result<()> {
    let minutes = arguments.idle_minutes;
    eprintln!("idle for {minutes} minutes");
    let time = Duration::from_secs(minutes * 60);
    let before = agent.usage()?;
    let writes = measure::idle(site, time).await?;
    let after = agent.usage()?;
    for (host, cells, go) in [
        (site::ONE_CELL, 1, "2 a minute"),
        (site::MAIN, 2, "-"),
        (site::EIGHT_CELLS, 8, "82 a minute"),
    ] {
        let count = writes.get(host).copied().unwrap_or(0);
        let name = format!("writes in {minutes} idle min, {cells} NUMA cells");
        table.row(&name, &count.to_string(), "0", count == 0, go);
    }
    let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64();
    let minute = cpu * 60.0 / time.as_secs_f64().max(1.0);
    let name = format!("CPU in 60 idle seconds, {guests} guests");
    table.row(
        &name,
        &format!("{minute:.3} s"),
        "< 0.09 s",
        minute < 0.09,
        "0.09 s",
    );
    table.memory(
        &format!("RSS (anonymous), {guests} guests"),
        after,
        "54.3 (12.2) MiB",
    );
    Ok(())
}

async fn recoveries(site: &Site) -> Result<(Vec<Duration>, Vec<Duration>)> {
    let (mut told, mut right) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let recovery = measure::recovery(site, site::MAIN, round).await?;
        told.push(recovery.told);
        right.push(recovery.right);
    }
    Ok((told, right))
}

async fn reports(arguments: &Arguments, site: &Site) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        times.push(measure::full_report(&arguments.agent, site, site::MAIN).await?);
    }
    Ok(times)
}
