//! Placement.
//!
//! What it keeps has a generation: a number that goes up with each change. A change names the
//! generation that it was made for and is refused (409) if there is a newer one; then it is to be
//! made again for what is there now. [`Error::is_generation_conflict`](crate::Error) tells.

mod allocations;
mod candidates;
mod providers;
mod traits;

use http::Method;

pub use allocations::{Allocation, ConsumerAllocations, ProviderAllocations};
pub use candidates::{Candidate, CandidateQuery, Candidates, ProviderSummary, ResourceSummary};
pub use providers::{Inventories, Inventory, Provider, ProviderAggregates, Usages};
pub use traits::Traits;

use crate::client::{Ask, Client};
use crate::service::Service;

/// The version of Placement's API that calls are written for.
pub const VERSION: &str = "1.39";

/// Amounts by resource class: `VCPU`, `MEMORY_MB`, `DISK_GB`, `CUSTOM_...`.
pub type Resources = std::collections::BTreeMap<String, u64>;

/// Calls of Placement.
#[derive(Debug, Clone, Copy)]
pub struct Placement<'a> {
    client: &'a Client,
}

impl Client {
    /// Placement.
    #[must_use]
    pub fn placement(&self) -> Placement<'_> {
        Placement { client: self }
    }
}

fn ask(method: Method, name: &'static str, path: String) -> Ask {
    Ask::new(Service::Placement, method, name, path).version(VERSION)
}
