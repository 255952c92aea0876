//! Objects as text. Of each kind there are thousands, and as a value one takes several times as
//! much: it is read when its host has its turn. Of a host that another operator looks after, only
//! that there is something is kept; it is read from the API server should the host become ours.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use cobalt_api::conditions::{self, HypervisorCondition};
use cobalt_api::hypervisor::Maintenance;
use cobalt_api::names::labels;
use cobalt_runtime::{ObjectKey, Store, chain};
use k8s_openapi::api::core::v1::Node;
use kube::api::GetParams;
use kube::core::{DynamicObject, Request};
use kube::{Api, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::fleet::{Fleet, Identity};
use crate::host::Known;

const DEADLINE: Duration = Duration::from_secs(15);

/// An object.
#[derive(Debug, PartialEq, Eq)]
pub struct Kept<K> {
    /// The Node that owns it.
    node: Option<Arc<str>>,
    /// `None`: its host is not ours.
    text: Option<Box<str>>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Kept<K> {
    /// There is one, and it is not ours.
    #[must_use]
    pub fn of_another() -> Self {
        Self {
            node: None,
            text: None,
            kind: PhantomData,
        }
    }

    /// Whether it is ours.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.text.is_some()
    }

    /// The Node that owns it, if it is ours.
    #[must_use]
    pub fn node(&self) -> Option<Arc<str>> {
        self.node.clone()
    }
}

impl<K: Serialize + DeserializeOwned> Kept<K> {
    /// Of an object.
    #[must_use]
    pub fn new(object: &K) -> Self {
        // What came as text can be written as text; if not, it counts as missing.
        let text = serde_json::to_string(object).unwrap_or_default();
        Self {
            node: None,
            text: Some(text.into()),
            kind: PhantomData,
        }
    }

    /// Of an object that a Node owns, if it is one of `partition`.
    #[must_use]
    pub fn owned(object: &K, partition: &Partition) -> Self
    where
        K: ResourceExt,
    {
        let mut owners = object.owner_references().iter();
        let owner = owners.find(|owner| owner.kind == "Node");
        let node = owner.map(|owner| owner.name.as_str());
        if node.is_some_and(|node| !partition.has(node)) {
            return Self::of_another();
        }
        Self {
            node: node.map(Arc::from),
            ..Self::new(object)
        }
    }

    /// The object, if it is ours.
    #[must_use]
    pub fn read(&self) -> Option<Arc<K>> {
        let text = self.text.as_deref()?;
        serde_json::from_str(text).ok().map(Arc::new)
    }
}

/// The object of a host of ours. What was another's when it was seen is read from the API server.
///
/// # Errors
///
/// When the API server does not answer.
pub async fn find<K>(
    store: &Store<Kept<K>>,
    key: &ObjectKey,
    api: impl FnOnce() -> Api<DynamicObject>,
    trim: impl FnOnce(K) -> K,
) -> Result<Option<Arc<K>>, String>
where
    K: ResourceExt + Serialize + DeserializeOwned,
{
    let Some(found) = store.get(key) else {
        return Ok(None);
    };
    if found.is_ours() {
        return Ok(found.read());
    }
    let api = api();
    let get = Request::new(api.resource_url()).get(key.name(), &GetParams::default());
    let get = get.map_err(|error| chain(&error))?;
    let client = api.into_client();
    let whole = match timeout(DEADLINE, client.request(get)).await {
        Ok(Ok(whole)) => whole,
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => return Ok(None),
        Ok(Err(error)) => return Err(chain(&error)),
        Err(_) => return Err("the API server does not answer".to_owned()),
    };
    let new = Kept::owned(&trim(whole), &Partition::default());
    let read = new.read();
    store.replace(key, &found, new);
    Ok(read)
}

/// A Hypervisor: what is looked at for all hosts at once, and the whole of it.
#[derive(Debug, PartialEq)]
pub struct Row {
    hostname: Option<Box<str>>,
    zone: Option<Box<str>>,
    /// It takes workload.
    pub ready: bool,
    /// It is in maintenance, of whatever kind.
    pub in_maintenance: bool,
    /// It waits for something, which may be Nova.
    pub waits: bool,
    whole: Kept<Known>,
}

impl Row {
    /// Of a Hypervisor.
    #[must_use]
    pub fn new(known: &Known) -> Self {
        let label = |key| {
            known
                .object
                .labels()
                .get(key)
                .map(|text| text.as_str().into())
        };
        let status = known.object.status.as_ref();
        let ready = status.is_some_and(|status| {
            conditions::is_true(&status.conditions, HypervisorCondition::Ready)
        });
        let waits = status.is_none_or(|status| status.waiting_for.is_some());
        Self {
            hostname: label(labels::HOSTNAME),
            zone: label(labels::ZONE),
            ready,
            in_maintenance: known.object.spec.maintenance() != Maintenance::Unset,
            waits: waits || !ready,
            whole: Kept::new(known),
        }
    }

    /// The Hypervisor.
    #[must_use]
    pub fn read(&self) -> Option<Arc<Known>> {
        self.whole.read()
    }

    /// Names by which Nova may know the host of this name.
    #[must_use]
    pub fn names<'a>(&'a self, name: &'a str) -> [&'a str; 2] {
        [name, self.hostname.as_deref().unwrap_or(name)]
    }

    /// The availability zone.
    #[must_use]
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }
}

