//! The TLS material in the PKI folder, in the layout that libvirt, QEMU and Cloud Hypervisor read.
//!
//! Content decides: what is there is compared with what should be, so a second run, or one after a
//! crash, completes the first and then changes nothing. Everything new is written beside its place
//! and synced first; then the places are switched, one rename each, all of one reader together. A
//! write that fails (a full disk, a read-only folder) so changes nothing. Folders are opened once
//! and never through a symlink; what is at a place is replaced, and never followed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, fchmod, fchown, fstat, fsync, mkdirat, openat,
    readlinkat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::material::Material;

/// More than any file of ours.
const LARGEST: u64 = 1 << 17;

/// What failed, and where.
#[derive(Debug, thiserror::Error)]
#[error("{action} {}", .path.display())]
pub struct FileError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

/// What belongs in a place.
#[derive(Clone, PartialEq, Eq)]
enum Content {
    /// Everybody may read it.
    Public(Arc<[u8]>),
    /// A key that only its owner reads.
    OwnKey(Arc<[u8]>),
    /// A key that the folder's group reads, too, if it has one of its own: QEMU does not run as
    /// root, and has to read it at the begin of each migration.
    GroupKey(Arc<[u8]>),
    /// Another name for another place.
    Link(&'static str),
}

/// A place and what belongs there.
#[derive(Clone, PartialEq, Eq)]
struct Place {
    folder: &'static str,
    name: &'static str,
    content: Content,
}

/// Folders, parents first.
const FOLDERS: &[&str] = &["CA", "libvirt", "libvirt/private", "qemu", "ch"];
/// Keys of libvirt are in a folder of their own.
const PRIVATE: &str = "libvirt/private";
/// The folder whose group is QEMU's.
const QEMU: &str = "qemu";

/// Every place, in the order in which they are switched: by reader, so that whatever happens in
/// between, at most one of them has a mixed set, and the next run mends it.
fn layout(material: &Material) -> Vec<Place> {
    let ca = || Content::Public(Arc::clone(&material.ca));
    let certificate = || Content::Public(Arc::clone(&material.certificate));
    let key = || Arc::clone(&material.key);
    let place = |folder, name, content| Place {
        folder,
        name,
        content,
    };
    let mut places = vec![
        place("CA", "cacert.pem", ca()),
        place(PRIVATE, "serverkey.pem", Content::OwnKey(key())),
        place("libvirt", "servercert.pem", certificate()),
        // The node has one identity, with which it serves and calls others.
        place(PRIVATE, "clientkey.pem", Content::Link("serverkey.pem")),
        place("libvirt", "clientcert.pem", Content::Link("servercert.pem")),
    ];
    for folder in [QEMU, "ch"] {
        places.extend([
            place(folder, "ca-cert.pem", ca()),
            place(folder, "server-key.pem", Content::GroupKey(key())),
            place(folder, "server-cert.pem", certificate()),
            place(folder, "client-key.pem", Content::Link("server-key.pem")),
            place(folder, "client-cert.pem", Content::Link("server-cert.pem")),
        ]);
    }
    places
}

/// An open folder.
struct Folder {
    path: PathBuf,
    fd: OwnedFd,
    group: u32,
}

/// The PKI folder with its folders open.
struct Pki(BTreeMap<&'static str, Folder>);

/// What an installation did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// Whether something was not as it should be.
    pub changed: bool,
    /// What libvirt had before, if all of it was there.
    pub before: Option<Material>,
}

/// Puts the material in place.
///
/// `qemu_group` is the group that QEMU runs with; without it the group of the folder `qemu` decides.
///
/// # Errors
///
/// When a place cannot be written. Then nothing was changed, unless it was a rename that failed.
pub fn install(
    root: &Path,
    material: &Material,
    qemu_group: Option<u32>,
) -> Result<Installed, FileError> {
    let pki = Pki::open(root, qemu_group)?;
    let before = pki.read();
    let mut staged = Vec::new();
    for place in layout(material) {
        let folder = pki.folder(&place)?;
        let prepared = folder.remove_staged(&place).and_then(|()| {
            let wrong = !folder.has(&place);
            if wrong {
                folder.stage(&place)?;
            }
            Ok(wrong)
        });
        match prepared {
            Ok(true) => staged.push(place),
            Ok(false) => {}
            Err(error) => {
                pki.unstage(&staged);
                return Err(error);
            }
        }
    }
    for place in &staged {
        let folder = pki.folder(place)?;
        if let Err(errno) = renameat(&folder.fd, staging(place), &folder.fd, place.name) {
            pki.unstage(&staged);
            return Err(folder.failed("failed to replace", place.name, errno));
        }
    }
    let changed: BTreeSet<_> = staged.iter().map(|place| place.folder).collect();
    for folder in changed.iter().filter_map(|name| pki.0.get(name)) {
        fsync(&folder.fd).map_err(|errno| folder.failed("failed to sync", "", errno))?;
    }
    Ok(Installed {
        changed: !changed.is_empty(),
        before,
    })
}

impl Pki {
    fn open(root: &Path, qemu_group: Option<u32>) -> Result<Self, FileError> {
        let failed = |action, errno: Errno| FileError {
            action,
            path: root.to_owned(),
            source: errno.into(),
        };
        let folder = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        // The configured folder itself may be a symlink: whoever configures it decides.
        let root_fd = openat(rustix::fs::CWD, root, folder, Mode::empty())
            .map_err(|errno| failed("failed to open the PKI folder", errno))?;
        let mut all = BTreeMap::new();
        for &name in FOLDERS {
            let (parent, last) = match name.rsplit_once('/') {
                None => (root_fd.as_fd(), name),
                Some((parent, last)) => match all.get(parent) {
                    Some(Folder { fd, .. }) => (fd.as_fd(), last),
                    None => (root_fd.as_fd(), name),
                },
            };
            let mode = if name == PRIVATE { 0o700 } else { 0o755 };
            let path = root.join(name);
            let failed = |action, errno: Errno| FileError {
                action,
                path: path.clone(),
                source: errno.into(),
            };
            let made = match mkdirat(parent, last, Mode::from_raw_mode(mode)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(errno) => return Err(failed("failed to make the folder", errno)),
            };
            let fd = openat(parent, last, folder | OFlags::NOFOLLOW, Mode::empty())
                .map_err(|errno| failed("failed to open, without following a symlink,", errno))?;
            let found = fstat(&fd).map_err(|errno| failed("failed to look at", errno))?;
            let found_mode = Mode::from_raw_mode(found.st_mode);
            let mut group = found.st_gid;
            if let Some(wanted) = qemu_group.filter(|wanted| name == QEMU && *wanted != group) {
                fchown(&fd, None, Some(Gid::from_raw(wanted)))
                    .map_err(|errno| failed("failed to give the group to", errno))?;
                group = wanted;
            }
            let wanted_mode = match name {
                // Whatever the umask is.
                _ if made => Mode::from_raw_mode(mode),
                PRIVATE => found_mode - Mode::RWXO,
                _ => found_mode,
            };
            if found_mode != wanted_mode {
                fchmod(&fd, wanted_mode)
                    .map_err(|errno| failed("failed to set the mode of", errno))?;
            }
            all.insert(name, Folder { path, fd, group });
        }
        Ok(Self(all))
    }

