//! BMCs: the power of nodes over Redfish.

use cobalt_lab::LabConfig;
use serde_json::{Value, json};

use crate::cloud::{http, until};
use crate::{lab, wait_for_ready};

#[tokio::test(flavor = "multi_thread")]
async fn a_bmc_switches_its_node() {
    let mut config = LabConfig::with_nodes("bmc", 1);
    config.bmc = true;
    let lab = lab(config).await;
    let status = lab.status().await.unwrap();
    let url = status.nodes[0].bmc.clone().unwrap();
    let own = url.replace("http://", "http://admin:password@");
    let power = || async {
        let system = http("GET", &own, None).await.unwrap();
        system["PowerState"].as_str().map(ToOwned::to_owned)
    };
    assert_eq!(power().await.as_deref(), Some("On"));
    let refused = http("GET", &url, None).await.unwrap_err();
    assert!(refused.contains("401"), "{refused}");

    let reset = |kind: &str| {
        let url = format!("{own}/Actions/ComputerSystem.Reset");
        let body: Value = json!({ "ResetType": kind });
        async move { http("POST", &url, Some(body)).await }
    };
    reset("ForceOff").await.unwrap();
    until("it is off", || async {
        (power().await.as_deref() == Some("Off")).then_some(())
    })
    .await;
    assert!(!lab.status().await.unwrap().nodes[0].observed.on);
    reset("On").await.unwrap();
    until("it has booted", || async {
        let node = lab.status().await.unwrap().nodes[0].observed.clone();
        (node.booted && node.boots == 2).then_some(())
    })
    .await;
    wait_for_ready(&lab, "n1", "True").await;
    reset("GracefulRestart").await.unwrap();
    until("it has booted again", || async {
        let node = lab.status().await.unwrap().nodes[0].observed.clone();
        (node.booted && node.boots == 3).then_some(())
    })
    .await;
    let nonsense = reset("Explode").await.unwrap_err();
    assert!(
        nonsense.contains("400") || nonsense.contains("501"),
        "{nonsense}"
    );
    lab.down().await.unwrap();
}
