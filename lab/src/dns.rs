//! The cluster's DNS and its default storage class: what pods expect of any cluster.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command::{Run, patience};
use crate::images::COREDNS;

const MANIFEST: &str = include_str!("addons.yaml");

/// Applies them. Pods run as soon as there is a node.
pub async fn apply(bin: &Path, kubeconfig: &Path, address: Ipv4Addr) -> Result<()> {
    let manifest = MANIFEST
        .replace("{{address}}", &address.to_string())
        .replace("{{image}}", COREDNS);
    kubectl(bin, kubeconfig, &["apply", "--server-side", "-f", "-"])
        .input(manifest)
        .output()
        .await
        .context("failed to apply the cluster's add-ons")
        .map(drop)
}

/// Waits until names resolve.
pub async fn wait(bin: &Path, kubeconfig: &Path) -> Result<()> {
    let timeout = format!(
        "--timeout={}s",
        patience(Duration::from_secs(120)).as_secs()
    );
    let wait = [
        "-n",
        "kube-system",
        "rollout",
        "status",
        "deployment/coredns",
        &timeout,
    ];
    kubectl(bin, kubeconfig, &wait)
        .deadline(Duration::from_secs(130))
        .output()
        .await
        .context("the cluster's DNS did not become ready")
        .map(drop)
}

fn kubectl(bin: &Path, kubeconfig: &Path, arguments: &[&str]) -> Run {
    Run::new(&bin.join("kubectl").to_string_lossy(), arguments).env("KUBECONFIG", kubeconfig)
}
