//! What happens on the wire, for metrics. No metrics library is needed for it.

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::service::Service;

/// How one request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// A success.
    Answered,
    /// A refusal with this status.
    Refused(u16),
    /// No answer before the deadline.
    TimedOut,
    /// No connection, or it broke.
    Unreachable,
    /// Not sent: the budget of calls had no room before the deadline.
    Busy,
    /// Not sent: the breaker is open.
    Open,
    /// Not sent: it would change something, and the client may not any more.
    NotAllowed,
    /// The answer was too large.
    TooLarge,
    /// Not sent: it is not a valid request.
    Invalid,
}

impl Outcome {
    /// A word from a closed set, for a label: the status of a refusal is reduced to its class.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused(401) => "unauthorized",
            Self::Refused(404) => "not_found",
            Self::Refused(409) => "conflict",
            Self::Refused(429) => "throttled",
            Self::Refused(500..) => "server_error",
            Self::Refused(_) => "refused",
            Self::TimedOut => "timed_out",
            Self::Unreachable => "unreachable",
            Self::Busy => "busy",
            Self::Open => "open",
            Self::NotAllowed => "not_allowed",
            Self::TooLarge => "too_large",
            Self::Invalid => "invalid",
        }
    }

    pub(crate) fn of<T>(result: &Result<T, Error>) -> Self {
        match result {
            Ok(_) => Self::Answered,
            Err(Error::Refused { refusal, .. }) => Self::Refused(refusal.status),
            Err(Error::TimedOut { .. }) => Self::TimedOut,
            Err(Error::Busy { .. }) => Self::Busy,
            Err(Error::Open { .. }) => Self::Open,
            Err(Error::NotAllowed { .. }) => Self::NotAllowed,
            Err(Error::TooLarge { .. }) => Self::TooLarge,
            Err(Error::Unreachable { .. }) => Self::Unreachable,
            Err(_) => Self::Invalid,
        }
    }
}

/// Is told about each request: every attempt and every page is one.
///
/// Called from the task that makes the call, so it must not block.
pub trait Observer: Send + Sync + fmt::Debug {
    /// A request ended. `call` is from a closed set, such as "list services".
    fn on_call(&self, service: Service, call: &'static str, outcome: Outcome, duration: Duration);
}

/// Nobody listens.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {
    fn on_call(&self, _: Service, _: &'static str, _: Outcome, _: Duration) {}
}
