//! Recorded exchanges about servers and migrations.

use std::collections::BTreeMap;

use cobalt_openstack::compute::{
    AfterEvacuation, MigrationFilter, MigrationKind, MigrationStatus, NewServer, NewServerNetworks,
    PowerState, RootDisk, ServerFilter, ServerStatus,
};

use crate::replay::Replay;

const SERVER: &str = "1958c7b8-2b2f-46d5-af0a-8cfc43715da7";
const OTHER: &str = "d2ec603d-1fcc-45e3-b7fa-96f8924b80f4";

#[tokio::test]
async fn servers_are_made_and_read() {
    let replay = Replay::of(52).await;
    let new = NewServer {
        name: "vm-a".into(),
        flavor: "1".into(),
        root: RootDisk::Blank { gib: 1 },
        networks: NewServerNetworks::None,
        host: Some("hv1".into()),
        availability_zone: None,
        metadata: BTreeMap::new(),
    };
    assert_eq!(
        replay.client.compute().create_server(&new).await.unwrap(),
        OTHER
    );
    replay.asked_the_same();

    let replay = Replay::of(53).await;
    let server = replay.client.compute().server(OTHER).await.unwrap();
    replay.asked_the_same();
    assert_eq!(
        (server.status, server.power_state),
        (ServerStatus::Active, PowerState::Running)
    );
    assert_eq!(server.host.as_deref(), Some("hv1"));
    assert_eq!((server.flavor.vcpus, server.flavor.ram), (1, 64));
    assert!(server.launched_at.is_some() && !server.locked && server.task_state.is_none());

    let replay = Replay::of(67).await;
    let server = replay.client.compute().server(SERVER).await.unwrap();
    assert_eq!(server.status, ServerStatus::Migrating);
    assert_eq!(server.task_state.as_deref(), Some("migrating"));

    let replay = Replay::of(54).await;
    let servers = replay
        .client
        .compute()
        .servers(&ServerFilter::on("hv1"))
        .await
        .unwrap();
    replay.asked_the_same_but_for(&["limit"]);
    assert_eq!(servers.len(), 3);

    let replay = Replay::of(99).await;
    replay.client.compute().delete_server(OTHER).await.unwrap();
    replay.asked_the_same();
}

#[tokio::test]
async fn actions_are_the_recorded_ones() {
    let replay = Replay::of(59).await;
    let taken = replay
        .client
        .compute()
        .live_migrate(OTHER, None)
        .await
        .unwrap();
    replay.asked_the_same();
    assert_eq!(taken.request_id, replay.request_id());
    let replay = Replay::of(62).await;
    replay
        .client
        .compute()
        .live_migrate(SERVER, Some("hv2"))
        .await
        .unwrap();
    replay.asked_the_same();
    let replay = Replay::of(63).await;
    let error = replay
        .client
        .compute()
        .live_migrate(SERVER, Some("nope"))
        .await
        .unwrap_err();
    assert_eq!(error.status(), Some(400));
    let replay = Replay::of(68).await;
    let error = replay
        .client
        .compute()
        .live_migrate(SERVER, Some("hv1"))
        .await
        .unwrap_err();
    assert!(error.is_conflict());

    let replay = Replay::of(76).await;
    replay
        .client
        .compute()
        .migrate(SERVER, Some("hv3"))
        .await
        .unwrap();
    replay.asked_the_same();
    let replay = Replay::of(78).await;
    replay.client.compute().migrate(SERVER, None).await.unwrap();
    replay.asked_the_same();
    let replay = Replay::of(77).await;
    replay
        .client
        .compute()
        .confirm_resize(SERVER)
        .await
        .unwrap();
    replay.asked_the_same();
    let replay = Replay::of(79).await;
    replay.client.compute().revert_resize(SERVER).await.unwrap();
    replay.asked_the_same();
    let replay = Replay::of(96).await;
    replay.client.compute().stop(SERVER).await.unwrap();
    replay.asked_the_same();
    let replay = Replay::of(98).await;
    replay.client.compute().start(SERVER).await.unwrap();
    replay.asked_the_same();

    let server = "51633cc2-8d71-4db2-95ab-cfa0cb880779";
    let after = AfterEvacuation::Off;
    let replay = Replay::of(80).await;
    let error = replay
        .client
        .compute()
        .evacuate(server, None, after)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("is still in use"), "{error}");
    let replay = Replay::of(84).await;
    replay
        .client
        .compute()
        .evacuate(server, None, after)
        .await
        .unwrap();
    replay.asked_the_same();
    let server = "3baf493d-b8a6-4abd-8863-783b501f2d4a";
    let replay = Replay::of(91).await;
    let after = AfterEvacuation::AsBefore;
    replay
        .client
        .compute()
        .evacuate(server, Some("hv1"), after)
        .await
        .unwrap();
    replay.asked_the_same();
}

#[tokio::test]
async fn what_became_of_a_request_is_read() {
    let replay = Replay::of(61).await;
    let id = "req-2c2f28d2-496f-4c60-9ac4-682fd0c4a9fe";
    let action = replay.client.compute().action(OTHER, id).await.unwrap();
    replay.asked_the_same();
    assert_eq!(
        (action.action.as_str(), action.events.len()),
        ("live-migration", 6)
    );
    assert_eq!(action.failure(), None);

    let replay = Replay::of(75).await;
    let id = "req-5b376d93-1904-4a04-aed3-f12aa7e71c6d";
    let action = replay.client.compute().action(SERVER, id).await.unwrap();
    replay.asked_the_same();
    let words = "No valid host was found. There are not enough hosts available.";
    assert_eq!(action.failure(), Some(words));

    let replay = Replay::of(60).await;
    let actions = replay.client.compute().actions(OTHER).await.unwrap();
    replay.asked_the_same_but_for(&["limit"]);
    assert_eq!(actions.len(), 2);
}

#[tokio::test]
async fn migrations_are_read() {
    let of_server = MigrationFilter {
        server: Some(SERVER.into()),
        ..MigrationFilter::default()
    };
    for (number, status) in [
        (70, MigrationStatus::Cancelled),
        (72, MigrationStatus::Failed),
    ] {
        let replay = Replay::of(number).await;
        let all = replay
            .client
            .compute()
            .migrations(&of_server)
            .await
            .unwrap();
        replay.asked_the_same_but_for(&["limit"]);
        assert_eq!(all[0].status, status);
        assert!(all[0].status.has_ended() && !all[0].status.is_success());
        assert_eq!(all[0].kind, MigrationKind::Live);
    }
    let replay = Replay::of(86).await;
    let evacuations = MigrationFilter {
        kind: Some(MigrationKind::Evacuation),
        ..MigrationFilter::default()
    };
    let all = replay
        .client
        .compute()
        .migrations(&evacuations)
        .await
        .unwrap();
    replay.asked_the_same_but_for(&["limit"]);
    assert!(all[0].status.is_success());

    let replay = Replay::of(66).await;
    let running = replay
        .client
        .compute()
        .server_migrations(SERVER)
        .await
        .unwrap();
    replay.asked_the_same();
    assert_eq!(
        (running[0].id, &running[0].status),
        (3, &MigrationStatus::Running)
    );
    let replay = Replay::of(69).await;
    replay
        .client
        .compute()
        .abort_migration(SERVER, 3)
        .await
        .unwrap();
    replay.asked_the_same();
}
