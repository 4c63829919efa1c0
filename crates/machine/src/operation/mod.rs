//! The operation machine, run by the operator: how far one `ClusteredDatabaseOperation` is. It does nothing to the cluster. The
//! cluster machine reads what is asked for ([`Request`]), and notes in its own status what came of it; this machine reads that note.

use api::ClusteredDatabaseSpec;
use api::operation::{
    Action as Asked, ClusteredDatabaseOperationSpec, OperationPhase, OperationStatus, Request, refusal,
};
use api::status::{NotedRequest, RequestOutcome};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::cluster::Known;
use crate::reconcile::{Controller, Decided, Effect, OnBackoff, RuleKind, STATUS_SETTLES, StatusWrite};

/// Where and what an operation is.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a, S = ClusteredDatabaseOperationSpec> {
    /// Its UID.
    pub uid: &'a str,
    /// `metadata.generation`.
    pub generation: i64,
    /// When it was made.
    pub created: DateTime<Utc>,
    /// Its spec.
    pub spec: &'a S,
}

/// What is observed around it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    /// The cluster, if there is one.
    pub cluster: Known<Option<Cluster>>,
    /// The name of the operation of the same cluster that comes before this one, if it is not this one's turn.
    pub before: Known<Option<String>>,
}

/// A ClusteredDatabase, as far as its operations read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// It is being deleted.
    pub deleting: bool,
    /// Why it takes up nothing now, if that is the user's doing.
    pub idle: Option<String>,
    /// The request that it has noted last, and what came of it.
    pub request: Option<NotedRequest>,
}

/// Why a cluster with this spec takes up nothing: the user's doing.
pub fn idle(spec: &ClusteredDatabaseSpec) -> Option<String> {
    let why = if spec.paused {
        "it is paused (spec.paused)"
    } else if spec.hibernated {
        "it is hibernated (spec.hibernated)"
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// What a write is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The status.
    Status,
}

/// What can be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Action {
    /// Nothing now; this is waited for, or nothing at all.
    Wait(Option<String>),
    /// Write that it is in this phase, and why.
    Enter(OperationPhase, String),
}

/// What to do now, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// The one effect.
    pub action: Action,
    /// The rule that decided.
    pub rule: &'static str,
    /// Decide again then, even if nothing changes.
    pub wake: DateTime<Utc>,
}

/// One rule.
pub type Rule = crate::reconcile::Rule<fn(&Facts<'_>) -> Option<Action>>;

/// All rules, the most important first. The last one always proposes something.
pub const RULES: [Rule; 8] = [
    Rule {
        name: "ended",
        family: "operation",
        what: "An operation that has ended stays as it is.",
        protocol: &[],
        kind: RuleKind::Act,
        on_backoff: OnBackoff::Hold,
        decide: ended,
    },
    Rule {
        name: "invalid",
        family: "operation",
        what: "An operation that breaks a rule fails.",
        protocol: &[],
        kind: RuleKind::Act,
        on_backoff: OnBackoff::Hold,
        decide: |facts| {
            Some(Action::Enter(
                OperationPhase::Failed,
                refusal(facts.wanted.spec, None)?.to_owned(),
            ))
        },
    },
    Rule {
        name: "outcome",
        family: "operation",
        what: "What the cluster has noted as the outcome ends the operation.",
        protocol: &[],
        kind: RuleKind::Act,
        on_backoff: OnBackoff::Hold,
        decide: outcome,
    },
    Rule {
        name: "cancel",
        family: "operation",
        what: "An operation that is taken back is cancelled as soon as the cluster does nothing for it.",
        protocol: &[],
        kind: RuleKind::Act,
        on_backoff: OnBackoff::Hold,
        decide: cancel,
    },
    Rule {
        name: "accept",
        family: "operation",
        what: "A new operation is noted as pending before anything is done for it.",
        protocol: &[],
        kind: RuleKind::Act,
        on_backoff: OnBackoff::Hold,
        decide: |facts| match facts.phase() {
            None => Some(Action::Enter(OperationPhase::Pending, "accepted".to_owned())),
            Some(_) => None,
        },
    },
    Rule {
        name: "cluster",
        family: "operation",
        what: "Without its cluster an operation waits 5 min, and fails then; one that has begun fails at once.",
        protocol: &[],
        kind: RuleKind::Act,
        on_backoff: OnBackoff::Hold,
        decide: cluster,
    },
    Rule {
        name: "turn",
        family: "operation",
        what: "The operations of one cluster are done one after the other, the oldest first.",
        protocol: &[],
        kind: RuleKind::Explain,
        on_backoff: OnBackoff::Hold,
        decide: |facts| match &facts.observed.before {
            Known::Unknown => Some(facts.wait("the operations of the cluster to be read".to_owned())),
            Known::Known(Some(before)) => Some(facts.wait(format!(
                "operation {before} to end; to take that one back: {}",
                cancel_command(before)
            ))),
            Known::Known(None) => None,
        },
    },
    Rule {
        name: "run",
        family: "operation",
        what: "An operation runs when the cluster has noted it.",
        protocol: &[],
        kind: RuleKind::Act,
        on_backoff: OnBackoff::Hold,
        decide: run,
    },
];

/// A cluster is made together with its first operation, or by a slow hand.
pub(crate) const WAIT_LIMIT: TimeDelta = TimeDelta::minutes(5);
/// An operation is looked at again after this long, even if nothing happens.
const RECHECK: TimeDelta = TimeDelta::minutes(2);

/// What rules look at.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    wanted: &'a Wanted<'a>,
    observed: &'a Observed,
    stored: &'a OperationStatus,
    now: DateTime<Utc>,
}

