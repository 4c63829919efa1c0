//! One reconcile of an operator: observe, decide, and write the status if that is due or execute the action. Each is
//! one request, and its answer leads to the next reconcile.

use std::collections::BTreeMap;

use api::ClusteredDatabaseStatus;
use chrono::{DateTime, Utc};
use machine::cluster::{
    Action, Basis, Cluster, Decision, FaultKind, ObjectVersion, StatusChange, Target, decide, status,
};
use machine::reconcile::{Next, SHORTEST_WAIT};

use super::super::distort;
use super::super::names::CLUSTER;
use super::super::pairs::Decided;
use super::super::world::World;
use super::requests::{About, Answer, Doomed, Pending, Request, Then};
use super::view::wanted;
use super::wall;

/// More writes than this in one run are a defect: the operator does not become idle.
const MOST_WRITES: u64 = 4_000;

impl World {
    /// Decides, and sends the resulting request, or waits.
    pub fn look_over(&mut self, index: usize) {
        let (now, bug) = (wall(self.now), self.plan.bug);
        let operator = &mut self.operators[index];
        let Some(database) = operator.view.database.clone() else {
            return;
        };
        if operator.pending.is_some() {
            return;
        }
        let view = &operator.view;
        operator
            .pass
            .begin(CLUSTER, database.generation, |target| view.version(target));
        let observed = distort::seen(
            bug,
            view.observed(&database, operator.pass.faults()),
            &database.revision,
        );
        let version = database.version.to_string();
        let wanted = wanted(&database, &version);
        let stored = &database.status;
        let decision = decide(&wanted, &observed, stored, now);
        let next = status(&wanted, &observed, stored, &decision, &signed(&decision), now);
        let step = operator.pass.next::<Cluster>(&observed, stored, &next, &decision, now);
        let resting = matches!(&decision.action, Action::Wait(waiting) if waiting.resting);
        let rests = resting && *stored == next && matches!(step, Next::Sleep(_));
        operator.rests = rests.then_some(database.version);
        self.told(index, &decision);
        match step {
            Next::Sleep(until) => self.sleep(index, until),
            Next::WriteStatus => self.write_status(index, version, next, claims_of_keys(&decision)),
            Next::Confirm => self.carry_out(index, decision, Some(Basis::new(&wanted, &observed))),
            Next::Perform => self.carry_out(index, decision, None),
        }
    }

    fn told(&mut self, index: usize, decision: &Decision) {
        self.trace.mark_text(decision.rule);
        let decided = Decided::of(decision, self.last_fault());
        *self.coverage.operator.entry(decided).or_default() += 1;
        if !self.trace.explains() {
            return;
        }
        let (rule, action, because) = (decision.rule, decision.action.name(), &decision.because);
        let says = format!("operator {index}: {rule}: {action} — {because}");
        if self.operators[index].said != says {
            self.operators[index].said.clone_from(&says);
            self.note(None, || says);
        }
    }

