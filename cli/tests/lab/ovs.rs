//! `cobalt ovs` against a real API server, as a person who may do no more than docs/ovs.md asks for.
//! The agent is played by `FakeAgent`.

mod fake;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use cobalt_api::ovsnode::OvsNode;
use cobalt_lab::process::signal_pid;
use cobalt_lab::testing::{api_server, install_definitions};
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::{OnceCell, mpsc, oneshot};

use crate::cloud::until;
use crate::session::{Ended, Session, command, soon};
use fake::{Act, FakeAgent};

const NAMESPACE: &str = "ovn-system";
const ACCOUNT: &str = "cobalt-ovs-diagnostics";
/// Somebody with exactly the rights that docs/ovs.md lists.
const ASKER: &str = "asker";
/// Somebody who may read OVSNodes and nothing else.
const LOOKER: &str = "looker";

struct World {
    client: Client,
    /// The kubeconfig of somebody who may do everything.
    admin: &'static Path,
    /// Kubeconfigs by person, and files that a test writes.
    dir: tempfile::TempDir,
}

/// The world of an API server that the tests share.
async fn world() -> World {
    static READY: OnceCell<PathBuf> = OnceCell::const_new();
    let kubeconfig = READY
        .get_or_init(|| async {
            let server = api_server().await.unwrap();
            populate(&server.client().await.unwrap()).await;
            server.kubeconfig
        })
        .await;
    let dir = tempfile::tempdir().unwrap();
    for person in [ASKER, LOOKER] {
        let mut config = kube::config::Kubeconfig::read_from(kubeconfig).unwrap();
        for user in &mut config.auth_infos {
            user.auth_info.as_mut().unwrap().impersonate = Some(format!("cobalt-test-{person}"));
        }
        let text = serde_json::to_string(&config).unwrap();
        std::fs::write(dir.path().join(person), text).unwrap();
    }
    let world = World {
        client: cobalt_lab::cluster::client(kubeconfig).await.unwrap(),
        admin: kubeconfig,
        dir,
    };
    world.rights_are_known().await;
    world
}

/// Our kinds, what the chart of the agent makes, and what people may do.
async fn populate(client: &Client) {
    install_definitions(client, &cobalt_api::crds::all())
        .await
        .unwrap();
    let core = "v1";
    let rbac = "rbac.authorization.k8s.io/v1";
    apply(client, core, "Namespace", None, NAMESPACE, json!({})).await;
    apply(
        client,
        core,
        "ServiceAccount",
        Some(NAMESPACE),
        ACCOUNT,
        json!({}),
    )
    .await;
    let read = json!({ "apiGroups": ["ovs.c5c3.io"], "resources": ["ovsnodes"], "verbs": ["get"] });
    let token = json!({ "apiGroups": [""], "resources": ["serviceaccounts/token"],
                        "resourceNames": [ACCOUNT], "verbs": ["create"] });
    for (person, rules) in [
        (ASKER, json!([read.clone(), token])),
        (LOOKER, json!([read])),
    ] {
        let name = &format!("cobalt-test-{person}");
        let rules = json!({ "rules": rules });
        apply(client, rbac, "Role", Some(NAMESPACE), name, rules).await;
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "roleRef": { "apiGroup": group, "kind": "Role", "name": name },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": name }],
        });
        apply(client, rbac, "RoleBinding", Some(NAMESPACE), name, binding).await;
    }
}

async fn apply(
    client: &Client,
    version: &str,
    kind: &str,
    namespace: Option<&str>,
    name: &str,
    mut object: Value,
) {
    object["apiVersion"] = json!(version);
    object["kind"] = json!(kind);
    object["metadata"] = json!({ "name": name });
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    let params = PatchParams::apply("cobalt-tests").force();
    api.patch(name, &params, &Patch::Apply(&object))
        .await
        .unwrap();
}

