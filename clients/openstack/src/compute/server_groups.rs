//! Server groups: which servers have to be together or apart.

use std::collections::BTreeSet;

use http::Method;
use serde::Deserialize;

use super::{Compute, ask};
use crate::decode::or_default;
use crate::error::Result;
use crate::query::{Query, at};

/// So many groups are asked for at once; Nova's own limit.
const PAGE: usize = 1000;

/// A server group.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ServerGroup {
    /// Its id.
    pub id: String,
    /// Its name; not unique.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// `affinity`, `anti-affinity`, or one of them with `soft-` before it, which is but a wish.
    #[serde(default, deserialize_with = "or_default")]
    pub policy: String,
    /// What the policy says in more detail.
    #[serde(default, deserialize_with = "or_default")]
    pub rules: ServerGroupRules,
    /// Ids of the servers in it.
    #[serde(default, deserialize_with = "or_default")]
    pub members: BTreeSet<String>,
}

/// The rules of a server group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct ServerGroupRules {
    /// With `anti-affinity`: so many may be on one host. Absent: one.
    #[serde(default)]
    pub max_server_per_host: Option<usize>,
}

impl Compute<'_> {
    /// The server groups of all projects. Nova has no other way to find those of several servers.
    pub async fn server_groups(&self) -> Result<Vec<ServerGroup>> {
        let mut all: Vec<ServerGroup> = Vec::new();
        loop {
            // They have no marker, unlike everything else that Nova lists.
            let query = Query::new()
                .with("all_projects", "true")
                .with("limit", PAGE.to_string())
                .with("offset", all.len().to_string());
            let ask = ask(Method::GET, "list server groups", at!("os-server-groups")).query(query);
            let page: Vec<ServerGroup> = self.client.ask(ask).await?.read("server_groups")?;
            let last = page.len() < PAGE;
            all.extend(page);
            if last {
                return Ok(all);
            }
        }
    }
}
