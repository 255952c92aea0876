//! Domains: finding them, reading them, changing them.

use uuid::Uuid;

use crate::connection::Connection;
use crate::error::Error;
use crate::flags::{
    Affect, CreateFlags, DefineFlags, DestroyFlags, ListDomains, RebootFlags, ShutdownFlags,
    UndefineFlags, XmlFlags,
};
use crate::named::named;
use crate::procedure::{
    CONNECT_LIST_ALL_DOMAINS, DOMAIN_ATTACH_DEVICE_FLAGS, DOMAIN_CREATE_WITH_FLAGS,
    DOMAIN_CREATE_XML, DOMAIN_DEFINE_XML_FLAGS, DOMAIN_DESTROY_FLAGS, DOMAIN_DETACH_DEVICE_FLAGS,
    DOMAIN_GET_METADATA, DOMAIN_GET_STATE, DOMAIN_GET_XML_DESC, DOMAIN_INJECT_NMI,
    DOMAIN_LOOKUP_BY_NAME, DOMAIN_LOOKUP_BY_UUID, DOMAIN_REBOOT, DOMAIN_RESET, DOMAIN_RESUME,
    DOMAIN_SET_METADATA, DOMAIN_SHUTDOWN, DOMAIN_SHUTDOWN_FLAGS, DOMAIN_SUSPEND,
    DOMAIN_UNDEFINE_FLAGS, Procedure,
};
use crate::xdr::{Reader, SMALLEST_DOMAIN, Writer};

/// A domain, which is what libvirt calls a virtual machine.
///
/// libvirt finds it by its UUID; the rest is as it was when it was read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain {
    /// Its name, unique on its host.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its number while it runs.
    pub id: Option<u32>,
}

named! {
    /// What a domain is doing.
    DomainState {
        /// Nobody knows.
        NoState = 0 "nostate";
        /// It runs.
        Running = 1 "running";
        /// It waits for something.
        Blocked = 2 "blocked";
        /// It is paused.
        Paused = 3 "paused";
        /// The guest is shutting down.
        Shutdown = 4 "shutdown";
        /// It does not run.
        Shutoff = 5 "shutoff";
        /// The guest has crashed.
        Crashed = 6 "crashed";
        /// The guest sleeps.
        PmSuspended = 7 "pmsuspended";
    }
}

/// What a domain is doing, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DomainStatus {
    /// What it is doing.
    pub state: DomainState,
    /// Why, as a number whose meaning depends on the state.
    pub reason: i32,
}

impl DomainStatus {
    /// Why, where it says more than the state: not for a domain that was started and runs, or one
    /// that was shut down and is off.
    pub fn reason_name(&self) -> Option<&'static str> {
        Some(match (self.state, self.reason) {
            (DomainState::Running, 2) => "migrated",
            (DomainState::Running, 3) => "restored",
            (DomainState::Running, 4) => "from-snapshot",
            (DomainState::Running, 6) => "migration-canceled",
            (DomainState::Running, 7) => "save-canceled",
            (DomainState::Running, 8) => "wakeup",
            (DomainState::Running, 9) => "crashed",
            (DomainState::Running, 10) => "postcopy",
            (DomainState::Running, 11) => "postcopy-failed",
            (DomainState::Paused, 1) => "user",
            (DomainState::Paused, 2) => "migration",
            (DomainState::Paused, 3) => "save",
            (DomainState::Paused, 4) => "dump",
            (DomainState::Paused, 5) => "io-error",
            (DomainState::Paused, 6) => "watchdog",
            (DomainState::Paused, 7) => "from-snapshot",
            (DomainState::Paused, 8) => "shutting-down",
            (DomainState::Paused, 9) => "snapshot",
            (DomainState::Paused, 10) => "crashed",
            (DomainState::Paused, 11) => "starting-up",
            (DomainState::Paused, 12) => "postcopy",
            (DomainState::Paused, 13) => "postcopy-failed",
            (DomainState::Paused, 14) => "api-error",
            (DomainState::Shutoff, 2) => "destroyed",
            (DomainState::Shutoff, 3) => "crashed",
            (DomainState::Shutoff, 4) => "migrated",
            (DomainState::Shutoff, 5) => "saved",
            (DomainState::Shutoff, 6) => "failed",
            (DomainState::Shutoff, 7) => "from-snapshot",
            (DomainState::Shutoff, 8) => "daemon",
            (DomainState::Crashed, 1) => "panicked",
            _ => return None,
        })
    }
}

