//! Condition types and reasons, and pure functions over a list of conditions.
//!
//! Each kind has a closed set of condition types. Reasons are one closed set, because the same word
//! is used by several conditions; [`HypervisorCondition::reasons`] and its siblings say which reason
//! belongs to which condition. Readers must expect a reason or a type that is not listed: other
//! writers share these lists.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::strings::string_enum;

/// The longest message the schema admits, in characters.
pub const MESSAGE_MAX: usize = 32_768;

string_enum! {
    /// The three values of a condition's status.
    pub enum Status {
        /// The condition holds.
        True => "True",
        /// The condition does not hold.
        False => "False",
        /// It is not known whether the condition holds.
        Unknown => "Unknown",
    }
}

impl From<bool> for Status {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// The type of a condition of one kind of object.
pub trait ConditionType: Copy {
    /// The string in `conditions[].type`.
    fn type_name(self) -> &'static str;
}

string_enum! {
    /// Condition types of a Hypervisor.
    pub enum HypervisorCondition {
        /// True while the host is being onboarded, False when that has ended.
        Onboarding => "Onboarding",
        /// The host has left Nova and Placement.
        Offboarded => "Offboarded",
        /// Summary: the host takes workload.
        Ready => "Ready",
        /// The Kubernetes node is going away.
        Terminating => "Terminating",
        /// Somebody edited the object by hand.
        Tainted => "Tainted",
        /// The wanted traits are in Placement.
        TraitsUpdated => "TraitsUpdated",
        /// The wanted aggregates are in Nova.
        AggregatesUpdated => "AggregatesUpdated",
        /// No agent pod that must leave before offboarding runs on the node.
        AgentPodsEvicted => "AgentPodsEvicted",
        /// The compute service is disabled in Nova.
        HypervisorDisabled => "HypervisorDisabled",
        /// The compute service is enabled in Nova again. Declared, and written by nobody so far.
        HypervisorReEnabled => "HypervisorReEnabled",
        /// True while the host is being emptied.
        Evicting => "Evicting",
        /// The instances of this host are protected.
        HaEnabled => "HaEnabled",
        /// The systemd unit of libvirt.
        LibvirtdService => "libvirtd.service",
        /// The systemd unit of Open vSwitch.
        OpenvswitchService => "openvswitch-switch.service",
        /// The node agent talks to libvirt.
        LibVirtConnection => "LibVirtConnection",
        /// The node agent talks to systemd and logind.
        SystemdConnection => "SystemdConnection",
        /// A shutdown of the host waits until its instances have left.
        ShutdownInhibited => "ShutdownInhibited",
        /// The node agent restarts and evicts instances that fail.
        InstanceRecovery => "InstanceRecovery",
        /// An operating system update.
        OperatingSystemUpdate => "OperatingSystemUpdate",
        /// The TLS material of libvirt is installed and in use.
        TlsCertificateInstalled => "TLSCertificateInstalled",
    }
}

string_enum! {
    /// Condition types of an Eviction.
    pub enum EvictionCondition {
        /// True while instances are being moved, False when that has ended.
        Evicting => "Evicting",
        /// The checks before the first move have passed.
        PreflightChecksSucceeded => "PreflightChecksSucceeded",
        /// The last instance that was handled.
        MigratingInstance => "MigratingInstance",
        /// The compute service is disabled in Nova.
        HypervisorDisabled => "HypervisorDisabled",
        /// The compute service is enabled in Nova again.
        HypervisorReEnabled => "HypervisorReEnabled",
    }
}

string_enum! {
    /// Condition types of an OVSNode.
    pub enum OvsNodeCondition {
        /// Summary of the other conditions.
        Ready => "Ready",
        /// The agent talks to the local OVSDB.
        OvsdbConnected => "OVSDBConnected",
        /// ovn-controller is connected to the southbound database.
        OvnControllerConnected => "OVNControllerConnected",
        /// Every bridge works.
        AllBridgesHealthy => "AllBridgesHealthy",
        /// Every bond has all its members.
        AllBondsHealthy => "AllBondsHealthy",
    }
}

string_enum! {
    /// Why a condition has its status.
    pub enum Reason {
        /// Onboarding has begun.
        Initial => "Initial",
        /// Onboarding is in progress, or has not begun.
        Onboarding => "Onboarding",
        /// The tests of onboarding run.
        Testing => "Testing",
        /// The tests have passed; other controllers finish their part.
        Handover => "Handover",
        /// It was given up.
        Aborted => "Aborted",
        /// It worked.
        Succeeded => "Succeeded",
        /// It did not work; the message says why.
        Failed => "Failed",
        /// Some instances were moved and some were not.
        PartiallyFailed => "PartiallyFailed",
        /// A person or a controller took the request back.
        Cancelled => "Cancelled",
        /// The deadline passed.
        TimedOut => "TimedOut",
        /// Offboarding is in progress; the message says what it waits for.
        Offboarding => "Offboarding",
        /// The host has left.
        Offboarded => "Offboarded",
        /// The node is terminating.
        Terminating => "Terminating",
        /// The host is being emptied.
        Evicting => "Evicting",
        /// The host is empty.
        Evicted => "Evicted",
        /// The host is in maintenance.
        Maintenance => "Maintenance",
        /// All is well.
        Ready => "Ready",
        /// Something the summary depends on is not well; the message names it.
        NotReady => "NotReady",
        /// A kubectl field manager owns fields of the object.
        Kubectl => "Kubectl",
        /// No kubectl field manager owns fields of the object.
        NoKubectl => "NoKubectl",
        /// The aggregates of the onboarding tests are set.
        TestAggregates => "TestAggregates",
        /// The traits have to be there first.
        WaitingForTraits => "WaitingForTraits",
        /// The eviction has to end first.
        EvictionInProgress => "EvictionInProgress",
        /// No agent pod is left on the node.
        NoAgentPods => "NoAgentPods",
        /// Agent pods are left on the node; the message lists them.
        AgentPodsRunning => "AgentPodsRunning",
        /// It runs.
        Running => "Running",
        /// It was stopped.
        Stopped => "Stopped",
        /// It ran to the end.
        Completed => "Completed",
        /// The connection is up.
        Connected => "Connected",
        /// The connection was up and was lost.
        Disconnected => "Disconnected",
        /// The connection could not be made.
        ConnectFailed => "ConnectFailed",
        /// The libvirt service does not run, so no connection was tried.
        LibVirtServiceNotRunning => "LibVirtServiceNotRunning",
        /// libvirt answered, and the answer could not be used.
        ProcessFailed => "ProcessFailed",
        /// The certificate is being installed.
        Installing => "Installing",
        /// The certificate could not be written.
        FailedToUpdateTlsCertificate => "FailedToUpdateTLSCertificate",
        /// The certificate was written, and the service that loads it could not be started.
        FailedToStartUpdateTlsService => "FailedToStartUpdateTLSService",
        /// The certificate is not valid any more, or not yet.
        Expired => "Expired",
        /// Every item works.
        Healthy => "Healthy",
        /// At least one item does not work; the message names it.
        Degraded => "Degraded",
        /// Several Hypervisors stand for one host of Nova; nothing is done for any of them.
        IdentityConflict => "IdentityConflict",
        /// The agent that reports it is silent: the operator says that it is not known any more, and
        /// since when.
        AgentSilent => "AgentSilent",
    }
}

impl ConditionType for HypervisorCondition {
    fn type_name(self) -> &'static str {
        self.as_str()
    }
}

