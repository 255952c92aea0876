//! Our taint beside those of others, who write at the same time.

use cobalt_hypervisor_operator::objects::TaintChange;
use k8s_openapi::api::core::v1::{Node, Taint};

use super::*;

const OURS: &str = "kvm.cloud.sap/offboarding";

fn taint(key: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        effect: "NoExecute".to_owned(),
        ..Taint::default()
    }
}

fn keys_of(node: &Node) -> Vec<String> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.map_or_else(Vec::new, |taints| {
        taints.iter().map(|taint| taint.key.clone()).collect()
    })
}

/// As others do it: read, change and replace, and again when somebody else was faster.
async fn put(nodes: &Api<Node>, name: &str, key: &str, present: bool) {
    loop {
        let mut node = nodes.get(name).await.unwrap();
        let taints = node
            .spec
            .get_or_insert_default()
            .taints
            .get_or_insert_default();
        taints.retain(|taint| taint.key != key);
        if present {
            taints.insert(0, taint(key));
        }
        match nodes.replace(name, &PostParams::default(), &node).await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn set_ours(site: &Site, present: bool, seen: &[Taint]) {
    let change = Change::Taint(TaintChange {
        node: site.node.clone(),
        present,
        seen: seen.to_vec(),
    });
    act(&site.client, &change, DEADLINE).await.unwrap();
}

/// Whatever was seen, only what is there counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_is_old_loses_no_taint() {
    let site = Site::new("stale").await;
    let nodes = site.nodes();
    let now = async || keys_of(&nodes.get(&site.node).await.unwrap());

    // The list is not there, and is.
    set_ours(&site, true, &[taint("gone")]).await;
    assert_eq!(now().await, [OURS]);
    set_ours(&site, false, &[taint("gone"), taint(OURS)]).await;
    assert_eq!(now().await, [""; 0]);
    set_ours(&site, true, &[]).await;
    set_ours(&site, true, &[]).await;
    assert_eq!(now().await, [OURS]);
    set_ours(&site, false, &[taint(OURS)]).await;

    // Somebody else's is there by now.
    put(&nodes, &site.node, "other", true).await;
    set_ours(&site, true, &[]).await;
    assert_eq!(now().await, ["other", OURS]);
    // It was the first, and is not any more.
    set_ours(&site, false, &[taint(OURS), taint("other")]).await;
    assert_eq!(now().await, ["other"]);
    set_ours(&site, false, &[taint(OURS)]).await;
    assert_eq!(now().await, ["other"]);

    // The same key with another effect is another's.
    let mut same_key = taint(OURS);
    same_key.effect = "NoSchedule".to_owned();
    let mut node = nodes.get(&site.node).await.unwrap();
    node.spec.as_mut().unwrap().taints = Some(vec![same_key.clone()]);
    nodes
        .replace(&site.node, &PostParams::default(), &node)
        .await
        .unwrap();
    set_ours(&site, true, &[]).await;
    assert_eq!(now().await, [OURS, OURS]);
    set_ours(&site, false, &[taint(OURS), same_key]).await;
    let node = nodes.get(&site.node).await.unwrap();
    assert_eq!(node.spec.unwrap().taints.unwrap()[0].effect, "NoSchedule");

    nodes.delete(&site.node, &Default::default()).await.unwrap();
    set_ours(&site, true, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_write_taints_at_once() {
    let site = Site::new("writers").await;
    let others = ["one", "two", "three"].map(|key| {
        let (nodes, name) = (site.nodes(), site.node.clone());
        tokio::spawn(async move {
            for round in 0..12 {
                let present = round % 3 != 1;
                put(&nodes, &name, key, present).await;
                // Nobody else touches it.
                let found = keys_of(&nodes.get(&name).await.unwrap());
                assert_eq!(found.contains(&key.to_owned()), present, "{key}: {found:?}");
            }
        })
    });
    let nodes = site.nodes();
    for round in 0..30 {
        let present = round % 2 == 0;
        let node = nodes.get(&site.node).await.unwrap();
        let seen = node.spec.unwrap_or_default().taints.unwrap_or_default();
        set_ours(&site, present, &seen).await;
        let found = keys_of(&nodes.get(&site.node).await.unwrap());
        assert_eq!(found.contains(&OURS.to_owned()), present, "{found:?}");
    }
    for other in others {
        other.await.unwrap();
    }
    let mut found = keys_of(&nodes.get(&site.node).await.unwrap());
    found.sort();
    assert_eq!(found, ["one", "three", "two"]);
}

/// Why the taint is not applied: this is what would come of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_apply_of_taints_takes_away_those_of_others() {
    let site = Site::new("apply").await;
    let nodes = site.nodes();
    put(&nodes, &site.node, "other", true).await;
    let ours = json!({
        "apiVersion": "v1", "kind": "Node",
        "spec": { "taints": [{ "key": OURS, "effect": "NoExecute" }] },
    });
    let patch = Patch::Apply(ours);
    let params = PatchParams::apply("test");
    let refused = nodes.patch(&site.node, &params, &patch).await.unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("conflict"), "{refused}");
    let params = params.force();
    let node = nodes.patch(&site.node, &params, &patch).await.unwrap();
    assert_eq!(keys_of(&node), [OURS]);
}
