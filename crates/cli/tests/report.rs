//! A report can be read offline, and has no secret.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::collections::BTreeSet;
use std::path::Path;

use chrono::SubsecRound;
use cli::look::Look;
use cli::snapshot::Snapshot;
use cli::{file, report, status, text, why};
use machine::cluster::{Known, OwnedObject, OwnedState};
use serde_json::json;
use support::{new, ready, recorded, spec};

fn read(text: &str) -> Snapshot {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{:p}.yaml", text.as_ptr()));
    std::fs::write(&path, text).unwrap();
    let snapshot = file::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    snapshot
}

fn pages(snapshot: &Snapshot) -> String {
    let mut look = Look::new(snapshot, None, "demo").unwrap();
    let style = text::Style::default();
    status::text(&status::page(&look), style) + &why::text(&why::page(&mut look), style)
}

/// Lines about a database, its user and nothing, and about others.
const LOG: &str = r#"took postgres://app:pw@demo-rw/app
{"message":"acting","object":"shop/demo"}
INFO acting object=user shop/reader rule="tell"
{"message":"failed","database":"user shop/reader"}
INFO theirs object=user shop/reader-2 rule="tell"
{"message":"theirs","object":"user shop/other"}
{"message":"theirs","database":"shop/demo-2"}
INFO theirs database=shop/demo2
"#;

#[test]
fn an_archive_shows_the_same_and_is_written_once() {
    let mut snapshot = read(&recorded(&ready(&spec(3))));
    snapshot.objects.push(json!({
        "apiVersion": "clustereddatabase.io/v1alpha2", "kind": "DatabaseUser",
        "metadata": {"name": "reader", "namespace": "shop", "uid": "u", "resourceVersion": "1"},
        "spec": {"clusterRef": {"name": "demo"}},
    }));
    let logs = Ok(vec![("operator-0".to_owned(), LOG.to_owned())]);
    let files = report::files(snapshot.clone(), "demo", &logs).unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.tar.gz");
    let _ = std::fs::remove_file(&path);
    report::write(&path, "demo", &files, snapshot.at).unwrap();
    let again = file::read(&path).unwrap();
    assert_eq!(again, snapshot);
    assert_eq!(pages(&again), pages(&snapshot));
    assert!(
        report::write(&path, "demo", &files, snapshot.at).is_err(),
        "what is there is not overwritten"
    );
    let log = &files
        .iter()
        .find(|(name, _)| name == "operator/operator-0.log")
        .unwrap()
        .1;
    let ours = LOG.replace(":pw@", ":(redacted)@");
    let ours: Vec<_> = ours.lines().filter(|line| !line.contains("theirs")).collect();
    assert_eq!(log.lines().collect::<Vec<_>>(), ours);
}

#[test]
fn a_report_holds_no_secret() {
    let mut snapshot = read(&recorded(&ready(&spec(3))));
    snapshot.objects.push(
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "demo-app"}, "data": {"k": "c2VjcmV0"}}),
    );
    let pod = snapshot
        .objects
        .iter_mut()
        .find(|object| object["kind"] == "Pod")
        .unwrap();
    pod["spec"]["containers"][0]["env"] = json!([{"name": "PGPASSWORD", "value": "hunter2"}]);
    let db = &mut snapshot.objects[0];
    db["spec"]["bootstrap"]["initdb"]["postInitApplicationSQL"] = json!(["ALTER ROLE app PASSWORD 'hunter2'"]);
    db["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": "hunter2"});
    snapshot.unreadable.insert("Role".to_owned(), "not allowed".to_owned());
    let files = report::files(snapshot, "demo", &Err("not allowed".to_owned())).unwrap();
    for (name, text) in &files {
        assert!(
            !text.contains("hunter2") && !text.contains("c2VjcmV0"),
            "{name}: {text}"
        );
    }
    assert!(files[0].1.contains("Not read: Role: not allowed") && files[0].1.contains("operator's logs: not allowed"));
}

