//! The objects of one database, from a cluster or from files. Every page shows only these.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use api::{ClusteredDatabase, ClusteredDatabaseOperation, Database, DatabaseBackup, DatabaseUser, Pooler};
use chrono::{DateTime, Utc};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolumeClaim, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::ApiResource;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The objects of one database, and what is known of absent ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The objects, each with `apiVersion` and `kind`. No Secret is ever among them.
    pub objects: Vec<Value>,
    /// Kinds with all objects of the database: another one does not exist.
    pub complete: BTreeSet<String>,
    /// Kinds that could not be read, and why.
    pub unreadable: BTreeMap<String, String>,
    /// When the objects were read.
    pub at: DateTime<Utc>,
}

/// The kinds to read, the resource itself first, without Secrets.
pub fn kinds() -> Vec<ApiResource> {
    vec![
        ApiResource::erase::<ClusteredDatabase>(&()),
        ApiResource::erase::<Lease>(&()),
        ApiResource::erase::<StatefulSet>(&()),
        ApiResource::erase::<Pod>(&()),
        ApiResource::erase::<PersistentVolumeClaim>(&()),
        ApiResource::erase::<StorageClass>(&()),
        ApiResource::erase::<Node>(&()),
        ApiResource::erase::<EndpointSlice>(&()),
        ApiResource::erase::<Service>(&()),
        ApiResource::erase::<ServiceAccount>(&()),
        ApiResource::erase::<Role>(&()),
        ApiResource::erase::<RoleBinding>(&()),
        ApiResource::erase::<PodDisruptionBudget>(&()),
        ApiResource::erase::<NetworkPolicy>(&()),
        ApiResource::erase::<Event>(&()),
        ApiResource::erase::<ClusteredDatabaseOperation>(&()),
        ApiResource::erase::<DatabaseBackup>(&()),
        ApiResource::erase::<DatabaseUser>(&()),
        ApiResource::erase::<Database>(&()),
        ApiResource::erase::<Pooler>(&()),
    ]
}

impl Snapshot {
    /// The objects of one kind.
    pub fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |object| object["kind"] == kind)
    }

    /// The objects of one kind, as their type.
    ///
    /// # Errors
    /// If one of them does not fit its kind.
    pub fn typed<K: DeserializeOwned>(&self, kind: &str) -> Result<Vec<K>> {
        self.of(kind)
            .map(|object| {
                serde_json::from_value(object.clone())
                    .with_context(|| format!("cannot read {kind} {}: correct it, or record it again", name(object)))
            })
            .collect()
    }

    /// Whether anything is known about this kind.
    pub fn knows(&self, kind: &str) -> bool {
        self.complete.contains(kind) || self.of(kind).next().is_some()
    }

    /// The resource called `name`, in `namespace` if that is given.
    ///
    /// # Errors
    /// If there is none, or there are several.
    pub fn database(&self, namespace: Option<&str>, name: &str) -> Result<ClusteredDatabase> {
        let all: Vec<ClusteredDatabase> = self.typed("ClusteredDatabase")?;
        let there: Vec<_> = all.iter().map(full_name).collect();
        let fits = |db: &ClusteredDatabase| {
            db.metadata.name.as_deref() == Some(name)
                && (namespace.is_none() || db.metadata.namespace.as_deref() == namespace)
        };
        let mut found: Vec<_> = all.into_iter().filter(fits).collect();
        match (found.pop(), found.is_empty()) {
            (Some(db), true) => Ok(db),
            (Some(_), false) => bail!("there are several databases called {name:?}: choose one with --namespace"),
            (None, _) if there.is_empty() => bail!("there is no ClusteredDatabase in the file: record one in it"),
            (None, _) => bail!(
                "there is no ClusteredDatabase {name:?} in the file: it has {}",
                there.join(", ")
            ),
        }
    }
}

/// An object's name, empty if it has none.
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn full_name(db: &ClusteredDatabase) -> String {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    format!("{}/{}", text(&db.metadata.namespace), text(&db.metadata.name))
}
