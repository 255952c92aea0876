//! Any bytes as a stream of messages, each read as what its header says.
#![no_main]

use cobalt_libvirt::fuzzing;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (messages, used) = fuzzing::split(bytes);
    assert!(used <= bytes.len());
    for message in messages {
        match message.kind {
            "event" => drop(fuzzing::event(message.procedure, &message.payload)),
            "error" => drop(fuzzing::error(&message.payload)),
            _ => {
                fuzzing::answer(message.procedure, &message.payload);
            }
        }
    }
});
