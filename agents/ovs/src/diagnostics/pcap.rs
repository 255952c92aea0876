//! The file format that tcpdump and Wireshark read: classic pcap, little endian, nanoseconds.

use std::time::Duration;

/// What the format is called in HTTP.
pub const CONTENT_TYPE: &str = "application/vnd.tcpdump.pcap";
/// Of the file.
pub const HEADER: usize = 24;
/// Of each packet.
pub const RECORD_HEADER: usize = 16;

const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINKTYPE_ETHERNET: u32 = 1;

/// The beginning of a file.
#[must_use]
pub fn header(snaplen: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER);
    bytes.extend(MAGIC_NANOSECONDS.to_le_bytes());
    bytes.extend(2_u16.to_le_bytes());
    bytes.extend(4_u16.to_le_bytes());
    // Universal time, and nothing known of its accuracy.
    bytes.extend([0; 8]);
    bytes.extend(snaplen.to_le_bytes());
    bytes.extend(LINKTYPE_ETHERNET.to_le_bytes());
    bytes
}

/// The beginning of a packet: when it was seen, how much of it follows, how long it was.
#[must_use]
pub fn record_header(time: Duration, kept: u32, length: u32) -> [u8; RECORD_HEADER] {
    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let mut bytes = [0; RECORD_HEADER];
    let fields = [seconds, time.subsec_nanos(), kept, length];
    for (place, field) in bytes.chunks_exact_mut(4).zip(fields) {
        place.copy_from_slice(&field.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_what_others_read() {
        let header = header(262_144);
        assert_eq!(header.len(), HEADER);
        assert_eq!(header[..8], [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0]);
        assert_eq!(header[16..], [0, 0, 4, 0, 1, 0, 0, 0]);
        let record = record_header(Duration::new(1, 2), 3, 4);
        assert_eq!(record, [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
    }
}
