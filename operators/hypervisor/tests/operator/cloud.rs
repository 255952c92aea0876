//! The light OpenStack that the tests share: real Keystone, Placement and Nova on fake hypervisors.
//! Each test adds hosts of its own.

use cobalt_lab::LabConfig;
use cobalt_lab::access::Access;
use cobalt_lab::config::OpenStackConfig;
use cobalt_lab::handle::Lab;
use cobalt_lab::light::LightConfig;
use cobalt_lab::node::Observed;
use cobalt_openstack::compute::{
    ComputeService, NewAggregate, NewServer, NewServerNetworks, RootDisk, ServerFilter,
    ServerStatus,
};
use cobalt_openstack::{Client, Config, Credentials, Reference, Secret, Source};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, OnceCell};

use crate::support::{unique, until};

/// The zone and its aggregate.
pub const ZONE: &str = "lab-a";
/// What keeps tenants away.
pub const TEST_AGGREGATE: &str = "tenant_filter_tests";

pub struct Cloud {
    pub access: Access,
    // Ends with this process, if not before.
    lab: Lab,
}

/// The one that all tests share; the first starts it.
pub async fn cloud() -> &'static Cloud {
    static CLOUD: OnceCell<Cloud> = OnceCell::const_new();
    CLOUD.get_or_init(|| start("operator", 1)).await
}

/// One of their own for those that empty hosts: here a live migration takes its time.
pub async fn slow_cloud() -> &'static Cloud {
    static CLOUD: OnceCell<Cloud> = OnceCell::const_new();
    CLOUD
        .get_or_init(|| async {
            let cloud = start("evictions", 8).await;
            let slow = json!({ "live_migration_seconds": 2 });
            cloud.control("PATCH", "/knobs", slow).await;
            cloud
        })
        .await
}

/// One whose cell one test may stop: the others would notice.
pub async fn cell_cloud() -> &'static Cloud {
    static CLOUD: OnceCell<Cloud> = OnceCell::const_new();
    CLOUD.get_or_init(|| start("cell", 4)).await
}

/// One lab with real nodes at a time: the machine has room for about seven of them.
pub static NODES: Mutex<()> = Mutex::const_new(());

/// A whole region with two real hypervisors, and its API server's kubeconfig. Live migrations are
/// slow enough to be seen.
pub async fn region(name: &str) -> (&'static Cloud, PathBuf) {
    let mut config = LabConfig::region(name, 2);
    config.openstack = Some(OpenStackConfig {
        servers: 0,
        migration_bandwidth: 8,
    });
    let lab = cobalt_lab::testing::lab(config);
    let lab = Box::pin(lab).await.unwrap();
    let access = lab.status().await.unwrap().access.unwrap();
    let kubeconfig = lab.kubeconfig();
    (Box::leak(Box::new(Cloud { access, lab })), kubeconfig)
}

async fn start(name: &str, concurrent_live_migrations: u32) -> Cloud {
    let mut config = LabConfig::empty(name);
    config.light = Some(LightConfig {
        hosts: vec!["seed".to_owned()],
        concurrent_live_migrations,
        ..LightConfig::hosts(30)
    });
    let lab = Box::pin(cobalt_lab::testing::lab(config)).await.unwrap();
    let access = lab.status().await.unwrap().access.unwrap();
    Cloud { access, lab }
}

impl Cloud {
    /// The agent's flag for the libvirt of a real hypervisor.
    pub async fn libvirt_flag(&self, host: &str) -> String {
        let status = self.lab.status().await.unwrap();
        let node = status.nodes.iter().find(|node| node.name == host).unwrap();
        let pid = cobalt_lab::node::pid_one(host, &node.observed).unwrap();
        format!(
            "--libvirt-uri=qemu+unix:///system?socket=/proc/{pid}/root/run/libvirt/libvirt-sock"
        )
    }

