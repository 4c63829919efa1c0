//! Taking the lease by an election (protocol.md rules 9 and 12): the decision rule `win-election`. With the decision
//! rule `take`, in `instance/lease_rules.rs`, the last holder takes the lease again without an election.

use std::borrow::Cow;
use std::fmt;

use super::ranking::{counted, ranked, reserved, unheard};
use super::release::{RETURN, SUCCESSION, covers_release, is_left_whole, may_succeed};
use super::suspicion::suspicion;
use super::{GONE, PAUSE, is_behind_status};
use crate::instance::facts::Context;
use crate::instance::facts::promises::is_kept;
use crate::instance::lease_rules::{self, Write, next_timeline};
use crate::instance::{Draft, Memo, OnBackoff, Purpose, Rule, RuleKind, Verdict, loss};
use crate::protocol::{ASYNC_LOSS, Epoch, LeaseRecord, MemberId, Position};
use crate::quorum::SyncRule;
use crate::units::Millis;

/// How long a candidate of an asynchronous cluster waits for positions of members that do not answer.
pub(super) const MUSTER: Millis = Millis::seconds(1);

/// Why this member may take the lease by an election.
enum Basis {
    /// The holder left a final position, and this member has all WAL up to it.
    Covers,
    /// Enough names of the rule in the Lease have promised.
    Quorum,
    /// Too few names of the rule answer, the lease was released or has run out, and the user has accepted the possible
    /// loss.
    Accepted,
    /// Asynchronous: the lease was released or has run out, no member that answers has more WAL, and little is lost.
    Clock,
}

impl Basis {
    fn because(&self) -> &'static str {
        match self {
            Basis::Covers => "the holder has released the lease, and this member has all WAL that it wrote",
            Basis::Quorum => "enough members have promised, and none of them has more WAL",
            Basis::Accepted => {
                "the user accepts the loss of what missing members have, and no member that answers has more WAL"
            }
            Basis::Clock => "the lease is free, commits wait for no standby, and no member that answers has more WAL",
        }
    }

    /// True if this member may lack acknowledged commits.
    fn may_lose(&self) -> bool {
        match self {
            Basis::Covers | Basis::Quorum => false,
            Basis::Accepted | Basis::Clock => true,
        }
    }
}

/// Members with equal WAL, of which any may be elected; one of them is preferred (`spec.primary.prefer`).
enum Tie {
    /// This member is preferred.
    Preferred,
    /// This pod is preferred, and it has promised: it has [`PAUSE`] to take the lease before this member does.
    Behind(String),
}

impl Tie {
    fn of(context: &Context, record: &LeaseRecord, epoch: Epoch, own: Position) -> Option<Self> {
        let preferred = context.cluster()?.preferred.as_ref()?;
        if *preferred == context.observed.own.pod {
            return Some(Tie::Preferred);
        }
        let promised = context.observed.promises.get(preferred)?;
        let level = counted(record, epoch, &promised.reply) == Some(own);
        level.then(|| Tie::Behind(preferred.clone()))
    }
}

impl fmt::Display for Tie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tie::Preferred => f.write_str("spec.primary.prefer names it"),
            Tie::Behind(pod) => write!(
                f,
                "{pod}, which has as much WAL and is preferred, did not take it within {PAUSE} ms"
            ),
        }
    }
}

pub(in crate::instance) const WIN_ELECTION: Rule = Rule {
    name: "win-election",
    family: "election",
    what: "Takes the lease as an elected standby: by a covered release, enough promises, an accepted loss or the clock. Among members with equal WAL the preferred one goes first.",
    protocol: &[9, 12, 23],
    kind: RuleKind::Act,
    decide: win_election,
    on_backoff: OnBackoff::Yield,
};

/// On what basis this member may take the lease.
struct Candidacy {
    epoch: Epoch,
    /// Where its WAL ends.
    own: Position,
    basis: Basis,
    tie: Option<Tie>,
}

/// Remembers since when, and in which epoch, this member could have taken the lease but leaves it to the preferred
/// member, which has as much WAL.
pub(in crate::instance) fn remember_tie(context: &Context, memo: &mut Memo) {
    let Some(record) = context.record() else { return };
    let known = memo.tied.is_some_and(|(of, _)| of == record.epoch);
    let candidacy = || candidacy(context, record, &mut Draft::new(memo));
    if !known && candidacy().is_some_and(|candidacy| matches!(candidacy.tie, Some(Tie::Behind(_)))) {
        memo.tied = Some((record.epoch, context.now));
    }
}

