//! A client of OpenStack's APIs, as small as the tests need it.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use base64::Engine;
use cobalt_lab::access::Access;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

/// The newest version of Nova's API that leaves an evacuated server running.
const COMPUTE: &str = "compute 2.94";

pub struct Cloud {
    /// The id of the project.
    pub project: String,
    token: String,
    /// URLs by the types of services.
    pub endpoints: BTreeMap<String, String>,
}

impl Cloud {
    pub async fn login(access: &Access) -> Self {
        Self::login_to(access, &access.project, &access.domain).await
    }

    /// The administrator in the project that hypervisors are tried out with.
    pub async fn login_to_tests(access: &Access) -> Self {
        Self::login_to(access, "test", "cc3test").await
    }

    async fn login_to(access: &Access, project: &str, project_domain: &str) -> Self {
        let mut cloud = Self {
            project: String::new(),
            token: String::new(),
            endpoints: BTreeMap::new(),
        };
        let user = json!({
            "name": access.username, "password": access.password,
            "domain": { "name": access.domain },
        });
        let project = json!({ "name": project, "domain": { "name": project_domain } });
        let body = json!({ "auth": {
            "identity": { "methods": ["password"], "password": { "user": user } },
            "scope": { "project": project },
        }});
        let url = format!("{}/auth/tokens", access.auth_url);
        let (headers, answer) = cloud.send("POST", &url, Some(body)).await.unwrap();
        headers["x-subject-token"]
            .to_str()
            .unwrap()
            .clone_into(&mut cloud.token);
        let project = answer["token"]["project"]["id"].as_str();
        project.unwrap().clone_into(&mut cloud.project);
        for service in answer["token"]["catalog"].as_array().unwrap() {
            let endpoints = service["endpoints"].as_array().unwrap();
            let public = endpoints.iter().find(|e| e["interface"] == "public");
            let url = public.unwrap()["url"].as_str().unwrap();
            let kind = service["type"].as_str().unwrap().to_owned();
            cloud
                .endpoints
                .insert(kind, url.trim_end_matches('/').to_owned());
        }
        cloud
    }