    /// Schedules the next reconcile.
    fn sleep(&mut self, index: usize, until: DateTime<Utc>) {
        let delay = (until - wall(self.now)).to_std().unwrap_or_default().max(SHORTEST_WAIT);
        self.look_again(index, u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
    }

    /// Writes the status. Before that the claims of members whose keys are being signed are read again.
    fn write_status(
        &mut self,
        index: usize,
        version: String,
        next: ClusteredDatabaseStatus,
        claims: Vec<ObjectVersion>,
    ) {
        let request = Request::Status {
            version: version.clone(),
            status: Box::new(next),
        };
        let about = (Target::Status, Some(version));
        if claims.is_empty() || self.overwrites() {
            return self.send(index, request, about, Then::Status);
        }
        let what = Box::new(request);
        self.send(index, Request::ReadClaims, about, Then::ConfirmClaims { claims, what });
    }

    /// Sends the request of an action. If it relies on a `basis`, the resource and the Lease are read again before.
    fn carry_out(&mut self, index: usize, decision: Decision, basis: Option<Basis>) {
        let Some(target) = decision.action.target() else {
            return;
        };
        let known = self.operators[index].view.version(&target);
        let about = (target, known);
        let request = match decision.action {
            Action::LabelPod { pod, role } => Request::Label { pod, role },
            Action::Apply(apply) => {
                let database = self.operators[index].view.database.as_ref();
                let template = database.map(|database| database.revision.clone()).unwrap_or_default();
                Request::Apply {
                    how: apply.how,
                    replicas: apply.replicas,
                    template,
                }
            }
            Action::ReplacePod(pod) => Request::Delete(Doomed::Pod(pod)),
            Action::DeleteClaim(claim) => Request::Delete(Doomed::Claim(claim)),
            other => {
                return self.violate(format!(
                    "operator {index} decides an action that this world does not have: {other:?}"
                ));
            }
        };
        match basis.filter(|_| !self.overwrites()) {
            None => self.send(index, request, about, Then::Act),
            Some(basis) => {
                let what = Box::new(request);
                self.send(index, Request::ReadDatabase, about, Then::Confirm { basis, what });
            }
        }
    }

    /// A request was answered, or failed.
    pub fn answered(&mut self, index: usize, call: u64, answer: Answer) {
        let operator = &mut self.operators[index];
        let Some(pending) = operator.pending.take_if(|pending| pending.call == call) else {
            return;
        };
        let Pending { about, then, .. } = pending;
        match (then, answer) {
            (_, Answer::Conflict) => return self.failed(index, about, FaultKind::Conflict),
            (_, Answer::Failed) => return self.failed(index, about, FaultKind::Transient),
            (Then::Confirm { basis, what }, Answer::Database(live))
                if basis.is_resource(CLUSTER, &live.version.to_string()) =>
            {
                let then = Then::ConfirmLease { basis, what };
                return self.send(index, Request::ReadLease, about, then);
            }
            (Then::ConfirmLease { basis, what }, Answer::Lease(live)) if basis.is_lease(Some(&live)) => {
                if !self.lead_covers_request(index) {
                    self.coverage
                        .reach("nothing taken away by an operator that may not lead");
                    return self.failed(index, about, FaultKind::Transient);
                }
                return self.send(index, *what, about, Then::Act);
            }
            (Then::ConfirmClaims { claims, what }, Answer::Claims(_, live))
                if claims
                    .iter()
                    .all(|claim| live.values().any(|found| found.uid == claim.uid())) =>
            {
                return self.send(index, *what, about, Then::Status);
            }
            (Then::ConfirmClaims { .. }, answer) => {
                operator.view.put(answer);
                self.coverage.reach("no key signed for a claim that is gone");
            }
            (Then::Confirm { .. } | Then::ConfirmLease { .. }, answer) => {
                operator.view.put(answer);
                self.coverage.reach("nothing taken away on an outdated view");
            }
            (then, answer) => {
                operator.view.put(answer);
                match then {
                    Then::Status => operator.pass.status_written(&about.0),
                    _ => operator.pass.succeeded(&about.0),
                }
            }
        }
        self.look_over(index);
    }

    fn failed(&mut self, index: usize, (target, version): About, kind: FaultKind) {
        let now = wall(self.now);
        let again = self.operators[index]
            .pass
            .failed(target, version, kind, format!("{kind:?}"), now);
        if kind == FaultKind::Conflict {
            self.coverage.reach("conflict met");
        }
        self.sleep(index, again);
    }

    /// Counts the operator's writes, to find that they never end.
    pub fn count_write(&mut self) {
        self.checks.writes += 1;
        if self.checks.writes > MOST_WRITES {
            self.violate(format!(
                "more than {MOST_WRITES} writes of the operator: it does not become idle"
            ));
        }
    }
}

/// The claims of the members whose keys should be signed.
fn claims_of_keys(decision: &Decision) -> Vec<ObjectVersion> {
    let Action::WriteStatus(changes) = &decision.action else {
        return Vec::new();
    };
    let claims = changes.iter().filter_map(|change| match change {
        StatusChange::SignCertificate { claim, .. } => Some(claim.clone()),
        _ => None,
    });
    claims.collect()
}

/// A certificate for each key that should be signed.
fn signed(decision: &Decision) -> BTreeMap<String, String> {
    let Action::WriteStatus(changes) = &decision.action else {
        return BTreeMap::new();
    };
    let keys = changes.iter().filter_map(|change| match change {
        StatusChange::SignCertificate { pod, .. } => Some(pod.clone()),
        _ => None,
    });
    keys.map(|pod| (pod, "pem".to_owned())).collect()
}
