//! The user accepts a loss: with too few promises, the best of the members that answer is elected once the old
//! primary's lease has run out by the clock. An operation orders this for one epoch (`status.intent.acceptLoss`).

use super::election::FRESH;
use super::facts::Context;
use super::observed::Promised;
use super::{Draft, Memo};
use crate::protocol::{Epoch, LeaseRecord};
use crate::units::Millis;

/// How long a candidate waits for positions of members that do not answer. WAL of a late member is worth more than
/// these seconds.
const MUSTER_LOSS: Millis = Millis::seconds(10);
/// The same while a member answers that does not know its WAL end yet, because it replays.
const MUSTER_SLOW: Millis = Millis::minutes(1);

/// True if the user accepts, in this epoch, the loss of what the missing members have.
pub(super) fn is_accepted(context: &Context, record: &LeaseRecord) -> bool {
    context.cluster().and_then(|cluster| cluster.accepted_loss) == Some(record.epoch)
}

/// True if the loss is accepted, every member had time to answer, no member that answers still hears the primary, and
/// the last holder's lease has run out. Then the old primary can acknowledge commits only through members that this one
/// does not hear.
pub(super) fn goes_on(context: &Context, draft: &mut Draft, record: &LeaseRecord, epoch: Epoch) -> bool {
    let (Some((_, suspected)), Some((accepted, since)), Some(expiry)) =
        (draft.memo.suspected, draft.memo.accepted_loss, context.expires_at())
    else {
        return false;
    };
    if accepted != record.epoch {
        return false;
    }
    let fresh = context
        .observed
        .promises
        .values()
        .filter(|answer| context.now.since(answer.at) < FRESH);
    let mut wait = MUSTER_LOSS;
    for Promised { reply, .. } in fresh {
        if reply.promised < epoch && !reply.suspects {
            return false;
        }
        if reply.promised < epoch || reply.position.is_none() {
            // The member is there, and its WAL end will be known.
            wait = MUSTER_SLOW;
        }
    }
    let mustered = suspected.max(since).plus(wait);
    let at = if record.holder.is_some() {
        mustered.max(expiry)
    } else {
        mustered
    };
    context.reached(at, draft)
}

/// Remembers since when a loss has been accepted, and in which epoch.
pub(super) fn remember(context: &Context, memo: &mut Memo) {
    let accepted = context.record().filter(|record| is_accepted(context, record));
    memo.accepted_loss = accepted.map(|record| match memo.accepted_loss {
        Some((of, since)) if of == record.epoch => (of, since),
        _ => (record.epoch, context.now),
    });
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::*;
    use super::*;
    use crate::instance::election::GONE;
    use crate::timing::Timing;

    #[test]
    fn a_loss_must_be_accepted_in_each_epoch() {
        let since = |epoch: u64| {
            let memo = Memo {
                accepted_loss: Some((Epoch(epoch), BootTime(7))),
                ..settled()
            };
            let mut observed = silenced();
            cluster(&mut observed).accepted_loss = Some(Epoch(1));
            decide(&observed, &memo, BootTime(SILENT)).memo.accepted_loss
        };
        assert_eq!(since(1), Some((Epoch(1), BootTime(7))));
        assert_eq!(since(0), Some((Epoch(1), BootTime(SILENT))));
    }

    #[test]
    fn an_accepted_loss_elects_the_best_of_those_that_answer_once_the_lease_has_run_out() {
        let expiry = Timing::DEFAULT.lease.0;
        let accepted = SILENT + 1_000;
        let memo = Memo {
            suspected: Some((Epoch(1), BootTime(SILENT))),
            accepted_loss: Some((Epoch(1), BootTime(accepted))),
            ..settled()
        };
        let mustered = accepted + MUSTER_LOSS.0;
        assert!(mustered > expiry);
        let mut observed = silenced();
        observed.tasks.ask.running = Some(Work::Ask);
        let rule = |observed: &Observed, now: u64| decide(observed, &memo, BootTime(now)).rule;
        assert_eq!(rule(&observed, mustered), "wait", "it suspects alone");
        for stale in [0, 2] {
            cluster(&mut observed).accepted_loss = Some(Epoch(stale));
            assert_eq!(rule(&observed, mustered), "wait", "said of another epoch");
        }
        cluster(&mut observed).accepted_loss = Some(Epoch(1));
        assert_eq!(rule(&observed, mustered), "promise");
        let mut observed = asking(2);
        cluster(&mut observed).accepted_loss = Some(Epoch(1));
        assert_eq!(rule(&observed, mustered - 1), "wait", "other members may still answer");
        assert_eq!(rule(&observed, mustered), "win-election");
        observed.lease.changed = BootTime(mustered);
        assert_eq!(
            rule(&observed, mustered + expiry - 1),
            "wait",
            "the old primary may still write"
        );
        assert_eq!(rule(&observed, mustered + expiry), "win-election");
        observed.lease.changed = BootTime(0);
        let mut told = |promised: u64, suspects: bool, position: Option<u64>, now: u64| {
            let mut answer = answer_of_third(promised, position);
            (answer.reply.suspects, answer.at) = (suspects, BootTime(now));
            record(&mut observed).rule.required = 2;
            for ordinal in [3, 4] {
                let name = MemberId::new(ordinal, "cccc", ordinal);
                record(&mut observed).rule.names.insert(name);
            }
            observed.promises.insert("orders-3".to_owned(), answer);
            rule(&observed, now)
        };
        assert_eq!(told(1, false, None, mustered + 600_000), "wait", "it hears the primary");
        assert_eq!(told(1, true, Some(0x80), mustered), "wait", "it is about to promise");
        assert_eq!(told(1, true, Some(0x80), accepted + MUSTER_SLOW.0), "win-election");
        assert_eq!(told(2, false, Some(0x80), mustered), "win-election", "it has promised");
        assert_eq!(told(2, true, None, mustered), "wait", "it replays");
        assert_eq!(
            told(2, true, None, accepted + MUSTER_SLOW.0),
            "win-election",
            "for too long"
        );
        let mut old = answer_of_third(1, None);
        (old.reply.suspects, old.at) = (false, BootTime(mustered).minus(FRESH));
        observed.promises.insert("orders-3".to_owned(), old);
        assert_eq!(rule(&observed, mustered), "win-election", "that was long ago");
        observed.promises.clear();
        let mut more = |answered: u64| {
            let mut better = answer_of_third(2, Some(0x180));
            better.at = BootTime(answered);
            observed.promises.insert("orders-2".to_owned(), better);
            rule(&observed, mustered)
        };
        assert_eq!(more(mustered - GONE.0 + 1), "wait", "another that answers has more");
        assert_eq!(
            more(mustered - GONE.0),
            "win-election",
            "it answered, and is missing since"
        );
    }
}
