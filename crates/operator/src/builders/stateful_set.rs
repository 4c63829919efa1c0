//! The StatefulSet that keeps the members' pods and volumes. It never replaces a pod by itself (`OnDelete`).

use std::collections::BTreeMap;

use api::names::{DATA_VOLUME, LABEL_CLUSTER_UID, WAL_VOLUME, volume_in};
use api::spec::VolumeSpec;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, TypedLocalObjectReference, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use machine::cluster::WalVolumes;

use super::pod_template::pod_template;
use super::{Subject, add_metadata, volume_snapshot};

/// On a claim: the node that its volume is to be reached from.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The StatefulSet with this many members. How many is the machine's decision, since lowering it takes members away.
pub fn stateful_set(subject: &Subject<'_>, replicas: i32) -> StatefulSet {
    let storage = &subject.db.spec.storage;
    let granted = subject.granted();
    let named = |volume| volume_in(volume, subject.volume_set());
    let mut claims = vec![data_claim(subject, &named(DATA_VOLUME))];
    if let Some(wal) = storage.wal.as_ref().filter(|_| subject.wal == WalVolumes::Templated) {
        let size = granted.wal.as_ref().unwrap_or(&wal.size);
        claims.push(claim(subject, &named(WAL_VOLUME), size, wal));
    }
    StatefulSet {
        metadata: subject.meta(subject.names.cluster().to_owned()),
        spec: Some(StatefulSetSpec {
            service_name: Some(subject.names.headless()),
            replicas: Some(replicas),
            selector: LabelSelector {
                match_labels: Some(subject.selector()),
                match_expressions: None,
            },
            pod_management_policy: Some("Parallel".to_owned()),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("OnDelete".to_owned()),
                rolling_update: None,
            }),
            template: pod_template(subject),
            volume_claim_templates: Some(claims),
            ..StatefulSetSpec::default()
        }),
        status: None,
    }
}

/// The WAL claim of one pod, as the claim template makes it; its volume is made where this node can reach it.
pub fn wal_claim(subject: &Subject<'_>, name: &str, node: &str) -> Option<PersistentVolumeClaim> {
    let wal = subject.db.spec.storage.wal.as_ref()?;
    let mut claim = claim(subject, name, &wal.size, wal);
    claim.metadata.namespace = Some(subject.namespace.clone());
    // A class that waits for the first pod waits for this instead: the scheduler says it so, too.
    let annotations = claim.metadata.annotations.get_or_insert_default();
    annotations.insert(SELECTED_NODE.to_owned(), node.to_owned());
    Some(claim)
}

/// The data claim of one pod, as the claim template would make it, from a VolumeSnapshot.
pub fn data_claim_from(subject: &Subject<'_>, name: &str, snapshot: &str) -> PersistentVolumeClaim {
    let mut claim = data_claim(subject, name);
    claim.metadata.namespace = Some(subject.namespace.clone());
    claim.spec.get_or_insert_default().data_source = Some(TypedLocalObjectReference {
        api_group: Some(volume_snapshot::GROUP.to_owned()),
        kind: "VolumeSnapshot".to_owned(),
        name: snapshot.to_owned(),
    });
    claim
}

fn data_claim(subject: &Subject<'_>, name: &str) -> PersistentVolumeClaim {
    let (data, granted) = (&subject.db.spec.storage.data, subject.granted());
    claim(subject, name, granted.data.as_ref().unwrap_or(&data.size), data)
}

