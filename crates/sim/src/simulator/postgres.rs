//! PostgreSQL on one member: how it starts, writes, acknowledges and ends.

use std::collections::{BTreeMap, VecDeque};

use machine::instance::observer::{Event as Seen, ServerId};
use machine::instance::{Mode, Stop};
use machine::protocol::MemberId;
use machine::quorum::SyncRule;
use machine::timing::BootTime;

use super::archive::{Archiver, Writer};
use super::event::{Event, Inner, News};
use super::names::SETTINGS;
use super::wal::End;
use super::world::World;

/// A PostgreSQL.
#[derive(Clone, Debug)]
pub struct Server {
    pub id: u64,
    pub mode: Mode,
    /// The run of the agent that started it; it dies with that run.
    pub run: u32,
    /// True if it accepts connections.
    pub up: bool,
    pub in_recovery: bool,
    /// End of its WAL, flushed or not; of a standby: of received WAL.
    pub end: End,
    /// True while a flush is in progress.
    pub flushing: bool,
    /// The member that it follows, or would follow.
    pub upstream: Option<usize>,
    pub receiver: Option<Receiver>,
    /// Set if it starts no WAL receiver, with what ends that.
    pub deaf: Option<Deaf>,
    /// WAL senders, by stream.
    pub senders: BTreeMap<u64, Sender>,
    /// WAL senders of a role that uses a member's name and reports to have flushed everything.
    pub impostors: BTreeMap<u64, Impostor>,
    /// `synchronous_standby_names` as new sessions and WAL senders read it.
    pub rule: SyncRule,
    /// The same in its files, and whether applications may connect. Each reload, for whatever reason, puts both in
    /// force.
    pub files: (SyncRule, bool),
    /// True if commits wait for standbys at all.
    pub waits: bool,
    /// Applications may connect.
    pub open: bool,
    /// How it was asked to stop, if it was.
    pub stop: Option<Stop>,
    /// The shutdown checkpoint is written.
    pub final_record: bool,
    /// Hash of the settings in its files, and of those that it was started with.
    pub configured: String,
    pub started_with: String,
    /// WAL from before it began to write ends here: it may be in doubt.
    pub in_doubt: u64,
    /// Commits that are not acknowledged yet, in order.
    pub commits: VecDeque<Commit>,
    /// A canary's write that is not flushed yet, and when it began.
    pub canary: Option<(u64, BootTime)>,
    /// Its archiver.
    pub archiver: Archiver,
}

/// Why no WAL receiver is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deaf {
    /// It must be configured.
    UntilConfigured,
    /// It must be started again.
    UntilStarted,
}

/// A WAL receiver.
#[derive(Clone, Debug)]
pub struct Receiver {
    pub stream: u64,
    pub from: usize,
    pub connected: bool,
    /// When the primary was last heard, by the clock of this member.
    pub heard: BootTime,
    /// True while it waits for its disk and reads nothing; then the WAL that has arrived since.
    pub flushing: bool,
    pub unread: Option<End>,
    /// True if it was asked to end, which it does once it has flushed.
    pub ending: bool,
}

/// A WAL sender of a role that is no member's.
#[derive(Clone, Debug)]
pub struct Impostor {
    /// The member whose name it uses.
    pub name: MemberId,
    /// For how long nothing has kept the agent from ending it, in milliseconds.
    pub unhindered: u64,
}

/// A WAL sender.
#[derive(Clone, Debug)]
pub struct Sender {
    pub to: usize,
    pub member: MemberId,
    pub streaming: bool,
    pub flushed: u64,
    /// The setting that it uses.
    pub rule: SyncRule,
    /// A setting that it was told to read, and whether it has processed a report since: it reads it before the next
    /// one.
    pub next: Option<(SyncRule, bool)>,
    /// How many reports it has processed.
    pub replies: u64,
    pub heard: u64,
    pub sent: u64,
}

impl Sender {
    /// It reads the setting that it was told to read.
    pub fn read_setting(&mut self) {
        if let Some((rule, _)) = self.next.take() {
            self.rule = rule;
        }
    }
}

/// A waiting commit.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    pub end: u64,
    /// The application that waits for it, and the number of its write.
    pub client: usize,
    pub write: u64,
}

/// How a PostgreSQL ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// After a shutdown checkpoint.
    Clean,
    /// All processes are gone at once; the kernel lives, and keeps what was written.
    Killed,
    /// The kernel is gone, with everything that was not flushed.
    PowerLost,
}

