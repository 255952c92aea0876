//! What the agent does when the others fail.

use std::sync::Arc;
use std::time::Duration;

use cobalt_api::conditions::HypervisorCondition;
use cobalt_api::names::leases;
use cobalt_lab::control::Fault;
use cobalt_lab::plan::Flavour;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::wait::await_condition;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;

use crate::support::{
    Agent, Hosts, PATIENCE, create_hypervisor, delete_hypervisor, hypervisors, micro, says, server,
    state, unique, wait_until,
};

const LIBVIRT: HypervisorCondition = HypervisorCondition::LibVirtConnection;

async fn wait_for_lease(
    client: &kube::Client,
    node: &str,
    what: &str,
    is: impl Fn(&Lease) -> bool,
) {
    let api: Api<Lease> = Api::namespaced(client.clone(), leases::NODE_AGENT_NAMESPACE);
    let condition = |lease: Option<&Lease>| lease.is_some_and(&is);
    let waiting = await_condition(api.clone(), node, condition);
    if tokio::time::timeout(PATIENCE, waiting).await.is_err() {
        panic!("{what}: the Lease is {:?}", api.get_opt(node).await);
    }
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

fn not_renewed(lease: &Lease) -> bool {
    let notes = lease.metadata.annotations.as_ref();
    notes.is_some_and(|notes| {
        notes.contains_key(cobalt_api::names::annotations::NOT_RENEWED_BECAUSE)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn w55_w58_a_libvirt_that_dies_hangs_or_restarts_is_told_and_found_again() {
    let (server, client) = server().await;
    let hosts = Hosts::start("fault", &[Flavour::Bookworm]).await;
    let node = unique("fault");
    create_hypervisor(&client, &node).await;
    hosts.define("hv1", "walker", "").await;
    hosts.virsh("hv1", &["start", "walker"]).await;
    let uri = hosts.libvirt_flag("hv1").await;
    let flags = ["--libvirt-timeout=2s", "--lease-renew-interval=1s", &uri];
    let agent = Agent::start(&server.kubeconfig, &node, &flags);
    let right = |hypervisor: &_| {
        says(hypervisor, LIBVIRT, "True", "Connected")
            && state(hypervisor, "walker") == Some("running")
    };
    wait_until(&client, &node, "connected", right).await;

    // Killed: systemd starts it again, the guest lives on, and the report says so.
    hosts.fault(Fault::Kill, "hv1/libvirtd").await.unwrap();
    wait_until(&client, &node, "connected again", right).await;

    // Stopped: it is there and does not answer. What was last seen stays.
    hosts.fault(Fault::Stop, "hv1/libvirtd").await.unwrap();
    wait_for_lease(&client, &node, "libvirt hangs", not_renewed).await;
    let hung = wait_until(&client, &node, "hung", |hypervisor| {
        says(hypervisor, LIBVIRT, "False", "Disconnected")
            || says(hypervisor, LIBVIRT, "False", "ConnectFailed")
    })
    .await;
    assert_eq!(
        state(&hung, "walker"),
        Some("running"),
        "the last report stays"
    );
    hosts.fault(Fault::Cont, "hv1/libvirtd").await.unwrap();
    wait_until(&client, &node, "awake", right).await;
    wait_for_lease(&client, &node, "libvirt answers", |lease| {
        !not_renewed(lease)
    })
    .await;

    // An instance ends while libvirt does not look.
    hosts.sh("hv1", "systemctl stop libvirtd libvirtd.socket; pkill -9 qemu-system; systemctl start libvirtd.socket libvirtd").await;
    wait_until(&client, &node, "restarted", |hypervisor| {
        says(hypervisor, LIBVIRT, "True", "Connected")
            && state(hypervisor, "walker") == Some("shutoff")
    })
    .await;
    assert!(agent.log().contains("connected to libvirt"));
    delete_hypervisor(&client, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_events_is_a_handful_of_writes_and_the_last_state_wins() {
    let (server, client) = server().await;
    let hosts = Hosts::start("storm", &[Flavour::Trixie]).await;
    let node = unique("storm");
    create_hypervisor(&client, &node).await;
    for name in ["a", "b"] {
        hosts.define("hv1", name, "").await;
        hosts.virsh("hv1", &["start", name]).await;
    }
    let uri = hosts.libvirt_flag("hv1").await;
    let agent = Agent::start(
        &server.kubeconfig,
        &node,
        &[&uri, "--resync-interval=100ms"],
    );
    wait_until(&client, &node, "both run", |hypervisor| {
        state(hypervisor, "a") == Some("running") && state(hypervisor, "b") == Some("running")
    })
    .await;
    let before = agent.metric("cobalt_node_agent_status_writes_total").await;

    // Two instances that pause and go on, and a third that comes and goes between list and XML.
    let transient = micro("ghost", &cobalt_lab::node::new_uuid().unwrap(), "");
    hosts
        .sh(
            "hv1",
            &format!("cat >/root/ghost.xml <<'X'\n{transient}\nX"),
        )
        .await;
    let churn = "for i in $(seq 250); do echo suspend a; echo resume a; echo suspend b; echo resume b; done | virsh >/dev/null & \
                 for i in $(seq 10); do virsh create /root/ghost.xml; virsh destroy ghost; done >/dev/null; wait; virsh suspend b";
    let begun = std::time::Instant::now();
    hosts.sh("hv1", churn).await;
    let seconds = begun.elapsed().as_secs_f64();
    let seen = wait_until(
        &client,
        &node,
        "b is paused, the ghost is gone",
        |hypervisor| {
            state(hypervisor, "a") == Some("running")
                && state(hypervisor, "b") == Some("paused")
                && state(hypervisor, "ghost").is_none()
        },
    )
    .await;
    assert!(says(&seen, LIBVIRT, "True", "Connected"), "{seen:?}");
    let events = agent
        .metric("cobalt_node_agent_libvirt_events_total{event=\"lifecycle\"}")
        .await;
    let writes = agent.metric("cobalt_node_agent_status_writes_total").await - before;
    assert!(events >= 1000.0, "only {events} events");
    // Five at once, then two a second: the pace of pace.rs, however long the storm was.
    assert!(
        writes <= 8.0 + 2.0 * seconds,
        "{writes} writes in {seconds} s for {events} events"
    );
    delete_hypervisor(&client, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_libvirt_that_speaks_nonsense_is_told_and_the_agent_stays() {
    let (server, client) = server().await;
    let node = unique("nonsense");
    create_hypervisor(&client, &node).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fake-libvirt-sock");
    let listener = UnixListener::bind(&path).unwrap();
    // A fake peer: garbage, then a length of 2 GiB, in turns.
    let fake = tokio::spawn(async move {
        let mut turn = 0_u32;
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            turn += 1;
            let answer: &[u8] = if turn.is_multiple_of(2) {
                b"HTTP/1.1 400 Bad Request\r\n\r\nthis is not libvirt at all"
            } else {
                &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]
            };
            drop(stream.write_all(answer).await);
        }
    });
    let uri = format!(
        "--libvirt-uri=qemu+unix:///system?socket={}",
        path.display()
    );
    let agent = Agent::start(&server.kubeconfig, &node, &[&uri]);
    wait_until(&client, &node, "nonsense is told", |hypervisor| {
        says(hypervisor, LIBVIRT, "False", "ConnectFailed")
    })
    .await;
    let (code, body) = agent.get(8081, "/healthz").await.unwrap();
    assert_eq!(code, 200, "{body}");
    let writes = agent.metric("cobalt_node_agent_status_writes_total").await;
    assert!(writes <= 4.0, "{writes} writes for the same trouble");
    fake.abort();
    delete_hypervisor(&client, &node).await;
}

/// A way to the API server that can be cut.
struct Link {
    kubeconfig: std::path::PathBuf,
    open: watch::Sender<bool>,
    _dir: tempfile::TempDir,
}

impl Link {
    async fn new(kubeconfig: &std::path::Path) -> Self {
        let config = std::fs::read_to_string(kubeconfig).unwrap();
        let (_, rest) = config.split_once("https://").unwrap();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !".:-".contains(c));
        let server = rest[..end.unwrap_or(rest.len())].to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        std::fs::write(&path, config.replace(&server, &format!("127.0.0.1:{port}"))).unwrap();
        let open = watch::Sender::new(true);
        let state = open.clone();
        let target = Arc::new(server);
        tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let mut open = state.subscribe();
                let target = Arc::clone(&target);
                tokio::spawn(async move {
                    if !*open.borrow() {
                        return;
                    }
                    let mut to = TcpStream::connect(target.as_str()).await.unwrap();
                    tokio::select! {
                        copied = tokio::io::copy_bidirectional(&mut from, &mut to) => drop(copied),
                        cut = open.wait_for(|open| !*open) => drop(cut),
                    }
                });
            }
        });
        Self {
            kubeconfig: path,
            open,
            _dir: dir,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_api_server_is_away_nothing_is_lost_and_no_burst_follows() {
    let (server, client) = server().await;
    let hosts = Hosts::start("away", &[Flavour::Bookworm]).await;
    let node = unique("away");
    create_hypervisor(&client, &node).await;
    hosts.define("hv1", "walker", "").await;
    let uri = hosts.libvirt_flag("hv1").await;
    let link = Link::new(&server.kubeconfig).await;
    let agent = Agent::start(&link.kubeconfig, &node, &[&uri]);
    wait_until(&client, &node, "connected", |hypervisor| {
        state(hypervisor, "walker") == Some("shutoff")
    })
    .await;
    let before = agent.metric("cobalt_node_agent_status_writes_total").await;
    link.open.send_replace(false);
    hosts.virsh("hv1", &["start", "walker"]).await;
    for _ in 0..10 {
        hosts.virsh("hv1", &["suspend", "walker"]).await;
        hosts.virsh("hv1", &["resume", "walker"]).await;
    }
    hosts.virsh("hv1", &["suspend", "walker"]).await;
    // The agent has noticed: a write has failed.
    agent
        .counts("cobalt_node_agent_status_write_failures_total", 1.0)
        .await;
    link.open.send_replace(true);
    wait_until(&client, &node, "the last state", |hypervisor| {
        state(hypervisor, "walker") == Some("paused")
    })
    .await;
    let writes = agent.metric("cobalt_node_agent_status_writes_total").await - before;
    assert!(
        writes <= 2.0,
        "{writes} writes after the API server came back"
    );
    delete_hypervisor(&client, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_writers_of_the_same_status_do_not_disturb_and_are_not_disturbed() {
    let (server, client) = server().await;
    let hosts = Hosts::start("many", &[Flavour::Bookworm]).await;
    let node = unique("many");
    create_hypervisor(&client, &node).await;
    hosts.define("hv1", "walker", "").await;
    let uri = hosts.libvirt_flag("hv1").await;
    let agent = Agent::start(&server.kubeconfig, &node, &[&uri]);
    wait_until(&client, &node, "connected", |hypervisor| {
        state(hypervisor, "walker") == Some("shutoff")
    })
    .await;
    let api = hypervisors(&client);
    let other = async {
        for number in 0..200 {
            let patch = json!({ "status": { "internalIp": format!("192.0.2.{number}") } });
            let params = PatchParams::default();
            api.patch_status(&node, &params, &Patch::Merge(&patch))
                .await
                .unwrap();
        }
    };
    let own = async {
        hosts.virsh("hv1", &["start", "walker"]).await;
        for _ in 0..5 {
            hosts.virsh("hv1", &["suspend", "walker"]).await;
            hosts.virsh("hv1", &["resume", "walker"]).await;
        }
        hosts.virsh("hv1", &["suspend", "walker"]).await;
    };
    tokio::join!(other, own);
    let seen = wait_until(&client, &node, "both have had their say", |hypervisor| {
        state(hypervisor, "walker") == Some("paused")
    })
    .await;
    let status = seen.status.unwrap();
    assert_eq!(status.internal_ip.as_deref(), Some("192.0.2.199"));
    let failures = agent
        .metric("cobalt_node_agent_status_write_failures_total")
        .await;
    assert!(failures < 1.0, "{failures} writes failed:\n{}", agent.log());
    delete_hypervisor(&client, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_agents_for_one_node_one_reports_until_it_is_gone() {
    let (server, client) = server().await;
    let hosts = Hosts::start("two", &[Flavour::Bookworm]).await;
    let node = unique("two");
    create_hypervisor(&client, &node).await;
    hosts.define("hv1", "walker", "").await;
    let uri = hosts.libvirt_flag("hv1").await;
    let start = |identity: &str| {
        let identity = format!("--identity={identity}");
        let flags = [
            &uri,
            &identity,
            "--lease-duration=3s",
            "--lease-renew-interval=1s",
        ];
        Agent::start(&server.kubeconfig, &node, &flags)
    };
    let mut first = start("first");
    wait_for_lease(&client, &node, "the first holds it", |lease| {
        holder(lease) == Some("first")
    })
    .await;
    wait_until(&client, &node, "the first reports", |hypervisor| {
        state(hypervisor, "walker") == Some("shutoff")
    })
    .await;
    let second = start("second");
    second.serves().await;
    let told = async {
        loop {
            let (_, body) = second.get(8081, "/readyz").await.unwrap();
            if body.contains("\"first\" reports for this node") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, told).await.unwrap();
    assert!(second.metric("cobalt_node_agent_status_writes_total").await < 1.0);
    // Power loss of the first: the second takes over and goes on.
    first.kill().await;
    wait_for_lease(&client, &node, "the second holds it", |lease| {
        holder(lease) == Some("second")
    })
    .await;
    hosts.virsh("hv1", &["start", "walker"]).await;
    wait_until(&client, &node, "the second reports", |hypervisor| {
        state(hypervisor, "walker") == Some("running")
    })
    .await;
    delete_hypervisor(&client, &node).await;
}
