//! Everybody but the holder: copy the primary if there is no data, else follow it.

use super::context::{Context, Tenure};
use super::copying::Copied;
use super::crash::may_start;
use super::identity::{is_sound, volume_is_free};
use super::lineage::{Lineage, lineage};
use super::{Action, Data, Draft, Memo, Mode, Upstream, Verdict};
use super::{election, loss, settings, shutdown};
use crate::protocol::HolderRecord;
use crate::timing::BootTime;

/// So long after its start a standby that answers nobody is waited for before it is stopped to follow another primary, in
/// milliseconds: one whose data is nearly consistent answers by then, and takes the address up by a reload.
const MUTE: u64 = 5_000;

/// Longest wait between failed tries to end what is received, in milliseconds.
const RETRY: u64 = 1_000;

/// The primary to follow: another member that holds the lease.
pub(super) fn upstream<'a>(context: &Context<'a>) -> Option<&'a HolderRecord> {
    match context.tenure() {
        Tenure::Other(holder) => Some(holder),
        Tenure::Held { .. } | Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Vacant | Tenure::Unknown => None,
    }
}

/// The primary has said, in this epoch, that this member's role and slot exist.
pub(super) fn is_admitted(context: &Context) -> bool {
    let (Some(reply), Some(record)) = (&context.observed.reply, context.record()) else {
        return false;
    };
    let same_member = context.member().is_some_and(|member| member.id == reply.report.member);
    reply.admitted && reply.epoch == record.epoch && same_member
}

/// `holder`, to be followed in the epoch of the Lease; `None` while this member has promised a higher one, or what it has
/// promised cannot be read (protocol.md rules 2, 6 and 7).
pub(super) fn to_follow(context: &Context, holder: &HolderRecord) -> Option<Upstream> {
    let epoch = context.record()?.epoch;
    let promised = context.promise()?.epoch;
    (promised <= epoch).then(|| Upstream {
        address: holder.address.clone(),
        epoch,
    })
}

/// It follows `holder` already, in the epoch of the Lease.
pub(super) fn follows(context: &Context, holder: &HolderRecord) -> bool {
    let configured = context.running().and(context.observed.postgres.configured.as_ref());
    let followed = configured.and_then(|configured| configured.upstream.as_ref());
    followed.is_some() && followed == to_follow(context, holder).as_ref()
}

/// Copies the primary onto an empty volume.
pub(super) fn clone(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let primary = upstream(context)?;
    let volume = context.volume()?;
    let member = volume.member.as_ref()?;
    let system_id = context.record()?.system_id.clone()?;
    if volume.data != Data::Empty || member.certificate.is_none() || primary.timeline.is_none() || !is_admitted(context)
    {
        return None;
    }
    if context.alive() || context.stop_intended() || !volume_is_free(context, draft) {
        return None;
    }
    draft.memo.copied = Some(Copied::of(&primary.incarnation.member));
    let action = Action::Clone {
        upstream: primary.address.clone(),
        member: member.id.clone(),
        system_id,
    };
    Verdict::new(
        action,
        format!("the volume is empty and {} serves", primary.incarnation.pod),
    )
}

/// Starts PostgreSQL as standby. A member that held the lease last waits instead: it may hold it again.
pub(super) fn start(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let lineage = lineage(context);
    let (upstream, because) = match context.tenure() {
        Tenure::Other(holder) if lineage == Lineage::Follows => (
            to_follow(context, holder),
            format!("{} holds the lease", holder.incarnation.pod),
        ),
        Tenure::Other(holder) => (
            None,
            format!(
                "{} holds the lease; whether this member can follow it is known when it says where its WAL ends",
                holder.incarnation.pod
            ),
        ),
        Tenure::Vacant if !context.was_last_holder() => (None, "nobody holds the lease; reads are served".to_owned()),
        Tenure::Vacant | Tenure::Held { .. } | Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Unknown => return None,
    };
    let rewinding = context.volume().is_some_and(|volume| volume.rewinding);
    let (upstream, because) = match may_follow(context, lineage) {
        true => (upstream, because),
        false if is_needed(context, draft) => (
            None,
            "the primary is gone, and an election needs to know where this member's WAL ends".to_owned(),
        ),
        false => return None,
    };
    if rewinding || !is_sound(context) || !may_start(context, draft) {
        return None;
    }
    let settings = settings::to_start_with(context)?;
    let start = Action::StartStandby {
        upstream,
        settings,
        was_primary: lineage != Lineage::Follows && was_primary(context),
    };
    Verdict::new(start, because)
}

