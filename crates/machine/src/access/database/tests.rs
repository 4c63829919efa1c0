use proptest::prelude::*;
use proptest::sample::select;

use super::super::catalogue::{Available, AvailableVersion, Closed, Role};
use super::super::declared::Declared;
use super::super::plan::Batch;
use super::super::statement::Secret;
use super::*;

const ROLES: [&str; 2] = ["owner", "other"];
const NAMES: [&str; 3] = ["orders", "Ware \"house\"", "free"];
const SCHEMAS: [&str; 3] = ["public", "sales", "s'2"];

fn name(all: &'static [&'static str]) -> impl Strategy<Value = String> {
    select(all).prop_map(str::to_owned)
}

/// `trgm` and `cube` can be anywhere, `distance` needs `cube`, and `fixed` is in a schema of its own.
fn available() -> BTreeMap<String, Available> {
    let version = |schema: Option<&str>, requires: &[&str]| AvailableVersion {
        schema: schema.map(str::to_owned),
        requires: requires.iter().map(ToString::to_string).collect(),
    };
    let found = |name: &str, versions: &[&str], found: AvailableVersion| {
        let default_version = versions.last().map(ToString::to_string).unwrap_or_default();
        let versions = versions.iter().map(|name| (name.to_string(), found.clone())).collect();
        let available = Available {
            default_version,
            versions,
        };
        (name.to_owned(), available)
    };
    BTreeMap::from([
        found("trgm", &["1.5", "1.6"], version(None, &[])),
        found("cube", &["1.0"], version(None, &[])),
        found("distance", &["1.0"], version(None, &["cube"])),
        found("fixed", &["1"], version(Some("own"), &[])),
    ])
}

fn comment() -> impl Strategy<Value = Option<String>> {
    select(vec![
        None,
        Some(mark_of_database("u1")),
        Some(mark_of_database("u1")),
        Some(mark_of_database("u2")),
        Some(mark_of_database("gone")),
        Some("somebody's".to_owned()),
    ])
}

fn extension() -> impl Strategy<Value = (String, Extension)> {
    (select(&["trgm", "cube"][..]), select(&["1.0", "1.5"][..])).prop_map(|(name, version)| {
        let found = Extension {
            version: version.to_owned(),
            schema: PUBLIC.to_owned(),
        };
        (name.to_owned(), found)
    })
}

fn database() -> impl Strategy<Value = Database> {
    let schema = name(&ROLES).prop_map(|owner| Schema {
        owner,
        ..Schema::default()
    });
    let schemas = prop::collection::btree_map(name(&SCHEMAS), schema, 0..=3);
    let extensions = prop::collection::vec(extension(), 0..=2);
    let public = select(vec![vec![], vec![Privilege::Connect], OF_PUBLIC.to_vec()]);
    let limit = prop::option::of(0..3_u32);
    let encoding = select(&["UTF8", "UTF8", "SQL_ASCII"][..]);
    (name(&ROLES), comment(), schemas, extensions, public, limit, encoding).prop_map(
        |(owner, comment, schemas, extensions, public, connection_limit, encoding)| Database {
            owner,
            comment,
            schemas,
            extensions: extensions.into_iter().collect(),
            public: public.into_iter().collect(),
            connection_limit,
            encoding: encoding.to_owned(),
            locale: "C".to_owned(),
            ..Database::default()
        },
    )
}

/// What is left of a Database `u1` that was being made.
fn begun() -> impl Strategy<Value = Option<Closed>> {
    let begun = (name(&ROLES), any::<bool>()).prop_map(|(owner, is_invalid)| Closed {
        oid: 20_000,
        owner,
        comment: None,
        is_invalid,
    });
    prop::option::of(begun)
}

fn catalogue() -> impl Strategy<Value = Catalogue> {
    let databases = prop::collection::btree_map(name(&NAMES[..2]), database(), 0..=2);
    (databases, begun(), any::<bool>()).prop_map(|(databases, begun, both)| {
        let roles = ROLES.iter().take(if both { 2 } else { 1 });
        let roles = roles.map(|name| (name.to_string(), Role::default()));
        let databases = (16_384..).zip(databases);
        Catalogue {
            roles: roles.collect(),
            databases: databases
                .map(|(oid, (name, database))| (name, Database { oid, ..database }))
                .collect(),
            closed: begun.into_iter().map(|begun| (temporary_name("u1"), begun)).collect(),
            available: available(),
            ..Catalogue::default()
        }
    })
}

