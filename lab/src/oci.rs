//! Writes OCI images: one layer from a list of files, as an image layout and as an archive.
//!
//! Inputs are plain data ([`Image`]); nothing is read from the clock, the user database or the
//! order of a directory, so the same input gives the same bytes and the same digest everywhere.
//! A layout appears under its name complete or not at all, also when two processes write it at
//! once: it is written beside its place and renamed. Files are streamed, so the size of a binary
//! does not matter.
//!
//! ```text
//! layout/oci-layout
//! layout/index.json          names the image manifest, and the SBOM's manifest if there is one
//! layout/blobs/sha256/HEX    manifest, configuration, layer
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, Permissions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use flate2::write::GzEncoder;
use flate2::{Compression as GzipLevel, GzBuilder};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Media type of an image manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an image index.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Media and artifact type of a CycloneDX SBOM in JSON.
pub const CYCLONEDX: &str = "application/vnd.cyclonedx+json";
/// Annotation with the whole reference; containerd takes the name of an imported image from it.
pub const IMAGE_NAME: &str = "io.containerd.image.name";
/// Annotation with the tag, as the image layout specification has it.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// Prefix of what is still being written; whoever reads a directory of layouts passes it over.
pub const TEMP_PREFIX: &str = ".tmp-";

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
const LAYER_TAR: &str = "application/vnd.oci.image.layer.v1.tar";
const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const TITLE: &str = "org.opencontainers.image.title";
const LAYOUT_VERSION: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;
/// An index or a manifest larger than this is not one of ours.
const MAX_JSON: u64 = 4 << 20;

/// Why an image could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not an image reference.
    #[error("invalid image reference \"{reference}\": {reason}")]
    InvalidReference {
        /// The text.
        reference: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The text is not a digest.
    #[error("invalid digest \"{digest}\": expected sha256: and 64 lowercase hexadecimal digits")]
    InvalidDigest {
        /// The text.
        digest: String,
    },
    /// A path in the image cannot be used.
    #[error("invalid path \"{path}\" in image: {reason}")]
    InvalidPath {
        /// The path in the image.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The time for the image's files cannot be represented.
    #[error("invalid time {epoch} for the image's files")]
    InvalidEpoch {
        /// Seconds since 1970.
        epoch: u64,
    },
    /// A file for the image cannot be read.
    #[error("failed to read \"{path}\" for the image")]
    ReadSource {
        /// The file on this machine.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file became shorter or longer while it was read.
    #[error("failed to read \"{path}\" for the image: it changed meanwhile")]
    ChangedSource {
        /// The file on this machine.
        path: PathBuf,
    },
    /// A file cannot be put into the layer.
    #[error("failed to add \"{path}\" to the layer")]
    AddToLayer {
        /// The path in the image.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A JSON document cannot be made.
    #[error("failed to encode {what}")]
    Encode {
        /// Which document.
        what: &'static str,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// A layout or archive cannot be written.
    #[error("failed to write image to \"{path}\"")]
    Write {
        /// The layout or archive.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A layout cannot be read.
    #[error("failed to read image layout \"{path}\"")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A document of a layout makes no sense.
    #[error("failed to parse \"{path}\" of an image layout")]
    Parse {
        /// The document.
        path: PathBuf,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
}

type Result<T, E = Error> = std::result::Result<T, E>;

/// `host/repository:tag`, with the host and the tag always present.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    host: String,
    repository: String,
    tag: String,
}

impl Reference {
    /// The registry, with the port if it has one.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The path inside the registry.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// A file name for the image that no other reference has.
    ///
    /// Underscores may stand in names too, hence the two characters that may not.
    pub fn file_name(&self) -> String {
        format!(
            "{}@{}@{}",
            self.host,
            self.repository.replace('/', "@"),
            self.tag
        )
        .replace(':', "+")
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.host, self.repository, self.tag)
    }
}

impl FromStr for Reference {
    type Err = Error;

    /// Completes short names as container runtimes do: `a` is `docker.io/library/a:latest`.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = |reason| Error::InvalidReference {
            reference: text.to_owned(),
            reason,
        };
        if text.contains('@') {
            return Err(invalid("a digest cannot be the name of an image to write"));
        }
        let (host, rest) = match text.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => {
                (first, rest)
            }
            _ => ("docker.io", text),
        };
        let (repository, tag) = rest.rsplit_once(':').unwrap_or((rest, "latest"));
        let repository = if host == "docker.io" && !repository.contains('/') {
            format!("library/{repository}")
        } else {
            repository.to_owned()
        };
        if !is_host(host) {
            return Err(invalid(
                "the registry is not a host name with an optional port",
            ));
        }
        if !is_repository(&repository) {
            return Err(invalid("the repository has characters that none may have"));
        }
        if !is_tag(tag) {
            return Err(invalid(
                "the tag has characters that none may have, or is too long",
            ));
        }
        Ok(Self {
            host: host.to_owned(),
            repository,
            tag: tag.to_owned(),
        })
    }
}

/// A host name or IPv4 address with an optional port.
pub(crate) fn is_host(text: &str) -> bool {
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    let label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 255
        && name.split('.').all(label)
        && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

/// Components of lowercase letters, digits and single separators, joined by slashes.
pub(crate) fn is_repository(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let component = |component: &str| {
        let ends = [component.bytes().next(), component.bytes().next_back()];
        ends.into_iter().all(|end| end.is_some_and(alphanumeric))
            && component
                .bytes()
                .all(|b| alphanumeric(b) || matches!(b, b'.' | b'_' | b'-'))
            && !component.contains("..")
    };
    text.len() <= 255 && text.split('/').all(component)
}

/// As the distribution specification has it.
pub(crate) fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.len() <= 128
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|b| word(b) || matches!(b, b'.' | b'-'))
}

