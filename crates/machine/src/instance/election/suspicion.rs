//! Whether the primary is suspected, why, and since when (protocol.md rule 23).

use crate::instance::facts::promises::given_until;
use crate::instance::facts::{Context, Tenure};
use crate::instance::{Draft, Memo};
use crate::protocol::{Epoch, LeaseRecord};
use crate::timing::BootTime;
use crate::units::Millis;

/// How long after a stall a member waits for news of the primary: PostgreSQL and the primary's agent are asked each
/// second.
const NEWS: Millis = Millis(1_500);
/// How long the primary's agent must refuse connections before it counts as gone: in a new container the port opens a
/// little later than the address.
const REFUSED: Millis = Millis(500);
/// How much longer a standby waits that may elect itself alone, because no other member confirms its suspicion.
pub(super) const ALONE: Millis = Millis::seconds(1);

/// Whether this standby suspects that the primary is gone, and why. While it still hears the primary, by WAL stream or
/// agent, it suspects nothing, whatever others say: one-sided cuts depose no primary.
pub(in crate::instance) fn suspicion(context: &Context, draft: &mut Draft) -> Option<&'static str> {
    let record = context.record()?;
    if context.stop_intended() {
        return None;
    }
    match context.tenure() {
        Tenure::Vacant if record.epoch > Epoch(0) => return Some("the lease has no holder"),
        Tenure::Other(_) => {}
        Tenure::Vacant | Tenure::Held { .. } | Tenure::Lapsed | Tenure::OwnBefore(_) | Tenure::Unknown => return None,
    }
    let expiry = context.expires_at()?;
    let cluster = context.cluster()?;
    let given = given_until(context);
    if !record.rule.is_synchronous() || cluster.strict_reads {
        // The clock decides, or reads of the old primary must have ended: no suspicion before the lease has run out.
        let at = given.map_or(expiry, |until| until.max(expiry));
        if !context.reached(at, draft) {
            return None;
        }
        // A member that still hears the primary knows better than a watch that may have failed unnoticed.
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
        .is_some_and(|reply| reply.steps_down && reply.epoch == record.epoch)
    {
        return Some("the primary steps down: it cannot write");
    }
    if let Some(until) = given {
        draft.wake(until);
        return None;
    }
    let streaming = context.observed.postgres.answer.filter(|answer| answer.streaming);
    let alone = if is_alone(context, record) { ALONE } else { Millis::ZERO };
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

/// When the holder was last heard, in any way; `None` if its stream is heard now.
fn last_heard(context: &Context) -> Option<BootTime> {
    let answer = context.observed.postgres.answer;
    let stream = match answer {
        // It streams, and when it was last heard is not known: that is no silence.
        Some(answer) if answer.streaming && answer.heard.is_none() => return None,
        Some(answer) => answer.heard,
        None => None,
    };
    let agent = context.observed.contact.heard;
    let first = context.observed.lease.holder_since;
    Some([stream, agent].into_iter().flatten().fold(first, BootTime::max))
}

/// True if a single promise elects, and it would be this member's own.
fn is_alone(context: &Context, record: &LeaseRecord) -> bool {
    let own = context
        .member()
        .is_some_and(|member| record.rule.names.contains(&member.id));
    own && record.rule.promises_needed() == 1
}

/// Remembers the epoch of the suspected primary, and since when it is suspected.
pub(in crate::instance) fn remember(context: &Context, memo: &mut Memo) {
    let epoch = context.record().map(|record| record.epoch);
    memo.suspected = match (suspicion(context, &mut Draft::new(memo)), epoch, memo.suspected) {
        (None, _, _) | (_, None, _) => None,
        (Some(_), Some(epoch), Some((of, since))) if of == epoch => Some((epoch, since)),
        (Some(_), Some(epoch), _) => Some((epoch, context.now)),
    };
}

#[cfg(test)]
mod tests;
