//! Databases.

use std::collections::BTreeMap;

use api::declared::{Adoption, ManagementPolicy as Policy};
use machine::access::{
    Access, Declared, DeclaredDatabase, DeclaredExtension, DeclaredSchema, Plan, Privilege, mark_of_database,
    temporary_name,
};
use tokio_postgres::Client;

use super::instance::{Instance, Scene};
use super::unprivileged::unprivileged;
use super::{BREAKS, Settled, prepared, ran_as_modelled, settle_one, user};

fn database(name: &str) -> DeclaredDatabase {
    DeclaredDatabase {
        uid: format!("uid of {name}"),
        name: name.to_owned(),
        owner: "app".to_owned(),
        locale: None,
        connection_limit: None,
        public_connect: true,
        extensions: Vec::new(),
        schemas: Vec::new(),
        adoption: Adoption::default(),
        policy: Policy::default(),
        drop: false,
        oid: None,
    }
}

fn extension(name: &str, version: Option<&str>) -> DeclaredExtension {
    DeclaredExtension {
        name: name.to_owned(),
        version: version.map(str::to_owned),
        schema: None,
    }
}

fn schema(name: &str, owner: Option<&str>) -> DeclaredSchema {
    DeclaredSchema {
        name: name.to_owned(),
        owner: owner.map(str::to_owned),
    }
}

async fn settle(instance: &mut Instance, declared: &DeclaredDatabase) -> Settled {
    settle_one(instance, Declared::Database(declared.clone())).await
}

async fn ask(session: &Client, query: &str) -> Option<String> {
    let row = session.query_opt(query, &[]).await.expect("an answer");
    row.and_then(|row| row.get(0))
}

const NAMES: [&str; 3] = ["d1", "D \"2\"", "d'3"];

fn declared(random: &mut fastrand::Rng) -> DeclaredDatabase {
    let mut pick = |all: &[&str]| all[random.usize(..all.len())].to_owned();
    let (name, owner) = (pick(&NAMES), pick(&["app", "other"]));
    let (of_schema, version) = (pick(&["app", "other"]), pick(&["1.5", "1.6"]));
    let schemas = match random.u8(..3) {
        0 => Vec::new(),
        1 => vec![schema("S 2", None), schema("public", Some(&of_schema))],
        _ => vec![schema("S 2", Some(&of_schema))],
    };
    let extensions = match random.u8(..3) {
        0 => vec![extension("pg_trgm", None), extension("citext", None)],
        1 => vec![extension("pg_trgm", Some(&version))],
        _ => Vec::new(),
    };
    DeclaredDatabase {
        connection_limit: random.bool().then(|| random.u32(..5)),
        public_connect: random.bool(),
        owner,
        schemas,
        extensions,
        adoption: [Adoption::Refuse, Adoption::KeepUnlisted, Adoption::Full][random.usize(..3)],
        policy: [Policy::Full, Policy::Full, Policy::Additive, Policy::Observe][random.usize(..4)],
        drop: random.u8(..8) == 0,
        ..database(&name)
    }
}

#[test]
fn what_is_planned_for_a_database_is_what_postgresql_does() {
    unprivileged(
        "databases::what_is_planned_for_a_database_is_what_postgresql_does",
        |place| async {
            let scene = Scene::new(place).await;
            let mut instance = prepared(&scene).await;
            let session = instance.session("postgres").await;
            let mut random = fastrand::Rng::with_seed(24);
            let (mut ran, mut refused) = (0, 0);
            // The content of each is looked at.
            let all = NAMES.map(|name| {
                Declared::Database(DeclaredDatabase {
                    extensions: vec![extension("pg_trgm", None)],
                    ..database(name)
                })
            });
            for _ in 0..40 {
                let wanted = declared(&mut random);
                if random.u8(..5) == 0 {
                    // Somebody makes it theirs, if it is there.
                    let name = wanted.name.replace('"', "\"\"");
                    let comment = format!("COMMENT ON DATABASE \"{name}\" IS 'of somebody'");
                    let _ = session.batch_execute(&comment).await;
                }
                // PostgreSQL has no way back to an older version of an extension.
                let is_back = |error: &str| error.contains("has no update path");
                let wanted = Declared::Database(wanted);
                let Some(plan) = ran_as_modelled(&mut instance, &all, wanted, is_back).await else {
                    continue;
                };
                ran += plan.steps.len();
                refused += usize::from(plan.refusal.is_some());
            }
            println!("{ran} statements, {refused} refusals");
            assert!(ran > 50 && refused > 2);
            drop(session);
            instance.stop(agent::postgres::StopMode::Fast).await;
        },
    );
}

