//! `cargo xtask deps`: who may depend on whom.
//!
//! Input is `cargo metadata` and the members' manifests; output is a list of violations, each with
//! the crate, what it must not use, the way it gets there and the reason. The rules are the table
//! [`RULES`]; a rule for a folder that does not exist yet waits for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// What a crate must keep to. Normal and build dependencies count, however far away; development
/// dependencies only where a rule says so.
#[derive(Debug)]
struct Rule {
    /// Folders of the crates that it is for; `x/*` is every folder directly in `x`, and `!x/y` takes
    /// one out again.
    who: &'static [&'static str],
    check: Check,
    reason: &'static str,
}

#[derive(Debug)]
enum Check {
    /// Crates of ours, by folder, that are never reached; and never named directly as development
    /// dependencies either if `dev`.
    NeverOurs {
        folders: &'static [&'static str],
        dev: bool,
    },
    /// Other crates that are never reached.
    NeverPackages(&'static [&'static str]),
    /// The only crates that may be named directly.
    Only(&'static [Allowed]),
}

/// A crate that may be used, and which of its features.
#[derive(Debug)]
struct Allowed {
    package: &'static str,
    /// Only these features, and not the default ones; anything if there is no list.
    features: Option<&'static [&'static str]>,
}

const fn any(package: &'static str) -> Allowed {
    Allowed {
        package,
        features: None,
    }
}

const KUBERNETES: &[&str] = &[
    "k8s-openapi",
    "kube",
    "kube-client",
    "kube-core",
    "kube-runtime",
];

const RULES: &[Rule] = &[
    Rule {
        who: &["api"],
        check: Check::Only(&[
            any("jiff"),
            Allowed {
                package: "k8s-openapi",
                features: Some(&["schemars", "std"]),
            },
            Allowed {
                package: "kube",
                features: Some(&["derive"]),
            },
            any("schemars"),
            any("serde"),
            any("serde_json"),
        ]),
        reason: "the API types are for everybody: no client, no runtime, nothing of ours, and the \
                 Kubernetes version is chosen by binaries",
    },
    Rule {
        who: &["clients/*"],
        check: Check::NeverPackages(KUBERNETES),
        reason: "a client knows its protocol and nothing of Kubernetes",
    },
    Rule {
        who: &["clients/*"],
        check: Check::NeverOurs {
            folders: &[
                "agents/*",
                "api",
                "clients/*",
                "!clients/wire",
                "operators/*",
                "runtime",
            ],
            dev: true,
        },
        reason: "a client knows its protocol and nothing of us or of the other clients",
    },
    Rule {
        who: &["runtime"],
        check: Check::NeverOurs {
            folders: &["agents/*", "api", "clients/*", "operators/*"],
            dev: false,
        },
        reason: "the runtime is what every binary shares: it knows Kubernetes, not our types",
    },
    Rule {
        who: &["controller"],
        check: Check::NeverOurs {
            folders: &["agents/*", "api", "clients/*", "operators/*"],
            dev: false,
        },
        reason: "the kit is what every operator shares: it knows Kubernetes, not our types",
    },
    Rule {
        who: &["operators/*"],
        check: Check::NeverOurs {
            folders: &["clients/libvirt", "clients/ovs"],
            dev: false,
        },
        reason: "an operator never talks to a host; the agent on it does",
    },
    Rule {
        who: &["agents/*"],
        check: Check::NeverOurs {
            folders: &["clients/openstack"],
            dev: false,
        },
        reason: "an agent holds no cloud credentials",
    },
    Rule {
        who: &["operators/*"],
        check: Check::NeverOurs {
            folders: &["agents/*", "operators/*"],
            dev: false,
        },
        reason: "components meet in the Kubernetes API only, so that each is shipped alone",
    },
    Rule {
        who: &["agents/*"],
        check: Check::NeverOurs {
            folders: &["agents/*", "operators/*"],
            dev: false,
        },
        reason: "components meet in the Kubernetes API only, so that each is shipped alone",
    },
    Rule {
        who: &["console"],
        check: Check::NeverOurs {
            folders: &["agents/*", "clients/*", "operators/*"],
            dev: false,
        },
        reason: "the console reads the Kubernetes API and nothing else",
    },
    Rule {
        who: &["cli"],
        check: Check::NeverOurs {
            folders: &[
                "agents/*",
                "clients/*",
                "!clients/wire",
                "console",
                "operators/*",
            ],
            dev: false,
        },
        reason: "the command has no business rules: they live in the operators",
    },
    Rule {
        who: &[
            "agents/*",
            "api",
            "clients/*",
            "console",
            "controller",
            "operators/*",
            "runtime",
        ],
        check: Check::NeverOurs {
            folders: &["lab"],
            dev: false,
        },
        reason: "nothing in the product knows of the lab; tests may use it",
    },
    Rule {
        who: &["lab"],
        check: Check::NeverOurs {
            folders: &["agents/*", "api", "operators/*"],
            dev: true,
        },
        reason: "the lab installs what is shipped; a part of the product inside it would be tested \
                 against itself",
    },
    Rule {
        who: &[
            "agents/*",
            "api",
            "cli",
            "clients/*",
            "console",
            "lab",
            "operators/*",
            "runtime",
        ],
        check: Check::NeverOurs {
            folders: &["xtask"],
            dev: true,
        },
        reason: "the tasks build everything, so nothing is built from them",
    },
];

