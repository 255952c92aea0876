//! The images that the lab itself needs, made from what the machine has.
//!
//! | image | made from |
//! |---|---|
//! | `cobalt.lab/pause:1` | `lab/pause/pause.c`, compiled by the C compiler |
//! | `cobalt.lab/busybox:1` | a static busybox |
//! | `cobalt.lab/coredns:1` | a static CoreDNS |
//!
//! The registry `cobalt.lab` exists nowhere: should a node ever look beyond the lab's own
//! registry, it fails at once instead of running something else. Each layout records a key of the
//! content that it was made from; while key and blobs fit, nothing is made again. It also records
//! a stamp of the source file, so that an unchanged file is not even read. Layers are not
//! compressed, since they never leave the machine.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::oci::{self, Compression, Descriptor, Digest, Entry, Image, Reference, Source};

/// What a pod's sandbox runs.
pub const PAUSE: &str = "cobalt.lab/pause:1";
/// A shell and its tools, for tests and for people.
pub const BUSYBOX: &str = "cobalt.lab/busybox:1";
/// The cluster's DNS server.
pub const COREDNS: &str = "cobalt.lab/coredns:1";

/// Annotation of an image in the index: the key of what it was made from.
const KEY: &str = "dev.cobaltcore.lab.key";
/// Annotation of an image in the index: the source file as the file system showed it.
const STAMP: &str = "dev.cobaltcore.lab.stamp";
/// Changes when the rules by which an image is made do.
const RECIPES: u32 = 1;
const PAUSE_SOURCE: &str = include_str!("../pause/pause.c");
const PAUSE_FLAGS: [&str; 8] = [
    "-std=c11",
    "-D_POSIX_C_SOURCE=200809L",
    "-Wall",
    "-Wextra",
    "-Os",
    "-static",
    "-s",
    "-Wl,--build-id=none",
];
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";
const NSSWITCH: &str = "hosts: files dns\n";

