//! What the agent's tasks share: who they are, what they see, and where they report.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cobalt_api::conditions::{HypervisorCondition, Reason, Status};
use cobalt_api::hypervisor::{Hypervisor, OperatingSystem, UpdateStatus};
use cobalt_libvirt::{Connection, Event};
use cobalt_runtime::{Health, Observed, Recorder};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::sync::{broadcast, watch};
use uuid::Uuid;

use crate::facts::domain::DomainFacts;

/// The virtual machines of the host by their UUID, with what their XML says.
pub type Domains = BTreeMap<Uuid, Arc<DomainFacts>>;

/// What every task gets. A clone is cheap.
#[derive(Clone)]
pub struct Context {
    /// The name of the node, and so of its Hypervisor, its Lease and its Eviction.
    pub node: Arc<str>,
    /// What Migrations call this host.
    pub node_label: Arc<str>,
    /// Where Migrations are, and this pod.
    pub namespace: Arc<str>,
    /// The Kubernetes API.
    pub client: Client,
    /// libvirt while it is connected. A new connection is a new value.
    pub libvirt: watch::Receiver<Option<Connection>>,
    /// Every event of libvirt, and `Overflow` where some were lost: whoever counts on them reads
    /// the state again then.
    pub events: broadcast::Sender<Arc<Event>>,
    /// The Hypervisor of this node.
    pub hypervisor: watch::Receiver<Observed<Hypervisor>>,
    /// The virtual machines as the last report has them; they stay while libvirt is away.
    pub domains: watch::Receiver<Arc<Domains>>,
    /// Where a task says what holds.
    pub conditions: Conditions,
    /// The operating system, as the host task has read it last.
    pub operating_system: Arc<watch::Sender<Option<OperatingSystem>>>,
    /// The operating system update, as the update task sees it.
    pub update_status: Arc<watch::Sender<Option<UpdateStatus>>>,
    /// Where a task says what has happened.
    pub recorder: Recorder,
    /// Signs of life.
    pub health: Health,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// The Hypervisor as the object of an Event.
    #[must_use]
    pub fn hypervisor_reference(&self) -> ObjectReference {
        use kube::Resource;
        match self.hypervisor.borrow().object() {
            Some(object) => object.object_ref(&()),
            None => ObjectReference {
                api_version: Some(Hypervisor::api_version(&()).into_owned()),
                kind: Some(Hypervisor::kind(&()).into_owned()),
                name: Some(self.node.to_string()),
                ..ObjectReference::default()
            },
        }
    }
}

/// What a condition of this agent says. Times are added when it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// Whether it holds.
    pub status: Status,
    /// Why, in one word.
    pub reason: Reason,
    /// Why, for people. No times and no counters: each change is a write.
    pub message: String,
}

/// The conditions that the agent owns. Setting one wakes the report, if it says something new.
#[derive(Debug, Clone)]
pub struct Conditions(Arc<watch::Sender<Statements>>);

/// What was said of each condition. `None`: it was taken back. Absent: nobody has spoken yet, and
/// what the object says stays.
pub type Statements = BTreeMap<HypervisorCondition, Option<Statement>>;

impl Default for Conditions {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(BTreeMap::new())))
    }
}

impl Conditions {
    /// Says what holds.
    pub fn set(&self, condition: HypervisorCondition, statement: Statement) {
        self.0.send_if_modified(|all| {
            let statement = Some(statement);
            let new = all.get(&condition) != Some(&statement);
            if new {
                all.insert(condition, statement);
            }
            new
        });
    }

    /// Says nothing any more.
    pub fn remove(&self, condition: HypervisorCondition) {
        self.0
            .send_if_modified(|all| all.insert(condition, None) != Some(None));
    }

    /// Whether a condition was said to have this status.
    #[must_use]
    pub fn says(&self, condition: HypervisorCondition, status: Status) -> bool {
        let all = self.0.borrow();
        let statement = all.get(&condition).and_then(Option::as_ref);
        statement.is_some_and(|statement| statement.status == status)
    }

    /// All of them, and a way to await changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Statements> {
        self.0.subscribe()
    }
}
