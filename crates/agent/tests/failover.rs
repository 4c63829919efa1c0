//! The rules of the failover protocol on real PostgreSQL servers.

#[path = "support/certificates.rs"]
mod certificates;
#[path = "support/instance.rs"]
#[allow(dead_code)]
mod instance;
#[path = "support/unprivileged.rs"]
mod unprivileged;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use agent::postgres::{
    PostgresError, Promoted, Reload, Role, StartError, Status, StopMode, open, promise, promote, reload, rewind,
    set_sync,
};
use agent::process::postgres_processes;
use agent::volume::DataState;
use instance::{Instance, PASSWORD, Scene, is_streaming, open_primary};
use machine::protocol::{Epoch, Lsn, MemberId, Timeline};
use machine::quorum::SyncRule;
use rustix::process::{Pid, Signal, kill_process};
use unprivileged::unprivileged;

const DATABASE: &str = "Orders \"1\"";
const CHECKPOINTER: &str = "SELECT pid::text FROM pg_stat_activity WHERE backend_type = 'checkpointer'";
const TIMELINE_OF_CHECKPOINT: &str = "SELECT timeline_id::text FROM pg_control_checkpoint()";

/// A primary and `standbys` standbys that stream from it.
async fn cluster(scene: &Scene, standbys: u32) -> (Instance, Vec<Instance>) {
    let mut first = scene.instance(0);
    first.initdb().await.expect("a database");
    let system_id = first.control().await.system_id;
    first.start_primary().await;
    let mut others = Vec::new();
    for ordinal in 1..=standbys {
        let mut other = scene.instance(ordinal);
        first.sql.ensure_member(&other.member.id).await.expect("admitted");
        other.clone_of(&first, &system_id).await.expect("a clone");
        assert!(!other.control().await.is_primarys(), "a copy is no primary's data");
        other.start_standby(&first).await;
        others.push(other);
    }
    (first, others)
}

impl Instance {
    /// Has the running server follow `primary` in `epoch`.
    async fn follow(&mut self, primary: &Instance, epoch: u64) {
        self.epoch = Epoch(epoch);
        self.volume.follow(self.epoch).expect("no higher promise");
        let role = self.standby_of(primary).await;
        self.configure(&role).await;
        self.until_streaming().await;
    }

    async fn configure(&mut self, role: &Role) {
        let config = self.config(role);
        let server = self.server.as_ref().expect("a server");
        let taken = reload(&self.tools, &self.volume, server, &mut self.sql, &config).await;
        assert!(matches!(taken.expect("an answer"), Reload::Applied { .. }));
    }
}

fn rule(required: usize, names: &[&Instance]) -> SyncRule {
    SyncRule::any(required, names.iter().map(|name| name.member.id.clone()))
}

fn closed(rule: SyncRule) -> Role {
    Role::Primary { rule, open: false }
}

async fn set(primary: &mut Instance, rule: &SyncRule, proven: &SyncRule) -> Result<Lsn, PostgresError> {
    let role = Role::Primary {
        rule: rule.clone(),
        open: true,
    };
    let config = primary.config(&role);
    let server = primary.server.as_ref().expect("a server");
    set_sync(
        &primary.volume,
        server,
        &mut primary.sql,
        &config,
        rule,
        proven.is_synchronous(),
    )
    .await
}

/// Commits a row, as an application does.
async fn commit(primary: &Instance, number: i32) -> tokio::task::JoinHandle<()> {
    let session = primary.session(DATABASE).await;
    tokio::spawn(async move {
        let statement = format!("INSERT INTO entry VALUES ({number})");
        // The server may be stopped meanwhile.
        let _ = session.batch_execute(&statement).await;
    })
}

