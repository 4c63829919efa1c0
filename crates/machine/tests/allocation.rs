//! A decision about an idle database allocates nothing: thousands of them cost a fraction of a core.

use machine::cluster::model::Scene;
use machine::cluster::{Action, decide};

#[test]
fn a_decision_about_an_idle_database_allocates_nothing() {
    for replicas in [1, 3, 9] {
        let scene = Scene::ready(replicas);
        scene.with_wanted(|wanted| {
            let mut resting = false;
            let counted = allocation_counter::measure(|| {
                let decision = decide(wanted, &scene.observed, &scene.stored, scene.now);
                resting = matches!(decision.action, Action::Wait(waiting) if waiting.resting);
            });
            assert!(resting);
            assert_eq!(counted.count_total, 0, "{replicas} instances");
        });
    }
}

#[test]
fn the_counter_counts() {
    let scene = Scene::new(3);
    scene.with_wanted(|wanted| {
        let counted = allocation_counter::measure(|| {
            decide(wanted, &scene.observed, &scene.stored, scene.now);
        });
        assert!(counted.count_total > 0);
    });
}
