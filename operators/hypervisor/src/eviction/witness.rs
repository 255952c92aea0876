//! What is left on a host, by three witnesses that do not know of each other: Nova, Placement, and
//! libvirt through the agent of the node.
//!
//! Nova alone is not enough. While the database of a cell does not answer, its lists leave out the
//! servers of that cell without a word (API version 2.69 and later), and a server that is asked for
//! by its id is UNKNOWN and on no host. Placement still has what those servers hold, and libvirt
//! still has their domains.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cobalt_api::conditions::{self, HypervisorCondition};
use cobalt_api::hypervisor::{Hypervisor, HypervisorStatus, Instance};
use cobalt_api::names::{annotations, leases};
use cobalt_openstack::compute::{
    Migration, MigrationFilter, MigrationKind, MigrationStatus, Server, ServerStatus,
};
use cobalt_openstack::{Client as OpenStack, Error, found};
use cobalt_runtime::within;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};

use crate::consumers::migration_is_alive;

/// How long a heartbeat is good for if it does not say so.
const HEARTBEAT: SignedDuration = SignedDuration::from_secs(40);

/// Where Nova says that a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// There is no such server.
    Gone,
    /// The database of its cell does not answer: it may be anywhere.
    CellDown,
    /// It is shelved and offloaded: the only state in which to be on no host means to have left.
    Offloaded,
    /// On no host, in another state.
    Nowhere(ServerStatus),
    /// On a host.
    On {
        /// The host, as Nova calls it.
        host: String,
        /// What it does there.
        status: ServerStatus,
        /// Nova is busy with it.
        busy: bool,
        /// Why it is in ERROR.
        fault: Option<String>,
    },
}

impl Place {
    /// By what Nova shows of one server; `None`: it knows none of that id.
    #[must_use]
    pub fn of(server: Option<Server>) -> Self {
        let Some(server) = server else {
            return Self::Gone;
        };
        let host = server.host.filter(|host| !host.is_empty());
        match (server.status, host) {
            (ServerStatus::Deleted, _) => Self::Gone,
            (ServerStatus::Unknown, _) => Self::CellDown,
            (ServerStatus::ShelvedOffloaded, None) => Self::Offloaded,
            (status, None) => Self::Nowhere(status),
            (status, Some(host)) => Self::On {
                host,
                busy: server.task_state.is_some_and(|task| !task.is_empty())
                    || matches!(
                        status,
                        ServerStatus::Build
                            | ServerStatus::Migrating
                            | ServerStatus::Resize
                            | ServerStatus::VerifyResize
                            | ServerStatus::RevertResize
                            | ServerStatus::Rebuild
                    ),
                fault: server.fault.map(|fault| fault.message),
                status,
            },
        }
    }
}

/// Who a consumer in Placement is, that holds something of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// A server.
    Server(Place),
    /// A migration that has not given back what it holds.
    Migration {
        /// Of which server.
        server: String,
        /// What kind.
        kind: MigrationKind,
        /// How far it is. `finished`: a resize that waits to be confirmed, and a revert brings the
        /// server back.
        status: MigrationStatus,
    },
    /// Nova knows neither a server nor a migration of that id, or the migration has ended: nobody
    /// will give it back.
    Nobody,
}

impl Claim {
    /// `place` is what Nova says of a server of that id, `migrations` are those from or to the host.
    #[must_use]
    pub fn of(consumer: &str, place: Place, migrations: &[Migration]) -> Self {
        if place != Place::Gone {
            return Self::Server(place);
        }
        let mut migrations = migrations.iter();
        match migrations.find(|one| one.uuid == consumer && one.status.holds_source()) {
            Some(one) => Self::Migration {
                server: one.server.clone(),
                kind: one.kind.clone(),
                status: one.status.clone(),
            },
            None => Self::Nobody,
        }
    }

    /// Whether what it holds is still somebody's.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        *self != Self::Nobody
    }
}

/// What Nova says of those who hold something of a host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claims {
    /// The cell of the host does not answer. Nova lists neither its servers nor its migrations then.
    pub cell_down: bool,
    /// Who they are, by the id that Placement has.
    pub by: BTreeMap<String, Claim>,
}

/// What the agent of a host says of libvirt's domains there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// All domains, by the id of their server.
    Domains(BTreeMap<String, Domain>),
    /// It cannot be asked, and why. What it said last is not believed.
    Silent(String),
}

/// A domain of libvirt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Domain {
    /// Its guest runs or is paused.
    pub runs: bool,
    /// In libvirt's words.
    pub state: String,
    /// It ended by itself: it crashed, or QEMU was killed.
    pub crashed: bool,
}

impl From<&Instance> for Domain {
    fn from(instance: &Instance) -> Self {
        let word = |word: &Option<String>| word.clone().unwrap_or_default();
        let (state, reason) = (word(&instance.state), word(&instance.reason));
        let ended = ["shutoff", "crashed", "shutdown"].contains(&state.as_str())
            // It waits for the rest of its memory.
            || (state == "paused" && reason.starts_with("migrat"));
        let crashed = state == "crashed" || ["crashed", "failed"].contains(&reason.as_str());
        let both = if reason.is_empty() {
            state
        } else {
            format!("{state}, {reason}")
        };
        Self {
            runs: instance.active && !ended,
            crashed,
            state: if both.is_empty() {
                (if instance.active {
                    "running"
                } else {
                    "shutoff"
                })
                .to_owned()
            } else {
                both
            },
        }
    }
}

