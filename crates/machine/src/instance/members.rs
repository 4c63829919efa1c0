//! What the holder writes into the Lease about all members.

use std::collections::BTreeMap;

use super::facts::{Context, is_wanted};
use super::{Draft, Memo, Peer, own};
use crate::protocol::{FAULT_SILENT, MemberId, MemberReport, Position};
use crate::timing::BootTime;
use crate::units::Millis;

/// How long without a report until a member counts as silent: five reports at one a second.
pub(super) const SILENT: Millis = Millis::seconds(5);
/// How long until a silent member that is no longer wanted is forgotten.
const FORGOTTEN: Millis = Millis::seconds(10);

/// Reports and positions of all members, as the Lease should have them.
pub(super) fn view(
    context: &Context,
    draft: &mut Draft,
) -> (BTreeMap<String, MemberReport>, BTreeMap<String, Position>) {
    let reports = reports(context, draft);
    let mut positions: BTreeMap<String, Position> = reports
        .keys()
        .filter_map(|pod| {
            let reported = heard(context, draft.memo).find(|(heard, _)| *heard == pod);
            let reported = reported.and_then(|(_, peer)| peer.position);
            let recorded = context.record().and_then(|record| record.positions.get(pod).copied());
            Some((pod.clone(), reported.or(recorded)?))
        })
        .collect();
    let answered = context.observed.postgres.answer.and_then(|answer| answer.position);
    if let Some(position) = answered.or_else(|| on_volume(context)) {
        positions.insert(context.observed.own.pod.clone(), position);
    }
    (reports, positions)
}

/// Where the WAL on this member's volume ends, if neither PostgreSQL nor the Lease, which was made again, can say. A
/// member that may be elected next must know what it lacks.
fn on_volume(context: &Context) -> Option<Position> {
    context.record().filter(|record| record.is_made_again())?;
    let database = context.database()?;
    Some(Position {
        timeline: database.timeline,
        lsn: database.written.max(database.checkpoint),
    })
}

/// A pod whose entry in the Lease is outdated.
pub(super) fn changed(context: &Context, draft: &mut Draft) -> Option<String> {
    let recorded = &context.record()?.members;
    let wanted = reports(context, draft);
    let new = wanted
        .iter()
        .find(|(pod, report)| recorded.get(*pod) != Some(report))
        .map(|(pod, _)| pod);
    let gone = || recorded.keys().find(|pod| !wanted.contains_key(*pod));
    new.or_else(gone).cloned()
}

pub(super) fn reports(context: &Context, draft: &mut Draft) -> BTreeMap<String, MemberReport> {
    let own = &context.observed.own.pod;
    let mut reports = context
        .record()
        .map(|record| record.members.clone())
        .unwrap_or_default();
    for (pod, peer) in heard(context, draft.memo) {
        reports.insert(pod.clone(), peer.report.clone());
    }
    reports.retain(|pod, report| pod == own || keep(context, draft, pod, report));
    if let Some(report) = own::own(context) {
        reports.insert(own.clone(), report);
    }
    reports
}

/// True if a wanted pod other than this one belongs to `member`, by its report to this holder or by the Lease.
pub(super) fn is_known(context: &Context, memo: &Memo, member: &MemberId) -> bool {
    let own = &context.observed.own.pod;
    let heard = || heard(context, memo).map(|(pod, peer)| (pod, &peer.report.member));
    let recorded = context.record().into_iter().flat_map(|record| &record.members);
    let recorded = recorded.filter(|(pod, _)| heard().all(|(reported, _)| reported != *pod));
    let known = recorded.map(|(pod, report)| (pod, &report.member)).chain(heard());
    let mut pods = known.filter(|(_, name)| *name == member).map(|(pod, _)| pod);
    pods.any(|pod| pod != own && is_wanted(context, pod))
}

/// Members that have reported since this run holds the lease. Reports from an earlier tenure are older than the Lease,
/// which another holder wrote in between.
pub(super) fn heard<'a>(context: &Context<'a>, memo: &Memo) -> impl Iterator<Item = (&'a String, &'a Peer)> + use<'a> {
    let since = memo.holding_since.unwrap_or(context.now);
    let peers = context.observed.peers.iter();
    peers.filter(move |(_, peer)| peer.heard >= since)
}

