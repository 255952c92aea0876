//! What all of it means. Pure: a snapshot, what was known before, and the time, give issues and a
//! status; no connection, no clock.
//!
//! ```text
//! Snapshot --findings--> what looks wrong now
//!          --ledger----> issues: what has looked wrong for long enough, since when
//!          --status----> the OVSNode's status
//! ```

pub mod findings;
pub mod ledger;
pub mod status;

use std::sync::Arc;

use cobalt_api::ovsnode::{Diagnostics, Metrics};

use crate::observe::Link;
use crate::observe::daemon::Daemon;
use crate::observe::flows::Flows;
use crate::observe::southbound::Southbound;
use crate::observe::switch::Switch;

/// What is known of everything, at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// The connection to OVSDB.
    pub database: Link,
    /// The switch, as it was seen last.
    pub switch: Option<Arc<Switch>>,
    /// ovs-vswitchd.
    pub vswitchd: Daemon,
    /// ovsdb-server.
    pub ovsdb_server: Daemon,
    /// ovn-controller.
    pub ovn_controller: Daemon,
    /// The flows of each bridge.
    pub flows: Arc<Flows>,
    /// The southbound database; none where the switch belongs to no OVN.
    pub southbound: Option<Arc<Southbound>>,
    /// The sums of all counters, when they were read last.
    pub counters: Option<Metrics>,
    /// Where this agent answers questions.
    pub diagnostics: Option<Diagnostics>,
}

#[cfg(test)]
pub mod tests {
    //! A healthy node, for tests to break.

    use std::collections::BTreeMap;

    use super::*;
    use crate::observe::flows::BridgeFlows;
    use crate::observe::southbound::Place;
    use crate::observe::switch::{BondSettings, Bridge, Interface, Port};

    /// A port with one interface.
    pub fn port(name: &str, interface: Interface) -> (String, Port) {
        let interfaces = BTreeMap::from([(name.to_owned(), interface)]);
        (
            name.to_owned(),
            Port {
                interfaces,
                ..Port::default()
            },
        )
    }

    /// A network card that works.
    pub fn card(ofport: i64) -> Interface {
        Interface {
            ofport: Some(ofport),
            ifindex: Some(ofport + 10),
            admin_up: Some(true),
            link_up: Some(true),
            link_speed: Some(25_000_000_000),
            lacp_current: Some(true),
            driver: Some("ice".into()),
            ..Interface::default()
        }
    }

    /// The end of an instance's card.
    pub fn tap(ofport: i64, iface_id: &str) -> Interface {
        Interface {
            ofport: Some(ofport),
            ifindex: Some(ofport + 10),
            admin_up: Some(true),
            link_up: Some(true),
            mtu: Some(1442),
            driver: Some("tun".into()),
            iface_id: Some(iface_id.into()),
            ovn_installed: true,
            ..Interface::default()
        }
    }

    /// A node on which all is well.
    pub fn healthy() -> Snapshot {
        let bond = Port {
            bond: Some(BondSettings {
                mode: "balance-tcp".into(),
                lacp: true,
                ..BondSettings::default()
            }),
            interfaces: [("eno1".into(), card(1)), ("eno2".into(), card(2))].into(),
            ..Port::default()
        };
        let bridge = |ports: Vec<(String, Port)>| Bridge {
            datapath_type: "netdev".into(),
            ports: ports.into_iter().collect(),
            ..Bridge::default()
        };
        let switch = Switch {
            next_cfg: 4,
            cur_cfg: 4,
            chassis: Some("hv1".into()),
            southbound: Some("tcp:10.0.0.1:6642".into()),
            integration_bridge: "br-int".into(),
            bridges: [
                (
                    "br-int".to_owned(),
                    bridge(vec![port("tap1", tap(3, "vm1"))]),
                ),
                (
                    "br-provider".to_owned(),
                    bridge(vec![("bond0".into(), bond)]),
                ),
            ]
            .into(),
            ..Switch::default()
        };
        let flows = |tables: &[(u8, u32)]| {
            Arc::new(BridgeFlows {
                tables: Some(tables.iter().copied().collect()),
                ..BridgeFlows::default()
            })
        };
        let daemon = |connected| Daemon::Answers {
            version: "3.1.0".into(),
            connected,
        };
        let southbound = Southbound {
            link: Link::Up,
            nb_cfg: Some(7),
            chassis: true,
            chassis_nb_cfg: Some(7),
            bindings: [("vm1".into(), Place::Here)].into(),
            mtus: [("vm1".into(), 1442)].into(),
            strangers: BTreeMap::new(),
        };
        Snapshot {
            database: Link::Up,
            switch: Some(Arc::new(switch)),
            vswitchd: daemon(None),
            ovsdb_server: daemon(None),
            ovn_controller: daemon(Some(true)),
            flows: Arc::new(
                [
                    ("br-int".to_owned(), flows(&[(0, 5), (8, 3)])),
                    ("br-provider".to_owned(), flows(&[(0, 1)])),
                ]
                .into(),
            ),
            southbound: Some(Arc::new(southbound)),
            counters: Some(Metrics::default()),
            diagnostics: None,
        }
    }

    /// Changes the switch of a snapshot.
    pub fn with_switch(mut snapshot: Snapshot, change: impl FnOnce(&mut Switch)) -> Snapshot {
        let mut switch = snapshot.switch.as_deref().cloned().unwrap();
        change(&mut switch);
        snapshot.switch = Some(Arc::new(switch));
        snapshot
    }

    /// Changes an interface of a snapshot.
    pub fn with_interface(
        snapshot: Snapshot,
        names: [&str; 3],
        change: impl FnOnce(&mut Interface),
    ) -> Snapshot {
        with_switch(snapshot, |switch| {
            let [bridge, port, interface] = names;
            let bridge = switch.bridges.get_mut(bridge).unwrap();
            let port = bridge.ports.get_mut(port).unwrap();
            change(port.interfaces.get_mut(interface).unwrap());
        })
    }

    /// Changes what the southbound database says.
    pub fn with_southbound(
        mut snapshot: Snapshot,
        change: impl FnOnce(&mut Southbound),
    ) -> Snapshot {
        let mut southbound = snapshot.southbound.as_deref().cloned().unwrap();
        change(&mut southbound);
        snapshot.southbound = Some(Arc::new(southbound));
        snapshot
    }

    /// Changes the flows of a bridge.
    pub fn with_flows(
        mut snapshot: Snapshot,
        bridge: &str,
        change: impl FnOnce(&mut BridgeFlows),
    ) -> Snapshot {
        let mut all = (*snapshot.flows).clone();
        let mut flows = (*all[bridge]).clone();
        change(&mut flows);
        all.insert(bridge.to_owned(), Arc::new(flows));
        snapshot.flows = Arc::new(all);
        snapshot
    }
}
