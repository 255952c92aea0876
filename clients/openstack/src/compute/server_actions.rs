//! What is done to a server, and what became of it.
//!
//! Nova takes most requests and fails later: that no host was found for a migration is only in the
//! instance action of that request's id.

use http::Method;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Compute, ask};
use crate::client::Reply;
use crate::decode::{or_default, time};
use crate::error::Result;
use crate::query::{Query, at};

/// Up to this version an evacuated server is started again (if it ran), from 2.95 on it is left
/// off.
const EVACUATE_STARTS: &str = "2.94";
const EVACUATE_LEAVES_OFF: &str = "2.95";

/// Nova took a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The name of what it became: see [`Compute::action`].
    pub request_id: Option<String>,
}

/// What an evacuated server does on its new host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterEvacuation {
    /// It runs again if it ran before: its owner shall not notice more than a reboot.
    AsBefore,
    /// It is off, and its owner starts it: where its data must be looked at first.
    Off,
}

/// What a server's state is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerState {
    /// ACTIVE.
    Active,
    /// ERROR.
    Error,
}

/// Something that was done to a server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Action {
    /// `live-migration`, `migrate`, `evacuate`, `create`, ...
    #[serde(default, deserialize_with = "or_default")]
    pub action: String,
    /// The request that asked for it.
    #[serde(default, deserialize_with = "or_default")]
    pub request_id: String,
    /// `Error` if it failed.
    pub message: Option<String>,
    /// When it began.
    #[serde(default, deserialize_with = "time")]
    pub start_time: Option<Timestamp>,
    /// When it changed last.
    #[serde(default, deserialize_with = "time")]
    pub updated_at: Option<Timestamp>,
    /// Its steps, the newest first; only when it is shown alone.
    #[serde(default, deserialize_with = "or_default")]
    pub events: Vec<ActionEvent>,
}

/// A step of an action.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ActionEvent {
    /// What was done.
    #[serde(default, deserialize_with = "or_default")]
    pub event: String,
    /// Where.
    pub host: Option<String>,
    /// `Success` or `Error`; absent while it is under way.
    pub result: Option<String>,
    /// Why it failed, in a sentence.
    pub details: Option<String>,
    /// When it began.
    #[serde(default, deserialize_with = "time")]
    pub start_time: Option<Timestamp>,
    /// When it ended.
    #[serde(default, deserialize_with = "time")]
    pub finish_time: Option<Timestamp>,
}

impl Action {
    /// Why it failed, if it did: the words of the step that failed first.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        let failed = |event: &&ActionEvent| event.result.as_deref() == Some("Error");
        let first = self
            .events
            .iter()
            .filter(failed)
            .min_by_key(|event| (event.finish_time, event.start_time));
        match first {
            Some(event) => Some(event.details.as_deref().unwrap_or(&event.event)),
            None => self
                .message
                .as_deref()
                .filter(|message| *message == "Error"),
        }
    }
}

