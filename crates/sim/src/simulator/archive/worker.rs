//! The archive's worker: it answers the archiver by what its agent has told it, and writes to the store.

use std::collections::BTreeMap;

use machine::archive::{ArchiveFence, ArchiveLine, ArchiveRecord, Charge, Lineage, Mark, Progress, WalFile};
use machine::archive::{newest_timeline, progress, unmarked};
use machine::instance::archive::charge;
use machine::instance::observer::Event as Seen;
use machine::protocol::{Epoch, Timeline};
use machine::units::Bytes;

use super::files::Name;
use super::store::Created;
use crate::simulator::event::{Event, News};
use crate::simulator::wal::End;
use crate::simulator::world::World;

/// How often the holder's worker looks how far the archive is, in milliseconds, as in the agent.
const LOOK: u64 = 1_000;
/// At most so many files are pushed at once, as in the agent.
const AT_ONCE: usize = 8;
/// How long the worker waits for an answer of the store, in milliseconds.
const NO_ANSWER: u64 = 4_000;

/// The worker of one run of an agent.
#[derive(Clone, Debug, Default)]
pub struct Worker {
    /// What the agent has told it.
    pub(super) order: Option<Charge>,
    /// Files on their way, and how the others ended that were not asked about yet.
    pushes: BTreeMap<Name, Push>,
    /// The file that PostgreSQL waits for, and its server.
    pub(super) asked: Option<(Name, u64)>,
    pub(super) given_up: u64,
    fault: Option<String>,
    told: Option<ArchiveRecord>,
    looks: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Push {
    UnderWay,
    Ended(Created),
    /// The store has not answered, or has refused.
    Failed,
}

/// Something that happens between a worker and the store.
#[derive(Clone, Debug)]
pub enum Archiving {
    /// A write arrives at the store. `answered`: its sender gets the answer.
    Arrives {
        name: Name,
        file: WalFile,
        content: End,
        answered: bool,
    },
    /// A push has ended.
    Ended { name: Name, created: Option<Created> },
    /// The worker looks how far the archive is.
    Look,
}

impl World {
    /// How far the archive is complete by the marks. Segments and histories that have none are marked as waiting.
    pub(super) fn read_marks(&mut self, node: usize, size: Bytes) -> (Progress, Lineage) {
        let mut lineage = Lineage {
            timeline: Timeline(1),
            ancestors: Vec::new(),
        };
        let Some(data) = self.nodes[node].volume.data.as_mut() else {
            return (Progress::default(), lineage);
        };
        let mut marks = data.files.marks();
        if let Some(timeline) = newest_timeline(&marks) {
            let branch = self.wal.branch(timeline.0);
            let ancestors = branch.map(|branch| self.wal.history(branch)).unwrap_or_default();
            lineage = Lineage { timeline, ancestors };
        }
        for file in unmarked(data.files.all(), &marks, &lineage, size) {
            data.files.ready(file);
            marks.push((file, Mark::Ready));
            self.coverage.reach(match file {
                WalFile::History(_) => "a history without a mark was marked",
                WalFile::Segment(_) | WalFile::Partial(_) | WalFile::BackupNote => {
                    "a segment without a mark was marked"
                }
            });
        }
        (progress(marks, &lineage, size), lineage)
    }

    /// Pushes a file, unless that has begun, and the segments that wait behind it.
    pub(super) fn push(&mut self, node: usize, name: Name, epoch: Epoch, lineage: &Lineage) {
        let Some(size) = self.segment() else { return };
        let file = |name: Name| lineage.file(name.file(), size);
        let place = &mut self.nodes[node];
        let Some(data) = place.volume.data.as_ref() else { return };
        place.archive.pushes.retain(|_, push| *push != Push::Failed);
        let under_way = place
            .archive
            .pushes
            .values()
            .filter(|push| **push == Push::UnderWay)
            .count();
        let is_segment = |name: Name| matches!(file(name), WalFile::Segment(_));
        // Nothing goes beside a history, as in the agent.
        let behind = data
            .files
            .waiting()
            .filter(|(next, _)| *next > name && is_segment(name));
        let behind = behind.take_while(|(next, _)| is_segment(*next));
        let mut begun: Vec<_> = behind.take(AT_ONCE.saturating_sub(under_way + 1)).collect();
        begun.extend(data.files.get(name).map(|file| (name, file)));
        begun.retain(|(name, _)| !place.archive.pushes.contains_key(name));
        for (name, waits) in begun {
            self.check_push(node, name, epoch);
            self.nodes[node].archive.pushes.insert(name, Push::UnderWay);
            self.write_object(node, name, file(name), waits.content);
        }
        self.push_ended(node);
    }

