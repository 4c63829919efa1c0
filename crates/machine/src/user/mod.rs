//! The user machine, run by the operator: what one `DatabaseUser` declares is handed to the agents of its cluster, and what became of
//! it is told. Unlike an operation it never ends: each decision begins with what is observed.
//!
//! The operator runs no SQL. It writes what is declared into the Secret `NAME-access`, and the primary's agent plans and runs the
//! statements ([`crate::access`]).

use std::collections::BTreeMap;

use api::user::{DatabaseUserSpec, DatabaseUserStatus, OnDelete, Permission, UserPhase, refusal};
use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use crate::access::{Access, Attributes, Declared, Password, Privilege, Published, Report, Secret};
use crate::cluster::Known;
use crate::reconcile::{Controller, Decided, Effect, OnBackoff, RuleKind, STATUS_SETTLES, StatusWrite};

/// Where and what a DatabaseUser is.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
    /// `metadata.generation`.
    pub generation: i64,
    /// It is being deleted.
    pub deleting: bool,
    /// It has our finalizer.
    pub finalizer: bool,
    /// Its spec.
    pub spec: &'a DatabaseUserSpec,
}

/// What is observed around it.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The cluster, if there is one.
    pub cluster: Known<Option<Cluster>>,
    /// An older DatabaseUser of the same cluster that declares the same role.
    pub older: Known<Option<String>>,
    /// The password that its role is to have.
    pub credentials: Credentials,
    /// What the Secret `NAME-access` has of it.
    pub published: Known<Option<Published>>,
    /// What the primary's agent has told of it.
    pub report: Known<Option<Report>>,
    /// There is a ConfigMap in which it can tell.
    pub has_reports: bool,
    /// An object of the cluster's users that belongs to somebody else, such as `Secret shop-access`.
    pub foreign: Option<String>,
    /// What failed and has not succeeded since, with the API server's words.
    pub faults: BTreeMap<Target, String>,
}

/// A ClusteredDatabase, as far as its users read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// It is being deleted.
    pub deleting: bool,
    /// Why it takes up nothing now, if that is the user's doing.
    pub idle: Option<String>,
    /// The role that owns its first database. The agents give it the password of another Secret.
    pub owner: String,
}

/// A password in a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credentials {
    /// None is needed.
    NotNeeded,
    /// The Secret could not be read.
    Unknown,
    /// There is no such Secret.
    Missing,
    /// The Secret cannot be used, for this reason.
    Unusable(String),
    /// There is a password.
    Usable {
        /// The published verifier is one of this password.
        is_published: bool,
        /// What the operator has written beside the password is still right.
        is_complete: bool,
    },
}

/// What a write is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The status.
    Status,
    /// The resource: its finalizer.
    Resource,
    /// The Secret with the password.
    Credentials,
    /// The Secret `NAME-access`.
    Access,
    /// The ConfigMap `NAME-access`.
    Reports,
}

/// What can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing now.
    Wait,
    /// Set the finalizer.
    AddFinalizer,
    /// Remove the finalizer.
    RemoveFinalizer,
    /// Make the Secret with a fresh password.
    MakeCredentials,
    /// Correct what stands beside the password in the Secret that the operator has made.
    CorrectCredentials,
    /// Make the ConfigMap `NAME-access`.
    MakeReports,
    /// Write this into the Secret `NAME-access`, with the verifier that is there if it fits, or else a fresh one.
    Publish(Box<Declared>),
    /// Take it out of the Secret `NAME-access`.
    Withdraw,
}

impl Action {
    /// Its name, for metrics and the log.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Wait => "Wait",
            Self::AddFinalizer => "AddFinalizer",
            Self::RemoveFinalizer => "RemoveFinalizer",
            Self::MakeCredentials => "MakeCredentials",
            Self::CorrectCredentials => "CorrectCredentials",
            Self::MakeReports => "MakeReports",
            Self::Publish(_) => "Publish",
            Self::Withdraw => "Withdraw",
        }
    }
}

impl Effect for Action {
    type Target = Target;

    fn target(&self) -> Option<Target> {
        match self {
            Self::Wait => None,
            Self::AddFinalizer | Self::RemoveFinalizer => Some(Target::Resource),
            Self::MakeCredentials | Self::CorrectCredentials => Some(Target::Credentials),
            Self::MakeReports => Some(Target::Reports),
            Self::Publish(_) | Self::Withdraw => Some(Target::Access),
        }
    }

