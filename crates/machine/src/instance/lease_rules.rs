//! Taking the lease again and renewing it. Releasing it belongs to [`super::shutdown`], taking another member's to
//! [`super::election`].
//!
//! The member that held the lease last may always take it again: it has every acknowledged write, in every mode.

use std::borrow::Cow;

use api::status::DurabilityMode;

use super::context::{Context, Tenure};
use super::{Action, Database, Draft, Mode, Process, Purpose, Verdict};
use super::{election, loss, members, rejoin, shutdown};
use crate::lease_object::LeaseContent;
use crate::protocol::{Epoch, Fork, HolderRecord, LeaseRecord, MemberReport, MemberState, Position, Release, Timeline};
use crate::quorum::SyncRule;

/// For so long after a release the last holder leaves the lease to members that streamed from it, in milliseconds: longer
/// than they leave it to a chosen successor among them.
const HANDBACK: u64 = 4_000;

/// The new content of the Lease that `record` was read from.
pub(super) struct Write<'a> {
    pub record: &'a LeaseRecord,
    pub holder: Option<HolderRecord>,
    pub epoch: Epoch,
    pub system_id: Option<String>,
    pub release: Option<Release>,
    pub rule: SyncRule,
    pub timeline: Option<Timeline>,
    pub lossy: Option<Timeline>,
    pub purpose: Purpose,
}

impl<'a> Write<'a> {
    /// All as it is on record.
    pub(super) fn renewal(record: &'a LeaseRecord) -> Self {
        Self {
            record,
            holder: record.holder.clone(),
            epoch: record.epoch,
            system_id: record.system_id.clone(),
            release: record.release.clone(),
            rule: record.rule.clone(),
            timeline: record.timeline,
            lossy: record.lossy,
            purpose: Purpose::Renew,
        }
    }
    pub(super) fn action(self, context: &Context, draft: &mut Draft) -> Action {
        let (reports, positions) = members::view(context, draft);
        Action::WriteLease {
            content: Box::new(LeaseContent {
                uid: self.record.uid.clone(),
                version: self.record.version.clone(),
                holder: self.holder,
                duration: context.timing().lease,
                epoch: self.epoch,
                system_id: self.system_id,
                release: self.release,
                rule: self.rule,
                timeline: self.timeline,
                lossy: self.lossy,
                history: history(context, self.record),
                members: reports,
                positions,
            }),
            purpose: self.purpose,
            timing: context.timing(),
        }
    }
}

/// The newest part of the history of the timeline that is written here, or of what is on record.
fn history(context: &Context, record: &LeaseRecord) -> Vec<Fork> {
    let known = if context.accepting() {
        &context.observed.postgres.history
    } else {
        &record.history
    };
    known[known.len().saturating_sub(rejoin::FORKS)..].to_vec()
}

/// Keeps the lease, before anything else; at once when what it says about the holder has changed, or about a member. News of members
/// wait for the next renewal while nobody is served: in a takeover all have some, and each write costs time there.
pub(super) fn renew(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let record = context.record()?;
    let held = match context.tenure() {
        Tenure::Held { .. } => true,
        Tenure::Lapsed => false,
        Tenure::OwnBefore(_) | Tenure::Other(_) | Tenure::Vacant | Tenure::Unknown => return None,
    };
    if shutdown::may_release(context, draft) || draft.memo.gives_way.is_some() {
        return None;
    }
    let timing = context.timing();
    let sent = context.observed.lease.confirmed.map(|confirmed| confirmed.sent);
    let due = sent.map_or(context.now, |sent| sent.plus(timing.renew));
    let accepted = loss::is_accepted(context, record);
    let used_up = record.epoch.next().filter(|_| accepted).unwrap_or(record.epoch);
    let epoch = used_up.max(promised_above(context));
    let holder = holder(context, record)?;
    let because: Cow<'static, str> = if !held {
        "the Lease names this run, but it was not renewed in time".into()
    } else if context.now >= due {
        "the lease is due for renewal".into()
    } else if accepted {
        "a loss is accepted in this epoch, and there is none: the epoch is raised, so that it is not accepted later"
            .into()
    } else if epoch > record.epoch {
        "a member has promised a higher epoch: it is taken up, so that it may follow again".into()
    } else if record.holder.as_ref() != Some(&holder) {
        match (
            holder.serving,
            record.holder.as_ref().is_some_and(|before| before.serving),
        ) {
            (true, false) => "this member serves writes now",
            (false, true) => "this member does not serve writes any more",
            _ => "this member has something new to tell of itself",
        }
        .into()
    } else if record.duration != timing.lease {
        "the lease's duration was changed".into()
    } else if let Some(pod) = members::changed(context, draft).filter(|_| context.serving()) {
        format!("{pod} has something new to tell").into()
    } else {
        draft.wake(due);
        return None;
    };
    if !is_free(context, draft) {
        return None;
    }
    let write = Write {
        epoch,
        holder: Some(holder),
        ..Write::renewal(record)
    };
    Verdict::new(write.action(context, draft), because)
}

