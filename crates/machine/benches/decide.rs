//! Decisions per second on one core: at rest, and in the middle of a change.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use machine::cluster::decide;
use machine::cluster::model::Scene;

fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decide");
    group.throughput(Throughput::Elements(1));
    for replicas in [1, 3, 9] {
        bench(
            &mut group,
            &format!("resting, {replicas} instances"),
            &Scene::ready(replicas),
        );
    }
    let mut waiting = Scene::ready(3);
    waiting.pod_mut(2).ready = false;
    bench(&mut group, "waiting for a standby, 3 instances", &waiting);
    let mut rollout = Scene::ready(3);
    rollout.revision = "r2".to_owned();
    bench(&mut group, "replacing a pod, 3 instances", &rollout);
    bench(&mut group, "creating, nothing there", &Scene::new(3));
    group.finish();
}

fn bench(group: &mut criterion::BenchmarkGroup<'_, criterion::measurement::WallTime>, name: &str, scene: &Scene) {
    scene.with_wanted(|wanted| {
        group.bench_function(name, |bencher| {
            bencher.iter(|| decide(black_box(wanted), black_box(&scene.observed), &scene.stored, scene.now));
        });
    });
}

criterion_group!(benches, decisions);
criterion_main!(benches);
