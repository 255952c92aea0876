//! Keeps the objects that go with a Node: what [`crate::objects`] wants, compared with what the
//! watches show.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cobalt_api::hypervisor::HypervisorStatus;
use cobalt_runtime::{Health, ObjectKey, Store, chain};
use kube::{Client, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::host::Host;
use crate::objects::{self, ActError, Kind, ObjectsConfig, Observed, Problem};

const DEADLINE: Duration = Duration::from_secs(15);
/// How often cert-manager is tried while it is missing.
const AGAIN: Duration = Duration::from_secs(60);

/// An object as text: of each there are thousands, and as a value it takes several times as much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The Node that it belongs to.
    pub node: Option<Arc<str>>,
    text: Box<str>,
}

impl Kept {
    /// Of an object.
    #[must_use]
    pub fn new<K: ResourceExt + Serialize>(object: &K) -> Self {
        let mut owners = object.owner_references().iter();
        let node = owners
            .find(|owner| owner.kind == "Node")
            .map(|owner| owner.name.as_str().into());
        // What came as text can be written as text; if not, it counts as missing and is applied.
        let text = serde_json::to_string(object).unwrap_or_default().into();
        Self { node, text }
    }

    fn read<K: DeserializeOwned>(&self) -> Option<Arc<K>> {
        serde_json::from_str(&self.text).ok().map(Arc::new)
    }
}

/// What is there.
#[derive(Debug)]
pub struct NodeObjects {
    /// What is wanted, and where.
    pub config: ObjectsConfig,
    /// Identities that read a node's Secrets.
    pub service_accounts: Option<Store<Kept>>,
    /// What they may read.
    pub roles: Option<Store<Kept>>,
    /// Both together.
    pub role_bindings: Option<Store<Kept>>,
    /// What keeps the pods that hold nodes.
    pub disruption_budgets: Store<Kept>,
    /// What runs them.
    pub deployments: Store<Kept>,
    /// Certificates for libvirt.
    pub certificates: Option<Store<Kept>>,
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
        let difference = objects::difference(&wanted, &self.observed(&host.name));
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

    fn observed(&self, node: &str) -> Observed {
        let mut observed = Observed {
            certificates_are_served: self.may_ask_for_certificates(),
            ..Observed::default()
        };
        for key in objects::keys(node, &self.config) {
            let at = ObjectKey::namespaced(&key.namespace, &key.name);
            match key.kind {
                Kind::ServiceAccount => {
                    observed.service_account = get(self.service_accounts.as_ref(), &at);
                }
                Kind::Role => observed.role = get(self.roles.as_ref(), &at),
                Kind::RoleBinding => observed.role_binding = get(self.role_bindings.as_ref(), &at),
                Kind::PodDisruptionBudget => {
                    observed.disruption_budget = get(Some(&self.disruption_budgets), &at);
                }
                Kind::Deployment => observed.deployment = get(Some(&self.deployments), &at),
                Kind::Certificate => observed.certificate = get(self.certificates.as_ref(), &at),
            }
        }
        observed
    }
}

async fn ready<T>(store: Option<&Store<T>>) {
    if let Some(store) = store {
        store.until_ready().await;
    }
}

fn get<K: DeserializeOwned>(store: Option<&Store<Kept>>, key: &ObjectKey) -> Option<Arc<K>> {
    store?.get(key)?.read()
}