/// A part of a domain that libvirt keeps and does not understand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metadata<'a> {
    /// The description.
    Description,
    /// The title, a single line.
    Title,
    /// The XML element of this namespace.
    Element(&'a str),
}

impl<'a> Metadata<'a> {
    fn wire(self) -> (i32, Option<&'a str>) {
        match self {
            Self::Description => (0, None),
            Self::Title => (1, None),
            Self::Element(namespace) => (2, Some(namespace)),
        }
    }
}

impl Connection {
    /// Lists domains.
    pub async fn domains(&self, which: ListDomains) -> Result<Vec<Domain>, Error> {
        let arguments = Writer::new().bool(true).u32(which.bits());
        self.client
            .call(CONNECT_LIST_ALL_DOMAINS, arguments, |reader| {
                reader.list(SMALLEST_DOMAIN, Reader::domain)
            })
            .await
    }

    /// Finds a domain. See [`Error::is_no_domain`] for one that is not there.
    pub async fn lookup_by_uuid(&self, uuid: Uuid) -> Result<Domain, Error> {
        let arguments = Writer::new().uuid(uuid);
        self.client
            .call(DOMAIN_LOOKUP_BY_UUID, arguments, |reader| reader.domain())
            .await
    }

    /// Finds a domain. See [`Error::is_no_domain`] for one that is not there.
    pub async fn lookup_by_name(&self, name: &str) -> Result<Domain, Error> {
        let arguments = Writer::new().string(name);
        self.client
            .call(DOMAIN_LOOKUP_BY_NAME, arguments, |reader| reader.domain())
            .await
    }

    /// Reads all about a domain.
    pub async fn xml(&self, domain: &Domain, flags: XmlFlags) -> Result<String, Error> {
        let arguments = Writer::new().domain(domain).u32(flags.bits());
        self.client
            .call(DOMAIN_GET_XML_DESC, arguments, |reader| reader.string())
            .await
    }

    /// Reads what a domain is doing.
    pub async fn state(&self, domain: &Domain) -> Result<DomainStatus, Error> {
        let arguments = Writer::new().domain(domain).u32(0);
        self.client
            .call(DOMAIN_GET_STATE, arguments, |reader| {
                Ok(DomainStatus {
                    state: reader.i32()?.into(),
                    reason: reader.i32()?,
                })
            })
            .await
    }

    /// Defines a domain, or gives it a new definition.
    pub async fn define_xml(&self, xml: &str) -> Result<Domain, Error> {
        self.define_xml_with(xml, DefineFlags::NONE).await
    }

    /// Defines a domain, or gives it a new definition.
    pub async fn define_xml_with(&self, xml: &str, flags: DefineFlags) -> Result<Domain, Error> {
        let arguments = Writer::new().string(xml).u32(flags.bits());
        self.client
            .call(DOMAIN_DEFINE_XML_FLAGS, arguments, |reader| reader.domain())
            .await
    }

    /// Starts a domain that is defined. The answer has the id that it runs under, where the driver
    /// tells it.
    pub async fn create(&self, domain: &Domain, flags: CreateFlags) -> Result<Domain, Error> {
        let arguments = Writer::new().domain(domain).u32(flags.bits());
        self.client
            .call(DOMAIN_CREATE_WITH_FLAGS, arguments, |reader| {
                reader.domain()
            })
            .await
    }

    /// Starts a domain that is gone when it ends.
    pub async fn create_xml(&self, xml: &str, flags: CreateFlags) -> Result<Domain, Error> {
        let arguments = Writer::new().string(xml).u32(flags.bits());
        self.client
            .call(DOMAIN_CREATE_XML, arguments, |reader| reader.domain())
            .await
    }

    /// Ends a domain at once, as a power cut would.
    pub async fn destroy(&self, domain: &Domain, flags: DestroyFlags) -> Result<(), Error> {
        self.act(DOMAIN_DESTROY_FLAGS, domain, Some(flags.bits()))
            .await
    }

    /// Forgets the definition of a domain.
    pub async fn undefine(&self, domain: &Domain, flags: UndefineFlags) -> Result<(), Error> {
        self.act(DOMAIN_UNDEFINE_FLAGS, domain, Some(flags.bits()))
            .await
    }

    /// Asks the guest to shut down. It may not listen.
    pub async fn shutdown(&self, domain: &Domain) -> Result<(), Error> {
        self.act(DOMAIN_SHUTDOWN, domain, None).await
    }