impl ConditionType for EvictionCondition {
    fn type_name(self) -> &'static str {
        self.as_str()
    }
}

impl ConditionType for OvsNodeCondition {
    fn type_name(self) -> &'static str {
        self.as_str()
    }
}

/// The condition `Evicting` says the same on an Eviction and on its Hypervisor.
const EVICTING_REASONS: &[Reason] = &[
    Reason::Running,
    Reason::Succeeded,
    Reason::PartiallyFailed,
    Reason::Failed,
    Reason::Cancelled,
    Reason::TimedOut,
];

impl HypervisorCondition {
    /// The reasons this condition is written with.
    #[must_use]
    pub const fn reasons(self) -> &'static [Reason] {
        use Reason as R;
        match self {
            Self::Onboarding => &[
                R::Initial,
                R::Testing,
                R::Handover,
                R::Succeeded,
                R::Aborted,
            ],
            Self::Offboarded => &[R::Offboarding, R::Offboarded],
            Self::Ready => &[
                R::Offboarded,
                R::Terminating,
                R::Onboarding,
                R::Evicting,
                R::Evicted,
                R::Maintenance,
                R::IdentityConflict,
                R::NotReady,
                R::Ready,
            ],
            Self::Terminating => &[R::Terminating],
            Self::Tainted => &[R::Kubectl, R::NoKubectl],
            Self::TraitsUpdated => &[R::Succeeded, R::Failed],
            Self::AggregatesUpdated => &[
                R::Succeeded,
                R::TestAggregates,
                R::WaitingForTraits,
                R::EvictionInProgress,
                R::Terminating,
                R::Failed,
            ],
            Self::AgentPodsEvicted => &[R::NoAgentPods, R::AgentPodsRunning],
            Self::HypervisorDisabled | Self::HypervisorReEnabled => &[R::Succeeded, R::Failed],
            Self::Evicting => EVICTING_REASONS,
            Self::HaEnabled => &[R::Succeeded, R::Evicted, R::Onboarding, R::Failed],
            Self::LibvirtdService | Self::OpenvswitchService => &[
                R::Running,
                R::Stopped,
                R::Failed,
                R::Disconnected,
                R::ConnectFailed,
                R::AgentSilent,
            ],
            Self::LibVirtConnection => &[
                R::Connected,
                R::Disconnected,
                R::ConnectFailed,
                R::LibVirtServiceNotRunning,
                R::ProcessFailed,
                R::AgentSilent,
            ],
            Self::SystemdConnection => &[
                R::Connected,
                R::Disconnected,
                R::ConnectFailed,
                R::AgentSilent,
            ],
            Self::ShutdownInhibited => {
                &[R::Ready, R::Running, R::Stopped, R::Failed, R::AgentSilent]
            }
            Self::InstanceRecovery => &[R::Ready, R::Stopped, R::AgentSilent],
            Self::OperatingSystemUpdate => &[R::Running, R::Completed, R::Stopped],
            Self::TlsCertificateInstalled => &[
                R::Installing,
                R::FailedToUpdateTlsCertificate,
                R::FailedToStartUpdateTlsService,
                R::Expired,
                R::Ready,
            ],
        }
    }
}

