//! The Kubernetes programs: taken where a fitting version exists, else built from the Go module
//! in `lab/go` and kept in the cache.
//!
//! The module is part of this binary, so a `cobalt` outside a checkout can build them too.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cache;
use crate::command::{Run, which};
use crate::paths::{Paths, lock, write_atomic};
use crate::report::Report;

const MODULE: [(&str, &str); 3] = [
    ("go.mod", include_str!("../go/go.mod")),
    ("go.sum", include_str!("../go/go.sum")),
    ("coredns/main.go", include_str!("../go/coredns/main.go")),
];

/// One program of the cache.
#[derive(Debug)]
struct Tool {
    name: &'static str,
    /// Its main package; none for the commands of Kubernetes itself.
    package: Option<&'static str>,
    /// The module in go.mod whose version the program reports.
    module: &'static str,
    version_arguments: &'static [&'static str],
    /// Cold on two cores, in this order (each one finds what the one before has compiled).
    seconds: u64,
}

const KUBERNETES: &str = "k8s.io/kubernetes";

const TOOLS: [Tool; 9] = [
    Tool {
        name: "etcd",
        package: Some("go.etcd.io/etcd/server/v3"),
        module: "go.etcd.io/etcd/server/v3",
        version_arguments: &["--version"],
        seconds: 60,
    },
    kubernetes("kube-apiserver", &["--version"], 245),
    kubernetes("kube-controller-manager", &["--version"], 120),
    kubernetes("kube-scheduler", &["--version"], 10),
    kubernetes("kubelet", &["--version"], 25),
    kubernetes("kube-proxy", &["--version"], 10),
    kubernetes("kubectl", &["version", "--client"], 50),
    Tool {
        name: "coredns",
        package: Some("./coredns"),
        module: "github.com/coredns/coredns",
        version_arguments: &["-version"],
        seconds: 30,
    },
    Tool {
        name: "helm",
        package: Some("helm.sh/helm/v4/cmd/helm"),
        module: "helm.sh/helm/v4",
        version_arguments: &["version", "--short"],
        seconds: 40,
    },
];

const fn kubernetes(name: &'static str, ask: &'static [&'static str], seconds: u64) -> Tool {
    Tool {
        name,
        package: None,
        module: KUBERNETES,
        version_arguments: ask,
        seconds,
    }
}

/// Makes every program available and returns the directory that has them all.
pub async fn ensure(paths: &Paths, report: &Report) -> Result<PathBuf> {
    let dir = paths.cache.join(format!("kube-{}", module_hash()));
    if missing(&dir).is_empty() {
        return Ok(dir);
    }
    std::fs::create_dir_all(&dir).with_context(|| format!("failed to make {}", dir.display()))?;
    // One builder at a time; who comes second finds the work done.
    let _lock = lock(dir.join(".lock"), report).await?;
    let mut to_build = Vec::new();
    for tool in missing(&dir) {
        match fitting(tool, &candidates(tool.name)).await {
            Some(found) => {
                install(&found, &dir.join(tool.name))?;
                report.note(format!("{} taken from {}", tool.name, found.display()));
            }
            None => to_build.push(tool),
        }
    }
    build(&dir, &to_build, report).await?;
    Ok(dir)
}

/// What [`ensure`] would have to make.
pub fn is_ready(paths: &Paths) -> bool {
    missing(&paths.cache.join(format!("kube-{}", module_hash()))).is_empty()
}

fn missing(dir: &Path) -> Vec<&'static Tool> {
    TOOLS
        .iter()
        .filter(|tool| !dir.join(tool.name).is_file())
        .collect()
}

async fn build(dir: &Path, tools: &[&'static Tool], report: &Report) -> Result<()> {
    if tools.is_empty() {
        return Ok(());
    }
    if which("go").is_none() {
        let names: Vec<&str> = tools.iter().map(|tool| tool.name).collect();
        bail!(
            "no Go toolchain found, and {} must be built: install Go {} or newer (any Go from \
             1.21 fetches it by itself), or put prebuilt binaries of version {} on PATH or in \
             KUBEBUILDER_ASSETS",
            names.join(", "),
            go_version().unwrap_or("1.26"),
            pinned(KUBERNETES).unwrap_or("unknown"),
        );
    }
    let module = dir.join(".module");
    for (name, content) in MODULE {
        let file = module.join(name);
        if let Some(parent) = file.parent() {
            std::fs::create_dir_all(parent)
                .with_context(|| format!("failed to make {}", parent.display()))?;
        }
        write_atomic(&file, content.as_bytes())?;
    }
    let total: u64 = tools.iter().map(|tool| tool.seconds).sum();
    report.note(format!(
        "building {} Kubernetes programs, once for this machine: about {} min on two cores",
        tools.len(),
        total.div_ceil(60)
    ));
    let flags = format!("-s -w {}", version_flags()?);
    for tool in tools {
        let step = report.long_step(
            format!("build {}", tool.name),
            Duration::from_secs(tool.seconds),
        );
        let partial = dir.join(format!(".{}.partial", tool.name));
        let package = tool.package.map_or_else(
            || format!("{KUBERNETES}/cmd/{}", tool.name),
            ToOwned::to_owned,
        );
        Run::new(
            "go",
            [
                "build",
                "-mod=readonly",
                "-trimpath",
                "-buildvcs=false",
                "-ldflags",
            ],
        )
        .arguments([
            flags.as_ref(),
            "-o".as_ref(),
            partial.as_os_str(),
            package.as_ref(),
        ])
        // Equal for all programs: the build cache is shared, only the first one is slow.
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "")
        .dir(&module)
        .deadline(Duration::from_secs(45 * 60))
        .output()
        .await
        .with_context(|| format!("failed to build {}", tool.name))?;
        std::fs::rename(&partial, dir.join(tool.name))
            .with_context(|| format!("failed to install {}", tool.name))?;
        step.done();
    }
    Ok(())
}

