//! One picture of all objects of a kind, shared by everybody in a process who looks at them.
//!
//! Each object is trimmed as it arrives, before it is kept: a fleet has thousands, and most of what
//! they say is read by nobody. Whoever listens is told what has changed in the trimmed form, so a
//! heartbeat that the trimmed form leaves out wakes nobody. While the API server is away the last
//! picture stays; when it is back, what vanished meanwhile is told as deleted. One object that cannot
//! be read is named, and keeps what was last known of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug, Display};
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use futures::TryStreamExt;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::error_boundary::InvalidObject;
use kube::core::{DeserializeGuard, ListMeta, ObjectMeta, PartialObjectMeta, Request};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{Backoff, Health, chain, jitter};

/// The text of so many objects is in memory at a time.
const PAGE: u32 = 100;
/// A page, and the begin of a watch.
const DEADLINE: Duration = Duration::from_secs(60);
/// The API server ends a watch after so long, and it goes on where it was. A connection that died in
/// silence is noticed after that.
const WATCH_SECONDS: u32 = 60;
const WATCH_MARGIN: Duration = Duration::from_secs(5);
/// A watch that ends sooner is not going well.
const SHORT: Duration = Duration::from_secs(1);

/// Which object of a kind: by name, and by namespace where the kind has one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    // By name first: those of one name are neighbours, in whichever namespace they are.
    name: Arc<str>,
    namespace: Option<Arc<str>>,
}

impl ObjectKey {
    /// Of a kind without namespaces.
    #[must_use]
    pub fn cluster(name: &str) -> Self {
        Self {
            namespace: None,
            name: name.into(),
        }
    }

    /// Of a kind with namespaces.
    #[must_use]
    pub fn namespaced(namespace: &str, name: &str) -> Self {
        Self {
            namespace: Some(namespace.into()),
            name: name.into(),
        }
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

impl Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

/// What has become of an object. The store says the same already.
#[derive(Debug)]
pub enum Change<'a, T> {
    /// It is new or different.
    Applied {
        /// What it was; `None` if it is new.
        before: Option<&'a Arc<T>>,
        /// What it is.
        now: &'a Arc<T>,
    },
    /// It is gone.
    Deleted {
        /// What it was.
        before: &'a Arc<T>,
    },
}

/// What it means that the API server does not know the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It is missing, and has to be installed.
    Required,
    /// There are no such objects. It is looked for again at this interval.
    Optional(Duration),
}

/// How a kind is followed.
#[derive(Debug, Clone)]
pub struct Reflection {
    /// What it is called in logs and in the health.
    pub name: &'static str,
    /// What it means that the API server does not know the kind.
    pub presence: Presence,
    /// Where it is said that the API server does not answer.
    pub health: Health,
}

#[derive(Debug)]
struct Contents<T> {
    objects: BTreeMap<ObjectKey, Arc<T>>,
    invalid: BTreeMap<ObjectKey, String>,
}

#[derive(Debug)]
struct Shared<T> {
    contents: RwLock<Contents<T>>,
    ready: watch::Sender<bool>,
}

/// All objects of a kind, trimmed. A clone is the same store.
#[derive(Debug)]
pub struct Store<T>(Arc<Shared<T>>);

impl<T> Clone for Store<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Store<T> {
    fn new() -> Self {
        let contents = Contents {
            objects: BTreeMap::new(),
            invalid: BTreeMap::new(),
        };
        Self(Arc::new(Shared {
            contents: RwLock::new(contents),
            ready: watch::Sender::new(false),
        }))
    }

