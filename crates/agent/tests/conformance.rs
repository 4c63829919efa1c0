//! Runs the simulator's scripts on real PostgreSQL servers, with the agent's functions. After each step the servers
//! must show what the model shows.

#[path = "support/certificates.rs"]
mod certificates;
#[path = "support/instance.rs"]
mod instance;
#[path = "support/link.rs"]
mod link;
#[path = "support/unprivileged.rs"]
mod unprivileged;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use agent::postgres::{
    CloneSource, Primary, Reload, Role, Server, Status, StopMode, clone, processes_on, promise, promote, reload,
    rewind, set_sync,
};
use agent::volume::DataState;
use instance::{Instance, Scene, copy_files};
use link::Link;
use machine::instance::Data;
use machine::protocol::{Epoch, MemberId, Timeline};
use machine::quorum::SyncRule;
use rustix::process::{Pid, Signal, kill_process};
use sim::simulator::conformance::{
    Bench, Commit, MEMBERS, Position, ROW, Rule, Runs, Script, Seen, Step, View, beginning, scripts,
};
use tokio::task::JoinHandle;
use unprivileged::unprivileged;

const DATABASE: &str = "Orders \"1\"";
/// The rows of scripts begin above the rows that exist already.
const FIRST_ROW: u32 = 100;
/// Time limit until both show the same, and the time for which they must then agree.
const PATIENCE: Duration = Duration::from_secs(120);
const LASTS: Duration = Duration::from_millis(500);
/// The scripts are divided into parts, so that these run in parallel.
const PARTS: usize = 4;
/// Scripts that run only with `CDB_SCRIPT`: the others cover most of what these cover.
const ON_DEMAND: [&str; 5] = [
    "drawn by seed 0",
    "drawn by seed 3",
    "a standby that is killed or stopped continues where it was",
    "a primary that is stopped without a standby has more WAL than it: it must be rewound",
    "a killed primary whose rows all are in the next timeline follows as it is",
];

#[test]
fn first_part_on_both() {
    unprivileged("first_part_on_both", |place| part(place, 0));
}

#[test]
fn second_part_on_both() {
    unprivileged("second_part_on_both", |place| part(place, 1));
}

#[test]
fn third_part_on_both() {
    unprivileged("third_part_on_both", |place| part(place, 2));
}

#[test]
fn fourth_part_on_both() {
    unprivileged("fourth_part_on_both", |place| part(place, 3));
}

/// All scripts except those on demand; with `CDB_SCRIPT`, the scripts whose names contain its value.
fn chosen() -> Vec<Script> {
    let mut chosen = scripts();
    let all = chosen.len();
    match std::env::var("CDB_SCRIPT") {
        Ok(name) => chosen.retain(|script| script.name.contains(&name)),
        Err(_) => {
            chosen.retain(|script| !ON_DEMAND.contains(&script.name.as_str()));
            assert_eq!(chosen.len() + ON_DEMAND.len(), all, "ON_DEMAND names what is no script");
        }
    }
    chosen
}

