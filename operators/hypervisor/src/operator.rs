//! Puts the operator together: one watch per kind, the view of Nova, the queue and its workers.
//!
//! All of it runs in every replica, so that the next leader knows the fleet already; only the leader
//! has workers. A leader that loses its Lease ends with an error and is started anew.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use cobalt_api::eviction::Eviction;
use cobalt_api::hypervisor::Hypervisor;
use cobalt_api::migration::Migration;
use cobalt_api::names::{labels, leases};
use cobalt_api::ovsnode::OvsNode;
use cobalt_openstack::{Client as OpenStack, Config as OpenStackConfig, Gate, Source};
use cobalt_runtime::{
    Change, Health, LeaderConfig, Leadership, ObjectKey, Presence, Queue, Recorder, Reflection,
    Store, Tasks, Term, lead, led, metrics as text, reflect, serve, work,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::core::{DeserializeGuard, DynamicObject};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::act::Hands;
use crate::clock;
use crate::config::{Config, Programs, selector_keys};
use crate::eviction::engine::Engine;
use crate::fleet::Watched;
use crate::heartbeat::{Beat, Heartbeats};
use crate::host::Settings;
use crate::kept::{Kept, Partition, Row};
use crate::metrics::{Metrics, Scrape};
use crate::mirror::{self, MirrorConfig, MirrorMetrics, Trouble};
use crate::node_objects::NodeObjects;
use crate::objects::{
    AccessConfig, CertificateConfig, HoldPod, Kind, LifecycleConfig, ObjectsConfig,
};
use crate::reconcile::{Caches, Reconciler};
use crate::surplus::{Counts, Surplus};
use crate::testbed::{self, TestConfig};
use crate::{cache, eviction, objects};

/// Less than the grace that Kubernetes gives a pod.
const GRACE: Duration = Duration::from_secs(20);
/// How often a kind that may be absent is looked for.
const OPTIONAL: Duration = Duration::from_secs(60);
/// How long the first turns wait for the first look at Nova: without it, each host that waits for
/// Nova would be written twice at every start.
const FIRST_LOOK: Duration = Duration::from_secs(10);
/// How often heartbeats are looked at.
const LATE: Duration = Duration::from_secs(5);
/// The longest that all workers may be busy: some calls of OpenStack, with their retries.
const BUSY: Duration = Duration::from_secs(300);

/// Runs the operator until it is cancelled.
///
/// # Errors
///
/// When a task has ended that never should, or the Lease was lost: the process has to be started
/// anew.
pub async fn run(config: Config, client: Client, cancel: CancellationToken) -> anyhow::Result<()> {
    let mut tasks = Tasks::default();
    let term = if config.leader_elect {
        Term::default()
    } else {
        Term::unlimited()
    };
    // The Lease itself is asked for by one who does not lead yet.
    let (client, candidate) = (led(client.clone(), term.clone()), client);
    let health = Health::default();
    let mut registry = Registry::default();
    let metrics = Metrics::default();
    metrics.register(&mut registry);
    let copies = MirrorMetrics::default();
    copies.register(registry.sub_registry_with_prefix("cobalt_operator"));
    let instance = config
        .identity
        .clone()
        .unwrap_or_else(|| "operator".to_owned());
    let (recorder, write_events) =
        Recorder::new(client.clone(), "cobalt-hypervisor-operator", &instance);
    tasks.spawn("events", write_events);

    let openstack = openstack(&config, &metrics, term.clone());
    let fleet = Watched::new(config.nova_interval * 3 + Duration::from_secs(60));
    let (found, testbed) =
        watch::channel(Err("the test project has not been looked up yet".to_owned()));
    let settings = Arc::new(settings(&config));
    let queue: Queue<Arc<str>> = Queue::new();
    let mut watches = Watches {
        client: client.clone(),
        selector: config.label_selector.clone(),
        partition: Partition::default(),
        health: health.clone(),
        queue: queue.clone(),
        tasks: &mut tasks,
        cancel: cancel.clone(),
    };
    let (caches, evicting, crowded) = watches.caches(&settings);
    let heartbeats = Heartbeats::default();
    watches.heartbeats(&heartbeats);
    let node_objects = watches.node_objects(objects_config(&config));

    let policy = config.eviction.policy();
    let (begin, begun) = mpsc::channel(eviction::engine::MOST_BEGUN);
    let engine = Arc::new(Engine {
        client: client.clone(),
        evictions: caches.evictions.clone(),
        hypervisors: caches.hypervisors.clone(),
        hands: eviction::hands::Hands {
            client: client.clone(),
            openstack: openstack.clone(),
            fleet: fleet.clone(),
            hypervisors: caches.hypervisors.clone(),
            term: term.clone(),
            groups: Arc::default(),
            stall: policy.stall,
        },
        policy: Arc::new(policy),
        has_all: config.label_selector.is_empty(),
        queue: evicting.clone(),
        begun: begin,
        recorder: recorder.clone(),
        metrics: metrics.clone(),
        ledger: Mutex::default(),
        memory: Mutex::default(),
    });
    watches.migrations(&engine);
    let hands = Hands {
        client: client.clone(),
        openstack: openstack.clone(),
        fleet: fleet.clone(),
        term: term.clone(),
        testbed,
        agent_namespaces: config.agent_namespaces.clone().into(),
        evicting: evicting.clone(),
    };
    let surplus = Arc::new(Surplus {
        client: client.clone(),
        evictions: caches.evictions.clone(),
        hypervisors: caches.hypervisors.clone(),
        recorder: recorder.clone(),
        metrics: metrics.clone(),
    });
    let reconciler = Arc::new(Reconciler {
        client: client.clone(),
        caches: caches.clone(),
        hands,
        settings,
        queue: queue.clone(),
        recorder,
        metrics: metrics.clone(),
        objects: node_objects,
        heartbeats: heartbeats.clone(),
        memory: Mutex::default(),
    });
    let (late, stop) = (queue.clone(), cancel.clone());
    tasks.spawn("heartbeats", async move {
        stop.run_until_cancelled(wake_late(heartbeats, late)).await;
    });

    let waking = wake_all(
        fleet.clone(),
        caches.clone(),
        queue.clone(),
        Arc::clone(&engine),
    );
    let stop = cancel.clone();
    tasks.spawn("wake", async move {
        stop.run_until_cancelled(waking).await;
    });
    let pulse = health.pulse("nova", config.nova_interval * 2 + Duration::from_secs(300));
    tasks.spawn(
        "nova",
        fleet.clone().run(
            openstack.clone(),
            config.nova_interval,
            health.clone(),
            pulse,
            cancel.clone(),
        ),
    );
    if !config.skip_tests {
        let test = test_config(&config);
        tasks.spawn(
            "testbed",
            testbed::run(
                openstack.clone(),
                test,
                found,
                health.clone(),
                cancel.clone(),
            ),
        );
    }
    if let Some(address) = config.health_probe_bind_address {
        tasks.spawn(
            "health",
            serve(address, health.clone(), axum::Router::new(), cancel.clone()),
        );
    }
    if let Some(address) = config.metrics_bind_address {
        let scrape = Scrape {
            registry: Arc::new(registry),
            hypervisors: caches.hypervisors.clone(),
            evictions: caches.evictions.clone(),
            queue: queue.clone(),
            fleet: fleet.clone(),
            openstack: openstack.clone(),
        };
        let routes = axum::Router::new().route(
            "/metrics",
            get(async move || {
                (
                    [(CONTENT_TYPE, text::CONTENT_TYPE)],
                    scrape.text(clock::now()),
                )
            }),
        );
        tasks.spawn(
            "metrics",
            serve(address, health.clone(), routes, cancel.clone()),
        );
    }

    let (leading, leader) = watch::channel(Leadership::Unknown("not asked yet".to_owned()));
    // The Lease is let go of when the workers have ended, and not before.
    let lease = CancellationToken::new();
    let lost = CancellationToken::new();
    let mirror = mirror_config(&config, term.clone());
    let election = config.leader_elect.then(|| {
        let (lease, lost) = (lease.clone(), lost.clone());
        let config = leader_config(&config, &instance);
        #[allow(
            clippy::disallowed_methods,
            reason = "it is awaited when the workers have ended"
        )]
        let task = tokio::spawn(async move {
            let end = lead(candidate, config, leading, term, lease).await;
            lost.cancel();
            end
        });
        task
    });
    if let Some(mirror) = mirror {
        let leader = leader.clone();
        let (client, health, stop) = (client.clone(), health.clone(), cancel.clone());
        let elects = config.leader_elect;
        tasks.spawn("mirror", async move {
            if elects && !leads(leader, &stop).await {
                return;
            }
            mirror::run(mirror, client, health, Trouble::default(), copies, stop).await;
        });
    }
    let watched = health.clone();
    let workers = usize::from(config.workers);
    let elects = config.leader_elect;
    let stop = cancel.clone();
    let mut rounds = fleet.rounds();
    tasks.spawn("workers", async move {
        if elects {
            if !leads(leader, &stop).await {
                return;
            }
            tracing::info!("this process leads");
        }
        reconciler.metrics.leader.set(1);
        let ready = async {
            reconciler.caches.nodes.until_ready().await;
            reconciler.caches.hypervisors.until_ready().await;
            reconciler.caches.evictions.until_ready().await;
            reconciler.objects.until_ready().await;
            let looked = rounds.wait_for(|round| *round > 0);
            drop(tokio::time::timeout(FIRST_LOOK, looked).await);
        };
        // Watches that were told to end are never ready.
        if stop.run_until_cancelled(ready).await.is_none() {
            return;
        }
        engine.recall();
        let pulse = watched.pulse("workers", BUSY);
        let hosts = work(queue, workers, pulse, stop.clone(), move |name| {
            let reconciler = Arc::clone(&reconciler);
            async move { reconciler.turn(name).await }
        });
        let pulse = watched.pulse("evictions", BUSY);
        let evictions = work(evicting, workers, pulse, stop.clone(), move |name| {
            let engine = Arc::clone(&engine);
            async move { engine.turn(name).await }
        });
        let pulse = watched.pulse("surplus", BUSY);
        let surplus = work(crowded, 1, pulse, stop, move |name| {
            let surplus = Arc::clone(&surplus);
            async move { surplus.turn(name).await }
        });
        let over = CancellationToken::new();
        let actions = eviction::engine::supervise(begun, over.clone());
        let turns = async {
            tokio::join!(hosts, evictions, surplus);
            over.cancel();
        };
        tokio::join!(turns, actions);
    });
    let ended = tokio::select! {
        ended = tasks.run(cancel, GRACE) => ended.map_err(anyhow::Error::msg),
        // What has been begun cannot be kept apart from what the next leader does: end at once.
        () = lost.cancelled() => Ok(()),
    };
    lease.cancel();
    if let Some(election) = election {
        election
            .await
            .context("leader election has ended by itself")??;
    }
    ended
}

