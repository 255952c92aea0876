//! Servers that move, do not move, and are brought off a dead host, on the real Nova.

use cobalt_openstack::compute::{
    AfterEvacuation, MigrationFilter, MigrationKind, MigrationStatus, ServerStatus,
};
use cobalt_openstack::{Client, found};
use serde_json::json;

use crate::lab::{light, on, until};

async fn last_status(client: &Client, server: &str) -> MigrationStatus {
    let filter = MigrationFilter {
        server: Some(server.to_owned()),
        ..MigrationFilter::default()
    };
    let all = client.compute().migrations(&filter).await.unwrap();
    all.first().map_or_else(
        || MigrationStatus::Other("none".into()),
        |last| last.status.clone(),
    )
}

async fn ended(client: &Client, server: &str, status: &MigrationStatus) {
    until(&format!("the migration is {status}"), || async {
        let last = last_status(client, server).await;
        if last == *status { Ok(()) } else { Err(last) }
    })
    .await;
}

/// The id of the live migration that runs.
async fn running(client: &Client, server: &str) -> i64 {
    until("it runs", || async {
        let all = client.compute().server_migrations(server).await.unwrap();
        let one = all
            .iter()
            .find(|one| one.status == MigrationStatus::Running);
        one.map(|one| one.id).ok_or_else(|| format!("{all:?}"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn live_migrations_are_followed_aborted_completed_and_refused() {
    let light = light().await;
    let client = light.client();
    let compute = client.compute();
    let server = light.boot(&client, "mover", "hv1").await;

    let taken = compute.live_migrate(&server, Some("hv2")).await.unwrap();
    on(&client, &server, "hv2", &ServerStatus::Active).await;
    ended(&client, &server, &MigrationStatus::Completed).await;
    let action = compute
        .action(&server, &taken.request_id.unwrap())
        .await
        .unwrap();
    assert_eq!(
        (action.action.as_str(), action.failure()),
        ("live-migration", None)
    );

    light.knob("live_migration_seconds", json!(600)).await;
    compute.live_migrate(&server, Some("hv3")).await.unwrap();
    let id = running(&client, &server).await;
    let shown = compute.server_migration(&server, id).await.unwrap();
    assert_eq!(shown.dest_compute.as_deref(), Some("hv3"));
    let error = compute
        .live_migrate(&server, Some("hv1"))
        .await
        .unwrap_err();
    assert!(error.is_conflict(), "{error}");
    compute.abort_migration(&server, id).await.unwrap();
    ended(&client, &server, &MigrationStatus::Cancelled).await;
    on(&client, &server, "hv2", &ServerStatus::Active).await;
    assert!(
        found(compute.server_migration(&server, id).await)
            .unwrap()
            .is_none()
    );

    compute.live_migrate(&server, Some("hv3")).await.unwrap();
    let id = running(&client, &server).await;
    compute.force_complete(&server, id).await.unwrap();
    on(&client, &server, "hv3", &ServerStatus::Active).await;
    light.knob("live_migration_seconds", json!(0)).await;
    ended(&client, &server, &MigrationStatus::Completed).await;

    light.knob("fail_live_migration", json!([server])).await;
    compute.live_migrate(&server, Some("hv1")).await.unwrap();
    ended(&client, &server, &MigrationStatus::Failed).await;
    light.knob("fail_live_migration", json!([])).await;

    // No host: Nova takes it, and says why not only in the action of that request.
    let hv1 = compute.service_of("hv1").await.unwrap().unwrap();
    compute.disable_service(&hv1.id, "no target").await.unwrap();
    let taken = compute.live_migrate(&server, Some("hv1")).await.unwrap();
    let request = taken.request_id.unwrap();
    let failure = until("it fails", || async {
        let action = compute.action(&server, &request).await.unwrap();
        action.failure().map(str::to_owned).ok_or(action)
    })
    .await;
    assert!(failure.contains("No valid host was found"), "{failure}");
    compute.enable_service(&hv1.id).await.unwrap();
    on(&client, &server, "hv3", &ServerStatus::Active).await;
    let error = compute
        .live_migrate(&server, Some("none-such"))
        .await
        .unwrap_err();
    assert_eq!(error.status(), Some(400));

    // Cold: to be confirmed, or taken back.
    compute.stop(&server).await.unwrap();
    on(&client, &server, "hv3", &ServerStatus::Shutoff).await;
    compute.migrate(&server, Some("hv2")).await.unwrap();
    on(&client, &server, "hv2", &ServerStatus::VerifyResize).await;
    assert_eq!(
        last_status(&client, &server).await,
        MigrationStatus::Finished
    );
    compute.revert_resize(&server).await.unwrap();
    on(&client, &server, "hv3", &ServerStatus::Shutoff).await;
    compute.migrate(&server, Some("hv2")).await.unwrap();
    on(&client, &server, "hv2", &ServerStatus::VerifyResize).await;
    compute.confirm_resize(&server).await.unwrap();
    on(&client, &server, "hv2", &ServerStatus::Shutoff).await;

    let moves = MigrationFilter {
        source_compute: Some("hv3".into()),
        kind: Some(MigrationKind::Cold),
        ..MigrationFilter::default()
    };
    let moves = compute.migrations(&moves).await.unwrap();
    assert_eq!(moves.len(), 2, "{moves:?}");
    assert!(
        moves
            .iter()
            .all(|one| one.server == server && one.status.has_ended())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_a_dead_host_start_elsewhere() {
    let light = light().await;
    let client = light.client();
    let compute = client.compute();
    let starts = light.boot(&client, "starts", "dead1").await;
    let stays_off = light.boot(&client, "stays-off", "dead1").await;
    let as_before = AfterEvacuation::AsBefore;
    let error = compute
        .evacuate(&starts, Some("safe1"), as_before)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("still in use"), "{error}");

    light.host("dead1", "kill").await;
    let service = compute.service_of("dead1").await.unwrap().unwrap();
    compute.force_down_service(&service.id, true).await.unwrap();
    compute
        .evacuate(&starts, Some("safe1"), as_before)
        .await
        .unwrap();
    compute
        .evacuate(&stays_off, Some("safe1"), AfterEvacuation::Off)
        .await
        .unwrap();
    on(&client, &starts, "safe1", &ServerStatus::Active).await;
    on(&client, &stays_off, "safe1", &ServerStatus::Shutoff).await;
    for server in [&starts, &stays_off] {
        ended(&client, server, &MigrationStatus::Done).await;
    }
    // Both hosts count for them until the dead one is back.
    let allocations = client.placement().allocations(&starts).await.unwrap();
    assert_eq!(allocations.allocations.len(), 2);
    let error = compute
        .force_down_service(&service.id, false)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("evacuation migration records"),
        "{error}"
    );

    light.host("dead1", "start").await;
    for server in [&starts, &stays_off] {
        ended(&client, server, &MigrationStatus::Completed).await;
    }
    let service = compute.revive_service(&service.id).await.unwrap();
    assert!(!service.forced_down);
}
