//! Conditions: several answers side by side, each computed from what is observed alone and never from the phase.

use api::ClusteredDatabaseStatus;
use api::status::FailureReason;
use chrono::{DateTime, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use super::facts::{Facts, list};
use super::observed::Pod;
use super::rule::CORRECT;
use super::{claims, durability, failure, fenced, hibernation, image, phase, restarts, room, route};

/// A question about a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionKind {
    /// Is it as the spec wants it, in every part?
    Ready,
    /// Does the primary serve?
    Available,
    /// Is something being changed or waited for?
    Progressing,
    /// Is less there than wanted, though it was made?
    Degraded,
    /// Does a second copy of the data follow the primary?
    DataSafe,
}

/// The condition that is there only as long as it is true: an instance keeps data that was set aside.
const SET_ASIDE: &str = "DataSetAside";

/// The same of what the operator's default image is another one than instances run.
const OTHER_DEFAULT: &str = "OtherDefaultImage";

/// The same of a route that leads to no pod of the database.
pub const FOREIGN_ROUTE: &str = "ForeignRoute";

/// The answers' reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Everything is as wanted.
    AsWanted,
    /// Something is not as wanted yet.
    NotAsWanted,
    /// The API server refuses something that holds nothing else up: it is tried again, with growing pauses.
    Refused,
    /// What is waited for has not come in the time that it should take (`status.waiting.deadline`).
    DeadlineExceeded,
    /// See [`FailureReason`].
    Failed(FailureReason),
    /// The resource is being deleted.
    Deleting,
    /// `spec.paused`.
    Paused,
    /// The primary serves.
    PrimaryServes,
    /// The database was not made yet.
    NotMade,
    /// It was made, and no primary serves.
    NoPrimary,
    /// All members serve.
    AllServe,
    /// Some members do not serve.
    MembersMissing,
    /// PostgreSQL refuses the settings.
    SettingsRefused,
    /// A member's volume has no room.
    VolumeFull,
    /// At least one standby streams from the primary.
    Replicated,
    /// No standby streams from the primary.
    NotReplicated,
    /// Commits wait for fewer standbys than `spec.durability` promises.
    DurabilityReduced,
    /// A role replicates under a member's name: commits may not be where they seem to be.
    MemberImpersonated,
    /// There is only one instance.
    SingleInstance,
    /// A claim was deleted, and lasts only as long as the pod that uses it.
    ClaimDeleted,
    /// A member's data is not this database's.
    ForeignData,
    /// `spec.fenced`, and PostgreSQL is known to have stopped there.
    Fenced,
    /// `spec.fenced`, and PostgreSQL may still run there.
    Fencing,
    /// `spec.hibernated`.
    Hibernated,
    /// Data that could not be made to follow the primary was moved aside.
    Kept,
    /// It is on record which image instances run.
    OnRecord,
    /// `-rw` leads to an address that no pod of the database has.
    AddressOfNoPod,
    /// The operator's own code failed for this database.
    InternalError,
    /// An object of the database is there and cannot be read: nothing that depends on it is changed.
    UnreadableObject,
    /// Something could not be read.
    Unknown,
}

impl ConditionKind {
    /// All of them, in the order of the status.
    pub const ALL: [ConditionKind; 5] = [
        ConditionKind::Ready,
        ConditionKind::Available,
        ConditionKind::Progressing,
        ConditionKind::Degraded,
        ConditionKind::DataSafe,
    ];

    /// The condition's `type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            ConditionKind::Ready => "Ready",
            ConditionKind::Available => "Available",
            ConditionKind::Progressing => "Progressing",
            ConditionKind::Degraded => "Degraded",
            ConditionKind::DataSafe => "DataSafe",
        }
    }
}

impl Reason {
    /// The condition's `reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::AsWanted => "AsWanted",
            Reason::NotAsWanted => "NotAsWanted",
            Reason::Refused => "Refused",
            Reason::DeadlineExceeded => "DeadlineExceeded",
            Reason::Failed(FailureReason::StorageClassNotFound) => "StorageClassNotFound",
            Reason::Failed(FailureReason::InvalidSpec) => "InvalidSpec",
            Reason::Failed(FailureReason::ImageCannotRun) => "ImageCannotRun",
            Reason::Failed(FailureReason::QuotaExceeded) => "QuotaExceeded",
            Reason::Failed(FailureReason::ForeignObject) => "ForeignObject",
            Reason::Failed(FailureReason::BootstrapFailed) => "BootstrapFailed",
            Reason::Failed(FailureReason::PartLost) => "PartLost",
            Reason::Deleting => "Deleting",
            Reason::Paused => "Paused",
            Reason::PrimaryServes => "PrimaryServes",
            Reason::NotMade => "NotMade",
            Reason::NoPrimary => "NoPrimary",
            Reason::AllServe => "AllServe",
            Reason::MembersMissing => "MembersMissing",
            Reason::SettingsRefused => "SettingsRefused",
            Reason::VolumeFull => "VolumeFull",
            Reason::Replicated => "Replicated",
            Reason::NotReplicated => "NotReplicated",
            Reason::DurabilityReduced => "DurabilityReduced",
            Reason::MemberImpersonated => "MemberImpersonated",
            Reason::SingleInstance => "SingleInstance",
            Reason::ClaimDeleted => "ClaimDeleted",
            Reason::ForeignData => "ForeignData",
            Reason::Fenced => "Fenced",
            Reason::Fencing => "Fencing",
            Reason::Hibernated => "Hibernated",
            Reason::Kept => "Kept",
            Reason::OnRecord => "OnRecord",
            Reason::AddressOfNoPod => "AddressOfNoPod",
            Reason::InternalError => "InternalError",
            Reason::UnreadableObject => "UnreadableObject",
            Reason::Unknown => "Unknown",
        }
    }
}

