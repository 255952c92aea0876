//! Copies of Hypervisors and OVSNodes in another cluster, where the control plane reads them.
//!
//! Two watches per kind, of the originals here and of their copies there, each kept as digests: the
//! fleet is in memory once only, in the operator's own caches. A copy that does not say what its
//! original says is written, by server-side apply; one without an original is deleted. So the whole
//! fleet is compared whenever one of the watches begins anew, and what somebody has changed in a copy
//! is put right; a field that somebody has added stays his. A copy carries a label with the name of
//! this cluster, and an object without it is never touched.
//!
//! Only the leader mirrors. Nothing waits for it: a cluster that is away is a reason in
//! [`Trouble::now`], a metric and a line in the log.

mod copy;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cobalt_api::hypervisor::Hypervisor;
use cobalt_api::names::{FieldManager, labels};
use cobalt_api::ovsnode::OvsNode;
use cobalt_runtime::{
    ApplyError, Backoff, Health, ObjectKey, Presence, Queue, Reflection, Store, Term, apply,
    apply_status, chain, client_from_file, jitter, led, reflect, within, work,
};
use futures::FutureExt;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use copy::{Copy, Digest, Step, Written, decide, digest, has_status, is_ours};

const DEADLINE: Duration = Duration::from_secs(10);
/// How many copies are written at a time.
const WORKERS: usize = 4;
/// A copy has three calls and their deadlines, and all workers may be at it.
const BUSY: Duration = Duration::from_secs(120);
/// How often everything is compared, whatever the watches say.
const COMPARE: Duration = Duration::from_secs(600);
/// The longest wait for another try.
const LONGEST: Duration = Duration::from_secs(60);
/// How often a kind that may be absent is looked for.
const OPTIONAL: Duration = Duration::from_secs(60);

/// How to mirror.
#[derive(Debug, Clone)]
pub struct MirrorConfig {
    /// A kubeconfig of the cluster that gets the copies.
    pub kubeconfig: PathBuf,
    /// What the copies call this cluster. No other cluster may have the same name there.
    pub name: String,
    /// A copy is written at most so often.
    pub interval: Duration,
    /// Only Hypervisors with these labels, and their copies. Empty: all.
    pub label_selector: String,
    /// Nothing is written to the other cluster while it does not hold.
    pub term: Term,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    kind: &'static str,
    outcome: &'static str,
}

/// What was done.
#[derive(Debug, Clone, Default)]
pub struct MirrorMetrics(Family<Labels, Counter>);

impl MirrorMetrics {
    /// Puts them into a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "mirror",
            "Copies in the other cluster, by kind and outcome",
            self.0.clone(),
        );
    }

    /// How often it came out like this: `written`, `deleted` or `failed`.
    #[must_use]
    pub fn count(&self, kind: &'static str, outcome: &'static str) -> u64 {
        self.0.get_or_create(&Labels { kind, outcome }).get()
    }

    fn add(&self, kind: &'static str, outcome: &'static str) {
        self.0.get_or_create(&Labels { kind, outcome }).inc();
    }
}

/// What stands in the way of mirroring. It does not make the operator unready.
#[derive(Debug, Clone, Default)]
pub struct Trouble(Health);

impl Trouble {
    /// Each obstacle with its reason.
    #[must_use]
    pub fn now(&self) -> Vec<String> {
        self.0.missing()
    }
}

/// Why a copy is not as it should be.
#[derive(Debug, thiserror::Error)]
enum MirrorError {
    #[error("failed to read the original: {0}")]
    Original(String),
    #[error("failed to read the copy: {0}")]
    Copy(String),
    #[error(
        "the other cluster has an object of this name that is not a copy from here ({owner}): \
         rename or delete one of them, or give each cluster its own mirror name"
    )]
    Foreign { owner: String },
    #[error("the other cluster lacks the namespace \"{0}\": create it")]
    Namespace(String),
    #[error("failed to write the copy")]
    Apply(#[from] ApplyError),
    #[error("failed to delete the copy: {0}")]
    Delete(String),
}

