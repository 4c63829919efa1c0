use super::*;

/// All orders in which `steps` can end, one step at a time.
fn orders<S: Copy + PartialEq + fmt::Debug>(steps: &'static [Step<S>]) -> Vec<Vec<S>> {
    let mut whole = Vec::new();
    let mut open = vec![(Walk::new(steps), Vec::new())];
    while let Some((walk, order)) = open.pop() {
        if walk.is_over() {
            whole.push(order);
            continue;
        }
        for step in steps.iter().map(|step| step.step) {
            let mut next = walk;
            if next.begin(step).is_ok() {
                next.end(step).expect("it has begun");
                open.push((next, [order.clone(), vec![step]].concat()));
            }
        }
    }
    whole
}

#[test]
fn a_step_out_of_order_is_refused() {
    let mut walk = Walk::new(PROMISE);
    let early = OutOfOrder {
        step: PromiseStep::EndReceiver,
        missing: Some(PromiseStep::Write),
    };
    assert_eq!(walk.begin(PromiseStep::EndReceiver), Err(early));
    assert_eq!(early.to_string(), "the step EndReceiver comes after Write");
    assert_eq!(walk.begin(PromiseStep::Write), Ok(()));
    assert_eq!(walk.begin(PromiseStep::EndReceiver), Err(early), "it has not ended");
    assert!(walk.begin(PromiseStep::Write).is_err(), "it has begun");
    assert!(walk.end(PromiseStep::EndReceiver).is_err(), "it has not begun");
    assert_eq!(walk.end(PromiseStep::Write), Ok(()));
    assert!(walk.end(PromiseStep::Write).is_err(), "it has ended");
    assert_eq!(walk.begin(PromiseStep::EndReceiver), Ok(()));
    assert!(!walk.is_over());
}

#[test]
fn a_promise_has_one_order() {
    assert_eq!(
        orders(PROMISE),
        [[PromiseStep::Write, PromiseStep::EndReceiver, PromiseStep::EmptyUpstream]]
    );
    assert_eq!(
        orders(PROMISE_WRITES),
        [[PromiseWrite::Epoch, PromiseWrite::RemoveCredential]]
    );
}

#[test]
fn each_order_of_a_promotion_keeps_the_protocol() {
    use PromotionStep::{
        CheckLease, CheckTimeline, EndSessions, KeepSlots, Note, Promote, ProveConfiguration, ReserveTimeline,
    };
    let orders = orders(PROMOTION);
    assert!(orders.len() > 1, "some steps may run beside each other");
    for order in orders {
        let at = |step| {
            order
                .iter()
                .position(|listed| *listed == step)
                .expect("it is in the list")
        };
        // Rule 14: noted and reserved before PostgreSQL may pick a number.
        assert!(at(Note) < at(Promote) && at(ReserveTimeline) < at(Promote));
        // The configuration must not be read before the note is on disk.
        assert!(at(Note) < at(ProveConfiguration));
        // Rule 13: the names are proven, and applications are gone.
        assert!(at(ProveConfiguration) < at(EndSessions) && at(EndSessions) < at(Promote));
        // Asked at the last moment: only the slots, which take their own time, come between.
        let between = &order[at(CheckLease) + 1..at(Promote)];
        assert!(between.iter().all(|step| *step == KeepSlots));
        assert!(at(Promote) < at(CheckTimeline));
    }
}

#[test]
fn steps_that_wait_for_the_same_begin_together() {
    let mut walk = Walk::new(PROMOTION);
    for step in [PromotionStep::CheckStandby, PromotionStep::AwaitReplay] {
        assert_eq!(walk.begin_next(), Some(step));
        assert_eq!(walk.begin_next(), None, "all others wait for it");
        walk.end(step).expect("it has begun");
    }
    let together: Vec<_> = std::iter::from_fn(|| walk.begin_next()).collect();
    assert_eq!(
        together,
        [
            PromotionStep::KeepSlots,
            PromotionStep::Note,
            PromotionStep::WriteConfiguration,
            PromotionStep::ReserveTimeline
        ]
    );
}

#[test]
fn each_list_names_each_step_once_and_only_steps_before_it() {
    fn check<S: Copy + PartialEq + fmt::Debug>(steps: &'static [Step<S>]) {
        for (place, step) in steps.iter().enumerate() {
            let before: Vec<S> = steps[..place].iter().map(|step| step.step).collect();
            assert!(!before.contains(&step.step), "{:?}", step.step);
            assert!(step.after.iter().all(|after| before.contains(after)), "{:?}", step.step);
            assert!(
                step.protocol.is_sorted() && !step.protocol.is_empty(),
                "{:?}",
                step.step
            );
            assert!(step.what.ends_with('.') && step.what.split_whitespace().count() <= 30);
        }
    }
    check(PROMISE);
    check(PROMISE_WRITES);
    check(PROMOTION);
}
