//! The light OpenStack that the tests share: real Keystone, Placement and Nova, fake hypervisors.
//! Each test has hosts of its own.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use cobalt_lab::LabConfig;
use cobalt_lab::access::Access;
use cobalt_lab::handle::Lab;
use cobalt_lab::light::LightConfig;
use cobalt_openstack::compute::{NewServer, NewServerNetworks, RootDisk, Server, ServerStatus};
use cobalt_openstack::{Client, Config, Credentials, Reference, Secret, Source};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Hosts that change their aggregates at the same time.
pub const MANY: [&str; 6] = ["many1", "many2", "many3", "many4", "many5", "many6"];

pub const HOSTS: [&str; 20] = [
    "hv1",
    "hv2",
    "hv3",
    "dead1",
    "safe1",
    "gone",
    "full",
    "paused1",
    "traits1",
    "boot1",
    "node-1",
    "node-10",
    "node-1.example.com",
    "mode-1",
    MANY[0],
    MANY[1],
    MANY[2],
    MANY[3],
    MANY[4],
    MANY[5],
];

/// The id of the flavor that all servers have.
pub const FLAVOR: &str = "1";

pub struct Light {
    pub access: Access,
    // Ends with this process.
    _lab: Lab,
}

/// The one that all tests share; the first starts it.
pub async fn light() -> &'static Light {
    static LIGHT: OnceCell<Light> = OnceCell::const_new();
    LIGHT
        .get_or_init(|| {
            let config = LightConfig {
                hosts: HOSTS.map(Into::into).to_vec(),
                ..LightConfig::hosts(20)
            };
            Box::pin(start("openstack-client", config))
        })
        .await
}

pub async fn start(name: &str, light: LightConfig) -> Light {
    let mut config = LabConfig::empty(name);
    config.light = Some(light);
    let lab = cobalt_lab::testing::lab(config).await.unwrap();
    let access = lab.status().await.unwrap().access.unwrap();
    Light { access, _lab: lab }
}

impl Light {
    pub fn credentials(&self) -> Credentials {
        let access = &self.access;
        let domain = Reference::named(&access.domain);
        Credentials {
            region: Some(access.region.clone()),
            ..Credentials::password(
                &access.auth_url,
                Reference::named_in(&access.username, domain.clone()),
                Secret::new(&access.password),
                Reference::named_in(&access.project, domain),
            )
        }
    }

    pub fn config(&self) -> Config {
        Config {
            // Everything here runs on two cores, with much else beside it.
            deadline: Duration::from_secs(120),
            ..Config::new(Source::given(self.credentials()))
        }
    }

    pub fn client(&self) -> Client {
        Client::new(self.config())
    }

    pub async fn knob(&self, name: &str, value: Value) {
        let url = format!("{}/knobs", self.access.control_url.as_ref().unwrap());
        raw("PATCH", &url, None, Some(json!({ name: value })))
            .await
            .unwrap();
    }

    pub async fn host(&self, name: &str, verb: &str) {
        let url = self.access.control_url.as_ref().unwrap();
        let url = format!("{url}/hosts/{name}/{verb}");
        raw("POST", &url, None, None).await.unwrap();
    }

    /// A token of the administrator's, for what the client has no calls for.
    pub async fn admin(&self) -> (String, Value) {
        let access = &self.access;
        let domain = json!({ "name": access.domain });
        let user =
            json!({ "name": access.username, "password": access.password, "domain": domain });
        let body = json!({ "auth": {
            "identity": { "methods": ["password"], "password": { "user": user } },
            "scope": { "project": { "name": access.project, "domain": domain } },
        }});
        let url = format!("{}/auth/tokens", access.auth_url);
        let (token, answer) = raw("POST", &url, None, Some(body)).await.unwrap();
        (token.unwrap(), answer["token"].clone())
    }

    /// A call of Keystone's as the administrator.
    pub async fn keystone(&self, method: &str, path: &str, body: Option<Value>) -> Value {
        let (token, _) = self.admin().await;
        let url = format!("{}{path}", self.access.auth_url);
        raw(method, &url, Some(&token), body).await.unwrap().1
    }

    /// Makes a server and waits until it runs there.
    pub async fn boot(&self, client: &Client, name: &str, host: &str) -> String {
        let new = new_server(name, Some(host));
        let id = client.compute().create_server(&new).await.unwrap();
        on(client, &id, host, &ServerStatus::Active).await;
        id
    }
}

/// A server to be, with a disk of its own and no network.
pub fn new_server(name: &str, host: Option<&str>) -> NewServer {
    NewServer {
        name: name.into(),
        flavor: FLAVOR.into(),
        root: RootDisk::Blank { gib: 1 },
        networks: NewServerNetworks::None,
        host: host.map(Into::into),
        availability_zone: None,
        metadata: [("purpose".into(), "test".into())].into(),
    }
}

/// Waits until a server is on a host in some state, with nothing under way.
pub async fn on(client: &Client, id: &str, host: &str, status: &ServerStatus) -> Server {
    until(&format!("{id} is {status} on {host}"), || async {
        let server = client.compute().server(id).await.unwrap();
        let there = server.host.as_deref() == Some(host);
        let done = there && server.status == *status && server.task_state.is_none();
        done.then_some(server).ok_or("not yet")
    })
    .await
}

/// Waits for something that OpenStack tells nobody about: asks again and again.
pub async fn until<T, E: std::fmt::Debug, F: Future<Output = Result<T, E>>>(
    what: &str,
    ask: impl Fn() -> F,
) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(180);
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(state) if tokio::time::Instant::now() > deadline => panic!("{what}: {state:?}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

async fn raw(
    method: &str,
    url: &str,
    token: Option<&str>,
    body: Option<Value>,
) -> Result<(Option<String>, Value), String> {
    let client: hyper_util::client::legacy::Client<HttpConnector, Full<Bytes>> =
        hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http();
    let mut request = http::Request::builder()
        .method(method)
        .uri(url)
        .header("Content-Type", "application/json");
    if let Some(token) = token {
        request = request.header("X-Auth-Token", token);
    }
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let answer = client
        .request(request.body(Full::from(body)).unwrap())
        .await
        .unwrap();
    let (head, body) = answer.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    if !head.status.is_success() {
        return Err(format!("{method} {url}: {} {body:?}", head.status));
    }
    let token = head.headers.get("x-subject-token");
    let token = token.map(|token| token.to_str().unwrap().to_owned());
    Ok((token, serde_json::from_slice(&body).unwrap_or(Value::Null)))
}
