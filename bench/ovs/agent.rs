//! The agent as a process: started, watched from outside, ended.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::{Child, Command};

use crate::site::{HOST, NAMESPACE, Site};

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    pid: u32,
}

/// What it has taken.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Time on a processor, of all its threads.
    pub cpu: Duration,
    /// Resident memory.
    pub rss_kib: u64,
    /// The part of it that no file backs.
    pub anonymous_kib: u64,
}

impl Agent {
    /// Starts it, and waits until it has reported.
    pub async fn start(program: &Path, site: &Site) -> Result<Self> {
        let log = std::fs::File::create(site.log()).context("failed to make a log")?;
        let mut child = Command::new(program)
            .args(["--node", HOST, "--namespace", NAMESPACE])
            .arg("--ovs-rundir")
            .arg(site.inside("run/openvswitch"))
            .arg("--ovn-rundir")
            .arg(site.inside("run/ovn"))
            .args(["--metrics-bind-address", "0"])
            .args(["--health-probe-bind-address", "0"])
            .env("KUBECONFIG", site.kubeconfig())
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("failed to share a log")?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("failed to start {}", program.display()))?;
        let pid = child.id().context("the agent has ended at once")?;
        tokio::select! {
            reported = site.seen().well() => drop(reported?),
            ended = child.wait() => bail!("the agent has ended: {}", ended?),
        }
        Ok(Self { child, pid })
    }

    /// What it has taken until now.
    pub fn usage(&self) -> Result<Usage> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))
            .context("failed to read the agent's status")?;
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let mut nanoseconds = 0;
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid))
            .context("failed to list the agent's threads")?;
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
        })
    }

    /// Asks it to end, and waits until it has.
    pub async fn stop(&mut self) -> Result<()> {
        let pid = i32::try_from(self.pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("no process id")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .context("failed to end the agent")?;
        tokio::time::timeout(Duration::from_secs(30), self.child.wait())
            .await
            .context("the agent does not end")?
            .context("failed to wait for the agent")?;
        Ok(())
    }
}
