//! Any bytes as every answer.
#![no_main]

use cobalt_libvirt::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for procedure in [6, 24, 212, 227, 228, 273, 287, 298, 344] {
        fuzzing::answer(procedure, bytes);
    }
});
