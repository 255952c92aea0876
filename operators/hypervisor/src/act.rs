//! Carries actions out. What an action finds or changes is put where the next decision sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use cobalt_api::eviction::{Eviction, EvictionSpec};
use cobalt_api::hypervisor::Hypervisor;
use cobalt_api::names::{FieldManager, annotations, finalizers};
use cobalt_openstack::compute::{
    Migration, MigrationFilter, MigrationStatus, Server, ServerFilter, ServerStatus, ServiceStatus,
};
use cobalt_openstack::{Client as OpenStack, Error as OpenStackError, found};
use cobalt_runtime::{Queue, Term, chain, within};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::action::Action;
use crate::clock;
use crate::eviction::witness::{self, Claim};
use crate::fleet::Watched;
use crate::host::{Host, Read, Reads, Remains, TestMigration, TestServer, Workload};
use crate::objects::list_agent_pods;
use crate::testbed::{Found, Testbed};

/// For one call of the API server.
const DEADLINE: Duration = Duration::from_secs(15);
/// Lines of the console that are looked at.
const CONSOLE_LINES: u32 = 50;

/// Why an action did not work.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// Nova, Placement or Keystone.
    #[error(transparent)]
    OpenStack(#[from] OpenStackError),
    /// The API server, in one line.
    #[error("{0}")]
    Kubernetes(String),
    /// It cannot be done now.
    #[error("{0}")]
    NotNow(String),
    /// Placement refuses some traits; the others are set.
    #[error("Placement refuses {}; the other traits are set", .0.join("; "))]
    RefusedTraits(Vec<String>),
}

impl ActError {
    /// Whether the same may work in a moment without anybody doing something.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            // Keystone and the service do not agree about a token that was just made.
            Self::OpenStack(error) => {
                error.is_transient() || error.is_uncertain() || error.is_unauthorized()
            }
            Self::Kubernetes(_) | Self::NotNow(_) => true,
            Self::RefusedTraits(_) => false,
        }
    }

    /// How long the other side wants to be left alone.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::OpenStack(error) => error.retry_after(),
            Self::Kubernetes(_) | Self::NotNow(_) | Self::RefusedTraits(_) => None,
        }
    }

    /// In one line.
    #[must_use]
    pub fn text(&self) -> String {
        chain(self)
    }
}

/// What actions are done with.
#[derive(Clone)]
pub struct Hands {
    /// The API server.
    pub client: Client,
    /// The cloud.
    pub openstack: OpenStack,
    /// What is known of all hosts.
    pub fleet: Watched,
    /// Whether this process leads.
    pub term: Term,
    /// Where tests run.
    pub testbed: watch::Receiver<Found>,
    /// Where agents run whose pods have to leave.
    pub agent_namespaces: Arc<[String]>,
    /// Where hosts with Evictions wait for their turn.
    pub evicting: Queue<Arc<str>>,
}

impl fmt::Debug for Hands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hands").finish_non_exhaustive()
    }
}

