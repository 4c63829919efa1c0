//! Conditions: several answers side by side, each computed from what is observed alone and never from the phase.

use api::ClusteredDatabaseStatus;
use api::status::WaitReason;
use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

mod names;

pub(super) use names::Answer;
pub use names::{BACKUP_HEALTHY, ConditionKind, FOREIGN_ROUTE, Reason};
use names::{CERTIFICATES_EXPIRE, FORMER_VOLUMES, OTHER_DEFAULT, SET_ASIDE};

use super::archive;
use super::facts::{Facts, fenced, hibernation, list, restarts, shortened};
use super::fenced::{is_confirmed, words};
use super::observed::{Pod, Target};
use super::resting::describe;
use super::rule::{CORRECT, OnBackoff};
use super::{RULES, certificates, claims, durability, failure, image, in_place, phase, room, route};
use crate::reconcile::FaultKind;

/// All conditions. The time of a condition's last change is carried on from the stored one while its status is the same.
pub fn conditions(facts: &Facts<'_>) -> Vec<Condition> {
    let answers = ConditionKind::ALL.map(|kind| (kind.as_str(), answer(facts, kind)));
    let set_aside = set_aside(facts).map(|answer| (SET_ASIDE, answer));
    let other = image::other_default(facts).map(|message| Answer::new(true, Reason::OnRecord, message));
    let all = answers.into_iter().chain(set_aside);
    let all = all.chain(other.map(|answer| (OTHER_DEFAULT, answer)));
    let former = in_place::kept(facts).map(|message| Answer::new(true, Reason::Kept, message));
    let all = all.chain(former.map(|answer| (FORMER_VOLUMES, answer)));
    let expiring = certificates::expiring(facts).map(|message| Answer::new(true, Reason::EndsSoon, message));
    let all = all.chain(expiring.map(|answer| (CERTIFICATES_EXPIRE, answer)));
    let route = route::describe(facts).map(|message| Answer::new(true, Reason::AddressOfNoPod, message));
    let all = all.chain(route.map(|answer| (FOREIGN_ROUTE, answer)));
    let all = all.chain(archive::condition(facts).map(|answer| (BACKUP_HEALTHY, answer)));
    all.map(|(kind, answer)| condition(facts, kind, answer)).collect()
}

