//! Nodes and processes are broken, and come back.

use cobalt_lab::control::Fault;
use cobalt_lab::node::Power;
use cobalt_lab::report::Report;
use cobalt_lab::{Lab, LabConfig};

use crate::{cobalt_ok, inside, kubectl, lab, name, wait_for_ready};

fn boot_id(lab: &Lab) -> String {
    let id = "jsonpath={.status.nodeInfo.bootID}";
    kubectl(lab, &["get", "node", "n1", "-o", id])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_cut_killed_or_crashed_comes_back() {
    let lab = lab(LabConfig::with_nodes("faults", 2)).await;
    let boot_id = || boot_id(&lab);
    let silent = Report::silent();

    // Cut: the node lives on, the cluster cannot see it.
    let before = boot_id();
    lab.fault(Fault::Cut, "n1").await.unwrap();
    wait_for_ready(&lab, "n1", "Unknown").await;
    lab.fault(Fault::Heal, "n1").await.unwrap();
    wait_for_ready(&lab, "n1", "True").await;
    assert_eq!(boot_id(), before, "a cut cable is no reboot");

    // Stopped: every process of the node hangs.
    lab.fault(Fault::Stop, "n1").await.unwrap();
    wait_for_ready(&lab, "n1", "Unknown").await;
    lab.fault(Fault::Cont, "n1").await.unwrap();
    wait_for_ready(&lab, "n1", "True").await;

    // Power loss: gone without a word.
    lab.power("n1", Power::Loss, &silent).await.unwrap();
    let status = lab.status().await.unwrap();
    assert!(!status.nodes[0].observed.on);
    assert_eq!(status.nodes[0].observed.last_end.as_deref(), Some("crash"));
    wait_for_ready(&lab, "n1", "Unknown").await;
    lab.power("n1", Power::On, &silent).await.unwrap();
    let after_loss = boot_id();
    assert_ne!(after_loss, before, "a new boot has a new id");

    // Orderly: the node itself says that it goes down.
    lab.power("n1", Power::Reboot, &silent).await.unwrap();
    assert_ne!(boot_id(), after_loss);
    lab.power("n1", Power::Off, &silent).await.unwrap();
    let status = lab.status().await.unwrap();
    assert_eq!(status.nodes[0].observed.last_end.as_deref(), Some("off"));
    inside::nobody_enters_too_early(&lab, "n1", async {
        lab.power("n1", Power::On, &silent).await.unwrap();
    })
    .await;
    let journal = ["lab", "exec", "--name", name(&lab), "n1", "--"];
    let boots = [&journal[..], &["journalctl", "--list-boots", "--no-pager"]].concat();
    assert!(
        cobalt_ok(&boots).lines().count() >= 3,
        "the journal survives"
    );
    lab.down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_can_switch_itself_off_and_on_again() {
    let lab = lab(LabConfig::with_nodes("self", 1)).await;
    let boots = || async { lab.status().await.unwrap().nodes[0].observed.boots };
    assert_eq!(boots().await, 1);
    inside::nothing_gets_out(&lab, "n1").await;
    let before = boot_id(&lab);
    cobalt_ok(&[
        "lab",
        "exec",
        "--name",
        name(&lab),
        "n1",
        "--",
        "systemctl",
        "reboot",
    ]);
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(
        lab.client(cobalt_lab::cluster::Role::Hypervisor)
            .await
            .unwrap(),
    );
    let rebooted = |node: Option<&k8s_openapi::api::core::v1::Node>| {
        let info = node.and_then(|node| node.status.as_ref()?.node_info.as_ref());
        info.is_some_and(|info| info.boot_id != before)
    };
    let waiting = kube::runtime::wait::await_condition(nodes, "n1", rebooted);
    tokio::time::timeout(std::time::Duration::from_secs(120), waiting)
        .await
        .unwrap()
        .unwrap();
    wait_for_ready(&lab, "n1", "True").await;
    assert_eq!(boots().await, 2);
    lab.down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_process_can_be_killed_and_healed() {
    let mut config = cobalt_lab::LabConfig::api_only("control");
    config.clusters[0].controllers = true;
    let lab = cobalt_lab::testing::lab(config).await.unwrap();
    kubectl(&lab, &["create", "namespace", "kept"]);
    for target in ["hypervisor/etcd", "hypervisor/apiserver"] {
        lab.fault(Fault::Kill, target).await.unwrap();
        lab.fault(Fault::Heal, target).await.unwrap();
    }
    let again = || async {
        let client = lab.client(cobalt_lab::cluster::Role::Hypervisor).await?;
        client
            .request_text(cobalt_lab::cluster::http_get("/readyz")?)
            .await?;
        anyhow::Ok(())
    };
    let mut last = again().await;
    for _ in 0..600 {
        if last.is_ok() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        last = again().await;
    }
    last.unwrap();
    kubectl(&lab, &["get", "namespace", "kept"]);
    lab.down().await.unwrap();
}