/// Which of the other Hypervisors stand for the same host of Nova as the one of these names. The label
/// `kubernetes.io/hostname` is one of the names, and a kubelet may write it.
#[must_use]
pub fn rivals<'a>(
    fleet: &Fleet,
    names: &[&str],
    others: impl IntoIterator<Item = (&'a str, [&'a str; 2])>,
) -> Vec<String> {
    let host = |names: &[&str]| Some(fleet.find(names).ok()?.map(|found| found.host));
    // Of one that stands for several hosts nothing is done anyway.
    let Some(mine) = host(names) else {
        return Vec::new();
    };
    let hostname = mine.as_deref().and_then(|host| fleet.hostname_of(host));
    let shares = |name: &str| {
        names.contains(&name) || mine.as_deref() == Some(name) || hostname == Some(name)
    };
    others
        .into_iter()
        .filter(|(_, names)| names.iter().any(|name| shares(name)))
        .filter(|(_, names)| host(names).as_ref() == Some(&mine))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// Why nothing is done for a host: these Hypervisors stand for the same host of Nova.
#[must_use]
pub fn conflict(rivals: &[String]) -> Option<String> {
    let others = rivals.join("\" and \"");
    (!others.is_empty()).then(|| {
        format!(
            "the Hypervisor \"{others}\" stands for the same host of Nova: nothing is done for \
             either until the label {} of the wrong Node is corrected",
            labels::HOSTNAME
        )
    })
}

/// Who the host of these names is in Nova.
///
/// # Errors
///
/// When the names stand for several hosts, or other Hypervisors for this one.
pub fn identity<'a>(
    fleet: &Fleet,
    names: &[&str],
    others: impl IntoIterator<Item = (&'a str, [&'a str; 2])>,
) -> Result<Option<Identity>, String> {
    match conflict(&rivals(fleet, names, others)) {
        Some(why) => Err(why),
        None => fleet.find(names),
    }
}

/// The hosts that the operator looks after.
#[derive(Debug, Clone, Default)]
pub struct Partition {
    /// `None`: all.
    chosen: Option<(Store<Kept<Node>>, Store<Row>)>,
}

impl Partition {
    /// Those of the stores.
    #[must_use]
    pub fn chosen(nodes: &Store<Kept<Node>>, hypervisors: &Store<Row>) -> Self {
        Self {
            chosen: Some((nodes.clone(), hypervisors.clone())),
        }
    }

    /// Whether it is one of them, as far as is known.
    #[must_use]
    pub fn has(&self, host: &str) -> bool {
        self.chosen.as_ref().is_none_or(|(nodes, hypervisors)| {
            nodes.named(host).is_some() || hypervisors.named(host).is_some()
        })
    }

