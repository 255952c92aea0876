//! `FakeNova`: lists of thousands of hosts, as Keystone, Nova and Placement answer them. A real Nova
//! with so many does not fit on the machine. It changes nothing and refuses every write.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use serde_json::{Value, json};

use crate::site::{TRAITS, ZONE, block};

/// The server.
#[derive(Debug, Clone)]
pub struct FakeNova {
    shared: Arc<Shared>,
    url: String,
}

#[derive(Debug)]
struct Shared {
    url: Mutex<String>,
    /// The hosts that it knows.
    hosts: Mutex<Arc<Vec<String>>>,
    /// How often each thing was asked.
    calls: Mutex<BTreeMap<String, u64>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same for a host each time.
fn uuid(kind: u32, host: &str) -> String {
    let number: u64 = host.bytes().fold(7, |sum, byte| {
        sum.wrapping_mul(131).wrapping_add(u64::from(byte))
    });
    format!(
        "{kind:08x}-0000-4000-8000-{:012x}",
        number & 0xffff_ffff_ffff
    )
}

/// The id of a host's nova-compute.
pub fn service_id(host: &str) -> String {
    uuid(1, host)
}

/// The id of a host's hypervisor and provider.
pub fn hypervisor_id(host: &str) -> String {
    uuid(2, host)
}

impl FakeNova {
    /// Starts it with no host.
    pub async fn start() -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.context("failed to listen")?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared {
            url: Mutex::new(url.clone()),
            hosts: Mutex::default(),
            calls: Mutex::default(),
        });
        let router = axum::Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { shared, url })
    }

    /// From now on it knows these.
    pub fn know(&self, hosts: &[String]) {
        *lock(&self.shared.hosts) = Arc::new(hosts.to_vec());
    }

    /// What was asked since the last time, and how often.
    pub fn take_calls(&self) -> BTreeMap<String, u64> {
        std::mem::take(&mut lock(&self.shared.calls))
    }

    /// The variables that OpenStack's clients read.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        [
            ("OS_AUTH_URL", format!("{}/v3", self.url).as_str()),
            ("OS_USERNAME", "fake"),
            ("OS_PASSWORD", "fake"),
            ("OS_PROJECT_NAME", "fake"),
            ("OS_USER_DOMAIN_NAME", "fake"),
            ("OS_PROJECT_DOMAIN_NAME", "fake"),
        ]
        .map(|(key, value)| (key, value.to_owned()))
        .into()
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let call = format!("{} {path}", request.method());
    *lock(&shared.calls).entry(call.clone()).or_default() += 1;
    let hosts = Arc::clone(&lock(&shared.hosts));
    match call.as_str() {
        "POST /v3/auth/tokens" => {
            let token = [("X-Subject-Token", "fake")];
            let url = lock(&shared.url).clone();
            (StatusCode::CREATED, token, login(&url).to_string()).into_response()
        }
        "GET /compute/v2.1/os-services" => {
            let all: Vec<Value> = hosts.iter().map(|host| service(host)).collect();
            json!({ "services": all }).to_string().into_response()
        }
        "GET /compute/v2.1/os-hypervisors/detail" => {
            hypervisors(&hosts, &query).to_string().into_response()
        }
        "GET /compute/v2.1/os-aggregates" => aggregates(&hosts).to_string().into_response(),
        "GET /placement/resource_providers" => {
            let all: Vec<Value> = hosts.iter().map(|host| provider(host)).collect();
            json!({ "resource_providers": all })
                .to_string()
                .into_response()
        }
        _ => {
            let text = format!("FakeNova cannot {call}");
            (StatusCode::NOT_IMPLEMENTED, text).into_response()
        }
    }
}

