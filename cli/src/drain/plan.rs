//! What a drain would meet: an Eviction that examines and moves nothing. It is deleted in any case.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cobalt_api::conditions::{self, EvictionCondition};
use cobalt_api::eviction::{
    Eviction, EvictionInstance, EvictionSpec, EvictionStatus, Outcome, Verdict,
};
use cobalt_api::names::annotations;
use futures::StreamExt;
use kube::ResourceExt;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::begin::{check, owner, transfer_labels};
use super::cluster::{Cluster, Sight};
use super::follow::{LEFT_RUNNING, interrupts};
use super::text::{name, reason};
use crate::output::Format;
use crate::text::{clean, put, table};

/// How long an operator may take to examine a host.
const EXAMINATION: Duration = Duration::from_secs(600);
/// The exit code when some instances cannot move.
const SOME_CANNOT: u8 = 3;

/// Shows the plans of hosts, one after the other.
pub async fn run(
    cluster: &Cluster,
    nodes: &[String],
    why: Option<String>,
    format: Format,
) -> Result<ExitCode> {
    let why = why.unwrap_or_else(|| "cobalt drain --plan".to_owned());
    let mut all_can = true;
    let mut hosts = Vec::new();
    for node in nodes {
        let others = nodes.iter().filter(|other| *other != node);
        let others: Vec<&str> = others.map(String::as_str).collect();
        let Some(status) = examine(cluster, node, &why, &others).await? else {
            return Ok(ExitCode::from(LEFT_RUNNING));
        };
        if format == Format::Text {
            put(&render(node, &status));
        }
        all_can &= can_all_move(&status);
        hosts.push(json!({
            "name": node, "canAllMove": can_all_move(&status), "instances": status.instances,
        }));
    }
    format.document(&json!({ "hosts": hosts }))?;
    Ok(ExitCode::from(if all_can { 0 } else { SOME_CANNOT }))
}

/// The status of an Eviction that has examined the host, if the others are drained at the same time.
/// None: interrupted.
async fn examine(
    cluster: &Cluster,
    node: &str,
    why: &str,
    others: &[&str],
) -> Result<Option<EvictionStatus>> {
    let mut interrupts = interrupts()?;
    let mut ends =
        signal(SignalKind::terminate()).context("failed to listen for a request to end")?;
    let host = cluster.hypervisor(node).await?;
    if let Err(refusal) = check(&host) {
        bail!("{node} cannot be drained: {refusal}");
    }
    let spec = EvictionSpec {
        hypervisor: node.to_owned(),
        reason: why.to_owned(),
        dry_run: Some(true),
        ..EvictionSpec::default()
    };
    let mut eviction = Eviction::new("", spec);
    eviction.metadata.name = None;
    eviction.metadata.generate_name = Some(format!("{node}-plan-"));
    eviction.metadata.labels = Some(transfer_labels(&host));
    if !others.is_empty() {
        let with = (annotations::DRAINED_WITH.to_owned(), others.join(","));
        eviction.metadata.annotations = Some([with].into());
    }
    // It goes with the host, should this program not live to delete it.
    eviction.metadata.owner_references = Some(vec![owner(&host)]);
    let made = cluster.create(&eviction).await?;
    let made = made.context("the name of the plan is taken; try again")?;
    let found = tokio::select! {
        found = tokio::time::timeout(EXAMINATION, examined(cluster, &made)) => match found {
            Ok(found) => found.map(Some),
            Err(_) => Err(anyhow::anyhow!(
                "{node} was not examined within {} s; see whether the operator runs",
                EXAMINATION.as_secs()
            )),
        },
        _ = interrupts.recv() => Ok(None),
        _ = ends.recv() => Ok(None),
    };
    let uid = made.uid().unwrap_or_default();
    let deleted = cluster.delete(&made.name_any(), &uid).await;
    let found = found?;
    deleted?;
    Ok(found)
}

/// Waits until the Eviction has examined the host.
async fn examined(cluster: &Cluster, made: &Eviction) -> Result<EvictionStatus> {
    let node = &made.spec.hypervisor;
    let watch = watcher::watch_object(cluster.evictions.clone(), &made.name_any());
    let mut changes = std::pin::pin!(watch.default_backoff());
    let mut said = String::new();
    let mut sight = Sight::default();
    while let Some(change) = changes.next().await {
        match change {
            Ok(Some(seen)) => {
                sight.sees();
                let status = seen.status.unwrap_or_default();
                match status.outcome {
                    Some(Outcome::Succeeded | Outcome::PartiallyFailed) => return Ok(status),
                    // Nothing that is known to move is a plan, too.
                    Some(_) if !status.instances.is_empty() => return Ok(status),
                    Some(outcome) => bail!(
                        "{node} could not be examined ({outcome}): {}",
                        message(&status).unwrap_or("no reason was given")
                    ),
                    None => {}
                }
                let wait = status.waiting_for.as_ref();
                let wait = wait.and_then(|wait| wait.message.as_deref());
                let wait = clean(wait.unwrap_or("the operator has not examined it yet"));
                if said != wait {
                    eprintln!("{node}: waiting: {wait}");
                    said = wait;
                }
            }
            Ok(None) => bail!("somebody deleted the plan of {node}; try again"),
            Err(error) if sight.is_lost(&error, Instant::now()) => {
                return Err(error).context("failed to watch the plan");
            }
            Err(_) => eprintln!("{node}: the API server does not answer; trying again"),
        }
    }
    bail!("the watch has ended; try again")
}

