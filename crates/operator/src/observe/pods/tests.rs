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
    let key = Key::database("ns", "db");
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
        let holder = json!({"pod": "db-1", "podUid": pod, "run": "r", "member": "cdb_1_a_b", "address": "10.0.0.1"});
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
    (pod.revision, pod.token_revoked)
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
