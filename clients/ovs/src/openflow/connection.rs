//! A connection to a bridge: one question after the other, each with a deadline.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use cobalt_wire::{Input, Outgoing, read, within};

use super::flow::Flow;
use super::stats::{Aggregate, PortDescription, PortStats, TableStats};
use super::wire::{Framer, Message, Reader, Version, WireError, frame};
use super::{aggregate, for_each_flow, port_descriptions, port_stats, ports, table_stats};
use crate::error::{Closed, Error, OpenflowError};
use crate::options::Options;
use crate::remote::Remote;
use crate::transport;

const HELLO: u8 = 0;
const ERROR: u8 = 1;
const ECHO_REQUEST: u8 = 2;
const ECHO_REPLY: u8 = 3;
const FEATURES_REQUEST: u8 = 5;
const FEATURES_REPLY: u8 = 6;
const MULTIPART_REQUEST: u8 = 18;
const MULTIPART_REPLY: u8 = 19;
const BARRIER_REQUEST: u8 = 20;
const BARRIER_REPLY: u8 = 21;

const FLOWS: u16 = 1;
const AGGREGATE: u16 = 2;
const TABLES: u16 = 3;
const PORT_STATS: u16 = 4;
const PORT_DESCRIPTIONS: u16 = 13;

/// In a multipart reply: there is more to come.
const MORE: u16 = 1;
/// Any group, in a request.
const ANY_GROUP: u32 = 0xffff_ffff;
/// All tables, in a request.
const ALL_TABLES: u8 = 255;

/// Which flows are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowFilter {
    /// Those of one table.
    pub table: Option<u8>,
    /// Those that send packets to this port.
    pub out_port: Option<u32>,
    /// Those with this cookie, as far as the bits of the mask go.
    pub cookie: u64,
    /// See there; 0 for any cookie.
    pub cookie_mask: u64,
}

impl FlowFilter {
    /// All flows.
    pub const ALL: Self = Self {
        table: None,
        out_port: None,
        cookie: 0,
        cookie_mask: 0,
    };

    fn body(self) -> Vec<u8> {
        let mut body = vec![self.table.unwrap_or(ALL_TABLES), 0, 0, 0];
        body.extend_from_slice(&self.out_port.unwrap_or(ports::ANY).to_be_bytes());
        body.extend_from_slice(&ANY_GROUP.to_be_bytes());
        body.extend_from_slice(&[0; 4]);
        body.extend_from_slice(&self.cookie.to_be_bytes());
        body.extend_from_slice(&self.cookie_mask.to_be_bytes());
        // A match without fields: its type, its length, its padding.
        body.extend_from_slice(&[0, 1, 0, 4, 0, 0, 0, 0]);
        body
    }
}

/// What a bridge says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Its identity.
    pub datapath_id: u64,
    /// How many tables it has.
    pub tables: u8,
}

/// A connection to a bridge.
///
/// Questions are asked one after the other. A call that is dropped or out of time leaves the
/// connection usable: what still comes of it is passed over.
///
/// ```no_run
/// use cobalt_ovs::Options;
/// use cobalt_ovs::openflow::{Connection, FlowFilter};
///
/// # async fn example() -> Result<(), cobalt_ovs::Error> {
/// let directory = "/run/openvswitch".as_ref();
/// let mut bridge = Connection::of(directory, "br-int", &Options::default()).await?;
/// let mut idle = 0;
/// bridge.flows(FlowFilter::ALL, |flow| idle += usize::from(flow.packets == Some(0))).await?;
/// println!("{idle} flows have never met a packet");
/// # Ok(())
/// # }
/// ```
pub struct Connection {
    input: Input,
    /// A call that was dropped may have left a part in it.
    outgoing: Outgoing,
    framer: Framer,
    version: Version,
    xid: u32,
    call_timeout: Duration,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects to a bridge, with the best version that it takes.
    pub async fn open(remote: &Remote, options: &Options) -> Result<Self, Error> {
        Self::open_with(remote, &Version::ALL, options).await
    }

    /// Connects to a bridge by its management socket in a directory.
    pub async fn of(directory: &Path, bridge: &str, options: &Options) -> Result<Self, Error> {
        let remote = Remote::Unix(directory.join(format!("{bridge}.mgmt")));
        Self::open(&remote, options).await
    }

    /// Connects with one of these versions.
    pub async fn open_with(
        remote: &Remote,
        versions: &[Version],
        options: &Options,
    ) -> Result<Self, Error> {
        let greatest = versions.iter().max().copied().unwrap_or(Version::V15);
        let (input, output) = transport::connect(remote, options).await?;
        let mut connection = Self {
            input,
            outgoing: Outgoing::new(output),
            framer: Framer::default(),
            version: greatest,
            xid: 0,
            call_timeout: options.call_timeout,
        };
        let bitmap: u32 = versions.iter().map(|version| version.bit()).sum();
        within(remote, options.connect_timeout, connection.greet(bitmap)).await?;
        Ok(connection)
    }

