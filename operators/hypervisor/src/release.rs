//! Gives the fleet back: takes the operator's finalizer off every Hypervisor of its partition, and
//! changes nothing else. The operator before this one does not know finalizers, and its hosts would never be gone.

use anyhow::{Context, bail};
use cobalt_api::hypervisor::Hypervisor;
use futures::TryStreamExt;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::act;

const PAGE: u32 = 500;

/// Does it, and says what was done.
///
/// # Errors
///
/// When the fleet cannot be listed, or some finalizer could not be taken off.
pub async fn run(client: Client, selector: &str) -> anyhow::Result<()> {
    let api: Api<Hypervisor> = Api::all(client);
    let pages = futures::stream::try_unfold(Some(String::new()), |token| {
        let api = api.clone();
        async move {
            let Some(token) = token else {
                return Ok(None);
            };
            let mut params = ListParams::default().limit(PAGE);
            params.label_selector = Some(selector.to_owned()).filter(|text| !text.is_empty());
            params.continue_token = Some(token).filter(|token| !token.is_empty());
            let page = api.list(&params).await?;
            let next = page.metadata.continue_.filter(|token| !token.is_empty());
            Ok::<_, kube::Error>(Some((page.items, next)))
        }
    });
    let all: Vec<Vec<Hypervisor>> = pages
        .try_collect()
        .await
        .context("failed to list the Hypervisors")?;
    let (mut released, mut failed) = (0, 0);
    for object in all
        .iter()
        .flatten()
        .filter(|object| !object.finalizers().is_empty())
    {
        match act::release(&api, object).await {
            Ok(()) => released += 1,
            Err(error) => {
                failed += 1;
                tracing::warn!(
                    hypervisor = object.name_any(),
                    error = error.text(),
                    "not released"
                );
            }
        }
    }
    tracing::info!(released, "the finalizers are off");
    if failed > 0 {
        bail!("{failed} Hypervisors still have their finalizer: run it again");
    }
    Ok(())
}