/// Runs the check on this workspace.
pub fn run() -> Result<()> {
    let metadata = Metadata::load(None)?;
    let mut problems: Vec<String> = violations(&metadata.graph()?, RULES)
        .iter()
        .map(ToString::to_string)
        .collect();
    let members = metadata.members()?;
    for member in &members {
        let manifest = std::fs::read_to_string(&member.manifest_path)
            .with_context(|| format!("failed to read {}", member.manifest_path.display()))?;
        let manifest: toml::Table = manifest
            .parse()
            .with_context(|| format!("failed to parse {}", member.manifest_path.display()))?;
        problems.extend(manifest_problems(&member.name, &manifest));
    }
    if problems.is_empty() {
        println!("{} crates keep to {} rules", members.len(), RULES.len());
        return Ok(());
    }
    for problem in &problems {
        eprintln!("{problem}");
    }
    bail!("{} dependency rules are broken", problems.len())
}

/// A crate that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    package: String,
    /// What it uses, in words.
    uses: String,
    /// From the crate to what it must not use.
    path: Vec<String>,
    reason: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            package,
            uses,
            path,
            reason,
        } = self;
        let path = path.join(" -> ");
        write!(
            f,
            "{package} must not use {uses}\n  path:   {path}\n  reason: {reason}"
        )
    }
}

/// Who uses whom; the keys are cargo's package identifiers.
#[derive(Debug, Default)]
struct Graph {
    packages: BTreeMap<String, Node>,
}

#[derive(Debug, Default)]
struct Node {
    name: String,
    /// The folder in the workspace, for crates of ours.
    folder: Option<String>,
    /// Normal and build dependencies.
    edges: BTreeSet<String>,
    /// Development dependencies.
    dev_edges: BTreeSet<String>,
    /// Normal and build dependencies as the manifest states them.
    declared: Vec<Declared>,
}

#[derive(Debug)]
struct Declared {
    package: String,
    features: Vec<String>,
    default_features: bool,
}

impl Graph {
    fn name(&self, id: &str) -> String {
        self.packages
            .get(id)
            .map_or_else(|| id.to_owned(), |node| node.name.clone())
    }

    /// The shortest way from `start` to every package that it reaches, without `start` itself.
    fn reached(&self, start: &str) -> BTreeMap<&str, Vec<String>> {
        let mut ways: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let mut queue = VecDeque::from([(start, vec![self.name(start)])]);
        while let Some((id, way)) = queue.pop_front() {
            for next in self
                .packages
                .get(id)
                .into_iter()
                .flat_map(|node| &node.edges)
            {
                if next != start && !ways.contains_key(next.as_str()) {
                    let mut way = way.clone();
                    way.push(self.name(next));
                    ways.insert(next, way.clone());
                    queue.push_back((next, way));
                }
            }
        }
        ways
    }
}

