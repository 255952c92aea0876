//! Migration, `kvm.cloud.sap/v1alpha1`.
//!
//! Writers of the status: the node agents of the two hosts. Each end owns its own entry in
//! `status.ends`; the source also owns the fields that are there once. Numbers are in `stats`; the
//! strings beside them are for people and for readers of the first version.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{schema, strings::string_enum};

string_enum! {
    /// The type of a libvirt job. The wire has strings.
    pub enum JobType {
        /// Its end can be foretold.
        Bounded => "bounded",
        /// Its end cannot be foretold.
        Unbounded => "unbounded",
        /// It has ended; how is not known.
        Completed => "completed",
        /// It has failed.
        Failed => "failed",
        /// It was cancelled.
        Cancelled => "cancelled",
        /// It has succeeded.
        Success => "success",
    }
}

string_enum! {
    /// The operation of a libvirt job. The wire has strings.
    pub enum JobOperation {
        /// Not known.
        Unknown => "unknown",
        /// A domain starts.
        Start => "start",
        /// A domain is saved.
        Save => "save",
        /// A domain is restored.
        Restore => "restore",
        /// A domain comes in.
        MigrationIn => "migration_in",
        /// A domain goes out.
        MigrationOut => "migration_out",
        /// A snapshot is made.
        Snapshot => "snapshot",
        /// A snapshot is gone back to.
        SnapshotRevert => "snapshot_revert",
        /// A domain is dumped.
        Dump => "dump",
        /// A domain is backed up.
        Backup => "backup",
        /// A snapshot is deleted.
        SnapshotDelete => "snapshot_delete",
    }
}

string_enum! {
    /// Which end of a migration a host is.
    pub enum Role {
        /// The instance leaves this host.
        Source => "Source",
        /// The instance comes to this host.
        Destination => "Destination",
    }
}

string_enum! {
    /// How a migration ended.
    pub enum MigrationResult {
        /// The instance runs on the destination.
        Succeeded => "Succeeded",
        /// The instance still runs on the source.
        Failed => "Failed",
        /// It was aborted; the instance still runs on the source.
        Cancelled => "Cancelled",
        /// It has ended, and nobody saw how.
        Unknown => "Unknown",
    }
}

/// Nothing: a migration is asked for in Nova, not here.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kvm.cloud.sap",
    version = "v1alpha1",
    kind = "Migration",
    plural = "migrations",
    namespaced,
    status = "MigrationStatus",
    schema = "disabled",
    derive = "Default",
    derive = "PartialEq",
    doc = "One migration of an instance.",
    printcolumn(name = "Origin", type_ = "string", json_path = ".status.origin"),
    printcolumn(
        name = "Destination",
        type_ = "string",
        json_path = ".status.destination"
    ),
    printcolumn(name = "Type", type_ = "string", json_path = ".status.type"),
    printcolumn(name = "Operation", type_ = "string", json_path = ".status.operation"),
    printcolumn(name = "Started", type_ = "date", json_path = ".status.started"),
    printcolumn(name = "Elapsed", type_ = "string", json_path = ".status.timeElapsed"),
    printcolumn(name = "Data Total", type_ = "string", json_path = ".status.dataTotal"),
    printcolumn(
        name = "Data Processed",
        type_ = "string",
        json_path = ".status.dataProcessed"
    ),
    printcolumn(
        name = "Data Remaining",
        type_ = "string",
        json_path = ".status.dataRemaining"
    ),
    printcolumn(name = "Memory TX", type_ = "string", json_path = ".status.memBps"),
    printcolumn(
        name = "Memory Dirty Rate",
        type_ = "string",
        json_path = ".status.memDirtyRate"
    ),
    printcolumn(
        name = "Memory Iteration",
        type_ = "string",
        json_path = ".status.memIteration"
    )
)]
pub struct MigrationSpec {}

/// How far the migration is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationStatus {
    /// The host the instance leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The host the instance comes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// The type of the libvirt job.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// The operation of the libvirt job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = schema::required)]
    pub started: Option<Time>,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub err_msg: Option<String>,
    /// The time so far, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_elapsed: Option<String>,
    /// The time to go, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_remaining: Option<String>,
    /// How long the instance stood still, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downtime: Option<String>,
    /// How long the preparation took, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setup_time: Option<String>,
    /// All data, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_total: Option<String>,
    /// Data that has been sent, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_processed: Option<String>,
    /// Data that is left, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_remaining: Option<String>,
    /// All memory, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_total: Option<String>,
    /// Memory that has been sent, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_processed: Option<String>,
    /// Memory that is left, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_remaining: Option<String>,
    /// Pages of one repeated byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_constant: Option<i64>,
    /// Pages that were sent as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_normal: Option<i64>,
    /// Bytes that were sent as they are, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_normal_bytes: Option<String>,
    /// Memory per second, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_bps: Option<String>,
    /// Pages that the instance dirties per second, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_dirty_rate: Option<String>,
    /// The size of a page, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_page_size: Option<String>,
    /// How many times memory was gone through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_iteration: Option<i64>,
    /// Pages that were fetched after the switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_postcopy_requests: Option<i64>,
    /// All disk data, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_total: Option<String>,
    /// Disk data that has been sent, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_processed: Option<String>,
    /// Disk data that is left, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_remaining: Option<String>,
    /// Disk data per second, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bps: Option<String>,
    /// How much the instance is slowed down, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_converge_throttle: Option<String>,

    /// The UUID of the instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 36))]
    pub instance: Option<String>,
    /// The id of the migration in Nova.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migration_id: Option<i64>,
    /// How it ended. Absent while it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<MigrationResult>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<Time>,
    /// What each end sees. Each end writes its own entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2), transform = schema::map_by("role"))]
    pub ends: Vec<MigrationEnd>,
}

/// What one end sees.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationEnd {
    /// Which end it is.
    pub role: Role,
    /// The name of the node.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,
    /// When the numbers were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated: Option<Time>,
    /// How it ended, as this end sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<MigrationResult>,
    /// What went wrong, as this end sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub error: Option<String>,
    /// The numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stats: Option<MigrationStats>,
}

/// The numbers of a migration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationStats {
    /// The time so far, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub elapsed_millis: Option<i64>,
    /// The time to go, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub remaining_millis: Option<i64>,
    /// How long the instance stood still, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub downtime_millis: Option<i64>,
    /// How long the preparation took, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub setup_millis: Option<i64>,
    /// All data, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub data_total_bytes: Option<i64>,
    /// Data that has been sent, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub data_processed_bytes: Option<i64>,
    /// Data that is left, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub data_remaining_bytes: Option<i64>,
    /// All memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub mem_total_bytes: Option<i64>,
    /// Memory that has been sent, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub mem_processed_bytes: Option<i64>,
    /// Memory that is left, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub mem_remaining_bytes: Option<i64>,
    /// Memory that was sent as it is, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub mem_normal_bytes: Option<i64>,
    /// Memory per second, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub mem_bytes_per_second: Option<i64>,
    /// Pages that the instance dirties per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub mem_dirty_pages_per_second: Option<i64>,
    /// The size of a page, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub mem_page_size_bytes: Option<i64>,
    /// All disk data, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub disk_total_bytes: Option<i64>,
    /// Disk data that has been sent, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub disk_processed_bytes: Option<i64>,
    /// Disk data that is left, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub disk_remaining_bytes: Option<i64>,
    /// Disk data per second, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub disk_bytes_per_second: Option<i64>,
    /// How much the instance is slowed down, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub throttle_percent: Option<i32>,
}
