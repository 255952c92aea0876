//! Hosts are emptied: real Nova moves the servers, in each state that a server can be in.

use std::collections::BTreeMap;
use std::time::Duration;

use cobalt_api::conditions::{self, EvictionCondition, Reason, Status, Wanted};
use cobalt_api::eviction::{
    Eviction, EvictionInstance, EvictionSpec, EvictionStatus, InstanceState, Method, Outcome,
    Verdict,
};
use cobalt_api::hypervisor::{Hypervisor, Phase};
use cobalt_api::names::{FieldManager, annotations, labels, leases};
use cobalt_openstack::compute::{Migration, MigrationFilter, ServerFilter, ServerStatus};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::cloud::{Cloud, new_server, slow_cloud};
use crate::door::{Doors, Fate};
use crate::eviction_faults::at_once;
use crate::support::{Operator, PATIENCE, Site, unique, until};

/// A zone with a host to be emptied, hosts that take its servers, and an operator.
pub struct Drain {
    // It shows its log, which is a file of the site.
    pub operator: Option<Operator>,
    pub site: Site,
    pub zone: String,
    pub source: String,
    pub targets: Vec<String>,
    pub doors: Doors,
    pub arguments: Vec<String>,
}

impl Drain {
    pub async fn new(name: &str, targets: usize, arguments: &[&str]) -> Self {
        Self::at(slow_cloud().await, name, targets, arguments).await
    }

    pub async fn at(cloud: &'static Cloud, name: &str, targets: usize, arguments: &[&str]) -> Self {
        let site = Site::at(cloud, name).await;
        let zone = unique(name);
        cloud.add_zone(&zone).await;
        let source = unique("source");
        let targets: Vec<String> = (0..targets).map(|_| unique("target")).collect();
        let mut drain = Self {
            operator: None,
            doors: Doors::before(cloud).await,
            site,
            zone,
            source,
            targets,
            arguments: arguments.iter().map(|one| (*one).to_owned()).collect(),
        };
        drain.start();
        let hosts: Vec<String> = drain.hosts();
        for host in &hosts {
            drain.join(host).await;
        }
        for host in &hosts {
            drain.site.phase(host, Phase::Active).await;
        }
        drain.doors.forget();
        drain
    }

    pub fn hosts(&self) -> Vec<String> {
        let mut all = vec![self.source.clone()];
        all.extend(self.targets.iter().cloned());
        all
    }

    pub async fn join(&self, host: &str) {
        self.site.cloud.add_host(host).await;
        let mut node = self.site.node(host, labels::LIFECYCLE_SKIP_TESTS);
        node.labels_mut()
            .insert(labels::ZONE.to_owned(), self.zone.clone());
        node.annotations_mut()
            .insert(annotations::CUSTOM_TRAITS.to_owned(), self.own_trait());
        self.site.join(&node).await;
    }

    /// A trait that the hosts of this test have, and no others.
    pub fn own_trait(&self) -> String {
        format!("CUSTOM_{}", self.zone.to_uppercase().replace('-', "_"))
    }

    /// Starts an operator, instead of the one that there was.
    pub fn start(&mut self) {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let operator = self
            .site
            .operator_with(&arguments, &self.doors.environment());
        self.operator = Some(operator);
    }

    pub async fn boot(&self, name: &str) -> String {
        self.boot_with(name, &[]).await
    }

    pub async fn boot_with(&self, name: &str, metadata: &[(&str, &str)]) -> String {
        let cloud = self.site.cloud;
        cloud
            .boot_in(name, &self.source, Some(&self.zone), metadata)
            .await
    }

    pub async fn boot_many(&self, count: usize) -> Vec<String> {
        let names: Vec<String> = (0..count).map(|number| format!("vm-{number:02}")).collect();
        futures::future::join_all(names.iter().map(|name| self.boot(name))).await
    }

    /// Asks for the host to be emptied, as people do.
    pub async fn begin(&self) {
        let wish = json!({ "spec": { "maintenance": "manual", "maintenanceReason": "a test" } });
        self.site.patch(&self.source, wish).await;
    }

    pub async fn eviction(&self, what: &str, wanted: impl Fn(&EvictionStatus) -> bool) -> Eviction {
        self.eviction_named(&self.source, what, wanted).await
    }

