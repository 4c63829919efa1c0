use k8s_openapi::api::core::v1::ConfigMap;

use super::*;

fn cache() -> Cache<ConfigMap> {
    let owner = |metadata: &ObjectMeta, _: &str| {
        Some(Key::database(
            metadata.namespace.clone()?,
            metadata.labels.as_ref()?.get("db")?.clone(),
        ))
    };
    Cache::new("ConfigMap", owner, |old, new| old.data != new.data)
}

fn key() -> Key {
    Key::database("ns", "a")
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
