//! A whole region: Kubernetes, hypervisors, OVN and OpenStack, and servers that live through
//! what happens to it.

use cobalt_lab::access::Access;
use cobalt_lab::config::OpenStackConfig;
use cobalt_lab::control::Fault;
use cobalt_lab::node::Power;
use cobalt_lab::paths::Paths;
use cobalt_lab::plan::{Flavour, REGION};
use cobalt_lab::report::Report;
use cobalt_lab::{Lab, LabConfig};
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;

use crate::cloud::{Cloud, until};
use crate::{TestLab, kubectl, lab, share};

impl TestLab {
    /// A foot in the tenant network: a port on hv3 with a namespace behind it.
    async fn plug_probe(&self, cloud: &Cloud) {
        let network = cloud.get("network", "/v2.0/networks?name=lab").await;
        let port = json!({ "port": {
            "network_id": network["networks"][0]["id"],
            "binding:host_id": "hv3",
            "device_owner": "compute:probe",
        }});
        let answer = cloud
            .call("POST", "network", "/v2.0/ports", Some(port))
            .await;
        let port = &answer["port"];
        let (id, mac) = (port["id"].as_str().unwrap(), &port["mac_address"]);
        let address = port["fixed_ips"][0]["ip_address"].as_str().unwrap();
        self.sh(
            "hv3",
            &format!(
                "ovs-vsctl add-port br-int probe -- set Interface probe type=internal \
                 mac='{mac}' external_ids:iface-id={id}
                 ip netns add probe
                 ip link set probe netns probe
                 ip -n probe link set probe address {mac} mtu 1400 up
                 ip -n probe address add {address}/24 dev probe
                 ovs-vsctl --timeout=60 wait-until Interface probe \
                 external_ids:ovn-installed=true"
            ),
        )
        .await;
    }

    /// Stops a server on hv1, moves it to hv2, resizes it and takes that back. Its disk keeps what
    /// was written to it.
    async fn move_cold(&self, cloud: &Cloud, id: &str) {
        let settles = async |status: &str| {
            until(&format!("{id} is {status}"), || async {
                let server = cloud.server(id).await;
                assert_ne!(server.status, "ERROR", "{server:?}");
                (server.status == status && !server.busy).then_some(server)
            })
            .await
        };
        cloud.action(id, json!({ "os-stop": null })).await;
        settles("SHUTOFF").await;
        let disk = format!("/var/lib/nova/instances/{id}/disk");
        let write = format!("printf kept | dd of={disk} conv=notrunc bs=1 seek=4096");
        self.sh("hv1", &write).await;

        cloud
            .action(id, json!({ "migrate": { "host": "hv2" } }))
            .await;
        assert_eq!(settles("VERIFY_RESIZE").await.host, "hv2");
        cloud.action(id, json!({ "confirmResize": null })).await;
        assert_eq!(settles("SHUTOFF").await.host, "hv2");

        // The flavor `1` is as big as the server's own.
        cloud
            .action(id, json!({ "resize": { "flavorRef": "1" } }))
            .await;
        assert_ne!(settles("VERIFY_RESIZE").await.host, "hv2");
        cloud.action(id, json!({ "revertResize": null })).await;
        assert_eq!(settles("SHUTOFF").await.host, "hv2");

        let read = format!("dd if={disk} bs=1 skip=4096 count=4");
        assert_eq!(self.sh("hv2", &read).await, "kept");
        let left = self.sh("hv2", "ls /var/lib/nova/instances").await;
        assert!(!left.contains("_resize"), "{left}");
        for (host, count) in [("hv1", 0), ("hv2", 1), ("hv3", 0)] {
            let domains = self.run(host, &["virsh", "list", "--all", "--uuid"]).await;
            assert_eq!(domains.matches(id).count(), count, "{host}: {domains}");
        }
    }

