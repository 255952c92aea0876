//! Migrations between two real hypervisors, with the agents of both.

use std::collections::BTreeMap;
use std::time::Duration;

use cobalt_api::migration::{Migration, MigrationEnd, MigrationResult, Role};
use cobalt_api::names::labels;
use cobalt_lab::plan::Flavour;
use cobalt_libvirt::{Connection, Domain, DomainState, Error, MigrateFlags, MigrateParams};
use cobalt_node_agent::migrations::{self, MigrationConfig, MigrationMetrics};
use futures::StreamExt;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::rig::{Guest, Host, NAMESPACE, PATIENCE, Rig};
use crate::support::server;

/// The task of a host.
struct Agent {
    metrics: MigrationMetrics,
    task: Option<JoinHandle<()>>,
    end: DropGuard,
}

impl Agent {
    fn start(host: &Host) -> Self {
        Self::start_with(host, Duration::from_secs(3600))
    }

    fn start_with(host: &Host, ttl: Duration) -> Self {
        let config = MigrationConfig {
            write_interval: Duration::from_secs(1),
            ttl,
        };
        let metrics = MigrationMetrics::default();
        let cancel = CancellationToken::new();
        let task = migrations::run(
            host.ctx.clone(),
            config,
            host.holder.subscribe(),
            metrics.clone(),
            cancel.clone(),
        );
        Self {
            metrics,
            task: Some(tokio::spawn(task)),
            end: cancel.drop_guard(),
        }
    }

    /// The agent ends; whatever runs goes on without it.
    async fn stop(self) {
        drop(self.end);
        self.task.unwrap().await.unwrap();
    }
}

/// Waits until the Migrations of an instance are so.
async fn wait(
    domain: &Domain,
    what: &str,
    wanted: impl Fn(&[Migration]) -> bool,
) -> Vec<Migration> {
    let api: Api<Migration> = Api::namespaced(server().await.1, NAMESPACE);
    let selector = format!("{}={}", labels::INSTANCE, domain.uuid);
    let config = watcher::Config::default().labels(&selector);
    let mut events = watcher::watcher(api, config).boxed();
    let mut all: BTreeMap<String, Migration> = BTreeMap::new();
    let waiting = async {
        while let Some(event) = events.next().await {
            match event.unwrap() {
                watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
                    all.insert(object.name_any(), object);
                }
                watcher::Event::Delete(object) => drop(all.remove(&object.name_any())),
                watcher::Event::Init => continue,
                watcher::Event::InitDone => {}
            }
            let list: Vec<Migration> = all.values().cloned().collect();
            if wanted(&list) {
                return Some(list);
            }
        }
        None
    };
    match tokio::time::timeout(PATIENCE, waiting).await {
        Ok(Some(list)) => list,
        _ => panic!("{what}: {all:#?}"),
    }
}

fn end(migration: &Migration, role: Role) -> Option<&MigrationEnd> {
    let ends = &migration.status.as_ref()?.ends;
    ends.iter().find(|end| end.role == role)
}

/// Both ends have said how it ended.
fn told(migration: &Migration) -> bool {
    let told = |role| end(migration, role).is_some_and(|end| end.result.is_some());
    let status = migration.status.as_ref();
    status.is_some_and(|status| status.finished.is_some() && status.destination.is_some())
        && told(Role::Source)
        && told(Role::Destination)
}

fn open(all: &[Migration]) -> usize {
    let open = |migration: &&Migration| {
        let status = migration.status.as_ref();
        status.is_none_or(|status| status.finished.is_none())
    };
    all.iter().filter(open).count()
}

/// Progress of the newest one was written.
fn progress(all: &[Migration]) -> bool {
    let newest = all.last();
    let stats = newest
        .and_then(|newest| end(newest, Role::Source))
        .and_then(|end| end.stats.as_ref());
    stats.is_some_and(|stats| stats.elapsed_millis > Some(1000))
}

fn result(migration: &Migration) -> Option<MigrationResult> {
    migration.status.as_ref()?.result
}

