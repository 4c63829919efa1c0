//! Properties of every decision, whatever is observed.

use proptest::prelude::*;

use super::fixtures::*;
use super::*;
use crate::protocol::{Epoch, Lsn, MemberState, Release, Volume};
use crate::quorum::SyncRule;
use crate::timing::Timing;
use crate::units::Millis;

/// One difference from the situation that it is applied to.
type Change = fn(&mut Observed);

const SITUATIONS: [fn() -> Observed; 7] = [blank, granted, made_first, primary, restarted, standby, cloning];

fn with_record(observed: &mut Observed, change: impl FnOnce(&mut crate::protocol::LeaseRecord)) {
    if let Reading::Is(record) = &mut observed.lease.record {
        change(record);
    }
}

fn with_cluster(observed: &mut Observed, change: impl FnOnce(&mut ClusterView)) {
    if let Reading::Is(cluster) = &mut observed.cluster {
        change(cluster);
    }
}

fn with_volume(observed: &mut Observed, change: impl FnOnce(&mut VolumeView)) {
    if let Reading::Is(volume) = &mut observed.volume {
        change(volume);
    }
}

fn own_id() -> crate::protocol::MemberId {
    volume(&mut granted()).member.clone().expect("a member").id
}

const CHANGES: &[Change] = &[
    |o| o.cluster = Reading::Unknown,
    |o| o.lease.record = Reading::Unknown,
    |o| o.lease.record = Reading::Missing,
    |o| o.volume = Reading::Unknown,
    |o| o.terminating = true,
    |o| with_record(o, |r| r.holder = None),
    |o| with_record(o, |r| r.holder = Some(other_holder())),
    |o| with_record(o, |r| r.epoch = Epoch(2)),
    |o| with_record(o, |r| r.epoch = Epoch(0)),
    |o| with_record(o, |r| r.system_id = None),
    |o| with_record(o, |r| r.system_id = Some("another".to_owned())),
    |o| {
        with_record(o, |r| {
            r.release = Some(Release {
                member: own_id(),
                position: None,
                successor: None,
            })
        })
    },
    |o| {
        with_record(o, |r| {
            r.release = Some(Release {
                member: other_holder().incarnation.member,
                position: None,
                successor: None,
            })
        })
    },
    |o| with_record(o, |r| r.members.clear()),
    |o| o.lease.confirmed = None,
    |o| {
        o.lease.confirmed = Some(Confirmed {
            epoch: Epoch(1),
            sent: BootTime(3_000),
            timing: Timing::DEFAULT,
        })
    },
    |o| {
        o.lease.confirmed = Some(Confirmed {
            epoch: Epoch(1),
            sent: BootTime(3_000),
            timing: Timing::FAST,
        })
    },
    |o| with_cluster(o, |c| c.system_id = None),
    |o| with_cluster(o, |c| c.system_id = Some(SYSTEM_ID.to_owned())),
    |o| with_cluster(o, |c| c.epoch = None),
    |o| with_cluster(o, |c| c.stop = true),
    |o| fence(o, "orders-0"),
    |o| fence(o, "orders-1"),
    |o| with_cluster(o, |c| c.timing = Timing::FAST),
    |o| with_cluster(o, |c| c.claim_uid = Some("another".to_owned())),
    |o| with_cluster(o, |c| c.claim_uid = None),
    |o| with_cluster(o, |c| c.settings = "other".to_owned()),
    |o| with_cluster(o, |c| c.replicas = 1),
    |o| with_volume(o, |v| v.data = Data::Empty),
    |o| with_volume(o, |v| v.data = Data::Unfinished),
    |o| with_volume(o, |v| v.data = Data::Unknown),
    |o| with_volume(o, |v| v.member = None),
    |o| with_volume(o, |v| v.made_for = None),
    |o| o.postgres.process = Process::Stopped { exit: None },
    |o| {
        o.postgres.process = Process::Stopped {
            exit: Some(Exit {
                at: BootTime(3_000),
                ran: Millis(10),
                asked: false,
            }),
        }
    },
    |o| o.postgres.process = Process::Running { mode: Mode::Primary },
    |o| o.postgres.process = Process::Running { mode: Mode::Standby },
    |o| o.postgres.strays = 2,
    |o| o.postgres.answer = None,
    |o| (o.postgres.answer, o.postgres.refusal) = (None, Some("no".to_owned())),
    |o| impersonate(o),
    |o| o.peers.clear(),
    |o| o.admitted.clear(),
    |o| {
        o.postgres
            .slots
            .extend([own_id(), other_holder().incarnation.member, third()])
    },
    |o| o.route = None,
    |o| o.reply = None,
    |o| o.tasks.volume.running = Some(Work::Initdb),
    |o| o.tasks.volume.running = Some(Work::Clone),
    |o| o.tasks.start.running = Some(Work::StartPrimary),
    |o| o.tasks.start.running = Some(Work::StartStandby),
    |o| o.tasks.configure.running = Some(Work::Configure),
    |o| o.tasks.lease.running = Some(Work::WriteLease),
    |o| o.tasks.route.running = Some(Work::Route),
    |o| o.tasks.admit.running = Some(Work::Admit),
    |o| o.tasks.report.running = Some(Work::Report),
    |o| o.tasks.volume = failed(4),
    |o| o.tasks.start = failed(1),
    |o| o.tasks.lease = failed(2),
    |o| o.tasks.report = failed(9),
    |o| gives_failsafe(o, "orders-1", 1, 5_000),
    |o| gives_failsafe(o, "orders-1", 1, 9_000),
    |o| gives_failsafe(o, "orders-1", 2, 9_000),
    |o| gives_failsafe(o, "orders-2", 1, 7_000),
    |o| gives_failsafe(o, "orders-2", 1, 9_500),
    |o| with_record(o, |r| r.rule = rule_of(1)),
    |o| with_record(o, |r| r.rule = rule_of(2)),
    |o| unsettled(o, rule_of(1), false),
    |o| unsettled(o, rule_of(2), false),
    |o| unsettled(o, SyncRule::default(), false),
    |o| unsettled(o, rule_of(1), true),
    |o| {
        o.failsafe_given = Some(FailsafeGiven {
            epoch: Epoch(1),
            run: "run-9".to_owned(),
            until: BootTime(12_000),
        })
    },
    |o| o.tasks.failsafe.running = Some(Work::Failsafe),
    |o| o.tasks.read.running = None,
    |o| o.kept = ["1-0_100-1".to_owned()].into(),
    |o| o.full = [Volume::Wal].into(),
    |o| with_cluster(o, |c| c.discard = Some("1-0_100-1".to_owned())),
    |o| o.own.pod_uid = "another pod".to_owned(),
    |o| o.own.run = "another run".to_owned(),
];

