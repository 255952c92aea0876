//! The only writer of the OVSNode: makes it, waits until something has changed, and applies the
//! status if it is not written already.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cobalt_api::names::FieldManager;
use cobalt_api::ovsnode::{Diagnostics, Issue, OvsNode, OvsNodeStatus, Severity};
use cobalt_ovs::ovsdb::Connection;
use cobalt_runtime::{
    ApplyError, Backoff, Health, Note, Observed, Pace, Recorder, apply, apply_status, chain, within,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::decide::Snapshot;
use crate::decide::findings::{Kind, findings};
use crate::decide::ledger::{Judgement, Ledger};
use crate::decide::status;
use crate::metrics::Metrics;
use crate::observe::Link;
use crate::observe::counters;
use crate::observe::daemon::Daemon;
use crate::observe::flows::Flows;
use crate::observe::southbound::Southbound;
use crate::observe::switch::Switch;
use crate::settings::Settings;

/// Changes come in pairs and more: a port and its interface. Waiting this long makes one write of
/// them.
const GATHER: Duration = Duration::from_millis(10);
/// How long the switch is waited for before the first write.
const FIRST: Duration = Duration::from_secs(3);
const DEADLINE: Duration = Duration::from_secs(15);
/// How long counters are waited for; a database that hangs must not hold up the report of it.
const COUNTERS: Duration = Duration::from_secs(3);
/// How often the Node is looked for that an OVSNode without an owner belongs to. The agent may get
/// Nodes and not watch them.
const LOOK_FOR_OWNER: Duration = Duration::from_secs(10);
const BURST: u32 = 10;
const EVERY: Duration = Duration::from_millis(500);
/// Longer than any wait below, and the pulse beats at each turn.
const TURN: Duration = Duration::from_secs(60);

/// What the report reads. Others may look, too.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// The connection to OVSDB.
    pub database: watch::Receiver<Link>,
    /// The switch.
    pub switch: watch::Receiver<Option<Arc<Switch>>>,
    /// A connection for questions.
    pub connection: watch::Receiver<Option<Connection>>,
    /// ovs-vswitchd.
    pub vswitchd: watch::Receiver<Daemon>,
    /// ovsdb-server.
    pub ovsdb_server: watch::Receiver<Daemon>,
    /// ovn-controller.
    pub ovn_controller: watch::Receiver<Daemon>,
    /// The flows of each bridge.
    pub flows: watch::Receiver<Arc<Flows>>,
    /// The southbound database.
    pub southbound: watch::Receiver<Option<Arc<Southbound>>>,
    /// Refresh and thresholds.
    pub settings: watch::Receiver<Settings>,
    /// The OVSNode.
    pub node: watch::Receiver<Observed<OvsNode>>,
}

impl Inputs {
    /// Waits for a change of any of them. `Err` when their writers have ended.
    async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        tokio::select! {
            changed = self.database.changed() => changed,
            changed = self.switch.changed() => changed,
            changed = self.vswitchd.changed() => changed,
            changed = self.ovsdb_server.changed() => changed,
            changed = self.ovn_controller.changed() => changed,
            changed = self.flows.changed() => changed,
            changed = self.southbound.changed() => changed,
            changed = self.settings.changed() => changed,
            changed = self.node.changed() => changed,
        }
    }

    /// What is known now, without the counters.
    pub fn snapshot(&mut self) -> Snapshot {
        Snapshot {
            database: self.database.borrow_and_update().clone(),
            switch: self.switch.borrow_and_update().clone(),
            vswitchd: self.vswitchd.borrow_and_update().clone(),
            ovsdb_server: self.ovsdb_server.borrow_and_update().clone(),
            ovn_controller: self.ovn_controller.borrow_and_update().clone(),
            flows: Arc::clone(&self.flows.borrow_and_update()),
            southbound: self.southbound.borrow_and_update().clone(),
            counters: None,
            diagnostics: None,
        }
    }

    /// The switch was read, or is known to be away; and so for its daemons.
    fn spoke(&self) -> bool {
        *self.database.borrow() != Link::Unknown
            && *self.vswitchd.borrow() != Daemon::Unknown
            && *self.ovsdb_server.borrow() != Daemon::Unknown
            && *self.ovn_controller.borrow() != Daemon::Unknown
    }
}

