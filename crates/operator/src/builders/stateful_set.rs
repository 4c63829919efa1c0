//! The StatefulSet that keeps the members' pods and volumes. It never replaces a pod by itself (`OnDelete`).

use std::collections::BTreeMap;

use api::names::{DATA_VOLUME, LABEL_CLUSTER_UID, WAL_VOLUME, volume_in};
use api::spec::VolumeSpec;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use machine::cluster::WalVolumes;

use super::pod_template::pod_template;
use super::{Subject, add_metadata};

/// On a claim: the node that its volume is to be reached from.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The StatefulSet with this many members. How many is the machine's decision, since lowering it takes members away.
pub fn stateful_set(subject: &Subject<'_>, replicas: i32) -> StatefulSet {
    let storage = &subject.db.spec.storage;
    let granted = subject.granted();
    let data_size = granted.data.as_ref().unwrap_or(&storage.data.size);
    let named = |volume| volume_in(volume, subject.volume_set());
    let mut claims = vec![claim(subject, &named(DATA_VOLUME), data_size, &storage.data)];
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
