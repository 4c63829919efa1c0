//! What a commit waits for: by the rule that is in force in the Lease, never by the spec alone.

use std::collections::BTreeSet;

use api::WantedDurability;
use api::spec::StaleReads;
use api::status::{DurabilityMode, DurabilityStatus, WaitReason};

use super::action::StatusChange;
use super::decision::Step;
use super::facts::{Facts, hibernation, list};
use super::observed::Pod;
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use crate::protocol::ASYNC_LOSS;
use crate::timing::Timing;
use crate::units::{Bytes, Millis};

/// See [`Rule::what`].
pub const AWAIT_DURABILITY: Rule = Rule {
    name: "await-durability",
    family: "durability",
    what: "Until commits wait for as many standbys as spec.durability asks for, no more and no less, the primary's agent is waited for.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_durability,
    on_backoff: OnBackoff::Hold,
};

/// What an election and a promotion take after it is certain that the primary is gone.
const PROMOTION: Millis = Millis::seconds(2);

/// What the spec asks for, or what was chosen before. If a status has lost that, the rule in force is what is left of it.
pub(super) fn wanted(facts: &Facts<'_>) -> WantedDurability {
    let standbys = required(facts);
    let left = (standbys > 0).then_some(WantedDurability {
        mode: DurabilityMode::Required,
        standbys,
    });
    let chosen = facts.status.memo.durability.or(left);
    facts.wanted.spec.wanted_durability(chosen)
}

/// What is to be on record of it and is not.
pub(super) fn unrecorded(facts: &Facts<'_>) -> Option<StatusChange> {
    let wanted = wanted(facts);
    (facts.status.memo.durability != Some(wanted)).then_some(StatusChange::RecordDurability(wanted))
}

/// How many standbys a commit waits for now, by the rule on record.
fn required(facts: &Facts<'_>) -> usize {
    facts.lease.map_or(0, |lease| lease.rule.required)
}

/// What the spec promises is what is in force.
pub(super) fn in_force(facts: &Facts<'_>) -> bool {
    facts.lease.is_some() && required(facts) == wanted(facts).standbys
}

/// Commits wait for fewer standbys than the spec promises.
pub(super) fn reduced(facts: &Facts<'_>) -> bool {
    facts.lease.is_some() && required(facts) < wanted(facts).standbys
}

/// Commits may have been acknowledged though fewer standbys than the rule requires have them, since a role replicates from the primary
/// under the name of a member, or did a moment ago: which, and what the user can do.
pub(super) fn impersonated(facts: &Facts<'_>, primary: &Pod) -> Option<String> {
    let roles = &facts.report(primary)?.impostors;
    if roles.is_empty() || required(facts) == 0 {
        return None;
    }
    let roles: Vec<String> = roles.iter().map(|role| format!("{role:?}")).collect();
    Some(format!(
        "commits of the last minute may have been acknowledged that no standby has: these roles replicate under the name of an \
         instance, and are ended whenever they do: {}; give their clients another application_name, or take REPLICATION from them",
        list(roles.iter().map(String::as_str))
    ))
}

fn await_durability(facts: &Facts<'_>) -> Option<Proposal> {
    let primary = facts.primary().filter(|_| !in_force(facts))?;
    let what = format!(
        "commits to wait for {}, as spec.durability says; they wait for {}",
        standbys(wanted(facts).standbys),
        standbys(required(facts))
    );
    Proposal::wait(
        facts,
        Step::Settings,
        WaitReason::DurabilityInForce,
        what,
        format!("the agent in pod {}", primary.name),
    )
}

/// What is waited for before a scale-down to `replicas`: members are taken out of the rule first, since an election counts
/// the answers of all that stand in it (protocol.md rule 10), and commits must not wait for more than those that stay.
pub(super) fn before_scale_down(facts: &Facts<'_>, replicas: u32) -> Option<Proposal> {
    let rule = &facts.lease?.rule;
    let primary = facts.primary()?;
    let leave = rule
        .names
        .iter()
        .filter_map(|name| name.ordinal())
        .filter(|ordinal| *ordinal >= replicas);
    let leave: BTreeSet<String> = leave
        .map(|ordinal| format!("{}-{ordinal}", facts.wanted.name))
        .collect();
    let what = if !leave.is_empty() {
        let names = list(leave.iter().map(String::as_str));
        format!("commits to do without {names}, to scale down")
    } else if rule.required > wanted(facts).standbys {
        let fewer = standbys(wanted(facts).standbys);
        format!("commits to wait for no more than {fewer}, to scale down")
    } else {
        return None;
    };
    let who = format!(
        "the agent in pod {}, once enough of the standbys that stay have caught up",
        primary.name
    );
    Proposal::wait(facts, Step::Scaling, WaitReason::DurabilityForScaleDown, what, who)
}

/// How many, in words.
pub(super) fn standbys(number: usize) -> String {
    match number {
        0 => "no standby".to_owned(),
        1 => "1 standby".to_owned(),
        _ => format!("{number} standbys"),
    }
}

