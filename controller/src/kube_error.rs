//! One error for every request to the Kubernetes API, by what the caller can do about it.

use std::time::Duration;

/// Why a request to the Kubernetes API did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum KubeError {
    /// The object, or its kind, does not exist.
    #[error("failed to {request}: not found")]
    NotFound {
        /// What was asked for, as in "patch Pod a/b".
        request: String,
        /// The API server's answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// Somebody else was faster, or owns the field, or an object of this name exists.
    #[error("failed to {request}: conflict")]
    Conflict {
        /// What was asked for.
        request: String,
        /// The API server's answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// The account lacks the right, or an admission policy refuses it.
    #[error("failed to {request}: forbidden")]
    Forbidden {
        /// What was asked for.
        request: String,
        /// The API server's answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// The same content would be refused again.
    #[error("failed to {request}: refused as invalid")]
    Invalid {
        /// What was asked for.
        request: String,
        /// The API server's answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server was not reached, is overloaded, or failed.
    #[error("failed to {request}: the API server is unavailable")]
    Unavailable {
        /// What was asked for.
        request: String,
        /// What happened.
        #[source]
        source: Box<kube::Error>,
    },
    /// The deadline passed. Whether the API server carried the request out is not known.
    #[error("failed to {request}: no answer from the API server within {} s", .after.as_secs())]
    Timeout {
        /// What was asked for.
        request: String,
        /// The deadline.
        after: Duration,
    },
}

impl KubeError {
    /// Sorts an error of kube by what the caller can do about it.
    #[must_use]
    pub fn new(request: &str, error: kube::Error) -> Self {
        let code = match &error {
            kube::Error::Api(status) => Some(status.code),
            _ => None,
        };
        let (request, source) = (request.to_owned(), Box::new(error));
        match code {
            Some(404) => Self::NotFound { request, source },
            Some(409) => Self::Conflict { request, source },
            Some(401 | 403) => Self::Forbidden { request, source },
            // Too many requests, and a timeout on the server's side, pass.
            Some(408 | 429) => Self::Unavailable { request, source },
            Some(400..=499) => Self::Invalid { request, source },
            _ => Self::Unavailable { request, source },
        }
    }

    /// One word for metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not_found",
            Self::Conflict { .. } => "conflict",
            Self::Forbidden { .. } => "forbidden",
            Self::Invalid { .. } => "invalid",
            Self::Unavailable { .. } => "unavailable",
            Self::Timeout { .. } => "timeout",
        }
    }
}

/// Sends a request with a deadline. `what` names it in errors: "patch Pod a/b".
///
/// # Errors
///
/// When the API server refuses it, is not reached, or does not answer in time.
pub async fn call<T>(
    what: &str,
    deadline: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, KubeError> {
    match tokio::time::timeout(deadline, request).await {
        Ok(answer) => answer.map_err(|error| KubeError::new(what, error)),
        Err(_) => Err(KubeError::Timeout {
            request: what.to_owned(),
            after: deadline,
        }),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn answers_are_sorted_by_what_the_caller_can_do() {
        for (code, reason) in [
            (400, "invalid"),
            (401, "forbidden"),
            (403, "forbidden"),
            (404, "not_found"),
            (408, "unavailable"),
            (409, "conflict"),
            (410, "invalid"),
            (422, "invalid"),
            (429, "unavailable"),
            (500, "unavailable"),
            (503, "unavailable"),
        ] {
            let status = Status {
                code,
                ..Status::default()
            };
            let error = KubeError::new("patch Pod a/b", kube::Error::Api(Box::new(status)));
            assert_eq!(error.reason(), reason, "{code}");
            assert!(error.to_string().starts_with("failed to patch Pod a/b: "));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_an_answer_ends_at_its_deadline() {
        let never = std::future::pending::<kube::Result<()>>();
        let error = call("list Pods", Duration::from_secs(3), never).await;
        assert_eq!(error.unwrap_err().reason(), "timeout");
    }
}
