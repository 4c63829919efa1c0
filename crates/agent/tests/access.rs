//! Roles, databases and grants on a real PostgreSQL, which also holds the model of its catalogue to what it does.

#[path = "access/databases.rs"]
mod databases;
#[path = "access/poolers.rs"]
mod poolers;
#[path = "access/roles.rs"]
mod roles;

#[path = "support/certificates.rs"]
#[allow(dead_code)]
mod certificates;
#[path = "support/instance.rs"]
#[allow(dead_code)]
mod instance;
#[path = "support/unprivileged.rs"]
#[allow(dead_code)]
mod unprivileged;

use std::collections::{BTreeMap, BTreeSet};

use agent::postgres::Settled;
use api::user::{Adoption, ManagementPolicy as Policy};
use chrono::DateTime;
use instance::{Instance, Scene};
use machine::access::{
    Access, Attributes, Catalogue, Declared, DeclaredRole, Going, Membership, Password, Plan, Privilege, Secret, mark,
};
use unprivileged::unprivileged;

const DATABASE: &str = "Orders \"1\"";
const OF_TABLES: [Privilege; 4] = [
    Privilege::Select,
    Privilege::Insert,
    Privilege::Update,
    Privilege::Delete,
];
/// What is in the database. `app` owns it.
const CONTENT: &str = "SET ROLE app;
    CREATE SCHEMA \"S 2\";
    CREATE TABLE t1 (id serial, v text);
    CREATE TABLE \"S 2\".\"t '2\" (v text);
    CREATE VIEW v1 AS SELECT * FROM t1;
    RESET ROLE;
    CREATE TABLE of_postgres (v text);
    CREATE ROLE other LOGIN;
    CREATE ROLE readers;
    GRANT SELECT, TRIGGER ON t1, of_postgres TO other;
    GRANT SELECT ON t1 TO PUBLIC;
    ALTER DEFAULT PRIVILEGES FOR ROLE app IN SCHEMA public GRANT SELECT ON TABLES TO other";

