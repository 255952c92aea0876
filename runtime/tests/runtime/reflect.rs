//! The picture of a kind, kept from a real API server.

use std::collections::BTreeMap;
use std::time::Duration;

use cobalt_runtime::{Change, Health, ObjectKey, Presence, Reflection, Store, reflect};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DeserializeGuard, GroupVersionKind, NotUsed, Object};
use kube::runtime::{conditions, wait, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{PATIENCE, Road, Way, namespace, server, soon, unique};

/// What was told: the object and the data it had before and has now.
type Told = (String, Option<String>, Option<String>);

struct Picture {
    store: Store<String>,
    told: mpsc::Receiver<Told>,
    health: Health,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Picture {
    fn new<K>(
        api: Api<DeserializeGuard<K>>,
        presence: Presence,
        selection: watcher::Config,
        trim: impl Fn(K) -> String + Send + 'static,
    ) -> Self
    where
        K: Resource + Clone + for<'a> Deserialize<'a> + std::fmt::Debug + Send + Sync + 'static,
        K::DynamicType: Send + Sync,
    {
        let (sender, told) = mpsc::channel(1000);
        let tell = move |key: &ObjectKey, change: Change<'_, String>| {
            let said = |text: &std::sync::Arc<String>| text.to_string();
            let (before, now) = match change {
                Change::Applied { before, now } => (before.map(said), Some(said(now))),
                Change::Deleted { before } => (Some(said(before)), None),
            };
            sender.try_send((key.to_string(), before, now)).unwrap();
        };
        let health = Health::default();
        let how = Reflection {
            name: "things",
            presence,
            health: health.clone(),
        };
        let cancel = CancellationToken::new();
        let (store, work) = reflect(api, selection, how, trim, tell, cancel.clone());
        Self {
            store,
            told,
            health,
            cancel,
            task: tokio::spawn(work),
        }
    }

    async fn ready(&self) {
        soon("a complete list", self.store.until_ready()).await;
    }

    async fn next(&mut self) -> Told {
        soon("a change", self.told.recv()).await.unwrap()
    }

    /// The next change, without the namespace.
    async fn expect(&mut self, name: &str, before: Option<&str>, now: Option<&str>) {
        let (key, was, is) = self.next().await;
        let short = key.rsplit('/').next().unwrap().to_owned();
        let found = (short.as_str(), was.as_deref(), is.as_deref());
        assert_eq!(found, (name, before, now));
    }

    async fn until_missing(&self, says: &str) {
        let mut last = Vec::new();
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while tokio::time::Instant::now() < deadline {
            last = self.health.missing();
            if last.iter().any(|text| text.contains(says)) || says.is_empty() && last.is_empty() {
                return;
            }
            // Health has no events: it is asked now and then.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{says:?} is not what is missing: {last:?}");
    }

    async fn end(self) {
        self.cancel.cancel();
        soon("the end", self.task).await.unwrap();
    }
}

fn config_map(name: &str, text: &str) -> ConfigMap {
    let mut map = ConfigMap {
        data: Some([("text".to_owned(), text.to_owned())].into()),
        ..ConfigMap::default()
    };
    map.metadata.name = Some(name.to_owned());
    map
}

fn text(map: ConfigMap) -> String {
    let mut data: BTreeMap<String, String> = map.data.unwrap_or_default();
    data.remove("text").unwrap_or_default()
}

async fn create(api: &Api<ConfigMap>, name: &str, text: &str) {
    let map = config_map(name, text);
    api.create(&PostParams::default(), &map).await.unwrap();
}

async fn merge(api: &Api<ConfigMap>, name: &str, patch: serde_json::Value) {
    let patch = Patch::Merge(patch);
    let patched = api.patch(name, &PatchParams::default(), &patch).await;
    patched.unwrap();
}

async fn delete(api: &Api<ConfigMap>, name: &str) {
    api.delete(name, &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn what_is_there_and_what_changes_is_told_once_in_its_trimmed_form() {
    let (_, client) = server().await;
    let namespace = namespace(&client, "reflect").await;
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    // More than a page.
    let names: Vec<String> = (0..230).map(|number| format!("map-{number:03}")).collect();
    for name in &names {
        create(&api, name, "old").await;
    }
    let trim = |map: ConfigMap| {
        assert!(!map.managed_fields().is_empty());
        text(map)
    };
    let guarded = Api::namespaced(client, &namespace);
    let all = watcher::Config::default();
    let mut picture = Picture::new(guarded, Presence::Required, all, trim);
    picture.ready().await;
    for name in &names {
        picture.expect(name, None, Some("old")).await;
    }
    assert_eq!(picture.store.len(), 230);
    assert_eq!(picture.store.all().len(), 230);
    assert!(picture.health.missing().is_empty());

    // What the trimmed form leaves out is not told; the next change is the next that is told.
    merge(&api, "map-000", json!({"data": {"other": "x"}})).await;
    merge(&api, "map-001", json!({"data": {"text": "new"}})).await;
    picture.expect("map-001", Some("old"), Some("new")).await;
    let key = ObjectKey::namespaced(&namespace, "map-001");
    assert_eq!(picture.store.get(&key).as_deref().unwrap(), "new");
    delete(&api, "map-001").await;
    picture.expect("map-001", Some("new"), None).await;
    assert_eq!(picture.store.get(&key), None);
    create(&api, "map-001", "again").await;
    picture.expect("map-001", None, Some("again")).await;
    assert_eq!(picture.store.len(), 230);
    picture.end().await;
}

#[tokio::test]
async fn kinds_without_namespaces_are_found_by_name_and_chosen_by_label() {
    let (_, client) = server().await;
    let label = unique("chosen");
    let api: Api<Namespace> = Api::all(client.clone());
    let make = async |prefix: &str, label: &str| {
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(unique(prefix));
        namespace.labels_mut().insert("for".into(), label.into());
        let created = api.create(&PostParams::default(), &namespace).await;
        created.unwrap().name_any()
    };
    let chosen = make("yes", &label).await;
    let other = make("no", "somebody").await;
    let guarded = Api::all(client.clone());
    let selection = watcher::Config::default().labels(&format!("for={label}"));
    let trim = |namespace: Namespace| namespace.labels()["for"].clone();
    let mut picture = Picture::new(guarded, Presence::Required, selection, trim);
    picture.ready().await;
    picture.expect(&chosen, None, Some(&label)).await;
    assert_eq!(picture.store.named(&chosen).as_deref(), Some(&label));
    assert_eq!(picture.store.named(&other), None);
    // One that loses the label is gone for us.
    let patch = Patch::Merge(json!({"metadata": {"labels": {"for": "else"}}}));
    let patched = api.patch(&chosen, &PatchParams::default(), &patch).await;
    patched.unwrap();
    picture.expect(&chosen, Some(&label), None).await;
    picture.end().await;
}

#[tokio::test]
async fn while_the_api_server_is_away_the_last_picture_stays() {
    let (api_server, client) = server().await;
    let namespace = namespace(&client, "away").await;
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    create(&api, "stays", "1").await;
    create(&api, "goes", "1").await;
    let (road, far) = Road::open(api_server).await;
    let all = watcher::Config::default();
    let guarded = Api::namespaced(far, &namespace);
    let mut picture = Picture::new(guarded, Presence::Required, all, text);
    picture.expect("goes", None, Some("1")).await;
    picture.expect("stays", None, Some("1")).await;
    picture.ready().await;

    road.set(Way::Cut);
    picture.until_missing("things: ").await;
    delete(&api, "goes").await;
    create(&api, "comes", "1").await;
    assert_eq!(picture.store.len(), 2);
    assert!(picture.store.ready());
    road.set(Way::Open);
    picture.expect("goes", Some("1"), None).await;
    picture.expect("comes", None, Some("1")).await;
    picture.until_missing("").await;
    picture.end().await;
}

#[tokio::test]
async fn an_api_server_that_is_away_from_the_start_is_waited_for() {
    let (api_server, client) = server().await;
    let namespace = namespace(&client, "start").await;
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    create(&api, "one", "1").await;
    let (road, far) = Road::open(api_server).await;
    road.set(Way::Cut);
    let all = watcher::Config::default();
    let guarded = Api::namespaced(far, &namespace);
    let mut picture = Picture::new(guarded, Presence::Required, all, text);
    picture.until_missing("things: ").await;
    assert!(!picture.store.ready());
    road.set(Way::Open);
    picture.ready().await;
    picture.expect("one", None, Some("1")).await;
    picture.until_missing("").await;
    picture.end().await;
}

/// A kind of its own for one test.
struct Kind {
    client: Client,
    group: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Number {
    number: u32,
}

impl Kind {
    fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            group: format!("{}.example.org", unique("reflect")),
        }
    }

    fn resource(&self) -> ApiResource {
        let kind = GroupVersionKind::gvk(&self.group, "v1", "Thing");
        ApiResource::from_gvk_with_plural(&kind, "things")
    }

    fn definitions(&self) -> Api<CustomResourceDefinition> {
        Api::all(self.client.clone())
    }

    fn definition(&self) -> String {
        format!("things.{}", self.group)
    }

    async fn install(&self) {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": self.definition()},
            "spec": {
                "group": self.group, "scope": "Cluster",
                "names": {"kind": "Thing", "plural": "things"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {
                    "openAPIV3Schema": {
                        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    },
                }}],
            },
        });
        let definition = serde_json::from_value(definition).unwrap();
        let client = &self.client;
        cobalt_lab::testing::install_definitions(client, &[definition])
            .await
            .unwrap();
    }

    async fn uninstall(&self) {
        let api = self.definitions();
        let name = self.definition();
        let found = api.get(&name).await.unwrap();
        api.delete(&name, &DeleteParams::default()).await.unwrap();
        let uid = found.uid().unwrap();
        let gone = conditions::is_deleted(&uid);
        let gone = wait::await_condition(api, &name, gone);
        soon("the definition to be gone", gone).await.unwrap();
    }

    fn api(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &self.resource())
    }

    async fn create(&self, name: &str, number: &serde_json::Value) {
        let thing =
            DynamicObject::new(name, &self.resource()).data(json!({"spec": {"number": number}}));
        let api = self.api();
        let created = api.create(&PostParams::default(), &thing).await;
        created.unwrap();
    }

    fn picture(&self, client: Client, presence: Presence) -> Picture {
        let trim = |thing: Object<Number, NotUsed>| thing.spec.number.to_string();
        let guarded = Api::all_with(client, &self.resource());
        Picture::new(guarded, presence, watcher::Config::default(), trim)
    }
}

