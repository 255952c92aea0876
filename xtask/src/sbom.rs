//! The bill of materials of a program, as CycloneDX 1.6 JSON.
//!
//! Input is `cargo metadata` for the platform that is shipped, `cargo tree` for what is really
//! built, since the metadata also has what no feature switches on, and `Cargo.lock` for the
//! checksums. Listed is what the program's package reaches by normal dependencies. What it reaches
//! only through procedural macros runs in the compiler and is not in the program: it is listed
//! with the scope `excluded`.
//!
//! The document is the same for the same input: it has no time, and its serial number is derived
//! from its content.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use cobalt_lab::oci::Digest;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::deps::{Metadata, Package, cargo};

/// What the document says of the program itself.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The package of the program.
    pub package: &'a str,
    /// The program.
    pub name: &'a str,
    /// The version that is shipped.
    pub version: &'a str,
}

/// Name and version of a package; one registry has each of them once.
type NameVersion = (String, String);

/// What cargo builds into `packages` when it builds them together.
pub fn built(packages: &[&str], target: &str) -> Result<BTreeSet<NameVersion>> {
    let mut command = cargo();
    command.args(["tree", "--locked", "--edges", "normal", "--target", target]);
    command.args(["--prefix", "none", "--format", "{p}"]);
    for package in packages {
        command.args(["--package", package]);
    }
    let output = command.output().context("failed to run cargo tree")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "cargo tree failed: {}",
        errors.trim()
    );
    parse_tree(&String::from_utf8_lossy(&output.stdout))
}

/// Reads lines of the form `name v1.2.3 (remarks)`; between two trees there is an empty one.
fn parse_tree(text: &str) -> Result<BTreeSet<NameVersion>> {
    let mut packages = BTreeSet::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        let name = words.next();
        let version = words.next().and_then(|word| word.strip_prefix('v'));
        let (name, version) = name
            .zip(version)
            .with_context(|| format!("failed to understand \"{line}\" of cargo tree"))?;
        packages.insert((name.to_owned(), version.to_owned()));
    }
    Ok(packages)
}

/// The document for one program; `lock` is the text of Cargo.lock.
pub fn document(
    metadata: &Metadata,
    built: &BTreeSet<NameVersion>,
    lock: &str,
    subject: &Subject<'_>,
) -> Result<Vec<u8>> {
    let checksums = checksums(lock)?;
    let packages: BTreeMap<&str, &Package> = metadata
        .packages
        .iter()
        .filter(|package| built.contains(&name_version(package)))
        .map(|package| (package.id.as_str(), package))
        .collect();
    let root = metadata
        .members()?
        .into_iter()
        .find(|package| package.name == subject.package)
        .with_context(|| format!("no package \"{}\" in the workspace", subject.package))?;
    let edges = edges(metadata);
    let shipped = reach(&root.id, &edges, |id| {
        packages.get(id).is_some_and(|p| !is_macro(p))
    });
    let all = reach(&root.id, &edges, |id| packages.contains_key(id));

    let mut components = BTreeMap::new();
    let mut dependencies = BTreeMap::new();
    for id in &all {
        let package = packages
            .get(id)
            .with_context(|| format!("no package \"{id}\""))?;
        let uses: BTreeSet<String> = edges
            .get(id)
            .into_iter()
            .flatten()
            .filter_map(|used| packages.get(used))
            .map(|used| bom_ref(used))
            .collect();
        dependencies.insert(
            bom_ref(package),
            json!({ "ref": bom_ref(package), "dependsOn": uses }),
        );
        if package.id != root.id {
            let scope = if shipped.contains(id) {
                "required"
            } else {
                "excluded"
            };
            components.insert(bom_ref(package), component(package, scope, &checksums));
        }
    }

    let mut main = Map::new();
    main.insert("type".to_owned(), json!("application"));
    main.insert("bom-ref".to_owned(), json!(bom_ref(root)));
    main.insert("name".to_owned(), json!(subject.name));
    main.insert("version".to_owned(), json!(subject.version));
    add_licence(&mut main, root);
    let mut document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": "",
        "version": 1,
        "metadata": { "component": main },
        "components": components.into_values().collect::<Vec<Value>>(),
        "dependencies": dependencies.into_values().collect::<Vec<Value>>(),
    });
    let serial = serial_number(&serde_json::to_vec(&document)?)?;
    if let Some(place) = document.get_mut("serialNumber") {
        *place = json!(serial);
    }
    let mut text = serde_json::to_vec_pretty(&document)?;
    text.push(b'\n');
    Ok(text)
}

