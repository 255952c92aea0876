//! Taking over a fleet from the operator before this one, and giving it back.

use std::collections::BTreeSet;

use cobalt_api::conditions::{HypervisorCondition as Type, Reason, Status};
use cobalt_api::hypervisor::{Hypervisor, Phase};
use cobalt_api::names::{annotations, finalizers, labels};
use cobalt_openstack::compute::ServiceStatus;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Map, Value, json};

use crate::chart::repository;
use crate::cloud::{TEST_AGGREGATE, ZONE};
use crate::support::{Operator, Site, unique, until};
use crate::writes::{Writes, all_versions};

const TIME: &str = "2026-08-01T10:00:00Z";

/// An object of the deployed fleet.
fn fixture(name: &str) -> Value {
    let path = repository("api/tests/fixtures").join(name);
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn condition(of: &str, status: &str, reason: &str) -> Value {
    json!({
        "type": of, "status": status, "reason": reason, "message": "said before",
        "lastTransitionTime": TIME,
    })
}

/// What the operator before says of an onboarded host.
fn onboarded() -> Vec<Value> {
    vec![
        condition("Onboarding", "False", "Succeeded"),
        condition("TraitsUpdated", "True", "Succeeded"),
        condition("AggregatesUpdated", "True", "Succeeded"),
        condition("HypervisorDisabled", "False", "Succeeded"),
        condition("Ready", "True", "Ready"),
        condition("HaEnabled", "True", "Succeeded"),
    ]
}

/// A host as the deployed operator and agent have left it.
struct Deployed<'a> {
    site: &'a Site,
    name: String,
    lifecycle: bool,
    maintenance: Option<&'a str>,
    conditions: Vec<Value>,
    /// What only one of its states has.
    status: Value,
}

impl<'a> Deployed<'a> {
    fn new(site: &'a Site, name: &str, conditions: Vec<Value>) -> Self {
        Self {
            site,
            name: name.to_owned(),
            lifecycle: true,
            maintenance: None,
            conditions,
            status: json!({}),
        }
    }

    /// In Nova and Placement as an onboarded host is.
    async fn in_service(&self) {
        let client = self.site.cloud.client();
        self.site.cloud.add_host(&self.name).await;
        self.join(ZONE).await;
        let provider = client.placement().provider_named(&self.name).await;
        let provider = provider.unwrap().unwrap().uuid;
        let known = client.placement().custom_traits().await.unwrap();
        if !known.contains("CUSTOM_COBALT_TEST") {
            let placement = client.placement();
            placement.create_trait("CUSTOM_COBALT_TEST").await.unwrap();
        }
        let add = |present: &BTreeSet<String>| {
            let mut all = present.clone();
            all.insert("CUSTOM_COBALT_TEST".to_owned());
            all
        };
        let updated = client.placement().update_traits(&provider, add).await;
        updated.unwrap();
    }

    async fn join(&self, aggregate: &str) {
        let client = self.site.cloud.client();
        let all = client.compute().aggregates().await.unwrap();
        let found = all.iter().find(|one| one.name == aggregate).unwrap();
        let joined = client.compute().add_host(found.id, &self.name).await;
        joined.unwrap();
    }

