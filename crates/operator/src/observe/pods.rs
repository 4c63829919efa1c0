//! The members' pods.

use std::collections::BTreeSet;

use api::names::{
    ANNOTATION_BASE_REVISION, ANNOTATION_RESIZING, ANNOTATION_REVISION, CONTAINER, LABEL_ROLE, Names,
    TERMINATION_BOOTSTRAP, WAL_VOLUME, parse_volume,
};
use api::{ClusteredDatabase, moment};
use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod as KubePod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use machine::cluster::{ImageError, OwnedObject, Pod, Resizing, Trouble, mark_revoked};

use super::resources::resources;
use super::time;
use crate::cache::Key;
use crate::caches::Caches;
use crate::memory::Memory;

/// The kubelet's reasons for a container that cannot start because of its image.
const IMAGE_REASONS: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "RunContainerError",
    "CreateContainerError",
];

/// The kubelet's reasons for a container that is on its way.
const ON_ITS_WAY: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Its reason for one that ended, and is not started again at once.
const BACKS_OFF: &str = "CrashLoopBackOff";

/// A container that has run for so long is started again at once if it ends: the kubelet forgets the ends before.
const STAYS_UP: TimeDelta = TimeDelta::minutes(10);

/// The kubelet waits before it pulls again.
const WAITING: &str = "ImagePullBackOff";

/// The database's pods, in order of ordinal.
pub fn pods(
    caches: &Caches,
    key: &Key,
    db: &ClusteredDatabase,
    memory: &mut Memory,
    now: DateTime<Utc>,
) -> Option<Vec<Pod>> {
    let names = Names::new(&key.name);
    let mut pods: Vec<_> = caches
        .pods
        .list(key)?
        .iter()
        .filter_map(|pod| {
            Some(Pod {
                resources: resources(pod, db.spec.resources.as_ref()),
                ..self::pod(&names, pod, memory, now)?
            })
        })
        .collect();
    pods.sort_by_key(|pod| pod.ordinal);
    if let Some(account_made) = identity_since(caches, key) {
        mark_revoked(&mut pods, account_made, renewed(caches, key));
    }
    let present: BTreeSet<_> = pods
        .iter()
        .filter(|pod| pod.image_error.is_some())
        .map(|pod| &pod.uid)
        .collect();
    memory.image_faults.retain(|(uid, _), _| present.contains(uid));
    Some(pods)
}

/// The addresses of the database's pods.
pub fn addresses(caches: &Caches, key: &Key) -> Option<BTreeSet<String>> {
    let pods = caches.pods.list(key)?;
    let all = pods.iter().filter_map(|pod| pod.status.as_ref()).flat_map(|status| {
        let more = status.pod_ips.iter().flatten().map(|address| address.ip.clone());
        more.chain(status.pod_ip.clone())
    });
    Some(all.collect())
}

/// Who holds the Lease (its pod's UID), and when it was renewed last.
fn renewed(caches: &Caches, key: &Key) -> Option<(String, DateTime<Utc>)> {
    let lease = caches
        .leases
        .get(key, &crate::desired::name(&key.name, OwnedObject::Lease))??;
    let at = lease.spec.as_ref()?.renew_time.as_ref()?.0;
    let holder = machine::lease_object::read(&lease).ok()?.holder?;
    Some((holder.incarnation.pod_uid, time(&Time(at))))
}

/// When the agents' ServiceAccount was made.
fn identity_since(caches: &Caches, key: &Key) -> Option<DateTime<Utc>> {
    let account = caches
        .service_accounts
        .get(key, &crate::desired::name(&key.name, OwnedObject::ServiceAccount))??;
    account.metadata.creation_timestamp.as_ref().map(time)
}

