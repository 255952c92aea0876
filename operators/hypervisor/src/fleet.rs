//! What Nova and Placement know of all hosts: one list call of each kind per interval, however many
//! hosts there are. What an action changes is put in at once; the next list verifies it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cobalt_openstack::compute::{Aggregate, ComputeService, ServiceState, ServiceStatus};
use cobalt_openstack::{Client, Error};
use cobalt_runtime::{Health, Pulse, chain, jitter};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::clock;

/// More custom traits than this are not verified in one round; the others come in the next ones.
const TRAITS_PER_ROUND: usize = 64;
/// Two rounds that were asked for have at least this much time between them.
const SPACING: Duration = Duration::from_secs(2);

/// All hosts at one moment. Names and ids are shared: each is in several places, there are thousands,
/// and while a newer state is read there are two of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fleet {
    /// When the lists were asked for.
    pub taken: Timestamp,
    /// nova-compute services by host.
    pub services: BTreeMap<Arc<str>, NovaService>,
    /// Hypervisors by the host of their service.
    pub hypervisors: BTreeMap<Arc<str>, Vec<NovaHypervisor>>,
    /// All aggregates, by name.
    pub aggregates: BTreeMap<String, NovaAggregate>,
    /// Which providers have a custom trait, of those that some host wants.
    pub traits: BTreeMap<String, BTreeSet<Arc<str>>>,
}

/// A nova-compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NovaService {
    /// Its uuid.
    pub id: String,
    /// Whether the scheduler may use it.
    pub status: ServiceStatus,
    /// Whether it is alive.
    pub state: ServiceState,
    /// Why it is disabled.
    pub disabled_reason: Option<String>,
    /// Whether somebody said that it is dead.
    pub forced_down: bool,
    /// When it reported last.
    pub updated_at: Option<Timestamp>,
}

impl From<ComputeService> for NovaService {
    fn from(service: ComputeService) -> Self {
        Self {
            id: service.id,
            status: service.status,
            state: service.state,
            disabled_reason: service.disabled_reason,
            forced_down: service.forced_down,
            updated_at: service.updated_at,
        }
    }
}

/// A hypervisor of Nova.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NovaHypervisor {
    /// Its uuid, which is that of its provider in Placement.
    pub id: Arc<str>,
    /// What it calls itself.
    pub hostname: Arc<str>,
}

/// An aggregate of Nova.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NovaAggregate {
    /// What calls want.
    pub id: i64,
    /// What Placement wants.
    pub uuid: String,
    /// Unique.
    pub name: String,
    /// The zone that it makes of its hosts.
    pub availability_zone: Option<String>,
    /// Its hosts.
    pub hosts: BTreeSet<Arc<str>>,
    /// What the scheduler's filters look at.
    pub metadata: BTreeMap<String, String>,
}

impl NovaAggregate {
    fn new(found: Aggregate, words: &mut Words) -> Self {
        Self {
            id: found.id,
            uuid: found.uuid,
            name: found.name,
            availability_zone: found.availability_zone,
            hosts: found
                .hosts
                .into_iter()
                .map(|host| words.of(&host))
                .collect(),
            metadata: found.metadata,
        }
    }
}

impl From<Aggregate> for NovaAggregate {
    fn from(found: Aggregate) -> Self {
        Self::new(found, &mut Words::default())
    }
}

/// Texts of which each is in memory once.
#[derive(Debug, Default)]
struct Words(BTreeSet<Arc<str>>);

impl Words {
    fn of(&mut self, text: &str) -> Arc<str> {
        if let Some(word) = self.0.get(text) {
            return Arc::clone(word);
        }
        let word: Arc<str> = text.into();
        self.0.insert(Arc::clone(&word));
        word
    }
}

/// Who a host is: found by exact names, and by nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// What Nova's services, servers and aggregates call it.
    pub host: String,
    /// The nova-compute service.
    pub service: NovaService,
    /// The hypervisor and resource provider. Absent until nova-compute has reported its resources.
    pub hypervisor_id: Option<String>,
}

impl Identity {
    /// Whether the scheduler may use it.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.service.status == ServiceStatus::Enabled
    }
}

