//! The agent's bookkeeping: typed events in, [`Observed`] out.
//!
//! The agent and the simulator both feed an [`Observer`]. They keep only handles (processes, connections, files) and
//! the delivery of events. The observer does no I/O and reads no clock: each event comes with the time at which it was
//! taken up.

mod event;
mod held;
mod lease;
mod postgres;
mod task;

pub use event::{
    Contacted, Done, Effect, Event, Failure, Following, News, NoAnswer, Note, Receiver, Scan, SeenLease, ServerId,
    Status,
};
pub use held::HeldRequests;

use super::keys::Proven;
use super::{Action, LeaseVersion, Memo, Observed, Own, Promise, Reading, heard};
use crate::protocol::{FailsafeReply, FailsafeRequest, PromiseRequest, ReportReply, ReportRequest};
use crate::timing::BootTime;
use crate::units::Millis;

/// A loop that continues after more than this was stalled: the agent never sleeps that long.
const STALLED: Millis = Millis(1_500);

/// What an agent has seen, and what it needs to interpret the next event.
#[derive(Clone, Debug)]
pub struct Observer {
    observed: Observed,
    /// UID of the `ClusteredDatabase` that this pod belongs to.
    cluster_uid: String,
    /// The PostgreSQL server that this agent has started.
    server: Option<Server>,
    /// When PostgreSQL was asked right after its last change of settings, or when a new promise was made. Answers to
    /// earlier questions are dropped.
    configured_at: BootTime,
    /// How a standby finds its primary, as its configuration was last written.
    following: Following,
    /// Questions to PostgreSQL in a row that got no answer in time.
    silent: u32,
    /// When the WAL receiver last heard the primary. Remembered after the WAL receiver has ended.
    heard: Option<BootTime>,
    /// When the promise in [`Observed::volume`] became known.
    promised_at: BootTime,
    /// The newest version of the Lease that was taken; `None` if there is no Lease.
    newest_lease: Option<LeaseVersion>,
}

/// The PostgreSQL server that this agent has started.
#[derive(Clone, Copy, Debug)]
struct Server {
    id: ServerId,
    since: BootTime,
    /// True if this agent has asked it to stop.
    asked: bool,
}

/// Whether, and how often, PostgreSQL is asked for its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polling {
    /// The server; `None`: no server runs.
    pub server: Option<ServerId>,
    /// How long after an answer it is asked again.
    pub pause: Millis,
    /// True if it is a primary that accepts writes: the canary writes.
    pub writes: bool,
    /// Answers to questions from before this time are dropped. When it changes, PostgreSQL is asked at once.
    pub void_before: BootTime,
}

impl Observer {
    /// The initial state: nothing is known yet.
    pub fn new(own: Own, cluster_uid: String) -> Self {
        Self {
            observed: Observed::nothing(own),
            cluster_uid,
            server: None,
            configured_at: BootTime(0),
            following: Following::default(),
            silent: 0,
            heard: None,
            promised_at: BootTime(0),
            newest_lease: None,
        }
    }

    /// An observer that already knows `observed`.
    #[cfg(test)]
    pub(super) fn knowing(observed: Observed, cluster_uid: &str) -> Self {
        let newest_lease = observed.lease.record.is().map(|record| LeaseVersion {
            uid: record.uid.clone(),
            version: record.version.clone(),
            owner: Some(cluster_uid.to_owned()),
        });
        let nothing = Self::new(observed.own.clone(), cluster_uid.to_owned());
        Self {
            newest_lease,
            observed,
            ..nothing
        }
    }

    /// What is known, as input of the machine.
    pub fn observed(&self) -> &Observed {
        &self.observed
    }

    /// The running server that this agent has started.
    pub fn server(&self) -> Option<ServerId> {
        self.server.map(|server| server.id)
    }

    /// The newest version of the Lease that was taken; `None` if there is no Lease.
    pub fn newest_lease(&self) -> Option<&LeaseVersion> {
        self.newest_lease.as_ref()
    }

    /// Whether, and how often, PostgreSQL is asked for its state.
    pub fn polling(&self, now: BootTime) -> Polling {
        let postgres = &self.observed.postgres;
        Polling {
            server: self.server(),
            pause: self.observed.asks_again_after(now),
            writes: postgres.answer.is_some_and(|answer| postgres.writes(answer)),
            void_before: self.configured_at,
        }
    }

    /// True if PostgreSQL processes on the volume may have outlived their postmaster. A server that runs or is being
    /// started has processes of its own.
    pub fn may_have_strays(&self) -> bool {
        self.observed.tasks.start.running.is_none() && self.server.is_none()
    }

    /// Notes that the agent continues at `now` after its last activity at `before`. Returns true if it was stalled
    /// longer than it ever sleeps.
    pub fn goes_on(&mut self, before: BootTime, now: BootTime) -> bool {
        let stalled = now.since(before) > STALLED;
        if stalled {
            self.observed.went_on = Some(now);
        }
        stalled
    }

