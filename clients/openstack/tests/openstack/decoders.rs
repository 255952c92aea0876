//! Whatever a service sends, reading it ends in a value or in an error.

use cobalt_openstack::compute::{
    Action, Aggregate, ComputeService, Flavor, Hypervisor, Migration, Server, ServerMigration,
    ServerName, Zone,
};
use cobalt_openstack::placement::{
    Candidates, ConsumerAllocations, Inventories, Provider, ProviderAggregates,
    ProviderAllocations, Traits, Usages,
};
use cobalt_openstack::{Image, Network, Port, VolumeType};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::replay::Sample;

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((".{0,12}", inner), 0..5)
                .prop_map(|pairs| Value::Object(Map::from_iter(pairs))),
        ]
    })
}

fn read<T: DeserializeOwned>(value: &Value) {
    drop(serde_json::from_value::<T>(value.clone()));
}

fn read_as_everything(value: &Value) {
    read::<Action>(value);
    read::<Aggregate>(value);
    read::<ComputeService>(value);
    read::<Flavor>(value);
    read::<Hypervisor>(value);
    read::<Migration>(value);
    read::<Server>(value);
    read::<ServerMigration>(value);
    read::<ServerName>(value);
    read::<Zone>(value);
    read::<Candidates>(value);
    read::<ConsumerAllocations>(value);
    read::<Inventories>(value);
    read::<Provider>(value);
    read::<ProviderAggregates>(value);
    read::<ProviderAllocations>(value);
    read::<Traits>(value);
    read::<Usages>(value);
    read::<Image>(value);
    read::<Network>(value);
    read::<Port>(value);
    read::<VolumeType>(value);
}

/// Replaces the value that is met at some step of a walk.
fn disturb(value: &mut Value, steps: &mut usize, with: &Value) {
    if *steps == 0 {
        *value = with.clone();
    }
    *steps = steps.wrapping_sub(1);
    match value {
        Value::Array(inner) => inner
            .iter_mut()
            .for_each(|value| disturb(value, steps, with)),
        Value::Object(inner) => inner
            .values_mut()
            .for_each(|value| disturb(value, steps, with)),
        _ => {}
    }
}

/// The things inside an answer.
fn things(value: &Value) -> Vec<&Value> {
    let inner = value
        .as_object()
        .into_iter()
        .flat_map(|object| object.values());
    let inner = inner.flat_map(|value| match value {
        Value::Array(all) => all.iter().collect(),
        value => vec![value],
    });
    std::iter::once(value).chain(inner).collect()
}

proptest! {
    #[test]
    fn arbitrary_json_is_read_or_refused(value in any_json()) {
        read_as_everything(&value);
    }

    #[test]
    fn a_recorded_answer_with_one_strange_value_is_read_or_refused(
        number in prop::sample::select(vec![14_u32, 19, 29, 30, 31, 41, 45, 50, 54, 56, 57, 61, 66, 70]),
        mut steps in 0_usize..200,
        with in any_json(),
    ) {
        let mut body = Sample::load(number).response["body"].take();
        disturb(&mut body, &mut steps, &with);
        for thing in things(&body) {
            read_as_everything(thing);
        }
    }
}
