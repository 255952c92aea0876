//! The CustomResourceDefinitions.
//!
//! [`all`] is the only source of them: the `crd()` that kube derives carries no schema, so that
//! installing it by mistake is refused by the API server instead of half-working.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceValidation, JSONSchemaProps,
};
use kube::core::CustomResourceExt;
use schemars::JsonSchema;
use serde_json::{Value, json};

use crate::{
    Eviction, EvictionSpec, EvictionStatus, Hypervisor, HypervisorSpec, HypervisorStatus,
    Migration, MigrationSpec, MigrationStatus, OvsNode, OvsNodeSpec, OvsNodeStatus, schema,
};

/// Every definition, ordered by name.
#[must_use]
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![
        with_schema::<EvictionSpec, EvictionStatus>(
            Eviction::crd(),
            WithoutSpec::Refused,
            "A request to empty a hypervisor: every instance on it, or a few, move elsewhere.",
        ),
        with_schema::<HypervisorSpec, HypervisorStatus>(
            Hypervisor::crd(),
            WithoutSpec::Defaulted,
            "A host that runs virtual machines. There is one per Kubernetes node, with its name.",
        ),
        with_schema::<MigrationSpec, MigrationStatus>(
            Migration::crd(),
            WithoutSpec::Defaulted,
            "One migration of an instance, as the hosts on both ends see it.",
        ),
        with_schema::<OvsNodeSpec, OvsNodeStatus>(
            OvsNode::crd(),
            WithoutSpec::Refused,
            "Open vSwitch on one node: bridges, interfaces, bonds, flows and their health.",
        ),
    ]
}

/// The file name, without extension, of a definition: `<plural>.<group>`.
#[must_use]
pub fn file_stem(crd: &CustomResourceDefinition) -> String {
    format!("{}.{}", crd.spec.names.plural, crd.spec.group)
}

fn with_schema<Spec: JsonSchema, Status: JsonSchema>(
    mut crd: CustomResourceDefinition,
    spec: WithoutSpec,
    description: &str,
) -> CustomResourceDefinition {
    let spec_schema = schema::structural::<Spec>();
    let defaults = schema::defaults(&spec_schema);
    let mut root = json!({
        "description": description,
        "type": "object",
        "properties": {
            "apiVersion": {
                "description": "The group and version that this object is written in.",
                "type": "string",
            },
            "kind": { "description": "The kind of this object.", "type": "string" },
            "metadata": { "type": "object" },
            "spec": spec_schema,
            "status": schema::structural::<Status>(),
        },
    });
    let (place, key, value) = match spec {
        WithoutSpec::Defaulted => ("/properties/spec", "default", defaults),
        WithoutSpec::Refused => ("", "required", json!(["spec"])),
    };
    if let Some(Value::Object(schema)) = root.pointer_mut(place) {
        schema.insert(key.to_owned(), value);
    }
    crd.spec.names.list_kind = Some(format!("{}List", crd.spec.names.kind));
    for version in &mut crd.spec.versions {
        version.schema = Some(CustomResourceValidation {
            open_api_v3_schema: props(&root),
        });
    }
    crd
}

/// What happens to an object without a spec. A reader never meets one in either case.
#[derive(Clone, Copy)]
enum WithoutSpec {
    /// It gets a spec of defaults.
    Defaulted,
    /// It is refused, because it says nothing without a spec.
    Refused,
}

/// A schema in the types of the API. It is built field by field from a value that this crate made,
/// so the conversion cannot fail; a test holds it to that.
fn props(schema: &Value) -> Option<JSONSchemaProps> {
    serde_json::from_value(schema.clone()).ok()
}

/// The schema of the only version of a definition, as JSON.
#[must_use]
pub fn schema_of(crd: &CustomResourceDefinition) -> Option<Value> {
    let version = crd.spec.versions.first()?;
    let schema = version.schema.as_ref()?.open_api_v3_schema.as_ref()?;
    serde_json::to_value(schema).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_has_a_schema_and_a_stable_place() {
        let all = all();
        let names: Vec<_> = all.iter().map(file_stem).collect();
        let mut sorted = names.clone();
        sorted.sort();
        assert_eq!(names, sorted);
        for crd in &all {
            assert!(schema_of(crd).is_some(), "{} has no schema", file_stem(crd));
            assert_eq!(crd.metadata.name.as_deref(), Some(file_stem(crd).as_str()));
        }
    }
}