impl Report {
    /// By the heartbeat of the agent and by what it has written last. `None` of either: there is no
    /// such object.
    #[must_use]
    pub fn of(lease: Option<&Lease>, status: Option<&HypervisorStatus>, now: Timestamp) -> Self {
        if let Some(why) = silence(lease, now) {
            return Self::Silent(why);
        }
        let Some(status) = status else {
            return Self::Silent("its agent has not reported yet".to_owned());
        };
        if !conditions::is_true(&status.conditions, HypervisorCondition::LibVirtConnection) {
            return Self::Silent("its agent has no connection to libvirt".to_owned());
        }
        let domains = status.instances.iter();
        Self::Domains(
            domains
                .map(|one| (one.id.clone(), Domain::from(one)))
                .collect(),
        )
    }

    /// Why it cannot be asked.
    #[must_use]
    pub fn silence(&self) -> Option<&str> {
        match self {
            Self::Silent(why) => Some(why),
            Self::Domains(_) => None,
        }
    }

    /// The servers whose guests run, as far as anybody says so.
    #[must_use]
    pub fn running(&self) -> BTreeSet<String> {
        let all = match self {
            Self::Silent(_) => return BTreeSet::new(),
            Self::Domains(all) => all.iter(),
        };
        all.filter(|(_, domain)| domain.runs)
            .map(|(server, _)| server.clone())
            .collect()
    }

    /// What it says of one server. `None`: it cannot be asked.
    #[must_use]
    pub fn domain(&self, server: &str) -> Option<Option<&Domain>> {
        match self {
            Self::Silent(_) => None,
            Self::Domains(all) => Some(all.get(server)),
        }
    }
}

/// Why an agent with this heartbeat is not believed.
fn silence(lease: Option<&Lease>, now: Timestamp) -> Option<String> {
    let Some(lease) = lease else {
        return Some("its agent has no heartbeat".to_owned());
    };
    let notes = lease.metadata.annotations.as_ref();
    if let Some(why) = notes.and_then(|notes| notes.get(annotations::NOT_RENEWED_BECAUSE)) {
        return Some(format!("its agent says: {why}"));
    }
    let spec = lease.spec.as_ref();
    let renewed = spec.and_then(|spec| spec.renew_time.as_ref());
    let Some(renewed) = renewed else {
        return Some("its agent has no heartbeat".to_owned());
    };
    let long = spec.and_then(|spec| spec.lease_duration_seconds);
    let long = long.map_or(HEARTBEAT, |seconds| {
        SignedDuration::from_secs(seconds.into())
    });
    let age = now.duration_since(renewed.0);
    // A heartbeat from the future would else keep a dead agent alive.
    (age.abs() > long).then(|| format!("the last heartbeat of its agent is of {}", renewed.0))
}

/// Who those are that hold something of the host.
///
/// # Errors
///
/// When Nova does not answer.
pub async fn claims(
    openstack: &OpenStack,
    host: &str,
    consumers: &BTreeSet<String>,
) -> Result<BTreeMap<String, Claim>, Error> {
    let compute = openstack.compute();
    let mut migrations = None;
    let mut all = BTreeMap::new();
    for consumer in consumers {
        let place = Place::of(found(compute.server(consumer).await)?);
        if place == Place::Gone && migrations.is_none() {
            let filter = MigrationFilter {
                host: Some(host.to_owned()),
                ..MigrationFilter::default()
            };
            migrations = Some(compute.migrations(&filter).await?);
        }
        let migrations = migrations.as_deref().unwrap_or_default();
        let mut claim = Claim::of(consumer, place, migrations);
        if let Claim::Migration { server, .. } = &claim
            && let Some(migration) = migrations.iter().find(|one| one.uuid == *consumer)
        {
            // Nobody ends the record of a migration whose driver died: its server decides.
            let server = found(compute.server(server).await)?;
            if !migration_is_alive(migration, server.as_ref(), host) {
                claim = Claim::Nobody;
            }
        }
        all.insert(consumer.clone(), claim);
    }
    Ok(all)
}