const SOON: Presence = Presence::Optional(Duration::from_millis(200));

#[tokio::test]
async fn an_optional_kind_that_is_not_installed_is_an_empty_one() {
    let (_, client) = server().await;
    let kind = Kind::new(&client);
    let mut picture = kind.picture(client, SOON);
    picture.ready().await;
    assert!(picture.store.is_empty());
    assert!(picture.health.missing().is_empty());
    kind.install().await;
    kind.create("one", &json!(1)).await;
    picture.expect("one", None, Some("1")).await;
    kind.uninstall().await;
    picture.expect("one", Some("1"), None).await;
    assert!(picture.health.missing().is_empty());
    kind.install().await;
    kind.create("two", &json!(2)).await;
    picture.expect("two", None, Some("2")).await;
    picture.end().await;
    kind.uninstall().await;
}

#[tokio::test]
async fn a_required_kind_that_is_not_installed_is_said_and_waited_for() {
    let (_, client) = server().await;
    let kind = Kind::new(&client);
    let mut picture = kind.picture(client, Presence::Required);
    picture.until_missing("install its").await;
    assert!(!picture.store.ready());
    kind.install().await;
    picture.ready().await;
    picture.until_missing("").await;
    kind.create("one", &json!(1)).await;
    picture.expect("one", None, Some("1")).await;
    picture.end().await;
    kind.uninstall().await;
}

