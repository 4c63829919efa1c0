//! Suspecting the primary, promising, asking and being elected (protocol.md rules 4 to 9 and 12; design §4).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use api::names::LEASE_TIMELINE;

use super::context::{Context, Tenure};
use super::failsafe;
use super::heard;
use super::lease_rules::{self, Write};
use super::loss;
use super::observed::Promised;
use super::{Action, Draft, Memo, Mode, Observed, Purpose, Verdict};
use crate::protocol::{
    ASYNC_LOSS, Epoch, LeaseRecord, MemberId, Position, PromiseReply, PromiseRequest, Timeline, UNUSED,
};
use crate::quorum::SyncRule;
use crate::timing::BootTime;

/// For so long after it has stood still a member waits for news of the primary, in milliseconds: PostgreSQL and the primary's
/// agent are asked each second.
const NEWS: u64 = 1_500;
/// For so long the primary's agent must refuse connections before it counts as gone, in milliseconds: a port that opens
/// late in a new container is no dead process.
const REFUSED: u64 = 500;
/// So much longer a standby waits that may elect itself alone, in milliseconds: nobody else confirms what it suspects.
const ALONE: u64 = 1_000;
/// Distance between rounds of asking, in milliseconds: a round trip and a promise take some 20 ms each.
const ROUND: u64 = 100;
/// For so long an answer says how its member sees the primary, in milliseconds.
pub(super) const FRESH: u64 = 2_000;
/// A member that has more WAL and has not answered for so long, in milliseconds, is gone: it will not take the lease. The same holds
/// for one that answers, and could have taken the lease for so long. Nobody waits for such a member whose election needs no promise
/// of it.
pub(super) const GONE: u64 = 10_000;
/// For so long a candidate of an asynchronous cluster waits for the positions of members that do not answer, in milliseconds.
const MUSTER: u64 = 1_000;
/// For so long a candidate that lacks WAL of a holder that stopped on purpose waits for that one to come back, in milliseconds:
/// its data is whole, and a pod that is made anew is there within that.
const RETURN: u64 = 60_000;
/// For so long everybody but the chosen successor leaves a released lease alone, in milliseconds.
const SUCCESSION: u64 = 2_000;

/// Why this member may take the lease by an election.
enum Basis {
    /// The holder left a final position, and this member has all up to it.
    Covers,
    /// Enough names of the rule on record have promised.
    Quorum,
    /// Too few names of the rule answer, the lease was released or has run out, and the user has accepted what that may lose.
    Accepted,
    /// Asynchronous: the lease was released or has run out, nobody who answers has more, and little is lost.
    Clock,
}

impl Basis {
    fn because(&self) -> &'static str {
        match self {
            Basis::Covers => "the holder has released the lease, and this member has all that it wrote",
            Basis::Quorum => "enough members have promised, and none of them has more",
            Basis::Accepted => {
                "the user accepts the loss of what missing members have, and no member that answers has more"
            }
            Basis::Clock => "the lease is free, commits wait for nobody, and no member that answers has more",
        }
    }

    /// Commits may have been acknowledged that this member lacks.
    fn may_lose(&self) -> bool {
        match self {
            Basis::Covers | Basis::Quorum => false,
            Basis::Accepted | Basis::Clock => true,
        }
    }
}

/// Of members that have as much WAL, any may be elected: one of them is preferred (`spec.primary.prefer`).
enum Tie {
    /// It is this member.
    Preferred,
    /// It is this pod, and it has promised: it has a round to take the lease before this member does.
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
                "{pod}, which has as much and is preferred, did not take it within {ROUND} ms"
            ),
        }
    }
}

/// Whether this standby suspects the primary to be gone, and why. While it still hears the primary, by WAL stream or by
/// agent, it suspects nothing, whatever others say: one-sided cuts depose nobody.
pub(super) fn suspicion(context: &Context, draft: &mut Draft) -> Option<&'static str> {
    let record = context.record()?;
    if context.stop_intended() {
        return None;
    }
    match context.tenure() {
        Tenure::Vacant if record.epoch > Epoch(0) => return Some("nobody holds the lease"),
        Tenure::Other(_) => {}
        Tenure::Vacant | Tenure::Held { .. } | Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Unknown => return None,
    }
    let expiry = context.expires_at()?;
    let cluster = context.cluster()?;
    let given = failsafe::given_until(context);
    if !record.rule.is_synchronous() || cluster.strict_reads {
        // The clock decides, or the reads of the old primary are to have ended: nothing before the lease has run out.
        let at = given.map_or(expiry, |until| until.max(expiry));
        if !context.reached(at, draft) {
            return None;
        }
        // Whoever still hears the primary knows better than a watch that has ended unnoticed.
        let silent = last_heard(context)?.plus(context.timing().suspect());
        if !context.reached(silent, draft) {
            return None;
        }
        return Some("the lease has run out, and the primary is silent");
    }
    if context
        .observed
        .reply
        .as_ref()
        .is_some_and(|reply| reply.gives_way && reply.epoch == record.epoch)
    {
        return Some("the primary gives way: it cannot write");
    }
    if let Some(until) = given {
        draft.wake(until);
        return None;
    }
    let streaming = context.observed.postgres.answer.filter(|answer| answer.streaming);
    let alone = if is_alone(context, record) { ALONE } else { 0 };
    if let (Some(refused), None) = (context.observed.contact.refused, streaming) {
        let at = refused.plus(REFUSED + alone);
        if context.now >= at {
            return Some("the primary's processes are gone: its address refuses connections");
        }
        draft.wake(at);
    }
    let silent_since = last_heard(context)?;
    let at = silent_since.plus(context.timing().suspect() + alone);
    let at = context
        .observed
        .went_on
        .map_or(at, |went_on| at.max(went_on.plus(NEWS)));
    if !context.reached(at, draft) {
        return None;
    }
    Some("the primary is silent: neither its WAL stream nor its agent is heard")
}

/// When the holder was heard last, in whatever way; `None` if its stream is heard now.
fn last_heard(context: &Context) -> Option<BootTime> {
    let answer = context.observed.postgres.answer;
    let stream = match answer {
        // It streams, and how long ago it was heard is not known: that is no silence.
        Some(answer) if answer.streaming && answer.heard.is_none() => return None,
        Some(answer) => answer.heard,
        None => None,
    };
    let agent = context.observed.contact.heard;
    let first = context.observed.lease.holder_since;
    Some([stream, agent].into_iter().flatten().fold(first, BootTime::max))
}

