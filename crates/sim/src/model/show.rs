//! What a member sees, as input of the machine.

use std::collections::{BTreeMap, BTreeSet};

use api::status::DurabilityMode;
use machine::instance::{
    Answer, ClusterView, Configured, Confirmed, Contact, Data, Database, Failsafe, FailsafeGiven, LeaseVersion,
    LeaseView, Lost, Member as Identity, Memo, Mode, Observed, Own, Peer, PostgresView, Process, Promise, Promised,
    Reading, Reply as ReportAnswer, Route, Stop, Stopping, SyncSetting, Task as Work_, Tasks, Unsettled, VolumeView,
    Work, report,
};
use machine::protocol::{Epoch, LeaseRecord, Lsn, MemberReport, MemberState, PromiseReply, Timeline};
use machine::timing::{BootTime, Timing};
use machine::units::Millis;

use super::names::{
    CLAIM, CLUSTER, LEASE, SETTINGS, SYSTEM_ID, address, empty, forks, id, pod, position, record, record_of_archive,
    run_name, sync_rule, told, upstream,
};
use super::observe::Sight;
use super::state::{Data as OnVolume, Loss, Postgres, Reply, Task, Wal};

/// All deadlines have passed and all time limits are over: whatever may happen later may happen now.
pub(super) const NOW: BootTime = BootTime(10_000_000);
/// If clocks count, one tick is this long: a renewal is due after one tick; after three the fence is
/// reached and the dead-man has acted; the lease runs out after four ([`Timing::DEFAULT`]).
pub(super) const TICK: Millis = Millis(2_500);
/// After this many failed rewinds in a row the data is moved aside.
const TOO_MANY: u32 = 9;

/// The deciding member: number 0 of its own view.
const ME: usize = 0;

fn ago(ticks: u8) -> BootTime {
    NOW.minus(TICK * u64::from(ticks))
}

/// Within a tick: a request from before the present state of the lost Lease was seen.
fn before(time: BootTime) -> BootTime {
    BootTime(time.0 - 1)
}

impl<const N: usize> Sight<N> {
    /// The memory of a member all whose time limits are over.
    pub(super) fn memo(&self) -> Memo {
        let confirmed = self.member.confirmed.map(|epoch| Epoch(epoch.into()));
        let handing = self.member.handing;
        Memo {
            holding_since: Some(BootTime(0)),
            inherited: self.inherited(),
            unable_since: self.impatient.then_some(BootTime(0)),
            kept: Some((0..N).map(id).collect()),
            suspected: Some((Epoch(self.member.seen.epoch.into()), BootTime(0))),
            accepted_loss: self.accepted().map(|epoch| (epoch, BootTime(0))),
            away: (0..N).map(|other| (id(other), BootTime(0))).collect(),
            closed: Some((Epoch(self.member.seen.epoch.into()), BootTime(0))),
            handing_over: handing.map(|(to, _)| pod(to.into())),
            handing_in: handing.map(|(_, epoch)| Epoch(epoch.into())).or(confirmed),
            ..Memo::default()
        }
    }

    /// The same of one that stops PostgreSQL, if it does.
    pub(super) fn memo_of_archiver(&self) -> Memo {
        let stopping = Stopping {
            stop: Stop::Fast,
            since: NOW,
        };
        Memo {
            stopping: (self.member.task == Some(Task::Stop)).then_some(stopping),
            ..self.memo()
        }
    }

    /// The WAL end that a holder came with, if its server is down or is being promoted.
    fn inherited(&self) -> Option<machine::protocol::Position> {
        let member = &self.member;
        let began = matches!(member.postgres, Postgres::Primary { .. }) || member.primary_data;
        (!began && member.confirmed.is_some()).then(|| position(member.wal))
    }

    fn accepted(&self) -> Option<Epoch> {
        (self.accepted > 0).then(|| Epoch(self.accepted.into()))
    }

