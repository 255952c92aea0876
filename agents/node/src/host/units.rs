//! Keeps the conditions of the host's services, from systemd's signals and without polling.

use std::collections::BTreeMap;
use std::time::Duration;

use cobalt_runtime::{Backoff, chain};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::bus::{self, Bus, BusError, SYSTEMD, Signal};
use super::connection::Link;
use super::metrics::{HostMetrics, UnitLabels};
use super::services::{self, Judgement, SERVICES, UnitState, Verdict};
use crate::context::Conditions;

/// What becomes of the services that a reboot depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// libvirt.
    pub libvirt: Verdict,
    /// Open vSwitch.
    pub open_vswitch: Verdict,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            libvirt: Verdict::Unknown,
            open_vswitch: Verdict::Unknown,
        }
    }
}

type Units = BTreeMap<&'static str, UnitState>;

/// Runs until it is cancelled.
pub async fn run(
    mut link: watch::Receiver<Link>,
    health: watch::Sender<Health>,
    conditions: Conditions,
    metrics: HostMetrics,
    cancel: CancellationToken,
) {
    let outputs = Outputs {
        health,
        conditions,
        metrics,
    };
    loop {
        let current = link.borrow_and_update().clone();
        let follow = async {
            match &current {
                Link::Untried => std::future::pending::<()>().await,
                Link::Down { reason, why } => {
                    outputs.say(|_| services::disconnected(*reason, why));
                    std::future::pending::<()>().await;
                }
                Link::Up(bus) => follow(bus, &outputs).await,
            }
        };
        tokio::select! {
            () = follow => {}
            changed = link.changed() => if changed.is_err() { return },
            () = cancel.cancelled() => return,
        }
    }
}

/// Follows the units of one connection, for as long as somebody polls it.
async fn follow(bus: &Bus, outputs: &Outputs) {
    let paths: BTreeMap<String, &'static str> = services::units()
        .into_iter()
        .map(|unit| (bus::unit_path(unit), unit))
        .collect();
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
    // Signals first: what changes while everything is read is applied afterwards.
    let mut signals = bus.signals();
    loop {
        let mut units = match read_all(bus).await {
            Ok(units) => units,
            Err(error) => {
                tracing::warn!(error = chain(&error), "failed to read the host's units");
                tokio::time::sleep(backoff.next_wait()).await;
                continue;
            }
        };
        backoff.reset();
        loop {
            outputs.say(|service| services::judge(service, &units));
            match signals.recv().await.as_deref() {
                Ok(Signal::Unit { path, active, sub }) => {
                    let unit = paths.get(path).and_then(|unit| units.get_mut(unit));
                    if let Some(state) = unit {
                        let keep = |new: &Option<String>, old: &mut String| {
                            if let Some(new) = new {
                                old.clone_from(new);
                            }
                        };
                        keep(active, &mut state.active);
                        keep(sub, &mut state.sub);
                    }
                }
                Ok(Signal::UnitsReloaded) | Err(_) => break,
                Ok(_) => {}
            }
        }
    }
}

async fn read_all(bus: &Bus) -> Result<Units, BusError> {
    let mut all = Units::new();
    for unit in services::units() {
        let path = bus::unit_path(unit);
        let properties = bus.properties(SYSTEMD.service, &path, bus::UNIT).await?;
        let text = |name| bus::text(&properties, name).unwrap_or_default();
        let state = UnitState {
            load: text("LoadState"),
            active: text("ActiveState"),
            sub: text("SubState"),
        };
        all.insert(unit, state);
    }
    Ok(all)
}

struct Outputs {
    health: watch::Sender<Health>,
    conditions: Conditions,
    metrics: HostMetrics,
}

impl Outputs {
    fn say(&self, judge: impl Fn(&services::Service) -> Judgement) {
        for service in SERVICES {
            let judged = judge(service);
            let label = UnitLabels {
                unit: service.condition.as_str(),
            };
            let up = i64::from(judged.verdict == Verdict::Running);
            self.metrics.units_up.get_or_create(&label).set(up);
            self.conditions.set(service.condition, judged.statement);
        }
        let health = Health {
            libvirt: judge(&services::LIBVIRT).verdict,
            open_vswitch: judge(&services::OPEN_VSWITCH).verdict,
        };
        self.health.send_if_modified(|known| {
            let new = *known != health;
            *known = health;
            new
        });
    }
}
