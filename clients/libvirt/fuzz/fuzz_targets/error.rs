//! Any bytes as an error.
#![no_main]

use cobalt_libvirt::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(error) = fuzzing::error(bytes) {
        drop(error.to_string());
    }
});
