//! Changes of settings and of the pod template: standbys first from the highest ordinal, the primary last, one at a time.
//!
//! Two rules hold it together. A member that is not at the target and does not serve may always be brought there. One
//! that serves is only taken down while all others serve: so a change that does not work stops after one member.

use api::spec::PrimaryUpdates;
use chrono::{DateTime, TimeDelta, Utc};

use super::action::Action;
use super::decision::Step;
use super::facts::{Facts, list};
use super::fenced;
use super::members::exact;
use super::observed::Pod;
use super::request;
use super::resize;
use super::restarts::{refusal, restarting};
use super::rule::{Proposal, Rule};
use super::{claims, volumes, wal, wal_claims};
use crate::protocol::MemberReport;

/// See [`Rule::what`].
pub const REPLACE_IDLE: Rule = Rule {
    name: "replace-idle",
    family: "rollout",
    what: "A pod of an older template that is not ready is replaced at once, unless the wanted image is known not to run, or it restarts by permit and needs no other pod. Once there is a database, one that may run waits until no other pod is going away, and the Lease holder's, or any while no primary serves, is given a minute; and while a pod of the wanted template is missing, has yet to run or fails, one that has run stays, unless it fails as well while another of the wanted template is ready.",
    propose: replace_idle,
    passable: false,
};

