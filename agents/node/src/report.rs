//! The only writer of the Hypervisor's status: waits until something has changed, and applies the
//! agent's part of the status if it is not written already.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cobalt_api::conditions::HypervisorCondition;
use cobalt_api::hypervisor::{Hypervisor, HypervisorStatus, OperatingSystem, UpdateStatus};
use cobalt_api::names::FieldManager;
use cobalt_runtime::{ApplyError, Backoff, Observed, Pace, apply_status, chain};
use jiff::Timestamp;
use kube::{Api, ResourceExt};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::context::{Context, Statements};
use crate::inventory::Inventory;
use crate::lease::Holder;
use crate::metrics::Metrics;
use crate::status::{self, Known};

/// Events come in pairs and more: a start is Resumed and Started. Waiting this long makes one write
/// of them.
const GATHER: Duration = Duration::from_millis(1);
/// How long libvirt and systemd are waited for before the first write.
const FIRST: Duration = Duration::from_secs(3);
const DEADLINE: Duration = Duration::from_secs(15);
const BURST: u32 = 5;
const EVERY: Duration = Duration::from_millis(500);
/// Longer than any wait below, and the pulse beats at each turn.
const TURN: Duration = Duration::from_secs(60);

/// What the report reads.
#[derive(Debug)]
struct Inputs {
    inventory: watch::Receiver<Option<Arc<Inventory>>>,
    operating_system: watch::Receiver<Option<OperatingSystem>>,
    update_status: watch::Receiver<Option<UpdateStatus>>,
    conditions: watch::Receiver<Statements>,
    hypervisor: watch::Receiver<Observed<Hypervisor>>,
    holder: watch::Receiver<Holder>,
}

impl Inputs {
    /// Waits for a change of any of them. `Err` when their writers have ended.
    async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        tokio::select! {
            changed = self.inventory.changed() => changed,
            changed = self.operating_system.changed() => changed,
            changed = self.update_status.changed() => changed,
            changed = self.conditions.changed() => changed,
            changed = self.hypervisor.changed() => changed,
            changed = self.holder.changed() => changed,
        }
    }

    fn known(&mut self) -> Known {
        Known {
            inventory: self.inventory.borrow_and_update().clone(),
            operating_system: self.operating_system.borrow_and_update().clone(),
            update_status: self.update_status.borrow_and_update().clone(),
            conditions: self.conditions.borrow_and_update().clone(),
        }
    }

    /// libvirt was read, or is known to be away.
    fn spoke(&self) -> bool {
        self.conditions
            .borrow()
            .contains_key(&HypervisorCondition::LibVirtConnection)
    }
}

/// Runs until it is cancelled.
pub async fn run(
    ctx: Context,
    inventory: watch::Receiver<Option<Arc<Inventory>>>,
    holder: watch::Receiver<Holder>,
    metrics: Metrics,
    cancel: CancellationToken,
) {
    let mut inputs = Inputs {
        inventory,
        operating_system: ctx.operating_system.subscribe(),
        update_status: ctx.update_status.subscribe(),
        conditions: ctx.conditions.subscribe(),
        hypervisor: ctx.hypervisor.clone(),
        holder,
    };
    let pulse = ctx.health.pulse("report", TURN * 3);
    let api: Api<Hypervisor> = Api::all(ctx.client.clone());
    let mut pace = Pace::new(BURST, EVERY);
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
    let mut sent: Option<Sent> = None;
    let mut wait = Duration::ZERO;
    let first = Instant::now() + FIRST;
    while !inputs.spoke() && Instant::now() < first {
        let left = first.saturating_duration_since(Instant::now());
        if !matches!(
            tokio::time::timeout(left, inputs.changed()).await,
            Ok(Ok(()))
        ) {
            break;
        }
    }
    loop {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = cancel.cancelled() => return,
        }
        pulse.beat();
        let outcome = turn(&ctx, &api, &mut inputs, &mut pace, &mut sent, &metrics).await;
        wait = match outcome {
            Turn::Done => {
                backoff.reset();
                tokio::select! {
                    changed = inputs.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep(TURN) => {}
                    () = cancel.cancelled() => return,
                }
                GATHER
            }
            Turn::Later(wait) => wait,
            Turn::Failed => backoff.next_wait(),
        };
    }
}

