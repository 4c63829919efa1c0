//! The words of these machines: what they look at, and what they can do.

use std::collections::BTreeMap;

use api::declared::{DeclaredPhase, DeclaredStatus};
use api::user::UserCertificate;
use chrono::{DateTime, Utc};

use crate::access::{Declared, Published, Report};
use crate::cluster::Known;
use crate::reconcile::{Decided, Effect, OnBackoff, RuleKind};

/// A kind that declares an object of PostgreSQL.
pub trait Declares: Sized + 'static {
    /// Its spec.
    type Spec;
    /// Its status.
    type Status: Clone + Default + PartialEq;

    /// Its name, such as `DatabaseUser`.
    const KIND: &'static str;
    /// What it declares, such as `role`.
    const OBJECT: &'static str;

    /// All rules, the most important first. The last one always proposes something.
    fn rules() -> &'static [Rule<Self>];
    /// What is wrong with a spec.
    fn refusal(spec: &Self::Spec, resource: &str) -> Option<String>;
    /// Name of the cluster.
    fn cluster(spec: &Self::Spec) -> &str;
    /// Name of the object in PostgreSQL. `resource` is the name of the resource.
    fn object<'a>(spec: &'a Self::Spec, resource: &'a str) -> &'a str;
    /// What is declared of the object with this OID when the resource is deleted; `None`: it stays as it is.
    fn going(wanted: &Wanted<'_, Self::Spec>, oid: u32, owner: Option<&str>) -> Option<Declared>;
    /// What is declared, as far as the spec says it: without the verifier of a password.
    fn declared(wanted: &Wanted<'_, Self::Spec>) -> Declared;
    /// The part of the status that all kinds have.
    fn common(status: &Self::Status) -> &DeclaredStatus;
    /// The same, to change it.
    fn common_mut(status: &mut Self::Status) -> &mut DeclaredStatus;
    /// Completes a status with what only this kind has.
    fn complete(wanted: &Wanted<'_, Self::Spec>, observed: &Observed, status: &mut Self::Status);
}

/// Where and what a resource is.
#[derive(Debug)]
pub struct Wanted<'a, S> {
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
    pub spec: &'a S,
}

/// What is observed around it.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// The cluster, if there is one.
    pub cluster: Known<Option<Cluster>>,
    /// An older resource of the same kind and cluster that declares the same object.
    pub older: Known<Option<String>>,
    /// The password that its object is to have.
    pub credentials: Credentials,
    /// What the Secret `NAME-access` has of it.
    pub published: Known<Option<Published>>,
    /// What the primary's agent has told of it.
    pub report: Known<Option<Report>>,
    /// There is a ConfigMap in which it can tell.
    pub has_reports: bool,
    /// An object in which is handed on and told, and which belongs to somebody else, such as `Secret shop-access`.
    pub foreign: Option<String>,
    /// The objects that are made for it in Kubernetes.
    pub parts: Parts,
    /// Its pods.
    pub instances: Option<Instances>,
    /// The certificate that is made with these objects.
    pub certificate: Option<UserCertificate>,
    /// What failed and has not succeeded since, with the API server's words.
    pub faults: BTreeMap<Target, String>,
}

/// The objects that are made for a resource in Kubernetes, with the resource as their owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Parts {
    /// Its kind has none.
    #[default]
    None,
    /// They cannot be read now.
    Unknown,
    /// Not all are as they should be.
    Differ,
    /// They are.
    Current,
    /// One of them belongs to somebody else: its kind and name.
    Foreign(String),
}

/// Pods of a Deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instances {
    /// All.
    pub all: i32,
    /// Those that take clients.
    pub ready: i32,
    /// Those that are as the Deployment wants them now.
    pub updated: i32,
}

/// A ClusteredDatabase, as far as is read of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// It is being deleted.
    pub deleting: bool,
    /// Why it takes up nothing now, if that is the user's doing.
    pub idle: Option<String>,
    /// The role that owns its first database. The agents give it the password of another Secret.
    pub owner: String,
    /// How many connections an instance has for applications, if its settings say that.
    pub connections: Option<i32>,
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
        /// The certificate beside it, if the role logs in with one.
        certificate: Option<UserCertificate>,
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
    /// The objects that are made for it in Kubernetes.
    Parts,
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
    /// Bring the objects that are made for it to what they should be.
    MakeParts,
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
            Self::MakeParts => "MakeParts",
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
            Self::MakeParts => Some(Target::Parts),
        }
    }

    fn writes_status(&self) -> bool {
        false
    }

    fn status() -> Target {
        Target::Status
    }
}

/// What to do now, and how far the resource is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The one effect.
    pub action: Action,
    /// The rule that decided.
    pub rule: &'static str,
    /// The phase.
    pub phase: DeclaredPhase,
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
    pub(crate) action: Action,
    pub(crate) phase: DeclaredPhase,
    pub(crate) message: String,
}

/// One rule.
pub type Rule<K> = crate::reconcile::Rule<fn(&Facts<'_, K>) -> Option<Proposal>>;

/// A rule of a kind. `what` it does is told in the documentation.
pub(crate) const fn rule<K: Declares>(
    name: &'static str,
    what: &'static str,
    decide: fn(&Facts<'_, K>) -> Option<Proposal>,
) -> Rule<K> {
    Rule {
        name,
        family: "declaration",
        what,
        protocol: &[],
        kind: RuleKind::Act,
        on_backoff: OnBackoff::Hold,
        decide,
    }
}

/// What rules look at.
pub struct Facts<'a, K: Declares> {
    pub(crate) wanted: &'a Wanted<'a, K::Spec>,
    pub(crate) observed: &'a Observed,
}

impl<K: Declares> Facts<'_, K> {
    pub(crate) fn cluster_name(&self) -> &str {
        K::cluster(self.wanted.spec)
    }

    /// Name of the object in PostgreSQL.
    pub(crate) fn object(&self) -> &str {
        K::object(self.wanted.spec, self.wanted.name)
    }

    pub(crate) fn act(&self, action: Action, message: &str) -> Proposal {
        Proposal {
            action,
            phase: DeclaredPhase::Pending,
            message: message.to_owned(),
        }
    }

    pub(super) fn deleting(&self, action: Action, message: String) -> Proposal {
        Proposal {
            action,
            phase: DeclaredPhase::Deleting,
            message,
        }
    }

    /// What the primary has told of what is published now.
    pub(super) fn told(&self) -> Option<&Report> {
        let published = self.observed.published.get()?.as_ref()?;
        let report = self.observed.report.get()?.as_ref()?;
        (report.of == published.at).then_some(report)
    }

    /// The primary is waited for, and why it may take long.
    pub(super) fn primary(&self) -> String {
        let cluster = self.observed.cluster.get().and_then(Option::as_ref);
        let idle = cluster.and_then(|cluster| cluster.idle.as_ref());
        let idle = idle.map_or(String::new(), |why| format!(": {why}"));
        format!("waiting for the primary of {}{idle}", self.cluster_name())
    }
}

pub(crate) fn pending(message: String) -> Proposal {
    Proposal {
        action: Action::Wait,
        phase: DeclaredPhase::Pending,
        message,
    }
}

pub(crate) fn failed(message: String) -> Proposal {
    Proposal {
        action: Action::Wait,
        phase: DeclaredPhase::Failed,
        message,
    }
}