/// Everything in `graph` that breaks one of `rules`.
fn violations(graph: &Graph, rules: &[Rule]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (id, node) in &graph.packages {
        let Some(folder) = &node.folder else { continue };
        for rule in rules.iter().filter(|rule| matches_any(rule.who, folder)) {
            let mut violation = |uses: String, path: Vec<String>| {
                let package = node.name.clone();
                found.push(Violation {
                    package,
                    uses,
                    path,
                    reason: rule.reason,
                });
            };
            match &rule.check {
                Check::NeverOurs { folders, dev } => {
                    let folder_of = |id: &str| graph.packages.get(id)?.folder.clone();
                    let forbidden =
                        |id: &str| folder_of(id).is_some_and(|f| matches_any(folders, &f));
                    for (reached, way) in graph.reached(id) {
                        if forbidden(reached) {
                            violation(graph.name(reached), way);
                        }
                    }
                    for used in node.dev_edges.iter().filter(|used| *dev && forbidden(used)) {
                        let name = graph.name(used);
                        let path = vec![node.name.clone(), name.clone()];
                        violation(format!("{name} as a development dependency"), path);
                    }
                }
                Check::NeverPackages(names) => {
                    for (reached, way) in graph.reached(id) {
                        let name = graph.name(reached);
                        if names.contains(&name.as_str()) {
                            violation(name, way);
                        }
                    }
                }
                Check::Only(allowed) => {
                    for declared in &node.declared {
                        if let Some(uses) = refused(declared, allowed) {
                            violation(uses, vec![node.name.clone(), declared.package.clone()]);
                        }
                    }
                }
            }
        }
    }
    found
}

/// What is wrong with a stated dependency, if anything is.
fn refused(declared: &Declared, allowed: &[Allowed]) -> Option<String> {
    let package = &declared.package;
    let Some(allowed) = allowed.iter().find(|allowed| allowed.package == package) else {
        return Some(package.clone());
    };
    let features = allowed.features?;
    if declared.default_features {
        return Some(format!("{package} with its default features"));
    }
    let others = declared
        .features
        .iter()
        .filter(|feature| !features.contains(&feature.as_str()));
    let others: Vec<&str> = others.map(String::as_str).collect();
    (!others.is_empty()).then(|| format!("{package} with the features {}", others.join(", ")))
}

fn matches_any(patterns: &[&str], folder: &str) -> bool {
    let matches = |pattern: &str| match pattern.strip_suffix("/*") {
        Some(parent) => folder
            .rsplit_once('/')
            .is_some_and(|(start, _)| start == parent),
        None => pattern == folder,
    };
    let except = |pattern: &&str| pattern.strip_prefix('!').is_some_and(matches);
    patterns.iter().copied().any(matches) && !patterns.iter().any(except)
}

/// What a member says itself although the workspace has to.
fn manifest_problems(name: &str, manifest: &toml::Table) -> Vec<String> {
    let from_workspace = |value: Option<&toml::Value>| {
        value
            .and_then(|value| value.get("workspace"))
            .and_then(toml::Value::as_bool)
            == Some(true)
    };
    let mut problems = Vec::new();
    if !from_workspace(manifest.get("lints")) {
        problems.push(format!(
            "{name} does not take its lints from the workspace\n  reason: one set of lints holds \
             for all; write `workspace = true` under `[lints]`"
        ));
    }
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let targets = targets.into_iter().flat_map(|targets| targets.values());
    for table in std::iter::once(manifest).chain(targets.filter_map(toml::Value::as_table)) {
        for kind in ["build-dependencies", "dependencies", "dev-dependencies"] {
            let dependencies = table.get(kind).and_then(toml::Value::as_table);
            for (dependency, value) in dependencies.into_iter().flatten() {
                if !from_workspace(Some(value)) {
                    problems.push(format!(
                        "{name} states the version of {dependency} itself\n  reason: one version \
                         of each crate holds for all; list it in the workspace and write \
                         `{dependency}.workspace = true`"
                    ));
                }
            }
        }
    }
    problems
}

/// The part of `cargo metadata` that the tasks use.
#[derive(Debug, Deserialize)]
pub struct Metadata {
    /// All packages of the lock file that the platform needs.
    pub packages: Vec<Package>,
    /// The identifiers of ours.
    pub workspace_members: BTreeSet<String>,
    /// The directory of the workspace.
    pub workspace_root: PathBuf,
    /// Where cargo puts what it builds.
    pub target_directory: PathBuf,
    /// Who uses whom.
    pub resolve: Resolve,
}

