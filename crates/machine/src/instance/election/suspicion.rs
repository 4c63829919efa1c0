//! Whether the primary is suspected, why, and since when.

use crate::instance::context::{Context, Tenure};
use crate::instance::{Draft, Memo, failsafe};
use crate::protocol::{Epoch, LeaseRecord};
use crate::timing::BootTime;

/// For so long after it has stood still a member waits for news of the primary, in milliseconds: PostgreSQL and the primary's
/// agent are asked each second.
const NEWS: u64 = 1_500;
/// For so long the primary's agent must refuse connections before it counts as gone, in milliseconds: a port that opens
/// late in a new container is no dead process.
const REFUSED: u64 = 500;
/// So much longer a standby waits that may elect itself alone, in milliseconds: nobody else confirms what it suspects.
pub(super) const ALONE: u64 = 1_000;

/// Whether this standby suspects the primary to be gone, and why. While it still hears the primary, by WAL stream or by
/// agent, it suspects nothing, whatever others say: one-sided cuts depose nobody.
pub(in crate::instance) fn suspicion(context: &Context, draft: &mut Draft) -> Option<&'static str> {
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

/// Since when the primary of which epoch has been suspected.
pub(in crate::instance) fn remember(context: &Context, memo: &mut Memo) {
    let epoch = context.record().map(|record| record.epoch);
    memo.suspected = match (suspicion(context, &mut Draft::default()), epoch, memo.suspected) {
        (None, _, _) | (_, None, _) => None,
        (Some(_), Some(epoch), Some((of, since))) if of == epoch => Some((epoch, since)),
        (Some(_), Some(epoch), _) => Some((epoch, context.now)),
    };
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::*;
    use super::super::promise::answer;
    use super::*;
    use crate::quorum::SyncRule;
    use crate::timing::Timing;

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
    fn strict_reads_wait_for_the_lease_to_run_out() {
        let mut observed = silenced();
        cluster(&mut observed).strict_reads = true;
        assert_eq!(decided(&observed, Timing::DEFAULT.lease - 1).action, Action::Wait);
        assert_eq!(decided(&observed, Timing::DEFAULT.lease).rule, "ask");
    }
}
