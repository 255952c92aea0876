//! A node with a real kubelet is held and let go, as Gardener would see it.

use cobalt_api::hypervisor::Maintenance;
use cobalt_hypervisor_operator::objects::{ActError, is_due, judge};
use cobalt_lab::LabConfig;
use cobalt_lab::images::BUSYBOX;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::EvictParams;
use kube::runtime::wait::{await_condition, conditions::is_deleted};
use kube::runtime::watcher;

use super::*;

const NODE: &str = "n1";
const HOLD: &str = "maint-n1";
/// A kubelet starts pods, and other tests build.
const PATIENCE: Duration = Duration::from_secs(120);

struct Cluster {
    client: Client,
    config: ObjectsConfig,
}

impl Cluster {
    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "kube-system")
    }

    async fn difference(&self, hypervisor: &Hypervisor) -> Difference {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get(NODE).await.unwrap();
        let wanted = wanted(&node, Some(hypervisor), &self.config);
        difference(&wanted, &observe(&self.client, NODE, &self.config).await)
    }

    /// The pod that holds the node, once it is as described.
    async fn held_by(&self, is: impl Fn(&Pod) -> bool) -> Pod {
        let label = "cobaltcore-maintenance-controller=maint-n1";
        let config = watcher::Config::default().labels(label);
        let mut events = watcher::watcher(self.pods(), config).boxed();
        let found = async {
            loop {
                match events.next().await.unwrap() {
                    Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod))
                        if pod.metadata.deletion_timestamp.is_none() && is(&pod) =>
                    {
                        return pod;
                    }
                    _ => {}
                }
            }
        };
        let found = tokio::time::timeout(PATIENCE, found).await;
        found.expect("a pod that holds the node")
    }

    async fn evict(&self, pod: &Pod) -> Result<(), u16> {
        let name = pod.metadata.name.as_deref().unwrap();
        match self.pods().evict(name, &EvictParams::default()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) => Err(status.code),
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits until the disruption controller has counted for the budget as it is.
    async fn budget(&self, allowed: i32) {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), "kube-system");
        let counted = |budget: Option<&PodDisruptionBudget>| {
            budget.is_some_and(|budget| {
                budget.status.as_ref().is_some_and(|status| {
                    status.observed_generation == budget.metadata.generation
                        && status.current_healthy == Some(1)
                        && status.disruptions_allowed == Some(allowed)
                })
            })
        };
        let counted = await_condition(budgets, HOLD, counted);
        tokio::time::timeout(PATIENCE, counted)
            .await
            .unwrap()
            .unwrap();
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| {
        all.iter()
            .any(|one| one.type_ == "Ready" && one.status == "True")
    })
}

fn restarts(pod: &Pod) -> i32 {
    pod.status
        .as_ref()
        .unwrap()
        .container_statuses
        .as_ref()
        .unwrap()[0]
        .restart_count
}