/// `sha256:` and 64 lowercase hexadecimal digits; holds nothing else, so it is safe in a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest {
    hex: String,
}

impl Digest {
    const ALGORITHM: &'static str = "sha256:";

    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_hash(Sha256::new_with_prefix(bytes))
    }

    /// The digest of a file's content.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of_file(path: &Path) -> Result<Self> {
        let read = |source| Error::ReadSource {
            path: path.to_owned(),
            source,
        };
        let mut out = Hashing::new(io::sink());
        io::copy(&mut File::open(path).map_err(read)?, &mut out).map_err(read)?;
        Ok(out.finish().1)
    }

    /// The 64 digits.
    pub fn hex(&self) -> &str {
        &self.hex
    }

    fn from_hash(hash: Sha256) -> Self {
        Self {
            hex: format!("{:x}", hash.finalize()),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::ALGORITHM, self.hex)
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.strip_prefix(Self::ALGORITHM)
            .filter(|hex| hex.len() == 64)
            .filter(|hex| hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
            .map(|hex| Self {
                hex: hex.to_owned(),
            })
            .ok_or_else(|| Error::InvalidDigest {
                digest: text.to_owned(),
            })
    }
}

impl TryFrom<String> for Digest {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// Where a file's bytes come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// They are here.
    Bytes(Vec<u8>),
    /// They are in a file, read when the layer is written.
    File(PathBuf),
}

/// What is at a path of the image.
#[derive(Debug, Clone)]
pub enum Content {
    /// A regular file.
    File(Source),
    /// A directory; the parents of every path are made without being named.
    Directory,
    /// A symbolic link and its target.
    Symlink(String),
}

/// One path of the image.
#[derive(Debug, Clone)]
pub struct Entry {
    path: String,
    content: Content,
    mode: u32,
    uid: u64,
    gid: u64,
}

impl Entry {
    /// A regular file that root owns.
    pub fn file(path: impl Into<String>, source: Source, mode: u32) -> Self {
        Self {
            path: path.into(),
            content: Content::File(source),
            mode,
            uid: 0,
            gid: 0,
        }
    }

    /// A directory that root owns.
    pub fn directory(path: impl Into<String>, mode: u32) -> Self {
        Self {
            path: path.into(),
            content: Content::Directory,
            mode,
            uid: 0,
            gid: 0,
        }
    }

    /// A symbolic link.
    pub fn symlink(path: impl Into<String>, target: impl Into<String>) -> Self {
        let content = Content::Symlink(target.into());
        Self {
            path: path.into(),
            content,
            mode: 0o777,
            uid: 0,
            gid: 0,
        }
    }

    /// The same with another owner.
    #[must_use]
    pub fn owned_by(self, uid: u64, gid: u64) -> Self {
        Self { uid, gid, ..self }
    }
}

/// How the image is run.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// The program and the arguments that always come first.
    pub entrypoint: Vec<String>,
    /// The arguments, or the program if there is no entry point, unless others are given.
    pub cmd: Vec<String>,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// `UID` or `UID:GID`; root if empty. Numbers, so that Kubernetes can see that it is not root.
    pub user: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// The directory it starts in; `/` if empty.
    pub working_dir: String,
}

/// Whether the layer is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// For images that travel.
    #[default]
    Gzip,
    /// For images that stay on the machine: neither the writer nor any node pays for it.
    None,
}

/// A document that is attached to the image as a referrer.
#[derive(Debug, Clone)]
pub struct Sbom {
    /// Its file name.
    pub file_name: String,
    /// CycloneDX, JSON.
    pub document: Vec<u8>,
}

/// All that makes up an image.
#[derive(Debug, Clone)]
pub struct Image {
    /// Its name.
    pub reference: Reference,
    /// Its files, in any order.
    pub entries: Vec<Entry>,
    /// How it is run.
    pub config: Config,
    /// The architecture of its programs, in the words of OCI.
    pub architecture: String,
    /// Whether its layer is compressed.
    pub compression: Compression,
    /// The time of all its files, in seconds since 1970.
    pub epoch: u64,
    /// Annotations of the descriptor in the index; they are not part of the image's digest.
    pub annotations: BTreeMap<String, String>,
    /// Its SBOM.
    pub sbom: Option<Sbom>,
}

