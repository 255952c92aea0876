//! One pass over one host: what the operator wants to say about it and to do for it.
//!
//! The controllers run one after the other on the same [`Pass`]. Each looks at the [`Host`] and at
//! what those before it said, and says its own part. What they say is one status write; what is to
//! be done is done after that write, so that an intent is stored before it is carried out.

use std::collections::BTreeMap;

use cobalt_api::conditions::{self, HypervisorCondition as Type, Reason, Status, Wanted};
use cobalt_api::hypervisor::{Check, CheckResult, HypervisorStatus};
use cobalt_api::names::labels;
use cobalt_api::wait::Wait;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::action::Action;
use crate::host::{Failure, Host};

/// The conditions that the operator writes. Others belong to the node agent.
pub const OWN: &[Type] = &[
    Type::Onboarding,
    Type::Offboarded,
    Type::Ready,
    Type::Terminating,
    Type::Tainted,
    Type::TraitsUpdated,
    Type::AggregatesUpdated,
    Type::AgentPodsEvicted,
    Type::HypervisorDisabled,
    Type::Evicting,
];

/// What is to be said and done.
#[derive(Debug)]
pub struct Pass<'a> {
    /// What is known.
    pub host: &'a Host,
    /// The time.
    pub now: Timestamp,
    /// The status as it shall be; only the operator's part of it is written.
    pub status: HypervisorStatus,
    /// What is to be done, in this order, after the status is written.
    pub actions: Vec<Action>,
    /// When to look again although nothing has changed.
    pub wake: Option<Timestamp>,
    /// Something that Nova will tell in a later round.
    pub waits_for_nova: bool,
    /// Actions whose failures are of the past.
    pub forgiven: Vec<&'static str>,
    /// What a silent agent said is marked as not known any more.
    pub marks: bool,
    /// What the wait was before this pass.
    before: Option<Wait>,
}

impl<'a> Pass<'a> {
    /// Begins with what the status says now.
    #[must_use]
    pub fn new(host: &'a Host, now: Timestamp) -> Self {
        let mut status = host
            .hypervisor
            .as_ref()
            .map(|known| known.status())
            .unwrap_or_default();
        let before = status.waiting_for.take();
        let onboarding = conditions::reason(&status.conditions, Type::Onboarding);
        if let Some(checks) = host
            .checks
            .as_ref()
            .filter(|_| onboarding == Some(Reason::Testing))
        {
            status.checks.clone_from(checks);
        }
        Self {
            host,
            now,
            status,
            actions: Vec::new(),
            wake: None,
            waits_for_nova: false,
            forgiven: Vec::new(),
            marks: false,
            before,
        }
    }

    /// Says a condition.
    pub fn say(
        &mut self,
        condition: Type,
        status: Status,
        reason: Reason,
        message: impl Into<String>,
    ) {
        let wanted = Wanted {
            condition,
            status,
            reason,
            message: message.into(),
            observed_generation: None,
        };
        let new = wanted.build(&self.status.conditions, self.now);
        conditions::set(&mut self.status.conditions, new);
    }

    /// Takes a condition back.
    pub fn unsay(&mut self, condition: Type) {
        let name = condition.as_str();
        self.status.conditions.retain(|one| one.type_ != name);
    }

    /// What a condition says, if it says something.
    #[must_use]
    pub fn condition(&self, condition: Type) -> Option<&Condition> {
        conditions::find(&self.status.conditions, condition)
    }

    /// The status and the reason of a condition.
    #[must_use]
    pub fn state(&self, condition: Type) -> Option<(Status, Option<Reason>)> {
        let status = conditions::status(&self.status.conditions, condition)?;
        Some((
            status,
            conditions::reason(&self.status.conditions, condition),
        ))
    }

    /// Something is waited for. The first one who says so is heard: it holds up the others.
    pub fn wait(&mut self, reason: &str, message: impl Into<String>, deadline: Option<Timestamp>) {
        if self.status.waiting_for.is_some() {
            return;
        }
        let since = self
            .before
            .as_ref()
            .filter(|before| before.reason == reason)
            .map_or(Time(self.now), |before| before.since.clone());
        self.status.waiting_for = Some(Wait {
            reason: reason.to_owned(),
            message: Some(cut(message.into(), 1024)),
            since,
            deadline: deadline.map(Time),
        });
    }

    /// What was waited for before this pass, if it was this.
    #[must_use]
    pub fn waited_for(&self, reason: &str) -> Option<&str> {
        let before = self
            .before
            .as_ref()
            .filter(|before| before.reason == reason);
        before.and_then(|before| before.message.as_deref())
    }

