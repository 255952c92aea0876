//! The agent as a process: started, and seen at work.

use std::path::Path;

use anyhow::{Result, bail};
use tokio::process::Command;

use crate::inside::Network;
use crate::process::{Process, Usage};
use crate::site::{HOST, NAMESPACE, Site};

/// A running agent.
#[derive(Debug)]
pub struct Agent(Process);

impl Agent {
    /// Starts it, and waits until it has reported.
    pub async fn start(program: &Path, site: &Site) -> Result<Self> {
        let mut command = Command::new(program);
        command.env("KUBECONFIG", site.kubeconfig());
        Self::run(command, site).await
    }

    /// Starts it in the network of the hypervisor, where captures are.
    pub async fn start_inside(
        program: &Path,
        site: &Site,
        network: &Network,
        kubeconfig: &Path,
    ) -> Result<Self> {
        let mut command = Command::new("nsenter");
        command
            .arg(network.flag())
            .arg(program)
            .args(["--node-ip", "127.0.0.1"])
            .env("KUBECONFIG", kubeconfig);
        Self::run(command, site).await
    }

    async fn run(mut command: Command, site: &Site) -> Result<Self> {
        command
            .args(["--node", HOST, "--namespace", NAMESPACE])
            .arg("--ovs-rundir")
            .arg(site.inside("run/openvswitch"))
            .arg("--ovn-rundir")
            .arg(site.inside("run/ovn"))
            .args(["--metrics-bind-address", "0"])
            .args(["--health-probe-bind-address", "0"])
            .args(["--diagnostics-bind-address", "127.0.0.1:9476"]);
        let mut process = Process::start(&mut command, &site.log())?;
        tokio::select! {
            reported = site.seen().well() => drop(reported?),
            ended = process.child.wait() => bail!("the agent has ended: {}", ended?),
        }
        Ok(Self(process))
    }

    /// What it has taken until now.
    pub fn usage(&self) -> Result<Usage> {
        self.0.usage()
    }

    /// Asks it to end, and waits until it has.
    pub async fn stop(&mut self) -> Result<()> {
        self.0.stop().await
    }
}