impl Image {
    /// An image with nothing in it.
    pub fn new(reference: Reference) -> Self {
        Self {
            reference,
            entries: Vec::new(),
            config: Config::default(),
            architecture: "amd64".to_owned(),
            compression: Compression::default(),
            epoch: 0,
            annotations: BTreeMap::new(),
            sbom: None,
        }
    }
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The image: the digest of its manifest.
    pub digest: Digest,
    /// Manifest, configuration and layer, in bytes.
    pub size: u64,
    /// The layer as it is stored, in bytes.
    pub layer_size: u64,
    /// The manifest that attaches the SBOM.
    pub sbom: Option<Digest>,
}

/// A reference to a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What it is.
    pub media_type: String,
    /// Its digest.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// What a referrer is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest,
            size,
            artifact_type: None,
            annotations: BTreeMap::new(),
        }
    }

    fn annotated(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }
}

/// An image manifest, or that of an artifact which refers to one.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    schema_version: u8,
    media_type: String,
    /// What the artifact is; absent for an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// The configuration.
    pub config: Descriptor,
    /// The layers.
    pub layers: Vec<Descriptor>,
    /// The image that an artifact refers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Descriptor>,
}

/// The `index.json` of a layout.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    schema_version: u8,
    #[serde(default)]
    media_type: String,
    /// The manifests.
    pub manifests: Vec<Descriptor>,
}

#[derive(Serialize)]
struct ConfigFile<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    architecture: &'a str,
    os: &'a str,
    config: RunConfig<'a>,
    rootfs: RootFs,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct RunConfig<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    user: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    env: Vec<String>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    entrypoint: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    cmd: &'a [String],
    #[serde(skip_serializing_if = "str::is_empty")]
    working_dir: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<String, String>,
}

#[derive(Serialize)]
struct RootFs {
    r#type: &'static str,
    diff_ids: Vec<Digest>,
}

/// Writes `image` as an image layout in the directory `layout`, which it replaces.
///
/// # Errors
/// The image is not valid, or a file cannot be read or written; `layout` is then as it was.
pub fn write_layout(image: &Image, layout: &Path) -> Result<Written> {
    let failed = |source| Error::Write {
        path: layout.to_owned(),
        source,
    };
    let entries = prepare(&image.entries)?;

    let parent = parent(layout);
    fs::create_dir_all(parent).map_err(failed)?;
    let temp = tempfile::Builder::new()
        .prefix(TEMP_PREFIX)
        .permissions(Permissions::from_mode(0o755))
        .tempdir_in(parent)
        .map_err(failed)?;
    let blobs = Blobs::new(temp.path(), layout)?;

    let (layer, diff_id) = blobs.layer(&entries, image)?;
    let config = blobs.document(
        "the image configuration",
        CONFIG,
        &config_file(image, diff_id)?,
    )?;
    let manifest = Manifest {
        schema_version: 2,
        media_type: MANIFEST.to_owned(),
        artifact_type: None,
        config: config.clone(),
        layers: vec![layer.clone()],
        subject: None,
    };
    let manifest = blobs.document("the image manifest", MANIFEST, &manifest)?;
    let written_sbom = image
        .sbom
        .as_ref()
        .map(|sbom| blobs.referrer(sbom, &manifest))
        .transpose()?;

    let mut named = manifest
        .clone()
        .annotated(IMAGE_NAME, &image.reference.to_string())
        .annotated(REF_NAME, image.reference.tag());
    named.annotations.extend(image.annotations.clone());
    let index = Index {
        schema_version: 2,
        media_type: INDEX.to_owned(),
        manifests: std::iter::once(named).chain(written_sbom.clone()).collect(),
    };
    let index = encode("the index", &index)?;
    fs::write(temp.path().join("index.json"), index).map_err(failed)?;
    fs::write(temp.path().join("oci-layout"), LAYOUT_VERSION).map_err(failed)?;

    // What is under the temporary name afterwards is the old layout, and goes with it.
    replace_directory(temp.path(), layout).map_err(failed)?;
    Ok(Written {
        digest: manifest.digest,
        size: manifest.size + config.size + layer.size,
        layer_size: layer.size,
        sbom: written_sbom.map(|descriptor| descriptor.digest),
    })
}

/// Packs the image layout `layout` as the tar file `archive`, which it replaces.
///
/// # Errors
/// The layout cannot be read or the archive cannot be written.
pub fn write_archive(layout: &Path, archive: &Path) -> Result<()> {
    let failed = |source| Error::Write {
        path: archive.to_owned(),
        source,
    };
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Read { path, source }
    };
    let blobs = layout.join("blobs/sha256");
    let mut names = vec!["oci-layout".to_owned(), "index.json".to_owned()];
    let first_blob = names.len();
    for entry in fs::read_dir(&blobs).map_err(unreadable(&blobs))? {
        let name = entry.map_err(unreadable(&blobs))?.file_name();
        names.push(format!("blobs/sha256/{}", name.to_string_lossy()));
    }
    if let Some(blobs) = names.get_mut(first_blob..) {
        blobs.sort();
    }

    let parent = parent(archive);
    fs::create_dir_all(parent).map_err(failed)?;
    let temp = tempfile::Builder::new()
        .prefix(TEMP_PREFIX)
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(parent)
        .map_err(failed)?;
    let mut tar = tar::Builder::new(BufWriter::new(temp));
    for name in &names {
        let path = layout.join(name);
        let file = File::open(&path).map_err(unreadable(&path))?;
        let size = file.metadata().map_err(unreadable(&path))?.len();
        let mut header = header(tar::EntryType::Regular, 0o644, 0, 0, 0);
        header.set_size(size);
        // A blob never changes under its name, so its length needs no second look.
        tar.append_data(&mut header, name, file.take(size))
            .map_err(failed)?;
    }
    let temp = tar.into_inner().map_err(failed)?;
    let temp = temp
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    temp.persist(archive).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Reads the `index.json` of a layout.
///
/// # Errors
/// It cannot be read or makes no sense.
pub fn read_index(layout: &Path) -> Result<Index> {
    read_json(&layout.join("index.json"))
}