#[test]
fn a_database_comes_and_goes_with_its_resource_whoever_dies_meanwhile() {
    unprivileged(
        "databases::a_database_comes_and_goes_with_its_resource_whoever_dies_meanwhile",
        |place| async {
            let scene = Scene::new(place).await;
            let mut instance = prepared(&scene).await;
            let session = instance.session("postgres").await;
            waits_for_its_owner(&mut instance).await;
            is_gone_on_with(&mut instance, &session).await;
            has_its_extensions(&mut instance).await;
            is_taken_over_on_request_only(&mut instance, &session).await;
            goes_without_sessions_only(&mut instance, &session).await;
            instance.stop(agent::postgres::StopMode::Fast).await;
        },
    );
}

/// A role and the database that it owns and has grants in are settled together.
async fn waits_for_its_owner(instance: &mut Instance) {
    let wanted = DeclaredDatabase {
        owner: "seller".to_owned(),
        schemas: vec![schema("sales", None)],
        public_connect: false,
        ..database("shop")
    };
    let waits = settle(instance, &wanted).await;
    assert_eq!(
        (&waits.error, &waits.left.refusal, &waits.left.steps),
        (&None, &None, &Vec::new())
    );
    assert!(waits.left.waits.is_some_and(|why| why.contains("no role seller")));
    let grants = vec![Access {
        database: "shop".to_owned(),
        schemas: vec!["sales".to_owned()],
        permissions: [Privilege::Select].into(),
        future: true,
    }];
    let mut reader = user("reader");
    reader.grants = grants;
    let all = [
        Declared::Database(wanted),
        Declared::Role(reader),
        Declared::Role(user("seller")),
    ];
    for settled in instance.sql.settle_access(&all).await.expect("settled") {
        assert_eq!(
            (settled.error, settled.left),
            (None, Plan::default()),
            "{}",
            settled.uid
        );
        assert!(settled.oid.is_some());
    }
    let may = "SELECT string_agg(r || has_database_privilege(r, 'shop', 'CONNECT')::text, ' ') \
               FROM unnest(ARRAY['seller', 'reader', 'other']) r";
    assert_eq!(instance.text(may).await, "sellertrue readertrue otherfalse");
}

/// The agent dies between CREATE DATABASE and the comment.
async fn is_gone_on_with(instance: &mut Instance, session: &Client) {
    let wanted = database("half");
    let made = format!(
        "CREATE DATABASE \"{}\" OWNER other TEMPLATE template0 ENCODING 'UTF8' ALLOW_CONNECTIONS false",
        temporary_name(&wanted.uid)
    );
    session.batch_execute(&made).await.expect("made");
    let oid = "SELECT oid::int8::text FROM pg_database WHERE datname LIKE 'cdb_new_%' OR datname = 'half'";
    let begun = ask(session, oid).await;
    let settled = settle(instance, &wanted).await;
    assert_eq!((settled.error, settled.left), (None, Plan::default()));
    assert_eq!(settled.oid.map(|oid| oid.to_string()), begun);
    assert_eq!(ask(session, oid).await, begun, "no other one is made");
    let says = "SELECT pg_get_userbyid(datdba) || ' ' || datallowconn || ' ' || shobj_description(oid, 'pg_database')
        FROM pg_database WHERE datname = 'half'";
    let expected = format!("app true {}", mark_of_database(&wanted.uid));
    assert_eq!(ask(session, says).await, Some(expected));
    // One of that name has come meanwhile: what was begun goes, and nobody's is taken.
    let other = database("taken");
    let made = made.replace(&temporary_name(&wanted.uid), &temporary_name(&other.uid));
    session.batch_execute(&made).await.expect("made");
    session.batch_execute("CREATE DATABASE taken").await.expect("made");
    let settled = settle(instance, &other).await;
    assert!(
        settled
            .left
            .refusal
            .is_some_and(|why| why.contains("made by somebody else"))
    );
    let going = DeclaredDatabase {
        drop: true,
        ..other.clone()
    };
    // What was begun for it goes, and the other one stays.
    let gone = settle(instance, &going).await;
    assert_eq!((gone.error, gone.plan.steps.len(), gone.oid), (None, 1, None));
    session.batch_execute(&made).await.expect("made");
    let taken = DeclaredDatabase {
        adoption: Adoption::Full,
        ..other
    };
    let settled = settle(instance, &taken).await;
    assert_eq!((settled.error, settled.left), (None, Plan::default()));
    assert_eq!(
        ask(session, "SELECT 'left' FROM pg_database WHERE datname LIKE 'cdb_new_%'").await,
        None
    );
}