fn login(url: &str) -> Value {
    let endpoint = |kind: &str, path: &str| {
        json!({ "type": kind, "name": kind, "endpoints": [{
            "interface": "public", "region": "fake", "region_id": "fake",
            "url": format!("{url}{path}"),
        }] })
    };
    let now = jiff::Timestamp::now();
    let end = now + jiff::SignedDuration::from_hours(8);
    json!({ "token": {
        "issued_at": now.to_string(),
        "expires_at": end.to_string(),
        "project": { "id": "fake" },
        "user": { "id": "fake" },
        "catalog": [endpoint("compute", "/compute/v2.1"), endpoint("placement", "/placement")],
    } })
}

fn service(host: &str) -> Value {
    json!({
        "id": service_id(host), "binary": "nova-compute", "host": host, "zone": ZONE,
        "status": "enabled", "state": "up", "disabled_reason": null, "forced_down": false,
        "updated_at": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.000000").to_string(),
    })
}

/// A page of them, as Nova makes pages.
fn hypervisors(hosts: &[String], query: &str) -> Value {
    let of = |key: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
    };
    let limit: usize = of("limit")
        .and_then(|limit| limit.parse().ok())
        .unwrap_or(1000);
    let after = of("marker").and_then(|marker| {
        let mut all = hosts.iter();
        all.position(|host| hypervisor_id(host) == marker)
    });
    let first = after.map_or(0, |place| place + 1);
    let page: Vec<Value> = hosts
        .iter()
        .skip(first)
        .take(limit)
        .map(|host| {
            json!({
                "id": hypervisor_id(host), "hypervisor_hostname": host, "state": "up",
                "status": "enabled", "hypervisor_type": "CH", "hypervisor_version": 44_000_000,
                "host_ip": "10.0.0.1", "uptime": "up 12 days",
                "service": { "id": service_id(host), "host": host, "disabled_reason": null },
            })
        })
        .collect();
    let mut answer = json!({ "hypervisors": page });
    if first + limit < hosts.len()
        && let (Some(last), Some(object)) = (hosts.get(first + limit - 1), answer.as_object_mut())
    {
        let next = format!("?marker={}&limit={limit}", hypervisor_id(last));
        let links = json!([{ "rel": "next", "href": next }]);
        object.insert("hypervisors_links".to_owned(), links);
    }
    answer
}

/// The zone, and the building blocks.
fn aggregates(hosts: &[String]) -> Value {
    let mut all: BTreeMap<String, Vec<&String>> = BTreeMap::new();
    for (number, host) in hosts.iter().enumerate() {
        all.entry(ZONE.to_owned()).or_default().push(host);
        all.entry(block(number)).or_default().push(host);
    }
    let all: Vec<Value> = all
        .iter()
        .zip(1_u32..)
        .map(|((name, hosts), id)| {
            let zone = (name == ZONE).then_some(ZONE);
            json!({
                "id": id, "uuid": uuid(3, name), "name": name, "hosts": hosts,
                "availability_zone": zone,
                "metadata": zone.map_or_else(|| json!({}), |zone| json!({ "availability_zone": zone })),
            })
        })
        .collect();
    json!({ "aggregates": all })
}

fn provider(host: &str) -> Value {
    json!({
        "uuid": hypervisor_id(host), "name": host, "generation": 3,
        "root_provider_uuid": hypervisor_id(host), "parent_provider_uuid": null,
        "links": [],
    })
}

/// What the status of an onboarded host says of Nova and Placement.
pub fn status(number: usize, host: &str) -> Value {
    let zone = json!({
        "name": ZONE, "uuid": uuid(3, ZONE), "metadata": { "availability_zone": ZONE },
    });
    let block = block(number);
    let mut traits = vec!["COMPUTE_NODE".to_owned(), "HW_CPU_X86_AVX2".to_owned()];
    traits.extend(TRAITS.map(ToOwned::to_owned));
    json!({
        "serviceId": service_id(host),
        "hypervisorId": hypervisor_id(host),
        "aggregates": [{ "name": block, "uuid": uuid(3, &block) }, zone],
        "traits": traits,
    })
}
