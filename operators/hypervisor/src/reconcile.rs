//! One turn for one host: observe, decide, write what was decided, do it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cobalt_api::conditions::{self, HypervisorCondition as Type, Reason, Status};
use cobalt_api::eviction::Eviction;
use cobalt_api::hypervisor::{Check, Hypervisor, HypervisorStatus};
use cobalt_api::names::{FieldManager, leases};
use cobalt_api::ovsnode::OvsNode;
use cobalt_runtime::{
    ApplyError, Note, Queue, Recorder, Severity, Store, apply, apply_status, chain,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::api::{ApiResource, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::act::Hands;
use crate::action::Action;
use crate::clock;
use crate::controllers;
use crate::heartbeat::{Beat, Heartbeats};
use crate::host::{Failure, Host, Known, Reads, Settings, Silence, TestProject};
use crate::kept::{self, Kept, Row};
use crate::metrics::Metrics;
use crate::node_objects::NodeObjects;
use crate::pass::{OWN, Pass, own};
use crate::{cache, sync};

const DEADLINE: Duration = Duration::from_secs(15);
/// Waits after a failed action, doubled each time.
const FIRST_WAIT: i64 = 2;
const LONGEST_WAIT: i64 = 60;
/// After a write that came too late: the watch has the newer object by then.
const AFTER_CONFLICT: Duration = Duration::from_millis(200);
/// Everything is looked at again, although nothing has changed.
const SAFETY: Duration = Duration::from_secs(600);

/// What the operator has of the cluster.
#[derive(Debug, Clone)]
pub struct Caches {
    /// Nodes that are hypervisors.
    pub nodes: Store<Kept<Node>>,
    /// Hypervisors.
    pub hypervisors: Store<Row>,
    /// Evictions.
    pub evictions: Store<Eviction>,
    /// What the Open vSwitch agents say.
    pub ovs: Store<Kept<OvsNode>>,
}

/// All that a turn needs.
pub struct Reconciler {
    /// The API server.
    pub client: Client,
    /// The caches.
    pub caches: Caches,
    /// What actions are done with.
    pub hands: Hands,
    /// What the operator was told.
    pub settings: Arc<Settings>,
    /// Where hosts wait for their turn.
    pub queue: Queue<Arc<str>>,
    /// Where Events go.
    pub recorder: Recorder,
    /// Counters.
    pub metrics: Metrics,
    /// The objects that go with a Node.
    pub objects: NodeObjects,
    /// The heartbeats of the node agents.
    pub heartbeats: Heartbeats,
    /// What is remembered of each host between turns; all of it can be read again.
    pub memory: Mutex<BTreeMap<Arc<str>, Memory>>,
}

/// What is remembered of a host.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    reads: Reads,
    failures: BTreeMap<&'static str, Failure>,
    /// How often an action failed in a row, for its next wait.
    failed: BTreeMap<&'static str, u32>,
    /// The checks of onboarding as they were written last, while they run.
    checks: Option<Vec<Check>>,
    /// The silence of the node agent for which its conditions were marked.
    marked: Option<Silence>,
    /// Why the conditions of the OVSNode were marked.
    ovs_marked: Option<String>,
    /// The last write: the version it was based on, and what came of it. When all hosts are written,
    /// the watch may lag behind by hundreds.
    written: Option<(String, Arc<Kept<Known>>)>,
}

impl Memory {
    fn is_blank(&self) -> bool {
        self.reads == Reads::default()
            && self.failures.is_empty()
            && self.failed.is_empty()
            && self.checks.is_none()
            && self.marked.is_none()
            && self.ovs_marked.is_none()
            && self.written.is_none()
    }
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All was done that could be.
    Ok,
    /// Somebody wrote the object meanwhile.
    Conflict,
    /// Something failed; it is tried again.
    Error,
}

impl fmt::Debug for Reconciler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconciler").finish_non_exhaustive()
    }
}

