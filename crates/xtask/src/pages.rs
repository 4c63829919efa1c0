//! Tests that the pages in docs/ agree with the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::mutants;

/// Pages whose names of files and mutants are checked here.
const CHECKED: [&str; 3] = ["docs/protocol.md", "docs/invariants.md", "docs/glossary.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: impl AsRef<Path>) -> String {
    let path = root().join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files below a folder of the repository whose names end so, by their paths in the repository.
fn files(folder: &str, end: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::from(folder)];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(root().join(&folder)).expect("a folder") {
            let path = folder.join(entry.expect("an entry").file_name());
            if root().join(&path).is_dir() {
                open.push(path);
            } else if path.to_string_lossy().ends_with(end) {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

/// The numbers that a text cites of a page, such as 13 and 14 in "protocol.md rules 13, 14"; "4 to 6" are three numbers.
fn cited(text: &str, page: &str) -> BTreeSet<usize> {
    // A comment may break the line within a citation.
    let words = text.replace("//!", "").replace("///", "").replace("//", "");
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    let mut found = BTreeSet::new();
    for (at, _) in words.match_indices(page) {
        let mut rest = &words[at + page.len()..];
        for skipped in ["s", ".md", ",", " ", "rules", "rule", " "] {
            rest = rest.strip_prefix(skipped).unwrap_or(rest);
        }
        let mut last = None;
        loop {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let Ok(number) = rest[..digits].parse::<usize>() else {
                break;
            };
            found.extend(last.map_or(number..=number, |first| first..=number));
            rest = &rest[digits..];
            let next = [(" to ", true), (", ", false), (" and ", false)].into_iter();
            let next = next.filter_map(|(between, range)| Some((rest.strip_prefix(between)?, range)));
            let Some((after, range)) = next.into_iter().next() else {
                break;
            };
            (rest, last) = (after, range.then_some(number));
        }
    }
    found
}

#[test]
fn citations_are_read() {
    let numbers = |text: &str| cited(text, "protocol").into_iter().collect::<Vec<_>>();
    assert_eq!(numbers("(protocol.md rules 13, 14): note"), [13, 14]);
    assert_eq!(numbers("protocol.md, rules 9 to 11 and 20 to 21"), [9, 10, 11, 20, 21]);
    assert_eq!(numbers("/// as in protocol\n    /// rule 4, step 5"), [4]);
    assert_eq!(numbers("breaks: \"protocol 16\", of one"), [16]);
    assert!(numbers("the protocol has rules").is_empty());
    assert_eq!(cited("Invariants 3 and 4", "invariant").len(), 2);
}

/// The numbers of a page's headings, `### 4. Order of a promise`, and of the first cells of its tables.
fn numbers(page: &str) -> BTreeSet<usize> {
    let number = |line: &str| {
        let heading = line.strip_prefix("### ").and_then(|line| line.split_once(". "));
        let row = line.strip_prefix("| ").and_then(|line| line.split_once(" | "));
        heading.or(row)?.0.parse().ok()
    };
    page.lines().filter_map(number).collect()
}

#[test]
fn each_cited_number_is_on_its_page() {
    let sources = files("crates", ".rs").into_iter().chain(files("docs", ".md"));
    let own = "crates/xtask/src/pages.rs";
    let texts: BTreeMap<_, _> = sources
        .filter(|file| file != own)
        .map(|file| (file.clone(), read(file)))
        .collect();
    for (page, file, least) in [
        ("protocol", "docs/protocol.md", 60),
        ("invariant", "docs/invariants.md", 20),
    ] {
        let there = numbers(&read(file));
        let mut citing = 0;
        for (source, text) in &texts {
            let cited = cited(text, page);
            citing += cited.len();
            let missing: Vec<_> = cited.difference(&there).collect();
            assert!(missing.is_empty(), "{source} cites {page} {missing:?}: not in {file}");
        }
        assert!(citing >= least, "{file}: only {citing} citations were found");
    }
}

#[test]
fn each_mutant_breaks_a_number_of_its_page() {
    for mutant in mutants::all() {
        for (page, file) in [("protocol", "docs/protocol.md"), ("invariant", "docs/invariants.md")] {
            let there = numbers(&read(file));
            let (name, breaks) = (mutant.name, mutant.breaks);
            assert!(
                cited(breaks, page).is_subset(&there),
                "{name} breaks {breaks}: not in {file}"
            );
            assert_eq!(
                breaks.starts_with(page),
                !cited(breaks, page).is_empty(),
                "{name}: {breaks}"
            );
        }
    }
}

/// The texts in backticks, outside of blocks of code.
fn quoted(page: &str) -> Vec<&str> {
    page.split("\n```")
        .step_by(2)
        .flat_map(|text| text.split('`').skip(1).step_by(2))
        .collect()
}

/// Whether a named file or folder below `crates/` exists, with the definition after `::`, such as `machine/src/quorum.rs::next_step`.
fn is_there(named: &str) -> bool {
    let (file, item) = named
        .split_once("::")
        .map_or((named, None), |(file, item)| (file, Some(item)));
    let path = root().join("crates").join(file);
    let Some(item) = item else { return path.exists() };
    let source = fs::read_to_string(&path).unwrap_or_default();
    let tests = fs::read_to_string(path.with_extension("").join("tests.rs")).unwrap_or_default();
    let kinds = ["fn", "struct", "enum", "trait", "type", "const", "mod"];
    kinds.into_iter().any(|kind| {
        let text = format!("{kind} {item}");
        [&source, &tests].into_iter().any(|source| {
            let mut after = source
                .match_indices(&text)
                .map(|(at, _)| source[at + text.len()..].chars().next());
            after.any(|next| !next.is_some_and(|next| next.is_alphanumeric() || next == '_'))
        })
    })
}

#[test]
fn each_file_that_a_page_names_is_there() {
    let crates: BTreeSet<_> = fs::read_dir(root().join("crates"))
        .expect("crates")
        .collect::<Result<Vec<_>, _>>()
        .expect("crates")
        .into_iter()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    for page in CHECKED {
        let text = read(page);
        let is_file = |name: &&str| name.split_once('/').is_some_and(|(first, _)| crates.contains(first));
        let named: Vec<_> = quoted(&text).into_iter().filter(is_file).collect();
        assert!(named.len() >= 20, "{page}: only {named:?} were found");
        for file in named {
            assert!(is_there(file), "{page} names {file}: it is not there");
        }
    }
}

/// The names after `*Model mutants*:` and its like; a list's item may have several lines.
fn mutants_of<'a>(page: &'a str, kind: &str) -> Vec<&'a str> {
    let begin = format!("*{kind} mutants*:");
    page.split(&begin)
        .skip(1)
        .flat_map(|rest| {
            let ends = ["\n-", "\n\n", ". *"].into_iter().filter_map(|end| rest.find(end));
            quoted(&rest[..ends.min().unwrap_or(rest.len())])
        })
        .collect()
}

#[test]
fn each_mutant_that_a_page_names_is_there() {
    let machine: BTreeSet<_> = mutants::all().map(|mutant| mutant.name.to_owned()).collect();
    let variants = |file: &str| -> BTreeSet<String> {
        let text = read(file);
        let (_, variants) = text
            .split_once("pub enum Mutant {")
            .or_else(|| text.split_once("pub enum Bug {"))
            .expect("the mutants");
        let (variants, _) = variants.split_once("\n}").expect("their end");
        variants
            .lines()
            .filter_map(|line| line.trim().strip_suffix(','))
            .map(str::to_owned)
            .collect()
    };
    let kinds = [
        ("Machine", machine),
        ("Model", variants("crates/sim/src/model/bounds.rs")),
        ("Simulator", variants("crates/sim/src/simulator/distort.rs")),
    ];
    for page in ["docs/protocol.md", "docs/invariants.md"] {
        let text = read(page);
        for (kind, there) in &kinds {
            let named = mutants_of(&text, kind);
            assert!(!named.is_empty(), "{page} names no {kind} mutants");
            for name in named {
                assert!(
                    there.contains(name),
                    "{page} names the {kind} mutant {name}: it is not there"
                );
            }
        }
    }
}

/// Longest line of a page, in characters.
const LONGEST: usize = 120;

/// The lines of a page that are too long, with their numbers. Rows of tables and blocks of code cannot be broken; nor can a line
/// without a space to break it at, outside of code and links.
fn too_long(page: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut code = false;
    for (number, line) in (1..).zip(page.lines()) {
        let start = line.trim_start();
        if start.starts_with("```") {
            code = !code;
        } else if !code && !start.starts_with('|') && line.chars().count() > LONGEST && can_be_broken(start) {
            found.push((number, line));
        }
    }
    found
}

/// A line has a space in it that is neither the one after the mark of a list, nor within code or a link's text.
fn can_be_broken(line: &str) -> bool {
    let text = line.trim_start_matches(['-', '*', '>', '#']).trim();
    let (mut code, mut link) = (false, 0_usize);
    text.chars().any(|c| {
        match c {
            '`' => code = !code,
            '[' if !code => link += 1,
            ']' if !code => link = link.saturating_sub(1),
            _ => {}
        }
        c == ' ' && !code && link == 0
    })
}

#[test]
fn long_lines_are_found() {
    let word = "a".repeat(LONGEST);
    assert_eq!(
        too_long(&format!("short\n{word} b\n")),
        [(2, format!("{word} b").as_str())]
    );
    for page in [
        format!("| {word} | b |"),
        format!("```\n{word} b\n```"),
        format!("- {word}"),
        format!("- [two words](https://{word})"),
        format!("`two {word}`"),
    ] {
        assert!(too_long(&page).is_empty(), "{page}");
    }
    assert_eq!(too_long(&format!("```\ncode\n```\n`a` {word}\n")).len(), 1);
}

/// Pages are read in editors and as differences, too.
#[test]
fn no_line_of_a_page_is_too_long() {
    let places = ["crates", "docs", "examples", "images", "manifests"];
    let pages = places.into_iter().flat_map(|place| files(place, ".md"));
    let pages: Vec<_> = pages.chain(["README.md".to_owned()]).collect();
    assert!(pages.len() >= 19, "only {pages:?}");
    let mut wrong = Vec::new();
    for page in &pages {
        let text = read(page);
        wrong.extend(
            too_long(&text)
                .into_iter()
                .map(|(number, _)| format!("{page}:{number}")),
        );
    }
    assert!(wrong.is_empty(), "over {LONGEST} characters: {wrong:#?}");
}