async fn has_its_extensions(instance: &mut Instance) {
    let mut wanted = DeclaredDatabase {
        schemas: vec![schema("ext", None)],
        extensions: vec![extension("pg_trgm", Some("1.5")), extension("plpgsql", None)],
        ..database("extended")
    };
    wanted.extensions[0].schema = Some("ext".to_owned());
    let settled = settle(instance, &wanted).await;
    assert_eq!((settled.error, settled.left), (None, Plan::default()));
    let session = instance.session("extended").await;
    let says = "SELECT string_agg(extname || ' ' || extversion || ' ' || extnamespace::regnamespace, '; ' ORDER BY 1)
        FROM pg_extension";
    let has = ask(&session, says).await.expect("extensions");
    assert!(has.contains("pg_trgm 1.5 ext"), "{has}");
    wanted.extensions[0].version = Some("1.6".to_owned());
    assert_eq!(settle(instance, &wanted).await.left, Plan::default());
    let has = ask(&session, says).await.expect("extensions");
    assert!(has.contains("pg_trgm 1.6 ext"), "{has}");
    for (bad, words) in [
        (extension("pg_nothing", None), "pg_nothing is not available"),
        (extension("citext", Some("99")), "citext has no version 99"),
        (extension("earthdistance", None), "name cube before earthdistance"),
    ] {
        let mut wanted = wanted.clone();
        wanted.extensions.push(bad);
        let why = settle(instance, &wanted).await.left.refusal.expect("a refusal");
        assert!(why.contains(words), "{why}");
    }
    // What is not named any more stays, with its schema.
    (wanted.extensions, wanted.schemas) = (Vec::new(), Vec::new());
    assert_eq!(settle(instance, &wanted).await.plan, Plan::default());
    assert!(ask(&session, says).await.is_some_and(|has| has.contains("pg_trgm")));
}

async fn is_taken_over_on_request_only(instance: &mut Instance, session: &Client) {
    // The application's own one.
    let application = DeclaredDatabase {
        schemas: vec![schema("public", Some("app"))],
        ..database(super::DATABASE)
    };
    let refused = settle(instance, &application).await.left.refusal.expect("a refusal");
    assert!(refused.contains("spec.adoption"), "{refused}");
    let taken = DeclaredDatabase {
        adoption: Adoption::Full,
        ..application
    };
    assert_eq!(settle(instance, &taken).await.left, Plan::default());
    let tables = instance.session(super::DATABASE).await;
    assert_eq!(
        ask(&tables, "SELECT count(*)::text FROM t1").await.as_deref(),
        Some("0")
    );
    let other = "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0";
    session.batch_execute(other).await.expect("made");
    let latin = DeclaredDatabase {
        adoption: Adoption::Full,
        ..database("latin")
    };
    let why = settle(instance, &latin).await.left.refusal.expect("a refusal");
    assert!(why.contains("the encoding LATIN1"), "{why}");
}

