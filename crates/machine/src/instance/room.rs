//! A member whose volumes have no room. It cannot be promoted: a new timeline begins with a segment of its own. Each try costs a timeline
//! and an epoch, and ends its server.

use std::collections::BTreeSet;

use super::Draft;
use super::context::Context;
use crate::protocol::{MemberReport, Volume};

/// A holder without room tries a promotion this long after it took the lease, and after its last try, in milliseconds. That it has
/// none may be wrong: a file system that compresses takes a segment of zeros although it says that it is full.
pub(super) const TRY: u64 = 120_000;

/// This member's volumes have room, as far as is known.
pub(super) fn has_room(context: &Context) -> bool {
    context.observed.full.is_empty()
}

/// This holder may try to be promoted, and reserve a timeline for that.
pub(super) fn may_be_promoted(context: &Context, draft: &mut Draft) -> bool {
    if has_room(context) {
        return true;
    }
    let took = draft.memo.holding_since.unwrap_or(context.now);
    let since = took.max(context.tasks().start.ended);
    context.reached(since.plus(TRY), draft)
}

/// Why this member does not do its work, if it is for lack of room. A primary that serves has room in the segment of now.
pub(super) fn fault(context: &Context) -> Option<String> {
    let volumes = in_words(&context.observed.full)?;
    (!context.serving()).then(|| format!("{volumes} is full"))
}

/// The member that reports this could be promoted, as far as its volumes go.
pub(super) fn could_be_promoted(report: &MemberReport) -> bool {
    report.full.is_empty()
}

fn in_words(full: &BTreeSet<Volume>) -> Option<&'static str> {
    let volumes = |volume: &Volume| match volume {
        Volume::Data => "its data volume",
        Volume::Wal => "its WAL volume",
    };
    // What ends PostgreSQL first.
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
    fn who_has_no_room_begins_no_promotion() {
        for volume in [Volume::Data, Volume::Wal] {
            let mut observed = without_room(volume);
            let early = decided(&observed, TOOK + 10_000);
            assert_ne!(early.rule, "promote", "{volume:?}");
            assert_eq!(decided(&observed, TOOK + TRY - 1).wake, Some(BootTime(TOOK + TRY)));
            observed.full.clear();
            assert_eq!(
                decided(&observed, TOOK + 10_000).rule,
                "promote",
                "as soon as there is room"
            );
        }
    }

    /// What the file system says of its room may be wrong.
    #[test]
    fn who_has_no_room_tries_a_promotion_all_the_same_after_two_minutes_and_each_two() {
        let mut observed = without_room(Volume::Wal);
        assert_eq!(decided(&observed, TOOK + TRY).rule, "promote");
        let failed = TOOK + TRY + 1_000;
        (observed.tasks.start.ended, observed.tasks.start.failures) = (BootTime(failed), 1);
        assert_ne!(decided(&observed, failed + TRY - 1).rule, "promote");
        assert_eq!(decided(&observed, failed + TRY).rule, "promote");
    }

    #[test]
    fn who_has_no_room_reserves_no_timeline_after_the_other() {
        let mut observed = without_room(Volume::Wal);
        volume(&mut observed).promise.as_mut().unwrap().promoting = Some(Timeline(2));
        let failed = TOOK + 5_000;
        (observed.tasks.start.ended, observed.tasks.start.failures) = (BootTime(failed), 1);
        assert_ne!(decided(&observed, failed + 10_000).rule, "reserve-again");
        assert_eq!(decided(&observed, failed + TRY).rule, "reserve-again");
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
