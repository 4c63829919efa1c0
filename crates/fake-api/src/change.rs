//! Changes of objects that there are: updates, patches, applies.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::defaults::complete;
use crate::merge::{merge_patch, strategic_patch, without_nulls};
use crate::ownership::{How, Owners};
use crate::reply::{Refusal, Reply};
use crate::request::{Call, Verb};
use crate::rules::check_change;
use crate::store::{Key, Store, check_type, is_released, key, stamp, tidy, writer};

/// Metadata that only the server writes.
const SYSTEM: [&str; 7] = [
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

impl Store {
    pub(crate) fn change(&mut self, call: &Call, now: DateTime<Utc>) -> Result<Reply, Refusal> {
        let key = key(call, &call.name);
        check_body(call)?;
        self.check_applied(call)?;
        let Some(stored) = self.objects.get(&key).cloned() else {
            return self.apply_new(call, key, now);
        };
        let (live, mut owners) = (stored.object, stored.owners);
        check_version(call, &live)?;
        let time = stamp(now);
        let mut next = match call.verb {
            Verb::Update => call.body.clone(),
            Verb::Apply => {
                let force = (call.query.is("force"), time.as_str());
                owners.apply(
                    (call.kind, &call.name),
                    writer(call, How::Apply),
                    &live,
                    &own_part(call),
                    force,
                )?
            }
            verb => {
                let mut next = (*live).clone();
                match verb {
                    Verb::Strategic => strategic_patch(&mut next, &call.body),
                    _ => merge_patch(&mut next, &call.body),
                }
                next
            }
        };
        keep(call, &live, &mut next);
        complete(call.kind, &mut next);
        check_change((call.kind, &call.name, &call.subresource), &live, &next)?;
        self.ask((call.kind, &call.subresource), &mut next, Some(&live))?;
        if call.kind.counts && essence(&live) != essence(&next) {
            next["metadata"]["generation"] = json!(live["metadata"]["generation"].as_u64().unwrap_or(0) + 1);
        }
        if call.verb != Verb::Apply {
            owners.note_update(call.kind, writer(call, How::Update), &live, &next, &time);
        }
        if without_bookkeeping(&live) == without_bookkeeping(&next) && owners.same_as(&self.objects[&key].owners) {
            return Ok(Reply::ok((*live).clone()));
        }
        if is_released(&next) {
            return Ok(Reply::ok(self.take_out(&key, next, now)));
        }
        Ok(Reply::ok(self.store(call, key, Some(live), next, owners, now)))
    }

    /// An apply of what no schema knows fails before it begins, and the server calls that its own mistake.
    fn check_applied(&self, call: &Call) -> Result<(), Refusal> {
        let definition = self.definition(call.kind).filter(|_| call.verb == Verb::Apply);
        let why = definition.and_then(|definition| definition.unreadable(&call.body));
        why.map_or(Ok(()), |why| {
            let message = format!(
                "failed to create typed patch object ({}/{}; {}, Kind={}): {why}",
                call.namespace,
                call.name,
                call.kind.api_version(),
                call.kind.kind
            );
            Err(Refusal::new(500, "", message))
        })
    }

    /// An apply makes what is missing; nothing else does.
    fn apply_new(&mut self, call: &Call, key: Key, now: DateTime<Utc>) -> Result<Reply, Refusal> {
        if call.verb != Verb::Apply || !call.subresource.is_empty() {
            return Err(Refusal::not_found(call.kind, &call.name));
        }
        if let Some(uid) = call.body["metadata"]["uid"].as_str() {
            let why =
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
            return Err(Refusal::conflict(call.kind, &call.name, &why));
        }
        let mut owners = Owners::default();
        let by = writer(call, How::Apply);
        let time = stamp(now);
        let made = owners.apply((call.kind, &call.name), by, &json!({}), &own_part(call), (true, &time))?;
        let body = self.as_new(&key, made, now)?;
        Ok(Reply::created(self.store(call, key, None, body, owners, now)))
    }
}

fn check_body(call: &Call) -> Result<(), Refusal> {
    let name = &call.body["metadata"]["name"];
    if name.is_string() && *name != call.name.as_str() {
        let message = format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.name
        );
        return Err(Refusal::bad(message));
    }
    if matches!(call.verb, Verb::Update | Verb::Apply) {
        check_type(call.kind, &call.body)?;
    }
    if call.verb == Verb::Apply && call.query.get("fieldManager").is_none() {
        let why = "fieldManager: Required value: is required for apply patch";
        return Err(Refusal::new(
            422,
            "Invalid",
            format!("PatchOptions.meta.k8s.io \"\" is invalid: {why}"),
        ));
    }
    Ok(())
}

