//! One machine for all these kinds.

use api::declared::{DeclaredPhase, DeclaredStatus};
use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use super::declares::{Action, Decision, Declares, Facts, Observed, Wanted};
use super::rules::told;
use crate::reconcile::{Controller, Effect, STATUS_SETTLES, StatusWrite};

/// A password in a Secret is looked at again after this long, though nothing has changed.
const RECHECK: TimeDelta = TimeDelta::minutes(10);
/// What is waited for and not reported by a watch is looked at again after this long.
const WAITS: TimeDelta = TimeDelta::seconds(30);

impl<K: Declares> Controller for K {
    type Wanted<'a> = Wanted<'a, K::Spec>;
    type Observed = Observed;
    type Status = K::Status;
    type Action = Action;
    type Prepared = ();
    type Decision = Decision;

    fn decide(wanted: &Wanted<'_, K::Spec>, observed: &Observed, _stored: &K::Status, now: DateTime<Utc>) -> Decision {
        let facts = Facts::<K> { wanted, observed };
        let found = K::rules()
            .iter()
            .find_map(|rule| Some((rule.name, (rule.decide)(&facts)?)));
        let (rule, proposal) = found.unwrap_or(("tell", told(&facts)));
        let fault = proposal.action.target().and_then(|target| observed.faults.get(&target));
        let message = match fault {
            Some(why) => format!("{}: {why}", proposal.message),
            None => proposal.message,
        };
        let again = match proposal.phase {
            DeclaredPhase::Ready | DeclaredPhase::Planned => RECHECK,
            DeclaredPhase::Pending | DeclaredPhase::Failed | DeclaredPhase::Deleting => WAITS,
        };
        Decision {
            action: proposal.action,
            rule,
            phase: proposal.phase,
            message,
            wake: now + again,
        }
    }

    fn status(
        wanted: &Wanted<'_, K::Spec>,
        observed: &Observed,
        stored: &K::Status,
        decision: &Decision,
        (): &(),
        now: DateTime<Utc>,
    ) -> K::Status {
        let facts = Facts::<K> { wanted, observed };
        let mut next = stored.clone();
        let known = K::common(stored);
        let common = K::common_mut(&mut next);
        common.phase = Some(decision.phase);
        common.message = Some(decision.message.clone());
        if let Some(report) = facts.told() {
            if !report.unseen {
                common.oid = report.oid;
            }
            common.plan.clone_from(&report.plan);
            common.more_statements = Some(report.more).filter(|more| *more > 0);
            if report.drift.is_some() {
                common.drift.clone_from(&report.drift);
            }
        }
        common.observed_generation = Some(wanted.generation);
        common.conditions = vec![ready(known, decision, wanted.generation, now)];
        K::complete(wanted, observed, &mut next);
        next
    }

    fn due(stored: &K::Status, next: &K::Status, _decision: &Decision) -> StatusWrite {
        let begins = |status: &K::Status| {
            let common = K::common(status);
            (common.phase, common.observed_generation)
        };
        if stored == next {
            StatusWrite::None
        } else if begins(stored) != begins(next) {
            StatusWrite::BeforeAction
        } else {
            StatusWrite::Debounced(STATUS_SETTLES)
        }
    }

    fn confirms(_observed: &Observed, action: &Action) -> bool {
        match action {
            // What is left behind then nobody would take back.
            Action::RemoveFinalizer => true,
            // The primary drops the object, or lets nobody in.
            Action::Publish(declared) => declared.is_going(),
            Action::Wait
            | Action::AddFinalizer
            | Action::MakeCredentials
            | Action::CorrectCredentials
            | Action::MakeReports
            | Action::MakeParts
            | Action::Withdraw => false,
        }
    }
}

/// The condition `Ready`. The time of its last change is that of the stored one while its status is the same.
fn ready(stored: &DeclaredStatus, decision: &Decision, generation: i64, now: DateTime<Utc>) -> Condition {
    let (status, reason) = match decision.phase {
        DeclaredPhase::Ready => ("True", "Ready"),
        DeclaredPhase::Pending => ("False", "Pending"),
        DeclaredPhase::Planned => ("False", "Planned"),
        DeclaredPhase::Failed => ("False", "Failed"),
        DeclaredPhase::Deleting => ("False", "Deleting"),
    };
    let mut before = stored.conditions.iter();
    let before = before.find(|stored| stored.status == status);
    let now = || Time(Timestamp::from_second(now.timestamp()).unwrap_or(Timestamp::UNIX_EPOCH));
    Condition {
        last_transition_time: before.map_or_else(now, |stored| stored.last_transition_time.clone()),
        message: decision.message.clone(),
        observed_generation: Some(generation),
        reason: reason.to_owned(),
        status: status.to_owned(),
        type_: "Ready".to_owned(),
    }
}
