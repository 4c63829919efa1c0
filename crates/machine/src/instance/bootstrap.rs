//! The first database. It is made at most once per `ClusteredDatabase`, on the claim that the operator has named.

use super::facts::{Context, Tenure};
use super::identity::volume_is_free;
use super::{Action, Data, Draft, OnBackoff, Rule, RuleKind, Verdict};
use crate::protocol::Timeline;

/// The agent ends after this many failures in a row.
const MOST_FAILURES: u32 = 2;

/// True if the operator has granted the bootstrap to this volume.
pub(super) fn is_granted(context: &Context) -> bool {
    let (Some(cluster), Some(member)) = (context.cluster(), context.member()) else {
        return false;
    };
    cluster.grant.as_ref().is_some_and(|grant| {
        grant.pod == context.observed.own.pod
            && grant.claim_uid == member.claim_uid
            && cluster.claim_uid.as_ref() == Some(&member.claim_uid)
    })
}

/// True if no system identifier is recorded anywhere, and the Lease was read and never had a holder; or, in a recovery in place, none
/// since its new set of volumes was made.
fn is_unmade(context: &Context) -> bool {
    let (Some(cluster), Some(record)) = (context.cluster(), context.record()) else {
        return false;
    };
    cluster.system_id.is_none()
        && cluster.epoch.is_none_or(|epoch| epoch <= cluster.begins)
        && record.system_id.is_none()
        && record.epoch == cluster.begins
        && record.release.is_none()
        && context.tenure() == Tenure::Vacant
}

pub(super) const GIVE_UP: Rule = Rule {
    name: "give-up",
    family: "bootstrap",
    what: "Ends the container with a message when the first database cannot be made.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: give_up,
    on_backoff: OnBackoff::Yield,
};

/// Ends the container with the reason, because there is no primary to report it to. Not after the first failure, which
/// may have been transient.
fn give_up(context: &Context, _draft: &mut Draft) -> Option<Verdict> {
    let task = &context.tasks().volume;
    let message = task.error.clone()?;
    let unmade = matches!(context.volume()?.data, Data::Empty | Data::Unfinished) && is_granted(context);
    let untaken = matches!(context.volume()?.data, Data::Present(_)) && may_take_snapshot(context);
    if !(unmade || untaken) || !is_unmade(context) || task.running.is_some() || task.failures < MOST_FAILURES {
        return None;
    }
    Verdict::new(Action::GiveUp { message }, "the first database cannot be made")
}

pub(super) const DISCARD_STAGING: Rule = Rule {
    name: "discard-staging",
    family: "bootstrap",
    what: "Removes what an unfinished initdb or copy has left beside PGDATA. A recovery from a VolumeSnapshot goes on with it.",
    protocol: &[2],
    kind: RuleKind::Act,
    decide: discard_staging,
    on_backoff: OnBackoff::Yield,
};

/// Removes what an `initdb` or clone of an earlier run left unfinished. Never touches PGDATA itself.
fn discard_staging(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let unfinished = matches!(context.volume()?.data, Data::Unfinished);
    // The recovery of a VolumeSnapshot goes on with the files that it has.
    let goes_on = context.cluster()?.recovers_snapshot && is_unmade(context);
    if !unfinished || goes_on || context.alive() || !volume_is_free(context, draft) {
        return None;
    }
    Verdict::new(
        Action::DiscardStaging,
        "an unfinished copy of a database lies on the volume",
    )
}

pub(super) const TAKE_SNAPSHOT: Rule = Rule {
    name: "take-snapshot",
    family: "bootstrap",
    what: "Takes the data that came with the granted volume for a recovery from a VolumeSnapshot, unless this claim's member or this database made them.",
    protocol: &[1],
    kind: RuleKind::Act,
    decide: take_snapshot,
    on_backoff: OnBackoff::Yield,
};

fn take_snapshot(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let is_there = matches!(context.volume()?.data, Data::Present(_));
    if !is_there || !may_take_snapshot(context) || !is_unmade(context) || context.stop_intended() {
        return None;
    }
    if context.alive() || !volume_is_free(context, draft) {
        return None;
    }
    Verdict::new(Action::TakeSnapshot, "the volume was made from a VolumeSnapshot")
}