async fn goes_without_sessions_only(instance: &mut Instance, session: &Client) {
    let wanted = database("going");
    let oid = settle(instance, &wanted).await.oid;
    let going = DeclaredDatabase {
        drop: true,
        oid,
        ..wanted.clone()
    };
    let used = instance.session("going").await;
    let refused = settle(instance, &going).await;
    let why = refused.error.expect("an error");
    assert!(why.contains("database going has a session"), "{why}");
    assert_eq!((refused.oid, refused.left.steps.len()), (oid, 1));
    assert_eq!(ask(&used, "SELECT 'goes on'").await.as_deref(), Some("goes on"));
    drop(used);
    let gone = settle(instance, &going).await;
    assert_eq!((gone.error, gone.left, gone.oid), (None, Plan::default(), None));
    assert_eq!(
        settle(instance, &going).await.plan,
        Plan::default(),
        "nothing is left to do"
    );
    // One that is made again by hand, from a dump with the comment, is another one.
    let again = format!(
        "CREATE DATABASE going; COMMENT ON DATABASE going IS '{}'",
        mark_of_database(&wanted.uid)
    );
    for statement in again.split("; ") {
        session.batch_execute(statement).await.expect("made");
    }
    let why = settle(instance, &going).await.left.refusal.expect("a refusal");
    assert!(why.contains("is another one"), "{why}");
    session
        .batch_execute("COMMENT ON DATABASE going IS NULL")
        .await
        .expect("changed");
    let why = settle(instance, &DeclaredDatabase { oid: None, ..going })
        .await
        .left
        .refusal;
    assert!(why.is_some_and(|why| why.contains("does not say any more")));
    assert!(
        ask(session, "SELECT 'there' FROM pg_database WHERE datname = 'going'")
            .await
            .is_some()
    );
}

#[test]
fn names_of_databases_break_out_of_nothing() {
    unprivileged("databases::names_of_databases_break_out_of_nothing", |place| async {
        let scene = Scene::new(place).await;
        let mut instance = prepared(&scene).await;
        let mut wanted: BTreeMap<String, DeclaredDatabase> = BTreeMap::new();
        for (number, name) in BREAKS.iter().enumerate() {
            let found = DeclaredDatabase {
                uid: format!("u{number}\"'"),
                owner: (*name).to_owned(),
                schemas: vec![schema(name, Some(name))],
                connection_limit: Some(3),
                public_connect: false,
                ..database(name)
            };
            wanted.insert((*name).to_owned(), found);
        }
        let roles = BREAKS.iter().map(|name| Declared::Role(user(name)));
        let all: Vec<Declared> = roles.chain(wanted.values().cloned().map(Declared::Database)).collect();
        let before = instance.sql.catalogue(&all).await.expect("a catalogue");
        for settled in instance.sql.settle_access(&all).await.expect("settled") {
            assert_eq!(
                (settled.error, settled.left),
                (None, Plan::default()),
                "{}",
                settled.uid
            );
        }
        let mut after = instance.sql.catalogue(&all).await.expect("a catalogue");
        for (name, wanted) in &wanted {
            let found = after.databases.remove(name).expect("its database");
            assert_eq!(
                (&found.owner, found.comment),
                (name, Some(mark_of_database(&wanted.uid)))
            );
            assert_eq!(found.schemas[name].owner, *name);
        }
        assert_eq!((after.databases, after.closed), (before.databases, before.closed));
        for name in BREAKS {
            for broken in [extension(name, None), extension("pg_trgm", Some(name))] {
                let wanted = DeclaredDatabase {
                    extensions: vec![broken],
                    ..database("d1")
                };
                let why = settle(&mut instance, &wanted).await.left.refusal;
                assert!(why.is_some_and(|why| why.contains(name)), "{name}");
            }
            // PostgreSQL knows no such locale, and runs nothing of it.
            let wanted = DeclaredDatabase {
                locale: Some(name.to_owned()),
                ..database("d2")
            };
            let error = settle(&mut instance, &wanted).await.error.expect("an error");
            assert!(error.contains("locale"), "{error}");
        }
        let going = wanted.values().map(|wanted| {
            Declared::Database(DeclaredDatabase {
                drop: true,
                ..wanted.clone()
            })
        });
        let going: Vec<Declared> = going.collect();
        for settled in instance.sql.settle_access(&going).await.expect("settled") {
            assert_eq!(
                (settled.error, settled.left, settled.oid),
                (None, Plan::default(), None)
            );
        }
        instance.stop(agent::postgres::StopMode::Fast).await;
    });
}
