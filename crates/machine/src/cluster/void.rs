//! Pods whose agent the API server does not know any more: their ServiceAccount was deleted and made again.

use super::creation::{PENDING_RECHECK, lacks, unmade};
use super::decision::Step;
use super::facts::Facts;
use super::observed::Pod;
use super::rollout::{HOLDER_PATIENCE, outdated, replace};
use super::rule::{Proposal, Rule};

/// See [`Rule::what`].
pub const REPLACE_VOID: Rule = Rule {
    name: "replace-void",
    family: "rollout",
    what: "A pod whose agent's token is void is replaced, the Lease holder's last; each waits at most a minute for the others to be ready, and one that is ready for as long as a new pod cannot come up. What agents report is not waited for: a holder that the API server does not know can pass nothing on.",
    propose: replace_void,
    passable: false,
};

/// Pods with a token that counts, which cannot come up by themselves.
fn stuck<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a Pod> {
    let expected = facts.expected();
    let idle = facts.pods().iter().filter(|pod| !pod.ready && !pod.terminating);
    idle.filter(move |pod| pod.never_ran() && !pod.token_void && pod.ordinal < expected)
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
        if let Some((what, who)) = stuck().next().map(lacks).or_else(|| unmade(facts)) {
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
        facts,
        pod,
        format!("the API server does not know the agent of {name}: its ServiceAccount was made again"),
    )
}

#[cfg(test)]
mod tests;