    /// Goes on waiting for what was waited for, while it is looked at anew.
    pub fn wait_on(&mut self, what: &str) {
        match self.before.clone() {
            Some(before) if self.status.waiting_for.is_none() => {
                self.status.waiting_for = Some(before);
            }
            _ => self.wait("Nova", what, None),
        }
    }

    /// Looks again after a while.
    pub fn wake_in(&mut self, seconds: i64) {
        self.wake_at(
            self.now
                .saturating_add(SignedDuration::from_secs(seconds))
                .unwrap_or(self.now),
        );
    }

    /// Looks again at that time.
    pub fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |present| present.min(at)));
    }

    /// Wants something done. What failed before waits for its next turn; returns why it failed.
    pub fn act(&mut self, action: Action) -> Option<&'a Failure> {
        let failures = &self.host.failures;
        let failure = failures
            .get(action.name())
            .filter(|_| !self.forgiven.contains(&action.name()));
        match failure {
            Some(failure) if failure.retry_at > self.now => self.wake_at(failure.retry_at),
            _ => self.actions.push(action),
        }
        failure
    }

    /// Wants something done; returns what to say of it: why it failed, or the text.
    pub fn act_saying(&mut self, action: Action, text: &str) -> String {
        let failure = self.act(action);
        failure.map_or_else(|| text.to_owned(), |failure| failure.text.clone())
    }

    /// The same for a look at something. What was waited for under this reason goes on: a look at it
    /// is no news.
    pub fn look_saying(&mut self, action: Action, reason: &str, text: &str) -> String {
        let before = self.waited_for(reason).unwrap_or(text).to_owned();
        self.act_saying(action, &before)
    }

    /// Begins anew with some actions: how they failed before does not count any more.
    pub fn forgive(&mut self, actions: &[&'static str]) {
        self.forgiven.extend(actions);
    }

    /// The check of this name.
    #[must_use]
    pub fn check(&self, name: &str) -> Option<&Check> {
        self.status.checks.iter().find(|check| check.name == name)
    }

    /// Says how a check goes. The time of the result stays while the result does.
    pub fn set_check(
        &mut self,
        name: &str,
        result: CheckResult,
        message: impl Into<String>,
        attempt: Option<i32>,
    ) {
        let now = Some(Time(self.now));
        let message = Some(cut(message.into(), 2048)).filter(|message| !message.is_empty());
        match self
            .status
            .checks
            .iter_mut()
            .find(|check| check.name == name)
        {
            Some(check) => {
                if check.result != result || check.attempt != attempt {
                    check.since = now;
                }
                check.result = result;
                check.message = message;
                check.attempt = attempt;
            }
            None => self.status.checks.push(Check {
                name: name.to_owned(),
                result,
                message,
                since: now,
                attempt,
            }),
        }
    }

    /// Labels that everything made for this host carries.
    #[must_use]
    pub fn transfer_labels(&self) -> BTreeMap<String, String> {
        let Some(known) = &self.host.hypervisor else {
            return BTreeMap::default();
        };
        let all = known.object.metadata.labels.iter().flatten();
        all.filter(|(key, _)| {
            labels::FROM_NODE_TO_HYPERVISOR.contains(&key.as_str())
                || self.host.settings.selector_labels.contains(key)
        })
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
    }
}

/// A text of at most so many characters, which is what others accept of it.
#[must_use]
pub fn cut(mut text: String, longest: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(longest) {
        text.truncate(end);
    }
    text
}

/// The operator's part of a status.
#[must_use]
pub fn own(status: &HypervisorStatus) -> HypervisorStatus {
    let mut own = HypervisorStatus {
        phase: status.phase,
        waiting_for: status.waiting_for.clone(),
        checks: status.checks.clone(),
        hypervisor_id: status.hypervisor_id.clone(),
        service_id: status.service_id.clone(),
        traits: status.traits.clone(),
        aggregates: status.aggregates.clone(),
        owned_traits: status.owned_traits.clone(),
        owned_aggregates: status.owned_aggregates.clone(),
        internal_ip: status.internal_ip.clone(),
        evicted: status.evicted,
        ..HypervisorStatus::default()
    };
    let names: Vec<&str> = OWN.iter().map(|own| own.as_str()).collect();
    own.conditions = status
        .conditions
        .iter()
        .filter(|condition| {
            // What it says of a silent agent's conditions is the operator's own.
            names.contains(&condition.type_.as_str())
                || condition.reason == Reason::AgentSilent.as_str()
        })
        .cloned()
        .collect();
    own.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    own
}
