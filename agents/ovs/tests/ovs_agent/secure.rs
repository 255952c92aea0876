//! An OVN whose southbound database wants certificates.

use cobalt_lab::LabConfig;
use cobalt_lab::plan::Flavour;

use crate::support::{Agent, Hosts, Shown, server, unique};
use crate::switch::thresholds;

/// Beside the plain port of the lab.
const PORT: u16 = 16642;

#[tokio::test(flavor = "multi_thread")]
async fn a_southbound_database_that_wants_certificates_is_read() {
    let mut config = LabConfig::with_hypervisors("ovssecure", &[Flavour::Bookworm]);
    config.ovn = true;
    let lab = Hosts::start(config).await;
    let (server, client) = server().await;

    // Those of libvirt are as good: OVN asks for the authority alone.
    let pki = lab.path("hv1", "/etc/pki").await;
    let key = pki.join("libvirt/private/serverkey.pem");
    let certificate = pki.join("libvirt/servercert.pem");
    let authority = pki.join("CA/cacert.pem");
    let (addresses, plain) = lab.members(6642).await;
    for number in 1..=addresses.len() {
        let member = format!("ovn{number}");
        lab.sh(&member, "mkdir -p /etc/secure").await;
        let folder = lab.path(&member, "/etc/secure").await;
        for (from, to) in [
            (&key, "key"),
            (&certificate, "certificate"),
            (&authority, "ca"),
        ] {
            std::fs::copy(from, folder.join(to)).unwrap();
        }
    }
    let secure: Vec<String> = addresses
        .iter()
        .map(|address| format!("ssl:{address}:{PORT}"))
        .collect();
    lab.sh(
        "hv1",
        &format!(
            "ovn-sbctl --no-leader-only --timeout=60 --db={plain} \
             set-ssl /etc/secure/key /etc/secure/certificate /etc/secure/ca -- set-connection pssl:{PORT}
             ovs-vsctl set-ssl /etc/pki/libvirt/private/serverkey.pem \
             /etc/pki/libvirt/servercert.pem /etc/pki/CA/cacert.pem -- \
             set Open_vSwitch . external_ids:ovn-remote='\"{}\"'",
            secure.join(",")
        ),
    )
    .await;

    // Without certificates it says what is wrong, and the rest is told.
    let shown = Shown::new(&client, unique("secure"));
    let flags = [thresholds(), lab.flags("hv1").await].concat();
    let mut agent = Agent::start(&server.kubeconfig, &shown.name, &flags);
    let found = shown
        .issue("SouthboundUnreachable", &secure.join(","))
        .await;
    assert!(found.message.contains("certificate"), "{}", found.message);
    agent.end().await;

    let flags = [
        flags,
        vec![
            format!("--southbound-ca={}", authority.display()),
            format!("--southbound-certificate={}", certificate.display()),
            format!("--southbound-key={}", key.display()),
        ],
    ]
    .concat();
    let mut agent = Agent::start(&server.kubeconfig, &shown.name, &flags);
    let status = shown.well().await;
    let ovn = status.ovn_controller.unwrap();
    assert_eq!(ovn.connected, Some(true));
    assert_eq!(ovn.sb_connection, Some(secure.join(",")));
    agent
        .counts("cobalt_ovs_agent_southbound_connected", 1.0)
        .await;
    agent.end().await;
    lab.down().await.unwrap();
}
