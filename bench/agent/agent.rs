//! The agent as a process: started, and seen at work.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Result, bail};
use tokio::process::Command;

use crate::process::{Process, Usage, free_port};
use crate::site::{NAMESPACE, Site};

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    process: Process,
    /// Where its metrics are.
    pub metrics: SocketAddr,
}

impl Agent {
    /// Starts it for a host and, unless it finds libvirt elsewhere, waits until it has reported.
    pub async fn start(
        program: &Path,
        site: &Site,
        host: &str,
        libvirt: Option<&Path>,
    ) -> Result<Self> {
        let machine = site.machine(host)?;
        let socket = libvirt.map_or_else(|| machine.libvirt_socket(), Path::to_owned);
        let metrics = free_port()?;
        let mut command = Command::new(program);
        command
            .args(["--node", host, "--namespace", NAMESPACE])
            .arg("--libvirt-uri")
            .arg(format!("qemu+unix:///system?socket={}", socket.display()))
            .arg("--bus-address")
            .arg(format!("unix:path={}", machine.bus_socket().display()))
            .arg("--metrics-bind-address")
            .arg(metrics.to_string())
            .args(["--health-probe-bind-address", "0"])
            .env("KUBECONFIG", site.kubeconfig());
        let mut process = Process::start(&mut command, &site.log(host))?;
        if libvirt.is_none() {
            let mut seen = site.seen(host)?;
            tokio::select! {
                reported = seen.until(crate::site::connected) => drop(reported?),
                ended = process.child.wait() => bail!("the agent has ended: {}", ended?),
            }
        }
        Ok(Self { process, metrics })
    }

    /// What it has taken until now.
    pub fn usage(&self) -> Result<Usage> {
        self.process.usage()
    }

    /// Asks it to end, and waits until it has.
    pub async fn stop(&mut self) -> Result<()> {
        self.process.stop().await
    }
}