fn declared() -> impl Strategy<Value = DeclaredDatabase> {
    let extension = (
        select(&["trgm", "trgm", "cube", "distance", "fixed", "none"][..]),
        prop::option::of(select(&["1.0", "1.5", "1.6", "9"][..])),
        prop::option::of(select(&["public", "sales", "own"][..])),
    );
    let extension = extension.prop_map(|(name, version, schema)| DeclaredExtension {
        name: name.to_owned(),
        version: version.map(str::to_owned),
        schema: schema.map(str::to_owned),
    });
    let schemas = prop::collection::btree_map(name(&SCHEMAS), prop::option::of(name(&ROLES)), 0..=2);
    (
        (
            name(&NAMES),
            name(&ROLES),
            prop::option::of(select(&["C", "C.UTF-8"][..])),
        ),
        (prop::option::of(0..3_u32), any::<bool>()),
        prop::collection::vec(extension, 0..=2),
        schemas,
        select(&[Adoption::Refuse, Adoption::KeepUnlisted, Adoption::Full][..]),
        select(
            &[
                ManagementPolicy::Full,
                ManagementPolicy::Full,
                ManagementPolicy::Additive,
            ][..],
        ),
    )
        .prop_map(
            |((name, owner, locale), (connection_limit, public_connect), mut extensions, schemas, adoption, policy)| {
                extensions.dedup_by(|one, other| one.name == other.name);
                let schemas = schemas.into_iter().map(|(name, owner)| DeclaredSchema { name, owner });
                DeclaredDatabase {
                    uid: "u1".to_owned(),
                    name,
                    owner,
                    locale: locale.map(str::to_owned),
                    connection_limit,
                    public_connect,
                    extensions,
                    schemas: schemas.collect(),
                    adoption,
                    policy,
                    drop: false,
                    oid: None,
                }
            },
        )
}

fn planned(declared: &DeclaredDatabase, catalogue: &Catalogue) -> Plan {
    let others = BTreeSet::from(["u1", "u2"]);
    let matches = |stored: &Secret, wanted: &Secret| stored == wanted;
    super::super::plan(&Declared::Database(declared.clone()), catalogue, &others, matches)
}

fn run_batch(catalogue: &mut Catalogue, batch: &Batch<'_>) {
    for step in batch.steps {
        let done = catalogue.run(batch.database.unwrap_or(""), &step.statement);
        done.unwrap_or_else(|why| panic!("{step:?}: {why}"));
    }
}

fn run(catalogue: &mut Catalogue, plan: &Plan) {
    for batch in plan.batches() {
        run_batch(catalogue, &batch);
    }
}

/// Without what belongs to the declared database.
fn others(catalogue: &Catalogue, declared: &DeclaredDatabase) -> Catalogue {
    let mut rest = catalogue.clone();
    rest.databases.remove(&declared.name);
    rest.closed.remove(&temporary_name(&declared.uid));
    rest
}

fn is_of(comment: Option<&String>, uid: &str) -> bool {
    comment == Some(&mark_of_database(uid))
}

