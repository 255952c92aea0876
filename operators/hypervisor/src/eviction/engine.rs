//! Turns for hosts with Evictions: observe, decide, write what was decided, do it.
//!
//! All Evictions of one host have their turn together, the oldest first, so that one instance is
//! moved by one of them. A turn never waits for Nova: each call runs in a task of its own and asks
//! for another turn when it has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cobalt_api::eviction::{Eviction, EvictionInstance, InstanceState, Outcome};
use cobalt_api::hypervisor::Hypervisor;
use cobalt_api::names::{FieldManager, annotations};
use cobalt_api::wait::Wait;
use cobalt_runtime::{Note, Queue, Recorder, Severity, Store, chain, jitter, within};
use jiff::{SignedDuration, Timestamp};
use kube::api::PostParams;
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::budget::{Ledger, claims};
use super::decide::{Decision, decide, is_held, label};
use super::hands::Hands;
use super::seen::{Action, Asked, Policy, Reads, Seen, Source};
use super::transfer::Transfer;
use crate::clock;
use crate::kept::{self, Row};
use crate::metrics::Metrics;

const DEADLINE: Duration = Duration::from_secs(15);
/// After a write that came too late: the watch has the newer object by then.
const AFTER_CONFLICT: Duration = Duration::from_millis(200);
/// After something could not be begun.
const NOT_BEGUN: Duration = Duration::from_secs(1);
/// How many actions may wait to be begun; each is begun at once.
pub const MOST_BEGUN: usize = 4096;
/// Everything is looked at again, although nothing has changed.
const SAFETY: Duration = Duration::from_secs(300);

/// Waits that somebody should look at: those who know what is on the host do not agree, or cannot
/// say.
const DOUBTS: [&str; 3] = ["CellDown", "UnconfirmedResize", "WitnessesDisagree"];

/// All that turns need.
pub struct Engine {
    /// The API server.
    pub client: Client,
    /// All Evictions.
    pub evictions: Store<Eviction>,
    /// The hosts of this operator.
    pub hypervisors: Store<Row>,
    /// What things are done with.
    pub hands: Hands,
    /// What the operator was told.
    pub policy: Arc<Policy>,
    /// The operator has all hosts, and not a part of them.
    pub has_all: bool,
    /// Where hosts wait for their turn.
    pub queue: Queue<Arc<str>>,
    /// Where that goes which is done beside the turns: to [`supervise`].
    pub begun: mpsc::Sender<Doable>,
    /// Where Events go.
    pub recorder: Recorder,
    /// Counters.
    pub metrics: Metrics,
    /// What is under way on all hosts.
    pub ledger: Mutex<Ledger>,
    /// What is remembered of hosts; all of it can be read again.
    pub memory: Mutex<BTreeMap<Arc<str>, Arc<Memory>>>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// Something that is done beside the turns.
pub type Doable = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Does what turns have begun, all at the same time. After `over` nothing new comes, and the end of
/// what is under way is awaited: the Lease is not let go of before. One that panics ends the process
/// like any other task of it.
pub async fn supervise(mut begun: mpsc::Receiver<Doable>, over: CancellationToken) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(ended) = running.join_next() => pass_on(ended),
            Some(act) = begun.recv() => {
                running.spawn(act);
            }
            () = over.cancelled() => break,
        }
    }
    begun.close();
    while let Ok(act) = begun.try_recv() {
        running.spawn(act);
    }
    while let Some(ended) = running.join_next().await {
        pass_on(ended);
    }
}

