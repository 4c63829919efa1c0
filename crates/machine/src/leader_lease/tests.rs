use proptest::prelude::*;

use super::*;

const TIMING: Timing = Timing::DEFAULT;

fn seen(holder: Option<&str>) -> Option<Seen<'_>> {
    Some(Seen {
        version: "7",
        holder,
        epoch: Epoch(3),
        duration: Millis(10_000),
        changed: BootTime(100_000),
    })
}

fn ask(holder: Option<&'static str>, now: u64, held: Option<Held>) -> Verdict<'static> {
    evaluate(seen(holder), "me", &TIMING, BootTime(now), held)
}

#[test]
fn a_free_lease_is_taken_at_once() {
    assert_eq!(
        ask(None, 100_000, None),
        Verdict::Acquire {
            version: "7",
            epoch: Epoch(4)
        }
    );
}

#[test]
fn a_candidate_waits_the_whole_lease_from_what_it_saw() {
    assert_eq!(
        ask(Some("other"), 109_999, None),
        Verdict::Yield {
            wake: BootTime(110_000)
        }
    );
    assert_eq!(
        ask(Some("other"), 110_000, None),
        Verdict::Acquire {
            version: "7",
            epoch: Epoch(4)
        }
    );
}

#[test]
fn a_longer_promise_of_the_holder_counts() {
    let long = Seen {
        duration: Millis(30_000),
        ..seen(Some("other")).unwrap()
    };
    let verdict = evaluate(Some(long), "me", &TIMING, BootTime(110_000), None);
    assert_eq!(
        verdict,
        Verdict::Yield {
            wake: BootTime(130_000)
        }
    );
}

#[test]
fn a_holder_renews_in_time_and_retries_at_a_pace() {
    let held = Held::since(BootTime(100_000));
    assert_eq!(
        ask(Some("me"), 101_999, Some(held)),
        Verdict::Hold {
            wake: BootTime(102_000)
        }
    );
    let renew = Verdict::Renew {
        version: "7",
        before: BootTime(106_000),
    };
    assert_eq!(ask(Some("me"), 102_000, Some(held)), renew);
    let failed = Held {
        tried: BootTime(102_000),
        ..held
    };
    assert_eq!(
        ask(Some("me"), 102_100, Some(failed)),
        Verdict::Hold {
            wake: BootTime(102_500)
        }
    );
    assert_eq!(ask(Some("me"), 102_500, Some(failed)), renew);
}

#[test]
fn a_holder_without_renewal_fences_at_the_deadline_whatever_it_sees() {
    let held = Held {
        sent: BootTime(100_000),
        tried: BootTime(105_900),
    };
    assert_eq!(
        ask(Some("me"), 105_950, Some(held)),
        Verdict::Hold {
            wake: BootTime(106_000)
        }
    );
    assert_eq!(ask(Some("me"), 106_000, Some(held)), Verdict::Fence);
    let blind = evaluate(None, "me", &TIMING, BootTime(105_999), Some(held));
    assert_eq!(
        blind,
        Verdict::Hold {
            wake: BootTime(106_000)
        }
    );
    assert_eq!(
        evaluate(None, "me", &TIMING, BootTime(106_000), Some(held)),
        Verdict::Fence
    );
}

#[test]
fn a_holder_that_sees_another_one_has_lost() {
    let held = Some(Held::since(BootTime(100_000)));
    assert_eq!(ask(Some("other"), 100_001, held), Verdict::Lost);
    assert_eq!(ask(None, 100_001, held), Verdict::Lost);
}

#[test]
fn a_lost_answer_to_an_own_acquire_is_made_good_in_the_same_epoch() {
    assert_eq!(
        ask(Some("me"), 100_001, None),
        Verdict::Acquire {
            version: "7",
            epoch: Epoch(3)
        }
    );
}

#[test]
fn nothing_is_made_of_an_unreadable_record() {
    assert_eq!(
        evaluate(None, "me", &TIMING, BootTime(5), None),
        Verdict::Yield { wake: BootTime(2_005) }
    );
}

proptest! {
    /// However long a renewal travels, whenever the candidate sees it, and however the two clocks run within 5 % of
    /// each other: the holder has been told to stop, and has had its kill time, when the candidate may take.
    #[test]
    fn a_candidate_never_takes_before_the_holder_has_stopped(
        fast in any::<bool>(),
        sent in 0_u64..100_000,
        travel in 0_u64..20_000,
        sight in 0_u64..20_000,
        candidate_runs_fast_by in 0.0_f64..=0.05,
    ) {
        let timing = if fast { Timing::FAST } else { Timing::DEFAULT };
        // Real time in milliseconds; the holder's clock shows it, the candidate's runs faster.
        let clock = |real: u64| BootTime((real as f64 * (1.0 + candidate_runs_fast_by)).floor() as u64);
        let stopped = sent + timing.fence.0 + timing.kill.0;
        let held = Some(Held::since(BootTime(sent)));
        prop_assert_eq!(evaluate(seen(Some("me")), "me", &timing, BootTime(sent).plus(timing.fence), held), Verdict::Fence);
        let changed = clock(sent + travel + sight);
        let record = Seen { version: "7", holder: Some("me"), epoch: Epoch(3), duration: timing.lease, changed };
        let verdict = evaluate(Some(record), "candidate", &timing, clock(stopped - 1), None);
        prop_assert!(matches!(verdict, Verdict::Yield { .. }), "{:?}", verdict);
    }
}
