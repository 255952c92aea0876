//! Messages of libvirt's RPC: a length, a header, a payload.

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

use crate::xdr::{Reader, Writer, XdrError, XdrResult};

/// The program of everything about domains and hosts.
pub const REMOTE: u32 = 0x2000_8086;
/// The program of libvirt's administration.
pub const ADMIN: u32 = 0x0690_0690;
/// The program that keeps a connection alive.
pub const KEEPALIVE: u32 = 0x6b65_6570;
/// "Are you there?"
pub const KEEPALIVE_PING: i32 = 1;
/// "Yes."
pub const KEEPALIVE_PONG: i32 = 2;
/// All programs have this version.
const VERSION: u32 = 1;

/// The length, which counts itself.
const LENGTH: usize = 4;
/// Length and header.
pub const HEAD: usize = LENGTH + 24;
/// What libvirt itself takes, its length included.
pub const DEFAULT_MAX_MESSAGE: usize = 33_554_432 + LENGTH;
/// A message is given room in steps, as it arrives: its announcement alone allocates nothing.
const STEP: usize = 8 * 1024;
/// A buffer that a message has made larger than this goes with it.
const KEPT: usize = 256 * 1024;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A client asks.
    Call,
    /// The server answers.
    Reply,
    /// Something happened.
    Event,
    /// Data of a stream, or something with file descriptors: we never ask for it.
    Other,
}

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Which program.
    pub program: u32,
    /// Which procedure of it.
    pub procedure: i32,
    /// What the message is.
    pub kind: Kind,
    /// An answer has the number of its question.
    pub serial: u32,
    /// Whether the payload is an error.
    pub failed: bool,
}

impl Header {
    /// Reads the header; what is left in the reader is the payload.
    pub fn read(reader: &mut Reader<'_>) -> XdrResult<Self> {
        let program = reader.u32()?;
        let _version = reader.u32()?;
        let procedure = reader.i32()?;
        let kind = match reader.i32()? {
            0 => Kind::Call,
            1 => Kind::Reply,
            2 => Kind::Event,
            _ => Kind::Other,
        };
        let serial = reader.u32()?;
        let failed = match reader.i32()? {
            // The third is "more of the stream follows".
            0 | 2 => false,
            1 => true,
            value => {
                return Err(XdrError::Unknown {
                    what: "the status of a message",
                    value,
                });
            }
        };
        Ok(Self {
            program,
            procedure,
            kind,
            serial,
            failed,
        })
    }

    /// A whole message.
    pub fn frame(&self, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEAD.saturating_add(payload.len())).unwrap_or(u32::MAX);
        let kind = match self.kind {
            Kind::Call => 0,
            Kind::Reply => 1,
            Kind::Event => 2,
            Kind::Other => 3,
        };
        let mut bytes = Writer::new()
            .u32(length)
            .u32(self.program)
            .u32(VERSION)
            .i32(self.procedure)
            .i32(kind)
            .u32(self.serial)
            .i32(i32::from(self.failed))
            .into_bytes();
        bytes.extend_from_slice(payload);
        bytes
    }
}

/// Why the bytes of a peer are no messages. Where the next one begins is unknown then.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Longer than allowed.
    #[error("it announced a message of {length} bytes, and {max} are allowed")]
    TooLong {
        /// What it says.
        length: u32,
        /// The bound.
        max: usize,
    },
    /// Shorter than a header.
    #[error("it announced a message of {0} bytes, too short for a header; it may not be libvirt")]
    TooShort(u32),
    /// The header makes no sense.
    #[error("a message has a bad header: {0}")]
    Header(XdrError),
}

/// Cuts a stream of bytes into messages.
#[derive(Debug)]
pub struct Framer {
    buffer: BytesMut,
    max: usize,
}