fn pass_on(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

/// What is remembered of one host between turns.
#[derive(Debug, Default)]
pub struct Memory {
    reads: Mutex<Reads>,
    /// What is being done.
    busy: Mutex<BTreeSet<Doing>>,
    /// The newest that is known of Evictions, by uid: the watch may lag behind our own writes.
    latest: Mutex<BTreeMap<String, Arc<Eviction>>>,
}

/// An action, and the uid of the Eviction that it is for.
type Doing = (String, Action);

impl Memory {
    /// Whether to begin it. `under_way` is what was being done when that was decided: what came of
    /// it is seen in the next turn, although it may have ended by now.
    fn begins(&self, under_way: &BTreeSet<Doing>, doing: &Doing) -> bool {
        !under_way.contains(doing) && lock(&self.busy).insert(doing.clone())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// What was under way before this process began, so that its first turns keep the limits.
    pub fn recall(&self) {
        let mut ledger = lock(&self.ledger);
        for (_, eviction) in self.evictions.all() {
            let host = &eviction.spec.hypervisor;
            // What another operator has under way is not told here when it ends.
            let ours = self.has_all || self.hypervisors.named(host).is_some();
            if is_open(&eviction) && ours {
                let zone = self.zone(host);
                ledger.recall(&eviction, zone.as_deref());
                self.queue.add(eviction.spec.hypervisor.as_str().into());
            }
        }
    }

    /// Hosts that have something to do get a turn: what is known of Nova is new.
    pub fn wake(&self) {
        for (_, eviction) in self.evictions.all() {
            if is_open(&eviction) {
                self.queue.add(eviction.spec.hypervisor.as_str().into());
            }
        }
    }

    /// An agent says how far a migration is.
    pub fn heard(&self, host: &str, instance: &str, now: Timestamp, heard: &Heard) {
        let memory = lock(&self.memory).get(host).cloned();
        let Some(memory) = memory else { return };
        let mut reads = lock(&memory.reads);
        if heard.ended {
            reads.news = Some(now);
        } else {
            let before = reads.transfers.get(instance);
            let stall = self.policy.stall;
            let mut next = Transfer::next(before, now, heard.remaining, heard.total, stall);
            next.throttle = heard.throttle;
            reads.transfers.insert(instance.to_owned(), next);
            reads.signs.heard(instance, now);
        }
        drop(reads);
        self.queue.add(host.into());
    }

    /// A turn for one host.
    pub async fn turn(self: &Arc<Self>, host: Arc<str>) {
        let mut all: Vec<Arc<Eviction>> = self
            .evictions
            .all()
            .into_iter()
            .map(|(_, eviction)| eviction)
            .filter(|eviction| *eviction.spec.hypervisor == *host)
            .collect();
        all.sort_by_key(|one| (one.creation_timestamp().map(|time| time.0), one.name_any()));
        self.forget(&host, &all);
        if !all.iter().any(|one| is_open(one)) {
            return;
        }
        if !self.has_all
            && self.hypervisors.named(&host).is_none()
            && !self.is_orphan(&host, &all).await
        {
            return;
        }
        let memory = Arc::clone(lock(&self.memory).entry(Arc::clone(&host)).or_default());
        let mut taken = BTreeMap::new();
        for eviction in all.iter().filter(|one| is_open(one)) {
            self.pass(&host, &memory, eviction, &mut taken).await;
        }
        self.queue.add_after(host, jitter(SAFETY));
    }

    /// Whether Evictions of a host that is not ours wait to be let go, and nobody else will.
    async fn is_orphan(&self, host: &str, all: &[Arc<Eviction>]) -> bool {
        let waits = |one: &Arc<Eviction>| one.metadata.deletion_timestamp.is_some() && is_held(one);
        if !all.iter().any(waits) {
            return false;
        }
        let api: Api<Hypervisor> = Api::all(self.client.clone());
        matches!(within(DEADLINE, api.get_opt(host)).await, Ok(None))
    }

    /// What is over is not remembered.
    fn forget(&self, host: &Arc<str>, all: &[Arc<Eviction>]) {
        let open: BTreeSet<String> = all
            .iter()
            .filter(|one| is_open(one))
            .filter_map(|one| one.uid())
            .collect();
        lock(&self.ledger).keep(host, &open);
        let mut memories = lock(&self.memory);
        if let Some(memory) = memories.get(host) {
            lock(&memory.latest).retain(|uid, _| open.contains(uid));
        }
        if open.is_empty() {
            memories.remove(host);
        }
    }

    async fn pass(
        self: &Arc<Self>,
        host: &Arc<str>,
        memory: &Arc<Memory>,
        eviction: &Arc<Eviction>,
        taken: &mut BTreeMap<String, String>,
    ) {
        let now = clock::now();
        let uid = eviction.uid().unwrap_or_default();
        let eviction = newest(memory, &uid, eviction);
        if !is_open(&eviction) {
            return;
        }
        lock(&memory.reads).watched_since.get_or_insert(now);
        let zone = self.zone(host);
        // Before the reads: whatever is not in it has put there what it found.
        let under_way = lock(&memory.busy).clone();
        let decision = {
            // Nobody else takes the same room meanwhile.
            let mut ledger = lock(&self.ledger);
            let limits = self.policy.limits;
            let seen = Seen {
                source: self.source(host),
                reads: lock(&memory.reads).clone(),
                taken: taken.clone(),
                room: ledger.room(&uid, host, zone.as_deref(), limits),
                policy: Arc::clone(&self.policy),
                eviction: Arc::clone(&eviction),
            };
            let decision = decide(&seen, now);
            let claims = claims(host, zone.as_deref(), &decision.status.instances);
            ledger.set(&uid, claims);
            decision
        };
        strike_off(&mut lock(&memory.reads), &eviction, &decision);
        for row in &decision.status.instances {
            if matches!(row.state, InstanceState::Moving | InstanceState::Pending) {
                taken
                    .entry(row.id.clone())
                    .or_insert_with(|| eviction.name_any());
            }
        }
        let eviction = match self.write(memory, &uid, &eviction, &decision).await {
            Ok(written) => written,
            Err(error) => {
                if let Some(error) = error {
                    let eviction = eviction.name_any();
                    tracing::warn!(eviction, error, "the status of an Eviction was not written");
                    self.queue
                        .add_after(Arc::clone(host), Duration::from_secs(2));
                } else {
                    self.queue.add_after(Arc::clone(host), AFTER_CONFLICT);
                }
                return;
            }
        };
        for action in decision.actions {
            let doing = (uid.clone(), action);
            if memory.begins(&under_way, &doing) {
                self.begin(host, memory, &eviction, doing);
            }
        }
        if let Some(wake) = decision.wake {
            let wait = wake
                .duration_since(now)
                .max(SignedDuration::from_millis(50));
            let wait = Duration::try_from(wait).unwrap_or(AFTER_CONFLICT);
            self.queue.add_after(Arc::clone(host), wait);
        }
    }

    /// Does something in a task of its own.
    fn begin(
        self: &Arc<Self>,
        host: &Arc<str>,
        memory: &Arc<Memory>,
        eviction: &Arc<Eviction>,
        doing: Doing,
    ) {
        if let Action::Move {
            server,
            method,
            target,
        } = &doing.1
        {
            let mut reads = lock(&memory.reads);
            reads.asked.insert(server.clone(), Asked::Waiting);
            reads.aborts.remove(server);
            reads.forced.remove(server);
            reads.transfers.remove(server);
            reads.repaired.remove(server);
            reads.probes.remove(server);
            reads.signs.forget(server);
            drop(reads);
            let eviction = eviction.name_any();
            tracing::info!(eviction, server, ?method, target, "an instance is moved");
        }
        if let Action::ReadTargets { .. } = &doing.1 {
            lock(&memory.reads).leaving = self.leaving(host, eviction);
        }
        let engine = Arc::clone(self);
        let again = (Arc::clone(host), Arc::clone(memory), doing.clone());
        let (host, memory, eviction) = (Arc::clone(host), Arc::clone(memory), Arc::clone(eviction));
        let act = async move {
            let action = &doing.1;
            let worked = engine.hands.act(&eviction, action, &memory.reads).await;
            engine.metrics.eviction_action(action.name(), worked);
            lock(&memory.busy).remove(&doing);
            engine.queue.add(host);
        };
        if self.begun.try_send(Box::pin(act)).is_err() {
            // The process ends, or far too much is under way: it was not begun.
            let (host, memory, doing) = again;
            lock(&memory.busy).remove(&doing);
            if let Action::Move { server, .. } = &doing.1 {
                lock(&memory.reads).asked.remove(server);
            }
            self.queue.add_after(host, NOT_BEGUN);
        }
    }

    /// Other hosts that are in maintenance or being drained, or shall be together with this one.
    fn leaving(&self, host: &str, eviction: &Eviction) -> BTreeSet<String> {
        let Ok(fleet) = self.hands.fleet.get(clock::now()) else {
            return BTreeSet::new();
        };
        let with = eviction.annotations().get(annotations::DRAINED_WITH);
        let with = with.into_iter().flat_map(|names| names.split(','));
        let mut names: BTreeSet<String> = with.map(|name| name.trim().to_owned()).collect();
        for (_, other) in self.evictions.all() {
            let spec = &other.spec;
            let whole = spec.instances.is_empty() && !spec.dry_run() && !spec.cancel();
            if whole && is_open(&other) && other.metadata.deletion_timestamp.is_none() {
                names.insert(spec.hypervisor.clone());
            }
        }
        for (key, row) in self.hypervisors.all() {
            if row.in_maintenance {
                names.insert(key.name().to_owned());
            }
        }
        names.remove(host);
        let identity = |name: &String| {
            let row = self.hypervisors.named(name)?;
            fleet.find(&row.names(name)).ok().flatten()
        };
        let found = names.iter().filter_map(identity);
        found.map(|identity| identity.host).collect()
    }

    /// Writes the status, if it is not written. `Err(None)`: the object is newer.
    async fn write(
        &self,
        memory: &Memory,
        uid: &str,
        eviction: &Arc<Eviction>,
        decision: &Decision,
    ) -> Result<Arc<Eviction>, Option<String>> {
        if eviction.status.as_ref() == Some(&decision.status) {
            return Ok(Arc::clone(eviction));
        }
        let mut object = (**eviction).clone();
        object.status = Some(decision.status.clone());
        object.metadata.managed_fields = None;
        let api: Api<Eviction> = Api::all(self.client.clone());
        let name = object.name_any();
        let params = PostParams {
            field_manager: Some(FieldManager::Operator.as_str().to_owned()),
            ..PostParams::default()
        };
        let written = api.replace_status(&name, &params, &object);
        let after = match tokio::time::timeout(DEADLINE, written).await {
            Ok(Ok(after)) => after,
            Ok(Err(kube::Error::Api(status))) if [404, 409].contains(&status.code) => {
                return Err(None);
            }
            Ok(Err(error)) => return Err(Some(chain(&error))),
            Err(_) => return Err(Some("the API server does not answer".to_owned())),
        };
        self.tell(eviction, &after);
        let after = Arc::new(crate::cache::eviction(after));
        lock(&memory.latest).insert(uid.to_owned(), Arc::clone(&after));
        self.metrics.eviction_writes.inc();
        Ok(after)
    }

    fn zone(&self, host: &str) -> Option<String> {
        let row = self.hypervisors.named(host)?;
        row.zone().map(ToOwned::to_owned)
    }

    fn source(&self, host: &str) -> Source {
        let row = self.hypervisors.named(host);
        let Some((row, known)) = row.and_then(|row| Some((row.clone(), row.read()?))) else {
            return Source {
                exists: false,
                identity: Ok(None),
                was_registered: false,
            };
        };
        let fleet = self.hands.fleet.get(clock::now());
        let rows = self.hypervisors.all();
        let others = rows
            .iter()
            .filter(|(key, _)| key.name() != host)
            .map(|(key, row)| (key.name(), row.names(key.name())));
        let status = known.object.status.as_ref();
        Source {
            exists: true,
            identity: fleet.and_then(|fleet| kept::identity(&fleet, &row.names(host), others)),
            was_registered: status.is_some_and(|status| {
                status.hypervisor_id.is_some() || status.service_id.is_some()
            }),
        }
    }

    /// Events and counters for what has changed.
    fn tell(&self, before: &Eviction, after: &Eviction) {
        let about = after.object_ref(&());
        let old = before.status.clone().unwrap_or_default();
        let Some(new) = &after.status else { return };
        let report = |path: &str, severity, reason, action, text: String| {
            let mut about = about.clone();
            // The Events of one field are found without reading their text.
            about.field_path = Some(path.to_owned());
            let note = Note {
                severity,
                reason,
                action,
                text,
            };
            self.recorder.report(&about, note);
        };
        if old.started_at.is_none() && new.started_at.is_some() {
            let text = format!(
                "{} is being emptied: {}",
                after.spec.hypervisor, after.spec.reason
            );
            report(
                "status.startedAt",
                Severity::Normal,
                "EvictionStarted",
                "Evict",
                text,
            );
        }
        if let Some(wait) = alarming(old.waiting_for.as_ref(), new.waiting_for.as_ref()) {
            let reason = match wait.reason.as_str() {
                "NovaConductor" => "NovaConductorDown",
                _ => "NovaStuck",
            };
            let text = wait.message.clone().unwrap_or_default();
            report("status.waitingFor", Severity::Warning, reason, "Move", text);
        }
        let reason = |wait: &Option<Wait>| wait.as_ref().map(|wait| wait.reason.clone());
        if let Some(wait) = &new.waiting_for
            && reason(&old.waiting_for).as_deref() != Some(&wait.reason)
            && let Some(known) = DOUBTS.into_iter().find(|known| *known == wait.reason)
        {
            let text = wait.message.clone().unwrap_or_default();
            report("status.waitingFor", Severity::Warning, known, "Evict", text);
        }
        for row in &new.instances {
            let before = old.instances.iter().find(|one| one.id == row.id);
            let path = format!("status.instances[{}]", row.id);
            if let Some((severity, reason, text)) = news(before, row) {
                report(&path, severity, reason, "Move", text);
            }
            if before.map(|before| before.state) != Some(row.state) {
                self.metrics.eviction_instance(row.state);
                if let (InstanceState::Moved, Some(since), Some(began)) = (
                    row.state,
                    &row.since,
                    before.and_then(|before| before.since.as_ref()),
                ) {
                    let took = since.0.duration_since(began.0).as_secs_f64();
                    self.metrics.eviction_move_seconds.observe(took);
                }
            }
        }
        if let (None, Some(outcome)) = (old.outcome, new.outcome) {
            self.metrics.eviction_ended(outcome);
            let bad = !matches!(outcome, Outcome::Succeeded | Outcome::Cancelled);
            let severity = if bad {
                Severity::Warning
            } else {
                Severity::Normal
            };
            let all = &new.conditions;
            let said = cobalt_api::conditions::find(
                all,
                cobalt_api::conditions::EvictionCondition::Evicting,
            );
            let text = said.map(|said| said.message.clone()).unwrap_or_default();
            let reason = match outcome {
                Outcome::Succeeded => "EvictionSucceeded",
                Outcome::PartiallyFailed => "EvictionPartiallyFailed",
                Outcome::Failed => "EvictionFailed",
                Outcome::Cancelled => "EvictionCancelled",
                Outcome::TimedOut => "EvictionTimedOut",
            };
            report("status.outcome", severity, reason, "Evict", text);
        }
    }
}

/// A wait that needs somebody's attention, when it begins.
fn alarming<'a>(old: Option<&Wait>, new: Option<&'a Wait>) -> Option<&'a Wait> {
    let new = new.filter(|new| ["NovaStuck", "NovaConductor"].contains(&new.reason.as_str()))?;
    old.is_none_or(|old| old.reason != new.reason)
        .then_some(new)
}

