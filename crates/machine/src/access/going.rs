//! What becomes of a role whose DatabaseUser goes.

use super::catalogue::{Catalogue, Role};
use super::declared::{DeclaredRole, Going, mark, marked, quarantine_mark};
use super::membership::too_mighty;
use super::plan::{Plan, Step};
use super::role::of_grants;
use super::statement::{Attributes, Statement};

/// What is missing until the role is as it is to be left. Only a role that was made for this DatabaseUser is touched.
pub(super) fn plan_going(declared: &DeclaredRole, going: &Going, catalogue: &Catalogue) -> Plan {
    let Some(role) = catalogue.roles.get(&declared.name) else {
        return Plan::default();
    };
    if role.comment.as_deref().and_then(marked) != Some(&declared.uid) {
        return Plan::refused(format!(
            "the comment of role {} does not say any more that it was made for this user",
            declared.name
        ));
    }
    let mut steps = Vec::new();
    match going {
        Going::Quarantine => quarantine(declared, role, catalogue, &mut steps),
        Going::Drop { reassign_to } => {
            if let Some(why) = reassign_to.as_ref().and_then(|to| refusal(declared, to, catalogue)) {
                return Plan::refused(why);
            }
            drop_role(declared, role, reassign_to.as_ref(), catalogue, &mut steps);
        }
    }
    Plan {
        steps,
        ..Plan::default()
    }
}

/// The role may not log in, and keeps what it has.
fn quarantine(declared: &DeclaredRole, role: &Role, catalogue: &Catalogue, steps: &mut Vec<Step>) {
    let name = &declared.name;
    lock(name, role, steps);
    if role.comment == Some(mark(&declared.uid)) {
        let text = quarantine_mark(&declared.uid, catalogue.now);
        let name = name.clone();
        steps.push(shared(Statement::Comment { name, text }, false));
    }
    end_sessions(name, role, steps);
}

/// Takes everything from the role that it has been granted, and drops it. What it owns goes to another role, or makes PostgreSQL refuse.
fn drop_role(
    declared: &DeclaredRole,
    role: &Role,
    reassign_to: Option<&String>,
    catalogue: &Catalogue,
    steps: &mut Vec<Step>,
) {
    let name = &declared.name;
    if declared.end_sessions {
        lock(name, role, steps);
        end_sessions(name, role, steps);
    }
    if let Some(to) = reassign_to {
        // In any database, whole databases are given; in each of the others what is in it.
        for database in [None].into_iter().chain(role.owns_in.iter().cloned().map(Some)) {
            let statement = Statement::Reassign {
                from: name.clone(),
                to: to.clone(),
            };
            steps.push(Step {
                database,
                statement,
                takes: true,
            });
        }
    }
    let nothing = DeclaredRole {
        grants: Vec::new(),
        ..declared.clone()
    };
    of_grants(&nothing, catalogue, false, steps);
    steps.push(shared(Statement::DropRole { name: name.clone() }, true));
}

/// Why this role is not given what a user owns: functions of the user would run with its rights.
fn refusal(declared: &DeclaredRole, to: &str, catalogue: &Catalogue) -> Option<String> {
    if to == declared.name {
        return Some(format!("reassignTo names {to}, which is to be dropped"));
    }
    if !catalogue.roles.contains_key(to) {
        return Some(format!("there is no role {to}, which reassignTo names"));
    }
    too_mighty(catalogue, to).map(|why| format!("what role {} owns is not given to {to}: {why}", declared.name))
}

fn lock(name: &str, role: &Role, steps: &mut Vec<Step>) {
    if role.attributes.login {
        let attributes = Attributes {
            login: false,
            ..role.attributes.clone()
        };
        let name = name.to_owned();
        steps.push(shared(Statement::AlterRole { name, attributes }, true));
    }
}

/// Ends the role's sessions, if it has any.
pub(super) fn end_sessions(name: &str, role: &Role, steps: &mut Vec<Step>) {
    if role.sessions > 0 {
        let name = name.to_owned();
        steps.push(shared(Statement::EndSessions { name }, true));
    }
}

/// A step that runs in any database.
fn shared(statement: Statement, takes: bool) -> Step {
    Step {
        database: None,
        statement,
        takes,
    }
}
