//! Reads the messages that bring events.

use super::Event;
use crate::typed::TypedParams;
use crate::xdr::{Reader, XdrResult};

/// Every message that brings an event we know.
pub const MESSAGES: &[i32] = &[
    318, 319, 320, 321, 324, 325, 327, 328, 329, 330, 331, 332, 333, 339, 346, 348, 354, 359, 363,
    367, 379, 385, 423, 438, 453,
];

/// Reads an event, by the number of the message that brings it: the subscription it is for, and
/// what happened. `None` for a message that we do not subscribe to.
pub fn decode(procedure: i32, payload: &[u8]) -> XdrResult<Option<(i32, Event)>> {
    let r = &mut Reader::new(payload);
    let callback = r.i32()?;
    let event = match procedure {
        318 => Event::Lifecycle {
            domain: r.domain()?,
            event: r.i32()?.into(),
            detail: r.i32()?,
        },
        319 => Event::Reboot {
            domain: r.domain()?,
        },
        320 => Event::RtcChange {
            domain: r.domain()?,
            offset: r.i64()?,
        },
        321 => Event::Watchdog {
            domain: r.domain()?,
            action: r.i32()?.into(),
        },
        324 => Event::IoError {
            domain: r.domain()?,
            source: r.string()?,
            device: r.string()?,
            action: r.i32()?.into(),
            reason: r.string()?,
        },
        325 => Event::ControlError {
            domain: r.domain()?,
        },
        327 => Event::DiskChange {
            domain: r.domain()?,
            old_source: r.optional(Reader::string)?,
            new_source: r.optional(Reader::string)?,
            device: r.string()?,
            reason: r.i32()?,
        },
        328 => Event::TrayChange {
            domain: r.domain()?,
            device: r.string()?,
            open: r.i32()? == 0,
        },
        // The reason of these three says nothing, and comes before the domain.
        329 => {
            r.i32()?;
            Event::PmWakeup {
                domain: r.domain()?,
            }
        }
        330 => {
            r.i32()?;
            Event::PmSuspend {
                domain: r.domain()?,
            }
        }
        331 => Event::BalloonChange {
            domain: r.domain()?,
            actual_kib: r.u64()?,
        },
        332 => {
            r.i32()?;
            Event::PmSuspendDisk {
                domain: r.domain()?,
            }
        }
        333 => Event::DeviceRemoved {
            domain: r.domain()?,
            device: r.string()?,
        },
        339 => Event::BlockJob {
            domain: r.domain()?,
            disk: r.string()?,
            job: r.i32()?,
            status: r.i32()?,
        },
        346 => Event::Tunable {
            domain: r.domain()?,
            params: TypedParams::read(r)?,
        },
        348 => Event::AgentLifecycle {
            domain: r.domain()?,
            connected: r.i32()? == 1,
            reason: r.i32()?,
        },
        354 => Event::DeviceAdded {
            domain: r.domain()?,
            device: r.string()?,
        },
        359 => Event::MigrationIteration {
            domain: r.domain()?,
            iteration: r.i32()?,
        },
        363 => Event::JobCompleted {
            domain: r.domain()?,
            params: TypedParams::read(r)?,
        },
        367 => Event::DeviceRemovalFailed {
            domain: r.domain()?,
            device: r.string()?,
        },
        379 => Event::MetadataChange {
            domain: r.domain()?,
            kind: r.i32()?,
            namespace: r.optional(Reader::string)?,
        },
        385 => Event::BlockThreshold {
            domain: r.domain()?,
            device: r.string()?,
            path: r.optional(Reader::string)?,
            threshold: r.u64()?,
            excess: r.u64()?,
        },
        423 => Event::MemoryFailure {
            domain: r.domain()?,
            recipient: r.i32()?,
            action: r.i32()?,
            flags: r.u32()?,
        },
        438 => Event::MemoryDeviceSizeChange {
            domain: r.domain()?,
            device: r.string()?,
            size_kib: r.u64()?,
        },
        453 => Event::NicMacChange {
            domain: r.domain()?,
            device: r.string()?,
            old_mac: r.string()?,
            new_mac: r.string()?,
        },
        _ => return Ok(None),
    };
    Ok(Some((callback, event)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::domain::Domain;
    use crate::event::{IoErrorAction, Lifecycle, WatchdogAction, lifecycle_detail};
    use crate::xdr::Writer;

    fn domain() -> Domain {
        Domain {
            name: "g1".to_owned(),
            uuid: Uuid::max(),
            id: Some(3),
        }
    }

    /// The callback and the domain, as nearly all of them begin.
    fn begin() -> Writer {
        Writer::new().i32(5).domain(&domain())
    }

    #[test]
    fn every_event_is_read() {
        let params = || TypedParams::default().with("time_elapsed", 12_u64);
        let device = || "virtio-disk0".to_owned();
        let table: Vec<(i32, Writer, Event)> = vec![
            (
                318,
                begin().i32(5).i32(3),
                Event::Lifecycle {
                    domain: domain(),
                    event: Lifecycle::Stopped,
                    detail: lifecycle_detail::STOPPED_MIGRATED,
                },
            ),
            (319, begin(), Event::Reboot { domain: domain() }),
            (
                320,
                begin().i64(-3600),
                Event::RtcChange {
                    domain: domain(),
                    offset: -3600,
                },
            ),
            (
                321,
                begin().i32(99),
                Event::Watchdog {
                    domain: domain(),
                    action: WatchdogAction::Other(99),
                },
            ),
            (
                324,
                begin()
                    .string("/d")
                    .string("virtio-disk0")
                    .i32(1)
                    .string("enospc"),
                Event::IoError {
                    domain: domain(),
                    source: "/d".to_owned(),
                    device: device(),
                    action: IoErrorAction::Pause,
                    reason: "enospc".to_owned(),
                },
            ),
            (325, begin(), Event::ControlError { domain: domain() }),
            (
                327,
                begin()
                    .optional_string(None)
                    .optional_string(Some("/n"))
                    .string("virtio-disk0")
                    .i32(1),
                Event::DiskChange {
                    domain: domain(),
                    old_source: None,
                    new_source: Some("/n".to_owned()),
                    device: device(),
                    reason: 1,
                },
            ),
            (
                328,
                begin().string("virtio-disk0").i32(0),
                Event::TrayChange {
                    domain: domain(),
                    device: device(),
                    open: true,
                },
            ),
            (
                329,
                Writer::new().i32(5).i32(0).domain(&domain()),
                Event::PmWakeup { domain: domain() },
            ),
            (
                330,
                Writer::new().i32(5).i32(0).domain(&domain()),
                Event::PmSuspend { domain: domain() },
            ),
            (
                331,
                begin().u64(4096),
                Event::BalloonChange {
                    domain: domain(),
                    actual_kib: 4096,
                },
            ),
            (
                332,
                Writer::new().i32(5).i32(0).domain(&domain()),
                Event::PmSuspendDisk { domain: domain() },
            ),
            (
                333,
                begin().string("virtio-disk0"),
                Event::DeviceRemoved {
                    domain: domain(),
                    device: device(),
                },
            ),
            (
                339,
                begin().string("vda").i32(1).i32(2),
                Event::BlockJob {
                    domain: domain(),
                    disk: "vda".to_owned(),
                    job: 1,
                    status: 2,
                },
            ),
            (
                346,
                params().write(begin()),
                Event::Tunable {
                    domain: domain(),
                    params: params(),
                },
            ),
            (
                348,
                begin().i32(1).i32(2),
                Event::AgentLifecycle {
                    domain: domain(),
                    connected: true,
                    reason: 2,
                },
            ),
            (
                354,
                begin().string("virtio-disk0"),
                Event::DeviceAdded {
                    domain: domain(),
                    device: device(),
                },
            ),
            (
                359,
                begin().i32(4),
                Event::MigrationIteration {
                    domain: domain(),
                    iteration: 4,
                },
            ),
            (
                363,
                params().write(begin()),
                Event::JobCompleted {
                    domain: domain(),
                    params: params(),
                },
            ),
            (
                367,
                begin().string("virtio-disk0"),
                Event::DeviceRemovalFailed {
                    domain: domain(),
                    device: device(),
                },
            ),
            (
                379,
                begin().i32(2).optional_string(Some("urn:x")),
                Event::MetadataChange {
                    domain: domain(),
                    kind: 2,
                    namespace: Some("urn:x".to_owned()),
                },
            ),
            (
                385,
                begin().string("vda").optional_string(None).u64(1).u64(2),
                Event::BlockThreshold {
                    domain: domain(),
                    device: "vda".to_owned(),
                    path: None,
                    threshold: 1,
                    excess: 2,
                },
            ),
            (
                423,
                begin().i32(1).i32(2).u32(3),
                Event::MemoryFailure {
                    domain: domain(),
                    recipient: 1,
                    action: 2,
                    flags: 3,
                },
            ),
            (
                438,
                begin().string("dimm0").u64(1024),
                Event::MemoryDeviceSizeChange {
                    domain: domain(),
                    device: "dimm0".to_owned(),
                    size_kib: 1024,
                },
            ),
            (
                453,
                begin().string("net0").string("a").string("b"),
                Event::NicMacChange {
                    domain: domain(),
                    device: "net0".to_owned(),
                    old_mac: "a".to_owned(),
                    new_mac: "b".to_owned(),
                },
            ),
        ];
        let messages: Vec<i32> = table.iter().map(|(message, ..)| *message).collect();
        assert_eq!(messages, MESSAGES);
        for (message, payload, expected) in table {
            let bytes = payload.into_bytes();
            let name = expected.kind_name();
            assert_eq!(expected.domain(), Some(&domain()), "{name}");
            assert_eq!(decode(message, &bytes), Ok(Some((5, expected))), "{name}");
            // A message that is cut short anywhere is told.
            for length in 0..bytes.len() {
                assert!(
                    decode(message, &bytes[..length]).is_err(),
                    "{name} {length}"
                );
            }
        }
        assert_eq!(decode(9999, &[0; 4]), Ok(None));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for message in MESSAGES {
                drop(decode(*message, &bytes));
            }
        }
    }
}
