//! The model's side: a world without agents. Scripts take their place.

use std::collections::{BTreeMap, BTreeSet};

use machine::instance::steps::{self, PromiseStep, PromotionStep, Walk};
use machine::instance::{Mode, Stop, Upstream};
use machine::protocol::Epoch;
use machine::quorum::SyncRule;

use super::super::event::{Change, Task};
use super::super::names::{SETTINGS, address, member, owner};
use super::super::plan::{Fault, Plan};
use super::super::postgres::{self, Ends};
use super::super::world::World;
use super::{Commit, MEMBERS, Position, ROW, Rule, Runs, Seen, Step, View};

/// How long the world continues after a step, in milliseconds.
const SETTLES: u64 = 25_000;

/// The model under a script.
pub struct Bench {
    world: World,
    /// Where each row was written, and by which server.
    written: BTreeMap<u32, Row>,
    epoch: u64,
}

struct Row {
    at: usize,
    server: u64,
    end: super::super::wal::End,
    commit: Commit,
}

impl Default for Bench {
    fn default() -> Self {
        Self::new()
    }
}

impl Bench {
    /// Three members that were stopped cleanly, the first of them a primary with slots for the others.
    pub fn new() -> Self {
        let mut world = World::new(Plan::failovers(1, Fault::Reboot, 0), false);
        world.queue = Default::default();
        if let Some(data) = world.nodes[0].volume.data.as_mut() {
            data.slots.remove(&member(0, 0));
        }
        Self {
            world,
            written: BTreeMap::new(),
            epoch: 1,
        }
    }

    /// Takes a step, and lets the world settle.
    pub fn take(&mut self, step: &Step) -> View {
        self.epoch += 1;
        let done = self.step(step);
        self.world.pass(SETTLES);
        self.settle_commits();
        View {
            refused: done.is_none(),
            members: (0..MEMBERS).map(|node| self.seen(node)).collect(),
            commits: self.written.iter().map(|(row, known)| (*row, known.commit)).collect(),
        }
    }

    /// Returns `None` if the step is refused.
    fn step(&mut self, step: &Step) -> Option<()> {
        let world = &mut self.world;
        match *step {
            Step::Write(at, row) => self.write(at, row)?,
            Step::SetRule(at, ref rule) => {
                self.primary(at)?;
                let change = Change {
                    rule: sync(rule),
                    checkpoint: false,
                    stage: 0,
                    begun: self.world.now,
                    streams: BTreeMap::new(),
                };
                self.world.set_sync(at, change);
            }
            Step::Kill(node) => world.end_server(node, Ends::Killed),
            Step::Stop(node) => world.stop_server(node, Stop::Fast),
            Step::PowerLoss(node, row) => {
                self.primary(node)?;
                self.world.nodes[node].disk.hung = 1;
                self.write(node, row)?;
                self.world.pass(500);
                self.world.end_server(node, Ends::PowerLost);
                self.world.nodes[node].disk.hung = 0;
                // Other rows will be written in its place.
                self.written.get_mut(&row)?.end.lsn = u64::MAX;
            }
            Step::Serve(node, ref rule) => {
                world.start_server(node, Mode::Primary, None, sync(rule)).ok()?;
            }
            Step::Follow(node, from) => self.follow(node, from)?,
            Step::Cut(one, other) | Step::Heal(one, other) => {
                let cut = matches!(step, Step::Cut(..));
                world.net.cut(one, other, cut);
                world.net.cut(other, one, cut);
            }
            Step::Promise(node) => {
                let epoch = self.epoch;
                for step in [PromiseStep::Write, PromiseStep::EndReceiver] {
                    let (begun, walk) = (self.world.now, up_to(steps::PROMISE, step));
                    self.world.step(node, Task::Promise { epoch, walk, begun });
                }
            }
            Step::Promote(node, timeline, ref rule) => {
                let server = self.server(node)?;
                (server.up && server.in_recovery).then_some(())?;
                // No member needs the lease here.
                for step in [PromotionStep::CheckStandby, PromotionStep::Promote] {
                    let (begun, rule) = (self.world.now, sync(rule));
                    self.world.step(
                        node,
                        Task::Promote {
                            timeline,
                            members: rule.names.clone(),
                            rule,
                            walk: up_to(steps::PROMOTION, step),
                            begun,
                        },
                    );
                    self.world.pass(100);
                }
                self.world.nodes[node].volume.promoting = None;
            }
            Step::Rewind(node, from) => self.rewind(node, from)?,
            Step::Copy(node, from) => {
                world.nodes[node].postgres.is_none().then_some(())?;
                world.nodes[node].volume.data = None;
                let begun = world.begin_copy(node, from);
                world.pass(1_000);
                world.copy(node, from, begun).ok()?;
            }
            Step::Admit(at, other) => world.admit(at, member(other, 0)).ok()?,
            Step::DropSlots(at, ref keep) => world.drop_slots(at, &names(keep)).ok()?,
            Step::Checkpoint(at) => {
                self.primary(at)?;
                self.world.checkpoint_now(at);
            }
            Step::SwitchWal(at) => {
                self.primary(at)?;
                self.world.switch_wal(at);
            }
        }
        Some(())
    }

