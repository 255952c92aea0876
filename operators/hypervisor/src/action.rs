//! What the operator can do for a host. An action is a value, so that a decision can be looked at.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::Record;

/// One thing to do. Each is safe to be done twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Keep the scheduler away from the host.
    DisableService {
        /// The service.
        id: String,
        /// For people who look at Nova.
        reason: String,
    },
    /// Let the scheduler use the host; take back that it is dead.
    EnableService {
        /// The service.
        id: String,
    },
    /// Put the host into an aggregate.
    JoinAggregate {
        /// The aggregate.
        id: i64,
        /// Its name, for people.
        name: String,
        /// The host, as Nova calls it.
        host: String,
    },
    /// Take the host out of an aggregate.
    LeaveAggregate {
        /// The aggregate.
        id: i64,
        /// Its name, for people.
        name: String,
        /// The host, as Nova calls it.
        host: String,
    },
    /// Change the traits of the host's provider, and leave others alone.
    SetTraits {
        /// The provider.
        provider: String,
        /// Traits it shall have.
        add: BTreeSet<String>,
        /// Traits it shall not have any more.
        remove: BTreeSet<String>,
    },
    /// Look at the test server.
    ReadTest {
        /// Its name.
        name: String,
    },
    /// Make the test server.
    CreateTest {
        /// Its name.
        name: String,
        /// The host, as Nova calls it.
        host: String,
        /// The availability zone.
        zone: Option<String>,
    },
    /// Remove test servers.
    DeleteTest {
        /// Their ids.
        ids: Vec<String>,
    },
    /// Live-migrate the test server.
    MigrateTest {
        /// Its id.
        id: String,
        /// Where to, as Nova calls the host.
        to: String,
    },
    /// Ask for all instances to be moved away.
    CreateEviction {
        /// Why.
        reason: String,
        /// Labels of the host.
        labels: BTreeMap<String, String>,
    },
    /// Call it off.
    DeleteEviction {
        /// Its name.
        name: String,
        /// Exactly this one.
        uid: String,
    },
    /// Begin onboarding anew: the wish has been heard.
    ClearRetry,
    /// Record how the host came into service.
    Record {
        /// How.
        record: Record,
    },
    /// See whether the Node is really gone.
    ReadNode,
    /// See which pods of agents are left on the node.
    ReadPods,
    /// See what runs on a new host, and since when.
    ReadWorkload {
        /// The host, as Nova calls it.
        host: String,
    },
    /// Ask the agent of the host which domains libvirt has.
    ReadDomains,
    /// See what is left of the host in Nova and Placement.
    ReadRemains {
        /// The host, as Nova calls it or called it.
        host: String,
        /// What its provider in Placement may be called, exactly.
        names: BTreeSet<String>,
    },
    /// Release what dead consumers have of the host.
    DeleteAllocations {
        /// The consumers.
        consumers: Vec<String>,
    },
    /// Remove resource providers.
    DeleteProviders {
        /// Their ids, children first.
        ids: Vec<String>,
        /// What the top of their tree has to be called, so that they are this host's.
        names: BTreeSet<String>,
    },
    /// Remove the service.
    DeleteService {
        /// Its id.
        id: String,
        /// The host, as Nova calls it.
        host: String,
    },
    /// Nothing holds the Hypervisor any more.
    Release,
}

impl Action {
    /// The names of those whose failures others tell.
    pub const JOIN_AGGREGATE: &str = "join-aggregate";
    /// See above.
    pub const LEAVE_AGGREGATE: &str = "leave-aggregate";
    /// See above.
    pub const SET_TRAITS: &str = "set-traits";
    /// See above.
    pub const READ_TEST: &str = "read-test";
    /// See above.
    pub const CREATE_TEST: &str = "create-test";
    /// See above.
    pub const MIGRATE_TEST: &str = "migrate-test";

    /// A word from a closed set, for metrics and to remember failures by.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::DisableService { .. } => "disable-service",
            Self::EnableService { .. } => "enable-service",
            Self::JoinAggregate { .. } => Self::JOIN_AGGREGATE,
            Self::LeaveAggregate { .. } => Self::LEAVE_AGGREGATE,
            Self::SetTraits { .. } => Self::SET_TRAITS,
            Self::ReadTest { .. } => Self::READ_TEST,
            Self::CreateTest { .. } => Self::CREATE_TEST,
            Self::DeleteTest { .. } => "delete-test",
            Self::MigrateTest { .. } => Self::MIGRATE_TEST,
            Self::CreateEviction { .. } => "create-eviction",
            Self::DeleteEviction { .. } => "delete-eviction",
            Self::ClearRetry => "clear-retry",
            Self::Record { .. } => "record",
            Self::ReadNode => "read-node",
            Self::ReadPods => "read-pods",
            Self::ReadWorkload { .. } => "read-workload",
            Self::ReadDomains => "read-domains",
            Self::ReadRemains { .. } => "read-remains",
            Self::DeleteAllocations { .. } => "delete-allocations",
            Self::DeleteProviders { .. } => "delete-providers",
            Self::DeleteService { .. } => "delete-service",
            Self::Release => "release",
        }
    }

    /// The controller that it belongs to, for metrics.
    #[must_use]
    pub fn controller(&self) -> &'static str {
        match self {
            Self::DisableService { .. }
            | Self::EnableService { .. }
            | Self::CreateEviction { .. }
            | Self::DeleteEviction { .. } => "maintenance",
            Self::JoinAggregate { .. } | Self::LeaveAggregate { .. } => "aggregates",
            Self::SetTraits { .. } => "traits",
            Self::ReadTest { .. }
            | Self::CreateTest { .. }
            | Self::DeleteTest { .. }
            | Self::MigrateTest { .. }
            | Self::ClearRetry
            | Self::ReadWorkload { .. }
            | Self::Record { .. } => "onboarding",
            Self::ReadNode
            | Self::ReadPods
            | Self::ReadDomains
            | Self::ReadRemains { .. }
            | Self::DeleteAllocations { .. }
            | Self::DeleteProviders { .. }
            | Self::DeleteService { .. }
            | Self::Release => "offboarding",
        }
    }

    /// It only looks.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(
            self,
            Self::ReadTest { .. }
                | Self::ReadNode
                | Self::ReadPods
                | Self::ReadWorkload { .. }
                | Self::ReadDomains
                | Self::ReadRemains { .. }
        )
    }
}
