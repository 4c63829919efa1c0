//! Reading objects so that one that cannot be read spoils no list and no watch.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// An object as the API server keeps it, or what is known of one that this program cannot read.
///
/// kube's `DeserializeGuard` is not enough here. It reads the metadata by type even of an object that it cannot read, and
/// whoever may write an object may put a time past the last one of `jiff`, or JSON nested too deeply for `serde_json`, into
/// `metadata.managedFields`. This type never reads that field, and reads the rest of the metadata field by field.
#[derive(Clone, Debug, PartialEq)]
pub struct Guarded<K>(pub Result<K, Box<Unreadable>>);

/// What is known of an object that cannot be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unreadable {
    /// Its name, namespace, UID, version, labels and owners, each if that could be read.
    pub metadata: ObjectMeta,
    /// Why it cannot be read: at most [`WORDS`] characters.
    pub why: String,
}

/// So many characters of the reason are kept: a reason quotes the value, which may be a megabyte.
pub const WORDS: usize = 200;

impl<K> From<K> for Guarded<K> {
    fn from(object: K) -> Self {
        Self(Ok(object))
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Lean::deserialize(deserializer)?.into_value();
        // Code that is not ours reads what strangers wrote: a panic in it must end no watch either.
        let read = catch_unwind(AssertUnwindSafe(|| K::deserialize(&object)));
        let why = match read {
            Ok(Ok(object)) => return Ok(Self(Ok(object))),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "reading it panicked".to_owned(),
        };
        Ok(Self(Err(Box::new(Unreadable {
            metadata: readable_part(&object["metadata"]),
            why: shortened(&why),
        }))))
    }
}

/// For requests; one that could not be read cannot be sent.
impl<K: Serialize> Serialize for Guarded<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(object) => object.serialize(serializer),
            Err(unreadable) => Err(serde::ser::Error::custom(&unreadable.why)),
        }
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }
    fn group(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }
    fn version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }
    fn plural(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }
    fn metadata_api() -> bool {
        K::metadata_api()
    }
    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|unreadable| &unreadable.metadata, K::meta)
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(unreadable) => &mut unreadable.metadata,
        }
    }
}

