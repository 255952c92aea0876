//! A request to the API server that ends in time.

use std::time::Duration;

use crate::chain;

/// The answer to a request, or why there is none, in one line.
///
/// # Errors
///
/// When the API server refuses it, is not reached, or does not answer in time.
pub async fn within<T>(
    deadline: Duration,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, String> {
    match tokio::time::timeout(deadline, request).await {
        Ok(answer) => answer.map_err(|error| chain(&error)),
        Err(_) => Err(format!(
            "the API server did not answer within {} s",
            deadline.as_secs()
        )),
    }
}
