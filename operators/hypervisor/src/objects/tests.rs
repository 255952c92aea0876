//! Tables and properties of what is wanted and of the comparison.

use std::sync::Arc;

use cobalt_api::conditions::{HypervisorCondition, Reason, Status};
use cobalt_api::hypervisor::{HypervisorSpec, HypervisorStatus, Maintenance};
use cobalt_api::names::taints;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use proptest::prelude::*;
use proptest::sample::Index;
use serde::de::DeserializeOwned;

use super::*;

const NODE: &str = "hv1.example.org";

fn config() -> ObjectsConfig {
    ObjectsConfig {
        certificate: Some(CertificateConfig {
            namespace: "agents".into(),
            issuer_name: "issuer".into(),
        }),
        access: Some(AccessConfig {
            namespace: "agents".into(),
            prefix: "node-agent-secrets-".into(),
            ceph_secret: None,
        }),
        lifecycle: LifecycleConfig {
            namespace: "kube-system".into(),
            pod: Some(HoldPod::busybox("busybox:1".into())),
        },
    }
}

fn node(name: &str) -> Node {
    let node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": "7f3e",
            "labels": { "nova.openstack.cloud.sap/virt-driver": "kvm", "kubernetes.io/hostname": "hv1" },
        },
        "status": { "addresses": [
            { "type": "InternalIP", "address": "10.0.0.1" },
            { "type": "Hostname", "address": "hv1" },
        ] },
    });
    serde_json::from_value(node).unwrap()
}

fn condition(kind: HypervisorCondition, status: Status, reason: Reason) -> Condition {
    Condition {
        type_: kind.as_str().to_owned(),
        status: status.as_str().to_owned(),
        reason: reason.as_str().to_owned(),
        message: String::new(),
        observed_generation: None,
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
    }
}

fn hypervisor(conditions: &[(HypervisorCondition, Status, Reason)]) -> Hypervisor {
    let mut hypervisor = Hypervisor::new(NODE, HypervisorSpec::default());
    let conditions = conditions
        .iter()
        .map(|&(kind, status, reason)| condition(kind, status, reason));
    hypervisor.status = Some(HypervisorStatus {
        conditions: conditions.collect(),
        ..HypervisorStatus::default()
    });
    hypervisor
}

fn typed<K: DeserializeOwned>(content: &Value) -> Arc<K> {
    Arc::new(serde_json::from_value(content.clone()).unwrap())
}

