//! What to do about a shutdown of the host: hold it up while instances have to leave. Pure.
//!
//! ```text
//!            evacuateOnReboot          shutdown            empty, or the Eviction has ended
//!   no lock ------------------> lock ------------> drain ----------------------------------> no lock
//!      ^                         |  ^                |
//!      +---- not wanted ---------+  +--- called off -+
//! ```
//!
//! While no shutdown is under way, Evictions that were made because of one are cancelled: the
//! operator puts the host back into service then. That is so after a reboot, too.

use std::time::Duration;

use cobalt_api::conditions::{self, EvictionCondition, Reason, Status};
use cobalt_api::eviction::Eviction;
use kube::ResourceExt;

use crate::context::Statement;

/// Below this nobody moves an instance.
pub const SHORT: Duration = Duration::from_secs(60);

/// What the host is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Going {
    /// To reboot or to power off.
    Down,
    /// To sleep: its instances would stand still.
    Asleep,
}

impl Going {
    fn word(self) -> &'static str {
        match self {
            Self::Down => "shutdown",
            Self::Asleep => "sleep",
        }
    }
}

/// The delay lock of logind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lock {
    /// We have none.
    Free,
    /// logind did not give us one.
    Refused(String),
    /// We have it.
    Held,
    /// We have one from before logind or the bus went away. It may hold still.
    Old,
}

/// The Eviction that empties the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drain {
    /// Nobody has asked for one.
    None,
    /// It could not be asked for.
    Failing(String),
    /// It is under way.
    Running {
        /// Its name.
        name: String,
        /// Where it is, for people.
        state: String,
        /// Nova has not finished a move. An instance runs elsewhere before Nova is done with it
        /// here: a host that goes down in between leaves Nova with a server on the wrong host.
        moving: bool,
    },
    /// It is over.
    Ended {
        /// Its name.
        name: String,
        /// How.
        outcome: String,
    },
}

/// Everything that matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// `spec.evacuateOnReboot`; `None` while it is not known.
    pub wanted: Option<bool>,
    /// Why logind cannot be asked.
    pub away: Option<String>,
    /// The lock.
    pub lock: Lock,
    /// What the host is about to do.
    pub going: Option<Going>,
    /// Why the lock was let go of in this shutdown.
    pub released: Option<String>,
    /// How many instances are active.
    pub active: usize,
    /// The Eviction.
    pub drain: Drain,
    /// How long logind lets a shutdown wait.
    pub delay: Option<Duration>,
    /// How long it shall, if that is for the agent to set, and why it could not set it.
    pub wanted_delay: Option<(Duration, Option<String>)>,
    /// Evictions of earlier shutdowns that are to be cancelled; `None` while nobody has looked.
    pub leftovers: Option<Vec<String>>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Take a lock from logind, in the place of an old one.
    Take,
    /// Let go of it.
    Release(String),
    /// Make the Eviction, or join one.
    Evict,
    /// Look for Evictions of earlier shutdowns.
    Look,
    /// Cancel one of them.
    Cancel(String),
    /// Make logind let a shutdown wait for so long.
    SetDelay(Duration),
}

/// What is to be done now, the most urgent first, and what is said. An action that fails is no reason
/// to leave out the others.
#[must_use]
pub fn decide(view: &View) -> (Vec<Action>, Statement) {
    let mut all: Vec<Action> = lock(view).into_iter().collect();
    if view.going.is_none() && view.away.is_none() {
        all.extend(put_back(view));
        all.extend(set_delay(view));
    }
    (all, statement(view))
}

fn put_back(view: &View) -> Option<Action> {
    match &view.leftovers {
        None => Some(Action::Look),
        Some(names) => names.first().cloned().map(Action::Cancel),
    }
}

fn set_delay(view: &View) -> Option<Action> {
    let (wanted, _) = view.wanted_delay.as_ref()?;
    (view.delay? < *wanted).then_some(Action::SetDelay(*wanted))
}

