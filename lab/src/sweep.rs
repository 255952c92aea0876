//! Removes everything that a lab left on the machine: processes, control groups, network
//! namespaces, links and its guard route. Mounts live in the nodes' own namespaces and vanish
//! with their processes.
//!
//! A lab that goes down uses the same code as `cobalt lab clean` after a crash. Nothing is
//! looked up in lists that could be incomplete: names and environments carry the lab's id.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cgroup::Layout;
use crate::command::{Run, run, which};
use crate::config::Record;
use crate::net::Block;
use crate::paths::{Paths, lock, remove_tree};
use crate::process::{kill, marked};
use crate::report::Report;

/// The prefix of network namespaces and control groups of a lab, or of all labs.
pub fn group_prefix(lab: &str) -> String {
    format!("cobalt-{lab}-")
}

/// The prefix of links of a lab. Link names have room for 15 bytes only.
pub fn link_prefix(lab: &str) -> String {
    format!("cb{lab}")
}

/// What a sweep found and removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Names of things that were removed.
    pub removed: Vec<String>,
}

/// Removes what belongs to one lab, except its directory.
pub async fn lab(record: &Record) -> Result<Swept> {
    let mut swept = Swept::default();
    kill_marked(&record.id, &mut swept).await?;
    if let Ok(layout) = Layout::detect() {
        for group in layout.find(&group_prefix(&record.id)) {
            layout.remove(&group).await?;
            swept.removed.push(format!("control group {group}"));
        }
    }
    if which("ip").is_some() {
        for link in links(&link_prefix(&record.id)).await? {
            // A bridge that was deleted a moment ago takes its ports along.
            if run("ip", ["link", "del", &link]).await.is_ok() {
                swept.removed.push(format!("link {link}"));
            }
        }
        for netns in namespaces(&group_prefix(&record.id)).await? {
            run("ip", ["netns", "del", &netns]).await?;
            swept.removed.push(format!("network namespace {netns}"));
        }
        if let Some(block) = record.block
            && block.release().await.is_ok()
        {
            swept.removed.push(format!("guard route {}", block.range()));
        }
    }
    Ok(swept)
}

/// Taken while labs are made or removed, so that a lab that is just being made is not taken for
/// a dead one.
pub async fn registry_lock(paths: &Paths) -> Result<std::fs::File> {
    std::fs::create_dir_all(&paths.labs)
        .with_context(|| format!("failed to make {}", paths.labs.display()))?;
    lock(paths.labs.join(".lock"), &Report::silent()).await
}

/// Removes every lab whose supervisor is dead. Running labs are left alone. The caller holds
/// [`registry_lock`].
pub async fn dead_labs(paths: &Paths) -> Result<Swept> {
    let mut swept = Swept::default();
    let (alive, dead): (Vec<PathBuf>, Vec<PathBuf>) = std::fs::read_dir(&paths.labs)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .partition(|dir| is_alive(dir));
    let claimed: Vec<Block> = alive
        .iter()
        .filter_map(|dir| Record::read(dir).ok()?.block)
        .collect();
    for dir in dead {
        // A directory without a record was never more than a directory.
        if let Ok(mut record) = Record::read(&dir) {
            // It may have been killed while it lost the race for a block to a living lab.
            record.block = record.block.filter(|block| !claimed.contains(block));
            swept.removed.extend(lab(&record).await?.removed);
        }
        remove_tree(&dir)?;
        swept.removed.push(format!("directory {}", dir.display()));
    }
    // Labs whose directory is gone: what carries an id that no living supervisor has. The ids
    // are read first: a lab that starts meanwhile has a supervisor before it has anything else.
    let stray = stray_ids().await?;
    let living: BTreeSet<String> = marked()
        .into_iter()
        .filter(|(pid, _)| is_supervisor(*pid))
        .map(|(_, id)| id)
        .collect();
    for id in stray.into_iter().filter(|id| !living.contains(id)) {
        let record = Record {
            id,
            name: String::new(),
            block: None,
        };
        swept.removed.extend(lab(&record).await?.removed);
    }
    Ok(swept)
}

/// Whether a lab's supervisor lives: it holds this lock until the kernel takes it back.
pub fn is_alive(dir: &Path) -> bool {
    let Ok(file) = std::fs::File::open(dir.join("lock")) else {
        return false;
    };
    // Shared, so that two who ask at the same time do not take each other for a supervisor.
    matches!(
        file.try_lock_shared(),
        Err(std::fs::TryLockError::WouldBlock)
    )
}

async fn kill_marked(id: &str, swept: &mut Swept) -> Result<()> {
    let own = std::process::id();
    for _ in 0..200 {
        let pids: Vec<u32> = marked()
            .into_iter()
            .filter(|(pid, lab)| lab == id && *pid != own)
            .map(|(pid, _)| pid)
            .collect();
        if pids.is_empty() {
            return Ok(());
        }
        for &pid in &pids {
            kill(pid);
            swept.removed.push(format!("process {pid}"));
        }
        // Orphans are collected by the machine's init; nothing tells us when.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("processes of the lab {id} do not end, although they were killed")
}

fn is_supervisor(pid: u32) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let arguments: Vec<&[u8]> = command.split(|&byte| byte == 0).collect();
    arguments
        .windows(2)
        .any(|pair| pair == [b"lab".as_slice(), b"supervise".as_slice()])
}

/// Ids in names of things that only labs make.
async fn stray_ids() -> Result<BTreeSet<String>> {
    let mut names: Vec<String> = marked().into_iter().map(|(_, id)| id).collect();
    if let Ok(layout) = Layout::detect() {
        names.extend(
            layout
                .find("cobalt-")
                .iter()
                .filter_map(|name| id_of_group(name)),
        );
    }
    if which("ip").is_some() {
        let groups = namespaces("cobalt-").await?;
        names.extend(groups.iter().filter_map(|name| id_of_group(name)));
        names.extend(
            links("cb")
                .await?
                .iter()
                .filter_map(|name| id_of_link(name)),
        );
    }
    Ok(names.into_iter().collect())
}

fn id_of_group(name: &str) -> Option<String> {
    let id = name.strip_prefix("cobalt-")?.split('-').next()?;
    is_id(id).then(|| id.to_owned())
}

fn id_of_link(name: &str) -> Option<String> {
    let id = name.strip_prefix("cb")?.get(..4)?;
    is_id(id).then(|| id.to_owned())
}

fn is_id(text: &str) -> bool {
    text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

async fn links(prefix: &str) -> Result<Vec<String>> {
    let text = Run::new("ip", ["-o", "link", "show"]).output().await?;
    Ok(text
        .lines()
        .filter_map(|line| line.split(": ").nth(1)?.split('@').next())
        .filter(|name| name.starts_with(prefix))
        .map(ToOwned::to_owned)
        .collect())
}

async fn namespaces(prefix: &str) -> Result<Vec<String>> {
    let text = Run::new("ip", ["netns", "list"]).output().await?;
    Ok(text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| name.starts_with(prefix))
        .map(ToOwned::to_owned)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_labs_make_are_touched() {
        assert_eq!(id_of_group("cobalt-0a1f-n1").as_deref(), Some("0a1f"));
        assert_eq!(id_of_link("cb0a1fn").as_deref(), Some("0a1f"));
        for other in [
            "cobalt-operator",
            "cobalt-0a1-n1",
            "cobalt-zzzz-n1",
            "docker0",
        ] {
            assert_eq!(id_of_group(other), None, "{other}");
        }
        for other in ["cbr0", "cbridge", "eth0", "cb"] {
            assert_eq!(id_of_link(other), None, "{other}");
        }
    }
}
