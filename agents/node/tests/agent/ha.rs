//! Instances that fail on a real hypervisor, and what the HA agent does about each.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use cobalt_api::conditions::{HypervisorCondition, Status};
use cobalt_api::eviction::{Eviction, EvictionStatus, Outcome};
use cobalt_api::hypervisor::{HaPolicy, Hypervisor};
use cobalt_lab::plan::Flavour;
use cobalt_libvirt::{Domain, DomainState, Event, EventKind, EventStream, Lifecycle};
use cobalt_node_agent::ha::{self, HaConfig, HaMetrics};
use cobalt_node_agent::lease::{self, Holder, LeaseConfig, Term};
use cobalt_node_agent::metrics::Metrics;
use futures::StreamExt;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::events::v1::Event as KubernetesEvent;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::rig::{Guest, Host, PATIENCE, Rig, event, long_term, within};

/// The task of a host.
struct Agent {
    metrics: HaMetrics,
    _end: DropGuard,
}

impl Agent {
    fn start(host: &Host, config: HaConfig) -> Self {
        let metrics = HaMetrics::default();
        let cancel = CancellationToken::new();
        tokio::spawn(ha::run(
            host.ctx.clone(),
            config,
            host.holder.subscribe(),
            host.term.subscribe(),
            metrics.clone(),
            cancel.clone(),
        ));
        Self {
            metrics,
            _end: cancel.drop_guard(),
        }
    }

    fn counts(&self, line: &str) -> bool {
        let mut registry = Registry::default();
        self.metrics.register(&mut registry);
        let text = cobalt_runtime::metrics::text(&registry);
        text.contains(&format!("cobalt_node_agent_ha_{line}"))
    }
}

impl Agent {
    /// Counters tell nobody: they are asked again until it is so.
    async fn counted(&self, line: &str) {
        let mut turn = tokio::time::interval(Duration::from_millis(20));
        let counted = async {
            while !self.counts(line) {
                turn.tick().await;
            }
        };
        within(line, counted).await;
    }
}

fn config() -> HaConfig {
    HaConfig {
        restarts: 2,
        settle: Duration::from_millis(200),
        ..HaConfig::default()
    }
}

const LIFE: &[EventKind] = &[EventKind::Lifecycle];

async fn lifecycle(events: &mut EventStream, domain: &Domain, wanted: Lifecycle) {
    let what = format!("{} {wanted:?}", domain.name);
    event(events, &what, |seen| {
        matches!(seen, Event::Lifecycle { domain: about, event, .. }
            if about.uuid == domain.uuid && *event == wanted)
    })
    .await;
}

/// The Eviction of an instance, when it is there.
async fn eviction(host: &Host, name: &str) -> Eviction {
    let api: Api<Eviction> = Api::all(host.ctx.client.clone());
    let there = await_condition(api, name, |object: Option<&Eviction>| object.is_some());
    within(name, there).await.unwrap().unwrap()
}

/// Waits for a Kubernetes Event about the host with this reason that says all of these.
async fn told(host: &Host, reason: &str, words: &[&str]) {
    let api: Api<KubernetesEvent> = Api::namespaced(host.ctx.client.clone(), "default");
    let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
    let mut seen = Vec::new();
    let waiting = async {
        while let Some(event) = events.next().await {
            let (watcher::Event::InitApply(event) | watcher::Event::Apply(event)) = event.unwrap()
            else {
                continue;
            };
            let about = event.regarding.and_then(|about| about.name);
            if about.as_ref() != Some(&host.node) {
                continue;
            }
            let note = event.note.unwrap_or_default();
            if event.reason.as_deref() == Some(reason)
                && words.iter().all(|word| note.contains(word))
            {
                return true;
            }
            seen.push((event.reason, note));
        }
        false
    };
    match tokio::time::timeout(PATIENCE, waiting).await {
        Ok(true) => {}
        _ => panic!("no Event {reason} with {words:?}; seen: {seen:#?}"),
    }
}

