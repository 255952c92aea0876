//! Which packets a capture keeps: a small part of the language of tcpdump, read and applied. Pure.
//!
//! As there, `and` and `or` bind alike and from left to right, and `not` binds tighter. Other than
//! there, a packet is always looked at through its VLAN tags: `tcp` is also TCP in a VLAN.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How long a filter may be.
pub const MAX_LENGTH: usize = 2048;
/// How deep parentheses and negations may be nested.
const MAX_DEPTH: usize = 32;

/// Which packets are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter(Expression);

/// Why a text is no filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterError {
    /// Where, counted in characters from 1.
    pub position: usize,
    /// What should be there.
    pub expected: &'static str,
    /// What is there; nothing at the end.
    pub found: Option<String>,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (position, expected) = (self.position, self.expected);
        match &self.found {
            Some(found) => write!(
                f,
                "the filter is wrong at position {position}: {expected} is expected, not {found:?}"
            ),
            None => write!(
                f,
                "the filter ends too early, at position {position}: {expected} is expected"
            ),
        }
    }
}

impl std::error::Error for FilterError {}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Expression {
    Is(Primitive),
    Not(Box<Expression>),
    /// From left to right.
    Chain(Box<Expression>, Vec<(Join, Expression)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Join {
    And,
    Or,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Destination,
    Either,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Primitive {
    Protocol(Protocol),
    Net(Side, Net),
    Port(Side, u16),
    Ether(Side, Mac),
    Vlan(Option<u16>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Arp,
    Ip,
    Ip6,
    Icmp,
    Icmp6,
    Tcp,
    Udp,
    Sctp,
}

type Mac = [u8; 6];

/// Addresses that begin alike; a host is one with all bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Net {
    address: IpAddr,
    bits: u8,
}

impl Net {
    fn contains(self, address: IpAddr) -> bool {
        let same = |a: u128, b: u128, width: u8| {
            let shift = u32::from(width.saturating_sub(self.bits));
            a.checked_shr(shift).unwrap_or(0) == b.checked_shr(shift).unwrap_or(0)
        };
        match (self.address, address) {
            (IpAddr::V4(net), IpAddr::V4(address)) => {
                same(u32::from(net).into(), u32::from(address).into(), 32)
            }
            (IpAddr::V6(net), IpAddr::V6(address)) => same(net.into(), address.into(), 128),
            _ => false,
        }
    }
}

impl Filter {
    /// Reads a filter. One without words keeps everything.
    ///
    /// # Errors
    ///
    /// Says where it is wrong and what should be there.
    pub fn parse(text: &str) -> Result<Option<Self>, FilterError> {
        if text.chars().count() > MAX_LENGTH {
            return Err(FilterError {
                position: MAX_LENGTH,
                expected: "the end",
                found: Some("a longer text".to_owned()),
            });
        }
        let mut parser = Parser {
            words: words(text),
            next: 0,
            end: text.chars().count() + 1,
            depth: 0,
        };
        if parser.words.is_empty() {
            return Ok(None);
        }
        let expression = parser.expression()?;
        if parser.peek().is_some() {
            return Err(parser.expected("\"and\", \"or\" or the end"));
        }
        Ok(Some(Self(expression)))
    }

    /// Whether a frame is kept.
    #[must_use]
    pub fn keeps(&self, frame: &[u8]) -> bool {
        Packet::read(frame).is_some_and(|packet| self.0.holds(&packet))
    }
}

impl Expression {
    fn holds(&self, packet: &Packet) -> bool {
        match self {
            Self::Is(primitive) => primitive.holds(packet),
            Self::Not(inner) => !inner.holds(packet),
            Self::Chain(first, rest) => {
                let begin = first.holds(packet);
                rest.iter().fold(begin, |so_far, (join, next)| match join {
                    Join::And => so_far && next.holds(packet),
                    Join::Or => so_far || next.holds(packet),
                })
            }
        }
    }
}

impl Side {
    fn any<T: Copy>(self, (source, destination): (T, T), is: impl Fn(T) -> bool) -> bool {
        match self {
            Self::Source => is(source),
            Self::Destination => is(destination),
            Self::Either => is(source) || is(destination),
        }
    }
}

impl Primitive {
    fn holds(self, packet: &Packet) -> bool {
        match self {
            Self::Protocol(protocol) => protocol.holds(packet),
            Self::Net(side, net) => packet
                .addresses
                .is_some_and(|both| side.any(both, |address| net.contains(address))),
            Self::Port(side, port) => packet
                .ports
                .is_some_and(|both| side.any(both, |found| found == port)),
            Self::Ether(side, mac) => side.any(packet.macs, |found| found == mac),
            Self::Vlan(None) => packet.vlans.iter().any(Option::is_some),
            Self::Vlan(number) => packet.vlans.contains(&number),
        }
    }
}

impl Protocol {
    fn holds(self, packet: &Packet) -> bool {
        let ip = packet.ether_type == ether_type::IP;
        let ip6 = packet.ether_type == ether_type::IP6;
        match self {
            Self::Arp => packet.ether_type == ether_type::ARP,
            Self::Ip => ip,
            Self::Ip6 => ip6,
            Self::Icmp => ip && packet.protocol == Some(1),
            Self::Icmp6 => ip6 && packet.protocol == Some(58),
            Self::Tcp => packet.protocol == Some(6),
            Self::Udp => packet.protocol == Some(17),
            Self::Sctp => packet.protocol == Some(132),
        }
    }
}

mod ether_type {
    pub const IP: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    pub const IP6: u16 = 0x86dd;
    /// Tags of VLANs: of customers, of providers, and the older form of the latter.
    pub const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
}

/// What a filter may ask of a packet. What is not in the frame is absent.
#[derive(Debug)]
struct Packet {
    macs: (Mac, Mac),
    vlans: [Option<u16>; 2],
    ether_type: u16,
    addresses: Option<(IpAddr, IpAddr)>,
    protocol: Option<u8>,
    ports: Option<(u16, u16)>,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let part = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes(part.try_into().ok()?))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

impl Packet {
    fn read(frame: &[u8]) -> Option<Self> {
        let mut packet = Self {
            macs: (array(frame, 6)?, array(frame, 0)?),
            vlans: [None; 2],
            ether_type: be16(frame, 12)?,
            addresses: None,
            protocol: None,
            ports: None,
        };
        let mut at = 14;
        for vlan in &mut packet.vlans {
            if !ether_type::TAGS.contains(&packet.ether_type) {
                break;
            }
            let (Some(tag), Some(next)) = (be16(frame, at), be16(frame, at + 2)) else {
                break;
            };
            *vlan = Some(tag & 0x0fff);
            packet.ether_type = next;
            at += 4;
        }
        let content = frame.get(at..).unwrap_or_default();
        // What is cut off is absent, and so is what comes after it.
        let _whole = match packet.ether_type {
            ether_type::IP => packet.read_ip(content),
            ether_type::IP6 => packet.read_ip6(content),
            ether_type::ARP => packet.read_arp(content),
            _ => None,
        };
        Some(packet)
    }

    fn read_arp(&mut self, arp: &[u8]) -> Option<()> {
        let address = |at| array::<4>(arp, at).map(|bytes| IpAddr::V4(Ipv4Addr::from(bytes)));
        // Ethernet and IPv4.
        if (be16(arp, 0)?, be16(arp, 2)?, be16(arp, 4)?) == (1, ether_type::IP, 0x0604) {
            self.addresses = Some((address(14)?, address(24)?));
        }
        Some(())
    }

    fn read_ip(&mut self, ip: &[u8]) -> Option<()> {
        let address = |at| array::<4>(ip, at).map(|bytes| IpAddr::V4(Ipv4Addr::from(bytes)));
        let first = *ip.first()?;
        if first >> 4 != 4 {
            return None;
        }
        self.addresses = Some((address(12)?, address(16)?));
        self.protocol = Some(*ip.get(9)?);
        let fragment = be16(ip, 6)? & 0x1fff;
        if fragment == 0 {
            self.read_ports(ip, usize::from(first & 0x0f) * 4);
        }
        Some(())
    }

    fn read_ip6(&mut self, ip: &[u8]) -> Option<()> {
        let address = |at| array::<16>(ip, at).map(|bytes| IpAddr::V6(Ipv6Addr::from(bytes)));
        if *ip.first()? >> 4 != 6 {
            return None;
        }
        self.addresses = Some((address(8)?, address(24)?));
        let (mut next, mut at) = (*ip.get(6)?, 40_usize);
        // More headers than these nobody sends.
        for _ in 0..8 {
            let length = || ip.get(at.checked_add(1)?).copied().map(usize::from);
            let skip = match next {
                // Hop-by-hop, routing, destination options.
                0 | 43 | 60 => length()? * 8 + 8,
                // Authentication.
                51 => length()? * 4 + 8,
                // A fragment: what follows the first has no ports.
                44 => {
                    if be16(ip, at.checked_add(2)?)? & 0xfff8 != 0 {
                        self.protocol = Some(*ip.get(at)?);
                        return Some(());
                    }
                    8
                }
                _ => break,
            };
            next = *ip.get(at)?;
            at = at.checked_add(skip)?;
        }
        self.protocol = Some(next);
        self.read_ports(ip, at);
        Some(())
    }

    fn read_ports(&mut self, ip: &[u8], at: usize) {
        if matches!(self.protocol, Some(6 | 17 | 132)) {
            self.ports = be16(ip, at).zip(at.checked_add(2).and_then(|at| be16(ip, at)));
        }
    }
}

struct Word<'a> {
    position: usize,
    text: &'a str,
}

/// Words and signs, with the place of each.
fn words(text: &str) -> Vec<Word<'_>> {
    let mut words: Vec<Word<'_>> = Vec::new();
    let mut rest = text;
    let mut position = 1;
    loop {
        let trimmed = rest.trim_start();
        let skipped = rest.len() - trimmed.len();
        position += rest.get(..skipped).map_or(0, |gap| gap.chars().count());
        rest = trimmed;
        if rest.is_empty() {
            return words;
        }
        let sign = ["&&", "||", "(", ")", "!"]
            .into_iter()
            .find(|sign| rest.starts_with(sign));
        let length = match sign {
            Some(sign) => sign.len(),
            None => rest
                .find(|c: char| c.is_whitespace() || "()!&|".contains(c))
                // A lone `&` or `|` is a word of its own, and wrong.
                .map_or(rest.len(), |end| {
                    if end == 0 {
                        rest.chars().next().map_or(1, char::len_utf8)
                    } else {
                        end
                    }
                }),
        };
        let (text, after) = rest.split_at(length);
        words.push(Word { position, text });
        position += text.chars().count();
        rest = after;
    }
}

struct Parser<'a> {
    words: Vec<Word<'a>>,
    next: usize,
    end: usize,
    depth: usize,
}

