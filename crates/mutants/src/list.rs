//! What cargo-mutants would do to crate `machine`.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use suites::shell::cargo_command;

/// Code of tests, although it is not marked so.
const TESTS: [&str; 6] = [
    "/tests/",
    "/tests.rs",
    "/cluster/model/",
    "/fixtures.rs",
    "/properties.rs",
    "/exploration.rs",
];

/// What is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Genre {
    /// What a function does and returns.
    #[serde(rename = "FnValue")]
    Function,
    /// The sign between two expressions.
    #[serde(rename = "BinaryOperator")]
    Binary,
    /// The sign before an expression: it is left out.
    #[serde(rename = "UnaryOperator")]
    Unary,
    /// A condition of a match's arm.
    #[serde(rename = "MatchArmGuard")]
    Guard,
    /// A match's arm: it is left out.
    #[serde(rename = "MatchArm")]
    Arm,
    /// A field of a struct that has a base: it is left out.
    #[serde(rename = "StructField")]
    Field,
}

/// One of its mutants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// What is replaced.
    pub genre: Genre,
    /// The file, below `crates/machine/src`.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    /// What stands there, in the source.
    pub at: Range<usize>,
    /// What stands there instead.
    pub replacement: String,
    /// In cargo-mutants' words: `replace == with != in Rule::covers`.
    pub name: String,
    /// The code around it, without what is only layout, to tell it from others of the same name.
    pub code: String,
}

#[derive(Deserialize)]
struct Listed {
    file: String,
    genre: Genre,
    name: String,
    replacement: String,
    span: Span,
}

#[derive(Deserialize)]
struct Span {
    start: Place,
    end: Place,
}

#[derive(Deserialize)]
struct Place {
    line: usize,
    column: usize,
}

/// All mutants of the machine's own code, in the order of the code, none twice.
///
/// # Errors
/// When cargo-mutants is missing, or lists what this does not know.
pub fn list(repository: &Path) -> Result<Vec<Mutant>> {
    let mut cargo = cargo_command(&["mutants", "--list", "--json", "-p", "machine"]);
    let output = cargo.current_dir(repository).output().context("start cargo")?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("cargo-mutants is needed (`cargo install cargo-mutants --locked`): {error}");
    }
    let listed: Vec<Listed> = serde_json::from_slice(&output.stdout).context("read cargo-mutants' list")?;
    let mut mutants = Vec::new();
    let mut seen = BTreeSet::new();
    for one in listed {
        let Some(file) = one.file.strip_prefix("crates/machine/src/") else {
            continue;
        };
        if TESTS.iter().any(|part| one.file.contains(part)) {
            continue;
        }
        let source = std::fs::read_to_string(repository.join(&one.file)).with_context(|| format!("read {file}"))?;
        let at = offset(&source, &one.span.start)..offset(&source, &one.span.end);
        if seen.insert((file.to_owned(), at.start, at.end, one.replacement.clone())) {
            mutants.push(Mutant {
                genre: one.genre,
                file: file.to_owned(),
                line: one.span.start.line,
                code: code(&source, &at, one.genre),
                at,
                name: one.name.splitn(4, ':').nth(3).unwrap_or_default().trim().to_owned(),
                replacement: one.replacement,
            });
        }
    }
    Ok(mutants)
}

/// Where a place is, in bytes.
fn offset(source: &str, place: &Place) -> usize {
    let lines = source.split_inclusive('\n').take(place.line - 1);
    let before: usize = lines.map(str::len).sum();
    let rest = &source[before..];
    before
        + rest
            .char_indices()
            .nth(place.column - 1)
            .map_or(rest.len(), |(at, _)| at)
}

/// How much of the code on either side of a sign is told, in characters.
const AROUND: usize = 32;

/// The code that tells a mutant from others of its name.
fn code(source: &str, at: &Range<usize>, genre: Genre) -> String {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let after = |from: usize| words(&source[from..]).chars().take(AROUND).collect::<String>();
    match genre {
        Genre::Function => String::new(),
        Genre::Binary => {
            let before: Vec<char> = source[..at.start].chars().rev().take(8 * AROUND).collect();
            let before: Vec<char> = words(&before.into_iter().rev().collect::<String>()).chars().collect();
            let before: String = before[before.len().saturating_sub(AROUND)..].iter().collect();
            let sign = &source[at.clone()];
            format!("{} {sign} {}", before.trim(), after(at.end).trim())
        }
        Genre::Unary => after(at.start).trim().to_owned(),
        Genre::Guard => words(&source[at.clone()]),
        Genre::Arm | Genre::Field => words(&source[at.clone()]).chars().take(2 * AROUND).collect(),
    }
}
