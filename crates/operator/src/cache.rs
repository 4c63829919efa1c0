//! What the watches have seen, together with what we have written ourselves: a cache never shows an object older than
//! our own last write to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::ResourceExt;
use kube::runtime::watcher::Event;
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
    owner: fn(&K) -> Option<Key>,
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
    object: Arc<K>,
    version: u64,
    /// Our own write, not seen by the watch yet: how many lists had begun when it was answered.
    unseen: Option<u64>,
}

/// For how long a disappearance is remembered: no request of ours lasts half as long.
const GONE_FOR: Duration = Duration::from_secs(60);

impl<K: ResourceExt + Clone> Cache<K> {
    /// An empty cache. `owner` says which database an object belongs to (`None`: not kept); `significant` whether the
    /// change from one version to the next is worth a look at that database.
    pub fn new(kind: &'static str, owner: fn(&K) -> Option<Key>, significant: fn(&K, &K) -> bool) -> Self {
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

    /// Takes in an event of the watch; returns the databases that it concerns.
    pub fn observe(&self, event: Event<K>) -> Vec<Key> {
        let mut state = self.lock();
        state.last_event = Instant::now();
        match event {
            Event::Init => {
                state.listing = Some(BTreeSet::new());
                state.lists += 1;
                Vec::new()
            }
            Event::InitApply(object) => self.place(&object).map_or_else(Vec::new, |place| {
                if let Some(listing) = &mut state.listing {
                    listing.insert(place.clone());
                }
                self.apply(&mut state, place, object)
            }),
            Event::Apply(object) => match self.place(&object) {
                Some(place) => self.apply(&mut state, place, object),
                None => Vec::new(),
            },
            Event::Delete(object) => match self.place(&object) {
                Some(place) => self.delete(&mut state, &place, &object),
                None => Vec::new(),
            },
            Event::InitDone => finish_list(&mut state),
        }
    }

    /// Takes in what the API server returned for our own write, unless the watch was faster and has seen it go.
    pub fn put(&self, object: K) {
        let Some((key, name)) = self.place(&object) else { return };
        let version = version(&object);
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
                    object: Arc::new(object),
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
            .is_some_and(|entry| entry.object.uid().as_deref() == Some(uid))
        {
            entries.remove(name);
            state.deleted.insert(uid.to_owned());
        }
    }

    /// This object is there, and cannot be read; returns whether it was known.
    pub fn lose(&self, key: &Key, name: &str) -> bool {
        let mut state = self.lock();
        state.last_event = Instant::now();
        let Some(entries) = state.objects.get_mut(key) else {
            return false;
        };
        let known = entries.remove(name).is_some();
        if entries.is_empty() {
            state.objects.remove(key);
        }
        known
    }

    /// The database's objects of this kind; `None` before the first list.
    pub fn list(&self, key: &Key) -> Option<Vec<Arc<K>>> {
        let state = self.lock();
        let entries = state.objects.get(key).into_iter().flat_map(BTreeMap::values);
        state
            .listed
            .then(|| entries.map(|entry| Arc::clone(&entry.object)).collect())
    }

    /// One object; the outer `None` before the first list.
    pub fn get(&self, key: &Key, name: &str) -> Option<Option<Arc<K>>> {
        let state = self.lock();
        let entry = state.objects.get(key).and_then(|entries| entries.get(name));
        state.listed.then(|| entry.map(|entry| Arc::clone(&entry.object)))
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

    fn apply(&self, state: &mut State<K>, (key, name): (Key, String), object: K) -> Vec<Key> {
        let version = version(&object);
        let entries = state.objects.entry(key.clone()).or_default();
        let known = entries.get_mut(&name);
        let older = known
            .as_ref()
            .is_some_and(|entry| version != 0 && version < entry.version);
        if older || object.uid().is_some_and(|uid| state.deleted.contains(&uid)) {
            self.stale.fetch_add(1, Ordering::Relaxed);
            return Vec::new();
        }
        let interesting = match known {
            Some(entry) if entry.version == version => {
                entry.unseen = None;
                return Vec::new();
            }
            Some(entry) => (self.significant)(&entry.object, &object),
            None => true,
        };
        entries.insert(
            name,
            Entry {
                object: Arc::new(object),
                version,
                unseen: None,
            },
        );
        if interesting { vec![key] } else { Vec::new() }
    }

    fn delete(&self, state: &mut State<K>, (key, name): &(Key, String), object: &K) -> Vec<Key> {
        let uid = object.uid();
        if let Some(uid) = &uid {
            state.deleted.remove(uid);
            let now = Instant::now();
            state.gone.retain(|_, since| now - *since < GONE_FOR);
            state.gone.insert(uid.clone(), now);
        }
        if let Some(entries) = state.objects.get_mut(key) {
            // Another object of the same name may have been made since.
            if entries.get(name).is_some_and(|entry| entry.object.uid() != uid) {
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

    fn place(&self, object: &K) -> Option<(Key, String)> {
        Some(((self.owner)(object)?, object.name_any()))
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
fn version<K: ResourceExt>(object: &K) -> u64 {
    object
        .resource_version()
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn cache() -> Cache<ConfigMap> {
        let owner = |map: &ConfigMap| {
            Some(Key {
                namespace: map.namespace()?,
                name: map.labels().get("db")?.clone(),
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

    #[test]
    fn an_object_that_cannot_be_read_any_more_is_taken_out() {
        let cache = listed(vec![object("m", "u", "5", "1")]);
        assert!(cache.lose(&key(), "m"));
        assert_eq!(data(&cache, "m"), None);
        assert!(!cache.lose(&key(), "m"));
        assert_eq!(
            cache.observe(Event::Apply(object("m", "u", "6", "2"))),
            [key()],
            "mended"
        );
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