impl Hands {
    /// Does it. `reads` gets what it finds.
    ///
    /// # Errors
    ///
    /// When it did not work; it is safe to try again.
    pub async fn act(
        &self,
        host: &Host,
        action: &Action,
        reads: &mut Reads,
    ) -> Result<(), ActError> {
        if !action.is_read() && !self.term.holds() {
            return Err(ActError::NotNow(
                "this process does not lead any more".to_owned(),
            ));
        }
        let compute = self.openstack.compute();
        match action {
            Action::DisableService { id, reason } => {
                self.fleet
                    .put_service(compute.disable_service(id, reason).await?);
                reads.disabled();
                // An Eviction of the host may have waited for this.
                self.evicting.add(host.name.as_str().into());
            }
            Action::EnableService { id } => {
                self.fleet.put_service(compute.revive_service(id).await?);
            }
            Action::JoinAggregate { id, host, .. } => {
                let joined = compute.add_host(*id, host).await;
                self.changed_aggregate(joined, host, true)?;
            }
            Action::LeaveAggregate { id, host, .. } => {
                let left = compute.remove_host(*id, host).await;
                self.changed_aggregate(left, host, false)?;
            }
            Action::SetTraits {
                provider,
                add,
                remove,
            } => {
                let (present, refused) = self.set_traits(provider, add, remove).await?;
                self.fleet.put_traits(provider, &present);
                reads.traits = Some(now(present));
                if !refused.is_empty() {
                    return Err(ActError::RefusedTraits(refused));
                }
            }
            Action::ReadTest { name } => {
                reads.test = Some(now(self.read_test(name).await?));
            }
            Action::CreateTest { name, host, zone } => {
                reads.test = None;
                let testbed = self.testbed()?;
                let new = testbed.server(name, host, zone.as_deref());
                testbed.client.compute().create_server(&new).await?;
            }
            Action::DeleteTest { ids } => {
                reads.test = None;
                let testbed = self.testbed()?;
                for id in ids {
                    found(testbed.client.compute().delete_server(id).await)?;
                }
            }
            Action::MigrateTest { id, to } => {
                reads.test = None;
                self.testbed()?
                    .client
                    .compute()
                    .live_migrate(id, Some(to))
                    .await?;
            }
            Action::CreateEviction { reason, labels } => {
                self.create_eviction(host, reason, labels).await?;
            }
            Action::DeleteEviction { name, uid } => self.delete_eviction(name, uid).await?,
            Action::ClearRetry => {
                let patch = json!({ annotations::RETRY_ONBOARDING: null });
                self.annotate(&host.name, patch).await?;
            }
            Action::Record { record } => {
                let patch = json!({ annotations::ONBOARDED: record.as_str() });
                self.annotate(&host.name, patch).await?;
            }
            Action::ReadNode => {
                let api: Api<Node> = Api::all(self.client.clone());
                let node = within(DEADLINE, api.get_opt(&host.name)).await;
                reads.node = Some(now(node.map_err(ActError::Kubernetes)?.is_some()));
            }
            Action::ReadPods => {
                let pods =
                    list_agent_pods(&self.client, &self.agent_namespaces, &host.name, DEADLINE);
                reads.pods = Some(now(pods.await.map_err(ActError::Kubernetes)?));
            }
            Action::ReadWorkload { host } => {
                reads.workload = Some(now(self.read_workload(host).await?));
            }
            Action::ReadDomains => {
                let report = witness::report(&self.client, &host.name, DEADLINE).await;
                reads.libvirt = Some(now(report.map_err(ActError::Kubernetes)?));
            }
            Action::ReadRemains { host, names } => {
                let remains = self.read_remains(host, names).await?;
                reads.looked(clock::now(), remains);
            }
            Action::DeleteAllocations { consumers } => {
                reads.remains = None;
                for consumer in consumers {
                    found(
                        self.openstack
                            .placement()
                            .delete_allocations(consumer)
                            .await,
                    )?;
                }
            }
            Action::DeleteProviders { ids, names } => {
                reads.remains = None;
                self.delete_providers(ids, names).await?;
            }
            Action::DeleteService { id, host } => {
                reads.remains = None;
                let present = compute.service_of(host).await?;
                if let Some(other) = present.filter(|present| present.id != *id) {
                    return Err(ActError::NotNow(format!(
                        "the service of \"{host}\" is {} by now, and not {id}",
                        other.id
                    )));
                }
                found(compute.delete_service(id).await)?;
                self.fleet.remove_host(host);
                self.fleet.refresh();
            }
            Action::Release => self.release(host).await?,
        }
        Ok(())
    }

    fn testbed(&self) -> Result<Arc<Testbed>, ActError> {
        self.testbed.borrow().clone().map_err(ActError::NotNow)
    }

