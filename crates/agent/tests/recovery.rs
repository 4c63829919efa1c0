//! Recovery of a base backup to a point in time, with real PostgreSQL servers and a store with the interface of S3.

#[path = "support/certificates.rs"]
#[allow(dead_code)]
mod certificates;
#[path = "support/instance.rs"]
#[allow(dead_code)]
mod instance;
#[path = "support/unprivileged.rs"]
mod unprivileged;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use agent::archive::SourceError;
use agent::base::Stream;
use agent::postgres::{Progress, Recovered, RecoveryError, RecoveryRequest, Role, Server, StopMode, Verifier, recover};
use agent::volume::{DataState, EnforcedSettings};
use api::spec::RecoveryChecks;
use backup::base::{About, BackupInfo, PART_SIZE, Writer};
use backup::layout::{ClusterFolder, LineObject, Object, Segment, encrypted};
use backup::segment::{Header, Origin, encode};
use backup::{Access, Compare, IDENTITY, Place, Recipients, S3, Store};
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::future::join_all;
use futures::{StreamExt, stream};
use instance::{Instance, Scene, copy_files, open_primary};
use machine::protocol::{Lsn, Timeline};
use machine::recovery::{Refusal, Target};
use test_store::{Fault, Options, TestStore};
use unprivileged::{place, unprivileged};

const DATABASE: &str = "Orders \"1\"";
const FOLDER: &str = "default/orders-c0ffee00";
const BACKUP: &str = "20261126T183000Z-F-7f3a";
/// So many recoveries run beside each other: each of them waits a good deal.
const AT_ONCE: usize = 2;
/// The backup, and the WAL of the third timeline, are encrypted, as if encryption had been turned on in between.
const PUBLIC: &str = "age1tajya78yex7e54lmyq5z89vw4n29epr96nj3f7z3upjpahujeaescwdf4s";
const PRIVATE: &str = "AGE-SECRET-KEY-1T299XPA2EYKG75LP4LU6YCRSXFQJHXCF75RDF60Z004VYJZCE4LQY8K4SD";
const ANOTHER: &str = "AGE-SECRET-KEY-195F9EVJCKRA32L9WFG45A99SPMGPRAH77N4DSLTR7FSQ846774SSXVLLHJ";
const NEW_PASSWORD: &str = "another one";
const LIMIT: Duration = Duration::from_secs(20);
const ENVIRONMENT: &str = "CDB_TEST_SCRATCH";

/// Tables before a copy, and a view that has a line for each, and one for what is damaged.
const TABLES: &str = "CREATE EXTENSION amcheck;
    CREATE TABLE regrown AS SELECT number, repeat('x', 100) FROM generate_series(1, 20000) number;
    CREATE TABLE shortened AS SELECT * FROM regrown;
    CREATE INDEX ON shortened (number);
    CREATE TABLE rewritten AS SELECT * FROM regrown;
    CREATE TABLE dropped AS SELECT * FROM regrown;
    CREATE VIEW tables AS
    SELECT format('%s: %s', relname, xpath('//number/text()', query_to_xml(
        format('SELECT md5(string_agg(number::text, '','' ORDER BY number)) AS number FROM %I', relname),
        false, true, ''))) AS number
    FROM pg_class WHERE relkind = 'r' AND relname NOT IN ('entry', 'load') AND relnamespace = 'public'::regnamespace
    UNION ALL SELECT format('%s: %s', relname, msg)
    FROM pg_class CROSS JOIN verify_heapam(oid) WHERE relkind = 'r' AND relpersistence = 'p'
    UNION ALL SELECT format('index %s%s', relname, bt_index_check(oid, true))
    FROM pg_class WHERE relkind = 'i' AND relname LIKE 'shortened%'";
/// What is done to them while they are copied, a transaction each.
const CHANGES: [&str; 7] = [
    "BEGIN; TRUNCATE regrown; COPY regrown (number) FROM PROGRAM 'seq 7 30007'; COMMIT",
    "DELETE FROM shortened WHERE number > 100",
    "VACUUM (TRUNCATE) shortened",
    "VACUUM FULL rewritten",
    "DROP TABLE dropped; CREATE TABLE added AS SELECT * FROM generate_series(1, 5000) number",
    "CREATE DATABASE another",
    "ALTER TABLE added RENAME COLUMN number TO other; ALTER TABLE added ADD number int DEFAULT 7",
];

