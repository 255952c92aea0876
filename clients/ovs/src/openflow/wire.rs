//! Bytes of OpenFlow: numbers in network order, records with lengths, messages with headers.

use std::fmt;

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

/// The length of a message's header.
pub const HEADER: usize = 8;
/// No version has a number like this, nor will one soon.
const LARGEST_VERSION: u8 = 16;

/// A version of OpenFlow that this client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 1.3: no idle times of flows.
    V13,
    /// 1.4: the same with other records for ports.
    V14,
    /// 1.5: statistics as lists of fields.
    V15,
}

impl Version {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::V13, Self::V14, Self::V15];

    /// Its number in messages.
    pub fn number(self) -> u8 {
        match self {
            Self::V13 => 4,
            Self::V14 => 5,
            Self::V15 => 6,
        }
    }

    /// The best version that both sides know: `ours` is our bitmap, `greatest` the other's best, and
    /// `theirs` its bitmap. Without one it knows everything up to its best.
    pub(crate) fn negotiate(ours: u32, greatest: u8, theirs: Option<u32>) -> Option<Self> {
        let knows = |version: &Self| match theirs {
            Some(theirs) => theirs & version.bit() != 0,
            None => version.number() <= greatest,
        };
        let both = |version: &Self| ours & version.bit() != 0 && knows(version);
        Self::ALL.into_iter().rev().find(both)
    }

    pub(crate) fn bit(self) -> u32 {
        1 << self.number()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.number() - 1)
    }
}

/// Why bytes are no OpenFlow.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// It ends too early.
    #[error("{0} is cut short")]
    Short(&'static str),
    /// A length makes no sense.
    #[error("{what} says it has {length} bytes, which cannot be")]
    Length {
        /// Of what.
        what: &'static str,
        /// What it says.
        length: usize,
    },
    /// No version of OpenFlow begins so.
    #[error("a message begins with byte {0:#04x}, which is no version; it may not be OpenFlow")]
    Foreign(u8),
    /// The versions of both sides have nothing in common.
    #[error("the switch speaks version {0:#04x} at most, and this client 1.3, 1.4 and 1.5")]
    Version(u8),
    /// Something is there more often inside of itself than anybody needs.
    #[error("actions are nested too deeply")]
    Nested,
    /// Another message than was asked for.
    #[error("a message of type {0} instead of an answer")]
    Unexpected(u8),
}

/// Reads numbers from bytes.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    /// What is being read, for errors.
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { bytes, what }
    }

    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn take(&mut self, length: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self
            .bytes
            .split_at_checked(length)
            .ok_or(WireError::Short(self.what))?;
        self.bytes = rest;
        Ok(taken)
    }

    pub fn skip(&mut self, length: usize) -> Result<(), WireError> {
        self.take(length).map(drop)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (taken, rest) = self
            .bytes
            .split_first_chunk()
            .ok_or(WireError::Short(self.what))?;
        self.bytes = rest;
        Ok(*taken)
    }

    pub fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(u8::from_be_bytes)
    }

    pub fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_be_bytes)
    }

    /// The rest of a record of which `read` bytes have been read, of `length` in all; what follows
    /// up to a multiple of 8 is skipped.
    pub fn record(
        &mut self,
        length: u16,
        read: usize,
        what: &'static str,
    ) -> Result<Reader<'a>, WireError> {
        let length = usize::from(length);
        let rest = length
            .checked_sub(read)
            .ok_or(WireError::Length { what, length })?;
        let record = Reader::new(self.take(rest)?, what);
        // The padding of the last record may be missing.
        let padding = length.next_multiple_of(8) - length;
        self.skip(padding.min(self.bytes.len()))?;
        Ok(record)
    }
}

/// A message: its type, its number, what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub version: u8,
    pub kind: u8,
    pub xid: u32,
    pub body: Bytes,
}

/// Cuts a stream of bytes into messages. None can be longer than 65,535 bytes.
#[derive(Debug, Default)]
pub struct Framer {
    buffer: BytesMut,
}

impl Framer {
    /// Where the next bytes go. There is always room for some.
    pub fn space(&mut self) -> &mut BytesMut {
        self.buffer.reserve(4 * 1024);
        &mut self.buffer
    }

