//! Volumes that their members report as full: which they are, and how the user ends that.

use std::collections::BTreeSet;

use api::status::WaitActor;

use super::facts::{Facts, list, volumes};
use super::observed::Volume;
use crate::protocol::MemberReport;

/// The volumes that are full, each with the pod's ordinal. What a silent member said last does not count.
fn full<'a>(facts: &Facts<'a>) -> impl Iterator<Item = (u32, Volume)> + use<'a> {
    let facts = *facts;
    let reports = facts
        .pods()
        .iter()
        .filter_map(move |pod| Some((pod.ordinal, facts.report(pod)?)));
    let heard = reports.filter(|(_, report)| !report.is_silent());
    heard.flat_map(|(ordinal, report)| report.full.iter().map(move |volume| (ordinal, *volume)))
}

/// That volumes are full, as the beginning of a sentence; `None` if none is.
pub(super) fn which(facts: &Facts<'_>) -> Option<String> {
    let name = facts.wanted.name;
    let names: Vec<String> = full(facts)
        .map(|(ordinal, volume)| facts.claim_name(volume, &format!("{name}-{ordinal}")))
        .collect();
    (!names.is_empty()).then(|| format!("reported full: {}", list(names.iter().map(String::as_str))))
}

/// Nobody can serve before a volume has room: that of the member that holds the Lease has none, or nobody's has.
pub(super) fn is_awaited(facts: &Facts<'_>) -> bool {
    let is_full = |report: &MemberReport| !report.full.is_empty();
    let holder = facts.holder_pod().filter(|pod| !pod.does_not_run());
    let holders = holder.and_then(|pod| facts.report(pod));
    let all = || {
        let mut reports = facts.pods().iter().filter_map(|pod| facts.report(pod)).peekable();
        reports.peek().is_some() && reports.all(is_full)
    };
    holders.is_some_and(is_full) || all()
}

/// Who can end it, and how.
pub(super) fn way_out(facts: &Facts<'_>) -> (WaitActor, String) {
    let volumes: BTreeSet<Volume> = full(facts).map(|(_, volume)| volume).collect();
    let storage = &facts.wanted.spec.storage;
    let fields: Vec<String> = volumes
        .iter()
        .filter_map(|volume| match volume {
            Volume::Data => Some(format!("spec.storage.data.size (now {})", storage.data.size)),
            Volume::Wal => Some(format!("spec.storage.wal.size (now {})", storage.wal.as_ref()?.size)),
        })
        .collect();
    let fields = list(fields.iter().map(String::as_str));
    if volumes.iter().any(|volume| volumes::is_fixed(facts, *volume)) {
        let who = format!(
            "the cluster's administrator, by a StorageClass that lets these volumes grow; then the user, by raising {fields}"
        );
        return (WaitActor::External, who);
    }
    if !volumes::large_enough(facts) {
        let who = "the driver of their StorageClass, which is to make them larger: the spec asks for that";
        return (WaitActor::Storage, who.to_owned());
    }
    let who =
        format!("the user, by raising {fields}: the volumes grow where they are, and the database goes on by itself");
    (WaitActor::User, who)
}

#[cfg(test)]
mod tests;
