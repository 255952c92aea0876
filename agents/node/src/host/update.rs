//! What to do about the operating system's version. Pure.
//!
//! ```text
//!  wanted --> recorded --> installing --> installed --> (health gate) --> reboot --> runs
//!                 ^            |                                            |
//!                 +-- failed --+  three times: stopped                      +--> another one runs: stopped
//! ```
//!
//! `status.updateStatus` is the record: what was begun is there before it is begun, so a new agent
//! takes it over. It is about one version; another `spec.version` begins anew, and so does one that
//! was taken back and set again. The spec belongs to whoever wrote it and is never touched.

use std::time::Duration;

use cobalt_api::conditions::{Reason, Status};
use cobalt_api::hypervisor::UpdateStatus;

use super::shutdown;
use crate::context::Statement;

/// How often an installation is tried.
pub const TRIES: i64 = 3;
/// The version that is whatever is newest.
pub const LATEST: &str = "latest";
/// What `installed` says when nothing is known.
const UNKNOWN: &str = "unknown";

/// What is known of the installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Job {
    /// None that this agent knows of.
    None,
    /// It runs.
    Running,
    /// It ran to its end.
    Succeeded,
    /// It failed.
    Failed(String),
}

/// Everything that matters.
#[derive(Debug, Clone)]
pub struct View<'a> {
    /// `spec.version`.
    pub wanted: Option<&'a str>,
    /// `spec.reboot`.
    pub reboot: bool,
    /// The version that runs; `None` while it is not known.
    pub running: Option<&'a str>,
    /// What was recorded.
    pub record: &'a UpdateStatus,
    /// Whether the API server has the record.
    pub stored: bool,
    /// The installation.
    pub job: Job,
    /// Why systemd or logind could not be asked the last time. That is not the update's failure.
    pub trouble: Option<&'a str>,
    /// Whether the pause after a failure or trouble is over.
    pub rested: bool,
    /// Whether the reboot was asked for.
    pub rebooting: bool,
    /// Which boot of the host this is.
    pub boot: &'a str,
    /// What is against a reboot now.
    pub obstacles: &'a [String],
}

/// What decides whether a reboot may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// libvirt's unit runs.
    pub libvirt_runs: bool,
    /// Open vSwitch runs, or is not installed.
    pub open_vswitch_is_well: bool,
    /// How many instances are active.
    pub active: usize,
    /// `spec.evacuateOnReboot`.
    pub evacuates: bool,
    /// The agent holds logind's lock.
    pub waits: bool,
    /// How long logind lets a shutdown wait, if that is known.
    pub delay: Option<Duration>,
}

/// What is against a reboot now.
#[must_use]
pub fn obstacles(gate: &Gate) -> Vec<String> {
    let mut all = Vec::new();
    if !gate.libvirt_runs {
        all.push("libvirt does not run".to_owned());
    }
    if !gate.open_vswitch_is_well {
        all.push("Open vSwitch does not run".to_owned());
    }
    let active = gate.active;
    let short = gate.delay.filter(|delay| *delay < shutdown::SHORT);
    if active == 0 {
        return all;
    }
    if !gate.evacuates {
        all.push(format!(
            "{active} instances are active and spec.evacuateOnReboot is false"
        ));
    } else if !gate.waits {
        all.push(format!(
            "{active} instances are active and a shutdown would not wait"
        ));
    } else if let Some(delay) = short {
        all.push(format!(
            "{active} instances are active, and a shutdown does not wait until they have left: {}",
            shutdown::longest(delay)
        ));
    }
    all
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing, until something changes.
    Nothing,
    /// Begin the installation with this unit. If it runs already, an agent before us has begun it,
    /// and its end is waited for.
    Start(String),
    /// Wait a while, then decide again.
    Rest,
    /// Reboot.
    Reboot,
}

/// What is decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// What is to be done.
    pub step: Step,
    /// The record as it should be.
    pub record: UpdateStatus,
    /// The condition; `None` to say nothing.
    pub statement: Option<Statement>,
    /// The job was taken into account.
    pub job_is_done: bool,
    /// What a reboot that was asked for waits for.
    pub reboot_waits: Option<String>,
}

/// Why a text is not a version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "spec.version is {0:?}, which is no version: write 1 to 64 letters, digits, dots, dashes or \
     underscores, the first a letter or a digit, or \"latest\""
)]
pub struct InvalidVersion(String);