fn pod(names: &Names, pod: &KubePod, memory: &mut Memory, now: DateTime<Utc>) -> Option<Pod> {
    let name = pod.metadata.name.clone()?;
    let uid = pod.uid()?;
    let empty = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&empty);
    let condition = |kind: &str| {
        status
            .conditions
            .iter()
            .flatten()
            .find(|condition| condition.type_ == kind)
    };
    let unschedulable = condition("PodScheduled")
        .filter(|condition| condition.status == "False" && condition.reason.as_deref() == Some("Unschedulable"))
        .map(|condition| condition.message.clone().unwrap_or_else(|| "no node fits".to_owned()));
    let ready = condition("Ready").filter(|condition| condition.status == "True");
    let told = memory.starting.get(&uid).cloned().flatten();
    Some(Pod {
        ordinal: names.ordinal(&name)?,
        resource_version: pod.resource_version()?,
        created: pod.metadata.creation_timestamp.as_ref().map_or(now, time),
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        unschedulable,
        ready: ready.is_some(),
        ready_since: ready
            .and_then(|condition| condition.last_transition_time.as_ref())
            .map(time),
        unstarted: !container(status).is_some_and(has_started),
        restarts: container(status).map_or(0, |postgres| u32::try_from(postgres.restart_count).unwrap_or(0)),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        revision: pod.annotations().get(ANNOTATION_REVISION).cloned(),
        base_revision: pod.annotations().get(ANNOTATION_BASE_REVISION).cloned(),
        wal_claim: pod.spec.as_ref().and_then(wal_claim),
        resizing: pod
            .annotations()
            .get(ANNOTATION_RESIZING)
            .map(|text| resizing(text, now)),
        resources: machine::cluster::Resources::default(),
        role: pod.labels().get(LABEL_ROLE).cloned(),
        token_revoked: false,
        image_error: image_error(status, &uid, memory, now),
        trouble: trouble(status, now).or(told).filter(|_| ready.is_none()),
        bootstrap_error: bootstrap_error(status),
        name,
        uid,
    })
}

/// Whether a pod's volume of this name is a WAL volume.
pub fn is_wal(volume: &str) -> bool {
    parse_volume(volume).is_some_and(|(of, _)| of == WAL_VOLUME)
}

/// The claim that is the WAL volume of such a pod.
pub(super) fn wal_claim(spec: &PodSpec) -> Option<String> {
    let mut volumes = spec.volumes.iter().flatten();
    let volume = volumes.find(|volume| is_wal(&volume.name))?;
    Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone())
}

/// What [`ANNOTATION_RESIZING`] says. Whoever may change pods writes what he likes there: without a time that has passed it is
/// about no revision, and is written again.
fn resizing(text: &str, now: DateTime<Utc>) -> Resizing {
    let (to, since) = text.split_once(' ').unwrap_or_default();
    let since = moment::parse_past(since, now);
    Resizing {
        to: since.map_or("", |_| to).to_owned(),
        since: since.unwrap_or_default(),
    }
}

/// How [`ANNOTATION_RESIZING`] is written.
pub fn noted_as(resizing: &Resizing) -> String {
    format!("{} {}", resizing.to, resizing.since.to_rfc3339())
}

/// The containers without which PostgreSQL does not run: its own, and until that has started once those before it. What
/// others put into the pod says nothing of it.
fn needed(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let postgres = container(status);
    let before = status.init_container_statuses.iter().flatten();
    before
        .filter(move |_| !postgres.is_some_and(has_started))
        .chain(postgres)
}

/// It runs, or has run.
fn has_started(container: &ContainerStatus) -> bool {
    let mut states = [&container.state, &container.last_state].into_iter().flatten();
    container.restart_count > 0 || states.any(|state| state.running.is_some() || state.terminated.is_some())
}

/// PostgreSQL's.
fn container(status: &PodStatus) -> Option<&ContainerStatus> {
    let mut containers = status.container_statuses.iter().flatten();
    containers.find(|container| container.name == CONTAINER)
}

fn image_error(status: &PodStatus, uid: &str, memory: &mut Memory, now: DateTime<Utc>) -> Option<ImageError> {
    let (container, waiting, reason) = needed(status).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting
            .reason
            .clone()
            .filter(|reason| IMAGE_REASONS.contains(&reason.as_str()))?;
        Some((container, waiting, reason))
    })?;
    let message = waiting.message.clone().unwrap_or_default();
    let seen = ImageError {
        reason,
        image: container.image.clone(),
        message,
        since: now,
    };
    let known = memory
        .image_faults
        .entry((uid.to_owned(), container.image.clone()))
        .or_insert_with(|| seen.clone());
    // The kubelet changes between trying (with the registry's words) and waiting (without): one fault, told once, and in
    // the registry's words as soon as these are known.
    if known.reason == WAITING && seen.reason != WAITING {
        *known = ImageError {
            since: known.since,
            ..seen
        };
    }
    Some(known.clone())
}

