//! The lab's own long-running processes: started with a log each, found again after a crash.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};
use tokio::process::{Child, Command};

use crate::command::last_lines;

/// Every process of a lab carries this variable with the lab's id. After a crash of the
/// supervisor it is how its orphans are found; no list on disk could be as exact.
pub const MARK: &str = "COBALT_LAB_ID";

/// How a process is started; kept, so that it can be started again.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// `CLUSTER/COMPONENT`.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Where its output goes.
    pub log: PathBuf,
    /// The lab's id.
    pub lab: String,
}

/// A process under way.
#[derive(Debug)]
pub struct Process {
    /// How it was started.
    pub recipe: Recipe,
    child: Child,
}

impl Recipe {
    /// Starts it.
    pub fn start(&self) -> Result<Process> {
        let child = spawn(&self.command, &self.lab, &self.log)?;
        Ok(Process {
            recipe: self.clone(),
            child,
        })
    }
}

/// Starts a program of a lab, with its output in a log.
pub fn spawn<A: AsRef<OsStr>>(command: &[A], lab: &str, log: &Path) -> Result<Child> {
    let (program, arguments) = command
        .split_first()
        .context("a process without a program")?;
    let log = open_log(log)?;
    Command::new(program)
        .args(arguments)
        .env(MARK, lab)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("failed to share a log")?)
        .stderr(log)
        // Its own group: a Ctrl-C meant for the command line does not reach it.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("failed to start {}", program.as_ref().to_string_lossy()))
}

impl Process {
    /// Its process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Whether it has ended, and how.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Fails with the end of its log when it has ended.
    pub fn must_run(&mut self) -> Result<()> {
        if let Some(status) = self.ended() {
            bail!(
                "{} ended ({status}):\n{}",
                self.recipe.name,
                log_end(&self.recipe.log)
            );
        }
        Ok(())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self
            .pid()
            .with_context(|| format!("{} does not run", self.recipe.name))?;
        signal_pid(pid, signal)
    }

    /// Kills it and waits until it is gone. Polite signals only cost time here: the API server
    /// waits for its watchers, and what etcd has written the page cache keeps.
    pub async fn kill(&mut self) {
        // An error means that it is gone already.
        drop(self.child.kill().await);
    }
}

/// Opens a log for appending.
pub fn open_log(path: &Path) -> Result<std::fs::File> {
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("failed to open the log {}", path.display()))
}

/// The end of a log, for an error message.
pub fn log_end(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    format!("{}\n(whole log: {})", last_lines(&text, 15), path.display())
}

/// Sends a signal to a process.
pub fn signal_pid(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .with_context(|| format!("{pid} is not a process id"))?;
    rustix::process::kill_process(pid, signal)
        .with_context(|| format!("failed to signal process {}", pid.as_raw_nonzero()))
}

/// Kills a process; one that is gone is fine. Never touches pid 0 or 1, which would mean
/// "everybody" and "the machine".
pub fn kill(pid: u32) {
    if pid > 1 {
        drop(signal_pid(pid, Signal::KILL));
    }
}

/// The processes of this machine that carry a lab's mark: (pid, lab id).
pub fn marked() -> Vec<(u32, String)> {
    let prefix = format!("{MARK}=");
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let environment = std::fs::read(entry.path().join("environ")).ok()?;
            let value = environment
                .split(|&byte| byte == 0)
                .find_map(|variable| variable.strip_prefix(prefix.as_bytes()))?;
            Some((pid, String::from_utf8_lossy(value).into_owned()))
        })
        .collect()
}

/// The children of a process.
pub fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}
