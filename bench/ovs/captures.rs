//! Captures, timed from the question to the first packet: the connection, who asks and whether they
//! may, the mirror, and the packet.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use axum::http::Method;
use cobalt_api::names::audiences;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;

use crate::RHYTHM;
use crate::agent::Agent;
use crate::inside::{Asker, Door, Network};
use crate::site::{HOST, NAMESPACE, Site};

const ACCOUNT: &str = "bench-captures";
const PORT: u16 = 9476;
/// How often a packet comes.
const BEAT: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(30);

/// An API server elsewhere, as the host's network sees it.
pub struct Reach {
    /// For the agent.
    pub kubeconfig: PathBuf,
    _door: Door,
}

impl Reach {
    fn open(network: &Network, site: &Site) -> Result<Self> {
        let text = std::fs::read_to_string(site.kubeconfig())?;
        let (_, rest) = text.split_once("https://").context("no API server")?;
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !".:".contains(c));
        let (to, _) = rest.split_at(end.unwrap_or(rest.len()));
        let there: SocketAddr = to.parse().context("no address of the API server")?;
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, there.port()));
        let kubeconfig = site.kubeconfig().with_extension("inside");
        std::fs::write(&kubeconfig, text.replace(to, &at.to_string()))?;
        Ok(Self {
            kubeconfig,
            _door: network.door(at, there)?,
        })
    }
}

/// Times so many captures.
pub async fn first_packets(program: &Path, site: &Site, count: usize) -> Result<Vec<Duration>> {
    eprintln!("timing {count} captures");
    let network = site.network();
    let reach = Reach::open(&network, site)?;
    let token = token(site.client().await?).await?;
    site.add_sender("probe").await?;
    let socket = network.sender("198.51.100.1:0")?;
    let mut agent = Agent::start_inside(program, site, &network, &reach.kubeconfig).await?;
    let asker = Asker {
        network: Some(network),
        address: (Ipv4Addr::LOCALHOST, PORT).into(),
        sha256: site.seen().certificate().await?,
        token: Some(token),
    };
    let traffic = tokio::spawn(async move {
        let mut beat = tokio::time::interval(BEAT);
        loop {
            beat.tick().await;
            drop(socket.send_to(b"what is captured", "198.51.100.2:9"));
        }
    });
    let timed = captures(&asker, count).await;
    traffic.abort();
    agent.stop().await?;
    timed
}

async fn captures(asker: &Asker, count: usize) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..count {
        tokio::time::sleep(RHYTHM).await;
        let begin = Instant::now();
        let first = async {
            let target = "/v1/capture?interface=probe&packets=1&filter=udp%20port%209";
            let mut answer = asker.ask(Method::POST, target).await?;
            if answer.status() != 200 {
                anyhow::bail!("refused: {}", answer.text().await?);
            }
            answer.begin().await?;
            Ok(answer.packet().await?.is_some())
        };
        let came = tokio::time::timeout(PATIENCE, first).await;
        ensure!(came.context("no packet came")??, "the capture is empty");
        times.push(begin.elapsed());
    }
    Ok(times)
}

/// A token of an account that may capture.
async fn token(client: Client) -> Result<String> {
    let params = PostParams::default();
    let metadata = json!({ "name": ACCOUNT });
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let account = serde_json::from_value(json!({ "metadata": metadata }))?;
    accounts.create(&params, &account).await?;
    let roles: Api<Role> = Api::namespaced(client.clone(), NAMESPACE);
    let rule = json!({
        "apiGroups": ["ovs.c5c3.io"], "resources": ["ovsnodes/diagnostics"],
        "verbs": ["get", "create"],
    });
    let role = serde_json::from_value(json!({ "metadata": metadata, "rules": [rule] }))?;
    roles.create(&params, &role).await?;
    let bindings: Api<RoleBinding> = Api::namespaced(client, NAMESPACE);
    let binding = serde_json::from_value(json!({
        "metadata": metadata,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT },
        "subjects": [{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE }],
    }))?;
    bindings.create(&params, &binding).await?;
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(vec![audiences::ovs_diagnostics(HOST)]),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let answer = accounts.create_token_request(ACCOUNT, &params, &request);
    let status = answer.await?.status.context("no token")?;
    status.token.context("no token")
}
