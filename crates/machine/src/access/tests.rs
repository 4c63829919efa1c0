use std::collections::{BTreeMap, BTreeSet};

use api::declared::{Adoption, ManagementPolicy as Policy};
use chrono::DateTime;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;

/// Roles that are there, beside what is declared. The first owns things.
const ROLES: [&str; 3] = ["owner", "other", "app"];
const DATABASES: [&str; 2] = ["orders", "Ware \"house\""];
const SCHEMAS: [&str; 2] = ["public", "s2"];
const OF_TABLES: [Privilege; 4] = [
    Privilege::Select,
    Privilege::Insert,
    Privilege::Update,
    Privilege::Delete,
];

fn any_of<T: Copy + Ord + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = BTreeSet<T>> {
    subsequence(all, 0..=all.len()).prop_map(BTreeSet::from_iter)
}

fn acl(of: &'static [Privilege], owner: String) -> impl Strategy<Value = Acl> {
    let granted = prop::collection::btree_map(select(&ROLES[..]).prop_map(str::to_owned), any_of(of), 0..=2);
    granted.prop_map(move |acl| {
        let to_others = acl
            .into_iter()
            .filter(|(role, granted)| *role != owner && !granted.is_empty());
        to_others.collect()
    })
}

fn owner() -> impl Strategy<Value = String> {
    select(&ROLES[..]).prop_map(str::to_owned)
}

