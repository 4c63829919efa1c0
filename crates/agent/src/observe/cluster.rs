//! The ClusteredDatabase, as the machine needs it.

use api::ClusteredDatabase;
use api::spec::{ClusteredDatabaseSpec, FailoverReads};
use api::status::DurabilityMode;
use machine::instance::{ClusterView, Durability, SignedCertificate};
use machine::protocol::{Epoch, settings_hash};
use machine::timing::Timing;

/// What `cluster` says to `pod`. Failover times that break their rule change nothing: `timing` stays in force.
pub(super) fn view(cluster: &ClusteredDatabase, pod: &str, timing: Timing) -> ClusterView {
    let spec = &cluster.spec;
    let status = cluster.status.clone().unwrap_or_default();
    let member = status.members.get(pod).cloned().unwrap_or_default();
    let certificate = member.member_id.zip(member.certificate);
    ClusterView {
        uid: cluster.metadata.uid.clone().unwrap_or_default(),
        replicas: u32::try_from(spec.replicas).unwrap_or(0),
        timing: Timing::of(&spec.failover).unwrap_or_else(|error| {
            tracing::error!("the failover times are not taken up: {error}");
            timing
        }),
        settings: settings_hash(&spec.postgres.parameters),
        system_id: status.system_identifier,
        epoch: status.epoch.map(Epoch),
        claim_uid: member.claim_uid,
        certificate: certificate.map(|(member, pem)| SignedCertificate { member, pem }),
        grant: status.intent.bootstrap,
        restart: status.intent.restart,
        stop: status.intent.stop,
        durability: durability(spec),
        strict_reads: spec.failover.reads == FailoverReads::Strict,
        primary: status.intent.primary,
    }
}

/// `spec.durability` with its defaults. A commit cannot wait for more standbys than there are to be.
fn durability(spec: &ClusteredDatabaseSpec) -> Durability {
    let replicas = usize::try_from(spec.replicas).unwrap_or(0);
    let mode = spec.durability.mode.unwrap_or(match replicas {
        3.. => DurabilityMode::Required,
        _ => DurabilityMode::Async,
    });
    let wanted = spec
        .durability
        .standbys
        .map_or(replicas / 2, |standbys| usize::try_from(standbys).unwrap_or(usize::MAX));
    let standbys = match mode {
        DurabilityMode::Async => 0,
        DurabilityMode::Preferred | DurabilityMode::Required => wanted.min(replicas.saturating_sub(1)),
    };
    Durability { mode, standbys }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(spec: serde_json::Value) -> Durability {
        let mut whole = serde_json::json!({"storage": {"size": "1Gi"}});
        let fields = spec.as_object().expect("fields").clone();
        whole.as_object_mut().expect("fields").extend(fields);
        durability(&serde_json::from_value(whole).expect("a spec"))
    }

    #[test]
    fn three_instances_and_more_are_synchronous_by_default() {
        for (replicas, mode, standbys) in [
            (1, DurabilityMode::Async, 0),
            (2, DurabilityMode::Async, 0),
            (3, DurabilityMode::Required, 1),
            (4, DurabilityMode::Required, 2),
            (5, DurabilityMode::Required, 2),
        ] {
            assert_eq!(
                of(serde_json::json!({"replicas": replicas})),
                Durability { mode, standbys }
            );
        }
    }

    #[test]
    fn no_commit_waits_for_more_standbys_than_there_are() {
        let many = serde_json::json!({"replicas": 3, "durability": {"mode": "Preferred", "standbys": 7}});
        assert_eq!(of(many).standbys, 2);
        let none = serde_json::json!({"replicas": 3, "durability": {"mode": "Async", "standbys": 1}});
        assert_eq!(of(none).standbys, 0);
        let alone = serde_json::json!({"replicas": 1, "durability": {"mode": "Required"}});
        assert_eq!(of(alone).standbys, 0);
    }
}
