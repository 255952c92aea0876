//! The connection to libvirt, and what is read through it.
//!
//! One task owns the connection: it connects, subscribes, reads everything once, and from then on
//! reads again only what an event names. A slow safety net reads all again. When the connection is
//! lost the last inventory stays, the condition says so, and it begins anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cobalt_api::conditions::{HypervisorCondition, Reason, Status};
use cobalt_libvirt::{
    Connection, Domain, DomainCapabilitiesQuery, DomainStatus, Error, Event, EventKind,
    EventStream, ListDomains, Options, StatsGroups, Supported, Uri, XmlFlags,
};
use cobalt_runtime::{Backoff, Health, chain, jitter};
use futures::{StreamExt, stream};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::context::{Conditions, Domains, Statement};
use crate::facts::capabilities::{self, Host};
use crate::facts::{domain, domain_capabilities};
use crate::inventory::{Entry, Inventory};
use crate::metrics::{EventLabels, Metrics};

/// How many instances are read at the same time. libvirtd has about this many workers.
const AT_ONCE: usize = 16;
/// A local socket is cheap to try: the host's report must be right soon after libvirt is back.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// When everything is read again after a connection: a libvirtd that has just started still looks
/// for its instances, and sends no event about those that it finds dead.
const SETTLE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// When an instance that was found stopped is looked at again: libvirt tells of a stop before it
/// forgets an instance that has migrated, or that was never defined, and does not tell the latter.
const STOPPED: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];

/// Every kind of event the agent reacts to.
const EVENTS: &[EventKind] = &[
    EventKind::Lifecycle,
    EventKind::Reboot,
    EventKind::Watchdog,
    EventKind::IoError,
    EventKind::ControlError,
    EventKind::DeviceAdded,
    EventKind::DeviceRemoved,
    EventKind::MigrationIteration,
    EventKind::JobCompleted,
    EventKind::MemoryFailure,
    EventKind::MetadataChange,
];

/// How libvirt is reached.
#[derive(Debug, Clone)]
pub struct VirtConfig {
    /// Where it is.
    pub uri: Uri,
    /// Deadlines and certificates.
    pub options: Options,
    /// How often all is read again.
    pub resync: Duration,
}

/// Where the task puts what it finds.
#[derive(Debug)]
pub struct Outputs {
    /// The connection while there is one.
    pub connection: watch::Sender<Option<Connection>>,
    /// Every event.
    pub events: broadcast::Sender<Arc<Event>>,
    /// What was read; `None` until the first time.
    pub inventory: watch::Sender<Option<Arc<Inventory>>>,
    /// The instances for the other tasks.
    pub domains: watch::Sender<Arc<Domains>>,
    /// The condition.
    pub conditions: Conditions,
    /// Counters.
    pub metrics: Metrics,
    /// Where it is said that libvirt is missing.
    pub health: Health,
}

/// Runs until it is cancelled.
pub async fn run(config: VirtConfig, outputs: Outputs, cancel: CancellationToken) {
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    loop {
        let ended = tokio::select! {
            ended = session(&config, &outputs, &mut backoff) => ended,
            () = cancel.cancelled() => return,
        };
        outputs.connection.send_replace(None);
        outputs.metrics.libvirt_connected.set(0);
        outputs.say(ended.statement(&config.uri, &outputs.conditions));
        tokio::select! {
            () = tokio::time::sleep(backoff.next_wait()) => {}
            () = cancel.cancelled() => return,
        }
    }
}

/// How a session ended.
enum Ended {
    /// There never was a connection.
    Refused(Error),
    /// It was lost.
    Lost(String),
    /// libvirt answers, and the answer is of no use.
    Useless(Error),
}

impl Ended {
    fn statement(&self, uri: &Uri, conditions: &Conditions) -> Statement {
        let (reason, message) = match self {
            Self::Refused(error) => {
                let stopped = conditions.says(HypervisorCondition::LibvirtdService, Status::False);
                let reason = if stopped {
                    Reason::LibVirtServiceNotRunning
                } else {
                    Reason::ConnectFailed
                };
                (reason, format!("{uri}: {}", chain(error)))
            }
            Self::Lost(why) => (
                Reason::Disconnected,
                format!(
                    "the connection to {uri} was lost: {why}; the report shows what was last seen"
                ),
            ),
            Self::Useless(error) => (Reason::ProcessFailed, format!("{uri}: {}", chain(error))),
        };
        Statement {
            status: Status::False,
            reason,
            message,
        }
    }
}