impl Framer {
    /// Takes messages up to this size.
    pub fn new(max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            max,
        }
    }

    /// Where the next bytes go. There is always room for some.
    pub fn space(&mut self) -> &mut BytesMut {
        self.buffer.reserve(STEP);
        &mut self.buffer
    }

    /// Whether the stream may end here without cutting a message in two.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The next message that is there as a whole.
    pub fn next(&mut self) -> Result<Option<(Header, Bytes)>, FrameError> {
        let Some(announced) = self.buffer.first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let announced = u32::from_be_bytes(*announced);
        let length = usize::try_from(announced).unwrap_or(usize::MAX);
        if length > self.max {
            return Err(FrameError::TooLong {
                length: announced,
                max: self.max,
            });
        }
        if length < HEAD {
            return Err(FrameError::TooShort(announced));
        }
        if self.buffer.len() < length {
            return Ok(None);
        }
        let mut message = self.buffer.split_to(length).freeze();
        if length > KEPT {
            self.buffer = BytesMut::from(self.buffer.as_ref());
        }
        let mut reader = Reader::new(&message);
        let header = reader
            .u32()
            .and_then(|_length| Header::read(&mut reader))
            .map_err(FrameError::Header)?;
        message.advance(HEAD);
        Ok(Some((header, message)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call(serial: u32) -> Header {
        Header {
            program: REMOTE,
            procedure: 59,
            kind: Kind::Call,
            serial,
            failed: false,
        }
    }

    #[test]
    fn a_message_has_the_form_that_libvirt_expects() {
        let expected: &[&[u8]] = &[
            &[0, 0, 0, 32],
            &[0x20, 0, 0x80, 0x86],
            &[0, 0, 0, 1],
            &[0, 0, 0, 59],
            &[0, 0, 0, 0],
            &[0, 0, 0, 7],
            &[0, 0, 0, 0],
            b"body",
        ];
        assert_eq!(call(7).frame(b"body"), expected.concat());
    }

    #[test]
    fn an_announcement_is_judged_before_the_message_is_there() {
        let mut framer = Framer::new(1000);
        framer.space().extend_from_slice(&1001_u32.to_be_bytes());
        let too_long = FrameError::TooLong {
            length: 1001,
            max: 1000,
        };
        assert_eq!(framer.next(), Err(too_long));
        let mut framer = Framer::new(1000);
        framer.space().extend_from_slice(&27_u32.to_be_bytes());
        assert_eq!(framer.next(), Err(FrameError::TooShort(27)));
        let mut framer = Framer::new(DEFAULT_MAX_MESSAGE);
        framer
            .space()
            .extend_from_slice(&33_554_436_u32.to_be_bytes());
        assert_eq!(framer.next(), Ok(None));
        assert!(framer.space().capacity() < 64 * 1024);
    }

    #[test]
    fn a_large_buffer_is_let_go_of() {
        let mut framer = Framer::new(DEFAULT_MAX_MESSAGE);
        framer
            .space()
            .extend_from_slice(&call(1).frame(&vec![0; 2 * KEPT]));
        assert!(framer.next().unwrap().is_some());
        assert!(framer.space().capacity() < KEPT);
    }

    proptest! {
        #[test]
        fn messages_are_found_wherever_the_stream_is_cut(
            bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 1..5),
            cut in 1_usize..40,
        ) {
            let mut stream = Vec::new();
            for (serial, body) in (0..).zip(&bodies) {
                stream.extend(call(serial).frame(body));
            }
            let mut framer = Framer::new(1000);
            let mut found = Vec::new();
            for chunk in stream.chunks(cut) {
                framer.space().extend_from_slice(chunk);
                while let Some((header, body)) = framer.next().unwrap() {
                    prop_assert_eq!(header, call(u32::try_from(found.len()).unwrap()));
                    found.push(body.to_vec());
                }
            }
            prop_assert!(framer.is_empty());
            prop_assert_eq!(found, bodies);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut framer = Framer::new(200);
            framer.space().extend_from_slice(&bytes);
            while let Ok(Some(_)) = framer.next() {}
        }
    }
}
