use super::super::fixtures::*;
use super::super::*;
use crate::timing::BootTime;

fn starting() -> Observed {
    Observed {
        postgres: stopped(),
        ..standby()
    }
}

#[test]
fn every_wait_says_what_it_is_for() {
    type Case = (fn() -> Observed, fn(&mut Observed), &'static str);
    let cases: [Case; 19] = [
        (primary, |_| {}, "this member holds the lease and serves writes"),
        (
            primary,
            |o| (o.postgres.open, o.tasks.lease.running) = (false, Some(Work::WriteLease)),
            "PostgreSQL can write, and opens once the synchronous members have all WAL that is in doubt",
        ),
        (
            primary,
            |o| {
                o.postgres.answer.as_mut().unwrap().in_recovery = true;
                o.tasks.lease.running = Some(Work::WriteLease);
            },
            "PostgreSQL recovers, to serve writes",
        ),
        (standby, |_| {}, "streams from orders-1"),
        (
            standby,
            |o| {
                o.postgres.answer.as_mut().unwrap().streaming = false;
                o.tasks.report.running = Some(Work::Report);
            },
            "PostgreSQL must start to stream from orders-1",
        ),
        (
            starting,
            |o| o.tasks.start.running = Some(Work::StartStandby),
            "PostgreSQL is being started as standby",
        ),
        (
            starting,
            |o| o.tasks.start.failures = 1,
            "PostgreSQL is about to be started as standby",
        ),
        (made_first, |o| cluster(o).grant = None, "the lease has no holder"),
        (
            cloning,
            |o| o.tasks.volume.running = Some(Work::Clone),
            "the primary is being copied",
        ),
        (
            cloning,
            |o| o.tasks.volume.running = Some(Work::DiscardStaging),
            "the volume is being prepared",
        ),
        (
            cloning,
            |o| o.reply.as_mut().unwrap().admitted = false,
            "orders-1 has not made this member's replication slot yet",
        ),
        (
            cloning,
            |o| {
                volume(o).member.as_mut().unwrap().certificate = None;
                cluster(o).certificate = None;
            },
            "the operator has not signed the replication certificate yet",
        ),
        (
            cloning,
            |o| record(o).holder.as_mut().unwrap().timeline = None,
            "orders-1 must serve before it can be copied",
        ),
        (
            blank,
            |o| o.cluster = Reading::Unknown,
            "the ClusteredDatabase has not been read",
        ),
        (
            granted,
            |o| cluster(o).grant = None,
            "the lease has no holder, and the bootstrap is not granted to this volume",
        ),
        (
            granted,
            |o| o.tasks.volume.failures = 1,
            "the first database will be made here",
        ),
        (
            granted,
            |o| o.tasks.volume.running = Some(Work::Initdb),
            "the first database is being made",
        ),
        (
            primary,
            |o| (o.postgres, o.tasks.start.running) = (stopped(), Some(Work::StartPrimary)),
            "PostgreSQL is being started for writing",
        ),
        (
            primary,
            |o| (o.postgres, o.tasks.start.failures) = (stopped(), 1),
            "PostgreSQL is about to be started again",
        ),
    ];
    for (observed, change, because) in cases {
        let mut observed = observed();
        observed.tasks.report.running = Some(Work::Report);
        change(&mut observed);
        if matches!(&observed.postgres.process, Process::Stopped { .. }) {
            observed.tasks.lease.running = Some(Work::WriteLease);
        }
        let decision = decide(&observed, &settled(), BootTime(100));
        assert_eq!((&decision.action, decision.because.as_ref()), (&Action::Wait, because));
    }
}