    fn writes_status(&self) -> bool {
        false
    }

    fn status() -> Target {
        Target::Status
    }
}

/// What to do now, and how far the DatabaseUser is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The one effect.
    pub action: Action,
    /// The rule that decided.
    pub rule: &'static str,
    /// The phase.
    pub phase: UserPhase,
    /// Why it is in this phase.
    pub message: String,
    /// Decide again then, even if nothing changes.
    pub wake: DateTime<Utc>,
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

/// What a rule proposes.
pub struct Proposal {
    action: Action,
    phase: UserPhase,
    message: String,
}

/// One rule.
pub type Rule = crate::reconcile::Rule<fn(&Facts<'_>) -> Option<Proposal>>;

const fn rule(name: &'static str, what: &'static str, decide: fn(&Facts<'_>) -> Option<Proposal>) -> Rule {
    Rule {
        name,
        family: "user",
        what,
        protocol: &[],
        kind: RuleKind::Act,
        on_backoff: OnBackoff::Hold,
        decide,
    }
}

/// All rules, the most important first. The last one always proposes something.
pub const RULES: [Rule; 14] = [
    rule(
        "release",
        "A user that is deleted goes at once if nothing of it was handed on, or its cluster is gone or goes too.",
        release,
    ),
    rule(
        "drop",
        "A user whose role is to go with it waits until the primary has dropped the role, if it was made for this user.",
        drop_role,
    ),
    rule(
        "withdraw",
        "What was handed on of a user that is deleted is taken back; its role stays as it is.",
        |facts| {
            facts
                .wanted
                .deleting
                .then(|| facts.deleting(Action::Withdraw, "the role stays as it is".to_owned()))
        },
    ),
    rule(
        "invalid",
        "A user that breaks a rule fails, and nothing is changed.",
        |facts| {
            let why = refusal(facts.wanted.spec, facts.wanted.name)?;
            Some(failed(why))
        },
    ),
    rule(
        "size",
        "A user that declares more than 16 KiB fails: all users of a cluster share one Secret.",
        |facts| {
            let bytes = serde_json::to_vec(&declared(facts.wanted)).map_or(0, |text| text.len());
            (bytes > LARGEST).then(|| {
                failed(format!(
                    "its grants take {} KiB, and {} KiB at most are possible: name fewer schemas and databases",
                    bytes >> 10,
                    LARGEST >> 10
                ))
            })
        },
    ),
    rule(
        "finalizer",
        "A user has the finalizer before anything of it is handed on.",
        |facts| (!facts.wanted.finalizer).then(|| facts.act(Action::AddFinalizer, "accepted")),
    ),
    rule(
        "cluster",
        "A user waits for its cluster, however long that takes.",
        cluster,
    ),
    rule(
        "conflict",
        "Of two users of one cluster that declare one role, the older has it, and the younger fails.",
        conflict,
    ),
    rule(
        "owner",
        "The owner of the first database has its password from another Secret, and no second one here.",
        owner,
    ),
    rule(
        "foreign",
        "Objects that belong to somebody else are named, and left alone.",
        |facts| {
            let object = facts.observed.foreign.as_ref()?;
            Some(failed(format!(
                "there is a {object} that is not of this cluster: remove it"
            )))
        },
    ),
    rule(
        "credentials",
        "A password that nobody else gives is made; one in a Secret is waited for. Until then nothing is changed.",
        credentials,
    ),
    rule(
        "reports",
        "Before anything is handed on, there is a ConfigMap in which the primary can tell what became of it.",
        |facts| (!facts.observed.has_reports).then(|| facts.act(Action::MakeReports, "accepted")),
    ),
    rule(
        "publish",
        "What is declared is handed to the agents whenever it differs from what they have.",
        publish,
    ),
    rule("tell", "What the primary has told of it is told.", |facts| {
        Some(tell(facts))
    }),
];

/// A Secret holds 1 MiB.
const LARGEST: usize = 16 << 10;
/// A password in a Secret is looked at again after this long, though nothing has changed.
const RECHECK: TimeDelta = TimeDelta::minutes(10);
/// What is waited for and not reported by a watch is looked at again after this long.
const WAITS: TimeDelta = TimeDelta::seconds(30);

/// What rules look at.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    wanted: &'a Wanted<'a>,
    observed: &'a Observed,
}

impl Facts<'_> {
    fn cluster_name(&self) -> &str {
        &self.wanted.spec.cluster_ref.name
    }

    fn act(&self, action: Action, message: &str) -> Proposal {
        Proposal {
            action,
            phase: UserPhase::Pending,
            message: message.to_owned(),
        }
    }

    fn deleting(&self, action: Action, message: String) -> Proposal {
        Proposal {
            action,
            phase: UserPhase::Deleting,
            message,
        }
    }

    /// What the primary has told of what is published now.
    fn told(&self) -> Option<&Report> {
        let published = self.observed.published.get()?.as_ref()?;
        let report = self.observed.report.get()?.as_ref()?;
        (report.of == published.at).then_some(report)
    }

    /// The primary is waited for, and why it may take long.
    fn primary(&self) -> String {
        let cluster = self.observed.cluster.get().and_then(Option::as_ref);
        let idle = cluster.and_then(|cluster| cluster.idle.as_ref());
        let idle = idle.map_or(String::new(), |why| format!(": {why}"));
        format!("waiting for the primary of {}{idle}", self.cluster_name())
    }
}