    /// Takes an event. Returns what the agent should log or do about it.
    pub fn observe(&mut self, event: Event, now: BootTime) -> Option<Note> {
        match event {
            Event::Cluster(view) => {
                // The agent keeps what was wanted last.
                if view.uid != self.cluster_uid {
                    return Some(Note::AnotherCluster);
                }
                self.observed.cluster = Reading::Is(*view);
            }
            Event::Lease(reading) => self.lease_read(reading, now),
            Event::Route(route) => self.observed.route = route,
            Event::Version(version) => self.observed.postgres.version = Some(version),
            Event::Certificates(digest) => self.observed.certificates = Some(digest),
            // A task on the volume reads the volume itself, at a later time.
            Event::Scanned(_) if self.observed.tasks.volume.running.is_some() => {}
            Event::Scanned(scan) => self.scanned(*scan),
            Event::Exited(server) => return self.exited(server, now),
            Event::Done(done) => return self.done(*done, now),
            Event::Promise { pod, reply, key } => {
                let taken = heard::answer(&mut self.observed, pod, reply, key.as_deref(), now);
                return taken.err().map(|reason| Note::refused("promise", reason));
            }
            Event::Failsafe { pod, reply, key, sent } => {
                let taken = heard::leaves_lease(&mut self.observed, pod, reply, key.as_deref(), sent);
                return taken
                    .err()
                    .map(|reason| Note::refused("promise to leave the lease", reason));
            }
            Event::Status { server, asked, answer } => return self.answered(server, asked, answer),
            Event::Wrote { server, begun } => {
                if self.server() == Some(server) {
                    let wrote = &mut self.observed.postgres.wrote;
                    *wrote = (*wrote).max(Some(begun));
                }
            }
            Event::Greeted { server, begun } => {
                if self.server() == Some(server) {
                    let greeted = &mut self.observed.postgres.greeted;
                    *greeted = (*greeted).max(Some(begun));
                }
            }
            Event::Enforced(enforced) => self.observed.postgres.enforced = enforced,
            Event::GoodSettings(settings) => self.observed.postgres.good_settings = settings,
            Event::Kept(kept) => self.observed.kept = kept,
            Event::Full(full) => self.observed.full = full,
            Event::Archive(archive) => self.observed.archive = Some(*archive),
            Event::Backup(task) => self.observed.backup = Some(*task),
            Event::Strays(count) => self.observed.postgres.strays = count,
            Event::Terminate => self.observed.terminating = true,
        }
        None
    }

    /// The agent begins to carry out `action`.
    pub fn begins(&mut self, action: &Action) {
        if let Some(work) = action.work() {
            self.observed.tasks.of_mut(work).running = Some(work);
        }
        match action {
            Action::Stop(_) => {
                if let Some(server) = &mut self.server {
                    server.asked = true;
                }
            }
            Action::WriteLease { content, purpose, .. } => self.lease_write_begins(content, *purpose),
            Action::SetSync { rule } => self.observed.postgres.sync.begins(rule.clone()),
            // The slots of others end. Even if not all can be dropped, a member that comes back is admitted again.
            Action::Promote { members: keep, .. } | Action::DropSlots { keep } => {
                self.observed.admitted.retain(|member| keep.contains(member));
            }
            Action::Wait
            | Action::CreateMember { .. }
            | Action::StoreCertificate { .. }
            | Action::DiscardStaging
            | Action::TakeSnapshot
            | Action::Initdb { .. }
            | Action::Clone { .. }
            | Action::ReadLease
            | Action::StartPrimary { .. }
            | Action::Promise { .. }
            | Action::Ask { .. }
            | Action::AskFailsafe { .. }
            | Action::Open
            | Action::Checkpoint
            | Action::Rewind { .. }
            | Action::CancelCopy
            | Action::SetAside { .. }
            | Action::FetchWal(_)
            | Action::DiscardKept { .. }
            | Action::StartStandby { .. }
            | Action::Configure { .. }
            | Action::EndSenders { .. }
            | Action::EndImpostors { .. }
            | Action::Route { .. }
            | Action::Admit { .. }
            | Action::Report { .. }
            | Action::Exit
            | Action::GiveUp { .. } => {}
        }
    }

    /// Answers another member's report, and remembers its content.
    ///
    /// # Errors
    /// Says why the report is refused; then nothing of it is remembered.
    pub fn report(
        &mut self,
        memo: &Memo,
        request: ReportRequest,
        proven: Proven,
        now: BootTime,
    ) -> Result<ReportReply, String> {
        heard::report(&mut self.observed, memo, now, request, proven)
    }

    /// Remembers that a candidate requests a promise. [`HeldRequests`] answers it once the machine has decided about
    /// it.
    ///
    /// # Errors
    /// Says why the request is not to be answered: the candidate has not proved to be a member.
    pub fn candidate(&mut self, request: &PromiseRequest, proven: Proven, now: BootTime) -> Result<(), String> {
        heard::candidate(&mut self.observed, request, proven, now)
    }

    /// Answers a holder that cannot renew its lease, and remembers the promise.
    ///
    /// # Errors
    /// Says why it is refused; then nothing is promised.
    pub fn holder(
        &mut self,
        request: &FailsafeRequest,
        proven: Proven,
        now: BootTime,
    ) -> Result<FailsafeReply, String> {
        heard::holder(&mut self.observed, now, request, proven)
    }

    /// Takes the content of the volume, unless a later reading is known.
    fn scanned(&mut self, scan: Scan) {
        let Scan {
            mut view,
            enforced,
            good_settings,
        } = scan;
        if self.observed.volume.is().is_some_and(|known| known.read > view.read) {
            return;
        }
        // A promise was made while the volume was being read.
        if let Some(known) = self.observed.volume.is()
            && self.promised_at > view.read
        {
            view.promise = known.promise;
        }
        self.observed.volume = Reading::Is(view);
        self.observed.forget_overtaken_upstream();
        let postgres = &mut self.observed.postgres;
        postgres.enforced = enforced.unwrap_or(postgres.enforced);
        if let Some(settings) = good_settings {
            postgres.good_settings = settings;
        }
    }

    /// Takes a promise that was just made durable.
    fn promised(&mut self, promise: Promise, now: BootTime) {
        let Some(new) = self.observed.promised(promise) else {
            return;
        };
        self.promised_at = now;
        if new {
            self.configured_at = now;
        }
    }
}

#[cfg(test)]
mod tests;