fn claim(subject: &Subject<'_>, name: &str, size: &str, volume: &VolumeSpec) -> PersistentVolumeClaim {
    let mut labels = subject.labels();
    labels.insert(LABEL_CLUSTER_UID.to_owned(), subject.uid.clone());
    let mut metadata = ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some(labels),
        ..ObjectMeta::default()
    };
    add_metadata(&mut metadata, &volume.metadata);
    PersistentVolumeClaim {
        metadata,
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: volume.storage_class_name.clone(),
            volume_attributes_class_name: volume.volume_attributes_class_name.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), Quantity(size.to_owned()))])),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::fixture::{database, smallest};
    use crate::config::Config;

    #[test]
    fn replaces_no_pod_by_itself() {
        let (db, config) = (smallest(), Config::default());
        let spec = stateful_set(&Subject::new(&db, &config).unwrap(), 5).spec.unwrap();
        assert_eq!(spec.update_strategy.unwrap().type_.as_deref(), Some("OnDelete"));
        assert_eq!(spec.pod_management_policy.as_deref(), Some("Parallel"));
        assert_eq!(spec.replicas, Some(5));
        assert_eq!(spec.service_name.as_deref(), Some("db-pods"));
        let template_labels = spec.template.metadata.unwrap().labels.unwrap();
        assert!(
            spec.selector
                .match_labels
                .unwrap()
                .iter()
                .all(|(key, value)| template_labels.get(key) == Some(value))
        );
    }

    #[test]
    fn a_wal_claim_that_is_made_for_one_pod_is_as_the_template_says() {
        let db = database(
            serde_json::json!({"storage": {"data": {"size": "10Gi"}, "wal": {"size": "2Gi", "storageClassName": "fast"}}}),
        );
        let config = Config::default();
        let subject = Subject::new(&db, &config).unwrap();
        let mut made = wal_claim(&subject, "wal-db-1", "node-1").unwrap();
        let annotations = made.metadata.annotations.take().unwrap();
        assert_eq!(annotations["volume.kubernetes.io/selected-node"], "node-1");
        assert_eq!(made.metadata.namespace.take().as_deref(), Some("ns"));
        let set = stateful_set(&subject, 3).spec.unwrap();
        let mut template = set.volume_claim_templates.unwrap().remove(1);
        template.metadata.name = Some("wal-db-1".to_owned());
        assert_eq!(made, template);
        let withheld = stateful_set(&subject.with_wal(WalVolumes::Of(1)), 3).spec.unwrap();
        assert_eq!(withheld.volume_claim_templates.unwrap().len(), 1);
    }

    #[test]
    fn the_first_claim_from_a_snapshot_is_as_the_template_says_but_for_its_source() {
        let (db, config) = (smallest(), Config::default());
        let subject = Subject::new(&db, &config).unwrap();
        let mut made = data_claim_from(&subject, "data-db-0", "shop-s");
        let source = made.spec.as_mut().unwrap().data_source.take().unwrap();
        assert_eq!(
            (source.kind.as_str(), source.name.as_str()),
            ("VolumeSnapshot", "shop-s")
        );
        assert_eq!(made.metadata.namespace.take().as_deref(), Some("ns"));
        let set = stateful_set(&subject, 1).spec.unwrap();
        let mut template = set.volume_claim_templates.unwrap().remove(0);
        template.metadata.name = Some("data-db-0".to_owned());
        assert_eq!(made, template);
    }

    #[test]
    fn claims_are_made_no_larger_than_those_that_are_refused_more() {
        let spec = serde_json::json!({"storage": {"data": {"size": "1Ti"}, "wal": {"size": "2Gi"}}});
        let mut db = database(spec);
        let sizes = |db: &api::ClusteredDatabase| {
            let config = Config::default();
            let set = stateful_set(&Subject::new(db, &config).unwrap(), 3).spec.unwrap();
            let claims = set.volume_claim_templates.unwrap().into_iter();
            let asked = claims.map(|claim| claim.spec.unwrap().resources.unwrap().requests.unwrap());
            asked.map(|asked| asked["storage"].0.clone()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&db), ["1Ti", "2Gi"]);
        db.status.get_or_insert_default().memo.granted.data = Some("10Gi".to_owned());
        assert_eq!(sizes(&db), ["10Gi", "2Gi"]);
        db.status.get_or_insert_default().memo.granted.wal = Some("1Gi".to_owned());
        assert_eq!(sizes(&db), ["10Gi", "1Gi"]);
    }

    #[test]
    fn claims_say_whose_they_are() {
        let db = database(serde_json::json!({
            "storage": {"data": {"size": "10Gi", "storageClassName": "fast"}, "wal": {"size": "2Gi"}},
        }));
        let config = Config::default();
        let claims = stateful_set(&Subject::new(&db, &config).unwrap(), 3)
            .spec
            .unwrap()
            .volume_claim_templates
            .unwrap();
        assert_eq!(claims.len(), 2);
        let spec = claims[0].spec.as_ref().unwrap();
        assert_eq!(spec.storage_class_name.as_deref(), Some("fast"));
        assert_eq!(
            spec.resources.as_ref().unwrap().requests.as_ref().unwrap()["storage"].0,
            "10Gi"
        );
        assert_eq!(
            claims[0].metadata.labels.as_ref().unwrap()[LABEL_CLUSTER_UID],
            db.metadata.uid.unwrap()
        );
        assert_eq!(claims[1].metadata.name.as_deref(), Some("wal"));
        assert_eq!(claims[1].spec.as_ref().unwrap().storage_class_name, None);
    }
}
