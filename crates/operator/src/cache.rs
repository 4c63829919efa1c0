//! What the watches have seen, together with what we have written ourselves: a cache never shows an object older than
//! our own last write to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::{Guarded, Unreadable};
use kube::core::ObjectMeta;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use tokio::time::Instant;

/// A database, by namespace and name. The empty key stands for all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// The key of objects that concern every database.
    pub fn all() -> Self {
        Self::default()
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The objects of one kind, by database and name.
#[derive(Debug)]
pub struct Cache<K> {
    /// The kind, for logs and metrics.
    pub kind: &'static str,
    owner: fn(&ObjectMeta) -> Option<Key>,
    significant: fn(&K, &K) -> bool,
    state: Mutex<State<K>>,
    stale: AtomicU64,
}

#[derive(Debug)]
struct State<K> {
    objects: BTreeMap<Key, BTreeMap<String, Entry<K>>>,
    /// UIDs that we deleted, and whose disappearance the watch has not reported yet.
    deleted: BTreeSet<String>,
    /// UIDs whose disappearance the watch has reported, and when: an answer to a write of ours may still be on its way.
    gone: BTreeMap<String, Instant>,
    /// A list is coming in: what it has named so far.
    listing: Option<BTreeSet<(Key, String)>>,
    /// How many lists have begun.
    lists: u64,
    listed: bool,
    last_event: Instant,
}

#[derive(Debug)]
struct Entry<K> {
    object: Held<K>,
    version: u64,
    /// Our own write, not seen by the watch yet: how many lists had begun when it was answered.
    unseen: Option<u64>,
}

/// An object, or what is known of one that cannot be read.
type Held<K> = Result<Arc<K>, Arc<Unreadable>>;

/// For how long a disappearance is remembered: no request of ours lasts half as long.
const GONE_FOR: Duration = Duration::from_secs(60);

impl<K: ResourceExt + Clone> Cache<K> {
    /// An empty cache. `owner` says which database an object belongs to (`None`: not kept); `significant` whether the
    /// change from one version to the next is worth a look at that database.
    pub fn new(kind: &'static str, owner: fn(&ObjectMeta) -> Option<Key>, significant: fn(&K, &K) -> bool) -> Self {
        let state = State {
            objects: BTreeMap::new(),
            deleted: BTreeSet::new(),
            gone: BTreeMap::new(),
            listing: None,
            lists: 0,
            listed: false,
            last_event: Instant::now(),
        };
        Self {
            kind,
            owner,
            significant,
            state: Mutex::new(state),
            stale: AtomicU64::new(0),
        }
    }

    /// Takes in an event about objects that can be read; returns the databases that it concerns.
    pub fn observe(&self, event: Event<K>) -> Vec<Key> {
        self.take(match event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(object) => Event::InitApply(object.into()),
            Event::Apply(object) => Event::Apply(object.into()),
            Event::Delete(object) => Event::Delete(object.into()),
        })
    }

    /// Takes in an event of the watch; returns the databases that it concerns.
    pub fn take(&self, event: Event<Guarded<K>>) -> Vec<Key> {
        let mut state = self.lock();
        state.last_event = Instant::now();
        match event {
            Event::Init => {
                state.listing = Some(BTreeSet::new());
                state.lists += 1;
                Vec::new()
            }
            Event::InitApply(object) => self.place(object.meta()).map_or_else(Vec::new, |place| {
                if let Some(listing) = &mut state.listing {
                    listing.insert(place.clone());
                }
                self.apply(&mut state, place, object)
            }),
            Event::Apply(object) => match self.place(object.meta()) {
                Some(place) => self.apply(&mut state, place, object),
                None => Vec::new(),
            },
            Event::Delete(object) => match self.place(object.meta()) {
                Some(place) => self.delete(&mut state, &place, object.meta()),
                None => Vec::new(),
            },
            Event::InitDone => finish_list(&mut state),
        }
    }

    /// Takes in what the API server returned for our own write, unless the watch was faster and has seen it go.
    pub fn put(&self, object: K) {
        let Some((key, name)) = self.place(object.meta()) else {
            return;
        };
        let version = version(object.meta());
        let mut state = self.lock();
        let lists = state.lists;
        if object
            .uid()
            .is_some_and(|uid| state.deleted.contains(&uid) || state.gone.contains_key(&uid))
        {
            self.stale.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let entries = state.objects.entry(key).or_default();
        if entries.get(&name).is_none_or(|entry| entry.version < version) {
            entries.insert(
                name,
                Entry {
                    object: Ok(Arc::new(object)),
                    version,
                    unseen: Some(lists),
                },
            );
        }
    }

    /// We deleted this object, and it is gone.
    pub fn forget(&self, key: &Key, name: &str, uid: &str) {
        let mut state = self.lock();
        let Some(entries) = state.objects.get_mut(key) else {
            return;
        };
        if entries
            .get(name)
            .is_some_and(|entry| entry.metadata().uid.as_deref() == Some(uid))
        {
            entries.remove(name);
            state.deleted.insert(uid.to_owned());
        }
    }

    /// The database's objects of this kind; `None` before the first list, and while one of them cannot be read.
    pub fn list(&self, key: &Key) -> Option<Vec<Arc<K>>> {
        let state = self.lock();
        let entries = state.objects.get(key).into_iter().flat_map(BTreeMap::values);
        let objects = entries.map(|entry| entry.object.clone().ok()).collect();
        state.listed.then_some(objects)?
    }

    /// Those of them that can be read; `None` before the first list.
    pub fn list_readable(&self, key: &Key) -> Option<Vec<Arc<K>>> {
        let state = self.lock();
        let entries = state.objects.get(key).into_iter().flat_map(BTreeMap::values);
        state
            .listed
            .then(|| entries.filter_map(|entry| entry.object.clone().ok()).collect())
    }

    /// One object; the outer `None` before the first list, and while it cannot be read.
    pub fn get(&self, key: &Key, name: &str) -> Option<Option<Arc<K>>> {
        let state = self.lock();
        let entry = state.objects.get(key).and_then(|entries| entries.get(name));
        state.listed.then(|| match entry {
            None => Some(None),
            Some(entry) => entry.object.clone().ok().map(Some),
        })?
    }

    /// What is known of the database's objects that cannot be read.
    pub fn unreadable(&self, key: &Key) -> Vec<Arc<Unreadable>> {
        let state = self.lock();
        let entries = state.objects.get(key).into_iter().flat_map(BTreeMap::values);
        entries.filter_map(|entry| entry.object.clone().err()).collect()
    }

    /// It is known already that this object cannot be read, for this reason.
    pub fn is_known_unreadable(&self, object: &Unreadable) -> bool {
        let Some((key, name)) = self.place(&object.metadata) else {
            // Not kept, so it is nobody's.
            return true;
        };
        let state = self.lock();
        let entry = state.objects.get(&key).and_then(|entries| entries.get(&name));
        entry.is_some_and(|entry| entry.object.as_ref().is_err_and(|known| known.why == object.why))
    }

    /// How many objects of all databases cannot be read.
    pub fn count_unreadable(&self) -> usize {
        let state = self.lock();
        let entries = state.objects.values().flat_map(BTreeMap::values);
        entries.filter(|entry| entry.object.is_err()).count()
    }

    /// The databases of which there are objects.
    pub fn keys(&self) -> Vec<Key> {
        self.lock().objects.keys().cloned().collect()
    }

    /// The first list has come in.
    pub fn is_listed(&self) -> bool {
        self.lock().listed
    }

    /// How long ago the watch last reported anything.
    pub fn silence(&self) -> Duration {
        self.lock().last_event.elapsed()
    }

    /// How many events were older than our own writes, and left out.
    pub fn stale_events(&self) -> u64 {
        self.stale.load(Ordering::Relaxed)
    }

    fn apply(&self, state: &mut State<K>, (key, name): (Key, String), object: Guarded<K>) -> Vec<Key> {
        let version = version(object.meta());
        let entries = state.objects.entry(key.clone()).or_default();
        let known = entries.get_mut(&name);
        let older = known
            .as_ref()
            .is_some_and(|entry| version != 0 && version < entry.version);
        let uid = object.meta().uid.as_ref();
        if older || uid.is_some_and(|uid| state.deleted.contains(uid)) {
            self.stale.fetch_add(1, Ordering::Relaxed);
            return Vec::new();
        }
        let interesting = match known {
            Some(entry) if entry.version == version => {
                entry.unseen = None;
                return Vec::new();
            }
            Some(entry) => match (&entry.object, &object.0) {
                (Ok(old), Ok(new)) => (self.significant)(old, new),
                (Err(old), Err(new)) => old.why != new.why,
                (Ok(_), Err(_)) | (Err(_), Ok(_)) => true,
            },
            None => true,
        };
        entries.insert(
            name,
            Entry {
                object: object.0.map(Arc::new).map_err(Arc::from),
                version,
                unseen: None,
            },
        );
        if interesting { vec![key] } else { Vec::new() }
    }

    fn delete(&self, state: &mut State<K>, (key, name): &(Key, String), metadata: &ObjectMeta) -> Vec<Key> {
        let uid = metadata.uid.clone();
        if let Some(uid) = &uid {
            state.deleted.remove(uid);
            let now = Instant::now();
            state.gone.retain(|_, since| now - *since < GONE_FOR);
            state.gone.insert(uid.clone(), now);
        }
        if let Some(entries) = state.objects.get_mut(key) {
            // Another object of the same name may have been made since.
            if entries.get(name).is_some_and(|entry| entry.metadata().uid != uid) {
                self.stale.fetch_add(1, Ordering::Relaxed);
                return Vec::new();
            }
            entries.remove(name);
            if entries.is_empty() {
                state.objects.remove(key);
            }
        }
        vec![key.clone()]
    }

    fn place(&self, metadata: &ObjectMeta) -> Option<(Key, String)> {
        Some(((self.owner)(metadata)?, metadata.name.clone()?))
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: ResourceExt> Entry<K> {
    fn metadata(&self) -> &ObjectMeta {
        match &self.object {
            Ok(object) => object.meta(),
            Err(unreadable) => &unreadable.metadata,
        }
    }
}

/// Removes what the list did not name, except our own writes that were answered after it had begun: only for those can
/// it be too old.
fn finish_list<K>(state: &mut State<K>) -> Vec<Key> {
    let listed = state.listing.take().unwrap_or_default();
    state.listed = true;
    state.deleted.clear();
    let this_list = Some(state.lists);
    let mut concerned = Vec::new();
    for (key, entries) in &mut state.objects {
        let before = entries.len();
        entries.retain(|name, entry| entry.unseen == this_list || listed.contains(&(key.clone(), name.clone())));
        if entries.len() != before {
            concerned.push(key.clone());
        }
    }
    state.objects.retain(|_, entries| !entries.is_empty());
    concerned
}

/// Versions are ordered integers within one kind (documented since Kubernetes 1.35, and so in etcd from the start); 0 if
/// they are not, which is never taken for older.
fn version(metadata: &ObjectMeta) -> u64 {
    let version = metadata.resource_version.as_ref();
    version.and_then(|version| version.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn cache() -> Cache<ConfigMap> {
        let owner = |metadata: &ObjectMeta| {
            Some(Key {
                namespace: metadata.namespace.clone()?,
                name: metadata.labels.as_ref()?.get("db")?.clone(),
            })
        };
        Cache::new("ConfigMap", owner, |old, new| old.data != new.data)
    }

    fn key() -> Key {
        Key {
            namespace: "ns".to_owned(),
            name: "a".to_owned(),
        }
    }

    fn object(name: &str, uid: &str, version: &str, data: &str) -> ConfigMap {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": version, "labels": {"db": "a"}},
            "data": {"x": data},
        }))
        .unwrap()
    }

    fn listed(objects: Vec<ConfigMap>) -> Cache<ConfigMap> {
        let cache = cache();
        relist(&cache, objects);
        cache
    }

    fn relist(cache: &Cache<ConfigMap>, objects: Vec<ConfigMap>) -> Vec<Key> {
        cache.observe(Event::Init);
        for object in objects {
            cache.observe(Event::InitApply(object));
        }
        cache.observe(Event::InitDone)
    }

    fn data(cache: &Cache<ConfigMap>, name: &str) -> Option<String> {
        cache
            .get(&key(), name)
            .unwrap()
            .map(|map| map.data.as_ref().unwrap()["x"].clone())
    }

    #[test]
    fn nothing_is_known_before_the_first_list() {
        let cache = cache();
        cache.observe(Event::Init);
        cache.observe(Event::InitApply(object("m", "u", "5", "1")));
        assert!(cache.get(&key(), "m").is_none());
        assert!(cache.list(&key()).is_none());
        cache.observe(Event::InitDone);
        assert_eq!(data(&cache, "m").as_deref(), Some("1"));
    }

    #[test]
    fn what_we_wrote_is_never_undone_by_an_older_event() {
        let cache = listed(vec![object("m", "u", "5", "1")]);
        cache.put(object("m", "u", "9", "ours"));
        assert!(cache.observe(Event::Apply(object("m", "u", "7", "older"))).is_empty());
        assert_eq!(data(&cache, "m").as_deref(), Some("ours"));
        assert_eq!(cache.stale_events(), 1);
        assert!(
            cache.observe(Event::Apply(object("m", "u", "9", "ours"))).is_empty(),
            "our own echo is no news"
        );
        assert_eq!(cache.observe(Event::Apply(object("m", "u", "12", "newer"))), [key()]);
    }

    #[test]
    fn a_list_that_is_too_old_does_not_take_our_write_away() {
        let cache = listed(vec![]);
        cache.observe(Event::Init);
        cache.put(object("m", "u", "9", "ours"));
        assert!(cache.observe(Event::InitDone).is_empty());
        assert_eq!(data(&cache, "m").as_deref(), Some("ours"));
        cache.observe(Event::Apply(object("m", "u", "9", "ours")));
        assert_eq!(relist(&cache, vec![]), [key()], "seen, and then gone");
        assert_eq!(data(&cache, "m"), None);
    }

    #[test]
    fn an_answer_that_comes_after_the_deletion_leaves_no_ghost() {
        let cache = listed(vec![object("m", "u", "5", "1")]);
        // We patch; somebody deletes; the watch is faster than the answer to our patch.
        assert_eq!(cache.observe(Event::Delete(object("m", "u", "8", "1"))), [key()]);
        cache.put(object("m", "u", "7", "ours"));
        assert_eq!(data(&cache, "m"), None);
        cache.put(object("m", "v", "9", "another of this name"));
        assert_eq!(data(&cache, "m").as_deref(), Some("another of this name"));
        // The same while the watch is broken: the list that comes then was made after our write.
        assert_eq!(relist(&cache, vec![]), [key()]);
        assert_eq!(data(&cache, "m"), None);
    }

    fn unreadable(version: &str, why: &str) -> Guarded<ConfigMap> {
        let metadata = object("m", "u", version, "").metadata;
        Guarded(Err(Box::new(Unreadable {
            metadata,
            why: why.to_owned(),
        })))
    }

    #[test]
    fn an_object_that_cannot_be_read_is_there_and_unknown() {
        let cache = listed(vec![object("m", "u", "5", "1"), object("n", "v", "4", "1")]);
        assert_eq!(cache.take(Event::Apply(unreadable("6", "why"))), [key()]);
        assert_eq!(
            cache.get(&key(), "m"),
            None,
            "neither its content nor its absence is known"
        );
        assert_eq!(cache.list(&key()), None);
        assert_eq!(cache.list_readable(&key()).unwrap().len(), 1);
        assert_eq!(data(&cache, "n").as_deref(), Some("1"), "the others are known");
        let why = |cache: &Cache<ConfigMap>| cache.unreadable(&key()).pop().map(|found| found.why.clone());
        assert_eq!((why(&cache).as_deref(), cache.count_unreadable()), (Some("why"), 1));
        assert!(cache.take(Event::Apply(unreadable("7", "why"))).is_empty(), "no news");
        assert!(cache.observe(Event::Apply(object("m", "u", "6", "late"))).is_empty());
        assert_eq!(cache.take(Event::Apply(unreadable("8", "another"))), [key()]);
        assert_eq!(
            cache.observe(Event::Apply(object("m", "u", "9", "2"))),
            [key()],
            "mended"
        );
        assert_eq!((data(&cache, "m").as_deref(), cache.count_unreadable()), (Some("2"), 0));
        cache.take(Event::Apply(unreadable("10", "why")));
        assert_eq!(cache.take(Event::Delete(unreadable("11", "why"))), [key()]);
        assert_eq!(data(&cache, "m"), None);
    }

    #[test]
    fn what_we_deleted_does_not_come_back() {
        let cache = listed(vec![object("m", "u", "5", "1")]);
        cache.forget(&key(), "m", "u");
        assert!(cache.observe(Event::Apply(object("m", "u", "6", "late"))).is_empty());
        assert_eq!(data(&cache, "m"), None);
        cache.put(object("m", "v", "8", "second"));
        assert!(cache.observe(Event::Delete(object("m", "u", "7", "late"))).is_empty());
        assert_eq!(data(&cache, "m").as_deref(), Some("second"));
        cache.forget(&key(), "m", "another");
        assert_eq!(data(&cache, "m").as_deref(), Some("second"));
    }

    #[test]
    fn insignificant_changes_are_kept_but_wake_nobody() {
        let cache = listed(vec![object("m", "u", "5", "1")]);
        assert!(cache.observe(Event::Apply(object("m", "u", "6", "1"))).is_empty());
        assert_eq!(
            cache.get(&key(), "m").unwrap().unwrap().resource_version().as_deref(),
            Some("6")
        );
        assert_eq!(cache.observe(Event::Apply(object("m", "u", "7", "2"))), [key()]);
        assert_eq!(cache.observe(Event::Delete(object("m", "u", "8", "2"))), [key()]);
        assert!(cache.keys().is_empty());
    }
}