    /// `asking`: a round of requests is in flight.
    pub(super) fn observed(&self, asking: bool) -> Observed {
        let member = &self.member;
        let heard = if member.silent { BootTime(0) } else { NOW };
        let mut observed = Observed {
            own: self.own(),
            cluster: Reading::Is(self.cluster()),
            lease: self.lease(),
            volume: Reading::Is(self.volume()),
            postgres: self.postgres(heard),
            peers: self.peers(),
            admitted: (0..N).map(id).collect(),
            route: Some(Route {
                address: address(ME),
                epoch: Epoch(member.seen.epoch.into()),
            }),
            reply: None,
            contact: Contact {
                heard: Some(heard),
                refused: None,
            },
            went_on: None,
            asked_for: Some(Epoch(member.asked.into())),
            failsafe: self.failsafe(),
            failsafe_given: member.given.map(|given| FailsafeGiven {
                epoch: Epoch(given.epoch.into()),
                run: run_name(given.run),
                until: NOW.plus(TICK * u64::from(given.left)),
            }),
            promises: (0..N)
                .filter_map(|other| Some((pod(other), promised(other, member.replies[other]?, member.wal))))
                .collect(),
            kept: BTreeSet::new(),
            full: BTreeSet::new(),
            certificates: None,
            archive: member.told.map(record_of_archive),
            backup: None,
            tasks: self.tasks(asking),
            terminating: false,
        };
        if let Some(own) = report::status(&observed, &Memo::default(), NOW) {
            self.agree(&mut observed, own.report);
        }
        observed
    }

    /// The member's report has no news, and the holder admits it as soon as the holder can write.
    fn agree(&self, observed: &mut Observed, own: MemberReport) {
        let seen = &self.member.seen;
        if seen.holder.is_some() && seen.written > 0 && !self.member.silent {
            observed.reply = Some(ReportAnswer {
                epoch: Epoch(seen.epoch.into()),
                admitted: true,
                steps_down: false,
                oldest: None,
                // The time limit for that is over anyway.
                awaits: false,
                report: own.clone(),
                sent: NOW,
            });
        }
        if let Reading::Is(record) = &mut observed.lease.record {
            record.members.insert(pod(ME), own);
        }
    }

    fn lease(&self) -> LeaseView {
        let member = &self.member;
        // Without clocks, a write of unknown outcome makes the next renewal due, and so does every task that takes
        // time. A member whose promotion does not end has renewed the lease meanwhile.
        let renewed = self.unfit && self.impatient;
        // News of the archive go with a renewal, which comes soon.
        let news = member.told.is_some() && member.told != member.seen.archived;
        let due = news || member.write_failed || member.task.is_some() && !renewed;
        let overdue = Timing::DEFAULT.renew * u64::from(due && !self.timed);
        let sent = ago(member.sent).minus(overdue);
        let writes = self.unsettled.iter().flatten();
        LeaseView {
            record: match member.seen.loss {
                None => Reading::Is(self.record()),
                Some(Loss::Empty) if member.seen.epoch == 0 => Reading::Is(empty()),
                Some(Loss::Missing | Loss::Empty) => Reading::Missing,
                Some(Loss::Scribbled) => Reading::Unknown,
            },
            changed: if self.timed { ago(member.changed) } else { NOW },
            holder_since: BootTime(0),
            confirmed: member.confirmed.map(|epoch| Confirmed {
                epoch: Epoch(epoch.into()),
                sent,
                timing: Timing::DEFAULT,
            }),
            unsettled: Some(Unsettled {
                version: member.seen.version.to_string(),
                rules: writes.clone().map(|(rule, _)| sync_rule(*rule)).collect(),
                releases: writes.clone().any(|(_, release)| *release),
            }),
            lost: self.lost(),
        }
    }

    /// What this member knows of a lost Lease.
    fn lost(&self) -> Option<Lost> {
        let seen = &self.member.seen;
        let loss = seen.loss.filter(|_| seen.epoch > 0)?;
        let doubts = self.unsettled.iter().flatten();
        let place = LeaseVersion {
            uid: LEASE.to_owned(),
            version: seen.version.to_string(),
            owner: Some(CLUSTER.to_owned()),
        };
        Some(Lost {
            before: self.record(),
            rules: doubts
                .clone()
                .map(|(rule, _)| *rule)
                .chain([seen.rule])
                .map(sync_rule)
                .collect(),
            releases: doubts.clone().any(|(_, release)| *release),
            place: (loss != Loss::Missing).then_some(place),
            since: ago(self.member.changed),
        })
    }