/// What reflectors have once these objects are applied, without defaults: the real API server adds
/// them in the integration tests.
fn seen(contents: impl IntoIterator<Item = (Kind, Value)>) -> Observed {
    let mut observed = Observed {
        certificates_are_served: true,
        ..Observed::default()
    };
    for (kind, mut content) in contents {
        content["metadata"]["uid"] = json!("object-uid");
        content["metadata"]["resourceVersion"] = json!("17");
        content["metadata"]["labels"]["of"] = json!("somebody else");
        content["metadata"]["annotations"]["of"] = json!("somebody else");
        let owners = content["metadata"]["ownerReferences"]
            .as_array_mut()
            .unwrap();
        owners.insert(
            0,
            json!({ "apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "1" }),
        );
        match kind {
            Kind::ServiceAccount => {
                let whole = Arc::unwrap_or_clone(typed(&content));
                observed.service_account = Some(Arc::new(trim_service_account(whole)));
            }
            Kind::Role => {
                observed.role = Some(Arc::new(trim_role(Arc::unwrap_or_clone(typed(&content)))));
            }
            Kind::RoleBinding => {
                let whole = Arc::unwrap_or_clone(typed(&content));
                observed.role_binding = Some(Arc::new(trim_role_binding(whole)));
            }
            Kind::Certificate => {
                content["status"] = json!({ "revision": 3 });
                let whole = Arc::unwrap_or_clone(typed(&content));
                observed.certificate = Some(Arc::new(trim_certificate(whole)));
            }
            Kind::PodDisruptionBudget => {
                let whole = Arc::unwrap_or_clone(typed(&content));
                observed.disruption_budget = Some(Arc::new(trim_disruption_budget(whole)));
            }
            Kind::Deployment => {
                let containers = &mut content["spec"]["template"]["spec"]["containers"];
                containers
                    .as_array_mut()
                    .unwrap()
                    .push(json!({ "name": "injected" }));
                let whole = Arc::unwrap_or_clone(typed(&content));
                observed.deployment = Some(Arc::new(trim_deployment(whole)));
            }
        }
    }
    observed
}

fn applied(wanted: &Wanted) -> Observed {
    seen(
        wanted
            .apply
            .iter()
            .map(|object| (object.key.kind, object.content.clone())),
    )
}

fn kinds(wanted: &Wanted) -> (Vec<Kind>, Vec<Kind>) {
    let applied = wanted.apply.iter().map(|object| object.key.kind).collect();
    (applied, wanted.remove.iter().map(|key| key.kind).collect())
}

fn content(wanted: &Wanted, kind: Kind) -> &Value {
    let found = wanted.apply.iter().find(|object| object.key.kind == kind);
    &found
        .unwrap_or_else(|| panic!("no {kind:?} in {wanted:?}"))
        .content
}

const ACCESS: [Kind; 3] = [Kind::ServiceAccount, Kind::Role, Kind::RoleBinding];
const HOLD: [Kind; 2] = [Kind::PodDisruptionBudget, Kind::Deployment];
const ALL: [Kind; 6] = [
    Kind::ServiceAccount,
    Kind::Role,
    Kind::RoleBinding,
    Kind::Certificate,
    Kind::PodDisruptionBudget,
    Kind::Deployment,
];

#[test]
fn which_objects_a_node_has() {
    let plain = || (node(NODE), Some(hypervisor(&[])), config());
    let (mut node_, hypervisor_, config_) = plain();
    let of = |node: &Node, hypervisor: Option<&Hypervisor>, config: &ObjectsConfig| {
        kinds(&wanted(node, hypervisor, config))
    };
    let none: [Kind; 0] = [];
    assert_eq!(
        of(&node_, hypervisor_.as_ref(), &config_),
        (ALL.to_vec(), vec![])
    );

    // Nothing is known of the host: its certificate may be the agent's, and what holds it stays.
    assert_eq!(of(&node_, None, &config_), (ACCESS.to_vec(), vec![]));

    // The agent asks for the certificate.
    let mut by_agent = hypervisor(&[]);
    by_agent.spec.create_cert_manager_certificate = Some(true);
    let expected = ALL
        .into_iter()
        .filter(|&kind| kind != Kind::Certificate)
        .collect();
    assert_eq!(of(&node_, Some(&by_agent), &config_), (expected, vec![]));

    // The operator may not act on the host.
    let mut unmanaged = hypervisor(&[]);
    unmanaged.spec.lifecycle_enabled = Some(false);
    let expected = [&ACCESS[..], &[Kind::Certificate]].concat();
    assert_eq!(
        of(&node_, Some(&unmanaged), &config_),
        (expected.clone(), HOLD.to_vec())
    );

    // No image.
    let mut no_image = config();
    no_image.lifecycle.pod = None;
    assert_eq!(
        of(&node_, hypervisor_.as_ref(), &no_image),
        (expected, HOLD.to_vec())
    );

    // Not ours to make: what is there stays.
    let mut off = config();
    off.certificate = None;
    off.access = None;
    assert_eq!(
        of(&node_, hypervisor_.as_ref(), &off),
        (HOLD.to_vec(), vec![])
    );

    // A node that goes away gets nothing new and is held until it may go.
    node_.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert_eq!(
        of(&node_, hypervisor_.as_ref(), &config_),
        (HOLD.to_vec(), vec![])
    );

    // It is no hypervisor any more.
    let (mut node_, ..) = plain();
    node_.metadata.labels = None;
    let (applied, mut removed) = of(&node_, None, &config_);
    removed.sort();
    assert_eq!(
        (applied.as_slice(), removed.as_slice()),
        (&none[..], &ALL[..])
    );
    let mut found: Vec<_> = keys(NODE, &config_)
        .into_iter()
        .map(|key| key.kind)
        .collect();
    found.sort();
    assert_eq!(found, ALL);
}

#[test]
fn a_node_is_held_until_it_may_go() {
    use HypervisorCondition::{HaEnabled, Offboarded, Onboarding};
    use Release::{Free, HighAvailability, NotOffboarded};
    let onboarded = (Onboarding, Status::False, Reason::Succeeded);
    let offboarded = (Offboarded, Status::True, Reason::Offboarded);
    let ha = |status| (HaEnabled, status, Reason::Succeeded);
    let table: &[(&[_], bool, Release)] = &[
        (&[], false, NotOffboarded),
        (
            &[(Onboarding, Status::True, Reason::Initial)],
            false,
            NotOffboarded,
        ),
        (
            &[(Onboarding, Status::True, Reason::Succeeded)],
            false,
            NotOffboarded,
        ),
        (
            &[(Onboarding, Status::False, Reason::Aborted)],
            false,
            NotOffboarded,
        ),
        (
            &[(Onboarding, Status::Unknown, Reason::Succeeded)],
            false,
            NotOffboarded,
        ),
        (&[onboarded], true, NotOffboarded),
        (&[onboarded, ha(Status::False)], true, NotOffboarded),
        (
            &[onboarded, (Offboarded, Status::False, Reason::Offboarding)],
            true,
            NotOffboarded,
        ),
        (&[onboarded, offboarded], true, Free),
        (&[onboarded, offboarded, ha(Status::False)], true, Free),
        (
            &[onboarded, offboarded, ha(Status::True)],
            true,
            HighAvailability,
        ),
        (
            &[onboarded, offboarded, ha(Status::Unknown)],
            true,
            HighAvailability,
        ),
        (&[offboarded], false, Free),
    ];
    for (conditions, onboarded, release) in table {
        let hypervisor = hypervisor(conditions);
        let found = hold(lifecycle::conditions_of(&hypervisor));
        let expected = Hold {
            onboarded: *onboarded,
            release: *release,
        };
        assert_eq!(found, expected, "{conditions:?}");

        let wanted = wanted(&node(NODE), Some(&hypervisor), &config());
        let count = json!(i32::from(*release != Free));
        let budget = &content(&wanted, Kind::PodDisruptionBudget)["spec"];
        assert_eq!(budget["minAvailable"], count, "{conditions:?}");
        let deployment = &content(&wanted, Kind::Deployment)["spec"];
        assert_eq!(deployment["replicas"], count, "{conditions:?}");
        let container = &deployment["template"]["spec"]["containers"][0];
        let probe = if *onboarded { "true" } else { "false" };
        assert_eq!(
            container["startupProbe"]["exec"]["command"],
            json!([probe]),
            "{conditions:?}"
        );
    }
}

#[test]
fn the_taint_follows_an_eviction_that_succeeded() {
    use HypervisorCondition::Evicting;
    use Maintenance::{Auto, Ha, Manual, Termination, Unset};
    let done = Some((Status::False, Reason::Succeeded));
    let table = [
        (Some(Termination), done, true),
        (Some(Termination), None, false),
        (
            Some(Termination),
            Some((Status::True, Reason::Running)),
            false,
        ),
        (
            Some(Termination),
            Some((Status::True, Reason::Succeeded)),
            false,
        ),
        (
            Some(Termination),
            Some((Status::Unknown, Reason::Succeeded)),
            false,
        ),
        (
            Some(Termination),
            Some((Status::False, Reason::Failed)),
            false,
        ),
        (
            Some(Termination),
            Some((Status::False, Reason::PartiallyFailed)),
            false,
        ),
        (
            Some(Termination),
            Some((Status::False, Reason::Cancelled)),
            false,
        ),
        (
            Some(Termination),
            Some((Status::False, Reason::TimedOut)),
            false,
        ),
        (Some(Manual), done, false),
        (Some(Auto), done, false),
        (Some(Ha), done, false),
        (Some(Unset), done, false),
        (None, done, false),
    ];
    let foreign = Taint {
        key: taints::OFFBOARDING.into(),
        effect: "NoSchedule".into(),
        ..Taint::default()
    };
    let ours = Taint {
        effect: "NoExecute".into(),
        ..foreign.clone()
    };
    for (maintenance, evicting, expected) in table {
        let conditions: Vec<_> = evicting
            .map(|(status, reason)| (Evicting, status, reason))
            .into_iter()
            .collect();
        let mut hypervisor = hypervisor(&conditions);
        hypervisor.spec.maintenance = maintenance;
        for (taints, has) in [
            (vec![], false),
            (vec![foreign.clone()], false),
            (vec![foreign.clone(), ours.clone()], true),
        ] {
            let mut node = node(NODE);
            node.spec.get_or_insert_default().taints = Some(taints);
            let change = wanted(&node, Some(&hypervisor), &config()).taint;
            let change = change.map(|change| change.present);
            let what = format!("{maintenance:?} {evicting:?} {has}");
            assert_eq!(change, (has != expected).then_some(expected), "{what}");
            assert_eq!(is_due(&node, &hypervisor), has && expected, "{what}");
            assert_eq!(wanted(&node, None, &config()).taint, None, "{what}");
        }
        hypervisor.spec.lifecycle_enabled = Some(false);
        assert_eq!(
            wanted(&node(NODE), Some(&hypervisor), &config()).taint,
            None
        );
    }
}

#[test]
fn a_patch_of_taints_names_one_entry() {
    let taint = |key: &str, effect: &str| Taint {
        key: key.into(),
        effect: effect.into(),
        ..Taint::default()
    };
    let other = taint("other", "NoExecute");
    let ours = taint(taints::OFFBOARDING, "NoExecute");
    assert_eq!(taint::patch(std::slice::from_ref(&ours), true), None);
    assert_eq!(taint::patch(std::slice::from_ref(&other), false), None);
    let add = taint::patch(std::slice::from_ref(&other), true).unwrap();
    assert_eq!(add[0]["path"], "/spec/taints/-");
    let remove = taint::patch(&[other, ours], false).unwrap();
    assert_eq!(
        remove[2],
        json!({ "op": "remove", "path": "/spec/taints/1" })
    );
}

#[test]
fn a_certificate_signs_nothing_and_has_a_common_name_that_fits() {
    let of = |name: &str| {
        let wanted = wanted(&node(name), Some(&hypervisor(&[])), &config());
        content(&wanted, Kind::Certificate)["spec"].clone()
    };
    let spec = of(NODE);
    assert_eq!(spec["secretName"], "tls-libvirt-hv1.example.org");
    assert_eq!(spec["commonName"], NODE);
    assert_eq!(spec["dnsNames"], json!(["hv1", NODE]));
    assert_eq!(spec["ipAddresses"], json!(["10.0.0.1"]));
    let usages = json!([
        "server auth",
        "client auth",
        "digital signature",
        "key encipherment"
    ]);
    assert_eq!(spec["usages"], usages);
    let long = "a".repeat(65);
    let spec = of(&long);
    assert_eq!(spec.get("commonName"), None);
    assert_eq!(spec["dnsNames"], json!([long, "hv1"]));
}

#[test]
fn a_name_that_is_too_long_is_said_and_holds_up_nothing_else() {
    let long = format!("{}.example.org", "a".repeat(235));
    let wanted = wanted(&node(&long), Some(&hypervisor(&[])), &config());
    assert_eq!(kinds(&wanted).0, HOLD);
    assert_eq!(wanted.problems.len(), 4, "{:?}", wanted.problems);
    for problem in &wanted.problems {
        let text = problem.to_string();
        assert!(text.contains(&long), "{text}");
    }
    let mut config = config();
    config.access.as_mut().unwrap().prefix = "Not_a_name-".into();
    let wanted = super::wanted(&node(NODE), Some(&hypervisor(&[])), &config);
    assert_eq!(wanted.problems.len(), 3, "{:?}", wanted.problems);
}

#[test]
fn a_node_without_an_identity_gets_nothing() {
    let mut node = node(NODE);
    node.metadata.uid = None;
    let wanted = wanted(&node, Some(&hypervisor(&[])), &config());
    assert_eq!(
        (wanted.apply.len(), wanted.problems),
        (0, vec![Problem::Nameless])
    );
}

#[test]
fn without_cert_manager_the_rest_is_made() {
    let wanted = wanted(&node(NODE), Some(&hypervisor(&[])), &config());
    let found = difference(&wanted, &Observed::default());
    assert_eq!(found.changes.len(), ALL.len() - 1);
    assert_eq!(
        found.problems,
        [Problem::NoCertManager { node: NODE.into() }]
    );
}

#[test]
fn only_what_is_ours_is_removed() {
    let before = wanted(&node(NODE), Some(&hypervisor(&[])), &config());
    let mut plain = node(NODE);
    plain.metadata.labels = None;
    let nothing = wanted(&plain, None, &config());

    let removed = |change: &dyn Fn(&mut Value)| {
        let contents = before.apply.iter().map(|object| {
            let mut content = object.content.clone();
            change(&mut content);
            (object.key.kind, content)
        });
        let found = difference(&nothing, &seen(contents));
        let mut kinds: Vec<_> = found
            .changes
            .iter()
            .map(|change| match change {
                Change::Remove { key, uid } if uid == "object-uid" => key.kind,
                other => panic!("{other:?}"),
            })
            .collect();
        kinds.sort();
        kinds
    };
    assert_eq!(removed(&|_| {}), ALL);
    // The operator before us did not mark what it made as its own.
    assert_eq!(
        removed(
            &|content| content["metadata"]["labels"]["app.kubernetes.io/managed-by"] =
                json!("Helm")
        ),
        HOLD
    );
    let none: [Kind; 0] = [];
    assert_eq!(
        removed(&|content| content["metadata"]["ownerReferences"] = json!([])),
        none
    );
    assert_eq!(
        removed(&|content| content["metadata"]["ownerReferences"][0]["name"] = json!("hv2")),
        none
    );
    assert_eq!(
        removed(&|content| content["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")),
        none
    );
}

#[test]
fn pods_that_must_leave() {
    let pod = |phase: &str, tolerations: Value| -> Pod {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "nova-compute", "namespace": "nova" },
            "spec": { "containers": [], "tolerations": tolerations },
            "status": { "phase": phase },
        });
        serde_json::from_value(pod).unwrap()
    };
    let key = taints::OFFBOARDING;
    let table = [
        ("Running", json!([]), true),
        ("Pending", json!([]), true),
        ("Succeeded", json!([]), false),
        ("Failed", json!([]), false),
        ("Running", json!([{ "operator": "Exists" }]), false),
        (
            "Running",
            json!([{ "operator": "Exists", "effect": "NoExecute" }]),
            false,
        ),
        (
            "Running",
            json!([{ "operator": "Exists", "effect": "NoSchedule" }]),
            true,
        ),
        (
            "Running",
            json!([{ "operator": "Exists", "key": key }]),
            false,
        ),
        ("Running", json!([{ "key": key }]), false),
        (
            "Running",
            json!([{ "key": key, "operator": "Equal", "value": "" }]),
            false,
        ),
        (
            "Running",
            json!([{ "key": key, "operator": "Equal", "value": "x" }]),
            true,
        ),
        (
            "Running",
            json!([{ "key": key, "operator": "Gt", "value": "1" }]),
            true,
        ),
        (
            "Running",
            json!([{ "key": "other", "operator": "Exists" }]),
            true,
        ),
        (
            "Running",
            json!([{ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 }]),
            true,
        ),
        // The shortest time counts.
        (
            "Running",
            json!([{ "operator": "Exists" }, { "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3 }]),
            true,
        ),
        (
            "Running",
            json!([{ "operator": "Exists" }, { "key": "other", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3 }]),
            false,
        ),
    ];
    for (phase, tolerations, leaves) in table {
        let found = AgentPod::that_must_leave(&pod(phase, tolerations.clone()));
        assert_eq!(found.is_some(), leaves, "{phase} {tolerations}");
    }
}

#[test]
fn the_condition_names_a_few_pods_and_counts_all() {
    let none = judge(&[], Some(3));
    assert_eq!(
        (none.status, none.reason),
        (Status::True, Reason::NoAgentPods)
    );
    assert_eq!(none.observed_generation, Some(3));
    let pods: Vec<_> = (0..12)
        .rev()
        .map(|number| AgentPod {
            namespace: "nova".into(),
            name: format!("pod-{number:02}"),
        })
        .collect();
    let some = judge(&pods, None);
    assert_eq!(
        (some.status, some.reason),
        (Status::False, Reason::AgentPodsRunning)
    );
    assert!(
        some.message.starts_with("12 agent pod(s)"),
        "{}",
        some.message
    );
    assert!(
        some.message.contains("nova/pod-00, nova/pod-01"),
        "{}",
        some.message
    );
    assert!(
        some.message.ends_with("nova/pod-09 and 2 more"),
        "{}",
        some.message
    );
}

/// The pointers of all leaves, except those by which an object is found.
fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            leaves(
                value,
                &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")),
                found,
            );
        }),
        Value::Array(list) => {
            found.push(at.to_owned());
            for (index, value) in list.iter().enumerate() {
                leaves(value, &format!("{at}/{index}"), found);
            }
        }
        _ if [
            "/apiVersion",
            "/kind",
            "/metadata/name",
            "/metadata/namespace",
        ]
        .contains(&at) => {}
        _ => found.push(at.to_owned()),
    }
}

