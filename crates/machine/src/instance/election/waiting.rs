//! What an election waits for, as text.

use std::borrow::Cow;

use api::names::LEASE_TIMELINE;

use super::GONE;
use super::ranking::{Known, ranked, unheard};
use super::release::{RETURN, is_left_whole};
use super::suspicion::suspicion;
use crate::instance::facts::Context;
use crate::instance::lease_rules::next_timeline;
use crate::instance::{Draft, Memo};
use crate::protocol::{ASYNC_LOSS, LeaseRecord, MemberId, Position, Timeline};
use crate::units::Bytes;

/// Why no member can take the lease any more: a number in the Lease has no successor.
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
             An administrator must correct it to the newest timeline that any member has",
            reserved.0, own.0
        )
    })
}

/// Describes what an election waits for: each missing answer, and who could give it.
pub(in crate::instance) fn waiting(context: &Context, memo: &Memo) -> Option<Cow<'static, str>> {
    let record = context.record()?;
    let why = suspicion(context, &mut Draft::new(memo))?;
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
                "{why}; {member} has WAL up to {}, this member only up to {}",
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
                "{why}; the Lease was made again, and each member may have commits that no other has. The WAL end of these members \
                 is not known: {}. They must come back, or the user must accept the loss (kubectl cdb accept-loss)",
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

/// What an election waits for while commits wait for no standby.
fn lacking(record: &LeaseRecord, own: Position, why: &'static str) -> Cow<'static, str> {
    let lacks = record.lacks(own);
    let left = record.left().unwrap_or(own).lsn;
    let amount = match lacks {
        Bytes::MAX => "is on a timeline beside it".to_owned(),
        lacks => format!("lacks {lacks} of it"),
    };
    let known = format!("{why}; the last primary had WAL up to {left}, and this member {amount}");
    if lacks > ASYNC_LOSS {
        format!("{known}: that member must come back, or the user must accept the loss (kubectl cdb accept-loss)")
            .into()
    } else if is_left_whole(record, own) {
        let seconds = RETURN.in_seconds();
        format!("{known}: that member stopped on purpose, and has {seconds} s to come back").into()
    } else {
        why.into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::*;
    use crate::timing::BootTime;

    #[test]
    fn a_wait_names_what_the_election_waits_for() {
        let told = |observed: &Observed, now: u64| {
            let context = Context::new(observed, BootTime(now));
            let why = suspicion(&context, &mut Draft::new(&Memo::default())).unwrap();
            let waits = waiting(&context, &Memo::default()).unwrap();
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
        assert!(told(&observed, SILENT).ends_with("has WAL up to 0/101, this member only up to 0/100"));
        third_answers(&mut observed, 2, Some(0x100));
        assert_eq!(told(&observed, SILENT), "");
        let stopped = asynchronous(vacant(Some(0x101), None));
        assert!(told(&stopped, 1_001).ends_with("stopped on purpose, and has 60 s to come back"));
    }
}
