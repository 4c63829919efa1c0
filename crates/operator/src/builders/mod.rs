//! The Kubernetes objects of one database: one file a kind, each a pure function of the resource and the operator's
//! configuration, returning the whole desired object.

pub mod budget;
pub mod endpoint_slice;
pub mod lease;
pub mod network_policy;
pub mod pod_template;
pub mod pooler;
pub mod resources;
pub mod role;
pub mod secrets;
pub mod service_account;
pub mod services;
pub mod stateful_set;
pub mod volume_snapshot;

use std::collections::BTreeMap;

use api::names::{LABEL_CLUSTER, LABEL_CLUSTER_UID, Names};
use api::spec::MetadataTemplate;
use api::status::GrantedStorage;
use api::{ClusteredDatabase, ClusteredDatabaseStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use machine::cluster::{WalVolumes, image_in_use};

use crate::config::Config;

/// Value of `app.kubernetes.io/managed-by` on everything made here; also the field manager of every write.
pub const MANAGER: &str = "cdb-operator";

/// What every builder needs: the resource, what its identity gives, and the operator's configuration.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    /// The resource.
    pub db: &'a ClusteredDatabase,
    /// The operator's configuration.
    pub config: &'a Config,
    /// The names of its objects.
    pub names: Names,
    /// Its namespace, where all of its objects are.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// Which pods get a WAL volume, if the spec asks for one.
    pub wal: WalVolumes,
    /// The image that the pods which are there were made with.
    pub running: Option<String>,
}

/// A resource that did not come from an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the resource has no {0}")]
pub struct Incomplete(&'static str);

impl<'a> Subject<'a> {
    /// The subject of `db`.
    ///
    /// # Errors
    /// Fails if `db` has no name, namespace or UID; the error says which.
    pub fn new(db: &'a ClusteredDatabase, config: &'a Config) -> Result<Self, Incomplete> {
        let meta = db.meta();
        let name = meta.name.clone().ok_or(Incomplete("name"))?;
        Ok(Self {
            db,
            config,
            names: Names::new(name),
            namespace: meta.namespace.clone().ok_or(Incomplete("namespace"))?,
            uid: meta.uid.clone().ok_or(Incomplete("UID"))?,
            wal: WalVolumes::Templated,
            running: None,
        })
    }

    /// The same with WAL volumes for these pods.
    pub fn with_wal(&self, wal: WalVolumes) -> Self {
        Self { wal, ..self.clone() }
    }

    /// The operator's default image for this major version.
    pub fn default_image(&self) -> String {
        self.config.postgres_image(self.db.spec.postgres.major_version)
    }

    /// The image with PostgreSQL that pods are made with.
    pub fn image(&self) -> String {
        let none = ClusteredDatabaseStatus::default();
        let status = self.db.status.as_ref().unwrap_or(&none);
        let (default, running) = (self.default_image(), self.running.as_deref());
        image_in_use(&self.db.spec.postgres, status, &default, running).to_owned()
    }

    /// UID of the operation that asked last for a restart of all instances.
    pub fn restarted_by(&self) -> Option<&'a str> {
        self.db.status.as_ref()?.memo.restarted_by.as_deref()
    }

    /// The set of volumes that instances run on.
    pub fn volume_set(&self) -> u32 {
        self.db.status.as_ref().map_or(0, |status| status.memo.volume_set())
    }

    /// What volumes are held down to, as long as more is refused.
    pub fn granted(&self) -> GrantedStorage {
        let status = self.db.status.as_ref();
        status.map(|status| status.memo.granted.clone()).unwrap_or_default()
    }

    /// Metadata of the object `name` of this database: labels, and the database as its owner.
    pub fn meta(&self, name: String) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.clone()),
            labels: Some(self.labels()),
            owner_references: Some(vec![self.owner()]),
            ..ObjectMeta::default()
        }
    }

    /// Metadata of the object `name` that a database which adopts the volumes needs: no owner takes it along, and a label says
    /// whose it is.
    pub fn kept_meta(&self, name: String) -> ObjectMeta {
        let mut meta = self.meta(name);
        meta.owner_references = None;
        let labels = meta.labels.get_or_insert_default();
        labels.insert(LABEL_CLUSTER_UID.to_owned(), self.uid.clone());
        meta
    }

    /// The labels on every object of this database.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.selector();
        labels.insert("app.kubernetes.io/name".to_owned(), "postgresql".to_owned());
        labels.insert("app.kubernetes.io/instance".to_owned(), self.names.cluster().to_owned());
        labels.insert("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned());
        labels
    }

    /// The labels that select this database's pods.
    pub fn selector(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(LABEL_CLUSTER.to_owned(), self.names.cluster().to_owned())])
    }

    fn owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: ClusteredDatabase::api_version(&()).into_owned(),
            kind: ClusteredDatabase::kind(&()).into_owned(),
            name: self.names.cluster().to_owned(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}

/// Adds the user's labels and annotations. What the operator needs wins.
pub(crate) fn add_metadata(metadata: &mut ObjectMeta, template: &MetadataTemplate) {
    for (own, users) in [
        (&mut metadata.labels, &template.labels),
        (&mut metadata.annotations, &template.annotations),
    ] {
        let mut all = users.clone();
        all.extend(own.take().unwrap_or_default());
        *own = (!all.is_empty()).then_some(all);
    }
}

#[cfg(test)]
pub(crate) mod fixture {
    use super::*;

    /// A resource as an API server returns it, with this spec.
    pub fn database(spec: serde_json::Value) -> ClusteredDatabase {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "clustereddatabase.io/v1alpha2",
            "kind": "ClusteredDatabase",
            "metadata": {"name": "db", "namespace": "ns", "uid": "0f0f0f0f-1111-2222-3333-444444444444", "generation": 1},
            "spec": spec,
        }))
        .unwrap()
    }

    /// The smallest resource.
    pub fn smallest() -> ClusteredDatabase {
        database(serde_json::json!({"storage": {"data": {"size": "1Gi"}}}))
    }

    #[test]
    fn every_object_names_its_owner_and_its_database() {
        let (db, config) = (smallest(), Config::default());
        let meta = Subject::new(&db, &config).unwrap().meta("x".to_owned());
        let owner = &meta.owner_references.unwrap()[0];
        assert_eq!(
            (owner.kind.as_str(), owner.controller),
            ("ClusteredDatabase", Some(true))
        );
        assert_eq!(owner.api_version, "clustereddatabase.io/v1alpha2");
        assert_eq!(owner.uid, db.metadata.uid.unwrap());
        assert_eq!(meta.labels.unwrap()[LABEL_CLUSTER], "db");
    }
}
