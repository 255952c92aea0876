//! Copies between two real API servers.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cobalt_api::hypervisor::Hypervisor;
use cobalt_api::names::labels::MIRROR_OF;
use cobalt_api::ovsnode::OvsNode;
use cobalt_hypervisor_operator::mirror::{MirrorConfig, MirrorMetrics, Trouble, run};
use cobalt_lab::cluster::Role;
use cobalt_lab::testing::{api_server, install_definitions, lab};
use cobalt_lab::{Lab, LabConfig};
use cobalt_runtime::{Health, Term};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OnceCell;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(200);

fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{}-{number}", std::process::id())
}

/// The cluster that gets the copies.
async fn other_cluster() -> &'static Lab {
    static LAB: OnceCell<Lab> = OnceCell::const_new();
    let start = async || {
        let lab = lab(LabConfig::api_only("mirror")).await.unwrap();
        let client = lab.client(Role::Hypervisor).await.unwrap();
        let definitions = cobalt_api::crds::all();
        install_definitions(&client, &definitions).await.unwrap();
        lab
    };
    LAB.get_or_init(start).await
}

/// Two clusters, and what one test has in them.
struct Clusters {
    here: Client,
    there: Client,
    kubeconfig: PathBuf,
    /// The name of the mirror, and the value of the label that the test's Hypervisors have.
    name: String,
}

impl Clusters {
    async fn new(prefix: &str) -> Self {
        let server = api_server().await.unwrap();
        let here = server.client().await.unwrap();
        let definitions = cobalt_api::crds::all();
        install_definitions(&here, &definitions).await.unwrap();
        let other = other_cluster().await;
        Self {
            here,
            there: other.client(Role::Hypervisor).await.unwrap(),
            kubeconfig: other.kubeconfig(),
            name: unique(prefix),
        }
    }

    /// The other way round. OVSNodes are not chosen by label, and tests must not copy each other's.
    async fn turned(prefix: &str) -> Self {
        let Self {
            here, there, name, ..
        } = Self::new(prefix).await;
        Self {
            here: there,
            there: here,
            kubeconfig: api_server().await.unwrap().kubeconfig,
            name,
        }
    }

    fn hypervisors(&self) -> (Api<Hypervisor>, Api<Hypervisor>) {
        (Api::all(self.here.clone()), Api::all(self.there.clone()))
    }

    /// Makes a Hypervisor here, with a finalizer and a status.
    async fn host(&self, spec: &Value, status: &Value) -> String {
        let name = unique("hv");
        let object = json!({
            "apiVersion": "kvm.cloud.sap/v1", "kind": "Hypervisor",
            "metadata": {
                "name": name, "labels": {"test": self.name, "zone": "a"},
                "annotations": {"not": "copied"}, "finalizers": ["example.org/held"],
            },
            "spec": spec,
        });
        let (here, _) = self.hypervisors();
        let object: Hypervisor = serde_json::from_value(object).unwrap();
        here.create(&PostParams::default(), &object).await.unwrap();
        let patch = Patch::Merge(json!({"status": status}));
        let patched = here
            .patch_status(&name, &PatchParams::default(), &patch)
            .await;
        patched.unwrap();
        name
    }

    fn mirror(&self) -> Mirror {
        self.mirror_of(Term::unlimited())
    }

    fn mirror_of(&self, term: Term) -> Mirror {
        let config = MirrorConfig {
            kubeconfig: self.kubeconfig.clone(),
            name: self.name.clone(),
            interval: INTERVAL,
            label_selector: format!("test={}", self.name),
            term,
        };
        Mirror::start(config, self.here.clone())
    }
}

