//! The operating system, its kernel and the hardware below: reads them at the start, at each
//! connection and whenever hostnamed says that something is new (W54).

use std::path::PathBuf;
use std::time::Duration;

use cobalt_api::hypervisor::OperatingSystem;
use cobalt_runtime::{Backoff, chain};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::bus::{self, Bus, BusError, HOSTNAMED, Signal};
use super::connection::Link;
use super::facts::{self, Description, Kernel};
use crate::context::Context;

/// A file of the kernel or of the host is small; a hung mount must not hold us up.
const READ_DEADLINE: Duration = Duration::from_secs(5);

/// Runs until it is cancelled.
pub async fn run(
    ctx: Context,
    os_release: Option<PathBuf>,
    mut link: watch::Receiver<Link>,
    cancel: CancellationToken,
) {
    loop {
        let current = link.borrow_and_update().clone();
        let follow = async {
            match &current {
                Link::Untried => {}
                Link::Down { .. } => publish(&ctx, os_release.as_ref(), None).await,
                Link::Up(bus) => follow(&ctx, os_release.as_ref(), bus).await,
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = follow => {}
            changed = link.changed() => if changed.is_err() { return },
            () = cancel.cancelled() => return,
        }
    }
}

/// Follows hostnamed for as long as somebody polls it.
async fn follow(ctx: &Context, os_release: Option<&PathBuf>, bus: &Bus) {
    let mut signals = bus.signals();
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
    loop {
        let described = describe(bus).await;
        let known = described.as_ref().ok();
        publish(ctx, os_release, known).await;
        match &described {
            Ok(_) => {
                backoff.reset();
                loop {
                    match signals.recv().await.as_deref() {
                        Ok(Signal::Hostname) | Err(_) => break,
                        Ok(_) => {}
                    }
                }
            }
            Err(error) => {
                tracing::warn!(
                    error = chain(error),
                    "hostnamed does not tell about the host"
                );
                tokio::time::sleep(backoff.next_wait()).await;
            }
        }
    }
}

/// What hostnamed says. An old one has only properties.
async fn describe(bus: &Bus) -> Result<Description, BusError> {
    match bus.ask::<_, String>(HOSTNAMED, "Describe", &()).await {
        Ok(json) => match facts::description(&json) {
            Ok(description) => return Ok(description),
            Err(error) => {
                tracing::warn!(
                    error = chain(&error),
                    "hostnamed's description is not readable"
                );
            }
        },
        Err(error) if error.is_refusal() => {}
        Err(error) => return Err(error),
    }
    let properties = bus
        .properties(HOSTNAMED.service, HOSTNAMED.path, HOSTNAMED.interface)
        .await?;
    let firmware_date = properties
        .get("FirmwareDate")
        .and_then(|value| u64::try_from(value).ok());
    Ok(facts::from_properties(
        |name| bus::text(&properties, name),
        firmware_date,
    ))
}

async fn publish(ctx: &Context, os_release: Option<&PathBuf>, described: Option<&Description>) {
    let file = match os_release {
        Some(path) => read(path.clone()).await,
        None => None,
    };
    let uname = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let kernel = Kernel {
        name: text(uname.sysname()),
        release: text(uname.release()),
        version: text(uname.version()),
        command_line: read(PathBuf::from("/proc/cmdline")).await,
    };
    let before = ctx.operating_system.borrow().clone().or_else(|| {
        let hypervisor = ctx.hypervisor.borrow();
        let status = hypervisor.object()?.status.as_ref()?;
        status.operating_system.clone()
    });
    let new = facts::operating_system(described, file.as_deref(), &kernel, before.as_ref());
    ctx.operating_system.send_if_modified(|known| {
        let changed = known.as_ref() != Some(&new);
        if changed {
            log_change(known.as_ref(), &new);
            *known = Some(new);
        }
        changed
    });
}

fn log_change(known: Option<&OperatingSystem>, new: &OperatingSystem) {
    let version = new.version.as_deref().unwrap_or("unknown");
    let kernel = new.kernel_release.as_deref().unwrap_or("unknown");
    match known {
        None => tracing::info!(version, kernel, "the operating system"),
        Some(_) => tracing::info!(version, kernel, "the operating system has changed"),
    }
}

async fn read(path: PathBuf) -> Option<String> {
    match tokio::time::timeout(READ_DEADLINE, tokio::fs::read(&path)).await {
        Ok(Ok(bytes)) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Ok(Err(error)) => {
            tracing::warn!(path = %path.display(), error = chain(&error), "failed to read");
            None
        }
        Err(_) => {
            tracing::warn!(path = %path.display(), "not readable in time");
            None
        }
    }
}