const PRIMITIVE: &str = "arp, ip, ip6, icmp, icmp6, tcp, udp, sctp, host, net, port, src, dst, \
                         ether, vlan, not or \"(\"";

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.next).map(|word| word.text)
    }

    fn take_if(&mut self, wanted: &[&str]) -> bool {
        let found = self.peek().is_some_and(|word| wanted.contains(&word));
        self.next += usize::from(found);
        found
    }

    /// The next word is not what it should be.
    fn expected(&self, expected: &'static str) -> FilterError {
        let word = self.words.get(self.next);
        FilterError {
            position: word.map_or(self.end, |word| word.position),
            expected,
            found: word.map(|word| word.text.to_owned()),
        }
    }

    /// Takes a word as a value.
    fn value<T>(
        &mut self,
        expected: &'static str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<T, FilterError> {
        let value = self.peek().and_then(read);
        let value = value.ok_or_else(|| self.expected(expected))?;
        self.next += 1;
        Ok(value)
    }

    fn expression(&mut self) -> Result<Expression, FilterError> {
        let first = self.term()?;
        let mut rest = Vec::new();
        loop {
            let join = if self.take_if(&["and", "&&"]) {
                Join::And
            } else if self.take_if(&["or", "||"]) {
                Join::Or
            } else {
                break;
            };
            rest.push((join, self.term()?));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        Ok(Expression::Chain(Box::new(first), rest))
    }

    fn term(&mut self) -> Result<Expression, FilterError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.expected("less nesting"));
        }
        let term = if self.take_if(&["not", "!"]) {
            Expression::Not(Box::new(self.term()?))
        } else if self.take_if(&["("]) {
            let inner = self.expression()?;
            if !self.take_if(&[")"]) {
                return Err(self.expected("\"and\", \"or\" or \")\""));
            }
            inner
        } else {
            self.primitive()?
        };
        self.depth -= 1;
        Ok(term)
    }

    fn primitive(&mut self) -> Result<Expression, FilterError> {
        let protocol = self.peek().and_then(|word| {
            Some(match word {
                "arp" => Protocol::Arp,
                "ip" => Protocol::Ip,
                "ip6" => Protocol::Ip6,
                "icmp" => Protocol::Icmp,
                "icmp6" => Protocol::Icmp6,
                "tcp" => Protocol::Tcp,
                "udp" => Protocol::Udp,
                "sctp" => Protocol::Sctp,
                _ => return None,
            })
        });
        if let Some(protocol) = protocol {
            self.next += 1;
            let is = Expression::Is(Primitive::Protocol(protocol));
            // `tcp port 80` is both.
            let more = ["src", "dst", "host", "net", "port"];
            if self.peek().is_some_and(|word| more.contains(&word)) {
                let also = Expression::Is(self.address()?);
                return Ok(Expression::Chain(Box::new(is), vec![(Join::And, also)]));
            }
            return Ok(is);
        }
        if self.take_if(&["ether"]) {
            let side = self.side();
            if !self.take_if(&["host"]) {
                return Err(self.expected("src, dst or host"));
            }
            let mac = self.value("an address like 02:00:00:00:00:01", mac)?;
            return Ok(Expression::Is(Primitive::Ether(side, mac)));
        }
        if self.take_if(&["vlan"]) {
            let begins = |word: &str| word.starts_with(|c: char| c.is_ascii_digit());
            let number = if self.peek().is_some_and(begins) {
                let read = |word: &str| word.parse().ok().filter(|vlan| *vlan <= 4095_u16);
                Some(self.value("a VLAN from 0 to 4095", read)?)
            } else {
                None
            };
            return Ok(Expression::Is(Primitive::Vlan(number)));
        }
        self.address().map(Expression::Is)
    }

    fn side(&mut self) -> Side {
        if self.take_if(&["src"]) {
            Side::Source
        } else if self.take_if(&["dst"]) {
            Side::Destination
        } else {
            Side::Either
        }
    }

    /// `[src|dst] host A`, `[src|dst] net A/LEN`, `[src|dst] port N`.
    fn address(&mut self) -> Result<Primitive, FilterError> {
        let side = self.side();
        match self.peek() {
            Some("host") => {
                self.next += 1;
                let address = self.value("an IP address", |word| word.parse().ok())?;
                Ok(Primitive::Net(side, whole(address)))
            }
            Some("net") => {
                self.next += 1;
                let net = self.value("a network like 10.0.0.0/8", net)?;
                Ok(Primitive::Net(side, net))
            }
            Some("port") => {
                self.next += 1;
                let port = self.value("a port from 0 to 65535", |word| word.parse().ok())?;
                Ok(Primitive::Port(side, port))
            }
            _ if side != Side::Either => Err(self.expected("host, net or port")),
            _ => Err(self.expected(PRIMITIVE)),
        }
    }
}

