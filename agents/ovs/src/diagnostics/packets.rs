//! Packets of a device, as the kernel gives them: a packet socket, and the little of rtnetlink that
//! a device needs before it gives any.

use std::io;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind,
    getsockopt, recv, recvmsg, send, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeSpec, TimeVal};
use nix::{getsockopt_impl, setsockopt_impl, sockopt_impl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// What the kernel keeps for us while we are busy.
const KERNEL_BUFFER: usize = 2 * 1024 * 1024;

sockopt_impl!(
    /// Tells with each packet what the kernel took out of it: the tag of its VLAN.
    PacketAuxdata,
    SetOnly,
    libc::SOL_PACKET,
    libc::PACKET_AUXDATA,
    bool
);

sockopt_impl!(
    /// How many packets came since this was asked last, and how many of them found no room.
    PacketStatistics,
    GetOnly,
    libc::SOL_PACKET,
    libc::PACKET_STATISTICS,
    [u32; 2]
);

/// What `tpacket_auxdata` says of a tag.
mod auxdata {
    pub const SIZE: usize = 20;
    pub const STATUS: usize = 0;
    pub const TAG: usize = 16;
    pub const TAG_TYPE: usize = 18;
    pub const TAG_IS_VALID: u32 = 1 << 4;
    pub const TAG_TYPE_IS_VALID: u32 = 1 << 6;
    pub const CUSTOMER: u16 = 0x8100;
}

/// A packet that the kernel sends through the device itself.
const OUTGOING: u8 = 4;

/// Whether this process may open packet sockets and set devices up.
///
/// # Errors
///
/// Says what is missing, and where it is given.
pub fn permitted() -> Result<(), String> {
    const NET_ADMIN: u64 = 1 << 12;
    const NET_RAW: u64 = 1 << 13;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    match effective {
        Some(bits) if bits & NET_ADMIN == 0 || bits & NET_RAW == 0 => Err(MISSING.to_owned()),
        // Where nobody tells it shows when it is tried.
        _ => Ok(()),
    }
}

/// What to do about a capture that the kernel does not allow.
pub const MISSING: &str = "a capture needs the capabilities NET_RAW and NET_ADMIN: set \
                           diagnostics.capture in the chart; with a socketGroup the agent is not \
                           user 0, and capabilities have no effect";

/// A device of this network namespace, if it is here.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn device(name: &str) -> io::Result<Option<LinkAddr>> {
    let mut all = nix::ifaddrs::getifaddrs()?;
    Ok(all.find_map(|one| {
        let address = one.address.filter(|_| one.interface_name == name)?;
        address.as_link_addr().copied()
    }))
}

/// Sets a device up: without ARP and without an address of IPv6, so that this host neither answers
/// nor asks anything there.
///
/// # Errors
///
/// When the kernel refuses it.
pub fn set_up(device: &LinkAddr) -> io::Result<()> {
    const UP: u32 = 0x1;
    const NO_ARP: u32 = 0x80;
    let index = u32::try_from(device.ifindex()).map_err(io::Error::other)?;
    let link = Rtnetlink::open()?;
    // A kernel without IPv6 refuses it, and needs it not.
    drop(link.change(index, 0, &no_address_of_ipv6()));
    link.change(index, UP | NO_ARP, &[])
}

/// `IFLA_AF_SPEC { AF_INET6 { IFLA_INET6_ADDR_GEN_MODE: none } }`
fn no_address_of_ipv6() -> Vec<u8> {
    const AF_SPEC: u16 = 26;
    const INET6: u16 = 10;
    const ADDR_GEN_MODE: u16 = 8;
    const NONE: u8 = 1;
    attribute(
        AF_SPEC,
        &attribute(INET6, &attribute(ADDR_GEN_MODE, &[NONE])),
    )
}

/// An attribute of netlink, filled up to four bytes.
fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len() + 4).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

struct Rtnetlink(OwnedFd);

