//! Helpers that the tests of several decision rules use.

use super::promise::answer;
use super::release::RETURN;
use super::take::MUSTER;
pub(super) use crate::instance::fixtures::*;
pub(super) use crate::instance::*;
use crate::protocol::{Epoch, Lsn, MemberId, Position, PromiseReply, PromiseRequest, Release, Timeline};
use crate::quorum::SyncRule;
use crate::timing::{BootTime, Timing};

pub(super) fn decided(observed: &Observed, now: u64) -> Decision {
    decide(observed, &settled(), BootTime(now))
}

pub(super) fn request(epoch: u64) -> PromiseRequest {
    PromiseRequest {
        epoch: Epoch(epoch),
        pod: "orders-2".to_owned(),
        lease: "lease".to_owned(),
    }
}

pub(super) fn answer_of(observed: &Observed) -> PromiseReply {
    answer(observed, BootTime(SILENT), &request(2)).unwrap()
}

/// The Lease was lost, and the operator has made it again for `orders-1`, the last holder.
pub(super) fn made_again(mut observed: Observed) -> Observed {
    make_again(&mut observed, other_holder().incarnation.member);
    observed
}

pub(super) fn answer_of_last_holder(lsn: u64) -> Promised {
    let mut answer = answer_of_third(2, Some(lsn));
    answer.reply.member = other_holder().incarnation.member;
    answer
}

/// A synchronous rule of this member and `others`.
pub(super) fn member_rule(required: usize, others: &[MemberId]) -> SyncRule {
    let own = volume(&mut silenced()).member.clone().unwrap().id;
    SyncRule::any(required, others.iter().cloned().chain([own]))
}

/// Commits wait for no standby, and the primary is suspected since 1 s: when this member, whose WAL ends at 0x100, is
/// elected.
pub(super) fn elected_at(observed: &Observed) -> Option<u64> {
    let memo = Memo {
        suspected: Some((Epoch(1), BootTime(1_000))),
        ..settled()
    };
    let times = [1_000, 1_000 + MUSTER.0, Timing::DEFAULT.lease.0, 1_000 + RETURN.0];
    let elects = |at: &u64| decide(observed, &memo, BootTime(*at)).rule == "win-election";
    times.into_iter().find(elects)
}

pub(super) fn asynchronous(mut observed: Observed) -> Observed {
    record(&mut observed).rule = SyncRule::default();
    observed
}

pub(super) fn vacant(position: Option<u64>, successor: Option<&str>) -> Observed {
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