    /// An object.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        self.read().objects.get(key).cloned()
    }

    /// An object of a kind without namespaces.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<Arc<T>> {
        self.get(&ObjectKey::cluster(name))
    }

    /// Where the object of this name is, whatever its namespace; of several the first.
    #[must_use]
    pub fn whereabouts(&self, name: &str) -> Option<ObjectKey> {
        let contents = self.read();
        let (key, _) = contents.objects.range(ObjectKey::cluster(name)..).next()?;
        (key.name() == name).then(|| key.clone())
    }

    /// All objects, by key.
    #[must_use]
    pub fn all(&self) -> Vec<(ObjectKey, Arc<T>)> {
        let contents = self.read();
        let pairs = contents.objects.iter();
        pairs
            .map(|(key, object)| (key.clone(), Arc::clone(object)))
            .collect()
    }

    /// Objects of a kind without namespaces whose names begin so, in the order of their names.
    #[must_use]
    pub fn with_prefix(&self, prefix: &str) -> Vec<Arc<T>> {
        let contents = self.read();
        let from = contents.objects.range(ObjectKey::cluster(prefix)..);
        from.take_while(|(key, _)| key.name().starts_with(prefix))
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }

    /// How many objects there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.read().objects.is_empty()
    }

    /// The objects that cannot be read, with the reason.
    #[must_use]
    pub fn invalid(&self) -> Vec<(ObjectKey, String)> {
        let contents = self.read();
        let pairs = contents.invalid.iter();
        pairs
            .map(|(key, reason)| (key.clone(), reason.clone()))
            .collect()
    }

    /// Whether all objects have been seen once: absence means something from then on.
    #[must_use]
    pub fn ready(&self) -> bool {
        *self.0.ready.borrow()
    }

    /// Waits until it is ready.
    pub async fn until_ready(&self) {
        let mut ready = self.0.ready.subscribe();
        // The sender lives as long as this store.
        drop(ready.wait_for(|ready| *ready).await);
    }

    fn read(&self) -> RwLockReadGuard<'_, Contents<T>> {
        let contents = self.0.contents.read();
        contents.unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Contents<T>> {
        let contents = self.0.contents.write();
        contents.unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an object. What it was and is, if that differs.
    fn apply(&self, key: &ObjectKey, new: T) -> Option<(Option<Arc<T>>, Arc<T>)>
    where
        T: PartialEq,
    {
        let mut contents = self.write();
        contents.invalid.remove(key);
        if contents.objects.get(key).is_some_and(|old| **old == new) {
            return None;
        }
        let new = Arc::new(new);
        let old = contents.objects.insert(key.clone(), Arc::clone(&new));
        Some((old, new))
    }

    /// Puts something better in place of an object, unless the watch was faster.
    pub fn replace(&self, key: &ObjectKey, known: &Arc<T>, better: T) {
        let mut contents = self.write();
        if let Some(object) = contents.objects.get_mut(key)
            && Arc::ptr_eq(object, known)
        {
            *object = Arc::new(better);
        }
    }

    fn set_invalid(&self, key: &ObjectKey, reason: String) {
        self.write().invalid.insert(key.clone(), reason);
    }

    fn remove(&self, key: &ObjectKey) -> Option<Arc<T>> {
        let mut contents = self.write();
        contents.invalid.remove(key);
        contents.objects.remove(key)
    }

    /// What is known and not in a complete list.
    fn vanished(&self, listed: &BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
        let contents = self.read();
        let known = contents.objects.keys().chain(contents.invalid.keys());
        let mut vanished: Vec<ObjectKey> =
            known.filter(|key| !listed.contains(key)).cloned().collect();
        vanished.sort_unstable();
        vanished.dedup();
        vanished
    }

    /// Whether this is new.
    fn set_ready(&self) -> bool {
        !self.0.ready.send_replace(true)
    }
}

/// Follows all objects of a kind that the selectors of `selection` choose. The future does the work,
/// until it is cancelled. `trim` sees each object whole, managed fields too. `tell` is called with
/// each change, in order, after the store has it.
pub fn reflect<K, T>(
    api: Api<DeserializeGuard<K>>,
    selection: watcher::Config,
    how: Reflection,
    trim: impl Fn(K) -> T + Send,
    tell: impl FnMut(&ObjectKey, Change<'_, T>) + Send,
    cancel: CancellationToken,
) -> (Store<T>, impl Future<Output = ()> + Send)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    T: PartialEq + Send + Sync,
{
    let store = Store::new();
    let mut reflector = Reflector {
        client: api.clone().into_client(),
        api,
        selection,
        how,
        trim,
        tell,
        store: store.clone(),
        namespace: None,
    };
    let work = async move {
        cancel.run_until_cancelled(reflector.run()).await;
    };
    (store, work)
}

/// Why a list or a watch has ended.
enum Failure {
    /// The API server does not know the kind.
    UnknownKind,
    /// It no longer knows what has happened since the last event: list anew.
    Outdated,
    /// Anything else.
    Other(String),
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 404 => Self::UnknownKind,
            kube::Error::Api(status) if status.code == 410 => Self::Outdated,
            other => Self::Other(chain(&other)),
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Other(chain(&error))
    }
}