    /// A member that cannot be promoted knows which members run as standby and which do not run. Any other holder steps
    /// down for any member.
    fn record(&self) -> LeaseRecord {
        let mut record = record(&self.member.seen, N);
        let down = self
            .positions
            .iter()
            .enumerate()
            .filter(|(_, position)| position.is_none());
        for (other, _) in down.filter(|_| self.unfit) {
            if let Some(report) = record.members.get_mut(&pod(other)) {
                report.state = MemberState::Waiting;
            }
        }
        record
    }

    fn failsafe(&self) -> BTreeMap<String, Failsafe> {
        let given = self.member.failsafe.iter().enumerate();
        given
            .filter_map(|(other, promise)| {
                let (epoch, age) = (*promise)?;
                let since_loss = self.member.since_loss >> other & 1 == 1;
                let promise = Failsafe {
                    member: id(other),
                    epoch: Epoch(epoch.into()),
                    sent: if since_loss { ago(age) } else { before(ago(age)) },
                };
                Some((pod(other), promise))
            })
            .collect()
    }

    fn cluster(&self) -> ClusterView {
        let fenced = (0..N).filter(|member| self.fenced >> member & 1 == 1);
        ClusterView {
            uid: CLUSTER.to_owned(),
            replicas: N as u32,
            timing: Timing::DEFAULT,
            settings: SETTINGS.to_owned(),
            system_id: Some(SYSTEM_ID.to_owned()),
            epoch: Some(Epoch(0)),
            claim_uid: Some(CLAIM.to_owned()),
            certificate: None,
            certified: std::collections::BTreeMap::new(),
            grant: None,
            restart: None,
            stop: false,
            durability: Some(api::WantedDurability {
                mode: match (self.durability, self.preferred) {
                    (0, _) => DurabilityMode::Async,
                    (_, true) => DurabilityMode::Preferred,
                    (_, false) => DurabilityMode::Required,
                },
                standbys: self.durability.into(),
            }),
            strict_reads: self.strict,
            preferred: None,
            primary: self.wanted.map(|wanted| pod(wanted.into())),
            urgent: false,
            accepted_loss: self.accepted(),
            fenced: fenced.map(pod).collect::<BTreeSet<_>>(),
            discard: None,
            archives: self.archives,
            reads_archive: false,
            archive_ended: false,
            deletes_archive: false,
            backup: None,
            backup_source: Default::default(),
            proven_backup: None,
            recovery_check: None,
            recovers: false,
            recovers_snapshot: false,
            backup_kind: Default::default(),
            snapshot: None,
            snapshots: Default::default(),
            begins: Epoch(0),
        }
    }

    fn own(&self) -> Own {
        Own {
            pod: pod(ME),
            ordinal: ME as u32,
            pod_uid: format!("uid-{ME}"),
            run: run_name(self.member.run),
            address: address(ME),
            agent_version: String::new(),
        }
    }

    fn volume(&self) -> VolumeView {
        let member = &self.member;
        let database = Database {
            system_id: SYSTEM_ID.to_owned(),
            timeline: Timeline(member.wal.timeline.into()),
            checkpoint: Lsn(member.wal.end.into()),
            clean: matches!(member.postgres, Postgres::Down { clean: true }),
            redo: Lsn(member.wal.end.into()),
            written: Lsn(member.wal.end.into()),
            primary: member.primary_data,
        };
        VolumeView {
            member: Some(Identity {
                id: id(ME),
                claim_uid: CLAIM.to_owned(),
                public_key: "key".to_owned(),
                certificate: Some("pem".to_owned()),
            }),
            made_for: None,
            data: match member.data {
                OnVolume::Sound | OnVolume::Stubborn | OnVolume::HalfRewound => Data::Present(database),
                OnVolume::Empty => Data::Empty,
            },
            promise: Some(Promise {
                epoch: Epoch(member.promise.into()),
                promoting: (member.promoting > 0).then(|| Timeline(member.promoting.into())),
            }),
            rewinding: member.data == OnVolume::HalfRewound,
            was_primary: false,
            read: NOW,
        }
    }