/// A package.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// Cargo's identifier.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its licence, as an SPDX expression.
    pub license: Option<String>,
    /// Where it comes from; nothing for a folder.
    pub source: Option<String>,
    /// Its Cargo.toml.
    pub manifest_path: PathBuf,
    /// Its libraries and programs.
    pub targets: Vec<Target>,
    dependencies: Vec<Dependency>,
}

/// A library or program of a package.
#[derive(Debug, Deserialize)]
pub struct Target {
    /// `lib`, `bin`, `proc-macro` ...
    pub kind: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    features: Vec<String>,
    uses_default_features: bool,
}

/// The resolved dependencies.
#[derive(Debug, Deserialize)]
pub struct Resolve {
    /// One for each package.
    pub nodes: Vec<ResolvedNode>,
}

/// The resolved dependencies of one package.
#[derive(Debug, Deserialize)]
pub struct ResolvedNode {
    /// The package.
    pub id: String,
    /// What it uses.
    pub deps: Vec<ResolvedDependency>,
}

/// A resolved dependency.
#[derive(Debug, Deserialize)]
pub struct ResolvedDependency {
    /// The package that is used.
    pub pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Debug, Deserialize)]
struct DependencyKind {
    kind: Option<String>,
}

impl ResolvedDependency {
    /// Whether it is used in the program itself, not only to build or test it.
    pub fn is_normal(&self) -> bool {
        self.dep_kinds.iter().any(|kind| kind.kind.is_none())
    }

    fn is_dev(&self) -> bool {
        self.dep_kinds
            .iter()
            .any(|kind| kind.kind.as_deref() == Some("dev"))
    }

    fn is_normal_or_build(&self) -> bool {
        self.dep_kinds
            .iter()
            .any(|kind| kind.kind.as_deref() != Some("dev"))
    }
}

