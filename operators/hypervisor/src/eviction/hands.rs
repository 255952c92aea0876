//! Reads and calls. What they find is put where the next decision sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cobalt_api::eviction::Eviction;
use cobalt_api::names::finalizers;
use cobalt_openstack::compute::{
    ComputeService, Migration, MigrationFilter, Server, ServerFilter, ServerState, ServiceState,
    ServiceStatus,
};
use cobalt_openstack::placement::{CandidateQuery, Resources};
use cobalt_openstack::{Client as OpenStack, Error, Port, found};
use cobalt_runtime::{Store, Term, chain};
use jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::timeout;

use super::decide::is_held;
use super::seen::{Action, Asked, Group, MoveMethod, Reads, Trouble};
use super::signs::{Probe, Record};
use super::survey::{Survey, hosts_taken, members_to_find};
use super::transfer::Transfer;
use super::witness::{self, Claim, Claims, Place};
use crate::clock;
use crate::fleet::Watched;
use crate::host::Read;
use crate::kept::Row;

/// For one call of the API server, and for what only explains.
const DEADLINE: Duration = Duration::from_secs(15);
/// More hosts with room than this are not told apart.
const MOST_TARGETS: u32 = 200;
/// Of more members of server groups than this the host is not asked for.
const MOST_MEMBERS: usize = 64;
/// Server groups that are known are not asked for again for so long.
const GROUPS_FOR: SignedDuration = SignedDuration::from_secs(20);
/// By so much Nova's clock may differ from ours: what has changed before is of no interest.
const CLOCKS: SignedDuration = SignedDuration::from_hours(24);
/// Changes are read again from this long before the newest that is known: Nova's hosts need not agree
/// to the second.
const OVERLAP: SignedDuration = SignedDuration::from_secs(30);
/// How often all migrations are read, and not only what has changed.
const WHOLE_EVERY: SignedDuration = SignedDuration::from_secs(60);
/// Waits while the other side is not well: doubled each time.
const FIRST_WAIT: i64 = 1;
const LONGEST_WAIT: i64 = 30;

/// What the engine does things with.
#[derive(Clone)]
pub struct Hands {
    /// The API server.
    pub client: Client,
    /// The cloud.
    pub openstack: OpenStack,
    /// What is known of all hosts.
    pub fleet: Watched,
    /// The hosts of this operator.
    pub hypervisors: Store<Row>,
    /// Whether this process leads.
    pub term: Term,
    /// Server groups of all projects, as last read.
    pub groups: Arc<Mutex<Option<Read<Vec<Group>>>>>,
    /// When a transfer that gets no nearer to its end has stalled.
    pub stall: SignedDuration,
}

impl std::fmt::Debug for Hands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hands").finish_non_exhaustive()
    }
}

/// What an action found, to be put into the [`Reads`].
type Found = Box<dyn FnOnce(&mut Reads) + Send>;

impl Hands {
    /// Does it. Whatever comes of it, the reads tell.
    pub async fn act(&self, eviction: &Eviction, action: &Action, reads: &Mutex<Reads>) -> bool {
        let at = clock::now();
        let done = self.call(eviction, action, at, reads).await;
        tracing::debug!(
            eviction = eviction.name_any(),
            ?action,
            milliseconds = clock::now().duration_since(at).as_millis(),
            worked = done.is_ok(),
            "acted"
        );
        let mut reads = reads.lock().unwrap_or_else(PoisonError::into_inner);
        match done {
            Ok(found) => {
                if !is_of_others(action) {
                    reads.trouble = None;
                }
                found(&mut reads);
                true
            }
            Err(error) => {
                failed(&mut reads, action, &error);
                false
            }
        }
    }

