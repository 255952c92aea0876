//! What the clients of line protocols share below the protocol: sockets, TLS, the task that owns a
//! connection, calls with a deadline, and the keepalive.
#![warn(missing_docs)]

mod error;
mod keepalive;
mod task;
mod tls;
mod transport;

pub use error::{Closed, ConnectError};
pub use keepalive::{Keepalive, Watch};
pub use task::{Caller, Task, Unanswered};
pub use tls::{AnotherCertificate, Identity, Tls, pinned};
pub use transport::{Input, Outgoing, Output, read, tcp, unix, within};