    pub async fn eviction_named(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&EvictionStatus) -> bool,
    ) -> Eviction {
        let condition = |object: Option<&Eviction>| {
            object
                .and_then(|object| object.status.as_ref())
                .is_some_and(&wanted)
        };
        let found = await_condition(self.site.evictions(), name, condition);
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(found) => found.unwrap().unwrap(),
            Err(_) => {
                let now = self.site.evictions().get_opt(name).await.unwrap();
                panic!(
                    "{name} never: {what}\n{}",
                    serde_json::to_string_pretty(&now).unwrap()
                )
            }
        }
    }

    /// Waits for the end.
    pub async fn ended(&self, outcome: Outcome) -> EvictionStatus {
        self.ended_named(&self.source, outcome).await
    }

    /// Where servers are, by name.
    pub async fn whereabouts(&self) -> BTreeMap<String, (String, String)> {
        let mut all = BTreeMap::new();
        for host in self.hosts() {
            let servers = self.site.cloud.client();
            let servers = servers
                .compute()
                .servers(&ServerFilter::on(&host))
                .await
                .unwrap();
            for server in servers {
                all.insert(
                    server.name,
                    (host.clone(), server.status.as_str().to_owned()),
                );
            }
        }
        all
    }

    pub async fn is_empty(&self) -> bool {
        self.whereabouts()
            .await
            .values()
            .all(|(host, _)| *host != self.source)
    }

    /// Calls that move a server, by server.
    pub fn moves(&self) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for call in self.doors.changes() {
            let moves =
                call.body.get("os-migrateLive").is_some() || call.body.get("migrate").is_some();
            if moves && call.worked() {
                let server = call.path.split('/').rev().nth(1).unwrap().to_owned();
                *all.entry(server).or_default() += 1;
            }
        }
        all
    }

    /// Nova's record of what left the host.
    pub async fn migrations(&self) -> Vec<Migration> {
        let filter = MigrationFilter {
            source_compute: Some(self.source.clone()),
            ..MigrationFilter::default()
        };
        let client = self.site.cloud.client();
        client.compute().migrations(&filter).await.unwrap()
    }

    /// Asks for something by an Eviction of its own. Returns its name.
    pub async fn evict(&self, spec: EvictionSpec) -> String {
        let name = unique("eviction");
        let spec = EvictionSpec {
            hypervisor: self.source.clone(),
            reason: "a test".to_owned(),
            ..spec
        };
        self.site
            .evictions()
            .create(&PostParams::default(), &Eviction::new(&name, spec))
            .await
            .unwrap();
        name
    }

    /// Waits for the end of one that was asked for so.
    pub async fn ended_named(&self, name: &str, outcome: Outcome) -> EvictionStatus {
        let ended = self
            .eviction_named(name, "an outcome", |status| status.outcome.is_some())
            .await;
        let status = ended.status.unwrap();
        assert_eq!(status.outcome, Some(outcome), "{status:#?}");
        status
    }

    /// From now on a server cannot be moved, and is in ERROR whenever that was tried.
    pub async fn fails(&self, server: &str) {
        for knob in ["fail_live_migration", "error_after_live_migration"] {
            self.site.cloud.knob(knob, server, true).await;
        }
    }

    /// A stand-in for the agent of the host: from now on it sees these guests run, as long as Nova has
    /// them here.
    pub async fn fake_guests(&self, ids: &[String]) {
        let (client, host) = (self.site.client.clone(), self.source.clone());
        let (nova, ids) = (self.site.cloud.client(), ids.to_vec());
        let guest = |id: &String| json!({ "id": id, "name": id, "active": true });
        let all: Vec<Value> = ids.iter().map(guest).collect();
        self.site.make_namespace(leases::NODE_AGENT_NAMESPACE).await;
        agent_says(&client, &host, &all).await;
        tokio::spawn(async move {
            let filter = ServerFilter {
                host: Some(host.clone()),
                all_projects: true,
                ..ServerFilter::default()
            };
            let mut before = all;
            loop {
                // Nova tells nobody when a server has moved.
                tokio::time::sleep(Duration::from_millis(200)).await;
                let Ok(here) = nova.compute().servers(&filter).await else {
                    continue;
                };
                let here = |id: &&String| here.iter().any(|server| server.id == **id);
                let now: Vec<Value> = ids.iter().filter(here).map(guest).collect();
                if now != before {
                    agent_says(&client, &host, &now).await;
                    before = now;
                }
            }
        });
    }

    pub async fn in_state(&self, server: &str, status: ServerStatus) {
        let client = self.site.cloud.client();
        until(status.as_str(), || async {
            let now = client.compute().server(server).await.unwrap();
            (now.status == status && now.task_state.is_none()).then_some(())
        })
        .await;
    }

    /// Something that is done to a server.
    pub async fn act(&self, server: &str, action: serde_json::Value, status: ServerStatus) {
        self.site.cloud.server_action(server, action).await;
        self.in_state(server, status).await;
    }
}

