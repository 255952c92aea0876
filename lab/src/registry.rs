//! A read-only image registry over a directory of OCI image layouts.
//!
//! It answers for every registry at once: a container runtime that is told to use it as a mirror
//! says in `?ns=HOST` which registry it means, so a chart keeps its image names and
//! `imagePullPolicy: Always` works without any of those registries.
//!
//! Input is the directory alone: each subdirectory is one layout, and what its index names with
//! [`oci::IMAGE_NAME`] is served. Nothing is remembered between two requests, so an image that
//! appears, changes or goes away is seen at once. A layout that cannot be read is passed over and
//! costs the others nothing. Only validated names and digests ever become part of a path.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderName, Method, StatusCode, Uri};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio_util::io::ReaderStream;
use tokio_util::sync::CancellationToken;

use crate::oci::{self, Descriptor, Digest, Index, Reference};

/// How long a transfer may go on after the registry was told to stop.
const GRACE: Duration = Duration::from_secs(5);
const CHUNK: usize = 256 << 10;
const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
const API_VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");

/// Why the registry ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The listener failed.
    #[error("failed to serve images from \"{images}\"")]
    Serve {
        /// The directory of layouts.
        images: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Serves the layouts in the directory `images` until `shutdown`.
///
/// The directory need not exist yet.
///
/// # Errors
/// The listener fails.
pub async fn serve(
    listener: TcpListener,
    images: PathBuf,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let state = Arc::new(images);
    let router = Router::new()
        .fallback(answer)
        .with_state(Arc::clone(&state));
    let server =
        axum::serve(listener, router).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    let overdue = async {
        shutdown.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        ended = async { server.await } => {
            ended.map_err(|source| Error::Serve { images: state.as_ref().clone(), source })
        }
        () = overdue => Ok(()),
    }
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// `/v2/`: is this a registry?
    Version,
    Tag(String),
    Manifest(Digest),
    Blob(Digest),
    Referrers(Digest),
    Tags,
}

/// A request in the terms of the registry.
#[derive(Debug, PartialEq, Eq)]
struct Query {
    /// The registry that the client means; if it does not say, any that has the repository.
    host: Option<String>,
    repository: String,
    wanted: Wanted,
}

/// An answer that is not the thing asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Method,
    Route,
    NameInvalid,
    NameUnknown,
    NameAmbiguous,
    DigestInvalid,
    ManifestUnknown,
    BlobUnknown,
    Internal,
}

impl Refusal {
    /// The status, the code of the distribution specification, and a message for people.
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        use StatusCode as S;
        match self {
            Self::Method => (
                S::METHOD_NOT_ALLOWED,
                "UNSUPPORTED",
                "this registry can only be read",
            ),
            Self::Route => (S::NOT_FOUND, "UNSUPPORTED", "no such operation"),
            Self::NameInvalid => (S::BAD_REQUEST, "NAME_INVALID", "invalid repository name"),
            Self::NameUnknown => (S::NOT_FOUND, "NAME_UNKNOWN", "repository not known"),
            Self::NameAmbiguous => (
                S::NOT_FOUND,
                "NAME_UNKNOWN",
                "several registries have this image: say which with ?ns=HOST",
            ),
            Self::DigestInvalid => (S::BAD_REQUEST, "DIGEST_INVALID", "invalid digest"),
            Self::ManifestUnknown => (S::NOT_FOUND, "MANIFEST_UNKNOWN", "manifest not known"),
            Self::BlobUnknown => (S::NOT_FOUND, "BLOB_UNKNOWN", "blob not known"),
            Self::Internal => (
                S::INTERNAL_SERVER_ERROR,
                "UNKNOWN",
                "the images cannot be read; see the log",
            ),
        }
    }
}

/// The thing asked for.
#[derive(Debug)]
enum Found {
    File {
        file: File,
        size: u64,
        media_type: String,
        digest: Digest,
    },
    Document {
        media_type: &'static str,
        document: Value,
    },
}

