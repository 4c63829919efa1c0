//! Recovery in place: instances stop, the Lease is set to another set of volumes, and the first instance recovers the database's own
//! backup on its new volume, as a new database is made. To undo is the same way back, to volumes that were never touched.
//!
//! No member of one set has a part in the other: the Lease names those of one set alone. Epoch and timelines are counted on, so that
//! neither is ever given twice.

use api::operation::{Action as Asked, Recover};
use api::spec::BackupSpec;
use api::status::{RecoveryCheck, RequestOutcome, VolumeSets, WaitReason};
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};

use super::action::{Action, LeaseChange, StatusChange};
use super::decision::Step;
use super::facts::request::open_request;
use super::facts::{Facts, exact_claim, hibernation};
use super::failure;
use super::owned::OwnedObject;
use super::rule::{OnBackoff, Progress, Proposal, Rule, RuleKind};
use super::wait::WaitKey;
use crate::archive::{RecoveryChecked, RecoveryOutline};
use crate::protocol::LeaseRecord;
use crate::reconcile::ObjectVersion;
use crate::units::Bytes;

/// See [`Rule::what`].
pub const CHANGE_VOLUMES: Rule = Rule {
    name: "change-volumes",
    family: "recovery",
    what: "For a recovery in place, or to undo one, all instances stop as for hibernation, and the Lease, which nobody holds then, is set to \
           the other set of volumes.\n\
           - Before a recovery the primary proves, while it serves, that the store has all that is needed.\n\
           - What is on record of the members is forgotten: the first one is made anew, or who held the Lease of that set takes it again.\n\
           - A recovery that is taken back or fails goes the same way back, and its volumes are deleted.",
    protocol: &[1, 12, 14, 16],
    kind: RuleKind::Act,
    decide: change,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const DISCARD_VOLUMES: Rule = Rule {
    name: "discard-volumes",
    family: "recovery",
    what: "Volumes of before a recovery in place are deleted when the user confirms it or their time is over, and the Lease says no more of them.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: discard,
    on_backoff: OnBackoff::Yield,
};

fn sets<'a>(facts: &Facts<'a>) -> Option<&'a VolumeSets> {
    facts.status.memo.volumes.as_ref().filter(|_| !facts.wanted.deleting)
}

/// The operation that the last change was for is still open.
fn is_pursued(facts: &Facts<'_>, sets: &VolumeSets) -> bool {
    open_request(facts).is_some_and(|open| open.uid == sets.request)
}

fn write(sets: VolumeSets, because: impl Into<String>) -> Option<Proposal> {
    let action = Action::WriteStatus(vec![StatusChange::SetVolumes(sets)]);
    Proposal::act(Step::Volumes, action, because.into())
}

fn change(facts: &Facts<'_>) -> Option<Proposal> {
    let sets = sets(facts)?;
    match sets.next {
        Some(next) => turn(facts, sets, next),
        None => give_up(facts, sets),
    }
}

/// The next step from the present set of volumes to another one.
fn turn(facts: &Facts<'_>, sets: &VolumeSets, next: u32) -> Option<Proposal> {
    let lease = facts.lease?;
    // The way back of a recovery that has failed is nobody's wish.
    if sets.failure.is_none() && !is_pursued(facts, sets) && lease.volume_set == sets.current {
        let as_before = VolumeSets {
            next: None,
            recover: None,
            ..sets.clone()
        };
        return write(
            as_before,
            "the change of volumes was taken back before anything was changed",
        );
    }
    if !hibernation::is_down(facts) {
        return None;
    }
    if lease.volume_set == next {
        let change = StatusChange::UseVolumes {
            set: next,
            epoch: lease.epoch,
            system_id: lease.system_id.clone(),
        };
        let because = format!("the Lease is about set {next} of the volumes");
        return Proposal::act(Step::Volumes, Action::WriteStatus(vec![change]), because);
    }
    if lease.volume_set != sets.current {
        return Proposal::unread(facts, Step::Volumes, "a Lease that is about these volumes");
    }
    // On a new set that could not be recovered, nobody ever held it.
    let is_untouched = lease.holder.is_none() && lease.system_id.is_none();
    if !is_untouched && (lease.holder.is_some() || lease.release.is_none()) {
        return unreleased(facts, lease);
    }
    let action = Action::ChangeLease(exact(facts, lease), LeaseChange::Volumes(next));
    let because = format!("all instances have stopped, and set {next} of the volumes is to be used");
    Proposal::act(Step::Volumes, action, because)
}

fn exact(facts: &Facts<'_>, lease: &LeaseRecord) -> ObjectVersion {
    ObjectVersion::new(facts.child_name(OwnedObject::Lease), &lease.uid, &lease.version)
}