impl Metadata {
    /// Asks cargo; for one platform, or for all.
    pub fn load(platform: Option<&str>) -> Result<Self> {
        let mut command = cargo();
        command.args(["metadata", "--format-version", "1", "--locked"]);
        if let Some(platform) = platform {
            command.args(["--filter-platform", platform]);
        }
        let output = command.output().context("failed to run cargo metadata")?;
        if !output.status.success() {
            bail!(
                "cargo metadata failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        serde_json::from_slice(&output.stdout).context("failed to parse cargo metadata")
    }

    /// The crates of ours.
    pub fn members(&self) -> Result<Vec<&Package>> {
        let members: Vec<&Package> = self
            .packages
            .iter()
            .filter(|package| self.workspace_members.contains(&package.id))
            .collect();
        if members.len() != self.workspace_members.len() {
            bail!("cargo metadata names a member of the workspace that it does not describe");
        }
        Ok(members)
    }

    fn graph(&self) -> Result<Graph> {
        let mut graph = Graph::default();
        for package in &self.packages {
            let ours = self.workspace_members.contains(&package.id);
            let folder = ours
                .then(|| self.folder(&package.manifest_path))
                .transpose()?;
            let declared = package
                .dependencies
                .iter()
                .filter(|dependency| dependency.kind.as_deref() != Some("dev"))
                .map(|dependency| Declared {
                    package: dependency.name.clone(),
                    features: dependency.features.clone(),
                    default_features: dependency.uses_default_features,
                })
                .collect();
            let name = package.name.clone();
            let node = Node {
                name,
                folder,
                declared,
                ..Node::default()
            };
            graph.packages.insert(package.id.clone(), node);
        }
        for resolved in &self.resolve.nodes {
            let Some(node) = graph.packages.get_mut(&resolved.id) else {
                continue;
            };
            for dependency in &resolved.deps {
                if dependency.is_normal_or_build() {
                    node.edges.insert(dependency.pkg.clone());
                }
                if dependency.is_dev() {
                    node.dev_edges.insert(dependency.pkg.clone());
                }
            }
        }
        Ok(graph)
    }

    /// The folder of a manifest, relative to the workspace.
    fn folder(&self, manifest: &Path) -> Result<String> {
        let folder = manifest
            .parent()
            .and_then(|dir| dir.strip_prefix(&self.workspace_root).ok());
        let folder = folder.and_then(Path::to_str);
        let folder = folder
            .with_context(|| format!("{} is not inside the workspace", manifest.display()))?;
        Ok(folder.to_owned())
    }
}

/// The cargo that runs this task, else the one on the search path.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Crates of ours are given by folder and named `cobalt-<last component>`; what is not a
    /// folder is a foreign package.
    #[derive(Default)]
    struct World(Graph);

    impl World {
        fn ours(mut self, folder: &str, uses: &[&str]) -> Self {
            let name = format!("cobalt-{}", folder.rsplit('/').next().unwrap());
            self.node(folder, &name, Some(folder), uses);
            self
        }

        fn foreign(mut self, name: &str, uses: &[&str]) -> Self {
            self.node(name, name, None, uses);
            self
        }

        fn dev(mut self, folder: &str, uses: &str) -> Self {
            let node = self.0.packages.get_mut(folder).unwrap();
            node.dev_edges.insert(uses.to_owned());
            self
        }

        fn states(mut self, folder: &str, package: &str, features: &[&str], default: bool) -> Self {
            let features = features.iter().map(ToString::to_string).collect();
            let declared = Declared {
                package: package.to_owned(),
                features,
                default_features: default,
            };
            self.0
                .packages
                .get_mut(folder)
                .unwrap()
                .declared
                .push(declared);
            self
        }

        fn node(&mut self, id: &str, name: &str, folder: Option<&str>, uses: &[&str]) {
            let edges: BTreeSet<String> = uses.iter().map(ToString::to_string).collect();
            let folder = folder.map(str::to_owned);
            let name = name.to_owned();
            let node = Node {
                name,
                folder,
                edges,
                ..Node::default()
            };
            self.0.packages.insert(id.to_owned(), node);
        }

        /// The path of every violation.
        fn check(&self) -> Vec<String> {
            violations(&self.0, RULES)
                .iter()
                .map(|found| found.path.join(" -> "))
                .collect()
        }
    }

    #[test]
    fn the_intended_structure_is_accepted() {
        let world = World::default()
            .foreign("tokio", &[])
            .foreign("kube", &["tokio"])
            .ours("lab", &["kube"])
            .ours("api", &["kube"])
            .dev("api", "lab")
            .states("api", "kube", &["derive"], false)
            .states("api", "serde", &["derive"], true)
            .ours("clients/wire", &["tokio"])
            .dev("clients/wire", "lab")
            .ours("clients/libvirt", &["clients/wire", "tokio"])
            .dev("clients/libvirt", "lab")
            .ours("clients/ovs", &["clients/wire", "tokio"])
            .ours("clients/openstack", &["tokio"])
            .ours("runtime", &["kube"])
            .ours(
                "operators/hypervisor",
                &["api", "runtime", "clients/openstack"],
            )
            .dev("operators/hypervisor", "lab")
            .ours(
                "agents/node",
                &[
                    "api",
                    "runtime",
                    "clients/libvirt",
                    "clients/ovs",
                    "clients/wire",
                ],
            )
            .ours("console", &["api", "runtime"])
            .ours("cli", &["api", "clients/wire", "lab"])
            .ours("xtask", &["api", "lab"]);
        assert_eq!(world.check(), Vec::<String>::new());
    }

    #[test]
    fn every_forbidden_direction_is_refused() {
        for (who, uses) in [
            ("clients/libvirt", "kube"),
            ("clients/ovs", "api"),
            ("clients/ovs", "clients/libvirt"),
            ("clients/wire", "kube"),
            ("clients/wire", "clients/ovs"),
            ("clients/wire", "runtime"),
            ("clients/openstack", "runtime"),
            ("runtime", "api"),
            ("runtime", "clients/ovs"),
            ("operators/hypervisor", "clients/libvirt"),
            ("operators/hypervisor", "clients/ovs"),
            ("operators/hypervisor", "agents/node"),
            ("agents/node", "clients/openstack"),
            ("agents/node", "operators/hypervisor"),
            ("console", "clients/openstack"),
            ("cli", "operators/hypervisor"),
            ("cli", "clients/libvirt"),
            ("api", "lab"),
            ("clients/libvirt", "lab"),
            ("runtime", "lab"),
            ("operators/hypervisor", "lab"),
            ("agents/node", "lab"),
            ("console", "lab"),
            ("lab", "api"),
            ("lab", "operators/hypervisor"),
            ("lab", "agents/node"),
            ("lab", "xtask"),
        ] {
            let world = if uses == "kube" {
                World::default().foreign(uses, &[])
            } else {
                World::default().ours(uses, &[])
            };
            let found = world.ours(who, &[uses]).check();
            assert_eq!(found.len(), 1, "{who} uses {uses}: {found:?}");
        }
    }

    #[test]
    fn a_violation_far_away_is_found_and_the_way_to_it_is_told() {
        let world = World::default()
            .foreign("kube", &[])
            .foreign("helper", &["kube"])
            .foreign("detour", &["helper"])
            .ours("clients/ovs", &["detour", "helper"]);
        let found = violations(&world.0, RULES);
        assert_eq!(
            found.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                "cobalt-ovs must not use kube\n  path:   cobalt-ovs -> helper -> kube\n  reason: a \
              client knows its protocol and nothing of Kubernetes"
            ],
        );
    }