/// One connection, from its beginning to its end.
async fn session(config: &VirtConfig, outputs: &Outputs, backoff: &mut Backoff) -> Ended {
    let connection = match Connection::open(&config.uri, &config.options).await {
        Ok(connection) => connection,
        Err(error) => return Ended::Refused(error),
    };
    // Events first: what changes while everything is read is read again.
    let mut events = match connection.subscribe(EVENTS).await {
        Ok(events) => events,
        Err(error) => return Ended::lost_or_useless(error),
    };
    let mut inventory = match read_all(&connection, &Inventory::default()).await {
        Ok(inventory) => inventory,
        Err(error) => return Ended::lost_or_useless(error),
    };
    backoff.reset();
    let connected_at = Instant::now();
    let mut reads = SETTLE.iter().map(|after| connected_at + *after);
    // Events do not postpone it.
    let mut read_at = reads.next().unwrap_or(connected_at + config.resync);
    let mut stopped = Stopped::default();
    outputs.metrics.full_reads.inc();
    outputs.metrics.libvirt_connects.inc();
    outputs.metrics.libvirt_connected.set(1);
    outputs.connection.send_replace(Some(connection.clone()));
    tracing::info!(
        uri = %config.uri,
        libvirt = inventory.lib_version,
        instances = inventory.domains.len(),
        "connected to libvirt"
    );
    loop {
        outputs.publish(&inventory);
        outputs.say(connected(&config.uri, &inventory));
        let work = next_work(&mut events, outputs, read_at, &mut stopped).await;
        let done = match work {
            Work::Lost => return Ended::Lost(connection.closed().await.to_string()),
            Work::Everything => {
                outputs.metrics.full_reads.inc();
                read_at = reads
                    .next()
                    .unwrap_or_else(|| Instant::now() + jitter(config.resync));
                let all = read_all(&connection, &inventory).await;
                all.map(|all| inventory = all)
            }
            Work::Some(dirty) => {
                outputs
                    .metrics
                    .domain_reads
                    .inc_by(u64::try_from(dirty.len()).unwrap_or(0));
                let done = refresh(&connection, &mut inventory, dirty).await;
                stopped.keep(&inventory);
                done
            }
        };
        if let Err(error) = done {
            if error.is_closed() || error.is_timeout() {
                return Ended::Lost(chain(&error));
            }
            tracing::warn!(error = chain(&error), "failed to read from libvirt");
        }
    }
}

impl Ended {
    fn lost_or_useless(error: Error) -> Self {
        if error.is_closed() || error.is_timeout() {
            Self::Lost(chain(&error))
        } else {
            Self::Useless(error)
        }
    }
}

/// Instances that have told something, and are looked at again if they have stopped.
#[derive(Debug, Default)]
struct Stopped(BTreeMap<Uuid, (Domain, usize, Instant)>);

impl Stopped {
    /// An instance has told something.
    fn told(&mut self, domain: &Domain, now: Instant) {
        let [first, ..] = STOPPED;
        self.0.insert(domain.uuid, (domain.clone(), 0, now + first));
    }

    /// Forgets those that run, or are gone.
    fn keep(&mut self, inventory: &Inventory) {
        self.0.retain(|uuid, _| {
            let entry = inventory.domains.get(uuid);
            entry.is_some_and(|entry| !entry.facts.active)
        });
    }

    /// When the next is to be looked at.
    fn next(&self) -> Option<Instant> {
        self.0.values().map(|(_, _, at)| *at).min()
    }

    /// Those that are to be looked at now.
    fn due(&mut self, now: Instant) -> BTreeMap<Uuid, Domain> {
        let mut due = BTreeMap::new();
        self.0.retain(|uuid, (domain, step, at)| {
            if *at > now {
                return true;
            }
            due.insert(*uuid, domain.clone());
            *step += 1;
            STOPPED.get(*step).is_some_and(|wait| {
                *at = now + *wait;
                true
            })
        });
        due
    }
}

/// What is to be read again.
enum Work {
    /// The connection is gone.
    Lost,
    /// Events were lost, or it is time.
    Everything,
    /// These instances, under the name and id that their last event had.
    Some(BTreeMap<Uuid, Domain>),
}