/// What an agent says of a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// It is over.
    pub ended: bool,
    /// Bytes that are to be sent.
    pub remaining: u64,
    /// All bytes.
    pub total: u64,
    /// How much the guest is slowed down, in percent.
    pub throttle: Option<i32>,
}

/// What is worth an Event, of what has changed about one instance.
fn news(
    before: Option<&EvictionInstance>,
    row: &EvictionInstance,
) -> Option<(Severity, &'static str, String)> {
    let name = label(row);
    let to = row
        .to
        .as_deref()
        .map(|to| format!(" to {to}"))
        .unwrap_or_default();
    let error = row.error.clone().unwrap_or_default();
    let same = before.is_some_and(|before| before.state == row.state);
    let failed_again = before.is_some_and(|before| {
        before.state == InstanceState::Moving && row.state == InstanceState::Pending
    });
    if failed_again {
        let attempt = row.attempt.unwrap_or(0);
        let text = format!("attempt {attempt} to move {name} failed: {error}");
        return Some((Severity::Warning, "MoveFailed", text));
    }
    if same {
        return None;
    }
    Some(match row.state {
        InstanceState::Moved => (
            Severity::Normal,
            "InstanceMoved",
            format!("{name} has moved{to}"),
        ),
        InstanceState::Gone => (
            Severity::Normal,
            "InstanceGone",
            format!("{name} was deleted"),
        ),
        InstanceState::Failed => {
            let text = format!("{name} could not be moved: {error}");
            (Severity::Warning, "InstanceFailed", text)
        }
        InstanceState::Blocked => {
            let finding = row.preflight.as_ref().and_then(|one| one.reasons.first());
            let why = finding
                .and_then(|one| one.message.clone())
                .unwrap_or_default();
            (
                Severity::Warning,
                "InstanceBlocked",
                format!("{name} cannot be moved as it is: {why}"),
            )
        }
        InstanceState::Pending | InstanceState::Moving | InstanceState::Cancelled => return None,
    })
}

