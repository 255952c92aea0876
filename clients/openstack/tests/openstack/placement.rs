//! The real Placement: traits of many owners, allocations, candidates.

use std::collections::BTreeSet;

use cobalt_openstack::found;
use cobalt_openstack::placement::{Allocation, CandidateQuery, ConsumerAllocations, Traits};

use crate::lab::{light, until};

#[tokio::test(flavor = "multi_thread")]
async fn traits_of_others_are_kept_while_many_change_them() {
    let light = light().await;
    let client = light.client();
    let provider = client
        .placement()
        .provider_named("traits1")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        client
            .placement()
            .provider(&provider.uuid)
            .await
            .unwrap()
            .name,
        "traits1"
    );
    // Nova marks a disabled host by a trait. (It gives up for a while if others write at the same
    // time, so it goes first.)
    let compute = client.compute();
    let service = compute.service_of("traits1").await.unwrap().unwrap();
    compute.disable_service(&service.id, "test").await.unwrap();
    let before = until("Nova marked it", || async {
        let traits = client.placement().traits(&provider.uuid).await.unwrap();
        let marked = traits.traits.contains("COMPUTE_STATUS_DISABLED");
        if marked { Ok(traits) } else { Err(traits) }
    })
    .await;
    assert!(before.traits.contains("COMPUTE_NODE"));

    let unknown = Traits {
        traits: ["CUSTOM_NEVER_MADE".to_owned()].into(),
        ..before.clone()
    };
    let refused = client
        .placement()
        .put_traits(&provider.uuid, &unknown)
        .await
        .unwrap_err();
    assert_eq!(refused.status(), Some(400));

    let ours: BTreeSet<String> = (0..6)
        .map(|number| format!("CUSTOM_TEST_{number}"))
        .collect();
    let mut writers = tokio::task::JoinSet::new();
    for name in ours.clone() {
        let (client, uuid) = (client.clone(), provider.uuid.clone());
        writers.spawn(async move {
            let placement = client.placement();
            placement.create_trait(&name).await.unwrap();
            placement.create_trait(&name).await.unwrap();
            let add = |present: &BTreeSet<String>| {
                let mut wanted = present.clone();
                wanted.insert(name.clone());
                wanted
            };
            placement.update_traits(&uuid, add).await.unwrap();
        });
    }
    writers.join_all().await;
    let after = client.placement().traits(&provider.uuid).await.unwrap();
    assert!(after.traits.is_superset(&before.traits) && after.traits.is_superset(&ours));
    assert!(
        client
            .placement()
            .custom_traits()
            .await
            .unwrap()
            .is_superset(&ours)
    );

    let error = client
        .placement()
        .put_traits(&provider.uuid, &before)
        .await
        .unwrap_err();
    assert!(error.is_generation_conflict(), "{error}");

    // Nothing to change, nothing written.
    let same = client
        .placement()
        .update_traits(&provider.uuid, BTreeSet::clone)
        .await
        .unwrap();
    assert_eq!(same, after);
    let without = |present: &BTreeSet<String>| present - &ours;
    let left = client
        .placement()
        .update_traits(&provider.uuid, without)
        .await
        .unwrap();
    assert!(left.traits.is_disjoint(&ours));
    client.compute().enable_service(&service.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn inventories_usages_and_trees_are_read() {
    let light = light().await;
    let client = light.client();
    let placement = client.placement();
    let provider = placement.provider_named("node-10").await.unwrap().unwrap();
    // A hypervisor and its provider are one.
    let hypervisor = client
        .compute()
        .hypervisor_named("node-10")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(provider.uuid, hypervisor.id);
    let mut inventories = placement.inventories(&provider.uuid).await.unwrap();
    let mut vcpu = inventories.inventories.remove("VCPU").unwrap();
    vcpu.reserved = 3;
    let generation = inventories.generation;
    let new = placement
        .put_inventory(&provider.uuid, "VCPU", &vcpu, generation)
        .await
        .unwrap();
    assert!(new > generation);
    let stale = placement
        .put_inventory(&provider.uuid, "VCPU", &vcpu, generation)
        .await;
    assert!(stale.unwrap_err().is_generation_conflict());
    assert_eq!(
        placement.usages(&provider.uuid).await.unwrap().usages["VCPU"],
        0
    );
    assert_eq!(
        placement
            .providers_in_tree(&provider.uuid)
            .await
            .unwrap()
            .len(),
        1
    );
    let none = "00000000-0000-4000-8000-000000000000";
    assert!(found(placement.provider(none).await).unwrap().is_none());
    assert_eq!(placement.provider_named("node-1%").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn allocations_are_taken_and_given_back() {
    let light = light().await;
    let client = light.client();
    let placement = client.placement();
    let account = client.check(&[]).await.unwrap();
    let provider = placement.provider_named("node-1").await.unwrap().unwrap();
    let consumer = "7a3bb47a-5b0e-4b2c-9a8e-0f7f5d3f0001";
    let nobody = placement.allocations(consumer).await.unwrap();
    assert!(nobody.allocations.is_empty());

    let some = Allocation {
        resources: [("VCPU".into(), 2), ("MEMORY_MB".into(), 128)].into(),
    };
    let wanted = ConsumerAllocations {
        allocations: [(provider.uuid.clone(), some.clone())].into(),
        project_id: account.project_id,
        user_id: account.user_id,
        consumer_generation: None,
        consumer_type: None,
    };
    placement.put_allocations(consumer, &wanted).await.unwrap();
    let all = placement
        .provider_allocations(&provider.uuid)
        .await
        .unwrap();
    assert_eq!(all.allocations[consumer], some);
    assert!(
        placement
            .delete_provider(&provider.uuid)
            .await
            .unwrap_err()
            .is_conflict()
    );
    // Once more as if it were new: somebody was there.
    let error = placement
        .put_allocations(consumer, &wanted)
        .await
        .unwrap_err();
    assert!(error.is_generation_conflict(), "{error}");

    // What was read can be written, with a type and without, and nothing is a value, too.
    let mut typed = placement.allocations(consumer).await.unwrap();
    assert_eq!(typed.consumer_type.as_deref(), Some("unknown"));
    placement.put_allocations(consumer, &typed).await.unwrap();
    typed = placement.allocations(consumer).await.unwrap();
    typed.consumer_type = Some("INSTANCE".into());
    placement.put_allocations(consumer, &typed).await.unwrap();
    let mut read = placement.allocations(consumer).await.unwrap();
    placement.put_allocations(consumer, &read).await.unwrap();
    read = placement.allocations(consumer).await.unwrap();
    read.allocations.clear();
    placement.put_allocations(consumer, &read).await.unwrap();
    assert!(
        placement
            .allocations(consumer)
            .await
            .unwrap()
            .allocations
            .is_empty()
    );
    assert!(
        placement
            .delete_allocations(consumer)
            .await
            .unwrap_err()
            .is_not_found()
    );
    placement.put_allocations(consumer, &wanted).await.unwrap();
    placement.delete_allocations(consumer).await.unwrap();

    let query = |provider: &str, vcpus| CandidateQuery {
        resources: [("VCPU".into(), vcpus)].into(),
        required: ["COMPUTE_NODE".to_owned()].into(),
        forbidden: ["COMPUTE_STATUS_DISABLED".to_owned()].into(),
        in_tree: Some(provider.to_owned()),
        ..CandidateQuery::default()
    };
    let fits = placement
        .candidates(&query(&provider.uuid, 1))
        .await
        .unwrap();
    assert_eq!(fits.candidates.len(), 1);
    let not = placement
        .candidates(&query(&provider.uuid, 1_000_000))
        .await
        .unwrap();
    assert!(not.candidates.is_empty());
}
