//! Events: what happens to domains.

mod decode;
mod kind;
mod stream;

pub use decode::{MESSAGES, decode};
pub use kind::{EventKind, IoErrorAction, Lifecycle, WatchdogAction, lifecycle_detail};
pub use stream::{EventStream, Sink};

use crate::domain::Domain;
use crate::typed::TypedParams;

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Event {
    Lifecycle {
        domain: Domain,
        event: Lifecycle,
        /// See [`lifecycle_detail`].
        detail: i32,
    },
    /// Also after a reset.
    Reboot {
        domain: Domain,
    },
    /// The guest's clock differs from UTC by this many seconds.
    RtcChange {
        domain: Domain,
        offset: i64,
    },
    Watchdog {
        domain: Domain,
        action: WatchdogAction,
    },
    IoError {
        domain: Domain,
        /// The file or device behind the disk.
        source: String,
        /// The alias of the disk.
        device: String,
        action: IoErrorAction,
        /// For example `enospc`; often empty.
        reason: String,
    },
    ControlError {
        domain: Domain,
    },
    /// Numbers as in `virDomainBlockJobType` and `virConnectDomainEventBlockJobStatus`.
    BlockJob {
        domain: Domain,
        disk: String,
        job: i32,
        status: i32,
    },
    DiskChange {
        domain: Domain,
        old_source: Option<String>,
        new_source: Option<String>,
        device: String,
        reason: i32,
    },
    TrayChange {
        domain: Domain,
        device: String,
        open: bool,
    },
    PmWakeup {
        domain: Domain,
    },
    PmSuspend {
        domain: Domain,
    },
    BalloonChange {
        domain: Domain,
        actual_kib: u64,
    },
    PmSuspendDisk {
        domain: Domain,
    },
    DeviceRemoved {
        domain: Domain,
        device: String,
    },
    Tunable {
        domain: Domain,
        params: TypedParams,
    },
    AgentLifecycle {
        domain: Domain,
        connected: bool,
        reason: i32,
    },
    DeviceAdded {
        domain: Domain,
        device: String,
    },
    MigrationIteration {
        domain: Domain,
        iteration: i32,
    },
    JobCompleted {
        domain: Domain,
        params: TypedParams,
    },
    DeviceRemovalFailed {
        domain: Domain,
        device: String,
    },
    MetadataChange {
        domain: Domain,
        /// 0 is the description, 1 the title, 2 an element.
        kind: i32,
        namespace: Option<String>,
    },
    BlockThreshold {
        domain: Domain,
        device: String,
        path: Option<String>,
        threshold: u64,
        excess: u64,
    },
    /// Numbers as in `virDomainMemoryFailureRecipientType` (0 hypervisor, 1 guest),
    /// `virDomainMemoryFailureActionType` (0 ignored, 1 injected, 2 fatal, 3 reset) and
    /// `virDomainMemoryFailureFlags`.
    MemoryFailure {
        domain: Domain,
        recipient: i32,
        action: i32,
        flags: u32,
    },
    MemoryDeviceSizeChange {
        domain: Domain,
        device: String,
        size_kib: u64,
    },
    NicMacChange {
        domain: Domain,
        device: String,
        old_mac: String,
        new_mac: String,
    },
    /// Events were lost because the reader was too slow: read everything again.
    Overflow,
}

impl Event {
    /// The domain it is about.
    pub fn domain(&self) -> Option<&Domain> {
        match self {
            Self::Lifecycle { domain, .. }
            | Self::Reboot { domain }
            | Self::RtcChange { domain, .. }
            | Self::Watchdog { domain, .. }
            | Self::IoError { domain, .. }
            | Self::ControlError { domain }
            | Self::BlockJob { domain, .. }
            | Self::DiskChange { domain, .. }
            | Self::TrayChange { domain, .. }
            | Self::PmWakeup { domain }
            | Self::PmSuspend { domain }
            | Self::BalloonChange { domain, .. }
            | Self::PmSuspendDisk { domain }
            | Self::DeviceRemoved { domain, .. }
            | Self::Tunable { domain, .. }
            | Self::AgentLifecycle { domain, .. }
            | Self::DeviceAdded { domain, .. }
            | Self::MigrationIteration { domain, .. }
            | Self::JobCompleted { domain, .. }
            | Self::DeviceRemovalFailed { domain, .. }
            | Self::MetadataChange { domain, .. }
            | Self::BlockThreshold { domain, .. }
            | Self::MemoryFailure { domain, .. }
            | Self::MemoryDeviceSizeChange { domain, .. }
            | Self::NicMacChange { domain, .. } => Some(domain),
            Self::Overflow => None,
        }
    }

    /// What kind it is, for logs and metrics.
    pub fn kind_name(&self) -> &'static str {
        match self {
            Self::Lifecycle { .. } => "lifecycle",
            Self::Reboot { .. } => "reboot",
            Self::RtcChange { .. } => "rtc-change",
            Self::Watchdog { .. } => "watchdog",
            Self::IoError { .. } => "io-error",
            Self::ControlError { .. } => "control-error",
            Self::BlockJob { .. } => "block-job",
            Self::DiskChange { .. } => "disk-change",
            Self::TrayChange { .. } => "tray-change",
            Self::PmWakeup { .. } => "pm-wakeup",
            Self::PmSuspend { .. } => "pm-suspend",
            Self::BalloonChange { .. } => "balloon-change",
            Self::PmSuspendDisk { .. } => "pm-suspend-disk",
            Self::DeviceRemoved { .. } => "device-removed",
            Self::Tunable { .. } => "tunable",
            Self::AgentLifecycle { .. } => "agent-lifecycle",
            Self::DeviceAdded { .. } => "device-added",
            Self::MigrationIteration { .. } => "migration-iteration",
            Self::JobCompleted { .. } => "job-completed",
            Self::DeviceRemovalFailed { .. } => "device-removal-failed",
            Self::MetadataChange { .. } => "metadata-change",
            Self::BlockThreshold { .. } => "block-threshold",
            Self::MemoryFailure { .. } => "memory-failure",
            Self::MemoryDeviceSizeChange { .. } => "memory-device-size-change",
            Self::NicMacChange { .. } => "nic-mac-change",
            Self::Overflow => "overflow",
        }
    }
}