async fn part(place: unprivileged::Place, part: usize) {
    let scene = Scene::new(place).await;
    let mut servers = Servers::new(&scene).await;
    let mut wrong = Vec::new();
    for script in chosen().into_iter().skip(part).step_by(PARTS) {
        servers.put_back().await;
        let begun = Instant::now();
        let result = servers.run(&script).await;
        println!("{:?}: {}", begun.elapsed(), script.name);
        wrong.extend(result.err());
        scene.supervisor.kill_everything_else(&[]).await.expect("killed");
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Three members, and the links between them.
struct Servers {
    scratch: std::path::PathBuf,
    members: Vec<Instance>,
    links: BTreeMap<(usize, usize), Link>,
    system_id: String,
    epoch: u64,
    /// The member that each follows.
    upstream: [Option<usize>; MEMBERS],
    /// The synchronous rule that each has proven.
    proven: Vec<SyncRule>,
    commits: BTreeMap<u32, (Option<JoinHandle<bool>>, Commit)>,
}

impl Servers {
    /// Makes the initial state of every script, and keeps it aside.
    async fn new(scene: &Scene) -> Self {
        let mut members: Vec<Instance> = (0..MEMBERS as u32).map(|ordinal| scene.instance(ordinal)).collect();
        let mut links = BTreeMap::new();
        for one in 0..MEMBERS {
            for other in (0..MEMBERS).filter(|other| *other != one) {
                links.insert((one, other), Link::to(members[other].settings.port).await);
            }
        }
        let (first, others) = members.split_at_mut(1);
        let first = &mut first[0];
        first.initdb().await.expect("a database");
        let system_id = first.control().await.system_id;
        first.start_primary().await;
        // Roles exist on all servers, slots on each one alone.
        first.sql.ensure_member(&first.member.id).await.expect("a role");
        let own = format!("SELECT pg_drop_replication_slot('{}')::text", first.member.id);
        first.text(&own).await;
        for other in others.iter_mut() {
            first.sql.ensure_member(&other.member.id).await.expect("admitted");
            other.clone_of(first, &system_id).await.expect("a clone");
            other.start_standby(first).await;
        }
        first.stop(StopMode::Fast).await;
        for other in others {
            other.stop(StopMode::Fast).await;
        }
        let scratch = scene.place.scratch.clone();
        for member in 0..MEMBERS {
            let (own, kept) = (scratch.join(member.to_string()), scratch.join(format!("kept-{member}")));
            copy_files(&scene.supervisor, &own, &kept).await;
        }
        Self {
            scratch,
            members,
            links,
            system_id,
            epoch: 1,
            upstream: [None; MEMBERS],
            proven: vec![SyncRule::default(); MEMBERS],
            commits: BTreeMap::new(),
        }
    }

    async fn put_back(&mut self) {
        for member in 0..MEMBERS {
            self.members[member].server = None;
            let place = self.scratch.join(member.to_string());
            fs::remove_dir_all(&place).expect("removed");
            copy_files(
                self.members[member].tools.supervisor(),
                &self.scratch.join(format!("kept-{member}")),
                &place,
            )
            .await;
        }
        self.links.values().for_each(|link| link.cut(false));
        self.epoch = 1;
        self.upstream = [None; MEMBERS];
        self.commits.clear();
    }

    async fn run(&mut self, script: &Script) -> Result<(), String> {
        let mut bench = Bench::new();
        let mut told = format!("{}\n", script.name);
        for step in beginning().iter().chain(&script.steps) {
            let expected = bench.take(step);
            self.epoch += 1;
            let refused = self.step(step).await.err();
            let seen = self.settle(&expected, refused.is_some()).await;
            told += &format!("{step:?}\n{expected}");
            if let Err(seen) = seen {
                let why = refused.unwrap_or_default();
                return Err(format!("{told}PostgreSQL instead of the last: {why}\n{seen}"));
            }
        }
        Ok(())
    }

    /// Waits until the servers show what is expected, and go on showing it. Otherwise returns what they show.
    async fn settle(&mut self, expected: &View, refused: bool) -> Result<(), View> {
        let begun = Instant::now();
        let mut since: Option<Instant> = None;
        loop {
            let seen = self.view(refused).await;
            if seen.to_string() != expected.to_string() {
                since = None;
                if begun.elapsed() > PATIENCE {
                    return Err(seen);
                }
            } else if since.get_or_insert_with(Instant::now).elapsed() > LASTS {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
    }

    async fn step(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Write(at, row) => self.write(at, row).await,
            Step::SetRule(at, ref rule) => self.set_rule(at, rule).await,
            Step::Kill(at) => {
                self.kill(at).await;
                Ok(())
            }
            Step::Stop(at) => {
                if self.members[at].server.is_some() {
                    self.members[at].stop(StopMode::Fast).await;
                }
                Ok(())
            }
            Step::PowerLoss(at, row) => self.power_loss(at, row).await,
            Step::Serve(at, ref rule) => {
                self.free(at)?;
                let rule = self.sync(rule);
                self.proven[at] = rule.clone();
                let role = Role::Primary { rule, open: true };
                self.members[at].try_start(&role).await.map_err(words)
            }
            Step::Follow(at, from) => self.follow(at, from).await,
            Step::Cut(one, other) | Step::Heal(one, other) => {
                let cut = matches!(step, Step::Cut(..));
                self.links[&(one, other)].cut(cut);
                self.links[&(other, one)].cut(cut);
                Ok(())
            }
            Step::Promise(at) => {
                let member = &self.members[at];
                let promised = promise(&member.volume, member.server.as_ref(), Epoch(self.epoch)).await;
                self.upstream[at] = None;
                promised.map(|_| ()).map_err(words)
            }
            Step::Promote(at, timeline, ref rule) => self.promote(at, timeline, rule).await,
            Step::Rewind(at, from) => {
                self.free(at)?;
                // The control file of a source must name its timeline.
                if self.members[from].server.is_some() {
                    self.execute(from, "CHECKPOINT").await?;
                }
                let (source, epoch) = (self.primary(at, from), Epoch(self.epoch));
                let member = &self.members[at];
                let rewound = rewind(&member.tools, &member.volume, &member.files, &source, epoch).await;
                rewound.map_err(words)
            }
            Step::Copy(at, from) => self.copy(at, from).await,
            Step::Admit(at, other) => {
                let member = self.members[other].member.id.clone();
                self.running(at)?;
                let admitted = self.members[at].sql.ensure_member(&member).await;
                admitted.map(|_| ()).map_err(words)
            }
            Step::DropSlots(at, ref keep) => {
                let keep = self.names(keep);
                self.running(at)?;
                let dropped = self.members[at].sql.drop_members_except(&keep).await;
                dropped.map(|_| ()).map_err(words)
            }
            Step::Checkpoint(at) => self.execute(at, "CHECKPOINT").await,
            Step::SwitchWal(at) => self.execute(at, "SELECT pg_switch_wal()").await,
        }
    }

    fn names(&self, members: &[usize]) -> BTreeSet<MemberId> {
        members
            .iter()
            .map(|other| self.members[*other].member.id.clone())
            .collect()
    }

    fn sync(&self, rule: &Rule) -> SyncRule {
        match rule.required {
            0 => SyncRule::default(),
            required => SyncRule::any(required, self.names(&rule.names)),
        }
    }

    fn running(&self, at: usize) -> Result<(), String> {
        let runs = self.members[at].server.is_some();
        runs.then_some(()).ok_or_else(|| "nothing runs there".to_owned())
    }

    fn free(&self, at: usize) -> Result<(), String> {
        self.running(at).map_or(Ok(()), |()| Err("it runs".to_owned()))
    }

    async fn execute(&self, at: usize, statement: &str) -> Result<(), String> {
        self.running(at)?;
        let session = self.members[at].session("postgres").await;
        session.batch_execute(statement).await.map_err(words)
    }

    async fn write(&mut self, at: usize, row: u32) -> Result<(), String> {
        self.running(at)?;
        let session = self.members[at].session(DATABASE).await;
        let recovers = session
            .query_one("SELECT pg_is_in_recovery()", &[])
            .await
            .map_err(words)?;
        if recovers.get(0) {
            return Err("it recovers".to_owned());
        }
        let commit = tokio::spawn(async move {
            let statement = format!(
                "BEGIN; INSERT INTO entry VALUES ({}); SELECT pg_logical_emit_message(true, 'row', repeat('x', {ROW})); COMMIT",
                FIRST_ROW + row
            );
            session.batch_execute(&statement).await.is_ok()
        });
        self.commits.insert(row, (Some(commit), Commit::Waits));
        Ok(())
    }

    async fn set_rule(&mut self, at: usize, rule: &Rule) -> Result<(), String> {
        self.running(at)?;
        let rule = self.sync(rule);
        let proven = std::mem::replace(&mut self.proven[at], rule.clone());
        let member = &mut self.members[at];
        let open = Role::Primary {
            rule: rule.clone(),
            open: true,
        };
        let config = member.config(&open);
        let server = member.server.as_ref().ok_or("it is down")?;
        let set = set_sync(
            &member.volume,
            server,
            &mut member.sql,
            &config,
            &rule,
            proven.is_synchronous(),
        )
        .await;
        set.map(|_| ()).map_err(words)
    }

    async fn kill(&mut self, at: usize) {
        let Some(server): Option<Server> = self.members[at].server.take() else {
            return;
        };
        let pgdata = self.members[at].volume.pgdata();
        loop {
            let left = processes_on(&pgdata).expect("/proc");
            for pid in &left {
                if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
                    // It may have ended already.
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            if left.is_empty() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.stopped(Duration::from_secs(10)).await.expect("its end is known");
    }

    /// Kills the server when the row is written, and removes the WAL that was written since.
    async fn power_loss(&mut self, at: usize, row: u32) -> Result<(), String> {
        let before = self.members[at].sql.status().await.map_err(words)?.position;
        self.write(at, row).await?;
        let wanted = before.lsn.0 + ROW;
        self.members[at]
            .until("has written", |status| status.position.lsn.0 >= wanted)
            .await;
        self.kill(at).await;
        if let Some(commit) = self.commits.get_mut(&row) {
            // Its answer came before the power loss that the test imitates.
            *commit = (None, Commit::Unknown);
        }
        let segment = u64::from(self.members[at].control().await.wal_sizes.segment);
        let wal = self.members[at].volume.pgdata().join("pg_wal");
        let mut from = before.lsn.0;
        loop {
            let name = format!("{:08X}{:08X}{:08X}", before.timeline.0, 0, from / segment);
            let Ok(file) = OpenOptions::new().write(true).open(wal.join(name)) else {
                return Ok(());
            };
            let offset = from % segment;
            let zeros = vec![0; (segment - offset) as usize];
            file.write_all_at(&zeros, offset).expect("written");
            from += segment - offset;
        }
    }

    fn primary(&self, at: usize, from: usize) -> Primary {
        Primary {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: self.links[&(at, from)].port,
            member: self.members[at].member.id.clone(),
        }
    }

    async fn follow(&mut self, at: usize, from: usize) -> Result<(), String> {
        let primary = Some(self.primary(at, from));
        let member = &mut self.members[at];
        if matches!(member.data().await, DataState::Empty | DataState::Unfinished { .. }) {
            return Err("there is no data".to_owned());
        }
        if let (Some(_), Ok(status)) = (&member.server, member.sql.status().await)
            && !status.in_recovery
        {
            return Err("it is a primary".to_owned());
        }
        let enforced = member.control().await.enforced;
        let role = Role::Standby { primary, enforced };
        member.volume.follow(Epoch(self.epoch)).map_err(words)?;
        let config = member.config(&role);
        let taken = match &member.server {
            None => member.try_start(&role).await.map_err(words),
            Some(server) => match reload(&member.tools, &member.volume, server, &mut member.sql, &config).await {
                Ok(Reload::Applied { .. }) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        };
        self.upstream[at] = Some(from);
        taken
    }

    async fn promote(&mut self, at: usize, timeline: u32, rule: &Rule) -> Result<(), String> {
        let rule = self.sync(rule);
        let closed = Role::Primary {
            rule: rule.clone(),
            open: false,
        };
        self.running(at)?;
        self.proven[at] = rule.clone();
        let member = &mut self.members[at];
        let config = member.config(&closed);
        let server = member.server.as_ref().ok_or("it is down")?;
        let timeline = Timeline(timeline);
        let promoted = promote(
            &member.volume,
            server,
            &mut member.sql,
            &config,
            timeline,
            &rule.names,
            || true,
        )
        .await;
        promoted.map_err(words)?;
        self.upstream[at] = None;
        Ok(())
    }

    async fn copy(&mut self, at: usize, from: usize) -> Result<(), String> {
        self.free(at)?;
        let source = CloneSource {
            primary: self.primary(at, from),
            files: self.members[at].files.clone(),
            system_id: self.system_id.clone(),
        };
        let member = &self.members[at];
        match member.data().await {
            DataState::Empty => {}
            DataState::Unfinished { .. } => member.volume.discard_unfinished().await.map_err(words)?,
            DataState::Ready(_) => member.volume.set_aside(&member.tools, false).await.map_err(words)?,
        }
        clone(&member.tools, &member.volume, &source).await.map_err(words)
    }

    async fn view(&mut self, refused: bool) -> View {
        for (handle, commit) in self.commits.values_mut() {
            if let Some(done) = handle.take_if(|handle| handle.is_finished()) {
                *commit = match done.await {
                    Ok(true) => Commit::Acknowledged,
                    _ => Commit::Unknown,
                };
            }
        }
        let mut members = Vec::new();
        let mut served = BTreeSet::new();
        for at in 0..MEMBERS {
            let (seen, serves) = self.seen(at).await;
            members.push(seen);
            served.extend(serves.into_iter().map(|to| (at, to)));
        }
        // A refused receiver retries, and its status says streaming meanwhile.
        for (at, seen) in members.iter_mut().enumerate() {
            if let Runs::Standby(from) = &mut seen.runs {
                *from = from.filter(|from| served.contains(&(*from, at)));
            }
        }
        let commits = self.commits.iter().map(|(row, (_, commit))| (*row, *commit)).collect();
        View {
            refused,
            members,
            commits,
        }
    }

    /// The state of a member, and the members that it sends WAL to.
    async fn seen(&mut self, at: usize) -> (Seen, BTreeSet<usize>) {
        if self.members[at].server.is_none() {
            return (self.seen_down(at).await, BTreeSet::new());
        }
        let Ok(status) = self.members[at].sql.status().await else {
            let runs = Runs::Recovers;
            let seen = Seen {
                runs,
                ..Seen::default()
            };
            return (seen, BTreeSet::new());
        };
        let number = |name: &str| self.members.iter().position(|member| member.member.id.as_str() == name);
        let streams = status
            .receiver
            .as_ref()
            .is_some_and(|receiver| receiver.status == "streaming");
        let seen = Seen {
            runs: match status.in_recovery {
                true => Runs::Standby(self.upstream[at].filter(|_| streams)),
                false => Runs::Primary(status.history.iter().map(|fork| fork.timeline.0).collect()),
            },
            position: Some(position(&status)),
            senders: status
                .standbys()
                .keys()
                .filter_map(|name| number(name.as_str()))
                .collect(),
            slots: status.slots.iter().filter_map(|slot| number(&slot.name)).collect(),
            rows: self.rows(at).await,
        };
        let begun = status.senders.iter().filter(|sender| sender.state != "startup");
        let serves = begun.filter_map(|sender| number(&sender.user)).collect();
        (seen, serves)
    }

    async fn seen_down(&self, at: usize) -> Seen {
        let member = &self.members[at];
        let found = agent::observe::scan(&member.volume, &member.tools)
            .await
            .expect("readable");
        let Data::Present(found) = found.view.data else {
            return Seen::default();
        };
        Seen {
            runs: Runs::Down {
                primary: found.primary,
                clean: found.clean,
            },
            position: Some(Position {
                timeline: found.timeline.0,
                lsn: found.written.0,
            }),
            ..Seen::default()
        }
    }

    async fn rows(&self, at: usize) -> BTreeSet<u32> {
        let session = self.members[at].session(DATABASE).await;
        let query = "SELECT number FROM entry WHERE number >= $1";
        let rows = session.query(query, &[&(FIRST_ROW as i32)]).await.unwrap_or_default();
        let numbers = rows.iter().map(|row| row.get::<_, i32>(0) as u32 - FIRST_ROW);
        numbers.collect()
    }
}

fn position(status: &Status) -> Position {
    Position {
        timeline: status.position.timeline.0,
        lsn: status.position.lsn.0,
    }
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}
