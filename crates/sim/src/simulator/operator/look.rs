//! One look of an operator: observe, decide, write the status if it is due, or carry out the action; each is one request, and
//! its answer brings the next look.

use std::collections::BTreeMap;

use api::ClusteredDatabaseStatus;
use chrono::{DateTime, TimeDelta, Utc};
use machine::cluster::{Action, Decision, Due, Exact, FaultKind, Observed, StatusChange, Target, decide, due, status};

use super::super::distort;
use super::super::pairs::Decided;
use super::super::world::World;
use super::requests::{About, Answer, Doomed, Pending, Request, Then};
use super::view::{wanted, who};
use super::wall;

/// After a failure, in milliseconds: a cache that was behind has caught up by then.
const AFTER_FAILURE: u64 = 200;
/// It never looks again sooner than this without an event, in milliseconds.
const SHORTEST_WAIT: u64 = 100;
/// More writes than this in one run are a defect: it does not come to rest.
const MOST_WRITES: u64 = 4_000;

impl World {
    /// Decides, and sends the one request that this comes to, or waits.
    pub fn look_over(&mut self, index: usize) {
        let (now, bug) = (wall(self.now), self.plan.bug);
        let operator = &mut self.operators[index];
        let Some(database) = operator.view.database.clone() else {
            return;
        };
        if operator.pending.is_some() {
            return;
        }
        operator.memory.adopt(database.generation);
        let (view, memory) = (&operator.view, &mut operator.memory);
        memory.outdated.retain(|target, version| {
            let same = *version == view.version(target);
            if !same {
                memory.faults.remove(target);
            }
            same
        });
        let observed = distort::seen(bug, view.observed(&database, &memory.faults), &database.revision);
        let version = database.version.to_string();
        let wanted = wanted(&database, &version);
        let stored = &database.status;
        let decision = decide(&wanted, &observed, stored, now);
        let next = status(&wanted, &observed, stored, &decision, &signed(&decision), now);
        let (promise, due) = (
            matches!(decision.action, Action::WriteStatus(_)),
            due(stored, &next, &decision),
        );
        let resting = matches!(&decision.action, Action::Wait(waiting) if waiting.resting);
        operator.rests = (resting && due == Due::Never).then_some(database.version);
        let rests = memory.rests(&Target::Status, now).filter(|_| !promise);
        let late = is_due(&mut memory.due_since, due, now);
        let settles = memory.due_since.is_some();
        self.told(index, &decision);
        if let (Due::Now, Some(again)) = (due, rests) {
            return self.sleep(index, again);
        }
        if promise || rests.is_none() && late {
            return self.write_status(index, version, next, claims_of_keys(&decision));
        }
        self.carry_out(index, decision, version, &observed, settles);
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

    /// When nothing is to be done until then.
    fn sleep(&mut self, index: usize, until: DateTime<Utc>) {
        let delay = (until - wall(self.now)).num_milliseconds();
        let delay = u64::try_from(delay).unwrap_or(0).max(SHORTEST_WAIT);
        self.look_again(index, delay);
    }

    /// The claims of members whose keys are signed are read once more before.
    fn write_status(&mut self, index: usize, version: String, next: ClusteredDatabaseStatus, claims: Vec<Exact>) {
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

    fn carry_out(&mut self, index: usize, decision: Decision, version: String, observed: &Observed, settles: bool) {
        let Some(target) = decision.action.target() else {
            let soon = wall(self.now) + TimeDelta::seconds(1);
            let wake = if settles {
                decision.wake.min(soon)
            } else {
                decision.wake
            };
            return self.sleep(index, wake);
        };
        let known = self.operators[index].view.version(&target);
        let about = (target, known);
        match decision.action {
            Action::LabelPod { pod, role } => self.send(index, Request::Label { pod, role }, about, Then::Act),
            Action::Apply(apply) => {
                let takes_pods = apply.takes_pods(observed);
                let database = self.operators[index].view.database.as_ref();
                let template = database.map(|database| database.revision.clone()).unwrap_or_default();
                let request = Request::Apply {
                    how: apply.how,
                    replicas: apply.replicas,
                    template,
                };
                if takes_pods {
                    return self.send_confirmed(index, request, about, version, observed);
                }
                self.send(index, request, about, Then::Act);
            }
            Action::ReplacePod(pod) => {
                let request = Request::Delete(Doomed::Pod(pod));
                self.send_confirmed(index, request, about, version, observed);
            }
            Action::DeleteClaim(claim) => {
                let request = Request::Delete(Doomed::Claim(claim));
                self.send_confirmed(index, request, about, version, observed);
            }
            other => self.violate(format!(
                "operator {index} decides what this world does not know: {other:?}"
            )),
        }
    }

    /// The resource and the Lease are read once more before.
    fn send_confirmed(&mut self, index: usize, what: Request, about: About, version: String, observed: &Observed) {
        if self.overwrites() {
            return self.send(index, what, about, Then::Act);
        }
        let what = Box::new(what);
        let who = who(observed.lease.get().and_then(Option::as_ref));
        self.send(
            index,
            Request::ReadDatabase,
            about,
            Then::Confirm { version, who, what },
        );
    }

    /// A request was answered, or will not be.
    pub fn answered(&mut self, index: usize, call: u64, answer: Answer) {
        let operator = &mut self.operators[index];
        let Some(pending) = operator.pending.take_if(|pending| pending.call == call) else {
            return;
        };
        let Pending { about, then, .. } = pending;
        match (then, answer) {
            (_, Answer::Conflict) => return self.failed(index, about, FaultKind::Conflict),
            (_, Answer::Failed) => return self.failed(index, about, FaultKind::Transient),
            (Then::Confirm { version, who, what }, Answer::Database(live)) if live.version.to_string() == version => {
                let then = Then::ConfirmLease { who, what };
                return self.send(index, Request::ReadLease, about, then);
            }
            (Then::ConfirmLease { who, what }, Answer::Lease(live)) if super::view::who(Some(&live)) == who => {
                if !self.lead_covers_request(index) {
                    self.coverage.reach("nothing taken away by one that may not lead");
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
                operator.memory.succeeded(&about.0);
                if matches!(then, Then::Status) {
                    operator.memory.due_since = None;
                }
            }
        }
        self.look_over(index);
    }

    fn failed(&mut self, index: usize, (target, version): About, kind: FaultKind) {
        let memory = &mut self.operators[index].memory;
        memory.failed(target.clone(), kind, wall(self.now));
        if kind == FaultKind::Conflict {
            memory.outdated.insert(target, version);
            self.coverage.reach("conflict met");
        }
        self.look_again(index, AFTER_FAILURE);
    }

    /// The operator's writes never end.
    pub fn count_write(&mut self) {
        self.checks.writes += 1;
        if self.checks.writes > MOST_WRITES {
            self.violate(format!(
                "more than {MOST_WRITES} writes of the operator: it does not come to rest"
            ));
        }
    }
}

fn is_due(since: &mut Option<DateTime<Utc>>, due: Due, now: DateTime<Utc>) -> bool {
    match due {
        Due::Now => true,
        Due::Within(time) => {
            let since = *since.get_or_insert(now);
            (now - since).to_std().unwrap_or_default() >= time
        }
        Due::Never => {
            *since = None;
            false
        }
    }
}

/// The claims of the members whose keys are to be signed.
fn claims_of_keys(decision: &Decision) -> Vec<Exact> {
    let Action::WriteStatus(changes) = &decision.action else {
        return Vec::new();
    };
    let claims = changes.iter().filter_map(|change| match change {
        StatusChange::SignCertificate { claim, .. } => Some(claim.clone()),
        _ => None,
    });
    claims.collect()
}

/// A certificate for each key that is to be signed.
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