    /// What libvirt has.
    fn read(&self) -> Option<Material> {
        let read = |folder, name| {
            let folder: &Folder = self.0.get(folder)?;
            folder.read(name).ok()
        };
        Some(Material {
            ca: read("CA", "cacert.pem")?.into(),
            certificate: read("libvirt", "servercert.pem")?.into(),
            key: read(PRIVATE, "serverkey.pem")?.into(),
        })
    }

    fn folder(&self, place: &Place) -> Result<&Folder, FileError> {
        self.0.get(place.folder).ok_or_else(|| FileError {
            action: "failed to open",
            path: place.folder.into(),
            source: Errno::NOENT.into(),
        })
    }

    /// Takes away what was written beside its place.
    fn unstage(&self, staged: &[Place]) {
        for place in staged {
            if let Some(folder) = self.0.get(place.folder) {
                // What was switched already is not there any more.
                unlinkat(&folder.fd, staging(place), AtFlags::empty()).ok();
            }
        }
    }
}

/// Where the new content is written before it takes its place.
fn staging(place: &Place) -> String {
    format!(".{}.new", place.name)
}

impl Content {
    /// The bytes, the mode and the group of a file.
    fn file(&self, folder: &Folder) -> Option<(&[u8], u32, u32)> {
        let own = rustix::process::getegid().as_raw();
        match self {
            Self::Public(bytes) => Some((bytes, 0o644, own)),
            Self::OwnKey(bytes) => Some((bytes, 0o600, own)),
            Self::GroupKey(bytes) if folder.group != 0 => Some((bytes, 0o640, folder.group)),
            Self::GroupKey(bytes) => Some((bytes, 0o600, own)),
            Self::Link(_) => None,
        }
    }
}

impl Folder {
    fn failed(
        &self,
        action: &'static str,
        name: &str,
        errno: impl Into<std::io::Error>,
    ) -> FileError {
        FileError {
            action,
            path: self.path.join(name),
            source: errno.into(),
        }
    }

