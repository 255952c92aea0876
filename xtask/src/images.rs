//! `cargo xtask images`: the static binaries that are shipped, and one image for each.
//!
//! Output, per binary, in the directory `--out`: an image layout, the same as an archive
//! (`NAME.tar`), and the bill of materials (`NAME.cdx.json`), which is also attached to the image.
//! The same sources, toolchain, version, revision and `SOURCE_DATE_EPOCH` give the same bytes in
//! every checkout: paths of this machine are mapped away, and a binary that still has one is
//! refused.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use cobalt_lab::images::require_static;
use cobalt_lab::oci::{self, Entry, Image, Sbom, Source, Written};

use crate::deps::{Metadata, Package, cargo};
use crate::sbom;

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The architecture of [`TARGET`] in the words of OCI.
const ARCHITECTURE: &str = "amd64";
const SOURCE: &str = "https://github.com/cobaltcore-dev/cobaltcore";
/// No user of any system; a number, so that Kubernetes can see that it is not root.
const USER: &str = "65532:65532";

/// A binary that is shipped.
#[derive(Debug)]
struct Shipped {
    package: &'static str,
    /// Also the name of the image.
    binary: &'static str,
    title: &'static str,
}

const SHIPPED: &[Shipped] = &[
    Shipped {
        package: "cobalt",
        binary: "cobalt",
        title: "The cobalt command",
    },
    Shipped {
        package: "cobalt-hypervisor-operator",
        binary: "cobalt-hypervisor-operator",
        title: "The hypervisor operator of CobaltCore",
    },
    Shipped {
        package: "cobalt-labels-injector",
        binary: "cobalt-labels-injector",
        title: "The labels injector of CobaltCore",
    },
    Shipped {
        package: "cobalt-node-agent",
        binary: "cobalt-node-agent",
        title: "The node agent of CobaltCore",
    },
    Shipped {
        package: "cobalt-ovs-agent",
        binary: "cobalt-ovs-agent",
        title: "The OVS agent of CobaltCore",
    },
];

/// Arguments of `cargo xtask images`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Where the images go
    #[arg(long, default_value = "dist/images")]
    out: PathBuf,
    /// What the images' names begin with: the registry that a release pushes to
    #[arg(long, default_value = "cobaltcore.dev")]
    registry: String,
    /// The version, which is also the tag [default: the version of the package]
    #[arg(long)]
    version: Option<String>,
    /// Only the images of these binaries [default: all]
    #[arg(long = "only", value_name = "BINARY", value_parser = shipped)]
    only: Vec<&'static Shipped>,
    /// The profile of cargo; `lab` is built in a fraction of the time, and runs slower
    #[arg(long, default_value = "dist", value_parser = ["dist", "lab"])]
    profile: String,
    /// Write each image twice and fail unless both are the same
    #[arg(long)]
    check_reproducible: bool,
}

/// Builds the binaries and writes the images.
pub fn run(arguments: &Arguments) -> Result<()> {
    let metadata = Metadata::load(Some(TARGET))?;
    let lock = metadata.workspace_root.join("Cargo.lock");
    let lock = std::fs::read_to_string(&lock)
        .with_context(|| format!("failed to read {}", lock.display()))?;
    let epoch = epoch(std::env::var_os("SOURCE_DATE_EPOCH"))?;
    let revision = revision(&metadata.workspace_root);
    if revision.is_none() {
        eprintln!("no git revision: the images will not name one");
    }

    let chosen = if arguments.only.is_empty() {
        SHIPPED.iter().collect()
    } else {
        arguments.only.clone()
    };
    let packages: Vec<&str> = chosen.iter().map(|shipped| shipped.package).collect();
    let built = sbom::built(&packages, TARGET)?;
    let programs = build(&metadata, &chosen, &arguments.profile)?;
    for (shipped, program) in chosen.into_iter().zip(&programs) {
        let members = metadata.members()?;
        let package = members
            .iter()
            .find(|package| package.name == shipped.package)
            .with_context(|| format!("no package \"{}\" in the workspace", shipped.package))?;
        let version = arguments.version.as_deref().unwrap_or(&package.version);
        let subject = sbom::Subject {
            package: shipped.package,
            name: shipped.binary,
            version,
        };
        let document = sbom::document(&metadata, &built, &lock, &subject)?;
        let mut image = image(
            shipped,
            package,
            program,
            &arguments.registry,
            version,
            revision.as_deref(),
        )?;
        image.epoch = epoch;
        image.sbom = Some(Sbom {
            file_name: format!("{}.cdx.json", shipped.binary),
            document: document.clone(),
        });

        let name = image.reference.file_name();
        let written = write(&image, &arguments.out)?;
        let document_path = arguments.out.join(format!("{name}.cdx.json"));
        std::fs::write(&document_path, document)
            .with_context(|| format!("failed to write {}", document_path.display()))?;
        if arguments.check_reproducible {
            check_reproducible(&image, &arguments.out, &written)?;
        }
        println!(
            "{} {} size {} layer {}",
            image.reference, written.digest, written.size, written.layer_size
        );
    }
    Ok(())
}