/// Mirrors until it is cancelled. Its loops show in `health` that they live.
pub async fn run(
    config: MirrorConfig,
    here: Client,
    health: Health,
    trouble: Trouble,
    metrics: MirrorMetrics,
    cancel: CancellationToken,
) {
    let connected = cancel.run_until_cancelled(connect(&config, &trouble)).await;
    let Some(there) = connected else { return };
    let hypervisors = Kind {
        name: "Hypervisor",
        resource: ApiResource::erase::<Hypervisor>(&()),
        selector: config.label_selector.clone(),
        presence: Presence::Required,
        originals: "mirror: Hypervisors",
        copies: "mirror: copies of Hypervisors",
        pulse: "mirror of Hypervisors",
    };
    let ovs_nodes = Kind {
        name: "OVSNode",
        resource: ApiResource::erase::<OvsNode>(&()),
        selector: String::new(),
        presence: Presence::Optional(OPTIONAL),
        originals: "mirror: OVSNodes",
        copies: "mirror: copies of OVSNodes",
        pulse: "mirror of OVSNodes",
    };
    let sides = Sides {
        here,
        there,
        cluster: config.name.clone(),
        metrics,
    };
    let both = [hypervisors, ovs_nodes].map(|kind| {
        let (sides, health) = (sides.clone(), health.clone());
        mirror(
            kind,
            sides,
            config.interval,
            health,
            trouble.clone(),
            cancel.clone(),
        )
        .boxed()
    });
    futures::future::join_all(both).await;
}

/// A client for the other cluster, as soon as there is a file that says how to reach it.
async fn connect(config: &MirrorConfig, trouble: &Trouble) -> Client {
    const NAME: &str = "mirror: kubeconfig";
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
    loop {
        match client_from_file(&config.kubeconfig).await {
            Ok(client) => {
                trouble.0.set_missing(NAME, None);
                return led(client, config.term.clone());
            }
            Err(error) => {
                let file = config.kubeconfig.display();
                let error = format!("{file}: {}", chain(&error));
                tracing::warn!(error, "nothing is mirrored");
                trouble.0.set_missing(NAME, Some(error));
            }
        }
        tokio::time::sleep(backoff.next_wait()).await;
    }
}

/// A kind that is mirrored, and what it is called.
struct Kind {
    name: &'static str,
    resource: ApiResource,
    /// Which of them. Labels are copied, so it chooses the copies, too.
    selector: String,
    /// Here. There it is required.
    presence: Presence,
    originals: &'static str,
    copies: &'static str,
    pulse: &'static str,
}

/// The two clusters.
#[derive(Clone)]
struct Sides {
    here: Client,
    there: Client,
    /// What this cluster is called there.
    cluster: String,
    metrics: MirrorMetrics,
}

/// What is remembered of one object.
#[derive(Debug, Default)]
struct Memory {
    written: Option<Written>,
    not_before: Option<Instant>,
    failures: u32,
}

/// Who waits for a turn, and who had one a moment ago.
#[derive(Debug)]
struct Desk {
    queue: Queue<ObjectKey>,
    memory: Mutex<BTreeMap<ObjectKey, Memory>>,
    interval: Duration,
}

impl Desk {
    fn new(interval: Duration) -> Self {
        Self {
            queue: Queue::new(),
            memory: Mutex::default(),
            interval,
        }
    }

    /// Something has changed.
    fn wake(&self, key: &ObjectKey) {
        let wait = self.too_early(key).unwrap_or_default();
        self.queue.add_after(key.clone(), wait);
    }

    /// How long its next turn has to wait. What the own last write changed is seen by then.
    fn too_early(&self, key: &ObjectKey) -> Option<Duration> {
        let not_before = self.memory().get(key)?.not_before?;
        let wait = not_before.saturating_duration_since(Instant::now());
        (!wait.is_zero()).then_some(wait)
    }

    fn written(&self, key: &ObjectKey) -> Option<Written> {
        self.memory().get(key).and_then(|memory| memory.written)
    }

    /// It has been written.
    fn done(&self, key: &ObjectKey, written: Written) {
        let memory = Memory {
            written: Some(written),
            not_before: Some(Instant::now() + self.interval),
            failures: 0,
        };
        self.memory().insert(key.clone(), memory);
    }

    /// There is nothing to remember any more.
    fn forget(&self, key: &ObjectKey) {
        self.memory().remove(key);
    }

    /// It did not work. Tries again after a while that grows.
    fn failed(&self, key: &ObjectKey) {
        let wait = {
            let mut memory = self.memory();
            let one = memory.entry(key.clone()).or_default();
            let factor = 1_u32.checked_shl(one.failures).unwrap_or(u32::MAX);
            one.failures = one.failures.saturating_add(1);
            let first = self.interval.max(Duration::from_secs(1));
            let wait = jitter(first.saturating_mul(factor).min(LONGEST));
            one.not_before = Some(Instant::now() + wait);
            wait
        };
        self.queue.add_after(key.clone(), wait);
    }

