//! Tables of the database `Open_vSwitch`, with the columns that tell how a switch is doing.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

/// The name of the database.
pub const DATABASE: &str = "Open_vSwitch";

crate::ovsdb_table! {
    /// The one row about the switch as a whole.
    pub struct OpenVswitch: "Open_vSwitch" {
        /// Its bridges.
        bridges: BTreeSet<Uuid>,
        /// Who manages it over OVSDB.
        manager_options: BTreeSet<Uuid>,
        /// Which configuration is wanted.
        next_cfg: i64,
        /// Which configuration ovs-vswitchd has carried out.
        cur_cfg: i64,
        /// The version of the switch, if its start script told it; unixctl's `version` knows it.
        ovs_version: Option<String>,
        /// The version of the schema.
        db_version: Option<String>,
        /// The operating system.
        system_type: Option<String>,
        /// Its version.
        system_version: Option<String>,
        /// Whether DPDK is in use.
        dpdk_initialized: bool,
        /// The version of DPDK.
        dpdk_version: Option<String>,
        /// Kinds of datapaths that this build knows.
        datapath_types: BTreeSet<String>,
        /// Kinds of interfaces that this build knows.
        iface_types: BTreeSet<String>,
        /// What others say of it: `system-id`, `ovn-remote` ...
        external_ids: BTreeMap<String, String>,
        /// Settings.
        other_config: BTreeMap<String, String>,
    }
}

crate::ovsdb_table! {
    /// A bridge.
    pub struct Bridge: "Bridge" {
        /// Its name.
        name: String,
        /// `netdev` or `system`; empty is `system`.
        datapath_type: String,
        /// The identity of its datapath.
        datapath_id: Option<String>,
        /// The version of the datapath.
        datapath_version: String,
        /// Its ports.
        ports: BTreeSet<Uuid>,
        /// Its OpenFlow controllers.
        controller: BTreeSet<Uuid>,
        /// Its mirrors.
        mirrors: BTreeSet<Uuid>,
        /// Its flow tables that have settings, by number.
        flow_tables: BTreeMap<i64, Uuid>,
        /// What it does without a controller: `standalone` or `secure`.
        fail_mode: Option<String>,
        /// The OpenFlow versions that it takes; none is the default of the build.
        protocols: BTreeSet<String>,
        /// Whether it takes part in the spanning tree protocol.
        stp_enable: bool,
        /// Whether it takes part in the rapid spanning tree protocol.
        rstp_enable: bool,
        /// Whether it listens to multicast subscriptions.
        mcast_snooping_enable: bool,
        /// What it is doing.
        status: BTreeMap<String, String>,
        /// What others say of it.
        external_ids: BTreeMap<String, String>,
        /// Settings.
        other_config: BTreeMap<String, String>,
    }
}

crate::ovsdb_table! {
    /// A port of a bridge: an interface, or a bond of several.
    pub struct Port: "Port" {
        /// Its name.
        name: String,
        /// Its interfaces.
        interfaces: BTreeSet<Uuid>,
        /// Its VLAN.
        tag: Option<i64>,
        /// The VLANs that it trunks.
        trunks: BTreeSet<i64>,
        /// How it treats VLANs.
        vlan_mode: Option<String>,
        /// How a bond spreads packets.
        bond_mode: Option<String>,
        /// The member of a bond that is active, by its address.
        bond_active_slave: Option<String>,
        /// Whether a bond negotiates: `active`, `passive`, `off`.
        lacp: Option<String>,
        /// What it is doing: `lacp_status`, `bond_...`.
        status: BTreeMap<String, String>,
        /// What others say of it.
        external_ids: BTreeMap<String, String>,
        /// Settings.
        other_config: BTreeMap<String, String>,
    }
}

crate::ovsdb_table! {
    /// An interface.
    ///
    /// `statistics` change every few seconds. A monitor that is not for them leaves them out:
    /// [`super::Select::without`].
    pub struct Interface: "Interface" {
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
        /// `full` or `half`.
        duplex: Option<String>,
        /// The largest packet.
        mtu: Option<i64>,
        /// The largest packet that was asked for.
        mtu_request: Option<i64>,
        /// Its address.
        mac_in_use: Option<String>,
        /// Whether the partner of a bond member is heard.
        lacp_current: Option<bool>,
        /// Whether its connectivity check has failed.
        cfm_fault: Option<bool>,
        /// Its forwarding detection: `state`, `diagnostic` ...
        bfd_status: BTreeMap<String, String>,
        /// Counters.
        statistics: BTreeMap<String, i64>,
        /// What it is doing: `driver_name`, `tunnel_egress_iface` ...
        status: BTreeMap<String, String>,
        /// Settings of its kind: `peer`, `remote_ip` ...
        options: BTreeMap<String, String>,
        /// What others say of it: `iface-id`, `ovn-installed` ...
        external_ids: BTreeMap<String, String>,
    }
}

crate::ovsdb_table! {
    /// An OpenFlow controller of a bridge.
    pub struct Controller: "Controller" {
        /// Where it is.
        target: String,
        /// Whether it is connected.
        is_connected: bool,
        /// What it may do: `master`, `slave`, `other`.
        role: Option<String>,
        /// `last_error`, `state`, `sec_since_connect` ...
        status: BTreeMap<String, String>,
        /// What others say of it.
        external_ids: BTreeMap<String, String>,
    }
}

crate::ovsdb_table! {
    /// A manager of the switch, over OVSDB.
    pub struct Manager: "Manager" {
        /// Where it is, or where it may come from.
        target: String,
        /// Whether it is connected.
        is_connected: bool,
        /// `last_error`, `state`, `n_connections` ...
        status: BTreeMap<String, String>,
        /// What others say of it.
        external_ids: BTreeMap<String, String>,
    }
}

crate::ovsdb_table! {
    /// A mirror of packets.
    pub struct Mirror: "Mirror" {
        /// Its name.
        name: String,
        /// Whether all packets are mirrored.
        select_all: bool,
        /// The ports whose incoming packets are mirrored.
        select_src_port: BTreeSet<Uuid>,
        /// The ports whose outgoing packets are mirrored.
        select_dst_port: BTreeSet<Uuid>,
        /// The port that gets them.
        output_port: Option<Uuid>,
        /// The VLAN that gets them.
        output_vlan: Option<i64>,
        /// How many bytes of each.
        snaplen: Option<i64>,
        /// Counters.
        statistics: BTreeMap<String, i64>,
        /// What others say of it.
        external_ids: BTreeMap<String, String>,
    }
}

crate::ovsdb_table! {
    /// The settings of a flow table.
    pub struct FlowTable: "Flow_Table" {
        /// Its name.
        name: Option<String>,
        /// How many flows it may have.
        flow_limit: Option<i64>,
        /// What happens then: `refuse` or `evict`.
        overflow_policy: Option<String>,
        /// What others say of it.
        external_ids: BTreeMap<String, String>,
    }
}
