//! The flags of the agent. Each has an environment variable.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser};
use cobalt_ovs::{Identity, Remote};
use cobalt_runtime::flags::{Listen, listen, some_path, some_text};
use cobalt_runtime::logging::LogArgs;

use crate::diagnostics::capture::Limits;
use crate::settings::Settings;

const EXAMPLE: &str = "\
Examples:
  # On a host with Open vSwitch, against the cluster of the current kubeconfig
  cobalt-ovs-agent --node hv1 --namespace ovn-system

  # An OVN whose databases want certificates
  cobalt-ovs-agent --node hv1 --southbound-ca /pki/ca.crt \\
    --southbound-certificate /pki/tls.crt --southbound-key /pki/tls.key

It starts and stays up without Open vSwitch, OVN or the API server;
http://:8082/readyz says what is missing.";

/// Tells the fleet how Open vSwitch and OVN are doing on this node
#[derive(Debug, Clone, Parser)]
#[command(name = "cobalt-ovs-agent", version, after_help = EXAMPLE)]
pub struct Config {
    /// The name of this node, which is also the name of its OVSNode
    #[arg(long, env = "NODE_NAME", value_parser = node_name)]
    pub node: String,

    /// Where the OVSNode is
    #[arg(long, env = "NAMESPACE", default_value = "ovn-system", value_parser = some_text)]
    pub namespace: String,

    /// The folder of Open vSwitch's sockets and pidfiles
    #[arg(long, env = "OVS_RUNDIR", default_value = "/run/openvswitch", value_parser = some_path)]
    pub ovs_rundir: PathBuf,

    /// The folder of ovn-controller's socket and pidfile
    #[arg(long, env = "OVN_RUNDIR", default_value = "/run/ovn", value_parser = some_path)]
    pub ovn_rundir: PathBuf,

    /// The local database [default: unix:OVS_RUNDIR/db.sock]
    #[arg(long, env = "OVSDB", value_name = "REMOTE")]
    pub ovsdb: Option<Remote>,

    /// Certificates for the southbound database.
    #[command(flatten)]
    pub southbound: SouthboundArgs,

    /// How often a daemon is asked whether it answers
    #[arg(long, env = "PROBE_INTERVAL", default_value = "5s", value_parser = duration)]
    pub probe_interval: Duration,

    /// How often flows are read; a switch with so many that this takes long is read less often
    #[arg(long, env = "FLOW_INTERVAL", default_value = "10s", value_parser = duration)]
    pub flow_interval: Duration,

    /// A folder with a file for each setting that shall be other than its flag, such as a mounted
    /// ConfigMap: refresh-interval, answer-timeout ... Changes are taken without a restart
    #[arg(long, env = "SETTINGS_DIR", value_name = "FOLDER", value_parser = some_path)]
    pub settings_dir: Option<PathBuf>,

    /// Refresh and thresholds.
    #[command(flatten)]
    pub settings: SettingsArgs,

    /// Where metrics are served; 0 is nowhere
    #[arg(long, env = "METRICS_BIND_ADDRESS", default_value = ":9475", value_parser = listen)]
    pub metrics_bind_address: Listen,

    /// Where health is served; 0 is nowhere
    #[arg(long, env = "HEALTH_PROBE_BIND_ADDRESS", default_value = ":8082", value_parser = listen)]
    pub health_probe_bind_address: Listen,

    /// Questions and captures.
    #[command(flatten)]
    pub diagnostics: DiagnosticsArgs,

    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// Where and how much of diagnostics there is.
#[derive(Debug, Clone, Args)]
pub struct DiagnosticsArgs {
    /// Where questions are answered over HTTPS; 0 is nowhere
    #[arg(long, env = "DIAGNOSTICS_BIND_ADDRESS", default_value = ":9476", value_parser = listen)]
    pub diagnostics_bind_address: Listen,

    /// The address at which others reach this node; without it nobody is told where to ask
    #[arg(long, env = "NODE_IP", value_name = "ADDRESS")]
    pub node_ip: Option<IpAddr>,

    /// How many seconds a capture may take
    #[arg(long, env = "CAPTURE_MAX_SECONDS", default_value_t = 300, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub capture_max_seconds: u64,

    /// How many bytes a capture may have
    #[arg(long, env = "CAPTURE_MAX_BYTES", default_value_t = 256 * 1024 * 1024,
          value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub capture_max_bytes: u64,

    /// How many captures there may be at once; 0 is none
    #[arg(long, env = "CAPTURE_MAX_CONCURRENT", default_value_t = 2, value_name = "CAPTURES",
          value_parser = clap::value_parser!(u16).range(..=64))]
    pub capture_max_concurrent: u16,
}

impl DiagnosticsArgs {
    /// What captures may take.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            seconds: self.capture_max_seconds,
            bytes: self.capture_max_bytes,
            concurrent: self.capture_max_concurrent.into(),
        }
    }
}

/// How the southbound database is reached. Which one it is, the switch says
/// (`external_ids:ovn-remote`).
#[derive(Debug, Clone, Default, Args)]
pub struct SouthboundArgs {
    /// The authority of OVN's databases, for ssl remotes
    #[arg(long, env = "SOUTHBOUND_CA", value_name = "FILE", value_parser = some_path,
          requires = "southbound_certificate")]
    pub southbound_ca: Option<PathBuf>,

    /// The agent's certificate
    #[arg(long, env = "SOUTHBOUND_CERTIFICATE", value_name = "FILE", value_parser = some_path,
          requires = "southbound_key")]
    pub southbound_certificate: Option<PathBuf>,

    /// Its key
    #[arg(long, env = "SOUTHBOUND_KEY", value_name = "FILE", value_parser = some_path,
          requires = "southbound_ca")]
    pub southbound_key: Option<PathBuf>,

    /// Certificates of the databases have to name their host; those of ovs-pki do not
    #[arg(long, env = "SOUTHBOUND_VERIFY_HOST")]
    pub southbound_verify_host: bool,

    /// Do not look for flows that OVN does not want any more. Looking costs the southbound
    /// database one more reader of its logical flows for each node
    #[arg(long, env = "SKIP_STALE_FLOWS")]
    pub skip_stale_flows: bool,
}

