//! The migrations task at work: takes in events and what libvirt and the API server say, and has
//! written what follows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cobalt_api::migration::{Migration, MigrationEnd, MigrationResult, MigrationStatus};
use cobalt_libvirt::{Connection, Domain, Error, Event};
use cobalt_runtime::{chain, jitter};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::book::{Book, Reading};
use super::look::{self, Found};
use super::machine::{Aftermath, Now, Outgoing, Place, verdict};
use super::object::Known;
use super::signal;
use super::write::{Close, Said, Writer};
use super::{MigrationConfig, MigrationMetrics};
use crate::context::Context;

mod say;

/// How many old objects are deleted at a time.
const DELETIONS: usize = 50;
/// How long libvirt may take to answer about a job.
const LIBVIRT_DEADLINE: Duration = Duration::from_secs(5);
/// The writer of a migration away.
#[derive(Debug)]
struct Slot {
    name: String,
    said: watch::Sender<Said<MigrationStatus>>,
}

#[derive(Debug)]
pub(super) struct Engine {
    pub(super) ctx: Context,
    config: MigrationConfig,
    metrics: MigrationMetrics,
    writer: Writer,
    pub(super) book: Book,
    /// This node's objects as the API server has them.
    known: BTreeMap<String, Known>,
    /// The list as it is being read.
    listing: Option<BTreeMap<String, Known>>,
    pub(super) synced: bool,
    /// Ended before the API server was first reached.
    waiting: Vec<(Uuid, Outgoing)>,
    /// Objects that this process writes or has written.
    ours: BTreeSet<String>,
    slots: BTreeMap<Uuid, Slot>,
    /// The end of the last writer of an instance.
    ended: BTreeMap<Uuid, CancellationToken>,
    arrivals: BTreeMap<Uuid, watch::Sender<Said<MigrationEnd>>>,
    pub(super) tasks: JoinSet<()>,
}

