//! How long logind lets a shutdown wait: a file of its configuration on the host.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cobalt_runtime::chain;

use super::bus::{Bus, SYSTEMD};

/// The last file wins, and the kubelet writes 99-kubelet.conf.
const FILE: &str = "99-z-cobalt-node-agent.conf";
/// A file of the host is small; a hung mount must not hold us up.
const DEADLINE: Duration = Duration::from_secs(5);
const UNIT: &str = "systemd-logind.service";
/// logind reads its configuration again.
const SIGHUP: i32 = 1;

/// How long a shutdown shall wait, and where logind is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelayConfig {
    /// The folder of the drop-in files, usually /etc/systemd/logind.conf.d.
    pub folder: PathBuf,
    /// How long.
    pub delay: Duration,
}

/// Writes the file, if it says something else, and has logind read it.
///
/// # Errors
///
/// Why that did not work.
pub async fn set_delay(bus: &Bus, config: &DelayConfig) -> Result<(), String> {
    let (folder, content) = (config.folder.clone(), content(config.delay));
    let place = folder.join(FILE);
    let written = tokio::task::spawn_blocking(move || write(&folder, &content));
    match tokio::time::timeout(DEADLINE, written).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => return Err(format!("{}: {}", place.display(), chain(&error))),
        Ok(Err(error)) => return Err(format!("{}: {}", place.display(), chain(&error))),
        Err(_) => return Err(format!("{}: not writable in time", place.display())),
    }
    bus.call(SYSTEMD, "KillUnit", &(UNIT, "main", SIGHUP))
        .await
        .map(drop)
        .map_err(|error| chain(&error))
}

fn content(delay: Duration) -> String {
    let seconds = delay.as_secs().max(1);
    format!(
        "# Written by cobalt-node-agent (--shutdown-delay): instances leave before the host goes \
         down.\n[Login]\nInhibitDelayMaxSec={seconds}\n"
    )
}

/// Nobody ever reads half of it.
fn write(folder: &Path, content: &str) -> std::io::Result<()> {
    let place = folder.join(FILE);
    if std::fs::read_to_string(&place).is_ok_and(|present| present == content) {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    // logind reads names that end in .conf.
    let new = folder.join(format!("{FILE}.new"));
    let mut file = std::fs::File::create(&new)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, &place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_written_once_and_replaced_when_it_says_something_else() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("logind.conf.d");
        let place = folder.join(FILE);
        write(&folder, &content(Duration::from_secs(1800))).unwrap();
        let text = std::fs::read_to_string(&place).unwrap();
        assert!(
            text.ends_with("[Login]\nInhibitDelayMaxSec=1800\n"),
            "{text}"
        );
        let before = std::fs::metadata(&place).unwrap().modified().unwrap();
        write(&folder, &text).unwrap();
        let after = std::fs::metadata(&place).unwrap().modified().unwrap();
        assert_eq!(before, after);
        write(&folder, &content(Duration::from_secs(60))).unwrap();
        let text = std::fs::read_to_string(&place).unwrap();
        assert!(text.contains("InhibitDelayMaxSec=60"), "{text}");
        let files = std::fs::read_dir(&folder).unwrap().count();
        assert_eq!(files, 1, "nothing is left behind");
        assert!(FILE > "99-kubelet.conf");
    }
}
