//! Hosts are emptied for real: QEMU guests, libvirt and OVN, the node agents of both hosts, and
//! guests that count while they move.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use cobalt_api::conditions::{self, HypervisorCondition};
use cobalt_api::eviction::{
    Eviction, EvictionInstance, EvictionStatus, InstanceState, Method, Outcome,
};
use cobalt_api::hypervisor::{Hypervisor, Phase};
use cobalt_api::migration::{Migration, MigrationResult, Role};
use cobalt_api::names::leases;
use cobalt_lab::testing::free_port;
use cobalt_openstack::Client;
use cobalt_openstack::compute::{
    NewServer, NewServerNetworks, RootDisk, ServerStatus, ServiceState, ServiceStatus,
};
use futures::StreamExt;
use kube::Api;
use kube::api::ListParams;
use kube::runtime::wait::await_condition;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use tokio::process::{Child, Command};

use crate::cloud::{Cloud, NODES, region};
use crate::evictions::{reasons, row};
use crate::support::{PATIENCE, Site, until};

const HOSTS: [&str; 2] = ["hv1", "hv2"];

/// The numbers that a guest's console shows, in order.
fn ticks(console: &str) -> Vec<u32> {
    console
        .lines()
        .filter_map(|line| line.trim().strip_prefix("tick ")?.parse().ok())
        .collect()
}

