//! Power and faults: what a person can do to a lab's machines, cables, units and processes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::Node as KubeNode;
use rustix::process::Signal;

use super::Supervisor;
use crate::command::{patience, run};
use crate::control::Fault;
use crate::node::{Node, Power, enter, hypervisor, pid_one};
use crate::process::{Process, log_end};
use crate::report::Report;

impl Supervisor {
    pub(super) async fn power(
        &self,
        name: &str,
        action: Power,
        wait: bool,
        report: &Report,
    ) -> Result<()> {
        let node = self.node(name).await?;
        let step = report.step(format!(
            "{name}: power {}",
            format!("{action:?}").to_lowercase()
        ));
        node.power(action).await?;
        self.pull_cables_again().await?;
        step.done();
        let observed = node.observed();
        // A node without network cannot become Ready.
        if wait && matches!(action, Power::On | Power::Reboot) && !observed.cut {
            let step = report.step(format!("{name}: ready"));
            self.complete(&node).await?;
            step.done();
        }
        Ok(())
    }

    /// A cable is pulled at its far end; the machine there connects it again when it boots.
    async fn pull_cables_again(&self) -> Result<()> {
        let nodes: Vec<Arc<Node>> = self.parts.lock().await.nodes.values().cloned().collect();
        for node in nodes {
            let observed = node.observed();
            if observed.cut || !observed.cut_cables.is_empty() {
                node.cut(None, observed.cut).await?;
            }
        }
        Ok(())
    }

    /// Waits until a machine is what it shall be: booted, part of OVN, Ready in Kubernetes.
    pub(super) async fn complete(&self, node: &Node) -> Result<()> {
        node.booted().await?;
        hypervisor::wait_until_joined(node).await?;
        let Some(role) = node.spec.cluster else {
            return Ok(());
        };
        let client = {
            let parts = self.parts.lock().await;
            parts
                .clusters
                .get(&role)
                .context("the node's cluster is gone")?
                .client()
                .await?
        };
        wait_until_ready(&client, node).await
    }

    pub(super) async fn fault(&self, action: Fault, target: &str) -> Result<()> {
        if let Ok(node) = self.node(target).await {
            return node_fault(&node, action).await;
        }
        if let Some((name, part)) = target.split_once('/')
            && let Ok(node) = self.node(name).await
        {
            if node.spec.link.cables.iter().any(|c| c.name == part) {
                return cable_fault(&node, part, action).await;
            }
            return unit_fault(&node, part, action).await;
        }
        let mut parts = self.parts.lock().await;
        let parts = &mut *parts;
        let mut processes: Vec<&mut Process> = parts
            .clusters
            .values_mut()
            .flat_map(|cluster| &mut cluster.processes)
            .chain(&mut parts.processes)
            .collect();
        let names: Vec<String> = processes.iter().map(|p| p.recipe.name.clone()).collect();
        let process = processes
            .iter_mut()
            .find(|process| process.recipe.name == target)
            .with_context(|| {
                let machines: Vec<&str> = parts.nodes.keys().map(String::as_str).collect();
                let all = [machines, names.iter().map(String::as_str).collect()].concat();
                format!(
                    "there is no {target}; targets are {}, units of machines (MACHINE/kubelet) \
                     and their cables (MACHINE/eno1)",
                    all.join(", ")
                )
            })?;
        match action {
            Fault::Kill => {
                process.kill().await;
                Ok(())
            }
            Fault::Stop => process.signal(Signal::STOP),
            Fault::Cont => process.signal(Signal::CONT),
            Fault::Cut => bail!("{target} has no network of its own; cut a machine"),
            Fault::Heal if process.ended().is_some() => {
                **process = process.recipe.start()?;
                Ok(())
            }
            Fault::Heal => process.signal(Signal::CONT),
        }
    }
}

async fn node_fault(node: &Node, action: Fault) -> Result<()> {
    match action {
        Fault::Kill => node.power(Power::Loss).await,
        Fault::Stop => node.freeze(true).await,
        Fault::Cont => node.freeze(false).await,
        Fault::Cut => node.cut(None, true).await,
        Fault::Heal => {
            let observed = node.observed();
            if observed.frozen {
                node.freeze(false).await?;
            }
            for cable in &observed.cut_cables {
                node.cut(Some(cable), false).await?;
            }
            if observed.cut {
                node.cut(None, false).await?;
            }
            node.power(Power::On).await
        }
    }
}

async fn cable_fault(node: &Node, cable: &str, action: Fault) -> Result<()> {
    match action {
        Fault::Cut => node.cut(Some(cable), true).await,
        Fault::Heal => node.cut(Some(cable), false).await,
        _ => bail!("a cable can be cut and healed, nothing else"),
    }
}

async fn unit_fault(node: &Node, unit: &str, action: Fault) -> Result<()> {
    let systemctl: &[&str] = match action {
        Fault::Kill => &["kill", "--signal=KILL"],
        Fault::Stop => &["kill", "--signal=STOP"],
        Fault::Cont => &["kill", "--signal=CONT"],
        Fault::Heal => &["restart"],
        Fault::Cut => bail!("a unit has no network of its own; cut {}", node.spec.name),
    };
    let mut arguments = vec!["systemctl".to_owned()];
    arguments.extend(systemctl.iter().map(|&word| word.to_owned()));
    arguments.push(unit.to_owned());
    let command = enter(pid_one(&node.spec.name, &node.observed())?, &arguments);
    let (program, arguments) = command.split_first().context("an empty command")?;
    run(program, arguments).await
}

/// Waits until the node of this boot, not of an earlier one, is Ready.
async fn wait_until_ready(client: &kube::Client, node: &Node) -> Result<()> {
    let nodes: kube::Api<KubeNode> = kube::Api::all(client.clone());
    let name = node.spec.name.clone();
    let boot = node.observed().boot_id;
    let ready = |object: Option<&KubeNode>| {
        let Some(status) = object.and_then(|node| node.status.as_ref()) else {
            return false;
        };
        let this_boot = status
            .node_info
            .as_ref()
            .is_some_and(|info| info.boot_id == boot);
        this_boot
            && status
                .conditions
                .iter()
                .flatten()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let waiting = kube::runtime::wait::await_condition(nodes, &name, ready);
    let deadline = patience(Duration::from_secs(180));
    tokio::time::timeout(deadline, waiting).await.map_err(|_| {
        anyhow!(
            "{name} is not Ready after {deadline:?}; its console:\n{}\n`cobalt lab exec {name} -- \
             journalctl -u kubelet` tells more",
            log_end(&node.spec.dir.join("console.log"))
        )
    })??;
    Ok(())
}
