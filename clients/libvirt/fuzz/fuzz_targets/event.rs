//! Any bytes as every event.
#![no_main]

use cobalt_libvirt::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for procedure in fuzzing::EVENTS {
        if let Some(event) = fuzzing::event(*procedure, bytes) {
            assert!(event.domain().is_some());
            assert!(!event.kind_name().is_empty());
        }
    }
});
