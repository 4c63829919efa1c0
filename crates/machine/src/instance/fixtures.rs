//! Situations for tests: three members of `orders`. `orders-0` is this one.

pub(super) use std::collections::{BTreeMap, BTreeSet};

use api::status::{BootstrapGrant, DurabilityMode};

use super::*;
pub(super) use crate::protocol::{Epoch, MemberId, Position};
use crate::protocol::{
    Fork, HolderRecord, Incarnation, LeaseRecord, Lsn, MemberReport, MemberState, PromiseReply, Release, ReportRequest,
    Timeline,
};
use crate::quorum::SyncRule;
use crate::timing::Timing;

pub(super) const CLUSTER_UID: &str = "c0ffee";
pub(super) const CLAIM: &str = "aaaa0000-1111";
pub(super) const SYSTEM_ID: &str = "7411111111111111111";
pub(super) const SETTINGS: &str = "cbf29ce484222325";
/// When [`silenced`] suspects.
pub(super) const SILENT: u64 = 1_000 + Timing::DEFAULT.suspect().0;
/// When the holder of [`primary`] is fenced: it has renewed at 1 s.
pub(super) const FENCE: u64 = 1_000 + Timing::DEFAULT.fence.0;

fn id(ordinal: u32) -> MemberId {
    let claim = if ordinal == 0 { CLAIM } else { "bbbb0000-2222" };
    MemberId::new(ordinal, claim, ordinal)
}

fn member() -> Member {
    Member {
        id: id(0),
        claim_uid: CLAIM.to_owned(),
        public_key: "key".to_owned(),
        certificate: Some("pem".to_owned()),
    }
}

pub(super) fn position() -> Position {
    Position {
        timeline: Timeline(1),
        lsn: Lsn(0x100),
    }
}

/// What `orders-1` reports to the holder of [`primary`].
pub(super) fn report_request() -> ReportRequest {
    ReportRequest {
        epoch: Epoch(1),
        pod: "orders-1".to_owned(),
        report: primary().peers["orders-1"].report.clone(),
        position: None,
        replayed: None,
        promised: Epoch(0),
        backup: None,
    }
}

/// A pod with a new volume; the Lease was just made.
pub(super) fn blank() -> Observed {
    let own = Own {
        pod: "orders-0".to_owned(),
        ordinal: 0,
        pod_uid: "pod-0".to_owned(),
        run: "run-1".to_owned(),
        address: "10.0.0.1".to_owned(),
        agent_version: "0.1.0".to_owned(),
    };
    Observed {
        cluster: Reading::Is(ClusterView {
            uid: CLUSTER_UID.to_owned(),
            replicas: 3,
            timing: Timing::DEFAULT,
            settings: SETTINGS.to_owned(),
            system_id: None,
            epoch: None,
            claim_uid: Some(CLAIM.to_owned()),
            certificate: None,
            certified: BTreeMap::new(),
            grant: None,
            restart: None,
            stop: false,
            durability: Some(api::WantedDurability::default()),
            strict_reads: false,
            preferred: None,
            primary: None,
            urgent: false,
            accepted_loss: None,
            fenced: BTreeSet::new(),
            discard: None,
            archives: false,
            reads_archive: false,
            archive_ended: false,
            deletes_archive: false,
            backup: None,
            backup_source: Default::default(),
            proven_backup: None,
            recovery_check: None,
            backup_kind: Default::default(),
            snapshot: None,
            snapshots: Default::default(),
            recovers_snapshot: false,
            recovers: false,
            begins: Epoch(0),
        }),
        lease: LeaseView {
            record: Reading::Is(empty_lease("lease")),
            changed: BootTime(0),
            holder_since: BootTime(0),
            confirmed: None,
            unsettled: None,
            lost: None,
        },
        volume: Reading::Is(VolumeView {
            member: None,
            made_for: None,
            data: Data::Empty,
            promise: Some(Promise::default()),
            rewinding: false,
            was_primary: false,
            read: BootTime(900),
        }),
        ..Observed::nothing(own)
    }
}

/// A Lease as the operator makes it.
pub(super) fn empty_lease(uid: &str) -> LeaseRecord {
    LeaseRecord::empty(uid, "7")
}

pub(super) fn stopped() -> PostgresView {
    PostgresView::stopped()
}

