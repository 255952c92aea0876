//! Recorded exchanges about services, hypervisors, aggregates and logins: the same requests are
//! made, and the answers are understood.

use cobalt_openstack::compute::{NewAggregate, ServiceState, ServiceStatus};
use cobalt_openstack::{
    Client, Config, Credentials, Error, Identity, Reference, Scope, Secret, Service, Source, found,
};

use crate::fake::{Act, Fake};
use crate::replay::Replay;

const HV1: &str = "19d7aa79-edef-5a8a-857f-5403be3f6300";

#[tokio::test]
async fn services_are_read_and_changed() {
    let replay = Replay::of(14).await;
    let all = replay
        .client
        .compute()
        .services("nova-compute")
        .await
        .unwrap();
    replay.asked_the_same_but_for(&["binary"]);
    let hosts: Vec<_> = all.iter().map(|service| service.host.as_str()).collect();
    assert_eq!(hosts, ["control", "control", "hv1", "hv2", "hv3"]);

    let replay = Replay::of(15).await;
    let hv1 = replay
        .client
        .compute()
        .service_of("hv1")
        .await
        .unwrap()
        .unwrap();
    replay.asked_the_same();
    assert_eq!(
        (hv1.status, hv1.state),
        (ServiceStatus::Enabled, ServiceState::Up)
    );
    assert!(hv1.updated_at.is_some() && !hv1.forced_down);
    // What the service sends is not what was asked for: not taken.
    assert_eq!(
        replay.client.compute().service_of("hv").await.unwrap(),
        None
    );

    let id = "2351859f-e26d-4f98-9af0-e82010940a1d";
    let replay = Replay::of(16).await;
    let reason = "maintenance: samples";
    let service = replay
        .client
        .compute()
        .disable_service(id, reason)
        .await
        .unwrap();
    replay.asked_the_same();
    assert_eq!(service.status, ServiceStatus::Disabled);
    assert_eq!(service.disabled_reason.as_deref(), Some(reason));

    let replay = Replay::of(17).await;
    replay.client.compute().enable_service(id).await.unwrap();
    replay.asked_the_same();

    let hv1 = "49c3af1e-d0d2-4dca-a9eb-cd4de51affdf";
    let replay = Replay::of(81).await;
    let service = replay
        .client
        .compute()
        .force_down_service(hv1, true)
        .await
        .unwrap();
    replay.asked_the_same();
    assert_eq!(
        (service.state, service.forced_down),
        (ServiceState::Down, true)
    );

    let replay = Replay::of(88).await;
    let error = replay
        .client
        .compute()
        .force_down_service(hv1, false)
        .await
        .unwrap_err();
    replay.asked_the_same();
    assert!(
        error.to_string().contains("Unable to force up host hv1"),
        "{error}"
    );

    let replay = Replay::of(58).await;
    let error = replay
        .client
        .compute()
        .delete_service(hv1)
        .await
        .unwrap_err();
    replay.asked_the_same();
    assert!(error.is_conflict() && !error.is_generation_conflict());
}

#[tokio::test]
async fn an_error_has_novas_words_and_the_request_id() {
    let replay = Replay::of(18).await;
    let id = "00000000-0000-0000-0000-000000000001";
    let error = replay
        .client
        .compute()
        .enable_service(id)
        .await
        .unwrap_err();
    replay.asked_the_same();
    assert!(error.is_not_found() && !error.is_transient() && !error.is_uncertain());
    assert_eq!(error.request_id(), replay.request_id().as_deref());
    assert_eq!(
        error.to_string(),
        format!(
            "failed to enable service (compute /os-services/{id}): Service {id} could not be \
             found. (404, {})",
            replay.request_id().unwrap()
        )
    );
    assert!(found::<()>(Err(error)).unwrap().is_none());

    // A cloud that is too old for a version says so.
    let error = Replay::of(12)
        .await
        .client
        .compute()
        .services("x")
        .await
        .unwrap_err();
    assert_eq!(error.status(), Some(406));
    assert!(error.to_string().contains("maximum is 2.103"), "{error}");
}

#[tokio::test]
async fn hypervisors_are_read() {
    for (number, servers) in [(19, false), (20, false)] {
        let replay = Replay::of(number).await;
        let all = replay.client.compute().hypervisors().await.unwrap();
        replay.asked_the_same_but_for(&["limit"]);
        assert_eq!(all.len(), 3);
        assert_eq!((all[0].id.as_str(), all[0].hostname.as_str()), (HV1, "hv1"));
        assert_eq!(all[0].host(), Some("hv1"));
        assert_eq!(all[0].servers.is_empty(), !servers);
    }
    let replay = Replay::of(21).await;
    let hv1 = replay.client.compute().hypervisor(HV1).await.unwrap();
    replay.asked_the_same_but_for(&["with_servers"]);
    assert_eq!(hv1.hypervisor_type.as_deref(), Some("fake"));
}

