//! Carries out what `update` decides: starts the unit that installs, awaits its end, reboots.
//!
//! The reboot goes through logind: the locks of others are respected, the kubelet ends its pods in
//! order, and our own lock drains the host if `spec.evacuateOnReboot` is set. No unit on the host is
//! needed for it.

use std::time::Duration;

use cobalt_api::conditions::{HypervisorCondition, Status};
use cobalt_api::hypervisor::{Hypervisor, UpdateStatus};
use cobalt_runtime::{Note, Severity, chain};
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use super::bus::{self, Bus, BusError, LOGIND, SYSTEMD, Signal};
use super::connection::Link;
use super::metrics::{HostMetrics, UpdateLabels};
use super::services::Verdict;
use super::units::Health;
use super::update::{self, Gate, Job, Step, UnitRun, View};
use crate::context::Context;

const SERVICE: &str = "org.freedesktop.systemd1.Service";
/// logind's flag for "also ask those who block it, although I am root".
const CHECK_INHIBITORS: u64 = 1;
/// A look at everything although nothing has happened.
const AGAIN: Duration = Duration::from_secs(600);

/// Runs until it is cancelled.
pub async fn run(
    ctx: Context,
    pause: Duration,
    link: watch::Receiver<Link>,
    health: watch::Receiver<Health>,
    delay: watch::Receiver<Option<Duration>>,
    metrics: HostMetrics,
    cancel: CancellationToken,
) {
    let mut updater = Updater {
        hypervisor: ctx.hypervisor.clone(),
        domains: ctx.domains.clone(),
        system: ctx.operating_system.subscribe(),
        boot: super::boot_id().await,
        ctx,
        link,
        health,
        delay,
        metrics,
        record: None,
        job: Job::None,
        trouble: None,
        rest_until: None,
        rebooting: None,
        said: None,
        waits: None,
    };
    tokio::select! {
        () = updater.work(pause) => {}
        () = cancel.cancelled() => {}
    }
}

struct Updater {
    ctx: Context,
    link: watch::Receiver<Link>,
    health: watch::Receiver<Health>,
    /// How long logind lets a shutdown wait.
    delay: watch::Receiver<Option<Duration>>,
    hypervisor: watch::Receiver<cobalt_runtime::Observed<Hypervisor>>,
    domains: watch::Receiver<std::sync::Arc<crate::context::Domains>>,
    system: watch::Receiver<Option<cobalt_api::hypervisor::OperatingSystem>>,
    metrics: HostMetrics,
    boot: String,
    /// `None` until the Hypervisor was seen: it has what an agent before us has recorded.
    record: Option<UpdateStatus>,
    job: Job,
    trouble: Option<String>,
    rest_until: Option<tokio::time::Instant>,
    /// The version for which the reboot was asked for.
    rebooting: Option<String>,
    /// The last failure that was reported, so that it is reported once.
    said: Option<String>,
    /// The same for what the reboot waits for.
    waits: Option<String>,
}

impl Updater {
    async fn work(&mut self, pause: Duration) {
        loop {
            let step = self.decide();
            match step {
                Some(Step::Start(unit)) => {
                    if let Some(bus) = self.bus() {
                        self.install(&bus, &unit).await;
                        if self.trouble.is_some() {
                            self.rest(pause);
                        }
                        continue;
                    }
                }
                Some(Step::Reboot) => {
                    if let Some(bus) = self.bus() {
                        self.reboot(&bus).await;
                        if self.trouble.is_some() {
                            self.rest(pause);
                        }
                        continue;
                    }
                }
                Some(Step::Rest) if self.rest_until.is_none() => {
                    self.rest(pause);
                    continue;
                }
                Some(Step::Rest | Step::Nothing) | None => {}
            }
            if !self.changed().await {
                return;
            }
        }
    }

    fn rest(&mut self, pause: Duration) {
        self.rest_until = Some(tokio::time::Instant::now() + pause);
    }

    /// Waits until something is new, or a rest is over.
    async fn changed(&mut self) -> bool {
        let wait = self
            .rest_until
            .unwrap_or_else(|| tokio::time::Instant::now() + AGAIN);
        tokio::select! {
            changed = self.hypervisor.changed() => changed.is_ok(),
            changed = self.system.changed() => changed.is_ok(),
            changed = self.health.changed() => changed.is_ok(),
            changed = self.delay.changed() => changed.is_ok(),
            changed = self.domains.changed() => changed.is_ok(),
            changed = self.link.changed() => changed.is_ok(),
            () = tokio::time::sleep_until(wait) => {
                self.rest_until = None;
                true
            }
        }
    }

