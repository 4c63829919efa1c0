//! docs/mutants.md.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::{Killed, Rung};

/// The page, in the repository.
pub const PATH: &str = "docs/mutants.md";

const HEAD: &str = "\
# Broken rules that must be found

<!-- Written by `cargo xtask mutants`. -->

Who says that the checks of crate `machine` would notice a wrong decision? Each row is one rule,
broken on purpose, and the check that then failed. The figures are of one run on a machine with two
shared cores.

```
cargo xtask mutants                       # all of them; writes this page if each is found
cargo xtask mutants skip-the-fence        # one
cargo xtask mutants --demonstration       # three, found by a unit test, a property test and the model
cargo xtask mutants --check               # all, without writing this page: part of `cargo xtask test --offline`
```

A check that has not failed within its budget has not found its mutant:

BUDGETS

The code itself has no switches: they stand in a copy of the sources (`target/mutants/tree`), where
each mutant is one expression in another's place. `crates/xtask/src/mutants` has them, file by file.
Its tests are part of all checks. They see to it that each expression still stands in the code once,
that each check exists, and that this page lists them all.

The model has broken rules of its own, in its world instead of the machine's code
(`crates/sim/src/model/bounds.rs`; test `every_mutant_is_found`).

\"Protocol\" is a number of [protocol.md](protocol.md), \"invariant\" one of
[invariants.md](invariants.md), \"rule\" a row of [the cluster machine](state-machine.md) or of
[the instance machine](instance-machine.md).
";

/// How many were found.
fn count(killed: &[Killed]) -> String {
    format!("{} mutants, all killed:", killed.len())
}

/// How many of which rung were found, and how late the last of it.
fn of_each_rung(killed: &[Killed]) -> Vec<String> {
    let mut rungs: BTreeMap<&str, (usize, Duration)> = BTreeMap::new();
    for Killed { mutant, took } in killed {
        let (number, longest) = rungs.entry(mutant.found_by.rung.as_str()).or_default();
        (*number, *longest) = (*number + 1, *took.max(longest));
    }
    rungs
        .into_iter()
        .map(|(rung, (number, longest))| format!("{number} by {rung} (within {:.2} s)", longest.as_secs_f64()))
        .collect()
}

/// The same for the terminal.
pub fn in_words(killed: &[Killed]) -> String {
    format!("{} {}", count(killed), of_each_rung(killed).join(", "))
}

fn list(items: impl IntoIterator<Item = String>) -> String {
    let items: Vec<_> = items.into_iter().map(|item| format!("- {item}")).collect();
    items.join("\n")
}

/// The page, for mutants that were all found.
pub fn write(killed: &[Killed]) -> String {
    let budgets = [
        Rung::Unit,
        Rung::Property,
        Rung::Convergence,
        Rung::Exploration,
        Rung::Model,
    ]
    .map(|rung| format!("{}: {} s", rung.as_str(), rung.budget().as_secs()));
    let mut page = HEAD.replace("BUDGETS", &list(budgets));
    let _ = write!(
        page,
        "\n{}\n\n{}\n\n| mutant | what is broken | breaks | found by | | seconds |\n|---|---|---|---|---|---|\n",
        count(killed),
        list(of_each_rung(killed)),
    );
    for Killed { mutant, took } in killed {
        let check = mutant.found_by;
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} | `{}` | {:.2} |",
            mutant.name,
            mutant.planted,
            mutant.breaks,
            check.rung.as_str(),
            check.path,
            took.as_secs_f64(),
        );
    }
    page
}

/// The mutants that a page lists.
#[cfg(test)]
pub fn listed(page: &str) -> Vec<&str> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()).collect()
}
