//! A switchover that the user asks for once, by the annotation [`api::names::ANNOTATION_SWITCHOVER`]. What came of it is
//! remembered with the annotation's value, so that only another value asks again. How it is done is in
//! [`super::switchover`].

use api::status::{RequestOutcome, SwitchoverRequest};
use chrono::TimeDelta;

use super::action::{Action, StatusChange};
use super::decision::Step;
use super::facts::Facts;
use super::fenced;
use super::observed::Pod;
use super::restarts;
use super::rule::{Proposal, Rule};
use crate::protocol::MemberState;

/// See [`Rule::what`].
pub const REQUEST: Rule = Rule {
    name: "request",
    family: "request",
    what: "A switchover that the user asks for (annotation) is noted, and its outcome is. It is given up at once where spec.primary.prefer names another instance, and after 5 min in which it could not begin.",
    propose: request,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_REQUEST: Rule = Rule {
    name: "await-request",
    family: "request",
    what: "What keeps a requested switchover from beginning is said.",
    propose: await_request,
    passable: false,
};

/// Somebody stands by and expects it: one that happens much later is a surprise.
const PATIENCE: TimeDelta = TimeDelta::minutes(5);
/// Of the annotation's value so many bytes count: the status is to hold it.
const LONGEST: usize = 128;

/// The annotation's value.
fn value<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    let value = facts.wanted.switchover?;
    let end = (0..=LONGEST.min(value.len()))
        .rev()
        .find(|end| value.is_char_boundary(*end));
    Some(&value[..end.unwrap_or(0)])
}

/// The instance that a value names.
fn instance(value: &str) -> &str {
    value.split_once('/').map_or(value, |(instance, _)| instance)
}

/// The instance that is to be the primary by a request that is still open.
pub(super) fn open<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    let value = value(facts)?;
    let noted = facts.status.memo.request.as_ref()?;
    (noted.value == value && noted.outcome.is_none()).then(|| instance(value))
}

/// A value that asks for this instance, and is not the one that was asked with last.
pub(super) fn fresh(facts: &Facts<'_>, instance: &str) -> String {
    let value = format!("{instance}/{}", facts.wanted.generation);
    match &facts.status.memo.request {
        Some(noted) if noted.value == value => format!("{value}-again"),
        _ => value,
    }
}

/// The open request, with the outcome that it has now.
pub(super) fn ended(facts: &Facts<'_>, outcome: RequestOutcome, why: String) -> Option<StatusChange> {
    open(facts)?;
    let noted = facts.status.memo.request.clone()?;
    Some(StatusChange::NoteRequest(Some(SwitchoverRequest {
        outcome: Some(outcome),
        message: Some(why),
        ..noted
    })))
}

fn write(change: StatusChange, because: String) -> Option<Proposal> {
    Proposal::act(Step::Switchover, Action::WriteStatus(vec![change]), because)
}

fn request(facts: &Facts<'_>) -> Option<Proposal> {
    let noted = facts.status.memo.request.as_ref();
    let Some(value) = value(facts) else {
        let taken_back = noted.filter(|noted| noted.outcome.is_none())?;
        let because = format!("the request {} was taken back", taken_back.value);
        return write(StatusChange::NoteRequest(None), because);
    };
    let Some(noted) = noted.filter(|noted| noted.value == value) else {
        let new = SwitchoverRequest {
            value: value.to_owned(),
            since: facts.now,
            outcome: None,
            message: None,
        };
        let because = format!("a switchover to {} is requested", instance(value));
        return write(StatusChange::NoteRequest(Some(new)), because);
    };
    let target = open(facts)?;
    let (outcome, why) = if facts.primary().is_some_and(|primary| primary.name == target) {
        (RequestOutcome::Done, format!("{target} is the primary"))
    } else if let Some(prefer) = contradicts(facts, target) {
        let why = format!(
            "the switchover to {target} is refused: spec.primary.prefer names {prefer}; change or remove that instead"
        );
        (RequestOutcome::GivenUp, why)
    } else if facts.now >= noted.since + PATIENCE && facts.status.intent.primary.as_deref() != Some(target) {
        let minutes = PATIENCE.num_minutes();
        let why = format!(
            "the switchover to {target} could not begin within {minutes} min: {}",
            obstacle(facts, target)
        );
        (RequestOutcome::GivenUp, why)
    } else {
        return None;
    };
    write(ended(facts, outcome, why.clone())?, why)
}

/// The instance that the spec prefers instead.
fn contradicts<'a>(facts: &Facts<'a>, target: &str) -> Option<&'a str> {
    let prefer = facts.wanted.spec.primary.preferred();
    prefer.filter(|prefer| *prefer != target)
}

fn obstacle(facts: &Facts<'_>, target: &str) -> String {
    match facts.primary() {
        None => "no primary serves that could hand over".to_owned(),
        Some(primary) => unfit(facts, primary, target).unwrap_or_else(|| "another change is under way".to_owned()),
    }
}