    /// Whether the place is as it should be, and nobody else has a hand in it.
    fn has(&self, place: &Place) -> bool {
        let Ok(found) = statat(&self.fd, place.name, AtFlags::SYMLINK_NOFOLLOW) else {
            return false;
        };
        if let Content::Link(target) = place.content {
            let link = FileType::from_raw_mode(found.st_mode) == FileType::Symlink;
            let points = || readlinkat(&self.fd, place.name, Vec::new());
            return link && points().is_ok_and(|to| to.as_bytes() == target.as_bytes());
        }
        let Some((bytes, mode, group)) = place.content.file(self) else {
            return false;
        };
        is_ours(&found, mode, group) && self.read(place.name).is_ok_and(|content| content == bytes)
    }

    /// A regular file's content.
    fn read(&self, name: &str) -> std::io::Result<Vec<u8>> {
        // A pipe that somebody put there must not hold us up.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.fd, name, flags, Mode::empty())?;
        let found = fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL.into());
        }
        let mut content = Vec::new();
        std::fs::File::from(file)
            .take(LARGEST)
            .read_to_end(&mut content)?;
        Ok(content)
    }

    /// Takes away what a run that was ended has left: it may be a key.
    fn remove_staged(&self, place: &Place) -> Result<(), FileError> {
        let name = staging(place);
        match unlinkat(&self.fd, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.failed("failed to remove", &name, errno)),
        }
    }

    /// Writes what belongs in a place beside it.
    fn stage(&self, place: &Place) -> Result<(), FileError> {
        let name = staging(place);
        let written = match place.content {
            Content::Link(target) => symlinkat(target, &self.fd, &name).map_err(Into::into),
            _ => self.write(&name, place),
        };
        written.map_err(|error| {
            unlinkat(&self.fd, &name, AtFlags::empty()).ok();
            self.failed("failed to write", place.name, error)
        })
    }

    fn write(&self, name: &str, place: &Place) -> std::io::Result<()> {
        let Some((bytes, mode, group)) = place.content.file(self) else {
            return Ok(());
        };
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?;
        // A folder may hand its group down; keys are opened for the group they are meant for.
        if fstat(&fd)?.st_gid != group {
            fchown(&fd, None, Some(Gid::from_raw(group)))?;
        }
        fchmod(&fd, Mode::from_raw_mode(mode))?;
        let mut file = std::fs::File::from(fd);
        file.write_all(bytes)?;
        file.sync_all()
    }
}

