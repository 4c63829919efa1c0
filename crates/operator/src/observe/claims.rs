//! The volume claims, and whether new volumes can be had.

use api::ClusteredDatabase;
use api::names::{DATA_VOLUME, LABEL_CLUSTER_UID, Names, WAL_VOLUME};
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use machine::cluster::{Claim, StorageClass, Volume};

use crate::cache::Key;
use crate::caches::Caches;

const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// The claims with names of this database's claims, by ordinal, data before WAL.
pub fn claims(caches: &Caches, key: &Key) -> Option<Vec<Claim>> {
    let names = Names::new(&key.name);
    let mut claims: Vec<_> = caches
        .claims
        .list(key)?
        .iter()
        .filter_map(|claim| self::claim(&names, claim))
        .collect();
    claims.sort_by_key(|claim| (claim.ordinal, claim.volume));
    Some(claims)
}

/// Whether the volumes that the resource asks for can be had: the data volumes, then those for WAL.
pub fn storage_class(caches: &Caches, db: &ClusteredDatabase) -> Option<StorageClass> {
    let classes = caches.storage_classes.list(&Key::all())?;
    let find = |name: Option<&String>| {
        let found = classes.iter().find(|class| match name {
            Some(name) => class.metadata.name.as_ref() == Some(name),
            None => class
                .annotations()
                .get(DEFAULT_CLASS)
                .is_some_and(|value| value == "true"),
        });
        match (found, name) {
            (Some(class), _) => StorageClass::Present {
                expandable: class.allow_volume_expansion == Some(true),
            },
            (None, Some(name)) => StorageClass::Missing { name: name.clone() },
            (None, None) => StorageClass::NoDefault,
        }
    };
    let storage = &db.spec.storage;
    let data = find(storage.storage_class_name.as_ref());
    let wal = storage.wal.as_ref().map(|wal| find(wal.storage_class_name.as_ref()));
    Some(match (&data, wal) {
        (StorageClass::Present { expandable }, Some(StorageClass::Present { expandable: wal })) => {
            StorageClass::Present {
                expandable: *expandable && wal,
            }
        }
        (StorageClass::Present { .. }, Some(missing)) => missing,
        _ => data,
    })
}

fn claim(names: &Names, claim: &PersistentVolumeClaim) -> Option<Claim> {
    let name = claim.metadata.name.clone()?;
    let (volume, pod) = name.split_once('-')?;
    let volume = match volume {
        DATA_VOLUME => Volume::Data,
        WAL_VOLUME => Volume::Wal,
        _ => return None,
    };
    let ordinal = names.ordinal(pod)?;
    let spec = claim.spec.as_ref();
    let requested = spec
        .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"))
        .and_then(|quantity| Quantity::parse(&quantity.0).ok());
    Some(Claim {
        volume,
        ordinal,
        uid: claim.uid()?,
        resource_version: claim.resource_version()?,
        terminating: claim.metadata.deletion_timestamp.is_some(),
        bound: claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound"),
        requested: requested.map_or(0, Quantity::bytes),
        cluster_uid: claim.labels().get(LABEL_CLUSTER_UID).cloned(),
        name,
    })
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;
    use crate::builders::fixture::{database, smallest};

    fn key() -> Key {
        Key {
            namespace: "ns".to_owned(),
            name: "db".to_owned(),
        }
    }

    fn caches(claims: &[&str], classes: &[(&str, bool)]) -> Caches {
        let caches = Caches::default();
        caches.claims.observe(Event::Init);
        for (index, name) in claims.iter().enumerate() {
            let claim = json!({
                "metadata": {"name": name, "namespace": "ns", "uid": format!("u{index}"), "resourceVersion": "1",
                             "labels": {"clustereddatabase.io/uid": "c"}},
                "spec": {"resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Bound"},
            });
            caches
                .claims
                .observe(Event::InitApply(serde_json::from_value(claim).unwrap()));
        }
        caches.claims.observe(Event::InitDone);
        caches.storage_classes.observe(Event::Init);
        for (name, default) in classes {
            let class = json!({
                "metadata": {"name": name, "resourceVersion": "1", "annotations": {DEFAULT_CLASS: default.to_string()}},
                "provisioner": "p", "allowVolumeExpansion": true,
            });
            caches
                .storage_classes
                .observe(Event::InitApply(serde_json::from_value(class).unwrap()));
        }
        caches.storage_classes.observe(Event::InitDone);
        caches
    }

    #[test]
    fn claims_come_in_order_and_only_this_databases() {
        let caches = caches(
            &["data-db-10", "wal-db-2", "data-db-2", "data-db-x-0", "data-other-0"],
            &[],
        );
        let claims = claims(&caches, &key()).unwrap();
        let names: Vec<_> = claims.iter().map(|claim| claim.name.as_str()).collect();
        assert_eq!(names, ["data-db-2", "wal-db-2", "data-db-10"]);
        assert_eq!(claims[0].requested, 1 << 30);
        assert!(claims[0].bound);
        assert_eq!(claims[0].cluster_uid.as_deref(), Some("c"));
    }

    #[test]
    fn nothing_is_known_before_the_list() {
        assert!(claims(&Caches::default(), &key()).is_none());
        assert!(storage_class(&Caches::default(), &smallest()).is_none());
    }

    #[test]
    fn the_class_is_the_named_one_or_the_default() {
        let named = |name: &str| database(json!({"storage": {"size": "1Gi", "storageClassName": name}}));
        let both = caches(&[], &[("slow", false), ("fast", true)]);
        assert_eq!(
            storage_class(&both, &smallest()),
            Some(StorageClass::Present { expandable: true })
        );
        assert_eq!(
            storage_class(&both, &named("gone")),
            Some(StorageClass::Missing {
                name: "gone".to_owned()
            })
        );
        let none = caches(&[], &[("slow", false)]);
        assert_eq!(storage_class(&none, &smallest()), Some(StorageClass::NoDefault));
        assert_eq!(
            storage_class(&none, &named("slow")),
            Some(StorageClass::Present { expandable: true })
        );
        let wal = database(json!({
            "storage": {"size": "1Gi", "storageClassName": "slow", "wal": {"size": "1Gi", "storageClassName": "gone"}},
        }));
        assert_eq!(
            storage_class(&both, &wal),
            Some(StorageClass::Missing {
                name: "gone".to_owned()
            })
        );
    }
}
