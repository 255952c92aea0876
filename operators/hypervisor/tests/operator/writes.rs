//! Counts writes: every version of this test's Hypervisors, as a watch shows them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cobalt_api::eviction::Eviction;
use cobalt_api::hypervisor::Hypervisor;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};

use crate::support::{Site, until};

/// Every write since it was made.
pub struct Writes {
    api: Api<Hypervisor>,
    selector: String,
    /// The versions at its beginning.
    before: BTreeMap<String, String>,
    seen: Arc<Mutex<Vec<Hypervisor>>>,
    watching: tokio::task::JoinHandle<()>,
}

impl Writes {
    pub async fn of(site: &Site) -> Self {
        let (api, selector) = (site.hypervisors(), site.selector());
        let list = api
            .list(&ListParams::default().labels(&selector))
            .await
            .unwrap();
        let version = list.metadata.resource_version.clone().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (watched, into) = (api.clone(), Arc::clone(&seen));
        let params = WatchParams::default().labels(&selector).timeout(290);
        let watching = tokio::spawn(async move {
            let events = watched.watch(&params, &version).await.unwrap();
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.next().await {
                if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event.unwrap() {
                    into.lock().unwrap().push(object);
                }
            }
        });
        Self {
            before: versions(&list.items),
            api,
            selector,
            seen,
            watching,
        }
    }

    /// What was written of an object until now, in order.
    pub async fn until_now(&self, name: &str) -> Vec<Hypervisor> {
        let newest = self.api.get(name).await.unwrap().resource_version();
        until("the watch has shown the newest", || async {
            let seen = self.seen.lock().unwrap();
            let last = seen.iter().rfind(|one| one.name_any() == name);
            let last = last.and_then(ResourceExt::resource_version);
            let last = last.or_else(|| self.before.get(name).cloned());
            (last == newest).then_some(())
        })
        .await;
        let seen = self.seen.lock().unwrap();
        let of = seen.iter().filter(|one| one.name_any() == name);
        of.cloned().collect()
    }

    /// How often any object of this test was written.
    pub async fn count(&self) -> usize {
        let params = ListParams::default().labels(&self.selector);
        let list = self.api.list(&params).await.unwrap();
        let mut count = 0;
        for object in &list.items {
            count += self.until_now(&object.name_any()).await.len();
        }
        count
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn versions<K: ResourceExt>(all: &[K]) -> BTreeMap<String, String> {
    let version = |one: &K| (one.name_any(), one.resource_version().unwrap_or_default());
    all.iter().map(version).collect()
}

/// The versions of all that this test has: Nodes, Hypervisors and Evictions.
pub async fn all_versions(site: &Site) -> BTreeMap<String, String> {
    let params = ListParams::default().labels(&site.selector());
    let nodes: Api<Node> = site.nodes();
    let evictions: Api<Eviction> = site.evictions();
    let all = [
        ("Node", versions(&nodes.list(&params).await.unwrap().items)),
        (
            "Hypervisor",
            versions(&site.hypervisors().list(&params).await.unwrap().items),
        ),
        (
            "Eviction",
            versions(&evictions.list(&params).await.unwrap().items),
        ),
    ];
    all.into_iter()
        .flat_map(|(kind, versions)| {
            versions
                .into_iter()
                .map(move |(name, version)| (format!("{kind} {name}"), version))
        })
        .collect()
}