/// Reads a manifest of a layout.
///
/// # Errors
/// It cannot be read or makes no sense.
pub fn read_manifest(layout: &Path, digest: &Digest) -> Result<Manifest> {
    read_json(&blob_path(layout, digest))
}

/// The place of a blob in a layout.
pub fn blob_path(layout: &Path, digest: &Digest) -> PathBuf {
    layout.join("blobs/sha256").join(digest.hex())
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_JSON).read_to_end(&mut text))
        .map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        })?;
    serde_json::from_slice(&text).map_err(|source| Error::Parse {
        path: path.to_owned(),
        source,
    })
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

fn encode<T: Serialize>(what: &'static str, document: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(document).map_err(|source| Error::Encode { what, source })
}

fn config_file(image: &Image, diff_id: Digest) -> Result<ConfigFile<'_>> {
    let created = match image.epoch {
        0 => None,
        epoch => {
            let invalid = || Error::InvalidEpoch { epoch };
            let seconds = i64::try_from(epoch).map_err(|_| invalid())?;
            let time = jiff::Timestamp::from_second(seconds).map_err(|_| invalid())?;
            Some(time.to_string())
        }
    };
    let config = &image.config;
    Ok(ConfigFile {
        created,
        architecture: &image.architecture,
        os: "linux",
        config: RunConfig {
            user: &config.user,
            env: config
                .env
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect(),
            entrypoint: &config.entrypoint,
            cmd: &config.cmd,
            working_dir: &config.working_dir,
            labels: &config.labels,
        },
        rootfs: RootFs {
            r#type: "layers",
            diff_ids: vec![diff_id],
        },
    })
}

/// An entry as it goes into the layer; the path is its key.
struct Prepared<'a> {
    content: &'a Content,
    mode: u32,
    uid: u64,
    gid: u64,
}

/// Normalises the paths, adds the parents, and refuses what would unpack to something else.
fn prepare(entries: &[Entry]) -> Result<BTreeMap<String, Prepared<'_>>> {
    let mut prepared = BTreeMap::new();
    for entry in entries {
        let invalid = |reason| Error::InvalidPath {
            path: entry.path.clone(),
            reason,
        };
        let path = entry.path.trim_start_matches('/').trim_end_matches('/');
        for component in path.split('/') {
            match component {
                "" => return Err(invalid("it has an empty component")),
                "." | ".." => return Err(invalid("it has a relative component")),
                whiteout if whiteout.starts_with(".wh.") => {
                    return Err(invalid("it would delete a file when it is unpacked"));
                }
                _ => {}
            }
        }
        if path.contains('\0') {
            return Err(invalid("it contains a zero byte"));
        }
        if let Content::Symlink(target) = &entry.content
            && (target.is_empty() || target.contains('\0'))
        {
            return Err(invalid("its target is empty or contains a zero byte"));
        }
        let (mode, uid, gid) = (entry.mode & 0o7777, entry.uid, entry.gid);
        let value = Prepared {
            content: &entry.content,
            mode,
            uid,
            gid,
        };
        if prepared.insert(path.to_owned(), value).is_some() {
            return Err(invalid("it is there twice"));
        }
    }

    let named: Vec<String> = prepared.keys().cloned().collect();
    for path in named {
        for (end, _) in path.match_indices('/') {
            let parent = path.get(..end).unwrap_or_default();
            let directory = Prepared {
                content: &Content::Directory,
                mode: 0o755,
                uid: 0,
                gid: 0,
            };
            let parent = prepared.entry(parent.to_owned()).or_insert(directory);
            if !matches!(parent.content, Content::Directory) {
                let reason = "its parent is not a directory";
                return Err(Error::InvalidPath { path, reason });
            }
        }
    }
    Ok(prepared)
}

fn header(kind: tar::EntryType, mode: u32, uid: u64, gid: u64, mtime: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(uid);
    header.set_gid(gid);
    header.set_mtime(mtime);
    header.set_size(0);
    header
}

