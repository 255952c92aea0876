//! Allocation candidates: where something would fit.

use std::collections::{BTreeMap, BTreeSet};

use http::Method;
use serde::Deserialize;

use super::{Allocation, Placement, Resources, ask};
use crate::decode::or_default;
use crate::error::Result;
use crate::query::{Query, at};

/// What is looked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CandidateQuery {
    /// How much of each class.
    pub resources: Resources,
    /// Traits that a provider must have.
    pub required: BTreeSet<String>,
    /// Traits that it must not have; `COMPUTE_STATUS_DISABLED` leaves out disabled hosts.
    pub forbidden: BTreeSet<String>,
    /// Aggregates of which it must be in one; any if there are none.
    pub member_of: BTreeSet<String>,
    /// Only this provider and its tree.
    pub in_tree: Option<String>,
    /// At most so many.
    pub limit: Option<u32>,
}

/// Where it fits.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Candidates {
    /// Each is one way to do it.
    #[serde(
        rename = "allocation_requests",
        default,
        deserialize_with = "or_default"
    )]
    pub candidates: Vec<Candidate>,
    /// The providers that take part, by uuid.
    #[serde(
        rename = "provider_summaries",
        default,
        deserialize_with = "or_default"
    )]
    pub providers: BTreeMap<String, ProviderSummary>,
}

/// One way to do it: what is taken from which provider.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Candidate {
    /// By provider.
    #[serde(default, deserialize_with = "or_default")]
    pub allocations: BTreeMap<String, Allocation>,
}

/// How full a provider is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ProviderSummary {
    /// By resource class.
    #[serde(default, deserialize_with = "or_default")]
    pub resources: BTreeMap<String, ResourceSummary>,
    /// Its traits.
    #[serde(default, deserialize_with = "or_default")]
    pub traits: BTreeSet<String>,
    /// The top of its tree: the hypervisor.
    #[serde(rename = "root_provider_uuid")]
    pub root: Option<String>,
}

/// How full it is of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct ResourceSummary {
    /// What can be given, with the ratio and without what is reserved.
    pub capacity: u64,
    /// What is given.
    pub used: u64,
}

impl CandidateQuery {
    fn query(&self) -> Query {
        let joined = |parts: Vec<String>| (!parts.is_empty()).then(|| parts.join(","));
        let amount = |(class, amount): (&String, &u64)| format!("{class}:{amount}");
        let resources = joined(self.resources.iter().map(amount).collect());
        let traits = self.required.iter().cloned();
        let traits = traits.chain(self.forbidden.iter().map(|name| format!("!{name}")));
        let any_of = joined(self.member_of.iter().cloned().collect());
        Query::new()
            .maybe("resources", resources)
            .maybe("required", joined(traits.collect()))
            .maybe("member_of", any_of.map(|any| format!("in:{any}")))
            .maybe("in_tree", self.in_tree.as_ref())
            .maybe("limit", self.limit.map(|limit| limit.to_string()))
    }
}

impl Placement<'_> {
    /// Where something would fit.
    pub async fn candidates(&self, query: &CandidateQuery) -> Result<Candidates> {
        let path = at!("allocation_candidates");
        let ask = ask(Method::GET, "find candidates", path).query(query.query());
        self.client.ask(ask).await?.read_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_everything_that_is_asked_for() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let query = CandidateQuery {
            resources: [("VCPU".into(), 1), ("MEMORY_MB".into(), 64)].into(),
            required: names(&["CUSTOM_A"]),
            forbidden: names(&["COMPUTE_STATUS_DISABLED"]),
            member_of: names(&["x", "y"]),
            in_tree: None,
            limit: Some(2),
        };
        assert_eq!(
            crate::query::decoded(query.query().as_str()),
            "?resources=MEMORY_MB:64,VCPU:1&required=CUSTOM_A,!COMPUTE_STATUS_DISABLED\
             &member_of=in:x,y&limit=2"
        );
    }
}
