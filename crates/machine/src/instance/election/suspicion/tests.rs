use super::super::fixtures::*;
use super::super::promise::answer;
use super::*;
use crate::quorum::SyncRule;
use crate::timing::Timing;

#[test]
fn a_member_that_hears_the_primary_promises_nothing() {
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
fn silence_of_stream_and_agent_leads_to_suspicion_and_requests() {
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
    // A port that opens late is no sign of a dead process while the stream lives.
    observed.postgres.answer.as_mut().unwrap().streaming = true;
    assert_eq!(decided(&observed, 1_600).action, Action::Wait);
}

#[test]
fn a_standby_that_may_elect_itself_alone_waits_longer() {
    let mut observed = silenced();
    let own = volume(&mut observed).member.clone().unwrap().id;
    record(&mut observed).rule = SyncRule::any(1, [own]);
    let alone = |observed: &Observed, now: u64| decided(observed, now).rule == "promise";
    assert!(!alone(&observed, SILENT + ALONE.0 - 1) && alone(&observed, SILENT + ALONE.0));
    observed.contact.refused = Some(BootTime(1_100));
    assert!(!alone(&observed, 1_100 + REFUSED.0 + ALONE.0 - 1) && alone(&observed, 1_100 + REFUSED.0 + ALONE.0));
    let at_least = Timing::DEFAULT.renew / 2;
    assert!(
        ALONE >= at_least,
        "no other member confirms the suspicion: it waits for one more report interval"
    );
}

#[test]
fn a_member_that_was_stalled_waits_for_news_before_it_suspects() {
    let suspects = |went_on: Option<u64>, now: u64| {
        let mut observed = asking(2);
        third_answers(&mut observed, 2, Some(0x80));
        observed.went_on = went_on.map(BootTime);
        decided(&observed, now).rule == "win-election"
    };
    assert!(suspects(None, SILENT));
    assert!(!suspects(Some(SILENT), SILENT) && !suspects(Some(SILENT), SILENT + NEWS.0 - 1));
    assert!(suspects(Some(SILENT), SILENT + NEWS.0), "and no longer");
    assert!(suspects(Some(SILENT - NEWS.0), SILENT));
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
    assert_eq!(decided(&observed, Timing::DEFAULT.lease.0 - 1).action, Action::Wait);
    assert_eq!(decided(&observed, Timing::DEFAULT.lease.0).rule, "ask");
}