    fn server(&self, node: usize) -> Option<&postgres::Server> {
        self.world.nodes[node].postgres.as_ref()
    }

    fn primary(&self, node: usize) -> Option<&postgres::Server> {
        self.server(node).filter(|server| server.up && !server.in_recovery)
    }

    fn write(&mut self, at: usize, row: u32) -> Option<()> {
        let server = self.primary(at)?.id;
        let lsn = self.world.append(at, ROW + postgres::RECORD);
        let commits = self.world.server(at)?;
        let write = u64::from(row);
        commits.commits.push_back(postgres::Commit {
            end: lsn,
            client: at,
            write,
        });
        let end = super::super::wal::End { lsn, ..commits.end };
        let commit = Commit::Waits;
        self.written.insert(
            row,
            Row {
                at,
                server,
                end,
                commit,
            },
        );
        Some(())
    }

    fn upstream(&self, from: usize) -> Upstream {
        Upstream {
            address: address(from),
            epoch: Epoch(self.epoch),
        }
    }

    fn follow(&mut self, node: usize, from: usize) -> Option<()> {
        let upstream = self.upstream(from);
        if let Some(server) = self.server(node) {
            (server.mode == Mode::Standby).then_some(())?;
            let settings = SETTINGS.to_owned();
            let upstream = Some(upstream);
            self.world.step(node, Task::Configure { upstream, settings });
            return Some(());
        }
        let volume = &mut self.world.nodes[node].volume;
        (volume.promise, volume.promoting, volume.credential) = (self.epoch, None, true);
        let rule = SyncRule::default();
        let started = self.world.start_server(node, Mode::Standby, Some(from), rule);
        started.ok().map(|_| ())
    }

    fn rewind(&mut self, node: usize, from: usize) -> Option<()> {
        if self.world.nodes[node].postgres.is_some() || self.world.nodes[node].volume.data.is_none() {
            return None;
        }
        let mut done = None;
        for stage in 0.. {
            let upstream = self.upstream(from);
            done = self.world.rewind(node, upstream, stage);
            if done.is_some() {
                break;
            }
            self.world.pass(500);
        }
        done?.ok()
    }

    fn settle_commits(&mut self) {
        for (number, row) in &mut self.written {
            if row.commit != Commit::Waits {
                continue;
            }
            let server = self.world.nodes[row.at].postgres.as_ref();
            row.commit = match server.filter(|server| server.id == row.server) {
                None => Commit::Unknown,
                Some(server) if waits(server, *number) => Commit::Waits,
                Some(_) => Commit::Acknowledged,
            };
        }
    }

    fn seen(&self, node: usize) -> Seen {
        let wal = &self.world.wal;
        let position = |end| {
            let position = wal.position(end);
            Some(Position {
                timeline: position.timeline.0,
                lsn: position.lsn.0,
            })
        };
        let Some(data) = &self.world.nodes[node].volume.data else {
            return Seen::default();
        };
        let Some(server) = self.server(node) else {
            let machine::instance::Data::Present(found) = self.world.scan(node, self.world.boot_time(node)).view.data
            else {
                return Seen::default();
            };
            let (timeline, lsn) = (found.timeline.0, found.written.0);
            return Seen {
                runs: Runs::Down {
                    primary: found.primary,
                    clean: found.clean,
                },
                position: Some(Position { timeline, lsn }),
                ..Seen::default()
            };
        };
        if !server.up {
            let runs = Runs::Recovers;
            return Seen {
                runs,
                ..Seen::default()
            };
        }
        let Some(status) = self.world.status(node) else {
            return Seen::default();
        };
        let receives = server.receiver.as_ref().filter(|receiver| receiver.connected);
        let has = |row: &Row| wal.contains(server.end, row.end);
        Seen {
            runs: match server.in_recovery {
                true => Runs::Standby(receives.map(|receiver| receiver.from)),
                false => Runs::Primary(status.history.iter().map(|fork| fork.timeline.0).collect()),
            },
            position: position(if server.in_recovery { server.end } else { data.end }),
            rows: self
                .written
                .iter()
                .filter(|(number, row)| has(row) && !waits(server, **number))
                .map(|(number, _)| *number)
                .collect(),
            senders: machine::instance::standbys(&status.senders).keys().map(owner).collect(),
            slots: data.slots.iter().map(owner).collect(),
        }
    }
}

fn waits(server: &postgres::Server, row: u32) -> bool {
    server.commits.iter().any(|commit| commit.write == u64::from(row))
}

fn names(members: &[usize]) -> BTreeSet<machine::protocol::MemberId> {
    members.iter().map(|other| member(*other, 0)).collect()
}

fn sync(rule: &Rule) -> SyncRule {
    match rule.required {
        0 => SyncRule::default(),
        required => SyncRule::any(required, names(&rule.names)),
    }
}

/// The walk in which all earlier steps have ended.
fn up_to<S: Copy + PartialEq + std::fmt::Debug>(steps: &'static [steps::Step<S>], next: S) -> Walk<S> {
    let mut walk = Walk::new(steps);
    while let Some(step) = walk.next_step().filter(|step| *step != next) {
        walk.take(step).expect("it is the next one");
    }
    walk
}
