//! Everything that a decision about one Eviction is made from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cobalt_api::eviction::{Eviction, InstanceState, Method};
use cobalt_openstack::compute::{Migration, Server, ServiceState};
use jiff::{SignedDuration, Timestamp};

use super::budget::{Limits, Room};
use super::signs::{Probe, Signs};
use super::survey::Survey;
use super::transfer::Transfer;
use super::witness::{Claims, Place, Report};
use crate::fleet::Identity;
use crate::host::Read;

/// What a decision looks at.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The Eviction.
    pub eviction: Arc<Eviction>,
    /// The host that it empties.
    pub source: Source,
    /// What was read of Nova, Placement and the agent.
    pub reads: Reads,
    /// Instances that another Eviction of the same host has in hand, with its name.
    pub taken: BTreeMap<String, String>,
    /// What others have under way.
    pub room: Room,
    /// What the operator was told.
    pub policy: Arc<Policy>,
}

/// The host that is emptied.
#[derive(Debug, Clone)]
pub struct Source {
    /// There is a Hypervisor of that name.
    pub exists: bool,
    /// Who it is in Nova, if Nova knows it; or why that is not known.
    pub identity: Result<Option<Identity>, String>,
    /// Nova has known it: then it has instances that are to be looked for.
    pub was_registered: bool,
}

impl Source {
    /// Whether the nova-compute of the host reports.
    #[must_use]
    pub fn is_up(&self) -> bool {
        match &self.identity {
            Ok(Some(identity)) => identity.service.state == ServiceState::Up,
            _ => true,
        }
    }
}

/// What was read, each with the time at which the question was asked.
#[derive(Debug, Clone, Default)]
pub struct Reads {
    /// Since when this process looks at the host.
    pub watched_since: Option<Timestamp>,
    /// The servers on the host, as Nova says.
    pub servers: Option<Read<Vec<Server>>>,
    /// When that list was empty, as long as it has not had a server since: the newest two times.
    pub empties: Vec<Timestamp>,
    /// Migrations off the host, the newest first.
    pub migrations: Option<Read<Vec<Migration>>>,
    /// When all of them were read, and not only those that had changed.
    pub migrations_whole: Option<Timestamp>,
    /// What came of the call that moves an instance, by instance.
    pub asked: BTreeMap<String, Asked>,
    /// Why the last request for an instance failed, by request; `None`: it does not say.
    pub reasons: BTreeMap<String, Option<String>>,
    /// Where instances that are not on the host are.
    pub elsewhere: BTreeMap<String, Read<Place>>,
    /// On which host deleted instances were last; `None`: Nova never had such a server.
    pub deleted: BTreeMap<String, Option<String>>,
    /// Which hosts have room, by instance; and why that is not known.
    pub targets: Option<Read<Result<Targets, String>>>,
    /// The same in numbers, with the hosts that do not take an instance.
    pub surveys: BTreeMap<String, Survey>,
    /// Hosts that are in maintenance or being drained, as Nova calls them.
    pub leaving: BTreeSet<String>,
    /// Who holds something of the host in Placement: its servers, and migrations off it.
    pub holders: Option<Read<BTreeSet<String>>>,
    /// Whether Nova's scheduler may use the host.
    pub enabled: Option<Read<bool>>,
    /// Why Placement has not told.
    pub placement_trouble: Option<Read<String>>,
    /// Who they are.
    pub claims: Option<Read<Claims>>,
    /// What the agent of the host says of libvirt's domains.
    pub libvirt: Option<Read<Report>>,
    /// What the agents of targets say, by host as Nova calls it.
    pub agents: BTreeMap<String, Read<Report>>,
    /// Servers that came to be in ERROR since the eviction began, and why.
    pub errors: Option<Read<BTreeMap<String, String>>>,
    /// Those who did so before anything was moved, and are none of its servers.
    pub strangers: BTreeSet<String>,
    /// Server groups with a hard rule.
    pub groups: Vec<Group>,
    /// Ports that are devices of the host, by instance: what kind each is.
    pub devices: BTreeMap<String, BTreeSet<String>>,
    /// Guests that the agent of the host sees running.
    pub running: Option<Read<BTreeSet<String>>>,
    /// How far transfers are, by instance.
    pub transfers: BTreeMap<String, Transfer>,
    /// Aborts that were asked for, by instance: when, and why one was refused.
    pub aborts: BTreeMap<String, Read<Option<String>>>,
    /// Migrations that were told to end, by instance.
    pub forced: BTreeSet<String>,
    /// Servers whose state was set right, and when.
    pub repaired: BTreeMap<String, Timestamp>,
    /// When something last happened to migrations that are under way.
    pub signs: Signs,
    /// What Nova says of servers whose migrations give no sign of life.
    pub probes: BTreeMap<String, Read<Probe>>,
    /// When an agent last said that a migration has ended.
    pub news: Option<Timestamp>,
    /// The last call did not work because the other side is not well.
    pub trouble: Option<Trouble>,
}

