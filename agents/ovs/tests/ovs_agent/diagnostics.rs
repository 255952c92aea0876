//! Questions over HTTPS, and captures of a real switch: what is answered, to whom, and that nothing
//! is left behind.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use axum::http::Method;
use cobalt_api::names::audiences;
use cobalt_api::ovsnode::Diagnostics;
use cobalt_lab::LabConfig;
use cobalt_lab::plan::Flavour;
use cobalt_lab::testing::ApiServer;
use cobalt_ovs::ovsdb::vswitch::{self, Mirror, Port};
use cobalt_ovs::ovsdb::{Monitor, Tables};
use cobalt_ovs::{Options, Remote};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::PostParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::inside::{Answer, Asker, Captured, Door, Network};
use crate::support::{Agent, Hosts, NAMESPACE, PATIENCE, Shown, server, unique};
use crate::switch::thresholds;

/// What is published as the address of the node; nobody goes there.
const NODE_IP: &str = "192.0.2.200";

/// Makes accounts with rights, and their tokens.
struct Accounts {
    client: Client,
    made: String,
}

impl Accounts {
    fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            made: unique("diag"),
        }
    }

    async fn create<K>(&self, object: Value)
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + serde::Serialize,
        K::DynamicType: Default,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), NAMESPACE);
        let object: K = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    /// An account that has these verbs on ovsnodes/diagnostics.
    async fn account(&self, name: &str, verbs: &[&str]) -> String {
        let name = format!("{}-{name}", self.made);
        let metadata = json!({ "name": name });
        self.create::<ServiceAccount>(json!({ "metadata": metadata }))
            .await;
        let rule = json!({
            "apiGroups": ["ovs.c5c3.io"], "resources": ["ovsnodes/diagnostics"], "verbs": verbs,
        });
        self.create::<Role>(json!({ "metadata": metadata, "rules": [rule] }))
            .await;
        self.create::<RoleBinding>(json!({
            "metadata": metadata,
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": NAMESPACE }],
        }))
        .await;
        name
    }

    /// A token for the agent of a node.
    async fn token(&self, account: &str, node: &str) -> String {
        let audience = audiences::ovs_diagnostics(node);
        self.token_for(account, Some(&audience), 600).await
    }

    async fn token_for(&self, account: &str, audience: Option<&str>, seconds: i64) -> String {
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: audience.map(|audience| vec![audience.to_owned()]),
                expiration_seconds: Some(seconds),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), NAMESPACE);
        let params = PostParams::default();
        let answer = api.create_token_request(account, &params, &request);
        answer.await.unwrap().status.unwrap().token.unwrap()
    }
}

/// A host of a lab with an agent in its network.
struct Site {
    lab: Hosts,
    host: &'static str,
    network: Network,
    shown: Shown,
    server: &'static ApiServer,
    _door: Door,
}

impl Site {
    async fn new(
        lab: Hosts,
        host: &'static str,
        client: &Client,
        server: &'static ApiServer,
    ) -> Self {
        let network = Network::of(lab.pid_one(host).await);
        let at = api_address(server);
        let door = network.door(at, at).unwrap();
        Self {
            lab,
            host,
            network,
            shown: Shown::new(client, unique(host)),
            server,
            _door: door,
        }
    }

    async fn sh(&self, script: &str) -> String {
        self.lab.sh(self.host, script).await
    }

    /// Starts an agent, through a command if one is given.
    async fn agent(&self, through: &[&str]) -> Agent {
        let mut flags = [thresholds(), self.lab.flags(self.host).await].concat();
        flags.push(format!("--node-ip={NODE_IP}"));
        flags.push("--capture-max-seconds=60".to_owned());
        let kubeconfig = &self.server.kubeconfig;
        let name = &self.shown.name;
        Agent::start_inside(Some((&self.network, through)), kubeconfig, name, &flags)
    }

    /// Waits until an agent has said where it is; another one than before.
    async fn published(&self, before: Option<&Diagnostics>) -> Diagnostics {
        let found = self.shown.until("diagnostics", |node| {
            let status = node.status.as_ref();
            let now = status.and_then(|status| status.diagnostics.as_ref());
            now.is_some() && now != before
        });
        found.await.status.unwrap().diagnostics.unwrap()
    }

