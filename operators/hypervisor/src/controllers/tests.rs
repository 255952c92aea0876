//! The controllers against a model of Nova, Placement and the API server: a life of a host from end
//! to end, with actions that fail and a process that forgets everything at any moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cobalt_api::conditions::{
    self, EvictionCondition, HypervisorCondition as Type, Reason, Status, Wanted,
};
use cobalt_api::eviction::{Eviction, EvictionSpec, EvictionStatus, Outcome, SHUTDOWN_REASON};
use cobalt_api::hypervisor::{
    Check, CheckResult, Hypervisor, HypervisorSpec, HypervisorStatus, Maintenance, Phase,
};
use cobalt_api::names::{annotations, finalizers, labels, taints};
use cobalt_openstack::compute::{Aggregate, ComputeService, ServiceStatus};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeSpec, Taint};
use kube::ResourceExt;
use proptest::prelude::*;

use super::{decide, onboarding};
use crate::action::Action;
use crate::eviction::witness::{Domain, Report};
use crate::fleet::{Fleet, NovaHypervisor};
use crate::host::{
    Failure, Host, Known, Read, Reads, Remains, Settings, Silence, TestMigration, TestProject,
    TestServer, Workload,
};
use crate::pass::{Pass, own};

const HOST: &str = "hv1";
const PEER: &str = "hv2";
const PROVIDER: &str = "11111111-0000-4000-8000-000000000001";
const PROJECT: &str = "test-project";

/// Nova, Placement and the API server, as far as one host is concerned.
#[derive(Debug, Clone)]
struct Model {
    now: Timestamp,
    hypervisor: Known,
    node: Option<Node>,
    eviction: Option<Eviction>,
    /// Evictions with other names than the host's.
    others: Vec<Eviction>,
    fleet: Fleet,
    test: Option<TestServer>,
    /// Polls until the test server runs.
    boots_in: u32,
    boot_fails: bool,
    servers: BTreeSet<String>,
    /// Since when the oldest of them that has run is there.
    oldest: Option<Timestamp>,
    allocations: BTreeSet<String>,
    /// Allocations of migrations that wait to be confirmed, and their servers.
    unconfirmed: BTreeMap<String, String>,
    /// The database of the host's cell does not answer.
    cell_down: bool,
    /// What libvirt has; `None`: its agent cannot be asked.
    domains: Option<BTreeSet<String>>,
    provider: bool,
    /// Nova does not get the provider removed with the service.
    leaves_provider: bool,
    pods: bool,
    peers: Vec<String>,
    /// The checks as the process remembers them.
    checks: Option<Vec<Check>>,
    rivals: Vec<String>,
    silence: Option<Silence>,
    marked: Option<Silence>,
    reads: Reads,
    failures: BTreeMap<&'static str, Failure>,
    settings: Settings,
    done: Vec<Action>,
    released: bool,
}

fn service(enabled: bool) -> ComputeService {
    serde_json::from_value(serde_json::json!({
        "id": "service-1", "binary": "nova-compute", "host": HOST, "zone": "nova",
        "status": if enabled { "enabled" } else { "disabled" }, "state": "up",
        "disabled_reason": null, "forced_down": false, "updated_at": null,
    }))
    .unwrap()
}

fn aggregate(id: i64, name: &str, zone: bool, filter: Option<&str>) -> Aggregate {
    let metadata: BTreeMap<String, String> = filter
        .map(|project| ("filter_tenant_id".to_owned(), project.to_owned()))
        .into_iter()
        .collect();
    serde_json::from_value(serde_json::json!({
        "id": id, "uuid": format!("uuid-{id}"), "name": name, "hosts": [],
        "availability_zone": zone.then_some(name), "metadata": metadata,
    }))
    .unwrap()
}

impl Model {
    fn new() -> Self {
        let mut object = Hypervisor::new(
            HOST,
            HypervisorSpec {
                lifecycle_enabled: Some(true),
                skip_tests: Some(false),
                custom_traits: Some(vec!["CUSTOM_FAST".to_owned()]),
                aggregates: Some(vec!["special".to_owned(), "zone-a".to_owned()]),
                ..HypervisorSpec::default()
            },
        );
        object.metadata.uid = Some("uid-1".to_owned());
        object.metadata.finalizers = Some(vec![finalizers::REGISTERED_HOST.to_owned()]);
        object
            .labels_mut()
            .insert(labels::ZONE.to_owned(), "zone-a".to_owned());
        object
            .annotations_mut()
            .insert(annotations::ONBOARDED.to_owned(), "pending".to_owned());
        let mut node = Node::default();
        node.metadata.name = Some(HOST.to_owned());
        node.labels_mut()
            .insert(labels::ZONE.to_owned(), "zone-a".to_owned());
        let mut fleet = Fleet::default();
        fleet.services.insert(HOST.into(), service(true).into());
        let hypervisor = NovaHypervisor {
            id: PROVIDER.into(),
            hostname: HOST.into(),
        };
        fleet.hypervisors.insert(HOST.into(), vec![hypervisor]);
        for one in [
            aggregate(1, "zone-a", true, None),
            aggregate(2, "special", false, None),
            aggregate(3, "tenant_filter_tests", false, Some(PROJECT)),
            aggregate(4, "by-hand", false, None),
        ] {
            fleet.aggregates.insert(one.name.clone(), one.into());
        }
        fleet.traits.insert("CUSTOM_FAST".to_owned(), [].into());
        let mut model = Self {
            now: "2026-11-17T12:00:00Z".parse().unwrap(),
            hypervisor: Known {
                object,
                ..Known::default()
            },
            node: Some(node),
            eviction: None,
            others: Vec::new(),
            fleet,
            test: None,
            boots_in: 2,
            boot_fails: false,
            servers: BTreeSet::new(),
            oldest: None,
            allocations: BTreeSet::new(),
            unconfirmed: BTreeMap::new(),
            cell_down: false,
            domains: None,
            provider: true,
            leaves_provider: false,
            pods: false,
            peers: vec![PEER.to_owned()],
            checks: None,
            rivals: Vec::new(),
            silence: None,
            marked: None,
            reads: Reads::default(),
            failures: BTreeMap::new(),
            settings: Settings::default(),
            done: Vec::new(),
            released: false,
        };
        model.agent_says(Type::LibVirtConnection, Status::True, Reason::Connected);
        model
    }

    fn agent_says(&mut self, condition: Type, status: Status, reason: Reason) {
        let all = &mut self
            .hypervisor
            .object
            .status
            .get_or_insert_default()
            .conditions;
        let new = Wanted {
            condition,
            status,
            reason,
            message: "said".to_owned(),
            observed_generation: None,
        };
        let new = new.build(all, self.now);
        conditions::set(all, new);
    }

    fn host(&self) -> Host {
        Host {
            name: HOST.to_owned(),
            node: self.node.clone().map(Arc::new),
            hypervisor: Some(Arc::new(self.hypervisor.clone())),
            eviction: self.eviction.clone().map(Arc::new),
            shutdowns: self.shutdowns().cloned().map(Arc::new).collect(),
            ovs: None,
            fleet: Ok(Arc::new(self.fleet.clone())),
            trouble: None,
            testbed: Ok(Arc::new(TestProject {
                id: PROJECT.to_owned(),
            })),
            peers: self.peers.clone(),
            checks: self.checks.clone(),
            rivals: self.rivals.clone(),
            silence: self.silence.clone(),
            marked: self.marked.clone(),
            has_lease: true,
            reads: self.reads.clone(),
            failures: self.failures.clone(),
            settings: Arc::new(self.settings.clone()),
        }
    }

    fn shutdowns(&self) -> impl Iterator<Item = &Eviction> {
        let all = self.eviction.iter().chain(&self.others);
        all.filter(|one| one.is_for_shutdown())
    }

    /// Decides, writes, acts. Returns whether anything was written or done.
    fn turn(&mut self, fails: bool) -> bool {
        let host = self.host();
        let mut pass = Pass::new(&host, self.now);
        decide(&mut pass);
        let wanted = pass.status.clone();
        let actions = std::mem::take(&mut pass.actions);
        for name in &pass.forgiven {
            self.failures.remove(name);
        }
        let before = own(&self.hypervisor.status());
        let changed = before != own(&wanted);
        if pass.marks {
            self.marked.clone_from(&self.silence);
        }
        let testing = conditions::reason(&wanted.conditions, Type::Onboarding);
        self.checks = (testing == Some(Reason::Testing)).then(|| wanted.checks.clone());
        self.hypervisor.object.status = Some(wanted);
        // The node follows, as the objects of a node do.
        if self.leaves()
            && self.evicted()
            && let Some(node) = &mut self.node
        {
            node.spec = Some(NodeSpec {
                taints: Some(vec![Taint {
                    key: taints::OFFBOARDING.to_owned(),
                    effect: "NoExecute".to_owned(),
                    ..Taint::default()
                }]),
                ..NodeSpec::default()
            });
        }
        for action in &actions {
            if fails {
                let failure = Failure {
                    count: 0,
                    text: format!("{} failed", action.name()),
                    retry_at: self.now + SignedDuration::from_secs(2),
                };
                self.failures.insert(action.name(), failure);
            } else {
                self.failures.remove(action.name());
                self.act(action);
                self.done.push(action.clone());
            }
        }
        self.holds();
        changed || !actions.is_empty()
    }

