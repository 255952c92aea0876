//! Cuts a stream of JSON objects, which nothing separates, into messages.
//!
//! OVSDB and unixctl send JSON-RPC 1.0 objects one after the other. A message is found by counting
//! brackets outside of strings; each byte is looked at once. Whether it is JSON the parser says.

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

/// A message is given room in steps, as it arrives.
const STEP: usize = 4 * 1024;
/// A buffer that a message has made larger than this goes with it.
const KEPT: usize = 64 * 1024;

/// Why the bytes of a peer are no messages. Where the next one begins is unknown then.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Longer than allowed.
    #[error("a message is longer than the {0} bytes that are allowed")]
    TooLong(usize),
    /// No message begins so.
    #[error("a message begins with byte {0:#04x}, and not with a brace; it may not be JSON-RPC")]
    NoObject(u8),
    /// It is no JSON-RPC.
    #[error("a message is no JSON-RPC: {0}")]
    Malformed(String),
}

/// Where in a message the next byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Outside of strings.
    Plain,
    /// In a string.
    String,
    /// In a string, behind a backslash.
    Escape,
}

/// Cuts a stream of bytes into messages.
#[derive(Debug)]
pub struct Framer {
    buffer: BytesMut,
    max: usize,
    /// How many bytes of the buffer have been looked at.
    seen: usize,
    /// How many brackets are open.
    depth: usize,
    place: Place,
}

impl Framer {
    /// Takes messages up to this size.
    pub fn new(max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            max,
            seen: 0,
            depth: 0,
            place: Place::Plain,
        }
    }

    /// Where the next bytes go. There is always room for some.
    pub fn space(&mut self) -> &mut BytesMut {
        self.buffer.reserve(STEP);
        &mut self.buffer
    }

    /// Whether the stream may end here without cutting a message in two.
    pub fn is_empty(&self) -> bool {
        self.buffer.iter().all(u8::is_ascii_whitespace)
    }

    /// The next message that is there as a whole.
    pub fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        if self.depth == 0 {
            let blank = self.buffer.iter().take_while(|b| b.is_ascii_whitespace());
            let blank = blank.count();
            self.buffer.advance(blank);
            self.seen = 0;
            match self.buffer.first() {
                None | Some(b'{') => {}
                Some(&other) => return Err(FrameError::NoObject(other)),
            }
        }
        let mut end = None;
        for (offset, &byte) in self.buffer.iter().enumerate().skip(self.seen) {
            self.place = match (self.place, byte) {
                (Place::String, b'\\') => Place::Escape,
                (Place::String, b'"') => Place::Plain,
                (Place::String | Place::Escape, _) => Place::String,
                (Place::Plain, b'"') => Place::String,
                (Place::Plain, b'{' | b'[') => {
                    self.depth += 1;
                    Place::Plain
                }
                (Place::Plain, b'}' | b']') => {
                    self.depth -= 1;
                    Place::Plain
                }
                (Place::Plain, _) => Place::Plain,
            };
            if self.depth == 0 {
                end = Some(offset + 1);
                break;
            }
        }
        self.seen = end.unwrap_or(self.buffer.len());
        if self.seen > self.max {
            return Err(FrameError::TooLong(self.max));
        }
        let Some(length) = end else {
            return Ok(None);
        };
        self.seen = 0;
        let message = self.buffer.split_to(length).freeze();
        if length > KEPT {
            self.buffer = BytesMut::from(self.buffer.as_ref());
        }
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_does_not_begin_like_an_object_is_refused_at_once() {
        for text in ["HTTP/1.1 400", "[1]", "\u{6}\0\0", "]"] {
            let mut framer = Framer::new(100);
            framer.space().extend_from_slice(text.as_bytes());
            assert!(
                matches!(framer.next(), Err(FrameError::NoObject(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn a_message_that_does_not_end_is_refused_at_the_bound() {
        let mut framer = Framer::new(10);
        framer.space().extend_from_slice(b"{\"a\":[1,2,");
        assert_eq!(framer.next(), Ok(None));
        assert!(!framer.is_empty());
        framer.space().extend_from_slice(b"3");
        assert_eq!(framer.next(), Err(FrameError::TooLong(10)));
        // One that comes in a single piece is not taken either.
        let mut framer = Framer::new(10);
        framer.space().extend_from_slice(b"{\"a\":[1,2,3]}");
        assert_eq!(framer.next(), Err(FrameError::TooLong(10)));
    }

    #[test]
    fn a_large_buffer_is_let_go_of() {
        let mut framer = Framer::new(10 * KEPT);
        let text = format!("{{\"a\":\"{}\"}}", "x".repeat(2 * KEPT));
        framer.space().extend_from_slice(text.as_bytes());
        assert!(framer.next().unwrap().is_some());
        assert!(framer.space().capacity() < KEPT);
    }

    proptest! {
        #[test]
        fn messages_are_found_wherever_the_stream_is_cut(
            texts in proptest::collection::vec("[a-z{}\\[\\]\"\\\\\u{e9}]{0,20}", 1..5),
            blank in "[ \n]{0,3}",
            cut in 1_usize..40,
        ) {
            let messages: Vec<String> = texts
                .iter()
                .map(|text| serde_json::json!({ "a": [text, { text.clone(): 1 }] }).to_string())
                .collect();
            let stream = messages.join(&blank);
            let mut framer = Framer::new(1000);
            let mut found = Vec::new();
            for chunk in stream.as_bytes().chunks(cut) {
                framer.space().extend_from_slice(chunk);
                while let Some(message) = framer.next().unwrap() {
                    found.push(String::from_utf8(message.to_vec()).unwrap());
                }
            }
            prop_assert!(framer.is_empty());
            prop_assert_eq!(found, messages);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut framer = Framer::new(100);
            framer.space().extend_from_slice(b"{");
            framer.space().extend_from_slice(&bytes);
            while let Ok(Some(_)) = framer.next() {}
        }
    }
}
