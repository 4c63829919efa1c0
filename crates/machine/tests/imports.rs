//! The files of each machine import one another without a cycle. So a reader who opens one file can follow its imports
//! to files without imports.
//!
//! The graph is read from the text: `use` lines, and paths such as `election::FRESH`. A name that a `mod.rs` only
//! re-exports counts for the file that defines it. Tests, and what only they use, are left out.

#![expect(clippy::disallowed_methods, reason = "this test looks at the crate from outside")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module of the crate, such as `["instance", "election", "take"]`.
type Module = Vec<String>;

/// The names in one file.
#[derive(Default)]
struct Source {
    /// Its tokens, without comments, strings, tests and `use` lines.
    tokens: Vec<String>,
    /// The names that it defines.
    defines: BTreeSet<String>,
    uses: Vec<Use>,
}

/// One name that a `use` line imports.
struct Use {
    path: Vec<String>,
    /// `None`: everything (`*`).
    name: Option<String>,
    /// True if it is re-exported and not used here.
    is_handed_on: bool,
}

/// Files by module.
type Sources = BTreeMap<Module, Source>;
/// The files that each file imports, and which names.
type Graph = BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>>;

/// Splits Rust's text into tokens; `::` is one token. Comments and quoted texts are left out.
fn tokens(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            quoted(rest)
        } else if first == '\'' {
            letter_or_lifetime(rest)
        } else if rest.starts_with("::") {
            found.push("::".to_owned());
            2
        } else if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let end = end.unwrap_or(rest.len());
            found.push(rest[..end].to_owned());
            end
        } else {
            if !first.is_whitespace() {
                found.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    found
}

/// The length of the string that `text` begins with.
fn quoted(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of the character, or the apostrophe of the lifetime, that `text` begins with.
fn letter_or_lifetime(text: &str) -> usize {
    let mut letters = text.char_indices().skip(1);
    match (letters.next(), letters.next(), letters.next()) {
        (Some((_, '\\')), _, _) => text[2..].find('\'').map_or(text.len(), |end| end + 3).max(4),
        (_, Some((at, '\'')), _) => at + 1,
        _ => 1,
    }
}

/// The index after the item that begins at `from`: after its block or its semicolon.
fn behind_item(tokens: &[String], from: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(from) {
        match token.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && token == "}" {
                    return at + 1;
                }
            }
            ";" if depth == 0 => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// `tokens` without the items after `#[cfg(test)]`, and the modules that are declared so.
fn without_tests(tokens: &[String]) -> (Vec<String>, Vec<String>) {
    let mark = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut modules) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at..].iter().take(mark.len()).eq(mark.iter()) {
            let item = at + mark.len();
            at = behind_item(tokens, item);
            if let Some(place) = tokens[item..at].iter().position(|token| token == "mod") {
                modules.push(tokens[item + place + 1].clone());
            }
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    (kept, modules)
}

/// Reads a tree of `use` after `prefix`, and returns the index after it.
fn read_use(tokens: &[String], from: usize, prefix: &[String], is_handed_on: bool, found: &mut Vec<Use>) -> usize {
    let mut path = prefix.to_vec();
    let mut at = from;
    loop {
        match tokens[at].as_str() {
            "{" => {
                at += 1;
                while tokens[at] != "}" {
                    at = read_use(tokens, at, &path, is_handed_on, found);
                    if tokens[at] == "," {
                        at += 1;
                    }
                }
                return at + 1;
            }
            "*" => {
                found.push(Use {
                    path,
                    name: None,
                    is_handed_on,
                });
                return at + 1;
            }
            "self" if !path.is_empty() => at += 1,
            "::" => at += 1,
            "as" => {
                let name = Some(tokens[at + 1].clone());
                found.push(Use {
                    path,
                    name,
                    is_handed_on,
                });
                return at + 2;
            }
            "," | "}" | ";" => {
                let name = path.last().cloned();
                found.push(Use {
                    path,
                    name,
                    is_handed_on,
                });
                return at;
            }
            word => {
                path.push(word.to_owned());
                at += 1;
            }
        }
    }
}

impl Source {
    fn read(all: &[String]) -> Self {
        const ITEMS: [&str; 7] = ["fn", "struct", "enum", "trait", "const", "static", "type"];
        let mut source = Self::default();
        let (mut depth, mut at) = (0_usize, 0);
        while at < all.len() {
            let token = all[at].as_str();
            match token {
                "{" => depth += 1,
                "}" => depth -= 1,
                "use" if all[at + 1] != "<" => {
                    let is_handed_on = at > 0 && matches!(all[at - 1].as_str(), "pub" | ")");
                    at = read_use(all, at + 1, &[], is_handed_on, &mut source.uses);
                    continue;
                }
                "mod" if all[at + 2] == ";" => {
                    at += 3;
                    continue;
                }
                _ if depth == 0 && ITEMS.contains(&token) => {
                    source.defines.insert(all[at + 1].clone());
                }
                _ => {}
            }
            source.tokens.push(all[at].clone());
            at += 1;
        }
        source
    }
}

/// The texts below `directory`, the folder of `module`.
fn read_folder(directory: &Path, module: &[String], texts: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(directory).expect("list a folder of sources") {
        let path = entry.expect("read a folder's entry").path();
        let name = path.file_stem().expect("name a file").to_string_lossy().into_owned();
        let mut own = module.to_vec();
        if name != "mod" {
            own.push(name);
        }
        if path.is_dir() {
            read_folder(&path, &own, texts);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            texts.insert(own, fs::read_to_string(&path).expect("read a source"));
        }
    }
}

/// The product files among these.
fn sources(texts: BTreeMap<Module, String>) -> Sources {
    let (mut sources, mut tests) = (Sources::new(), BTreeSet::<Module>::new());
    for (module, text) in texts {
        let (product, modules) = without_tests(&tokens(&text));
        tests.extend(modules.into_iter().map(|test| [module.clone(), vec![test]].concat()));
        sources.insert(module, Source::read(&product));
    }
    sources.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
    sources
}

/// All product files of one machine.
fn read_machine(name: &str) -> Sources {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name);
    let mut texts = BTreeMap::new();
    read_folder(&directory, &[name.to_owned()], &mut texts);
    sources(texts)
}

/// The target of a path in `module`: the file, and the name that is imported from it (`None`: the file itself).
fn resolve(sources: &Sources, module: &Module, path: &[String]) -> Option<(Module, Option<String>)> {
    let (first, rest) = path.split_first()?;
    let start = match first.as_str() {
        "crate" => vec![],
        "self" => module.clone(),
        "super" => module[..module.len().checked_sub(1)?].to_vec(),
        name => return look_up(sources, module, name, rest, 0),
    };
    descend(sources, start, rest, 0)
}

/// Follows `path` from the module `at`.
fn descend(sources: &Sources, at: Module, path: &[String], depth: u8) -> Option<(Module, Option<String>)> {
    match path.split_first() {
        None => sources.contains_key(&at).then_some((at, None)),
        Some((first, rest)) if first == "super" => {
            descend(sources, at[..at.len().checked_sub(1)?].to_vec(), rest, depth)
        }
        Some((first, rest)) if sources.contains_key(&at) => look_up(sources, &at, first, rest, depth),
        Some((first, rest)) => descend(sources, [at, vec![first.clone()]].concat(), rest, depth),
    }
}

/// What `name` means in `module`: a submodule, an item of its own, or an imported name.
fn look_up(
    sources: &Sources,
    module: &Module,
    name: &str,
    rest: &[String],
    depth: u8,
) -> Option<(Module, Option<String>)> {
    if depth > 8 {
        return None;
    }
    let source = sources.get(module)?;
    if source.defines.contains(name) {
        return Some((module.clone(), Some(name.to_owned())));
    }
    let child = [module.as_slice(), &[name.to_owned()]].concat();
    // A re-exported function may have the name of its module.
    let is_item = rest.is_empty() && source.uses.iter().any(|brought| brought.name.as_deref() == Some(name));
    if sources.contains_key(&child) && !is_item {
        return descend(sources, child, rest, depth);
    }
    let named = source
        .uses
        .iter()
        .filter(|brought| brought.name.as_deref() == Some(name));
    let all = source.uses.iter().filter(|brought| brought.name.is_none());
    let named = named.map(|brought| [brought.path.as_slice(), rest].concat());
    let all = all.map(|brought| [brought.path.as_slice(), &[name.to_owned()], rest].concat());
    let mut paths = named.chain(all);
    paths.find_map(|path| match path[0].as_str() {
        "crate" => descend(sources, vec![], &path[1..], depth + 1),
        "self" => descend(sources, module.clone(), &path[1..], depth + 1),
        "super" => descend(sources, module[..module.len() - 1].to_vec(), &path[1..], depth + 1),
        first => look_up(sources, module, first, &path[1..], depth + 1),
    })
}

/// Paths in a file outside of `use`, and single names (which a `*` may import).
fn paths(tokens: &[String]) -> Vec<Vec<String>> {
    let is_word = |token: &str| token.starts_with(|letter: char| letter.is_alphabetic() || letter == '_');
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !is_word(&tokens[at]) || (at > 0 && matches!(tokens[at - 1].as_str(), "." | "::")) {
            at += 1;
            continue;
        }
        let mut path = vec![tokens[at].clone()];
        at += 1;
        while at + 1 < tokens.len() && tokens[at] == "::" && is_word(&tokens[at + 1]) {
            path.push(tokens[at + 1].clone());
            at += 2;
        }
        found.push(path);
    }
    found
}