    fn leaves(&self) -> bool {
        self.hypervisor.object.spec.maintenance() == Maintenance::Termination
    }

    fn evicted(&self) -> bool {
        self.state(Type::Evicting) == Some((Status::False, Some(Reason::Succeeded)))
    }

    fn act(&mut self, action: &Action) {
        let now = self.now;
        match action {
            Action::DisableService { reason, .. } => {
                let service = self.fleet.services.get_mut(HOST).unwrap();
                service.status = ServiceStatus::Disabled;
                service.disabled_reason = Some(reason.clone());
                self.reads.disabled();
            }
            Action::EnableService { .. } => {
                let service = self.fleet.services.get_mut(HOST).unwrap();
                service.status = ServiceStatus::Enabled;
                service.disabled_reason = None;
            }
            Action::JoinAggregate { name, host, .. } => {
                self.fleet
                    .aggregates
                    .get_mut(name)
                    .unwrap()
                    .hosts
                    .insert(host.as_str().into());
            }
            Action::LeaveAggregate { name, host, .. } => {
                self.fleet
                    .aggregates
                    .get_mut(name)
                    .unwrap()
                    .hosts
                    .remove(host.as_str());
            }
            Action::SetTraits { add, remove, .. } => {
                for name in add.iter().filter(|name| !name.contains("-")) {
                    self.fleet
                        .traits
                        .entry(name.clone())
                        .or_default()
                        .insert(PROVIDER.into());
                }
                for name in remove {
                    self.fleet
                        .traits
                        .entry(name.clone())
                        .or_default()
                        .remove(PROVIDER);
                }
                let present = self
                    .fleet
                    .traits
                    .iter()
                    .filter(|(_, all)| all.contains(PROVIDER));
                let value = present.map(|(name, _)| name.clone()).collect();
                self.reads.traits = Some(Read { at: now, value });
            }
            Action::ReadTest { .. } => {
                if let Some(server) = &mut self.test
                    && server.status == "BUILD"
                {
                    self.boots_in = self.boots_in.saturating_sub(1);
                    if self.boots_in == 0 && self.boot_fails {
                        server.status = "ERROR".to_owned();
                        server.fault = Some("No valid host was found".to_owned());
                    } else if self.boots_in == 0 {
                        server.status = "ACTIVE".to_owned();
                        server.spoke = true;
                    }
                }
                let value = self.test.clone().into_iter().collect();
                self.reads.test = Some(Read { at: now, value });
            }
            Action::CreateTest { host, .. } => {
                assert!(self.test.is_none(), "a second test server");
                let enabled = self.fleet.services[HOST].status == ServiceStatus::Enabled;
                assert!(enabled, "Nova gives a disabled host no server");
                self.boots_in = 2;
                self.test = Some(TestServer {
                    id: "server-1".to_owned(),
                    status: "BUILD".to_owned(),
                    host: Some(host.clone()),
                    ..TestServer::default()
                });
                self.reads.test = None;
            }
            Action::DeleteTest { .. } => {
                self.test = None;
                self.reads.test = None;
            }
            Action::MigrateTest { to, .. } => {
                let server = self.test.as_mut().unwrap();
                server.host = Some(to.clone());
                server.migration = Some(TestMigration {
                    to: Some(to.clone()),
                    status: "completed".to_owned(),
                    ended: true,
                    succeeded: true,
                });
                self.reads.test = None;
            }
            Action::CreateEviction { reason, .. } => {
                let spec = EvictionSpec {
                    hypervisor: HOST.to_owned(),
                    reason: reason.clone(),
                    ..EvictionSpec::default()
                };
                let mut eviction = Eviction::new(HOST, spec);
                eviction.metadata.uid = Some("eviction-1".to_owned());
                eviction.metadata.owner_references = Some(vec![
                    k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
                        kind: "Hypervisor".to_owned(),
                        controller: Some(true),
                        ..Default::default()
                    },
                ]);
                self.eviction = Some(eviction);
            }
            Action::DeleteEviction { name, .. } => {
                self.eviction.take_if(|one| one.name_any() == *name);
                self.others.retain(|one| one.name_any() != *name);
            }
            Action::ClearRetry => {
                self.hypervisor
                    .object
                    .annotations_mut()
                    .remove(annotations::RETRY_ONBOARDING);
            }
            Action::Record { record } => {
                self.hypervisor.object.annotations_mut().insert(
                    annotations::ONBOARDED.to_owned(),
                    record.as_str().to_owned(),
                );
            }
            Action::ReadNode => {
                let value = self.node.is_some();
                self.reads.node = Some(Read { at: now, value });
            }
            Action::ReadPods => {
                let value = Vec::new();
                self.pods = false;
                self.reads.pods = Some(Read { at: now, value });
            }
            Action::ReadWorkload { .. } => {
                let value = Workload {
                    servers: self.servers.len(),
                    oldest: self.oldest,
                };
                self.reads.workload = Some(Read { at: now, value });
            }
            Action::ReadDomains => {
                let domains = self.domains.iter().flatten().cloned();
                let domains = domains.map(|id| (id, Domain::default())).collect();
                let value = match self.domains {
                    Some(_) => Report::Domains(domains),
                    None => Report::Silent("it has no heartbeat".to_owned()),
                };
                self.reads.libvirt = Some(Read { at: now, value });
            }
            Action::ReadRemains { .. } => self.read_remains(),
            Action::DeleteAllocations { consumers } => {
                for consumer in consumers {
                    assert!(!self.servers.contains(consumer), "it lives");
                    assert!(
                        !self.unconfirmed.contains_key(consumer),
                        "it may be reverted"
                    );
                    self.allocations.remove(consumer);
                }
                self.reads.remains = None;
            }
            Action::DeleteProviders { ids, names } => {
                assert_eq!(ids, &[PROVIDER], "another host's");
                assert!(names.contains(HOST), "{names:?}");
                assert!(self.allocations.is_empty() && self.servers.is_empty());
                self.provider = false;
                self.reads.remains = None;
            }
            Action::DeleteService { .. } => {
                assert!(self.servers.is_empty(), "Nova refuses it");
                assert!(self.provider, "Nova fails without the provider");
                self.provider = self.leaves_provider;
                self.fleet.services.clear();
                self.fleet.hypervisors.clear();
                for one in self.fleet.aggregates.values_mut() {
                    one.hosts.remove(HOST);
                }
                self.reads.remains = None;
            }
            Action::Release => {
                self.released = true;
                self.hypervisor.object.metadata.finalizers = None;
            }
        }
    }

    fn read_remains(&mut self) {
        let consumers: BTreeSet<String> = self
            .allocations
            .union(&self.servers)
            .chain(self.unconfirmed.keys())
            .cloned()
            .collect();
        // Nova's lists leave out what a cell has that is down.
        let unconfirmed = if self.cell_down {
            BTreeMap::new()
        } else {
            self.unconfirmed.clone()
        };
        let listed = if self.cell_down {
            BTreeSet::new()
        } else {
            self.servers.clone()
        };
        let value = Remains {
            servers: listed,
            cell_down: self.cell_down,
            service: self
                .fleet
                .services
                .get(HOST)
                .map(|service| service.id.clone()),
            providers: self
                .provider
                .then(|| (PROVIDER.to_owned(), consumers))
                .into_iter()
                .collect(),
            alive: self
                .servers
                .iter()
                .chain(unconfirmed.keys())
                .cloned()
                .collect(),
            unconfirmed,
        };
        self.reads.looked(self.now, value);
    }

    /// What is true at every moment.
    fn holds(&self) {
        let enabled = self
            .fleet
            .services
            .get(HOST)
            .is_some_and(|service| service.status == ServiceStatus::Enabled);
        let onboarding = self.state(Type::Onboarding);
        let in_test = self.is_in("tenant_filter_tests");
        if matches!(onboarding, Some((Status::True, Some(Reason::Testing)))) && enabled {
            assert!(in_test, "tenants can reach a host under test");
        }
        if matches!(onboarding, Some((Status::True, Some(Reason::Handover)))) && enabled {
            let all = ["zone-a", "special"].iter().all(|name| self.is_in(name));
            assert!(all && !in_test, "enabled before its aggregates are right");
            let wanted = self.hypervisor.object.spec.custom_traits();
            assert!(
                self.has_trait() || wanted.is_empty(),
                "enabled before its traits are right"
            );
        }
        let tested = self.hypervisor.object.annotations()[annotations::ONBOARDED] != "pending";
        let was_disabled = self.did("disable-service");
        assert!(
            !enabled || in_test || tested || !was_disabled,
            "enabled for tenants without a record of its tests"
        );
        assert!(self.is_in("by-hand") == self.by_hand(), "it is not ours");
    }

    fn by_hand(&self) -> bool {
        self.fleet.aggregates["by-hand"].hosts.contains("marker")
            && self.fleet.services.contains_key(HOST)
    }

    fn has_trait(&self) -> bool {
        self.fleet.traits["CUSTOM_FAST"].contains(PROVIDER)
    }

    fn is_in(&self, name: &str) -> bool {
        self.fleet.aggregates[name].hosts.contains(HOST)
    }

    fn state(&self, condition: Type) -> Option<(Status, Option<Reason>)> {
        let all = &self.hypervisor.object.status.as_ref()?.conditions;
        Some((
            conditions::status(all, condition)?,
            conditions::reason(all, condition),
        ))
    }

    fn phase(&self) -> Option<Phase> {
        self.hypervisor.object.status.as_ref()?.phase
    }

    /// Turns until nothing changes any more.
    fn settle(&mut self) {
        for _ in 0..400 {
            if !self.turn(false) {
                self.now += SignedDuration::from_secs(6);
                if !self.turn(false) {
                    return;
                }
            }
            self.now += SignedDuration::from_secs(1);
        }
        panic!("it never ends: {:?}", self.hypervisor.object.status);
    }

    /// The eviction engine has done its work.
    fn eviction_ends(&mut self, reason: Reason) {
        let eviction = self.eviction.as_mut().unwrap();
        let wanted = Wanted {
            condition: EvictionCondition::Evicting,
            status: Status::False,
            reason,
            message: "ended".to_owned(),
            observed_generation: None,
        };
        eviction.status = Some(EvictionStatus {
            conditions: vec![wanted.build(&[], self.now)],
            finished_at: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                self.now,
            )),
            ..EvictionStatus::default()
        });
        if reason == Reason::Succeeded {
            self.servers.clear();
        }
    }

    fn maintain(&mut self, mode: Maintenance) {
        self.hypervisor.object.spec.maintenance = Some(mode);
        self.hypervisor.object.spec.maintenance_reason = Some("a fan".to_owned());
    }

    fn check(&self, name: &str) -> CheckResult {
        let checks = &self.hypervisor.object.status.as_ref().unwrap().checks;
        checks
            .iter()
            .find(|check| check.name == name)
            .unwrap()
            .result
    }

    fn onboarded() -> Self {
        let mut model = Self::new();
        model.settle();
        assert_eq!(model.phase(), Some(Phase::Active));
        model.done.clear();
        model
    }

    fn did(&self, name: &str) -> bool {
        self.done.iter().any(|action| action.name() == name)
    }
}