/// The unit that installs a version. The version becomes part of its name as it is, so nothing that
/// systemd would read differently comes through.
///
/// # Errors
///
/// When it is not a version.
pub fn unit(version: &str) -> Result<String, InvalidVersion> {
    if version == LATEST {
        return Ok("systemd-sysupdate.service".to_owned());
    }
    let first = version.bytes().next();
    let valid = first.is_some_and(|byte| byte.is_ascii_alphanumeric())
        && version.len() <= 64
        && version
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if valid {
        Ok(format!("systemd-sysupdate@{version}.service"))
    } else {
        Err(InvalidVersion(version.chars().take(80).collect()))
    }
}

/// The record of a host on which nothing was ever tried.
#[must_use]
pub fn blank() -> UpdateStatus {
    UpdateStatus {
        in_progress: Some(false),
        installed: Some(UNKNOWN.to_owned()),
        retry: Some(TRIES),
        ..UpdateStatus::default()
    }
}

/// What is to be done now.
#[must_use]
pub fn decide(view: &View<'_>) -> Decision {
    let Some(wanted) = view.wanted.filter(|version| !version.is_empty()) else {
        return nothing_wanted(view);
    };
    let unit = match unit(wanted) {
        Ok(unit) => unit,
        Err(error) => {
            let record = UpdateStatus {
                in_progress: Some(false),
                ..view.record.clone()
            };
            return stopped(record, error.to_string());
        }
    };
    if view.running == Some(wanted) {
        let record = UpdateStatus {
            installed: Some(wanted.to_owned()),
            ..blank()
        };
        return said(record, Reason::Completed, format!("version {wanted} runs"));
    }
    let mut record = view.record.clone();
    let mut job = view.job.clone();
    if record.version.as_deref() != Some(wanted) {
        // Another version is another story, also for what the deployed agent has left behind (W72).
        let installed = record.installed.take();
        record = UpdateStatus {
            version: Some(wanted.to_owned()),
            installed: installed
                .filter(|version| version != LATEST)
                .or_else(|| blank().installed),
            ..blank()
        };
        // What is still being installed is for the version of before; it is not interrupted.
        if job == Job::Running {
            let message = format!("version {wanted} waits for the installation of another one");
            return running(Step::Nothing, record, message);
        }
        job = Job::None;
    }
    let job_is_done = matches!(job, Job::Succeeded | Job::Failed(_));
    let mut decision = if record.installed.as_deref() == Some(wanted) {
        after_installation(view, record, wanted)
    } else {
        install(view, record, &job, wanted, unit)
    };
    decision.job_is_done = job_is_done;
    decision
}

fn nothing_wanted(view: &View<'_>) -> Decision {
    let before = view.record;
    let did_not_boot = booted_since(before, view.boot);
    let installed = before.installed.clone().filter(|version| {
        // Set again, it is to be tried again.
        version != LATEST && (!did_not_boot || view.running == Some(version))
    });
    Decision {
        step: Step::Nothing,
        record: UpdateStatus {
            installed: installed.or_else(|| blank().installed),
            boot_id: before.boot_id.clone().filter(|_| !did_not_boot),
            ..blank()
        },
        statement: None,
        job_is_done: matches!(view.job, Job::Succeeded | Job::Failed(_)),
        reboot_waits: None,
    }
}

fn install(
    view: &View<'_>,
    mut record: UpdateStatus,
    job: &Job,
    wanted: &str,
    unit: String,
) -> Decision {
    match job {
        Job::Running => {
            record.in_progress = Some(true);
            return running(Step::Nothing, record, format!("{unit} runs"));
        }
        Job::Succeeded => {
            record.in_progress = Some(false);
            record.installed = Some(wanted.to_owned());
            record.error = None;
            record.boot_id = Some(view.boot.to_owned());
            return after_installation(view, record, wanted);
        }
        Job::Failed(error) => {
            record.in_progress = Some(false);
            record.retry = Some((tries(&record) - 1).max(0));
            record.error = Some(error.chars().take(1024).collect());
        }
        Job::None => {}
    }
    let error = record.error.as_deref().unwrap_or("the reason is not known");
    if tries(&record) <= 0 {
        let message = format!(
            "version {wanted} could not be installed in {TRIES} tries: {error}; to try again, set \
             spec.version to another version, or remove it and set it again"
        );
        return stopped(record, message);
    }
    if matches!(job, Job::Failed(_)) {
        let message = format!("{unit} failed and is tried again: {error}");
        return running(Step::Rest, record, message);
    }
    if !view.rested {
        let error = view.trouble.unwrap_or(error);
        let message = format!("{unit} is tried again: {error}");
        return running(Step::Rest, record, message);
    }
    // What is begun is recorded first. After a crash it is begun again: installing the same twice
    // does no harm.
    record.in_progress = Some(true);
    let message = format!("{unit} starts");
    let step = if view.stored && record == *view.record {
        Step::Start(unit)
    } else {
        Step::Nothing
    };
    running(step, record, message)
}

