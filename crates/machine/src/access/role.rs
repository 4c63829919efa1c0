//! What is missing of a role.

use std::collections::BTreeSet;

use api::declared::{Adoption, ManagementPolicy};

use super::catalogue::{Catalogue, Database, Role, Schema};
use super::declared::{Access, DeclaredRole, Password, mark, marked};
use super::going::{end_sessions, plan_going};
use super::membership;
use super::plan::{Plan, Step};
use super::statement::{Attributes, Object, Privilege, RelationKind, Secret, Statement};

/// Bytes of PostgreSQL's longest name; it cuts off the rest of a longer one.
pub(super) const LONGEST: usize = 63;

/// Plans what is missing, as [`super::plan`]. What the grants name and is not there yet is left out, and told.
pub(super) fn plan_role(
    declared: &DeclaredRole,
    catalogue: &Catalogue,
    others: &BTreeSet<&str>,
    matches: impl Fn(&Secret, &Secret) -> bool,
) -> Plan {
    let role = catalogue.roles.get(&declared.name);
    if let Some(going) = &declared.going {
        return plan_going(declared, going, catalogue);
    }
    let keeps = declared.adoption == Adoption::KeepUnlisted || declared.policy == ManagementPolicy::Additive;
    if let Some(why) = refusal(declared, role, keeps, catalogue, others) {
        let own = role.filter(|role| !keeps && is_own(declared, role));
        return Plan {
            steps: own.map_or_else(Vec::new, |role| membership::taken_back(declared, catalogue, role)),
            ..Plan::refused(why)
        };
    }
    let mut steps = Vec::new();
    let attributes = of_role(declared, role, keeps, &matches, &mut steps);
    let is_over = |until| until <= catalogue.now;
    let may_log_in = attributes.login && !attributes.valid_until.is_some_and(is_over);
    if let Some(role) = role.filter(|_| declared.end_sessions && !may_log_in && !keeps) {
        end_sessions(&declared.name, role, &mut steps);
    }
    membership::of_memberships(declared, catalogue, role, keeps, &mut steps);
    of_grants(declared, catalogue, keeps, &mut steps);
    let waits = membership::missing(declared, catalogue).or_else(|| missing(declared, catalogue));
    if waits.is_some() {
        // A name may have a slip: what the role has, it keeps until all is there.
        steps.retain(|step| !step.takes);
    }
    Plan {
        steps,
        refusal: None,
        waits,
    }
}

fn is_own(declared: &DeclaredRole, role: &Role) -> bool {
    role.comment.as_deref().and_then(marked) == Some(&declared.uid)
}

/// Why nothing can be done.
fn refusal(
    declared: &DeclaredRole,
    role: Option<&Role>,
    keeps: bool,
    catalogue: &Catalogue,
    others: &BTreeSet<&str>,
) -> Option<String> {
    let name = &declared.name;
    let is_reserved = name.starts_with("pg_") || name.starts_with("cdb_");
    if is_reserved
        || ["", "postgres", "public", "none"].contains(&&**name)
        || name.len() > LONGEST
        || name.contains('\0')
    {
        return Some(format!(
            "a role cannot be called {name:?}: choose a name of 1 to {LONGEST} bytes that is not postgres, public or none, and does \
             not begin with pg_ or cdb_"
        ));
    }
    if let Some(role) = role.filter(|role| !is_own(declared, role)) {
        let of_another = role.comment.as_deref().and_then(marked);
        if let Some(uid) = of_another.filter(|uid| others.contains(uid)) {
            return Some(format!("role {name} was made for the DatabaseUser with UID {uid}"));
        }
        if declared.adoption == Adoption::Refuse {
            let by = match of_another {
                Some(_) => "for a DatabaseUser that is gone",
                None => "by somebody else",
            };
            return Some(format!(
                "there is a role {name} that was made {by}: choose another name, or take it over (spec.adoption)"
            ));
        }
    }
    // What it owns may be run by superusers, such as the functions of event triggers.
    if role.is_some_and(|role| role.is_mighty && (keeps || !is_own(declared, role))) {
        return Some(format!(
            "role {name} may do more than a DatabaseUser can (as a superuser, or with CREATEROLE, CREATEDB, REPLICATION or BYPASSRLS): \
             take that away first"
        ));
    }
    let has_too_much = role.filter(|role| keeps || !is_own(declared, role));
    if let Some(why) = has_too_much.and_then(|role| membership::has_too_much(role, catalogue)) {
        return Some(format!(
            "role {name} has what other roles have that it is a member of, and {why}: revoke that first"
        ));
    }
    if let Some(why) = membership::refusal(declared, catalogue) {
        return Some(why);
    }
    let limit = declared.attributes.connection_limit;
    if limit.is_some_and(|limit| i32::try_from(limit).is_err()) {
        return Some(format!("the connection limit must be at most {}", i32::MAX));
    }
    let mut all = declared.grants.iter().flat_map(|access| &access.permissions);
    if let Some(other) = all.find(|privilege| !privilege.is_of_tables()) {
        return Some(format!("{} is no permission on tables", other.as_str()));
    }
    declared.grants.iter().find_map(|access| {
        let why = catalogue.unreadable.get(&access.database)?;
        Some(format!("database {} cannot be read: {why}", access.database))
    })
}

