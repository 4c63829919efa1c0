use std::net::IpAddr;

use api::declared::DeclaredPhase;
use chrono::{DateTime, Utc};
use proptest::prelude::*;
use serde_json::json;

use super::pause::{Asked, Calls, LONGEST, Pause, REST, pauses};
use super::pod::{self, Action as Do, Paused, Process, Stop, digest};
use super::settings::{Places, Server, configuration};
use super::*;
use crate::access::{Published, Report};
use crate::cluster::Known;
use crate::declaration::{Credentials, Decision};
use crate::protocol::{PoolerReply, PoolerRequest};
use crate::reconcile::Controller;
use crate::timing::BootTime;
use crate::units::Millis;

fn now() -> DateTime<Utc> {
    "2027-01-01T00:00:00Z".parse().unwrap()
}

fn spec(more: &serde_json::Value) -> PoolerSpec {
    let mut spec = json!({"clusterRef": {"name": "shop"}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(spec).unwrap()
}

fn wanted<'a>(spec: &'a PoolerSpec, name: &'a str) -> Wanted<'a, PoolerSpec> {
    Wanted {
        name,
        uid: "u1",
        generation: 3,
        deleting: false,
        finalizer: true,
        spec,
    }
}

/// All is done.
fn observed(spec: &PoolerSpec) -> Observed {
    let published = Published {
        at: now(),
        declared: Pooler::declared(&wanted(spec, "pool")),
    };
    let report = Report {
        of: now(),
        ..Report::default()
    };
    Observed {
        cluster: Known::Known(Some(Cluster {
            connections: Some(92),
            ..Cluster::default()
        })),
        older: Known::Known(None),
        credentials: Credentials::NotNeeded,
        published: Known::Known(Some(published)),
        report: Known::Known(Some(report)),
        has_reports: true,
        foreign: None,
        parts: Parts::Current,
        instances: Some(Instances {
            all: 2,
            ready: 2,
            updated: 2,
        }),
        certificate: None,
        faults: Default::default(),
    }
}

fn decided(spec: &PoolerSpec, name: &str, observed: &Observed) -> Decision {
    Pooler::decide(&wanted(spec, name), observed, &PoolerStatus::default(), now())
}

#[test]
fn it_is_ready_when_its_role_its_objects_and_its_pods_are_there() {
    let spec = spec(&json!({}));
    let ready = observed(&spec);
    let decision = decided(&spec, "pool", &ready);
    assert_eq!(
        (decision.phase, decision.message.as_str()),
        (DeclaredPhase::Ready, "2 pods take clients")
    );
    let status = Pooler::status(
        &wanted(&spec, "pool"),
        &ready,
        &PoolerStatus::default(),
        &decision,
        &(),
        now(),
    );
    assert_eq!((status.replicas, status.ready_replicas), (Some(2), Some(2)));
    assert_eq!(status.selector.as_deref(), Some("clustereddatabase.io/pooler=pool"));
    let sizing = status.sizing.unwrap();
    assert_eq!((sizing.possible_server_connections, sizing.available), (60, Some(92)));

    type Lack = fn(&mut Observed);
    let lacks: [(Lack, &str); 6] = [
        (|seen| seen.report = Known::Known(None), "waiting for the primary"),
        (|seen| seen.parts = Parts::Unknown, "waiting for its objects"),
        (|seen| seen.instances = None, "waiting for its Deployment"),
        (
            |seen| seen.instances.as_mut().unwrap().ready = 1,
            "1 of 2 pods take clients",
        ),
        (
            |seen| seen.instances.as_mut().unwrap().updated = 1,
            "1 of 2 pods are as the spec",
        ),
        (
            |seen| {
                seen.cluster = Known::Known(Some(Cluster {
                    idle: Some("it is hibernated".to_owned()),
                    ..Cluster::default()
                }));
            },
            "it has no pods while shop serves nobody: it is hibernated",
        ),
    ];
    for (lack, words) in lacks {
        let mut seen = ready.clone();
        lack(&mut seen);
        let decision = decided(&spec, "pool", &seen);
        assert_eq!(
            (decision.phase, &decision.action),
            (DeclaredPhase::Pending, &Action::Wait),
            "{words}"
        );
        assert!(decision.message.contains(words), "{}", decision.message);
    }
}

#[test]
fn objects_are_made_and_others_left_alone() {
    let spec = spec(&json!({}));
    let mut seen = observed(&spec);
    seen.parts = Parts::Differ;
    assert_eq!(decided(&spec, "pool", &seen).action, Action::MakeParts);
    seen.parts = Parts::Foreign("Service pool".to_owned());
    let decision = decided(&spec, "pool", &seen);
    assert_eq!((decision.phase, decision.action), (DeclaredPhase::Failed, Action::Wait));
    assert!(
        decision.message.contains("there is a Service pool"),
        "{}",
        decision.message
    );
}

#[test]
fn a_pooler_that_does_not_fit_fails_and_nothing_is_made() {
    let (small, large) = (spec(&json!({})), spec(&json!({"limits": {"maxServerConnections": 93}})));
    for (spec, name, words) in [
        (
            &large,
            "pool",
            "limits.maxServerConnections is 93, and an instance of shop has 92",
        ),
        (&small, "shop", "has objects of the name shop"),
        (&small, "shop-rw", "has objects of the name shop-rw"),
        (&small, "shop-agent", "has objects of the name shop-agent"),
    ] {
        let mut seen = observed(spec);
        seen.parts = Parts::Differ;
        let decision = decided(spec, name, &seen);
        assert_eq!(
            (decision.phase, decision.action),
            (DeclaredPhase::Failed, Action::Wait),
            "{words}"
        );
        assert!(decision.message.contains(words), "{}", decision.message);
    }
    assert_eq!(
        decided(&small, "shop-pool", &observed(&small)).phase,
        DeclaredPhase::Ready
    );
}

#[test]
fn it_has_no_pods_while_its_cluster_has_none() {
    let spec = spec(&json!({"replicas": 3}));
    let idle = Cluster {
        idle: Some("it is hibernated".to_owned()),
        ..Cluster::default()
    };
    assert_eq!(
        (replicas(&spec, Some(&Cluster::default())), replicas(&spec, Some(&idle))),
        (3, 0)
    );
}

fn places() -> Places {
    Places {
        run: "/run/p".to_owned(),
        certificates: "/tls".to_owned(),
        port: 5432,
    }
}

fn line<'a>(text: &'a str, name: &str) -> &'a str {
    let found = text.lines().find_map(|line| line.strip_prefix(&format!("{name} = ")));
    found.unwrap_or_else(|| panic!("{name} in {text}"))
}