impl EvictionCondition {
    /// The reasons this condition is written with.
    #[must_use]
    pub const fn reasons(self) -> &'static [Reason] {
        use Reason as R;
        match self {
            Self::Evicting => EVICTING_REASONS,
            Self::PreflightChecksSucceeded
            | Self::MigratingInstance
            | Self::HypervisorDisabled
            | Self::HypervisorReEnabled => &[R::Succeeded, R::Failed],
        }
    }
}

impl OvsNodeCondition {
    /// The reasons this condition is written with.
    #[must_use]
    pub const fn reasons(self) -> &'static [Reason] {
        use Reason as R;
        match self {
            Self::Ready => &[R::Ready, R::NotReady, R::AgentSilent],
            Self::OvsdbConnected | Self::OvnControllerConnected => &[
                R::Connected,
                R::Disconnected,
                R::ConnectFailed,
                R::AgentSilent,
            ],
            Self::AllBridgesHealthy | Self::AllBondsHealthy => {
                &[R::Healthy, R::Degraded, R::AgentSilent]
            }
        }
    }
}

/// The condition of the given type.
#[must_use]
pub fn find(conditions: &[Condition], wanted: impl ConditionType) -> Option<&Condition> {
    conditions
        .iter()
        .find(|condition| condition.type_ == wanted.type_name())
}

