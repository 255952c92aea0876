//! Traits: what a provider can do, or what it is marked with.
//!
//! They belong to many: Nova reports what the hypervisor can, and marks disabled hosts; others mark
//! hosts for tenants. A change is therefore made to the whole set as it is now, by somebody who
//! touches only what is theirs.

use std::collections::BTreeSet;
use std::time::Duration;

use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Placement, ask};
use crate::client::jitter;
use crate::decode::or_default;
use crate::error::Result;
use crate::query::{Query, at};

/// How often a change is made anew because somebody else was faster.
const ATTEMPTS: u32 = 8;
const WAIT: Duration = Duration::from_millis(50);

/// The traits of a provider.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct Traits {
    /// For changes.
    #[serde(rename = "resource_provider_generation")]
    pub generation: i64,
    /// Their names.
    #[serde(default, deserialize_with = "or_default")]
    pub traits: BTreeSet<String>,
}

impl Placement<'_> {
    /// The traits of a provider.
    pub async fn traits(&self, uuid: &str) -> Result<Traits> {
        let path = at!("resource_providers", uuid, "traits");
        let ask = ask(Method::GET, "show traits", path);
        self.client.ask(ask).await?.read_all()
    }

    /// Sets all traits of a provider, if nobody else changed it. Refused (400) if there is no such
    /// trait: custom ones are [made](Self::create_trait) first.
    pub async fn put_traits(&self, uuid: &str, traits: &Traits) -> Result<Traits> {
        let path = at!("resource_providers", uuid, "traits");
        let ask = ask(Method::PUT, "put traits", path).body(json!(traits));
        self.client.ask(ask).await?.read_all()
    }

    /// Changes the traits of a provider: `change` gets those that are there and returns those that
    /// shall be. Is somebody else faster, it is asked again with what is there then. Nothing is
    /// written if nothing changes.
    pub async fn update_traits(
        &self,
        uuid: &str,
        change: impl Fn(&BTreeSet<String>) -> BTreeSet<String>,
    ) -> Result<Traits> {
        let mut attempt = 1;
        loop {
            let present = self.traits(uuid).await?;
            let wanted = Traits {
                generation: present.generation,
                traits: change(&present.traits),
            };
            if wanted == present {
                return Ok(present);
            }
            match self.put_traits(uuid, &wanted).await {
                Err(error) if error.is_generation_conflict() && attempt < ATTEMPTS => {
                    // Not all of those who lost shall come back at once.
                    tokio::time::sleep(jitter(WAIT.saturating_mul(attempt))).await;
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    /// Makes a custom trait; that it is there already is fine. Its name begins with `CUSTOM_`.
    pub async fn create_trait(&self, name: &str) -> Result<()> {
        let ask = ask(Method::PUT, "create trait", at!("traits", name));
        self.client.ask(ask).await.map(drop)
    }

    /// All custom traits that were ever made.
    pub async fn custom_traits(&self) -> Result<BTreeSet<String>> {
        let query = Query::new().with("name", "startswith:CUSTOM_");
        let ask = ask(Method::GET, "list traits", at!("traits")).query(query);
        self.client.ask(ask).await?.read("traits")
    }
}
