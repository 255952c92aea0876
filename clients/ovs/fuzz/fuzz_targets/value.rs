//! Any bytes as a value of OVSDB.
#![no_main]

use cobalt_ovs::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(value) = fuzzing::value(bytes) {
        assert!(value.atoms().len() <= bytes.len());
        let _ = value.atom();
    }
});
