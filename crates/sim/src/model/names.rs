//! Converts the small numbers of this world into the machine's types, and back.

use std::collections::BTreeSet;

use machine::archive::{ArchiveRecord, Progress};
use machine::instance::Upstream;
use machine::protocol::{
    Epoch, Fork, HolderRecord, Incarnation, LeaseRecord, Lsn, MemberId, MemberReport, MemberState, Position, Release,
    Timeline,
};
use machine::quorum::SyncRule;
use machine::timing::Timing;

use super::state::{Lease, Rule, Set, TIMELINES, Wal};

pub(super) const SYSTEM_ID: &str = "7411111111111111111";
pub(super) const SETTINGS: &str = "cbf29ce484222325";
pub(super) const CLAIM: &str = "aaaa0000-1111";
pub(super) const LEASE: &str = "lease";
pub(super) const CLUSTER: &str = "c0ffee";

/// No world has more members.
const MOST: usize = 8;

pub(super) fn lease(content: &machine::lease_object::LeaseContent, seen: &Lease) -> Lease {
    let holder = content.holder.as_ref().map(|holder| {
        let run = holder.incarnation.run.trim_start_matches("run-").parse().unwrap_or(0);
        (member_number(&holder.incarnation.member), run)
    });
    let mut history = [0; TIMELINES];
    for fork in &content.history {
        history[usize::try_from(fork.timeline.0).unwrap_or(0) % TIMELINES] = small(fork.end.0);
    }
    let described = content.holder.as_ref();
    let release = content.release.as_ref();
    let had = |holder: &HolderRecord| content.positions.get(&holder.incarnation.pod).copied();
    Lease {
        version: seen.version,
        loss: None,
        holder,
        epoch: small(content.epoch.0),
        reserved: content.timeline.map_or(0, |timeline| small(timeline.0.into())),
        lossy: content.lossy.map_or(0, |timeline| small(timeline.0.into())),
        rule: set_rule(&content.rule),
        release: release.map(|release| (member_number(&release.member), release.position.map(wal))),
        successor: release.and_then(|release| Some(pod_number(release.successor.as_ref()?))),
        had: described
            .filter(|holder| holder.timeline.is_none())
            .and_then(had)
            .map(wal),
        written: described
            .and_then(|holder| holder.timeline)
            .map_or(0, |timeline| small(timeline.0.into())),
        serving: described.is_some_and(|holder| holder.serving),
        history,
        archived: content
            .archive
            .as_ref()
            .and_then(|archive| archive.progress.up_to)
            .map(wal),
    }
}

/// The Lease as the machine reads it, in a world of `members`.
pub(super) fn record(lease: &Lease, members: usize) -> LeaseRecord {
    let holder = lease.holder.map(|(member, run)| HolderRecord {
        incarnation: Incarnation {
            pod: pod(member.into()),
            pod_uid: format!("uid-{member}"),
            run: run_name(run),
            member: id(member.into()),
        },
        address: address(member.into()),
        timeline: (lease.written > 0).then(|| Timeline(lease.written.into())),
        serving: lease.serving,
    });
    LeaseRecord {
        version: lease.version.to_string(),
        uid: LEASE.to_owned(),
        holder,
        renewal: None,
        duration: Timing::DEFAULT.lease,
        epoch: Epoch(lease.epoch.into()),
        system_id: Some(SYSTEM_ID.to_owned()),
        release: lease.release.map(|(member, end)| Release {
            member: id(member.into()),
            position: end.map(position),
            successor: lease.successor.map(|member| pod(member.into())),
        }),
        rule: sync_rule(lease.rule),
        timeline: (lease.reserved > 0).then(|| Timeline(lease.reserved.into())),
        lossy: (lease.lossy > 0).then(|| Timeline(lease.lossy.into())),
        history: forks(&lease.history),
        members: (0..members).map(|other| (pod(other), told(other))).collect(),
        positions: lease
            .holder
            .zip(lease.had)
            .map(|((member, _), had)| (pod(member.into()), position(had)))
            .into_iter()
            .collect(),
        archive: lease.archived.map(record_of_archive),
        volume_set: 0,
        former_set: None,
    }
}

/// What a holder tells of the archive, which is complete up to `end`.
pub(super) fn record_of_archive(end: Wal) -> ArchiveRecord {
    let progress = Progress {
        up_to: Some(position(end)),
        ..Progress::default()
    };
    ArchiveRecord {
        progress,
        ..ArchiveRecord::default()
    }
}

/// The Lease as the operator makes it.
pub(super) fn empty() -> LeaseRecord {
    LeaseRecord {
        system_id: None,
        members: [].into(),
        ..record(&Lease::default(), 0)
    }
}

/// The report that every member is known by; it has no news.
pub(super) fn told(member: usize) -> MemberReport {
    MemberReport {
        pod_uid: format!("uid-{member}"),
        member: id(member),
        address: address(member),
        state: MemberState::Streaming,
        settings: SETTINGS.to_owned(),
        pending_restart: false,
        lowers_limits: false,
        settings_error: None,
        public_key: None,
        server_version: None,
        agent_version: String::new(),
        fault: None,
        kept: [].into(),
        impostors: [].into(),
        full: Default::default(),
        certificates: None,
        replication_certificate: None,
    }
}

pub(super) fn pod(member: usize) -> String {
    format!("orders-{member}")
}
pub(super) fn pod_number(pod: &str) -> u8 {
    pod.trim_start_matches("orders-").parse().unwrap_or(u8::MAX)
}
pub(super) fn run_name(run: u8) -> String {
    format!("run-{run}")
}
pub(super) fn address(member: usize) -> String {
    format!("10.0.0.{member}")
}
pub(super) fn number(address: &str) -> u8 {
    address.trim_start_matches("10.0.0.").parse().unwrap_or(u8::MAX)
}
pub(super) fn id(member: usize) -> MemberId {
    MemberId::new(member as u32, CLAIM, 7)
}
fn member_number(member: &MemberId) -> u8 {
    (0..MOST)
        .position(|other| id(other) == *member)
        .map_or(u8::MAX, |other| other as u8)
}
pub(super) fn upstream((member, epoch): (u8, u8)) -> Upstream {
    Upstream {
        address: address(member.into()),
        epoch: Epoch(epoch.into()),
    }
}
pub(super) fn position(wal: Wal) -> Position {
    Position {
        timeline: Timeline(wal.timeline.into()),
        lsn: Lsn(wal.end.into()),
    }
}
pub(super) fn wal(position: Position) -> Wal {
    Wal {
        timeline: small(position.timeline.0.into()),
        end: small(position.lsn.0),
    }
}
pub(super) fn forks(ends: &[u8; TIMELINES]) -> Vec<Fork> {
    let known = ends.iter().enumerate().filter(|(_, end)| **end > 0);
    known
        .map(|(timeline, end)| Fork {
            timeline: Timeline(timeline as u32),
            end: Lsn((*end).into()),
        })
        .collect()
}
pub(super) fn sync_rule(rule: Rule) -> SyncRule {
    let names = (0..MOST).filter(|member| rule.names >> member & 1 == 1);
    SyncRule::any(rule.required.into(), names.map(id))
}
pub(super) fn set_rule(rule: &SyncRule) -> Rule {
    let names: BTreeSet<_> = rule.names.iter().map(member_number).collect();
    Rule {
        required: small(rule.required as u64),
        names: names.iter().fold(0, |set: Set, member| set | 1 << member),
    }
}
pub(super) fn small(number: u64) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}