/// Interval between a server's checks of its streams, in milliseconds.
pub const TICK: u64 = 400;
/// Interval between checkpoints, in milliseconds.
const CHECKPOINT: u64 = 30_000;
/// How many bytes recovery replays in a millisecond.
const REPLAYED: u64 = 100_000;
/// Bytes of a segment of WAL.
pub const SEGMENT: u64 = 16 << 20;
/// Size of a small record.
pub const RECORD: u64 = 120;

impl World {
    /// Starts PostgreSQL as `mode`. The agent has checked the data. The server begins with what is on its disk.
    pub fn start_server(
        &mut self,
        node: usize,
        mode: Mode,
        upstream: Option<usize>,
        rule: SyncRule,
    ) -> Result<u64, String> {
        let id = self.number();
        let start = self.random.work.between(80, 300);
        let place = &mut self.nodes[node];
        let run = place.agent.as_ref().map_or(0, |agent| agent.run);
        let Some(data) = place.volume.data.as_mut().filter(|_| place.postgres.is_none()) else {
            return Err("there is no data, or it is in use".to_owned());
        };
        let replay = if data.clean {
            0
        } else {
            data.end.lsn.saturating_sub(data.redo) / REPLAYED
        };
        // The agent has removed the first segment of a timeline that has no record.
        if !data.primary {
            data.end = self.wal.at(data.end, data.end.lsn);
        }
        let end = data.end;
        data.clean = false;
        match mode {
            Mode::Primary => data.primary = true,
            Mode::Standby => {
                data.primary = false;
                data.files.ask_again();
            }
        }
        let waits = rule.is_synchronous();
        place.postgres = Some(Server {
            id,
            mode,
            run,
            up: false,
            in_recovery: true,
            end,
            flushing: false,
            upstream,
            receiver: None,
            deaf: None,
            senders: BTreeMap::new(),
            impostors: BTreeMap::new(),
            files: (rule.clone(), false),
            rule,
            waits,
            open: false,
            stop: None,
            final_record: false,
            configured: SETTINGS.to_owned(),
            started_with: SETTINGS.to_owned(),
            in_doubt: 0,
            commits: VecDeque::new(),
            canary: None,
            archiver: Archiver::default(),
        });
        self.server_after(start + replay, node, Inner::Up);
        // A WAL receiver is started when all local WAL is replayed.
        self.server_after(start + replay, node, Inner::Tick);
        self.server_after(CHECKPOINT, node, Inner::Checkpoint);
        Ok(id)
    }

    pub fn server_after(&mut self, delay: u64, node: usize, what: Inner) {
        if let Some(server) = self.nodes[node].postgres.as_ref().map(|server| server.id) {
            self.after(delay, Event::Server { node, server, what });
        }
    }

    pub fn inner(&mut self, node: usize, what: Inner) {
        match what {
            Inner::Up => self.recovered(node),
            Inner::Tick => {
                self.server_after(TICK, node, Inner::Tick);
                self.look_at_streams(node);
                self.impersonate(node);
            }
            Inner::Flushed { upto } => self.flushed(node, upto),
            Inner::Wal { stream, upto } => self.wal_arrives(node, stream, upto),
            Inner::ReceivedFlushed { stream, upto } => self.received_flushed(node, stream, upto),
            Inner::Impostor => self.impostor_reports(node),
            Inner::Reply { stream, flushed } => self.reply_arrives(node, stream, flushed),
            Inner::Connect {
                from,
                stream,
                has,
                member,
            } => self.connect_arrives(node, from, stream, has, member),
            Inner::Receive => self.connect(node),
            Inner::Connected { stream } => self.connected(node, stream),
            Inner::Closed { stream } => self.closed(node, stream),
            Inner::Reload { stream } => {
                if let Some(sender) = self.server(node).and_then(|server| server.senders.get_mut(&stream)) {
                    sender.read_setting();
                }
            }
            Inner::Waits => self.setting_noticed(node),
            Inner::Asked { asked } => self.answer_question(node, asked),
            Inner::Canary { node_run } => self.canary(node, node_run),
            Inner::Checkpoint => self.checkpoint(node),
            Inner::Archive { wake } => self.archiver_asks(node, wake),
            Inner::Stopping => self.stopping(node),
        }
    }

    pub fn server(&mut self, node: usize) -> Option<&mut Server> {
        self.nodes[node].postgres.as_mut()
    }

