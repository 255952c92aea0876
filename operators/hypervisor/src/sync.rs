//! Node -> Hypervisor: the labels, the spec and the finalizer that follow from the Node, level by
//! level: what the Node does not say any more is taken back.

use std::collections::BTreeMap;

use cobalt_api::hypervisor::{Hypervisor, Maintenance};
use cobalt_api::names::{annotations, finalizers, labels};
use k8s_openapi::api::core::v1::Node;
use kube::{Resource, ResourceExt};
use serde_json::{Map, Value, json};

use crate::controllers::node::terminating;
use crate::host::{Known, Settings};
use crate::record::Record;

/// What the Node says.
#[derive(Debug, Clone, PartialEq)]
pub struct Derived {
    labels: BTreeMap<String, String>,
    lifecycle: bool,
    skip_tests: bool,
    /// `None`: the Node says nothing, and never did.
    traits: Option<Vec<String>>,
    aggregates: Option<Vec<String>>,
    /// The host is to leave.
    termination: bool,
    owner: (String, String),
    /// How the host came into service; what is recorded stays.
    record: String,
}

/// Reads the Node, in the light of what is there.
#[must_use]
pub fn derive(node: &Node, known: Option<&Known>, settings: &Settings) -> Derived {
    let on_node = node.labels();
    let labels = transferred(settings)
        .filter_map(|key| Some((key.to_owned(), on_node.get(key)?.clone())))
        .collect();
    let lifecycle = on_node.get(labels::LIFECYCLE);
    let list = |key: &str| {
        let text = node.annotations().get(key)?;
        let mut names: Vec<String> = Vec::new();
        for name in text
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
        {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        Some(names)
    };
    let with_zone = |mut names: Vec<String>| {
        if let Some(zone) = on_node.get(labels::ZONE)
            && !names.contains(zone)
        {
            names.push(zone.clone());
        }
        names
    };
    let ours = |owns: fn(&Known) -> bool| known.is_none_or(owns);
    Derived {
        labels,
        lifecycle: lifecycle.is_some(),
        skip_tests: lifecycle.is_some_and(|value| value == labels::LIFECYCLE_SKIP_TESTS),
        traits: list(annotations::CUSTOM_TRAITS)
            .or_else(|| ours(|known| known.owns_traits).then(Vec::new)),
        aggregates: list(annotations::AGGREGATES)
            .or_else(|| ours(|known| known.owns_aggregates).then(Vec::new))
            .map(with_zone),
        termination: lifecycle.is_some() && terminating(node).is_some(),
        owner: (node.name_any(), node.uid().unwrap_or_default()),
        record: record(known),
    }
}

fn record(known: Option<&Known>) -> String {
    let object = known.map(|known| &known.object);
    let present = object.and_then(|object| object.annotations().get(annotations::ONBOARDED));
    present.map_or_else(|| Record::first(object).as_str().to_owned(), Clone::clone)
}

impl Derived {
    /// The operator manages the life of the host.
    #[must_use]
    pub fn is_managed(&self) -> bool {
        self.lifecycle
    }
}

fn transferred(settings: &Settings) -> impl Iterator<Item = &str> {
    let fixed = labels::FROM_NODE_TO_HYPERVISOR.iter().copied();
    fixed.chain(settings.selector_labels.iter().map(String::as_str))
}

/// Labels that the Hypervisor has and the Node has not.
#[must_use]
pub fn surplus_labels(derived: &Derived, object: &Hypervisor, settings: &Settings) -> Vec<String> {
    transferred(settings)
        .filter(|key| object.labels().contains_key(*key) && !derived.labels.contains_key(*key))
        .map(ToOwned::to_owned)
        .collect()
}

/// What differs between the Hypervisor and its Node, for the log. Nothing: nothing is written.
#[must_use]
pub fn differences(derived: &Derived, known: &Known, settings: &Settings) -> Vec<&'static str> {
    let object = &known.object;
    let mut all = Vec::new();
    let mut differ = |what, differs: bool| {
        if differs {
            all.push(what);
        }
    };
    let wrong_label = |(key, value): (&String, &String)| object.labels().get(key) != Some(value);
    differ(
        "labels",
        derived.labels.iter().any(wrong_label)
            || !surplus_labels(derived, object, settings).is_empty(),
    );
    differ(
        "owner",
        !object
            .owner_references()
            .iter()
            .any(|owner| owner.uid == derived.owner.1),
    );
    differ("finalizer", derived.lifecycle != is_held(object));
    let recorded = object.annotations().get(annotations::ONBOARDED);
    differ("record", recorded != Some(&derived.record));
    let spec = &object.spec;
    if spec.maintenance() != Maintenance::Termination {
        differ(
            "lifecycleEnabled",
            spec.lifecycle_enabled != Some(derived.lifecycle),
        );
        differ("skipTests", spec.skip_tests != Some(derived.skip_tests));
        let is = |wanted: &Option<Vec<String>>, present: &[String]| {
            wanted.as_ref().is_none_or(|wanted| wanted == present)
        };
        differ("customTraits", !is(&derived.traits, spec.custom_traits()));
        differ("aggregates", !is(&derived.aggregates, spec.aggregates()));
        differ(
            "maintenance",
            derived.termination && spec.maintenance() != Maintenance::Ha,
        );
    }
    all
}