/// A node's kubelet has this pod, and has started no container in it yet: it may wait for volumes or the network, and says so
/// only by events.
pub fn is_starting(pod: &KubePod) -> bool {
    let has_node = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let status = pod.status.iter();
    let mut containers = status.flat_map(|status| {
        let before = status.init_container_statuses.iter().flatten();
        before.chain(status.container_statuses.iter().flatten())
    });
    let comes = |container: &ContainerStatus| {
        let state = container.state.clone().unwrap_or_default();
        let reason = state.waiting.and_then(|waiting| waiting.reason);
        let began = state.running.is_some() || state.terminated.is_some() || container.restart_count > 0;
        !began && reason.is_none_or(|reason| ON_ITS_WAY.contains(&reason.as_str()))
    };
    has_node && pod.metadata.deletion_timestamp.is_none() && containers.all(comes)
}

/// What the kubelet says of the first container that does not run, or does not stay up.
fn trouble(status: &PodStatus, now: DateTime<Utc>) -> Option<Trouble> {
    needed(status).find_map(|container| trouble_of(container, now))
}

fn trouble_of(container: &ContainerStatus, now: DateTime<Utc>) -> Option<Trouble> {
    let name = &container.name;
    let state = container.state.as_ref();
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let reason = waiting
        .and_then(|waiting| waiting.reason.as_deref())
        .unwrap_or_default();
    let usual = |reason: &str| reason.is_empty() || ON_ITS_WAY.contains(&reason) || IMAGE_REASONS.contains(&reason);
    if !usual(reason) && reason != BACKS_OFF {
        let words = waiting
            .and_then(|waiting| waiting.message.as_deref())
            .unwrap_or_default();
        return Some(Trouble {
            reason: reason.to_owned(),
            message: format!("container {name}: {reason}: {words}"),
        });
    }
    let runs = state.is_some_and(|state| state.running.is_some());
    let ended = |state: &k8s_openapi::api::core::v1::ContainerState| state.terminated.clone();
    let last = state
        .and_then(ended)
        .or_else(|| container.last_state.as_ref().and_then(ended))?;
    let lately = last.finished_at.as_ref().is_none_or(|at| now - time(at) < STAYS_UP);
    if last.exit_code == 0 && reason != BACKS_OFF || runs && !lately {
        return None;
    }
    Some(Trouble {
        reason: how_it_ended(&last),
        message: ends(container, &last, reason, runs),
    })
}

fn how_it_ended(last: &ContainerStateTerminated) -> String {
    let reason = last.reason.as_deref().unwrap_or("Error");
    format!("{reason}, exit code {}", last.exit_code)
}

/// How many times a container has ended, how, and its last words.
fn ends(container: &ContainerStatus, last: &ContainerStateTerminated, reason: &str, runs: bool) -> String {
    let times = container.restart_count.saturating_add(i32::from(!runs));
    let before = if reason.is_empty() {
        String::new()
    } else {
        format!("{reason}: ")
    };
    let words = last.message.as_deref().map(str::trim).filter(|words| !words.is_empty());
    format!(
        "{before}container {} has ended {times} times, last with {}{}",
        container.name,
        how_it_ended(last),
        words.map_or(String::new(), |words| format!(": {words}"))
    )
}

fn bootstrap_error(status: &PodStatus) -> Option<String> {
    let postgres = container(status)?;
    let states = [postgres.state.as_ref(), postgres.last_state.as_ref()];
    let messages = states
        .into_iter()
        .flatten()
        .filter_map(|state| state.terminated.as_ref()?.message.as_deref());
    // Only a container that is not running: one that runs has got over it.
    let running = postgres.state.as_ref().is_some_and(|state| state.running.is_some());
    messages
        .filter_map(|message| message.strip_prefix(TERMINATION_BOOTSTRAP))
        .map(str::to_owned)
        .find(|_| !running)
}

#[cfg(test)]
mod tests;