/// One promise elects, and it would be this member's own.
fn is_alone(context: &Context, record: &LeaseRecord) -> bool {
    let own = context
        .member()
        .is_some_and(|member| record.rule.names.contains(&member.id));
    own && record.rule.promises_needed() == 1
}

/// The answer to a candidate (protocol.md rule 4 v); `Err` says why there is none. The request is to be remembered
/// ([`heard::candidate`]) before it is answered.
pub fn answer(observed: &Observed, now: BootTime, request: &PromiseRequest) -> Result<PromiseReply, String> {
    let context = Context::new(observed, now);
    let record = context.record().ok_or("the Lease has not been read")?;
    if record.uid != request.lease {
        return Err("the candidate follows another Lease".to_owned());
    }
    heard::check_epoch(record, "epoch", request.epoch)?;
    let member = context.member().ok_or("this member has no identity yet")?;
    let promise = context
        .promise()
        .ok_or("what this member has promised cannot be read")?;
    let suspects = suspicion(&context, &mut Draft::default()).is_some();
    let kept = promise.epoch >= request.epoch && is_kept(&context);
    Ok(PromiseReply {
        member: member.id.clone(),
        promised: promise.epoch,
        suspects,
        position: context.electable_position().filter(|_| kept),
    })
}

/// Promises never again to receive WAL of the present epoch: when this member suspects the primary, and somebody stands
/// for election with whom it may be won.
pub(super) fn promise(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let record = context.record()?;
    let promise = context.promise()?;
    let epoch = record.epoch.next()?;
    let kept = promise.epoch > epoch || promise.epoch == epoch && is_kept(context);
    if kept || context.member().is_none() || is_behind_status(context, record) {
        return None;
    }
    let suspicion = suspicion(context, draft)?;
    let asked = context.observed.asked_for.is_some_and(|asked| asked >= epoch);
    if !asked && !stands(context, record, epoch) {
        return None;
    }
    if !context.is_free(&context.tasks().promise, ROUND, draft) {
        return None;
    }
    Verdict::new(Action::Promise { epoch }, suspicion)
}

/// What stands on the volume is kept: the WAL receiver was proved to be gone. A promise is written down before that, and the
/// rest may have failed.
pub(super) fn is_kept(context: &Context) -> bool {
    let task = &context.tasks().promise;
    task.running.is_none() && task.failures == 0
}

/// This member stands for election now: what is needed may come together. A member that suspects alone promises nothing,
/// so that a one-sided cut costs no replication.
fn stands(context: &Context, record: &LeaseRecord, epoch: Epoch) -> bool {
    if context.running() != Some(Mode::Standby) || !context.is_our_data() {
        return false;
    }
    if covers_release(record, context.position()) {
        return may_succeed(context, record);
    }
    if !record.rule.is_synchronous() || loss::is_accepted(context, record) {
        return true;
    }
    let likely = context.observed.promises.values().filter(|promised| {
        promised.reply.promised >= epoch || promised.reply.suspects && context.now.since(promised.at) < FRESH
    });
    let likely = likely.map(|promised| &promised.reply.member);
    let own = context.member().map(|member| &member.id);
    record.rule.can_elect(likely.chain(own))
}

/// The release leaves the lease to this member, or to anybody.
fn may_succeed(context: &Context, record: &LeaseRecord) -> bool {
    let chosen = record.release.as_ref().and_then(|release| release.successor.as_ref());
    chosen.is_none_or(|chosen| {
        *chosen == context.observed.own.pod || context.now >= context.observed.lease.holder_since.plus(SUCCESSION)
    })
}

/// Asks the others, round after round, as long as the primary is suspected and the lease is not taken.
pub(super) fn ask(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let record = context.record()?;
    if context.running() != Some(Mode::Standby) || !context.is_our_data() || is_behind_status(context, record) {
        return None;
    }
    context.promise()?;
    suspicion(context, draft)?;
    let own = &context.observed.own.pod;
    let holder = record.holder.as_ref().map(|holder| &holder.incarnation.pod);
    let others = record
        .members
        .iter()
        .filter(|(pod, _)| *pod != own && Some(*pod) != holder);
    let mut peers: BTreeMap<_, _> = others
        .map(|(pod, report)| (pod.clone(), report.address.clone()))
        .collect();
    let unreported = unreported(record, own).filter(|pod| Some(pod) != holder);
    peers.extend(unreported.map(|pod| (pod.clone(), pod)));
    if peers.is_empty() {
        return None;
    }
    let task = &context.tasks().ask;
    if task.running.is_some() {
        return None;
    }
    let at = task.ended.plus(ROUND);
    if !context.reached(at, draft) {
        return None;
    }
    let request = PromiseRequest {
        epoch: record.epoch.next()?,
        pod: own.clone(),
        lease: record.uid.clone(),
    };
    Verdict::new(
        Action::Ask { peers, request },
        "the primary is suspected: the others are asked",
    )
}

/// Pods of members that an election counts and that the Lease has no report of, as when it was made again: each is asked by its name.
fn unreported<'a>(record: &'a LeaseRecord, own: &'a str) -> impl Iterator<Item = String> + 'a {
    let counted = record.rule.names.iter().chain(record.to_be_heard());
    let pods = counted.filter_map(|name| Some(format!("{}-{}", own.rsplit_once('-')?.0, name.ordinal()?)));
    pods.filter(move |pod| pod != own && !record.members.contains_key(pod))
}

/// Whose position a Lease that was made again lacks, to elect `own`.
fn unheard<'a>(
    record: &'a LeaseRecord,
    answers: impl Iterator<Item = &'a MemberId>,
    own: &MemberId,
) -> BTreeSet<&'a MemberId> {
    let mut unheard = record.to_be_heard();
    unheard.remove(own);
    for member in answers {
        unheard.remove(member);
    }
    unheard
}