fn lock(view: &View) -> Option<Action> {
    let held = matches!(view.lock, Lock::Held | Lock::Old);
    match (view.wanted?, view.going) {
        (false, _) => held.then(|| Action::Release("spec.evacuateOnReboot is false".to_owned())),
        (true, None) => (view.lock != Lock::Held && view.away.is_none()).then_some(Action::Take),
        // logind gives no lock for what has begun, and after a release there is nothing to wait for.
        (true, Some(_)) if !held => None,
        (true, Some(_)) if view.active == 0 && !moving(view) => {
            Some(Action::Release("no instance is active".to_owned()))
        }
        (true, Some(_)) => match &view.drain {
            Drain::None | Drain::Failing(_) => Some(Action::Evict),
            Drain::Running { .. } => None,
            Drain::Ended { name, outcome } => Some(Action::Release(format!(
                "the Eviction \"{name}\" has ended: {outcome}; {} left",
                instances(view.active)
            ))),
        },
    }
}

fn moving(view: &View) -> bool {
    matches!(view.drain, Drain::Running { moving: true, .. })
}

fn statement(view: &View) -> Statement {
    let say = |status, reason, message| Statement {
        status,
        reason,
        message,
    };
    let held = matches!(view.lock, Lock::Held | Lock::Old);
    match (view.wanted, view.going) {
        (None, _) if !held => say(
            Status::Unknown,
            Reason::Failed,
            "spec.evacuateOnReboot is not known: the Hypervisor was not seen yet".to_owned(),
        ),
        (Some(false), _) => say(
            Status::False,
            Reason::Stopped,
            "a shutdown does not wait: spec.evacuateOnReboot is false".to_owned(),
        ),
        (_, Some(going)) if held => say(Status::True, Reason::Running, waiting(view, going)),
        (_, Some(going)) => {
            let word = going.word();
            let why = match (&view.released, &view.lock) {
                (Some(why), _) => why.clone(),
                (None, Lock::Refused(why)) => format!("there was no lock: {why}"),
                (None, _) => "there was no lock when it began".to_owned(),
            };
            say(
                Status::False,
                Reason::Stopped,
                format!("the {word} goes on: {why}"),
            )
        }
        (_, None) => match (&view.away, &view.lock) {
            (Some(why), Lock::Held | Lock::Old) => say(
                Status::Unknown,
                Reason::Failed,
                format!("a lock was held when the connection to logind was lost: {why}"),
            ),
            (Some(why), _) => say(
                Status::False,
                Reason::Failed,
                format!("a shutdown would not wait: {why}"),
            ),
            (None, Lock::Refused(why)) => say(
                Status::False,
                Reason::Failed,
                format!("a shutdown would not wait: {why}; it is tried again"),
            ),
            (None, Lock::Held) => say(
                Status::True,
                Reason::Ready,
                format!(
                    "a shutdown waits until no instance is active{}",
                    limit(view)
                ),
            ),
            (None, Lock::Free | Lock::Old) => say(
                Status::False,
                Reason::Failed,
                "a shutdown would not wait: the lock is being taken".to_owned(),
            ),
        },
    }
}

fn waiting(view: &View, going: Going) -> String {
    let word = going.word();
    let left = match view.active {
        0 => "Nova to finish its last moves".to_owned(),
        active => format!("{} to leave", instances(active)),
    };
    let how = match &view.drain {
        Drain::None => "an Eviction is being asked for".to_owned(),
        Drain::Failing(why) => {
            format!("the Eviction could not be made and is tried again until logind goes on: {why}")
        }
        Drain::Running { name, state, .. } => format!("Eviction \"{name}\": {state}"),
        Drain::Ended { name, outcome } => format!("Eviction \"{name}\" has ended: {outcome}"),
    };
    format!("the {word} waits for {left}; {how}{}", limit(view))
}

fn instances(count: usize) -> String {
    match count {
        1 => "1 active instance".to_owned(),
        count => format!("{count} active instances"),
    }
}

fn limit(view: &View) -> String {
    let Some(delay) = view.delay else {
        return String::new();
    };
    let mut text = format!("; {}", longest(delay));
    if let Some((_, Some(why))) = &view.wanted_delay {
        text.push_str("; the agent could not raise it and tries again: ");
        text.push_str(why);
    }
    text
}

