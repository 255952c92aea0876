//! The decoders over messages that real libvirts have sent, whole and damaged.

use std::collections::BTreeSet;

use cobalt_libvirt::Event;
use cobalt_libvirt::fuzzing::{self, Message};

use crate::record::corpus;

/// All recorded messages: release, name, bytes.
fn recorded() -> Vec<(String, String, Vec<u8>)> {
    let mut found = Vec::new();
    for release in std::fs::read_dir(corpus()).unwrap() {
        let release = release.unwrap();
        for file in std::fs::read_dir(release.path()).unwrap() {
            let file = file.unwrap();
            let text = |name: std::ffi::OsString| name.into_string().unwrap();
            let bytes = std::fs::read(file.path()).unwrap();
            found.push((text(release.file_name()), text(file.file_name()), bytes));
        }
    }
    found.sort();
    found
}

fn only(bytes: &[u8]) -> Message {
    let (mut messages, used) = fuzzing::split(bytes);
    assert_eq!((messages.len(), used), (1, bytes.len()));
    messages.remove(0)
}

#[test]
fn every_recorded_message_is_read() {
    let mut events = BTreeSet::new();
    for (release, name, bytes) in recorded() {
        let Message {
            kind,
            procedure,
            payload,
            ..
        } = only(&bytes);
        assert_eq!(format!("{kind}-{procedure}"), name, "{release}");
        match kind {
            "event" => {
                let event = fuzzing::event(procedure, &payload).unwrap();
                assert!(event.domain().is_some_and(|domain| !domain.name.is_empty()));
                assert_ne!(event, Event::Overflow);
                events.insert((release, event.kind_name()));
            }
            "error" => {
                let error = fuzzing::error(&payload).unwrap();
                assert!(
                    error.code > 0 && error.level == 2,
                    "{release} {name}: {error:?}"
                );
                assert!(!error.message.is_empty());
            }
            _ => assert!(fuzzing::answer(procedure, &payload), "{release} {name}"),
        }
    }
    for release in ["9.0", "11.3"] {
        for kind in [
            "lifecycle",
            "reboot",
            "watchdog",
            "io-error",
            "device-added",
            "device-removed",
            "metadata-change",
        ] {
            let wanted = (release.to_owned(), kind);
            assert!(
                events.contains(&wanted),
                "{wanted:?} is not among {events:?}"
            );
        }
    }
    // Guests migrate to the newer release only.
    for kind in ["migration-iteration", "job-completed"] {
        assert!(events.contains(&("9.0".to_owned(), kind)), "{kind}");
    }
}

/// Whatever is done to a message, the worst that happens is an error.
#[test]
fn no_damage_to_a_message_panics() {
    let try_all = |kind: &str, procedure: i32, payload: &[u8]| match kind {
        "event" => drop(fuzzing::event(procedure, payload)),
        "error" => drop(fuzzing::error(payload)),
        _ => {
            fuzzing::answer(procedure, payload);
            fuzzing::typed_params(payload);
        }
    };
    for (_, _, bytes) in recorded() {
        let message = only(&bytes);
        let payload = message.payload.to_vec();
        for length in 0..payload.len() {
            try_all(message.kind, message.procedure, &payload[..length]);
        }
        for position in 0..payload.len() {
            for damage in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = payload.clone();
                damaged[position] = damage;
                try_all(message.kind, message.procedure, &damaged);
            }
        }
        for length in 0..bytes.len() {
            fuzzing::split(&bytes[..length]);
        }
    }
}
