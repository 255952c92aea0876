//! Everything a decision about one host is made from. It is read once, before the decision, and a
//! decision looks at nothing else: not at the clock, not at a socket.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cobalt_api::eviction::Eviction;
use cobalt_api::hypervisor::{Check, Hypervisor, HypervisorSpec, HypervisorStatus, Maintenance};
use cobalt_api::names::labels;
use cobalt_api::ovsnode::OvsNode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};

use crate::eviction::witness::Report;
use crate::fleet::{Fleet, Identity};
use crate::kept::conflict;
use crate::objects::AgentPod;
use crate::record::Record;

/// A host, as far as it is known.
#[derive(Debug, Clone)]
pub struct Host {
    /// The name of the Node and of the Hypervisor.
    pub name: String,
    /// The Node. Absent: it is gone.
    pub node: Option<Arc<Node>>,
    /// The Hypervisor. Absent: it is not made yet.
    pub hypervisor: Option<Arc<Known>>,
    /// The Eviction of the same name.
    pub eviction: Option<Arc<Eviction>>,
    /// Evictions by which its agent asks to be emptied before a shutdown.
    pub shutdowns: Vec<Arc<Eviction>>,
    /// What the Open vSwitch agent says of it.
    pub ovs: Option<Arc<OvsNode>>,
    /// What Nova and Placement know, or why that is not known.
    pub fleet: Result<Arc<Fleet>, String>,
    /// Why the last look at Nova and Placement failed, if it did.
    pub trouble: Option<String>,
    /// Where the tests of onboarding run, or why they cannot.
    pub testbed: Result<Arc<TestProject>, String>,
    /// Other hosts that take workload in the same zone, as Nova calls them.
    pub peers: Vec<String>,
    /// The checks of onboarding as this process wrote them last, while they run: what an agent writes
    /// into the status meanwhile does not count.
    pub checks: Option<Vec<Check>>,
    /// Other Hypervisors that stand for the same host of Nova.
    pub rivals: Vec<String>,
    /// The node agent is silent.
    pub silence: Option<Silence>,
    /// The silence for which its conditions were marked by this process.
    pub marked: Option<Silence>,
    /// The node agent keeps a heartbeat Lease.
    pub has_lease: bool,
    /// What was read about this host alone.
    pub reads: Reads,
    /// Actions that failed and will be tried again.
    pub failures: BTreeMap<&'static str, Failure>,
    /// What the operator was told.
    pub settings: Arc<Settings>,
}

/// A node agent that does not renew its heartbeat Lease.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Silence {
    /// When it renewed it last, by its own clock.
    pub renewed: Option<Timestamp>,
}

/// What of the operator's flags decides.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The aggregate that keeps tenants away from a host under test.
    pub test_aggregate: String,
    /// How long one check may take.
    pub test_deadline: Duration,
    /// How often a check is tried.
    pub test_attempts: i32,
    /// No tests for any host.
    pub skip_tests: bool,
    /// Whether a test server boots from a volume.
    pub test_volume: bool,
    /// Labels of the partition, which are copied to what is made for a host.
    pub selector_labels: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            test_aggregate: "tenant_filter_tests".to_owned(),
            test_deadline: Duration::from_secs(600),
            test_attempts: 3,
            skip_tests: false,
            test_volume: false,
            selector_labels: Vec::new(),
        }
    }
}

/// The project that test servers belong to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TestProject {
    /// Its id, which the test aggregate has to be reserved for.
    pub id: String,
}

/// A Hypervisor, and what its managed fields say.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Known {
    /// The object, without what the operator never reads.
    pub object: Hypervisor,
    /// The program by which a person has edited it last.
    pub edited_by: Option<String>,
    /// `spec.aggregates` comes from the Node.
    pub owns_aggregates: bool,
    /// `spec.customTraits` comes from the Node.
    pub owns_traits: bool,
}

impl Known {
    /// The status; an empty one if nothing was written yet.
    #[must_use]
    pub fn status(&self) -> HypervisorStatus {
        self.object.status.clone().unwrap_or_default()
    }
}

/// What was read about one host, each with its time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reads {
    /// The test server.
    pub test: Option<Read<Vec<TestServer>>>,
    /// What runs on the host.
    pub workload: Option<Read<Workload>>,
    /// What is left of the host in Nova and Placement.
    pub remains: Option<Read<Remains>>,
    /// Whether the API server has the Node, which may belong to another partition by now.
    pub node: Option<Read<bool>>,
    /// What the agent of the host says of libvirt's domains.
    pub libvirt: Option<Read<Report>>,
    /// Pods of agents on the node that have to leave.
    pub pods: Option<Read<Vec<AgentPod>>>,
    /// All traits of the provider, after the operator changed them.
    pub traits: Option<Read<BTreeSet<String>>>,
    /// Since when the host has been empty at every look, and at how many.
    pub empty: Option<Empty>,
}

impl Reads {
    /// Keeps what is left of the host, and since when it has been empty at every look.
    pub fn looked(&mut self, at: Timestamp, remains: Remains) {
        self.empty = remains.is_empty().then(|| Empty {
            first: self.empty.map_or(at, |empty| empty.first),
            last: at,
        });
        self.remains = Some(Read { at, value: remains });
    }

    /// The host is disabled. What was seen before may not be all: the scheduler could still send
    /// something.
    pub fn disabled(&mut self) {
        (self.remains, self.empty) = (None, None);
    }
}

/// Something that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read<T> {
    /// When.
    pub at: Timestamp,
    /// What.
    pub value: T,
}

/// A host was empty each time that it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Empty {
    /// The first time.
    pub first: Timestamp,
    /// The last time.
    pub last: Timestamp,
}

