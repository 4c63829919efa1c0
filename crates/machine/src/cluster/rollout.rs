//! Changes of settings and of the pod template: standbys first from the highest ordinal, the primary last, one at a time.
//!
//! Two rules hold it together. A member that is not at the target and does not serve may always be brought there. One
//! that serves is only taken down while all others serve: so a change that does not work stops after one member.

use api::status::{RequestOutcome, WaitReason};
use chrono::{DateTime, TimeDelta, Utc};

use super::action::{Action, StatusChange};
use super::decision::Step;
use super::facts::restarts::{refusal, restarting};
use super::facts::rollout::{lets_primary_go, needs_replacing, next, outdated, supervised};
use super::facts::switchover::unfit;
use super::facts::wal::{cannot_run, is_not_yet_due, lacks_nothing_else};
use super::facts::{Facts, exact, fenced, list, resize, volumes};
use super::observed::Pod;
use super::rule::{OnBackoff, Progress, Proposal, Rule, RuleKind};
use super::wait::WaitKey;
use super::{claims, wal, wal_claims};
use crate::protocol::MemberReport;

/// See [`Rule::what`].
pub const REPLACE_IDLE: Rule = Rule {
    name: "replace-idle",
    family: "rollout",
    what: "A pod of an older template that is not ready is replaced at once.\n\
           - Not while the wanted image is known not to run, nor while the pod restarts by permit and needs no other pod.\n\
           - Once there is a database: not while another pod is going away.\n\
           - The lease holder, and every pod while no primary serves, gets a minute first.\n\
           - While a new pod is missing, has yet to run, or fails, a pod that has run stays, unless it fails too and another new pod is ready.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: replace_idle,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const AWAIT_SETTLED: Rule = Rule {
    name: "await-settled",
    family: "rollout",
    what: "During a rolling change each new pod has to be ready for 10 s, without ending again and again, before the next pod or the primary has its turn.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_settled,
    on_backoff: OnBackoff::Hold,
};

/// See [`Rule::what`].
pub const REPLACE_SERVING: Rule = Rule {
    name: "replace-serving",
    family: "rollout",
    what: "A pod of an older template that serves, and cannot be changed in place, is replaced while all others serve: the highest standby first.\n\
           - The primary is replaced only if it is the only instance.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: replace_serving,
    on_backoff: OnBackoff::Hold,
};

/// Lets this pod be made again, from a template that fits it, unless the last copy of the data would go with it.
pub(super) fn replace(facts: &Facts<'_>, pod: &Pod, because: String) -> Option<Proposal> {
    let replace = || Proposal::act(Step::Rollout, Action::ReplacePod(exact(pod)), because);
    let kept = claims::before_replacing(facts, pod);
    kept.or_else(|| wal::template_first(facts, pod)).or_else(replace)
}

/// Readiness flaps for seconds, and taking the holder down means a failover; one that is not back after this long may
/// need what the new template brings (more memory, a working image).
pub(super) const HOLDER_LIMIT: TimeDelta = TimeDelta::minutes(1);

/// So many starts of its container come to nothing in half a minute (the kubelet waits 10 s, then 20 s).
const MANY: u32 = 3;

/// This pod is as wanted, but for a WAL volume that it may lack.
fn is_new(facts: &Facts<'_>, pod: &Pod) -> bool {
    !pod.terminating && (facts.current_revision(pod) || lacks_nothing_else(facts, pod))
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
    pod.never_ran() || cannot_run(facts, pod) || pod.unstarted || runs && fails(facts, pod)
}