impl Fleet {
    /// The host of one of these names. `Ok(None)`: Nova does not know it.
    ///
    /// # Errors
    ///
    /// When the names stand for several hosts.
    pub fn find(&self, names: &[&str]) -> Result<Option<Identity>, String> {
        let mut hosts: BTreeSet<&str> = names
            .iter()
            .filter_map(|name| self.services.get_key_value(*name))
            .map(|(host, _)| &**host)
            .collect();
        if hosts.is_empty() {
            // The hypervisor may call itself otherwise than its service does.
            hosts = self
                .hypervisors
                .iter()
                .filter(|(_, all)| all.iter().any(|one| names.contains(&&*one.hostname)))
                .map(|(host, _)| &**host)
                .collect();
        }
        let mut hosts = hosts.into_iter();
        let Some(host) = hosts.next() else {
            return Ok(None);
        };
        if let Some(other) = hosts.next() {
            return Err(format!(
                "Nova knows this node as \"{host}\" and as \"{other}\": remove the service of the \
                 wrong one"
            ));
        }
        let Some(service) = self.services.get(host) else {
            return Ok(None);
        };
        if service.status == ServiceStatus::Unknown {
            return Err(format!(
                "the database of the Nova cell of \"{host}\" does not answer"
            ));
        }
        let hypervisors = self.hypervisors.get(host).map_or(&[][..], Vec::as_slice);
        let hypervisor_id = match hypervisors {
            [] => None,
            [one] => Some(one.id.to_string()),
            several => {
                return Err(format!(
                    "nova-compute of \"{host}\" has {} hypervisors; one is supported",
                    several.len()
                ));
            }
        };
        Ok(Some(Identity {
            host: host.to_owned(),
            service: service.clone(),
            hypervisor_id,
        }))
    }

    /// What the hypervisor of a nova-compute calls itself, which is the name of its provider.
    #[must_use]
    pub fn hostname_of(&self, host: &str) -> Option<&str> {
        match self.hypervisors.get(host)?.as_slice() {
            [one] => Some(&one.hostname),
            _ => None,
        }
    }

    /// Whether a newer state says something else about the host of these names.
    #[must_use]
    pub fn differs_for(&self, newer: &Self, names: &[&str]) -> bool {
        let (old, new) = (self.find(names), newer.find(names));
        let Ok(Some(new)) = new else {
            return old != new;
        };
        let Ok(Some(mut old)) = old else {
            return true;
        };
        // It reports every few seconds; that is no news.
        old.service.updated_at = new.service.updated_at;
        let aggregates = |fleet: &Self| -> Vec<(String, BTreeMap<String, String>)> {
            let of = fleet.aggregates_of(&new.host);
            of.map(|one| (one.name.clone(), one.metadata.clone()))
                .collect()
        };
        let traits = |fleet: &Self| -> BTreeMap<String, bool> {
            let provider = new.hypervisor_id.as_deref().unwrap_or_default();
            let all = fleet.traits.iter();
            all.map(|(name, with)| (name.clone(), with.contains(provider)))
                .collect()
        };
        old != new || aggregates(self) != aggregates(newer) || traits(self) != traits(newer)
    }

    /// The aggregates that a host is in.
    pub fn aggregates_of<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a NovaAggregate> {
        self.aggregates
            .values()
            .filter(move |aggregate| aggregate.hosts.contains(host))
    }

    /// Whether a provider has a trait. `None`: nobody asked Placement about it yet.
    #[must_use]
    pub fn has_trait(&self, provider: &str, name: &str) -> Option<bool> {
        self.traits.get(name).map(|all| all.contains(provider))
    }
}

/// The newest state of the fleet, shared by all who look and all who change it.
#[derive(Debug, Clone)]
pub struct Watched {
    inner: Arc<Mutex<State>>,
    asked: Arc<Notify>,
    rounds: watch::Sender<u64>,
    longest: SignedDuration,
}