/// A row of the table, by its binary.
fn shipped(binary: &str) -> Result<&'static Shipped, String> {
    let known: Vec<&str> = SHIPPED.iter().map(|shipped| shipped.binary).collect();
    let found = SHIPPED.iter().find(|shipped| shipped.binary == binary);
    found.ok_or_else(|| format!("there are: {}", known.join(", ")))
}

/// Builds the binaries; returns their paths in the same order.
fn build(metadata: &Metadata, chosen: &[&Shipped], profile: &str) -> Result<Vec<PathBuf>> {
    let target_directory = metadata.target_directory.join("static");
    let mut command = cargo();
    command.args([
        "build",
        "--locked",
        "--profile",
        profile,
        "--target",
        TARGET,
    ]);
    for shipped in chosen {
        command.args(["--package", shipped.package, "--bin", shipped.binary]);
    }
    let mappings = mappings(metadata)?;
    command
        .current_dir(&metadata.workspace_root)
        .env("CARGO_TARGET_DIR", &target_directory)
        .env("CARGO_ENCODED_RUSTFLAGS", rust_flags(&mappings))
        // C code is part of some dependencies, and its assertions name their file.
        .env("CC_SHELL_ESCAPED_FLAGS", "1")
        .env("CFLAGS_x86_64_unknown_linux_gnu", c_flags(&mappings));
    let status = command.status().context("failed to run cargo build")?;
    ensure!(status.success(), "cargo build ended with {status}");

    let mut programs = Vec::new();
    for shipped in chosen {
        let program = target_directory
            .join(TARGET)
            .join(profile)
            .join(shipped.binary);
        require_static(&program)?;
        let bytes = std::fs::read(&program)
            .with_context(|| format!("failed to read {}", program.display()))?;
        if let Some(path) = local_path(&bytes, mappings.keys()) {
            bail!(
                "{} contains the path \"{path}\" of this machine: look for env!(\"...\") of a \
                 directory in the sources",
                program.display()
            );
        }
        programs.push(program);
    }
    Ok(programs)
}

/// Directories of this machine and what stands for them in a binary.
fn mappings(metadata: &Metadata) -> Result<BTreeMap<String, &'static str>> {
    let mut mappings = BTreeMap::new();
    let mut map = |path: &Path, to| -> Result<()> {
        let path = path
            .to_str()
            .with_context(|| format!("the path {} is not UTF-8", path.display()))?;
        mappings.insert(path.to_owned(), to);
        Ok(())
    };
    map(&metadata.workspace_root, "/cobalt")?;
    map(&metadata.target_directory, "/cobalt/target")?;
    // The directory of a registry's sources has a name that depends on the machine's settings.
    let manifests = metadata
        .packages
        .iter()
        .filter(|package| package.source.is_some());
    let directories: BTreeSet<&Path> = manifests
        .filter_map(|package| package.manifest_path.parent().and_then(Path::parent))
        .collect();
    for directory in directories {
        map(directory, "/cargo")?;
    }
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))
        .context("failed to ask rustc for its directory")?;
    map(Path::new(&sysroot), "/rust")?;
    Ok(mappings)
}

/// Static linking and the mappings; the compiler takes the last mapping that fits, so a directory
/// must come after those it lies in, as it does in the order of their names.
fn rust_flags(mappings: &BTreeMap<String, &'static str>) -> String {
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
    flags.extend(
        mappings
            .iter()
            .map(|(from, to)| format!("--remap-path-prefix={from}={to}")),
    );
    flags.join("\u{1f}")
}

/// The mappings for the C compiler, quoted as a shell wants it.
fn c_flags(mappings: &BTreeMap<String, &'static str>) -> String {
    let flags: Vec<String> = mappings
        .iter()
        .map(|(from, to)| format!("-ffile-prefix-map={from}={to}").replace('\'', r"'\''"))
        .map(|flag| format!("'{flag}'"))
        .collect();
    flags.join(" ")
}

/// The first of `paths` that the program contains.
fn local_path<'a>(program: &[u8], paths: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    // What is not text becomes a replacement character, which is in no path.
    let text = String::from_utf8_lossy(program);
    paths.into_iter().find(|path| text.contains(path.as_str()))
}

fn image(
    shipped: &Shipped,
    package: &Package,
    program: &Path,
    registry: &str,
    version: &str,
    revision: Option<&str>,
) -> Result<Image> {
    let reference = format!("{registry}/{}:{version}", shipped.binary);
    let mut image = Image::new(reference.parse()?);
    image.architecture = ARCHITECTURE.to_owned();
    let path = format!("/{}", shipped.binary);
    image.entries = vec![Entry::file(
        path.as_str(),
        Source::File(program.to_owned()),
        0o755,
    )];
    image.config.entrypoint = vec![path];
    image.config.user = USER.to_owned();
    let labels = [
        ("title", Some(shipped.title)),
        ("version", Some(version)),
        ("revision", revision),
        ("licenses", package.license.as_deref()),
        ("source", Some(SOURCE)),
    ];
    for (name, value) in labels {
        if let Some(value) = value {
            let label = format!("org.opencontainers.image.{name}");
            image.config.labels.insert(label, value.to_owned());
        }
    }
    Ok(image)
}

