//! OVN's southbound database, as far as it is about this node: how far it is, whether it knows the
//! node and its ports, and which flows belong to no row of it.
//!
//! Which database it is and what this node is called there, the switch says; nothing is read where
//! the switch belongs to no OVN.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cobalt_ovs::ovsdb::southbound::{self, cookie};
use cobalt_ovs::ovsdb::{Change, Condition, Event, Monitor, Select, Table, Tables};
use cobalt_ovs::{Identity, Options, Remote, Tls};
use cobalt_runtime::chain;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Link;
use super::flows::{Flows, Sample};
use super::mtus::Mtus;
use super::rows::{
    Binding, ChassisProgress, ChassisRow, DatapathBinding, Fdb, Global, LoadBalancer, LogicalFlow,
    MacBinding, MulticastGroup, StaticMacBinding,
};
use super::switch::Switch;
use crate::metrics::Metrics;

/// Flows of no row that are kept. More of them are no better known one by one.
const STRANGERS: usize = 64;

/// What is known of the southbound database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Southbound {
    /// The agent's own connection.
    pub link: Link,
    /// The number of the configuration that northd has written.
    pub nb_cfg: Option<i64>,
    /// Whether it knows this node.
    pub chassis: bool,
    /// The number of the configuration that this node has carried out.
    pub chassis_nb_cfg: Option<i64>,
    /// Where the logical ports are that interfaces of this node are for. One that is not here is
    /// not known to OVN.
    pub bindings: BTreeMap<String, Place>,
    /// The MTU that instances are told by DHCP, by logical port.
    pub mtus: BTreeMap<String, i64>,
    /// Flows of the integration bridge whose cookie is of no row, by cookie.
    pub strangers: BTreeMap<u64, Sample>,
}

/// Where a logical port is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Here.
    Here,
    /// On another chassis, by its name.
    Elsewhere(String),
    /// Nowhere.
    Nowhere,
}

/// How the database is reached.
#[derive(Debug, Clone)]
pub struct SouthboundConfig {
    /// Deadlines.
    pub options: Options,
    /// Authority, certificate, key.
    pub certificates: Option<[PathBuf; 3]>,
    /// What a certificate of the database has to prove.
    pub identity: Identity,
    /// Whether flows of no row are looked for.
    pub stale_flows: bool,
    /// How often.
    pub interval: Duration,
}

/// What the switch says about OVN.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    remotes: String,
    chassis: String,
}

impl Target {
    fn of(switch: Option<&Arc<Switch>>) -> Option<Self> {
        let switch = switch?;
        Some(Self {
            remotes: switch.southbound.clone()?,
            chassis: switch.chassis.clone()?,
        })
    }
}

/// Runs until it is cancelled.
pub async fn run(
    config: SouthboundConfig,
    mut switch: watch::Receiver<Option<Arc<Switch>>>,
    flows: watch::Receiver<Arc<Flows>>,
    seen: watch::Sender<Option<Arc<Southbound>>>,
    metrics: Metrics,
    cancel: CancellationToken,
) {
    let follow = async {
        loop {
            let target = Target::of(switch.borrow_and_update().as_ref());
            let Some(target) = target else {
                drop(seen.send_replace(None));
                metrics.southbound_connected.set(0);
                if switch.changed().await.is_err() {
                    return;
                }
                continue;
            };
            follow(&config, &target, &mut switch, &flows, &seen, &metrics).await;
        }
    };
    cancel.run_until_cancelled(follow).await;
}

