//! Statistics of tables, ports and sets of flows.

use std::fmt;
use std::time::Duration;

use super::flow::{known, read_duration};
use super::wire::{Reader, Version, WireError};

/// The class of the fields of statistics.
const OXS_BASIC: u16 = 0x8002;
const PROPERTY_ETHERNET: u16 = 0;

/// Statistics as version 1.5 has them: a list of fields, each of which may be missing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub duration: Option<Duration>,
    pub idle: Option<Duration>,
    pub flows: Option<u32>,
    pub packets: Option<u64>,
    pub bytes: Option<u64>,
}

/// Reads `ofp_stats`.
pub fn read_counters(reader: &mut Reader<'_>) -> Result<Counters, WireError> {
    reader.skip(2)?;
    let length = reader.u16()?;
    let mut fields = reader.record(length, 4, "statistics")?;
    let mut counters = Counters::default();
    while !fields.is_empty() {
        let class = fields.u16()?;
        let field = fields.u8()? >> 1;
        let length = usize::from(fields.u8()?);
        let mut value = Reader::new(fields.take(length)?, "a field of statistics");
        if class != OXS_BASIC {
            continue;
        }
        match field {
            0 => counters.duration = Some(read_duration(&mut value)?),
            1 => counters.idle = Some(read_duration(&mut value)?),
            3 => counters.flows = Some(value.u32()?),
            4 => counters.packets = known(value.u64()?),
            5 => counters.bytes = known(value.u64()?),
            _ => {}
        }
    }
    Ok(counters)
}

/// Flows as a number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Aggregate {
    /// How many flows there are.
    pub flows: u32,
    /// How many packets met them.
    pub packets: Option<u64>,
    /// How many bytes they had.
    pub bytes: Option<u64>,
}

/// Reads the answer about sets of flows.
pub fn aggregate(version: Version, bytes: &[u8]) -> Result<Aggregate, WireError> {
    let mut reader = Reader::new(bytes, "statistics of flows");
    if version == Version::V15 {
        let counters = read_counters(&mut reader)?;
        return Ok(Aggregate {
            flows: counters.flows.unwrap_or(0),
            packets: counters.packets,
            bytes: counters.bytes,
        });
    }
    let (packets, bytes) = (known(reader.u64()?), known(reader.u64()?));
    let flows = reader.u32()?;
    Ok(Aggregate {
        flows,
        packets,
        bytes,
    })
}

/// A flow table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableStats {
    /// Its number.
    pub table: u8,
    /// How many flows it has.
    pub flows: u32,
    /// How many packets were looked up in it.
    pub lookups: Option<u64>,
    /// How many of them met a flow.
    pub matched: Option<u64>,
}

/// Reads a part of the answer about tables.
pub fn table_stats(bytes: &[u8], mut visit: impl FnMut(TableStats)) -> Result<(), WireError> {
    let mut reader = Reader::new(bytes, "statistics of tables");
    while !reader.is_empty() {
        let table = reader.u8()?;
        reader.skip(3)?;
        visit(TableStats {
            table,
            flows: reader.u32()?,
            lookups: known(reader.u64()?),
            matched: known(reader.u64()?),
        });
    }
    Ok(())
}

/// The counters of a port. Those that the port's kind does not have are absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Its number.
    pub port: u32,
    /// For how long it has been there.
    pub duration: Duration,
    /// Packets that came.
    pub rx_packets: Option<u64>,
    /// Packets that went.
    pub tx_packets: Option<u64>,
    /// Bytes that came.
    pub rx_bytes: Option<u64>,
    /// Bytes that went.
    pub tx_bytes: Option<u64>,
    /// Packets that came and were dropped.
    pub rx_dropped: Option<u64>,
    /// Packets that should have gone and were dropped.
    pub tx_dropped: Option<u64>,
    /// Packets that came with errors.
    pub rx_errors: Option<u64>,
    /// Packets that could not go.
    pub tx_errors: Option<u64>,
}

/// Reads a part of the answer about ports.
pub fn port_stats(
    version: Version,
    bytes: &[u8],
    mut visit: impl FnMut(PortStats),
) -> Result<(), WireError> {
    let mut reader = Reader::new(bytes, "statistics of ports");
    while !reader.is_empty() {
        if version == Version::V13 {
            let port = reader.u32()?;
            reader.skip(4)?;
            let mut stats = read_port_counters(&mut reader)?;
            // Errors of four kinds.
            reader.skip(32)?;
            stats.port = port;
            stats.duration = read_duration(&mut reader)?;
            visit(stats);
            continue;
        }
        let length = reader.u16()?;
        let mut body = reader.record(length, 2, "statistics of a port")?;
        body.skip(2)?;
        let port = body.u32()?;
        let duration = read_duration(&mut body)?;
        // What follows are errors of four kinds, among others.
        visit(PortStats {
            port,
            duration,
            ..read_port_counters(&mut body)?
        });
    }
    Ok(())
}

