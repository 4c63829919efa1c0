//! The holder's work: start PostgreSQL for writing, point `-rw` at it, admit members.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::context::Context;
use super::crash::may_start;
use super::identity::is_sound;
use super::lease_rules::{self, Write};
use super::memo::Change;
use super::recovery::{self, Way};
use super::{Action, Draft, Purpose, Route, Rule, Verdict, election, members, room, settings, standby};
use crate::protocol::{Epoch, Incarnation, LeaseRecord, MemberId, MemberState, Timeline};

/// Longest wait between failed tries, in milliseconds.
const RETRY: u64 = 2_000;

pub(super) const PROMOTE: Rule = Rule {
    name: "promote",
    family: "primary",
    what: "Promotes the elected standby to the timeline that the Lease reserves for it.",
    protocol: &[13, 14],
    decide: promote,
};

/// Promotes the standby of a member that was elected, to the timeline that the Lease reserves for it (protocol.md rules 13, 14).
fn promote(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let (epoch, until) = context.held()?;
    let record = context.record()?;
    let timeline = record.timeline?;
    let own = context.electable_position()?.timeline;
    if is_spent(timeline, own, context.promise()?.promoting) || context.stop_intended() {
        return None;
    }
    if !context.is_free(&context.tasks().start, RETRY, draft) || !room::may_be_promoted(context, draft) {
        return None;
    }
    let action = Action::Promote {
        epoch,
        until,
        timeline,
        rule: record.rule.clone(),
        members: followers(context, record, epoch, own),
    };
    Verdict::new(
        action,
        format!(
            "this member was elected, and timeline {} is reserved for it",
            timeline.0
        ),
    )
}

/// Of the rule's names those that may stream as soon as this member, whose WAL is of timeline `own`, is promoted (protocol.md rule 6).
///
/// A standby that has heard of nothing since this member was primary before, and was rewound since, streams from here by itself, before
/// its agent knows of this epoch: PostgreSQL serves it if the fork is in its last segment, and counts all that it says it has, which is
/// more. Without a slot it does not. So at once only those get one who have promised this epoch, and stream when their agent has looked
/// at their data; and those that had WAL of `own`: whoever wrote that, this member has all that they got from there.
fn followers(context: &Context, record: &LeaseRecord, epoch: Epoch, own: Timeline) -> BTreeSet<MemberId> {
    let promises = context.observed.promises.values().map(|promised| &promised.reply);
    let promised = promises
        .filter(|reply| reply.promised >= epoch)
        .map(|reply| &reply.member);
    let with = record.positions.iter().filter(|(_, position)| position.timeline == own);
    let with = with.filter_map(|(pod, _)| Some(&record.members.get(pod)?.member));
    let known = promised.chain(with);
    known
        .filter(|member| record.rule.names.contains(*member))
        .cloned()
        .collect()
}

/// The number was used: this member's WAL is of it, or a promotion to it was begun here. One that was begun to a lower number
/// says nothing of this one.
fn is_spent(timeline: Timeline, own: Timeline, begun: Option<Timeline>) -> bool {
    own >= timeline || begun.is_some_and(|begun| begun >= timeline)
}

pub(super) const RESERVE_AGAIN: Rule = Rule {
    name: "reserve-again",
    family: "primary",
    what: "Reserves another timeline when a promotion to the reserved one was begun and has not finished.",
    protocol: &[14],
    decide: reserve_again,
};

/// Reserves another timeline when a promotion to the one on record was begun and not finished: a number is used once
/// (protocol.md rule 14).
fn reserve_again(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    context.held()?;
    let record = context.record()?;
    let own = context.final_position()?.timeline;
    let begun = context.promise()?.promoting;
    let spent = record.timeline.is_none_or(|timeline| is_spent(timeline, own, begun));
    let busy = context.tasks().start.running.is_some();
    if !spent || busy || !room::may_be_promoted(context, draft) || !lease_rules::is_free(context, draft) {
        return None;
    }
    let reserved = election::next_timeline(record, own)?.max(begun.map_or(Some(own), Timeline::next)?);
    let write = Write {
        epoch: record.epoch.next()?,
        timeline: Some(reserved),
        purpose: Purpose::Take,
        ..Write::renewal(record)
    };
    Verdict::new(
        write.action(context, draft),
        "a promotion to the reserved timeline was begun and not finished: another one is reserved",
    )
}

/// A primary's data on the timeline that is reserved for the holder: it may be written without a promotion.
fn is_primarys(context: &Context) -> bool {
    let reserved = context.record().and_then(|record| record.timeline);
    context
        .database()
        .is_some_and(|database| database.primary && reserved.is_none_or(|reserved| database.timeline == reserved))
}

pub(super) const START_TO_PROMOTE: Rule = Rule {
    name: "start-to-promote",
    family: "primary",
    what: "Starts the holder's PostgreSQL as a standby, because its data is a standby's and must be promoted.",
    protocol: &[13],
    decide: start_to_promote,
};

/// The holder's data is a standby's: it is started as one, to be promoted.
fn start_to_promote(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    context.held()?;
    if is_primarys(context) || !is_sound(context) || context.stop_intended() || !may_start(context, draft) {
        return None;
    }
    let settings = settings::to_start_with(context)?;
    let upstream = None;
    Verdict::new(
        Action::StartStandby {
            upstream,
            settings,
            was_primary: context.volume()?.was_primary,
        },
        "this member holds the lease, and its data is a standby's: it is to be promoted",
    )
}

