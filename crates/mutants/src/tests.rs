//! Each kind of replacement is planted as it is meant, and what is argued is of code that is there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::argued::{self, Argued};
use crate::list::{Genre, Mutant};
use crate::plant::{Planted, plant};

/// The mutant that writes `replacement` where `text` stands in `source`.
fn mutant(source: &str, genre: Genre, text: &str, replacement: &str) -> Mutant {
    let start = source.find(text).unwrap_or_else(|| panic!("{text} in {source}"));
    Mutant {
        genre,
        file: "a.rs".to_owned(),
        line: 1,
        at: start..start + text.len(),
        replacement: replacement.to_owned(),
        name: String::new(),
        code: String::new(),
    }
}

fn planted(source: &str, mutants: &[Mutant]) -> Planted {
    let numbered: Vec<_> = mutants.iter().enumerate().collect();
    plant(source, &numbered, &BTreeSet::new()).unwrap()
}

/// What becomes of `source` with one mutant, which is number 0.
fn text(source: &str, genre: Genre, text: &str, replacement: &str) -> String {
    let planted = planted(source, &[mutant(source, genre, text, replacement)]);
    assert_eq!(planted.left_out, BTreeSet::new());
    syn::parse_file(&planted.text).unwrap_or_else(|error| panic!("{error}: {}", planted.text));
    planted.text
}

#[test]
fn a_function_returns_something_else() {
    assert_eq!(
        text("const fn f() -> u8 { 1 + 2 }", Genre::Function, "1", "0"),
        " fn f() -> u8 { if crate::mutant(0) { return 0; } 1 + 2 }"
    );
}

#[test]
fn signs_are_chosen() {
    assert_eq!(
        text("fn f() { a < b; }", Genre::Binary, "<", ">"),
        "fn f() { (match (&(a ), &( b)) { (left, right) => if crate::mutant(0) { left > right } else { left < right } }); }"
    );
    assert_eq!(
        text("fn f() { a + b; }", Genre::Binary, "+", "-"),
        "fn f() { (match ((a ), ( b)) { (left, right) => if crate::mutant(0) { left - right } else { left + right } }); }"
    );
    assert_eq!(
        text("fn f() { a += b; }", Genre::Binary, "+=", "-="),
        "fn f() { (match (&mut (a ), ( b)) { (left, right) => if crate::mutant(0) { *left -= right } else { *left += right } }); }"
    );
    assert_eq!(
        text("fn f() { a && b; }", Genre::Binary, "&&", "||"),
        "fn f() { ({ let left: bool = a ; if left != crate::mutant(0) {  b } else { left } }); }"
    );
    assert_eq!(
        text("fn f() { a || b; }", Genre::Binary, "||", "&&"),
        "fn f() { ({ let left: bool = a ; if left != crate::mutant(0) { left } else {  b } }); }"
    );
    assert_eq!(
        text("fn f() { !a; }", Genre::Unary, "!", ""),
        "fn f() { (!a != crate::mutant(0)); }"
    );
}

#[test]
fn arms_and_fields_are_left_out() {
    let source = "fn f() { match a { 1 if b => {} 2 => {} _ => {} } }";
    assert_eq!(
        text(source, Genre::Arm, "2 => {}", ""),
        "fn f() { match a { 1 if b => {} 2 if !crate::mutant(0) => {} _ => {} } }"
    );
    assert_eq!(
        text(source, Genre::Arm, "1 if b => {}", ""),
        "fn f() { match a { 1 if !crate::mutant(0) && (b) => {} 2 => {} _ => {} } }"
    );
    let guards = ["true", "false"].map(|instead| mutant(source, Genre::Guard, "b", instead));
    assert_eq!(
        planted(source, &guards).text,
        "fn f() { match a { 1 if crate::mutant(0) || !crate::mutant(1) && (b) => {} 2 => {} _ => {} } }"
    );
    let compared = "fn f() { match a { 1 if b < c => {} _ => {} } }";
    let both = [
        mutant(compared, Genre::Binary, "<", ">"),
        mutant(compared, Genre::Guard, "b < c", "true"),
    ];
    assert_eq!(
        planted(compared, &both).text,
        "fn f() { match a { 1 if crate::mutant(1) || ((match (&(b ), &( c)) { (left, right) => \
         if crate::mutant(0) { left > right } else { left < right } })) => {} _ => {} } }"
    );
    assert_eq!(
        text("fn f() { A { b, ..c() }; }", Genre::Field, "b,", ""),
        "fn f() { A { b: (if crate::mutant(0) { (A { ..c() }).b } else { b }), ..c() }; }"
    );
}

