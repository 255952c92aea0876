//! Nova and Placement refuse, break, keep silent and go away, Nodes and services are deleted, in the
//! middle of everything: the operator says what it waits for, loses nothing, and goes on by itself.

use std::sync::{Arc, Mutex};

use cobalt_api::conditions::{self, HypervisorCondition as Type, Reason, Status};
use cobalt_api::hypervisor::{CheckResult, Hypervisor, Phase};
use cobalt_api::names::{annotations, labels};
use cobalt_openstack::compute::ServiceStatus;
use futures::future::join_all;
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;

use crate::cloud::{TEST_AGGREGATE, ZONE};
use crate::door::{Call, Doors, Fate, ShutDoors};
use crate::support::{Operator, Site, Waits, unique, until};

/// Nova is looked at often.
const OFTEN: [&str; 2] = ["--nova-interval", "2s"];

/// What goes wrong with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Unauthorized,
    Conflict,
    TooMany,
    Error,
    Away,
    Hangs,
}

impl Fault {
    const ALL: [Self; 6] = [
        Self::Unauthorized,
        Self::Conflict,
        Self::TooMany,
        Self::Error,
        Self::Away,
        Self::Hangs,
    ];

    fn fate(self) -> Fate {
        match self {
            Self::Unauthorized => Fate::Answer(401, r#"{"error": {"message": "who?"}}"#, vec![]),
            Self::Conflict => {
                let text = r#"{"conflictingRequest": {"code": 409, "message": "not now"}}"#;
                Fate::Answer(409, text, vec![])
            }
            Self::TooMany => {
                let text = r#"{"overLimit": {"code": 429, "message": "too many"}}"#;
                Fate::Answer(429, text, vec![("Retry-After", "1")])
            }
            Self::Error => {
                let text = r#"{"computeFault": {"code": 500, "message": "a bug"}}"#;
                Fate::Answer(500, text, vec![])
            }
            Self::Away => Fate::Answer(503, "", vec![]),
            Self::Hangs => Fate::Never,
        }
    }

    /// What is said of it.
    fn words(self) -> &'static str {
        match self {
            Self::Unauthorized => "who? (401",
            Self::Conflict => "not now (409",
            Self::TooMany => "too many (429",
            Self::Error => "a bug (500",
            Self::Away => "service unavailable (503",
            Self::Hangs => "no answer within",
        }
    }
}

type Matcher = Box<dyn Fn(&Call) -> bool + Send>;

/// What is wrong at present, for whom.
#[derive(Clone, Default)]
struct Faults(Arc<Mutex<Vec<(String, Matcher, Fault)>>>);

impl Faults {
    fn in_doors(doors: &Doors) -> Self {
        let faults = Self::default();
        let all = Arc::clone(&faults.0);
        doors.rule(move |call| {
            let all = all.lock().unwrap();
            let found = all.iter().find(|(_, matches, _)| matches(call));
            found.map_or(Fate::Through, |(_, _, fault)| fault.fate())
        });
        faults
    }

    /// From now on this goes wrong for a host, and what went wrong before does not.
    fn set(&self, host: &str, fault: Fault, matches: impl Fn(&Call) -> bool + Send + 'static) {
        let mut all = self.0.lock().unwrap();
        all.retain(|(name, _, _)| name != host);
        all.push((host.to_owned(), Box::new(matches), fault));
    }

    fn lift(&self, host: &str) {
        self.0.lock().unwrap().retain(|(name, _, _)| name != host);
    }
}

struct World {
    // It shows its log, which is a file of the site.
    operator: Operator,
    site: Site,
    doors: Doors,
    faults: Faults,
}

impl World {
    async fn new(name: &str) -> Self {
        let site = Site::new(name).await;
        let doors = Doors::before(site.cloud).await;
        let faults = Faults::in_doors(&doors);
        let operator = site.operator_with(&OFTEN, &doors.environment());
        Self {
            site,
            doors,
            faults,
            operator,
        }
    }