pub(super) const START_PRIMARY: Rule = Rule {
    name: "start-primary",
    family: "primary",
    what: "Starts PostgreSQL for writing while the lease is held, on data of the reserved timeline.",
    protocol: &[13, 15],
    decide: start,
};

/// Starts PostgreSQL for writing: only while the lease is held now, and only on the data that the Lease names.
fn start(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let (epoch, until) = context.held()?;
    if !is_primarys(context) || !is_sound(context) || !may_start(context, draft) {
        return None;
    }
    let settings = settings::to_start_with(context)?;
    let because = match recovery::of(context, draft.memo) {
        Some(Way::InPlace(why) | Way::GiveWay(why)) => format!("this member holds the lease: {why}").into(),
        None => Cow::from("this member holds the lease"),
    };
    Verdict::new(
        Action::StartPrimary {
            epoch,
            until,
            settings,
            rule: context.record()?.rule.clone(),
        },
        because,
    )
}

pub(super) const ROUTE: Rule = Rule {
    name: "route",
    family: "primary",
    what: "Points the Service `-rw` at this member when it starts or is promoted for writing.",
    protocol: &[],
    decide: route,
};

/// Points `-rw` at this member, in one write, as soon as it starts or is promoted for writing: clients are refused here until
/// it opens, as they were there, and the proxies of the nodes, which take up to a second, work meanwhile.
fn route(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let (epoch, _) = context.held()?;
    let address = &context.observed.own.address;
    let wanted = Route {
        address: address.clone(),
        epoch,
    };
    let writes_soon = context.writable() && draft.memo.stopping.is_none();
    if !writes_soon || context.observed.route.as_ref() == Some(&wanted) {
        return None;
    }
    if !context.is_free(&context.tasks().route, RETRY, draft) {
        return None;
    }
    Verdict::new(
        Action::Route {
            address: wanted.address,
            epoch,
        },
        "this member holds the lease, and is or becomes the primary",
    )
}

/// Whether nobody who held the lease wrote an EndpointSlice with a higher epoch than `epoch`, the one of `holder`.
/// `lease` must have been read after that EndpointSlice: each holder writes the Lease before it, and epochs only grow.
pub fn is_route_forged(lease: &LeaseRecord, holder: &Incarnation, epoch: Epoch) -> bool {
    let held_by = lease.holder.as_ref().map(|record| &record.incarnation);
    lease.epoch == epoch && held_by == Some(holder)
}

pub(super) const ADMIT: Rule = Rule {
    name: "admit",
    family: "primary",
    what: "Makes the replication role and slot of a member that reports and has none here.",
    protocol: &[1, 3, 6],
    decide: admit,
};

/// Makes the replication role and slot of a member that reports now (the slot of one that is away would keep WAL until it is lost,
/// again and again), unless it is forgotten: its slot would keep WAL for ever. A standby that runs has promised this epoch before
/// ([`followers`]).
fn admit(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let (epoch, _) = context.held()?;
    if !context.accepting() {
        return None;
    }
    let listed = members::reports(context, draft);
    let peers = &context.observed.peers;
    let new = peers
        .iter()
        .filter(|(_, peer)| context.now.since(peer.heard) < members::SILENT)
        .filter(|(_, peer)| {
            let runs = matches!(peer.report.state, MemberState::Streaming | MemberState::CatchingUp);
            !runs || peer.promised >= epoch
        })
        .find(|(pod, peer)| listed.contains_key(*pod) && !context.observed.admitted.contains(&peer.report.member));
    let (pod, peer) = new?;
    if !context.is_free(&context.tasks().admit, RETRY, draft) {
        return None;
    }
    let action = Action::Admit {
        member: peer.report.member.clone(),
    };
    Verdict::new(
        action,
        format!("{pod} reports as a member that has no replication slot here"),
    )
}

pub(super) const DROP_SLOTS: Rule = Rule {
    name: "drop-slots",
    family: "primary",
    what: "Drops replication slots of members that no longer exist, and all slots here when this member follows another.",
    protocol: &[3],
    decide: drop_slots,
};

/// Drops the slots of members that are no more: they would keep WAL for ever. Once per set of members, and again until
/// none of them is in use.
fn drop_slots(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    if has_followed(context) {
        return drop_all_slots(context, draft);
    }
    context.held()?;
    if !context.accepting() {
        return None;
    }
    let reports = members::reports(context, draft);
    let keep: BTreeSet<MemberId> = reports.into_values().map(|report| report.member).collect();
    let task = &context.tasks().admit;
    if draft.memo.kept.as_ref() == Some(&keep) && task.failures == 0 {
        return None;
    }
    if !context.is_free(task, RETRY, draft) {
        return None;
    }
    let change = Change::KeepsSlots(keep.clone());
    Verdict::noting(Action::DropSlots { keep }, "the set of members has changed", [change])
}

/// It follows another member, which has become primary.
fn has_followed(context: &Context) -> bool {
    let promoted = standby::upstream(context).filter(|holder| holder.timeline.is_some());
    promoted.is_some_and(|holder| standby::follows(context, holder)) && context.starting().is_none()
}

/// Drops the slots that a former primary, or one that was not promoted, still has for the others. Nobody streams from here: they keep
/// WAL for ever, and a standby tells its primary the oldest transaction that any of its slots knows, so that no row which has been
/// deleted since would be removed anywhere.
fn drop_all_slots(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    if context.observed.postgres.slots.is_empty() || !context.is_free(&context.tasks().admit, RETRY, draft) {
        return None;
    }
    let keep = BTreeSet::new();
    Verdict::new(
        Action::DropSlots { keep },
        "this member follows another one, and keeps WAL for nobody",
    )
}

#[cfg(test)]
mod tests;