proptest! {
    #[test]
    fn a_plan_that_was_run_leaves_nothing_to_do_and_touches_nothing_else(declared in declared(), before in catalogue()) {
        let mut after = before.clone();
        let first = planned(&declared, &before);
        run(&mut after, &first);
        prop_assert_eq!(others(&after, &declared), others(&before, &declared));
        let again = planned(&declared, &after);
        if first.refusal.is_some() || first.waits.is_some() {
            prop_assert_eq!(&first.steps, &Vec::new());
            prop_assert_eq!(again, first);
        } else {
            prop_assert_eq!(again, Plan::default());
            prop_assert!(!after.closed.contains_key(&temporary_name("u1")));
        }
    }

    #[test]
    fn a_database_has_what_is_declared(declared in declared(), before in catalogue()) {
        let plan = planned(&declared, &before);
        prop_assume!(plan.refusal.is_none() && plan.waits.is_none());
        let mut after = before.clone();
        run(&mut after, &plan);
        let database = &after.databases[&declared.name];
        prop_assert!(is_of(database.comment.as_ref(), "u1"));
        prop_assert_eq!(&database.owner, &declared.owner);
        let was_own = before.databases.get(&declared.name).is_some_and(|before| is_of(before.comment.as_ref(), "u1"));
        prop_assert!(was_own || database.encoding == "UTF8");
        let keeps = declared.adoption == Adoption::KeepUnlisted || declared.policy == ManagementPolicy::Additive;
        let is_new = !before.databases.contains_key(&declared.name);
        if is_new || !keeps {
            prop_assert_eq!(database.connection_limit, declared.connection_limit);
            let may: Vec<bool> = OF_PUBLIC.iter().map(|privilege| database.public.contains(privilege)).collect();
            prop_assert_eq!(may, vec![declared.public_connect; 2]);
        }
        for schema in &declared.schemas {
            let owner = schema.owner.as_ref().filter(|_| !is_new || schema.name != PUBLIC);
            let found = &database.schemas[&schema.name];
            prop_assert!(owner.is_none_or(|owner| found.owner == *owner), "{:?}", schema);
        }
        for extension in &declared.extensions {
            let found = &database.extensions[&extension.name];
            prop_assert!(extension.version.as_ref().is_none_or(|version| found.version == *version));
            prop_assert!(extension.schema.as_ref().is_none_or(|schema| found.schema == *schema));
        }
        if let Some(before) = before.databases.get(&declared.name) {
            prop_assert_eq!(before.oid, database.oid);
            prop_assert!(before.schemas.keys().all(|name| database.schemas.contains_key(name)));
            prop_assert!(before.extensions.keys().all(|name| database.extensions.contains_key(name)));
        }
    }

    #[test]
    fn what_takes_nothing_takes_nothing(declared in declared(), before in catalogue()) {
        let mut plan = planned(&declared, &before);
        let is_additive = declared.policy == ManagementPolicy::Additive;
        prop_assert!(!is_additive || plan.steps.iter().all(|step| !step.takes), "{:?}", plan);
        plan.steps.retain(|step| !step.takes);
        let mut after = before.clone();
        run(&mut after, &plan);
        for (name, before) in &before.databases {
            let after = &after.databases[name];
            prop_assert_eq!(&before.owner, &after.owner);
            prop_assert!(before.public.is_subset(&after.public));
            let limits = after.connection_limit.map(|now| before.connection_limit.is_some_and(|before| before <= now));
            prop_assert!(limits.is_none_or(|more| more), "{:?}", after.connection_limit);
            for (name, schema) in &before.schemas {
                prop_assert_eq!(&after.schemas[name].owner, &schema.owner);
            }
        }
    }

    /// Whatever batch is the last one before the agent dies.
    #[test]
    fn a_plan_that_was_interrupted_is_gone_on_with(declared in declared(), before in catalogue(), died in 0..5_usize) {
        let plan = planned(&declared, &before);
        prop_assume!(plan.refusal.is_none() && plan.waits.is_none());
        let mut after = before.clone();
        for batch in plan.batches().iter().take(died) {
            run_batch(&mut after, batch);
        }
        let rest = planned(&declared, &after);
        prop_assert_eq!((&rest.refusal, &rest.waits), (&None, &None));
        run(&mut after, &rest);
        let mut whole = before.clone();
        run(&mut whole, &plan);
        prop_assert_eq!(after, whole);
    }

    #[test]
    fn only_the_database_that_was_made_for_it_is_dropped(
        declared in declared(),
        before in catalogue(),
        oid in select(vec![None, Some(16_384), Some(16_385)]),
    ) {
        let going = DeclaredDatabase { drop: true, oid, ..declared };
        let plan = planned(&going, &before);
        let mut after = before.clone();
        run(&mut after, &plan);
        prop_assert_eq!(others(&after, &going), others(&before, &going));
        let found = before.databases.get(&going.name);
        let has_mark = found.is_some_and(|found| is_of(found.comment.as_ref(), "u1"));
        let fits = has_mark && found.is_some_and(|found| oid.is_none_or(|oid| oid == found.oid));
        // What was begun goes without a word about who has taken the name.
        let begun = before.oid_and_comment(&temporary_name("u1")).is_some();
        let is_refused = found.is_some() && !fits && (has_mark || !begun);
        prop_assert_eq!(plan.refusal.is_some(), is_refused);
        prop_assert_eq!(after.databases.contains_key(&going.name), found.is_some() && !fits);
        prop_assert!(plan.steps.iter().all(|step| step.takes && step.statement.runs_alone()));
    }
}