/// The bootstrap is granted to this volume.
pub(super) fn granted() -> Observed {
    let mut observed = blank();
    volume(&mut observed).member = Some(Member {
        certificate: None,
        ..member()
    });
    cluster(&mut observed).grant = Some(BootstrapGrant {
        pod: "orders-0".to_owned(),
        claim_uid: CLAIM.to_owned(),
    });
    observed
}

/// `initdb` is done.
pub(super) fn made_first() -> Observed {
    let mut observed = granted();
    volume(&mut observed).made_for = Some(CLUSTER_UID.to_owned());
    volume(&mut observed).data = Data::Present(database());
    observed
}

fn database() -> Database {
    Database {
        system_id: SYSTEM_ID.to_owned(),
        timeline: Timeline(1),
        checkpoint: Lsn(0x100),
        redo: Lsn(0x100),
        written: Lsn(0x100),
        clean: true,
        primary: true,
    }
}

/// This member serves writes; it renewed at 1 s.
pub(super) fn primary() -> Observed {
    let mut observed = made_first();
    volume(&mut observed).member = Some(member());
    cluster(&mut observed).system_id = Some(SYSTEM_ID.to_owned());
    cluster(&mut observed).epoch = Some(Epoch(1));
    observed.postgres = PostgresView {
        process: Process::Running { mode: Mode::Primary },
        configured: Some(Configured {
            settings: SETTINGS.to_owned(),
            upstream: None,
            raised: None,
        }),
        answer: Some(Answer {
            asked: BootTime(1_000),
            in_recovery: false,
            position: Some(position()),
            begins: Some(Lsn(0)),
            replayed: None,
            streaming: false,
            waits_for_wal: false,
            other_upstream: false,
            pending_restart: false,
            lowers_limits: false,
            heard: None,
            received_all: false,
            knows_end: true,
        }),
        open: true,
        ..stopped()
    };
    let report = MemberReport {
        pod_uid: "pod-1".to_owned(),
        member: id(1),
        address: "10.0.0.2".to_owned(),
        state: MemberState::Streaming,
        settings: SETTINGS.to_owned(),
        pending_restart: false,
        lowers_limits: false,
        settings_error: None,
        public_key: Some("key-1".to_owned()),
        server_version: None,
        agent_version: "0.1.0".to_owned(),
        fault: None,
        kept: BTreeSet::new(),
        impostors: BTreeSet::new(),
        full: BTreeSet::new(),
        certificates: None,
        replication_certificate: None,
    };
    let peer = Peer {
        report: report.clone(),
        position: Some(position()),
        replayed: Some(position().lsn),
        heard: BootTime(1_000),
        promised: Epoch(0),
        backup: None,
    };
    observed.peers = BTreeMap::from([("orders-1".to_owned(), peer)]);
    observed.admitted = BTreeSet::from([id(1)]);
    observed.route = Some(Route {
        address: "10.0.0.1".to_owned(),
        epoch: Epoch(1),
    });
    observed.lease.confirmed = Some(Confirmed {
        epoch: Epoch(1),
        sent: BootTime(1_000),
        timing: Timing::DEFAULT,
    });
    let incarnation = Incarnation {
        pod: "orders-0".to_owned(),
        pod_uid: "pod-0".to_owned(),
        run: "run-1".to_owned(),
        member: id(0),
    };
    let holder = HolderRecord {
        incarnation,
        address: "10.0.0.1".to_owned(),
        timeline: Some(Timeline(1)),
        serving: true,
    };
    hold_by(&mut observed, holder, 1);
    // Tests of other decision rules should not see `read-lease` each time.
    observed.tasks.read.running = Some(Work::ReadLease);
    let own = status(&observed);
    record(&mut observed).members = BTreeMap::from([("orders-0".to_owned(), own), ("orders-1".to_owned(), report)]);
    observed
}

fn status(observed: &Observed) -> MemberReport {
    report::status(observed, &Memo::default(), BootTime(1_100))
        .expect("a member")
        .report
}

/// What a primary's agent remembers after its first decisions.
pub(super) fn settled() -> Memo {
    Memo {
        kept: Some(BTreeSet::from([id(0), id(1)])),
        holding_since: Some(BootTime(0)),
        ..Memo::default()
    }
}