impl Reconciler {
    /// A turn for the host of this name.
    pub async fn turn(&self, name: Arc<str>) {
        let started = tokio::time::Instant::now();
        let mut memory = self.recall(&name);
        let outcome = Box::pin(self.pass(&name, &mut memory)).await;
        let gone = self.caches.nodes.named(&name).is_none()
            && self.caches.hypervisors.named(&name).is_none();
        let mut all = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if gone || memory.is_blank() {
            all.remove(&name);
        } else {
            all.insert(name, memory);
        }
        drop(all);
        self.metrics.pass(outcome, started.elapsed());
    }

    fn recall(&self, name: &str) -> Memory {
        let all = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(name).cloned().unwrap_or_default()
    }

    async fn pass(&self, name: &Arc<str>, memory: &mut Memory) -> Outcome {
        let now = clock::now();
        let host = match self.observe(name, memory, now).await {
            Ok(host) => host,
            Err(error) => {
                tracing::warn!(host = &**name, error, "the OVSNode was not read");
                self.queue
                    .add_after(Arc::clone(name), Duration::from_secs(5));
                return Outcome::Error;
            }
        };
        let outcome = match self.sync(&host).await {
            Ok(true) => return Outcome::Ok,
            Ok(false) => Outcome::Ok,
            Err(Refused::Conflict) => {
                self.queue.add_after(Arc::clone(name), AFTER_CONFLICT);
                return Outcome::Conflict;
            }
            Err(Refused::Gone) => return Outcome::Ok,
            Err(Refused::Failed(error)) => {
                tracing::warn!(
                    host = host.name,
                    error,
                    "the Hypervisor does not follow its Node"
                );
                self.queue
                    .add_after(Arc::clone(name), Duration::from_secs(5));
                Outcome::Error
            }
        };
        let Some(known) = &host.hypervisor else {
            return outcome;
        };
        let mut pass = Pass::new(&host, now);
        controllers::decide(&mut pass);
        if pass.waits_for_nova {
            self.hands.fleet.wait_for_nova();
        }
        let spec = host.spec();
        let traits = spec
            .custom_traits()
            .iter()
            .chain(pass.status.owned_traits.iter().flatten());
        let before: Vec<String> = controllers::traits::owned(&pass.status)
            .into_iter()
            .collect();
        self.hands
            .fleet
            .want_traits(traits.chain(&before).map(String::as_str));
        match self.write(known, &pass.status, memory).await {
            Ok(true) => {
                self.tell(known, &pass.status);
                // They look at each other, too.
                for rival in &host.rivals {
                    self.queue.add(rival.as_str().into());
                }
            }
            Ok(false) => {}
            Err(Refused::Conflict) => {
                self.queue.add_after(Arc::clone(name), AFTER_CONFLICT);
                return Outcome::Conflict;
            }
            Err(Refused::Gone) => return Outcome::Ok,
            Err(Refused::Failed(error)) => {
                tracing::warn!(host = host.name, error, "the status was not written");
                self.queue
                    .add_after(Arc::clone(name), Duration::from_secs(5));
                return Outcome::Error;
            }
        }
        if pass.marks {
            memory.marked.clone_from(&host.silence);
        }
        self.mark_ovs(&host, memory, now).await;
        let testing = conditions::reason(&pass.status.conditions, Type::Onboarding);
        memory.checks = (testing == Some(Reason::Testing)).then(|| pass.status.checks.clone());
        for name in &pass.forgiven {
            memory.failures.remove(name);
            memory.failed.remove(name);
        }
        let actions = std::mem::take(&mut pass.actions);
        let wake = pass.wake;
        let status = pass.status.clone();
        let failed = self.act(&host, &actions, memory).await;
        if !actions.is_empty() {
            self.queue.add(Arc::clone(name));
        }
        if let Some(wake) = wake {
            let wait = wake
                .duration_since(now)
                .max(SignedDuration::from_millis(50));
            let wait = Duration::try_from(wait).unwrap_or(AFTER_CONFLICT);
            self.queue.add_after(Arc::clone(name), wait);
        }
        let objects = self.objects.keep(&self.client, &host, &status).await;
        if let Err(error) = &objects {
            tracing::warn!(
                host = host.name,
                error,
                "an object of the node is not as it shall be"
            );
            self.queue
                .add_after(Arc::clone(name), Duration::from_secs(30));
        }
        self.queue
            .add_after(Arc::clone(name), cobalt_runtime::jitter(SAFETY));
        if failed || objects.is_err() {
            Outcome::Error
        } else {
            outcome
        }
    }

