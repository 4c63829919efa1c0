//! The objects, and what requests do to them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

use crate::defaults::complete;
use crate::definition::Definition;
use crate::kinds::Kind;
use crate::merge::without_nulls;
use crate::ownership::{How, Owners, Writer};
use crate::reply::{Refusal, Reply};
use crate::request::{Call, Verb};
use crate::rules::check_new;
use crate::watch::{Change, Watching, metadata_of};

/// What an object is known by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Its kind.
    pub kind: &'static Kind,
    /// Its namespace; empty if it is in none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// An admission webhook or a quota: it gets the object and its former state, and may change the object or refuse the write.
pub type Admission = Box<dyn Fn(&Kind, &mut Value, Option<&Value>) -> Result<(), Refusal> + Send + Sync>;

/// All objects, and how they came to be.
#[derive(Default)]
pub struct Store {
    pub(crate) objects: BTreeMap<Key, Stored>,
    pub(crate) log: Vec<Change>,
    pub(crate) version: u64,
    pub(crate) compacted: u64,
    made: u64,
    admission: Option<Admission>,
    definitions: Vec<Arc<Definition>>,
}

/// One object, and the owners of its fields.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) object: Arc<Value>,
    pub(crate) owners: Owners,
}

/// A time as objects have it.
pub(crate) fn stamp(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

impl Store {
    /// Asks `admission` about every write.
    pub fn admit(&mut self, admission: Admission) {
        self.admission = Some(admission);
    }

    /// Uses `definition` for its kind from now on, also for existing objects when they are read.
    pub fn define(&mut self, definition: Arc<Definition>) {
        for (_, stored) in self.objects.iter_mut().filter(|(key, _)| key.kind == definition.kind) {
            definition.complete(Arc::make_mut(&mut stored.object));
        }
        self.definitions.retain(|known| known.kind != definition.kind);
        self.definitions.push(definition);
    }

    pub(crate) fn definition(&self, kind: &Kind) -> Option<&Definition> {
        let mut definitions = self.definitions.iter();
        definitions.find(|definition| definition.kind == kind).map(Arc::as_ref)
    }

    /// One object.
    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let key = Key {
            kind: Kind::of(plural),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        self.objects.get(&key).map(|stored| Arc::clone(&stored.object))
    }

    /// All objects of a kind, by namespace and name.
    pub fn list(&self, plural: &str) -> Vec<Arc<Value>> {
        let kind = Kind::of(plural);
        let objects = self.objects.iter().filter(|(key, _)| key.kind == kind);
        objects.map(|(_, stored)| Arc::clone(&stored.object)).collect()
    }

    /// Everything.
    pub fn everything(&self) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        self.objects.iter().map(|(key, stored)| (key, &stored.object))
    }

    /// What has changed since it was last compacted.
    pub fn changes(&self) -> &[Change] {
        &self.log
    }

    /// Puts an object there with its UID, status and `managedFields`, as a restored etcd has it. Its version is new.
    pub fn restore(&mut self, plural: &str, mut object: Value, now: DateTime<Utc>) {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let key = Key {
            kind: Kind::of(plural),
            namespace: text("namespace"),
            name: text("name"),
        };
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Arc::new(object);
        let stored = Stored {
            object: Arc::clone(&object),
            owners: Owners::default(),
        };
        let before = self.objects.insert(key.clone(), stored).map(|stored| stored.object);
        self.note(key, before, object, false, now);
    }

    /// The objects as they are now.
    pub(crate) fn snapshot(&self) -> Self {
        Self {
            objects: self.objects.clone(),
            version: self.version,
            ..Self::default()
        }
    }

    /// The newest version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Answers a request (except watches, which stay open).
    pub fn call(&mut self, call: &Call, now: DateTime<Utc>) -> Reply {
        let answer = match call.verb {
            Verb::Get => self.read(call),
            Verb::List | Verb::Watch => Ok(self.list_for(call)),
            Verb::Create => self.create(call, now),
            Verb::Delete => self.delete(call, now),
            Verb::Update | Verb::Merge | Verb::Strategic | Verb::Apply => self.change(call, now),
        };
        answer.unwrap_or_else(Reply::from)
    }

    fn read(&self, call: &Call) -> Result<Reply, Refusal> {
        let stored = self.objects.get(&key(call, &call.name));
        let stored = stored.ok_or_else(|| Refusal::not_found(call.kind, &call.name))?;
        Ok(Reply::ok(match call.metadata_only {
            true => metadata_of(&stored.object),
            false => (*stored.object).clone(),
        }))
    }

    /// A list; a next page (`limit`, `continue`) has the objects of that moment, by name.
    pub(crate) fn list_for(&self, call: &Call) -> Reply {
        let watching = Watching::new(call);
        let place = |key: &Key| format!("{}/{}", key.namespace, key.name);
        let (namespace, name) = call
            .query
            .get("continue")
            .and_then(|after| after.split_once('/'))
            .unwrap_or_default();
        let after = Key {
            kind: call.kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let behind = self.objects.range((Bound::Excluded(after), Bound::Unbounded));
        let of_kind = behind.take_while(|(key, _)| key.kind == call.kind);
        let mut selected = of_kind.filter(|(key, stored)| watching.is_about(key) && watching.selects(&stored.object));
        let limit = call
            .query
            .number("limit")
            .filter(|limit| *limit > 0)
            .unwrap_or(u64::MAX);
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        let mut items = Vec::new();
        let mut last = None;
        for (key, stored) in selected.by_ref() {
            if u64::try_from(items.len()).unwrap_or(u64::MAX) == limit {
                metadata["continue"] = json!(last.map(place));
                break;
            }
            last = Some(key);
            items.push(watching.shown(&stored.object));
        }
        let (api_version, kind) = match call.metadata_only {
            true => ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadataList".to_owned()),
            false => (call.kind.api_version(), format!("{}List", call.kind.kind)),
        };
        Reply::ok(json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "items": items}))
    }

    fn create(&mut self, call: &Call, now: DateTime<Utc>) -> Result<Reply, Refusal> {
        let mut body = call.body.clone();
        self.made += 1;
        let metadata = &mut body["metadata"];
        if let (Some(prefix), true) = (metadata["generateName"].as_str(), metadata["name"].is_null()) {
            metadata["name"] = json!(format!("{prefix}{:05x}", self.made));
        }
        if !metadata["resourceVersion"].as_str().unwrap_or_default().is_empty() {
            return Err(Refusal::new(
                500,
                "",
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let Some(name) = metadata["name"]
            .as_str()
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
        else {
            return Err(Refusal::invalid(
                call.kind,
                "",
                "metadata.name: Required value: name or generateName is required",
            ));
        };
        let key = key(call, &name);
        if self.objects.contains_key(&key) {
            return Err(Refusal::exists(call.kind, &name));
        }
        let mut owners = Owners::default();
        let body = self.as_new(&key, body, now)?;
        owners.note_update(call.kind, writer(call, How::Update), &json!({}), &body, &stamp(now));
        Ok(Reply::created(self.store(call, key, None, body, owners, now)))
    }

    /// What is stored of a new object.
    pub(crate) fn as_new(&mut self, key: &Key, mut body: Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
        without_nulls(&mut body);
        tidy(&mut body);
        check_type(key.kind, &body)?;
        let given = body["metadata"]["namespace"].as_str();
        if given.is_some_and(|given| !given.is_empty() && given != key.namespace) {
            let message = "the namespace of the provided object does not match the namespace sent on the request";
            return Err(Refusal::bad(message));
        }
        self.made += 1;
        if key.kind.has_status {
            body.as_object_mut().map(|body| body.remove("status"));
        }
        let metadata = &mut body["metadata"];
        for field in [
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "managedFields",
            "generation",
            "resourceVersion",
        ] {
            metadata.as_object_mut().map(|metadata| metadata.remove(field));
        }
        metadata["name"] = json!(key.name);
        metadata["uid"] = json!(format!("{:08x}-0000-4000-8000-000000000000", self.made));
        metadata["creationTimestamp"] = json!(stamp(now));
        if key.kind.namespaced {
            metadata["namespace"] = json!(key.namespace);
        }
        if key.kind.counts {
            metadata["generation"] = json!(1);
        }
        complete(key.kind, &mut body);
        check_new(key.kind, &key.name, &body)?;
        let namespace = self.get("namespaces", "", &key.namespace);
        if namespace.is_some_and(|namespace| !namespace["metadata"]["deletionTimestamp"].is_null()) {
            return Err(Refusal::terminating(key.kind, &key.name, &key.namespace));
        }
        self.ask((key.kind, ""), &mut body, None)?;
        Ok(body)
    }

    pub(crate) fn ask(
        &self,
        (kind, subresource): (&Kind, &str),
        new: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Refusal> {
        let definition = self.definition(kind);
        if let Some(definition) = &definition {
            definition.complete(new);
        }
        if let Some(admission) = &self.admission {
            admission(kind, new, old)?;
        }
        definition.map_or(Ok(()), |definition| definition.check(subresource, new, old))
    }

    pub(crate) fn store(
        &mut self,
        call: &Call,
        key: Key,
        before: Option<Arc<Value>>,
        mut object: Value,
        owners: Owners,
        now: DateTime<Utc>,
    ) -> Value {
        object["metadata"]["managedFields"] = owners.to_json(key.kind);
        if call.query.get("dryRun") == Some("All") {
            return object;
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Arc::new(object);
        let stored = Stored {
            object: Arc::clone(&object),
            owners,
        };
        self.objects.insert(key.clone(), stored);
        self.note(key, before, Arc::clone(&object), false, now);
        (*object).clone()
    }

    /// Writes the server's own fields of an object, which have no owner.
    pub(crate) fn rewrite(&mut self, key: &Key, mut object: Value, now: DateTime<Utc>) -> Value {
        let Some(stored) = self.objects.get_mut(key) else {
            return object;
        };
        tidy(&mut object);
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Arc::new(object);
        let before = std::mem::replace(&mut stored.object, Arc::clone(&object));
        self.note(key.clone(), Some(before), Arc::clone(&object), false, now);
        (*object).clone()
    }

    /// Removes an object, whose last state this is.
    pub(crate) fn take_out(&mut self, key: &Key, mut object: Value, now: DateTime<Utc>) -> Value {
        let before = self.objects.remove(key).map(|stored| stored.object);
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.note(key.clone(), before, Arc::new(object.clone()), true, now);
        object
    }

    fn note(&mut self, key: Key, before: Option<Arc<Value>>, after: Arc<Value>, gone: bool, at: DateTime<Utc>) {
        self.log.push(Change {
            version: self.version,
            at,
            key,
            before,
            after,
            gone,
        });
    }
}

/// What a request is about.
pub(crate) fn key(call: &Call, name: &str) -> Key {
    Key {
        kind: call.kind,
        namespace: call.namespace.clone(),
        name: name.to_owned(),
    }
}

pub(crate) fn writer(call: &Call, how: How) -> Writer {
    Writer {
        name: call.manager().to_owned(),
        how,
        subresource: call.subresource.clone(),
    }
}

/// Being deleted, and nothing holds it any more.
pub(crate) fn is_released(object: &Value) -> bool {
    let metadata = &object["metadata"];
    // A namespace has another list of its own.
    let lists = [&metadata["finalizers"], &object["spec"]["finalizers"]].into_iter();
    let held = lists
        .filter_map(Value::as_array)
        .any(|finalizers| !finalizers.is_empty());
    let grace = metadata["deletionGracePeriodSeconds"].as_u64().unwrap_or(0);
    !metadata["deletionTimestamp"].is_null() && !held && grace == 0
}

pub(crate) fn check_type(kind: &Kind, body: &Value) -> Result<(), Refusal> {
    let says = |field: &str, right: &str| body[field].is_null() || body[field] == right;
    if says("kind", kind.kind) && says("apiVersion", &kind.api_version()) {
        return Ok(());
    }
    Err(Refusal::bad(format!(
        "the object is no {} {}",
        kind.api_version(),
        kind.kind
    )))
}

/// Metadata that is empty is not there.
pub(crate) fn tidy(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|_, value| *value != json!([]) && *value != json!({}));
    }
}