    async fn greet(&mut self, bitmap: u32) -> Result<(), Error> {
        let mut body = vec![0, 1, 0, 8];
        body.extend_from_slice(&bitmap.to_be_bytes());
        self.send(HELLO, &body).await?;
        let hello = self.receive().await?;
        if hello.kind != HELLO {
            return Err(broken(WireError::Unexpected(hello.kind)));
        }
        let known = read_bitmap(&hello.body).map_err(broken)?;
        self.version = Version::negotiate(bitmap, hello.version, known)
            .ok_or_else(|| broken(WireError::Version(hello.version)))?;
        Ok(())
    }

    /// The version that both sides speak.
    pub fn version(&self) -> Version {
        self.version
    }

    /// What the bridge says of itself.
    pub async fn features(&mut self) -> Result<Features, Error> {
        let call = "ask for features";
        let body = self
            .ask(call, FEATURES_REQUEST, &[], FEATURES_REPLY)
            .await?;
        let mut reader = Reader::new(&body, "features");
        let mut read = || {
            let datapath_id = reader.u64()?;
            reader.skip(4)?;
            let tables = reader.u8()?;
            Ok(Features {
                datapath_id,
                tables,
            })
        };
        read().map_err(|error: WireError| Error::protocol(call, error))
    }

    /// Whether the switch answers.
    pub async fn ping(&mut self) -> Result<(), Error> {
        let body = b"cobalt";
        self.ask("echo", ECHO_REQUEST, body, ECHO_REPLY)
            .await
            .map(drop)
    }

    /// Waits until the switch has done everything that it was told before, on this connection.
    pub async fn barrier(&mut self) -> Result<(), Error> {
        let answer = self.ask("barrier", BARRIER_REQUEST, &[], BARRIER_REPLY);
        answer.await.map(drop)
    }

