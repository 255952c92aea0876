//! The chart holds the definitions that the types describe.

use std::collections::BTreeMap;

use anyhow::Result;
use cobalt_api::crds;
use serde_json::{Value, json};

use crate::support::{crate_path, normal, run, server, unique};

const COMMAND: &str = "the chart is stale, run `cargo xtask gen`";

/// The definitions of this build, by name.
fn wanted() -> BTreeMap<String, Value> {
    crds::all()
        .iter()
        .map(|crd| {
            (
                crds::file_stem(crd),
                normal(&serde_json::to_value(crd).unwrap()),
            )
        })
        .collect()
}

/// The definitions in what helm wrote, by name, without the annotation that helm adds.
fn rendered(text: &str, keep: bool) -> BTreeMap<String, Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).expect("helm writes YAML");
    documents
        .into_iter()
        .map(|mut object| {
            let annotations = object["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("annotations");
            let expected = keep.then(|| json!({ "helm.sh/resource-policy": "keep" }));
            assert_eq!(annotations, expected);
            (
                object["metadata"]["name"].as_str().unwrap().to_owned(),
                normal(&object),
            )
        })
        .collect()
}

#[test]
fn the_checked_in_definitions_are_those_of_the_types() {
    let templates = crate_path("../charts/cobalt-crds/templates");
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(templates).expect(COMMAND) {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        // Take the part that helm always writes.
        let mut kept = String::new();
        let mut skipping = false;
        for line in text.lines() {
            match line.trim() {
                "{{- if .Values.keep }}" => skipping = true,
                "{{- end }}" => skipping = false,
                _ if !skipping => kept += &format!("{}\n", line.replace("{{ \"{{\" }}", "{{")),
                _ => {}
            }
        }
        let object: Value = serde_saphyr::from_str(&kept).expect(COMMAND);
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert_eq!(object["metadata"]["name"], json!(name), "{COMMAND}");
        found.insert(name, normal(&object));
    }
    for (name, crd) in wanted() {
        assert!(found.remove(&name) == Some(crd), "{COMMAND}: {name}");
    }
    assert!(found.is_empty(), "{COMMAND}: {:?}", found.keys());
}

#[tokio::test]
async fn helm_renders_the_definitions_of_the_types() -> Result<()> {
    let (server, _) = server().await?;
    let helm = server.bin.join("helm");
    let chart = crate_path("../charts/cobalt-crds").display().to_string();
    let text = run(&helm, &["template", "crds", &chart]).await?;
    assert_eq!(rendered(&text, true), wanted());
    let text = run(&helm, &["template", "crds", &chart, "--set", "keep=false"]).await?;
    assert_eq!(rendered(&text, false), wanted());
    let refused = run(&helm, &["template", "crds", &chart, "--set", "keep=maybe"]).await;
    assert!(refused.unwrap_err().to_string().contains("keep"));
    let refused = run(&helm, &["template", "crds", &chart, "--set", "kep=true"]).await;
    assert!(refused.unwrap_err().to_string().contains("kep"));
    Ok(())
}

#[tokio::test]
async fn helm_installs_the_chart_over_existing_definitions_and_leaves_them_behind() -> Result<()> {
    let (server, client) = server().await?;
    let helm = server.bin.join("helm");
    let chart = crate_path("../charts/cobalt-crds").display().to_string();
    let kubeconfig = server.kubeconfig.display().to_string();
    let release = unique("crds").chars().take(50).collect::<String>();
    let base = [
        "--kubeconfig",
        &kubeconfig,
        "--namespace",
        crate::support::NAMESPACE,
    ];
    let mut install = vec!["install", &release, &chart, "--take-ownership"];
    install.extend(base);
    run(&helm, &install).await?;
    let mut uninstall = vec!["uninstall", &release];
    uninstall.extend(base);
    run(&helm, &uninstall).await?;
    // They are still served.
    for crd in crds::all() {
        crate::support::api(&client, &crd.spec.names.plural)
            .list(&Default::default())
            .await?;
    }
    Ok(())
}

#[test]
fn the_documentation_has_every_message() {
    let text = std::fs::read_to_string(crate_path("../docs/api.md")).unwrap();
    for node in crate::schema::nodes() {
        for message in node.rules().into_iter().flatten() {
            assert!(
                text.contains(&message),
                "docs/api.md does not say: {message}"
            );
        }
    }
}