/// True if the operator has granted the bootstrap to this volume, the spec recovers from a VolumeSnapshot, and what is on the volume was neither
/// made here nor by a member of this claim.
fn may_take_snapshot(context: &Context) -> bool {
    let (Some(cluster), Some(volume)) = (context.cluster(), context.volume()) else {
        return false;
    };
    let (Some(claim), Some(grant)) = (&cluster.claim_uid, &cluster.grant) else {
        return false;
    };
    let is_granted = grant.pod == context.observed.own.pod && grant.claim_uid == *claim;
    let is_own = volume.member.as_ref().is_some_and(|member| member.claim_uid == *claim);
    let made_here = volume.made_for.as_ref() == Some(&cluster.uid);
    cluster.recovers_snapshot && is_granted && !is_own && !made_here
}

pub(super) const INITDB: Rule = Rule {
    name: "initdb",
    family: "bootstrap",
    what: "Makes the first database, new or from a backup, on the one volume that the operator has granted it to.",
    protocol: &[1],
    kind: RuleKind::Act,
    decide: initdb,
    on_backoff: OnBackoff::Yield,
};

fn initdb(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let cluster = context.cluster()?;
    let empty = match context.volume()?.data {
        Data::Empty => true,
        Data::Unfinished => cluster.recovers_snapshot,
        Data::Present(_) | Data::Unknown => false,
    };
    if !empty || !is_granted(context) || !is_unmade(context) || context.stop_intended() {
        return None;
    }
    if context.alive() || !volume_is_free(context, draft) {
        return None;
    }
    Verdict::new(
        Action::Initdb {
            cluster_uid: cluster.uid.clone(),
            from_backup: cluster.recovers.then(|| {
                context
                    .record()
                    .and_then(|record| record.timeline)
                    .unwrap_or(Timeline(1))
            }),
        },
        "the operator granted the bootstrap to this volume",
    )
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use crate::protocol::{Epoch, Timeline};
    use crate::timing::BootTime;

    fn decided(observed: &Observed) -> Decision {
        decide(observed, &Memo::default(), BootTime(1_000))
    }

    #[test]
    fn the_grant_for_this_claim_starts_initdb_or_a_recovery() {
        let mut observed = granted();
        for from_backup in [false, true] {
            cluster(&mut observed).recovers = from_backup;
            let from_backup = from_backup.then_some(Timeline(1));
            let cluster_uid = CLUSTER_UID.to_owned();
            let wanted = Action::Initdb {
                cluster_uid,
                from_backup,
            };
            assert_eq!(decided(&observed).action, wanted);
        }
    }

    /// A volume from a snapshot of another database, before anything was made for this one.
    fn from_snapshot() -> Observed {
        let mut observed = granted();
        volume(&mut observed).data = standby().volume.is().unwrap().data.clone();
        volume(&mut observed).member.as_mut().unwrap().claim_uid = "of-the-source".to_owned();
        volume(&mut observed).made_for = Some("the-source".to_owned());
        let cluster = cluster(&mut observed);
        (cluster.recovers, cluster.recovers_snapshot) = (true, true);
        observed
    }

    #[test]
    fn the_data_of_a_snapshot_are_taken_for_its_recovery_alone() {
        assert_eq!(decided(&from_snapshot()).action, Action::TakeSnapshot);
        let mut begun = from_snapshot();
        // The agent was ended after it had forgotten whose they were.
        volume(&mut begun).member = None;
        assert_eq!(decided(&begun).action, Action::TakeSnapshot);
        let spoil: [fn(&mut Observed); 11] = [
            |o| cluster(o).recovers_snapshot = false,
            |o| cluster(o).grant = None,
            |o| cluster(o).grant.as_mut().unwrap().pod = "orders-1".to_owned(),
            |o| cluster(o).grant.as_mut().unwrap().claim_uid = "other".to_owned(),
            |o| volume(o).member.as_mut().unwrap().claim_uid = CLAIM.to_owned(),
            |o| volume(o).made_for = Some(CLUSTER_UID.to_owned()),
            |o| cluster(o).system_id = Some(SYSTEM_ID.to_owned()),
            |o| record(o).system_id = Some(SYSTEM_ID.to_owned()),
            |o| record(o).epoch = Epoch(1),
            |o| hold_by(o, other_holder(), 1),
            |o| cluster(o).stop = true,
        ];
        for (index, spoil) in spoil.iter().enumerate() {
            let mut observed = from_snapshot();
            spoil(&mut observed);
            assert_ne!(decided(&observed).rule, "take-snapshot", "{index}");
        }
    }

    #[test]
    fn a_recovery_of_a_snapshot_goes_on_with_its_files_and_tells_why_it_cannot() {
        let mut observed = from_snapshot();
        volume(&mut observed).member.as_mut().unwrap().claim_uid = CLAIM.to_owned();
        volume(&mut observed).data = Data::Unfinished;
        assert_eq!(decided(&observed).rule, "initdb");
        cluster(&mut observed).recovers_snapshot = false;
        assert_eq!(decided(&observed).rule, "discard-staging");
        observed.cluster = Reading::Unknown;
        assert_eq!(decided(&observed).rule, "wait", "the files may be the only ones");

        let mut untaken = from_snapshot();
        untaken.tasks.volume = Task {
            failures: 2,
            error: Some("permission denied".to_owned()),
            ..Task::default()
        };
        let message = "permission denied".to_owned();
        assert_eq!(decided(&untaken).action, Action::GiveUp { message });
    }

    #[test]
    fn a_recovery_in_place_begins_in_the_epoch_that_the_lease_had_then_and_after_its_timelines() {
        let mut observed = granted();
        (cluster(&mut observed).recovers, cluster(&mut observed).begins) = (true, Epoch(7));
        cluster(&mut observed).epoch = Some(Epoch(7));
        (record(&mut observed).epoch, record(&mut observed).timeline) = (Epoch(7), Some(Timeline(3)));
        let wanted = Action::Initdb {
            cluster_uid: CLUSTER_UID.to_owned(),
            from_backup: Some(Timeline(3)),
        };
        assert_eq!(decided(&observed).action, wanted);
        for (seen, there) in [(7, 6), (7, 8), (8, 7), (8, 8), (0, 0)] {
            (cluster(&mut observed).epoch, record(&mut observed).epoch) = (Some(Epoch(seen)), Epoch(there));
            assert_ne!(decided(&observed).rule, "initdb", "{seen}, {there}");
        }
    }

    #[test]
    fn without_every_proof_there_is_no_initdb() {
        let spoil: [fn(&mut Observed); 14] = [
            |o| cluster(o).grant = None,
            |o| cluster(o).grant.as_mut().unwrap().pod = "orders-1".to_owned(),
            |o| cluster(o).grant.as_mut().unwrap().claim_uid = "other".to_owned(),
            |o| cluster(o).system_id = Some(SYSTEM_ID.to_owned()),
            |o| cluster(o).epoch = Some(Epoch(1)),
            |o| cluster(o).stop = true,
            |o| record(o).system_id = Some(SYSTEM_ID.to_owned()),
            |o| record(o).epoch = Epoch(1),
            |o| hold_by(o, other_holder(), 1),
            |o| o.lease.record = Reading::Missing,
            |o| o.lease.record = Reading::Unknown,
            |o| volume(o).data = Data::Unknown,
            |o| o.volume = Reading::Unknown,
            |o| o.tasks.volume.running = Some(Work::Initdb),
        ];
        for (index, spoil) in spoil.iter().enumerate() {
            let mut observed = granted();
            spoil(&mut observed);
            assert_ne!(decided(&observed).rule, "initdb", "{index}");
        }
    }

    #[test]
    fn an_unfinished_try_is_removed_first() {
        let mut observed = granted();
        volume(&mut observed).data = Data::Unfinished;
        assert_eq!(decided(&observed).action, Action::DiscardStaging);
    }

    #[test]
    fn an_initdb_that_fails_again_ends_the_container_with_its_message() {
        let mut observed = granted();
        let error = Some("syntax error".to_owned());
        observed.tasks.volume = Task {
            failures: 2,
            error,
            ..Task::default()
        };
        assert_eq!(
            decided(&observed).action,
            Action::GiveUp {
                message: "syntax error".to_owned()
            }
        );
        cluster(&mut observed).grant = None;
        assert_eq!(
            decided(&observed).action,
            Action::Wait,
            "a clone that fails is no failed bootstrap"
        );
    }

    #[test]
    fn a_failed_initdb_is_retried_with_back_off() {
        let mut observed = granted();
        observed.tasks.volume = Task {
            failures: 1,
            ended: BootTime(900),
            error: Some("no space".to_owned()),
            ..Task::default()
        };
        let decision = decided(&observed);
        assert_eq!(
            (&decision.action, decision.wake),
            (&Action::Wait, Some(BootTime(1_100)))
        );
    }
}