impl Reads {
    /// Keeps the list of servers on the host.
    pub fn listed(&mut self, at: Timestamp, servers: Vec<Server>) {
        if servers.is_empty() {
            self.empties.push(at);
            let old = self.empties.len().saturating_sub(2);
            self.empties.drain(..old);
        } else {
            self.empties.clear();
        }
        self.servers = Some(Read { at, value: servers });
    }

    /// Sets apart who holds something of the host before anything is moved off it.
    pub fn meet(&mut self, eviction: &Eviction, mut holders: BTreeSet<String>) {
        let rows = eviction.status.iter().flat_map(|status| &status.instances);
        let servers = self.servers.iter().flat_map(|read| &read.value);
        // Where something is under way since before a restart, its migration is no stranger.
        if self.targets.is_none() && rows.clone().all(|row| row.state != InstanceState::Moving) {
            for known in servers.map(|one| &one.id).chain(rows.map(|row| &row.id)) {
                holders.remove(known);
            }
            self.strangers = holders;
        }
    }

    /// Nova does not tell how far a transfer is: it is not asked again at once.
    pub fn untold(&mut self, server: String, at: Timestamp) {
        let known = self.transfers.entry(server);
        let known = known.or_insert_with(|| Transfer::untold(at));
        known.at = at;
    }
}

/// Hosts with room, by instance.
pub type Targets = BTreeMap<String, Vec<String>>;

/// What came of a call that moves an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// There is no answer yet.
    Waiting,
    /// Nova took it.
    Accepted {
        /// When the answer came.
        at: Timestamp,
        /// The name of the request.
        request_id: Option<String>,
    },
    /// Nova refused it: it is not under way.
    Refused(String),
    /// It may be under way or not.
    Unclear {
        /// When that was known.
        at: Timestamp,
        /// Why.
        text: String,
    },
}

/// A server group whose rule is not a wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// All on one host; else each on its own.
    pub together: bool,
    /// Of those that are kept apart, so many may be on one host.
    pub most: usize,
    /// The servers in it.
    pub members: BTreeSet<String>,
}

/// The other side is not well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What it says.
    pub text: String,
    /// How often in a row.
    pub count: u32,
    /// When to try again.
    pub retry_at: Timestamp,
}

/// What the operator was told about evictions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// How many may move at the same time.
    pub limits: Limits,
    /// Which go first, of those with the same priority.
    pub order: Order,
    /// How often one instance is tried.
    pub attempts: i32,
    /// How long one attempt may take.
    pub instance_deadline: SignedDuration,
    /// How long an instance that cannot be moved is waited for, once all others are away.
    pub patience: SignedDuration,
    /// How long a dead host is waited for.
    pub host_patience: SignedDuration,
    /// How long a live migration may give no sign of life before it counts as lost.
    pub stuck_patience: SignedDuration,
    /// When a transfer that gets no nearer to its end has stalled.
    pub stall: SignedDuration,
    /// What is done about it.
    pub stalled: Stalled,
    /// Whether a server in ERROR, or in a migration that nobody drives, is set to ACTIVE when its
    /// guest is seen running after a failed move.
    pub reset_errors: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            limits: Limits {
                source: 4,
                target: 4,
                zone: 32,
                cluster: 64,
            },
            order: Order::SmallestFirst,
            attempts: 3,
            instance_deadline: SignedDuration::from_mins(60),
            patience: SignedDuration::from_mins(5),
            host_patience: SignedDuration::from_mins(10),
            stuck_patience: SignedDuration::from_mins(5),
            stall: SignedDuration::from_mins(3),
            stalled: Stalled::Wait,
            reset_errors: true,
        }
    }
}

/// Which instances go first, of those with the same priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Many are away soon.
    SmallestFirst,
    /// The long ones do not end up last.
    LargestFirst,
}

