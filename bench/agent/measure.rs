//! The measurements.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cobalt_libvirt::{Connection, Domain, Event, EventKind, EventStream, Lifecycle};
use futures::StreamExt;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};

use crate::agent::Agent;
use crate::site::{self, Site};

/// A write every half second is the agent's pace after a burst; a slower rhythm times events and
/// not the pace. It is no divisor of anything, so that no phase is met again and again.
const RHYTHM: Duration = Duration::from_millis(613);
/// Guests that make a storm.
const STORMY: usize = 8;
/// How long libvirt may be silent in a storm.
const SILENCE: Duration = Duration::from_secs(30);

/// Suspends and resumes a guest, and times each from libvirt's event to the watch.
pub async fn events(site: &Site, host: &str, count: usize) -> Result<Vec<Duration>> {
    let libvirt = site.libvirt(host).await?;
    let mut events = libvirt.subscribe(&[EventKind::Lifecycle]).await?;
    let guests = site.guests(host).await?;
    let guest = guests.first().context("there is no guest")?;
    let mut seen = site.seen(host)?;
    let mut times = Vec::new();
    for number in 0..count {
        tokio::time::sleep(RHYTHM).await;
        let suspend = number % 2 == 0;
        let wanted = if suspend { "paused" } else { "running" };
        let (done, event) = tokio::join!(
            toggle(&libvirt, guest, suspend),
            next_event(&mut events, guest)
        );
        done?;
        let at = event?;
        let shown = seen
            .until(|object| site::state(object, guest) == Some(wanted))
            .await?;
        times.push(shown.saturating_duration_since(at));
    }
    Ok(times)
}

async fn toggle(libvirt: &Connection, guest: &Domain, suspend: bool) -> Result<()> {
    let done = if suspend {
        libvirt.suspend(guest).await
    } else {
        libvirt.resume(guest).await
    };
    done.with_context(|| format!("failed to suspend or resume {}", guest.name))
}

/// When the next event of a guest came.
async fn next_event(events: &mut EventStream, guest: &Domain) -> Result<Instant> {
    loop {
        let event = tokio::time::timeout(SILENCE, events.next())
            .await
            .context("no event came")?
            .context("libvirt has gone away")?;
        let about = event
            .domain()
            .is_some_and(|domain| domain.uuid == guest.uuid);
        let lifecycle = matches!(
            event,
            Event::Lifecycle {
                event: Lifecycle::Suspended | Lifecycle::Resumed,
                ..
            }
        );
        if about && lifecycle {
            return Ok(Instant::now());
        }
    }
}

/// Writes of Hypervisors and Migrations in a time in which nothing changes, by host.
pub async fn idle(site: &Site, time: Duration) -> Result<BTreeMap<String, usize>> {
    // What came before has settled by then.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = audit_length(site)?;
    tokio::time::sleep(time).await;
    writes(site, before)
}

fn audit_length(site: &Site) -> Result<usize> {
    Ok(audit(site)?.len())
}

fn audit(site: &Site) -> Result<Vec<u8>> {
    std::fs::read(site.audit_log()).context("failed to read the audit log")
}

/// Counts what the audit log has from a place on. What is of no host counts for all under "".
fn writes(site: &Site, from: usize) -> Result<BTreeMap<String, usize>> {
    let log = audit(site)?;
    let new = log.get(from..).context("the audit log was cut")?;
    let mut counts = BTreeMap::new();
    for line in new
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let entry: Value = serde_json::from_slice(line).context("failed to parse the audit log")?;
        let text = |path: &str| {
            entry
                .pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let write = ["create", "update", "patch", "delete"].contains(&text("/verb"));
        let name = match text("/objectRef/resource") {
            "hypervisors" => text("/objectRef/name"),
            "migrations" => "",
            _ => continue,
        };
        if write {
            *counts.entry(name.to_owned()).or_default() += 1;
        }
    }
    Ok(counts)
}

/// What a storm of events did.
#[derive(Debug)]
pub struct Storm {
    /// How many there were.
    pub events: usize,
    /// How long it lasted.
    pub lasted: Duration,
    /// Writes of the Hypervisor meanwhile.
    pub writes: usize,
    /// From the last event until the status was right.
    pub settled: Duration,
}

/// Suspends and resumes guests as fast as libvirt can, until so many events have come.
pub async fn storm(site: &Site, host: &str, count: usize) -> Result<Storm> {
    let libvirt = site.libvirt(host).await?;
    let events = libvirt.subscribe(&[EventKind::Lifecycle]).await?;
    let mut guests = site.guests(host).await?;
    guests.truncate(STORMY);
    let log = audit_length(site)?;
    let begin = Instant::now();
    // Two events for each suspend and resume.
    let rounds = count.div_ceil(2).div_ceil(guests.len().max(1));
    let storms = guests.iter().map(|guest| {
        let libvirt = &libvirt;
        async move {
            for _ in 0..rounds {
                toggle(libvirt, guest, true).await?;
                toggle(libvirt, guest, false).await?;
            }
            // The last state is another one than before the storm.
            toggle(libvirt, guest, true).await
        }
    });
    let all = (rounds * 2 + 1) * guests.len();
    let (done, last) = tokio::join!(futures::future::try_join_all(storms), counted(events, all));
    done?;
    let last = last?;
    let mut seen = site.seen(host)?;
    let right = seen.until(|object| {
        let paused = |guest| site::state(object, guest) == Some("paused");
        guests.iter().all(paused)
    });
    let right = right.await?;
    let writes = writes(site, log)?.get(host).copied().unwrap_or(0);
    for guest in &guests {
        toggle(&libvirt, guest, false).await?;
    }
    Ok(Storm {
        events: all,
        lasted: last.saturating_duration_since(begin),
        writes,
        settled: right.saturating_duration_since(last),
    })
}