#[test]
fn what_is_not_in_a_file_is_unknown_unless_the_file_has_all_of_its_kind() {
    let whole = read(&recorded(&ready(&spec(3))));
    let complete = Look::new(&whole, None, "demo").unwrap();
    assert_eq!(
        complete.unknown(),
        ["Secret demo-ca", "Secret demo-tls", "Secret demo-app"]
    );

    let mut part = whole.clone();
    part.complete = BTreeSet::new();
    let keep = ["ClusteredDatabase", "Pod", "Lease", "StatefulSet"];
    part.objects
        .retain(|object| keep.contains(&object["kind"].as_str().unwrap()));
    let look = Look::new(&part, None, "demo").unwrap();
    assert_eq!(look.observed.children[OwnedObject::RwService], Known::Unknown);
    assert_eq!(look.observed.claims, Known::Unknown);
    assert_eq!(look.observed.pods, complete.observed.pods);
    assert_eq!(look.observed.lease, complete.observed.lease);

    // An object that is missing from a complete kind does not exist.
    let mut missing = whole;
    missing
        .objects
        .retain(|object| object["metadata"]["name"] != "demo-rw" || object["kind"] != "Service");
    let look = Look::new(&missing, None, "demo").unwrap();
    assert_eq!(
        look.observed.children[OwnedObject::RwService],
        Known::Known(OwnedState::Missing)
    );
}

#[test]
fn a_look_from_outside_sees_what_the_operator_sees() {
    for world in [ready(&spec(3)), ready(&spec(1)), new(&spec(3))] {
        let mut look = Look::new(&read(&recorded(&world)), None, "demo").unwrap();
        look.presume();
        let (ours, theirs) = (&look.observed, &world.scene.observed);
        // Kubernetes has times in whole seconds.
        let mut pods = theirs.pods.clone();
        if let Known::Known(pods) = &mut pods {
            for pod in pods {
                pod.created = pod.created.trunc_subsecs(0);
                pod.ready_since = pod.ready_since.map(|since| since.trunc_subsecs(0));
            }
        }
        assert_eq!(ours.pods, pods);
        assert_eq!(
            ours.lease.get().map(Option::is_some),
            theirs.lease.get().map(Option::is_some)
        );
        assert_eq!(ours.stateful_set, theirs.stateful_set);
        for kind in OwnedObject::ALL.into_iter().filter(|kind| kind.kind() != "Secret") {
            let present = |state: &Known<OwnedState>| matches!(state, Known::Known(OwnedState::Current { .. }));
            assert_eq!(
                present(&ours.children[kind]),
                present(&theirs.children[kind]),
                "{kind:?}: {:?}",
                ours.children[kind]
            );
        }
    }
    let world = ready(&spec(3));
    let mut look = Look::new(&read(&recorded(&world)), None, "demo").unwrap();
    look.presume();
    assert_eq!(look.decide().rule, world.scene.decide().rule);
}

#[test]
fn the_operators_images_are_those_of_the_stateful_set() {
    let mut snapshot = read(&recorded(&ready(&spec(3))));
    let images = |snapshot: &Snapshot| {
        let config = Look::new(snapshot, None, "demo").unwrap().config;
        (config.agent_image.clone(), config.postgres_image(17))
    };
    let set = snapshot
        .objects
        .iter_mut()
        .find(|object| object["kind"] == "StatefulSet");
    let pod = &mut set.unwrap()["spec"]["template"]["spec"];
    pod["initContainers"][0]["image"] = json!("mirror/operator:1");
    pod["containers"][0]["image"] = json!("mirror/postgres:17");
    assert_eq!(
        images(&snapshot),
        ("mirror/operator:1".to_owned(), "mirror/postgres:17".to_owned())
    );
    // An image in the spec does not show the default one.
    snapshot.objects[0]["spec"]["postgres"]["image"] = json!("mirror/postgres:17");
    assert_eq!(images(&snapshot).1, "clustereddatabase/postgres:17");
}
