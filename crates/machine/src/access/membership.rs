//! Memberships of a role in others.
//!
//! Who may write DatabaseUsers needs no right on the cluster. So no user becomes a member of a role that reaches the server's files or
//! programs, or that may do more with the cluster than a DatabaseUser can: neither directly nor through roles between.

use std::collections::BTreeSet;

use api::user::may_have_members;

use super::catalogue::{Catalogue, Role};
use super::declared::DeclaredRole;
use super::plan::Step;
use super::statement::{Attributes, Membership, Statement};

/// The members of this role log in with certificates: so says a line of `pg_hba.conf`. It has no right.
pub const CERTIFICATES_ROLE: &str = "cdb_certificates";

/// How a role is a member of that: as little as PostgreSQL knows.
const OF_CERTIFICATES: Membership = Membership {
    admin: false,
    inherit: false,
    set: false,
};

/// How a role is a member of [`CERTIFICATES_ROLE`]. `plain`: in PostgreSQL before 16.
pub(super) const fn certificates_membership(plain: bool) -> Membership {
    if plain { PLAIN } else { OF_CERTIFICATES }
}

/// What PostgreSQL before 16 knows.
const PLAIN: Membership = Membership {
    admin: false,
    inherit: true,
    set: true,
};

/// What PostgreSQL 16 and later grants to a role with CREATEROLE on each role that it makes.
const OF_A_CREATOR: Membership = Membership {
    admin: true,
    inherit: false,
    set: false,
};

/// Why the role cannot be a member of what is declared.
pub(super) fn refusal(declared: &DeclaredRole, catalogue: &Catalogue) -> Option<String> {
    let name = &declared.name;
    let mut others = catalogue.roles.iter().filter(|_| declared.certificate);
    if let Some((other, _)) = others.find(|(_, role)| role.groups.contains(name)) {
        return Some(format!(
            "role {name} cannot log in with a certificate alone: {other} is a member of it, and would need one, too"
        ));
    }
    declared.member_of.iter().find_map(|(group, membership)| {
        if group.starts_with("pg_") && may_have_members(group) && !catalogue.roles.contains_key(group) {
            return Some(format!("PostgreSQL of this version has no role {group}"));
        }
        if let Some(why) = too_mighty(catalogue, group) {
            return Some(format!("role {name} cannot be a member of {group}: {why}"));
        }
        if reached(catalogue, group).contains(name.as_str()) {
            return Some(format!(
                "role {name} cannot be a member of {group}: {group} is itself a member of {name}"
            ));
        }
        let is_plain = membership.inherit && membership.set;
        (catalogue.plain_memberships && !is_plain).then(|| {
            format!(
                "PostgreSQL before 16 has no INHERIT and SET of single memberships: remove inherit: false and set: false of {group}"
            )
        })
    })
}

/// Why nobody may become this role by a DatabaseUser. A role that is not there may be anything yet.
pub(super) fn too_mighty(catalogue: &Catalogue, role: &str) -> Option<String> {
    reached(catalogue, role).into_iter().find_map(|role| {
        if role == CERTIFICATES_ROLE {
            return Some(format!(
                "{role} is for roles that log in with a certificate, and PostgreSQL would ask their members for one, too"
            ));
        }
        if !may_have_members(role) {
            return Some(format!(
                "{role} reaches files, programs or other servers, or is the operator's or the superuser's"
            ));
        }
        let is_mighty = catalogue.roles.get(role).is_some_and(|found| found.is_mighty);
        is_mighty.then(|| format!("{role} is a superuser, or has CREATEROLE, CREATEDB, REPLICATION or BYPASSRLS"))
    })
}

/// Why what the role is a member of already is too much for a user.
pub(super) fn has_too_much(role: &Role, catalogue: &Catalogue) -> Option<String> {
    let mut groups = role.groups.iter().filter(|group| *group != CERTIFICATES_ROLE);
    groups.find_map(|group| too_mighty(catalogue, group))
}