/// The status of the condition of the given type. `None` means that the condition is absent;
/// a status the API does not know counts as [`Status::Unknown`].
#[must_use]
pub fn status(conditions: &[Condition], wanted: impl ConditionType) -> Option<Status> {
    find(conditions, wanted).map(|found| found.status.parse().unwrap_or(Status::Unknown))
}

/// The reason of the condition of the given type. `None` means that the condition is absent or its
/// reason is not one of ours.
#[must_use]
pub fn reason(conditions: &[Condition], wanted: impl ConditionType) -> Option<Reason> {
    find(conditions, wanted).and_then(|found| found.reason.parse().ok())
}

/// Whether the condition of the given type is there and True.
#[must_use]
pub fn is_true(conditions: &[Condition], wanted: impl ConditionType) -> bool {
    status(conditions, wanted) == Some(Status::True)
}

/// Whether the condition of the given type is there and False. An absent condition is neither.
#[must_use]
pub fn is_false(conditions: &[Condition], wanted: impl ConditionType) -> bool {
    status(conditions, wanted) == Some(Status::False)
}

/// What a controller wants a condition to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted<T> {
    /// The type.
    pub condition: T,
    /// The status.
    pub status: Status,
    /// The reason.
    pub reason: Reason,
    /// The text for people.
    pub message: String,
    /// The generation of the object the statement is about.
    pub observed_generation: Option<i64>,
}

impl<T: ConditionType> Wanted<T> {
    /// The condition to write, given the list as it is now and the time.
    ///
    /// `lastTransitionTime` is kept while the status is the same. A message that is too long for
    /// the schema is cut, because one refused message would refuse the whole status.
    #[must_use]
    pub fn build(self, current: &[Condition], now: Timestamp) -> Condition {
        let last_transition_time = find(current, self.condition)
            .filter(|found| found.status == self.status.as_str())
            .map_or_else(|| Time(now), |found| found.last_transition_time.clone());
        Condition {
            last_transition_time,
            message: shorten(self.message),
            observed_generation: self.observed_generation,
            reason: self.reason.as_str().to_owned(),
            status: self.status.as_str().to_owned(),
            type_: self.condition.type_name().to_owned(),
        }
    }
}

/// Puts a condition into a list, in the place of the one with the same type if there is one.
/// Returns whether the list has changed.
pub fn set(conditions: &mut Vec<Condition>, new: Condition) -> bool {
    match conditions
        .iter_mut()
        .find(|condition| condition.type_ == new.type_)
    {
        Some(found) if *found == new => false,
        Some(found) => {
            *found = new;
            true
        }
        None => {
            conditions.push(new);
            true
        }
    }
}