async fn answer(State(images): State<Arc<PathBuf>>, request: Request) -> Response {
    let (method, uri) = (request.method(), request.uri());
    let response = match respond(images.as_ref(), method, uri).await {
        Ok(response) => response,
        Err(refusal) => refused(refusal, uri),
    };
    tracing::debug!(%method, %uri, status = response.status().as_u16(), "image request");
    response
}

async fn respond(images: &Path, method: &Method, uri: &Uri) -> Result<Response, Refusal> {
    if method != Method::GET && method != Method::HEAD {
        return Err(Refusal::Method);
    }
    let query = parse(uri.path(), uri.query().unwrap_or_default())?;
    let images = images.to_owned();
    let found = tokio::task::spawn_blocking(move || find(&images, &query))
        .await
        .map_err(|_| Refusal::Internal)??;
    let (size, media_type, digest, body) = match found {
        Found::Document {
            media_type,
            document,
        } => {
            let text = document.to_string();
            (
                text.len() as u64,
                media_type.to_owned(),
                None,
                Body::from(text),
            )
        }
        Found::File {
            size,
            media_type,
            digest,
            ..
        } if method == Method::HEAD => (size, media_type, Some(digest), Body::empty()),
        Found::File {
            file,
            size,
            media_type,
            digest,
        } => {
            let file = tokio::fs::File::from_std(file).take(size);
            let body = Body::from_stream(ReaderStream::with_capacity(file, CHUNK));
            (size, media_type, Some(digest), body)
        }
    };
    let mut response = Response::builder()
        .header(CONTENT_TYPE, media_type)
        .header(CONTENT_LENGTH, size)
        .header(API_VERSION, "registry/2.0");
    if let Some(digest) = digest {
        response = response.header(CONTENT_DIGEST, digest.to_string());
    }
    // A media type from an index may hold what no header can.
    response.body(body).map_err(|_| Refusal::Internal)
}

fn refused(refusal: Refusal, uri: &Uri) -> Response {
    let (status, code, message) = refusal.parts();
    let detail = json!({ "path": uri.path() });
    let errors = json!({ "errors": [{ "code": code, "message": message, "detail": detail }] });
    let mut response = Response::new(Body::from(errors.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        axum::http::HeaderValue::from_static("application/json"),
    );
    if refusal == Refusal::Method {
        headers.insert(ALLOW, axum::http::HeaderValue::from_static("GET, HEAD"));
    }
    response
}

/// Reads `/v2/NAME/(manifests|blobs|referrers)/REFERENCE` and `/v2/NAME/tags/list`.
fn parse(path: &str, query: &str) -> Result<Query, Refusal> {
    let path = percent_decode(path).ok_or(Refusal::Route)?;
    if path == "/v2" || path == "/v2/" {
        return Ok(Query {
            host: None,
            repository: String::new(),
            wanted: Wanted::Version,
        });
    }
    // The repository has slashes too, so the path is read from its end.
    let path = path.strip_prefix("/v2/").ok_or(Refusal::Route)?;
    let (path, last) = path.rsplit_once('/').ok_or(Refusal::Route)?;
    let (repository, kind) = path.rsplit_once('/').ok_or(Refusal::Route)?;
    let digest = || last.parse::<Digest>().map_err(|_| Refusal::DigestInvalid);
    let wanted = match (kind, last) {
        ("manifests", digest_text) if digest_text.contains(':') => Wanted::Manifest(digest()?),
        ("manifests", tag) if oci::is_tag(tag) => Wanted::Tag(tag.to_owned()),
        ("manifests", _) => return Err(Refusal::ManifestUnknown),
        ("blobs", _) => Wanted::Blob(digest()?),
        ("referrers", _) => Wanted::Referrers(digest()?),
        ("tags", "list") => Wanted::Tags,
        _ => return Err(Refusal::Route),
    };
    if !oci::is_repository(repository) {
        return Err(Refusal::NameInvalid);
    }
    let host = match query.split('&').find_map(|pair| pair.strip_prefix("ns=")) {
        None => None,
        Some(host) => {
            let host = percent_decode(host).filter(|host| oci::is_host(host));
            Some(host.ok_or(Refusal::NameInvalid)?)
        }
    };
    Ok(Query {
        host,
        repository: repository.to_owned(),
        wanted,
    })
}

/// Replaces `%XX`; nothing if that is not UTF-8 or not two digits.
fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        decoded.push(if byte == b'%' {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            let value = digit(bytes.next()?)? * 16 + digit(bytes.next()?)?;
            u8::try_from(value).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(decoded).ok()
}

/// One layout, with the images that its index names.
struct Layout {
    path: PathBuf,
    index: Index,
    names: Vec<(Reference, Descriptor)>,
}

/// All readable layouts, in the order of their directories' names.
fn scan(images: &Path) -> Result<Vec<Layout>, Refusal> {
    let unreadable = |error: io::Error| {
        tracing::warn!(directory = %images.display(), %error, "cannot list the images");
        Refusal::Internal
    };
    let directory = match fs::read_dir(images) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(unreadable)?,
    };
    let mut paths = BTreeSet::new();
    for entry in directory {
        let entry = entry.map_err(unreadable)?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let path = entry.path();
        if !hidden && path.is_dir() {
            paths.insert(path);
        }
    }
    let mut layouts = Vec::new();
    for path in paths {
        match oci::read_index(&path) {
            Ok(index) => {
                let names = index.manifests.iter().filter_map(|manifest| {
                    let name = manifest.annotations.get(oci::IMAGE_NAME)?;
                    Some((name.parse().ok()?, manifest.clone()))
                });
                layouts.push(Layout {
                    names: names.collect(),
                    path,
                    index,
                });
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, cause, "an image layout is passed over");
            }
        }
    }
    Ok(layouts)
}