    /// Recovery is over: from now on a primary writes, and a standby answers if its data is consistent.
    fn recovered(&mut self, node: usize) {
        let hung = self.nodes[node].disk.hung > 0;
        let data = self.nodes[node].volume.data.as_ref();
        let (missing, flushed) = data.map_or((None, None), |data| (data.consistent, Some(data.end)));
        let Some(server) = self.nodes[node].postgres.as_mut() else {
            return;
        };
        let end = flushed.unwrap_or(server.end);
        let consistent = missing.is_none_or(|consistent| self.wal.contains(end, consistent));
        if hung || server.mode == Mode::Standby && !consistent {
            return self.server_after(100, node, Inner::Up);
        }
        server.up = true;
        if let Some(data) = self.nodes[node].volume.data.as_mut() {
            data.consistent = None;
        }
        self.wake_archiver(node);
        let Some(server) = self.nodes[node].postgres.as_mut() else {
            return;
        };
        if server.mode == Mode::Primary {
            server.in_recovery = false;
            let end = server.end;
            server.in_doubt = end.lsn;
            self.check_start_for_writing(node, end);
            self.append(node, RECORD);
        }
    }

    /// Writes a record; returns where it ends.
    pub fn append(&mut self, node: usize, bytes: u64) -> u64 {
        let full = self.nodes[node].disk.full > 0;
        let Some(server) = self.nodes[node].postgres.as_mut() else {
            return 0;
        };
        if full {
            // PANIC: could not write to file.
            self.end_server(node, Ends::Killed);
            return 0;
        }
        server.end.lsn += bytes;
        let end = server.end.lsn;
        self.flush(node);
        end
    }

    fn flush(&mut self, node: usize) {
        let delay = self.disk_delay(node);
        if let Some(server) = self.nodes[node].postgres.as_mut()
            && !std::mem::replace(&mut server.flushing, true)
        {
            let upto = server.end.lsn;
            self.server_after(delay, node, Inner::Flushed { upto });
        }
    }

    pub fn disk_delay(&mut self, node: usize) -> u64 {
        let slow = self.nodes[node].disk.slow;
        1 + self.random.disk.below(3) + self.random.disk.below(1 + slow)
    }

    fn flushed(&mut self, node: usize, upto: u64) {
        if self.nodes[node].disk.hung > 0 {
            return self.server_after(50, node, Inner::Flushed { upto });
        }
        let Some(server) = self.nodes[node].postgres.as_ref() else {
            return;
        };
        let end = End {
            lsn: upto,
            ..server.end
        };
        self.wal_reaches_disk(node, end, Writer::Primary);
        let Some(server) = self.server(node) else { return };
        server.flushing = false;
        let more = server.end.lsn > upto;
        let wrote = server.canary.take_if(|(end, _)| *end <= upto).map(|(_, begun)| begun);
        let id = server.id;
        if let Some(begun) = wrote {
            let server = ServerId(id);
            self.tell(0, node, News::Seen(Seen::Wrote { server, begun }));
        }
        if more {
            self.flush(node);
        }
        self.send_wal(node);
        self.acknowledge_alone(node);
    }

    fn canary(&mut self, node: usize, run: u32) {
        let begun = self.boot_time(node);
        let Some(server) = self.nodes[node]
            .postgres
            .as_ref()
            .filter(|server| server.run == run && server.stop.is_none())
        else {
            return;
        };
        if server.canary.is_none() && !server.in_recovery {
            let end = self.append(node, RECORD);
            if let Some(server) = self.nodes[node].postgres.as_mut() {
                server.canary = Some((end, begun));
            }
        }
        self.server_after(1_000, node, Inner::Canary { node_run: run });
    }

    fn checkpoint(&mut self, node: usize) {
        self.checkpoint_now(node);
        self.server_after(CHECKPOINT, node, Inner::Checkpoint);
    }

    pub fn checkpoint_now(&mut self, node: usize) {
        let size = self.segment();
        let place = &mut self.nodes[node];
        if let (0, Some(data), Some(server)) = (place.disk.hung, place.volume.data.as_mut(), place.postgres.as_ref())
            && server.up
        {
            data.redo = data.end.lsn;
            if let Some(size) = size {
                data.files.checkpoint(size, data.redo);
            }
        }
    }

    /// The WAL continues in the next segment.
    pub fn switch_wal(&mut self, node: usize) {
        let size = self.segment().map_or(SEGMENT, |size| size.0);
        if let Some(server) = self.server(node) {
            let end = server.end.lsn;
            self.append(node, end.next_multiple_of(size) - end);
        }
    }
}