/// The data is a primary's, or was one's and has not been found since to be part of another primary's history.
pub(super) fn was_primary(context: &Context) -> bool {
    let noted = context.volume().is_some_and(|volume| volume.was_primary);
    noted || context.database().is_some_and(|database| database.primary)
}

/// Since when an election may need what this member has, though it was to be rewound: the primary is suspected. It has all that it ever
/// acknowledged, so its answer counts, and it may win (protocol.md rule 9). Where commits wait for nobody no other answer would
/// tell what it lacks: there only the user's word goes so far.
pub(super) fn needed_since(context: &Context, memo: &Memo) -> Option<BootTime> {
    let record = context.record()?;
    let counts = record.rule.is_synchronous() || loss::is_accepted(context, record);
    memo.suspected.filter(|_| counts).map(|(_, since)| since)
}

/// So it has been for a lease's duration: nobody may ever be there to rewind it to. It is started to say where it ends, and follows
/// nobody; a standby that has not streamed serves no reads.
fn is_needed(context: &Context, draft: &mut Draft) -> bool {
    let lease = context.timing().lease;
    needed_since(context, &draft.memo).is_some_and(|since| context.reached(since.plus(lease), draft))
}

/// Ends what a standby receives from a former primary, before it may follow the present one: only then its WAL has an end that
/// can be compared ([`super::lineage`]). It promises the present epoch for that. An emptied `primary_conninfo` would be no proof
/// (protocol.md rule 4).
pub(super) fn leave_former_primary(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let primary = upstream(context)?;
    let epoch = context.record()?.epoch;
    let answers = context.running() == Some(Mode::Standby) && context.position().is_some();
    if !answers || context.promise()?.epoch > epoch || lineage(context) != Lineage::Unknown {
        return None;
    }
    let followed = context.observed.postgres.configured.as_ref()?.upstream.as_ref();
    let receives = match followed {
        Some(followed) => followed.epoch < epoch,
        // A promise ended that, but did not see the WAL receiver end.
        None => !election::is_kept(context),
    };
    if !receives || draft.memo.stopping.is_some() || !context.is_free(&context.tasks().promise, RETRY, draft) {
        return None;
    }
    let because = format!(
        "{} is primary now, and may lack what the former primary still sends: nothing more is received from that one",
        primary.incarnation.pod
    );
    Verdict::new(Action::Promise { epoch }, because)
}

/// Stops a standby that answers nobody, as long as its data is not consistent, and waits for WAL of another than the primary: it would
/// wait for ever, and is started again, to follow the primary. Once for each primary: then it follows that one. (A promise since ends
/// that, see [`super::Observed::promised`].)
pub(super) fn stop_stranded(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let primary = upstream(context)?;
    let postgres = &context.observed.postgres;
    let standby = context.running() == Some(Mode::Standby) && context.starting().is_none();
    let mute = postgres.answer.is_none() && !postgres.streamed;
    let busy = context.tasks().configure.running.is_some() || context.stop_intended();
    if !standby || !mute || busy || lineage(context) != Lineage::Follows {
        return None;
    }
    let wanted = to_follow(context, primary)?;
    let followed = postgres.configured.as_ref()?.upstream.as_ref();
    let receives = followed.is_some_and(|followed| followed.address == wanted.address);
    if receives || !context.reached(context.tasks().start.ended.plus(MUTE), draft) {
        return None;
    }
    let because = format!(
        "its data is not consistent, and what it lacks only {} has now: it is started again, to follow it",
        primary.incarnation.pod
    );
    shutdown::stop(context, draft, because)
        .or_else(|| Verdict::wait("PostgreSQL is stopping, to follow the primary of now"))
}

