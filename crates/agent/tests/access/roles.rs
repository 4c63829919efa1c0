//! Memberships, sessions, and what becomes of a role whose user goes.

use agent::process::ProcessError;
use machine::access::{Attributes, Declared, DeclaredRole, Going, Membership, Password, Plan, Secret, Statement};
use tokio_postgres::{Client, NoTls};

use super::instance::{Instance, Scene};
use super::unprivileged::unprivileged;
use super::{DATABASE, OF_TABLES, Settled, access, prepared, settle, settle_one, user};

const PLAIN: Membership = Membership {
    admin: false,
    inherit: true,
    set: true,
};

fn member(name: &str, groups: &[(&str, Membership)]) -> DeclaredRole {
    let groups = groups
        .iter()
        .map(|(group, membership)| ((*group).to_owned(), *membership));
    DeclaredRole {
        member_of: groups.collect(),
        ..user(name)
    }
}

fn is_done(settled: &Settled) {
    assert_eq!(
        (&settled.error, &settled.left),
        (&None, &Plan::default()),
        "{settled:?}"
    );
}

/// Each role that `name` is a member of, with ADMIN, INHERIT and SET, and who has granted that.
async fn memberships(instance: &Instance, name: &str) -> String {
    instance
        .text(&format!(
            "SELECT coalesce(string_agg(concat_ws(' ', m.roleid::regrole, 'a=' || m.admin_option, 'i=' || (to_jsonb(m)->>'inherit_option'),
                    's=' || (to_jsonb(m)->>'set_option'), 'by ' || m.grantor::regrole), ', ' ORDER BY m.roleid::regrole::text), '')
               FROM pg_auth_members m WHERE m.member = '{name}'::regrole"
        ))
        .await
}

#[test]
fn a_member_can_do_what_its_roles_can_and_nothing_mightier_is_given_to_it() {
    unprivileged(
        "roles::a_member_can_do_what_its_roles_can_and_nothing_mightier_is_given_to_it",
        |place| async {
            let scene = Scene::new(place).await;
            let mut instance = prepared(&scene).await;
            let major = scene.tools.major();
            let session = instance.session(DATABASE).await;
            let admin = Membership { admin: true, ..PLAIN };
            let wanted = member("worker", &[("pg_monitor", PLAIN), ("readers", admin)]);
            is_done(&settle(&mut instance, &wanted).await);
            let expected = match major {
                15 => "pg_monitor a=false by postgres, readers a=true by postgres",
                _ => "pg_monitor a=false i=true s=true by postgres, readers a=true i=true s=true by postgres",
            };
            assert_eq!(memberships(&instance, "worker").await, expected);
            let as_worker = async |statement: &str| {
                let script = format!("SET SESSION AUTHORIZATION worker; {statement}");
                let done = session.batch_execute(&script).await;
                let reset = "RESET SESSION AUTHORIZATION";
                session.batch_execute(reset).await.expect("reset");
                done.map_err(|error| error.as_db_error().map(|error| error.message().to_owned()))
            };
            session
                .batch_execute("CREATE TABLE read (v text); GRANT SELECT ON read TO readers")
                .await
                .expect("granted");
            for may in [
                "SELECT pg_ls_waldir()",
                "SELECT * FROM read",
                "GRANT readers TO other",
                "SET ROLE readers",
            ] {
                assert_eq!(as_worker(may).await, Ok(()), "{may}");
            }
            // From 16 on PostgreSQL revokes no membership that the role has granted on.
            let without = member("worker", &[("pg_monitor", PLAIN)]);
            let settled = settle(&mut instance, &without).await;
            if major >= 16 {
                let why = settled.error.expect("an error");
                assert!(why.contains("dependent privileges exist"), "{why}");
                let revoke = "REVOKE readers FROM other GRANTED BY worker";
                session.batch_execute(revoke).await.expect("revoked");
                is_done(&settle(&mut instance, &without).await);
            } else {
                is_done(&settled);
            }
            // ADMIN alone is taken, too.
            is_done(&settle(&mut instance, &wanted).await);
            is_done(&settle(&mut instance, &member("worker", &[("readers", PLAIN)])).await);
            assert!(as_worker("GRANT readers TO other").await.is_err());
            assert!(as_worker("SELECT pg_ls_waldir()").await.is_err());

            // INHERIT and SET of one membership.
            let neither = Membership {
                inherit: false,
                set: false,
                ..PLAIN
            };
            let settled = settle(&mut instance, &member("worker", &[("readers", neither)])).await;
            if major >= 16 {
                is_done(&settled);
                assert!(as_worker("SELECT * FROM read").await.is_err());
                assert!(as_worker("SET ROLE readers").await.is_err());
            } else {
                let why = settled.left.refusal.expect("a refusal");
                assert!(why.contains("PostgreSQL before 16"), "{why}");
            }
            what_others_grant_is_theirs(&mut instance, &session, major).await;
            no_way_leads_to_the_server(&mut instance, &session).await;
            instance.stop(agent::postgres::StopMode::Fast).await;
        },
    );
}

