//! Nova's own services: which run, and which may get servers.

use http::Method;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Compute, ask};
use crate::decode::{or_default, text, time, words};
use crate::error::Result;
use crate::query::{Query, at};

words! {
    /// Whether a service has reported lately.
    ServiceState {
        /// It has, and is not forced down.
        Up = "up",
        /// It has not, or is forced down.
        Down = "down",
    }
}

words! {
    /// Whether the scheduler may use it.
    ServiceStatus {
        /// It may.
        Enabled = "enabled",
        /// It may not.
        Disabled = "disabled",
        /// The database of the cell that its host is in does not answer. Only the host is known
        /// then, and neither an id nor whether it is alive.
        Unknown = "UNKNOWN",
    }
}

/// A service of Nova on a host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ComputeService {
    /// Its uuid; empty while its status is [`Unknown`](ServiceStatus::Unknown).
    #[serde(default, deserialize_with = "text")]
    pub id: String,
    /// `nova-compute`, or one of the control plane.
    pub binary: String,
    /// The host as the service calls itself: neither shortened nor completed.
    pub host: String,
    /// The availability zone.
    pub zone: Option<String>,
    /// Whether the scheduler may use it.
    #[serde(default, deserialize_with = "or_default")]
    pub status: ServiceStatus,
    /// Whether it is alive.
    #[serde(default, deserialize_with = "or_default")]
    pub state: ServiceState,
    /// Why it is disabled.
    pub disabled_reason: Option<String>,
    /// Whether somebody said that it is dead.
    #[serde(default, deserialize_with = "or_default")]
    pub forced_down: bool,
    /// When it reported last.
    #[serde(default, deserialize_with = "time")]
    pub updated_at: Option<Timestamp>,
}

impl Compute<'_> {
    /// All services of one kind, by host.
    pub async fn services(&self, binary: &str) -> Result<Vec<ComputeService>> {
        self.list_services(Query::new().with("binary", binary))
            .await
    }

    /// The nova-compute of exactly this host.
    pub async fn service_of(&self, host: &str) -> Result<Option<ComputeService>> {
        let query = Query::new()
            .with("binary", "nova-compute")
            .with("host", host);
        let services = self.list_services(query).await?;
        // Nova's database may compare without regard to case.
        let exact = |service: &ComputeService| service.host == host;
        Ok(services.into_iter().find(exact))
    }

    async fn list_services(&self, query: Query) -> Result<Vec<ComputeService>> {
        let ask = ask(Method::GET, "list services", at!("os-services")).query(query);
        let mut services: Vec<ComputeService> = self.client.ask(ask).await?.read("services")?;
        services.sort_by(|a, b| (&a.host, &a.binary).cmp(&(&b.host, &b.binary)));
        Ok(services)
    }

    /// Lets the scheduler use a service.
    pub async fn enable_service(&self, id: &str) -> Result<ComputeService> {
        let change = json!({ "status": "enabled" });
        self.change_service("enable service", id, change).await
    }

    /// Lets the scheduler use a service, and takes back that it is dead: both at once.
    ///
    /// After an evacuation Nova refuses that (400) until nova-compute has restarted there.
    pub async fn revive_service(&self, id: &str) -> Result<ComputeService> {
        let change = json!({ "status": "enabled", "forced_down": false });
        self.change_service("revive service", id, change).await
    }

    /// Keeps the scheduler away from a service. The reason is for people.
    pub async fn disable_service(&self, id: &str, reason: &str) -> Result<ComputeService> {
        let change = json!({ "status": "disabled", "disabled_reason": reason });
        self.change_service("disable service", id, change).await
    }

    /// Says that a service is dead, or takes it back. Only for a host that is known to be off:
    /// Nova then lets its servers be started elsewhere.
    pub async fn force_down_service(&self, id: &str, down: bool) -> Result<ComputeService> {
        let name = if down {
            "force down service"
        } else {
            "unforce down service"
        };
        self.change_service(name, id, json!({ "forced_down": down }))
            .await
    }

    async fn change_service(
        &self,
        name: &'static str,
        id: &str,
        change: Value,
    ) -> Result<ComputeService> {
        let ask = ask(Method::PUT, name, at!("os-services", id)).body(change);
        self.client.ask(ask).await?.read("service")
    }

    /// Removes a service and, with a nova-compute, its host from aggregates and its provider from
    /// Placement. Refused (409) while it has servers.
    pub async fn delete_service(&self, id: &str) -> Result<()> {
        let ask = ask(Method::DELETE, "delete service", at!("os-services", id));
        self.client.ask(ask).await.map(drop)
    }
}
