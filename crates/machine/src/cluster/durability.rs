//! What a commit waits for: by the rule that is in force in the Lease, never by the spec alone.

use std::collections::BTreeSet;

use api::WantedDurability;
use api::spec::FailoverReads;
use api::status::{DurabilityMode, DurabilityStatus};

use super::decision::Step;
use super::facts::{Facts, list};
use super::hibernation;
use super::observed::Pod;
use super::rule::{Proposal, Rule};
use crate::protocol::ASYNC_LOSS;
use crate::timing::Timing;

/// See [`Rule::what`].
pub const AWAIT_DURABILITY: Rule = Rule {
    name: "await-durability",
    family: "durability",
    what: "Until commits wait for as many standbys as spec.durability asks for, no more and no less, the primary's agent is waited for.",
    propose: await_durability,
    passable: false,
};

/// What an election and a promotion take after it is certain that the primary is gone, in milliseconds.
const PROMOTION: u64 = 2_000;

/// What the spec asks for.
pub(super) fn wanted(facts: &Facts<'_>) -> WantedDurability {
    facts.wanted.spec.wanted_durability()
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
    Proposal::wait(facts, Step::Scaling, what, who)
}

fn standbys(number: usize) -> String {
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
    DurabilityStatus {
        mode,
        loss_bound: loss_bound(facts, required),
        recovery_bound: recovery_bound(facts, required),
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
            ASYNC_LOSS >> 20
        ),
        1 => format!("none by any single failure{short}"),
        several => format!("none by any {several} failures at once{short}"),
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

fn recovery_bound(facts: &Facts<'_>, required: usize) -> String {
    if is_put_down(facts) {
        return "nothing is served until spec.hibernated is false".to_owned();
    }
    if alone(facts) {
        return "until the pod runs again on its volume".to_owned();
    }
    let timing = Timing::of(&facts.wanted.spec.failover).unwrap_or(Timing::DEFAULT);
    let strict = facts.wanted.spec.failover.reads == FailoverReads::Strict;
    let (certain, why) = if required == 0 {
        (
            timing.lease,
            "until its lease has run out, since commits wait for no standby",
        )
    } else if strict {
        (timing.lease, "until its lease has run out, by spec.failover.reads")
    } else {
        (timing.suspect(), "of silence")
    };
    format!(
        "about {} s after the primary is lost: {} s {why}, then an election and a promotion",
        seconds(certain + PROMOTION),
        seconds(certain)
    )
}

fn alone(facts: &Facts<'_>) -> bool {
    facts.wanted.replicas() == 1 && facts.expected() <= 1
}

/// Milliseconds as seconds: `3`, `1.5`.
fn seconds(milliseconds: u64) -> String {
    let tenths = milliseconds.div_ceil(100);
    match tenths % 10 {
        0 => (tenths / 10).to_string(),
        tenth => format!("{}.{tenth}", tenths / 10),
    }
}

#[cfg(test)]
mod tests;
