//! A watch of one object, kept up for as long as anybody looks at it.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::{Backoff, chain};

/// What is known of an object.
#[derive(Debug, Clone)]
pub enum Observed<K> {
    /// The API server has not answered yet; the reason says why.
    Unknown(String),
    /// It does not exist.
    Absent,
    /// It exists and cannot be read; the reason says why.
    Invalid(String),
    /// It exists.
    Present(Arc<K>),
}

impl<K> Observed<K> {
    /// The object, if it is there and readable.
    #[must_use]
    pub fn object(&self) -> Option<&Arc<K>> {
        match self {
            Self::Present(object) => Some(object),
            Self::Unknown(_) | Self::Absent | Self::Invalid(_) => None,
        }
    }
}

/// Watches one object until nobody looks any more. While the API server is away the last known
/// state stays. Managed fields are dropped: nobody reads them, and they are half of the object.
pub async fn watch_object<K>(
    api: Api<DeserializeGuard<K>>,
    name: &str,
    seen: watch::Sender<Observed<K>>,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Default,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = watcher::watcher(api, config).boxed();
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
    let mut listed = false;
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = seen.closed() => return,
        };
        match event {
            Some(Ok(Event::Init)) => listed = false,
            Some(Ok(Event::InitApply(guarded) | Event::Apply(guarded))) => {
                listed = true;
                backoff.reset();
                drop(seen.send_replace(read(guarded)));
            }
            Some(Ok(Event::InitDone)) if listed => backoff.reset(),
            Some(Ok(Event::InitDone | Event::Delete(_))) => {
                backoff.reset();
                drop(seen.send_replace(Observed::Absent));
            }
            Some(Err(error)) => {
                let reason = chain(&error);
                tracing::debug!(name, error = reason, "watch interrupted");
                seen.send_if_modified(|state| {
                    let unknown = matches!(state, Observed::Unknown(_));
                    if unknown {
                        *state = Observed::Unknown(reason);
                    }
                    unknown
                });
                tokio::time::sleep(backoff.next_wait()).await;
            }
            None => return,
        }
    }
}

fn read<K: Resource>(guarded: DeserializeGuard<K>) -> Observed<K> {
    match guarded.0 {
        Ok(mut object) => {
            object.managed_fields_mut().clear();
            Observed::Present(Arc::new(object))
        }
        Err(invalid) => Observed::Invalid(invalid.error),
    }
}
