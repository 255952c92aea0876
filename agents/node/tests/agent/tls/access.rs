//! Who may read a node's Secrets, and who is asked for them: a real API server with its RBAC.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_reads_its_own_secrets_with_a_token_of_its_own_account() {
    let kubernetes = Kubernetes::new().await;
    let namespace: &str = &kubernetes.namespace;
    // The account of the DaemonSet: it may ask for tokens, and read no Secret.
    let agents = account(
        &kubernetes,
        "agents",
        &[rule(
            "",
            "serviceaccounts/token",
            &["hv1-secrets-hv1"],
            &["create"],
        )],
    )
    .await;
    let client = kubernetes.with_token(agents).await;
    let agent = Agent::new(&kubernetes, client.clone(), "hv1", false);
    let access = agent.read_secrets(&kubernetes, "hv1-secrets-");
    let (watching, mut seen) =
        secrets::watch_secret(&access, &agent.ctx.namespace, "tls-libvirt-hv1");
    tokio::spawn(watching);

    // Nobody made the account.
    let missing = format!(
        "the ServiceAccount {namespace}/hv1-secrets-hv1, which may read this node's Secrets, does not exist"
    );
    agent.misses(&missing).await;
    let unknown =
        |seen: &Observed<Secret>| matches!(seen, Observed::Unknown(why) if *why == missing);
    tokio::time::timeout(PATIENCE, seen.wait_for(unknown))
        .await
        .unwrap()
        .unwrap();

    // It is there: the Secret is seen, and so are its changes.
    let verbs = ["get", "list", "watch"];
    account(
        &kubernetes,
        "hv1-secrets-hv1",
        &[rule("", "secrets", &["tls-libvirt-hv1"], &verbs)],
    )
    .await;
    let absent = |seen: &Observed<Secret>| matches!(seen, Observed::Absent);
    tokio::time::timeout(PATIENCE, seen.wait_for(absent))
        .await
        .unwrap()
        .unwrap();
    assert!(agent.ctx.health.missing().is_empty());
    kubernetes
        .put_secret("tls-libvirt-hv1", &[("tls.key", b"mine")])
        .await;
    kubernetes
        .put_secret("tls-libvirt-hv2", &[("tls.key", b"theirs")])
        .await;
    let present = |seen: &Observed<Secret>| seen.object().is_some();
    tokio::time::timeout(PATIENCE, seen.wait_for(present))
        .await
        .unwrap()
        .unwrap();

    // The account is made anew, which ends its tokens: the next one is asked for, and nothing that
    // was seen is forgotten in between.
    let accounts: Api<ServiceAccount> = Api::namespaced(kubernetes.admin.clone(), namespace);
    accounts
        .delete("hv1-secrets-hv1", &DeleteParams::default())
        .await
        .unwrap();
    agent.misses("does not exist").await;
    assert!(seen.borrow_and_update().object().is_some());
    let before = agent.tokens.load(Ordering::Relaxed);
    let object = ServiceAccount {
        metadata: named("hv1-secrets-hv1"),
        ..ServiceAccount::default()
    };
    let params = PostParams::default();
    accounts.create(&params, &object).await.unwrap();
    eventually("two more tokens", || {
        agent.tokens.load(Ordering::Relaxed) > before + 1
    })
    .await;
    kubernetes
        .put_secret("tls-libvirt-hv1", &[("tls.key", b"renewed")])
        .await;
    let renewed = |seen: &Observed<Secret>| {
        let data = seen.object().and_then(|secret| secret.data.as_ref());
        data.is_some_and(|data| data["tls.key"].0 == b"renewed")
    };
    tokio::time::timeout(PATIENCE, seen.wait_for(renewed))
        .await
        .unwrap()
        .unwrap();
    let answer = accounts
        .create_token_request("hv1-secrets-hv1", &params, &Default::default())
        .await;
    let token = answer.unwrap().status.unwrap().token.unwrap();

    // Neither account reads another Secret.
    let own = kubernetes.with_token(token).await;
    for (who, client, name, allowed) in [
        ("the agents'", &client, "tls-libvirt-hv1", false),
        ("the agents'", &client, "tls-libvirt-hv2", false),
        ("the node's", &own, "tls-libvirt-hv1", true),
        ("the node's", &own, "tls-libvirt-hv2", false),
    ] {
        let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let read = api.get(name).await;
        assert_eq!(read.is_ok(), allowed, "{who} account and {name}");
        let by_name = ListParams::default().fields(&format!("metadata.name={name}"));
        assert_eq!(
            api.list(&by_name).await.is_ok(),
            allowed,
            "{who} account and {name}"
        );
    }
    let all: Api<Secret> = Api::namespaced(own, namespace);
    assert!(all.list(&ListParams::default()).await.is_err());
}

