//! The verdict on a database: one word, since when, what is wrong, and who must act.
//!
//! The operator judges a database in its conditions. This module only finds the words for them.

use api::status::{DurabilityStatus, WaitActor, WaitReason, WaitingStatus};
use api::{ClusteredDatabase, ClusteredDatabaseStatus, Phase};
use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use machine::cluster::health::{BACKUP_HEALTHY, ConditionKind, Reason};
use machine::units::Bytes;
use serde::Serialize;

use crate::text::{Style, Tone, span};

/// How a database is, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    /// It was made, it should serve, and no primary does.
    Outage,
    /// Waiting does not help: the spec or something outside has to change.
    Failed,
    /// The operator has not looked at it, or could not read everything.
    Unknown,
    /// A primary serves, and something is missing or not safe.
    Degraded,
    /// The operator gets no further by itself.
    Stalled,
    /// Instances are stopped by `spec.fenced`.
    Fenced,
    /// It is being made.
    Creating,
    /// It is being changed or repaired.
    Changing,
    /// It is being deleted.
    Deleting,
    /// The operator changes nothing, by `spec.paused`.
    Paused,
    /// It is stopped by `spec.hibernated`.
    Hibernated,
    /// Everything is as the spec wants it.
    Healthy,
}

impl Verdict {
    /// The word for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verdict::Outage => "OUTAGE",
            Verdict::Failed => "FAILED",
            Verdict::Unknown => "UNKNOWN",
            Verdict::Degraded => "DEGRADED",
            Verdict::Stalled => "STALLED",
            Verdict::Fenced => "FENCED",
            Verdict::Creating => "CREATING",
            Verdict::Changing => "CHANGING",
            Verdict::Deleting => "DELETING",
            Verdict::Paused => "PAUSED",
            Verdict::Hibernated => "HIBERNATED",
            Verdict::Healthy => "HEALTHY",
        }
    }

    /// The word, in its tone.
    pub fn paint(self, style: Style) -> String {
        let tone = match self {
            Verdict::Outage | Verdict::Failed | Verdict::Unknown | Verdict::Stalled => Tone::Bad,
            Verdict::Degraded
            | Verdict::Fenced
            | Verdict::Creating
            | Verdict::Changing
            | Verdict::Deleting
            | Verdict::Paused => Tone::Busy,
            Verdict::Hibernated | Verdict::Healthy => Tone::Good,
        };
        style.paint(tone, self.as_str())
    }
}

/// The party that has to act next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Actor {
    /// People: the user, or somebody outside of the database.
    You,
    /// The operator.
    Operator,
    /// The agents in the pods.
    Agents,
    /// Kubernetes.
    Kubernetes,
    /// The driver or the provisioner of the volumes.
    Storage,
    /// Nobody: the database is as the spec wants it.
    Nobody,
}

impl From<WaitActor> for Actor {
    fn from(actor: WaitActor) -> Self {
        match actor {
            WaitActor::User | WaitActor::External => Actor::You,
            WaitActor::Operator => Actor::Operator,
            WaitActor::Agents => Actor::Agents,
            WaitActor::Kubernetes => Actor::Kubernetes,
            WaitActor::Storage => Actor::Storage,
        }
    }
}

impl Actor {
    const fn sentence(self) -> &'static str {
        match self {
            Actor::You => "Needs YOU.",
            Actor::Operator => "Nobody needs to act: the operator does.",
            Actor::Agents => "Nobody needs to act: the agents do.",
            Actor::Kubernetes => "Nobody needs to act: Kubernetes does.",
            Actor::Storage => "Nobody needs to act: the driver of the volumes does.",
            Actor::Nobody => "Nobody needs to act.",
        }
    }
}

/// The first lines of the page about a database.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Headline {
    /// The word.
    pub verdict: Verdict,
    /// Since when it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
    /// The same as a time span.
    #[serde(skip)]
    pub lasts: Option<TimeDelta>,
    /// What is wrong, or under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Who must act. Absent if an operator of another version names an actor that this program does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<Actor>,
    /// The one command or change to make, if there is something to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
}