/// Passes events on until none is waiting, and collects what they make stale.
async fn next_work(
    events: &mut EventStream,
    outputs: &Outputs,
    read_at: Instant,
    stopped: &mut Stopped,
) -> Work {
    let again_at = stopped.next();
    let first = tokio::select! {
        biased;
        () = tokio::time::sleep_until(read_at) => return Work::Everything,
        event = events.next() => event,
        () = tokio::time::sleep_until(again_at.unwrap_or(read_at)) => {
            return Work::Some(stopped.due(Instant::now()));
        }
    };
    let Some(first) = first else {
        return Work::Lost;
    };
    let mut dirty = BTreeMap::new();
    let mut everything = false;
    let mut next = Some(first);
    while let Some(event) = next {
        let event = Arc::new(event);
        let label = EventLabels {
            event: event.kind_name(),
        };
        outputs.metrics.events.get_or_create(&label).inc();
        match event.domain() {
            // A running migration says this many times a second, and nothing we report changes.
            _ if matches!(*event, Event::MigrationIteration { .. }) => {}
            Some(domain) => {
                stopped.told(domain, Instant::now());
                dirty.insert(domain.uuid, domain.clone());
            }
            None => everything = true,
        }
        // Nobody may be listening; that is fine.
        drop(outputs.events.send(event));
        next = match futures::poll!(std::pin::pin!(events.next())) {
            std::task::Poll::Ready(Some(event)) => Some(event),
            std::task::Poll::Ready(None) | std::task::Poll::Pending => None,
        };
    }
    if everything {
        Work::Everything
    } else {
        Work::Some(dirty)
    }
}

/// Reads everything.
async fn read_all(connection: &Connection, known: &Inventory) -> Result<Inventory, Error> {
    let (lib_version, hypervisor_version, host, domain_capabilities, domains, states) = tokio::join!(
        connection.lib_version(),
        connection.hypervisor_version(),
        read_host(connection),
        read_domain_capabilities(connection),
        connection.domains(ListDomains::ALL),
        connection.all_stats(StatsGroups::STATE),
    );
    let states: BTreeMap<Uuid, DomainStatus> = states
        .supported()?
        .unwrap_or_default()
        .iter()
        .filter_map(|stats| Some((stats.domain.uuid, stats.status()?)))
        .collect();
    let reads = stream::iter(domains?)
        .map(|domain| {
            let status = states.get(&domain.uuid).copied();
            read_domain(connection, domain, status, known)
        })
        .buffer_unordered(AT_ONCE);
    let mut reads = std::pin::pin!(reads);
    let mut all = BTreeMap::new();
    while let Some(read) = reads.next().await {
        all.extend(read?);
    }
    Ok(Inventory {
        lib_version: lib_version.supported()?.map(|version| version.to_string()),
        hypervisor_version: hypervisor_version
            .supported()?
            .map(|version| version.to_string()),
        host: host?.map(Arc::new),
        domain_capabilities: domain_capabilities?.map(Arc::new),
        domains: all,
    })
}

/// Reads some instances again.
async fn refresh(
    connection: &Connection,
    inventory: &mut Inventory,
    dirty: BTreeMap<Uuid, Domain>,
) -> Result<(), Error> {
    let uuids: BTreeSet<Uuid> = dirty.keys().copied().collect();
    let mut found = BTreeMap::new();
    {
        let known = &*inventory;
        let reads = stream::iter(dirty.into_values())
            .map(|domain| read_domain(connection, domain, None, known))
            .buffer_unordered(AT_ONCE);
        let mut reads = std::pin::pin!(reads);
        while let Some(read) = reads.next().await {
            found.extend(read?);
        }
    }
    for uuid in uuids {
        match found.remove(&uuid) {
            Some(entry) => drop(inventory.domains.insert(uuid, entry)),
            None => drop(inventory.domains.remove(&uuid)),
        }
    }
    Ok(())
}