/// Follows one database as one chassis, until the switch names another.
async fn follow(
    config: &SouthboundConfig,
    target: &Target,
    switch: &mut watch::Receiver<Option<Arc<Switch>>>,
    flows: &watch::Receiver<Arc<Flows>>,
    seen: &watch::Sender<Option<Arc<Southbound>>>,
    metrics: &Metrics,
) {
    let mut certificates = Certificates::default();
    let mut monitor = loop {
        match monitor(config, target, &mut certificates) {
            Ok(monitor) => break monitor,
            Err(why) => {
                lost(seen, metrics, why);
                // Certificates may come, and the switch may name another database.
                tokio::select! {
                    () = tokio::time::sleep(config.options.connect_timeout) => {}
                    _ = switch.changed() => {}
                }
                if Target::of(switch.borrow().as_ref()).as_ref() != Some(target) {
                    return;
                }
            }
        }
    };
    let mut check = tokio::time::interval(config.interval);
    check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut strange = BTreeMap::new();
    let mut mtus = Mtus::default();
    loop {
        tokio::select! {
            event = monitor.next() => match event {
                Event::Down { error, .. } => {
                    lost(seen, metrics, chain(&error));
                    if certificates.are_new(config) {
                        return;
                    }
                    continue;
                }
                Event::Changed(changes) if !changes.iter().any(concerns_nodes) => continue,
                _ => {}
            },
            changed = switch.changed() => {
                let now = Target::of(switch.borrow_and_update().as_ref());
                if changed.is_err() || now.as_ref() != Some(target) {
                    return;
                }
            }
            () = mtus.learn() => {}
            _ = check.tick() => {
                // All rows are gone through: too much for each transaction of a busy cloud.
                if let Some(connection) = monitor.connection() {
                    let bridge = switch.borrow().as_ref().map(|s| s.integration_bridge.clone());
                    let flows = bridge.and_then(|bridge| flows.borrow().get(&bridge).cloned());
                    if let Some(flows) = &flows {
                        mtus.ask(connection, &local_flows(&flows.cookies, &monitor));
                    }
                    strange = flows
                        .filter(|_| monitor.tables().count::<LogicalFlow>() > 0)
                        .map(|flows| strangers(&flows.cookies, identities(&monitor)))
                        .unwrap_or_default();
                }
            }
        }
        if monitor.connection().is_some() {
            metrics.southbound_connected.set(1);
            let now = read(&monitor, target, switch.borrow().as_ref());
            tell(
                seen,
                Southbound {
                    strangers: strange.clone(),
                    mtus: mtus.by_port(),
                    ..now
                },
            );
        }
    }
}

/// Whether a change is of more than the rows that flows are made of.
fn concerns_nodes(change: &Change) -> bool {
    [
        Global::NAME,
        ChassisRow::NAME,
        ChassisProgress::NAME,
        Binding::NAME,
    ]
    .contains(&change.table())
}

fn tell(seen: &watch::Sender<Option<Arc<Southbound>>>, now: Southbound) {
    seen.send_if_modified(|known| {
        let new = known.as_deref() != Some(&now);
        if new {
            *known = Some(Arc::new(now));
        }
        new
    });
}

/// What was known stays.
fn lost(seen: &watch::Sender<Option<Arc<Southbound>>>, metrics: &Metrics, why: String) {
    metrics.southbound_connected.set(0);
    tracing::debug!(why, "no southbound database");
    let mut now = seen.borrow().as_deref().cloned().unwrap_or_default();
    now.link = now.link.down(why);
    tell(seen, now);
}

fn monitor(
    config: &SouthboundConfig,
    target: &Target,
    certificates: &mut Certificates,
) -> Result<Monitor, String> {
    let remotes = Remote::list(&target.remotes)
        .map_err(|error| format!("external_ids:ovn-remote: {error}"))?;
    let mut options = config.options.clone();
    if remotes
        .iter()
        .any(|remote| matches!(remote, Remote::Ssl(..)))
    {
        options.tls = certificates.read(config)?;
    }
    let own = Condition::equal("name", target.chassis.as_str());
    let mut tables = Tables::new()
        .table::<Global>()
        .table::<ChassisRow>()
        .table::<Binding>()
        .select(Select::<ChassisProgress>::all().when(own));
    if config.stale_flows {
        tables = tables
            .table::<LogicalFlow>()
            .table::<MulticastGroup>()
            .table::<MacBinding>()
            .table::<StaticMacBinding>()
            .table::<LoadBalancer>()
            .table::<Fdb>()
            .table::<DatapathBinding>();
    }
    Ok(Monitor::new(southbound::DATABASE, remotes, tables, options))
}

/// The certificates in use.
#[derive(Debug, Default)]
struct Certificates(Vec<Vec<u8>>);

impl Certificates {
    fn files(config: &SouthboundConfig) -> Vec<Vec<u8>> {
        let paths = config.certificates.iter().flatten();
        paths
            .map(|path| std::fs::read(path).unwrap_or_default())
            .collect()
    }

