//! The light OpenStack that the tests share: real Keystone, Placement and Nova on fake hypervisors.
//! Each test adds hosts of its own.

use cobalt_lab::LabConfig;
use cobalt_lab::access::Access;
use cobalt_lab::handle::Lab;
use cobalt_lab::light::LightConfig;
use cobalt_openstack::compute::{
    ComputeService, NewServer, NewServerNetworks, RootDisk, ServerFilter, ServerStatus,
};
use cobalt_openstack::{Client, Config, Credentials, Reference, Secret, Source};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::OnceCell;

use crate::support::until;

/// The zone and its aggregate.
pub const ZONE: &str = "lab-a";
/// What keeps tenants away.
pub const TEST_AGGREGATE: &str = "tenant_filter_tests";

pub struct Cloud {
    pub access: Access,
    // Ends with this process.
    _lab: Lab,
}

/// The one that all tests share; the first starts it.
pub async fn cloud() -> &'static Cloud {
    static CLOUD: OnceCell<Cloud> = OnceCell::const_new();
    CLOUD
        .get_or_init(|| async {
            let mut config = LabConfig::empty("operator");
            config.light = Some(LightConfig {
                hosts: vec!["seed".to_owned()],
                ..LightConfig::hosts(30)
            });
            let lab = Box::pin(cobalt_lab::testing::lab(config)).await.unwrap();
            let access = lab.status().await.unwrap().access.unwrap();
            Cloud { access, _lab: lab }
        })
        .await
}

impl Cloud {
    /// An administrator.
    pub fn client(&self) -> Client {
        let access = &self.access;
        let domain = Reference::named(&access.domain);
        let credentials = Credentials {
            region: Some(access.region.clone()),
            ..Credentials::password(
                &access.auth_url,
                Reference::named_in(&access.username, domain.clone()),
                Secret::new(&access.password),
                Reference::named_in(&access.project, domain),
            )
        };
        Client::new(Config {
            deadline: Duration::from_secs(120),
            ..Config::new(Source::given(credentials))
        })
    }

