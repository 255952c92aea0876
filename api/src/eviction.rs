//! Eviction, `kvm.cloud.sap/v1`.
//!
//! Writers of the spec: a person, the maintenance controller, the node agent before a reboot.
//! Writer of the status: the eviction controller.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::{self, EvictionCondition};
use crate::{schema, strings::string_enum, wait::Wait};

/// The `reason` of an Eviction that a node agent makes because its host is about to shut down.
pub const SHUTDOWN_REASON: &str = "the host is about to shut down";

string_enum! {
    /// How instances leave a host.
    pub enum Strategy {
        /// Move them while they run; move stopped ones cold. The host has to be alive.
        LiveMigrate => "LiveMigrate",
        /// Start them again elsewhere from their storage. The host has to be fenced.
        Evacuate => "Evacuate",
    }
}

string_enum! {
    /// How an eviction ended.
    pub enum Outcome {
        /// The host was read as empty twice, or every listed instance has left.
        Succeeded => "Succeeded",
        /// Some instances have left and some have not.
        PartiallyFailed => "PartiallyFailed",
        /// No instance has left, or the host could not be examined.
        Failed => "Failed",
        /// It was cancelled, and what was in flight was aborted.
        Cancelled => "Cancelled",
        /// The deadline passed before every instance had left.
        TimedOut => "TimedOut",
    }
}

string_enum! {
    /// Where one instance is on its way.
    pub enum InstanceState {
        /// Its turn has not come.
        Pending => "Pending",
        /// It cannot be moved as it is; its preflight says why.
        Blocked => "Blocked",
        /// It is being moved.
        Moving => "Moving",
        /// It runs elsewhere.
        Moved => "Moved",
        /// It was deleted in the meantime.
        Gone => "Gone",
        /// It could not be moved and will not be tried again.
        Failed => "Failed",
        /// It stays, because the eviction was cancelled.
        Cancelled => "Cancelled",
    }
}

string_enum! {
    /// What the check before the move says.
    pub enum Verdict {
        /// It can be moved while it runs.
        Movable => "Movable",
        /// It can be moved only while it is stopped.
        MovableCold => "MovableCold",
        /// It cannot be moved.
        Blocked => "Blocked",
        /// It is not known whether it can be moved.
        Unknown => "Unknown",
    }
}

string_enum! {
    /// Why an instance cannot be moved, or is not known to be movable. The wire has strings, so that
    /// a reader meets a new reason without failing.
    pub enum PreflightReason {
        /// No host has room for it.
        NoCapacity => "NoCapacity",
        /// Every host with room is refused by the scheduler.
        NoValidHost => "NoValidHost",
        /// It has a device that cannot move.
        PassthroughDevice => "PassthroughDevice",
        /// It is in a state that Nova does not move.
        UnsupportedState => "UnsupportedState",
        /// It is in the error state.
        InError => "InError",
        /// Another task on it is running.
        TaskInProgress => "TaskInProgress",
        /// It is locked.
        Locked => "Locked",
        /// No other host has a processor that fits.
        IncompatibleCpu => "IncompatibleCpu",
        /// Its storage cannot be reached from another host.
        LocalStorage => "LocalStorage",
        /// Its server group leaves no host for it.
        AffinityGroup => "AffinityGroup",
        /// The nova-compute of the host is down.
        HostDown => "HostDown",
        /// It is not on the host, and was not when the eviction began.
        NotOnHost => "NotOnHost",
        /// It could not be examined.
        CheckFailed => "CheckFailed",
        /// Nova calls it running, and libvirt says that it does not run.
        GuestNotRunning => "GuestNotRunning",
    }
}

string_enum! {
    /// How one instance leaves its host.
    pub enum Method {
        /// It runs on while it moves.
        Live => "Live",
        /// It is off, and its disks are moved.
        Cold => "Cold",
        /// It is shelved, and the host lets go of it.
        Offload => "Offload",
    }
}