/// Normal dependencies of every package.
fn edges(metadata: &Metadata) -> BTreeMap<&str, BTreeSet<&str>> {
    let nodes = metadata.resolve.nodes.iter();
    nodes
        .map(|node| {
            let normal = node.deps.iter().filter(|dependency| dependency.is_normal());
            (
                node.id.as_str(),
                normal.map(|dependency| dependency.pkg.as_str()).collect(),
            )
        })
        .collect()
}

/// What `root` reaches through packages that `through` accepts, with `root` itself.
fn reach<'a>(
    root: &'a str,
    edges: &BTreeMap<&'a str, BTreeSet<&'a str>>,
    through: impl Fn(&str) -> bool,
) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![root];
    while let Some(id) = open.pop() {
        if through(id) && reached.insert(id) {
            open.extend(edges.get(id).into_iter().flatten());
        }
    }
    reached
}

fn name_version(package: &Package) -> NameVersion {
    (package.name.clone(), package.version.clone())
}

fn is_macro(package: &Package) -> bool {
    package
        .targets
        .iter()
        .flat_map(|target| &target.kind)
        .any(|kind| kind == "proc-macro")
}

/// The package URL of a published crate. Ours are not published, and a crate of the same name in
/// the registry is somebody else's: they get a reference that no scanner takes for it.
fn bom_ref(package: &Package) -> String {
    match package.source {
        Some(_) => format!("pkg:cargo/{}@{}", package.name, package.version),
        None => format!("{}@{}", package.name, package.version),
    }
}

fn component(package: &Package, scope: &str, checksums: &BTreeMap<NameVersion, String>) -> Value {
    let mut component = Map::new();
    component.insert("type".to_owned(), json!("library"));
    component.insert("bom-ref".to_owned(), json!(bom_ref(package)));
    component.insert("name".to_owned(), json!(package.name));
    component.insert("version".to_owned(), json!(package.version));
    component.insert("scope".to_owned(), json!(scope));
    if let Some(checksum) = checksums.get(&name_version(package)) {
        component.insert(
            "hashes".to_owned(),
            json!([{ "alg": "SHA-256", "content": checksum }]),
        );
    }
    add_licence(&mut component, package);
    if package.source.is_some() {
        component.insert("purl".to_owned(), json!(bom_ref(package)));
    }
    Value::Object(component)
}

fn add_licence(component: &mut Map<String, Value>, package: &Package) {
    if let Some(licence) = &package.license {
        // Old manifests separate alternatives by a slash, which SPDX does not know.
        let expression = licence.replace(" / ", "/").replace('/', " OR ");
        component.insert("licenses".to_owned(), json!([{ "expression": expression }]));
    }
}

#[derive(Deserialize)]
struct LockFile {
    package: Vec<LockedPackage>,
}

