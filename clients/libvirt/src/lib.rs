//! An asynchronous client of libvirt's remote protocol, in Rust alone.
//!
//! libvirt's own library is C, blocks, and wants an event loop of its own. The crate `virt` binds
//! it (LGPL, blocking, without events); `libvirt-pure` speaks the protocol through a unix socket
//! only, and breaks when an event arrives. This one is made for programs that watch a host: many
//! calls at the same time on one connection, each with a deadline; events as a stream; a peer that
//! is silent is noticed; and nothing that a peer sends can make it panic or allocate without bound.
//!
//! ```no_run
//! use cobalt_libvirt::{Connection, EventKind, ListDomains, Options};
//! use futures::StreamExt;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let uri = "qemu+unix:///system".parse()?;
//! let libvirt = Connection::open(&uri, &Options::default()).await?;
//! // Events first: what changes while the domains are listed is not missed.
//! let mut events = libvirt.subscribe(&[EventKind::Lifecycle]).await?;
//! for domain in libvirt.domains(ListDomains::ALL).await? {
//!     println!("{}", domain.name);
//! }
//! while let Some(event) = events.next().await {
//!     println!("{event:?}");
//! }
//! println!("{}", libvirt.closed().await);
//! # Ok(())
//! # }
//! ```
#![warn(missing_docs)]

mod admin;
mod connection;
mod domain;
mod driver;
mod error;
mod event;
mod flags;
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod message;
mod migrate;
mod named;
mod options;
mod procedure;
mod secret;
mod stats;
mod transport;
mod typed;
mod uri;
mod xdr;

pub use admin::AdminConnection;
pub use cobalt_wire::{ConnectError, Keepalive};
pub use connection::Connection;
pub use domain::{Domain, DomainState, DomainStatus, Metadata};
pub use error::{Closed, Error, LibvirtError, Supported, codes};
pub use event::{
    Event, EventKind, EventStream, IoErrorAction, Lifecycle, WatchdogAction, lifecycle_detail,
};
pub use flags::{
    Affect, CreateFlags, DefineFlags, DestroyFlags, JobStatsFlags, ListDomains, MigrateFlags,
    RebootFlags, ShutdownFlags, StatsFlags, StatsGroups, UndefineFlags, XmlFlags,
};
pub use host::{DomainCapabilitiesQuery, NodeInfo, Version};
pub use message::FrameError;
pub use migrate::MigrateParams;
pub use options::{Options, Tls};
pub use secret::{Secret, SecretUsage, SecretValue};
pub use stats::{DomainStats, JobStats, JobType};
pub use typed::{TypedParams, TypedValue};
pub use uri::{Driver, Uri, UriError};
pub use xdr::XdrError;