fn impersonate(observed: &mut Observed) {
    let sender = WalSender {
        pid: 7,
        role: "cdc".to_owned(),
        name: third().as_str().to_owned(),
        streaming: true,
        flushed: Some(Lsn(u64::MAX)),
    };
    let answer = observed.postgres.answer;
    let end = answer.filter(|answer| !answer.in_recovery).map(|_| position().lsn);
    observed.postgres.take_senders(&[sender], end, BootTime(1_000));
}

fn fence(observed: &mut Observed, pod: &str) {
    with_cluster(observed, |cluster| cluster.fenced = BTreeSet::from([pod.to_owned()]));
}

fn gives_failsafe(observed: &mut Observed, pod: &str, epoch: u64, sent: u64) {
    let member = match pod {
        "orders-1" => other_holder().incarnation.member,
        _ => third(),
    };
    let promise = Failsafe {
        member,
        epoch: Epoch(epoch),
        sent: BootTime(sent),
    };
    observed.failsafe.insert(pod.to_owned(), promise);
}

fn rule_of(required: usize) -> SyncRule {
    SyncRule::any(required, [other_holder().incarnation.member, third()])
}

fn unsettled(observed: &mut Observed, rule: SyncRule, releases: bool) {
    observed.lease.unsettled = Some(Unsettled {
        version: "7".to_owned(),
        rules: BTreeSet::from([rule]),
        releases,
    });
}

fn failed(failures: u32) -> Task {
    Task {
        failures,
        ended: BootTime(3_500),
        error: Some("no".to_owned()),
        running: None,
    }
}

fn situations() -> impl Strategy<Value = Observed> {
    let changes = prop::collection::vec(0..CHANGES.len(), 0..6);
    (0..SITUATIONS.len(), changes).prop_map(|(situation, changes)| {
        let mut observed = SITUATIONS[situation]();
        changes.into_iter().for_each(|change| CHANGES[change](&mut observed));
        observed
    })
}