impl Engine {
    pub(super) fn new(ctx: Context, config: MigrationConfig, metrics: MigrationMetrics) -> Self {
        Self {
            writer: Writer::new(&ctx, metrics.clone()),
            book: Book::new(config.write_interval),
            ctx,
            config,
            metrics,
            known: BTreeMap::new(),
            listing: None,
            synced: false,
            waiting: Vec::new(),
            ours: BTreeSet::new(),
            slots: BTreeMap::new(),
            ended: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Another agent takes over, or hands over: what runs is found again by a look at libvirt.
    pub(super) fn forget(&mut self) {
        self.book = Book::new(self.config.write_interval);
        self.slots.clear();
        self.arrivals.clear();
        self.waiting.clear();
        self.ours.clear();
        self.count();
    }

    fn connection(&self) -> Option<Connection> {
        let connection = self.ctx.libvirt.borrow().clone();
        connection.map(|connection| connection.with_call_timeout(LIBVIRT_DEADLINE))
    }

    /// An event of libvirt.
    pub(super) async fn event(&mut self, event: &Arc<Event>) {
        let Some((domain, signal)) = signal::read(event) else {
            return;
        };
        let acts = self.book.signal(domain, signal, now());
        self.act(acts);
        // A short migration is over before the next look.
        let ask = self.book.to_ask();
        self.sample_jobs(ask).await;
    }

    /// A look at everything that runs.
    pub(super) async fn sample(&mut self) {
        let leaving = self.book.to_sample();
        self.sample_jobs(leaving).await;
        let Some(connection) = self.connection() else {
            return;
        };
        let coming = self.book.to_look_at();
        let connection = &connection;
        let looks = coming
            .iter()
            .map(|domain| async move { (domain.uuid, look::arrival(connection, domain).await) });
        for (uuid, look) in futures::future::join_all(looks).await {
            match look {
                Ok(look) => {
                    let acts = self.book.look(uuid, look, now());
                    self.act(acts);
                }
                Err(error) => unanswered(uuid, &error),
            }
        }
    }

    async fn sample_jobs(&mut self, domains: Vec<Domain>) {
        let Some(connection) = self.connection() else {
            return;
        };
        let connection = &connection;
        let looks = domains
            .iter()
            .map(|domain| async move { (domain, look::job(connection, domain).await) });
        for (domain, reading) in futures::future::join_all(looks).await {
            match reading {
                Ok(Some(mut reading)) => {
                    if let Reading::NoJob(aftermath) = &mut reading {
                        aftermath.destination = self.destination_says(domain.uuid);
                    }
                    let acts = self.book.read(domain, reading, now());
                    self.act(acts);
                }
                Ok(None) => self.book.dismiss(domain.uuid),
                Err(error) => unanswered(domain.uuid, &error),
            }
        }
    }

    fn destination_says(&self, instance: Uuid) -> Option<MigrationResult> {
        let name = &self.slots.get(&instance)?.name;
        self.known.get(name)?.destination_result
    }

    /// A look at the jobs of all instances, and at objects whose migration is no more.
    pub(super) async fn scan(&mut self) {
        let Some(connection) = self.connection() else {
            return;
        };
        match look::scan(&connection).await {
            Ok(found) => {
                for found in found {
                    let acts = match found {
                        Found::Leaving(domain, sample) => {
                            self.book.read(&domain, Reading::Job(*sample), now())
                        }
                        Found::Coming(domain) => self.book.arriving(&domain, false, now()),
                    };
                    self.act(acts);
                }
            }
            Err(error) => {
                tracing::debug!(
                    error = chain(&error),
                    "failed to look at the jobs of instances"
                );
                return;
            }
        }
        if self.synced {
            self.close_vanished(&connection).await;
        }
    }

    /// Closes what ended while nobody looked.
    async fn close_vanished(&mut self, connection: &Connection) {
        let vanished: Vec<(String, Known)> = self
            .known
            .iter()
            .filter(|(name, known)| {
                known.finished.is_none()
                    && !self.ours.contains(*name)
                    && !self.book.leaves(known.instance)
            })
            .map(|(name, known)| (name.clone(), known.clone()))
            .collect();
        for (name, known) in vanished {
            let aftermath = match connection.lookup_by_uuid(known.instance).await {
                // That the scan did not find its job is no proof: it may have got no answer.
                Ok(domain) => match look::job(connection, &domain).await {
                    Ok(Some(Reading::Job(_))) => continue,
                    Ok(Some(Reading::NoJob(aftermath))) => Ok(aftermath),
                    Ok(None) => look::aftermath(connection, &domain).await,
                    Err(error) => Err(error),
                },
                Err(error) if error.is_no_domain() => Ok(Aftermath {
                    place: Place::Gone,
                    completed: None,
                    destination: None,
                }),
                Err(error) => Err(error),
            };
            match aftermath {
                Ok(mut aftermath) => {
                    aftermath.destination = known.destination_result;
                    let (result, error) = verdict(&aftermath);
                    self.ours.insert(name.clone());
                    tracing::info!(migration = name, %result, "closing a migration that nobody followed");
                    let close = Close {
                        name,
                        result,
                        error,
                    };
                    self.tasks.spawn(self.writer.clone().close(close));
                }
                Err(error) => unanswered(known.instance, &error),
            }
        }
    }

    /// An object of this node has changed.
    pub(super) fn seen(&mut self, event: watcher::Event<DeserializeGuard<Migration>>) {
        match event {
            watcher::Event::Init => self.listing = Some(BTreeMap::new()),
            watcher::Event::InitApply(object) => {
                let known = self.learn(object);
                if let Some(listing) = &mut self.listing {
                    listing.extend(known);
                }
            }
            watcher::Event::InitDone => {
                self.known = self.listing.take().unwrap_or_default();
                self.flush();
            }
            watcher::Event::Apply(object) => {
                let known = self.learn(object);
                self.known.extend(known);
            }
            watcher::Event::Delete(object) => {
                let name = object.name_any();
                self.known.remove(&name);
                self.ours.remove(&name);
            }
        }
    }

    fn learn(&mut self, object: DeserializeGuard<Migration>) -> Option<(String, Known)> {
        let name = object.name_any();
        let object = object.0.ok()?;
        let before = self.known.get(&name);
        let known = Known::of(&object, before, Instant::now())?;
        let slot = self.slots.get(&known.instance);
        if let (Some(slot), Some(node)) = (slot, &known.destination)
            && slot.name == name
        {
            self.book.destination(known.instance, node.clone(), now());
        }
        if known.amendable && before.is_none_or(|before| !before.amendable) {
            self.tasks.spawn(self.writer.clone().amend(name.clone()));
        }
        Some((name, known))
    }

    pub(super) fn sweep_interval(&self) -> Duration {
        jitter((self.config.ttl / 10).clamp(Duration::from_secs(1), Duration::from_secs(600)))
    }

    /// Deletes what has been there long enough.
    pub(super) fn sweep(&mut self) {
        let now = now();
        let due: Vec<String> = self
            .known
            .iter()
            .filter(|(_, known)| known.due(self.config.ttl, now))
            .map(|(name, _)| name.clone())
            .take(DELETIONS)
            .collect();
        if due.is_empty() {
            return;
        }
        let writer = self.writer.clone();
        self.tasks.spawn(async move {
            for name in due {
                writer.clone().delete(name).await;
            }
        });
    }
}

fn unanswered(instance: Uuid, error: &Error) {
    tracing::debug!(%instance, error = chain(error), "failed to look at a job");
}

fn now() -> Now {
    Now {
        instant: Instant::now(),
        wall: Timestamp::now(),
    }
}