    async fn call(
        &self,
        eviction: &Eviction,
        action: &Action,
        at: Timestamp,
        reads: &Mutex<Reads>,
    ) -> Result<Found, Failure> {
        if !self.term.holds() {
            let text = "this process does not lead any more";
            return Err(Failure::Kubernetes(text.to_owned()));
        }
        let compute = self.openstack.compute();
        Ok(match action {
            Action::Hold => {
                self.hold(eviction).await?;
                Box::new(|_| {})
            }
            Action::Release => {
                self.release(eviction).await?;
                Box::new(|_| {})
            }
            Action::ReadServers { host } => {
                let servers = compute.servers(&ServerFilter::on(host)).await?;
                Box::new(move |reads| {
                    let before = reads.servers.as_ref().map(|read| read.at);
                    if before.is_none_or(|before| before < at) {
                        reads.listed(at, servers);
                    }
                })
            }
            Action::ReadService { host } => {
                let service = compute.service_of(host).await?;
                let value = service
                    .as_ref()
                    .is_some_and(|one| one.status == ServiceStatus::Enabled);
                // Whoever disables the service looks at the fleet.
                if let Some(service) = service.filter(|_| value) {
                    self.fleet.put_service(service);
                }
                Box::new(move |reads| reads.enabled = Some(Read { at, value }))
            }
            Action::ReadMigrations { host } => {
                let newest = {
                    let reads = reads.lock().unwrap_or_else(PoisonError::into_inner);
                    newest_change(&reads, at)
                };
                let began = eviction
                    .status
                    .as_ref()
                    .and_then(|one| one.started_at.as_ref());
                let began = began.map_or(at, |began| began.0);
                // What ended before this eviction began is of no interest.
                let whole = began.min(at) - CLOCKS;
                let filter = MigrationFilter {
                    source_compute: Some(host.clone()),
                    changes_since: Some(newest.map_or(whole, |newest| newest - OVERLAP)),
                    ..MigrationFilter::default()
                };
                let changed = compute.migrations(&filter).await?;
                Box::new(move |reads| {
                    let before = reads.migrations.as_ref().map(|read| read.at);
                    // What the changes are changes of may have been forgotten meanwhile.
                    let fits = newest.is_none() || before.is_some();
                    if fits && before.is_none_or(|before| before < at) {
                        let known = reads.migrations.take().filter(|_| newest.is_some());
                        let value = known.map_or_else(Vec::new, |known| known.value);
                        let value = merge(value, changed);
                        reads.signs.listed(&value, at);
                        reads.migrations = Some(Read { at, value });
                        if newest.is_none() {
                            reads.migrations_whole = Some(at);
                        }
                    }
                })
            }
            Action::ReadTargets { provider } => {
                let (servers, leaving) = {
                    let reads = reads.lock().unwrap_or_else(PoisonError::into_inner);
                    let servers = reads.servers.as_ref().map(|read| read.value.clone());
                    (servers.unwrap_or_default(), reads.leaving.clone())
                };
                let (groups, devices, targets) = tokio::join!(
                    self.groups(at),
                    self.devices(&servers),
                    self.targets(provider.as_deref(), &servers, &leaving)
                );
                let (surveys, holders) = match targets {
                    Ok((mut surveys, holders)) => {
                        self.keep_apart(&groups, &servers, &mut surveys).await;
                        (Ok(surveys), Some(holders))
                    }
                    Err(error) => (Err(chain(&error)), None),
                };
                let value = surveys.as_ref().map_err(Clone::clone).map(|surveys| {
                    let all = surveys.iter();
                    all.map(|(id, survey)| (id.clone(), survey.hosts.clone()))
                        .collect()
                });
                let eviction = eviction.clone();
                Box::new(move |reads| {
                    if let Some(holders) = holders {
                        reads.meet(&eviction, holders);
                    }
                    reads.targets = Some(Read { at, value });
                    reads.surveys = surveys.unwrap_or_default();
                    reads.groups = groups;
                    reads.devices = devices;
                })
            }
            Action::ReadHolders { provider } => {
                let placement = self.openstack.placement();
                let used = found(placement.provider_allocations(provider).await)?;
                let used = used.map(|used| used.allocations).unwrap_or_default();
                let value = used.into_keys().collect();
                Box::new(move |reads| {
                    reads.placement_trouble = None;
                    reads.holders = Some(Read { at, value });
                })
            }
            Action::ReadClaims { host, consumers } => {
                let service = compute.service_of(host).await?;
                let cell_down = service.is_some_and(|one| one.status == ServiceStatus::Unknown);
                let by = if cell_down {
                    // Nova would say of each that it does not know.
                    let down = |id: &String| (id.clone(), Claim::Server(Place::CellDown));
                    consumers.iter().map(down).collect()
                } else {
                    witness::claims(&self.openstack, host, consumers).await?
                };
                let value = Claims { cell_down, by };
                Box::new(move |reads| reads.claims = Some(Read { at, value }))
            }
            Action::ReadDomains => {
                let host = &eviction.spec.hypervisor;
                let report = witness::report(&self.client, host, DEADLINE).await;
                let value = report.map_err(Failure::Kubernetes)?;
                Box::new(move |reads| reads.libvirt = Some(Read { at, value }))
            }
            Action::ReadArrivals { host } => {
                let name = self.hypervisor_of(host);
                let report = witness::report(&self.client, &name, DEADLINE).await;
                let value = report.map_err(Failure::Kubernetes)?;
                let host = host.clone();
                Box::new(move |reads| {
                    reads.agents.insert(host, Read { at, value });
                })
            }
            Action::ReadErrors => {
                let status = eviction.status.as_ref();
                let began = status.and_then(|status| status.started_at.as_ref());
                let since = began.map_or(at, |began| began.0.min(at)) - CLOCKS;
                let servers = compute.servers(&ServerFilter::in_error(since)).await?;
                let why = |server: Server| {
                    let fault = server.fault.map(|fault| fault.message);
                    (server.id, fault.unwrap_or_default())
                };
                let value = servers.into_iter().map(why).collect();
                Box::new(move |reads| reads.errors = Some(Read { at, value }))
            }
            Action::ReadReason { server, request } => {
                let action = found(compute.action(server, request).await)?;
                let failure = action.and_then(|action| action.failure().map(ToOwned::to_owned));
                let request = request.clone();
                Box::new(move |reads| {
                    reads.reasons.insert(request, failure);
                })
            }
            Action::ReadServer { server } => {
                let read = found(compute.server(server).await)?;
                // A server that never was is no server that was deleted.
                let last = match &read {
                    Some(_) => None,
                    None => Some(compute.deleted_server(server).await?),
                };
                let value = Place::of(read);
                let server = server.clone();
                Box::new(move |reads| {
                    if let Some(last) = last {
                        let host = last.map(|last| last.host.unwrap_or_default());
                        reads.deleted.insert(server.clone(), host);
                    }
                    reads.elsewhere.insert(server, Read { at, value });
                })
            }
            Action::ReadTransfer { server, migration } => {
                let read = found(compute.server_migration(server, *migration).await)?;
                let server = server.clone();
                let stall = self.stall;
                Box::new(move |reads| {
                    let Some(read) = read else {
                        return reads.untold(server, at);
                    };
                    let sum = |memory: Option<u64>, disk: Option<u64>| {
                        memory.unwrap_or(0).saturating_add(disk.unwrap_or(0))
                    };
                    let remaining = sum(read.memory_remaining_bytes, read.disk_remaining_bytes);
                    let total = sum(read.memory_total_bytes, read.disk_total_bytes);
                    if total == 0 {
                        return reads.untold(server, at);
                    }
                    let before = reads.transfers.get(&server);
                    let next = Transfer::next(before, at, remaining, total, stall);
                    reads.transfers.insert(server, next);
                })
            }
            Action::ReadStuck { server } => {
                let probe = self.probe(server).await?;
                let server = server.clone();
                Box::new(move |reads| {
                    reads.signs.probed(&server, probe.migration.clone(), at);
                    if !probe.conductor {
                        reads.signs.hold(&server, at);
                    }
                    reads.probes.insert(server, Read { at, value: probe });
                })
            }
            Action::ReadRunning => {
                let host = &eviction.spec.hypervisor;
                let report = witness::report(&self.client, host, DEADLINE).await;
                let value = report.map_err(Failure::Kubernetes)?.running();
                Box::new(move |reads| reads.running = Some(Read { at, value }))
            }
            Action::Move {
                server,
                method,
                target,
            } => {
                let target = target.as_deref();
                let accepted = match method {
                    MoveMethod::Live => compute.live_migrate(server, target).await,
                    MoveMethod::Cold => compute.migrate(server, target).await,
                    MoveMethod::Offload => compute.shelve_offload(server).await,
                }?;
                let server = server.clone();
                Box::new(move |reads| {
                    let asked = Asked::Accepted {
                        at: clock::now(),
                        request_id: accepted.request_id,
                    };
                    reads.asked.insert(server, asked);
                })
            }
            Action::Confirm { server } => {
                compute.confirm_resize(server).await?;
                // What is known of its migration is not so any more.
                Box::new(|reads| {
                    reads.migrations = None;
                    (reads.holders, reads.claims) = (None, None);
                })
            }
            Action::Abort { server, migration } => {
                found(compute.abort_migration(server, *migration).await)?;
                let server = server.clone();
                Box::new(move |reads| {
                    reads.aborts.insert(server, Read { at, value: None });
                    reads.news = Some(clock::now());
                })
            }
            Action::ForceComplete { server, migration } => {
                found(compute.force_complete(server, *migration).await)?;
                let server = server.clone();
                Box::new(move |reads| {
                    reads.forced.insert(server);
                })
            }
            Action::Repair { server } => {
                compute.reset_state(server, ServerState::Active).await?;
                self.give_back(server, reads).await;
                let server = server.clone();
                Box::new(move |reads| {
                    reads.repaired.insert(server, clock::now());
                    reads.servers = None;
                })
            }
        })
    }

