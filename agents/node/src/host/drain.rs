//! The Eviction that empties the host before it goes down: makes it, joins one, cancels it.

use std::time::Duration;

use cobalt_api::eviction::{Eviction, EvictionSpec};
use cobalt_api::hypervisor::Hypervisor;
use cobalt_api::names::FieldManager;
use cobalt_runtime::within;
use kube::Api;
use kube::api::{Patch, PatchParams};

use super::shutdown::{self, Candidate, EVICTION_REASON};
use crate::context::Context;
use crate::evictions;

/// A shutdown does not wait for long.
const DEADLINE: Duration = Duration::from_secs(5);

/// An Eviction of the whole host that has not ended, and whether it was made now.
///
/// # Errors
///
/// When the API server cannot be asked, or refuses it.
pub async fn ensure(ctx: &Context) -> Result<(Eviction, bool), String> {
    let api: Api<Eviction> = Api::all(ctx.client.clone());
    let boot = super::boot_id().await;
    for name in shutdown::names(&ctx.node, &boot) {
        let existing = within(DEADLINE, api.get_opt(&name)).await?;
        match (shutdown::candidate(existing.as_ref(), &ctx.node), existing) {
            (Candidate::Join, Some(eviction)) => return Ok((eviction, false)),
            (Candidate::Free, _) => {
                let hypervisor = ctx.hypervisor.borrow().object().cloned();
                let new = wanted(&name, &ctx.node, hypervisor.as_deref());
                // One that somebody made in the meantime is seen with the next try.
                return Ok((
                    within(DEADLINE, api.create(&evictions::create_params(), &new)).await?,
                    true,
                ));
            }
            (Candidate::Join | Candidate::Taken, _) => {}
        }
    }
    Err("every name for an Eviction of this host is taken: delete those that have ended".to_owned())
}

/// The Eviction of a host that goes down.
#[must_use]
pub fn wanted(name: &str, node: &str, hypervisor: Option<&Hypervisor>) -> Eviction {
    let spec = EvictionSpec {
        hypervisor: node.to_owned(),
        reason: EVICTION_REASON.to_owned(),
        ..EvictionSpec::default()
    };
    evictions::eviction(name, spec, hypervisor)
}

/// Asks an Eviction to stop. One that is gone needs no asking.
///
/// # Errors
///
/// When the API server cannot be asked, or refuses it.
pub async fn cancel(ctx: &Context, name: &str) -> Result<(), String> {
    let api: Api<Eviction> = Api::all(ctx.client.clone());
    let params = PatchParams {
        field_manager: Some(FieldManager::NodeAgent.as_str().to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(serde_json::json!({ "spec": { "cancel": true } }));
    let asked = async {
        match api.patch(name, &params, &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop),
        }
    };
    within(DEADLINE, asked).await
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cobalt_api::names::labels;
    use kube::ResourceExt;

    use super::*;

    #[test]
    fn w67_the_eviction_is_for_the_whole_host_and_belongs_to_its_hypervisor() {
        let mut hypervisor = Hypervisor::new("hv1", Default::default());
        hypervisor.metadata.uid = Some("u".into());
        let labelled = [(labels::ZONE, "z1"), ("something", "else")];
        let labelled = labelled.map(|(label, value)| (label.to_owned(), value.to_owned()));
        hypervisor.metadata.labels = Some(BTreeMap::from(labelled));
        let eviction = wanted("hv1-0123abcd", "hv1", Some(&hypervisor));
        assert_eq!(eviction.spec.hypervisor, "hv1");
        assert!(eviction.spec.instances.is_empty() && shutdown::is_ours(&eviction));
        let owner = &eviction.owner_references()[0];
        assert_eq!(
            (owner.kind.as_str(), owner.controller),
            ("Hypervisor", None)
        );
        assert_eq!(eviction.labels().len(), 1);
        // Without its Hypervisor it is made all the same.
        let alone = wanted("hv1", "hv1", None);
        assert!(alone.owner_references().is_empty());
        assert_eq!(shutdown::candidate(Some(&alone), "hv1"), Candidate::Join);
    }
}