/// The highest epoch that a member, or this one, has promised (protocol.md rule 7).
pub(super) fn promised_above(context: &Context) -> Epoch {
    let own = context.promise().map(|promise| promise.epoch);
    let peers = context.observed.peers.values().map(|peer| peer.promised);
    peers.chain(own).max().unwrap_or_default()
}

/// Takes the lease, if this member's data was the last to be written or is the very first.
pub(super) fn take(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let record = context.record()?;
    let basis = basis(context, record, draft)?;
    let database = context.database()?;
    // A standby may run: it writes nothing.
    let stands_by = context.running() == Some(Mode::Standby) && context.starting().is_none() && !context.writable();
    if !is_free(context, draft) || !context.knows_data() || !(stands_by || context.at_rest()) {
        return None;
    }
    let write = Write {
        holder: Some(new_holder(context)?),
        epoch: record.epoch.next()?.max(promised_above(context)),
        system_id: Some(database.system_id.clone()),
        release: None,
        rule: rule_again(context, record),
        timeline: timeline_again(context, record, database)?,
        purpose: Purpose::Take,
        ..Write::renewal(record)
    };
    Verdict::new(write.action(context, draft), basis)
}

/// As it is on record. In a Lease that was made again that is a guess: its names may lack what was acknowledged before, unless commits
/// are to wait for somebody in any case. Elections count by a rule again when its names have flushed all (protocol.md rule 10).
fn rule_again(context: &Context, record: &LeaseRecord) -> SyncRule {
    let mode = context.cluster().map(|cluster| cluster.durability.mode);
    if record.is_made_again() && mode != Some(DurabilityMode::Required) {
        return SyncRule::default();
    }
    record.rule.clone()
}

/// A primary's data goes on with its timeline. A promotion that was not finished is begun again with another number
/// (protocol.md rule 14); `None` if there is none.
fn timeline_again(context: &Context, record: &LeaseRecord, database: &Database) -> Option<Option<Timeline>> {
    let primarys = context.at_rest() && database.primary;
    if primarys && record.timeline.is_none_or(|reserved| database.timeline == reserved) {
        return Some(record.timeline);
    }
    let replayed = context
        .position()
        .map_or(database.timeline, |position| position.timeline);
    election::next_timeline(record, database.timeline.max(replayed)).map(Some)
}

/// Why this run may take the lease now.
fn basis(context: &Context, record: &LeaseRecord, draft: &mut Draft) -> Option<&'static str> {
    let cluster = context.cluster()?;
    // A Lease behind the status is an old view of it, or was put back by somebody: either way it decides nothing.
    if cluster.epoch.is_some_and(|seen| seen > record.epoch) {
        return None;
    }
    match context.tenure() {
        Tenure::Vacant if is_first(context, record) => Some("this volume holds the first database, made by the grant"),
        Tenure::Vacant if context.was_last_holder() && context.is_our_data() => {
            let others_first = context.observed.lease.holder_since.plus(HANDBACK);
            if others_could(context, record) && context.now < others_first {
                draft.wake(others_first);
                return None;
            }
            Some("this member released the lease itself, and nobody else has taken it")
        }
        Tenure::OwnBefore(holder) if context.is_our_data() => {
            let fresh = context.observed.lease.confirmed.is_none();
            if context.is_own_pod(holder) && fresh {
                return Some("the holder was an earlier run in this pod: its processes are gone with its container");
            }
            let expiry = context.expires_at()?;
            if context.now >= expiry {
                return Some("the holder was an earlier pod on this volume, and its lease has run out");
            }
            draft.wake(expiry);
            None
        }
        Tenure::Vacant
        | Tenure::OwnBefore(_)
        | Tenure::Held { .. }
        | Tenure::Lapsed
        | Tenure::Other(_)
        | Tenure::Unknown => None,
    }
}

