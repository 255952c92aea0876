//! The rows that the agent follows, with the columns that mean something to it: what is not here
//! cannot wake it.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

cobalt_ovs::ovsdb_table! {
    /// The switch as a whole.
    pub struct Root: "Open_vSwitch" {
        /// Its bridges.
        bridges: BTreeSet<Uuid>,
        /// Which configuration is wanted.
        next_cfg: i64,
        /// Which configuration ovs-vswitchd has carried out.
        cur_cfg: i64,
        /// The version of the switch, if its start script told it.
        ovs_version: Option<String>,
        /// Whether DPDK is in use.
        dpdk_initialized: bool,
        /// The version of DPDK.
        dpdk_version: Option<String>,
        /// `system-id`, `ovn-remote`, `ovn-bridge` ...
        external_ids: BTreeMap<String, String>,
    }
}

cobalt_ovs::ovsdb_table! {
    /// A bridge.
    pub struct BridgeRow: "Bridge" {
        /// Its name.
        name: String,
        /// `netdev` or `system`; empty is `system`.
        datapath_type: String,
        /// What it does without a controller: `standalone` or `secure`.
        fail_mode: Option<String>,
        /// Its ports.
        ports: BTreeSet<Uuid>,
        /// Its OpenFlow controllers.
        controller: BTreeSet<Uuid>,
    }
}

cobalt_ovs::ovsdb_table! {
    /// A port: an interface, or a bond of several.
    pub struct PortRow: "Port" {
        /// Its name.
        name: String,
        /// Its interfaces.
        interfaces: BTreeSet<Uuid>,
        /// Its VLAN.
        tag: Option<i64>,
        /// How a bond spreads packets.
        bond_mode: Option<String>,
        /// The active member of a bond, by its address.
        bond_active_slave: Option<String>,
        /// Whether a bond negotiates: `active`, `passive`, `off`.
        lacp: Option<String>,
        /// `lacp-fallback-ab` ...
        other_config: BTreeMap<String, String>,
        /// Whether it is of a capture.
        external_ids: BTreeMap<String, String>,
    }
}

cobalt_ovs::ovsdb_table! {
    /// An interface.
    pub struct InterfaceRow: "Interface" {
        /// Its name.
        name: String,
        /// What it is: empty for a device of the system, `internal`, `patch`, `geneve` ...
        kind = "type": String,
        /// Its OpenFlow number; -1 if it could not be added.
        ofport: Option<i64>,
        /// The number of its device in the system; 0 for none.
        ifindex: Option<i64>,
        /// Why it could not be added.
        error: Option<String>,
        /// `up` or `down`, as it was set.
        admin_state: Option<String>,
        /// `up` or `down`, as it is.
        link_state: Option<String>,
        /// How often the link came or went.
        link_resets: Option<i64>,
        /// Bits per second.
        link_speed: Option<i64>,
        /// The largest packet.
        mtu: Option<i64>,
        /// The largest packet that somebody asked for.
        mtu_request: Option<i64>,
        /// Its address.
        mac_in_use: Option<String>,
        /// Whether the partner of a bond member is heard.
        lacp_current: Option<bool>,
        /// `driver_name` ...
        status: BTreeMap<String, String>,
        /// `iface-id`, `ovn-installed` ...
        external_ids: BTreeMap<String, String>,
    }
}

cobalt_ovs::ovsdb_table! {
    /// A mirror.
    pub struct MirrorRow: "Mirror" {
        /// Its name.
        name: String,
    }
}

cobalt_ovs::ovsdb_table! {
    /// An OpenFlow controller of a bridge.
    pub struct ControllerRow: "Controller" {
        /// Where it is.
        target: String,
        /// Whether it is connected.
        is_connected: bool,
    }
}

cobalt_ovs::ovsdb_table! {
    /// The one row about all of OVN.
    pub struct Global: "SB_Global" {
        /// The number of the configuration that northd has written.
        nb_cfg: i64,
    }
}

cobalt_ovs::ovsdb_table! {
    /// A hypervisor or gateway.
    pub struct ChassisRow: "Chassis" {
        /// Its name.
        name: String,
    }
}

cobalt_ovs::ovsdb_table! {
    /// How far a chassis is.
    pub struct ChassisProgress: "Chassis_Private" {
        /// Its name.
        name: String,
        /// The number of the configuration that it has carried out.
        nb_cfg: i64,
    }
}

cobalt_ovs::ovsdb_table! {
    /// Where a logical port is.
    pub struct Binding: "Port_Binding" {
        /// Its name: the `iface-id` of its interface.
        logical_port: String,
        /// Where it is.
        chassis: Option<Uuid>,
        /// Where it is, too, while it moves.
        additional_chassis: BTreeSet<Uuid>,
    }
}

/// Tables of which only the identity of each row is wanted: ovn-controller makes flows of them.
macro_rules! identities {
    ($($(#[$about:meta])* $row:ident = $table:literal;)*) => {
        $(cobalt_ovs::ovsdb_table! { $(#[$about])* pub struct $row: $table {} })*
    };
}

identities! {
    /// A logical flow.
    LogicalFlow = "Logical_Flow";
    /// A multicast group.
    MulticastGroup = "Multicast_Group";
    /// A neighbour that was learned.
    MacBinding = "MAC_Binding";
    /// A neighbour that was configured.
    StaticMacBinding = "Static_MAC_Binding";
    /// A load balancer.
    LoadBalancer = "Load_Balancer";
    /// An address that was learned.
    Fdb = "FDB";
    /// A logical switch or router.
    DatapathBinding = "Datapath_Binding";
}
