//! Whether this member's data is part of the primary's history (protocol.md rules 9 and 17).

use super::context::Context;
use super::{election, standby};
use crate::protocol::{Lsn, Timeline};

/// What is known of this member's data beside the primary's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lineage {
    /// It is part of the primary's history: it can follow.
    Follows,
    /// It is not; or where its WAL ends is not known, and it was written by a primary.
    Diverged {
        /// Its timeline.
        timeline: Timeline,
    },
    /// The primary has not said yet what its history is, or PostgreSQL not where the WAL ends that lies here.
    Unknown,
}

/// Where this member's WAL ends.
struct Extent {
    timeline: Timeline,
    /// It has all up to here.
    least: Lsn,
    /// It has nothing behind this; `None`: that is not known.
    most: Option<Lsn>,
}

/// Compares the data with the history that the holder published (protocol.md rule 9: LSNs of different timelines say nothing).
///
/// PostgreSQL lets a standby whose WAL goes beyond the fork begin to stream, if it ends in the fork's segment, and counts for
/// commits all that it says it has. So nobody follows before it is known that all that it has is the primary's, too.
pub(super) fn lineage(context: &Context) -> Lineage {
    let (Some(primary), Some(record), Some(own)) = (standby::upstream(context), context.record(), extent(context))
    else {
        return Lineage::Unknown;
    };
    let timeline = own.timeline;
    // Whoever follows already was found to be able to.
    let is_within = |end: Lsn| own.most.is_some_and(|most| most <= end) || standby::follows(context, primary);
    // A promotion that was begun here may have left WAL of a timeline that nobody else has.
    let promoted = context.promise().is_some_and(|promise| promise.promoting.is_some());
    let Some(theirs) = primary.timeline else {
        // It has WAL of the timeline that is reserved for it: it was primary before, and all that there is of it is its own.
        let goes_on = timeline == record.timeline.unwrap_or(Timeline(1));
        // It was elected, and is not promoted yet. What it has itself it wrote into the Lease when it took it.
        let has = record.positions.get(&primary.incarnation.pod);
        let has_all = has.is_some_and(|has| has.timeline == timeline && is_within(has.lsn));
        return match !promoted && (goes_on || has_all) {
            true => Lineage::Follows,
            false => Lineage::Unknown,
        };
    };
    let fork = record.history.iter().find(|fork| fork.timeline == timeline);
    match fork {
        _ if promoted => Lineage::Diverged { timeline },
        None if timeline == theirs => Lineage::Follows,
        Some(fork) if own.least <= fork.end => match is_within(fork.end) {
            true => Lineage::Follows,
            false => Lineage::Unknown,
        },
        Some(_) | None => Lineage::Diverged { timeline },
    }
}

/// A running standby says where its WAL ends, once it has read all and receives none. That end is final only if the standby
/// follows nobody: a former primary that comes back sends more before the standby has read its new settings. The control file
/// of a stopped standby names a place behind which more WAL may lie, also of a newer timeline.
fn extent(context: &Context) -> Option<Extent> {
    if let (Some(_), Some(position)) = (context.running(), context.position()) {
        let end = context.final_position().map(|position| position.lsn);
        return Some(Extent {
            timeline: position.timeline,
            least: position.lsn,
            most: end.filter(|_| follows_nobody(context)),
        });
    }
    let database = context.database()?;
    let (least, most) = match (database.primary, database.clean) {
        (false, _) => (database.checkpoint, database.written.max(database.checkpoint)),
        (true, true) => (database.checkpoint, database.checkpoint),
        // It may have written more than anybody has.
        (true, false) => (Lsn(u64::MAX), Lsn(u64::MAX)),
    };
    Some(Extent {
        timeline: database.timeline,
        least,
        most: Some(most),
    })
}

