//! Servers: which are where, how they do, new ones.

use std::collections::{BTreeMap, BTreeSet};

use http::Method;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use super::{Compute, NewServer, ask};
use crate::decode::{or_default, time, words};
use crate::error::Result;
use crate::query::{Query, at};

words! {
    /// What a server does, in Nova's words for users.
    ServerStatus {
        /// It runs.
        Active = "ACTIVE",
        /// It is being made.
        Build = "BUILD",
        /// Deleted.
        Deleted = "DELETED",
        /// Something failed; the guest may run all the same.
        Error = "ERROR",
        /// A hard reboot is under way.
        HardReboot = "HARD_REBOOT",
        /// It is live-migrated.
        Migrating = "MIGRATING",
        /// Its password is changed.
        Password = "PASSWORD",
        /// Paused.
        Paused = "PAUSED",
        /// A soft reboot is under way.
        Reboot = "REBOOT",
        /// It is made anew from an image, or evacuated.
        Rebuild = "REBUILD",
        /// In rescue.
        Rescue = "RESCUE",
        /// It is resized or cold-migrated.
        Resize = "RESIZE",
        /// A resize is reverted.
        RevertResize = "REVERT_RESIZE",
        /// Shelved, still on its host.
        Shelved = "SHELVED",
        /// Shelved, on no host.
        ShelvedOffloaded = "SHELVED_OFFLOADED",
        /// Off.
        Shutoff = "SHUTOFF",
        /// Deleted, and may come back.
        SoftDeleted = "SOFT_DELETED",
        /// Suspended to disk.
        Suspended = "SUSPENDED",
        /// The database of its cell does not answer: where it is and what it does is not known.
        Unknown = "UNKNOWN",
        /// Resized or cold-migrated, to be confirmed.
        VerifyResize = "VERIFY_RESIZE",
    }
}

/// What the guest does, as the hypervisor told last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum PowerState {
    /// Nobody knows.
    #[default]
    None,
    /// It runs.
    Running,
    /// Paused.
    Paused,
    /// Off.
    Shutdown,
    /// Crashed.
    Crashed,
    /// Suspended.
    Suspended,
    /// A number that is not known here.
    Other(i64),
}

impl<'de> Deserialize<'de> for PowerState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match i64::deserialize(deserializer)? {
            0 => Self::None,
            1 => Self::Running,
            3 => Self::Paused,
            4 => Self::Shutdown,
            6 => Self::Crashed,
            7 => Self::Suspended,
            other => Self::Other(other),
        })
    }
}

/// A server. What Nova shows to administrators only is optional.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Server {
    /// Its id.
    pub id: String,
    /// Its name; not unique.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// What it does.
    #[serde(default, deserialize_with = "or_default")]
    pub status: ServerStatus,
    /// What Nova is doing with it; nothing if absent.
    #[serde(rename = "OS-EXT-STS:task_state")]
    pub task_state: Option<String>,
    /// What it does, in Nova's own words.
    #[serde(rename = "OS-EXT-STS:vm_state")]
    pub vm_state: Option<String>,
    /// What the guest does.
    #[serde(
        rename = "OS-EXT-STS:power_state",
        default,
        deserialize_with = "or_default"
    )]
    pub power_state: PowerState,
    /// The nova-compute that has it; none while it is scheduled, or shelved and offloaded.
    #[serde(rename = "OS-EXT-SRV-ATTR:host")]
    pub host: Option<String>,
    /// The hypervisor that has it.
    #[serde(rename = "OS-EXT-SRV-ATTR:hypervisor_hostname")]
    pub hypervisor_hostname: Option<String>,
    /// libvirt's name of it.
    #[serde(rename = "OS-EXT-SRV-ATTR:instance_name")]
    pub instance_name: Option<String>,
    /// Whether its host is `UP`, `DOWN`, `MAINTENANCE`, `UNKNOWN`.
    pub host_status: Option<String>,
    /// Its zone.
    #[serde(rename = "OS-EXT-AZ:availability_zone")]
    pub availability_zone: Option<String>,
    /// Its project.
    #[serde(rename = "tenant_id")]
    pub project_id: Option<String>,
    /// Who made it.
    pub user_id: Option<String>,
    /// How large it is.
    #[serde(default, deserialize_with = "or_default")]
    pub flavor: ServerFlavor,
    /// What its owner wrote to it.
    #[serde(default, deserialize_with = "or_default")]
    pub metadata: BTreeMap<String, String>,
    /// What its owner calls it.
    #[serde(default, deserialize_with = "or_default")]
    pub tags: BTreeSet<String>,
    /// Whether its owner locked it.
    #[serde(default, deserialize_with = "or_default")]
    pub locked: bool,
    /// Why it is locked.
    pub locked_reason: Option<String>,
    /// The groups that it is in; only when it is shown alone.
    #[serde(default, deserialize_with = "or_default")]
    pub server_groups: Vec<String>,
    /// Its volumes.
    #[serde(
        rename = "os-extended-volumes:volumes_attached",
        default,
        deserialize_with = "or_default"
    )]
    pub volumes: Vec<AttachedVolume>,
    /// Its addresses by network.
    #[serde(default, deserialize_with = "or_default")]
    pub addresses: BTreeMap<String, Vec<Address>>,
    /// Why it is in ERROR.
    pub fault: Option<Fault>,
    /// When it was made.
    #[serde(default, deserialize_with = "time")]
    pub created: Option<Timestamp>,
    /// When it changed last.
    #[serde(default, deserialize_with = "time")]
    pub updated: Option<Timestamp>,
    /// When it ran first on its present host.
    #[serde(rename = "OS-SRV-USG:launched_at", default, deserialize_with = "time")]
    pub launched_at: Option<Timestamp>,
}

