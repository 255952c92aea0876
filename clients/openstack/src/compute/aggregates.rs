//! Host aggregates and availability zones.

use std::collections::{BTreeMap, BTreeSet};

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Compute, ask};
use crate::decode::or_default;
use crate::error::Result;
use crate::query::at;

/// A named set of hosts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Aggregate {
    /// What calls want.
    pub id: i64,
    /// What Placement wants.
    #[serde(default, deserialize_with = "or_default")]
    pub uuid: String,
    /// Unique.
    pub name: String,
    /// The zone that it makes of its hosts.
    pub availability_zone: Option<String>,
    /// Its hosts, as their nova-compute call themselves.
    #[serde(default, deserialize_with = "or_default")]
    pub hosts: BTreeSet<String>,
    /// What the scheduler's filters look at.
    #[serde(default, deserialize_with = "or_default")]
    pub metadata: BTreeMap<String, String>,
}

/// An aggregate to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAggregate {
    /// Unique.
    pub name: String,
    /// The zone that it makes of its hosts.
    pub availability_zone: Option<String>,
}

/// An availability zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    /// Its name; `internal` is that of the control plane.
    pub name: String,
    /// Whether one of its hosts is enabled.
    pub available: bool,
    /// Its hosts.
    pub hosts: BTreeSet<String>,
}

#[derive(Deserialize)]
struct RawZone {
    #[serde(rename = "zoneName")]
    name: String,
    #[serde(rename = "zoneState", default, deserialize_with = "or_default")]
    state: RawZoneState,
    #[serde(default, deserialize_with = "or_default")]
    hosts: BTreeMap<String, serde::de::IgnoredAny>,
}

#[derive(Default, Deserialize)]
struct RawZoneState {
    #[serde(default, deserialize_with = "or_default")]
    available: bool,
}

impl<'de> Deserialize<'de> for Zone {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawZone::deserialize(deserializer)?;
        Ok(Self {
            name: raw.name,
            available: raw.state.available,
            hosts: raw.hosts.into_keys().collect(),
        })
    }
}

impl Compute<'_> {
    /// All aggregates, by name. Nova has no other way to find those of a host.
    pub async fn aggregates(&self) -> Result<Vec<Aggregate>> {
        let ask = ask(Method::GET, "list aggregates", at!("os-aggregates"));
        let mut all: Vec<Aggregate> = self.client.ask(ask).await?.read("aggregates")?;
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Makes an aggregate. Refused (409) if there is one of that name.
    pub async fn create_aggregate(&self, new: &NewAggregate) -> Result<Aggregate> {
        let mut aggregate = json!({ "name": new.name });
        if let (Some(zone), Some(object)) = (&new.availability_zone, aggregate.as_object_mut()) {
            object.insert("availability_zone".into(), zone.as_str().into());
        }
        let body = json!({ "aggregate": aggregate });
        let ask = ask(Method::POST, "create aggregate", at!("os-aggregates")).body(body);
        self.client.ask(ask).await?.read("aggregate")
    }

    /// Adds a host. Refused (409) if it is in it already, or if its servers would change zones;
    /// and (404) if there is no such host.
    pub async fn add_host(&self, aggregate: i64, host: &str) -> Result<Aggregate> {
        let action = json!({ "add_host": { "host": host } });
        self.change_aggregate("add host to aggregate", aggregate, action)
            .await
    }

    /// Removes a host. Refused (404) if it is not in it.
    pub async fn remove_host(&self, aggregate: i64, host: &str) -> Result<Aggregate> {
        let action = json!({ "remove_host": { "host": host } });
        self.change_aggregate("remove host from aggregate", aggregate, action)
            .await
    }

    /// Sets some keys, removes those that are `None`, and leaves the others.
    pub async fn set_aggregate_metadata(
        &self,
        aggregate: i64,
        metadata: &BTreeMap<String, Option<String>>,
    ) -> Result<Aggregate> {
        let action = json!({ "set_metadata": { "metadata": metadata } });
        self.change_aggregate("set aggregate metadata", aggregate, action)
            .await
    }

    async fn change_aggregate(
        &self,
        name: &'static str,
        aggregate: i64,
        action: Value,
    ) -> Result<Aggregate> {
        let path = at!("os-aggregates", &aggregate.to_string(), "action");
        let ask = ask(Method::POST, name, path).body(action);
        let _alone = self.client.change_of_aggregates().await;
        self.client.ask(ask).await?.read("aggregate")
    }

    /// Removes an aggregate. Refused (400) while it has hosts.
    pub async fn delete_aggregate(&self, aggregate: i64) -> Result<()> {
        let path = at!("os-aggregates", &aggregate.to_string());
        let ask = ask(Method::DELETE, "delete aggregate", path);
        self.client.ask(ask).await.map(drop)
    }

    /// The availability zones with their hosts, by name.
    pub async fn availability_zones(&self) -> Result<Vec<Zone>> {
        let path = at!("os-availability-zone", "detail");
        let ask = ask(Method::GET, "list availability zones", path);
        let mut zones: Vec<Zone> = self.client.ask(ask).await?.read("availabilityZoneInfo")?;
        zones.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(zones)
    }
}