#[test]
fn a_new_host_becomes_active() {
    let mut model = Model::new();
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Active));
    assert_eq!(
        model.state(Type::Ready),
        Some((Status::True, Some(Reason::Ready)))
    );
    assert!(model.is_in("zone-a") && model.is_in("special") && !model.is_in("tenant_filter_tests"));
    assert!(model.has_trait() && model.test.is_none());
    for name in ["libvirt", "boot", "migrate-out", "migrate-in"] {
        assert_eq!(model.check(name), CheckResult::Passed, "{name}");
    }
    for name in ["bridges", "storage"] {
        assert_eq!(model.check(name), CheckResult::Skipped, "{name}");
    }
    // Nothing is done any more, and nothing written.
    model.done.clear();
    assert!(!model.turn(false));
}

#[test]
fn w17_service_stays_disabled_until_tests_pass() {
    let mut model = Model::new();
    model.turn(false);
    // The ids, the condition and the intent are one write, and the first action keeps tenants away.
    model.turn(false);
    assert_eq!(
        model.state(Type::Onboarding),
        Some((Status::True, Some(Reason::Initial)))
    );
    let status = model.hypervisor.object.status.clone().unwrap();
    assert_eq!(status.service_id.as_deref(), Some("service-1"));
    assert!(matches!(
        model.done.last(),
        Some(Action::JoinAggregate { .. } | Action::DisableService { .. })
    ));
    assert!(model.did("disable-service"));
    // `holds` has looked after the rest at every turn.
    model.settle();
}

#[test]
fn w17_an_open_test_aggregate_lets_nobody_in() {
    let mut model = Model::new();
    model
        .fleet
        .aggregates
        .get_mut("tenant_filter_tests")
        .unwrap()
        .metadata
        .clear();
    for _ in 0..50 {
        model.turn(false);
        model.now += SignedDuration::from_secs(5);
    }
    assert_eq!(model.fleet.services[HOST].status, ServiceStatus::Disabled);
    let wait = model.hypervisor.object.status.unwrap().waiting_for.unwrap();
    assert!(wait.message.unwrap().contains("filter_tenant_id"));
}

#[test]
fn w13_w14_w19_a_failed_test_is_a_state_with_a_way_back() {
    let mut model = Model::new();
    model.boot_fails = true;
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Aborted));
    assert_eq!(model.check("boot"), CheckResult::Failed);
    let creates = model
        .done
        .iter()
        .filter(|action| action.name() == "create-test")
        .count();
    assert_eq!(creates, 3, "the attempts are counted");
    assert!(model.test.is_none(), "nothing is left");
    assert_eq!(model.fleet.services[HOST].status, ServiceStatus::Disabled);
    let text = {
        let all = &model.hypervisor.object.status.as_ref().unwrap().conditions;
        conditions::find(all, Type::Onboarding)
            .unwrap()
            .message
            .clone()
    };
    assert!(
        text.contains("No valid host") && text.contains("cobalt onboard retry hv1"),
        "{text}"
    );

    model.boot_fails = false;
    model
        .hypervisor
        .object
        .annotations_mut()
        .insert(annotations::RETRY_ONBOARDING.to_owned(), "now".to_owned());
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Active));
    let left = model.hypervisor.object.annotations();
    assert!(
        !left.contains_key(annotations::RETRY_ONBOARDING),
        "the wish was heard once"
    );
}

#[test]
fn w13_a_dead_end_of_the_operator_before_is_left() {
    let mut model = Model::new();
    model.agent_says(Type::Onboarding, Status::True, Reason::Aborted);
    model.test = Some(TestServer::default());
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Active));
    assert!(model.did("delete-test"));
}

#[test]
fn w15_a_host_without_traits_leaves_handover() {
    let mut model = Model::new();
    model.hypervisor.object.spec.custom_traits = Some(Vec::new());
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Active));
    assert_eq!(
        model.state(Type::TraitsUpdated),
        Some((Status::True, Some(Reason::Succeeded)))
    );
    assert!(!model.did("set-traits"));
}

#[test]
fn a_restart_in_handover_does_not_go_back() {
    let mut model = Model::new();
    for _ in 0..100 {
        let state = model.state(Type::Onboarding);
        if state == Some((Status::True, Some(Reason::Handover)))
            && model.has_trait()
            && !model.is_in("tenant_filter_tests")
        {
            break;
        }
        model.turn(false);
        model.now += SignedDuration::from_secs(2);
    }
    assert_eq!(
        model.state(Type::Onboarding),
        Some((Status::True, Some(Reason::Handover)))
    );
    // A new process has not asked Placement yet.
    let known = std::mem::take(&mut model.fleet.traits);
    model.reads = Reads::default();
    model.done.clear();
    model
        .fleet
        .traits
        .insert("CUSTOM_OTHER".to_owned(), [].into());
    let host = model.host();
    let mut pass = Pass::new(&host, model.now);
    decide(&mut pass);
    assert_eq!(pass.actions, []);
    model.fleet.traits = known;
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Active));
}

#[test]
fn w21_new_ids_of_a_host_are_taken() {
    let mut model = Model::onboarded();
    let mut service = service(true);
    service.id = "service-2".to_owned();
    model.fleet.services.insert(HOST.into(), service.into());
    model.settle();
    let status = model.hypervisor.object.status.unwrap();
    assert_eq!(status.service_id.as_deref(), Some("service-2"));
}

#[test]
fn w22_drift_is_repaired_and_a_strangers_decision_told() {
    let mut model = Model::onboarded();
    model
        .fleet
        .aggregates
        .get_mut("special")
        .unwrap()
        .hosts
        .clear();
    model.fleet.traits.get_mut("CUSTOM_FAST").unwrap().clear();
    model.settle();
    assert!(model.is_in("special") && model.has_trait());

    let service = model.fleet.services.get_mut(HOST).unwrap();
    service.status = ServiceStatus::Disabled;
    service.disabled_reason = Some("bad disk".to_owned());
    model.done.clear();
    model.settle();
    assert!(!model.did("enable-service"), "somebody had a reason");
    assert_eq!(
        model.state(Type::Ready),
        Some((Status::False, Some(Reason::NotReady)))
    );
    let service = model.fleet.services.get_mut(HOST).unwrap();
    service.status = ServiceStatus::Enabled;
    model.settle();
    assert_eq!(
        model.state(Type::Ready),
        Some((Status::True, Some(Reason::Ready)))
    );
}

#[test]
fn w23_what_somebody_did_by_hand_stays() {
    let mut model = Model::new();
    let by_hand = model.fleet.aggregates.get_mut("by-hand").unwrap();
    by_hand.hosts.extend([HOST.into(), "marker".into()]);
    model
        .fleet
        .traits
        .insert("CUSTOM_THEIRS".to_owned(), [PROVIDER.into()].into());
    model.settle();
    model.hypervisor.object.spec.aggregates = Some(vec!["zone-a".to_owned()]);
    model.hypervisor.object.spec.custom_traits = Some(Vec::new());
    model.settle();
    assert!(model.is_in("by-hand") && !model.is_in("special"));
    assert!(!model.has_trait() && model.fleet.traits["CUSTOM_THEIRS"].contains(PROVIDER));
}

