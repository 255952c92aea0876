//! The API server, the fixtures, and small tools over JSON.

use std::{
    path::{Path, PathBuf},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

use anyhow::{Result, bail};
use cobalt_api::crds;
use cobalt_lab::testing::{ApiServer, api_server, install_definitions};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::DynamicObject,
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Map, Value};
use tokio::sync::OnceCell;

/// The namespace of namespaced test objects. It is always there.
pub const NAMESPACE: &str = "default";

/// The API server, with the definitions installed. Each test has its own client, because a client
/// belongs to the runtime of its test.
pub async fn server() -> Result<(&'static ApiServer, Client)> {
    static SERVER: OnceCell<ApiServer> = OnceCell::const_new();
    let server = SERVER.get_or_try_init(prepare).await?;
    Ok((server, server.client().await?))
}

async fn prepare() -> Result<ApiServer> {
    let server = api_server().await?;
    install_definitions(&server.client().await?, definitions()).await?;
    Ok(server)
}

/// A name that no other test uses.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let now = jiff::Timestamp::now().as_nanosecond();
    format!(
        "{prefix}-{}-{}-{now}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// Every definition. They are built once, because the schemas take a while without optimization.
pub fn definitions() -> &'static [CustomResourceDefinition] {
    static ALL: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(crds::all);
    &ALL
}

/// The definition with the given plural.
pub fn crd(plural: &str) -> &'static CustomResourceDefinition {
    definitions()
        .iter()
        .find(|crd| crd.spec.names.plural == plural)
        .expect("a known plural")
}

/// Untyped access to the objects of one definition, in the namespace of the tests if there is one.
pub fn api(client: &Client, plural: &str) -> Api<DynamicObject> {
    let crd = crd(plural);
    let gvk = GroupVersionKind::gvk(
        &crd.spec.group,
        &crd.spec.versions[0].name,
        &crd.spec.names.kind,
    );
    let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
    if crd.spec.scope == "Namespaced" {
        Api::namespaced_with(client.clone(), NAMESPACE, &resource)
    } else {
        Api::all_with(client.clone(), &resource)
    }
}

/// A directory of this crate.
pub fn crate_path(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(below)
}

/// Every fixture: its file name and its object.
pub fn fixtures() -> &'static [(String, Value)] {
    static ALL: LazyLock<Vec<(String, Value)>> = LazyLock::new(read_fixtures);
    &ALL
}

fn read_fixtures() -> Vec<(String, Value)> {
    let directory = crate_path("tests/fixtures");
    let mut found: Vec<_> = std::fs::read_dir(directory)
        .expect("the fixtures are there")
        .map(|entry| entry.expect("a readable directory").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .map(|path| {
            let name = path
                .file_name()
                .expect("a file name")
                .to_string_lossy()
                .into_owned();
            let text = std::fs::read_to_string(&path).expect("a readable fixture");
            (
                name,
                serde_saphyr::from_str(&text).expect("a fixture is YAML"),
            )
        })
        .collect();
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found
}

/// One fixture.
pub fn fixture(name: &str) -> &'static Value {
    fixtures()
        .iter()
        .find_map(|(found, object)| (found == name).then_some(object))
        .expect("a known fixture")
}

/// The plural of the kind of an object.
pub fn plural(object: &Value) -> &'static str {
    let kind = object["kind"].as_str().expect("an object has a kind");
    let crd = definitions()
        .iter()
        .find(|crd| crd.spec.names.kind == kind)
        .expect("a known kind");
    &crd.spec.names.plural
}

/// An object as the API server takes it.
pub fn dynamic(object: &Value) -> DynamicObject {
    serde_json::from_value(object.clone()).expect("an object of Kubernetes")
}

/// The same without nulls, which the API server drops, and with every number in one form.
pub fn normal(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| (name.clone(), normal(value)))
                .collect::<Map<_, _>>(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(normal).collect()),
        Value::Number(number) => number.as_f64().map_or(Value::Null, Value::from),
        other => other.clone(),
    }
}

/// Runs a program and returns what it wrote.
pub async fn run(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = tokio::process::Command::new(program)
        .args(arguments)
        .output()
        .await?;
    if !output.status.success() {
        bail!(
            "{} {arguments:?} ended with {}: {}",
            program.display(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}
