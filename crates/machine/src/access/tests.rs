use std::collections::{BTreeMap, BTreeSet};

use api::declared::{Adoption, ManagementPolicy as Policy};
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
    let comment = select(vec![None, Some(mark("u1")), Some("somebody's".to_owned())]);
    (attributes(), any::<bool>(), comment, any::<bool>()).prop_map(|(attributes, is_mighty, comment, has_password)| {
        Role {
            oid: 0,
            attributes,
            is_mighty,
            verifier: has_password.then(|| Secret("old".to_owned())),
            comment,
            has_groups: false,
        }
    })
}

fn attributes() -> impl Strategy<Value = Attributes> {
    (any::<bool>(), prop::option::of(0..3_u32)).prop_map(|(login, connection_limit)| Attributes {
        login,
        connection_limit,
        valid_until: None,
    })
}

fn catalogue() -> impl Strategy<Value = Catalogue> {
    let roles = ROLES.map(|name| role().prop_map(move |role| (name.to_owned(), role)));
    let databases = DATABASES.map(|name| database().prop_map(move |database| (name.to_owned(), database)));
    (roles, databases).prop_map(|(roles, databases)| {
        let roles = (16_384..)
            .zip(roles)
            .map(|(oid, (name, role))| (name, Role { oid, ..role }));
        Catalogue {
            roles: roles.collect(),
            databases: databases.into(),
            ..Catalogue::default()
        }
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
    (name, attributes(), password, grants, adoption, policy).prop_map(
        |(name, attributes, password, grants, adoption, policy)| DeclaredRole {
            uid: "u1".to_owned(),
            name: name.to_owned(),
            attributes,
            password,
            grants,
            adoption,
            policy,
            drop: false,
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
                | Statement::Comment { .. }
                | Statement::Database { .. }
                | Statement::Schema { .. }
                | Statement::Extension { .. } => {}
            }
        }
        let role = &after.roles[&declared.name];
        prop_assert!(!takes || (&role.attributes, role.is_mighty) == (&declared.attributes, false));
        prop_assert_eq!(role.comment.clone(), Some(mark("u1")));
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
        let going = DeclaredRole { drop: true, ..declared };
        let plan = planned(&going, &before);
        let role = before.roles.get(&going.name);
        let is_own = role.is_some_and(|role| role.comment.as_deref() == Some("made for DatabaseUser u1"));
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
        }
    }
}

fn user(name: &str) -> DeclaredRole {
    DeclaredRole {
        uid: "u1".to_owned(),
        name: name.to_owned(),
        attributes: Attributes::default(),
        password: Password::None,
        grants: Vec::new(),
        adoption: Adoption::default(),
        policy: Policy::default(),
        drop: false,
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
    (role.is_mighty, role.has_groups) = (false, true);
    assert!(
        planned(&taken, &catalogue)
            .refusal
            .is_some_and(|why| why.contains("a member of"))
    );
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