/// The role, and all that it is a member of, directly or through others.
fn reached<'a>(catalogue: &'a Catalogue, role: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next = vec![role];
    while let Some(role) = next.pop() {
        if reached.insert(role) {
            let groups = catalogue.roles.get(role).into_iter().flat_map(|found| &found.groups);
            next.extend(groups.map(String::as_str));
        }
    }
    reached
}

/// A role that the role is to be a member of and that is not there.
pub(super) fn missing(declared: &DeclaredRole, catalogue: &Catalogue) -> Option<String> {
    let mut groups = declared.member_of.keys();
    let missing = groups.find(|group| !catalogue.roles.contains_key(*group))?;
    Some(format!("there is no role {missing}, which it is to be a member of"))
}

/// The memberships that are missing, and those that are not declared. What others than superusers have granted is not looked at.
pub(super) fn of_memberships(
    declared: &DeclaredRole,
    catalogue: &Catalogue,
    role: Option<&Role>,
    keeps: bool,
    steps: &mut Vec<Step>,
) {
    let plain = catalogue.plain_memberships;
    let mut step = |statement, takes| {
        steps.push(Step {
            database: None,
            statement,
            takes,
        });
    };
    let there = |group: &&String| catalogue.roles.contains_key(*group);
    for (group, wanted) in declared.member_of.iter().filter(|(group, _)| there(group)) {
        let has = role.and_then(|role| role.member_of.get(group)).copied();
        let wanted = match has.filter(|_| keeps) {
            Some(has) => wanted.or(has),
            None => *wanted,
        };
        if has == Some(wanted) {
            continue;
        }
        let takes = has.is_some_and(|has| wanted.or(has) != wanted);
        if takes && plain {
            // There is no statement that grants it without ADMIN.
            step(revoke(declared, group), true);
        }
        let grant = Statement::GrantRole {
            role: group.clone(),
            to: declared.name.clone(),
            membership: wanted,
            plain,
        };
        step(grant, takes);
    }
    let certificate = role.is_some_and(|role| role.member_of.contains_key(CERTIFICATES_ROLE));
    if declared.certificate && !certificate {
        if !catalogue.roles.contains_key(CERTIFICATES_ROLE) {
            let make = Statement::CreateRole {
                name: CERTIFICATES_ROLE.to_owned(),
                attributes: Attributes::default(),
            };
            step(make, false);
        }
        let grant = Statement::GrantRole {
            role: CERTIFICATES_ROLE.to_owned(),
            to: declared.name.clone(),
            membership: certificates_membership(plain),
            plain,
        };
        step(grant, false);
    }
    if certificate && !declared.certificate {
        // Whatever is kept: there is no certificate any more with which it could log in.
        step(revoke(declared, CERTIFICATES_ROLE), !keeps);
    }
    let has = role.into_iter().flat_map(|role| &role.member_of);
    let others = has.filter(|(group, _)| *group != CERTIFICATES_ROLE);
    for (group, has) in others.filter(|_| !keeps && declared.lists_memberships) {
        if !declared.member_of.contains_key(group) && *has != OF_A_CREATOR {
            step(revoke(declared, group), true);
        }
    }
}

/// What a role of ours has and must not have, since the other one has become too mighty after it was given.
pub(super) fn taken_back(declared: &DeclaredRole, catalogue: &Catalogue, role: &Role) -> Vec<Step> {
    let given = role
        .member_of
        .keys()
        .filter(|group| declared.member_of.contains_key(*group));
    let too_much = given.filter(|group| too_mighty(catalogue, group).is_some());
    let step = |group: &String| Step {
        database: None,
        statement: revoke(declared, group),
        takes: true,
    };
    too_much.map(step).collect()
}

fn revoke(declared: &DeclaredRole, group: &str) -> Statement {
    Statement::RevokeRole {
        role: group.to_owned(),
        from: declared.name.clone(),
    }
}

impl Membership {
    /// What either of the two gives.
    fn or(self, other: Self) -> Self {
        Self {
            admin: self.admin || other.admin,
            inherit: self.inherit || other.inherit,
            set: self.set || other.set,
        }
    }
}