    /// What a server has counted, asked over the tenant network.
    async fn count(&self, address: &str) -> u32 {
        // The first packet to a new peer may be lost; the guest may just have been started.
        until(&format!("{address} answers"), || async {
            let ask = format!("ip netns exec probe nc -w 3 {address} 1 </dev/null");
            let answer = self.attempt("hv3", &["sh", "-c", &ask]).await.ok()?;
            answer.trim().parse().ok()
        })
        .await
    }
}

/// The numbers that a server's console shows, in order.
fn ticks(console: &str) -> Vec<u32> {
    console
        .lines()
        .filter_map(|line| line.trim().strip_prefix("tick ")?.parse().ok())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_boot_move_and_survive_in_a_region() {
    let lab = lab(LabConfig::region("region", 3)).await;
    let silent = Report::silent();
    let nodes = kubectl(&lab, &["get", "nodes", "--no-headers"]);
    assert_eq!(nodes.matches(" Ready ").count(), 3, "{nodes}");
    let access = lab.status().await.unwrap().access.unwrap();
    let cloud = Cloud::login(&access).await;
    assert_eq!(cloud.hosts("up").await.len(), 3);
    pods_reach(&lab, &access, &cloud);
    let tests = Cloud::login_to_tests(&access).await;
    cloud.try_out(&tests, "hv3", "hv2").await;

    // Two servers on two hosts; each has its address from OVN's DHCP and is reached by Geneve.
    let (one, two) = (
        cloud.boot("one", "hv1").await,
        cloud.boot("two", "hv2").await,
    );
    let first = cloud.active(&one).await;
    let second = cloud.active(&two).await;
    assert_eq!((&*first.host, &*second.host), ("hv1", "hv2"));
    lab.plug_probe(&cloud).await;
    let before = lab.count(&first.address).await;
    lab.count(&second.address).await;
    let domains = lab.run("hv1", &["virsh", "list", "--name"]).await;
    assert_eq!(domains.trim(), first.domain);

    // It moves while it counts.
    let migrate =
        |host: &str| json!({ "os-migrateLive": { "host": host, "block_migration": "auto" }});
    cloud.action(&one, migrate("hv2")).await;
    until("it runs on hv2", || async {
        let server = cloud.server(&one).await;
        assert_ne!(server.status, "ERROR", "{server:?}");
        (server.host == "hv2" && !server.busy).then_some(())
    })
    .await;
    let after = lab.count(&first.address).await;
    assert!(after >= before, "it counted {before} and then {after}");
    // Its console begins anew on the other host, in the middle of the count.
    let counted = until("it counts on", || async {
        let counted = ticks(&cloud.console(&one).await);
        (counted.last() > Some(&(after + 2))).then_some(counted)
    })
    .await;
    assert!(
        counted[0] > 1 && counted.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "{counted:?}"
    );

    // A migration is aborted: it stays where it is. Nova 33 then calls it ERROR; it runs on.
    let speed = ["virsh", "migrate-setspeed", &first.domain, "1"];
    lab.run("hv2", &speed).await;
    cloud.action(&one, migrate("hv3")).await;
    let migrations = format!("/servers/{one}/migrations");
    let migration = until("the migration runs", || async {
        let all = cloud.get("compute", &migrations).await;
        let migration = all["migrations"].as_array()?.first()?.clone();
        let under_way = migration["status"] == "running"
            && migration["memory_processed_bytes"].as_u64() > Some(0);
        under_way.then(|| migration["id"].as_u64())?
    })
    .await;
    let path = format!("{migrations}/{migration}");
    cloud.call("DELETE", "compute", &path, None).await;
    let aborted = until("the abort is done", || async {
        let server = cloud.server(&one).await;
        (!server.busy).then_some(server)
    })
    .await;
    assert_eq!(aborted.host, "hv2");
    assert!(lab.count(&first.address).await >= after, "it was restarted");
    if aborted.status == "ERROR" {
        let active = json!({ "os-resetState": { "state": "active" }});
        cloud.action(&one, active).await;
    }

    // A host dies with two servers on it. Both are started again elsewhere, same address.
    lab.power("hv2", Power::Loss, &silent).await.unwrap();
    until("Nova misses hv2", || async {
        let down = cloud.hosts("down").await;
        down.contains(&"hv2".to_owned()).then_some(())
    })
    .await;
    for id in [&one, &two] {
        cloud
            .action(id, json!({ "evacuate": { "host": "hv1" } }))
            .await;
    }
    for (id, address) in [(&one, &first.address), (&two, &second.address)] {
        until("it runs on hv1", || async {
            let server = cloud.server(id).await;
            let there = server.host == "hv1" && server.status == "ACTIVE" && !server.busy;
            there.then_some(())
        })
        .await;
        lab.count(address).await;
    }

    // The host comes back, empty and of use again.
    lab.power("hv2", Power::On, &silent).await.unwrap();
    all_up(&cloud).await;
    let left = until("hv2 is clean", || async {
        let domains = lab.run("hv2", &["virsh", "list", "--all", "--name"]).await;
        domains.trim().is_empty().then_some(domains)
    });
    left.await;

    // A server that is off moves, too, with its disk.
    lab.move_cold(&cloud, &two).await;
    cloud.action(&two, json!({ "os-start": null })).await;
    cloud.active(&two).await;
    lab.count(&second.address).await;

    // A member of a bond is cut; packets take the other one.
    lab.fault(Fault::Cut, "hv1/eno1").await.unwrap();
    lab.count(&first.address).await;
    lab.fault(Fault::Heal, "hv1/eno1").await.unwrap();

    // The message broker and a member of OVN's databases die; both return, and servers boot.
    lab.fault(Fault::Kill, "openstack/rabbitmq-server")
        .await
        .unwrap();
    lab.power("ovn1", Power::Loss, &silent).await.unwrap();
    until("the broker is back", || async {
        let ask = ["rabbitmqctl", "await_startup"];
        lab.attempt("openstack", &ask).await.ok()
    })
    .await;
    // Nova's services are up once each of them has reported again.
    all_up(&cloud).await;
    let third = cloud.boot("three", "hv2").await;
    let third = cloud.active(&third).await;
    lab.count(&third.address).await;
    lab.power("ovn1", Power::On, &silent).await.unwrap();
    lab.down().await.unwrap();
}

/// Pods find the way into OpenStack in a Secret, and it is one for them.
fn pods_reach(lab: &Lab, access: &Access, cloud: &Cloud) {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lab/probe.yaml");
    kubectl(lab, &["apply", "-f", manifest]);
    let pod = |arguments: &[&str]| {
        let namespaced = [&["--namespace=cobalt-system"], arguments].concat();
        kubectl(lab, &namespaced)
    };
    pod(&[
        "wait",
        "--for=condition=Ready",
        "pod/probe",
        "--timeout=120s",
    ]);
    let variables = pod(&["exec", "probe", "--", "env"]);
    let has = |name: &str, value: &str| {
        let line = format!("{name}={value}");
        variables.lines().any(|variable| variable == line)
    };
    assert!(has("OS_AUTH_URL", &access.auth_url), "{variables}");
    assert!(has("OS_PASSWORD", &access.password), "{variables}");
    assert!(!variables.contains("COBALT_"), "{variables}");
    for url in cloud.endpoints.values() {
        let place = url.trim_start_matches("http://").split('/').next().unwrap();
        let place = place.replace(':', " ");
        let ask = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 20 {place} | head -n 1");
        let answer = pod(&["exec", "probe", "--", "sh", "-c", &ask]);
        assert!(answer.starts_with("HTTP/1."), "{url}: {answer}");
    }
    pod(&["delete", "pod", "probe"]);
}

/// Waits until Nova sees all three hosts, and has just seen them.
async fn all_up(cloud: &Cloud) {
    let begun = cloud
        .get("compute", "/os-services?binary=nova-compute")
        .await;
    let reported = |services: &serde_json::Value| -> Vec<String> {
        let services = services["services"].as_array().unwrap().iter();
        services.map(|s| s["updated_at"].to_string()).collect()
    };
    let before = reported(&begun);
    until("all hosts report", || async {
        let now = cloud
            .get("compute", "/os-services?binary=nova-compute")
            .await;
        let fresh = reported(&now)
            .iter()
            .zip(&before)
            .all(|(new, old)| new != old);
        (fresh && cloud.hosts("up").await.len() == 3).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_wait_until_somebody_takes_hypervisors_into_service() {
    let share = share(&[LabConfig::region("charts", 1)]).await;
    let temporary = tempfile::tempdir().unwrap();
    // Does nothing: the test itself is the operator.
    let chart = temporary.path().join("hypervisor-operator");
    std::fs::create_dir(&chart).unwrap();
    std::fs::write(
        chart.join("Chart.yaml"),
        "apiVersion: v2\nname: hypervisor-operator\nversion: 0.1.0\n",
    )
    .unwrap();
    let name = format!("charts-{}", std::process::id());
    let up = tokio::process::Command::new(env!("CARGO_BIN_EXE_cobalt"))
        .args(["lab", "up", "--name", &name, "--nodes=1", "--servers=1"])
        .arg("--with=kube,hypervisors,openstack")
        .args(["--chart".as_ref(), chart.as_os_str()])
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    // However this ends, the lab goes with it.
    let paths = Paths::from_env().unwrap();
    let lab = until("the lab is there", || async {
        Lab::find(&paths, &name).ok()
    })
    .await;
    let lab = TestLab { lab, _share: share };
    let access = until("OpenStack is there", || async {
        lab.status().await.ok()?.access
    })
    .await;
    let cloud = Cloud::login(&access).await;
    until("the chart is installed", || async {
        let secrets = lab.client(REGION).await.ok()?;
        let secrets: kube::Api<Secret> = kube::Api::namespaced(secrets, "cobalt-system");
        secrets
            .get("sh.helm.release.v1.hypervisor-operator.v1")
            .await
            .ok()
    })
    .await;
    // Under test: enabled and in the zone, and still not for everybody.
    for aggregate in ["tenant_filter_tests", "lab-a"] {
        cloud.aggregate(aggregate, "add_host", "hv1").await;
    }
    let servers = cloud.get("compute", "/servers").await;
    assert_eq!(servers["servers"], json!([]));
    cloud
        .aggregate("tenant_filter_tests", "remove_host", "hv1")
        .await;
    let output = up.wait_with_output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("until 1 hypervisors are enabled in lab-a"),
        "{said}"
    );
    let servers = cloud.get("compute", "/servers").await;
    assert_eq!(servers["servers"][0]["name"], "vm1");
    lab.down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn openstack_starts_alone_and_drives_the_newer_release() {
    let mut config = LabConfig::empty("alone");
    config.ovn = true;
    config.openstack = Some(OpenStackConfig::default());
    let alone = lab(config.clone()).await;
    let access = alone.status().await.unwrap().access.unwrap();
    let cloud = Cloud::login(&access).await;
    assert_eq!(cloud.hosts("up").await, [""; 0]);
    // With it goes its share of the machine.
    drop(alone);

    let trixie = LabConfig::with_hypervisors("newer", &[Flavour::Trixie]);
    config.name = trixie.name;
    config.clusters = trixie.clusters;
    let newer = lab(config).await;
    let access = newer.status().await.unwrap().access.unwrap();
    let cloud = Cloud::login(&access).await;
    let id = cloud.boot("new", "hv1").await;
    let server = cloud.active(&id).await;
    until("it has an address", || async {
        let console = cloud.console(&id).await;
        console.contains(&server.address).then_some(())
    })
    .await;

    // Without its cell's database Nova answers, and does not know where the server is.
    let database = "openstack/nova-cell-database";
    newer.fault(Fault::Kill, database).await.unwrap();
    let seen = cloud.server(&id).await;
    assert_eq!((seen.status.as_str(), seen.host.as_str()), ("UNKNOWN", ""));
    newer.fault(Fault::Heal, database).await.unwrap();
    assert_eq!(cloud.active(&id).await.host, "hv1");
    newer.down().await.unwrap();
}