#[test]
fn a_bad_trait_does_not_hold_up_the_good_ones_and_is_named() {
    let mut model = Model::onboarded();
    let wanted = ["CUSTOM_FAST", "CUSTOM_NEW", "CUSTOM_not-one"];
    model.hypervisor.object.spec.custom_traits = Some(wanted.map(str::to_owned).to_vec());
    for name in ["CUSTOM_NEW", "CUSTOM_not-one"] {
        model.fleet.traits.insert(name.to_owned(), [].into());
    }
    let turn = |model: &mut Model| {
        model.turn(false);
        // As the executor reports it.
        let text = "Placement refuses CUSTOM_not-one (400); the other traits are set".to_owned();
        let failure = Failure {
            count: 1,
            text,
            retry_at: model.now + SignedDuration::from_secs(60),
        };
        model.failures.insert(Action::SET_TRAITS, failure);
        model.now += SignedDuration::from_secs(1);
    };
    turn(&mut model);
    turn(&mut model);
    assert!(model.fleet.traits["CUSTOM_NEW"].contains(PROVIDER));
    assert_eq!(
        model.state(Type::TraitsUpdated),
        Some((Status::False, Some(Reason::Failed)))
    );
    let status = model.hypervisor.object.status.clone().unwrap();
    let said = conditions::find(&status.conditions, Type::TraitsUpdated).unwrap();
    assert!(said.message.contains("CUSTOM_not-one"), "{}", said.message);
    assert_eq!(
        status.owned_traits.unwrap(),
        ["CUSTOM_FAST", "CUSTOM_NEW"],
        "what was set is removed again once it is not wanted"
    );
}

#[test]
fn a_long_reason_is_cut_before_it_is_passed_on() {
    let mut model = Model::onboarded();
    model.servers.insert("vm-1".to_owned());
    model.maintain(Maintenance::Manual);
    model.hypervisor.object.spec.maintenance_reason = Some("x".repeat(200_000));
    model.settle();
    let reason = model.fleet.services[HOST].disabled_reason.clone().unwrap();
    assert_eq!(reason.len(), 255, "Nova's limit");
    assert!(model.eviction.unwrap().spec.reason.len() <= 512);
}

#[test]
fn w31_a_host_at_work_is_adopted_and_not_tested() {
    let mut model = Model::new();
    model.servers.insert("vm-1".to_owned());
    for name in ["zone-a", "special"] {
        model
            .fleet
            .aggregates
            .get_mut(name)
            .unwrap()
            .hosts
            .insert(HOST.into());
    }
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Active));
    assert!(!model.did("disable-service") && !model.did("leave-aggregate"));
    assert!(!model.is_in("tenant_filter_tests"));
}

impl Model {
    /// Node and Hypervisor were made at this time.
    fn made_at(&mut self, time: Timestamp) {
        use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
        let node = self.node.as_mut().unwrap();
        node.metadata.creation_timestamp = Some(Time(time));
        self.hypervisor.object.metadata.creation_timestamp = Some(Time(time));
    }
}

#[test]
fn a_new_host_that_gets_a_stray_server_is_tested_all_the_same() {
    let now = Model::new().now;
    // An ERROR one has never run; another came after the objects, or hardly before them.
    let arrivals = [
        None,
        Some(now + SignedDuration::from_secs(5)),
        Some(now - SignedDuration::from_secs(30)),
    ];
    for arrived in arrivals {
        let mut model = Model::new();
        model.made_at(now);
        model.servers.insert("stray".to_owned());
        model.oldest = arrived;
        model.settle();
        assert_eq!(model.phase(), Some(Phase::Active));
        assert!(
            model.did("disable-service") && model.did("create-test"),
            "{arrived:?}"
        );
    }
}

#[test]
fn a_server_that_is_older_than_the_objects_shows_a_host_at_work() {
    let mut model = Model::new();
    model.made_at(model.now);
    model.servers.insert("vm-1".to_owned());
    model.oldest = Some(model.now - SignedDuration::from_hours(1));
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Active));
    assert!(!model.did("disable-service") && !model.did("create-test"));
}

#[test]
fn a_host_with_servers_that_somebody_disabled_is_not_enabled_by_tests() {
    let mut model = Model::new();
    model.made_at(model.now);
    model.servers.insert("vm-1".to_owned());
    let service = model.fleet.services.get_mut(HOST).unwrap();
    service.status = ServiceStatus::Disabled;
    service.disabled_reason = Some("bad disk".to_owned());
    model.settle();
    assert!(!model.did("enable-service"));
    assert_eq!(
        model.state(Type::HypervisorDisabled),
        Some((Status::True, Some(Reason::Failed)))
    );
}

#[test]
fn a_server_is_as_old_on_a_host_as_its_last_move_there() {
    let server = |id: &str, status: &str, created: &str| -> cobalt_openstack::compute::Server {
        serde_json::from_value(serde_json::json!({
            "id": id, "name": id, "status": status, "created": created,
        }))
        .unwrap()
    };
    let moved = |server: &str, to: &str, at: &str| -> cobalt_openstack::compute::Migration {
        serde_json::from_value(serde_json::json!({
            "id": 1, "uuid": "m", "instance_uuid": server, "status": "completed",
            "migration_type": "live-migration", "dest_compute": to, "updated_at": at,
        }))
        .unwrap()
    };
    let old = "2026-01-01T00:00:00Z";
    let new = "2026-06-01T00:00:00Z";
    let error = server("a", "ERROR", old);
    let build = server("b", "BUILD", old);
    let off = server("c", "SHUTOFF", old);
    let look = |servers: &[_], migrations: &[_]| {
        crate::act::workload(HOST, servers, migrations)
            .oldest
            .map(|time| time.to_string())
    };
    assert_eq!(look(&[error, build], &[]), None);
    let one = std::slice::from_ref(&off);
    assert_eq!(look(one, &[]).as_deref(), Some(old));
    assert_eq!(look(one, &[moved("c", HOST, new)]).as_deref(), Some(new));
    assert_eq!(look(one, &[moved("c", PEER, new)]).as_deref(), Some(old));
    assert_eq!(look(one, &[moved("d", HOST, new)]).as_deref(), Some(old));
}

#[test]
fn w1_a_failed_eviction_is_not_an_empty_host() {
    for reason in [
        Reason::Failed,
        Reason::PartiallyFailed,
        Reason::Cancelled,
        Reason::TimedOut,
    ] {
        let mut model = Model::onboarded();
        model.servers.insert("vm-1".to_owned());
        model.maintain(Maintenance::Termination);
        model.settle();
        assert_eq!(model.phase(), Some(Phase::Evicting));
        model.eviction_ends(reason);
        model.settle();
        let status = model.hypervisor.object.status.clone().unwrap();
        assert_eq!(status.evicted, Some(false));
        assert_eq!(
            model.state(Type::Evicting),
            Some((Status::False, Some(reason)))
        );
        assert_eq!(
            model.state(Type::Offboarded).map(|(status, _)| status),
            Some(Status::False)
        );
        assert!(model.is_in("zone-a"), "the aggregates stay");
        assert!(!model.did("delete-service"));
    }
}

#[test]
fn maintenance_disables_evicts_and_comes_back() {
    let mut model = Model::onboarded();
    model.servers.insert("vm-1".to_owned());
    model.maintain(Maintenance::Manual);
    model.settle();
    let reason = model.fleet.services[HOST].disabled_reason.clone().unwrap();
    assert_eq!(reason, "Hypervisor CRD: spec.maintenance=manual: a fan");
    assert_eq!(model.phase(), Some(Phase::Evicting));
    assert!(model.eviction.is_some());
    // The text follows the mode.
    model.maintain(Maintenance::Auto);
    model.settle();
    let reason = model.fleet.services[HOST].disabled_reason.clone().unwrap();
    assert!(reason.contains("spec.maintenance=auto"));
    // In the middle of it: called off, and enabled again.
    model.maintain(Maintenance::Unset);
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Active));
    assert!(model.eviction.is_none() && model.state(Type::Evicting).is_none());
    assert_eq!(model.fleet.services[HOST].status, ServiceStatus::Enabled);
    // And to the end.
    model.maintain(Maintenance::Manual);
    model.settle();
    model.eviction_ends(Reason::Succeeded);
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Maintenance));
    assert_eq!(
        model.state(Type::Ready),
        Some((Status::False, Some(Reason::Evicted)))
    );
    model.maintain(Maintenance::Unset);
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Active));
}

#[test]
fn a_host_that_somebody_enables_during_maintenance_is_emptied_again() {
    let mut model = Model::onboarded();
    model.maintain(Maintenance::Manual);
    model.settle();
    model.eviction_ends(Reason::Succeeded);
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Maintenance));
    let service = model.fleet.services.get_mut(HOST).unwrap();
    service.status = ServiceStatus::Enabled;
    model.servers.insert("vm-1".to_owned());
    // Whatever fails meanwhile: what was said of the host is taken back.
    model.turn(true);
    model.settle();
    assert_eq!(model.fleet.services[HOST].status, ServiceStatus::Disabled);
    assert_eq!(model.phase(), Some(Phase::Evicting));
    assert_eq!(model.hypervisor.status().evicted, Some(false));
    let eviction = model.eviction.as_ref().unwrap();
    assert_eq!(eviction.status, None, "it is a new one");
    model.eviction_ends(Reason::Succeeded);
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Maintenance));
}

