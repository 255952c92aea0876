//! The switch as its database has it: followed, and read into one plain value.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cobalt_ovs::ovsdb::{Connection, Event, Monitor, Tables, vswitch};
use cobalt_ovs::{Options, Remote};
use cobalt_runtime::{Health, chain};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Link;
use super::rows::{BridgeRow, ControllerRow, InterfaceRow, MirrorRow, PortRow, Root};
use crate::metrics::Metrics;

/// The bridge that ovn-controller fills, where nobody says another.
const INTEGRATION_BRIDGE: &str = "br-int";
/// What marks the ports and mirrors of captures, in `external_ids`.
pub const CAPTURE_MARK: &str = "cobalt-capture";
/// How the names of their devices begin.
pub const CAPTURE_DEVICE: &str = "cobcap";

/// What is known of the switch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Switch {
    /// Which configuration is wanted.
    pub next_cfg: i64,
    /// Which configuration has been carried out.
    pub cur_cfg: i64,
    /// Its version, if its start script told it.
    pub ovs_version: Option<String>,
    /// The version of DPDK, if that is in use.
    pub dpdk: Option<String>,
    /// Its name in OVN.
    pub chassis: Option<String>,
    /// The southbound database.
    pub southbound: Option<String>,
    /// The bridge that ovn-controller fills.
    pub integration_bridge: String,
    /// Its bridges by name.
    pub bridges: BTreeMap<String, Bridge>,
    /// The ports that captures have added, by name. They are in no bridge here: nobody but a capture
    /// wants to know of them.
    pub captures: BTreeMap<String, CapturePort>,
    /// The names of its mirrors.
    pub mirrors: BTreeSet<String>,
}

/// A port that a capture has added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapturePort {
    /// Its OpenFlow number; -1 if it could not be added.
    pub ofport: Option<i64>,
    /// Why it could not be added.
    pub error: Option<String>,
}

/// A bridge.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bridge {
    /// Its row.
    pub uuid: Uuid,
    /// `netdev` or `system`.
    pub datapath_type: String,
    /// What it does without a controller: `standalone` or `secure`.
    pub fail_mode: Option<String>,
    /// Its ports by name.
    pub ports: BTreeMap<String, Port>,
    /// Its OpenFlow controllers that it has to reach, and whether it has.
    pub controllers: BTreeMap<String, bool>,
}

/// A port.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Port {
    /// Its row.
    pub uuid: Uuid,
    /// Its VLAN.
    pub tag: Option<i64>,
    /// How it acts as a bond, if it is one.
    pub bond: Option<BondSettings>,
    /// Its interfaces by name: one, or the members of a bond.
    pub interfaces: BTreeMap<String, Interface>,
}

/// How a bond is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BondSettings {
    /// How it spreads packets.
    pub mode: String,
    /// It negotiates with the other side.
    pub lacp: bool,
    /// It works without an answer of the other side, as if it did not negotiate.
    pub fallback: bool,
    /// The member that is active, by its address, where only one is.
    pub active: Option<String>,
}

/// An interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// What it is: empty for a device of the system, `internal`, `patch`, `geneve` ...
    pub kind: String,
    /// Its OpenFlow number; -1 if it could not be added.
    pub ofport: Option<i64>,
    /// The number of its device; 0 for none.
    pub ifindex: Option<i64>,
    /// Why it could not be added.
    pub error: Option<String>,
    /// Whether it was set up.
    pub admin_up: Option<bool>,
    /// Whether its link is up.
    pub link_up: Option<bool>,
    /// How often the link came or went.
    pub link_resets: Option<i64>,
    /// Bits per second.
    pub link_speed: Option<i64>,
    /// The largest packet.
    pub mtu: Option<i64>,
    /// The largest packet that somebody asked ovs-vswitchd for.
    pub mtu_request: Option<i64>,
    /// Its address.
    pub mac: Option<String>,
    /// Whether the partner of a bond member is heard.
    pub lacp_current: Option<bool>,
    /// Its driver.
    pub driver: Option<String>,
    /// The logical port that it is for.
    pub iface_id: Option<String>,
    /// The address of the instance's card.
    pub attached_mac: Option<String>,
    /// OVN has made its flows.
    pub ovn_installed: bool,
}