#[derive(Deserialize)]
struct LockedPackage {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// The checksums in Cargo.lock, by name and version.
fn checksums(lock: &str) -> Result<BTreeMap<NameVersion, String>> {
    let lock: LockFile = toml::from_str(lock).context("failed to parse Cargo.lock")?;
    let packages = lock.package.into_iter();
    Ok(packages
        .filter_map(|p| Some(((p.name, p.version), p.checksum?)))
        .collect())
}

/// A UUID of the form for private use (version 8), from the hash of the content.
fn serial_number(content: &[u8]) -> Result<String> {
    let digest = Digest::of(content);
    let hex = digest.hex().get(..32).context("a digest is too short")?;
    let value = u128::from_str_radix(hex, 16)?;
    let value = value & !(0xf << 76) & !(0x3 << 62) | (0x8 << 76) | (0x2 << 62);
    let text = format!("{value:032x}");
    let mut parts = Vec::new();
    let mut rest = text.as_str();
    for length in [8, 4, 4, 4, 12] {
        let (part, after) = rest
            .split_at_checked(length)
            .context("a UUID is too short")?;
        parts.push(part);
        rest = after;
    }
    Ok(format!("urn:uuid:{}", parts.join("-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = r#"
        [[package]]
        name = "lib"
        version = "1.0.0"
        checksum = "aa"
        [[package]]
        name = "app"
        version = "0.1.0"
    "#;

    /// app -> part -> lib, and what no feature switches on; app -> macro -> syn, lib; app -> tests
    /// and builder, which are not normal. Ours: app, part.
    fn metadata() -> Metadata {
        let package = |name: &str, kind: &str, published: bool| {
            json!({
                "id": name, "name": name, "version": if published { "1.0.0" } else { "0.1.0" },
                "license": "MIT/Apache-2.0",
                "source": published.then_some("registry"),
                "manifest_path": "", "targets": [{ "kind": [kind] }], "dependencies": [],
            })
        };
        let uses = |name: &str, kind: Option<&str>| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        serde_json::from_value(json!({
            "packages": [
                package("app", "bin", false),
                package("part", "lib", false),
                package("lib", "lib", true),
                package("macro", "proc-macro", true),
                package("syn", "lib", true),
                package("tests", "lib", true),
                package("builder", "lib", true),
                package("optional", "lib", true),
            ],
            "workspace_members": ["app", "part"],
            "workspace_root": "/w",
            "target_directory": "/w/target",
            "resolve": { "nodes": [
                { "id": "app", "deps": [
                    uses("part", None), uses("macro", None),
                    uses("tests", Some("dev")), uses("builder", Some("build")),
                ] },
                { "id": "part", "deps": [uses("lib", None), uses("optional", None)] },
                { "id": "macro", "deps": [uses("syn", None), uses("lib", None)] },
            ] },
        }))
        .unwrap()
    }

    fn made(metadata: &Metadata) -> Value {
        let subject = Subject {
            package: "app",
            name: "app",
            version: "9",
        };
        let mut built: BTreeSet<NameVersion> = metadata.packages.iter().map(name_version).collect();
        built.retain(|(name, _)| name != "optional");
        serde_json::from_slice(&document(metadata, &built, LOCK, &subject).unwrap()).unwrap()
    }

    #[test]
    fn the_tree_of_cargo_is_understood() {
        let text = "cobalt v0.1.0 (/w/cli)\nclap_derive v4.6.1 (proc-macro)\n\nlib v1.0.0 (*)\n";
        let names: Vec<String> = parse_tree(text)
            .unwrap()
            .into_iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect();
        assert_eq!(names, ["clap_derive 4.6.1", "cobalt 0.1.0", "lib 1.0.0"]);
        assert!(parse_tree("something else").is_err());
    }

    #[test]
    fn the_program_and_what_it_reaches_by_normal_dependencies_are_listed() {
        let document = made(&metadata());
        assert_eq!(document["metadata"]["component"]["name"], "app");
        assert_eq!(document["metadata"]["component"]["version"], "9");
        let listed: Vec<(&str, &str)> = document["components"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| (c["bom-ref"].as_str().unwrap(), c["scope"].as_str().unwrap()))
            .collect();
        assert_eq!(
            listed,
            [
                ("part@0.1.0", "required"),
                ("pkg:cargo/lib@1.0.0", "required"),
                ("pkg:cargo/macro@1.0.0", "excluded"),
                ("pkg:cargo/syn@1.0.0", "excluded"),
            ]
        );
    }

    #[test]
    fn a_component_has_its_checksum_licence_and_package_url() {
        let document = made(&metadata());
        let lib = &document["components"][1];
        assert_eq!(lib["purl"], "pkg:cargo/lib@1.0.0");
        assert_eq!(
            lib["hashes"],
            json!([{ "alg": "SHA-256", "content": "aa" }])
        );
        assert_eq!(
            lib["licenses"],
            json!([{ "expression": "MIT OR Apache-2.0" }])
        );
        assert!(
            document["components"][0].get("purl").is_none(),
            "ours is not in the registry"
        );
    }

    #[test]
    fn every_reference_of_the_graph_is_listed() {
        let document = made(&metadata());
        let mut known: BTreeSet<&str> = BTreeSet::from(["app@0.1.0"]);
        let components = document["components"].as_array().unwrap();
        known.extend(components.iter().map(|c| c["bom-ref"].as_str().unwrap()));
        let dependencies = document["dependencies"].as_array().unwrap();
        assert_eq!(dependencies.len(), known.len());
        for dependency in dependencies {
            assert!(known.contains(dependency["ref"].as_str().unwrap()));
            for used in dependency["dependsOn"].as_array().unwrap() {
                assert!(known.contains(used.as_str().unwrap()), "{used}");
            }
        }
        assert_eq!(
            dependencies[0]["dependsOn"],
            json!(["part@0.1.0", "pkg:cargo/macro@1.0.0"]),
        );
    }

    #[test]
    fn the_order_of_the_input_does_not_matter_and_its_content_does() {
        let mut reversed = metadata();
        reversed.packages.reverse();
        reversed.resolve.nodes.reverse();
        assert_eq!(made(&reversed), made(&metadata()));
        let mut other = metadata();
        other.packages[2].version = "1.0.1".to_owned();
        assert_ne!(
            made(&other)["serialNumber"],
            made(&metadata())["serialNumber"]
        );
    }

    #[test]
    fn the_serial_number_is_a_uuid() {
        let serial = serial_number(b"content").unwrap();
        let uuid = serial.strip_prefix("urn:uuid:").unwrap();
        let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(uuid.as_bytes()[14], b'8');
        assert!(matches!(uuid.as_bytes()[19], b'8' | b'9' | b'a' | b'b'));
    }
}
