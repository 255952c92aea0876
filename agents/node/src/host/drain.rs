//! The Eviction that empties the host before it goes down: makes it, joins one, cancels it.

use std::time::Duration;

use cobalt_api::duration;
use cobalt_api::eviction::{Eviction, EvictionSpec, SHUTDOWN_REASON};
use cobalt_api::hypervisor::Hypervisor;
use cobalt_api::names::FieldManager;
use cobalt_runtime::within;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::DeserializeGuard;
use kube::{Api, ResourceExt};

use super::shutdown::{self, Candidate};
use crate::context::Context;
use crate::evictions;

/// A shutdown does not wait for long.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long a drain may take where logind does not say how long it waits.
const UNKNOWN_DELAY: Duration = Duration::from_secs(1800);
/// What the schema of an Eviction admits as a deadline.
const LONGEST: Duration = Duration::from_secs(720 * 3600);
/// Evictions in one answer of the API server.
const PAGE: u32 = 500;

/// An Eviction of the whole host that has not ended, and whether it was made now.
///
/// # Errors
///
/// When the API server cannot be asked, or refuses it.
pub async fn ensure(ctx: &Context, delay: Option<Duration>) -> Result<(Eviction, bool), String> {
    let api: Api<Eviction> = Api::all(ctx.client.clone());
    let boot = super::boot_id().await;
    let maintenance = within(DEADLINE, api.get_opt(&ctx.node)).await?;
    if let (Candidate::Join, Some(eviction)) = (
        shutdown::candidate(maintenance.as_ref(), &ctx.node),
        maintenance,
    ) {
        return Ok((eviction, false));
    }
    for name in shutdown::names(&ctx.node, &boot) {
        let existing = within(DEADLINE, api.get_opt(&name)).await?;
        match (shutdown::candidate(existing.as_ref(), &ctx.node), existing) {
            (Candidate::Join, Some(eviction)) => return Ok((eviction, false)),
            (Candidate::Free, _) => {
                let hypervisor = ctx.hypervisor.borrow().object().cloned();
                let new = wanted(&name, &ctx.node, hypervisor.as_deref(), delay);
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

/// The Eviction of a host that goes down. It ends when logind does not wait any more, so that it
/// moves nothing when the host is back.
#[must_use]
pub fn wanted(
    name: &str,
    node: &str,
    hypervisor: Option<&Hypervisor>,
    delay: Option<Duration>,
) -> Eviction {
    let deadline = delay.unwrap_or(UNKNOWN_DELAY).min(LONGEST).as_secs().max(1);
    let spec = EvictionSpec {
        hypervisor: node.to_owned(),
        reason: SHUTDOWN_REASON.to_owned(),
        deadline: Some(duration::format(Duration::from_secs(deadline))),
        ..EvictionSpec::default()
    };
    evictions::eviction(name, spec, hypervisor)
}

/// The names of Evictions that were made because of a shutdown of this host and are not cancelled.
///
/// # Errors
///
/// When the API server cannot be asked, or refuses it.
pub async fn leftovers(ctx: &Context) -> Result<Vec<String>, String> {
    // One that cannot be read is none of ours, and does not hide the others.
    let api: Api<DeserializeGuard<Eviction>> = Api::all(ctx.client.clone());
    let mut names = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = within(DEADLINE, api.list(&page)).await?;
        let ours = list.items.into_iter().filter_map(|guarded| guarded.0.ok());
        let ours = ours.filter(|eviction| shutdown::is_leftover(eviction, &ctx.node));
        names.extend(ours.map(|eviction| eviction.name_any()));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(names),
        }
    }
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

    use super::*;

    #[test]
    fn w67_the_eviction_is_for_the_whole_host_and_belongs_to_its_hypervisor() {
        let mut hypervisor = Hypervisor::new("hv1", Default::default());
        hypervisor.metadata.uid = Some("u".into());
        let labelled = [(labels::ZONE, "z1"), ("something", "else")];
        let labelled = labelled.map(|(label, value)| (label.to_owned(), value.to_owned()));
        hypervisor.metadata.labels = Some(BTreeMap::from(labelled));
        let delay = Some(Duration::from_millis(300_500));
        let eviction = wanted("hv1-0123abcd", "hv1", Some(&hypervisor), delay);
        assert_eq!(eviction.spec.hypervisor, "hv1");
        assert!(eviction.is_for_shutdown());
        let owner = &eviction.owner_references()[0];
        assert_eq!(
            (owner.kind.as_str(), owner.controller),
            ("Hypervisor", None)
        );
        assert_eq!(eviction.labels().len(), 1);
        // Without its Hypervisor it is made all the same.
        let alone = wanted("hv1", "hv1", None, None);
        assert!(alone.owner_references().is_empty());
        assert_eq!(shutdown::candidate(Some(&alone), "hv1"), Candidate::Join);
    }

    #[test]
    fn the_eviction_of_a_shutdown_has_a_deadline_that_the_schema_admits() {
        for (delay, deadline) in [
            (None, "30m"),
            (Some(Duration::ZERO), "1s"),
            (Some(Duration::from_millis(300_500)), "5m"),
            (Some(Duration::from_micros(u64::MAX)), "720h"),
        ] {
            let eviction = wanted("hv1", "hv1", None, delay);
            assert_eq!(eviction.spec.deadline.as_deref(), Some(deadline));
        }
    }

    #[test]
    fn an_eviction_of_another_boot_is_cancelled_and_one_of_others_is_not() {
        let ours = wanted("hv1-0123abcd", "hv1", None, None);
        assert!(shutdown::is_leftover(&ours, "hv1"));
        let mut ended = ours.clone();
        ended.status.get_or_insert_default().outcome =
            Some(cobalt_api::eviction::Outcome::Succeeded);
        assert!(shutdown::is_leftover(&ended, "hv1"), "it holds the host");
        let mut cancelled = ours.clone();
        cancelled.spec.cancel = Some(true);
        let mut maintenance = ours.clone();
        maintenance.spec.reason = "maintenance manual".to_owned();
        for other in [cancelled, maintenance] {
            assert!(!shutdown::is_leftover(&other, "hv1"));
        }
        assert!(!shutdown::is_leftover(&ours, "hv2"));
        // The policy of the chart lets no agent touch the Eviction of a maintenance.
        let old = wanted("hv1", "hv1", None, None);
        assert!(!shutdown::is_leftover(&old, "hv1"));
    }
}