/// Why an image could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Writing or reading the image failed.
    #[error("failed to make image \"{image}\"")]
    Image {
        /// The image.
        image: String,
        /// The cause.
        #[source]
        source: oci::Error,
    },
    /// A program that makes a part of an image cannot be run.
    #[error("failed to run \"{program}\"")]
    Run {
        /// The program.
        program: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A program that makes a part of an image failed.
    #[error("failed to {purpose}: \"{program}\" ended with {status}: {output}")]
    Program {
        /// What it was run for.
        purpose: &'static str,
        /// The program.
        program: PathBuf,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it wrote to standard error.
        output: String,
    },
    /// A directory for intermediate files cannot be made.
    #[error("failed to make a temporary directory")]
    Temporary(#[source] io::Error),
    /// A program cannot be looked at.
    #[error("failed to read program \"{path}\"")]
    ReadProgram {
        /// The program.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file is not a program that can run here.
    #[error("failed to use \"{path}\" in an image: it is not a 64-bit little-endian ELF program")]
    NotAProgram {
        /// The file.
        path: PathBuf,
    },
    /// A program needs files that the image does not have.
    #[error("failed to use \"{path}\" in an image: it is not static, it needs {needs}")]
    NotStatic {
        /// The program.
        path: PathBuf,
        /// What it needs.
        needs: &'static str,
    },
}

type Result<T, E = Error> = std::result::Result<T, E>;

/// What the images are made from.
#[derive(Debug, Clone)]
pub struct Sources {
    /// The C compiler.
    pub compiler: PathBuf,
    /// A static busybox.
    pub busybox: PathBuf,
    /// A static CoreDNS; without it there is no such image.
    pub coredns: Option<PathBuf>,
}

impl Default for Sources {
    /// As Debian's packages `gcc` and `busybox-static` have them; no CoreDNS.
    fn default() -> Self {
        Self {
            compiler: PathBuf::from("gcc"),
            busybox: PathBuf::from("/usr/bin/busybox"),
            coredns: None,
        }
    }
}

/// An image that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRef {
    /// Its name.
    pub reference: Reference,
    /// Its digest.
    pub digest: Digest,
    /// The directory of its layout.
    pub layout: PathBuf,
}

/// Makes those of the lab's images that are missing in the directory `dir` or made from something
/// else than `sources`; returns all of them.
///
/// Processes that do so at the same time do not disturb each other.
///
/// # Errors
/// A source is missing or not static, or an image cannot be written.
pub fn ensure(dir: &Path, sources: &Sources) -> Result<Vec<ImageRef>> {
    let mut images = vec![
        one(dir, "cobalt.lab/pause:1", &pause_origin(sources), || {
            pause(sources)
        })?,
        one(
            dir,
            "cobalt.lab/busybox:1",
            &Origin::of_file(&sources.busybox)?,
            || busybox(&sources.busybox),
        )?,
    ];
    if let Some(program) = &sources.coredns {
        let origin = Origin::of_file(program)?;
        images.push(one(dir, "cobalt.lab/coredns:1", &origin, || {
            coredns(program)
        })?);
    }
    Ok(images)
}

/// What an image is made from.
enum Origin<'a> {
    Text(String),
    File { path: &'a Path, stamp: String },
}

impl<'a> Origin<'a> {
    fn of_file(path: &'a Path) -> Result<Self> {
        let file = fs::metadata(path).map_err(|source| Error::ReadProgram {
            path: path.to_owned(),
            source,
        })?;
        // The time of the last change of the inode moves with every write and cannot be set.
        let stamp = format!(
            "{RECIPES} {} {} {} {}.{:09}",
            file.dev(),
            file.ino(),
            file.size(),
            file.ctime(),
            file.ctime_nsec()
        );
        Ok(Self::File { path, stamp })
    }

    fn stamp(&self) -> &str {
        match self {
            Self::Text(_) => "",
            Self::File { stamp, .. } => stamp,
        }
    }

    /// The key of the content.
    fn key(&self) -> Result<String, oci::Error> {
        let content = match self {
            Self::Text(text) => Digest::of(text.as_bytes()),
            Self::File { path, .. } => Digest::of_file(path)?,
        };
        Ok(format!("{RECIPES} {content}"))
    }
}

/// The parts of an image that differ between the images of the lab.
struct Recipe {
    entries: Vec<Entry>,
    config: oci::Config,
    /// Holds the files that the entries name until they are written.
    _temp: Option<tempfile::TempDir>,
}

fn one(
    dir: &Path,
    name: &str,
    origin: &Origin<'_>,
    recipe: impl FnOnce() -> Result<Recipe>,
) -> Result<ImageRef> {
    let failed = |source| Error::Image {
        image: name.to_owned(),
        source,
    };
    let reference: Reference = name.parse().map_err(failed)?;
    let layout = dir.join(reference.file_name());
    let there = existing(&layout);
    let recorded = |name: &str| {
        there
            .as_ref()
            .and_then(|image| image.annotations.get(name))
            .cloned()
    };
    let stamped = !origin.stamp().is_empty() && recorded(STAMP).as_deref() == Some(origin.stamp());
    let key = match recorded(KEY) {
        Some(key) if stamped => key,
        _ => origin.key().map_err(failed)?,
    };
    if let Some(image) = &there
        && recorded(KEY).as_ref() == Some(&key)
    {
        return Ok(ImageRef {
            reference,
            digest: image.digest.clone(),
            layout,
        });
    }
    let recipe = recipe()?;
    let mut image = Image::new(reference);
    image.entries = recipe.entries;
    image.config = recipe.config;
    image.compression = Compression::None;
    image.architecture = architecture().to_owned();
    image.annotations.insert(KEY.to_owned(), key);
    image
        .annotations
        .insert(STAMP.to_owned(), origin.stamp().to_owned());
    let written = oci::write_layout(&image, &layout).map_err(failed)?;
    Ok(ImageRef {
        reference: image.reference,
        digest: written.digest,
        layout,
    })
}

/// The image in `layout`, if there is one and no blob is cut off.
///
/// Any doubt means that it is made again.
fn existing(layout: &Path) -> Option<Descriptor> {
    let image = oci::read_index(layout).ok()?.manifests.into_iter().next()?;
    let manifest = oci::read_manifest(layout, &image.digest).ok()?;
    let whole = manifest
        .layers
        .iter()
        .chain([&manifest.config, &image])
        .all(|blob| {
            fs::metadata(oci::blob_path(layout, &blob.digest))
                .is_ok_and(|file| file.len() == blob.size)
        });
    whole.then_some(image)
}

/// The words of OCI for the machine's architecture: what is compiled or found here runs there.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn pause_origin(sources: &Sources) -> Origin<'static> {
    let compiler = sources.compiler.display();
    Origin::Text(format!("{compiler} {PAUSE_FLAGS:?} {PAUSE_SOURCE}"))
}

