//! Deletion: preconditions, grace, finalizers and propagation.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::kinds::Kind;
use crate::reply::{Refusal, Reply};
use crate::request::Call;
use crate::store::{Key, Store, is_released, key, stamp};

/// The garbage collector takes the owner out of its dependents, then this finalizer off it.
pub(crate) const ORPHAN: &str = "orphan";
/// The garbage collector deletes the dependents, then takes this finalizer off.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";

impl Store {
    pub(crate) fn delete(&mut self, call: &Call, now: DateTime<Utc>) -> Result<Reply, Refusal> {
        let key = key(call, &call.name);
        let stored = self
            .objects
            .get(&key)
            .ok_or_else(|| Refusal::not_found(call.kind, &call.name))?;
        let mut object = (*stored.object).clone();
        check(call, &object)?;
        self.note_policy(&mut object, call.body["propagationPolicy"].as_str());
        let grace = grace(call.kind, &object, call.body["gracePeriodSeconds"].as_i64());
        let metadata = &mut object["metadata"];
        let first = metadata["deletionTimestamp"].is_null();
        if first || grace < metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) {
            metadata["deletionTimestamp"] = json!(stamp(now + TimeDelta::seconds(grace)));
            metadata["deletionGracePeriodSeconds"] = json!(grace);
        }
        if let (true, Some(generation)) = (first, metadata["generation"].as_u64()) {
            metadata["generation"] = json!(generation + 1);
        }
        if is_released(&object) {
            let object = self.take_out(&key, object, now);
            return Ok(Reply::ok(match call.kind.returns_deleted {
                true => object,
                false => success(call.kind, &object),
            }));
        }
        if object == *self.objects[&key].object {
            return Ok(Reply::ok(object));
        }
        Ok(Reply::ok(self.rewrite(&key, object, now)))
    }

    /// The finalizers that a propagation policy puts on.
    fn note_policy(&self, object: &mut Value, policy: Option<&str>) {
        let finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let mut finalizers: Vec<Value> = match policy {
            // Without a word the finalizers say what was wanted before.
            None => finalizers,
            Some(_) => finalizers
                .into_iter()
                .filter(|one| *one != ORPHAN && *one != FOREGROUND)
                .collect(),
        };
        match policy {
            Some("Orphan") => finalizers.push(json!(ORPHAN)),
            Some("Foreground") => finalizers.push(json!(FOREGROUND)),
            _ => {}
        }
        if !finalizers.is_empty() {
            object["metadata"]["finalizers"] = json!(finalizers);
        } else if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("finalizers");
        }
    }

    /// One step of the garbage collector: dependents of owners that are gone go; orphans are let go.
    pub fn collect(&mut self, now: DateTime<Utc>) {
        self.let_orphans_go(now);
        self.finish_foreground(now);
        let uids: std::collections::BTreeSet<String> =
            self.objects.values().filter_map(|stored| uid(&stored.object)).collect();
        let lost = self.objects.iter().filter(|(_, stored)| {
            let owners = stored.object["metadata"]["ownerReferences"].as_array();
            let lost = |owner: &Value| owner["uid"].as_str().is_some_and(|uid| !uids.contains(uid));
            owners.is_some_and(|owners| !owners.is_empty() && owners.iter().all(lost))
        });
        let lost: Vec<Key> = lost
            .filter(|(_, stored)| stored.object["metadata"]["deletionTimestamp"].is_null())
            .map(|(key, _)| key.clone())
            .collect();
        for key in lost {
            self.delete_key(&key, json!({"propagationPolicy": "Background"}), now);
        }
    }

    fn let_orphans_go(&mut self, now: DateTime<Utc>) {
        for (owner, owner_uid) in self.going_with(ORPHAN) {
            for key in self.dependents(&owner_uid) {
                let mut object = (*self.objects[&key].object).clone();
                if let Some(owners) = object["metadata"]["ownerReferences"].as_array_mut() {
                    owners.retain(|owner| owner["uid"] != owner_uid.as_str());
                }
                self.rewrite(&key, object, now);
            }
            self.take_finalizer(&owner, ORPHAN, now);
        }
    }

    fn finish_foreground(&mut self, now: DateTime<Utc>) {
        for (owner, owner_uid) in self.going_with(FOREGROUND) {
            let dependents = self.dependents(&owner_uid);
            for key in &dependents {
                self.delete_key(key, json!({"propagationPolicy": "Foreground"}), now);
            }
            if self.dependents(&owner_uid).is_empty() {
                self.take_finalizer(&owner, FOREGROUND, now);
            }
        }
    }

    fn going_with(&self, finalizer: &str) -> Vec<(Key, String)> {
        let going = self.objects.iter().filter(|(_, stored)| {
            let finalizers = stored.object["metadata"]["finalizers"].as_array();
            !stored.object["metadata"]["deletionTimestamp"].is_null()
                && finalizers.is_some_and(|finalizers| finalizers.iter().any(|one| one == finalizer))
        });
        going
            .filter_map(|(key, stored)| Some((key.clone(), uid(&stored.object)?)))
            .collect()
    }

    fn dependents(&self, owner: &str) -> Vec<Key> {
        let has = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners.is_some_and(|owners| owners.iter().any(|one| one["uid"] == owner))
        };
        let found = self.objects.iter().filter(|(_, stored)| has(&stored.object));
        found.map(|(key, _)| key.clone()).collect()
    }

    fn delete_key(&mut self, key: &Key, options: Value, now: DateTime<Utc>) {
        use crate::request::Verb;
        let call = Call {
            kind: key.kind,
            ..Call::new(Verb::Delete, key.kind.plural, &key.namespace, &key.name, options)
        };
        // It was there a moment ago, and no precondition is given.
        let _ = self.delete(&call, now);
    }

    /// Takes one finalizer off; an object that only waited for that is gone then.
    pub fn take_finalizer(&mut self, key: &Key, finalizer: &str, now: DateTime<Utc>) {
        let Some(stored) = self.objects.get(key) else { return };
        let mut object = (*stored.object).clone();
        if let Some(finalizers) = object["metadata"]["finalizers"].as_array_mut() {
            finalizers.retain(|one| one != finalizer);
        }
        if is_released(&object) {
            self.take_out(key, object, now);
        } else {
            self.rewrite(key, object, now);
        }
    }
}

fn uid(object: &Value) -> Option<String> {
    object["metadata"]["uid"].as_str().map(str::to_owned)
}

fn check(call: &Call, object: &Value) -> Result<(), Refusal> {
    for (field, words) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let (wanted, live) = (&call.body["preconditions"][field], &object["metadata"][field]);
        if wanted.is_string() && wanted != live {
            let why = format!("Precondition failed: {words} in precondition: {wanted}, {words} in object meta: {live}");
            return Err(Refusal::conflict(call.kind, &call.name, &why));
        }
    }
    Ok(())
}

/// For how many seconds the object stays: only pods that a kubelet has do.
fn grace(kind: &Kind, object: &Value, wanted: Option<i64>) -> i64 {
    let placed = object["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    if kind.kind != "Pod" || !placed {
        return 0;
    }
    let default = object["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    wanted.unwrap_or(default).max(0)
}

fn success(kind: &Kind, object: &Value) -> Value {
    let metadata = &object["metadata"];
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {"name": metadata["name"], "group": kind.group, "kind": kind.plural, "uid": metadata["uid"]},
    })
}
