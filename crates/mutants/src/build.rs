//! A copy of the sources with every mutant that compiles.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::list::Mutant;
use crate::plant::{self, Planted};
use suites::shell::cargo_command;
use suites::{Suite, copies};

/// Where the copy and what is built of it lie, in the workspace.
pub const FOLDER: &str = "target/mutants/all";
/// What the machine's tests need of the workspace.
const COPIED: [&str; 5] = ["Cargo.toml", "Cargo.lock", "crates/api", "crates/machine", "docs"];
/// The code that mutants are planted in.
pub const PLANTED: &str = "crates/machine/src";
/// Names the file into which a program writes the mutants that it comes across.
pub const TRACE_VARIABLE: &str = "MUTANTS_TRACE";

/// Said in the copy's `lib.rs`: a mutant may leave something unused.
const HEAD: &str = "#![allow(warnings)]\n";
/// The switches.
const SWITCH: &str = r#"
#[allow(clippy::all)]
pub(crate) fn mutant(number: usize) -> bool {
    use std::sync::atomic::{AtomicBool, Ordering};
    static CHOSEN: std::sync::OnceLock<(usize, Option<std::ffi::OsString>)> = std::sync::OnceLock::new();
    static REACHED: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];
    let (chosen, trace) = CHOSEN.get_or_init(|| {
        let chosen = std::env::var("MUTANT").ok().and_then(|number| number.parse().ok());
        (chosen.unwrap_or(usize::MAX), std::env::var_os("MUTANTS_TRACE"))
    });
    if let Some(path) = trace {
        if !REACHED[number].swap(true, Ordering::Relaxed) {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).expect("trace");
            std::io::Write::write_all(&mut file, format!("{number}\n").as_bytes()).expect("trace");
        }
    }
    number == *chosen
}
"#;

/// What was built.
#[derive(Debug)]
pub struct Built {
    /// The programs of tests.
    pub suites: Vec<Suite>,
    /// The copy's sources.
    pub sources: PathBuf,
    /// Mutants for which there is no choice at run time: see [`crate::alone`].
    pub left_out: BTreeSet<usize>,
    /// Mutants that are no program.
    pub broken: BTreeSet<usize>,
    /// Stands for the sources and the mutants.
    pub hash: String,
}

/// Plants all of them, takes out those that do not compile, and builds the tests.
///
/// # Errors
/// When the copy does not compile, and no mutant is to blame.
pub fn build(repository: &Path, mutants: &[Mutant]) -> Result<Built> {
    let folder = repository.join(FOLDER);
    let (sources, target) = (folder.join("tree"), folder.join("target"));
    let original = copied(repository)?;
    let list = format!(
        "{:?}",
        mutants
            .iter()
            .map(|mutant| (&mutant.name, &mutant.code))
            .collect::<Vec<_>>()
    );
    let refused = folder.join("refused");
    let before: Option<Refused> = fs::read(&refused)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    let Refused {
        mut broken,
        mut constant,
        ..
    } = before.filter(|before| before.list == list).unwrap_or_default();
    for round in 1.. {
        let mut copy = original.clone();
        let planted = plant_all(&mut copy, mutants, &broken, &constant)?;
        broken.extend(planted.values().flat_map(|planted| planted.no_program.clone()));
        copies::write(&sources, &copy)?;
        let errors = errors(&sources, &target)?;
        println!("    round {round}: {} errors", errors.len());
        if errors.is_empty() {
            let known = Refused {
                list,
                broken: broken.clone(),
                constant,
            };
            fs::write(&refused, serde_json::to_vec(&known)?).context("write what does not compile")?;
            let mut cargo = cargo_command(&["test", "--no-run", "--message-format", "json-render-diagnostics"]);
            cargo.args(["-p", "machine", "--lib", "--tests"]);
            cargo.current_dir(&sources).env("CARGO_TARGET_DIR", &target);
            let left_out = planted.values().flat_map(|planted| planted.left_out.clone()).collect();
            return Ok(Built {
                suites: suites::built_by(&mut cargo).context("build the copy with all mutants")?,
                hash: hash(&original, mutants),
                sources,
                left_out,
                broken,
            });
        }
        let before = (broken.len(), constant.len());
        for error in &errors {
            constant.extend(error.constant.clone());
            let planted = error
                .places
                .iter()
                .filter_map(|(file, at)| Some((planted.get(file)?, at)));
            broken.extend(
                planted
                    .map(|(planted, at)| planted.around(at))
                    .find(|found| !found.is_empty())
                    .into_iter()
                    .flatten(),
            );
        }
        if before == (broken.len(), constant.len()) {
            let said: Vec<_> = errors.iter().map(|error| error.said.as_str()).collect();
            bail!("no mutant is to blame:\n{}", said.join("\n"));
        }
    }
    bail!("no round was the last")
}

