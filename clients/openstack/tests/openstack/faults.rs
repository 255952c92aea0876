//! What a fake peer does to the client, and what comes of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cobalt_openstack::compute::ServerFilter;
use cobalt_openstack::{
    BreakerConfig, BreakerState, Client, Config, Error, Observer, Outcome, Service,
};
use serde_json::{Value, json};

use crate::fake::{Act, Fake};

fn services() -> Value {
    json!({ "services": [] })
}

async fn list(client: &Client) -> cobalt_openstack::Result<usize> {
    let services = client.compute().services("nova-compute").await?;
    Ok(services.len())
}

/// Answers the first requests with these, and then well.
async fn first(acts: Vec<Act>) -> Fake {
    let acts = Mutex::new(acts.into_iter());
    Fake::start(move |_| {
        let next = acts.lock().unwrap().next();
        next.unwrap_or_else(|| Act::json(200, &services()))
    })
    .await
}

fn throttled(status: u16, seconds: u64) -> Act {
    Act::Answer(
        status,
        vec![("Retry-After", seconds.to_string())],
        String::new(),
    )
}

#[tokio::test]
async fn what_is_harmless_is_repeated_until_it_works() {
    let fake = first(vec![
        Act::json(500, &json!({})),
        Act::Cut,
        throttled(429, 0),
    ])
    .await;
    list(&fake.client()).await.unwrap();
    assert_eq!(fake.seen().len(), 4);
}

#[tokio::test]
async fn it_is_not_repeated_for_ever() {
    let fake = Fake::start(|_| Act::json(503, &json!({}))).await;
    let error = list(&fake.client()).await.unwrap_err();
    assert_eq!((error.status(), fake.seen().len()), (Some(503), 4));
    assert!(error.is_transient());
}

#[tokio::test]
async fn a_post_is_sent_once_whatever_happens() {
    for act in [
        Act::json(500, &json!({})),
        Act::json(503, &json!({})),
        throttled(429, 0),
        Act::Cut,
    ] {
        let fake = Fake::start(move |_| act.clone()).await;
        let error = fake
            .client()
            .compute()
            .live_migrate("s", None)
            .await
            .unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert_eq!(fake.seen().len(), 1);
    }
}

#[tokio::test]
async fn a_lost_answer_to_a_post_is_uncertain_and_a_refusal_is_not() {
    let fake = Fake::start(|_| Act::Cut).await;
    assert!(
        fake.client()
            .compute()
            .start("s")
            .await
            .unwrap_err()
            .is_uncertain()
    );
    // Nobody is there: nothing was done.
    let mut config = fake.config();
    let mut credentials = fake.credentials();
    let nobody = "http://127.0.0.1:1".to_owned();
    credentials.endpoints.insert(Service::Compute, nobody);
    config.credentials = cobalt_openstack::Source::given(credentials);
    let error = Client::new(config).compute().start("s").await.unwrap_err();
    assert!(error.is_transient() && !error.is_uncertain(), "{error}");
    let fake = Fake::start(|_| Act::json(409, &json!({}))).await;
    assert!(
        !fake
            .client()
            .compute()
            .start("s")
            .await
            .unwrap_err()
            .is_uncertain()
    );
}

#[tokio::test]
async fn retry_after_is_waited_for_only_if_the_deadline_allows() {
    let fake = first(vec![throttled(503, 3600)]).await;
    let error = list(&fake.client()).await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3600)));
    assert_eq!(fake.seen().len(), 1);
    // A conflict is for the caller, unless the service says that it passes.
    let fake = first(vec![throttled(409, 0)]).await;
    list(&fake.client()).await.unwrap();
    let fake = first(vec![Act::json(409, &json!({}))]).await;
    assert!(list(&fake.client()).await.unwrap_err().is_conflict());
}

#[tokio::test]
async fn w44_a_service_that_says_nothing_ends_with_the_deadline() {
    let fake = Fake::start(|_| Act::Silence).await;
    let client = Client::new(Config {
        deadline: Duration::from_millis(300),
        ..fake.config()
    });
    let error = list(&client).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn w27_a_list_that_is_missing_is_not_an_empty_one() {
    let fake = Fake::start(|_| Act::json(200, &json!({ "other": [] }))).await;
    let error = list(&fake.client()).await.unwrap_err();
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
}

#[tokio::test]
async fn answers_that_are_no_answers_are_errors() {
    let fake = Fake::start(|_| Act::Answer(200, Vec::new(), "<html>sorry</html>".into())).await;
    let error = list(&fake.client()).await.unwrap_err();
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
    let fake = Fake::start(|_| Act::Endless).await;
    let client = Client::new(Config {
        largest: 1 << 20,
        ..fake.config()
    });
    let error = list(&client).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::TooLarge {
                limit: 1_048_576,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(fake.seen().len(), 1);
    // Nobody follows a way out of the catalog.
    let away = Act::Answer(
        302,
        vec![("Location", "http://192.0.2.1/".into())],
        String::new(),
    );
    let fake = Fake::start(move |_| away.clone()).await;
    assert_eq!(list(&fake.client()).await.unwrap_err().status(), Some(302));
}

#[tokio::test]
async fn a_list_that_leads_back_to_itself_ends() {
    let page = json!({
        "servers": [{ "id": "a" }],
        "servers_links": [{ "rel": "next", "href": "http://x/servers?marker=a" }],
    });
    let fake = Fake::start(move |_| Act::json(200, &page)).await;
    let all = fake
        .client()
        .compute()
        .servers(&ServerFilter::on("h"))
        .await;
    assert!(
        matches!(all, Err(Error::Endless { page: 2, .. })),
        "{all:?}"
    );
}

#[tokio::test]
async fn a_list_whose_last_thing_was_deleted_is_read_anew() {
    let answered = AtomicUsize::new(0);
    let fake = Fake::start(move |seen| {
        let next = json!([{ "rel": "next", "href": "http://x/servers?marker=gone" }]);
        match answered.fetch_add(1, Ordering::SeqCst) {
            0 => Act::json(
                200,
                &json!({ "servers": [{ "id": "gone" }], "servers_links": next }),
            ),
            1 => {
                assert!(seen.path.contains("marker=gone"), "{seen:?}");
                Act::json(
                    400,
                    &json!({ "badRequest": { "message": "marker [gone] not found" } }),
                )
            }
            _ => Act::json(200, &json!({ "servers": [{ "id": "left" }] })),
        }
    })
    .await;
    let all = fake
        .client()
        .compute()
        .servers(&ServerFilter::on("h"))
        .await
        .unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].id, "left");
}