/// Takes the lease by an election, as a running standby (protocol.md rules 9 and 12).
pub(super) fn take(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let record = context.record()?;
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
    if let Some(Tie::Behind(_)) = tie {
        let since = draft.memo.tied.filter(|(of, _)| *of == record.epoch);
        let (_, since) = *draft.memo.tied.insert(since.unwrap_or((record.epoch, context.now)));
        if !context.reached(since.plus(ROUND), draft) {
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

/// The same number, and all other members by name, the old primary included: the number rises or a name leaves only
/// later, by protocol.md rule 10 (rule 12).
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

/// The next timeline that nobody has been given, for WAL that is of timeline `own`; `None` if there is none ([`spent`] says why).
pub(super) fn next_timeline(record: &LeaseRecord, own: Timeline) -> Option<Timeline> {
    let newest = record.timeline.map_or(own, |reserved| reserved.max(own));
    (newest.0 - own.0 <= UNUSED).then(|| newest.next())?
}

/// Why nobody can take the lease any more: a number on record has no successor.
fn spent(record: &LeaseRecord, own: Timeline) -> Option<String> {
    if record.epoch.next().is_none() {
        return Some(format!(
            "the Lease has epoch {} (spec.leaseTransitions), which is the highest",
            record.epoch.0
        ));
    }
    let reserved = record.timeline.unwrap_or_default();
    next_timeline(record, own).is_none().then(|| {
        format!(
            "the Lease reserves timeline {} (annotation {LEASE_TIMELINE}), and the newest one here is {}: no election led there. \
             Somebody has to put it right, to the newest timeline that any member has",
            reserved.0, own.0
        )
    })
}

/// Its timeline was reserved in the Lease, or is the first one: WAL on any other was written by nobody who held the lease.
fn reserved(record: &LeaseRecord, position: Position) -> Option<Position> {
    (position.timeline <= record.timeline.unwrap_or(Timeline(1))).then_some(position)
}

/// A Lease behind the status is an old view of it, or was put back by somebody: either way it decides nothing.
fn is_behind_status(context: &Context, record: &LeaseRecord) -> bool {
    context
        .cluster()
        .and_then(|cluster| cluster.epoch)
        .is_some_and(|seen| seen > record.epoch)
}

fn covers_release(record: &LeaseRecord, own: Option<Position>) -> bool {
    let left = record.release.as_ref().and_then(|release| release.position);
    record.holder.is_none()
        && matches!((left, own), (Some(left), Some(own)) if own.timeline == left.timeline && own.lsn >= left.lsn)
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
        // It could have taken the lease since, and has not: it may not reach the API server. Without a synchronous rule it may
        // have the only copy of a commit.
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

/// The last holder stopped on purpose, and may have what this member lacks.
fn is_left_whole(record: &LeaseRecord, own: Position) -> bool {
    record.holder.is_none()
        && record.release.as_ref().is_some_and(|release| match release.position {
            Some(_) => record.lacks(own) > 0,
            None => release.successor.is_some(),
        })
}

/// The final position of a member that has promised.
struct Known<'a> {
    member: &'a MemberId,
    position: Position,
    /// When it answered last.
    at: BootTime,
}

/// Of the members that have promised `epoch` and whose final position is known: those that have no more than `own`, and of the others the one
/// that has answered last. Whatever these have, an election that counts none of them loses nothing.
fn ranked<'a>(
    context: &'a Context,
    record: &LeaseRecord,
    epoch: Epoch,
    own: Position,
) -> (Vec<&'a MemberId>, Option<Known<'a>>) {
    let answers = context.observed.promises.values();
    let known = answers.filter_map(|Promised { reply, at }| {
        Some(Known {
            member: &reply.member,
            position: counted(record, epoch, reply)?,
            at: *at,
        })
    });
    let (level, more): (Vec<_>, Vec<_>) = known.partition(|known| own >= known.position);
    let members = level.into_iter().map(|known| known.member).collect();
    (members, more.into_iter().max_by_key(|known| known.at))
}

/// The final position in this answer, if it promises `epoch`.
fn counted(record: &LeaseRecord, epoch: Epoch, reply: &PromiseReply) -> Option<Position> {
    let position = reserved(record, reply.position?)?;
    (reply.promised >= epoch).then_some(position)
}

/// Since when the primary of which epoch has been suspected.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    let epoch = context.record().map(|record| record.epoch);
    memo.suspected = match (suspicion(context, &mut Draft::default()), epoch, memo.suspected) {
        (None, _, _) | (_, None, _) => None,
        (Some(_), Some(epoch), Some((of, since))) if of == epoch => Some((epoch, since)),
        (Some(_), Some(epoch), _) => Some((epoch, context.now)),
    };
}

/// What an election waits for, in words: each missing answer, and who could give it.
pub(super) fn waiting(context: &Context) -> Option<Cow<'static, str>> {
    let record = context.record()?;
    let why = suspicion(context, &mut Draft::default())?;
    let Some(own) = context.final_position() else {
        return Some(format!("{why}; where this member's own WAL ends is not known yet").into());
    };
    if let Some(spent) = spent(record, own.timeline) {
        return Some(format!("{why}; {spent}").into());
    }
    let epoch = record.epoch.next()?;
    if context.electable_position().is_none() {
        return Some(
            format!(
                "{why}; this member's WAL ends at {}, before its timeline {} begins: it cannot be elected",
                own.lsn, own.timeline.0
            )
            .into(),
        );
    }
    let (answers, more) = ranked(context, record, epoch, own);
    if let Some(Known { member, position, at }) = more
        && context.now < at.plus(GONE)
    {
        return Some(
            format!(
                "{why}; {member} has WAL up to {}, this member up to {}",
                position.lsn, own.lsn
            )
            .into(),
        );
    }
    let unheard = unheard(record, answers.iter().copied(), &context.member()?.id);
    if !unheard.is_empty() {
        let missing: Vec<_> = unheard.into_iter().map(MemberId::as_str).collect();
        return Some(
            format!(
                "{why}; the Lease was made again, and each member may have commits that no other has: where the WAL of these ends \
                 is not known: {}. They have to come back, or the user to accept the loss (annotation accept-loss)",
                missing.join(", ")
            )
            .into(),
        );
    }
    if !record.rule.is_synchronous() {
        return Some(lacking(record, own, why));
    }
    let missing: Vec<_> = record
        .rule
        .names
        .iter()
        .filter(|name| !answers.contains(name))
        .collect();
    let own_name = &context.member()?.id;
    let missing: Vec<_> = missing
        .into_iter()
        .filter(|name| *name != own_name)
        .map(MemberId::as_str)
        .collect();
    if !missing.is_empty() {
        let needed = record.rule.promises_needed();
        return Some(
            format!("{why}; an election needs the positions of {needed} of the synchronous members, and these do not answer: {}", missing.join(", ")).into(),
        );
    }
    Some(why.into())
}

