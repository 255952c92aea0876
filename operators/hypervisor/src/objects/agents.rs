//! The agent pods that have to leave a node before its host is offboarded.
//!
//! The taint of [`super::taint`] makes them leave. One that tolerates it for ever, as the node
//! agent does, stays and is not waited for.

use std::collections::BTreeSet;
use std::time::Duration;

use cobalt_api::Hypervisor;
use cobalt_api::conditions::{HypervisorCondition, Reason, Status, Wanted};
use cobalt_api::names::taints;
use k8s_openapi::api::core::v1::{Node, Pod, Toleration};
use kube::api::ListParams;
use kube::{Api, Client};

use super::lifecycle::is_emptied_for_good;
use super::taint::is_tainted;

/// Pods are read in pages, and of each page only what matters is kept.
const PAGE: u32 = 100;
/// So many are named in the condition.
const NAMED: usize = 10;

/// A pod that has to leave.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AgentPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl AgentPod {
    /// A pod that has to leave the node, if this is one.
    #[must_use]
    pub fn that_must_leave(pod: &Pod) -> Option<Self> {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let finished = matches!(phase, Some("Succeeded" | "Failed"));
        let tolerations = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.tolerations.as_deref());
        let stays = tolerates_for_ever(tolerations.unwrap_or_default());
        (!finished && !stays).then(|| Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
        })
    }
}

/// Whether a pod with these tolerations may stay on a node with our taint, as Kubernetes sees it:
/// of all tolerations that fit, the one with the shortest time counts.
fn tolerates_for_ever(tolerations: &[Toleration]) -> bool {
    let mut fitting = tolerations
        .iter()
        .filter(|toleration| fits(toleration))
        .peekable();
    fitting.peek().is_some() && fitting.all(|toleration| toleration.toleration_seconds.is_none())
}

fn fits(toleration: &Toleration) -> bool {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let effect = text(&toleration.effect);
    let key = text(&toleration.key);
    let any_effect = effect.is_empty() || effect == "NoExecute";
    any_effect
        && match text(&toleration.operator).as_str() {
            "Exists" => key.is_empty() || key == taints::OFFBOARDING,
            // Our taint has no value.
            "" | "Equal" => key == taints::OFFBOARDING && text(&toleration.value).is_empty(),
            _ => false,
        }
}

/// Whether agent pods are looked for: the host is empty for good, and the taint is on the node.
#[must_use]
pub fn is_due(node: &Node, hypervisor: &Hypervisor) -> bool {
    is_emptied_for_good(hypervisor) && is_tainted(node)
}

/// What `AgentPodsEvicted` says, given the pods that have to leave. Pure.
#[must_use]
pub fn judge(pods: &[AgentPod], generation: Option<i64>) -> Wanted<HypervisorCondition> {
    let pods: BTreeSet<_> = pods.iter().collect();
    let (status, reason, message) = if pods.is_empty() {
        let message = "no agent pod that has to leave is on the node".to_owned();
        (Status::True, Reason::NoAgentPods, message)
    } else {
        let named = pods.iter().take(NAMED);
        let named: Vec<_> = named
            .map(|pod| format!("{}/{}", pod.namespace, pod.name))
            .collect();
        let more = match pods.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let message = format!(
            "{} agent pod(s) have to leave the node first: {}{more}",
            pods.len(),
            named.join(", ")
        );
        (Status::False, Reason::AgentPodsRunning, message)
    };
    Wanted {
        condition: HypervisorCondition::AgentPodsEvicted,
        status,
        reason,
        message,
        observed_generation: generation,
    }
}

/// The pods that have to leave a node, of these namespaces.
///
/// # Errors
///
/// When the API server refuses a list, is not reached, or has not answered all of it in time.
pub async fn list_agent_pods(
    client: &Client,
    namespaces: &[String],
    node: &str,
    deadline: Duration,
) -> Result<Vec<AgentPod>, String> {
    let namespaces: BTreeSet<_> = namespaces.iter().collect();
    let all = async {
        let mut pods = Vec::new();
        for namespace in namespaces {
            let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
            list(&api, node, PAGE, &mut pods).await?;
        }
        Ok(pods)
    };
    cobalt_runtime::within(deadline, all).await
}

async fn list(api: &Api<Pod>, node: &str, page: u32, pods: &mut Vec<AgentPod>) -> kube::Result<()> {
    let first = ListParams::default()
        .fields(&format!("spec.nodeName={node}"))
        .limit(page);
    let mut params = first;
    loop {
        let answer = api.list(&params).await?;
        pods.extend(answer.items.iter().filter_map(AgentPod::that_must_leave));
        match answer.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(()),
        }
    }
}