fn after_installation(view: &View<'_>, mut record: UpdateStatus, wanted: &str) -> Decision {
    record.in_progress = Some(false);
    let booted_since = booted_since(&record, view.boot);
    let runs = view.running.unwrap_or("an unknown version");
    if booted_since && wanted == LATEST {
        let message = format!("the latest version was installed; {runs} runs");
        return said(record, Reason::Completed, message);
    }
    if booted_since {
        let message = format!(
            "version {wanted} was installed and the host has rebooted, but {runs} runs: the new \
             version did not come up; to try again, set spec.version to another version, or remove \
             it and set it again"
        );
        return stopped(record, message);
    }
    record.boot_id = Some(view.boot.to_owned());
    if !view.reboot {
        let message = format!("version {wanted} is installed and runs after the next reboot");
        return said(record, Reason::Completed, message);
    }
    if !view.obstacles.is_empty() {
        let obstacles = view.obstacles.join("; ");
        let message = format!("version {wanted} is installed; the reboot waits: {obstacles}");
        return Decision {
            reboot_waits: Some(obstacles),
            ..running(Step::Nothing, record, message)
        };
    }
    if !(view.stored && record == *view.record) {
        let message = format!("version {wanted} is installed; the host is about to reboot");
        return running(Step::Nothing, record, message);
    }
    let (step, message) = match view.trouble {
        _ if view.rebooting => (Step::Nothing, "the host reboots".to_owned()),
        Some(why) if !view.rested => (Step::Rest, format!("the reboot was refused: {why}")),
        _ => (Step::Reboot, "the host reboots".to_owned()),
    };
    running(
        step,
        record,
        format!("version {wanted} is installed; {message}"),
    )
}

/// Whether the host has booted since the version was installed.
fn booted_since(record: &UpdateStatus, boot: &str) -> bool {
    let installed_in = record.boot_id.as_deref();
    !boot.is_empty() && installed_in.is_some_and(|installed_in| installed_in != boot)
}

fn tries(record: &UpdateStatus) -> i64 {
    record.retry.unwrap_or(TRIES)
}

fn running(step: Step, record: UpdateStatus, message: String) -> Decision {
    Decision {
        step,
        ..said(record, Reason::Running, message)
    }
}

fn said(record: UpdateStatus, reason: Reason, message: String) -> Decision {
    let status = Status::True;
    let statement = Some(Statement {
        status,
        reason,
        message,
    });
    Decision {
        step: Step::Nothing,
        record,
        statement,
        job_is_done: false,
        reboot_waits: None,
    }
}

fn stopped(record: UpdateStatus, message: String) -> Decision {
    let decision = said(record, Reason::Stopped, message);
    let statement = decision.statement.map(|statement| Statement {
        status: Status::False,
        ..statement
    });
    Decision {
        statement,
        ..decision
    }
}

/// What systemd says of the unit that installs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitRun {
    /// `ActiveState`.
    pub active: String,
    /// `SubState`.
    pub sub: String,
    /// `Result` of the service.
    pub result: String,
    /// `ExecMainStatus` of the service.
    pub status: i32,
    /// When its program has ended; 0 if it never ran.
    pub exited: u64,
    /// Whether systemd found that it may run at all.
    pub may_run: bool,
}

/// What became of the installation, from the end of the job that started it and from its unit.
///
/// The end of the job alone does not say: a plain service is started long before it is done. That
/// the unit does not run does not say either: it may never have run (W71).
#[must_use]
pub fn outcome(job: Option<&str>, unit: &UnitRun) -> Job {
    match job {
        None => return Job::Running,
        Some("done") => {}
        Some(other) => {
            return Job::Failed(match unit.active.as_str() {
                "failed" => format!("{}, the job of systemd: {other}", failure(unit)),
                _ => format!("the job of systemd ended as \"{other}\""),
            });
        }
    }
    match unit.active.as_str() {
        "failed" => Job::Failed(failure(unit)),
        // A unit that stays active after its program has ended.
        "active" if unit.sub == "exited" => Job::Succeeded,
        "inactive" if !unit.may_run => {
            Job::Failed("systemd did not run it: a condition of the unit does not hold".to_owned())
        }
        "inactive" if unit.result != "success" => Job::Failed(failure(unit)),
        "inactive" if unit.exited == 0 => {
            Job::Failed("systemd does not know that it ever ran".to_owned())
        }
        "inactive" => Job::Succeeded,
        _ => Job::Running,
    }
}

fn failure(unit: &UnitRun) -> String {
    format!("its unit failed: {}, status {}", unit.result, unit.status)
}

#[cfg(test)]
mod tests;
