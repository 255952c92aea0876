//! What the accounts of nodes may read, and what the operator needs to make them.

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::ListParams;

use super::*;

/// Whether RBAC lets an account do this with a Secret. An empty name asks for all of them.
async fn may(site: &Site, account: &str, verb: &str, secret: &str) -> bool {
    let review = json!({ "spec": {
        "user": format!("system:serviceaccount:{}:{account}", site.node),
        "groups": ["system:serviceaccounts", "system:authenticated"],
        "resourceAttributes": {
            "namespace": site.node, "verb": verb, "resource": "secrets", "name": secret,
        },
    } });
    let reviews: Api<SubjectAccessReview> = Api::all(site.client.clone());
    create(&reviews, review).await.status.unwrap().allowed
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_reads_the_secrets_of_its_node_only() {
    let site = Site::new("access").await;
    site.reconcile(None).await;
    let account = format!("secrets-{}", site.node);
    let own = format!("tls-libvirt-{}", site.node);
    // The API server's authorizer learns of a Role a moment later, and there is no event for that.
    let learns = async {
        while !may(&site, &account, "get", &own).await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, learns).await.unwrap();
    for verb in ["get", "list", "watch"] {
        assert!(may(&site, &account, verb, &own).await, "{verb}");
        assert!(may(&site, &account, verb, "ceph").await, "{verb}");
        for secret in ["tls-libvirt-other", ""] {
            assert!(!may(&site, &account, verb, secret).await, "{verb} {secret}");
        }
    }
    for verb in ["update", "patch", "delete", "create"] {
        assert!(!may(&site, &account, verb, &own).await, "{verb}");
    }
}

/// The rules of the operator's account that these objects need. `roles` are the verbs beyond
/// writing that it has on Roles.
async fn operator(site: &Site, roles: &[&str]) -> Client {
    let write = ["get", "list", "watch", "create", "patch", "delete"];
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": verbs });
    let name = unique("operator");
    let account = format!("system:serviceaccount:{}:{name}", site.node);
    let subjects =
        json!([{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": account }]);
    let role = json!({ "metadata": { "name": name }, "rules": [
        rule("", &["serviceaccounts"], &write),
        rule("rbac.authorization.k8s.io", &["roles", "rolebindings"], &write),
        rule("rbac.authorization.k8s.io", &["roles"], roles),
        rule("cert-manager.io", &["certificates"], &write),
        rule("apps", &["deployments"], &write),
        rule("policy", &["poddisruptionbudgets"], &write),
        rule("", &["pods"], &["list"]),
    ] });
    create(&site.api::<Role>(), role).await;
    let reference =
        |kind: &str| json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name });
    let binding =
        json!({ "metadata": { "name": name }, "roleRef": reference("Role"), "subjects": subjects });
    create(&site.api::<RoleBinding>(), binding).await;
    let role = json!({ "metadata": { "name": name }, "rules": [
        rule("", &["nodes"], &["get", "list", "watch", "patch"]),
    ] });
    create(&Api::<ClusterRole>::all(site.client.clone()), role).await;
    let binding = json!({ "metadata": { "name": name }, "roleRef": reference("ClusterRole"), "subjects": subjects });
    create(
        &Api::<ClusterRoleBinding>::all(site.client.clone()),
        binding,
    )
    .await;

    let impersonate = |config: &mut kube::Config| config.auth_info.impersonate = Some(account);
    let client = client_with(&site.server.kubeconfig, impersonate).await;
    let nodes: Api<Node> = Api::all(client.clone());
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &site.node);
    let learns = async {
        let params = ListParams::default().limit(1);
        while nodes.list(&params).await.is_err() || accounts.list(&params).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, learns).await.unwrap();
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_gives_away_rights_that_it_has_not() {
    let mut site = Site::new("rights").await;
    let bare = operator(&site, &["get"]).await;
    let found = site.difference(Some(&hypervisor(&site.node, &[]))).await;
    let mut refused = Vec::new();
    for change in &found.changes {
        if let Err(error) = act(&bare, change, DEADLINE).await {
            refused.push(cobalt_runtime::chain(&error));
        }
    }
    // Without the Role there is nothing to bind.
    let [role, binding] = refused.as_slice() else {
        panic!("{refused:?}");
    };
    let reason = "is attempting to grant RBAC permissions not currently held";
    assert!(role.starts_with("failed to apply Role "), "{role}");
    assert!(role.contains(reason), "{role}");
    assert!(
        binding.starts_with("failed to apply RoleBinding "),
        "{binding}"
    );
    assert!(binding.contains("not found"), "{binding}");

    site.client = operator(&site, &["escalate", "bind"]).await;
    let mut host = hypervisor(
        &site.node,
        &[(
            HypervisorCondition::Evicting,
            Status::False,
            Reason::Succeeded,
        )],
    );
    host.spec.maintenance = Some(cobalt_api::hypervisor::Maintenance::Termination);
    let found = site.difference(Some(&host)).await;
    assert!(
        found
            .changes
            .iter()
            .any(|change| matches!(change, Change::Taint(_)))
    );
    carry_out(&site.client, &found.changes).await;
    assert_eq!(site.difference(Some(&host)).await, Difference::default());
    let namespaces = [site.node.clone()];
    let pods = list_agent_pods(&site.client, &namespaces, &site.node, DEADLINE).await;
    assert_eq!(pods, Ok(vec![]));
    host.spec.lifecycle_enabled = Some(false);
    site.reconcile(Some(&host)).await;
    assert_eq!(site.difference(Some(&host)).await, Difference::default());
}
