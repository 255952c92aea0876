//! The catalog: where the services are.

use serde::Deserialize;

use crate::credentials::Credentials;
use crate::decode::or_default;
use crate::error::{Error, Result};
use crate::service::Service;

/// What a token comes with.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(transparent)]
pub(crate) struct Catalog(Vec<Entry>);

#[derive(Debug, Clone, Deserialize)]
struct Entry {
    #[serde(rename = "type", default, deserialize_with = "or_default")]
    kind: String,
    #[serde(default, deserialize_with = "or_default")]
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Clone, Deserialize)]
struct Endpoint {
    #[serde(default, deserialize_with = "or_default")]
    interface: String,
    region_id: Option<String>,
    region: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    url: String,
}

impl Endpoint {
    fn region(&self) -> &str {
        let region = self.region_id.as_deref().or(self.region.as_deref());
        region.unwrap_or_default()
    }
}

impl Catalog {
    /// The address of a service, with its version and without a slash at its end.
    pub fn endpoint(&self, service: Service, credentials: &Credentials) -> Result<String> {
        if let Some(url) = credentials.endpoints.get(&service) {
            return Ok(versioned(url, service));
        }
        let interface = credentials.interface.as_str();
        let region = credentials.region.as_deref();
        let of_service = |kind: &&'static str| {
            let kind = *kind;
            let entries = self.0.iter().filter(move |entry| entry.kind == kind);
            entries.flat_map(|entry| &entry.endpoints)
        };
        let none = |region: &str| Error::NoEndpoint {
            service,
            interface,
            region: region.to_owned(),
            known: self.known(service),
        };
        for kind in service.types() {
            let mut fitting = of_service(kind)
                .filter(|endpoint| endpoint.interface == interface)
                .filter(|endpoint| region.is_none_or(|region| endpoint.region() == region))
                .peekable();
            let Some(first) = fitting.next() else {
                continue;
            };
            // A guess among regions would be right until a new one is built.
            if fitting.any(|other| other.region() != first.region()) {
                return Err(none("one of several regions (set OS_REGION_NAME)"));
            }
            return Ok(versioned(&first.url, service));
        }
        Err(none(&region.map_or_else(
            || "any region".to_owned(),
            |region| format!("region {region}"),
        )))
    }

    /// What there is of a service, in words.
    fn known(&self, service: Service) -> String {
        let of_service = self
            .0
            .iter()
            .filter(|entry| service.types().contains(&&*entry.kind));
        let mut known: Vec<String> = of_service
            .flat_map(|entry| &entry.endpoints)
            .map(|endpoint| format!("{} in {}", endpoint.interface, endpoint.region()))
            .collect();
        known.sort();
        known.dedup();
        if known.is_empty() {
            return "none of it at all".into();
        }
        known.join(", ")
    }
}

/// Adds a version unless the address has one.
fn versioned(url: &str, service: Service) -> String {
    let url = url.trim_end_matches('/');
    let path = url.split_once("://").map_or(url, |(_, rest)| rest);
    let is_version = |segment: &str| {
        let mut characters = segment.chars();
        characters.next() == Some('v') && characters.next().is_some_and(|c| c.is_ascii_digit())
    };
    if path.split('/').skip(1).any(is_version) {
        return url.to_owned();
    }
    format!("{url}{}", service.version_path())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::credentials::{Interface, Reference, Secret};

    fn credentials() -> Credentials {
        let user = Reference::Id("u".into());
        Credentials::password(
            "http://k",
            user,
            Secret::new("p"),
            Reference::Id("p".into()),
        )
    }

    fn catalog() -> Catalog {
        let endpoints = |port: u16| {
            json!([
                { "interface": "public", "region_id": "west", "url": format!("http://w:{port}/") },
                { "interface": "public", "region": "east", "url": format!("http://e:{port}") },
                { "interface": "internal", "region_id": "west", "url": format!("http://i:{port}") },
            ])
        };
        serde_json::from_value(json!([
            { "type": "compute", "endpoints": endpoints(1) },
            { "type": "volumev3", "endpoints": [
                { "interface": "public", "region_id": "west", "url": "http://w:2/v3/abc" },
            ]},
            { "type": null, "endpoints": null, "surprise": 1 },
        ]))
        .unwrap()
    }

    #[test]
    fn region_and_interface_choose_the_endpoint() {
        let mut credentials = credentials();
        let error = catalog()
            .endpoint(Service::Compute, &credentials)
            .unwrap_err();
        assert!(error.to_string().contains("OS_REGION_NAME"), "{error}");
        credentials.region = Some("west".into());
        let url =
            |credentials: &Credentials, service| catalog().endpoint(service, credentials).unwrap();
        assert_eq!(url(&credentials, Service::Compute), "http://w:1/v2.1");
        assert_eq!(url(&credentials, Service::Volume), "http://w:2/v3/abc");
        credentials.interface = Interface::Internal;
        assert_eq!(url(&credentials, Service::Compute), "http://i:1/v2.1");
        credentials.region = Some("east".into());
        let error = catalog()
            .endpoint(Service::Compute, &credentials)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the catalog has no internal endpoint of compute in region east; it has: internal in \
             west, public in east, public in west"
        );
    }

    #[test]
    fn an_override_wins() {
        let mut credentials = credentials();
        credentials
            .endpoints
            .insert(Service::Compute, "http://proxy/nova/".into());
        let url = catalog().endpoint(Service::Compute, &credentials).unwrap();
        assert_eq!(url, "http://proxy/nova/v2.1");
    }
}