impl Compute<'_> {
    /// Moves a running server, to a host or to one that the scheduler finds. Its local disks are
    /// copied if they have to be.
    pub async fn live_migrate(&self, server: &str, host: Option<&str>) -> Result<Accepted> {
        let body = json!({ "os-migrateLive": { "host": host, "block_migration": "auto" } });
        self.act("live-migrate server", server, body).await
    }

    /// Moves a server that does not run, to a host or to one that the scheduler finds. It ends in
    /// VERIFY_RESIZE and is to be confirmed or reverted.
    pub async fn migrate(&self, server: &str, host: Option<&str>) -> Result<Accepted> {
        let host = host.map(|host| json!({ "host": host }));
        self.act("migrate server", server, json!({ "migrate": host }))
            .await
    }

    /// Keeps a resized or migrated server where it is now.
    pub async fn confirm_resize(&self, server: &str) -> Result<Accepted> {
        self.act("confirm resize", server, json!({ "confirmResize": null }))
            .await
    }

    /// Brings a resized or migrated server back to where it was.
    pub async fn revert_resize(&self, server: &str) -> Result<Accepted> {
        self.act("revert resize", server, json!({ "revertResize": null }))
            .await
    }

    /// Starts a server of a dead host elsewhere. Refused (400) while Nova takes the host for alive.
    pub async fn evacuate(
        &self,
        server: &str,
        host: Option<&str>,
        after: AfterEvacuation,
    ) -> Result<Accepted> {
        let version = match after {
            AfterEvacuation::AsBefore => EVACUATE_STARTS,
            AfterEvacuation::Off => EVACUATE_LEAVES_OFF,
        };
        let target = host.map_or_else(|| json!({}), |host| json!({ "host": host }));
        let ask = ask(
            Method::POST,
            "evacuate server",
            at!("servers", server, "action"),
        )
        .version(version)
        .body(json!({ "evacuate": target }));
        self.client.ask(ask).await.map(|reply| accepted(&reply))
    }

    /// Lets the host go of a server that is shelved; it comes back elsewhere when it is unshelved.
    pub async fn shelve_offload(&self, server: &str) -> Result<Accepted> {
        let body = json!({ "shelveOffload": null });
        self.act("offload server", server, body).await
    }

    /// Says what state a server is in. Nothing else is done to it.
    pub async fn reset_state(&self, server: &str, state: ServerState) -> Result<Accepted> {
        let state = match state {
            ServerState::Active => "active",
            ServerState::Error => "error",
        };
        let body = json!({ "os-resetState": { "state": state } });
        self.act("reset state", server, body).await
    }

    /// Keeps its owner from changing a server.
    pub async fn lock(&self, server: &str, reason: Option<&str>) -> Result<Accepted> {
        let reason = reason.map(|reason| json!({ "locked_reason": reason }));
        self.act("lock server", server, json!({ "lock": reason }))
            .await
    }

    /// Undoes a lock.
    pub async fn unlock(&self, server: &str) -> Result<Accepted> {
        self.act("unlock server", server, json!({ "unlock": null }))
            .await
    }

    /// Starts a server that is off.
    pub async fn start(&self, server: &str) -> Result<Accepted> {
        self.act("start server", server, json!({ "os-start": null }))
            .await
    }

    /// Shuts a server down.
    pub async fn stop(&self, server: &str) -> Result<Accepted> {
        self.act("stop server", server, json!({ "os-stop": null }))
            .await
    }

    /// The end of what a server wrote to its console.
    pub async fn console_output(&self, server: &str, lines: u32) -> Result<String> {
        let body = json!({ "os-getConsoleOutput": { "length": lines } });
        let mut ask = ask(
            Method::POST,
            "read console",
            at!("servers", server, "action"),
        );
        // It only reads.
        ask.idempotent = true;
        let reply = self.client.ask(ask.body(body)).await?;
        Ok(reply.read::<Option<String>>("output")?.unwrap_or_default())
    }

    async fn act(&self, name: &'static str, server: &str, body: Value) -> Result<Accepted> {
        let ask = ask(Method::POST, name, at!("servers", server, "action")).body(body);
        self.client.ask(ask).await.map(|reply| accepted(&reply))
    }

    /// What was done to a server, the newest first, without the steps.
    pub async fn actions(&self, server: &str) -> Result<Vec<Action>> {
        let path = at!("servers", server, "os-instance-actions");
        let list = |query| ask(Method::GET, "list actions", path.clone()).query(query);
        let all = self.client.list(list, Query::new(), "instanceActions");
        all.await
    }

    /// What became of a request, with its steps.
    pub async fn action(&self, server: &str, request_id: &str) -> Result<Action> {
        let path = at!("servers", server, "os-instance-actions", request_id);
        let ask = ask(Method::GET, "show action", path);
        self.client.ask(ask).await?.read("instanceAction")
    }
}

fn accepted(reply: &Reply) -> Accepted {
    Accepted {
        request_id: reply.request_id(),
    }
}
