//! Changes of settings and of the pod template: standbys first from the highest ordinal, the primary last, one at a time.
//!
//! Two rules hold it together. A member that is not at the target and does not serve may always be brought there. One
//! that serves is only taken down while all others serve: so a change that does not work stops after one member.

use api::spec::PrimaryUpdates;
use api::status::RestartPermit;
use chrono::{DateTime, TimeDelta, Utc};

use super::action::{Action, StatusChange};
use super::creation::{PENDING_RECHECK, lacks};
use super::decision::Step;
use super::facts::{Facts, list};
use super::fenced;
use super::members::exact;
use super::observed::{ChildKind, Pod, Target};
use super::request;
use super::resize;
use super::rule::{Proposal, Rule};

/// See [`Rule::what`].
pub const REPLACE_IDLE: Rule = Rule {
    name: "replace-idle",
    family: "rollout",
    what: "A pod of an older template that is not ready is replaced at once, unless the wanted image is known not to run, or it restarts by permit and needs no other pod. Once there is a database, one that may run waits until no other pod is going away, and the Lease holder's, or any while no primary serves, is given a minute.",
    propose: replace_idle,
    passable: false,
};

/// See [`Rule::what`].
pub const REPLACE_VOID: Rule = Rule {
    name: "replace-void",
    family: "rollout",
    what: "A pod whose agent's token is void is replaced, the Lease holder's last; each waits at most a minute for the others to be ready, and one that is ready for as long as a new pod cannot come up. What agents report is not waited for: a holder that the API server does not know can pass nothing on.",
    propose: replace_void,
    passable: false,
};

/// See [`Rule::what`].
pub const REPLACE_SERVING: Rule = Rule {
    name: "replace-serving",
    family: "rollout",
    what: "A pod of an older template that serves and cannot be brought to the new one in place is replaced while all others serve: the highest standby first, a primary only if it is alone.",
    propose: replace_serving,
    passable: false,
};

/// See [`Rule::what`].
pub const RESTART: Rule = Rule {
    name: "restart",
    family: "rollout",
    what: "Members whose settings need a restart get the permit one after another; the primary last, or first if a limit that binds standbys is lowered. A standby that makes no use of it for 2 min lets the other standbys go before it.",
    propose: restart,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_SETTINGS: Rule = Rule {
    name: "await-settings",
    family: "rollout",
    what: "Members that have not taken up the wanted settings are waited for; PostgreSQL's refusal is shown.",
    propose: await_settings,
    passable: false,
};

fn outdated<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a Pod> {
    facts
        .pods()
        .iter()
        .rev()
        .filter(move |pod| !pod.terminating && !facts.current_revision(pod) && !fenced::is_kept(facts, pod))
}

/// The pod of an older template whose turn it is, if all serve.
pub(super) fn next<'a>(facts: &Facts<'a>) -> Option<&'a Pod> {
    let primary = facts.primary();
    let is_primary = |pod: &&Pod| primary.is_some_and(|primary| primary.uid == pod.uid);
    outdated(facts)
        .find(|pod| !is_primary(pod))
        .or_else(|| outdated(facts).next())
}

/// Only a new pod can be as the wanted template says.
pub(super) fn needs_replacing(facts: &Facts<'_>, pod: &Pod) -> bool {
    !facts.current_revision(pod) && !resize::suffices(facts, pod)
}

fn replace(pod: &Pod, because: String) -> Option<Proposal> {
    Proposal::act(Step::Rollout, Action::ReplacePod(exact(pod)), because)
}

/// Readiness flaps for seconds, and taking the holder down means a failover; one that is not back after this long may
/// need what the new template brings (more memory, a working image).
const HOLDER_PATIENCE: TimeDelta = TimeDelta::minutes(1);

fn replace_idle(facts: &Facts<'_>) -> Option<Proposal> {
    let holder = facts.holder_pod().filter(|_| facts.bootstrapped());
    let is_holder = |pod: &Pod| holder.is_some_and(|holder| holder.uid == pod.uid);
    let never_ran = |pod: &Pod| pod.node.is_none() || pod.image_error.is_some();
    // PostgreSQL restarts, and may need no other pod then.
    let permit = restarting(facts);
    let restarts = |pod: &Pod| permit.is_some_and(|permit| permit.pod_uid == pod.uid) && resize::suffices(facts, pod);
    let idle = || outdated(facts).filter(|pod| !pod.ready && !restarts(pod));
    let pod = idle()
        .find(|pod| never_ran(pod))
        .or_else(|| idle().find(|pod| !is_holder(pod)))
        .or_else(|| idle().next())?;
    // Replacing it by one that cannot run helps nobody; a spec that is changed again makes the failing one outdated.
    let cannot_run = |pod: &Pod| facts.current_revision(pod) && !pod.terminating && pod.image_error.is_some();
    if facts.pods().iter().any(cannot_run) {
        return None;
    }
    if facts.bootstrapped() && !never_ran(pod) {
        if facts.pods().iter().any(|pod| pod.terminating) {
            return None;
        }
        // While no primary serves, any member may be the one that is elected.
        let patience = if is_holder(pod) {
            Some(format!("{} to be ready again, before it is replaced", pod.name))
        } else if facts.primary().is_none() && facts.expected() > 1 {
            Some("a primary to serve, before pods of the older template are replaced".to_owned())
        } else {
            None
        };
        if let Some(what) = patience {
            let deadline = facts.waiting_since(&what) + HOLDER_PATIENCE;
            if facts.now < deadline {
                return Some(Proposal::wait(facts, Step::Rollout, what, "the agents")?.until(deadline));
            }
        }
    }
    replace(pod, format!("{} is of an older template and not ready", pod.name))
}