/// What the grants name and is not there.
fn missing(declared: &DeclaredRole, catalogue: &Catalogue) -> Option<String> {
    declared.grants.iter().find_map(|access| {
        let Some(database) = catalogue.databases.get(&access.database) else {
            return Some(format!("there is no database {}", access.database));
        };
        let missing = access
            .schemas
            .iter()
            .find(|schema| !database.schemas.contains_key(*schema))?;
        Some(format!("there is no schema {missing} in database {}", access.database))
    })
}

/// Returns the attributes that the role has then.
fn of_role(
    declared: &DeclaredRole,
    role: Option<&Role>,
    keeps: bool,
    matches: impl Fn(&Secret, &Secret) -> bool,
    steps: &mut Vec<Step>,
) -> Attributes {
    let mut step = |statement, takes| {
        steps.push(Step {
            database: None,
            statement,
            takes,
        });
    };
    let name = declared.name.clone();
    let attributes = match role.filter(|_| keeps) {
        Some(role) => kept(&declared.attributes, &role.attributes),
        None => declared.attributes.clone(),
    };
    match role {
        None => step(
            Statement::CreateRole {
                name: name.clone(),
                attributes: attributes.clone(),
            },
            false,
        ),
        Some(role) if role.attributes != attributes || role.is_mighty => {
            let takes = role.is_mighty || is_less(&attributes, &role.attributes);
            step(
                Statement::AlterRole {
                    name: name.clone(),
                    attributes: attributes.clone(),
                },
                takes,
            );
        }
        Some(_) => {}
    }
    let stored = role.and_then(|role| role.verifier.as_ref());
    let wanted = match &declared.password {
        Password::External => None,
        Password::None => stored.filter(|_| !keeps).map(|_| None),
        Password::Verifier(wanted) => {
            let is_there = stored.is_some_and(|stored| matches(stored, wanted));
            (!is_there).then(|| Some(wanted.clone()))
        }
    };
    if let Some(verifier) = wanted {
        let takes = verifier.is_none();
        let name = name.clone();
        step(Statement::SetVerifier { name, verifier }, takes);
    }
    let text = mark(&declared.uid);
    if role.is_none_or(|role| role.comment.as_ref() != Some(&text)) {
        step(Statement::Comment { name, text }, false);
    }
    attributes
}

/// What is declared, and what the role has beyond that.
fn kept(declared: &Attributes, has: &Attributes) -> Attributes {
    let limits = declared.connection_limit.zip(has.connection_limit);
    let times = declared.valid_until.zip(has.valid_until);
    Attributes {
        login: declared.login || has.login,
        connection_limit: limits.map(|(declared, has)| declared.max(has)),
        valid_until: times.map(|(declared, has)| declared.max(has)),
    }
}