/// A new container in the pod of [`primary`], before its first decision.
pub(super) fn restarted() -> Observed {
    let mut observed = primary();
    observed.own.run = "run-2".to_owned();
    observed.postgres = stopped();
    observed.lease.confirmed = None;
    observed.peers.clear();
    observed.route = None;
    observed
}

/// Stopped, with data that ends at `end` on timeline 1; the primary is on timeline 2, which began at 0x100.
pub(super) fn left_behind(mut observed: Observed, end: u64, primary: bool) -> Observed {
    observed.postgres = stopped();
    let record = record(&mut observed);
    record.holder.as_mut().unwrap().timeline = Some(Timeline(2));
    record.timeline = Some(Timeline(2));
    record.history = vec![Fork {
        timeline: Timeline(1),
        end: Lsn(0x100),
    }];
    let database = data(&mut observed);
    (database.checkpoint, database.primary) = (Lsn(end), primary);
    observed
}

pub(super) fn other_holder() -> HolderRecord {
    let incarnation = Incarnation {
        pod: "orders-1".to_owned(),
        pod_uid: "pod-1".to_owned(),
        run: "run-9".to_owned(),
        member: id(1),
    };
    HolderRecord {
        incarnation,
        address: "10.0.0.2".to_owned(),
        timeline: Some(Timeline(1)),
        serving: true,
    }
}

/// This member streams from `orders-1`; it reported at 1 s.
pub(super) fn standby() -> Observed {
    let mut observed = primary();
    cluster(&mut observed).grant = None;
    hold_by(&mut observed, other_holder(), 1);
    observed.lease.confirmed = None;
    observed.peers.clear();
    observed.admitted.clear();
    volume(&mut observed).made_for = None;
    observed.postgres = PostgresView {
        process: Process::Running { mode: Mode::Standby },
        configured: Some(Configured {
            settings: SETTINGS.to_owned(),
            upstream: Some(Upstream {
                address: "10.0.0.2".to_owned(),
                epoch: Epoch(1),
            }),
            raised: None,
        }),
        answer: Some(Answer {
            asked: BootTime(1_000),
            in_recovery: true,
            position: Some(position()),
            begins: Some(Lsn(0)),
            replayed: Some(position().lsn),
            streaming: true,
            waits_for_wal: false,
            other_upstream: false,
            pending_restart: false,
            lowers_limits: false,
            heard: None,
            received_all: false,
            knows_end: true,
        }),
        streamed: true,
        ..stopped()
    };
    answered(observed)
}

/// An empty member, admitted by `orders-1` at 1 s and certified.
pub(super) fn cloning() -> Observed {
    let mut observed = standby();
    observed.postgres = stopped();
    volume(&mut observed).data = Data::Empty;
    cluster(&mut observed).certificate = Some(SignedCertificate {
        member: id(0).as_str().to_owned(),
        pem: "pem".to_owned(),
    });
    answered(observed)
}

fn answered(mut observed: Observed) -> Observed {
    let report = status(&observed);
    observed.reply = Some(Reply {
        epoch: Epoch(1),
        admitted: true,
        steps_down: false,
        oldest: None,
        awaits: false,
        report,
        sent: BootTime(1_000),
    });
    observed
}

pub(super) fn hold_by(observed: &mut Observed, holder: HolderRecord, epoch: u64) {
    let record = record(observed);
    record.holder = Some(holder);
    record.epoch = Epoch(epoch);
    record.system_id = Some(SYSTEM_ID.to_owned());
    record.duration = Timing::DEFAULT.lease;
}

pub(super) fn cluster(observed: &mut Observed) -> &mut ClusterView {
    match &mut observed.cluster {
        Reading::Is(cluster) => cluster,
        other => panic!("{other:?}"),
    }
}

pub(super) fn record(observed: &mut Observed) -> &mut LeaseRecord {
    match &mut observed.lease.record {
        Reading::Is(record) => record,
        other => panic!("{other:?}"),
    }
}

pub(super) fn volume(observed: &mut Observed) -> &mut VolumeView {
    match &mut observed.volume {
        Reading::Is(volume) => volume,
        other => panic!("{other:?}"),
    }
}

pub(super) fn data(observed: &mut Observed) -> &mut Database {
    match &mut volume(observed).data {
        Data::Present(database) => database,
        other => panic!("{other:?}"),
    }
}