async fn gone<K>(api: Api<K>, name: &str, uid: &str)
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default,
{
    let gone = await_condition(api, name, is_deleted(uid));
    tokio::time::timeout(PATIENCE, gone).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_held_until_it_may_go_and_takes_its_objects_along() {
    let _nodes = crate::cloud::NODES.lock().await;
    let lab = cobalt_lab::testing::lab(LabConfig::with_nodes("hold", 1))
        .await
        .unwrap();
    // The client would ask again for as long as an eviction is refused.
    let client = client_with(&lab.kubeconfig(), |config| config.default_retry = false).await;
    let nodes: Api<Node> = Api::all(client.clone());
    let label =
        json!({ "metadata": { "labels": { "nova.openstack.cloud.sap/virt-driver": "kvm" } } });
    nodes
        .patch(NODE, &PatchParams::default(), &Patch::Merge(label))
        .await
        .unwrap();
    let cluster = Cluster {
        config: ObjectsConfig {
            certificate: Some(CertificateConfig {
                namespace: "default".into(),
                issuer_name: "issuer".into(),
            }),
            access: None,
            lifecycle: LifecycleConfig {
                namespace: "kube-system".into(),
                pod: Some(HoldPod::busybox(BUSYBOX.into())),
            },
        },
        client: client.clone(),
    };
    let mut conditions = Vec::new();

    // Onboarding: the pod runs, is not ready, and is not started again and again.
    let found = cluster.difference(&hypervisor(NODE, &conditions)).await;
    for change in &found.changes {
        match act(&client, change, DEADLINE).await {
            Ok(()) => {}
            Err(ActError::NoCertManager { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let events: Api<Event> = Api::namespaced(client.clone(), "kube-system");
    let failed = watcher::Config::default().fields("reason=Unhealthy");
    let mut failures = watcher::watcher(events, failed).boxed();
    let failed = async {
        loop {
            let event = failures.next().await.unwrap();
            if let Ok(watcher::Event::Apply(event) | watcher::Event::InitApply(event)) = event
                && event
                    .involved_object
                    .name
                    .as_ref()
                    .unwrap()
                    .starts_with(HOLD)
            {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, failed).await.unwrap();
    let waiting = cluster.held_by(|_| true).await;
    assert_eq!((is_ready(&waiting), restarts(&waiting)), (false, 0));
    assert_eq!(cluster.evict(&waiting).await, Err(429));

    // Aborted is not onboarded.
    conditions.push((
        HypervisorCondition::Onboarding,
        Status::False,
        Reason::Aborted,
    ));
    let changes = |found: Difference| {
        let is_hold = |change: &Change| !matches!(change, Change::Apply(object) if object.key.kind == Kind::Certificate);
        found
            .changes
            .into_iter()
            .filter(is_hold)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        changes(cluster.difference(&hypervisor(NODE, &conditions)).await),
        []
    );

    // Onboarded: another pod, which is ready, and which nobody may evict.
    conditions[0].2 = Reason::Succeeded;
    let found = changes(cluster.difference(&hypervisor(NODE, &conditions)).await);
    assert_eq!(carry_out(&client, &found).await, [Kind::Deployment]);
    let holding = cluster.held_by(is_ready).await;
    cluster.budget(0).await;
    assert_eq!(cluster.evict(&holding).await, Err(429));
    assert_eq!(
        changes(cluster.difference(&hypervisor(NODE, &conditions)).await),
        []
    );

    // Empty for good: agents leave, and what tolerates the taint stays.
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    for (name, tolerations) in [
        ("nova", json!([])),
        ("agent", json!([{ "operator": "Exists" }])),
    ] {
        let pod = json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": NODE,
                "tolerations": tolerations,
                "terminationGracePeriodSeconds": 1,
                "containers": [{ "name": "sleep", "image": BUSYBOX, "command": ["sleep", "inf"] }],
            },
        });
        create(&pods, pod).await;
    }
    conditions.push((
        HypervisorCondition::Evicting,
        Status::False,
        Reason::Succeeded,
    ));
    let mut emptied = hypervisor(NODE, &conditions);
    emptied.spec.maintenance = Some(Maintenance::Termination);
    let agents = async || {
        list_agent_pods(&client, &["default".into()], NODE, DEADLINE)
            .await
            .unwrap()
    };
    let before = judge(&agents().await, None);
    assert_eq!(
        before.message,
        "1 agent pod(s) have to leave the node first: default/nova"
    );
    let nova = pods.get("nova").await.unwrap().metadata.uid.unwrap();
    assert!(!is_due(&nodes.get(NODE).await.unwrap(), &emptied));
    carry_out(&client, &changes(cluster.difference(&emptied).await)).await;
    assert!(is_due(&nodes.get(NODE).await.unwrap(), &emptied));
    gone(pods.clone(), "nova", &nova).await;
    assert_eq!(judge(&agents().await, None).reason, Reason::NoAgentPods);
    assert!(pods.get_opt("agent").await.unwrap().is_some());
    let holding = cluster.held_by(is_ready).await;

    // Offboarded, and still protected.
    conditions.push((
        HypervisorCondition::Offboarded,
        Status::True,
        Reason::Offboarded,
    ));
    conditions.push((
        HypervisorCondition::HaEnabled,
        Status::True,
        Reason::Succeeded,
    ));
    let protected = Hypervisor {
        spec: emptied.spec.clone(),
        ..hypervisor(NODE, &conditions)
    };
    assert_eq!(changes(cluster.difference(&protected).await), []);

    // Free: the budget lets the pod go, and then there is none.
    conditions.pop();
    let free = Hypervisor {
        spec: emptied.spec.clone(),
        ..hypervisor(NODE, &conditions)
    };
    let found = changes(cluster.difference(&free).await);
    let [budget, deployment] = found.as_slice() else {
        panic!("{found:?}");
    };
    carry_out(&client, std::slice::from_ref(budget)).await;
    cluster.budget(1).await;
    assert_eq!(cluster.evict(&holding).await, Ok(()));
    carry_out(&client, std::slice::from_ref(deployment)).await;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "kube-system");
    let none = |deployment: Option<&Deployment>| {
        deployment.is_some_and(|deployment| {
            deployment.status.as_ref().is_some_and(|status| {
                status.observed_generation == deployment.metadata.generation
                    && status.replicas.unwrap_or_default() == 0
            })
        })
    };
    let none = await_condition(deployments.clone(), HOLD, none);
    let last = tokio::time::timeout(PATIENCE, none).await.unwrap().unwrap();
    let last = last.unwrap().metadata.uid.unwrap();

    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), "kube-system");
    let budget = budgets.get(HOLD).await.unwrap().metadata.uid.unwrap();

    // The node goes, and what was made for it goes with it.
    nodes.delete(NODE, &Default::default()).await.unwrap();
    gone(deployments, HOLD, &last).await;
    gone(budgets, HOLD, &budget).await;
    lab.down().await.unwrap();
}