    /// `None` while the Hypervisor was not seen.
    fn decide(&mut self) -> Option<Step> {
        let hypervisor = self.hypervisor.borrow_and_update().object().cloned()?;
        let written = hypervisor
            .status
            .as_ref()
            .and_then(|status| status.update_status.clone());
        let record = self
            .record
            .get_or_insert_with(|| written.clone().unwrap_or_else(update::blank))
            .clone();
        let system = self.system.borrow_and_update().clone();
        let running = system.and_then(|system| system.version);
        // Without the version that runs, nothing can be said about another one.
        let known = self.ctx.operating_system.borrow().is_some();
        let wanted = hypervisor.spec.version.clone();
        if wanted.is_some() && !known {
            return None;
        }
        let reboot = hypervisor.spec.reboot.unwrap_or(false);
        if self.rebooting.is_some() && self.rebooting != wanted {
            self.rebooting = None;
        }
        let evacuates = hypervisor.spec.evacuate_on_reboot.unwrap_or(true);
        let obstacles = self.obstacles(evacuates);
        let decision = update::decide(&View {
            wanted: wanted.as_deref(),
            reboot,
            running: running.as_deref(),
            record: &record,
            stored: written.as_ref() == Some(&record),
            job: self.job.clone(),
            trouble: self.trouble.as_deref(),
            rested: self.rest_until.is_none(),
            rebooting: self.rebooting.is_some(),
            boot: &self.boot,
            obstacles: &obstacles,
        });
        if decision.job_is_done {
            self.count();
            self.job = Job::None;
        }
        self.report_wait(decision.reboot_waits.as_deref());
        match decision.statement {
            Some(statement) => {
                self.report(&statement);
                self.ctx
                    .conditions
                    .set(HypervisorCondition::OperatingSystemUpdate, statement);
            }
            None => self
                .ctx
                .conditions
                .remove(HypervisorCondition::OperatingSystemUpdate),
        }
        // A host without updates has no record of them.
        if wanted.is_some() || written.is_some() {
            self.ctx.update_status.send_if_modified(|known| {
                let new = Some(&decision.record) != known.as_ref();
                *known = Some(decision.record.clone());
                new
            });
        }
        self.record = Some(decision.record.clone());
        // What was decided on the way to a new record is decided again when it is stored.
        Some(decision.step)
    }

    fn count(&self) {
        let result = match &self.job {
            Job::Succeeded => "installed",
            Job::Failed(_) => "failed",
            Job::None | Job::Running => return,
        };
        self.metrics
            .os_updates
            .get_or_create(&UpdateLabels { result })
            .inc();
    }

    fn report(&mut self, statement: &crate::context::Statement) {
        if statement.status != Status::False {
            self.said = None;
            return;
        }
        if self.said.as_ref() == Some(&statement.message) {
            return;
        }
        self.said = Some(statement.message.clone());
        let note = Note {
            severity: Severity::Warning,
            reason: "OperatingSystemUpdateStopped",
            action: "Update",
            text: statement.message.clone(),
        };
        let about = self.ctx.hypervisor_reference();
        self.ctx.recorder.report(&about, note);
    }

    /// An Event for a reboot that was asked for and waits.
    fn report_wait(&mut self, why: Option<&str>) {
        // With each instance that leaves there is one less: that is not worth another Event.
        let key = why.map(|why| why.replace(|c: char| c.is_ascii_digit(), ""));
        if self.waits == key {
            return;
        }
        self.waits = key;
        let Some(why) = why else {
            return;
        };
        let note = Note {
            severity: Severity::Warning,
            reason: "RebootWaits",
            action: "Reboot",
            text: format!("the host does not reboot yet: {why}"),
        };
        let about = self.ctx.hypervisor_reference();
        self.ctx.recorder.report(&about, note);
    }

    /// What is against a reboot.
    fn obstacles(&mut self, evacuates: bool) -> Vec<String> {
        let health = *self.health.borrow_and_update();
        let domains = self.domains.borrow_and_update();
        let active = domains.values().filter(|facts| facts.active).count();
        update::obstacles(&Gate {
            libvirt_runs: health.libvirt == Verdict::Running,
            open_vswitch_is_well: matches!(
                health.open_vswitch,
                Verdict::Running | Verdict::NotInstalled
            ),
            active,
            evacuates,
            waits: self
                .ctx
                .conditions
                .says(HypervisorCondition::ShutdownInhibited, Status::True),
            delay: *self.delay.borrow_and_update(),
        })
    }

    fn bus(&mut self) -> Option<Bus> {
        self.link.borrow_and_update().bus().cloned()
    }

    /// Runs the unit to its end, or until the bus is lost.
    async fn install(&mut self, bus: &Bus, unit: &str) {
        self.trouble = None;
        self.job = Job::Running;
        self.decide();
        let lost = self.link.clone();
        let ended = tokio::select! {
            ended = install(bus, unit) => ended,
            why = gone(lost, bus) => Err(why),
        };
        self.job = match ended {
            Ok(job) => job,
            Err(why) => {
                tracing::warn!(unit, error = why, "the update could not be followed");
                self.trouble = Some(why);
                Job::None
            }
        };
    }

