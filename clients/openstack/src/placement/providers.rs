//! Resource providers: hypervisors and what is below them, what they have and what is used of it.

use std::collections::{BTreeMap, BTreeSet};

use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Placement, Resources, ask};
use crate::compute::one;
use crate::decode::or_default;
use crate::error::Result;
use crate::query::{Query, at};

/// Something that has resources.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Provider {
    /// Its uuid; that of a hypervisor is Nova's, too.
    pub uuid: String,
    /// Unique; that of a hypervisor is its own hostname.
    pub name: String,
    /// For changes.
    pub generation: i64,
    /// What it is a part of.
    #[serde(rename = "parent_provider_uuid")]
    pub parent: Option<String>,
    /// The top of its tree; itself if it is part of nothing.
    #[serde(rename = "root_provider_uuid")]
    pub root: Option<String>,
}

/// What a provider has.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Inventories {
    /// For changes.
    #[serde(rename = "resource_provider_generation")]
    pub generation: i64,
    /// By resource class.
    #[serde(default, deserialize_with = "or_default")]
    pub inventories: BTreeMap<String, Inventory>,
}

/// What a provider has of one class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// In all.
    pub total: u64,
    /// Of it, not for use.
    #[serde(default)]
    pub reserved: u64,
    /// The least that is given.
    #[serde(default = "least")]
    pub min_unit: u64,
    /// The most that is given at once.
    pub max_unit: u64,
    /// What is given is a multiple of it.
    #[serde(default = "least")]
    pub step_size: u64,
    /// How many times it is given.
    #[serde(default = "once")]
    pub allocation_ratio: f64,
}

fn least() -> u64 {
    1
}

fn once() -> f64 {
    1.0
}

/// What is used of a provider.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Usages {
    /// For changes.
    #[serde(rename = "resource_provider_generation")]
    pub generation: i64,
    /// By resource class.
    #[serde(default, deserialize_with = "or_default")]
    pub usages: Resources,
}

/// The aggregates of a provider, by their uuids in Nova.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct ProviderAggregates {
    /// For changes.
    #[serde(rename = "resource_provider_generation")]
    pub generation: i64,
    /// Their uuids.
    #[serde(default, deserialize_with = "or_default")]
    pub aggregates: BTreeSet<String>,
}

impl Placement<'_> {
    /// All providers, by name.
    pub async fn providers(&self) -> Result<Vec<Provider>> {
        self.list_providers(Query::new()).await
    }

    /// The provider of exactly this name.
    pub async fn provider_named(&self, name: &str) -> Result<Option<Provider>> {
        let found = self.list_providers(Query::new().with("name", name)).await?;
        one(
            "resource providers",
            name,
            found.into_iter().filter(|provider| provider.name == name),
        )
    }

    /// A provider and all that belong to the same tree, by name. None if there is no such one.
    pub async fn providers_in_tree(&self, uuid: &str) -> Result<Vec<Provider>> {
        self.list_providers(Query::new().with("in_tree", uuid))
            .await
    }

    /// The uuids of all providers that have a trait; nobody has one that was never made.
    pub async fn providers_with_trait(&self, name: &str) -> Result<BTreeSet<String>> {
        match self
            .list_providers(Query::new().with("required", name))
            .await
        {
            Ok(found) => Ok(found.into_iter().map(|provider| provider.uuid).collect()),
            // Placement refuses names of traits that it does not know.
            Err(error) if error.status() == Some(400) => Ok(BTreeSet::new()),
            Err(error) => Err(error),
        }
    }

    async fn list_providers(&self, query: Query) -> Result<Vec<Provider>> {
        // This list has no pages.
        let ask = ask(Method::GET, "list providers", at!("resource_providers")).query(query);
        let mut all: Vec<Provider> = self.client.ask(ask).await?.read("resource_providers")?;
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// A provider by its uuid.
    pub async fn provider(&self, uuid: &str) -> Result<Provider> {
        let ask = ask(
            Method::GET,
            "show provider",
            at!("resource_providers", uuid),
        );
        self.client.ask(ask).await?.read_all()
    }

    /// Removes a provider. Refused (409) while something is allocated from it or below it.
    pub async fn delete_provider(&self, uuid: &str) -> Result<()> {
        let ask = ask(
            Method::DELETE,
            "delete provider",
            at!("resource_providers", uuid),
        );
        self.client.ask(ask).await.map(drop)
    }

    /// What a provider has.
    pub async fn inventories(&self, uuid: &str) -> Result<Inventories> {
        let path = at!("resource_providers", uuid, "inventories");
        let ask = ask(Method::GET, "show inventories", path);
        self.client.ask(ask).await?.read_all()
    }

    /// Changes what a provider has of one class, if nobody else changed it. Returns the new
    /// generation.
    pub async fn put_inventory(
        &self,
        uuid: &str,
        class: &str,
        inventory: &Inventory,
        generation: i64,
    ) -> Result<i64> {
        let mut body = json!(inventory);
        if let Some(body) = body.as_object_mut() {
            body.insert("resource_provider_generation".into(), json!(generation));
        }
        let path = at!("resource_providers", uuid, "inventories", class);
        let ask = ask(Method::PUT, "put inventory", path).body(body);
        self.client
            .ask(ask)
            .await?
            .read("resource_provider_generation")
    }

    /// What is used of a provider.
    pub async fn usages(&self, uuid: &str) -> Result<Usages> {
        let path = at!("resource_providers", uuid, "usages");
        let ask = ask(Method::GET, "show usages", path);
        self.client.ask(ask).await?.read_all()
    }

    /// The aggregates of a provider.
    pub async fn provider_aggregates(&self, uuid: &str) -> Result<ProviderAggregates> {
        let path = at!("resource_providers", uuid, "aggregates");
        let ask = ask(Method::GET, "show provider aggregates", path);
        self.client.ask(ask).await?.read_all()
    }

    /// Sets the aggregates of a provider, if nobody else changed it.
    pub async fn put_provider_aggregates(
        &self,
        uuid: &str,
        aggregates: &ProviderAggregates,
    ) -> Result<ProviderAggregates> {
        let path = at!("resource_providers", uuid, "aggregates");
        let ask = ask(Method::PUT, "put provider aggregates", path).body(json!(aggregates));
        self.client.ask(ask).await?.read_all()
    }
}
