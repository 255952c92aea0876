//! Puts the agent together: makes the channels, starts the tasks, and ends with them.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cobalt_api::hypervisor::Hypervisor;
use cobalt_libvirt::Options;
use cobalt_runtime::{Health, Observed, Recorder, Tasks, client_with_token, serve, watch_object};
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;

use crate::ceph::{self, CephConfig, CephMetrics};
use crate::config::Config;
use crate::context::{Conditions, Context};
use crate::ha::{self, HaConfig, HaMetrics};
use crate::host::logind::DelayConfig;
use crate::host::{self, HostConfig, HostMetrics};
use crate::lease::{self, Holder, LeaseConfig, Term};
use crate::metrics::Metrics;
use crate::migrations::{self, MigrationConfig, MigrationMetrics};
use crate::secrets::{self, SecretsConfig};
use crate::tls::{self, TlsConfig, TlsMetrics};
use crate::virt::{self, Outputs, VirtConfig};
use crate::{report, scrape};

/// A reader that is further behind is told that it has missed some, and reads the state instead.
const EVENTS: usize = 1024;
/// Less than the grace that Kubernetes gives a pod.
const GRACE: Duration = Duration::from_secs(20);

/// Runs the agent until it is cancelled.
///
/// # Errors
///
/// When a task has ended that never should: the process has to be started anew.
pub async fn run(config: Config, client: Client, cancel: CancellationToken) -> Result<(), String> {
    let mut tasks = Tasks::default();
    let mut registry = Registry::default();
    let metrics = Metrics::default();
    metrics.register(&mut registry);

    let (recorder, write_events) = Recorder::new(client.clone(), "cobalt-node-agent", &config.node);
    tasks.spawn("events", write_events);
    let (hypervisor_seen, hypervisor) = watch::channel(Observed::Unknown(
        "the API server has not answered yet".to_owned(),
    ));
    let node: Arc<str> = config.node.as_str().into();
    let (connection, libvirt) = watch::channel(None);
    let (domains_read, domains) = watch::channel(Arc::default());
    let (inventory_read, inventory) = watch::channel(None);
    let (holder_seen, holder) = watch::channel(Holder::Unknown);
    let (term_seen, term) = watch::channel(Term::new(config.lease_duration, Instant::now()));
    let ctx = Context {
        node: Arc::clone(&node),
        node_label: config.node_label().into(),
        namespace: config.namespace.as_str().into(),
        client: client.clone(),
        libvirt,
        events: broadcast::Sender::new(EVENTS),
        hypervisor,
        domains,
        conditions: Conditions::default(),
        operating_system: Arc::new(watch::Sender::new(None)),
        update_status: Arc::new(watch::Sender::new(None)),
        recorder,
        health: Health::default(),
    };

    tasks.spawn("hypervisor", async move {
        watch_object::<Hypervisor>(Api::all(client), &node, hypervisor_seen).await;
    });
    let outputs = Outputs {
        connection,
        events: ctx.events.clone(),
        inventory: inventory_read,
        domains: domains_read,
        conditions: ctx.conditions.clone(),
        metrics: metrics.clone(),
        health: ctx.health.clone(),
    };
    tasks.spawn(
        "libvirt",
        virt::run(virt_config(&config), outputs, cancel.clone()),
    );
    tasks.spawn(
        "report",
        report::run(
            ctx.clone(),
            inventory,
            holder.clone(),
            metrics.clone(),
            cancel.clone(),
        ),
    );
    tasks.spawn(
        "lease",
        lease::run(
            ctx.clone(),
            lease_config(&config),
            holder_seen,
            term_seen,
            metrics.clone(),
            cancel.clone(),
        ),
    );
    let migration_metrics = MigrationMetrics::default();
    migration_metrics.register(&mut registry);
    let migration_config = MigrationConfig {
        write_interval: config.migration_write_interval,
        ttl: config.migration_ttl,
    };
    tasks.spawn(
        "migrations",
        migrations::run(
            ctx.clone(),
            migration_config,
            holder.clone(),
            migration_metrics,
            cancel.clone(),
        ),
    );
    let ha_metrics = HaMetrics::default();
    ha_metrics.register(&mut registry);
    tasks.spawn(
        "ha",
        ha::run(
            ctx.clone(),
            ha_config(&config),
            holder,
            term,
            ha_metrics,
            cancel.clone(),
        ),
    );
    let host_metrics = HostMetrics::default();
    host_metrics.register(&mut registry);
    tasks.spawn(
        "host",
        host::run(
            ctx.clone(),
            host_config(&config),
            host_metrics,
            cancel.clone(),
        ),
    );
    let (secrets_output, secrets) = secrets::channel();
    let secrets_config = SecretsConfig::new(config.secrets_account_prefix.clone());
    tasks.spawn(
        "secrets",
        secrets::run(
            ctx.clone(),
            secrets_config,
            client_with_token,
            secrets_output,
            cancel.clone(),
        ),
    );
    let tls_metrics = TlsMetrics::default();
    tls_metrics.register(&mut registry);
    tasks.spawn(
        "tls",
        tls::run(
            ctx.clone(),
            tls_config(&config),
            secrets.clone(),
            tls_metrics,
            cancel.clone(),
        ),
    );
    let ceph_metrics = CephMetrics::default();
    ceph_metrics.register(&mut registry);
    tasks.spawn(
        "ceph",
        ceph::run(
            ctx.clone(),
            ceph_config(&config),
            secrets,
            ceph_metrics,
            cancel.clone(),
        ),
    );
    if let Some(address) = config.health_probe_bind_address {
        let served = serve(
            address,
            ctx.health.clone(),
            axum::Router::new(),
            cancel.clone(),
        );
        tasks.spawn("health", served);
    }
    if let Some(address) = config.metrics_bind_address {
        let routes = scrape::routes(ctx.clone(), Arc::new(registry));
        tasks.spawn(
            "metrics",
            serve(address, ctx.health.clone(), routes, cancel.clone()),
        );
    }
    drop(ctx);
    tasks.run(cancel, GRACE).await
}