/// What is promised right now.
pub(super) fn describe(facts: &Facts<'_>) -> DurabilityStatus {
    let required = required(facts);
    let mode = match (required, wanted(facts).mode) {
        (0, _) => DurabilityMode::Async,
        (_, DurabilityMode::Preferred) => DurabilityMode::Preferred,
        (_, DurabilityMode::Async | DurabilityMode::Required) => DurabilityMode::Required,
    };
    let (recovery_bound, recovery) = recovery(facts, required);
    DurabilityStatus {
        mode,
        synchronous_standbys: u32::try_from(required).unwrap_or(u32::MAX),
        max_loss_bytes: max_loss(facts, required).map(|loss| loss.0),
        expected_recovery_milliseconds: recovery.map(|recovery| recovery.0),
        loss_bound: loss_bound(facts, required),
        recovery_bound,
    }
}

/// The user has put the database down: nobody serves, and nobody is to.
fn is_put_down(facts: &Facts<'_>) -> bool {
    hibernation::wanted(facts) && facts.primary().is_none()
}

fn loss_bound(facts: &Facts<'_>, required: usize) -> String {
    if is_put_down(facts) {
        return "nothing is served, and nothing is written; what is on the volumes stays".to_owned();
    }
    let short = match wanted(facts).standbys {
        wanted if required < wanted => format!(" (spec.durability asks for {})", standbys(wanted)),
        _ => String::new(),
    };
    if let (Some(setting), 1..) = (unwaiting(facts), required) {
        return format!(
            "the last commits, as far as no standby has them when the primary is lost: spec.postgres.parameters sets \
             synchronous_commit to {setting}, which waits for less than a standby's disk{short}"
        );
    }
    match required {
        0 if alone(facts) => {
            format!("none while the volume survives; with the volume, all data is lost to this database{short}")
        }
        0 => format!(
            "the last commits, as far as no standby has received them when the primary is lost; more than {} MiB only if the user \
             accepts it{short}",
            ASYNC_LOSS.in_mib()
        ),
        1 => format!("none by any single failure{short}"),
        several => format!("none by any {several} failures at once{short}"),
    }
}

/// As [`loss_bound`] says it. Without standbys everything can be lost, and a session that waits for less than a standby's disk
/// sets no bound.
fn max_loss(facts: &Facts<'_>, required: usize) -> Option<Bytes> {
    match required {
        _ if is_put_down(facts) => Some(Bytes::ZERO),
        0 => Some(ASYNC_LOSS).filter(|_| !alone(facts)),
        _ => Some(Bytes::ZERO).filter(|_| unwaiting(facts).is_none()),
    }
}

/// The default of sessions, if it makes commits that wait for less than what elections go by (protocol.md rule 22).
fn unwaiting<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    let parameters = &facts.wanted.spec.postgres.parameters;
    let (_, value) = parameters
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case("synchronous_commit"))?;
    let waits = ["on", "remote_apply", "true", "yes", "1"];
    (!waits.iter().any(|waits| value.trim().eq_ignore_ascii_case(waits))).then_some(value.as_str())
}

/// How long writes stop when the primary is lost, in words and as a time.
fn recovery(facts: &Facts<'_>, required: usize) -> (String, Option<Millis>) {
    let unknown = if is_put_down(facts) {
        Some("nothing is served until spec.hibernated is false")
    } else if alone(facts) {
        Some("until the pod runs again on its volume")
    } else if facts.bootstrapped() && facts.primary().is_none() {
        Some("no primary serves: status.waiting says what its election waits for")
    } else {
        None
    };
    if let Some(unknown) = unknown {
        return (unknown.to_owned(), None);
    }
    let timing = Timing::of(&facts.wanted.spec.failover).unwrap_or(Timing::DEFAULT);
    let strict = facts.wanted.spec.failover.stale_reads == StaleReads::Forbid;
    let (certain, why) = if required == 0 {
        (
            timing.lease,
            "until its lease has run out, since commits wait for no standby",
        )
    } else if strict {
        (timing.lease, "until its lease has run out, by spec.failover.staleReads")
    } else {
        (timing.suspect(), "of silence")
    };
    let words = format!(
        "about {} s after the primary is lost: {} s {why}, then an election and a promotion",
        seconds(certain + PROMOTION),
        seconds(certain)
    );
    (words, Some(certain + PROMOTION))
}

fn alone(facts: &Facts<'_>) -> bool {
    facts.wanted.replicas() == 1 && facts.expected() <= 1
}

/// A time in seconds: `3`, `1.5`.
fn seconds(time: Millis) -> String {
    let tenths = time.0.div_ceil(100);
    match tenths % 10 {
        0 => (tenths / 10).to_string(),
        tenth => format!("{}.{tenth}", tenths / 10),
    }
}

#[cfg(test)]
mod tests;