#[test]
fn a_long_reason_of_maintenance_fits_into_the_eviction() {
    let mut model = Model::onboarded();
    model.maintain(Maintenance::Manual);
    // Stored before it had a limit.
    let long = "\u{e9}".repeat(200_000);
    model.hypervisor.object.spec.maintenance_reason = Some(long);
    model.settle();
    let reason = model.eviction.unwrap().spec.reason;
    assert_eq!(reason.chars().count(), 512);
    assert!(reason.starts_with("maintenance manual: "), "{reason}");
}

#[test]
fn w11_the_eviction_of_an_earlier_maintenance_says_nothing() {
    let mut model = Model::onboarded();
    model.maintain(Maintenance::Manual);
    model.settle();
    model.eviction_ends(Reason::Succeeded);
    let going = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(model.now);
    model.eviction.as_mut().unwrap().metadata.deletion_timestamp = Some(going);
    model.settle();
    assert_ne!(
        model.hypervisor.object.status.as_ref().unwrap().evicted,
        Some(true)
    );
}

#[test]
fn ha_is_left_to_others_and_w95_so_is_an_unmanaged_host() {
    let mut model = Model::onboarded();
    model.maintain(Maintenance::Ha);
    model.settle();
    assert_eq!(model.done, []);
    let mut model = Model::onboarded();
    model.hypervisor.object.spec.lifecycle_enabled = Some(false);
    model.maintain(Maintenance::Manual);
    model.settle();
    assert_eq!(model.done, []);
}

#[test]
fn w32_w33_offboarding_leaves_nothing_behind() {
    let mut model = Model::onboarded();
    model.allocations.insert("a-dead-consumer".to_owned());
    model.maintain(Maintenance::Termination);
    model.settle();
    model.eviction_ends(Reason::Succeeded);
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Decommissioned));
    assert!(!model.provider && model.allocations.is_empty());
    assert!(model.fleet.services.is_empty());
    assert!(
        model
            .fleet
            .aggregates
            .values()
            .all(|one| !one.hosts.contains(HOST))
    );
    let names: Vec<_> = model.done.iter().map(Action::name).collect();
    let at = |name| names.iter().position(|one| *one == name).unwrap();
    assert!(at("delete-allocations") < at("delete-service"));
}

#[test]
fn w33_a_provider_that_nova_leaves_behind_is_removed() {
    let mut model = Model::onboarded();
    model.leaves_provider = true;
    model.maintain(Maintenance::Termination);
    model.settle();
    model.eviction_ends(Reason::Succeeded);
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Decommissioned));
    assert!(!model.provider);
    let names: Vec<_> = model.done.iter().map(Action::name).collect();
    let at = |name| names.iter().position(|one| *one == name).unwrap();
    assert!(at("delete-service") < at("delete-providers"));
}

#[test]
fn offboarding_waits_for_what_lives() {
    let mut model = Model::onboarded();
    model.maintain(Maintenance::Termination);
    model.settle();
    model.eviction_ends(Reason::Succeeded);
    // One came after the eviction had looked.
    model.servers.insert("vm-late".to_owned());
    for _ in 0..20 {
        model.turn(false);
        model.now += SignedDuration::from_secs(6);
    }
    assert!(!model.did("delete-service") && !model.did("delete-providers"));
    let wait = model
        .hypervisor
        .object
        .status
        .as_ref()
        .unwrap()
        .waiting_for
        .clone()
        .unwrap();
    assert!(wait.message.unwrap().contains("vm-late"));
    model.servers.clear();
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Decommissioned));
}

/// Offboards a host, with something in the way; returns what it waits for.
fn offboards_until(model: &mut Model) -> String {
    model.maintain(Maintenance::Termination);
    model.settle();
    model.eviction_ends(Reason::Succeeded);
    for _ in 0..20 {
        model.turn(false);
        model.now += SignedDuration::from_secs(6);
    }
    for action in ["delete-allocations", "delete-service", "delete-providers"] {
        assert!(!model.did(action), "{action}");
    }
    let status = model.hypervisor.object.status.clone().unwrap();
    status.waiting_for.unwrap().message.unwrap()
}

#[test]
fn offboarding_destroys_nothing_while_the_cell_of_the_host_is_down() {
    let mut model = Model::onboarded();
    // Nova would know this one if its cell answered.
    let (migration, server) = ("migration".to_owned(), "vm".to_owned());
    model.unconfirmed.insert(migration, server);
    model.cell_down = true;
    let waits = offboards_until(&mut model);
    assert!(waits.contains("cell"), "{waits}");
    model.cell_down = false;
    model.unconfirmed.clear();
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Decommissioned));
}

#[test]
fn offboarding_does_not_take_an_unconfirmed_resize_for_dead() {
    let mut model = Model::onboarded();
    let (migration, server) = ("migration-1".to_owned(), "vm-1".to_owned());
    model.unconfirmed.insert(migration, server);
    let waits = offboards_until(&mut model);
    assert!(
        waits.contains("vm-1") && waits.contains("confirm"),
        "{waits}"
    );
    model.unconfirmed.clear();
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Decommissioned));
}

#[test]
fn offboarding_asks_libvirt_before_the_agents_leave() {
    let mut model = Model::onboarded();
    model.domains = Some(["forgotten".to_owned()].into());
    let waits = offboards_until(&mut model);
    assert!(waits.contains("forgotten"), "{waits}");
    assert!(!model.did("read-pods"), "the agents stay");
    model.domains = Some(BTreeSet::new());
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Decommissioned));
}

#[test]
fn w30_a_node_that_is_gone_is_not_a_silent_delete() {
    let mut model = Model::onboarded();
    model.servers.insert("vm-1".to_owned());
    model.node = None;
    let going = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(model.now);
    model.hypervisor.object.metadata.deletion_timestamp = Some(going);
    for _ in 0..20 {
        model.turn(false);
        model.now += SignedDuration::from_secs(6);
    }
    assert!(!model.released && !model.did("delete-service"));
    assert_eq!(model.fleet.services[HOST].status, ServiceStatus::Disabled);
    // What it says is true meanwhile.
    assert_eq!(
        model.state(Type::Ready),
        Some((Status::False, Some(Reason::Terminating)))
    );
    assert_eq!(model.phase(), Some(Phase::Evicting));
    assert_eq!(
        model.state(Type::HypervisorDisabled),
        Some((Status::True, Some(Reason::Succeeded)))
    );
    let status = model.hypervisor.object.status.clone().unwrap();
    let wait = status.waiting_for.unwrap().message.unwrap();
    assert!(
        wait.contains("vm-1") && wait.contains("cobalt drain hv1"),
        "{wait}"
    );
    model.servers.clear();
    model.settle();
    assert!(model.released && model.fleet.services.is_empty() && !model.provider);
}

impl Model {
    /// The Node is deleted, and its Hypervisor with it.
    fn lose_node(&mut self) {
        self.node = None;
        let going = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.now);
        self.hypervisor.object.metadata.deletion_timestamp = Some(going);
        for _ in 0..5 {
            self.turn(false);
            self.now += SignedDuration::from_secs(6);
        }
    }

    /// Placement does not release an allocation: the Node is back in time.
    fn hold_up_offboarding(&mut self) {
        self.allocations.insert("a-dead-consumer".to_owned());
        let failure = Failure {
            count: 0,
            text: "no".to_owned(),
            retry_at: self.now + SignedDuration::from_hours(9),
        };
        self.failures.insert("delete-allocations", failure);
    }

    /// The Node is there again: the Hypervisor is let go and made anew from it.
    fn node_returns(&mut self) {
        let new = Self::new();
        self.node = new.node;
        self.reads = Reads::default();
        while !self.released {
            self.turn(false);
            self.now += SignedDuration::from_secs(1);
        }
        self.hypervisor = new.hypervisor;
        self.reads = Reads::default();
        self.released = false;
        self.done.clear();
    }
}

#[test]
fn a_node_that_comes_back_brings_its_host_back_into_service() {
    for servers in [0, 1] {
        let mut model = Model::onboarded();
        if servers > 0 {
            model.servers.insert("vm-1".to_owned());
        } else {
            model.hold_up_offboarding();
        }
        model.lose_node();
        assert_eq!(model.fleet.services[HOST].status, ServiceStatus::Disabled);
        model.node_returns();
        model.settle();
        assert_eq!(model.phase(), Some(Phase::Active), "{servers}");
        assert_eq!(model.fleet.services[HOST].status, ServiceStatus::Enabled);
        assert!(!model.did("create-test"), "it was in service");
        assert_eq!(
            model.state(Type::Ready),
            Some((Status::True, Some(Reason::Ready)))
        );
    }
}

#[test]
fn a_host_that_was_never_tested_is_tested_when_its_node_comes_back() {
    let mut model = Model::new();
    while model.state(Type::Onboarding) != Some((Status::True, Some(Reason::Testing))) {
        model.turn(false);
        model.now += SignedDuration::from_secs(1);
    }
    model.hold_up_offboarding();
    model.lose_node();
    // Somebody enables it meanwhile: the operator disables it again.
    model.act(&Action::EnableService {
        id: "service-1".to_owned(),
    });
    model.turn(false);
    model.node_returns();
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Active));
    assert!(model.did("create-test"));
}