async fn waits_for_standbys(primary: &Instance) -> bool {
    primary
        .text("SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        .await
        != "0"
}

async fn within(limit: Duration, what: &str, commit: tokio::task::JoinHandle<()>) {
    let done = tokio::time::timeout(limit, commit).await;
    done.unwrap_or_else(|_| panic!("{what}: no commit within {limit:?}"))
        .expect("no panic");
}

async fn count(instance: &Instance, number: i32) -> i64 {
    let session = instance.session(DATABASE).await;
    let row = session
        .query_one("SELECT count(*) FROM entry WHERE number = $1", &[&number])
        .await;
    row.expect("an answer").get(0)
}

/// Asserts that nothing is committed on `primary` for 3 s, and that no standby receives from it.
async fn stays_unacknowledged(primary: &mut Instance, standby: &mut Instance, commit: &tokio::task::JoinHandle<()>) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        assert!(
            !commit.is_finished(),
            "acknowledged {:?} after the promise",
            begun.elapsed()
        );
        let status = standby.sql.status().await.expect("a status");
        assert!(!is_streaming(&status), "it receives again: {status:?}");
        let senders = primary.sql.status().await.expect("a status").senders;
        assert!(senders.is_empty(), "{senders:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(waits_for_standbys(primary).await);
}

#[test]
fn after_a_promise_nothing_is_acknowledged() {
    unprivileged("after_a_promise_nothing_is_acknowledged", |place| async {
        let scene = Scene::new(place).await;
        let (mut first, mut others) = cluster(&scene, 1).await;
        let mut second = others.remove(0);
        let both = rule(1, &[&second]);
        set(&mut first, &both, &SyncRule::default()).await.expect("proven");
        let pause = second.session("postgres").await;
        pause
            .batch_execute("SELECT pg_wal_replay_pause()")
            .await
            .expect("paused");
        within(Duration::from_secs(30), "before the promise", commit(&first, 3).await).await;

        let promised = promise(&second.volume, second.server.as_ref(), Epoch(2))
            .await
            .expect("a promise");
        assert_eq!(promised.epoch, Epoch(2));
        let end = second.sql.status().await.expect("a status");
        assert!(end.receiver.is_none() && !end.replayed_all, "replay is paused: {end:?}");
        assert!(end.received_all, "and yet its end is known: {end:?}");
        let known = end.position;
        let waiting = commit(&first, 4).await;
        stays_unacknowledged(&mut first, &mut second, &waiting).await;
        pause
            .batch_execute("SELECT pg_wal_replay_resume()")
            .await
            .expect("resumed");
        let end = second.until("is at its end", |status| status.replayed_all).await;
        assert_eq!(end.position, known, "what was received has not grown");
        assert_eq!(end.position.timeline, Timeline(1));
        assert_eq!((count(&second, 3).await, count(&second, 4).await), (1, 0));
        stays_unacknowledged(&mut first, &mut second, &waiting).await;

        // A restart does not bring the credential back, even with the old upstream in the settings.
        let role = second.standby_of(&first).await;
        second.stop(StopMode::Fast).await;
        second.try_start(&role).await.expect("started");
        second.until("is at its end", |status| status.replayed_all).await;
        stays_unacknowledged(&mut first, &mut second, &waiting).await;
        assert!(
            second.volume.follow(Epoch(1)).is_err(),
            "the old primary is not followed"
        );

        let store = second.volume.credential_file().with_file_name("promise.json");
        let good = fs::read(&store).expect("a store");
        fs::write(&store, "{").expect("written");
        assert!(
            second.volume.follow(Epoch(9)).is_err(),
            "an unreadable store is not an empty one"
        );
        stays_unacknowledged(&mut first, &mut second, &waiting).await;
        fs::write(&store, good).expect("written");
        // The primary has taken the promised epoch for itself (rule 7).
        second.follow(&first, 2).await;
        within(Duration::from_secs(30), "followed again", waiting).await;
        second.stop(StopMode::Fast).await;
        first.stop(StopMode::Fast).await;
    });
}

async fn promoted(
    standby: &mut Instance,
    timeline: u32,
    rule: &SyncRule,
    allowed: impl Fn() -> bool,
) -> Result<Promoted, PostgresError> {
    let config = standby.config(&closed(rule.clone()));
    let server = standby.server.as_ref().expect("a server");
    let sql = &mut standby.sql;
    promote(
        &standby.volume,
        server,
        sql,
        &config,
        Timeline(timeline),
        &rule.names,
        allowed,
    )
    .await
}

fn stubs(instance: &Instance) -> Vec<String> {
    let wal = fs::read_dir(instance.volume.pgdata().join("pg_wal")).expect("pg_wal");
    let files = wal.map(|entry| entry.expect("an entry").path());
    let mut stubs: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "history"))
        .filter(|path| fs::read_to_string(path).expect("readable").starts_with('#'))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    stubs.sort();
    stubs
}

