//! OpenFlow 1.3 to 1.5, as far as it tells how a switch is doing: statistics, and nothing that
//! changes anything.

mod connection;
mod flow;
mod stats;
mod wire;

pub use connection::{Connection, Features, FlowFilter};
pub use flow::{Action, Flow, Instruction, Match, MatchField};
pub use stats::{Aggregate, PortDescription, PortStats, TableStats};
pub use wire::{Version, WireError};

pub(crate) use flow::for_each_flow;
pub(crate) use stats::{aggregate, port_descriptions, port_stats, table_stats};

/// Numbers of ports that are none (`ofp_port_no`).
pub mod ports {
    /// The largest number of a real port.
    pub const MAX: u32 = 0xffff_ff00;
    /// Back to where it came from.
    pub const IN_PORT: u32 = 0xffff_fff8;
    /// Through the flow tables.
    pub const TABLE: u32 = 0xffff_fff9;
    /// As a switch without OpenFlow would.
    pub const NORMAL: u32 = 0xffff_fffa;
    /// To all ports of the VLAN.
    pub const FLOOD: u32 = 0xffff_fffb;
    /// To all ports.
    pub const ALL: u32 = 0xffff_fffc;
    /// To the controller.
    pub const CONTROLLER: u32 = 0xffff_fffd;
    /// The bridge itself.
    pub const LOCAL: u32 = 0xffff_fffe;
    /// Any port, in a request.
    pub const ANY: u32 = 0xffff_ffff;
}

/// Cuts bytes into messages, up to the first that is none or not whole: version, type, body.
pub(crate) fn split(bytes: &[u8]) -> Vec<(u8, u8, bytes::Bytes)> {
    let mut framer = wire::Framer::default();
    framer.space().extend_from_slice(bytes);
    let mut messages = Vec::new();
    while let Ok(Some(message)) = framer.next() {
        messages.push((message.version, message.kind, message.body));
    }
    messages
}