#[tokio::test]
async fn aggregates_and_zones_are_read_and_changed() {
    let replay = Replay::of(23).await;
    let new = NewAggregate {
        name: "blue".into(),
        availability_zone: Some("az-blue".into()),
    };
    let made = replay
        .client
        .compute()
        .create_aggregate(&new)
        .await
        .unwrap();
    replay.asked_the_same();
    assert_eq!((made.id, made.hosts.len()), (1, 0));

    let replay = Replay::of(25).await;
    let changed = replay.client.compute().add_host(1, "hv1").await.unwrap();
    replay.asked_the_same();
    assert!(changed.hosts.contains("hv1"));
    let replay = Replay::of(26).await;
    assert!(
        replay
            .client
            .compute()
            .add_host(1, "hv1")
            .await
            .unwrap_err()
            .is_conflict()
    );
    let replay = Replay::of(27).await;
    assert!(
        replay
            .client
            .compute()
            .add_host(1, "nope")
            .await
            .unwrap_err()
            .is_not_found()
    );

    let replay = Replay::of(28).await;
    let metadata = [("pool", "blue"), ("ssd", "true")];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), Some(value.to_owned())));
    let changed = replay
        .client
        .compute()
        .set_aggregate_metadata(1, &metadata.into())
        .await;
    replay.asked_the_same();
    assert_eq!(changed.unwrap().metadata["pool"], "blue");

    let replay = Replay::of(29).await;
    assert_eq!(
        replay.client.compute().aggregates().await.unwrap()[0].name,
        "blue"
    );
    replay.asked_the_same();
    let replay = Replay::of(35).await;
    replay.client.compute().remove_host(1, "hv1").await.unwrap();
    replay.asked_the_same();
    let replay = Replay::of(36).await;
    replay.client.compute().delete_aggregate(1).await.unwrap();
    replay.asked_the_same();

    let replay = Replay::of(30).await;
    let zones = replay.client.compute().availability_zones().await.unwrap();
    replay.asked_the_same();
    let names: Vec<_> = zones.iter().map(|zone| zone.name.as_str()).collect();
    assert_eq!(names, ["az-blue", "internal", "nova"]);
    assert!(zones[0].available && zones[0].hosts.contains("hv1"));
}

#[tokio::test]
async fn a_wrong_password_is_told_and_not_tried_again_at_once() {
    let answer = crate::replay::Sample::load(3).act();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let fake = Fake::serve(listener, url, move |_| answer.clone());
    let client = fake.client();
    for _ in 0..3 {
        let error = client.compute().hypervisors().await.unwrap_err();
        assert!(error.is_unauthorized());
        assert!(matches!(&error, Error::Refused { call, .. } if call.name == "log in"));
        assert!(
            error.to_string().contains("requires authentication"),
            "{error}"
        );
    }
    assert_eq!(fake.logins(), 1);
}

#[tokio::test]
async fn logins_are_the_recorded_ones_and_their_answers_are_understood() {
    let password = |user_domain: Reference| Identity::Password {
        user: Reference::named_in("admin", user_domain),
        password: Secret::new("admin"),
    };
    let by_id = Reference::Id("default".into());
    let project = Scope::Project(Reference::named_in("admin", by_id.clone()));
    let credential = Identity::ApplicationCredential {
        id: "a6391fa805814e70828a24f9fef0ca06".into(),
        secret: Secret::new("REDACTED"),
    };
    for (number, identity, scope) in [
        (1, password(by_id.clone()), project.clone()),
        (4, password(Reference::named("Default")), Scope::System),
        (7, credential, project),
    ] {
        let sample = crate::replay::Sample::load(number);
        let act = match sample.act() {
            Act::Answer(status, mut headers, body) => {
                headers.push(("X-Subject-Token", "token".into()));
                Act::Answer(status, headers, body)
            }
            act => act,
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let fake = Fake::serve(listener, url, move |_| act.clone());
        let credentials = Credentials {
            identity,
            scope: scope.clone(),
            ..fake.credentials()
        };
        let client = Client::new(Config::new(Source::given(credentials)));
        let services = [Service::Compute, Service::Placement, Service::Network];
        let account = client.check(&services).await.unwrap();
        assert_eq!(fake.last_login(), sample.request["body"]);
        assert_eq!(account.project_id.is_none(), scope == Scope::System);
    }
}