#[test]
fn every_reason_of_the_operator_is_known_as_its_own() {
    for reason in [
        onboarding::DISABLED_REASON,
        super::offboarding::NODE_GONE,
        super::offboarding::NODE_GONE_IN_SERVICE,
        "Hypervisor CRD: spec.maintenance=manual",
        "Hypervisor CRD: spec.maintenance=auto: a fan",
    ] {
        let mut model = Model::onboarded();
        let service = model.fleet.services.get_mut(HOST).unwrap();
        service.status = ServiceStatus::Disabled;
        service.disabled_reason = Some(reason.to_owned());
        model.settle();
        let service = &model.fleet.services[HOST];
        assert_eq!(service.status, ServiceStatus::Enabled, "{reason}");
    }
}

#[test]
fn a_hypervisor_deleted_by_hand_is_let_go_and_nothing_is_removed() {
    let mut model = Model::onboarded();
    let going = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(model.now);
    model.hypervisor.object.metadata.deletion_timestamp = Some(going);
    model.turn(false);
    assert!(model.released && !model.fleet.services.is_empty());
    assert_eq!(model.done, [Action::Release]);
}

#[test]
fn a_hypervisor_deleted_during_its_tests_leaves_no_test_server() {
    let mut model = Model::new();
    while model.test.is_none() {
        model.turn(false);
        model.now += SignedDuration::from_secs(1);
    }
    let going = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(model.now);
    model.hypervisor.object.metadata.deletion_timestamp = Some(going);
    while !model.released {
        model.turn(false);
        model.now += SignedDuration::from_secs(1);
    }
    assert!(model.test.is_none(), "nobody knows its name any more");

    // Made anew, and still enabled for the tests: that is no host at work.
    let object = &mut model.hypervisor.object;
    object.metadata.deletion_timestamp = None;
    object.metadata.finalizers = Some(vec![finalizers::REGISTERED_HOST.to_owned()]);
    object.status = None;
    object
        .annotations_mut()
        .insert(annotations::ONBOARDED.to_owned(), "pending".to_owned());
    model.agent_says(Type::LibVirtConnection, Status::True, Reason::Connected);
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Active));
    assert_eq!(model.check("boot"), CheckResult::Passed);
}

#[test]
fn an_attempt_begins_without_the_failures_of_the_last_one() {
    let mut model = Model::new();
    while model.state(Type::Onboarding) != Some((Status::True, Some(Reason::Testing))) {
        model.turn(false);
        model.now += SignedDuration::from_secs(1);
    }
    // Nova has refused the server for good.
    let failure = Failure {
        count: 3,
        text: "not with this flavor".to_owned(),
        retry_at: model.now + SignedDuration::from_secs(60),
    };
    model.failures.insert("create-test", failure);
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Active));
    let attempt = model.hypervisor.object.status.unwrap().checks;
    let boot = attempt.iter().find(|check| check.name == "boot");
    assert_eq!(boot.and_then(|boot| boot.attempt), Some(2));
}

#[test]
fn a_host_that_nova_has_lost_is_not_ready() {
    let mut model = Model::onboarded();
    model.fleet.services.clear();
    model.turn(false);
    assert_eq!(
        model.state(Type::Ready),
        Some((Status::False, Some(Reason::NotReady)))
    );
}

#[test]
fn taking_over_an_onboarded_host_writes_nothing_to_nova() {
    let mut model = Model::onboarded();
    // As the deployed operator leaves a host: its own words, and none of ours.
    let status = model.hypervisor.object.status.as_mut().unwrap();
    status.phase = None;
    status.checks.clear();
    status.owned_traits = None;
    status.owned_aggregates = None;
    for condition in &mut status.conditions {
        condition.message = "in its own words".to_owned();
    }
    model.reads = Reads::default();
    model.settle();
    assert_eq!(model.done, []);
    assert_eq!(model.phase(), Some(Phase::Active));
    let status = model.hypervisor.object.status.unwrap();
    assert_eq!((status.owned_traits, status.owned_aggregates), (None, None));
}

#[test]
fn an_unknown_nova_changes_nothing() {
    let model = Model::onboarded();
    let mut host = model.host();
    host.fleet = Err("Nova does not answer: no route".to_owned());
    let mut pass = Pass::new(&host, model.now);
    decide(&mut pass);
    assert_eq!(pass.actions, []);
    assert_eq!(own(&pass.status), own(&model.hypervisor.status()));
}

#[test]
fn w16_nobody_waits_for_an_absent_ha_service() {
    let model = Model::onboarded();
    assert!(model.hypervisor.object.spec.high_availability());
    assert_eq!(model.state(Type::HaEnabled), None);
}

#[test]
fn skipped_tests_never_open_the_host_early() {
    let mut model = Model::new();
    model.hypervisor.object.spec.skip_tests = Some(true);
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Active));
    assert!(!model.did("create-test"));
    let enables = model
        .done
        .iter()
        .filter(|action| action.name() == "enable-service")
        .count();
    assert_eq!(enables, 1);
    assert!(onboarding::DISABLED_REASON.len() < 255);
}

impl Model {
    /// What an agent with its node's token can do: write the status as it likes.
    fn forge(&mut self, change: impl FnOnce(&mut HypervisorStatus)) {
        change(self.hypervisor.object.status.get_or_insert_default());
    }

    fn forge_success(&mut self) {
        self.agent_says(Type::Onboarding, Status::False, Reason::Succeeded);
        self.agent_says(Type::HypervisorDisabled, Status::True, Reason::Succeeded);
        self.forge(|status| {
            for name in super::checks::ALL {
                status.checks.retain(|check| check.name != name);
                status.checks.push(Check {
                    name: name.to_owned(),
                    result: CheckResult::Passed,
                    message: None,
                    since: None,
                    attempt: None,
                });
            }
        });
    }
}

#[test]
fn a_status_that_claims_success_enables_no_untested_host() {
    for turns in 2..14 {
        let mut model = Model::new();
        for _ in 0..turns {
            model.turn(false);
            model.now += SignedDuration::from_secs(1);
        }
        let was_tested = model.hypervisor.object.annotations()[annotations::ONBOARDED] == "tested";
        model.done.clear();
        model.act(&Action::DisableService {
            id: "service-1".to_owned(),
            reason: onboarding::DISABLED_REASON.to_owned(),
        });
        model.done.push(Action::DisableService {
            id: "service-1".to_owned(),
            reason: onboarding::DISABLED_REASON.to_owned(),
        });
        model.forge_success();
        // `holds` looks at every turn whether it is enabled for tenants.
        model.settle();
        assert_eq!(model.phase(), Some(Phase::Active));
        assert!(was_tested || model.did("record"), "after {turns} turns");
        assert_eq!(
            model.hypervisor.object.annotations()[annotations::ONBOARDED],
            "tested"
        );
    }
}

#[test]
fn forged_checks_and_a_forged_handover_pass_no_test() {
    for (reason, restart) in [
        (Reason::Testing, false),
        (Reason::Handover, false),
        (Reason::Handover, true),
    ] {
        let mut model = Model::new();
        while model.state(Type::Onboarding) != Some((Status::True, Some(Reason::Testing))) {
            model.turn(false);
            model.now += SignedDuration::from_secs(1);
        }
        assert!(!model.did("create-test"));
        model.forge_success();
        model.agent_says(Type::Onboarding, Status::True, reason);
        if restart {
            model.checks = None;
        }
        model.settle();
        assert!(model.did("create-test"), "{reason:?} {restart}");
        assert_eq!(model.phase(), Some(Phase::Active));
    }
}

#[test]
fn a_forged_condition_does_not_undo_what_somebody_disabled() {
    let mut model = Model::onboarded();
    let service = model.fleet.services.get_mut(HOST).unwrap();
    service.status = ServiceStatus::Disabled;
    service.disabled_reason = Some("bad disk".to_owned());
    model.agent_says(Type::HypervisorDisabled, Status::True, Reason::Succeeded);
    model.settle();
    assert!(!model.did("enable-service"));
}

#[test]
fn a_forged_hypervisor_id_reaches_no_other_provider() {
    const OTHER: &str = "22222222-0000-4000-8000-000000000002";
    let mut model = Model::onboarded();
    // Nova does not list its hypervisor for a while: the status is all that names a provider.
    let hypervisors = std::mem::take(&mut model.fleet.hypervisors);
    model.fleet.traits.get_mut("CUSTOM_FAST").unwrap().clear();
    model.forge(|status| status.hypervisor_id = Some(OTHER.to_owned()));
    for _ in 0..5 {
        model.turn(false);
        model.now += SignedDuration::from_secs(3);
    }
    assert!(!model.did("set-traits"));
    model.fleet.hypervisors = hypervisors;
    // It leaves, and Nova leaves its provider behind.
    model.leaves_provider = true;
    model.maintain(Maintenance::Termination);
    model.settle();
    model.forge(|status| status.hypervisor_id = Some(OTHER.to_owned()));
    model.eviction_ends(Reason::Succeeded);
    // The model's Placement refuses to remove another's provider.
    model.settle();
    assert_eq!(model.phase(), Some(Phase::Decommissioned));
    assert!(!model.provider);
    for action in &model.done {
        assert!(!format!("{action:?}").contains(OTHER), "{action:?}");
    }
}

