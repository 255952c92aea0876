//! Gives the fleet back: takes the operator's finalizers off every Hypervisor of its partition and
//! off the Evictions of these, and changes nothing else. The operator before this one does not know
//! finalizers, and its hosts would never be gone.

use std::collections::BTreeSet;
use std::fmt::Debug;

use anyhow::{Context, bail};
use cobalt_api::eviction::Eviction;
use cobalt_api::hypervisor::Hypervisor;
use cobalt_api::names::finalizers;
use futures::TryStreamExt;
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::act;

const PAGE: u32 = 500;

/// Does it, and says what was done.
///
/// # Errors
///
/// When the fleet cannot be listed, or some finalizer could not be taken off.
pub async fn run(client: Client, selector: &str) -> anyhow::Result<()> {
    let hypervisors: Api<Hypervisor> = Api::all(client.clone());
    let hosts = list(&hypervisors, selector).await;
    let hosts = hosts.context("failed to list the Hypervisors")?;
    let api: Api<Eviction> = Api::all(client);
    let mut evictions = list(&api, "")
        .await
        .context("failed to list the Evictions")?;
    let names: BTreeSet<String> = hosts.iter().map(ResourceExt::name_any).collect();
    evictions.retain(|one| names.contains(&one.spec.hypervisor));
    let failed = release(&hypervisors, &hosts, finalizers::REGISTERED_HOST).await
        + release(&api, &evictions, finalizers::EVICTION_IN_FLIGHT).await;
    if failed > 0 {
        bail!("{failed} objects still have their finalizer: run it again");
    }
    Ok(())
}

/// All objects of a kind that the selector chooses.
async fn list<K>(api: &Api<K>, selector: &str) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let pages = futures::stream::try_unfold(Some(String::new()), |token| async move {
        let Some(token) = token else {
            return Ok(None);
        };
        let mut params = ListParams::default().limit(PAGE);
        params.label_selector = Some(selector.to_owned()).filter(|text| !text.is_empty());
        params.continue_token = Some(token).filter(|token| !token.is_empty());
        let page = api.list(&params).await?;
        let next = page.metadata.continue_.filter(|token| !token.is_empty());
        Ok::<_, kube::Error>(Some((page.items, next)))
    });
    let all: Vec<Vec<K>> = pages.try_collect().await?;
    Ok(all.into_iter().flatten().collect())
}

/// Takes a finalizer off those that have it. Returns how many still have it.
async fn release<K>(api: &Api<K>, objects: &[K], finalizer: &str) -> usize
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let has = |object: &&K| object.finalizers().iter().any(|one| one == finalizer);
    let kind = K::kind(&());
    let (mut released, mut failed) = (0, 0);
    for object in objects.iter().filter(has) {
        match act::take_off(api, object, finalizer).await {
            Ok(()) => released += 1,
            Err(error) => {
                failed += 1;
                let name = object.name_any();
                tracing::warn!(%kind, name, error = error.text(), "not released");
            }
        }
    }
    tracing::info!(%kind, released, "the finalizers are off");
    failed
}
