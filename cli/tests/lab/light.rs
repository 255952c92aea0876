//! The light OpenStack: real services, fake hypervisors, and knobs to break them with.

use cobalt_lab::control::Fault;
use cobalt_lab::light::LightConfig;
use cobalt_lab::{Lab, LabConfig};
use serde_json::{Value, json};

use crate::cloud::{Cloud, http, until};

struct Light {
    cloud: Cloud,
    control: String,
}

impl Light {
    async fn knob(&self, name: &str, value: Value) {
        let url = format!("{}/knobs", self.control);
        http("PATCH", &url, Some(json!({ name: value })))
            .await
            .unwrap();
    }

    async fn host(&self, name: &str, verb: &str) {
        let url = format!("{}/hosts/{name}/{verb}", self.control);
        http("POST", &url, None).await.unwrap();
    }

    /// Stops, kills or starts a part of Nova's control plane: `cell/stop`, `conductor/kill`.
    async fn control_plane(&self, verb: &str) {
        let url = format!("{}/{verb}", self.control);
        http("POST", &url, None).await.unwrap();
    }

    async fn boot(&self, name: &str, host: &str) -> String {
        let id = self.boot_request(name, host).await;
        self.on(&id, host).await;
        id
    }

    /// Asks for a server on a host; returns its id at once.
    async fn boot_request(&self, name: &str, host: &str) -> String {
        let server = json!({ "server": {
            "name": name, "host": host, "imageRef": "", "flavorRef": "1", "networks": "none",
            "block_device_mapping_v2": [{
                "boot_index": 0, "source_type": "blank", "destination_type": "local",
                "volume_size": 1, "delete_on_termination": true,
            }],
        }});
        let answer = self
            .cloud
            .call("POST", "compute", "/servers", Some(server))
            .await;
        answer["server"]["id"].as_str().unwrap().to_owned()
    }

    /// Waits until a server is ACTIVE on a host.
    async fn on(&self, id: &str, host: &str) {
        until(&format!("{id} runs on {host}"), || async {
            let server = self.cloud.server(id).await;
            let there = server.host == host && server.status == "ACTIVE" && !server.busy;
            there.then_some(())
        })
        .await;
    }

    async fn migration(&self, id: &str) -> Value {
        let path = format!("/os-migrations?instance_uuid={id}");
        let all = self.cloud.get("compute", &path).await;
        all["migrations"][0].clone()
    }
}

fn migrate(host: &str) -> Value {
    json!({ "os-migrateLive": { "host": host, "block_migration": "auto" }})
}

