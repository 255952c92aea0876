//! The writers: one per migration and end, each with a slot that holds the latest to be said. A slow
//! or absent API server holds up one slot and never the sampling; what was overtaken is not sent.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cobalt_api::migration::{Migration, MigrationEnd, MigrationStatus, Role};
use cobalt_api::names::{FieldManager, labels};
use cobalt_runtime::{ApplyError, Backoff, apply, apply_status, chain};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Preconditions};
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use uuid::Uuid;

use super::machine::shorten;
use super::metrics::MigrationMetrics;
use super::object;
use crate::context::Context;

const DEADLINE: Duration = Duration::from_secs(15);
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// How often the last word is tried when the API server refuses its content.
const REFUSALS: u32 = 10;
/// How long the destination looks for the object after its own end.
const LOOK_AFTER_END: Duration = Duration::from_secs(120);
/// How many objects are remembered that arrivals have taken. Old ones say so themselves.
const TAKEN: usize = 256;

/// What a writer needs.
#[derive(Debug, Clone)]
pub struct Writer {
    ctx: Context,
    api: Api<Migration>,
    metrics: MigrationMetrics,
    /// The objects that arrivals have found. The next arrival of the same instance is another
    /// migration, also while what was said of the first is still on its way.
    taken: Arc<Mutex<VecDeque<String>>>,
}

/// The latest to be said.
#[derive(Debug, Clone, PartialEq)]
pub struct Said<T> {
    /// It.
    pub content: T,
    /// Nothing comes after it.
    pub last: bool,
}

/// An object whose migration is no more.
#[derive(Debug, Clone)]
pub struct Close {
    /// The object.
    pub name: String,
    /// How it ended.
    pub result: cobalt_api::migration::MigrationResult,
    /// Why, or what is not known.
    pub error: Option<String>,
}

impl Writer {
    /// A writer into the node's namespace.
    #[must_use]
    pub fn new(ctx: &Context, metrics: MigrationMetrics) -> Self {
        Self {
            api: Api::namespaced(ctx.client.clone(), &ctx.namespace),
            ctx: ctx.clone(),
            metrics,
            taken: Arc::default(),
        }
    }

    /// Keeps the source's part of an object until its last word is written. What `stale` names is
    /// closed first, so that an instance never has two unfinished objects.
    pub async fn source(
        self,
        name: String,
        instance: Uuid,
        stale: Vec<Close>,
        mut slot: watch::Receiver<Said<MigrationStatus>>,
    ) {
        for close in stale {
            self.clone().close(close).await;
        }
        let head = object::head(&name, &self.ctx.namespace, instance, &self.ctx.node);
        let mut there = false;
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let mut refused = 0;
        loop {
            let said = slot.borrow_and_update().clone();
            let outcome = async {
                if !there {
                    let manager = FieldManager::NodeAgent.as_str();
                    apply(&self.api, &name, manager, &head, DEADLINE).await?;
                }
                self.apply_source(&name, &said.content).await
            };
            match outcome.await {
                Ok(()) => {
                    there = true;
                    backoff.reset();
                    if said.last || slot.changed().await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    // Somebody has deleted it: it is made again.
                    there = there && !matches!(error, ApplyError::NotFound { .. });
                    refused += u32::from(error.is_refusal() && said.last);
                    self.failed(&name, &error);
                    if refused >= REFUSALS {
                        return;
                    }
                    tokio::time::sleep(backoff.next_wait()).await;
                }
            }
        }
    }

    /// Writes the last word about a migration that nobody followed to its end.
    pub async fn close(self, close: Close) {
        self.rewrite(&close.name, |object| {
            let status = object.status.as_ref();
            if status.is_some_and(|status| status.finished.is_some()) {
                return None;
            }
            let now = Timestamp::now();
            let mut own = status.map(object::own).unwrap_or_default();
            let began = own.started.get_or_insert(Time(now)).0;
            own.instance = object.labels().get(labels::INSTANCE).cloned();
            own.origin = Some(self.ctx.node_label.to_string());
            own.type_ = Some(job_type(close.result).to_owned());
            own.operation = Some("migration_out".to_owned());
            own.finished = Some(Time(now.max(began)));
            own.result = Some(close.result);
            own.err_msg.clone_from(&close.error);
            if own.ends.is_empty() {
                own.ends.push(MigrationEnd {
                    role: Role::Source,
                    node: self.ctx.node.to_string(),
                    updated: None,
                    result: None,
                    error: None,
                    stats: None,
                });
            }
            for end in &mut own.ends {
                end.result = Some(close.result);
                end.error = close.error.clone().map(shorten);
            }
            if let Some(entry) = status.and_then(|status| object::end(status, Role::Destination)) {
                own.destination = Some(entry.node.clone());
            }
            Some(own)
        })
        .await;
    }

    /// Adds to a finished migration what its destination has said since.
    pub async fn amend(self, name: String) {
        self.rewrite(&name, |object| object::amend(object.status.as_ref()?))
            .await;
    }

    /// Reads an object and writes the source's part of it anew, until that has worked or is of no
    /// use any more.
    async fn rewrite(&self, name: &str, change: impl Fn(&Migration) -> Option<MigrationStatus>) {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        for _ in 0..REFUSALS {
            let read = tokio::time::timeout(DEADLINE, self.api.get_opt(name)).await;
            let outcome = match read {
                Ok(Ok(None)) => return,
                Ok(Ok(Some(object))) => match change(&object) {
                    None => return,
                    Some(status) => self.apply_source(name, &status).await,
                },
                Ok(Err(source)) => Err(ApplyError::Request {
                    name: name.to_owned(),
                    source: Box::new(source),
                }),
                Err(_) => Err(ApplyError::Timeout { after: DEADLINE }),
            };
            match outcome {
                Ok(()) => return,
                Err(error) => self.failed(name, &error),
            }
            tokio::time::sleep(backoff.next_wait()).await;
        }
    }

