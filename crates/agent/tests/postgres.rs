//! The agent's functions on a real PostgreSQL.

#[path = "support/certificates.rs"]
mod certificates;
#[path = "support/instance.rs"]
#[allow(dead_code)]
mod instance;
#[path = "support/unprivileged.rs"]
mod unprivileged;

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use agent::peer::Tls;
use agent::postgres::{PostgresError, Reload, Role, Server, Sql, SqlError, StartError, StopMode, reload};
use agent::process::{ProcessError, postgres_processes, processes};
use agent::volume::{ClusterState, DataState};
use certificates::{Authority, NAME};
use instance::{Instance, PASSWORD, Scene, open_primary};
use machine::protocol::{Lsn, certificate_digest};
use unprivileged::{Place, unprivileged};

const DATABASE: &str = "Orders \"1\"";

#[test]
fn a_database_is_made_cloned_and_followed() {
    unprivileged("a_database_is_made_cloned_and_followed", |place| async {
        let scene = Scene::new(place).await;
        let (mut first, mut second) = (scene.instance(0), scene.instance(1));
        assert_eq!(first.data().await, DataState::Empty);
        first.initdb().await.expect("a database");
        let made = first.control().await;
        assert_eq!(
            (made.state, made.timeline.0, made.checksums),
            (ClusterState::ShutDown, 1, true)
        );
        assert!(first.initdb().await.is_err(), "never twice");
        let wal = first.volume.pgdata().join("pg_wal");
        assert_eq!(
            fs::read_link(wal).expect("a link"),
            first.volume.wal_directory().expect("a WAL volume")
        );

        first.start_primary().await;
        let member = second.member.id.clone();
        assert!(first.sql.ensure_member(&member).await.expect("admitted").reserved);
        assert!(first.sql.ensure_member(&member).await.expect("admitted again").reserved);
        second.clone_of(&first, &made.system_id).await.expect("a clone");
        assert_eq!(second.control().await.system_id, made.system_id);
        second.start_standby(&first).await;
        committed_data_arrives(&mut first, &mut second).await;
        second.stop(StopMode::Fast).await;
        assert_eq!(second.control().await.state, ClusterState::ShutDownInRecovery);
        former_members_are_dropped(&mut first, &second).await;
        first.stop(StopMode::Fast).await;
        assert_eq!(first.control().await.state, ClusterState::ShutDown);
        assert_eq!(postgres_processes().expect("/proc"), []);
    });
}

async fn committed_data_arrives(first: &mut Instance, second: &mut Instance) {
    let session = first.session(DATABASE).await;
    session
        .batch_execute("INSERT INTO entry VALUES (3)")
        .await
        .expect("a commit");
    let end = first.sql.status().await.expect("a status").position;
    assert_eq!(end.timeline.0, 1);
    let status = second
        .until("has replayed the commit", |status| status.replayed >= Some(end.lsn))
        .await;
    assert!(status.in_recovery && status.position >= end, "{status:?}");
    let receiver = status.receiver.expect("a receiver");
    assert_eq!(receiver.slot.as_deref(), Some(second.member.id.as_str()));
    let replica = second.session(DATABASE).await;
    let count: i64 = replica
        .query_one("SELECT count(*) FROM entry", &[])
        .await
        .expect("an answer")
        .get(0);
    assert_eq!(count, 3);
    let status = first
        .until("knows its standby", |status| !status.senders.is_empty())
        .await;
    let sender = &status.senders[0];
    assert_eq!(
        (sender.user.as_str(), sender.state.as_str()),
        (second.member.id.as_str(), "streaming")
    );
    assert_eq!(sender.application, sender.user);
    assert!(
        status.slots.iter().any(|slot| slot.active && slot.name == sender.user),
        "{status:?}"
    );
    assert_eq!(status.sessions, 1, "one session of ours");
    let refused = first.sql.drop_members_except(&BTreeSet::new()).await;
    let error = refused.expect_err("a member that streams stays").to_string();
    assert!(error.contains(second.member.id.as_str()), "{error}");
}