#[derive(Debug, Default)]
struct State {
    fleet: Option<Arc<Fleet>>,
    error: Option<String>,
    /// Custom traits to verify.
    traits: BTreeSet<String>,
    /// A host waits for Nova: look more often.
    impatient: bool,
    /// What actions changed since the present round began: its lists may not show it.
    since_round: Vec<Change>,
}

/// What an action has changed.
#[derive(Debug, Clone)]
enum Change {
    Service(Arc<str>, NovaService),
    /// Only this host's part of the aggregate: at the same time others join and leave, and the
    /// answer to one of them may be older than that to another.
    Member {
        aggregate: NovaAggregate,
        host: Arc<str>,
        joined: bool,
    },
    Traits(Arc<str>, BTreeSet<String>),
    Removed(String),
}

impl Change {
    fn apply(&self, fleet: &mut Fleet) {
        match self {
            Self::Service(host, service) => {
                fleet.services.insert(Arc::clone(host), service.clone());
            }
            Self::Member {
                aggregate,
                host,
                joined,
            } => {
                let known = fleet.aggregates.entry(aggregate.name.clone());
                let known = known.or_insert_with(|| aggregate.clone());
                if *joined {
                    known.hosts.insert(Arc::clone(host));
                } else {
                    known.hosts.remove(host);
                }
            }
            Self::Traits(provider, present) => {
                for (name, providers) in &mut fleet.traits {
                    if present.contains(name) {
                        providers.insert(Arc::clone(provider));
                    } else {
                        providers.remove(provider);
                    }
                }
            }
            Self::Removed(host) => {
                fleet.services.remove(host.as_str());
                fleet.hypervisors.remove(host.as_str());
            }
        }
    }
}

impl Watched {
    /// Nothing is known yet. What is older than `longest` counts as unknown.
    #[must_use]
    pub fn new(longest: Duration) -> Self {
        Self {
            inner: Arc::default(),
            asked: Arc::default(),
            rounds: watch::Sender::new(0),
            longest: SignedDuration::try_from(longest).unwrap_or(SignedDuration::MAX),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fleet, if it is known and not too old.
    ///
    /// # Errors
    ///
    /// Says why it is not known.
    pub fn get(&self, now: Timestamp) -> Result<Arc<Fleet>, String> {
        let state = self.state();
        let why = || match &state.error {
            Some(error) => format!("Nova does not answer: {error}"),
            None => "Nova has not been asked yet".to_owned(),
        };
        let fleet = state.fleet.as_ref().ok_or_else(why)?;
        if now.duration_since(fleet.taken) > self.longest {
            return Err(why());
        }
        Ok(Arc::clone(fleet))
    }

    /// Why the last look failed. What an earlier one found may still be good.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.state().error.clone()
    }

    /// How old the newest state is.
    #[must_use]
    pub fn age(&self, now: Timestamp) -> Option<SignedDuration> {
        let state = self.state();
        let fleet = state.fleet.as_ref()?;
        Some(now.duration_since(fleet.taken))
    }

    /// Asks for a new round soon.
    pub fn refresh(&self) {
        self.asked.notify_one();
    }

    /// A host waits for something that Nova will tell in a later round.
    pub fn wait_for_nova(&self) {
        self.state().impatient = true;
    }

    /// Told at the end of each round, whether it worked or not.
    #[must_use]
    pub fn rounds(&self) -> watch::Receiver<u64> {
        self.rounds.subscribe()
    }

    /// These traits are wanted by some host; a new one is looked up soon.
    pub fn want_traits<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        let mut state = self.state();
        let mut new = false;
        for name in names {
            if !state.traits.contains(name) {
                new = state.traits.insert(name.to_owned());
            }
        }
        if new {
            drop(state);
            self.refresh();
        }
    }

    /// An action changed a service.
    pub fn put_service(&self, service: ComputeService) {
        let host = service.host.as_str().into();
        self.change(Change::Service(host, service.into()));
    }

    /// An action put a host into an aggregate, or took it out.
    pub fn put_member(&self, aggregate: Aggregate, host: &str, joined: bool) {
        self.change(Change::Member {
            aggregate: aggregate.into(),
            host: host.into(),
            joined,
        });
    }