/// From PostgreSQL 16 on each grantor grants for itself, and CREATEROLE gives its owner what it makes.
async fn what_others_grant_is_theirs(instance: &mut Instance, session: &Client, major: u16) {
    let script = "CREATE ROLE boss CREATEROLE; GRANT pg_stat_scan_tables TO boss WITH ADMIN OPTION;
        GRANT pg_checkpoint TO worker; GRANT pg_read_all_data TO worker;
        SET SESSION AUTHORIZATION boss; GRANT pg_stat_scan_tables TO worker; CREATE ROLE made; RESET SESSION AUTHORIZATION";
    session.batch_execute(script).await.expect("made");
    let wanted = member("worker", &[("pg_read_all_data", PLAIN)]);
    is_done(&settle(instance, &wanted).await);
    let has = memberships(instance, "worker").await;
    let expected = match major {
        15 => "pg_read_all_data a=false by postgres",
        _ => "pg_read_all_data a=false i=true s=true by postgres, pg_stat_scan_tables a=false i=true s=true by boss",
    };
    assert_eq!(has, expected);
    if major >= 16 {
        // What PostgreSQL has given to a creator is left to it.
        let taken = DeclaredRole {
            adoption: api::declared::Adoption::Full,
            ..user("boss")
        };
        session
            .batch_execute("ALTER ROLE boss NOCREATEROLE")
            .await
            .expect("altered");
        let before = memberships(instance, "boss").await;
        assert!(before.contains("made a=true i=false s=false by postgres"), "{before}");
        let settled = settle(instance, &taken).await;
        let why = settled.error.expect("it has granted pg_stat_scan_tables");
        assert!(why.contains("dependent privileges exist"), "{why}");
        let script = "REVOKE pg_stat_scan_tables FROM worker GRANTED BY boss";
        session.batch_execute(script).await.expect("revoked");
        is_done(&settle(instance, &taken).await);
        assert_eq!(
            memberships(instance, "boss").await,
            "made a=true i=false s=false by postgres"
        );
    }
}

async fn no_way_leads_to_the_server(instance: &mut Instance, session: &Client) {
    let script = "CREATE ROLE far; GRANT pg_read_server_files TO far; CREATE ROLE between; GRANT far TO between;
        CREATE ROLE maker CREATEDB; GRANT worker TO readers";
    session.batch_execute(script).await.expect("made");
    for (group, words) in [
        ("pg_execute_server_program", "reaches files, programs or other servers"),
        ("between", "pg_read_server_files reaches files"),
        ("maker", "maker is a superuser, or has CREATEROLE"),
        ("cdb_members", "the operator's"),
        ("postgres", "the superuser's"),
        ("readers", "readers is itself a member of worker"),
        ("pg_no_such_role", "reaches files, programs or other servers"),
    ] {
        let before = memberships(instance, "worker").await;
        let settled = settle(instance, &member("worker", &[(group, PLAIN)])).await;
        let why = settled.left.refusal.expect("a refusal");
        assert!(why.contains(words), "{why}");
        assert_eq!(memberships(instance, "worker").await, before);
    }
    session
        .batch_execute("REVOKE worker FROM readers")
        .await
        .expect("revoked");
    // One that is not there is waited for, also if it is made in the same round.
    let wanted = member("worker", &[("later", PLAIN), ("pg_monitor", PLAIN)]);
    let waits = settle(instance, &wanted).await;
    assert_eq!(waits.error, None);
    assert!(
        waits
            .left
            .waits
            .is_some_and(|why| why.contains("there is no role later"))
    );
    assert!(memberships(instance, "worker").await.contains("pg_monitor"));
    let both = [Declared::Role(wanted), Declared::Role(user("later"))];
    for settled in instance.sql.settle_access(&both).await.expect("settled") {
        is_done(&settled);
    }
    assert!(memberships(instance, "worker").await.starts_with("later"));
}

/// A session of the role itself, which the server lets in without a password.
async fn login(instance: &Instance, name: &str) -> Result<Client, String> {
    let file = instance.text("SHOW hba_file").await;
    let rules = std::fs::read_to_string(&file).expect("rules");
    let rule = format!("local all \"{name}\" trust\n");
    if !rules.contains(&rule) {
        std::fs::write(&file, rule + &rules).expect("written");
        instance.text("SELECT pg_reload_conf()::text").await;
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    }
    let mut config = tokio_postgres::Config::new();
    let config = config.host_path(&instance.files.socket).port(instance.settings.port);
    let connected = config.user(name).dbname(DATABASE).connect(NoTls).await;
    let (client, connection) = connected.map_err(|error| {
        error
            .as_db_error()
            .map_or_else(|| error.to_string(), |error| error.message().to_owned())
    })?;
    tokio::spawn(connection);
    Ok(client)
}