impl Interface {
    fn read(row: &InterfaceRow) -> Self {
        let up = |state: &Option<String>| state.as_deref().map(|state| state == "up");
        let id = |name: &str| row.external_ids.get(name).cloned();
        Self {
            kind: row.kind.clone(),
            ofport: row.ofport,
            ifindex: row.ifindex,
            error: row.error.clone().filter(|error| !error.is_empty()),
            admin_up: up(&row.admin_state),
            link_up: up(&row.link_state),
            link_resets: row.link_resets,
            link_speed: row.link_speed,
            mtu: row.mtu,
            mtu_request: row.mtu_request,
            mac: row.mac_in_use.clone(),
            lacp_current: row.lacp_current,
            driver: row.status.get("driver_name").cloned(),
            iface_id: id("iface-id"),
            attached_mac: id("attached-mac"),
            ovn_installed: id("ovn-installed").is_some_and(|installed| installed == "true"),
        }
    }

    /// Whether it is a device of the system or of DPDK.
    #[must_use]
    pub fn is_device(&self) -> bool {
        matches!(self.kind.as_str(), "" | "system" | "dpdk" | "afxdp")
    }

    /// Whether it is a network card, and not the end of an instance's.
    #[must_use]
    pub fn is_physical(&self) -> bool {
        self.is_device() && self.iface_id.is_none() && self.driver.as_deref() != Some("tun")
    }
}

impl Switch {
    /// Puts rows together. A row that another one names and that is not there is left out.
    fn assemble<'a>(
        root: &Root,
        bridge: impl Fn(Uuid) -> Option<&'a BridgeRow>,
        port: impl Fn(Uuid) -> Option<&'a PortRow>,
        interface: impl Fn(Uuid) -> Option<&'a InterfaceRow>,
        controller: impl Fn(Uuid) -> Option<&'a ControllerRow>,
    ) -> Self {
        let captures = |row: &PortRow| row.external_ids.contains_key(CAPTURE_MARK);
        let read_port = |uuid: Uuid, row: &PortRow| {
            let rows = row.interfaces.iter().filter_map(|uuid| interface(*uuid));
            Port {
                uuid,
                tag: row.tag,
                bond: bond(row),
                interfaces: rows
                    .map(|row| (row.name.clone(), Interface::read(row)))
                    .collect(),
            }
        };
        let read_bridge = |uuid: Uuid, row: &BridgeRow| Bridge {
            uuid,
            fail_mode: row.fail_mode.clone(),
            datapath_type: match row.datapath_type.as_str() {
                "" => "system".to_owned(),
                kind => kind.to_owned(),
            },
            ports: row
                .ports
                .iter()
                .filter_map(|uuid| Some((*uuid, port(*uuid)?)))
                .filter(|(_, row)| !captures(row))
                .map(|(uuid, row)| (row.name.clone(), read_port(uuid, row)))
                .collect(),
            controllers: row
                .controller
                .iter()
                .filter_map(|uuid| controller(*uuid))
                // Those that come by themselves may stay away.
                .filter(|row| !row.target.starts_with('p'))
                .map(|row| (row.target.clone(), row.is_connected))
                .collect(),
        };
        let rows = || {
            let bridges = root.bridges.iter();
            bridges.filter_map(|uuid| Some((*uuid, bridge(*uuid)?)))
        };
        let read_capture = |row: &PortRow| {
            let mut interfaces = row.interfaces.iter().filter_map(|uuid| interface(*uuid));
            let interface = interfaces.next().map(Interface::read).unwrap_or_default();
            CapturePort {
                ofport: interface.ofport,
                error: interface.error,
            }
        };
        let id = |name: &str| root.external_ids.get(name).cloned();
        Self {
            captures: rows()
                .flat_map(|(_, row)| row.ports.iter())
                .filter_map(|uuid| port(*uuid))
                .filter(|row| captures(row))
                .map(|row| (row.name.clone(), read_capture(row)))
                .collect(),
            mirrors: BTreeSet::new(),
            next_cfg: root.next_cfg,
            cur_cfg: root.cur_cfg,
            ovs_version: root.ovs_version.clone(),
            dpdk: root
                .dpdk_initialized
                .then(|| root.dpdk_version.clone().unwrap_or_default()),
            chassis: id("system-id"),
            southbound: id("ovn-remote").filter(|remote| !remote.is_empty()),
            integration_bridge: id("ovn-bridge").unwrap_or_else(|| INTEGRATION_BRIDGE.to_owned()),
            bridges: rows()
                .map(|(uuid, row)| (row.name.clone(), read_bridge(uuid, row)))
                .collect(),
        }
    }

    fn read(tables: &Tables) -> Option<Self> {
        let (_, root) = tables.rows::<Root>().next()?;
        let switch = Self::assemble(
            root,
            |uuid| tables.get(uuid),
            |uuid| tables.get(uuid),
            |uuid| tables.get(uuid),
            |uuid| tables.get(uuid),
        );
        let mirrors = tables.rows::<MirrorRow>();
        Some(Self {
            mirrors: mirrors.map(|(_, row)| row.name.clone()).collect(),
            ..switch
        })
    }

    /// Every interface with the names of its bridge, its port and its own.
    pub fn interfaces(&self) -> impl Iterator<Item = (&str, &str, &str, &Interface)> {
        self.bridges.iter().flat_map(|(bridge, ports)| {
            ports.ports.iter().flat_map(move |(port, interfaces)| {
                let interfaces = interfaces.interfaces.iter();
                interfaces.map(move |(name, interface)| {
                    (bridge.as_str(), port.as_str(), name.as_str(), interface)
                })
            })
        })
    }

    /// The logical ports that interfaces here are for.
    #[must_use]
    pub fn iface_ids(&self) -> BTreeSet<&str> {
        let interfaces = self.interfaces();
        interfaces
            .filter_map(|(_, _, _, interface)| interface.iface_id.as_deref())
            .collect()
    }
}