/// Stops a standby whose WAL ends before its own timeline begins ([`Context::electable_position`]), when the primary is suspected: it
/// lost the primary while the new timeline's first segment came in. It can neither stand nor be counted with that; the agent removes
/// the segment before a start. Once for each suspicion.
pub(super) fn stop_torn(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let (_, since) = draft.memo.suspected?;
    let begins = context.observed.postgres.answer?.begins?;
    let position = context.final_position().filter(|position| position.lsn < begins)?;
    let tasks = context.tasks();
    if tasks.start.ended >= since || tasks.configure.running.is_some() || context.stop_intended() {
        return None;
    }
    let because = format!(
        "its WAL ends at {}, before its timeline {} begins: it is started again, without that timeline's first segment",
        position.lsn, position.timeline.0
    );
    shutdown::stop(context, draft, because)
        .or_else(|| Verdict::wait("PostgreSQL is stopping, to be elected or counted"))
}

/// A standby's data may always be started as one. A primary's only if it is known to be part of the new primary's history:
/// started before it is rewound, it could serve what nobody else has.
fn may_follow(context: &Context, lineage: Lineage) -> bool {
    match lineage {
        Lineage::Follows => true,
        Lineage::Diverged { .. } => false,
        Lineage::Unknown => context.database().is_some_and(|database| !database.primary),
    }
}