/// What names an object and says whose it is, without what cannot be read.
fn readable_part(metadata: &Value) -> ObjectMeta {
    let text = |field: &str| metadata[field].as_str().map(str::to_owned);
    let labels = metadata["labels"].as_object().map(|labels| {
        let told = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
        labels.iter().filter_map(told).collect::<BTreeMap<_, _>>()
    });
    let owner = |owner: &Value| OwnerReference::deserialize(owner).ok();
    let owners = metadata["ownerReferences"].as_array();
    ObjectMeta {
        name: text("name"),
        namespace: text("namespace"),
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        labels,
        owner_references: owners.map(|owners| owners.iter().filter_map(owner).collect()),
        ..ObjectMeta::default()
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(WORDS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// An object without `metadata.managedFields`: that field is skipped while it is parsed, so that nothing in it can fail.
#[derive(Deserialize)]
struct Lean {
    #[serde(default)]
    metadata: LeanMetadata,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Default, Deserialize)]
struct LeanMetadata {
    #[serde(default, rename = "managedFields")]
    _managed_fields: IgnoredAny,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Lean {
    fn into_value(self) -> Value {
        let mut object = self.rest;
        object.insert("metadata".to_owned(), Value::Object(self.metadata.rest));
        Value::Object(object)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
    use kube::core::{ObjectList, PartialObjectMeta, WatchEvent};
    use serde_json::json;

    use super::*;

    /// Kubernetes takes it, and it is past the last time that `jiff` has.
    const FAR: &str = "9999-12-31T23:59:59.000000Z";

    fn lease(name: &str, renewed: &str) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "namespace": "ns", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "o"}]},
            "spec": {"renewTime": renewed},
        })
    }

    #[test]
    fn a_list_keeps_the_objects_beside_one_that_cannot_be_read() {
        let mut bad = lease("bad", FAR);
        bad["metadata"]["labels"]["c"] = json!(5);
        let owners = bad["metadata"]["ownerReferences"].as_array_mut().unwrap();
        owners.push(json!({"uid": 5}));
        let list =
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "LeaseList", "metadata": {"resourceVersion": "9"},
            "items": [bad, lease("good", "2027-01-01T00:00:00.000000Z")]})
            .to_string();
        assert!(serde_json::from_str::<ObjectList<Lease>>(&list).is_err());
        let items = serde_json::from_str::<ObjectList<Guarded<Lease>>>(&list).unwrap().items;
        let unreadable = items[0].0.as_ref().unwrap_err();
        let metadata = &unreadable.metadata;
        assert_eq!(
            (
                metadata.name.as_deref(),
                metadata.namespace.as_deref(),
                metadata.uid.as_deref()
            ),
            (Some("bad"), Some("ns"), Some("u"))
        );
        assert_eq!(metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(json!(metadata.labels), json!({"a": "b"}), "what can be read of them");
        assert_eq!(metadata.owner_references.as_ref().unwrap()[0].uid, "o");
        assert!(!unreadable.why.is_empty());
        assert_eq!(items[1].0.as_ref().unwrap().metadata.name.as_deref(), Some("good"));
    }

    #[test]
    fn an_event_of_a_watch_with_an_object_that_cannot_be_read_is_an_event() {
        let event = format!(r#"{{"type":"MODIFIED","object":{}}}"#, lease("bad", FAR));
        assert!(serde_json::from_str::<WatchEvent<Lease>>(&event).is_err());
        let event = serde_json::from_str::<WatchEvent<Guarded<Lease>>>(&event).unwrap();
        assert!(matches!(event, WatchEvent::Modified(Guarded(Err(_)))), "{event:?}");
    }

    #[test]
    fn nothing_in_managed_fields_keeps_an_object_from_being_read() {
        let deep = format!("{}{}", r#"{"f:a":"#.repeat(500), "{}".to_owned() + &"}".repeat(500));
        for managed in [
            format!(r#"{{"manager":"x","operation":"Update","time":"{FAR}"}}"#),
            format!(r#"{{"manager":"x","operation":"Update","fieldsV1":{deep}}}"#),
        ] {
            let text = format!(r#"{{"metadata":{{"name":"a","managedFields":[{managed}],"uid":"u"}},"secrets":[]}}"#);
            assert!(serde_json::from_str::<ServiceAccount>(&text).is_err());
            let account = serde_json::from_str::<Guarded<ServiceAccount>>(&text)
                .unwrap()
                .0
                .unwrap();
            assert_eq!(account.metadata.uid.as_deref(), Some("u"));
            assert_eq!(account.metadata.managed_fields, None);
            let partial = serde_json::from_str::<Guarded<PartialObjectMeta<Secret>>>(&text).unwrap();
            assert!(partial.0.is_ok());
        }
    }

    #[test]
    fn metadata_that_cannot_be_read_spoils_no_list_either() {
        let text = r#"{"metadata":{"name":"a","namespace":7,"generateName":7}}"#;
        let unreadable = serde_json::from_str::<Guarded<ServiceAccount>>(text)
            .unwrap()
            .0
            .unwrap_err();
        assert_eq!(
            (unreadable.metadata.name.as_deref(), unreadable.metadata.namespace),
            (Some("a"), None)
        );
    }

    #[test]
    fn a_reason_is_short_whatever_it_quotes() {
        let long = json!({"metadata": {"name": "a"}, "secrets": "ä".repeat(1_000_000)});
        let unreadable = serde_json::from_value::<Guarded<ServiceAccount>>(long)
            .unwrap()
            .0
            .unwrap_err();
        assert_eq!(unreadable.why.chars().count(), WORDS + 1);
    }

    #[test]
    fn reading_that_panics_is_an_object_that_cannot_be_read() {
        #[derive(Debug)]
        struct Panics;
        impl<'de> Deserialize<'de> for Panics {
            fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
                panic!("a bug in a library");
            }
        }
        let read = serde_json::from_str::<Guarded<Panics>>(r#"{"metadata":{"name":"a"}}"#).unwrap();
        assert_eq!(read.0.unwrap_err().why, "reading it panicked");
    }

    #[test]
    fn of_secrets_only_metadata_is_asked_for() {
        assert!(Guarded::<PartialObjectMeta<Secret>>::metadata_api());
        assert!(!Guarded::<Lease>::metadata_api());
    }
}