fn pause(sources: &Sources) -> Result<Recipe> {
    let temp = tempfile::tempdir().map_err(Error::Temporary)?;
    fs::write(temp.path().join("pause.c"), PAUSE_SOURCE).map_err(Error::Temporary)?;
    let mut command = Command::new(&sources.compiler);
    // With relative names no path of this machine gets into the program.
    command
        .current_dir(temp.path())
        .args(PAUSE_FLAGS)
        .args(["-o", "pause", "pause.c"]);
    run("compile the pause program", command)?;
    let program = temp.path().join("pause");
    require_static(&program)?;
    let config = oci::Config {
        entrypoint: vec!["/pause".to_owned()],
        user: "65535:65535".to_owned(),
        ..oci::Config::default()
    };
    let entries = vec![Entry::file("pause", Source::File(program), 0o755)];
    Ok(Recipe {
        entries,
        config,
        _temp: Some(temp),
    })
}

fn busybox(program: &Path) -> Result<Recipe> {
    require_static(program)?;
    let mut command = Command::new(program);
    command.arg("--list");
    let applets = run("list the applets of busybox", command)?;
    let text =
        |path, content: &str| Entry::file(path, Source::Bytes(content.as_bytes().to_vec()), 0o644);
    let mut entries = vec![
        Entry::file("bin/busybox", Source::File(program.to_owned()), 0o755),
        text("etc/group", GROUP),
        text("etc/nsswitch.conf", NSSWITCH),
        text("etc/passwd", PASSWD),
        Entry::directory("root", 0o700),
        Entry::directory("tmp", 0o1777),
        Entry::directory("var", 0o755),
    ];
    let applets = applets.lines().filter(|applet| *applet != "busybox");
    entries.extend(applets.map(|applet| Entry::symlink(format!("bin/{applet}"), "busybox")));
    let mut config = oci::Config {
        cmd: vec!["/bin/sh".to_owned()],
        ..oci::Config::default()
    };
    config.env.insert("PATH".to_owned(), SEARCH_PATH.to_owned());
    Ok(Recipe {
        entries,
        config,
        _temp: None,
    })
}

fn coredns(program: &Path) -> Result<Recipe> {
    require_static(program)?;
    let config = oci::Config {
        entrypoint: vec!["/coredns".to_owned()],
        ..oci::Config::default()
    };
    let entries = vec![Entry::file(
        "coredns",
        Source::File(program.to_owned()),
        0o755,
    )];
    Ok(Recipe {
        entries,
        config,
        _temp: None,
    })
}