impl World {
    fn nodes(&self) -> Api<OvsNode> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The API server learns of rights a little later.
    async fn rights_are_known(&self) {
        let cases = [
            (ASKER, "", "serviceaccounts", "token", ACCOUNT, "create"),
            (LOOKER, "ovs.c5c3.io", "ovsnodes", "", "x", "get"),
        ];
        for (person, group, resource, subresource, name, verb) in cases {
            let client = cobalt_lab::cluster::client(&self.path(person))
                .await
                .unwrap();
            until("the rights are known", || async {
                let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
                let review = serde_json::from_value(json!({ "spec": { "resourceAttributes": {
                    "namespace": NAMESPACE, "group": group, "resource": resource,
                    "subresource": subresource, "name": name, "verb": verb,
                }}}));
                let params = PostParams::default();
                let reviewed = reviews.create(&params, &review.unwrap()).await;
                reviewed.ok()?.status?.allowed.then_some(())
            })
            .await;
        }
    }

    /// A node whose OVSNode says this.
    async fn node(&self, prefix: &str, status: Value) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{prefix}-{}-{number}", std::process::id());
        let object: OvsNode = serde_json::from_value(json!({
            "apiVersion": "ovs.c5c3.io/v1alpha1", "kind": "OVSNode",
            "metadata": { "name": name }, "spec": { "nodeRef": { "name": name } },
        }))
        .unwrap();
        self.nodes()
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        says(&self.nodes(), &name, status).await;
        name
    }

    /// A node with this agent.
    async fn node_of(&self, agent: &FakeAgent) -> String {
        self.node("agent", json!({ "diagnostics": agent.diagnostics() }))
            .await
    }

    /// Runs the command as the person who asks.
    async fn run(&self, arguments: &[&str]) -> Ended {
        self.run_as(ASKER, arguments).await
    }

    async fn run_as(&self, person: &str, arguments: &[&str]) -> Ended {
        let arguments = [&["ovs"][..], arguments].concat();
        Session::start(&self.path(person), &arguments).end().await
    }
}