    /// Writes the Node and the Hypervisor, each part as its writer does: the operator creates it
    /// and merges its status condition by condition, the agent merges its own.
    async fn write(self) -> Hypervisor {
        let (site, name) = (self.site, self.name.as_str());
        let mut node = site.node(name, "true");
        if !self.lifecycle {
            node.labels_mut().remove(labels::LIFECYCLE);
        }
        node.annotations_mut()
            .insert(annotations::AGGREGATES.to_owned(), ZONE.to_owned());
        let node = site.nodes().create(&PostParams::default(), &node).await;
        let node = node.unwrap();

        let mut object = fixture("hypervisor-operator.yaml");
        let copied: Map<String, Value> = node
            .labels()
            .iter()
            .filter(|(key, _)| ![labels::VIRT_DRIVER, labels::LIFECYCLE].contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), json!(value)))
            .collect();
        object["metadata"]["name"] = json!(name);
        object["metadata"]["labels"] = Value::Object(copied);
        object["metadata"]["ownerReferences"][0]["name"] = json!(name);
        object["metadata"]["ownerReferences"][0]["uid"] = json!(node.uid());
        object["spec"]["lifecycleEnabled"] = json!(self.lifecycle);
        object["spec"]["aggregates"] = json!([ZONE]);
        object["spec"]["customTraits"] = json!(["CUSTOM_COBALT_TEST"]);
        let first_status = object["status"].take();
        object.as_object_mut().unwrap().remove("status");
        let api: Api<Object> = Api::all_with(site.client.clone(), &resource());
        let params = PostParams {
            field_manager: Some("manager".to_owned()),
            ..PostParams::default()
        };
        let new: Object = serde_json::from_value(object).unwrap();
        api.create(&params, &new).await.unwrap();

        let merge = async |manager: &str, status: Value| {
            let params = PatchParams {
                field_manager: Some(manager.to_owned()),
                ..PatchParams::default()
            };
            let patch = json!({ "status": status });
            api.patch_status(name, &params, &Patch::Merge(&patch))
                .await
                .unwrap();
        };
        merge("hypervisor", first_status.clone()).await;
        // The agent's fields, and nothing of what the operator writes.
        let mut agent = fixture("hypervisor-agent.yaml")["status"].clone();
        let mut said = agent["conditions"].as_array().unwrap().clone();
        said.retain(|one| {
            !["Onboarding", "Ready", "Tainted"].contains(&one["type"].as_str().unwrap())
        });
        for key in [
            "hypervisorId",
            "serviceId",
            "traits",
            "aggregates",
            "internalIp",
            "evicted",
            "conditions",
        ] {
            agent.as_object_mut().unwrap().remove(key);
        }
        let mut conditions = first_status["conditions"].as_array().unwrap().clone();
        conditions.extend(said);
        agent["conditions"] = json!(conditions);
        merge("kvm-node-agent", agent).await;
        // A merge replaces the list, so every writer sends all of it.
        conditions.retain(|one| {
            !self
                .conditions
                .iter()
                .any(|other| other["type"] == one["type"])
        });
        conditions.extend(self.conditions.iter().cloned());
        let identity = site.cloud.service(name).await;
        let mut status = self.status.clone();
        if let Some(service) = identity {
            let client = site.cloud.client();
            let hypervisor = client.compute().hypervisor_named(name).await.unwrap();
            status["serviceId"] = json!(service.id);
            status["hypervisorId"] = json!(hypervisor.unwrap().id);
        }
        status["conditions"] = json!(conditions);
        merge("onboarding", status).await;
        if let Some(mode) = self.maintenance {
            let patch = json!({ "spec": { "maintenance": mode, "maintenanceReason": "a fan" } });
            site.patch(name, patch).await;
        }
        site.hypervisors().get(name).await.unwrap()
    }
}

/// Objects as they are, with nothing added or left out by our types.
type Object = kube::core::DynamicObject;

fn resource() -> kube::api::ApiResource {
    kube::api::ApiResource::erase::<Hypervisor>(&())
}

async fn raw(site: &Site, name: &str) -> Value {
    let api: Api<Object> = Api::all_with(site.client.clone(), &resource());
    serde_json::to_value(api.get(name).await.unwrap()).unwrap()
}

/// The status of an onboarded host: aggregates and traits as they are in Nova and Placement.
async fn applied(site: &Site) -> Value {
    let all = site.cloud.client().compute().aggregates().await.unwrap();
    let zone = all.iter().find(|one| one.name == ZONE).unwrap();
    json!({
        "aggregates": [{ "name": ZONE, "uuid": zone.uuid, "metadata": zone.metadata }],
        "traits": ["COMPUTE_NODE", "CUSTOM_COBALT_TEST"],
    })
}