impl Facts<'_> {
    fn phase(&self) -> Option<OperationPhase> {
        self.stored.phase
    }

    /// The request of this operation that the cluster has noted.
    fn noted(&self) -> Option<&NotedRequest> {
        let request = Request::new(self.wanted.spec, self.wanted.uid)?;
        let cluster = self.observed.cluster.get()?.as_ref()?;
        cluster.request.as_ref().filter(|noted| noted.request == request)
    }

    fn cluster_name(&self) -> &str {
        &self.wanted.spec.cluster_ref.name
    }

    fn wait(&self, what: String) -> Action {
        Action::Wait(Some(what))
    }
}

/// Whether the cluster is to be asked for this: not before the operation is noted as pending, and not after it has ended or was
/// taken back.
pub fn is_open(spec: &ClusteredDatabaseOperationSpec, status: &OperationStatus) -> bool {
    let phase = status.phase;
    phase.is_some_and(|phase| !phase.is_final()) && !spec.cancel && refusal(spec, None).is_none()
}

/// An operation that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate<R = Request> {
    /// Its name.
    pub name: String,
    /// When it was made.
    pub created: DateTime<Utc>,
    /// What it asks the cluster for. The cluster machine notes it with its outcome, so that each operation is done once.
    pub request: R,
}

/// Of the open operations of a cluster the one that it is asked for: the one that it has begun, or else the oldest. `noted` is
/// what the cluster has noted last.
pub fn next(open: impl Iterator<Item = Candidate>, noted: Option<&NotedRequest>) -> Option<Candidate> {
    first(open, |request| {
        noted.is_some_and(|noted| noted.request == *request && noted.outcome.is_none())
    })
}

/// The one that has begun, or else the oldest.
pub(crate) fn first<R>(open: impl Iterator<Item = Candidate<R>>, begun: impl Fn(&R) -> bool) -> Option<Candidate<R>> {
    open.min_by_key(|candidate| (!begun(&candidate.request), candidate.created, candidate.name.clone()))
}

fn ended(facts: &Facts<'_>) -> Option<Action> {
    let is_over = facts.phase().is_some_and(OperationPhase::is_final);
    is_over.then_some(Action::Wait(None))
}

fn outcome(facts: &Facts<'_>) -> Option<Action> {
    let noted = facts.noted()?;
    let message = noted.message.clone().unwrap_or_default();
    let phase = match noted.outcome.as_ref()? {
        RequestOutcome::Done => OperationPhase::Completed,
        RequestOutcome::GivenUp => OperationPhase::Failed,
    };
    Some(Action::Enter(phase, message))
}