fn replace_idle(facts: &Facts<'_>) -> Option<Proposal> {
    let holder = facts.holder_pod().filter(|_| facts.bootstrapped());
    let is_holder = |pod: &Pod| holder.is_some_and(|holder| holder.uid == pod.uid);
    let never_ran = |pod: &Pod| pod.never_ran() || cannot_run(facts, pod);
    // PostgreSQL restarts, and may need no other pod then.
    let permit = restarting(facts);
    let restarts = |pod: &Pod| permit.is_some_and(|permit| permit.pod_uid == pod.uid) && resize::suffices(facts, pod);
    let idle = || outdated(facts).filter(|pod| !pod.ready && !restarts(pod) && !is_not_yet_due(facts, pod));
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
        let waits_for = if is_holder(pod) {
            let key = WaitKey::pod(WaitReason::HolderReturn, &pod.name);
            Some((key, format!("{} to be ready again, before it is replaced", pod.name)))
        } else if facts.primary().is_none() && facts.expected() > 1 {
            let what = "a primary to serve, before pods of the older template are replaced";
            Some((WaitReason::PrimaryReturn.into(), what.to_owned()))
        } else {
            None
        };
        if let Some((key, what)) = waits_for {
            let deadline = facts.waiting_since(&key) + HOLDER_LIMIT;
            if facts.now < deadline {
                return Some(Proposal::wait(facts, Step::Rollout, key, what, "the agents")?.until(deadline));
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

/// What the timer of the wait for a new pod to stay up hangs on.
fn settling(pod: &Pod) -> WaitKey {
    WaitKey::pod(WaitReason::PodSettling, &pod.name)
}

/// When this pod will have stayed up for long enough, if it has not yet. The kubelet's clock may be wrong: it is not waited
/// for longer than that by ours.
fn settles_at(facts: &Facts<'_>, pod: &Pod) -> Option<DateTime<Utc>> {
    let since = pod.ready_since?.min(facts.waiting_since(&settling(pod)));
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
    let pod = next(facts).filter(|pod| !is_not_yet_due(facts, pod))?;
    facts.primary().filter(|_| facts.all_serve_except(Some(pod.ordinal)))?;
    let new = unsettled(facts)?;
    let fault = facts.report(new).and_then(|report| report.fault.as_ref());
    let fault = fault.map_or(String::new(), |fault| format!(" ({fault})"));
    let who = format!("time and its agent{fault}, or the user by a change of the spec");
    let seconds = SETTLES.num_seconds();
    let what = format!("{}, which is new, to have served for {seconds} s", new.name);
    let wait = Proposal::wait(facts, Step::Rollout, settling(new), what, who)?;
    Some(match settles_at(facts, new) {
        Some(at) => wait.until(at),
        None => wait,
    })
}

fn replace_serving(facts: &Facts<'_>) -> Option<Proposal> {
    let primary = facts.primary();
    let pod = next(facts).filter(|pod| needs_replacing(facts, pod) && !is_not_yet_due(facts, pod))?;
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

/// All instances are as the template says and serve, in words that say which; those that are fenced may be looked at first,
/// and the primary waits for its user where updates are supervised.
pub(super) fn finished(facts: &Facts<'_>) -> Option<String> {
    let primary = facts.primary();
    let waits = |pod: &Pod| supervised(facts) && primary.is_some_and(|primary| primary.uid == pod.uid);
    let mut others = Vec::new();
    for ordinal in 0..facts.expected() {
        let pod = facts.pod(ordinal)?;
        if facts.current_revision(pod) && facts.serves(pod) {
            continue;
        }
        others.push(if fenced::is_kept(facts, pod) {
            format!("{}, which is fenced", pod.name)
        } else if waits(pod) {
            format!(
                "the primary {}, since spec.primary.updatePolicy is Supervised",
                pod.name
            )
        } else {
            return None;
        });
    }
    Some(match others.is_empty() {
        true => "all instances".to_owned(),
        false => format!("all instances but {},", list(others.iter().map(String::as_str))),
    })
}

/// What becomes of an operation with this UID that asks for a restart: its UID is put into the template, and the pods are
/// replaced as by any other change of that. It is done when all have been.
pub(super) fn restart_all(facts: &Facts<'_>, uid: &str) -> Option<Progress> {
    if facts.wanted.restarted_by == Some(uid) {
        let instances = finished(facts)?;
        let why = format!("{instances} have new pods and serve");
        return Some(Progress::Ends(RequestOutcome::Done, why));
    }
    let why = || "the pods of all instances are to be replaced".to_owned();
    facts
        .bootstrapped()
        .then(|| Progress::Changes(StatusChange::RestartAll(uid.to_owned()), why()))
}

/// See [`Rule::what`].
pub const AWAIT_SUPERVISOR: Rule = Rule {
    name: "await-supervisor",
    family: "rollout",
    what: "With spec.primary.updatePolicy Supervised a rolling change stops before the primary; the status says how to let it go on.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_supervisor,
    on_backoff: OnBackoff::Hold,
};

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
        "leave to go on with the primary {}: spec.primary.updatePolicy is Supervised, and {why}",
        primary.name
    );
    let automatic = format!(
        "kubectl patch cdb {name} --type merge -p '{{\"spec\":{{\"primary\":{{\"updatePolicy\":\"Automatic\"}}}}}}'"
    );
    let who = match successor(facts, primary).filter(|_| !lowers) {
        Some(pod) => format!(
            "the user, by a switchover: kubectl cdb promote {name} {} (or a ClusteredDatabaseOperation with switchover.to); \
             or without further questions: {automatic}",
            pod.name,
        ),
        None => format!("the user: {automatic}"),
    };
    let key = WaitKey::pod(WaitReason::SupervisedUpdate, &primary.name);
    Proposal::wait(facts, Step::Supervised, key, what, who)
}

/// The first standby that a switchover can be requested to.
fn successor<'a>(facts: &Facts<'a>, primary: &Pod) -> Option<&'a Pod> {
    let prefer = facts.wanted.spec.primary.prefer.as_deref();
    let fit = |pod: &&Pod| {
        pod.uid != primary.uid
            && prefer.is_none_or(|prefer| prefer == pod.name)
            && unfit(facts, primary, &pod.name).is_none()
    };
    facts.pods().iter().find(fit)
}

/// See [`Rule::what`].
pub const AWAIT_ROLLOUT: Rule = Rule {
    name: "await-rollout",
    family: "rollout",
    what: "Pods of an older template that may not be replaced now are waited for.",
    protocol: &[],
    kind: RuleKind::Explain,
    decide: await_rollout,
    on_backoff: OnBackoff::Hold,
};

fn await_rollout(facts: &Facts<'_>) -> Option<Proposal> {
    let next = next(facts).filter(|pod| !resize::waits_for_settings(facts, pod) && refusal(facts).is_none())?;
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
        WaitKey::pod(WaitReason::OthersServing, &next.name),
        what,
        "the agents, or the user by a change of the spec",
    )
}

#[cfg(test)]
mod tests;
