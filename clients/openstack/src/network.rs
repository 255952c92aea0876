//! Neutron: networks by id or by exactly their name, and the ports of a server or a host.

use http::Method;
use serde::Deserialize;

use crate::client::{Ask, Client};
use crate::compute::one;
use crate::decode::or_default;
use crate::error::{Result, found};
use crate::image::is_uuid;
use crate::query::{Query, at};
use crate::service::Service;

/// A network.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Network {
    /// Its id.
    pub id: String,
    /// Its name; not unique.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// `ACTIVE` when it can be used.
    #[serde(default, deserialize_with = "or_default")]
    pub status: String,
    /// Whether every project may use it.
    #[serde(default, deserialize_with = "or_default")]
    pub shared: bool,
    /// Whether it leads outside.
    #[serde(rename = "router:external", default, deserialize_with = "or_default")]
    pub external: bool,
    /// Whose it is.
    pub project_id: Option<String>,
}

/// A port of a server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Port {
    /// Its id.
    pub id: String,
    /// `ACTIVE` when it is connected.
    #[serde(default, deserialize_with = "or_default")]
    pub status: String,
    /// Of which network.
    #[serde(default, deserialize_with = "or_default")]
    pub network_id: String,
    /// The server.
    #[serde(default, deserialize_with = "or_default")]
    pub device_id: String,
    /// Where it is.
    #[serde(rename = "binding:host_id")]
    pub host: Option<String>,
    /// `normal`, `direct` (SR-IOV), ...
    #[serde(rename = "binding:vnic_type")]
    pub vnic_type: Option<String>,
    /// `ovs`, `unbound`, `binding_failed`, ...
    #[serde(rename = "binding:vif_type")]
    pub vif_type: Option<String>,
}

impl Port {
    /// Whether the guest has a device of its host behind it (SR-IOV and the like), which Nova takes
    /// off while the guest is moved.
    #[must_use]
    pub fn is_device_of_host(&self) -> bool {
        let kinds = [
            "accelerator-direct",
            "accelerator-direct-physical",
            "direct",
            "direct-physical",
            "remote-managed",
            "vdpa",
        ];
        self.vnic_type
            .as_deref()
            .is_some_and(|kind| kinds.contains(&kind))
    }
}

impl Client {
    /// Networks that the project sees, by name. `shared` leaves out the others.
    pub async fn networks(&self, shared: Option<bool>) -> Result<Vec<Network>> {
        let shared = shared.map(|shared| shared.to_string());
        self.list_networks(Query::new().maybe("shared", shared))
            .await
    }

    /// A network by its id.
    pub async fn network(&self, id: &str) -> Result<Network> {
        let path = at!("networks", id);
        let ask = Ask::new(Service::Network, Method::GET, "show network", path);
        self.ask(ask).await?.read("network")
    }

    /// A network by its id or, if none has it, by exactly its name.
    pub async fn find_network(&self, id_or_name: &str) -> Result<Option<Network>> {
        if is_uuid(id_or_name)
            && let Some(network) = found(self.network(id_or_name).await)?
        {
            return Ok(Some(network));
        }
        let networks = self
            .list_networks(Query::new().with("name", id_or_name))
            .await?;
        let named = networks
            .into_iter()
            .filter(|network| network.name == id_or_name);
        one("networks", id_or_name, named)
    }

    async fn list_networks(&self, query: Query) -> Result<Vec<Network>> {
        let list = |query| {
            let path = at!("networks");
            Ask::new(Service::Network, Method::GET, "list networks", path).query(query)
        };
        let mut networks: Vec<Network> = self.list(list, query, "networks").await?;
        networks.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        Ok(networks)
    }

    /// The ports of a server, by id.
    pub async fn ports_of(&self, server: &str) -> Result<Vec<Port>> {
        let mut ports = self.list_ports("device_id", server).await?;
        ports.retain(|port| port.device_id == server);
        Ok(ports)
    }

    /// The ports that are bound to a host, by id.
    pub async fn ports_on(&self, host: &str) -> Result<Vec<Port>> {
        let mut ports = self.list_ports("binding:host_id", host).await?;
        ports.retain(|port| port.host.as_deref() == Some(host));
        Ok(ports)
    }

    async fn list_ports(&self, field: &str, value: &str) -> Result<Vec<Port>> {
        let list = |query| {
            Ask::new(Service::Network, Method::GET, "list ports", at!("ports")).query(query)
        };
        let query = Query::new().with(field, value);
        let mut ports: Vec<Port> = self.list(list, query, "ports").await?;
        ports.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(ports)
    }
}
