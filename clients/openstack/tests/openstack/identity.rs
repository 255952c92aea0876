//! Logins at the real Keystone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cobalt_lab::light::LightConfig;
use cobalt_openstack::{
    Client, Config, Credentials, Error, Identity, Observer, Outcome, Reference, Scope, Secret,
    Service, Source,
};
use serde_json::json;

use crate::lab::{light, start, until};

#[tokio::test(flavor = "multi_thread")]
async fn passwords_and_application_credentials_log_in() {
    let light = light().await;
    let client = light.client();
    let services = [
        Service::Compute,
        Service::Placement,
        Service::Network,
        Service::Image,
    ];
    let account = client.check(&services).await.unwrap();
    assert!(account.project_id.is_some());
    let error = client.check(&[Service::Volume]).await.unwrap_err();
    assert!(matches!(error, Error::NoEndpoint { .. }), "{error}");

    let user = account.user_id.unwrap();
    let path = format!("/users/{user}/application_credentials");
    let body =
        json!({ "application_credential": { "name": "operator", "roles": [{ "name": "admin" }] } });
    let made = light.keystone("POST", &path, Some(body)).await;
    let text = |key: &str| {
        made["application_credential"][key]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let by_id = Identity::ApplicationCredential {
        id: text("id"),
        secret: Secret::new(text("secret")),
    };
    let by_name = Identity::NamedApplicationCredential {
        name: "operator".into(),
        user: Reference::Id(user),
        secret: Secret::new(text("secret")),
    };
    for identity in [by_id, by_name] {
        let credentials = Credentials {
            identity,
            ..light.credentials()
        };
        let client = Client::new(Config::new(Source::given(credentials)));
        assert_eq!(
            client.check(&services).await.unwrap().project_id,
            account.project_id
        );
        client.compute().services("nova-compute").await.unwrap();
    }

    let system = client.scoped(Scope::System).check(&services).await.unwrap();
    assert_eq!(system.project_id, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_are_refused_in_keystones_words() {
    let light = light().await;
    let mut credentials = light.credentials();
    credentials.region = Some("nowhere".into());
    let client = Client::new(Config::new(Source::given(credentials.clone())));
    let error = client.compute().hypervisors().await.unwrap_err();
    assert!(matches!(error, Error::NoEndpoint { .. }), "{error}");
    assert!(error.to_string().contains("region nowhere"), "{error}");

    if let Identity::Password { password, .. } = &mut credentials.identity {
        *password = Secret::new("wrong");
    }
    let client = Client::new(Config::new(Source::given(credentials)));
    let error = client.compute().hypervisors().await.unwrap_err();
    assert!(
        error.is_unauthorized() && error.request_id().is_some(),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn w46_a_rotated_password_in_a_directory_needs_no_restart() {
    let light = light().await;
    let (_, admin) = light.admin().await;
    let body = json!({ "user": { "name": "rotated", "password": "old", "domain_id": "default" } });
    let user = light.keystone("POST", "/users", Some(body)).await;
    let user = user["user"]["id"].as_str().unwrap().to_owned();
    let project = admin["project"]["id"].as_str().unwrap();
    let role = admin["roles"].as_array().unwrap();
    let role = role.iter().find(|role| role["name"] == "admin").unwrap();
    let path = format!(
        "/projects/{project}/users/{user}/roles/{}",
        role["id"].as_str().unwrap()
    );
    light.keystone("PUT", &path, None).await;

    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &str| std::fs::write(dir.path().join(name), value).unwrap();
    write("OS_AUTH_URL", &light.access.auth_url);
    write("OS_USERNAME", "rotated");
    write("OS_PASSWORD", "old");
    write("OS_USER_DOMAIN_ID", "default");
    write("OS_PROJECT_ID", project);
    write("OS_REGION_NAME", &light.access.region);
    let client = Client::new(Config {
        credentials: Source::directory(dir.path()),
        ..light.config()
    });
    client.check(&[Service::Placement]).await.unwrap();

    // With a new password Keystone takes all tokens of the user back. Placement has not seen this
    // one yet, so it asks Keystone and says 401; then the file with the new password is read.
    let body = json!({ "user": { "password": "new" } });
    light
        .keystone("PATCH", &format!("/users/{user}"), Some(body))
        .await;
    write("OS_PASSWORD", "new\n");
    // Keystone counts in seconds: a token of the same second is taken back, too.
    until("the new password is used", || async {
        let all = client.placement().providers().await;
        all.inspect_err(|error| assert!(error.is_unauthorized(), "{error}"))
    })
    .await;
}

#[derive(Debug, Default)]
struct Logins {
    count: AtomicUsize,
    refused: AtomicUsize,
}

impl Observer for Logins {
    fn on_call(&self, service: Service, _: &'static str, outcome: Outcome, _: Duration) {
        if service == Service::Identity {
            self.count.fetch_add(1, Ordering::SeqCst);
        }
        if outcome != Outcome::Answered {
            self.refused.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_token_is_renewed_before_it_ends() {
    let config = LightConfig {
        token_seconds: 12,
        ..LightConfig::hosts(1)
    };
    let light = start("openstack-tokens", config).await;
    let logins = Arc::new(Logins::default());
    let client = Client::new(Config {
        observer: logins.clone(),
        ..light.config()
    });
    until("a second renewal", || async {
        client.compute().services("nova-compute").await.unwrap();
        let count = logins.count.load(Ordering::SeqCst);
        (count >= 3).then_some(()).ok_or(count)
    })
    .await;
    assert_eq!(logins.refused.load(Ordering::SeqCst), 0);
}