/// What is to be emptied, and how.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kvm.cloud.sap",
    version = "v1",
    kind = "Eviction",
    plural = "evictions",
    shortname = "evi",
    status = "EvictionStatus",
    schema = "disabled",
    derive = "Default",
    derive = "PartialEq",
    doc = "A request to empty a hypervisor.",
    printcolumn(name = "Hypervisor", type_ = "string", json_path = ".spec.hypervisor"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".spec.reason"),
    printcolumn(
        name = "State",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Evicting")].reason"#
    ),
    printcolumn(
        name = "Created",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::rule(
    "(has(self.strategy) ? self.strategy : 'LiveMigrate') == \
     (has(oldSelf.strategy) ? oldSelf.strategy : 'LiveMigrate')",
    "strategy cannot change: cancel this Eviction and create another one",
))]
#[schemars(transform = schema::rule(
    "(has(self.instances) ? self.instances : []) == (has(oldSelf.instances) ? oldSelf.instances : [])",
    "instances cannot change: cancel this Eviction and create another one",
))]
#[schemars(transform = schema::rule(
    "(has(self.dryRun) && self.dryRun) == (has(oldSelf.dryRun) && oldSelf.dryRun)",
    "dryRun cannot change: create another Eviction",
))]
#[schemars(transform = schema::rule(
    "!has(oldSelf.cancel) || !oldSelf.cancel || (has(self.cancel) && self.cancel)",
    "cancel cannot be taken back: create another Eviction",
))]
pub struct EvictionSpec {
    /// The name of the Hypervisor to empty.
    #[serde(default)]
    #[schemars(length(min = 1), transform = schema::required, transform = schema::rule(
        "self == oldSelf",
        "hypervisor cannot change: create another Eviction for the other host",
    ))]
    pub hypervisor: String,

    /// Why, for people.
    #[serde(default)]
    #[schemars(length(min = 1, max = 4096), transform = schema::required)]
    pub reason: String,

    /// How instances leave the host. Unset: LiveMigrate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,

    /// Ids of the servers to move. Empty: every instance on the host, until the host is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::server_ids")]
    pub instances: Vec<String>,

    /// How many instances may move at the same time. The operator's own limits per source, target and
    /// cluster hold as well. Unset: the operator's configuration decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub parallelism: Option<i32>,

    /// How long the eviction may take, from status.startedAt on, for example 90m or 1h30m. Units are
    /// h, m, s and ms. When it has passed, what is in flight is aborted and the outcome is TimedOut.
    /// Unset: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), transform = schema::rule(
        "self.matches('^([0-9]+(\\\\.[0-9]+)?(h|m|s|ms))+$') && \
         duration(self) >= duration('1s') && duration(self) <= duration('720h')",
        "deadline is a duration from 1s to 720h: write it like 90m or 1h30m",
    ))]
    pub deadline: Option<String>,

    /// Only examine: fill in a verdict per instance and move nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,

    /// Stop: abort what is in flight and leave the other instances where they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<bool>,
}

impl Eviction {
    /// Whether a node agent asks for its whole host to be emptied before a shutdown. The operator
    /// takes the host out of service for it, and puts it back when the agent cancels it.
    #[must_use]
    pub fn is_for_shutdown(&self) -> bool {
        let spec = &self.spec;
        spec.reason == SHUTDOWN_REASON && spec.instances.is_empty() && !spec.dry_run()
    }

    /// Whether it is over. An operator of before says so in the condition only.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.status.as_ref().is_some_and(|status| {
            status.outcome.is_some()
                || conditions::is_false(&status.conditions, EvictionCondition::Evicting)
        })
    }
}

impl EvictionSpec {
    /// [`Self::strategy`], or what its absence means.
    #[must_use]
    pub fn strategy(&self) -> Strategy {
        self.strategy.unwrap_or(Strategy::LiveMigrate)
    }

    /// Whether nothing is to be moved.
    #[must_use]
    pub fn dry_run(&self) -> bool {
        self.dry_run.unwrap_or(false)
    }

    /// Whether the eviction is to stop.
    #[must_use]
    pub fn cancel(&self) -> bool {
        self.cancel.unwrap_or(false)
    }

    /// [`Self::deadline`] as a duration.
    ///
    /// # Errors
    ///
    /// When the text is not a duration, which the schema refuses.
    pub fn deadline(
        &self,
    ) -> Result<Option<std::time::Duration>, crate::duration::ParseDurationError> {
        self.deadline
            .as_deref()
            .map(crate::duration::parse)
            .transpose()
    }
}

