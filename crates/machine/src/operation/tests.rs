use api::operation::{Action as Asked, Actions, ClusterReference, Switchover, TakeImage};
use proptest::prelude::*;

use super::*;

fn action() -> Asked {
    Asked::Switchover(Switchover {
        to: "demo-1".to_owned(),
    })
}

fn spec() -> ClusteredDatabaseOperationSpec {
    ClusteredDatabaseOperationSpec {
        cluster_ref: ClusterReference {
            name: "demo".to_owned(),
        },
        actions: action().into(),
        cancel: false,
    }
}

fn now() -> DateTime<Utc> {
    "2027-01-01T00:00:00Z".parse().unwrap()
}

fn asked(uid: &str) -> Request {
    Request {
        uid: uid.to_owned(),
        action: action(),
    }
}

fn noted(uid: &str, outcome: Option<RequestOutcome>) -> Option<Cluster> {
    Some(Cluster {
        request: Some(NotedRequest {
            request: asked(uid),
            since: now(),
            outcome,
            message: outcome.map(|outcome| format!("{outcome:?} it is")),
        }),
        ..Cluster::default()
    })
}

#[derive(Debug)]
struct Case {
    spec: ClusteredDatabaseOperationSpec,
    observed: Observed,
    stored: OperationStatus,
    age: TimeDelta,
}

impl Case {
    fn new(phase: Option<OperationPhase>) -> Self {
        Self {
            spec: spec(),
            observed: Observed {
                cluster: Known::Known(Some(Cluster::default())),
                before: Known::Known(None),
            },
            stored: OperationStatus {
                phase,
                ..OperationStatus::default()
            },
            age: TimeDelta::zero(),
        }
    }

    fn cluster(mut self, cluster: Option<Cluster>) -> Self {
        self.observed.cluster = Known::Known(cluster);
        self
    }

    fn wanted(&self) -> Wanted<'_> {
        Wanted {
            uid: "u",
            generation: 1,
            created: now() - self.age,
            spec: &self.spec,
        }
    }

    fn decide(&self) -> Decision {
        Operation::decide(&self.wanted(), &self.observed, &self.stored, now())
    }

    fn status(&self) -> OperationStatus {
        Operation::status(&self.wanted(), &self.observed, &self.stored, &self.decide(), &(), now())
    }

    /// The rule, the phase that is entered, and the message that follows.
    fn found(&self) -> (&'static str, Option<OperationPhase>, String) {
        let decision = self.decide();
        let entered = match decision.action {
            Action::Enter(phase, _) => Some(phase),
            Action::Wait(_) => None,
        };
        (decision.rule, entered, self.status().message.unwrap_or_default())
    }
}

#[test]
fn an_operation_is_pending_then_runs_and_ends_as_the_cluster_notes() {
    use OperationPhase::{Completed, Failed, Pending, Running};
    assert_eq!(
        Case::new(None).found(),
        ("accept", Some(Pending), "accepted".to_owned())
    );
    let waits = "waiting for demo to begin".to_owned();
    assert_eq!(Case::new(Some(Pending)).found(), ("run", None, waits));
    let begun = Case::new(Some(Pending)).cluster(noted("u", None));
    assert_eq!(begun.found().1, Some(Running));
    assert_eq!(begun.status().start_time, Some(now()));
    for (outcome, phase) in [(RequestOutcome::Done, Completed), (RequestOutcome::GivenUp, Failed)] {
        for before in [Pending, Running] {
            let ended = Case::new(Some(before)).cluster(noted("u", Some(outcome)));
            let message = format!("{outcome:?} it is");
            assert_eq!(ended.found(), ("outcome", Some(phase), message));
            assert_eq!(ended.status().completion_time, Some(now()));
        }
    }
    let idle = Case::new(Some(Pending)).cluster(Some(Cluster {
        idle: Some("it is paused".to_owned()),
        ..Cluster::default()
    }));
    assert!(idle.found().2.ends_with("demo to begin: it is paused"));
    let another = Case::new(Some(Pending)).cluster(noted("other", Some(RequestOutcome::Done)));
    assert_eq!(another.found().1, None, "what another operation came to");
}

#[test]
fn one_that_is_not_its_turn_waits_and_says_for_which() {
    let mut case = Case::new(Some(OperationPhase::Pending));
    case.observed.before = Known::Known(Some("first".to_owned()));
    let message = "waiting for operation first to end; to take that one back: kubectl patch cdbop first --type merge -p \
                   '{\"spec\":{\"cancel\":true}}'";
    assert_eq!(case.found(), ("turn", None, message.to_owned()));
    case.observed.before = Known::Unknown;
    assert_eq!(case.found().0, "turn");
}

#[test]
fn without_its_cluster_it_waits_for_five_minutes_and_one_that_runs_fails_at_once() {
    let mut case = Case::new(Some(OperationPhase::Pending)).cluster(None);
    assert_eq!(case.found().1, None);
    assert_eq!(case.decide().wake, now() + RECHECK);
    case.age = TimeDelta::minutes(4);
    assert_eq!(case.decide().wake, now() + TimeDelta::minutes(1));
    case.age = WAIT_LIMIT;
    let message = "there is no ClusteredDatabase demo".to_owned();
    assert_eq!(case.found(), ("cluster", Some(OperationPhase::Failed), message));
    let mut running = Case::new(Some(OperationPhase::Running)).cluster(Some(Cluster {
        deleting: true,
        ..Cluster::default()
    }));
    assert_eq!(running.found().1, Some(OperationPhase::Failed));
    running.observed.cluster = Known::Unknown;
    assert_eq!(running.found().1, None, "what cannot be read is not missing");
}