/// How large a server is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct ServerFlavor {
    /// The flavor's name when the server was made.
    #[serde(rename = "original_name")]
    pub name: Option<String>,
    /// Processors.
    #[serde(default, deserialize_with = "or_default")]
    pub vcpus: u64,
    /// Memory in MiB.
    #[serde(default, deserialize_with = "or_default")]
    pub ram: u64,
    /// Root disk in GiB.
    #[serde(default, deserialize_with = "or_default")]
    pub disk: u64,
    /// A second disk in GiB.
    #[serde(default, deserialize_with = "or_default")]
    pub ephemeral: u64,
    /// Swap in MiB.
    #[serde(default, deserialize_with = "or_default")]
    pub swap: u64,
    /// What the scheduler and the driver look at: PCI aliases, NUMA, traits.
    #[serde(default, deserialize_with = "or_default")]
    pub extra_specs: BTreeMap<String, String>,
}

/// A volume of a server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AttachedVolume {
    /// Its id.
    pub id: String,
    /// Whether it goes with the server.
    #[serde(default, deserialize_with = "or_default")]
    pub delete_on_termination: bool,
}

/// An address of a server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Address {
    /// The address.
    pub addr: String,
    /// `fixed` or `floating`.
    #[serde(rename = "OS-EXT-IPS:type")]
    pub kind: Option<String>,
}

/// Why a server is in ERROR.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Fault {
    /// An HTTP status.
    pub code: Option<i64>,
    /// In a sentence.
    #[serde(default, deserialize_with = "or_default")]
    pub message: String,
    /// A traceback, for administrators.
    pub details: Option<String>,
    /// Since when.
    #[serde(default, deserialize_with = "time")]
    pub created: Option<Timestamp>,
}

/// A server by its names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct ServerName {
    /// Its id.
    pub id: String,
    /// Its name.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
}

/// Which servers are listed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerFilter {
    /// Those of exactly this nova-compute, of all projects.
    pub host: Option<String>,
    /// Those of exactly this name.
    pub name: Option<String>,
    /// Those of all projects; needs an administrator.
    pub all_projects: bool,
    /// Those in this state.
    pub status: Option<ServerStatus>,
    /// Those that changed since. Nova adds servers that were deleted since.
    pub changes_since: Option<Timestamp>,
}

impl ServerFilter {
    /// Everything that a host has.
    pub fn on(host: impl Into<String>) -> Self {
        Self {
            host: Some(host.into()),
            all_projects: true,
            ..Self::default()
        }
    }

    /// Those of all projects that are in ERROR, and changed since.
    #[must_use]
    pub fn in_error(since: Timestamp) -> Self {
        Self {
            all_projects: true,
            status: Some(ServerStatus::Error),
            changes_since: Some(since),
            ..Self::default()
        }
    }