#[tokio::test]
async fn one_object_that_cannot_be_read_is_named_and_harms_no_other() {
    let (_, client) = server().await;
    let kind = Kind::new(&client);
    kind.install().await;
    kind.create("bad", &json!("many")).await;
    kind.create("good", &json!(1)).await;
    let mut picture = kind.picture(client, Presence::Required);
    picture.expect("good", None, Some("1")).await;
    picture.ready().await;
    let invalid = |picture: &Picture| -> Vec<String> {
        let invalid = picture.store.invalid();
        invalid.iter().map(|(key, _)| key.to_string()).collect()
    };
    assert_eq!(invalid(&picture), ["bad"]);
    assert!(picture.store.invalid()[0].1.contains("u32"));

    let set = async |name: &str, number: serde_json::Value| {
        let patch = Patch::Merge(json!({"spec": {"number": number}}));
        let patched = kind
            .api()
            .patch(name, &PatchParams::default(), &patch)
            .await;
        patched.unwrap();
    };
    // What was last known of it stays.
    set("good", json!("more")).await;
    set("bad", json!(2)).await;
    picture.expect("bad", None, Some("2")).await;
    assert_eq!(invalid(&picture), ["good"]);
    assert_eq!(picture.store.named("good").as_deref().unwrap(), "1");
    set("good", json!(3)).await;
    picture.expect("good", Some("1"), Some("3")).await;
    assert!(invalid(&picture).is_empty());
    picture.end().await;
    kind.uninstall().await;
}

/// The whole kind is made anew while nobody looks, so that the watch cannot go on where it was.
#[tokio::test]
async fn what_vanished_while_too_much_was_missed_is_told_as_deleted() {
    let (api_server, client) = server().await;
    let kind = Kind::new(&client);
    kind.install().await;
    kind.create("gone", &json!(1)).await;
    kind.create("same", &json!(1)).await;
    let (road, far) = Road::open(api_server).await;
    let mut picture = kind.picture(far, Presence::Required);
    picture.expect("gone", None, Some("1")).await;
    picture.expect("same", None, Some("1")).await;
    road.set(Way::Cut);
    picture.until_missing("things: ").await;
    kind.uninstall().await;
    kind.install().await;
    kind.create("same", &json!(1)).await;
    kind.create("new", &json!(1)).await;
    road.set(Way::Open);
    let mut told = BTreeMap::new();
    while told.len() < 2 || picture.store.len() != 2 {
        let (name, _, now) = picture.next().await;
        told.insert(name, now);
    }
    assert_eq!(told.get("gone"), Some(&None));
    assert_eq!(told.get("new"), Some(&Some("1".to_owned())));
    let left: Vec<String> = picture
        .store
        .all()
        .iter()
        .map(|(key, _)| key.to_string())
        .collect();
    assert_eq!(left, ["new", "same"]);
    picture.end().await;
    kind.uninstall().await;
}