fn bond(row: &PortRow) -> Option<BondSettings> {
    (row.interfaces.len() > 1).then(|| BondSettings {
        mode: row
            .bond_mode
            .clone()
            .unwrap_or_else(|| "active-backup".into()),
        lacp: row.lacp.as_deref().is_some_and(|lacp| lacp != "off"),
        fallback: row
            .other_config
            .get("lacp-fallback-ab")
            .is_some_and(|fallback| fallback == "true"),
        active: row.bond_active_slave.clone(),
    })
}

/// Where the task says what it sees.
#[derive(Debug)]
pub struct Outputs {
    /// The connection.
    pub link: watch::Sender<Link>,
    /// The switch, as it was seen last.
    pub switch: watch::Sender<Option<Arc<Switch>>>,
    /// A connection for questions, while there is one.
    pub connection: watch::Sender<Option<Connection>>,
}

/// Runs until it is cancelled.
pub async fn run(
    remote: Remote,
    options: Options,
    outputs: Outputs,
    metrics: Metrics,
    health: Health,
    cancel: CancellationToken,
) {
    let tables = Tables::new()
        .table::<Root>()
        .table::<BridgeRow>()
        .table::<PortRow>()
        .table::<InterfaceRow>()
        .table::<MirrorRow>()
        .table::<ControllerRow>();
    let mut monitor = Monitor::new(vswitch::DATABASE, vec![remote], tables, options);
    loop {
        let event = tokio::select! {
            event = monitor.next() => event,
            () = cancel.cancelled() => return,
        };
        if let Event::Down { error, .. } = event {
            let why = chain(&error);
            health.set_missing("ovsdb", Some(why.clone()));
            metrics.ovsdb_connected.set(0);
            drop(outputs.connection.send_replace(None));
            outputs.link.send_if_modified(|link| {
                let down = link.down(why);
                if link.is_up() {
                    tracing::warn!(?down, "OVSDB is lost");
                }
                let new = *link != down;
                *link = down;
                new
            });
            continue;
        }
        metrics.ovsdb_updates.inc();
        let switch = Switch::read(monitor.tables()).map(Arc::new);
        outputs.switch.send_if_modified(|known| {
            let new = *known != switch;
            if new {
                *known = switch;
            }
            new
        });
        if !outputs.link.borrow().is_up() {
            health.set_missing("ovsdb", None);
            metrics.ovsdb_connected.set(1);
            tracing::info!("OVSDB is connected");
            let connection = monitor.connection().cloned();
            drop(outputs.connection.send_replace(connection));
            drop(outputs.link.send_replace(Link::Up));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_put_together_and_what_is_missing_is_left_out() {
        let uuid = Uuid::from_u128;
        let names = |pairs: &[(&str, &str)]| {
            let own = |(a, b): &(&str, &str)| ((*a).to_owned(), (*b).to_owned());
            pairs.iter().map(own).collect::<BTreeMap<_, _>>()
        };
        let root = Root {
            bridges: [uuid(1), uuid(9)].into(),
            dpdk_version: Some("23.11".into()),
            external_ids: names(&[("system-id", "hv1"), ("ovn-remote", "tcp:10.0.0.1:6642")]),
            ..Root::default()
        };
        let bridge = BridgeRow {
            name: "br-int".into(),
            ports: [uuid(2), uuid(3), uuid(8)].into(),
            controller: [uuid(5), uuid(6)].into(),
            ..BridgeRow::default()
        };
        let port = PortRow {
            name: "bond0".into(),
            interfaces: [uuid(4), uuid(7)].into(),
            lacp: Some("active".into()),
            ..PortRow::default()
        };
        let capture = PortRow {
            name: "cobcap0".into(),
            interfaces: [uuid(4)].into(),
            external_ids: names(&[(CAPTURE_MARK, "1-2-3")]),
            ..PortRow::default()
        };
        let tap = InterfaceRow {
            name: "tap1".into(),
            ofport: Some(3),
            link_state: Some("up".into()),
            external_ids: names(&[("iface-id", "vm1"), ("ovn-installed", "true")]),
            ..InterfaceRow::default()
        };
        let controllers =
            [(uuid(5), "tcp:10.0.0.9:6653"), (uuid(6), "ptcp:6653")].map(|(uuid, target)| {
                let target = target.to_owned();
                (
                    uuid,
                    ControllerRow {
                        target,
                        is_connected: true,
                    },
                )
            });
        let switch = Switch::assemble(
            &root,
            |id| (id == uuid(1)).then_some(&bridge),
            |id| match id.as_u128() {
                2 => Some(&port),
                8 => Some(&capture),
                _ => None,
            },
            |id| (id == uuid(4)).then_some(&tap),
            |id| {
                controllers
                    .iter()
                    .find(|(uuid, _)| *uuid == id)
                    .map(|(_, row)| row)
            },
        );
        assert_eq!(switch.chassis.as_deref(), Some("hv1"));
        assert_eq!(switch.dpdk, None);
        assert_eq!(switch.iface_ids(), ["vm1"].into());
        let bridge = &switch.bridges["br-int"];
        assert_eq!(
            (bridge.uuid, bridge.datapath_type.as_str()),
            (uuid(1), "system")
        );
        // The port of a capture is no port of the bridge.
        assert_eq!(bridge.ports.len(), 1);
        assert_eq!(switch.captures["cobcap0"].ofport, Some(3));
        assert_eq!(bridge.controllers.len(), 1);
        let port = &bridge.ports["bond0"];
        let bond = port.bond.as_ref().unwrap();
        assert!(bond.lacp && bond.mode == "active-backup");
        let tap = &port.interfaces["tap1"];
        assert!(tap.ovn_installed && tap.link_up == Some(true) && !tap.is_physical());
    }
}