    /// Those of the client's project with exactly this name.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: Some(name.into()),
            ..Self::default()
        }
    }

    fn query(&self) -> Query {
        // Nova takes a name for a regular expression.
        let name = self
            .name
            .as_deref()
            .map(|name| format!("^{}$", literal(name)));
        Query::new()
            .maybe("all_tenants", self.all_projects.then_some("1"))
            .maybe("host", self.host.as_ref())
            .maybe("name", name)
            .maybe("status", self.status.as_ref().map(ServerStatus::as_str))
            .maybe(
                "changes-since",
                self.changes_since.map(|since| since.to_string()),
            )
    }
}

/// A regular expression that matches just this text.
fn literal(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        if character.is_ascii_punctuation() && !"-_:/@,;'\"=<>%&~`#!".contains(character) {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

impl Compute<'_> {
    /// Servers in detail, the newest first.
    pub async fn servers(&self, filter: &ServerFilter) -> Result<Vec<Server>> {
        let list = |query| ask(Method::GET, "list servers", at!("servers", "detail")).query(query);
        let mut servers: Vec<Server> = self.client.list(list, filter.query(), "servers").await?;
        servers.retain(|server| filter.name.as_ref().is_none_or(|name| *name == server.name));
        // Shown to administrators only, so it may be missing.
        let on = |server: &Server, host: &String| server.host.as_ref().is_none_or(|on| on == host);
        servers.retain(|server| filter.host.as_ref().is_none_or(|host| on(server, host)));
        Ok(servers)
    }

    /// Servers by name alone, the newest first: far cheaper for Nova.
    pub async fn server_names(&self, filter: &ServerFilter) -> Result<Vec<ServerName>> {
        let list = |query| ask(Method::GET, "list server names", at!("servers")).query(query);
        let mut names: Vec<ServerName> = self.client.list(list, filter.query(), "servers").await?;
        names.retain(|server| filter.name.as_ref().is_none_or(|name| *name == server.name));
        Ok(names)
    }

    /// A server by its id.
    pub async fn server(&self, id: &str) -> Result<Server> {
        let ask = ask(Method::GET, "show server", at!("servers", id));
        self.client.ask(ask).await?.read("server")
    }

    /// A server that was deleted, as long as Nova's database has it; needs an administrator.
    pub async fn deleted_server(&self, id: &str) -> Result<Option<Server>> {
        let query = Query::new()
            .with("all_tenants", "1")
            .with("deleted", "true")
            .with("uuid", id);
        let path = at!("servers", "detail");
        let ask = ask(Method::GET, "list deleted servers", path).query(query);
        let found: Vec<Server> = self.client.ask(ask).await?.read("servers")?;
        Ok(found.into_iter().find(|server| server.id == id))
    }

    /// Makes a server; its id is known at once, its fate is not.
    ///
    /// Never repeated: after an uncertain failure look for its name before trying again.
    pub async fn create_server(&self, new: &NewServer) -> Result<String> {
        #[derive(Deserialize)]
        struct Created {
            id: String,
        }
        let ask = ask(Method::POST, "create server", at!("servers")).body(new.to_json());
        let created: Created = self.client.ask(ask).await?.read("server")?;
        Ok(created.id)
    }

    /// Removes a server; it goes in its own time.
    pub async fn delete_server(&self, id: &str) -> Result<()> {
        let ask = ask(Method::DELETE, "delete server", at!("servers", id));
        self.client.ask(ask).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_in_error_are_asked_for_by_their_state_and_time() {
        let query = ServerFilter::in_error("2026-01-01T00:00:00Z".parse().unwrap()).query();
        let decoded = crate::query::decoded(query.as_str());
        assert_eq!(
            decoded,
            "?all_tenants=1&status=ERROR&changes-since=2026-01-01T00:00:00Z"
        );
    }

    #[test]
    fn w18_a_name_is_no_pattern() {
        let query = ServerFilter::named("ohooc--node-1.x(+)").query();
        let decoded = crate::query::decoded(query.as_str());
        assert_eq!(decoded, r"?name=^ohooc--node-1\.x\(\+\)$");
    }
}