fn user(name: &str) -> DeclaredRole {
    DeclaredRole {
        uid: format!("uid of {name}"),
        name: name.to_owned(),
        attributes: Attributes {
            login: true,
            ..Attributes::default()
        },
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

fn access(schemas: &[&str], permissions: &[Privilege]) -> Access {
    Access {
        database: DATABASE.to_owned(),
        schemas: schemas.iter().map(ToString::to_string).collect(),
        permissions: permissions.iter().copied().collect(),
        future: true,
    }
}

async fn prepared(scene: &Scene) -> Instance {
    let mut instance = scene.instance(0);
    instance.initdb().await.expect("a database");
    instance.start_primary().await;
    let session = instance.session(DATABASE).await;
    session.batch_execute(CONTENT).await.expect("content");
    instance
}

async fn settle(instance: &mut Instance, declared: &DeclaredRole) -> Settled {
    settle_one(instance, Declared::Role(declared.clone())).await
}

async fn settle_one(instance: &mut Instance, declared: Declared) -> Settled {
    let settled = instance.sql.settle_access(&[declared]).await;
    settled.expect("settled").pop().expect("one")
}

/// Settles it, and asserts that PostgreSQL then has what the model has in which the same plan ran, and that nothing is missing.
/// `all` says of which databases the content is compared. Returns the plan; `None` after an error that may be.
async fn ran_as_modelled(
    instance: &mut Instance,
    all: &[Declared],
    wanted: Declared,
    may_be: impl Fn(&str) -> bool,
) -> Option<Plan> {
    let mut model = instance.sql.catalogue(all).await.expect("a catalogue");
    let settled = settle_one(instance, wanted.clone()).await;
    if settled.error.as_deref().is_some_and(may_be) {
        return None;
    }
    assert_eq!(settled.error, None, "{wanted:?}");
    let after = instance.sql.catalogue(all).await.expect("a catalogue");
    if wanted.policy() != Policy::Observe {
        for step in &settled.plan.steps {
            let database = step.database.as_deref().unwrap_or("");
            model.run(database, &step.statement).expect("a statement");
        }
        let again = settle_one(instance, wanted.clone()).await.plan;
        assert_eq!(again.steps, [], "{wanted:?}");
    }
    assert_eq!(plain(after), plain(model), "{wanted:?}, {:?}", settled.plan);
    Some(settled.plan)
}

fn roles(all: &[DeclaredRole]) -> Vec<Declared> {
    all.iter().cloned().map(Declared::Role).collect()
}

/// Without what is not modelled, and without rows that say nothing.
fn plain(mut catalogue: Catalogue) -> Catalogue {
    catalogue.now = DateTime::UNIX_EPOCH;
    for role in catalogue.roles.values_mut() {
        (role.oid, role.sessions) = (0, 0);
        role.owns_in.clear();
    }
    for database in catalogue.databases.values_mut() {
        (database.oid, database.locale) = (0, String::new());
        database.acl.retain(|_, granted| !granted.is_empty());
        for schema in database.schemas.values_mut() {
            schema.acl.retain(|_, granted| !granted.is_empty());
            for relation in schema.relations.values_mut() {
                relation.acl.retain(|_, granted| !granted.is_empty());
            }
            for kinds in schema.defaults.values_mut() {
                kinds
                    .values_mut()
                    .for_each(|acl| acl.retain(|_, granted| !granted.is_empty()));
                kinds.retain(|_, acl| !acl.is_empty());
            }
            schema.defaults.retain(|_, kinds| !kinds.is_empty());
        }
    }
    catalogue
}

fn any_of<T: Copy>(random: &mut fastrand::Rng, all: &[T]) -> Vec<T> {
    all.iter().copied().filter(|_| random.bool()).collect()
}

/// Before PostgreSQL 16 there is ADMIN only.
fn membership(random: &mut fastrand::Rng, major: u16) -> Membership {
    Membership {
        admin: random.bool(),
        inherit: major < 16 || random.bool(),
        set: major < 16 || random.bool(),
    }
}

fn declared(random: &mut fastrand::Rng, major: u16) -> DeclaredRole {
    let groups = any_of(random, &["readers", "pg_monitor", "other"]);
    let member_of = groups
        .into_iter()
        .map(|group| (group.to_owned(), membership(random, major)))
        .collect();
    let name = ["other", "u1", "U 2", "u\"3", "app"][random.usize(..5)];
    let grants = (0..random.usize(..3)).map(|_| Access {
        future: random.bool(),
        ..access(&any_of(random, &["public", "S 2"]), &any_of(random, &OF_TABLES))
    });
    let grants = grants.collect();
    let pick = random.usize(..3);
    DeclaredRole {
        attributes: Attributes {
            login: random.bool(),
            connection_limit: random.bool().then(|| random.u32(..5)),
            valid_until: random.bool().then(|| "2030-01-02T03:04:05Z".parse().expect("a time")),
        },
        password: [
            Password::None,
            Password::External,
            Password::Verifier(Secret(VERIFIER.to_owned())),
        ][pick]
            .clone(),
        grants,
        member_of,
        end_sessions: random.bool(),
        certificate: random.bool(),
        adoption: [Adoption::Refuse, Adoption::KeepUnlisted, Adoption::Full][random.usize(..3)],
        policy: [Policy::Full, Policy::Full, Policy::Additive, Policy::Observe][random.usize(..4)],
        ..user(name)
    }
}

/// Of the password `secret`.
const VERIFIER: &str = "SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2FsdA==$aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaA=:\
    bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbA=";

#[test]
fn what_is_planned_is_what_postgresql_does() {
    unprivileged("what_is_planned_is_what_postgresql_does", |place| async {
        let scene = Scene::new(place).await;
        let mut instance = prepared(&scene).await;
        let mut random = fastrand::Rng::with_seed(24);
        let (mut ran, mut refused) = (0, 0);
        let session = instance.session("postgres").await;
        for _ in 0..60 {
            let wanted = declared(&mut random, scene.tools.major());
            if random.u8(..4) == 0 {
                // Somebody makes it theirs, if it is there.
                let name = wanted.name.replace('"', "\"\"");
                let _ = session
                    .batch_execute(&format!("COMMENT ON ROLE \"{name}\" IS 'of somebody'"))
                    .await;
            }
            // The content of the database is looked at even if nothing is granted there any more.
            let reads_all = DeclaredRole {
                grants: vec![access(&[], &[])],
                ..wanted.clone()
            };
            let all = roles(&[reads_all]);
            let plan = ran_as_modelled(&mut instance, &all, Declared::Role(wanted), |_| false).await;
            let plan = plan.expect("no error may be");
            ran += plan.steps.len();
            refused += usize::from(plan.refusal.is_some());
        }
        println!("{ran} statements, {refused} refusals");
        assert!(ran > 100 && refused > 2);
        instance.stop(agent::postgres::StopMode::Fast).await;
    });
}

#[test]
fn the_shortest_user_can_do_what_it_says_and_nothing_else() {
    unprivileged(
        "the_shortest_user_can_do_what_it_says_and_nothing_else",
        |place| async {
            let scene = Scene::new(place).await;
            let mut instance = prepared(&scene).await;
            let wanted = DeclaredRole {
                grants: vec![access(
                    &["public"],
                    &[Privilege::Select, Privilege::Insert, Privilege::Update],
                )],
                ..user("orders_rw")
            };
            let settled = settle(&mut instance, &wanted).await;
            assert_eq!((settled.error, settled.plan.refusal), (None, None));
            assert!(settled.oid.is_some_and(|oid| oid >= 16_384));

            let session = instance.session(DATABASE).await;
            let says = "SELECT string_agg(table_name || ' ' || privileges, '; ' ORDER BY table_name) FROM (
            SELECT table_name, string_agg(privilege_type, ',' ORDER BY privilege_type) AS privileges
              FROM information_schema.role_table_grants WHERE grantee = 'orders_rw' GROUP BY table_name) g";
            let says: String = session.query_one(says, &[]).await.expect("grants").get(0);
            assert_eq!(
                says,
                "entry INSERT,SELECT,UPDATE; of_postgres INSERT,SELECT,UPDATE; t1 INSERT,SELECT,UPDATE; v1 INSERT,SELECT,UPDATE"
            );
            let as_user = async |statement: &str| {
                let script = format!("SET SESSION AUTHORIZATION orders_rw; {statement}; RESET SESSION AUTHORIZATION");
                let done = session.batch_execute(&script).await;
                session
                    .batch_execute("RESET SESSION AUTHORIZATION")
                    .await
                    .expect("reset");
                done.map_err(|error| {
                    error
                        .as_db_error()
                        .map_or(String::new(), |error| error.message().to_owned())
                })
            };
            let later = "SET ROLE app; CREATE TABLE later (id serial); RESET ROLE";
            session.batch_execute(later).await.expect("a table");
            for may in [
                "INSERT INTO t1 (v) VALUES ('a')",
                "UPDATE t1 SET v = 'b'",
                "SELECT * FROM v1",
                "INSERT INTO later DEFAULT VALUES",
            ] {
                assert_eq!(as_user(may).await, Ok(()), "{may}");
            }
            for may_not in [
                "DELETE FROM t1",
                "TRUNCATE t1",
                "SELECT * FROM \"S 2\".\"t '2\"",
                "CREATE TABLE mine (v int)",
                "CREATE ROLE another",
                "ALTER ROLE orders_rw SUPERUSER",
                "SELECT pg_read_file('/etc/hostname')",
            ] {
                let refused = as_user(may_not).await.expect_err(may_not);
                assert!(
                    refused.contains("permission denied") || refused.contains("must be"),
                    "{may_not}: {refused}"
                );
            }

            // Drift is mended; what others have granted is theirs.
            let drift =
                "GRANT DELETE ON t1 TO orders_rw; REVOKE SELECT ON t1 FROM orders_rw; ALTER ROLE orders_rw CREATEROLE";
            session.batch_execute(drift).await.expect("drift");
            let plan = settle(&mut instance, &wanted).await.plan;
            assert_eq!(plan.steps.len(), 3, "{plan:?}");
            assert_eq!(
                as_user("DELETE FROM t1").await,
                Err("permission denied for table t1".to_owned())
            );

            // Of two of one name the first has it; what was given by a group is not taken over.
            let second = DeclaredRole {
                uid: "another".to_owned(),
                adoption: Adoption::Full,
                ..wanted.clone()
            };
            let both = instance
                .sql
                .settle_access(&roles(&[wanted.clone(), second.clone()]))
                .await
                .expect("settled");
            assert_eq!((&both[0].error, &both[0].plan.refusal), (&None, &None));
            assert!(
                both[1]
                    .plan
                    .refusal
                    .as_ref()
                    .is_some_and(|why| why.contains("uid of orders_rw")),
                "{both:?}"
            );
            let member = "CREATE ROLE by_hand; GRANT pg_execute_server_program TO by_hand; ALTER ROLE by_hand VALID UNTIL '-infinity'";
            session.batch_execute(member).await.expect("a role");
            let taken = DeclaredRole {
                name: "by_hand".to_owned(),
                ..second
            };
            let refused = settle(&mut instance, &taken).await.plan.refusal.expect("a refusal");
            assert!(refused.contains("a member of"), "{refused}");

            // A role of that name that is made by hand is another one.
            session
                .batch_execute("DROP OWNED BY orders_rw; DROP ROLE orders_rw; CREATE ROLE orders_rw")
                .await
                .expect("made");
            let settled = settle(&mut instance, &wanted).await;
            assert!(
                settled
                    .plan
                    .refusal
                    .expect("a refusal")
                    .contains("made by somebody else")
            );
            instance.stop(agent::postgres::StopMode::Fast).await;
        },
    );
}

#[test]
fn a_role_goes_with_its_user_unless_it_owns_something_and_a_lost_database_stops_nobody_else() {
    unprivileged(
        "a_role_goes_with_its_user_unless_it_owns_something_and_a_lost_database_stops_nobody_else",
        |place| async {
            let scene = Scene::new(place).await;
            let mut instance = prepared(&scene).await;
            let session = instance.session(DATABASE).await;
            let wanted = DeclaredRole {
                grants: vec![access(&["public", "S 2"], &OF_TABLES)],
                ..user("orders_rw")
            };
            let going = DeclaredRole {
                going: Some(Going::Drop { reassign_to: None }),
                ..wanted.clone()
            };
            let exists = async || {
                let found = session
                    .query("SELECT FROM pg_roles WHERE rolname = 'orders_rw'", &[])
                    .await;
                !found.expect("roles").is_empty()
            };
            // An event trigger would run as a superuser.
            let trigger =
                "CREATE FUNCTION fires() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'it fires'; END $$;
                CREATE EVENT TRIGGER fires ON ddl_command_end WHEN TAG IN ('GRANT', 'REVOKE') EXECUTE FUNCTION fires()";
            session.batch_execute(trigger).await.expect("a trigger");
            let by_hand = session.batch_execute("GRANT SELECT ON t1 TO other").await;
            assert!(by_hand.is_err(), "it fires for others");
            assert_eq!(settle(&mut instance, &wanted).await.error, None);
            session
                .batch_execute("DROP EVENT TRIGGER fires")
                .await
                .expect("dropped");
            let owns = "CREATE TABLE of_user (v int); ALTER TABLE of_user OWNER TO orders_rw";
            session.batch_execute(owns).await.expect("a table");
            let refused = settle(&mut instance, &going).await;
            let why = refused.error.expect("an error");
            assert!(why.contains("cannot be dropped") && why.contains("depend"), "{why}");
            assert_eq!(
                refused.left.steps.len(),
                1,
                "what it was granted is taken: {:?}",
                refused.left
            );
            assert!(exists().await);
            let gives = "ALTER TABLE of_user OWNER TO app";
            session.batch_execute(gives).await.expect("given");
            let gone = settle(&mut instance, &going).await;
            assert_eq!((gone.error, gone.left, gone.oid), (None, Plan::default(), None));
            assert!(!exists().await);
            assert_eq!(
                settle(&mut instance, &going).await.plan,
                Plan::default(),
                "nothing is left to do"
            );

            // Somebody else's role of that name stays.
            session.batch_execute("CREATE ROLE orders_rw").await.expect("a role");
            let foreign = settle(&mut instance, &going).await;
            assert!(
                foreign
                    .left
                    .refusal
                    .is_some_and(|why| why.contains("made for this user"))
            );
            assert_eq!((foreign.left.steps, foreign.oid), (Vec::new(), None));
            assert!(exists().await);

            // Whoever asks for a database whose files are lost is told, and nobody else has to wait.
            session.batch_execute("CREATE DATABASE lost").await.expect("a database");
            let oid = instance
                .text("SELECT oid::text FROM pg_database WHERE datname = 'lost'")
                .await;
            let map = instance.volume.pgdata().join("base").join(oid).join("pg_filenode.map");
            std::fs::remove_file(map).expect("a file");
            let of = |database: &str| Access {
                database: database.to_owned(),
                ..access(&["public"], &OF_TABLES)
            };
            let all = [
                DeclaredRole {
                    grants: vec![of("lost")],
                    ..user("first")
                },
                DeclaredRole {
                    password: Password::Verifier(Secret(VERIFIER.to_owned())),
                    policy: Policy::Observe,
                    ..user("second")
                },
                DeclaredRole {
                    grants: vec![of("nowhere")],
                    ..user("third")
                },
            ];
            let settled = instance.sql.settle_access(&roles(&all)).await.expect("settled");
            for (settled, words) in [
                (&settled[0], "database lost cannot be read"),
                (&settled[2], "there is no database nowhere"),
            ] {
                let why = settled.left.refusal.clone().or_else(|| settled.left.waits.clone());
                let why = why.expect("a reason");
                assert!(why.contains(words), "{why}");
            }
            assert_eq!((&settled[1].error, settled[1].left.steps.len()), (&None, 3));
            let told: Vec<String> = settled[1]
                .left
                .steps
                .iter()
                .map(|step| agent::postgres::told(step).sql)
                .collect();
            assert!(told[1].ends_with("PASSWORD '…'"), "{told:?}");
            assert!(!told.concat().contains("SCRAM"), "{told:?}");
            instance.stop(agent::postgres::StopMode::Fast).await;
        },
    );
}

/// Each stands for a way to break out of where a name is put.
const BREAKS: [&str; 16] = [
    "'; DROP TABLE t1; --",
    "\"; DROP TABLE t1; --",
    "\\'; DROP TABLE t1; --",
    "\\\"; DROP TABLE t1; --",
    "$$; DROP TABLE t1; $$",
    "/* */ SUPERUSER",
    " SUPERUSER",
    "\" SUPERUSER; --",
    "a\"\"b",
    "a''b",
    "%s%n%(x)s{0}",
    "\n; DROP TABLE t1",
    "\u{1b}[31m",
    "\u{202e}resu",
    "E'\\x27; DROP TABLE t1'",
    "U&\"\\0022\"; DROP TABLE t1",
];

#[test]
fn names_break_out_of_nothing() {
    unprivileged("names_break_out_of_nothing", |place| async {
        let scene = Scene::new(place).await;
        let mut instance = prepared(&scene).await;
        let begins = ["", "x", "ü", "S"];
        let names: Vec<String> = begins
            .iter()
            .flat_map(|begin| BREAKS.map(|text| format!("{begin}{text}")))
            .collect();
        assert!(names.len() >= 60);
        let wanted: Vec<DeclaredRole> = names
            .iter()
            .map(|name| DeclaredRole {
                password: Password::Verifier(Secret(VERIFIER.to_owned())),
                grants: vec![access(&["public", "S 2"], &OF_TABLES)],
                ..user(name)
            })
            .collect();
        let wanted = roles(&wanted);
        let mut before = instance.sql.catalogue(&wanted).await.expect("a catalogue");
        for settled in instance.sql.settle_access(&wanted).await.expect("settled") {
            assert_eq!((settled.error, settled.plan.refusal), (None, None), "{}", settled.uid);
        }
        let mut after = instance.sql.catalogue(&wanted).await.expect("a catalogue");
        for name in &names {
            let role = after.roles.remove(name).expect("its role");
            assert!(
                !role.is_mighty && role.comment == Some(mark(&format!("uid of {name}"))),
                "{name}"
            );
        }
        // Sessions of the agent may be ending.
        for role in before.roles.values_mut().chain(after.roles.values_mut()) {
            role.sessions = 0;
        }
        assert_eq!(after.roles, before.roles, "no other role has come or changed");
        let tables = |catalogue: &Catalogue| {
            let schemas = &catalogue.databases[DATABASE].schemas;
            let all = schemas.iter().flat_map(|(schema, content)| {
                content
                    .relations
                    .keys()
                    .map(move |relation| (schema.clone(), relation.clone()))
            });
            all.collect::<BTreeSet<_>>()
        };
        assert_eq!(tables(&after), tables(&before));
        // In names of databases and schemas they are looked up, and never run.
        for name in &names {
            for broken in [
                Access {
                    database: name.clone(),
                    ..access(&["public"], &OF_TABLES)
                },
                access(&[name.as_str()], &OF_TABLES),
            ] {
                let wanted = DeclaredRole {
                    grants: vec![broken],
                    ..user("u1")
                };
                let plan: Plan = settle(&mut instance, &wanted).await.plan;
                assert!(plan.waits.is_some_and(|why| why.contains(name.as_str())), "{name}");
            }
        }
        instance.stop(agent::postgres::StopMode::Fast).await;
    });
}