#[test]
fn a_role_with_a_certificate_logs_in_with_that_and_not_with_its_password() {
    unprivileged(
        "roles::a_role_with_a_certificate_logs_in_with_that_and_not_with_its_password",
        |place| async {
            let scene = Scene::new(place).await;
            let mut instance = prepared(&scene).await;
            let verifier = scram::Verifier::of("geheim").expect("a verifier");
            let with = |name: &str, certificate: bool| DeclaredRole {
                password: Password::Verifier(Secret(verifier.as_str().to_owned())),
                grants: vec![access(&["public"], &OF_TABLES)],
                certificate,
                ..user(name)
            };
            is_done(&settle(&mut instance, &with("worker", true)).await);
            is_done(&settle(&mut instance, &with("bystander", false)).await);
            // libpq takes a key with a colon in its path for one of an OpenSSL engine.
            let folder = std::env::temp_dir().join(format!("cdb-client-{}", std::process::id()));
            let port = instance.settings.port;
            let own = |name: &str| {
                let place = folder.join(name);
                scene.authority.write(&place, name, &[]);
                let file = |key: &str| place.join(key).display().to_string();
                format!(
                    "sslcert={} sslkey={} sslrootcert={}",
                    file("tls.crt"),
                    file("tls.key"),
                    file("ca.crt")
                )
            };
            let database = DATABASE.replace('\\', "\\\\").replace('\'', "\\'");
            let comes_in = async |role: &str, how: &str| {
                let target = format!(
                    "hostaddr=127.0.0.1 port={port} dbname='{database}' user={role} connect_timeout=5 sslmode=verify-ca {how}"
                );
                let mut command = scene.tools.command("psql");
                command
                    .env("PGPASSWORD", "geheim")
                    .args(["--no-psqlrc", "--no-password", "-c", "SELECT 1", &target]);
                match scene.supervisor.run(command, std::time::Duration::from_secs(20)).await {
                    Ok(_) => Ok(()),
                    Err(ProcessError::Failed { message, .. }) => Err(message),
                    Err(other) => panic!("{other}"),
                }
            };
            let (worker, bystander) = (own("worker"), own("bystander"));
            let root = bystander.split(' ').next_back().expect("an authority").to_owned();
            comes_in("worker", &worker).await.expect("with its certificate");
            comes_in("bystander", &root).await.expect("with its password");
            let refused = async |how: &str, words: &str| {
                let said = comes_in("worker", how).await.expect_err(how);
                assert!(said.contains(words), "{how}: {said}");
            };
            refused(&root, "requires a valid client certificate").await;
            refused(&bystander, "certificate authentication failed").await;
            is_done(&settle(&mut instance, &with("worker", false)).await);
            comes_in("worker", &root).await.expect("with its password again");
            std::fs::remove_dir_all(&folder).expect("removed");
        },
    );
}

async fn is_alive(session: &Client) -> bool {
    session.batch_execute("SELECT 1").await.is_ok()
}

#[test]
fn sessions_end_only_if_the_user_says_so_and_the_role_may_not_log_in() {
    unprivileged(
        "roles::sessions_end_only_if_the_user_says_so_and_the_role_may_not_log_in",
        |place| async {
            let scene = Scene::new(place).await;
            let mut instance = prepared(&scene).await;
            let wanted = DeclaredRole {
                grants: vec![access(&["public"], &OF_TABLES)],
                ..user("worker")
            };
            is_done(&settle(&mut instance, &wanted).await);
            is_done(&settle(&mut instance, &user("bystander")).await);
            let bystander = login(&instance, "bystander").await.expect("a session");
            let sessions = [
                login(&instance, "worker").await.expect("a session"),
                login(&instance, "worker").await.expect("a session"),
            ];
            let with = |attributes: Attributes, end_sessions: bool| DeclaredRole {
                attributes,
                end_sessions,
                ..wanted.clone()
            };
            let locked = Attributes::default();
            let expired = Attributes {
                login: true,
                valid_until: Some("2020-01-01T00:00:00Z".parse().expect("a time")),
                ..Attributes::default()
            };
            let valid = Attributes {
                valid_until: Some("2999-01-01T00:00:00Z".parse().expect("a time")),
                ..expired.clone()
            };
            for harmless in [
                with(locked.clone(), false),
                with(expired.clone(), false),
                with(valid, true),
            ] {
                is_done(&settle(&mut instance, &harmless).await);
                assert!(
                    is_alive(&sessions[0]).await && is_alive(&sessions[1]).await,
                    "{harmless:?}"
                );
            }
            for ends in [with(locked, true), with(expired, true)] {
                is_done(&settle(&mut instance, &wanted).await);
                let more = login(&instance, "worker").await.expect("a session");
                let settled = settle(&mut instance, &ends).await;
                is_done(&settled);
                let ended = settled
                    .plan
                    .steps
                    .iter()
                    .filter(|step| matches!(step.statement, Statement::EndSessions { .. }));
                assert_eq!(ended.count(), 1, "{settled:?}");
                for session in sessions.iter().chain([&more]) {
                    assert!(!is_alive(session).await, "{ends:?}");
                }
                // It does not come back by itself.
                is_done(&settle(&mut instance, &ends).await);
            }
            assert!(is_alive(&bystander).await);
            drop(bystander);
            instance.stop(agent::postgres::StopMode::Fast).await;
        },
    );
}