/// A file that only we can have written: ours, with the right mode, and under no other name.
fn is_ours(found: &Stat, mode: u32, group: u32) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
        && Mode::from_raw_mode(found.st_mode) == Mode::from_raw_mode(mode)
        && found.st_gid == group
        && found.st_uid == rustix::process::geteuid().as_raw()
        && found.st_nlink == 1
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn material(mark: &str) -> Material {
        let part = |part: &str| -> Arc<[u8]> { format!("{part} {mark}\n").into_bytes().into() };
        Material {
            ca: part("ca"),
            certificate: part("certificate"),
            key: part("key"),
        }
    }

    fn put(root: &Path, mark: &str) -> bool {
        install(root, &material(mark), None).unwrap().changed
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    /// Every file and link below a folder, with its mode and content or target.
    fn tree(root: &Path) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let kind = fs::symlink_metadata(&path).unwrap();
                let name = path.strip_prefix(root).unwrap().display().to_string();
                if kind.is_dir() {
                    all.insert(name, format!("{:o}", mode(&path)));
                    folders.push(path);
                } else if kind.is_symlink() {
                    all.insert(
                        name,
                        format!("-> {}", fs::read_link(&path).unwrap().display()),
                    );
                } else {
                    let content = fs::read_to_string(&path).unwrap_or_default();
                    all.insert(name, format!("{:o} {}", mode(&path), content.trim_end()));
                }
            }
        }
        all
    }

    const WHOLE: &str = "\
CA 755
CA/cacert.pem 644 ca new
ch 755
ch/ca-cert.pem 644 ca new
ch/client-cert.pem -> server-cert.pem
ch/client-key.pem -> server-key.pem
ch/server-cert.pem 644 certificate new
ch/server-key.pem 600 key new
libvirt 755
libvirt/clientcert.pem -> servercert.pem
libvirt/private 700
libvirt/private/clientkey.pem -> serverkey.pem
libvirt/private/serverkey.pem 600 key new
libvirt/servercert.pem 644 certificate new
qemu 755
qemu/ca-cert.pem 644 ca new
qemu/client-cert.pem -> server-cert.pem
qemu/client-key.pem -> server-key.pem
qemu/server-cert.pem 644 certificate new
qemu/server-key.pem 600 key new
";

    fn said(root: &Path) -> String {
        let line = |(name, what): (String, String)| format!("{name} {what}\n");
        tree(root).into_iter().map(line).collect()
    }

    #[test]
    fn the_whole_layout_is_written_once_and_then_left_alone() {
        let root = tempfile::tempdir().unwrap();
        assert!(put(root.path(), "new"));
        assert_eq!(said(root.path()), WHOLE);
        let places = [
            "CA/cacert.pem",
            "libvirt/private/serverkey.pem",
            "ch/client-key.pem",
        ];
        let inodes = || places.map(|p| fs::symlink_metadata(root.path().join(p)).unwrap().ino());
        let before = inodes();
        assert!(!put(root.path(), "new"));
        assert_eq!(inodes(), before);
        let next = install(root.path(), &material("newer"), None).unwrap();
        assert_eq!(next.before, Some(material("new")));
    }

    #[test]
    fn a_run_completes_whatever_an_earlier_one_has_left() {
        // The end of the process between any two steps: some places are new, and some are staged.
        let places = layout(&material("new"));
        for done in 0..places.len() {
            let root = tempfile::tempdir().unwrap();
            install(root.path(), &material("old"), None).unwrap();
            let pki = Pki::open(root.path(), None).unwrap();
            for (index, place) in places.iter().enumerate() {
                let folder = pki.folder(place).unwrap();
                folder.stage(place).unwrap();
                if index < done {
                    renameat(&folder.fd, staging(place), &folder.fd, place.name).unwrap();
                }
            }
            put(root.path(), "new");
            assert_eq!(said(root.path()), WHOLE, "after {done} places");
        }
    }

    #[test]
    fn w74_keys_of_the_deployed_agent_are_closed_and_its_files_become_links() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for folder in FOLDERS {
            fs::create_dir_all(at(folder)).unwrap();
        }
        fs::set_permissions(at(PRIVATE), PermissionsExt::from_mode(0o755)).unwrap();
        // The right content, and open to all.
        for key in ["libvirt/private/serverkey.pem", "qemu/server-key.pem"] {
            fs::write(at(key), "key new\n").unwrap();
            fs::set_permissions(at(key), PermissionsExt::from_mode(0o644)).unwrap();
        }
        // A regular file where a link is wanted.
        fs::write(at("libvirt/clientcert.pem"), "another").unwrap();
        assert!(put(root.path(), "new"));
        assert_eq!(
            said(root.path()).replace("private 750", "private 700"),
            WHOLE
        );
        assert!(!put(root.path(), "new"));
    }

    #[test]
    fn a_symlink_at_a_place_is_replaced_and_never_followed() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let victim = outside.path().join("shadow");
        fs::write(&victim, "precious").unwrap();
        fs::create_dir_all(root.path().join(PRIVATE)).unwrap();
        let key = root.path().join("libvirt/private/serverkey.pem");
        symlink(&victim, &key).unwrap();
        symlink(
            &victim,
            root.path().join("libvirt/private/.serverkey.pem.new"),
        )
        .unwrap();
        symlink(&victim, root.path().join("libvirt/private/clientkey.pem")).unwrap();
        install(root.path(), &material("new"), None).unwrap();
        assert_eq!(
            said(root.path()),
            WHOLE.replace(
                "private 700",
                &format!("private {:o}", mode(&root.path().join(PRIVATE)))
            )
        );
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        // The right content elsewhere does not make a symlink right.
        fs::write(&victim, "key new\n").unwrap();
        fs::remove_file(&key).unwrap();
        symlink(&victim, &key).unwrap();
        assert!(put(root.path(), "new"));
        assert!(fs::symlink_metadata(&key).unwrap().is_file());
    }

    #[test]
    fn a_key_with_a_second_name_is_written_anew() {
        let root = tempfile::tempdir().unwrap();
        install(root.path(), &material("new"), None).unwrap();
        let key = root.path().join("qemu/server-key.pem");
        fs::hard_link(&key, root.path().join("stolen")).unwrap();
        assert!(put(root.path(), "new"));
        assert_eq!(fs::metadata(&key).unwrap().nlink(), 1);
    }

    #[test]
    fn a_folder_that_is_a_symlink_is_refused_and_named() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        symlink(outside.path(), root.path().join("qemu")).unwrap();
        let error = install(root.path(), &material("new"), None).unwrap_err();
        assert!(error.to_string().ends_with("/qemu"), "{error}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_place_that_cannot_be_written_leaves_all_as_it_was() {
        let root = tempfile::tempdir().unwrap();
        install(root.path(), &material("old"), None).unwrap();
        let before = said(root.path());
        // A folder in the way of the last file that is written: root may write everywhere else.
        fs::create_dir(root.path().join("ch/.server-cert.pem.new")).unwrap();
        let error = install(root.path(), &material("new"), None).unwrap_err();
        assert!(
            error.to_string().contains("ch/.server-cert.pem.new"),
            "{error}"
        );
        fs::remove_dir(root.path().join("ch/.server-cert.pem.new")).unwrap();
        assert_eq!(said(root.path()), before);
    }

    #[test]
    fn the_group_of_qemu_reads_its_key_and_no_other() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        install(root.path(), &material("new"), Some(64_055)).unwrap();
        let at = |name: &str| fs::metadata(root.path().join(name)).unwrap();
        let key = at("qemu/server-key.pem");
        assert_eq!((key.gid(), key.mode() & 0o7777), (64_055, 0o640));
        assert_eq!(at("qemu").gid(), 64_055);
        for other in ["libvirt/private/serverkey.pem", "ch/server-key.pem"] {
            assert_eq!(
                (at(other).gid(), at(other).mode() & 0o7777),
                (0, 0o600),
                "{other}"
            );
        }
        assert!(
            !install(root.path(), &material("new"), Some(64_055))
                .unwrap()
                .changed
        );
        // Without the setting the folder's group is the one.
        assert!(!put(root.path(), "new"));
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let root = tempfile::tempdir().unwrap();
        let none = root.path().join("none");
        let error = install(&none, &material("new"), None).unwrap_err();
        assert!(
            error.to_string().contains("failed to open the PKI folder"),
            "{error}"
        );
    }
}
