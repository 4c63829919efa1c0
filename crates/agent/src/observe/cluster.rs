//! The ClusteredDatabase, as the machine needs it.

use api::backup::is_snapshot;
use api::names::ANNOTATION_DELETE_ARCHIVE;
use api::spec::{ArchiveFate, StaleReads};
use api::{ClusteredDatabase, ClusteredDatabaseSpec};
use machine::instance::{CertifiedKey, ClusterView, SignedCertificate};
use machine::protocol::{Epoch, MemberId, settings_hash};
use machine::timing::Timing;

/// What the user wants, with the source that the operator has found, and with a recovery in place as the recovery that the first data comes
/// from.
pub(super) fn spec(cluster: ClusteredDatabase) -> ClusteredDatabaseSpec {
    let source = cluster.recovery_source().cloned();
    let mut spec = cluster.spec;
    if let (Some(bootstrap), Some(source)) = (&mut spec.bootstrap, source)
        && let Some(recovery) = &mut bootstrap.recovery
    {
        recovery.from = source;
    }
    if let Some(order) = cluster.status.and_then(|status| status.intent.recovery) {
        let name = cluster.metadata.name.unwrap_or_default();
        let uid = cluster.metadata.uid.unwrap_or_default();
        let recover = order.recover;
        let recovery = machine::drill::recovery(&name, &uid, spec.backup.as_ref(), recover.backup, recover.target);
        spec.bootstrap.get_or_insert_default().recovery = recovery;
    }
    spec
}

/// Whether all that the database has in the store is to go: it is being deleted, its spec asks for that, and the user has confirmed it.
fn deletes_archive(cluster: &ClusteredDatabase) -> bool {
    let on_delete = cluster
        .spec
        .backup
        .as_ref()
        .and_then(|backup| backup.on_delete.as_ref());
    let confirmed = cluster
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(ANNOTATION_DELETE_ARCHIVE));
    cluster.metadata.deletion_timestamp.is_some()
        && on_delete.is_some_and(|on_delete| on_delete.data == ArchiveFate::Delete)
        && confirmed.is_some()
        && confirmed == cluster.metadata.uid.as_ref()
}

/// What `cluster` says to `pod`. Failover times that break their rule change nothing: `timing` stays in force.
pub(super) fn view(cluster: &ClusteredDatabase, pod: &str, timing: Timing) -> ClusterView {
    let spec = &cluster.spec;
    let status = cluster.status.clone().unwrap_or_default();
    let member = status.members.get(pod).cloned().unwrap_or_default();
    let certified = status.members.iter().filter_map(|(pod, member)| {
        let key = member.certified_key.clone()?;
        let member = MemberId::parse(member.member_id.as_ref()?)?;
        Some((pod.clone(), CertifiedKey { member, key }))
    });
    let certified = certified.collect();
    let certificate = member.member_id.zip(member.certificate);
    let order = status.intent.recovery;
    let discard = status.intent.discard.filter(|discard| discard.instance == pod);
    let named = spec.recovery().and_then(|recovery| recovery.backup.as_deref());
    ClusterView {
        uid: cluster.metadata.uid.clone().unwrap_or_default(),
        replicas: u32::try_from(spec.replicas).unwrap_or(0),
        timing: Timing::of(&spec.failover).unwrap_or_else(|error| {
            tracing::error!("the failover times are not taken up: {error}");
            timing
        }),
        settings: settings_hash(&spec.postgres.settings()),
        system_id: status.system_identifier,
        // One that is out of range is later than any: no Lease is taken under it.
        epoch: status.epoch.map(|epoch| Epoch::new(epoch).unwrap_or(Epoch::MAX)),
        claim_uid: member.claim_uid,
        certificate: certificate.map(|(member, pem)| SignedCertificate { member, pem }),
        certified,
        grant: status.intent.bootstrap,
        restart: status.intent.restart,
        stop: status.intent.stop,
        durability: spec.known_durability(status.memo.durability),
        strict_reads: spec.failover.stale_reads == StaleReads::Forbid,
        preferred: spec.primary.prefer.clone(),
        primary: status.intent.primary,
        urgent: status.intent.urgent,
        accepted_loss: status.intent.accept_loss.and_then(|epoch| Epoch::new(epoch).ok()),
        fenced: spec.fenced.iter().cloned().collect(),
        discard: discard.map(|discard| discard.name),
        archives: spec.backup.is_some(),
        reads_archive: spec.backup.as_ref().is_some_and(|backup| backup.encryption.is_none()),
        archive_ended: status.intent.delete_archive,
        deletes_archive: deletes_archive(cluster),
        backup: status.intent.backup,
        backup_source: status.intent.backup_source,
        backup_kind: status.intent.backup_kind,
        snapshot: status.intent.snapshot,
        snapshots: status.memo.snapshots.into_iter().map(|memo| memo.name).collect(),
        proven_backup: status.backup.and_then(|backup| backup.drill?.proven_backup),
        recovery_check: status.intent.recovery_check,
        recovers: spec.recovery().is_some() || order.is_some(),
        recovers_snapshot: order.is_none() && named.is_some_and(is_snapshot),
        // One that is out of range is no Lease's.
        begins: order.map_or(Epoch(0), |order| Epoch::new(order.epoch).unwrap_or(Epoch::MAX)),
    }
}
