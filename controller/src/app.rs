//! The process around controllers: flags, client, watches, leader election, health, metrics, and an
//! end in order.
//!
//! Every replica watches, so that the next leader knows the objects already; only the leader works.
//! A leader that loses its Lease ends with an error and is started anew. At the end the workers
//! finish what they have begun, and only then the Lease is let go of.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use cobalt_runtime::flags::{Listen, listen, some_text};
use cobalt_runtime::logging::{self, LogArgs};
use cobalt_runtime::{
    Change, ClientError, Health, LeaderConfig, LeaderError, Leadership, ObjectKey, Presence, Queue,
    Recorder, Reflection, Store, Tasks, Term, chain, client, lead, led, metrics, reflect, serve,
    shutdown_signal,
};
use futures::future::BoxFuture;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::controller::{Controller, Metrics, Runner};

/// Less than the grace that Kubernetes gives a pod.
const GRACE: Duration = Duration::from_secs(20);
/// The longest that all workers of a controller may be busy before the process counts as stuck.
const BUSY: Duration = Duration::from_secs(300);

/// The flags of every operator.
#[derive(Debug, Clone, clap::Args)]
pub struct AppArgs {
    /// One replica at a time acts, the others wait
    #[arg(
        long,
        env = "LEADER_ELECT",
        num_args = 0..=1,
        default_value_t = false,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub leader_elect: bool,

    /// The namespace of the Lease
    #[arg(long, env = "POD_NAMESPACE", default_value = "default", value_parser = some_text)]
    pub leader_elect_namespace: String,

    /// The name of this replica in the Lease and in Events [default: the name of the operator]
    #[arg(long, env = "POD_NAME", value_parser = some_text)]
    pub identity: Option<String>,

    /// Where /metrics is served; 0 for nowhere
    #[arg(long, env = "METRICS_BIND_ADDRESS", default_value = ":8080", value_parser = listen)]
    pub metrics_bind_address: Listen,

    /// Where /healthz and /readyz are served; 0 for nowhere
    #[arg(long, env = "HEALTH_PROBE_BIND_ADDRESS", default_value = ":8081", value_parser = listen)]
    pub health_probe_bind_address: Listen,

    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Why an operator ended. It has to be started anew.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The process could not start.
    #[error("failed to start")]
    Start(#[source] std::io::Error),
    /// There is no way to the API server.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A task has ended that never should.
    #[error("{0}")]
    Task(String),
    /// The Lease was lost, or cannot be had.
    #[error(transparent)]
    Leader(#[from] LeaderError),
    /// Leader election has ended by itself.
    #[error("leader election has failed")]
    Election(#[source] tokio::task::JoinError),
}

/// The main function of an operator: starts the log, the client and the process, lets `build` declare
/// watches and controllers, and runs until SIGTERM.
pub fn main(name: &'static str, args: AppArgs, build: impl FnOnce(&mut App)) -> ExitCode {
    logging::init(args.log.clone());
    match start(name, args, build) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = chain(&error), "ended");
            ExitCode::FAILURE
        }
    }
}

fn start(name: &'static str, args: AppArgs, build: impl FnOnce(&mut App)) -> Result<(), AppError> {
    // A second provider is refused and harmless.
    drop(rustls::crypto::ring::default_provider().install_default());
    // One thread: an operator waits for others nearly all of its life, and threads cost memory.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(AppError::Start)?;
    runtime.block_on(async {
        let cancel = shutdown_signal().map_err(AppError::Start)?;
        let mut app = App::new(name, args, client().await?, cancel);
        build(&mut app);
        tracing::info!(version = env!("CARGO_PKG_VERSION"), "started");
        Box::pin(app.run()).await
    })
}

/// Which objects of a kind are watched.
#[derive(Debug, Clone)]
pub struct Watch {
    /// The kind's name in logs and in /readyz.
    pub name: &'static str,
    /// Whether the kind may be absent.
    pub presence: Presence,
    /// The selectors.
    pub selection: watcher::Config,
}

type StartController = Box<dyn FnOnce(Health, CancellationToken) -> BoxFuture<'static, ()> + Send>;
type BeforeScrape = Box<dyn Fn() + Send + Sync>;

/// An operator while it is put together.
pub struct App {
    name: &'static str,
    args: AppArgs,
    identity: String,
    /// Asks for the Lease: it must write before it leads.
    candidate: Client,
    client: Client,
    term: Term,
    health: Health,
    registry: Registry,
    metrics: Metrics,
    recorder: Recorder,
    tasks: Tasks,
    cancel: CancellationToken,
    controllers: Vec<(&'static str, StartController)>,
    before_scrape: Vec<BeforeScrape>,
}

impl Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl App {
    /// An operator without watches and controllers. `name` is also the name of its Lease.
    #[must_use]
    pub fn new(
        name: &'static str,
        args: AppArgs,
        client: Client,
        cancel: CancellationToken,
    ) -> Self {
        let term = if args.leader_elect {
            Term::default()
        } else {
            Term::unlimited()
        };
        let (client, candidate) = (led(client.clone(), term.clone()), client);
        let identity = args.identity.clone().unwrap_or_else(|| name.to_owned());
        let (recorder, write_events) = Recorder::new(client.clone(), name, &identity);
        let mut tasks = Tasks::default();
        tasks.spawn("events", write_events);
        let mut registry = Registry::default();
        let metrics = Metrics::default();
        metrics.register(&mut registry);
        Self {
            name,
            args,
            identity,
            candidate,
            client,
            term,
            health: Health::default(),
            registry,
            metrics,
            recorder,
            tasks,
            cancel,
            controllers: Vec::new(),
            before_scrape: Vec::new(),
        }
    }

