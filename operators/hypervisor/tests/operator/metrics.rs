//! What the operator tells about itself: metrics, health, and what is missing.

use std::collections::BTreeSet;

use cobalt_api::eviction::{Eviction, EvictionSpec};
use cobalt_api::hypervisor::{CheckResult, Hypervisor, Phase};
use cobalt_api::names::labels;
use cobalt_lab::testing::promtool;
use kube::api::PostParams;

use crate::chart::{METRICS, run};
use crate::support::{Site, get, unique, until};

/// The names of the labels of a line of a scrape.
fn labels_of(line: &str) -> BTreeSet<&str> {
    let Some((_, rest)) = line.split_once('{') else {
        return BTreeSet::new();
    };
    let (inside, _) = rest.rsplit_once('}').unwrap();
    inside
        .split("\",")
        .filter_map(|pair| pair.split_once("=\""))
        .map(|(key, _)| key)
        .collect()
}

fn wait(object: &Hypervisor) -> (String, String) {
    let status = object.status.as_ref();
    let wait = status.and_then(|status| status.waiting_for.clone());
    wait.map(|wait| (wait.reason, wait.message.unwrap_or_default()))
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_has_every_metric_of_the_alerts_and_dashboards() {
    let site = Site::new("metrics").await;
    let (host, unknown) = (unique("metrics"), unique("unknown"));
    let operator = site.operator();
    site.cloud.add_host(&host).await;
    site.join(&site.node(&host, labels::LIFECYCLE_SKIP_TESTS))
        .await;
    site.join(&site.node(&unknown, "true")).await;
    site.phase(&host, Phase::Active).await;
    site.hypervisor(&unknown, "waits", |object| {
        wait(object).0 == "NovaRegistration"
    })
    .await;
    // It waits until its host is disabled.
    let spec = EvictionSpec {
        hypervisor: host.clone(),
        reason: "a test".to_owned(),
        ..EvictionSpec::default()
    };
    let eviction = Eviction::new(&unique("metrics"), spec);
    let evictions = site.evictions();
    evictions
        .create(&PostParams::default(), &eviction)
        .await
        .unwrap();
    operator.rounds(2).await;
    let scrape = operator.scrape().await;
    for (name, labels) in METRICS {
        let mut lines = scrape.lines().filter(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with([' ', '{']))
        });
        let line = lines.next().unwrap_or_else(|| panic!("no {name}"));
        let wanted: BTreeSet<&str> = labels.iter().copied().collect();
        assert_eq!(labels_of(line), wanted, "{line}");
    }
    let phase = format!(
        "cobalt_hypervisor_phase{{hypervisor=\"{host}\",zone=\"lab-a\",phase=\"Active\"}} 1"
    );
    assert!(scrape.lines().any(|line| line == phase), "{scrape}");
    let tool = promtool().await.unwrap();
    run(&tool, &["check", "metrics"], &scrape).unwrap();
    assert_eq!(get(operator.health, "/healthz").await.unwrap().0, 200);
    assert_eq!(get(operator.health, "/readyz").await.unwrap().0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn w45_without_openstack_it_stays_up_and_says_what_is_missing() {
    let site = Site::new("no-openstack").await;
    let name = unique("no-openstack");
    let dead = [("OS_AUTH_URL", "http://127.0.0.1:1/v3")];
    for arguments in [&[][..], &["--skip-tests"]] {
        let mut operator = site.operator_with(arguments, &dead);
        let body = until("it is not ready", || async {
            let (status, body) = get(operator.health, "/readyz").await?;
            (status == 503 && body.contains("Nova")).then_some(body)
        })
        .await;
        assert!(body.contains("failed to log in"), "{body}");
        assert!(operator.is_up());
        assert_eq!(get(operator.health, "/healthz").await.unwrap().0, 200);
    }

    // What needs no OpenStack is done.
    let mut operator = site.operator_with(&[], &dead);
    let node = site.node(&name, "true");
    site.nodes()
        .create(&PostParams::default(), &node)
        .await
        .unwrap();
    let object = site
        .hypervisor(&name, "says that Nova is missing", |object| {
            let (reason, text) = wait(object);
            reason == "Nova" && text.contains("does not answer")
        })
        .await;
    assert_eq!(object.status.unwrap().phase, Some(Phase::Initial));
    assert!(operator.is_up());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_test_image_is_told_and_fails_no_host() {
    let site = Site::new("wrong-image").await;
    let name = unique("wrong-image");
    let operator = site.operator_with(&["--test-image", "no-such", "--test-attempts", "1"], &[]);
    site.host(&name).await;
    let says = "there is no image \"no-such\" in the test project: make it, or name another one";
    site.hypervisor(&name, says, |object| wait(object).1.contains(says))
        .await;
    let (status, body) = get(operator.health, "/readyz").await.unwrap();
    assert_eq!(status, 503);
    assert!(body.contains(says), "{body}");
    operator.rounds(2).await;
    let object = site.hypervisors().get(&name).await.unwrap();
    let status = object.status.as_ref().unwrap();
    assert_ne!(status.phase, Some(Phase::Aborted));
    let failed = |result| result == CheckResult::Failed;
    assert!(!status.checks.iter().any(|check| failed(check.result)));
    assert!(wait(&object).1.contains(says));
}