    /// What a lost migration holds on the source belongs to its server again, instead of what was
    /// reserved on the target: Nova does the same when a migration fails. If that does not work, the
    /// server can be moved all the same, and `nova-manage placement audit` finds what is left.
    async fn give_back(&self, server: &str, reads: &Mutex<Reads>) {
        let lost = {
            let reads = reads.lock().unwrap_or_else(PoisonError::into_inner);
            let mut all = reads.migrations.iter().flat_map(|read| &read.value);
            let last = all.find(|one| one.server == server);
            last.filter(|one| !one.status.has_ended() && !one.uuid.is_empty())
                .map(|one| one.uuid.clone())
        };
        let Some(lost) = lost else { return };
        let placement = self.openstack.placement();
        if let Err(error) = placement.move_allocations(&lost, server).await {
            let error = chain(&error);
            tracing::warn!(
                server,
                lost,
                error,
                "what a lost migration holds is not given back"
            );
        }
    }

    /// Whether Nova has a live migration of a server under way, and a nova-conductor to drive it.
    async fn probe(&self, server: &str) -> Result<Probe, Error> {
        let compute = self.openstack.compute();
        let under_way = found(compute.server_migrations(server).await)?.unwrap_or_default();
        let conductors = compute.services("nova-conductor").await?;
        let up = |one: &ComputeService| one.state == ServiceState::Up;
        Ok(Probe {
            migration: under_way.iter().max_by_key(|one| one.id).map(Record::from),
            conductor: conductors.is_empty() || conductors.iter().any(up),
        })
    }