#[test]
fn the_configuration_follows_from_the_spec_and_the_server() {
    let address: IpAddr = "10.1.2.3".parse().unwrap();
    let server = Server::at(address, 5433, "shop-pods", "ns");
    assert_eq!(server.line().as_deref(), Some("10.1.2.3 10-1-2-3.shop-pods.ns.svc\n"));
    let spec = spec(&json!({
        "replicas": 3, "processes": 2, "poolMode": "Session",
        "limits": {"maxClientConnections": 1_001, "poolSize": 1, "maxServerConnections": 20},
        "parameters": {"query_wait_timeout": "7", "server_lifetime": "60"},
    }));
    let text = configuration(&spec, &server, &places(), 2, 2);
    assert!(
        text.contains("[databases]\n* = host=10-1-2-3.shop-pods.ns.svc port=5433\n"),
        "{text}"
    );
    for (name, value) in [
        ("pool_mode", "session"),
        ("max_client_conn", "500"),
        ("default_pool_size", "1"),
        ("max_db_connections", "3"),
        ("query_wait_timeout", "7"),
        ("server_lifetime", "60"),
        ("server_connect_timeout", "2"),
        ("peer_id", "2"),
        ("unix_socket_dir", "/run/p/2"),
        ("auth_user", "cdb_pooler"),
        ("auth_query", "SELECT role, verifier FROM cdb_pooler.lookup($1)"),
        ("server_tls_sslmode", "verify-full"),
        ("client_tls_sslmode", "require"),
    ] {
        assert_eq!(line(&text, name), value, "{name}");
    }
    assert!(
        text.ends_with("[peers]\n1 = host=/run/p/1 port=5432\n2 = host=/run/p/2 port=5432\n"),
        "{text}"
    );
    let standbys = Server::of_service("shop-ro", 5432, "ns");
    assert_eq!((standbys.line(), standbys.host.as_str()), (None, "shop-ro.ns.svc"));
}

