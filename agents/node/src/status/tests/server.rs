//! What the API server does to a status that is sent to it.

use std::sync::LazyLock;

use cobalt_api::crds;

use super::*;

/// The schema of a Hypervisor's status.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let crd = crds::all()
        .into_iter()
        .find(|crd| crd.spec.names.plural == "hypervisors")
        .unwrap();
    let version = serde_json::to_value(&crd.spec.versions[0]).unwrap();
    version["schema"]["openAPIV3Schema"]["properties"]["status"].clone()
});

/// Fills in defaults and drops unknown fields, as the API server does.
fn admit(value: &mut Value, schema: &Value) {
    match value {
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| admit(item, &schema["items"])),
        Value::Object(fields) => {
            let Some(properties) = schema["properties"].as_object() else {
                return;
            };
            fields.retain(|name, value| properties.contains_key(name) && !value.is_null());
            for (name, schema) in properties {
                if let (None, Some(default)) = (fields.get(name), schema.get("default")) {
                    fields.insert(name.clone(), default.clone());
                }
                if let Some(value) = fields.get_mut(name) {
                    admit(value, schema);
                }
            }
        }
        _ => {}
    }
}

/// The object as the API server returns it after the patch.
pub(super) fn written(hypervisor: &Hypervisor, wanted: &HypervisorStatus) -> Hypervisor {
    let mut patch = patch(wanted, hypervisor).unwrap();
    let mut object = serde_json::to_value(hypervisor).unwrap();
    if object["status"].is_null() {
        object["status"] = json!({});
    }
    let sent = patch["status"].take();
    for (name, value) in sent.as_object().unwrap() {
        let there = &mut object["status"][name];
        match name.as_str() {
            "conditions" => {
                let mut all = there.as_array().cloned().unwrap_or_default();
                for new in value.as_array().unwrap() {
                    all.retain(|old| old["type"] != new["type"]);
                    all.push(new.clone());
                }
                *there = Value::Array(all);
            }
            _ => *there = value.clone(),
        }
    }
    admit(&mut object["status"], &SCHEMA);
    serde_json::from_value(object).unwrap()
}