/// Standbys that may be elected, with some random differences.
fn voters() -> impl Strategy<Value = Observed> {
    let changes = prop::collection::vec(0..CHANGES.len(), 0..3);
    changes.prop_map(|changes| {
        let mut observed = voter();
        changes.into_iter().for_each(|change| CHANGES[change](&mut observed));
        observed
    })
}

/// Standbys that are being elected, or that were elected and await their promotion, with some random differences.
fn candidates() -> impl Strategy<Value = Observed> {
    let changes = prop::collection::vec(0..CHANGES.len(), 0..3);
    (any::<bool>(), changes).prop_map(|(won, changes)| {
        let mut observed = if won { elected() } else { silenced() };
        observed.tasks.lease.running = None;
        changes.into_iter().for_each(|change| CHANGES[change](&mut observed));
        observed
    })
}

/// Primaries whose PostgreSQL has ended by itself, with more or less WAL to replay; the others were heard more or less
/// recently.
fn crashed() -> impl Strategy<Value = Observed> {
    let one = SyncRule::any(1, [other_holder().incarnation.member]);
    let rules = prop::sample::select(vec![SyncRule::default(), one, rule_of(1), rule_of(2)]);
    let states = prop::sample::select(vec![
        MemberState::Streaming,
        MemberState::CatchingUp,
        MemberState::Cloning,
    ]);
    let redo = prop::sample::select(vec![0, 100_000_000, 3_000_000_000]);
    let changes = prop::collection::vec(0..CHANGES.len(), 0..3);
    (rules, states, redo, 0..30_000_u64, any::<bool>(), changes).prop_map(|(rule, state, redo, heard, two, changes)| {
        let mut observed = primary();
        observed.postgres = stopped();
        if let Data::Present(database) = &mut volume(&mut observed).data {
            (database.clean, database.written) = (false, Lsn(database.redo.0 + redo));
        }
        observed.lease.confirmed.as_mut().expect("held").sent = BootTime(heard);
        let mut peer = observed.peers["orders-1"].clone();
        (peer.heard, peer.report.state) = (BootTime(heard), state);
        record(&mut observed)
            .members
            .insert("orders-1".to_owned(), peer.report.clone());
        observed.peers.insert("orders-1".to_owned(), peer.clone());
        if two {
            peer.report.member = third();
            record(&mut observed)
                .members
                .insert("orders-2".to_owned(), peer.report.clone());
            observed.peers.insert("orders-2".to_owned(), peer);
        }
        record(&mut observed).rule = rule;
        changes.into_iter().for_each(|change| CHANGES[change](&mut observed));
        observed
    })
}

/// True if enough followers to elect one were heard in the last five seconds.
fn others_are_there(observed: &Observed, now: BootTime) -> bool {
    let Some(record) = observed.lease.record.is() else {
        return false;
    };
    let follows = |pod: &&String| {
        let state = record.members.get(*pod).map(|report| report.state);
        matches!(state, Some(MemberState::Streaming | MemberState::CatchingUp))
    };
    let peers = observed
        .peers
        .iter()
        .filter(|(_, peer)| now.since(peer.heard) < Millis::seconds(5));
    let pods = peers
        .map(|(pod, _)| pod)
        .filter(|pod| **pod != observed.own.pod)
        .filter(follows);
    let there: BTreeSet<_> = pods.map(|pod| &record.members[pod].member).collect();
    match record.rule.required {
        0 => !there.is_empty(),
        required => record.rule.names.iter().filter(|name| !there.contains(name)).count() < required,
    }
}

/// Primaries that should hand over to `orders-1`. They differ in when the checkpoint ended, when the successor's
/// position was read, and how much it lacks.
fn wished() -> impl Strategy<Value = Observed> {
    let lacks = prop::sample::select(vec![0, 1, 16 << 20, (16 << 20) + 1]);
    (0..30_000_u64, 0..30_000_u64, lacks).prop_map(|(ended, asked, lacks)| {
        let mut observed = primary();
        with_cluster(&mut observed, |c| c.primary = Some("orders-1".to_owned()));
        let peer = observed.peers.get_mut("orders-1").expect("a peer");
        peer.heard = BootTime(30_000);
        observed
            .postgres
            .standbys
            .insert(peer.report.member.clone(), position().lsn);
        observed.lease.confirmed.as_mut().expect("held").sent = BootTime(30_000);
        observed.tasks.lease.running = Some(Work::WriteLease);
        observed.tasks.checkpoint.ended = BootTime(ended);
        let answer = observed.postgres.answer.as_mut().expect("an answer");
        (answer.asked, answer.position.as_mut().expect("a position").lsn.0) =
            (BootTime(asked), position().lsn.0 + lacks);
        observed
    })
}