    /// The Hypervisor of a host that Nova calls so.
    fn hypervisor_of(&self, host: &str) -> String {
        let all = self.hypervisors.all();
        let mut names = all.iter().map(|(key, row)| (key.name(), row));
        let found = names.find(|(name, row)| row.names(name).contains(&host));
        found.map_or(host, |(name, _)| name).to_owned()
    }

    async fn groups(&self, now: Timestamp) -> Vec<Group> {
        let known = {
            let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
            groups.clone()
        };
        if let Some(known) = known.filter(|known| now.duration_since(known.at) < GROUPS_FOR) {
            return known.value;
        }
        let all = match self.openstack.compute().server_groups().await {
            Ok(all) => all,
            Err(error) => {
                // Nova itself keeps the rules; here they only explain.
                tracing::warn!(error = chain(&error), "server groups were not read");
                return Vec::new();
            }
        };
        let value: Vec<Group> = all
            .into_iter()
            .filter(|group| ["affinity", "anti-affinity"].contains(&group.policy.as_str()))
            .map(|group| Group {
                most: group.rules.max_server_per_host.unwrap_or(1),
                together: group.policy == "affinity",
                name: group.name,
                members: group.members,
            })
            .collect();
        let read = Read {
            at: now,
            value: value.clone(),
        };
        *self.groups.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
        value
    }