    /// Waits until it is known which they are.
    pub async fn until_known(&self) {
        if let Some((nodes, hypervisors)) = &self.chosen {
            nodes.until_ready().await;
            hypervisors.until_ready().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use cobalt_api::hypervisor::Hypervisor;
    use cobalt_api::names::finalizers;
    use cobalt_api::ovsnode::OvsNode;
    use serde_json::json;

    use super::*;
    use crate::cache;
    use crate::host::Settings;

    fn hypervisor() -> Known {
        let object = json!({
            "apiVersion": "kvm.cloud.sap/v1",
            "kind": "Hypervisor",
            "metadata": {
                "name": "node-1", "uid": "u", "resourceVersion": "7", "generation": 3,
                "labels": { labels::HOSTNAME: "node-1.example.com", labels::ZONE: "a" },
                "annotations": { "cobaltcore.cloud.sap/retry-onboarding": "" },
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "finalizers": [finalizers::REGISTERED_HOST],
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "n" },
                ],
                "managedFields": [{
                    "manager": "cobaltcore/hypervisor", "operation": "Apply",
                    "fieldsV1": { "f:spec": { "f:customTraits": {} } },
                }],
            },
            "spec": { "lifecycleEnabled": true, "customTraits": ["CUSTOM_A"], "overcommit": { "cpu": 1.5 } },
            "status": {
                "phase": "Active", "numInstances": 3, "evicted": false, "ownedTraits": [],
                "aggregates": [{ "name": "a", "uuid": "u", "metadata": { "k": "v" } }],
                "instances": [{ "id": "i", "name": "n", "active": true }],
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "Ready", "message": "yes",
                    "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 3,
                }],
            },
        });
        let object: Hypervisor = serde_json::from_value(object).unwrap();
        cache::hypervisor(object)
    }

    #[test]
    fn what_is_kept_as_text_comes_back_as_it_was() {
        let known = hypervisor();
        assert!(known.owns_traits && !known.owns_aggregates);
        assert_eq!(*Row::new(&known).read().unwrap(), known);
        let empty = Known::default();
        assert_eq!(*Row::new(&empty).read().unwrap(), empty);

        let node: Node = serde_json::from_value(json!({
            "metadata": {
                "name": "node-1", "uid": "u", "labels": { labels::ZONE: "a", "other": "x" },
                "annotations": {}, "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": { "taints": [{ "key": "k", "effect": "NoExecute" }] },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }],
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "x",
                    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        }))
        .unwrap();
        let node = cache::node(node, &Settings::default());
        assert_eq!(*Kept::new(&node).read().unwrap(), node);

        let ovs: OvsNode = serde_json::from_value(json!({
            "apiVersion": "ovs.c5c3.io/v1alpha1",
            "kind": "OVSNode",
            "metadata": { "name": "node-1" },
            "spec": { "nodeRef": { "name": "node-1" } },
            "status": { "conditions": [{
                "type": "Ready", "status": "False", "reason": "NotReady", "message": "no",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }] },
        }))
        .unwrap();
        let ovs = cache::ovs(ovs);
        assert_eq!(*Kept::new(&ovs).read().unwrap(), ovs);
    }

    #[test]
    fn a_row_says_what_is_asked_of_all_hosts() {
        let mut known = hypervisor();
        let row = Row::new(&known);
        assert_eq!(row.names("node-1"), ["node-1", "node-1.example.com"]);
        assert_eq!(row.zone(), Some("a"));
        assert!(row.ready && !row.waits);

        let status = known.object.status.as_mut().unwrap();
        status.waiting_for = Some(
            serde_json::from_value(json!({
                "reason": "Nova", "since": "2026-01-01T00:00:00Z",
            }))
            .unwrap(),
        );
        let row = Row::new(&known);
        assert!(row.ready && row.waits);

        known.object.status = None;
        known.object.metadata.labels = None;
        let row = Row::new(&known);
        assert_eq!(row.names("node-1"), ["node-1", "node-1"]);
        assert_eq!(row.zone(), None);
        assert!(!row.ready && row.waits);
    }

    #[test]
    fn two_hypervisors_that_stand_for_one_host_are_rivals_of_each_other() {
        let mut fleet = Fleet::default();
        for (host, hostname) in [("a", "a.example.com"), ("b", "b.example.com")] {
            let service: cobalt_openstack::compute::ComputeService =
                serde_json::from_value(json!({
                    "id": host, "binary": "nova-compute", "host": host, "zone": "nova",
                    "status": "enabled", "state": "up", "forced_down": false,
                }))
                .unwrap();
            fleet.services.insert(host.into(), service.into());
            let one = crate::fleet::NovaHypervisor {
                id: host.into(),
                hostname: hostname.into(),
            };
            fleet.hypervisors.insert(host.into(), vec![one]);
        }
        // Of two Hypervisors with a name and a label each: whether they are rivals.
        let cases = [
            (["a", "a"], ["b", "b"], false),
            (["a", "a.example.com"], ["b", "b.example.com"], false),
            // Nova does not know c: its label says who it is.
            (["a", "a"], ["c", "a"], true),
            (["a", "a"], ["c", "a.example.com"], true),
            (["c", "a.example.com"], ["d", "a"], true),
            // It is itself, and claims another's name: an error for it alone.
            (["a", "a"], ["b", "a"], false),
            (["a", "a"], ["b", "a.example.com"], false),
            // Nova knows neither yet.
            (["c", "e"], ["d", "e"], true),
            (["c", "c"], ["d", "d"], false),
        ];
        for (one, other, expected) in cases {
            for (one, other) in [(one, other), (other, one)] {
                let found = rivals(&fleet, &one, [(other[0], other)]);
                let wanted: &[&str] = if expected { &[other[0]] } else { &[] };
                assert_eq!(found, wanted, "{one:?} {other:?}");
                // No Eviction moves anything off a host that two Hypervisors stand for.
                let who = identity(&fleet, &one, [(other[0], other)]);
                let refused = who.is_err_and(|why| why.contains("stands for the same host"));
                assert_eq!(refused, expected, "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn of_another_operators_host_nothing_is_kept() {
        let other = Kept::<Node>::of_another();
        assert!(!other.is_ours() && other.read().is_none() && other.node().is_none());
        assert_eq!(other, Kept::of_another());
        assert_ne!(other, Kept::new(&Node::default()));
    }
}