/// Counts.
#[derive(Debug, Default)]
struct Counter(Mutex<Vec<(Service, &'static str, Outcome)>>);

impl Observer for Counter {
    fn on_call(&self, service: Service, call: &'static str, outcome: Outcome, _: Duration) {
        self.0.lock().unwrap().push((service, call, outcome));
    }
}

#[tokio::test]
async fn a_service_that_fails_is_left_alone_and_asked_again() {
    let well = Arc::new(AtomicUsize::new(0));
    let now = well.clone();
    let fake = Fake::start(move |_| match now.load(Ordering::SeqCst) {
        0 => Act::json(
            500,
            &json!({ "computeFault": { "message": "database is gone" } }),
        ),
        _ => Act::json(200, &services()),
    })
    .await;
    let counter = Arc::new(Counter::default());
    let rest = Duration::from_millis(400);
    let client = Client::new(Config {
        breaker: BreakerConfig { failures: 4, rest },
        observer: counter.clone(),
        ..fake.config()
    });
    assert_eq!(
        client.state(Service::Compute),
        BreakerState::Closed { failures: 0 }
    );
    list(&client).await.unwrap_err();
    let error = list(&client).await.unwrap_err();
    assert!(matches!(error, Error::Open { .. }), "{error}");
    assert!(error.to_string().contains("database is gone"), "{error}");
    assert!(error.retry_after().is_some());
    assert_eq!(fake.seen().len(), 4);
    let BreakerState::Open { why, .. } = client.state(Service::Compute) else {
        panic!("it is closed");
    };
    assert!(why.contains("database is gone"), "{why}");
    // Others are not concerned, and a scoped client knows, too.
    assert_eq!(
        client.state(Service::Placement),
        BreakerState::Closed { failures: 0 }
    );
    let scoped = client.scoped(cobalt_openstack::Scope::System);
    assert!(matches!(
        scoped.state(Service::Compute),
        BreakerState::Open { .. }
    ));

    well.store(1, Ordering::SeqCst);
    while list(&client).await.is_err() {
        tokio::time::sleep(rest).await;
    }
    assert_eq!(
        client.state(Service::Compute),
        BreakerState::Closed { failures: 0 }
    );

    let told = counter.0.lock().unwrap();
    assert_eq!(told[0], (Service::Identity, "log in", Outcome::Answered));
    assert_eq!(
        told[1],
        (Service::Compute, "list services", Outcome::Refused(500))
    );
    assert_eq!(told[5], (Service::Compute, "list services", Outcome::Open));
    assert_eq!(told.last().unwrap().2, Outcome::Answered);
}

#[tokio::test]
async fn a_budget_without_room_is_told() {
    let fake = Fake::start(|_| Act::Silence).await;
    let client = Client::new(Config {
        budget: 1,
        deadline: Duration::from_millis(500),
        ..fake.config()
    });
    client.check(&[]).await.unwrap();
    let (one, other) = tokio::join!(list(&client), list(&client));
    let mut errors = [one.unwrap_err(), other.unwrap_err()];
    errors.sort_by_key(|error| matches!(error, Error::Busy { .. }));
    assert!(matches!(errors[0], Error::TimedOut { .. }), "{errors:?}");
    assert!(
        matches!(errors[1], Error::Busy { budget: 1, .. }),
        "{errors:?}"
    );
    assert_eq!(fake.seen().len(), 1);
}

#[tokio::test]
async fn w49_every_call_says_which_version_it_is_written_for() {
    let fake = Fake::start(|_| Act::json(404, &json!({}))).await;
    let client = fake.client();
    let compute = client.compute();
    compute.server("s").await.unwrap_err();
    let after = cobalt_openstack::compute::AfterEvacuation::AsBefore;
    compute.evacuate("s", None, after).await.unwrap_err();
    let after = cobalt_openstack::compute::AfterEvacuation::Off;
    compute.evacuate("s", None, after).await.unwrap_err();
    client.placement().provider("p").await.unwrap_err();
    client.image("i").await.unwrap_err();
    let versions: Vec<_> = fake
        .seen()
        .iter()
        .map(|seen| seen.header("openstack-api-version").map(str::to_owned))
        .collect();
    let expected = [
        "compute 2.90",
        "compute 2.94",
        "compute 2.95",
        "placement 1.39",
    ];
    let expected = expected.map(|version| Some(version.to_owned()));
    assert_eq!(versions[..4], expected);
    assert_eq!(versions[4], None);
}