    /// Which servers have ports that are devices of their host, and of what kind they are.
    async fn devices(&self, servers: &[Server]) -> BTreeMap<String, BTreeSet<String>> {
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let Some(host) = servers.iter().find_map(|server| server.host.as_deref()) else {
            return all;
        };
        // Nova itself knows what it can move; here it only explains, and is not worth a long wait.
        match timeout(DEADLINE, self.openstack.ports_on(host)).await {
            Ok(Ok(ports)) => {
                for port in ports.into_iter().filter(Port::is_device_of_host) {
                    let kind = port.vnic_type.unwrap_or_default();
                    all.entry(port.device_id).or_default().insert(kind);
                }
            }
            Ok(Err(error)) => tracing::warn!(error = chain(&error), "ports were not read"),
            Err(_) => tracing::warn!("ports were not read in time"),
        }
        all
    }

    /// Takes hosts out that have members of anti-affinity groups. Where those are is asked only if
    /// they could be on every host that has room.
    async fn keep_apart(
        &self,
        groups: &[Group],
        servers: &[Server],
        surveys: &mut BTreeMap<String, Survey>,
    ) {
        let here: BTreeSet<&str> = servers.iter().map(|one| one.id.as_str()).collect();
        let mut unknown = BTreeSet::new();
        for (id, survey) in surveys.iter() {
            unknown.extend(members_to_find(id, groups, &here, survey));
        }
        let compute = self.openstack.compute();
        let mut places = BTreeMap::new();
        for id in unknown.into_iter().take(MOST_MEMBERS) {
            match timeout(DEADLINE, compute.server(id)).await {
                Ok(Ok(server)) => {
                    if let Some(host) = server.host {
                        places.insert(id.to_owned(), host);
                    }
                }
                // Nova keeps the rule; here it only explains.
                Ok(Err(error)) if error.is_not_found() => {}
                Ok(Err(error)) => {
                    tracing::warn!(error = chain(&error), "a member of a group was not read");
                }
                Err(_) => tracing::warn!("a member of a group was not read in time"),
            }
        }
        for (id, survey) in surveys {
            survey.keep_apart(&hosts_taken(id, groups, &places));
        }
    }

    /// Hosts with room, by server: those that Placement finds, of which Nova says that they are
    /// enabled and alive. And who holds something of the host itself.
    async fn targets(
        &self,
        provider: Option<&str>,
        servers: &[Server],
        leaving: &BTreeSet<String>,
    ) -> Result<(BTreeMap<String, Survey>, BTreeSet<String>), Error> {
        let placement = self.openstack.placement();
        let used = match provider {
            Some(provider) => found(placement.provider_allocations(provider).await)?,
            None => None,
        };
        let used = used.map(|used| used.allocations).unwrap_or_default();
        let mut alike: BTreeMap<(Resources, BTreeSet<String>), Vec<&Server>> = BTreeMap::new();
        for server in servers {
            let resources = match used.get(&server.id) {
                Some(allocation) if !allocation.resources.is_empty() => {
                    allocation.resources.clone()
                }
                _ => [
                    ("VCPU".to_owned(), server.flavor.vcpus),
                    ("MEMORY_MB".to_owned(), server.flavor.ram),
                ]
                .into_iter()
                .filter(|(_, amount)| *amount > 0)
                .collect(),
            };
            let required = server
                .flavor
                .extra_specs
                .iter()
                .filter(|(_, value)| *value == "required")
                .filter_map(|(key, _)| key.strip_prefix("trait:"))
                .map(ToOwned::to_owned)
                .collect();
            alike.entry((resources, required)).or_default().push(server);
        }
        let fleet = self.fleet.get(clock::now()).unwrap_or_default();
        let mut all = BTreeMap::new();
        for ((resources, required), servers) in alike {
            let query = CandidateQuery {
                resources,
                required,
                forbidden: ["COMPUTE_STATUS_DISABLED".to_owned()].into(),
                limit: Some(MOST_TARGETS),
                ..CandidateQuery::default()
            };
            let candidates = placement.candidates(&query).await?;
            let roots: BTreeSet<&str> = candidates
                .providers
                .iter()
                .map(|(id, one)| one.root.as_deref().unwrap_or(id))
                .filter(|root| Some(*root) != provider)
                .collect();
            let survey = Survey::new(&fleet, provider, &roots, leaving);
            for server in servers {
                all.insert(server.id.clone(), survey.clone());
            }
        }
        Ok((all, used.into_keys().collect()))
    }