fn pending(message: String) -> Proposal {
    Proposal {
        action: Action::Wait,
        phase: UserPhase::Pending,
        message,
    }
}

fn failed(message: String) -> Proposal {
    Proposal {
        action: Action::Wait,
        phase: UserPhase::Failed,
        message,
    }
}

fn release(facts: &Facts<'_>) -> Option<Proposal> {
    if !facts.wanted.deleting {
        return None;
    }
    if !facts.wanted.finalizer {
        return Some(facts.deleting(Action::Wait, "it is being deleted".to_owned()));
    }
    let goes = |why: &str| Some(facts.deleting(Action::RemoveFinalizer, why.to_owned()));
    match &facts.observed.cluster {
        Known::Known(None) => return goes("its cluster is gone"),
        Known::Known(Some(cluster)) if cluster.deleting => return goes("its cluster is being deleted"),
        Known::Known(Some(_)) | Known::Unknown => {}
    }
    match (&facts.observed.cluster, &facts.observed.published) {
        (Known::Unknown, _) | (_, Known::Unknown) => Some(facts.deleting(
            Action::Wait,
            format!("waiting for the objects of {} to be read", facts.cluster_name()),
        )),
        (_, Known::Known(None)) => goes("nothing of it is handed on"),
        (_, Known::Known(Some(_))) => None,
    }
}

fn drop_role(facts: &Facts<'_>) -> Option<Proposal> {
    let wanted = facts.wanted;
    let published = facts.observed.published.get()?.as_ref()?;
    if !wanted.deleting || wanted.spec.on_delete != OnDelete::Drop {
        return None;
    }
    if !facts.observed.has_reports {
        return Some(facts.deleting(Action::MakeReports, "the role is to be dropped".to_owned()));
    }
    let why = match facts.told() {
        None => format!("{} to drop the role", facts.primary()),
        Some(report) if published.declared.drop => {
            let why = report.error.as_ref().or(report.refusal.as_ref())?;
            format!("the role cannot be dropped: {why}")
        }
        // No role was ever made for it.
        Some(report) => {
            report.oid?;
            let going = Declared {
                drop: true,
                ..declared(wanted)
            };
            return Some(facts.deleting(Action::Publish(Box::new(going)), "the role is to be dropped".to_owned()));
        }
    };
    let message = format!("{why}; spec.onDelete: Retain lets it stay, and ends this");
    Some(facts.deleting(Action::Wait, message))
}

fn cluster(facts: &Facts<'_>) -> Option<Proposal> {
    let name = facts.cluster_name();
    match &facts.observed.cluster {
        Known::Unknown => Some(pending(format!("waiting for ClusteredDatabase {name} to be read"))),
        Known::Known(None) => Some(pending(format!("waiting for ClusteredDatabase {name}: there is none"))),
        Known::Known(Some(cluster)) if cluster.deleting => {
            Some(pending(format!("ClusteredDatabase {name} is being deleted")))
        }
        Known::Known(Some(_)) => None,
    }
}

fn conflict(facts: &Facts<'_>) -> Option<Proposal> {
    let role = facts.wanted.spec.role(facts.wanted.name);
    match &facts.observed.older {
        Known::Unknown => Some(pending("waiting for the users of the cluster to be read".to_owned())),
        Known::Known(Some(older)) => Some(failed(format!(
            "role {role} is declared by DatabaseUser {older}, which is older: delete one of them, or set another spec.name"
        ))),
        Known::Known(None) => None,
    }
}