/// The files that the copy begins with.
///
/// # Errors
/// When one cannot be read.
pub fn copied(repository: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for name in COPIED {
        copies::read(repository, Path::new(name), &mut files)?;
    }
    Ok(files)
}

/// What the compiler has refused of the same mutants before.
#[derive(Default, Serialize, Deserialize)]
struct Refused {
    /// The mutants, in words.
    list: String,
    broken: BTreeSet<usize>,
    constant: BTreeSet<String>,
}

fn plant_all(
    copy: &mut BTreeMap<PathBuf, Vec<u8>>,
    mutants: &[Mutant],
    broken: &BTreeSet<usize>,
    constant: &BTreeSet<String>,
) -> Result<BTreeMap<String, Planted>> {
    let mut files: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (number, mutant) in mutants.iter().enumerate() {
        let file = files.entry(&mutant.file).or_default();
        if !broken.contains(&number) {
            file.push((number, mutant));
        }
    }
    let mut all = BTreeMap::new();
    for (file, mutants) in files {
        let path = Path::new(PLANTED).join(file);
        let source = copy.remove(&path).with_context(|| format!("find {file}"))?;
        let planted = plant::plant(&String::from_utf8(source)?, &mutants, constant).with_context(|| file.to_owned())?;
        copy.insert(path, planted.text.clone().into_bytes());
        all.insert(file.to_owned(), planted);
    }
    let library = copy
        .get_mut(&Path::new(PLANTED).join("lib.rs"))
        .context("find lib.rs")?;
    library.splice(0..0, HEAD.bytes());
    library.extend(SWITCH.replace("COUNT", &mutants.len().to_string()).bytes());
    Ok(all)
}

/// What the compiler does not take.
#[derive(Debug)]
struct Error {
    said: String,
    /// A function that must stay `const`.
    constant: Option<String>,
    /// Where: a file below the machine's `src`, and a place in it.
    places: Vec<(String, Range<usize>)>,
}

fn errors(sources: &Path, target: &Path) -> Result<Vec<Error>> {
    let mut cargo = cargo_command(&["test", "--no-run", "-p", "machine", "--lib", "--message-format", "json"]);
    cargo
        .current_dir(sources)
        .env("CARGO_TARGET_DIR", target)
        .stderr(Stdio::null());
    let output = cargo.output().context("start cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors: Vec<_> = text.lines().filter_map(error).collect();
    if errors.is_empty() && !output.status.success() {
        bail!("{} is not built", sources.display());
    }
    Ok(errors)
}

fn error(line: &str) -> Option<Error> {
    let line: Value = serde_json::from_str(line).ok()?;
    let message = &line["message"];
    let spans = message["spans"]
        .as_array()
        .filter(|spans| message["level"] == "error" && !spans.is_empty())?;
    let said = message["rendered"].as_str()?.to_owned();
    let constant = (message["code"]["code"] == "E0015").then(|| {
        let name = message["message"].as_str()?.split('`').nth(1)?;
        Some(name.rsplit("::").next()?.to_owned())
    });
    let mut spans: Vec<_> = spans.iter().collect();
    spans.sort_by_key(|span| span["is_primary"] != true);
    let places = spans.into_iter().filter_map(|span| {
        let at = |key: &str| span[key].as_u64().and_then(|at| usize::try_from(at).ok());
        let (_, file) = span["file_name"].as_str()?.split_once("machine/src/")?;
        Some((file.to_owned(), at("byte_start")?..at("byte_end")?))
    });
    Some(Error {
        said,
        constant: constant.flatten(),
        places: places.collect(),
    })
}

fn hash(files: &BTreeMap<PathBuf, Vec<u8>>, mutants: &[Mutant]) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    // What is argued changes no program.
    let code = files.iter().filter(|(path, _)| !path.starts_with("docs"));
    code.collect::<Vec<_>>().hash(&mut hasher);
    mutants.len().hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}
