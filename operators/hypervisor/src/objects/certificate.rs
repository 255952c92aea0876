//! The certificate of a node's libvirt, from cert-manager.
//!
//! One writer: where the Hypervisor says that the node agent asks for it, the agent does, and this
//! keeps its hands off. The Certificate stays while a node goes away: instances are moved off it
//! with TLS until the last one has left.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cobalt_api::Hypervisor;
use cobalt_api::names::FieldManager;
use k8s_openapi::api::core::v1::NodeAddress;
use serde_json::{Value, json};

use super::{Kind, ObjectKey, Owner, Problem, Wanted, is_dns_name};

/// Valid for 47 days and renewed after 10, so that a renewal that fails can be seen and mended for
/// five weeks.
const DURATION: &str = "1128h0m0s";
const RENEW_BEFORE: &str = "888h0m0s";
/// The longest common name.
const COMMON_NAME_MAX: usize = 64;

/// Where certificates come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateConfig {
    /// The namespace of the agents, which read the Secrets.
    pub namespace: String,
    /// The Issuer in that namespace.
    pub issuer_name: String,
}

/// The Secret that cert-manager fills and the agent reads.
pub(super) fn secret_name(node: &str) -> String {
    format!("tls-libvirt-{node}")
}

pub(super) fn key(node: &str, config: &CertificateConfig) -> ObjectKey {
    let name = format!("libvirt-{node}");
    ObjectKey::new(Kind::Certificate, &config.namespace, &name)
}

pub(super) fn want(
    owner: &Owner<'_>,
    hypervisor: Option<&Hypervisor>,
    config: &CertificateConfig,
    wanted: &mut Wanted,
) {
    let key = key(owner.name, config);
    if !owner.is_hypervisor() {
        return wanted.remove.push(key);
    }
    let by_the_agent = |object: &Hypervisor| object.spec.create_cert_manager_certificate();
    if owner.is_being_deleted() || hypervisor.is_none_or(by_the_agent) {
        return;
    }
    let secret = secret_name(owner.name);
    wanted.add(if is_dns_name(&secret) {
        let body = json!({ "spec": spec(owner, &secret, config) });
        owner.object(key, FieldManager::Certificate, &[], body)
    } else {
        Err(Problem::Name {
            node: owner.name.to_owned(),
            kind: Kind::Certificate,
            name: secret,
        })
    });
}

fn spec(owner: &Owner<'_>, secret: &str, config: &CertificateConfig) -> Value {
    let status = owner.node.status.as_ref();
    let addresses = status.and_then(|status| status.addresses.as_deref());
    let Names { dns, ips } = names(owner.name, addresses.unwrap_or_default());
    let mut spec = json!({
        "secretName": secret,
        "duration": DURATION,
        "renewBefore": RENEW_BEFORE,
        "subject": { "organizations": ["nova"] },
        "privateKey": {
            "algorithm": "RSA",
            "encoding": "PKCS1",
            "size": 4096,
            "rotationPolicy": "Always",
        },
        "usages": ["server auth", "client auth", "digital signature", "key encipherment"],
        "issuerRef": { "name": config.issuer_name, "kind": "Issuer", "group": "cert-manager.io" },
    });
    if let Some(spec) = spec.as_object_mut() {
        // Who checks a name looks at the alternative names where there are any; a common name that
        // is too long would be refused.
        if owner.name.len() <= COMMON_NAME_MAX {
            spec.insert("commonName".into(), json!(owner.name));
        }
        if !dns.is_empty() {
            spec.insert("dnsNames".into(), json!(dns));
        }
        if !ips.is_empty() {
            spec.insert("ipAddresses".into(), json!(ips));
        }
    }
    spec
}

/// What a node is called and where it is, each once and in a fixed order.
#[derive(Debug, Default, PartialEq, Eq)]
struct Names {
    dns: BTreeSet<String>,
    ips: BTreeSet<IpAddr>,
}

fn names(node: &str, addresses: &[NodeAddress]) -> Names {
    let mut names = Names::default();
    let of_node = addresses.iter().filter(|address| {
        matches!(
            address.type_.as_str(),
            "Hostname" | "InternalDNS" | "ExternalDNS" | "InternalIP" | "ExternalIP"
        )
    });
    for name in of_node
        .map(|address| address.address.as_str())
        .chain([node])
    {
        // Some clouds call a host by its address.
        match name.parse::<IpAddr>() {
            Ok(ip) => drop(names.ips.insert(ip)),
            Err(_) => {
                let name = name.trim_end_matches('.').to_ascii_lowercase();
                // One name that is none would make cert-manager refuse all of them.
                if is_dns_name(&name) {
                    names.dns.insert(name);
                }
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(type_: &str, address: &str) -> NodeAddress {
        NodeAddress {
            type_: type_.to_owned(),
            address: address.to_owned(),
        }
    }

    #[test]
    fn addresses_of_both_families_are_kept_and_sorted() {
        let addresses = [
            address("InternalIP", "fd00::0001"),
            address("InternalIP", "10.0.0.9"),
            address("ExternalIP", "10.0.0.10"),
            address("InternalIP", "10.0.0.9"),
            address("Hostname", "HV1"),
            address("InternalDNS", "hv1.example.org."),
            address("ExternalDNS", ""),
            address("Hostname", "not a name"),
            address("Other", "10.9.9.9"),
        ];
        let found = names("hv1", &addresses);
        assert_eq!(Vec::from_iter(&found.dns), ["hv1", "hv1.example.org"]);
        let ips: Vec<_> = found.ips.iter().map(ToString::to_string).collect();
        assert_eq!(ips, ["10.0.0.9", "10.0.0.10", "fd00::1"]);
        let mut reversed = addresses;
        reversed.reverse();
        assert_eq!(names("hv1", &reversed), found);
    }

    #[test]
    fn a_node_that_is_called_by_its_address_has_no_dns_name() {
        let found = names("10.0.0.1", &[address("Hostname", "10.0.0.1")]);
        assert_eq!(found.dns, BTreeSet::new());
        assert_eq!(found.ips, BTreeSet::from([[10, 0, 0, 1].into()]));
    }
}
