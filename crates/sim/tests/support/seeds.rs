//! Checks of both kinds of seeds: agents alone, and agents with an operator.

use std::collections::BTreeSet;
use std::path::Path;

use sim::computing::{computed, per_second};
use sim::simulator::{Bug, Coverage, Plan, list, run};

/// How a seed becomes a run.
type Of = fn(u64) -> Plan;

/// Runs `count` seeds twice, with the table and without.
pub fn one_seed_is_one_run(of: Of, count: u64) {
    let mut fingerprints = BTreeSet::new();
    for seed in 0..count {
        let (one, two) = (run(of(seed), false), run(of(seed), true));
        assert_eq!(
            one.fingerprint, two.fingerprint,
            "seed {seed}: a run depends on something else than its seed"
        );
        fingerprints.insert(one.fingerprint);
    }
    assert_eq!(fingerprints.len() as u64, count, "different seeds are different runs");
}

/// Where the two other ranges of seeds begin.
const OTHERS: [u64; 2] = [100_000, 200_000];

/// All pairs that `tests/coverage/<name>.txt` lists must have been reached. With `UPDATE` the list is written again:
/// what these seeds and as many of two other ranges reach, so that it has nothing that is only reached by chance.
pub fn pairs_are_reached(name: &str, coverage: Coverage, of: Of, count: u64) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/coverage/{name}.txt"));
    if std::env::var_os("UPDATE").is_some() {
        let others = OTHERS.map(|first| {
            let mut other = Coverage::default();
            (first..first + count).for_each(|seed| other.add(&run(of(seed), false).coverage));
            other
        });
        let ranges: Vec<_> = [coverage].into_iter().chain(others).collect();
        return std::fs::write(path, list(&ranges)).expect("the list is written");
    }
    let listed = std::fs::read_to_string(path).expect("the list is there");
    let unreached = coverage.unreached(&listed);
    assert!(unreached.is_empty(), "never reached: {}", unreached.join("; "));
}

/// Runs `count` seeds, or as many as `SIM_SEEDS` says, until something is wrong; returns what they reached. `option` is
/// the option of `sim` for such seeds.
pub fn nothing_is_wrong(of: Of, count: u64, option: &str) -> Coverage {
    let seeds = std::env::var("SIM_SEEDS").ok();
    let seeds = seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(count);
    let begun = computed();
    let mut coverage = Coverage::default();
    for seed in 0..seeds {
        let outcome = run(of(seed), false);
        coverage.add(&outcome.coverage);
        if let Some(wrong) = outcome.wrong {
            panic!(
                "seed {seed}: {wrong}\nits faults and all decisions: cargo run -p sim -- explain {seed}{option}; fewer: shrink {seed}{option}"
            );
        }
    }
    println!(
        "figure: simulator{option}: {seeds} seeds, {} failovers ({:.0} a minute of one core), {} acknowledged commits, {:.0} hours of the world",
        coverage.failovers,
        60.0 * per_second(coverage.failovers as usize, begun),
        coverage.acknowledged,
        coverage.time as f64 / 3_600_000.0
    );
    coverage
}

/// Each broken rule must be found within this many seeds.
pub fn broken_rules_are_found(of: Of, budgets: &[(Bug, u64)]) {
    let mut unfound = Vec::new();
    for &(bug, budget) in budgets {
        let broken = |seed| Plan {
            bug: Some(bug),
            ..of(seed)
        };
        match (0..budget).find_map(|seed| Some((seed, run(broken(seed), false).wrong?))) {
            Some((seed, wrong)) => println!("{bug:?}: seed {seed}: {wrong}"),
            None => unfound.push(format!("{bug:?} in {budget} seeds")),
        }
    }
    assert!(unfound.is_empty(), "not found: {}", unfound.join(", "));
}
