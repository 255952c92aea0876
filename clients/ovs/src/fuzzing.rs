//! The decoders, for fuzzers and for tests over real messages. No part of the crate's promise.

use bytes::Bytes;

use crate::framing::Framer;
use crate::openflow::{self, Flow, Version, WireError};
use crate::ovsdb::southbound::{Chassis, PortBinding};
use crate::ovsdb::vswitch::{Bridge, Interface, OpenVswitch, Port};
use crate::ovsdb::{Change, Tables, Value};
use crate::rpc::Message;

/// The kind of a JSON-RPC message, and the part of it that matters.
pub type Rpc = (&'static str, Bytes);

/// Cuts bytes into JSON-RPC messages, up to the first that is none or not whole.
pub fn split(bytes: &[u8]) -> Vec<Bytes> {
    let mut framer = Framer::new(bytes.len());
    framer.space().extend_from_slice(bytes);
    let mut messages = Vec::new();
    while let Ok(Some(message)) = framer.next() {
        messages.push(message);
    }
    messages
}

/// Reads a JSON-RPC message.
pub fn rpc(bytes: &Bytes) -> Option<Rpc> {
    Some(match Message::read(bytes).ok()? {
        Message::Echo { params, .. } => ("echo", params),
        Message::Notification(notification) => ("notification", notification.params),
        Message::Answer {
            answer: Ok(result), ..
        } => ("result", result),
        Message::Answer {
            answer: Err(error), ..
        } => ("error", error),
        Message::Other => ("other", Bytes::new()),
    })
}

/// Tables of both databases.
pub fn tables() -> Tables {
    Tables::new()
        .table::<OpenVswitch>()
        .table::<Bridge>()
        .table::<Port>()
        .table::<Interface>()
        .table::<Chassis>()
        .table::<PortBinding>()
}

/// Applies updates: all rows, or changes. Says what changed, if they could be read.
pub fn apply(tables: &mut Tables, updates: &[u8], whole: bool) -> Option<Vec<Change>> {
    let mut changes = Vec::new();
    let applied = if whole {
        tables.replace(updates, &mut changes)
    } else {
        tables.apply(updates, &mut changes)
    };
    applied.ok().map(|()| changes)
}

/// Reads a value of OVSDB.
pub fn value(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}

/// Reads a part of an OpenFlow answer in every way, and says which could.
pub fn openflow(version: Version, kind: u16, body: &[u8]) -> Result<usize, WireError> {
    let mut found = 0;
    match kind {
        1 => openflow::for_each_flow(version, body, |flow| {
            found += 1;
            look_at(flow);
        })?,
        2 => {
            openflow::aggregate(version, body)?;
            found = 1;
        }
        3 => openflow::table_stats(body, |_| found += 1)?,
        4 => openflow::port_stats(version, body, |_| found += 1)?,
        13 => openflow::port_descriptions(version, body, |_| found += 1)?,
        _ => {}
    }
    Ok(found)
}

/// Reads all of a flow, good or not.
fn look_at(flow: &Flow<'_>) {
    drop(flow.output_ports());
    flow.matches().in_port();
    flow.matches().fields().for_each(drop);
    flow.instructions().for_each(drop);
}

/// Shows every flow of a part of an OpenFlow answer.
pub fn flows(version: Version, body: &[u8], visit: impl FnMut(&Flow<'_>)) -> Result<(), WireError> {
    openflow::for_each_flow(version, body, visit)
}

/// Cuts bytes into OpenFlow messages: version, type and body of each.
pub fn split_openflow(bytes: &[u8]) -> Vec<(u8, u8, Bytes)> {
    openflow::split(bytes)
}
