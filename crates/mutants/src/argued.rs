//! Survivors for which there is a reason: docs/mutants-survivors.md, which is written by hand.

use std::collections::BTreeMap;

use crate::list::Mutant;

/// Where it is, in the repository.
pub const PATH: &str = "docs/mutants-survivors.md";

/// The heading of the settled files that have no survivor.
const NONE: &str = "None survives";

/// Survivors that are argued, in the files that are settled.
#[derive(Debug, Default)]
pub struct Argued {
    /// By file, below `crates/machine/src`; a file that is not in it is not settled.
    pub files: BTreeMap<String, Vec<Entry>>,
}

/// One of them.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// In cargo-mutants' words, without a place.
    pub name: String,
    /// The code that tells it from others of its name; empty where there are none.
    pub code: String,
    /// Why no test can find it.
    pub why: String,
}

impl Argued {
    /// Reads the page: `## file` begins a file that is settled, and `` - `name` at ``code``: why `` is one of its survivors. Whatever
    /// is named below [`NONE`] has no survivor.
    pub fn read(page: &str) -> Self {
        let mut files: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        let mut heading = String::new();
        for line in page.lines() {
            if let Some(file) = line.strip_prefix("## ") {
                heading = file.trim_matches('`').to_owned();
                if heading != NONE {
                    files.entry(heading.clone()).or_default();
                }
            } else if heading == NONE {
                let names = line.split('`').skip(1).step_by(2);
                files.extend(names.map(|name| (name.to_owned(), Vec::new())));
            } else if let (Some(entries), Some(entry)) = (files.get_mut(&heading), entry(line)) {
                entries.push(entry);
            } else if let Some(last) = files.get_mut(&heading).and_then(|entries| entries.last_mut())
                && let Some(more) = line.strip_prefix("  ")
            {
                last.why = format!("{} {}", last.why, more.trim()).trim().to_owned();
            }
        }
        Self { files }
    }

    /// The entry of a mutant.
    pub fn of(&self, mutant: &Mutant) -> Option<&Entry> {
        let mut entries = self.files.get(&mutant.file)?.iter();
        entries.find(|entry| entry.name == mutant.name && (entry.code.is_empty() || entry.code == mutant.code))
    }
}

fn entry(line: &str) -> Option<Entry> {
    let (name, rest) = line.strip_prefix("- `")?.split_once('`')?;
    let (code, why) = match rest.strip_prefix(" at ``") {
        Some(rest) => rest.split_once("``:")?,
        None => ("", rest.strip_prefix(':')?),
    };
    Some(Entry {
        name: name.to_owned(),
        code: code.trim().to_owned(),
        why: why.trim().to_owned(),
    })
}