/// What the agent of a host says of libvirt.
///
/// # Errors
///
/// When the API server does not answer.
pub async fn report(client: &Client, host: &str, deadline: Duration) -> Result<Report, String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), leases::NODE_AGENT_NAMESPACE);
    let hypervisors: Api<Hypervisor> = Api::all(client.clone());
    let lease = within(deadline, leases.get_opt(host)).await?;
    // The heartbeat first: what is read after it was written while the agent lived.
    let object = within(deadline, hypervisors.get_opt(host)).await?;
    let status = object.and_then(|object| object.status);
    Ok(Report::of(
        lease.as_ref(),
        status.as_ref(),
        crate::clock::now(),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-01-01T00:01:00Z";

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }

    fn lease(renewed: &str) -> Lease {
        serde_json::from_value(json!({
            "metadata": { "name": "hv1" },
            "spec": {
                "holderIdentity": "agent", "leaseDurationSeconds": 40,
                "renewTime": renewed,
            },
        }))
        .unwrap()
    }

    fn status(connected: &str) -> HypervisorStatus {
        serde_json::from_value(json!({
            "instances": [
                { "id": "a", "name": "a", "active": true, "state": "running" },
                { "id": "b", "name": "b", "active": true, "state": "paused" },
                { "id": "c", "name": "c", "active": false, "state": "shutoff", "reason": "crashed" },
                { "id": "d", "name": "d", "active": false },
            ],
            "conditions": [{
                "type": "LibVirtConnection", "status": connected, "reason": "Connected",
                "message": "", "lastTransitionTime": NOW,
            }],
        }))
        .unwrap()
    }

    #[test]
    fn only_an_agent_that_lives_and_reaches_libvirt_is_believed() {
        let fresh = lease("2026-01-01T00:00:30.000000Z");
        let report = Report::of(Some(&fresh), Some(&status("True")), now());
        let runs = |id: &str| report.domain(id).unwrap().unwrap().runs;
        assert!(runs("a") && runs("b") && !runs("c") && !runs("d"));
        assert!(report.domain("c").unwrap().unwrap().crashed);
        assert_eq!(report.domain("e"), Some(None));
        assert_eq!(report.running(), ["a", "b"].map(str::to_owned).into());

        let mut let_go = fresh.clone();
        let because = "the agent was told to end".to_owned();
        let_go.metadata.annotations =
            Some([(annotations::NOT_RENEWED_BECAUSE.to_owned(), because)].into());
        let stale = lease("2026-01-01T00:00:10.000000Z");
        let future = lease("2026-01-01T01:00:00.000000Z");
        for (lease, connected, why) in [
            (None, "True", "no heartbeat"),
            (Some(&let_go), "True", "told to end"),
            (Some(&stale), "True", "last heartbeat"),
            (Some(&future), "True", "last heartbeat"),
            (Some(&fresh), "False", "no connection"),
        ] {
            let report = Report::of(lease, Some(&status(connected)), now());
            let said = report.silence().unwrap();
            assert!(said.contains(why), "{said}");
            assert_eq!(report.domain("a"), None);
            assert_eq!(report.running(), BTreeSet::new());
        }
    }

    #[allow(clippy::needless_pass_by_value, reason = "callers write it in place")]
    fn server(more: serde_json::Value) -> Server {
        let mut all = json!({ "id": "a" });
        let object = all.as_object_mut().unwrap();
        object.extend(more.as_object().unwrap().clone());
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn to_be_on_no_host_means_to_have_left_for_offloaded_servers_alone() {
        let place = |more| Place::of(Some(server(more)));
        assert_eq!(Place::of(None), Place::Gone);
        // As Nova shows a server whose cell does not answer.
        let unknown = json!({ "status": "UNKNOWN", "tenant_id": "p", "created": NOW });
        assert_eq!(place(unknown), Place::CellDown);
        let offloaded = json!({ "status": "SHELVED_OFFLOADED", "OS-EXT-SRV-ATTR:host": null });
        assert_eq!(place(offloaded), Place::Offloaded);
        for status in ["ERROR", "BUILD", "ACTIVE"] {
            let place = place(json!({ "status": status }));
            assert!(matches!(place, Place::Nowhere(_)), "{place:?}");
        }
        let here = json!({ "status": "ACTIVE", "OS-EXT-SRV-ATTR:host": "hv1" });
        assert!(matches!(place(here), Place::On { host, busy: false, .. } if host == "hv1"));
        let resized = json!({ "status": "VERIFY_RESIZE", "OS-EXT-SRV-ATTR:host": "hv2" });
        assert!(matches!(place(resized), Place::On { busy: true, .. }));
    }

    #[test]
    fn a_resize_that_waits_to_be_confirmed_is_alive() {
        let migration = |status: &str| -> Migration {
            serde_json::from_value(json!({
                "id": 1, "uuid": "m", "instance_uuid": "a", "status": status,
                "migration_type": "resize", "source_compute": "hv1", "dest_compute": "hv2",
            }))
            .unwrap()
        };
        for (status, alive) in [
            ("migrating", true),
            ("post-migrating", true),
            ("finished", true),
            ("confirming", true),
            ("reverting", true),
            ("confirmed", false),
            ("reverted", false),
            ("error", false),
            ("failed", false),
            ("completed", false),
            ("cancelled", false),
        ] {
            let claim = Claim::of("m", Place::Gone, &[migration(status)]);
            assert_eq!(claim.is_alive(), alive, "{status}");
        }
        assert_eq!(Claim::of("m", Place::Gone, &[]), Claim::Nobody);
        assert!(Claim::of("a", Place::CellDown, &[]).is_alive());
    }
}