#[test]
fn one_that_is_taken_back_ends_when_the_cluster_does_nothing_for_it() {
    let mut case = Case::new(Some(OperationPhase::Running)).cluster(noted("u", None));
    case.spec.cancel = true;
    assert_eq!(case.found().1, None, "the cluster still has it");
    assert!(!is_open(&case.spec, &case.stored), "and is not asked for it any more");
    let idle = case.cluster(Some(Cluster::default()));
    assert_eq!(idle.found().1, Some(OperationPhase::Cancelled));
    let mut rolls = Case::new(Some(OperationPhase::Running));
    rolls.spec.cancel = true;
    rolls.spec.actions = Asked::TakeImage(TakeImage {
        image: "a:1".to_owned(),
    })
    .into();
    assert!(
        rolls.found().2.contains("what it has changed already stays"),
        "{:?}",
        rolls.found()
    );
    let mut done = Case::new(Some(OperationPhase::Running)).cluster(noted("u", Some(RequestOutcome::Done)));
    done.spec.cancel = true;
    assert_eq!(done.found().1, Some(OperationPhase::Completed), "it was too late");
}

#[test]
fn one_that_breaks_a_rule_fails_with_its_message() {
    let mut case = Case::new(Some(OperationPhase::Pending));
    case.spec.actions = Actions::default();
    let (rule, phase, message) = case.found();
    assert_eq!((rule, phase), ("invalid", Some(OperationPhase::Failed)));
    assert!(message.contains("one thing only"), "{message}");
    assert!(!is_open(&case.spec, &case.stored));
}

#[test]
fn the_oldest_comes_first_unless_another_has_begun() {
    let candidate = |name: &str, age| Candidate {
        name: name.to_owned(),
        created: now() - TimeDelta::seconds(age),
        request: asked(name),
    };
    let all = || [candidate("b", 5), candidate("a", 5), candidate("new", 1)].into_iter();
    let first = |noted: Option<NotedRequest>| next(all(), noted.as_ref()).map(|first| first.name);
    assert_eq!(first(None).as_deref(), Some("a"));
    let begun = |outcome| noted("new", outcome).and_then(|cluster| cluster.request);
    assert_eq!(first(begun(None)).as_deref(), Some("new"), "what is under way goes on");
    assert_eq!(first(begun(Some(RequestOutcome::Done))).as_deref(), Some("a"));
    assert_eq!(next(std::iter::empty(), None), None);
}

fn phases() -> impl Strategy<Value = Option<OperationPhase>> {
    proptest::option::of(proptest::sample::select(OperationPhase::ALL.to_vec()))
}

fn cases() -> impl Strategy<Value = Case> {
    let outcome = proptest::option::of(prop_oneof![Just(RequestOutcome::Done), Just(RequestOutcome::GivenUp)]);
    let cluster = prop_oneof![
        Just(Known::Unknown),
        Just(Known::Known(None)),
        any::<bool>().prop_map(|deleting| Known::Known(Some(Cluster {
            deleting,
            ..Cluster::default()
        }))),
        (any::<bool>(), outcome)
            .prop_map(|(ours, outcome)| { Known::Known(noted(if ours { "u" } else { "other" }, outcome)) }),
    ];
    let before = prop_oneof![
        Just(Known::Unknown),
        Just(Known::Known(None)),
        Just(Known::Known(Some("first".to_owned())))
    ];
    (phases(), cluster, before, any::<bool>(), any::<bool>(), 0..600_i64).prop_map(
        |(phase, cluster, before, cancel, valid, age)| {
            let mut case = Case::new(phase);
            (case.observed.cluster, case.observed.before) = (cluster, before);
            (case.spec.cancel, case.age) = (cancel, TimeDelta::seconds(age));
            if !valid {
                case.spec.actions = Actions::default();
            }
            case
        },
    )
}

proptest! {
    #[test]
    fn phases_go_forward_only_and_final_ones_stay(case in cases()) {
        let (before, after) = (case.stored.clone(), case.status());
        match before.phase {
            Some(phase) if phase.is_final() => prop_assert_eq!(&before, &after),
            _ => prop_assert!(after.phase >= before.phase, "{before:?} {after:?}"),
        }
        if after.phase.is_some_and(OperationPhase::is_final) && before.phase != after.phase {
            prop_assert!(after.completion_time.is_some() && after.message.is_some());
        }
    }

    #[test]
    fn what_is_written_is_computed_again_the_same_so_that_it_comes_to_rest(mut case in cases()) {
        for _ in 0..4 {
            case.stored = case.status();
        }
        prop_assert_eq!(&case.status(), &case.stored);
        prop_assert!(matches!(case.decide().action, Action::Wait(_)), "{:?}", case.decide());
    }

    #[test]
    fn it_wakes_in_the_future(case in cases()) {
        let wake = case.decide().wake;
        prop_assert!(wake > now() && wake <= now() + RECHECK);
    }
}
