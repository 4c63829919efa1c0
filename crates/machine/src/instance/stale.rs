//! When the Lease is read directly. Its watch may have failed unnoticed: a connection to an API server whose node is
//! gone is silent, and kube notices that after a minute. Until then this member would follow no new primary, and an
//! elected primary that needs it would not open.
//!
//! While all is well the watch delivers the holder's renewals, and nothing is read. While no renewals come (the holder
//! or the API server is gone, the lease has no holder) there are fewer readings than there were renewals.

use super::facts::{Context, Tenure};
use super::{Action, Draft, OnBackoff, Rule, RuleKind, Verdict};
use crate::protocol::{Epoch, LeaseRecord};
use crate::units::Millis;

/// Shortest interval between readings.
const READ: Millis = Millis::seconds(1);
/// Longest interval between readings without news; it grows with the silence.
const SELDOM: Millis = Millis::seconds(5);

pub(super) const READ_LEASE: Rule = Rule {
    name: "read-lease",
    family: "stale",
    what: "Reads the Lease directly when its watch has shown nothing new for too long.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: read_lease,
    on_backoff: OnBackoff::Yield,
};

/// Applies if the Lease has not changed for the time of suspicion, or if another member knows a later epoch. A holder
/// learns the Lease from its own writes.
fn read_lease(context: &Context, draft: &mut Draft) -> Option<Verdict> {
    let record = context.record().filter(|record| record.epoch > Epoch(0))?;
    if !matches!(
        context.tenure(),
        Tenure::Other(_) | Tenure::OwnBefore(_) | Tenure::Vacant
    ) {
        return None;
    }
    let (task, changed) = (&context.tasks().read, context.observed.lease.changed);
    if task.running.is_some() {
        return None;
    }
    let again = task.ended.plus((task.ended.since(changed) / 8).clamp(READ, SELDOM));
    let silent = changed.plus(context.timing().suspect());
    let overtaken = epoch_heard_of(context, record) > record.epoch;
    let at = if overtaken { again } else { again.max(silent) };
    let because = if overtaken {
        "another member knows of a later epoch: the watch may have failed, and the Lease is read"
    } else {
        "the Lease has shown no sign of life for long: the watch may have failed, and it is read"
    };
    if !context.reached(at, draft) {
        return None;
    }
    Verdict::new(Action::ReadLease, because)
}

/// The newest epoch that others know: the holder's, or the one below that of an election.
fn epoch_heard_of(context: &Context, record: &LeaseRecord) -> Epoch {
    let observed = context.observed;
    let promised = observed.promises.values().map(|promised| promised.reply.promised);
    let elections = promised
        .chain(observed.asked_for)
        .map(|epoch| Epoch(epoch.0.saturating_sub(1)));
    let told = observed.reply.as_ref().map(|reply| reply.epoch);
    elections.chain(told).max().unwrap_or(record.epoch)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use super::*;
    use crate::protocol::Release;
    use crate::timing::Timing;

    /// `observed`, which last saw the Lease change at 1 s.
    fn seen(mut observed: Observed) -> Observed {
        observed.lease.changed = BootTime(1_000);
        observed.tasks.read.running = None;
        observed
    }

    fn reads(observed: &Observed, now: u64) -> bool {
        decide(observed, &settled(), BootTime(now)).rule == "read-lease"
    }

    /// [`seen`], with a reading that ended at that time.
    fn read_at(mut observed: Observed, ended: u64) -> Observed {
        observed.tasks.read.ended = BootTime(ended);
        observed
    }

    #[test]
    fn a_standby_reads_the_lease_that_shows_no_sign_of_life() {
        let streams = seen(standby());
        assert!(
            !reads(&streams, SILENT - 1) && reads(&streams, SILENT),
            "also while it streams"
        );
        let wake = decide(&streams, &settled(), BootTime(SILENT - 1)).wake;
        assert!(wake.is_some_and(|wake| wake <= BootTime(SILENT)), "{wake:?}");
        assert!(reads(&seen(asking(2)), SILENT), "also in an election");
        let mut fast = seen(standby());
        cluster(&mut fast).timing = Timing::FAST;
        assert!(reads(&fast, 1_000 + Timing::FAST.suspect().0));
        let mut reading = seen(standby());
        reading.tasks.read.running = Some(Work::ReadLease);
        assert!(!reads(&reading, SILENT));
        assert!(
            !reads(&seen(primary()), SILENT + 1_000),
            "the holder learns it from its writes"
        );
    }

    #[test]
    fn readings_are_a_second_apart_and_become_rarer() {
        let after = |ended: u64, distance: u64| {
            let observed = read_at(seen(asking(2)), ended);
            !reads(&observed, ended + distance - 1) && reads(&observed, ended + distance)
        };
        assert!(after(SILENT, READ.0));
        assert!(after(1_000 + 16_000, 2_000));
        assert!(after(1_000_000, SELDOM.0));
    }

    #[test]
    fn a_member_that_hears_of_a_later_epoch_reads_at_once() {
        type Tells = fn(&mut Observed, u64);
        let changes: [(Tells, &str); 3] = [
            (|o, epoch| o.reply.as_mut().unwrap().epoch = Epoch(epoch), "the holder"),
            (|o, epoch| o.asked_for = Some(Epoch(epoch + 1)), "a candidate"),
            (|o, epoch| third_answers(o, epoch + 1, None), "a voter"),
        ];
        for (change, who) in changes {
            let heard = |epoch: u64| {
                let mut observed = seen(standby());
                change(&mut observed, epoch);
                observed
            };
            assert!(!reads(&heard(1), 1_500), "{who}");
            assert!(reads(&heard(2), 1_500), "{who}");
            assert!(!reads(&read_at(heard(2), 1_400), 1_400 + READ.0 - 1), "{who}");
        }
    }

    #[test]
    fn a_lease_without_a_holder_is_read_unless_it_was_never_held() {
        let mut observed = seen(standby());
        let member = other_holder().incarnation.member;
        record(&mut observed).holder = None;
        record(&mut observed).release = Some(Release {
            member,
            position: None,
            successor: None,
        });
        let memo = settled();
        let rules = |observed: &Observed| {
            let mut observed = observed.clone();
            observed.tasks.ask.running = Some(Work::Ask);
            observed.tasks.promise.running = Some(Work::Promise);
            decide(&observed, &memo, BootTime(60_000)).rule
        };
        assert_eq!(rules(&observed), "read-lease");
        record(&mut observed).epoch = Epoch(0);
        assert_ne!(rules(&observed), "read-lease");
    }
}
