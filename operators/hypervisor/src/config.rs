//! The flags of the operator. Each has an environment variable; those of the deployed operator keep
//! their names and meaning, so that its Deployment can be swapped.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use cobalt_runtime::flags::{Listen, listen, some_path, some_text};
use cobalt_runtime::logging::LogArgs;

use jiff::SignedDuration;

use crate::eviction::budget::Limits;
use crate::eviction::seen::{Order, Policy, Stalled};

const EXAMPLE: &str = "\
Examples:
  # Against the cluster of the current kubeconfig and the cloud of the OS_* variables
  cobalt-hypervisor-operator --agent-namespaces cobalt-system

  # Only the hosts of one building block, with credentials from a mounted Secret
  cobalt-hypervisor-operator --agent-namespaces cobalt-system --leader-elect \\
    --label-selector kubernetes.metal.cloud.sap/bb=bb092 --openstack-directory /etc/openstack

  # Take the finalizers off, so that the operator before this one can have the fleet back
  cobalt-hypervisor-operator release

It starts and stays up without OpenStack, the definitions or the API server;
http://:8081/readyz says what is missing.";

/// Takes hosts from a new Node to one that takes workload, through maintenance, and out again
#[derive(Debug, Clone, Parser)]
#[command(
    name = "cobalt-hypervisor-operator",
    version,
    after_help = EXAMPLE,
    subcommand_negates_reqs = true
)]
pub struct Config {
    /// Something else than running the operator.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Namespaces whose pods have to leave a node before its host is removed, separated by commas
    #[arg(
        long,
        env = "AGENT_NAMESPACES",
        value_delimiter = ',',
        required = true,
        value_parser = some_text
    )]
    pub agent_namespaces: Vec<String>,

    /// Only Nodes and Hypervisors with these labels; several operators share a fleet by it
    #[arg(long, env = "LABEL_SELECTOR", default_value = "")]
    pub label_selector: String,

    /// One operator at a time acts, the others wait
    #[arg(
        long,
        env = "LEADER_ELECT",
        num_args = 0..=1,
        default_value_t = false,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub leader_elect: bool,

    /// The namespace of the Lease
    #[arg(long, env = "POD_NAMESPACE", default_value = "default", value_parser = some_text)]
    pub leader_elect_namespace: String,

    /// This process among several [default: a random one]
    #[arg(long, env = "POD_NAME", value_parser = some_text)]
    pub identity: Option<String>,

    /// A directory of files named like the OS_* variables, such as a mounted Secret; it wins over
    /// the environment and is read again when it changes
    #[arg(long, env = "OPENSTACK_DIRECTORY", value_parser = some_path)]
    pub openstack_directory: Option<PathBuf>,

    /// How often Nova and Placement are asked about all hosts
    #[arg(long, env = "NOVA_INTERVAL", default_value = "60s", value_parser = duration)]
    pub nova_interval: Duration,

    /// How many hosts have their turn at the same time
    #[arg(long, env = "WORKERS", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub workers: u16,

    /// The project of the test servers, by name (or by id, if the domain is empty)
    #[arg(long, env = "TEST_PROJECT", default_value = "test", value_parser = some_text)]
    pub test_project: String,

    /// The domain of that project
    #[arg(long, env = "TEST_PROJECT_DOMAIN", default_value = "cc3test")]
    pub test_project_domain: String,

    /// The image of the test servers, by exact name or id
    #[arg(long, env = "TEST_IMAGE", default_value = "cirros-kvm", value_parser = some_text)]
    pub test_image: String,

    /// The flavor of the test servers, by exact name or id
    #[arg(long, env = "TEST_FLAVOR", default_value = "1", value_parser = some_text)]
    pub test_flavor: String,

    /// The network of the test servers, by exact name or id. Empty: the first of the project's own
    #[arg(long, env = "TEST_NETWORK", default_value = "")]
    pub test_network: String,

    /// The type of volume that test servers boot from. Empty: they boot from the image
    #[arg(long, env = "TEST_VOLUME_TYPE", default_value = "premium")]
    pub test_volume_type: String,

    /// The size of that volume, in GiB
    #[arg(long, env = "TEST_VOLUME_GIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    pub test_volume_gib: u64,

    /// The aggregate that keeps all other projects away from a host under test
    #[arg(long, env = "TEST_AGGREGATE", default_value = "tenant_filter_tests", value_parser = some_text)]
    pub test_aggregate: String,

    /// How long one test may take
    #[arg(long, env = "TEST_DEADLINE", default_value = "10m", value_parser = duration)]
    pub test_deadline: Duration,

    /// How often the tests of a host are tried
    #[arg(long, env = "TEST_ATTEMPTS", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=100))]
    pub test_attempts: i32,

    /// Leave the tests out for all hosts
    #[arg(long, env = "SKIP_TESTS", num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub skip_tests: bool,

    /// Evictions: how many, in which order, how long.
    #[command(flatten)]
    pub eviction: EvictionArgs,

    /// Where Certificates for libvirt are asked for. Empty: they are not
    #[arg(long, env = "CERTIFICATE_NAMESPACE", default_value = "monsoon3")]
    pub certificate_namespace: String,

    /// The issuer of those certificates
    #[arg(
        long,
        env = "CERTIFICATE_ISSUER_NAME",
        default_value = "nova-hypervisor-agents-ca-issuer",
        value_parser = some_text
    )]
    pub certificate_issuer_name: String,

    /// The image of the pod that tells Gardener whether a node may be used and drained: this
    /// operator's own image, or one with `sleep`, `true` and `false`. Empty: nodes are not held
    #[arg(long, env = "LIFECYCLE_IMAGE", default_value = "")]
    pub lifecycle_image: String,

    /// Which programs that image has
    #[arg(long, env = "LIFECYCLE_PROGRAMS", value_enum, default_value = "own")]
    pub lifecycle_programs: Programs,

    /// The namespace of those pods
    #[arg(long, env = "LIFECYCLE_NAMESPACE", default_value = "kube-system", value_parser = some_text)]
    pub lifecycle_namespace: String,

    /// What the ServiceAccounts that may read one node's Secrets have before the name of the node.
    /// Empty: none are made
    #[arg(long, env = "SECRETS_ACCOUNT_PREFIX", default_value = "")]
    pub secrets_account_prefix: String,

    /// The namespace of those ServiceAccounts and Secrets
    #[arg(long, env = "SECRETS_NAMESPACE", default_value = "monsoon3", value_parser = some_text)]
    pub secrets_namespace: String,

    /// The Secret with Ceph's key that they may read, too
    #[arg(long, env = "CEPH_SECRET_NAME", value_parser = some_text)]
    pub ceph_secret_name: Option<String>,

    /// A kubeconfig of the cluster that gets copies of Hypervisors and OVSNodes. None: no copies
    #[arg(long, env = "MIRROR_KUBECONFIG", value_parser = some_path)]
    pub mirror_kubeconfig: Option<PathBuf>,

    /// What the copies call this cluster
    #[arg(long, env = "MIRROR_NAME", default_value = "hypervisor", value_parser = some_text)]
    pub mirror_name: String,

    /// A copy is written at most so often
    #[arg(long, env = "MIRROR_INTERVAL", default_value = "5s", value_parser = duration)]
    pub mirror_interval: Duration,

    /// Where metrics are served; 0 is nowhere
    #[arg(long, env = "METRICS_BIND_ADDRESS", default_value = "0", value_parser = listen)]
    pub metrics_bind_address: Listen,

    /// Where health is served; 0 is nowhere
    #[arg(long, env = "HEALTH_PROBE_BIND_ADDRESS", default_value = ":8081", value_parser = listen)]
    pub health_probe_bind_address: Listen,

    /// Accepted because deployed operators are started with it: metrics are served without TLS
    #[arg(long, hide = true, num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub metrics_secure: bool,

    /// Accepted because deployed operators are started with it
    #[arg(long, hide = true, num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_http2: bool,

    /// Accepted because deployed operators are started with them; `--log-level` and `--log-format`
    /// are what counts
    #[command(flatten)]
    pub zap: ZapArgs,

    /// The log.
    #[command(flatten)]
    pub log: LogArgs,
}

