//! What the deployed operator and agent write is accepted as it is, and nothing of it is lost.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use cobalt_api::{
    Eviction, EvictionSpec, Hypervisor, HypervisorSpec, Migration, OvsNode, hypervisor,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    schema::{self, Node},
    support::{api, crate_path, crd, dynamic, fixtures, normal, plural, server, unique},
};

#[test]
fn the_deployed_fields_are_described_as_deployed() {
    let text = std::fs::read_to_string(crate_path("tests/fixtures/deployed.txt")).unwrap();
    let generated: BTreeSet<String> = schema::nodes().iter().map(Node::line).collect();
    let wrong: Vec<_> = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#') && !generated.contains(*line))
        .collect();
    assert!(
        wrong.is_empty(),
        "the generated definitions say otherwise:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn an_added_field_is_never_demanded_of_a_deployed_writer() {
    let text = std::fs::read_to_string(crate_path("tests/fixtures/deployed.txt")).unwrap();
    let deployed: BTreeSet<(&str, &str)> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.next()?))
        })
        .collect();
    for node in schema::nodes() {
        let known = |path: &str| deployed.contains(&(node.plural.as_str(), path));
        let Some((parent, _)) = node.path.rsplit_once('.') else {
            continue;
        };
        if known(parent) && !known(&node.path) {
            assert!(
                !node.required,
                "{} {} is new and required",
                node.plural, node.path
            );
            let default = node.schema.get("default");
            assert!(
                default.is_none(),
                "{} {} is new and has a default",
                node.plural,
                node.path
            );
        }
    }
}

#[test]
fn nothing_is_nullable() {
    for node in schema::nodes() {
        assert!(
            node.schema.get("nullable").is_none(),
            "{} {}",
            node.plural,
            node.path
        );
    }
}

#[test]
fn every_place_of_every_schema_is_in_a_fixture() {
    let fixtures = fixtures();
    for node in schema::nodes() {
        let found = fixtures
            .iter()
            .filter(|(_, object)| plural(object) == node.plural)
            .any(|(_, object)| exists(object, &node.path));
        assert!(found, "{} {} is in no fixture", node.plural, node.path);
    }
}

fn exists(value: &Value, path: &str) -> bool {
    let (step, rest) = path
        .find(['.', '['])
        .map_or((path, ""), |at| path.split_at(at));
    let children: Vec<&Value> = match step {
        "" => vec![value],
        "*" => value
            .as_object()
            .map(|fields| fields.values().collect())
            .unwrap_or_default(),
        name => value.get(name).into_iter().collect(),
    };
    if rest.is_empty() {
        return !children.is_empty();
    }
    children
        .into_iter()
        .any(|child| match rest.strip_prefix("[]") {
            Some(rest) => child.as_array().is_some_and(|items| {
                items
                    .iter()
                    .any(|item| rest.is_empty() || exists(item, rest.trim_start_matches('.')))
            }),
            None => exists(child, rest.trim_start_matches('.')),
        })
}

#[test]
fn the_rust_types_keep_every_field() {
    fn there_and_back<K: serde::Serialize + serde::de::DeserializeOwned>(object: &Value) -> Value {
        let typed: K = serde_json::from_value(object.clone()).expect("the type reads the object");
        serde_json::to_value(typed).expect("the type writes the object")
    }
    for (name, object) in fixtures() {
        let back = match object["kind"].as_str() {
            Some("Hypervisor") => there_and_back::<Hypervisor>(object),
            Some("Eviction") => there_and_back::<Eviction>(object),
            Some("Migration") => there_and_back::<Migration>(object),
            Some("OVSNode") => there_and_back::<OvsNode>(object),
            other => panic!("{name} has the kind {other:?}"),
        };
        assert_eq!(normal(&back), normal(object), "{name}");
    }
}

#[test]
fn an_unset_field_is_absent() {
    let hypervisor = Hypervisor::new("a", HypervisorSpec::default());
    assert_eq!(serde_json::to_value(hypervisor).unwrap()["spec"], json!({}));
    let status = cobalt_api::HypervisorStatus::default();
    assert_eq!(serde_json::to_value(status).unwrap(), json!({}));
    assert_eq!(
        serde_json::to_value(cobalt_api::EvictionStatus::default()).unwrap(),
        json!({})
    );
    assert_eq!(
        serde_json::to_value(cobalt_api::MigrationStatus::default()).unwrap(),
        json!({})
    );
    assert_eq!(
        serde_json::to_value(cobalt_api::OvsNodeStatus::default()).unwrap(),
        json!({})
    );
}

#[test]
fn the_accessors_say_what_the_schema_says() {
    let spec = HypervisorSpec::default();
    let nodes = schema::nodes();
    let default = |path: &str| {
        let node = nodes
            .iter()
            .find(|node| node.plural == "hypervisors" && node.path == path);
        node.expect("a known field").schema["default"].clone()
    };
    assert_eq!(json!(spec.reboot()), default("spec.reboot"));
    assert_eq!(
        json!(spec.evacuate_on_reboot()),
        default("spec.evacuateOnReboot")
    );
    assert_eq!(
        json!(spec.lifecycle_enabled()),
        default("spec.lifecycleEnabled")
    );
    assert_eq!(json!(spec.skip_tests()), default("spec.skipTests"));
    assert_eq!(json!(spec.custom_traits()), default("spec.customTraits"));
    assert_eq!(json!(spec.aggregates()), default("spec.aggregates"));
    assert_eq!(
        json!(spec.allowed_projects()),
        default("spec.allowedProjects")
    );
    assert_eq!(
        json!(spec.high_availability()),
        default("spec.highAvailability")
    );
    assert_eq!(
        json!(spec.create_cert_manager_certificate()),
        default("spec.createCertManagerCertificate")
    );
    assert_eq!(
        json!(spec.install_certificate()),
        default("spec.installCertificate")
    );
    assert_eq!(spec.maintenance(), hypervisor::Maintenance::Unset);
}

