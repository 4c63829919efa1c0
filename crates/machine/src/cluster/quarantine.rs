//! An operation that has quarantined data removed (`discardQuarantined`). The agent of the instance reads the order in
//! `status.intent.discard` (`instance::kept`), and reports what it still has.

use api::operation::DiscardQuarantined;
use api::status::RequestOutcome;

use super::action::StatusChange;
use super::facts::{Facts, list};
use super::rule::Progress;

/// What becomes of such an operation: it is done when the instance no longer reports the data, and refused if it never did.
pub(super) fn discard(facts: &Facts<'_>, asked: &DiscardQuarantined) -> Option<Progress> {
    let DiscardQuarantined { instance, name } = asked;
    let report = facts.lease?.members.get(instance);
    let given = facts.status.intent.discard.as_ref() == Some(asked);
    let found = report.map(|report| report.kept.contains(name));
    match (found, given) {
        (Some(true) | None, true) => None,
        (Some(true), false) => {
            let why = format!("{instance} is to remove {name}");
            Some(Progress::Changes(StatusChange::Discard(asked.clone()), why))
        }
        (Some(false), true) => {
            let why = format!("{instance} has removed {name}");
            Some(Progress::Ends(RequestOutcome::Done, why))
        }
        (Some(false) | None, false) => {
            let all: Vec<&str> = report
                .iter()
                .flat_map(|report| &report.kept)
                .map(String::as_str)
                .collect();
            let has = match all.is_empty() {
                true => "none".to_owned(),
                false => list(all.into_iter()),
            };
            let why = format!("{instance} reports no quarantined data {name}; what it reports: {has}");
            Some(Progress::Ends(RequestOutcome::GivenUp, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use api::operation::Action as Asked;

    use super::super::model::Scene;
    use super::*;

    fn asked(instance: &str, name: &str) -> Scene {
        let mut scene = Scene::ready(3);
        scene.report_mut(2).kept = ["1-0_3000060-1", "1-0_3000060-2"].map(str::to_owned).into();
        let (instance, name) = (instance.to_owned(), name.to_owned());
        scene.ask(Asked::DiscardQuarantined(DiscardQuarantined { instance, name }));
        scene.store();
        scene.store();
        scene
    }

    fn outcome(scene: &Scene) -> (Option<RequestOutcome>, String) {
        let noted = scene.stored.memo.request.clone().unwrap();
        (noted.outcome, noted.message.unwrap_or_default())
    }

    #[test]
    fn it_is_ordered_and_done_when_the_instance_reports_it_no_more() {
        let mut scene = asked("demo-2", "1-0_3000060-1");
        let ordered = scene.stored.intent.discard.clone().unwrap();
        assert_eq!(
            (ordered.instance.as_str(), ordered.name.as_str()),
            ("demo-2", "1-0_3000060-1")
        );
        scene.store();
        assert_eq!(outcome(&scene).0, None);
        let report = scene.lease_mut().unwrap().members.remove("demo-2").unwrap();
        scene.store();
        assert_eq!(outcome(&scene).0, None, "what is not known is not gone");
        scene.lease_mut().unwrap().members.insert("demo-2".to_owned(), report);
        scene.report_mut(2).kept.remove("1-0_3000060-1");
        scene.store();
        let done = "demo-2 has removed 1-0_3000060-1".to_owned();
        assert_eq!(outcome(&scene), (Some(RequestOutcome::Done), done));
        assert_eq!(scene.stored.intent.discard, None);
    }

    #[test]
    fn what_the_instance_does_not_report_is_refused() {
        for (instance, name, has) in [
            ("demo-1", "1-0_3000060-1", "none"),
            ("demo-2", "1-0_3000060-3", "1-0_3000060-1, 1-0_3000060-2"),
            ("demo-7", "1-0_3000060-1", "none"),
        ] {
            let scene = asked(instance, name);
            let (outcome, message) = outcome(&scene);
            assert_eq!(
                (outcome, scene.stored.intent.discard.clone()),
                (Some(RequestOutcome::GivenUp), None)
            );
            assert!(message.ends_with(&format!("what it reports: {has}")), "{message}");
        }
    }

    #[test]
    fn an_order_that_is_taken_back_is_gone() {
        let mut scene = asked("demo-2", "1-0_3000060-1");
        scene.request = None;
        scene.store();
        assert_eq!(
            (scene.stored.intent.discard.clone(), scene.stored.memo.request.clone()),
            (None, None)
        );
    }
}