/// Waits until this process leads; `false` if it is told to end before.
async fn leads(mut leader: watch::Receiver<Leadership>, stop: &CancellationToken) -> bool {
    tokio::select! {
        led = leader.wait_for(|leader| *leader == Leadership::Me) => led.is_ok(),
        () = stop.cancelled() => false,
    }
}

fn mirror_config(config: &Config, term: Term) -> Option<MirrorConfig> {
    Some(MirrorConfig {
        kubeconfig: config.mirror_kubeconfig.clone()?,
        name: config.mirror_name.clone(),
        interval: config.mirror_interval,
        label_selector: config.label_selector.clone(),
        term,
    })
}

fn openstack(config: &Config, metrics: &Metrics, term: Term) -> OpenStack {
    let mut source = Source::environment();
    if let Some(directory) = &config.openstack_directory {
        source = source.with_directory(directory);
    }
    OpenStack::new(OpenStackConfig {
        observer: Arc::new(metrics.clone()),
        gate: Some(Gate::new(move || term.holds())),
        ..OpenStackConfig::new(source)
    })
}

fn settings(config: &Config) -> Settings {
    Settings {
        test_aggregate: config.test_aggregate.clone(),
        test_deadline: config.test_deadline,
        test_attempts: config.test_attempts,
        skip_tests: config.skip_tests,
        test_volume: !config.test_volume_type.is_empty(),
        selector_labels: selector_keys(&config.label_selector),
    }
}