/// Writes the entries as a tar, in the order of their paths: a parent always before its children.
fn write_tar<W: Write>(entries: &BTreeMap<String, Prepared<'_>>, mtime: u64, out: W) -> Result<W> {
    let mut tar = tar::Builder::new(out);
    for (path, entry) in entries {
        let failed = |source| Error::AddToLayer {
            path: path.clone(),
            source,
        };
        let header = |kind| header(kind, entry.mode, entry.uid, entry.gid, mtime);
        match entry.content {
            Content::Directory => {
                let mut header = header(tar::EntryType::Directory);
                tar.append_data(&mut header, format!("{path}/"), io::empty())
                    .map_err(failed)?;
            }
            Content::Symlink(target) => {
                let mut header = header(tar::EntryType::Symlink);
                tar.append_link(&mut header, path, target).map_err(failed)?;
            }
            Content::File(Source::Bytes(bytes)) => {
                let mut header = header(tar::EntryType::Regular);
                header.set_size(bytes.len() as u64);
                tar.append_data(&mut header, path, bytes.as_slice())
                    .map_err(failed)?;
            }
            Content::File(Source::File(source_path)) => {
                let unreadable = |source| Error::ReadSource {
                    path: source_path.clone(),
                    source,
                };
                let file = File::open(source_path).map_err(unreadable)?;
                let metadata = file.metadata().map_err(unreadable)?;
                if !metadata.is_file() {
                    let reason = "its source is not a regular file";
                    return Err(Error::InvalidPath {
                        path: path.clone(),
                        reason,
                    });
                }
                let size = metadata.len();
                let mut header = header(tar::EntryType::Regular);
                header.set_size(size);
                let mut reader = BufReader::with_capacity(1 << 18, file).take(size);
                tar.append_data(&mut header, path, &mut reader)
                    .map_err(failed)?;
                // The header has promised a length: a shorter file would break all that follows.
                let missing = reader.limit();
                let more = reader.into_inner().read(&mut [0]).map_err(unreadable)?;
                if missing > 0 || more > 0 {
                    return Err(Error::ChangedSource {
                        path: source_path.clone(),
                    });
                }
            }
        }
    }
    tar.into_inner().map_err(|source| Error::AddToLayer {
        path: "/".to_owned(),
        source,
    })
}

/// The blobs of a layout that is being written.
struct Blobs<'a> {
    directory: PathBuf,
    /// The final name of the layout, for messages.
    layout: &'a Path,
}

impl<'a> Blobs<'a> {
    fn new(temp: &Path, layout: &'a Path) -> Result<Self> {
        let directory = temp.join("blobs/sha256");
        let blobs = Self { directory, layout };
        fs::create_dir_all(&blobs.directory).map_err(blobs.failed())?;
        Ok(blobs)
    }

    fn failed(&self) -> impl Fn(io::Error) -> Error + use<> {
        let path = self.layout.to_owned();
        move |source| Error::Write {
            path: path.clone(),
            source,
        }
    }

    fn bytes(&self, media_type: &str, bytes: &[u8]) -> Result<Descriptor> {
        let digest = Digest::of(bytes);
        fs::write(self.directory.join(digest.hex()), bytes).map_err(self.failed())?;
        Ok(Descriptor::new(media_type, digest, bytes.len() as u64))
    }

    fn document<T: Serialize>(
        &self,
        what: &'static str,
        media_type: &str,
        document: &T,
    ) -> Result<Descriptor> {
        self.bytes(media_type, &encode(what, document)?)
    }

    /// Writes the layer; returns it and the digest of the tar inside it.
    fn layer(
        &self,
        entries: &BTreeMap<String, Prepared<'_>>,
        image: &Image,
    ) -> Result<(Descriptor, Digest)> {
        let failed = self.failed();
        let path = self.directory.join("layer");
        let file = BufWriter::with_capacity(1 << 18, File::create(&path).map_err(&failed)?);
        let file = Hashing::new(file);
        let (media_type, file, diff_id) = match image.compression {
            Compression::None => (LAYER_TAR, write_tar(entries, image.epoch, file)?, None),
            Compression::Gzip => {
                // Without a name, a time and an operating system nothing of this machine remains.
                let gzip: GzEncoder<_> = GzBuilder::new().mtime(0).write(file, GzipLevel::new(6));
                let tar = write_tar(entries, image.epoch, Hashing::new(gzip))?;
                let (gzip, diff_id, _) = tar.finish();
                (LAYER_GZIP, gzip.finish().map_err(&failed)?, Some(diff_id))
            }
        };
        let (mut file, digest, size) = file.finish();
        file.flush().map_err(&failed)?;
        fs::rename(&path, self.directory.join(digest.hex())).map_err(&failed)?;
        let diff_id = diff_id.unwrap_or_else(|| digest.clone());
        Ok((Descriptor::new(media_type, digest, size), diff_id))
    }

    /// Attaches the SBOM to `subject`; returns what the index says of it.
    fn referrer(&self, sbom: &Sbom, subject: &Descriptor) -> Result<Descriptor> {
        let document = self
            .bytes(CYCLONEDX, &sbom.document)?
            .annotated(TITLE, &sbom.file_name);
        let manifest = Manifest {
            schema_version: 2,
            media_type: MANIFEST.to_owned(),
            artifact_type: Some(CYCLONEDX.to_owned()),
            config: self.bytes(EMPTY, b"{}")?,
            layers: vec![document],
            subject: Some(subject.clone()),
        };
        let mut descriptor = self.document("the SBOM manifest", MANIFEST, &manifest)?;
        descriptor.artifact_type = Some(CYCLONEDX.to_owned());
        Ok(descriptor)
    }
}