    /// Whether the stream may end here without cutting a message in two.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The next message that is there as a whole.
    pub fn next(&mut self) -> Result<Option<Message>, WireError> {
        let Some(head) = self.buffer.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let mut reader = Reader::new(head, "a header");
        let (version, kind, length) = (reader.u8()?, reader.u8()?, usize::from(reader.u16()?));
        let xid = reader.u32()?;
        if version == 0 || version > LARGEST_VERSION {
            return Err(WireError::Foreign(version));
        }
        if length < HEADER {
            let what = "a message";
            return Err(WireError::Length { what, length });
        }
        if self.buffer.len() < length {
            return Ok(None);
        }
        let mut body = self.buffer.split_to(length).freeze();
        body.advance(HEADER);
        Ok(Some(Message {
            version,
            kind,
            xid,
            body,
        }))
    }
}

/// A whole message.
pub fn frame(version: u8, kind: u8, xid: u32, body: &[u8]) -> Vec<u8> {
    // Requests are small.
    let length = u16::try_from(HEADER + body.len()).unwrap_or(u16::MAX);
    let mut bytes = vec![version, kind];
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&xid.to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_best_common_version_is_chosen() {
        let bits = |versions: &[u8]| versions.iter().map(|version| 1_u32 << version).sum();
        let all = bits(&[4, 5, 6]);
        for (ours, greatest, theirs, expected) in [
            (all, 6, Some(bits(&[1, 2, 3, 4, 5, 6])), Some(Version::V15)),
            (all, 6, Some(bits(&[1, 4, 5])), Some(Version::V14)),
            (all, 4, Some(bits(&[1, 4])), Some(Version::V13)),
            (all, 4, None, Some(Version::V13)),
            (all, 9, None, Some(Version::V15)),
            (bits(&[4]), 6, None, Some(Version::V13)),
            (bits(&[4]), 6, Some(bits(&[5, 6])), None),
            (all, 1, None, None),
            (all, 1, Some(bits(&[1])), None),
            (all, 6, Some(0), None),
        ] {
            let found = Version::negotiate(ours, greatest, theirs);
            assert_eq!(found, expected, "{ours:#b} {greatest} {theirs:?}");
        }
        assert_eq!(Version::V15.to_string(), "1.5");
    }

    #[test]
    fn records_end_where_they_say_and_nowhere_else() {
        let bytes = [0, 6, 1, 2, 3, 4, 0, 0, 9];
        let mut reader = Reader::new(&bytes, "test");
        let length = reader.u16().unwrap();
        let record = reader.record(length, 2, "record").unwrap();
        assert_eq!(record.rest(), [1, 2, 3, 4]);
        assert_eq!(reader.rest(), [9]);
        let mut reader = Reader::new(&bytes, "test");
        assert_eq!(
            reader.record(100, 0, "record").unwrap_err(),
            WireError::Short("test")
        );
        let length = WireError::Length {
            what: "record",
            length: 1,
        };
        assert_eq!(reader.record(1, 2, "record").unwrap_err(), length);
    }

    #[test]
    fn a_message_shorter_than_its_header_is_refused() {
        let mut framer = Framer::default();
        framer.space().extend_from_slice(&[6, 0, 0, 7, 0, 0, 0, 1]);
        assert!(matches!(
            framer.next(),
            Err(WireError::Length { length: 7, .. })
        ));
        let mut framer = Framer::default();
        framer.space().extend_from_slice(b"HTTP/1.1");
        assert_eq!(framer.next(), Err(WireError::Foreign(b'H')));
    }

    proptest! {
        #[test]
        fn messages_are_found_wherever_the_stream_is_cut(
            bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 1..5),
            cut in 1_usize..40,
        ) {
            let mut stream = Vec::new();
            for (xid, body) in (0..).zip(&bodies) {
                stream.extend(frame(6, 19, xid, body));
            }
            let mut framer = Framer::default();
            let mut found = Vec::new();
            for chunk in stream.chunks(cut) {
                framer.space().extend_from_slice(chunk);
                while let Some(message) = framer.next().unwrap() {
                    prop_assert_eq!(message.xid, u32::try_from(found.len()).unwrap());
                    found.push(message.body.to_vec());
                }
            }
            prop_assert!(framer.is_empty());
            prop_assert_eq!(found, bodies);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut framer = Framer::default();
            framer.space().extend_from_slice(&bytes);
            while let Ok(Some(_)) = framer.next() {}
        }
    }
}
