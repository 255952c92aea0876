//! `cargo xtask fuzz`: builds the fuzz targets on the stable toolchain, and runs each for a while.
//!
//! The fuzz crates are no members of the workspace, so nothing else builds them. `xtask/fuzz` takes the
//! place of libfuzzer-sys; the versions of everything else are the workspace's.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only see that they compile
    #[arg(long)]
    check: bool,
    /// How long each target runs
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The seed of an earlier run
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Root {
    workspace: Workspace,
}

#[derive(Debug, Deserialize)]
struct Workspace {
    exclude: Vec<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    #[serde(default)]
    bin: Vec<Binary>,
}

#[derive(Debug, Deserialize)]
struct Binary {
    name: String,
}

/// Builds and runs all targets, whatever fails.
pub fn run(arguments: &Arguments) -> Result<()> {
    let root = crate::test::root();
    let mut failed = Vec::new();
    for folder in folders(&root)? {
        let shown = folder
            .strip_prefix(&root)
            .unwrap_or(&folder)
            .display()
            .to_string();
        let targets = targets(&folder)?;
        // The same versions as in the product; cargo leaves out what is not needed.
        std::fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))
            .with_context(|| format!("failed to copy Cargo.lock to {shown}"))?;
        println!("{shown}: {}", targets.join(", "));
        if !build(&root, &folder, arguments.check)? {
            failed.push(format!("{shown}: it does not build"));
            continue;
        }
        if arguments.check {
            continue;
        }
        for target in targets {
            println!("{shown}: {target} for {} s", arguments.seconds);
            if !fuzz(&root, &folder, &target, arguments)? {
                failed.push(format!("{shown}: {target}"));
            }
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        bail!("these fuzz targets failed: {}", failed.join("; "))
    }
}

/// The fuzz crates: what the workspace leaves out.
fn folders(root: &Path) -> Result<Vec<PathBuf>> {
    let text = read(&root.join("Cargo.toml"))?;
    let manifest: Root = toml::from_str(&text).context("failed to read the root Cargo.toml")?;
    let excluded = manifest.workspace.exclude.into_iter();
    Ok(excluded
        .filter(|folder| folder.ends_with("fuzz") && !folder.starts_with("xtask"))
        .map(|folder| root.join(folder))
        .collect())
}

fn targets(folder: &Path) -> Result<Vec<String>> {
    let file = folder.join("Cargo.toml");
    let manifest: Manifest = toml::from_str(&read(&file)?)
        .with_context(|| format!("failed to read {}", file.display()))?;
    Ok(manifest.bin.into_iter().map(|binary| binary.name).collect())
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))
}

fn build(root: &Path, folder: &Path, check: bool) -> Result<bool> {
    let stand_in = root.join("xtask/fuzz");
    let stand_in = stand_in
        .to_str()
        .context("the path of the checkout is not UTF-8")?;
    let patch = format!(
        "patch.crates-io.libfuzzer-sys.path = {}",
        serde_json::to_string(stand_in)?
    );
    let mut command = Command::new(crate::test::cargo());
    command
        .current_dir(folder)
        .arg(if check { "check" } else { "build" })
        .args(["--quiet", "--config", &patch, "--target-dir"])
        .arg(out(root));
    if !check {
        command.args([
            "--release",
            "--config",
            "profile.release.debug-assertions = true",
        ]);
    }
    let status = command.status().context("failed to run cargo")?;
    Ok(status.success())
}

/// One for all, so that what they share is built once. Two crates have targets of the same name: each is run
/// before the next crate is built.
fn out(root: &Path) -> PathBuf {
    root.join("target/fuzz")
}

fn fuzz(root: &Path, folder: &Path, target: &str, arguments: &Arguments) -> Result<bool> {
    let mut command = Command::new(out(root).join("release").join(target));
    command
        .args(["--seconds", &arguments.seconds.to_string(), "--failed"])
        .arg(folder.join("artifacts"));
    if let Some(seed) = arguments.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    // Real messages, and what a fuzzer has kept.
    for corpus in [
        folder.join("seeds"),
        folder.join("../tests/corpus"),
        folder.join("corpus").join(target),
    ] {
        if corpus.is_dir() {
            command.arg(corpus);
        }
    }
    let status = command
        .status()
        .with_context(|| format!("failed to run {target}"))?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fuzz_crate_of_the_tree_is_found_with_its_targets() {
        let root = crate::test::root();
        let folders = folders(&root).unwrap();
        let targets: Vec<_> = folders
            .iter()
            .map(|folder| targets(folder).unwrap())
            .collect();
        assert_eq!(folders.len(), 3);
        assert!(targets.iter().all(|targets| !targets.is_empty()));
        assert!(targets.concat().contains(&"filter".to_owned()));
    }
}
