//! What the commands ask of the API server. Every call has a deadline.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cobalt_api::eviction::Eviction;
use cobalt_api::hypervisor::Hypervisor;
use cobalt_api::names::FieldManager;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::conditions::is_deleted;
use kube::runtime::wait::await_condition;
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(30);
/// How long an Eviction may take to go that has nothing under way any more.
const REMOVAL: Duration = Duration::from_secs(60);
/// How long a watch that has worked may be refused.
const REFUSAL: Duration = Duration::from_secs(60);

/// The kinds that a drain is made of.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub hypervisors: Api<Hypervisor>,
    pub evictions: Api<Eviction>,
}

/// Whether a write has been done, or others were faster and it has to be thought over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Done,
    Outdated,
}

impl Cluster {
    pub fn new(client: Client) -> Self {
        Self {
            hypervisors: Api::all(client.clone()),
            evictions: Api::all(client),
        }
    }

    pub async fn hypervisor(&self, node: &str) -> Result<Hypervisor> {
        let found = answer(self.hypervisors.get_opt(node))
            .await
            .with_context(|| format!("failed to read the Hypervisor \"{node}\""))?;
        found.with_context(|| {
            format!("there is no Hypervisor \"{node}\"; `kubectl get hypervisors` lists them")
        })
    }

    /// The Eviction of this name.
    pub async fn eviction(&self, name: &str) -> Result<Option<Eviction>> {
        answer(self.evictions.get_opt(name))
            .await
            .with_context(|| format!("failed to read the Eviction \"{name}\""))
    }

    /// Every Eviction of a host.
    pub async fn evictions_of(&self, node: &str) -> Result<Vec<Eviction>> {
        let all = answer(self.evictions.list(&ListParams::default()))
            .await
            .context("failed to list the Evictions")?;
        let of_host = |one: &Eviction| one.spec.hypervisor == node;
        Ok(all.items.into_iter().filter(of_host).collect())
    }

    /// Makes an Eviction. None: there is one of this name.
    pub async fn create(&self, eviction: &Eviction) -> Result<Option<Eviction>> {
        let params = PostParams {
            field_manager: Some(FieldManager::Cli.as_str().to_owned()),
            ..PostParams::default()
        };
        match answer(self.evictions.create(&params, eviction)).await {
            Ok(made) => Ok(Some(made)),
            Err(error) if code(&error) == Some(409) => Ok(None),
            Err(error) => Err(error.context("failed to make the Eviction")),
        }
    }

    /// Deletes an Eviction, if it still is that one.
    pub async fn delete(&self, name: &str, uid: &str) -> Result<()> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match answer(self.evictions.delete(name, &params)).await {
            Ok(_) => Ok(()),
            Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(()),
            Err(error) => Err(error.context(format!(
                "failed to delete the Eviction \"{name}\": `kubectl delete evi {name}` does it"
            ))),
        }
    }

    /// Waits until an Eviction that is being deleted is gone.
    pub async fn gone(&self, name: &str, uid: &str) -> Result<()> {
        let gone = await_condition(self.evictions.clone(), name, is_deleted(uid));
        tokio::time::timeout(REMOVAL, gone)
            .await
            .with_context(|| {
                format!(
                    "the earlier Eviction \"{name}\" has not gone within {} s: see whether the \
                     operator runs, then try again",
                    REMOVAL.as_secs()
                )
            })?
            .with_context(|| format!("lost sight of the Eviction \"{name}\""))?;
        Ok(())
    }

    /// Changes a Hypervisor as it was read: what has changed since is not overwritten.
    pub async fn change_hypervisor(&self, node: &str, patch: &Value) -> Result<Written> {
        written(
            answer(
                self.hypervisors
                    .patch(node, &params(), &Patch::Merge(patch)),
            )
            .await,
        )
        .with_context(|| format!("failed to change the Hypervisor \"{node}\""))
    }

    /// Changes an Eviction.
    pub async fn change_eviction(&self, name: &str, patch: &Value) -> Result<Written> {
        written(answer(self.evictions.patch(name, &params(), &Patch::Merge(patch))).await)
            .with_context(|| format!("failed to change the Eviction \"{name}\""))
    }
}

fn params() -> PatchParams {
    PatchParams {
        field_manager: Some(FieldManager::Cli.as_str().to_owned()),
        ..PatchParams::default()
    }
}

fn written<T>(answer: Result<T>) -> Result<Written> {
    match answer {
        Ok(_) => Ok(Written::Done),
        Err(error) if matches!(code(&error), Some(404 | 409)) => Ok(Written::Outdated),
        Err(error) => Err(error),
    }
}

async fn answer<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T> {
    let answer = tokio::time::timeout(DEADLINE, call)
        .await
        .context("the API server does not answer; try again when it does")?;
    Ok(answer?)
}

fn code(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

/// What the failures of a watch mean. One that does not answer is tried again for ever; one that
/// refuses is given up, but not at once if it has worked before: an API server that has just started
/// knows neither rights nor kinds.
#[derive(Debug, Default)]
pub struct Sight {
    has_seen: bool,
    refused_since: Option<Instant>,
}

impl Sight {
    /// It works.
    pub fn sees(&mut self) {
        self.has_seen = true;
        self.refused_since = None;
    }

    /// It has failed. Returns whether it is to be given up.
    pub fn is_lost(&mut self, error: &watcher::Error, now: Instant) -> bool {
        let code = match error {
            watcher::Error::InitialListFailed(kube::Error::Api(status))
            | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            | watcher::Error::WatchFailed(kube::Error::Api(status))
            | watcher::Error::WatchError(status) => Some(status.code),
            _ => None,
        };
        if !matches!(code, Some(401 | 403 | 404)) {
            self.refused_since = None;
            return false;
        }
        let since = *self.refused_since.get_or_insert(now);
        !self.has_seen || now.duration_since(since) >= REFUSAL
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_refusal_is_the_end_at_first_and_after_a_while() {
        let refused = |code| {
            watcher::Error::WatchError(Box::new(Status::failure("no", "No").with_code(code)))
        };
        let begin = Instant::now();
        let later = begin + REFUSAL;
        for code in [401, 403, 404] {
            assert!(Sight::default().is_lost(&refused(code), begin), "{code}");
        }
        let mut sight = Sight::default();
        for code in [410, 429, 500, 503] {
            assert!(!sight.is_lost(&refused(code), begin), "{code}");
        }
        sight.sees();
        assert!(!sight.is_lost(&refused(403), begin));
        assert!(sight.is_lost(&refused(404), later));
        // What works in between, or does not answer, begins it anew.
        sight.sees();
        assert!(!sight.is_lost(&refused(403), later));
        assert!(!sight.is_lost(&refused(503), later + REFUSAL));
        assert!(!sight.is_lost(&refused(403), later + REFUSAL));
    }
}