fn orders() -> DeclaredDatabase {
    DeclaredDatabase {
        uid: "u1".to_owned(),
        name: "orders".to_owned(),
        owner: "owner".to_owned(),
        locale: None,
        connection_limit: None,
        public_connect: true,
        extensions: Vec::new(),
        schemas: Vec::new(),
        adoption: Adoption::default(),
        policy: ManagementPolicy::default(),
        drop: false,
        oid: None,
    }
}

fn with_owner() -> Catalogue {
    Catalogue {
        roles: BTreeMap::from([("owner".to_owned(), Role::default())]),
        available: available(),
        ..Catalogue::default()
    }
}

fn extension_named(name: &str) -> DeclaredExtension {
    DeclaredExtension {
        name: name.to_owned(),
        version: None,
        schema: None,
    }
}

#[test]
fn a_database_gets_its_comment_and_its_name_together_and_takes_no_connection_before() {
    let wanted = DeclaredDatabase {
        connection_limit: Some(3),
        public_connect: false,
        extensions: vec![extension_named("trgm"), extension_named("fixed")],
        ..orders()
    };
    let plan = planned(&wanted, &with_owner());
    let [create, open, content] = &plan.batches()[..] else {
        panic!("{plan:?}")
    };
    assert!(create.alone && create.database.is_none() && create.steps.len() == 1);
    let changes: Vec<&DatabaseChange> = open
        .steps
        .iter()
        .filter_map(|step| match &step.statement {
            Statement::Database { change, .. } => Some(change),
            _ => None,
        })
        .collect();
    let mark = DatabaseChange::Comment(mark_of_database("u1"));
    let rename = DatabaseChange::Rename {
        to: "orders".to_owned(),
    };
    let (limit, public) = (DatabaseChange::Limit(Some(3)), DatabaseChange::SetPublic(false));
    assert_eq!(changes, [&mark, &rename, &DatabaseChange::Open, &limit, &public]);
    assert_eq!(content.database, Some("orders"));
    let schemas: Vec<Option<&str>> = content
        .steps
        .iter()
        .filter_map(|step| match &step.statement {
            Statement::Extension {
                change: ExtensionChange::Create { schema, .. },
                ..
            } => Some(schema.as_deref()),
            _ => None,
        })
        .collect();
    assert_eq!(schemas, [Some("public"), None]);
}

#[test]
fn an_owner_that_is_missing_is_waited_for() {
    let mut catalogue = Catalogue::default();
    let plan = planned(&orders(), &catalogue);
    assert_eq!((plan.steps, plan.refusal), (Vec::new(), None));
    assert_eq!(
        plan.waits.as_deref(),
        Some("there is no role owner, which is to own something")
    );
    catalogue = with_owner();
    let mut wanted = orders();
    wanted.schemas.push(DeclaredSchema {
        name: "sales".to_owned(),
        owner: Some("seller".to_owned()),
    });
    let plan = planned(&wanted, &catalogue);
    assert!(plan.waits.is_some_and(|why| why.contains("no role seller")) && plan.steps.is_empty());
    catalogue.roles.insert("seller".to_owned(), Role::default());
    assert!(!planned(&wanted, &catalogue).steps.is_empty());
}

#[test]
fn a_database_of_somebody_else_is_left_alone_unless_it_is_to_be_taken_over() {
    let mut catalogue = with_owner();
    let database = |comment: Option<String>| Database {
        owner: "owner".to_owned(),
        comment,
        encoding: "UTF8".to_owned(),
        locale: "C".to_owned(),
        public: OF_PUBLIC.into(),
        ..Database::default()
    };
    let mut refused = |comment, wanted: &DeclaredDatabase| {
        catalogue.databases.insert("orders".to_owned(), database(comment));
        planned(wanted, &catalogue).refusal.unwrap_or_default()
    };
    let of = |uid| Some(mark_of_database(uid));
    let full = DeclaredDatabase {
        adoption: Adoption::Full,
        ..orders()
    };
    for (comment, wanted, words) in [
        (None, &orders(), "made by somebody else"),
        (of("gone"), &orders(), "made for a Database that is gone"),
        (of("u2"), &full, "made for the Database with UID u2"),
        (None, &full, ""),
        (of("gone"), &full, ""),
        (of("u1"), &orders(), ""),
    ] {
        let why = refused(comment, wanted);
        assert!(
            why.contains(words) && why.is_empty() == words.is_empty(),
            "{words}: {why}"
        );
    }
    let other_locale = DeclaredDatabase {
        locale: Some("C.UTF-8".to_owned()),
        ..full
    };
    assert!(refused(None, &other_locale).contains("the locale C, and not C.UTF-8"));
    assert_eq!(
        refused(of("u1"), &other_locale),
        "",
        "it was made so, whatever PostgreSQL calls it"
    );
}

