use chrono::TimeDelta;
use machine::cluster::decide;
use machine::cluster::model::Scene;

use super::*;

fn key(name: &str) -> Key {
    Key::database("shop", name.to_owned())
}

/// Notes what is decided about the scene as the resource `uid`.
fn note(decisions: &Decisions, scene: &Scene, name: &str, uid: &str) {
    scene.with_wanted(|wanted| {
        let wanted = Wanted { uid, ..*wanted };
        let decision = decide(&wanted, &scene.observed, &scene.stored, scene.now);
        decisions.note(
            &key(name),
            &wanted,
            &scene.observed,
            &scene.stored,
            &decision,
            scene.now,
        );
    });
}

fn lines(decisions: &Decisions, name: &str) -> usize {
    decisions.text(&key(name)).map_or(0, |text| text.lines().count() - 1)
}

fn dropped(decisions: &Decisions, name: &str) -> u64 {
    let text = decisions.text(&key(name)).unwrap();
    serde_json::from_str::<Header>(text.lines().next().unwrap())
        .unwrap()
        .dropped
}

#[test]
fn a_database_at_rest_adds_nothing() {
    let (decisions, mut scene) = (Decisions::default(), Scene::ready(3));
    for _ in 0..3 {
        note(&decisions, &scene, "demo", "u");
        scene.now += TimeDelta::seconds(10);
    }
    assert_eq!(lines(&decisions, "demo"), 1);
    scene.edit(|spec| spec.paused = true);
    note(&decisions, &scene, "demo", "u");
    assert_eq!(lines(&decisions, "demo"), 2);
    scene.edit(|spec| spec.paused = false);
    note(&decisions, &scene, "demo", "u");
    assert_eq!(lines(&decisions, "demo"), 3, "what was decided before is news again");
    assert_eq!(decisions.text(&key("other")), None);
}

#[test]
fn each_object_of_a_database_adds_what_is_new_about_it() {
    let (decisions, scene) = (Decisions::default(), Scene::ready(3));
    let line = || {
        let decision = scene.decide();
        let entry =
            scene.with_wanted(|wanted| Entry::new(wanted, &scene.observed, &scene.stored, &decision, scene.now));
        Line::Database(Box::new(entry))
    };
    let [one, other] = ["one", "other"].map(|name| Key::operation("shop", name));
    let note = |object: &Key, uid: &str, decided: &str| {
        decisions.note_about(&key("demo"), uid, object, &decided, line);
        lines(&decisions, "demo")
    };
    assert_eq!((note(&one, "u", "a"), note(&other, "u", "a")), (1, 2));
    assert_eq!(
        (note(&one, "u", "a"), note(&other, "u", "a")),
        (2, 2),
        "no news of either"
    );
    assert_eq!((note(&one, "u", "b"), note(&one, "u", "a")), (3, 4));
    decisions.forget(&one);
    assert_eq!((note(&other, "u", "a"), note(&one, "u", "a")), (4, 5), "made again");
    assert_eq!(note(&one, "v", "a"), 1, "the database was made again");
}

#[test]
fn another_resource_of_the_same_name_begins_anew() {
    let (decisions, mut scene) = (Decisions::default(), Scene::ready(3));
    note(&decisions, &scene, "demo", "u");
    scene.edit(|spec| spec.paused = true);
    note(&decisions, &scene, "demo", "v");
    assert_eq!(lines(&decisions, "demo"), 1);
    decisions.forget(&key("demo"));
    assert_eq!(decisions.text(&key("demo")), None);
    assert_eq!(decisions.kept().bytes, 0);
}

#[test]
fn the_oldest_are_dropped_of_one_database_and_of_the_longest_record() {
    let (decisions, mut scene) = (Decisions::default(), Scene::ready(1));
    for round in 0..MOST_OF_ONE + 3 {
        scene.edit(|spec| spec.paused = round % 2 == 0);
        note(&decisions, &scene, "demo", "u");
    }
    assert_eq!(
        (lines(&decisions, "demo"), dropped(&decisions, "demo")),
        (MOST_OF_ONE, 3)
    );

    let small = Decisions {
        most_bytes: 60_000,
        ..Decisions::default()
    };
    note(&small, &scene, "quiet", "q");
    for round in 0..50 {
        scene.edit(|spec| spec.paused = round % 2 == 0);
        note(&small, &scene, "busy", "b");
        note(&small, &scene, "busy too", "t");
    }
    let kept = small.kept().bytes;
    let held: usize = small
        .kept()
        .databases
        .values()
        .map(|log| log.lines.iter().map(|line| line.len()).sum::<usize>())
        .sum();
    assert!(kept <= 60_000 && kept == held, "{kept} bytes, {held}");
    assert_eq!((lines(&small, "quiet"), dropped(&small, "quiet")), (1, 0));
    for busy in ["busy", "busy too"] {
        assert!(lines(&small, busy) > 0 && dropped(&small, busy) > 0, "{busy}");
        assert_eq!(lines(&small, busy) as u64 + dropped(&small, busy), 50);
    }
    note(&small, &scene, "huge", &"h".repeat(70_000));
    assert!(small.kept().bytes <= 60_000 && lines(&small, "huge") == 0);
}
