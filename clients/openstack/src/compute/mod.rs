//! Nova.
//!
//! Every call says which version of the API it is written for. One is enough for nearly all of
//! them: [`VERSION`], the one that the fleet's tools use today. It has services and hypervisors by
//! uuid (2.53), the host of a new server (2.74), the details of failed actions (2.84), and
//! `OS-EXT-SRV-ATTR` and the rest as they still are. Of hypervisors it has no resources any more
//! (gone with 2.88): Placement has them.

mod aggregates;
mod flavors;
mod hypervisors;
mod migrations;
mod new_server;
mod server_actions;
mod server_groups;
mod servers;
mod services;

use http::Method;

pub use aggregates::{Aggregate, NewAggregate, Zone};
pub use flavors::Flavor;
pub(crate) use hypervisors::one;
pub use hypervisors::{Hypervisor, HypervisorServer, HypervisorService};
pub use migrations::{Migration, MigrationFilter, MigrationKind, MigrationStatus, ServerMigration};
pub use new_server::{NewServer, NewServerNetworks, RootDisk};
pub use server_actions::{Accepted, Action, ActionEvent, AfterEvacuation, ServerState};
pub use server_groups::{ServerGroup, ServerGroupRules};
pub use servers::{
    Address, AttachedVolume, Fault, PowerState, Server, ServerFilter, ServerFlavor, ServerName,
    ServerStatus,
};
pub use services::{ComputeService, ServiceState, ServiceStatus};

use crate::client::{Ask, Client};
use crate::service::Service;

/// The version of Nova's API that calls are written for.
pub const VERSION: &str = "2.90";

/// Calls of Nova.
#[derive(Debug, Clone, Copy)]
pub struct Compute<'a> {
    client: &'a Client,
}

impl Client {
    /// Nova.
    #[must_use]
    pub fn compute(&self) -> Compute<'_> {
        Compute { client: self }
    }
}

fn ask(method: Method, name: &'static str, path: String) -> Ask {
    Ask::new(Service::Compute, method, name, path).version(VERSION)
}