#[test]
fn what_takes_no_connections_or_cannot_be_read_is_left_alone() {
    let mut catalogue = with_owner();
    let closed = |is_invalid| Closed {
        comment: Some(mark_of_database("u1")),
        is_invalid,
        ..Closed::default()
    };
    for (is_invalid, words) in [(true, "was interrupted"), (false, "takes no connections")] {
        catalogue.closed.insert("orders".to_owned(), closed(is_invalid));
        let why = planned(&orders(), &catalogue).refusal.unwrap_or_default();
        assert!(why.contains(words), "{why}");
    }
    // It can go all the same.
    let going = DeclaredDatabase { drop: true, ..orders() };
    assert_eq!(planned(&going, &catalogue).steps.len(), 1);
    catalogue.unreadable.insert("orders".to_owned(), "lost".to_owned());
    let why = planned(&orders(), &catalogue).refusal.unwrap_or_default();
    assert!(why.contains("cannot be read: lost"), "{why}");
    let plan = planned(&going, &catalogue);
    run(&mut catalogue, &plan);
    assert_eq!((catalogue.closed.len(), catalogue.unreadable.len()), (0, 0));
}

#[test]
fn what_was_begun_goes_although_somebody_else_has_taken_the_name() {
    let mut catalogue = with_owner();
    let begun = Closed {
        oid: 7,
        ..Closed::default()
    };
    catalogue.closed.insert(temporary_name("u1"), begun);
    let of_somebody = Database {
        oid: 8,
        ..Database::default()
    };
    catalogue.databases.insert("orders".to_owned(), of_somebody);
    let going = DeclaredDatabase { drop: true, ..orders() };
    let plan = planned(&going, &catalogue);
    run(&mut catalogue, &plan);
    assert!(catalogue.closed.is_empty() && catalogue.databases.contains_key("orders"));
    let why = planned(&going, &catalogue).refusal.unwrap_or_default();
    assert!(why.contains("does not say any more"), "{why}");
}

#[test]
fn a_schema_with_an_extension_keeps_its_owner() {
    let mut catalogue = with_owner();
    let plan = planned(&orders(), &catalogue);
    run(&mut catalogue, &plan);
    let database = catalogue.databases.get_mut("orders").unwrap();
    let (schema, extension) = (
        Schema {
            owner: "app".to_owned(),
            ..Schema::default()
        },
        Extension {
            schema: "ext".to_owned(),
            version: "1".to_owned(),
        },
    );
    database.schemas.insert("ext".to_owned(), schema);
    database.extensions.insert("trgm".to_owned(), extension);
    catalogue.roles.insert("other".to_owned(), Role::default());
    let given = |owner: &str| DeclaredDatabase {
        schemas: vec![DeclaredSchema {
            name: "ext".to_owned(),
            owner: Some(owner.to_owned()),
        }],
        ..orders()
    };
    let why = planned(&given("other"), &catalogue).refusal.unwrap_or_default();
    assert!(why.contains("has the extension trgm, and keeps its owner app"), "{why}");
    assert_eq!(planned(&given("app"), &catalogue).refusal, None);
}

#[test]
fn each_extension_that_cannot_be_is_told() {
    let table: [(&[DeclaredExtension], &str); 7] = [
        (&[extension_named("none")], "extension none is not available"),
        (
            &[DeclaredExtension {
                version: Some("2".to_owned()),
                ..extension_named("trgm")
            }],
            "extension trgm has no version 2 in this image, but 1.5, 1.6",
        ),
        (&[extension_named("distance")], "name cube before distance"),
        (
            &[DeclaredExtension {
                schema: Some("sales".to_owned()),
                ..extension_named("fixed")
            }],
            "can only be in the schema own",
        ),
        (
            &[DeclaredExtension {
                schema: Some("sales".to_owned()),
                ..extension_named("trgm")
            }],
            "the schema sales: add that one to schemas",
        ),
        (&[extension_named("cube"), extension_named("distance")], ""),
        (&[extension_named("plpgsql"), extension_named("fixed")], ""),
    ];
    for (extensions, words) in table {
        let wanted = DeclaredDatabase {
            extensions: extensions.to_vec(),
            ..orders()
        };
        let why = planned(&wanted, &with_owner()).refusal.unwrap_or_default();
        assert!(
            why.contains(words) && why.is_empty() == words.is_empty(),
            "{words}: {why}"
        );
    }
    let mut catalogue = with_owner();
    run(
        &mut catalogue,
        &planned(
            &DeclaredDatabase {
                extensions: vec![extension_named("trgm")],
                ..orders()
            },
            &with_owner(),
        ),
    );
    let moved = DeclaredDatabase {
        schemas: vec![DeclaredSchema {
            name: "sales".to_owned(),
            owner: None,
        }],
        extensions: vec![DeclaredExtension {
            schema: Some("sales".to_owned()),
            ..extension_named("trgm")
        }],
        ..orders()
    };
    let why = planned(&moved, &catalogue).refusal.unwrap_or_default();
    assert!(why.contains("is in the schema public"), "{why}");
    // One that is not named any more stays.
    assert_eq!(planned(&orders(), &catalogue), Plan::default());
}