    /// Adds the finalizer, and changes nothing else.
    async fn hold(&self, eviction: &Eviction) -> Result<(), Failure> {
        let mut all = eviction.finalizers().to_vec();
        all.push(finalizers::EVICTION_IN_FLIGHT.to_owned());
        self.set_finalizers(eviction, all).await
    }

    /// Takes it off.
    async fn release(&self, eviction: &Eviction) -> Result<(), Failure> {
        if !is_held(eviction) {
            return Ok(());
        }
        let mut all = eviction.finalizers().to_vec();
        all.retain(|one| one != finalizers::EVICTION_IN_FLIGHT);
        self.set_finalizers(eviction, all).await
    }

    /// Writes the finalizers, if the object is still the one that was decided on.
    async fn set_finalizers(&self, eviction: &Eviction, all: Vec<String>) -> Result<(), Failure> {
        let patch = json!({ "metadata": {
            "finalizers": all,
            "resourceVersion": eviction.resource_version(),
        } });
        let patch = Patch::Merge(&patch);
        let api: Api<Eviction> = Api::all(self.client.clone());
        let name = eviction.name_any();
        let params = PatchParams::default();
        let patched = api.patch(&name, &params, &patch);
        match tokio::time::timeout(DEADLINE, patched).await {
            Ok(Ok(_)) => Ok(()),
            // It is gone, or newer than what was decided on: the watch tells.
            Ok(Err(kube::Error::Api(status))) if [404, 409].contains(&status.code) => Ok(()),
            Ok(Err(error)) => Err(Failure::Kubernetes(chain(&error))),
            Err(_) => Err(Failure::Kubernetes(
                "the API server does not answer".to_owned(),
            )),
        }
    }
}

/// Whether an answer to it says nothing of Nova: it comes from the API server, or from Placement
/// alone.
fn is_of_others(action: &Action) -> bool {
    matches!(
        action,
        Action::Hold
            | Action::Release
            | Action::ReadRunning
            | Action::ReadDomains
            | Action::ReadArrivals { .. }
            | Action::ReadHolders { .. }
    )
}

/// When the newest change was that is known, by Nova's clock. `None`: all are to be read, which also
/// mends what a clock that goes wrong has hidden.
fn newest_change(reads: &Reads, now: Timestamp) -> Option<Timestamp> {
    let whole = reads.migrations_whole?;
    if now.duration_since(whole) >= WHOLE_EVERY {
        return None;
    }
    let known = reads.migrations.iter().flat_map(|read| &read.value);
    known
        .filter_map(|one| one.updated_at.or(one.created_at))
        .max()
}

/// What is known with what has changed, the newest first.
fn merge(known: Vec<Migration>, changed: Vec<Migration>) -> Vec<Migration> {
    let all = known.into_iter().chain(changed);
    let by_id: BTreeMap<i64, Migration> = all.map(|one| (one.id, one)).collect();
    by_id.into_values().rev().collect()
}

/// Why an action did not work.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    OpenStack(#[from] Error),
    #[error("{0}")]
    Kubernetes(String),
}

