//! Migrations between two real hosts.

use std::time::Duration;

use cobalt_libvirt::{
    Connection, DestroyFlags, Domain, DomainState, Event, JobStatsFlags, JobType, Lifecycle,
    MigrateFlags, MigrateParams, UndefineFlags, codes, lifecycle_detail as detail,
};

use crate::{Host, PATIENCE, Watcher, guest, start};

pub async fn guests_move_and_stay(from: &Host, to: &Host) {
    let source = from.open().await;
    let target = to.open().await;
    let mut here = Watcher::new(&source).await;
    let mut there = Watcher::new(&target).await;
    // Slow enough to be aborted: it writes faster than it is sent.
    let stays = start(&source, &guest("stays", "dirty=16 ws=24", "q35", "")).await;
    let uri = format!("qemu+tcp://{}/system", to.name);
    an_abort_is_obeyed(&source, &mut here, &stays, &uri).await;

    let flags = MigrateFlags::LIVE | MigrateFlags::PERSIST_DEST | MigrateFlags::UNDEFINE_SOURCE;
    source.migrate_set_max_speed(&stays, 1000).await.unwrap();
    source.migrate_set_max_downtime(&stays, 2000).await.unwrap();
    let patient = source.with_call_timeout(PATIENCE);
    let params = MigrateParams {
        bandwidth_mib: Some(1000),
        ..MigrateParams::default()
    };
    patient
        .migrate_to_uri(&stays, &uri, flags, &params)
        .await
        .unwrap();
    let is = |event: &Event| matches!(event, Event::JobCompleted { .. });
    let completed = here.wait("stays", "completed job", is).await;
    let Event::JobCompleted { params, .. } = completed else {
        panic!("{completed:?}");
    };
    assert!(params.get_u64("memory_total").unwrap() > 0, "{params:?}");
    let is = |event: &Event| {
        matches!(event, Event::Lifecycle { event: Lifecycle::Stopped, detail, .. }
            if *detail == detail::STOPPED_MIGRATED)
    };
    here.wait("stays", "end on the source", is).await;
    let is = |event: &Event| {
        matches!(event, Event::Lifecycle { event: Lifecycle::Started, detail, .. }
            if *detail == detail::STARTED_MIGRATED)
    };
    there.wait("stays", "begin on the destination", is).await;
    assert!(
        source
            .lookup_by_uuid(stays.uuid)
            .await
            .unwrap_err()
            .is_no_domain()
    );
    let moved = target.lookup_by_uuid(stays.uuid).await.unwrap();
    let status = target.state(&moved).await.unwrap();
    assert_eq!(
        (status.state, status.reason_name()),
        (DomainState::Running, Some("migrated"))
    );
    target.destroy(&moved, DestroyFlags::NONE).await.unwrap();
    target.undefine(&moved, UndefineFlags::NONE).await.unwrap();
}

async fn an_abort_is_obeyed(libvirt: &Connection, here: &mut Watcher, domain: &Domain, uri: &str) {
    let params = MigrateParams {
        bandwidth_mib: Some(1),
        ..MigrateParams::default()
    };
    let moving = tokio::spawn({
        let (libvirt, domain, uri) = (
            libvirt.with_call_timeout(PATIENCE),
            domain.clone(),
            uri.to_owned(),
        );
        async move {
            libvirt
                .migrate_to_uri(&domain, &uri, MigrateFlags::LIVE, &params)
                .await
        }
    });
    let is = |event: &Event| matches!(event, Event::MigrationIteration { .. });
    here.wait("stays", "pass over the memory", is).await;
    // Others are answered meanwhile, on the same connection.
    let job = libvirt
        .job_stats(domain, JobStatsFlags::NONE)
        .await
        .unwrap();
    assert_eq!(job.job_type, JobType::Unbounded, "{job:?}");
    assert!(job.params.get_u64("memory_total").unwrap() > 0, "{job:?}");
    let quick = libvirt.with_call_timeout(Duration::from_secs(10));
    quick.abort_job(domain).await.unwrap();
    let aborted = moving.await.unwrap().unwrap_err();
    let code = aborted.code();
    assert!(
        code == Some(codes::OPERATION_ABORTED) || code == Some(codes::OPERATION_FAILED),
        "{aborted}"
    );
    assert_eq!(
        libvirt.state(domain).await.unwrap().state,
        DomainState::Running
    );
}
