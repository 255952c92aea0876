//! Recorded exchanges with Placement.

use cobalt_openstack::placement::{CandidateQuery, Traits};

use crate::replay::Replay;

const HV1: &str = "19d7aa79-edef-5a8a-857f-5403be3f6300";
const HV2: &str = "912f4287-fcfb-5cdb-82c0-958e8f5f20aa";
const OTHER: &str = "d2ec603d-1fcc-45e3-b7fa-96f8924b80f4";

#[tokio::test]
async fn providers_and_traits_are_read_and_changed() {
    let replay = Replay::of(33).await;
    let hv1 = replay
        .client
        .placement()
        .provider_named("hv1")
        .await
        .unwrap()
        .unwrap();
    replay.asked_the_same();
    assert_eq!(
        (hv1.uuid.as_str(), hv1.generation, hv1.parent),
        (HV1, 3, None)
    );
    let replay = Replay::of(31).await;
    assert_eq!(
        replay.client.placement().providers().await.unwrap().len(),
        3
    );
    replay.asked_the_same();

    for number in [37, 38] {
        let replay = Replay::of(number).await;
        replay
            .client
            .placement()
            .create_trait("CUSTOM_MAINTENANCE_READY")
            .await
            .unwrap();
        replay.asked_the_same();
    }
    let replay = Replay::of(39).await;
    let error = replay
        .client
        .placement()
        .create_trait("lowercase")
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("): The trait is invalid. A valid"),
        "{error}"
    );
    let replay = Replay::of(40).await;
    assert_eq!(
        replay
            .client
            .placement()
            .custom_traits()
            .await
            .unwrap()
            .len(),
        1
    );
    replay.asked_the_same();

    let replay = Replay::of(41).await;
    let traits = replay.client.placement().traits(HV1).await.unwrap();
    replay.asked_the_same();
    assert_eq!((traits.generation, traits.traits.len()), (4, 15));
    let replay = Replay::of(43).await;
    let error = replay
        .client
        .placement()
        .put_traits(HV1, &traits)
        .await
        .unwrap_err();
    assert!(error.is_generation_conflict() && error.is_transient());
    let replay = Replay::of(42).await;
    let Traits { generation, traits } = replay
        .client
        .placement()
        .put_traits(HV1, &traits)
        .await
        .unwrap();
    assert_eq!((generation, traits.len()), (5, 16));
}

#[tokio::test]
async fn inventories_usages_and_aggregates_are_read_and_changed() {
    let replay = Replay::of(45).await;
    let mut all = replay.client.placement().inventories(HV1).await.unwrap();
    replay.asked_the_same();
    let mut vcpu = all.inventories.remove("VCPU").unwrap();
    assert_eq!((all.generation, vcpu.total), (5, 64));
    vcpu.reserved = 4;
    let replay = Replay::of(46).await;
    let put = replay
        .client
        .placement()
        .put_inventory(HV1, "VCPU", &vcpu, 5)
        .await;
    replay.asked_the_same();
    assert_eq!(put.unwrap(), 6);
    let replay = Replay::of(47).await;
    let put = replay
        .client
        .placement()
        .put_inventory(HV1, "VCPU", &vcpu, 5)
        .await;
    assert!(put.unwrap_err().is_generation_conflict());

    let replay = Replay::of(48).await;
    let usages = replay.client.placement().usages(HV1).await.unwrap();
    replay.asked_the_same();
    assert_eq!(usages.usages["VCPU"], 0);

    let replay = Replay::of(34).await;
    let mut aggregates = replay
        .client
        .placement()
        .provider_aggregates(HV1)
        .await
        .unwrap();
    replay.asked_the_same();
    aggregates.generation = 6;
    aggregates.aggregates = ["11111111-2222-4333-8444-555555555555".to_owned()].into();
    let replay = Replay::of(49).await;
    replay
        .client
        .placement()
        .put_provider_aggregates(HV1, &aggregates)
        .await
        .unwrap();
    replay.asked_the_same();
}

#[tokio::test]
async fn allocations_and_candidates_are_read() {
    let replay = Replay::of(56).await;
    let all = replay
        .client
        .placement()
        .provider_allocations(HV1)
        .await
        .unwrap();
    replay.asked_the_same();
    assert_eq!(all.allocations[OTHER].resources["MEMORY_MB"], 64);
    let replay = Replay::of(87).await;
    let server = "51633cc2-8d71-4db2-95ab-cfa0cb880779";
    let consumer = replay.client.placement().allocations(server).await.unwrap();
    replay.asked_the_same();
    let providers: Vec<_> = consumer.allocations.keys().map(String::as_str).collect();
    assert_eq!(
        (providers, consumer.consumer_generation),
        (vec![HV1, HV2], Some(2))
    );

    let replay = Replay::of(50).await;
    let query = CandidateQuery {
        resources: [("VCPU".into(), 1), ("MEMORY_MB".into(), 64)].into(),
        limit: Some(2),
        ..CandidateQuery::default()
    };
    let candidates = replay.client.placement().candidates(&query).await.unwrap();
    replay.asked_the_same_but_for(&["resources"]);
    assert_eq!(candidates.candidates.len(), 2);
    assert_eq!(candidates.providers[HV2].resources["VCPU"].capacity, 1024);
}