#[test]
fn a_promotion_picks_the_reserved_timeline_over_a_gap() {
    unprivileged("a_promotion_picks_the_reserved_timeline_over_a_gap", |place| async {
        let scene = Scene::new(place).await;
        let (mut first, mut others) = cluster(&scene, 2).await;
        let (mut third, mut second) = (others.remove(1), others.remove(0));
        for standby in [&second, &third] {
            promise(&standby.volume, standby.server.as_ref(), Epoch(2))
                .await
                .expect("a promise");
        }
        // A commit that only the old primary has.
        within(
            Duration::from_secs(30),
            "nobody is waited for",
            commit(&first, 77).await,
        )
        .await;
        first.stop(StopMode::Immediate).await;

        let names = rule(1, &[&first, &third]);
        let off = promoted(&mut second, 5, &names, || false)
            .await
            .expect_err("called off");
        assert!(matches!(off, PostgresError::Start(StartError::CalledOff)), "{off}");
        assert_eq!(stubs(&second), ["00000002", "00000003", "00000004"]);
        assert_eq!(second.volume.promise().expect("readable").promoting, Some(Timeline(5)));
        // With these stubs PostgreSQL would not even start.
        second.stop(StopMode::Fast).await;
        let enforced = second.control().await.enforced;
        let alone = Role::Standby {
            primary: None,
            enforced,
        };
        second.try_start(&alone).await.expect("started");
        second.until("is at its end", |status| status.replayed_all).await;
        assert_eq!(stubs(&second), [""; 0]);

        let idle = second.session(DATABASE).await;
        let (former, users) = (MemberId::new(3, "cccc0000-3333", 3), "archive");
        for slot in [former.as_str(), users] {
            let made = format!("SELECT pg_create_physical_replication_slot('{slot}')");
            idle.batch_execute(&made).await.expect("a slot");
        }
        let begun = Instant::now();
        let made = promoted(&mut second, 5, &names, || true).await.expect("promoted");
        println!("promoted within {:?}", begun.elapsed());
        let status = second.sql.status().await.expect("a status");
        assert_eq!((made.timeline, status.position.timeline), (Timeline(5), Timeline(5)));
        assert_eq!(made.history.len(), 1, "{made:?}");
        assert!(made.history[0].timeline == Timeline(1) && made.history[0].end == made.at);
        assert_eq!(status.history, made.history);
        assert!(second.control().await.is_primarys());
        assert!(
            idle.batch_execute("SELECT 1").await.is_err(),
            "sessions of before are ended"
        );
        for name in [&first, &third] {
            let slot = status.slots.iter().find(|slot| slot.name == name.member.id.as_str());
            assert!(slot.is_some_and(|slot| slot.restart.is_some()), "{:?}", status.slots);
        }
        let has = |name: &str| status.slots.iter().any(|slot| slot.name == name);
        assert!(!has(former.as_str()), "it would stream before it has promised");
        assert!(has(users), "the user's own stays");
        let waiting = commit(&second, 5).await;
        second.until("makes the commit wait", |_| true).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(
            !waiting.is_finished() && waits_for_standbys(&second).await,
            "names before promotion"
        );
        third.follow(&second, 2).await;
        let holds = |status: &Status| {
            machine::instance::receiving(&status.wal_senders()).get(&third.member.id) >= Some(&made.at)
        };
        second
            .until("hears that the standby has all up to the fork", holds)
            .await;
        within(Duration::from_secs(30), "a standby follows over the gap", waiting).await;
        let followed = third.until("replays", |status| status.replayed > Some(made.at)).await;
        assert_eq!(followed.position.timeline, Timeline(5));
        // Without a receiver the status still names the timeline of the last WAL, whatever the control file says.
        let begun = Instant::now();
        let promised = promise(&third.volume, third.server.as_ref(), Epoch(3)).await;
        println!("promised within {:?}", begun.elapsed());
        assert_eq!(promised.expect("a promise").epoch, Epoch(3));
        let end = third.until("is at its end", |status| status.replayed_all).await;
        assert_eq!(end.position.timeline, Timeline(5));
        third.stop(StopMode::Immediate).await;
        third.epoch = Epoch(3);
        third.start_standby(&second).await;

        rewound(&mut first, &mut second).await;
        third.stop(StopMode::Fast).await;
        first.stop(StopMode::Fast).await;
        second.stop(StopMode::Fast).await;
    });
}