    #[test]
    fn development_dependencies_count_only_where_a_rule_says_so() {
        let world = World::default()
            .ours("api", &[])
            .ours("lab", &[])
            .ours("runtime", &[]);
        let world = world.dev("runtime", "api").dev("api", "lab");
        assert_eq!(world.check(), Vec::<String>::new());
        assert_eq!(
            world.dev("lab", "api").check(),
            ["cobalt-lab -> cobalt-api"]
        );
    }

    #[test]
    fn a_cycle_of_development_dependencies_does_not_confuse_the_search() {
        let world = World::default().foreign("a", &["b"]).foreign("b", &["a"]);
        assert_eq!(world.ours("lab", &["a"]).check(), Vec::<String>::new());
    }

    #[test]
    fn the_api_may_name_only_its_list_and_only_those_features() {
        let world = World::default().ours("api", &[]);
        let uses = |world: World| -> Vec<String> {
            violations(&world.0, RULES)
                .into_iter()
                .map(|violation| violation.uses)
                .collect()
        };
        assert_eq!(uses(world.states("api", "tokio", &[], false)), ["tokio"]);
        let world = World::default().ours("api", &[]);
        let world = world.states("api", "kube", &["derive", "client"], false);
        assert_eq!(uses(world), ["kube with the features client"]);
        let world = World::default()
            .ours("api", &[])
            .states("api", "kube", &["derive"], true);
        assert_eq!(uses(world), ["kube with its default features"]);
        let world =
            World::default()
                .ours("api", &[])
                .states("api", "k8s-openapi", &["v1_36"], false);
        assert_eq!(uses(world), ["k8s-openapi with the features v1_36"]);
    }

    #[test]
    fn folders_match_one_level() {
        assert!(matches_any(&["clients/*"], "clients/ovs"));
        assert!(!matches_any(&["clients/*"], "clients"));
        assert!(!matches_any(&["clients/*"], "clients/ovs/fuzz"));
        assert!(!matches_any(&["api"], "api2"));
        assert!(matches_any(&["clients/*", "!clients/wire"], "clients/ovs"));
        assert!(!matches_any(
            &["clients/*", "!clients/wire"],
            "clients/wire"
        ));
    }

    #[test]
    fn a_member_takes_lints_and_versions_from_the_workspace() {
        let problems = |text: &str| manifest_problems("x", &text.parse().unwrap());
        let good = "[lints]\nworkspace = true\n[dependencies]\na.workspace = true\n\
                    b = { workspace = true, features = [\"c\"] }\n";
        assert_eq!(problems(good), Vec::<String>::new());
        let found = problems("[dependencies]\na.workspace = true\n");
        assert!(
            found[0].starts_with("x does not take its lints"),
            "{found:?}"
        );
        for bad in [
            "[dependencies]\na = \"1\"\n",
            "[dependencies]\na = { version = \"1\" }\n",
            "[dependencies]\na = { path = \"../a\" }\n",
            "[dev-dependencies]\na = \"1\"\n",
            "[build-dependencies]\na = \"1\"\n",
            "[target.'cfg(unix)'.dependencies]\na = \"1\"\n",
        ] {
            let found = problems(&format!("{bad}[lints]\nworkspace = true\n"));
            assert_eq!(found.len(), 1, "{bad}");
            assert!(
                found[0].starts_with("x states the version of a"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn every_rule_says_why() {
        assert!(
            RULES
                .iter()
                .all(|rule| !rule.reason.is_empty() && !rule.who.is_empty())
        );
    }
}
