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
mod tests {
    use api::Phase;
    use api::spec::FailoverProfile;

    use super::super::Action;
    use super::super::health::Reason;
    use super::super::testing::Scene;
    use super::*;

    #[test]
    fn the_only_instance_loses_all_with_its_volume() {
        let bound = |replicas| promised(&Scene::ready(replicas)).loss_bound;
        assert!(bound(1).starts_with("none while the volume survives"), "{}", bound(1));
        let mut copied = Scene::ready(2);
        copied.lease_mut().unwrap().rule = Default::default();
        let bound = promised(&copied).loss_bound;
        assert!(bound.starts_with("the last commits"), "{bound}");
    }

    fn promised(scene: &Scene) -> DurabilityStatus {
        scene.status(&scene.decide()).durability.unwrap()
    }

    #[test]
    fn the_status_says_what_is_in_force() {
        let of = |scene: &Scene| {
            let found = promised(scene);
            (found.mode, found.loss_bound, found.recovery_bound)
        };
        let mut scene = Scene::ready(3);
        let (mode, loss, recovery) = of(&scene);
        assert_eq!(
            (mode, loss.as_str()),
            (DurabilityMode::Required, "none by any single failure")
        );
        assert_eq!(
            recovery,
            "about 4.7 s after the primary is lost: 2.7 s of silence, then an election and a promotion"
        );
        scene.edit(|spec| spec.failover.reads = FailoverReads::Strict);
        assert!(
            of(&scene)
                .2
                .starts_with("about 12 s after the primary is lost: 10 s until its lease has run out, by")
        );
        scene.lease_mut().unwrap().rule.required = 0;
        let (mode, loss, recovery) = of(&scene);
        assert_eq!(mode, DurabilityMode::Async);
        assert!(
            loss.starts_with("the last commits") && loss.ends_with("(spec.durability asks for 1 standby)"),
            "{loss}"
        );
        assert!(recovery.contains("since commits wait for no standby"), "{recovery}");
        let five = Scene::ready(5);
        assert_eq!(of(&five).1, "none by any 2 failures at once");
        let one = Scene::ready(1);
        assert_eq!(
            (of(&one).0, of(&one).2.as_str()),
            (DurabilityMode::Async, "until the pod runs again on its volume")
        );
        let mut fast = Scene::ready(3);
        fast.edit(|spec| spec.failover.profile = FailoverProfile::Fast);
        assert!(of(&fast).2.contains("1.2 s of silence"), "{}", of(&fast).2);
        let mut preferred = Scene::ready(3);
        preferred.edit(|spec| spec.durability.mode = Some(DurabilityMode::Preferred));
        assert_eq!(of(&preferred).0, DurabilityMode::Preferred);
        let mut hasty = Scene::ready(3);
        for (value, bound) in [
            ("off", "the last commits"),
            ("LOCAL", "the last commits"),
            ("remote_apply", "none by"),
            (" ON", "none by"),
        ] {
            hasty.edit(|spec| {
                let parameters = &mut spec.postgres.parameters;
                parameters.insert("synchronous_commit".to_owned(), value.to_owned());
            });
            assert!(of(&hasty).1.starts_with(bound), "{value}: {}", of(&hasty).1);
        }
        hasty.edit(|spec| {
            let parameters = &mut spec.postgres.parameters;
            parameters.insert("Synchronous_Commit".to_owned(), "off".to_owned());
            parameters.remove("synchronous_commit");
        });
        assert!(of(&hasty).1.contains("sets synchronous_commit to off"));
        hasty.lease_mut().unwrap().rule.required = 0;
        assert!(
            of(&hasty).1.contains("no standby has received them"),
            "nothing waits at all"
        );
    }

    #[test]
    fn only_one_instance_that_nobody_follows_is_alone() {
        let alone = |scene: &Scene| promised(scene).recovery_bound == "until the pod runs again on its volume";
        let mut scene = Scene::ready(2);
        scene.edit(|spec| spec.replicas = 1);
        assert!(!alone(&scene), "the second one is still there");
        let mut scene = Scene::ready(1);
        assert!(alone(&scene));
        scene.edit(|spec| spec.replicas = 2);
        assert!(!alone(&scene), "another one comes");
        let mut lost = Scene::ready(3);
        lost.lease_mut().unwrap().holder = None;
        assert!(
            promised(&lost).loss_bound.starts_with("none by"),
            "the user has not put it down"
        );
    }