/// Three fake hypervisors, and the administrator in the project of tests.
async fn three(name: &str) -> (Lab, Light, Cloud) {
    let mut config = LabConfig::empty(name);
    config.light = Some(LightConfig::hosts(3));
    let lab = cobalt_lab::testing::lab(config).await.unwrap();
    let access = lab.status().await.unwrap().access.unwrap();
    let light = Light {
        cloud: Cloud::login(&access).await,
        control: access.control_url.clone().unwrap(),
    };
    (lab, light, Cloud::login_to_tests(&access).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_under_test_boots_servers_of_the_test_project_only() {
    let (lab, light, tests) = three("trial").await;
    light.cloud.try_out(&tests, "hv1", "hv2").await;

    // Everything that can go wrong with a trial, on one host alone.
    light.knob("fail_spawn", json!(["hv1"])).await;
    let fails = tests.boot_test("fails", "hv1").await;
    tests.refused(&fails).await;
    light.knob("fail_spawn", json!([])).await;

    light.knob("hang_spawn", json!(["hv1"])).await;
    let hangs = tests.boot_test("hangs", "hv1").await;
    let resumes = tests.boot_test("resumes", "hv1").await;
    tests
        .active(&tests.boot_test("elsewhere", "hv2").await)
        .await;
    for id in [&hangs, &resumes] {
        until("it is on its host", || async {
            let server = tests.server(id).await;
            assert_eq!(server.status, "BUILD");
            (server.host == "hv1").then_some(())
        })
        .await;
    }
    tests.delete(&hangs).await;
    light.knob("hang_spawn", json!([])).await;
    tests.active(&resumes).await;

    assert!(tests.console(&resumes).await.contains("resumes"));
    light.knob("silent_console", json!(["hv1"])).await;
    assert_eq!(tests.console(&resumes).await, "");

    // Into the host, while the way out is fine.
    light.knob("fail_live_migration_to", json!(["hv1"])).await;
    tests.action(&resumes, migrate("hv2")).await;
    light.on(&resumes, "hv2").await;
    tests.action(&resumes, migrate("hv1")).await;
    until("it failed", || async {
        let path = format!("/os-migrations?instance_uuid={resumes}&status=failed");
        let failed = light.cloud.get("compute", &path).await;
        (failed["migrations"][0]["dest_compute"] == "hv1").then_some(())
    })
    .await;
    light.on(&resumes, "hv2").await;
    lab.down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_move_fail_and_are_evacuated_on_fake_hypervisors() {
    let (lab, light, _) = three("light").await;
    let cloud = &light.cloud;
    assert_eq!(cloud.hosts("up").await.len(), 3);

    let server = light.boot("one", "hv1").await;
    cloud.action(&server, migrate("hv2")).await;
    light.on(&server, "hv2").await;

    // A migration that takes long enough to be aborted.
    light.knob("live_migration_seconds", json!(600)).await;
    cloud.action(&server, migrate("hv3")).await;
    let running = until("it runs", || async {
        let path = format!("/servers/{server}/migrations");
        let all = cloud.get("compute", &path).await;
        all["migrations"][0]["id"].as_u64()
    })
    .await;
    let path = format!("/servers/{server}/migrations/{running}");
    cloud.call("DELETE", "compute", &path, None).await;
    light.on(&server, "hv2").await;
    assert_eq!(light.migration(&server).await["status"], "cancelled");

    // One that fails.
    light.knob("live_migration_seconds", json!(0)).await;
    light.knob("fail_live_migration", json!([server])).await;
    cloud.action(&server, migrate("hv3")).await;
    until("it failed", || async {
        let migration = light.migration(&server).await;
        (migration["id"] != running && migration["status"] == "failed").then_some(())
    })
    .await;
    light.on(&server, "hv2").await;

    // A silent host is down, and its server is started elsewhere.
    light.host("hv2", "kill").await;
    until("hv2 is down", || async {
        let down = cloud.hosts("down").await;
        down.contains(&"hv2".to_owned()).then_some(())
    })
    .await;
    cloud
        .action(&server, json!({ "evacuate": { "host": "hv1" } }))
        .await;
    light.on(&server, "hv1").await;

    // Both processes die; what they knew is still there.
    for process in ["openstack/identity", "openstack/nova"] {
        lab.fault(Fault::Kill, process).await.unwrap();
        lab.fault(Fault::Heal, process).await.unwrap();
    }
    until("it answers", || async {
        let path = format!("/servers/{server}");
        cloud.attempt("GET", "compute", &path, None).await.ok()
    })
    .await;
    light.on(&server, "hv1").await;
    lab.down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cell_database_and_the_conductor_fail_and_come_back() {
    let (lab, light, _) = three("control-plane").await;
    let cloud = &light.cloud;
    let server = light.boot("one", "hv1").await;

    // Nova answers for a cell that is down: with less, and with nothing that says so.
    light.control_plane("cell/stop").await;
    let seen = cloud.server(&server).await;
    assert_eq!((seen.status.as_str(), seen.host.as_str()), ("UNKNOWN", ""));
    let path = "/servers/detail?all_tenants=1&host=hv1";
    let listed = cloud.get("compute", path).await;
    assert_eq!(listed["servers"], json!([]));
    light.control_plane("cell/start").await;
    light.on(&server, "hv1").await;

    // Killed with the request in its hands: the server is busy for ever, without a migration.
    light.knob("hang_conductor", json!([server])).await;
    cloud.action(&server, migrate("hv2")).await;
    until("the conductor has taken the request", || async {
        let url = format!("{}/conductor", light.control);
        let conductor = http("GET", &url, None).await.unwrap();
        (conductor["hanging"] == json!([server])).then_some(())
    })
    .await;
    light.control_plane("conductor/kill").await;
    light.knob("hang_conductor", json!([])).await;
    // What comes later than the kill waits for the next conductor.
    let later = light.boot_request("two", "hv3").await;
    light.control_plane("conductor/start").await;
    light.on(&later, "hv3").await;
    assert!(cloud.server(&server).await.busy);
    assert_eq!(light.migration(&server).await, Value::Null);
    let reset = json!({ "os-resetState": { "state": "active" } });
    cloud.action(&server, reset.clone()).await;

    // Killed after it has made the record: nobody ends that migration.
    let knob = "hang_conductor_after_record";
    light.knob(knob, json!([server])).await;
    cloud.action(&server, migrate("hv2")).await;
    until("the migration has a record", || async {
        (light.migration(&server).await["status"] == "accepted").then_some(())
    })
    .await;
    light.control_plane("conductor/kill").await;
    light.knob(knob, json!([])).await;
    light.control_plane("conductor/start").await;
    cloud.action(&server, reset).await;
    cloud.action(&server, migrate("hv3")).await;
    light.on(&server, "hv3").await;
    let path = format!("/os-migrations?instance_uuid={server}&status=accepted");
    let stuck = cloud.get("compute", &path).await;
    assert_eq!(stuck["migrations"][0]["source_compute"], "hv1");
    lab.down().await.unwrap();
}