fn test_config(config: &Config) -> TestConfig {
    TestConfig {
        project: config.test_project.clone(),
        domain: config.test_project_domain.clone(),
        image: config.test_image.clone(),
        flavor: config.test_flavor.clone(),
        network: config.test_network.clone(),
        volume_type: config.test_volume_type.clone(),
        volume_gib: config.test_volume_gib,
    }
}

fn objects_config(config: &Config) -> ObjectsConfig {
    let image = &config.lifecycle_image;
    ObjectsConfig {
        certificate: (!config.certificate_namespace.is_empty()).then(|| CertificateConfig {
            namespace: config.certificate_namespace.clone(),
            issuer_name: config.certificate_issuer_name.clone(),
        }),
        access: (!config.secrets_account_prefix.is_empty()).then(|| AccessConfig {
            namespace: config.secrets_namespace.clone(),
            prefix: config.secrets_account_prefix.clone(),
            ceph_secret: config.ceph_secret_name.clone(),
        }),
        lifecycle: LifecycleConfig {
            namespace: config.lifecycle_namespace.clone(),
            pod: (!image.is_empty()).then(|| match config.lifecycle_programs {
                Programs::Own => HoldPod::own(image.clone()),
                Programs::Busybox => HoldPod::busybox(image.clone()),
            }),
        },
    }
}

