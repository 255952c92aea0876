//! The flows of each bridge: how many in each table, of whom, and where they send packets.
//!
//! Nothing tells when flows change, so they are read again and again: less often the longer it
//! takes, because ovs-vswitchd does nothing else meanwhile.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cobalt_ovs::openflow::{Action, Connection, FlowFilter, ports};
use cobalt_ovs::{Error, Options};
use cobalt_runtime::{chain, jitter};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::switch::Switch;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// Of so much time, one part is for reading flows.
const SHARE: u32 = 100;
/// How soon a bridge that did not answer is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// The flows of all bridges, by bridge.
pub type Flows = BTreeMap<String, Arc<BridgeFlows>>;

/// The flows of a bridge, as they were read last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BridgeFlows {
    /// Why they cannot be read now.
    pub problem: Option<Problem>,
    /// How many flows each table has that has any. None if they were never read.
    pub tables: Option<BTreeMap<u8, u32>>,
    /// Flows by cookie, of the bridge that ovn-controller fills.
    pub cookies: BTreeMap<u64, Sample>,
    /// Flows by the port that they send packets to.
    pub outputs: BTreeMap<u32, Sample>,
}

/// Why flows cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The bridge takes a connection and does not answer.
    pub silent: bool,
    /// What happened.
    pub why: String,
}

/// Some flows that have something in common.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// The table of the first of them.
    pub table: u8,
    /// How many there are.
    pub count: u32,
}

impl Sample {
    fn count(&mut self, table: u8) {
        if self.count == 0 {
            self.table = table;
        }
        self.count = self.count.saturating_add(1);
    }
}

impl BridgeFlows {
    /// All flows together.
    #[must_use]
    pub fn total(&self) -> Option<i64> {
        let tables = self.tables.as_ref()?;
        Some(tables.values().map(|count| i64::from(*count)).sum())
    }
}

/// How flows are read.
#[derive(Debug, Clone)]
pub struct FlowsConfig {
    /// Where the bridges' sockets are.
    pub directory: PathBuf,
    /// How often.
    pub interval: Duration,
}

/// Runs until it is cancelled.
pub async fn run(
    config: FlowsConfig,
    mut switch: watch::Receiver<Option<Arc<Switch>>>,
    settings: watch::Receiver<Settings>,
    flows: watch::Sender<Arc<Flows>>,
    metrics: Metrics,
    cancel: CancellationToken,
) {
    let read = async {
        let mut connections = BTreeMap::new();
        loop {
            let seen = switch.borrow_and_update().clone();
            let begin = Instant::now();
            let mut problem = false;
            if let Some(seen) = &seen {
                let known = Arc::clone(&flows.borrow());
                let timeout = settings.borrow().answer_timeout;
                let now = round(&config, seen, &known, &mut connections, timeout).await;
                problem = now.values().any(|flows| flows.problem.is_some());
                flows.send_if_modified(|known| {
                    let new = **known != now;
                    if new {
                        *known = Arc::new(now);
                    }
                    new
                });
                metrics.flow_reads.inc();
            }
            let wait = match (&seen, problem) {
                (Some(_), false) => jitter(config.interval).max(begin.elapsed() * SHARE),
                _ => AGAIN,
            };
            // Bridges that come or go are read at once.
            let names = |switch: &Option<Arc<Switch>>| {
                let bridges = switch.iter().flat_map(|switch| switch.bridges.keys());
                bridges.cloned().collect::<Vec<_>>()
            };
            let before = names(&seen);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                changed = switch.wait_for(|switch| names(switch) != before) => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    };
    cancel.run_until_cancelled(read).await;
}

/// Reads every bridge once. One that does not answer keeps what was read last, and does not hold
/// up the others longer than its deadline.
async fn round(
    config: &FlowsConfig,
    switch: &Switch,
    known: &Flows,
    connections: &mut BTreeMap<String, Connection>,
    timeout: Duration,
) -> Flows {
    connections.retain(|name, _| switch.bridges.contains_key(name));
    let mut all = Flows::new();
    for name in switch.bridges.keys() {
        let cookies = *name == switch.integration_bridge;
        let read = match connection(config, connections, name, timeout).await {
            Ok(connection) => read(connection, cookies).await,
            Err(error) => Err(error),
        };
        let before = known.get(name);
        let now = match read {
            Ok(now) => now,
            Err(error) => {
                connections.remove(name);
                let mut now = before.map(|flows| (**flows).clone()).unwrap_or_default();
                // The first reason stays: each try may fail in another way.
                now.problem.get_or_insert_with(|| Problem {
                    silent: error.is_timeout(),
                    why: chain(&error),
                });
                now
            }
        };
        // What is the same is shared.
        let same = before.filter(|before| ***before == now).cloned();
        all.insert(name.clone(), same.unwrap_or_else(|| Arc::new(now)));
    }
    all
}

async fn connection<'a>(
    config: &FlowsConfig,
    connections: &'a mut BTreeMap<String, Connection>,
    bridge: &str,
    timeout: Duration,
) -> Result<&'a mut Connection, Error> {
    use std::collections::btree_map::Entry;
    match connections.entry(bridge.to_owned()) {
        Entry::Occupied(open) => Ok(open.into_mut()),
        Entry::Vacant(place) => {
            let options = Options {
                connect_timeout: timeout,
                call_timeout: timeout,
                ..Options::default()
            };
            let opened = Connection::of(&config.directory, bridge, &options).await?;
            Ok(place.insert(opened))
        }
    }
}

async fn read(connection: &mut Connection, cookies: bool) -> Result<BridgeFlows, Error> {
    let mut tables = BTreeMap::<u8, u32>::new();
    let mut found = BridgeFlows::default();
    let visited = connection.flows(FlowFilter::ALL, |flow| {
        *tables.entry(flow.table).or_default() += 1;
        if cookies && flow.cookie != 0 {
            found
                .cookies
                .entry(flow.cookie)
                .or_default()
                .count(flow.table);
        }
        let outputs = &mut found.outputs;
        let seen = flow.for_each_action(|action| match action {
            Action::Output(port) if port < ports::MAX => {
                outputs.entry(port).or_default().count(flow.table);
            }
            _ => {}
        });
        if let Err(error) = seen {
            tracing::debug!(%error, table = flow.table, "actions of a flow cannot be read");
        }
    });
    visited.await?;
    found.tables = Some(tables);
    Ok(found)
}