    /// One write. It is lost, refused, done and not answered, or late.
    fn write_object(&mut self, node: usize, name: Name, file: WalFile, content: End) {
        let run = self.nodes[node].runs;
        let random = &mut self.random.store;
        let delay = random.between(3, 60) + random.below(1 + self.store.slow);
        let fault = random.chance(self.store.errors).then(|| random.below(4));
        let late = random.below(20_000);
        let mut happens = |delay, what| self.after(delay, Event::Archive { node, run, what });
        let arrives = |answered| Archiving::Arrives {
            name,
            file,
            content,
            answered,
        };
        let fails = Archiving::Ended { name, created: None };
        match fault {
            Some(0) => happens(NO_ANSWER, fails),
            // A conflict of two writes, of which none has happened.
            Some(1) => happens(2 * delay, fails),
            Some(2) => {
                happens(delay, arrives(false));
                happens(NO_ANSWER, fails);
            }
            Some(_) => {
                happens(late, arrives(false));
                happens(NO_ANSWER, fails);
            }
            None => happens(delay, arrives(true)),
        }
    }

    /// Something happens between a worker and the store.
    pub fn archiving(&mut self, node: usize, run: u32, what: Archiving) {
        if let Archiving::Arrives {
            name,
            file,
            content,
            answered,
        } = what
        {
            let down = self.store.down > 0;
            let created = (!down).then(|| self.store.create(file, content));
            self.count_created(node, run, created);
            self.note(Some(node), || format!("{} reaches the store: {created:?}", name));
            if answered {
                let delay = if down { NO_ANSWER } else { 2 };
                let what = Archiving::Ended { name, created };
                self.after(delay, Event::Archive { node, run, what });
            }
            return;
        }
        if self.nodes[node].runs != run || self.nodes[node].agent.is_none() {
            return;
        }
        if self.nodes[node].pod_frozen {
            return self.nodes[node].pod_waits.push(Event::Archive { node, run, what });
        }
        match what {
            Archiving::Arrives { .. } => {}
            Archiving::Ended { name, created } => {
                let ended = created.map_or(Push::Failed, Push::Ended);
                self.nodes[node].archive.pushes.insert(name, ended);
                self.push_ended(node);
            }
            Archiving::Look => self.look_at_archive(node, run),
        }
    }

    /// If the push that PostgreSQL waits for has ended, PostgreSQL is told.
    fn push_ended(&mut self, node: usize) {
        let worker = &mut self.nodes[node].archive;
        let Some((name, _)) = worker.asked else { return };
        let fault = match worker.pushes.get(&name) {
            Some(Push::UnderWay) | None => return,
            Some(Push::Ended(Created::Stored)) => None,
            Some(Push::Ended(Created::Conflict)) => Some("conflict"),
            Some(Push::Failed) => Some("no answer"),
        };
        worker.pushes.remove(&name);
        worker.fault = fault.map(str::to_owned);
        let asks = self.reply(node);
        match fault {
            _ if !asks => {}
            None => self.archived(node, name),
            Some(_) => self.not_archived(node),
        }
    }

    /// PostgreSQL waits no longer; true if the server that asked is still there.
    fn reply(&mut self, node: usize) -> bool {
        let asked = self.nodes[node].archive.asked.take();
        let server = self.nodes[node].postgres.as_ref();
        server.zip(asked).is_some_and(|(server, (_, id))| server.id == id)
    }

    /// The agent tells its worker what it may do.
    pub fn order_archive(&mut self, node: usize) {
        if self.plan.archive.is_none() {
            return;
        }
        let now = self.boot_time(node);
        let place = &mut self.nodes[node];
        let Some(agent) = place.agent.as_ref() else { return };
        let order = charge(agent.observed(), &agent.memo, now);
        if place.archive.order.replace(order) == Some(order) {
            return;
        }
        let pushes = matches!(order, Charge::Push { .. });
        if pushes && !std::mem::replace(&mut place.archive.looks, true) {
            let (run, what) = (place.runs, Archiving::Look);
            self.after(LOOK, Event::Archive { node, run, what });
        } else if !pushes && place.archive.asked.is_some() && self.reply(node) {
            // A push that is under way goes on.
            match order {
                Charge::End => self.end_archiver(node),
                Charge::Push { .. } | Charge::Nowhere | Charge::Confirm { .. } | Charge::Wait => {
                    self.not_archived(node);
                }
            }
        }
    }

    /// Tells the agent how far the archive is, as long as this member fills it.
    fn look_at_archive(&mut self, node: usize, run: u32) {
        let (order, size) = (self.nodes[node].archive.order, self.segment());
        let (Some(Charge::Push { .. }), Some(size)) = (order, size) else {
            let worker = &mut self.nodes[node].archive;
            (worker.looks, worker.told) = (false, None);
            return;
        };
        let what = Archiving::Look;
        self.after(LOOK, Event::Archive { node, run, what });
        let (progress, _) = self.read_marks(node, size);
        let worker = &mut self.nodes[node].archive;
        let record = ArchiveRecord {
            line: ArchiveLine::default(),
            conflict: None,
            progress,
            fence: Some(ArchiveFence::Enforced),
            deleted: false,
            given_up: worker.given_up,
            fault: worker.fault.clone(),
            full_time: None,
            backup: None,
            catalogue: None,
            checked: None,
        };
        if worker.told.as_ref() != Some(&record) {
            worker.told = Some(record.clone());
            self.tell(2, node, News::Seen(Seen::Archive(Box::new(record))));
        }
    }
}
