//! Hypervisors, found by exactly their name.

use http::Method;
use serde::Deserialize;

use super::{Compute, ask};
use crate::client::Ask;
use crate::decode::{or_default, text};
use crate::error::{Error, Result, found};
use crate::query::{Query, at};

/// From 2.88 on Nova asks every nova-compute how long its host is up, one after the other: one that
/// has just fallen silent holds up the list of all.
const WITHOUT_UPTIME: &str = "2.87";

/// A host that runs servers, as Nova sees it.
///
/// It has two names, and neither need be the short or the long form of the other: the hypervisor's
/// own ([`hostname`](Self::hostname)) and that of its nova-compute
/// ([`service.host`](HypervisorService::host)), which servers, aggregates and migrations use.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Hypervisor {
    /// Its uuid, which is that of its resource provider in Placement, too.
    #[serde(deserialize_with = "text")]
    pub id: String,
    /// What the hypervisor calls itself; libvirt says the full name where there is one.
    #[serde(rename = "hypervisor_hostname")]
    pub hostname: String,
    /// `up` or `down`, as its service.
    #[serde(default, deserialize_with = "or_default")]
    pub state: super::ServiceState,
    /// `enabled` or `disabled`, as its service.
    #[serde(default, deserialize_with = "or_default")]
    pub status: super::ServiceStatus,
    /// `QEMU` and others; only in detail.
    pub hypervisor_type: Option<String>,
    /// Only in detail.
    pub hypervisor_version: Option<i64>,
    /// The address for migrations; only in detail.
    pub host_ip: Option<String>,
    /// Its nova-compute; only in detail.
    pub service: Option<HypervisorService>,
    /// Its servers, if they were asked for. Nova leaves the field out where there are none.
    #[serde(default, deserialize_with = "or_default")]
    pub servers: Vec<HypervisorServer>,
}

/// The nova-compute of a hypervisor.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HypervisorService {
    /// Its uuid.
    #[serde(deserialize_with = "text")]
    pub id: String,
    /// The host as the service calls itself.
    pub host: String,
    /// Why it is disabled.
    pub disabled_reason: Option<String>,
}

/// A server on a hypervisor.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HypervisorServer {
    /// Its id.
    #[serde(rename = "uuid")]
    pub id: String,
    /// libvirt's name of it, such as `instance-00000001`.
    pub name: Option<String>,
}

impl Hypervisor {
    /// The name up to the first dot. Two hosts of different domains may share it.
    #[must_use]
    pub fn short_name(&self) -> &str {
        self.hostname.split('.').next().unwrap_or_default()
    }

    /// What servers, aggregates and migrations call this host.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.service.as_ref().map(|service| service.host.as_str())
    }
}

impl Compute<'_> {
    /// All hypervisors in detail, by name.
    pub async fn hypervisors(&self) -> Result<Vec<Hypervisor>> {
        self.list_hypervisors(Query::new()).await
    }

    /// All hypervisors in detail with their servers, by name: one list for the whole fleet.
    pub async fn hypervisors_with_servers(&self) -> Result<Vec<Hypervisor>> {
        let query = Query::new().with("with_servers", "true");
        self.list_hypervisors(query).await
    }

    async fn list_hypervisors(&self, query: Query) -> Result<Vec<Hypervisor>> {
        let list = |query| hypervisors("list hypervisors", query);
        let mut all: Vec<Hypervisor> = self.client.list(list, query, "hypervisors").await?;
        all.sort_by(|a, b| a.hostname.cmp(&b.hostname));
        Ok(all)
    }

    /// The hypervisor whose own name is exactly this one, with its servers.
    ///
    /// Nova searches for a part of the name, so `node-1` also brings `node-10` and
    /// `node-1.example.com`; none of them is taken for it.
    pub async fn hypervisor_named(&self, hostname: &str) -> Result<Option<Hypervisor>> {
        let matching = self.hypervisors_matching(hostname).await?;
        let exact = matching
            .into_iter()
            .filter(|found| found.hostname == hostname);
        one("hypervisors", hostname, exact)
    }

    /// The hypervisors whose name up to the first dot is exactly this one, with their servers. More
    /// than one is for the caller to judge.
    pub async fn hypervisors_short_named(&self, name: &str) -> Result<Vec<Hypervisor>> {
        let mut matching = self.hypervisors_matching(name).await?;
        matching.retain(|found| found.short_name() == name);
        Ok(matching)
    }

    /// Everything that Nova finds for a part of a name. This search has no pages.
    async fn hypervisors_matching(&self, part: &str) -> Result<Vec<Hypervisor>> {
        // Nova refuses to search for anything else.
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if !part.bytes().all(allowed) {
            return self.hypervisors_with_servers().await;
        }
        let query = Query::new()
            .with("hypervisor_hostname_pattern", part)
            .with("with_servers", "true");
        let reply = found(self.client.ask(hypervisors("find hypervisor", query)).await)?;
        let Some(reply) = reply else {
            return Ok(Vec::new());
        };
        let mut matching: Vec<Hypervisor> = reply.read("hypervisors")?;
        matching.sort_by(|a, b| a.hostname.cmp(&b.hostname));
        Ok(matching)
    }

    /// A hypervisor by its uuid, with its servers.
    pub async fn hypervisor(&self, id: &str) -> Result<Hypervisor> {
        let query = Query::new().with("with_servers", "true");
        let ask = ask(Method::GET, "show hypervisor", at!("os-hypervisors", id))
            .version(WITHOUT_UPTIME)
            .query(query);
        self.client.ask(ask).await?.read("hypervisor")
    }
}

fn hypervisors(name: &'static str, query: Query) -> Ask {
    ask(Method::GET, name, at!("os-hypervisors", "detail"))
        .version(WITHOUT_UPTIME)
        .query(query)
}

/// The only one, if there is one.
pub(crate) fn one<T>(
    what: &'static str,
    name: &str,
    mut all: impl Iterator<Item = T>,
) -> Result<Option<T>> {
    let first = all.next();
    match all.count() {
        0 => Ok(first),
        more => Err(Error::Ambiguous {
            what,
            name: name.to_owned(),
            count: more + 1,
        }),
    }
}