/// How hosts are emptied.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Evictions")]
pub struct EvictionArgs {
    /// How many instances may leave one host at the same time
    #[arg(long, env = "EVICTION_PER_SOURCE", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub eviction_per_source: u16,

    /// How many instances may come to one host at the same time
    #[arg(long, env = "EVICTION_PER_TARGET", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub eviction_per_target: u16,

    /// How many instances may leave the hosts of one zone at the same time
    #[arg(long, env = "EVICTION_PER_ZONE", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub eviction_per_zone: u16,

    /// How many instances of all hosts of this operator may move at the same time
    #[arg(long, env = "EVICTION_IN_ALL", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub eviction_in_all: u16,

    /// Which instances go first, of those with the same priority
    #[arg(
        long,
        env = "EVICTION_ORDER",
        value_enum,
        default_value = "smallest-first"
    )]
    pub eviction_order: Order,

    /// How often one instance is tried
    #[arg(long, env = "EVICTION_ATTEMPTS", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..=100))]
    pub eviction_attempts: i32,

    /// How long one attempt may take before it is aborted
    #[arg(long, env = "EVICTION_INSTANCE_DEADLINE", default_value = "1h", value_parser = duration)]
    pub eviction_instance_deadline: Duration,

    /// How long an instance that cannot be moved is waited for, once all others are away
    #[arg(long, env = "EVICTION_PATIENCE", default_value = "5m", value_parser = duration)]
    pub eviction_patience: Duration,

    /// How long a host that does not report is waited for before its instances are given up
    #[arg(long, env = "EVICTION_HOST_PATIENCE", default_value = "10m", value_parser = duration)]
    pub eviction_host_patience: Duration,

    /// How long a live migration may give no sign of life before it counts as lost: Nova says that it
    /// goes on, and neither its record nor the agent of the host shows any change
    #[arg(long, env = "EVICTION_STUCK_PATIENCE", default_value = "5m", value_parser = duration)]
    pub eviction_stuck_patience: Duration,

    /// A migration that gets no nearer to its end for so long has stalled: each of its passes has as
    /// much to send as the one before
    #[arg(long, env = "EVICTION_STALL", default_value = "3m", value_parser = duration)]
    pub eviction_stall: Duration,

    /// What is done about a migration that has stalled
    #[arg(long, env = "EVICTION_STALLED", value_enum, default_value = "wait")]
    pub eviction_stalled: Stalled,

    /// Set a server to ACTIVE when a move failed or was lost by Nova and its guest is seen running
    #[arg(long, env = "EVICTION_RESET_ERRORS", num_args = 0..=1, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub eviction_reset_errors: bool,
}