/// How far the eviction is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionStatus {
    /// The host's UUID in Nova. The name says service, the value is the hypervisor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor_service_id: Option<String>,

    /// Memory of the instances that are left, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::default(0))]
    pub outstanding_ram_mb: Option<i64>,

    /// Ids of the instances that are left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outstanding_instances: Vec<String>,

    /// How the eviction ended. Absent while it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,

    /// When the eviction began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,

    /// When the eviction ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,

    /// When the eviction will end, by the speed so far. Absent when that cannot be said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta: Option<Time>,

    /// What the eviction waits for. Absent when it waits for nothing but its migrations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<Wait>,

    /// How many instances are in which state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<InstanceCounts>,

    /// The instances, one row each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), transform = schema::map_by("id"))]
    pub instances: Vec<EvictionInstance>,

    /// The generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Statements about the eviction, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// How many instances are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceCounts {
    /// All of them.
    pub total: i32,
    /// Their turn has not come.
    pub pending: i32,
    /// They cannot be moved as they are.
    pub blocked: i32,
    /// They are being moved.
    pub moving: i32,
    /// They run elsewhere.
    pub moved: i32,
    /// They were deleted in the meantime.
    pub gone: i32,
    /// They could not be moved.
    pub failed: i32,
    /// They stay, because the eviction was cancelled.
    pub cancelled: i32,
}

impl InstanceCounts {
    /// Counts rows by their state.
    #[must_use]
    pub fn of(rows: &[EvictionInstance]) -> Self {
        let mut counts = Self::default();
        for row in rows {
            let count = match row.state {
                InstanceState::Pending => &mut counts.pending,
                InstanceState::Blocked => &mut counts.blocked,
                InstanceState::Moving => &mut counts.moving,
                InstanceState::Moved => &mut counts.moved,
                InstanceState::Gone => &mut counts.gone,
                InstanceState::Failed => &mut counts.failed,
                InstanceState::Cancelled => &mut counts.cancelled,
            };
            *count += 1;
            counts.total += 1;
        }
        counts
    }
}

/// One instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionInstance {
    /// The UUID of the server.
    #[schemars(length(min = 1, max = 36))]
    pub id: String,
    /// The name of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub name: Option<String>,
    /// What Nova last said of it, for example ACTIVE.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub status: Option<String>,
    /// Its memory, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub memory_mb: Option<i64>,
    /// The host it was on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub from: Option<String>,
    /// The host it moves to, or has moved to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    pub to: Option<String>,
    /// How the present or last attempt moves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// Where it is on its way.
    pub state: InstanceState,
    /// When it came into that state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// When the present attempt is given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// The number of the present or last attempt, counted from 1. Written before Nova is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub attempt: Option<i32>,
    /// The request id of the present or last attempt, for the logs of Nova.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub request_id: Option<String>,
    /// The id of the present or last migration in Nova.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_id: Option<i64>,
    /// The newest migration of the host before the present attempt: later ones belong to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_migration_id: Option<i64>,
    /// Hosts that it could not be moved to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), transform = schema::atomic)]
    pub avoid: Vec<String>,
    /// How much of the move is done, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub progress: Option<i32>,
    /// What went wrong last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub error: Option<String>,
    /// What the check before the move said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preflight: Option<Preflight>,
}

impl EvictionInstance {
    /// A row for an instance whose turn has not come.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            name: None,
            status: None,
            memory_mb: None,
            from: None,
            to: None,
            method: None,
            state: InstanceState::Pending,
            since: None,
            deadline: None,
            attempt: None,
            request_id: None,
            migration_id: None,
            after_migration_id: None,
            avoid: Vec::new(),
            progress: None,
            error: None,
            preflight: None,
        }
    }
}

/// What the check before the move said.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Preflight {
    /// Whether the instance can be moved.
    pub verdict: Verdict,
    /// How many hosts have room for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub hosts: Option<i32>,
    /// Why it cannot be moved, or only in part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), transform = schema::atomic)]
    pub reasons: Vec<PreflightFinding>,
}

/// One thing that the check before the move has found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreflightFinding {
    /// What it is, as one CamelCase word.
    #[schemars(length(min = 1, max = 64))]
    pub reason: String,
    /// Details for people, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counts_add_up(states in prop::collection::vec(prop::sample::select(InstanceState::ALL), 0..50)) {
            let rows: Vec<_> = states
                .iter()
                .map(|state| EvictionInstance { state: *state, ..EvictionInstance::new("x") })
                .collect();
            let c = InstanceCounts::of(&rows);
            prop_assert_eq!(usize::try_from(c.total), Ok(rows.len()));
            prop_assert_eq!(
                c.total,
                c.pending + c.blocked + c.moving + c.moved + c.gone + c.failed + c.cancelled
            );
        }
    }
}
