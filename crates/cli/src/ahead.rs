//! What the operator does next: the machine's decisions, one after the other, until something else has to move.

use std::collections::BTreeMap;

use machine::cluster::{Action, ApplyHow, Cluster, Decision, Known, OwnedObject, OwnedState, StatusChange};
use machine::reconcile::{Effect, Next, Pass};

use crate::look::Look;
use crate::words;

/// How many decisions are followed: a creation has some forty.
const MOST: usize = 64;

/// The decisions in order; the last is a wait, or an action whose outcome others make (a pod that is deleted, an object
/// that is made). The look is left as it is then.
pub fn decisions(look: &mut Look) -> Vec<Decision> {
    let mut decisions: Vec<Decision> = Vec::new();
    let mut pass = Pass::default();
    while decisions.len() < MOST {
        let decision = look.decide();
        let again = decisions.last().is_some_and(|last| last.action == decision.action);
        let status = look.status_after(&decision, &certificates(&decision));
        let next = pass.next::<Cluster>(&look.observed, &look.status(), &status, &decision, look.now);
        let goes_on = match next {
            Next::WriteStatus => true,
            Next::Confirm | Next::Perform => carry_out(look, &decision.action),
            Next::Sleep(_) => false,
        };
        look.db.status = Some(status);
        if next == Next::WriteStatus && !decision.action.writes_status() {
            // The action itself comes next.
            continue;
        }
        if !again {
            decisions.push(decision);
        }
        if again || !goes_on {
            break;
        }
    }
    decisions
}

/// What is done, in words, each with the rule that decides; mere records and waits are left out.
pub fn steps(decisions: &[Decision], name: &str) -> Vec<crate::plan::Step> {
    let done = decisions.iter().filter(|decision| match &decision.action {
        Action::Wait(_) | Action::LabelPod { .. } => false,
        Action::WriteStatus(changes) => changes.iter().any(|change| words::change(change).is_some()),
        _ => true,
    });
    done.map(|decision| crate::plan::Step {
        action: words::action(&decision.action, name),
        rule: decision.rule.to_owned(),
        because: decision.because.to_string(),
    })
    .collect()
}

/// Puts the outcome of an action into the look; false if it is not known.
fn carry_out(look: &mut Look, action: &Action) -> bool {
    match action {
        Action::Apply(apply) => {
            let uid = match look.observed.children[apply.kind].get() {
                Some(OwnedState::Current { uid } | OwnedState::Drifted { uid, .. }) => uid.clone(),
                _ => String::new(),
            };
            let changed = matches!(apply.how, ApplyHow::Change(_)) && !uid.is_empty();
            look.observed.children[apply.kind] = Known::Known(OwnedState::Current { uid });
            if let (OwnedObject::StatefulSet, Some(set), Some(replicas)) =
                (apply.kind, &mut look.observed.stateful_set, apply.replicas)
            {
                set.replicas = replicas;
            }
            changed
        }
        Action::LabelPod { pod, role } => {
            let Known::Known(pods) = &mut look.observed.pods else {
                return false;
            };
            let found = pods.iter_mut().find(|found| found.uid == pod.uid());
            found.map(|found| found.role = Some((*role).to_owned())).is_some()
        }
        _ => false,
    }
}

/// A certificate for each key that is signed; nobody reads it here.
fn certificates(decision: &Decision) -> BTreeMap<String, String> {
    let Action::WriteStatus(changes) = &decision.action else {
        return BTreeMap::new();
    };
    let signed = changes.iter().filter_map(|change| match change {
        StatusChange::SignCertificate { pod, .. } => Some((pod.clone(), "signed".to_owned())),
        _ => None,
    });
    signed.collect()
}
