//! What the commands ask of the API server: the OVSNode, and a token for its agent. Every call has a
//! deadline.

use std::time::Duration;

use anyhow::{Context, Result};
use cobalt_api::names::audiences;
use cobalt_api::ovsnode::OvsNode;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};

use super::agent::Trouble;
use crate::server::answer;

const DEADLINE: Duration = Duration::from_secs(30);
/// The shortest time that the API server grants; a capture needs its token only when it begins.
const TOKEN_SECONDS: i64 = 600;

/// A node, and where in the cluster it and its agent are found.
#[derive(Clone, Debug)]
pub struct Place {
    nodes: Api<OvsNode>,
    accounts: Api<ServiceAccount>,
    node: String,
    namespace: String,
    service_account: String,
}

impl Place {
    pub fn new(client: Client, node: String, namespace: String, service_account: String) -> Self {
        Self {
            nodes: Api::namespaced(client.clone(), &namespace),
            accounts: Api::namespaced(client, &namespace),
            node,
            namespace,
            service_account,
        }
    }

    /// The OVSNode of the node.
    ///
    /// # Errors
    ///
    /// When there is none, or it cannot be read.
    pub async fn ovs_node(&self) -> Result<OvsNode> {
        let Self {
            node, namespace, ..
        } = self;
        let found = answer(self.nodes.get_opt(node)).await.with_context(|| {
            format!("failed to read the OVSNode \"{node}\" in the namespace {namespace}")
        })?;
        found.with_context(|| {
            format!(
                "there is no OVSNode \"{node}\" in the namespace {namespace}; `kubectl get \
                 ovsnodes -A` lists them, and --namespace names another namespace"
            )
        })
    }

    /// A token that the agent of this node accepts, and nobody else. The person's own never leaves
    /// for a node.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub async fn token(&self) -> Result<String, Trouble> {
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(vec![audiences::ovs_diagnostics(&self.node)]),
                expiration_seconds: Some(TOKEN_SECONDS),
                bound_object_ref: None,
            }),
            ..TokenRequest::default()
        };
        let params = PostParams::default();
        let made = self
            .accounts
            .create_token_request(&self.service_account, &params, &request);
        let account = || format!("{}/{}", self.namespace, self.service_account);
        let made = match tokio::time::timeout(DEADLINE, made).await {
            Ok(Ok(made)) => made,
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                return Err(Trouble::TokenForbidden {
                    account: account(),
                    said: status.message.clone(),
                });
            }
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                return Err(Trouble::NoAccount { account: account() });
            }
            Ok(Err(error)) => {
                return Err(Trouble::Token {
                    account: account(),
                    source: Box::new(error),
                });
            }
            Err(_) => return Err(Trouble::ApiServer(DEADLINE)),
        };
        let token = made.status.and_then(|status| status.token);
        token.ok_or_else(|| Trouble::TokenForbidden {
            account: account(),
            said: "the API server gave none".to_owned(),
        })
    }

    /// How to see whether the agent of the node runs.
    pub fn pods(&self) -> String {
        format!(
            "`kubectl -n {} get pods -o wide --field-selector spec.nodeName={}`",
            self.namespace, self.node
        )
    }
}