/// Without these the server calls itself `v0.0.0-master+$Format:%H$`, which clients cannot parse.
fn version_flags() -> Result<String> {
    let version = pinned(KUBERNETES).context("go.mod does not pin k8s.io/kubernetes")?;
    let (major, minor) = major_minor(version).context("the pinned Kubernetes version is odd")?;
    let mut flags = String::new();
    for package in [
        "k8s.io/component-base/version",
        "k8s.io/client-go/pkg/version",
    ] {
        for (name, value) in [
            ("gitVersion", version),
            ("gitMajor", &major.to_string()),
            ("gitMinor", &minor.to_string()),
            ("gitCommit", "module"),
            ("gitTreeState", "clean"),
            ("buildDate", "1970-01-01T00:00:00Z"),
        ] {
            flags.push_str(&format!(" -X {package}.{name}={value}"));
        }
    }
    let helm = pinned("helm.sh/helm/v4").context("go.mod does not pin helm")?;
    flags.push_str(&format!(
        " -X helm.sh/helm/v4/internal/version.version={helm}"
    ));
    Ok(flags)
}

/// Where a program may be found outside the cache.
fn candidates(name: &str) -> Vec<PathBuf> {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    assets
        .map(|dir| dir.join(name))
        .into_iter()
        .chain(which(name))
        .filter(|path| path.is_file())
        .collect()
}

/// The first candidate of the pinned minor version.
async fn fitting(tool: &Tool, candidates: &[PathBuf]) -> Option<PathBuf> {
    let wanted = major_minor(pinned(tool.module)?)?;
    for candidate in candidates {
        let asked = Run::new(&candidate.to_string_lossy(), tool.version_arguments)
            .deadline(Duration::from_secs(10))
            .output()
            .await;
        // A program that cannot even tell its version is not taken; that is no error.
        if asked.is_ok_and(|text| reported(&text) == Some(wanted)) {
            return Some(candidate.clone());
        }
    }
    None
}

/// Copies rather than links: the directory is bound into nodes, where foreign paths do not exist.
fn install(from: &Path, to: &Path) -> Result<()> {
    let partial = to.with_extension("partial");
    std::fs::copy(from, &partial)
        .and_then(|_| std::fs::rename(&partial, to))
        .with_context(|| format!("failed to copy {} to {}", from.display(), to.display()))
}

fn module_hash() -> String {
    cache::key(MODULE.iter().flat_map(|&(name, content)| [name, content]))
}

/// The version that go.mod pins for a module.
fn pinned(module: &str) -> Option<&'static str> {
    let (_, text) = MODULE.first()?;
    text.lines().find_map(|line| {
        let mut words = line.trim_start_matches("require").split_whitespace();
        (words.next() == Some(module))
            .then(|| words.next())
            .flatten()
    })
}

fn go_version() -> Option<&'static str> {
    let (_, text) = MODULE.first()?;
    text.lines().find_map(|line| line.strip_prefix("go "))
}

/// The first thing that looks like a version in what a program printed, a dispatcher's or
/// other suffixed build excepted.
fn reported(text: &str) -> Option<(u32, u32)> {
    text.split(|c: char| c.is_whitespace() || c == ',')
        .map(|word| word.rsplit_once('-').map_or(word, |(_, tail)| tail))
        .find_map(major_minor)
}

fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.strip_prefix('v').unwrap_or(version).split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?.parse().ok()?;
    parts.next()?.split('+').next()?.parse::<u32>().ok()?;
    Some((major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_has_a_pinned_version() {
        for tool in &TOOLS {
            let version = pinned(tool.module).unwrap_or_else(|| panic!("{}", tool.module));
            assert!(major_minor(version).is_some(), "{} {version}", tool.name);
        }
    }

    #[tokio::test]
    async fn a_program_is_taken_only_in_the_pinned_minor_version() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let program = |name: &str, script: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            path
        };
        let kubelet = TOOLS.iter().find(|tool| tool.name == "kubelet").unwrap();
        let (major, minor) = major_minor(pinned(KUBERNETES).unwrap()).unwrap();
        let old = program("old", &format!("echo Kubernetes v{major}.{}.9", minor - 1));
        let broken = program("broken", "exit 1");
        let good = program("good", &format!("echo Kubernetes v{major}.{minor}.0"));
        assert_eq!(fitting(kubelet, &[old.clone(), broken.clone()]).await, None);
        assert_eq!(
            fitting(kubelet, &[old, broken, good.clone()]).await,
            Some(good)
        );
    }

    #[test]
    fn versions_are_read_from_what_programs_print() {
        for (text, version) in [
            ("Kubernetes v1.36.3\n", Some((1, 36))),
            (
                "Client Version: v1.32.4\nKustomize Version: v5.5.0",
                Some((1, 32)),
            ),
            ("etcd Version: 3.6.8\nGit SHA: x", Some((3, 6))),
            ("CoreDNS-1.14.7\nlinux/amd64, go1.26.8, ", Some((1, 14))),
            ("v4.3.1+gc0ffee", Some((4, 3))),
            ("unknown flag", None),
        ] {
            assert_eq!(reported(text), version, "{text}");
        }
    }
}
