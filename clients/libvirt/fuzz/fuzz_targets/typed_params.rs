//! Any bytes as typed parameters.
#![no_main]

use cobalt_libvirt::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(params) = fuzzing::typed_params(bytes) {
        for (name, value) in params.iter() {
            assert!(params.get(name).is_some());
            let _ = (value.as_u64(), value.as_i64(), value.as_f64(), value.as_bool());
        }
    }
});
