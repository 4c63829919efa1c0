//! VolumeSnapshots (`snapshot.storage.k8s.io/v1`), as far as this project writes and reads them.

use api::names::LABEL_CLUSTER_UID;
use kube::CustomResource;
use machine::cluster::{ObjectVersion, SnapshotSeen};
use serde::{Deserialize, Serialize};

use super::Subject;

/// Group of the API, which a cluster has if somebody has installed it.
pub const GROUP: &str = "snapshot.storage.k8s.io";

/// A snapshot of a volume.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "snapshot.storage.k8s.io",
    version = "v1",
    kind = "VolumeSnapshot",
    plural = "volumesnapshots",
    namespaced,
    schema = "disabled",
    status = "VolumeSnapshotStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotSpec {
    /// What it is of.
    pub source: VolumeSnapshotSource,
    /// Its class; the default one of the driver if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_snapshot_class_name: Option<String>,
}

/// What a snapshot is of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotSource {
    /// The claim; absent if somebody has brought its content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_name: Option<String>,
}

/// What the storage says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotStatus {
    /// When it was taken.
    #[serde(default)]
    pub creation_time: Option<String>,
    /// Volumes can be made from it.
    #[serde(default)]
    pub ready_to_use: Option<bool>,
    /// What is wrong.
    #[serde(default)]
    pub error: Option<VolumeSnapshotError>,
}

/// What is wrong with a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSnapshotError {
    /// In words.
    #[serde(default)]
    pub message: Option<String>,
}

/// A VolumeSnapshot of a claim of the database. It outlives the database.
pub fn volume_snapshot(subject: &Subject<'_>, name: &str, claim: &str) -> VolumeSnapshot {
    let backup = subject.db.spec.backup.as_ref();
    let spec = VolumeSnapshotSpec {
        source: VolumeSnapshotSource {
            persistent_volume_claim_name: Some(claim.to_owned()),
        },
        volume_snapshot_class_name: backup.and_then(|backup| backup.volume_snapshot_class_name.clone()),
    };
    let mut snapshot = VolumeSnapshot::new(name, spec);
    let mut labels = subject.labels();
    labels.insert(LABEL_CLUSTER_UID.to_owned(), subject.uid.clone());
    snapshot.metadata.labels = Some(labels);
    snapshot
}

/// What decisions look at. `uid` is the database's.
pub fn seen(snapshot: &VolumeSnapshot, uid: &str) -> SnapshotSeen {
    let status = snapshot.status.clone().unwrap_or_default();
    let metadata = &snapshot.metadata;
    let of = metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(LABEL_CLUSTER_UID));
    SnapshotSeen {
        exact: ObjectVersion::of_any_version(
            metadata.name.clone().unwrap_or_default(),
            metadata.uid.clone().unwrap_or_default(),
        ),
        is_ours: of.is_some_and(|of| of == uid),
        terminating: metadata.deletion_timestamp.is_some(),
        taken: status.creation_time.is_some(),
        ready: status.ready_to_use == Some(true),
        message: status.error.and_then(|error| error.message),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builders::fixture::database;
    use crate::config::Config;

    #[test]
    fn a_snapshot_is_of_the_class_that_the_spec_names_and_says_how_far_it_is() {
        let store = json!({"s3": {"bucket": "wal"}});
        let db = database(json!({
            "storage": {"data": {"size": "1Gi"}}, "backup": {"store": store, "volumeSnapshotClassName": "fast"},
        }));
        let config = Config::default();
        let subject = Subject::new(&db, &config).unwrap();
        let mut made = volume_snapshot(&subject, "db-s", "data-db-0");
        let written = serde_json::to_value(&made).unwrap();
        assert_eq!(
            written["spec"],
            json!({"source": {"persistentVolumeClaimName": "data-db-0"}, "volumeSnapshotClassName": "fast"})
        );
        assert_eq!(written["apiVersion"], format!("{GROUP}/v1"));
        let state = |made: &VolumeSnapshot, uid| {
            let seen = seen(made, uid);
            (seen.is_ours, seen.taken, seen.ready, seen.message)
        };
        assert_eq!(state(&made, &subject.uid), (true, false, false, None));
        for (status, expected) in [
            (
                json!({"creationTime": "2026-11-28T12:00:00Z", "readyToUse": false}),
                (true, false, None),
            ),
            (
                json!({"creationTime": "2026-11-28T12:00:00Z", "readyToUse": true}),
                (true, true, None),
            ),
            (
                json!({"error": {"message": "no class"}}),
                (false, false, Some("no class".to_owned())),
            ),
        ] {
            made.status = serde_json::from_value(status).unwrap();
            let (taken, ready, message) = expected;
            assert_eq!(state(&made, "another"), (false, taken, ready, message));
        }
    }
}