/// A holder that is gone may have acknowledged what nobody knows of.
fn unreleased(facts: &Facts<'_>, lease: &LeaseRecord) -> Option<Proposal> {
    let holder = lease.holder.as_ref().map(|holder| holder.incarnation.pod.as_str());
    let what = format!(
        "the Lease to be released by {}, which is gone without having done so",
        holder.unwrap_or("its last holder")
    );
    let who = "the user, by taking the operation back (spec.cancel): then the instances come back, and elect a primary";
    let key = WaitKey::child(facts, WaitReason::CleanStop, OwnedObject::Lease);
    Proposal::wait(facts, Step::Volumes, key, what, who)
}

/// Back from a new set of volumes on which there is no database yet.
fn give_up(facts: &Facts<'_>, sets: &VolumeSets) -> Option<Proposal> {
    facts.status.intent.recovery.as_ref()?;
    let former = sets.former?;
    let why = match failure::bootstrap_error(facts) {
        Some(error) => error,
        None if !is_pursued(facts, sets) => "the recovery in place was taken back".to_owned(),
        None => return None,
    };
    let back = VolumeSets {
        next: Some(former),
        recover: None,
        failure: Some(why.clone()),
        ..sets.clone()
    };
    write(back, why)
}

fn discard(facts: &Facts<'_>) -> Option<Proposal> {
    let sets = sets(facts)?;
    let Some(set) = sets.discarded else {
        return expire(facts, sets);
    };
    let lease = facts.lease?;
    if lease.former_set == Some(set) {
        let exact = ObjectVersion::of_any_version(facts.child_name(OwnedObject::Lease), &lease.uid);
        let because = format!("set {set} of the volumes is given up");
        return Proposal::act(
            Step::Volumes,
            Action::ChangeLease(exact, LeaseChange::ForgetFormer),
            because,
        );
    }
    facts.observed.claims.get()?;
    let mut left = facts
        .observed
        .other_claims
        .iter()
        .filter(|claim| claim.set == set && facts.owns(claim));
    if let Some(claim) = left.clone().find(|claim| !claim.terminating) {
        let because = format!("set {set} of the volumes is given up");
        return Proposal::act(Step::Volumes, Action::DeleteClaim(exact_claim(claim)), because);
    }
    if left.next().is_some() {
        return None;
    }
    let gone = VolumeSets {
        discarded: None,
        ..sets.clone()
    };
    write(gone, format!("the volumes of set {set} are gone"))
}

/// The volumes of before are given up when the operation's `keepHours` are over.
fn expire(facts: &Facts<'_>, sets: &VolumeSets) -> Option<Proposal> {
    let (former, until) = (sets.former?, sets.keep_until?);
    if facts.now < until || !is_free(sets) {
        return None;
    }
    facts.primary()?;
    let because = format!(
        "set {former} of the volumes was to be kept until {}",
        until.format("%FT%TZ")
    );
    write(given_up(sets, former), because)
}

fn given_up(sets: &VolumeSets, former: u32) -> VolumeSets {
    VolumeSets {
        former: None,
        keep_until: None,
        discarded: Some(former),
        ..sets.clone()
    }
}

/// When the volumes of before are given up. If that is over, something else is waited for.
pub(super) fn expires_at(facts: &Facts<'_>) -> Option<DateTime<Utc>> {
    sets(facts)?.keep_until.filter(|until| *until > facts.now)
}

/// Why there can be no recovery in place as things are.
pub(super) fn refusal(facts: &Facts<'_>) -> Option<String> {
    let name = facts.wanted.name;
    let Some(backup) = &facts.wanted.spec.backup else {
        return Some("spec.backup names no store: there is nothing to recover from".to_owned());
    };
    let cannot_read = |backup: &BackupSpec| backup.encryption.is_some() && backup.identity_secret_ref().is_none();
    if cannot_read(backup) {
        return Some(
            "the backups are encrypted: set spec.backup.encryption.identitySecretRef to a Secret with a private key"
                .to_owned(),
        );
    }
    if let Some(former) = facts.status.memo.volumes.as_ref().and_then(|sets| sets.former) {
        return Some(format!(
            "set {former} of the volumes is kept from the last recovery in place: kubectl cdb confirm-recovery {name} gives it up, \
             kubectl cdb undo-recovery {name} goes back to it"
        ));
    }
    facts.primary().is_none().then(|| {
        format!(
            "no primary serves that could stop cleanly: recover it under another name (kubectl cdb recover {name} NEW)"
        )
    })
}

/// A set that has no volumes, and of which the Lease says nothing.
fn new_set(facts: &Facts<'_>, sets: &VolumeSets) -> Option<u32> {
    facts.observed.claims.get()?;
    let lease = facts.lease?;
    let of_claims = facts.observed.other_claims.iter().map(|claim| claim.set);
    let known = [
        Some(sets.current),
        sets.former,
        Some(lease.volume_set),
        lease.former_set,
    ];
    let last = known.into_iter().flatten().chain(of_claims).max();
    last.unwrap_or(0).checked_add(1)
}