/// Pods with a token that counts, which cannot come up by themselves.
fn stuck<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a Pod> {
    let expected = facts.expected();
    let idle = facts.pods().iter().filter(|pod| !pod.ready && !pod.terminating);
    idle.filter(move |pod| {
        let never_ran = pod.node.is_none() || pod.image_error.is_some();
        never_ran && !pod.token_void && pod.ordinal < expected
    })
}

/// A pod that the StatefulSet cannot make, and who can end that.
fn unmade(facts: &Facts<'_>) -> Option<(String, String)> {
    let mut absent = (0..facts.expected()).filter(|ordinal| facts.pod(*ordinal).is_none());
    absent.find_map(|ordinal| {
        let name = format!("{}-{ordinal}", facts.wanted.name);
        let targets = [Target::Pod(name.clone()), Target::Child(ChildKind::StatefulSet)];
        let mut faults = facts.observed.faults.iter();
        let fault = faults.find(|fault| targets.contains(&fault.target))?;
        // Here, and not with what is waited for: that stays the same while these words change.
        let who = format!("the StatefulSet controller, once this is mended: {}", fault.message);
        Some((format!("pod {name} to be made"), who))
    })
}

fn replace_void(facts: &Facts<'_>) -> Option<Proposal> {
    let holder = facts.holder_pod();
    let is_holder = |pod: &Pod| holder.is_some_and(|holder| holder.uid == pod.uid);
    let void = || outdated(facts).filter(|pod| pod.token_void);
    let standbys = || void().filter(|pod| !is_holder(pod));
    let idle = standbys().find(|pod| !pod.ready);
    let pod = idle.or_else(|| standbys().next()).or_else(|| void().next())?;
    let name = &pod.name;
    if pod.ready {
        let stuck = || stuck(facts);
        if stuck().any(|pod| !facts.current_revision(pod)) {
            // The wanted template may be what it lacks: it is replaced first, see [`REPLACE_IDLE`].
            return None;
        }
        let lack = stuck().next().map(|pod| {
            let (what, who) = lacks(pod);
            (what, who.to_owned())
        });
        if let Some((what, who)) = lack.or_else(|| unmade(facts)) {
            let what = format!("{what}, before {name} is replaced, which serves though its agent's token is void");
            let wait = Proposal::wait(facts, Step::Rollout, what, who)?;
            return Some(wait.looking_again(facts.now + PENDING_RECHECK));
        }
    }
    let there = |ordinal| {
        let found = facts.pod(ordinal).filter(|pod| !pod.terminating);
        found.is_some_and(|pod| pod.token_void || pod.ready)
    };
    if !(0..facts.expected()).all(there) {
        let what = format!("the others to be ready, to replace {name}, whose agent's token is void");
        let deadline = facts.waiting_since(&what) + HOLDER_PATIENCE;
        if facts.now < deadline {
            return Some(Proposal::wait(facts, Step::Rollout, what, "their agents")?.until(deadline));
        }
    }
    replace(
        pod,
        format!("the API server does not know the agent of {name}: its ServiceAccount was made again"),
    )
}

fn replace_serving(facts: &Facts<'_>) -> Option<Proposal> {
    let primary = facts.primary();
    let pod = next(facts).filter(|pod| needs_replacing(facts, pod))?;
    // A primary that another can take over from is moved first, and goes as a standby.
    let is_primary = primary.is_some_and(|primary| primary.uid == pod.uid);
    if is_primary && (facts.expected() > 1 || supervised(facts)) {
        return None;
    }
    if primary.is_some() && facts.status.intent.restart.is_none() && facts.all_serve_except(Some(pod.ordinal)) {
        let why = resize::obstacle(facts, pod);
        let why = why.map_or(String::new(), |why| format!("; it cannot be resized in place: {why}"));
        let because = format!("{} is of an older template, and all others serve{why}", pod.name);
        return replace(pod, because);
    }
    None
}

