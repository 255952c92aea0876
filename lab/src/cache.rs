//! What is made once and kept for all labs. It is there completely or not at all: it is made
//! beside its place, under a lock, and moved there at the end. What an interruption left is
//! removed by whoever makes it again.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::paths::{lock, make_dir, remove_tree};
use crate::report::Report;

/// A short name for everything that makes a thing, so that a changed recipe makes a new one.
pub fn key<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        let part = part.as_ref();
        // The length keeps apart what would read the same in a row.
        hasher.update(part.len().to_le_bytes());
        hasher.update(part);
    }
    hasher
        .finalize()
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Returns `dir`; `make` fills it when it is not there, at the place that it is given.
pub async fn once(
    dir: PathBuf,
    report: &Report,
    make: impl AsyncFnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    if dir.is_dir() {
        return Ok(dir);
    }
    if let Some(parent) = dir.parent() {
        make_dir(parent)?;
    }
    // One maker at a time; who comes second finds the work done.
    let _lock = lock(beside(&dir, "lock"), report).await?;
    if dir.is_dir() {
        return Ok(dir);
    }
    let partial = beside(&dir, "partial");
    remove_tree(&partial)?;
    make(&partial).await?;
    std::fs::rename(&partial, &dir)
        .with_context(|| format!("failed to install {}", dir.display()))?;
    Ok(dir)
}

/// The name may have dots, so `with_extension` would cut it.
fn beside(dir: &Path, suffix: &str) -> PathBuf {
    let mut path = dir.as_os_str().to_owned();
    path.push(format!(".{suffix}"));
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn the_key_tells_parts_apart() {
        assert_ne!(key(["ab", "c"]), key(["a", "bc"]));
        assert_eq!(key(["ab", "c"]), key(["ab", "c"]));
    }

    #[tokio::test]
    async fn it_is_there_completely_or_not_at_all() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("thing-1.0");
        let report = Report::silent();
        let begun = async |at: &Path| {
            std::fs::create_dir(at)?;
            bail!("interrupted")
        };
        once(dir.clone(), &report, begun).await.unwrap_err();
        assert!(!dir.exists() && beside(&dir, "partial").exists());
        let complete = async |at: &Path| Ok(std::fs::create_dir(at)?);
        once(dir.clone(), &report, complete).await.unwrap();
        assert!(dir.is_dir());
        let never = async |_: &Path| bail!("it is there already");
        once(dir, &report, never).await.unwrap();
    }
}