/// What an election waits for while commits wait for nobody.
fn lacking(record: &LeaseRecord, own: Position, why: &'static str) -> Cow<'static, str> {
    let lacks = record.lacks(own);
    let left = record.left().unwrap_or(own).lsn;
    let amount = match lacks {
        u64::MAX => "is on a timeline beside it".to_owned(),
        lacks => format!("lacks {lacks} bytes of it"),
    };
    let known = format!("{why}; the last primary had WAL up to {left}, and this member {amount}");
    if lacks > ASYNC_LOSS {
        format!("{known}: that member has to come back, or the user to accept the loss (annotation accept-loss)").into()
    } else if is_left_whole(record, own) {
        let seconds = RETURN / 1_000;
        format!("{known}: that member stopped on purpose, and has {seconds} s to come back").into()
    } else {
        why.into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use super::*;
    use crate::protocol::{Lsn, MemberReport, Release};
    use crate::timing::Timing;

    fn decided(observed: &Observed, now: u64) -> Decision {
        decide(observed, &settled(), BootTime(now))
    }

    fn request(epoch: u64) -> PromiseRequest {
        PromiseRequest {
            epoch: Epoch(epoch),
            pod: "orders-2".to_owned(),
            lease: "lease".to_owned(),
        }
    }

    fn answer_of(observed: &Observed) -> PromiseReply {
        answer(observed, BootTime(SILENT), &request(2)).unwrap()
    }

    #[test]
    fn whoever_hears_the_primary_promises_nothing() {
        let hears: [fn(&mut Observed); 4] = [
            |o| o.contact.heard = Some(BootTime(3_000)),
            |o| o.postgres.answer.as_mut().unwrap().heard = Some(BootTime(3_000)),
            |o| {
                (
                    o.postgres.answer.as_mut().unwrap().streaming,
                    o.postgres.answer.as_mut().unwrap().heard,
                ) = (true, None)
            },
            |o| o.lease.holder_since = BootTime(3_000),
        ];
        for (index, hears) in hears.iter().enumerate() {
            let mut observed = silenced();
            observed.asked_for = Some(Epoch(2));
            hears(&mut observed);
            let reply = answer(&observed, BootTime(SILENT), &request(2)).unwrap();
            assert!(!reply.suspects, "{index}");
            assert!(
                !matches!(
                    decided(&observed, SILENT).action,
                    Action::Promise { .. } | Action::Ask { .. }
                ),
                "{index}"
            );
        }
    }

    #[test]
    fn silence_of_stream_and_agent_is_suspected_after_its_time_and_the_others_are_asked() {
        let observed = silenced();
        assert_eq!(decided(&observed, SILENT - 1).action, Action::Wait);
        let decision = decided(&observed, SILENT);
        let Action::Ask { peers, request } = &decision.action else {
            panic!("{decision:?}")
        };
        assert_eq!(
            peers.keys().collect::<Vec<_>>(),
            ["orders-2"],
            "neither itself nor the primary"
        );
        assert_eq!(request.epoch, Epoch(2));
    }

    /// The Lease was lost, and the operator has made it again for `orders-1`, which held it last.
    fn made_again(mut observed: Observed) -> Observed {
        make_again(&mut observed, other_holder().incarnation.member);
        observed
    }

    fn answer_of_last_holder(lsn: u64) -> Promised {
        let mut answer = answer_of_third(2, Some(lsn));
        answer.reply.member = other_holder().incarnation.member;
        answer
    }

    #[test]
    fn who_is_counted_and_has_not_reported_is_asked_by_name() {
        let asked = |observed: &Observed| match decided(observed, SILENT).action {
            Action::Ask { peers, .. } => peers.into_iter().collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        let named = |pod: &str| (pod.to_owned(), pod.to_owned());
        let both = vec![named("orders-1"), named("orders-2")];
        assert_eq!(asked(&made_again(silenced())), both);
        let mut taken = silenced();
        record(&mut taken).members.remove("orders-2");
        assert_eq!(asked(&taken), both[1..], "not its holder");
    }

    #[test]
    fn a_lease_that_was_made_again_goes_to_who_has_most_of_all() {
        let third = member_rule(1, &[third()]);
        let alone = member_rule(1, &[]);
        let none = SyncRule::default();
        for (rule, asks_third) in [(third, true), (alone, false), (none, false)] {
            let mut observed = made_again(asking(2));
            record(&mut observed).rule = rule.clone();
            let elected = |observed: &Observed| decided(observed, SILENT).rule == "win election";
            if asks_third {
                third_answers(&mut observed, 2, Some(0x80));
            }
            assert!(!elected(&observed), "{rule:?}: the last holder may have more");
            let waits = decided(&observed, SILENT).because;
            let words = format!("is not known: {}. They have to", other_holder().incarnation.member);
            assert!(waits.contains(&words), "{waits}");
            let mut least = observed.clone();
            least
                .promises
                .insert("orders-1".to_owned(), answer_of_last_holder(0x101));
            assert!(!elected(&least), "{rule:?}: it has more");
            observed
                .promises
                .insert("orders-1".to_owned(), answer_of_last_holder(0x100));
            assert!(elected(&observed), "{rule:?}");
            if asks_third {
                observed.promises.remove("orders-2");
                assert!(!elected(&observed), "{rule:?}");
            }
        }
    }

    #[test]
    fn of_a_lease_that_was_made_again_what_the_missing_have_is_given_up_on_the_users_word() {
        let mut observed = made_again(asking(2));
        record(&mut observed).rule = member_rule(1, &[]);
        let memo = Memo {
            suspected: Some((Epoch(1), BootTime(1_000))),
            accepted_loss: Some((Epoch(1), BootTime(1_000))),
            ..settled()
        };
        let rule = |observed: &Observed, now: u64| decide(observed, &memo, BootTime(now)).rule;
        assert_eq!(rule(&observed, 600_000), "wait");
        cluster(&mut observed).accepted_loss = Some(Epoch(1));
        assert_eq!(rule(&observed, 1_001), "wait", "the missing may still answer");
        let Action::WriteLease { content, .. } = decide(&observed, &memo, BootTime(600_000)).action else {
            panic!("{:?}", decide(&observed, &memo, BootTime(600_000)))
        };
        assert_eq!(content.lossy, content.timeline, "some may be lost");
        let mut more = answer_of_last_holder(0x101);
        more.at = BootTime(600_000);
        observed.promises.insert("orders-1".to_owned(), more);
        assert_eq!(rule(&observed, 600_000), "wait", "who answers has more");
    }

    /// A rule of this member and these.
    fn member_rule(required: usize, others: &[MemberId]) -> SyncRule {
        let own = volume(&mut silenced()).member.clone().unwrap().id;
        SyncRule::any(required, others.iter().cloned().chain([own]))
    }

    #[test]
    fn a_refused_connection_is_suspected_sooner() {
        let mut observed = silenced();
        observed.contact.refused = Some(BootTime(1_100));
        assert_eq!(decided(&observed, 1_599).action, Action::Wait);
        assert_eq!(decided(&observed, 1_600).rule, "ask");
        // A port that opens late is no dead process while the stream lives.
        observed.postgres.answer.as_mut().unwrap().streaming = true;
        assert_eq!(decided(&observed, 1_600).action, Action::Wait);
    }

    #[test]
    fn whoever_may_elect_itself_alone_waits_longer() {
        let mut observed = silenced();
        let own = volume(&mut observed).member.clone().unwrap().id;
        record(&mut observed).rule = SyncRule::any(1, [own]);
        let alone = |observed: &Observed, now: u64| decided(observed, now).rule == "promise";
        assert!(!alone(&observed, SILENT + ALONE - 1) && alone(&observed, SILENT + ALONE));
        observed.contact.refused = Some(BootTime(1_100));
        assert!(!alone(&observed, 1_100 + REFUSED + ALONE - 1) && alone(&observed, 1_100 + REFUSED + ALONE));
        let at_least = Timing::DEFAULT.renew / 2;
        assert!(
            ALONE >= at_least,
            "nobody confirms what it suspects: a beat of the primary's agent more"
        );
    }

    #[test]
    fn who_suspects_alone_promises_nothing_until_asked_or_joined() {
        let mut observed = silenced();
        assert_eq!(decided(&observed, SILENT).rule, "ask");
        observed.tasks.ask.running = Some(Work::Ask);
        assert_eq!(decided(&observed, SILENT).action, Action::Wait);
        observed.asked_for = Some(Epoch(2));
        assert_eq!(decided(&observed, SILENT).action, Action::Promise { epoch: Epoch(2) });
        observed.asked_for = Some(Epoch(1));
        assert_eq!(decided(&observed, SILENT).action, Action::Wait);
        third_answers(&mut observed, 1, None);
        assert_eq!(decided(&observed, SILENT).action, Action::Promise { epoch: Epoch(2) });
        assert_eq!(
            decided(&observed, 4_000 + FRESH).action,
            Action::Wait,
            "an old suspicion says nothing"
        );
    }

    #[test]
    fn what_cannot_be_read_is_no_promise() {
        let mut observed = silenced();
        volume(&mut observed).promise = None;
        observed.asked_for = Some(Epoch(2));
        assert!(answer(&observed, BootTime(SILENT), &request(2)).is_err());
        assert!(!matches!(
            decided(&observed, SILENT).action,
            Action::Promise { .. } | Action::Ask { .. }
        ));
    }

    #[test]
    fn a_promise_that_was_written_down_and_not_completed_is_made_again() {
        let mut observed = promised(2);
        observed.asked_for = Some(Epoch(2));
        observed.tasks.promise.failures = 1;
        assert_eq!(answer(&observed, BootTime(SILENT), &request(2)).unwrap().position, None);
        assert_eq!(decided(&observed, SILENT).action, Action::Promise { epoch: Epoch(2) });
    }

    #[test]
    fn a_position_is_told_only_with_the_promise_and_when_it_is_final() {
        let told = |observed: &Observed| answer(observed, BootTime(SILENT), &request(2)).unwrap().position;
        assert_eq!(told(&silenced()), None);
        assert_eq!(told(&promised(2)), Some(position()));
        let mut receiving = promised(2);
        receiving.postgres.answer.as_mut().unwrap().received_all = false;
        assert_eq!(told(&receiving), None);
        let mut promising = promised(2);
        promising.tasks.promise.running = Some(Work::Promise);
        assert_eq!(told(&promising), None);
        assert!(
            answer(
                &promised(2),
                BootTime(SILENT),
                &PromiseRequest {
                    lease: "other".to_owned(),
                    ..request(2)
                }
            )
            .is_err()
        );
    }

    #[test]
    fn an_election_is_won_with_enough_promises_by_who_has_most() {
        let outcome = |third: Option<Promised>, now: u64| {
            let mut observed = asking(2);
            observed
                .promises
                .extend(third.map(|third| ("orders-2".to_owned(), third)));
            decided(&observed, now)
        };
        assert_eq!(outcome(None, SILENT).action, Action::Wait, "one of two is not enough");
        assert_eq!(
            outcome(Some(answer_of_third(1, Some(0x80))), SILENT).action,
            Action::Wait,
            "an old promise"
        );
        assert_eq!(
            outcome(Some(answer_of_third(2, None)), SILENT).action,
            Action::Wait,
            "no position"
        );
        assert_eq!(
            outcome(Some(answer_of_third(2, Some(0x180))), SILENT).action,
            Action::Wait,
            "it has more"
        );
        for lsn in [0x80, 0x100] {
            let decision = outcome(Some(answer_of_third(2, Some(lsn))), SILENT);
            let Action::WriteLease { content, purpose, .. } = &decision.action else {
                panic!("{decision:?}")
            };
            assert_eq!(
                (*purpose, content.epoch, content.timeline),
                (Purpose::Take, Epoch(2), Some(Timeline(2)))
            );
            assert_eq!(
                content.rule,
                SyncRule::any(1, [other_holder().incarnation.member, third()])
            );
            assert_eq!(content.version, "7");
        }
        assert_eq!(
            outcome(Some(answer_of_third(2, Some(0x80))), SILENT - 1).action,
            Action::Wait,
            "the primary is heard"
        );
    }

    #[test]
    fn who_has_more_and_is_gone_is_not_waited_for_if_enough_others_have_promised() {
        let mut observed = asking(2);
        record(&mut observed).rule.required = 2;
        let answer = |ordinal: u32, lsn: u64| {
            let mut answer = answer_of_third(2, Some(lsn));
            answer.reply.member = MemberId::new(ordinal, "cccc", ordinal);
            (format!("orders-{ordinal}"), answer)
        };
        for ordinal in [3, 4] {
            let (pod, answer) = answer(ordinal, 0x80);
            record(&mut observed).rule.names.insert(answer.reply.member.clone());
            observed.promises.insert(pod, answer);
        }
        let rule = |observed: &Observed, now: u64| decided(observed, now).rule;
        let (gone, at) = (answer_of_third(2, Some(0x180)), SILENT + 60_000);
        assert_eq!(rule(&observed, at), "win election", "three of four have promised");
        observed.promises.insert(
            "orders-2".to_owned(),
            Promised {
                at: BootTime(at),
                ..gone
            },
        );
        assert_eq!(rule(&observed, at + GONE - 1), "wait", "it has more");
        assert_eq!(decided(&observed, at).wake, Some(BootTime(at + GONE)));
        assert_eq!(rule(&observed, at + GONE), "win election");
        observed.promises.remove("orders-4");
        let waits = decided(&observed, at + GONE);
        assert_eq!(waits.rule, "wait", "the promise of the one that is gone is needed");
        let missing = format!("these do not answer: {}", third());
        assert!(waits.because.contains(&missing), "{}", waits.because);
        let mut again = made_again(asking(2));
        record(&mut again).rule = member_rule(1, &[]);
        let answer = answer_of_last_holder(0x101);
        again.promises.insert("orders-1".to_owned(), answer);
        assert_eq!(rule(&again, at + GONE), "wait", "all must be heard, and have no more");
    }

    /// Such as one that does not reach the API server.
    #[test]
    fn who_has_more_and_does_not_take_the_lease_is_waited_for_only_where_it_is_needed() {
        const LATE: u64 = SILENT + GONE;
        let mut observed = asking(2);
        record(&mut observed).rule.required = 2;
        for (ordinal, lsn) in [(2, 0x80), (3, 0x80), (4, 0x80), (5, 0x180)] {
            let mut answer = answer_of_third(2, Some(lsn));
            answer.at = BootTime(LATE);
            if ordinal > 2 {
                answer.reply.member = MemberId::new(ordinal, "cccc", ordinal);
            }
            record(&mut observed).rule.names.insert(answer.reply.member.clone());
            observed.promises.insert(format!("orders-{ordinal}"), answer);
        }
        let memo = Memo {
            suspected: Some((Epoch(1), BootTime(SILENT))),
            ..settled()
        };
        let at = |observed: &Observed, now: u64| decide(observed, &memo, BootTime(now));
        let early = at(&observed, LATE - 1);
        assert_eq!(early.rule, "wait", "it may take the lease itself");
        assert!(early.wake.is_some_and(|wake| wake <= BootTime(LATE)));
        assert_eq!(at(&observed, LATE).rule, "win election", "four of five are enough");
        let mut needed = observed.clone();
        needed.promises.remove("orders-4");
        let waits = at(&needed, LATE);
        assert_eq!(waits.rule, "wait");
        assert!(waits.because.contains("has WAL up to 0/180"), "{}", waits.because);
        let mut alone = asynchronous(observed);
        cluster(&mut alone).durability.mode = api::status::DurabilityMode::Async;
        assert_eq!(at(&alone, LATE).rule, "wait", "what it has may be acknowledged");
    }

    /// When this member, which could be elected at [`SILENT`], takes the lease after that, in milliseconds, and why.
    fn takes_after(observed: &Observed) -> (u64, String) {
        let first = decided(observed, SILENT);
        if first.rule == "win election" {
            return (0, first.because.into_owned());
        }
        let at = first.wake.expect("it is decided again");
        assert_eq!(decide(observed, &first.memo, BootTime(at.0 - 1)).rule, "wait");
        let then = decide(observed, &first.memo, at);
        assert_eq!(then.rule, "win election");
        (at.since(BootTime(SILENT)), then.because.into_owned())
    }

    #[test]
    fn the_preferred_one_of_those_that_have_as_much_has_a_round_to_take_the_lease() {
        let after = |lsn: u64, preferred: Option<&str>| {
            let mut observed = asking(2);
            "orders-2".clone_into(&mut observed.own.pod);
            let answer = answer_of_third(2, Some(lsn));
            observed.promises.insert("orders-0".to_owned(), answer);
            cluster(&mut observed).preferred = preferred.map(str::to_owned);
            takes_after(&observed)
        };
        let late = "orders-0, which has as much and is preferred, did not take it within 100 ms";
        let table = [
            (0x100, Some("orders-0"), ROUND, late),
            (0x100, Some("orders-2"), 0, "spec.primary.prefer names it"),
            (0x100, Some("orders-1"), 0, "none of them has more"),
            (0x100, None, 0, "none of them has more"),
            (0xFF, Some("orders-0"), 0, "none of them has more"),
        ];
        for (lsn, preferred, wait, why) in table {
            let (waited, because) = after(lsn, preferred);
            assert_eq!(waited, wait, "{lsn}, {preferred:?}");
            assert!(because.contains(why), "{because}");
        }
    }

    #[test]
    fn who_stands_alone_waits_for_nobody() {
        let mut alone = asking(2);
        "orders-2".clone_into(&mut alone.own.pod);
        cluster(&mut alone).preferred = Some("orders-0".to_owned());
        let own = volume(&mut alone).member.clone().unwrap().id;
        record(&mut alone).rule = SyncRule::any(1, [own]);
        let since = SILENT + ALONE;
        assert_eq!(decided(&alone, since).rule, "win election", "no other is asked");
        let mut silent = alone.clone();
        record(&mut silent).rule = SyncRule::any(2, record(&mut alone).rule.names.iter().cloned().chain([third()]));
        assert_eq!(
            decided(&silent, since).rule,
            "win election",
            "the preferred one does not answer"
        );
        silent.promises.insert("orders-0".to_owned(), answer_of_third(2, None));
        assert_eq!(
            decided(&silent, since).rule,
            "win election",
            "it does not say what it has"
        );
        silent
            .promises
            .insert("orders-0".to_owned(), answer_of_third(1, Some(0x100)));
        assert_eq!(decided(&silent, since).rule, "win election", "it has not promised");
        let mut named = vacant(Some(0x100), Some("orders-2"));
        "orders-2".clone_into(&mut named.own.pod);
        named
            .promises
            .insert("orders-0".to_owned(), answer_of_third(2, Some(0x100)));
        assert_eq!(decided(&named, SILENT).rule, "win election", "it was handed over to");
    }

    #[test]
    fn wal_that_ends_before_its_timeline_begins_is_no_position() {
        let decided = |lsn: u64, begins: Option<u64>| {
            let mut observed = asking(2);
            third_answers(&mut observed, 2, Some(0x80));
            record(&mut observed).timeline = Some(Timeline(2));
            let answer = observed.postgres.answer.as_mut().unwrap();
            answer.position = Some(Position {
                timeline: Timeline(2),
                lsn: Lsn(lsn),
            });
            answer.begins = begins.map(Lsn);
            let promised = answer_of(&observed).position.is_some();
            (decided(&observed, SILENT).rule == "win election", promised)
        };
        assert_eq!(decided(0x200, Some(0x200)), (true, true));
        assert_eq!(
            decided(0x1FF, Some(0x200)),
            (false, false),
            "it neither stands nor is counted"
        );
        assert_eq!(decided(0x200, None), (false, false), "its history is not known");
    }

    /// What is published of the last holder's history says nothing of a timeline beside it.
    #[test]
    fn a_former_primary_goes_by_its_own_history() {
        let mut observed = asking(2);
        third_answers(&mut observed, 2, Some(0x80));
        let record = record(&mut observed);
        (record.timeline, record.history) = (
            Some(Timeline(4)),
            vec![crate::protocol::Fork {
                timeline: Timeline(2),
                end: Lsn(0x300),
            }],
        );
        own_position(&mut observed).timeline = Timeline(3);
        assert_eq!(decided(&observed, SILENT).rule, "win election");
    }

    #[test]
    fn a_member_that_stood_still_hears_the_news_before_it_suspects() {
        let suspects = |went_on: Option<u64>, now: u64| {
            let mut observed = asking(2);
            third_answers(&mut observed, 2, Some(0x80));
            observed.went_on = went_on.map(BootTime);
            decided(&observed, now).rule == "win election"
        };
        assert!(suspects(None, SILENT));
        assert!(!suspects(Some(SILENT), SILENT) && !suspects(Some(SILENT), SILENT + NEWS - 1));
        assert!(suspects(Some(SILENT), SILENT + NEWS), "and no longer");
        assert!(suspects(Some(SILENT - NEWS), SILENT));
    }

    #[test]
    fn expiry_alone_elects_nobody_under_a_synchronous_rule() {
        let observed = asking(2);
        assert_eq!(decided(&observed, 10_000_000).action, Action::Wait);
    }

    #[test]
    fn a_promise_of_another_epoch_elects_nobody() {
        for epoch in [1, 3] {
            let mut observed = asking(epoch);
            third_answers(&mut observed, epoch, Some(0x80));
            assert!(!matches!(decided(&observed, SILENT).action, Action::WriteLease { .. }));
        }
    }

    #[test]
    fn a_lease_behind_the_status_elects_nobody() {
        let mut observed = asking(2);
        third_answers(&mut observed, 2, Some(0x80));
        assert_eq!(decided(&observed, SILENT).rule, "win election");
        cluster(&mut observed).epoch = Some(Epoch(2));
        assert_eq!(decided(&observed, SILENT).action, Action::Wait);
    }

    #[test]
    fn wal_of_a_timeline_that_nobody_reserved_does_not_count() {
        let mut observed = asking(2);
        let mut stray = answer_of_third(2, Some(0x180));
        stray.reply.position.as_mut().unwrap().timeline = Timeline(2);
        observed.promises.insert("orders-2".to_owned(), stray);
        assert_eq!(decided(&observed, SILENT).action, Action::Wait);
    }

    #[test]
    fn positions_rank_by_the_timeline_first_and_only_by_one_that_is_reserved() {
        let decided = |own: u32, third: u32, reserved: u32| {
            let mut observed = promised(2);
            observed.tasks.ask.running = Some(Work::Ask);
            record(&mut observed).timeline = Some(Timeline(reserved));
            own_position(&mut observed).timeline = Timeline(own);
            let mut promised = answer_of_third(2, Some(0x80));
            promised.reply.position.as_mut().unwrap().timeline = Timeline(third);
            observed.promises.insert("orders-2".to_owned(), promised);
            decided(&observed, SILENT).rule
        };
        assert_eq!(decided(1, 1, 2), "win election");
        assert_eq!(decided(2, 1, 2), "win election");
        assert_ne!(decided(1, 2, 2), "win election", "it has WAL of a later primary");
        assert_ne!(decided(2, 1, 1), "win election", "nobody was to write that timeline");
    }

    #[test]
    fn only_a_standby_that_receives_nothing_knows_where_its_wal_ends() {
        let knows = |change: fn(&mut Observed)| {
            let mut observed = silenced();
            change(&mut observed);
            Context::new(&observed, BootTime(SILENT)).final_position().is_some()
        };
        assert!(knows(|_| {}));
        let spoil: [fn(&mut Observed); 4] = [
            |o| o.postgres.answer.as_mut().unwrap().received_all = false,
            |o| o.postgres.answer.as_mut().unwrap().in_recovery = false,
            |o| o.postgres.process = Process::Running { mode: Mode::Primary },
            |o| o.tasks.start.running = Some(Work::Promote),
        ];
        for (index, spoil) in spoil.into_iter().enumerate() {
            assert!(!knows(spoil), "{index}");
        }
    }

    #[test]
    fn a_suspicion_lasts_from_its_beginning_in_one_epoch() {
        let since = |epoch: u64| {
            let memo = Memo {
                suspected: Some((Epoch(epoch), BootTime(7))),
                ..settled()
            };
            decide(&silenced(), &memo, BootTime(SILENT)).memo.suspected
        };
        assert_eq!(since(1), Some((Epoch(1), BootTime(7))));
        assert_eq!(since(0), Some((Epoch(1), BootTime(SILENT))), "of another primary");
    }

    #[test]
    fn what_an_election_waits_for_is_told() {
        let told = |observed: &Observed, now: u64| {
            let context = Context::new(observed, BootTime(now));
            let why = suspicion(&context, &mut Draft::default()).unwrap();
            let waits = waiting(&context).unwrap();
            waits.strip_prefix(why).expect("the suspicion first").to_owned()
        };
        let mut observed = asking(2);
        record(&mut observed).rule = member_rule(1, &[third()]);
        let missing = format!("these do not answer: {}", third());
        assert!(told(&observed, SILENT).ends_with(&missing));
        third_answers(&mut observed, 1, Some(0x100));
        assert!(
            told(&observed, SILENT).ends_with(&missing),
            "it has promised nothing yet"
        );
        third_answers(&mut observed, 2, Some(0x101));
        assert!(told(&observed, SILENT).ends_with("has WAL up to 0/101, this member up to 0/100"));
        third_answers(&mut observed, 2, Some(0x100));
        assert_eq!(told(&observed, SILENT), "");
        let stopped = asynchronous(vacant(Some(0x101), None));
        assert!(told(&stopped, 1_001).ends_with("stopped on purpose, and has 60 s to come back"));
    }

    #[test]
    fn strict_reads_wait_for_the_lease_to_run_out() {
        let mut observed = silenced();
        cluster(&mut observed).strict_reads = true;
        assert_eq!(decided(&observed, Timing::DEFAULT.lease - 1).action, Action::Wait);
        assert_eq!(decided(&observed, Timing::DEFAULT.lease).rule, "ask");
    }

    fn vacant(position: Option<u64>, successor: Option<&str>) -> Observed {
        let mut observed = asking(2);
        let member = other_holder().incarnation.member;
        record(&mut observed).holder = None;
        record(&mut observed).release = Some(Release {
            member,
            position: position.map(|lsn| Position {
                timeline: Timeline(1),
                lsn: Lsn(lsn),
            }),
            successor: successor.map(str::to_owned),
        });
        observed.lease.holder_since = BootTime(1_000);
        observed
    }

    #[test]
    fn a_released_lease_goes_to_who_covers_its_position_at_once() {
        let decision = decided(&vacant(Some(0x100), None), 1_001);
        let Action::WriteLease { content, .. } = &decision.action else {
            panic!("{decision:?}")
        };
        assert_eq!((decision.rule, &content.release), ("win election", &None));
        assert_eq!(decided(&vacant(Some(0x101), None), 1_001).action, Action::Wait);
        assert_eq!(
            decided(&vacant(None, None), 1_001).action,
            Action::Wait,
            "no position: promises are needed"
        );
        assert_eq!(
            decided(&vacant(Some(0x100), Some("orders-0")), 1_001).rule,
            "win election"
        );
        assert_eq!(
            decided(&vacant(Some(0x100), Some("orders-2")), 1_001).action,
            Action::Wait
        );
        let later = 1_000 + SUCCESSION;
        assert_eq!(
            decided(&vacant(Some(0x100), Some("orders-2")), later).rule,
            "win election"
        );
    }

    #[test]
    fn without_a_rule_the_clock_decides_and_the_best_of_those_that_answer() {
        let mut observed = asking(2);
        record(&mut observed).rule = SyncRule::default();
        let expiry = Timing::DEFAULT.lease;
        let memo = Memo {
            suspected: Some((Epoch(1), BootTime(expiry))),
            ..settled()
        };
        let rule = |observed: &Observed, now: u64| decide(observed, &memo, BootTime(now)).rule;
        assert_eq!(decided(&observed, expiry - 1).action, Action::Wait);
        assert_eq!(rule(&observed, expiry), "wait", "the others may still answer");
        assert_eq!(rule(&observed, expiry + MUSTER), "win election");
        third_answers(&mut observed, 2, Some(0x80));
        assert_eq!(rule(&observed, expiry), "win election", "all have answered");
        third_answers(&mut observed, 2, Some(0x180));
        assert_eq!(rule(&observed, expiry + MUSTER), "wait", "another has more");
    }

    /// Commits wait for nobody, and the primary is suspected since 1 s: when this member, whose WAL ends at 0x100, is elected.
    fn elected_at(observed: &Observed) -> Option<u64> {
        let memo = Memo {
            suspected: Some((Epoch(1), BootTime(1_000))),
            ..settled()
        };
        let times = [1_000, 1_000 + MUSTER, Timing::DEFAULT.lease, 1_000 + RETURN];
        let elects = |at: &u64| decide(observed, &memo, BootTime(*at)).rule == "win election";
        times.into_iter().find(elects)
    }

    fn asynchronous(mut observed: Observed) -> Observed {
        record(&mut observed).rule = SyncRule::default();
        observed
    }

    #[test]
    fn who_stopped_on_purpose_is_waited_for_by_whoever_lacks_something() {
        let released = |position, successor| elected_at(&asynchronous(vacant(position, successor)));
        assert_eq!(released(Some(0x100), None), Some(1_000), "it has all");
        assert_eq!(released(Some(0x101), None), Some(1_000 + RETURN));
        assert_eq!(
            released(Some(0x101), Some("orders-0")),
            Some(1_000 + RETURN),
            "also who is named"
        );
        assert_eq!(
            released(None, Some("orders-0")),
            Some(1_000 + RETURN),
            "where it ended is not known"
        );
        assert_eq!(released(None, None), Some(1_000 + MUSTER), "it fell");
        let mut later = asynchronous(vacant(Some(0x101), None));
        later.lease.holder_since = BootTime(1_001);
        assert_eq!(elected_at(&later), None, "from the release on");
        let mut forked = asynchronous(vacant(Some(0x80), None));
        let record = record(&mut forked);
        record.release.as_mut().unwrap().position.as_mut().unwrap().timeline = Timeline(2);
        record.history = vec![crate::protocol::Fork {
            timeline: Timeline(1),
            end: Lsn(0x7F),
        }];
        assert_eq!(
            elected_at(&forked),
            Some(1_000 + RETURN),
            "it has gone on past the fork"
        );
        super::super::fixtures::record(&mut forked).history.clear();
        assert_eq!(elected_at(&forked), None, "nothing of it is known to be the same");
        let mut later = asynchronous(vacant(Some(0x101), None));
        own_position(&mut later).timeline = Timeline(2);
        super::super::fixtures::record(&mut later).timeline = Some(Timeline(2));
        assert_eq!(elected_at(&later), Some(1_000 + MUSTER), "it has gone on from there");
    }

    #[test]
    fn much_is_lost_only_if_the_user_accepts_it() {
        let behind = |lacks: u64, release: bool| {
            let mut observed = asynchronous(if release { vacant(None, None) } else { asking(2) });
            let left = Position {
                timeline: Timeline(1),
                lsn: Lsn(0x100 + lacks),
            };
            let holder = other_holder().incarnation;
            let record = record(&mut observed);
            record.positions.insert(holder.pod.clone(), left);
            record.members.insert(
                holder.pod,
                MemberReport {
                    member: holder.member,
                    ..record.members["orders-2"].clone()
                },
            );
            observed
        };
        for release in [false, true] {
            assert!(elected_at(&behind(ASYNC_LOSS, release)).is_some(), "{release}");
            let waits = decided(&behind(ASYNC_LOSS, release), 1_000 + RETURN).because;
            assert!(!waits.contains("that member has to come back"), "{waits}");
            let mut far = behind(ASYNC_LOSS + 1, release);
            assert_eq!(elected_at(&far), None, "{release}");
            let waits = decided(&far, 1_000 + RETURN).because;
            assert!(
                waits.contains("lacks 16777217 bytes of it: that member has to come back, or the user"),
                "{waits}"
            );
            cluster(&mut far).accepted_loss = Some(Epoch(1));
            let memo = Memo {
                suspected: Some((Epoch(1), BootTime(1_000))),
                accepted_loss: Some((Epoch(1), BootTime(1_000))),
                ..settled()
            };
            assert_eq!(
                decide(&far, &memo, BootTime(1_000 + RETURN)).rule,
                "win election",
                "{release}"
            );
        }
    }
}