/// Why `primary` cannot hand over to the instance `target` now.
pub(super) fn unfit(facts: &Facts<'_>, primary: &Pod, target: &str) -> Option<String> {
    let replicas = facts.wanted.replicas();
    if (0..replicas).all(|ordinal| format!("{}-{ordinal}", facts.wanted.name) != target) {
        return Some(format!("there is no instance {target} among {replicas}"));
    }
    let Some(pod) = facts.pods().iter().find(|pod| pod.name == target) else {
        return Some(format!("{target} has no pod"));
    };
    if fenced::is_fenced(facts, target) {
        return Some(format!("spec.fenced names {target}"));
    }
    if !streams(facts, pod) {
        return Some(format!("{target} does not stream from the primary"));
    }
    if !facts.takes_pods(pod) && facts.takes_pods(primary) {
        return Some(format!(
            "the node of {target} takes no pods, so it would not stay primary"
        ));
    }
    if facts.current_revision(primary) && !facts.current_revision(pod) {
        return Some(format!("the pod of {target} is of an older template"));
    }
    let permit = restarts::restarting(facts)?;
    Some(format!("{} restarts PostgreSQL", permit.pod))
}

/// It serves as a standby that receives WAL.
pub(super) fn streams(facts: &Facts<'_>, pod: &Pod) -> bool {
    let report = facts.report(pod);
    let serves = facts.serves(pod) && !fenced::is_fenced(facts, &pod.name);
    serves && report.is_some_and(|report| report.state == MemberState::Streaming)
}

fn await_request(facts: &Facts<'_>) -> Option<Proposal> {
    let target = open(facts)?;
    let deadline = facts.status.memo.request.as_ref()?.since + PATIENCE;
    let what = format!("the requested switchover to {target}: {}", obstacle(facts, target));
    let who = "the agents, or the user by another request";
    Some(Proposal::wait(facts, Step::Switchover, what, who)?.until(deadline))
}

#[cfg(test)]
mod tests {
    use api::Phase;
    use api::status::RequestOutcome::{Done, GivenUp};

    use super::super::testing::Scene;
    use super::*;

    fn asked(value: &str) -> Scene {
        let mut scene = Scene::ready(3);
        scene.switchover = Some(value.to_owned());
        scene.store();
        scene
    }

    fn outcome(scene: &Scene) -> (Option<RequestOutcome>, String) {
        let request = scene.stored.memo.request.clone().unwrap();
        (request.outcome, request.message.unwrap_or_default())
    }

    #[test]
    fn a_value_to_ask_with_is_another_than_the_last() {
        let fresh = |asked: Option<&str>| {
            let mut scene = Scene::ready(3);
            scene.stored.memo.request = asked.map(|value| SwitchoverRequest {
                value: value.to_owned(),
                since: scene.now,
                outcome: None,
                message: None,
            });
            scene.with_facts(|facts| super::fresh(facts, "demo-1"))
        };
        assert_eq!(
            (fresh(None), fresh(Some("demo-2"))),
            ("demo-1/1".to_owned(), "demo-1/1".to_owned())
        );
        assert_eq!(fresh(Some("demo-1/1")), "demo-1/1-again");
    }

    #[test]
    fn it_is_done_once() {
        let mut scene = asked("demo-2");
        let decision = scene.store();
        assert_eq!(
            (decision.phase, scene.stored.intent.primary.as_deref()),
            (Phase::SwitchingOver, Some("demo-2"))
        );
        scene.elect(2);
        scene.store();
        assert_eq!(outcome(&scene), (Some(Done), "demo-2 is the primary".to_owned()));
        scene.store();
        assert_eq!(
            (scene.stored.intent.primary.clone(), scene.decide().rule),
            (None, "rest")
        );
        scene.elect(0);
        assert_eq!(scene.decide().rule, "rest", "the same value does nothing any more");
        scene.switchover = Some("demo-2/again".to_owned());
        scene.store();
        scene.store();
        assert_eq!(scene.stored.intent.primary.as_deref(), Some("demo-2"));
    }

    #[test]
    fn what_cannot_be_done_is_waited_for_with_a_reason_and_given_up() {
        let unfit = |value: &str, change: &dyn Fn(&mut Scene), why: &str| {
            let mut scene = Scene::ready(3);
            change(&mut scene);
            scene.store();
            let phase = scene.decide().phase;
            scene.switchover = Some(value.to_owned());
            scene.store();
            let decision = scene.store();
            assert_eq!((decision.rule, decision.phase), ("await-request", phase), "{value}");
            let waiting = scene.stored.waiting.clone().unwrap();
            assert!(waiting.what.ends_with(why), "{}", waiting.what);
            assert_eq!(waiting.deadline, Some(scene.now + PATIENCE));
            scene.now += PATIENCE;
            scene.store();
            let (outcome, message) = outcome(&scene);
            assert!(outcome == Some(GivenUp) && message.ends_with(why), "{message}");
            assert_ne!(scene.decide().rule, "await-request");
        };
        let nothing: &dyn Fn(&mut Scene) = &|_| {};
        unfit("demo-3", nothing, "there is no instance demo-3 among 3");
        unfit("other/7", nothing, "there is no instance other among 3");
        unfit("", nothing, "there is no instance  among 3");
        let behind: &dyn Fn(&mut Scene) = &|scene| scene.report_mut(2).state = MemberState::CatchingUp;
        unfit("demo-2", behind, "demo-2 does not stream from the primary");
        let drained: &dyn Fn(&mut Scene) = &|scene| scene.cordon(1, true);
        unfit("demo-1/a", drained, "takes no pods, so it would not stay primary");
        let lost: &dyn Fn(&mut Scene) = &|scene| scene.lease_mut().unwrap().holder = None;
        let mut scene = asked("demo-1");
        lost(&mut scene);
        scene.now += PATIENCE;
        scene.store();
        assert!(outcome(&scene).1.ends_with("no primary serves that could hand over"));
    }

