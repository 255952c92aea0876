//! The TLS material of libvirt: from this node's Secret into the PKI folder, and in use.
//!
//! The Secret is checked before a file is touched (`material`), written (`files`), libvirtd is told,
//! and a handshake shows whether it serves the new certificate (`verify`). Only then the condition
//! is True. `install` does these in turn, whenever something changes. `certificate` asks
//! cert-manager for the Secret where the Hypervisor says so.

pub mod certificate;
pub mod files;
mod install;
pub mod material;
pub mod verify;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use cobalt_api::conditions::HypervisorCondition;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::install::Installer;
use crate::context::Context;
use crate::secrets::{SecretsAccess, watch_secret};

const CONDITION: HypervisorCondition = HypervisorCondition::TlsCertificateInstalled;

/// How TLS material is installed.
#[derive(Debug, Clone)]
pub struct TlsConfig {
    /// The PKI folder; without it nothing is installed.
    pub pki_path: Option<PathBuf>,
    /// The group that QEMU runs with; without it the group of the folder `qemu` decides.
    pub qemu_group: Option<u32>,
    /// The socket of libvirt's administration.
    pub admin_socket: PathBuf,
    /// Where libvirtd listens with TLS.
    pub tls_address: SocketAddr,
    /// The address of the host.
    pub host_ip: Option<IpAddr>,
    /// The issuer that is asked for a certificate.
    pub issuer_name: String,
}

/// The node's Secret.
#[must_use]
pub fn secret_name(node: &str) -> String {
    format!("tls-libvirt-{node}")
}

/// The Secret that a certificate came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SecretLabels {
    /// There is one per node.
    pub secret: String,
}

/// Counters and gauges. A clone counts into the same.
#[derive(Debug, Clone, Default)]
pub struct TlsMetrics {
    /// When the certificate in the Secret ends. Absent while there is none.
    pub expiry: Family<SecretLabels, Gauge>,
    /// Certificates that were written.
    pub installs: Counter,
    /// Times that the certificate was found unusable or not in use.
    pub failures: Counter,
}

impl TlsMetrics {
    /// Makes them visible.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "cobalt_node_agent_tls_certificate_expiry_timestamp_seconds",
            "When the TLS certificate of libvirt ends",
            self.expiry.clone(),
        );
        registry.register(
            "cobalt_node_agent_tls_installs",
            "TLS certificates that were written for libvirt",
            self.installs.clone(),
        );
        registry.register(
            "cobalt_node_agent_tls_failures",
            "Failures to install the TLS certificate of libvirt or to see it in use",
            self.failures.clone(),
        );
    }
}

/// Runs until it is cancelled.
pub async fn run(
    ctx: Context,
    config: TlsConfig,
    access: SecretsAccess,
    metrics: TlsMetrics,
    cancel: CancellationToken,
) {
    let (trouble, asking) = watch::channel(None);
    let asking_for_it = certificate::run(&ctx, &config, trouble);
    let installing = async {
        let Some(pki) = config.pki_path.clone() else {
            ctx.conditions.remove(CONDITION);
            return std::future::pending().await;
        };
        let (watching, secret) = watch_secret(&access, &ctx.namespace, &secret_name(&ctx.node));
        let installer = Installer::new(&ctx, &config, pki, &metrics);
        tokio::join!(watching, installer.run(secret, asking));
    };
    tokio::select! {
        ((), ()) = async { tokio::join!(asking_for_it, installing) } => {}
        () = cancel.cancelled() => {}
    }
}
