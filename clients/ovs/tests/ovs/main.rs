//! The client against real switches of two releases and a real cluster of OVN's databases, while
//! parts of them are stopped and killed; and what they say, kept as files.

// Helpers of tests may fail loudly, as tests do.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod corpus;
mod fake;
mod faults;
mod flows;
mod proxy;
mod southbound;
mod switch;

use std::path::PathBuf;
use std::time::Duration;

use cobalt_lab::testing::run_inside;
use cobalt_lab::{Lab, LabConfig, node};
use cobalt_ovs::ovsdb::{Change, Event, Monitor};
use cobalt_ovs::{Error, Options, Remote};
use tokio::sync::{Mutex, MutexGuard};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A lab has up to six machines: one at a time is enough for a small machine.
static TURN: Mutex<()> = Mutex::const_new(());

/// A lab that is taken down also when its test fails.
struct TestLab(Lab, #[allow(dead_code)] MutexGuard<'static, ()>);

impl std::ops::Deref for TestLab {
    type Target = Lab;
    fn deref(&self) -> &Lab {
        &self.0
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        if self.0.dir().is_dir() {
            let name = self.0.dir().file_name().unwrap();
            let mut down = std::process::Command::new(cobalt_lab::testing::program().unwrap());
            down.args(["lab", "down", "--name"]).arg(name);
            drop(down.output());
        }
    }
}

impl TestLab {
    async fn up(config: LabConfig) -> Self {
        let turn = TURN.lock().await;
        Self(cobalt_lab::testing::lab(config).await.unwrap(), turn)
    }

    /// Runs a shell script inside a machine.
    async fn sh(&self, machine: &str, script: &str) -> String {
        run_inside(self, machine, &["sh", "-ec", script])
            .await
            .unwrap()
    }

    /// The members of one of OVN's databases.
    async fn members(&self, port: u16) -> Vec<(String, Remote)> {
        let status = self.status().await.unwrap();
        let members = status.nodes.iter();
        let members = members.filter(|node| node.name.starts_with("ovn"));
        members
            .map(|node| {
                let remote = Remote::Tcp(node.address.to_string(), port);
                (node.name.clone(), remote)
            })
            .collect()
    }
}

/// A machine of a lab.
struct Host {
    name: String,
    address: String,
    /// Its root directory, from outside.
    root: PathBuf,
}

impl Host {
    async fn find(lab: &Lab, name: &str) -> Self {
        let status = lab.status().await.unwrap();
        let found = status.nodes.iter().find(|node| node.name == name).unwrap();
        let pid = node::pid_one(name, &found.observed).unwrap();
        Self {
            name: name.to_owned(),
            address: found.address.to_string(),
            root: PathBuf::from(format!("/proc/{pid}/root")),
        }
    }

    /// Where its switch has its sockets.
    fn run(&self) -> PathBuf {
        self.root.join("run/openvswitch")
    }

    /// Its database.
    fn database(&self) -> Remote {
        Remote::Unix(self.run().join("db.sock"))
    }
}

/// Options of who can wait.
fn patient() -> Options {
    Options {
        connect_timeout: PATIENCE,
        call_timeout: PATIENCE,
        keepalive: None,
        ..Options::default()
    }
}

/// A monitor, and what it has told.
struct Watcher {
    monitor: Monitor,
    seen: Vec<String>,
}

impl Watcher {
    fn new(monitor: Monitor) -> Self {
        Self {
            monitor,
            seen: Vec::new(),
        }
    }

    /// Takes events until one gives what is waited for. That has an end also when events go on.
    async fn wait<T>(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(&Monitor, Event) -> Option<T>,
    ) -> T {
        let waiting = async {
            loop {
                let event = self.monitor.next().await;
                self.seen.push(format!("{event:?}"));
                if let Some(found) = wanted(&self.monitor, event) {
                    return found;
                }
            }
        };
        if let Ok(found) = tokio::time::timeout(PATIENCE, waiting).await {
            return found;
        }
        let last = self.seen.len().saturating_sub(20);
        panic!("{what} does not come; seen: {:#?}", &self.seen[last..]);
    }

    /// Waits until the rows are those of a server; whether only changes were read, and which.
    async fn synced(&mut self) -> (bool, Vec<Change>) {
        self.wait("a server", |_, event| match event {
            Event::Synced {
                resumed, changes, ..
            } => Some((resumed, changes)),
            _ => None,
        })
        .await
    }

    /// Waits until the connection is lost for such a reason, and says which.
    async fn down(&mut self, wanted: impl Fn(&Error) -> bool) -> Error {
        self.wait("the end", |_, event| match event {
            Event::Down { error, .. } => Some(error).filter(&wanted),
            _ => None,
        })
        .await
    }

    /// Waits until something holds of the rows of a server.
    async fn until(&mut self, what: &str, mut holds: impl FnMut(&Monitor) -> bool) {
        if self.monitor.connection().is_some() && holds(&self.monitor) {
            return;
        }
        self.wait(what, |monitor, _| {
            (monitor.connection().is_some() && holds(monitor)).then_some(())
        })
        .await;
    }

    /// Waits for a change.
    async fn change(&mut self, what: &str, mut wanted: impl FnMut(&Change) -> bool) -> Change {
        self.wait(what, |_, event| match event {
            Event::Changed(changes) | Event::Synced { changes, .. } => {
                changes.into_iter().find(&mut wanted)
            }
            _ => None,
        })
        .await
    }
}