    fn postgres(&self, heard: BootTime) -> PostgresView {
        let member = &self.member;
        let answer = |in_recovery: bool, receiving: bool| Answer {
            asked: NOW,
            in_recovery,
            position: Some(position(member.wal)),
            begins: (!receiving).then_some(Lsn(0)),
            replayed: None,
            streaming: receiving,
            waits_for_wal: false,
            other_upstream: false,
            pending_restart: false,
            lowers_limits: false,
            heard: Some(heard),
            received_all: in_recovery && !receiving,
            knows_end: true,
        };
        let mut view = PostgresView {
            configured: Some(Configured {
                settings: SETTINGS.to_owned(),
                upstream: None,
                raised: None,
            }),
            good_settings: SETTINGS.to_owned(),
            streamed: true,
            history: forks(&self.history),
            ..PostgresView::stopped()
        };
        match member.postgres {
            Postgres::Down { .. } => {}
            Postgres::Standby {
                upstream: from,
                receiving,
            } => {
                view.process = Process::Running { mode: Mode::Standby };
                view.answer = Some(answer(true, receiving));
                view.configured = Some(Configured {
                    settings: SETTINGS.to_owned(),
                    upstream: from.map(upstream),
                    raised: None,
                });
            }
            Postgres::Primary {
                open,
                in_doubt,
                proven,
                proven_at,
                pending,
            } => {
                view.process = Process::Running { mode: Mode::Primary };
                view.answer = Some(answer(false, false));
                view.open = open;
                view.in_doubt = Some(Lsn(in_doubt.into()));
                view.sync = SyncSetting {
                    proven: sync_rule(proven),
                    proven_at: Lsn(proven_at.into()),
                    pending: pending.map(sync_rule),
                };
                let standbys = self.standbys.iter().enumerate();
                view.standbys = standbys
                    .filter_map(|(other, end)| Some((id(other), Lsn((*end)?.into()))))
                    .collect();
                view.receiving = view.standbys.clone();
            }
        }
        view
    }

    fn peers(&self) -> BTreeMap<String, Peer> {
        let heard = self.promised.iter().enumerate().filter(|(_, promised)| **promised > 0);
        heard
            .map(|(other, promised)| {
                let peer = Peer {
                    report: told(other),
                    position: self.positions[other].map(position),
                    replayed: None,
                    heard: NOW,
                    promised: Epoch(u64::from(*promised) - 1),
                    backup: None,
                };
                (pod(other), peer)
            })
            .collect()
    }

    fn tasks(&self, asking: bool) -> Tasks {
        let busy = |work: Work| Work_ {
            running: Some(work),
            ..Work_::default()
        };
        let mut tasks = Tasks {
            route: busy(Work::Route),
            admit: busy(Work::Admit),
            report: busy(Work::Report),
            // The Lease may be seen at any time, so it is not read directly.
            read: busy(Work::ReadLease),
            ..Tasks::default()
        };
        // The duration of a stop does not matter here.
        tasks.checkpoint.ended = NOW;
        if asking {
            (tasks.ask, tasks.failsafe) = (busy(Work::Ask), busy(Work::Failsafe));
        }
        if self.member.write.is_some() {
            tasks.lease = busy(Work::WriteLease);
        } else if self.member.write_failed {
            tasks.lease.failures = 1;
        }
        if self.member.data == OnVolume::Stubborn {
            tasks.volume.failures = TOO_MANY;
        }
        match self.member.task {
            None => {}
            Some(Task::Promise(_)) => tasks.promise = busy(Work::Promise),
            Some(Task::Promote(..)) => tasks.start = busy(Work::Promote),
            Some(Task::StartPrimary(_)) => tasks.start = busy(Work::StartPrimary),
            Some(Task::StartStandby(_)) => tasks.start = busy(Work::StartStandby),
            Some(Task::Configure(_)) => tasks.configure = busy(Work::Configure),
            Some(Task::Open) => tasks.configure = busy(Work::Open),
            Some(Task::SetSync(_)) => tasks.sync = busy(Work::SetSync),
            Some(Task::Rewind { .. }) => tasks.volume = busy(Work::Rewind),
            Some(Task::SetAside(_)) => tasks.volume = busy(Work::SetAside),
            Some(Task::Clone(_)) => tasks.volume = busy(Work::Clone),
            Some(Task::Stop) => {}
        }
        tasks
    }
}

/// A member with more WAL than `own` counts as gone since, so any member that can be elected without it may be elected
/// at once.
fn promised(other: usize, reply: Reply, own: Wal) -> Promised {
    let more = reply.position.is_some_and(|position| position > own);
    Promised {
        reply: PromiseReply {
            member: id(other),
            promised: Epoch(reply.promised.into()),
            suspects: reply.suspects,
            position: reply.position.map(position),
        },
        at: if more { BootTime(0) } else { NOW },
    }
}
