//! Migrations: of one server while they run, and all that there were.

use http::Method;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::{Compute, ask};
use crate::decode::{or_default, time, words};
use crate::error::Result;
use crate::query::{Query, at};

words! {
    /// How far a migration is.
    MigrationStatus {
        /// The API took it.
        Accepted = "accepted",
        /// It waits for its turn on the source.
        Queued = "queued",
        /// The target gets ready.
        Preparing = "preparing",
        /// Memory is being copied.
        Running = "running",
        /// The guest runs on the target already.
        RunningPostCopy = "running (post-copy)",
        /// A cold migration is ready to move.
        PreMigrating = "pre-migrating",
        /// Disks are being moved.
        Migrating = "migrating",
        /// Disks were moved.
        PostMigrating = "post-migrating",
        /// A cold migration is to be confirmed.
        Finished = "finished",
        /// A confirmation is under way.
        Confirming = "confirming",
        /// A cold migration was confirmed.
        Confirmed = "confirmed",
        /// A cold migration is taken back.
        Reverting = "reverting",
        /// A cold migration was taken back.
        Reverted = "reverted",
        /// It ended well.
        Completed = "completed",
        /// An evacuation ended; the dead host does not know yet.
        Done = "done",
        /// It was aborted.
        Cancelled = "cancelled",
        /// It failed, and the server is where it was.
        Failed = "failed",
        /// It failed. Nova 33 says so of aborted ones, too.
        Error = "error",
    }
}

impl MigrationStatus {
    /// Whether nothing more happens by itself. A word that is not known has not ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.is_success()
            || matches!(
                self,
                Self::Finished | Self::Reverted | Self::Cancelled | Self::Failed | Self::Error
            )
    }

    /// Whether a migration holds resources of its source in Placement: as long as it goes on, and
    /// while it waits to be confirmed. A word that is not known does.
    #[must_use]
    pub fn holds_source(&self) -> bool {
        !self.has_ended() || *self == Self::Finished
    }

    /// Whether the server is where it was to be, for good.
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Completed | Self::Done | Self::Confirmed)
    }
}

words! {
    /// What kind of migration.
    MigrationKind {
        /// The guest runs on.
        Live = "live-migration",
        /// The guest is off.
        Cold = "migration",
        /// To another flavor.
        Resize = "resize",
        /// Off a dead host.
        Evacuation = "evacuation",
    }
}

/// A migration, now or earlier.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Migration {
    /// What calls want.
    pub id: i64,
    /// What pages and Placement want: it is a consumer there while it lasts.
    #[serde(default, deserialize_with = "or_default")]
    pub uuid: String,
    /// Which server.
    #[serde(rename = "instance_uuid")]
    pub server: String,
    /// How far it is.
    #[serde(default, deserialize_with = "or_default")]
    pub status: MigrationStatus,
    /// What kind.
    #[serde(rename = "migration_type", default, deserialize_with = "or_default")]
    pub kind: MigrationKind,
    /// From which nova-compute.
    pub source_compute: Option<String>,
    /// To which nova-compute; none before the scheduler found one.
    pub dest_compute: Option<String>,
    /// From which hypervisor.
    pub source_node: Option<String>,
    /// To which hypervisor.
    pub dest_node: Option<String>,
    /// When it was asked for.
    #[serde(default, deserialize_with = "time")]
    pub created_at: Option<Timestamp>,
    /// When it changed last.
    #[serde(default, deserialize_with = "time")]
    pub updated_at: Option<Timestamp>,
}

/// A live migration under way, with its progress. The numbers are bytes. Nova tells them every few
/// seconds; before the first time they are absent or 0 of 0.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ServerMigration {
    /// What calls want.
    pub id: i64,
    /// Its uuid.
    #[serde(default, deserialize_with = "or_default")]
    pub uuid: String,
    /// Which server.
    #[serde(rename = "server_uuid")]
    pub server: String,
    /// How far it is.
    #[serde(default, deserialize_with = "or_default")]
    pub status: MigrationStatus,
    /// From which nova-compute.
    pub source_compute: Option<String>,
    /// To which nova-compute.
    pub dest_compute: Option<String>,
    /// Memory in all.
    pub memory_total_bytes: Option<u64>,
    /// Memory that was sent; grows beyond the total when it is sent again.
    pub memory_processed_bytes: Option<u64>,
    /// Memory that is to be sent.
    pub memory_remaining_bytes: Option<u64>,
    /// Disks in all.
    pub disk_total_bytes: Option<u64>,
    /// Of the disks, what was sent.
    pub disk_processed_bytes: Option<u64>,
    /// Of the disks, what is to be sent.
    pub disk_remaining_bytes: Option<u64>,
    /// When it was asked for.
    #[serde(default, deserialize_with = "time")]
    pub created_at: Option<Timestamp>,
    /// When it changed last.
    #[serde(default, deserialize_with = "time")]
    pub updated_at: Option<Timestamp>,
}

/// Which migrations are listed. Nothing said is everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MigrationFilter {
    /// From or to this nova-compute.
    pub host: Option<String>,
    /// From this nova-compute.
    pub source_compute: Option<String>,
    /// Of this server.
    pub server: Option<String>,
    /// In this state.
    pub status: Option<MigrationStatus>,
    /// Of this kind.
    pub kind: Option<MigrationKind>,
    /// Changed since.
    pub changes_since: Option<Timestamp>,
}

impl Compute<'_> {
    /// All migrations, the newest first.
    pub async fn migrations(&self, filter: &MigrationFilter) -> Result<Vec<Migration>> {
        let since = filter.changes_since.map(|time| time.to_string());
        let query = Query::new()
            .maybe("host", filter.host.as_ref())
            .maybe("source_compute", filter.source_compute.as_ref())
            .maybe("instance_uuid", filter.server.as_ref())
            .maybe(
                "status",
                filter.status.as_ref().map(MigrationStatus::as_str),
            )
            .maybe(
                "migration_type",
                filter.kind.as_ref().map(MigrationKind::as_str),
            )
            .maybe("changes-since", since);
        let list = |query| ask(Method::GET, "list migrations", at!("os-migrations")).query(query);
        self.client.list(list, query, "migrations").await
    }

    /// The live migrations of a server that are under way.
    pub async fn server_migrations(&self, server: &str) -> Result<Vec<ServerMigration>> {
        let path = at!("servers", server, "migrations");
        let ask = ask(Method::GET, "list server migrations", path);
        self.client.ask(ask).await?.read("migrations")
    }

    /// A live migration under way. Not found (404) once it has ended: then
    /// [`migrations`](Self::migrations) has it.
    pub async fn server_migration(&self, server: &str, id: i64) -> Result<ServerMigration> {
        let path = at!("servers", server, "migrations", &id.to_string());
        let ask = ask(Method::GET, "show server migration", path);
        self.client.ask(ask).await?.read("migration")
    }

    /// Makes a live migration end: the guest is paused or moves by post-copy.
    pub async fn force_complete(&self, server: &str, id: i64) -> Result<()> {
        let path = at!("servers", server, "migrations", &id.to_string(), "action");
        let body = json!({ "force_complete": null });
        let ask = ask(Method::POST, "force complete migration", path).body(body);
        self.client.ask(ask).await.map(drop)
    }

    /// Asks for the end of a live migration; the server stays where it is. Refused (400) when it
    /// can no longer be stopped, not found (404) once it has ended.
    pub async fn abort_migration(&self, server: &str, id: i64) -> Result<()> {
        let path = at!("servers", server, "migrations", &id.to_string());
        let ask = ask(Method::DELETE, "abort migration", path);
        self.client.ask(ask).await.map(drop)
    }
}
