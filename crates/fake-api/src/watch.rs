//! What has changed, as watches tell it.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::kinds::Kind;
use crate::reply::Refusal;
use crate::request::Call;
use crate::selector::selects;
use crate::store::{Key, Store};

/// One change of one object.
#[derive(Clone, Debug)]
pub struct Change {
    /// The version that it made.
    pub version: u64,
    /// When.
    pub at: DateTime<Utc>,
    /// Whose.
    pub key: Key,
    /// The object before, if there was one.
    pub before: Option<Arc<Value>>,
    /// The object after the change; of a deleted one its last state, with the version of the deletion.
    pub after: Arc<Value>,
    /// It is gone.
    pub gone: bool,
}

/// What a watch is about.
#[derive(Clone, Debug)]
pub struct Watching {
    kind: &'static Kind,
    namespace: String,
    labels: Option<String>,
    fields: Option<String>,
    metadata_only: bool,
}

impl Watching {
    /// What this list or watch is about.
    pub fn new(call: &Call) -> Self {
        Self {
            kind: call.kind,
            namespace: call.namespace.clone(),
            labels: call.query.get("labelSelector").map(str::to_owned),
            fields: call.query.get("fieldSelector").map(str::to_owned),
            metadata_only: call.metadata_only,
        }
    }

    pub(crate) fn is_about(&self, key: &Key) -> bool {
        key.kind == self.kind && (self.namespace.is_empty() || key.namespace == self.namespace)
    }

    pub(crate) fn selects(&self, object: &Value) -> bool {
        selects(self.labels.as_deref(), self.fields.as_deref(), object)
    }

    /// The object as this client wants it.
    pub(crate) fn shown(&self, object: &Value) -> Value {
        match self.metadata_only {
            true => metadata_of(object),
            false => object.clone(),
        }
    }

    /// A bookmark at this version.
    pub fn bookmark(&self, version: u64) -> Value {
        let (api_version, kind) = match self.metadata_only {
            true => ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadata"),
            false => (self.kind.api_version(), self.kind.kind),
        };
        let metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
        json!({"type": "BOOKMARK", "object": {"apiVersion": api_version, "kind": kind, "metadata": metadata}})
    }

    fn event(&self, change: &Change) -> Option<Value> {
        let before = change.before.as_ref().is_some_and(|object| self.selects(object));
        let after = !change.gone && self.selects(&change.after);
        let kind = match (before, after) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        Some(json!({"type": kind, "object": self.shown(&change.after)}))
    }
}

/// An object's metadata alone.
pub(crate) fn metadata_of(object: &Value) -> Value {
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"]})
}

/// The next events of a watch that has seen everything up to some version.
#[derive(Clone, Debug, PartialEq)]
pub struct News {
    /// The events, in order.
    pub events: Vec<Value>,
    /// Everything up to this version has been seen now.
    pub version: u64,
    /// When the next undelivered change was made.
    pub next: Option<DateTime<Utc>>,
}

impl Store {
    /// What happened behind version `from`, up to the time `until`.
    ///
    /// # Errors
    /// 410, if that is forgotten.
    pub fn news(&self, watching: &Watching, from: u64, until: DateTime<Utc>) -> Result<News, Refusal> {
        if from < self.compacted {
            let message = format!("too old resource version: {from} ({})", self.compacted);
            return Err(Refusal::new(410, "Expired", message));
        }
        let start = self.log.partition_point(|change| change.version <= from);
        let mut news = News {
            events: Vec::new(),
            version: from,
            next: None,
        };
        for change in &self.log[start..] {
            if change.at > until {
                news.next = Some(change.at);
                break;
            }
            news.version = change.version;
            if watching.is_about(&change.key) {
                news.events.extend(watching.event(change));
            }
        }
        Ok(news)
    }

    /// The first events of a watch without a version: all objects.
    pub fn all(&self, watching: &Watching) -> Vec<Value> {
        let objects = self.objects.iter().filter(|(key, _)| watching.is_about(key));
        let selected = objects.filter(|(_, stored)| watching.selects(&stored.object));
        selected
            .map(|(_, stored)| json!({"type": "ADDED", "object": watching.shown(&stored.object)}))
            .collect()
    }

    /// Forgets what happened up to now: watches that come later must list anew.
    pub fn compact(&mut self) {
        self.compacted = self.version;
        self.log.clear();
    }
}
