//! Certificates in real libvirtd and QEMU.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_installed_rotated_and_in_use_on_both_releases() {
    let lab = Hosts::start("tls", &[Flavour::Bookworm, Flavour::Trixie]).await;
    let kubernetes = Kubernetes::new().await;
    for host in ["hv1", "hv2"] {
        let machine = Machine::new(&lab, host).await;
        let agent = Agent::new(&kubernetes, kubernetes.admin.clone(), host, false);
        let before = machine.served().await;
        let metrics = agent.install_tls(&kubernetes, &machine);
        agent.says(Reason::Installing, "does not exist").await;
        assert_eq!(machine.served().await, before);

        // From an authority that libvirtd has never heard of.
        let authority = Authority::new();
        let first = authority.issue(host);
        kubernetes.put_material(host, &first).await;
        let said = agent.says(Reason::Ready, "valid until 2100-01-01").await;
        assert_eq!(said, format!("CN={host}, valid until 2100-01-01T00:00:00Z"));
        assert_eq!(machine.served().await, first.der);
        machine.virsh_tls().await;
        let event = kubernetes
            .event(&agent.uid, "TLSCertificateInstalled")
            .await;
        assert_eq!(event, said);
        assert_eq!(metrics.installs.get(), 1);

        // w74: keys are closed, and client names are links, although files were there before.
        for (name, (mode, _)) in machine.everything() {
            let key = name.contains("key");
            assert_eq!(mode, if key { 0o600 } else { 0o644 }, "{name}");
        }
        let client = std::fs::read_link(machine.pki("libvirt/clientcert.pem")).unwrap();
        assert_eq!(client, Path::new("servercert.pem"));

        // Rotation, with a planted symlink and a regular file in the way.
        let victim = machine.root.join("root/victim");
        std::fs::write(&victim, "precious").unwrap();
        let key = machine.pki("libvirt/private/serverkey.pem");
        std::fs::remove_file(&key).unwrap();
        symlink("/root/victim", &key).unwrap();
        let link = machine.pki("libvirt/clientcert.pem");
        std::fs::remove_file(&link).unwrap();
        std::fs::write(&link, "a regular file").unwrap();
        let second =
            authority.issue_with(host, |params| params.not_after = date_time_ymd(2099, 1, 1));
        kubernetes.put_material(host, &second).await;
        agent.says(Reason::Ready, "valid until 2099-01-01").await;
        assert_eq!(machine.served().await, second.der);
        machine.virsh_tls().await;
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        assert!(std::fs::symlink_metadata(&key).unwrap().is_file());
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(metrics.installs.get(), 2);

        // libvirtd starts with it, too.
        machine.sh("systemctl restart libvirtd.service").await;
        machine.virsh_tls().await;
        assert_eq!(machine.served().await, second.der);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn qemu_migrates_with_the_installed_certificates() {
    let lab = Hosts::start("tls-qemu", &[Flavour::Bookworm, Flavour::Trixie]).await;
    let kubernetes = Kubernetes::new().await;
    let authority = Authority::new();
    let mut agents = Vec::new();
    for host in ["hv1", "hv2"] {
        let machine = Machine::new(&lab, host).await;
        let agent = Agent::new(&kubernetes, kubernetes.admin.clone(), host, false);
        // As on a real host: not root, and so not whom the key belongs to.
        machine
            .sh("sed -i -e 's/\"root\"/\"libvirt-qemu\"/' -e 's/dynamic_ownership = 0/dynamic_ownership = 1/' \
                 /etc/libvirt/qemu.conf; systemctl restart libvirtd.service")
            .await;
        let mut config = machine.tls_config();
        let group = machine.sh("id -g libvirt-qemu").await;
        config.qemu_group = group.trim().parse().ok();
        let access = agent.read_secrets(&kubernetes, "");
        let metrics = TlsMetrics::default();
        let task = tls::run(
            agent.ctx.clone(),
            config,
            access,
            metrics,
            agent.cancel.clone(),
        );
        tokio::spawn(task);
        kubernetes.put_material(host, &authority.issue(host)).await;
        agents.push((machine, agent));
    }
    for (machine, agent) in &agents {
        agent.says(Reason::Ready, "").await;
        let key = std::fs::metadata(machine.pki("qemu/server-key.pem")).unwrap();
        assert_eq!(key.mode() & 0o7777, 0o640);
        assert_ne!(key.gid(), 0);
    }
    let guest = MicroDomain {
        name: "walker",
        uuid: "6f1c6a3e-7d0f-4c39-9a6c-1f7c0c7f0001",
        memory_mib: 64,
        kernel: Path::new("/opt/guests/micro.elf"),
        command_line: "",
        machine: "q35",
        extra_devices: "",
    };
    let (source, _) = &agents[0];
    let script = format!(
        "cat >/root/walker.xml <<'X'\n{}\nX\nvirsh define /root/walker.xml; virsh start walker",
        guest.xml()
    );
    source.sh(&script).await;
    let user = source
        .sh("stat -c %U /proc/$(cat /run/libvirt/qemu/walker.pid)")
        .await;
    assert_eq!(user.trim(), "libvirt-qemu");
    // Both the daemons and the two QEMU talk with TLS.
    source
        .sh("virsh migrate --live --p2p --persistent --undefinesource --tls walker qemu+tls://hv2/system")
        .await;
    let state = agents[1].0.sh("virsh domstate walker").await;
    assert_eq!(state.trim(), "running");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_secret_is_refused_and_what_was_served_is_served_on() {
    let lab = Hosts::start("tls-bad", &[Flavour::Bookworm]).await;
    let kubernetes = Kubernetes::new().await;
    let machine = Machine::new(&lab, "hv1").await;
    let agent = Agent::new(&kubernetes, kubernetes.admin.clone(), "hv1", false);
    let metrics = agent.install_tls(&kubernetes, &machine);
    let authority = Authority::new();
    let good = authority.issue("hv1");
    kubernetes.put_material("hv1", &good).await;
    agent.says(Reason::Ready, "").await;
    let files = machine.everything();

    let with = |change: fn(&mut Material, Material)| {
        let mut material = good.clone();
        change(&mut material, authority.issue("hv1"));
        material
    };
    let update = Reason::FailedToUpdateTlsCertificate;
    for (material, reason, text) in [
        (
            with(|m, _| m.certificate = "broken".into()),
            update,
            "tls.crt cannot be read",
        ),
        (
            with(|m, _| m.key = String::new()),
            update,
            "tls.key is missing or empty",
        ),
        (
            with(|m, other| m.key = other.key),
            update,
            "tls.key is not the key",
        ),
        (
            with(|m, _| m.ca = Authority::new().0.pem()),
            update,
            "not signed by an authority in ca.crt",
        ),
        (
            authority.issue("hv2"),
            update,
            "tls.crt is for hv2, and not for hv1",
        ),
        (
            authority.issue_with("hv1", |params| params.not_after = date_time_ymd(2026, 1, 2)),
            Reason::Expired,
            "tls.crt has expired on 2026-01-02",
        ),
    ] {
        kubernetes.put_material("hv1", &material).await;
        let said = agent.says(reason, text).await;
        assert!(said.ends_with("the installed files stay"), "{said}");
        assert_eq!(machine.served().await, good.der, "{text}");
        assert_eq!(machine.everything(), files, "{text}");
    }
    let event = kubernetes.event(&agent.uid, "TLSCertificateRefused").await;
    assert!(event.contains("tls.crt"), "{event}");
    kubernetes.event(&agent.uid, "TLSCertificateExpired").await;
    assert_eq!(metrics.installs.get(), 1);

    // A folder that cannot be written: nothing changes, and it goes on when it can be.
    machine
        .sh("mount --bind /etc/pki/qemu /etc/pki/qemu && mount -o remount,ro,bind /etc/pki/qemu")
        .await;
    let next = authority.issue_with("hv1", |params| params.not_after = date_time_ymd(2098, 1, 1));
    kubernetes.put_material("hv1", &next).await;
    let said = agent.says(update, "Read-only file system").await;
    assert!(said.contains("etc/pki/qemu/"), "{said}");
    assert_eq!(machine.everything(), files);
    machine.sh("umount /etc/pki/qemu").await;
    agent.says(Reason::Ready, "valid until 2098-01-01").await;
    assert_eq!(machine.served().await, next.der);

    // The Secret is gone: what is installed stays.
    let api: Api<Secret> = Api::namespaced(kubernetes.admin.clone(), &kubernetes.namespace);
    api.delete(&tls::secret_name("hv1"), &DeleteParams::default())
        .await
        .unwrap();
    agent
        .says(
            Reason::Installing,
            "does not exist; what is installed stays",
        )
        .await;
    assert_eq!(machine.served().await, next.der);

    // Nobody wants it installed any more: nothing is said.
    let mut object = (**agent.hypervisor.borrow().object().unwrap()).clone();
    object.spec.install_certificate = Some(false);
    agent
        .hypervisor
        .send_replace(Observed::Present(Arc::new(object)));
    let mut said = agent.ctx.conditions.subscribe();
    let gone = said.wait_for(|all| all.get(&CONDITION) == Some(&None));
    tokio::time::timeout(PATIENCE, gone).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn w73_ready_is_only_said_of_a_certificate_that_libvirtd_uses() {
    let lab = Hosts::start("tls-use", &[Flavour::Trixie]).await;
    let kubernetes = Kubernetes::new().await;
    let machine = Machine::new(&lab, "hv1").await;
    let agent = Agent::new(&kubernetes, kubernetes.admin.clone(), "hv1", false);
    agent.install_tls(&kubernetes, &machine);
    let authority = Authority::new();
    let until = |year| {
        authority.issue_with("hv1", move |params| {
            params.not_after = date_time_ymd(year, 1, 1);
        })
    };
    let first = until(2091);
    kubernetes.put_material("hv1", &first).await;
    agent.says(Reason::Ready, "2091").await;
    let not_used = Reason::FailedToStartUpdateTlsService;

    // libvirtd stands still while it should reload.
    lab.fault(Fault::Stop, "hv1/libvirtd").await.unwrap();
    let second = until(2092);
    kubernetes.put_material("hv1", &second).await;
    let said = agent.says(not_used, "2092").await;
    assert!(said.contains("cannot be told to reload"), "{said}");
    lab.fault(Fault::Cont, "hv1/libvirtd").await.unwrap();
    agent.says(Reason::Ready, "2092").await;
    assert_eq!(machine.served().await, second.der);

    // No way to tell it: it goes on with the old one until it is restarted.
    machine.sh("rm /run/libvirt/libvirt-admin-sock").await;
    let third = until(2093);
    kubernetes.put_material("hv1", &third).await;
    let said = agent.says(not_used, "2093").await;
    assert!(
        said.contains("libvirt-admin-sock") && said.contains("it presents"),
        "{said}"
    );
    assert_eq!(machine.served().await, second.der);
    machine.sh("systemctl restart libvirtd.service").await;
    agent.libvirt.send_replace(Some(machine.connect().await));
    agent.says(Reason::Ready, "2093").await;
    assert_eq!(machine.served().await, third.der);

    // It runs and has no TLS: the files are QEMU's alone, and that is said.
    machine.listen(&["libvirtd", "libvirtd-admin"]).await;
    let fourth = until(2094);
    kubernetes.put_material("hv1", &fourth).await;
    let said = agent.says(Reason::Ready, "2094").await;
    assert!(
        said.contains("for QEMU only: libvirtd does not listen with TLS"),
        "{said}"
    );

    // A key in a newer form than GnuTLS reads: libvirtd refuses it, and would not start with it. The
    // files before are back.
    machine
        .listen(&["libvirtd", "libvirtd-admin", "libvirtd-tls"])
        .await;
    agent.libvirt.send_replace(Some(machine.connect().await));
    agent.says(Reason::Ready, "").await;
    let in_use = "CN=hv1, valid until 2094-01-01T00:00:00Z";
    let mut said = agent.ctx.conditions.subscribe();
    let plain = said.wait_for(|all| {
        all[&CONDITION]
            .as_ref()
            .is_some_and(|said| said.message == in_use)
    });
    tokio::time::timeout(PATIENCE, plain)
        .await
        .unwrap()
        .unwrap();
    let files = machine.everything();
    let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let fifth = authority.issue_for("hv1", &key, |params| {
        params.not_after = date_time_ymd(2095, 1, 1);
    });
    kubernetes.put_material("hv1", &fifth).await;
    let said = agent.says(not_used, "2095").await;
    assert!(
        said.contains("it refuses it") && said.ends_with("the files before are back"),
        "{said}"
    );
    assert_eq!(machine.everything(), files);
    assert_eq!(machine.served().await, fourth.der);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_expires_is_said_to_when_it_does() {
    let lab = Hosts::start("tls-expiry", &[Flavour::Bookworm]).await;
    let kubernetes = Kubernetes::new().await;
    let machine = Machine::new(&lab, "hv1").await;
    let agent = Agent::new(&kubernetes, kubernetes.admin.clone(), "hv1", false);
    let metrics = agent.install_tls(&kubernetes, &machine);
    let end = jiff::Timestamp::now().as_second() + 12;
    let seconds = Duration::from_secs(u64::try_from(end).unwrap());
    let material = Authority::new().issue_with("hv1", |params| {
        params.not_after = date_time_ymd(1970, 1, 1) + seconds;
    });
    kubernetes.put_material("hv1", &material).await;
    agent.says(Reason::Ready, "").await;
    // Less than a fifth of its life is left.
    kubernetes
        .event(&agent.uid, "TLSCertificateExpiresSoon")
        .await;
    agent.says(Reason::Expired, "tls.crt has expired on").await;
    kubernetes.event(&agent.uid, "TLSCertificateExpired").await;
    let labels = tls::SecretLabels {
        secret: tls::secret_name("hv1"),
    };
    assert_eq!(metrics.expiry.get_or_create(&labels).get(), end);
}
