//! How to log in to a lab's OpenStack.

use serde::{Deserialize, Serialize};

/// The region in the catalogue of a lab's OpenStack.
pub const REGION: &str = "RegionOne";

/// Where it is and who to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Access {
    /// Keystone.
    pub auth_url: String,
    /// The administrator.
    pub username: String,
    /// Their password.
    pub password: String,
    /// Their project.
    pub project: String,
    /// The domain of both.
    pub domain: String,
    /// The region in the catalogue.
    pub region: String,
    /// Where the hosts of the light OpenStack are controlled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_url: Option<String>,
}

impl Access {
    /// The administrator of a lab's OpenStack.
    pub fn admin(auth_url: String) -> Self {
        Self {
            auth_url,
            username: "admin".into(),
            password: "admin".into(),
            project: "admin".into(),
            domain: "Default".into(),
            region: REGION.into(),
            control_url: None,
        }
    }

    /// The variables that OpenStack's clients read.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            ("OS_AUTH_TYPE", "password".into()),
            ("OS_AUTH_URL", self.auth_url.clone()),
            ("OS_IDENTITY_API_VERSION", "3".into()),
            ("OS_USERNAME", self.username.clone()),
            ("OS_PASSWORD", self.password.clone()),
            ("OS_PROJECT_NAME", self.project.clone()),
            ("OS_USER_DOMAIN_NAME", self.domain.clone()),
            ("OS_PROJECT_DOMAIN_NAME", self.domain.clone()),
            ("OS_REGION_NAME", self.region.clone()),
        ];
        if let Some(url) = &self.control_url {
            variables.push(("COBALT_OPENSTACK_CONTROL", url.clone()));
        }
        variables
    }
}