/// The agent of a host, as a process of this machine.
async fn agent(site: &Site, host: &str) -> Child {
    let program = cobalt_lab::testing::built("cobalt-node-agent").unwrap();
    Command::new(program)
        .args(["--node", host, "--namespace", "default"])
        .arg(site.cloud.libvirt_flag(host).await)
        .arg(format!("--metrics-bind-address={}", free_port()))
        .arg(format!("--health-probe-bind-address={}", free_port()))
        .arg("--migration-write-interval=1s")
        .env("KUBECONFIG", &site.kubeconfig)
        .env("LOG_LEVEL", "warn")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Boots a guest that counts, and returns its id as soon as it does.
async fn counter(client: &Client, name: &str, host: &str, image: &str) -> String {
    let compute = client.compute();
    let image = client.find_image(image).await.unwrap().unwrap();
    let network = client.find_network("lab").await.unwrap().unwrap();
    let new = NewServer {
        name: name.to_owned(),
        flavor: compute.find_flavor("m1.lab").await.unwrap().unwrap().id,
        root: RootDisk::Image(image.id),
        networks: NewServerNetworks::Networks(vec![network.id]),
        host: Some(host.to_owned()),
        availability_zone: None,
        metadata: [].into(),
    };
    let id = compute.create_server(&new).await.unwrap();
    until("it counts", || async {
        let server = compute.server(&id).await.unwrap();
        assert_ne!(server.status, ServerStatus::Error, "{:?}", server.fault);
        if server.status != ServerStatus::Active {
            return None;
        }
        let counted = ticks(&compute.console_output(&id, 200).await.unwrap());
        (counted.len() > 3).then_some(())
    })
    .await;
    id
}

/// Its guest has neither stopped nor lost anything: it goes on on the other host with the next
/// number. `console` is the one of before, which has all that the guest said until then.
async fn counts_on(client: &Client, id: &str, mut console: File) {
    let after = until("it counts on", || async {
        let after = client.compute().console_output(id, 1000).await.unwrap();
        (ticks(&after).len() > 3).then_some(after)
    })
    .await;
    let mut before = String::new();
    console.read_to_string(&mut before).unwrap();
    assert!(ticks(&before).len() > 3, "{before}");
    // The last line may begin there and end here.
    let counted = ticks(&(before + &after));
    let whole = counted.windows(2).all(|pair| pair[1] == pair[0] + 1);
    assert!(whole, "{counted:?}");
}

/// Its guest has not stopped where it is: the same console goes on with the next numbers.
async fn goes_on_counting(console: File) {
    let console = Mutex::new((console, String::new()));
    let read = || {
        let mut console = console.lock().unwrap();
        let (file, text) = &mut *console;
        file.read_to_string(text).unwrap();
        ticks(text)
    };
    let before = read();
    let counted = until("it counts on", || async {
        let now = read();
        (now.len() > before.len() + 3).then_some(now)
    })
    .await;
    let whole = counted.windows(2).all(|pair| pair[1] == pair[0] + 1);
    assert!(whole, "{counted:?}");
}

/// The agent of a host sees so many guests.
async fn sees(site: &Site, host: &str, guests: i64) {
    site.hypervisor(host, &format!("{guests} guests"), |object| {
        let status = object.status.as_ref();
        status.is_some_and(|status| status.num_instances == Some(guests))
    })
    .await;
}

/// Asks for a host to be emptied, as people do.
async fn empty(site: &Site, host: &str) {
    let wish = json!({ "spec": { "maintenance": "manual", "maintenanceReason": "a new fan" } });
    site.patch(host, wish).await;
}

async fn eviction_of(
    site: &Site,
    host: &str,
    wanted: impl Fn(&EvictionStatus) -> bool,
) -> EvictionStatus {
    let over = await_condition(site.evictions(), host, |object: Option<&Eviction>| {
        let status = object.and_then(|object| object.status.as_ref());
        status.is_some_and(&wanted)
    });
    match tokio::time::timeout(PATIENCE * 2, over).await {
        Ok(found) => found.unwrap().unwrap().status.unwrap(),
        Err(_) => panic!("{:#?}", site.evictions().get(host).await.unwrap().status),
    }
}

/// Every row of a host's Evictions as it was shown from now on, in this order.
fn rows_of(site: &Site, host: &str) -> Arc<Mutex<Vec<EvictionInstance>>> {
    let all = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&all);
    let config = watcher::Config::default().fields(&format!("metadata.name={host}"));
    let objects = watcher(site.evictions(), config).default_backoff();
    tokio::spawn(async move {
        let mut objects = std::pin::pin!(objects.applied_objects());
        while let Some(object) = objects.next().await {
            if let Ok(Some(status)) = object.map(|object: Eviction| object.status) {
                seen.lock().unwrap().extend(status.instances);
            }
        }
    });
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn guests_count_on_while_their_host_is_emptied() {
    let _nodes = NODES.lock().await;
    let (cloud, kubeconfig) = region("drain").await;
    let site = Site::in_cluster(cloud, kubeconfig).await;
    let arguments = [
        "--skip-tests",
        "--eviction-stall=15s",
        "--eviction-stalled=force-complete",
        // Longer than Nova needs to say of a service that it is down, which is a minute: before that
        // a request in the queue of a dead nova-conductor looks like one that it has lost.
        "--eviction-stuck-patience=80s",
    ];
    let operator = site.operator_of("", &arguments, &[]);
    site.make_namespace(leases::NODE_AGENT_NAMESPACE).await;
    let _agent = agent(&site, "hv1").await;
    // Inside of its host, where it hears of shutdowns.
    let _inside = cloud.agent_inside("hv2", &site.kubeconfig).await;
    for host in HOSTS {
        site.phase(host, Phase::Active).await;
    }
    let client = cloud.client();
    // It writes three times as much as a migration may send.
    cloud
        .set_image_property("lab-micro", "os_command_line", "dirty=24 ws=32")
        .await;
    let (one, two, three, busy) = tokio::join!(
        counter(&client, "one", "hv1", "lab-linux"),
        counter(&client, "two", "hv1", "lab-linux"),
        counter(&client, "three", "hv1", "lab-linux"),
        counter(&client, "busy", "hv1", "lab-micro")
    );
    let ids = [&one, &two, &three, &busy];
    let consoles = ids.map(|id| cloud.console(id));
    sees(&site, "hv1", 4).await;
    let shown = rows_of(&site, "hv1");
    empty(&site, "hv1").await;
    let status = eviction_of(&site, "hv1", |status| status.outcome.is_some()).await;
    assert_eq!(status.outcome, Some(Outcome::Succeeded), "{status:#?}");
    assert_eq!(status.instances.len(), 4);
    for (id, console) in ids.into_iter().zip(consoles) {
        let row = status.instances.iter().find(|row| row.id == *id).unwrap();
        assert_eq!(
            (row.state, row.to.as_deref()),
            (InstanceState::Moved, Some("hv2")),
            "{row:#?}"
        );
        let server = client.compute().server(id).await.unwrap();
        assert_eq!(
            (server.status, server.host.as_deref()),
            (ServerStatus::Active, Some("hv2"))
        );
        counts_on(&client, id, console).await;
    }
    site.phase("hv1", Phase::Maintenance).await;
    sees(&site, "hv1", 0).await;
    sees(&site, "hv2", 4).await;

    // How far they were the agents told, and nobody asked Nova.
    let shown = shown.lock().unwrap().clone();
    let told =
        |row: &EvictionInstance| row.state == InstanceState::Moving && row.progress.is_some();
    let told = shown.iter().any(|row| row.id == one && told(row));
    assert!(told, "{shown:#?}");
    let migrations: Api<Migration> = Api::default_namespaced(site.client.clone());
    let all = migrations.list(&ListParams::default()).await.unwrap();
    for id in ids {
        let own = all.iter().filter_map(|object| object.status.as_ref());
        let own = own.filter(|status| status.instance.as_ref() == Some(id));
        let own: Vec<_> = own.collect();
        assert_eq!(own.len(), 1, "{own:#?}");
        assert_eq!(own[0].result, Some(MigrationResult::Succeeded), "{own:#?}");
        let ends: BTreeMap<Role, &str> = own[0]
            .ends
            .iter()
            .map(|end| (end.role, end.node.as_str()))
            .collect();
        assert_eq!(ends[&Role::Source], "hv1");
        assert_eq!(ends[&Role::Destination], "hv2");
    }
    let action = async |name: &str| {
        let series = r#"cobalt_operator_actions_total{controller="eviction",action="#;
        operator.metric(&format!("{series}\"{name}\"")).await
    };
    assert_eq!(action("move").await, 4.0);
    assert_eq!(action("force-complete").await, 1.0);
    assert_eq!(action("read-transfer").await, 0.0);
    cloud.delete(&busy).await;

    take_back(&site, "hv1").await;
    let _inside = reboot(&site, cloud, &client, [&one, &two, &three]).await;
    crash(&site, cloud, &client, &two, [&one, &three]).await;
    take_back(&site, "hv1").await;
    // From here on those that cannot move are given up soon: one is in rescue for good.
    assert!(operator.stop().await.success());
    let hasty = [&arguments[..], &["--eviction-patience=10s"]].concat();
    let _operator = site.operator_of("", &hasty, &[]);
    others(&site, cloud, &client, [&one, &two, &three]).await;
    take_back(&site, "hv2").await;
    cloud.delete(&one).await;
    let four = counter(&client, "four", "hv1", "lab-linux").await;
    without_conductor(&site, cloud, &client, &four).await;
    cloud.down().await;
}

/// Puts a host that was emptied back into service.
async fn take_back(site: &Site, host: &str) {
    site.patch(host, json!({ "spec": { "maintenance": "" } }))
        .await;
    site.phase(host, Phase::Active).await;
}

/// The guest of one server crashes, and its host is emptied before Nova has noticed. Nova would take
/// a live migration of it for completed and leave it in ERROR on the target, so that it waits until
/// Nova has noticed and is moved while it is off. The others of the host move as ever.
async fn crash(site: &Site, cloud: &Cloud, client: &Client, crashed: &str, others: [&String; 2]) {
    let (host, target) = ("hv1", "hv2");
    let consoles = others.map(|id| cloud.console(id));
    let shown = rows_of(site, host);
    // Whatever the number is, only the process of this guest is ended.
    let kill = r#"pid=$(cat "/run/libvirt/qemu/$(virsh domname "$1" | head -n 1).pid") &&
        grep -q "$1" "/proc/$pid/cmdline" && kill -9 "$pid""#;
    cloud.run(host, &["sh", "-c", kill, "sh", crashed]).await;
    // Until its agent has said so nobody can know, and Nova says so much later.
    site.hypervisor(host, "its agent has seen the crash", |object| {
        let all = object.status.iter().flat_map(|status| &status.instances);
        let mut own = all.filter(|instance| instance.id == crashed);
        own.any(|instance| instance.state.as_deref() == Some("shutoff"))
    })
    .await;
    empty(site, host).await;
    let of = |status: &EvictionStatus| {
        let mut rows = status.instances.iter();
        rows.find(|row| row.id == crashed).cloned()
    };
    let status = eviction_of(site, host, |status| {
        of(status).is_some_and(|row| {
            row.state == InstanceState::Blocked || row.status.as_deref() == Some("SHUTOFF")
        })
    })
    .await;
    let row = of(&status).unwrap();
    if row.status.as_deref() == Some("ACTIVE") {
        assert!(reasons(&row).contains(&"GuestNotRunning"), "{row:#?}");
    }
    let status = eviction_of(site, host, |status| status.outcome.is_some()).await;
    // What was said to be away is there.
    let server = client.compute().server(crashed).await.unwrap();
    assert_eq!(
        (server.status, server.host.as_deref()),
        (ServerStatus::Shutoff, Some(target)),
        "{status:#?}"
    );
    assert_eq!(status.outcome, Some(Outcome::Succeeded), "{status:#?}");
    let row = of(&status).unwrap();
    assert_eq!(
        (row.state, row.method, row.to.as_deref()),
        (InstanceState::Moved, Some(Method::Cold), Some(target)),
        "{row:#?}"
    );
    let shown = shown.lock().unwrap().clone();
    let mut own = shown.iter().filter(|row| row.id == crashed);
    let live = own.find(|row| row.method == Some(Method::Live));
    assert!(live.is_none(), "{live:#?}");
    let domain = cloud.run(target, &["virsh", "domstate", crashed]).await;
    assert_eq!(domain.trim(), "shut off");
    let left = cloud.run(host, &["virsh", "list", "--all", "--uuid"]).await;
    assert_eq!(left.trim(), "", "nothing is left on {host}");
    for (id, console) in others.into_iter().zip(consoles) {
        let server = client.compute().server(id).await.unwrap();
        assert_eq!(
            (server.status, server.host.as_deref()),
            (ServerStatus::Active, Some(target))
        );
        counts_on(client, id, console).await;
    }
}

/// nova-conductor dies in the middle of a drain: Nova has taken the request for the only server of the
/// host, and nobody begins with it. That is said, and a person calls the drain off.
async fn without_conductor(site: &Site, cloud: &Cloud, client: &Client, id: &str) {
    let host = "hv1";
    let console = cloud.console(id);
    // A host is disabled with the help of its nova-compute, which needs a nova-conductor.
    site.hold_up_eviction(host).await;
    empty(site, host).await;
    site.hypervisor(host, "it is disabled", |object| {
        let status = object.status.as_ref();
        let all = status.map_or(&[][..], |status| status.conditions.as_slice());
        conditions::is_true(all, HypervisorCondition::HypervisorDisabled)
    })
    .await;
    let conductor = async |what: &str| {
        let command = ["systemctl", what, "nova-conductor"];
        cloud.run("openstack", &command).await;
    };
    conductor("stop").await;
    site.let_evict(host).await;
    for reason in ["NovaStuck", "NovaConductor"] {
        let status = eviction_of(site, host, |status| {
            let wait = status.waiting_for.as_ref();
            wait.is_some_and(|wait| wait.reason == reason)
        })
        .await;
        let row = row(&status, "four");
        assert_eq!(
            (row.state, row.attempt, row.migration_id),
            (InstanceState::Moving, Some(1), None),
            "{row:#?}"
        );
    }
    let undrain = Command::new(cobalt_lab::testing::built("cobalt").unwrap())
        .args(["undrain", host, "--wait"])
        .env("KUBECONFIG", &site.kubeconfig)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let undrain = tokio::spawn(tokio::time::timeout(PATIENCE * 2, undrain));
    until("the drain is over", || async {
        let left = site.evictions().get_opt(host).await.unwrap();
        left.is_none().then_some(())
    })
    .await;
    let done = undrain.await.unwrap();
    conductor("start").await;
    let done = done.expect("cobalt undrain ends").unwrap();
    assert!(done.status.success(), "{done:?}");
    site.phase(host, Phase::Active).await;
    for host in HOSTS {
        until("its nova-compute reports", || async {
            let service = cloud.service(host).await?;
            (service.state == ServiceState::Up).then_some(())
        })
        .await;
        let service = cloud.service(host).await.unwrap();
        assert_eq!(service.status, ServiceStatus::Enabled, "{host}");
    }
    let server = until("Nova is not busy with it any more", || async {
        let now = client.compute().server(id).await.unwrap();
        assert_ne!(now.status, ServerStatus::Error, "{:?}", now.fault);
        (now.status == ServerStatus::Active && now.task_state.is_none()).then_some(now)
    })
    .await;
    // The request was in a queue: nova-conductor may have gone on with it.
    if server.host.as_deref() == Some(host) {
        goes_on_counting(console).await;
    } else {
        counts_on(client, id, console).await;
    }
}

/// A host in service is rebooted: it is taken out of service, drained, goes down, comes back, and is
/// in service again without anything left of it. Returns its agent.
async fn reboot(site: &Site, cloud: &Cloud, client: &Client, ids: [&String; 3]) -> Child {
    let consoles = ids.map(|id| cloud.console(id));
    site.hypervisor("hv2", "a shutdown would wait for ten minutes", |object| {
        says(
            object,
            HypervisorCondition::ShutdownInhibited,
            "at most 10m",
        )
    })
    .await;
    cloud.run("hv2", &["systemctl", "reboot"]).await;
    site.hypervisor("hv2", "it is taken out of service", |object| {
        says(
            object,
            HypervisorCondition::HypervisorDisabled,
            "about to shut down",
        )
    })
    .await;
    let service = cloud.service("hv2").await.unwrap();
    let reason = service.disabled_reason.unwrap_or_default();
    assert!(reason.starts_with("Hypervisor CRD: shutdown: "), "{reason}");
    for (id, console) in ids.into_iter().zip(consoles) {
        until("it is on the other host", || async {
            let server = client.compute().server(id).await.unwrap();
            assert_ne!(server.status, ServerStatus::Error, "{:?}", server.fault);
            let there = server.host.as_deref() == Some("hv1");
            (there && server.status == ServerStatus::Active).then_some(())
        })
        .await;
        counts_on(client, id, console).await;
    }
    until("it has booted again", || async {
        let now = cloud.observed("hv2").await;
        (now.boots == 2 && now.booted).then_some(())
    })
    .await;
    // It stays out until its agent says that it is back.
    site.hypervisor("hv2", "it waits for its agent", |object| {
        let status = object.status.as_ref();
        let wait = status.and_then(|status| status.waiting_for.as_ref());
        wait.is_some_and(|wait| wait.reason == "HostShutdown")
    })
    .await;
    let inside = cloud.agent_inside("hv2", &site.kubeconfig).await;
    site.phase("hv2", Phase::Active).await;
    until("no Eviction of the host is left", || async {
        let all = site.evictions().list(&ListParams::default()).await.unwrap();
        let none = all.iter().all(|one| one.spec.hypervisor != "hv2");
        none.then_some(())
    })
    .await;
    let service = cloud.service("hv2").await.unwrap();
    assert_eq!(service.status, ServiceStatus::Enabled);
    until("its nova-compute reports", || async {
        let service = cloud.service("hv2").await?;
        (service.state == ServiceState::Up).then_some(())
    })
    .await;
    inside
}

/// Whether a condition has these words.
fn says(object: &Hypervisor, condition: HypervisorCondition, words: &str) -> bool {
    let all = object.status.iter().flat_map(|status| &status.conditions);
    let mut of = all.filter(|one| one.type_ == condition.as_str());
    of.any(|one| one.message.contains(words))
}

/// The second host, where they are by now: with one that somebody aborts, one that is shelved (it has
/// been off since its guest crashed), and one in rescue.
async fn others(site: &Site, cloud: &Cloud, client: &Client, ids: [&String; 3]) {
    let host = "hv2";
    let [aborted, shelved, rescued] = ids;
    let compute = client.compute();
    for (id, action, status) in [
        (shelved, json!({ "shelve": null }), ServerStatus::Shelved),
        (rescued, json!({ "rescue": {} }), ServerStatus::Rescue),
    ] {
        cloud.server_action(id, action).await;
        until(status.as_str(), || async {
            let now = compute.server(id).await.unwrap();
            assert_ne!(now.status, ServerStatus::Error, "{:?}", now.fault);
            (now.status == status && now.task_state.is_none()).then_some(())
        })
        .await;
    }
    let console = cloud.console(aborted);
    cloud.add_port(aborted, host, "lab", "direct").await;
    empty(site, host).await;
    let status = eviction_of(site, host, |status| {
        let mut rows = status.instances.iter();
        rows.any(|row| row.id == *aborted && row.migration_id.is_some() && row.progress.is_some())
    })
    .await;
    let moving = row(&status, "one");
    compute
        .abort_migration(aborted, moving.migration_id.unwrap())
        .await
        .unwrap();
    let status = eviction_of(site, host, |status| status.outcome.is_some()).await;
    assert_eq!(
        status.outcome,
        Some(Outcome::PartiallyFailed),
        "{status:#?}"
    );

    // Nova 33 leaves ERROR behind; the agent saw the guest running, and it was tried again.
    let moved = row(&status, "one");
    assert_eq!(
        (moved.state, moved.attempt),
        (InstanceState::Moved, Some(2)),
        "{moved:#?}"
    );
    assert!(reasons(moved).contains(&"PassthroughDevice"), "{moved:#?}");
    counts_on(client, aborted, console).await;

    let offloaded = row(&status, "two");
    assert_eq!(
        (offloaded.state, offloaded.method),
        (InstanceState::Moved, Some(Method::Offload)),
        "{offloaded:#?}"
    );
    let server = compute.server(shelved).await.unwrap();
    assert_eq!(server.status, ServerStatus::ShelvedOffloaded);

    let stays = row(&status, "three");
    assert_eq!(
        (stays.state, stays.attempt),
        (InstanceState::Failed, None),
        "{stays:#?}"
    );
    assert_eq!(reasons(stays)[0], "UnsupportedState");
    let server = compute.server(rescued).await.unwrap();
    assert_eq!(
        (server.status, server.host.as_deref()),
        (ServerStatus::Rescue, Some(host))
    );
    let object = site.hypervisors().get(host).await.unwrap();
    assert_eq!(object.status.unwrap().evicted, Some(false), "{host}");
}