/// Passes bytes on, and knows their digest and number.
struct Hashing<W> {
    inner: W,
    hash: Sha256,
    size: u64,
}

impl<W> Hashing<W> {
    fn new(inner: W) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
            size: 0,
        }
    }

    fn finish(self) -> (W, Digest, u64) {
        (self.inner, Digest::from_hash(self.hash), self.size)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or(bytes));
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Puts `new` in the place of `old`; what was there is then under the name `new`.
fn replace_directory(new: &Path, old: &Path) -> io::Result<()> {
    // Another process may make or remove `old` between the two calls; each round makes progress
    // unless that happens again.
    for _ in 0..16 {
        match renameat_with(CWD, new, CWD, old, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST | Errno::NOTEMPTY) => {}
            Err(Errno::INVAL | Errno::NOSYS) => return replace_in_two_steps(new, old),
            other => return Ok(other?),
        }
        match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
            Err(Errno::NOENT) => {}
            Err(Errno::INVAL | Errno::NOSYS) => return replace_in_two_steps(new, old),
            other => return Ok(other?),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::ResourceBusy,
        "another process keeps replacing it",
    ))
}

/// For file systems that cannot exchange two names: for a moment there is nothing at `old`.
fn replace_in_two_steps(new: &Path, old: &Path) -> io::Result<()> {
    let mut aside = new.as_os_str().to_owned();
    aside.push("-old");
    let aside = PathBuf::from(aside);
    match fs::rename(old, &aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return fs::rename(new, old),
        other => other?,
    }
    fs::rename(new, old)?;
    fs::rename(&aside, new)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An image with one of each kind of entry; `scratch` holds the file that it reads.
    pub(crate) fn sample(reference: &str, scratch: &Path) -> Image {
        let program = scratch.join("program");
        fs::write(&program, vec![7; 100_000]).unwrap();
        let mut image = Image::new(reference.parse().unwrap());
        image.entries = vec![
            Entry::symlink("/usr/bin/run", "../../bin/program"),
            Entry::file("/bin/program", Source::File(program), 0o755),
            Entry::directory("tmp", 0o1777),
            Entry::file("home/me/note", Source::Bytes(b"hello".to_vec()), 0o640)
                .owned_by(65532, 65533),
        ];
        image.config.entrypoint = vec!["/bin/program".to_owned()];
        image.config.user = "65532:65532".to_owned();
        image.config.env.insert("B".to_owned(), "2".to_owned());
        image.config.env.insert("A".to_owned(), "1".to_owned());
        image
    }

    fn json(path: &Path) -> serde_json::Value {
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    fn layer_of(layout: &Path) -> (Manifest, Vec<u8>) {
        let index = read_index(layout).unwrap();
        let manifest = read_manifest(layout, &index.manifests[0].digest).unwrap();
        let blob = fs::read(blob_path(layout, &manifest.layers[0].digest)).unwrap();
        (manifest, blob)
    }

    /// `kind mode uid/gid size path -> target` per entry.
    fn list(tar: &[u8]) -> Vec<String> {
        let mut archive = tar::Archive::new(tar);
        let mut lines = Vec::new();
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            let target = entry.link_name().unwrap();
            let target = target
                .map(|t| format!(" -> {}", t.display()))
                .unwrap_or_default();
            lines.push(format!(
                "{:?} {:o} {}/{} {} {}{target}",
                header.entry_type(),
                header.mode().unwrap(),
                header.uid().unwrap(),
                header.gid().unwrap(),
                header.size().unwrap(),
                entry.path().unwrap().display(),
            ));
            assert_eq!(header.mtime().unwrap(), 0);
        }
        lines
    }

    fn names_in(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_layer_has_every_entry_and_its_parents_in_the_order_of_their_paths() {
        let dir = tempfile::tempdir().unwrap();
        let mut image = sample("cobalt.lab/sample:1", dir.path());
        image.compression = Compression::None;
        let layout = dir.path().join("layout");
        write_layout(&image, &layout).unwrap();
        let expected = [
            "Directory 755 0/0 0 bin/",
            "Regular 755 0/0 100000 bin/program",
            "Directory 755 0/0 0 home/",
            "Directory 755 0/0 0 home/me/",
            "Regular 640 65532/65533 5 home/me/note",
            "Directory 1777 0/0 0 tmp/",
            "Directory 755 0/0 0 usr/",
            "Directory 755 0/0 0 usr/bin/",
            "Symlink 777 0/0 0 usr/bin/run -> ../../bin/program",
        ];
        assert_eq!(list(&layer_of(&layout).1), expected);
    }

    #[test]
    fn a_compressed_layer_holds_the_same_tar_and_its_digest_is_in_the_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let mut image = sample("cobalt.lab/sample:1", dir.path());
        let (gzip, plain) = (dir.path().join("gzip"), dir.path().join("plain"));
        let written = write_layout(&image, &gzip).unwrap();
        image.compression = Compression::None;
        write_layout(&image, &plain).unwrap();

        let (manifest, layer) = layer_of(&gzip);
        assert_eq!(layer[4..8], [0; 4], "the header of gzip names no time");
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(layer.as_slice())
            .read_to_end(&mut unpacked)
            .unwrap();
        assert_eq!(unpacked, layer_of(&plain).1);
        assert_eq!(written.layer_size, layer.len() as u64);

        let config = json(&blob_path(&gzip, &manifest.config.digest));
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            Digest::of(&unpacked).to_string()
        );
        assert_eq!(config["config"]["Env"], serde_json::json!(["A=1", "B=2"]));
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["os"], "linux");
        assert!(config.get("created").is_none());
    }

    #[test]
    fn the_same_input_gives_the_same_bytes() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let image = sample("cobalt.lab/sample:1", one.path());
        let mut other = sample("cobalt.lab/sample:1", two.path());
        other.entries.reverse();
        File::options()
            .append(true)
            .open(two.path().join("program"))
            .unwrap()
            .set_modified(std::time::SystemTime::UNIX_EPOCH)
            .unwrap();

        let first = write_layout(&image, &one.path().join("layout")).unwrap();
        let second = write_layout(&other, &two.path().join("layout")).unwrap();
        assert_eq!(first, second);
        for dir in [&one, &two] {
            write_archive(&dir.path().join("layout"), &dir.path().join("image.tar")).unwrap();
        }
        let archive = |dir: &tempfile::TempDir| fs::read(dir.path().join("image.tar")).unwrap();
        assert_eq!(archive(&one), archive(&two));
    }

    #[test]
    fn any_difference_gives_another_digest() {
        let dir = tempfile::tempdir().unwrap();
        let image = sample("cobalt.lab/sample:1", dir.path());
        let digest = |image: &Image| write_layout(image, &dir.path().join("l")).unwrap().digest;
        let original = digest(&image);
        let mut other = image.clone();
        other.epoch = 1;
        assert_ne!(digest(&other), original);
        let mut other = image.clone();
        other.config.labels.insert("a".to_owned(), "b".to_owned());
        assert_ne!(digest(&other), original);
        let mut other = image.clone();
        other.entries.push(Entry::directory("var", 0o755));
        assert_ne!(digest(&other), original);
        assert_eq!(digest(&image), original);
    }

    #[test]
    fn every_blob_of_the_archive_has_the_digest_that_it_is_named_by() {
        let dir = tempfile::tempdir().unwrap();
        let mut image = sample("cobalt.lab/sample:1", dir.path());
        image.sbom = Some(Sbom {
            file_name: "a.cdx.json".to_owned(),
            document: b"{}".to_vec(),
        });
        let layout = dir.path().join("layout");
        write_layout(&image, &layout).unwrap();
        write_archive(&layout, &dir.path().join("image.tar")).unwrap();

        let mut archive = tar::Archive::new(File::open(dir.path().join("image.tar")).unwrap());
        let mut blobs = 0;
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            if let Some(hex) = path.strip_prefix("blobs/sha256/") {
                assert_eq!(Digest::of(&bytes).hex(), hex);
                blobs += 1;
            }
        }
        // Layer, configuration, manifest; SBOM, which is `{}` here and so also the empty
        // configuration, and its manifest.
        assert_eq!(blobs, 5);
    }

    #[test]
    fn the_index_names_the_image_for_containerd_and_the_sbom_refers_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut image = sample("cobalt.lab/a/sample:v1.2", dir.path());
        let document = br#"{"bomFormat":"CycloneDX"}"#.to_vec();
        image.sbom = Some(Sbom {
            file_name: "sample.cdx.json".to_owned(),
            document,
        });
        let layout = dir.path().join("layout");
        let written = write_layout(&image, &layout).unwrap();

        let index = read_index(&layout).unwrap();
        let [named, sbom] = index.manifests.as_slice() else {
            panic!("{index:?}")
        };
        assert_eq!(named.digest, written.digest);
        assert_eq!(named.annotations[IMAGE_NAME], "cobalt.lab/a/sample:v1.2");
        assert_eq!(named.annotations[REF_NAME], "v1.2");
        assert_eq!(Some(&sbom.digest), written.sbom.as_ref());
        assert_eq!(sbom.artifact_type.as_deref(), Some(CYCLONEDX));
        assert!(
            sbom.annotations.is_empty(),
            "a name would make containerd import it as an image"
        );
        let sbom = read_manifest(&layout, &sbom.digest).unwrap();
        assert_eq!(sbom.subject.unwrap().digest, written.digest);
        assert_eq!(sbom.layers[0].annotations[TITLE], "sample.cdx.json");
        assert_eq!(
            json(&layout.join("oci-layout"))["imageLayoutVersion"],
            "1.0.0"
        );
    }

    #[test]
    fn a_layout_is_replaced_whole_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let mut image = sample("cobalt.lab/sample:1", dir.path());
        let first = write_layout(&image, &out.join("layout")).unwrap();
        image.config.cmd = vec!["again".to_owned()];
        let second = write_layout(&image, &out.join("layout")).unwrap();
        assert_ne!(first.digest, second.digest);
        assert!(!blob_path(&out.join("layout"), &first.digest).exists());
        assert_eq!(names_in(&out), ["layout"]);
    }

    #[test]
    fn a_failure_leaves_the_old_layout_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let mut image = sample("cobalt.lab/sample:1", dir.path());
        let written = write_layout(&image, &out.join("layout")).unwrap();
        let gone = dir.path().join("gone");
        image
            .entries
            .push(Entry::file("x", Source::File(gone), 0o644));
        let error = write_layout(&image, &out.join("layout")).unwrap_err();
        assert!(matches!(error, Error::ReadSource { .. }), "{error:?}");
        assert_eq!(names_in(&out), ["layout"]);
        assert_eq!(
            read_index(&out.join("layout")).unwrap().manifests[0].digest,
            written.digest
        );
    }

    #[test]
    fn writers_at_the_same_time_both_succeed() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let image = sample("cobalt.lab/sample:1", dir.path());
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| write_layout(&image, &out.join("layout")).unwrap()))
                .collect();
            for writer in writers {
                writer.join().unwrap();
            }
        });
        assert_eq!(names_in(&out), ["layout"]);
        assert_eq!(layer_of(&out.join("layout")).0.layers.len(), 1);
    }

    #[test]
    fn replacing_in_two_steps_ends_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (new, old) = (dir.path().join("new"), dir.path().join("old"));
        fs::create_dir(&new).unwrap();
        fs::write(new.join("1"), "").unwrap();
        replace_in_two_steps(&new, &old).unwrap();
        assert_eq!(names_in(&old), ["1"]);
        fs::create_dir(&new).unwrap();
        fs::write(new.join("2"), "").unwrap();
        replace_in_two_steps(&new, &old).unwrap();
        assert_eq!(
            (names_in(&old), names_in(&new)),
            (vec!["2".to_owned()], vec!["1".to_owned()])
        );
    }

    #[test]
    fn paths_that_would_unpack_to_something_else_are_refused() {
        let refused = |entries: Vec<Entry>| {
            let error = prepare(&entries).err().map(|error| error.to_string());
            error.unwrap_or_else(|| panic!("accepted {entries:?}"))
        };
        let file = |path: &str| Entry::file(path, Source::Bytes(Vec::new()), 0o644);
        for path in ["", "/", "a//b", "a/../b", "../a", "./a", "a/.wh.b", "a\0b"] {
            refused(vec![file(path)]);
        }
        refused(vec![Entry::symlink("a", "")]);
        assert!(refused(vec![file("a"), file("/a/")]).contains("twice"));
        assert!(refused(vec![file("a/b"), Entry::symlink("a", "/etc")]).contains("parent"));
        assert!(refused(vec![file("a"), file("a/b/c")]).contains("parent"));
    }

    #[test]
    fn long_paths_and_targets_survive() {
        let dir = tempfile::tempdir().unwrap();
        let long = vec!["directory"; 30].join("/");
        let mut image = Image::new("cobalt.lab/long:1".parse().unwrap());
        image.compression = Compression::None;
        image.entries = vec![Entry::symlink(long.clone(), format!("/{long}"))];
        let layout = dir.path().join("layout");
        write_layout(&image, &layout).unwrap();
        let listed = list(&layer_of(&layout).1);
        assert_eq!(
            listed.last().unwrap(),
            &format!("Symlink 777 0/0 0 {long} -> /{long}")
        );
    }

    #[test]
    fn references_are_completed_as_container_runtimes_do() {
        for (text, full) in [
            ("cobalt.lab/pause:1", "cobalt.lab/pause:1"),
            ("quay.io/a/b/c", "quay.io/a/b/c:latest"),
            ("localhost/a:1", "localhost/a:1"),
            ("127.0.0.1:5000/a:1", "127.0.0.1:5000/a:1"),
            ("lab/pause:1", "docker.io/lab/pause:1"),
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), full);
        }
        for text in [
            "",
            "a.b/",
            "a.b/C:1",
            "a.b/c:",
            "a.b/c:1+2",
            "a.b/../c:1",
            "a.b/c@sha256:0",
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text}");
        }
    }

    #[test]
    fn file_names_of_references_differ() {
        let texts = [
            "a.b/c_d:1",
            "a.b/c/d:1",
            "a.b/c:d_1",
            "a.b:1/c:1",
            "a.b/c:1",
        ];
        let names: std::collections::BTreeSet<String> = texts
            .iter()
            .map(|text| text.parse::<Reference>().unwrap().file_name())
            .collect();
        assert_eq!(names.len(), texts.len());
        assert!(names.iter().all(|name| !name.contains('/')));
    }

    #[test]
    fn only_whole_digests_are_digests() {
        let good = format!("sha256:{}", "0a".repeat(32));
        assert_eq!(good.parse::<Digest>().unwrap().to_string(), good);
        for bad in [
            String::new(),
            "sha256:".to_owned(),
            format!("sha256:{}", "0A".repeat(32)),
            format!("sha256:{}", "0a".repeat(31)),
            format!("sha512:{}", "0a".repeat(32)),
            format!("sha256:../{}", "0a".repeat(30)),
        ] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
