//! The operator as a process: started, watched from outside, ended.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tokio::process::Command;

use crate::process::{Process, Usage, free_port};
use crate::scrape::get;

/// A process that takes less than this of a second is quiet.
const QUIET: Duration = Duration::from_millis(10);

/// A running operator.
#[derive(Debug)]
pub struct Operator {
    process: Process,
    started: Instant,
    metrics: SocketAddr,
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
        let mut command = Command::new(program);
        command
            .args(["--agent-namespaces", "default", "--skip-tests"])
            .args(["--certificate-namespace", ""])
            .args(["--metrics-bind-address", &metrics.to_string()])
            .args(["--health-probe-bind-address", "0"])
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .envs(openstack.iter().map(|(key, value)| (key, value)));
        Ok(Self {
            process: Process::start(&mut command, log)?,
            started: Instant::now(),
            metrics,
        })
    }

    /// What it has taken until now.
    pub fn usage(&self) -> Result<Usage> {
        self.process.usage()
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
        self.process.stop().await
    }
}
