//! Any bytes as a part of every OpenFlow answer.
#![no_main]

use cobalt_ovs::fuzzing;
use cobalt_ovs::openflow::Version;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for version in Version::ALL {
        for kind in [1, 2, 3, 4, 13] {
            let _ = fuzzing::openflow(version, kind, bytes);
        }
    }
});
