//! Cuts a stream of pcap into whole packets, so that what is written never ends in the middle of one.

use bytes::{Bytes, BytesMut};

/// The length of the header of a file.
pub const HEADER: usize = 24;
/// The length of the header of a packet.
const RECORD: usize = 16;
/// More than any packet has.
const LONGEST: u32 = 262_144;

/// Why it is no pcap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPcap {
    #[error("it does not begin like a pcap file")]
    Magic,
    #[error("a packet of {0} bytes is longer than any can be")]
    TooLong(u32),
}

/// The order of bytes in a file.
#[derive(Clone, Copy, Debug)]
enum Order {
    Little,
    Big,
}

impl Order {
    /// By the first bytes of a file: packets with microseconds or with nanoseconds.
    fn of(magic: &[u8]) -> Option<Self> {
        match magic {
            [0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1] => Some(Self::Little),
            [0xa1, 0xb2, 0xc3, 0xd4] | [0xa1, 0xb2, 0x3c, 0x4d] => Some(Self::Big),
            _ => None,
        }
    }

    fn number(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }
}

/// A stream that has come so far.
#[derive(Debug, Default)]
pub struct Stream {
    /// What is not whole yet.
    rest: BytesMut,
    order: Option<Order>,
    packets: u64,
}

impl Stream {
    /// Takes in what has come. Returns what is whole of it, and whether more can follow.
    pub fn push(&mut self, bytes: &[u8]) -> (Bytes, Result<(), NotPcap>) {
        self.rest.extend_from_slice(bytes);
        let mut whole = 0;
        let end = loop {
            match self.next(whole) {
                Ok(Some(length)) => whole += length,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        (self.rest.split_to(whole).freeze(), end)
    }

    /// The length of the whole piece that begins there, if it is whole.
    fn next(&mut self, at: usize) -> Result<Option<usize>, NotPcap> {
        let rest = self.rest.get(at..).unwrap_or_default();
        let Some(order) = self.order else {
            if let Some(magic) = rest.get(..4) {
                let order = Order::of(magic).ok_or(NotPcap::Magic)?;
                if rest.len() >= HEADER {
                    self.order = Some(order);
                    return Ok(Some(HEADER));
                }
            }
            return Ok(None);
        };
        let length = rest.get(8..12).and_then(|bytes| bytes.try_into().ok());
        let Some(length) = length.map(|bytes| order.number(bytes)) else {
            return Ok(None);
        };
        if length > LONGEST {
            return Err(NotPcap::TooLong(length));
        }
        let total = RECORD + usize::try_from(length).unwrap_or(usize::MAX - RECORD);
        if rest.len() < total {
            return Ok(None);
        }
        self.packets += 1;
        Ok(Some(total))
    }

    /// How many packets have come whole.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Whether something has come that is not whole.
    pub fn is_cut(&self) -> bool {
        !self.rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(order: Order, packets: &[usize]) -> Vec<u8> {
        let number = |number: u32| match order {
            Order::Little => number.to_le_bytes(),
            Order::Big => number.to_be_bytes(),
        };
        let mut out = number(0xa1b2_3c4d).to_vec();
        out.extend([0; HEADER - 4]);
        for length in packets {
            let length32 = u32::try_from(*length).unwrap();
            for word in [1, 2, length32, length32] {
                out.extend(number(word));
            }
            out.extend(std::iter::repeat_n(0x55, *length));
        }
        out
    }

    #[test]
    fn only_whole_packets_come_out() {
        let all = file(Order::Little, &[60]);
        let cases = [
            (0, 0, 0),
            (3, 0, 0),
            (23, 0, 0),
            (24, 24, 0),
            (24 + 15, 24, 0),
            (24 + 16 + 59, 24, 0),
            (24 + 16 + 60, 24 + 16 + 60, 1),
        ];
        for (come, whole, packets) in cases {
            let mut stream = Stream::default();
            let (out, end) = stream.push(&all[..come]);
            assert_eq!((out.len(), end), (whole, Ok(())), "{come}");
            assert_eq!(stream.packets(), packets);
            assert_eq!(stream.is_cut(), come != whole);
        }
    }

    #[test]
    fn what_is_no_pcap_is_refused_and_what_was_whole_is_kept() {
        let mut stream = Stream::default();
        let (out, end) = stream.push(b"<html>");
        assert_eq!((out.len(), end), (0, Err(NotPcap::Magic)));

        let mut bad = file(Order::Big, &[4]);
        bad.extend([0, 0, 0, 1, 0, 0, 0, 2, 0, 4, 0, 1, 0, 0, 0, 4]);
        let mut stream = Stream::default();
        let (out, end) = stream.push(&bad);
        assert_eq!(out.len(), HEADER + RECORD + 4);
        assert_eq!(end, Err(NotPcap::TooLong(LONGEST + 1)));
        assert_eq!(stream.packets(), 1);
    }

    proptest! {
        #[test]
        fn however_it_is_cut_the_same_comes_out(
            little in any::<bool>(),
            packets in prop::collection::vec(0_usize..200, 0..20),
            sizes in prop::collection::vec(1_usize..100, 1..50),
        ) {
            let order = if little { Order::Little } else { Order::Big };
            let all = file(order, &packets);
            let mut stream = Stream::default();
            let (mut out, mut left) = (Vec::new(), &all[..]);
            for size in sizes.iter().cycle() {
                let (now, later) = left.split_at((*size).min(left.len()));
                let (whole, end) = stream.push(now);
                prop_assert_eq!(end, Ok(()));
                out.extend_from_slice(&whole);
                left = later;
                if left.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(out, all);
            prop_assert_eq!(stream.packets(), packets.len() as u64);
            prop_assert!(!stream.is_cut());
        }

        #[test]
        fn nothing_that_comes_makes_it_fail(
            begin in any::<bool>(),
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..20),
        ) {
            let mut stream = Stream::default();
            if begin {
                stream.push(&file(Order::Little, &[])).1.unwrap();
            }
            for chunk in chunks {
                if stream.push(&chunk).1.is_err() {
                    break;
                }
            }
        }
    }
}