/// The data cannot follow the primary: it went another way, and is to be rewound.
pub(super) fn fault(context: &Context) -> Option<String> {
    let primary = upstream(context)?;
    match lineage(context) {
        Lineage::Diverged { timeline } => Some(format!(
            "the data went another way on timeline {}, the primary {} is on {}: it is to be rewound",
            timeline.0, primary.incarnation.pod, primary.timeline?.0
        )),
        Lineage::Follows | Lineage::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use crate::protocol::{Epoch, Lsn, Position, Release, Timeline};
    use crate::timing::BootTime;

    fn decided(observed: &Observed) -> Decision {
        decide(observed, &Memo::default(), BootTime(1_200))
    }

    #[test]
    fn an_admitted_member_with_a_certificate_clones() {
        let observed = cloning();
        match decided(&observed).action {
            Action::Clone {
                upstream, system_id, ..
            } => {
                assert_eq!((upstream.as_str(), system_id.as_str()), ("10.0.0.2", SYSTEM_ID));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_is_cloned_over_data_or_from_nobody() {
        let spoil: [fn(&mut Observed); 12] = [
            |o| o.tasks.start.running = Some(Work::StartStandby),
            |o| volume(o).data = Data::Unknown,
            |o| o.volume = Reading::Unknown,
            |o| o.lease.record = Reading::Unknown,
            |o| o.lease.record = Reading::Missing,
            |o| record(o).system_id = None,
            |o| record(o).holder.as_mut().unwrap().timeline = None,
            |o| record(o).holder = None,
            |o| record(o).epoch = Epoch(5),
            |o| o.reply.as_mut().unwrap().admitted = false,
            |o| cluster(o).stop = true,
            |o| o.tasks.volume.running = Some(Work::Clone),
        ];
        for (index, spoil) in spoil.iter().enumerate() {
            let mut observed = cloning();
            spoil(&mut observed);
            assert_ne!(decided(&observed).rule, "clone", "{index}");
        }
    }

    #[test]
    fn data_of_this_cluster_follows_the_holder() {
        let mut observed = standby();
        observed.postgres = stopped();
        let expected = Action::StartStandby {
            upstream: Some(Upstream {
                address: "10.0.0.2".to_owned(),
                epoch: Epoch(1),
            }),
            settings: SETTINGS.to_owned(),
            was_primary: false,
        };
        assert_eq!(decided(&observed).action, expected);
        record(&mut observed).holder.as_mut().unwrap().timeline = Some(Timeline(0));
        assert_ne!(decided(&observed).rule, "start standby", "it went another way");
    }

    #[test]
    fn data_whose_rewind_was_broken_off_is_not_started() {
        let mut observed = standby();
        observed.postgres = stopped();
        observed.reply = None;
        observed.tasks.report.running = Some(Work::Report);
        assert_eq!(decided(&observed).rule, "start standby");
        volume(&mut observed).rewinding = true;
        assert_eq!(decided(&observed).action, Action::Wait);
    }

    #[test]
    fn the_last_holder_waits_for_its_lease_instead_of_following() {
        let mut observed = restarted();
        observed.own.pod_uid = "new pod".to_owned();
        assert_eq!(decided(&observed).action, Action::Wait);
    }

    #[test]
    fn who_has_released_the_lease_waits_for_the_others_and_does_not_start() {
        let mut observed = restarted();
        let member = volume(&mut observed).member.as_ref().unwrap().id.clone();
        data(&mut observed).primary = false;
        record(&mut observed).holder = None;
        record(&mut observed).release = Some(Release {
            member,
            position: None,
            successor: None,
        });
        observed.lease.holder_since = BootTime(1_000);
        assert_eq!(decided(&observed).action, Action::Wait);
        record(&mut observed).release.as_mut().unwrap().member = third();
        assert_eq!(decided(&observed).rule, "start standby");
    }

    /// A former primary under `ANY 1`, up to 0x180 of timeline 1. The holder is on timeline 2, which began at 0x100; it was heard last at 1 s.
    fn former_primary() -> Observed {
        left_behind(voter(), 0x180, true)
    }

    /// [`SILENT`], and a lease later.
    const GONE: u64 = SILENT + crate::timing::Timing::DEFAULT.lease;

    fn suspects() -> Memo {
        Memo {
            suspected: Some((Epoch(1), BootTime(SILENT))),
            ..settled()
        }
    }

    /// Started as a standby its control file says so no more: it is noted before, until its data is part of the primary's history.
    #[test]
    fn that_the_data_was_a_primarys_is_noted_until_it_follows() {
        let noted = |primary: bool, was_primary: bool, end: u64, now: u64| {
            let mut observed = left_behind(voter(), end, primary);
            volume(&mut observed).was_primary = was_primary;
            match decide(&observed, &suspects(), BootTime(now)).action {
                Action::StartStandby { was_primary, .. } => was_primary,
                other => panic!("{other:?}"),
            }
        };
        assert!(noted(true, false, 0x180, GONE));
        assert!(noted(false, true, 0x180, GONE), "started again");
        assert!(!noted(false, false, 0x180, GONE), "a standby's as ever");
        assert!(!noted(false, true, 0x100, GONE), "it has been rewound");
        let mut elected = elected();
        elected.postgres = stopped();
        for was_primary in [true, false] {
            volume(&mut elected).was_primary = was_primary;
            let start = decided(&elected).action;
            assert!(
                matches!(start, Action::StartStandby { was_primary: noted, .. } if noted == was_primary),
                "{start:?}"
            );
        }
    }

    #[test]
    fn a_former_primary_says_where_its_wal_ends_when_there_is_nobody_to_rewind_it_to() {
        let observed = former_primary();
        assert_eq!(decided(&observed).rule, "rewind");
        let early = decide(&observed, &suspects(), BootTime(GONE - 1));
        assert_eq!(early.action, Action::Wait, "the primary may come back");
        assert!(early.wake.is_some_and(|wake| wake <= BootTime(GONE)));
        let gone = |observed: &Observed| decide(observed, &suspects(), BootTime(GONE)).action;
        let start = Action::StartStandby {
            upstream: None,
            settings: SETTINGS.to_owned(),
            was_primary: true,
        };
        assert_eq!(gone(&observed), start);
        let mut vacant = observed.clone();
        record(&mut vacant).holder = None;
        assert_eq!(gone(&vacant), start, "the lease was released, and nobody can take it");
        let mut unknown = observed.clone();
        record(&mut unknown).holder.as_mut().unwrap().timeline = None;
        assert_eq!(gone(&unknown), start, "the holder was lost before its promotion");
        let mut torn = observed.clone();
        volume(&mut torn).rewinding = true;
        assert!(!matches!(gone(&torn), Action::StartStandby { .. }));
        let mut heard = observed.clone();
        heard.contact.heard = Some(BootTime(GONE));
        assert!(matches!(gone(&heard), Action::Rewind { .. }), "it lives");
    }

    #[test]
    fn where_commits_wait_for_nobody_a_former_primary_replaces_the_holder_only_on_the_users_word() {
        let mut observed = former_primary();
        record(&mut observed).rule = crate::quorum::SyncRule::default();
        let late = BootTime(90_000);
        let memo = suspects();
        assert_eq!(decide(&observed, &memo, late).action, Action::Wait);
        cluster(&mut observed).accepted_loss = Some(Epoch(1));
        assert_eq!(decide(&observed, &memo, late).rule, "start standby");
    }

    #[test]
    fn a_standby_whose_new_timeline_was_torn_off_is_started_again_to_be_counted() {
        let mut observed = silenced();
        observed.postgres.answer.as_mut().unwrap().begins = Some(Lsn(u64::MAX));
        observed.tasks.ask.running = Some(Work::Ask);
        let rule = |observed: &Observed| decide(observed, &suspects(), BootTime(SILENT)).rule;
        assert_eq!(rule(&observed), "stop torn");
        let spoil: [fn(&mut Observed); 6] = [
            |o| o.contact.heard = Some(BootTime(SILENT)),
            |o| {
                let answer = o.postgres.answer.as_mut().unwrap();
                answer.begins = answer.position.map(|position| position.lsn);
            },
            |o| o.postgres.answer.as_mut().unwrap().begins = Some(Lsn(0)),
            |o| o.postgres.answer.as_mut().unwrap().received_all = false,
            |o| o.tasks.start.ended = BootTime(SILENT),
            |o| o.tasks.configure.running = Some(Work::Configure),
        ];
        for (index, spoil) in spoil.iter().enumerate() {
            let mut observed = observed.clone();
            spoil(&mut observed);
            assert_ne!(rule(&observed), "stop torn", "{index}");
        }
    }

    #[test]
    fn a_former_primary_is_counted_and_elected_by_its_position() {
        let mut observed = former_primary();
        observed.postgres = promised(2).postgres;
        volume(&mut observed).promise.as_mut().unwrap().epoch = Epoch(2);
        observed.tasks.ask.running = Some(Work::Ask);
        let answer = observed.postgres.answer.as_mut().unwrap();
        answer.position = Some(Position {
            timeline: Timeline(1),
            lsn: Lsn(0x180),
        });
        let decided = |observed: &Observed| decide(observed, &suspects(), BootTime(GONE));
        assert_eq!(
            decided(&observed).action,
            Action::Wait,
            "it is not stopped to be rewound"
        );
        let request = crate::protocol::PromiseRequest {
            epoch: Epoch(2),
            pod: "orders-2".to_owned(),
            lease: record(&mut observed).uid.clone(),
        };
        let answer = election::answer(&observed, BootTime(GONE), &request).unwrap();
        assert_eq!(answer.position, observed.postgres.answer.unwrap().position);
        let mut newer = observed.clone();
        third_answers(&mut newer, 2, Some(0x100));
        let third = newer.promises.get_mut("orders-2").unwrap();
        third.reply.position.as_mut().unwrap().timeline = Timeline(2);
        assert_eq!(decided(&newer).rule, "wait", "who has WAL of the lost primary has more");
        third_answers(&mut observed, 2, Some(0x180));
        match decided(&observed).action {
            Action::WriteLease { content, .. } => assert_eq!(content.timeline, Some(Timeline(3))),
            other => panic!("{other:?}"),
        }
    }

    /// A standby whose data is not consistent, started at 1 s to follow `orders-1`; `orders-2` is the primary now.
    fn stranded() -> Observed {
        let mut observed = standby();
        (observed.postgres.answer, observed.postgres.streamed) = (None, false);
        observed.tasks.start.ended = BootTime(1_000);
        observed.tasks.report.running = Some(Work::Report);
        let mut holder = other_holder();
        (holder.incarnation.member, holder.address) = (third(), "10.0.0.3".to_owned());
        holder.incarnation.pod = "orders-2".to_owned();
        hold_by(&mut observed, holder, 2);
        observed
    }

    #[test]
    fn a_standby_that_is_not_consistent_is_started_again_to_follow_another_primary() {
        let mut observed = stranded();
        // The primary lives.
        let decide = |observed: &Observed, memo: &Memo, now: BootTime| {
            let mut observed = observed.clone();
            observed.lease.changed = now;
            observed.contact.heard = Some(now);
            super::super::decide(&observed, memo, now)
        };
        let at = BootTime(1_000 + super::MUTE);
        let early = decide(&observed, &Memo::default(), BootTime(at.0 - 1));
        assert_eq!((early.action, early.wake), (Action::Wait, Some(at)));
        let stop = decide(&observed, &Memo::default(), at);
        assert_eq!((stop.rule, stop.action), ("stop stranded", Action::Stop(Stop::Fast)));
        let waits = decide(&observed, &stop.memo, at.plus(100));
        assert_eq!(waits.action, Action::Wait);
        let hangs = decide(&observed, &stop.memo, at.plus(20_000));
        assert_eq!(hangs.action, Action::Stop(Stop::Immediate));
        let mut ended = observed.clone();
        ended.postgres = stopped();
        let upstream = Upstream {
            address: "10.0.0.3".to_owned(),
            epoch: Epoch(2),
        };
        let expected = Action::StartStandby {
            upstream: Some(upstream.clone()),
            settings: SETTINGS.to_owned(),
            was_primary: false,
        };
        assert_eq!(decide(&ended, &stop.memo, at.plus(200)).action, expected);
        // It follows that one in an epoch of before; a promise since takes the credential away.
        let of_before = Upstream {
            epoch: Epoch(1),
            ..upstream.clone()
        };
        observed.postgres.configured.as_mut().unwrap().upstream = Some(of_before);
        assert_ne!(decide(&observed, &Memo::default(), at).rule, "stop stranded");
        observed.promised(Promise {
            epoch: Epoch(2),
            promoting: None,
        });
        assert_eq!(decide(&observed, &Memo::default(), at).rule, "stop stranded");
        // Now it follows that one, and is left alone however long it takes.
        observed.postgres.configured.as_mut().unwrap().upstream = Some(upstream);
        assert_eq!(
            decide(&observed, &Memo::default(), at.plus(90_000)).action,
            Action::Wait
        );
        observed.postgres.configured.as_mut().unwrap().upstream = None;
        assert_eq!(
            decide(&observed, &Memo::default(), at).rule,
            "stop stranded",
            "it follows nobody"
        );
    }

    #[test]
    fn only_a_standby_that_waits_for_a_former_primary_is_started_again() {
        let spoil: [fn(&mut Observed); 9] = [
            |o| o.postgres.answer = standby().postgres.answer,
            |o| o.postgres.streamed = true,
            |o| o.tasks.start.running = Some(Work::StartStandby),
            |o| o.tasks.configure.running = Some(Work::Configure),
            |o| record(o).holder.as_mut().unwrap().address = "10.0.0.2".to_owned(),
            |o| {
                record(o).holder.as_mut().unwrap().timeline = None;
                record(o).timeline = Some(Timeline(2));
            },
            |o| record(o).holder = None,
            |o| volume(o).promise.as_mut().unwrap().epoch = Epoch(3),
            |o| {
                let own = elected();
                (o.lease, o.tasks.lease) = (own.lease, own.tasks.lease);
            },
        ];
        for (index, spoil) in spoil.iter().enumerate() {
            let mut observed = stranded();
            spoil(&mut observed);
            let decision = decide(&observed, &Memo::default(), BootTime(1_000 + super::MUTE));
            assert!(!matches!(decision.action, Action::Stop(_)), "{index}: {decision:?}");
        }
    }

    #[test]
    fn a_new_address_of_the_holder_is_followed_by_a_reload() {
        let mut observed = standby();
        record(&mut observed).holder.as_mut().unwrap().address = "10.0.0.9".to_owned();
        let expected = Action::Configure {
            settings: SETTINGS.to_owned(),
            upstream: Some(Upstream {
                address: "10.0.0.9".to_owned(),
                epoch: Epoch(1),
            }),
        };
        assert_eq!(decided(&observed).action, expected);
    }
}