    #[test]
    fn ready_needs_the_promise_in_force() {
        let mut scene = Scene::ready(3);
        scene.lease_mut().unwrap().rule.required = 0;
        let decision = scene.decide();
        assert_eq!((decision.rule, decision.phase), ("await-durability", Phase::Updating));
        assert_eq!(
            decision.because.to_string(),
            "commits to wait for 1 standby, as spec.durability says; they wait for no standby"
        );
        let safe = |scene: &Scene| {
            let status = scene.status(&scene.decide());
            let found = status
                .conditions
                .into_iter()
                .find(|found| found.type_ == "DataSafe")
                .unwrap();
            (found.status, found.reason)
        };
        assert_eq!(
            safe(&scene),
            ("False".to_owned(), Reason::DurabilityReduced.as_str().to_owned())
        );
        scene.edit(|spec| spec.durability.mode = Some(DurabilityMode::Async));
        assert_eq!((scene.decide().rule, scene.decide().phase), ("rest", Phase::Ready));
        scene.lease_mut().unwrap().rule.required = 1;
        assert_eq!(
            scene.decide().rule,
            "await-durability",
            "commits that wait for nothing asked for"
        );
        assert_ne!(safe(&scene).1, Reason::DurabilityReduced.as_str(), "more is not less");
    }

    #[test]
    fn data_is_not_safe_while_a_role_replicates_under_a_members_name() {
        let mut scene = Scene::ready(3);
        let safe = |scene: &Scene| {
            let conditions = scene.status(&scene.decide()).conditions;
            let found = conditions.into_iter().find(|found| found.type_ == "DataSafe").unwrap();
            (found.status, found.reason, found.message)
        };
        scene.report_mut(0).impostors = ["cdc".to_owned(), "o'r \"x\"".to_owned()].into();
        let (status, reason, message) = safe(&scene);
        assert_eq!(
            (status.as_str(), reason.as_str()),
            ("False", Reason::MemberImpersonated.as_str())
        );
        assert!(
            message.contains(r#"whenever they do: "cdc", "o'r \"x\"";"#),
            "{message}"
        );
        assert_eq!(scene.decide().phase, Phase::Ready, "nothing is to be changed");
        scene.report_mut(1).impostors = std::mem::take(&mut scene.report_mut(0).impostors);
        assert_eq!(safe(&scene).0, "True", "nobody waits for what a standby sends");
        scene.report_mut(0).impostors = scene.report_mut(1).impostors.clone();
        scene.edit(|spec| spec.durability.mode = Some(DurabilityMode::Async));
        scene.lease_mut().unwrap().rule.required = 0;
        assert_eq!(safe(&scene).0, "True", "commits wait for nobody");
    }

    #[test]
    fn members_leave_the_rule_before_they_go() {
        let mut scene = Scene::ready(5);
        scene.edit(|spec| spec.replicas = 3);
        let decision = scene.decide();
        assert_eq!(decision.rule, "await-scale");
        assert_eq!(
            decision.because.to_string(),
            "commits to do without demo-3, demo-4, to scale down"
        );
        let rule = &mut scene.lease_mut().unwrap().rule;
        rule.names.retain(|name| name.ordinal() < Some(3));
        assert_eq!(
            scene.decide().because.to_string(),
            "commits to wait for no more than 1 standby, to scale down"
        );
        scene.lease_mut().unwrap().rule.required = 1;
        assert!(matches!(scene.decide().action, Action::Apply(apply) if apply.replicas == Some(3)));
    }

    #[test]
    fn a_standby_that_commits_need_is_not_scaled_away_while_another_is_broken() {
        let mut scene = Scene::ready(3);
        scene.edit(|spec| (spec.replicas, spec.durability.mode) = (2, Some(DurabilityMode::Required)));
        scene.report_mut(1).state = crate::protocol::MemberState::CatchingUp;
        let decision = scene.decide();
        assert_eq!(
            (decision.rule, decision.because.to_string().as_str()),
            (
                "await-staying",
                "demo-1, which is to stay, to serve, before demo-2 goes, which does"
            )
        );
        scene.edit(|spec| spec.replicas = 3);
        assert_eq!(scene.decide().rule, "await-standbys", "a revert is possible");
    }
}
