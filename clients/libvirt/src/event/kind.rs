//! What can be subscribed to, and the numbers that events carry.

use crate::named::named;

/// What can be subscribed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// Defined, started, stopped, paused, crashed, ...
    Lifecycle,
    /// The guest rebooted.
    Reboot,
    /// The guest changed its clock.
    RtcChange,
    /// The watchdog fired.
    Watchdog,
    /// A disk failed.
    IoError,
    /// libvirt lost control of the hypervisor's process.
    ControlError,
    /// A job on a disk ended or became ready.
    BlockJob,
    /// The medium of a drive changed.
    DiskChange,
    /// The tray of a drive moved.
    TrayChange,
    /// The guest woke up.
    PmWakeup,
    /// The guest went to sleep.
    PmSuspend,
    /// The balloon changed its size.
    BalloonChange,
    /// The guest hibernated.
    PmSuspendDisk,
    /// A device is gone.
    DeviceRemoved,
    /// A setting was changed.
    Tunable,
    /// The guest agent came or went.
    AgentLifecycle,
    /// A device is there.
    DeviceAdded,
    /// A migration begins another pass over the memory.
    MigrationIteration,
    /// A job ended.
    JobCompleted,
    /// The guest did not give a device away.
    DeviceRemovalFailed,
    /// Title, description or metadata changed.
    MetadataChange,
    /// A disk is filled up to a mark.
    BlockThreshold,
    /// Memory of the host failed.
    MemoryFailure,
    /// A memory device changed its size.
    MemoryDeviceSizeChange,
    /// The guest gave an interface another address (libvirt 11.2).
    NicMacChange,
}

impl EventKind {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::Lifecycle,
        Self::Reboot,
        Self::RtcChange,
        Self::Watchdog,
        Self::IoError,
        Self::ControlError,
        Self::BlockJob,
        Self::DiskChange,
        Self::TrayChange,
        Self::PmWakeup,
        Self::PmSuspend,
        Self::BalloonChange,
        Self::PmSuspendDisk,
        Self::DeviceRemoved,
        Self::Tunable,
        Self::AgentLifecycle,
        Self::DeviceAdded,
        Self::MigrationIteration,
        Self::JobCompleted,
        Self::DeviceRemovalFailed,
        Self::MetadataChange,
        Self::BlockThreshold,
        Self::MemoryFailure,
        Self::MemoryDeviceSizeChange,
        Self::NicMacChange,
    ];

    /// Its number (`virDomainEventID`).
    pub(crate) fn id(self) -> i32 {
        match self {
            Self::Lifecycle => 0,
            Self::Reboot => 1,
            Self::RtcChange => 2,
            Self::Watchdog => 3,
            // 4 is the same without a reason, 5 is about viewers of the screen.
            Self::IoError => 6,
            Self::ControlError => 7,
            // 8 is the same with a path instead of the name of the disk.
            Self::BlockJob => 16,
            Self::DiskChange => 9,
            Self::TrayChange => 10,
            Self::PmWakeup => 11,
            Self::PmSuspend => 12,
            Self::BalloonChange => 13,
            Self::PmSuspendDisk => 14,
            Self::DeviceRemoved => 15,
            Self::Tunable => 17,
            Self::AgentLifecycle => 18,
            Self::DeviceAdded => 19,
            Self::MigrationIteration => 20,
            Self::JobCompleted => 21,
            Self::DeviceRemovalFailed => 22,
            Self::MetadataChange => 23,
            Self::BlockThreshold => 24,
            Self::MemoryFailure => 25,
            Self::MemoryDeviceSizeChange => 26,
            Self::NicMacChange => 27,
        }
    }
}

named! {
    /// What happened to a domain. Its detail is in [`lifecycle_detail`].
    Lifecycle {
        /// It has a definition, or a new one.
        Defined = 0 "defined";
        /// Its definition is gone.
        Undefined = 1 "undefined";
        /// It runs.
        Started = 2 "started";
        /// It is paused.
        Suspended = 3 "suspended";
        /// It runs again.
        Resumed = 4 "resumed";
        /// It does not run any more.
        Stopped = 5 "stopped";
        /// The guest has shut down; it is stopped next.
        Shutdown = 6 "shutdown";
        /// The guest sleeps.
        PmSuspended = 7 "pmsuspended";
        /// The guest crashed.
        Crashed = 8 "crashed";
    }

    /// What is done when a watchdog fires.
    WatchdogAction {
        /// Nothing.
        None = 0 "none";
        /// The domain is paused.
        Pause = 1 "pause";
        /// It is reset.
        Reset = 2 "reset";
        /// It is switched off.
        PowerOff = 3 "poweroff";
        /// It is shut down.
        Shutdown = 4 "shutdown";
        /// It is only told.
        Debug = 5 "debug";
        /// The guest gets an NMI.
        InjectNmi = 6 "inject-nmi";
    }

    /// What is done when a disk fails.
    IoErrorAction {
        /// Nothing.
        None = 0 "none";
        /// The domain is paused.
        Pause = 1 "pause";
        /// The guest is told.
        Report = 2 "report";
    }
}

/// Details of [`Lifecycle`] events. Each group counts from 0.
#[allow(missing_docs)]
pub mod lifecycle_detail {
    pub const DEFINED_ADDED: i32 = 0;
    pub const DEFINED_UPDATED: i32 = 1;
    pub const DEFINED_RENAMED: i32 = 2;
    pub const DEFINED_FROM_SNAPSHOT: i32 = 3;

    pub const UNDEFINED_REMOVED: i32 = 0;
    pub const UNDEFINED_RENAMED: i32 = 1;

    pub const STARTED_BOOTED: i32 = 0;
    pub const STARTED_MIGRATED: i32 = 1;
    pub const STARTED_RESTORED: i32 = 2;
    pub const STARTED_FROM_SNAPSHOT: i32 = 3;
    pub const STARTED_WAKEUP: i32 = 4;

    pub const SUSPENDED_PAUSED: i32 = 0;
    pub const SUSPENDED_MIGRATED: i32 = 1;
    pub const SUSPENDED_IOERROR: i32 = 2;
    pub const SUSPENDED_WATCHDOG: i32 = 3;
    pub const SUSPENDED_RESTORED: i32 = 4;
    pub const SUSPENDED_FROM_SNAPSHOT: i32 = 5;
    pub const SUSPENDED_API_ERROR: i32 = 6;
    pub const SUSPENDED_POSTCOPY: i32 = 7;
    pub const SUSPENDED_POSTCOPY_FAILED: i32 = 8;

    pub const RESUMED_UNPAUSED: i32 = 0;
    pub const RESUMED_MIGRATED: i32 = 1;
    pub const RESUMED_FROM_SNAPSHOT: i32 = 2;
    pub const RESUMED_POSTCOPY: i32 = 3;
    pub const RESUMED_POSTCOPY_FAILED: i32 = 4;

    pub const STOPPED_SHUTDOWN: i32 = 0;
    pub const STOPPED_DESTROYED: i32 = 1;
    pub const STOPPED_CRASHED: i32 = 2;
    pub const STOPPED_MIGRATED: i32 = 3;
    pub const STOPPED_SAVED: i32 = 4;
    pub const STOPPED_FAILED: i32 = 5;
    pub const STOPPED_FROM_SNAPSHOT: i32 = 6;

    pub const SHUTDOWN_FINISHED: i32 = 0;
    pub const SHUTDOWN_GUEST: i32 = 1;
    pub const SHUTDOWN_HOST: i32 = 2;

    pub const CRASHED_PANICKED: i32 = 0;
    pub const CRASHED_CRASHLOADED: i32 = 1;
}
