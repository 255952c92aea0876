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
use cobalt_ovs::ovsdb::{
    Change, Condition, Connection, Event, Monitor, Operation, Select, Table, Tables,
};
use cobalt_ovs::{Error, Identity, Options, Remote, Tls};
use cobalt_runtime::chain;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Link;
use super::flows::{Flows, Sample};
use super::rows::{
    Binding, ChassisProgress, ChassisRow, DatapathBinding, Fdb, Global, LoadBalancer, LogicalFlow,
    MacBinding, MulticastGroup, StaticMacBinding,
};
use super::switch::Switch;
use crate::metrics::Metrics;

/// Flows of no row that are kept. More of them are no better known one by one.
const STRANGERS: usize = 64;
/// Where Neutron says in a Port_Binding which MTU the network has.
const NEUTRON_MTU: &str = "neutron:mtu";
/// How many ports are asked about at once.
const MTUS: usize = 64;

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
    /// The MTU of the network of those of them for which Neutron says it.
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
            answer = mtus.answer() => mtus.learn(answer),
            _ = check.tick() => {
                if let (Some(connection), Some(switch)) =
                    (monitor.connection(), switch.borrow().as_ref())
                {
                    mtus.ask(connection, &local_bindings(&monitor, switch), switch);
                }
                // All rows are gone through: too much for each transaction of a busy cloud.
                if monitor.connection().is_some() {
                    let bridge = switch.borrow().as_ref().map(|s| s.integration_bridge.clone());
                    let flows = bridge.and_then(|bridge| flows.borrow().get(&bridge).cloned());
                    strange = flows
                        .filter(|_| monitor.tables().count::<LogicalFlow>() > 0)
                        .map(|flows| strangers(&flows.cookies, identities(&monitor)))
                        .unwrap_or_default();
                }
            }
        }
        if monitor.connection().is_some() {
            metrics.southbound_connected.set(1);
            let now = read(&monitor, target, switch.borrow().as_ref(), &mtus);
            tell(
                seen,
                Southbound {
                    strangers: strange.clone(),
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
            .map_err(|error: Error| chain(&error))
    }
}

/// What Neutron says of rows.
type Answers = Vec<(Uuid, Option<i64>)>;

/// Which MTU Neutron wants for the ports of this node.
///
/// It is in `external_ids` of a Port_Binding, with much else. To follow that column for every port of
/// a cloud would take more memory than all the rest of the agent, so it is asked for, row by row, and
/// for local ports only: once when a port is new, and again while its device has another MTU, because
/// then the network may have got a new one.
#[derive(Default)]
struct Mtus {
    /// By row. None: Neutron says nothing.
    known: BTreeMap<Uuid, Option<i64>>,
    asked: Option<BoxFuture<'static, Answers>>,
}

impl Mtus {
    /// The next answer; never, while nothing is asked.
    async fn answer(&mut self) -> Answers {
        match &mut self.asked {
            Some(asked) => asked.await,
            None => std::future::pending().await,
        }
    }

    fn learn(&mut self, answer: Answers) {
        self.asked = None;
        self.known.extend(answer);
    }

    /// Asks about the ports that are new or have another MTU, unless an answer is outstanding.
    fn ask(&mut self, connection: &Connection, local: &BTreeMap<Uuid, &str>, switch: &Switch) {
        self.known.retain(|uuid, _| local.contains_key(uuid));
        if self.asked.is_some() {
            return;
        }
        let rows = self.unsettled(local, switch);
        if !rows.is_empty() {
            self.asked = Some(Box::pin(read_mtus(connection.clone(), rows)));
        }
    }

    fn unsettled(&self, local: &BTreeMap<Uuid, &str>, switch: &Switch) -> Vec<Uuid> {
        let devices = switch.interfaces();
        let devices: BTreeMap<&str, Option<i64>> = devices
            .filter_map(|(_, _, _, one)| Some((one.iface_id.as_deref()?, one.mtu)))
            .collect();
        let is_settled = |uuid: &Uuid, port: &str| match self.known.get(uuid) {
            None => false,
            Some(None) => true,
            Some(wanted) => devices.get(port) == Some(wanted),
        };
        let rows = local.iter().filter(|(uuid, port)| !is_settled(uuid, port));
        rows.map(|(uuid, _)| *uuid).take(MTUS).collect()
    }
}

/// Reads the MTUs of rows. What cannot be read is asked for again later.
async fn read_mtus(connection: Connection, rows: Vec<Uuid>) -> Answers {
    let select = |uuid: &Uuid| Operation::Select {
        table: Binding::NAME.to_owned(),
        conditions: vec![Condition::row(*uuid)],
        columns: Some(vec!["external_ids".to_owned()]),
    };
    let selects: Vec<Operation> = rows.iter().map(select).collect();
    let outcomes = match connection.transact(southbound::DATABASE, &selects).await {
        Ok(outcomes) => outcomes,
        Err(error) => {
            tracing::debug!(error = chain(&error), "failed to read the MTUs of ports");
            return Vec::new();
        }
    };
    let mtus = outcomes.iter().map(|outcome| {
        let row = outcome.rows.first()?;
        let text: String = row.in_map("external_ids", NEUTRON_MTU)?;
        text.parse().ok().filter(|mtu| *mtu > 0)
    });
    rows.into_iter().zip(mtus).collect()
}

/// The rows of the logical ports that interfaces of this node are for, with their names.
fn local_bindings<'a>(monitor: &'a Monitor, switch: &Switch) -> BTreeMap<Uuid, &'a str> {
    let local = switch.iface_ids();
    let rows = monitor.rows::<Binding>();
    rows.filter(|(_, row)| local.contains(row.logical_port.as_str()))
        .map(|(uuid, row)| (uuid, row.logical_port.as_str()))
        .collect()
}