    async fn observe(
        &self,
        name: &str,
        memory: &mut Memory,
        now: Timestamp,
    ) -> Result<Host, String> {
        let node = self.caches.nodes.named(name);
        let row = self.caches.hypervisors.named(name);
        // An Eviction wakes hosts of others, too.
        let is_ours = node.is_some() || row.is_some();
        let ovs = match self.caches.ovs.whereabouts(name).filter(|_| is_ours) {
            None => None,
            Some(key) => {
                let api = || {
                    let kind = ApiResource::erase::<OvsNode>(&());
                    let namespace = key.namespace().unwrap_or_default();
                    Api::namespaced_with(self.client.clone(), namespace, &kind)
                };
                kept::find(&self.caches.ovs, &key, api, cache::ovs).await?
            }
        };
        let mut hypervisor = row.and_then(|row| row.read());
        // Until the watch shows our last write, the answer to it is the newest there is.
        match (&memory.written, &hypervisor) {
            (Some((base, after)), Some(known))
                if known.object.resource_version().as_deref() == Some(base.as_str()) =>
            {
                hypervisor = after.read();
            }
            _ => memory.written = None,
        }
        let testbed = self.hands.testbed.borrow().clone();
        let node = node.and_then(|node| node.read());
        let silence = match is_ours {
            true => self.silence(name, node.as_deref()).await,
            false => None,
        };
        if silence.is_none() {
            memory.marked = None;
        }
        let mut host = Host {
            name: name.to_owned(),
            node,
            hypervisor,
            eviction: self.caches.evictions.named(name),
            shutdowns: self.shutdowns(name),
            ovs,
            fleet: self.hands.fleet.get(now),
            trouble: self.hands.fleet.trouble(),
            testbed: testbed.map(|found| {
                Arc::new(TestProject {
                    id: found.project_id.clone(),
                })
            }),
            peers: Vec::new(),
            checks: memory.checks.clone(),
            rivals: Vec::new(),
            silence,
            marked: memory.marked.clone(),
            has_lease: self.heartbeats.knows(name),
            reads: memory.reads.clone(),
            failures: memory.failures.clone(),
            settings: Arc::clone(&self.settings),
        };
        host.rivals = self.rivals(&host);
        let testing = host.hypervisor.as_ref().is_some_and(|known| {
            let status = known.object.status.as_ref();
            let all = status.map_or(&[][..], |status| status.conditions.as_slice());
            conditions::reason(all, Type::Onboarding) == Some(Reason::Testing)
        });
        if testing {
            host.peers = self.peers(&host);
        }
        Ok(host)
    }

    /// Evictions of the host because of a shutdown. Their names begin with the name of the host.
    fn shutdowns(&self, host: &str) -> Vec<Arc<Eviction>> {
        let mut all = self.caches.evictions.with_prefix(host);
        all.retain(|one| one.spec.hypervisor == host && one.is_for_shutdown());
        all
    }

    /// Other Hypervisors that stand for the same host of Nova.
    fn rivals(&self, host: &Host) -> Vec<String> {
        let Ok(fleet) = &host.fleet else {
            return Vec::new();
        };
        let rows = self.caches.hypervisors.all();
        let others = rows
            .iter()
            .filter(|(key, _)| key.name() != host.name)
            .map(|(key, row)| (key.name(), row.names(key.name())));
        kept::rivals(fleet, &host.names(), others)
    }