fn restart(facts: &Facts<'_>) -> Option<Proposal> {
    let permit = facts.status.intent.restart.as_ref();
    if let Some(permit) = restarting(facts) {
        let who = format!("the agent in pod {}", permit.pod);
        let wait = Proposal::wait(facts, Step::Settings, restart_of(permit), who)?;
        return Some(wait.until(restart_deadline(facts, permit)));
    }
    let spent = permit.filter(|permit| in_use(facts, permit));
    if let Some(pod) = next_restart(facts, spent) {
        if spent.is_some_and(|spent| spent.pod_uid == pod.uid) {
            // It has the permit: to give it once more changes nothing. That it is waited for is said by `await-settings`.
            return None;
        }
        let given = RestartPermit {
            pod: pod.name.clone(),
            pod_uid: pod.uid.clone(),
            settings: facts.wanted.settings.to_owned(),
        };
        let because = format!("{} has settings that need a restart", pod.name);
        return Proposal::act(
            Step::Settings,
            Action::WriteStatus(vec![StatusChange::PermitRestart(given)]),
            because,
        );
    }
    let permit = permit?;
    let because = if in_use(facts, permit) {
        let minutes = RESTART_PATIENCE.num_minutes();
        format!(
            "{} does not serve {minutes} min after it was let restart: the others go on",
            permit.pod
        )
    } else {
        format!("{} has restarted, or need not any more", permit.pod)
    };
    Proposal::act(
        Step::Settings,
        Action::WriteStatus(vec![StatusChange::EndRestart]),
        because,
    )
}

/// A standby that is not back after this long may never be (its volume, its settings): it is waited for no more, and keeps
/// no primary where it is. Less than the time in which a requested switchover has to begin.
const RESTART_PATIENCE: TimeDelta = TimeDelta::minutes(2);

fn restart_of(permit: &RestartPermit) -> String {
    format!("{} to restart PostgreSQL", permit.pod)
}

fn restart_deadline(facts: &Facts<'_>, permit: &RestartPermit) -> DateTime<Utc> {
    let given = facts.status.memo.restart_since;
    given.unwrap_or_else(|| facts.waiting_since(&restart_of(permit))) + RESTART_PATIENCE
}

/// The leave to restart that somebody makes use of.
pub(super) fn restarting<'a>(facts: &Facts<'a>) -> Option<&'a RestartPermit> {
    let permit = facts.status.intent.restart.as_ref()?;
    (in_use(facts, permit) && facts.now < restart_deadline(facts, permit)).then_some(permit)
}

/// The permitted restart is still to be expected: same pod, same settings, and not yet served with them since.
fn in_use(facts: &Facts<'_>, permit: &RestartPermit) -> bool {
    let pod = facts
        .pods()
        .iter()
        .find(|pod| pod.name == permit.pod && pod.uid == permit.pod_uid && !pod.terminating);
    let done = |pod: &Pod| {
        facts.serves(pod)
            && facts
                .report(pod)
                .is_some_and(|now| now.settings == permit.settings && !now.pending_restart)
    };
    let possible = permit.settings == facts.wanted.settings && !fenced::is_fenced(facts, &permit.pod);
    possible && pod.is_some_and(|pod| !done(pod))
}

/// The member that may restart now. The one whose permit is spent, its time over, lets others of its kind go before it.
fn next_restart<'a>(facts: &Facts<'a>, spent: Option<&RestartPermit>) -> Option<&'a Pod> {
    if next(facts).is_some_and(|pod| !resize::waits_for_settings(facts, pod)) || refusal(facts).is_some() {
        return None;
    }
    let pending = |pod: &&Pod| {
        let report = facts.report(pod);
        let pending = report.is_some_and(|report| {
            report.pending_restart && report.settings == facts.wanted.settings && !report.is_silent()
        });
        pending && !fenced::is_fenced(facts, &pod.name)
    };
    let mut all = facts.pods().iter().rev().filter(|pod| !pod.terminating).filter(pending);
    let unspent = |pod: &&Pod| spent.is_none_or(|spent| spent.pod_uid != pod.uid);
    let mut idle = all.clone().filter(|pod| !facts.serves(pod));
    if let Some(idle) = idle.clone().find(unspent).or_else(|| idle.next()) {
        return Some(idle);
    }
    let primary = facts.primary()?;
    let lowers = facts
        .report(primary)
        .is_some_and(|report| report.pending_restart && report.lowers_limits);
    let next = if lowers {
        all.find(|pod| pod.uid == primary.uid)
    } else {
        let mut standbys = all.clone().filter(|pod| pod.uid != primary.uid);
        standbys.clone().find(unspent).or_else(|| standbys.next())
    };
    let next = next.or_else(|| all.next())?;
    if next.uid == primary.uid && supervised(facts) {
        return None;
    }
    let reloaded = |ordinal: u32| {
        let report = facts.pod(ordinal).and_then(|pod| facts.report(pod));
        report.is_some_and(|report| report.settings == facts.wanted.settings)
    };
    ((0..facts.expected()).all(reloaded) && facts.all_serve_except(Some(next.ordinal))).then_some(next)
}