/// Says what the agent of a host would say of libvirt's domains, with a heartbeat that lasts.
pub async fn agent_says(client: &Client, host: &str, domains: &[Value]) {
    agent_said(client, host, domains).await;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": host },
        "spec": {
            "holderIdentity": "a stand-in", "leaseDurationSeconds": 600,
            "renewTime": format!("{:.6}", Timestamp::now()),
        },
    });
    let beats: Api<Lease> = Api::namespaced(client.clone(), leases::NODE_AGENT_NAMESPACE);
    let params = PatchParams::apply(FieldManager::NodeAgent.as_str()).force();
    let written = beats.patch(host, &params, &Patch::Apply(&lease)).await;
    written.unwrap();
}

/// The same without a heartbeat, as of an agent that is dead.
pub async fn agent_said(client: &Client, host: &str, domains: &[Value]) {
    let connected = Wanted {
        condition: conditions::HypervisorCondition::LibVirtConnection,
        status: Status::True,
        reason: Reason::Connected,
        message: "said by a stand-in".to_owned(),
        observed_generation: None,
    };
    let status = json!({
        "apiVersion": "kvm.cloud.sap/v1",
        "kind": "Hypervisor",
        "metadata": { "name": host },
        "status": {
            "numInstances": domains.len(),
            "instances": domains,
            "conditions": [connected.build(&[], Timestamp::now())],
        },
    });
    let params = PatchParams::apply(FieldManager::NodeAgent.as_str()).force();
    let hypervisors: Api<Hypervisor> = Api::all(client.clone());
    let status = Patch::Apply(&status);
    let written = hypervisors.patch_status(host, &params, &status).await;
    written.unwrap();
}

impl Drop for Drain {
    fn drop(&mut self) {
        for host in self.hosts() {
            self.site.cloud.silence(&host);
        }
    }
}

pub fn row<'a>(status: &'a EvictionStatus, name: &str) -> &'a EvictionInstance {
    let found = status
        .instances
        .iter()
        .find(|row| row.name.as_deref() == Some(name));
    found.unwrap_or_else(|| panic!("no row of {name}: {status:#?}"))
}

pub fn reasons(row: &EvictionInstance) -> Vec<&str> {
    let reasons = row.preflight.iter().flat_map(|one| &one.reasons);
    reasons.map(|one| one.reason.as_str()).collect()
}