fn memos() -> impl Strategy<Value = Memo> {
    let stop = prop::sample::select(vec![None, Some(Stop::Fast), Some(Stop::Immediate), Some(Stop::Kill)]);
    (stop, 0..20_000_u64, any::<bool>(), 0..5_u32).prop_map(|(stop, since, settled_before, crashes)| Memo {
        stopping: stop.map(|stop| Stopping {
            stop,
            since: BootTime(since),
        }),
        crashes,
        misses_wal: (since % 2 == 0).then_some(MissingWal {
            epoch: Epoch(1),
            since: BootTime(since),
            end: Lsn(since % 0x200),
            confirmed: BootTime(since + since % 5_000),
        }),
        ..if settled_before { settled() } else { Memo::default() }
    })
}

fn times() -> impl Strategy<Value = BootTime> {
    prop_oneof![0..30_000_u64, Just(FENCE - 1), Just(FENCE), Just(10_000)].prop_map(BootTime)
}

/// True if the lease is held now. Computed in another way than in `context`.
fn holds(observed: &Observed, now: BootTime) -> bool {
    let (Some(record), Some(confirmed)) = (observed.lease.record.is(), observed.lease.confirmed) else {
        return false;
    };
    let Some(member) = observed.volume.is().and_then(|volume| volume.member.as_ref()) else {
        return false;
    };
    let identity = format!(
        "{}/{}/{}/{}",
        observed.own.pod, observed.own.pod_uid, observed.own.run, member.id
    );
    let named = record
        .holder
        .as_ref()
        .is_some_and(|holder| holder.incarnation.identity() == identity);
    let age = |sent: BootTime| now.since(sent) < confirmed.timing.fence;
    let lives = age(confirmed.sent) || promised(observed, record).is_some_and(age);
    named && record.epoch >= confirmed.epoch && lives
}

/// Since when enough others have promised to leave the lease. Computed in another way: at which times would the
/// promises that are as young as this be enough?
fn promised(observed: &Observed, record: &crate::protocol::LeaseRecord) -> Option<BootTime> {
    let mut rules = vec![&record.rule];
    if let Some(unsettled) = &observed.lease.unsettled
        && unsettled.version == record.version
    {
        if unsettled.releases {
            return None;
        }
        rules.extend(&unsettled.rules);
    }
    let wanted = observed.cluster.is().map_or(u32::MAX, |cluster| cluster.replicas);
    let is_wanted = |pod: &String| {
        pod.rsplit('-')
            .next()
            .is_some_and(|number| number.parse::<u32>().is_ok_and(|number| number < wanted))
    };
    let reported = observed.peers.keys().filter(|pod| is_wanted(pod));
    let others: BTreeSet<&String> = record.members.keys().chain(reported).collect();
    let enough = |since: BootTime| {
        let young = |pod: &&String| {
            let promise = observed.failsafe.get(*pod)?;
            (promise.epoch == record.epoch && promise.sent >= since).then_some(&promise.member)
        };
        rules.iter().all(|rule| {
            let names: Vec<_> = observed.failsafe.keys().filter_map(|pod| young(&pod)).collect();
            if rule.required > 0 {
                return names.iter().filter(|name| rule.names.contains(name)).count() >= rule.required;
            }
            let mut others = others.iter().filter(|pod| **pod != &observed.own.pod).peekable();
            let member = |pod: &&&String| match observed.peers.get(**pod).filter(|_| is_wanted(pod)) {
                Some(peer) => peer.report.member.clone(),
                None => record.members[**pod].member.clone(),
            };
            others.peek().is_some() && others.all(|pod| young(pod) == Some(&member(&pod)))
        })
    };
    let times: BTreeSet<BootTime> = observed.failsafe.values().map(|promise| promise.sent).collect();
    times.into_iter().rev().find(|since| enough(*since))
}

