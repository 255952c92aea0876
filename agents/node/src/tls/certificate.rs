//! Asks cert-manager for this node's certificate, where the Hypervisor says so.
//!
//! It is applied only when the object does not say already what it should. Without cert-manager
//! that is said once, and looked for again from time to time.

use std::net::IpAddr;
use std::time::Duration;

use cobalt_api::hypervisor::Hypervisor;
use cobalt_api::names::FieldManager;
use cobalt_runtime::{ApplyError, Backoff, Observed, apply, chain, jitter};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Resource};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{TlsConfig, secret_name};
use crate::context::Context;

const DEADLINE: Duration = Duration::from_secs(10);
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));
/// Somebody may have changed or removed it.
const RESYNC: Duration = Duration::from_secs(3600);
/// As the operator asks for it: valid for 47 days and renewed after 10, so that a renewal that
/// fails can be seen and mended for five weeks.
const DURATION: &str = "1128h0m0s";
const RENEW_BEFORE: &str = "888h0m0s";
/// The longest common name.
const COMMON_NAME_MAX: usize = 64;

/// The object's name.
fn name(node: &str) -> String {
    format!("libvirt-{node}")
}

/// What is asked for. Pure. The admission policy of the chart lets an agent ask for nothing else.
#[must_use]
pub fn wanted(
    hypervisor: &Hypervisor,
    node: &str,
    namespace: &str,
    issuer: &str,
    ip: Option<IpAddr>,
) -> Value {
    let mut spec = json!({
        "secretName": secret_name(node),
        "duration": DURATION,
        "renewBefore": RENEW_BEFORE,
        "subject": { "organizations": ["nova"] },
        "dnsNames": [node],
        "privateKey": { "algorithm": "RSA", "encoding": "PKCS1", "size": 4096, "rotationPolicy": "Always" },
        "usages": ["server auth", "client auth", "digital signature", "key encipherment"],
        "issuerRef": { "name": issuer, "kind": "Issuer", "group": "cert-manager.io" },
    });
    if let Some(spec) = spec.as_object_mut() {
        if node.len() <= COMMON_NAME_MAX {
            spec.insert("commonName".into(), json!(node));
        }
        if let Some(ip) = ip {
            spec.insert("ipAddresses".into(), json!([ip.to_string()]));
        }
    }
    let mut metadata = json!({ "name": name(node), "namespace": namespace });
    if let (Some(owner), Some(metadata)) = (hypervisor.owner_ref(&()), metadata.as_object_mut()) {
        metadata.insert("ownerReferences".into(), json!([owner]));
    }
    json!({
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": metadata,
        "spec": spec,
    })
}

/// Whether `have` says all that `want` says. Lists have to be the same.
fn says(have: &Value, want: &Value) -> bool {
    match (have, want) {
        (Value::Object(have), Value::Object(want)) => want
            .iter()
            .all(|(key, want)| have.get(key).is_some_and(|have| says(have, want))),
        (have, want) => have == want,
    }
}

/// Runs for ever. `trouble` says why no certificate is asked for although one should be.
pub async fn run(ctx: &Context, config: &TlsConfig, trouble: watch::Sender<Option<String>>) {
    let kind = GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate");
    let resource = ApiResource::from_gvk_with_plural(&kind, "certificates");
    let api: Api<DynamicObject> =
        Api::namespaced_with(ctx.client.clone(), &ctx.namespace, &resource);
    let mut hypervisor = ctx.hypervisor.clone();
    let mut current = || {
        let seen = hypervisor.borrow_and_update();
        let object = seen.object().filter(|_| is_wanted(&seen))?;
        Some(wanted(
            object,
            &ctx.node,
            &ctx.namespace,
            &config.issuer_name,
            config.host_ip,
        ))
    };
    let mut changes = ctx.hypervisor.clone();
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    loop {
        let want = current();
        let outcome = match &want {
            Some(want) => ask(&api, &name(&ctx.node), want).await,
            None => Ok(()),
        };
        say(ctx, &trouble, outcome.as_ref().err());
        let wait = if outcome.is_ok() {
            backoff.reset();
            jitter(RESYNC)
        } else {
            backoff.next_wait()
        };
        // The Hypervisor changes for many reasons, and most do not concern this.
        let mut wait = std::pin::pin!(tokio::time::sleep(wait));
        loop {
            tokio::select! {
                () = &mut wait => break,
                changed = changes.changed() => match changed {
                    Ok(()) if current() == want => {}
                    Ok(()) => break,
                    Err(_) => return std::future::pending().await,
                },
            }
        }
    }
}

