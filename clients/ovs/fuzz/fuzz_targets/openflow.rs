//! Any bytes as a stream of OpenFlow messages, each read as what its header says.
#![no_main]

use cobalt_ovs::fuzzing;
use cobalt_ovs::openflow::Version;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for (number, _, body) in fuzzing::split_openflow(bytes) {
        let version = Version::ALL.into_iter().find(|version| version.number() == number);
        if let (Some(version), Some((head, rest))) = (version, body.split_first_chunk::<8>()) {
            let _ = fuzzing::openflow(version, u16::from_be_bytes([head[0], head[1]]), rest);
        }
    }
});
