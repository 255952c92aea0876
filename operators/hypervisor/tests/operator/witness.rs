//! A host is empty when Nova, Placement and libvirt agree, and not when Nova lists nothing.

use cobalt_api::eviction::{EvictionSpec, EvictionStatus, InstanceState as State, Method, Outcome};
use cobalt_api::names::leases;
use cobalt_openstack::compute::{ServerFilter, ServerStatus};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use crate::cloud::cell_cloud;
use crate::evictions::{Drain, agent_says, reasons, row};
use crate::support::{unique, until};

fn waits_for<'a>(reason: &'a str, what: &'a str) -> impl Fn(&EvictionStatus) -> bool {
    move |status| {
        let wait = status.waiting_for.as_ref();
        wait.is_some_and(|wait| {
            let text = wait.message.as_deref().unwrap_or_default();
            wait.reason == reason && text.contains(what)
        })
    }
}

/// An Event about an Eviction tells of it.
async fn event(drain: &Drain, eviction: &str, reason: &str) {
    let events: Api<Event> = Api::default_namespaced(drain.site.client.clone());
    until(reason, || async {
        let all = events.list(&ListParams::default()).await.unwrap();
        let told = |event: &Event| {
            let about = event.regarding.as_ref();
            let name = about.and_then(|about| about.name.as_deref());
            event.reason.as_deref() == Some(reason) && name == Some(eviction)
        };
        all.iter().any(told).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_nova_cell_that_is_down_is_no_empty_host() {
    let cloud = cell_cloud().await;
    let drain = Drain::at(cloud, "cell", 1, &[]).await;
    let id = drain.boot("one").await;
    // Nova does not move it as it is, so that it is on the host when the cell stops.
    drain
        .act(&id, json!({ "suspend": null }), ServerStatus::Suspended)
        .await;
    drain.begin().await;
    drain
        .eviction("it is blocked", |status| {
            let mut rows = status.instances.iter();
            rows.any(|row| row.state == State::Blocked)
        })
        .await;

    cloud.stop_cell().await;
    // What Nova itself says then.
    let client = cloud.client();
    let on_host = ServerFilter::on(&drain.source);
    let listed = client.compute().servers(&on_host).await.unwrap();
    assert!(listed.is_empty(), "{listed:?}");
    let shown = client.compute().server(&id).await.unwrap();
    assert_eq!((shown.status, shown.host), (ServerStatus::Unknown, None));

    let source = drain.source.clone();
    let found = drain
        .eviction("the cell is down", waits_for("CellDown", "cell"))
        .await;
    let status = found.status.unwrap();
    assert_eq!(row(&status, "one").state, State::Blocked, "{status:#?}");
    event(&drain, &source, "CellDown").await;
    // One that begins now has never seen the server: Placement has it.
    let other = drain.evict(EvictionSpec::default()).await;
    drain
        .eviction_named(&other, "the cell is down", waits_for("CellDown", &id))
        .await;
    for name in [&source, &other] {
        let eviction = drain.site.evictions().get(name).await.unwrap();
        assert_eq!(eviction.status.unwrap().outcome, None);
    }

    cloud.start_cell().await;
    drain
        .act(&id, json!({ "resume": null }), ServerStatus::Active)
        .await;
    for name in [&source, &other] {
        drain.ended_named(name, Outcome::Succeeded).await;
    }
    assert_eq!(drain.whereabouts().await["one"].0, drain.targets[0]);
}

#[tokio::test]
async fn a_host_that_an_unconfirmed_resize_may_come_back_to_is_not_empty() {
    let drain = Drain::new("resized", 1, &[]).await;
    let cloud = drain.site.cloud;
    let id = drain.boot("one").await;
    let flavor = unique("larger");
    cloud.add_flavor(&flavor, 1024).await;
    let resize = json!({ "resize": { "flavorRef": flavor } });
    drain.act(&id, resize, ServerStatus::VerifyResize).await;
    assert!(drain.is_empty().await, "Nova has it on the other host");
    drain.begin().await;
    drain
        .eviction(
            "it waits for the owner",
            waits_for("UnconfirmedResize", &id),
        )
        .await;
    let source = drain.source.clone();
    event(&drain, &source, "UnconfirmedResize").await;
    // He takes it back: it is moved like any other.
    cloud
        .server_action(&id, json!({ "revertResize": null }))
        .await;
    let status = drain.ended(Outcome::Succeeded).await;
    assert_eq!(row(&status, "one").state, State::Moved, "{status:#?}");
    assert!(drain.is_empty().await);
}

#[tokio::test]
async fn a_crashed_guest_is_moved_when_nova_has_noticed_and_not_before() {
    let drain = Drain::new("crashed", 1, &[]).await;
    let id = drain.boot("one").await;
    let site = &drain.site;
    site.make_namespace(leases::NODE_AGENT_NAMESPACE).await;
    let crashed = json!({
        "id": id, "name": "one", "active": false, "state": "shutoff", "reason": "crashed",
    });
    agent_says(&site.client, &drain.source, &[crashed]).await;
    drain.begin().await;
    let blocked = drain
        .eviction("it is blocked", |status| {
            let mut rows = status.instances.iter();
            rows.any(|row| row.state == State::Blocked)
        })
        .await;
    let blocked = blocked.status.unwrap();
    assert_eq!(reasons(row(&blocked, "one"))[0], "GuestNotRunning");
    assert!(drain.moves().is_empty());

    // As Nova does by itself a moment later.
    drain
        .act(&id, json!({ "os-stop": null }), ServerStatus::Shutoff)
        .await;
    // Nova and Placement have nothing left, and libvirt still has it.
    drain
        .eviction("libvirt is waited for", waits_for("Libvirt", &id))
        .await;
    agent_says(&site.client, &drain.source, &[]).await;
    let status = drain.ended(Outcome::Succeeded).await;
    let moved = row(&status, "one");
    assert_eq!(
        (moved.state, moved.method),
        (State::Moved, Some(Method::Cold)),
        "{status:#?}"
    );
    let target = (drain.targets[0].clone(), "SHUTOFF".to_owned());
    assert_eq!(drain.whereabouts().await["one"], target);
}
