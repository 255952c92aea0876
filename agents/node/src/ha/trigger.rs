//! Which events say that an instance has failed. Pure.
//!
//! One failure is often several events, and the same event means different things after others: a
//! stop after the watchdog's power-off is the reaction that was configured, a stop of an instance
//! that was still arriving is a migration that did not happen. So the last events of each instance
//! are remembered for a while.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use cobalt_libvirt::{
    Domain, DomainState, DomainStatus, Event, IoErrorAction, Lifecycle, WatchdogAction,
    lifecycle_detail as detail,
};
use uuid::Uuid;

/// How long an event explains the ones after it.
const EXPLAINS: Duration = Duration::from_secs(30);

/// libvirt's numbers of what was done about a memory failure.
const MEMORY_FATAL: i32 = 2;
const MEMORY_RESET: i32 = 3;

/// What has happened to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trigger {
    /// Its process has ended by itself.
    Crash,
    /// Its kernel has panicked.
    Panic,
    /// Its watchdog has fired.
    Watchdog,
    /// Its disk has failed.
    IoError,
    /// It went down for a reboot and did not come back.
    FailedReboot,
    /// The host's memory under it has failed.
    MemoryFailure,
}

impl Trigger {
    /// In one word, for metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Panic => "panic",
            Self::Watchdog => "watchdog",
            Self::IoError => "io-error",
            Self::FailedReboot => "failed-reboot",
            Self::MemoryFailure => "memory-failure",
        }
    }

    /// The reason of Kubernetes Events.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Crash => "InstanceCrashed",
            Self::Panic => "InstancePanicked",
            Self::Watchdog => "InstanceWatchdogFired",
            Self::IoError => "InstanceIoError",
            Self::FailedReboot => "InstanceRebootFailed",
            Self::MemoryFailure => "InstanceMemoryFailed",
        }
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Crash => "it crashed",
            Self::Panic => "its kernel panicked",
            Self::Watchdog => "its watchdog fired",
            Self::IoError => "its disk failed",
            Self::FailedReboot => "it did not come back from a reboot",
            Self::MemoryFailure => "the host's memory under it failed",
        })
    }
}

/// Who has to do something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Duty {
    /// This agent.
    Ours,
    /// Nobody; the text says why.
    Nobody(String),
}

/// A failure of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What has happened.
    pub trigger: Trigger,
    /// Who has to do something.
    pub duty: Duty,
    /// Details for people.
    pub detail: String,
}

/// What the last events of an instance explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// It comes, and does not run here yet.
    Arriving,
    /// It switches to another host: where it runs is not certain.
    Switching,
    /// It reboots.
    Rebooting,
    /// The watchdog powers it off.
    PoweredOff,
    /// The host's memory has failed beyond repair.
    MemoryLost,
}

/// What is remembered of all instances.
#[derive(Debug, Clone, Default)]
pub struct Memory(BTreeMap<Uuid, (Last, Instant)>);

impl Memory {
    /// Takes in an event; a failure, if it is one.
    pub fn read(&mut self, event: &Event, now: Instant) -> Option<(Domain, Failure)> {
        self.0.retain(|_, (last, at)| {
            // A migration takes as long as it takes.
            matches!(last, Last::Arriving | Last::Switching)
                || now.saturating_duration_since(*at) < EXPLAINS
        });
        let domain = event.domain()?;
        let failure = match event {
            Event::Lifecycle { event, detail, .. } => {
                self.lifecycle(domain.uuid, *event, *detail, now)?
            }
            Event::Watchdog { action, .. } => self.watchdog(domain.uuid, *action, now),
            Event::IoError {
                source,
                device,
                action,
                reason,
                ..
            } => io_error(source, device, *action, reason),
            Event::Reboot { .. } => {
                // The machine of an arriving instance may be reset, too.
                self.0.entry(domain.uuid).or_insert((Last::Rebooting, now));
                return None;
            }
            Event::MemoryFailure { action, .. } => {
                self.memory_failure(domain.uuid, *action, now)?
            }
            _ => return None,
        };
        Some((domain.clone(), failure))
    }

    /// An instance was found in the middle of a move.
    pub fn found(&mut self, uuid: Uuid, status: DomainStatus, now: Instant) {
        let last = match (status.state, status.reason_name()) {
            (DomainState::Paused, Some("migration" | "starting-up")) => Last::Arriving,
            (_, Some("postcopy" | "postcopy-failed")) => Last::Switching,
            _ => return,
        };
        self.0.entry(uuid).or_insert((last, now));
    }

    fn last(&self, uuid: Uuid) -> Option<Last> {
        self.0.get(&uuid).map(|(last, _)| *last)
    }

    fn set(&mut self, uuid: Uuid, last: Last, now: Instant) {
        self.0.insert(uuid, (last, now));
    }