/// See [`Rule::what`].
pub const AWAIT_SUPERVISOR: Rule = Rule {
    name: "await-supervisor",
    family: "rollout",
    what: "With spec.primary.updates Supervised a rolling change stops when only the primary is left, or has to be the first; how to let it go on is said.",
    propose: await_supervisor,
    passable: false,
};

fn supervised(facts: &Facts<'_>) -> bool {
    facts.wanted.spec.primary.updates == PrimaryUpdates::Supervised
}

fn await_supervisor(facts: &Facts<'_>) -> Option<Proposal> {
    let primary = facts.primary().filter(|_| supervised(facts))?;
    if !facts.all_serve_except(Some(primary.ordinal)) || refusal(facts).is_some() {
        return None;
    }
    let others = || facts.pods().iter().filter(|pod| pod.uid != primary.uid);
    let report = facts.report(primary).filter(|report| report.pending_restart);
    let lowers = report.is_some_and(|report| report.lowers_limits);
    let why = if needs_replacing(facts, primary) {
        others()
            .all(|pod| facts.current_revision(pod))
            .then_some("its pod is of an older template")
    } else if lowers {
        Some("its settings need a restart, before that of the standbys since a limit is lowered")
    } else {
        let settled = report.is_some() && others().all(|pod| facts.current_settings(pod));
        settled.then_some("its settings need a restart")
    }?;
    let name = facts.wanted.name;
    let what = format!(
        "leave to go on with the primary {}: spec.primary.updates is Supervised, and {why}",
        primary.name
    );
    let automatic = format!(
        "kubectl patch cdb {name} --type merge -p '{{\"spec\":{{\"primary\":{{\"updates\":\"Automatic\"}}}}}}'"
    );
    let who = match successor(facts, primary).filter(|_| !lowers) {
        Some(pod) => format!(
            "the user, by a switchover: kubectl annotate cdb {name} --overwrite {}={}; or without further questions: \
             {automatic}",
            api::names::ANNOTATION_SWITCHOVER,
            request::fresh(facts, &pod.name),
        ),
        None => format!("the user: {automatic}"),
    };
    Proposal::wait(facts, Step::Supervised, what, who)
}

/// The first standby that a switchover can be requested to.
fn successor<'a>(facts: &Facts<'a>, primary: &Pod) -> Option<&'a Pod> {
    let prefer = facts.wanted.spec.primary.prefer.as_ref();
    let fit = |pod: &&Pod| {
        pod.uid != primary.uid
            && prefer.is_none_or(|prefer| *prefer == pod.name)
            && request::unfit(facts, primary, &pod.name).is_none()
    };
    facts.pods().iter().find(fit)
}

/// A member whose PostgreSQL refuses the settings, and its words.
pub(super) fn refusal<'a>(facts: &Facts<'a>) -> Option<(&'a Pod, &'a str)> {
    facts
        .pods()
        .iter()
        .find_map(|pod| Some((pod, facts.report(pod)?.settings_error.as_deref()?)))
}

fn await_settings(facts: &Facts<'_>) -> Option<Proposal> {
    if let Some((pod, error)) = refusal(facts) {
        let what = format!("settings that PostgreSQL accepts; {} says: {error}", pod.name);
        return Proposal::wait(
            facts,
            Step::Settings,
            what,
            "the user, by changing spec.postgres.parameters",
        );
    }
    let permit = facts.status.intent.restart.as_ref();
    if let Some(permit) = permit.filter(|permit| in_use(facts, permit)) {
        let who = format!("the agent in pod {}, which was let do it long ago", permit.pod);
        return Proposal::wait(facts, Step::Settings, restart_of(permit), who);
    }
    let late = || facts.pods().iter().filter(|pod| !facts.current_settings(pod));
    late().next()?;
    let what = format!("{} to take up the settings", list(late().map(|pod| pod.name.as_str())));
    Proposal::wait(facts, Step::Settings, what, "their agents")
}

/// See [`Rule::what`].
pub const AWAIT_ROLLOUT: Rule = Rule {
    name: "await-rollout",
    family: "rollout",
    what: "Pods of an older template that may not be replaced now are waited for, and that is said.",
    propose: await_rollout,
    passable: false,
};

fn await_rollout(facts: &Facts<'_>) -> Option<Proposal> {
    next(facts).filter(|pod| !resize::waits_for_settings(facts, pod))?;
    let doing = if outdated(facts).any(|pod| needs_replacing(facts, pod)) {
        "replace"
    } else {
        "resize"
    };
    let what = format!(
        "all others to serve, to {doing} {}",
        list(outdated(facts).map(|pod| pod.name.as_str()))
    );
    Proposal::wait(
        facts,
        Step::Rollout,
        what,
        "the agents, or the user by a change of the spec",
    )
}