fn may_write(observed: &Observed) -> bool {
    let left_recovery = observed.postgres.answer.is_some_and(|answer| !answer.in_recovery);
    match (observed.postgres.process, observed.tasks.start.running) {
        (Process::Running { mode: Mode::Primary }, _) | (_, Some(Work::StartPrimary | Work::Promote)) => true,
        (Process::Running { mode: Mode::Standby }, None) => left_recovery,
        _ => false,
    }
}

fn data(observed: &Observed) -> Option<&Data> {
    observed.volume.is().map(|volume| &volume.data)
}

fn class(observed: &Observed, work: Work) -> &Task {
    let tasks = &observed.tasks;
    match work {
        Work::CreateMember
        | Work::StoreCertificate
        | Work::DiscardStaging
        | Work::TakeSnapshot
        | Work::Initdb
        | Work::Clone
        | Work::Rewind
        | Work::FetchWal
        | Work::SetAside => &tasks.volume,
        Work::StartPrimary | Work::StartStandby | Work::Promote => &tasks.start,
        Work::Configure | Work::Open => &tasks.configure,
        Work::Promise => &tasks.promise,
        Work::Ask => &tasks.ask,
        Work::Failsafe => &tasks.failsafe,
        Work::SetSync => &tasks.sync,
        Work::WriteLease => &tasks.lease,
        Work::ReadLease => &tasks.read,
        Work::Route => &tasks.route,
        Work::Admit | Work::DropSlots => &tasks.admit,
        Work::Report => &tasks.report,
        Work::Checkpoint => &tasks.checkpoint,
        Work::DiscardKept => &tasks.discard,
    }
}

