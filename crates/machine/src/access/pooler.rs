//! What poolers need in PostgreSQL: a role that logs in with a certificate, and a function that tells it the verifiers of users' passwords.

use super::catalogue::Catalogue;
use super::membership::{CERTIFICATES_ROLE, certificates_membership};
use super::plan::{Plan, Step};
use super::statement::{Attributes, Statement};

/// The role of all poolers. It may call [`LOOKUP`], and nothing else.
pub const POOLER_ROLE: &str = "cdb_pooler";
/// The function: a SCRAM verifier by the name of a role. Roles that have expired, may not log in, are mighty, or have another kind of
/// password have none (CVE-2025-2291: who looks passwords up has to look at `rolvaliduntil`).
pub const LOOKUP: &str = "cdb_pooler.lookup";
/// The database with the function.
pub const LOOKUP_DATABASE: &str = "postgres";

/// Plans what is missing for poolers.
pub(super) fn plan_poolers(catalogue: &Catalogue) -> Plan {
    if let Some(why) = catalogue.unreadable.get(LOOKUP_DATABASE) {
        return Plan::refused(format!("database {LOOKUP_DATABASE} cannot be read: {why}"));
    }
    if !catalogue.databases.contains_key(LOOKUP_DATABASE) {
        return Plan {
            waits: Some(format!(
                "there is no database {LOOKUP_DATABASE}, which poolers look passwords up in"
            )),
            ..Plan::default()
        };
    }
    let mut steps = Vec::new();
    let mut step = |database: Option<&str>, statement| {
        steps.push(Step {
            database: database.map(str::to_owned),
            statement,
            takes: false,
        });
    };
    let (name, attributes) = (POOLER_ROLE.to_owned(), attributes());
    let role = catalogue.roles.get(POOLER_ROLE);
    match role {
        None => step(None, Statement::CreateRole { name, attributes }),
        Some(role) if role.attributes != attributes || role.is_mighty => {
            step(None, Statement::AlterRole { name, attributes });
        }
        Some(_) => {}
    }
    if role.is_none_or(|role| !role.member_of.contains_key(CERTIFICATES_ROLE)) {
        if !catalogue.roles.contains_key(CERTIFICATES_ROLE) {
            let make = Statement::CreateRole {
                name: CERTIFICATES_ROLE.to_owned(),
                attributes: Attributes::default(),
            };
            step(None, make);
        }
        let grant = Statement::GrantRole {
            role: CERTIFICATES_ROLE.to_owned(),
            to: POOLER_ROLE.to_owned(),
            membership: certificates_membership(catalogue.plain_memberships),
            plain: catalogue.plain_memberships,
        };
        step(None, grant);
    }
    if !catalogue.has_lookup {
        step(Some(LOOKUP_DATABASE), Statement::MakeLookup);
    }
    Plan {
        steps,
        ..Plan::default()
    }
}

fn attributes() -> Attributes {
    Attributes {
        login: true,
        ..Attributes::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::catalogue::{Database, Role};
    use super::super::declared::{Declared, DeclaredPooler, PoolerProgram};
    use super::super::plan;
    use super::*;

    fn planned(catalogue: &Catalogue) -> Plan {
        let declared = Declared::Pooler(DeclaredPooler {
            uid: "u".to_owned(),
            pooler: PoolerProgram::PgBouncer,
        });
        plan(&declared, catalogue, &BTreeSet::new(), |stored, wanted| {
            stored == wanted
        })
    }

    #[test]
    fn it_waits_for_the_database_and_says_that_it_cannot_be_read() {
        let none = planned(&Catalogue::default());
        assert!(none.steps.is_empty() && none.waits.is_some_and(|why| why.contains("no database postgres")));
        let unreadable = Catalogue {
            unreadable: [(LOOKUP_DATABASE.to_owned(), "it is full".to_owned())].into(),
            ..Catalogue::default()
        };
        let plan = planned(&unreadable);
        assert!(plan.steps.is_empty() && plan.refusal.is_some_and(|why| why.contains("it is full")));
    }

    proptest! {
        /// Whatever is there, the plan can be run, nothing is missing then, and nobody else's role has changed.
        #[test]
        fn what_is_planned_for_poolers_is_all_that_is_missing(
            there in proptest::option::of((any::<bool>(), any::<bool>(), any::<bool>())),
            certificates in any::<bool>(), has_lookup in any::<bool>(), plain_memberships in any::<bool>(),
        ) {
            let mut before = Catalogue { has_lookup, plain_memberships, ..Catalogue::default() };
            before.databases.insert(LOOKUP_DATABASE.to_owned(), Database::default());
            before.roles.insert("other".to_owned(), Role { oid: 7, is_mighty: true, ..Role::default() });
            if certificates {
                before.roles.insert(CERTIFICATES_ROLE.to_owned(), Role::default());
            }
            if let Some((login, is_mighty, member)) = there {
                let attributes = Attributes { login, ..Attributes::default() };
                let member = (member && certificates).then(|| (CERTIFICATES_ROLE.to_owned(), certificates_membership(false)));
                let role = Role { attributes, is_mighty, member_of: member.into_iter().collect(), ..Role::default() };
                before.roles.insert(POOLER_ROLE.to_owned(), role);
            }
            let mut after = before.clone();
            for step in planned(&before).steps {
                prop_assert!(!step.takes);
                let database = step.database.unwrap_or_default();
                prop_assert!(after.run(&database, &step.statement).is_ok());
            }
            prop_assert_eq!(planned(&after), Plan::default());
            prop_assert!(after.has_lookup);
            let role = &after.roles[POOLER_ROLE];
            prop_assert!(role.attributes.login && !role.is_mighty && role.member_of.contains_key(CERTIFICATES_ROLE));
            prop_assert_eq!(&after.roles["other"], &before.roles["other"]);
        }
    }
}
