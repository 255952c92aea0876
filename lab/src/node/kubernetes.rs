//! What makes a machine a node of Kubernetes: containerd, kubelet, kube-proxy.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use serde_json::json;

use super::NodeSpec;
use super::files::Layer;
use crate::access::REGION;
use crate::cluster::{Cluster, NODE_GRACE_SECONDS};
use crate::images::PAUSE;
use crate::net::PodRoutes;
use crate::openstack::ZONE;
use crate::plan::Kind;

/// Where nodes find the Kubernetes programs.
pub const PROGRAMS: &str = "opt/kubernetes";

/// Where the volumes of all nodes of a cluster are.
pub const VOLUMES: &str = "tmp/hostpath_pv";

/// Writes it.
pub fn write(layer: &Layer, spec: &NodeSpec, cluster: &Cluster, registry: &str) -> Result<()> {
    let routes = spec
        .link
        .pods
        .as_ref()
        .context("a node of Kubernetes without pods")?;
    let own_pods = routes.subnets.pods_of(
        routes
            .own
            .context("a node of Kubernetes without a number")?,
    );
    let address = spec.link.address;
    let identity = cluster.pki.node(&spec.name, address.into())?;
    let proxy = cluster.pki.client("system:kube-proxy", "")?;
    let role = cluster.role.name();
    layer.put("etc/kubernetes/ca.crt", &cluster.pki.ca_certificate())?;
    layer.put("etc/kubernetes/node.crt", &identity.certificate)?;
    layer.secret("etc/kubernetes/node.key", &identity.key)?;
    layer.secret(
        "etc/kubernetes/kubelet.conf",
        &cluster.pki.kubeconfig(role, &cluster.server, &identity),
    )?;
    layer.secret(
        "etc/kubernetes/proxy.conf",
        &cluster.pki.kubeconfig(role, &cluster.server, &proxy),
    )?;
    layer.put("etc/kubernetes/kubelet.json", &kubelet(routes, address))?;
    layer.put("etc/kubernetes/proxy.json", &kube_proxy(spec, routes))?;
    layer.put("etc/cni/net.d/10-lab.conflist", &cni(&own_pods))?;
    layer.put("etc/containerd/config.toml", &containerd())?;
    // Every registry is the lab's own, so charts keep their image names.
    layer.put(
        "etc/containerd/certs.d/_default/hosts.toml",
        &format!(
            "server = \"http://{registry}\"\n[host.\"http://{registry}\"]\n  \
             capabilities = [\"pull\", \"resolve\"]\n"
        ),
    )?;
    layer.put(
        "etc/systemd/system/kubelet.service",
        &kubelet_unit(spec, address),
    )?;
    layer.put("etc/systemd/system/kube-proxy.service", KUBE_PROXY_UNIT)?;
    layer.enable(&[
        "containerd.service",
        "kubelet.service",
        "kube-proxy.service",
    ])
}

fn kubelet(routes: &PodRoutes, address: Ipv4Addr) -> String {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "address": address,
        "clusterDNS": [routes.subnets.service(10)],
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

fn kube_proxy(spec: &NodeSpec, routes: &PodRoutes) -> String {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": spec.name,
        "clusterCIDR": routes.subnets.pods(),
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

fn cni(pods: &str) -> String {
    json!({
        "cniVersion": "0.4.0",
        "name": "lab",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
                "ipMasq": false, "mtu": 1500,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{ "subnet": pods }]],
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
    let labels = match spec.kind {
        Kind::Hypervisor => format!(" --node-labels={}", hypervisor_labels()),
        _ => String::new(),
    };
    format!(
        "[Unit]\nDescription=kubelet\nWants=containerd.service\nAfter=containerd.service\n\
         StartLimitIntervalSec=0\n\
         [Service]\n\
         ExecStart=/opt/kubernetes/kubelet --config=/etc/kubernetes/kubelet.json \
         --kubeconfig=/etc/kubernetes/kubelet.conf --hostname-override={name} \
         --node-ip={address}{labels}\n\
         Restart=always\nRestartSec=1\nKillMode=process\n\
         [Install]\nWantedBy=multi-user.target\n"
    )
}

/// As whoever provisions machines gives them: components find hypervisors by the first, the second
/// lets them be taken into service, and the rest say where they are.
fn hypervisor_labels() -> String {
    let labels = [
        ("nova.openstack.cloud.sap/virt-driver", "libvirt"),
        ("cobaltcore.cloud.sap/node-hypervisor-lifecycle", "true"),
        ("topology.kubernetes.io/zone", ZONE),
        ("topology.kubernetes.io/region", REGION),
    ];
    labels
        .map(|(key, value)| format!("{key}={value}"))
        .join(",")
}

const KUBE_PROXY_UNIT: &str = "[Unit]\nDescription=kube-proxy\nStartLimitIntervalSec=0\n\
    [Service]\nExecStart=/opt/kubernetes/kube-proxy --config=/etc/kubernetes/proxy.json\n\
    Restart=always\nRestartSec=1\n\
    [Install]\nWantedBy=multi-user.target\n";
