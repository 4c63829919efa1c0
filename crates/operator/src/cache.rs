//! The objects that the watches have reported, together with the operator's own writes. A cache never shows an object
//! older than the operator's last write to it.
//!
//! Objects are pruned and kept as JSON text, which takes a fraction of the memory of their types. They are parsed each
//! time that they are read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::names::LABEL_CLUSTER;
use api::{Guarded, Unreadable};
use kube::core::ObjectMeta;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

/// The kinds of resources that have a state machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `ClusteredDatabase`.
    #[default]
    Database,
    /// `ClusteredDatabaseOperation`.
    Operation,
    /// `DatabaseBackup`.
    Backup,
    /// `DatabaseUser`.
    User,
    /// `Database`: a database of PostgreSQL.
    SqlDatabase,
    /// `Pooler`.
    Pooler,
}

/// The key of a resource that has a state machine. The empty key stands for all databases.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// A database.
    pub fn database(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            kind: Kind::Database,
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// An operation.
    pub fn operation(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            kind: Kind::Operation,
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// A backup.
    pub fn backup(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            kind: Kind::Backup,
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// A user.
    pub fn user(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            kind: Kind::User,
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// A pooler.
    pub fn pooler(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            kind: Kind::Pooler,
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// A database of PostgreSQL.
    pub fn sql_database(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            kind: Kind::SqlDatabase,
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The key that stands for every database.
    pub fn all() -> Self {
        Self::default()
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            Kind::Database => write!(f, "{}/{}", self.namespace, self.name),
            Kind::Operation => write!(f, "operation {}/{}", self.namespace, self.name),
            Kind::Backup => write!(f, "backup {}/{}", self.namespace, self.name),
            Kind::User => write!(f, "user {}/{}", self.namespace, self.name),
            Kind::SqlDatabase => write!(f, "database {}/{}", self.namespace, self.name),
            Kind::Pooler => write!(f, "pooler {}/{}", self.namespace, self.name),
        }
    }
}

/// An object that a cache can keep.
pub trait Kept: ResourceExt + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static {}

impl<K: ResourceExt + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static> Kept for K {}

/// Which resource an object of this kind belongs to, by its metadata; `None`: it is not kept.
pub type Owner = fn(&ObjectMeta, &str) -> Option<Key>;

/// What can be asked of a cache whatever its type is. See the functions of [`Cache`].
pub trait AnyCache: Send + Sync {
    /// The kind, for logs and metrics.
    fn kind(&self) -> &'static str;
    /// See [`Cache::is_listed`].
    fn is_listed(&self) -> bool;
    /// See [`Cache::forget_contents`].
    fn forget_contents(&self, key: &Key);
    /// See [`Cache::text`].
    fn text(&self, key: &Key, name: &str) -> Option<Option<Text>>;
    /// See [`Cache::unreadable`].
    fn unreadable(&self, key: &Key) -> Vec<Arc<Unreadable>>;
    /// See [`Cache::find_unreadable`].
    fn find_unreadable(&self, key: &Key, name: &str) -> Option<Arc<Unreadable>>;
    /// See [`Cache::count_unreadable`].
    fn count_unreadable(&self) -> usize;
    /// See [`Cache::bytes`].
    fn bytes(&self, key: &Key) -> usize;
    /// See [`Cache::silence`].
    fn silence(&self) -> Duration;
    /// See [`Cache::stale_events`].
    fn stale_events(&self) -> u64;
}

impl<K: Kept> AnyCache for Cache<K> {
    fn kind(&self) -> &'static str {
        self.kind
    }
    fn is_listed(&self) -> bool {
        self.is_listed()
    }
    fn forget_contents(&self, key: &Key) {
        self.forget_contents(key);
    }
    fn text(&self, key: &Key, name: &str) -> Option<Option<Text>> {
        self.text(key, name)
    }
    fn unreadable(&self, key: &Key) -> Vec<Arc<Unreadable>> {
        self.unreadable(key)
    }
    fn find_unreadable(&self, key: &Key, name: &str) -> Option<Arc<Unreadable>> {
        self.find_unreadable(key, name)
    }
    fn count_unreadable(&self) -> usize {
        self.count_unreadable()
    }
    fn bytes(&self, key: &Key) -> usize {
        self.bytes(key)
    }
    fn silence(&self) -> Duration {
        self.silence()
    }
    fn stale_events(&self) -> u64 {
        self.stale_events()
    }
}

/// Where a cache can be filled from, other than a watch.
pub trait Lister {
    /// Why a list cannot be read.
    type Error;
    /// All objects of this kind; `None` if they are not known.
    ///
    /// # Errors
    /// When the list cannot be read.
    fn list<K: Kept>(&self, kind: &str) -> Result<Option<Vec<Guarded<K>>>, Self::Error>;
}

/// The objects of one kind, by database and name.
#[derive(Debug)]
pub struct Cache<K> {
    /// The kind, for logs and metrics.
    pub kind: &'static str,
    owner: Owner,
    significant: fn(&K, &K) -> bool,
    prune: fn(&mut K),
    /// The most bytes of an object after pruning. A larger object counts as unreadable.
    largest: usize,
    state: Mutex<State>,
    stale: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// The objects of each database, in the order of their names.
    objects: BTreeMap<Key, Vec<Entry>>,
    /// UIDs of objects that the operator deleted, and whose end the watch has not reported yet.
    deleted: BTreeSet<String>,
    /// UIDs of objects whose end the watch has reported, and when. The answer to a write of the operator's may still be
    /// under way.
    gone: BTreeMap<String, Instant>,
    /// The number of lists that have begun.
    lists: u64,
    listed: bool,
    last_event: Instant,
}

#[derive(Debug)]
struct Entry {
    name: Box<str>,
    uid: Option<Box<str>>,
    version: u64,
    content: Content,
    /// The number of the last list that named the object.
    named: u64,
    /// Set if this is the operator's own write and the watch has not reported it yet: the number of lists that had
    /// begun when the write was answered.
    unseen: Option<u64>,
}

#[derive(Debug)]
enum Content {
    /// The pruned object, as JSON.
    Kept(Arc<[u8]>),
    /// The object is not understood, or is too large.
    Unreadable(Arc<Unreadable>),
    /// The object belongs to a database that did not exist when the watch reported it, so its content was not kept.
    NotKept,
}

/// An object as it is kept, not parsed yet. A reader parses it only if the version is new to it.
#[derive(Clone, Debug)]
pub struct Text {
    /// Its version; 0 if the version is no number.
    pub version: u64,
    json: Arc<[u8]>,
}

impl Text {
    /// The object.
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.json).ok()
    }
}

/// How long a reported end is remembered. No request of the operator's lasts half as long.
const GONE_FOR: Duration = Duration::from_secs(60);
/// The default of [`Cache::largest`]. An object that the operator made has a few KiB.
pub const LARGEST: usize = 64 << 10;
/// The most owners that are kept of an unreadable object.
const MOST_OWNERS: usize = 16;

impl<K: Kept> Cache<K> {
    /// An empty cache. `owner` returns the resource that an object belongs to; `None`: the object is not kept.
    /// `significant` says whether the change from one version to the next is a reason to reconcile that resource.
    pub fn new(kind: &'static str, owner: Owner, significant: fn(&K, &K) -> bool) -> Self {
        let state = State {
            objects: BTreeMap::new(),
            deleted: BTreeSet::new(),
            gone: BTreeMap::new(),
            lists: 0,
            listed: false,
            last_event: Instant::now(),
        };
        Self {
            kind,
            owner,
            significant,
            prune: |_| {},
            largest: LARGEST,
            state: Mutex::new(state),
            stale: AtomicU64::new(0),
        }
    }

    /// The same cache, which removes the fields of each object that nothing reads.
    #[must_use]
    pub fn pruning(self, prune: fn(&mut K)) -> Self {
        Self { prune, ..self }
    }

    /// The same cache, which keeps up to this many bytes of an object.
    #[must_use]
    pub fn up_to(self, largest: usize) -> Self {
        Self { largest, ..self }
    }

    /// Takes in a whole list, as a watch does. A kind of which nothing is known stays as if it was never listed.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn fill<L: Lister>(&self, lister: &L) -> Result<(), L::Error> {
        let Some(objects) = lister.list::<K>(self.kind)? else {
            return Ok(());
        };
        self.take(Event::Init);
        for object in objects {
            self.take(Event::InitApply(object));
        }
        self.take(Event::InitDone);
        Ok(())
    }

    /// Takes an event about objects that are understood. Returns the resources that it concerns.
    pub fn observe(&self, event: Event<K>) -> Vec<Key> {
        self.take(match event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(object) => Event::InitApply(object.into()),
            Event::Apply(object) => Event::Apply(object.into()),
            Event::Delete(object) => Event::Delete(object.into()),
        })
    }

    /// Takes an event of the watch. Returns the databases that it concerns.
    pub fn take(&self, event: Event<Guarded<K>>) -> Vec<Key> {
        let mut state = self.lock();
        state.last_event = Instant::now();
        match event {
            Event::Init => {
                state.lists += 1;
                Vec::new()
            }
            Event::InitApply(object) => match self.place(object.meta()) {
                Some(place) => self.apply(&mut state, place, object, true),
                None => Vec::new(),
            },
            Event::Apply(object) => match self.place(object.meta()) {
                Some(place) => self.apply(&mut state, place, object, false),
                None => Vec::new(),
            },
            Event::Delete(object) => match self.place(object.meta()) {
                Some(place) => self.delete(&mut state, &place, object.meta()),
                None => Vec::new(),
            },
            Event::InitDone => finish_list(&mut state),
        }
    }

    /// Takes the object that the API server returned for a write of the operator's, unless the watch has already
    /// reported its end.
    pub fn put(&self, object: K) {
        self.put_guarded(object.into());
    }

    /// Takes an object that the operator has read itself, in the same way.
    pub fn put_guarded(&self, object: Guarded<K>) {
        let Some((key, name)) = self.place(object.meta()) else {
            return;
        };
        let mut state = self.lock();
        let lists = state.lists;
        if object
            .uid()
            .is_some_and(|uid| state.deleted.contains(&uid) || state.gone.contains_key(&uid))
        {
            self.stale.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let version = version(object.meta());
        let is_newer = |entry: &Entry| entry.version < version || entry.is_not_kept();
        if state.find(&key, &name).is_none_or(is_newer) {
            let entry = self.entry(&name, object, 0, Some(lists));
            state.insert(key, entry);
        }
    }

    /// Takes note that the operator deleted this object, and that it is gone.
    pub fn forget(&self, key: &Key, name: &str, uid: &str) {
        let mut state = self.lock();
        if state
            .find(key, name)
            .is_some_and(|entry| entry.uid.as_deref() == Some(uid))
        {
            state.remove(key, name);
            state.deleted.insert(uid.to_owned());
        }
    }

    /// Forgets the content of the database's objects, since the database does not exist. Their names, UIDs and versions
    /// stay.
    pub fn forget_contents(&self, key: &Key) {
        for entry in self.lock().objects.get_mut(key).into_iter().flatten() {
            entry.content = Content::NotKept;
        }
    }

    /// Names and UIDs of the database's objects whose content was not kept.
    pub fn not_kept(&self, key: &Key) -> Vec<(String, String)> {
        let state = self.lock();
        let found = state.of(key).iter().filter(|entry| entry.is_not_kept());
        let told = |entry: &Entry| {
            (
                entry.name.to_string(),
                entry.uid.as_deref().unwrap_or_default().to_owned(),
            )
        };
        found.map(told).collect()
    }

    /// The database's objects of this kind; `None` before the first list, and while the content of one of them is not
    /// known.
    pub fn list(&self, key: &Key) -> Option<Vec<Arc<K>>> {
        let state = self.lock();
        let objects = state.of(key).iter().map(Entry::read).collect();
        state.listed.then_some(objects)?
    }

    /// The database's readable objects of this kind; `None` before the first list.
    pub fn list_readable(&self, key: &Key) -> Option<Vec<Arc<K>>> {
        let state = self.lock();
        let objects = state.of(key).iter().filter_map(Entry::read).collect();
        state.listed.then_some(objects)
    }

    /// One object. The outer `None`: there was no list yet, or the object's content is not known.
    pub fn get(&self, key: &Key, name: &str) -> Option<Option<Arc<K>>> {
        self.read_as(key, name)
    }

    /// The object that has a key of its own. The outer `None`: it cannot be known whether there is one, or what is in it.
    pub fn own(&self, key: &Key) -> Option<Option<Arc<K>>> {
        self.get(key, &key.name)
            .filter(|found| found.is_some() || !self.has(key))
    }

    /// One object, parsed as another type than its own.
    pub fn read_as<T: DeserializeOwned>(&self, key: &Key, name: &str) -> Option<Option<Arc<T>>> {
        let state = self.lock();
        state.listed.then(|| match state.find(key, name) {
            None => Some(None),
            Some(entry) => entry.read().map(Some),
        })?
    }

    /// One object, not parsed yet.
    pub fn text(&self, key: &Key, name: &str) -> Option<Option<Text>> {
        let state = self.lock();
        state.listed.then(|| match state.find(key, name) {
            None => Some(None),
            Some(Entry {
                version,
                content: Content::Kept(json),
                ..
            }) => Some(Some(Text {
                version: *version,
                json: Arc::clone(json),
            })),
            Some(_) => None,
        })?
    }

    /// The names and owners of the database's unreadable objects, and why they are unreadable.
    pub fn unreadable(&self, key: &Key) -> Vec<Arc<Unreadable>> {
        let state = self.lock();
        state.of(key).iter().filter_map(Entry::unreadable).cloned().collect()
    }

    /// The name and owners of this object, and why it is unreadable, if it is.
    pub fn find_unreadable(&self, key: &Key, name: &str) -> Option<Arc<Unreadable>> {
        self.lock().find(key, name)?.unreadable().cloned()
    }

    /// The number of unreadable objects of all databases.
    pub fn count_unreadable(&self) -> usize {
        let state = self.lock();
        let entries = state.objects.values().flatten();
        entries.filter(|entry| entry.unreadable().is_some()).count()
    }

    /// The databases that have objects of this kind.
    pub fn keys(&self) -> Vec<Key> {
        self.lock().objects.keys().cloned().collect()
    }

    /// True if the database has an object of this kind.
    pub fn has(&self, key: &Key) -> bool {
        self.lock().objects.contains_key(key)
    }

    /// The bytes that are kept of the database's objects, without their names and UIDs.
    pub fn bytes(&self, key: &Key) -> usize {
        let state = self.lock();
        let kept = |entry: &Entry| match &entry.content {
            Content::Kept(text) => text.len(),
            Content::Unreadable(_) | Content::NotKept => 0,
        };
        state.of(key).iter().map(kept).sum()
    }

    /// True if the first list is complete.
    pub fn is_listed(&self) -> bool {
        self.lock().listed
    }

    /// The time since the watch last reported anything.
    pub fn silence(&self) -> Duration {
        self.lock().last_event.elapsed()
    }

    /// The number of events that were older than the operator's own writes, and were ignored.
    pub fn stale_events(&self) -> u64 {
        self.stale.load(Ordering::Relaxed)
    }

    /// The database that an object belongs to, and the object's name; `None` if the cache does not keep such objects.
    pub fn place(&self, metadata: &ObjectMeta) -> Option<(Key, String)> {
        Some(((self.owner)(metadata, self.kind)?, metadata.name.clone()?))
    }

    fn apply(&self, state: &mut State, (key, name): (Key, String), object: Guarded<K>, in_list: bool) -> Vec<Key> {
        let version = version(object.meta());
        let lists = state.lists;
        let deleted = object
            .meta()
            .uid
            .as_ref()
            .is_some_and(|uid| state.deleted.contains(uid));
        let mut known = state.find_mut(&key, &name);
        if let Some(entry) = known.as_deref_mut().filter(|_| in_list) {
            entry.named = lists;
        }
        let older = known
            .as_deref()
            .is_some_and(|entry| version != 0 && version < entry.version);
        if older || deleted {
            self.stale.fetch_add(1, Ordering::Relaxed);
            return Vec::new();
        }
        if let Some(entry) = known
            .as_deref_mut()
            .filter(|entry| entry.version == version && !entry.is_not_kept())
        {
            entry.unseen = None;
            return Vec::new();
        }
        let named = if in_list {
            lists
        } else {
            known.as_deref().map_or(0, |entry| entry.named)
        };
        let new = self.entry(&name, object, named, None);
        let interesting = known.is_none_or(|old| match (&old.content, &new.content) {
            (Content::Kept(_), Content::Kept(_)) => match (old.read(), new.read()) {
                (Some(old), Some(new)) => (self.significant)(&old, &new),
                _ => true,
            },
            (Content::Unreadable(old), Content::Unreadable(new)) => old.why != new.why,
            _ => true,
        });
        state.insert(key.clone(), new);
        if interesting { vec![key] } else { Vec::new() }
    }

    fn entry(&self, name: &str, object: Guarded<K>, named: u64, unseen: Option<u64>) -> Entry {
        let metadata = object.meta();
        Entry {
            name: name.into(),
            uid: metadata.uid.as_deref().map(Into::into),
            version: version(metadata),
            content: self.content(object),
            named,
            unseen,
        }
    }

    /// The content that is kept of an object.
    fn content(&self, object: Guarded<K>) -> Content {
        let (metadata, why) = match object.0 {
            Ok(mut object) => {
                (self.prune)(&mut object);
                match serde_json::to_vec(&object) {
                    Ok(text) if text.len() <= self.largest => return Content::Kept(text.into()),
                    Ok(text) => {
                        let (size, largest) = (text.len(), self.largest);
                        let why = format!("{size} bytes of it are of interest, and at most {largest} are taken");
                        (object.meta().clone(), why)
                    }
                    Err(error) => (object.meta().clone(), error.to_string()),
                }
            }
            Err(unreadable) => (unreadable.metadata, unreadable.why),
        };
        Content::Unreadable(Arc::new(Unreadable {
            metadata: shortened(metadata),
            why,
        }))
    }

    fn delete(&self, state: &mut State, (key, name): &(Key, String), metadata: &ObjectMeta) -> Vec<Key> {
        if let Some(uid) = &metadata.uid {
            state.deleted.remove(uid);
            let now = Instant::now();
            state.gone.retain(|_, since| now - *since < GONE_FOR);
            state.gone.insert(uid.clone(), now);
        }
        // An object of the same name may have been created since.
        if state
            .find(key, name)
            .is_some_and(|entry| entry.uid.as_deref() != metadata.uid.as_deref())
        {
            self.stale.fetch_add(1, Ordering::Relaxed);
            return Vec::new();
        }
        state.remove(key, name);
        vec![key.clone()]
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn of(&self, key: &Key) -> &[Entry] {
        self.objects.get(key).map_or(&[], Vec::as_slice)
    }

    fn find(&self, key: &Key, name: &str) -> Option<&Entry> {
        self.of(key).iter().find(|entry| *entry.name == *name)
    }

    fn find_mut(&mut self, key: &Key, name: &str) -> Option<&mut Entry> {
        let entries = self.objects.get_mut(key)?;
        entries.iter_mut().find(|entry| *entry.name == *name)
    }

    fn insert(&mut self, key: Key, entry: Entry) {
        let entries = self.objects.entry(key).or_default();
        match entries.binary_search_by(|other| other.name.cmp(&entry.name)) {
            Ok(index) => entries[index] = entry,
            Err(index) => {
                // A database has few objects of a kind, so no room is reserved for more.
                entries.reserve_exact(1);
                entries.insert(index, entry);
            }
        }
    }

    fn remove(&mut self, key: &Key, name: &str) {
        let Some(entries) = self.objects.get_mut(key) else {
            return;
        };
        entries.retain(|entry| *entry.name != *name);
        if entries.is_empty() {
            self.objects.remove(key);
        }
    }
}

impl Entry {
    fn read<T: DeserializeOwned>(&self) -> Option<Arc<T>> {
        match &self.content {
            Content::Kept(text) => serde_json::from_slice(text).ok().map(Arc::new),
            Content::Unreadable(_) | Content::NotKept => None,
        }
    }

    fn unreadable(&self) -> Option<&Arc<Unreadable>> {
        match &self.content {
            Content::Unreadable(unreadable) => Some(unreadable),
            Content::Kept(_) | Content::NotKept => None,
        }
    }

    fn is_not_kept(&self) -> bool {
        matches!(self.content, Content::NotKept)
    }
}

/// The metadata of an unreadable object that say which database it belongs to.
fn shortened(mut metadata: ObjectMeta) -> ObjectMeta {
    if let Some(labels) = &mut metadata.labels {
        labels.retain(|name, _| name == LABEL_CLUSTER);
    }
    if let Some(owners) = &mut metadata.owner_references {
        owners.truncate(MOST_OWNERS);
    }
    ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        labels: metadata.labels,
        owner_references: metadata.owner_references,
        ..ObjectMeta::default()
    }
}

/// Ends a list: removes the objects that it did not name. The operator's own writes stay if they were answered after
/// the list had begun, since only then the list can be older than the write.
fn finish_list(state: &mut State) -> Vec<Key> {
    state.listed = true;
    state.deleted.clear();
    let this_list = state.lists;
    let mut concerned = Vec::new();
    for (key, entries) in &mut state.objects {
        let before = entries.len();
        entries.retain(|entry| entry.unseen == Some(this_list) || entry.named == this_list);
        if entries.len() != before {
            concerned.push(key.clone());
        }
    }
    state.objects.retain(|_, entries| !entries.is_empty());
    concerned
}

/// The version of an object. Versions of one kind are ordered integers (documented since Kubernetes 1.35, and so in
/// etcd from the start). A version that is no number becomes 0, and never counts as older.
fn version(metadata: &ObjectMeta) -> u64 {
    number(metadata.resource_version.as_deref().unwrap_or_default())
}

/// A version as a number; 0 if it is no number.
pub fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests;
