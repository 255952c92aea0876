//! Who to be, and where to log in.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::service::Service;

/// Why credentials cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// Something is not there.
    #[error("{0} is not set")]
    Missing(&'static str),
    /// Something is there that is not supported.
    #[error("{name} is {value:?}: {why}")]
    Unsupported {
        /// Which variable.
        name: &'static str,
        /// What it says.
        value: String,
        /// What to do.
        why: &'static str,
    },
    /// An application credential has its project; no other can be asked for.
    #[error("an application credential belongs to one project; use a password for other scopes")]
    FixedScope,
    /// A file cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of certificates has none, or they cannot be used.
    #[error("failed to use the certificates of OS_CACERT: {0}")]
    Certificates(String),
    /// The command that tells the password failed.
    #[error("the command of OS_PW_CMD failed: {0}")]
    Command(String),
}

/// Something that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps it.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Something of Keystone's, by its id or by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reference {
    /// By id.
    Id(String),
    /// By name; a name is unique in its domain. Domains have none.
    Name {
        /// The name.
        name: String,
        /// The domain that it is in.
        domain: Option<Box<Reference>>,
    },
}

impl Reference {
    /// A domain, or anything else that has no domain, by its name.
    pub fn named(name: impl Into<String>) -> Self {
        Self::Name {
            name: name.into(),
            domain: None,
        }
    }

    /// A user or a project by its name.
    pub fn named_in(name: impl Into<String>, domain: Self) -> Self {
        Self::Name {
            name: name.into(),
            domain: Some(Box::new(domain)),
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Id(id) => json!({ "id": id }),
            Self::Name { name, domain: None } => json!({ "name": name }),
            Self::Name {
                name,
                domain: Some(domain),
            } => json!({ "name": name, "domain": domain.to_json() }),
        }
    }
}

/// What a token is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// A project.
    Project(Reference),
    /// The whole system.
    System,
}

/// How to prove who one is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// A user's password.
    Password {
        /// The user.
        user: Reference,
        /// The password.
        password: Secret,
    },
    /// A user's password that a program prints; it runs at each login, without a shell.
    PasswordCommand {
        /// The user.
        user: Reference,
        /// The command.
        command: Secret,
    },
    /// An application credential by its id.
    ApplicationCredential {
        /// Its id.
        id: String,
        /// Its secret.
        secret: Secret,
    },
    /// An application credential by its name, which is unique for its user.
    NamedApplicationCredential {
        /// Its name.
        name: String,
        /// Whose it is.
        user: Reference,
        /// Its secret.
        secret: Secret,
    },
}

/// Which of the addresses of a service is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Interface {
    /// For everybody.
    #[default]
    Public,
    /// For the services among themselves.
    Internal,
    /// For administrators.
    Admin,
}

impl Interface {
    /// Its name in the catalog.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Internal => "internal",
            Self::Admin => "admin",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.trim_end_matches("URL") {
            "public" => Some(Self::Public),
            "internal" => Some(Self::Internal),
            "admin" => Some(Self::Admin),
            _ => None,
        }
    }
}

/// Everything that is needed to log in and to find the services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Keystone, with or without `/v3`.
    pub auth_url: String,
    /// Who to be.
    pub identity: Identity,
    /// For what.
    pub scope: Scope,
    /// Needed if the catalog has several.
    pub region: Option<String>,
    /// Which addresses to use.
    pub interface: Interface,
    /// Certificates that are trusted, as PEM, and no others. Without them, those of the system.
    pub ca: Option<String>,
    /// Addresses that are used in place of the catalog's.
    pub endpoints: BTreeMap<Service, String>,
}

impl Credentials {
    /// A user with a password, for a project.
    pub fn password(
        auth_url: impl Into<String>,
        user: Reference,
        password: Secret,
        project: Reference,
    ) -> Self {
        Self {
            auth_url: auth_url.into(),
            identity: Identity::Password { user, password },
            scope: Scope::Project(project),
            region: None,
            interface: Interface::Public,
            ca: None,
            endpoints: BTreeMap::new(),
        }
    }

    /// The address of Keystone's API.
    pub(crate) fn identity_url(&self) -> String {
        let url = self.auth_url.trim_end_matches('/');
        match url.strip_suffix("/v2.0").unwrap_or(url) {
            url if url.ends_with("/v3") => url.to_owned(),
            url => format!("{url}/v3"),
        }
    }

    /// The body of a login. `password` is what a password command printed.
    pub(crate) fn auth_body(&self, password: Option<&Secret>) -> Value {
        let by_password = |user: &Reference, password: &Secret| {
            let mut user = user.to_json();
            if let Some(user) = user.as_object_mut() {
                user.insert("password".into(), password.reveal().into());
            }
            json!({ "methods": ["password"], "password": { "user": user } })
        };
        let by_credential = |credential: Value| json!({ "methods": ["application_credential"], "application_credential": credential });
        let empty = Secret::new("");
        let identity = match &self.identity {
            Identity::Password { user, password } => by_password(user, password),
            Identity::PasswordCommand { user, .. } => by_password(user, password.unwrap_or(&empty)),
            Identity::ApplicationCredential { id, secret } => {
                by_credential(json!({ "id": id, "secret": secret.reveal() }))
            }
            Identity::NamedApplicationCredential { name, user, secret } => by_credential(json!({
                "name": name, "user": user.to_json(), "secret": secret.reveal(),
            })),
        };
        if self.has_fixed_scope() {
            // It has its scope; Keystone refuses to be told.
            return json!({ "auth": { "identity": identity } });
        }
        let scope = match &self.scope {
            Scope::Project(project) => json!({ "project": project.to_json() }),
            Scope::System => json!({ "system": { "all": true } }),
        };
        json!({ "auth": { "identity": identity, "scope": scope } })
    }

    pub(crate) fn has_fixed_scope(&self) -> bool {
        matches!(
            self.identity,
            Identity::ApplicationCredential { .. } | Identity::NamedApplicationCredential { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admin() -> Credentials {
        let domain = Reference::named("Default");
        Credentials::password(
            "http://keystone:5000",
            Reference::named_in("admin", domain.clone()),
            Secret::new("hidden"),
            Reference::named_in("service", domain),
        )
    }

    #[test]
    fn secrets_are_not_printed() {
        assert!(!format!("{:?}", admin()).contains("hidden"));
    }

    #[test]
    fn keystone_is_found_with_and_without_its_version() {
        let mut credentials = admin();
        for url in [
            "http://k:5000",
            "http://k:5000/",
            "http://k:5000/v3",
            "http://k:5000/v3/",
        ] {
            credentials.auth_url = url.into();
            assert_eq!(credentials.identity_url(), "http://k:5000/v3");
        }
        credentials.auth_url = "https://cloud/identity/v2.0".into();
        assert_eq!(credentials.identity_url(), "https://cloud/identity/v3");
    }

    #[test]
    fn an_application_credential_asks_for_no_scope() {
        let mut credentials = admin();
        assert!(credentials.auth_body(None)["auth"]["scope"].is_object());
        credentials.identity = Identity::ApplicationCredential {
            id: "a".into(),
            secret: Secret::new("s"),
        };
        assert!(credentials.auth_body(None)["auth"].get("scope").is_none());
    }
}
