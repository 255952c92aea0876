//! Things by exactly their name, where services search for parts of it. The light OpenStack has no
//! real Glance, Neutron and Cinder, so a fake that searches as generously as any stands for them.

use cobalt_openstack::{Error, Port};
use serde_json::{Value, json};

use crate::fake::{Act, Fake, Seen};

const ID: &str = "11111111-2222-4333-8444-555555555555";

/// Lists everything to any search and knows one id.
fn generous(seen: &Seen) -> Act {
    let named = |names: &[&str]| -> Value {
        let thing =
            |(index, name): (usize, &&str)| json!({ "id": format!("id-{index}"), "name": name });
        names.iter().enumerate().map(thing).collect()
    };
    let names = [
        "cirros",
        "cirros-kvm",
        "cirros-kvm-2",
        "two",
        "two",
        "premium",
        ID,
    ];
    let one = json!({ "id": ID, "name": "other" });
    let (path, _) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
    match path {
        "/image/v2/images" => Act::json(200, &json!({ "images": named(&names) })),
        "/network/v2.0/networks" => Act::json(200, &json!({ "networks": named(&names) })),
        "/volume/v3/p1/types" => Act::json(200, &json!({ "volume_types": named(&names) })),
        path if path == format!("/network/v2.0/networks/{ID}") => {
            Act::json(200, &json!({ "network": one }))
        }
        path if path == format!("/volume/v3/p1/types/{ID}") => {
            Act::json(200, &json!({ "volume_type": one }))
        }
        "/network/v2.0/ports" => Act::json(
            200,
            &json!({ "ports": [
                { "id": "b", "device_id": "s1", "status": "ACTIVE", "binding:host_id": "hv1" },
                { "id": "a", "device_id": "s1", "binding:vnic_type": "direct" },
                { "id": "c", "device_id": "s10" },
            ]}),
        ),
        _ => Act::json(404, &json!({})),
    }
}

#[tokio::test]
async fn w18_names_are_exact_and_ids_go_first() {
    let fake = Fake::start(generous).await;
    let client = fake.client();
    let image = client.find_image("cirros-kvm").await.unwrap().unwrap();
    assert_eq!(image.id, "id-1");
    assert_eq!(client.find_image("cirros-k").await.unwrap(), None);
    let error = client.find_image("two").await.unwrap_err();
    assert!(
        matches!(error, Error::Ambiguous { count: 2, .. }),
        "{error}"
    );
    // It looks like an id, is none, and is a name.
    assert_eq!(client.find_image(ID).await.unwrap().unwrap().id, "id-6");

    assert_eq!(
        client.find_network(ID).await.unwrap().unwrap().name,
        "other"
    );
    assert_eq!(
        client.find_network("cirros").await.unwrap().unwrap().id,
        "id-0"
    );
    assert_eq!(client.find_network("cirr").await.unwrap(), None);
    assert_eq!(
        client
            .find_volume_type("premium")
            .await
            .unwrap()
            .unwrap()
            .id,
        "id-5"
    );
    assert_eq!(
        client.find_volume_type(ID).await.unwrap().unwrap().name,
        "other"
    );
    assert_eq!(client.find_volume_type("prem").await.unwrap(), None);
}

#[tokio::test]
async fn ports_are_those_of_the_server() {
    let fake = Fake::start(generous).await;
    let ports = fake.client().ports_of("s1").await.unwrap();
    let ids: Vec<_> = ports.iter().map(|port| port.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(ports[0].vnic_type.as_deref(), Some("direct"));
    let devices: Vec<_> = ports.iter().map(Port::is_device_of_host).collect();
    assert_eq!(devices, [true, false]);
    let ports = fake.client().ports_on("hv1").await.unwrap();
    let ids: Vec<_> = ports.iter().map(|port| port.id.as_str()).collect();
    assert_eq!(ids, ["b"]);
}

#[tokio::test]
async fn a_name_cannot_become_another_question() {
    let fake = Fake::start(generous).await;
    let name = r#"in:a","b&visibility=all"#;
    assert_eq!(fake.client().find_image(name).await.unwrap(), None);
    let path = &fake.seen()[0].path;
    assert_eq!(
        *path,
        "/image/v2/images?name=in%3A%22in%3Aa%5C%22%2C%5C%22b%26visibility%3Dall%22&limit=500"
    );
}
