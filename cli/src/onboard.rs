//! `cobalt onboard`: what new hosts wait for, and another try for one that was given up.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use cobalt_api::conditions::{self, HypervisorCondition as Type, Reason, Status};
use cobalt_api::hypervisor::{Hypervisor, HypervisorStatus, Phase};
use cobalt_api::names::{FieldManager, annotations, labels};
use futures::TryStreamExt;
use jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::output::{Format, OutputArgs};
use crate::server::{self, answer};
use crate::text::{clean, span, table};

/// How many hosts are read at once.
const PAGE: u32 = 500;

const EXAMPLES: &str = "\
Examples:
  # How far is every host, and what does it wait for?
  cobalt onboard status

  # What is hv1 waiting for, and how did its tests go?
  cobalt onboard status hv1

  # Its tests failed; the cause is mended. Try again, and follow it to the end
  cobalt onboard retry hv1 --wait

  # The hosts that were given up, for a script
  cobalt onboard status -o json | jq -r '.hosts[] | select(.phase == \"Aborted\") | .name'";

/// Flags of `cobalt onboard`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct OnboardArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show how far hosts are and what they wait for; of named hosts also how their tests went
    Status {
        /// The hosts; without any, all of them in a table
        #[arg(value_name = "NODE")]
        nodes: Vec<String>,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Test hosts again whose onboarding was given up
    Retry {
        /// The hosts
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
        /// Follow them until they take workload (exit code 0) or are given up again (1)
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// Does it.
pub async fn run(arguments: OnboardArgs) -> Result<ExitCode> {
    let api: Api<Hypervisor> = Api::all(server::client().await?);
    match arguments.command {
        Command::Status { nodes, output } => {
            let (hosts, text) = if nodes.is_empty() {
                let hosts = list(&api).await?;
                let text = overview(&hosts, Timestamp::now());
                (hosts, text)
            } else {
                let mut hosts = Vec::new();
                for node in &nodes {
                    hosts.push(get(&api, node).await?);
                }
                let text = hosts.iter().map(describe).collect();
                (hosts, text)
            };
            let hosts: Vec<Value> = hosts.iter().map(document).collect();
            output.output.print(&text, &json!({ "hosts": hosts }))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Retry {
            nodes,
            wait,
            output,
        } => {
            let format = output.output;
            for node in &nodes {
                retry(&api, node).await?;
                format.progress(&format!("{node}: its tests begin again\n"));
            }
            let mut good = true;
            let mut hosts = Vec::new();
            for node in &nodes {
                if wait {
                    let (object, succeeded) = follow(&api, node, format).await?;
                    let mut host = document(&object);
                    if let Some(fields) = host.as_object_mut() {
                        fields.insert("succeeded".to_owned(), json!(succeeded));
                    }
                    hosts.push(host);
                    good &= succeeded;
                } else {
                    hosts.push(json!({ "name": node }));
                }
            }
            format.document(&json!({ "hosts": hosts }))?;
            Ok(if good {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
    }
}

async fn get(api: &Api<Hypervisor>, node: &str) -> Result<Hypervisor> {
    let found = answer(api.get_opt(node))
        .await
        .with_context(|| format!("failed to read the Hypervisor \"{node}\""))?;
    found.with_context(|| {
        format!("there is no Hypervisor \"{node}\"; `cobalt onboard status` lists them")
    })
}

/// Every host, by name.
async fn list(api: &Api<Hypervisor>) -> Result<Vec<Hypervisor>> {
    let mut all = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = answer(api.list(&params))
            .await
            .context("failed to list the Hypervisors")?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    all.sort_by_key(ResourceExt::name_any);
    Ok(all)
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
    answer(api.patch(node, &params, &Patch::Merge(&patch)))
        .await
        .with_context(|| format!("failed to ask for another try of {node}"))?;
    Ok(())
}

/// Tells what changes until the end; returns the host as it is then, and whether that is a good end.
async fn follow(api: &Api<Hypervisor>, node: &str, format: Format) -> Result<(Hypervisor, bool)> {
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
            format.progress(&format!("{node}: {now}\n"));
            before = now;
        }
        match phase(&object) {
            Some(Phase::Active) => return Ok((object, true)),
            // The operator has not taken the wish up yet.
            Some(Phase::Aborted) if !begun => {}
            Some(Phase::Aborted) => {
                format.progress(&describe(&object));
                return Ok((object, false));
            }
            _ => begun = true,
        }
    }
    bail!("lost sight of {node}")
}

fn phase_word(status: &HypervisorStatus) -> String {
    let mut phase = status.phase.map_or("unknown", Phase::as_str).to_owned();
    let ready = conditions::status(&status.conditions, Type::Ready);
    if status.phase == Some(Phase::Active) && ready.is_some_and(|ready| ready != Status::True) {
        phase.push_str(", NOT ready");
    }
    phase
}

/// What a host waits for, for people.
fn wait(status: &HypervisorStatus) -> Option<String> {
    let wait = status.waiting_for.as_ref()?;
    Some(clean(wait.message.as_deref().unwrap_or(&wait.reason)))
}

/// How far a host is, in one line.
fn line(object: &Hypervisor) -> String {
    let Some(status) = &object.status else {
        return "the operator has not seen it yet".to_owned();
    };
    let phase = phase_word(status);
    match wait(status) {
        Some(wait) => format!("{phase}, waiting: {wait}"),
        None => phase,
    }
}

/// All hosts, a line for each.
fn overview(hosts: &[Hypervisor], now: Timestamp) -> String {
    if hosts.is_empty() {
        return format!(
            "There is no host: the operator makes a Hypervisor for each Node with the label {}\n",
            labels::VIRT_DRIVER
        );
    }
    let nothing = HypervisorStatus::default();
    let rows: Vec<[String; 4]> = hosts
        .iter()
        .map(|host| {
            let status = host.status.as_ref();
            let wait_for = match status {
                Some(status) => wait(status).unwrap_or_else(|| "-".to_owned()),
                None => "the operator has not seen it yet".to_owned(),
            };
            let status = status.unwrap_or(&nothing);
            let since = status.waiting_for.as_ref();
            let since = since.map_or_else(|| "-".to_owned(), |wait| span(wait.since.0, now));
            [clean(&host.name_any()), phase_word(status), since, wait_for]
        })
        .collect();
    table(["NAME", "PHASE", "SINCE", "WAITING FOR"], &rows)
}

/// All that there is to know of a host, for people.
fn describe(object: &Hypervisor) -> String {
    let mut out = format!("{}: {}\n", clean(&object.name_any()), line(object));
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
    if let Some(stale) = stale(status) {
        writeln!(out, "  STALE: {}", clean(stale)).ok();
    }
    if let Some(said) = said(status) {
        writeln!(out, "  {}", clean(said)).ok();
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
        writeln!(out, "{}", clean(line.trim_end())).ok();
    }
    out
}

/// The same for programs.
fn document(object: &Hypervisor) -> Value {
    let status = object.status.as_ref();
    json!({
        "name": object.name_any(),
        "phase": status.and_then(|status| status.phase),
        "waitingFor": status.and_then(|status| status.waiting_for.as_ref()),
        "message": status.and_then(said),
        "stale": status.and_then(stale),
        "checks": status.map_or(&[][..], |status| &status.checks),
    })
}

/// What the operator says of a silent agent's report.
fn stale(status: &HypervisorStatus) -> Option<&str> {
    let found = conditions::find(&status.conditions, Type::LibVirtConnection)?;
    (found.reason == Reason::AgentSilent.as_str()).then_some(found.message.as_str())
}

/// How onboarding went; of a host that is through with it, why it is not ready.
fn said(status: &HypervisorStatus) -> Option<&str> {
    let all = &status.conditions;
    let mut found = conditions::find(all, Type::Onboarding)?;
    let succeeded = conditions::reason(all, Type::Onboarding) == Some(Reason::Succeeded);
    let ready = conditions::find(all, Type::Ready);
    if let Some(ready) = ready.filter(|ready| succeeded && ready.status != Status::True.as_str()) {
        found = ready;
    }
    Some(found.message.as_str()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use cobalt_api::hypervisor::HypervisorSpec;
    use cobalt_api::wait::Wait;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn host(name: &str, phase: Option<Phase>, wait: Option<&str>) -> Hypervisor {
        let mut host = Hypervisor::new(name, HypervisorSpec::default());
        host.status = phase.map(|phase| HypervisorStatus {
            phase: Some(phase),
            waiting_for: wait.map(|message| Wait {
                reason: "Reason".to_owned(),
                message: Some(message.to_owned()),
                since: Time(at(10)),
                deadline: None,
            }),
            ..HypervisorStatus::default()
        });
        host
    }

    #[test]
    fn all_hosts_are_shown_with_what_they_wait_for_and_since_when() {
        let hosts = [
            host("hv1", Some(Phase::Active), None),
            host(
                "hv2",
                Some(Phase::Testing),
                Some("the test\u{1b}[2J server"),
            ),
            host("hv10", None, None),
        ];
        let expected = "\
NAME  PHASE    SINCE  WAITING FOR
hv1   Active   -      -
hv2   Testing  1m30s  the test [2J server
hv10  unknown  -      the operator has not seen it yet
";
        assert_eq!(overview(&hosts, at(100)), expected);
        assert!(overview(&[], at(0)).contains(labels::VIRT_DRIVER));
    }

    #[test]
    fn programs_get_the_same_fields_of_every_host() {
        let waiting = document(&host("hv2", Some(Phase::Testing), Some("a test")));
        assert_eq!(waiting["phase"], "Testing");
        assert_eq!(waiting["waitingFor"]["message"], "a test");
        let unseen = document(&host("hv10", None, None));
        let names = |value: &Value| {
            let fields = value.as_object().unwrap().keys();
            fields.cloned().collect::<Vec<String>>()
        };
        assert_eq!(names(&unseen), names(&waiting));
        assert_eq!(unseen["checks"], json!([]));
    }

    #[test]
    fn without_a_name_all_hosts_are_meant() {
        use clap::Parser;
        #[derive(Debug, Parser)]
        struct Program {
            #[command(flatten)]
            arguments: OnboardArgs,
        }
        let parse = |words: &[&str]| Program::try_parse_from([&["onboard"], words].concat());
        let Ok(parsed) = parse(&["status", "-o", "json"]) else {
            panic!("it is refused")
        };
        let Command::Status { nodes, output } = parsed.arguments.command else {
            panic!("it is another command")
        };
        assert!(nodes.is_empty());
        assert_eq!(output.output, Format::Json);
        assert!(parse(&["retry"]).is_err());
    }
}

#[cfg(test)]
mod staleness {
    use cobalt_api::conditions::Wanted;

    use super::*;

    #[test]
    fn a_host_whose_agent_is_silent_is_not_said_to_take_workload() {
        let condition = |condition, status, reason, message: &str| {
            let message = message.to_owned();
            let wanted = Wanted {
                condition,
                status,
                reason,
                message,
                observed_generation: None,
            };
            wanted.build(&[], Timestamp::UNIX_EPOCH)
        };
        let mut host = Hypervisor::new("hv1", Default::default());
        let works = "the host takes workload";
        let mut conditions = vec![
            condition(Type::Onboarding, Status::False, Reason::Succeeded, works),
            condition(Type::Ready, Status::True, Reason::Ready, works),
            condition(
                Type::LibVirtConnection,
                Status::True,
                Reason::Connected,
                "yes",
            ),
        ];
        host.status = Some(HypervisorStatus {
            phase: Some(Phase::Active),
            conditions: conditions.clone(),
            ..HypervisorStatus::default()
        });
        let expected = "hv1: Active\n  the host takes workload\n";
        assert_eq!(describe(&host), expected);
        let (silent, unready) = ("silent since noon", "LibVirtConnection: silent since noon");
        conditions[1] = condition(Type::Ready, Status::False, Reason::NotReady, unready);
        let libvirt = Type::LibVirtConnection;
        conditions[2] = condition(libvirt, Status::Unknown, Reason::AgentSilent, silent);
        host.status.as_mut().unwrap().conditions = conditions;
        let expected = "hv1: Active, NOT ready\n  STALE: silent since noon\n  \
                        LibVirtConnection: silent since noon\n";
        assert_eq!(describe(&host), expected);
    }
}
