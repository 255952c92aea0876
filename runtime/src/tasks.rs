//! The tasks of a process: each has a name, and none ends unnoticed.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// Tasks that run until the process ends.
#[derive(Debug, Default)]
pub struct Tasks {
    all: JoinSet<()>,
    names: Vec<(Id, &'static str)>,
}

impl Tasks {
    /// Starts a task.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let id = self.all.spawn(task).id();
        self.names.push((id, name));
    }

    /// Runs until it is cancelled, then gives the tasks time to end in order. A task that ends
    /// before is a bug, so the process ends with it and is started anew: `Err` names the task.
    ///
    /// # Errors
    ///
    /// When a task has ended without being told to.
    pub async fn run(mut self, cancel: CancellationToken, grace: Duration) -> Result<(), String> {
        let early = tokio::select! {
            // First: tasks that end because they were told to may already have done so.
            biased;
            () = cancel.cancelled() => None,
            ended = self.all.join_next_with_id() => ended,
        };
        cancel.cancel();
        let mut left = self.names.clone();
        let drain = async {
            while let Some(ended) = self.all.join_next_with_id().await {
                left.retain(|(id, _)| *id != id_of(&ended));
            }
        };
        if tokio::time::timeout(grace, drain).await.is_err() {
            let names: Vec<&str> = left.into_iter().map(|(_, name)| name).collect();
            tracing::warn!(tasks = names.join(", "), "some tasks did not end in time");
        }
        let Some(early) = early else {
            return Ok(());
        };
        let mut names = self.names.iter();
        let name = names.find(|(id, _)| *id == id_of(&early));
        let name = name.map_or("", |(_, name)| *name);
        match early {
            Ok(_) => Err(format!("the task \"{name}\" has ended by itself")),
            Err(error) => Err(format!("the task \"{name}\" has failed: {error}")),
        }
    }
}

fn id_of(ended: &Result<(Id, ()), JoinError>) -> Id {
    match ended {
        Ok((id, ())) => *id,
        Err(error) => error.id(),
    }
}

/// A token that is cancelled by SIGTERM or SIGINT.
///
/// # Errors
///
/// When signals cannot be received.
pub fn shutdown_signal() -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancel = token.clone();
    #[allow(
        clippy::disallowed_methods,
        reason = "it waits for a signal as long as the process lives"
    )]
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("told to end");
        cancel.cancel();
    });
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_task_that_ends_by_itself_is_named() {
        let mut tasks = Tasks::default();
        tasks.spawn("short", async {});
        let ended = tasks.run(CancellationToken::new(), GRACE).await;
        assert!(ended.unwrap_err().contains("\"short\""));
    }

    #[tokio::test]
    async fn tasks_that_were_told_to_end_have_not_ended_by_themselves() {
        let cancel = CancellationToken::new();
        let mut tasks = Tasks::default();
        tasks.spawn("obedient", cancel.clone().cancelled_owned());
        cancel.cancel();
        // It has ended before anybody looks.
        tokio::task::yield_now().await;
        assert_eq!(tasks.run(cancel, GRACE).await, Ok(()));
    }
}