    /// A host that is taken into service without tests.
    async fn active(&self, name: &str) -> Hypervisor {
        self.site.cloud.add_host(name).await;
        let node = self.site.node(name, labels::LIFECYCLE_SKIP_TESTS);
        self.site.join(&node).await;
        self.site.phase(name, Phase::Active).await
    }

    /// The host shall leave; its nova-compute ends before it is removed.
    async fn leave(&self, name: &str) {
        let leave = json!({ "spec": { "maintenance": "termination" } });
        if self.site.evictions().get_opt(name).await.unwrap().is_some() {
            self.site.patch(name, leave).await;
            return self.site.cloud.stop_host(name).await;
        }
        self.site.hold_up_eviction(name).await;
        self.site.patch(name, leave).await;
        // Nova waits for a compute that has just fallen silent: first it is disabled.
        self.site.phase(name, Phase::Evicting).await;
        self.site.cloud.stop_host(name).await;
        self.site.let_evict(name).await;
    }

    /// The same for a host that an Eviction calls empty although it is not.
    async fn leave_with_instances(&self, name: &str) {
        self.site.fake_ended_eviction(name, Reason::Succeeded).await;
        let leave = json!({ "spec": { "maintenance": "termination" } });
        self.site.patch(name, leave).await;
        until("the service is disabled", || async {
            let service = self.site.cloud.service(name).await.unwrap();
            (service.status == ServiceStatus::Disabled).then_some(())
        })
        .await;
        self.site.cloud.stop_host(name).await;
    }

    /// Servers that Nova was asked for and made, for this host.
    fn created(&self, host: &str) -> usize {
        let all = self.doors.changes();
        let of_host = |call: &&Call| call.creates_server() && call.body["server"]["host"] == host;
        all.iter().filter(of_host).count()
    }
}

/// What Nova calls a host's service and provider.
async fn ids(site: &Site, host: &str) -> (String, String) {
    let service = site.cloud.service(host).await.unwrap().id;
    let client = site.cloud.client();
    let provider = client.placement().provider_named(host).await.unwrap();
    (service, provider.unwrap().uuid)
}

fn said(object: &Hypervisor, condition: Type) -> String {
    let all = &object.status.as_ref().unwrap().conditions;
    conditions::find(all, condition).map_or_else(String::new, |found| found.message.clone())
}