impl SouthboundArgs {
    /// The files of the certificates: authority, certificate, key.
    #[must_use]
    pub fn files(&self) -> Option<[PathBuf; 3]> {
        Some([
            self.southbound_ca.clone()?,
            self.southbound_certificate.clone()?,
            self.southbound_key.clone()?,
        ])
    }

    /// What a certificate of the databases has to prove.
    #[must_use]
    pub fn identity(&self) -> Identity {
        if self.southbound_verify_host {
            Identity::Host
        } else {
            Identity::Authority
        }
    }
}

/// What may also be a file in the folder of settings, by the name of the flag.
#[derive(Debug, Clone, Args)]
pub struct SettingsArgs {
    /// How often counters of the OVSNode are written; all else is written when it changes
    #[arg(long, env = "REFRESH_INTERVAL", default_value = "5m", value_parser = duration)]
    pub refresh_interval: Duration,

    /// How long a daemon or a bridge may take to answer
    #[arg(long, env = "ANSWER_TIMEOUT", default_value = "5s", value_parser = duration)]
    pub answer_timeout: Duration,

    /// How long ovs-vswitchd may be behind the configuration
    #[arg(long, env = "CONFIGURATION_LAG", default_value = "10s", value_parser = duration)]
    pub configuration_lag: Duration,

    /// How long this chassis may be behind the southbound database
    #[arg(long, env = "SOUTHBOUND_LAG", default_value = "30s", value_parser = duration)]
    pub southbound_lag: Duration,

    /// How long a port may be without a device or without OVN before it is an issue
    #[arg(long, env = "PORT_GRACE", default_value = "30s", value_parser = duration)]
    pub port_grace: Duration,

    /// How long a flow may be there that nobody wants
    #[arg(long, env = "FLOW_GRACE", default_value = "60s", value_parser = duration)]
    pub flow_grace: Duration,
}

impl SettingsArgs {
    /// As the tasks use them.
    #[must_use]
    pub fn settings(&self) -> Settings {
        Settings {
            refresh_interval: self.refresh_interval,
            answer_timeout: self.answer_timeout,
            configuration_lag: self.configuration_lag,
            southbound_lag: self.southbound_lag,
            port_grace: self.port_grace,
            flow_grace: self.flow_grace,
        }
    }
}

impl Config {
    /// Where the local database is.
    #[must_use]
    pub fn database(&self) -> Remote {
        let socket = || Remote::Unix(self.ovs_rundir.join("db.sock"));
        self.ovsdb.clone().unwrap_or_else(socket)
    }
}

/// A duration that is long enough to be meant.
///
/// # Errors
///
/// Says how to write it.
pub fn duration(text: &str) -> Result<Duration, String> {
    match cobalt_api::duration::parse(text) {
        Ok(duration) if duration >= Duration::from_millis(100) => Ok(duration),
        Ok(_) => Err("it has to be at least 100ms".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// A name that Kubernetes would accept for a Node.
fn node_name(text: &str) -> Result<String, String> {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |part: &str| {
        part.starts_with(edge) && part.ends_with(edge) && part.chars().all(|c| edge(c) || c == '-')
    };
    if text.len() <= 253 && text.split('.').all(label) {
        Ok(text.to_owned())
    } else {
        Err("it is not the name of a Node: set --node or NODE_NAME to what `kubectl get nodes` shows".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Config, String> {
        let all = std::iter::once("cobalt-ovs-agent").chain(arguments.iter().copied());
        Config::try_parse_from(all).map_err(|error| error.to_string())
    }

    #[test]
    fn the_flags_are_sound() {
        use clap::CommandFactory;
        Config::command().debug_assert();
    }

    #[test]
    fn the_database_is_in_the_folder_unless_it_is_named() {
        let here = parse(&["--node", "hv1", "--ovs-rundir", "/x"]).unwrap();
        assert_eq!(here.database().to_string(), "unix:/x/db.sock");
        let there = parse(&["--node", "hv1", "--ovsdb", "tcp:127.0.0.1:6640"]).unwrap();
        assert_eq!(there.database().to_string(), "tcp:127.0.0.1:6640");
    }

    #[test]
    fn bad_values_are_refused_with_a_remedy() {
        for (arguments, remedy) in [
            (["--node", "HV1"], "kubectl get nodes"),
            (["--refresh-interval", "soon"], "write it like 90m"),
            (["--port-grace", "0s"], "at least 100ms"),
            (["--ovsdb", "punix:/x"], "unix:PATH"),
            (["--southbound-ca", "/ca"], "--southbound-certificate"),
            (["--capture-max-seconds", "0"], "1..=86400"),
            (["--node-ip", "hv1"], "invalid IP address"),
        ] {
            let error = parse(&[&["--node", "hv1"][..], &arguments[..]].concat())
                .or_else(|_| parse(&arguments))
                .unwrap_err();
            assert!(error.contains(remedy), "{arguments:?}: {error}");
        }
    }
}