    /// Calls a service; a refusal fails the test.
    pub async fn call(
        &self,
        method: &str,
        service: &str,
        path: &str,
        body: Option<Value>,
    ) -> Value {
        match self.attempt(method, service, path, body).await {
            Ok(answer) => answer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Calls a service.
    pub async fn attempt(
        &self,
        method: &str,
        service: &str,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, String> {
        let url = format!("{}{path}", self.endpoints[service]);
        self.send(method, &url, body).await.map(|(_, body)| body)
    }

    pub async fn get(&self, service: &str, path: &str) -> Value {
        self.call("GET", service, path, None).await
    }

    async fn send(
        &self,
        method: &str,
        url: &str,
        body: Option<Value>,
    ) -> Result<(http::HeaderMap, Value), String> {
        let request = http::Request::builder()
            .method(method)
            .uri(url)
            .header("X-Auth-Token", &self.token)
            .header("OpenStack-API-Version", COMPUTE);
        send(request, body).await
    }

    /// Boots a server of the small Linux on a host; returns its id at once.
    pub async fn boot(&self, name: &str, host: &str) -> String {
        let image = self.get("image", "/v2/images?name=lab-linux").await;
        let network = self.get("network", "/v2.0/networks?name=lab").await;
        self.create(json!({
            "name": name,
            "host": host,
            "imageRef": image["images"][0]["id"],
            "flavorRef": "m1.lab",
            "networks": [{ "uuid": network["networks"][0]["id"] }],
        }))
        .await
    }

    /// Boots a server on a host as those do who try hypervisors out; returns its id at once.
    pub async fn boot_test(&self, name: &str, host: &str) -> String {
        let image = self.get("image", "/v2/images?name=cirros-kvm").await;
        let network = self.get("network", "/v2.0/networks?name=test").await;
        self.create(json!({
            "name": name,
            "host": host,
            "imageRef": image["images"][0]["id"],
            "flavorRef": "1",
            "networks": [{ "uuid": network["networks"][0]["id"] }],
        }))
        .await
    }

    async fn create(&self, server: Value) -> String {
        let body = Some(json!({ "server": server }));
        let answer = self.call("POST", "compute", "/servers", body).await;
        answer["server"]["id"].as_str().unwrap().to_owned()
    }

    /// Puts a host into an aggregate (`add_host`) or takes it out (`remove_host`).
    pub async fn aggregate(&self, name: &str, action: &str, host: &str) {
        let all = self.get("compute", "/os-aggregates").await;
        let mut all = all["aggregates"].as_array().unwrap().iter();
        let found = all.find(|aggregate| aggregate["name"] == name).unwrap();
        let path = format!("/os-aggregates/{}/action", found["id"]);
        let body = json!({ action: { "host": host } });
        self.call("POST", "compute", &path, Some(body)).await;
    }

    /// Tries a host out as an operator does: it is in the zone and reserved for the project of
    /// tests, whose server boots there, says its name, and moves to a peer of the zone. Nobody
    /// else's gets there until the host is released.
    pub async fn try_out(&self, tests: &Self, host: &str, peer: &str) {
        let own = format!("/v2.0/networks?project_id={}&shared=false", tests.project);
        let own = tests.get("network", &own).await;
        assert_eq!(own["networks"][0]["name"], "test", "{own}");
        for host in [host, peer] {
            self.aggregate("lab-a", "add_host", host).await;
        }
        self.aggregate("tenant_filter_tests", "add_host", host)
            .await;
        let name = format!("trial--{host}-1");
        let id = tests.boot_test(&name, host).await;
        assert_eq!(tests.active(&id).await.host, host);
        until("its last words have its name", || async {
            let console = tests.console_end(&id, json!(11)).await;
            console.contains(&name).then_some(())
        })
        .await;
        let alien = self.boot_test("alien", host).await;
        let refusal = self.refused(&alien).await;
        assert!(refusal.contains("No valid host"), "{refusal}");
        self.delete(&alien).await;

        let migrate = json!({ "os-migrateLive": { "host": peer, "block_migration": "auto" }});
        tests.action(&id, migrate).await;
        until("it has moved", || async {
            let server = tests.server(&id).await;
            (server.host == peer && server.status == "ACTIVE" && !server.busy).then_some(())
        })
        .await;
        tests.delete(&id).await;
        self.aggregate("tenant_filter_tests", "remove_host", host)
            .await;
        let native = self.boot_test("native", host).await;
        assert_eq!(self.active(&native).await.host, host);
        self.delete(&native).await;
    }

    /// Waits until Nova has given a server up; returns why.
    pub async fn refused(&self, id: &str) -> String {
        let refused = until(&format!("server {id} is in ERROR"), || async {
            let server = self.server(id).await;
            assert_ne!(server.status, "ACTIVE", "{server:?}");
            (server.status == "ERROR").then_some(server)
        })
        .await;
        refused.fault.unwrap_or_default()
    }

    /// Deletes a server and waits until it is gone.
    pub async fn delete(&self, id: &str) {
        let path = format!("/servers/{id}");
        self.call("DELETE", "compute", &path, None).await;
        until(&format!("server {id} is gone"), || async {
            self.attempt("GET", "compute", &path, None).await.err()
        })
        .await;
    }

    pub async fn server(&self, id: &str) -> Server {
        let server = self.get("compute", &format!("/servers/{id}")).await;
        let server = &server["server"];
        let text = |key: &str| server[key].as_str().unwrap_or_default().to_owned();
        let networks = server["addresses"].as_object();
        let first = networks.and_then(|networks| networks.values().next());
        let address = first.and_then(|all| all[0]["addr"].as_str());
        Server {
            status: text("status"),
            host: text("OS-EXT-SRV-ATTR:host"),
            domain: text("OS-EXT-SRV-ATTR:instance_name"),
            busy: !server["OS-EXT-STS:task_state"].is_null(),
            address: address.unwrap_or_default().to_owned(),
            fault: server["fault"]["message"].as_str().map(ToOwned::to_owned),
        }
    }

    /// Waits until a server runs on some host and nothing is under way.
    pub async fn active(&self, id: &str) -> Server {
        until(&format!("server {id} is ACTIVE"), || async {
            let server = self.server(id).await;
            assert_ne!(server.status, "ERROR", "{:?}", server.fault);
            let done = server.status == "ACTIVE" && !server.busy && !server.address.is_empty();
            done.then_some(server)
        })
        .await
    }

    pub async fn action(&self, id: &str, action: Value) {
        let path = format!("/servers/{id}/action");
        self.call("POST", "compute", &path, Some(action)).await;
    }

    pub async fn console(&self, id: &str) -> String {
        self.console_end(id, json!(null)).await
    }

    /// The last lines of a server's console.
    pub async fn console_end(&self, id: &str, lines: Value) -> String {
        let path = format!("/servers/{id}/action");
        let action = json!({ "os-getConsoleOutput": { "length": lines } });
        let answer = self.call("POST", "compute", &path, Some(action)).await;
        answer["output"].as_str().unwrap_or_default().to_owned()
    }

    /// Hosts whose nova-compute is up, or down.
    pub async fn hosts(&self, state: &str) -> Vec<String> {
        let services = self
            .get("compute", "/os-services?binary=nova-compute")
            .await;
        let services = services["services"].as_array().unwrap();
        services
            .iter()
            .filter(|service| service["state"] == state)
            .map(|service| service["host"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// A call of any other service; a user and a password may be in the URL.
pub async fn http(method: &str, url: &str, body: Option<Value>) -> Result<Value, String> {
    let mut request = http::Request::builder().method(method);
    let plain = match url.split_once('@') {
        Some((login, rest)) => {
            let login = login.trim_start_matches("http://");
            let word = base64::engine::general_purpose::STANDARD.encode(login);
            request = request.header("Authorization", format!("Basic {word}"));
            format!("http://{rest}")
        }
        None => url.to_owned(),
    };
    let (_, answer) = send(request.uri(plain), body).await?;
    Ok(answer)
}

async fn send(
    request: http::request::Builder,
    body: Option<Value>,
) -> Result<(http::HeaderMap, Value), String> {
    let request = request
        .header("Content-Type", "application/json")
        .body(Full::from(body.map(|b| b.to_string()).unwrap_or_default()))
        .unwrap();
    let call = format!("{} {}", request.method(), request.uri());
    let failed = |error: &dyn std::fmt::Debug| format!("{call}: {error:?}");
    let client: Client<HttpConnector, Full<bytes::Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let answer = tokio::time::timeout(Duration::from_secs(60), client.request(request))
        .await
        .map_err(|error| failed(&error))?
        .map_err(|error| failed(&error))?;
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map_err(|error| failed(&error))?;
    let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    if !head.status.is_success() {
        return Err(format!("{call}: {} {text}", head.status));
    }
    Ok((
        head.headers,
        serde_json::from_str(&text).unwrap_or(Value::Null),
    ))
}

#[derive(Debug)]
pub struct Server {
    pub status: String,
    pub host: String,
    /// libvirt's name.
    pub domain: String,
    /// Whether Nova is doing something with it.
    pub busy: bool,
    pub address: String,
    pub fault: Option<String>,
}

/// Waits for something that OpenStack tells nobody about: asks again and again.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, ask: impl Fn() -> F) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    match tokio::time::timeout(Duration::from_secs(180), asking).await {
        Ok(answer) => answer,
        Err(_) => panic!("waited in vain: {what}"),
    }
}
