//! The table fits the code, and the page fits the table.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn source(file: &str) -> String {
    let path = root().join("crates/machine/src").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn each_text_is_in_the_code_once() {
    for Mutant { name, file, text, .. } in all() {
        let source = source(file);
        let code = source.split("\n#[cfg(test)]").next().unwrap();
        assert_eq!(source.matches(text).count(), 1, "{name}: `{text}` in {file}");
        assert_eq!(code.matches(text).count(), 1, "{name}: {file} has it in its tests only");
    }
}

#[test]
fn no_two_texts_overlap() {
    for one in all() {
        for other in all().filter(|other| other.file == one.file && other.text != one.text) {
            let source = source(one.file);
            let range = |text: &str| source.find(text).map(|at| at..at + text.len()).unwrap();
            let (a, b) = (range(one.text), range(other.text));
            assert!(a.end <= b.start || b.end <= a.start, "{} and {}", one.name, other.name);
        }
    }
}

#[test]
fn there_are_many_and_no_two_have_the_same_name() {
    let names: BTreeSet<_> = all().map(|mutant| mutant.name).collect();
    assert_eq!(names.len(), all().count());
    assert!(names.len() >= 40, "{}", names.len());
    let mut planted = BTreeSet::new();
    for mutant in all() {
        assert_ne!(mutant.text, mutant.instead, "{}", mutant.name);
        let same = (mutant.file, mutant.text, mutant.instead);
        assert!(
            planted.insert(same),
            "{} is planted by another name as well",
            mutant.name
        );
    }
}

/// Where a check's function must stand.
fn file_of(check: Check) -> PathBuf {
    let package = root().join("crates").join(check.package);
    if let Some(target) = check.target {
        let folder = package.join("tests").join(target);
        return match check.path.split_once("::") {
            Some((module, _)) => folder.join(module).with_extension("rs"),
            None if folder.join("main.rs").exists() => folder.join("main.rs"),
            None => folder.with_extension("rs"),
        };
    }
    let mut modules: Vec<_> = check.path.split("::").collect();
    modules.pop();
    let file = |modules: &[&str]| package.join("src").join(modules.join("/")).with_extension("rs");
    let sibling = file(&modules);
    if modules.last() == Some(&"tests") && !sibling.exists() {
        modules.pop();
    }
    file(&modules)
}

#[test]
fn each_check_exists() {
    for Mutant { name, found_by, .. } in all() {
        let path = file_of(*found_by);
        let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {}: {error}", path.display()));
        let function = found_by.path.rsplit("::").next().unwrap();
        assert!(
            source.contains(&format!("fn {function}(")),
            "{name}: no test {function} in {}",
            path.display()
        );
    }
}

#[test]
fn the_page_lists_all_of_them() {
    let page = fs::read_to_string(root().join(page::PATH)).unwrap();
    let listed = page::listed(&page);
    let names: Vec<_> = all().map(|mutant| mutant.name).collect();
    assert_eq!(listed, names, "run `cargo xtask mutants`, and commit {}", page::PATH);
    for Mutant { name, found_by, .. } in all() {
        let row = format!("| `{name}` |");
        let row = page.lines().find(|line| line.starts_with(&row)).unwrap();
        assert!(
            row.contains(&format!("`{}`", found_by.path)),
            "{name}: run `cargo xtask mutants`"
        );
        let took: f64 = row.split('|').nth(6).unwrap().trim().parse().unwrap();
        assert!(took < found_by.rung.budget().as_secs_f64(), "{row}");
    }
}

#[test]
fn a_page_lists_what_it_was_written_of() {
    let killed: Vec<_> = all()
        .take(2)
        .map(|mutant| Killed {
            mutant,
            took: Duration::from_millis(20),
        })
        .collect();
    let page = page::write(&killed);
    assert!(page.contains("2 mutants, all killed:\n\n- "), "{page}");
    assert_eq!(page::listed(&page), [killed[0].mutant.name, killed[1].mutant.name]);
}

#[test]
fn each_rung_is_demonstrated() {
    let rungs = DEMONSTRATION.map(|name| named(name).unwrap().found_by.rung);
    assert_eq!(rungs, [Rung::Unit, Rung::Property, Rung::Model]);
}

#[test]
fn a_switch_chooses_among_the_mutants_of_one_text() {
    let [one, other, ..] = lease::MUTANTS else {
        panic!("mutants")
    };
    assert_eq!(
        tree::switched("a && b", &[one, other]),
        format!(
            "(if crate::mutant(\"{}\") {{ {} }} else if crate::mutant(\"{}\") {{ {} }} else {{ a && b }})",
            one.name, one.instead, other.name, other.instead
        )
    );
}

#[test]
fn the_first_line_of_a_failure_is_reported() {
    let text = "---- x stdout ----\n\nthread 'x' (7) panicked at crates/a.rs:1:2:\nTest failed: both write.\nmore\n";
    assert_eq!(checks::counterexample(text), "both write");
    assert_eq!(checks::counterexample("nothing"), "");
}
