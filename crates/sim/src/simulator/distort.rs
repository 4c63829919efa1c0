//! Rules that are broken on purpose, by changing what the machine sees or what is done with its decision. The simulator
//! must find the resulting loss of each.

use std::borrow::Cow;

use machine::cluster::{self, Known};
use machine::instance::{Action, Decision, Mode, Observed, Process, Reading};
use machine::protocol::{Epoch, Lsn, MemberState, Position, Timeline};
use machine::quorum::SyncRule;
use machine::timing::BootTime;

/// One broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// No primary is fenced, and there is no dead-man.
    FenceIsSkipped,
    /// An old promise counts for the requested epoch, wherever its member's WAL ends.
    StalePromiseCounts,
    /// A setting comes into force before it is recorded in the Lease.
    RuleIsNotRecorded,
    /// A member with less WAL may be elected.
    AnyPositionWins,
    /// A standby's WAL end counts as final while it still follows a former primary.
    FollowedEndIsFinal,
    /// A promise leaves the WAL receiver alone.
    PromiseKeepsReceiving,
    /// A promise is forgotten with the agent's run.
    PromiseIsForgotten,
    /// A write of the Lease does not expect a version.
    LeaseIsOverwritten,
    /// A timeline is used again.
    TimelineIsUsedTwice,
    /// A primary opens before other members have what is in doubt.
    OpensInDoubt,
    /// A holder does not learn what others have promised.
    EpochIsNotRaised,
    /// A rewind copies no WAL aside, and data that is moved aside is not quarantined.
    NothingIsKept,
    /// The operator's writes and deletes have no preconditions, and it reads nothing again before a delete.
    OperatorExpectsNothing,
    /// An operator that was stalled still sends its prepared request, even if another one leads now.
    OperatorActsLate,
    /// The operator treats each member that it does not wait for as serving, so it replaces one member after the other.
    OperatorTrustsAll,
}

impl Bug {
    /// All bugs.
    pub const ALL: [Bug; 15] = [
        Bug::FenceIsSkipped,
        Bug::StalePromiseCounts,
        Bug::RuleIsNotRecorded,
        Bug::AnyPositionWins,
        Bug::FollowedEndIsFinal,
        Bug::PromiseKeepsReceiving,
        Bug::PromiseIsForgotten,
        Bug::LeaseIsOverwritten,
        Bug::TimelineIsUsedTwice,
        Bug::OpensInDoubt,
        Bug::EpochIsNotRaised,
        Bug::NothingIsKept,
        Bug::OperatorExpectsNothing,
        Bug::OperatorActsLate,
        Bug::OperatorTrustsAll,
    ];

    /// The bug with this name.
    pub fn named(name: &str) -> Option<Bug> {
        Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name)
    }
}

/// What an instance machine sees.
pub fn shown(bug: Option<Bug>, observed: &Observed, _now: BootTime) -> Cow<'_, Observed> {
    let Some(bug) = bug else { return Cow::Borrowed(observed) };
    let changed = matches!(
        bug,
        Bug::StalePromiseCounts
            | Bug::RuleIsNotRecorded
            | Bug::AnyPositionWins
            | Bug::FollowedEndIsFinal
            | Bug::OpensInDoubt
            | Bug::EpochIsNotRaised
    );
    if !changed {
        return Cow::Borrowed(observed);
    }
    let mut shown = observed.clone();
    let nothing = Position {
        timeline: Timeline(1),
        lsn: Lsn(0),
    };
    let primary = observed.postgres.process == (Process::Running { mode: Mode::Primary });
    let promise = observed.volume.is().and_then(|volume| volume.promise);
    let Reading::Is(record) = &mut shown.lease.record else {
        return Cow::Owned(shown);
    };
    match bug {
        Bug::StalePromiseCounts => {
            for promised in shown.promises.values_mut() {
                let reply = &mut promised.reply;
                reply.promised = reply
                    .promised
                    .max(promise.map(|promise| promise.epoch).unwrap_or_default());
                reply.position = reply.position.or(Some(nothing));
            }
        }
        Bug::AnyPositionWins => {
            for promised in shown.promises.values_mut() {
                promised.reply.position = promised.reply.position.map(|_| nothing);
            }
        }
        Bug::FollowedEndIsFinal => {
            let (now, configured) = (record.epoch, shown.postgres.configured.as_mut());
            let former = configured.and_then(|configured| configured.upstream.take_if(|followed| followed.epoch < now));
            if former.is_some() {
                // It also does not wait for a promise that ends the stream.
                (shown.tasks.promise.running, shown.tasks.promise.failures) = (None, 0);
            }
        }
        Bug::RuleIsNotRecorded if primary => {
            // Whatever rule is wanted seems to be covered.
            let proven = &observed.postgres.sync.proven.names;
            let names = record.rule.names.difference(proven).cloned().collect();
            record.rule = SyncRule { required: 0, names };
        }
        Bug::OpensInDoubt if primary && !observed.postgres.open => {
            record.rule.required = 0;
            shown.postgres.in_doubt = Some(Lsn(0));
        }
        Bug::EpochIsNotRaised => shown.peers.values_mut().for_each(|peer| peer.promised = Epoch(0)),
        _ => {}
    }
    Cow::Owned(shown)
}

/// What the operator's machine sees.
pub fn seen(bug: Option<Bug>, mut observed: cluster::Observed, revision: &str) -> cluster::Observed {
    if bug != Some(Bug::OperatorTrustsAll) {
        return observed;
    }
    if let (Known::Known(pods), Known::Known(Some(lease))) = (&mut observed.pods, &mut observed.lease) {
        for pod in pods {
            if std::mem::replace(&mut pod.terminating, false) || !pod.ready {
                (pod.ready, pod.revision) = (true, Some(revision.to_owned()));
            }
            if let Some(report) = lease.members.get_mut(&pod.name) {
                report.pod_uid.clone_from(&pod.uid);
                if report.state != MemberState::Primary {
                    report.state = MemberState::Streaming;
                }
                report.fault = None;
            }
        }
    }
    observed
}

/// What is done with a decision.
pub fn decided(bug: Option<Bug>, mut decision: Decision) -> Decision {
    if bug == Some(Bug::FenceIsSkipped) {
        decision.dead_man = None;
        if decision.rule == "fence" {
            decision.action = Action::Wait;
        }
    }
    if bug == Some(Bug::NothingIsKept) {
        match &mut decision.action {
            Action::Rewind { keep, .. } => *keep = None,
            Action::SetAside { keep } => *keep = false,
            _ => {}
        }
    }
    decision
}

/// The timeline to which a standby whose WAL is of timeline `own` is promoted.
pub fn reserved(bug: Option<Bug>, reserved: u32, own: u32) -> u32 {
    match bug {
        Some(Bug::TimelineIsUsedTwice) => own + 1,
        _ => reserved,
    }
}