#[cfg(test)]
mod tests {
    use super::super::testing::Scene;
    use super::super::{Fault, FaultKind, ImageError};
    use super::*;

    fn replaced(scene: &Scene) -> Option<String> {
        match scene.decide().action {
            Action::ReplacePod(pod) => Some(pod.name().to_owned()),
            _ => None,
        }
    }

    fn permitted(scene: &Scene) -> Option<String> {
        match scene.decide().action {
            Action::WriteStatus(changes) => changes.into_iter().find_map(|change| match change {
                StatusChange::PermitRestart(permit) => Some(permit.pod),
                _ => None,
            }),
            _ => None,
        }
    }

    fn outdated(primary: u32) -> Scene {
        let mut scene = Scene::ready(3);
        scene.elect(primary);
        scene.revision = "r2".to_owned();
        scene
    }

    #[test]
    fn the_highest_standby_first_and_the_primary_last() {
        for (primary, order) in [(0, [2, 1, 0]), (2, [1, 0, 2]), (1, [2, 0, 1])] {
            let mut scene = outdated(primary);
            let [first, second, last] = order;
            for ordinal in [first, second] {
                assert_eq!(replaced(&scene), Some(format!("demo-{ordinal}")));
                scene.pod_mut(ordinal).revision = Some("r2".to_owned());
            }
            assert_eq!(scene.decide().rule, "switch-over");
            scene.elect(first);
            assert_eq!(replaced(&scene), Some(format!("demo-{last}")), "it is a standby now");
        }
    }

    #[test]
    fn a_member_that_fails_at_the_target_halts_the_rollout() {
        let mut scene = outdated(0);
        scene.pod_mut(2).revision = Some("r2".to_owned());
        scene.pod_mut(2).ready = false;
        assert_eq!(replaced(&scene), None);
        assert_eq!(scene.decide().rule, "await-standbys");
        scene.revision = "r1".to_owned();
        assert_eq!(replaced(&scene), Some("demo-2".to_owned()), "a revert frees it");
    }

    #[test]
    fn a_silent_member_does_not_serve_and_halts_the_rollout() {
        let mut scene = outdated(0);
        scene.pod_mut(2).revision = Some("r2".to_owned());
        scene.report_mut(2).fault = Some(crate::protocol::FAULT_SILENT.to_owned());
        assert_eq!(replaced(&scene), None);
        scene.report_mut(2).fault = Some("PostgreSQL ended by itself 3 times in a row".to_owned());
        assert_eq!(replaced(&scene), Some("demo-1".to_owned()), "it serves again");
    }

    #[test]
    fn an_outdated_member_that_does_not_serve_goes_first_even_if_all_fail() {
        let mut scene = outdated(0);
        for ordinal in 0..3 {
            scene.pod_mut(ordinal).ready = false;
        }
        scene.store();
        assert_eq!(replaced(&scene), None, "any of them may be elected");
        scene.now += HOLDER_PATIENCE;
        assert_eq!(replaced(&scene), Some("demo-2".to_owned()));
        scene.pod_mut(2).revision = Some("r2".to_owned());
        assert_eq!(replaced(&scene), Some("demo-1".to_owned()));
    }

    #[test]
    fn the_holder_is_not_taken_down_for_a_flap_of_its_readiness() {
        let mut scene = outdated(2);
        scene.pod_mut(2).ready = false;
        scene.store();
        assert_eq!((replaced(&scene), scene.decide().rule), (None, "replace-idle"));
        let wake = scene.now + HOLDER_PATIENCE;
        assert_eq!(scene.decide().wake, wake);
        let mut unready = scene.clone();
        unready.pod_mut(0).ready = false;
        assert_eq!(replaced(&unready), None, "it may be elected");
        unready.store();
        unready.now += HOLDER_PATIENCE;
        assert_eq!(replaced(&unready), Some("demo-0".to_owned()), "others go first");
        let mut unscheduled = scene.clone();
        unscheduled.pod_mut(2).node = None;
        assert_eq!(replaced(&unscheduled), Some("demo-2".to_owned()));
        let mut back = scene.clone();
        back.pod_mut(2).ready = true;
        assert_eq!(replaced(&back), Some("demo-1".to_owned()));
        scene.now = wake;
        assert_eq!(
            replaced(&scene),
            Some("demo-2".to_owned()),
            "it may need the new template"
        );
    }

    fn void(primary: u32) -> Scene {
        let mut scene = Scene::ready(3);
        scene.elect(primary);
        for ordinal in 0..3 {
            let pod = scene.pod_mut(ordinal);
            (pod.revision, pod.token_void) = (None, true);
        }
        scene
    }