/// One instance; `None` if it is gone. What cannot be read of it does not hide the others.
async fn read_domain(
    connection: &Connection,
    domain: Domain,
    status: Option<DomainStatus>,
    known: &Inventory,
) -> Result<Option<(Uuid, Entry)>, Error> {
    let before = known.domains.get(&domain.uuid);
    let state = async {
        match status {
            Some(status) => Ok(Some(status)),
            None => connection.state(&domain).await.supported(),
        }
    };
    let (xml, state) = tokio::join!(connection.xml(&domain, XmlFlags::NONE), state);
    let gone = |error: &Error| error.is_no_domain();
    let lost = |error: &Error| error.is_closed() || error.is_timeout();
    let status = match state {
        Err(error) if gone(&error) => return Ok(None),
        Err(error) if lost(&error) => return Err(error),
        Err(_) => None,
        Ok(status) => status,
    };
    let parsed = match xml {
        Err(error) if gone(&error) => return Ok(None),
        Err(error) if lost(&error) => return Err(error),
        Err(error) => Err(chain(&error)),
        Ok(xml) => domain::parse(&xml).map_err(|error| chain(&error)),
    };
    let active = domain.id.is_some();
    let (facts, unreadable) = match parsed {
        Ok(facts) => (facts, None),
        Err(reason) => {
            // It still holds what it held when it could be read.
            let facts = match before {
                Some(entry) => domain::DomainFacts {
                    active,
                    ..(*entry.facts).clone()
                },
                None => domain::unreadable(&domain.name, domain.uuid, active),
            };
            (facts, Some(reason))
        }
    };
    if before.is_none_or(|entry| entry.facts.warnings != facts.warnings) {
        for warning in &facts.warnings {
            tracing::warn!(instance = facts.name, "{warning}");
        }
    }
    let entry = Entry {
        facts: Arc::new(facts),
        state: status.map(|status| status.state.name()),
        reason: status.and_then(|status| status.reason_name()),
        unreadable,
    };
    Ok(Some((domain.uuid, entry)))
}

async fn read_host(connection: &Connection) -> Result<Option<Host>, Error> {
    let (xml, node) = tokio::join!(connection.capabilities(), connection.node_info());
    let node = node.supported()?;
    let Some(xml) = xml.supported()? else {
        return Ok(None);
    };
    match capabilities::parse(&xml) {
        Ok(mut host) => {
            if let Some(node) = node {
                host.complete(node.memory_kib.saturating_mul(1024), node.cpus);
            }
            for warning in &host.warnings {
                tracing::warn!("{warning}");
            }
            Ok(Some(host))
        }
        Err(error) => {
            tracing::warn!(
                error = chain(&error),
                "failed to read the host's capabilities"
            );
            Ok(None)
        }
    }
}

async fn read_domain_capabilities(
    connection: &Connection,
) -> Result<Option<cobalt_api::hypervisor::DomainCapabilities>, Error> {
    let query = DomainCapabilitiesQuery::default();
    let answer = connection.domain_capabilities(&query).await;
    let Some(xml) = answer.supported()? else {
        return Ok(None);
    };
    match domain_capabilities::parse(&xml) {
        Ok(capabilities) => Ok(Some(capabilities)),
        Err(error) => {
            let error = chain(&error);
            tracing::warn!(error, "failed to read the capabilities of instances");
            Ok(None)
        }
    }
}

/// The condition while the connection is up.
fn connected(uri: &Uri, inventory: &Inventory) -> Statement {
    let unreadable = inventory.unreadable();
    let mut message = format!("connected to {uri}");
    if uri.is_plain_tcp() {
        message.push_str("; the connection has no encryption and no identity: use a socket or TLS");
    }
    if !unreadable.is_empty() {
        message.push_str("; unreadable instances: ");
        message.push_str(&unreadable.join("; "));
    }
    Statement {
        status: Status::True,
        reason: Reason::Connected,
        message,
    }
}

impl Outputs {
    fn publish(&self, inventory: &Inventory) {
        let unreadable = inventory.unreadable().len();
        self.metrics
            .domains_unreadable
            .set(i64::try_from(unreadable).unwrap_or(i64::MAX));
        let facts = inventory.facts();
        self.domains.send_if_modified(|known| {
            let new = **known != facts;
            if new {
                *known = Arc::new(facts);
            }
            new
        });
        self.inventory.send_if_modified(|known| {
            let new = known.as_deref() != Some(inventory);
            if new {
                *known = Some(Arc::new(inventory.clone()));
            }
            new
        });
    }

    fn say(&self, statement: Statement) {
        let missing = (statement.status != Status::True).then(|| statement.message.clone());
        self.health.set_missing("libvirt", missing);
        self.conditions
            .set(HypervisorCondition::LibVirtConnection, statement);
    }
}
