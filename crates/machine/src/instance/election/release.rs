//! A lease that its holder has released, and which member may take it (protocol.md rules 8 and 16).

use crate::instance::facts::Context;
use crate::protocol::{LeaseRecord, Position};
use crate::units::{Bytes, Millis};

/// How long a candidate that lacks WAL of a holder that stopped on purpose waits for that one to return. That holder's
/// data is intact, and a replaced pod is back within this time.
pub(super) const RETURN: Millis = Millis::minutes(1);
/// How long all members except the chosen successor leave a released lease alone.
pub(super) const SUCCESSION: Millis = Millis::seconds(2);

/// True if the release leaves the lease to this member, or to any member.
pub(super) fn may_succeed(context: &Context, record: &LeaseRecord) -> bool {
    let chosen = record.release.as_ref().and_then(|release| release.successor.as_ref());
    chosen.is_none_or(|chosen| {
        *chosen == context.observed.own.pod || context.now >= context.observed.lease.holder_since.plus(SUCCESSION)
    })
}

pub(super) fn covers_release(record: &LeaseRecord, own: Option<Position>) -> bool {
    let left = record.release.as_ref().and_then(|release| release.position);
    record.holder.is_none()
        && matches!((left, own), (Some(left), Some(own)) if own.timeline == left.timeline && own.lsn >= left.lsn)
}

/// True if the last holder stopped on purpose, and may have WAL that this member lacks.
pub(super) fn is_left_whole(record: &LeaseRecord, own: Position) -> bool {
    record.holder.is_none()
        && record.release.as_ref().is_some_and(|release| match release.position {
            Some(_) => record.lacks(own) > Bytes::ZERO,
            None => release.successor.is_some(),
        })
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::take::MUSTER;
    use super::*;
    use crate::protocol::{Lsn, Timeline};
    use crate::timing::BootTime;

    #[test]
    fn a_released_lease_is_taken_at_once_by_a_member_that_covers_its_position() {
        let decision = decided(&vacant(Some(0x100), None), 1_001);
        let Action::WriteLease { content, .. } = &decision.action else {
            panic!("{decision:?}")
        };
        assert_eq!((decision.rule, &content.release), ("win-election", &None));
        assert_eq!(decided(&vacant(Some(0x101), None), 1_001).action, Action::Wait);
        assert_eq!(
            decided(&vacant(None, None), 1_001).action,
            Action::Wait,
            "no position: promises are needed"
        );
        assert_eq!(
            decided(&vacant(Some(0x100), Some("orders-0")), 1_001).rule,
            "win-election"
        );
        assert_eq!(
            decided(&vacant(Some(0x100), Some("orders-2")), 1_001).action,
            Action::Wait
        );
        let later = 1_000 + SUCCESSION.0;
        assert_eq!(
            decided(&vacant(Some(0x100), Some("orders-2")), later).rule,
            "win-election"
        );
    }

    #[test]
    fn a_member_that_lacks_wal_waits_for_a_holder_that_stopped_on_purpose() {
        let released = |position, successor| elected_at(&asynchronous(vacant(position, successor)));
        assert_eq!(released(Some(0x100), None), Some(1_000), "it has all");
        assert_eq!(released(Some(0x101), None), Some(1_000 + RETURN.0));
        assert_eq!(
            released(Some(0x101), Some("orders-0")),
            Some(1_000 + RETURN.0),
            "the named successor waits too"
        );
        assert_eq!(
            released(None, Some("orders-0")),
            Some(1_000 + RETURN.0),
            "where it ended is not known"
        );
        assert_eq!(released(None, None), Some(1_000 + MUSTER.0), "it fell");
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
            Some(1_000 + RETURN.0),
            "it has gone on past the fork"
        );
        super::super::fixtures::record(&mut forked).history.clear();
        assert_eq!(elected_at(&forked), None, "nothing of it is known to be the same");
        let mut later = asynchronous(vacant(Some(0x101), None));
        own_position(&mut later).timeline = Timeline(2);
        super::super::fixtures::record(&mut later).timeline = Some(Timeline(2));
        assert_eq!(elected_at(&later), Some(1_000 + MUSTER.0), "it has gone on from there");
    }
}