async fn call<R>(request: impl Future<Output = kube::Result<R>>) -> Result<R, Failure> {
    match timeout(DEADLINE, request).await {
        Ok(answer) => answer.map_err(Failure::from),
        Err(_) => Err(Failure::Other(format!(
            "the API server did not answer within {} s",
            DEADLINE.as_secs()
        ))),
    }
}

/// A page of a list. Its objects are read one after the other: whole, each is several times its text.
#[derive(Deserialize)]
struct Page<'a> {
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

struct Reflector<K, T, Trim, Tell> {
    client: Client,
    api: Api<DeserializeGuard<K>>,
    selection: watcher::Config,
    how: Reflection,
    trim: Trim,
    tell: Tell,
    store: Store<T>,
    /// The last one seen: neighbours share it.
    namespace: Option<Arc<str>>,
}

impl<K, T, Trim, Tell> Reflector<K, T, Trim, Tell>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    T: PartialEq,
    Trim: Fn(K) -> T,
    Tell: FnMut(&ObjectKey, Change<'_, T>),
{
    async fn run(&mut self) {
        let kind = self.how.name;
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        // Up to where everything was seen; `None` before the first list is complete.
        let mut version: Option<String> = None;
        loop {
            let ended = match &mut version {
                None => self.list().await.map(|listed| version = Some(listed)),
                Some(version) => self.watch(version, &mut backoff).await,
            };
            let wait = match ended {
                Ok(()) => continue,
                Err(Failure::UnknownKind) => {
                    version = None;
                    self.unknown_kind().unwrap_or_else(|| backoff.next_wait())
                }
                Err(Failure::Outdated) => {
                    version = None;
                    tracing::debug!(kind, "too much was missed, listing anew");
                    backoff.next_wait()
                }
                Err(Failure::Other(reason)) => {
                    tracing::debug!(kind, error = reason, "watch interrupted");
                    self.how.health.set_missing(kind, Some(reason));
                    backoff.next_wait()
                }
            };
            sleep(wait).await;
        }
    }

    /// Lists all objects, page by page. Returns up to where a watch has to go on.
    async fn list(&mut self) -> Result<String, Failure> {
        let mut params = ListParams {
            label_selector: self.selection.label_selector.clone(),
            field_selector: self.selection.field_selector.clone(),
            limit: Some(self.selection.page_size.map_or(PAGE, |size| size.min(PAGE))),
            ..ListParams::default()
        };
        let mut listed = BTreeSet::new();
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let url = self.api.resource_url().to_owned();
        let version = loop {
            let request = Request::new(url.as_str()).list(&params);
            let request = request.map_err(kube::Error::BuildRequest)?;
            let text = call(self.client.request_text(request)).await?;
            let page: Page<'_> = serde_json::from_str(&text)?;
            for item in page.items.unwrap_or_default() {
                let object = read::<K>(item)?;
                listed.insert(self.applied(object));
            }
            params.continue_token = filled(page.metadata.continue_);
            if params.continue_token.is_none() {
                break filled(page.metadata.resource_version);
            }
        };
        let none = || Failure::Other("the list has no resource version".to_owned());
        let version = version.ok_or_else(none)?;
        self.complete(&listed);
        Ok(version)
    }

    /// Everything that is not listed is gone.
    fn complete(&mut self, listed: &BTreeSet<ObjectKey>) {
        for key in self.store.vanished(listed) {
            self.deleted(&key);
        }
        let kind = self.how.name;
        self.how.health.set_missing(kind, None);
        if self.store.set_ready() {
            tracing::debug!(kind, objects = self.store.len(), "all objects seen");
        }
    }

    /// Follows the changes since `version`, and moves it forward.
    async fn watch(&mut self, version: &mut String, backoff: &mut Backoff) -> Result<(), Failure> {
        let seconds = self.selection.timeout.unwrap_or(WATCH_SECONDS);
        let params = WatchParams {
            label_selector: self.selection.label_selector.clone(),
            field_selector: self.selection.field_selector.clone(),
            timeout: Some(seconds),
            bookmarks: true,
            send_initial_events: false,
        };
        let request = Request::new(self.api.resource_url()).watch(&params, version);
        let request = request.map_err(kube::Error::BuildRequest)?;
        // As text, for the same reason as in a list.
        let events = self.client.request_events::<Box<RawValue>>(request);
        let mut events = pin!(call(events).await?);
        self.how.health.set_missing(self.how.name, None);
        let began = Instant::now();
        let silence = Duration::from_secs(seconds.into()) + WATCH_MARGIN;
        loop {
            let event = match timeout(silence, events.try_next()).await {
                Ok(Ok(Some(event))) => event,
                Ok(Err(error)) => return Err(error.into()),
                Ok(Ok(None)) if began.elapsed() < SHORT => {
                    let reason = "the API server ended the watch at once";
                    return Err(Failure::Other(reason.to_owned()));
                }
                // As it should, or in silence: go on in any case.
                Ok(Ok(None)) | Err(_) => {
                    backoff.reset();
                    return Ok(());
                }
            };
            match event {
                WatchEvent::Added(text) | WatchEvent::Modified(text) => {
                    let object = read::<K>(&text)?;
                    move_to(version, object.meta().resource_version.as_deref());
                    self.applied(object);
                }
                WatchEvent::Deleted(text) => {
                    let object = read::<K>(&text)?;
                    move_to(version, object.meta().resource_version.as_deref());
                    let key = self.key(object.meta());
                    self.deleted(&key);
                }
                WatchEvent::Bookmark(bookmark) => {
                    move_to(version, Some(&bookmark.metadata.resource_version));
                }
                WatchEvent::Error(status) => return Err(kube::Error::Api(status).into()),
            }
            backoff.reset();
        }
    }

    /// Says what it means that the kind is not known. How long to wait, if not the usual time.
    fn unknown_kind(&mut self) -> Option<Duration> {
        let kind = self.how.name;
        match self.how.presence {
            Presence::Required => {
                let reason = "the API server does not know this kind: install its \
                              CustomResourceDefinition";
                let health = &self.how.health;
                health.set_missing(kind, Some(reason.to_owned()));
                None
            }
            Presence::Optional(interval) => {
                if !self.store.ready() || !self.store.is_empty() {
                    tracing::info!(kind, "not installed: taken as if there were none");
                }
                self.complete(&BTreeSet::new());
                Some(jitter(interval))
            }
        }
    }

    fn applied(&mut self, object: DeserializeGuard<K>) -> ObjectKey {
        let key = self.key(object.meta());
        match object.0 {
            Ok(object) => {
                if let Some((before, now)) = self.store.apply(&key, (self.trim)(object)) {
                    let change = Change::Applied {
                        before: before.as_ref(),
                        now: &now,
                    };
                    (self.tell)(&key, change);
                }
            }
            Err(invalid) => {
                let (kind, error) = (self.how.name, invalid.error);
                tracing::warn!(kind, object = %key, error, "an object cannot be read");
                self.store.set_invalid(&key, error);
            }
        }
        key
    }

    fn deleted(&mut self, key: &ObjectKey) {
        if let Some(before) = self.store.remove(key) {
            (self.tell)(key, Change::Deleted { before: &before });
        }
    }

    fn key(&mut self, meta: &ObjectMeta) -> ObjectKey {
        let namespace = meta.namespace.as_deref();
        if self.namespace.as_deref() != namespace {
            self.namespace = namespace.map(Arc::from);
        }
        ObjectKey {
            namespace: self.namespace.clone(),
            name: meta.name.as_deref().unwrap_or_default().into(),
        }
    }
}

/// An object, or why it cannot be read. What has not even a name is an error.
fn read<K: Resource + DeserializeOwned>(
    text: &RawValue,
) -> Result<DeserializeGuard<K>, serde_json::Error> {
    let read = serde_json::from_str(text.get());
    Ok(DeserializeGuard(match read {
        Ok(object) => Ok(object),
        Err(error) => {
            let named: PartialObjectMeta<K> = serde_json::from_str(text.get())?;
            Err(InvalidObject {
                error: error.to_string(),
                metadata: named.metadata,
            })
        }
    }))
}

fn move_to(version: &mut String, newer: Option<&str>) {
    if let Some(newer) = newer.filter(|newer| !newer.is_empty()) {
        newer.clone_into(version);
    }
}