/// When so many events had come.
async fn counted(mut events: EventStream, count: usize) -> Result<Instant> {
    for seen in 0..count {
        let event = tokio::time::timeout(SILENCE, events.next()).await;
        let event = event.with_context(|| format!("no event came after {seen}"))?;
        event.context("libvirt has gone away")?;
    }
    Ok(Instant::now())
}

/// How the agent got over the death of libvirtd.
#[derive(Debug)]
pub struct Recovery {
    /// From the death until the condition was False.
    pub told: Duration,
    /// From libvirtd's return until condition and status were right.
    pub right: Duration,
}

/// Kills libvirtd, and a guest while libvirtd is away.
pub async fn recovery(site: &Site, host: &str, round: usize) -> Result<Recovery> {
    let guests = site.guests(host).await?;
    let victim = guests.get(round + 1).context("there are too few guests")?;
    let mut seen = site.seen(host)?;
    seen.until(|object| site::state(object, victim) == Some("running"))
        .await?;
    let old = site.libvirt(host).await?;
    // systemd gives up on a unit that dies too often; this one has a reason.
    let script = format!(
        "guest=$(cat /run/libvirt/qemu/{}.pid); systemctl reset-failed libvirtd; \
         systemctl kill -s KILL libvirtd; kill -9 $guest",
        victim.name
    );
    let mut second = seen.clone();
    let (killed, told, returned) = tokio::join!(
        site.sh(host, &script),
        second.until(site::disconnected),
        returned(site, host, &old),
    );
    killed?;
    let (told, (died, back)) = (told?, returned?);
    let right = seen
        .until(|object| site::connected(object) && site::state(object, victim) == Some("shutoff"));
    let right = right.await?;
    Ok(Recovery {
        told: told.saturating_duration_since(died),
        right: right.saturating_duration_since(back),
    })
}

/// When libvirtd died, and when another one answered.
async fn returned(site: &Site, host: &str, old: &Connection) -> Result<(Instant, Instant)> {
    old.closed().await;
    let died = Instant::now();
    while died.elapsed() < Duration::from_secs(60) {
        if let Ok(new) = site.libvirt(host).await
            && new.lib_version().await.is_ok()
        {
            return Ok((died, Instant::now()));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    anyhow::bail!("libvirtd of {host} does not come back")
}

/// From the agent's connection to libvirt until all its guests are in the status.
pub async fn full_report(program: &Path, site: &Site, host: &str) -> Result<Duration> {
    let guests = site.guests(host).await?.len();
    site.forget(host).await?;
    let door = site.socket("door.sock");
    // A socket that is left over from before refuses.
    std::fs::remove_file(&door).ok();
    let mut agent = Agent::start(program, site, host, Some(&door)).await?;
    let mut seen = site.seen(host)?;
    seen.until(site::disconnected).await?;
    let listener = UnixListener::bind(&door).context("failed to listen")?;
    let (mut inner, _) = listener.accept().await.context("failed to accept")?;
    let begin = Instant::now();
    let target = site.machine(host)?.libvirt_socket();
    let mut outer = UnixStream::connect(target)
        .await
        .context("failed to reach libvirt")?;
    let passing =
        tokio::spawn(async move { tokio::io::copy_bidirectional(&mut inner, &mut outer).await });
    let complete = seen.until(|object| {
        let known = object
            .status
            .as_ref()
            .map_or(0, |status| status.instances.len());
        site::connected(object) && known == guests
    });
    let complete = complete.await?;
    agent.stop().await?;
    passing.abort();
    Ok(complete.saturating_duration_since(begin))
}

/// What scrapes took.
#[derive(Debug)]
pub struct Scrapes {
    /// Each.
    pub times: Vec<Duration>,
    /// The size of the last.
    pub bytes: usize,
}

/// Scrapes an agent.
pub async fn scrapes(agent: &Agent, count: usize) -> Result<Scrapes> {
    let mut times = Vec::new();
    let mut bytes = 0;
    for _ in 0..count {
        let begin = Instant::now();
        let mut stream = TcpStream::connect(agent.metrics)
            .await
            .context("failed to scrape")?;
        let request = "GET /metrics HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n";
        stream
            .write_all(request.as_bytes())
            .await
            .context("failed to scrape")?;
        let mut answer = Vec::new();
        stream
            .read_to_end(&mut answer)
            .await
            .context("failed to scrape")?;
        times.push(begin.elapsed());
        let up = answer.windows(12).any(|part| part == b"libvirt_up 1");
        anyhow::ensure!(up, "a scrape says that libvirt is not up");
        bytes = answer.len();
    }
    Ok(Scrapes { times, bytes })
}