fn up(read: Option<&pod::Wanted>) -> Process {
    Process::Up {
        read: read.map(digest),
        told: None,
        pause: None,
    }
}

fn one(host: &str) -> pod::Wanted {
    pod::Wanted {
        files: vec![format!("file of {host}")],
        server: Server::of_service(host, 5432, "ns"),
        certificates: "c1".to_owned(),
    }
}

#[test]
fn a_process_starts_with_written_files_and_reads_them_again_when_they_differ() {
    let (first, second) = (one("a"), one("b"));
    let down = Process::Down { since_ms: None };
    let mut seen = pod::Observed {
        processes: vec![down],
        drain_ms: 1_000,
        ..pod::Observed::default()
    };
    assert_eq!(pod::decide(&seen), Do::Wait(None), "there has been no primary");
    seen.wanted = Some(first.clone());
    assert_eq!(pod::decide(&seen), Do::Write);
    seen.written = Some(first.clone());
    assert_eq!((pod::decide(&seen), pod::is_ready(&seen)), (Do::Start(0), false));
    seen.processes = vec![up(Some(&first))];
    assert_eq!((pod::decide(&seen), pod::is_ready(&seen)), (Do::Wait(None), true));
    seen.wanted = Some(second.clone());
    assert_eq!(pod::decide(&seen), Do::Write);
    seen.written = Some(second.clone());
    assert_eq!(pod::decide(&seen), Do::Reload(0));
    seen.processes = vec![up(Some(&second))];
    // Other certificates in the same files.
    let renewed = pod::Wanted {
        certificates: "c2".to_owned(),
        ..second.clone()
    };
    (seen.wanted, seen.written) = (Some(renewed.clone()), Some(renewed));
    assert_eq!(pod::decide(&seen), Do::Reload(0));
    // What follows from an object that cannot be read now goes on as it is.
    seen.wanted = None;
    assert_eq!((pod::decide(&seen), pod::is_ready(&seen)), (Do::Wait(None), true));
    // One that ends by itself is not started over and over.
    seen.wanted = Some(second.clone());
    seen.written = Some(second);
    seen.processes = vec![Process::Down { since_ms: Some(400) }];
    assert_eq!(pod::decide(&seen), Do::Wait(Some(600)));
    seen.processes = vec![Process::Down { since_ms: Some(1_000) }];
    assert_eq!(pod::decide(&seen), Do::Start(0));
}

