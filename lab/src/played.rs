//! Played nodes: Node objects and leases without a machine. The lab plays their kubelets, so
//! that a test can have thousands. They run no pods, and nothing else about them is real.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

const MANAGER: &str = "cobalt-lab-played-kubelet";
const LEASES: &str = "kube-node-lease";
/// As the kubelet does it.
const RENEW: Duration = Duration::from_secs(10);
const PARALLEL: usize = 16;

/// Makes `count` Ready nodes named `PREFIX-1` and on, each with a lease.
pub async fn create(client: &kube::Client, prefix: &str, count: u32) -> Result<()> {
    // Without a controller-manager nobody makes this namespace in time.
    let namespaces: kube::Api<Namespace> = kube::Api::all(client.clone());
    let namespace = serde_json::from_value(json!({ "metadata": { "name": LEASES } }))?;
    match namespaces.create(&PostParams::default(), &namespace).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
        result => drop(result.context("failed to make the namespace of leases")?),
    }
    stream::iter((1..=count).map(Ok))
        .try_for_each_concurrent(PARALLEL, |index| {
            let name = format!("{prefix}-{index}");
            async move {
                play(client, &name).await?;
                renew(client, &name).await
            }
        })
        .await
}

/// Renews the leases of all nodes for ever, spread over the interval.
pub async fn keep(client: kube::Client, prefix: String, count: u32) {
    let mut tick = tokio::time::interval(RENEW);
    loop {
        tick.tick().await;
        stream::iter(1..=count)
            .for_each_concurrent(PARALLEL, |index| {
                let (client, name) = (client.clone(), format!("{prefix}-{index}"));
                async move {
                    // A kubelet that cannot reach the API server tries again later, too.
                    if let Err(error) = renew(&client, &name).await {
                        tracing::warn!(node = name, error = format!("{error:#}"), "no renewal");
                    }
                }
            })
            .await;
    }
}

async fn play(client: &kube::Client, name: &str) -> Result<()> {
    let nodes: kube::Api<Node> = kube::Api::all(client.clone());
    let params = PatchParams::apply(MANAGER).force();
    let node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name, "labels": {
            "kubernetes.io/hostname": name,
            "lab.cobaltcore.dev/played": "true",
        }},
    });
    nodes
        .patch(name, &params, &Patch::Apply(&node))
        .await
        .with_context(|| format!("failed to make the node {name}"))?;
    let now = jiff::Timestamp::now()
        .round(jiff::Unit::Second)?
        .to_string();
    let status = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name },
        "status": {
            "capacity": { "cpu": "64", "memory": "512Gi", "pods": "110" },
            "allocatable": { "cpu": "64", "memory": "512Gi", "pods": "110" },
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Played",
                "message": "the lab plays this node's kubelet",
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }],
        },
    });
    nodes
        .patch_status(name, &params, &Patch::Apply(&status))
        .await
        .with_context(|| format!("failed to set the status of the node {name}"))?;
    Ok(())
}

async fn renew(client: &kube::Client, name: &str) -> Result<()> {
    let leases: kube::Api<Lease> = kube::Api::namespaced(client.clone(), LEASES);
    let now = jiff::Timestamp::now().round(jiff::Unit::Microsecond)?;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": name, "namespace": LEASES },
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": crate::cluster::NODE_GRACE_SECONDS,
            "renewTime": format!("{now:.6}"),
        },
    });
    leases
        .patch(
            name,
            &PatchParams::apply(MANAGER).force(),
            &Patch::Apply(&lease),
        )
        .await
        .with_context(|| format!("failed to renew the lease of {name}"))?;
    Ok(())
}