    async fn reboot(&mut self, bus: &Bus) {
        self.trouble = None;
        let asked = bus
            .call(LOGIND, "RebootWithFlags", &(CHECK_INHIBITORS,))
            .await;
        match asked {
            Ok(_) => {
                let hypervisor = self.hypervisor.borrow().object().cloned();
                self.rebooting = hypervisor.and_then(|found| found.spec.version.clone());
                let note = Note {
                    severity: Severity::Normal,
                    reason: "Rebooting",
                    action: "Reboot",
                    text: "the host reboots into its new version".to_owned(),
                };
                let about = self.ctx.hypervisor_reference();
                self.ctx.recorder.report(&about, note);
            }
            Err(error) => {
                let why = chain(&error);
                tracing::warn!(error = why, "the reboot was refused");
                self.trouble = Some(why);
            }
        }
    }
}

/// Waits until the bus is another one. Returns why.
async fn gone(mut link: watch::Receiver<Link>, bus: &Bus) -> String {
    loop {
        match &*link.borrow_and_update() {
            Link::Up(current) if current.is_same(bus) => {}
            Link::Down { why, .. } => return why.clone(),
            Link::Up(_) | Link::Untried => return "the bus was lost".to_owned(),
        }
        if link.changed().await.is_err() {
            return "the agent ends".to_owned();
        }
    }
}

/// `Err`: it is not known what became of it.
async fn install(bus: &Bus, unit: &str) -> Result<Job, String> {
    let rules = [bus::job_rule(unit), bus::unit_rule(unit)];
    let trouble = |error: BusError| chain(&error);
    let mut signals = bus.signals();
    for rule in &rules {
        bus.add_match(rule).await.map_err(trouble)?;
    }
    let ended = watch_unit(bus, unit, &mut signals).await;
    for rule in &rules {
        // It goes with the connection otherwise.
        bus.remove_match(rule).await.ok();
    }
    // Kept until its result was read; it goes with the connection otherwise.
    bus.call(SYSTEMD, "UnrefUnit", &(unit,)).await.ok();
    match ended {
        Ok(job) => Ok(job),
        // systemd was asked and will say the same again: that is a failed try.
        Err(error) if error.is_refusal() => Ok(Job::Failed(chain(&error))),
        Err(error) => Err(chain(&error)),
    }
}

async fn watch_unit(
    bus: &Bus,
    unit: &str,
    signals: &mut broadcast::Receiver<std::sync::Arc<Signal>>,
) -> Result<Job, BusError> {
    // Else systemd forgets how it ended as soon as it has.
    bus.call(SYSTEMD, "RefUnit", &(unit,)).await?;
    let before = look(bus, unit).await?;
    let busy = ["active", "activating", "reloading", "deactivating"];
    let mut result = None;
    let mut job = String::new();
    if busy.contains(&before.active.as_str()) && before.sub != "exited" {
        tracing::info!(unit, "an installation that was begun before goes on");
        result = Some("done".to_owned());
    } else {
        if before.active == "failed" {
            bus.call(SYSTEMD, "ResetFailedUnit", &(unit,)).await?;
        }
        let started: zbus::OwnedObjectPath =
            bus.ask(SYSTEMD, "RestartUnit", &(unit, "replace")).await?;
        job = started.as_str().to_owned();
        tracing::info!(unit, "an installation begins");
    }
    let path = bus::unit_path(unit);
    loop {
        let now = look(bus, unit).await?;
        match update::outcome(result.as_deref(), &now) {
            Job::Running => {}
            other => return Ok(other),
        }
        loop {
            match signals.recv().await.as_deref() {
                Ok(Signal::JobRemoved {
                    job: ended,
                    result: how,
                    ..
                }) if *ended == job => {
                    result = Some(how.clone());
                    break;
                }
                Ok(Signal::Unit { path: changed, .. }) if *changed == path => break,
                // Some were lost, perhaps the end of our job: the unit alone has to tell.
                Err(_) => {
                    result = Some("done".to_owned());
                    break;
                }
                Ok(_) => {}
            }
        }
    }
}

async fn look(bus: &Bus, unit: &str) -> Result<UnitRun, BusError> {
    let path = bus::unit_path(unit);
    let general = bus.properties(SYSTEMD.service, &path, bus::UNIT).await?;
    let service = bus.properties(SYSTEMD.service, &path, SERVICE).await?;
    let text = |name| bus::text(&general, name).unwrap_or_default();
    let number = |name: &str| service.get(name);
    Ok(UnitRun {
        active: text("ActiveState"),
        sub: text("SubState"),
        result: bus::text(&service, "Result").unwrap_or_default(),
        status: number("ExecMainStatus")
            .and_then(|value| i32::try_from(value).ok())
            .unwrap_or(0),
        exited: number("ExecMainExitTimestamp")
            .and_then(|value| u64::try_from(value).ok())
            .unwrap_or(0),
        may_run: general
            .get("ConditionResult")
            .and_then(|value| bool::try_from(value).ok())
            .unwrap_or(true),
    })
}