/// Writes the status of an OVSNode.
async fn says(nodes: &Api<OvsNode>, name: &str, status: Value) {
    let patch = json!({ "status": status });
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

fn health() -> Value {
    let time = "2026-01-01T00:00:00Z";
    json!({
        "ovsVersion": "3.1.0",
        "bridges": [{ "name": "br-ex", "ports": 1, "status": "Active" },
                    { "name": "br-int", "ports": 2, "flows": 30, "status": "Active" }],
        "conditions": [{ "type": "Ready", "status": "False", "reason": "NotReady",
                         "message": "1 issue", "lastTransitionTime": time }],
        "issues": [{ "severity": "Warning", "kind": "OrphanPort", "object": "tap1",
                     "message": "OVN does not know \u{1b}[31mtap1", "detectedAt": time,
                     "remedy": "ovs-vsctl del-port tap1" }],
    })
}

fn bridges() -> Value {
    let tap = |name: &str| {
        json!({ "name": name, "tag": null, "bond": null, "interfaces": [{
            "name": name, "type": "", "ofport": 5, "adminState": "up", "linkState": "up",
            "mac": "fe:16:3e:00:00:01", "mtu": 1442, "ifaceId": "id\u{9b}2J",
            "attachedMac": "fa:16:3e:00:00:01", "error": null, "ovnInstalled": true,
        }]})
    };
    json!({ "bridges": [
        { "name": "br-int", "datapathType": "system", "failMode": "secure",
          "ports": [tap("tap0"), tap("tap1")] },
    ]})
}

fn text(text: &str) -> Act {
    Act::Json(200, json!({ "text": text }))
}

/// Arguments of a question.
type Given<'a> = &'a [(&'a str, &'a str)];

fn arguments(all: Given) -> BTreeMap<String, String> {
    let all = all.iter();
    all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_shown_with_what_is_wrong_first() {
    let world = world().await;
    let agent = FakeAgent::start(&world.client, |_| Act::Json(200, bridges())).await;
    let mut status = health();
    status["diagnostics"] = agent.diagnostics();
    let node = world.node("show", status).await;

    let ended = world.run(&["show", &node]).await;
    ended.expect(
        0,
        &[
            &format!("{node}: NOT ready for "),
            "OVS 3.1.0",
            "Warning OrphanPort tap1, for ",
            "OVN does not know  [31mtap1",
            "To do: ovs-vsctl del-port tap1",
            "br-int: datapath system, fail mode secure, 2 ports, 30 flows, Active",
        ],
    );
    let at = |name: &str| ended.out.find(name).unwrap();
    assert!(at("\n! tap1") < at("\n  tap0"), "{}", ended.out);
    assert!(!ended.out.contains(['\u{1b}', '\u{9b}']), "{:?}", ended.out);
    assert_eq!(ended.err, "");
    let call = agent.call();
    assert_eq!(call.what, "GET /v1/bridges");
    assert_eq!(
        call.user,
        format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}")
    );
    // The token is of no use at another node.
    assert_eq!(call.audience, format!("cobalt-ovs-agent.{node}"));

    let ended = world.run(&["show", &node, "-o", "json"]).await;
    ended.expect(0, &[]);
    assert!(!ended.out.contains(['\u{1b}', '\u{9b}']), "{:?}", ended.out);
    let said: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(said["bridges"], bridges()["bridges"]);
    assert_eq!(said["status"]["issues"], health()["issues"]);
    assert_eq!(said["agentError"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_needs_no_agent() {
    let world = world().await;
    let known = [
        "Warning OrphanPort tap1",
        "br-int: datapath system, 2 ports",
    ];
    let expect = |ended: &Ended, word: &str| {
        ended.expect(3, &known);
        ended.expect(3, &["its ports are not shown", word]);
        assert!(!ended.out.contains('\u{1b}'), "{:?}", ended.out);
    };

    let node = world.node("alone", health()).await;
    let ended = world.run(&["show", &node]).await;
    expect(&ended, "no status.diagnostics");
    let ended = world.run(&["show", &node, "-o", "json"]).await;
    ended.expect(3, &["diagnostics.enabled"]);
    let said: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(said["bridges"], Value::Null);
    assert_eq!(said["status"]["ovsVersion"], "3.1.0");

    // Nobody listens there.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let mut status = health();
    status["diagnostics"] = json!({ "url": format!("https://{address}"),
                                    "certificateSha256": "0".repeat(64) });
    let node = world.node("closed", status).await;
    let ended = world.run(&["show", &node]).await;
    expect(&ended, "refuses the connection");
    expect(&ended, &format!("spec.nodeName={node}"));

    // Somebody who may not have a token.
    let agent = FakeAgent::start(&world.client, |_| Act::Json(200, bridges())).await;
    let mut status = health();
    status["diagnostics"] = agent.diagnostics();
    let node = world.node("forbidden", status).await;
    let ended = world.run_as(LOOKER, &["show", &node]).await;
    expect(&ended, "diagnostics-user");
    assert_eq!(agent.calls(), []);

    // An agent that says something else.
    let strange =
        FakeAgent::start(&world.client, |_| Act::Json(200, json!({ "bridges": 7 }))).await;
    let mut status = health();
    status["diagnostics"] = strange.diagnostics();
    let node = world.node("strange", status).await;
    let ended = world.run(&["show", &node]).await;
    expect(&ended, "of the same version");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_question_is_asked_and_its_answer_printed() {
    let world = world().await;
    let agent = FakeAgent::start(&world.client, |call| {
        text(&format!("{}\n\tan\u{1b}]0;swer\u{7}", call.what))
    })
    .await;
    let mut status = health();
    status["diagnostics"] = agent.diagnostics();
    let node = world.node("questions", status).await;
    let flow = "in_port=tap0,icmp,nw_src=10.0.0.3 & more+";
    let cases: [(&[&str], &str, Given); 8] = [
        (
            &["trace", &node, "br-int", flow],
            "/v1/trace",
            &[("bridge", "br-int"), ("flow", flow)],
        ),
        (&["flows", &node], "/v1/flows", &[("bridge", "br-int")]),
        (
            &["flows", &node, "br-ex"],
            "/v1/flows",
            &[("bridge", "br-ex")],
        ),
        (&["flows", &node, "--datapath"], "/v1/datapath-flows", &[]),
        (&["flows", &node, "--conntrack"], "/v1/conntrack", &[]),
        (
            &["flows", &node, "--conntrack", "--zone", "7"],
            "/v1/conntrack",
            &[("zone", "7")],
        ),
        (
            &["flows", &node, "br-ex", "--fdb"],
            "/v1/fdb",
            &[("bridge", "br-ex")],
        ),
        (&["flows", &node, "--bonds"], "/v1/bonds", &[]),
    ];
    for (words, path, given) in cases {
        let ended = world.run(words).await;
        ended.expect(0, &[]);
        assert_eq!(ended.out, format!("GET {path}\n\tan ]0;swer \n"));
        assert_eq!(ended.err, "");
        let calls = agent.calls();
        let call = calls.last().unwrap();
        assert_eq!(call.what, format!("GET {path}"));
        assert_eq!(call.arguments, arguments(given));
        // The same in a document.
        let ended = world.run(&[words, &["-o", "json"]].concat()).await;
        ended.expect(0, &[]);
        assert!(!ended.out.contains('\u{1b}'), "{:?}", ended.out);
        let said: Value = serde_json::from_str(&ended.out).unwrap();
        assert_eq!(said["node"], json!(node));
        let expected = format!("GET {path}\n\tan\u{1b}]0;swer\u{7}");
        assert_eq!(said["text"], json!(expected));
    }

    // Which bridge is meant is not guessed.
    let status = json!({ "diagnostics": agent.diagnostics(),
                         "bridges": [{ "name": "br-a" }, { "name": "br-b" }] });
    let node = world.node("many", status).await;
    let ended = world.run(&["flows", &node]).await;
    ended.expect(1, &["name one after the node", "br-a, br-b"]);

    let help = world.run(&["--help"]).await;
    help.expect(0, &["Examples:", "show", "trace", "capture", "flows"]);
    for command in ["show", "trace", "capture", "flows"] {
        let help = world.run(&[command, "--help"]).await;
        help.expect(0, &["Examples:", "Exit codes:", "--namespace"]);
    }
    world.run(&["flows"]).await.expect(2, &["NODE"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_say_what_to_do() {
    let world = world().await;
    let ended = world.run(&["flows", "nobody"]).await;
    ended.expect(1, &["no OVSNode \"nobody\"", "kubectl get ovsnodes -A"]);
    let node = world.node("off", json!({})).await;
    let ended = world.run(&["flows", &node, "--bonds"]).await;
    ended.expect(1, &["no status.diagnostics", "diagnostics.enabled"]);
    let ended = world
        .run(&["show", &node, "--namespace", "elsewhere"])
        .await;
    ended.expect(1, &["elsewhere", "forbidden"]);

    // The agent's own words.
    let refusals = [
        (
            400,
            "filter: expected a host at 5\n     ^",
            "filter: expected a host at 5\n     ^",
        ),
        (401, "the token is old", "401"),
        (403, "bind the ClusterRole x", "bind the ClusterRole x"),
        (404, "no such\u{1b}[2J bridge", "no such [2J bridge"),
        (429, "two captures run", "two captures run"),
        (
            503,
            "ovs-vswitchd does not answer",
            "503 Service Unavailable",
        ),
    ];
    let turn = AtomicU32::new(0);
    let agent = FakeAgent::start(&world.client, move |_| {
        let turn = usize::try_from(turn.fetch_add(1, Ordering::Relaxed)).unwrap();
        match refusals.get(turn) {
            Some((code, words, _)) => Act::Json(*code, json!({ "error": words })),
            None => match turn - refusals.len() {
                0 => Act::Text(502, "<html>\u{1b}</html>"),
                1 => Act::Text(200, "no JSON"),
                2 => Act::Json(200, json!({ "txt": "" })),
                _ => Act::HangUp,
            },
        }
    })
    .await;
    let node = world.node_of(&agent).await;
    let ask = ["flows", node.as_str(), "br0"];
    for (code, _, words) in refusals {
        let ended = world.run(&ask).await;
        ended.expect(1, &["the agent says", words]);
        assert_eq!(ended.out, "", "{code}");
        assert!(!ended.err.contains('\u{1b}'), "{:?}", ended.err);
    }
    world
        .run(&ask)
        .await
        .expect(1, &["502 Bad Gateway", "<html> </html>"]);
    for _ in 0..2 {
        let ended = world.run(&ask).await;
        ended.expect(1, &["is not understood", "of the same version"]);
    }
    let ended = world.run(&ask).await;
    ended.expect(1, &["has ended before the answer", "try again"]);

    // Tokens.
    let asked = agent.calls().len();
    let other = [&ask[..], &["--service-account", "nobody"]].concat();
    let ended = world.run(&other).await;
    ended.expect(1, &["you may not have a token", "ovn-system/nobody"]);
    let ended = world.run_as(LOOKER, &ask).await;
    ended.expect(1, &["diagnostics-user", "forbidden"]);
    let other = [&["ovs"][..], &other].concat();
    let ended = Session::start(world.admin, &other).end().await;
    ended.expect(1, &["no ServiceAccount ovn-system/nobody"]);
    assert_eq!(agent.calls().len(), asked);

    // No API server.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = kube::config::Kubeconfig::read_from(world.path(ASKER)).unwrap();
    for cluster in &mut config.clusters {
        let server = format!("https://{}", closed.local_addr().unwrap());
        cluster.cluster.as_mut().unwrap().server = Some(server);
    }
    drop(closed);
    let away = world.path("away");
    std::fs::write(&away, serde_json::to_string(&config).unwrap()).unwrap();
    let ended = Session::start(&away, &["ovs", "show", &node]).end().await;
    ended.expect(1, &["failed to read the OVSNode"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_never_answers_is_given_up() {
    let world = world().await;
    // It takes connections and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let status = json!({ "diagnostics": { "url": format!("https://{address}"),
                                          "certificateSha256": "0".repeat(64) }});
    let node = world.node("silent", status).await;
    let ended = world.run(&["flows", &node, "br-int"]).await;
    ended.expect(1, &["does not answer within 10 s", "network policies"]);
    drop(listener);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_told_nothing() {
    let world = world().await;
    let stranger = FakeAgent::start(&world.client, |_| text("trust me")).await;
    let mut diagnostics = stranger.diagnostics();
    diagnostics["certificateSha256"] = json!("0".repeat(64));
    let node = world
        .node("stranger", json!({ "diagnostics": diagnostics }))
        .await;
    let ended = world.run(&["flows", &node, "br-int"]).await;
    ended.expect(1, &["another certificate", "try again"]);
    assert_eq!(ended.out, "");
    assert_eq!(stranger.connections(), 1);
    assert_eq!(stranger.calls(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_has_just_restarted_is_found_again() {
    let world = world().await;
    let (before, act) = oneshot::channel();
    let agent = FakeAgent::start_after(&world.client, act, |_| text("here I am")).await;
    let mut old = agent.diagnostics();
    old["certificateSha256"] = json!("0".repeat(64));
    let node = world.node("restarted", json!({ "diagnostics": old })).await;
    // The command has read the old certificate; the agent writes the new one.
    let (nodes, name) = (world.nodes(), node.clone());
    let status = json!({ "diagnostics": agent.diagnostics() });
    let write = async move { says(&nodes, &name, status).await };
    before.send(Box::pin(write)).ok().unwrap();
    let ended = world.run(&["flows", &node, "br-int"]).await;
    ended.expect(0, &["here I am"]);
    assert_eq!(agent.connections(), 2);
    assert_eq!(agent.calls().len(), 1);
}

/// The header of a capture, as an agent sends it.
fn header() -> Bytes {
    let mut out = 0xa1b2_3c4d_u32.to_le_bytes().to_vec();
    out.extend([2, 0, 4, 0]);
    out.extend([0; 8]);
    out.extend(262_144_u32.to_le_bytes());
    out.extend(1_u32.to_le_bytes());
    out.into()
}

fn packet(bytes: &[u8]) -> Bytes {
    let length = u32::try_from(bytes.len()).unwrap();
    let mut out = Vec::new();
    for word in [1, 2, length, length] {
        out.extend(u32::to_le_bytes(word));
    }
    out.extend(bytes);
    out.into()
}

/// The packets of a whole file.
#[track_caller]
fn packets(file: &[u8]) -> Vec<Vec<u8>> {
    let (head, mut rest) = file.split_at(24);
    assert_eq!(head, header());
    let mut all = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[8..12].try_into().unwrap());
        let end = 16 + usize::try_from(length).unwrap();
        all.push(rest[16..end].to_vec());
        rest = &rest[end..];
    }
    all
}

/// The wire of a capture, in the hands of a test.
type Wire = mpsc::Sender<io::Result<Bytes>>;

/// An agent, and the wires of the captures that it is asked for, one after the other.
async fn capturing(world: &World, captures: usize) -> (FakeAgent, Vec<Wire>) {
    let (wires, ends): (Vec<_>, Vec<_>) = (0..captures).map(|_| mpsc::channel(16)).unzip();
    let ends = Mutex::new(ends.into_iter());
    let agent = FakeAgent::start(&world.client, move |_| match ends.lock().unwrap().next() {
        Some(end) => Act::Packets(end),
        None => Act::Json(429, json!({ "error": "no more captures" })),
    })
    .await;
    (agent, wires)
}

async fn send(wire: &Wire, all: &[Bytes]) {
    for bytes in all {
        wire.send(Ok(bytes.clone())).await.unwrap();
    }
}

/// Waits until a file has so many bytes.
async fn written(path: &Path, length: u64) {
    until("it is written", || async {
        let there = std::fs::metadata(path).ok()?;
        (there.len() >= length).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_is_written_to_a_new_file() {
    let world = world().await;
    let (agent, wires) = capturing(&world, 1).await;
    let node = world.node_of(&agent).await;
    let file = world.path("new.pcap");
    let name = file.to_str().unwrap();
    send(&wires[0], &[header(), packet(b"one"), packet(b"two")]).await;
    drop(wires);
    let limits = [
        "--seconds",
        "60",
        "--packets",
        "2",
        "--bytes",
        "5000",
        "--snaplen",
        "96",
    ];
    let filter = ["icmp", "and", "host 10.0.0.1"];
    let words = [
        &["capture", &node, "tap0", "-w", name][..],
        &limits,
        &filter,
    ]
    .concat();
    let ended = world.run(&words).await;
    ended.expect(0, &["2 packets", "new.pcap", "asked for"]);
    assert_eq!(ended.out, "");
    assert_eq!(packets(&std::fs::read(&file).unwrap()), [b"one", b"two"]);
    let call = agent.call();
    assert_eq!(call.what, "POST /v1/capture");
    let given = [
        ("interface", "tap0"),
        ("seconds", "60"),
        ("packets", "2"),
        ("bytes", "5000"),
        ("snaplen", "96"),
        ("filter", "icmp and host 10.0.0.1"),
    ];
    assert_eq!(call.arguments, arguments(&given));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_not_overwritten_unless_by_force() {
    let world = world().await;
    let (agent, wires) = capturing(&world, 1).await;
    let node = world.node_of(&agent).await;
    let file = world.path("old.pcap");
    std::fs::write(&file, "precious").unwrap();
    let words = ["capture", &node, "tap0", "-w", file.to_str().unwrap()];
    let ended = world.run(&words).await;
    ended.expect(1, &["is there already", "--force"]);
    assert_eq!(agent.connections(), 0);
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");

    let force = [&words[..], &["--force"]].concat();
    send(&wires[0], &[header(), packet(b"one")]).await;
    drop(wires);
    // A program is told what came of it; packets in the output leave no room for that.
    let ended = world.run(&["capture", &node, "tap0", "-o", "json"]).await;
    ended.expect(2, &["-w FILE"]);
    let ended = world.run(&[&force[..], &["-o", "json"]].concat()).await;
    ended.expect(0, &["1 packet,"]);
    let said: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(said["packets"], 1);
    assert_eq!(said["file"], json!(file));
    assert_eq!(said["isWhole"], true);
    let captured = std::fs::read(&file).unwrap();
    assert_eq!(packets(&captured), [b"one"]);

    // What cannot be captured leaves what is there.
    let ended = world.run(&force).await;
    ended.expect(1, &["429", "no more captures"]);
    assert_eq!(std::fs::read(&file).unwrap(), captured);
    let folder = world.dir.path().to_str().unwrap();
    let ended = world
        .run(&["capture", &node, "tap0", "-w", folder, "--force"])
        .await;
    ended.expect(1, &["is no file"]);
}

/// The words that capture the packets of a port into a file.
fn capture<'a>(node: &'a str, file: &'a Path) -> [&'a str; 6] {
    let file = file.to_str().unwrap();
    ["ovs", "capture", node, "tap0", "-w", file]
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_in_the_middle_of_a_packet_the_file_is_whole() {
    let world = world().await;
    let (agent, wires) = capturing(&world, 2).await;
    let node = world.node_of(&agent).await;
    for (wire, signal) in wires.iter().zip([Signal::INT, Signal::TERM]) {
        let file = world.path(&format!("{signal:?}.pcap"));
        let words = capture(&node, &file);
        let session = Session::start(&world.path(ASKER), &words);
        let (whole, cut) = (packet(b"whole"), packet(b"cut"));
        send(wire, &[header(), whole.clone(), cut.slice(..17)]).await;
        let length = u64::try_from(24 + whole.len()).unwrap();
        written(&file, length).await;
        session.signal(signal);
        let ended = session.end().await;
        ended.expect(0, &["1 packet,", "as you wished"]);
        assert_eq!(packets(&std::fs::read(&file).unwrap()), [b"whole"]);
        // The agent sees that nobody listens any more.
        soon("the capture ends", wire.closed()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_gets_each_packet_at_once_and_may_be_closed() {
    let world = world().await;
    for flags in [&["-w", "-"][..], &[]] {
        let (agent, wires) = capturing(&world, 1).await;
        let node = world.node_of(&agent).await;
        let words = [&["ovs", "capture", &node, "tap0"][..], flags].concat();
        let mut child = command(&world.path(ASKER), env!("CARGO_BIN_EXE_cobalt"))
            .args(&words)
            .spawn()
            .unwrap();
        let mut output = child.stdout.take().unwrap();
        let mut expect = async |bytes: Bytes| {
            send(&wires[0], std::slice::from_ref(&bytes)).await;
            let mut come = vec![0; bytes.len()];
            soon("it comes", output.read_exact(&mut come))
                .await
                .unwrap();
            assert_eq!(come, bytes);
        };
        expect(header()).await;
        expect(packet(b"one")).await;
        expect(packet(b"two")).await;
        // Wireshark is closed: that is seen without another packet.
        drop(output);
        soon("the capture ends", wires[0].closed()).await;
        let Output { status, stderr, .. } =
            soon("it ends", child.wait_with_output()).await.unwrap();
        let said = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(
            said.contains("2 packets") && said.contains("reader has gone"),
            "{said}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stops_does_not_hold_up_ctrl_c() {
    let world = world().await;
    let (agent, wires) = capturing(&world, 1).await;
    let node = world.node_of(&agent).await;
    let words = ["ovs", "capture", &node, "tap0", "-w", "-"];
    let mut child = command(&world.path(ASKER), env!("CARGO_BIN_EXE_cobalt"))
        .args(words)
        .spawn()
        .unwrap();
    let mut output = child.stdout.take().unwrap();
    send(&wires[0], &[header()]).await;
    let mut come = [0; 24];
    soon("it begins", output.read_exact(&mut come))
        .await
        .unwrap();
    let wire = wires[0].clone();
    let feeding = async move { while wire.send(Ok(packet(&[7; 60_000]))).await.is_ok() {} };
    let feeding = tokio::spawn(feeding);
    // A pipe holds 64 KiB: more than one packet of these means that half of one waits for a reader.
    until("the pipe is full", || async {
        let held = rustix::io::ioctl_fionread(&output).unwrap();
        (held > 61_440).then_some(())
    })
    .await;

    let pid = child.id().unwrap();
    signal_pid(pid, Signal::INT).unwrap();
    soon("the capture ends", wires[0].closed()).await;
    assert!(
        child.try_wait().unwrap().is_none(),
        "it did not wait for the reader"
    );
    signal_pid(pid, Signal::INT).unwrap();
    let status = soon("it ends", child.wait()).await.unwrap();
    assert_eq!(status.code(), Some(0));
    soon("nobody listens", feeding).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_gets_progress_and_no_packets() {
    let world = world().await;
    let (agent, wires) = capturing(&world, 1).await;
    let node = world.node_of(&agent).await;
    for flags in [&[][..], &["-w", "-"]] {
        let words = [&["ovs", "capture", &node, "tap0"][..], flags].concat();
        let session = Session::start_on_terminal(&world.path(ASKER), 100, 20, &words);
        let ended = session.end().await;
        ended.expect(2, &["not for a terminal", "-w FILE", "wireshark -k -i -"]);
    }
    assert_eq!(agent.connections(), 0);

    let file = world.path("terminal.pcap");
    let words = capture(&node, &file);
    let mut session = Session::start_on_terminal(&world.path(ASKER), 100, 20, &words);
    send(&wires[0], &[header(), packet(b"one"), packet(b"two")]).await;
    session.says("\r2 packets, 62 B of 16.0 MiB, ").await;
    session.says(" s left; Ctrl-C ends it").await;
    session.types("\u{3}").await;
    let ended = session.end().await;
    ended.expect(0, &["2 packets, 62 B in ", "as you wished"]);
    assert_eq!(packets(&std::fs::read(&file).unwrap()), [b"one", b"two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_that_is_cut_short_says_so_and_is_whole() {
    let world = world().await;
    let (agent, wires) = capturing(&world, 5).await;
    let node = world.node_of(&agent).await;
    let half = packet(b"half").slice(..18);
    let good = [header(), packet(b"whole")];
    let mut long = vec![0; 8];
    long.extend([0xff; 8]);

    // The connection is lost.
    let file = world.path("lost.pcap");
    let words = capture(&node, &file);
    let session = Session::start(&world.path(ASKER), &words);
    send(&wires[0], &[header(), packet(b"whole"), half.clone()]).await;
    written(&file, 24 + 16 + 5).await;
    wires[0].send(Err(io::Error::other("cut"))).await.unwrap();
    let ended = session.end().await;
    ended.expect(3, &["connection to the agent was lost"]);
    assert_eq!(packets(&std::fs::read(&file).unwrap()), [b"whole"]);

    // The end is in the middle of a packet; the middle makes no sense.
    send(&wires[1], &[&good[..], &[half]].concat()).await;
    send(&wires[2], &[&good[..], &[long.into()]].concat()).await;
    // What never was a capture.
    send(&wires[3], &[Bytes::from_static(b"<html></html>")]).await;
    drop(wires);
    let cases = [
        (3, "connection to the agent was lost", true),
        (3, "no pcap any more", true),
        (1, "is no capture", false),
        (1, "before the capture began", false),
    ];
    for (index, (code, words, is_there)) in cases.into_iter().enumerate() {
        let file = world.path(&format!("{index}.pcap"));
        let ended = world
            .run(&["capture", &node, "tap0", "-w", file.to_str().unwrap()])
            .await;
        ended.expect(code, &[words]);
        assert_eq!(file.exists(), is_there, "{ended:?}");
        if is_there {
            assert_eq!(packets(&std::fs::read(&file).unwrap()), [b"whole"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_leaves_a_whole_file() {
    let world = world().await;
    let (agent, wires) = capturing(&world, 1).await;
    let node = world.node_of(&agent).await;
    let file = world.path("full.pcap");
    // A file may not grow beyond this: half of the second packet fits.
    let script = format!(
        "trap '' XFSZ; ulimit -f 1; exec {} ovs capture {node} tap0 --seconds 300 -w {}",
        env!("CARGO_BIN_EXE_cobalt"),
        file.display()
    );
    let child = command(&world.path(ASKER), "sh")
        .args(["-c", &script])
        .spawn()
        .unwrap();
    send(&wires[0], &[header(), packet(b"fits"), packet(&[7; 4096])]).await;
    let ended = soon("it ends", child.wait_with_output()).await.unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("failed to write the capture"), "{said}");
    let all = packets(&std::fs::read(&file).unwrap());
    assert!(
        all.len() <= 1 && all.iter().all(|one| one == b"fits"),
        "{all:?}"
    );
    soon("the capture ends", wires[0].closed()).await;
}