/// The Lease of the deployed operator, so that the two never lead at the same time; a partition has
/// its own.
fn leader_config(config: &Config, instance: &str) -> LeaderConfig {
    let name = if config.label_selector.is_empty() {
        leases::HYPERVISOR_OPERATOR.to_owned()
    } else {
        let text = format!("{}-{}", leases::HYPERVISOR_OPERATOR, config.label_selector);
        let digest = Sha256::digest(text.as_bytes());
        let digest: String = digest
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        digest
    };
    LeaderConfig::new(&config.leader_elect_namespace, &name, instance)
}

/// Hosts whose part of Nova has changed get a turn after each round.
async fn wake_all(fleet: Watched, caches: Caches, queue: Queue<Arc<str>>, engine: Arc<Engine>) {
    let mut rounds = fleet.rounds();
    let mut before = None;
    while rounds.changed().await.is_ok() {
        engine.wake();
        let now = fleet.get(clock::now()).ok();
        let old = std::mem::replace(&mut before, now.clone());
        for (key, row) in caches.hypervisors.all() {
            let names = row.names(key.name());
            let changed = match (&old, &now) {
                (Some(old), Some(now)) => old.differs_for(now, &names),
                (None, Some(_)) => true,
                // Those that wait say why.
                (_, None) => false,
            };
            if changed || row.waits {
                queue.add(key.name().into());
            }
        }
    }
}

/// Hosts whose node agents have become silent get a turn.
async fn wake_late(heartbeats: Heartbeats, queue: Queue<Arc<str>>) {
    loop {
        tokio::time::sleep(LATE).await;
        for host in heartbeats.newly_late(Instant::now()) {
            queue.add(host);
        }
    }
}

/// Makes the watches: one per kind.
struct Watches<'a> {
    client: Client,
    selector: String,
    /// Whose objects are kept. The watches that find that out begin before it is set.
    partition: Partition,
    health: Health,
    queue: Queue<Arc<str>>,
    tasks: &'a mut Tasks,
    cancel: CancellationToken,
}

