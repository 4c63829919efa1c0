//! The operator's requests: in flight, at the API server with the versions that they expect, and their answers.

use std::collections::BTreeMap;
use std::rc::Rc;

use api::ClusteredDatabaseStatus;
use machine::cluster::{ApplyHow, Basis, Claim, ObjectVersion, Pod, Target};
use machine::protocol::LeaseRecord;

use super::super::distort::Bug;
use super::super::event::Event;
use super::super::names::number;
use super::super::world::World;
use super::Operating;
use super::objects::{Database, Set};
use super::view::Kind;

/// Time limit of an answer, in milliseconds, as in the operator.
const TIMEOUT: u64 = 10_000;

/// A request.
#[derive(Clone, Debug)]
pub enum Request {
    Status {
        version: String,
        status: Box<ClusteredDatabaseStatus>,
    },
    Label {
        pod: ObjectVersion,
        role: &'static str,
    },
    Delete(Doomed),
    Apply {
        how: ApplyHow,
        replicas: Option<u32>,
        template: String,
    },
    ReadDatabase,
    ReadLease,
    ReadClaims,
}

/// The object to delete.
#[derive(Clone, Debug)]
pub enum Doomed {
    Pod(ObjectVersion),
    Claim(ObjectVersion),
}

/// The answer: the present object.
#[derive(Clone, Debug)]
pub enum Answer {
    Database(Rc<Database>),
    Lease(Rc<LeaseRecord>),
    /// All claims, as of this version.
    Claims(u64, Rc<BTreeMap<u32, Claim>>),
    Set(Rc<Set>),
    Pod(Box<Pod>),
    Claim(Box<Claim>),
    /// The object with this UID is gone.
    Gone(String),
    /// The object is not the expected one.
    Conflict,
    /// No answer, or an error that may be transient.
    Failed,
}

/// The target of a request, and the version by which it was known.
pub type About = (Target, Option<String>);

/// A request in flight.
#[derive(Clone, Debug)]
pub struct Pending {
    pub call: u64,
    pub about: About,
    pub then: Then,
}

/// What follows the answer.
#[derive(Clone, Debug)]
pub enum Then {
    Status,
    Act,
    /// Before something is taken away: the resource must be unchanged.
    Confirm {
        basis: Basis,
        what: Box<Request>,
    },
    /// The Lease must be unchanged too.
    ConfirmLease {
        basis: Basis,
        what: Box<Request>,
    },
    /// Before keys are signed: these claims must exist.
    ConfirmClaims {
        claims: Vec<ObjectVersion>,
        what: Box<Request>,
    },
}

impl World {
    /// Sends a request. It may be lost, refused, executed without an answer, or late.
    pub fn send(&mut self, index: usize, request: Request, about: About, then: Then) {
        let call = self.number();
        let operator = &mut self.operators[index];
        let Some(run) = operator.run else { return };
        operator.pending = Some(Pending { call, about, then });
        let random = &mut self.random.operator;
        let (delay, errors) = (1 + random.below(8), random.chance(self.api.errors));
        let fault = errors.then(|| random.below(4));
        let late = random.below(5_000);
        self.operator_hears(TIMEOUT, index, run, Operating::Late { call });
        let arrives = |answer| Event::Asked {
            operator: index,
            run,
            call,
            request: Box::new(request),
            answer,
        };
        let refused = Operating::Answered {
            call,
            answer: Box::new(Answer::Failed),
        };
        match fault {
            _ if self.api.down > 0 => self.operator_hears(delay, index, run, refused),
            Some(0) => {}
            Some(1) => self.operator_hears(delay, index, run, refused),
            Some(2) => self.after(delay, arrives(false)),
            Some(_) => self.after(delay + late, arrives(true)),
            None => self.after(delay, arrives(true)),
        }
    }

    fn operator_hears(&mut self, delay: u64, operator: usize, run: u32, what: Operating) {
        self.after(delay, Event::Operate { operator, run, what });
    }

    /// A request arrives; `answer`: its sender gets the answer.
    pub fn asked_for(&mut self, index: usize, run: u32, call: u64, request: Request, answer: bool) {
        if self.api.down > 0 {
            return;
        }
        if self.operators[index].run != Some(run) {
            self.coverage.reach("request of an ended operator");
        }
        let reads = matches!(
            request,
            Request::ReadDatabase | Request::ReadLease | Request::ReadClaims
        );
        self.check_lead(index, &request);
        let result = self.answer_to(request);
        if !reads && !matches!(result, Answer::Conflict) {
            self.count_write();
            if !answer {
                self.coverage.reach("operator's write done and not answered");
            }
        }
        if answer {
            let delay = 1 + self.random.operator.below(6);
            let answer = Box::new(result);
            self.operator_hears(delay, index, run, Operating::Answered { call, answer });
        }
    }

