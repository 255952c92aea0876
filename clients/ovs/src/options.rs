//! How a connection behaves: deadlines, keepalive, bounds, certificates.

use std::time::Duration;

use cobalt_wire::{Keepalive, Tls};

/// How a connection behaves, to any of the servers.
///
/// ```
/// use std::time::Duration;
/// use cobalt_ovs::Options;
///
/// let options = Options { call_timeout: Duration::from_secs(2), ..Options::default() };
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    /// How long it may take until the server has taken the connection.
    pub connect_timeout: Duration,
    /// How long each call may take, the time in the queue included.
    pub call_timeout: Duration,
    /// Whether and how a silent OVSDB server is noticed.
    pub keepalive: Option<Keepalive>,
    /// How long a JSON message may be. A longer one closes the connection.
    pub max_message: usize,
    /// Certificates, for `ssl` remotes.
    pub tls: Option<Tls>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_secs(10),
            keepalive: Some(Keepalive::default()),
            max_message: 64 * 1024 * 1024,
            tls: None,
        }
    }
}
