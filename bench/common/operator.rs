//! The operator as a process: started, watched from outside, ended.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::process::{Child, Command};

use crate::scrape::get;

/// A process that takes less than this of a second is quiet.
const QUIET: Duration = Duration::from_millis(10);

/// A running operator.
#[derive(Debug)]
pub struct Operator {
    child: Child,
    pid: u32,
    started: Instant,
    metrics: SocketAddr,
}

/// What it has taken.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Time on a processor, of all its threads.
    pub cpu: Duration,
    /// Resident memory.
    pub rss_kib: u64,
    /// The most that it ever was.
    pub peak_kib: u64,
}

impl Operator {
    /// Starts it.
    pub fn start(
        program: &Path,
        kubeconfig: &Path,
        openstack: &[(&'static str, String)],
        arguments: &[&str],
        log: &Path,
    ) -> Result<Self> {
        let metrics = free_port()?;
        let log = std::fs::File::create(log).context("failed to make a log")?;
        let child = Command::new(program)
            .args(["--agent-namespaces", "default", "--skip-tests"])
            .args(["--certificate-namespace", ""])
            .args(["--metrics-bind-address", &metrics.to_string()])
            .args(["--health-probe-bind-address", "0"])
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .envs(openstack.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("failed to share a log")?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("failed to start {}", program.display()))?;
        let pid = child.id().context("the operator has ended at once")?;
        Ok(Self {
            child,
            pid,
            started: Instant::now(),
            metrics,
        })
    }

    /// What it has taken until now.
    pub fn usage(&self) -> Result<Usage> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))
            .context("failed to read the operator's status")?;
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let mut nanoseconds = 0;
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid))
            .context("failed to list the operator's threads")?;
        for thread in threads {
            let path = thread?.path().join("schedstat");
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let spent: Option<u64> = text.split(' ').next().and_then(|word| word.parse().ok());
            nanoseconds += spent.unwrap_or(0);
        }
        Ok(Usage {
            cpu: Duration::from_nanos(nanoseconds),
            rss_kib: kib("VmRSS:").context("no VmRSS")?,
            peak_kib: kib("VmHWM:").context("no VmHWM")?,
        })
    }

    /// How long it was busy after its start: until the first second in which it did next to nothing.
    pub async fn until_quiet(&self) -> Result<Duration> {
        let mut samples: Vec<(Duration, Duration)> = Vec::new();
        for _ in 0..6000 {
            let now = (self.started.elapsed(), self.usage()?.cpu);
            samples.push(now);
            let second =
                |sample: &&(Duration, Duration)| now.0 - sample.0 >= Duration::from_secs(1);
            if let Some(before) = samples.iter().rev().find(second)
                && now.1 - before.1 < QUIET
                // It has done something at all.
                && before.1 > QUIET
            {
                return Ok(before.0);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("it was never quiet")
    }

    /// What it says about itself.
    pub async fn scrape(&self) -> Result<String> {
        get(&format!("http://{}/metrics", self.metrics)).await
    }

    /// Asks it to end, and waits until it has.
    pub async fn stop(&mut self) -> Result<()> {
        let pid = i32::try_from(self.pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let pid = pid.context("no process id")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .context("failed to end the operator")?;
        tokio::time::timeout(Duration::from_secs(30), self.child.wait())
            .await
            .context("the operator does not end")?
            .context("failed to wait for the operator")?;
        Ok(())
    }
}

fn free_port() -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let listener = listener.context("failed to find a free port")?;
    listener.local_addr().context("failed to find a free port")
}
