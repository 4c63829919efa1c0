//! The deletion of all backups and WAL with the database (`spec.backup.onDelete.data`). The primary's agent does it while PostgreSQL still
//! runs, since nobody else speaks to the store.

use api::names::ANNOTATION_DELETE_ARCHIVE;
use api::spec::ArchiveFate;
use api::status::WaitReason;

use super::action::DeletionStep;
use super::decision::Step;
use super::deletion;
use super::facts::Facts;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};

/// See [`Rule::what`].
pub const DELETE_ARCHIVE: Rule = Rule {
    name: "delete-archive",
    family: "deletion",
    what: "If spec.backup.onDelete.data is Delete, all backups and WAL in the store are deleted before PostgreSQL stops, once an annotation with the UID confirms that.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: delete_archive,
    on_backoff: OnBackoff::Hold,
};

const LET_GO: &str = "to keep what is in the store, set spec.backup.onDelete.data to Retain";

/// The spec asks for it, and it is not done.
fn is_asked(facts: &Facts<'_>) -> bool {
    let backup = facts.wanted.spec.backup.as_ref();
    let on_delete = backup.and_then(|backup| backup.on_delete.as_ref());
    let asked = on_delete.is_some_and(|on_delete| on_delete.data == ArchiveFate::Delete);
    let is_done = [DeletionStep::Archive, DeletionStep::Stopped]
        .into_iter()
        .any(|step| deletion::done(facts, step));
    facts.wanted.deleting && asked && !is_done && facts.bootstrapped() && !deletion::is_set_foreign(facts)
}

/// True while the primary's agent is to delete (`status.intent.deleteArchive`).
pub(super) fn is_to_delete(facts: &Facts<'_>) -> bool {
    let begun = facts.status.intent.delete_archive;
    if !facts.wanted.deleting || facts.observed.namespace_terminating {
        return false;
    }
    // Nothing is archived any more once it has begun, until PostgreSQL has stopped.
    let confirmed = is_asked(facts) && facts.wanted.deletes_archive && !facts.status.intent.stop;
    begun || (confirmed && !facts.observed.namespace_unread)
}

fn delete_archive(facts: &Facts<'_>) -> Option<Proposal> {
    if !is_asked(facts) {
        return None;
    }
    let by_user = |what: &'static str, who: String| {
        Proposal::wait(
            facts,
            Step::Removing,
            WaitReason::ArchiveDeletionConfirmation,
            what,
            who,
        )
    };
    if facts.status.intent.stop || deletion::nothing_runs(facts) {
        let what = "the user's decision about backups and WAL: no instance runs that could delete them";
        return by_user(what, format!("the user: {LET_GO}, and delete the objects by hand"));
    }
    if !facts.wanted.deletes_archive {
        let confirm = format!(
            "the user: kubectl annotate clustereddatabase {} {ANNOTATION_DELETE_ARCHIVE}={}; {LET_GO}",
            facts.wanted.name, facts.wanted.uid
        );
        return by_user(
            "the user to confirm that all backups and WAL are to be deleted",
            confirm,
        );
    }
    if facts.observed.namespace_unread {
        return Proposal::unread(facts, Step::Removing, "the namespace");
    }
    let archive = facts.archive();
    if archive.is_some_and(|archive| archive.deleted) {
        return deletion::record(DeletionStep::Archive, "all backups and WAL in the store are deleted");
    }
    let fault = archive.and_then(|archive| archive.fault.as_ref());
    let what = format!(
        "all backups and WAL in the store to be deleted{}",
        fault.map(|fault| format!(": {fault}")).unwrap_or_default()
    );
    let who = format!("the agents; {LET_GO}");
    Proposal::wait(facts, Step::Removing, WaitReason::ArchiveDeletion, what, who)
}

#[cfg(test)]
mod tests;
