//! Kubernetes Events, on a real API server.

use std::collections::BTreeMap;

use cobalt_runtime::{Note, Recorder, Severity};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;

use crate::support::{namespace, server, soon};

#[tokio::test(flavor = "multi_thread")]
async fn events_of_one_reason_keep_their_own_objects_and_texts() {
    let (_, client) = server().await;
    let namespace = namespace(&client, "events").await;
    let (recorder, write) = Recorder::new(client.clone(), "test", "one");
    for (name, text) in [
        ("hv1", "no disk"),
        ("hv1", "no network"),
        ("hv2", "no disk"),
        ("hv1", "no disk"),
        ("hv1", "no disk"),
    ] {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
            name: Some(name.to_owned()),
            namespace: Some(namespace.clone()),
            ..ObjectReference::default()
        };
        let note = Note {
            severity: Severity::Warning,
            reason: "Failed",
            action: "Try",
            text: text.to_owned(),
        };
        recorder.report(&about, note);
    }
    drop(recorder);
    soon("all Events are written", write).await;

    let api: Api<Event> = Api::namespaced(client, &namespace);
    let events = api.list(&ListParams::default()).await.unwrap();
    let told: BTreeMap<(String, String), i32> = events
        .into_iter()
        .map(|event| {
            let name = event.regarding.and_then(|about| about.name).unwrap();
            let count = event.series.map_or(1, |series| series.count);
            ((name, event.note.unwrap()), count)
        })
        .collect();
    let wanted = [
        (("hv1", "no disk"), 3),
        (("hv1", "no network"), 1),
        (("hv2", "no disk"), 1),
    ];
    let wanted = wanted.map(|((name, text), count)| ((name.to_owned(), text.to_owned()), count));
    assert_eq!(told, BTreeMap::from(wanted));
}