/// Some other member followed when the lease was released; its stream may have ended with what the release was for.
fn others_could(context: &Context, record: &LeaseRecord) -> bool {
    let own = &context.observed.own.pod;
    let follows = |report: &MemberReport| {
        matches!(report.state, MemberState::Streaming | MemberState::CatchingUp) && !report.is_silent()
    };
    record.members.iter().any(|(pod, report)| pod != own && follows(report))
}

/// The Lease was never held, nothing is recorded anywhere, and the data here was made by the grant for this cluster.
fn is_first(context: &Context, record: &LeaseRecord) -> bool {
    let (Some(cluster), Some(volume)) = (context.cluster(), context.volume()) else {
        return false;
    };
    let untouched = record.epoch == Epoch(0) && record.system_id.is_none() && record.release.is_none();
    let made_here = volume.made_for.as_ref() == Some(&cluster.uid);
    untouched
        && cluster.system_id.is_none()
        && made_here
        && super::bootstrap::is_granted(context)
        && context.database().is_some()
}

/// This run, when it takes the lease.
pub(super) fn new_holder(context: &Context) -> Option<HolderRecord> {
    Some(HolderRecord {
        incarnation: context.incarnation()?,
        address: context.observed.own.address.clone(),
        timeline: None,
        serving: false,
    })
}

/// This run, as the Lease shall describe it.
pub(super) fn holder(context: &Context, record: &LeaseRecord) -> Option<HolderRecord> {
    let serving = context.serving();
    let position = context.observed.postgres.answer.and_then(|answer| answer.position);
    let timeline = position
        .filter(|_| context.accepting())
        .map(|position| position.timeline);
    let before = record.holder.as_ref().and_then(|holder| holder.timeline);
    Some(HolderRecord {
        incarnation: context.incarnation()?,
        address: context.observed.own.address.clone(),
        timeline: timeline.or(before),
        serving,
    })
}

/// A write of the Lease may begin now. Failures are repeated soon: the fence deadline does not wait.
pub(super) fn is_free(context: &Context, draft: &mut Draft) -> bool {
    let longest = context.timing().renew / 2;
    context.is_free(&context.tasks().lease, longest, draft)
}

/// Hands the lease back: nothing of PostgreSQL lives here that could write. What is left is the end of the WAL, if it is
/// known: after a clean stop, or of a standby that was not promoted, also if its server has ended since.
pub(super) fn release(context: &Context, draft: &mut Draft, successor: Option<String>) -> Option<Verdict> {
    let record = context.record()?;
    let member = context.member()?.id.clone();
    if !is_free(context, draft) {
        return None;
    }
    let position = match context.observed.postgres.process {
        Process::Running { .. } => Some(context.final_position()?),
        Process::Stopped { exit } => {
            let read = context.volume()?.read;
            if exit.is_some_and(|exit| read < exit.at) {
                return None;
            }
            let end = context.database().filter(|database| database.clean).map(end_of);
            end.or(draft.memo.inherited)
        }
    };
    let because = match position {
        Some(_) => "nothing writes here any more: the lease is handed back with the last position",
        None => "nothing writes here any more: the lease is handed back",
    };
    let write = Write {
        holder: None,
        release: Some(Release {
            member,
            position,
            successor,
        }),
        purpose: Purpose::Release,
        ..Write::renewal(record)
    };
    Verdict::new(write.action(context, draft), because)
}

