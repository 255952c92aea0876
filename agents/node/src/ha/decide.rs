//! What is done about a failed instance. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cobalt_api::conditions::{Reason, Status};
use cobalt_api::hypervisor::HaPolicy;
use uuid::Uuid;

use super::trigger::{Duty, Trigger};
use crate::context::Statement;
use crate::lease::Holder;

/// How the HA agent acts.
#[derive(Debug, Clone)]
pub struct HaConfig {
    /// What happens when neither the instance nor the Hypervisor says.
    pub policy: HaPolicy,
    /// How many restarts of an instance within the window are tried.
    pub restarts: u32,
    /// The window in which restarts and failing instances are counted.
    pub window: Duration,
    /// How many instances may fail within the window before it is the host that has failed, and
    /// nothing is done to single instances any more.
    pub brake: u32,
    /// How long an instance is left alone after it failed: events of one failure come together, and
    /// a failure of the host shows in many instances. It doubles with each restart.
    pub settle: Duration,
}

impl Default for HaConfig {
    fn default() -> Self {
        Self {
            policy: HaPolicy::Notify,
            restarts: 3,
            window: Duration::from_secs(600),
            brake: 5,
            settle: Duration::from_secs(1),
        }
    }
}

/// In which state the instance is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Situation {
    /// libvirt does not know it any more: it had no definition beside its process.
    Gone,
    /// It is off, and libvirt can start it.
    Off,
    /// It stands still for the reason that it failed.
    Halted,
    /// Somebody has stopped or paused it, or moves it.
    Handled,
    /// It runs.
    Running,
}

/// How an instance is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Start it.
    Start,
    /// Reset the machine and let it run.
    Reset,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Restart it on this host.
    Restart(Restart),
    /// Ask for it to be moved.
    Evict,
    /// Say it.
    Notify,
}

impl Action {
    /// In one word, for metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Restart(_) => "restart",
            Self::Evict => "evict",
            Self::Notify => "notify",
        }
    }
}

/// What is done, and why for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What is done.
    pub action: Action,
    /// Why.
    pub why: String,
    /// The host has failed rather than the instance: one word for all of them.
    pub braked: bool,
}

/// All that the decision needs.
#[derive(Debug, Clone)]
pub struct Case<'a> {
    /// What has happened.
    pub trigger: Trigger,
    /// Who has to do something.
    pub duty: &'a Duty,
    /// How the instance is now.
    pub situation: Situation,
    /// What shall happen to it.
    pub policy: HaPolicy,
    /// Whether the Hypervisor lets the agent act.
    pub enabled: bool,
    /// Whether this agent holds the node's Lease.
    pub holder: bool,
    /// Since it failed, the Lease was not renewed for as long as it lasts.
    pub interrupted: bool,
    /// What was done before.
    pub record: Record,
}

/// What was done to an instance within the window, and how many instances failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record {
    /// Restarts of the instance.
    pub restarts: u32,
    /// It was evicted.
    pub evicted: bool,
    /// Instances that failed.
    pub failing: u32,
}

/// Decides.
#[must_use]
pub fn decide(case: &Case<'_>, config: &HaConfig) -> Decision {
    let notify = |why: String| Decision {
        action: Action::Notify,
        why,
        braked: false,
    };
    let act = |action: Action, why: &str| Decision {
        action,
        why: why.to_owned(),
        braked: false,
    };
    if let Duty::Nobody(why) = case.duty {
        return notify(why.clone());
    }
    let restart = match case.situation {
        Situation::Off => Some(Restart::Start),
        Situation::Halted => Some(Restart::Reset),
        // A watchdog that only reports leaves the instance hanging.
        Situation::Running if case.trigger == Trigger::Watchdog => Some(Restart::Reset),
        Situation::Gone => None,
        Situation::Running => return notify("it runs again".to_owned()),
        Situation::Handled => {
            return notify("somebody has stopped or paused it since, or moves it".to_owned());
        }
    };
    if !case.holder {
        return notify("this agent does not hold the Lease of the node".to_owned());
    }
    if case.interrupted {
        return notify(
            "the Lease of the node was not renewed for so long that it may have been started on \
             another host"
                .to_owned(),
        );
    }
    if !case.enabled {
        return notify("spec.highAvailability of the Hypervisor is false".to_owned());
    }
    if case.policy == HaPolicy::Notify {
        return notify("its policy is notify".to_owned());
    }
    if case.record.failing > config.brake {
        return Decision {
            action: Action::Notify,
            why: format!(
                "{} instances failed within {} s: the host or its storage is at fault",
                case.record.failing,
                config.window.as_secs()
            ),
            braked: true,
        };
    }
    let evict = |why: &str| {
        if case.record.evicted {
            notify(format!("{why}, and it is being evicted or was already"))
        } else {
            act(Action::Evict, why)
        }
    };
    match (case.policy, restart) {
        (HaPolicy::Evict, _) => evict("its policy is evict"),
        (_, None) => {
            evict("its policy is restart, and libvirt has no definition left to start it from")
        }
        (_, Some(_)) if case.record.restarts >= config.restarts => {
            evict(&format!("{} restarts did not help", case.record.restarts))
        }
        (_, Some(restart)) => act(Action::Restart(restart), "its policy is restart"),
    }
}