fn shorten(mut message: String) -> String {
    if let Some((cut, _)) = message.char_indices().nth(MESSAGE_MAX) {
        message.truncate(cut);
    }
    message
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn wanted(condition: HypervisorCondition, status: Status) -> Wanted<HypervisorCondition> {
        Wanted {
            condition,
            status,
            reason: Reason::Ready,
            message: "m".into(),
            observed_generation: Some(1),
        }
    }

    #[test]
    fn every_reason_belongs_to_a_condition() {
        let used: BTreeSet<Reason> = HypervisorCondition::ALL
            .iter()
            .flat_map(|condition| condition.reasons())
            .chain(
                EvictionCondition::ALL
                    .iter()
                    .flat_map(|condition| condition.reasons()),
            )
            .chain(
                OvsNodeCondition::ALL
                    .iter()
                    .flat_map(|condition| condition.reasons()),
            )
            .copied()
            .collect();
        let all: BTreeSet<Reason> = Reason::ALL.iter().copied().collect();
        assert_eq!(used, all);
    }

    #[test]
    fn an_absent_condition_is_neither_true_nor_false() {
        assert_eq!(status(&[], HypervisorCondition::Ready), None);
        assert!(!is_true(&[], HypervisorCondition::Ready));
        assert!(!is_false(&[], HypervisorCondition::Ready));
    }

    #[test]
    fn a_foreign_status_or_reason_is_not_mistaken_for_ours() {
        let mut foreign = wanted(HypervisorCondition::Ready, Status::True).build(&[], at(0));
        foreign.status = "Maybe".into();
        foreign.reason = "Weather".into();
        let list = [foreign];
        assert_eq!(
            status(&list, HypervisorCondition::Ready),
            Some(Status::Unknown)
        );
        assert_eq!(reason(&list, HypervisorCondition::Ready), None);
    }

    #[test]
    fn the_transition_time_moves_with_the_status_only() {
        let first = wanted(HypervisorCondition::Ready, Status::True).build(&[], at(1));
        let mut again = wanted(HypervisorCondition::Ready, Status::True);
        again.message = "other".into();
        again.reason = Reason::Succeeded;
        let again = again.build(std::slice::from_ref(&first), at(2));
        assert_eq!(again.last_transition_time, Time(at(1)));
        let flipped = wanted(HypervisorCondition::Ready, Status::False).build(&[again], at(3));
        assert_eq!(flipped.last_transition_time, Time(at(3)));
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let mut long = wanted(HypervisorCondition::Ready, Status::True);
        long.message = "ä".repeat(MESSAGE_MAX + 5);
        let built = long.build(&[], at(0));
        assert_eq!(built.message.chars().count(), MESSAGE_MAX);
    }

    fn any_status() -> impl Strategy<Value = Status> {
        prop::sample::select(Status::ALL)
    }

    fn any_type() -> impl Strategy<Value = HypervisorCondition> {
        prop::sample::select(HypervisorCondition::ALL)
    }

    proptest! {
        #[test]
        fn names_go_there_and_back(name in "[A-Za-z.-]{0,30}") {
            for reason in Reason::ALL {
                prop_assert_eq!(reason.as_str().parse::<Reason>(), Ok(*reason));
            }
            for condition in HypervisorCondition::ALL {
                prop_assert_eq!(condition.as_str().parse::<HypervisorCondition>(), Ok(*condition));
            }
            if let Ok(reason) = name.parse::<Reason>() {
                prop_assert_eq!(reason.as_str(), name.as_str());
            }
        }

        #[test]
        fn a_list_has_one_entry_per_type_and_times_never_lie(
            steps in prop::collection::vec((any_type(), any_status()), 0..40),
        ) {
            let mut list = Vec::new();
            for (second, (condition, new)) in (0_i64..).zip(steps) {
                let before = find(&list, condition).cloned();
                let others: Vec<_> =
                    list.iter().filter(|c: &&Condition| c.type_ != condition.as_str()).cloned().collect();
                let built = wanted(condition, new).build(&list, at(second));
                let changed = set(&mut list, built.clone());

                let expected = match &before {
                    Some(old) if old.status == new.as_str() => old.last_transition_time.clone(),
                    _ => Time(at(second)),
                };
                prop_assert_eq!(&built.last_transition_time, &expected);
                prop_assert_eq!(changed, before.as_ref() != Some(&built));
                prop_assert_eq!(find(&list, condition), Some(&built));
                let kept: Vec<_> =
                    list.iter().filter(|c| c.type_ != condition.as_str()).cloned().collect();
                prop_assert_eq!(kept, others);
                let types: BTreeSet<_> = list.iter().map(|c| c.type_.clone()).collect();
                prop_assert_eq!(types.len(), list.len());
                // Writing the same again changes nothing.
                let same = wanted(condition, new).build(&list, at(second + 100));
                prop_assert!(!set(&mut list, same));
            }
        }
    }
}
