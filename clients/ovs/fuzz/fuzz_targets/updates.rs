//! Any bytes as rows, and the same bytes as changes of them.
#![no_main]

use cobalt_ovs::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut tables = fuzzing::tables();
    fuzzing::apply(&mut tables, bytes, true);
    // What has been read is there to be changed.
    fuzzing::apply(&mut tables, bytes, true);
    fuzzing::apply(&mut tables, bytes, false);
});