    fn asker(&self, agent: &Agent, published: &Diagnostics, token: &str) -> Asker {
        Asker {
            network: Some(self.network.clone()),
            address: agent.diagnostics(),
            sha256: published.certificate_sha256.clone(),
            token: Some(token.to_owned()),
        }
    }

    /// The database of the switch.
    async fn database(&self) -> Monitor {
        let socket = self.lab.path(self.host, "/run/openvswitch/db.sock").await;
        let tables = Tables::new().table::<Port>().table::<Mirror>();
        let remotes = vec![Remote::Unix(socket)];
        Monitor::new(vswitch::DATABASE, remotes, tables, Options::default())
    }

    /// Sends packets to two ports of somebody who is not there, until it is dropped.
    fn traffic(&self, content: &'static [u8], burst: usize) -> Traffic {
        let socket = self.network.sender("198.51.100.1:0").unwrap();
        let to = [9998, 9999].map(|port| SocketAddr::from(([198, 51, 100, 2], port)));
        Traffic(tokio::spawn(async move {
            let mut beat = tokio::time::interval(Duration::from_millis(3));
            loop {
                beat.tick().await;
                for to in to.iter().cycle().take(burst) {
                    drop(socket.send_to(content, to));
                }
            }
        }))
    }
}

/// Where the API server is.
fn api_address(server: &ApiServer) -> SocketAddr {
    let text = std::fs::read_to_string(&server.kubeconfig).unwrap();
    let (_, rest) = text.split_once("https://").unwrap();
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !".:".contains(c));
    rest[..end.unwrap_or(rest.len())].parse().unwrap()
}

struct Traffic(JoinHandle<()>);

impl Drop for Traffic {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn is_marked(ids: &std::collections::BTreeMap<String, String>) -> bool {
    ids.contains_key("cobalt-capture")
}

/// How many ports and mirrors there are of captures.
fn left(database: &Monitor) -> (usize, usize) {
    let ports = database.rows::<Port>();
    let mirrors = database.rows::<Mirror>();
    (
        ports
            .filter(|(_, row)| is_marked(&row.external_ids))
            .count(),
        mirrors
            .filter(|(_, row)| is_marked(&row.external_ids))
            .count(),
    )
}

/// Waits until there are so many ports and so many mirrors of captures.
async fn comes_to(site: &Site, count: usize, agent: &Agent) {
    let mut database = site.database().await;
    let coming = async {
        // The first event is the whole of it.
        database.next().await;
        while left(&database) != (count, count) {
            database.next().await;
        }
    };
    if tokio::time::timeout(PATIENCE, coming).await.is_err() {
        panic!("{:?} instead of {count}:\n{}", left(&database), agent.log());
    }
}

async fn patiently<T>(what: &str, asked: impl Future<Output = std::io::Result<T>>) -> T {
    let answered = tokio::time::timeout(PATIENCE, asked).await;
    let answered = answered.unwrap_or_else(|_| panic!("{what}: no end"));
    answered.unwrap_or_else(|error| panic!("{what}: {error}"))
}

impl Asker {
    async fn get(&self, target: &str) -> (u16, Value) {
        self.call(Method::GET, target).await
    }

    async fn call(&self, method: Method, target: &str) -> (u16, Value) {
        let answer = patiently(target, self.ask(method, target)).await;
        let status = answer.status().as_u16();
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let text = patiently(target, answer.text()).await;
        (status, serde_json::from_str(&text).unwrap())
    }

    async fn capture(&self, arguments: &str) -> Answer {
        let target = format!("/v1/capture?{arguments}");
        let mut answer = patiently(&target, self.ask(Method::POST, &target)).await;
        if answer.status() != 200 {
            panic!("{target}: {}", answer.text().await.unwrap());
        }
        assert_eq!(
            answer.header("content-type"),
            Some("application/vnd.tcpdump.pcap")
        );
        patiently("header", answer.begin()).await;
        answer
    }