    /// Where a service is, by the catalog, without its version.
    pub async fn endpoint(&self, kind: &str) -> String {
        let access = &self.access;
        let domain = json!({ "name": access.domain });
        let user = json!({
            "name": access.username, "domain": domain, "password": access.password,
        });
        let login = json!({ "auth": {
            "identity": { "methods": ["password"], "password": { "user": user } },
            "scope": { "project": { "name": access.project, "domain": domain } },
        } });
        let url = format!("{}/auth/tokens", access.auth_url);
        let answer = raw("POST", &url, login).await.unwrap();
        let catalog = answer["token"]["catalog"].as_array().unwrap();
        let service = catalog.iter().find(|one| one["type"] == kind).unwrap();
        let url: http::Uri = service["endpoints"][0]["url"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        format!("http://{}", url.authority().unwrap())
    }

    async fn control(&self, method: &str, path: &str, body: Value) -> Value {
        let url = format!("{}{path}", self.access.control_url.as_ref().unwrap());
        raw(method, &url, body).await.unwrap()
    }

    /// A new host, as soon as Nova and Placement know it.
    pub async fn add_host(&self, name: &str) {
        self.control("POST", "/hosts", json!({ "name": name }))
            .await;
        let client = self.client();
        until("Nova knows the host", || async {
            client.compute().hypervisor_named(name).await.unwrap()
        })
        .await;
    }

    /// Silences the nova-compute of a host, so that it does not come back once it is removed.
    pub async fn stop_host(&self, name: &str) {
        self.control("POST", &format!("/hosts/{name}/stop"), json!({}))
            .await;
    }

    /// Starts it again.
    pub async fn start_host(&self, name: &str) {
        self.control("POST", &format!("/hosts/{name}/start"), json!({}))
            .await;
    }

    /// Adds a host to a knob, or takes it from there.
    pub async fn knob(&self, knob: &str, host: &str, on: bool) {
        // Several tests turn the same knob.
        static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let _one = ONE_AT_A_TIME.lock().await;
        let knobs = self.control("GET", "/knobs", json!({})).await;
        let mut hosts: Vec<String> = serde_json::from_value(knobs[knob].clone()).unwrap();
        hosts.retain(|known| known != host);
        if on {
            hosts.push(host.to_owned());
        }
        self.control("PATCH", "/knobs", json!({ knob: hosts }))
            .await;
    }

    /// The nova-compute of a host.
    pub async fn service(&self, host: &str) -> Option<ComputeService> {
        self.client().compute().service_of(host).await.unwrap()
    }

    /// Names of the aggregates that a host is in.
    pub async fn aggregates(&self, host: &str) -> Vec<String> {
        let all = self.client().compute().aggregates().await.unwrap();
        let mut names: Vec<String> = all
            .into_iter()
            .filter(|one| one.hosts.contains(host))
            .map(|one| one.name)
            .collect();
        names.sort();
        names
    }

    /// The custom traits of a host.
    pub async fn traits(&self, host: &str) -> Vec<String> {
        let client = self.client();
        let provider = client
            .placement()
            .provider_named(host)
            .await
            .unwrap()
            .unwrap();
        let traits = client
            .placement()
            .traits(&provider.uuid)
            .await
            .unwrap()
            .traits;
        traits
            .into_iter()
            .filter(|name| name.starts_with("CUSTOM_"))
            .collect()
    }

    /// A server of a tenant on a host that takes workload.
    pub async fn boot(&self, name: &str, host: &str) -> String {
        let client = self.client();
        let new = NewServer {
            name: name.into(),
            flavor: "1".into(),
            root: RootDisk::Blank { gib: 1 },
            networks: NewServerNetworks::None,
            host: Some(host.into()),
            availability_zone: None,
            metadata: [].into(),
        };
        // The scheduler hears a moment later that a host was let go by the tests: as tenants do, it
        // is tried again.
        until("a server runs", || async {
            let id = client.compute().create_server(&new).await.unwrap();
            let status = until("the server runs, or does not", || async {
                let server = client.compute().server(&id).await.unwrap();
                let over = [ServerStatus::Active, ServerStatus::Error].contains(&server.status);
                over.then_some(server.status)
            })
            .await;
            if status == ServerStatus::Active {
                return Some(id);
            }
            self.delete(&id).await;
            None
        })
        .await
    }

    pub async fn delete(&self, id: &str) {
        let client = self.client();
        client.compute().delete_server(id).await.unwrap();
        until("the server is gone", || async {
            cobalt_openstack::found(client.compute().server(id).await)
                .unwrap()
                .is_none()
                .then_some(())
        })
        .await;
    }

    /// Test servers whose name begins so.
    pub async fn test_servers(&self, prefix: &str) -> Vec<String> {
        let filter = ServerFilter {
            all_projects: true,
            ..ServerFilter::default()
        };
        let all = self.client().compute().server_names(&filter).await.unwrap();
        all.into_iter()
            .filter(|one| one.name.starts_with(prefix))
            .map(|one| one.name)
            .collect()
    }

    /// Nothing of a host is left.
    pub async fn has_nothing_of(&self, host: &str) -> bool {
        let client = self.client();
        let service = client.compute().service_of(host).await.unwrap();
        let provider = client.placement().provider_named(host).await.unwrap();
        service.is_none() && provider.is_none() && self.aggregates(host).await.is_empty()
    }
}

/// One call without a token, for the control port.
async fn raw(method: &str, url: &str, body: Value) -> Result<Value, String> {
    let client: hyper_util::client::legacy::Client<HttpConnector, Full<axum::body::Bytes>> =
        hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http();
    let request = http::Request::builder()
        .method(method)
        .uri(url)
        .header("Content-Type", "application/json")
        .body(Full::from(body.to_string()))
        .unwrap();
    let answer = client.request(request).await.unwrap();
    let status = answer.status();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    if !status.is_success() {
        return Err(format!("{method} {url}: {status} {body:?}"));
    }
    Ok(serde_json::from_slice(&body).unwrap_or(Value::Null))
}