    fn are_new(&self, config: &SouthboundConfig) -> bool {
        self.0 != Self::files(config)
    }

    fn read(&mut self, config: &SouthboundConfig) -> Result<Option<Tls>, String> {
        let Some([ca, certificate, key]) = &config.certificates else {
            return Err("the database wants certificates: set --southbound-ca, \
                        --southbound-certificate and --southbound-key"
                .to_owned());
        };
        self.0 = Self::files(config);
        Tls::from_files(ca, certificate, key, config.identity)
            .map(Some)
            .map_err(|error| chain(&error))
    }
}

fn read(monitor: &Monitor, target: &Target, switch: Option<&Arc<Switch>>) -> Southbound {
    let chassis = monitor.rows::<ChassisRow>();
    let chassis: BTreeMap<Uuid, &str> = chassis
        .map(|(uuid, row)| (uuid, row.name.as_str()))
        .collect();
    let here = |uuid: &Uuid| chassis.get(uuid) == Some(&target.chassis.as_str());
    let local = switch.map(|switch| switch.iface_ids()).unwrap_or_default();
    let bindings = monitor
        .rows::<Binding>()
        .filter(|(_, row)| local.contains(row.logical_port.as_str()))
        .map(|(_, row)| {
            let place = match row.chassis {
                _ if row.chassis.iter().chain(&row.additional_chassis).any(here) => Place::Here,
                Some(other) => {
                    Place::Elsewhere(chassis.get(&other).copied().unwrap_or("?").to_owned())
                }
                None => Place::Nowhere,
            };
            (row.logical_port.clone(), place)
        })
        .collect();
    let progress = monitor.rows::<ChassisProgress>();
    let mut progress = progress.filter(|(_, row)| row.name == target.chassis);
    Southbound {
        link: Link::Up,
        nb_cfg: monitor.rows::<Global>().next().map(|(_, row)| row.nb_cfg),
        chassis: chassis.values().any(|name| *name == target.chassis),
        chassis_nb_cfg: progress.next().map(|(_, row)| row.nb_cfg),
        bindings,
        mtus: BTreeMap::new(),
        strangers: BTreeMap::new(),
    }
}

/// The logical flows that flows of the switch are made of, with the tables of those.
fn local_flows(cookies: &BTreeMap<u64, Sample>, monitor: &Monitor) -> BTreeMap<Uuid, u8> {
    let rows = monitor.rows::<LogicalFlow>();
    rows.filter_map(|(uuid, _)| Some((uuid, cookies.get(&cookie(uuid))?.table)))
        .collect()
}

/// Everything that a flow may be made of.
fn identities(monitor: &Monitor) -> impl Iterator<Item = Uuid> {
    fn of<T: Table>(monitor: &Monitor) -> impl Iterator<Item = Uuid> {
        monitor.rows::<T>().map(|(uuid, _)| uuid)
    }
    of::<LogicalFlow>(monitor)
        .chain(of::<Binding>(monitor))
        .chain(of::<MulticastGroup>(monitor))
        .chain(of::<ChassisRow>(monitor))
        .chain(of::<MacBinding>(monitor))
        .chain(of::<StaticMacBinding>(monitor))
        .chain(of::<LoadBalancer>(monitor))
        .chain(of::<Fdb>(monitor))
        .chain(of::<DatapathBinding>(monitor))
}

/// The flows whose cookie is of no row.
fn strangers(
    cookies: &BTreeMap<u64, Sample>,
    rows: impl Iterator<Item = Uuid>,
) -> BTreeMap<u64, Sample> {
    let mut left = cookies.clone();
    for row in rows {
        left.remove(&cookie(row));
    }
    left.into_iter().take(STRANGERS).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_stranger_is_a_cookie_of_no_row(
            cookies in prop::collection::btree_set(0_u64..40, 0..30),
            rows in prop::collection::btree_set(0_u64..40, 0..30),
        ) {
            let samples = cookies.iter().map(|cookie| (*cookie, Sample::default())).collect();
            let uuids = rows.iter().map(|row| Uuid::from_u128(u128::from(*row) << 96));
            let found: Vec<u64> = strangers(&samples, uuids).into_keys().collect();
            let expected: Vec<u64> = cookies.difference(&rows).copied().collect();
            prop_assert_eq!(found, expected);
        }
    }
}
