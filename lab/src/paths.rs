//! Where the lab keeps things: a cache that survives every lab, and one directory per lab; and how
//! files are shared with others who may write them at the same moment.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::report::Report;

/// The directories of this user's labs.
#[derive(Debug, Clone)]
pub struct Paths {
    /// Built binaries, the Debian tree and the base images; shared by all labs and checkouts.
    pub cache: PathBuf,
    /// One directory per lab.
    pub labs: PathBuf,
}

impl Paths {
    /// `COBALT_CACHE` and `COBALT_LABS`, else the XDG directories.
    pub fn from_env() -> Result<Self> {
        Ok(Self {
            cache: resolve("COBALT_CACHE", "XDG_CACHE_HOME", ".cache", "cobalt")?,
            labs: resolve(
                "COBALT_LABS",
                "XDG_STATE_HOME",
                ".local/state",
                "cobalt/labs",
            )?,
        })
    }

    /// The directory of one lab.
    pub fn lab(&self, name: &str) -> PathBuf {
        self.labs.join(name)
    }
}

fn resolve(own: &str, xdg: &str, below_home: &str, leaf: &str) -> Result<PathBuf> {
    if let Some(dir) = absolute(own)? {
        return Ok(dir);
    }
    if let Some(dir) = absolute(xdg)? {
        return Ok(dir.join(leaf));
    }
    let home = absolute("HOME")?.with_context(|| {
        format!("HOME is not set: set it, or set {own} to an absolute directory")
    })?;
    Ok(home.join(below_home).join(leaf))
}

fn absolute(variable: &str) -> Result<Option<PathBuf>> {
    match std::env::var_os(variable) {
        None => Ok(None),
        Some(value) if value.is_empty() => Ok(None),
        Some(value) => {
            let path = PathBuf::from(value);
            if !path.is_absolute() {
                bail!("{variable}={} is not an absolute path", path.display());
            }
            Ok(Some(path))
        }
    }
}

/// Writes a file so that a reader sees the old content or the new one, never a part.
pub fn write_atomic(path: &Path, content: &[u8]) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = PathBuf::from(temporary);
    std::fs::write(&temporary, content)
        .and_then(|()| std::fs::rename(&temporary, path))
        .with_context(|| format!("failed to write {}", path.display()))
}

/// Makes a directory and those above it; one that is there is fine.
pub fn make_dir(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("failed to make {}", path.display()))
}

/// Removes a directory tree; one that is not there is fine.
pub fn remove_tree(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Waits for an exclusive lock without blocking the runtime.
pub async fn lock(path: PathBuf, report: &Report) -> Result<std::fs::File> {
    let file = std::fs::File::create(&path)
        .with_context(|| format!("failed to open the lock {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            report.note(format!(
                "waiting for another process that holds {}",
                path.display()
            ));
        }
        Err(std::fs::TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("failed to lock {}", path.display()));
        }
    }
    tokio::task::spawn_blocking(move || file.lock().map(|()| file))
        .await?
        .with_context(|| format!("failed to lock {}", path.display()))
}