/// PostgreSQL's last answer about its position.
pub(super) fn own_position(observed: &mut Observed) -> &mut Position {
    let answer = observed.postgres.answer.as_mut();
    answer.and_then(|answer| answer.position.as_mut()).expect("a position")
}

/// Three members under `ANY 1`: `orders-0` (this one) and `orders-2` stream from `orders-1`, which was last heard at 1
/// s.
pub(super) fn voter() -> Observed {
    let mut observed = standby();
    cluster(&mut observed).durability = Some(api::WantedDurability {
        mode: DurabilityMode::Required,
        standbys: 1,
    });
    let mut third = record(&mut observed).members["orders-1"].clone();
    (third.member, third.address) = (id(2), "10.0.0.3".to_owned());
    third.public_key = Some("key-2".to_owned());
    record(&mut observed).members.insert("orders-2".to_owned(), third);
    record(&mut observed).rule = SyncRule::any(1, [id(0), id(2)]);
    observed.contact.heard = Some(BootTime(1_000));
    let answer = observed.postgres.answer.as_mut().expect("an answer");
    answer.heard = Some(BootTime(1_000));
    observed.tasks.report.running = Some(Work::Report);
    observed
}

/// The WAL receiver of [`voter`] has ended.
pub(super) fn silenced() -> Observed {
    let mut observed = voter();
    let answer = observed.postgres.answer.as_mut().expect("an answer");
    (answer.streaming, answer.received_all) = (false, true);
    observed
}

/// [`silenced`] has promised `epoch`, and follows no primary.
pub(super) fn promised(epoch: u64) -> Observed {
    let mut observed = silenced();
    volume(&mut observed).promise.as_mut().unwrap().epoch = Epoch(epoch);
    observed.postgres.configured.as_mut().unwrap().upstream = None;
    observed
}

/// [`promised`], which is requesting promises from the others.
pub(super) fn asking(epoch: u64) -> Observed {
    let mut observed = promised(epoch);
    observed.tasks.ask.running = Some(Work::Ask);
    observed
}

/// [`answer_of_third`] has come.
pub(super) fn third_answers(observed: &mut Observed, epoch: u64, lsn: Option<u64>) {
    let answer = answer_of_third(epoch, lsn);
    observed.promises.insert("orders-2".to_owned(), answer);
}

/// The answer of `orders-2`.
pub(super) fn answer_of_third(epoch: u64, lsn: Option<u64>) -> Promised {
    Promised {
        reply: PromiseReply {
            member: id(2),
            promised: Epoch(epoch),
            suspects: true,
            position: lsn.map(|lsn| Position {
                timeline: Timeline(1),
                lsn: Lsn(lsn),
            }),
        },
        at: BootTime(4_000),
    }
}

/// [`silenced`] has won the election and is not promoted yet; it took the lease at 1 s.
pub(super) fn elected() -> Observed {
    let mut observed = silenced();
    let mut holder = other_holder();
    holder.incarnation = Incarnation {
        pod: "orders-0".to_owned(),
        pod_uid: "pod-0".to_owned(),
        run: "run-1".to_owned(),
        member: id(0),
    };
    (holder.address, holder.timeline, holder.serving) = ("10.0.0.1".to_owned(), None, false);
    hold_by(&mut observed, holder, 2);
    record(&mut observed).timeline = Some(Timeline(2));
    record(&mut observed).rule = SyncRule::any(1, [id(1), id(2)]);
    volume(&mut observed).promise = Some(Promise {
        epoch: Epoch(2),
        promoting: None,
    });
    data(&mut observed).primary = false;
    observed.lease.confirmed = Some(Confirmed {
        epoch: Epoch(2),
        sent: BootTime(1_000),
        timing: Timing::DEFAULT,
    });
    observed.tasks.lease.running = Some(Work::WriteLease);
    observed
}

/// The Lease was lost, and the operator has made it again for `last`, the last holder.
pub(super) fn make_again(observed: &mut Observed, last: MemberId) {
    let record = record(observed);
    record.holder = None;
    record.release = Some(Release {
        member: last,
        position: None,
        successor: None,
    });
    record.members.clear();
    record.positions.clear();
}

pub(super) fn third() -> MemberId {
    id(2)
}
