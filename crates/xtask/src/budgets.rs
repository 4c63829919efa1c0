//! How long each suite may take in `cargo xtask test`, so that the whole keeps its 45 minutes on two cores.

use std::time::Duration;

/// The file of this table, for messages.
const FILE: &str = "crates/xtask/src/budgets.rs";

/// For suites that are not in the table.
const SMALL: Duration = Duration::from_secs(60);

/// Seconds of each suite on two cores beside the others, with room for a slow machine. An end-to-end suite counts the sum of its tests.
/// Those of end-to-end suites were measured while compilers ran on the same two cores. Before you raise one, look for a check that
/// can move to a lower rung or to `--long`; the commit says why it was raised.
const BUDGETS: [(&str, u64); 38] = [
    ("agent src/lib.rs", 30),
    ("agent tests/archive.rs", 120),
    ("agent tests/base.rs", 150),
    ("agent tests/conformance.rs", 240),
    ("agent tests/deadman.rs", 30),
    ("agent tests/election.rs", 360),
    ("agent tests/failover.rs", 150),
    ("agent tests/faults.rs", 240),
    ("agent tests/postgres.rs", 120),
    ("agent tests/recovery.rs", 120),
    ("agent tests/settings.rs", 200),
    ("e2e tests/admission.rs", 90),
    ("e2e tests/archive.rs", 120),
    ("e2e tests/conformance.rs", 60),
    ("e2e tests/disks.rs", 240),
    ("e2e tests/examples.rs", 90),
    ("e2e tests/failover.rs", 750),
    ("e2e tests/fencing.rs", 90),
    ("e2e tests/lifecycle.rs", 420),
    ("e2e tests/operations.rs", 240),
    ("e2e tests/operator.rs", 480),
    ("e2e tests/planned.rs", 420),
    ("e2e tests/recovery.rs", 240),
    ("e2e tests/repair.rs", 150),
    ("e2e tests/pooler.rs", 240),
    ("e2e tests/rest.rs", 240),
    ("e2e tests/soak.rs", 180),
    ("e2e tests/users.rs", 240),
    ("machine src/lib.rs", 60),
    ("machine tests/convergence/main.rs", 150),
    ("machine tests/exploration/main.rs", 120),
    ("machine tests/properties/main.rs", 90),
    ("operator tests/gitops.rs", 150),
    ("operator tests/simulated/main.rs", 600),
    ("sim tests/model.rs", 360),
    ("sim tests/operator.rs", 90),
    ("sim tests/simulator.rs", 180),
    ("testbed tests/lifecycle.rs", 120),
];

/// The budget of a suite.
#[must_use]
pub fn of(suite: &str) -> Duration {
    let found = BUDGETS.iter().find(|(name, _)| *name == suite);
    found.map_or(SMALL, |(_, seconds)| Duration::from_secs(*seconds))
}

/// A suite that takes so many times its budget fails. Shared machines of the same kind differ by a factor of two, from hour to hour.
const TOLERATED: u32 = 3;

/// Judges how long a suite took.
///
/// # Errors
/// When it took more than [`TOLERATED`] budgets: what is wrong, and what to do.
pub fn judge(suite: &str, took: Duration) -> Result<(), String> {
    let budget = of(suite);
    if took <= budget * TOLERATED {
        return Ok(());
    }
    Err(format!(
        "suite {suite} took {:.0} s, and its budget is {} s: move a check to a lower rung or to --long, or raise the \
         budget in {FILE} and say why",
        took.as_secs_f64(),
        budget.as_secs()
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn a_suite_fails_when_no_slow_machine_explains_its_time() {
        assert_eq!(judge("none src/lib.rs", Duration::from_secs(180)), Ok(()));
        let error = judge("none src/lib.rs", Duration::from_millis(180_001)).unwrap_err();
        for part in ["suite none src/lib.rs took 180 s", "budget is 60 s", FILE] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn every_budget_is_of_a_suite_that_is_there() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("the folder of crates");
        let mut names = BTreeSet::new();
        for (name, _) in BUDGETS {
            let (package, source) = name.split_once(' ').expect("a package and a file");
            assert!(crates.join(package).join(source).is_file(), "there is no {name}");
            assert!(names.insert(name), "{name} has two budgets");
        }
        assert!(
            crates.parent().is_some_and(|root| root.join(FILE).is_file()),
            "{FILE} is not there"
        );
    }
}