/// A migration that goes on by itself.
fn migrate(
    from: &Host,
    domain: &Domain,
    to: &str,
    mib_per_second: u64,
) -> JoinHandle<Result<(), Error>> {
    let connection: Connection = from.libvirt.clone();
    let domain = domain.clone();
    let target = format!("qemu+tcp://{to}/system");
    tokio::spawn(async move {
        let flags = MigrateFlags::LIVE | MigrateFlags::PERSIST_DEST | MigrateFlags::UNDEFINE_SOURCE;
        let params = MigrateParams {
            bandwidth_mib: Some(mib_per_second),
            ..MigrateParams::default()
        };
        connection
            .migrate_to_uri(&domain, &target, flags, &params)
            .await
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_migration_has_one_object_that_both_ends_write() {
    let rig = Rig::start("migrations", &[Flavour::Bookworm; 2]).await;
    let [hv1, hv2] = &rig.hosts[..] else { panic!() };
    let agents = [Agent::start(hv1), Agent::start(hv2)];
    let guest = Guest {
        name: "walker",
        command_line: "dirty=4 ws=8",
        ..Guest::default()
    };
    let walker = hv1.guest(&guest).await;

    // There.
    migrate(hv1, &walker, "hv2", 1024).await.unwrap().unwrap();
    let all = wait(&walker, "the first is told of", |all| {
        all.len() == 1 && told(&all[0])
    })
    .await;
    let first = &all[0];
    let status = first.status.clone().unwrap();
    assert_eq!(first.labels()[labels::SOURCE_NODE], hv1.node);
    assert_eq!(status.result, Some(MigrationResult::Succeeded));
    assert_eq!(status.origin.as_deref(), Some(hv1.node.as_str()));
    assert_eq!(status.destination.as_deref(), Some(hv2.node.as_str()));
    assert_eq!(status.type_.as_deref(), Some("success"));
    assert_eq!(status.operation.as_deref(), Some("migration_out"));
    assert_eq!(status.err_msg, None);
    assert_eq!(status.instance, Some(walker.uuid.to_string()));
    assert!(status.started.unwrap().0 <= status.finished.unwrap().0);
    for (text, suffix) in [
        (&status.data_total, "iB"),
        (&status.mem_page_size, "4.0 KiB"),
        (&status.time_elapsed, "s"),
        (&status.downtime, "s"),
    ] {
        assert!(text.as_ref().unwrap().ends_with(suffix), "{text:?}");
    }
    for (role, node) in [(Role::Source, &hv1.node), (Role::Destination, &hv2.node)] {
        let end = end(first, role).unwrap();
        assert_eq!(&end.node, node);
        assert_eq!(end.result, Some(MigrationResult::Succeeded), "{role}");
        let stats = end.stats.as_ref().unwrap();
        assert!(stats.elapsed_millis > Some(0), "{role}: {stats:?}");
        assert!(stats.downtime_millis.is_some(), "{role}: {stats:?}");
        assert!(stats.mem_total_bytes > Some(60 << 20), "{role}: {stats:?}");
        assert_eq!(stats.data_remaining_bytes, Some(0), "{role}");
    }
    let written = first.resource_version();

    // W63: a plain pause and resume on either end is none of its business.
    let here = hv2.libvirt.lookup_by_uuid(walker.uuid).await.unwrap();
    hv2.libvirt.suspend(&here).await.unwrap();
    hv2.libvirt.resume(&here).await.unwrap();

    // And back: the second object, of the other owner.
    migrate(hv2, &here, "hv1", 1024).await.unwrap().unwrap();
    let all = wait(&walker, "the second is told of", |all| {
        all.len() == 2 && all.iter().all(told)
    })
    .await;
    assert_eq!(
        all[0].resource_version(),
        written,
        "nothing is written after the end"
    );
    assert_eq!(all[1].labels()[labels::SOURCE_NODE], hv2.node);
    assert_eq!(result(&all[1]), Some(MigrationResult::Succeeded));
    let destination = all[1].status.as_ref().unwrap().destination.clone();
    assert_eq!(destination, Some(hv1.node.clone()));
    let sent = agents.each_ref().map(|agent| agent.metrics.bytes.get());
    assert!(sent.iter().all(|bytes| *bytes > 0), "{sent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_arrive_is_closed_with_its_reason() {
    let rig = Rig::start("unarrived", &[Flavour::Bookworm; 2]).await;
    let [hv1, hv2] = &rig.hosts[..] else { panic!() };
    let agents = [Agent::start(hv1), Agent::start(hv2)];
    let guest = Guest {
        name: "stayer",
        command_line: "dirty=16 ws=32",
        ..Guest::default()
    };
    let stayer = hv1.guest(&guest).await;

    // Aborted.
    let moving = migrate(hv1, &stayer, "hv2", 1);
    wait(&stayer, "progress", |all| all.len() == 1 && progress(all)).await;
    hv1.libvirt.abort_job(&stayer).await.unwrap();
    assert!(moving.await.unwrap().is_err());
    let all = wait(&stayer, "the abort is told of", |all| {
        all.len() == 1 && told(&all[0])
    })
    .await;
    assert_eq!(result(&all[0]), Some(MigrationResult::Failed));
    let status = all[0].status.as_ref().unwrap();
    let error = status.err_msg.as_deref().unwrap();
    assert!(error.contains("still runs on the source"), "{error}");
    assert_eq!(status.destination.as_deref(), Some(hv2.node.as_str()));

    // W62: the next one is followed, too; its target dies.
    let moving = migrate(hv1, &stayer, "hv2", 1);
    wait(&stayer, "progress of the second", |all| {
        all.len() == 2 && progress(all)
    })
    .await;
    rig.kill(1, &stayer).await;
    assert!(moving.await.unwrap().is_err());
    let all = wait(&stayer, "the death is told of", |all| {
        all.len() == 2 && told(&all[1])
    })
    .await;
    assert_eq!(result(&all[1]), Some(MigrationResult::Failed));
    let entry = end(&all[1], Role::Destination).unwrap();
    assert_eq!(entry.result, Some(MigrationResult::Failed));
    assert!(entry.error.is_some());
    let state = hv1.libvirt.state(&stayer).await.unwrap();
    assert_eq!(state.state, DomainState::Running);
    drop(agents);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_was_away_finds_its_migrations_again() {
    let rig = Rig::start("away", &[Flavour::Bookworm; 2]).await;
    let [hv1, hv2] = &rig.hosts[..] else { panic!() };
    let mut source = Agent::start(hv1);
    let destination = Agent::start(hv2);
    let guest = Guest {
        name: "mover",
        command_line: "dirty=16 ws=32",
        ..Guest::default()
    };
    let mover = hv1.guest(&guest).await;

    // Both agents are started anew in the middle of it.
    let moving = migrate(hv1, &mover, "hv2", 1);
    let all = wait(&mover, "progress", progress).await;
    let before = all[0].resource_version();
    source.stop().await;
    destination.stop().await;
    source = Agent::start(hv1);
    let destination = Agent::start(hv2);
    wait(&mover, "it goes on in the same object", |all| {
        let entry = all.first().and_then(|first| end(first, Role::Destination));
        all.len() == 1 && all[0].resource_version() != before && entry.is_some()
    })
    .await;
    // What begins within 5 s of it would be taken for the same migration.
    wait(&mover, "it has run for a while", |all| {
        let entry = all.first().and_then(|first| end(first, Role::Source));
        let stats = entry.and_then(|entry| entry.stats.as_ref());
        stats.and_then(|stats| stats.elapsed_millis) > Some(6_000)
    })
    .await;
    // The agent of the source sees neither its end nor the next one's begin.
    source.stop().await;
    hv1.libvirt.abort_job(&mover).await.unwrap();
    assert!(moving.await.unwrap().is_err());
    let moving = migrate(hv1, &mover, "hv2", 1024);
    moving.await.unwrap().unwrap();
    source = Agent::start(hv1);
    let all = wait(&mover, "the first is closed", |all| {
        all.len() == 1 && open(all) == 0
    })
    .await;
    // Nobody saw how the first ended; the instance is on the other host, by another way.
    assert_eq!(result(&all[0]), Some(MigrationResult::Unknown), "{all:#?}");
    assert!(all[0].status.as_ref().unwrap().err_msg.is_some());

    // After their time they go.
    source.stop().await;
    let source = Agent::start_with(hv1, Duration::from_secs(2));
    wait(&mover, "they are gone", <[Migration]>::is_empty).await;
    drop((source, destination));
}
