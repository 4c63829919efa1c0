//! Who can take over from the primary.

use super::{Facts, fenced, restarts};
use crate::cluster::observed::Pod;
use crate::protocol::MemberState;

/// Why `primary` cannot hand over to the instance `target` now.
pub(in crate::cluster) fn unfit(facts: &Facts<'_>, primary: &Pod, target: &str) -> Option<String> {
    let replicas = facts.wanted.replicas();
    if (0..replicas).all(|ordinal| format!("{}-{ordinal}", facts.wanted.name) != target) {
        return Some(format!("there is no instance {target} among {replicas}"));
    }
    let Some(pod) = facts.pods().iter().find(|pod| pod.name == target) else {
        return Some(format!("{target} has no pod"));
    };
    if fenced::is_fenced(facts, target) {
        return Some(format!("spec.fenced names {target}"));
    }
    if !streams(facts, pod) {
        return Some(format!("{target} does not stream from the primary"));
    }
    if facts.is_cordoned(pod) && !facts.is_cordoned(primary) {
        return Some(format!(
            "the node of {target} takes no pods, so it would not stay primary"
        ));
    }
    if facts.current_revision(primary) && !facts.current_revision(pod) {
        return Some(format!("the pod of {target} is of an older template"));
    }
    let permit = restarts::restarting(facts)?;
    Some(format!("{} restarts PostgreSQL", permit.pod))
}

/// It serves as a standby that receives WAL.
pub(in crate::cluster) fn streams(facts: &Facts<'_>, pod: &Pod) -> bool {
    let report = facts.report(pod);
    let serves = facts.serves(pod) && !fenced::is_fenced(facts, &pod.name);
    serves && report.is_some_and(|report| report.state == MemberState::Streaming)
}