/// The version and UID that the body expects.
fn check_version(call: &Call, live: &Value) -> Result<(), Refusal> {
    let (wanted, metadata) = (&call.body["metadata"], &live["metadata"]);
    let version = wanted["resourceVersion"].as_str().filter(|version| !version.is_empty());
    if call.verb == Verb::Update {
        if version.is_none() && call.kind.custom {
            let why = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update";
            return Err(Refusal::invalid(call.kind, &call.name, why));
        }
        if wanted["uid"].is_string() && wanted["uid"] != metadata["uid"] {
            let why = format!(
                "Precondition failed: UID in precondition: {}, UID in object meta: {}",
                wanted["uid"], metadata["uid"]
            );
            return Err(Refusal::conflict(call.kind, &call.name, &why));
        }
    }
    if version.is_some_and(|version| metadata["resourceVersion"] != version) {
        return Err(Refusal::modified(call.kind, &call.name));
    }
    if wanted["uid"].is_string() && wanted["uid"] != metadata["uid"] {
        let why = format!("metadata.uid: Invalid value: {}: field is immutable", wanted["uid"]);
        return Err(Refusal::invalid(call.kind, &call.name, &why));
    }
    Ok(())
}

/// Puts back what this request cannot change.
fn keep(call: &Call, live: &Value, next: &mut Value) {
    let put_back = |next: &mut Value, field: &str| match live.get(field) {
        Some(value) => next[field] = value.clone(),
        None => drop(next.as_object_mut().map(|next| next.remove(field))),
    };
    match call.subresource.as_str() {
        "status" => {
            let status = next.get("status").cloned();
            *next = live.clone();
            match status {
                Some(status) => next["status"] = status,
                None => drop(next.as_object_mut().map(|next| next.remove("status"))),
            }
        }
        "resize" => {
            let containers = next["spec"]["containers"].take();
            *next = live.clone();
            for (index, container) in containers.as_array().into_iter().flatten().enumerate() {
                if let Some(resources) = container.get("resources") {
                    next["spec"]["containers"][index]["resources"] = resources.clone();
                }
            }
        }
        _ if call.kind.has_status => put_back(next, "status"),
        _ => {}
    }
    // Those that an apply leaves are for the schema to judge.
    if !call.kind.custom || call.verb != Verb::Apply {
        without_nulls(next);
    }
    tidy(next);
    for field in ["apiVersion", "kind"] {
        put_back(next, field);
    }
    let metadata = &mut next["metadata"];
    for field in SYSTEM.into_iter().chain(["resourceVersion", "managedFields"]) {
        match live["metadata"].get(field) {
            Some(value) => metadata[field] = value.clone(),
            None => drop(metadata.as_object_mut().map(|metadata| metadata.remove(field))),
        }
    }
}

/// What of an applied object this path writes: others' parts are neither changed nor owned.
fn own_part(call: &Call) -> Value {
    let mut body = call.body.clone();
    if let Some(body) = body.as_object_mut() {
        match call.subresource.as_str() {
            "status" => body.retain(|key, _| ["apiVersion", "kind", "status"].contains(&key.as_str())),
            _ if call.kind.has_status => drop(body.remove("status")),
            _ => {}
        }
    }
    body
}

/// What counts as a change of the spec.
fn essence(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(map) = object.as_object_mut() {
        map.retain(|key, _| !["metadata", "status"].contains(&key.as_str()));
    }
    object
}

fn without_bookkeeping(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|key, _| !["managedFields", "resourceVersion"].contains(&key.as_str()));
    }
    object
}