    /// Shows every flow. They come in parts of at most 64 KiB, and each part is gone before the
    /// next one is read: any number of flows needs the same memory.
    pub async fn flows(
        &mut self,
        filter: FlowFilter,
        mut visit: impl FnMut(&Flow<'_>),
    ) -> Result<(), Error> {
        let version = self.version;
        let read = |part: &[u8]| for_each_flow(version, part, &mut visit);
        self.multipart("read flows", FLOWS, &filter.body(), read)
            .await
    }

    /// How many flows there are, and how much went through them.
    pub async fn aggregate(&mut self, filter: FlowFilter) -> Result<Aggregate, Error> {
        let version = self.version;
        let mut sum = Aggregate::default();
        let read = |part: &[u8]| {
            sum = aggregate(version, part)?;
            Ok(())
        };
        self.multipart("count flows", AGGREGATE, &filter.body(), read)
            .await?;
        Ok(sum)
    }

    /// All tables, also those without flows.
    pub async fn tables(&mut self) -> Result<Vec<TableStats>, Error> {
        let mut tables = Vec::new();
        let read = |part: &[u8]| table_stats(part, |table| tables.push(table));
        self.multipart("read tables", TABLES, &[], read).await?;
        Ok(tables)
    }

    /// The counters of all ports.
    pub async fn port_stats(&mut self) -> Result<Vec<PortStats>, Error> {
        let version = self.version;
        let mut found = Vec::new();
        let read = |part: &[u8]| port_stats(version, part, |port| found.push(port));
        self.multipart("read counters of ports", PORT_STATS, &any_port(), read)
            .await?;
        Ok(found)
    }

    /// What the ports are.
    pub async fn ports(&mut self) -> Result<Vec<PortDescription>, Error> {
        let version = self.version;
        let mut found = Vec::new();
        let read = |part: &[u8]| port_descriptions(version, part, |port| found.push(port));
        // Up to version 1.4 nothing can be said about which ones.
        let body = match version {
            Version::V15 => any_port(),
            Version::V13 | Version::V14 => Vec::new(),
        };
        self.multipart("read ports", PORT_DESCRIPTIONS, &body, read)
            .await?;
        Ok(found)
    }

    async fn ask(
        &mut self,
        call: &'static str,
        kind: u8,
        body: &[u8],
        answer: u8,
    ) -> Result<Bytes, Error> {
        let after = self.call_timeout;
        let asking = async {
            self.send(kind, body).await?;
            self.answer(call, answer).await
        };
        match tokio::time::timeout(after, asking).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::Timeout {
                call: call.to_owned(),
                after,
            }),
        }
    }

    /// Asks, and reads the parts of the answer one by one, all of them within one deadline.
    async fn multipart(
        &mut self,
        call: &'static str,
        kind: u16,
        body: &[u8],
        mut read: impl FnMut(&[u8]) -> Result<(), WireError>,
    ) -> Result<(), Error> {
        let after = self.call_timeout;
        let unreadable = |error: WireError| Error::protocol(call, error);
        let asking = async {
            let request = [&kind.to_be_bytes()[..], &[0; 6], body].concat();
            self.send(MULTIPART_REQUEST, &request).await?;
            loop {
                let part = self.answer(call, MULTIPART_REPLY).await?;
                let mut reader = Reader::new(&part, "a part of an answer");
                let mut head = || {
                    let (kind, flags) = (reader.u16()?, reader.u16()?);
                    reader.skip(4)?;
                    Ok((kind, flags))
                };
                let (answered, flags) = head().map_err(unreadable)?;
                if answered != kind {
                    let problem = format!("it is about something else ({answered})");
                    return Err(Error::protocol(call, problem));
                }
                read(reader.rest()).map_err(unreadable)?;
                if flags & MORE == 0 {
                    return Ok(());
                }
            }
        };
        match tokio::time::timeout(after, asking).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::Timeout {
                call: call.to_owned(),
                after,
            }),
        }
    }

    /// Sends a message with a new number.
    async fn send(&mut self, kind: u8, body: &[u8]) -> Result<(), Error> {
        self.xid = self.xid.wrapping_add(1);
        let bytes = frame(self.version.number(), kind, self.xid, body);
        self.write(&bytes).await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.outgoing.push(bytes);
        while self.outgoing.is_unwritten() {
            let written = self.outgoing.write().await;
            written.map_err(|error| self.lost(&error))?;
        }
        Ok(())
    }

    /// The answer to what was asked last.
    async fn answer(&mut self, call: &'static str, kind: u8) -> Result<Bytes, Error> {
        loop {
            let message = self.receive().await?;
            match message.kind {
                ECHO_REQUEST => {
                    let version = self.version.number();
                    let reply = frame(version, ECHO_REPLY, message.xid, &message.body);
                    self.write(&reply).await?;
                }
                // Of an earlier question, or told without one.
                _ if message.xid != self.xid => {}
                ERROR => {
                    let mut reader = Reader::new(&message.body, "an error");
                    let mut read = || {
                        let (kind, code) = (reader.u16()?, reader.u16()?);
                        Ok(OpenflowError { kind, code })
                    };
                    let error = read().map_err(|error: WireError| Error::protocol(call, error))?;
                    return Err(Error::Openflow { call, error });
                }
                answered if answered == kind => return Ok(message.body),
                other => return Err(Error::protocol(call, WireError::Unexpected(other))),
            }
        }
    }

    /// The next message. May be dropped half-way without losing a byte.
    async fn receive(&mut self) -> Result<Message, Error> {
        loop {
            if let Some(message) = self.framer.next().map_err(broken)? {
                return Ok(message);
            }
            let read = read(&mut self.input, self.framer.space()).await;
            read.map_err(|error| self.lost(&error))?;
        }
    }

    fn lost(&self, error: &io::Error) -> Error {
        Error::Closed(Closed::lost(error, self.framer.is_empty()))
    }
}

fn broken(error: WireError) -> Error {
    Error::Closed(Closed::Protocol(error.into()))
}

fn any_port() -> Vec<u8> {
    [&ports::ANY.to_be_bytes()[..], &[0; 4]].concat()
}

/// The versions that a hello lists, if it does.
pub(crate) fn read_bitmap(body: &[u8]) -> Result<Option<u32>, WireError> {
    let mut reader = Reader::new(body, "a hello");
    while !reader.is_empty() {
        let kind = reader.u16()?;
        let length = reader.u16()?;
        let mut element = reader.record(length, 4, "an element of a hello")?;
        if kind == 1 {
            return element.u32().map(Some);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_a_hello() {
        assert_eq!(read_bitmap(&[]), Ok(None));
        assert_eq!(read_bitmap(&[0, 1, 0, 8, 0, 0, 0, 0x7e]), Ok(Some(0x7e)));
        let behind = [0, 9, 0, 8, 1, 2, 3, 4, 0, 1, 0, 8, 0, 0, 0, 0x10];
        assert_eq!(read_bitmap(&behind), Ok(Some(0x10)));
        assert!(read_bitmap(&[0, 1, 0, 0]).is_err());
        assert!(read_bitmap(&[0, 1, 0, 4]).is_err());
    }

    #[test]
    fn a_filter_has_the_form_that_the_standard_says() {
        let body = FlowFilter::ALL.body();
        assert_eq!(body.len(), 40);
        assert_eq!(
            &body[..12],
            [255, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255]
        );
        let one = FlowFilter {
            table: Some(7),
            cookie: 1,
            cookie_mask: u64::MAX,
            ..FlowFilter::ALL
        };
        assert_eq!((one.body()[0], one.body()[23]), (7, 1));
    }
}