    /// Starts a node agent inside of a real hypervisor, as a pod of the host would run: logind wants
    /// to know who asks. It ends with the machine.
    pub async fn agent_inside(&self, host: &str, kubeconfig: &Path) -> Child {
        let observed = self.observed(host).await;
        let pid = cobalt_lab::node::pid_one(host, &observed).unwrap();
        let root = PathBuf::from(format!("/proc/{pid}/root/root"));
        let program = root.join("agent");
        if !program.exists() {
            let built = cobalt_lab::testing::built("cobalt-node-agent").unwrap();
            std::fs::copy(built, &program).unwrap();
        }
        std::fs::copy(kubeconfig, root.join("kubeconfig")).unwrap();
        // The shell stays outside of the machine; what it starts is inside.
        let script = "\"$@\" & wait";
        Command::new("nsenter")
            .args(["-F", "-t", &pid.to_string(), "-m", "-p", "sh", "-c", script])
            .args(["sh", "/root/agent", "--node", host, "--identity", host])
            .args(["--namespace", "default"])
            .args(["--libvirt-uri", "qemu+unix:///system"])
            .args(["--shutdown-delay", "10m"])
            .args(["--metrics-bind-address", "0"])
            .args(["--health-probe-bind-address", "0"])
            .args(["--migration-write-interval", "1s"])
            .env("KUBECONFIG", "/root/kubeconfig")
            .env("LOG_LEVEL", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Runs something inside of a machine. Returns what it printed.
    pub async fn run(&self, machine: &str, arguments: &[&str]) -> String {
        let ran = cobalt_lab::testing::run_inside(&self.lab, machine, arguments).await;
        ran.unwrap()
    }

    /// What the lab sees of a machine's power.
    pub async fn observed(&self, machine: &str) -> Observed {
        let status = self.lab.status().await.unwrap();
        let mut nodes = status.nodes.into_iter();
        nodes.find(|node| node.name == machine).unwrap().observed
    }

    /// The console of a server where it is now. The next host begins another, and this one stays
    /// whole for whoever has opened it.
    pub fn console(&self, server: &str) -> File {
        let instances = self.lab.dir().join("instances");
        File::open(instances.join(server).join("console.log")).unwrap()
    }

    /// Nobody needs it any more.
    pub async fn down(&self) {
        self.lab.down().await.unwrap();
    }

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
        address(&self.login().await.1, kind)
    }

    /// A token of the administrator, and the catalog.
    async fn login(&self) -> (String, Value) {
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
        let (token, answer) = send("POST", &url, None, login).await.unwrap();
        (token.unwrap(), answer["token"]["catalog"].clone())
    }

    async fn control(&self, method: &str, path: &str, body: Value) -> Value {
        let url = format!("{}{path}", self.access.control_url.as_ref().unwrap());
        send(method, &url, None, body).await.unwrap().1
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

    /// The same where nothing can be awaited: at the end of a test, so that its hosts do not keep
    /// Nova busy. Whether it works is of no interest then.
    pub fn silence(&self, name: &str) {
        let Some(url) = &self.access.control_url else {
            return;
        };
        let address = url.trim_start_matches("http://").trim_end_matches('/');
        let Ok(mut stream) = std::net::TcpStream::connect(address) else {
            return;
        };
        let ask = format!(
            "POST /hosts/{name}/stop HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
             Content-Length: 2\r\n\r\n{{}}"
        );
        let patience = Some(Duration::from_secs(10));
        stream.set_read_timeout(patience).ok();
        stream.write_all(ask.as_bytes()).ok();
        stream.read_exact(&mut [0; 16]).ok();
    }

    /// Starts it again.
    pub async fn start_host(&self, name: &str) {
        self.control("POST", &format!("/hosts/{name}/start"), json!({}))
            .await;
    }

    /// The machine loses its power, and its guests.
    pub async fn kill_host(&self, name: &str) {
        self.control("POST", &format!("/hosts/{name}/kill"), json!({}))
            .await;
    }

    /// Nova's API cannot reach the database of the cell of all hosts.
    pub async fn stop_cell(&self) {
        self.control("POST", "/cell/stop", json!({})).await;
    }

    /// It can again.
    pub async fn start_cell(&self) {
        self.control("POST", "/cell/start", json!({})).await;
    }

    /// A flavor with so much memory, in MiB.
    pub async fn add_flavor(&self, id: &str, ram: u64) {
        let (token, catalog) = self.login().await;
        let url = format!("{}/v2.1/flavors", address(&catalog, "compute"));
        let flavor = json!({ "flavor": {
            "id": id, "name": id, "ram": ram, "vcpus": 1, "disk": 0,
            "OS-FLV-EXT-DATA:ephemeral": 1,
        } });
        send("POST", &url, Some(&token), flavor).await.unwrap();
    }

    pub async fn set_extra_spec(&self, flavor: &str, key: &str, value: &str) {
        let (token, catalog) = self.login().await;
        let nova = address(&catalog, "compute");
        let url = format!("{nova}/v2.1/flavors/{flavor}/os-extra_specs");
        let specs = json!({ "extra_specs": { key: value } });
        send("POST", &url, Some(&token), specs).await.unwrap();
    }

    pub async fn set_image_property(&self, image: &str, key: &str, value: &str) {
        let image = self.client().find_image(image).await.unwrap().unwrap();
        let (token, catalog) = self.login().await;
        let url = format!("{}/v2/images/{}", address(&catalog, "image"), image.id);
        let change = json!([{ "op": "add", "path": format!("/{key}"), "value": value }]);
        let headers = [(JSON.0, "application/openstack-images-v2.1-json-patch")];
        let sent = send_with(&headers, "PATCH", &url, Some(&token), change).await;
        sent.unwrap();
    }

    /// Gives a host so much memory, in MiB, as far as Placement is concerned.
    pub async fn give_memory(&self, host: &str, mib: u64) {
        let client = self.client();
        let placement = client.placement();
        let provider = placement.provider_named(host).await.unwrap().unwrap();
        until("the host has memory", || async {
            let all = placement.inventories(&provider.uuid).await.unwrap();
            let mut memory = all.inventories["MEMORY_MB"].clone();
            (memory.total, memory.max_unit) = (mib, mib);
            let put = placement.put_inventory(&provider.uuid, "MEMORY_MB", &memory, all.generation);
            // Nova may have changed something in between.
            put.await.ok()
        })
        .await;
    }

    /// Adds a host or a server to a knob, or takes it from there.
    pub async fn knob(&self, knob: &str, host: &str, on: bool) {
        // Several tests turn the same knob.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
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

    /// Something that Nova is to do with a server, and the product never asks for.
    pub async fn server_action(&self, server: &str, action: Value) {
        let (token, catalog) = self.login().await;
        let nova = address(&catalog, "compute");
        let url = format!("{nova}/v2.1/servers/{server}/action");
        let sent = send("POST", &url, Some(&token), action.clone()).await;
        sent.unwrap_or_else(|error| panic!("{action}: {error}"));
    }

    /// Boots servers on a host, in a new server group with this rule. Returns the group's id and name.
    pub async fn boot_group(
        &self,
        rule: &str,
        host: &str,
        zone: &str,
        names: &[&str],
    ) -> (String, String) {
        let (group, name) = self.add_group(rule).await;
        for name in names {
            self.boot_in_group(&group, name, host, zone).await;
        }
        (group, name)
    }

    /// A server group with this rule: its id and name.
    pub async fn add_group(&self, rule: &str) -> (String, String) {
        let (token, catalog) = self.login().await;
        let nova = address(&catalog, "compute");
        let name = unique("group");
        let group = json!({ "server_group": { "name": name, "policies": [rule] } });
        let url = format!("{nova}/v2.1/os-server-groups");
        let (_, made) = send("POST", &url, Some(&token), group).await.unwrap();
        let group = made["server_group"]["id"].as_str().unwrap();
        (group.to_owned(), name)
    }

    /// Boots a server on a host, as a member of a server group. Returns its id.
    pub async fn boot_in_group(&self, group: &str, name: &str, host: &str, zone: &str) -> String {
        let (token, catalog) = self.login().await;
        let nova = format!("{}/v2.1", address(&catalog, "compute"));
        // The client has no use for hints.
        let new = json!({
            "server": {
                "name": name, "flavorRef": "1", "imageRef": "", "networks": "none",
                "availability_zone": format!("{zone}:{host}"),
                "block_device_mapping_v2": [{
                    "boot_index": 0, "source_type": "blank", "destination_type": "local",
                    "volume_size": 1, "delete_on_termination": true,
                }],
            },
            "os:scheduler_hints": { "group": group },
        });
        // Since then a server may have no network.
        let headers = [JSON, ("OpenStack-API-Version", "compute 2.37")];
        let url = format!("{nova}/servers");
        let made = send_with(&headers, "POST", &url, Some(&token), new).await;
        let (_, made) = made.unwrap();
        let id = made["server"]["id"].as_str().unwrap().to_owned();
        let client = self.client();
        until("the server runs", || async {
            let server = client.compute().server(&id).await.unwrap();
            assert_ne!(server.status, ServerStatus::Error, "{:?}", server.fault);
            (server.status == ServerStatus::Active).then_some(())
        })
        .await;
        id
    }

    pub async fn delete_group(&self, id: &str) {
        let (token, catalog) = self.login().await;
        let nova = address(&catalog, "compute");
        let url = format!("{nova}/v2.1/os-server-groups/{id}");
        send("DELETE", &url, Some(&token), Value::Null)
            .await
            .unwrap();
    }

    /// A port of a server, of some kind, that Nova has no part in. Nova finds it within a minute, and
    /// from then on a migration of the server ends in ERROR, because nobody can plug the port in.
    pub async fn add_port(&self, server: &str, host: &str, network: &str, kind: &str) {
        let network = self.client().find_network(network).await.unwrap().unwrap();
        let (token, catalog) = self.login().await;
        let url = format!("{}/v2.0/ports", address(&catalog, "network"));
        let port = json!({ "port": {
            "network_id": network.id, "device_id": server,
            "binding:host_id": host, "binding:vnic_type": kind,
        } });
        send("POST", &url, Some(&token), port).await.unwrap();
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

    /// A zone, from where servers do not go to another one.
    pub async fn add_zone(&self, name: &str) {
        let zone = NewAggregate {
            name: name.to_owned(),
            availability_zone: Some(name.to_owned()),
        };
        self.client()
            .compute()
            .create_aggregate(&zone)
            .await
            .unwrap();
    }

    /// A server of a tenant on a host that takes workload.
    pub async fn boot(&self, name: &str, host: &str) -> String {
        self.boot_in(name, host, None, &[]).await
    }

    /// A server that stays in the zone of its host.
    pub async fn boot_in(
        &self,
        name: &str,
        host: &str,
        zone: Option<&str>,
        metadata: &[(&str, &str)],
    ) -> String {
        self.boot_as(name, host, zone, "1", metadata).await
    }

    /// One with a flavor that is not the usual one.
    pub async fn boot_as(
        &self,
        name: &str,
        host: &str,
        zone: Option<&str>,
        flavor: &str,
        metadata: &[(&str, &str)],
    ) -> String {
        let client = self.client();
        let new = new_server(name, host, zone, flavor, metadata);
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

fn address(catalog: &Value, kind: &str) -> String {
    let catalog = catalog.as_array().unwrap();
    let service = catalog.iter().find(|one| one["type"] == kind).unwrap();
    let url = service["endpoints"][0]["url"].as_str().unwrap();
    let url: http::Uri = url.parse().unwrap();
    format!("http://{}", url.authority().unwrap())
}

/// A server to be, on a host.
pub fn new_server(
    name: &str,
    host: &str,
    zone: Option<&str>,
    flavor: &str,
    metadata: &[(&str, &str)],
) -> NewServer {
    let metadata = metadata.iter();
    NewServer {
        name: name.into(),
        flavor: flavor.into(),
        root: RootDisk::Blank { gib: 1 },
        networks: NewServerNetworks::None,
        host: Some(host.into()),
        availability_zone: zone.map(ToOwned::to_owned),
        metadata: metadata
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

/// One call. Returns the token that came with the answer, if one did, and its body.
async fn send(
    method: &str,
    url: &str,
    token: Option<&str>,
    body: Value,
) -> Result<(Option<String>, Value), String> {
    send_with(&[JSON], method, url, token, body).await
}

const JSON: (&str, &str) = ("Content-Type", "application/json");

async fn send_with(
    headers: &[(&str, &str)],
    method: &str,
    url: &str,
    token: Option<&str>,
    body: Value,
) -> Result<(Option<String>, Value), String> {
    let client: hyper_util::client::legacy::Client<HttpConnector, Full<axum::body::Bytes>> =
        hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http();
    let mut request = http::Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if let Some(token) = token {
        request = request.header("X-Auth-Token", token);
    }
    let request = request.body(Full::from(body.to_string())).unwrap();
    let answer = client.request(request).await.unwrap();
    let status = answer.status();
    let token = answer.headers().get("X-Subject-Token");
    let token = token.map(|token| token.to_str().unwrap().to_owned());
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    if !status.is_success() {
        return Err(format!("{method} {url}: {status} {body:?}"));
    }
    Ok((token, serde_json::from_slice(&body).unwrap_or(Value::Null)))
}
