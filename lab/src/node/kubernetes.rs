//! What differs between nodes, and Kubernetes' units: written into a node's own layer before
//! its first boot.

use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use super::NodeSpec;
use crate::cluster::{Cluster, NODE_GRACE_SECONDS};
use crate::command::run;
use crate::images::PAUSE;
use crate::pki::write_private;

/// Writes the node's directory.
pub async fn write(
    spec: &NodeSpec,
    cluster: &Cluster,
    hosts: &[(String, Ipv4Addr)],
    registry: &str,
) -> Result<()> {
    let upper = spec.dir.join("upper");
    for dir in ["upper/etc", "work", "root"] {
        let dir = spec.dir.join(dir);
        std::fs::create_dir_all(&dir)
            .with_context(|| format!("failed to make {}", dir.display()))?;
    }
    let (from, to) = (spec.tree.join("var"), spec.dir.join("var"));
    run("cp", ["-a".as_ref(), from.as_os_str(), to.as_os_str()]).await?;
    let address = spec.link.subnets.node(spec.link.index);
    let identity = cluster.pki.node(&spec.name, address.into())?;
    let proxy = cluster.pki.client("system:kube-proxy", "")?;
    let role = cluster.role.name();
    let etc = upper.join("etc");

    let put = |name: &str, content: &str| put(&etc, name, content);
    put("hostname", &format!("{}\n", spec.name))?;
    put("machine-id", &format!("{}\n", spec.uuid.replace('-', "")))?;
    let mut table = "127.0.0.1 localhost\n".to_owned();
    for (name, address) in hosts {
        table.push_str(&format!("{address} {name}\n"));
    }
    put("hosts", &table)?;
    put("kubernetes/ca.crt", &cluster.pki.ca_certificate())?;
    put("kubernetes/node.crt", &identity.certificate)?;
    put("kubernetes/node.key", &identity.key)?;
    put(
        "kubernetes/kubelet.conf",
        &cluster.pki.kubeconfig(role, &cluster.server, &identity),
    )?;
    put(
        "kubernetes/proxy.conf",
        &cluster.pki.kubeconfig(role, &cluster.server, &proxy),
    )?;
    put("kubernetes/kubelet.json", &kubelet(spec, address))?;
    put("kubernetes/proxy.json", &kube_proxy(spec))?;
    put("cni/net.d/10-lab.conflist", &cni(spec))?;
    put("containerd/config.toml", &containerd())?;
    // Every registry is the lab's own, so charts keep their image names.
    put(
        "containerd/certs.d/_default/hosts.toml",
        &format!(
            "server = \"http://{registry}\"\n[host.\"http://{registry}\"]\n  \
             capabilities = [\"pull\", \"resolve\"]\n"
        ),
    )?;
    put(
        "systemd/system/kubelet.service",
        &kubelet_unit(spec, address),
    )?;
    put("systemd/system/kube-proxy.service", KUBE_PROXY_UNIT)?;
    let wanted = etc.join("systemd/system/multi-user.target.wants");
    std::fs::create_dir_all(&wanted)
        .with_context(|| format!("failed to make {}", wanted.display()))?;
    for unit in ["kubelet.service", "kube-proxy.service"] {
        symlink(format!("/etc/systemd/system/{unit}"), wanted.join(unit))
            .with_context(|| format!("failed to enable {unit}"))?;
    }
    Ok(())
}

fn put(etc: &Path, name: &str, content: &str) -> Result<()> {
    let path = etc.join(name);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("failed to make {}", parent.display()))?;
    }
    if name.ends_with(".key") || name.ends_with(".conf") {
        return write_private(&path, content);
    }
    std::fs::write(&path, content).with_context(|| format!("failed to write {}", path.display()))
}

fn kubelet(spec: &NodeSpec, address: Ipv4Addr) -> String {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "address": address,
        "clusterDNS": [spec.link.subnets.service(10)],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "failSwapOn": false,
        "nodeLeaseDurationSeconds": NODE_GRACE_SECONDS,
        // Raising the score back needs a capability that not every machine grants.
        "oomScoreAdj": 0,
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": "/etc/kubernetes/ca.crt" },
        },
        "authorization": { "mode": "Webhook" },
        "tlsCertFile": "/etc/kubernetes/node.crt",
        "tlsPrivateKeyFile": "/etc/kubernetes/node.key",
        // The disk is the whole machine's: a nearly full one must not empty every node.
        "evictionHard": {
            "memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 99,
        "imageGCLowThresholdPercent": 98,
    })
    .to_string()
}

fn kube_proxy(spec: &NodeSpec) -> String {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": spec.name,
        "clusterCIDR": spec.link.subnets.pods(),
        "clientConnection": { "kubeconfig": "/etc/kubernetes/proxy.conf" },
        // The limits of the connection table are the machine's, not the node's.
        "conntrack": {
            "maxPerCore": 0, "min": 0,
            "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
        },
        "metricsBindAddress": "127.0.0.1:10249",
    })
    .to_string()
}

fn cni(spec: &NodeSpec) -> String {
    json!({
        "cniVersion": "0.4.0",
        "name": "lab",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
                "ipMasq": false, "mtu": 1500,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{ "subnet": spec.link.subnets.pods_of(spec.link.index) }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ],
    })
    .to_string()
}

fn containerd() -> String {
    format!(
        r#"version = 2
oom_score = 0
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"#
    )
}

fn kubelet_unit(spec: &NodeSpec, address: Ipv4Addr) -> String {
    let name = &spec.name;
    format!(
        "[Unit]\nDescription=kubelet\nWants=containerd.service\nAfter=containerd.service\n\
         StartLimitIntervalSec=0\n\
         [Service]\n\
         ExecStart=/opt/kubernetes/kubelet --config=/etc/kubernetes/kubelet.json \
         --kubeconfig=/etc/kubernetes/kubelet.conf --hostname-override={name} \
         --node-ip={address}\n\
         Restart=always\nRestartSec=1\nKillMode=process\n\
         [Install]\nWantedBy=multi-user.target\n"
    )
}

const KUBE_PROXY_UNIT: &str = "[Unit]\nDescription=kube-proxy\nStartLimitIntervalSec=0\n\
    [Service]\nExecStart=/opt/kubernetes/kube-proxy --config=/etc/kubernetes/proxy.json\n\
    Restart=always\nRestartSec=1\n\
    [Install]\nWantedBy=multi-user.target\n";
