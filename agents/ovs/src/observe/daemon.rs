//! Whether a daemon answers. One that is stopped takes connections and answers nothing; one that
//! was killed leaves rows behind that look healthy. Only a question tells.

use std::path::PathBuf;
use std::time::Duration;

use cobalt_ovs::{Error, Options, Unixctl};
use cobalt_runtime::{chain, jitter};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::settings::Settings;

/// How soon one that is not there is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// A daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Daemon {
    /// It has not been asked yet.
    #[default]
    Unknown,
    /// It answers.
    Answers {
        /// Its version.
        version: String,
        /// What it says of its connection to the southbound database, if it has one.
        connected: Option<bool>,
    },
    /// It is there and does not answer.
    Silent,
    /// It is not there.
    Absent {
        /// How that is known.
        why: String,
    },
}

impl Daemon {
    /// Whether it answers.
    #[must_use]
    pub fn answers(&self) -> bool {
        matches!(self, Self::Answers { .. })
    }

    /// Whether it is known not to answer.
    #[must_use]
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Silent | Self::Absent { .. })
    }

    /// Its version, while it answers.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        match self {
            Self::Answers { version, .. } => Some(version),
            _ => None,
        }
    }

    /// Whether it is connected to the southbound database, as it says.
    #[must_use]
    pub fn connected(&self) -> Option<bool> {
        match self {
            Self::Answers { connected, .. } => *connected,
            _ => None,
        }
    }
}

/// Which daemon, and how it is asked.
#[derive(Debug, Clone)]
pub struct DaemonConfig {
    /// Where its socket and its pidfile are.
    pub directory: PathBuf,
    /// Its name.
    pub program: &'static str,
    /// It is ovn-controller, which has a connection to the southbound database.
    pub southbound: bool,
    /// How often it is asked.
    pub interval: Duration,
}

/// Runs until it is cancelled.
pub async fn run(
    config: DaemonConfig,
    settings: watch::Receiver<Settings>,
    seen: watch::Sender<Daemon>,
    cancel: CancellationToken,
) {
    let ask = async {
        loop {
            let options = options(&settings);
            let opened = Unixctl::of(&config.directory, config.program, &options).await;
            let lost = match opened {
                Ok(daemon) => talk(&config, &daemon, &settings, &seen).await,
                Err(error) => error,
            };
            tell(&config, &seen, away(&lost));
            tokio::time::sleep(AGAIN).await;
        }
    };
    cancel.run_until_cancelled(ask).await;
}

fn options(settings: &watch::Receiver<Settings>) -> Options {
    let timeout = settings.borrow().answer_timeout;
    Options {
        connect_timeout: timeout,
        call_timeout: timeout,
        ..Options::default()
    }
}

/// What an error says of a daemon.
fn away(error: &Error) -> Daemon {
    if error.is_timeout() {
        Daemon::Silent
    } else {
        Daemon::Absent { why: chain(error) }
    }
}

fn tell(config: &DaemonConfig, seen: &watch::Sender<Daemon>, now: Daemon) {
    seen.send_if_modified(|known| {
        // That it is gone is said once; how it is known may change with each try.
        let same = *known == now
            || matches!(
                (&*known, &now),
                (Daemon::Absent { .. }, Daemon::Absent { .. })
            );
        if !same {
            tracing::info!(program = config.program, ?now, "a daemon");
            *known = now;
        }
        !same
    });
}

/// Asks again and again, and says why that came to an end.
async fn talk(
    config: &DaemonConfig,
    daemon: &Unixctl,
    settings: &watch::Receiver<Settings>,
    seen: &watch::Sender<Daemon>,
) -> Error {
    loop {
        let timeout = settings.borrow().answer_timeout;
        let daemon = daemon.with_call_timeout(timeout);
        let wait = match question(config, &daemon).await {
            Ok(answer) => {
                tell(config, seen, answer);
                jitter(config.interval)
            }
            // It may go on: then this connection is as good as any.
            Err(error) if error.is_timeout() => {
                tell(config, seen, Daemon::Silent);
                AGAIN
            }
            Err(error) => return error,
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            why = daemon.closed() => return Error::Closed(why),
        }
    }
}

async fn question(config: &DaemonConfig, daemon: &Unixctl) -> Result<Daemon, Error> {
    let version = number(&daemon.version().await?);
    let connected = if config.southbound {
        match daemon.call("connection-status", &[]).await {
            Ok(status) => Some(status.trim() == "connected"),
            // A release that does not know the question.
            Err(Error::Unixctl { .. }) => None,
            Err(error) => return Err(error),
        }
    } else {
        None
    };
    Ok(Daemon::Answers { version, connected })
}

/// `3.1.0` of `ovs-vswitchd (Open vSwitch) 3.1.0`.
fn number(version: &str) -> String {
    let words = version.split_whitespace();
    let digit = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
    words
        .clone()
        .find(digit)
        .or_else(|| words.last())
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_found_in_what_a_daemon_says() {
        for (said, number_said) in [
            ("ovs-vswitchd (Open vSwitch) 3.1.0", "3.1.0"),
            ("ovsdb-server (Open vSwitch) 3.5.0-1~deb", "3.5.0-1~deb"),
            ("ovn-controller 23.03.1", "23.03.1"),
            ("strange", "strange"),
            ("", ""),
        ] {
            assert_eq!(number(said), number_said, "{said}");
        }
    }
}
