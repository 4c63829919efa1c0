//! A copy of the sources in which all mutants stand, each behind its switch.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use suites::copies;

use super::Mutant;

/// Where the copy and what is built of it lie, in the workspace.
const FOLDER: &str = "target/mutants";
/// What the checks need of the workspace.
const COPIED: [&str; 5] = ["Cargo.toml", "Cargo.lock", "crates/api", "crates/machine", "crates/sim"];
/// The code that mutants are planted in.
const PLANTED: &str = "crates/machine/src";

/// Said in the copy's `lib.rs`: a mutant may leave something unused.
const HEAD: &str = "#![allow(warnings)]\n";
/// The switches.
const SWITCH: &str = r#"
pub(crate) fn mutant(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("MUTANT").ok()).as_deref() == Some(name)
}
"#;

/// The copy.
#[derive(Debug)]
pub struct Tree {
    /// Its sources.
    pub sources: PathBuf,
    /// What is built of them: never the workspace's own folder, whose files would then be of mutants.
    pub target: PathBuf,
}

/// Copies the sources and plants `mutants`. A file that is the same as before is left alone, so that what is built of it is
/// used again.
///
/// # Errors
/// When a file cannot be read or written, or a mutant's text does not stand in its file once.
pub fn plant(repository: &Path, mutants: &[&Mutant]) -> Result<Tree> {
    let tree = Tree {
        sources: repository.join(FOLDER).join("tree"),
        target: repository.join(FOLDER).join("target"),
    };
    let mut files = BTreeMap::new();
    for name in COPIED {
        copies::read(repository, Path::new(name), &mut files)?;
    }
    let mut texts: BTreeMap<(&str, &str), Vec<&Mutant>> = BTreeMap::new();
    for mutant in mutants {
        texts.entry((mutant.file, mutant.text)).or_default().push(mutant);
    }
    for ((file, text), mutants) in texts {
        let path = Path::new(PLANTED).join(file);
        let source = String::from_utf8(files.remove(&path).with_context(|| format!("find {file}"))?)?;
        if source.matches(text).count() != 1 {
            bail!("{}: `{text}` does not stand in {file} once", mutants[0].name);
        }
        files.insert(path, source.replacen(text, &switched(text, &mutants), 1).into_bytes());
    }
    let library = files
        .get_mut(&Path::new(PLANTED).join("lib.rs"))
        .context("find the machine's lib.rs")?;
    library.splice(0..0, HEAD.bytes());
    library.extend(SWITCH.bytes());
    copies::write(&tree.sources, &files)?;
    Ok(tree)
}

/// The expression `text`, or what one of the mutants has instead.
pub fn switched(text: &str, mutants: &[&Mutant]) -> String {
    let choices: String = mutants
        .iter()
        .map(|Mutant { name, instead, .. }| format!("if crate::mutant(\"{name}\") {{ {instead} }} else "))
        .collect();
    format!("({choices}{{ {text} }})")
}