/// See [`Rule::what`].
pub const AWAIT_SETTLED: Rule = Rule {
    name: "await-settled",
    family: "rollout",
    what: "While pods of an older template are left, each new one has to have been ready for 10 s, and not to end again and again, before another pod, or the primary, has its turn.",
    propose: await_settled,
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

pub(super) fn outdated<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a Pod> {
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
    let standbys = || outdated(facts).filter(|pod| !is_primary(pod));
    let is_due = |pod: &&Pod| !wal::is_not_yet_due(facts, pod);
    standbys()
        .find(is_due)
        .or_else(|| outdated(facts).find(|pod| is_due(pod) && !wal::lacks_nothing_else(facts, pod)))
        .or_else(|| standbys().next())
        .or_else(|| outdated(facts).next())
}

/// Only a new pod can be as the wanted template says.
pub(super) fn needs_replacing(facts: &Facts<'_>, pod: &Pod) -> bool {
    !facts.current_revision(pod) && !resize::suffices(facts, pod)
}

/// The primary's pod may go before this one: it is as wanted, or lacks only a WAL volume that cannot be had yet, while the
/// primary lacks more.
pub(super) fn lets_primary_go(facts: &Facts<'_>, primary: &Pod, pod: &Pod) -> bool {
    let waits = wal::is_not_yet_due(facts, pod) && !wal::lacks_nothing_else(facts, primary);
    facts.current_revision(pod) || waits
}

/// Lets this pod be made again, from a template that fits it, unless the last copy of the data would go with it.
pub(super) fn replace(facts: &Facts<'_>, pod: &Pod, because: String) -> Option<Proposal> {
    let replace = || Proposal::act(Step::Rollout, Action::ReplacePod(exact(pod)), because);
    let kept = claims::before_replacing(facts, pod);
    kept.or_else(|| wal::template_first(facts, pod)).or_else(replace)
}

/// Readiness flaps for seconds, and taking the holder down means a failover; one that is not back after this long may
/// need what the new template brings (more memory, a working image).
pub(super) const HOLDER_PATIENCE: TimeDelta = TimeDelta::minutes(1);

/// So many starts of its container come to nothing in half a minute (the kubelet waits 10 s, then 20 s).
const MANY: u32 = 3;

/// This pod is as wanted, but for a WAL volume that it may lack.
fn is_new(facts: &Facts<'_>, pod: &Pod) -> bool {
    !pod.terminating && (facts.current_revision(pod) || wal::lacks_nothing_else(facts, pod))
}

/// It does not come up, and not for want of a primary alone: that says nothing of its template.
fn fails(facts: &Facts<'_>, pod: &Pod) -> bool {
    let complains = |report: &MemberReport| report.fault.is_some() && !report.is_silent();
    let ends = pod.restarts >= MANY || facts.report(pod).is_some_and(complains);
    !pod.ready && (pod.never_ran() || pod.unstarted || ends)
}

/// A pod of the wanted template may never come up: another one need not either.
fn is_doubtful(facts: &Facts<'_>) -> bool {
    let missing = |ordinal| facts.pod(ordinal).is_none();
    let fails = |pod: &Pod| is_new(facts, pod) && fails(facts, pod);
    (0..facts.expected()).any(missing) || facts.pods().iter().any(fails)
}

/// Whether this pod may be given up for one of the wanted template, though that is doubtful. One that has run may be back
/// in a moment.
fn is_worth_a_doubt(facts: &Facts<'_>, pod: &Pod) -> bool {
    let runs = facts.pods().iter().any(|pod| pod.ready && is_new(facts, pod));
    pod.never_ran() || wal::cannot_run(facts, pod) || pod.unstarted || runs && fails(facts, pod)
}

fn replace_idle(facts: &Facts<'_>) -> Option<Proposal> {
    let holder = facts.holder_pod().filter(|_| facts.bootstrapped());
    let is_holder = |pod: &Pod| holder.is_some_and(|holder| holder.uid == pod.uid);
    let never_ran = |pod: &Pod| pod.never_ran() || wal::cannot_run(facts, pod);
    // PostgreSQL restarts, and may need no other pod then.
    let permit = restarting(facts);
    let restarts = |pod: &Pod| permit.is_some_and(|permit| permit.pod_uid == pod.uid) && resize::suffices(facts, pod);
    let idle = || outdated(facts).filter(|pod| !pod.ready && !restarts(pod) && !wal::is_not_yet_due(facts, pod));
    let doubtful = facts.bootstrapped() && is_doubtful(facts);
    let may_go = |pod: &&Pod| !doubtful || is_worth_a_doubt(facts, pod);
    let leaves_data = |pod: &&Pod| claims::before_replacing(facts, pod).is_none();
    let pod = idle()
        .filter(leaves_data)
        .find(|pod| never_ran(pod))
        .or_else(|| idle().filter(may_go).filter(leaves_data).find(|pod| !is_holder(pod)))
        .or_else(|| idle().filter(may_go).find(leaves_data))
        .or_else(|| idle().find(may_go))?;
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
    let because = format!("{} {} and not ready", pod.name, volumes::why_made_again(facts, pod));
    replace(facts, pod, because)
}

/// So long a new pod has to have been ready before the next one goes. A server that is refused its memory, or lacks a library,
/// ends with its first work. Kubernetes waits for none of it unless it is told to (`minReadySeconds`), so this is short: it
/// is once in a rolling change for each pod that another one follows, and no part of any outage.
pub(super) const SETTLES: TimeDelta = TimeDelta::seconds(10);

fn settled(pod: &Pod) -> String {
    let seconds = SETTLES.num_seconds();
    format!("{}, which is new, to have served for {seconds} s", pod.name)
}

/// When this pod will have stayed up for long enough, if it has not yet. The kubelet's clock may be wrong: it is not waited
/// for longer than that by ours.
fn settles_at(facts: &Facts<'_>, pod: &Pod) -> Option<DateTime<Utc>> {
    let since = pod.ready_since?.min(facts.waiting_since(&settled(pod)));
    let at = since + SETTLES;
    (facts.now < at).then_some(at)
}

/// A pod of the wanted template of which it is not known that it stays up.
pub(super) fn unsettled<'a>(facts: &Facts<'a>) -> Option<&'a Pod> {
    let ends = |pod: &Pod| facts.report(pod).is_some_and(MemberReport::keeps_ending);
    let is_unsettled = |pod: &&Pod| is_new(facts, pod) && (settles_at(facts, pod).is_some() || ends(pod));
    facts.pods().iter().find(is_unsettled)
}

fn await_settled(facts: &Facts<'_>) -> Option<Proposal> {
    let pod = next(facts).filter(|pod| !wal::is_not_yet_due(facts, pod))?;
    facts.primary().filter(|_| facts.all_serve_except(Some(pod.ordinal)))?;
    let new = unsettled(facts)?;
    let fault = facts.report(new).and_then(|report| report.fault.as_ref());
    let fault = fault.map_or(String::new(), |fault| format!(" ({fault})"));
    let who = format!("time and its agent{fault}, or the user by a change of the spec");
    let wait = Proposal::wait(facts, Step::Rollout, settled(new), who)?;
    Some(match settles_at(facts, new) {
        Some(at) => wait.until(at),
        None => wait,
    })
}

