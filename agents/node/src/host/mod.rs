//! The host below the instances: its services, its operating system and updates of it, and its
//! shutdowns, all through the system bus (systemd, hostnamed, logind).
//!
//! | part | hears | says |
//! |---|---|---|
//! | `connection`, `bus`, `signals` | the bus | condition SystemdConnection |
//! | `units`, `services` | systemd's units | conditions libvirtd.service, openvswitch-switch.service |
//! | `system`, `facts` | hostnamed | the operating system |
//! | `updater`, `update` | systemd's jobs | condition OperatingSystemUpdate, update status |
//! | `inhibitor`, `shutdown`, `drain`, `logind` | logind | condition ShutdownInhibited, Evictions |
//!
//! Without a bus the conditions say so, and nothing else of the agent is affected.

pub mod bus;
pub mod connection;
pub mod drain;
pub mod facts;
pub mod inhibitor;
pub mod logind;
pub mod metrics;
pub mod services;
pub mod shutdown;
pub mod signals;
pub mod system;
pub mod units;
pub mod update;
pub mod updater;

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use connection::{BusConfig, Link};
pub use metrics::HostMetrics;

/// What the host task has to know.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// The system bus, as D-Bus writes addresses.
    pub bus_address: String,
    /// The host's os-release file, for hosts whose hostnamed does not tell what is in it.
    pub os_release: Option<PathBuf>,
    /// How long one call on the bus may take.
    pub call_timeout: Duration,
    /// How often a silent bus is asked for a sign of life.
    pub ping: Duration,
    /// How long to wait before a failed update is tried again.
    pub update_retry: Duration,
    /// How long logind shall let a shutdown wait; `None`: as the host is configured.
    pub shutdown_delay: Option<logind::DelayConfig>,
}

impl HostConfig {
    /// What is right for every host but where its bus is.
    #[must_use]
    pub fn new(bus_address: String, os_release: Option<PathBuf>) -> Self {
        Self {
            bus_address,
            os_release,
            call_timeout: Duration::from_secs(15),
            ping: Duration::from_secs(30),
            update_retry: Duration::from_secs(30),
            shutdown_delay: None,
        }
    }
}

/// Runs until it is cancelled.
pub async fn run(
    ctx: Context,
    config: HostConfig,
    metrics: HostMetrics,
    cancel: CancellationToken,
) {
    let (link, links) = watch::channel(Link::Untried);
    let (delay, delays) = watch::channel(None);
    let (health, healths) = watch::channel(units::Health::default());
    let bus = BusConfig {
        address: config.bus_address,
        deadline: config.call_timeout,
        ping: config.ping,
    };
    let said = ctx.conditions.clone();
    let keep = connection::run(bus, link, said.clone(), metrics.clone(), cancel.clone());
    let units = units::run(links.clone(), health, said, metrics.clone(), cancel.clone());
    let system = system::run(
        ctx.clone(),
        config.os_release,
        links.clone(),
        cancel.clone(),
    );
    let updater = updater::run(
        ctx.clone(),
        config.update_retry,
        links.clone(),
        healths,
        delays,
        metrics.clone(),
        cancel.clone(),
    );
    let inhibitor = inhibitor::run(ctx, links, config.shutdown_delay, delay, metrics, cancel);
    tokio::join!(
        Box::pin(keep),
        Box::pin(units),
        Box::pin(system),
        Box::pin(updater),
        Box::pin(inhibitor),
    );
}

/// Which boot of the host this is.
async fn boot_id() -> String {
    tokio::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .await
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}
