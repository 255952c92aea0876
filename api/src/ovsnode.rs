//! OVSNode, `ovs.c5c3.io/v1alpha1`.
//!
//! Writer: the OVS agent of the node. When its host is dead, the operator sets its conditions to
//! Unknown, and the agent takes them back. Counters that change all the time are in the agent's
//! metrics; what is here is written when it means something else than before.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{schema, strings::string_enum};

string_enum! {
    /// Whether a bridge works.
    pub enum BridgeStatus {
        /// It works.
        Active => "Active",
        /// It works in part; an issue says what is wrong.
        Degraded => "Degraded",
        /// It does not work.
        Down => "Down",
    }
}

string_enum! {
    /// Whether a link is up.
    pub enum LinkStatus {
        /// It is up.
        Up => "Up",
        /// It is down.
        Down => "Down",
        /// It is not known.
        Unknown => "Unknown",
    }
}

string_enum! {
    /// Whether a bond works.
    pub enum BondStatus {
        /// Every member carries traffic.
        Active => "Active",
        /// At least one member carries traffic and at least one does not.
        Degraded => "Degraded",
        /// No member carries traffic.
        Down => "Down",
    }
}

string_enum! {
    /// How bad an issue is.
    pub enum Severity {
        /// Good to know.
        Info => "Info",
        /// It may become a failure.
        Warning => "Warning",
        /// It is a failure.
        Critical => "Critical",
    }
}

/// Which node this is about.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "ovs.c5c3.io",
    version = "v1alpha1",
    kind = "OVSNode",
    root = "OvsNode",
    plural = "ovsnodes",
    namespaced,
    status = "OvsNodeStatus",
    schema = "disabled",
    derive = "Default",
    derive = "PartialEq",
    doc = "Open vSwitch on one node.",
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeRef.name"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(name = "OVS", type_ = "string", json_path = ".status.ovsVersion"),
    printcolumn(name = "DPDK", type_ = "boolean", json_path = ".status.dpdkEnabled"),
    printcolumn(
        name = "OVN",
        type_ = "boolean",
        json_path = ".status.ovnController.connected"
    ),
    printcolumn(
        name = "Flows",
        type_ = "integer",
        json_path = ".status.flowStats.totalFlows"
    ),
    printcolumn(
        name = "Chassis",
        type_ = "string",
        json_path = ".status.ovnController.chassisId",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct OvsNodeSpec {
    /// The node.
    #[serde(default)]
    #[schemars(transform = schema::required, transform = schema::rule(
        "self.name == oldSelf.name",
        "nodeRef cannot change: delete this OVSNode; the agent of the other node creates its own",
    ))]
    pub node_ref: NodeRef,
}

/// A reference to a Kubernetes node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeRef {
    /// The name of the node.
    #[serde(default)]
    #[schemars(length(min = 1, max = 253), transform = schema::required)]
    pub name: String,
}

/// What the agent sees.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OvsNodeStatus {
    /// The version of ovs-vswitchd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ovs_version: Option<String>,
    /// The version of ovsdb-server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ovsd_version: Option<String>,
    /// The datapath in user space is initialized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dpdk_enabled: Option<bool>,
    /// The version of DPDK.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dpdk_version: Option<String>,
    /// The bridges.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::map_by("name"))]
    pub bridges: Vec<Bridge>,
    /// The network cards and the bonds over them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interfaces: Option<Interfaces>,
    /// The ovn-controller of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ovn_controller: Option<OvnController>,
    /// The flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_stats: Option<FlowStats>,
    /// Statements about the node's network, one per type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Counters over all interfaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// What is wrong, worst first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), transform = schema::atomic)]
    pub issues: Vec<Issue>,
    /// Where the agent answers questions about the node. Absent if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagnostics: Option<Diagnostics>,
}

/// Where the agent answers questions about the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Diagnostics {
    /// The address, for example https://10.0.0.1:9476.
    #[schemars(extend("pattern" = "^https://[^/]{1,253}$"))]
    pub url: String,
    /// The SHA-256 of the certificate that it has there, in hexadecimal. The agent makes it itself:
    /// who asks trusts this, because only the agent can write it, and no other.
    #[schemars(extend("pattern" = "^[0-9a-f]{64}$"))]
    pub certificate_sha256: String,
}

/// A bridge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bridge {
    /// The name.
    #[schemars(length(min = 1))]
    pub name: String,
    /// How many ports it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ports: Option<i64>,
    /// How many flows it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub flows: Option<i64>,
    /// Where packets are handled: "netdev" in user space, "system" in the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datapath_type: Option<String>,
    /// Whether it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<BridgeStatus>,
    /// An OpenFlow controller is connected. Absent if none is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_connected: Option<bool>,
}

/// The network cards and the bonds over them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Interfaces {
    /// The network cards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::map_by("name"))]
    pub physical: Vec<PhysicalInterface>,
    /// The bonds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::map_by("name"))]
    pub bonds: Vec<Bond>,
}

/// A network card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhysicalInterface {
    /// The name.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Whether its link is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<LinkStatus>,
    /// The speed of its link for people, for example 25Gbps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<String>,
    /// The speed of its link, in bits per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub bits_per_second: Option<i64>,
    /// The bond that it is a member of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bond: Option<String>,
}

/// Several network cards that act as one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bond {
    /// The name.
    #[schemars(length(min = 1))]
    pub name: String,
    /// How traffic is spread over the members, for example balance-tcp.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Whether it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<BondStatus>,
    /// How many members it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub members: Option<i32>,
    /// How many members carry traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub active_members: Option<i32>,
    /// The state of LACP: "negotiated", "configured" or "off".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacp: Option<String>,
    /// The members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::map_by("name"))]
    pub member_states: Vec<BondMember>,
}

/// A member of a bond.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BondMember {
    /// The name of the network card.
    #[schemars(length(min = 1))]
    pub name: String,
    /// It carries traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
    /// Whether its link is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<LinkStatus>,
    /// LACP has agreed with the other side on this member. Absent without LACP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacp_current: Option<bool>,
}

/// The ovn-controller of the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OvnController {
    /// It is connected to the southbound database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connected: Option<bool>,
    /// The southbound database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sb_connection: Option<String>,
    /// The name of this node in OVN.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chassis_id: Option<String>,
}

/// The flows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlowStats {
    /// The flows of all bridges together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub total_flows: Option<i64>,
    /// The flows of each table that has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::map_by("table"))]
    pub flows_per_table: Vec<TableFlows>,
}

/// The flows of one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TableFlows {
    /// The number of the table.
    #[schemars(range(min = 0, max = 255))]
    pub table: i32,
    /// How many flows are in it.
    #[schemars(range(min = 0))]
    pub flows: i64,
}

/// Counters over all interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metrics {
    /// Packets that came in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub packets_received: Option<i64>,
    /// Packets that went out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub packets_sent: Option<i64>,
    /// Bytes that came in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub bytes_received: Option<i64>,
    /// Bytes that went out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub bytes_sent: Option<i64>,
    /// Packets that were dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub drops: Option<i64>,
    /// Packets with errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub errors: Option<i64>,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Issue {
    /// How bad it is.
    pub severity: Severity,
    /// What it is.
    #[schemars(length(min = 1, max = 2048))]
    pub message: String,
    /// When it was first seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detected_at: Option<Time>,
    /// What kind of issue it is, as one CamelCase word, for example OrphanPort.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub kind: Option<String>,
    /// The bridge, port, bond or interface it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub object: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub remedy: Option<String>,
}
