//! Any text as a filter, and any bytes as a packet.
#![no_main]

use cobalt_ovs_agent::diagnostics::filter::Filter;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&str, &[u8])| {
    let (text, frame) = input;
    if let Ok(Some(filter)) = Filter::parse(text) {
        let _ = filter.keeps(frame);
    }
});