/// What is done about a migration that does not converge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Stalled {
    /// Nothing: Nova may slow the guest down (auto-converge), until the attempt's deadline.
    Wait,
    /// Nova is told to bring it to its end: by post-copy, or by a pause of the guest.
    ForceComplete,
    /// It is aborted and tried again later.
    Abort,
}

/// One thing to do. Reads can be done again at any time; of the others none does harm if it is done
/// twice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Guard the Eviction against disappearing while something is in flight.
    Hold,
    /// It may go.
    Release,
    /// List the servers on the host.
    ReadServers {
        /// The host, as Nova calls it.
        host: String,
    },
    /// See whether Nova's scheduler may use the host.
    ReadService {
        /// The host, as Nova calls it.
        host: String,
    },
    /// List migrations off the host.
    ReadMigrations {
        /// The host, as Nova calls it.
        host: String,
    },
    /// See which hosts have room for which instances.
    ReadTargets {
        /// The provider of the host.
        provider: Option<String>,
    },
    /// See who they are that hold something of the host, and whether its cell answers.
    ReadClaims {
        /// The host, as Nova calls it.
        host: String,
        /// Their ids in Placement.
        consumers: BTreeSet<String>,
    },
    /// Ask the agent of the host which domains libvirt has.
    ReadDomains,
    /// Ask the agent of a target.
    ReadArrivals {
        /// The target, as Nova calls it.
        host: String,
    },
    /// List all servers that are in ERROR and changed since the eviction began: one call for all
    /// that have moved.
    ReadErrors,
    /// See in Placement who still holds something of the host. It is a glance, cheaper than to ask
    /// Nova: it says when to ask Nova, and at the end whether anybody is on the way to the host.
    ReadHolders {
        /// The provider of the host.
        provider: String,
    },
    /// See why a request failed.
    ReadReason {
        /// The server.
        server: String,
        /// The request.
        request: String,
    },
    /// See where a server is that is not on the host.
    ReadServer {
        /// The server.
        server: String,
    },
    /// See how far a migration is, where no agent tells.
    ReadTransfer {
        /// The server.
        server: String,
        /// The migration.
        migration: i64,
    },
    /// See whether anybody can drive the migration of a server that gives no sign of life.
    ReadStuck {
        /// The server.
        server: String,
    },
    /// See which guests the agent sees running.
    ReadRunning,
    /// Move an instance.
    Move {
        /// The server.
        server: String,
        /// How.
        method: MoveMethod,
        /// Where to; the scheduler finds a host if that is not said.
        target: Option<String>,
    },
    /// Keep a server where a cold migration has brought it.
    Confirm {
        /// The server.
        server: String,
    },
    /// Stop a live migration.
    Abort {
        /// The server.
        server: String,
        /// The migration.
        migration: i64,
    },
    /// Bring a live migration to its end.
    ForceComplete {
        /// The server.
        server: String,
        /// The migration.
        migration: i64,
    },
    /// Set a server to ACTIVE that Nova has in ERROR or in a lost migration: its guest runs.
    Repair {
        /// The server.
        server: String,
    },
}

/// [`Method`], in an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MoveMethod {
    /// While it runs.
    Live,
    /// While it is off.
    Cold,
    /// It is shelved.
    Offload,
}

impl From<Method> for MoveMethod {
    fn from(method: Method) -> Self {
        match method {
            Method::Live => Self::Live,
            Method::Cold => Self::Cold,
            Method::Offload => Self::Offload,
        }
    }
}

impl Action {
    /// A word from a closed set, for metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Release => "release",
            Self::ReadServers { .. } => "read-servers",
            Self::ReadService { .. } => "read-service",
            Self::ReadMigrations { .. } => "read-migrations",
            Self::ReadTargets { .. } => "read-targets",
            Self::ReadHolders { .. } => "read-holders",
            Self::ReadClaims { .. } => "read-claims",
            Self::ReadDomains => "read-domains",
            Self::ReadArrivals { .. } => "read-arrivals",
            Self::ReadErrors => "read-errors",
            Self::ReadReason { .. } => "read-reason",
            Self::ReadServer { .. } => "read-server",
            Self::ReadTransfer { .. } => "read-transfer",
            Self::ReadStuck { .. } => "read-stuck",
            Self::ReadRunning => "read-running",
            Self::Move { .. } => "move",
            Self::Confirm { .. } => "confirm",
            Self::Abort { .. } => "abort",
            Self::ForceComplete { .. } => "force-complete",
            Self::Repair { .. } => "repair",
        }
    }
}