    #[test]
    fn whom_a_primary_cannot_hand_over_to_and_why() {
        let why = |change: &dyn Fn(&mut Scene)| {
            let mut scene = Scene::ready(3);
            change(&mut scene);
            scene.with_wanted(|wanted| {
                let facts = Facts::new(wanted, &scene.observed, &scene.stored, scene.now);
                unfit(&facts, facts.primary().unwrap(), "demo-2").unwrap_or_default()
            })
        };
        assert_eq!(why(&|_| {}), "");
        assert_eq!(
            why(&|scene| scene.edit(|spec| spec.fenced = vec!["demo-2".to_owned()])),
            "spec.fenced names demo-2"
        );
        let nowhere = |scene: &mut Scene| (0..3).for_each(|ordinal| scene.cordon(ordinal, true));
        assert_eq!(why(&nowhere), "", "the primary's node is no better");
        let older = |scene: &mut Scene| scene.pod_mut(2).revision = Some("r0".to_owned());
        assert_eq!(why(&older), "the pod of demo-2 is of an older template");
        assert_eq!(
            why(&|scene| scene.revision = "r2".to_owned()),
            "",
            "so is the primary's"
        );
    }

    #[test]
    fn what_is_under_way_is_neither_given_up_nor_forgotten() {
        let mut scene = asked("demo-2");
        scene.store();
        scene.stored.memo.request.as_mut().unwrap().since = scene.now - PATIENCE;
        scene.store();
        assert_eq!(outcome(&scene).0, None, "it began late");
        scene.elect(2);
        scene.store();
        assert_eq!(outcome(&scene).0, Some(Done));
        scene.switchover = None;
        scene.store();
        scene.store();
        assert_eq!(outcome(&scene).0, Some(Done), "only what is open is taken back");
    }

    #[test]
    fn the_primary_itself_is_there_already() {
        let mut scene = asked("demo-0/1");
        scene.store();
        assert_eq!(outcome(&scene), (Some(Done), "demo-0 is the primary".to_owned()));
        assert_eq!(scene.decide().phase, Phase::Ready);
    }

    #[test]
    fn it_does_not_fight_with_the_preferred_instance() {
        let mut scene = asked("demo-2");
        scene.edit(|spec| spec.primary.prefer = Some("demo-1".to_owned()));
        scene.store();
        let (outcome, message) = outcome(&scene);
        assert_eq!(outcome, Some(GivenUp));
        assert!(
            message.contains("spec.primary.prefer names demo-1; change"),
            "{message}"
        );
        for prefer in ["demo-2", "Any"] {
            let mut agrees = asked("demo-2");
            agrees.edit(|spec| spec.primary.prefer = Some(prefer.to_owned()));
            agrees.store();
            assert_eq!(agrees.stored.intent.primary.as_deref(), Some("demo-2"));
        }
    }

    #[test]
    fn one_that_nobody_carries_out_is_given_up() {
        let mut scene = asked("demo-2");
        scene.store();
        scene.now += TimeDelta::seconds(50);
        scene.store();
        assert_eq!(
            outcome(&scene),
            (Some(GivenUp), "demo-2 did not take over within 50 s".to_owned())
        );
        scene.store();
        assert_eq!(
            (scene.stored.memo.switchover.clone(), scene.decide().phase),
            (None, Phase::Ready)
        );
    }

    #[test]
    fn it_can_be_taken_back() {
        let mut scene = asked("demo-2");
        scene.store();
        scene.switchover = None;
        scene.store();
        scene.store();
        assert_eq!(
            (scene.stored.memo.request.clone(), scene.stored.intent.primary.clone()),
            (None, None)
        );
        assert_eq!(scene.decide().rule, "rest");
    }

    #[test]
    fn it_goes_though_another_standby_is_away() {
        let mut scene = asked("demo-2");
        scene.pod_mut(1).ready = false;
        scene.store();
        assert_eq!(scene.stored.intent.primary.as_deref(), Some("demo-2"));
    }

    #[test]
    fn of_a_long_value_so_much_is_kept_as_the_status_may_hold() {
        let mut scene = asked(&format!("demo-2/{}", "ä".repeat(200)));
        assert!(scene.stored.memo.request.clone().unwrap().value.len() <= LONGEST);
        scene.store();
        assert_eq!(scene.stored.intent.primary.as_deref(), Some("demo-2"));
    }
}