impl Rtnetlink {
    fn open() -> io::Result<Self> {
        let fd = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        // The kernel answers before it returns from a request; this is for the day it does not.
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(1, 0))?;
        Ok(Self(fd))
    }

    /// Sets flags and attributes of a device, and reads what came of it.
    fn change(&self, index: u32, flags: u32, attributes: &[u8]) -> io::Result<()> {
        const SET_LINK: u16 = 19;
        const REQUEST_AND_ANSWER: u16 = 1 | 4;
        const HEADER: usize = 32;
        let length = u32::try_from(HEADER + attributes.len()).map_err(io::Error::other)?;
        let mut message = Vec::with_capacity(HEADER + attributes.len());
        message.extend(length.to_ne_bytes());
        message.extend(SET_LINK.to_ne_bytes());
        message.extend(REQUEST_AND_ANSWER.to_ne_bytes());
        // A number and a sender, which nobody looks at; any family and any type of device.
        message.extend([0; 12]);
        message.extend(index.to_ne_bytes());
        // The flags, and which of them count.
        message.extend(flags.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(attributes);
        send(self.0.as_raw_fd(), &message, MsgFlags::empty())?;
        let mut answer = [0; 1024];
        let read = recv(self.0.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        let error = answer.get(..read).and_then(|answer| answer.get(16..20));
        let error = error.and_then(|bytes| bytes.try_into().ok());
        match error.map(i32::from_ne_bytes) {
            Some(0) => Ok(()),
            Some(error) => Err(io::Error::from_raw_os_error(error.saturating_neg())),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        }
    }
}

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// When the kernel saw it, since 1970.
    pub time: Duration,
    /// How much of it is in the buffer.
    pub kept: usize,
    /// How long it was.
    pub length: usize,
}

/// A socket for the packets of one device.
#[derive(Debug)]
pub struct PacketSocket {
    fd: AsyncFd<OwnedFd>,
    device: LinkAddr,
    buffer: Vec<u8>,
    control: Vec<u8>,
}

/// What wakes: a packet, and a device that goes.
const TOLD: Interest = Interest::READABLE.add(Interest::ERROR);
/// Room for the tag of a VLAN that the kernel took out.
const TAG: usize = 4;
/// The addresses of a frame.
const MACS: usize = 12;

impl PacketSocket {
    /// Listens to a device that is up, to so much of each packet.
    ///
    /// # Errors
    ///
    /// When the kernel refuses it.
    pub fn open(device: LinkAddr, snaplen: usize) -> io::Result<Self> {
        let fd = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::EthAll,
        )?;
        bind(fd.as_raw_fd(), &device)?;
        setsockopt(&fd, sockopt::ReceiveTimestampns, &true)?;
        setsockopt(&fd, PacketAuxdata, &true)?;
        // The force needs NET_ADMIN, which is here; a smaller buffer is a worse one and no reason.
        setsockopt(&fd, sockopt::RcvBufForce, &KERNEL_BUFFER).ok();
        #[allow(
            deprecated,
            reason = "its successor is unsafe, for types that give up their descriptor; this owns it"
        )]
        let fd = AsyncFd::new(fd)?;
        Ok(Self {
            fd,
            device,
            buffer: vec![0; snaplen.saturating_add(TAG)],
            control: nix::cmsg_space!(TimeSpec, [u8; auxdata::SIZE]),
        })
    }

    /// Waits until there is something to take, or the device is gone.
    ///
    /// # Errors
    ///
    /// When the runtime ends.
    pub async fn ready(&self) -> io::Result<()> {
        let mut guard = self.fd.ready(TOLD).await?;
        guard.retain_ready();
        Ok(())
    }

    /// Takes a packet that is there: `None` when there is none, or it is none of the device's.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when there is nothing to take; else the device is gone.
    pub fn take(&mut self) -> io::Result<Option<(Packet, &[u8])>> {
        let (fd, buffer, control) = (&self.fd, &mut self.buffer, &mut self.control);
        let mut read = |fd: &OwnedFd| Ok(receive(fd, buffer, control)?);
        // One reason to wake at a time: of both at once it would take none.
        let received = match fd.try_io(Interest::READABLE, &mut read) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                fd.try_io(Interest::ERROR, &mut read)?
            }
            taken => taken?,
        };
        // Before it was bound the socket heard all devices.
        let own = received.device == self.device.ifindex() && received.kind != OUTGOING;
        if !own {
            return Ok(None);
        }
        let mut packet = received.packet;
        if let Some(tag) = received.tag {
            packet = insert(&mut self.buffer, packet, tag);
        }
        let frame = self.buffer.get(..packet.kept).unwrap_or_default();
        Ok(Some((packet, frame)))
    }

    /// How many packets found no room since this was asked last.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        getsockopt(self.fd.get_ref(), PacketStatistics).map_or(0, |[_, dropped]| dropped.into())
    }
}

struct Received {
    packet: Packet,
    /// The number of its device.
    device: usize,
    /// From whom and for whom it is.
    kind: u8,
    /// The tag that was taken out: type and content.
    tag: Option<[u8; TAG]>,
}

