//! What can go wrong.

use std::fmt;
use std::time::Duration;

use cobalt_wire::ConnectError;
use serde::Deserialize;
use thiserror::Error;

use crate::framing::FrameError;
use crate::openflow::WireError;

/// Why a connection is over.
pub type Closed = cobalt_wire::Closed<ProtocolError>;

/// How a peer broke the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// It sent something else than JSON-RPC.
    #[error(transparent)]
    JsonRpc(#[from] FrameError),
    /// It sent something else than OpenFlow.
    #[error(transparent)]
    OpenFlow(#[from] WireError),
}

/// What an OVSDB server said when it refused something.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct OvsdbError {
    /// The kind of error, in a few words that stay the same: `constraint violation`.
    pub error: String,
    /// What exactly is wrong.
    #[serde(default)]
    pub details: Option<String>,
}

impl OvsdbError {
    /// The server is older than the method.
    pub fn is_unknown_method(&self) -> bool {
        self.error == "unknown method"
    }

    /// The server does not have the database, or does not have it yet.
    pub fn is_unknown_database(&self) -> bool {
        self.error == "unknown database"
    }
}

impl fmt::Display for OvsdbError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.details {
            Some(details) => write!(f, "{}: {details}", self.error),
            None => f.write_str(&self.error),
        }
    }
}

/// What a switch said when it refused an OpenFlow request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenflowError {
    /// The kind of error (`ofp_error_type`).
    pub kind: u16,
    /// Which of its kind.
    pub code: u16,
}

impl fmt::Display for OpenflowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            0 => "no common version",
            1 => "bad request",
            2 => "bad action",
            3 => "bad instruction",
            4 => "bad match",
            _ => return write!(f, "OpenFlow error {}/{}", self.kind, self.code),
        };
        write!(f, "{kind} (OpenFlow error {}/{})", self.kind, self.code)
    }
}

/// Why a server of a database is not the one to stay with.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unfit {
    /// It does not have the database.
    #[error("it does not have the database {0}")]
    NoDatabase(String),
    /// It is cut off from the other members of the cluster.
    #[error("it is cut off from the cluster")]
    Disconnected,
    /// It is a follower, and the leader is wanted.
    #[error("it is not the leader")]
    Follower,
    /// It has not caught up with what has been read from another member.
    #[error("it is behind the other members (at {index}, and {seen} has been seen)")]
    Behind {
        /// Where it is.
        index: u64,
        /// What has been seen elsewhere.
        seen: u64,
    },
}

/// What can go wrong.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no connection to be had, or the certificates are of no use.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// There is no process to talk to, as far as its files tell.
    #[error("{program} does not run: {problem}")]
    NotRunning {
        /// Which program.
        program: String,
        /// How that is known.
        problem: String,
    },
    /// The server did not answer in time. It may still do what it was asked for.
    #[error("no answer within {after:?} ({call})")]
    Timeout {
        /// What it was asked for.
        call: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// The connection is over.
    #[error("the connection is over: {0}")]
    Closed(Closed),
    /// An answer is not what the protocol says.
    #[error("the answer cannot be read ({call}): {problem}")]
    Protocol {
        /// What was asked.
        call: String,
        /// What is wrong with the answer.
        problem: String,
    },
    /// The OVSDB server refused.
    #[error("{error} ({call})")]
    Ovsdb {
        /// What it was asked for.
        call: String,
        /// What it said.
        error: OvsdbError,
    },
    /// The process refused a unixctl command.
    #[error("{text} ({command})")]
    Unixctl {
        /// What it was asked for.
        command: String,
        /// What it said.
        text: String,
    },
    /// The switch refused an OpenFlow request.
    #[error("{error} ({call})")]
    Openflow {
        /// What it was asked for.
        call: &'static str,
        /// What it said.
        error: OpenflowError,
    },
    /// The server is not the one to stay with; another may be.
    #[error("{remote} is of no use: {why}")]
    Unfit {
        /// Which server.
        remote: String,
        /// Why.
        why: Unfit,
    },
    /// The caller asked for something that cannot be sent.
    #[error("{0}")]
    BadArgument(String),
}

impl Error {
    /// The connection is over; a new one may work.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed(_))
    }

    /// There was no answer in time.
    pub fn is_timeout(&self) -> bool {
        matches!(
            self,
            Self::Timeout { .. } | Self::Connect(ConnectError::Timeout { .. })
        )
    }

    /// What the OVSDB server said.
    pub fn ovsdb(&self) -> Option<&OvsdbError> {
        match self {
            Self::Ovsdb { error, .. } => Some(error),
            _ => None,
        }
    }

    pub(crate) fn protocol(call: &str, problem: impl fmt::Display) -> Self {
        Self::Protocol {
            call: call.to_owned(),
            problem: problem.to_string(),
        }
    }
}
