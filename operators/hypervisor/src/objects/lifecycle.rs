//! Holds a node: Gardener gives it no workload before it is onboarded and does not drain it before
//! it is offboarded.
//!
//! Gardener's part is fixed. It keeps a new node tainted until every pod on it with the label of a
//! critical component is ready, and when it drains a node, it respects disruption budgets. So each
//! node has one pod, which is ready once the host is onboarded, and a budget that wants this pod
//! until the host is offboarded.
//!
//! What the pod says is in its startup probe, which is a program that succeeds or one that fails.
//! A change is a new pod. While the probe fails, the container runs on: no number of failures makes
//! the kubelet start it again.

use cobalt_api::Hypervisor;
use cobalt_api::conditions::{self, HypervisorCondition, Reason, Status};
use cobalt_api::hypervisor::Maintenance;
use cobalt_api::names::{FieldManager, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::taint::TaintChange;
use super::{Kind, ObjectKey, Owner, Wanted};

/// The longest value of a label, in bytes.
const LABEL_MAX: usize = 63;
/// So often the probe is run until it succeeds, in seconds. A kubelet that has just started waits up
/// to this long before it runs it first.
const PROBE_PERIOD: i32 = 10;

/// How nodes are held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifecycleConfig {
    /// The namespace of the pods: kube-system, as Gardener wants critical components there.
    pub namespace: String,
    /// The pod. None: nodes are not held, and what held them is removed.
    pub pod: Option<HoldPod>,
}

/// The pod that holds a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldPod {
    /// Its image.
    pub image: String,
    /// The names of Secrets with which the image is pulled.
    pub pull_secrets: Vec<String>,
    /// A program of the image that runs until it is told to end.
    pub command: Vec<String>,
    /// One that succeeds.
    pub succeed: Vec<String>,
    /// One that fails.
    pub fail: Vec<String>,
}

impl HoldPod {
    /// With the operator's own image, which has no shell: `hold` waits, `hold yes` succeeds and
    /// `hold no` fails.
    #[must_use]
    pub fn own(image: String) -> Self {
        let program = "/cobalt-hypervisor-operator";
        Self::with(
            image,
            &[program, "hold"],
            &[program, "hold", "yes"],
            &[program, "hold", "no"],
        )
    }

    /// With an image that has the usual small programs, as the deployed operator uses.
    #[must_use]
    pub fn busybox(image: String) -> Self {
        Self::with(image, &["sleep", "inf"], &["true"], &["false"])
    }

    fn with(image: String, command: &[&str], succeed: &[&str], fail: &[&str]) -> Self {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        Self {
            image,
            pull_secrets: Vec::new(),
            command: words(command),
            succeed: words(succeed),
            fail: words(fail),
        }
    }
}

/// What is said about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// It may take workload.
    pub onboarded: bool,
    /// It may go.
    pub release: Release,
}

/// Whether a node may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// No: the host is not offboarded.
    NotOffboarded,
    /// No: it is, and its instances are still protected. Whoever recovers them would take the end
    /// of the node for a failure.
    HighAvailability,
    /// Yes.
    Free,
}

/// What is said about a node, given the conditions of its Hypervisor. Pure.
#[must_use]
pub fn hold(conditions: &[Condition]) -> Hold {
    let onboarded = ended_well(conditions, HypervisorCondition::Onboarding);
    let offboarded = conditions::is_true(conditions, HypervisorCondition::Offboarded);
    let protected = match conditions::status(conditions, HypervisorCondition::HaEnabled) {
        // Nobody protects anything here.
        None | Some(Status::False) => false,
        Some(Status::True | Status::Unknown) => true,
    };
    let release = match (offboarded, protected) {
        (false, _) => Release::NotOffboarded,
        (true, true) => Release::HighAvailability,
        (true, false) => Release::Free,
    };
    Hold { onboarded, release }
}

/// Whether it has ended, and with success: a step that was given up has ended, too.
pub(super) fn ended_well(conditions: &[Condition], step: HypervisorCondition) -> bool {
    conditions::is_false(conditions, step)
        && conditions::reason(conditions, step) == Some(Reason::Succeeded)
}

/// Whether pods have to leave: the host goes away and nothing runs on it any more.
pub(super) fn is_emptied_for_good(hypervisor: &Hypervisor) -> bool {
    hypervisor.spec.lifecycle_enabled()
        && hypervisor.spec.maintenance == Some(Maintenance::Termination)
        && ended_well(conditions_of(hypervisor), HypervisorCondition::Evicting)
}

pub(super) fn conditions_of(hypervisor: &Hypervisor) -> &[Condition] {
    hypervisor
        .status
        .as_ref()
        .map_or(&[], |status| status.conditions.as_slice())
}