#[tokio::test]
async fn a_host_is_emptied_and_taken_back() {
    let drain = Drain::new("empty", 2, &[]).await;
    let ids = drain.boot_many(6).await;
    drain.begin().await;
    let status = drain.ended(Outcome::Succeeded).await;

    let counts = status.counts.unwrap();
    assert_eq!((counts.total, counts.moved), (6, 6), "{status:#?}");
    assert_eq!(status.outstanding_ram_mb, Some(0));
    assert!(status.outstanding_instances.is_empty());
    assert!(drain.is_empty().await);
    let moves = drain.moves();
    assert_eq!(moves.len(), 6);
    assert!(moves.values().all(|times| *times == 1), "{moves:?}");
    for row in &status.instances {
        assert!(ids.contains(&row.id));
        assert_eq!(row.from.as_deref(), Some(drain.source.as_str()));
        assert!(drain.targets.contains(row.to.as_ref().unwrap()), "{row:?}");
        assert_eq!(
            (row.state, row.method),
            (InstanceState::Moved, Some(Method::Live))
        );
        assert_eq!(row.attempt, Some(1));
        assert!(
            row.migration_id.is_some() && row.request_id.is_some(),
            "{row:?}"
        );
        assert_eq!(row.preflight.as_ref().unwrap().verdict, Verdict::Movable);
        assert_eq!(row.preflight.as_ref().unwrap().hosts, Some(2));
    }
    let all = &status.conditions;
    assert_eq!(
        conditions::reason(all, EvictionCondition::Evicting),
        Some(Reason::Succeeded)
    );
    assert_eq!(
        conditions::status(all, EvictionCondition::PreflightChecksSucceeded),
        Some(Status::True)
    );

    // The host says so, too.
    let host = drain.site.phase(&drain.source, Phase::Maintenance).await;
    assert_eq!(host.status.unwrap().evicted, Some(true));
    let events: Api<Event> = Api::default_namespaced(drain.site.client.clone());
    until("Events tell it", || async {
        let all = events.list(&ListParams::default()).await.unwrap();
        let mut reasons: Vec<String> = all
            .into_iter()
            .filter(|event| {
                let about = event.regarding.as_ref().unwrap();
                about.kind.as_deref() == Some("Eviction")
                    && about.name.as_deref() == Some(drain.source.as_str())
            })
            .filter_map(|event| event.reason)
            .collect();
        reasons.sort();
        let moved = reasons.iter().filter(|one| *one == "InstanceMoved").count();
        (moved == 6
            && reasons.contains(&"EvictionStarted".to_owned())
            && reasons.contains(&"EvictionSucceeded".to_owned()))
        .then_some(())
    })
    .await;

    // And it comes back.
    drain
        .site
        .patch(&drain.source, json!({ "spec": { "maintenance": "" } }))
        .await;
    drain.site.phase(&drain.source, Phase::Active).await;
    assert!(
        drain
            .site
            .evictions()
            .get_opt(&drain.source)
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn w7_each_state_is_handled_as_nova_allows() {
    let drain = Drain::new("states", 2, &["--eviction-patience", "3s"]).await;
    let names = [
        "active",
        "paused",
        "off",
        "locked",
        "shelved",
        "suspended",
        "rescued",
        "broken",
    ];
    let ids = futures::future::join_all(names.iter().map(|name| drain.boot(name))).await;
    let id = |name: &str| ids[names.iter().position(|one| *one == name).unwrap()].as_str();
    drain
        .act(id("paused"), json!({ "pause": null }), ServerStatus::Paused)
        .await;
    drain
        .act(id("off"), json!({ "os-stop": null }), ServerStatus::Shutoff)
        .await;
    drain
        .act(id("locked"), json!({ "lock": null }), ServerStatus::Active)
        .await;
    drain
        .act(
            id("suspended"),
            json!({ "suspend": null }),
            ServerStatus::Suspended,
        )
        .await;
    drain
        .act(
            id("shelved"),
            json!({ "shelve": null }),
            ServerStatus::Shelved,
        )
        .await;
    drain
        .act(id("rescued"), json!({ "rescue": {} }), ServerStatus::Rescue)
        .await;
    let error = json!({ "os-resetState": { "state": "error" } });
    drain.act(id("broken"), error, ServerStatus::Error).await;

    drain.begin().await;
    let status = drain.ended(Outcome::PartiallyFailed).await;
    for (name, method) in [
        ("active", Method::Live),
        ("paused", Method::Live),
        ("off", Method::Cold),
        ("locked", Method::Live),
        ("shelved", Method::Offload),
    ] {
        let row = row(&status, name);
        assert_eq!(
            (row.state, row.method),
            (InstanceState::Moved, Some(method)),
            "{row:#?}"
        );
    }
    assert!(reasons(row(&status, "locked")).contains(&"Locked"));
    for (name, reason) in [
        ("suspended", "UnsupportedState"),
        ("rescued", "UnsupportedState"),
        ("broken", "InError"),
    ] {
        let row = row(&status, name);
        assert_eq!(row.state, InstanceState::Failed, "{row:#?}");
        assert_eq!(reasons(row)[0], reason);
        assert!(row.error.is_some() && row.attempt.is_none(), "{row:#?}");
    }
    let now = drain.whereabouts().await;
    assert_eq!(now["paused"].1, "PAUSED");
    assert_eq!(now["off"].1, "SHUTOFF");
    assert!(drain.targets.contains(&now["off"].0));
    for name in ["suspended", "rescued", "broken"] {
        assert_eq!(now[name].0, drain.source, "{name} was not touched");
    }
    assert_eq!(status.outstanding_instances.len(), 3);
    // The host has let go of it; it waits in Nova for its owner.
    assert!(!now.contains_key("shelved"), "{now:?}");
    let client = drain.site.cloud.client();
    let shelved = client.compute().server(id("shelved")).await.unwrap();
    assert_eq!(shelved.status, ServerStatus::ShelvedOffloaded);

    // Not taken for a success (W1).
    let host = drain
        .site
        .condition(
            &drain.source,
            conditions::HypervisorCondition::Evicting,
            Status::False,
            Reason::PartiallyFailed,
        )
        .await;
    assert_eq!(host.status.unwrap().evicted, Some(false));
}

#[tokio::test]
async fn a_device_of_the_host_is_tried_and_moves_once_its_server_is_off() {
    let drain = Drain::new("device", 1, &[]).await;
    let cloud = drain.site.cloud;
    let flavor = unique("device");
    cloud.add_flavor(&flavor, 64).await;
    let alias = "pci_passthrough:alias";
    cloud.set_extra_spec(&flavor, alias, "lab-device:1").await;
    let zone = Some(drain.zone.as_str());
    let id = cloud
        .boot_as("device", &drain.source, zone, &flavor, &[])
        .await;
    drain.begin().await;
    let waits = drain
        .eviction("Nova has refused to move it", |status| {
            let mut rows = status.instances.iter();
            rows.any(|row| row.state == InstanceState::Blocked)
        })
        .await;
    let status = waits.status.unwrap();
    let tried = row(&status, "device");
    assert_eq!(reasons(tried)[0], "PassthroughDevice");
    assert_eq!(tried.attempt, Some(1), "{tried:#?}");
    let error = tried.error.as_ref().unwrap();
    // All hosts refuse it, and Nova tells no more than this.
    assert!(error.contains("No valid host"), "{error}");
    drain.in_state(&id, ServerStatus::Active).await;

    drain
        .act(&id, json!({ "os-stop": null }), ServerStatus::Shutoff)
        .await;
    let status = drain.ended(Outcome::Succeeded).await;
    let moved = row(&status, "device");
    assert_eq!(
        (moved.state, moved.method, moved.to.as_ref()),
        (
            InstanceState::Moved,
            Some(Method::Cold),
            Some(&drain.targets[0])
        ),
        "{moved:#?}"
    );
}

#[tokio::test]
async fn what_a_server_group_keeps_together_leaves_when_the_group_is_gone() {
    let drain = Drain::new("group", 2, &[]).await;
    let cloud = drain.site.cloud;
    let pair = ["one", "two"];
    let (group, name) = cloud
        .boot_group("affinity", &drain.source, &drain.zone, &pair)
        .await;
    drain.begin().await;
    let waits = drain
        .eviction("both wait", |status| {
            let rows = status.instances.iter();
            let blocked = rows.filter(|row| row.state == InstanceState::Blocked);
            blocked.count() == 2
        })
        .await;
    for row in waits.status.unwrap().instances {
        let finding = &row.preflight.as_ref().unwrap().reasons[0];
        assert_eq!(finding.reason, "AffinityGroup", "{row:#?}");
        assert!(finding.message.as_ref().unwrap().contains(&name));
    }
    assert!(drain.moves().is_empty());
    cloud.delete_group(&group).await;
    let status = drain.ended(Outcome::Succeeded).await;
    for name in pair {
        assert_eq!(row(&status, name).state, InstanceState::Moved);
    }
}

#[tokio::test]
async fn what_is_being_built_or_resized_is_moved_once_that_is_over() {
    let drain = Drain::new("busy", 2, &[]).await;
    let cloud = drain.site.cloud;
    let zone = Some(drain.zone.as_str());
    let resized = cloud.boot_in("resized", &drain.targets[0], zone, &[]).await;
    // It comes to the host, and waits there for its owner.
    let client = cloud.client();
    let compute = client.compute();
    let source = Some(drain.source.as_str());
    compute.migrate(&resized, source).await.unwrap();
    drain.in_state(&resized, ServerStatus::VerifyResize).await;
    cloud.knob("hang_spawn", &drain.source, true).await;
    let new = new_server("built", &drain.source, zone, "1", &[]);
    let built = compute.create_server(&new).await.unwrap();
    until("it is being built", || async {
        let server = compute.server(&built).await.unwrap();
        let here = server.host.as_deref() == source;
        (here && server.status == ServerStatus::Build).then_some(())
    })
    .await;

    drain.begin().await;
    let waits = |status: &EvictionStatus, name: &str| {
        let mut rows = status.instances.iter();
        rows.any(|row| {
            row.name.as_deref() == Some(name)
                && row.state == InstanceState::Blocked
                && reasons(row) == ["TaskInProgress"]
        })
    };
    drain
        .eviction("both are waited for", |status| {
            waits(status, "resized") && waits(status, "built")
        })
        .await;
    cloud.knob("hang_spawn", &drain.source, false).await;
    let confirm = json!({ "confirmResize": null });
    cloud.server_action(&resized, confirm).await;
    let status = drain.ended(Outcome::Succeeded).await;
    for name in ["resized", "built"] {
        let row = row(&status, name);
        assert_eq!(
            (row.state, row.method),
            (InstanceState::Moved, Some(Method::Live)),
            "{row:#?}"
        );
    }
}

#[tokio::test]
async fn w10_a_cancelled_eviction_aborts_what_is_in_flight() {
    let drain = Drain::new("cancel", 2, &["--eviction-per-source", "2"]).await;
    drain
        .site
        .cloud
        .knob("hang_live_migration", &drain.source, true)
        .await;
    drain.boot_many(5).await;
    drain.begin().await;
    drain
        .eviction("two on their way", |status| {
            let moving = status.instances.iter().filter(|row| {
                row.state == InstanceState::Moving && row.migration_id.is_some() && row.to.is_some()
            });
            moving.count() == 2
        })
        .await;
    drain
        .site
        .patch(&drain.source, json!({ "spec": { "maintenance": "" } }))
        .await;
    drain.site.phase(&drain.source, Phase::Active).await;
    assert!(
        drain
            .site
            .evictions()
            .get_opt(&drain.source)
            .await
            .unwrap()
            .is_none()
    );
    let now = drain.whereabouts().await;
    assert_eq!(
        now.values()
            .filter(|(host, _)| *host == drain.source)
            .count(),
        5,
        "{now:?}"
    );
    assert_eq!(drain.moves().len(), 2);
    let aborted = drain
        .doors
        .changes()
        .iter()
        .filter(|call| call.is("DELETE", "/migrations/"))
        .count();
    assert!(aborted >= 2);
}

#[tokio::test]
async fn a_plan_moves_nothing() {
    let drain = Drain::new("plan", 2, &[]).await;
    let one = drain.boot("one").await;
    let cloud = drain.site.cloud;
    cloud.add_port(&one, &drain.source, "test", "direct").await;
    let off = drain.boot("two").await;
    drain
        .act(&off, json!({ "suspend": null }), ServerStatus::Suspended)
        .await;
    let name = unique("plan");
    let spec = EvictionSpec {
        hypervisor: drain.source.clone(),
        reason: "what if".to_owned(),
        dry_run: Some(true),
        ..EvictionSpec::default()
    };
    let plan = Eviction::new(&name, spec);
    drain
        .site
        .evictions()
        .create(&PostParams::default(), &plan)
        .await
        .unwrap();
    let ended = drain
        .eviction_named(&name, "an outcome", |status| status.outcome.is_some())
        .await;
    assert!(ended.finalizers().is_empty());
    let status = ended.status.unwrap();
    assert_eq!(status.outcome, Some(Outcome::Succeeded));
    assert_eq!(
        row(&status, "one").preflight.as_ref().unwrap().verdict,
        Verdict::Movable
    );
    assert!(reasons(row(&status, "one")).contains(&"PassthroughDevice"));
    assert_eq!(row(&status, "two").state, InstanceState::Blocked);
    assert!(drain.moves().is_empty());
    let service = drain.site.cloud.service(&drain.source).await.unwrap();
    assert_eq!(service.status.as_str(), "enabled");
    drain
        .site
        .evictions()
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_plan_says_no_when_the_answer_is_no_and_a_wrong_id_is_an_error() {
    let drain = Drain::new("no", 2, &[]).await;
    let cloud = drain.site.cloud;
    let (group, _) = cloud.add_group("anti-affinity").await;
    let (zone, targets) = (drain.zone.as_str(), &drain.targets);
    cloud
        .boot_in_group(&group, "apart", &drain.source, zone)
        .await;
    let elsewhere = cloud.boot_in_group(&group, "first", &targets[0], zone);
    let elsewhere = elsewhere.await;
    cloud
        .boot_in_group(&group, "second", &targets[1], zone)
        .await;
    drain.boot("free").await;
    let plan = |with: Option<String>| async {
        let name = unique("plan");
        let spec = EvictionSpec {
            hypervisor: drain.source.clone(),
            reason: "what if".to_owned(),
            dry_run: Some(true),
            ..EvictionSpec::default()
        };
        let mut plan = Eviction::new(&name, spec);
        if let Some(with) = with {
            let with = (annotations::DRAINED_WITH.to_owned(), with);
            plan.metadata.annotations = Some([with].into());
        }
        let api = drain.site.evictions();
        api.create(&PostParams::default(), &plan).await.unwrap();
        drain.ended_named(&name, Outcome::Succeeded).await
    };
    let verdict = |status: &EvictionStatus, name: &str| {
        let preflight = row(status, name).preflight.clone().unwrap();
        let all = preflight.reasons.iter();
        let text: Vec<String> = all.filter_map(|one| one.message.clone()).collect();
        (preflight.verdict, text.join("; "))
    };

    let status = plan(None).await;
    assert_eq!(verdict(&status, "free").0, Verdict::Movable);
    let (apart, text) = verdict(&status, "apart");
    assert_eq!(apart, Verdict::Blocked, "{status:#?}");
    let said = "of the 2 other hosts of its zone, 2 taken by another member of its server group";
    assert!(text.contains(said), "{text}");

    // Both are to be drained at the same time.
    let status = plan(Some(targets.join(","))).await;
    let (free, text) = verdict(&status, "free");
    // Nova's API does not tell whether a server may go to another zone, and other tests have hosts.
    assert_ne!(free, Verdict::Movable, "{status:#?}");
    let closed = "of the 2 other hosts of its zone, 2 disabled, in maintenance or being drained";
    assert!(text.contains(closed), "{text}");

    // Nobody has it, and another host has it.
    let invented = "6f5cd1c4-0000-4000-8000-000000000000".to_owned();
    let wrong = EvictionSpec {
        instances: vec![invented.clone(), elsewhere.clone()],
        ..EvictionSpec::default()
    };
    let name = drain.evict(wrong).await;
    let status = drain.ended_named(&name, Outcome::Failed).await;
    let on = format!("it is on {}", targets[0]);
    for (id, text) in [
        (invented, "Nova has no server with this id"),
        (elsewhere, &*on),
    ] {
        let mut rows = status.instances.iter();
        let row = rows.find(|row| row.id == id).unwrap();
        assert_eq!(row.state, InstanceState::Failed, "{row:#?}");
        assert!(row.error.as_ref().unwrap().contains(text), "{row:#?}");
        assert_eq!(reasons(row), ["NotOnHost"]);
    }
    assert!(drain.moves().is_empty());
}

/// A server of another host is moved in, or made here, or deleted, while the host is being emptied.
#[tokio::test]
async fn w3_servers_that_come_and_go_meanwhile_are_included() {
    let drain = Drain::new("comes", 2, &["--eviction-per-source", "1"]).await;
    let cloud = drain.site.cloud;
    let priority = [("cobalt:eviction_priority", "9")];
    let first = drain.boot_with("first", &priority).await;
    let gone = drain.boot("gone").await;
    cloud.knob("hang_live_migration", &first, true).await;
    drain.begin().await;
    drain
        .eviction("the first is on its way", |status| {
            let rows = &mut status.instances.iter();
            rows.any(|row| row.id == first && row.migration_id.is_some())
        })
        .await;
    // Somebody lets the scheduler in, and the operator cannot take that back for a while.
    drain.doors.rule(|call| match call.method.as_str() {
        "PUT" if call.path.contains("/os-services/") => Fate::Answer(409, "{}", vec![]),
        _ => Fate::Through,
    });
    let service = cloud.service(&drain.source).await.unwrap();
    let client = cloud.client();
    client.compute().enable_service(&service.id).await.unwrap();
    drain.boot("late").await;
    cloud.delete(&gone).await;
    cloud.knob("hang_live_migration", &first, false).await;
    drain
        .eviction(
            "it is not over while the scheduler may use the host",
            |status| {
                let wait = status.waiting_for.as_ref();
                wait.is_some_and(|wait| wait.reason == "HostDisabled")
            },
        )
        .await;
    drain.doors.open();
    let status = drain.ended(Outcome::Succeeded).await;
    for (name, state) in [
        ("first", InstanceState::Moved),
        ("late", InstanceState::Moved),
        ("gone", InstanceState::Gone),
    ] {
        assert_eq!(row(&status, name).state, state, "{status:#?}");
    }
    assert!(drain.is_empty().await);
    drain.site.phase(&drain.source, Phase::Maintenance).await;
    let service = cloud.service(&drain.source).await.unwrap();
    assert_eq!(service.status.as_str(), "disabled");
}

#[tokio::test]
async fn w2_a_node_with_another_name_than_its_service_is_emptied() {
    let mut drain = Drain::new("fqdn", 1, &[]).await;
    let short = unique("short");
    let long = format!("{short}.example.org");
    let cloud = drain.site.cloud;
    cloud.add_host(&short).await;
    let mut node = drain.site.node(&long, labels::LIFECYCLE_SKIP_TESTS);
    for (key, value) in [(labels::ZONE, &drain.zone), (labels::HOSTNAME, &short)] {
        node.labels_mut().insert(key.to_owned(), value.clone());
    }
    drain.site.join(&node).await;
    drain.site.phase(&long, Phase::Active).await;
    let id = cloud.boot_in("one", &short, Some(&drain.zone), &[]).await;
    let unused = std::mem::replace(&mut drain.source, long);
    drain.begin().await;
    let status = drain.ended(Outcome::Succeeded).await;
    let row = row(&status, "one");
    assert_eq!(
        (row.state, row.from.as_ref()),
        (InstanceState::Moved, Some(&short))
    );
    let server = cloud.client().compute().server(&id).await.unwrap();
    assert_ne!(server.host.as_ref(), Some(&short));
    let host = drain.site.phase(&drain.source, Phase::Maintenance).await;
    assert_eq!(host.status.unwrap().evicted, Some(true));
    for host in [&short, &unused] {
        cloud.silence(host);
    }
}

#[tokio::test]
async fn some_instances_leave_and_the_host_stays_in_service() {
    let drain = Drain::new("some", 2, &[]).await;
    let ids = drain.boot_many(4).await;
    let only = |some: &[String]| EvictionSpec {
        instances: some.to_vec(),
        ..EvictionSpec::default()
    };
    // Two want the same instance.
    let one = drain.evict(only(&ids[..2])).await;
    let other = drain.evict(only(&ids[1..3])).await;
    for name in [&one, &other] {
        let status = drain.ended_named(name, Outcome::Succeeded).await;
        let counts = status.counts.unwrap();
        assert_eq!((counts.total, counts.moved), (2, 2), "{status:#?}");
    }
    let moves = drain.moves();
    assert_eq!(moves.len(), 3, "{moves:?}");
    assert!(moves.values().all(|times| *times == 1), "{moves:?}");
    assert_eq!(drain.whereabouts().await["vm-03"].0, drain.source);
    let host = drain.site.phase(&drain.source, Phase::Active).await;
    assert_ne!(host.status.unwrap().evicted, Some(true));
    let service = drain.site.cloud.service(&drain.source).await.unwrap();
    assert_eq!(service.status.as_str(), "enabled");
}

#[tokio::test]
async fn no_more_move_at_once_than_may() {
    let arguments = ["--eviction-per-source", "2", "--eviction-per-target", "1"];
    let drain = Drain::new("budget", 3, &arguments).await;
    drain.boot_many(6).await;
    drain.begin().await;
    drain.ended(Outcome::Succeeded).await;
    let all = drain.migrations().await;
    assert_eq!(all.len(), 6);
    assert_eq!(at_once(&all), 2, "{all:#?}");
    for target in &drain.targets {
        let to = |one: &&Migration| one.dest_compute.as_ref() == Some(target);
        assert!(at_once(all.iter().filter(to)) <= 1, "{all:#?}");
    }
}

#[tokio::test]
async fn those_with_priority_go_first() {
    let drain = Drain::new("first", 1, &["--eviction-per-source", "1"]).await;
    let mut ids = Vec::new();
    for priority in ["-1", "0", "x", "100"] {
        let metadata = [("cobalt:eviction_priority", priority)];
        ids.push(drain.boot_with(priority, &metadata).await);
    }
    drain.begin().await;
    drain.ended(Outcome::Succeeded).await;
    let changes = drain.doors.changes();
    let order: Vec<usize> = changes
        .iter()
        .filter(|call| call.body.get("os-migrateLive").is_some())
        .map(|call| ids.iter().position(|id| call.names(id)).unwrap())
        .collect();
    assert_eq!(order.len(), 4);
    assert_eq!((order[0], order[3]), (3, 0), "{order:?}");
}