/// Runs a pod from the beginning of its termination. `leave`: when its clients do; `leaves`: with what a process ends. Returns when it
/// was told what.
fn stops(drain_ms: u64, leave: u64, leaves: Stop) -> Vec<(u64, Stop)> {
    let mut seen = pod::Observed {
        processes: vec![up(None), up(None)],
        drain_ms,
        ..pod::Observed::default()
    };
    let (mut told, mut at) = (Vec::new(), 0);
    loop {
        seen.stopping_ms = Some(at);
        seen.clients = Some(u64::from(at < leave));
        assert!(!pod::is_ready(&seen));
        match pod::decide(&seen) {
            Do::Stop(number, how) => {
                told.push((at, how));
                seen.processes[number] = match how >= leaves {
                    true => Process::Down { since_ms: Some(0) },
                    false => Process::Up {
                        read: None,
                        told: Some(how),
                        pause: None,
                    },
                };
            }
            // What clients do is noted twice a second.
            Do::Wait(next) => at += next.expect("a time, or else a process").min(500),
            Do::Exit => return told,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_pod_that_goes_lets_clients_finish_then_transactions() {
    let both = |at: u64, how: Stop| [(at, how), (at, how)];
    assert_eq!(
        stops(30_000, 0, Stop::AfterTransactions),
        both(3_000, Stop::AfterTransactions)
    );
    assert_eq!(
        stops(30_000, 8_200, Stop::AfterTransactions),
        both(8_500, Stop::AfterTransactions)
    );
    let all = [both(33_000, Stop::AfterTransactions), both(38_000, Stop::Now)];
    assert_eq!(stops(30_000, u64::MAX, Stop::Now), all.concat());
    assert_eq!(
        stops(0, u64::MAX, Stop::AfterTransactions),
        both(3_000, Stop::AfterTransactions)
    );
}

#[test]
fn a_pod_that_goes_follows_the_primary_and_pauses_as_others_do() {
    let (first, second) = (one("a"), one("b"));
    let mut seen = pod::Observed {
        wanted: Some(first.clone()),
        written: Some(first.clone()),
        processes: vec![up(Some(&first)), Process::Down { since_ms: None }],
        stopping_ms: Some(14_000),
        drain_ms: 10_000,
        clients: Some(3),
        pause_ms: Some(500),
    };
    assert!(pod::asks(&seen));
    assert_eq!(pod::decide(&seen), Do::Pause(0));
    let Process::Up { pause, .. } = &mut seen.processes[0] else {
        panic!()
    };
    *pause = Some(Paused::Wholly);
    assert_eq!(
        (pod::decide(&seen), pod::is_paused(&seen)),
        (Do::Wait(Some(500)), true),
        "its end is due"
    );
    (seen.wanted, seen.written) = (Some(second.clone()), Some(second.clone()));
    assert_eq!(
        (pod::decide(&seen), pod::asks(&seen)),
        (Do::Reload(0), false),
        "the next primary is asked later"
    );
    seen.pause_ms = None;
    assert_eq!(pod::decide(&seen), Do::Resume(0));
    seen.processes[0] = up(Some(&second));
    assert_eq!(
        (pod::decide(&seen), pod::asks(&seen)),
        (Do::Stop(0, Stop::AfterTransactions), true)
    );
}

fn process() -> impl Strategy<Value = Process> {
    let read = prop::option::of(prop::sample::select(vec!["a", "b"]));
    prop_oneof![
        prop::option::of(0..3_000_u64).prop_map(|since_ms| Process::Down { since_ms }),
        read.prop_map(|host| up(host.map(one).as_ref())),
    ]
}

proptest! {
    /// Whatever is there, a few steps bring every process to the wanted configuration, and nothing is done after that.
    #[test]
    fn a_pod_comes_to_rest(
        processes in prop::collection::vec(process(), 1..4),
        written in prop::option::of(prop::sample::select(vec!["a", "b"])),
    ) {
        let wanted = one("a");
        let mut seen = pod::Observed {
            wanted: Some(wanted.clone()),
            written: written.map(one),
            processes,
            ..pod::Observed::default()
        };
        for _ in 0..=2 * seen.processes.len() + 1 {
            match pod::decide(&seen) {
                Do::Write => seen.written = Some(wanted.clone()),
                Do::Start(number) | Do::Reload(number) => seen.processes[number] = up(seen.written.as_ref()),
                Do::Wait(Some(wait)) => {
                    prop_assert!(wait <= pod::AGAIN_MS);
                    for process in &mut seen.processes {
                        if let Process::Down { since_ms: Some(since) } = process {
                            *since += wait;
                        }
                    }
                }
                Do::Wait(None) => break,
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert_eq!(pod::decide(&seen), Do::Wait(None));
        prop_assert!(pod::is_ready(&seen));
        prop_assert!(seen.processes.iter().all(|process| *process == up(Some(&wanted))));
    }
}

fn asks(calls: &mut Calls, pod: &str, paused: bool, now: u64) -> PoolerReply {
    asks_of(calls, Asked::Stops, pod, paused, now)
}

fn asks_of(calls: &mut Calls, asked: Asked, pod: &str, paused: bool, now: u64) -> PoolerReply {
    let request = PoolerRequest {
        pod: pod.to_owned(),
        paused,
    };
    calls.answer(request, asked, BootTime(now))
}

#[test]
fn a_primary_waits_for_the_poolers_that_ask_and_not_for_long() {
    let mut calls = Calls::default();
    let at = BootTime;
    calls.announce(at(0));
    assert!(!calls.announces(at(0)), "nobody asks");
    calls.begin(at(0));
    assert!(!calls.waits(at(0)));
    // One that is gone, one that is there.
    asks(&mut calls, "gone", false, 1_000);
    asks(&mut calls, "there", false, 9_000);
    calls.announce(at(9_900));
    assert!(calls.announces(at(9_900)) && !calls.announces(at(9_900 + 1_500)));
    let reply = asks(&mut calls, "there", false, 10_000);
    assert_eq!((reply.pause_milliseconds, reply.soon, reply.serves), (None, true, true));
    assert!(!calls.announces(at(10_000)), "it has heard of it");
    // What it says of another pause does not count.
    asks(&mut calls, "there", true, 10_000);
    calls.begin(at(10_000));
    assert!(calls.waits(at(10_000)));
    let reply = asks(&mut calls, "there", false, 10_050);
    assert_eq!(reply.pause_milliseconds, Some(LONGEST.0 - 50));
    assert!(
        calls.waits(at(10_050)) && !calls.waits(at(12_000)),
        "a long transaction"
    );
    asks(&mut calls, "there", true, 10_100);
    assert!(!calls.waits(at(10_100)));
    assert_eq!(
        asks(&mut calls, "there", true, 10_000 + LONGEST.0).pause_milliseconds,
        None
    );
    // It has stopped, and does not serve yet; then it does.
    calls.announce(at(20_000));
    calls.begin(at(20_000));
    let reply = asks_of(&mut calls, Asked::Away, "there", true, 20_500);
    assert_eq!(
        (reply.pause_milliseconds, reply.soon, reply.serves),
        (Some(LONGEST.0 - 500), false, false)
    );
    let reply = asks_of(&mut calls, Asked::Serves, "there", true, 20_600);
    assert_eq!(
        (reply.pause_milliseconds, reply.soon, reply.serves),
        (None, false, true)
    );
    assert_eq!(asks(&mut calls, "there", true, 20_601).pause_milliseconds, None);
}

#[test]
fn a_pause_ends_when_a_primary_serves_that_wants_none() {
    let reply = |pause_milliseconds, serves| PoolerReply {
        pause_milliseconds,
        soon: false,
        serves,
    };
    let mut pause = Pause::default();
    pause.told(&reply(None, true), BootTime(0));
    assert_eq!(
        (pause.left(BootTime(0)), pause.asks_after(BootTime(0))),
        (None, Millis(1_000))
    );
    let soon = PoolerReply {
        soon: true,
        ..reply(None, true)
    };
    pause.told(&soon, BootTime(0));
    assert_eq!(
        (pause.asks_after(BootTime(0)), pause.asks_after(BootTime(2_000))),
        (Millis(50), Millis(1_000))
    );
    pause.told(&reply(Some(600), true), BootTime(1_000));
    pause.told(&reply(None, false), BootTime(1_400));
    assert_eq!(
        pause.left(BootTime(1_400)),
        Some(Millis(200)),
        "the next primary does not serve yet"
    );
    pause.told(&reply(None, true), BootTime(1_500));
    assert_eq!(pause.left(BootTime(1_500)), None);
    pause.told(&reply(Some(600), true), BootTime(1_500 + REST.0 - 1));
    assert_eq!(pause.left(BootTime(1_500 + REST.0 - 1)), None, "it has only just ended");
    pause.told(&reply(Some(u64::MAX), true), BootTime(1_500 + REST.0));
    assert_eq!(pause.left(BootTime(1_500 + REST.0)), Some(LONGEST));
}

#[test]
fn sessions_and_standbys_are_not_paused() {
    assert!(pauses(&spec(&json!({}))));
    assert!(!pauses(&spec(&json!({"poolMode": "Session"}))));
    assert!(!pauses(&spec(&json!({"role": "ReadOnly"}))));
}

#[test]
fn a_pod_pauses_each_process_and_has_each_go_on() {
    let wanted = one("a");
    let mut seen = pod::Observed {
        wanted: Some(wanted.clone()),
        written: Some(wanted.clone()),
        processes: vec![up(Some(&wanted)), up(Some(&wanted))],
        pause_ms: Some(700),
        ..pod::Observed::default()
    };
    let pause = |seen: &mut pod::Observed, number: usize, how| {
        if let Process::Up { pause, .. } = &mut seen.processes[number] {
            *pause = how;
        }
    };
    assert_eq!(pod::decide(&seen), Do::Pause(0));
    pause(&mut seen, 0, Some(Paused::Wholly));
    assert_eq!(pod::decide(&seen), Do::Pause(1));
    pause(&mut seen, 1, Some(Paused::Partly));
    assert_eq!(
        (pod::decide(&seen), pod::is_paused(&seen)),
        (Do::Wait(Some(700)), false)
    );
    pause(&mut seen, 1, Some(Paused::Wholly));
    assert!(pod::is_paused(&seen) && pod::is_ready(&seen));
    // Nothing comes before the end of a pause: not even what cannot be known.
    seen.wanted = None;
    seen.pause_ms = None;
    assert_eq!((pod::decide(&seen), pod::is_paused(&seen)), (Do::Resume(0), false));
    pause(&mut seen, 0, None);
    assert_eq!(pod::decide(&seen), Do::Resume(1));
    pause(&mut seen, 1, None);
    assert_eq!(pod::decide(&seen), Do::Wait(None));
}

/// What a primary's agent says, or that nothing is heard of it, and how long after the last word.
fn word() -> impl Strategy<Value = (u64, Option<PoolerReply>)> {
    let reply = (prop::option::of(0..20_000_u64), any::<bool>(), any::<bool>());
    let reply = reply.prop_map(|(pause_milliseconds, soon, serves)| PoolerReply {
        pause_milliseconds,
        soon,
        serves,
    });
    (0..4_000_u64, prop::option::of(reply))
}

proptest! {
    /// Whatever any primary says, and whatever dies: no process is paused for longer than the longest pause, clients are served for a
    /// while before the next one, and none is told to end in a pause.
    #[test]
    fn no_pause_is_longer_than_the_longest(
        words in prop::collection::vec(word(), 1..60),
        starts in 0..4_usize,
        stops in prop::option::of(0..60_000_u64),
    ) {
        let wanted = one("a");
        let mut seen = pod::Observed {
            wanted: (starts > 0).then(|| wanted.clone()),
            written: (starts > 1).then(|| wanted.clone()),
            processes: vec![up((starts > 2).then_some(&wanted)), Process::Down { since_ms: None }],
            drain_ms: 5_000,
            clients: Some(1),
            ..pod::Observed::default()
        };
        let (mut pause, mut now) = (Pause::default(), 0);
        // When the present pause of each process began, and when its last one ended.
        let (mut began, mut ended) = ([None; 2], [None; 2]);
        for (later, reply) in words {
            let end = now + later;
            // The pod decides at the times that it asked for, and at the next word.
            loop {
                seen.pause_ms = pause.left(BootTime(now)).map(|left| left.0);
                seen.stopping_ms = stops.and_then(|since| now.checked_sub(since));
                match pod::decide(&seen) {
                    Do::Wait(next) => {
                        let next = next.map_or(end, |wait| now + wait.max(1)).min(end);
                        if next == now {
                            break;
                        }
                        now = next;
                    }
                    Do::Write => seen.written = Some(wanted.clone()),
                    Do::Start(number) => seen.processes[number] = up(Some(&wanted)),
                    Do::Reload(number) => {
                        let Process::Up { read, .. } = &mut seen.processes[number] else { panic!() };
                        *read = Some(digest(&wanted));
                    }
                    Do::Pause(number) => {
                        let Process::Up { pause, .. } = &mut seen.processes[number] else { panic!() };
                        *pause = Some(if later % 2 == 0 { Paused::Partly } else { Paused::Wholly });
                        prop_assert!(ended[number].is_none_or(|at| now >= at + REST.0), "{} after {:?}", now, ended[number]);
                        began[number] = Some(now);
                    }
                    Do::Resume(number) => {
                        let Process::Up { pause, .. } = &mut seen.processes[number] else { panic!() };
                        *pause = None;
                        let since = began[number].take().unwrap();
                        prop_assert!(now - since <= LONGEST.0, "{} ms", now - since);
                        ended[number] = Some(now);
                    }
                    Do::Stop(number, how) => {
                        prop_assert_eq!(began[number], None);
                        let Process::Up { told, .. } = &mut seen.processes[number] else { panic!() };
                        *told = Some(how);
                    }
                    Do::Exit => break,
                }
            }
            prop_assert!(began.iter().flatten().all(|since| now - since <= LONGEST.0));
            if let Some(reply) = reply {
                pause.told(&reply, BootTime(now));
            }
        }
    }
}