struct Mirror {
    metrics: MirrorMetrics,
    trouble: Trouble,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Mirror {
    fn start(config: MirrorConfig, here: Client) -> Self {
        let (metrics, trouble) = (MirrorMetrics::default(), Trouble::default());
        let cancel = CancellationToken::new();
        let (told, seen, stop) = (trouble.clone(), metrics.clone(), cancel.clone());
        let task = tokio::spawn(run(config, here, Health::default(), told, seen, stop));
        Self {
            metrics,
            trouble,
            cancel,
            task,
        }
    }

    async fn end(self) {
        self.cancel.cancel();
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .unwrap()
            .unwrap();
    }

    /// Waits for something that has no event of its own.
    async fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !is(self) {
            let late = tokio::time::Instant::now() > deadline;
            assert!(!late, "{what}: {:?} {:?}", self.metrics, self.trouble.now());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn until<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    is: impl Fn(Option<&K>) -> bool,
) -> Option<K>
where
    K: kube::Resource + Clone + for<'a> serde::Deserialize<'a> + std::fmt::Debug + Send + 'static,
{
    let waiting = await_condition(api.clone(), name, is);
    match tokio::time::timeout(PATIENCE, waiting).await {
        Ok(found) => found.unwrap(),
        Err(_) => panic!("{name}: {what}; last seen: {:#?}", api.get_opt(name).await),
    }
}

async fn merge(api: &Api<Hypervisor>, name: &str, patch: Value) -> Hypervisor {
    let patch = Patch::Merge(patch);
    let patched = api.patch(name, &PatchParams::default(), &patch).await;
    patched.unwrap()
}

fn instances(hypervisor: Option<&Hypervisor>) -> Option<i64> {
    hypervisor?.status.as_ref()?.num_instances
}

/// Removes one with its finalizer.
async fn remove(api: &Api<Hypervisor>, name: &str) {
    merge(api, name, json!({"metadata": {"finalizers": null}})).await;
    api.delete(name, &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_copy_is_made_follows_its_original_and_goes_with_it() {
    let clusters = Clusters::new("follow").await;
    let (here, there) = clusters.hypervisors();
    let spec = json!({"customTraits": ["CUSTOM_A"], "overcommit": {"cpu": 2.0}});
    let status = json!({"numInstances": 3, "capacity": {"memory": "8Gi"}, "conditions": [{
        "type": "Ready", "status": "True", "reason": "Ready", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]});
    let name = clusters.host(&spec, &status).await;
    let mirror = clusters.mirror();
    let copy = until(&there, &name, "a copy", |copy| instances(copy) == Some(3))
        .await
        .unwrap();
    let original = here.get(&name).await.unwrap();
    assert_eq!(copy.spec, original.spec);
    assert_eq!(copy.status, original.status);
    assert_eq!(copy.labels()[MIRROR_OF], clusters.name);
    assert_eq!(copy.labels()["zone"], "a");
    assert!(copy.finalizers().is_empty());
    assert!(copy.annotations().is_empty());

    // What the original no longer says, the copy does not say either.
    merge(
        &here,
        &name,
        json!({"spec": {"overcommit": null}, "metadata": {"labels": {"zone": null}}}),
    )
    .await;
    let patch = Patch::Merge(json!({"status": {"numInstances": 4}}));
    let patched = here
        .patch_status(&name, &PatchParams::default(), &patch)
        .await;
    patched.unwrap();
    let follows = |copy: Option<&Hypervisor>| {
        instances(copy) == Some(4)
            && copy.is_some_and(|copy| {
                copy.spec.overcommit.is_none() && !copy.labels().contains_key("zone")
            })
    };
    until(&there, &name, "the change", follows).await;

    remove(&here, &name).await;
    until(&there, &name, "gone", |copy| copy.is_none()).await;
    mirror.end().await;
}

#[tokio::test]
async fn nothing_is_written_when_nothing_has_changed() {
    let clusters = Clusters::new("quiet").await;
    let (here, there) = clusters.hypervisors();
    let mut names = Vec::new();
    for number in 0..5 {
        let status = json!({"numInstances": number});
        names.push(clusters.host(&json!({}), &status).await);
    }
    let first = clusters.mirror();
    first
        .until("five copies", |one| {
            one.metrics.count("Hypervisor", "written") == 5
        })
        .await;
    first.end().await;
    // Somebody adds to a copy: that stays.
    merge(
        &there,
        &names[0],
        json!({"metadata": {"annotations": {"note": "mine"}}}),
    )
    .await;
    let version = |object: &Hypervisor| object.resource_version().unwrap();
    let mut before = Vec::new();
    for name in &names {
        before.push(version(&there.get(name).await.unwrap()));
    }

    // A new leader compares all of them, and writes what has changed, each time once.
    let second = clusters.mirror();
    for (number, (name, version)) in [(4, "1"), (3, "1"), (4, "2"), (3, "2")]
        .into_iter()
        .enumerate()
    {
        let name = &names[name];
        merge(&here, name, json!({"spec": {"version": version}})).await;
        let says = |copy: Option<&Hypervisor>| {
            copy.is_some_and(|copy| copy.spec.version.as_deref() == Some(version))
        };
        until(&there, name, "the change", says).await;
        let writes = u64::try_from(number + 1).unwrap();
        let counted = |one: &Mirror| one.metrics.count("Hypervisor", "written") >= writes;
        second.until("a write", counted).await;
        assert_eq!(second.metrics.count("Hypervisor", "written"), writes);
    }
    for (name, before) in names.iter().zip(&before).take(3) {
        assert_eq!(&version(&there.get(name).await.unwrap()), before);
    }
    second.end().await;
    for name in &names {
        remove(&here, name).await;
    }
}

#[tokio::test]
async fn what_is_not_a_copy_from_here_is_never_touched() {
    let clusters = Clusters::new("foreign").await;
    let (here, there) = clusters.hypervisors();
    let names = [
        clusters.host(&json!({}), &json!({"numInstances": 1})).await,
        clusters.host(&json!({}), &json!({"numInstances": 1})).await,
    ];
    let owners = [
        json!({"test": clusters.name}),
        json!({MIRROR_OF: "another", "test": clusters.name}),
    ];
    let mut before = Vec::new();
    for (name, labels) in names.iter().zip(owners) {
        let own = json!({
            "apiVersion": "kvm.cloud.sap/v1", "kind": "Hypervisor",
            "metadata": {"name": name, "labels": labels}, "spec": {"version": "own"},
        });
        let own: Hypervisor = serde_json::from_value(own).unwrap();
        before.push(there.create(&PostParams::default(), &own).await.unwrap());
    }
    let mirror = clusters.mirror();
    mirror
        .until("two failures", |one| {
            one.metrics.count("Hypervisor", "failed") >= 2
        })
        .await;
    for name in &names {
        remove(&here, name).await;
    }
    // Another one goes through meanwhile, and its end comes after theirs.
    let last = clusters.host(&json!({}), &json!({"numInstances": 1})).await;
    until(&there, &last, "a copy", |copy| instances(copy) == Some(1)).await;
    remove(&here, &last).await;
    until(&there, &last, "gone", |copy| copy.is_none()).await;
    mirror.end().await;
    for (name, before) in names.iter().zip(before) {
        assert_eq!(there.get(name).await.unwrap(), before);
    }
}

#[tokio::test]
async fn a_copy_that_somebody_changes_or_deletes_is_put_right() {
    let clusters = Clusters::new("repair").await;
    let (here, there) = clusters.hypervisors();
    let name = clusters
        .host(&json!({"version": "1"}), &json!({"numInstances": 1}))
        .await;
    let mirror = clusters.mirror();
    until(&there, &name, "a copy", |copy| instances(copy) == Some(1)).await;
    merge(&there, &name, json!({"spec": {"version": "wrong"}})).await;
    let says = |version: &'static str| {
        move |copy: Option<&Hypervisor>| {
            copy.is_some_and(|copy| copy.spec.version.as_deref() == Some(version))
        }
    };
    until(&there, &name, "the right version", says("1")).await;
    there.delete(&name, &DeleteParams::default()).await.unwrap();
    until(&there, &name, "a new copy", |copy| {
        instances(copy) == Some(1)
    })
    .await;
    mirror.end().await;

    // While nobody looked the original has gone: the next leader deletes the copy.
    remove(&here, &name).await;
    let next = clusters.mirror();
    until(&there, &name, "gone", |copy| copy.is_none()).await;
    next.end().await;
}

/// The spec of a host that is terminated is frozen, also that of a copy: here it went by way of `ha`.
#[tokio::test]
async fn a_change_that_a_rule_forbids_in_one_step_makes_the_copy_anew() {
    let clusters = Clusters::new("frozen").await;
    let (here, there) = clusters.hypervisors();
    let name = clusters
        .host(
            &json!({"maintenance": "termination"}),
            &json!({"numInstances": 1}),
        )
        .await;
    let mirror = clusters.mirror();
    let copy = until(&there, &name, "a copy", |copy| instances(copy) == Some(1))
        .await
        .unwrap();
    mirror.end().await;
    merge(&here, &name, json!({"spec": {"maintenance": "ha"}})).await;
    merge(&here, &name, json!({"spec": {"maintenance": null}})).await;
    let mirror = clusters.mirror();
    let new = until(&there, &name, "the change", |new| {
        instances(new) == Some(1) && new.is_some_and(|new| new.spec.maintenance.is_none())
    })
    .await
    .unwrap();
    assert_ne!(new.uid(), copy.uid());
    assert_eq!(mirror.metrics.count("Hypervisor", "failed"), 0);
    mirror.end().await;
    remove(&here, &name).await;
}

#[tokio::test]
async fn an_ovs_node_waits_for_its_namespace_and_no_other_waits_for_it() {
    let clusters = Clusters::turned("ovs").await;
    let (hypervisors, copies) = clusters.hypervisors();
    let namespace = unique("ovs");
    let make = async |client: &Client| {
        let mut object = Namespace::default();
        object.metadata.name = Some(namespace.clone());
        let api: Api<Namespace> = Api::all(client.clone());
        api.create(&PostParams::default(), &object).await.unwrap();
    };
    make(&clusters.here).await;
    let here: Api<OvsNode> = Api::namespaced(clusters.here.clone(), &namespace);
    let there: Api<OvsNode> = Api::namespaced(clusters.there.clone(), &namespace);
    let node = json!({
        "apiVersion": "ovs.c5c3.io/v1alpha1", "kind": "OVSNode",
        "metadata": {"name": "n1"}, "spec": {"nodeRef": {"name": "n1"}},
    });
    let node: OvsNode = serde_json::from_value(node).unwrap();
    here.create(&PostParams::default(), &node).await.unwrap();
    let mirror = clusters.mirror();
    mirror
        .until("a failure", |one| {
            one.metrics.count("OVSNode", "failed") > 0
        })
        .await;
    let name = clusters.host(&json!({}), &json!({"numInstances": 1})).await;
    until(&copies, &name, "a copy", |copy| instances(copy) == Some(1)).await;
    make(&clusters.there).await;
    let copy = until(&there, "n1", "a copy", |copy| copy.is_some())
        .await
        .unwrap();
    assert_eq!(copy.spec, node.spec);
    here.delete("n1", &DeleteParams::default()).await.unwrap();
    until(&there, "n1", "gone", |copy| copy.is_none()).await;
    mirror.end().await;
    remove(&hypervisors, &name).await;
}

/// A way to the other cluster that can be cut.
struct Road {
    to: String,
    port: u16,
    kubeconfig: PathBuf,
    open: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Drop for Road {
    fn drop(&mut self) {
        self.cut();
    }
}

impl Road {
    async fn new(kubeconfig: &std::path::Path) -> Self {
        let text = std::fs::read_to_string(kubeconfig).unwrap();
        let (_, rest) = text.split_once("https://").unwrap();
        let end = rest.find(|c: char| c != '.' && c != ':' && !c.is_ascii_digit());
        let to = rest[..end.unwrap_or(rest.len())].to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        let text = text.replace(&to, &format!("127.0.0.1:{port}"));
        std::fs::write(&kubeconfig, text).unwrap();
        let mut road = Self {
            to,
            port,
            kubeconfig,
            open: None,
            _directory: directory,
        };
        road.carry(listener);
        road
    }

    fn carry(&mut self, listener: TcpListener) {
        let to = self.to.clone();
        self.open = Some(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let to = to.clone();
                connections.spawn(async move {
                    let mut far = TcpStream::connect(to).await?;
                    tokio::io::copy_bidirectional(&mut near, &mut far).await
                });
            }
        }));
    }

    fn cut(&mut self) {
        if let Some(task) = self.open.take() {
            task.abort();
        }
    }

    async fn open(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        self.carry(listener);
    }
}

#[tokio::test]
async fn what_happens_while_the_other_cluster_is_away_is_made_up_for() {
    let mut clusters = Clusters::new("away").await;
    let mut road = Road::new(&clusters.kubeconfig).await;
    clusters.kubeconfig = road.kubeconfig.clone();
    let (here, there) = clusters.hypervisors();
    let [changes, goes] = [
        clusters.host(&json!({}), &json!({"numInstances": 1})).await,
        clusters.host(&json!({}), &json!({"numInstances": 1})).await,
    ];
    let mirror = clusters.mirror();
    for name in [&changes, &goes] {
        until(&there, name, "a copy", |copy| instances(copy) == Some(1)).await;
    }
    road.cut();
    let away = |one: &Mirror| {
        one.trouble
            .now()
            .iter()
            .any(|text| text.contains("copies of H"))
    };
    mirror.until("the cluster is away", away).await;
    merge(&here, &changes, json!({"spec": {"version": "2"}})).await;
    remove(&here, &goes).await;
    let comes = clusters.host(&json!({}), &json!({"numInstances": 2})).await;
    mirror
        .until("failures", |one| {
            one.metrics.count("Hypervisor", "failed") > 2
        })
        .await;
    // Somebody meddles with a copy meanwhile.
    merge(&there, &changes, json!({"spec": {"skipTests": true}})).await;
    road.open().await;
    until(&there, &comes, "a copy", |copy| instances(copy) == Some(2)).await;
    until(&there, &goes, "gone", |copy| copy.is_none()).await;
    until(&there, &changes, "the change", |copy| {
        copy.is_some_and(|copy| {
            copy.spec.version.as_deref() == Some("2") && !copy.spec.skip_tests()
        })
    })
    .await;
    mirror
        .until("no trouble", |one| one.trouble.now().is_empty())
        .await;
    mirror.end().await;
    remove(&here, &changes).await;
    remove(&here, &comes).await;
}

#[tokio::test]
async fn without_the_other_cluster_nothing_happens_and_it_is_said() {
    let clusters = Clusters::new("alone").await;
    let directory = tempfile::tempdir().unwrap();
    let config = MirrorConfig {
        kubeconfig: directory.path().join("not-there"),
        name: clusters.name.clone(),
        interval: INTERVAL,
        label_selector: String::new(),
        term: Term::unlimited(),
    };
    let mirror = Mirror::start(config, clusters.here.clone());
    mirror
        .until("a reason", |one| {
            one.trouble
                .now()
                .iter()
                .any(|text| text.contains("not-there"))
        })
        .await;
    mirror.end().await;
}

#[tokio::test]
async fn who_does_not_lead_any_more_writes_nothing_to_the_other_cluster() {
    let clusters = Clusters::new("late").await;
    let name = clusters.host(&json!({}), &json!({})).await;
    // Of somebody who never led, which is the same as of somebody whose term is over.
    let mirror = clusters.mirror_of(Term::default());
    mirror
        .until("a refusal", |one| {
            one.metrics.count("Hypervisor", "failed") > 0
        })
        .await;
    let (here, there) = clusters.hypervisors();
    assert!(there.get_opt(&name).await.unwrap().is_none());
    assert_eq!(mirror.metrics.count("Hypervisor", "written"), 0);
    mirror.end().await;
    remove(&here, &name).await;
}