fn check_action(observed: &Observed, decision: &Decision, now: BootTime) -> Result<(), TestCaseError> {
    let database = match data(observed) {
        Some(Data::Present(database)) => Some(database),
        Some(Data::Unknown | Data::Empty | Data::Unfinished) | None => None,
    };
    let record = observed.lease.record.is();
    let recorded = record.and_then(|record| record.system_id.as_ref());
    match &decision.action {
        Action::StartPrimary { until, .. } => {
            prop_assert!(holds(observed, now) && now < *until);
            prop_assert_eq!(database.map(|database| &database.system_id), recorded);
            prop_assert!(recorded.is_some());
            prop_assert!(
                decision
                    .dead_man
                    .is_some_and(|deadline| deadline < until.plus(observed_kill(observed)))
            );
        }
        Action::StartStandby { .. } => {
            prop_assert_eq!(database.map(|database| &database.system_id), recorded);
            prop_assert!(recorded.is_some() && !may_write(observed));
        }
        Action::Initdb { .. } => {
            let of_snapshot = observed.cluster.is().is_some_and(|cluster| cluster.recovers_snapshot);
            let goes_on = data(observed) == Some(&Data::Unfinished) && of_snapshot;
            prop_assert!(data(observed) == Some(&Data::Empty) || goes_on);
            prop_assert!(recorded.is_none() && record.is_some_and(|record| record.holder.is_none()));
            prop_assert!(observed.cluster.is().is_some_and(|cluster| cluster.system_id.is_none()));
        }
        Action::Clone { .. } => {
            prop_assert_eq!(data(observed), Some(&Data::Empty));
            let member = observed.volume.is().and_then(|volume| volume.member.as_ref());
            let holder = record.and_then(|record| record.holder.as_ref());
            prop_assert!(
                holder.is_some_and(|holder| Some(&holder.incarnation.member) != member.map(|member| &member.id))
            );
        }
        Action::TakeSnapshot => {
            prop_assert!(matches!(data(observed), Some(Data::Present(_))) && recorded.is_none());
            prop_assert!(record.is_some_and(|record| record.holder.is_none()));
            let (Some(cluster), Some(volume)) = (observed.cluster.is(), observed.volume.is()) else {
                return Err(TestCaseError::fail("nothing is known"));
            };
            let member = volume.member.as_ref().map(|member| &member.claim_uid);
            prop_assert!(member.is_none() || member != cluster.claim_uid.as_ref());
            prop_assert!(cluster.recovers_snapshot && volume.made_for.as_ref() != Some(&cluster.uid));
        }
        Action::DiscardStaging => prop_assert_eq!(data(observed), Some(&Data::Unfinished)),
        Action::CreateMember { .. } => prop_assert!(matches!(data(observed), Some(Data::Empty | Data::Unfinished))),
        Action::WriteLease { content, purpose, .. } => check_write(observed, content, *purpose)?,
        Action::DropSlots { keep } if !may_write(observed) => {
            let followed = observed
                .postgres
                .configured
                .as_ref()
                .and_then(|configured| configured.upstream.as_ref());
            prop_assert!(keep.is_empty() && followed.is_some() && !holds(observed, now));
        }
        Action::Route { .. } | Action::Admit { .. } | Action::DropSlots { .. } => {
            prop_assert!(
                may_write(observed) && !matches!(observed.lease.record.is(), Some(record) if record.holder.is_none())
            );
        }
        Action::Exit => prop_assert!(is_stopped(observed)),
        Action::GiveUp { .. } => {
            let of_snapshot = observed.cluster.is().is_some_and(|cluster| cluster.recovers_snapshot);
            prop_assert!(recorded.is_none() && (database.is_none() || of_snapshot));
        }
        Action::Promote { until, timeline, .. } => {
            prop_assert!(holds(observed, now) && now < *until);
            prop_assert!(
                observed
                    .postgres
                    .answer
                    .is_some_and(|answer| answer.in_recovery && answer.received_all)
            );
            prop_assert!(record.is_some_and(|record| record.timeline == Some(*timeline)));
            prop_assert!(decision.dead_man.is_some());
            let held = decision
                .memo
                .holding_since
                .map_or(Millis::ZERO, |since| now.since(since));
            prop_assert!(observed.full.is_empty() || held >= room::TRY);
        }
        Action::Promise { epoch } => {
            let promise = observed.volume.is().and_then(|volume| volume.promise);
            let again = observed.tasks.promise.failures > 0;
            prop_assert!(promise.is_some_and(|promise| promise.epoch < *epoch || again && promise.epoch == *epoch));
            prop_assert!(!holds(observed, now));
            prop_assert!(record.is_some_and(|record| record.epoch.0 + 1 == epoch.0));
        }
        Action::Rewind { .. } | Action::SetAside { .. } | Action::FetchWal(_) => {
            prop_assert!(is_stopped(observed) && !holds(observed, now) && database.is_some());
        }
        Action::CancelCopy => {
            let running = observed.tasks.volume.running;
            prop_assert!(matches!(running, Some(Work::Clone | Work::Rewind)), "{:?}", running);
        }
        Action::DiscardKept { name } => {
            let named = observed.cluster.is().and_then(|cluster| cluster.discard.as_ref());
            prop_assert!(named == Some(name) && observed.kept.contains(name));
        }
        Action::Open | Action::SetSync { .. } | Action::Checkpoint => {
            prop_assert!(may_write(observed) && holds(observed, now))
        }
        Action::AskFailsafe { peers, request } => {
            let confirmed = observed.lease.confirmed.map(|confirmed| confirmed.sent);
            prop_assert!(holds(observed, now) && may_write(observed));
            prop_assert!(confirmed.is_some_and(|sent| now.since(sent) > Timing::FAST.renew));
            prop_assert!(record.is_some_and(|record| record.epoch == request.epoch));
            prop_assert!(!peers.is_empty() && !peers.contains_key(&observed.own.pod));
        }
        Action::EndSenders { .. } => {
            let writes = observed.postgres.process == (Process::Running { mode: Mode::Primary });
            prop_assert!(writes);
            prop_assert!(
                decision
                    .memo
                    .stopping
                    .is_some_and(|stopping| stopping.stop == Stop::Fast)
            );
        }
        Action::EndImpostors { impostors } => {
            let running = matches!(observed.postgres.process, Process::Running { .. });
            prop_assert!(running && !impostors.is_empty() && *impostors == observed.postgres.impostors);
            prop_assert!(impostors.iter().all(|impostor| impostor.role != impostor.name));
        }
        Action::ReadLease => {
            prop_assert!(!holds(observed, now) && record.is_some_and(|record| record.epoch > Epoch(0)))
        }
        Action::Wait
        | Action::Ask { .. }
        | Action::StoreCertificate { .. }
        | Action::Configure { .. }
        | Action::Stop(_)
        | Action::Report { .. } => {}
    }
    Ok(())
}

fn is_stopped(observed: &Observed) -> bool {
    matches!(observed.postgres.process, Process::Stopped { .. })
}

fn observed_kill(observed: &Observed) -> Millis {
    observed
        .cluster
        .is()
        .map_or(Timing::DEFAULT, |cluster| cluster.timing)
        .kill
}