/// A standby died while it received the beginning of a new timeline's first segment. That beginning is the ancestor's
/// WAL.
#[test]
fn a_timeline_that_was_torn_off_before_it_begins_hides_nothing() {
    unprivileged(
        "a_timeline_that_was_torn_off_before_it_begins_hides_nothing",
        |place| async {
            let scene = Scene::new(place).await;
            let (mut first, mut others) = cluster(&scene, 2).await;
            let (mut third, mut second) = (others.remove(1), others.remove(0));
            within(Duration::from_secs(30), "nobody is waited for", commit(&first, 4).await).await;
            let torn = first.sql.status().await.expect("a status").position.lsn;
            set(&mut first, &rule(2, &[&second, &third]), &SyncRule::default())
                .await
                .expect("proven");
            within(Duration::from_secs(30), "both have it", commit(&first, 3).await).await;
            first.stop(StopMode::Fast).await;
            let end = async |standby: &mut Instance| {
                standby
                    .until("is at its end", |status| status.replayed_all)
                    .await
                    .position
            };
            let known = end(&mut third).await;
            assert_eq!(end(&mut second).await, known);
            third.stop(StopMode::Immediate).await;
            let made = promoted(&mut second, 2, &rule(1, &[&third]), || true)
                .await
                .expect("promoted");
            assert!(
                torn < known.lsn && known.lsn == made.history[0].end,
                "{torn} {known:?} {made:?}"
            );

            let alone = Role::Standby {
                primary: None,
                enforced: third.control().await.enforced,
            };
            let followed = third.standby_of(&second).await;
            for role in [alone, followed.clone()] {
                tear(&third, &second, torn).await;
                third.volume.follow(Epoch(1)).expect("no higher promise");
                third.try_start(&role).await.expect("started");
                match role == followed {
                    false => assert_eq!(end(&mut third).await, known),
                    true => drop(third.until_streaming().await),
                }
                assert_eq!(count(&third, 3).await, 1);
                third.stop(StopMode::Immediate).await;
            }
            second.stop(StopMode::Immediate).await;
        },
    );
}

/// Writes the first segment of `primary`'s timeline as if `standby` had received it up to `torn`, which is before the
/// fork.
async fn tear(standby: &Instance, primary: &Instance, torn: Lsn) {
    let [ours, theirs] = [standby, primary].map(|instance| instance.volume.pgdata().join("pg_wal"));
    fs::copy(theirs.join("00000002.history"), ours.join("00000002.history")).expect("copied");
    let size = u64::from(standby.control().await.wal_sizes.segment);
    let (segment, offset) = (torn.0 / size, usize::try_from(torn.0 % size).expect("small"));
    let mut bytes = fs::read(theirs.join(format!("00000002{segment:016X}"))).expect("its first segment");
    bytes[offset..].fill(0);
    fs::write(ours.join(format!("00000002{segment:016X}")), bytes).expect("written");
}