/// Whether these attributes give less than those that the role has.
fn is_less(wanted: &Attributes, has: &Attributes) -> bool {
    let less = |wanted: Option<i64>, has: Option<i64>| match (wanted, has) {
        (Some(wanted), Some(has)) => wanted < has,
        (wanted, has) => wanted.is_some() && has.is_none(),
    };
    let limit = |limit: Option<u32>| limit.map(i64::from);
    let until = |attributes: &Attributes| attributes.valid_until.map(|time| time.timestamp());
    (has.login && !wanted.login)
        || less(limit(wanted.connection_limit), limit(has.connection_limit))
        || less(until(wanted), until(has))
}

/// The privileges of a role on all that is there, and what is to be granted on what comes.
pub(super) fn of_grants(declared: &DeclaredRole, catalogue: &Catalogue, keeps: bool, steps: &mut Vec<Step>) {
    for (name, database) in &catalogue.databases {
        let granted: Vec<&Access> = declared
            .grants
            .iter()
            .filter(|access| access.database == *name)
            .collect();
        let mut settle = |on: Object, wanted: BTreeSet<Privilege>| {
            if catalogue.owns(name, &on, &declared.name) {
                return;
            }
            let has = catalogue.granted(name, &on, &declared.name);
            let mut step = |privileges: BTreeSet<Privilege>, takes| {
                if privileges.is_empty() {
                    return;
                }
                let (on, role) = (on.clone(), declared.name.clone());
                let statement = match takes {
                    false => Statement::Grant {
                        on,
                        privileges,
                        to: role,
                    },
                    true => Statement::Revoke {
                        on,
                        privileges,
                        from: role,
                    },
                };
                steps.push(Step {
                    database: Some(name.clone()),
                    statement,
                    takes,
                });
            };
            step(wanted.difference(&has).copied().collect(), false);
            if !keeps {
                step(has.difference(&wanted).copied().collect(), true);
            }
        };
        let only = |is: bool, privilege| BTreeSet::from_iter(is.then_some(privilege));
        settle(
            Object::Database(name.clone()),
            only(!granted.is_empty(), Privilege::Connect),
        );
        let named: Vec<&Access> = granted
            .iter()
            .copied()
            .filter(|access| !access.permissions.is_empty())
            .collect();
        for (schema, content) in &database.schemas {
            let here: Vec<&Access> = named
                .iter()
                .copied()
                .filter(|access| access.schemas.contains(schema))
                .collect();
            settle(Object::Schema(schema.clone()), only(!here.is_empty(), Privilege::Usage));
            for (relation, found) in &content.relations {
                let on = Object::Relation {
                    schema: schema.clone(),
                    name: relation.clone(),
                    kind: found.kind,
                };
                settle(on, privileges(here.iter().copied(), found.kind));
            }
            for (owner, kind) in futures(database, content, declared) {
                let is_owner = *owner == database.owner;
                let here = here.iter().copied().filter(|access| access.future && is_owner);
                let on = Object::Future {
                    schema: schema.clone(),
                    owner: owner.clone(),
                    kind,
                };
                settle(on, privileges(here, kind));
            }
        }
    }
}

/// Roles whose later tables and sequences are granted to the role, or are to be.
fn futures<'a>(
    database: &'a Database,
    content: &'a Schema,
    declared: &DeclaredRole,
) -> BTreeSet<(&'a String, RelationKind)> {
    let granted = content.defaults.iter().flat_map(|(owner, kinds)| {
        let granted = kinds.iter().filter(|(_, acl)| acl.contains_key(&declared.name));
        granted.map(move |(kind, _)| (owner, *kind))
    });
    let of_owner = [RelationKind::Table, RelationKind::Sequence].map(|kind| (&database.owner, kind));
    granted.chain(of_owner).collect()
}

/// The privileges on one relation.
fn privileges<'a>(granted: impl Iterator<Item = &'a Access>, kind: RelationKind) -> BTreeSet<Privilege> {
    let permissions: BTreeSet<Privilege> = granted.flat_map(|access| access.permissions.iter().copied()).collect();
    match kind {
        RelationKind::Table => permissions,
        RelationKind::Sequence => {
            let writes = permissions.contains(&Privilege::Insert) || permissions.contains(&Privilege::Update);
            let usage = writes.then_some(Privilege::Usage);
            let select = permissions.contains(&Privilege::Select).then_some(Privilege::Select);
            usage.into_iter().chain(select).collect()
        }
    }
}