/// PostgreSQL's settings name no primary to receive from, and no promise that failed may have left a WAL receiver running.
fn follows_nobody(context: &Context) -> bool {
    let configured = context.observed.postgres.configured.as_ref();
    configured.is_some_and(|configured| configured.upstream.is_none()) && election::is_kept(context)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use crate::protocol::{Lsn, Position, Timeline};
    use crate::timing::BootTime;

    fn decided(observed: &Observed) -> Decision {
        decide(observed, &settled(), BootTime(1_200))
    }

    fn at(lsn: u64) -> Position {
        Position {
            timeline: Timeline(1),
            lsn: Lsn(lsn),
        }
    }

    /// The holder is on timeline 2, which began at 0x100 of timeline 1.
    fn forked(observed: Observed) -> Observed {
        let postgres = observed.postgres.clone();
        let mut observed = left_behind(observed, 0x80, false);
        observed.tasks.report.running = Some(Work::Report);
        observed.postgres = postgres;
        observed
    }

    /// A standby that was killed: its control file names `checkpoint`, its WAL ends at `written`.
    fn killed(checkpoint: u64, written: u64) -> Observed {
        let mut observed = forked(standby());
        observed.postgres = stopped();
        let database = data(&mut observed);
        (database.checkpoint, database.written) = (Lsn(checkpoint), Lsn(written));
        observed
    }

    /// It runs, and follows nobody; `ends`: it has read all that it has.
    fn unled(lsn: u64, ends: bool) -> Observed {
        let mut observed = forked(standby());
        let answer = observed.postgres.answer.as_mut().unwrap();
        (answer.position, answer.received_all, answer.streaming) = (Some(at(lsn)), ends, false);
        observed.postgres.configured.as_mut().unwrap().upstream = None;
        observed
    }

    /// Whom it is started to follow, if it is started.
    fn started(observed: &Observed) -> Option<Option<String>> {
        match decided(observed).action {
            Action::StartStandby { upstream, .. } => Some(upstream.map(|upstream| upstream.address)),
            _ => None,
        }
    }

    /// Whom it is told to follow, if it is told something else than before.
    fn led(observed: &Observed) -> Option<Option<String>> {
        match decided(observed).action {
            Action::Configure { upstream, .. } => Some(upstream.map(|upstream| upstream.address)),
            _ => None,
        }
    }

    fn holder() -> Option<String> {
        Some("10.0.0.2".to_owned())
    }

    #[test]
    fn a_killed_standby_follows_only_if_all_its_wal_is_before_the_fork() {
        assert_eq!(started(&killed(0x80, 0x100)), Some(holder()));
        assert_eq!(started(&killed(0x80, 0x101)), Some(None), "it has to say where it ends");
        assert_eq!(decided(&killed(0x101, 0x101)).rule, "rewind");
        let mut same = killed(0x80, 0x180);
        record(&mut same).holder.as_mut().unwrap().timeline = Some(Timeline(1));
        record(&mut same).history.clear();
        assert_eq!(started(&same), Some(holder()), "the holder wrote that timeline itself");
    }

    #[test]
    fn a_running_standby_follows_once_it_knows_where_its_wal_ends() {
        assert_eq!(led(&unled(0x100, true)), Some(holder()));
        assert_eq!(led(&unled(0x100, false)), None, "it may have more than it has read");
        assert_eq!(decided(&unled(0x101, true)).rule, "stop diverged");
        assert_eq!(decided(&unled(0x101, false)).rule, "stop diverged");
        assert_eq!(decided(&forked(standby())).action, Action::Wait, "it follows already");
    }

    /// The former primary may come back before this standby has read whom to follow now, and send more.
    #[test]
    fn an_end_is_final_only_where_nobody_is_followed_any_more() {
        for ends in [false, true] {
            let mut former = unled(0x100, ends);
            former.postgres.configured.as_mut().unwrap().upstream = Some(Upstream {
                address: "10.0.0.3".to_owned(),
                epoch: Epoch(0),
            });
            let decision = decided(&former);
            let promise = Action::Promise { epoch: Epoch(1) };
            assert_eq!((decision.rule, decision.action), ("leave former primary", promise));
            former.tasks.promise.running = Some(Work::Promise);
            assert_eq!(decided(&former).action, Action::Wait, "it is under way");
            former.tasks.promise = Task {
                ended: BootTime(1_150),
                ..Task::default()
            };
            former.promised(Promise {
                epoch: Epoch(1),
                promoting: None,
            });
            assert_eq!(decided(&former).action, Action::Wait, "PostgreSQL is asked again");
            let answer = former.postgres.answer.as_mut().unwrap();
            (answer.asked, answer.received_all) = (BootTime(1_149), true);
            assert_eq!(led(&former), None, "that was before the promise ended");
            former.postgres.answer.as_mut().unwrap().asked = BootTime(1_150);
            assert_eq!(led(&former), Some(holder()));
            former.tasks.promise.failures = 1;
            former.tasks.promise.ended = BootTime(900);
            assert_eq!(
                decided(&former).rule,
                "leave former primary",
                "a WAL receiver may be left"
            );
        }
    }

    #[test]
    fn who_is_elected_is_followed_before_its_promotion_if_it_has_as_much() {
        let elected = |mut observed: Observed, has: Option<Position>| {
            let record = record(&mut observed);
            record.holder.as_mut().unwrap().timeline = None;
            record.history.clear();
            record.timeline = Some(Timeline(2));
            record.positions = has.map(|has| ("orders-1".to_owned(), has)).into_iter().collect();
            observed
        };
        let newer = Position {
            timeline: Timeline(2),
            lsn: Lsn(0x200),
        };
        for (lsn, has, follows) in [
            (0x100, Some(at(0x100)), true),
            (0x101, Some(at(0x100)), false),
            (0x100, Some(newer), false),
            (0x100, None, false),
        ] {
            let observed = elected(unled(lsn, true), has);
            assert_eq!(led(&observed), follows.then(holder), "{lsn:X} {has:?}");
            let observed = elected(killed(0x80, lsn), has);
            assert_eq!(
                started(&observed),
                Some(holder().filter(|_| follows)),
                "{lsn:X} {has:?}"
            );
        }
        assert_eq!(led(&elected(unled(0x100, false), Some(at(0x100)))), None);
        let mut again = elected(unled(0x100, false), None);
        record(&mut again).timeline = Some(Timeline(1));
        assert_eq!(
            led(&again),
            Some(holder()),
            "it wrote that timeline before, and goes on with it"
        );
        volume(&mut again).promise.as_mut().unwrap().promoting = Some(Timeline(1));
        assert_eq!(led(&again), None);
    }
}
