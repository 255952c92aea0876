//! The decoders, for fuzzers and for tests over real messages. No part of the crate's promise.

use bytes::Bytes;

use crate::error::LibvirtError;
use crate::message::{DEFAULT_MAX_MESSAGE, Framer, Kind};
use crate::typed::TypedParams;
use crate::xdr::{Reader, SMALLEST_DOMAIN, XdrResult};
use crate::{Event, event, host, secret, stats};

/// Every message number that brings an event.
pub const EVENTS: &[i32] = event::MESSAGES;

/// A message.
#[derive(Debug)]
pub struct Message {
    /// Its program.
    pub program: u32,
    /// `event`, `error`, `reply` or `other`.
    pub kind: &'static str,
    /// Its procedure.
    pub procedure: i32,
    /// What follows the header.
    pub payload: Bytes,
    /// All of it.
    pub bytes: Vec<u8>,
}

/// Cuts bytes into messages, up to the first that is none or not whole; and how many bytes they
/// have.
pub fn split(bytes: &[u8]) -> (Vec<Message>, usize) {
    let mut framer = Framer::new(DEFAULT_MAX_MESSAGE);
    framer.space().extend_from_slice(bytes);
    let mut messages = Vec::new();
    let mut used = 0;
    while let Ok(Some((header, payload))) = framer.next() {
        let kind = match header.kind {
            Kind::Event => "event",
            Kind::Reply if header.failed => "error",
            Kind::Reply => "reply",
            Kind::Call | Kind::Other => "other",
        };
        let bytes = header.frame(&payload);
        used += bytes.len();
        messages.push(Message {
            program: header.program,
            kind,
            procedure: header.procedure,
            payload,
            bytes,
        });
    }
    (messages, used)
}

/// Reads typed parameters.
pub fn typed_params(bytes: &[u8]) -> Option<TypedParams> {
    TypedParams::read(&mut Reader::new(bytes)).ok()
}

/// Reads an error.
pub fn error(bytes: &[u8]) -> Option<LibvirtError> {
    LibvirtError::read(&mut Reader::new(bytes)).ok()
}

/// Reads an event.
pub fn event(procedure: i32, bytes: &[u8]) -> Option<Event> {
    let (_, event) = event::decode(procedure, bytes).ok()??;
    Some(event)
}

/// Reads the answer of a procedure, if it is one with a decoder worth trying.
pub fn answer(procedure: i32, bytes: &[u8]) -> bool {
    let r = &mut Reader::new(bytes);
    let read: XdrResult<()> = match procedure {
        6 => host::node_info(r).map(drop),
        24 => r.domain().map(drop),
        212 => r.i32().and_then(|_| r.i32()).map(drop),
        227 | 228 => host::node_stats(r).map(drop),
        273 => r.list(SMALLEST_DOMAIN, Reader::domain).map(drop),
        287 => r.list(secret::SMALLEST, secret::read).map(drop),
        298 => stats::job_stats(r).map(drop),
        344 => stats::all_stats(r).map(drop),
        _ => return false,
    };
    read.is_ok()
}