/// An index that is not sorted any more by its own function.
const UNSORTED: &str = "
    CREATE FUNCTION order_of(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT btint4cmp($1, $2)';
    CREATE OPERATOR CLASS turned FOR TYPE int USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >,
        FUNCTION 1 order_of(int, int);
    CREATE TABLE sorted AS SELECT generate_series(1, 10) number;
    CREATE INDEX ON sorted (number turned);
    CREATE OR REPLACE FUNCTION order_of(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT btint4cmp($2, $1)'";
/// An index that was made with a version of a collation that no image has.
const OUTDATED: &str = "
    CREATE COLLATION german (provider = icu, locale = 'de');
    CREATE TABLE words (word text COLLATE german PRIMARY KEY);
    UPDATE pg_collation SET collversion = '0' WHERE collname = 'german'";

/// A copy that takes at least its bytes at so many a second, so that something happens meanwhile.
struct AtRate {
    stream: Stream,
    rate: Option<f64>,
}

impl backup::base::Source for AtRate {
    async fn tar(&mut self) -> io::Result<Option<Bytes>> {
        let piece = self.stream.tar().await?;
        if let (Some(rate), Some(piece)) = (self.rate, &piece) {
            tokio::time::sleep(Duration::from_secs_f64(piece.len() as f64 / rate)).await;
        }
        Ok(piece)
    }

    async fn manifest(&mut self) -> io::Result<Option<Bytes>> {
        self.stream.manifest().await
    }
}

/// The agent's program at a place where every user may run it; removed with the outer process of a test.
struct Program(PathBuf);

impl Program {
    /// That of the test `name`: two tests of one process must not share it.
    fn new(name: &str) -> Self {
        if std::env::var_os(ENVIRONMENT).is_some() {
            return Self(Self::path(std::os::unix::process::parent_id(), name));
        }
        let path = Self::path(std::process::id(), name);
        place(Path::new(env!("CARGO_BIN_EXE_agent")), &path);
        Self(path)
    }

    fn path(outer: u32, name: &str) -> PathBuf {
        PathBuf::from(format!("/tmp/cdb-recovery-agent-{outer}-{name}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::env::var_os(ENVIRONMENT).is_none() {
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// A store with one backup of a database, and its WAL on three timelines, the second of which was abandoned.
struct Source {
    scene: Scene,
    store: TestStore,
    program: PathBuf,
    objects: Store,
    system_id: String,
    next: AtomicU32,
}

/// Points of the source's history.
struct Points {
    /// Before the backup.
    begin: DateTime<Utc>,
    /// Between rows 3 and 4.
    after_3: DateTime<Utc>,
    /// Just behind row 4.
    end_of_4: Lsn,
    /// The transaction of row 5.
    xid_of_5: u64,
    /// Between rows 60 and 61, on the second timeline.
    after_60: DateTime<Utc>,
    /// Between rows 6 and 7, on the third timeline.
    after_6: DateTime<Utc>,
    /// Behind all.
    end: DateTime<Utc>,
}

impl Source {
    async fn new(scene: Scene, program: PathBuf) -> Self {
        let directory = scene.place.scratch.join("objects");
        fs::create_dir_all(&directory).expect("a directory");
        let options = Options {
            directory,
            ..Options::default()
        };
        let store = TestStore::start(options).await.expect("a store");
        store.make_bucket("wal").expect("a bucket");
        let access = scene.place.scratch.join("access");
        fs::create_dir_all(&access).expect("a directory");
        fs::write(access.join("AWS_ACCESS_KEY_ID"), test_store::KEY).expect("written");
        fs::write(access.join("AWS_SECRET_ACCESS_KEY"), test_store::SECRET).expect("written");
        fs::write(access.join(IDENTITY), format!("{ANOTHER}\n{PRIVATE}\n")).expect("written");
        fs::create_dir_all(scene.place.scratch.join("archive")).expect("a directory");
        let objects = Store::open(&place_of(&store), &Access::read(&access).expect("credentials")).expect("a store");
        Self {
            scene,
            store,
            program,
            objects,
            system_id: String::new(),
            next: AtomicU32::new(1),
        }
    }

    fn archive(&self) -> PathBuf {
        self.scene.place.scratch.join("archive")
    }

    fn object(&self, object: LineObject) -> String {
        let folder: ClusterFolder = FOLDER.parse().expect("a folder");
        folder.name(Object::Line(1, object)).to_string()
    }

    fn file(&self, object: LineObject) -> PathBuf {
        self.store.directory().join("wal/eu").join(self.object(object))
    }

    /// Starts a server that archives into a directory and lets `pg_basebackup` in.
    async fn start(&self, instance: &mut Instance, role: &Role) {
        let mut config = instance.config(role);
        let archive = self.archive();
        let archive = archive.display();
        config.postgresql_conf += &format!(
            "synchronous_standby_names = ''\nrecovery_target_timeline = 'current'\narchive_mode = on\narchive_command = 'cp %p {archive}/new && mv {archive}/new {archive}/%f'\n"
        );
        let admits = "local replication postgres peer map=cdb\n";
        config.pg_hba_conf.insert_str(0, admits);
        let started = Server::start(&instance.tools, &instance.volume, &instance.files, &config).await;
        instance.server = Some(started.expect("started"));
    }

    /// Makes the database, the backup and the archive.
    async fn fill(&mut self) -> Points {
        let begin = Utc::now();
        let mut instance = self.scene.instance(0);
        instance.initdb().await.expect("a database");
        self.system_id = instance.control().await.system_id;
        self.start(&mut instance, &open_primary()).await;
        instance.until("accepts writes", |status| !status.in_recovery).await;
        self.refuses_a_tablespace(&instance).await;
        self.back_up(&instance, None).await;
        commit(&instance, 3).await;
        let after_3 = between().await;
        commit(&instance, 4).await;
        let end_of_4 = instance.text("SELECT pg_current_wal_insert_lsn()::text").await;
        instance
            .text("SELECT pg_create_restore_point('before five')::text")
            .await;
        let xid_of_5 = commit(&instance, 5).await;
        self.switch(&instance).await;

        // The same data goes on as two other primaries' would. A server with lower limits pauses where they are raised.
        instance.stop(StopMode::Fast).await;
        let raised = ("max_connections".to_owned(), "150".to_owned());
        instance.settings.parameters.extend([raised]);
        let scratch = &self.scene.place.scratch;
        let (own, saved) = (scratch.join("0"), scratch.join("saved"));
        copy_files(&self.scene.supervisor, &own, &saved).await;

        self.promote(&mut instance).await;
        commit(&instance, 60).await;
        let after_60 = between().await;
        commit(&instance, 61).await;
        self.switch(&instance).await;
        instance.stop(StopMode::Fast).await;

        fs::remove_dir_all(&own).expect("removed");
        fs::rename(&saved, &own).expect("renamed");
        // The number of the second timeline is not used again.
        let history = "00000002.history";
        let pg_wal = instance.volume.pgdata().join("pg_wal");
        fs::copy(self.archive().join(history), pg_wal.join(history)).expect("copied");
        self.promote(&mut instance).await;
        commit(&instance, 6).await;
        let after_6 = between().await;
        self.switch(&instance).await;
        commit(&instance, 7).await;
        let session = instance.session(DATABASE).await;
        for made in [UNSORTED, "SELECT pg_create_restore_point('unsorted')", OUTDATED] {
            session.batch_execute(made).await.expect(made);
        }
        let end = between().await;
        self.switch(&instance).await;
        instance.stop(StopMode::Fast).await;
        self.upload().await;
        Points {
            begin,
            after_3,
            end_of_4: end_of_4.parse().expect("a position"),
            xid_of_5,
            after_60,
            after_6,
            end,
        }
    }

    /// Starts the data as a standby's, and promotes it.
    async fn promote(&self, instance: &mut Instance) {
        let standby = Role::Standby {
            primary: None,
            enforced: EnforcedSettings::default(),
        };
        self.start(instance, &standby).await;
        instance.until("recovers", |status| status.in_recovery).await;
        instance.text("SELECT pg_promote()::text").await;
        instance.until("is promoted", |status| !status.in_recovery).await;
    }

    /// Ends the segment, and waits until it is archived.
    async fn switch(&self, instance: &Instance) {
        let name = instance.text("SELECT pg_walfile_name(pg_switch_wal())").await;
        let file = self.archive().join(name);
        for _ in 0..1_000 {
            if file.exists() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{} is not archived", file.display());
    }

    /// A database with a tablespace is not backed up: that would not be all of it.
    async fn refuses_a_tablespace(&self, instance: &Instance) {
        let place = self.scene.place.scratch.join("tablespace");
        fs::create_dir(&place).expect("a directory");
        let session = instance.session("postgres").await;
        let create = format!("CREATE TABLESPACE elsewhere LOCATION '{}'", place.display());
        session.batch_execute(&create).await.expect("a tablespace");
        let stream = Stream::begin(&instance.files.socket, instance.settings.port, true).await;
        let error = backup::base::Source::tar(&mut stream.expect("a copy")).await;
        let error = error.expect_err("a refusal").to_string();
        assert!(
            error.contains(&format!("a tablespace in {}: backups cannot", place.display())),
            "{error}"
        );
        session
            .batch_execute("DROP TABLESPACE elsewhere")
            .await
            .expect("dropped");
    }

    async fn back_up(&self, instance: &Instance, rate: Option<f64>) -> BackupInfo {
        let start_time = Utc::now();
        let stream = Stream::begin(&instance.files.socket, instance.settings.port, true).await;
        let mut source = AtRate {
            stream: stream.expect("a copy"),
            rate,
        };
        let name = BACKUP.parse().expect("a name");
        let writer = Writer::new(
            self.objects.clone(),
            FOLDER.parse().expect("a folder"),
            1,
            name,
            PART_SIZE,
        )
        .with_recipients(recipients());
        let written = writer.write(&mut source, |_| ()).await.expect("a backup");
        let about = About {
            uid: "b1".to_owned(),
            system_id: self.system_id.clone(),
            server_version: u32::from(instance.tools.major()) * 10_000,
            wal_segment_size: u64::from(instance.control().await.wal_sizes.segment),
            start_time,
            stop_time: Utc::now(),
            source: None,
            damaged_pages: false,
        };
        let info: BackupInfo = written.commit(about).await.expect("committed");
        assert_eq!(info.timeline, 1);
        between().await;
        info
    }

    /// Makes a standby, a backup of it while rows are committed, and the archive. Returns the backup, and the end of each row.
    async fn fill_with_a_standby(&mut self) -> (BackupInfo, Vec<(u32, Lsn)>, Load, String) {
        let mut primary = self.scene.instance(0);
        primary.initdb().await.expect("a database");
        self.system_id = primary.control().await.system_id;
        self.start(&mut primary, &open_primary()).await;
        primary.until("accepts writes", |status| !status.in_recovery).await;
        let mut standby = self.scene.instance(self.next.fetch_add(1, Ordering::Relaxed));
        primary.sql.ensure_member(&standby.member.id).await.expect("admitted");
        standby.clone_of(&primary, &self.system_id).await.expect("a clone");
        let role = standby.standby_of(&primary).await;
        standby.volume.follow(standby.epoch).expect("no higher promise");
        self.start(&mut standby, &role).await;
        standby.until_streaming().await;

        let session = primary.session(DATABASE).await;
        session.batch_execute(TABLES).await.expect("tables");
        // What is flushed meanwhile moves the end of the copy.
        let writes = async {
            let mut ends = commit_rows(&primary, 3..6).await;
            for change in CHANGES {
                session.batch_execute(change).await.expect(change);
            }
            ends.extend(commit_rows(&primary, 6..10).await);
            flush(&primary).await;
            let flushed = end_of_wal(&primary).await;
            let replayed = "SELECT pg_last_wal_replay_lsn()::text";
            while standby.text(replayed).await.parse::<Lsn>().expect("a position") < flushed {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            flush(&standby).await;
            ends.extend(commit_rows(&primary, 10..20).await);
            ends
        };
        let (info, mut ends) = tokio::join!(self.back_up(&standby, Some(10e6)), writes);
        let changed = rows(&primary, "tables").await;
        let load = Load::run(&primary).await;
        self.switch(&primary).await;
        ends.extend(commit_rows(&primary, 20..23).await);
        self.switch(&primary).await;
        standby.stop(StopMode::Fast).await;
        primary.stop(StopMode::Fast).await;
        self.upload().await;
        (info, ends, load, changed)
    }

    /// Stores what was archived, and the history of a timeline that has no WAL.
    async fn upload(&self) {
        fs::write(self.archive().join("00000009.history"), "1\t0/1000000\tnever\n").expect("written");
        for entry in fs::read_dir(self.archive()).expect("a directory").flatten() {
            let name = entry.file_name().into_string().expect("text");
            let content = fs::read(entry.path()).expect("read");
            let (object, content) = match (name.strip_suffix(".history"), name.parse::<Segment>()) {
                (Some(timeline), _) => {
                    let timeline = u32::from_str_radix(timeline, 16).expect("a number");
                    (LineObject::History(timeline), content)
                }
                (None, Ok(segment)) => {
                    let origin = Origin {
                        system_id: self.system_id.clone(),
                        timeline: segment.timeline(),
                        segment: name.clone(),
                        epoch: 1,
                        pod_uid: "pod".to_owned(),
                    };
                    let recipients = recipients().filter(|_| segment.timeline() == 3);
                    let header = Header::new(origin, &content);
                    let object = encode(&header, &content, 1, recipients.as_ref()).expect("encoded");
                    (LineObject::Segment(segment), object)
                }
                // Partial segments and notes about backups.
                (None, Err(_)) => continue,
            };
            let name = match name.starts_with("00000003") && name.len() == 24 {
                true => encrypted(&self.object(object)),
                false => self.object(object),
            };
            let created = self.objects.create(&name, content.into(), Compare::Bytes, LIMIT).await;
            created.expect("stored");
        }
    }

    /// Recovers into a new volume.
    async fn recover_with(
        &self,
        target: Target,
        exclusive: bool,
        progress: impl Fn(Progress) + Sync,
    ) -> (Instance, Result<Recovered, RecoveryError>) {
        self.recover_by(Some("key"), target, exclusive, progress).await
    }

    /// The same with the private keys of this Secret.
    async fn recover_by(
        &self,
        identity_secret: Option<&str>,
        target: Target,
        exclusive: bool,
        progress: impl Fn(Progress) + Sync,
    ) -> (Instance, Result<Recovered, RecoveryError>) {
        // Some recoveries of these tests are checked, as a drill's.
        let sound = exclusive.then(|| checks(true, &["SELECT count(*) > 0 FROM entry"]));
        self.recover_to(identity_secret, target, exclusive, sound, progress)
            .await
    }

    /// The same with these checks.
    async fn recover_to(
        &self,
        identity_secret: Option<&str>,
        target: Target,
        exclusive: bool,
        checks: Option<RecoveryChecks>,
        progress: impl Fn(Progress) + Sync,
    ) -> (Instance, Result<Recovered, RecoveryError>) {
        let instance = self.scene.instance(self.next.fetch_add(1, Ordering::Relaxed));
        let request = RecoveryRequest {
            place: place_of(&self.store),
            access: self.scene.place.scratch.join("access"),
            identity_secret: identity_secret.map(str::to_owned),
            folder: FOLDER.to_owned(),
            backup: None,
            target,
            exclusive,
            verify_files: checks.is_some(),
            checks,
            database: DATABASE.to_owned(),
            program: self.program.clone(),
            // As in a database that has used more timelines than its archive shows.
            after: Timeline(if exclusive { 6 } else { 1 }),
            owner: "app".to_owned(),
            verifier: Verifier::of(NEW_PASSWORD).expect("a verifier"),
        };
        let user = instance.files.system_user.clone();
        let recovered = recover(&instance.tools, &instance.volume, &user, &request, &progress).await;
        (instance, recovered)
    }

    /// Recovers, starts the data as a primary's, and returns what was recovered and the rows.
    async fn rows(&self, target: Target, exclusive: bool) -> (Recovered, String) {
        self.rows_of("entry", target, exclusive).await
    }

    /// The same of this table.
    async fn rows_of(&self, table: &str, target: Target, exclusive: bool) -> (Recovered, String) {
        let (begun, words) = (Instant::now(), target.to_string());
        let (mut instance, recovered) = self.recover_with(target, exclusive, |_| ()).await;
        let recovered = recovered.unwrap_or_else(|error| panic!("{words}: {error:?}"));
        instance.start_primary().await;
        assert!(
            !instance.sql.ensure_password("app", NEW_PASSWORD).await.expect("a role"),
            "the new password"
        );
        let rows = rows(&instance, table).await;
        instance.stop(StopMode::Immediate).await;
        let rows_told: String = rows.chars().take(200).collect();
        println!("{words}: {rows_told} after {} ms", begun.elapsed().as_millis());
        (recovered, rows)
    }

    async fn refused(&self, target: Target) -> String {
        let (instance, recovered) = self.recover_with(target, false, |_| ()).await;
        let error = recovered.expect_err("refused");
        assert!(
            matches!(error, RecoveryError::Source(SourceError::Refused(_))),
            "{error:?}"
        );
        assert_eq!(instance.data().await, DataState::Empty, "nothing was begun");
        error.to_string()
    }
}

fn checks(amcheck: bool, queries: &[&str]) -> RecoveryChecks {
    RecoveryChecks {
        amcheck,
        queries: queries.iter().map(ToString::to_string).collect(),
    }
}

fn recipients() -> Option<Recipients> {
    Recipients::parse(&[PUBLIC.to_owned()]).expect("a public key")
}

fn place_of(store: &TestStore) -> Place {
    Place::S3(S3 {
        bucket: "wal".to_owned(),
        path: "eu".to_owned(),
        endpoint: Some(store.url().to_owned()),
        ..S3::default()
    })
}

/// Commits a row. Returns the transaction.
async fn commit(instance: &Instance, number: u32) -> u64 {
    let session = instance.session(DATABASE).await;
    let insert = format!("INSERT INTO entry VALUES ({number}) RETURNING pg_current_xact_id()::text");
    let xid: String = session.query_one(&insert, &[]).await.expect("a commit").get(0);
    xid.parse().expect("a number")
}

/// Commits rows one after the other. Returns where each ends in the WAL.
async fn commit_rows(instance: &Instance, numbers: std::ops::Range<u32>) -> Vec<(u32, Lsn)> {
    let mut ends = Vec::new();
    for number in numbers {
        commit(instance, number).await;
        ends.push((number, end_of_wal(instance).await));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ends
}

async fn end_of_wal(primary: &Instance) -> Lsn {
    let end = primary.text("SELECT pg_current_wal_insert_lsn()::text").await;
    end.parse().expect("a position")
}

async fn flush(instance: &Instance) {
    let session = instance.session("postgres").await;
    session.batch_execute("CHECKPOINT").await.expect("flushed");
}

async fn rows(instance: &Instance, table: &str) -> String {
    let all = format!("SELECT string_agg(number::text, ',' ORDER BY number) FROM {table}");
    let session = instance.session(DATABASE).await;
    session.query_one(&all, &[]).await.expect("an answer").get(0)
}

/// Commits of several sessions at once.
struct Load {
    /// A time in their middle.
    middle: DateTime<Utc>,
    /// Of each its number, when it was sent and when it was acknowledged.
    commits: Vec<(u32, DateTime<Utc>, DateTime<Utc>)>,
}

impl Load {
    const SESSIONS: u32 = 8;
    const LASTS: Duration = Duration::from_secs(2);

    async fn run(primary: &Instance) -> Self {
        let begun = Instant::now();
        let table = primary.session(DATABASE).await;
        table
            .batch_execute("CREATE TABLE load (number int)")
            .await
            .expect("a table");
        let session = |of: u32| async move {
            let session = primary.session(DATABASE).await;
            let mut commits = Vec::new();
            for number in (of..).step_by(Self::SESSIONS as usize) {
                if begun.elapsed() > Self::LASTS {
                    break;
                }
                let sent = Utc::now();
                let insert = format!("INSERT INTO load VALUES ({number})");
                session.execute(&insert, &[]).await.expect("a commit");
                commits.push((number, sent, Utc::now()));
            }
            commits
        };
        let middle = async {
            tokio::time::sleep(Self::LASTS / 2).await;
            Utc::now()
        };
        let sessions = join_all((0..Self::SESSIONS).map(session));
        let (commits, middle) = tokio::join!(sessions, middle);
        let commits = commits.concat();
        Self { middle, commits }
    }

    /// Everything that was acknowledged by the time in the middle is there, and nothing that was sent later.
    fn is_cut_there(&self, rows: &str) {
        let there: BTreeSet<u32> = rows.split(',').map(|row| row.parse().expect("a number")).collect();
        let before = self
            .commits
            .iter()
            .filter(|(_, _, acknowledged)| *acknowledged <= self.middle);
        let after = self.commits.iter().filter(|(_, sent, _)| *sent > self.middle);
        let (before, after): (Vec<_>, Vec<_>) = (before.collect(), after.collect());
        println!(
            "{} commits before and {} after, {} rows",
            before.len(),
            after.len(),
            there.len()
        );
        assert!(before.len() > 50 && after.len() > 50, "too few");
        assert!(before.iter().all(|(number, ..)| there.contains(number)), "one is lost");
        assert!(
            after.iter().all(|(number, ..)| !there.contains(number)),
            "one is too much"
        );
    }
}

/// A time that no commit has.
async fn between() -> DateTime<Utc> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    let time = Utc::now();
    tokio::time::sleep(Duration::from_millis(20)).await;
    time
}

#[test]
fn a_backup_is_recovered_to_each_kind_of_target() {
    let name = "a_backup_is_recovered_to_each_kind_of_target";
    let program = Program::new(name);
    unprivileged(name, |place| async {
        let mut source = Source::new(Scene::new(place).await, program.0.clone()).await;
        let points = source.fill().await;
        each_target_is_reached(&source, &points).await;
        the_unreachable_is_refused(&source, &points).await;
        what_is_unsound_is_told(&source).await;
        damage_is_told(&source, &points).await;
        a_key_that_does_not_fit_is_told(&source).await;
        trouble_with_the_store_is_waited_for(&source).await;
    });
}

/// A standby's backup has neither a checkpoint of its own at its begin nor a record at its end.
#[test]
fn a_backup_of_a_standby_is_recovered_row_by_row() {
    let name = "a_backup_of_a_standby_is_recovered_row_by_row";
    let program = Program::new(name);
    unprivileged(name, |place| async {
        let mut source = Source::new(Scene::new(place).await, program.0.clone()).await;
        let (info, ends, load, changed) = source.fill_with_a_standby().await;
        let before = ends.iter().filter(|(_, end)| end.0 < info.stop_lsn).count();
        assert!(before > 0 && before < ends.len(), "{info:?}, {ends:?}");
        println!(
            "{before} of {} rows were committed before the copy ended at {}",
            ends.len(),
            Lsn(info.stop_lsn)
        );
        let up_to = |last: u32| {
            (1..=last)
                .map(|number| number.to_string())
                .collect::<Vec<_>>()
                .join(",")
        };
        let (_, rows) = source.rows(Target::Immediate, false).await;
        let consistent = (2..23)
            .find(|last| rows == up_to(*last))
            .expect("a beginning of the rows");
        assert!(
            ends.iter()
                .all(|(number, end)| end.0 >= info.stop_lsn || *number <= consistent),
            "{rows}"
        );
        let later: Vec<(u32, Lsn)> = ends.into_iter().filter(|(_, end)| end.0 >= info.stop_lsn).collect();
        let [first, .., last] = later[..] else {
            panic!("{later:?}")
        };
        for (number, end) in [first, later[later.len() / 2], last] {
            let (recovered, rows) = source.rows(Target::Lsn(end), true).await;
            assert_eq!((rows, recovered.timeline), (up_to(number), Timeline(7)), "{end}");
        }
        assert_eq!(source.rows(Target::Latest, false).await.1, up_to(22));
        assert_eq!(source.rows_of("tables", Target::Latest, true).await.1, changed);
        load.is_cut_there(&source.rows_of("load", Target::Time(load.middle), false).await.1);
    });
}

async fn each_target_is_reached(source: &Source, points: &Points) {
    let cases = [
        (Target::Immediate, false, 1, "1,2"),
        (Target::Time(points.after_3), false, 1, "1,2,3"),
        (Target::Lsn(points.end_of_4), true, 1, "1,2,3,4"),
        (Target::Name("before five".to_owned()), false, 1, "1,2,3,4"),
        (Target::Xid(points.xid_of_5), true, 1, "1,2,3,4"),
        (Target::Xid(points.xid_of_5), false, 1, "1,2,3,4,5"),
        // What was committed on an abandoned timeline by then belongs to no history that goes on.
        (Target::Time(points.after_60), false, 3, "1,2,3,4,5"),
        (Target::Time(points.after_6), false, 3, "1,2,3,4,5,6"),
        (Target::Latest, false, 3, "1,2,3,4,5,6,7"),
    ];
    let recover = |(target, exclusive, left, expected): (Target, bool, u32, &'static str)| async move {
        let (recovered, rows) = source.rows(target.clone(), exclusive).await;
        assert_eq!(rows, expected, "{target}");
        assert_eq!(recovered.backup, BACKUP);
        assert_eq!(recovered.timeline, Timeline(if exclusive { 7 } else { 4 }));
        // Where it has left the source's history, not which timeline it was to follow.
        assert_eq!(recovered.position.timeline, Timeline(left), "{target}");
        recovered
    };
    let all: Vec<Recovered> = stream::iter(cases).map(recover).buffered(AT_ONCE).collect().await;
    let last = all.last().and_then(|latest| latest.last_commit_time).expect("a commit");
    assert!(points.after_6 < last && last < points.end, "{last}");
}

async fn the_unreachable_is_refused(source: &Source, points: &Points) {
    let words = source.refused(Target::Time(points.begin)).await;
    assert!(words.contains("the earliest possible time is"), "{words}");
    let words = source.refused(Target::Time(Utc::now() + Duration::from_secs(60))).await;
    assert!(words.contains("in the future"), "{words}");
    let words = source.refused(Target::Lsn(Lsn(1 << 40))).await;
    assert!(words.contains("the archive ends at"), "{words}");
    // It has passed, but nothing that was committed later is in the archive.
    let (instance, recovered) = source.recover_with(Target::Time(points.end), false, |_| ()).await;
    let error = recovered.expect_err("no such commit");
    assert!(matches!(error, RecoveryError::NotReached(_)), "{error:?}");
    let words = error.to_string();
    assert!(words.contains("the last commit that was replayed is of 20"), "{words}");
    assert!(words.contains("use the target latest"), "{words}");
    assert!(matches!(instance.data().await, DataState::Unfinished { .. }));
}

async fn what_is_unsound_is_told(source: &Source) {
    let unsorted = Target::Name("unsorted".to_owned());
    let before = Target::Name("before five".to_owned());
    let cases = [
        (unsorted, checks(true, &[]), "pg_amcheck finds damage"),
        (Target::Latest, checks(false, &[]), "collation than the image has"),
        (
            before.clone(),
            checks(false, &["SELECT true", "SELECT count(*) > 4 FROM entry"]),
            "query 2 of checks.queries returns false",
        ),
        (
            before.clone(),
            checks(false, &["SELECT 1"]),
            "has to return one row with one value of type boolean",
        ),
        (
            before.clone(),
            checks(false, &["SELECT true FROM missing"]),
            "relation \"missing\" does not exist",
        ),
        (
            before,
            checks(
                false,
                &["WITH new AS (INSERT INTO entry VALUES (9) RETURNING 1) SELECT true FROM new"],
            ),
            "read-only transaction",
        ),
    ];
    let recover = |(target, checks, expected): (Target, RecoveryChecks, &'static str)| async move {
        let (instance, recovered) = source
            .recover_to(Some("key"), target, false, Some(checks), |_| ())
            .await;
        let error = recovered.expect_err(expected);
        assert!(
            matches!(&error, RecoveryError::Unsound(words) if words.contains(expected)),
            "{expected}: {error}"
        );
        assert!(matches!(instance.data().await, DataState::Unfinished { .. }));
    };
    stream::iter(cases)
        .map(recover)
        .buffered(AT_ONCE)
        .collect::<Vec<()>>()
        .await;
}

/// The segments of the third timeline, oldest first.
fn segments(source: &Source) -> BTreeSet<String> {
    let names = fs::read_dir(source.archive()).expect("a directory").flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| name.len() == 24 && name.starts_with("00000003"))
        .collect()
}

async fn damage_is_told(source: &Source, points: &Points) {
    let name = segments(source).pop_first().expect("a segment");
    let file = source.file(LineObject::Segment(name.parse().expect("a segment")));
    let file = PathBuf::from(encrypted(file.to_str().expect("a path")));
    let good = fs::read(&file).expect("a segment");

    let mut bad = good.clone();
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    fs::write(&file, &bad).expect("written");
    for target in [Target::Latest, Target::Time(points.after_6)] {
        let (instance, recovered) = source.recover_with(target, false, |_| ()).await;
        let error = recovered.expect_err("damaged");
        assert!(
            matches!(&error, RecoveryError::Wal(words) if words.contains(&name)),
            "{error:?}"
        );
        assert!(matches!(instance.data().await, DataState::Unfinished { .. }));
        instance.volume.discard_unfinished().await.expect("discarded");
        assert_eq!(instance.data().await, DataState::Empty);
    }

    fs::remove_file(&file).expect("removed");
    let (instance, recovered) = source.recover_with(Target::Latest, false, |_| ()).await;
    match recovered {
        Err(RecoveryError::Source(SourceError::Refused(Refusal::Missing { first, count }))) => {
            assert_eq!((first, count), (name.clone(), 1));
            assert_eq!(instance.data().await, DataState::Empty);
        }
        other => panic!("{other:?}"),
    }
    fs::write(&file, &good).expect("written");
}

async fn a_key_that_does_not_fit_is_told(source: &Source) {
    let refused = async |secret: Option<&str>| {
        let (instance, recovered) = source.recover_by(secret, Target::Latest, false, |_| ()).await;
        assert_eq!(instance.data().await, DataState::Empty, "nothing was begun");
        let error: anyhow::Error = recovered.expect_err("refused").into();
        format!("{error:#}")
    };
    let words = refused(None).await;
    assert_eq!(
        words,
        format!(
            "backup {BACKUP} is encrypted to {PUBLIC}: set bootstrap.recovery.from.identitySecretRef to a Secret with a private key \
             of these"
        )
    );
    let file = source.scene.place.scratch.join("access").join(IDENTITY);
    let good = fs::read(&file).expect("the keys");
    fs::write(&file, ANOTHER).expect("written");
    let words = refused(Some("key")).await;
    assert!(
        words.ends_with("none of the 1 identities in Secret key opens it") && words.contains(PUBLIC),
        "{words}"
    );
    fs::remove_file(&file).expect("removed");
    let words = refused(Some("key")).await;
    assert!(words.contains("Secret key has no identity"), "{words}");
    fs::write(&file, good).expect("written");
}

async fn trouble_with_the_store_is_waited_for(source: &Source) {
    const TROUBLE: Duration = Duration::from_secs(3);
    let (is_begun, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let progress = |progress: Progress| {
        if progress.what == "verify" && !is_begun.swap(true, Ordering::Relaxed) {
            // The store's client itself tries again after the second, not after the first.
            source
                .store
                .inject(Fault::refuse(403, "AccessDenied").method("GET").times(2));
            source.store.inject(Fault::refuse(503, "SlowDown").method("GET"));
        }
    };
    let heal = async {
        while !is_begun.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(TROUBLE).await;
        source.store.heal();
        is_over.store(true, Ordering::Relaxed);
    };
    let ((mut instance, recovered), ()) = tokio::join!(source.recover_with(Target::Latest, false, progress), heal);
    recovered.expect("recovered");
    assert!(is_over.load(Ordering::Relaxed));
    instance.start_primary().await;
    assert_eq!(rows(&instance, "entry").await, "1,2,3,4,5,6,7");
    instance.stop(StopMode::Fast).await;
}