fn receive(fd: &OwnedFd, buffer: &mut [u8], control: &mut [u8]) -> Result<Received, Errno> {
    let room = buffer.len().saturating_sub(TAG);
    let (into, _) = buffer.split_at_mut(room);
    let mut parts = [IoSliceMut::new(into)];
    let message = recvmsg::<LinkAddr>(
        fd.as_raw_fd(),
        &mut parts,
        Some(control),
        MsgFlags::MSG_TRUNC,
    )?;
    let mut received = Received {
        packet: Packet {
            time: Duration::ZERO,
            kept: message.bytes.min(room),
            length: message.bytes,
        },
        device: message.address.map_or(0, |address| address.ifindex()),
        kind: message
            .address
            .map_or(OUTGOING, |address| address.pkttype()),
        tag: None,
    };
    for part in message.cmsgs()? {
        match part {
            ControlMessageOwned::ScmTimestampns(time) => received.packet.time = time.into(),
            ControlMessageOwned::Unknown(part)
                if part.cmsg_header.cmsg_level == libc::SOL_PACKET
                    && part.cmsg_header.cmsg_type == libc::PACKET_AUXDATA =>
            {
                received.tag = tag(&part.data_bytes);
            }
            _ => {}
        }
    }
    Ok(received)
}

/// The tag that the kernel took out, as it was in the packet.
fn tag(bytes: &[u8]) -> Option<[u8; TAG]> {
    let status = bytes.get(auxdata::STATUS..)?.first_chunk::<4>()?;
    let status = u32::from_ne_bytes(*status);
    let half = |at: usize| {
        let bytes = bytes.get(at..)?.first_chunk::<2>()?;
        Some(u16::from_ne_bytes(*bytes))
    };
    if status & auxdata::TAG_IS_VALID == 0 {
        return None;
    }
    let kind = if status & auxdata::TAG_TYPE_IS_VALID == 0 {
        auxdata::CUSTOMER
    } else {
        half(auxdata::TAG_TYPE)?
    };
    let [a, b] = kind.to_be_bytes();
    let [c, d] = half(auxdata::TAG)?.to_be_bytes();
    Some([a, b, c, d])
}

/// Puts a tag back to where it was, behind the addresses.
fn insert(buffer: &mut [u8], mut packet: Packet, tag: [u8; TAG]) -> Packet {
    if packet.kept >= MACS
        && let Some(frame) = buffer.get_mut(MACS..packet.kept + TAG)
    {
        frame.copy_within(..frame.len() - TAG, TAG);
        if let Some(place) = frame.first_chunk_mut() {
            *place = tag;
        }
        packet.kept += TAG;
        packet.length += TAG;
    }
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_put_back_to_where_it_was() {
        let mut bytes = [0; auxdata::SIZE];
        let valid = auxdata::TAG_IS_VALID | auxdata::TAG_TYPE_IS_VALID;
        bytes[..4].copy_from_slice(&valid.to_ne_bytes());
        bytes[16..18].copy_from_slice(&100_u16.to_ne_bytes());
        bytes[18..].copy_from_slice(&0x88a8_u16.to_ne_bytes());
        let found = tag(&bytes).unwrap();
        assert_eq!(found, [0x88, 0xa8, 0, 100]);
        assert_eq!(tag(&bytes[..10]), None);
        bytes[..4].copy_from_slice(&auxdata::TAG_IS_VALID.to_ne_bytes());
        assert_eq!(tag(&bytes), Some([0x81, 0, 0, 100]));
        bytes[..4].fill(0);
        assert_eq!(tag(&bytes), None);

        let mut buffer: Vec<u8> = (0..20).collect();
        let packet = Packet {
            time: Duration::ZERO,
            kept: 16,
            length: 90,
        };
        let packet = insert(&mut buffer, packet, found);
        assert_eq!((packet.kept, packet.length), (20, 94));
        assert_eq!(buffer[10..], [10, 11, 0x88, 0xa8, 0, 100, 12, 13, 14, 15]);
        // What is shorter than its addresses has no place for it.
        let short = Packet { kept: 3, ..packet };
        assert_eq!(insert(&mut buffer, short, found), short);
    }

    #[test]
    fn requests_have_the_form_that_the_kernel_reads() {
        let attributes = no_address_of_ipv6();
        assert_eq!(attributes.len(), 16);
        assert_eq!(
            attributes[..4],
            [16_u16.to_ne_bytes(), 26_u16.to_ne_bytes()].concat()
        );
        assert_eq!(attributes[12..], [1, 0, 0, 0]);
    }

    #[test]
    fn the_loopback_device_is_found_and_another_is_not() {
        assert!(device("lo").unwrap().is_some_and(|lo| lo.ifindex() > 0));
        assert!(device("no-such-device").unwrap().is_none());
    }
}