/// How long a shutdown waits, for people; with the remedy, if that is too short.
#[must_use]
pub fn longest(delay: Duration) -> String {
    let most = cobalt_api::duration::format(delay);
    if delay < SHORT {
        format!(
            "logind lets it wait for at most {most}, in which no drain finishes: raise \
             InhibitDelayMaxSec in /etc/systemd/logind.conf.d (the agent's --shutdown-delay does \
             that), or shutdownGracePeriod of the kubelet"
        )
    } else {
        format!("logind lets it wait for at most {most}")
    }
}

/// How an Eviction ended, if it has.
#[must_use]
pub fn outcome(eviction: &Eviction) -> Option<String> {
    let status = eviction.status.as_ref()?;
    if let Some(outcome) = status.outcome {
        return Some(outcome.as_str().to_owned());
    }
    // An operator of before has only the condition.
    let found = conditions::find(&status.conditions, EvictionCondition::Evicting)?;
    (found.status == Status::False.as_str()).then(|| found.reason.clone())
}

/// Where an Eviction is, for people.
#[must_use]
pub fn progress(eviction: &Eviction) -> String {
    let Some(status) = &eviction.status else {
        return "not begun".to_owned();
    };
    let mut said = match status.counts {
        Some(counts) => format!(
            "{} of {} moved, {} moving, {} blocked, {} failed",
            counts.moved, counts.total, counts.moving, counts.blocked, counts.failed
        ),
        None => conditions::find(&status.conditions, EvictionCondition::Evicting)
            .map_or_else(|| "not begun".to_owned(), |found| found.reason.clone()),
    };
    if let Some(wait) = &status.waiting_for {
        said.push_str("; it waits for ");
        said.push_str(&wait.reason);
    }
    said
}

/// What becomes of a name that an Eviction might have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Candidate {
    /// Nothing has it.
    Free,
    /// It empties this host, and can be waited for.
    Join,
    /// It is something else, or over.
    Taken,
}

/// Whether an Eviction of a name can be made, joined or neither. A finished one never speaks for
/// this shutdown (W68).
#[must_use]
pub fn candidate(existing: Option<&Eviction>, node: &str) -> Candidate {
    let Some(eviction) = existing else {
        return Candidate::Free;
    };
    let spec = &eviction.spec;
    let whole = spec.hypervisor == node && spec.instances.is_empty() && !spec.dry_run();
    let going = outcome(eviction).is_none()
        && !spec.cancel()
        && eviction.metadata.deletion_timestamp.is_none();
    if whole && going {
        Candidate::Join
    } else {
        Candidate::Taken
    }
}

/// The names that are tried, in this order. The name of the node alone is for maintenance.
pub fn names(node: &str, boot: &str) -> impl Iterator<Item = String> {
    let boot: String = boot
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(8)
        .collect();
    let first = format!("{node}-{boot:0<8}");
    let more = (2..10).map({
        let first = first.clone();
        move |number| format!("{first}-{number}")
    });
    std::iter::once(first).chain(more)
}

/// Whether it was made for this node because of a shutdown, and nobody has cancelled it. One with the
/// name of the node is of an agent of before, and not for an agent to cancel; the operator removes it.
#[must_use]
pub fn is_leftover(eviction: &Eviction, node: &str) -> bool {
    eviction.is_for_shutdown()
        && eviction.spec.hypervisor == node
        && eviction.name_any() != node
        && !eviction.spec.cancel()
        && eviction.metadata.deletion_timestamp.is_none()
}

fn moves(eviction: &Eviction) -> bool {
    let counts = eviction.status.as_ref().and_then(|status| status.counts);
    counts.is_some_and(|counts| counts.moving > 0)
}

/// What is known of an Eviction that is waited for.
#[must_use]
pub fn drain(eviction: &Eviction) -> Drain {
    let name = eviction.name_any();
    match outcome(eviction) {
        Some(outcome) => Drain::Ended { name, outcome },
        None => Drain::Running {
            name,
            state: progress(eviction),
            moving: moves(eviction),
        },
    }
}

#[cfg(test)]
mod tests;