impl EvictionArgs {
    /// What decisions need of it.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let signed = |time: Duration| SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
        Policy {
            limits: Limits {
                source: self.eviction_per_source.into(),
                target: self.eviction_per_target.into(),
                zone: self.eviction_per_zone.into(),
                cluster: self.eviction_in_all.into(),
            },
            order: self.eviction_order,
            attempts: self.eviction_attempts,
            instance_deadline: signed(self.eviction_instance_deadline),
            patience: signed(self.eviction_patience),
            host_patience: signed(self.eviction_host_patience),
            stuck_patience: signed(self.eviction_stuck_patience),
            stall: signed(self.eviction_stall),
            stalled: self.eviction_stalled,
            reset_errors: self.eviction_reset_errors,
        }
    }
}

/// The flags of another logger, which change nothing.
#[derive(Debug, Clone, clap::Args)]
pub struct ZapArgs {
    #[arg(long, hide = true, num_args = 0..=1)]
    zap_devel: Option<Option<String>>,
    #[arg(long, hide = true)]
    zap_encoder: Option<String>,
    #[arg(long, hide = true)]
    zap_log_level: Option<String>,
    #[arg(long, hide = true)]
    zap_stacktrace_level: Option<String>,
    #[arg(long, hide = true)]
    zap_time_encoding: Option<String>,
}