    #[test]
    fn agents_that_the_api_server_does_not_know_are_replaced_though_nobody_reports_the_new_ones() {
        let mut scene = void(2);
        for ordinal in [1, 0] {
            assert_eq!(replaced(&scene), Some(format!("demo-{ordinal}")));
            scene.pod_mut(ordinal).terminating = true;
            scene.store();
            let decision = scene.decide();
            assert_eq!((decision.rule, decision.step), ("replace-void", Some(Step::Rollout)));
            assert_eq!(decision.wake, scene.now + HOLDER_PATIENCE);
            let revision = scene.revision.clone();
            let pod = scene.pod_mut(ordinal);
            (pod.revision, pod.terminating, pod.token_void) = (Some(revision), false, false);
            scene.report_mut(ordinal).pod_uid = "the pod before".to_owned();
        }
        assert_eq!(replaced(&scene), Some("demo-2".to_owned()), "the holder last");
    }

    #[test]
    fn an_agent_that_the_api_server_does_not_know_is_not_kept_for_one_that_does_not_become_ready() {
        let mut scene = void(0);
        scene.edit(|spec| spec.primary.updates = PrimaryUpdates::Supervised);
        for ordinal in [1, 2] {
            let revision = scene.revision.clone();
            let pod = scene.pod_mut(ordinal);
            (pod.revision, pod.token_void, pod.ready) = (Some(revision), false, ordinal == 2);
        }
        let decision = scene.store();
        assert_eq!(
            decision.because.to_string(),
            "the others to be ready, to replace demo-0, whose agent's token is void"
        );
        scene.now = decision.wake;
        assert_eq!(replaced(&scene), Some("demo-0".to_owned()), "it can serve no longer");
    }

    fn image_error(scene: &Scene) -> ImageError {
        ImageError {
            reason: "ErrImagePull".to_owned(),
            image: "nope".to_owned(),
            message: String::new(),
            since: scene.now,
        }
    }

    #[test]
    fn an_agent_that_the_api_server_does_not_know_serves_on_while_a_new_pod_cannot_come_up() {
        let mut renewed = void(0);
        let revision = renewed.revision.clone();
        let pod = renewed.pod_mut(2);
        (pod.revision, pod.token_void, pod.ready) = (Some(revision), false, false);

        let mut image = renewed.clone();
        image.pod_mut(2).image_error = Some(image_error(&renewed));
        let mut unscheduled = renewed.clone();
        unscheduled.pod_mut(2).node = None;
        let mut unmade = renewed.clone();
        unmade.pods_mut().retain(|pod| pod.ordinal != 2);
        unmade.observed.faults = vec![Fault {
            target: Target::Pod("demo-2".to_owned()),
            kind: FaultKind::Forbidden,
            message: "violates PodSecurity".to_owned(),
            attempts: 1,
            at: unmade.now,
        }];
        let cases = [
            (
                image,
                "pod demo-2 to run image nope (ErrImagePull)",
                "the kubelet, or a change",
            ),
            (unscheduled, "a node for pod demo-2", "the scheduler"),
            (
                unmade,
                "pod demo-2 to be made",
                "once this is mended: violates PodSecurity",
            ),
        ];
        for (mut scene, what, who) in cases {
            scene.store();
            scene.now += HOLDER_PATIENCE * 2;
            let decision = scene.store();
            assert_eq!((decision.rule, replaced(&scene)), ("replace-void", None), "{what}");
            assert_eq!(decision.wake, scene.now + PENDING_RECHECK);
            let waiting = scene.stored.waiting.clone().unwrap();
            let kept = "before demo-1 is replaced, which serves though its agent's token is void";
            assert_eq!(waiting.what, format!("{what}, {kept}"));
            assert!(waiting.who_can_end_it.contains(who), "{}", waiting.who_can_end_it);

            let mut mended = scene.clone();
            mended.revision = "r2".to_owned();
            let stuck = mended.pods().iter().find(|pod| pod.ordinal == 2);
            let first = stuck.map(|pod| pod.name.clone());
            if let Some(first) = first {
                assert_eq!(
                    replaced(&mended),
                    Some(first),
                    "the wanted template may be what it lacks"
                );
            }
            scene.pod_mut(1).ready = false;
            scene.store();
            scene.now += HOLDER_PATIENCE;
            assert_eq!(replaced(&scene), Some("demo-1".to_owned()), "it serves nobody");
        }
    }

    #[test]
    fn no_two_members_are_down_for_a_rollout_at_once() {
        let mut scene = outdated(0);
        scene.pod_mut(2).terminating = true;
        scene.pod_mut(1).ready = false;
        assert_eq!(replaced(&scene), None);
        scene.pod_mut(1).node = None;
        assert_eq!(replaced(&scene), Some("demo-1".to_owned()), "it takes nothing down");
    }