/// Takes a host through its life; in each phase one call fails in one way until it was said.
async fn live_with(world: &World, fault: Fault) {
    let World { site, faults, .. } = world;
    let host = unique("faults");
    let waits = site.waits_of(&host);
    site.cloud.add_host(&host).await;
    let (service, _) = ids(site, &host).await;
    let at = format!("/os-services/{service}");
    let words = fault.words();
    // A call that hangs costs its whole deadline: fewer of them.
    let quick = fault != Fault::Hangs;

    // Testing.
    let name = host.clone();
    faults.set(&host, fault, move |call| {
        call.creates_server() && call.names(&name)
    });
    site.join(&site.node(&host, "true")).await;
    waits.said(&["create server", words]).await;
    if quick {
        let name = host.clone();
        faults.set(&host, fault, move |call| {
            call.is("GET", "/servers/detail") && call.names(&name)
        });
        waits.said(&["list servers", words]).await;
        // Handover.
        let name = host.clone();
        faults.set(&host, fault, move |call| {
            call.body.pointer("/remove_host/host") == Some(&json!(name))
        });
        waits.said(&["remove host", words]).await;
        let path = at.clone();
        faults.set(&host, fault, move |call| {
            call.is("PUT", &path) && call.enables()
        });
        waits.said(&["revive service", words]).await;
    }
    faults.lift(&host);
    let object = site.phase(&host, Phase::Active).await;
    let boot = object.status.as_ref().unwrap().checks.iter();
    let boot = boot.clone().find(|check| check.name == "boot").unwrap();
    assert_eq!(boot.result, CheckResult::Passed);
    assert_eq!(world.created(&host), 1, "{fault:?}");

    // Maintenance, and back.
    let path = at.clone();
    faults.set(&host, fault, move |call| call.is("PUT", &path));
    site.patch(&host, json!({ "spec": { "maintenance": "auto" } }))
        .await;
    waits.said(&["disable service", words]).await;
    faults.lift(&host);
    site.condition(&host, Type::Evicting, Status::True, Reason::Running)
        .await;
    if quick {
        waits.forget();
        let path = at.clone();
        faults.set(&host, fault, move |call| call.is("PUT", &path));
        site.patch(&host, json!({ "spec": { "maintenance": "" } }))
            .await;
        waits.said(&["revive service", words]).await;
        faults.lift(&host);
        until("the service is enabled", || async {
            let service = site.cloud.service(&host).await.unwrap();
            (service.status == ServiceStatus::Enabled).then_some(())
        })
        .await;
    }

    // Offboarding.
    if quick {
        let name = host.clone();
        faults.set(&host, fault, move |call| {
            call.is("GET", "/servers?") && call.names(&name)
        });
    } else {
        let path = at.clone();
        faults.set(&host, fault, move |call| call.is("DELETE", &path));
    }
    world.leave(&host).await;
    if quick {
        waits
            .said(&["Offboarding", "list server names", words])
            .await;
        let path = at.clone();
        faults.set(&host, fault, move |call| call.is("DELETE", &path));
    }
    waits.said(&["Offboarding", "delete service", words]).await;
    assert!(site.cloud.service(&host).await.is_some());
    faults.lift(&host);
    site.phase(&host, Phase::Decommissioned).await;
    assert!(site.cloud.has_nothing_of(&host).await, "{fault:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn w32_every_fault_in_every_phase_is_said_and_survived() {
    let world = World::new("faults").await;
    join_all(Fault::ALL.map(|fault| live_with(&world, fault))).await;
    drop(world.operator);
}

#[tokio::test(flavor = "multi_thread")]
async fn nova_that_is_away_at_the_start_is_named_and_waited_for() {
    let site = Site::new("away").await;
    let host = unique("away");
    let shut = ShutDoors::before(site.cloud).await;
    let [nova, placement] = shut.urls();
    let environment = [
        ("OS_COMPUTE_ENDPOINT_OVERRIDE", nova.as_str()),
        ("OS_PLACEMENT_ENDPOINT_OVERRIDE", placement.as_str()),
    ];
    let _operator = site.operator_with(&OFTEN, &environment);
    let waits = site.waits_of(&host);
    let node = site.node(&host, labels::LIFECYCLE_SKIP_TESTS);
    site.join(&node).await;
    waits.said(&["Nova:", "no connection"]).await;
    let doors = shut.build().await;
    waits.said(&["NovaRegistration:", &host]).await;

    // It goes away while the host is waited for.
    for fault in Fault::ALL {
        doors.rule(move |_| fault.fate());
        waits.said(&["Nova:", fault.words()]).await;
    }
    doors.open();
    site.cloud.add_host(&host).await;
    site.phase(&host, Phase::Active).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn w44_a_call_without_an_answer_does_not_stop_another_host() {
    let world = World::new("w44").await;
    let (stuck, other) = (unique("stuck"), unique("other"));
    let name = stuck.clone();
    world.faults.set(&stuck, Fault::Hangs, move |call| {
        call.writes() && call.names(&name)
    });
    world.site.host(&stuck).await;
    until("a call hangs", || async {
        let calls = world.doors.calls();
        let hangs = |call: &&Call| call.writes() && call.names(&stuck);
        calls.iter().find(hangs).map(|_| ())
    })
    .await;
    world.active(&other).await;
    let object = world.site.hypervisors().get(&stuck).await.unwrap();
    assert_ne!(object.status.unwrap().phase, Some(Phase::Active));
    world.faults.lift(&stuck);
    world.site.phase(&stuck, Phase::Active).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn w27_not_found_is_no_empty_list() {
    let world = World::new("w27").await;
    let host = unique("w27");
    world.active(&host).await;
    let vm = world.site.cloud.boot(&unique("vm"), &host).await;
    for part in ["/servers", "/resource_providers", "/os-services?", ""] {
        let waits = world.site.waits_of(&host);
        world.doors.forget();
        let part = part.to_owned();
        world.doors.rule(move |call| match call.is("GET", &part) {
            true => Fate::Answer(404, "{}", vec![]),
            false => Fate::Through,
        });
        if world.site.cloud.service(&host).await.unwrap().status == ServiceStatus::Enabled {
            world.leave_with_instances(&host).await;
        }
        waits.said(&["(404"]).await;
        let deleted = |call: &Call| call.method == "DELETE";
        assert!(!world.doors.changes().iter().any(deleted));
    }
    world.doors.open();
    let waits = world.site.waits_of(&host);
    waits.said(&["Offboarding", &vm]).await;
    // Now that the instance is gone, Placement alone does not know anything any more.
    world
        .doors
        .rule(|call| match call.is("GET", "/resource_providers") {
            true => Fate::Answer(404, "{}", vec![]),
            false => Fate::Through,
        });
    world.site.cloud.start_host(&host).await;
    world.site.cloud.delete(&vm).await;
    world.site.cloud.stop_host(&host).await;
    waits.forget();
    waits.said(&["Offboarding", "(404"]).await;
    world.doors.open();
    world.site.phase(&host, Phase::Decommissioned).await;
    assert!(world.site.cloud.has_nothing_of(&host).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_others_change_gets_its_traits_and_keeps_theirs() {
    let world = World::new("traits").await;
    let host = unique("traits");
    world.site.cloud.add_host(&host).await;
    let (_, provider) = ids(&world.site, &host).await;
    let client = world.site.cloud.client();
    client
        .placement()
        .create_trait("CUSTOM_OF_OTHERS")
        .await
        .unwrap();
    let path = format!("/resource_providers/{provider}/traits");
    let waits = world.site.waits_of(&host);
    let put = path.clone();
    world.doors.rule(move |call| match call.is("PUT", &put) {
        true => Fate::Answer(
            409,
            r#"{"errors": [{"status": 409, "code": "placement.concurrent_update",
                "title": "Conflict", "detail": "somebody was faster"}]}"#,
            vec![],
        ),
        false => Fate::Through,
    });
    let node = world.site.node(&host, labels::LIFECYCLE_SKIP_TESTS);
    world.site.join(&node).await;
    waits.said(&["Traits", "somebody was faster"]).await;
    let object = world.site.hypervisors().get(&host).await.unwrap();
    assert!(said(&object, Type::TraitsUpdated).contains("somebody was faster"));
    let add = |present: &std::collections::BTreeSet<String>| {
        let own = ["CUSTOM_OF_OTHERS".to_owned()];
        present.iter().cloned().chain(own).collect()
    };
    client
        .placement()
        .update_traits(&provider, add)
        .await
        .unwrap();
    world.doors.open();
    world.site.phase(&host, Phase::Active).await;
    // Nova sets traits of its own at the same time and may take both away: ours come back by
    // themselves, those of others are theirs to set again.
    until("both have their traits", || async {
        let traits = world.site.cloud.traits(&host).await;
        if !traits.contains(&"CUSTOM_OF_OTHERS".to_owned()) {
            let set = client.placement().update_traits(&provider, add).await;
            set.unwrap();
        }
        (traits == ["CUSTOM_COBALT_TEST", "CUSTOM_OF_OTHERS"]).then_some(())
    })
    .await;

    // Two that Placement refuses do not hold up a good one, and are named.
    let bad = ["CUSTOM_not-one", "HW_NO_SUCH_TRAIT"];
    let wanted = format!(
        "CUSTOM_COBALT_TEST,{},CUSTOM_COBALT_MORE,{}",
        bad[0], bad[1]
    );
    let change = json!({ "metadata": { "annotations": { annotations::CUSTOM_TRAITS: wanted } } });
    let params = kube::api::PatchParams::default();
    let patch = kube::api::Patch::Merge(&change);
    let patched = world.site.nodes().patch(&host, &params, &patch).await;
    patched.unwrap();
    until("the good one is set", || async {
        let traits = world.site.cloud.traits(&host).await;
        traits
            .contains(&"CUSTOM_COBALT_MORE".to_owned())
            .then_some(())
    })
    .await;
    let refused = world
        .site
        .hypervisor(&host, "the bad ones are named", |object| {
            let text = said(object, Type::TraitsUpdated);
            bad.iter().all(|name| text.contains(name))
        })
        .await;
    let all = &refused.status.as_ref().unwrap().conditions;
    assert!(conditions::is_false(all, Type::TraitsUpdated));
}

#[tokio::test(flavor = "multi_thread")]
async fn w18_w34_a_host_whose_name_begins_like_another_is_another() {
    let world = World::new("w18").await;
    let site = &world.site;
    let short = unique("prefix");
    let long = format!("{short}0");
    // The long one is in the middle of its test while the short one comes and goes.
    site.cloud.add_host(&long).await;
    site.cloud.knob("hang_spawn", &long, true).await;
    site.join(&site.node(&long, "true")).await;
    until("the server of the long one is there", || async {
        let all = site.cloud.test_servers(&format!("ohooc--{long}")).await;
        (all.len() == 1).then_some(())
    })
    .await;
    site.host(&short).await;
    site.phase(&short, Phase::Active).await;
    let all = site.cloud.test_servers(&format!("ohooc--{short}")).await;
    assert_eq!(all.len(), 1, "only that of the long one: {all:?}");
    assert!(all[0].starts_with(&format!("ohooc--{long}")));
    world.leave(&short).await;
    site.phase(&short, Phase::Decommissioned).await;
    assert!(site.cloud.has_nothing_of(&short).await);

    site.cloud.knob("hang_spawn", &long, false).await;
    site.phase(&long, Phase::Active).await;
    assert_eq!((world.created(&short), world.created(&long)), (1, 1));
    assert_eq!(site.cloud.aggregates(&long).await, [ZONE]);
    // And the other way round: the short one has left, the long one leaves.
    world.leave(&long).await;
    site.phase(&long, Phase::Decommissioned).await;
    assert!(site.cloud.has_nothing_of(&long).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn w2_w93_a_node_with_a_long_name_is_the_host_with_the_short_one() {
    let world = World::new("fqdn").await;
    let site = &world.site;
    let short = unique("fqdn");
    let long = format!("{short}.compute.example");
    site.cloud.add_host(&short).await;
    let mut node = site.node(&long, "true");
    node.labels_mut()
        .insert(labels::HOSTNAME.to_owned(), short.clone());
    site.join(&node).await;
    let object = site.phase(&long, Phase::Active).await;
    let (service, provider) = ids(site, &short).await;
    let status = object.status.unwrap();
    assert_eq!(status.service_id, Some(service));
    assert_eq!(status.hypervisor_id, Some(provider));
    assert_eq!(world.created(&short), 1);
    assert_eq!(site.cloud.aggregates(&short).await, [ZONE]);

    // Another node says that it is this host: nothing is done for either until it is corrected.
    let other = unique("impostor");
    let mut node = site.node(&other, "true");
    node.labels_mut()
        .insert(labels::HOSTNAME.to_owned(), short.clone());
    let params = kube::api::PostParams::default();
    site.nodes().create(&params, &node).await.unwrap();
    for name in [&other, &long] {
        let reason = Reason::IdentityConflict;
        let object = site.condition(name, Type::Ready, Status::False, reason);
        let text = said(&object.await, Type::Ready);
        let rival = if *name == other { &long } else { &other };
        assert!(text.contains(rival.as_str()), "{text}");
    }
    let own = json!({ "metadata": { "labels": { labels::HOSTNAME: other } } });
    let params = kube::api::PatchParams::default();
    let patch = kube::api::Patch::Merge(&own);
    site.nodes().patch(&other, &params, &patch).await.unwrap();
    site.condition(&long, Type::Ready, Status::True, Reason::Ready)
        .await;

    // An instance on it is seen under the same name.
    let vm = site.cloud.boot(&unique("vm"), &short).await;
    let waits = site.waits_of(&long);
    site.fake_ended_eviction(&long, Reason::Succeeded).await;
    site.patch(&long, json!({ "spec": { "maintenance": "termination" } }))
        .await;
    waits.said(&["Offboarding", &vm]).await;
    site.cloud.delete(&vm).await;
    site.cloud.stop_host(&short).await;
    site.phase(&long, Phase::Decommissioned).await;
    assert!(site.cloud.has_nothing_of(&short).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn w21_a_service_that_registers_anew_is_taken_up_under_its_new_ids() {
    let world = World::new("w21").await;
    let site = &world.site;
    let host = unique("w21");
    let before = world.active(&host).await.status.unwrap();
    let (service, _) = ids(site, &host).await;
    site.cloud.stop_host(&host).await;
    let client = site.cloud.client();
    client.compute().delete_service(&service).await.unwrap();
    let object = site
        .hypervisor(&host, "Nova does not know it", |object| {
            let status = object.status.as_ref().unwrap();
            !conditions::is_true(&status.conditions, Type::Ready)
        })
        .await;
    assert!(
        said(&object, Type::Ready).contains("Nova does not know"),
        "{object:#?}"
    );
    let wait = object.status.unwrap().waiting_for.unwrap();
    assert_eq!(wait.reason, "NovaRegistration");

    site.cloud.start_host(&host).await;
    let object = site
        .hypervisor(&host, "it has a new id, and is ready", |object| {
            let status = object.status.as_ref().unwrap();
            status.service_id != before.service_id
                && conditions::is_true(&status.conditions, Type::Ready)
        })
        .await;
    let (service, provider) = ids(site, &host).await;
    let status = object.status.unwrap();
    assert_eq!(status.service_id, Some(service));
    assert_eq!(status.hypervisor_id, Some(provider));
    until("aggregates and traits are as before", || async {
        let traits = site.cloud.traits(&host).await;
        let there = site.cloud.aggregates(&host).await == [ZONE];
        (there && traits == ["CUSTOM_COBALT_TEST"]).then_some(())
    })
    .await;
}

/// The Node is deleted, and its Hypervisor as the garbage collector does it.
async fn lose_node(site: &Site, name: &str) {
    site.delete_node(name).await;
    let params = DeleteParams::default();
    site.hypervisors().delete(name, &params).await.unwrap();
}

async fn gone(site: &Site, name: &str, host: &str) {
    until("the Hypervisor is gone", || async {
        let found = site.hypervisors().get_opt(name).await.unwrap();
        found.is_none().then_some(())
    })
    .await;
    assert!(site.cloud.has_nothing_of(host).await, "of {host}");
    let left = site.cloud.test_servers(&format!("ohooc--{host}")).await;
    assert_eq!(left, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_deleted_in_any_phase_leaves_nothing_behind() {
    let world = World::new("deleted").await;
    let site = &world.site;

    let unknown = async {
        // Nova has never heard of it.
        let host = unique("unknown");
        site.join(&site.node(&host, "true")).await;
        let waits = site.waits_of(&host);
        waits.said(&["NovaRegistration:"]).await;
        lose_node(site, &host).await;
        gone(site, &host, &host).await;
    };
    let initial = async {
        // Its service cannot be disabled: it does not get to its tests.
        let host = unique("initial");
        site.cloud.add_host(&host).await;
        let (service, _) = ids(site, &host).await;
        let at = format!("/os-services/{service}");
        world
            .faults
            .set(&host, Fault::Conflict, move |call| call.is("PUT", &at));
        site.join(&site.node(&host, "true")).await;
        site.phase(&host, Phase::Onboarding).await;
        lose_node(site, &host).await;
        world.faults.lift(&host);
        site.cloud.stop_host(&host).await;
        gone(site, &host, &host).await;
    };
    let testing = async {
        let host = unique("testing");
        site.cloud.add_host(&host).await;
        site.cloud.knob("hang_spawn", &host, true).await;
        site.join(&site.node(&host, "true")).await;
        until("the test server is there", || async {
            let all = site.cloud.test_servers(&format!("ohooc--{host}")).await;
            (all.len() == 1).then_some(())
        })
        .await;
        lose_node(site, &host).await;
        until("the test server is gone", || async {
            let all = site.cloud.test_servers(&format!("ohooc--{host}")).await;
            all.is_empty().then_some(())
        })
        .await;
        site.cloud.stop_host(&host).await;
        gone(site, &host, &host).await;
    };
    let active = async {
        let host = unique("active");
        world.active(&host).await;
        let vm = site.cloud.boot(&unique("vm"), &host).await;
        let waits = site.waits_of(&host);
        lose_node(site, &host).await;
        waits.said(&["Offboarding", &vm]).await;
        // It was found empty before it took workload; that is of no account.
        waits.never_said("the host is empty");
        waits.never_said(&format!("{vm}, {vm}"));
        // Nothing new is sent to a host that leaves.
        until("the service is disabled", || async {
            let service = site.cloud.service(&host).await.unwrap();
            (service.status == ServiceStatus::Disabled).then_some(())
        })
        .await;
        site.cloud.delete(&vm).await;
        site.cloud.stop_host(&host).await;
        gone(site, &host, &host).await;
    };
    let evicting = async {
        let host = unique("evicting");
        world.active(&host).await;
        let vm = site.cloud.boot(&unique("vm"), &host).await;
        // Else it may be away before anybody looks.
        site.cloud.knob("fail_live_migration", &vm, true).await;
        site.patch(&host, json!({ "spec": { "maintenance": "auto" } }))
            .await;
        until("the Eviction is there", || async {
            site.evictions().get_opt(&host).await.unwrap()
        })
        .await;
        let waits = site.waits_of(&host);
        lose_node(site, &host).await;
        waits.said(&["Offboarding", &vm]).await;
        waits.never_said("the host is empty");
        let eviction = site.evictions().get_opt(&host).await.unwrap();
        assert!(eviction.is_some(), "it empties the host");
        site.cloud.delete(&vm).await;
        site.cloud.stop_host(&host).await;
        gone(site, &host, &host).await;
    };
    futures::join!(unknown, initial, testing, active, evicting);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hypervisor_that_is_deleted_during_its_tests_is_made_anew_and_tested_anew() {
    let world = World::new("anew").await;
    let site = &world.site;
    let host = unique("anew");
    site.cloud.add_host(&host).await;
    site.cloud.knob("hang_spawn", &host, true).await;
    site.join(&site.node(&host, "true")).await;
    let first = until("the test server is there", || async {
        let all = site.cloud.test_servers(&format!("ohooc--{host}")).await;
        all.into_iter().next()
    })
    .await;
    let params = DeleteParams::default();
    site.hypervisors().delete(&host, &params).await.unwrap();
    site.cloud.knob("hang_spawn", &host, false).await;
    let object = site.phase(&host, Phase::Active).await;
    let checks = &object.status.as_ref().unwrap().checks;
    let boot = checks.iter().find(|check| check.name == "boot");
    assert_eq!(
        boot.map(|check| check.result),
        Some(CheckResult::Passed),
        "it was tested: {checks:#?}"
    );
    let left = site.cloud.test_servers(&format!("ohooc--{host}")).await;
    assert_eq!(left, [""; 0], "the first was {first}");
    assert_eq!(world.created(&host), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_is_not_lost_to_what_failed_in_the_one_before() {
    let site = Site::new("attempts").await;
    let doors = Doors::before(site.cloud).await;
    let faults = Faults::in_doors(&doors);
    let arguments = ["--test-attempts", "2", "--nova-interval", "2s"];
    let _operator = site.operator_with(&arguments, &doors.environment());
    let host = unique("attempts");
    let waits: Waits = site.waits_of(&host);
    faults.set(&host, Fault::Conflict, Call::creates_server);
    site.host(&host).await;
    // Nova has refused the server for good.
    site.hypervisor(&host, "the second attempt", |object| {
        let checks = object.status.as_ref().map(|status| &status.checks);
        let boot = checks.and_then(|all| all.iter().find(|check| check.name == "boot"));
        boot.and_then(|boot| boot.attempt) == Some(2)
    })
    .await;
    faults.lift(&host);
    waits.said(&["boot", "(409"]).await;
    let object = site.phase(&host, Phase::Active).await;
    let checks = &object.status.as_ref().unwrap().checks;
    let boot = checks.iter().find(|check| check.name == "boot").unwrap();
    assert_eq!(boot.result, CheckResult::Passed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_brings_its_host_back_into_service() {
    let world = World::new("returns").await;
    let site = &world.site;
    let host = unique("returns");
    world.active(&host).await;
    let vm = site.cloud.boot(&unique("vm"), &host).await;
    lose_node(site, &host).await;
    // What is said meanwhile is true.
    let state = |object: &Hypervisor, condition: Type| {
        let all = object.status.as_ref().map(|status| &status.conditions);
        let all = all.map_or(&[][..], Vec::as_slice);
        (
            conditions::status(all, condition),
            conditions::reason(all, condition),
        )
    };
    let object = site
        .hypervisor(&host, "says that it leaves", |object| {
            state(object, Type::Ready) == (Some(Status::False), Some(Reason::Terminating))
                && state(object, Type::HypervisorDisabled).0 == Some(Status::True)
        })
        .await;
    let status = object.status.as_ref().unwrap();
    assert_eq!(status.phase, Some(Phase::Evicting));
    let service = site.cloud.service(&host).await.unwrap();
    assert_eq!(service.status, ServiceStatus::Disabled);
    let reason = service.disabled_reason.unwrap_or_default();
    assert!(reason.contains("the host was in service"), "{reason}");

    // The new Node wants tests; the host has been in service, and needs none.
    let node = site.node(&host, "true");
    let params = kube::api::PostParams::default();
    site.nodes().create(&params, &node).await.unwrap();
    site.hypervisor(&host, "is in service", |new| {
        new.uid() != object.uid()
            && state(new, Type::Ready) == (Some(Status::True), Some(Reason::Ready))
    })
    .await;
    let service = site.cloud.service(&host).await.unwrap();
    assert_eq!(service.status, ServiceStatus::Enabled);
    assert_eq!(world.created(&host), 0, "no test server");
    let server = site.cloud.client().compute().server(&vm).await.unwrap();
    assert_eq!(server.host.as_deref(), Some(host.as_str()));
    site.cloud.delete(&vm).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_host_that_gets_a_stray_server_is_tested_all_the_same() {
    let world = World::new("stray").await;
    let site = &world.site;
    let host = unique("stray");
    // nova-compute registers enabled, and a tenant is faster than the operator.
    site.cloud.add_host(&host).await;
    let vm = site.cloud.boot(&unique("vm"), &host).await;
    site.join(&site.node(&host, "true")).await;
    // Its tests pass. Nova takes no host with a server into another zone; that is said, and nobody
    // but the test project may use the host until then.
    let waiting = site.hypervisor(&host, "waits for its zone", |object| {
        let status = object.status.as_ref();
        let all = status.map_or(&[][..], |status| status.conditions.as_slice());
        conditions::reason(all, Type::Onboarding) == Some(Reason::Handover)
            && conditions::reason(all, Type::AggregatesUpdated) == Some(Reason::Failed)
    });
    let waiting = waiting.await;
    let text = said(&waiting, Type::AggregatesUpdated);
    assert!(text.contains(ZONE), "{text}");
    let aggregates = site.cloud.aggregates(&host).await;
    let service = site.cloud.service(&host).await.unwrap();
    let reserved = aggregates == [TEST_AGGREGATE];
    assert!(
        reserved || service.status == ServiceStatus::Disabled,
        "{aggregates:?} {service:?}"
    );
    // Without the server it is tested as every new host is.
    site.cloud.delete(&vm).await;
    let object = site.phase(&host, Phase::Active).await;
    assert_eq!(world.created(&host), 1, "its test server");
    let record = object.annotations().get(annotations::ONBOARDED);
    assert_eq!(record.map(String::as_str), Some("tested"));
}
