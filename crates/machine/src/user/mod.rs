//! The machine of `DatabaseUser`, run by the operator: a role with its password and its grants ([`crate::declaration`]).

use api::declared::{DeclaredStatus, ManagementPolicy};
use api::user::{DatabaseUserSpec, DatabaseUserStatus, OnDelete, Permission, refusal};
use chrono::{DateTime, SubsecRound, Utc};

use crate::access::{
    Access, Attributes, Declared, DeclaredRole, Going, Membership, Password, Privilege, Published, Report, Secret,
};
use crate::declaration::{
    Action, Credentials, Declares, Facts, Observed, Proposal, Rule, Wanted, cluster, conflict, drop_object, failed,
    finalizer, foreign, invalid, pending, publish, release, reports, rule, size, tell, withdraw,
};

/// The kind `DatabaseUser`.
#[derive(Clone, Copy, Debug)]
pub struct User;

/// All rules, the most important first. The last one always proposes something.
pub const RULES: [Rule<User>; 14] = [
    release(),
    drop_object(),
    withdraw(),
    invalid(),
    size(),
    finalizer(),
    cluster(),
    conflict(),
    rule(
        "owner",
        "The owner of the first database has its password from another Secret, and no second one here.",
        owner,
    ),
    foreign(),
    rule(
        "credentials",
        "A password that nobody else gives is made; one in a Secret is waited for. Until then nothing is changed.",
        credentials,
    ),
    reports(),
    publish(),
    tell(),
];

impl Declares for User {
    type Spec = DatabaseUserSpec;
    type Status = DatabaseUserStatus;

    const KIND: &'static str = "DatabaseUser";
    const OBJECT: &'static str = "role";

    fn rules() -> &'static [Rule<Self>] {
        &RULES
    }

    fn refusal(spec: &DatabaseUserSpec, resource: &str) -> Option<String> {
        refusal(spec, resource)
    }

    fn cluster(spec: &DatabaseUserSpec) -> &str {
        &spec.cluster_ref.name
    }

    fn object<'a>(spec: &'a DatabaseUserSpec, resource: &'a str) -> &'a str {
        spec.role(resource)
    }

    fn going(wanted: &Wanted<'_, DatabaseUserSpec>, _oid: u32, owner: Option<&str>) -> Option<Declared> {
        // The cluster needs it.
        if owner == Some(wanted.spec.role(wanted.name)) {
            return None;
        }
        let going = match wanted.spec.on_delete {
            OnDelete::Retain => return None,
            OnDelete::Quarantine => Going::Quarantine,
            OnDelete::Drop => Going::Drop {
                reassign_to: wanted.spec.reassign_to.clone(),
            },
        };
        Some(Declared::Role(DeclaredRole {
            going: Some(going),
            ..declared(wanted)
        }))
    }

    fn declared(wanted: &Wanted<'_, DatabaseUserSpec>) -> Declared {
        Declared::Role(declared(wanted))
    }

    fn common(status: &DatabaseUserStatus) -> &DeclaredStatus {
        &status.declared
    }

    fn common_mut(status: &mut DatabaseUserStatus) -> &mut DeclaredStatus {
        &mut status.declared
    }

    fn complete(wanted: &Wanted<'_, DatabaseUserSpec>, observed: &Observed, status: &mut DatabaseUserStatus) {
        status.role = Some(wanted.spec.role(wanted.name).to_owned());
        status.secret_name = wanted.spec.has_made_password().then(|| made_secret(wanted.name));
        match &observed.credentials {
            Credentials::Usable { certificate, .. } => status.certificate.clone_from(certificate),
            Credentials::NotNeeded => status.certificate = None,
            Credentials::Unknown | Credentials::Missing | Credentials::Unusable(_) => {}
        }
    }
}

/// Whether a certificate may be issued to the role: only when PostgreSQL has it as this DatabaseUser's. A certificate cannot be taken
/// back, and whose a role of this name is the primary alone can say.
pub fn may_have_certificate(spec: &DatabaseUserSpec, published: Option<&Published>, report: Option<&Report>) -> bool {
    let told = report.filter(|report| published.is_some_and(|published| published.at == report.of));
    let is_ours = told.is_some_and(|report| report.oid.is_some() && (report.refusal.is_none() || report.waits));
    spec.client_certificate && spec.management_policy != ManagementPolicy::Observe && is_ours
}

fn owner(facts: &Facts<'_, User>) -> Option<Proposal> {
    let cluster = facts.observed.cluster.get()?.as_ref()?;
    let role = facts.object();
    let is_external = facts
        .wanted
        .spec
        .password
        .as_ref()
        .is_some_and(|password| password.external);
    if role != cluster.owner {
        return None;
    }
    let what = match (is_external, facts.wanted.spec.on_delete) {
        (true, OnDelete::Retain) => return None,
        (true, OnDelete::Quarantine | OnDelete::Drop) => "is needed: set onDelete: Retain".to_owned(),
        (false, _) => format!(
            "has the password of Secret {}-app: set password.external: true",
            facts.cluster_name()
        ),
    };
    Some(failed(format!(
        "role {role} is the owner of the first database, and {what}, or another spec.name"
    )))
}

fn credentials(facts: &Facts<'_, User>) -> Option<Proposal> {
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

/// From then on PostgreSQL's catalogue is read as "for ever".
const FOR_EVER: DateTime<Utc> = DateTime::from_timestamp(253_402_128_000, 0).expect("9999-12-30");

/// What is declared. The verifier of a password is left out, which is an empty text here.
fn declared(wanted: &Wanted<'_, DatabaseUserSpec>) -> DeclaredRole {
    let spec = wanted.spec;
    let password = spec.password.clone().unwrap_or_default();
    let password = if password.external {
        Password::External
    } else if secret(spec, wanted.name).is_some() {
        Password::Verifier(Secret(String::new()))
    } else {
        Password::None
    };
    DeclaredRole {
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
        member_of: spec.member_of.iter().flatten().map(membership).collect(),
        lists_memberships: spec.member_of.is_some(),
        end_sessions: spec.end_sessions,
        certificate: spec.client_certificate,
        adoption: spec.adoption,
        policy: spec.management_policy,
        going: None,
    }
}

fn membership(of: &api::user::Membership) -> (String, Membership) {
    let membership = Membership {
        admin: of.admin,
        inherit: of.inherit,
        set: of.set,
    };
    (of.role.clone(), membership)
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

#[cfg(test)]
mod tests;
