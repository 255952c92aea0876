//! The flags of the labels injector.

use clap::Parser;
use cobalt_api::names::labels;
use cobalt_controller::AppArgs;

const EXAMPLE: &str = "\
Examples:
  # Against the cluster of the current kubeconfig, all Pods, the five usual labels
  cobalt-labels-injector

  # Zone and rack, for the Pods of one team
  cobalt-labels-injector --labels topology.kubernetes.io/zone,example.com/rack \\
    --pod-selector team=storage

It starts and stays up without the API server; http://:8081/readyz says what is missing.";

/// Copies labels of Nodes to the Pods that run on them
#[derive(Debug, Clone, Parser)]
#[command(name = "cobalt-labels-injector", version, after_help = EXAMPLE)]
pub struct Config {
    /// The labels that are copied, separated by commas
    #[arg(
        long,
        env = "LABELS",
        value_delimiter = ',',
        default_values = labels::FROM_NODE_TO_POD,
        value_parser = label_key
    )]
    pub labels: Vec<String>,

    /// Only Pods with these labels. Empty: all
    #[arg(long, env = "POD_SELECTOR", default_value = "")]
    pub pod_selector: String,

    /// Field managers whose values of these labels are replaced, such as that of the injector before
    /// this one; separated by commas
    #[arg(long, env = "TAKE_OVER_FROM", value_delimiter = ',')]
    pub take_over_from: Vec<String>,

    /// How many Pods are written at the same time
    #[arg(long, env = "WORKERS", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,

    /// What every operator has.
    #[command(flatten)]
    pub app: AppArgs,
}

/// A label's key as Kubernetes takes it: `name` or `prefix/name`.
fn label_key(text: &str) -> Result<String, String> {
    let text = text.trim();
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let is_prefix = |prefix: &str| {
        let is_part = |part: &str| {
            let allowed = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit();
            part.starts_with(allowed)
                && part.ends_with(allowed)
                && part.chars().all(|char| allowed(char) || char == '-')
        };
        prefix.len() <= 253 && prefix.split('.').all(is_part)
    };
    if is_label_value(name) && !name.is_empty() && prefix.is_none_or(is_prefix) {
        Ok(text.to_owned())
    } else {
        Err(
            "write it like topology.kubernetes.io/zone: at most 63 letters, digits, '-', '_' and \
             '.' after an optional DNS name and '/'"
                .to_owned(),
        )
    }
}

/// Whether Kubernetes takes this text as the value of a label.
pub(crate) fn is_label_value(text: &str) -> bool {
    let is_end = |char: char| char.is_ascii_alphanumeric();
    text.is_empty()
        || (text.len() <= 63
            && text.starts_with(is_end)
            && text.ends_with(is_end)
            && text
                .chars()
                .all(|char| is_end(char) || "-_.".contains(char)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_kubernetes_would_refuse_are_refused_at_the_start() {
        for good in ["zone", "topology.kubernetes.io/zone", "a/b", "x_Y.z-1"] {
            assert_eq!(label_key(good).as_deref(), Ok(good));
        }
        let long = "x".repeat(64);
        for bad in [
            "",
            "a/",
            "/a",
            "a/b/c",
            "-a",
            "a-",
            "Zone.io/a",
            "a b",
            "a..b/c",
            &long,
        ] {
            assert!(label_key(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_five_deployed_labels_are_the_default() {
        let config = Config::parse_from(["cobalt-labels-injector"]);
        assert_eq!(
            config.labels,
            [
                "kubernetes.metal.cloud.sap/name",
                "kubernetes.metal.cloud.sap/cluster",
                "kubernetes.metal.cloud.sap/bb",
                "topology.kubernetes.io/region",
                "topology.kubernetes.io/zone",
            ]
        );
    }
}