/// What the agent says about itself: whether it acts on instances that fail. `None`: another agent
/// of this node does, or it is not known yet.
#[must_use]
pub fn statement(
    holder: &Holder,
    lapsed: bool,
    enabled: bool,
    braked: bool,
    config: &HaConfig,
) -> Option<Statement> {
    if *holder != Holder::Me {
        return None;
    }
    let stopped = |message: String| Statement {
        status: Status::False,
        reason: Reason::Stopped,
        message,
    };
    Some(if lapsed {
        stopped(
            "no instance is restarted or evicted: the Lease of the node could not be renewed, and \
             somebody else may take the host for dead"
                .to_owned(),
        )
    } else if !enabled {
        stopped("no instance is restarted or evicted: spec.highAvailability is false".to_owned())
    } else if braked {
        stopped(format!(
            "no instance is restarted or evicted: more than {} failed within {} s, so the host or \
             its storage is at fault",
            config.brake,
            config.window.as_secs()
        ))
    } else {
        Statement {
            status: Status::True,
            reason: Reason::Ready,
            message: "instances that fail are restarted or evicted by their policy".to_owned(),
        }
    })
}

/// What was done, in memory. A new process begins with an empty one: it may restart an instance that
/// often once more, no faster than the waits allow, and finds Evictions by their names.
#[derive(Debug, Clone, Default)]
pub struct History {
    restarts: BTreeMap<Uuid, Vec<Instant>>,
    evictions: BTreeMap<Uuid, Instant>,
    failures: BTreeMap<Uuid, Instant>,
    said: BTreeMap<(Uuid, Trigger), Instant>,
    braked: Option<Instant>,
}

impl History {
    /// Forgets what is older than the window.
    pub fn prune(&mut self, window: Duration, now: Instant) {
        let fresh = |at: &Instant| now.saturating_duration_since(*at) < window;
        for restarts in self.restarts.values_mut() {
            restarts.retain(fresh);
        }
        self.restarts.retain(|_, restarts| !restarts.is_empty());
        self.evictions.retain(|_, at| fresh(at));
        self.failures.retain(|_, at| fresh(at));
        self.said.retain(|_, at| fresh(at));
        self.braked = self.braked.filter(fresh);
    }

    /// An instance has failed in a way that is ours to mend.
    pub fn failed(&mut self, uuid: Uuid, now: Instant) {
        self.failures.insert(uuid, now);
    }

    /// An instance was restarted, or that was tried.
    pub fn restarted(&mut self, uuid: Uuid, now: Instant) {
        self.restarts.entry(uuid).or_default().push(now);
    }

    /// An instance was evicted.
    pub fn evicted(&mut self, uuid: Uuid, now: Instant) {
        self.evictions.insert(uuid, now);
    }

    /// What the decision needs.
    #[must_use]
    pub fn record(&self, uuid: Uuid) -> Record {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Record {
            restarts: count(self.restarts.get(&uuid).map_or(0, Vec::len)),
            evicted: self.evictions.contains_key(&uuid),
            failing: count(self.failures.len()),
        }
    }

    /// How long the next failure of an instance waits.
    #[must_use]
    pub fn wait(&self, uuid: Uuid, settle: Duration) -> Duration {
        let restarts = self.restarts.get(&uuid).map_or(0, Vec::len);
        let doubled = u32::try_from(restarts).unwrap_or(u32::MAX).min(6);
        settle.saturating_mul(1_u32 << doubled)
    }

    /// Whether something is news: an instance with a bad disk says so many times a second.
    pub fn is_news(&mut self, uuid: Uuid, trigger: Trigger, now: Instant) -> bool {
        self.said.insert((uuid, trigger), now).is_none()
    }

    /// Whether no brake holds.
    #[must_use]
    pub fn brake_is_over(&self) -> bool {
        self.braked.is_none()
    }

    /// Whether it is news that the host has failed.
    pub fn brake_is_news(&mut self, now: Instant) -> bool {
        self.braked.replace(now).is_none()
    }
}
