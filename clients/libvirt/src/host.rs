//! The host: versions, capabilities, what it has and how busy it is.

use std::collections::BTreeMap;
use std::fmt;

use crate::connection::Connection;
use crate::error::Error;
use crate::procedure::{
    CONNECT_GET_CAPABILITIES, CONNECT_GET_DOMAIN_CAPABILITIES, CONNECT_GET_HOSTNAME,
    CONNECT_GET_LIB_VERSION, CONNECT_GET_TYPE, CONNECT_GET_VERSION, NODE_GET_CPU_STATS,
    NODE_GET_INFO, NODE_GET_MEMORY_STATS, Procedure,
};
use crate::xdr::{Reader, Writer, XdrResult};

/// A version of libvirt or of a hypervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// From its three numbers.
    pub const fn new(major: u32, minor: u32, release: u32) -> Self {
        Self(major as u64 * 1_000_000 + minor as u64 * 1000 + release as u64)
    }

    /// From the number that libvirt sends.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number) = self;
        let (major, minor) = (number / 1_000_000, number / 1000 % 1000);
        write!(f, "{major}.{minor}.{}", number % 1000)
    }
}

/// What a host has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// The architecture of its CPUs, for example `x86_64`.
    pub model: String,
    /// Its memory.
    pub memory_kib: u64,
    /// Its CPUs that are online.
    pub cpus: u32,
    /// How fast they are; 0 if unknown.
    pub mhz: u32,
    /// NUMA nodes.
    pub nodes: u32,
    /// Sockets in a NUMA node.
    pub sockets: u32,
    /// Cores in a socket.
    pub cores: u32,
    /// Threads in a core.
    pub threads: u32,
}

/// Whose capabilities are asked for. What is not said, the driver chooses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DomainCapabilitiesQuery {
    /// The program, for example `/usr/bin/qemu-system-x86_64`.
    pub emulator: Option<String>,
    /// The architecture of the guest.
    pub arch: Option<String>,
    /// The type of the machine, for example `q35`.
    pub machine: Option<String>,
    /// `kvm` or `qemu`, for example.
    pub virt_type: Option<String>,
}

impl Connection {
    /// The version of libvirt.
    pub async fn lib_version(&self) -> Result<Version, Error> {
        self.ask(CONNECT_GET_LIB_VERSION, |reader| reader.u64().map(Version))
            .await
    }

    /// The version of the hypervisor.
    pub async fn hypervisor_version(&self) -> Result<Version, Error> {
        self.ask(CONNECT_GET_VERSION, |reader| reader.u64().map(Version))
            .await
    }

    /// Asks whether libvirt answers.
    pub async fn ping(&self) -> Result<(), Error> {
        self.lib_version().await.map(drop)
    }

    /// The name of the host.
    pub async fn hostname(&self) -> Result<String, Error> {
        self.ask(CONNECT_GET_HOSTNAME, |reader| reader.string())
            .await
    }

    /// The name of the driver, for example `QEMU`.
    pub async fn driver_type(&self) -> Result<String, Error> {
        self.ask(CONNECT_GET_TYPE, |reader| reader.string()).await
    }

    /// What the host has.
    pub async fn node_info(&self) -> Result<NodeInfo, Error> {
        self.ask(NODE_GET_INFO, node_info).await
    }

    /// What host and hypervisor can do, in XML.
    pub async fn capabilities(&self) -> Result<String, Error> {
        self.ask(CONNECT_GET_CAPABILITIES, |reader| reader.string())
            .await
    }

    /// What a domain can have here, in XML.
    pub async fn domain_capabilities(
        &self,
        query: &DomainCapabilitiesQuery,
    ) -> Result<String, Error> {
        let arguments = Writer::new()
            .optional_string(query.emulator.as_deref())
            .optional_string(query.arch.as_deref())
            .optional_string(query.machine.as_deref())
            .optional_string(query.virt_type.as_deref())
            .u32(0);
        self.client
            .call(CONNECT_GET_DOMAIN_CAPABILITIES, arguments, |reader| {
                reader.string()
            })
            .await
    }

    /// How long all CPUs have been doing what, in nanoseconds.
    pub async fn node_cpu_stats(&self) -> Result<BTreeMap<String, u64>, Error> {
        let arguments = |count| Writer::new().i32(ALL).i32(count).u32(0);
        self.node_stats(NODE_GET_CPU_STATS, arguments).await
    }

    /// How the host's memory is used, in KiB.
    pub async fn node_memory_stats(&self) -> Result<BTreeMap<String, u64>, Error> {
        let arguments = |count| Writer::new().i32(count).i32(ALL).u32(0);
        self.node_stats(NODE_GET_MEMORY_STATS, arguments).await
    }

    /// libvirt wants to be asked how many there are, and then for that many.
    async fn node_stats(
        &self,
        procedure: Procedure,
        arguments: impl Fn(i32) -> Writer,
    ) -> Result<BTreeMap<String, u64>, Error> {
        let (_, count) = self
            .client
            .call(procedure, arguments(0), node_stats)
            .await?;
        if count <= 0 {
            return Ok(BTreeMap::new());
        }
        let (stats, _) = self
            .client
            .call(procedure, arguments(count), node_stats)
            .await?;
        Ok(stats)
    }

    async fn ask<T>(
        &self,
        procedure: Procedure,
        read: impl FnOnce(&mut Reader<'_>) -> XdrResult<T>,
    ) -> Result<T, Error> {
        self.client.call(procedure, Writer::new(), read).await
    }
}

/// All CPUs, or all NUMA nodes.
const ALL: i32 = -1;

pub(crate) fn node_info(reader: &mut Reader<'_>) -> XdrResult<NodeInfo> {
    // A fixed array of characters, each sent as a number of 32 bits.
    let mut model = Vec::new();
    for _ in 0..32 {
        model.push(reader.i32()?);
    }
    let text = model
        .iter()
        .map_while(|&c| u8::try_from(c).ok().filter(|&c| c != 0));
    let model: Vec<u8> = text.collect();
    let memory_kib = reader.u64()?;
    let mut number = || Ok(u32::try_from(reader.i32()?).unwrap_or(0));
    Ok(NodeInfo {
        model: String::from_utf8_lossy(&model).into_owned(),
        memory_kib,
        cpus: number()?,
        mhz: number()?,
        nodes: number()?,
        sockets: number()?,
        cores: number()?,
        threads: number()?,
    })
}

pub(crate) fn node_stats(reader: &mut Reader<'_>) -> XdrResult<(BTreeMap<String, u64>, i32)> {
    const SMALLEST: usize = 4 + 8;
    let stats = reader.list(SMALLEST, |reader| Ok((reader.string()?, reader.u64()?)))?;
    Ok((stats.into_iter().collect(), reader.i32()?))
}
