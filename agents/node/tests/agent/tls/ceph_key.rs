//! The key for Ceph in real libvirtd.

use super::*;

/// As `ceph-authtool --gen-print-key` prints one, with another last letter of the secret.
fn ceph_key(mark: u8) -> (String, Vec<u8>) {
    let mut bytes = vec![1, 0, 0x52, 0x74, 0x58, 0x66, 0, 0, 0, 0, 16, 0];
    bytes.extend(b"cobalt-secret-0");
    bytes.push(mark);
    let text = serde_json::to_value(ByteString(bytes.clone())).unwrap();
    (text.as_str().unwrap().to_owned(), bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn w82_the_key_for_ceph_is_in_libvirts_memory_and_nowhere_else() {
    let lab = Hosts::start("ceph", &[Flavour::Bookworm, Flavour::Trixie]).await;
    let kubernetes = Kubernetes::new().await;
    for host in ["hv1", "hv2"] {
        let machine = Machine::new(&lab, host).await;
        let agent = Agent::new(&kubernetes, kubernetes.admin.clone(), host, false);
        let metrics = CephMetrics::default();
        let name = format!("ceph-{host}");
        let uuid = "457eb676-33da-42ec-9a8c-9293d545c337";
        let config = CephConfig {
            secret_name: Some(name.clone()),
            uuid: uuid.parse().ok(),
        };
        let access = agent.read_secrets(&kubernetes, "");
        let task = ceph::run(
            agent.ctx.clone(),
            config,
            access,
            metrics.clone(),
            agent.cancel.clone(),
        );
        tokio::spawn(task);
        agent.misses(&format!("{name} does not exist")).await;
        let connection = machine.connect().await;
        agent.libvirt.send_replace(Some(connection.clone()));

        // Not a key: refused by name, and it is not repeated.
        kubernetes
            .put_secret(&name, &[("userID", b"nova"), ("userKey", b"sesame")])
            .await;
        agent.misses("userKey is not a key").await;
        assert!(!agent.ctx.health.missing().concat().contains("sesame"));

        let (key, bytes) = ceph_key(1);
        let put = async |key: &str| {
            kubernetes
                .put_secret(&name, &[("userID", b"nova"), ("userKey", key.as_bytes())])
                .await;
        };
        put(&key).await;
        installs(&metrics, 1).await;
        assert!(agent.ctx.health.missing().is_empty());
        let listed = machine.sh("virsh secret-list").await;
        assert!(
            listed.contains(uuid) && listed.contains("ceph client.nova secret"),
            "{listed}"
        );
        let xml = machine.sh(&format!("virsh secret-dumpxml {uuid}")).await;
        assert!(xml.contains("ephemeral='yes' private='yes'"), "{xml}");
        // Nobody reads it back.
        let (good, said) = machine
            .attempt(&format!("virsh secret-get-value {uuid}"))
            .await;
        assert!(!good && said.contains("private"), "{said}");
        // Neither libvirt's nor our files have it, in any form.
        let raw = String::from_utf8_lossy(&bytes[12..27]).into_owned();
        let found = machine
            .attempt(&format!(
                "grep -rlF -D skip -e '{key}' -e '{raw}' /etc /var /run /root /tmp 2>/dev/null"
            ))
            .await;
        assert_eq!(found, (false, String::new()));
        let event = kubernetes.event(&agent.uid, "CephSecretInstalled").await;
        assert_eq!(
            event,
            format!("libvirt has the key of client.nova as secret {uuid}")
        );
        // An instance gets it: without the value libvirt would not come as far as QEMU.
        assert!(uses_secret(&machine, uuid).await);

        // Rotation: libvirt tells that the value has changed. Nobody tells when it listens.
        let listening = machine.sh("timeout 60 virsh secret-event --event value-changed");
        let mut listening = std::pin::pin!(listening);
        let mut rounds = 1;
        let said = loop {
            rounds += 1;
            put(&ceph_key(rounds).0).await;
            installs(&metrics, rounds.into()).await;
            if let std::task::Poll::Ready(said) = futures::poll!(&mut listening) {
                break said;
            }
        };
        assert!(said.contains(uuid), "{said}");

        // A new libvirtd has forgotten it, and gets it again.
        machine.sh("systemctl restart libvirtd.service").await;
        agent.libvirt.send_replace(None);
        let connection = machine.connect().await;
        assert!(connection.secrets().await.unwrap().is_empty());
        assert!(!uses_secret(&machine, uuid).await);
        agent.libvirt.send_replace(Some(connection.clone()));
        installs(&metrics, u64::from(rounds) + 1).await;
        assert!(uses_secret(&machine, uuid).await);

        // The same user under another UUID: libvirt refuses it, and that is said.
        let other = "557eb676-33da-42ec-9a8c-9293d545c338";
        let fields: [(&str, &[u8]); 3] = [
            ("userID", b"nova"),
            ("userKey", key.as_bytes()),
            ("uuid", other.as_bytes()),
        ];
        kubernetes.put_secret(&name, &fields).await;
        agent
            .misses("failed to give the key of client.nova to libvirt")
            .await;
        assert_eq!(metrics.installed.get(), 0);
        let told = kubernetes.event(&agent.uid, "CephSecretFailed").await;
        assert!(!told.contains(&key), "{told}");
    }
}

async fn installs(metrics: &CephMetrics, times: u64) {
    eventually(&format!("{times} installs"), || {
        metrics.installs.get() >= times
    })
    .await;
}

/// Whether libvirt finds a value of the secret for an instance. It looks before it starts QEMU,
/// which then fails: there is no Ceph.
async fn uses_secret(machine: &Machine<'_>, uuid: &str) -> bool {
    let xml = format!(
        "<domain type=\"qemu\"><name>rbd</name><memory unit=\"MiB\">64</memory>\
         <os><type arch=\"x86_64\">hvm</type></os><devices>\
         <disk type=\"network\" device=\"disk\"><driver name=\"qemu\" type=\"raw\"/>\
         <auth username=\"nova\"><secret type=\"ceph\" uuid=\"{uuid}\"/></auth>\
         <source protocol=\"rbd\" name=\"vms/none\"><host name=\"127.0.0.1\" port=\"1\"/></source>\
         <target dev=\"vda\" bus=\"virtio\"/></disk></devices></domain>"
    );
    let script = format!("echo '{xml}' >/tmp/rbd.xml; timeout 60 virsh create /tmp/rbd.xml");
    let (good, said) = machine.attempt(&script).await;
    let qemu = said.contains("Unknown driver 'rbd'");
    assert!(
        !good && (qemu || said.contains("no secret with matching uuid")),
        "{said}"
    );
    qemu
}
