//! Puts the agent together: makes the channels, starts the tasks, and ends with them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cobalt_api::ovsnode::OvsNode;
use cobalt_ovs::{Keepalive, Options};
use cobalt_runtime::{Health, Observed, Recorder, Tasks, serve, watch_object};
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::diagnostics::access::Access;
use crate::diagnostics::capture::Captures;
use crate::diagnostics::questions::Questions;
use crate::diagnostics::server::{self, Identity, Services};
use crate::metrics::Metrics;
use crate::observe::Link;
use crate::observe::daemon::{self, Daemon, DaemonConfig};
use crate::observe::flows::{self, FlowsConfig};
use crate::observe::southbound::{self, SouthboundConfig};
use crate::observe::switch::{self, Outputs};
use crate::report::{self, Inputs, ReportConfig};
use crate::{scrape, settings};

/// Less than the grace that Kubernetes gives a pod.
const GRACE: Duration = Duration::from_secs(20);
/// The local database is asked after so much silence, and given up after as much again.
const LOCAL_KEEPALIVE: Keepalive = Keepalive {
    interval: Duration::from_secs(3),
    count: 2,
};

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
    let health = Health::default();

    let (recorder, write_events) = Recorder::new(client.clone(), "cobalt-ovs-agent", &config.node);
    tasks.spawn("events", write_events);
    let node: Arc<str> = config.node.as_str().into();
    let (node_seen, ovs_node) = watch::channel(Observed::Unknown(
        "the API server has not answered yet".to_owned(),
    ));
    let api = Api::namespaced(client.clone(), &config.namespace);
    let name = Arc::clone(&node);
    tasks.spawn("ovsnode", async move {
        watch_object::<OvsNode>(api, &name, node_seen).await;
    });

    let flags = config.settings.settings();
    let (settings_read, settings) = watch::channel(flags);
    let followed = settings::run(
        flags,
        config.settings_dir.clone(),
        settings_read,
        cancel.clone(),
    );
    tasks.spawn("settings", followed);

    let (link, database) = watch::channel(Link::Unknown);
    let (switch_seen, switch) = watch::channel(None);
    let (connected, connection) = watch::channel(None);
    let outputs = Outputs {
        link,
        switch: switch_seen,
        connection: connected,
    };
    let local = Options {
        keepalive: Some(LOCAL_KEEPALIVE),
        ..Options::default()
    };
    tasks.spawn(
        "ovsdb",
        switch::run(
            config.database(),
            local,
            outputs,
            metrics.clone(),
            health.clone(),
            cancel.clone(),
        ),
    );

    let mut ask = |program: &'static str, of_ovn: bool| {
        let (seen, daemon) = watch::channel(Daemon::Unknown);
        let directory = if of_ovn {
            &config.ovn_rundir
        } else {
            &config.ovs_rundir
        };
        let asked = DaemonConfig {
            directory: directory.clone(),
            program,
            southbound: of_ovn,
            interval: config.probe_interval,
        };
        let asking = daemon::run(asked, settings.clone(), seen, cancel.clone());
        tasks.spawn(program, asking);
        daemon
    };
    let vswitchd = ask("ovs-vswitchd", false);
    let ovsdb_server = ask("ovsdb-server", false);
    let ovn_controller = ask("ovn-controller", true);

    let (flows_read, flows) = watch::channel(Arc::default());
    let flows_config = FlowsConfig {
        directory: config.ovs_rundir.clone(),
        interval: config.flow_interval,
    };
    tasks.spawn(
        "flows",
        flows::run(
            flows_config,
            switch.clone(),
            settings.clone(),
            flows_read,
            metrics.clone(),
            cancel.clone(),
        ),
    );

    let (southbound_seen, southbound) = watch::channel(None);
    tasks.spawn(
        "southbound",
        southbound::run(
            southbound_config(&config),
            switch.clone(),
            flows.clone(),
            southbound_seen,
            metrics.clone(),
            cancel.clone(),
        ),
    );

    let inputs = Inputs {
        database,
        switch,
        connection,
        vswitchd,
        ovsdb_server,
        ovn_controller,
        flows,
        southbound,
        settings,
        node: ovs_node,
    };
    let namespace: Arc<str> = config.namespace.as_str().into();
    let diagnostics = diagnostics(&config);
    let captures = Captures::new(
        inputs.switch.clone(),
        inputs.connection.clone(),
        config.diagnostics.limits(),
        metrics.clone(),
        cancel.clone(),
    );
    if let Some((address, identity)) = &diagnostics {
        let services = Services {
            access: Access::new(client.clone(), Arc::clone(&namespace), Arc::clone(&node)),
            questions: Questions::new(
                inputs.switch.clone(),
                inputs.connection.clone(),
                config.ovs_rundir.clone(),
            ),
            captures: captures.clone(),
            metrics: metrics.clone(),
        };
        let served = server::serve(
            *address,
            identity.clone(),
            services,
            health.clone(),
            cancel.clone(),
        );
        tasks.spawn("diagnostics", served);
    }
    // An agent before this one may have left something, whatever this one is for.
    tasks.spawn("captures", captures.clean(config.database()));
    let published = diagnostics.and_then(|(address, identity)| {
        let node = config.diagnostics.node_ip?;
        Some(identity.published(node, address.port()))
    });
    let (issues_seen, issues) = watch::channel(Vec::new());
    let report_config = ReportConfig {
        node,
        namespace,
        client,
        recorder,
        health: health.clone(),
        metrics,
        issues: issues_seen,
        diagnostics: published,
    };
    tasks.spawn(
        "report",
        report::run(report_config, inputs.clone(), cancel.clone()),
    );

    if let Some(address) = config.health_probe_bind_address {
        let routes = axum::Router::new();
        let served = serve(address, health.clone(), routes, cancel.clone());
        tasks.spawn("health", served);
    }
    if let Some(address) = config.metrics_bind_address {
        let routes = scrape::routes(inputs, issues, Arc::new(registry));
        tasks.spawn("metrics", serve(address, health, routes, cancel.clone()));
    }
    tasks.run(cancel, GRACE).await
}

/// Where questions are answered, and with which certificate.
fn diagnostics(config: &Config) -> Option<(SocketAddr, Identity)> {
    let address = config.diagnostics.diagnostics_bind_address?;
    match Identity::make(&config.node) {
        Ok(identity) => Some((address, identity)),
        Err(error) => {
            tracing::error!("there are no diagnostics: {error:#}");
            None
        }
    }
}

fn southbound_config(config: &Config) -> SouthboundConfig {
    SouthboundConfig {
        options: Options::default(),
        certificates: config.southbound.files(),
        identity: config.southbound.identity(),
        stale_flows: !config.southbound.skip_stale_flows,
        interval: config.flow_interval,
    }
}
