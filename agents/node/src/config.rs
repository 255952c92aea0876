//! The flags of the agent. Each has an environment variable; those of the deployed agent keep
//! their names, so that its DaemonSet can be swapped.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use cobalt_api::hypervisor::HaPolicy;
use cobalt_libvirt::Uri;
use cobalt_runtime::flags::{Listen, listen, some_path, some_text};
use cobalt_runtime::logging::LogArgs;

const EXAMPLE: &str = "\
Examples:
  # On a host with libvirt, against the cluster of the current kubeconfig
  cobalt-node-agent --node hv1 --namespace cobalt-system

  # Cloud Hypervisor, through libvirt's TCP port
  cobalt-node-agent --node hv1 --libvirt-uri ch+tcp://127.0.0.1:16509/system

It starts and stays up without libvirt, systemd, its Hypervisor object or the API server;
http://:8081/readyz says what is missing.";

/// Tells the fleet what runs on this node, follows its migrations and reacts to failing instances
#[derive(Debug, Clone, Parser)]
#[command(name = "cobalt-node-agent", version, after_help = EXAMPLE)]
pub struct Config {
    /// The name of this node, which is also the name of its Hypervisor
    #[arg(long, env = "HOSTNAME", value_parser = node_name)]
    pub node: String,

    /// What Migrations call this host. Empty: the name of the node
    #[arg(long, env = "NODE_LABEL", default_value = "")]
    pub node_label: String,

    /// Where Migrations are written and the node's Secrets are read
    #[arg(long, env = "NAMESPACE", default_value = "monsoon3", value_parser = some_text)]
    pub namespace: String,

    /// This process, if several agents may run for one node [default: a random one]
    #[arg(long, env = "POD_NAME", value_parser = some_text)]
    pub identity: Option<String>,

    /// libvirt, for example qemu+unix:///system or ch+tcp://127.0.0.1:16509/system
    #[arg(long, env = "LIBVIRT_DEFAULT_URI", default_value = "ch:///system")]
    pub libvirt_uri: Uri,