/// A server that tests a host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TestServer {
    /// Its id.
    pub id: String,
    /// Nova's word for its state.
    pub status: String,
    /// What is being done with it.
    pub task: Option<String>,
    /// Where it is, as Nova calls the host.
    pub host: Option<String>,
    /// Why it failed.
    pub fault: Option<String>,
    /// Its console shows its name.
    pub spoke: bool,
    /// Its last migration.
    pub migration: Option<TestMigration>,
}

/// The last migration of a test server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TestMigration {
    /// Where to, as Nova calls the host.
    pub to: Option<String>,
    /// Nova's word for its state.
    pub status: String,
    /// It is over.
    pub ended: bool,
    /// It went well.
    pub succeeded: bool,
}

/// What Nova and Placement still have of a host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Remains {
    /// Servers on it.
    pub servers: BTreeSet<String>,
    /// The nova-compute service, by id.
    pub service: Option<String>,
    /// Its resource providers with who uses them, children first.
    pub providers: Vec<(String, BTreeSet<String>)>,
    /// Consumers of the providers that are servers or migrations which Nova still knows.
    pub alive: BTreeSet<String>,
    /// Of those, migrations that wait to be confirmed or reverted, and their servers.
    pub unconfirmed: BTreeMap<String, String>,
    /// The Nova cell of the host does not answer: its servers and migrations are not in Nova's
    /// lists.
    pub cell_down: bool,
}

impl Remains {
    /// No server, and nobody alive has resources of it, as far as Nova can say.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty() && self.alive.is_empty() && !self.cell_down
    }
}

/// What runs on a host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Workload {
    /// How many servers, whatever their state.
    pub servers: usize,
    /// Since when the oldest of those has been there that have run: the later of its creation and of
    /// the last time that it was moved here.
    pub oldest: Option<Timestamp>,
}

/// An action that did not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// How often in a row.
    pub count: u32,
    /// Why.
    pub text: String,
    /// When it is tried again.
    pub retry_at: Timestamp,
}

impl Host {
    /// The spec; the defaults if there is no object.
    #[must_use]
    pub fn spec(&self) -> HypervisorSpec {
        self.hypervisor
            .as_ref()
            .map(|known| known.object.spec.clone())
            .unwrap_or_default()
    }

    /// When the older of its Node and its Hypervisor was made, if both are known.
    #[must_use]
    pub fn made(&self) -> Option<Timestamp> {
        let node = self.node.as_ref()?.creation_timestamp()?;
        let known = self.hypervisor.as_ref()?;
        let hypervisor = known.object.creation_timestamp()?;
        Some(node.0.min(hypervisor.0))
    }

    /// How the host came into service, as the operator recorded it.
    #[must_use]
    pub fn record(&self) -> Option<Record> {
        let known = self.hypervisor.as_ref()?;
        Record::of(&known.object)
    }

    /// Whether the operator recorded that the host may be enabled.
    #[must_use]
    pub fn has_proof(&self) -> bool {
        self.record().is_some_and(Record::allows_service)
    }

    /// Whether the Hypervisor is being deleted.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.hypervisor
            .as_ref()
            .is_some_and(|known| known.object.metadata.deletion_timestamp.is_some())
    }

    /// The host shall leave for good: by its spec, or because its Node is gone.
    #[must_use]
    pub fn leaves(&self) -> bool {
        self.spec().maintenance() == Maintenance::Termination || self.has_lost_its_node()
    }

    /// The Hypervisor is being deleted because its Node is gone.
    #[must_use]
    pub fn has_lost_its_node(&self) -> bool {
        let gone = self.node.is_none() && self.reads.node.as_ref().is_some_and(|read| !read.value);
        self.is_deleted() && gone
    }

    /// What is being done, or why it failed.
    #[must_use]
    pub fn or_failure(&self, action: &str, text: String) -> String {
        match self.failures.get(action) {
            Some(failure) => format!("{text}: {}", failure.text),
            None => text,
        }
    }

    /// The availability zone.
    #[must_use]
    pub fn zone(&self) -> Option<&str> {
        let of = |labels: &BTreeMap<String, String>| labels.contains_key(labels::ZONE);
        let node = self.node.as_ref().map(|node| node.labels());
        let hypervisor = self.hypervisor.as_ref().map(|known| known.object.labels());
        node.filter(|map| of(map))
            .or(hypervisor)
            .and_then(|map| map.get(labels::ZONE))
            .map(String::as_str)
    }

    /// Names by which Nova may know the host, exactly.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names = vec![self.name.as_str()];
        let hostname = self
            .node
            .as_ref()
            .and_then(|node| node.labels().get(labels::HOSTNAME))
            .or_else(|| {
                let known = self.hypervisor.as_ref()?;
                known.object.labels().get(labels::HOSTNAME)
            });
        if let Some(hostname) = hostname.filter(|hostname| **hostname != self.name) {
            names.push(hostname);
        }
        names
    }

    /// Why nothing is done for the host: it is not the only one that stands for its host of Nova.
    #[must_use]
    pub fn conflict(&self) -> Option<String> {
        conflict(&self.rivals)
    }

    /// Who the host is in Nova: `Ok(None)` if Nova does not know it.
    ///
    /// # Errors
    ///
    /// When Nova is not known, the name stands for several hosts, or other Hypervisors for this one.
    pub fn identity(&self) -> Result<Option<Identity>, String> {
        if let Some(why) = self.conflict() {
            return Err(why);
        }
        self.fleet
            .as_ref()
            .map_err(Clone::clone)?
            .find(&self.names())
    }
}
