//! The holder's work: start PostgreSQL for writing, point `-rw` at it, admit members.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::crash::may_start;
use super::facts::Context;
use super::facts::following::{follows, to_start_with, upstream};
use super::identity::is_sound;
use super::lease_rules::{self, Write};
use super::memo::Change;
use super::recovery::{self, Way};
use super::{Action, Draft, OnBackoff, Purpose, Route, Rule, RuleKind, Verdict, members, room};
use crate::protocol::{Epoch, Incarnation, LeaseRecord, MemberId, MemberState, Timeline};
use crate::units::Millis;

/// Longest back-off between failed tries.
const RETRY: Millis = Millis::seconds(2);

pub(super) const PROMOTE: Rule = Rule {
    name: "promote",
    family: "primary",
    what: "Promotes the elected standby to the timeline that the Lease reserves for it.",
    protocol: &[13, 14],
    kind: RuleKind::Act,
    decide: promote,
    on_backoff: OnBackoff::Yield,
};

/// Promotes the standby of an elected member to the timeline that the Lease reserves for it (protocol.md rules 13, 14).
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

/// The names of the rule that may stream as soon as this member, whose WAL is of timeline `own`, is promoted
/// (protocol.md rule 6).
///
/// A standby that last followed an earlier tenure of this member, which was rewound since, may connect again before its
/// agent knows of this epoch. If the fork is in its last segment, PostgreSQL serves it and counts all WAL that it
/// reports, which is more than this member has. Without a slot it cannot stream.
///
/// So only these members get a slot at once: those that have promised this epoch, whose agents have compared their data
/// before they stream; and those with WAL of `own`, because this member has all WAL that they got from its writer.
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

/// True if the number was used: this member's WAL is of that timeline, or a promotion to it was begun here. A promotion
/// to a lower number does not matter.
fn is_spent(timeline: Timeline, own: Timeline, begun: Option<Timeline>) -> bool {
    own >= timeline || begun.is_some_and(|begun| begun >= timeline)
}

pub(super) const RESERVE_AGAIN: Rule = Rule {
    name: "reserve-again",
    family: "primary",
    what: "Reserves another timeline when a promotion to the reserved one was begun and has not finished.",
    protocol: &[14],
    kind: RuleKind::Act,
    decide: reserve_again,
    on_backoff: OnBackoff::Yield,
};

/// Reserves another timeline, because a number is used only once (protocol.md rule 14).
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
    let reserved = lease_rules::next_timeline(record, own)?.max(begun.map_or(Some(own), Timeline::next)?);
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

/// True if the data is a primary's on the timeline that is reserved for the holder: it may be written without a
/// promotion.
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
    kind: RuleKind::Act,
    decide: start_to_promote,
    on_backoff: OnBackoff::Yield,
};

fn start_to_promote(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    context.held()?;
    if is_primarys(context) || !is_sound(context) || context.stop_intended() || !may_start(context, draft) {
        return None;
    }
    let settings = to_start_with(context)?;
    let upstream = None;
    Verdict::new(
        Action::StartStandby {
            upstream,
            settings,
            was_primary: context.volume()?.was_primary,
        },
        "this member holds the lease, and its data is a standby's: it must be promoted",
    )
}

pub(super) const START_PRIMARY: Rule = Rule {
    name: "start-primary",
    family: "primary",
    what: "Starts PostgreSQL for writing while the lease is held, on data of the reserved timeline.",
    protocol: &[13, 15],
    kind: RuleKind::Act,
    decide: start,
    on_backoff: OnBackoff::Yield,
};

/// Only while the lease is held, and only on the data that the Lease names.
fn start(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let (epoch, until) = context.held()?;
    if !is_primarys(context) || !is_sound(context) || !may_start(context, draft) {
        return None;
    }
    let settings = to_start_with(context)?;
    let because = match recovery::of(context, draft.memo) {
        Some(Way::InPlace(why) | Way::StepDown(why)) => format!("this member holds the lease: {why}").into(),
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
    kind: RuleKind::Act,
    decide: route,
    on_backoff: OnBackoff::Yield,
};

/// Writes the route once, as soon as the member starts or is promoted for writing. Until it opens, clients are refused
/// here as they were at the old address. Meanwhile the proxies of the nodes, which take up to a second, do their work.
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

/// True if no holder of the lease wrote an EndpointSlice with a higher epoch than `epoch`, the epoch of `holder`.
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
    kind: RuleKind::Act,
    decide: admit,
    on_backoff: OnBackoff::Yield,
};

/// Admits only a member that reports now and is not forgotten: the slot of an absent member would keep WAL until
/// PostgreSQL invalidates it, again and again; that of a forgotten one would keep WAL for ever. A running standby must
/// have promised this epoch before ([`followers`]).
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
    kind: RuleKind::Act,
    decide: drop_slots,
    on_backoff: OnBackoff::Yield,
};

/// Drops the slots of members that no longer exist, because they would keep WAL for ever. Once per set of members, and
/// again until none of them is in use.
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

/// True if this member follows another one, which has become primary.
fn has_followed(context: &Context) -> bool {
    let promoted = upstream(context).filter(|holder| holder.timeline.is_some());
    promoted.is_some_and(|holder| follows(context, holder)) && context.starting().is_none()
}

/// Drops the slots that a former primary, or one that was not promoted, still has for the others. No member streams
/// from here, so they keep WAL for ever. A standby also reports the oldest transaction of its slots to its primary, so
/// that dead rows could not be removed anywhere.
fn drop_all_slots(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    if context.observed.postgres.slots.is_empty() || !context.is_free(&context.tasks().admit, RETRY, draft) {
        return None;
    }
    let keep = BTreeSet::new();
    Verdict::new(
        Action::DropSlots { keep },
        "this member follows another one, and keeps WAL for no other",
    )
}

#[cfg(test)]
mod tests;