    async fn apply_source(&self, name: &str, status: &MigrationStatus) -> Result<(), ApplyError> {
        let manager = FieldManager::NodeAgent.as_str();
        let part = object::source_part(status);
        apply_status(&self.api, name, manager, &part, DEADLINE).await?;
        self.metrics.writes.inc();
        Ok(())
    }

    /// Keeps the destination's entry: finds the object when it appears, and writes into it.
    pub async fn destination(
        self,
        instance: Uuid,
        began: Timestamp,
        from_start: bool,
        mut slot: watch::Receiver<Said<MigrationEnd>>,
    ) {
        let Some(name) = self.find(instance, began, from_start, &mut slot).await else {
            tracing::warn!(%instance, "an instance came, and its source has written no Migration");
            return;
        };
        let manager = FieldManager::NodeAgentDestination.as_str();
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let mut refused = 0;
        loop {
            let said = slot.borrow_and_update().clone();
            let part = object::destination_part(&said.content);
            match apply_status(&self.api, &name, manager, &part, DEADLINE).await {
                Ok(_) => {
                    self.metrics.writes.inc();
                    backoff.reset();
                    if said.last || slot.changed().await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    self.failed(&name, &error);
                    refused += u32::from(error.is_refusal());
                    // It belongs to another: when it is gone, so is our entry.
                    if matches!(error, ApplyError::NotFound { .. }) || refused >= REFUSALS {
                        return;
                    }
                    tokio::time::sleep(backoff.next_wait()).await;
                }
            }
        }
    }

    /// Waits for the object of an arriving instance.
    async fn find(
        &self,
        instance: Uuid,
        began: Timestamp,
        from_start: bool,
        slot: &mut watch::Receiver<Said<MigrationEnd>>,
    ) -> Option<String> {
        let selector = format!("{}={instance}", labels::INSTANCE);
        let guarded: Api<DeserializeGuard<Migration>> =
            Api::namespaced(self.ctx.client.clone(), &self.ctx.namespace);
        let config = watcher::Config::default().labels(&selector);
        let mut events = watcher::watcher(guarded, config).boxed();
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let mut objects: BTreeMap<String, Migration> = BTreeMap::new();
        let mut give_up = None;
        loop {
            if slot.borrow().last && give_up.is_none() {
                give_up = Some(tokio::time::Instant::now() + LOOK_AFTER_END);
            }
            let event = tokio::select! {
                event = events.try_next() => event,
                changed = slot.changed() => {
                    changed.ok()?;
                    continue;
                }
                () = until(give_up) => return None,
            };
            match event {
                Ok(Some(watcher::Event::Init)) => objects.clear(),
                Ok(Some(watcher::Event::InitApply(object) | watcher::Event::Apply(object))) => {
                    if let Ok(object) = object.0 {
                        objects.insert(object.name_any(), object);
                    }
                }
                Ok(Some(watcher::Event::Delete(object))) => {
                    objects.remove(&object.name_any());
                }
                Ok(Some(watcher::Event::InitDone)) => backoff.reset(),
                Ok(None) => return None,
                Err(error) => {
                    tracing::debug!(%instance, error = chain(&error), "watch interrupted");
                    tokio::time::sleep(backoff.next_wait()).await;
                    continue;
                }
            }
            let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            objects.retain(|name, _| !taken.contains(name));
            let found = object::of_arrival(&objects, &self.ctx.node, began, from_start);
            if let Some(name) = found {
                taken.push_back(name.clone());
                if taken.len() > TAKEN {
                    taken.pop_front();
                }
                return Some(name);
            }
        }
    }

    /// Deletes an object that has been there long enough.
    pub async fn delete(self, name: String) {
        let read = tokio::time::timeout(DEADLINE, self.api.get_metadata_opt(&name)).await;
        let Ok(Ok(Some(object))) = read else {
            return;
        };
        // Another object under the same name would not be ours to delete.
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: object.uid(),
                resource_version: object.resource_version(),
            }),
            ..DeleteParams::default()
        };
        match tokio::time::timeout(DEADLINE, self.api.delete(&name, &params)).await {
            Ok(Ok(_)) => tracing::debug!(migration = name, "deleted after its time"),
            Ok(Err(error)) => {
                tracing::warn!(
                    migration = name,
                    error = chain(&error),
                    "failed to delete a Migration"
                );
            }
            Err(_) => tracing::warn!(migration = name, "no answer to a deletion in time"),
        }
    }

    fn failed(&self, name: &str, error: &ApplyError) {
        self.metrics.write_failures.inc();
        tracing::warn!(
            migration = name,
            error = chain(error),
            "failed to write a Migration"
        );
    }
}

async fn until(moment: Option<tokio::time::Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// The type of the job in the words of the first version.
fn job_type(result: cobalt_api::migration::MigrationResult) -> &'static str {
    use cobalt_api::migration::{JobType, MigrationResult};
    match result {
        MigrationResult::Succeeded => JobType::Success,
        MigrationResult::Failed => JobType::Failed,
        MigrationResult::Cancelled => JobType::Cancelled,
        MigrationResult::Unknown => JobType::Completed,
    }
    .as_str()
}
