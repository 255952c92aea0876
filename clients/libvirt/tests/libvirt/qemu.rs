//! QEMU's driver of both releases: every door, the host, secrets, many calls at once.

use std::path::Path;

use cobalt_lab::Lab;
use cobalt_lab::plan::Flavour;
use cobalt_libvirt::{
    AdminConnection, Connection, DomainCapabilitiesQuery, EventKind, ListDomains, Options,
    StatsGroups, Tls, Uri, Version,
};
use futures::future::join_all;
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

use crate::{Host, Watcher, faults, lab, life, migration, sh};

#[tokio::test(flavor = "multi_thread")]
async fn qemu_of_both_releases_does_what_it_is_asked_for() {
    let lab = lab("libvirt", &[Flavour::Bookworm, Flavour::Trixie]).await;
    let old = Host::find(&lab, "hv1").await;
    let new = Host::find(&lab, "hv2").await;
    let versions = [Version::new(9, 0, 0), Version::new(11, 3, 0)];
    for (host, version) in [&old, &new].into_iter().zip(versions) {
        every_door_is_open(&lab, host, version).await;
        certificates_are_reloaded(&lab, host).await;
    }
    // What takes time on one host takes it on the other meanwhile.
    tokio::join!(
        everything_is_done(&lab, &old, versions[0]),
        everything_is_done(&lab, &new, versions[1])
    );
    migration::guests_move_and_stay(&old, &new).await;
    for host in [&old, &new] {
        faults::silence_and_death_are_noticed(&lab, host).await;
    }
    lab.down().await.unwrap();
}

async fn every_door_is_open(lab: &Lab, host: &Host, version: Version) {
    let files = lab.dir().join("libvirt");
    let file = |name: &str| files.join(name);
    let tls = Tls::from_files(
        &file("cacert.pem"),
        &file("clientcert.pem"),
        &file("clientkey.pem"),
    );
    let options = Options {
        tls: Some(tls.unwrap()),
        ..Options::default()
    };
    let socket = host.root.join("run/libvirt/libvirt-sock");
    let local: Uri = "qemu:///system".parse().unwrap();
    for uri in [
        local.with_socket(&socket),
        format!("qemu+unix:///system?socket={}", socket.display())
            .parse()
            .unwrap(),
        host.tcp(),
        format!("qemu+tls://{}/system", host.address)
            .parse()
            .unwrap(),
    ] {
        let libvirt = Connection::open(&uri, &options).await.unwrap();
        assert_eq!(libvirt.hostname().await.unwrap(), host.name, "{uri}");
        assert_eq!(libvirt.lib_version().await.unwrap(), version, "{uri}");
        libvirt.ping().await.unwrap();
        libvirt.close().await;
        assert!(!libvirt.is_alive());
        assert!(libvirt.ping().await.unwrap_err().is_closed());
    }
    // The right server under a name that is not in its certificate.
    let elsewhere = Connection::open(&detour(&host.address).await, &options).await;
    let refused = elsewhere.unwrap_err().to_string();
    assert!(refused.contains("not valid for name"), "{refused}");
    let bare: Uri = format!("qemu+tls://{}/system", host.address)
        .parse()
        .unwrap();
    let refused = Connection::open(&bare, &Options::default())
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("Options::tls"), "{refused}");
    let stranger = stranger(&file("cacert.pem"));
    let refused = Connection::open(&bare, &stranger).await.unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("does not take our certificate"),
        "{refused}"
    );
    // A driver that is not there.
    let absent: Uri = format!("ch+tcp://{}/system", host.address).parse().unwrap();
    let refused = Connection::open(&absent, &options).await.unwrap_err();
    assert!(refused.code().is_some(), "{refused}");
}

/// The way to a host's TLS port through one of this machine.
async fn detour(address: &str) -> Uri {
    let target = format!("{address}:16514");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = TcpStream::connect(target).await.unwrap();
        drop(tokio::io::copy_bidirectional(&mut near, &mut far).await);
    });
    format!("qemu+tls://127.0.0.1:{port}/system")
        .parse()
        .unwrap()
}

/// Options with a certificate of an authority that nobody trusts.
fn stranger(ca: &Path) -> Options {
    let authority = cobalt_lab::pki::Authority::new("nobody").unwrap();
    let identity = authority.client("stranger").unwrap();
    let ca = std::fs::read(ca).unwrap();
    let tls = Tls::from_pem(
        &ca,
        identity.certificate.as_bytes(),
        identity.key.as_bytes(),
    );
    Options {
        tls: Some(tls.unwrap()),
        ..Options::default()
    }
}

async fn certificates_are_reloaded(lab: &Lab, host: &Host) {
    // Its socket is made on demand.
    sh(lab, &host.name, "systemctl start libvirtd-admin.socket").await;
    let socket = host.root.join("run/libvirt/libvirt-admin-sock");
    let admin = AdminConnection::open(&socket, &Options::default())
        .await
        .unwrap();
    let servers = admin.servers().await.unwrap();
    assert!(
        servers.iter().any(|server| server == "libvirtd"),
        "{servers:?}"
    );
    admin.update_tls_files().await.unwrap();
    let unknown = admin.update_tls_files_of("nothing").await.unwrap_err();
    assert!(unknown.code().is_some(), "{unknown}");
}