/// Takes instances that have just left from the list, which is older: another Eviction of the host
/// would move them again.
fn strike_off(reads: &mut Reads, eviction: &Eviction, decision: &Decision) {
    let gone =
        |row: &&EvictionInstance| matches!(row.state, InstanceState::Moved | InstanceState::Gone);
    let before = eviction.status.iter().flat_map(|status| &status.instances);
    let before: BTreeSet<&str> = before.filter(gone).map(|row| row.id.as_str()).collect();
    let now = decision.status.instances.iter().filter(gone);
    let left: BTreeSet<&str> = now
        .map(|row| row.id.as_str())
        .filter(|id| !before.contains(id))
        .collect();
    if let Some(list) = &mut reads.servers {
        list.value
            .retain(|server| !left.contains(server.id.as_str()));
    }
}

/// Whether something is to be done about it.
#[must_use]
pub fn is_open(eviction: &Eviction) -> bool {
    let over = eviction
        .status
        .as_ref()
        .is_some_and(|status| status.outcome.is_some());
    // One of an operator before us says so in its condition alone.
    let all = eviction
        .status
        .as_ref()
        .map_or(&[][..], |status| status.conditions.as_slice());
    let was_over = !over
        && cobalt_api::conditions::is_false(
            all,
            cobalt_api::conditions::EvictionCondition::Evicting,
        );
    !(over || was_over) || is_held(eviction)
}