fn whole(address: IpAddr) -> Net {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    Net { address, bits }
}

fn net(word: &str) -> Option<Net> {
    let (address, bits) = word.split_once('/')?;
    let all = whole(address.parse().ok()?);
    let bits = bits.parse().ok().filter(|bits| *bits <= all.bits)?;
    Some(Net { bits, ..all })
}

fn mac(word: &str) -> Option<Mac> {
    let mut bytes = [0; 6];
    let mut parts = word.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() <= 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
        digits.chunks(2).map(|pair| byte(pair).unwrap()).collect()
    }

    /// From 02:..:01 to 02:..:02, of some kind.
    fn ethernet(rest: &str) -> Vec<u8> {
        hex(&format!("020000000002 020000000001 {rest}"))
    }

    /// 192.0.2.1 to 198.51.100.2, with what follows.
    fn ip(protocol: u8, fragment: &str, rest: &str) -> String {
        format!("0800 4500 0030 0001 {fragment} 40 {protocol:02x} 0000 c0000201 c6336402 {rest}")
    }

    /// 2001:db8::1 to 2001:db8::2.
    fn ip6(next: u8, rest: &str) -> String {
        let address = |last| format!("20010db8 00000000 00000000 0000000{last}");
        format!(
            "86dd 60000000 0010 {next:02x} 40 {} {} {rest}",
            address(1),
            address(2)
        )
    }

    fn frames() -> Vec<(&'static str, Vec<u8>)> {
        let tcp = "c350 0050 00000000 00000000 50020000 0000 0000";
        vec![
            ("tcp", ethernet(&ip(6, "0000", tcp))),
            ("udp", ethernet(&ip(17, "0000", "0035 c351 0008 0000"))),
            ("icmp", ethernet(&ip(1, "0000", "0800 0000 0001 0001"))),
            ("sctp", ethernet(&ip(132, "0000", "0b59 0b59 00000000"))),
            // Its first bytes look like ports.
            ("fragment", ethernet(&ip(6, "0003", tcp))),
            (
                "tagged",
                ethernet(&format!("8100 0064 {}", ip(6, "0000", tcp))),
            ),
            (
                "doubly",
                ethernet(&format!(
                    "88a8 00c8 8100 0064 {}",
                    ip(17, "0000", "0035 c351")
                )),
            ),
            (
                "arp",
                ethernet("0806 0001 0800 0604 0001 020000000001 c0000201 000000000000 c6336402"),
            ),
            ("icmp6", ethernet(&ip6(58, "8000 0000"))),
            // Hop-by-hop options, then TCP.
            (
                "options",
                ethernet(&ip6(0, &format!("06 00 000000000000 {tcp}"))),
            ),
            // A later fragment of UDP.
            (
                "fragment6",
                ethernet(&ip6(44, "11 00 0008 00000001 0035 c351")),
            ),
            ("lldp", ethernet("88cc 0207 04")),
            // Cut off in the middle of the addresses.
            (
                "short",
                ethernet("0800 4500 0030 0001 0000 40 06 0000 c000"),
            ),
        ]
    }

    #[test]
    fn filters_keep_what_they_say() {
        for (filter, kept) in [
            ("arp", "arp"),
            ("ip", "tcp udp icmp sctp fragment tagged doubly short"),
            ("ip6", "icmp6 options fragment6"),
            ("icmp", "icmp"),
            ("icmp6", "icmp6"),
            ("tcp", "tcp fragment tagged options"),
            ("udp", "udp doubly fragment6"),
            ("sctp", "sctp"),
            ("port 80", "tcp tagged options"),
            ("src port 80", ""),
            ("dst port 80", "tcp tagged options"),
            ("src port 53", "udp doubly"),
            ("udp port 80", ""),
            ("tcp dst port 80 and ip6", "options"),
            (
                "host 192.0.2.1",
                "tcp udp icmp sctp fragment tagged doubly arp",
            ),
            ("dst host 192.0.2.1", ""),
            ("arp host 198.51.100.2", "arp"),
            ("net 198.51.0.0/16 and icmp", "icmp"),
            ("src net 198.51.0.0/16", ""),
            ("net 0.0.0.0/0 and arp", "arp"),
            ("host 2001:db8::2", "icmp6 options fragment6"),
            ("src net 2001:db8::/127 && tcp", "options"),
            ("ether host 02:00:00:00:00:09", ""),
            ("ether src host 2:0:0:0:0:1 and arp", "arp"),
            ("ether dst host 02:00:00:00:00:01", ""),
            ("vlan", "tagged doubly"),
            ("vlan 100", "tagged doubly"),
            ("vlan 200", "doubly"),
            ("vlan 100 and tcp", "tagged"),
            ("not ip and not ip6", "arp lldp"),
            ("!(ip||ip6||arp)", "lldp"),
            ("not not arp", "arp"),
            // From left to right: (arp or icmp) and ip.
            ("arp or icmp and ip", "icmp"),
            ("arp or (icmp and ip)", "icmp arp"),
        ] {
            let parsed = Filter::parse(filter).unwrap().unwrap();
            let seen: Vec<&str> = frames()
                .iter()
                .filter(|(_, frame)| parsed.keeps(frame))
                .map(|(name, _)| *name)
                .collect();
            let wanted: Vec<&str> = kept.split_whitespace().collect();
            assert_eq!(seen, wanted, "{filter}");
        }
        assert_eq!(Filter::parse("  "), Ok(None));
    }

    #[test]
    fn what_is_no_filter_is_told_with_its_place() {
        for (filter, position, expected, found) in [
            ("tcpp", 1, "arp", Some("tcpp")),
            ("tcp and", 8, "arp", None),
            ("tcp udp", 5, "and", Some("udp")),
            ("host here", 6, "an IP address", Some("here")),
            ("port 70000", 6, "65535", Some("70000")),
            ("src tcp", 5, "host, net or port", Some("tcp")),
            ("net 10.0.0.0", 5, "10.0.0.0/8", Some("10.0.0.0")),
            ("net 10.0.0.0/33", 5, "10.0.0.0/8", Some("10.0.0.0/33")),
            ("ether tcp", 7, "src, dst or host", Some("tcp")),
            ("ether host 1:2:3", 12, "02:00", Some("1:2:3")),
            ("vlan 5000", 6, "4095", Some("5000")),
            ("(tcp or udp", 12, "\")\"", None),
            ("tcp)", 4, "the end", Some(")")),
            ("tcp & udp", 5, "and", Some("&")),
            ("höst 1.1.1.1 )", 1, "arp", Some("höst")),
        ] {
            let error = Filter::parse(filter).unwrap_err();
            assert_eq!(error.position, position, "{filter}: {error}");
            assert!(error.expected.contains(expected), "{filter}: {error}");
            assert_eq!(error.found.as_deref(), found, "{filter}: {error}");
        }
        let deep = format!("{}tcp{}", "(".repeat(100), ")".repeat(100));
        assert_eq!(Filter::parse(&deep).unwrap_err().expected, "less nesting");
        assert!(Filter::parse(&"tcp or ".repeat(1000)).is_err());
    }

    proptest! {
        #[test]
        fn no_text_and_no_frame_is_too_strange(
            text in "((tcp|udp|ip6|not|and|or|&&|!|\\(|\\)|port 80|vlan|host ::1|é|&) ?){0,20}",
            wild in ".{0,60}",
            frame in proptest::collection::vec(any::<u8>(), 0..120),
        ) {
            for text in [text, wild] {
                if let Ok(Some(filter)) = Filter::parse(&text) {
                    let kept = filter.keeps(&frame);
                    // One that is not turned around is too deep or too long for it.
                    if let Ok(Some(other)) = Filter::parse(&format!("not ({text})")) {
                        prop_assert_eq!(other.keeps(&frame), !kept && frame.len() >= 14);
                    }
                }
            }
        }

        #[test]
        fn any_content_behind_a_known_type_is_read(
            kind in prop::sample::select(vec!["0800", "86dd", "0806", "81000001 86dd", "88a8"]),
            first in prop::sample::select(vec![0x45_u8, 0x4f, 0x60]),
            rest in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let filter = Filter::parse("port 80 or host ::1 or icmp6 or vlan 3").unwrap().unwrap();
            let all = Filter::parse("not (tcp and udp)").unwrap().unwrap();
            let mut frame = ethernet(kind);
            frame.push(first);
            frame.extend(rest);
            prop_assert!(all.keeps(&frame));
            prop_assert!(!filter.keeps(&frame) || frame.len() > 16);
        }
    }
}