/// Runs a program to its end and returns what it wrote.
fn run(purpose: &'static str, mut command: Command) -> Result<String> {
    let program = PathBuf::from(command.get_program());
    let output = command.output().map_err(|source| Error::Run {
        program: program.clone(),
        source,
    })?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Program {
            purpose,
            program,
            status: output.status,
            output: text,
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;

/// Fails unless `path` is a program that needs no file beside itself.
///
/// A static program may still have a dynamic section, to relocate itself: what counts is that it
/// names neither an interpreter nor a library.
///
/// # Errors
/// The file cannot be read, is not a program, or needs an interpreter or a library.
pub fn require_static(path: &Path) -> Result<()> {
    let unreadable = |source| Error::ReadProgram {
        path: path.to_owned(),
        source,
    };
    let file = BufReader::new(File::open(path).map_err(unreadable)?);
    match needs(file) {
        Ok(None) => Ok(()),
        Ok(Some(needs)) => Err(Error::NotStatic {
            path: path.to_owned(),
            needs,
        }),
        Err(error) if is_malformed(&error) => Err(Error::NotAProgram {
            path: path.to_owned(),
        }),
        Err(error) => Err(unreadable(error)),
    }
}

fn is_malformed(error: &io::Error) -> bool {
    use io::ErrorKind as E;
    matches!(
        error.kind(),
        E::InvalidData | E::InvalidInput | E::UnexpectedEof
    )
}

/// What a program needs to start; an error of kind `InvalidData` if it is none.
fn needs<R: Read + Seek>(mut file: R) -> io::Result<Option<&'static str>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut ident = [0; 16];
    file.read_exact(&mut ident)?;
    // Magic number, 64 bits, little-endian, version 1.
    if !ident.starts_with(b"\x7fELF\x02\x01\x01") {
        return Err(invalid());
    }
    let kind = read_u16(&mut file)?;
    // An executable, or a shared object: the form of one that can be loaded anywhere.
    if kind != 2 && kind != 3 {
        return Err(invalid());
    }
    file.seek(SeekFrom::Start(0x20))?;
    let program_headers = read_u64(&mut file)?;
    file.seek(SeekFrom::Start(0x36))?;
    let (entry_size, count) = (read_u16(&mut file)?, read_u16(&mut file)?);
    if entry_size < 56 || count == 0 {
        return Err(invalid());
    }
    for number in 0..u64::from(count) {
        let header = program_headers.checked_add(number * u64::from(entry_size));
        file.seek(SeekFrom::Start(header.ok_or_else(invalid)?))?;
        match read_u32(&mut file)? {
            PT_INTERP => return Ok(Some("a program interpreter")),
            PT_DYNAMIC => {
                read_u32(&mut file)?;
                let offset = read_u64(&mut file)?;
                file.seek_relative(16)?;
                let size = read_u64(&mut file)?;
                file.seek(SeekFrom::Start(offset))?;
                for _ in 0..size / 16 {
                    let (tag, _value) = (read_u64(&mut file)?, read_u64(&mut file)?);
                    match tag {
                        DT_NULL => break,
                        DT_NEEDED => return Ok(Some("a shared library")),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Ok(None)
}

fn read_u16(file: &mut impl Read) -> io::Result<u16> {
    let mut bytes = [0; 2];
    file.read_exact(&mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}

fn read_u32(file: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    file.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn read_u64(file: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// Fails where this machine lacks what the images are made from.
    fn need_sources() {
        let Sources {
            compiler, busybox, ..
        } = Sources::default();
        let compiles = Command::new(compiler).arg("--version").output().is_ok();
        assert!(
            compiles && busybox.exists(),
            "gcc or busybox is missing: install gcc and busybox-static, or run `cobalt lab prepare`"
        );
    }

    /// A program of headers only: `(type, dynamic entries)` each.
    fn elf(kind: u16, headers: &[(u32, &[u64])]) -> Vec<u8> {
        let count = u16::try_from(headers.len()).unwrap();
        let mut data_offset = 64 + 56 * u64::from(count);
        let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        bytes.extend(kind.to_le_bytes());
        bytes.resize(0x20, 0);
        bytes.extend(64_u64.to_le_bytes());
        bytes.resize(0x36, 0);
        bytes.extend(56_u16.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.resize(64, 0);
        let mut data = Vec::new();
        for (kind, tags) in headers {
            let size = tags.len() as u64 * 16;
            bytes.extend(kind.to_le_bytes());
            bytes.extend([0; 4]);
            bytes.extend(data_offset.to_le_bytes());
            bytes.extend([0; 16]);
            bytes.extend(size.to_le_bytes());
            bytes.extend([0; 16]);
            for tag in *tags {
                data.extend(tag.to_le_bytes());
                data.extend([0; 8]);
            }
            data_offset += size;
        }
        bytes.extend(data);
        bytes
    }

    #[test]
    fn only_a_program_without_interpreter_and_libraries_is_static() {
        const LOAD: u32 = 1;
        let check = |bytes| needs(Cursor::new(bytes)).unwrap();
        assert_eq!(check(elf(2, &[(LOAD, &[])])), None);
        // Relocates itself: a dynamic section that names no library; what follows its end is not
        // part of it.
        assert_eq!(
            check(elf(
                3,
                &[(LOAD, &[]), (PT_DYNAMIC, &[5, DT_NULL, DT_NEEDED])]
            )),
            None
        );
        let interpreter = elf(3, &[(LOAD, &[]), (PT_INTERP, &[])]);
        assert_eq!(check(interpreter), Some("a program interpreter"));
        let library = elf(3, &[(PT_DYNAMIC, &[5, DT_NEEDED, DT_NULL])]);
        assert_eq!(check(library), Some("a shared library"));
    }

    #[test]
    fn what_is_no_program_is_refused_and_never_trusted() {
        let good = elf(2, &[(PT_DYNAMIC, &[DT_NULL])]);
        for length in 0..good.len() - 16 {
            let error = needs(Cursor::new(&good[..length])).unwrap_err();
            assert!(is_malformed(&error), "{length}: {error:?}");
        }
        let relocatable = elf(1, &[(1, &[])]);
        assert!(is_malformed(&needs(Cursor::new(relocatable)).unwrap_err()));
        assert!(is_malformed(
            &needs(Cursor::new(b"#!/bin/sh\necho hello\n")).unwrap_err()
        ));
        let mut wild = good;
        wild[0x20..0x28].fill(0xff);
        assert!(is_malformed(&needs(Cursor::new(wild)).unwrap_err()));
    }

    #[test]
    fn this_test_itself_is_not_static() {
        let error = require_static(&std::env::current_exe().unwrap()).unwrap_err();
        assert!(matches!(error, Error::NotStatic { .. }), "{error:?}");
    }

    #[test]
    fn the_images_are_made_once_and_again_only_when_their_source_changes() {
        need_sources();
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("coredns");
        fs::write(&program, elf(2, &[(1, &[])])).unwrap();
        let sources = Sources {
            coredns: Some(program.clone()),
            ..Sources::default()
        };
        let images = dir.path().join("images");
        let first = ensure(&images, &sources).unwrap();
        let names: Vec<String> = first
            .iter()
            .map(|image| image.reference.to_string())
            .collect();
        assert_eq!(
            names,
            [
                "cobalt.lab/pause:1",
                "cobalt.lab/busybox:1",
                "cobalt.lab/coredns:1"
            ]
        );

        let times = || -> Vec<_> {
            let made = |image: &ImageRef| fs::metadata(&image.layout).unwrap().modified().unwrap();
            first.iter().map(made).collect()
        };
        let before = times();
        assert_eq!(ensure(&images, &sources).unwrap(), first);
        assert_eq!(times(), before, "nothing was written again");

        let copy = dir.path().join("copy");
        fs::copy(&program, &copy).unwrap();
        let copied = Sources {
            coredns: Some(copy),
            ..sources.clone()
        };
        assert_eq!(ensure(&images, &copied).unwrap(), first);
        assert_eq!(times(), before, "the content counts, not the file");

        fs::write(&program, elf(2, &[(1, &[]), (1, &[])])).unwrap();
        let changed = ensure(&images, &sources).unwrap();
        assert_eq!(changed[..2], first[..2]);
        assert_ne!(changed[2].digest, first[2].digest);
    }

    #[test]
    fn a_cut_off_blob_is_noticed_and_repaired() {
        need_sources();
        let dir = tempfile::tempdir().unwrap();
        let sources = Sources::default();
        let images = ensure(dir.path(), &sources).unwrap();
        let pause = &images[0];
        let manifest = oci::read_manifest(&pause.layout, &pause.digest).unwrap();
        let layer = oci::blob_path(&pause.layout, &manifest.layers[0].digest);
        let whole = fs::read(&layer).unwrap();
        fs::write(&layer, &whole[..1000]).unwrap();
        assert_eq!(
            ensure(dir.path(), &sources).unwrap(),
            images,
            "gcc gives the same program"
        );
        assert_eq!(fs::read(&layer).unwrap(), whole);
    }

    #[test]
    fn the_busybox_image_has_its_applets_as_links() {
        need_sources();
        let dir = tempfile::tempdir().unwrap();
        let images = ensure(dir.path(), &Sources::default()).unwrap();
        let busybox = &images[1];
        let manifest = oci::read_manifest(&busybox.layout, &busybox.digest).unwrap();
        let layer = oci::blob_path(&busybox.layout, &manifest.layers[0].digest);
        let root = dir.path().join("root");
        tar::Archive::new(File::open(layer).unwrap())
            .unpack(&root)
            .unwrap();
        assert_eq!(
            fs::read_link(root.join("bin/sh")).unwrap(),
            Path::new("busybox")
        );
        let said = Command::new(root.join("bin/echo"))
            .arg("hello")
            .output()
            .unwrap();
        assert_eq!(said.stdout, b"hello\n");
    }

    #[test]
    fn a_program_that_is_not_static_is_refused() {
        need_sources();
        let dir = tempfile::tempdir().unwrap();
        let coredns = Some(std::env::current_exe().unwrap());
        let sources = Sources {
            coredns,
            ..Sources::default()
        };
        let error = ensure(dir.path(), &sources).unwrap_err();
        assert!(matches!(error, Error::NotStatic { .. }), "{error:?}");
    }

    #[test]
    fn a_missing_compiler_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let sources = Sources {
            compiler: "/nonexistent/cc".into(),
            ..Sources::default()
        };
        let error = ensure(dir.path(), &sources).unwrap_err();
        assert_eq!(error.to_string(), "failed to run \"/nonexistent/cc\"");
    }

    #[test]
    fn the_pause_program_collects_children_and_ends_with_zero_when_asked() {
        need_sources();
        let dir = tempfile::tempdir().unwrap();
        let recipe = pause(&Sources::default()).unwrap();
        let program = recipe._temp.as_ref().unwrap().path().join("pause");
        // A shell that leaves a child behind and becomes the pause program, which so inherits it.
        let script = "sleep 0 & echo $! > \"$1\"/child; exec \"$0\"";
        let mut child = Command::new("/bin/sh")
            .args(["-c", script])
            .args([program.as_path(), dir.path()])
            .spawn()
            .unwrap();
        let id = child.id();
        let state = |pid: &str| fs::read_to_string(format!("/proc/{pid}/stat"));
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let wait = |done: &dyn Fn() -> bool| {
            while !done() {
                assert!(
                    std::time::Instant::now() < deadline,
                    "the pause program does not act"
                );
                std::thread::yield_now();
            }
        };
        wait(&|| state(&id.to_string()).is_ok_and(|stat| stat.contains("(pause)")));
        let grandchild = fs::read_to_string(dir.path().join("child")).unwrap();
        wait(&|| state(grandchild.trim()).is_err());
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::TERM,
        )
        .unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}