fn cancel(facts: &Facts<'_>) -> Option<Action> {
    if !facts.wanted.spec.cancel {
        return None;
    }
    match &facts.observed.cluster {
        Known::Unknown => Some(facts.wait("the cluster to be read".to_owned())),
        Known::Known(_) if facts.noted().is_some() => {
            Some(facts.wait(format!("{} to take the request back", facts.cluster_name())))
        }
        Known::Known(_) => Some(Action::Enter(OperationPhase::Cancelled, taken_back(facts).to_owned())),
    }
}

/// What became of one that was taken back.
fn taken_back(facts: &Facts<'_>) -> &'static str {
    let begun = facts.phase() == Some(OperationPhase::Running);
    match facts.wanted.spec.actions.only() {
        Some(Asked::TakeImage(_) | Asked::Restart(_)) if begun => {
            "taken back after it had begun: what it has changed already stays, and pods of the older template are replaced"
        }
        Some(Asked::Recover(_)) if begun => {
            "taken back after it had begun: the database goes on as it was, unless it serves what was recovered already"
        }
        Some(Asked::UndoRecovery(_)) if begun => {
            "taken back after it had begun: the database goes on as it was, unless its Lease is changed already"
        }
        Some(Asked::ConfirmRecovery(_)) if begun => {
            "taken back after it had begun: the volumes are deleted all the same"
        }
        Some(
            Asked::Switchover(_)
            | Asked::Recover(_)
            | Asked::UndoRecovery(_)
            | Asked::TakeImage(_)
            | Asked::Restart(_)
            | Asked::AcceptLoss(_)
            | Asked::DiscardQuarantined(_)
            | Asked::RecreateLease(_)
            | Asked::ConfirmRecovery(_)
            | Asked::RotateAuthority(_),
        )
        | None => "taken back",
    }
}

fn cluster(facts: &Facts<'_>) -> Option<Action> {
    let name = facts.cluster_name();
    let why = match &facts.observed.cluster {
        Known::Unknown => return Some(facts.wait("the cluster to be read".to_owned())),
        Known::Known(None) => format!("there is no ClusteredDatabase {name}"),
        Known::Known(Some(cluster)) if cluster.deleting => format!("ClusteredDatabase {name} is being deleted"),
        Known::Known(Some(_)) => return None,
    };
    let begun = facts.phase() == Some(OperationPhase::Running);
    if begun || facts.now >= facts.wanted.created + WAIT_LIMIT {
        return Some(Action::Enter(OperationPhase::Failed, why));
    }
    Some(facts.wait(format!("ClusteredDatabase {name} to be made: {why}")))
}

fn run(facts: &Facts<'_>) -> Option<Action> {
    let (name, running) = (facts.cluster_name(), facts.phase() == Some(OperationPhase::Running));
    Some(match facts.noted() {
        Some(_) if !running => Action::Enter(OperationPhase::Running, format!("{name} has begun")),
        Some(_) => facts.wait(ending(facts)),
        None => {
            let cluster = facts.observed.cluster.get().and_then(Option::as_ref);
            let idle = cluster.and_then(|cluster| cluster.idle.as_ref());
            facts.wait(format!(
                "{name} to begin{}",
                idle.map_or(String::new(), |why| format!(": {why}"))
            ))
        }
    })
}

fn cancel_command(operation: &str) -> String {
    format!("kubectl patch cdbop {operation} --type merge -p '{{\"spec\":{{\"cancel\":true}}}}'")
}

/// What ends an operation that has begun.
fn ending(facts: &Facts<'_>) -> String {
    let name = facts.cluster_name();
    match facts.wanted.spec.actions.only() {
        Some(Asked::Switchover(_)) | None => format!("{name} to be done with it"),
        Some(Asked::TakeImage(_)) => format!("all instances of {name} to run it: kubectl cdb status {name}"),
        Some(Asked::Restart(_)) => format!("all instances of {name} to have new pods: kubectl cdb status {name}"),
        Some(Asked::DiscardQuarantined(discard)) => format!("{} to remove {}", discard.instance, discard.name),
        Some(Asked::RecreateLease(_)) => format!("Lease {name} to be made again (an empty one has to be deleted)"),
        Some(Asked::Recover(_)) => format!("{name} to serve what is recovered: kubectl cdb status {name}"),
        Some(Asked::UndoRecovery(_)) => format!("{name} to serve what was before: kubectl cdb status {name}"),
        Some(Asked::ConfirmRecovery(_)) => format!("the other volumes of {name} to be deleted"),
        Some(Asked::RotateAuthority(_)) => format!("{name} to introduce another authority"),
        Some(Asked::AcceptLoss(_)) => format!("the instances of {name} that are left to elect a primary"),
    }
}

/// The machine of `ClusteredDatabaseOperation`.
#[derive(Clone, Copy, Debug)]
pub struct Operation;

impl Controller for Operation {
    type Wanted<'a> = Wanted<'a>;
    type Observed = Observed;
    type Status = OperationStatus;
    type Action = Action;
    type Prepared = ();
    type Decision = Decision;

    fn decide(wanted: &Wanted<'_>, observed: &Observed, stored: &OperationStatus, now: DateTime<Utc>) -> Decision {
        let facts = Facts {
            wanted,
            observed,
            stored,
            now,
        };
        let proposed = RULES.iter().find_map(|rule| Some((rule.name, (rule.decide)(&facts)?)));
        decision(proposed, wanted.created, now)
    }

    fn status(
        wanted: &Wanted<'_>,
        _observed: &Observed,
        stored: &OperationStatus,
        decision: &Decision,
        (): &(),
        now: DateTime<Utc>,
    ) -> OperationStatus {
        described(stored, decision, wanted.generation, now)
    }

    fn due(stored: &OperationStatus, next: &OperationStatus, decision: &Decision) -> StatusWrite {
        due(stored == next, decision)
    }

    fn confirms(_observed: &Observed, _action: &Action) -> bool {
        false
    }
}

/// The status after `decision`.
pub(crate) fn described(
    stored: &OperationStatus,
    decision: &Decision,
    generation: i64,
    now: DateTime<Utc>,
) -> OperationStatus {
    let mut next = stored.clone();
    match &decision.action {
        Action::Wait(None) => return next,
        Action::Wait(Some(what)) => next.message = Some(format!("waiting for {what}")),
        Action::Enter(phase, why) => {
            (next.phase, next.message) = (Some(*phase), Some(why.clone()));
            if *phase == OperationPhase::Running {
                next.start_time = Some(now);
            }
            if phase.is_final() {
                next.completion_time = Some(now);
            }
        }
    }
    next.observed_generation = Some(generation);
    next
}

/// When the status has to be written that belongs to `decision`.
pub(crate) fn due(is_stored: bool, decision: &Decision) -> StatusWrite {
    match decision.action {
        Action::Enter(..) => StatusWrite::BeforeAction,
        Action::Wait(_) if is_stored => StatusWrite::None,
        Action::Wait(_) => StatusWrite::Debounced(STATUS_SETTLES),
    }
}

/// A decision that is made again after a while, and when the cluster has been waited for long enough.
pub(crate) fn decision(
    proposed: Option<(&'static str, Action)>,
    created: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Decision {
    let (rule, action) = proposed.unwrap_or(("run", Action::Wait(None)));
    let (deadline, wake) = (created + WAIT_LIMIT, now + RECHECK);
    Decision {
        action,
        rule,
        wake: if deadline > now { wake.min(deadline) } else { wake },
    }
}

impl Decided for Decision {
    type Action = Action;

    fn action(&self) -> &Action {
        &self.action
    }

    fn wake(&self) -> DateTime<Utc> {
        self.wake
    }
}

impl Action {
    /// The action's name, for logs and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Action::Wait(_) => "Wait",
            Action::Enter(..) => "WriteStatus",
        }
    }
}

impl Effect for Action {
    type Target = Target;

    fn target(&self) -> Option<Target> {
        match self {
            Action::Wait(_) => None,
            Action::Enter(..) => Some(Target::Status),
        }
    }

    fn writes_status(&self) -> bool {
        matches!(self, Action::Enter(..))
    }

    fn status() -> Target {
        Target::Status
    }
}

#[cfg(test)]
mod tests;
