//! A host is emptied for real: QEMU guests, libvirt and OVN, and guests that count while they move.

use cobalt_api::eviction::{Eviction, InstanceState, Outcome};
use cobalt_api::hypervisor::Phase;
use cobalt_openstack::compute::{NewServer, NewServerNetworks, RootDisk, ServerStatus};
use kube::runtime::wait::await_condition;
use serde_json::json;

use crate::cloud::{NODES, region};
use crate::support::{PATIENCE, Site, until};

/// The numbers that a guest's console shows, in order.
fn ticks(console: &str) -> Vec<u32> {
    console
        .lines()
        .filter_map(|line| line.trim().strip_prefix("tick ")?.parse().ok())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn guests_count_on_while_their_host_is_emptied() {
    let _nodes = NODES.lock().await;
    let (cloud, kubeconfig) = region("drain").await;
    let site = Site::in_cluster(cloud, kubeconfig).await;
    let _operator = site.operator_of("", &["--skip-tests"], &[]);
    let hosts = ["hv1", "hv2"];
    for host in hosts {
        site.fake_agent(host);
    }
    for host in hosts {
        site.phase(host, Phase::Active).await;
    }
    let client = cloud.client();
    let compute = client.compute();
    let image = client.find_image("lab-linux").await.unwrap().unwrap();
    let network = client.find_network("lab").await.unwrap().unwrap();
    let mut servers = Vec::new();
    for number in 0..3 {
        let new = NewServer {
            name: format!("counter-{number}"),
            flavor: compute.find_flavor("m1.lab").await.unwrap().unwrap().id,
            root: RootDisk::Image(image.id.clone()),
            networks: NewServerNetworks::Networks(vec![network.id.clone()]),
            host: Some("hv1".to_owned()),
            availability_zone: None,
            metadata: [].into(),
        };
        servers.push(compute.create_server(&new).await.unwrap());
    }
    let mut before = Vec::new();
    for id in &servers {
        let counted = until("it counts", || async {
            let server = compute.server(id).await.unwrap();
            assert_ne!(server.status, ServerStatus::Error, "{:?}", server.fault);
            if server.status != ServerStatus::Active {
                return None;
            }
            let counted = ticks(&compute.console_output(id, 200).await.unwrap());
            counted.last().copied().filter(|last| *last > 3)
        })
        .await;
        before.push(counted);
    }

    let wish = json!({ "spec": { "maintenance": "manual", "maintenanceReason": "a new fan" } });
    site.patch("hv1", wish).await;
    let over = await_condition(site.evictions(), "hv1", |object: Option<&Eviction>| {
        let status = object.and_then(|object| object.status.as_ref());
        status.is_some_and(|status| status.outcome.is_some())
    });
    let over = tokio::time::timeout(PATIENCE * 2, over).await.unwrap();
    let status = over.unwrap().unwrap().status.unwrap();
    assert_eq!(status.outcome, Some(Outcome::Succeeded), "{status:#?}");
    assert_eq!(status.instances.len(), 3);
    assert!(
        status
            .instances
            .iter()
            .all(|row| row.state == InstanceState::Moved)
    );

    for (id, before) in servers.iter().zip(before) {
        let server = compute.server(id).await.unwrap();
        assert_eq!(server.status, ServerStatus::Active);
        assert_ne!(server.host.as_deref(), Some("hv1"));
        // Its console begins anew on the other host, in the middle of the count.
        let counted = until("it counts on", || async {
            let counted = ticks(&compute.console_output(id, 200).await.unwrap());
            (counted.len() > 3).then_some(counted)
        })
        .await;
        let whole = counted.windows(2).all(|pair| pair[1] == pair[0] + 1);
        assert!(
            counted[0] > before && whole,
            "{before} and then {counted:?}"
        );
    }
    site.phase("hv1", Phase::Maintenance).await;
    cloud.down().await;
}
