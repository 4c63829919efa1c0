//! The members' pods.

use std::collections::BTreeSet;

use api::names::{
    ANNOTATION_BASE_REVISION, ANNOTATION_RESIZING, ANNOTATION_REVISION, CONTAINER, LABEL_ROLE, Names,
    TERMINATION_BOOTSTRAP, WAL_VOLUME,
};
use api::{ClusteredDatabase, moment};
use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod as KubePod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use machine::cluster::{ChildKind, ImageError, Pod, Resizing, Trouble};

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

/// The API server takes a token for good for 10 s after it has looked it up, and clocks of nodes differ. Who renews the Lease
/// later than this after its ServiceAccount was made again has got a new token: the kubelet asks for one, by the
/// ServiceAccount's name, when four fifths of the hour that a token lasts are over.
const TOKEN_REMEMBERED: TimeDelta = TimeDelta::seconds(30);

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
    if let Some(identity) = identity_since(caches, key) {
        // A token is bound to the UID of its ServiceAccount: with one that was made again since, the API server knows the
        // agents in these pods no more. So they count as made from an older template, too.
        let older = |pod: &Pod| pod.created < identity;
        let renewed = renewed(caches, key);
        let refreshed = renewed.is_some_and(|(holder, at)| {
            at > identity + TOKEN_REMEMBERED && pods.iter().any(|pod| older(pod) && pod.uid == holder)
        });
        for pod in pods.iter_mut().filter(|pod| older(pod)) {
            (pod.revision, pod.base_revision, pod.token_void) = (None, None, !refreshed);
        }
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
        .get(key, &crate::desired::name(&key.name, ChildKind::Lease))??;
    let at = lease.spec.as_ref()?.renew_time.as_ref()?.0;
    let holder = machine::lease_object::read(&lease).ok()?.holder?;
    Some((holder.incarnation.pod_uid, time(&Time(at))))
}

/// When the agents' ServiceAccount was made.
fn identity_since(caches: &Caches, key: &Key) -> Option<DateTime<Utc>> {
    let account = caches
        .service_accounts
        .get(key, &crate::desired::name(&key.name, ChildKind::ServiceAccount))??;
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
        token_void: false,
        image_error: image_error(status, &uid, memory, now),
        trouble: trouble(status, now).or(told).filter(|_| ready.is_none()),
        bootstrap_error: bootstrap_error(status),
        name,
        uid,
    })
}

