//! The operator's record of how a host came into service: an annotation on its Hypervisor.
//!
//! A node agent writes the status of its Hypervisor and could claim there that the host has passed
//! its tests. It cannot write metadata. So no host is enabled because of its status alone: this
//! record has to agree.

use cobalt_api::conditions::{self, HypervisorCondition as Type, Reason, Status};
use cobalt_api::hypervisor::Hypervisor;
use cobalt_api::names::annotations;
use kube::ResourceExt;

/// How a host came into service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    /// It has not: its tests are to come.
    Pending,
    /// It has passed its tests.
    Tested,
    /// Its tests were left out, as the Node or the operator's flags want it.
    Untested,
    /// It was in service before its Hypervisor was made.
    Adopted,
    /// An operator that kept no records said so in the status.
    TakenOver,
}

impl Record {
    const ALL: [Self; 5] = [
        Self::Pending,
        Self::Tested,
        Self::Untested,
        Self::Adopted,
        Self::TakenOver,
    ];

    /// The value of the annotation.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Tested => "tested",
            Self::Untested => "untested",
            Self::Adopted => "adopted",
            Self::TakenOver => "taken-over",
        }
    }

    /// What is recorded of a Hypervisor. `None`: it is from an operator that kept no records. A value
    /// that is not ours proves nothing.
    #[must_use]
    pub fn of(object: &Hypervisor) -> Option<Self> {
        let value = object.annotations().get(annotations::ONBOARDED)?;
        let found = Self::ALL.into_iter().find(|one| one.as_str() == value);
        Some(found.unwrap_or(Self::Pending))
    }

    /// What to record of an object when it is seen for the first time. The status counts only for
    /// one that an operator without records has left.
    #[must_use]
    pub fn first(object: Option<&Hypervisor>) -> Self {
        let Some(object) = object else {
            return Self::Pending;
        };
        let status = object.status.as_ref();
        let all = status.map_or(&[][..], |status| status.conditions.as_slice());
        let state = (
            conditions::status(all, Type::Onboarding),
            conditions::reason(all, Type::Onboarding),
        );
        match state {
            (Some(Status::False), Some(Reason::Succeeded))
            | (Some(Status::True), Some(Reason::Handover)) => Self::TakenOver,
            _ => Self::Pending,
        }
    }

    /// Whether the host may be enabled.
    #[must_use]
    pub fn allows_service(self) -> bool {
        self != Self::Pending
    }
}

#[cfg(test)]
mod tests {
    use cobalt_api::hypervisor::HypervisorStatus;
    use jiff::Timestamp;

    use super::*;

    fn says(status: Status, reason: Reason) -> Hypervisor {
        let wanted = conditions::Wanted {
            condition: Type::Onboarding,
            status,
            reason,
            message: String::new(),
            observed_generation: None,
        };
        let mut object = Hypervisor::new("hv1", Default::default());
        object.status = Some(HypervisorStatus {
            conditions: vec![wanted.build(&[], Timestamp::UNIX_EPOCH)],
            ..HypervisorStatus::default()
        });
        object
    }

    #[test]
    fn a_status_counts_for_an_object_without_a_record_and_never_again() {
        assert_eq!(Record::first(None), Record::Pending);
        assert_eq!(Record::first(Some(&Hypervisor::default())), Record::Pending);
        let onboarded = says(Status::False, Reason::Succeeded);
        assert_eq!(Record::first(Some(&onboarded)), Record::TakenOver);
        let handover = says(Status::True, Reason::Handover);
        assert_eq!(Record::first(Some(&handover)), Record::TakenOver);
        for (status, reason) in [
            (Status::True, Reason::Testing),
            (Status::False, Reason::Aborted),
            (Status::True, Reason::Succeeded),
        ] {
            let object = says(status, reason);
            assert_eq!(Record::first(Some(&object)), Record::Pending, "{reason:?}");
        }
        assert_eq!(Record::of(&onboarded), None);
        let mut forged = onboarded;
        for (value, record) in [
            ("pending", Record::Pending),
            ("tested", Record::Tested),
            ("no word of ours", Record::Pending),
        ] {
            let all = forged.annotations_mut();
            all.insert(annotations::ONBOARDED.to_owned(), value.to_owned());
            assert_eq!(Record::of(&forged), Some(record), "{value}");
        }
    }
}
