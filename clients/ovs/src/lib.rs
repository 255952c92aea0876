//! An asynchronous client of Open vSwitch and OVN, in Rust alone.
//!
//! A switch has three doors, and none of them is a command whose output has to be parsed:
//! [`ovsdb`] tells what it is made of and how its parts are, as events; [`Unixctl`] takes the
//! commands of `ovs-appctl`; [`openflow`] counts flows and packets. This crate is made for a
//! program that runs on every host: updates go from the bytes of a message straight into typed
//! rows, flows are looked at one by one, every call has a deadline, and nothing that a peer sends
//! can make it panic or allocate without bound.
//!
//! ```no_run
//! use cobalt_ovs::ovsdb::vswitch::{self, Bridge, Port};
//! use cobalt_ovs::ovsdb::{Event, Monitor, Tables};
//! use cobalt_ovs::{Options, Remote};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let remotes = Remote::list("unix:/run/openvswitch/db.sock")?;
//! let tables = Tables::new().table::<Bridge>().table::<Port>();
//! let mut switch = Monitor::new(vswitch::DATABASE, remotes, tables, Options::default());
//! loop {
//!     match switch.next().await {
//!         Event::Down { error, .. } => println!("no switch: {error}"),
//!         _ => println!("{} ports", switch.tables().count::<Port>()),
//!     }
//! }
//! # }
//! ```
#![warn(missing_docs)]

mod error;
mod framing;
#[doc(hidden)]
pub mod fuzzing;
pub mod openflow;
mod options;
pub mod ovsdb;
mod remote;
mod rpc;
mod transport;
mod unixctl;

pub use cobalt_wire::{ConnectError, Identity, Keepalive, Tls};
pub use error::{Closed, Error, OpenflowError, OvsdbError, ProtocolError, Unfit};
pub use framing::FrameError;
pub use options::Options;
pub use remote::{Remote, RemoteError};
pub use unixctl::Unixctl;