fn owner(facts: &Facts<'_>) -> Option<Proposal> {
    let cluster = facts.observed.cluster.get()?.as_ref()?;
    let role = facts.wanted.spec.role(facts.wanted.name);
    let is_external = facts
        .wanted
        .spec
        .password
        .as_ref()
        .is_some_and(|password| password.external);
    (role == cluster.owner && !is_external).then(|| {
        failed(format!(
            "role {role} is the owner of the first database, and has the password of Secret {}-app: set password.external: true, or \
             another spec.name",
            facts.cluster_name()
        ))
    })
}

fn credentials(facts: &Facts<'_>) -> Option<Proposal> {
    let secret = secret(facts.wanted.spec, facts.wanted.name)?;
    match &facts.observed.credentials {
        Credentials::NotNeeded | Credentials::Usable { is_complete: true, .. } => None,
        Credentials::Usable { is_complete: false, .. } => {
            Some(facts.act(Action::CorrectCredentials, "the Secret with its password is corrected"))
        }
        Credentials::Unknown => Some(pending(format!("waiting for Secret {secret} to be read"))),
        Credentials::Missing if facts.wanted.spec.has_made_password() => {
            Some(facts.act(Action::MakeCredentials, "a password is made"))
        }
        Credentials::Missing => Some(pending(format!("waiting for Secret {secret}: there is none"))),
        Credentials::Unusable(why) => Some(failed(why.clone())),
    }
}

fn publish(facts: &Facts<'_>) -> Option<Proposal> {
    let declared = declared(facts.wanted);
    let published = match &facts.observed.published {
        Known::Unknown => {
            return Some(pending(format!(
                "waiting for Secret {}-access to be read",
                facts.cluster_name()
            )));
        }
        Known::Known(published) => published,
    };
    let is_same = published.as_ref().is_some_and(|published| {
        let known = Declared {
            password: without_verifier(&published.declared.password),
            ..published.declared.clone()
        };
        known == declared
    });
    let is_current = !matches!(
        facts.observed.credentials,
        Credentials::Usable {
            is_published: false,
            ..
        }
    );
    (!is_same || !is_current).then(|| facts.act(Action::Publish(Box::new(declared)), "handed to the agents"))
}

fn tell(facts: &Facts<'_>) -> Proposal {
    if facts.observed.report == Known::Unknown {
        return pending(format!(
            "waiting for ConfigMap {}-access to be read",
            facts.cluster_name()
        ));
    }
    let Some(report) = facts.told() else {
        return pending(facts.primary());
    };
    let missing = report.plan.len() + usize::try_from(report.more).unwrap_or(usize::MAX);
    match (&report.refusal, &report.error) {
        (Some(why), _) => failed(why.clone()),
        (None, Some(why)) => pending(format!("the primary tries again: {why}")),
        (None, None) if missing > 0 => Proposal {
            action: Action::Wait,
            phase: UserPhase::Planned,
            message: format!("{missing} statements are missing, which the policy leaves to you: see status.plan"),
        },
        (None, None) => Proposal {
            action: Action::Wait,
            phase: UserPhase::Ready,
            message: "PostgreSQL has the role as the spec wants it".to_owned(),
        },
    }
}

/// From then on PostgreSQL's catalogue is read as "for ever".
const FOR_EVER: DateTime<Utc> = DateTime::from_timestamp(253_402_128_000, 0).expect("9999-12-30");

/// What is declared. The verifier of a password is left out, which is an empty text here.
pub fn declared(wanted: &Wanted<'_>) -> Declared {
    let spec = wanted.spec;
    let password = spec.password.clone().unwrap_or_default();
    let password = if password.external {
        Password::External
    } else if secret(spec, wanted.name).is_some() {
        Password::Verifier(Secret(String::new()))
    } else {
        Password::None
    };
    Declared {
        uid: wanted.uid.to_owned(),
        name: spec.role(wanted.name).to_owned(),
        attributes: Attributes {
            login: spec.login,
            connection_limit: spec.connection_limit,
            // As PostgreSQL stores it, and as the agent reads it.
            valid_until: spec
                .valid_until
                .map(|time| time.trunc_subsecs(6))
                .filter(|time| *time < FOR_EVER),
        },
        password,
        grants: spec.all_grants().into_iter().map(access).collect(),
        adoption: spec.adoption,
        policy: spec.management_policy,
        drop: false,
    }
}