fn change(value: &mut Value) {
    *value = match &*value {
        Value::String(text) => json!(format!("{text}x")),
        Value::Number(number) => json!(number.as_i64().unwrap() ^ 1),
        Value::Bool(flag) => json!(!flag),
        Value::Array(list) => json!(list[1..]),
        other => panic!("{other}"),
    };
}

prop_compose! {
    fn any_node()(
        name in "[a-z0-9]{1,70}(\\.[a-z0-9]{1,20}){0,3}",
        addresses in proptest::collection::vec(
            prop_oneof![
                any::<std::net::IpAddr>().prop_map(|ip| ("InternalIP", ip.to_string())),
                any::<std::net::IpAddr>().prop_map(|ip| ("ExternalIP", ip.to_string())),
                "[a-zA-Z0-9.-]{0,12}".prop_map(|name| ("Hostname", name)),
            ],
            0..6,
        ),
        hostname in proptest::option::of("[a-z0-9]{1,20}"),
    ) -> Node {
        let mut node = node(&name);
        let labels = node.metadata.labels.as_mut().unwrap();
        labels.remove("kubernetes.io/hostname");
        labels.extend(hostname.map(|name| ("kubernetes.io/hostname".to_owned(), name)));
        let addresses: Vec<_> = addresses
            .iter()
            .map(|(kind, address)| json!({ "type": kind, "address": address }))
            .collect();
        node.status = serde_json::from_value(json!({ "addresses": addresses })).unwrap();
        node
    }
}

