//! Keeps the objects that go with a Node: what [`crate::objects`] wants, compared with what the
//! watches show.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cobalt_api::hypervisor::HypervisorStatus;
use cobalt_runtime::{Health, ObjectKey, Store, chain};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::host::Host;
use crate::kept::{self, Kept};
use crate::objects::{
    self, ActError, Kind, ObjectsConfig, Observed, Problem, trim_certificate, trim_deployment,
    trim_disruption_budget, trim_role, trim_role_binding, trim_service_account,
};

const DEADLINE: Duration = Duration::from_secs(15);
/// How often cert-manager is tried while it is missing.
const AGAIN: Duration = Duration::from_secs(60);

/// What is there.
#[derive(Debug)]
pub struct NodeObjects {
    /// What is wanted, and where.
    pub config: ObjectsConfig,
    /// Identities that read a node's Secrets.
    pub service_accounts: Option<Store<Kept<ServiceAccount>>>,
    /// What they may read.
    pub roles: Option<Store<Kept<Role>>>,
    /// Both together.
    pub role_bindings: Option<Store<Kept<RoleBinding>>>,
    /// What keeps the pods that hold nodes.
    pub disruption_budgets: Store<Kept<PodDisruptionBudget>>,
    /// What runs them.
    pub deployments: Store<Kept<Deployment>>,
    /// Certificates for libvirt.
    pub certificates: Option<Store<Kept<DynamicObject>>>,
    /// Where it is said that cert-manager is missing.
    pub health: Health,
    /// When cert-manager was found missing last.
    pub no_cert_manager: Mutex<Option<Instant>>,
}

impl NodeObjects {
    /// Writes what differs, if anything does. The status is the newest one.
    ///
    /// # Errors
    ///
    /// Says what could not be made, in one line; the rest was made.
    pub async fn keep(
        &self,
        client: &Client,
        host: &Host,
        status: &HypervisorStatus,
    ) -> Result<(), String> {
        let Some(node) = &host.node else {
            return Ok(());
        };
        let hypervisor = host.hypervisor.as_ref().map(|known| {
            let mut object = known.object.clone();
            object.status = Some(status.clone());
            object
        });
        let wanted = objects::wanted(node, hypervisor.as_ref(), &self.config);
        let difference = objects::difference(&wanted, &self.observed(client, &host.name).await?);
        let mut failed = Vec::new();
        for change in &difference.changes {
            match objects::act(client, change, DEADLINE).await {
                Ok(()) => tracing::info!(host = host.name, ?change, "done"),
                Err(ActError::NoCertManager { .. }) => self.say_missing(),
                Err(error) => failed.push(chain(&error)),
            }
        }
        for problem in &difference.problems {
            // That cert-manager is not there is said once for all nodes, by the health.
            if !matches!(problem, Problem::NoCertManager { .. }) {
                failed.push(problem.to_string());
            }
        }
        if failed.is_empty() {
            Ok(())
        } else {
            Err(failed.join("; "))
        }
    }

    /// All that is watched has been listed.
    pub async fn until_ready(&self) {
        self.disruption_budgets.until_ready().await;
        self.deployments.until_ready().await;
        ready(self.service_accounts.as_ref()).await;
        ready(self.roles.as_ref()).await;
        ready(self.role_bindings.as_ref()).await;
        ready(self.certificates.as_ref()).await;
    }

    fn say_missing(&self) {
        let text =
            "the cluster knows no Certificates: install cert-manager, or turn certificates off";
        self.health
            .set_missing("cert-manager", Some(text.to_owned()));
        *self.missing() = Some(Instant::now());
    }

    fn missing(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.no_cert_manager
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// While cert-manager is missing, one host a minute tries.
    fn may_ask_for_certificates(&self) -> bool {
        let mut missing = self.missing();
        match *missing {
            Some(since) if since.elapsed() < AGAIN => false,
            Some(_) => {
                *missing = Some(Instant::now());
                self.health.set_missing("cert-manager", None);
                true
            }
            None => true,
        }
    }

    async fn observed(&self, client: &Client, node: &str) -> Result<Observed, String> {
        let mut observed = Observed {
            certificates_are_served: self.may_ask_for_certificates(),
            ..Observed::default()
        };
        for key in objects::keys(node, &self.config) {
            let look = Look { client, key: &key };
            match key.kind {
                Kind::ServiceAccount => {
                    let all = self.service_accounts.as_ref();
                    observed.service_account = look.find(all, trim_service_account).await?;
                }
                Kind::Role => {
                    observed.role = look.find(self.roles.as_ref(), trim_role).await?;
                }
                Kind::RoleBinding => {
                    let all = self.role_bindings.as_ref();
                    observed.role_binding = look.find(all, trim_role_binding).await?;
                }
                Kind::PodDisruptionBudget => {
                    let all = Some(&self.disruption_budgets);
                    observed.disruption_budget = look.find(all, trim_disruption_budget).await?;
                }
                Kind::Deployment => {
                    let all = Some(&self.deployments);
                    observed.deployment = look.find(all, trim_deployment).await?;
                }
                Kind::Certificate => {
                    let all = self.certificates.as_ref();
                    observed.certificate = look.find(all, trim_certificate).await?;
                }
            }
        }
        Ok(observed)
    }
}

/// Where an object is looked for.
struct Look<'a> {
    client: &'a Client,
    key: &'a objects::ObjectKey,
}

impl Look<'_> {
    async fn find<K>(
        &self,
        store: Option<&Store<Kept<K>>>,
        trim: fn(K) -> K,
    ) -> Result<Option<Arc<K>>, String>
    where
        K: ResourceExt + Serialize + DeserializeOwned,
    {
        let Some(store) = store else {
            return Ok(None);
        };
        let at = ObjectKey::namespaced(&self.key.namespace, &self.key.name);
        let api = || {
            let resource = self.key.kind.resource();
            Api::namespaced_with(self.client.clone(), &self.key.namespace, &resource)
        };
        let found = kept::find(store, &at, api, trim).await;
        found.map_err(|error| format!("{} was not read: {error}", self.key))
    }
}

async fn ready<T>(store: Option<&Store<T>>) {
    if let Some(store) = store {
        store.until_ready().await;
    }
}