fn virt_config(config: &Config) -> VirtConfig {
    VirtConfig {
        uri: config
            .libvirt_uri
            .clone()
            .with_socket(&config.libvirt_socket),
        options: Options {
            call_timeout: config.libvirt_timeout,
            ..Options::default()
        },
        resync: config.resync_interval,
    }
}

fn lease_config(config: &Config) -> LeaseConfig {
    let identity = config.identity.clone().unwrap_or_else(|| {
        // The keys of a new RandomState are random enough to tell two processes apart.
        let random = RandomState::new().hash_one(std::process::id());
        format!("{}-{random:016x}", config.node)
    });
    LeaseConfig {
        identity,
        renew: config.lease_renew_interval,
        duration: config.lease_duration,
    }
}

fn ha_config(config: &Config) -> HaConfig {
    HaConfig {
        policy: config.ha_policy,
        restarts: config.ha_restarts,
        window: config.ha_window,
        brake: config.ha_brake,
        ..HaConfig::default()
    }
}

fn host_config(config: &Config) -> HostConfig {
    HostConfig {
        update_retry: config.update_retry_interval,
        shutdown_delay: config.shutdown_delay.map(|delay| DelayConfig {
            folder: config.logind_folder.clone(),
            delay,
        }),
        ..HostConfig::new(config.bus_address.clone(), config.os_release.clone())
    }
}

fn tls_config(config: &Config) -> TlsConfig {
    TlsConfig {
        pki_path: config.pki_path.clone(),
        qemu_group: config.qemu_group,
        admin_socket: config.libvirt_admin_socket.clone(),
        tls_address: config.libvirt_tls_address,
        host_ip: config.host_ip,
        issuer_name: config.issuer_name.clone(),
    }
}

fn ceph_config(config: &Config) -> CephConfig {
    CephConfig {
        secret_name: config.ceph_secret_name.clone(),
        uuid: config.ceph_secret_uuid,
    }
}