/// Nothing else is being done with the volumes.
fn is_free(sets: &VolumeSets) -> bool {
    sets.next.is_none() && sets.discarded.is_none()
}

/// The recovery that the primary's agent is to look through the store for, while everything runs.
pub(super) fn check_to_make(facts: &Facts<'_>) -> Option<RecoveryCheck> {
    let open = open_request(facts)?;
    let Asked::Recover(recover) = &open.action else {
        return None;
    };
    let begun = facts.status.memo.volumes.as_ref().map(|sets| &sets.request);
    (begun != Some(&open.uid)).then(|| RecoveryCheck {
        uid: open.uid.clone(),
        recover: recover.clone(),
    })
}

/// How long the primary may take to look through the store.
const CHECK: TimeDelta = TimeDelta::minutes(5);

fn unchecked(facts: &Facts<'_>) -> String {
    format!(
        "the primary has not told within {} min whether the store has all that is needed: an agent of an earlier version cannot \
         (kubectl cdb restart {} replaces it)",
        CHECK.num_minutes(),
        facts.wanted.name
    )
}

/// A recovery waits for the primary's word.
pub(super) fn await_check(facts: &Facts<'_>) -> Option<Proposal> {
    check_to_make(facts)?;
    let what = "the primary to prove that the store has all that the recovery needs".to_owned();
    let who = "the agents, or the user by taking the operation back (spec.cancel)";
    let key = WaitKey::child(facts, WaitReason::RecoveryCheck, OwnedObject::Lease);
    let deadline = facts.status.memo.request.as_ref()?.since + CHECK;
    Some(Proposal::wait(facts, Step::Volumes, key, what, who)?.until(deadline))
}

/// What becomes of an operation that asks for a recovery in place. Nothing stops before it is known that the store has all that it
/// needs. It is done when a primary serves what was recovered.
pub(super) fn recover(facts: &Facts<'_>, asked: &Recover, uid: &str) -> Option<Progress> {
    let sets = facts.status.memo.volumes.clone().unwrap_or_default();
    if sets.request != uid {
        let given_up = |why: String| {
            Some(Progress::Ends(
                RequestOutcome::GivenUp,
                format!("{why}; nothing was changed"),
            ))
        };
        // Something may have changed since it was asked for.
        if let Some(why) = refusal(facts) {
            return given_up(why);
        }
        let archive = facts.archive();
        let checked = archive.and_then(|archive| archive.checked.as_ref());
        match checked.filter(|checked| checked.uid == uid) {
            None if facts.now < facts.status.memo.request.as_ref()?.since + CHECK => return None,
            None => return given_up(unchecked(facts)),
            Some(RecoveryChecked {
                refusal: Some(refusal), ..
            }) => return given_up(refusal.clone()),
            Some(checked) if asked.dry_run => {
                let told = planned(facts, asked, checked.outline.as_ref());
                return Some(Progress::Ends(RequestOutcome::Done, told));
            }
            Some(RecoveryChecked { refusal: None, .. }) => {}
        }
        let next = new_set(facts, &sets)?;
        let begun = VolumeSets {
            next: Some(next),
            recover: Some(asked.clone()),
            request: uid.to_owned(),
            failure: None,
            ..sets.clone()
        };
        let why = format!("set {next} of the volumes is to be recovered from a backup");
        return is_free(&sets).then_some(Progress::Changes(StatusChange::SetVolumes(begun), why));
    }
    if sets.next.is_some() {
        return None;
    }
    if let Some(failure) = sets.failure {
        let why = format!("{failure}; the database goes on as it was");
        return Some(Progress::Ends(RequestOutcome::GivenUp, why));
    }
    let primary = facts.primary().filter(|_| facts.status.intent.recovery.is_none())?;
    let name = facts.wanted.name;
    let why = format!(
        "{} serves what was recovered; the volumes of before are kept: kubectl cdb confirm-recovery {name} deletes them, \
         kubectl cdb undo-recovery {name} goes back to them",
        primary.name
    );
    Some(Progress::Ends(RequestOutcome::Done, why))
}