    async fn refused(&self, arguments: &str) -> (u16, String) {
        let target = format!("/v1/capture?{arguments}");
        let (status, answer) = self.call(Method::POST, &target).await;
        (status, answer["error"].as_str().unwrap().to_owned())
    }
}

/// The port that a UDP packet goes to.
fn udp_port(packet: &Captured) -> u16 {
    u16::from_be_bytes(packet.frame[36..38].try_into().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered_and_captures_leave_nothing_behind() {
    let flavours = [Flavour::Bookworm, Flavour::Trixie];
    let mut config = LabConfig::with_hypervisors("ovsdiag", &flavours);
    config.ovn = true;
    let lab = Hosts::start(config).await;
    let (server, client) = server().await;
    let accounts = Accounts::new(&client);
    let account = accounts.account("all", &["get", "create"]).await;
    // Rights take a moment to be known; the host is not ready yet, either.
    let others = [
        accounts.account("reader", &["get"]).await,
        accounts.account("nobody", &["list"]).await,
    ];

    for (number, host) in [(1, "hv1"), (2, "hv2")] {
        lab.plug(host, number).await;
        // What it sends goes into the switch: somebody is there, as far as the host knows.
        lab.sh(
            host,
            &format!(
                "ip link set if{number} up
                 ip address add 198.51.100.1/24 dev if{number}
                 ip neighbour add 198.51.100.2 lladdr 02:00:00:00:00:99 dev if{number}
                 ovs-vsctl add-port br-ex tagged -- set Interface tagged type=internal
                 ip link set tagged up"
            ),
        )
        .await;
    }
    let mut site = Site::new(lab, "hv1", &client, server).await;
    let mut agent = site.agent(&[]).await;
    let published = site.published(None).await;
    assert_eq!(published.url, format!("https://{NODE_IP}:9476"));
    let token = accounts.token(&account, &site.shown.name).await;
    let asker = site.asker(&agent, &published, &token);
    site.shown.well().await;

    who_may(&asker, &site.shown.name, &accounts, &account, &others).await;
    certificates(&asker).await;
    every_question(&asker, 1).await;
    captures(&site, &agent, &asker, 1).await;
    ends(&site, &agent, &asker).await;
    audit(&agent, &account, &token).await;
    agent = a_killed_agent(&site, agent, &asker, &published).await;
    agent.end().await;
    without_capabilities(&site, &token).await;

    // The other release.
    let Site { lab, .. } = site;
    site = Site::new(lab, "hv2", &client, server).await;
    let mut agent = site.agent(&[]).await;
    let published = site.published(None).await;
    // What one node was shown is of no use at another.
    let asker = site.asker(&agent, &published, &token);
    refuses(&asker, &token, "not for the agent of hv2-").await;
    let token = accounts.token(&account, &site.shown.name).await;
    let asker = asker.with_token(Some(&token));
    site.shown.well().await;
    every_question(&asker, 2).await;
    captures(&site, &agent, &asker, 2).await;
    agent.end().await;
    site.lab.down().await.unwrap();
}

/// Shows an agent a token that it does not take.
async fn refuses(asker: &Asker, token: &str, reason: &str) {
    let (status, answer) = asker.with_token(Some(token)).get("/v1/bridges").await;
    assert_eq!(status, 401, "{answer}");
    let text = answer["error"].as_str().unwrap();
    assert!(text.contains(reason), "{text}");
}

async fn who_may(
    asker: &Asker,
    node: &str,
    accounts: &Accounts,
    account: &str,
    [reader, nobody]: &[String; 2],
) {
    let (status, answer) = asker.with_token(None).get("/v1/bridges").await;
    assert_eq!(status, 401, "{answer}");
    let text = answer["error"].as_str().unwrap();
    assert!(text.contains("Authorization: Bearer"), "{text}");
    refuses(asker, "nonsense", "does not know this token").await;
    let own = audiences::ovs_diagnostics(node);
    for (audience, reason) in [
        (
            Some("somebody-else"),
            "is for somebody-else, not for the agent of ",
        ),
        (
            Some("cobalt-ovs-agent"),
            "is for cobalt-ovs-agent, not for the agent of ",
        ),
        (
            Some("cobalt-ovs-agent.another"),
            "is for cobalt-ovs-agent.another, not for ",
        ),
        // A token for the API server itself, as kubectl makes it.
        (None, "not for the agent of "),
    ] {
        let token = accounts.token_for(account, audience, 600).await;
        refuses(asker, &token, reason).await;
    }
    let long = accounts.token_for(account, Some(&own), 7200).await;
    refuses(asker, &long, "is good for 7200 s").await;

    let token = accounts.token(nobody, node).await;
    let (status, answer) = asker.with_token(Some(&token)).get("/v1/nothing").await;
    assert_eq!(status, 403);
    let text = answer["error"].as_str().unwrap();
    let user = format!("system:serviceaccount:{NAMESPACE}:{nobody}");
    for part in [user.as_str(), "may not get", "cobalt-ovs-diagnostics"] {
        assert!(text.contains(part), "{text}");
    }
    let token = accounts.token(reader, node).await;
    let reader = asker.with_token(Some(&token));
    assert_eq!(reader.get("/v1/bridges").await.0, 200);
    let (status, text) = reader.refused("interface=vm1").await;
    assert_eq!(status, 403);
    assert!(text.contains("may not create"), "{text}");
}

async fn certificates(asker: &Asker) {
    // The one that is published is served; a client that expects another sends nothing.
    let mut other = asker.clone();
    other.sha256 = "0".repeat(64);
    let error = other.ask(Method::GET, "/v1/bridges").await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("another certificate"), "{text}");
    assert!(text.contains(&asker.sha256), "{text}");
}

async fn every_question(asker: &Asker, number: u8) {
    let (status, answer) = asker.get("/v1/bridges").await;
    assert_eq!(status, 200, "{answer}");
    let named = |list: &Value, name: &str| -> Value {
        let list = list.as_array().unwrap();
        let found = list.iter().find(|one| one["name"] == name);
        found
            .unwrap_or_else(|| panic!("no {name} in {list:?}"))
            .clone()
    };
    let integration = named(&answer["bridges"], "br-int");
    assert_eq!(integration["datapathType"], "netdev");
    let port = named(&integration["ports"], &format!("if{number}"));
    let interface = &port["interfaces"][0];
    assert_eq!(interface["ifaceId"], format!("vm{number}"));
    assert_eq!(interface["ovnInstalled"], true);
    assert_eq!(interface["linkState"], "up");
    assert!(interface["mac"].is_string() && interface["mtu"].is_number());
    let ofport = interface["ofport"].as_i64().unwrap();
    let bond = named(&named(&answer["bridges"], "br-provider")["ports"], "bond0");
    assert_eq!(bond["bond"]["mode"], "balance-tcp");
    assert_eq!(bond["bond"]["lacp"], true);
    assert_eq!(bond["interfaces"].as_array().unwrap().len(), 2);

    let flow = format!("in_port%3D{ofport},icmp,nw_dst%3D192.0.2.9");
    let trace = format!("/v1/trace?bridge=br-int&flow={flow}");
    for (target, part) in [
        (trace.as_str(), "Datapath actions"),
        ("/v1/flows?bridge=br-int", "table_id="),
        ("/v1/datapath-flows", ""),
        ("/v1/conntrack", ""),
        ("/v1/conntrack?zone=7", ""),
        ("/v1/fdb?bridge=br-ex", "MAC"),
        ("/v1/bonds", "bond0"),
        ("/v1/bonds?port=bond0", "actor sys_id"),
    ] {
        let (status, answer) = asker.get(target).await;
        assert_eq!(status, 200, "{target}: {answer}");
        let text = answer["text"].as_str().unwrap();
        assert!(text.contains(part), "{target}: {text}");
    }
    for (target, status, part) in [
        ("/v1/flows?bridge=br-none", 404, "br-int"),
        ("/v1/bonds?port=none", 404, "no port"),
        ("/v1/bonds?port=tagged", 400, "no bond"),
        ("/v1/trace?bridge=br-int&flow=-generate", 400, "-generate"),
        ("/v1/trace?bridge=br-int&flow=nonsense", 400, "nonsense"),
        ("/v1/capture?interface=tagged", 405, "POST"),
        ("/v1/nothing", 404, "/v1/bridges"),
    ] {
        let (found, answer) = asker.get(target).await;
        let text = answer["error"].as_str().unwrap();
        assert_eq!(found, status, "{target}: {text}");
        assert!(text.contains(part), "{target}: {text}");
    }
    for (arguments, status, part) in [
        ("interface=none", 404, "\"none\""),
        ("interface=tagged&seconds=61", 400, "--capture-max-seconds"),
        ("interface=tagged&filter=tcp%20and", 400, "position 8"),
    ] {
        let (found, text) = asker.refused(arguments).await;
        assert_eq!(found, status, "{arguments}: {text}");
        assert!(text.contains(part), "{arguments}: {text}");
    }
}

/// What the fleet is told of the switch: writes, issues, and the number of ports.
async fn told(site: &Site, agent: &Agent) -> (f64, usize, String) {
    let writes = agent.metric("cobalt_ovs_agent_status_writes_total").await;
    let node = site.shown.api.get(&site.shown.name).await.unwrap();
    let status = node.status.unwrap();
    let ports = status.bridges.iter().map(|bridge| bridge.ports);
    let ports: Vec<_> = ports.collect();
    (writes, status.issues.len(), format!("{ports:?}"))
}

async fn captures(site: &Site, agent: &Agent, asker: &Asker, number: u8) {
    let before = told(site, agent).await;
    let traffic = site.traffic(b"what is captured", 2);

    // By the name of OVN, some packets of one kind.
    let filter = "filter=udp%20dst%20port%209999%20and%20host%20198.51.100.2";
    let arguments = format!("interface=vm{number}&packets=5&{filter}");
    let mut capture = asker.capture(&arguments).await;
    assert_eq!(capture.header("x-capture-seconds"), Some("30"));
    assert_eq!(capture.header("x-capture-bytes"), Some("16777216"));
    let port = format!("if{number}");
    assert_eq!(capture.header("x-capture-port"), Some(port.as_str()));
    let packets = patiently("packets", capture.packets()).await;
    assert_eq!(packets.len(), 5);
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    for packet in &packets {
        assert_eq!(udp_port(packet), 9999);
        assert!(packet.frame.ends_with(b"what is captured"), "{packet:?}");
        assert_eq!(usize::try_from(packet.length).unwrap(), packet.frame.len());
        assert!(now.abs_diff(packet.time) < PATIENCE, "{packet:?}");
    }

    // Everything, cut short, up to a size.
    let arguments = format!("interface=if{number}&bytes=700&snaplen=40");
    let mut capture = asker.capture(&arguments).await;
    let packets = patiently("bytes", capture.packets()).await;
    assert!(packets.iter().any(|packet| udp_port(packet) == 9998));
    assert!(packets.iter().all(|packet| packet.frame.len() <= 40));
    assert!(packets.iter().any(|packet| packet.length > 40));
    let size: usize = packets.iter().map(|packet| packet.frame.len() + 16).sum();
    // The next would have been too many.
    assert!(24 + size <= 700 && 24 + size + 56 > 700, "{size}");

    // One that goes on while others come and go is left alone.
    let mut long = asker.capture(&format!("interface=vm{number}")).await;
    for _ in 0..5 {
        let mut short = asker
            .capture(&format!("interface=if{number}&packets=1"))
            .await;
        assert_eq!(patiently("short", short.packets()).await.len(), 1);
    }
    let until = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let later = async {
        while let Some(packet) = long.packet().await? {
            if packet.time > until {
                return Ok(true);
            }
        }
        Ok(false)
    };
    assert!(patiently("long", later).await, "{}", agent.log());
    drop((long, traffic));

    // Nothing comes, and the time is over.
    let mut capture = asker.capture("interface=tagged&seconds=1&filter=tcp").await;
    assert_eq!(patiently("seconds", capture.packets()).await, []);

    // What the kernel takes out of a packet is put back.
    let mut capture = asker
        .capture("interface=tagged&packets=1&filter=vlan%20100%20and%20udp%20port%2053")
        .await;
    let frame = "ffffffffffff020000000001 81000064 0800 \
                 4500001c 00000000 40110000 c6336401 c6336402 0035003500080000"
        .replace(' ', "");
    let send = format!(
        "ovs-ofctl -O OpenFlow15 packet-out br-ex \
         'in_port=LOCAL packet={frame} actions=output:tagged'"
    );
    // The mirror is in place: one is enough.
    site.sh(&send).await;
    let packets = patiently("tag", capture.packets()).await;
    assert_eq!(packets[0].frame[12..16], [0x81, 0, 0, 0x64]);
    assert_eq!(packets[0].length, 46);

    comes_to(site, 0, agent).await;
    assert_eq!(told(site, agent).await, before, "{}", agent.log());
}

async fn ends(site: &Site, agent: &Agent, asker: &Asker) {
    let before = told(site, agent).await;
    comes_to(site, 0, agent).await;
    // As many as there may be.
    let one = asker.capture("interface=vm1").await;
    let other = asker.capture("interface=bond0").await;
    comes_to(site, 2, agent).await;
    let (status, text) = asker.refused("interface=tagged").await;
    assert_eq!(status, 429);
    assert!(text.contains("--capture-max-concurrent"), "{text}");
    let metrics = agent.metrics().await;
    assert!(metrics.contains("cobalt_ovs_agent_captures 2"), "{metrics}");
    assert!(!metrics.contains("cobcap"), "{metrics}");
    let (_, shown) = asker.get("/v1/bridges").await;
    assert!(!shown.to_string().contains("cobcap"), "{shown}");

    // Who reads them goes.
    drop(one);
    comes_to(site, 1, agent).await;
    drop(other);
    comes_to(site, 0, agent).await;
    assert_eq!(told(site, agent).await, before, "{}", agent.log());
    agent.counts("cobalt_ovs_agent_flow_reads_total", 1.0).await;
    assert_eq!(agent.metric("cobalt_ovs_agent_captures").await.to_bits(), 0);

    // Who does not read gets what there is room for, and the rest is counted.
    let slow = asker
        .capture("interface=vm1&seconds=60&bytes=268435456")
        .await;
    let traffic = site.traffic(&[7; 1400], 100);
    let lost = "cobalt_ovs_agent_capture_dropped_total";
    agent.counts(lost, 1.0).await;
    drop((slow, traffic));
    comes_to(site, 0, agent).await;

    // The port goes.
    let add = "ovs-vsctl add-port br-ex going -- set Interface going type=internal";
    site.sh(add).await;
    let known = async {
        while asker.refused("interface=going&seconds=0").await.0 == 404 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    };
    patiently("going", known).await;
    let mut capture = asker.capture("interface=going").await;
    site.sh("ovs-vsctl del-port going").await;
    patiently("port", capture.packets()).await;
    comes_to(site, 0, agent).await;
    site.shown.well().await;
}

async fn audit(agent: &Agent, account: &str, token: &str) {
    let log = agent.log();
    let user = format!("user=\"system:serviceaccount:{NAMESPACE}:{account}\"");
    let line = |parts: &[&str]| {
        let mut lines = log.lines().filter(|line| line.contains(" audit: "));
        let found = lines.any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(found, "no line has {parts:?}:\n{log}");
    };
    line(&[
        &user,
        "path=\"/v1/bridges\"",
        "status=200",
        "credential=\"JTI=",
    ]);
    line(&[
        &user,
        "arguments=\"bridge=br-int flow=nonsense\"",
        "status=400",
    ]);
    line(&[
        &user,
        "interface=vm1 packets=5",
        "packets=5",
        "end=\"Packets\"",
    ]);
    line(&[&user, "end=\"Bytes\""]);
    line(&[&user, "end=\"Seconds\""]);
    line(&[&user, "end=\"Stopped\""]);
    line(&[&user, "end=\"Gone\""]);
    line(&["user=\"\"", "status=401"]);
    assert!(!log.contains(token));
    let name = r#"cobalt_ovs_agent_diagnostics_requests_total{path="/v1/bridges",code="401"}"#;
    assert!(agent.metric(name).await >= 2.0);
}

async fn a_killed_agent(
    site: &Site,
    mut agent: Agent,
    asker: &Asker,
    published: &Diagnostics,
) -> Agent {
    let mut capture = asker.capture("interface=vm1").await;
    agent.kill().await;
    assert!(capture.packets().await.is_err());
    // It is still there: nobody could take it away.
    comes_to(site, 1, &agent).await;
    let agent = site.agent(&[]).await;
    comes_to(site, 0, &agent).await;
    let again = site.published(Some(published)).await;
    assert_eq!(again.url, published.url);
    site.shown.well().await;

    // One that ends in order leaves nothing.
    let token = asker.token.as_deref().unwrap();
    let asker = site.asker(&agent, &again, token);
    let mut capture = asker.capture("interface=vm1").await;
    let mut agent = agent;
    agent.end().await;
    patiently("its end", capture.packets()).await;
    let mut database = site.database().await;
    patiently("database", async {
        database.next().await;
        Ok(())
    })
    .await;
    assert_eq!(left(&database), (0, 0));
    let agent = site.agent(&[]).await;
    site.published(Some(&again)).await;
    agent
}

async fn without_capabilities(site: &Site, token: &str) {
    let before = site.shown.api.get(&site.shown.name).await.unwrap();
    let before = before.status.unwrap().diagnostics;
    let through = ["setpriv", "--bounding-set=-net_raw"];
    let mut agent = site.agent(&through).await;
    let published = site.published(before.as_ref()).await;
    let asker = site.asker(&agent, &published, token);
    agent.answers("/readyz", |code, _| code == 200).await;
    let (status, text) = asker.refused("interface=vm1").await;
    assert_eq!(status, 503);
    assert!(text.contains("diagnostics.capture"), "{text}");
    comes_to(site, 0, &agent).await;
    agent.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_switch_or_an_api_server_it_says_so() {
    let (server, client) = server().await;
    let accounts = Accounts::new(&client);
    let account = accounts.account("all", &["get", "create"]).await;
    let shown = Shown::new(&client, unique("questions"));
    let token = accounts.token(&account, &shown.name).await;
    let nowhere = tempfile::tempdir().unwrap();
    let rundir = nowhere.path().display();
    let mut flags = vec![
        format!("--ovs-rundir={rundir}"),
        format!("--ovn-rundir={rundir}"),
        format!("--node-ip={NODE_IP}"),
    ];
    // Of this test alone, and nobody listens there yet.
    let to = api_address(server);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let port = 30_000 + u16::from_be_bytes([high, low]) % 2_000;
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    let text = std::fs::read_to_string(&server.kubeconfig).unwrap();
    let kubeconfig = nowhere.path().join("kubeconfig");
    std::fs::write(&kubeconfig, text.replace(&to.to_string(), &at.to_string())).unwrap();
    let door = crate::alone::Door::open(at, to.to_string()).await;
    let mut agent = Agent::start(&kubeconfig, &shown.name, &flags);
    let is_there = |node: &cobalt_api::ovsnode::OvsNode| {
        let status = node.status.as_ref();
        status.is_some_and(|status| status.diagnostics.is_some())
    };
    let node = shown.until("diagnostics", is_there).await;
    let published = node.status.unwrap().diagnostics.unwrap();
    let asker = Asker {
        network: None,
        address: agent.diagnostics(),
        sha256: published.certificate_sha256,
        token: Some(token),
    };
    // Whose token it is comes first.
    let other = accounts.token(&account, "another").await;
    refuses(&asker, &other, "not for the agent of questions-").await;
    let plain = accounts.token_for(&account, None, 600).await;
    refuses(&asker, &plain, "not for the agent of questions-").await;
    let (status, answer) = asker.get("/v1/bridges").await;
    assert_eq!(status, 503, "{answer}");
    let (status, text) = asker.refused("interface=vm1").await;
    assert_eq!(status, 503);
    assert!(text.contains("ovsdb-server"), "{text}");
    drop(door);
    let (status, answer) = asker.get("/v1/bridges").await;
    assert_eq!(status, 503, "{answer}");
    let text = answer["error"].as_str().unwrap();
    assert!(text.contains("the API server cannot be asked"), "{text}");
    agent.end().await;

    // An agent that answers nothing says so, too.
    flags.push("--diagnostics-bind-address=0".to_owned());
    let mut agent = Agent::start(&server.kubeconfig, &shown.name, &flags);
    shown.until("no diagnostics", |node| !is_there(node)).await;
    agent.end().await;
}
