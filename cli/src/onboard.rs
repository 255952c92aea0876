//! `cobalt onboard`: what a new host waits for, and another try for one that was given up.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use cobalt_api::conditions::{self, HypervisorCondition as Type};
use cobalt_api::hypervisor::{Hypervisor, HypervisorStatus, Phase};
use cobalt_api::names::{FieldManager, annotations};
use futures::TryStreamExt;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;

const DEADLINE: Duration = Duration::from_secs(30);

const EXAMPLES: &str = "\
Examples:
  # What is hv1 waiting for?
  cobalt onboard status hv1

  # Its tests failed; the cause is mended. Try again, and follow it to the end
  cobalt onboard retry hv1 --wait";

/// Flags of `cobalt onboard`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct OnboardArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show how far hosts are, what they wait for, and how their tests went
    Status {
        /// The hosts
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
    },
    /// Test hosts again whose onboarding was given up
    Retry {
        /// The hosts
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
        /// Follow them until they take workload (exit code 0) or are given up again (1)
        #[arg(long)]
        wait: bool,
    },
}

/// Does it.
pub async fn run(arguments: OnboardArgs) -> Result<ExitCode> {
    let client = cobalt_runtime::client().await?;
    let api: Api<Hypervisor> = Api::all(client);
    match arguments.command {
        Command::Status { nodes } => {
            for node in &nodes {
                print!("{}", describe(node, &get(&api, node).await?));
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Retry { nodes, wait } => {
            for node in &nodes {
                retry(&api, node).await?;
                println!("{node}: its tests begin again");
            }
            if !wait {
                return Ok(ExitCode::SUCCESS);
            }
            let mut good = true;
            for node in &nodes {
                good &= follow(&api, node).await?;
            }
            Ok(if good {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
    }
}

async fn get(api: &Api<Hypervisor>, node: &str) -> Result<Hypervisor> {
    let found = tokio::time::timeout(DEADLINE, api.get_opt(node))
        .await
        .context("the API server does not answer")?
        .with_context(|| format!("failed to read the Hypervisor \"{node}\""))?;
    found.with_context(|| {
        format!("there is no Hypervisor \"{node}\"; `kubectl get hypervisors` lists them")
    })
}

fn phase(object: &Hypervisor) -> Option<Phase> {
    object.status.as_ref().and_then(|status| status.phase)
}

async fn retry(api: &Api<Hypervisor>, node: &str) -> Result<()> {
    let object = get(api, node).await?;
    if phase(&object) != Some(Phase::Aborted) {
        let now = phase(&object).map_or("unknown to the operator", Phase::as_str);
        bail!("{node} is {now}: only a host in the phase Aborted can be tried again");
    }
    let patch = json!({ "metadata": { "annotations": { annotations::RETRY_ONBOARDING: "" } } });
    let params = PatchParams {
        field_manager: Some(FieldManager::Cli.as_str().to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(&patch);
    tokio::time::timeout(DEADLINE, api.patch(node, &params, &patch))
        .await
        .context("the API server does not answer")?
        .with_context(|| format!("failed to ask for another try of {node}"))?;
    Ok(())
}

/// Prints what changes until the end; returns whether it is a good one.
async fn follow(api: &Api<Hypervisor>, node: &str) -> Result<bool> {
    let selection = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let mut changes = std::pin::pin!(
        watcher(api.clone(), selection)
            .default_backoff()
            .applied_objects()
    );
    let mut before = String::new();
    let mut begun = false;
    while let Some(object) = changes.try_next().await.context("lost sight of the host")? {
        let now = line(&object);
        if now != before {
            println!("{node}: {now}");
            before = now;
        }
        match phase(&object) {
            Some(Phase::Active) => return Ok(true),
            // The wish has not been heard yet.
            Some(Phase::Aborted) if !begun => {}
            Some(Phase::Aborted) => {
                print!("{}", describe(node, &object));
                return Ok(false);
            }
            _ => begun = true,
        }
    }
    bail!("lost sight of {node}")
}

/// How far a host is, in one line.
fn line(object: &Hypervisor) -> String {
    let Some(status) = &object.status else {
        return "the operator has not seen it yet".to_owned();
    };
    let phase = status.phase.map_or("unknown", Phase::as_str);
    match &status.waiting_for {
        Some(wait) => {
            let text = wait.message.as_deref().unwrap_or(&wait.reason);
            format!("{phase}, waiting for {text}")
        }
        None => phase.to_owned(),
    }
}

/// All that there is to know, for people.
fn describe(node: &str, object: &Hypervisor) -> String {
    let mut out = format!("{node}: {}\n", line(object));
    let Some(status) = &object.status else {
        return out;
    };
    // Writing to a string cannot fail.
    if let Some(wait) = &status.waiting_for {
        let until = wait.deadline.as_ref();
        let until = until
            .map(|until| format!(", until {}", until.0))
            .unwrap_or_default();
        writeln!(out, "  since {}{until}", wait.since.0).ok();
    }
    if let Some(said) = said(status) {
        writeln!(out, "  {said}").ok();
    }
    let width = status
        .checks
        .iter()
        .map(|check| check.name.len())
        .max()
        .unwrap_or(0);
    for check in &status.checks {
        let text = check.message.as_deref().unwrap_or_default();
        let result = check.result.as_str();
        let line = format!("  {:width$}  {result:8}{text}", check.name);
        writeln!(out, "{}", line.trim_end()).ok();
    }
    out
}

fn said(status: &HypervisorStatus) -> Option<&str> {
    let found = conditions::find(&status.conditions, Type::Onboarding)?;
    Some(found.message.as_str()).filter(|text| !text.is_empty())
}