#[test]
fn nothing_is_done_for_a_host_that_two_hypervisors_stand_for() {
    for (maintenance, servers) in [
        (Maintenance::Unset, 0),
        (Maintenance::Manual, 1),
        (Maintenance::Termination, 0),
    ] {
        let mut model = Model::onboarded();
        model.rivals = vec![PEER.to_owned()];
        model
            .servers
            .extend((0..servers).map(|_| "vm-1".to_owned()));
        // There would be something to do.
        model.fleet.traits.get_mut("CUSTOM_FAST").unwrap().clear();
        model.maintain(maintenance);
        for _ in 0..10 {
            model.turn(false);
            model.now += SignedDuration::from_secs(6);
        }
        assert_eq!(model.done, [], "{maintenance:?}");
        assert_eq!(
            model.state(Type::Ready),
            Some((Status::False, Some(Reason::IdentityConflict)))
        );
        // Corrected, it goes on.
        model.rivals.clear();
        model.maintain(Maintenance::Unset);
        model.settle();
        assert!(model.has_trait());
        assert_eq!(
            model.state(Type::Ready),
            Some((Status::True, Some(Reason::Ready)))
        );
    }
    let mut model = Model::new();
    model.rivals = vec![PEER.to_owned()];
    for _ in 0..10 {
        model.turn(false);
        model.now += SignedDuration::from_secs(6);
    }
    assert_eq!(model.done, [], "a new host");
    let wait = model.hypervisor.object.status.unwrap().waiting_for.unwrap();
    assert!(wait.message.unwrap().contains(PEER));
}

fn silence(time: &str) -> Option<Silence> {
    Some(Silence {
        renewed: Some(time.parse().unwrap()),
    })
}

#[test]
fn what_a_silent_agent_said_last_is_not_known_any_more() {
    let mut model = Model::onboarded();
    model.agent_says(Type::ShutdownInhibited, Status::True, Reason::Ready);
    model.agent_says(Type::TlsCertificateInstalled, Status::True, Reason::Ready);
    model.silence = silence("2026-11-17T11:59:00Z");
    model.settle();
    let silent = Some((Status::Unknown, Some(Reason::AgentSilent)));
    assert_eq!(model.state(Type::LibVirtConnection), silent);
    assert_eq!(model.state(Type::ShutdownInhibited), silent);
    assert_eq!(model.state(Type::SystemdConnection), None, "nobody said it");
    assert_eq!(
        model.state(Type::TlsCertificateInstalled),
        Some((Status::True, Some(Reason::Ready))),
        "what was done stays done"
    );
    assert_eq!(
        model.state(Type::Ready),
        Some((Status::False, Some(Reason::NotReady)))
    );
    let status = model.hypervisor.object.status.clone().unwrap();
    let ready = conditions::find(&status.conditions, Type::Ready).unwrap();
    assert!(
        ready.message.contains("silent") && ready.message.contains("11:59:00Z"),
        "{}",
        ready.message
    );
    // All of it is in the operator's own part of the status, so that it is written.
    let marked = own(&status).conditions;
    assert!(conditions::find(&marked, Type::LibVirtConnection).is_some());
    assert_eq!(model.done, [], "nothing is done to the host");

    // It is back: it says its own again, and the host is ready.
    model.silence = None;
    model.agent_says(Type::LibVirtConnection, Status::True, Reason::Connected);
    model.settle();
    assert_eq!(
        model.state(Type::Ready),
        Some((Status::True, Some(Reason::Ready)))
    );
    assert_eq!(
        model.state(Type::ShutdownInhibited),
        None,
        "what it does not say any more nobody says"
    );
}

#[test]
fn an_agent_that_writes_without_renewing_its_lease_is_not_fought() {
    let mut model = Model::onboarded();
    model.silence = silence("2026-11-17T11:59:00Z");
    model.settle();
    model.agent_says(Type::LibVirtConnection, Status::True, Reason::Connected);
    model.settle();
    let connected = Some((Status::True, Some(Reason::Connected)));
    assert_eq!(model.state(Type::LibVirtConnection), connected);
    // Another silence is another matter.
    model.silence = silence("2026-11-17T12:59:00Z");
    model.settle();
    assert_eq!(
        model.state(Type::LibVirtConnection),
        Some((Status::Unknown, Some(Reason::AgentSilent)))
    );
}

#[test]
fn the_switch_of_a_dead_host_is_not_said_to_work() {
    let ovs: cobalt_api::ovsnode::OvsNode = serde_json::from_value(serde_json::json!({
        "metadata": { "name": HOST }, "spec": { "nodeRef": { "name": HOST } },
        "status": { "conditions": [
            { "type": "Ready", "status": "True", "reason": "Ready", "message": "",
              "lastTransitionTime": "2026-01-01T00:00:00Z" },
            { "type": "AllBridgesHealthy", "status": "True", "reason": "Healthy", "message": "",
              "lastTransitionTime": "2026-01-01T00:00:00Z" },
        ] },
    }))
    .unwrap();
    let ready = |status: &str| {
        let mut node = Model::new().node.unwrap();
        node.status = serde_json::from_value(serde_json::json!({ "conditions": [{
            "type": "Ready", "status": status, "lastTransitionTime": "2026-11-17T11:00:00Z",
        }] }))
        .unwrap();
        Some(Arc::new(node))
    };
    let model = Model::onboarded();
    let marks = |node: &str, silence: Option<Silence>, has_lease: bool| {
        let host = Host {
            node: ready(node),
            ovs: Some(Arc::new(ovs.clone())),
            silence,
            has_lease,
            ..model.host()
        };
        let why = super::agent::dead(&host)?;
        let stale = super::agent::stale_ovs(&host, &why, model.now);
        Some((why, stale))
    };
    let silent = || silence("2026-11-17T11:59:00Z");
    assert_eq!(marks("True", None, true), None);
    assert_eq!(
        marks("True", silent(), true),
        None,
        "the node agent alone is dead"
    );
    assert_eq!(
        marks("Unknown", None, true),
        None,
        "the kubelet alone is dead"
    );
    assert_eq!(marks("False", None, false), None, "the kubelet speaks");
    let (why, stale) = marks("Unknown", None, false).unwrap();
    assert!(why.contains("11:00:00Z"), "{why}");
    assert_eq!(stale.len(), 2);
    let (why, stale) = marks("Unknown", silent(), true).unwrap();
    assert!(why.contains("11:59:00Z"), "{why}");
    for condition in &stale {
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_str()),
            ("Unknown", "AgentSilent")
        );
        assert!(condition.message.contains(&why));
    }
    // Said once is enough.
    let mut marked = ovs.clone();
    marked.status.as_mut().unwrap().conditions = stale;
    let host = Host {
        node: ready("Unknown"),
        ovs: Some(Arc::new(marked)),
        silence: silent(),
        ..model.host()
    };
    assert_eq!(super::agent::stale_ovs(&host, &why, model.now), []);
}

/// What happens to a host beside its own life.
#[derive(Debug, Clone, Copy)]
enum Blow {
    Nothing,
    ActionsFail,
    ProcessDies,
    LifecycleOff,
    LifecycleOn,
    BootFails,
    BootWorks,
    Retry,
    TimePasses,
}

fn blows() -> impl Strategy<Value = Vec<Blow>> {
    let one = prop_oneof![
        6 => Just(Blow::Nothing),
        3 => Just(Blow::ActionsFail),
        2 => Just(Blow::ProcessDies),
        1 => Just(Blow::LifecycleOff),
        1 => Just(Blow::LifecycleOn),
        1 => Just(Blow::BootFails),
        1 => Just(Blow::BootWorks),
        1 => Just(Blow::Retry),
        2 => Just(Blow::TimePasses),
    ];
    prop::collection::vec(one, 0..120)
}