fn end_of(database: &Database) -> Position {
    Position {
        timeline: database.timeline,
        lsn: database.checkpoint,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use super::*;
    use crate::protocol::{FAULT_SILENT, Lsn, Position, Timeline};
    use crate::timing::{BootTime, Timing};

    fn decided(observed: &Observed, now: u64) -> Decision {
        decide(observed, &settled(), BootTime(now))
    }

    fn content(decision: &Decision) -> (&LeaseContent, Purpose) {
        match &decision.action {
            Action::WriteLease { content, purpose, .. } => (content, *purpose),
            other => panic!("{other:?} ({})", decision.because),
        }
    }

    #[test]
    fn a_lease_that_was_made_again_is_taken_under_a_rule_that_is_known_to_hold() {
        let mut observed = restarted();
        let own = record(&mut observed).holder.take().unwrap().incarnation.member;
        make_again(&mut observed, own);
        record(&mut observed).rule = SyncRule::any(1, [third()]);
        data(&mut observed).written = Lsn(0x180);
        for mode in [
            DurabilityMode::Async,
            DurabilityMode::Preferred,
            DurabilityMode::Required,
        ] {
            cluster(&mut observed).durability.mode = mode;
            let decision = decided(&observed, 1_001);
            let (content, purpose) = content(&decision);
            assert_eq!(
                (purpose, content.positions["orders-0"].lsn),
                (Purpose::Take, Lsn(0x180))
            );
            let waits = mode == DurabilityMode::Required;
            assert_eq!(
                content.rule.is_synchronous(),
                waits,
                "{mode:?}: what was acknowledged may be on no other"
            );
        }
    }

    #[test]
    fn the_first_database_takes_an_untouched_lease() {
        let decision = decided(&made_first(), 1_000);
        let (content, purpose) = content(&decision);
        assert_eq!((content.epoch, purpose), (Epoch(1), Purpose::Take));
        assert_eq!(content.system_id.as_deref(), Some(SYSTEM_ID));
    }

    #[test]
    fn the_first_take_needs_every_part_of_the_proof() {
        let spoil: [fn(&mut Observed); 9] = [
            |o| cluster(o).grant = None,
            |o| cluster(o).grant.as_mut().unwrap().claim_uid = "other".to_owned(),
            |o| cluster(o).system_id = Some(SYSTEM_ID.to_owned()),
            |o| cluster(o).epoch = Some(Epoch(3)),
            |o| record(o).system_id = Some(SYSTEM_ID.to_owned()),
            |o| record(o).epoch = Epoch(1),
            |o| volume(o).made_for = Some("other cluster".to_owned()),
            |o| volume(o).data = Data::Unknown,
            |o| o.lease.record = Reading::Missing,
        ];
        for (index, spoil) in spoil.iter().enumerate() {
            let mut observed = made_first();
            spoil(&mut observed);
            assert_ne!(decided(&observed, 1_000).rule, "take", "{index}");
        }
    }

    #[test]
    fn a_new_run_in_the_same_pod_takes_over_at_once() {
        let mut observed = restarted();
        let decision = decided(&observed, 1);
        assert_eq!(
            (content(&decision).0.epoch, content(&decision).1),
            (Epoch(2), Purpose::Take)
        );
        record(&mut observed).system_id = Some("another".to_owned());
        assert_eq!(
            decided(&observed, 1).action,
            Action::Wait,
            "never on data of another system"
        );
    }

    #[test]
    fn the_lease_holds_the_newest_part_of_a_long_history() {
        let mut observed = primary();
        let forks = 1..=u32::try_from(rejoin::FORKS).unwrap() + 7;
        observed.postgres.history = forks
            .map(|timeline| Fork {
                timeline: Timeline(timeline),
                end: crate::protocol::Lsn(u64::MAX - u64::from(timeline)),
            })
            .collect();
        match decided(&observed, 3_000).action {
            Action::WriteLease { content, .. } => {
                assert_eq!(content.history, observed.postgres.history[7..]);
                let annotation = serde_json::to_string(&content.history).unwrap();
                assert!(
                    annotation.len() < 32 << 10,
                    "an object's annotations may be 256 KiB together"
                );
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_lease_behind_the_status_is_not_taken() {
        let mut observed = restarted();
        cluster(&mut observed).epoch = Some(Epoch(2));
        assert_eq!(decided(&observed, 1).action, Action::Wait, "it is an old one");
    }

    #[test]
    fn the_shorter_fence_counts_while_the_times_change() {
        let promised_short: fn(&mut Observed) = |o| o.lease.confirmed.as_mut().unwrap().timing.fence = 3_000;
        let wanted_short: fn(&mut Observed) = |o| cluster(o).timing.fence = 3_000;
        for change in [promised_short, wanted_short] {
            let mut observed = primary();
            change(&mut observed);
            assert_ne!(decided(&observed, 3_999).rule, "fence");
            assert_eq!(decided(&observed, 4_000).rule, "fence");
        }
    }

    #[test]
    fn a_promotion_that_was_begun_is_not_begun_again_under_its_number() {
        let mut observed = elected();
        assert_eq!(decided(&observed, 1_200).rule, "promote");
        volume(&mut observed).promise.as_mut().unwrap().promoting = Some(Timeline(2));
        assert_ne!(decided(&observed, 1_200).rule, "promote");
    }

    #[test]
    fn a_new_pod_on_the_volume_waits_until_the_lease_has_run_out() {
        let mut observed = restarted();
        observed.own.pod_uid = "new pod".to_owned();
        observed.lease.changed = BootTime(500);
        let early = decided(&observed, 10_499);
        assert_eq!((&early.action, early.wake), (&Action::Wait, Some(BootTime(10_500))));
        assert_eq!(content(&decided(&observed, 10_500)).1, Purpose::Take);
        record(&mut observed).duration = 60_000;
        assert_eq!(
            decided(&observed, 10_500).action,
            Action::Wait,
            "the holder was promised a longer lease"
        );
    }

    #[test]
    fn a_run_that_once_held_the_lease_does_not_take_a_later_run_for_a_dead_one() {
        let mut observed = restarted();
        observed.lease.confirmed = Some(Confirmed {
            epoch: Epoch(1),
            sent: BootTime(0),
            timing: Timing::DEFAULT,
        });
        assert_eq!(decided(&observed, 1_000).action, Action::Wait);
    }

    /// A new run of the member that released the lease; nobody else followed.
    fn released() -> Observed {
        let mut observed = restarted();
        let record = record(&mut observed);
        let member = record.holder.take().unwrap().incarnation.member;
        record.release = Some(Release {
            member,
            position: None,
            successor: None,
        });
        record.members.remove("orders-1");
        observed
    }

    fn taken(observed: &Observed, memo: &Memo) -> Option<LeaseContent> {
        match decide(observed, memo, BootTime(1_000)).action {
            Action::WriteLease {
                content,
                purpose: Purpose::Take,
                ..
            } => Some(*content),
            _ => None,
        }
    }

    #[test]
    fn a_timeline_is_gone_on_with_only_by_the_data_of_its_primary() {
        for (primary, reserved, timeline) in [
            (true, None, None),
            (true, Some(1), Some(1)),
            (true, Some(2), Some(3)),
            (false, Some(1), Some(2)),
        ] {
            let mut observed = released();
            record(&mut observed).timeline = reserved.map(Timeline);
            data(&mut observed).primary = primary;
            let content = taken(&observed, &settled()).unwrap();
            assert_eq!(content.timeline, timeline.map(Timeline), "{primary} {reserved:?}");
            let holder = content.holder.unwrap();
            assert_eq!((holder.incarnation.run.as_str(), holder.serving), ("run-2", false));
            assert_eq!(content.release, None, "it counts no more");
        }
    }

    #[test]
    fn a_released_lease_is_taken_beside_a_standby_and_nothing_else() {
        let follows = || Observed {
            postgres: standby().postgres,
            ..released()
        };
        assert_eq!(taken(&follows(), &settled()).unwrap().timeline, Some(Timeline(2)));
        type Spoil = fn(&mut Observed);
        let promoted: Spoil = |o| o.postgres.answer.as_mut().unwrap().in_recovery = false;
        let starting: Spoil = |o| o.tasks.start.running = Some(Work::StartStandby);
        let writing: Spoil = |o| o.tasks.lease.running = Some(Work::WriteLease);
        let strays: Spoil = |o| o.postgres.strays = 1;
        let unread: Spoil = |o| {
            let exit = Exit {
                at: BootTime(950),
                ran: 90_000,
                asked: true,
            };
            o.postgres.process = Process::Stopped { exit: Some(exit) };
        };
        let spoilt = [
            (follows(), promoted),
            (follows(), starting),
            (follows(), writing),
            (released(), strays),
            (released(), unread),
            (released(), writing),
        ];
        for (index, (mut observed, spoil)) in spoilt.into_iter().enumerate() {
            spoil(&mut observed);
            // What is to be killed is being killed.
            let stopping = Some(Stopping {
                stop: Stop::Kill,
                since: BootTime(1_000),
            });
            let memo = Memo { stopping, ..settled() };
            assert_eq!(taken(&observed, &memo), None, "{index}");
        }
    }

    #[test]
    fn news_of_the_holder_are_written_at_once() {
        type Change = fn(&mut Observed);
        let cases: [(Change, &str); 3] = [
            (
                |o| record(o).holder.as_mut().unwrap().serving = false,
                "this member serves writes now",
            ),
            (
                |o| o.postgres.open = false,
                "this member does not serve writes any more",
            ),
            (
                |o| o.own.address = "10.0.0.9".to_owned(),
                "this member has something new to tell of itself",
            ),
        ];
        for (change, words) in cases {
            let mut observed = primary();
            change(&mut observed);
            let decision = decided(&observed, 1_100);
            assert_eq!((decision.rule, decision.because.as_ref()), ("renew", words));
            let context = Context::new(&observed, BootTime(1_100));
            let told = holder(&context, context.record().unwrap());
            assert_eq!(content(&decision).0.holder, told);
        }
    }

    #[test]
    fn only_the_member_that_released_takes_a_released_lease() {
        let mut observed = restarted();
        let member = volume(&mut observed).member.as_ref().unwrap().id.clone();
        record(&mut observed).holder = None;
        record(&mut observed).release = Some(Release {
            member,
            position: None,
            successor: None,
        });
        // A member that streamed from it comes first.
        assert_ne!(decided(&observed, HANDBACK - 1).rule, "take");
        assert_eq!(content(&decided(&observed, HANDBACK)).1, Purpose::Take);
        record(&mut observed).members.get_mut("orders-1").unwrap().state = MemberState::CatchingUp;
        assert_ne!(decided(&observed, HANDBACK - 1).rule, "take");
        let gone: [fn(&mut MemberReport); 2] = [
            |report| report.fault = Some(FAULT_SILENT.to_owned()),
            |report| report.state = MemberState::Stopped,
        ];
        for gone in gone {
            let mut observed = observed.clone();
            gone(record(&mut observed).members.get_mut("orders-1").unwrap());
            assert_eq!(content(&decided(&observed, 1)).1, Purpose::Take);
        }
        record(&mut observed).members.remove("orders-1");
        assert_eq!(content(&decided(&observed, 1)).1, Purpose::Take);
        record(&mut observed).release.as_mut().unwrap().member = other_holder().incarnation.member;
        assert_ne!(decided(&observed, 1_000_000).rule, "take");
    }

    #[test]
    fn a_member_without_a_running_standby_takes_nothing_however_long_the_holder_is_silent() {
        let mut observed = standby();
        observed.postgres.process = Process::Stopped { exit: None };
        for now in [1, 20_000, 10_000_000] {
            assert!(!matches!(decided(&observed, now).action, Action::WriteLease { .. }));
        }
    }

    #[test]
    fn renewals_come_before_anything_else_and_keep_the_epoch() {
        let observed = primary();
        let decision = decided(&observed, 1_000 + Timing::DEFAULT.renew);
        let (content, purpose) = content(&decision);
        assert_eq!((content.epoch, purpose), (Epoch(1), Purpose::Renew));
        assert_eq!(content.version, "7");
        let quiet = decided(&observed, 1_000 + Timing::DEFAULT.renew - 1);
        assert_eq!(
            (&quiet.action, quiet.wake),
            (&Action::Wait, Some(BootTime(1_000 + Timing::DEFAULT.renew)))
        );
    }

    #[test]
    fn a_holder_raises_its_epoch_at_once_to_what_a_member_has_promised() {
        let mut observed = primary();
        observed.peers.get_mut("orders-1").unwrap().promised = Epoch(5);
        let decision = decided(&observed, 1_100);
        let (written, purpose) = content(&decision);
        assert_eq!((written.epoch, purpose), (Epoch(5), Purpose::Renew));
        assert_eq!(written.timeline, record(&mut observed).timeline, "on the same timeline");
    }

    #[test]
    fn a_renewal_in_flight_is_not_doubled_and_a_failed_one_is_repeated_soon() {
        let mut observed = primary();
        observed.tasks.lease.running = Some(Work::WriteLease);
        assert_eq!(decided(&observed, 3_500).action, Action::Wait);
        observed.tasks.lease = Task {
            failures: 1,
            ended: BootTime(3_400),
            ..Task::default()
        };
        assert_eq!(decided(&observed, 3_500).wake, Some(BootTime(3_600)));
        assert_eq!(decided(&observed, 3_600).rule, "renew");
        (observed.tasks.lease.failures, observed.tasks.lease.ended) = (10, BootTime(2_500));
        let soon = BootTime(2_500 + Timing::DEFAULT.renew / 2);
        assert_eq!(decided(&observed, 3_200).wake, Some(soon), "however often it failed");
    }

    #[test]
    fn a_changed_report_is_published_at_once_and_a_position_with_the_next_renewal() {
        let mut observed = primary();
        let peer = observed.peers.get_mut("orders-1").unwrap();
        peer.position = Some(Position {
            timeline: Timeline(1),
            lsn: Lsn(999),
        });
        assert_eq!(decided(&observed, 1_500).action, Action::Wait);
        observed.peers.get_mut("orders-1").unwrap().report.pending_restart = true;
        let decision = decided(&observed, 1_500);
        let (content, _) = content(&decision);
        assert!(content.members["orders-1"].pending_restart);
        assert_eq!(content.positions["orders-1"].lsn, Lsn(999));
        observed.postgres.open = false;
        record(&mut observed).holder.as_mut().unwrap().serving = false;
        let decision = decided(&observed, 1_500);
        assert_ne!(
            decision.rule, "renew",
            "nobody is served: it waits for the next renewal"
        );
        let due = decided(&observed, 1_000 + crate::timing::Timing::DEFAULT.renew);
        assert_eq!(due.rule, "renew");
    }

    #[test]
    fn a_loss_that_is_accepted_while_there_is_none_is_used_up() {
        let mut observed = primary();
        cluster(&mut observed).accepted_loss = Some(Epoch(1));
        let decision = decide(&observed, &settled(), BootTime(1_200));
        let Action::WriteLease { content, purpose, .. } = &decision.action else {
            panic!("{decision:?}")
        };
        assert_eq!((*purpose, content.epoch), (Purpose::Renew, Epoch(2)));
        record(&mut observed).epoch = Epoch(2);
        let decision = decide(&observed, &settled(), BootTime(1_200));
        assert!(
            !matches!(decision.action, Action::WriteLease { .. }),
            "once: {decision:?}"
        );
    }

    #[test]
    fn after_a_fence_the_holder_renews_its_old_lease_and_starts_again() {
        let mut observed = primary();
        observed.postgres.process = Process::Stopped {
            exit: Some(Exit {
                at: BootTime(7_100),
                ran: 9_000,
                asked: true,
            }),
        };
        observed.postgres.answer = None;
        volume(&mut observed).read = BootTime(7_200);
        let decision = decided(&observed, 20_000);
        assert_eq!(
            (content(&decision).0.epoch, content(&decision).1),
            (Epoch(1), Purpose::Renew)
        );
        observed.lease.confirmed = Some(Confirmed {
            epoch: Epoch(1),
            sent: BootTime(20_000),
            timing: Timing::DEFAULT,
        });
        record(&mut observed).holder.as_mut().unwrap().serving = false;
        observed.tasks.lease.running = Some(Work::WriteLease);
        assert!(matches!(
            decided(&observed, 20_010).action,
            Action::StartPrimary {
                until: BootTime(26_000),
                ..
            }
        ));
    }
}