    /// Executes a request, and returns the answer.
    pub fn answer_to(&mut self, request: Request) -> Answer {
        match request {
            Request::ReadDatabase => Answer::Database(Rc::clone(&self.api.objects.database)),
            Request::ReadLease => Answer::Lease(Rc::clone(&self.api.lease)),
            Request::ReadClaims => Answer::Claims(self.api.version, Rc::clone(&self.api.objects.claims)),
            Request::Status { version, status } => {
                if version != self.api.objects.database.version.to_string() && !self.overwrites() {
                    return Answer::Conflict;
                }
                self.check_status(&status);
                let version = self.api.next();
                let database = Rc::make_mut(&mut self.api.objects.database);
                (database.version, database.status) = (version, *status);
                self.database_changed();
                Answer::Database(Rc::clone(&self.api.objects.database))
            }
            Request::Apply {
                how,
                replicas,
                template,
            } => {
                let set = &self.api.objects.set.facts;
                let same = matches!(&how, ApplyHow::Change(exact) if exact.resource_version() == set.resource_version);
                if !same && !self.overwrites() {
                    return Answer::Conflict;
                }
                let replicas = replicas.unwrap_or(set.replicas);
                if replicas == set.replicas && template == self.api.objects.set.template {
                    return Answer::Set(Rc::clone(&self.api.objects.set));
                }
                self.check_scale(replicas);
                let version = self.api.next();
                let set = Rc::make_mut(&mut self.api.objects.set);
                (set.facts.resource_version, set.template) = (version.to_string(), template);
                set.facts.replicas = replicas;
                self.show(Kind::Set);
                self.control_soon();
                Answer::Set(Rc::clone(&self.api.objects.set))
            }
            Request::Label { pod, role } => self.on_pod(&pod, |pod| pod.role = Some(role.to_owned())),
            Request::Delete(Doomed::Claim(claim)) => {
                let node = number(claim.name());
                let ordinal = u32::try_from(node).unwrap_or(u32::MAX);
                let Some(found) = self.api.objects.claims.get(&ordinal) else {
                    return Answer::Gone(claim.uid().to_owned());
                };
                let same = found.uid == claim.uid() && found.resource_version == claim.resource_version();
                if !same && !self.overwrites() {
                    return Answer::Conflict;
                }
                self.check_delete_claim(node);
                self.note(None, || format!("{} is deleted by the operator", claim.name()));
                self.delete_claim(node);
                match self.api.objects.claims.get(&ordinal) {
                    None => Answer::Gone(claim.uid().to_owned()),
                    Some(going) => Answer::Claim(Box::new(going.clone())),
                }
            }
            Request::Delete(Doomed::Pod(pod)) => {
                let node = number(pod.name());
                if self.pod_object(node).is_none() {
                    return Answer::Gone(pod.uid().to_owned());
                }
                self.check_delete(node, &pod);
                let answer = self.on_pod(&pod, |pod| pod.terminating = true);
                if matches!(answer, Answer::Pod(_)) {
                    self.note(None, || format!("{} is deleted by the operator", pod.name()));
                    self.kubelet_soon(node);
                }
                answer
            }
        }
    }

    /// True if this pod exists at this version.
    pub fn is_exact(&self, pod: &ObjectVersion) -> bool {
        let found = self.pod_object(number(pod.name()));
        let same = |found: &Pod| found.uid == pod.uid() && found.resource_version == pod.resource_version();
        found.is_some_and(|found| same(found) || self.overwrites())
    }

    fn on_pod(&mut self, exact: &ObjectVersion, change: impl FnOnce(&mut Pod)) -> Answer {
        let node = number(exact.name());
        if !self.is_exact(exact) {
            return Answer::Conflict;
        }
        self.change_pod(node, change);
        self.pod_object(node)
            .map_or(Answer::Conflict, |pod| Answer::Pod(Box::new(pod.clone())))
    }

    /// Changes a pod that exists; if the result is equal, nothing happens.
    pub fn change_pod(&mut self, node: usize, change: impl FnOnce(&mut Pod)) {
        let Some(before) = self.pod_object(node).cloned() else {
            return;
        };
        let mut after = before.clone();
        change(&mut after);
        if after != before {
            self.change_pods(|pods, version| {
                version.clone_into(&mut after.resource_version);
                pods.insert(after.ordinal, after);
            });
        }
    }

    /// True with the mutant whose writes have no preconditions.
    pub fn overwrites(&self) -> bool {
        self.plan.bug == Some(Bug::OperatorExpectsNothing)
    }
}
