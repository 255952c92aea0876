//! An agent without what it needs: it stays, says what is missing, and goes on when that comes.

use std::net::SocketAddr;
use std::time::Duration;

use cobalt_api::conditions::{OvsNodeCondition, find};
use cobalt_api::names::FieldManager;
use cobalt_api::ovsnode::OvsNode;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::support::{Agent, NAMESPACE, PATIENCE, Shown, is, server, unique};

#[tokio::test(flavor = "multi_thread")]
async fn without_a_switch_it_says_so_and_keeps_its_object() {
    let (server, client) = server().await;
    let nodes: Api<Node> = Api::all(client.clone());
    let mut node = Node::default();
    node.metadata.name = Some(unique("alone"));
    let node = nodes.create(&PostParams::default(), &node).await.unwrap();
    let shown = Shown::new(&client, node.name_any());
    let nowhere = tempfile::tempdir().unwrap();
    let rundir = nowhere.path().display();
    let flags = [
        format!("--ovs-rundir={rundir}"),
        format!("--ovn-rundir={rundir}"),
    ];
    let mut agent = Agent::start(&server.kubeconfig, &shown.name, &flags);

    let object = shown
        .until("disconnected", |node| {
            is(node, OvsNodeCondition::OvsdbConnected, "False")
        })
        .await;
    assert_eq!(object.spec.node_ref.name, shown.name);
    // It goes when the Node goes.
    assert_eq!(object.owner_references()[0].uid, node.uid().unwrap());
    let status = object.status.as_ref().unwrap();
    let condition = find(&status.conditions, OvsNodeCondition::OvsdbConnected).unwrap();
    assert_eq!(condition.reason, "ConnectFailed");
    assert!(condition.message.contains("db.sock"), "{condition:?}");
    assert!(is(&object, OvsNodeCondition::Ready, "False"));
    let down = shown.issue("VswitchdDown", "ovs-vswitchd").await;
    assert!(
        down.remedy
            .unwrap()
            .contains("systemctl start ovs-vswitchd")
    );
    agent.answers("/healthz", |code, _| code == 200).await;
    agent
        .answers("/readyz", |code, body| {
            code == 503 && body.contains("ovsdb: ")
        })
        .await;

    // An Event tells of it, too; which name it has only its writer knows.
    let events: Api<Event> = Api::namespaced(client.clone(), NAMESPACE);
    let about = ListParams::default().fields(&format!("regarding.name={}", shown.name));
    let told = async {
        loop {
            let all = events.list(&about).await.unwrap();
            let down = |event: &&Event| event.reason.as_deref() == Some("VswitchdDown");
            if let Some(event) = all.iter().find(down) {
                return event.clone();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let event = tokio::time::timeout(PATIENCE, told).await.unwrap();
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(event.regarding.unwrap().kind.as_deref(), Some("OVSNode"));

    // Somebody deletes it.
    shown
        .api
        .delete(&shown.name, &DeleteParams::default())
        .await
        .unwrap();
    let uid = object.uid();
    let object = shown
        .until("made again", |node| {
            node.uid() != uid && is(node, OvsNodeCondition::OvsdbConnected, "False")
        })
        .await;
    assert_eq!(object.owner_references()[0].uid, node.uid().unwrap());

    // The Node goes, and takes its OVSNode along; nobody would ever remove another one.
    let params = DeleteParams::default();
    nodes.delete(&shown.name, &params).await.unwrap();
    shown.api.delete(&shown.name, &params).await.unwrap();
    agent
        .answers("/readyz", |code, body| {
            code == 503 && body.contains("ovsnode: the Node") && body.contains("is gone")
        })
        .await;
    assert!(shown.api.get_opt(&shown.name).await.unwrap().is_none());
    // It comes back as another one.
    let mut again = Node::default();
    again.metadata.name = Some(shown.name.clone());
    let again = nodes.create(&PostParams::default(), &again).await.unwrap();
    let object = shown
        .until("made again with its Node", |node| {
            is(node, OvsNodeCondition::OvsdbConnected, "False")
        })
        .await;
    assert_eq!(object.owner_references()[0].uid, again.uid().unwrap());
    // Its end is no news.
    let before = shown.api.get(&shown.name).await.unwrap();
    agent.end().await;
    let after = shown.api.get(&shown.name).await.unwrap();
    assert_eq!(before.resource_version(), after.resource_version());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_api_server_it_stays_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    // Nobody listens there.
    std::fs::write(
        &kubeconfig,
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n\
         contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n",
    )
    .unwrap();
    let rundir = dir.path().display();
    let flags = [
        format!("--ovs-rundir={rundir}"),
        format!("--ovn-rundir={rundir}"),
    ];
    let mut agent = Agent::start(&kubeconfig, "hv1", &flags);
    agent
        .answers("/readyz", |_, body| body.contains("ovsnode: "))
        .await;
    agent.answers("/healthz", |code, _| code == 200).await;
    assert!(agent.metrics().await.contains("ovs_up 0"));
    agent.end().await;
}

/// Passes connections on to the API server, until it is dropped.
pub struct Door(tokio::task::JoinHandle<()>);

impl Drop for Door {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Door {
    pub async fn open(at: SocketAddr, to: String) -> Self {
        let listener = tokio::net::TcpListener::bind(at).await.unwrap();
        Self(tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((mut inner, _)) = listener.accept().await {
                let to = to.clone();
                open.spawn(async move {
                    if let Ok(mut outer) = tokio::net::TcpStream::connect(to).await {
                        drop(tokio::io::copy_bidirectional(&mut inner, &mut outer).await);
                    }
                });
            }
        }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_comes_and_goes_finds_it_reporting() {
    let (server, client) = server().await;
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let text = std::fs::read_to_string(&server.kubeconfig).unwrap();
    let (_, rest) = text.split_once("https://").unwrap();
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !".:".contains(c));
    let target = rest[..end.unwrap_or(rest.len())].to_owned();
    // Of this test alone, and nobody listens there yet.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let port = 20_000 + u16::from_be_bytes([high, low]) % 10_000;
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    std::fs::write(&kubeconfig, text.replace(&target, &at.to_string())).unwrap();

    let shown = Shown::new(&client, unique("door"));
    let rundir = dir.path().display();
    let flags = [
        format!("--ovs-rundir={rundir}"),
        format!("--ovn-rundir={rundir}"),
    ];
    let mut agent = Agent::start(&kubeconfig, &shown.name, &flags);
    agent
        .answers("/readyz", |_, body| body.contains("ovsnode: "))
        .await;
    let door = Door::open(at, target.clone()).await;
    let first = shown
        .until("reported", |node| {
            is(node, OvsNodeCondition::Ready, "False")
        })
        .await;
    // While it is away somebody takes the object away.
    drop(door);
    shown
        .api
        .delete(&shown.name, &DeleteParams::default())
        .await
        .unwrap();
    let _door = Door::open(at, target).await;
    shown
        .until("reported again", |node| {
            node.uid() != first.uid() && is(node, OvsNodeCondition::Ready, "False")
        })
        .await;
    agent.end().await;
}

/// Says of every condition what an operator says of an agent that it has not heard of for long.
async fn marks_stale(shown: &Shown) {
    let condition = |condition: &OvsNodeCondition| {
        json!({
            "type": condition.as_str(), "status": "Unknown", "reason": "Stale",
            "message": "nobody has heard of the agent",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let all: Vec<_> = OvsNodeCondition::ALL.iter().map(condition).collect();
    let patch = json!({
        "apiVersion": "ovs.c5c3.io/v1alpha1", "kind": "OVSNode", "status": { "conditions": all },
    });
    let params = PatchParams::apply(FieldManager::Operator.as_str()).force();
    let patch = Patch::Apply(&patch);
    let patched = shown.api.patch_status(&shown.name, &params, &patch).await;
    assert!(is(&patched.unwrap(), OvsNodeCondition::Ready, "Unknown"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_comes_back_takes_back_what_was_said_of_it_and_finds_its_owner() {
    let (server, client) = server().await;
    let shown = Shown::new(&client, unique("stale"));
    let nowhere = tempfile::tempdir().unwrap();
    let rundir = nowhere.path().display();
    let flags = [
        format!("--ovs-rundir={rundir}"),
        format!("--ovn-rundir={rundir}"),
    ];
    let start = || Agent::start(&server.kubeconfig, &shown.name, &flags);
    let own = |node: &OvsNode| {
        let all = [OvsNodeCondition::Ready, OvsNodeCondition::OvsdbConnected];
        let status = node.status.as_ref();
        all.iter().all(|condition| {
            let found = status.and_then(|status| find(&status.conditions, *condition));
            found.is_some_and(|found| found.status == "False" && found.message.contains("db.sock"))
        })
    };
    let mut agent = start();
    let object = shown.until("reported", own).await;
    // There is no Node yet that it could go with.
    assert!(object.owner_references().is_empty());
    let mut node = Node::default();
    node.metadata.name = Some(shown.name.clone());
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.create(&PostParams::default(), &node).await.unwrap();
    let uid = node.uid().unwrap();
    shown
        .until("owned", |object| {
            let owners = object.owner_references();
            object.uid().is_some() && owners.iter().any(|owner| owner.uid == uid)
        })
        .await;

    // Somebody thought wrongly that it is gone.
    marks_stale(&shown).await;
    shown.until("taken back", own).await;
    // It was silent, and wakes up.
    agent.signal(rustix::process::Signal::STOP);
    marks_stale(&shown).await;
    agent.signal(rustix::process::Signal::CONT);
    shown.until("taken back by one that was stopped", own).await;
    // The host was without power.
    agent.kill().await;
    marks_stale(&shown).await;
    let mut agent = start();
    shown.until("taken back by the next one", own).await;
    agent.end().await;
}