/// One answer: `None` if it cannot be told.
struct Answer {
    holds: Option<bool>,
    reason: Reason,
    message: String,
}

impl Answer {
    fn new(holds: bool, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            holds: Some(holds),
            reason,
            message: message.into(),
        }
    }
}

/// All conditions. The time of a condition's last change is carried on from the stored one while its status is the same.
pub fn conditions(facts: &Facts<'_>) -> Vec<Condition> {
    let answers = ConditionKind::ALL.map(|kind| (kind.as_str(), answer(facts, kind)));
    let set_aside = set_aside(facts).map(|answer| (SET_ASIDE, answer));
    let other = image::other_default(facts).map(|message| Answer::new(true, Reason::OnRecord, message));
    let all = answers.into_iter().chain(set_aside);
    let all = all.chain(other.map(|answer| (OTHER_DEFAULT, answer)));
    let route = route::describe(facts).map(|message| Answer::new(true, Reason::AddressOfNoPod, message));
    let all = all.chain(route.map(|answer| (FOREIGN_ROUTE, answer)));
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
        "{} was set aside and may have commits that no member has; to have it removed: kubectl annotate cdb {} --overwrite {}={pod}/{name}",
        list(all.iter().map(String::as_str)),
        facts.wanted.name,
        api::names::ANNOTATION_DISCARD_KEPT,
    );
    Some(Answer::new(true, Reason::Kept, message))
}

const HIBERNATED: &str = "spec.hibernated is true";

fn fenced_by_user(facts: &Facts<'_>, holds: bool) -> Answer {
    let reason = if fenced::is_confirmed(facts) {
        Reason::Fenced
    } else {
        Reason::Fencing
    };
    Answer::new(holds, reason, fenced::words(facts))
}

/// What stands in the way of `Ready`.
fn obstacle(facts: &Facts<'_>) -> Option<Answer> {
    if facts.wanted.deleting {
        return Some(Answer::new(false, Reason::Deleting, "the resource is being deleted"));
    }
    if let Some(failure) = failure::failure(facts) {
        return Some(Answer::new(false, Reason::Failed(failure.reason), failure.message));
    }
    if hibernation::is_down(facts) {
        return Some(Answer::new(false, Reason::Hibernated, HIBERNATED));
    }
    if fenced::any(facts) {
        return Some(fenced_by_user(facts, false));
    }
    let refused = failure::passed_over(facts);
    if phase::ready(facts) {
        return refused.map(|what| Answer::new(false, Reason::Refused, what));
    }
    let refused = refused.map_or(String::new(), |what| format!("{what}; "));
    let message = format!("{refused}see status.step and status.waiting");
    Some(Answer::new(false, Reason::NotAsWanted, message))
}

fn ready(facts: &Facts<'_>) -> Answer {
    obstacle(facts).unwrap_or_else(|| Answer::new(true, Reason::AsWanted, "everything is as the spec wants it"))
}

fn available(facts: &Facts<'_>) -> Answer {
    match facts.primary() {
        Some(pod) => Answer::new(true, Reason::PrimaryServes, format!("{} serves", pod.name)),
        None if hibernation::wanted(facts) => Answer::new(false, Reason::Hibernated, HIBERNATED),
        None if fenced::all(facts) => fenced_by_user(facts, false),
        None if facts.bootstrapped() => Answer::new(false, Reason::NoPrimary, "no primary serves"),
        None => Answer::new(false, Reason::NotMade, "the database was not made yet"),
    }
}

fn progressing(facts: &Facts<'_>) -> Answer {
    let Some(obstacle) = obstacle(facts) else {
        return Answer::new(false, Reason::AsWanted, "everything is as the spec wants it");
    };
    if matches!(
        obstacle.reason,
        Reason::Failed(_) | Reason::Hibernated | Reason::Refused
    ) {
        return Answer {
            holds: Some(false),
            ..obstacle
        };
    }
    if facts.wanted.spec.paused && !facts.wanted.deleting {
        return Answer::new(false, Reason::Paused, "spec.paused is true");
    }
    match late(facts) {
        Some(message) => Answer::new(false, Reason::DeadlineExceeded, message),
        None => Answer {
            holds: Some(true),
            ..obstacle
        },
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
        return Answer::new(true, Reason::VolumeFull, format!("{full}; {}", room::who(facts)));
    }
    let serving = |ordinal: &u32| facts.pod(*ordinal).is_some_and(|pod| facts.serves(pod));
    let missing: Vec<String> = (0..facts.wanted.replicas())
        .filter(|ordinal| !serving(ordinal))
        .map(|ordinal| format!("{}-{ordinal}", facts.wanted.name))
        .collect();
    if missing.is_empty() {
        return match failure::passed_over(facts) {
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
    use super::super::testing::Scene;
    use super::super::{Action, Known, Unreadable};
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
        scene.deleting = true;
        assert_eq!(reason(&scene, ConditionKind::Progressing), "Deleting");
    }
}
