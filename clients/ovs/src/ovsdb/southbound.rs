//! Tables of the database `OVN_Southbound`, with the columns that tell how a chassis is doing.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

/// The name of the database.
pub const DATABASE: &str = "OVN_Southbound";

crate::ovsdb_table! {
    /// The one row about all of it.
    pub struct SbGlobal: "SB_Global" {
        /// The number of the configuration that northd has written.
        nb_cfg: i64,
        /// What others say of it.
        external_ids: BTreeMap<String, String>,
        /// Settings.
        options: BTreeMap<String, String>,
    }
}

crate::ovsdb_table! {
    /// A hypervisor or gateway.
    pub struct Chassis: "Chassis" {
        /// Its name: the `system-id` of its switch.
        name: String,
        /// Its host.
        hostname: String,
        /// Its tunnel ends.
        encaps: BTreeSet<Uuid>,
        /// The number of the configuration that it has carried out, in old releases; see
        /// [`ChassisPrivate`].
        nb_cfg: i64,
        /// Its transport zones.
        transport_zones: BTreeSet<String>,
        /// What others say of it.
        external_ids: BTreeMap<String, String>,
        /// What it says of itself.
        other_config: BTreeMap<String, String>,
    }
}

crate::ovsdb_table! {
    /// What changes often about a chassis.
    pub struct ChassisPrivate: "Chassis_Private" {
        /// Its name.
        name: String,
        /// Its chassis.
        chassis: Option<Uuid>,
        /// The number of the configuration that it has carried out.
        nb_cfg: i64,
        /// When, in milliseconds since 1970.
        nb_cfg_timestamp: i64,
        /// What others say of it.
        external_ids: BTreeMap<String, String>,
    }
}

crate::ovsdb_table! {
    /// A tunnel end of a chassis.
    pub struct Encap: "Encap" {
        /// Its chassis.
        chassis_name: String,
        /// `geneve`, `vxlan` ...
        kind = "type": String,
        /// Its address.
        ip: String,
        /// Settings.
        options: BTreeMap<String, String>,
    }
}

crate::ovsdb_table! {
    /// A logical port, and where it is.
    pub struct PortBinding: "Port_Binding" {
        /// Its name: the `iface-id` of its interface.
        logical_port: String,
        /// What it is: empty for a virtual machine, `patch`, `localnet` ...
        kind = "type": String,
        /// Its datapath.
        datapath: Uuid,
        /// Its number in its datapath.
        tunnel_key: i64,
        /// Where it is.
        chassis: Option<Uuid>,
        /// Where it is, too, while it moves.
        additional_chassis: BTreeSet<Uuid>,
        /// Where it shall be.
        requested_chassis: Option<Uuid>,
        /// Whether its chassis has its flows.
        up: Option<bool>,
        /// Its addresses.
        mac: BTreeSet<String>,
        /// Its VLAN.
        tag: Option<i64>,
        /// The port that it is a part of.
        parent_port: Option<String>,
        /// Settings.
        options: BTreeMap<String, String>,
        /// What others say of it.
        external_ids: BTreeMap<String, String>,
    }
}

crate::ovsdb_table! {
    /// A logical switch or router.
    pub struct DatapathBinding: "Datapath_Binding" {
        /// Its number in tunnels.
        tunnel_key: i64,
        /// What others say of it: `name`, `logical-switch` ...
        external_ids: BTreeMap<String, String>,
    }
}

crate::ovsdb_table! {
    /// A logical flow, of which only the identity is wanted: its first 32 bits are the cookie of
    /// the OpenFlow flows that are made of it.
    pub struct LogicalFlow: "Logical_Flow" {
    }
}

crate::ovsdb_table! {
    /// A multicast group, of which only the identity is wanted; see [`LogicalFlow`].
    pub struct MulticastGroup: "Multicast_Group" {
    }
}

/// The cookie of the OpenFlow flows that ovn-controller makes of a row.
pub fn cookie(uuid: Uuid) -> u64 {
    u64::from(uuid.as_fields().0)
}