/// What a recovery in place would do, in words.
fn planned(facts: &Facts<'_>, asked: &Recover, outline: Option<&RecoveryOutline>) -> String {
    let time = |time: DateTime<Utc>| time.to_rfc3339_opts(SecondsFormat::Secs, true);
    let from = outline.map_or_else(
        || "the target lies behind what is archived by now: the rest is archived while all instances stop".to_owned(),
        |outline| {
            let mib = |bytes: u64| bytes.div_ceil(Bytes::mib(1).0);
            format!(
                "the files of backup {} ({} MiB, {} MiB in the store), consistent at {}; then up to {} segments of WAL ({} MiB) to {} on \
                 timeline {}",
                outline.backup,
                mib(outline.data_bytes),
                mib(outline.stored_bytes),
                time(outline.stop_time),
                outline.segments,
                mib(outline.segments.saturating_mul(outline.segment_size.0)),
                outline.end,
                outline.timeline.0
            )
        },
    );
    let lost = match asked.target.as_ref().map(|target| target.time) {
        None => "nothing that is archived when all instances have stopped".to_owned(),
        Some(None) => "all behind the target".to_owned(),
        Some(Some(target)) => {
            let ago = facts.now - target;
            let ago = match ago.num_minutes() {
                0 => format!("{} s", ago.num_seconds()),
                minutes => format!("{minutes} min"),
            };
            format!("all commits after {}: those of the last {ago}", time(target))
        }
    };
    let drill = facts.status.backup.as_ref().and_then(|backup| backup.drill.as_ref());
    let took = drill.filter(|drill| drill.succeeded).map_or_else(
        || "How long it takes is not known: no drill on a schedule has succeeded".to_owned(),
        |drill| {
            format!(
                "The last drill took {} s",
                (drill.end_time - drill.start_time).num_seconds()
            )
        },
    );
    let name = facts.wanted.name;
    format!(
        "it would be made from {from}. It would lack {lost}. All {} instances would stop; the first would recover on a new volume, and the \
         others copy it. The volumes of before would be kept for kubectl cdb undo-recovery {name}, until kubectl cdb confirm-recovery \
         {name}. {took}. Nothing was changed",
        facts.wanted.replicas()
    )
}

/// What becomes of one that undoes it.
pub(super) fn undo(facts: &Facts<'_>, uid: &str) -> Option<Progress> {
    let sets = facts.status.memo.volumes.clone().unwrap_or_default();
    if sets.request != uid {
        let Some(former) = sets.former else {
            return Some(Progress::Ends(RequestOutcome::GivenUp, NOTHING_KEPT.to_owned()));
        };
        if facts.primary().is_none() {
            let why = "no primary serves that could stop cleanly: wait for one".to_owned();
            return Some(Progress::Ends(RequestOutcome::GivenUp, why));
        }
        if facts.lease?.former_set != Some(former) {
            let why =
                format!("the Lease was made again, and does not know any more who has the newest data of set {former}");
            return Some(Progress::Ends(RequestOutcome::GivenUp, why));
        }
        let back = VolumeSets {
            next: Some(former),
            request: uid.to_owned(),
            failure: None,
            ..sets.clone()
        };
        let why = format!("set {former} of the volumes is to be used again");
        return is_free(&sets).then_some(Progress::Changes(StatusChange::SetVolumes(back), why));
    }
    let primary = facts.primary().filter(|_| sets.next.is_none())?;
    let name = facts.wanted.name;
    let why = format!(
        "{} serves what was before the recovery; the volumes of the recovery are kept until kubectl cdb confirm-recovery {name}",
        primary.name
    );
    Some(Progress::Ends(RequestOutcome::Done, why))
}

const NOTHING_KEPT: &str = "no volumes are kept from a recovery in place";

/// What becomes of one that confirms it.
pub(super) fn confirm(facts: &Facts<'_>, uid: &str) -> Option<Progress> {
    let sets = facts.status.memo.volumes.clone().unwrap_or_default();
    if sets.request != uid {
        let Some(former) = sets.former else {
            return Some(Progress::Ends(RequestOutcome::GivenUp, NOTHING_KEPT.to_owned()));
        };
        facts.primary()?;
        let given_up = VolumeSets {
            request: uid.to_owned(),
            failure: None,
            ..given_up(&sets, former)
        };
        let why = format!("set {former} of the volumes is given up");
        return is_free(&sets).then_some(Progress::Changes(StatusChange::SetVolumes(given_up), why));
    }
    let why = "the other volumes are deleted".to_owned();
    sets.discarded
        .is_none()
        .then_some(Progress::Ends(RequestOutcome::Done, why))
}

/// That a set of volumes of before is kept, and how to end that.
pub(super) fn kept(facts: &Facts<'_>) -> Option<String> {
    let sets = sets(facts)?;
    let (former, name) = (sets.former?, facts.wanted.name);
    let until = sets
        .keep_until
        .map_or_else(String::new, |until| format!(" until {}", until.format("%FT%TZ")));
    Some(format!(
        "set {former} of the volumes is kept from before{until}: kubectl cdb confirm-recovery {name} deletes it, kubectl cdb undo-recovery \
         {name} goes back to it"
    ))
}
