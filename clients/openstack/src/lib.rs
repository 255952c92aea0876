//! A client of OpenStack as far as CobaltCore needs it: Keystone, Nova, Placement, and a few calls
//! of Glance, Neutron and Cinder.
//!
//! ```text
//!  call -> login (one token for all, renewed early)
//!       -> budget of the service (waits, within the deadline)
//!       -> breaker of the service (refuses while it is open)
//!       -> HTTP -> typed answer, or an error in the service's own words
//! ```
//!
//! What every call keeps to:
//! - One deadline for all of it: the login, the wait for room, retries.
//! - Repeated only if doing it twice is the same as doing it once: GET, DELETE, PUT. A POST is sent
//!   once; whether a failed one was done is [`Error::is_uncertain`]. A 401 is the exception: nothing
//!   was done, so every call logs in anew and is sent a second time.
//! - A host is found by exactly its name. Nova's search for parts of names is never trusted.
//! - What is not known in an answer is passed over; words that are not known are kept.
//! - Lists are read to their end.
//!
//! ```no_run
//! # async fn example() -> cobalt_openstack::Result<()> {
//! use cobalt_openstack::{Client, Config, Source};
//!
//! let client = Client::new(Config::new(Source::environment()));
//! for hypervisor in client.compute().hypervisors().await? {
//!     println!("{} {}", hypervisor.hostname, hypervisor.state);
//! }
//! # Ok(())
//! # }
//! ```

mod breaker;
mod catalog;
mod client;
pub mod compute;
mod credentials;
mod decode;
mod error;
mod gate;
mod http;
mod image;
mod lanes;
mod network;
mod observer;
pub mod placement;
mod query;
mod refusal;
mod service;
mod session;
mod source;
mod volume;

pub use breaker::{BreakerConfig, BreakerState};
pub use client::{Account, Client, Config};
pub use credentials::{
    Credentials, CredentialsError, Identity, Interface, Reference, Scope, Secret,
};
pub use error::{Call, Error, Result, found};
pub use gate::Gate;
pub use image::Image;
pub use network::{Network, Port};
pub use observer::{Observer, Outcome, Silent};
pub use refusal::Refusal;
pub use service::Service;
pub use source::Source;
pub use volume::VolumeType;