/// Marks a silent member; returns `false` for a silent one that is no longer wanted.
fn keep(context: &Context, draft: &mut Draft, pod: &str, report: &mut MemberReport) -> bool {
    let heard = context.observed.peers.get(pod).map_or(BootTime(0), |peer| peer.heard);
    let since = draft.memo.holding_since.unwrap_or(context.now).max(heard);
    if is_gone(context, pod, since) {
        return false;
    }
    let wanted = is_wanted(context, pod);
    if context.now >= since.plus(SILENT) {
        report.fault = Some(FAULT_SILENT.to_owned());
        if !wanted {
            draft.wake(since.plus(FORGOTTEN));
        }
    } else {
        draft.wake(since.plus(SILENT));
    }
    true
}

/// True if the pod is not wanted and was heard too long ago to wait for it.
pub(super) fn is_gone(context: &Context, pod: &str, heard: BootTime) -> bool {
    !is_wanted(context, pod) && context.now >= heard.plus(FORGOTTEN)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use super::*;

    fn members_at(observed: &Observed, now: u64) -> BTreeMap<String, MemberReport> {
        let memo = Memo {
            holding_since: Some(BootTime(0)),
            ..Memo::default()
        };
        let mut draft = Draft::new(&memo);
        reports(&Context::new(observed, BootTime(now)), &mut draft)
    }

    #[test]
    fn a_silent_member_is_marked_and_comes_back() {
        let observed = primary();
        assert_eq!(members_at(&observed, 5_999)["orders-1"].fault, None);
        assert_eq!(
            members_at(&observed, 6_000)["orders-1"].fault.as_deref(),
            Some(FAULT_SILENT)
        );
        let mut heard = observed;
        heard.peers.get_mut("orders-1").unwrap().heard = BootTime(5_900);
        assert_eq!(members_at(&heard, 6_000)["orders-1"].fault, None);
    }

    #[test]
    fn reports_from_an_earlier_tenure_replace_nothing() {
        let views = |since: u64| {
            let mut observed = primary();
            let lease = record(&mut observed);
            lease.members.get_mut("orders-1").unwrap().pod_uid = "newer".to_owned();
            let newer = Position {
                lsn: crate::protocol::Lsn(0x999),
                ..position()
            };
            lease.positions.insert("orders-1".to_owned(), newer);
            let memo = Memo {
                holding_since: Some(BootTime(since)),
                ..Memo::default()
            };
            let mut draft = Draft::new(&memo);
            let (reports, positions) = view(&Context::new(&observed, BootTime(1_100)), &mut draft);
            (reports["orders-1"].pod_uid.clone(), positions["orders-1"] == newer)
        };
        assert_eq!(views(1_000), ("pod-1".to_owned(), false));
        assert_eq!(views(1_001), ("newer".to_owned(), true), "heard before that");
    }

    #[test]
    fn a_holder_describes_itself_as_it_is_now() {
        let mut observed = primary();
        observed.postgres.version = Some("17.6".to_owned());
        let own = &members_at(&observed, 1_100)["orders-0"];
        assert_eq!(own.server_version.as_deref(), Some("17.6"));
    }

    #[test]
    fn a_silent_member_causes_a_wake_up_only_to_be_forgotten() {
        let wakes = |replicas: u32| {
            let mut observed = primary();
            cluster(&mut observed).replicas = replicas;
            let memo = Memo {
                holding_since: Some(BootTime(0)),
                ..Memo::default()
            };
            let mut draft = Draft::new(&memo);
            reports(
                &Context::new(&observed, BootTime(1_000).plus(super::SILENT)),
                &mut draft,
            );
            draft.wake
        };
        assert_eq!((wakes(3), wakes(1)), (None, Some(BootTime(1_000).plus(FORGOTTEN))));
    }

    #[test]
    fn only_a_member_that_is_no_longer_wanted_is_forgotten() {
        let mut observed = primary();
        assert!(members_at(&observed, 60_000).contains_key("orders-1"));
        cluster(&mut observed).replicas = 1;
        assert!(members_at(&observed, 10_999).contains_key("orders-1"));
        assert!(!members_at(&observed, 11_000).contains_key("orders-1"));
    }

    #[test]
    fn a_new_holder_gives_members_time_to_report_before_it_calls_them_silent() {
        let mut observed = primary();
        observed.peers.clear();
        let memo = Memo {
            holding_since: Some(BootTime(50_000)),
            ..Memo::default()
        };
        let mut draft = Draft::new(&memo);
        let reports = reports(&Context::new(&observed, BootTime(50_100)), &mut draft);
        assert_eq!(reports["orders-1"].fault, None);
        assert_eq!(draft.wake, Some(BootTime(55_000)));
    }
}