/// What the report needs beside its inputs.
#[derive(Clone)]
pub struct ReportConfig {
    /// The name of the node, and so of the OVSNode.
    pub node: Arc<str>,
    /// Where the OVSNode is.
    pub namespace: Arc<str>,
    /// The Kubernetes API.
    pub client: Client,
    /// Where issues that come and go are told.
    pub recorder: Recorder,
    /// Signs of life.
    pub health: Health,
    /// The agent's own metrics.
    pub metrics: Metrics,
    /// The issues as they are written, for the metrics.
    pub issues: watch::Sender<Vec<Issue>>,
    /// Where this agent answers questions.
    pub diagnostics: Option<Diagnostics>,
}

impl std::fmt::Debug for ReportConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReportConfig")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// Runs until it is cancelled.
pub async fn run(config: ReportConfig, mut inputs: Inputs, cancel: CancellationToken) {
    let pulse = config.health.pulse("report", TURN * 3);
    let mut writer = Writer::new(config);
    let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
    let first = Instant::now() + FIRST;
    while !inputs.spoke() && Instant::now() < first {
        let left = first.saturating_duration_since(Instant::now());
        let waited = tokio::time::timeout(left, inputs.changed());
        if !matches!(waited.await, Ok(Ok(()))) {
            break;
        }
    }
    let mut wait = Duration::ZERO;
    loop {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = cancel.cancelled() => return,
        }
        pulse.beat();
        wait = match writer.turn(&mut inputs).await {
            Turn::Done { look_again } => {
                backoff.reset();
                tokio::select! {
                    changed = inputs.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep(look_again.min(TURN)) => {}
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
    /// All is written, or there is nothing to write it to: wait for a change, or so long.
    Done { look_again: Duration },
    /// Too fast: come back with what is known then.
    Later(Duration),
    /// It was not written: come back after a while.
    Failed,
}

/// The last write.
struct Sent {
    wanted: OvsNodeStatus,
    /// The version it was based on. While the watch still shows that one, the answer is newer.
    before: Option<String>,
    after: Arc<OvsNode>,
}

struct Writer {
    config: ReportConfig,
    api: Api<OvsNode>,
    pace: Pace,
    ledger: Ledger,
    /// Issues that were told as Events, by kind and object. None before the object was seen.
    told: Option<BTreeMap<(String, String), Issue>>,
    /// The sums of counters as they were read last.
    counters: Option<cobalt_api::ovsnode::Metrics>,
    /// When counters are written again.
    due: Instant,
    /// The OVSNode, as it was seen last, goes with its Node.
    owned: bool,
    /// When the owner of an OVSNode that has none is looked for.
    owner_due: Instant,
    sent: Option<Sent>,
}

impl Writer {
    fn new(config: ReportConfig) -> Self {
        Self {
            api: Api::namespaced(config.client.clone(), &config.namespace),
            config,
            pace: Pace::new(BURST, EVERY),
            ledger: Ledger::default(),
            told: None,
            counters: None,
            due: Instant::now(),
            owned: false,
            owner_due: Instant::now(),
            sent: None,
        }
    }

    async fn turn(&mut self, inputs: &mut Inputs) -> Turn {
        let settings = *inputs.settings.borrow_and_update();
        let observed = inputs.node.borrow_and_update().clone();
        let missing = match &observed {
            Observed::Unknown(reason) => Some(reason.clone()),
            Observed::Invalid(reason) => Some(format!("\"{}\": {reason}", self.config.node)),
            Observed::Present(_) => None,
            // What is missing then, it says itself.
            Observed::Absent => return self.create().await,
        };
        self.config.health.set_missing("ovsnode", missing);
        let Some(node) = observed.object() else {
            return Turn::Done { look_again: TURN };
        };
        self.owned = has_owner(node);
        if !self.owned
            && Instant::now() >= self.owner_due
            && let Some(turn) = self.adopt(node).await
        {
            return turn;
        }
        // Until the watch shows our last write, the answer to it is the newest there is.
        let node = match &self.sent {
            Some(sent) if sent.before == node.resource_version() => Arc::clone(&sent.after),
            _ => Arc::clone(node),
        };
        // A refresh interval that became shorter counts from now on.
        let now = Instant::now();
        self.due = self.due.min(now + settings.refresh_interval);
        // Those that were never read are due as soon as somebody can be asked.
        let first = self.counters.is_none() && inputs.connection.borrow().is_some();
        let refresh = first || now >= self.due;
        if refresh {
            self.read_counters(inputs).await;
        }
        let snapshot = Snapshot {
            counters: self.counters,
            diagnostics: self.config.diagnostics.clone(),
            ..inputs.snapshot()
        };
        let judgement = self.judge(&snapshot, &settings, &node);
        let next = judgement.next.unwrap_or(TURN);
        let wanted = status::wanted(&snapshot, judgement.issues, &node, Timestamp::now());
        self.tell(&node, &wanted.issues);
        if status::is_written(&wanted, &node, refresh) || self.repeats(&wanted, &node) {
            if refresh {
                self.due = Instant::now() + settings.refresh_interval;
            }
            let look_again = self.look_again(next);
            return Turn::Done { look_again };
        }
        let wait = self.pace.wait(Instant::now());
        if wait > Duration::ZERO {
            return Turn::Later(wait);
        }
        self.pace.take(Instant::now());
        if tracing::enabled!(tracing::Level::DEBUG) {
            let changes = status::changes(&wanted, &node);
            tracing::debug!(?changes, "write the status");
        }
        match self.write(&node, &wanted).await {
            Ok(after) => {
                self.config.metrics.status_writes.inc();
                if refresh {
                    self.due = Instant::now() + settings.refresh_interval;
                }
                let before = node.resource_version();
                let after = Arc::new(after);
                self.sent = Some(Sent {
                    wanted,
                    before,
                    after,
                });
                let look_again = self.look_again(next);
                Turn::Done { look_again }
            }
            // It was deleted meanwhile: the watch tells, too.
            Err(ApplyError::NotFound { .. }) => Turn::Failed,
            Err(error) => self.failed(&error, "failed to write the status; it is tried again"),
        }
    }

    /// When there is something to do although nothing happens.
    fn look_again(&self, next: Duration) -> Duration {
        let until = |due: Instant| due.saturating_duration_since(Instant::now());
        let next = next.min(until(self.due));
        if self.owned {
            next
        } else {
            next.min(until(self.owner_due))
        }
    }

    fn failed(&self, error: &ApplyError, what: &str) -> Turn {
        self.config.metrics.status_write_failures.inc();
        tracing::warn!(error = chain(error), "{what}");
        Turn::Failed
    }

    fn judge(&mut self, snapshot: &Snapshot, settings: &Settings, node: &OvsNode) -> Judgement {
        if self.told.is_none() {
            let issues = node.status.as_ref().map(|status| status.issues.as_slice());
            let issues = issues.unwrap_or_default();
            self.ledger.remember(issues, Timestamp::now());
            self.told = Some(by_name(issues));
        }
        self.ledger
            .judge(findings(snapshot, settings), Timestamp::now())
    }

    /// The API server may keep something that we want gone because somebody else owns it; sending
    /// the same again would not help.
    fn repeats(&self, wanted: &OvsNodeStatus, node: &OvsNode) -> bool {
        self.sent.as_ref().is_some_and(|sent| {
            sent.wanted == *wanted
                && sent.after.uid() == node.uid()
                && sent.after.status == node.status
        })
    }

    async fn read_counters(&mut self, inputs: &Inputs) {
        let connection = inputs.connection.borrow().clone();
        let Some(connection) = connection else {
            return;
        };
        match counters::read(&connection, COUNTERS).await {
            Ok(all) => self.counters = Some(counters::sum(&all)),
            Err(error) => tracing::debug!(error = chain(&error), "failed to read counters"),
        }
    }

    async fn write(&self, node: &OvsNode, wanted: &OvsNodeStatus) -> Result<OvsNode, ApplyError> {
        let name = node.name_any();
        let patch = status::patch(wanted, node).unwrap_or_default();
        let manager = FieldManager::OvsAgent.as_str();
        apply_status(&self.api, &name, manager, &patch, DEADLINE).await
    }

    /// The Node as an owner. None: there is no such Node.
    async fn owner(&self) -> Result<Option<OwnerReference>, String> {
        let nodes: Api<Node> = Api::all(self.config.client.clone());
        let node = within(DEADLINE, nodes.get_opt(&self.config.node)).await?;
        Ok(node.and_then(|node| node.owner_ref(&())))
    }

    /// Makes the OVSNode. It goes with its Node, if there is one.
    async fn create(&mut self) -> Turn {
        let owner = self.owner().await;
        if self.owned && matches!(owner, Ok(None)) {
            // It was deleted with its Node. Made now, it would have no owner and stay for ever.
            let why = format!(
                "the Node \"{}\" is gone, and its OVSNode with it; it is made again when the Node is \
                 back",
                self.config.node
            );
            self.config.health.set_missing("ovsnode", Some(why));
            return Turn::Failed;
        }
        let owner = owner.unwrap_or_else(|error| {
            tracing::debug!(
                error,
                "failed to read the Node; its OVSNode gets its owner later"
            );
            None
        });
        let content = content(&self.config, owner, None);
        let name = self.config.node.as_ref();
        let manager = FieldManager::OvsAgent.as_str();
        match apply(&self.api, name, manager, &content, DEADLINE).await {
            Ok(_) => {
                tracing::info!(name, "the OVSNode is made");
                self.config.health.set_missing("ovsnode", None);
                // The watch shows it next; that is a change.
                Turn::Done { look_again: TURN }
            }
            Err(error) => {
                let why = Some(chain(&error));
                self.config.health.set_missing("ovsnode", why);
                self.failed(&error, "failed to make the OVSNode; it is tried again")
            }
        }
    }

    /// Lets an OVSNode go with its Node that was made while there was none. None: there is still
    /// none, and the turn goes on.
    async fn adopt(&mut self, node: &OvsNode) -> Option<Turn> {
        self.owner_due = Instant::now() + LOOK_FOR_OWNER;
        let owner = self.owner().await.ok()??;
        let content = content(&self.config, Some(owner), node.uid());
        let name = self.config.node.as_ref();
        let manager = FieldManager::OvsAgent.as_str();
        Some(
            match apply(&self.api, name, manager, &content, DEADLINE).await {
                Ok(_) => {
                    tracing::info!(name, "the OVSNode goes with its Node from now on");
                    Turn::Done { look_again: TURN }
                }
                Err(error) => self.failed(
                    &error,
                    "failed to give the OVSNode its owner; it is tried again",
                ),
            },
        )
    }

    /// Tells of issues that came and went.
    fn tell(&mut self, node: &OvsNode, issues: &[Issue]) {
        let now = by_name(issues);
        let before = self.told.replace(now.clone()).unwrap_or_default();
        if before == now {
            return;
        }
        drop(self.config.issues.send_replace(issues.to_vec()));
        let about = node.object_ref(&());
        let kind_of = |name: &str| Kind::ALL.iter().find(|kind| kind.as_str() == name);
        let note = |issue: &Issue, action, cleared: bool| {
            let kind = kind_of(issue.kind.as_deref().unwrap_or_default())?;
            let calm = cleared || issue.severity == Severity::Info;
            Some(Note {
                severity: if calm {
                    cobalt_runtime::Severity::Normal
                } else {
                    cobalt_runtime::Severity::Warning
                },
                reason: kind.as_str(),
                action,
                text: if cleared {
                    format!("No longer: {}", issue.message)
                } else {
                    format!("{}. {}", issue.message, kind.remedy())
                },
            })
        };
        let came = now.iter().filter(|(key, _)| !before.contains_key(key));
        let went = before.iter().filter(|(key, _)| !now.contains_key(key));
        let notes = came
            .filter_map(|(_, issue)| note(issue, "Detected", false))
            .chain(went.filter_map(|(_, issue)| note(issue, "Cleared", true)));
        for note in notes {
            self.config.recorder.report(&about, note);
        }
    }
}

/// Whether an OVSNode goes with its Node.
fn has_owner(node: &OvsNode) -> bool {
    let owners = node.owner_references().iter();
    let mut owners = owners.filter(|owner| owner.kind == Node::kind(&()));
    owners.any(|owner| owner.name == node.name_any())
}

/// An OVSNode without its status. With a uid it is that object and no other.
fn content(config: &ReportConfig, owner: Option<OwnerReference>, uid: Option<String>) -> Value {
    let name = config.node.as_ref();
    let mut metadata = json!({ "name": name, "namespace": config.namespace.as_ref() });
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.extend(owner.map(|owner| ("ownerReferences".to_owned(), json!([owner]))));
        metadata.extend(uid.map(|uid| ("uid".to_owned(), json!(uid))));
    }
    json!({
        "apiVersion": OvsNode::api_version(&()),
        "kind": OvsNode::kind(&()),
        "metadata": metadata,
        "spec": { "nodeRef": { "name": name } },
    })
}

fn by_name(issues: &[Issue]) -> BTreeMap<(String, String), Issue> {
    let key = |issue: &Issue| {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        (text(&issue.kind), text(&issue.object))
    };
    issues
        .iter()
        .map(|issue| (key(issue), issue.clone()))
        .collect()
}