fn read_port_counters(reader: &mut Reader<'_>) -> Result<PortStats, WireError> {
    Ok(PortStats {
        rx_packets: known(reader.u64()?),
        tx_packets: known(reader.u64()?),
        rx_bytes: known(reader.u64()?),
        tx_bytes: known(reader.u64()?),
        rx_dropped: known(reader.u64()?),
        tx_dropped: known(reader.u64()?),
        rx_errors: known(reader.u64()?),
        tx_errors: known(reader.u64()?),
        ..PortStats::default()
    })
}

/// What a port is.
#[derive(Clone, PartialEq, Eq)]
pub struct PortDescription {
    /// Its number.
    pub port: u32,
    /// Its name, or the first 15 bytes of it.
    pub name: String,
    /// Its address.
    pub address: [u8; 6],
    /// Whether it was set down.
    pub admin_down: bool,
    /// Whether its link is down.
    pub link_down: bool,
    /// Its speed in kilobits per second; 0 if it is not known.
    pub speed_kbps: u32,
}

impl fmt::Debug for PortDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.address;
        let address = format_args!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}").to_string();
        f.debug_struct("PortDescription")
            .field("port", &self.port)
            .field("name", &self.name)
            .field("address", &address)
            .field("admin_down", &self.admin_down)
            .field("link_down", &self.link_down)
            .field("speed_kbps", &self.speed_kbps)
            .finish()
    }
}

/// Reads a part of the answer about what ports are.
pub fn port_descriptions(
    version: Version,
    bytes: &[u8],
    mut visit: impl FnMut(PortDescription),
) -> Result<(), WireError> {
    let mut reader = Reader::new(bytes, "descriptions of ports");
    while !reader.is_empty() {
        let port = reader.u32()?;
        if version == Version::V13 {
            reader.skip(4)?;
            let mut description = read_description(port, &mut reader)?;
            // Features of four kinds.
            reader.skip(16)?;
            description.speed_kbps = reader.u32()?;
            reader.skip(4)?;
            visit(description);
            continue;
        }
        let length = reader.u16()?;
        let mut body = reader.record(length, 6, "the description of a port")?;
        body.skip(2)?;
        let mut description = read_description(port, &mut body)?;
        while !body.is_empty() {
            let kind = body.u16()?;
            let length = body.u16()?;
            let mut property = body.record(length, 4, "a property of a port")?;
            if kind == PROPERTY_ETHERNET {
                property.skip(4 + 16)?;
                description.speed_kbps = property.u32()?;
            }
        }
        visit(description);
    }
    Ok(())
}

fn read_description(port: u32, reader: &mut Reader<'_>) -> Result<PortDescription, WireError> {
    let address = reader.array()?;
    reader.skip(2)?;
    let name: [u8; 16] = reader.array()?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let (config, state) = (reader.u32()?, reader.u32()?);
    Ok(PortDescription {
        port,
        name: String::from_utf8_lossy(name).into_owned(),
        address,
        admin_down: config & 1 != 0,
        link_down: state & 1 != 0,
        speed_kbps: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a real switch answered about 195 flows.
    const AGGREGATE: [u8; 40] = [
        0, 0, 0, 0x24, 0x80, 2, 8, 8, 0, 0, 0, 0, 0, 0, 1, 3, 0x80, 2, 0x0a, 8, 0, 0, 0, 0, 0, 0,
        0x5b, 0x4e, 0x80, 2, 6, 4, 0, 0, 0, 0xc3, 0, 0, 0, 0,
    ];

    #[test]
    fn statistics_are_lists_of_fields() {
        let expected = Aggregate {
            flows: 195,
            packets: Some(259),
            bytes: Some(23374),
        };
        assert_eq!(aggregate(Version::V15, &AGGREGATE), Ok(expected));
        let mut foreign = AGGREGATE;
        foreign[5] = 9;
        let counters = read_counters(&mut Reader::new(&foreign, "test")).unwrap();
        assert_eq!((counters.packets, counters.flows), (None, Some(195)));
        for length in 0..36 {
            assert!(
                aggregate(Version::V15, &AGGREGATE[..length]).is_err(),
                "{length}"
            );
        }
    }

    #[test]
    fn what_a_switch_does_not_know_is_absent() {
        let mut bytes = [0_u8; 24];
        bytes[..4].fill(0xff);
        let mut stats = [1_u64.to_be_bytes(), u64::MAX.to_be_bytes()].concat();
        stats.extend([0, 0, 0, 3, 0, 0, 0, 0]);
        let read = aggregate(Version::V13, &stats).unwrap();
        assert_eq!((read.flows, read.packets, read.bytes), (3, Some(1), None));
        let mut tables = Vec::new();
        table_stats(&bytes, |table| tables.push(table)).unwrap();
        assert_eq!((tables[0].table, tables[0].lookups), (255, Some(0)));
        assert!(table_stats(&bytes[..23], drop).is_err());
    }
}