/// On what basis this member may take the lease now. The precedence of the preferred member is not applied yet.
fn candidacy(context: &Context, record: &LeaseRecord, draft: &mut Draft) -> Option<Candidacy> {
    let epoch = record.epoch.next()?;
    if context.promise()?.epoch != epoch || !is_kept(context) || context.stop_intended() || context.observed.terminating
    {
        return None;
    }
    suspicion(context, draft)?;
    let own = reserved(record, context.electable_position()?)?;
    let basis = basis(context, draft, record, epoch, own)?;
    if !context.is_our_data() || is_behind_status(context, record) || !lease_rules::is_free(context, draft) {
        return None;
    }
    let tie = Tie::of(context, record, epoch, own).filter(|_| !matches!(basis, Basis::Covers));
    Some(Candidacy { epoch, own, basis, tie })
}

/// Only as a running standby (protocol.md rules 9 and 12).
fn win_election(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let record = context.record()?;
    let Candidacy { epoch, own, basis, tie } = candidacy(context, record, draft)?;
    if let Some(Tie::Behind(_)) = tie {
        let (_, since) = draft.memo.tied.filter(|(of, _)| *of == record.epoch)?;
        if !context.reached(since.plus(PAUSE), draft) {
            return None;
        }
    }
    let timeline = Some(next_timeline(record, own.timeline)?);
    let write = Write {
        holder: Some(lease_rules::new_holder(context)?),
        epoch,
        release: None,
        rule: rule_at_take(record, &context.member()?.id),
        timeline,
        lossy: if basis.may_lose() { timeline } else { record.lossy },
        purpose: Purpose::Take,
        ..Write::renewal(record)
    };
    let because = tie.map_or(Cow::Borrowed(basis.because()), |tie| {
        format!("{}; {tie}", basis.because()).into()
    });
    Verdict::new(write.action(context, draft), because)
}

/// The same number, and all other members by name, including the old primary. Only later the number rises or a name
/// leaves, by protocol.md rule 10 (rule 12).
fn rule_at_take(record: &LeaseRecord, own: &MemberId) -> SyncRule {
    if !record.rule.is_synchronous() {
        return SyncRule::default();
    }
    let holder = record.holder.as_ref().map(|holder| &holder.incarnation.member);
    let released = record.release.as_ref().map(|release| &release.member);
    let reported = record.members.values().map(|report| &report.member);
    let names = record.rule.names.iter().chain(holder).chain(released).chain(reported);
    SyncRule::any(record.rule.required, names.filter(|name| *name != own).cloned())
}

fn basis(context: &Context, draft: &mut Draft, record: &LeaseRecord, epoch: Epoch, own: Position) -> Option<Basis> {
    if covers_release(record, Some(own)) {
        if may_succeed(context, record) {
            return Some(Basis::Covers);
        }
        draft.wake(context.observed.lease.holder_since.plus(SUCCESSION));
        return None;
    }
    let (answers, more) = ranked(context, record, epoch, own);
    let own_name = &context.member()?.id;
    let all_heard = unheard(record, answers.iter().copied(), own_name).is_empty();
    let enough = record.rule.is_synchronous() && record.rule.can_elect(answers.iter().copied().chain([own_name]));
    if let Some(better) = more
        && !context.reached(better.at.plus(GONE), draft)
    {
        // It could have taken the lease since, and has not: it may not reach the API server. Without a synchronous rule
        // it may have the only copy of a commit.
        let since = draft.memo.suspected?.1;
        if !(all_heard && enough && context.reached(since.plus(GONE), draft)) {
            return None;
        }
    }
    if !all_heard {
        return loss::goes_on(context, draft, record, epoch).then_some(Basis::Accepted);
    }
    if record.rule.is_synchronous() {
        if enough {
            return Some(Basis::Quorum);
        }
        return loss::goes_on(context, draft, record, epoch).then_some(Basis::Accepted);
    }
    if record.lacks(own) > ASYNC_LOSS {
        return loss::goes_on(context, draft, record, epoch).then_some(Basis::Accepted);
    }
    let holder = record.holder.as_ref().map(|holder| &holder.incarnation.member);
    let others = record.members.values().map(|report| &report.member);
    let mut awaited = others.filter(|member| *member != own_name && Some(*member) != holder);
    let all = awaited.all(|member| answers.contains(&member));
    let since = draft.memo.suspected?.1;
    let at = match all {
        _ if is_left_whole(record, own) => since.max(context.observed.lease.holder_since).plus(RETURN),
        true => since,
        false => since.plus(MUSTER),
    };
    context.reached(at, draft).then_some(Basis::Clock)
}

#[cfg(test)]
mod tests;