    /// A client that changes nothing unless this process leads.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Where controllers report Events.
    #[must_use]
    pub fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    /// Where metrics of the operator's own are registered.
    pub fn registry(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// Watches the objects of a kind. `trim` keeps what is needed of each; `tell` hears of each change
    /// of what is kept.
    pub fn watch<K, T>(
        &mut self,
        watch: Watch,
        api: Api<DeserializeGuard<K>>,
        trim: impl Fn(K) -> T + Send + 'static,
        tell: impl FnMut(&ObjectKey, Change<'_, T>) + Send + 'static,
    ) -> Store<T>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        T: PartialEq + Send + Sync + 'static,
    {
        let how = Reflection {
            name: watch.name,
            presence: watch.presence,
            health: self.health.clone(),
        };
        let cancel = self.cancel.clone();
        let (store, watching) = reflect(api, watch.selection, how, trim, tell, cancel);
        self.tasks.spawn(watch.name, watching);
        store
    }

    /// Adds a controller that works on the keys of `queue`, `workers` at a time, while this process
    /// leads.
    pub fn controller<C: Controller>(&mut self, controller: C, queue: Queue<C::Key>, workers: u16) {
        self.observe_queue(C::NAME, queue.clone());
        let runner = Runner {
            controller,
            queue,
            metrics: self.metrics.clone(),
            retries: Mutex::new(BTreeMap::new()),
        };
        let start: StartController = Box::new(move |health, cancel| {
            let pulse = health.pulse(C::NAME, BUSY);
            Box::pin(runner.run(workers.into(), pulse, cancel))
        });
        self.controllers.push((C::NAME, start));
    }

    fn observe_queue<K: cobalt_runtime::Key>(&mut self, name: &'static str, queue: Queue<K>) {
        let labels = [("controller".into(), name.into())];
        let registry = self.registry.sub_registry_with_labels(labels.into_iter());
        let (length, oldest) = (Gauge::<i64>::default(), Gauge::<i64>::default());
        let help = "Keys that are due and wait for a worker";
        registry.register("cobalt_controller_queue_length", help, length.clone());
        let help = "How long the key that waits longest has been due";
        registry.register(
            "cobalt_controller_queue_oldest_seconds",
            help,
            oldest.clone(),
        );
        self.before_scrape.push(Box::new(move || {
            length.set(i64::try_from(queue.len()).unwrap_or(i64::MAX));
            let age = queue.oldest().unwrap_or_default().as_secs();
            oldest.set(i64::try_from(age).unwrap_or(i64::MAX));
        }));
    }

    /// Runs until SIGTERM, or until the Lease is lost.
    ///
    /// # Errors
    ///
    /// When a task has ended that never should, or the Lease was lost.
    pub async fn run(mut self) -> Result<(), AppError> {
        let leading = Gauge::<i64>::default();
        let help = "Whether this process leads";
        self.registry
            .register("cobalt_controller_leader", help, leading.clone());
        self.serve();

        let (leads, leader) = watch::channel(Leadership::Unknown("not asked yet".to_owned()));
        // The Lease is let go of when the workers have ended, and not before.
        let (lease, lost) = (CancellationToken::new(), CancellationToken::new());
        let election = self.args.leader_elect.then(|| {
            let namespace = &self.args.leader_elect_namespace;
            let config = LeaderConfig::new(namespace, self.name, &self.identity);
            let (candidate, term) = (self.candidate.clone(), self.term.clone());
            let (lease, lost) = (lease.clone(), lost.clone());
            #[allow(
                clippy::disallowed_methods,
                reason = "it is awaited when the workers have ended"
            )]
            let election = tokio::spawn(async move {
                let end = lead(candidate, config, leads, term, lease).await;
                lost.cancel();
                end
            });
            election
        });
        for (name, start) in std::mem::take(&mut self.controllers) {
            let elects = self.args.leader_elect;
            let (mut leader, leading) = (leader.clone(), leading.clone());
            let (health, cancel) = (self.health.clone(), self.cancel.clone());
            self.tasks.spawn(name, async move {
                if elects {
                    let led = leader.wait_for(|leader| *leader == Leadership::Me);
                    // Told to end before it ever led.
                    let Some(Ok(_)) = cancel.run_until_cancelled(led).await else {
                        return;
                    };
                    tracing::info!(controller = name, "this process leads");
                }
                leading.set(1);
                start(health, cancel).await;
            });
        }
        // The writer of Events ends when the last recorder is gone: that of a controller.
        drop(self.recorder);
        let ended = tokio::select! {
            ended = self.tasks.run(self.cancel, GRACE) => ended.map_err(AppError::Task),
            // What has begun cannot be told from what the next leader does: end at once.
            () = lost.cancelled() => Ok(()),
        };
        lease.cancel();
        if let Some(election) = election {
            election.await.map_err(AppError::Election)??;
        }
        ended
    }

    fn serve(&mut self) {
        if let Some(address) = self.args.health_probe_bind_address {
            let (health, cancel) = (self.health.clone(), self.cancel.clone());
            self.tasks
                .spawn("health", serve(address, health, Router::new(), cancel));
        }
        if let Some(address) = self.args.metrics_bind_address {
            let registry = Arc::new(std::mem::take(&mut self.registry));
            let before: Arc<[BeforeScrape]> = std::mem::take(&mut self.before_scrape).into();
            let scrape = async move || {
                for refresh in &*before {
                    refresh();
                }
                (
                    [(CONTENT_TYPE, metrics::CONTENT_TYPE)],
                    metrics::text(&registry),
                )
            };
            let routes = Router::new().route("/metrics", get(scrape));
            let (health, cancel) = (self.health.clone(), self.cancel.clone());
            self.tasks
                .spawn("metrics", serve(address, health, routes, cancel));
        }
    }
}