fn find(images: &Path, query: &Query) -> Result<Found, Refusal> {
    if query.wanted == Wanted::Version {
        return Ok(Found::Document {
            media_type: "application/json",
            document: json!({}),
        });
    }
    // A layout that is replaced between the look at its index and the opening of a blob is
    // another one when it is looked at again.
    match look(images, query) {
        Err(Refusal::ManifestUnknown | Refusal::BlobUnknown) => look(images, query),
        other => other,
    }
}

fn look(images: &Path, query: &Query) -> Result<Found, Refusal> {
    let mut layouts = scan(images)?;
    for layout in &mut layouts {
        layout.names.retain(|(reference, _)| {
            reference.repository() == query.repository
                && query
                    .host
                    .as_ref()
                    .is_none_or(|host| host == reference.host())
        });
    }
    // A blob belongs to the repository that names its layout, as in any other registry.
    layouts.retain(|layout| !layout.names.is_empty());
    if layouts.is_empty() {
        return Err(Refusal::NameUnknown);
    }
    let names = || layouts.iter().flat_map(|layout| &layout.names);
    match &query.wanted {
        Wanted::Tag(tag) => {
            let tagged = || names().filter(|(reference, _)| reference.tag() == tag);
            let (_, first) = tagged().next().ok_or(Refusal::ManifestUnknown)?;
            if query.host.is_none() && tagged().any(|(_, other)| other.digest != first.digest) {
                return Err(Refusal::NameAmbiguous);
            }
            open(
                &layouts,
                &first.digest,
                &first.media_type,
                Refusal::ManifestUnknown,
            )
        }
        Wanted::Manifest(digest) => {
            let manifest = layouts
                .iter()
                .flat_map(|layout| &layout.index.manifests)
                .find(|manifest| manifest.digest == *digest)
                .ok_or(Refusal::ManifestUnknown)?;
            open(
                &layouts,
                digest,
                &manifest.media_type,
                Refusal::ManifestUnknown,
            )
        }
        Wanted::Blob(digest) => open(
            &layouts,
            digest,
            "application/octet-stream",
            Refusal::BlobUnknown,
        ),
        Wanted::Referrers(subject) => Ok(Found::Document {
            media_type: oci::INDEX,
            document: json!({
                "schemaVersion": 2,
                "mediaType": oci::INDEX,
                "manifests": referrers(&layouts, subject),
            }),
        }),
        Wanted::Tags => {
            let tags: BTreeSet<&str> = names().map(|(reference, _)| reference.tag()).collect();
            let document = json!({ "name": query.repository, "tags": tags });
            Ok(Found::Document {
                media_type: "application/json",
                document,
            })
        }
        Wanted::Version => Err(Refusal::Route),
    }
}

