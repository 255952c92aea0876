//! What a copy says and what is done about it.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn resource() -> ApiResource {
    ApiResource::erase::<Hypervisor>(&())
}

fn original(labels: &Value, spec: &Value, status: &Value) -> DynamicObject {
    let object = json!({
        "apiVersion": "kvm.cloud.sap/v1", "kind": "Hypervisor",
        "metadata": {
            "name": "hv1", "uid": "u", "resourceVersion": "7", "generation": 3,
            "finalizers": ["cobaltcore.cloud.sap/registered-host"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "hv1", "uid": "n"}],
            "annotations": {"a": "b"}, "labels": labels,
        },
        "spec": spec, "status": status,
    });
    serde_json::from_value(object).unwrap()
}

#[test]
fn a_copy_has_the_name_labels_spec_and_status_and_nothing_else() {
    let hv = original(
        &json!({"zone": "a"}),
        &json!({"version": "1"}),
        &json!({"evicted": true}),
    );
    let object = copy::object(&hv, &resource(), "hv-cluster", None);
    let expected = json!({
        "apiVersion": "kvm.cloud.sap/v1", "kind": "Hypervisor",
        "metadata": {
            "name": "hv1",
            "labels": {"zone": "a", "cobaltcore.cloud.sap/mirror-of": "hv-cluster"},
        },
        "spec": {"version": "1"},
    });
    assert_eq!(object, expected);
    let exactly = copy::object(&hv, &resource(), "hv-cluster", Some("there"));
    assert_eq!(exactly["metadata"]["uid"], "there");
    let status = copy::status(&hv, &resource());
    let expected = json!({
        "apiVersion": "kvm.cloud.sap/v1", "kind": "Hypervisor",
        "metadata": {"name": "hv1"}, "status": {"evicted": true},
    });
    assert_eq!(status, expected);
}

#[test]
fn a_copy_in_a_namespace_stays_in_it() {
    let mut node = original(&json!({}), &json!({}), &json!(null));
    node.metadata.namespace = Some("ovs".to_owned());
    let object = copy::object(&node, &resource(), "c", None);
    assert_eq!(object["metadata"]["namespace"], "ovs");
    let status = copy::status(&node, &resource());
    assert_eq!(status["metadata"]["namespace"], "ovs");
}

/// Each change of what is copied is seen, and no other.
#[test]
fn the_digest_sees_what_is_copied_and_nothing_else() {
    let labels = json!({"zone": "a"});
    let spec = json!({"a": 1, "b": [1, 2], "c": {"d": "e"}});
    let status = json!({"evicted": false});
    let base = digest(&original(&labels, &spec, &status));
    let same = [
        original(
            &json!({"zone": "a", labels::MIRROR_OF: "x"}),
            &spec,
            &status,
        ),
        original(
            &labels,
            &json!({"c": {"d": "e"}, "b": [1, 2], "a": 1}),
            &status,
        ),
        {
            let mut other = original(&labels, &spec, &status);
            other.metadata.resource_version = Some("8".to_owned());
            other.metadata.annotations = None;
            other.metadata.finalizers = None;
            other
        },
    ];
    for object in same {
        assert_eq!(digest(&object), base, "{object:?}");
    }
    let different = [
        original(&json!({"zone": "b"}), &spec, &status),
        original(&json!({}), &spec, &status),
        original(
            &labels,
            &json!({"a": 1, "b": [2, 1], "c": {"d": "e"}}),
            &status,
        ),
        original(
            &labels,
            &json!({"a": "1", "b": [1, 2], "c": {"d": "e"}}),
            &status,
        ),
        original(
            &labels,
            &json!({"a": 1, "b": [1, 2], "c": {"d": ""}}),
            &status,
        ),
        original(&labels, &spec, &json!({"evicted": true})),
        original(&labels, &spec, &json!({})),
    ];
    for object in different {
        assert_ne!(digest(&object), base, "{object:?}");
    }
    let none = original(&labels, &spec, &json!(null));
    assert_eq!(digest(&none), digest(&original(&labels, &spec, &json!({}))));
}

fn said(number: u8) -> Digest {
    digest(&original(
        &json!({}),
        &json!({"number": number}),
        &json!({}),
    ))
}

#[test]
fn a_copy_is_written_only_if_that_changes_something() {
    let [a, b, c] = [1, 2, 3].map(said);
    let wrote = |original, copy| Some(Written { original, copy });
    let cases = [
        (None, None, None, Step::Nothing),
        (None, None, wrote(a, a), Step::Nothing),
        (None, Some(a), None, Step::Delete),
        (None, Some(a), wrote(a, a), Step::Delete),
        (Some(a), None, None, Step::Write),
        (Some(a), None, wrote(a, a), Step::Write),
        (Some(a), Some(a), None, Step::Nothing),
        (Some(a), Some(a), wrote(b, b), Step::Nothing),
        (Some(a), Some(b), None, Step::Write),
        // The other cluster made something else of it: again would be the same.
        (Some(a), Some(b), wrote(a, b), Step::Nothing),
        // The original has changed since, or somebody has changed the copy.
        (Some(c), Some(b), wrote(a, b), Step::Write),
        (Some(a), Some(c), wrote(a, b), Step::Write),
    ];
    for (original, copy, written, step) in cases {
        assert_eq!(
            decide(original, copy, written),
            step,
            "{original:?} {copy:?} {written:?}"
        );
    }
}

proptest! {
    /// Whatever the other cluster makes of what is written, one write is enough.
    #[test]
    fn after_a_write_there_is_nothing_to_do(
        original in 0..4_u8,
        before in proptest::option::of(0..4_u8),
        made_of_it in 0..4_u8,
    ) {
        let original = said(original);
        if decide(Some(original), before.map(said), None) == Step::Write {
            let copy = said(made_of_it);
            let written = Written { original, copy };
            prop_assert_eq!(decide(Some(original), Some(copy), Some(written)), Step::Nothing);
        }
    }
}

fn desk() -> Desk {
    Desk::new(Duration::from_secs(5))
}

#[tokio::test(start_paused = true)]
async fn a_change_is_mirrored_at_once_and_the_next_ones_together_after_the_interval() {
    let desk = desk();
    let key = ObjectKey::cluster("hv1");
    let begin = Instant::now();
    desk.wake(&key);
    let turn = desk.queue.next().await;
    assert_eq!(begin.elapsed(), Duration::ZERO);
    let written = Written {
        original: said(1),
        copy: said(1),
    };
    desk.done(&key, written);
    drop(turn);
    for _ in 0..10 {
        desk.wake(&key);
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    drop(desk.queue.next().await);
    assert_eq!(begin.elapsed(), Duration::from_secs(5));
    assert!(desk.queue.next().now_or_never().is_none());
    assert_eq!(desk.written(&key), Some(written));
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_tried_again_less_and_less_often_and_is_not_forgotten() {
    let desk = desk();
    let key = ObjectKey::cluster("hv1");
    let mut last = Duration::ZERO;
    for full in [5, 10, 20, 40, 60, 60] {
        let begin = Instant::now();
        desk.failed(&key);
        drop(desk.queue.next().await);
        last = begin.elapsed();
        // Up to a half less, so that not all come back together.
        let full = Duration::from_secs(full);
        assert!(
            last >= full / 2 && last <= full + Duration::from_millis(1),
            "{last:?} {full:?}"
        );
    }
    assert!(last >= Duration::from_secs(30));
    desk.forget(&key);
    assert!(desk.memory().is_empty());
}