async fn ask(api: &Api<DynamicObject>, name: &str, want: &Value) -> Result<(), String> {
    let have = match tokio::time::timeout(DEADLINE, api.get(name)).await {
        Ok(Ok(have)) => serde_json::to_value(have).ok(),
        // The object or its kind is not there; applying it tells which.
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => None,
        Ok(Err(error)) => return Err(chain(&error)),
        Err(_) => {
            return Err(format!(
                "the API server did not answer within {} s",
                DEADLINE.as_secs()
            ));
        }
    };
    if have.is_some_and(|have| says(&have, want)) {
        return Ok(());
    }
    match apply(api, name, FieldManager::NodeAgent.as_str(), want, DEADLINE).await {
        Ok(_) => {
            tracing::info!(certificate = name, "asked cert-manager for a certificate");
            Ok(())
        }
        // The object need not be there to be applied: it is the kind that is missing.
        Err(ApplyError::NotFound { .. }) => Err(
            "cert-manager is not installed: there are no Certificates of cert-manager.io/v1"
                .to_owned(),
        ),
        Err(error) => Err(chain(&error)),
    }
}

/// Says it where it is new.
fn say(ctx: &Context, trouble: &watch::Sender<Option<String>>, reason: Option<&String>) {
    trouble.send_if_modified(|known| {
        let new = known.as_ref() != reason;
        if new {
            if let Some(reason) = reason {
                tracing::warn!(reason, "failed to ask for a certificate");
            }
            ctx.health.set_missing("certificate", reason.cloned());
            *known = reason.cloned();
        }
        new
    });
}

/// Whether the Hypervisor asks for one.
pub(super) fn is_wanted(hypervisor: &Observed<Hypervisor>) -> bool {
    hypervisor
        .object()
        .is_some_and(|object| object.spec.create_cert_manager_certificate())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hypervisor() -> Hypervisor {
        let mut hypervisor = Hypervisor::new("hv1.example.org", Default::default());
        hypervisor.metadata.uid = Some("7f3e".into());
        hypervisor
    }

    #[test]
    fn a_certificate_is_for_the_names_and_the_address_of_the_node() {
        let ip = Some([10, 0, 0, 1].into());
        let want = wanted(&hypervisor(), "hv1.example.org", "monsoon3", "issuer", ip);
        let spec = &want["spec"];
        assert_eq!(spec["secretName"], "tls-libvirt-hv1.example.org");
        assert_eq!(spec["dnsNames"], json!(["hv1.example.org"]));
        assert_eq!(spec["ipAddresses"], json!(["10.0.0.1"]));
        assert_eq!(spec["commonName"], "hv1.example.org");
        assert_eq!(spec["issuerRef"]["name"], "issuer");
        assert_eq!(want["metadata"]["ownerReferences"][0]["uid"], "7f3e");
        let long = "x".repeat(65);
        let want = wanted(&hypervisor(), &long, "monsoon3", "issuer", None);
        assert_eq!(want["spec"].get("commonName"), None);
        assert_eq!(want["spec"].get("ipAddresses"), None);
        assert_eq!(want["spec"]["dnsNames"], json!([long]));
    }

    #[test]
    fn what_others_add_is_no_change() {
        let want = wanted(&hypervisor(), "hv1", "monsoon3", "issuer", None);
        let mut have = want.clone();
        have["spec"]["revisionHistoryLimit"] = json!(1);
        have["status"] = json!({ "revision": 3 });
        assert!(says(&have, &want));
        for (pointer, value) in [
            ("/spec/dnsNames", json!(["hv1", "other"])),
            ("/spec/duration", json!("8h")),
            ("/spec/issuerRef/name", json!("other")),
            ("/metadata/ownerReferences", json!([])),
        ] {
            let mut changed = have.clone();
            *changed.pointer_mut(pointer).unwrap() = value;
            assert!(!says(&changed, &want), "{pointer}");
        }
        have["spec"].as_object_mut().unwrap().remove("usages");
        assert!(!says(&have, &want));
    }
}