impl Headline {
    /// The line as text, after the database's name.
    pub fn line(&self, durability: Option<&DurabilityStatus>, style: Style) -> String {
        let lasts = self.lasts.map(|lasts| format!(" for {}", span(lasts)));
        let healthy = durability.filter(|_| self.verdict == Verdict::Healthy);
        let problem = self.problem.clone().or_else(|| healthy.map(cost));
        format!(
            "{}{}{}. {}",
            self.verdict.paint(style),
            lasts.unwrap_or_default(),
            problem.map_or_else(String::new, |problem| format!(": {problem}")),
            self.actor.map_or("", Actor::sentence)
        )
    }
}

const NEW: &str = "the operator has not looked at this database yet";
const STALE: &str = "the operator has not looked at this version of the spec yet";
const PAUSED: &str = "the operator changes nothing";

/// The headline of a database.
pub fn headline(db: &ClusteredDatabase, now: DateTime<Utc>) -> Headline {
    let view = View::new(db);
    let Found {
        mut verdict,
        mut since,
        mut problem,
    } = view.found();
    let mut actor = view.actor(verdict);
    if let (Some(status), true) = (view.status, actor == Some(Actor::You) && view.failure().is_none())
        && let Some(waiting) = &status.waiting
        && !problem.as_ref().is_some_and(|problem| problem.contains(&waiting.what))
    {
        problem = Some(joined(problem, &waits_for(waiting)));
    }
    let stale = view.status.is_some() && is_stale(db);
    if stale && actor == Some(Actor::Nobody) {
        // "As the spec wants it" was said of another spec.
        (verdict, since, problem) = (Verdict::Changing, None, Some(STALE.to_owned()));
        actor = Some(Actor::Operator);
    } else if stale {
        problem = Some(joined(problem, STALE));
    }
    let known = if actor == Some(Actor::You) { view.action() } else { None };
    let ask = stale || actor == Some(Actor::You) || verdict == Verdict::Unknown;
    Headline {
        verdict,
        since,
        lasts: since.map(|since| now - since),
        problem,
        actor,
        action: known.or_else(|| ask.then(|| why(db))),
    }
}

/// Whether the status, if there is one, describes an older version of the spec.
pub fn is_stale(db: &ClusteredDatabase) -> bool {
    let seen = db.status.as_ref().and_then(|status| status.observed_generation);
    seen < db.metadata.generation
}

/// What any one failure costs while the database is healthy.
fn cost(durability: &DurabilityStatus) -> String {
    let loss = match durability.max_loss_bytes {
        Some(0) => "loses nothing".to_owned(),
        Some(most) => format!("loses at most {} of the last commits", Bytes(most).rounded()),
        None => "can lose any number of commits".to_owned(),
    };
    let stop = match durability.expected_recovery_milliseconds {
        Some(recovery) => {
            let tenths = recovery.saturating_add(50) / 100;
            let text = format!("{}.{}", tenths / 10, tenths % 10);
            format!("for about {} s", text.strip_suffix(".0").unwrap_or(&text))
        }
        None => "until the pod runs again".to_owned(),
    };
    format!("any one failure {loss}, and stops writes {stop}")
}

fn joined(problem: Option<String>, more: &str) -> String {
    problem.map_or_else(|| more.to_owned(), |problem| format!("{problem}; {more}"))
}

fn waits_for(waiting: &WaitingStatus) -> String {
    format!("waits for {}", waiting.what)
}

fn why(db: &ClusteredDatabase) -> String {
    let name = db.metadata.name.as_deref().unwrap_or_default();
    let namespace = db.metadata.namespace.as_ref();
    let namespace = namespace.map_or_else(String::new, |namespace| format!(" -n {namespace}"));
    format!("kubectl cdb why {name}{namespace}")
}

fn time(time: &Time) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(time.0.as_second(), 0)
}

/// The verdict, since when, and what is wrong.
struct Found {
    verdict: Verdict,
    since: Option<DateTime<Utc>>,
    problem: Option<String>,
}

impl Found {
    fn new(verdict: Verdict, since: Option<DateTime<Utc>>, problem: impl Into<String>) -> Self {
        Self {
            verdict,
            since,
            problem: Some(problem.into()),
        }
    }

