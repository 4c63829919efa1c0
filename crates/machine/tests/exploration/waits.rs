//! Whether the operator's waits are true in the world (invariant 31). Reason and object are compared with pods and the
//! Lease, without the operator's facts.

use api::status::WaitReason;
use machine::cluster::model::World;
use machine::cluster::{Pod, Waiting};
use machine::protocol::{LeaseRecord, MemberState};

/// Whether it is true; `None`: this kind of wait is not checked here.
pub fn is_so(world: &World, waiting: &Waiting) -> Option<bool> {
    let scene = &world.scene;
    let what = waiting.what.as_ref();
    let pod = |name: &str| scene.pods().iter().find(|pod| pod.name == name);
    let stays = |name: &str| pod(name).filter(|pod| !pod.terminating);
    let lease = scene.observed.lease.get().and_then(Option::as_ref);
    let holds = |name: &str| lease.is_some_and(|lease| holder(lease) == pod(name).map(|pod| pod.uid.as_str()));
    let leads = |name: &str| holds(name) && opened(lease) && stays(name).is_some_and(|pod| pod.ready);
    if waiting.resting {
        let wanted = usize::try_from(scene.spec.replicas).unwrap_or(0);
        return Some(scene.pods().len() == wanted && scene.pods().iter().all(|pod| serves(lease, pod)));
    }
    let object = waiting.object.as_deref().unwrap_or_default();
    let named = object.strip_prefix("pod/").unwrap_or_default();
    // The object, and all others that are late for the same reason.
    let late = waiting.late.iter().filter(|late| late.reason == waiting.reason);
    let late = late.filter_map(|late| late.object.strip_prefix("pod/"));
    let all = |so: &dyn Fn(&str) -> bool| late.clone().chain([named]).all(so);
    match waiting.reason {
        WaitReason::PrimaryElection => {
            // The state of the Lease is only in the text.
            let (_, stands) = what.split_once("a primary to serve")?.1.split_once(": ")?;
            let (name, rest) = stands.split_once(' ')?;
            match rest {
                "holds the Lease and does not serve yet" => {
                    Some(holds(name) && stays(name).is_some() && !opened(lease))
                }
                "holds the Lease and is not ready" => Some(holds(name) && stays(name).is_some_and(|pod| !pod.ready)),
                "holds the Lease and is going away" => {
                    Some(holds(name) && stays(name).is_none() && pod(name).is_some())
                }
                _ if rest.starts_with("has released the Lease") => lease.map(|lease| lease.holder.is_none()),
                _ => None,
            }
        }
        WaitReason::PodRemoval => Some(all(&|name| pod(name).is_some())),
        WaitReason::StandbyJoining => Some(all(&|name| stays(name).is_some_and(|pod| !serves(lease, pod)))),
        WaitReason::PrimaryTakeover => Some(!leads(named)),
        WaitReason::PrimaryStart => Some(stays(named).is_some() && !leads(named)),
        WaitReason::FirstDatabase => {
            Some(stays(named).is_some() && lease.is_some_and(|lease| lease.system_id.is_none()))
        }
        WaitReason::WakeUp => Some(scene.spec.hibernated),
        WaitReason::PodCreation if !named.is_empty() => Some(stays(named).is_none()),
        _ => None,
    }
}

fn holder(lease: &LeaseRecord) -> Option<&str> {
    let holder = lease.holder.as_ref()?;
    Some(holder.incarnation.pod_uid.as_str())
}

/// True if its holder has opened.
fn opened(lease: Option<&LeaseRecord>) -> bool {
    let holder = lease.and_then(|lease| lease.holder.as_ref());
    holder.is_some_and(|holder| holder.serving)
}

/// True if it is ready, and reports that it streams, or that it is the primary and the Lease names it.
fn serves(lease: Option<&LeaseRecord>, pod: &Pod) -> bool {
    let state = lease.and_then(|lease| Some(lease.members.get(&pod.name)?.state));
    let holds = lease.and_then(holder) == Some(pod.uid.as_str());
    let role = state == Some(MemberState::Streaming) || state == Some(MemberState::Primary) && holds;
    pod.ready && !pod.terminating && role
}