    /// Whether the node agent is silent. A Lease that is late is read once more before that is
    /// believed: the watch may stand still.
    async fn silence(&self, name: &str, node: Option<&Node>) -> Option<Silence> {
        let late = self.heartbeats.late(name, Instant::now())?;
        let conditions = node.and_then(|node| node.status.as_ref()?.conditions.as_ref());
        let ready = conditions.and_then(|all| all.iter().find(|one| one.type_ == "Ready"));
        if late.excused && ready.is_none_or(|ready| ready.status == "True") {
            return None;
        }
        let api: Api<Lease> = Api::namespaced(self.client.clone(), leases::NODE_AGENT_NAMESPACE);
        let found = cobalt_runtime::within(DEADLINE, api.get_opt(name)).await;
        let beat = Beat::of(&found.ok()??);
        if beat == late {
            return Some(Silence {
                renewed: late.renewed,
            });
        }
        self.heartbeats.saw(name, beat, Instant::now());
        None
    }

    /// Says of the OVSNode of a dead host that its conditions are not known any more, once for each
    /// time that it is dead: an agent that writes afterwards is alive.
    async fn mark_ovs(&self, host: &Host, memory: &mut Memory, now: Timestamp) {
        let Some(why) = controllers::agent::dead(host) else {
            memory.ovs_marked = None;
            return;
        };
        let stale = controllers::agent::stale_ovs(host, &why, now);
        let Some(key) = self.caches.ovs.whereabouts(&host.name) else {
            return;
        };
        if stale.is_empty() || memory.ovs_marked.as_ref() == Some(&why) {
            return;
        }
        let namespace = key.namespace().unwrap_or_default();
        let content = json!({
            "apiVersion": OvsNode::api_version(&()),
            "kind": OvsNode::kind(&()),
            "metadata": { "name": key.name(), "namespace": namespace },
            "status": { "conditions": stale },
        });
        let api: Api<OvsNode> = Api::namespaced(self.client.clone(), namespace);
        let manager = FieldManager::Operator.as_str();
        match apply_status(&api, key.name(), manager, &content, DEADLINE).await {
            Ok(_) => {
                let note = Note {
                    severity: Severity::Warning,
                    reason: "SwitchReportStale",
                    action: "Watch",
                    text: why.clone(),
                };
                memory.ovs_marked = Some(why);
                // In the namespace of the OVSNode the operator may write no Event.
                if let Some(known) = &host.hypervisor {
                    let mut about = reference(&known.object);
                    about.field_path = Some("OVSNode".to_owned());
                    self.recorder.report(&about, note);
                }
            }
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(
                    host = host.name,
                    error,
                    "the OVSNode was not marked as stale"
                );
            }
        }
    }

    /// Hosts that take workload in the same zone, as Nova calls them; each host begins elsewhere in
    /// the list, so that not all tests meet at the first one.
    fn peers(&self, host: &Host) -> Vec<String> {
        let Ok(fleet) = &host.fleet else {
            return Vec::new();
        };
        let rows = self.caches.hypervisors.all();
        let mut all: Vec<String> = rows
            .iter()
            .filter(|(key, row)| key.name() != host.name && row.zone() == host.zone() && row.ready)
            .filter_map(|(key, row)| {
                let found = fleet.find(&row.names(key.name())).ok()??;
                let up = found.is_enabled() && found.service.state.as_str() == "up";
                up.then_some(found.host)
            })
            .collect();
        all.sort();
        let turn = host.name.bytes().fold(0_usize, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into())
        });
        if let Some(first) = turn.checked_rem(all.len()) {
            all.rotate_left(first);
        }
        all
    }

    /// Makes the Hypervisor follow its Node. `Ok(true)`: it was written, and the watch will tell.
    async fn sync(&self, host: &Host) -> Result<bool, Refused> {
        let Some(node) = &host.node else {
            return Ok(false);
        };
        if host.is_deleted() {
            return Ok(false);
        }
        let known = host.hypervisor.as_deref();
        let derived = sync::derive(node, known, &self.settings);
        let differences = match known {
            Some(known) => sync::differences(&derived, known, &self.settings),
            None => vec!["new"],
        };
        if differences.is_empty() {
            return Ok(false);
        }
        tracing::info!(
            host = host.name,
            ?differences,
            "the Hypervisor follows its Node"
        );
        let api: Api<Hypervisor> = Api::all(self.client.clone());
        let manager = FieldManager::Hypervisor.as_str();
        let content = sync::content(&derived, known);
        let after = apply(&api, &host.name, manager, &content, DEADLINE).await?;
        let surplus = sync::surplus_labels(&derived, &after, &self.settings);
        if !surplus.is_empty() {
            // Labels that an earlier operator has given are not ours to drop by applying.
            let nulls: serde_json::Map<String, Value> =
                surplus.into_iter().map(|key| (key, Value::Null)).collect();
            let patch = json!({ "metadata": { "labels": nulls } });
            let params = PatchParams {
                field_manager: Some(manager.to_owned()),
                ..PatchParams::default()
            };
            let patch = Patch::Merge(&patch);
            let patched = api.patch(&host.name, &params, &patch);
            let patched = cobalt_runtime::within(DEADLINE, patched).await;
            patched.map_err(Refused::Failed)?;
        }
        // The finalizer of an operator before us, or of ours that is not wanted any more.
        if !derived.is_managed() {
            crate::act::release(&api, &after)
                .await
                .map_err(|error| Refused::Failed(error.text()))?;
        }
        Ok(true)
    }

    /// Writes the operator's part of the status, if it is not written. `Ok(true)`: it was.
    async fn write(
        &self,
        known: &Known,
        wanted: &HypervisorStatus,
        memory: &mut Memory,
    ) -> Result<bool, Refused> {
        let present = own(&known.status());
        let wanted = own(wanted);
        if present == wanted {
            return Ok(false);
        }
        let name = known.object.name_any();
        let version = known.object.resource_version().unwrap_or_default();
        let unreadable = |error: serde_json::Error| Refused::Failed(chain(&error));
        let status = serde_json::to_value(&wanted).map_err(unreadable)?;
        // As it is read back: times have whole seconds.
        let wanted: HypervisorStatus =
            serde_json::from_value(status.clone()).map_err(unreadable)?;
        let content = json!({
            "apiVersion": Hypervisor::api_version(&()),
            "kind": Hypervisor::kind(&()),
            "metadata": { "name": name, "resourceVersion": version },
            "status": status,
        });
        let api: Api<Hypervisor> = Api::all(self.client.clone());
        let manager = FieldManager::Operator.as_str();
        let mut after = match apply_status(&api, &name, manager, &content, DEADLINE).await {
            Ok(after) => after,
            // Applying takes away only our part of what another manager wrote, too: of a condition
            // its type may be left, which the definition refuses. It is replaced as a whole.
            Err(error) if error.is_refusal() => {
                tracing::debug!(host = name, error = chain(&error), "the status is replaced");
                self.present(&api, &name, &version).await?
            }
            Err(error) => return Err(error.into()),
        };
        if own(&after.status.clone().unwrap_or_default()) != wanted {
            // What an earlier operator wrote stays although we do not apply it: it is taken away.
            after = self.replace(&api, after, &wanted).await?;
        }
        self.metrics.status_writes.inc();
        memory.written = Some((version, cache::written(after)));
        Ok(true)
    }

    /// The whole object, if it is still of this version.
    async fn present(
        &self,
        api: &Api<Hypervisor>,
        name: &str,
        version: &str,
    ) -> Result<Hypervisor, Refused> {
        let read = cobalt_runtime::within(DEADLINE, api.get_opt(name)).await;
        let object = read.map_err(Refused::Failed)?.ok_or(Refused::Gone)?;
        if object.resource_version().as_deref() == Some(version) {
            Ok(object)
        } else {
            Err(Refused::Conflict)
        }
    }

    /// Writes the whole status with our part of it as wanted, if nobody else wrote meanwhile.
    async fn replace(
        &self,
        api: &Api<Hypervisor>,
        mut object: Hypervisor,
        wanted: &HypervisorStatus,
    ) -> Result<Hypervisor, Refused> {
        let name = object.name_any();
        let mut status = object.status.take().unwrap_or_default();
        let names: Vec<&str> = OWN.iter().map(|one| one.as_str()).collect();
        let is_wanted = |type_: &str| wanted.conditions.iter().any(|one| one.type_ == type_);
        status.conditions.retain(|one| {
            let marked = one.reason == Reason::AgentSilent.as_str();
            !names.contains(&one.type_.as_str()) && !marked && !is_wanted(&one.type_)
        });
        status.conditions.extend(wanted.conditions.iter().cloned());
        status.phase = wanted.phase;
        status.waiting_for.clone_from(&wanted.waiting_for);
        status.checks.clone_from(&wanted.checks);
        status.hypervisor_id.clone_from(&wanted.hypervisor_id);
        status.service_id.clone_from(&wanted.service_id);
        status.traits.clone_from(&wanted.traits);
        status.aggregates.clone_from(&wanted.aggregates);
        status.owned_traits.clone_from(&wanted.owned_traits);
        status.owned_aggregates.clone_from(&wanted.owned_aggregates);
        status.internal_ip.clone_from(&wanted.internal_ip);
        status.evicted = wanted.evicted;
        object.status = Some(status);
        object.metadata.managed_fields = None;
        let params = kube::api::PostParams {
            field_manager: Some(FieldManager::Operator.as_str().to_owned()),
            ..Default::default()
        };
        match tokio::time::timeout(DEADLINE, api.replace_status(&name, &params, &object)).await {
            Ok(Ok(after)) => Ok(after),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Err(Refused::Conflict),
            Ok(Err(error)) => Err(Refused::Failed(chain(&error))),
            Err(_) => Err(Refused::Failed("the API server does not answer".to_owned())),
        }
    }

    /// Does what was decided; returns whether something failed.
    async fn act(&self, host: &Host, actions: &[Action], memory: &mut Memory) -> bool {
        let mut failed = false;
        for action in actions {
            let name = action.name();
            let result = self.hands.act(host, action, &mut memory.reads).await;
            self.metrics.action(action, result.is_ok());
            match result {
                Ok(()) => {
                    if !action.is_read() {
                        tracing::info!(host = host.name, ?action, "done");
                    }
                    memory.failures.remove(name);
                    memory.failed.remove(name);
                }
                Err(error) => {
                    failed = true;
                    let times = memory.failed.entry(name).or_default();
                    let wait = FIRST_WAIT
                        .saturating_mul(1 << (*times).min(5))
                        .min(LONGEST_WAIT);
                    *times += 1;
                    let mut wait = SignedDuration::from_secs(wait);
                    if let Some(after) = error.retry_after() {
                        wait = wait.max(SignedDuration::try_from(after).unwrap_or(wait));
                    }
                    let text = error.text();
                    tracing::warn!(host = host.name, action = name, error = text, "failed");
                    let before = memory.failures.get(name).map_or(0, |failure| failure.count);
                    let failure = Failure {
                        count: before + u32::from(!error.is_transient()),
                        text,
                        retry_at: clock::now() + wait,
                    };
                    memory.failures.insert(name, failure);
                }
            }
        }
        failed
    }

    /// Events for what has changed.
    fn tell(&self, known: &Known, new: &HypervisorStatus) {
        let about = reference(&known.object);
        for (condition, note) in notes(&known.status(), new) {
            let mut about = about.clone();
            // The Events of one condition are found without reading their text.
            about.field_path = Some(format!("status.conditions[{}]", condition.as_str()));
            self.recorder.report(&about, note);
        }
    }
}