/// Puts a failure where the next decision sees it.
fn failed(reads: &mut Reads, action: &Action, failure: &Failure) {
    let text = chain(failure);
    let now = clock::now();
    let (refused, after) = match failure {
        Failure::OpenStack(error) => {
            let unwell = error.is_transient() || error.is_uncertain() || error.is_unauthorized();
            (!unwell, error.retry_after())
        }
        Failure::Kubernetes(_) => (false, None),
    };
    tracing::warn!(
        action = action.name(),
        error = text,
        "an eviction's call failed"
    );
    match action {
        // Nova is asked by the clock instead.
        Action::ReadHolders { .. } => {
            reads.holders = None;
            reads.placement_trouble = Some(Read {
                at: now,
                value: text,
            });
            return;
        }
        Action::Move { server, .. } => {
            let asked = if refused {
                Asked::Refused(text.clone())
            } else {
                Asked::Unclear {
                    at: now,
                    text: text.clone(),
                }
            };
            reads.asked.insert(server.clone(), asked);
        }
        Action::Abort { server, .. } => {
            let value = Some(text.clone());
            reads.aborts.insert(server.clone(), Read { at: now, value });
        }
        Action::ForceComplete { server, .. } => {
            reads.forced.insert(server.clone());
        }
        Action::ReadTransfer { server, .. } if refused => reads.untold(server.clone(), now),
        Action::ReadReason { request, .. } if refused => {
            reads.reasons.insert(request.clone(), None);
        }
        Action::Repair { server } if refused => {
            reads.repaired.insert(server.clone(), Timestamp::MIN);
        }
        Action::Confirm { .. } if refused => reads.migrations = None,
        _ => {}
    }
    let asks_again = matches!(
        action,
        Action::ReadServers { .. }
            | Action::ReadService { .. }
            | Action::ReadMigrations { .. }
            | Action::ReadServer { .. }
            | Action::ReadStuck { .. }
            | Action::ReadRunning
            | Action::ReadClaims { .. }
            | Action::ReadDomains
            | Action::ReadArrivals { .. }
            | Action::ReadErrors
            | Action::Hold
            | Action::Release
            | Action::Confirm { .. }
    );
    if !refused || asks_again {
        let count = reads.trouble.as_ref().map_or(0, |trouble| trouble.count);
        let wait = FIRST_WAIT
            .saturating_mul(1 << count.min(5))
            .min(LONGEST_WAIT);
        let mut wait = SignedDuration::from_secs(wait);
        if let Some(after) = after {
            wait = wait.max(SignedDuration::try_from(after).unwrap_or(wait));
        }
        reads.trouble = Some(Trouble {
            text,
            count: count + 1,
            retry_at: now + wait,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn migration(id: i64, status: &str) -> Migration {
        serde_json::from_value(json!({
            "id": id, "instance_uuid": "a", "status": status, "source_compute": "hv1",
            "created_at": "2026-01-01T00:00:00Z",
            "updated_at": format!("2026-01-01T00:00:{id:02}Z"),
        }))
        .unwrap()
    }

    #[test]
    fn changes_are_added_to_what_is_known() {
        let known = vec![migration(2, "running"), migration(1, "completed")];
        let changed = vec![migration(3, "running"), migration(2, "completed")];
        let all = merge(known, changed);
        let all: Vec<_> = all
            .iter()
            .map(|one| (one.id, one.status.is_success()))
            .collect();
        assert_eq!(all, [(3, false), (2, true), (1, true)]);
    }

    #[test]
    fn a_glance_at_placement_does_not_say_that_nova_is_well() {
        let provider = String::new();
        assert!(is_of_others(&Action::ReadHolders { provider }));
        let host = String::new();
        assert!(!is_of_others(&Action::ReadMigrations { host }));
    }

    #[test]
    fn all_is_read_first_and_now_and_then() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let mut reads = Reads::default();
        assert_eq!(newest_change(&reads, now), None);
        let value = vec![migration(2, "running"), migration(7, "running")];
        reads.migrations = Some(Read { at: now, value });
        reads.migrations_whole = Some(now);
        let newest = "2026-01-01T00:00:07Z".parse().unwrap();
        assert_eq!(newest_change(&reads, now), Some(newest));
        assert_eq!(newest_change(&reads, now + WHOLE_EVERY), None);
        reads.migrations = None;
        assert_eq!(newest_change(&reads, now), None);
    }
}