fn read(
    monitor: &Monitor,
    target: &Target,
    switch: Option<&Arc<Switch>>,
    mtus: &Mtus,
) -> Southbound {
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
        mtus: switch
            .map(|switch| local_bindings(monitor, switch))
            .unwrap_or_default()
            .into_iter()
            .filter_map(|(uuid, port)| Some((port.to_owned(), (*mtus.known.get(&uuid)?)?)))
            .collect(),
        strangers: BTreeMap::new(),
    }
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
    use crate::observe::switch::{Bridge, Interface, Port};

    #[test]
    fn a_port_is_asked_about_when_it_is_new_and_while_its_mtu_is_another() {
        let interface = |mtu| Interface {
            iface_id: Some(format!("vm{mtu}")),
            mtu: Some(mtu),
            ..Interface::default()
        };
        let port = |mtu| {
            let interfaces = [(format!("tap{mtu}"), interface(mtu))].into();
            let port = Port {
                interfaces,
                ..Port::default()
            };
            (format!("tap{mtu}"), port)
        };
        let bridge = Bridge {
            ports: [1, 2, 3, 4].map(port).into(),
            ..Bridge::default()
        };
        let switch = Switch {
            bridges: [("br-int".to_owned(), bridge)].into(),
            ..Switch::default()
        };
        let uuid = Uuid::from_u128;
        let local = [(1, "vm1"), (2, "vm2"), (3, "vm3"), (4, "vm4")];
        let local = local.map(|(number, name)| (uuid(number), name)).into();
        let mut mtus = Mtus::default();
        assert_eq!(mtus.unsettled(&local, &switch), [1, 2, 3, 4].map(uuid));
        // The first is as it should be, Neutron says nothing of the second, the third is wrong.
        mtus.learn(vec![
            (uuid(1), Some(1)),
            (uuid(2), None),
            (uuid(3), Some(9)),
        ]);
        assert_eq!(mtus.unsettled(&local, &switch), [3, 4].map(uuid));
        mtus.learn(vec![(uuid(3), Some(3)), (uuid(4), Some(4))]);
        assert!(mtus.unsettled(&local, &switch).is_empty());
    }

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