fn any_conditions() -> impl Strategy<Value = Vec<(HypervisorCondition, Status, Reason)>> {
    use HypervisorCondition::{Evicting, HaEnabled, Offboarded, Onboarding};
    let kinds = [Evicting, HaEnabled, Offboarded, Onboarding];
    let one = |kind: HypervisorCondition| {
        let some = (
            proptest::sample::select(Status::ALL),
            proptest::sample::select(kind.reasons()),
        );
        proptest::option::of(some.prop_map(move |(status, reason)| (kind, status, reason)))
    };
    kinds
        .map(one)
        .prop_map(|found| found.into_iter().flatten().collect())
}

proptest! {
    #[test]
    fn what_was_applied_is_not_applied_again(
        node in any_node(),
        conditions in any_conditions(),
        ceph in proptest::option::of("[a-z]{1,8}"),
        pull in proptest::collection::vec("[a-z]{1,8}", 0..2),
    ) {
        let mut config = config();
        config.access.as_mut().unwrap().ceph_secret = ceph;
        config.lifecycle.pod.as_mut().unwrap().pull_secrets = pull;
        let wanted = wanted(&node, Some(&hypervisor(&conditions)), &config);
        prop_assert_eq!(&wanted.problems, &[]);
        prop_assert_eq!(wanted.apply.len(), ALL.len());
        prop_assert_eq!(difference(&wanted, &applied(&wanted)), Difference::default());
    }

    #[test]
    fn whatever_somebody_changes_is_noticed(
        conditions in any_conditions(),
        object in any::<Index>(),
        leaf in any::<Index>(),
    ) {
        let wanted = wanted(&node(NODE), Some(&hypervisor(&conditions)), &config());
        let object = object.get(&wanted.apply);
        let mut pointers = Vec::new();
        leaves(&object.content, "", &mut pointers);
        let pointer = leaf.get(&pointers);
        let mut changed = object.content.clone();
        change(changed.pointer_mut(pointer).unwrap());
        let contents = wanted.apply.iter().map(|other| {
            let same = other.key == object.key;
            (other.key.kind, if same { changed.clone() } else { other.content.clone() })
        });
        let found = difference(&wanted, &seen(contents));
        prop_assert_eq!(found.changes, vec![Change::Apply(object.clone())], "{}", pointer);
    }

    #[test]
    fn what_is_not_wanted_any_more_is_noticed(node in any_node()) {
        let mut pull = config();
        pull.lifecycle.pod.as_mut().unwrap().pull_secrets = vec!["pull".into()];
        let hypervisor = hypervisor(&[]);
        let before = wanted(&node, Some(&hypervisor), &pull);
        let after = wanted(&node, Some(&hypervisor), &config());
        let found = difference(&after, &applied(&before));
        prop_assert_eq!(found.changes.len(), 1);
        let Change::Apply(object) = &found.changes[0] else { panic!() };
        prop_assert_eq!(object.key.kind, Kind::Deployment);
    }

    #[test]
    fn the_order_of_addresses_changes_nothing(node in any_node()) {
        let mut reversed = node.clone();
        reversed.status.as_mut().unwrap().addresses.as_mut().unwrap().reverse();
        let hypervisor = hypervisor(&[]);
        prop_assert_eq!(
            wanted(&node, Some(&hypervisor), &config()),
            wanted(&reversed, Some(&hypervisor), &config())
        );
    }
}
