//! docs/mutants.md.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::Killed;

/// The page, in the repository.
pub const PATH: &str = "docs/mutants.md";

const HEAD: &str = "\
# Broken rules that must be found

<!-- Written by `cargo xtask mutants`. -->

Who says that the checks of crate `machine` would notice a wrong decision? Each row is one rule, broken on purpose, and the
check that then failed. The figures are of one run on a machine with two shared cores.

```
cargo xtask mutants                       # all of them; writes this page if each is found
cargo xtask mutants skip-the-fence        # one
cargo xtask mutants --demonstration       # three, found by a unit test, a property test and the model
```

The code itself has no switches: they stand in a copy of the sources (`target/mutants/tree`), where each mutant is one
expression in another's place. `crates/xtask/src/mutants` has them, file by file; its tests, which are part of all checks, see to
it that each expression still stands in the code once, that each check exists, and that this page lists them all.
The model has broken rules of its own, in its world instead of the machine's code (`crates/sim/src/model/bounds.rs`; test
`every_mutant_is_found`).

\"Protocol\" and \"invariant\" are the numbers that the code's comments use, too; \"rule\" is a row of [the state machine](state-machine.md).
";

/// The page, for mutants that were all found.
pub fn write(killed: &[Killed]) -> String {
    let mut rungs: BTreeMap<&str, usize> = BTreeMap::new();
    for Killed { mutant, .. } in killed {
        *rungs.entry(mutant.found_by.rung.as_str()).or_default() += 1;
    }
    let rungs: Vec<_> = rungs
        .into_iter()
        .map(|(rung, number)| format!("{number} by {rung}"))
        .collect();
    let mut page = HEAD.to_owned();
    let _ = write!(
        page,
        "\n{} mutants, {} killed: {}.\n\n| mutant | what is broken | breaks | found by | | seconds |\n|---|---|---|---|---|---|\n",
        killed.len(),
        killed.len(),
        rungs.join(", "),
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