    /// The socket of a local libvirt, when the URI does not name one
    #[arg(
        long,
        env = "LIBVIRT_SOCKET",
        default_value = "/run/libvirt/libvirt-sock"
    )]
    pub libvirt_socket: PathBuf,

    /// The socket of libvirt's administration, through which it reloads its certificates
    #[arg(
        long,
        env = "LIBVIRT_ADMIN_SOCKET",
        default_value = "/run/libvirt/libvirt-admin-sock"
    )]
    pub libvirt_admin_socket: PathBuf,

    /// How long one call to libvirt may take
    #[arg(long, env = "LIBVIRT_TIMEOUT", default_value = "15s", value_parser = duration)]
    pub libvirt_timeout: Duration,

    /// How often everything is read again although no event came
    #[arg(long, env = "RESYNC_INTERVAL", default_value = "10m", value_parser = duration)]
    pub resync_interval: Duration,

    /// The bus of systemd and logind
    #[arg(
        long,
        env = "DBUS_SYSTEM_BUS_ADDRESS",
        default_value = "unix:path=/run/dbus/system_bus_socket"
    )]
    pub bus_address: String,

    /// The host's os-release file, for hosts whose hostnamed does not tell (systemd before 256)
    #[arg(long, env = "OS_RELEASE")]
    pub os_release: Option<PathBuf>,

    /// How long to wait before a failed update of the operating system is tried again
    #[arg(long, env = "UPDATE_RETRY_INTERVAL", default_value = "30s", value_parser = duration)]
    pub update_retry_interval: Duration,

    /// How long logind shall let a shutdown wait for instances to leave, at least: the agent writes
    /// InhibitDelayMaxSec on the host [default: as the host is configured]
    #[arg(long, env = "SHUTDOWN_DELAY", value_parser = duration)]
    pub shutdown_delay: Option<Duration>,

    /// The folder of logind's drop-in files, where that is written
    #[arg(
        long,
        env = "LOGIND_FOLDER",
        default_value = "/etc/systemd/logind.conf.d"
    )]
    pub logind_folder: PathBuf,

    /// The folder of the TLS material; without it none is installed
    #[arg(long, env = "PKI_PATH", value_parser = some_path)]
    pub pki_path: Option<PathBuf>,

    /// The group that QEMU runs with, which has to read its keys [default: the group of PKI/qemu]
    #[arg(long, env = "QEMU_GROUP", value_name = "GID")]
    pub qemu_group: Option<u32>,

    /// Where libvirt listens with TLS, to see that new certificates are in use
    #[arg(long, env = "LIBVIRT_TLS_ADDRESS", default_value = "127.0.0.1:16514")]
    pub libvirt_tls_address: SocketAddr,

    /// The address of the host in a certificate that is asked for
    #[arg(long, env = "HOST_IP_ADDRESS")]
    pub host_ip: Option<IpAddr>,

    /// The issuer of cert-manager that is asked for a certificate
    #[arg(
        long,
        env = "ISSUER_NAME",
        default_value = "nova-hypervisor-agents-ca-issuer"
    )]
    pub issuer_name: String,

    /// What the name of the ServiceAccount that may read this node's Secrets has before the name of
    /// the node. Empty: the agent's own account reads them
    #[arg(long, env = "SECRETS_ACCOUNT_PREFIX", default_value = "")]
    pub secrets_account_prefix: String,

    /// The Secret with Ceph's key for libvirt; without it none is installed
    #[arg(long, env = "CEPH_SECRET_NAME", value_parser = some_text)]
    pub ceph_secret_name: Option<String>,

    /// By which instances name that key (rbd_secret_uuid of Nova), where the Secret does not say
    #[arg(long, env = "CEPH_SECRET_UUID")]
    pub ceph_secret_uuid: Option<uuid::Uuid>,

    /// How often the heartbeat Lease is renewed
    #[arg(long, env = "LEASE_RENEW_INTERVAL", default_value = "10s", value_parser = duration)]
    pub lease_renew_interval: Duration,

    /// How long a heartbeat is good for
    #[arg(long, env = "LEASE_DURATION", default_value = "40s", value_parser = duration)]
    pub lease_duration: Duration,

    /// What happens to a failed instance when neither it nor the Hypervisor says
    #[arg(long, env = "HA_POLICY", default_value = "notify")]
    pub ha_policy: HaPolicy,

    /// How many restarts of an instance within the window are tried before it is evicted
    #[arg(long, env = "HA_RESTARTS", default_value_t = 3)]
    pub ha_restarts: u32,

    /// The window in which restarts are counted
    #[arg(long, env = "HA_WINDOW", default_value = "10m", value_parser = duration)]
    pub ha_window: Duration,

    /// How many instances may fail within the window before the host is to blame, and nothing is
    /// done to single instances any more
    #[arg(long, env = "HA_BRAKE", default_value_t = 5)]
    pub ha_brake: u32,

    /// How often the object of a running migration is written
    #[arg(long, env = "MIGRATION_WRITE_INTERVAL", default_value = "5s", value_parser = duration)]
    pub migration_write_interval: Duration,

    /// How long Migrations are kept after their end
    #[arg(long, env = "MIGRATION_TTL", default_value = "24h", value_parser = duration)]
    pub migration_ttl: Duration,

    /// Where metrics are served; 0 is nowhere
    #[arg(long, env = "METRICS_BIND_ADDRESS", default_value = ":9177", value_parser = listen)]
    pub metrics_bind_address: Listen,

    /// Where health is served; 0 is nowhere
    #[arg(long, env = "HEALTH_PROBE_BIND_ADDRESS", default_value = ":8081", value_parser = listen)]
    pub health_probe_bind_address: Listen,

    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}

fn duration(text: &str) -> Result<Duration, String> {
    match cobalt_api::duration::parse(text) {
        Ok(duration) if duration >= Duration::from_millis(100) => Ok(duration),
        Ok(_) => Err("it has to be at least 100ms".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// A name that Kubernetes would accept for a Node.
fn node_name(text: &str) -> Result<String, String> {
    let label = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && part.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && part
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    if text.len() <= 253 && text.split('.').all(label) {
        Ok(text.to_owned())
    } else {
        Err("it is not the name of a Node: set --node or HOSTNAME to what `kubectl get nodes` shows".to_owned())
    }
}

impl Config {
    /// What Migrations call this host.
    #[must_use]
    pub fn node_label(&self) -> &str {
        // The variable comes from a label of the pod, which may be missing.
        match self.node_label.trim() {
            "" => &self.node,
            label => label,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Config, String> {
        let all = std::iter::once("cobalt-node-agent").chain(arguments.iter().copied());
        Config::try_parse_from(all).map_err(|error| error.to_string())
    }

    #[test]
    fn the_flags_are_sound() {
        use clap::CommandFactory;
        Config::command().debug_assert();
    }

    #[test]
    fn bad_values_are_refused_with_a_remedy() {
        for (arguments, remedy) in [
            (["--node", "HV1"], "kubectl get nodes"),
            (["--resync-interval", "soon"], "write it like 90m"),
            (["--resync-interval", "0s"], "at least 100ms"),
            (["--ha-policy", "pray"], "HaPolicy"),
            (["--namespace", " "], "leave it out"),
        ] {
            let error = parse(&[&["--node", "hv1"][..], &arguments[..]].concat())
                .or_else(|_| parse(&arguments))
                .unwrap_err();
            assert!(error.contains(remedy), "{arguments:?}: {error}");
        }
    }
}