/// Something else than running the operator.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Take the finalizers off all Hypervisors, or those of --label-selector, so that the operator
    /// before this one can have the fleet back. Stop this operator first
    Release,
    /// Run in the pod that holds a node: wait, or answer its probe
    #[command(hide = true)]
    Hold {
        /// What to answer; without it, wait.
        answer: Option<Answer>,
    },
}

/// The answer of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Answer {
    /// The node may be used.
    Yes,
    /// It may not.
    No,
}

/// Programs of the image that holds nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Programs {
    /// Those of this operator.
    Own,
    /// `sleep`, `true` and `false`.
    Busybox,
}

fn duration(text: &str) -> Result<Duration, String> {
    match cobalt_api::duration::parse(text) {
        Ok(duration) if duration >= Duration::from_millis(100) => Ok(duration),
        Ok(_) => Err("it has to be at least 100ms".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The keys of a label selector, which are copied to what is made for a host.
#[must_use]
pub fn selector_keys(selector: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let mut depth = 0_u32;
    let mut part = String::new();
    // Commas inside `in (a, b)` do not separate requirements.
    for character in selector.chars().chain([',']) {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                let text = part.trim().trim_start_matches('!').trim();
                let end = text
                    .find(|c: char| "=!<> ".contains(c))
                    .unwrap_or(text.len());
                let key = text.get(..end).unwrap_or_default();
                if !key.is_empty() && !keys.iter().any(|known| known == key) {
                    keys.push(key.to_owned());
                }
                part.clear();
                continue;
            }
            _ => {}
        }
        part.push(character);
    }
    keys
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Config::command().debug_assert();
    }

    #[test]
    fn deployed_arguments_are_understood() {
        let config = Config::try_parse_from([
            "operator",
            "--leader-elect",
            "--metrics-bind-address=:8080",
            "--health-probe-bind-address=:8081",
            "--metrics-secure=false",
            "--enable-http2=false",
            "--zap-log-level=info",
            "--zap-devel",
            "--label-selector=kubernetes.metal.cloud.sap/bb in (a,b),x!=y",
            "--agent-namespaces=one,two",
            "--certificate-namespace=monsoon3",
            "--certificate-issuer-name=issuer",
        ])
        .unwrap();
        assert!(config.leader_elect);
        assert_eq!(config.agent_namespaces, ["one", "two"]);
        assert_eq!(
            selector_keys(&config.label_selector),
            ["kubernetes.metal.cloud.sap/bb", "x"]
        );
        assert_eq!(
            config.metrics_bind_address,
            Some("[::]:8080".parse().unwrap())
        );
    }

    #[test]
    fn mistakes_are_named() {
        let refused = |arguments: &[&str]| {
            let all = ["operator"].iter().chain(arguments);
            Config::try_parse_from(all).unwrap_err().to_string()
        };
        assert!(refused(&[]).contains("--agent-namespaces"));
        let address = refused(&["--agent-namespaces", "a", "--metrics-bind-address", "x"]);
        assert!(address.contains("write it like :8081"), "{address}");
        assert!(refused(&["--agent-namespaces", ""]).contains("it is empty"));
    }

    #[test]
    fn keys_of_selectors() {
        for (selector, keys) in [
            ("", &[][..]),
            ("a=b", &["a"]),
            ("a==b,c!=d", &["a", "c"]),
            ("!a, b", &["a", "b"]),
            ("a in (x, y),b notin (z)", &["a", "b"]),
            ("a=b,a=c", &["a"]),
        ] {
            assert_eq!(selector_keys(selector), keys, "{selector}");
        }
    }
}