fn is_held(object: &Hypervisor) -> bool {
    object
        .finalizers()
        .iter()
        .any(|one| one == finalizers::REGISTERED_HOST)
}

/// The fields that the operator owns of the object, for server-side apply.
///
/// While maintenance is `termination` the API server refuses any change of the spec: the spec is
/// then sent as it is, and the labels may follow the Node all the same.
#[must_use]
pub fn content(derived: &Derived, known: Option<&Known>) -> Value {
    let frozen = known
        .map(|known| &known.object.spec)
        .filter(|spec| spec.maintenance() == Maintenance::Termination);
    let mut spec = Map::new();
    let mut set = |key: &str, value: Value| spec.insert(key.to_owned(), value);
    match frozen {
        Some(present) => {
            set("lifecycleEnabled", json!(present.lifecycle_enabled()));
            set("skipTests", json!(present.skip_tests()));
            if known.is_some_and(|known| known.owns_traits) {
                set("customTraits", json!(present.custom_traits()));
            }
            if known.is_some_and(|known| known.owns_aggregates) {
                set("aggregates", json!(present.aggregates()));
            }
            set("maintenance", json!(Maintenance::Termination.as_str()));
        }
        None => {
            set("lifecycleEnabled", json!(derived.lifecycle));
            set("skipTests", json!(derived.skip_tests));
            if let Some(traits) = &derived.traits {
                set("customTraits", json!(traits));
            }
            if let Some(aggregates) = &derived.aggregates {
                set("aggregates", json!(aggregates));
            }
            let ha = known.is_some_and(|known| known.object.spec.maintenance() == Maintenance::Ha);
            if derived.termination && !ha {
                set("maintenance", json!(Maintenance::Termination.as_str()));
            }
        }
    }
    let mut metadata = Map::new();
    let (node, uid) = &derived.owner;
    metadata.insert("name".to_owned(), json!(node));
    metadata.insert("labels".to_owned(), json!(derived.labels));
    metadata.insert(
        "annotations".to_owned(),
        json!({ annotations::ONBOARDED: derived.record }),
    );
    if let Some(version) = known.and_then(|known| known.object.resource_version()) {
        // An older record must not replace a newer one.
        metadata.insert("resourceVersion".to_owned(), json!(version));
    }
    metadata.insert(
        "ownerReferences".to_owned(),
        json!([{
            "apiVersion": "v1",
            "kind": "Node",
            "name": node,
            "uid": uid,
            "blockOwnerDeletion": true,
        }]),
    );
    if derived.lifecycle {
        metadata.insert(
            "finalizers".to_owned(),
            json!([finalizers::REGISTERED_HOST]),
        );
    }
    json!({
        "apiVersion": Hypervisor::api_version(&()),
        "kind": Hypervisor::kind(&()),
        "metadata": metadata,
        "spec": spec,
    })
}