pub(super) fn keys(node: &str, config: &LifecycleConfig) -> Vec<ObjectKey> {
    let name = name(node);
    let key = |kind| ObjectKey::new(kind, &config.namespace, &name);
    // The budget first: there must be no moment in which the pod is there without it.
    vec![key(Kind::PodDisruptionBudget), key(Kind::Deployment)]
}

/// The name of both objects, and the value of the label that ties them to the pod. A name that is
/// too long for a label is cut, and a digest keeps it apart from others.
fn name(node: &str) -> String {
    let name = format!("maint-{node}");
    if name.len() <= LABEL_MAX {
        return name;
    }
    let digest = Sha256::digest(node.as_bytes());
    let digest: String = digest
        .iter()
        .take(5)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let kept: String = name.chars().take(LABEL_MAX - digest.len() - 1).collect();
    format!("{}-{digest}", kept.trim_end_matches(['-', '.']))
}

pub(super) fn want(
    owner: &Owner<'_>,
    hypervisor: Option<&Hypervisor>,
    config: &LifecycleConfig,
    wanted: &mut Wanted,
) {
    let keys = keys(owner.name, config);
    let Some(hypervisor) = hypervisor else {
        // The Hypervisor of a hypervisor node is about to be made, perhaps anew: what is held
        // stays held.
        if !owner.is_hypervisor() {
            wanted.remove.extend(keys);
        }
        return;
    };
    wanted.taint = TaintChange::of(owner.node, owner.name, is_emptied_for_good(hypervisor));
    let Some(pod) = config
        .pod
        .as_ref()
        .filter(|_| hypervisor.spec.lifecycle_enabled())
    else {
        return wanted.remove.extend(keys);
    };
    let hold = hold(conditions_of(hypervisor));
    for key in keys {
        let name = name(owner.name);
        let tie = [(labels::MAINTENANCE_CONTROLLER, name.as_str())];
        let spec = match key.kind {
            Kind::Deployment => deployment(owner, &name, pod, hold),
            _ => json!({
                "minAvailable": i32::from(hold.release != Release::Free),
                "selector": { "matchLabels": { labels::MAINTENANCE_CONTROLLER: name } },
            }),
        };
        let body = json!({ "spec": spec });
        wanted.add(owner.object(key, FieldManager::NodeLifecycle, &tie, body));
    }
}

fn deployment(owner: &Owner<'_>, name: &str, pod: &HoldPod, hold: Hold) -> Value {
    let probe = if hold.onboarded {
        &pod.succeed
    } else {
        &pod.fail
    };
    let mut template = json!({
        "hostNetwork": true,
        "nodeSelector": { labels::HOSTNAME: owner.label(labels::HOSTNAME).unwrap_or(owner.name) },
        "tolerations": [
            { "effect": "NoExecute", "operator": "Exists" },
            { "effect": "NoSchedule", "operator": "Exists" },
        ],
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "containers": [{
            // The deployed operator's name: with another one there would be two containers after
            // an upgrade.
            "name": "sleep",
            "image": pod.image,
            "command": pod.command,
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"] },
            },
            "startupProbe": {
                "exec": { "command": probe },
                "periodSeconds": PROBE_PERIOD,
                "failureThreshold": i32::MAX,
            },
        }],
    });
    if let Some(template) = template
        .as_object_mut()
        .filter(|_| !pod.pull_secrets.is_empty())
    {
        let secrets: Vec<_> = pod
            .pull_secrets
            .iter()
            .map(|name| json!({ "name": name }))
            .collect();
        template.insert("imagePullSecrets".into(), secrets.into());
    }
    json!({
        "replicas": i32::from(hold.release != Release::Free),
        "revisionHistoryLimit": 0,
        "selector": { "matchLabels": { labels::MAINTENANCE_CONTROLLER: name } },
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": { "maxUnavailable": 0, "maxSurge": 1 },
        },
        "template": {
            "metadata": {
                "labels": {
                    labels::MAINTENANCE_CONTROLLER: name,
                    labels::CRITICAL_COMPONENT: "true",
                },
            },
            "spec": template,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_fits_a_label_and_is_its_own() {
        assert_eq!(name("hv1.example.org"), "maint-hv1.example.org");
        let longest = "a".repeat(LABEL_MAX - 6);
        assert_eq!(name(&longest), format!("maint-{longest}"));
        let (one, other) = ("a".repeat(200) + "1", "a".repeat(200) + "2");
        assert_ne!(name(&one), name(&other));
        assert_eq!(name(&one), name(&one));
        for node in [one, format!("{}.-{}", "a".repeat(45), "b".repeat(80))] {
            let name = name(&node);
            assert!(name.len() <= LABEL_MAX, "{name}");
            assert!(super::super::is_dns_name(&name), "{name}");
        }
    }
}