    /// An action changed the traits of a provider.
    pub fn put_traits(&self, provider: &str, present: &BTreeSet<String>) {
        self.change(Change::Traits(provider.into(), present.clone()));
    }

    /// An action removed a host.
    pub fn remove_host(&self, host: &str) {
        self.change(Change::Removed(host.to_owned()));
    }

    fn change(&self, change: Change) {
        let mut state = self.state();
        if let Some(fleet) = state.fleet.as_mut() {
            change.apply(Arc::make_mut(fleet));
        }
        state.since_round.push(change);
    }

    /// Looks at Nova again and again until it is cancelled.
    pub async fn run(
        self,
        client: Client,
        interval: Duration,
        health: Health,
        pulse: Pulse,
        cancel: CancellationToken,
    ) {
        loop {
            pulse.beat();
            let started = tokio::time::Instant::now();
            self.state().since_round.clear();
            let read = tokio::select! {
                read = self.read(&client) => read,
                () = cancel.cancelled() => return,
            };
            let impatient = self.settle(read);
            health.set_missing("Nova", self.state().error.clone());
            let wait = if impatient { interval / 6 } else { interval };
            tokio::select! {
                () = tokio::time::sleep(jitter(wait)) => {}
                () = self.asked.notified() => {
                    tokio::time::sleep_until(started + SPACING).await;
                }
                () = cancel.cancelled() => return,
            }
        }
    }

    /// Puts the result of a round in; returns whether to look again sooner.
    fn settle(&self, read: Result<Fleet, Error>) -> bool {
        let impatient = {
            let mut state = self.state();
            match read {
                Ok(mut fleet) => {
                    state.error = None;
                    for change in &state.since_round {
                        change.apply(&mut fleet);
                    }
                    state.fleet = Some(Arc::new(fleet));
                    std::mem::take(&mut state.impatient)
                }
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(error, "Nova or Placement was not read");
                    state.error = Some(error);
                    true
                }
            }
        };
        self.rounds.send_modify(|round| *round += 1);
        impatient
    }

    async fn read(&self, client: &Client) -> Result<Fleet, Error> {
        let taken = clock::now();
        let compute = client.compute();
        let mut fleet = Fleet {
            taken,
            ..Fleet::default()
        };
        let mut words = Words::default();
        // What is collected at once takes half of the room.
        fleet.services = compute
            .services("nova-compute")
            .await?
            .into_iter()
            .map(|service| (words.of(&service.host), service.into()))
            .collect();
        for hypervisor in compute.hypervisors().await? {
            let Some(host) = hypervisor.host() else {
                continue;
            };
            let all = fleet.hypervisors.entry(words.of(host));
            // One is the rule.
            all.or_insert_with(|| Vec::with_capacity(1))
                .push(NovaHypervisor {
                    id: words.of(&hypervisor.id),
                    hostname: words.of(&hypervisor.hostname),
                });
        }
        for aggregate in compute.aggregates().await? {
            let aggregate = NovaAggregate::new(aggregate, &mut words);
            fleet.aggregates.insert(aggregate.name.clone(), aggregate);
        }
        let (wanted, before) = {
            let state = self.state();
            (state.traits.clone(), state.fleet.clone())
        };
        // The oldest knowledge goes first, so that every trait has its turn.
        let mut known = before
            .map(|before| before.traits.clone())
            .unwrap_or_default();
        known.retain(|name, _| wanted.contains(name));
        let (new, old): (Vec<_>, Vec<_>) = wanted
            .into_iter()
            .partition(|name| !known.contains_key(name));
        let round = usize::try_from(*self.rounds.borrow()).unwrap_or(0);
        let skip = (round * TRAITS_PER_ROUND)
            .checked_rem(old.len())
            .unwrap_or(0);
        let mut turn = old.clone();
        turn.rotate_left(skip);
        for name in new.into_iter().chain(turn).take(TRAITS_PER_ROUND) {
            let providers = client.placement().providers_with_trait(&name).await?;
            let providers = providers.iter().map(|provider| words.of(provider));
            known.insert(name, providers.collect());
        }
        fleet.traits = known;
        Ok(fleet)
    }
}
