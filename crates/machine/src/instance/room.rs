//! A member whose volumes are full. It cannot be promoted, because a new timeline begins with a new segment. Each try
//! costs a timeline and an epoch, and ends its PostgreSQL.

use std::collections::BTreeSet;

use super::Draft;
use super::facts::Context;
use crate::protocol::{MemberReport, Volume};
use crate::units::Millis;

/// How long after its take, and after its last try, a holder without room tries a promotion. The measurement may be
/// wrong: a compressing file system accepts a segment of zeros although it reports no space.
pub(super) const TRY: Millis = Millis::minutes(2);

/// True if this member's volumes have room, as far as is known.
pub(super) fn has_room(context: &Context) -> bool {
    context.observed.full.is_empty()
}

/// True if this holder may try to be promoted, and reserve a timeline for that.
pub(super) fn may_be_promoted(context: &Context, draft: &mut Draft) -> bool {
    if has_room(context) {
        return true;
    }
    let took = draft.memo.holding_since.unwrap_or(context.now);
    let since = took.max(context.tasks().start.ended);
    context.reached(since.plus(TRY), draft)
}

/// Why this member does not do its work, if it lacks room. A primary that serves still has room in its current segment.
pub(super) fn fault(context: &Context) -> Option<String> {
    let volumes = in_words(&context.observed.full)?;
    (!context.serving()).then(|| format!("{volumes} is full"))
}

/// True if the member with this report could be promoted, as far as its volumes are concerned.
pub(super) fn could_be_promoted(report: &MemberReport) -> bool {
    report.full.is_empty()
}

fn in_words(full: &BTreeSet<Volume>) -> Option<&'static str> {
    let volumes = |volume: &Volume| match volume {
        Volume::Data => "its data volume",
        Volume::Wal => "its WAL volume",
    };
    // The volume that ends PostgreSQL first.
    full.last().map(volumes)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use super::*;
    use crate::protocol::Timeline;

    /// When this member took the lease.
    const TOOK: u64 = 1_000;

    fn decided(observed: &Observed, now: u64) -> Decision {
        let mut observed = observed.clone();
        observed.tasks.lease.running = None;
        observed.lease.confirmed.as_mut().unwrap().sent = BootTime(now - 100);
        let memo = Memo {
            holding_since: Some(BootTime(TOOK)),
            ..settled()
        };
        decide(&observed, &memo, BootTime(now))
    }

    fn without_room(volume: Volume) -> Observed {
        Observed {
            full: [volume].into(),
            ..elected()
        }
    }

    #[test]
    fn a_member_without_room_begins_no_promotion() {
        for volume in [Volume::Data, Volume::Wal] {
            let mut observed = without_room(volume);
            let early = decided(&observed, TOOK + 10_000);
            assert_ne!(early.rule, "promote", "{volume:?}");
            assert_eq!(
                decided(&observed, TOOK + TRY.0 - 1).wake,
                Some(BootTime(TOOK).plus(TRY))
            );
            observed.full.clear();
            assert_eq!(
                decided(&observed, TOOK + 10_000).rule,
                "promote",
                "as soon as there is room"
            );
        }
    }

    /// The file system's report of its free space may be wrong.
    #[test]
    fn a_holder_without_room_tries_a_promotion_every_two_minutes() {
        let mut observed = without_room(Volume::Wal);
        assert_eq!(decided(&observed, TOOK + TRY.0).rule, "promote");
        let failed = TOOK + TRY.0 + 1_000;
        (observed.tasks.start.ended, observed.tasks.start.failures) = (BootTime(failed), 1);
        assert_ne!(decided(&observed, failed + TRY.0 - 1).rule, "promote");
        assert_eq!(decided(&observed, failed + TRY.0).rule, "promote");
    }

    #[test]
    fn a_holder_without_room_does_not_reserve_one_timeline_after_another() {
        let mut observed = without_room(Volume::Wal);
        volume(&mut observed).promise.as_mut().unwrap().promoting = Some(Timeline(2));
        let failed = TOOK + 5_000;
        (observed.tasks.start.ended, observed.tasks.start.failures) = (BootTime(failed), 1);
        assert_ne!(decided(&observed, failed + 10_000).rule, "reserve-again");
        assert_eq!(decided(&observed, failed + TRY.0).rule, "reserve-again");
        observed.full.clear();
        assert_eq!(decided(&observed, failed + 10_000).rule, "reserve-again");
    }

    #[test]
    fn a_full_volume_is_reported_and_is_a_fault_unless_the_member_serves() {
        let report = |observed: &Observed| report::status(observed, &settled(), BootTime(1_200)).unwrap().report;
        let mut standby = standby();
        assert_eq!((report(&standby).full, report(&standby).fault), (BTreeSet::new(), None));
        standby.full = [Volume::Data, Volume::Wal].into();
        assert_eq!(report(&standby).full, standby.full);
        assert_eq!(report(&standby).fault.as_deref(), Some("its WAL volume is full"));
        standby.full = [Volume::Data].into();
        assert_eq!(report(&standby).fault.as_deref(), Some("its data volume is full"));
        let mut serves = primary();
        serves.full = [Volume::Wal].into();
        assert_eq!((report(&serves).full.len(), report(&serves).fault), (1, None));
        serves.postgres.answer = None;
        assert!(report(&serves).fault.is_some());
    }
}
