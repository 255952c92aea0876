//! Allocations: who uses what of which provider.

use std::collections::BTreeMap;

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Placement, Resources, VERSION, ask};
use crate::decode::or_default;
use crate::error::Result;
use crate::query::at;

/// What is allocated from a provider.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ProviderAllocations {
    /// For changes.
    #[serde(rename = "resource_provider_generation")]
    pub generation: i64,
    /// By consumer: a server, or a migration while it lasts.
    #[serde(default, deserialize_with = "or_default")]
    pub allocations: BTreeMap<String, Allocation>,
}

/// Some resources of a provider for a consumer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Allocation {
    /// How much.
    #[serde(default, deserialize_with = "or_default")]
    pub resources: Resources,
}

/// What a consumer has. One that Placement does not know has nothing.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ConsumerAllocations {
    /// By provider.
    #[serde(default, deserialize_with = "or_default")]
    pub allocations: BTreeMap<String, Allocation>,
    /// The consumer's project.
    pub project_id: Option<String>,
    /// The consumer's user.
    pub user_id: Option<String>,
    /// For changes.
    pub consumer_generation: Option<i64>,
    /// `INSTANCE`, `MIGRATION`, `unknown`, ...
    pub consumer_type: Option<String>,
}

/// The last version that knows no types of consumers. Placement shows a consumer that was made so
/// as `unknown` and does not take that word back: such a one is written as it was made.
const WITHOUT_TYPES: &str = "1.37";

impl ConsumerAllocations {
    /// With the version of the API that it is for.
    fn to_json(&self) -> (Value, &'static str) {
        let allocations: BTreeMap<_, _> = self
            .allocations
            .iter()
            .map(|(provider, allocation)| (provider, json!({ "resources": allocation.resources })))
            .collect();
        let mut body = json!({
            "allocations": allocations,
            "project_id": self.project_id,
            "user_id": self.user_id,
            "consumer_generation": self.consumer_generation,
        });
        let kind = self
            .consumer_type
            .as_deref()
            .filter(|kind| *kind != "unknown");
        if let (Some(kind), Some(body)) = (kind, body.as_object_mut()) {
            body.insert("consumer_type".into(), kind.into());
            return (body.clone().into(), VERSION);
        }
        (body, WITHOUT_TYPES)
    }
}

impl Placement<'_> {
    /// Who uses a provider.
    pub async fn provider_allocations(&self, uuid: &str) -> Result<ProviderAllocations> {
        let path = at!("resource_providers", uuid, "allocations");
        let ask = ask(Method::GET, "show provider allocations", path);
        self.client.ask(ask).await?.read_all()
    }

    /// What a consumer has.
    pub async fn allocations(&self, consumer: &str) -> Result<ConsumerAllocations> {
        let ask = ask(
            Method::GET,
            "show allocations",
            at!("allocations", consumer),
        );
        self.client.ask(ask).await?.read_all()
    }

    /// Sets all that a consumer has, if nobody else changed it; nothing at all is fine. The safe
    /// way to take something from a consumer that may be alive.
    pub async fn put_allocations(
        &self,
        consumer: &str,
        allocations: &ConsumerAllocations,
    ) -> Result<()> {
        let (body, version) = allocations.to_json();
        let ask = ask(Method::PUT, "put allocations", at!("allocations", consumer));
        let ask = ask.version(version).body(body);
        self.client.ask(ask).await.map(drop)
    }

    /// Gives all that one consumer has to another, instead of what that one had, in one step: either
    /// both change or none. Refused (409) if somebody else changed one of them meanwhile. Does nothing
    /// if the first has nothing.
    pub async fn move_allocations(&self, from: &str, to: &str) -> Result<()> {
        let (given, before) = (self.allocations(from).await?, self.allocations(to).await?);
        if given.allocations.is_empty() {
            return Ok(());
        }
        // The one that gets them may be unknown to Placement: then it belongs to whom the other does.
        let after = ConsumerAllocations {
            allocations: given.allocations.clone(),
            project_id: before.project_id.or_else(|| given.project_id.clone()),
            user_id: before.user_id.or_else(|| given.user_id.clone()),
            ..before
        };
        let emptied = ConsumerAllocations {
            allocations: BTreeMap::new(),
            ..given
        };
        let (mut emptied, typed) = emptied.to_json();
        let (mut after, also_typed) = after.to_json();
        let version = if typed == also_typed {
            typed
        } else {
            for body in [&mut emptied, &mut after] {
                if let Some(body) = body.as_object_mut() {
                    body.remove("consumer_type");
                }
            }
            WITHOUT_TYPES
        };
        let body = json!({ from: emptied, to: after });
        let ask = ask(Method::POST, "move allocations", at!("allocations"));
        self.client
            .ask(ask.version(version).body(body))
            .await
            .map(drop)
    }

    /// Takes everything from a consumer, whatever it has by now. Refused (404) if it has nothing.
    pub async fn delete_allocations(&self, consumer: &str) -> Result<()> {
        let ask = ask(
            Method::DELETE,
            "delete allocations",
            at!("allocations", consumer),
        );
        self.client.ask(ask).await.map(drop)
    }
}