async fn former_members_are_dropped(first: &mut Instance, second: &Instance) {
    first
        .until("has lost its standby", |status| status.senders.is_empty())
        .await;
    let wanted = BTreeSet::from([second.member.id.clone()]);
    assert_eq!(first.sql.drop_members_except(&wanted).await.expect("no error"), []);
    let dropped = first.sql.drop_members_except(&BTreeSet::new()).await.expect("no error");
    assert_eq!(dropped, std::slice::from_ref(&second.member.id));
    let left = first
        .text("SELECT count(*)::text FROM pg_roles WHERE rolname LIKE 'cdb\\_0%'")
        .await;
    assert_eq!(left, "0");
    assert!(first.sql.status().await.expect("a status").slots.is_empty());
}

#[test]
fn after_a_crash_it_is_known_how_much_wal_is_to_be_replayed() {
    unprivileged(
        "after_a_crash_it_is_known_how_much_wal_is_to_be_replayed",
        |place| async {
            let scene = Scene::new(place).await;
            let mut instance = scene.instance(0);
            instance.initdb().await.expect("a database");
            let made = instance.control().await;
            assert_eq!(made.redo, made.checkpoint, "a clean stop leaves nothing to replay");
            instance.start_primary().await;
            let session = instance.session(DATABASE).await;
            let fill = "INSERT INTO entry SELECT * FROM generate_series(10, 400000)";
            for statement in ["CHECKPOINT", fill] {
                session.batch_execute(statement).await.expect("done");
            }
            let end = instance.sql.status().await.expect("a status").position.lsn;
            instance.stop(StopMode::Immediate).await;
            let control = instance.control().await;
            assert_eq!(control.state, ClusterState::InProduction);
            let pages = 4 * u64::from(control.wal_sizes.page);
            let segment = u64::from(control.wal_sizes.segment);
            let known = || async {
                let known = instance.volume.end_of_wal(control.redo, control.wal_sizes).await;
                known.expect("readable WAL")
            };
            let before = known().await;
            assert!(end <= before && before.0 <= end.0 + pages, "{before} for {end}");
            assert!(before.0 - control.redo.0 > segment, "{before} from {}", control.redo);
            // PostgreSQL renames a segment that it no longer needs to one that it needs next.
            let wal = instance.volume.pgdata().join("pg_wal");
            let file = |number: u64| wal.join(format!("{:08X}{:08X}{number:08X}", 1, 0));
            let next = (before.0 - 1) / segment + 1;
            fs::copy(file(control.redo.0 / segment), file(next)).expect("copied");
            assert_eq!(known().await, before);
            fs::remove_file(file(next)).expect("removed");
            the_end_of_the_wal_is_known_to_the_record(&mut instance).await;
        },
    );
}

async fn the_end_of_the_wal_is_known_to_the_record(instance: &mut Instance) {
    instance.start_primary().await;
    let switched = instance.text("SELECT pg_switch_wal()::text").await;
    let switched: Lsn = switched.parse().expect("a position");
    instance.stop(StopMode::Immediate).await;
    let control = instance.control().await;
    let end = instance.volume.end_of_wal(control.redo, control.wal_sizes).await;
    let next = switched.0.next_multiple_of(u64::from(control.wal_sizes.segment));
    assert!(end.expect("readable WAL").0 >= next, "a segment that was ended early");

    instance.start_primary().await;
    instance.stop(StopMode::Fast).await;
    let control = instance.control().await;
    let end = instance.volume.end_of_wal(control.redo, control.wal_sizes).await;
    // The last record is the checkpoint's: some 120 bytes, and a page's header if it goes on in a second page.
    let length = end.expect("readable WAL").0 - control.checkpoint.0;
    assert!(
        (100..200).contains(&length),
        "{length} bytes from {}",
        control.checkpoint
    );
}