async fn state(host: &Host, domain: &Domain) -> DomainState {
    host.libvirt.state(domain).await.unwrap().state
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_instance_is_restarted_until_that_does_not_help_and_then_evicted() {
    let rig = Rig::start("crash", &[Flavour::Bookworm]).await;
    let host = &rig.hosts[0];
    let agent = Agent::start(host, config());
    let mut events = host.events(LIFE).await;
    let guest = Guest {
        name: "victim",
        policy: Some("restart"),
        ..Guest::default()
    };
    let victim = host.guest(&guest).await;
    lifecycle(&mut events, &victim, Lifecycle::Started).await;
    for _ in 0..2 {
        rig.kill(0, &victim).await;
        lifecycle(&mut events, &victim, Lifecycle::Started).await;
    }
    rig.kill(0, &victim).await;
    let name = format!("{}-{}", host.node, victim.uuid);
    let evicted = eviction(host, &name).await;
    assert_eq!(evicted.spec.hypervisor, host.node);
    assert_eq!(evicted.spec.instances, [victim.uuid.to_string()]);
    assert!(
        evicted.spec.reason.contains("2 restarts did not help"),
        "{}",
        evicted.spec.reason
    );
    assert_eq!(evicted.owner_references()[0].name, host.node);
    assert_eq!(state(host, &victim).await, DomainState::Shutoff);
    told(host, "InstanceCrashed", &["victim", "its process ended"]).await;
    told(host, "InstanceRestarted", &["victim"]).await;
    told(host, "InstanceEvicted", &["victim", &name]).await;
    assert!(agent.counts("events_total{trigger=\"crash\"} 3"));
    let restarts = "actions_total{trigger=\"crash\",action=\"restart\",result=\"ok\"} 2";
    assert!(agent.counts(restarts));
    drop(agent);

    // A new agent knows nothing of that, and does not ask for a second Eviction of one that is
    // under way.
    let agent = Agent::start(
        host,
        HaConfig {
            restarts: 0,
            ..config()
        },
    );
    let start = cobalt_libvirt::CreateFlags::NONE;
    host.libvirt.create(&victim, start).await.unwrap();
    lifecycle(&mut events, &victim, Lifecycle::Started).await;
    rig.kill(0, &victim).await;
    agent
        .counted("actions_total{trigger=\"crash\",action=\"evict\",result=\"ok\"} 1")
        .await;
    drop(agent);
    let api: Api<Eviction> = Api::all(host.ctx.client.clone());
    let second = format!("{name}-2");
    assert!(api.get_opt(&second).await.unwrap().is_none());
    // One that has ended is another.
    let ended = json!({ "status": EvictionStatus {
        outcome: Some(Outcome::Succeeded),
        ..EvictionStatus::default()
    }});
    let params = PatchParams::default();
    api.patch_status(&name, &params, &Patch::Merge(ended))
        .await
        .unwrap();
    let agent = Agent::start(
        host,
        HaConfig {
            restarts: 0,
            ..config()
        },
    );
    host.libvirt.create(&victim, start).await.unwrap();
    lifecycle(&mut events, &victim, Lifecycle::Started).await;
    rig.kill(0, &victim).await;
    eviction(host, &second).await;
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn panics_hangs_and_broken_disks_are_met_by_policy() {
    let rig = Rig::start("failures", &[Flavour::Bookworm]).await;
    let host = &rig.hosts[0];
    let agent = Agent::start(host, config());
    let mut events = host.events(LIFE).await;

    // Halted by a panic: reset, and again, and away.
    let panics = host
        .guest(&Guest {
            name: "panics",
            command_line: "panic=1",
            on_crash: "preserve",
            policy: Some("restart"),
            ..Guest::default()
        })
        .await;
    // Halted by its watchdog.
    let hangs = host
        .guest(&Guest {
            name: "hangs",
            command_line: "wdt=2 hang=1",
            devices: "<watchdog model='i6300esb' action='pause'/>",
            policy: Some("restart"),
            ..Guest::default()
        })
        .await;
    for (domain, trigger) in [
        (&panics, "its kernel panicked"),
        (&hangs, "its watchdog fired"),
    ] {
        let evicted = eviction(host, &format!("{}-{}", host.node, domain.uuid)).await;
        let reason = &evicted.spec.reason;
        assert!(reason.contains(trigger), "{reason}");
        assert!(reason.contains("2 restarts did not help"), "{reason}");
    }
    told(host, "InstancePanicked", &["panics"]).await;
    told(host, "InstanceWatchdogFired", &["hangs"]).await;
    assert_eq!(state(host, &panics).await, DomainState::Crashed);

    // What libvirt does by itself is left to it.
    let resets = host
        .guest(&Guest {
            name: "resets",
            command_line: "wdt=2 hang=1",
            devices: "<watchdog model='i6300esb' action='poweroff'/>",
            policy: Some("restart"),
            ..Guest::default()
        })
        .await;
    told(host, "InstanceWatchdogFired", &["resets", "powers it off"]).await;
    lifecycle(&mut events, &resets, Lifecycle::Stopped).await;

    // A disk that is full: away at once.
    rig.sh(
        0,
        "mkdir -p /full && mount -t tmpfs -o size=384k tmpfs /full && \
         qemu-img create -q -f qcow2 /full/d.qcow2 64M && chown -R libvirt-qemu /full && \
         dd if=/dev/zero of=/full/rest bs=1k 2>/dev/null || :",
    )
    .await;
    let full = host
        .guest(&Guest {
            name: "full",
            command_line: "ioerr=1",
            machine: "pc",
            devices: "<disk type='file' device='disk'>\
                <driver name='qemu' type='qcow2' error_policy='stop'/>\
                <source file='/full/d.qcow2'/><target dev='hda' bus='ide'/></disk>",
            policy: Some("evict"),
            ..Guest::default()
        })
        .await;
    let evicted = eviction(host, &format!("{}-{}", host.node, full.uuid)).await;
    assert!(evicted.spec.reason.contains("its disk failed"));
    told(host, "InstanceIoError", &["full", "/full/d.qcow2"]).await;
    assert_eq!(state(host, &resets).await, DomainState::Shutoff);
    assert!(agent.counts("events_total{trigger=\"io-error\"}"));

    // Without a definition there is nothing to start it from.
    let fleeting = host
        .guest(&Guest {
            name: "fleeting",
            policy: Some("restart"),
            transient: true,
            ..Guest::default()
        })
        .await;
    // The policy is in what the agent knows of it.
    let mut known = host.ctx.domains.clone();
    let read = known.wait_for(|all| all.contains_key(&fleeting.uuid));
    drop(within("the instance is known", read).await.unwrap());
    rig.kill(0, &fleeting).await;
    let evicted = eviction(host, &format!("{}-{}", host.node, fleeting.uuid)).await;
    assert!(evicted.spec.reason.contains("no definition left"));
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_done_by_policy_by_switch_without_the_lease_or_when_the_host_fails() {
    let rig = Rig::start("restraint", &[Flavour::Bookworm]).await;
    let host = &rig.hosts[0];
    let mut events = host.events(LIFE).await;
    let guest = async |name: &str, policy: Option<&str>| {
        host.guest(&Guest {
            name,
            policy,
            ..Guest::default()
        })
        .await
    };

    // By policy: the configuration's, since nobody else has one.
    let agent = Agent::start(host, config());
    let notified = guest("notified", None).await;
    rig.kill(0, &notified).await;
    told(
        host,
        "InstanceCrashed",
        &["notified", "its policy is notify"],
    )
    .await;
    assert!(agent.counts("actions_total{trigger=\"crash\",action=\"notify\",result=\"ok\"} 1"));

    // By switch.
    let api: Api<Hypervisor> = Api::all(host.ctx.client.clone());
    let set = async |spec: serde_json::Value| {
        let params = PatchParams::default();
        let patch = Patch::Merge(json!({ "spec": spec }));
        let written = api.patch(&host.node, &params, &patch).await.unwrap();
        let mut seen = host.ctx.hypervisor.clone();
        let there = seen.wait_for(|seen| {
            let seen = seen.object().and_then(|object| object.resource_version());
            seen == written.resource_version()
        });
        drop(within("the change is seen", there).await.unwrap());
    };
    set(json!({ "highAvailability": false, "haPolicy": "restart" })).await;
    let switched = guest("switched", None).await;
    rig.kill(0, &switched).await;
    told(
        host,
        "InstanceCrashed",
        &["switched", "spec.highAvailability"],
    )
    .await;

    // The Hypervisor's policy, and a stand-by that does nothing.
    set(json!({ "highAvailability": true })).await;
    host.holder.send_replace(Holder::Other("another".into()));
    let standby = guest("standby", None).await;
    lifecycle(&mut events, &standby, Lifecycle::Started).await;
    rig.kill(0, &standby).await;
    lifecycle(&mut events, &standby, Lifecycle::Stopped).await;
    host.holder.send_replace(Holder::Me);
    let restarted = guest("restarted", None).await;
    lifecycle(&mut events, &restarted, Lifecycle::Started).await;
    rig.kill(0, &restarted).await;
    lifecycle(&mut events, &restarted, Lifecycle::Started).await;
    drop(agent);

    // Not while the Lease cannot be renewed, and not after it was not renewed for its duration.
    lapse(&rig, config(), &mut events).await;

    // What a person stops stays stopped, and many at once are a failing host.
    let agent = Agent::start(
        host,
        HaConfig {
            policy: HaPolicy::Restart,
            brake: 2,
            settle: Duration::from_secs(2),
            ..config()
        },
    );
    let stopped = guest("stopped", None).await;
    let none = cobalt_libvirt::DestroyFlags::NONE;
    host.libvirt.destroy(&stopped, none).await.unwrap();
    let mut many = Vec::new();
    for name in ["many1", "many2", "many3", "many4"] {
        many.push(guest(name, None).await);
    }
    rig.sh(
        0,
        "for f in /run/libvirt/qemu/many*.pid; do kill -9 $(cat $f); done",
    )
    .await;
    told(host, "ManyInstancesFail", &["4 instances failed"]).await;
    // Each is named, and so is the one that fails later.
    for name in ["many1", "many4"] {
        told(host, "InstanceCrashed", &[name, "left alone", "at fault"]).await;
    }
    let late = guest("late", None).await;
    lifecycle(&mut events, &late, Lifecycle::Started).await;
    rig.kill(0, &late).await;
    told(host, "InstanceCrashed", &["late", "left alone", "at fault"]).await;
    many.push(late);
    recovery(host, "more than 2 failed").await;
    let mut off = BTreeSet::new();
    for domain in many.iter().chain([&stopped, &notified, &switched]) {
        off.insert(state(host, domain).await.name());
    }
    assert_eq!(off, BTreeSet::from([DomainState::Shutoff.name()]));
    assert!(agent.counts("braked 1"));
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_while_libvirt_was_away_is_found_by_its_state() {
    let rig = Rig::start("missed", &[Flavour::Bookworm]).await;
    let host = &rig.hosts[0];
    let agent = Agent::start(host, config());
    let guest = Guest {
        name: "missed",
        policy: Some("restart"),
        ..Guest::default()
    };
    let mut events = host.events(LIFE).await;
    let missed = host.guest(&guest).await;
    lifecycle(&mut events, &missed, Lifecycle::Started).await;
    let mut known = host.ctx.domains.clone();
    let read = known.wait_for(|all| all.get(&missed.uuid).is_some_and(|facts| facts.active));
    drop(within("the instance is known", read).await.unwrap());
    // libvirt and the instance die together; libvirt alone is back.
    rig.sh(
        0,
        "kill -9 $(pidof libvirtd) $(cat /run/libvirt/qemu/missed.pid); \
         timeout 60 sh -c 'until virsh list >/dev/null 2>&1; do sleep 0.1; done'",
    )
    .await;
    told(host, "InstanceRestarted", &["missed"]).await;
    assert!(agent.counts("events_total{trigger=\"crash\"}"));
    drop(agent);
}

/// Waits until the condition says that nothing is done, for this reason.
async fn recovery(host: &Host, words: &str) {
    let mut said = host.ctx.conditions.subscribe();
    let waiting = said.wait_for(|all| {
        let statement = all.get(&HypervisorCondition::InstanceRecovery);
        statement.is_some_and(|statement| {
            let statement = statement.as_ref();
            statement.is_some_and(|one| one.status == Status::False && one.message.contains(words))
        })
    });
    drop(within(words, waiting).await.unwrap());
}

/// The API server refuses every write of the Lease.
async fn lapse(rig: &Rig, config: HaConfig, events: &mut EventStream) {
    let host = &rig.hosts[0];
    let duration = Duration::from_secs(8);
    host.term.send_replace(Term::new(duration, Instant::now()));
    let cancel = CancellationToken::new();
    let keeping = tokio::spawn(lease::run(
        host.ctx.clone(),
        LeaseConfig {
            identity: "test".into(),
            renew: Duration::from_millis(200),
            duration,
        },
        host.holder.clone(),
        host.term.clone(),
        Metrics::default(),
        cancel.clone(),
    ));
    let agent = Agent::start(host, config);
    let guest = Guest {
        name: "lapsed",
        policy: Some("restart"),
        ..Guest::default()
    };
    let lapsed = host.guest(&guest).await;
    lifecycle(events, &lapsed, Lifecycle::Started).await;
    let mut term = host.term.subscribe();
    let held = term.wait_for(|term| term.holds(Instant::now()));
    drop(within("the Lease is renewed", held).await.unwrap());

    let name = format!("no-lease-{}", host.node);
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(host.ctx.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(host.ctx.client.clone());
    let policy = json!({
        "metadata": { "name": name },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["coordination.k8s.io"], "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"], "resources": ["leases"],
                "resourceNames": [host.node],
            }] },
            "validations": [{ "expression": "false", "message": "a test" }],
        },
    });
    let policy = serde_json::from_value(policy).unwrap();
    let create = PostParams::default();
    policies.create(&create, &policy).await.unwrap();
    let binding = json!({
        "metadata": { "name": name },
        "spec": { "policyName": name, "validationActions": ["Deny"] },
    });
    let binding = serde_json::from_value(binding).unwrap();
    bindings.create(&create, &binding).await.unwrap();

    recovery(host, "Lease of the node could not be renewed").await;
    told(host, "InstanceRecoveryStopped", &["Lease"]).await;
    assert!(agent.counts("lease_lapsed 1"));
    rig.kill(0, &lapsed).await;
    told(
        host,
        "InstanceCrashed",
        &["lapsed", "nothing is done before"],
    )
    .await;
    // Somebody else may start it from now on.
    let ends = host.term.borrow().ends().unwrap();
    let dead = ends - lease::acts_for(duration) + duration;
    tokio::time::sleep_until(dead.into()).await;
    let delete = DeleteParams::default();
    bindings.delete(&name, &delete).await.unwrap();
    policies.delete(&name, &delete).await.unwrap();
    told(host, "InstanceCrashed", &["lapsed", "another host"]).await;
    told(host, "InstanceRecoveryResumed", &[]).await;
    assert_eq!(state(host, &lapsed).await, DomainState::Shutoff);
    drop(agent);
    cancel.cancel();
    keeping.await.unwrap();
    host.holder.send_replace(Holder::Me);
    host.term.send_replace(long_term());
}