enum Turn {
    /// All is written, or there is nothing to write it to: wait for a change.
    Done,
    /// Too fast: come back with what is known then.
    Later(Duration),
    /// It was not written: come back after a while.
    Failed,
}

/// The last write.
struct Sent {
    wanted: HypervisorStatus,
    /// The version it was based on. While the watch still shows that one, the answer is newer.
    before: Option<String>,
    after: Arc<Hypervisor>,
}

impl Sent {
    /// The API server may keep something that we want gone because somebody else owns it; sending
    /// the same again would not help.
    fn repeats(&self, wanted: &HypervisorStatus, hypervisor: &Hypervisor) -> bool {
        let own = |object: &Hypervisor| object.status.as_ref().map(status::own);
        self.wanted == *wanted
            && self.after.uid() == hypervisor.uid()
            && own(&self.after) == own(hypervisor)
    }
}

async fn turn(
    ctx: &Context,
    api: &Api<Hypervisor>,
    inputs: &mut Inputs,
    pace: &mut Pace,
    sent: &mut Option<Sent>,
    metrics: &Metrics,
) -> Turn {
    let holder = inputs.holder.borrow_and_update().clone();
    let observed = inputs.hypervisor.borrow_and_update().clone();
    let missing = match (&holder, &observed) {
        (Holder::Other(other), _) => Some(format!("\"{other}\" reports for this node")),
        (_, Observed::Unknown(reason)) => Some(reason.clone()),
        (_, Observed::Absent) => Some(format!("\"{}\" does not exist", ctx.node)),
        (_, Observed::Invalid(reason)) => Some(format!("\"{}\": {reason}", ctx.node)),
        (_, Observed::Present(_)) => None,
    };
    ctx.health.set_missing("hypervisor", missing);
    let (Some(hypervisor), Holder::Unknown | Holder::Me) = (observed.object(), &holder) else {
        return Turn::Done;
    };
    // Until the watch shows our last write, the answer to it is the newest there is.
    let hypervisor = match sent {
        Some(sent) if sent.before == hypervisor.resource_version() => Arc::clone(&sent.after),
        _ => Arc::clone(hypervisor),
    };
    let hypervisor = hypervisor.as_ref();
    let known = inputs.known();
    let wanted = status::wanted(&known, hypervisor, Timestamp::now());
    let repeats = |sent: &Sent| sent.repeats(&wanted, hypervisor);
    if status::is_written(&wanted, hypervisor) || sent.as_ref().is_some_and(repeats) {
        return Turn::Done;
    }
    let now = Instant::now();
    let wait = pace.wait(now);
    if wait > Duration::ZERO {
        return Turn::Later(wait);
    }
    pace.take(now);
    if tracing::enabled!(tracing::Level::DEBUG) {
        let changes = status::changes(&wanted, hypervisor);
        tracing::debug!(?changes, "write the status");
    }
    match write(api, hypervisor, &wanted).await {
        Ok(after) => {
            metrics.status_writes.inc();
            let before = hypervisor.resource_version();
            *sent = Some(Sent {
                wanted,
                before,
                after: Arc::new(after),
            });
            Turn::Done
        }
        Err(error) => {
            metrics.status_write_failures.inc();
            tracing::warn!(error, "failed to write the status; it is tried again");
            Turn::Failed
        }
    }
}

async fn write(
    api: &Api<Hypervisor>,
    hypervisor: &Hypervisor,
    wanted: &HypervisorStatus,
) -> Result<Hypervisor, String> {
    let patch = status::patch(wanted, hypervisor).map_err(|error| chain(&error))?;
    let name = hypervisor.name_any();
    let manager = FieldManager::NodeAgent.as_str();
    apply_status(api, &name, manager, &patch, DEADLINE)
        .await
        .map_err(|error: ApplyError| chain(&error))
}