#[test]
fn settings_are_taken_up_or_refused_whole() {
    unprivileged("settings_are_taken_up_or_refused_whole", |place| async {
        let scene = Scene::new(place).await;
        let mut instance = scene.instance(0);
        instance.initdb().await.expect("a database");
        instance.start_primary().await;

        set(
            &mut instance,
            &[("work_mem", "8MB"), ("myapp.name", "it's \\ 'quoted'")],
        );
        assert_eq!(
            take_up(&mut instance).await,
            Reload::Applied {
                pending_restart: vec![]
            }
        );
        assert_eq!(instance.text("SHOW work_mem").await, "8MB");
        assert_eq!(instance.text("SHOW myapp.name").await, "it's \\ 'quoted'");

        let good = fs::read(instance.volume.pgdata().join("postgresql.conf")).expect("readable");
        set(&mut instance, &[("work_mem", "abc"), ("statement_timeout", "7s")]);
        match take_up(&mut instance).await {
            Reload::Refused { error } => assert!(error.contains("\"work_mem\": \"abc\""), "{error}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(
            fs::read(instance.volume.pgdata().join("postgresql.conf")).expect("readable"),
            good
        );
        assert_eq!(instance.text("SHOW work_mem").await, "8MB");

        set(&mut instance, &[("max_connections", "150")]);
        let waiting = Reload::Applied {
            pending_restart: vec!["max_connections".to_owned()],
        };
        assert_eq!(take_up(&mut instance).await, waiting);
        assert!(!instance.sql.status().await.expect("a status").lowers_limits);
        set(&mut instance, &[("max_connections", "50")]);
        assert_eq!(take_up(&mut instance).await, waiting);
        assert!(instance.sql.status().await.expect("a status").lowers_limits);
        assert_eq!(instance.text("SHOW max_connections").await, "100");
        set(
            &mut instance,
            &[("max_connections", "50"), ("max_worker_processes", "9")],
        );
        take_up(&mut instance).await;
        let raises = instance.sql.status().await.expect("a status");
        assert!(!raises.lowers_limits, "the standbys have to go first");

        alter_system_counts_for_nothing(&mut instance).await;
        assert_eq!(instance.text("SHOW max_connections").await, "50");
        instance.stop(StopMode::Fast).await;
        refused_at_start(&mut instance).await;
    });
}

#[test]
fn a_configuration_that_keeps_the_agent_out_is_taken_back() {
    unprivileged(
        "a_configuration_that_keeps_the_agent_out_is_taken_back",
        |place| async {
            let scene = Scene::new(place).await;
            let mut instance = scene.instance(0);
            instance.initdb().await.expect("a database");
            instance.start_primary().await;
            let hba = instance.volume.pgdata().join("pg_hba.conf");
            for known in [true, false] {
                fs::write(&hba, "local all all reject\n").expect("written");
                let server = instance.server.as_ref().expect("a server");
                server.reload().expect("a signal");
                let mut new = Sql::new(&instance.files.socket, instance.settings.port, instance.settings.major);
                while new.status().await.is_ok() {
                    new = Sql::new(&instance.files.socket, instance.settings.port, instance.settings.major);
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                let error = new.status().await.expect_err("it is refused");
                assert!(matches!(error, SqlError::Refused(_)), "{error}");
                if !known {
                    instance.sql = new;
                }
                let value = if known { "8MB" } else { "9MB" };
                set(&mut instance, &[("work_mem", value)]);
                assert!(matches!(take_up(&mut instance).await, Reload::Applied { .. }));
                assert_eq!(instance.text("SHOW work_mem").await, value);
            }
            instance.stop(StopMode::Fast).await;
        },
    );
}

async fn alter_system_counts_for_nothing(instance: &mut Instance) {
    let session = instance.session("postgres").await;
    let altered = session.batch_execute("ALTER SYSTEM SET max_connections = 70").await;
    assert_eq!(altered.is_err(), instance.settings.major >= 17);
    drop(session);
    instance.stop(StopMode::Fast).await;
    instance.start_primary().await;
    assert_eq!(instance.sql.status().await.expect("a status").pending_restart, [""; 0]);
}

async fn refused_at_start(instance: &mut Instance) {
    set(instance, &[("no_such_setting", "1")]);
    match instance.try_start(&open_primary()).await {
        Err(PostgresError::Start(StartError::Settings(words))) => assert!(words.contains("no_such_setting"), "{words}"),
        other => panic!("{other:?}"),
    }
    set(instance, &[]);
    instance.start_primary().await;
    instance.stop(StopMode::Fast).await;
}

fn set(instance: &mut Instance, parameters: &[(&str, &str)]) {
    let pairs = parameters
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    instance.settings.parameters = pairs.collect();
}

async fn take_up(instance: &mut Instance) -> Reload {
    let config = instance.config(&open_primary());
    let Instance {
        tools,
        volume,
        server,
        sql,
        ..
    } = instance;
    reload(tools, volume, server.as_ref().expect("a server"), sql, &config)
        .await
        .expect("an answer")
}

#[test]
fn only_those_who_may_come_in() {
    unprivileged("only_those_who_may_come_in", |place| async {
        let scene = Scene::new(place).await;
        let (mut first, second, third) = (scene.instance(0), scene.instance(1), scene.instance(2));
        first.initdb().await.expect("a database");
        first.start_primary().await;
        first.sql.ensure_member(&second.member.id).await.expect("admitted");

        assert!(
            first.sql.ensure_password("postgres", PASSWORD).await.expect("set"),
            "for the test's sake"
        );
        assert!(
            !first.sql.ensure_password("app", PASSWORD).await.expect("no error"),
            "it is set already"
        );
        assert!(first.sql.ensure_password("nobody", PASSWORD).await.is_err());
        let refused = "pg_hba.conf rejects";
        comes_in(&scene, &first, "user=app sslmode=require", PASSWORD)
            .await
            .expect("the owner comes in");
        stays_out(
            &scene,
            &first,
            "user=app sslmode=require",
            "wrong",
            "password authentication failed",
        )
        .await;
        stays_out(&scene, &first, "user=app sslmode=disable", PASSWORD, refused).await;
        stays_out(&scene, &first, "user=postgres sslmode=require", PASSWORD, refused).await;
        stays_out(
            &scene,
            &first,
            "user=app sslmode=require replication=1",
            PASSWORD,
            refused,
        )
        .await;

        let own = |instance: &Instance| {
            let (certificate, key) = (instance.volume.certificate_file(), instance.volume.key_file());
            format!(
                "sslmode=require sslcert={} sslkey={}",
                certificate.display(),
                key.display()
            )
        };
        let member = |user: &Instance, holder: &Instance| format!("user={} {}", user.member.id, own(holder));
        let replicating = format!("{} replication=1", member(&second, &second));
        comes_in(&scene, &first, &replicating, "")
            .await
            .expect("a member may replicate");
        stays_out(&scene, &first, &member(&second, &second), "", refused).await;
        let rewinding = format!("{} dbname=postgres", member(&second, &second));
        comes_in(&scene, &first, &rewinding, "")
            .await
            .expect("a member may rewind");
        let another = format!("{} replication=1", member(&second, &third));
        stays_out(&scene, &first, &another, "", "certificate authentication failed").await;
        let unknown = format!("{} replication=1", member(&third, &third));
        stays_out(&scene, &first, &unknown, "", refused).await;

        assert!(first.sql.ensure_password("app", "another").await.expect("changed"));
        comes_in(&scene, &first, "user=app sslmode=require", "another")
            .await
            .expect("with the new password");
        stays_out(
            &scene,
            &first,
            "user=app sslmode=require",
            PASSWORD,
            "password authentication failed",
        )
        .await;
        first.stop(StopMode::Fast).await;
    });
}

#[test]
fn a_certificate_counts_as_loaded_when_postgresql_presents_it() {
    unprivileged(
        "a_certificate_counts_as_loaded_when_postgresql_presents_it",
        |place| async {
            let scene = Scene::new(place).await;
            let mut first = scene.instance(0);
            first.initdb().await.expect("a database");
            let tls = Tls::open(&first.files.tls, NAME).expect("a usable certificate");
            assert!(tls.presented(first.settings.port).await.is_err(), "there is no server");
            first.start_primary().await;
            let read = |name: &str| fs::read(first.files.tls.join(name)).expect("read");
            let digest = || certificate_digest(&read("tls.crt"), &read("ca.crt"));
            let before = digest();
            let presented = async || tls.presented(first.settings.port).await.expect("an answer");
            assert_eq!(presented().await, Some(before.clone()));
            scene.authority.write(&first.files.tls, "orders-agent", &[NAME]);
            assert_eq!(presented().await, None, "PostgreSQL has not read it");
            assert_eq!(tls.digest().expect("read"), digest());
            assert_ne!(digest(), before);
            let server = first.server.as_ref().expect("a server");
            server.reload().expect("a signal");
            let limit = tokio::time::Instant::now() + Duration::from_secs(20);
            while presented().await.is_none() {
                assert!(tokio::time::Instant::now() < limit, "PostgreSQL does not read it");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            assert_eq!(presented().await, Some(digest()));
            Authority::new().write(&first.files.tls, "orders-agent", &[NAME]);
            assert_eq!(presented().await, None, "it cannot even be verified");
            first.stop(StopMode::Fast).await;
        },
    );
}

/// Tries to connect over TCP with psql.
async fn comes_in(scene: &Scene, to: &Instance, how: &str, password: &str) -> Result<(), String> {
    let database = DATABASE.replace('\\', "\\\\").replace('\'', "\\'");
    let target = format!(
        "hostaddr=127.0.0.1 port={} dbname='{database}' connect_timeout=5 {how}",
        to.settings.port
    );
    let mut command = scene.tools.command("psql");
    let query = if how.contains("replication=1") {
        "IDENTIFY_SYSTEM"
    } else {
        "SELECT 1"
    };
    command
        .env("PGPASSWORD", password)
        .args(["--no-psqlrc", "--no-password", "-c", query, &target]);
    match scene.supervisor.run(command, Duration::from_secs(20)).await {
        Ok(_) => Ok(()),
        Err(ProcessError::Failed { message, .. }) => Err(message),
        Err(other) => panic!("{other}"),
    }
}

async fn stays_out(scene: &Scene, to: &Instance, how: &str, password: &str, words: &str) {
    let said = comes_in(scene, to, how, password).await.expect_err(how);
    assert!(said.contains(words), "{how}: {said}");
}

#[test]
fn what_is_unfinished_is_seen_and_discarded() {
    unprivileged("what_is_unfinished_is_seen_and_discarded", |place| async {
        let scene = Scene::new(place).await;
        let (mut first, second) = (scene.instance(0), scene.instance(1));
        let mut request = first.request();
        request.post_init_sql = vec!["SELECT 1".to_owned(), "SELEKT 2".to_owned()];
        let made = agent::postgres::initdb(&scene.tools, &first.volume, &scene.place.user, &request).await;
        let error = made.expect_err("a wrong statement").to_string();
        assert!(
            error.contains("statement 2 of postInitApplicationSQL") && error.contains("SELEKT"),
            "{error}"
        );
        is_discarded(&first, "initdb").await;
        request.post_init_sql.clear();
        request.locale = "xx_YY".to_owned();
        let made = agent::postgres::initdb(&scene.tools, &first.volume, &scene.place.user, &request).await;
        let error = made.expect_err("a wrong locale").to_string();
        assert!(error.contains("xx_YY"), "{error}");
        is_discarded(&first, "initdb").await;

        first.initdb().await.expect("a database");
        let system_id = first.control().await.system_id;
        first.start_primary().await;
        assert!(second.clone_of(&first, &system_id).await.is_err(), "not admitted yet");
        is_discarded(&second, "clone").await;
        first.sql.ensure_member(&second.member.id).await.expect("admitted");
        let error = second
            .clone_of(&first, "1")
            .await
            .expect_err("another database")
            .to_string();
        assert!(error.contains(&system_id), "{error}");
        is_discarded(&second, "clone").await;
        interrupted_clone(&first, &second, &system_id).await;
        is_discarded(&second, "clone").await;
        second.clone_of(&first, &system_id).await.expect("a clone at last");
        first.stop(StopMode::Fast).await;
    });
}

async fn is_discarded(instance: &Instance, what: &str) {
    assert_eq!(instance.data().await, DataState::Unfinished { what: what.to_owned() });
    assert_eq!(servers_on(&instance.volume.staging_pgdata()), 0, "nothing runs on it");
    instance.volume.discard_unfinished().await.expect("discarded");
    assert_eq!(instance.data().await, DataState::Empty);
}

fn servers_on(pgdata: &std::path::Path) -> usize {
    let running = processes().expect("/proc").into_iter();
    let directories = running.filter_map(|process| fs::read_link(format!("/proc/{}/cwd", process.pid)).ok());
    directories.filter(|directory| directory == pgdata).count()
}

async fn interrupted_clone(first: &Instance, second: &Instance, system_id: &str) {
    let staged = second.volume.staging_pgdata();
    tokio::select! {
        cloned = second.clone_of(first, system_id) => panic!("too quick to be interrupted: {cloned:?}"),
        () = async {
            while !staged.join("base").exists() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        } => {}
    }
    let copying = || {
        processes()
            .expect("/proc")
            .iter()
            .any(|process| process.name == "pg_basebackup")
    };
    for _ in 0..1_000 {
        if !copying() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("pg_basebackup goes on");
}

#[test]
fn a_killed_server_starts_again_over_its_remains() {
    unprivileged("a_killed_server_starts_again_over_its_remains", |place| async {
        let scene = Scene::new(place).await;
        let mut instance = scene.instance(0);
        instance.initdb().await.expect("a database");
        instance.start_primary().await;
        let session = instance.session(DATABASE).await;
        session
            .batch_execute("INSERT INTO entry VALUES (4)")
            .await
            .expect("a commit");
        let error = instance.try_start(&open_primary()).await.expect_err("it runs already");
        assert!(
            matches!(error, PostgresError::Start(StartError::AlreadyRuns { .. })),
            "{error}"
        );
        killed(&scene, &mut instance).await;

        assert_eq!(instance.control().await.state, ClusterState::InProduction);
        // In a new container, the old postmaster's process id may belong to any process.
        let pid_file = instance.volume.pgdata().join("postmaster.pid");
        let remains = fs::read_to_string(&pid_file).expect("left behind");
        let (_, rest) = remains.split_once('\n').expect("lines");
        fs::write(&pid_file, format!("{}\n{rest}", std::process::id())).expect("written");
        instance.start_primary().await;
        let session = instance.session(DATABASE).await;
        let count: i64 = session
            .query_one("SELECT count(*) FROM entry", &[])
            .await
            .expect("an answer")
            .get(0);
        assert_eq!(count, 3);
        instance.stop(StopMode::Immediate).await;
        instance.start_primary().await;
        instance.stop(StopMode::Fast).await;
    });
}

async fn killed(scene: &Scene, instance: &mut Instance) {
    let server: Server = instance.server.take().expect("a server");
    assert!(postgres_processes().expect("/proc").len() > 3);
    scene.supervisor.kill_everything_else(&[]).await.expect("killed");
    assert_eq!(postgres_processes().expect("/proc"), []);
    server.stopped(Duration::from_secs(5)).await.expect("its end is known");
}

#[test]
fn a_standby_without_a_primary_serves_reads() {
    unprivileged("a_standby_without_a_primary_serves_reads", |place: Place| async {
        let scene = Scene::new(place).await;
        let (mut first, mut second) = (scene.instance(0), scene.instance(1));
        first.initdb().await.expect("a database");
        let system_id = first.control().await.system_id;
        set(&mut first, &[("max_connections", "130")]);
        first.start_primary().await;
        first.sql.ensure_member(&second.member.id).await.expect("admitted");
        second.clone_of(&first, &system_id).await.expect("a clone");
        // Fewer connections than its primary had: PostgreSQL alone would not start.
        set(&mut second, &[("max_connections", "30")]);
        second.start_standby(&first).await;
        assert_eq!(second.text("SHOW max_connections").await, "130");
        second.stop(StopMode::Fast).await;
        first.stop(StopMode::Fast).await;

        let alone = Role::Standby {
            primary: None,
            enforced: second.control().await.enforced,
        };
        second.try_start(&alone).await.expect("started");
        let status = second
            .until("serves reads", |status| status.in_recovery && status.receiver.is_none())
            .await;
        assert!(status.replayed.is_some());
        let session = second.session(DATABASE).await;
        let error = session
            .batch_execute("INSERT INTO entry VALUES (9)")
            .await
            .expect_err("read only");
        assert!(error.to_string().contains("db error"), "{error}");
        second.stop(StopMode::Fast).await;
    });
}