#[test]
fn additive_gives_nobody_what_another_owns() {
    let mut catalogue = with_owner();
    catalogue.roles.insert("other".to_owned(), Role::default());
    let plan = planned(&orders(), &catalogue);
    run(&mut catalogue, &plan);
    let additive = DeclaredDatabase {
        owner: "other".to_owned(),
        policy: ManagementPolicy::Additive,
        ..orders()
    };
    let why = planned(&additive, &catalogue).refusal.unwrap_or_default();
    assert!(why.contains("belongs to owner"), "{why}");
    let sales = |owner: &str| DeclaredDatabase {
        owner: "owner".to_owned(),
        schemas: ["sales", "public"]
            .map(|name| DeclaredSchema {
                name: name.to_owned(),
                owner: Some(owner.to_owned()),
            })
            .into(),
        ..additive.clone()
    };
    // What PostgreSQL gives to the owner of each database is taken from nobody.
    let plan = planned(&sales("owner"), &catalogue);
    assert!(
        plan.steps.len() == 2 && plan.steps.iter().all(|step| !step.takes),
        "{plan:?}"
    );
    run(&mut catalogue, &plan);
    let why = planned(&sales("other"), &catalogue).refusal.unwrap_or_default();
    assert!(why.contains("schema sales belongs to owner"), "{why}");
}

#[test]
fn names_that_cannot_be_are_refused() {
    let long = "a".repeat(64);
    for name in ["", "postgres", "template0", "template1", "cdb_new_u1", "a\0b", &long] {
        let wanted = DeclaredDatabase {
            name: name.to_owned(),
            ..orders()
        };
        let why = planned(&wanted, &with_owner()).refusal.unwrap_or_default();
        assert!(why.contains("cannot be called"), "{name:?}: {why}");
    }
    for role in ["", "public", "none", "pg_monitor", "cdb_members", &long] {
        let wanted = DeclaredDatabase {
            owner: role.to_owned(),
            ..orders()
        };
        let why = planned(&wanted, &with_owner()).refusal.unwrap_or_default();
        assert!(why.contains("cannot own anything"), "{role:?}: {why}");
    }
    for schema in ["", "pg_catalog", "information_schema", &long] {
        let schemas = vec![DeclaredSchema {
            name: schema.to_owned(),
            owner: None,
        }];
        let wanted = DeclaredDatabase { schemas, ..orders() };
        let why = planned(&wanted, &with_owner()).refusal.unwrap_or_default();
        assert!(why.contains("nothing is declared in the schema"), "{schema:?}: {why}");
    }
    let wanted = DeclaredDatabase {
        connection_limit: Some(u32::MAX),
        ..orders()
    };
    assert!(
        planned(&wanted, &with_owner())
            .refusal
            .is_some_and(|why| why.contains("connection limit"))
    );
}

#[test]
fn what_was_left_of_making_a_database_goes_with_it() {
    let mut catalogue = with_owner();
    let plan = planned(&orders(), &catalogue);
    run_batch(&mut catalogue, &plan.batches()[0]);
    let declared = Declared::Database(orders());
    let oid = declared.oid(&catalogue).expect("what is begun is known");
    let going = DeclaredDatabase {
        drop: true,
        oid: Some(oid),
        ..orders()
    };
    let plan = planned(&going, &catalogue);
    run(&mut catalogue, &plan);
    assert_eq!(
        (&catalogue.closed, &catalogue.databases),
        (&BTreeMap::new(), &BTreeMap::new())
    );
}