/// Fields and conditions that only the agent and others write.
fn of_others(object: &Value) -> Value {
    let mut status = object["status"].clone();
    for key in [
        "phase",
        "waitingFor",
        "checks",
        "hypervisorId",
        "serviceId",
        "traits",
        "aggregates",
        "ownedTraits",
        "ownedAggregates",
        "internalIp",
        "evicted",
    ] {
        status.as_object_mut().unwrap().remove(key);
    }
    let theirs = [
        "libvirtd.service",
        "LibVirtConnection",
        "TLSCertificateInstalled",
        "HaEnabled",
    ];
    let mut conditions = status["conditions"].as_array().unwrap().clone();
    conditions.retain(|one| theirs.contains(&one["type"].as_str().unwrap()));
    assert!(conditions.len() >= 3, "{conditions:?}");
    conditions.sort_by_key(|one| one["type"].to_string());
    status["conditions"] = json!(conditions);
    status
}

/// The calls of OpenStack that an operator has made, by their names.
async fn calls(operator: &Operator) -> BTreeSet<String> {
    let scrape = operator.scrape().await;
    let lines = scrape
        .lines()
        .filter(|line| line.starts_with("cobalt_operator_openstack_requests_total"));
    let label = |line: &str| Some(line.split_once("call=\"")?.1.split_once('"')?.0.to_owned());
    lines.filter_map(label).collect()
}

/// Calls that only read.
fn reads(call: &str) -> bool {
    ["list ", "show ", "find ", "log in"]
        .iter()
        .any(|read| call.starts_with(read))
}