#[test]
fn mutants_stand_within_mutants_and_errors_find_the_innermost() {
    let source = "fn f() -> bool { a && !b }";
    let mutants = [
        mutant(source, Genre::Function, "a", "true"),
        mutant(source, Genre::Binary, "&&", "||"),
        mutant(source, Genre::Unary, "!", ""),
    ];
    let planted = planted(source, &mutants);
    assert_eq!(
        planted.text,
        "fn f() -> bool { if crate::mutant(0) { return true; } \
         ({ let left: bool = a ; if left != crate::mutant(1) {  (!b != crate::mutant(2)) } else { left } }) }"
    );
    let around = |text: &str| {
        let start = planted.text.find(text).unwrap();
        planted.around(&(start..start + text.len()))
    };
    assert_eq!([around("true"), around("a ;"), around("!b")], [[0], [1], [2]]);
}

#[test]
fn an_error_in_a_match_is_of_all_its_arms() {
    let source = "fn f() -> u8 { 3; match a { 1 => 2, _ => 4 } }";
    let planted = planted(source, &[mutant(source, Genre::Arm, "1 => 2", "")]);
    let start = planted.text.find("a {").unwrap();
    assert_eq!(planted.around(&(start..start + 1)), [0]);
    let start = planted.text.find('3').unwrap();
    assert!(planted.around(&(start..start + 1)).is_empty());
}

#[test]
fn no_or_stands_beside_a_let() {
    let source = "fn f() { if a && let Some(b) = c && d && e {} }";
    let signs = |text: &str| mutant(source, Genre::Binary, text, "||");
    let mutants = [signs("&& let"), signs("&& d"), signs("&& e")];
    let planted = planted(source, &mutants);
    assert_eq!((planted.text.as_str(), planted.no_program.len()), (source, 3));
    assert_eq!(planted.left_out, BTreeSet::new());
}

#[test]
fn what_runs_when_it_is_compiled_is_left_out() {
    let source = "const A: u8 = 1 + 2; #[cfg(test)] mod tests { fn f() { !a; } }";
    let mutants = [
        mutant(source, Genre::Binary, "+", "-"),
        mutant(source, Genre::Unary, "!", ""),
    ];
    let planted = planted(source, &mutants);
    assert_eq!((planted.text.as_str(), planted.left_out.len()), (source, 2));
}

#[test]
fn the_page_is_read() {
    let page = "# Page\n\n- `x`: not yet\n\n## None survives\n\nOf `b.rs`, and of\n`c.rs`.\n\n## `a.rs`\n\n- `replace < with <= in f` at ``a < b``: never\n  equal.\n- `other`: why\n";
    let argued = Argued::read(page);
    let [first, second] = &argued.files["a.rs"][..] else {
        panic!("{argued:?}")
    };
    assert_eq!((first.code.as_str(), first.why.as_str()), ("a < b", "never equal."));
    assert_eq!((second.name.as_str(), second.code.as_str()), ("other", ""));
    assert!(argued.files["b.rs"].is_empty() && argued.files["c.rs"].is_empty());
}

#[test]
fn what_is_argued_is_of_code_that_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let argued = Argued::read(&fs::read_to_string(root.join(argued::PATH)).unwrap());
    for (file, entries) in &argued.files {
        let source = fs::read_to_string(root.join("crates/machine/src").join(file)).unwrap();
        let words = source.split_whitespace().collect::<Vec<_>>().join(" ");
        for entry in entries {
            assert!(!entry.why.is_empty(), "{file}: no reason for {}", entry.name);
            assert!(words.contains(&entry.code), "{file}: no code {}", entry.code);
            let function = entry
                .name
                .rsplit_once(" in ")
                .map(|(_, path)| path.rsplit("::").next().unwrap());
            if let Some(function) = function {
                assert!(
                    words.contains(&format!("fn {function}")),
                    "{file}: no function {function}"
                );
            }
        }
    }
}
