//! Flags of libvirt's calls, as types of their own.

macro_rules! flags {
    ($(
        $(#[$about:meta])*
        $name:ident { $($(#[$each:meta])* $flag:ident = $bits:expr;)* }
    )*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name(u32);

        impl $name {
            $($(#[$each])* pub const $flag: Self = Self($bits);)*

            /// Flags that this crate has no name for.
            pub const fn from_bits(bits: u32) -> Self {
                Self(bits)
            }

            /// The number that libvirt takes.
            pub const fn bits(self) -> u32 {
                self.0
            }

            /// Whether all of these flags are set.
            pub const fn contains(self, flags: Self) -> bool {
                self.0 & flags.0 == flags.0
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl std::ops::BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }
    )*};
}

flags! {
    /// Which domains are listed. Flags of one group add up, groups exclude.
    ListDomains {
        /// No filter.
        ALL = 0;
        /// Running or paused.
        ACTIVE = 1 << 0;
        /// Neither.
        INACTIVE = 1 << 1;
        /// With a definition that stays.
        PERSISTENT = 1 << 2;
        /// Without one.
        TRANSIENT = 1 << 3;
        /// Running.
        RUNNING = 1 << 4;
        /// Paused.
        PAUSED = 1 << 5;
        /// Shut off.
        SHUTOFF = 1 << 6;
        /// In another state.
        OTHER = 1 << 7;
        /// With a saved image.
        MANAGED_SAVE = 1 << 8;
        /// Started with the host.
        AUTOSTART = 1 << 10;
    }

    /// How the XML of a domain is written.
    XmlFlags {
        /// As it is.
        NONE = 0;
        /// With passwords. Never needed for a report.
        SECURE = 1 << 0;
        /// The definition for the next start, also of a running domain.
        INACTIVE = 1 << 1;
        /// With the CPU as the host would give it.
        UPDATE_CPU = 1 << 2;
        /// As a migration would send it; with passwords.
        MIGRATABLE = 1 << 3;
    }

    /// How a domain is defined.
    DefineFlags {
        /// As always.
        NONE = 0;
        /// The XML is checked against the schema.
        VALIDATE = 1 << 0;
    }

    /// How a domain is started.
    CreateFlags {
        /// As always.
        NONE = 0;
        /// Paused.
        PAUSED = 1 << 0;
        /// It ends with this connection.
        AUTODESTROY = 1 << 1;
        /// Without the host's cache when it is restored.
        BYPASS_CACHE = 1 << 2;
        /// A saved image is discarded.
        FORCE_BOOT = 1 << 3;
        /// The XML is checked against the schema.
        VALIDATE = 1 << 4;
    }

    /// How a domain is destroyed.
    DestroyFlags {
        /// With SIGKILL, if SIGTERM does not help.
        NONE = 0;
        /// Only with SIGTERM, so that it can flush.
        GRACEFUL = 1 << 0;
    }

    /// How a domain is shut down.
    ShutdownFlags {
        /// The hypervisor chooses.
        NONE = 0;
        /// By the power button.
        ACPI = 1 << 0;
        /// By the guest agent.
        GUEST_AGENT = 1 << 1;
    }

    /// How a domain is rebooted.
    RebootFlags {
        /// The hypervisor chooses.
        NONE = 0;
        /// By the power button.
        ACPI = 1 << 0;
        /// By the guest agent.
        GUEST_AGENT = 1 << 1;
    }

    /// What goes with a domain that is undefined.
    UndefineFlags {
        /// Nothing; refused if there is something.
        NONE = 0;
        /// Its saved image.
        MANAGED_SAVE = 1 << 0;
        /// The metadata of its snapshots.
        SNAPSHOTS_METADATA = 1 << 1;
        /// Its NVRAM.
        NVRAM = 1 << 2;
        /// Its NVRAM stays.
        KEEP_NVRAM = 1 << 3;
        /// The metadata of its checkpoints.
        CHECKPOINTS_METADATA = 1 << 4;
        /// Its TPM state.
        TPM = 1 << 5;
        /// Its TPM state stays.
        KEEP_TPM = 1 << 6;
    }

    /// Whether a change is for the running domain or for its definition.
    Affect {
        /// The state it is in.
        CURRENT = 0;
        /// The running domain.
        LIVE = 1 << 0;
        /// The definition.
        CONFIG = 1 << 1;
    }

    /// Which groups of statistics are read.
    StatsGroups {
        /// State and reason.
        STATE = 1 << 0;
        /// CPU time.
        CPU = 1 << 1;
        /// Memory balloon.
        BALLOON = 1 << 2;
        /// Each virtual CPU.
        VCPU = 1 << 3;
        /// Each interface.
        INTERFACE = 1 << 4;
        /// Each disk.
        BLOCK = 1 << 5;
        /// Performance counters.
        PERF = 1 << 6;
        /// Each I/O thread.
        IOTHREAD = 1 << 7;
        /// Memory bandwidth.
        MEMORY = 1 << 8;
        /// Rate at which memory is written to.
        DIRTYRATE = 1 << 9;
        /// What only the hypervisor can explain.
        VM = 1 << 10;
        /// All of them; what the driver does not know is left out.
        ALL = (1 << 11) - 1;
    }

    /// How statistics are read.
    StatsFlags {
        /// All that was asked for, also if a domain makes us wait.
        NONE = 0;
        /// A domain that is busy is asked for nothing that would wait.
        NOWAIT = 1 << 29;
        /// Also the backing files of disks.
        BACKING = 1 << 30;
        /// A group that the driver does not know is an error.
        ENFORCE = 1 << 31;
    }

    /// Which job is asked about.
    JobStatsFlags {
        /// The one that runs.
        NONE = 0;
        /// The one that ended last; libvirt forgets it when it is read.
        COMPLETED = 1 << 0;
        /// With COMPLETED: it is not forgotten.
        KEEP_COMPLETED = 1 << 1;
    }

    /// How a domain migrates.
    MigrateFlags {
        /// Cold.
        NONE = 0;
        /// It runs on while it moves.
        LIVE = 1 << 0;
        /// The source talks to the destination. Always set by this crate.
        PEER2PEER = 1 << 1;
        /// The data goes through libvirt's own connection.
        TUNNELLED = 1 << 2;
        /// It is defined on the destination.
        PERSIST_DEST = 1 << 3;
        /// It is undefined on the source.
        UNDEFINE_SOURCE = 1 << 4;
        /// It is paused on the destination.
        PAUSED = 1 << 5;
        /// Its disks are copied.
        NON_SHARED_DISK = 1 << 6;
        /// Its disks are copied without their backing files.
        NON_SHARED_INC = 1 << 7;
        /// Nobody changes the definition meanwhile.
        CHANGE_PROTECTION = 1 << 8;
        /// Also where libvirt sees a risk for the disks.
        UNSAFE = 1 << 9;
        /// Only the definition.
        OFFLINE = 1 << 10;
        /// Compressed.
        COMPRESSED = 1 << 11;
        /// An I/O error ends the migration.
        ABORT_ON_ERROR = 1 << 12;
        /// The guest is slowed down until it converges.
        AUTO_CONVERGE = 1 << 13;
        /// All memory is pinned for RDMA.
        RDMA_PIN_ALL = 1 << 14;
        /// It may be switched to post-copy.
        POSTCOPY = 1 << 15;
        /// The data is encrypted by the hypervisor.
        TLS = 1 << 16;
        /// Over several connections.
        PARALLEL = 1 << 17;
    }
}
