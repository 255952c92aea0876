//! What can go wrong, in the words of the service that refused.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use crate::credentials::CredentialsError;
use crate::refusal::Refusal;
use crate::service::Service;

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Which call it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Of which service.
    pub service: Service,
    /// What it does, from a closed set: "list services".
    pub name: &'static str,
    /// Path below the service's endpoint, without the query.
    pub path: String,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {})", self.name, self.service, self.path)
    }
}

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The service answered, and refused.
    #[error("failed to {call}: {refusal}")]
    Refused {
        /// Which call.
        call: Call,
        /// What the service said.
        refusal: Box<Refusal>,
    },
    /// There is no connection, or it broke.
    #[error("failed to {call}: {}", if *.sent { "the connection broke" } else { "no connection" })]
    Unreachable {
        /// Which call.
        call: Call,
        /// Whether the request may have arrived: then whether the service acted is unknown.
        sent: bool,
        /// Why.
        source: Source,
    },
    /// The deadline passed. Whether the service acted is unknown.
    #[error("failed to {call}: no answer within {}", seconds(*.after))]
    TimedOut {
        /// Which call.
        call: Call,
        /// How long it took in all.
        after: Duration,
    },
    /// The deadline passed before the budget of calls had room. The service was not asked.
    #[error("failed to {call}: {budget} other calls of this service were under way for {}", seconds(*.after))]
    Busy {
        /// Which call.
        call: Call,
        /// How many calls may be under way.
        budget: usize,
        /// How long it waited.
        after: Duration,
    },
    /// The service has failed again and again and is left alone for a while. It was not asked.
    #[error("failed to {call}: {} has failed since {since}: {why}", .call.service)]
    Open {
        /// Which call.
        call: Call,
        /// Since when it fails.
        since: Timestamp,
        /// How it failed last.
        why: String,
        /// When it is asked again.
        retry_in: Duration,
    },
    /// It would change something, and the client may not any more. The service was not asked.
    #[error("failed to {call}: this process may not change anything any more")]
    NotAllowed {
        /// Which call.
        call: Call,
    },
    /// The answer cannot be read.
    #[error("failed to {call}: failed to read the answer{}", in_request(.request_id.as_deref()))]
    Malformed {
        /// Which call.
        call: Call,
        /// What to look for in the service's log.
        request_id: Option<String>,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The answer is larger than is ever right.
    #[error("failed to {call}: the answer has more than {limit} bytes")]
    TooLarge {
        /// Which call.
        call: Call,
        /// The limit.
        limit: usize,
    },
    /// A list did not come to its end.
    #[error("failed to {call}: the list does not end: page {page} leads to a page that was read")]
    Endless {
        /// Which call.
        call: Call,
        /// The page.
        page: usize,
    },
    /// The credentials are not complete or cannot be read.
    #[error("failed to read the OpenStack credentials")]
    Credentials(#[from] CredentialsError),
    /// The catalog has no such endpoint.
    #[error("the catalog has no {interface} endpoint of {service} in {region}; it has: {known}")]
    NoEndpoint {
        /// Of which service.
        service: Service,
        /// Which interface was asked for.
        interface: &'static str,
        /// In which region.
        region: String,
        /// What there is instead.
        known: String,
    },
    /// A name that is not the name of one thing.
    #[error("there are {count} {what} named {name:?}; use the id of one of them")]
    Ambiguous {
        /// Of what kind.
        what: &'static str,
        /// The name.
        name: String,
        /// How many have it.
        count: usize,
    },
    /// What was given cannot be put into a request.
    #[error("failed to {call}: the request is not valid")]
    Invalid {
        /// Which call.
        call: Call,
        /// Why.
        source: Source,
    },
}

impl Error {
    /// What the service said, if it said something.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    /// The HTTP status, if there was an answer.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        self.refusal().map(|refusal| refusal.status)
    }

    /// What to look for in the service's log.
    #[must_use]
    pub fn request_id(&self) -> Option<&str> {
        match self {
            Self::Refused { refusal, .. } => refusal.request_id.as_deref(),
            Self::Malformed { request_id, .. } => request_id.as_deref(),
            _ => None,
        }
    }

    /// There is no such thing.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }

    /// It does not fit the state of things.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.status() == Some(409)
    }

    /// Somebody else changed it since it was read: read again and retry.
    #[must_use]
    pub fn is_generation_conflict(&self) -> bool {
        self.refusal().is_some_and(Refusal::is_generation_conflict)
    }

    /// The credentials, or a token that was just made from them, are not accepted.
    #[must_use]
    pub fn is_unauthorized(&self) -> bool {
        self.status() == Some(401)
    }

    /// The user may not do that.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.status() == Some(403)
    }

    /// When it makes sense to come back, if that is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { refusal, .. } => refusal.retry_after,
            Self::Open { retry_in, .. } => Some(*retry_in),
            _ => None,
        }
    }

    /// Whether the same call may succeed later without anything being changed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Refused { refusal, .. } => {
                matches!(refusal.status, 408 | 429 | 500..=599) || self.is_generation_conflict()
            }
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::Busy { .. }
            | Self::Open { .. } => true,
            _ => false,
        }
    }

    /// Whether the service may have acted although the call failed. Never true for what the
    /// service refused or was not asked.
    #[must_use]
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::Unreachable { sent, .. } => *sent,
            Self::TimedOut { .. } | Self::TooLarge { .. } | Self::Malformed { .. } => true,
            Self::Refused { refusal, .. } => {
                refusal.status >= 500 && !refusal.is_generation_conflict()
            }
            _ => false,
        }
    }
}

/// Turns "there is no such thing" into `None`.
pub fn found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn in_request(id: Option<&str>) -> String {
    id.map(|id| format!(" to {id}")).unwrap_or_default()
}
