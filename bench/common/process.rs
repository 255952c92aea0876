//! A process that is measured: watched from outside, and ended.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::process::{Child, Command};

/// A running process. It ends with this one.
#[derive(Debug)]
pub struct Process {
    /// The process.
    pub child: Child,
    pid: u32,
}

/// What a process has taken.
#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "each bench looks at a part of it")]
pub struct Usage {
    /// Time on a processor, of all its threads.
    pub cpu: Duration,
    /// Resident memory.
    pub rss_kib: u64,
    /// The part of it that no file backs.
    pub anonymous_kib: u64,
    /// The most that was ever resident.
    pub peak_kib: u64,
}

impl Process {
    /// Starts it. What it says goes into a file.
    pub fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let program = command.as_std().get_program().display().to_string();
        let log = std::fs::File::create(log).context("failed to make a log")?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("failed to share a log")?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("failed to start {program}"))?;
        let pid = child.id();
        let pid = pid.with_context(|| format!("{program} has ended at once"))?;
        Ok(Self { child, pid })
    }

    /// What it has taken until now.
    pub fn usage(&self) -> Result<Usage> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))
            .context("failed to read the status of the process")?;
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let mut nanoseconds = 0;
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid))
            .context("failed to list the threads of the process")?;
        for thread in threads {
            let path = thread?.path().join("schedstat");
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let spent: Option<u64> = text.split(' ').next().and_then(|word| word.parse().ok());
            nanoseconds += spent.unwrap_or(0);
        }
        Ok(Usage {
            cpu: Duration::from_nanos(nanoseconds),
            rss_kib: kib("VmRSS:").context("no VmRSS")?,
            anonymous_kib: kib("RssAnon:").context("no RssAnon")?,
            peak_kib: kib("VmHWM:").context("no VmHWM")?,
        })
    }

    /// Asks it to end, and waits until it has.
    pub async fn stop(&mut self) -> Result<()> {
        let pid = i32::try_from(self.pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("no process id")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .context("failed to end the process")?;
        tokio::time::timeout(Duration::from_secs(30), self.child.wait())
            .await
            .context("the process does not end")?
            .context("failed to wait for the process")?;
        Ok(())
    }
}

/// A port of loopback that nobody listens on.
#[allow(dead_code, reason = "not every process that is measured listens")]
pub fn free_port() -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let listener = listener.context("failed to find a free port")?;
    listener.local_addr().context("failed to find a free port")
}