fn replace_serving(facts: &Facts<'_>) -> Option<Proposal> {
    let primary = facts.primary();
    let pod = next(facts).filter(|pod| needs_replacing(facts, pod) && !wal::is_not_yet_due(facts, pod))?;
    if wal_claims::comes_until(facts, pod).is_some() {
        return None;
    }
    // A primary that another can take over from is moved first, and goes as a standby.
    let is_primary = primary.is_some_and(|primary| primary.uid == pod.uid);
    if is_primary && (facts.expected() > 1 || supervised(facts)) {
        return None;
    }
    if primary.is_some() && facts.status.intent.restart.is_none() && facts.all_serve_except(Some(pod.ordinal)) {
        let why = resize::obstacle(facts, pod);
        let why = why.map_or(String::new(), |why| format!("; it cannot be resized in place: {why}"));
        let stands = volumes::why_made_again(facts, pod);
        let because = format!("{} {stands}, and all others serve{why}", pod.name);
        return replace(facts, pod, because);
    }
    None
}

/// See [`Rule::what`].
pub const AWAIT_SUPERVISOR: Rule = Rule {
    name: "await-supervisor",
    family: "rollout",
    what: "With spec.primary.updates Supervised a rolling change stops when only the primary is left, or has to be the first; how to let it go on is said.",
    propose: await_supervisor,
    passable: false,
};