fn message(status: &EvictionStatus) -> Option<&str> {
    let found = conditions::find(&status.conditions, EvictionCondition::Evicting)?;
    Some(found.message.as_str()).filter(|text| !text.is_empty())
}

fn verdict(row: &EvictionInstance) -> Verdict {
    row.preflight
        .as_ref()
        .map_or(Verdict::Unknown, |found| found.verdict)
}

/// Whether every instance is known to be movable.
fn can_all_move(status: &EvictionStatus) -> bool {
    status
        .instances
        .iter()
        .all(|row| matches!(verdict(row), Verdict::Movable | Verdict::MovableCold))
}

/// The plan as a table, what cannot move first.
fn render(node: &str, status: &EvictionStatus) -> String {
    let rank = |verdict| match verdict {
        Verdict::Blocked => 0,
        Verdict::Unknown => 1,
        Verdict::MovableCold => 2,
        Verdict::Movable => 3,
    };
    let mut rows: Vec<&EvictionInstance> = status.instances.iter().collect();
    rows.sort_by_key(|row| (rank(verdict(row)), name(row), row.id.clone()));
    if rows.is_empty() {
        return format!("{node}: there is nothing to move\n");
    }
    let cells: Vec<_> = rows
        .iter()
        .map(|row| {
            let hosts = row.preflight.as_ref().and_then(|found| found.hosts);
            [
                name(row),
                clean(row.status.as_deref().unwrap_or("-")),
                row.memory_mb.map_or_else(|| "-".to_owned(), memory),
                verdict(row).as_str().to_owned(),
                hosts.map_or_else(|| "-".to_owned(), |hosts| hosts.to_string()),
                reason(row),
            ]
        })
        .collect();
    let head = ["NAME", "STATE", "MEMORY", "VERDICT", "HOSTS", "REASON"];
    let count = |wanted| rows.iter().filter(|row| verdict(row) == wanted).count();
    let total: i64 = rows.iter().filter_map(|row| row.memory_mb).sum();
    format!(
        "{}\n{node}: {} instances, {}: {} can move, {} only while stopped, {} blocked, {} unknown\n",
        table(head, &cells),
        rows.len(),
        memory(total),
        count(Verdict::Movable),
        count(Verdict::MovableCold),
        count(Verdict::Blocked),
        count(Verdict::Unknown),
    )
}

fn memory(mib: i64) -> String {
    if mib >= 1024 && mib % 1024 == 0 {
        format!("{} GiB", mib / 1024)
    } else {
        format!("{mib} MiB")
    }
}

#[cfg(test)]
mod tests {
    use cobalt_api::eviction::{Preflight, PreflightFinding};

    use super::*;

    fn row(
        name: &str,
        verdict: Option<Verdict>,
        hosts: i32,
        why: Option<&str>,
    ) -> EvictionInstance {
        EvictionInstance {
            name: Some(name.to_owned()),
            status: Some("ACTIVE".to_owned()),
            memory_mb: Some(if hosts > 0 { 4096 } else { 512 }),
            preflight: verdict.map(|verdict| Preflight {
                verdict,
                hosts: Some(hosts),
                reasons: why
                    .map(|why| PreflightFinding {
                        reason: why.to_owned(),
                        message: None,
                    })
                    .into_iter()
                    .collect(),
            }),
            ..EvictionInstance::new(format!("id-{name}"))
        }
    }

    fn plan(rows: Vec<EvictionInstance>) -> EvictionStatus {
        EvictionStatus {
            instances: rows,
            ..EvictionStatus::default()
        }
    }

    #[test]
    fn a_plan_has_what_cannot_move_first() {
        let status = plan(vec![
            row("b", Some(Verdict::Movable), 3, None),
            row("a", Some(Verdict::Movable), 2, None),
            row("off", Some(Verdict::MovableCold), 1, None),
            row("new", None, 0, None),
            row("big", Some(Verdict::Blocked), 0, Some("NoCapacity")),
        ]);
        let expected = "\
NAME  STATE   MEMORY   VERDICT      HOSTS  REASON
big   ACTIVE  512 MiB  Blocked      0      NoCapacity
new   ACTIVE  512 MiB  Unknown      -
off   ACTIVE  4 GiB    MovableCold  1
a     ACTIVE  4 GiB    Movable      2
b     ACTIVE  4 GiB    Movable      3

hv1: 5 instances, 13 GiB: 2 can move, 1 only while stopped, 1 blocked, 1 unknown
";
        assert_eq!(render("hv1", &status), expected);
        assert_eq!(
            render("hv1", &plan(vec![])),
            "hv1: there is nothing to move\n"
        );
    }

    #[test]
    fn only_what_is_known_to_move_can_move() {
        let cases = [
            (Some(Verdict::Movable), true),
            (Some(Verdict::MovableCold), true),
            (Some(Verdict::Blocked), false),
            (Some(Verdict::Unknown), false),
            (None, false),
        ];
        for (verdict, expected) in cases {
            let status = plan(vec![
                row("a", Some(Verdict::Movable), 1, None),
                row("b", verdict, 1, None),
            ]);
            assert_eq!(can_all_move(&status), expected, "{verdict:?}");
        }
        assert!(can_all_move(&plan(vec![])));
    }
}