fn open(
    layouts: &[Layout],
    digest: &Digest,
    media_type: &str,
    missing: Refusal,
) -> Result<Found, Refusal> {
    for layout in layouts {
        let path = oci::blob_path(&layout.path, digest);
        let opened = File::open(&path).and_then(|file| {
            let size = file.metadata()?.len();
            Ok((file, size))
        });
        match opened {
            Ok((file, size)) => {
                let (media_type, digest) = (media_type.to_owned(), digest.clone());
                return Ok(Found::File {
                    file,
                    size,
                    media_type,
                    digest,
                });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot open a blob");
                return Err(Refusal::Internal);
            }
        }
    }
    Err(missing)
}

/// The manifests that refer to `subject`; one that cannot be read is left out.
fn referrers<'a>(layouts: &'a [Layout], subject: &Digest) -> Vec<&'a Descriptor> {
    let mut found = Vec::new();
    for layout in layouts {
        for descriptor in &layout.index.manifests {
            let refers = oci::read_manifest(&layout.path, &descriptor.digest)
                .is_ok_and(|manifest| manifest.subject.is_some_and(|s| s.digest == *subject));
            if refers {
                found.push(descriptor);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::oci::tests::sample;
    use crate::oci::{Sbom, Written, write_layout};

    /// A running registry over an empty directory.
    struct Lab {
        dir: tempfile::TempDir,
        address: SocketAddr,
        shutdown: CancellationToken,
        server: JoinHandle<Result<(), Error>>,
    }

    struct Answer {
        status: u16,
        headers: BTreeMap<String, String>,
        body: Vec<u8>,
    }

    impl Answer {
        fn json(&self) -> Value {
            serde_json::from_slice(&self.body).unwrap()
        }

        /// The status and the code of the first error.
        fn error(&self) -> (u16, String) {
            let code = self.json()["errors"][0]["code"]
                .as_str()
                .unwrap()
                .to_owned();
            (self.status, code)
        }
    }

    impl Lab {
        async fn start() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let shutdown = CancellationToken::new();
            let images = dir.path().join("images");
            let server = tokio::spawn(serve(listener, images, shutdown.clone()));
            Self {
                dir,
                address,
                shutdown,
                server,
            }
        }

        fn images(&self) -> PathBuf {
            self.dir.path().join("images")
        }

        fn add(&self, reference: &str, label: &str) -> Written {
            let mut image = sample(reference, self.dir.path());
            image
                .config
                .labels
                .insert("label".to_owned(), label.to_owned());
            let document = b"{\"bomFormat\":\"CycloneDX\"}".to_vec();
            image.sbom = Some(Sbom {
                file_name: "a.cdx.json".to_owned(),
                document,
            });
            let layout = self.images().join(image.reference.file_name());
            write_layout(&image, &layout).unwrap()
        }

        async fn request(&self, method: &str, target: &str) -> Answer {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            let request =
                format!("{method} {target} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut raw = Vec::new();
            stream.read_to_end(&mut raw).await.unwrap();
            let end = raw
                .windows(4)
                .position(|window| window == b"\r\n\r\n")
                .unwrap();
            let head = String::from_utf8(raw[..end].to_vec()).unwrap();
            let mut lines = head.lines();
            let status = lines
                .next()
                .unwrap()
                .split(' ')
                .nth(1)
                .unwrap()
                .parse()
                .unwrap();
            let headers = lines
                .map(|line| line.split_once(": ").unwrap())
                .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
                .collect();
            Answer {
                status,
                headers,
                body: raw[end + 4..].to_vec(),
            }
        }

        async fn get(&self, target: &str) -> Answer {
            self.request("GET", target).await
        }

        async fn stop(self) {
            self.shutdown.cancel();
            self.server.await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn an_image_is_pulled_by_tag_then_by_digest() {
        let lab = Lab::start().await;
        let written = lab.add("two.example/a/b:1", "");
        assert_eq!(lab.get("/v2/").await.status, 200);

        let head = lab
            .request("HEAD", "/v2/a/b/manifests/1?ns=two.example")
            .await;
        assert_eq!(head.status, 200);
        assert_eq!(
            head.headers["docker-content-digest"],
            written.digest.to_string()
        );
        assert_eq!(head.headers["content-type"], oci::MANIFEST);
        assert!(head.body.is_empty());

        let target = format!("/v2/a/b/manifests/{}?ns=two.example", written.digest);
        let manifest = lab.get(&target).await;
        assert_eq!(
            head.headers["content-length"],
            manifest.body.len().to_string()
        );
        assert_eq!(Digest::of(&manifest.body), written.digest);

        let manifest: oci::Manifest = serde_json::from_slice(&manifest.body).unwrap();
        for blob in manifest.layers.iter().chain([&manifest.config]) {
            let target = format!("/v2/a/b/blobs/{}?ns=two.example", blob.digest);
            let answer = lab.get(&target).await;
            assert_eq!(answer.status, 200);
            assert_eq!(answer.headers["content-length"], blob.size.to_string());
            assert_eq!(Digest::of(&answer.body), blob.digest);
            let head = lab.request("HEAD", &target).await;
            assert_eq!(head.headers["content-length"], blob.size.to_string());
            assert!(head.body.is_empty());
        }
        lab.stop().await;
    }

    #[tokio::test]
    async fn a_large_blob_arrives_whole() {
        let lab = Lab::start().await;
        let mut image = oci::Image::new("cobalt.lab/large:1".parse().unwrap());
        image.compression = oci::Compression::None;
        let bytes = (0..5_000_000_u32).map(|i| i.to_le_bytes()[1]).collect();
        image.entries = vec![oci::Entry::file("f", oci::Source::Bytes(bytes), 0o644)];
        let layout = lab.images().join("large");
        let written = write_layout(&image, &layout).unwrap();
        let layer = oci::read_manifest(&layout, &written.digest)
            .unwrap()
            .layers
            .remove(0);
        let answer = lab
            .get(&format!("/v2/large/blobs/{}?ns=cobalt.lab", layer.digest))
            .await;
        assert_eq!(Digest::of(&answer.body), layer.digest);
        lab.stop().await;
    }

    #[tokio::test]
    async fn images_that_appear_or_change_are_seen_at_once() {
        let lab = Lab::start().await;
        let target = "/v2/a/manifests/dev?ns=cobalt.lab";
        assert_eq!(
            lab.get(target).await.error(),
            (404, "NAME_UNKNOWN".to_owned())
        );
        let first = lab.add("cobalt.lab/a:dev", "first");
        let digest = |answer: Answer| answer.headers["docker-content-digest"].clone();
        assert_eq!(digest(lab.get(target).await), first.digest.to_string());
        let second = lab.add("cobalt.lab/a:dev", "second");
        assert_ne!(first.digest, second.digest);
        assert_eq!(digest(lab.get(target).await), second.digest.to_string());
        lab.stop().await;
    }

    #[tokio::test]
    async fn the_same_repository_of_two_registries_stays_apart() {
        let lab = Lab::start().await;
        let two = lab.add("two.example/a/b:1", "two");
        let one = lab.add("one.example/a/b:1", "one");
        for (host, written) in [("two.example", &two), ("one.example", &one)] {
            let answer = lab.get(&format!("/v2/a/b/manifests/1?ns={host}")).await;
            assert_eq!(
                answer.headers["docker-content-digest"],
                written.digest.to_string()
            );
        }
        let other = lab.get("/v2/a/b/manifests/1?ns=docker.io").await;
        assert_eq!(other.error(), (404, "NAME_UNKNOWN".to_owned()));
        // One registry does not hand out what another has.
        let target = format!("/v2/a/b/manifests/{}?ns=two.example", one.digest);
        assert_eq!(
            lab.get(&target).await.error(),
            (404, "MANIFEST_UNKNOWN".to_owned())
        );
        let ambiguous = lab.get("/v2/a/b/manifests/1").await;
        assert_eq!(ambiguous.error(), (404, "NAME_UNKNOWN".to_owned()));
        lab.stop().await;
    }

    #[tokio::test]
    async fn without_a_registry_the_only_one_that_has_the_image_is_meant() {
        let lab = Lab::start().await;
        let written = lab.add("one.example/a/b:1", "");
        let answer = lab.get("/v2/a/b/manifests/1").await;
        assert_eq!(
            answer.headers["docker-content-digest"],
            written.digest.to_string()
        );
        lab.stop().await;
    }

    #[tokio::test]
    async fn the_sbom_is_found_from_the_image() {
        let lab = Lab::start().await;
        let written = lab.add("one.example/a:1", "");
        let sbom = written.sbom.unwrap();
        let answer = lab
            .get(&format!(
                "/v2/a/referrers/{}?ns=one.example",
                written.digest
            ))
            .await;
        assert_eq!(answer.headers["content-type"], oci::INDEX);
        let index = answer.json();
        assert_eq!(index["manifests"].as_array().unwrap().len(), 1);
        assert_eq!(index["manifests"][0]["digest"], sbom.to_string());
        assert_eq!(index["manifests"][0]["artifactType"], oci::CYCLONEDX);
        let manifest = lab
            .get(&format!("/v2/a/manifests/{sbom}?ns=one.example"))
            .await;
        assert_eq!(Digest::of(&manifest.body), sbom);
        // Nothing refers to the SBOM itself: an empty list, not an error.
        let none = lab
            .get(&format!("/v2/a/referrers/{sbom}?ns=one.example"))
            .await;
        assert_eq!(none.json()["manifests"], json!([]));
        let tags = lab.get("/v2/a/tags/list?ns=one.example").await;
        assert_eq!(tags.json(), json!({ "name": "a", "tags": ["1"] }));
        lab.stop().await;
    }

    #[tokio::test]
    async fn whatever_is_unknown_or_invalid_gets_the_code_that_clients_know() {
        let lab = Lab::start().await;
        lab.add("one.example/a/b:1", "");
        let digest = Digest::of(b"nothing has this content");
        for (target, status, code) in [
            ("/v2/a/b/manifests/2".to_owned(), 404, "MANIFEST_UNKNOWN"),
            (
                format!("/v2/a/b/manifests/{digest}"),
                404,
                "MANIFEST_UNKNOWN",
            ),
            (format!("/v2/a/b/blobs/{digest}"), 404, "BLOB_UNKNOWN"),
            (format!("/v2/a/c/blobs/{digest}"), 404, "NAME_UNKNOWN"),
            ("/v2/a/b/blobs/sha256:..".to_owned(), 400, "DIGEST_INVALID"),
            (
                "/v2/a/b/manifests/sha256:1".to_owned(),
                400,
                "DIGEST_INVALID",
            ),
            ("/v2/a/B/manifests/1".to_owned(), 400, "NAME_INVALID"),
            (
                "/v2/a/b/manifests/1?ns=..%2f..".to_owned(),
                400,
                "NAME_INVALID",
            ),
            ("/v2/a/b/elsewhere/1".to_owned(), 404, "UNSUPPORTED"),
            ("/v2/_catalog".to_owned(), 404, "UNSUPPORTED"),
            ("/".to_owned(), 404, "UNSUPPORTED"),
        ] {
            let answer = lab.get(&target).await;
            assert_eq!(answer.error(), (status, code.to_owned()), "{target}");
            assert_eq!(answer.headers["content-type"], "application/json");
        }
        let answer = lab.request("DELETE", "/v2/a/b/manifests/1").await;
        assert_eq!(answer.error(), (405, "UNSUPPORTED".to_owned()));
        assert_eq!(answer.headers["allow"], "GET, HEAD");
        lab.stop().await;
    }

    #[tokio::test]
    async fn nothing_outside_the_layouts_can_be_reached() {
        let lab = Lab::start().await;
        lab.add("one.example/a/b:1", "");
        fs::write(lab.dir.path().join("secret"), "secret").unwrap();
        for target in [
            "/v2/a/b/blobs/../../../../secret",
            "/v2/a/b/blobs/..%2f..%2f..%2f..%2fsecret",
            "/v2/a/b/blobs/sha256:..%2f..%2f..%2f..%2fsecret",
            "/v2/a/b/manifests/..%2f..%2fsecret",
            "/v2/../../secret/manifests/1",
            "/v2/..%2f..%2fsecret/manifests/1",
            "/v2/a/b/blobs/%2fetc%2fpasswd",
            "/v2/a/b/blobs/sha256:%00",
            "/v2/a/b/manifests/%ff",
            "/v2/a/b/manifests/%",
        ] {
            let answer = lab.get(target).await;
            assert!(
                (400..500).contains(&answer.status),
                "{target}: {}",
                answer.status
            );
            assert!(!answer.body.ends_with(b"secret"), "{target}");
        }
        lab.stop().await;
    }

    #[tokio::test]
    async fn a_broken_layout_and_one_being_written_cost_the_others_nothing() {
        let lab = Lab::start().await;
        lab.add("one.example/a:1", "");
        for (name, index) in [("aaa", "{"), ("empty", ""), (".tmp-x", "{}")] {
            fs::create_dir(lab.images().join(name)).unwrap();
            fs::write(lab.images().join(name).join("index.json"), index).unwrap();
        }
        fs::create_dir(lab.images().join("nothing")).unwrap();
        fs::write(lab.images().join("a.tar"), "").unwrap();
        assert_eq!(
            lab.get("/v2/a/manifests/1?ns=one.example").await.status,
            200
        );
        lab.stop().await;
    }

    #[tokio::test]
    async fn it_stops_while_a_client_keeps_its_connection() {
        let lab = Lab::start().await;
        let mut idle = TcpStream::connect(lab.address).await.unwrap();
        idle.write_all(b"GET /v2/ HTTP/1.1\r\nHost: lab\r\n\r\n")
            .await
            .unwrap();
        assert!(idle.read(&mut [0; 16]).await.unwrap() > 0);
        lab.stop().await;
    }

    #[test]
    fn requests_are_read_from_their_end() {
        let query = |path, query| parse(path, query);
        let tag = |repository: &str, tag: &str, host: Option<&str>| Query {
            host: host.map(str::to_owned),
            repository: repository.to_owned(),
            wanted: Wanted::Tag(tag.to_owned()),
        };
        assert_eq!(query("/v2/a/manifests/1", ""), Ok(tag("a", "1", None)));
        assert_eq!(
            query(
                "/v2/manifests/manifests/manifests/v1.0-x_y",
                "x=1&ns=a.b%3A5000"
            ),
            Ok(tag("manifests/manifests", "v1.0-x_y", Some("a.b:5000"))),
        );
        let digest = Digest::of(b"");
        let encoded = format!("/v2/a/b/blobs/sha256%3A{}", digest.hex());
        let expected = Query {
            host: None,
            repository: "a/b".to_owned(),
            wanted: Wanted::Blob(digest),
        };
        assert_eq!(query(&encoded, ""), Ok(expected));
    }
}