pub(super) fn supervised(facts: &Facts<'_>) -> bool {
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
            .all(|pod| lets_primary_go(facts, primary, pod))
            .then(|| format!("its pod {}", volumes::why_made_again(facts, primary)))
    } else if lowers {
        Some("its settings need a restart, before that of the standbys since a limit is lowered".to_owned())
    } else {
        let settled = report.is_some() && others().all(|pod| facts.current_settings(pod));
        settled.then(|| "its settings need a restart".to_owned())
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
    let prefer = facts.wanted.spec.primary.preferred();
    let fit = |pod: &&Pod| {
        pod.uid != primary.uid
            && prefer.is_none_or(|prefer| prefer == pod.name)
            && request::unfit(facts, primary, &pod.name).is_none()
    };
    facts.pods().iter().find(fit)
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
    next(facts).filter(|pod| !resize::waits_for_settings(facts, pod) && refusal(facts).is_none())?;
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
    use super::*;
    use crate::protocol::FAULT_ENDS;

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
                assert_eq!(scene.replaced(), Some(format!("demo-{ordinal}")));
                scene.pod_mut(ordinal).revision = Some("r2".to_owned());
            }
            assert_eq!(scene.decide().rule, "switch-over");
            scene.elect(first);
            assert_eq!(scene.replaced(), Some(format!("demo-{last}")), "it is a standby now");
        }
    }

    #[test]
    fn a_member_that_fails_at_the_target_halts_the_rollout() {
        let mut scene = outdated(0);
        scene.pod_mut(2).revision = Some("r2".to_owned());
        scene.pod_mut(2).ready = false;
        assert_eq!(scene.replaced(), None);
        assert_eq!(scene.decide().rule, "await-standbys");
        scene.revision = "r1".to_owned();
        assert_eq!(scene.replaced(), Some("demo-2".to_owned()), "a revert frees it");
    }

    #[test]
    fn a_silent_member_does_not_serve_and_halts_the_rollout() {
        let mut scene = outdated(0);
        scene.pod_mut(2).revision = Some("r2".to_owned());
        scene.report_mut(2).fault = Some(crate::protocol::FAULT_SILENT.to_owned());
        assert_eq!(scene.replaced(), None);
        scene.report_mut(2).fault = Some("a rewind failed".to_owned());
        assert_eq!(scene.replaced(), Some("demo-1".to_owned()), "it serves again");
        scene.report_mut(2).fault = Some(format!("{FAULT_ENDS} 3 times in a row, soon after its start"));
        let decision = scene.store();
        assert_eq!((decision.rule, scene.replaced()), ("await-settled", None));
        let who = scene.stored.waiting.clone().unwrap().who_can_end_it;
        assert!(who.contains("3 times in a row"), "{who}");
    }

    #[test]
    fn a_new_pod_has_to_stay_up_before_the_next_one_goes() {
        let mut scene = outdated(0);
        scene.pod_mut(0).ready_since = Some(scene.now);
        assert_eq!(scene.replaced(), Some("demo-2".to_owned()), "old ones have stayed up");
        scene.pod_mut(2).revision = Some("r2".to_owned());
        scene.pod_mut(2).ready_since = Some(scene.now);
        let decision = scene.store();
        assert_eq!((decision.rule, decision.wake), ("await-settled", scene.now + SETTLES));
        let mut late = scene.clone();
        late.pod_mut(2).ready_since = Some(scene.now + TimeDelta::hours(1));
        late.store();
        for scene in [&mut scene, &mut late] {
            scene.now += SETTLES - TimeDelta::seconds(1);
            assert_eq!(scene.replaced(), None);
            scene.now += TimeDelta::seconds(1);
            assert_eq!(scene.replaced(), Some("demo-1".to_owned()), "by whichever clock");
        }
        scene.pod_mut(1).revision = Some("r2".to_owned());
        scene.pod_mut(1).ready_since = Some(scene.now);
        assert_eq!(scene.store().rule, "await-settled", "the primary stays meanwhile");
        let mut drained = scene.clone();
        drained.cordon(0, true);
        assert_eq!(drained.decide().rule, "switch-over", "a drain waits for nothing new");
        scene.now += SETTLES;
        assert_eq!(scene.decide().rule, "switch-over");
    }

    #[test]
    fn an_outdated_member_that_does_not_serve_goes_first_even_if_all_fail() {
        let mut scene = outdated(0);
        for ordinal in 0..3 {
            scene.pod_mut(ordinal).ready = false;
        }
        scene.store();
        assert_eq!(scene.replaced(), None, "any of them may be elected");
        scene.now += HOLDER_PATIENCE;
        assert_eq!(scene.replaced(), Some("demo-2".to_owned()));
        scene.pod_mut(2).revision = Some("r2".to_owned());
        assert_eq!(scene.replaced(), Some("demo-1".to_owned()));
    }

    #[test]
    fn the_holder_is_not_taken_down_for_a_flap_of_its_readiness() {
        let mut scene = outdated(2);
        scene.pod_mut(2).ready = false;
        scene.store();
        assert_eq!((scene.replaced(), scene.decide().rule), (None, "replace-idle"));
        let wake = scene.now + HOLDER_PATIENCE;
        assert_eq!(scene.decide().wake, wake);
        let mut unready = scene.clone();
        unready.pod_mut(0).ready = false;
        assert_eq!(unready.replaced(), None, "it may be elected");
        unready.store();
        unready.now += HOLDER_PATIENCE;
        assert_eq!(unready.replaced(), Some("demo-0".to_owned()), "others go first");
        let mut unscheduled = scene.clone();
        unscheduled.pod_mut(2).node = None;
        assert_eq!(unscheduled.replaced(), Some("demo-2".to_owned()));
        let mut back = scene.clone();
        back.pod_mut(2).ready = true;
        assert_eq!(back.replaced(), Some("demo-1".to_owned()));
        scene.now = wake;
        assert_eq!(
            scene.replaced(),
            Some("demo-2".to_owned()),
            "it may need the new template"
        );
    }

    #[test]
    fn no_two_members_are_down_for_a_rollout_at_once() {
        let mut scene = outdated(0);
        scene.pod_mut(2).terminating = true;
        scene.pod_mut(1).ready = false;
        assert_eq!(scene.replaced(), None);
        scene.pod_mut(1).node = None;
        assert_eq!(scene.replaced(), Some("demo-1".to_owned()), "it takes nothing down");
    }

    #[test]
    fn no_pod_is_replaced_by_an_image_that_is_known_not_to_run() {
        let mut scene = outdated(0);
        let error = scene.image_error();
        let pod = scene.pod_mut(2);
        (pod.revision, pod.ready, pod.image_error) = (Some("r2".to_owned()), false, Some(error));
        scene.pod_mut(1).ready = false;
        assert_eq!(scene.replaced(), None);
        scene.pod_mut(1).node = None;
        assert_eq!(scene.replaced(), None, "nor one that never ran");
        scene.revision = "r3".to_owned();
        assert!(scene.replaced().is_some(), "the spec was changed again");
    }

    /// A pod of the wanted template, spoiled in some way; the primary of before, of the older one, is away.
    fn doubtful(spoil: fn(&mut Scene)) -> Scene {
        let mut scene = outdated(0);
        scene.pod_mut(2).revision = Some("r2".to_owned());
        scene.pod_mut(2).ready = false;
        scene.elect(1);
        scene.pod_mut(0).ready = false;
        spoil(&mut scene);
        scene
    }

    const SPOILS: [fn(&mut Scene); 5] = [
        |scene| scene.pod_mut(2).node = None,
        |scene| scene.pod_mut(2).unstarted = true,
        |scene| scene.pod_mut(2).restarts = MANY,
        |scene| scene.report_mut(2).fault = Some("its image is of another version".to_owned()),
        |scene| scene.pods_mut().retain(|pod| pod.ordinal != 2),
    ];

    #[test]
    fn a_template_that_does_not_run_costs_one_member_whoever_else_is_away() {
        for (index, spoil) in SPOILS.into_iter().enumerate() {
            let mut scene = doubtful(spoil);
            for _ in 0..3 {
                assert_eq!(scene.replaced(), None, "{index}: demo-0 is away for a moment");
                scene.store();
                scene.now += HOLDER_PATIENCE;
            }
            let mut unscheduled = scene.clone();
            unscheduled.pod_mut(0).node = None;
            assert_eq!(
                unscheduled.replaced(),
                Some("demo-0".to_owned()),
                "{index}: it takes nothing down"
            );
            scene.pod_mut(1).ready = false;
            scene.store();
            scene.now += HOLDER_PATIENCE;
            assert_eq!(scene.replaced(), None, "{index}: nor is the last one given up");
        }
        let scene = doubtful(|_| {});
        assert_eq!(
            scene.replaced(),
            Some("demo-0".to_owned()),
            "it may wait for a primary only"
        );
        let silent = doubtful(|scene| scene.report_mut(2).fault = Some(crate::protocol::FAULT_SILENT.to_owned()));
        assert_eq!(silent.replaced(), Some("demo-0".to_owned()), "nothing is known of it");
    }

    #[test]
    fn a_revert_reaches_the_pod_that_fails_though_another_does_not_come_up_either() {
        for (index, spoil) in SPOILS.into_iter().enumerate() {
            let mut scene = doubtful(spoil);
            scene.revision = "r1".to_owned();
            let fails = scene.pods().iter().find(|pod| pod.ordinal == 2);
            let fails = fails.map(|pod| pod.name.clone());
            assert_eq!(scene.replaced(), fails, "{index}");
            scene.pod_mut(0).node = None;
            assert_eq!(scene.replaced(), fails, "{index}: demo-1 shows that its template runs");
        }
    }

    #[test]
    fn one_instance_is_replaced_though_no_other_serves() {
        let mut scene = Scene::ready(1);
        scene.revision = "r2".to_owned();
        assert_eq!(scene.replaced(), Some("demo-0".to_owned()));
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
            assert_eq!(scene.replaced(), Some(format!("demo-{ordinal}")));
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
        assert_eq!(scene.replaced(), Some("demo-0".to_owned()), "it is a standby now");
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
        let mut scene = Scene::pending_restart(false);
        supervised(&mut scene);
        for ordinal in [2, 1] {
            assert_eq!(scene.permitted(), Some(format!("demo-{ordinal}")));
            scene.store();
            scene.report_mut(ordinal).pending_restart = false;
        }
        scene.store();
        assert_eq!(scene.permitted(), None);
        assert!(leave(&mut scene).contains("switchover=demo-1/2;"));
        scene.edit(|spec| spec.primary.prefer = Some("demo-0".to_owned()));
        assert!(
            !leave(&mut scene).contains("annotate"),
            "such a request would be refused"
        );
        let mut lowered = Scene::pending_restart(true);
        supervised(&mut lowered);
        assert_eq!(lowered.permitted(), None, "no standby can go first");
        assert!(
            !leave(&mut lowered).contains("annotate"),
            "nor would another primary be further"
        );
    }

    #[test]
    fn who_may_be_given_up_for_a_doubtful_template() {
        let worth = |new_runs: bool, spoil: fn(&mut Pod)| {
            let mut scene = outdated(0);
            scene.pod_mut(2).revision = Some("r2".to_owned());
            scene.pod_mut(2).ready = new_runs;
            scene.pod_mut(1).ready = false;
            spoil(scene.pod_mut(1));
            scene.with_facts(|facts| is_worth_a_doubt(facts, &facts.pods()[1]))
        };
        let fails = |pod: &mut Pod| pod.restarts = MANY;
        assert!(!worth(true, |_| {}), "it may be back in a moment");
        assert!(!worth(false, fails), "another of the older template serves");
        assert!(worth(true, fails));
        assert!(worth(false, |pod| pod.unstarted = true));
        assert!(worth(false, |pod| pod.node = None));
    }

    #[test]
    fn a_pod_is_new_with_its_wal_volume_and_while_it_lacks_nothing_else() {
        let mut lacks = Scene::ready(3);
        lacks.add_wal_volume();
        for (index, scene) in [Scene::ready(3), Scene::with_wal(3), lacks].iter().enumerate() {
            assert!(scene.with_facts(|facts| is_new(facts, &facts.pods()[2])), "{index}");
        }
    }

    #[test]
    fn an_only_instance_is_replaced_at_once_though_nobody_holds_the_lease() {
        let mut scene = Scene::ready(1);
        scene.revision = "r2".to_owned();
        scene.lease_mut().unwrap().holder = None;
        scene.pod_mut(0).ready = false;
        assert_eq!(scene.replaced(), Some("demo-0".to_owned()));
    }

    #[test]
    fn no_pod_goes_while_postgresql_restarts_in_one() {
        let mut scene = Scene::pending_restart(false);
        scene.store();
        assert!(scene.stored.intent.restart.is_some());
        scene.revision = "r2".to_owned();
        assert_eq!(scene.replaced(), None);
        scene.stored.intent.restart = None;
        assert_eq!(scene.replaced(), Some("demo-2".to_owned()));
    }

    #[test]
    fn no_leave_is_asked_for_where_nothing_is_to_change_or_settings_are_refused() {
        let mut scene = Scene::ready(3);
        supervised(&mut scene);
        scene.store();
        assert_eq!(scene.decide().rule, "rest");
        scene.revision = "r2".to_owned();
        for ordinal in [2, 1] {
            scene.pod_mut(ordinal).revision = Some("r2".to_owned());
        }
        assert_eq!(scene.decide().rule, "await-supervisor");
        scene.report_mut(1).settings_error = Some("no such parameter".to_owned());
        assert_eq!(
            scene.decide().rule,
            "await-settings",
            "the refusal is what the user can end"
        );
    }

    #[test]
    fn one_that_is_replaced_already_and_serves_keeps_no_idle_one_where_it_is() {
        let mut scene = outdated(0);
        scene.pod_mut(2).revision = Some("r2".to_owned());
        scene.pod_mut(1).ready = false;
        assert_eq!(scene.decide().rule, "replace-idle");
        let error = scene.image_error();
        scene.pod_mut(2).image_error = Some(error);
        assert_ne!(scene.decide().rule, "replace-idle", "it would not run either");
    }

    #[test]
    fn pods_that_may_not_be_replaced_now_are_named() {
        let waits = |scene: &Scene| Some(scene.with_facts(await_rollout)?.because.to_string());
        let mut scene = outdated(0);
        scene.pod_mut(1).ready = false;
        assert_eq!(
            waits(&scene).as_deref(),
            Some("all others to serve, to replace demo-2, demo-1, demo-0")
        );
        assert_eq!(waits(&Scene::ready(3)), None);
    }
}