/// The newer of what the watch and our own last write say.
fn newest(memory: &Memory, uid: &str, watched: &Arc<Eviction>) -> Arc<Eviction> {
    let version = |one: &Eviction| -> u64 {
        one.resource_version()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    };
    let mut latest = lock(&memory.latest);
    match latest.get(uid) {
        Some(own) if version(own) > version(watched) => Arc::clone(own),
        _ => {
            latest.insert(uid.to_owned(), Arc::clone(watched));
            Arc::clone(watched)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_under_way_at_the_end_is_awaited() {
        let (begin, begun) = mpsc::channel::<Doable>(2);
        let over = CancellationToken::new();
        let (answer, answered) = tokio::sync::oneshot::channel::<()>();
        let (done, mut is_done) = tokio::sync::oneshot::channel::<()>();
        let act = async move {
            answered.await.unwrap();
            done.send(()).unwrap();
        };
        begin.try_send(Box::pin(act)).ok().unwrap();
        let mut all = std::pin::pin!(supervise(begun, over.clone()));
        over.cancel();
        assert!(futures::poll!(&mut all).is_pending());
        assert!(is_done.try_recv().is_err());
        answer.send(()).unwrap();
        all.await;
        assert_eq!(is_done.try_recv(), Ok(()));
        assert!(begin.try_send(Box::pin(async {})).is_err());
    }

    #[tokio::test]
    #[should_panic(expected = "noticed")]
    async fn one_that_panics_is_noticed() {
        let (begin, begun) = mpsc::channel::<Doable>(2);
        let over = CancellationToken::new();
        begin
            .try_send(Box::pin(async { panic!("noticed") }))
            .ok()
            .unwrap();
        supervise(begun, over).await;
    }

    #[test]
    fn what_was_under_way_when_it_was_decided_is_not_done_twice() {
        let memory = Memory::default();
        let server = "a".to_owned();
        let repair = ("uid".to_owned(), Action::Repair { server });
        let nothing = BTreeSet::new();
        assert!(memory.begins(&nothing, &repair));
        assert!(!memory.begins(&nothing, &repair), "it is being done");
        let under_way = lock(&memory.busy).clone();
        lock(&memory.busy).remove(&repair);
        assert!(
            !memory.begins(&under_way, &repair),
            "it was done meanwhile, and who decided did not know"
        );
        assert!(memory.begins(&nothing, &repair), "it is wanted anew");
    }
}