    #[test]
    fn no_pod_is_replaced_by_an_image_that_is_known_not_to_run() {
        let mut scene = outdated(0);
        let error = image_error(&scene);
        let pod = scene.pod_mut(2);
        (pod.revision, pod.ready, pod.image_error) = (Some("r2".to_owned()), false, Some(error));
        scene.pod_mut(1).ready = false;
        assert_eq!(replaced(&scene), None);
    }

    #[test]
    fn one_instance_is_replaced_though_no_other_serves() {
        let mut scene = Scene::ready(1);
        scene.revision = "r2".to_owned();
        assert_eq!(replaced(&scene), Some("demo-0".to_owned()));
    }

    fn supervised(scene: &mut Scene) {
        scene.edit(|spec| spec.primary.updates = PrimaryUpdates::Supervised);
    }

    fn leave(scene: &mut Scene) -> String {
        let decision = scene.store();
        assert_eq!(
            (decision.rule, decision.step),
            ("await-supervisor", Some(Step::Supervised))
        );
        let waiting = scene.stored.waiting.clone().unwrap();
        assert_eq!(waiting.deadline, None, "the user may take as long as they like");
        format!("{}: {}", waiting.what, waiting.who_can_end_it)
    }

    #[test]
    fn a_supervised_rollout_stops_before_the_primary_until_a_switchover_is_requested() {
        let mut scene = outdated(0);
        supervised(&mut scene);
        for ordinal in [2, 1] {
            assert_eq!(replaced(&scene), Some(format!("demo-{ordinal}")));
            scene.pod_mut(ordinal).revision = Some("r2".to_owned());
        }
        let text = leave(&mut scene);
        assert!(
            text.contains("demo-0: spec.primary.updates is Supervised, and its pod is of an older template"),
            "{text}"
        );
        let value = "demo-1/2";
        let command = format!("kubectl annotate cdb demo --overwrite clustereddatabase.io/switchover={value};");
        assert!(text.contains(&command), "{text}");
        scene.switchover = Some(value.to_owned());
        scene.store();
        scene.store();
        assert_eq!(scene.stored.intent.primary.as_deref(), Some("demo-1"));
        scene.elect(1);
        scene.store();
        scene.store();
        assert_eq!(replaced(&scene), Some("demo-0".to_owned()), "it is a standby now");
    }

    #[test]
    fn a_request_that_failed_is_not_advised_again() {
        let mut scene = outdated(0);
        supervised(&mut scene);
        for ordinal in [2, 1] {
            scene.pod_mut(ordinal).revision = Some("r2".to_owned());
        }
        scene.switchover = Some("demo-1/2".to_owned());
        scene.store();
        scene.store();
        scene.now += TimeDelta::minutes(1);
        scene.store();
        scene.store();
        assert!(leave(&mut scene).contains("switchover=demo-1/2-again;"));
    }

    #[test]
    fn a_supervised_rollout_goes_on_when_it_is_automatic_again() {
        let mut scene = outdated(0);
        supervised(&mut scene);
        for ordinal in [2, 1] {
            scene.pod_mut(ordinal).revision = Some("r2".to_owned());
        }
        assert!(leave(&mut scene).contains("{\"spec\":{\"primary\":{\"updates\":\"Automatic\"}}}"));
        scene.edit(|spec| spec.primary.updates = PrimaryUpdates::Automatic);
        assert_eq!(scene.decide().rule, "switch-over");
    }

    #[test]
    fn one_supervised_instance_is_asked_for_before_it_goes() {
        let mut scene = Scene::ready(1);
        supervised(&mut scene);
        scene.revision = "r2".to_owned();
        let text = leave(&mut scene);
        assert!(
            text.contains("the user: kubectl patch") && !text.contains("annotate"),
            "{text}"
        );
        let mut scene = Scene::ready(1);
        supervised(&mut scene);
        scene.report_mut(0).pending_restart = true;
        assert!(leave(&mut scene).contains("its settings need a restart: the user: kubectl patch"));
    }

    #[test]
    fn supervised_restarts_stop_before_the_primary() {
        let mut scene = pending(false);
        supervised(&mut scene);
        for ordinal in [2, 1] {
            assert_eq!(permitted(&scene), Some(format!("demo-{ordinal}")));
            scene.store();
            scene.report_mut(ordinal).pending_restart = false;
        }
        scene.store();
        assert_eq!(permitted(&scene), None);
        assert!(leave(&mut scene).contains("switchover=demo-1/2;"));
        scene.edit(|spec| spec.primary.prefer = Some("demo-0".to_owned()));
        assert!(
            !leave(&mut scene).contains("annotate"),
            "such a request would be refused"
        );
        let mut lowered = pending(true);
        supervised(&mut lowered);
        assert_eq!(permitted(&lowered), None, "no standby can go first");
        assert!(
            !leave(&mut lowered).contains("annotate"),
            "nor would another primary be further"
        );
    }

