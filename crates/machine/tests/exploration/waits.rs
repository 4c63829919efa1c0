//! Whether what the operator says it waits for is so in the world (invariant 31). Its words are read here, and compared with
//! pods and the Lease: none of the operator's facts are asked.

use machine::cluster::testing::World;
use machine::cluster::{Pod, Waiting};
use machine::protocol::{LeaseRecord, MemberState};

/// Whether it is so; `None`: of this wait nothing is read here.
pub fn is_so(world: &World, waiting: &Waiting) -> Option<bool> {
    let scene = &world.scene;
    let what = waiting.what.as_ref();
    let pod = |name: &str| scene.pods().iter().find(|pod| pod.name == name);
    let stays = |name: &str| pod(name).filter(|pod| !pod.terminating);
    let lease = scene.observed.lease.get().and_then(Option::as_ref);
    let holds = |name: &str| lease.is_some_and(|lease| holder(lease) == pod(name).map(|pod| pod.uid.as_str()));
    let leads = |name: &str| holds(name) && opened(lease) && stays(name).is_some_and(|pod| pod.ready);
    let all = |names: &str, so: &dyn Fn(&str) -> bool| names.split(", ").all(so);
    if waiting.resting {
        let wanted = usize::try_from(scene.spec.replicas).unwrap_or(0);
        return Some(scene.pods().len() == wanted && scene.pods().iter().all(|pod| serves(lease, pod)));
    }
    if let Some(primary) = what.split_once("a primary to serve").map(|(_, rest)| rest) {
        let (_, stands) = primary.split_once(": ")?;
        let (name, rest) = stands.split_once(' ')?;
        return match rest {
            "holds the Lease and does not serve yet" => Some(holds(name) && stays(name).is_some() && !opened(lease)),
            "holds the Lease and is not ready" => Some(holds(name) && stays(name).is_some_and(|pod| !pod.ready)),
            "holds the Lease and is going away" => Some(holds(name) && stays(name).is_none() && pod(name).is_some()),
            _ if rest.starts_with("has released the Lease") => lease.map(|lease| lease.holder.is_none()),
            _ => None,
        };
    }
    if let Some(names) = what.strip_suffix(" to be gone") {
        return Some(all(names, &|name| pod(name.trim_start_matches("pod ")).is_some()));
    }
    if let Some(names) = what.strip_suffix(" to stream from the primary") {
        return Some(all(names, &|name| stays(name).is_some_and(|pod| !serves(lease, pod))));
    }
    if let Some(name) = what.strip_suffix(" to take over as primary") {
        return Some(!leads(name));
    }
    if let Some(name) = what.strip_suffix(" to make the first database") {
        return Some(stays(name).is_some() && lease.is_some_and(|lease| lease.system_id.is_none()));
    }
    if let Some(name) = what
        .strip_suffix(" to serve")
        .and_then(|what| what.strip_prefix("the primary "))
    {
        return Some(stays(name).is_some() && !leads(name));
    }
    match what {
        "spec.hibernated to be false" => Some(scene.spec.hibernated),
        _ => {
            let name = what.strip_prefix("pod ").filter(|name| !name.contains(' '))?;
            Some(stays(name).is_none())
        }
    }
}

fn holder(lease: &LeaseRecord) -> Option<&str> {
    let holder = lease.holder.as_ref()?;
    Some(holder.incarnation.pod_uid.as_str())
}

/// Its holder has let applications in.
fn opened(lease: Option<&LeaseRecord>) -> bool {
    let holder = lease.and_then(|lease| lease.holder.as_ref());
    holder.is_some_and(|holder| holder.serving)
}

/// It is ready, and says that it streams, or that it is the primary and the Lease names it.
fn serves(lease: Option<&LeaseRecord>, pod: &Pod) -> bool {
    let state = lease.and_then(|lease| Some(lease.members.get(&pod.name)?.state));
    let holds = lease.and_then(holder) == Some(pod.uid.as_str());
    let role = state == Some(MemberState::Streaming) || state == Some(MemberState::Primary) && holds;
    pod.ready && !pod.terminating && role
}
