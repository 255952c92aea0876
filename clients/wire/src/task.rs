//! The task that owns a connection, and calls to it with a deadline.

use std::fmt;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot, watch};

use crate::{Closed, Output};

/// How long the end of the connection may take.
const GOODBYE: Duration = Duration::from_secs(1);

/// The one task that reads and writes a connection.
pub trait Task: Send + 'static {
    /// What callers send it.
    type Call: Send;
    /// How a peer can break the protocol.
    type Broken: Clone + fmt::Display + Send + Sync + 'static;

    /// Works until the connection is over, and says why.
    fn run(&mut self) -> impl Future<Output = Closed<Self::Broken>> + Send;

    /// Drops everything else, so that callers and readers learn of the end.
    fn into_output(self) -> Output;
}

/// Calls a task. Clones share it.
pub struct Caller<T: Task> {
    calls: mpsc::Sender<T::Call>,
    closed: watch::Receiver<Option<Closed<T::Broken>>>,
    timeout: Duration,
}

/// Why a call has no answer.
#[derive(Debug)]
pub enum Unanswered<P> {
    /// There was none within this time. The peer may still do what it was asked for.
    Timeout(Duration),
    /// The task dropped the call, because the connection is over if there is a reason for that.
    Dropped(Option<Closed<P>>),
}

impl<T: Task> Caller<T> {
    /// Starts the task, which takes what is sent to `calls`.
    pub fn start(mut task: T, calls: mpsc::Sender<T::Call>, timeout: Duration) -> Self {
        let (closed, seen) = watch::channel(None);
        #[allow(
            clippy::disallowed_methods,
            reason = "it ends with its last caller, and says why it ended"
        )]
        tokio::spawn(async move {
            let why = task.run().await;
            tracing::debug!(%why, "connection ended");
            // Callers and readers ask for the reason as soon as the task drops what they wait for.
            closed.send_replace(Some(why));
            let mut output = task.into_output();
            // A goodbye is a courtesy: nobody cares how it goes.
            drop(tokio::time::timeout(GOODBYE, output.shutdown()).await);
        });
        Self {
            calls,
            closed: seen,
            timeout,
        }
    }

    /// The same task with another deadline for each call.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self {
            calls: self.calls.clone(),
            closed: self.closed.clone(),
            timeout,
        }
    }

    /// Makes a call that answers to the sender, and waits for the answer.
    pub async fn ask<A>(
        &self,
        call: impl FnOnce(oneshot::Sender<A>) -> T::Call,
    ) -> Result<A, Unanswered<T::Broken>> {
        let (reply, answer) = oneshot::channel();
        let call = call(reply);
        let asking = async {
            // A task that has ended drops the call, and with it the way of its answer.
            drop(self.calls.send(call).await);
            answer.await
        };
        match tokio::time::timeout(self.timeout, asking).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(Unanswered::Dropped(self.why_closed())),
            Err(_) => Err(Unanswered::Timeout(self.timeout)),
        }
    }

    /// Why the connection is over, if it is.
    pub fn why_closed(&self) -> Option<Closed<T::Broken>> {
        match &*self.closed.borrow() {
            Some(why) => Some(why.clone()),
            // The task always says why, unless the runtime was taken away from under it.
            None if self.closed.has_changed().is_err() => Some(Closed::Local),
            None => None,
        }
    }

    /// Waits until the connection is over.
    pub async fn closed(&self) -> Closed<T::Broken> {
        let mut closed = self.closed.clone();
        match closed.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or(Closed::Local),
            Err(_) => Closed::Local,
        }
    }
}

impl<T: Task> Clone for Caller<T> {
    fn clone(&self) -> Self {
        self.with_timeout(self.timeout)
    }
}

impl<T: Task> fmt::Debug for Caller<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let closed = self.why_closed().map(|why| why.to_string());
        f.debug_struct("Caller").field("closed", &closed).finish()
    }
}