    fn pending(lowers: bool) -> Scene {
        let mut scene = Scene::ready(3);
        for ordinal in 0..3 {
            let report = scene.report_mut(ordinal);
            (report.pending_restart, report.lowers_limits) = (true, lowers);
        }
        scene
    }

    #[test]
    fn restarts_are_permitted_one_after_another() {
        let mut scene = pending(false);
        for ordinal in [2, 1, 0] {
            let name = format!("demo-{ordinal}");
            assert_eq!(permitted(&scene), Some(name));
            scene.store();
            scene.report_mut(ordinal).state = crate::protocol::MemberState::Starting;
            assert!(matches!(scene.decide().action, Action::Wait(_)), "while it restarts");
            let state = if ordinal == 0 { "Primary" } else { "Streaming" };
            let report = scene.report_mut(ordinal);
            report.pending_restart = false;
            report.state = serde_json::from_value(state.into()).unwrap();
        }
        scene.store();
        assert_eq!(
            (scene.stored.intent.restart.clone(), scene.decide().rule),
            (None, "rest")
        );
    }

    #[test]
    fn a_permit_that_is_not_used_goes_on_to_the_others_and_is_not_given_again_for_ever() {
        let mut scene = pending(false);
        for ordinal in [2, 1, 2] {
            assert_eq!(permitted(&scene), Some(format!("demo-{ordinal}")));
            scene.store();
            let decision = scene.decide();
            assert_eq!(
                decision.because.to_string(),
                format!("demo-{ordinal} to restart PostgreSQL")
            );
            assert_eq!(decision.wake, scene.now + RESTART_PATIENCE);
            if ordinal == 1 {
                scene.report_mut(1).pending_restart = false;
            } else {
                scene.now = decision.wake;
            }
        }
        let decision = scene.store();
        assert_eq!((decision.rule, decision.step), ("await-settings", Some(Step::Settings)));
        let waiting = scene.stored.waiting.clone().unwrap();
        assert_eq!(
            waiting.what, "demo-2 to restart PostgreSQL",
            "the primary goes after it"
        );
        scene.now = waiting.deadline.unwrap();
        let decision = scene.store();
        assert!(matches!(decision.action, Action::Wait(_)), "{decision:?}");
        let found = scene
            .stored
            .conditions
            .iter()
            .find(|found| found.type_ == "Progressing");
        assert_eq!(found.unwrap().reason, "DeadlineExceeded");
        let mut changed = scene.clone();
        changed.revision = "r2".to_owned();
        changed.store();
        assert_eq!(
            replaced(&changed),
            Some("demo-2".to_owned()),
            "a new pod needs no permit"
        );
        scene.report_mut(2).pending_restart = false;
        assert_eq!(permitted(&scene), Some("demo-0".to_owned()));
    }

    #[test]
    fn the_primary_restarts_first_when_a_limit_is_lowered() {
        assert_eq!(permitted(&pending(true)), Some("demo-0".to_owned()));
    }

    #[test]
    fn a_member_that_does_not_serve_restarts_first() {
        let mut scene = pending(false);
        scene.pod_mut(1).ready = false;
        assert_eq!(permitted(&scene), Some("demo-1".to_owned()));
    }

    #[test]
    fn nobody_restarts_for_settings_that_are_refused_somewhere_or_not_there_yet() {
        let mut scene = pending(false);
        scene.report_mut(1).settings = "older".to_owned();
        assert_eq!(permitted(&scene), None);
        let mut scene = pending(false);
        scene.report_mut(1).settings_error = Some("invalid value for parameter \"work_mem\"".to_owned());
        assert_eq!(permitted(&scene), None);
        let decision = scene.decide();
        assert_eq!(decision.rule, "await-settings");
        assert!(
            decision
                .because
                .to_string()
                .ends_with("invalid value for parameter \"work_mem\"")
        );
    }

    #[test]
    fn nobody_restarts_while_another_is_away() {
        let mut scene = pending(false);
        scene.report_mut(1).pending_restart = false;
        assert_eq!(permitted(&scene), Some("demo-2".to_owned()));
        scene.pod_mut(1).ready = false;
        assert_eq!(permitted(&scene), None);
    }

    #[test]
    fn a_permit_ends_with_its_pod_or_its_settings() {
        let mut scene = pending(false);
        scene.store();
        scene.pod_mut(2).uid = "another".to_owned();
        scene.stored.members.get_mut("demo-2").unwrap().pod_uid = Some("another".to_owned());
        let report = scene.report_mut(2);
        (report.pod_uid, report.pending_restart) = ("another".to_owned(), false);
        assert_eq!(permitted(&scene), Some("demo-1".to_owned()));
        scene.edit(|spec| {
            spec.postgres.parameters.insert("work_mem".to_owned(), "8MB".to_owned());
        });
        assert_eq!(scene.decide().action.name(), "WriteStatus", "the permit is taken back");
    }
}
