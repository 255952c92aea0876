//! Tokens that end, are rejected or are renewed, by a fake Keystone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cobalt_openstack::{Client, Config, Service, Source};
use serde_json::{Value, json};

use crate::fake::{Act, Fake, login};

fn services() -> Value {
    json!({ "services": [] })
}

async fn list(client: &Client) -> cobalt_openstack::Result<usize> {
    let services = client.compute().services("nova-compute").await?;
    Ok(services.len())
}

#[tokio::test]
async fn a_rejected_token_is_replaced_once_also_for_a_post() {
    let fake = Fake::start(|seen| {
        if seen.header("x-auth-token") == Some("token-1") {
            return Act::json(401, &json!({ "error": { "message": "expired" } }));
        }
        Act::Answer(
            202,
            vec![("X-Openstack-Request-Id", "req-1".into())],
            String::new(),
        )
    })
    .await;
    let taken = fake
        .client()
        .compute()
        .live_migrate("s", None)
        .await
        .unwrap();
    assert_eq!(taken.request_id.as_deref(), Some("req-1"));
    assert_eq!((fake.logins(), fake.seen().len()), (2, 2));

    let fake = Fake::start(|_| Act::json(401, &json!({}))).await;
    assert!(list(&fake.client()).await.unwrap_err().is_unauthorized());
    assert_eq!((fake.logins(), fake.seen().len()), (2, 2));
}

#[tokio::test]
async fn many_callers_log_in_once_and_renew_once() {
    let fake = Fake::start(|seen| match seen.header("x-auth-token") {
        Some("token-1") => Act::json(401, &json!({})),
        _ => Act::json(200, &services()),
    })
    .await;
    let client = fake.client();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let client = client.clone();
        calls.spawn(async move { list(&client).await.unwrap() });
    }
    calls.join_all().await;
    assert_eq!(fake.logins(), 2);
}

#[tokio::test]
async fn a_token_is_renewed_before_its_end_and_kept_while_keystone_is_away() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let base = url.clone();
    let logins = AtomicUsize::new(0);
    // The first token is renewed when three quarters of its life are over.
    let fake = Fake::serve(listener, url, move |seen| {
        if seen.path != "/v3/auth/tokens" {
            return Act::json(200, &services());
        }
        match logins.fetch_add(1, Ordering::SeqCst) + 1 {
            1 => login(&base, 1, 12),
            _ => Act::json(500, &json!({ "error": { "message": "away" } })),
        }
    });
    let client = fake.client();
    // Until a renewal was tried, and refused, everything is answered.
    while fake.logins() < 2 {
        list(&client).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    list(&client).await.unwrap();
    assert_eq!(
        fake.seen().last().unwrap().header("x-auth-token"),
        Some("token-1")
    );
}

#[tokio::test]
async fn changed_files_are_a_new_login() {
    let fake = Fake::start(|seen| match seen.header("x-auth-token") {
        Some("token-1") => Act::json(401, &json!({})),
        _ => Act::json(200, &services()),
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &str| std::fs::write(dir.path().join(name), value).unwrap();
    write("OS_AUTH_URL", &fake.url);
    write("OS_USERNAME", "nova");
    write("OS_PASSWORD", "old");
    write("OS_PROJECT_NAME", "service");
    let client = Client::new(Config {
        credentials: Source::directory(dir.path()),
        ..fake.config()
    });
    let account = client
        .check(&[Service::Compute, Service::Volume])
        .await
        .unwrap();
    assert_eq!(account.project_id.as_deref(), Some("p1"));
    write("OS_PASSWORD", "new");
    list(&client).await.unwrap();
    assert_eq!(fake.logins(), 2);
}

#[tokio::test]
async fn w45_keystone_may_be_away_at_the_start() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let url = format!("http://{address}");
    let mut credentials = Fake::start(|_| Act::Silence).await.credentials();
    credentials.auth_url.clone_from(&url);
    let client = Client::new(Config::new(Source::given(credentials)));
    let error = list(&client).await.unwrap_err();
    assert!(error.is_transient() && !error.is_uncertain(), "{error}");

    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let base = url.clone();
    let _fake = Fake::serve(listener, url, move |seen| match seen.path.as_str() {
        "/v3/auth/tokens" => login(&base, 1, 3600),
        _ => Act::json(200, &services()),
    });
    list(&client).await.unwrap();
}