fn rule(group: &str, resource: &str, names: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |all: &[&str]| all.iter().map(|&one| one.to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        resource_names: Some(owned(names)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

/// Makes a ServiceAccount with a Role, and returns a token of it.
async fn account(kubernetes: &Kubernetes, name: &str, rules: &[PolicyRule]) -> String {
    let params = PostParams::default();
    let (admin, namespace) = (&kubernetes.admin, &*kubernetes.namespace);
    let role = Role {
        metadata: named(name),
        rules: Some(rules.to_vec()),
    };
    let api: Api<Role> = Api::namespaced(admin.clone(), namespace);
    api.create(&params, &role).await.unwrap();
    let binding = RoleBinding {
        metadata: named(name),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".into()),
            kind: "Role".into(),
            name: name.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: name.to_owned(),
            namespace: Some(namespace.to_owned()),
            ..Subject::default()
        }]),
    };
    let api: Api<RoleBinding> = Api::namespaced(admin.clone(), namespace);
    api.create(&params, &binding).await.unwrap();
    let api: Api<ServiceAccount> = Api::namespaced(admin.clone(), namespace);
    let object = ServiceAccount {
        metadata: named(name),
        ..ServiceAccount::default()
    };
    api.create(&params, &object).await.unwrap();
    let answer = api
        .create_token_request(name, &params, &Default::default())
        .await
        .unwrap();
    answer.status.unwrap().token.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn cert_manager_is_asked_once_and_its_absence_is_said() {
    // An API server of its own: others install cert-manager's kinds in the shared one.
    let lab = cobalt_lab::testing::lab(LabConfig::api_only("cert"))
        .await
        .unwrap();
    let kubernetes = Kubernetes::on(ApiServer {
        kubeconfig: lab.kubeconfig(),
        bin: lab.bin().unwrap(),
    })
    .await;
    let agent = Agent::new(&kubernetes, kubernetes.admin.clone(), "hv1", true);
    let folder = tempfile::tempdir().unwrap();
    let config = TlsConfig {
        pki_path: Some(folder.path().to_owned()),
        qemu_group: None,
        admin_socket: folder.path().join("admin"),
        tls_address: "127.0.0.1:1".parse().unwrap(),
        host_ip: Some([10, 0, 0, 1].into()),
        issuer_name: "issuer".into(),
    };
    let access = agent.read_secrets(&kubernetes, "");
    let task = tls::run(
        agent.ctx.clone(),
        config,
        access,
        TlsMetrics::default(),
        agent.cancel.clone(),
    );
    tokio::spawn(task);
    agent
        .says(
            Reason::Installing,
            "does not exist; cert-manager is not installed",
        )
        .await;
    agent
        .misses("certificate: cert-manager is not installed")
        .await;

    let kind = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let crds: Api<DynamicObject> =
        Api::all_with(kubernetes.admin.clone(), &ApiResource::from_gvk(&kind));
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "certificates.cert-manager.io" },
        "spec": {
            "group": "cert-manager.io",
            "scope": "Namespaced",
            "names": { "kind": "Certificate", "plural": "certificates", "singular": "certificate" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            }}}],
        },
    });
    let params = PatchParams::apply("test").force();
    let name = "certificates.cert-manager.io";
    crds.patch(name, &params, &Patch::Apply(&crd))
        .await
        .unwrap();
    let kind = GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate");
    let resource = ApiResource::from_gvk_with_plural(&kind, "certificates");
    let api: Api<DynamicObject> =
        Api::namespaced_with(kubernetes.admin.clone(), &kubernetes.namespace, &resource);
    // A new kind is not served at once, so the watch may begin with errors.
    let seen = watcher::watch_object(api.clone(), "libvirt-hv1").default_backoff();
    let mut there = seen.filter_map(async |seen| seen.ok().flatten()).boxed();
    let found = tokio::time::timeout(PATIENCE, there.next()).await;
    let found = found.unwrap().unwrap();
    assert_eq!(found.data["spec"]["secretName"], "tls-libvirt-hv1");
    assert_eq!(found.data["spec"]["ipAddresses"], json!(["10.0.0.1"]));
    let managers = found.metadata.managed_fields.clone().unwrap();
    assert_eq!(
        managers[0].manager.as_deref(),
        Some("cobaltcore/node-agent")
    );
    agent
        .says(
            Reason::Installing,
            "does not exist; what is installed stays",
        )
        .await;
    assert!(agent.ctx.health.missing().is_empty());

    // The Hypervisor changes in other ways: the Certificate does not.
    for round in 0..5 {
        let mut object = (**agent.hypervisor.borrow().object().unwrap()).clone();
        object.metadata.resource_version = Some(format!("{round}"));
        agent
            .hypervisor
            .send_replace(Observed::Present(Arc::new(object)));
        tokio::task::yield_now().await;
    }
    let after = api.get("libvirt-hv1").await.unwrap();
    assert_eq!(
        after.metadata.resource_version,
        found.metadata.resource_version
    );
    lab.down().await.unwrap();
}