    fn memory(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn mirror(
    kind: Kind,
    sides: Sides,
    interval: Duration,
    health: Health,
    trouble: Trouble,
    cancel: CancellationToken,
) {
    let desk = Arc::new(Desk::new(interval));
    let how = |name, presence| Reflection {
        name,
        presence,
        health: trouble.0.clone(),
    };
    let select = |label: String| {
        let given = [&label, kind.selector.trim()];
        let given: Vec<&str> = given.into_iter().filter(|text| !text.is_empty()).collect();
        watcher::Config::default().labels(&given.join(","))
    };
    let woken = Arc::clone(&desk);
    let (originals, follow_originals) = reflect(
        Api::all_with(sides.here.clone(), &kind.resource),
        // A copy that somebody else has put here is not an original.
        select(format!("!{}", labels::MIRROR_OF)),
        how(kind.originals, kind.presence),
        |object: DynamicObject| digest(&object),
        move |key, _| woken.wake(key),
        cancel.clone(),
    );
    let woken = Arc::clone(&desk);
    let (copies, follow_copies) = reflect(
        Api::all_with(sides.there.clone(), &kind.resource),
        select(format!("{}={}", labels::MIRROR_OF, sides.cluster)),
        how(kind.copies, Presence::Required),
        |object: DynamicObject| Copy {
            digest: digest(&object),
            uid: object.uid().unwrap_or_default(),
        },
        move |key, _| woken.wake(key),
        cancel.clone(),
    );
    let pulse = kind.pulse;
    let mirror = Arc::new(Mirror {
        kind,
        sides,
        originals,
        copies,
        desk,
    });
    let write = async {
        // What is not known to be there may be there, and what is not known to be gone is not.
        let ready =
            async { tokio::join!(mirror.originals.until_ready(), mirror.copies.until_ready()) };
        if cancel.run_until_cancelled(ready).await.is_none() {
            return;
        }
        let queue = mirror.desk.queue.clone();
        let handler = |key: ObjectKey| {
            let mirror = Arc::clone(&mirror);
            async move { mirror.turn(&key).await }
        };
        let working = work(
            queue,
            WORKERS,
            health.pulse(pulse, BUSY),
            cancel.clone(),
            handler,
        );
        tokio::select! {
            () = working => {}
            () = mirror.compare_now_and_then() => {}
        }
    };
    tokio::join!(follow_originals, follow_copies, write);
}

/// One kind between two clusters.
struct Mirror {
    kind: Kind,
    sides: Sides,
    originals: Store<Digest>,
    copies: Store<Copy>,
    desk: Arc<Desk>,
}

impl Mirror {
    /// A safety net: the watches tell of every change.
    async fn compare_now_and_then(&self) {
        loop {
            tokio::time::sleep(jitter(COMPARE)).await;
            let originals = self.originals.all().into_iter().map(|(key, _)| key);
            let copies = self.copies.all().into_iter().map(|(key, _)| key);
            originals.chain(copies).for_each(|key| self.desk.wake(&key));
        }
    }

    /// Puts one copy right.
    async fn turn(&self, key: &ObjectKey) {
        if self.desk.too_early(key).is_some() {
            return self.desk.wake(key);
        }
        let original = self.originals.get(key);
        let copy = self.copies.get(key);
        let says = copy.as_ref().map(|copy| copy.digest);
        let step = decide(original.as_deref().copied(), says, self.desk.written(key));
        let done = match step {
            Step::Nothing if original.is_none() => return self.desk.forget(key),
            Step::Nothing => return,
            Step::Write => self.write(key, copy.as_deref()).await,
            Step::Delete => self.delete(key).await.map(|()| None),
        };
        let (kind, metrics) = (self.kind.name, &self.sides.metrics);
        match done {
            Ok(Some(written)) => {
                tracing::debug!(kind, object = %key, "copied");
                metrics.add(kind, "written");
                self.desk.done(key, written);
            }
            Ok(None) if step == Step::Delete => {
                tracing::debug!(kind, object = %key, "the copy is deleted");
                metrics.add(kind, "deleted");
                self.desk.forget(key);
            }
            // The original is gone, and its watch says so in a moment.
            Ok(None) => {}
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(kind, object = %key, error, "failed to mirror");
                metrics.add(kind, "failed");
                self.desk.failed(key);
            }
        }
    }

    /// Makes the copy say what the original says now. `None` if the original is gone.
    async fn write(
        &self,
        key: &ObjectKey,
        known: Option<&Copy>,
    ) -> Result<Option<Written>, MirrorError> {
        let here = api(&self.sides.here, &self.kind.resource, key);
        let original = within(DEADLINE, here.get_opt(key.name())).await;
        let Some(original) = original.map_err(MirrorError::Original)? else {
            return Ok(None);
        };
        let found = match known {
            Some(_) => None,
            // It may be there without our label, or since a moment.
            None => self.ours(key).await?,
        };
        let found = found.and_then(|exactly| exactly.uid);
        let uid = known.map(|copy| &copy.uid).or(found.as_ref());
        let mut copy = match self.apply(key, &original, uid).await {
            Err(ApplyError::Request { source, name }) if is_invalid(&source) && uid.is_some() => {
                if !self.would_be_valid(key, &original).await {
                    return Err(ApplyError::Request { source, name }.into());
                }
                // A rule forbids the way from what it says to what it shall say.
                self.delete(key).await?;
                self.apply(key, &original, None).await?
            }
            Err(ApplyError::NotFound { name }) => {
                return Err(match key.namespace() {
                    Some(namespace) => MirrorError::Namespace(namespace.to_owned()),
                    None => ApplyError::NotFound { name }.into(),
                });
            }
            other => other?,
        };
        if has_status(&original) || has_status(&copy) {
            let there = api(&self.sides.there, &self.kind.resource, key);
            let status = copy::status(&original, &self.kind.resource);
            let manager = FieldManager::Mirror.as_str();
            copy = apply_status(&there, key.name(), manager, &status, DEADLINE).await?;
        }
        Ok(Some(Written {
            original: digest(&original),
            copy: digest(&copy),
        }))
    }

    async fn apply(
        &self,
        key: &ObjectKey,
        original: &DynamicObject,
        uid: Option<&String>,
    ) -> Result<DynamicObject, ApplyError> {
        let there = api(&self.sides.there, &self.kind.resource, key);
        let uid = uid.map(String::as_str);
        let object = copy::object(original, &self.kind.resource, &self.sides.cluster, uid);
        let manager = FieldManager::Mirror.as_str();
        apply(&there, key.name(), manager, &object, DEADLINE).await
    }

    /// Whether a new copy would be accepted. One is there, so that it is refused for this reason at
    /// most.
    async fn would_be_valid(&self, key: &ObjectKey, original: &DynamicObject) -> bool {
        let there = api(&self.sides.there, &self.kind.resource, key);
        let object = copy::object(original, &self.kind.resource, &self.sides.cluster, None);
        let Ok(object) = serde_json::from_value::<DynamicObject>(object) else {
            return false;
        };
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        match tokio::time::timeout(DEADLINE, there.create(&dry, &object)).await {
            Ok(Ok(_)) => true,
            Ok(Err(kube::Error::Api(status))) => status.code == 409,
            Ok(Err(_)) | Err(_) => false,
        }
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), MirrorError> {
        let exactly = match self.ours(key).await {
            Ok(Some(exactly)) => exactly,
            // Gone, or somebody else's by now.
            Ok(None) | Err(MirrorError::Foreign { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let there = api(&self.sides.there, &self.kind.resource, key);
        let params = DeleteParams {
            preconditions: Some(exactly),
            ..DeleteParams::default()
        };
        match tokio::time::timeout(DEADLINE, there.delete(key.name(), &params)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(()),
            Ok(Err(error)) => Err(MirrorError::Delete(chain(&error))),
            Err(_) => Err(MirrorError::Delete("no answer in time".to_owned())),
        }
    }

    /// The copy as it is right now, if it is there and ours.
    async fn ours(&self, key: &ObjectKey) -> Result<Option<Preconditions>, MirrorError> {
        let there = api(&self.sides.there, &self.kind.resource, key);
        let found = within(DEADLINE, there.get_metadata_opt(key.name())).await;
        let Some(found) = found.map_err(MirrorError::Copy)? else {
            return Ok(None);
        };
        if !is_ours(found.labels(), &self.sides.cluster) {
            let owner = match found.labels().get(labels::MIRROR_OF) {
                Some(other) => format!("a copy from \"{other}\""),
                None => "its own".to_owned(),
            };
            return Err(MirrorError::Foreign { owner });
        }
        Ok(Some(Preconditions {
            uid: found.uid(),
            resource_version: found.resource_version(),
        }))
    }
}

fn api(client: &Client, resource: &ApiResource, key: &ObjectKey) -> Api<DynamicObject> {
    match key.namespace() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    }
}

fn is_invalid(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 422)
}

#[cfg(test)]
mod tests;