fn check_write(
    observed: &Observed,
    content: &crate::lease_object::LeaseContent,
    purpose: Purpose,
) -> Result<(), TestCaseError> {
    let record = observed
        .lease
        .record
        .is()
        .expect("only a Lease that was read is written");
    let member = &observed
        .volume
        .is()
        .and_then(|volume| volume.member.as_ref())
        .expect("a member")
        .id;
    prop_assert_eq!(&content.version, &record.version);
    let holder_before = record.holder.as_ref().map(|holder| &holder.incarnation.member);
    let holder_after = content.holder.as_ref().map(|holder| &holder.incarnation.member);
    prop_assert!(
        holder_before.is_none_or(|holder| holder == member),
        "never from another member"
    );
    match purpose {
        Purpose::Take => {
            prop_assert_eq!((content.epoch, holder_after), (Epoch(record.epoch.0 + 1), Some(member)));
            prop_assert!(record.system_id.is_none() || record.system_id == content.system_id);
            let by_release = record.release.as_ref().is_some_and(|release| release.member == *member);
            prop_assert!(holder_before.is_some() || by_release || record.epoch == Epoch(0));
            prop_assert!(!may_write(observed));
        }
        Purpose::Renew => {
            prop_assert_eq!(
                (content.epoch, holder_after, holder_before),
                (record.epoch, Some(member), Some(member))
            );
            prop_assert_eq!(&content.system_id, &record.system_id);
        }
        Purpose::Release => {
            prop_assert_eq!((content.epoch, holder_after), (record.epoch, None));
            prop_assert!(is_stopped(observed));
            prop_assert!(observed.postgres.strays == 0 && observed.tasks.start.running.is_none());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(4_000)))]

    #[test]
    fn every_action_has_its_proof(observed in situations(), memo in memos(), now in times()) {
        let decision = decide(&observed, &memo, now);
        check_action(&observed, &decision, now)?;
        if let Some(work) = decision.action.work() {
            prop_assert_eq!(class(&observed, work).running, None, "{:?}", decision);
        }
        prop_assert!(!decision.because.is_empty());
        let rule = RULES.iter().find(|rule| rule.name == decision.rule).expect("a rule decides");
        prop_assert!(rule.kind == RuleKind::Act || decision.action == Action::Wait, "{:?}", decision);
        prop_assert_eq!(decide(&observed, &memo, now), decision);
    }

    #[test]
    fn whatever_may_write_without_the_lease_is_stopped(observed in situations(), now in times()) {
        let missing = observed.lease.record.is().is_none();
        let confirmed = observed.lease.confirmed.is_some_and(|confirmed| now.since(confirmed.sent) < confirmed.timing.fence);
        if may_write(&observed) && !holds(&observed, now) && !(missing && confirmed) {
            let first = decide(&observed, &Memo::default(), now);
            prop_assert_eq!(&first.action, &Action::Stop(Stop::Immediate));
            let second = decide(&observed, &first.memo, now.plus(observed_kill(&observed)));
            prop_assert_eq!(&second.action, &Action::Stop(Stop::Kill));
        }
    }

    /// Whatever is observed, PostgreSQL of a fenced instance is only stopped, and its data stays as it is.
    #[test]
    fn a_fenced_instance_starts_nothing_and_takes_no_lease(
        observed in prop_oneof![situations(), voters(), candidates()],
        memo in memos(),
        now in times(),
    ) {
        let mut observed = observed;
        fence(&mut observed, "orders-0");
        let fenced = observed.cluster.is().is_some();
        let decision = decide(&observed, &memo, now);
        let disturbs = match &decision.action {
            Action::WriteLease { purpose, .. } => *purpose == Purpose::Take,
            Action::StartPrimary { .. }
            | Action::StartStandby { .. }
            | Action::Promote { .. }
            | Action::Initdb { .. }
            | Action::Clone { .. }
            | Action::Rewind { .. }
            | Action::SetAside { .. }
            | Action::FetchWal(_)
            | Action::DiscardStaging
            | Action::TakeSnapshot
            | Action::Ask { .. }
            | Action::Open => true,
            _ => false,
        };
        prop_assert!(!(fenced && disturbs), "{:?}", decision);
        let follows = observed.postgres.process == (Process::Running { mode: Mode::Standby }) && !may_write(&observed);
        if fenced && follows && memo.stopping.is_none() {
            let first = ["fence", "stop-promoted", "renew", "end-impostors", "shut-down"];
            prop_assert!(first.contains(&decision.rule), "{:?}", decision);
        }
    }

    /// A holder that steps down holds the lease and knows others. It does so once, and not again before two minutes
    /// have passed or another member has held the lease.
    #[test]
    fn nobody_steps_down_for_nobody_or_twice(observed in crashed(), memo in memos(), now in times()) {
        let decision = decide(&observed, &memo, now);
        if decision.memo.steps_down.is_some() {
            prop_assert!(holds(&observed, now) && others_are_there(&observed, now), "{:?}", decision);
            prop_assert_eq!((decision.memo.stepped_down, observed.tasks.lease.failures), (Some(now), 0));
            let again = Memo { steps_down: None, ..decision.memo };
            for later in [now, now.plus(Millis(119_999))] {
                let mut observed = observed.clone();
                observed.lease.confirmed.as_mut().expect("held").sent = later;
                observed.peers.values_mut().for_each(|peer| peer.heard = later);
                prop_assert_eq!(decide(&observed, &again, later).memo.steps_down, None);
            }
        }
    }

    #[test]
    fn a_decision_changes_the_memory_by_what_it_notes_and_nothing_else(
        observed in prop_oneof![situations(), candidates(), crashed(), wished()],
        memo in memos(),
        now in times(),
    ) {
        let context = Context::new(&observed, now);
        let known = remember(&context, memo.clone());
        let (rule, verdict) = choose(&context, &mut Draft::new(&known));
        let decision = decide(&observed, &memo, now);
        prop_assert_eq!(rule, decision.rule);
        prop_assert_eq!(decision.memo, known.clone().with(verdict.changes), "{}", rule);
        prop_assert_eq!(remember(&context, known.clone()), known, "what is remembered changes with time alone");
    }

    #[test]
    fn a_wait_never_wakes_at_once(observed in situations(), memo in memos(), now in times()) {
        let decision = decide(&observed, &memo, now);
        if decision.action == Action::Wait {
            prop_assert!(decision.wake.is_none_or(|wake| wake > now), "{:?}", decision);
        }
    }

    #[test]
    fn nobody_stops_for_a_successor_that_was_seen_before_the_checkpoint(observed in wished()) {
        let Decision { rule, action, memo, .. } = decide(&observed, &settled(), BootTime(30_000));
        let (answer, ended) = (observed.postgres.answer.expect("an answer"), observed.tasks.checkpoint.ended);
        let lacks = answer.position.expect("a position").lsn.0 - position().lsn.0;
        let stops = matches!(action, Action::Stop(_));
        let now = answer.asked >= ended && ended > BootTime(26_000) && lacks <= 16 << 20;
        prop_assert_eq!(stops, now, "{}", rule);
        prop_assert_eq!(memo.handing_over.is_some(), now);
    }

    #[test]
    fn whatever_may_write_is_watched_by_the_dead_man(observed in situations(), memo in memos(), now in times()) {
        if may_write(&observed) || observed.postgres.strays > 0 {
            prop_assert!(decide(&observed, &memo, now).dead_man.is_some());
        }
    }

    #[test]
    fn whoever_has_promised_to_leave_the_lease_neither_promises_nor_asks_nor_takes(observed in voters(), now in times()) {
        let answered = failsafe::answer(&observed, now, &crate::protocol::FailsafeRequest {
            epoch: Epoch(1),
            pod: "orders-1".to_owned(),
            lease: "lease".to_owned(),
        });
        if let Ok((_, given)) = answered {
            prop_assert!(given.until >= now.plus(Timing::DEFAULT.lease.min(Timing::FAST.lease)));
            let mut later = observed.clone();
            later.failsafe_given = Some(given.clone());
            later.asked_for = Some(Epoch(2));
            let answer = later.postgres.answer.as_mut().expect("it streams");
            (answer.streaming, answer.received_all) = (false, true);
            for at in [now, BootTime(given.until.0 - 1)] {
                let decision = decide(&later, &settled(), at);
                let elects = match &decision.action {
                    Action::Promise { .. } | Action::Ask { .. } => true,
                    Action::WriteLease { purpose, .. } => *purpose == Purpose::Take,
                    _ => false,
                };
                prop_assert!(!elects, "{:?}", decision);
            }
        }
    }
}