fn access(grant: api::user::Grant) -> Access {
    let privilege = |permission| match permission {
        Permission::Select => Privilege::Select,
        Permission::Insert => Privilege::Insert,
        Permission::Update => Privilege::Update,
        Permission::Delete => Privilege::Delete,
        Permission::Truncate => Privilege::Truncate,
        Permission::References => Privilege::References,
        Permission::Trigger => Privilege::Trigger,
    };
    Access {
        database: grant.database,
        schemas: grant.schemas,
        permissions: grant.permissions.into_iter().map(privilege).collect(),
        future: grant.include_future,
    }
}

fn without_verifier(password: &Password) -> Password {
    match password {
        Password::Verifier(_) => Password::Verifier(Secret(String::new())),
        Password::None => Password::None,
        Password::External => Password::External,
    }
}

/// The Secret with the role's password: `None` if it has none, or somebody else gives it.
pub fn secret(spec: &DatabaseUserSpec, name: &str) -> Option<String> {
    let referred = spec.password.as_ref().and_then(|password| password.secret_ref.as_ref());
    let made = spec.has_made_password().then(|| made_secret(name));
    referred.map(|reference| reference.name.clone()).or(made)
}

/// The Secret that the operator makes.
fn made_secret(name: &str) -> String {
    format!("{name}-credentials")
}

/// The machine of `DatabaseUser`.
#[derive(Clone, Copy, Debug)]
pub struct User;

impl Controller for User {
    type Wanted<'a> = Wanted<'a>;
    type Observed = Observed;
    type Status = DatabaseUserStatus;
    type Action = Action;
    type Prepared = ();
    type Decision = Decision;

    fn decide(wanted: &Wanted<'_>, observed: &Observed, _stored: &DatabaseUserStatus, now: DateTime<Utc>) -> Decision {
        let facts = Facts { wanted, observed };
        let found = RULES.iter().find_map(|rule| Some((rule.name, (rule.decide)(&facts)?)));
        let (rule, proposal) = found.unwrap_or(("tell", tell(&facts)));
        let fault = proposal.action.target().and_then(|target| observed.faults.get(&target));
        let message = match fault {
            Some(why) => format!("{}: {why}", proposal.message),
            None => proposal.message,
        };
        let again = match proposal.phase {
            UserPhase::Ready | UserPhase::Planned => RECHECK,
            UserPhase::Pending | UserPhase::Failed | UserPhase::Deleting => WAITS,
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
        wanted: &Wanted<'_>,
        observed: &Observed,
        stored: &DatabaseUserStatus,
        decision: &Decision,
        (): &(),
        now: DateTime<Utc>,
    ) -> DatabaseUserStatus {
        let facts = Facts { wanted, observed };
        let mut next = stored.clone();
        next.phase = Some(decision.phase);
        next.message = Some(decision.message.clone());
        next.role = Some(wanted.spec.role(wanted.name).to_owned());
        next.secret_name = wanted.spec.has_made_password().then(|| made_secret(wanted.name));
        if let Some(report) = facts.told() {
            next.oid = report.oid;
            next.plan.clone_from(&report.plan);
            next.more_statements = Some(report.more).filter(|more| *more > 0);
        }
        next.observed_generation = Some(wanted.generation);
        next.conditions = vec![ready(stored, decision, wanted.generation, now)];
        next
    }

    fn due(stored: &DatabaseUserStatus, next: &DatabaseUserStatus, _decision: &Decision) -> StatusWrite {
        if stored == next {
            StatusWrite::None
        } else if (stored.phase, stored.observed_generation) != (next.phase, next.observed_generation) {
            StatusWrite::BeforeAction
        } else {
            StatusWrite::Debounced(STATUS_SETTLES)
        }
    }

    fn confirms(_observed: &Observed, action: &Action) -> bool {
        // What is left behind then nobody would take back.
        *action == Action::RemoveFinalizer
    }
}

/// The condition `Ready`. The time of its last change is that of the stored one while its status is the same.
fn ready(stored: &DatabaseUserStatus, decision: &Decision, generation: i64, now: DateTime<Utc>) -> Condition {
    let (status, reason) = match decision.phase {
        UserPhase::Ready => ("True", "Ready"),
        UserPhase::Pending => ("False", "Pending"),
        UserPhase::Planned => ("False", "Planned"),
        UserPhase::Failed => ("False", "Failed"),
        UserPhase::Deleting => ("False", "Deleting"),
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

#[cfg(test)]
mod tests;