fn graph(sources: &Sources) -> Graph {
    let mut graph = Graph::new();
    for (module, source) in sources {
        let named = source
            .uses
            .iter()
            .filter(|brought| !brought.is_handed_on && brought.name.is_some());
        let named = named.map(|brought| brought.path.clone());
        // A single name that the file does not define is imported by `*`, or is no import at all.
        let edges = graph.entry(module.clone()).or_default();
        for path in named.chain(paths(&source.tokens)) {
            if let Some((target, Some(item))) = resolve(sources, module, &path)
                && target != *module
            {
                edges.entry(target).or_default().insert(item);
            }
        }
    }
    graph
}

/// All files that `from` imports, in any way.
fn reached(graph: &Graph, from: &Module) -> BTreeSet<Module> {
    let mut found = BTreeSet::new();
    let mut open = vec![from.clone()];
    while let Some(module) = open.pop() {
        for target in graph.get(&module).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(target.clone()) {
                open.push(target.clone());
            }
        }
    }
    found
}

/// The imports within each cycle, as text.
fn cycles(graph: &Graph) -> Vec<String> {
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        graph.keys().map(|module| (module, reached(graph, module))).collect();
    let mut found = Vec::new();
    for (module, targets) in graph {
        for (target, items) in targets {
            if reached[target].contains(module) {
                let items: Vec<_> = items.iter().map(String::as_str).collect();
                found.push(format!(
                    "{} -> {}: {}",
                    module.join("::"),
                    target.join("::"),
                    items.join(", ")
                ));
            }
        }
    }
    found
}