/// What Nova and Placement have of a host that somebody could have changed.
async fn in_openstack(site: &Site, name: &str) -> (ServiceStatus, Option<String>, Vec<String>) {
    let service = site.cloud.service(name).await.unwrap();
    let mut all = site.cloud.aggregates(name).await;
    all.extend(site.cloud.traits(name).await);
    (service.status, service.disabled_reason, all)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_onboarded_fleet_is_taken_over_and_given_back_without_a_trace() {
    let site = Site::new("takeover").await;
    let (active, kept, off, unknown) = (
        unique("active"),
        unique("kept"),
        unique("off"),
        unique("unknown"),
    );
    // In service.
    let mut host = Deployed::new(&site, &active, onboarded());
    host.in_service().await;
    host.status = applied(&site).await;
    let before_active = host.write().await;
    // In maintenance, while it is being emptied.
    let mut conditions = onboarded();
    conditions[3] = condition("HypervisorDisabled", "True", "Succeeded");
    conditions[4] = condition("Ready", "False", "Evicting");
    conditions.push(condition("Evicting", "True", "Running"));
    let mut host = Deployed::new(&site, &kept, conditions);
    host.in_service().await;
    host.maintenance = Some("manual");
    host.status = applied(&site).await;
    host.status["evicted"] = json!(false);
    let service = site.cloud.service(&kept).await.unwrap();
    let nova = site.cloud.client();
    nova.compute()
        .disable_service(&service.id, "Hypervisor CRD: spec.maintenance=manual")
        .await
        .unwrap();
    let before_kept = host.write().await;
    let mut eviction = fixture("eviction-operator.yaml");
    eviction["metadata"]["name"] = json!(kept);
    eviction["metadata"]["labels"] = json!(before_kept.labels());
    eviction["metadata"]["ownerReferences"][0]["name"] = json!(kept);
    eviction["metadata"]["ownerReferences"][0]["uid"] = json!(before_kept.uid());
    eviction["spec"]["hypervisor"] = json!(kept);
    let status = json!({ "status": eviction["status"].take() });
    eviction.as_object_mut().unwrap().remove("status");
    let eviction = serde_json::from_value(eviction).unwrap();
    let evictions = site.evictions();
    evictions
        .create(&PostParams::default(), &eviction)
        .await
        .unwrap();
    evictions
        .patch_status(&kept, &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
    // Never asked to be managed; and one that Nova has not seen yet.
    let mut host = Deployed::new(&site, &off, Vec::new());
    host.lifecycle = false;
    site.cloud.add_host(&off).await;
    let before_off = host.write().await;
    let before_unknown = Deployed::new(&site, &unknown, Vec::new()).write().await;

    let all = [&active, &kept, &off, &unknown];
    let mut others = Vec::new();
    for name in all {
        others.push(of_others(&raw(&site, name).await));
    }
    let before_eviction = evictions.get(&kept).await.unwrap();
    let mut openstack = Vec::new();
    for name in [&active, &kept, &off] {
        openstack.push(in_openstack(&site, name).await);
    }
    let writes = Writes::of(&site).await;
    let operator = site.operator();
    site.phase(&active, Phase::Active).await;
    // What was under way goes on, and as there is no instance it is over soon.
    site.phase(&kept, Phase::Maintenance).await;
    site.phase(&off, Phase::Initial).await;
    site.hypervisor(&unknown, "waits", |object| {
        let status = object.status.as_ref().unwrap();
        let wait = status.waiting_for.as_ref();
        wait.is_some_and(|wait| wait.reason == "NovaRegistration")
    })
    .await;
    operator.rounds(3).await;

    // Nothing was done to them.
    let made = calls(&operator).await;
    assert!(made.contains("list services"), "{made:?}");
    assert!(made.iter().all(|call| reads(call)), "{made:?}");
    for (name, before) in [&active, &kept, &off].into_iter().zip(&openstack) {
        assert_eq!(in_openstack(&site, name).await, *before, "{name}");
    }
    let after = evictions.get(&kept).await.unwrap();
    assert_eq!(
        after.metadata.generation,
        before_eviction.metadata.generation
    );
    assert!(after.finalizers().is_empty());
    // Each got its finalizer in one write, and its phase in another.
    for (name, before, held) in [
        (&active, &before_active, true),
        (&kept, &before_kept, true),
        (&off, &before_off, false),
        (&unknown, &before_unknown, true),
    ] {
        let versions = writes.until_now(name).await;
        let after = versions.last().unwrap();
        let finalizers: Vec<_> = versions.iter().map(|one| one.finalizers().len()).collect();
        let right = match held {
            // What was under way has come to its end: that is said, too.
            true if *name == kept => finalizers.iter().all(|count| *count == 1),
            true => finalizers == [1, 1],
            false => finalizers == [0] || finalizers == [0, 0],
        };
        assert!(right, "{name}: {finalizers:?}");
        assert_eq!(after.metadata.generation, before.metadata.generation);
        assert_eq!(after.labels(), before.labels());
        assert_eq!(after.owner_references(), before.owner_references());
    }
    for (name, before) in all.iter().zip(&others) {
        assert_eq!(of_others(&raw(&site, name).await), *before, "{name}");
    }

    // A restart finds nothing to do.
    let before = all_versions(&site).await;
    assert_eq!(before.len(), 9, "{before:?}");
    assert!(operator.stop().await.success());
    let operator = site.operator();
    operator.rounds(3).await;
    assert_eq!(all_versions(&site).await, before);
    let made = calls(&operator).await;
    assert!(made.iter().all(|call| reads(call)), "{made:?}");

    site.patch(&kept, json!({ "spec": { "maintenance": "" } }))
        .await;
    site.phase(&kept, Phase::Active).await;
    assert!(evictions.get_opt(&kept).await.unwrap().is_none());
    let service = site.cloud.service(&kept).await.unwrap();
    assert_eq!(service.status, ServiceStatus::Enabled);

    // It is given back: the finalizers are off, and nothing else is changed.
    operator.rounds(1).await;
    assert!(operator.stop().await.success());
    let in_flight = json!({
        "apiVersion": "kvm.cloud.sap/v1", "kind": "Eviction",
        "metadata": { "name": active, "finalizers": [finalizers::EVICTION_IN_FLIGHT, "example.com/other"] },
        "spec": { "hypervisor": active, "reason": "it was under way" },
    });
    let in_flight = serde_json::from_value(in_flight).unwrap();
    evictions
        .create(&PostParams::default(), &in_flight)
        .await
        .unwrap();
    let writes = Writes::of(&site).await;
    let mut before = Vec::new();
    for name in all {
        before.push(raw(&site, name).await);
    }
    let released = tokio::process::Command::new(env!("CARGO_BIN_EXE_cobalt-hypervisor-operator"))
        .args(["--label-selector", &site.selector(), "release"])
        .env("KUBECONFIG", &site.kubeconfig)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&released.stderr);
    assert!(released.status.success(), "{said}");
    for (name, mut before) in all.into_iter().zip(before) {
        let mut after = raw(&site, name).await;
        assert!(after["metadata"].get("finalizers").is_none());
        for object in [&mut before, &mut after] {
            let metadata = object["metadata"].as_object_mut().unwrap();
            for key in ["finalizers", "resourceVersion", "managedFields"] {
                metadata.remove(key);
            }
        }
        assert_eq!(after, before, "{name}");
    }
    assert_eq!(writes.count().await, 3, "one for each that was held");
    let in_flight = evictions.get(&active).await.unwrap();
    assert_eq!(in_flight.finalizers(), ["example.com/other"]);
    let none = json!({ "metadata": { "finalizers": null } });
    evictions
        .patch(&active, &PatchParams::default(), &Patch::Merge(none))
        .await
        .unwrap();
    evictions
        .delete(&active, &DeleteParams::default())
        .await
        .unwrap();
    site.hypervisors()
        .delete(&active, &DeleteParams::default())
        .await
        .unwrap();
    let gone = site.hypervisors().get_opt(&active).await.unwrap();
    assert!(gone.is_none(), "nothing holds it");
    let left = site.hypervisors().get(&kept).await.unwrap();
    assert!(
        !left
            .finalizers()
            .contains(&finalizers::REGISTERED_HOST.to_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_in_the_middle_of_something_go_on() {
    let site = Site::new("halfway").await;
    let states = [
        ("initial", "True", "Initial"),
        ("testing", "True", "Testing"),
        ("handover", "True", "Handover"),
        ("aborted", "False", "Aborted"),
        ("stuck", "True", "Aborted"),
    ];
    let mut names = Vec::new();
    for (state, status, reason) in states {
        let name = unique(state);
        let host = Deployed::new(&site, &name, vec![condition("Onboarding", status, reason)]);
        if state == "handover" {
            host.in_service().await;
        } else {
            site.cloud.add_host(&name).await;
        }
        if state == "testing" {
            // The deployed operator enables the service for its tests.
            host.join(ZONE).await;
            host.join(TEST_AGGREGATE).await;
        }
        let mut host = host;
        if state == "handover" {
            host.status = applied(&site).await;
        }
        host.write().await;
        names.push(name);
    }
    let _operator = site.operator();
    for name in &names {
        let object = site.phase(name, Phase::Active).await;
        let held = finalizers::REGISTERED_HOST.to_owned();
        assert!(object.finalizers().contains(&held));
        site.condition(name, Type::Onboarding, Status::False, Reason::Succeeded)
            .await;
        until("Nova has it in service", || async {
            let service = site.cloud.service(name).await.unwrap();
            let enabled = service.status == ServiceStatus::Enabled;
            let zone = site.cloud.aggregates(name).await == [ZONE];
            (enabled && zone).then_some(())
        })
        .await;
        assert_eq!(site.cloud.traits(name).await, ["CUSTOM_COBALT_TEST"]);
        let left = site.cloud.test_servers(&format!("ohooc--{name}")).await;
        assert_eq!(left, [""; 0]);
    }
}