#[test]
fn a_quarantined_role_keeps_what_it_has_and_a_dropped_one_gives_it_away() {
    unprivileged(
        "roles::a_quarantined_role_keeps_what_it_has_and_a_dropped_one_gives_it_away",
        |place| async {
            let scene = Scene::new(place).await;
            let mut instance = prepared(&scene).await;
            let session = instance.session(DATABASE).await;
            let wanted = DeclaredRole {
                grants: vec![access(&["public"], &OF_TABLES)],
                ..member("worker", &[("pg_monitor", PLAIN)])
            };
            is_done(&settle(&mut instance, &wanted).await);
            let worker = login(&instance, "worker").await.expect("a session");
            let going = |going: Going| DeclaredRole {
                going: Some(going),
                ..wanted.clone()
            };
            let quarantined = settle(&mut instance, &going(Going::Quarantine)).await;
            is_done(&quarantined);
            assert!(quarantined.oid.is_some());
            assert!(!is_alive(&worker).await);
            let refused = login(&instance, "worker").await.expect_err("no session");
            assert!(refused.contains("not permitted to log in"), "{refused}");
            let comment = instance
                .text("SELECT shobj_description('worker'::regrole, 'pg_authid')")
                .await;
            assert!(
                comment.starts_with("made for DatabaseUser uid of worker, quarantined since 20"),
                "{comment}"
            );
            let has = "SELECT has_table_privilege('worker', 't1', 'INSERT')::text";
            let has: String = session.query_one(has, &[]).await.expect("an answer").get(0);
            assert_eq!(
                (has.as_str(), memberships(&instance, "worker").await.is_empty()),
                ("true", false)
            );
            assert_eq!(settle(&mut instance, &going(Going::Quarantine)).await.plan.steps, []);
            let again = DeclaredRole {
                uid: "another".to_owned(),
                ..wanted.clone()
            };
            let why = settle(&mut instance, &again).await.left.refusal.expect("a refusal");
            assert!(why.contains("for a DatabaseUser that is gone"), "{why}");

            // What it owns in two databases is given away, and none of that to a mightier role.
            let owns = "CREATE DATABASE second; CREATE DATABASE third OWNER worker";
            for statement in owns.split("; ") {
                session.batch_execute(statement).await.expect("made");
            }
            let second = instance.session("second").await;
            for session in [&session, &second] {
                let own = "CREATE SCHEMA s AUTHORIZATION worker; CREATE TABLE s.t (id serial); ALTER TABLE s.t OWNER TO worker;
                    CREATE FUNCTION s.f() RETURNS int LANGUAGE sql AS 'SELECT 1'; ALTER FUNCTION s.f() OWNER TO worker";
                session.batch_execute(own).await.expect("made");
            }
            let to = |to: &str| Going::Drop {
                reassign_to: Some(to.to_owned()),
            };
            let refused = settle(&mut instance, &going(to("postgres"))).await;
            assert!(
                refused
                    .left
                    .refusal
                    .is_some_and(|why| why.contains("is not given to postgres"))
            );
            let gone = settle(&mut instance, &going(to("readers"))).await;
            assert_eq!((gone.error, gone.left, gone.oid), (None, Plan::default(), None));
            let owners = "SELECT string_agg(DISTINCT o, ' ') FROM (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relname = 't'
                UNION SELECT pg_get_userbyid(proowner) FROM pg_proc WHERE proname = 'f'
                UNION SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 's'
                UNION SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'third') x(o)";
            for session in [&session, &second] {
                let owners: String = session.query_one(owners, &[]).await.expect("an answer").get(0);
                assert_eq!(owners, "readers");
            }
            drop((session, second));
            let same = settle_one(&mut instance, Declared::Role(going(to("readers")))).await;
            assert_eq!(same.plan, Plan::default(), "nothing is left to do");
            instance.stop(agent::postgres::StopMode::Fast).await;
        },
    );
}