/// No import of `machine` closes a cycle, and its files are so many, and import so much, that the graph has been read.
#[track_caller]
fn has_no_cycle(machine: &str, files: usize, imports: usize) {
    let graph = graph(&read_machine(machine));
    let found: usize = graph.values().map(BTreeMap::len).sum();
    assert!(
        graph.len() > files && found > imports,
        "{found} imports of {} files",
        graph.len()
    );
    let cycles = cycles(&graph);
    assert!(
        cycles.is_empty(),
        "{} imports close a cycle:\n{}",
        cycles.len(),
        cycles.join("\n")
    );
}

#[test]
fn the_instance_machine_has_no_import_cycle() {
    has_no_cycle("instance", 40, 200);
}

#[test]
fn the_cluster_machine_has_no_import_cycle() {
    has_no_cycle("cluster", 40, 200);
}

/// Sources of a machine `m`, by the names of their files.
fn small(files: &[(&str, &str)]) -> Sources {
    let module = |name: &str| match name {
        "mod" => vec!["m".to_owned()],
        name => vec!["m".to_owned(), name.to_owned()],
    };
    sources(
        files
            .iter()
            .map(|(name, text)| (module(name), (*text).to_owned()))
            .collect(),
    )
}

#[test]
fn a_cycle_is_found_for_each_form_of_import() {
    let sources = small(&[
        ("mod", "mod a; mod b; mod c; pub use a::{One, two}; use c::three;"),
        (
            "a",
            "use super::b; pub struct One; pub fn two() { b::call(\"c::none\") }",
        ),
        ("b", "use super::c::*; pub fn call() { three(1) }"),
        (
            "c",
            "use crate::m::two as other; pub fn three(n: u8) { other() /* super::b::call */ }",
        ),
    ]);
    assert_eq!(
        cycles(&graph(&sources)),
        ["m::a -> m::b: call", "m::b -> m::c: three", "m::c -> m::a: two"]
    );
}

#[test]
fn tests_and_re_exported_names_close_no_cycle() {
    let sources = small(&[
        (
            "mod",
            "mod a; mod b; #[cfg(test)] mod fixtures; pub use b::Two; pub const RULES: u8 = a::ONE;",
        ),
        ("a", "use super::Two; pub const ONE: u8 = 1; fn f(_: Two) {}"),
        (
            "b",
            "pub struct Two; #[cfg(test)] mod tests { use super::super::a::ONE; }",
        ),
        ("fixtures", "use super::RULES;"),
    ]);
    let graph = graph(&sources);
    assert_eq!(cycles(&graph), Vec::<String>::new());
    assert_eq!(graph.len(), 3, "what only tests use is no product file");
    let top = small(&[
        ("mod", "mod a; pub const RULES: u8 = a::ONE;"),
        ("a", "use super::RULES; pub const ONE: u8 = 1;"),
    ]);
    assert_eq!(
        cycles(&self::graph(&top)).len(),
        2,
        "what the top itself defines counts"
    );
}
