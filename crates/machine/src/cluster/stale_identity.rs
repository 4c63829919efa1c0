//! Pods whose agent the API server does not know any more: their ServiceAccount was deleted and made again.

use api::status::WaitReason;
use chrono::{DateTime, TimeDelta, Utc};

use super::creation::{PENDING_RECHECK, lacks};
use super::decision::Step;
use super::facts::Facts;
use super::facts::late::unmade;
use super::facts::rollout::outdated;
use super::observed::Pod;
use super::rollout::{HOLDER_LIMIT, replace};
use super::rule::{OnBackoff, Proposal, Rule, RuleKind};
use super::wait::WaitKey;

/// See [`Rule::what`].
pub const REPLACE_STALE_IDENTITY: Rule = Rule {
    name: "replace-void",
    family: "rollout",
    what: "A pod whose agent's token was revoked is replaced, the lease holder's pod last.\n\
           - Each waits at most a minute for the others to be ready.\n\
           - A pod that is ready stays for as long as a new pod cannot come up.\n\
           - Reports of agents are not waited for: a holder that the API server does not know can pass nothing on.",
    protocol: &[],
    kind: RuleKind::Act,
    decide: replace_void,
    on_backoff: OnBackoff::Hold,
};

/// The API server accepts a token for 10 s after it has looked it up, and clocks of nodes differ. An agent that renews the
/// Lease later than this after its ServiceAccount was made again has a new token: the kubelet asks for one, by the
/// ServiceAccount's name, when four fifths of the hour that a token lasts are over.
const TOKEN_REMEMBERED: TimeDelta = TimeDelta::seconds(30);

/// Marks the pods that are older than their ServiceAccount, which was made at `account_made`: a token is bound to the
/// ServiceAccount's UID, so the API server no longer knows the agents in these pods. They count as made from an older
/// template. Their tokens count as revoked unless the Lease holder, `renewed` by its pod's UID and its last renewal, is one
/// of them and has renewed since: then the kubelet has fetched new tokens.
pub fn mark_revoked(pods: &mut [Pod], account_made: DateTime<Utc>, renewed: Option<(String, DateTime<Utc>)>) {
    let older = |pod: &Pod| pod.created < account_made;
    let refreshed = renewed.is_some_and(|(holder, at)| {
        at > account_made + TOKEN_REMEMBERED && pods.iter().any(|pod| older(pod) && pod.uid == holder)
    });
    for pod in pods.iter_mut().filter(|pod| older(pod)) {
        (pod.revision, pod.base_revision, pod.token_revoked) = (None, None, !refreshed);
    }
}

/// Pods with a token that counts, which cannot come up by themselves.
fn stuck<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a Pod> {
    let expected = facts.expected();
    let idle = facts.pods().iter().filter(|pod| !pod.ready && !pod.terminating);
    idle.filter(move |pod| pod.never_ran() && !pod.token_revoked && pod.ordinal < expected)
}

fn replace_void(facts: &Facts<'_>) -> Option<Proposal> {
    let holder = facts.holder_pod();
    let is_holder = |pod: &Pod| holder.is_some_and(|holder| holder.uid == pod.uid);
    let revoked = || outdated(facts).filter(|pod| pod.token_revoked);
    let standbys = || revoked().filter(|pod| !is_holder(pod));
    let idle = standbys().find(|pod| !pod.ready);
    let pod = idle.or_else(|| standbys().next()).or_else(|| revoked().next())?;
    let name = &pod.name;
    if pod.ready {
        let stuck = || stuck(facts);
        if stuck().any(|pod| !facts.current_revision(pod)) {
            // The wanted template may be what it lacks: it is replaced first, see [`REPLACE_IDLE`].
            return None;
        }
        if let Some(mut lack) = stuck().next().map(lacks).or_else(|| unmade(facts)) {
            lack.what = format!(
                "{}, before {name} is replaced, which serves though its agent's token is void",
                lack.what
            );
            let wait = Proposal::lack(facts, Step::Rollout, lack)?;
            return Some(wait.looking_again(facts.now + PENDING_RECHECK));
        }
    }
    let there = |ordinal| {
        let found = facts.pod(ordinal).filter(|pod| !pod.terminating);
        found.is_some_and(|pod| pod.token_revoked || pod.ready)
    };
    if !(0..facts.expected()).all(there) {
        let what = format!("the others to be ready, to replace {name}, whose agent's token is void");
        let key = WaitKey::pod(WaitReason::OthersReadiness, name);
        let deadline = facts.waiting_since(&key) + HOLDER_LIMIT;
        if facts.now < deadline {
            return Some(Proposal::wait(facts, Step::Rollout, key, what, "their agents")?.until(deadline));
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
