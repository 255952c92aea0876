//! What `kubectl get` shows.

use anyhow::Result;
use cobalt_api::crds;
use kube::{
    api::{DeleteParams, GetParams, Patch, PatchParams, PostParams},
    core::Request,
};
use serde_json::{Value, json};

use crate::support::{api, crd, dynamic, fixture, server, unique};

type Column = (&'static str, &'static str, i64);

const HYPERVISORS: &[Column] = &[
    ("Zone", "string", 2),
    ("Building Block", "string", 2),
    ("Group", "string", 2),
    ("Ready", "string", 0),
    ("State", "string", 0),
    ("Taint", "string", 0),
    ("Lifecycle", "boolean", 0),
    ("High Availability", "boolean", 0),
    ("Skip Tests", "boolean", 0),
    ("Version", "string", 0),
    ("IP", "string", 0),
    ("Instances", "integer", 0),
    ("Hardware", "string", 2),
    ("Kernel", "string", 2),
    ("Onboarding", "string", 3),
    ("Service ID", "string", 3),
    ("Hypervisor ID", "string", 3),
    ("Age", "date", 0),
];

const EVICTIONS: &[Column] = &[
    ("Hypervisor", "string", 0),
    ("Reason", "string", 0),
    ("State", "string", 0),
    ("Created", "date", 0),
];

const MIGRATIONS: &[Column] = &[
    ("Origin", "string", 0),
    ("Destination", "string", 0),
    ("Type", "string", 0),
    ("Operation", "string", 0),
    ("Started", "date", 0),
    ("Elapsed", "string", 0),
    ("Data Total", "string", 0),
    ("Data Processed", "string", 0),
    ("Data Remaining", "string", 0),
    ("Memory TX", "string", 0),
    ("Memory Dirty Rate", "string", 0),
    ("Memory Iteration", "string", 0),
];

const OVSNODES: &[Column] = &[
    ("Node", "string", 0),
    ("Ready", "string", 0),
    ("OVS", "string", 0),
    ("DPDK", "boolean", 0),
    ("OVN", "boolean", 0),
    ("Flows", "integer", 0),
    ("Chassis", "string", 1),
    ("Age", "date", 0),
];

/// The fixture of each kind, its columns, and the cells of the fixture except the age.
fn tables() -> [(&'static str, &'static [Column], Vec<Value>); 4] {
    [
        (
            "hypervisor-agent.yaml",
            HYPERVISORS,
            vec![
                json!("qa-de-1a"),
                json!("bb092"),
                json!("kvm-a"),
                json!("False"),
                json!("Maintenance"),
                json!("⚠️"),
                json!(true),
                json!(true),
                json!(true),
                json!("\"Garden Linux 1877.5\""),
                json!("10.180.4.18"),
                json!(2),
                json!("PowerEdge R760"),
                json!("6.12.40-cloud-amd64"),
                json!("Succeeded"),
                json!("2b6f0c1d-58e7-4a90-9d1c-0c9b8a7f6e5d"),
                json!("c48f6247-abe4-4a24-824e-ea39e108874f"),
            ],
        ),
        (
            "eviction-operator.yaml",
            EVICTIONS,
            vec![
                json!("node002-bb092"),
                json!("maintenance of the host"),
                json!("Running"),
            ],
        ),
        (
            "migration-agent.yaml",
            MIGRATIONS,
            vec![
                json!("node002-bb092"),
                json!("node005-bb092"),
                json!("unbounded"),
                json!("migration_out"),
            ],
        ),
        (
            "ovsnode.yaml",
            OVSNODES,
            vec![
                json!("hypervisor-node-01"),
                json!("True"),
                json!("3.4.1"),
                json!(true),
                json!(true),
                json!(3015),
                json!("a1b2c3d4-e5f6-7890-abcd-ef1234567890"),
            ],
        ),
    ]
}

#[tokio::test]
async fn the_columns_are_the_deployed_ones_and_show_their_values() -> Result<()> {
    let (_, client) = server().await?;
    for (file, columns, cells) in tables() {
        let mut object = fixture(file).clone();
        let name = unique("table");
        object["metadata"]["name"] = json!(name);
        object["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("ownerReferences");
        let plural = crate::support::plural(&object);
        let api = api(&client, plural);
        api.create(&PostParams::default(), &dynamic(&object))
            .await?;
        let status = json!({ "status": object["status"] });
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status))
            .await?;

        let mut request = Request::new(api.resource_url()).get(&name, &GetParams::default())?;
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io".parse()?;
        request.headers_mut().insert("Accept", accept);
        let table: Value = client.request(request).await?;
        let found: Vec<_> = table["columnDefinitions"]
            .as_array()
            .unwrap()
            .iter()
            .skip(1)
            .map(|column| {
                (
                    column["name"].as_str().unwrap().to_owned(),
                    column["type"].as_str().unwrap().to_owned(),
                    column["priority"].as_i64().unwrap(),
                )
            })
            .collect();
        let expected: Vec<_> = columns
            .iter()
            .map(|(n, t, p)| ((*n).to_owned(), (*t).to_owned(), *p))
            .collect();
        assert_eq!(found, expected, "{plural}");
        let shown = &table["rows"][0]["cells"].as_array().unwrap()[1..];
        assert_eq!(&shown[..cells.len()], &cells[..], "{plural}");
        api.delete(&name, &DeleteParams::default()).await?;
    }
    Ok(())
}

#[test]
fn names_and_scopes_are_the_deployed_ones() {
    let facts = [
        (
            "evictions",
            "kvm.cloud.sap",
            "v1",
            "Eviction",
            &["evi"][..],
            "Cluster",
        ),
        (
            "hypervisors",
            "kvm.cloud.sap",
            "v1",
            "Hypervisor",
            &["hv"][..],
            "Cluster",
        ),
        (
            "migrations",
            "kvm.cloud.sap",
            "v1alpha1",
            "Migration",
            &[][..],
            "Namespaced",
        ),
        (
            "ovsnodes",
            "ovs.c5c3.io",
            "v1alpha1",
            "OVSNode",
            &[][..],
            "Namespaced",
        ),
    ];
    assert_eq!(crds::all().len(), facts.len());
    for (plural, group, version, kind, short, scope) in facts {
        let crd = crd(plural).spec.clone();
        assert_eq!(crd.group, group);
        assert_eq!(crd.names.kind, kind);
        assert_eq!(crd.names.list_kind, Some(format!("{kind}List")));
        assert_eq!(crd.names.singular, Some(kind.to_lowercase()));
        assert_eq!(crd.names.short_names.unwrap_or_default(), short);
        assert_eq!(crd.scope, scope);
        let [only] = &crd.versions[..] else {
            panic!("{plural} has one version")
        };
        assert_eq!(only.name, version);
        assert!(only.served && only.storage);
        assert!(
            only.subresources
                .as_ref()
                .is_some_and(|found| found.status.is_some())
        );
    }
}

#[tokio::test]
async fn kubectl_knows_the_short_names() -> Result<()> {
    let (server, _) = server().await?;
    let kubeconfig = server.kubeconfig.display().to_string();
    let kubectl = server.bin.join("kubectl");
    for short in ["hv", "evi"] {
        crate::support::run(&kubectl, &["--kubeconfig", &kubeconfig, "get", short]).await?;
    }
    Ok(())
}