    /// That the host is in it already, or out of it, is known from a new list.
    fn changed_aggregate(
        &self,
        result: Result<cobalt_openstack::compute::Aggregate, OpenStackError>,
        host: &str,
        joined: bool,
    ) -> Result<(), ActError> {
        match result {
            Ok(aggregate) => self.fleet.put_member(aggregate, host, joined),
            Err(error) if error.is_conflict() || error.is_not_found() => {
                self.fleet.refresh();
                return Err(error.into());
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Changes the traits of a provider. One that Placement refuses does not hold up the others:
    /// returned are those that the provider has now, and those that were refused, with the reason.
    async fn set_traits(
        &self,
        provider: &str,
        add: &BTreeSet<String>,
        remove: &BTreeSet<String>,
    ) -> Result<(BTreeSet<String>, Vec<String>), ActError> {
        let placement = self.openstack.placement();
        let known = placement.custom_traits().await?;
        let mut good = add.clone();
        let mut refused = Vec::new();
        for name in add.iter().filter(|name| name.starts_with("CUSTOM_")) {
            if known.contains(name) {
                continue;
            }
            match placement.create_trait(name).await {
                Ok(()) => {}
                Err(error) if error.status() == Some(400) => {
                    good.remove(name);
                    refused.push(format!("{name} ({})", chain(&error)));
                }
                Err(error) => return Err(error.into()),
            }
        }
        match placement
            .update_traits(provider, changed(&good, remove))
            .await
        {
            Ok(present) => return Ok((present.traits, refused)),
            // One of those that are not custom ones does not exist.
            Err(error) if error.status() == Some(400) => {}
            Err(error) => return Err(error.into()),
        }
        let none = BTreeSet::new();
        let mut present = placement
            .update_traits(provider, changed(&none, remove))
            .await?
            .traits;
        for name in good {
            let one = BTreeSet::from([name.clone()]);
            match placement
                .update_traits(provider, changed(&one, &none))
                .await
            {
                Ok(after) => present = after.traits,
                Err(error) if error.status() == Some(400) => {
                    refused.push(format!("{name} ({})", chain(&error)));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok((present, refused))
    }

    async fn read_test(&self, name: &str) -> Result<Vec<TestServer>, ActError> {
        let testbed = self.testbed()?;
        let compute = testbed.client.compute();
        let mut all = Vec::new();
        for server in compute.servers(&ServerFilter::named(name)).await? {
            // Nova's filter is a regular expression; the name is compared here as well.
            if server.name != name || server.status == ServerStatus::Deleted {
                continue;
            }
            let mut spoke = false;
            if server.status == ServerStatus::Active {
                // It may be gone since the list was made.
                let console = compute.console_output(&server.id, CONSOLE_LINES).await;
                let Some(console) = found(console)? else {
                    continue;
                };
                spoke = console.contains(name);
            }
            let filter = MigrationFilter {
                server: Some(server.id.clone()),
                ..MigrationFilter::default()
            };
            let migrations = self.openstack.compute().migrations(&filter).await?;
            let migration = migrations.into_iter().next().map(|last| TestMigration {
                to: last.dest_compute.clone(),
                status: last.status.as_str().to_owned(),
                ended: last.status.has_ended(),
                succeeded: last.status.is_success(),
            });
            all.push(TestServer {
                id: server.id,
                status: server.status.as_str().to_owned(),
                task: server.task_state,
                host: server.host,
                fault: server.fault.map(|fault| fault.message),
                spoke,
                migration,
            });
        }
        Ok(all)
    }

    async fn create_eviction(
        &self,
        host: &Host,
        reason: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<(), ActError> {
        let Some(known) = &host.hypervisor else {
            return Ok(());
        };
        let spec = EvictionSpec {
            hypervisor: host.name.clone(),
            reason: reason.to_owned(),
            ..EvictionSpec::default()
        };
        let mut eviction = Eviction::new(&host.name, spec);
        eviction.metadata.labels = Some(labels.clone());
        eviction.metadata.owner_references = Some(vec![OwnerReference {
            api_version: Hypervisor::api_version(&()).into_owned(),
            kind: Hypervisor::kind(&()).into_owned(),
            name: host.name.clone(),
            uid: known.object.uid().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]);
        let api: Api<Eviction> = Api::all(self.client.clone());
        let params = PostParams {
            field_manager: Some(FieldManager::Operator.as_str().to_owned()),
            ..PostParams::default()
        };
        match tokio::time::timeout(DEADLINE, api.create(&params, &eviction)).await {
            Ok(Ok(_)) => Ok(()),
            // It is there: the watch will show it.
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Ok(()),
            Ok(Err(error)) => Err(ActError::Kubernetes(chain(&error))),
            Err(_) => Err(ActError::Kubernetes(
                "the API server does not answer".to_owned(),
            )),
        }
    }

    async fn delete_eviction(&self, name: &str, uid: &str) -> Result<(), ActError> {
        let api: Api<Eviction> = Api::all(self.client.clone());
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        gone(tokio::time::timeout(DEADLINE, api.delete(name, &params)).await)
    }

    /// Changes annotations of a Hypervisor.
    async fn annotate(&self, name: &str, annotations: Value) -> Result<(), ActError> {
        let api: Api<Hypervisor> = Api::all(self.client.clone());
        let patch = json!({ "metadata": { "annotations": annotations } });
        let params = PatchParams {
            field_manager: Some(FieldManager::Operator.as_str().to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(&patch);
        let patched = api.patch(name, &params, &patch);
        gone(tokio::time::timeout(DEADLINE, patched).await)
    }

    /// Takes the finalizer off, and nothing else that others may have put there meanwhile.
    async fn release(&self, host: &Host) -> Result<(), ActError> {
        let Some(known) = &host.hypervisor else {
            return Ok(());
        };
        let api: Api<Hypervisor> = Api::all(self.client.clone());
        release(&api, &known.object).await
    }

    async fn read_workload(&self, host: &str) -> Result<Workload, ActError> {
        let compute = self.openstack.compute();
        let servers = compute.servers(&ServerFilter::on(host)).await?;
        let mut migrations = Vec::new();
        if !servers.is_empty() {
            let filter = MigrationFilter {
                host: Some(host.to_owned()),
                ..MigrationFilter::default()
            };
            migrations = compute.migrations(&filter).await?;
        }
        Ok(workload(host, &servers, &migrations))
    }

    /// Removes providers, if they still belong to a tree whose top has one of these names.
    async fn delete_providers(
        &self,
        ids: &[String],
        names: &BTreeSet<String>,
    ) -> Result<(), ActError> {
        let placement = self.openstack.placement();
        let mut roots = BTreeSet::new();
        for name in names {
            roots.extend(placement.provider_named(name).await?.map(|root| root.uuid));
        }
        for id in ids {
            let Some(one) = found(placement.provider(id).await)? else {
                continue;
            };
            let root = one.root.as_ref().unwrap_or(&one.uuid);
            if !roots.contains(root) {
                return Err(ActError::NotNow(format!(
                    "the resource provider {id} (\"{}\") is not this host's: it stays",
                    one.name
                )));
            }
            found(placement.delete_provider(id).await)?;
        }
        Ok(())
    }

    /// What Nova and Placement have of a host, and who of its consumers is alive. Its provider is
    /// found by name: no id that anybody could have written somewhere is believed.
    async fn read_remains(
        &self,
        host: &str,
        names: &BTreeSet<String>,
    ) -> Result<Remains, ActError> {
        let compute = self.openstack.compute();
        let placement = self.openstack.placement();
        let mut remains = Remains::default();
        for server in compute.server_names(&ServerFilter::on(host)).await? {
            remains.servers.insert(server.id);
        }
        if let Some(service) = compute.service_of(host).await? {
            remains.cell_down = service.status == ServiceStatus::Unknown;
            remains.service = Some(service.id).filter(|_| !remains.cell_down);
        }
        let mut trees = Vec::new();
        for name in names {
            // That there is none is believed from a list only: whatever stands in for Placement
            // says 404, too.
            let Some(root) = placement.provider_named(name).await? else {
                continue;
            };
            let mut tree = placement.providers_in_tree(&root.uuid).await?;
            // Children first: a provider with children is not removed.
            tree.sort_by_key(|one| one.uuid == root.uuid);
            trees.extend(tree);
        }
        for one in trees {
            let used = found(placement.provider_allocations(&one.uuid).await)?;
            let consumers: BTreeSet<String> = used
                .map(|used| used.allocations.into_keys().collect())
                .unwrap_or_default();
            let claims = witness::claims(&self.openstack, host, &consumers).await?;
            for (consumer, claim) in claims.into_iter().filter(|(_, claim)| claim.is_alive()) {
                if let Claim::Migration { server, status, .. } = claim
                    && status == MigrationStatus::Finished
                {
                    remains.unconfirmed.insert(consumer.clone(), server);
                }
                remains.alive.insert(consumer);
            }
            remains.providers.push((one.uuid, consumers));
        }
        Ok(remains)
    }
}

/// Some traits more and some less than those that are there.
fn changed(
    add: &BTreeSet<String>,
    remove: &BTreeSet<String>,
) -> impl Fn(&BTreeSet<String>) -> BTreeSet<String> {
    move |present| {
        present
            .iter()
            .filter(|name| !remove.contains(*name))
            .chain(add)
            .cloned()
            .collect()
    }
}

/// What runs on a host, and since when. A server that never ran, or whose age is not known, shows
/// nothing.
#[must_use]
pub fn workload(host: &str, servers: &[Server], migrations: &[Migration]) -> Workload {
    let has_run = |server: &&Server| {
        !matches!(
            server.status,
            ServerStatus::Build
                | ServerStatus::Error
                | ServerStatus::Deleted
                | ServerStatus::Unknown
        )
    };
    let arrived = |server: &Server| {
        let mut latest = server.created?;
        for one in migrations {
            if one.server == server.id && one.dest_compute.as_deref() == Some(host) {
                latest = latest.max(one.updated_at.or(one.created_at)?);
            }
        }
        Some(latest)
    };
    Workload {
        servers: servers.len(),
        oldest: servers.iter().filter(has_run).filter_map(arrived).min(),
    }
}

/// Takes the finalizer off a Hypervisor.
///
/// # Errors
///
/// When the API server refuses it or does not answer.
pub async fn release(api: &Api<Hypervisor>, object: &Hypervisor) -> Result<(), ActError> {
    take_off(api, object, finalizers::REGISTERED_HOST).await
}

/// Takes a finalizer off an object, and changes nothing else.
///
/// # Errors
///
/// When the API server refuses it or does not answer.
pub async fn take_off<K>(api: &Api<K>, object: &K, finalizer: &str) -> Result<(), ActError>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let mut all = object.finalizers().iter();
    let Some(index) = all.position(|one| one == finalizer) else {
        return Ok(());
    };
    let path = format!("/metadata/finalizers/{index}");
    let operations = json!([
        { "op": "test", "path": path, "value": finalizer },
        { "op": "remove", "path": path },
    ]);
    let patch =
        serde_json::from_value(operations).map_err(|error| ActError::Kubernetes(chain(&error)))?;
    let params = PatchParams::default();
    let name = object.name_any();
    let patch = Patch::Json::<()>(patch);
    let patched = api.patch(&name, &params, &patch);
    gone(tokio::time::timeout(DEADLINE, patched).await)
}

/// That it is gone already is as good.
fn gone<T>(
    result: Result<Result<T, kube::Error>, tokio::time::error::Elapsed>,
) -> Result<(), ActError> {
    match result {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(()),
        Ok(Err(error)) => Err(ActError::Kubernetes(chain(&error))),
        Err(_) => Err(ActError::Kubernetes(
            "the API server does not answer".to_owned(),
        )),
    }
}

fn now<T>(value: T) -> Read<T> {
    Read {
        at: clock::now(),
        value,
    }
}
