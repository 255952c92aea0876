//! Migrates a domain and shows how it goes; Ctrl-C aborts it:
//! `cargo run -p cobalt-libvirt --example migrate -- qemu:///system NAME qemu+tls://other/system`

use std::time::Duration;

use anyhow::{Context, Result};
use cobalt_libvirt::{Connection, JobStatsFlags, MigrateFlags, MigrateParams, Options, Uri};

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || {
        arguments
            .next()
            .context("usage: migrate URI DOMAIN DESTINATION [MIB/S]")
    };
    let (uri, name, destination): (Uri, String, String) = (next()?.parse()?, next()?, next()?);
    let params = MigrateParams {
        bandwidth_mib: next().ok().map(|speed| speed.parse()).transpose()?,
        ..MigrateParams::default()
    };
    let libvirt = Connection::open(&uri, &Options::default()).await?;
    let domain = libvirt.lookup_by_name(&name).await?;
    let flags = MigrateFlags::LIVE | MigrateFlags::PERSIST_DEST | MigrateFlags::UNDEFINE_SOURCE;
    // It takes its time, unlike everything else.
    let patient = libvirt.with_call_timeout(Duration::from_secs(24 * 3600));
    let mut moving = std::pin::pin!(patient.migrate_to_uri(&domain, &destination, flags, &params));
    let mut tick = tokio::time::interval(Duration::from_millis(500));
    loop {
        tokio::select! {
            moved = &mut moving => break Ok(moved?),
            _ = tick.tick() => {
                // It may be gone by now.
                if let Ok(job) = libvirt.job_stats(&domain, JobStatsFlags::NONE).await {
                    let remaining = job.params.get_u64("memory_remaining").unwrap_or(0);
                    println!("{}: {} MiB remain", job.job_type.name(), remaining / 1024 / 1024);
                }
            }
            _ = tokio::signal::ctrl_c() => libvirt.abort_job(&domain).await?,
        }
    }
}
