//! Flavors, by id or by exactly their name.

use std::collections::BTreeMap;

use http::Method;
use serde::Deserialize;

use super::hypervisors::one;
use super::{Compute, ask};
use crate::decode::{or_default, text};
use crate::error::{Result, found};
use crate::query::{Query, at};

/// How large a server is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Flavor {
    /// Its id, which need not be a uuid.
    #[serde(deserialize_with = "text")]
    pub id: String,
    /// Unique.
    pub name: String,
    /// Processors.
    pub vcpus: u64,
    /// Memory in MiB.
    pub ram: u64,
    /// Root disk in GiB; 0 for that of the image.
    #[serde(default, deserialize_with = "or_default")]
    pub disk: u64,
    /// A second disk in GiB.
    #[serde(
        rename = "OS-FLV-EXT-DATA:ephemeral",
        default,
        deserialize_with = "or_default"
    )]
    pub ephemeral: u64,
    /// What the scheduler and the driver look at.
    #[serde(default, deserialize_with = "or_default")]
    pub extra_specs: BTreeMap<String, String>,
}

impl Compute<'_> {
    /// All flavors, public or not, by name.
    pub async fn flavors(&self) -> Result<Vec<Flavor>> {
        let list = |query| ask(Method::GET, "list flavors", at!("flavors", "detail")).query(query);
        let query = Query::new().with("is_public", "none");
        let mut all: Vec<Flavor> = self.client.list(list, query, "flavors").await?;
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// A flavor by its id.
    pub async fn flavor(&self, id: &str) -> Result<Flavor> {
        let ask = ask(Method::GET, "show flavor", at!("flavors", id));
        self.client.ask(ask).await?.read("flavor")
    }

    /// A flavor by its id or, if none has it, by exactly its name.
    pub async fn find_flavor(&self, id_or_name: &str) -> Result<Option<Flavor>> {
        if let Some(flavor) = found(self.flavor(id_or_name).await)? {
            return Ok(Some(flavor));
        }
        let all = self.flavors().await?.into_iter();
        one(
            "flavors",
            id_or_name,
            all.filter(|flavor| flavor.name == id_or_name),
        )
    }
}