fn write(image: &Image, out: &Path) -> Result<Written> {
    let name = image.reference.file_name();
    let layout = out.join(&name);
    let written = oci::write_layout(image, &layout)?;
    oci::write_archive(&layout, &out.join(format!("{name}.tar")))?;
    Ok(written)
}

/// Writes the image once more elsewhere and compares.
fn check_reproducible(image: &Image, out: &Path, written: &Written) -> Result<()> {
    let temp = tempfile::tempdir().context("failed to make a temporary directory")?;
    let again = write(image, temp.path())?;
    let archive = format!("{}.tar", image.reference.file_name());
    let [first, second] =
        [out, temp.path()].map(|directory| oci::Digest::of_file(&directory.join(&archive)));
    ensure!(
        again == *written && first? == second?,
        "{} is not reproducible: {} and {}",
        image.reference,
        written.digest,
        again.digest
    );
    Ok(())
}

fn epoch(value: Option<OsString>) -> Result<u64> {
    let Some(value) = value else { return Ok(0) };
    let number = value.to_str().and_then(|text| text.parse().ok());
    number.with_context(|| format!("SOURCE_DATE_EPOCH={} is no number", value.display()))
}

/// The commit that is checked out, marked if files that git knows differ from it.
fn revision(root: &Path) -> Option<String> {
    let git = |arguments: &[&str]| output(Command::new("git").current_dir(root).args(arguments));
    let commit = git(&["rev-parse", "--verify", "--quiet", "HEAD"]).ok()?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"]).ok()?;
    Some(if changes.is_empty() {
        commit
    } else {
        format!("{commit}-dirty")
    })
}

fn output(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_this_machine_is_found_between_other_bytes() {
        let paths = ["/home/me/src".to_owned(), "/home/me/.cargo".to_owned()];
        let mut program = vec![0xff, 0xc3, 0];
        program.extend(b"/cargo/serde/src/lib.rs");
        assert_eq!(local_path(&program, paths.iter()), None);
        program.extend([0x80, 0xe2]);
        program.extend(b"/home/me/.cargo/registry");
        program.push(0xff);
        assert_eq!(local_path(&program, paths.iter()), Some(&paths[1]));
    }

    #[test]
    fn the_inner_directory_is_mapped_after_the_outer_one() {
        let mappings = BTreeMap::from([
            ("/w/target".to_owned(), "/cobalt/target"),
            ("/w".to_owned(), "/cobalt"),
        ]);
        let flags = rust_flags(&mappings);
        let flags: Vec<&str> = flags.split('\u{1f}').collect();
        assert_eq!(
            flags,
            [
                "-Ctarget-feature=+crt-static",
                "--remap-path-prefix=/w=/cobalt",
                "--remap-path-prefix=/w/target=/cobalt/target",
            ]
        );
    }

    #[test]
    fn a_path_with_a_space_stays_one_argument_of_the_c_compiler() {
        let mappings = BTreeMap::from([("/it's mine".to_owned(), "/cobalt")]);
        assert_eq!(
            c_flags(&mappings),
            r"'-ffile-prefix-map=/it'\''s mine=/cobalt'"
        );
    }

    #[test]
    fn the_time_is_a_number_or_the_epoch() {
        assert_eq!(epoch(None).unwrap(), 0);
        assert_eq!(epoch(Some("1700000000".into())).unwrap(), 1_700_000_000);
        assert!(epoch(Some("yesterday".into())).is_err());
    }

    #[test]
    fn a_version_that_no_tag_can_have_is_refused() {
        let metadata = Metadata::load(Some(TARGET)).unwrap();
        let members = metadata.members().unwrap();
        let package = members
            .iter()
            .find(|package| package.name == "cobalt")
            .unwrap();
        let make = |version| {
            image(
                &SHIPPED[0],
                package,
                Path::new("/x"),
                "a.example/b",
                version,
                None,
            )
        };
        assert!(make("1.0.0+build").is_err());
        let image = make("1.0.0").unwrap();
        assert_eq!(image.reference.to_string(), "a.example/b/cobalt:1.0.0");
        assert_eq!(
            image.config.labels["org.opencontainers.image.version"],
            "1.0.0"
        );
        assert!(
            !image
                .config
                .labels
                .contains_key("org.opencontainers.image.revision")
        );
    }

    #[test]
    fn every_shipped_package_is_in_the_workspace() {
        let metadata = Metadata::load(Some(TARGET)).unwrap();
        let members = metadata.members().unwrap();
        for shipped in SHIPPED {
            assert!(
                members
                    .iter()
                    .any(|package| package.name == shipped.package)
            );
        }
    }
}