    /// As this condition says it.
    fn by(verdict: Verdict, condition: &Condition) -> Self {
        Self::new(verdict, time(&condition.last_transition_time), &condition.message)
    }
}

/// A database and what the operator says about it.
struct View<'a> {
    db: &'a ClusteredDatabase,
    /// Absent as long as the operator has said nothing.
    status: Option<&'a ClusteredDatabaseStatus>,
}

impl<'a> View<'a> {
    fn new(db: &'a ClusteredDatabase) -> Self {
        let status = db.status.as_ref().filter(|status| !status.conditions.is_empty());
        Self { db, status }
    }

    /// The condition, if it has this status.
    fn condition(&self, kind: ConditionKind, status: &str) -> Option<&'a Condition> {
        let mut conditions = self.status?.conditions.iter();
        conditions.find(|found| found.type_ == kind.as_str() && found.status == status)
    }

    /// The condition, if it has this status for one of these reasons.
    fn because(&self, kind: ConditionKind, status: &str, reasons: &[Reason]) -> Option<&'a Condition> {
        let one_of = |found: &&Condition| reasons.iter().any(|reason| reason.as_str() == found.reason);
        self.condition(kind, status).filter(one_of)
    }

    fn waiting(&self) -> Option<&'a WaitingStatus> {
        self.status?.waiting.as_ref()
    }

    fn failure(&self) -> Option<&'a api::status::FailureStatus> {
        self.status?.failure.as_ref()
    }

    fn phase_since(&self) -> Option<DateTime<Utc>> {
        self.status?.memo.phase_since
    }

    /// What is under way.
    fn progress(&self) -> String {
        let step = self.status.and_then(|status| status.step.as_ref());
        let step = step.map_or_else(String::new, |step| format!(" (step {step})"));
        self.waiting()
            .map_or_else(|| format!("the operator makes changes{step}"), waits_for)
    }

    fn found(&self) -> Found {
        use ConditionKind::{Available, Degraded, Ready, Stalled};
        let metadata = &self.db.metadata;
        if let Some(deleted) = &metadata.deletion_timestamp {
            return Found::new(Verdict::Deleting, time(deleted), self.progress());
        }
        let Some(status) = self.status else {
            return Found::new(
                Verdict::Unknown,
                metadata.creation_timestamp.as_ref().and_then(time),
                NEW,
            );
        };
        if let Some(unknown) = self.condition(Available, "Unknown") {
            // An object that cannot be read is named there.
            let named = self.because(Degraded, "True", &[Reason::UnreadableObject]);
            return Found::by(Verdict::Unknown, named.unwrap_or(unknown));
        }
        let is_new = matches!(status.phase, Some(Phase::Creating | Phase::Restoring));
        if let (Some(outage), false) = (self.outage(), is_new) {
            return Found {
                problem: Some(self.failure().map_or_else(
                    || outage.message.clone(),
                    |failure| format!("{}; {:?}", outage.message, failure.reason),
                )),
                ..Found::by(Verdict::Outage, outage)
            };
        }
        if let Some(failure) = self.failure() {
            return Found::new(Verdict::Failed, self.phase_since(), format!("{:?}", failure.reason));
        }
        let bug = self.because(Degraded, "True", &[Reason::InternalError]);
        let fenced = self.because(Degraded, "True", &[Reason::Fenced, Reason::Fencing]);
        let hibernated = self.because(Ready, "True", &[Reason::Hibernated]);
        let found = [
            (Verdict::Degraded, bug),
            (Verdict::Fenced, fenced),
            (Verdict::Hibernated, hibernated),
        ];
        if let Some((verdict, Some(condition))) = found.into_iter().find(|(_, found)| found.is_some()) {
            return Found::by(verdict, condition);
        }
        if let Some(paused) = self.paused() {
            return paused;
        }
        if is_new {
            return Found::new(Verdict::Creating, self.phase_since(), self.progress());
        }
        let degraded = self.condition(Degraded, "True").or_else(|| self.unsafe_though_ready());
        if let Some(degraded) = degraded.or_else(|| self.unarchived()) {
            return Found::by(Verdict::Degraded, degraded);
        }
        if let Some(stalled) = self.condition(Stalled, "True") {
            let problem = format!("{}, for longer than it should", self.progress());
            return Found::new(Verdict::Stalled, time(&stalled.last_transition_time), problem);
        }
        match self.condition(Ready, "True") {
            Some(ready) => Found {
                problem: None,
                ..Found::by(Verdict::Healthy, ready)
            },
            None => {
                let since = self.condition(Ready, "False");
                let since = since.and_then(|ready| time(&ready.last_transition_time));
                Found::new(Verdict::Changing, since, self.progress())
            }
        }
    }

    /// No primary serves, and the user has not stopped it.
    fn outage(&self) -> Option<&'a Condition> {
        let wanted = [Reason::NotMade, Reason::Hibernated, Reason::Fenced, Reason::Fencing];
        let kind = ConditionKind::Available;
        let is_wanted = self.because(kind, "False", &wanted).is_some();
        self.condition(kind, "False").filter(|_| !is_wanted)
    }

    fn paused(&self) -> Option<Found> {
        let stopped = self.because(ConditionKind::Reconciling, "False", &[Reason::Paused]);
        let ready = self.condition(ConditionKind::Ready, "True");
        let unpause = self
            .waiting()
            .filter(|waiting| waiting.reason == Some(WaitReason::Unpause));
        let condition = stopped.or_else(|| ready.filter(|_| unpause.is_some()))?;
        let since = unpause.map_or_else(|| time(&condition.last_transition_time), |wait| Some(wait.since));
        let degraded = self.condition(ConditionKind::Degraded, "True");
        let problem = degraded.map_or_else(
            || PAUSED.to_owned(),
            |degraded| format!("{PAUSED}; {}", degraded.message),
        );
        Some(Found::new(Verdict::Paused, since, problem))
    }

    /// Everything is as wanted, and the data is not safe. One instance alone is what the spec asks for.
    fn unsafe_though_ready(&self) -> Option<&'a Condition> {
        let kind = ConditionKind::DataSafe;
        let alone = self.because(kind, "False", &[Reason::SingleInstance]).is_some();
        let ready = self.condition(ConditionKind::Ready, "True").is_some();
        self.condition(kind, "False").filter(|_| ready && !alone)
    }

    /// Everything is as wanted, and the archive of WAL is not: no operator can mend a store.
    fn unarchived(&self) -> Option<&'a Condition> {
        let mut conditions = self.status?.conditions.iter();
        let unhealthy = conditions.find(|found| found.type_ == BACKUP_HEALTHY && found.status == "False");
        unhealthy.filter(|_| self.condition(ConditionKind::Ready, "True").is_some())
    }

    fn actor(&self, verdict: Verdict) -> Option<Actor> {
        let ready = self.condition(ConditionKind::Ready, "True").is_some();
        let is_rest = match verdict {
            Verdict::Paused | Verdict::Hibernated | Verdict::Healthy => true,
            Verdict::Fenced => ready,
            Verdict::Outage
            | Verdict::Failed
            | Verdict::Unknown
            | Verdict::Degraded
            | Verdict::Stalled
            | Verdict::Creating
            | Verdict::Changing
            | Verdict::Deleting => false,
        };
        if is_rest {
            return Some(Actor::Nobody);
        }
        let bug = self.because(ConditionKind::Degraded, "True", &[Reason::InternalError]);
        let stalled = self.condition(ConditionKind::Stalled, "True");
        if self.failure().is_some() || stalled.or(bug).is_some() {
            return Some(Actor::You);
        }
        match self.waiting() {
            Some(waiting) => waiting.actor.map(Actor::from),
            None if self.unarchived().is_some() => Some(Actor::You),
            None => Some(Actor::Operator),
        }
    }

    /// What ends the failure or the wait, as the status says it.
    fn action(&self) -> Option<String> {
        if let Some(failure) = self.failure() {
            return Some(failure.message.clone());
        }
        let ended_by = self.waiting()?.who_can_end_it.as_str();
        if let Some(how) = ended_by.strip_prefix("the user, by ") {
            return Some(format!("end the wait by {how}"));
        }
        let action = ended_by.strip_prefix("the user: ").unwrap_or(ended_by);
        (action != "the user").then(|| action.to_owned())
    }
}

#[cfg(test)]
mod tests;