fn relation() -> impl Strategy<Value = Relation> {
    let kinds: &[(RelationKind, &'static [Privilege])] = &[
        (RelationKind::Table, &OF_TABLES),
        (RelationKind::Sequence, &[Privilege::Usage, Privilege::Select]),
    ];
    (select(kinds), owner()).prop_flat_map(|((kind, of), owner)| {
        acl(of, owner.clone()).prop_map(move |acl| Relation {
            kind,
            owner: owner.clone(),
            acl,
        })
    })
}

fn schema() -> impl Strategy<Value = Schema> {
    let relations = prop::collection::btree_map(
        select(&["t1", "t 2", "s"][..]).prop_map(str::to_owned),
        relation(),
        0..=3,
    );
    let future = acl(&OF_TABLES, "owner".to_owned()).prop_map(|acl| BTreeMap::from([(RelationKind::Table, acl)]));
    let defaults = prop::option::of(future).prop_map(|kinds| {
        let kinds = kinds.filter(|kinds| kinds.values().any(|acl| !acl.is_empty()));
        kinds.into_iter().map(|kinds| ("owner".to_owned(), kinds)).collect()
    });
    (owner(), relations, defaults).prop_flat_map(|(owner, relations, defaults)| {
        acl(&[Privilege::Usage, Privilege::Create], owner.clone()).prop_map(move |acl| Schema {
            owner: owner.clone(),
            acl,
            relations: relations.clone(),
            defaults: BTreeMap::clone(&defaults),
        })
    })
}

fn database() -> impl Strategy<Value = Database> {
    let schemas = SCHEMAS.map(|name| schema().prop_map(move |schema| (name.to_owned(), schema)));
    (owner(), schemas).prop_flat_map(|(owner, schemas)| {
        acl(&[Privilege::Connect, Privilege::Create], owner.clone()).prop_map(move |acl| Database {
            owner: owner.clone(),
            acl,
            schemas: schemas.clone().into(),
            ..Database::default()
        })
    })
}

fn role() -> impl Strategy<Value = Role> {
    let quarantined = quarantine_mark("u1", DateTime::UNIX_EPOCH);
    let comment = select(vec![
        None,
        Some(mark("u1")),
        Some(quarantined),
        Some("somebody's".to_owned()),
    ]);
    (
        attributes(),
        any::<bool>(),
        comment,
        any::<bool>(),
        (memberships(), any::<bool>()),
        0..3_u32,
    )
        .prop_map(
            |(attributes, is_mighty, comment, has_password, (member_of, certified), sessions)| {
                let membership = Membership {
                    admin: false,
                    inherit: false,
                    set: false,
                };
                let certified = certified.then(|| (CERTIFICATES_ROLE.to_owned(), membership));
                let member_of: BTreeMap<String, Membership> = member_of.into_iter().chain(certified).collect();
                Role {
                    oid: 0,
                    attributes,
                    is_mighty,
                    verifier: has_password.then(|| Secret("old".to_owned())),
                    comment,
                    groups: member_of.keys().cloned().collect(),
                    member_of,
                    sessions,
                    owns_in: BTreeSet::new(),
                }
            },
        )
}

/// Roles that others may be members of. `far` reaches the server's files; nobody has made `none yet`.
const GROUPS: [&str; 4] = ["group", "pg_monitor", "far", "none yet"];

fn memberships() -> impl Strategy<Value = BTreeMap<String, Membership>> {
    let options = (any::<bool>(), any::<bool>(), any::<bool>());
    let membership = options.prop_map(|(admin, inherit, set)| Membership { admin, inherit, set });
    prop::collection::btree_map(select(&GROUPS[..3]).prop_map(str::to_owned), membership, 0..=2)
}

/// What is declared of memberships, of which all may be there, and none is too mighty.
fn wanted_memberships() -> impl Strategy<Value = BTreeMap<String, Membership>> {
    memberships().prop_map(|mut memberships| {
        memberships.remove("far");
        memberships
    })
}

fn attributes() -> impl Strategy<Value = Attributes> {
    let until = select(vec![None, Some("2026-01-01T00:00:00Z"), Some("2028-01-01T00:00:00Z")]);
    (any::<bool>(), prop::option::of(0..3_u32), until).prop_map(|(login, connection_limit, until)| Attributes {
        login,
        connection_limit,
        valid_until: until.map(|until| until.parse().expect("a time")),
    })
}

fn catalogue() -> impl Strategy<Value = Catalogue> {
    let roles = ROLES.map(|name| role().prop_map(move |role| (name.to_owned(), role)));
    let databases = DATABASES.map(|name| database().prop_map(move |database| (name.to_owned(), database)));
    (roles, databases, any::<bool>()).prop_map(|(roles, databases, plain_memberships)| {
        let others = ["group", "pg_monitor", "far"].map(|name| (name.to_owned(), Role::default()));
        let roles = (16_384..)
            .zip(roles.into_iter().chain(others))
            .map(|(oid, (name, role))| (name, Role { oid, ..role }));
        let mut catalogue = Catalogue {
            roles: roles.collect(),
            databases: databases.into(),
            plain_memberships,
            now: "2027-01-01T00:00:00Z".parse().expect("a time"),
            ..Catalogue::default()
        };
        let certified = |role: &Role| role.groups.contains(CERTIFICATES_ROLE);
        if catalogue.roles.values().any(certified) {
            catalogue.roles.insert(CERTIFICATES_ROLE.to_owned(), Role::default());
        }
        if plain_memberships {
            let all = catalogue
                .roles
                .values_mut()
                .flat_map(|role| role.member_of.values_mut());
            all.for_each(|membership| (membership.inherit, membership.set) = (true, true));
        }
        let far = catalogue.roles.get_mut("far").expect("it is there");
        far.groups.insert("pg_read_server_files".to_owned());
        catalogue
    })
}

fn access() -> impl Strategy<Value = Access> {
    (
        select(&DATABASES[..]),
        any_of(&SCHEMAS),
        any_of(&OF_TABLES),
        any::<bool>(),
    )
        .prop_map(|(database, schemas, permissions, future)| Access {
            database: database.to_owned(),
            schemas: schemas.into_iter().map(str::to_owned).collect(),
            permissions,
            future,
        })
}

fn declared() -> impl Strategy<Value = DeclaredRole> {
    let name = select(&["app", "other", "new", "a\"; DROP ROLE postgres;--"][..]);
    let password = select(vec![
        Password::None,
        Password::External,
        Password::Verifier(Secret("new".to_owned())),
    ]);
    let adoption = select(&[Adoption::Refuse, Adoption::KeepUnlisted, Adoption::Full][..]);
    let policy = select(&[Policy::Full, Policy::Additive][..]);
    let grants = prop::collection::vec(access(), 0..=3);
    let more = (wanted_memberships(), any::<bool>(), any::<bool>());
    (name, attributes(), password, grants, adoption, policy, more).prop_map(
        |(name, attributes, password, grants, adoption, policy, (member_of, end_sessions, certificate))| DeclaredRole {
            uid: "u1".to_owned(),
            name: name.to_owned(),
            attributes,
            password,
            grants,
            member_of,
            lists_memberships: true,
            end_sessions,
            certificate,
            adoption,
            policy,
            going: None,
        },
    )
}

fn planned(declared: &DeclaredRole, catalogue: &Catalogue) -> Plan {
    planned_among(declared, catalogue, &["u1", "u2"])
}

fn planned_among(declared: &DeclaredRole, catalogue: &Catalogue, others: &[&str]) -> Plan {
    plan(
        &Declared::Role(declared.clone()),
        catalogue,
        &others.iter().copied().collect(),
        |stored, wanted| stored == wanted,
    )
}

fn run(catalogue: &mut Catalogue, plan: &Plan) {
    for step in &plan.steps {
        let database = step.database.as_deref().unwrap_or("");
        catalogue
            .run(database, &step.statement)
            .unwrap_or_else(|why| panic!("{step:?}: {why}"));
    }
}

/// All that each role has been granted.
fn grants(catalogue: &Catalogue) -> BTreeMap<String, BTreeSet<(String, String, Privilege)>> {
    let mut found = BTreeMap::<_, BTreeSet<_>>::new();
    let mut note = |database: &str, what: String, acl: &Acl| {
        for (role, granted) in acl {
            let all = granted
                .iter()
                .map(|privilege| (database.to_owned(), what.clone(), *privilege));
            found.entry(role.clone()).or_default().extend(all);
        }
    };
    for (name, database) in &catalogue.databases {
        note(name, "database".to_owned(), &database.acl);
        for (schema, content) in &database.schemas {
            note(name, schema.clone(), &content.acl);
            for (relation, found) in &content.relations {
                note(name, format!("{schema}.{relation}"), &found.acl);
            }
            for (owner, kinds) in &content.defaults {
                for (kind, acl) in kinds {
                    note(name, format!("{schema}: {kind:?} of {owner}"), acl);
                }
            }
        }
    }
    found.retain(|_, granted| !granted.is_empty());
    found
}

proptest! {
    #[test]
    fn a_plan_that_was_run_leaves_nothing_to_do(declared in declared(), before in catalogue()) {
        let mut after = before.clone();
        let first = planned(&declared, &before);
        run(&mut after, &first);
        let again = planned(&declared, &after);
        if first.refusal.is_some() {
            prop_assert_eq!(after, before);
            prop_assert_eq!(again, first);
        } else {
            prop_assert_eq!(again, Plan::default());
        }
    }

    #[test]
    fn nobody_else_gets_or_loses_anything(declared in declared(), before in catalogue()) {
        let mut after = before.clone();
        run(&mut after, &planned(&declared, &before));
        let (mut was, mut is) = (grants(&before), grants(&after));
        was.remove(&declared.name);
        is.remove(&declared.name);
        prop_assert_eq!(was, is);
        let others = |catalogue: &Catalogue| {
            let mut roles = catalogue.roles.clone();
            roles.remove(&declared.name);
            // It has no right.
            roles.remove(CERTIFICATES_ROLE);
            roles
        };
        prop_assert_eq!(others(&before), others(&after));
    }

    #[test]
    fn a_role_has_what_is_declared(declared in declared(), before in catalogue()) {
        let plan = planned(&declared, &before);
        prop_assume!(plan.refusal.is_none());
        let mut after = before.clone();
        run(&mut after, &plan);
        let takes = declared.policy == Policy::Full && declared.adoption != Adoption::KeepUnlisted;
        for step in &plan.steps {
            prop_assert!(takes || !step.takes, "{:?}", step);
            match &step.statement {
                Statement::Revoke { .. } => prop_assert!(takes, "{:?}", step),
                Statement::Grant { on: Object::Future { owner, .. }, .. } => {
                    let database = step.database.as_ref().map(|name| &before.databases[name]);
                    prop_assert_eq!(Some(owner), database.map(|database| &database.owner));
                }
                Statement::Grant { .. }
                | Statement::CreateRole { .. }
                | Statement::AlterRole { .. }
                | Statement::SetVerifier { .. }
                | Statement::DropRole { .. }
                | Statement::GrantRole { .. }
                | Statement::RevokeRole { .. }
                | Statement::EndSessions { .. }
                | Statement::Reassign { .. }
                | Statement::Comment { .. }
                | Statement::Database { .. }
                | Statement::Schema { .. }
                | Statement::MakeLookup
                | Statement::Extension { .. } => {}
            }
        }
        let role = &after.roles[&declared.name];
        prop_assert!(!takes || (&role.attributes, role.is_mighty) == (&declared.attributes, false));
        prop_assert_eq!(role.comment.clone(), Some(mark("u1")));
        for (group, wanted) in &declared.member_of {
            let has = role.member_of[group];
            prop_assert!(takes || [has.admin >= wanted.admin, has.inherit >= wanted.inherit, has.set >= wanted.set] == [true; 3]);
            prop_assert!(!takes || has == *wanted, "{:?}", has);
        }
        let of_a_creator = Membership { admin: true, inherit: false, set: false };
        let certified = role.member_of.contains_key(CERTIFICATES_ROLE);
        prop_assert_eq!(certified, declared.certificate);
        let others = role.member_of.iter().filter(|(group, _)| *group != CERTIFICATES_ROLE);
        let unlisted = others.filter(|(group, _)| !declared.member_of.contains_key(*group));
        prop_assert!(!takes || unlisted.clone().all(|(_, membership)| *membership == of_a_creator));
        let before_of = |name: &str| before.roles.get(name).cloned().unwrap_or_default();
        let mut kept = before_of(&declared.name).groups;
        kept.remove(CERTIFICATES_ROLE);
        prop_assert!(takes || kept.is_subset(&role.groups));
        let may_log_in = role.attributes.login && role.attributes.valid_until.is_none_or(|until| until > before.now);
        let ends = takes && declared.end_sessions && !may_log_in;
        let sessions = if ends { 0 } else { before_of(&declared.name).sessions };
        prop_assert_eq!(role.sessions, sessions);
        match &declared.password {
            Password::Verifier(wanted) => prop_assert_eq!(role.verifier.as_ref(), Some(wanted)),
            Password::External => {
                let before = before.roles.get(&declared.name).and_then(|role| role.verifier.as_ref());
                prop_assert_eq!(role.verifier.as_ref(), before);
            }
            Password::None if takes => prop_assert_eq!(role.verifier.as_ref(), None),
            Password::None => {}
        }
        for access in &declared.grants {
            for schema in &access.schemas {
                for (name, relation) in &after.databases[&access.database].schemas[schema].relations {
                    let on = Object::Relation { schema: schema.clone(), name: name.clone(), kind: relation.kind };
                    let granted = after.granted(&access.database, &on, &declared.name);
                    let has = relation.owner == declared.name
                        || relation.kind == RelationKind::Sequence
                        || access.permissions.is_subset(&granted);
                    prop_assert!(has, "{:?} on {:?}", granted, on);
                }
            }
        }
    }

    #[test]
    fn a_role_goes_with_its_user_unless_it_owns_something_and_nobody_elses_does(
        declared in declared(),
        before in catalogue(),
    ) {
        let going = DeclaredRole { going: Some(Going::Drop { reassign_to: None }), ..declared };
        let plan = planned(&going, &before);
        let role = before.roles.get(&going.name);
        let is_own = role.is_some_and(is_made_for_u1);
        prop_assert_eq!(plan.steps.is_empty(), !is_own);
        let mut after = before.clone();
        let dropped = plan.steps.iter().try_for_each(|step| {
            after.run(step.database.as_deref().unwrap_or(""), &step.statement)
        });
        let owns = before.databases.values().any(|database| {
            let is = |owner: &String| *owner == going.name;
            is(&database.owner) || database.schemas.values().any(|schema| {
                // What is granted on what it makes later is its own, too.
                is(&schema.owner)
                    || schema.relations.values().any(|found| is(&found.owner))
                    || schema.defaults.get(&going.name).is_some_and(|kinds| kinds.values().any(|acl| !acl.is_empty()))
            })
        });
        prop_assert_eq!(dropped.is_err(), is_own && owns, "{:?}", dropped);
        prop_assert_eq!(after.roles.contains_key(&going.name), role.is_some() && (!is_own || owns));
        let (mut was, mut is) = (grants(&before), grants(&after));
        if is_own {
            was.remove(&going.name);
            prop_assert_eq!(is.remove(&going.name), None);
        }
        prop_assert_eq!(was, is);
    }

    #[test]
    fn what_a_dropped_role_owns_is_given_to_whom_the_user_names(
        declared in declared(),
        before in catalogue(),
    ) {
        let name = "app".to_owned();
        let mut before = before;
        let role = before.roles.get_mut(&name).expect("it is there");
        (role.comment, role.owns_in) = (Some(mark("u1")), DATABASES.map(str::to_owned).into());
        let declared = DeclaredRole { name: name.clone(), ..declared };
        let going = DeclaredRole { going: Some(Going::Drop { reassign_to: Some("group".to_owned()) }), ..declared };
        let mut after = before.clone();
        run(&mut after, &planned(&going, &before));
        prop_assert!(!after.roles.contains_key(&name));
        let given = |owner: &String| if *owner == name { "group".to_owned() } else { owner.clone() };
        for (database, was) in &before.databases {
            let is = &after.databases[database];
            prop_assert_eq!(&is.owner, &given(&was.owner));
            for (schema, was) in &was.schemas {
                let is = &is.schemas[schema];
                prop_assert_eq!(&is.owner, &given(&was.owner));
                for (relation, was) in &was.relations {
                    prop_assert_eq!(&is.relations[relation].owner, &given(&was.owner));
                }
            }
        }
    }

    #[test]
    fn a_quarantined_role_keeps_all_but_its_login_and_its_sessions(declared in declared(), before in catalogue()) {
        let going = DeclaredRole { going: Some(Going::Quarantine), ..declared };
        let plan = planned(&going, &before);
        let mut after = before.clone();
        run(&mut after, &plan);
        let is_own = before.roles.get(&going.name).is_some_and(is_made_for_u1);
        prop_assert_eq!(plan.refusal.is_some(), before.roles.contains_key(&going.name) && !is_own);
        prop_assert_eq!(grants(&before), grants(&after));
        for (name, was) in &before.roles {
            let is = &after.roles[name];
            prop_assert_eq!(&is.member_of, &was.member_of);
            if *name != going.name || !is_own {
                prop_assert_eq!(is, was);
                continue;
            }
            prop_assert_eq!((is.attributes.login, is.sessions), (false, 0));
            let since = is.comment.clone().unwrap_or_default();
            prop_assert!(since.starts_with("made for DatabaseUser u1, quarantined since "), "{}", since);
            prop_assert_eq!(&is.verifier, &was.verifier);
        }
        after.now += chrono::TimeDelta::days(1);
        prop_assert_eq!(planned(&going, &after).steps, []);
    }

    #[test]
    fn nobody_becomes_a_member_of_what_is_too_mighty(
        declared in declared(),
        before in catalogue(),
        group in select(&["far", "pg_execute_server_program", "postgres", "cdb_members", "owner", "none yet"][..]),
    ) {
        let mut declared = declared;
        let membership = Membership { admin: false, inherit: true, set: true };
        declared.member_of.insert(group.to_owned(), membership);
        let mut after = before.clone();
        let plan = planned(&declared, &before);
        run(&mut after, &plan);
        let has = |catalogue: &Catalogue| {
            let role = catalogue.roles.get(&declared.name);
            role.is_some_and(|role| role.groups.contains(group))
        };
        let is_ordinary = group == "owner" && !before.roles["owner"].is_mighty && !before.roles["owner"].groups.contains("far");
        if group == "none yet" {
            prop_assert!(plan.refusal.is_some() || plan.waits.is_some());
        } else if !is_ordinary {
            prop_assert!(plan.refusal.is_some(), "{:?}", plan);
        }
        prop_assert!(is_ordinary || !has(&after) || has(&before));
    }

    #[test]
    fn what_takes_nothing_takes_nothing(declared in declared(), before in catalogue()) {
        let mut plan = planned(&declared, &before);
        plan.steps.retain(|step| !step.takes);
        let mut after = before.clone();
        run(&mut after, &plan);
        let (was, is) = (grants(&before), grants(&after));
        prop_assert!(was.iter().all(|(role, granted)| is.get(role).is_some_and(|is| granted.is_subset(is))));
        for (name, role) in &before.roles {
            let now = &after.roles[name];
            prop_assert!(!role.is_mighty || now.is_mighty);
            prop_assert!(!role.attributes.login || now.attributes.login);
            let mut groups = role.groups.clone();
            groups.remove(CERTIFICATES_ROLE);
            prop_assert!(groups.is_subset(&now.groups));
            prop_assert_eq!(role.sessions, now.sessions);
        }
    }
}

fn is_made_for_u1(role: &Role) -> bool {
    let comment = role.comment.as_deref().unwrap_or_default();
    comment == "made for DatabaseUser u1" || comment.starts_with("made for DatabaseUser u1, quarantined")
}

fn user(name: &str) -> DeclaredRole {
    DeclaredRole {
        uid: "u1".to_owned(),
        name: name.to_owned(),
        attributes: Attributes::default(),
        password: Password::None,
        grants: Vec::new(),
        member_of: BTreeMap::new(),
        lists_memberships: true,
        end_sessions: false,
        certificate: false,
        adoption: Adoption::default(),
        policy: Policy::default(),
        going: None,
    }
}

#[test]
fn the_older_of_two_with_one_name_keeps_it() {
    let mut catalogue = Catalogue::default();
    run(&mut catalogue, &planned(&user("app"), &Catalogue::default()));
    let younger = DeclaredRole {
        uid: "u2".to_owned(),
        adoption: Adoption::Full,
        ..user("app")
    };
    let refused = planned(&younger, &catalogue).refusal.expect("a refusal");
    assert_eq!(refused, "role app was made for the DatabaseUser with UID u1");
}

#[test]
fn the_role_of_a_user_that_is_gone_can_be_taken_over() {
    let mut catalogue = Catalogue::default();
    run(&mut catalogue, &planned(&user("app"), &Catalogue::default()));
    let mut made_again = DeclaredRole {
        uid: "u3".to_owned(),
        ..user("app")
    };
    let refused = planned_among(&made_again, &catalogue, &["u3"])
        .refusal
        .expect("a refusal");
    assert!(
        refused.contains("that is gone") && refused.contains("spec.adoption"),
        "{refused}"
    );
    made_again.adoption = Adoption::Full;
    let taken = planned_among(&made_again, &catalogue, &["u3"]);
    run(&mut catalogue, &taken);
    assert_eq!(catalogue.roles["app"].comment, Some(mark("u3")));
}

#[test]
fn only_who_declares_something_in_a_database_needs_to_read_it() {
    let mut catalogue = Catalogue::default();
    catalogue
        .unreadable
        .insert("orders".to_owned(), "it is locked".to_owned());
    assert_eq!(planned(&user("app"), &catalogue).refusal, None);
    let mut wanted = user("app");
    wanted.grants.push(Access {
        database: "orders".to_owned(),
        schemas: Vec::new(),
        permissions: BTreeSet::new(),
        future: false,
    });
    let why = planned(&wanted, &catalogue).refusal;
    assert_eq!(why.as_deref(), Some("database orders cannot be read: it is locked"));
}

#[test]
fn a_role_of_somebody_else_is_left_alone_unless_it_is_to_be_taken_over() {
    let mut catalogue = Catalogue::default();
    catalogue.roles.insert("app".to_owned(), Role::default());
    let refused = planned(&user("app"), &catalogue);
    assert!(refused.refusal.is_some_and(|why| why.contains("made by somebody else")));
    let taken = DeclaredRole {
        adoption: Adoption::Full,
        ..user("app")
    };
    assert_eq!(planned(&taken, &catalogue).refusal, None);

    // Nobody gets a superuser's login by taking it over.
    let role = catalogue.roles.get_mut("app").unwrap();
    (role.is_mighty, role.attributes.login) = (true, true);
    for policy in [Policy::Full, Policy::Additive] {
        let taken = DeclaredRole {
            policy,
            ..taken.clone()
        };
        let why = planned(&taken, &catalogue).refusal;
        assert!(why.is_some_and(|why| why.contains("may do more")));
    }
    // One that was made for it loses what it was given by hand.
    catalogue.roles.get_mut("app").unwrap().comment = Some(mark("u1"));
    let plan = planned(&user("app"), &catalogue);
    assert!(matches!(&plan.steps[0].statement, Statement::AlterRole { .. }) && plan.steps[0].takes);
    catalogue.roles.get_mut("app").unwrap().comment = None;
    let role = catalogue.roles.get_mut("app").unwrap();
    (role.is_mighty, role.groups) = (false, ["pg_execute_server_program".to_owned()].into());
    let why = planned(&taken, &catalogue).refusal.unwrap();
    assert!(why.contains("a member of") && why.contains("reaches files"), "{why}");
    // An ordinary group is taken from it.
    let role = catalogue.roles.get_mut("app").unwrap();
    role.groups = ["pg_monitor".to_owned()].into();
    role.member_of.insert("pg_monitor".to_owned(), PLAIN);
    let plan = planned(&taken, &catalogue);
    assert!(
        plan.steps
            .iter()
            .any(|step| matches!(&step.statement, Statement::RevokeRole { role, .. } if role == "pg_monitor")),
        "{plan:?}"
    );
}

const PLAIN: Membership = Membership {
    admin: false,
    inherit: true,
    set: true,
};

#[test]
fn each_reason_against_a_membership_is_told() {
    let mut catalogue = Catalogue::default();
    for name in ["app", "group", "between", "boss"] {
        catalogue.roles.insert(name.to_owned(), Role::default());
    }
    catalogue.roles.get_mut("app").unwrap().comment = Some(mark("u1"));
    catalogue.roles.get_mut("boss").unwrap().is_mighty = true;
    catalogue.roles.get_mut("between").unwrap().groups = ["boss".to_owned()].into();
    let member = |group: &str| {
        let mut wanted = user("app");
        wanted.member_of.insert(group.to_owned(), PLAIN);
        wanted
    };
    for (group, words) in [
        ("pg_write_server_files", "reaches files, programs or other servers"),
        ("cdb_members", "is the operator's"),
        ("boss", "boss is a superuser, or has CREATEROLE"),
        ("between", "boss is a superuser, or has CREATEROLE"),
        ("app", "app is itself a member of app"),
        (
            "pg_use_reserved_connections",
            "PostgreSQL of this version has no role pg_use_reserved_connections",
        ),
    ] {
        let plan = planned(&member(group), &catalogue);
        assert!(plan.refusal.as_ref().is_some_and(|why| why.contains(words)), "{plan:?}");
    }
    assert_eq!(planned(&member("group"), &catalogue).refusal, None);
    catalogue.roles.get_mut("group").unwrap().groups = ["app".to_owned()].into();
    let why = planned(&member("group"), &catalogue).refusal.unwrap();
    assert_eq!(
        why,
        "role app cannot be a member of group: group is itself a member of app"
    );
    catalogue.roles.get_mut("group").unwrap().groups.clear();

    // One that is not there yet is waited for, and the rest is done.
    let mut wanted = member("later");
    wanted.member_of.insert("group".to_owned(), PLAIN);
    let plan = planned(&wanted, &catalogue);
    let waits = plan.waits.as_deref();
    assert_eq!(waits, Some("there is no role later, which it is to be a member of"));
    assert_eq!(plan.steps.len(), 1);

    // PostgreSQL 15 has no such options, and takes ADMIN away by revoking all.
    catalogue.plain_memberships = true;
    let mut wanted = member("group");
    wanted.member_of.get_mut("group").unwrap().set = false;
    let why = planned(&wanted, &catalogue).refusal.unwrap();
    assert!(
        why.contains("PostgreSQL before 16") && why.contains("set: false of group"),
        "{why}"
    );
    let admin = Membership { admin: true, ..PLAIN };
    catalogue
        .run(
            "",
            &Statement::GrantRole {
                role: "group".to_owned(),
                to: "app".to_owned(),
                membership: admin,
                plain: true,
            },
        )
        .unwrap();
    let plan = planned(&member("group"), &catalogue);
    assert_eq!(plan.steps.len(), 2);
    run(&mut catalogue, &plan);
    assert_eq!(catalogue.roles["app"].member_of["group"], PLAIN);
}

#[test]
fn a_role_with_a_certificate_is_a_member_of_what_asks_for_one_and_nobody_is_through_it() {
    let mut catalogue = Catalogue::default();
    let wanted = DeclaredRole {
        certificate: true,
        ..user("app")
    };
    let plan = planned(&wanted, &catalogue);
    run(&mut catalogue, &plan);
    let made = &catalogue.roles[CERTIFICATES_ROLE];
    assert!(!made.attributes.login && made.member_of.is_empty());
    assert!(catalogue.roles["app"].groups.contains(CERTIFICATES_ROLE));
    assert_eq!(planned(&wanted, &catalogue).steps, []);

    // `pg_hba.conf` would ask another role for a certificate, too.
    let other = DeclaredRole {
        uid: "u2".to_owned(),
        member_of: [("app".to_owned(), PLAIN)].into(),
        ..user("other")
    };
    let why = planned(&other, &catalogue).refusal.unwrap();
    assert!(
        why.starts_with("role other cannot be a member of app: cdb_certificates"),
        "{why}"
    );
    let of_app = Role {
        groups: ["app".to_owned()].into(),
        ..Role::default()
    };
    catalogue.roles.insert("reports".to_owned(), of_app);
    let why = planned(&wanted, &catalogue).refusal.unwrap();
    assert!(
        why.ends_with("reports is a member of it, and would need one, too"),
        "{why}"
    );
    catalogue.roles.remove("reports");

    let without = user("app");
    let plan = planned(&without, &catalogue);
    assert!(plan.steps.iter().all(|step| step.takes));
    run(&mut catalogue, &plan);
    assert!(!catalogue.roles["app"].groups.contains(CERTIFICATES_ROLE));
}

#[test]
fn an_older_agent_does_not_take_a_role_that_goes_for_one_that_stays() {
    let text = |going: Option<Going>| {
        let declared = DeclaredRole { going, ..user("app") };
        let text = serde_json::to_value(&declared).unwrap();
        assert_eq!(serde_json::from_value::<DeclaredRole>(text.clone()).unwrap(), declared);
        text
    };
    assert!(text(None)["drop"].is_null());
    for going in [Going::Quarantine, Going::Drop { reassign_to: None }] {
        let told = &text(Some(going))["drop"];
        assert!(!told.is_null() && !told.is_boolean(), "{told}");
    }
}

#[test]
fn what_is_owned_is_given_to_no_mightier_role() {
    let mut catalogue = Catalogue::default();
    for name in ["app", "boss", "pg_read_server_files"] {
        catalogue.roles.insert(name.to_owned(), Role::default());
    }
    catalogue.roles.get_mut("app").unwrap().comment = Some(mark("u1"));
    catalogue.roles.get_mut("boss").unwrap().is_mighty = true;
    for (to, words) in [
        ("boss", "is not given to boss: boss is a superuser"),
        ("pg_read_server_files", "reaches files"),
        ("nobody", "there is no role nobody, which reassignTo names"),
        ("app", "which is to be dropped"),
    ] {
        let going = Going::Drop {
            reassign_to: Some(to.to_owned()),
        };
        let plan = planned(
            &DeclaredRole {
                going: Some(going),
                ..user("app")
            },
            &catalogue,
        );
        assert!(plan.refusal.as_ref().is_some_and(|why| why.contains(words)), "{plan:?}");
        assert_eq!(plan.steps, []);
    }
}

#[test]
fn sessions_are_ended_after_it_is_sure_that_no_new_one_begins() {
    let mut catalogue = Catalogue::default();
    let role = Role {
        attributes: Attributes {
            login: true,
            ..Attributes::default()
        },
        comment: Some(mark("u1")),
        sessions: 2,
        ..Role::default()
    };
    catalogue.roles.insert("app".to_owned(), role);
    let wanted = DeclaredRole {
        end_sessions: true,
        ..user("app")
    };
    let plan = planned(&wanted, &catalogue);
    let batches = plan.batches();
    assert_eq!(batches.len(), 2, "{plan:?}");
    assert!(matches!(batches[0].steps[0].statement, Statement::AlterRole { .. }) && !batches[0].alone);
    assert!(matches!(batches[1].steps[0].statement, Statement::EndSessions { .. }) && batches[1].alone);
    let kept = DeclaredRole {
        end_sessions: false,
        ..wanted
    };
    assert_eq!(planned(&kept, &catalogue).steps.len(), 1);
}

#[test]
fn privileges_of_other_things_are_no_permissions() {
    let mut wanted = user("app");
    wanted.grants.push(Access {
        database: "orders".to_owned(),
        schemas: Vec::new(),
        permissions: BTreeSet::from([Privilege::Create]),
        future: true,
    });
    let why = planned(&wanted, &Catalogue::default()).refusal;
    assert_eq!(why.as_deref(), Some("CREATE is no permission on tables"));
}

#[test]
fn names_that_cannot_be_are_refused() {
    let long = "a".repeat(64);
    for name in [
        "",
        "postgres",
        "public",
        "none",
        "pg_monitor",
        "cdb_members",
        "a\0b",
        &long,
    ] {
        let refused = planned(&user(name), &Catalogue::default());
        assert!(
            refused.refusal.is_some_and(|why| why.contains("cannot be called")),
            "{name:?}"
        );
        assert_eq!(refused.steps, []);
    }
    assert_eq!(planned(&user(&long[..63]), &Catalogue::default()).refusal, None);
}

#[test]
fn what_is_not_there_is_waited_for_and_the_rest_is_done() {
    let mut catalogue = Catalogue::default();
    let mut wanted = user("app");
    wanted.grants.push(Access {
        database: "orders".to_owned(),
        schemas: vec!["sales".to_owned()],
        permissions: BTreeSet::from([Privilege::Select]),
        future: true,
    });
    let plan = planned(&wanted, &catalogue);
    assert_eq!(
        (plan.waits.as_deref(), &plan.refusal),
        (Some("there is no database orders"), &None)
    );
    // The role itself waits for nothing: the database may wait for its owner.
    run(&mut catalogue, &plan);
    assert_eq!(catalogue.roles["app"].comment, Some(mark("u1")));
    catalogue.databases.insert("orders".to_owned(), Database::default());
    let plan = planned(&wanted, &catalogue);
    assert_eq!(
        plan.waits.as_deref(),
        Some("there is no schema sales in database orders")
    );
    run(&mut catalogue, &plan);
    assert_eq!(planned(&wanted, &catalogue).steps, []);
    assert_eq!(catalogue.databases["orders"].acl["app"], [Privilege::Connect].into());
    // A slip in a name takes nothing from anybody.
    let schemas = &mut catalogue.databases.get_mut("orders").unwrap().schemas;
    schemas.insert("sales".to_owned(), Schema::default());
    let plan = planned(&wanted, &catalogue);
    run(&mut catalogue, &plan);
    let usage = BTreeSet::from([Privilege::Usage]);
    assert_eq!(catalogue.databases["orders"].schemas["sales"].acl["app"], usage);
    wanted.grants[0].schemas = vec!["slaes".to_owned()];
    let plan = planned(&wanted, &catalogue);
    assert!(plan.waits.is_some() && plan.steps.is_empty(), "{plan:?}");
    // Named rightly, it is what the role has.
    wanted.grants[0].schemas.clear();
    assert!(planned(&wanted, &catalogue).steps.iter().any(|step| step.takes));
}

#[test]
fn memberships_that_the_spec_does_not_list_are_left_alone() {
    let (mut wanted, mut catalogue) = (user("app"), Catalogue::default());
    wanted.lists_memberships = false;
    let ours = Role {
        comment: Some("made for DatabaseUser u1".to_owned()),
        member_of: [("group".to_owned(), PLAIN)].into(),
        groups: ["group".to_owned()].into(),
        ..Role::default()
    };
    catalogue.roles = [("app".to_owned(), ours), ("group".to_owned(), Role::default())].into();
    assert!(
        !planned(&wanted, &catalogue)
            .steps
            .iter()
            .any(|step| step.statement.is_membership())
    );
    wanted.lists_memberships = true;
    assert!(
        planned(&wanted, &catalogue)
            .steps
            .iter()
            .any(|step| step.statement.is_membership())
    );

    // What has become too mighty after it was given is taken back, and by itself.
    wanted.member_of = [("group".to_owned(), PLAIN)].into();
    catalogue.roles.get_mut("group").unwrap().is_mighty = true;
    let plan = planned(&wanted, &catalogue);
    assert!(plan.refusal.is_some());
    let revoked = Statement::RevokeRole {
        role: "group".to_owned(),
        from: "app".to_owned(),
    };
    assert_eq!(
        plan.steps.iter().map(|step| &step.statement).collect::<Vec<_>>(),
        [&revoked]
    );
    assert!(plan.batches().iter().all(|batch| batch.memberships));
}

#[test]
fn a_drop_of_an_earlier_operator_is_understood() {
    let read = |drop: &str| {
        let mut entry = serde_json::to_value(user("app")).unwrap();
        entry["drop"] = serde_json::from_str(drop).unwrap();
        serde_json::from_value::<DeclaredRole>(entry).unwrap().going
    };
    assert_eq!(read("true"), Some(Going::Drop { reassign_to: None }));
    assert_eq!((read("false"), read("null")), (None, None));
    let reassigned = Going::Drop {
        reassign_to: Some("other".to_owned()),
    };
    for going in [Going::Quarantine, reassigned] {
        assert_eq!(read(&serde_json::to_string(&going).unwrap()), Some(going));
    }
}