/// Waits until the control file names the timeline.
async fn await_checkpoint(primary: &Instance, timeline: &str) {
    let mut left = 3_000;
    while primary.text(TIMELINE_OF_CHECKPOINT).await != timeline {
        left -= 1;
        assert!(left > 0, "no checkpoint follows the promotion");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// PostgreSQL 15 treats both as the same timeline, and does nothing; newer versions rewind.
#[test]
fn a_rewind_before_the_new_primarys_first_checkpoint_is_whole_or_none() {
    unprivileged(
        "a_rewind_before_the_new_primarys_first_checkpoint_is_whole_or_none",
        |place| async {
            let scene = Scene::new(place).await;
            let (mut first, mut others) = cluster(&scene, 1).await;
            let mut second = others.remove(0);
            promise(&second.volume, second.server.as_ref(), Epoch(2))
                .await
                .expect("a promise");
            within(
                Duration::from_secs(30),
                "nobody is waited for",
                commit(&first, 77).await,
            )
            .await;
            first.stop(StopMode::Immediate).await;
            let checkpointer = process(&second.text(CHECKPOINTER).await);
            let hold = || {
                signal(checkpointer, Signal::STOP);
                true
            };
            promoted(&mut second, 2, &rule(1, &[&first]), hold)
                .await
                .expect("promoted");
            assert_eq!(second.text(TIMELINE_OF_CHECKPOINT).await, "1");
            second.sql.ensure_member(&first.member.id).await.expect("admitted");
            let waiting = commit(&second, 5).await;

            let source = first.upstream(&second);
            let files = first.files.clone();
            rewind(&first.tools, &first.volume, &files, &source, Epoch(2))
                .await
                .expect("it ends");
            assert!(!first.volume.is_rewinding().expect("readable"));
            first.epoch = Epoch(2);
            if first.control().await.is_primarys() {
                println!("it was put off");
                signal(checkpointer, Signal::CONT);
                await_checkpoint(&second, "2").await;
                rewind(&first.tools, &first.volume, &files, &source, Epoch(2))
                    .await
                    .expect("rewound");
                first.start_standby(&second).await;
            } else {
                first.start_standby(&second).await;
                signal(checkpointer, Signal::CONT);
            }
            within(Duration::from_secs(30), "it follows", waiting).await;
            first
                .until("has caught up", |status| status.position.timeline == Timeline(2))
                .await;
            assert!(!first.control().await.is_primarys());
            first
                .until("replays all", |status| status.replayed >= Some(status.position.lsn))
                .await;
            assert_eq!((count(&first, 77).await, count(&first, 5).await), (0, 1));
            first.stop(StopMode::Fast).await;
            second.stop(StopMode::Fast).await;
        },
    );
}

/// The old primary, which was killed with a commit that no other member has, follows the new one.
async fn rewound(old: &mut Instance, new: &mut Instance) {
    assert!(old.control().await.is_primarys());
    new.sql.ensure_member(&old.member.id).await.expect("admitted");
    await_checkpoint(new, "5").await;
    let history = new.sql.status().await.expect("a status").history;
    let aside = old.volume.pgdata().with_file_name("aside");
    let names = |directory: &Path| -> Vec<String> {
        let entries = fs::read_dir(directory).expect("a directory");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name().into_string();
        entries.map(|entry| name(entry).expect("plain")).collect()
    };
    // A copy that broke off does not count as a part of it.
    fs::create_dir_all(aside.join(".wal/pg_wal/strange")).expect("made");
    for _ in 0..2 {
        old.volume.keep_tail(&old.tools, history.clone()).await.expect("kept");
        let kept = names(&aside);
        assert!(kept.len() == 1 && kept[0].starts_with("wal-"), "once: {kept:?}");
        fs::write(aside.join(&kept[0]).join("touched"), "").expect("written");
        assert!(old.volume.kept().expect("readable").contains(&kept[0]));
    }
    let kept = aside.join(&names(&aside)[0]);
    assert!(kept.join("touched").exists() && kept.join("global/pg_control").exists());
    assert_eq!(
        names(&kept.join("pg_wal"))
            .iter()
            .filter(|name| name.len() == 24)
            .count(),
        1
    );
    let source = old.upstream(new);
    let closed_port = agent::postgres::Primary {
        port: 1,
        ..source.clone()
    };
    let broken = rewind(&old.tools, &old.volume, &old.files, &closed_port, Epoch(2)).await;
    assert!(
        broken.is_err() && !old.volume.is_rewinding().expect("readable"),
        "nothing was changed"
    );
    old.volume.begin_rewind().expect("marked");
    let refused = old.try_start(&open_primary()).await.expect_err("it may be torn");
    assert!(matches!(refused, PostgresError::Start(StartError::Torn)), "{refused}");
    let again = rewind(&old.tools, &old.volume, &old.files, &source, Epoch(2)).await;
    assert!(again.is_err(), "torn data is not rewound a second time");
    old.volume.finish_rewind().expect("unmarked");
    rewind(&old.tools, &old.volume, &old.files, &source, Epoch(2))
        .await
        .expect("rewound");
    assert!(!old.volume.is_rewinding().expect("readable"));
    assert_eq!(old.volume.promise().expect("readable").epoch, Epoch(2));
    assert!(!old.control().await.is_primarys());
    old.epoch = Epoch(2);
    old.start_standby(new).await;
    old.until("has caught up", |status| status.position.timeline == Timeline(5))
        .await;
    assert_eq!((count(old, 77).await, count(old, 5).await), (0, 1));
}

#[test]
fn the_rule_grows_and_shrinks_with_proof() {
    unprivileged("the_rule_grows_and_shrinks_with_proof", |place| async {
        let scene = Scene::new(place).await;
        let (mut first, mut others) = cluster(&scene, 2).await;
        let (mut third, mut second) = (others.remove(1), others.remove(0));
        let (none, one, two) = (SyncRule::default(), rule(1, &[&second]), rule(2, &[&second, &third]));
        // Commits wait only once the checkpointer has noticed the setting.
        let checkpointer = process(&first.text(CHECKPOINTER).await);
        signal(checkpointer, Signal::STOP);
        let held = Duration::from_secs(1);
        let release = tokio::spawn(async move {
            tokio::time::sleep(held).await;
            signal(checkpointer, Signal::CONT);
        });
        let begun = Instant::now();
        let at = set(&mut first, &one, &none).await.expect("proven");
        let took = begun.elapsed();
        assert!(took > held && took < Duration::from_secs(30), "{took:?}");
        release.await.expect("no panic");
        assert!(at <= first.sql.status().await.expect("a status").inserted.expect("a primary"));
        let names = first.text("SHOW synchronous_standby_names").await;
        assert_eq!(names, format!("ANY 1 ({})", second.member.id));
        set(&mut first, &two, &one).await.expect("proven");
        within(Duration::from_secs(30), "both are there", commit(&first, 3).await).await;
        assert_eq!(first.sql.status().await.expect("a status").standbys().len(), 2);

        // One standby is silent: the proof of a rule without it ends its WAL sender.
        let frozen = receiver_of(&third).await;
        signal(frozen, Signal::STOP);
        let waiting = commit(&first, 4).await;
        let begun = Instant::now();
        set(&mut first, &one, &two).await.expect("proven");
        let took = begun.elapsed();
        assert!(
            took > Duration::from_secs(1),
            "a silent WAL sender proves nothing, {took:?}"
        );
        assert!(took < Duration::from_secs(30), "{took:?}");
        within(Duration::from_secs(30), "the other one is enough", waiting).await;
        let names: Vec<_> = first
            .sql
            .status()
            .await
            .expect("a status")
            .standbys()
            .into_keys()
            .collect();
        assert_eq!(names, std::slice::from_ref(&second.member.id));
        signal(frozen, Signal::CONT);
        third.until_streaming().await;

        second.stop(StopMode::Fast).await;
        let waiting = commit(&first, 5).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!waiting.is_finished() && waits_for_standbys(&first).await);
        first
            .sql
            .write_canary()
            .await
            .expect("the agent's own writes wait for nobody");
        first
            .sql
            .ensure_password("app", "another")
            .await
            .expect("nor its statements");
        set(&mut first, &none, &one).await.expect("proven");
        within(Duration::from_secs(30), "nobody is waited for", waiting).await;
        third.stop(StopMode::Fast).await;
        first.stop(StopMode::Fast).await;
    });
}

async fn receiver_of(standby: &Instance) -> Pid {
    let text = standby.text("SELECT pid::text FROM pg_stat_wal_receiver").await;
    process(&text)
}

fn process(number: &str) -> Pid {
    Pid::from_raw(number.parse().expect("a number")).expect("a process")
}

fn signal(pid: Pid, signal: Signal) {
    kill_process(pid, signal).expect("sent");
}

#[test]
fn a_closed_primary_lets_only_members_in() {
    unprivileged("a_closed_primary_lets_only_members_in", |place| async {
        let scene = Scene::new(place).await;
        let (mut first, mut others) = cluster(&scene, 1).await;
        let mut second = others.remove(0);
        first.stop(StopMode::Fast).await;
        let names = rule(1, &[&second]);
        first.try_start(&closed(names.clone())).await.expect("started");
        first.until("accepts writes", |status| !status.in_recovery).await;
        second.until_streaming().await;
        let refused = application(&scene, &first).await.expect_err("it is closed");
        assert!(refused.contains("pg_hba.conf rejects"), "{refused}");
        let config = first.config(&Role::Primary {
            rule: names.clone(),
            open: true,
        });
        let server = first.server.as_ref().expect("a server");
        open(&first.volume, server, &mut first.sql, &config)
            .await
            .expect("opened");
        application(&scene, &first).await.expect("it is open");
        assert_eq!(first.text("SHOW synchronous_standby_names").await, config.synchronous);
        first.stop(StopMode::Fast).await;
        second.stop(StopMode::Fast).await;
    });
}

async fn application(scene: &Scene, to: &Instance) -> Result<(), String> {
    let target = format!(
        "hostaddr=127.0.0.1 port={} dbname='{DATABASE}' user=app sslmode=require connect_timeout=5",
        to.settings.port
    );
    let mut command = scene.tools.command("psql");
    command
        .env("PGPASSWORD", PASSWORD)
        .args(["--no-psqlrc", "--no-password", "-c", "SELECT 1", &target]);
    let ran = scene.supervisor.run(command, Duration::from_secs(20)).await;
    ran.map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn data_gives_way_to_a_new_copy() {
    unprivileged("data_gives_way_to_a_new_copy", |place| async {
        let scene = Scene::new(place).await;
        let (mut first, mut others) = cluster(&scene, 1).await;
        let mut second = others.remove(0);
        let system_id = first.control().await.system_id;
        for keep in [true, false] {
            second.stop(StopMode::Immediate).await;
            second.volume.begin_rewind().expect("marked");
            second.volume.set_aside(&second.tools, keep).await.expect("set aside");
            assert_eq!(second.data().await, DataState::Empty);
            assert!(!second.volume.is_rewinding().expect("readable"));
            second.clone_of(&first, &system_id).await.expect("a clone");
            second.start_standby(&first).await;
        }
        let aside = second.volume.pgdata().with_file_name("aside");
        let kept: Vec<_> = fs::read_dir(aside).expect("a directory").collect();
        assert_eq!(kept.len(), 1, "only what is to be kept: {kept:?}");
        let kept = kept[0].as_ref().expect("an entry").path();
        assert!(kept.join("PG_VERSION").exists());
        let wal = fs::read_link(kept.join("pg_wal")).expect("a link");
        assert_ne!(Some(wal.as_path()), second.volume.wal_directory(), "its own WAL");
        assert!(fs::read_dir(wal).expect("its WAL").count() > 0);
        second.stop(StopMode::Fast).await;
        first.stop(StopMode::Fast).await;
        assert_eq!(postgres_processes().expect("/proc"), []);
    });
}
