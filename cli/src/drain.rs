//! `cobalt drain` and `cobalt undrain`: empties hosts, shows how far that is, and takes it back.
//!
//! The work is the operator's; these commands write the wish and look on. What they begin goes on
//! when they end.

mod begin;
mod cluster;
mod follow;
mod plan;
mod screen;
mod text;
mod undo;
mod view;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use cobalt_api::duration;
use serde_json::json;

use begin::{Begun, Wish};
use cluster::Cluster;

use crate::output::OutputArgs;
use crate::server;

const DRAIN_HELP: &str = "\
Examples:
  # What can move, what cannot, and why? Nothing is changed
  cobalt drain hv1 --plan

  # Empty hv1, and look on; Ctrl-C asks whether to cancel
  cobalt drain hv1 --wait --reason 'a fan is broken'

  # Two hosts, eight instances of each at a time, in two hours at most; do not wait
  cobalt drain hv1 hv2 --parallel 8 --timeout 2h

  # It is under way: follow it again, with more at a time
  cobalt drain hv1 --wait --parallel 16

Exit codes:
  0    the host is empty (--wait); everything can move (--plan); the drain has begun
  1    nothing could be moved, or the command could not do its work
  2    wrong usage
  3    some instances have not left (--wait), or cannot move (--plan)
  4    the time was over (--timeout)
  5    the drain was cancelled
  130  Ctrl-C: the drain goes on; with --plan, nothing is left
  With several hosts: that of the worst, in the order 1, 4, 3, 5.";

const UNDRAIN_HELP: &str = "\
Examples:
  # Call the drain of hv1 off, or put the drained host back into service
  cobalt undrain hv1

  # The same, until the scheduler may use it again
  cobalt undrain hv1 --wait

Exit codes:
  0  it is asked for; with --wait: the host is back in service
  1  it could not be asked for, or the host will not come back by itself
  2  wrong usage";

/// Flags of `cobalt drain`.
#[derive(Debug, Args)]
#[command(after_help = DRAIN_HELP)]
pub struct DrainArgs {
    /// The hosts
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    /// Only examine: show what can move and what cannot
    #[arg(long, conflicts_with_all = ["wait", "parallel", "timeout"])]
    plan: bool,
    /// Follow the drain to its end
    #[arg(long)]
    wait: bool,
    /// How many instances of a host may move at the same time, 1 to 64; the operator has limits of
    /// its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=64))]
    parallel: Option<i32>,
    /// Stop when this time has passed, like 90m or 1h30m; 1s to 720h
    #[arg(long, value_name = "DURATION", value_parser = timeout)]
    timeout: Option<String>,
    /// Why, for those who find the host out of service
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    reason: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Flags of `cobalt undrain`.
#[derive(Debug, Args)]
#[command(after_help = UNDRAIN_HELP)]
pub struct UndrainArgs {
    /// The hosts
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    /// Follow the hosts until they are back in service
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// The limits of the API, so that a mistake is told before anything is written.
fn timeout(text: &str) -> Result<String> {
    let limits = Duration::from_secs(1)..=Duration::from_secs(720 * 3600);
    let parsed = duration::parse(text)?;
    if !limits.contains(&parsed) {
        bail!("it is from 1s to 720h");
    }
    Ok(duration::format(parsed))
}

/// Drains.
pub async fn drain(arguments: DrainArgs) -> Result<ExitCode> {
    let cluster = Cluster::new(server::client().await?);
    let nodes = each_once(arguments.nodes);
    let format = arguments.output.output;
    if arguments.plan {
        return plan::run(&cluster, &nodes, arguments.reason, format).await;
    }
    let wish = Wish {
        reason: arguments.reason,
        parallelism: arguments.parallel,
        deadline: arguments.timeout,
    };
    // One that is refused is found before another one is touched.
    for node in &nodes {
        if let Err(refusal) = begin::check(&cluster.hypervisor(node).await?) {
            bail!("{node} cannot be drained: {refusal}");
        }
    }
    // From here on Ctrl-C is a question, not an end in the middle of a step.
    let interrupts = follow::interrupts()?;
    let mut all = Vec::new();
    for node in &nodes {
        let begun = begin::begin(&cluster, node, &wish).await?;
        format.progress(&format!("{node}: {}\n", tell(&begun, arguments.wait)));
        all.push(begun);
    }
    if !arguments.wait {
        format.document(&json!({ "hosts": all }))?;
        return Ok(ExitCode::SUCCESS);
    }
    follow::follow(&cluster, all, interrupts, format).await
}

/// Takes drains back.
pub async fn undrain(arguments: UndrainArgs) -> Result<ExitCode> {
    let cluster = Cluster::new(server::client().await?);
    let nodes = each_once(arguments.nodes);
    undo::run(&cluster, &nodes, arguments.wait, arguments.output.output).await
}

/// What has begun, and how to go on from here.
fn tell(begun: &Begun, wait: bool) -> String {
    let node = &begun.node;
    let what = if begun.joined {
        "a drain is under way already; joined it"
    } else {
        "the drain begins: the host is taken out of service and its instances are moved away"
    };
    if wait {
        return what.to_owned();
    }
    format!(
        "{what}\n  follow it:  cobalt drain {node} --wait, or kubectl get evi {node} -w\n  \
         cancel it:  cobalt undrain {node}"
    )
}

fn each_once(nodes: Vec<String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for node in nodes {
        if !all.contains(&node) {
            all.push(node);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        arguments: DrainArgs,
    }

    fn parse(words: &[&str]) -> Result<DrainArgs, String> {
        let all = std::iter::once("drain").chain(words.iter().copied());
        let parsed = Command::try_parse_from(all).map_err(|error| error.to_string());
        parsed.map(|parsed| parsed.arguments)
    }

    #[test]
    fn good_flags_are_understood() {
        let parsed = parse(&["hv1", "hv2", "--timeout", "90m", "--parallel", "64"]).unwrap();
        assert_eq!(parsed.nodes, ["hv1", "hv2"]);
        assert_eq!(parsed.timeout.as_deref(), Some("1h30m"));
        assert_eq!(parsed.parallel, Some(64));
        assert_eq!(
            each_once(vec!["b".into(), "a".into(), "b".into()]),
            ["b", "a"]
        );
    }

    #[test]
    fn bad_flags_are_refused_with_a_remedy() {
        let cases: [(&[&str], &str); 10] = [
            (&[], "NODE"),
            (&["hv1", "--timeout", "soon"], "write it like 90m"),
            (&["hv1", "--timeout", "1d"], "units are h, m, s and ms"),
            (&["hv1", "--timeout", "1ms"], "from 1s to 720h"),
            (&["hv1", "--timeout", "721h"], "from 1s to 720h"),
            (&["hv1", "--parallel", "0"], "1..=64"),
            (&["hv1", "--parallel", "65"], "1..=64"),
            (&["hv1", "--reason", ""], "value is required"),
            (&["hv1", "--plan", "--wait"], "cannot be used with"),
            (&["hv1", "--plan", "--timeout", "1h"], "cannot be used with"),
        ];
        for (words, remedy) in cases {
            let error = parse(words).unwrap_err();
            assert!(error.contains(remedy), "{words:?}: {error}");
        }
    }
}