    fn lifecycle(
        &mut self,
        uuid: Uuid,
        event: Lifecycle,
        number: i32,
        now: Instant,
    ) -> Option<Failure> {
        match (event, number) {
            (Lifecycle::Started, detail::STARTED_MIGRATED) => self.set(uuid, Last::Arriving, now),
            (
                Lifecycle::Suspended,
                detail::SUSPENDED_MIGRATED
                | detail::SUSPENDED_POSTCOPY
                | detail::SUSPENDED_POSTCOPY_FAILED,
            )
            | (Lifecycle::Resumed, detail::RESUMED_POSTCOPY) => {
                self.set(uuid, Last::Switching, now);
            }
            // It runs here, or nothing of it is left: what was is over. A reboot goes on.
            (Lifecycle::Started | Lifecycle::Resumed | Lifecycle::Undefined, _)
                if self.last(uuid) != Some(Last::Rebooting) =>
            {
                self.0.remove(&uuid);
            }
            (Lifecycle::Crashed, detail::CRASHED_CRASHLOADED) => {
                return Some(Failure {
                    trigger: Trigger::Panic,
                    duty: Duty::Nobody("its crash kernel saves a dump and reboots".to_owned()),
                    detail: "the crash kernel was loaded".to_owned(),
                });
            }
            (Lifecycle::Crashed, _) => {
                return Some(ours(Trigger::Panic, "the guest reported a panic"));
            }
            (Lifecycle::Stopped, detail::STOPPED_CRASHED | detail::STOPPED_FAILED) => {
                let last = self.0.remove(&uuid).map(|(last, _)| last);
                return stopped(last, number);
            }
            (Lifecycle::Stopped, _) => drop(self.0.remove(&uuid)),
            _ => {}
        }
        None
    }

    fn watchdog(&mut self, uuid: Uuid, action: WatchdogAction, now: Instant) -> Failure {
        let nobody = |what: &str| Duty::Nobody(format!("the watchdog {what}"));
        let duty = match action {
            WatchdogAction::None | WatchdogAction::Pause | WatchdogAction::Debug => Duty::Ours,
            WatchdogAction::Reset => nobody("resets it"),
            WatchdogAction::PowerOff => {
                self.set(uuid, Last::PoweredOff, now);
                nobody("powers it off")
            }
            WatchdogAction::Shutdown => nobody("shuts it down"),
            WatchdogAction::InjectNmi => nobody("interrupts its kernel"),
            WatchdogAction::Other(_) => nobody("does something that this agent does not know"),
        };
        Failure {
            trigger: Trigger::Watchdog,
            duty,
            detail: format!("action {}", action.name()),
        }
    }

    fn memory_failure(&mut self, uuid: Uuid, action: i32, now: Instant) -> Option<Failure> {
        let duty = match action {
            MEMORY_FATAL => {
                // Its process ends in a moment; that is when something can be done.
                self.set(uuid, Last::MemoryLost, now);
                Duty::Nobody("its process is about to end".to_owned())
            }
            MEMORY_RESET => Duty::Nobody("QEMU resets it".to_owned()),
            // The guest was told, or nothing was lost.
            _ => return None,
        };
        Some(Failure {
            trigger: Trigger::MemoryFailure,
            duty,
            detail: "the processor reported an error".to_owned(),
        })
    }
}

fn ours(trigger: Trigger, detail: &str) -> Failure {
    Failure {
        trigger,
        duty: Duty::Ours,
        detail: detail.to_owned(),
    }
}

fn stopped(last: Option<Last>, number: i32) -> Option<Failure> {
    let crashed = number == detail::STOPPED_CRASHED;
    match last {
        // A migration that failed: the instance runs on its source.
        Some(Last::Arriving) => None,
        Some(Last::Switching) => Some(Failure {
            trigger: Trigger::Crash,
            duty: Duty::Nobody(
                "it was moving to another host, and may run there: starting it here could break its disks".to_owned(),
            ),
            detail: "its process ended during a migration".to_owned(),
        }),
        Some(Last::PoweredOff) => None,
        Some(Last::Rebooting) => Some(ours(Trigger::FailedReboot, "its process ended")),
        Some(Last::MemoryLost) => Some(ours(Trigger::MemoryFailure, "its process ended")),
        None if crashed => Some(ours(Trigger::Crash, "it was ended after a panic")),
        None => Some(ours(Trigger::Crash, "its process ended")),
    }
}

fn io_error(source: &str, device: &str, action: IoErrorAction, reason: &str) -> Failure {
    let duty = match action {
        IoErrorAction::Pause => Duty::Ours,
        IoErrorAction::None => Duty::Nobody("the error is ignored by configuration".to_owned()),
        IoErrorAction::Report => Duty::Nobody("the error is given to the guest".to_owned()),
        IoErrorAction::Other(_) => {
            Duty::Nobody("this agent does not know what QEMU did".to_owned())
        }
    };
    let because = if reason.is_empty() {
        String::new()
    } else {
        format!(": {reason}")
    };
    let named = if source.is_empty() { device } else { source };
    Failure {
        trigger: Trigger::IoError,
        duty,
        detail: format!("{named}{because}"),
    }
}

/// What the state of an instance says, when its events may have been missed. `ran` is whether it ran
/// when it was last seen: an old stop is no news.
#[must_use]
pub fn by_state(status: DomainStatus, ran: bool) -> Option<Failure> {
    let trigger = match (status.state, status.reason_name()) {
        (DomainState::Crashed, _) => Trigger::Panic,
        (DomainState::Paused, Some("watchdog")) => Trigger::Watchdog,
        (DomainState::Paused, Some("io-error")) => Trigger::IoError,
        (DomainState::Shutoff, Some("crashed" | "failed")) if ran => Trigger::Crash,
        _ => return None,
    };
    Some(ours(trigger, "found by its state"))
}