fn reference(object: &Hypervisor) -> ObjectReference {
    object.object_ref(&())
}

/// What is worth an Event, of all that a write changes.
#[must_use]
pub fn notes(old: &HypervisorStatus, new: &HypervisorStatus) -> Vec<(Type, Note)> {
    let told: [(Type, &'static str); 9] = [
        (Type::Onboarding, "Onboard"),
        (Type::HypervisorDisabled, "Maintain"),
        (Type::Evicting, "Evict"),
        (Type::TraitsUpdated, "SetTraits"),
        (Type::AggregatesUpdated, "SetAggregates"),
        (Type::Offboarded, "Offboard"),
        (Type::Terminating, "Terminate"),
        (Type::Ready, "Report"),
        (Type::LibVirtConnection, "Watch"),
    ];
    let mut all = Vec::new();
    for (condition, action) in told {
        let before = conditions::find(&old.conditions, condition);
        let Some(after) = conditions::find(&new.conditions, condition) else {
            continue;
        };
        let same = before.is_some_and(|before| {
            // The summary repeats what the others say; it is told when it turns.
            let told = [Reason::NotReady, Reason::IdentityConflict].map(Reason::as_str);
            let summary = condition == Type::Ready
                && !told.contains(&after.reason.as_str())
                && !told.contains(&before.reason.as_str());
            before.status == after.status && (summary || before.reason == after.reason)
        });
        let Some(reason) = conditions::reason(&new.conditions, condition).filter(|_| !same) else {
            continue;
        };
        if condition == Type::LibVirtConnection && reason != Reason::AgentSilent {
            // The agent's own.
            continue;
        }
        let bad = matches!(
            reason,
            Reason::Aborted
                | Reason::Failed
                | Reason::PartiallyFailed
                | Reason::TimedOut
                | Reason::NotReady
                | Reason::AgentSilent
                | Reason::IdentityConflict
        );
        all.push((
            condition,
            Note {
                severity: if bad {
                    Severity::Warning
                } else {
                    Severity::Normal
                },
                reason: event_reason(condition, reason, after.status == Status::True.as_str()),
                action,
                text: after.message.clone(),
            },
        ));
    }
    all
}

/// The reason of an Event: the condition and its state in one word.
fn event_reason(condition: Type, reason: Reason, is_true: bool) -> &'static str {
    match (condition, reason) {
        (Type::Onboarding, Reason::Initial) => "OnboardingStarted",
        (Type::Onboarding, Reason::Testing) => "OnboardingTesting",
        (Type::Onboarding, Reason::Handover) => "OnboardingHandover",
        (Type::Onboarding, Reason::Succeeded) => "OnboardingSucceeded",
        (Type::Onboarding, _) => "OnboardingAborted",
        (Type::HypervisorDisabled, Reason::Failed) => "DisabledByOthers",
        (Type::HypervisorDisabled, _) if is_true => "Disabled",
        (Type::HypervisorDisabled, _) => "Enabled",
        (Type::Evicting, Reason::Running) => "EvictionRunning",
        (Type::Evicting, Reason::Succeeded) => "Evicted",
        (Type::Evicting, _) => "EvictionFailed",
        (Type::TraitsUpdated, Reason::Succeeded) => "TraitsUpdated",
        (Type::TraitsUpdated, _) => "TraitsFailed",
        (Type::AggregatesUpdated, Reason::Failed) => "AggregatesFailed",
        (Type::AggregatesUpdated, _) => "AggregatesUpdated",
        (Type::Offboarded, Reason::Offboarded) => "Offboarded",
        (Type::Offboarded, _) => "Offboarding",
        (Type::Terminating, _) => "Terminating",
        (Type::LibVirtConnection, Reason::AgentSilent) => "AgentSilent",
        (Type::Ready, Reason::Ready) => "Ready",
        (Type::Ready, Reason::IdentityConflict) => "IdentityConflict",
        (Type::Ready, _) => "NotReady",
        _ => "Changed",
    }
}

/// Why a status was not written.
#[derive(Debug)]
enum Refused {
    /// The object is newer than what was decided on.
    Conflict,
    /// There is no such object any more.
    Gone,
    /// Anything else.
    Failed(String),
}

impl From<ApplyError> for Refused {
    fn from(error: ApplyError) -> Self {
        match &error {
            ApplyError::NotFound { .. } => Self::Gone,
            ApplyError::Request { source, .. } if matches!(&**source, kube::Error::Api(status) if status.code == 409) => {
                Self::Conflict
            }
            _ => Self::Failed(chain(&error)),
        }
    }
}