    /// Asks the guest to shut down, in this way.
    pub async fn shutdown_with(&self, domain: &Domain, flags: ShutdownFlags) -> Result<(), Error> {
        self.act(DOMAIN_SHUTDOWN_FLAGS, domain, Some(flags.bits()))
            .await
    }

    /// Asks the guest to reboot. It may not listen.
    pub async fn reboot(&self, domain: &Domain) -> Result<(), Error> {
        self.reboot_with(domain, RebootFlags::NONE).await
    }

    /// Asks the guest to reboot, in this way.
    pub async fn reboot_with(&self, domain: &Domain, flags: RebootFlags) -> Result<(), Error> {
        self.act(DOMAIN_REBOOT, domain, Some(flags.bits())).await
    }

    /// Resets a domain, as the button would.
    pub async fn reset(&self, domain: &Domain) -> Result<(), Error> {
        self.act(DOMAIN_RESET, domain, Some(0)).await
    }

    /// Pauses a domain.
    pub async fn suspend(&self, domain: &Domain) -> Result<(), Error> {
        self.act(DOMAIN_SUSPEND, domain, None).await
    }

    /// Lets a paused domain run on.
    pub async fn resume(&self, domain: &Domain) -> Result<(), Error> {
        self.act(DOMAIN_RESUME, domain, None).await
    }

    /// Sends the guest a non-maskable interrupt, so that it writes a dump.
    pub async fn inject_nmi(&self, domain: &Domain) -> Result<(), Error> {
        self.act(DOMAIN_INJECT_NMI, domain, Some(0)).await
    }

    /// Plugs a device in.
    pub async fn attach_device(
        &self,
        domain: &Domain,
        xml: &str,
        affect: Affect,
    ) -> Result<(), Error> {
        self.device(DOMAIN_ATTACH_DEVICE_FLAGS, domain, xml, affect)
            .await
    }

    /// Asks the guest to give a device away. It is gone when
    /// [`Event::DeviceRemoved`](crate::Event::DeviceRemoved) says so.
    pub async fn detach_device(
        &self,
        domain: &Domain,
        xml: &str,
        affect: Affect,
    ) -> Result<(), Error> {
        self.device(DOMAIN_DETACH_DEVICE_FLAGS, domain, xml, affect)
            .await
    }

    async fn device(
        &self,
        procedure: Procedure,
        domain: &Domain,
        xml: &str,
        affect: Affect,
    ) -> Result<(), Error> {
        let arguments = Writer::new().domain(domain).string(xml).u32(affect.bits());
        self.client.call(procedure, arguments, |_| Ok(())).await
    }

    /// Reads a domain's metadata; `None` if it has none of this kind.
    pub async fn metadata(
        &self,
        domain: &Domain,
        metadata: Metadata<'_>,
        affect: Affect,
    ) -> Result<Option<String>, Error> {
        let (kind, namespace) = metadata.wire();
        let arguments = Writer::new()
            .domain(domain)
            .i32(kind)
            .optional_string(namespace)
            .u32(affect.bits());
        let answer = self
            .client
            .call(DOMAIN_GET_METADATA, arguments, |reader| reader.string())
            .await;
        match answer {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.code() == Some(crate::error::codes::NO_DOMAIN_METADATA) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets a domain's metadata; `None` removes it. An element is written under the prefix `key`.
    pub async fn set_metadata(
        &self,
        domain: &Domain,
        metadata: Metadata<'_>,
        content: Option<&str>,
        key: Option<&str>,
        affect: Affect,
    ) -> Result<(), Error> {
        let (kind, namespace) = metadata.wire();
        let arguments = Writer::new()
            .domain(domain)
            .i32(kind)
            .optional_string(content)
            .optional_string(key)
            .optional_string(namespace)
            .u32(affect.bits());
        self.client
            .call(DOMAIN_SET_METADATA, arguments, |_| Ok(()))
            .await
    }

    /// A procedure that takes a domain and perhaps flags, and returns nothing.
    pub(crate) async fn act(
        &self,
        procedure: Procedure,
        domain: &Domain,
        flags: Option<u32>,
    ) -> Result<(), Error> {
        let mut arguments = Writer::new().domain(domain);
        if let Some(flags) = flags {
            arguments = arguments.u32(flags);
        }
        self.client.call(procedure, arguments, |_| Ok(())).await
    }
}
