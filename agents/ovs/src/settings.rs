//! What may change while the agent runs: the refresh of counters and the thresholds of health.
//!
//! Each setting is a flag, and a file in a folder wins over its flag: a mounted ConfigMap with a
//! key for each. A file that makes no sense is told and changes nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::duration;

/// How often the folder is looked at. Kubernetes takes longer to put new files there.
const LOOK: Duration = Duration::from_secs(2);

/// Refresh and thresholds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How often counters of the OVSNode are written.
    pub refresh_interval: Duration,
    /// How long a daemon or a bridge may take to answer.
    pub answer_timeout: Duration,
    /// How long ovs-vswitchd may be behind the configuration.
    pub configuration_lag: Duration,
    /// How long this chassis may be behind the southbound database.
    pub southbound_lag: Duration,
    /// How long a port may be without a device or without OVN.
    pub port_grace: Duration,
    /// How long a flow may be there that nobody wants.
    pub flow_grace: Duration,
}

impl Settings {
    /// The settings by the names of their files.
    fn named(&mut self) -> [(&'static str, &mut Duration); 6] {
        [
            ("refresh-interval", &mut self.refresh_interval),
            ("answer-timeout", &mut self.answer_timeout),
            ("configuration-lag", &mut self.configuration_lag),
            ("southbound-lag", &mut self.southbound_lag),
            ("port-grace", &mut self.port_grace),
            ("flow-grace", &mut self.flow_grace),
        ]
    }

    /// With what the files say; and what is wrong with some of them.
    fn with_files(mut self, folder: &Path) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        for (name, value) in self.named() {
            let Ok(text) = std::fs::read_to_string(folder.join(name)) else {
                continue;
            };
            match duration(text.trim()) {
                Ok(found) => *value = found,
                Err(error) => problems.push(format!("{name}: {error}")),
            }
        }
        (self, problems)
    }
}

/// Follows the folder until it is cancelled.
pub async fn run(
    flags: Settings,
    folder: Option<PathBuf>,
    settings: watch::Sender<Settings>,
    cancel: CancellationToken,
) {
    let Some(folder) = folder else {
        cancel.cancelled().await;
        return;
    };
    let mut told = Vec::new();
    loop {
        let (found, problems) = flags.with_files(&folder);
        if problems != told {
            for problem in &problems {
                tracing::warn!(problem, "a setting makes no sense; its flag counts");
            }
            told = problems;
        }
        let new = settings.send_if_modified(|known| std::mem::replace(known, found) != found);
        if new {
            tracing::info!(?found, "settings");
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = cancel.cancelled() => return,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Settings of tests: a second for each, apart from the refresh.
    pub fn seconds() -> Settings {
        let second = Duration::from_secs(1);
        Settings {
            refresh_interval: Duration::from_secs(300),
            answer_timeout: second,
            configuration_lag: second,
            southbound_lag: second,
            port_grace: second,
            flow_grace: second,
        }
    }

    #[test]
    fn a_file_wins_over_its_flag_and_a_bad_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        put("port-grace", "2m\n");
        put("flow-grace", "soon");
        put("something-else", "1s");
        let (settings, problems) = seconds().with_files(folder.path());
        assert_eq!(settings.port_grace, Duration::from_secs(120));
        assert_eq!(settings.flow_grace, seconds().flow_grace);
        assert!(problems.len() == 1 && problems[0].starts_with("flow-grace: "));
        assert_eq!(
            seconds().with_files("/nowhere".as_ref()),
            (seconds(), Vec::new())
        );
    }
}
