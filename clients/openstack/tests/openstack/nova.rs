//! Services, hypervisors, aggregates and servers of the real Nova.

use std::collections::BTreeMap;

use cobalt_openstack::compute::{
    NewAggregate, ServerFilter, ServerState, ServerStatus, ServiceState, ServiceStatus,
};
use cobalt_openstack::{Client, Config, found};

use crate::lab::{FLAVOR, HOSTS, MANY, light, new_server, on, until};

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_read_page_by_page() {
    let light = light().await;
    let client = Client::new(Config {
        page: 3,
        ..light.config()
    });
    let all = client.compute().hypervisors().await.unwrap();
    let names: Vec<_> = all.iter().map(|found| found.hostname.as_str()).collect();
    let mut expected = HOSTS.to_vec();
    expected.sort_unstable();
    // One is deleted by another test.
    expected.retain(|name| *name != "gone" || names.contains(name));
    assert_eq!(names, expected);

    let mut made = Vec::new();
    for number in 0..7 {
        let new = new_server(&format!("page-{number}"), Some("full"));
        made.push(client.compute().create_server(&new).await.unwrap());
    }
    for id in &made {
        on(&client, id, "full", &ServerStatus::Active).await;
    }
    made.sort();
    let filter = ServerFilter::on("full");
    let mut servers = client.compute().servers(&filter).await.unwrap();
    servers.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(
        servers.iter().map(|server| &server.id).collect::<Vec<_>>(),
        made.iter().collect::<Vec<_>>()
    );
    assert_eq!(servers[0].metadata["purpose"], "test");
    let mut names = client.compute().server_names(&filter).await.unwrap();
    names.sort();
    assert_eq!(
        names.iter().map(|server| &server.id).collect::<Vec<_>>(),
        made.iter().collect::<Vec<_>>()
    );
    let hypervisor = client
        .compute()
        .hypervisor_named("full")
        .await
        .unwrap()
        .unwrap();
    let mut held: Vec<_> = hypervisor
        .servers
        .into_iter()
        .map(|server| server.id)
        .collect();
    held.sort();
    assert_eq!(held, made);
    // Names of servers are exact, too.
    for (name, count) in [("page-1", 1), ("page-", 0), ("page-.", 0)] {
        let named = client
            .compute()
            .server_names(&ServerFilter::named(name))
            .await
            .unwrap();
        assert_eq!(named.len(), count, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn w34_hosts_are_found_by_exactly_their_name() {
    let light = light().await;
    let client = light.client();
    let compute = client.compute();
    for name in ["node-1", "node-10", "node-1.example.com"] {
        let found = compute.hypervisor_named(name).await.unwrap().unwrap();
        assert_eq!(found.hostname, name);
        let again = compute.hypervisor(&found.id).await.unwrap();
        assert_eq!(again.host(), Some(name));
        let service = compute.service_of(name).await.unwrap().unwrap();
        assert_eq!(service.id, found.service.unwrap().id);
    }
    for name in [
        "node",
        "ode-1",
        "node-1.example",
        "node-1%",
        "NODE-1",
        "none-such",
    ] {
        assert_eq!(
            compute.hypervisor_named(name).await.unwrap(),
            None,
            "{name}"
        );
        assert_eq!(compute.service_of(name).await.unwrap(), None, "{name}");
    }
    let short = compute.hypervisors_short_named("node-1").await.unwrap();
    let names: Vec<_> = short.iter().map(|found| found.hostname.as_str()).collect();
    assert_eq!(names, ["node-1", "node-1.example.com"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_disabled_enabled_and_forced_down() {
    let light = light().await;
    let client = light.client();
    let compute = client.compute();
    let id = compute.service_of("paused1").await.unwrap().unwrap().id;
    let service = compute
        .disable_service(&id, "maintenance: manual")
        .await
        .unwrap();
    assert_eq!(service.status, ServiceStatus::Disabled);
    let read = compute.service_of("paused1").await.unwrap().unwrap();
    assert_eq!(read.disabled_reason.as_deref(), Some("maintenance: manual"));

    // Whichever way a host is named, a disabled one gets no server: Placement leaves it out.
    let by_host = new_server("by-host", Some("paused1"));
    let mut by_zone = new_server("by-zone", None);
    by_zone.availability_zone = Some("nova:paused1".into());
    for new in [by_host, by_zone] {
        let server = compute.create_server(&new).await.unwrap();
        let fault = until("it fails", || async {
            let server = compute.server(&server).await.unwrap();
            let failed = server.status == ServerStatus::Error && server.fault.is_some();
            if failed {
                Ok(server.fault)
            } else {
                Err(server)
            }
        })
        .await;
        let message = fault.unwrap().message;
        assert!(message.contains("No valid host was found"), "{message}");
        compute.delete_server(&server).await.unwrap();
    }

    let service = compute.force_down_service(&id, true).await.unwrap();
    assert_eq!(
        (service.state, service.forced_down),
        (ServiceState::Down, true)
    );
    let service = compute.revive_service(&id).await.unwrap();
    assert_eq!(service.status, ServiceStatus::Enabled);
    assert!(!service.forced_down);
    let error = compute
        .enable_service("00000000-0000-4000-8000-000000000000")
        .await
        .unwrap_err();
    assert!(error.is_not_found() && error.request_id().unwrap().starts_with("req-"));
}

/// The scheduler keeps of an aggregate what it was told last, for good.
#[tokio::test(flavor = "multi_thread")]
async fn the_scheduler_knows_of_changes_that_are_made_at_the_same_time() {
    let light = light().await;
    let client = light.client();
    let compute = client.compute();
    let new = NewAggregate {
        name: "closed".into(),
        availability_zone: None,
    };
    let closed = compute.create_aggregate(&new).await.unwrap().id;
    // Nobody's servers may be on these hosts while they are in it.
    let owner = [("filter_tenant_id".to_owned(), Some("0".repeat(32)))].into();
    compute
        .set_aggregate_metadata(closed, &owner)
        .await
        .unwrap();
    let joins = MANY.map(|host| compute.add_host(closed, host));
    futures::future::try_join_all(joins).await.unwrap();
    let leaves = MANY.map(|host| compute.remove_host(closed, host));
    futures::future::try_join_all(leaves).await.unwrap();
    for host in MANY {
        light.boot(&client, host, host).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn aggregates_come_and_go() {
    let light = light().await;
    let client = light.client();
    let compute = client.compute();
    let new = NewAggregate {
        name: "blue".into(),
        availability_zone: Some("az-blue".into()),
    };
    let made = compute.create_aggregate(&new).await.unwrap();
    assert!(
        compute
            .create_aggregate(&new)
            .await
            .unwrap_err()
            .is_conflict()
    );
    compute.add_host(made.id, "mode-1").await.unwrap();
    assert!(
        compute
            .add_host(made.id, "mode-1")
            .await
            .unwrap_err()
            .is_conflict()
    );
    assert!(
        compute
            .add_host(made.id, "none-such")
            .await
            .unwrap_err()
            .is_not_found()
    );
    let set = |value: Option<&str>| BTreeMap::from([("pool".to_owned(), value.map(str::to_owned))]);
    let changed = compute
        .set_aggregate_metadata(made.id, &set(Some("x")))
        .await
        .unwrap();
    assert_eq!(changed.metadata["pool"], "x");
    let changed = compute
        .set_aggregate_metadata(made.id, &set(None))
        .await
        .unwrap();
    assert!(!changed.metadata.contains_key("pool"));
    let zones = compute.availability_zones().await.unwrap();
    let zone = zones.iter().find(|zone| zone.name == "az-blue").unwrap();
    assert!(zone.hosts.contains("mode-1"));
    let provider = client
        .placement()
        .provider_named("mode-1")
        .await
        .unwrap()
        .unwrap();
    let known = client
        .placement()
        .provider_aggregates(&provider.uuid)
        .await
        .unwrap();
    assert!(known.aggregates.contains(&made.uuid));
    assert_eq!(
        compute
            .delete_aggregate(made.id)
            .await
            .unwrap_err()
            .status(),
        Some(400)
    );
    compute.remove_host(made.id, "mode-1").await.unwrap();
    assert!(
        compute
            .remove_host(made.id, "mode-1")
            .await
            .unwrap_err()
            .is_not_found()
    );
    compute.delete_aggregate(made.id).await.unwrap();
    let left = compute.aggregates().await.unwrap();
    assert!(left.iter().all(|aggregate| aggregate.name != "blue"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_with_servers_stays_and_one_without_leaves_nothing() {
    let light = light().await;
    let client = light.client();
    let compute = client.compute();
    let server = light.boot(&client, "keeps-it", "gone").await;
    let service = compute.service_of("gone").await.unwrap().unwrap();
    let provider = client
        .placement()
        .provider_named("gone")
        .await
        .unwrap()
        .unwrap();
    let error = compute.delete_service(&service.id).await.unwrap_err();
    assert!(error.is_conflict() && !error.is_transient(), "{error}");
    assert!(error.to_string().contains("hosting instances"), "{error}");
    let error = client
        .placement()
        .delete_provider(&provider.uuid)
        .await
        .unwrap_err();
    assert!(
        error.is_conflict() && !error.is_generation_conflict(),
        "{error}"
    );

    compute.delete_server(&server).await.unwrap();
    until("the server is gone", || async {
        let server = found(compute.server(&server).await).unwrap();
        server.map_or(Ok(()), Err)
    })
    .await;
    light.host("gone", "stop").await;
    compute.delete_service(&service.id).await.unwrap();
    assert_eq!(compute.service_of("gone").await.unwrap(), None);
    assert_eq!(compute.hypervisor_named("gone").await.unwrap(), None);
    assert_eq!(
        client.placement().provider_named("gone").await.unwrap(),
        None
    );
    assert!(
        compute
            .delete_service(&service.id)
            .await
            .unwrap_err()
            .is_not_found()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_server_boots_on_its_host_and_is_driven() {
    let light = light().await;
    let client = light.client();
    let compute = client.compute();
    assert_eq!(
        compute.find_flavor(FLAVOR).await.unwrap().unwrap().name,
        "m1.tiny"
    );
    assert_eq!(
        compute.find_flavor("m1.tiny").await.unwrap().unwrap().id,
        "1"
    );
    assert_eq!(compute.find_flavor("tin").await.unwrap(), None);
    assert!(client.networks(Some(true)).await.unwrap().is_empty());
    let networks = client.networks(Some(false)).await.unwrap();
    let names: Vec<_> = networks.iter().map(|network| &network.name).collect();
    assert_eq!(names, ["test"]);
    let image = client.find_image("cirros-kvm").await.unwrap().unwrap();
    assert_eq!(image.name, "cirros-kvm");
    assert_eq!(client.find_image("cirros").await.unwrap(), None);

    let id = light.boot(&client, "test", "boot1").await;
    assert!(!compute.console_output(&id, 11).await.unwrap().is_empty());
    compute.lock(&id, Some("looking at it")).await.unwrap();
    let server = compute.server(&id).await.unwrap();
    assert_eq!(
        (server.locked, server.locked_reason.as_deref()),
        (true, Some("looking at it"))
    );
    compute.unlock(&id).await.unwrap();
    compute.stop(&id).await.unwrap();
    on(&client, &id, "boot1", &ServerStatus::Shutoff).await;
    let error = compute.live_migrate(&id, None).await.unwrap_err();
    assert!(
        error.is_conflict() && error.to_string().contains("vm_state stopped"),
        "{error}"
    );
    compute.start(&id).await.unwrap();
    on(&client, &id, "boot1", &ServerStatus::Active).await;
    compute.reset_state(&id, ServerState::Error).await.unwrap();
    on(&client, &id, "boot1", &ServerStatus::Error).await;
    compute.reset_state(&id, ServerState::Active).await.unwrap();
    on(&client, &id, "boot1", &ServerStatus::Active).await;

    // A server that cannot start says why.
    light.knob("fail_spawn", serde_json::json!(["boot1"])).await;
    let new = new_server("fails", Some("boot1"));
    let failing = compute.create_server(&new).await.unwrap();
    let server = until("it fails", || async {
        let server = compute.server(&failing).await.unwrap();
        let failed = server.status == ServerStatus::Error;
        if failed {
            Ok(server)
        } else {
            Err(server.status)
        }
    })
    .await;
    light.knob("fail_spawn", serde_json::json!([])).await;
    assert!(!server.fault.unwrap().message.is_empty());
    for id in [&id, &failing] {
        compute.delete_server(id).await.unwrap();
    }
}