/// The claim that is the WAL volume of such a pod.
pub(super) fn wal_claim(spec: &PodSpec) -> Option<String> {
    let mut volumes = spec.volumes.iter().flatten();
    let volume = volumes.find(|volume| volume.name == WAL_VOLUME)?;
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
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::builders::fixture::smallest;

    fn observed(status: Value, memory: &mut Memory, now: DateTime<Utc>) -> Pod {
        observed_in(&Caches::default(), status, memory, now)
    }

    fn observed_in(caches: &Caches, status: Value, memory: &mut Memory, now: DateTime<Utc>) -> Pod {
        let pod = json!({
            "metadata": {"name": "db-1", "namespace": "ns", "uid": "u", "resourceVersion": "5",
                "creationTimestamp": "2027-01-01T00:00:00Z",
                "labels": {"clustereddatabase.io/cluster": "db", "clustereddatabase.io/role": "replica"},
                "annotations": {"clustereddatabase.io/revision": "r", "clustereddatabase.io/base-revision": "b"}},
            "spec": {"nodeName": "n1", "containers": []},
            "status": status,
        });
        caches.pods.observe(Event::Init);
        caches
            .pods
            .observe(Event::InitApply(serde_json::from_value(pod).unwrap()));
        caches.pods.observe(Event::InitDone);
        let key = Key {
            namespace: "ns".to_owned(),
            name: "db".to_owned(),
        };
        pods(caches, &key, &smallest(), memory, now).unwrap().remove(0)
    }

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[test]
    fn a_ready_pod() {
        let now = at("2027-01-01T00:01:00Z");
        let pod = observed(
            json!({"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2027-01-01T00:00:20Z"}]}),
            &mut Memory::default(),
            now,
        );
        assert!(pod.ready && !pod.terminating);
        assert_eq!(pod.ready_since, Some(at("2027-01-01T00:00:20Z")));
        assert_eq!(
            (pod.ordinal, pod.node.as_deref(), pod.role.as_deref()),
            (1, Some("n1"), Some("replica"))
        );
        assert_eq!(
            (pod.revision.as_deref(), pod.created),
            (Some("r"), at("2027-01-01T00:00:00Z"))
        );
        assert_eq!((pod.base_revision.as_deref(), pod.resizing), (Some("b"), None));
    }

    #[test]
    fn the_note_of_a_resize_is_read_as_it_is_written() {
        let since = at("2027-01-01T00:00:00.250Z");
        let noted = Resizing {
            to: "abc".to_owned(),
            since,
        };
        assert_eq!(resizing(&noted_as(&noted), since), noted);
        let before = since - TimeDelta::milliseconds(1);
        assert_eq!(resizing(&noted_as(&noted), before).to, "", "it is not that late yet");
        for text in [
            "nonsense",
            "abc yesterday",
            "abc +262142-12-31T23:59:59Z",
            "abc -262143-01-01T00:00:00Z",
        ] {
            assert_eq!(resizing(text, since).to, "", "{text} is about no revision");
        }
    }

    /// What is seen of a pod of 00:00:00 whose ServiceAccount was made then: its revision, and whether its token is void.
    fn with_identity(made: &str, lease: Option<(&str, &str)>) -> (Option<String>, bool) {
        let caches = Caches::default();
        let account = json!({"metadata": {"name": "db", "namespace": "ns", "uid": "a", "resourceVersion": "1",
            "creationTimestamp": made, "labels": {"clustereddatabase.io/cluster": "db"}}});
        caches.service_accounts.observe(Event::Init);
        caches
            .service_accounts
            .observe(Event::InitApply(serde_json::from_value(account).unwrap()));
        caches.service_accounts.observe(Event::InitDone);
        caches.leases.observe(Event::Init);
        if let Some((pod, renewed)) = lease {
            let holder =
                json!({"pod": "db-1", "podUid": pod, "run": "r", "member": "cdb_1_a_b", "address": "10.0.0.1"});
            let lease = json!({"metadata": {"name": "db", "namespace": "ns", "uid": "l", "resourceVersion": "1",
                "labels": {"clustereddatabase.io/cluster": "db"},
                "annotations": {api::names::LEASE_HOLDER: holder.to_string()}},
                "spec": {"holderIdentity": format!("db-1/{pod}/r/cdb_1_a_b"), "renewTime": renewed}});
            caches
                .leases
                .observe(Event::InitApply(serde_json::from_value(lease).unwrap()));
        }
        caches.leases.observe(Event::InitDone);
        let now = at("2027-01-01T00:01:00Z");
        let pod = observed_in(&caches, json!({}), &mut Memory::default(), now);
        (pod.revision, pod.token_void)
    }

    #[test]
    fn a_pod_that_is_older_than_its_identity_is_outdated() {
        assert_eq!(
            with_identity("2027-01-01T00:00:00Z", None),
            (Some("r".to_owned()), false)
        );
        assert_eq!(with_identity("2027-01-01T00:00:30Z", None), (None, true));
    }

    #[test]
    fn a_holder_that_renews_long_after_its_identity_was_made_again_has_a_new_token() {
        let seen = |pod: &str, renewed: &str| with_identity("2027-01-01T00:00:10Z", Some((pod, renewed)));
        let outdated = |void| (None, void);
        assert_eq!(
            seen("u", "2027-01-01T00:00:40.000000Z"),
            outdated(true),
            "its token may be remembered"
        );
        assert_eq!(seen("u", "2027-01-01T00:00:41.000000Z"), outdated(false));
        assert_eq!(
            seen("v", "2027-01-01T00:00:41.000000Z"),
            outdated(true),
            "a new pod says nothing of it"
        );
    }

    #[test]
    fn an_image_fault_counts_from_when_it_was_first_seen() {
        let fault = |reason: &str, message: &str| {
            json!({"containerStatuses": [{
                "name": "postgres", "image": "nowhere/pg:1", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": reason, "message": message}},
            }]})
        };
        let waiting = fault("ImagePullBackOff", "back-off");
        let mut memory = Memory::default();
        let (first, later) = (at("2027-01-01T00:01:00Z"), at("2027-01-01T00:02:00Z"));
        assert_eq!(
            observed(waiting.clone(), &mut memory, first).image_error.unwrap().since,
            first
        );
        let pulling = fault("ErrImagePull", "no such image");
        for status in [pulling, waiting.clone()] {
            let again = observed(status, &mut memory, later).image_error.unwrap();
            assert_eq!((again.since, again.image.as_str()), (first, "nowhere/pg:1"));
            assert_eq!(
                (again.reason.as_str(), again.message.as_str()),
                ("ErrImagePull", "no such image")
            );
        }
        assert_eq!(observed(json!({}), &mut memory, later).image_error, None);
        assert_eq!(
            observed(waiting, &mut memory, later).image_error.unwrap().since,
            later,
            "it had gone away"
        );
    }

    #[test]
    fn only_a_container_that_postgresql_needs_keeps_it_from_running() {
        let container = |name: &str, state: Value| json!({"name": name, "image": name, "imageID": "", "ready": false, "restartCount": 0, "state": state});
        let bad = || json!({"waiting": {"reason": "ErrImagePull"}});
        let faulty = |before: Value, postgres: Value, beside: Value| {
            let status = json!({
                "initContainerStatuses": [container("before", before)],
                "containerStatuses": [container("beside", beside), container("postgres", postgres)],
            });
            let now = at("2027-01-01T00:01:00Z");
            let error = observed(status, &mut Memory::default(), now).image_error;
            error.map(|error| error.image)
        };
        let running = || json!({"running": {}});
        let waiting = || json!({"waiting": {"reason": "PodInitializing"}});
        assert_eq!(faulty(json!({}), running(), bad()), None, "what was injected beside it");
        assert_eq!(faulty(json!({}), bad(), running()).as_deref(), Some("postgres"));
        assert_eq!(faulty(bad(), waiting(), waiting()).as_deref(), Some("before"));
        assert_eq!(faulty(bad(), running(), running()), None, "it has got by");
    }

    #[test]
    fn a_failed_bootstrap_is_what_the_agent_said_of_it() {
        let status = |state: Value, last: Value| {
            json!({"containerStatuses": [{"name": "postgres", "image": "i", "imageID": "", "ready": false,
                                          "restartCount": 1, "state": state, "lastState": last}]})
        };
        let ended = |message: &str| json!({"terminated": {"exitCode": 1, "message": message}});
        let now = at("2027-01-01T00:01:00Z");
        let failed = format!("{TERMINATION_BOOTSTRAP}syntax error");
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let of = |state: Value, last: Value| observed(status(state, last), &mut Memory::default(), now).bootstrap_error;
        assert_eq!(of(waiting.clone(), ended(&failed)).as_deref(), Some("syntax error"));
        assert_eq!(of(waiting, ended("killed")), None);
        assert_eq!(of(json!({"running": {}}), ended(&failed)), None);
        assert_eq!(of(ended(&failed), json!({})).as_deref(), Some("syntax error"));
        let pod = observed(
            status(json!({"waiting": {}}), ended("killed")),
            &mut Memory::default(),
            now,
        );
        assert_eq!((pod.restarts, pod.unstarted), (1, false));
        assert!(observed(json!({}), &mut Memory::default(), now).unstarted);
    }

    #[test]
    fn why_a_container_does_not_stay_up_is_told_in_the_same_words_between_its_starts() {
        let now = at("2027-01-01T00:01:00Z");
        let seen = |restarts: u32, state: Value, last: Value| {
            let container = json!({"name": "postgres", "image": "i", "imageID": "", "ready": false,
                                   "restartCount": restarts, "state": state, "lastState": last});
            let status = json!({"containerStatuses": [container]});
            observed(status, &mut Memory::default(), now)
                .trouble
                .map(|trouble| (trouble.reason, trouble.message))
        };
        let ended = |reason: &str, code: i32, at: &str| {
            let times = json!({"exitCode": code, "reason": reason, "finishedAt": at, "message": "last words\n"});
            json!({"terminated": times})
        };
        let killed = || ended("OOMKilled", 137, "2027-01-01T00:00:50Z");
        let told = |before: &str, times: u32| {
            let how = "OOMKilled, exit code 137";
            let words = format!("{before}container postgres has ended {times} times, last with {how}: last words");
            Some((how.to_owned(), words))
        };
        let backs_off = || json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
        assert_eq!(seen(1, killed(), json!({})), told("", 2));
        assert_eq!(seen(1, backs_off(), killed()), told("CrashLoopBackOff: ", 2));
        assert_eq!(
            seen(2, json!({"running": {}}), killed()),
            told("", 2),
            "it was started again just now"
        );
        let long_ago = ended("Error", 1, "2026-12-31T23:50:00Z");
        assert_eq!(seen(2, json!({"running": {}}), long_ago), None, "it stays up since");
        let well = || ended("Completed", 0, "2027-01-01T00:00:50Z");
        assert_eq!(seen(0, json!({"running": {}}), well()), None);
        let reason = seen(3, backs_off(), well()).map(|(reason, _)| reason);
        assert_eq!(
            reason.as_deref(),
            Some("Completed, exit code 0"),
            "it ends again and again"
        );
        let secret = "secret \"x\" not found";
        let refused = json!({"waiting": {"reason": "CreateContainerConfigError", "message": secret}});
        let words = format!("container postgres: CreateContainerConfigError: {secret}");
        assert_eq!(
            seen(0, refused, json!({})),
            Some(("CreateContainerConfigError".to_owned(), words))
        );
        for usual in ["ContainerCreating", "ImagePullBackOff"] {
            assert_eq!(
                seen(0, json!({"waiting": {"reason": usual}}), json!({})),
                None,
                "{usual}"
            );
        }
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [{
            "name": "postgres", "image": "i", "imageID": "", "ready": true, "restartCount": 1,
            "state": {"running": {}}, "lastState": killed()}]});
        assert_eq!(observed(ready, &mut Memory::default(), now).trouble, None);
    }

    #[test]
    fn a_pod_in_which_nothing_was_started_is_in_the_trouble_that_its_events_tell() {
        let starting = |node: Value, state: Value| {
            let status = json!({"containerStatuses": [{"name": "postgres", "image": "i", "imageID": "", "ready": false,
                                                       "restartCount": 0, "state": state}]});
            let pod = json!({"metadata": {}, "spec": {"nodeName": node, "containers": []}, "status": status});
            is_starting(&serde_json::from_value(pod).unwrap())
        };
        let waits = |reason: &str| json!({"waiting": {"reason": reason}});
        assert!(starting(json!("n1"), waits("ContainerCreating")) && starting(json!("n1"), json!({})));
        assert!(!starting(Value::Null, json!({})) && !starting(json!("n1"), waits("ErrImagePull")));
        assert!(!starting(json!("n1"), json!({"running": {}})));
        let told = Trouble {
            reason: "FailedMount".to_owned(),
            message: "FailedMount: no such volume".to_owned(),
        };
        let mut memory = Memory::default();
        memory.starting.insert("u".to_owned(), Some(told.clone()));
        let pod = observed(json!({}), &mut memory, at("2027-01-01T00:01:00Z"));
        assert_eq!(pod.trouble, Some(told));
    }

    #[test]
    fn what_the_scheduler_says() {
        let status = json!({"conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]});
        let pod = observed(status, &mut Memory::default(), at("2027-01-01T00:01:00Z"));
        assert_eq!(pod.unschedulable.as_deref(), Some("0/3 nodes"));
    }
}