fn strike(model: &mut Model, blow: Blow) {
    let mut fails = false;
    match blow {
        Blow::Nothing => {}
        Blow::ActionsFail => fails = true,
        Blow::ProcessDies => {
            model.reads = Reads::default();
            model.checks = None;
            model.failures.clear();
        }
        Blow::LifecycleOff => model.hypervisor.object.spec.lifecycle_enabled = Some(false),
        Blow::LifecycleOn => model.hypervisor.object.spec.lifecycle_enabled = Some(true),
        Blow::BootFails => model.boot_fails = true,
        Blow::BootWorks => model.boot_fails = false,
        Blow::Retry => {
            let all = model.hypervisor.object.annotations_mut();
            all.insert(annotations::RETRY_ONBOARDING.to_owned(), "now".to_owned());
        }
        Blow::TimePasses => model.now += SignedDuration::from_secs(60),
    }
    model.turn(fails);
    model.now += SignedDuration::from_secs(3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever happens on the way, a host that is left in peace becomes active, with nothing left
    /// of the tests; `holds` is checked at every turn.
    #[test]
    fn onboarding_always_ends_well(blows in blows()) {
        let mut model = Model::new();
        for blow in blows {
            strike(&mut model, blow);
        }
        model.boot_fails = false;
        model.hypervisor.object.spec.lifecycle_enabled = Some(true);
        model.failures.clear();
        model
            .hypervisor
            .object
            .annotations_mut()
            .insert(annotations::RETRY_ONBOARDING.to_owned(), "now".to_owned());
        model.settle();
        if model.phase() == Some(Phase::Aborted) {
            let all = model.hypervisor.object.annotations_mut();
            all.insert(annotations::RETRY_ONBOARDING.to_owned(), "now".to_owned());
            model.settle();
        }
        prop_assert_eq!(model.phase(), Some(Phase::Active));
        prop_assert!(model.test.is_none());
        prop_assert!(!model.is_in("tenant_filter_tests"));
    }

    /// The same for a host that leaves: nothing stays, and nothing that lives was touched.
    #[test]
    fn offboarding_always_ends_well(blows in blows(), guests in 0_usize..3) {
        let mut model = Model::onboarded();
        for guest in 0..guests {
            model.servers.insert(format!("vm-{guest}"));
        }
        model.maintain(Maintenance::Termination);
        for blow in blows {
            if !matches!(blow, Blow::LifecycleOff) {
                strike(&mut model, blow);
            }
        }
        model.failures.clear();
        model.settle();
        model.eviction_ends(Reason::Succeeded);
        model.settle();
        prop_assert_eq!(model.phase(), Some(Phase::Decommissioned));
        prop_assert!(model.fleet.services.is_empty() && !model.provider);
    }
}

/// A host in service whose agent hears of a shutdown.
impl Model {
    /// The agent makes its Eviction under this name.
    fn shuts_down(&mut self, name: &str) {
        let spec = EvictionSpec {
            hypervisor: HOST.to_owned(),
            reason: SHUTDOWN_REASON.to_owned(),
            deadline: Some("30m".to_owned()),
            ..EvictionSpec::default()
        };
        let mut eviction = Eviction::new(name, spec);
        eviction.metadata.uid = Some(format!("uid-of-{name}"));
        if name == HOST {
            self.eviction = Some(eviction);
        } else {
            self.others.push(eviction);
        }
    }

    fn named(&mut self, name: &str) -> &mut Eviction {
        let all = self.eviction.iter_mut().chain(&mut self.others);
        let mut named = all.filter(|one| one.name_any() == name);
        named.next().unwrap()
    }

    /// The eviction engine ends every Eviction that is not over, if it may.
    fn evictions_end(&mut self, outcome: Outcome) {
        let empty = outcome == Outcome::Succeeded;
        for one in self.eviction.iter_mut().chain(&mut self.others) {
            let outcome = if one.spec.cancel() {
                Outcome::Cancelled
            } else {
                outcome
            };
            if !one.has_ended() {
                one.status.get_or_insert_default().outcome = Some(outcome);
            }
        }
        if empty {
            self.servers.clear();
        }
    }

    /// The agent of a host that is up: it cancels what was asked for because of a shutdown.
    fn agent_is_back(&mut self) {
        for one in self.eviction.iter_mut().chain(&mut self.others) {
            if one.is_for_shutdown() {
                one.spec.cancel = Some(true);
            }
        }
    }

    fn enabled(&self) -> bool {
        self.fleet.services[HOST].status == ServiceStatus::Enabled
    }

    fn waits_for(&self) -> Option<String> {
        let status = self.hypervisor.object.status.as_ref()?;
        status.waiting_for.as_ref().map(|wait| wait.reason.clone())
    }

    fn forgets(&mut self) {
        self.reads = Reads::default();
        self.failures.clear();
    }
}

#[test]
fn a_host_in_service_that_shuts_down_is_taken_out_drained_and_put_back() {
    for name in [HOST, "hv1-0123abcd"] {
        let mut model = Model::onboarded();
        model.servers.insert("vm-1".to_owned());
        model.shuts_down(name);
        model.settle();
        assert!(!model.enabled(), "the Eviction waits for that");
        let reason = model.fleet.services[HOST].disabled_reason.clone();
        assert_eq!(
            reason.unwrap(),
            format!("Hypervisor CRD: shutdown: Eviction {name}")
        );
        assert_eq!(
            model.state(Type::HypervisorDisabled),
            Some((Status::True, Some(Reason::Succeeded)))
        );
        assert_eq!(
            model.state(Type::Evicting),
            Some((Status::True, Some(Reason::Running)))
        );
        assert_eq!(model.waits_for().as_deref(), Some("Eviction"));
        assert!(!model.did("create-eviction"), "there is one");

        // It is empty and goes down. It stays out until its agent says that it is back.
        model.evictions_end(Outcome::Succeeded);
        model.settle();
        model.forgets();
        model.settle();
        assert!(!model.enabled() && model.shutdowns().count() == 1);
        assert_eq!(model.waits_for().as_deref(), Some("HostShutdown"));
        assert_eq!(model.state(Type::Evicting), None);
        assert_eq!(model.phase(), Some(Phase::Maintenance));

        model.agent_is_back();
        model.settle();
        assert!(model.enabled() && model.shutdowns().count() == 0);
        assert_eq!(model.phase(), Some(Phase::Active));
        assert_eq!(model.waits_for(), None);
    }
}

#[test]
fn a_shutdown_that_is_called_off_puts_the_host_back_when_nothing_moves_any_more() {
    let mut model = Model::onboarded();
    model.shuts_down(HOST);
    model.settle();
    model.agent_is_back();
    model.settle();
    assert!(!model.enabled(), "something may still move");
    assert_eq!(model.waits_for().as_deref(), Some("EvictionCancelled"));
    model.evictions_end(Outcome::Succeeded);
    model.settle();
    assert!(model.enabled() && model.eviction.is_none());
    assert_eq!(model.phase(), Some(Phase::Active));
}

#[test]
fn an_eviction_of_a_shutdown_long_ago_drains_nothing() {
    // Without a deadline: nobody would ever cancel it.
    let mut model = Model::onboarded();
    model.shuts_down(HOST);
    model.named(HOST).spec.deadline = None;
    model.settle();
    assert!(model.enabled() && !model.did("disable-service"));
    assert!(model.eviction.is_none());
    // It has ended, and the host was not taken out of service for it.
    model.shuts_down("hv1-0123abcd");
    model.evictions_end(Outcome::Succeeded);
    model.settle();
    assert!(model.enabled() && !model.did("disable-service"));
    assert_eq!(model.phase(), Some(Phase::Active));
}

#[test]
fn a_host_that_somebody_else_disabled_stays_disabled_after_its_reboot() {
    let mut model = Model::onboarded();
    let service = model.fleet.services.get_mut(HOST).unwrap();
    service.status = ServiceStatus::Disabled;
    service.disabled_reason = Some("bad disk".to_owned());
    model.settle();
    model.shuts_down(HOST);
    model.settle();
    model.evictions_end(Outcome::Succeeded);
    model.settle();
    model.agent_is_back();
    model.settle();
    let service = &model.fleet.services[HOST];
    assert_eq!(service.disabled_reason.as_deref(), Some("bad disk"));
    assert!(!model.enabled() && !model.did("enable-service") && model.eviction.is_none());
}

#[test]
fn a_host_that_was_never_onboarded_is_not_taken_out_of_service_for_a_shutdown() {
    // Nobody would enable it afterwards.
    let mut model = Model::new();
    model.agent_says(Type::Onboarding, Status::False, Reason::Aborted);
    let status = model.hypervisor.object.status.as_mut().unwrap();
    status.checks = vec![Check {
        name: "boot".to_owned(),
        result: CheckResult::Failed,
        message: None,
        since: None,
        attempt: None,
    }];
    model.shuts_down("hv1-0123abcd");
    model.settle();
    assert!(!model.did("disable-service"));
}

#[test]
fn maintenance_makes_its_own_eviction_in_place_of_one_of_a_shutdown() {
    let mut model = Model::onboarded();
    model.servers.insert("vm-1".to_owned());
    model.shuts_down(HOST);
    model.settle();
    model.evictions_end(Outcome::Succeeded);
    model.servers.insert("vm-2".to_owned());
    model.maintain(Maintenance::Manual);
    model.settle();
    let reason = model.eviction.as_ref().unwrap().spec.reason.clone();
    assert_eq!(reason, "maintenance manual: a fan");
    assert_ne!(model.hypervisor.status().evicted, Some(true));
    // The text in Nova follows, and the end of the maintenance ends all of it.
    model.maintain(Maintenance::Unset);
    model.settle();
    assert!(model.enabled() && model.eviction.is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Shutdowns that come, are called off, succeed and fail: when the agent is back and nothing
    /// happens any more, the host is in service and no Eviction is left.
    #[test]
    fn shutdowns_always_end_in_service(
        steps in prop::collection::vec((0_u8..8, blows_of_a_shutdown()), 0..60),
    ) {
        let mut model = Model::onboarded();
        for (number, (step, blow)) in steps.into_iter().enumerate() {
            match step {
                0 if model.eviction.is_none() => model.shuts_down(HOST),
                0 | 1 => model.shuts_down(&format!("hv1-{number:08x}")),
                2 => model.agent_is_back(),
                3 => model.evictions_end(Outcome::Succeeded),
                4 => model.evictions_end(Outcome::TimedOut),
                _ => {}
            }
            strike(&mut model, blow);
        }
        model.forgets();
        model.agent_is_back();
        model.settle();
        model.evictions_end(Outcome::Succeeded);
        model.settle();
        prop_assert_eq!(model.phase(), Some(Phase::Active));
        prop_assert!(model.enabled());
        prop_assert_eq!(model.shutdowns().count(), 0);
    }
}

fn blows_of_a_shutdown() -> impl Strategy<Value = Blow> {
    prop_oneof![
        3 => Just(Blow::Nothing),
        1 => Just(Blow::ActionsFail),
        1 => Just(Blow::ProcessDies),
        1 => Just(Blow::TimePasses),
    ]
}
