//! Why there is no connection, and why one is over.

use std::fmt;
use std::io;
use std::time::Duration;

use thiserror::Error;

/// Why there is no connection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address cannot be reached.
    #[error("failed to connect to {address}")]
    Unreachable {
        /// Where to.
        address: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Our certificates cannot be used, or one side does not accept those of the other.
    #[error("TLS with {address} failed: {problem}")]
    Tls {
        /// With whom, or with which file.
        address: String,
        /// Why.
        problem: String,
    },
    /// The server did not take the connection in time.
    #[error("{address} did not take the connection within {after:?}")]
    Timeout {
        /// Where to.
        address: String,
        /// How long it was tried.
        after: Duration,
    },
}

impl ConnectError {
    /// TLS with this server, or with this file, has failed.
    pub fn tls(address: impl fmt::Display, problem: impl fmt::Display) -> Self {
        Self::Tls {
            address: address.to_string(),
            problem: problem.to_string(),
        }
    }
}

/// Why a connection is over. `P` is how a peer can break the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Closed<P> {
    /// This side closed it.
    #[error("it was closed by this side")]
    Local,
    /// The peer closed it.
    #[error("the server closed it")]
    Peer,
    /// The peer closed it in the middle of a message.
    #[error("the server closed it in the middle of a message")]
    PeerMidMessage,
    /// The network or the system ended it.
    #[error("{0}")]
    Io(String),
    /// The peer did not answer when it was asked whether it is there.
    #[error(
        "the server has been silent for {count} questions, one every {interval:?}, whether it is there"
    )]
    Keepalive {
        /// The time between two questions.
        interval: Duration,
        /// How many of them remained without an answer.
        count: u32,
    },
    /// The peer does not read.
    #[error("the server does not read what it is asked")]
    Deaf,
    /// The peer sent bytes that are no message. A listener of another protocol does that.
    #[error("the server broke the protocol: {0}")]
    Protocol(P),
}

impl<P> Closed<P> {
    /// Reading or writing has failed, between two messages or in the middle of one.
    pub fn lost(error: &io::Error, between_messages: bool) -> Self {
        match error.kind() {
            // What a peer that was killed looks like, depending on the moment.
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset => {
                if between_messages {
                    Self::Peer
                } else {
                    Self::PeerMidMessage
                }
            }
            _ => Self::Io(error.to_string()),
        }
    }
}