/// The object with the defaults of its schema filled in.
fn with_defaults(value: &Value, schema: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields = fields.clone();
            if let Some(Value::Object(properties)) = schema.get("properties") {
                for (name, property) in properties {
                    if let Some(default) = property.get("default") {
                        fields
                            .entry(name.clone())
                            .or_insert_with(|| default.clone());
                    }
                    if let Some(field) = fields.get_mut(name) {
                        *field = with_defaults(field, property);
                    }
                }
            }
            Value::Object(fields)
        }
        Value::Array(items) => Value::Array(
            items
                .iter()
                .map(|item| with_defaults(item, &schema["items"]))
                .collect(),
        ),
        other => other.clone(),
    }
}

#[tokio::test]
async fn the_api_server_keeps_every_field_of_every_fixture() -> Result<()> {
    let (_, client) = server().await?;
    for (file, object) in fixtures() {
        let mut object = object.clone();
        let plural = plural(&object);
        let api = api(&client, plural);
        let name = unique("fixture");
        object["metadata"]["name"] = json!(name);
        // The owners of the fixtures do not exist, and a garbage collector may be running.
        let owners = object["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("ownerReferences");

        api.create(&PostParams::default(), &dynamic(&object))
            .await
            .with_context(|| format!("{file} was refused"))?;
        let mut status = json!({ "metadata": { "name": name } });
        status["apiVersion"] = object["apiVersion"].clone();
        status["kind"] = object["kind"].clone();
        status["status"] = object["status"].clone();
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status))
            .await
            .with_context(|| format!("the status of {file} was refused"))?;
        let stored = serde_json::to_value(api.get(&name).await?)?;

        let schema = cobalt_api::crds::schema_of(crd(plural)).unwrap();
        let sent = normal(&object);
        for part in ["spec", "status"] {
            let expected = with_defaults(&sent[part], &schema["properties"][part]);
            assert_eq!(normal(&stored[part]), normal(&expected), "{part} of {file}");
        }
        assert_eq!(
            stored["metadata"]["labels"], object["metadata"]["labels"],
            "{file}"
        );

        // A replacement of the whole status, as an update of a typed client sends it.
        let mut whole = stored.clone();
        whole["status"] = object["status"].clone();
        let replaced = api
            .replace_status(&name, &PostParams::default(), &dynamic(&whole))
            .await?;
        let replaced = serde_json::to_value(replaced)?;
        let expected = with_defaults(&sent["status"], &schema["properties"]["status"]);
        assert_eq!(
            normal(&replaced["status"]),
            normal(&expected),
            "replaced status of {file}"
        );

        // Owners are kept too; a dry run does not wake a garbage collector.
        if let Some(owners) = owners {
            object["metadata"]["ownerReferences"] = owners.clone();
            object["metadata"]["name"] = json!(unique("fixture"));
            let dry_run = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            let created = api.create(&dry_run, &dynamic(&object)).await?;
            let created = serde_json::to_value(created)?;
            assert_eq!(created["metadata"]["ownerReferences"], owners, "{file}");
        }
        api.delete(&name, &DeleteParams::default()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_host_created_from_rust_gets_the_defaults() -> Result<()> {
    let (_, client) = server().await?;
    let api: Api<Hypervisor> = Api::all(client);
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let created = api
        .create(
            &dry_run,
            &Hypervisor::new(&unique("hv"), HypervisorSpec::default()),
        )
        .await?;
    assert_eq!(created.spec.lifecycle_enabled, Some(true));
    assert_eq!(created.spec.evacuate_on_reboot, Some(true));
    assert_eq!(created.spec.high_availability, Some(true));
    assert_eq!(created.spec.install_certificate, Some(true));
    assert_eq!(created.spec.reboot, Some(false));
    assert_eq!(created.spec.custom_traits, Some(Vec::new()));
    Ok(())
}

#[tokio::test]
async fn an_object_without_a_spec_is_defaulted_or_refused() -> Result<()> {
    let (_, client) = server().await?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let bare = |kind: &str, version: &str| {
        dynamic(&json!({
            "apiVersion": version, "kind": kind, "metadata": { "name": unique("bare") },
        }))
    };
    let host = api(&client, "hypervisors")
        .create(&dry_run, &bare("Hypervisor", "kvm.cloud.sap/v1"))
        .await?;
    assert_eq!(host.data["spec"]["lifecycleEnabled"], true);
    let refused = api(&client, "evictions")
        .create(&dry_run, &bare("Eviction", "kvm.cloud.sap/v1"))
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("spec: Required value"), "{refused}");
    Ok(())
}

#[test]
fn an_eviction_says_what_absence_means() {
    let spec = EvictionSpec::default();
    assert_eq!(spec.strategy(), cobalt_api::eviction::Strategy::LiveMigrate);
    assert!(!spec.dry_run() && !spec.cancel());
    assert_eq!(spec.deadline(), Ok(None));
    let spec = EvictionSpec {
        deadline: Some("1h30m".into()),
        ..spec
    };
    assert_eq!(
        spec.deadline(),
        Ok(Some(std::time::Duration::from_secs(5400)))
    );
}