impl Watches<'_> {
    /// The caches, where hosts with Evictions wait for their turn, and where those with too many.
    fn caches(&mut self, settings: &Arc<Settings>) -> (Caches, Queue<Arc<str>>, Queue<Arc<str>>) {
        let mut nodes = labels::VIRT_DRIVER.to_owned();
        if !self.selector.is_empty() {
            nodes = format!("{nodes},{}", self.selector);
        }
        let settings = Arc::clone(settings);
        let nodes = self.start::<Node, _>(
            "nodes",
            Presence::Required,
            Api::all(self.client.clone()),
            &nodes,
            move |node| Kept::new(&cache::node(node, &settings)),
            |key, _| Some(key.name().into()),
        );
        let selector = self.selector.clone();
        let hypervisors = self.start::<Hypervisor, _>(
            "hypervisors",
            Presence::Required,
            Api::all(self.client.clone()),
            &selector,
            |hypervisor| Row::new(&cache::hypervisor(hypervisor)),
            |key, _| Some(key.name().into()),
        );
        let (evicting, crowded) = (Queue::new(), Queue::new());
        let evictions = self.evictions(evicting.clone(), crowded.clone());
        if !selector.is_empty() {
            self.partition = Partition::chosen(&nodes, &hypervisors);
        }
        let partition = self.partition.clone();
        let ovs = self.start::<OvsNode, _>(
            "ovsnodes",
            Presence::Optional(OPTIONAL),
            Api::all(self.client.clone()),
            "",
            move |ovs| {
                if partition.has(&ovs.name_any()) {
                    Kept::new(&cache::ovs(ovs))
                } else {
                    Kept::of_another()
                }
            },
            |key, ovs| ovs.is_ours().then(|| key.name().into()),
        );
        let caches = Caches {
            nodes,
            hypervisors,
            evictions,
            ovs,
        };
        (caches, evicting, crowded)
    }

    /// Hosts with Evictions get a turn, and those with too many of them.
    fn evictions(
        &mut self,
        evicting: Queue<Arc<str>>,
        crowded: Queue<Arc<str>>,
    ) -> Store<Eviction> {
        let how = Reflection {
            name: "evictions",
            presence: Presence::Required,
            health: self.health.clone(),
        };
        let queue = self.queue.clone();
        let mut counts = Counts::default();
        let tell = move |key: &ObjectKey, change: Change<'_, Eviction>| {
            let eviction = match &change {
                Change::Applied { now, .. } => now,
                Change::Deleted { before } => before,
            };
            let host = eviction.spec.hypervisor.as_str();
            match &change {
                Change::Applied { before: None, .. } => {
                    if counts.add(host) {
                        crowded.add(host.into());
                    }
                }
                Change::Applied { .. } => {}
                Change::Deleted { .. } => counts.remove(host),
            }
            let host: Arc<str> = host.into();
            evicting.add(Arc::clone(&host));
            // The host's own turn looks at its Evictions because of a shutdown, whatever their names.
            queue.add(host);
            queue.add(key.name().into());
        };
        let api: Api<DeserializeGuard<Eviction>> = Api::all(self.client.clone());
        let selection = watcher::Config::default();
        let trim = cache::eviction;
        let (store, watching) = reflect(api, selection, how, trim, tell, self.cancel.clone());
        self.tasks.spawn("evictions-watch", watching);
        store
    }

    /// Heartbeats wake nobody: only one that was late does.
    fn heartbeats(&mut self, heartbeats: &Heartbeats) {
        let partition = self.partition.clone();
        let queue = self.queue.clone();
        let heartbeats = heartbeats.clone();
        let how = Reflection {
            name: "heartbeats",
            presence: Presence::Required,
            health: self.health.clone(),
        };
        let api: Api<DeserializeGuard<Lease>> =
            Api::namespaced(self.client.clone(), leases::NODE_AGENT_NAMESPACE);
        let trim = move |lease: Lease| partition.has(&lease.name_any()).then(|| Beat::of(&lease));
        let tell = move |key: &ObjectKey, change: Change<'_, Option<Beat>>| match change {
            Change::Applied { now, .. } => {
                if let Some(beat) = &**now
                    && heartbeats.saw(key.name(), beat.clone(), Instant::now())
                {
                    queue.add(key.name().into());
                }
            }
            Change::Deleted { .. } => heartbeats.forget(key.name()),
        };
        let selection = watcher::Config::default();
        let (_, watching) = reflect(api, selection, how, trim, tell, self.cancel.clone());
        let (partition, cancel) = (self.partition.clone(), self.cancel.clone());
        self.tasks.spawn("heartbeats-watch", async move {
            cancel.run_until_cancelled(partition.until_known()).await;
            watching.await;
        });
    }

    /// What the agents say of migrations goes to who waits for them, and is kept nowhere.
    fn migrations(&mut self, engine: &Arc<Engine>) {
        let engine = Arc::clone(engine);
        self.start::<Migration, _>(
            "migrations",
            Presence::Optional(OPTIONAL),
            Api::all(self.client.clone()),
            "",
            cache::migration,
            move |_, migration| {
                if let Some((host, instance, heard)) = migration {
                    engine.heard(host, instance, clock::now(), heard);
                }
                None
            },
        );
    }

    fn node_objects(&mut self, config: ObjectsConfig) -> NodeObjects {
        let client = self.client.clone();
        let lifecycle = config.lifecycle.namespace.clone();
        let disruption_budgets = self.start(
            "poddisruptionbudgets",
            Presence::Required,
            Api::namespaced(client.clone(), &lifecycle),
            &Kind::PodDisruptionBudget.selector(),
            self.ours(objects::trim_disruption_budget),
            owner,
        );
        let deployments = self.start(
            "deployments",
            Presence::Required,
            Api::namespaced(client.clone(), &lifecycle),
            &Kind::Deployment.selector(),
            self.ours(objects::trim_deployment),
            owner,
        );
        let access = config
            .access
            .as_ref()
            .map(|access| access.namespace.clone());
        let service_accounts = access.as_ref().map(|namespace| {
            self.start(
                "serviceaccounts",
                Presence::Required,
                Api::namespaced(client.clone(), namespace),
                &Kind::ServiceAccount.selector(),
                self.ours(objects::trim_service_account),
                owner,
            )
        });
        let roles = access.as_ref().map(|namespace| {
            self.start(
                "roles",
                Presence::Required,
                Api::namespaced(client.clone(), namespace),
                &Kind::Role.selector(),
                self.ours(objects::trim_role),
                owner,
            )
        });
        let role_bindings = access.as_ref().map(|namespace| {
            self.start(
                "rolebindings",
                Presence::Required,
                Api::namespaced(client.clone(), namespace),
                &Kind::RoleBinding.selector(),
                self.ours(objects::trim_role_binding),
                owner,
            )
        });
        let certificates = config.certificate.as_ref().map(|certificate| {
            let kind = Kind::Certificate;
            self.start::<DynamicObject, _>(
                "certificates",
                Presence::Optional(OPTIONAL),
                Api::namespaced_with(client.clone(), &certificate.namespace, &kind.resource()),
                &kind.selector(),
                self.ours(objects::trim_certificate),
                owner,
            )
        });
        NodeObjects {
            config,
            service_accounts,
            roles,
            role_bindings,
            disruption_budgets,
            deployments,
            certificates,
            health: self.health.clone(),
            no_cert_manager: Mutex::default(),
        }
    }

    /// Keeps what belongs to hosts of ours.
    fn ours<K>(&self, trim: fn(K) -> K) -> impl Fn(K) -> Kept<K> + Send + 'static
    where
        K: ResourceExt + Serialize + DeserializeOwned + 'static,
    {
        let partition = self.partition.clone();
        move |whole| Kept::owned(&trim(whole), &partition)
    }

    /// One watch. `host` says which host a changed object is about.
    fn start<K, T>(
        &mut self,
        name: &'static str,
        presence: Presence,
        api: Api<DeserializeGuard<K>>,
        selector: &str,
        trim: impl Fn(K) -> T + Send + 'static,
        host: impl Fn(&ObjectKey, &T) -> Option<Arc<str>> + Send + 'static,
    ) -> Store<T>
    where
        K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
        T: PartialEq + Send + Sync + 'static,
    {
        let queue = self.queue.clone();
        let mut selection = watcher::Config::default();
        if !selector.is_empty() {
            selection = selection.labels(selector);
        }
        let how = Reflection {
            name,
            presence,
            health: self.health.clone(),
        };
        let tell = move |key: &ObjectKey, change: Change<'_, T>| {
            let object = match change {
                Change::Applied { now, .. } => now,
                Change::Deleted { before } => before,
            };
            if let Some(host) = host(key, object) {
                queue.add(host);
            }
        };
        let (store, watching) = reflect(api, selection, how, trim, tell, self.cancel.clone());
        let (partition, cancel) = (self.partition.clone(), self.cancel.clone());
        self.tasks.spawn(name, async move {
            cancel.run_until_cancelled(partition.until_known()).await;
            watching.await;
        });
        store
    }
}

/// The Node that an object belongs to.
fn owner<K>(_: &ObjectKey, object: &Kept<K>) -> Option<Arc<str>> {
    object.node()
}