async fn everything_is_done(lab: &Lab, host: &Host, version: Version) {
    let libvirt = host.open().await;
    let mut watcher = Watcher::new(&libvirt).await;
    // Events that a release does not know are left out.
    let knows = |kind| watcher.events.kinds().contains(&kind);
    assert!(knows(EventKind::MemoryFailure));
    assert_eq!(
        knows(EventKind::NicMacChange),
        version >= Version::new(11, 2, 0)
    );

    the_host_is_described(&libvirt).await;
    secrets_are_kept(&libvirt).await;
    life::a_domain_lives(lab, host, &libvirt, &mut watcher).await;
    life::guests_fail_on_command(lab, host, &libvirt, &mut watcher).await;
    many_calls_at_once(&libvirt).await;
    libvirt.close().await;
}

async fn the_host_is_described(libvirt: &Connection) {
    assert_eq!(libvirt.driver_type().await.unwrap(), "QEMU");
    assert!(libvirt.hypervisor_version().await.unwrap() >= Version::new(7, 2, 0));
    let node = libvirt.node_info().await.unwrap();
    assert_eq!(node.model, "x86_64");
    assert!(node.cpus > 0 && node.memory_kib > 1024 * 1024, "{node:?}");
    assert!(
        libvirt
            .capabilities()
            .await
            .unwrap()
            .starts_with("<capabilities>")
    );
    let query = DomainCapabilitiesQuery {
        virt_type: Some("qemu".to_owned()),
        ..DomainCapabilitiesQuery::default()
    };
    let capabilities = libvirt.domain_capabilities(&query).await.unwrap();
    assert!(capabilities.starts_with("<domainCapabilities>"));
    let cpu = libvirt.node_cpu_stats().await.unwrap();
    assert!(cpu["idle"] > 0, "{cpu:?}");
    let memory = libvirt.node_memory_stats().await.unwrap();
    assert!(memory["total"] > memory["free"], "{memory:?}");
    let unknown = libvirt.lookup_by_uuid(Uuid::nil()).await.unwrap_err();
    assert!(unknown.is_no_domain(), "{unknown}");
    assert!(
        libvirt
            .lookup_by_name("nobody")
            .await
            .unwrap_err()
            .is_no_domain()
    );
    // For libvirt none is all; not for us.
    let none = libvirt.domain_stats(&[], StatsGroups::ALL).await.unwrap();
    assert!(none.is_empty());
}

async fn secrets_are_kept(libvirt: &Connection) {
    let uuid = Uuid::from_u128(0x6f1c_6a3e_7d0f_4c39_9a6c_1f7c_0c7f_0001);
    let absent = libvirt.secret_lookup_by_uuid(uuid).await.unwrap_err();
    assert!(absent.is_no_secret(), "{absent}");
    let xml = |private| {
        format!(
            "<secret ephemeral='no' private='{private}'><uuid>{uuid}</uuid>\
             <usage type='ceph'><name>client.test</name></usage></secret>"
        )
    };
    let secret = libvirt.secret_define_xml(&xml("no")).await.unwrap();
    assert_eq!(
        (secret.uuid, secret.usage_id.as_str()),
        (uuid, "client.test")
    );
    libvirt
        .secret_set_value(&secret, b"of value")
        .await
        .unwrap();
    let value = libvirt.secret_get_value(&secret).await.unwrap();
    assert_eq!(value.expose(), b"of value");
    assert_eq!(format!("{value:?}"), "SecretValue");
    assert_eq!(
        libvirt.secrets().await.unwrap(),
        std::slice::from_ref(&secret)
    );
    assert_eq!(libvirt.secret_lookup_by_uuid(uuid).await.unwrap(), secret);
    let found = libvirt
        .secret_lookup_by_usage(secret.usage, "client.test")
        .await;
    assert_eq!(found.unwrap(), secret);
    assert!(
        libvirt
            .secret_xml(&secret)
            .await
            .unwrap()
            .contains("client.test")
    );
    libvirt.secret_undefine(&secret).await.unwrap();
    let secret = libvirt.secret_define_xml(&xml("yes")).await.unwrap();
    libvirt.secret_set_value(&secret, b"private").await.unwrap();
    assert!(libvirt.secret_get_value(&secret).await.is_err());
    libvirt.secret_undefine(&secret).await.unwrap();
    assert!(libvirt.secrets().await.unwrap().is_empty());
}

async fn many_calls_at_once(libvirt: &Connection) {
    let asking = (0..200).map(|number| async move {
        match number % 4 {
            0 => libvirt.hostname().await.map(drop),
            1 => libvirt.capabilities().await.map(drop),
            2 => libvirt.all_stats(StatsGroups::ALL).await.map(drop),
            _ => libvirt.domains(ListDomains::ALL).await.map(drop),
        }
    });
    for answer in join_all(asking).await {
        answer.unwrap();
    }
    // Those that nobody waits for are no burden.
    for _ in 0..100 {
        let dropped = libvirt.capabilities();
        drop(tokio::time::timeout(std::time::Duration::ZERO, dropped).await);
    }
    libvirt.ping().await.unwrap();
}
