//! Any bytes as a stream of JSON-RPC messages.
#![no_main]

use cobalt_ovs::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let messages = fuzzing::split(bytes);
    assert!(messages.iter().map(|message| message.len()).sum::<usize>() <= bytes.len());
    for message in messages {
        if let Some((_, part)) = fuzzing::rpc(&message) {
            assert!(part.len() <= message.len());
        }
    }
});