fn condition(facts: &Facts<'_>, kind: &str, answer: Answer) -> Condition {
    let status = match answer.holds {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let Answer { reason, message, .. } = answer;
    let generation = facts.wanted.generation;
    told(facts.status, (kind, status), reason, message, generation, facts.now)
}

/// A condition. The time of its last change is that of the stored one while its status is the same.
pub(super) fn told(
    stored: &ClusteredDatabaseStatus,
    (kind, status): (&str, &str),
    reason: Reason,
    message: String,
    generation: i64,
    now: DateTime<Utc>,
) -> Condition {
    let mut before = stored.conditions.iter();
    let before = before.find(|stored| stored.type_ == kind && stored.status == status);
    let now = || Time(Timestamp::from_second(now.timestamp()).unwrap_or(Timestamp::UNIX_EPOCH));
    Condition {
        last_transition_time: before.map_or_else(now, |stored| stored.last_transition_time.clone()),
        message,
        observed_generation: Some(generation),
        reason: reason.as_str().to_owned(),
        status: status.to_owned(),
        type_: kind.to_owned(),
    }
}

fn answer(facts: &Facts<'_>, kind: ConditionKind) -> Answer {
    if !facts.all_known() {
        return unknown(facts, kind);
    }
    match kind {
        ConditionKind::Ready => ready(facts),
        ConditionKind::Available => available(facts),
        ConditionKind::Progressing => progressing(facts),
        ConditionKind::Degraded => degraded(facts),
        ConditionKind::DataSafe => data_safe(facts),
        ConditionKind::Reconciling => progressing(facts),
        ConditionKind::Stalled => stalled(facts),
    }
}

/// What is not known is not told; that an object cannot be read is a fault until the user corrects it.
fn unknown(facts: &Facts<'_>, kind: ConditionKind) -> Answer {
    match facts.observed.unreadable.first() {
        None => Answer {
            holds: None,
            reason: Reason::Unknown,
            message: "not everything could be read".to_owned(),
        },
        Some(object) => Answer {
            holds: (kind == ConditionKind::Degraded).then_some(true),
            reason: Reason::UnreadableObject,
            message: format!("waits for {object}; who can end it: {CORRECT}"),
        },
    }
}

/// What is kept, and how it is let go of.
fn set_aside(facts: &Facts<'_>) -> Option<Answer> {
    let members = facts.lease.into_iter().flat_map(|lease| &lease.members);
    let kept: Vec<(&String, &String)> = members
        .flat_map(|(pod, report)| report.kept.iter().map(move |name| (pod, name)))
        .collect();
    let (pod, name) = kept.first()?;
    let all: Vec<String> = kept.iter().map(|(pod, name)| format!("{pod}/{name}")).collect();
    let message = format!(
        "{} was set aside and may have commits that no member has; to have it removed: kubectl cdb discard-quarantined {} {pod} {name}",
        list(all.iter().map(String::as_str)),
        facts.wanted.name,
    );
    Some(Answer::new(true, Reason::Kept, message))
}

const HIBERNATED: &str = "spec.hibernated is true";

fn fenced_by_user(facts: &Facts<'_>, holds: bool) -> Answer {
    let reason = if is_confirmed(facts) {
        Reason::Fenced
    } else {
        Reason::Fencing
    };
    Answer::new(holds, reason, words(facts))
}

/// An object that cannot be made or changed, though everything that does not build on it goes on: what is passed over would be
/// said nowhere else. What may go away by itself is told from the second time on, and a pod or a claim only while a rule that
/// may be passed over still wants to change it.
fn passed_over(facts: &Facts<'_>) -> Option<String> {
    let wanted: Vec<Target> = RULES
        .iter()
        .filter(|rule| rule.on_backoff == OnBackoff::Yield && !facts.observed.faults.is_empty())
        .filter_map(|rule| (rule.decide)(facts)?.action.target())
        .collect();
    let mut faults = facts.observed.faults.iter();
    let fault = faults.find(|fault| {
        let lasts = match fault.kind {
            FaultKind::Quota | FaultKind::Forbidden | FaultKind::Invalid => true,
            FaultKind::Conflict | FaultKind::Transient => fault.attempts > 1,
        };
        let missing = matches!(fault.target, Target::Child(_)) && !failure::is_over(facts, &fault.target);
        lasts && (missing || wanted.contains(&fault.target))
    })?;
    let object = describe(facts, &fault.target);
    Some(format!(
        "{object} cannot be made or changed: {}",
        shortened(&fault.message)
    ))
}

/// What stands in the way of `Ready`.
fn obstacle(facts: &Facts<'_>) -> Option<Answer> {
    if facts.wanted.deleting {
        return Some(Answer::new(false, Reason::Deleting, "the resource is being deleted"));
    }
    if let Some(failure) = failure::failure(facts) {
        return Some(Answer::new(false, Reason::Failed(failure.reason), failure.message));
    }
    if fenced::any(facts) {
        return Some(fenced_by_user(facts, false));
    }
    let refused = passed_over(facts);
    if phase::ready(facts) {
        return refused.map(|what| Answer::new(false, Reason::Refused, what));
    }
    let refused = refused.map_or(String::new(), |what| format!("{what}; "));
    let status = facts.status;
    let (reason, doing) = match &status.waiting {
        Some(waiting) => {
            let reason = waiting.reason.map_or(Reason::NotAsWanted, Reason::Waiting);
            let actor = waiting.actor.map_or(String::new(), |actor| format!(" ({actor})"));
            (reason, format!("waits for {}{actor}", waiting.what))
        }
        None => {
            let step = status.step.as_ref().map_or(String::new(), |step| format!(": {step}"));
            (Reason::NotAsWanted, format!("the operator is making changes{step}"))
        }
    };
    Some(Answer::new(false, reason, format!("{refused}{doing}")))
}

/// Everything is as the spec wants it, also where it wants a rest: tools wait for this condition, and a rest is no progress
/// (kstatus, <https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus>).
fn ready(facts: &Facts<'_>) -> Answer {
    let other = wanted_rest(facts).or_else(|| obstacle(facts));
    other.unwrap_or_else(|| Answer::new(true, Reason::AsWanted, "everything is as the spec wants it"))
}

/// The spec asks for less than a database that runs and is looked after, and that is so.
fn wanted_rest(facts: &Facts<'_>) -> Option<Answer> {
    if facts.wanted.deleting || failure::failure(facts).is_some() {
        return None;
    }
    if hibernation::is_down(facts) && hibernation::is_asked(facts) {
        return Some(Answer::new(true, Reason::Hibernated, HIBERNATED));
    }
    // Everything else is as it should be: only the user is waited for.
    let waiting = facts.status.waiting.as_ref();
    if fenced::any(facts)
        && is_confirmed(facts)
        && waiting.is_some_and(|waiting| waiting.reason == Some(WaitReason::Unfencing))
    {
        return Some(fenced_by_user(facts, true));
    }
    let is_behind = || obstacle(facts).is_some();
    (facts.wanted.spec.paused && facts.primary().is_some() && is_behind()).then(|| {
        let what = "spec.paused is true: the operator changes nothing, and not everything is as the spec wants it";
        Answer::new(true, Reason::Paused, what)
    })
}

fn available(facts: &Facts<'_>) -> Answer {
    match facts.primary() {
        Some(pod) => Answer::new(true, Reason::PrimaryServes, format!("{} serves", pod.name)),
        None if hibernation::is_asked(facts) => Answer::new(false, Reason::Hibernated, HIBERNATED),
        None if fenced::all(facts) => fenced_by_user(facts, false),
        None if facts.bootstrapped() => Answer::new(false, Reason::NoPrimary, "no primary serves"),
        None => Answer::new(false, Reason::NotMade, "the database was not made yet"),
    }
}

fn progressing(facts: &Facts<'_>) -> Answer {
    let answer = ready(facts);
    if answer.holds == Some(true) || matches!(answer.reason, Reason::Failed(_) | Reason::Refused) {
        return Answer {
            holds: Some(false),
            ..answer
        };
    }
    if facts.wanted.spec.paused && !facts.wanted.deleting {
        return Answer::new(false, Reason::Paused, "spec.paused is true");
    }
    match late(facts) {
        Some(message) => Answer::new(false, Reason::DeadlineExceeded, message),
        None => Answer {
            holds: Some(true),
            ..answer
        },
    }
}

/// Whether the operator gets no further by itself.
fn stalled(facts: &Facts<'_>) -> Answer {
    let progress = progressing(facts);
    let stalls = matches!(
        progress.reason,
        Reason::Failed(_) | Reason::Refused | Reason::DeadlineExceeded
    );
    Answer {
        holds: Some(stalls),
        ..progress
    }
}

/// What takes too long, if something does.
fn late(facts: &Facts<'_>) -> Option<String> {
    let waiting = facts.status.waiting.as_ref()?;
    waiting.deadline.filter(|deadline| facts.now >= *deadline)?;
    Some(format!(
        "since {} waiting for {}; who can end it: {}",
        waiting.since.format("%FT%TZ"),
        waiting.what,
        waiting.who_can_end_it
    ))
}

fn degraded(facts: &Facts<'_>) -> Answer {
    // Less is there than usual, and the user wants it so.
    if hibernation::wanted(facts) {
        return Answer::new(false, Reason::Hibernated, HIBERNATED);
    }
    if !facts.bootstrapped() {
        return Answer::new(false, Reason::NotMade, "the database was not made yet");
    }
    if let Some(failure) = failure::failure(facts) {
        return Answer::new(true, Reason::Failed(failure.reason), failure.message);
    }
    if fenced::all(facts) {
        return fenced_by_user(facts, true);
    }
    if facts.primary().is_none() {
        return Answer::new(true, Reason::NoPrimary, "no primary serves");
    }
    if let Some((pod, error)) = restarts::refusal(facts) {
        let message = format!("{} refuses the settings: {error}", pod.name);
        return Answer::new(true, Reason::SettingsRefused, message);
    }
    if let Some(full) = room::which(facts) {
        return Answer::new(true, Reason::VolumeFull, format!("{full}; {}", room::way_out(facts).1));
    }
    let serving = |ordinal: &u32| facts.pod(*ordinal).is_some_and(|pod| facts.serves(pod));
    let missing: Vec<String> = (0..facts.wanted.replicas())
        .filter(|ordinal| !serving(ordinal))
        .map(|ordinal| format!("{}-{ordinal}", facts.wanted.name))
        .collect();
    if missing.is_empty() {
        return match passed_over(facts) {
            Some(what) => Answer::new(true, Reason::Refused, what),
            None => Answer::new(false, Reason::AllServe, "all members serve"),
        };
    }
    if missing.iter().all(|pod| fenced::is_fenced(facts, pod)) {
        return fenced_by_user(facts, true);
    }
    let message = format!("{} do not serve", list(missing.iter().map(String::as_str)));
    Answer::new(true, Reason::MembersMissing, message)
}

fn data_safe(facts: &Facts<'_>) -> Answer {
    let recorded = facts.status.system_identifier.as_ref();
    let held = facts.lease.and_then(|lease| lease.system_id.as_ref());
    if let (Some(recorded), Some(held)) = (recorded, held)
        && recorded != held
    {
        let message = format!("the Lease names system identifier {held}, and {recorded} was recorded");
        return Answer::new(false, Reason::ForeignData, message);
    }
    if facts.primary().is_none() && hibernation::wanted(facts) {
        return Answer {
            holds: None,
            ..Answer::new(false, Reason::Hibernated, HIBERNATED)
        };
    }
    let Some(primary) = facts.primary() else {
        let reason = if facts.bootstrapped() {
            Reason::NoPrimary
        } else {
            Reason::NotMade
        };
        return Answer::new(false, reason, "no primary serves");
    };
    if let Some(words) = claims::words(facts) {
        return Answer::new(false, Reason::ClaimDeleted, words);
    }
    if let Some(words) = durability::impersonated(facts, primary) {
        return Answer::new(false, Reason::MemberImpersonated, words);
    }
    let follows = |pod: &&Pod| pod.uid != primary.uid && facts.serves(pod);
    match facts.pods().iter().find(follows) {
        Some(_) if durability::reduced(facts) => Answer::new(
            false,
            Reason::DurabilityReduced,
            "commits wait for fewer standbys than spec.durability asks for; see status.durability",
        ),
        Some(_) => Answer::new(
            true,
            Reason::Replicated,
            "at least one standby streams from the primary",
        ),
        None if facts.wanted.replicas() == 1 => Answer::new(
            false,
            Reason::SingleInstance,
            "the only copy of the data is on one volume",
        ),
        None => Answer::new(false, Reason::NotReplicated, "no standby streams from the primary"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Scene;
    use super::super::{Action, Fault, Known, Unreadable};
    use super::*;

    /// The reason of a condition.
    fn reason(scene: &Scene, kind: ConditionKind) -> &'static str {
        scene.with_facts(|facts| answer(facts, kind).reason.as_str())
    }

    #[test]
    fn an_object_that_cannot_be_read_is_told_by_name_and_who_can_end_it() {
        let mut scene = Scene::ready(3);
        scene.observed.pods = Known::Unknown;
        assert_eq!(reason(&scene, ConditionKind::Degraded), "Unknown");
        scene.observed.unreadable = vec![Unreadable {
            object: "Pod demo-1".to_owned(),
            why: "no time".to_owned(),
        }];
        for kind in ConditionKind::ALL {
            let told = scene.with_facts(|facts| answer(facts, kind));
            let holds = (kind == ConditionKind::Degraded).then_some(true);
            assert_eq!((told.holds, told.reason), (holds, Reason::UnreadableObject));
            assert!(
                told.message.contains("Pod demo-1, which cannot be read: no time"),
                "{}",
                told.message
            );
        }
        let Action::Wait(waiting) = scene.decide().action else {
            panic!("{:?}", scene.decide())
        };
        assert_eq!(
            (&*waiting.what, &*waiting.who_can_end_it),
            ("Pod demo-1, which cannot be read: no time", CORRECT)
        );
        scene.observed.pods = Scene::ready(3).observed.pods;
        assert_eq!(
            reason(&scene, ConditionKind::Degraded),
            "AllServe",
            "nothing depends on it"
        );
    }

    #[test]
    fn a_database_that_was_not_made_is_not_one_without_a_primary() {
        assert_eq!(reason(&Scene::new(3), ConditionKind::Available), "NotMade");
        let mut scene = Scene::ready(3);
        scene.pod_mut(0).ready = false;
        for kind in [ConditionKind::Available, ConditionKind::DataSafe] {
            assert_eq!(reason(&scene, kind), "NoPrimary");
            scene.spec.hibernated = true;
            assert_eq!(reason(&scene, kind), "Hibernated");
            scene.spec.hibernated = false;
        }
        let mut stopping = Scene::ready(3);
        stopping.spec.hibernated = true;
        assert_eq!(
            reason(&stopping, ConditionKind::DataSafe),
            "Replicated",
            "until it has stopped"
        );
    }

    #[test]
    fn a_pause_is_told_unless_the_resource_goes() {
        let mut scene = Scene::ready(3);
        scene.pod_mut(2).ready = false;
        assert_eq!(reason(&scene, ConditionKind::Progressing), "NotAsWanted");
        scene.spec.paused = true;
        assert_eq!(reason(&scene, ConditionKind::Progressing), "Paused");
        let ready = |scene: &Scene| scene.with_facts(|facts| answer(facts, ConditionKind::Ready).holds);
        assert_eq!(ready(&scene), Some(true), "a rest that the user wants");
        scene.pod_mut(0).ready = false;
        assert_eq!(ready(&scene), Some(false), "an outage is none");
        scene.deleting = true;
        assert_eq!(reason(&scene, ConditionKind::Progressing), "Deleting");
    }

    #[test]
    fn what_holds_everything_up_is_not_said_to_be_passed_over() {
        let mut scene = Scene::ready(3);
        scene.revision = "r2".to_owned();
        scene.observed.faults = vec![Fault {
            target: Target::Pod("demo-2".to_owned()),
            kind: FaultKind::Forbidden,
            message: "no".to_owned(),
            attempts: 1,
            at: scene.now,
        }];
        assert_eq!(scene.decide().rule, "replace-serving");
        assert_eq!(scene.with_facts(passed_over), None, "the rule waits for it");
    }
}
