//! Every mutant that cargo-mutants makes of crate `machine`, without a build for each: `cargo xtask mutants --all` starts this.
//!
//! It stands apart from `xtask`, because only this needs a parser of Rust, which would be compiled for each other task as well.

mod alone;
mod argued;
mod build;
mod list;
mod plant;
mod run;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use suites::shell::repository;

use alone::Alone;
use argued::Argued;
use build::Built;
use list::Mutant;
use run::{Known, Outcome, Tests};

/// How many mutants there are between two lines that say how far it is.
const STEP: usize = 50;

/// Figures of one file.
#[derive(Default)]
struct Figures {
    planted: usize,
    alone: usize,
    broken: usize,
    left_out: usize,
    killed: usize,
    argued: usize,
    survived: usize,
}

/// Tries every mutant that cargo-mutants makes of crate `machine`.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only mutants of this file, below crates/machine/src; may be given more than once.
    #[arg(long = "file", value_name = "FILE")]
    files: Vec<String>,
    /// Only tests that take less than a tenth of a second.
    #[arg(long)]
    quick: bool,
    /// Also those that cannot be planted (in constants, say), each built alone: half a minute each.
    #[arg(long)]
    alone: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { files, quick, alone } = Arguments::parse();
    match run(&files, quick, alone).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the tests against each mutant of `files`, below `crates/machine/src`; without a file against all. With `quick` only
/// the short tests. With `alone` those for which there is no choice at run time are built one by one.
///
/// # Errors
/// When a mutant of a file that is settled survives, and is not argued; or the other way round.
async fn run(files: &[String], quick: bool, alone: bool) -> Result<()> {
    let repository = repository()?;
    let mutants = list::list(&repository)?;
    if let Some(file) = files
        .iter()
        .find(|file| mutants.iter().all(|mutant| mutant.file != **file))
    {
        bail!("cargo-mutants makes none of {file}");
    }
    println!("==> building the tests with {} mutants", mutants.len());
    let built = build::build(&repository, &mutants)?;
    println!("==> looking at what each test comes across");
    let tests = Tests::look(&built, quick).await?;
    println!("    {}", tests.in_words());
    for test in &tests.useless {
        println!("    not used, it fails in the copy without a mutant: {test}");
    }
    let page = std::fs::read_to_string(repository.join(argued::PATH)).context("read the argued survivors")?;
    let argued = Argued::read(&page);
    let mut report = Report::new(&argued);
    let mut known = Known::read(&repository);
    let keys = keys(&mutants);
    let chosen = mutants
        .iter()
        .enumerate()
        .filter(|(_, mutant)| files.is_empty() || files.contains(&mutant.file));
    let chosen: Vec<_> = chosen.collect();
    if alone {
        run_alone(&repository, &built, &mut known, &chosen, &keys, &mut report).await?;
    }
    let start = Instant::now();
    for (done, (number, mutant)) in chosen.iter().enumerate() {
        if done % STEP == 0 {
            println!("    {done} of {}, after {} s", chosen.len(), start.elapsed().as_secs());
        }
        if let Some(outcome) = of_one(
            &repository,
            &built,
            &tests,
            &mut known,
            (*number, mutant, &keys[*number]),
            quick,
        )
        .await?
        {
            report.figures(mutant).planted += 1;
            report.tell(mutant, &outcome);
        } else if built.broken.contains(number) {
            report.figures(mutant).broken += 1;
        } else if !alone {
            report.figures(mutant).left_out += 1;
        }
    }
    report.close(&chosen.iter().map(|(_, mutant)| *mutant).collect::<Vec<_>>())
}

/// What the outcome of each mutant is kept by: its words, and which of those with the same words it is.
fn keys(mutants: &[Mutant]) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let key = |Mutant { file, name, code, .. }: &Mutant| {
        let key = format!("{file}: {name} at {code}");
        let before = seen.entry(key.clone()).or_default();
        *before += 1;
        if *before == 1 { key } else { format!("{key} ({before})") }
    };
    mutants.iter().map(key).collect()
}

/// `None`: it is not in the copy.
async fn of_one(
    repository: &Path,
    built: &Built,
    tests: &Tests<'_>,
    known: &mut Known,
    (number, mutant, key): (usize, &Mutant, &str),
    quick: bool,
) -> Result<Option<Outcome>> {
    if built.broken.contains(&number) || built.left_out.contains(&number) {
        return Ok(None);
    }
    if let Some(outcome) = known.same(&built.hash, quick, key) {
        return Ok(Some(outcome.clone()));
    }
    let module = mutant
        .file
        .trim_end_matches(".rs")
        .trim_end_matches("/mod")
        .replace('/', "::");
    let outcome = tests.run(number, &module, known.killer(key), quick).await?;
    known.keep(repository, &run::kept_as(&built.hash, quick), key, &outcome)?;
    Ok(Some(outcome))
}

/// Tells the outcome of those that are built one by one.
async fn run_alone(
    repository: &Path,
    built: &Built,
    known: &mut Known,
    chosen: &[(usize, &Mutant)],
    keys: &[String],
    report: &mut Report<'_>,
) -> Result<()> {
    let mutants: Vec<_> = chosen
        .iter()
        .filter(|(number, _)| built.left_out.contains(number))
        .collect();
    println!("==> building {} mutants one by one", mutants.len());
    let alone = Alone::new(repository).await?;
    for (number, mutant) in mutants {
        let key = &keys[*number];
        let outcome = if let Some(outcome) = known.same(&built.hash, false, key) {
            outcome.clone()
        } else if let Some(outcome) = alone.of_one(mutant).await? {
            known.keep(repository, &run::kept_as(&built.hash, false), key, &outcome)?;
            outcome
        } else {
            report.figures(mutant).broken += 1;
            continue;
        };
        println!("    {}: {}: {outcome:?}", mutant.file, mutant.name);
        report.figures(mutant).alone += 1;
        report.tell(mutant, &outcome);
    }
    Ok(())
}

/// What is said at the end.
struct Report<'a> {
    argued: &'a Argued,
    figures: BTreeMap<String, Figures>,
    survivors: Vec<String>,
    wrong: Vec<String>,
    used: BTreeSet<String>,
}

impl<'a> Report<'a> {
    fn new(argued: &'a Argued) -> Self {
        Self {
            argued,
            figures: BTreeMap::new(),
            survivors: Vec::new(),
            wrong: Vec::new(),
            used: BTreeSet::new(),
        }
    }

    fn figures(&mut self, mutant: &Mutant) -> &mut Figures {
        self.figures.entry(mutant.file.clone()).or_default()
    }

    fn tell(&mut self, mutant: &Mutant, outcome: &Outcome) {
        let figures = self.figures(mutant);
        let Outcome::Survived(tests) = outcome else {
            figures.killed += 1;
            return;
        };
        if let Some(entry) = self.argued.of(mutant) {
            self.figures(mutant).argued += 1;
            self.used
                .insert(format!("{} {} {}", mutant.file, entry.name, entry.code));
            return;
        }
        self.figures(mutant).survived += 1;
        let Mutant {
            file, line, name, code, ..
        } = mutant;
        let at = if code.is_empty() {
            String::new()
        } else {
            format!(" at ``{code}``")
        };
        let line = format!("{file}:{line}: - `{name}`{at}: ({tests} tests)");
        if self.argued.files.contains_key(file) {
            self.wrong.push(line.clone());
        }
        self.survivors.push(line);
    }

    /// # Errors
    /// When the page of argued survivors is not what was found.
    fn close(mut self, chosen: &[&Mutant]) -> Result<()> {
        println!(
            "\n{:<34} planted  alone  killed  argued  survived  no program  not planted",
            "file"
        );
        let mut all = Figures::default();
        for (file, figures) in &self.figures {
            println!("{:<34} {}", file, row(figures));
            all.planted += figures.planted;
            all.alone += figures.alone;
            all.killed += figures.killed;
            all.argued += figures.argued;
            all.survived += figures.survived;
            all.broken += figures.broken;
            all.left_out += figures.left_out;
        }
        println!("{:<34} {}\n", "all", row(&all));
        for survivor in &self.survivors {
            println!("{survivor}");
        }
        for (file, entries) in &self.argued.files {
            for entry in entries
                .iter()
                .filter(|_| chosen.iter().any(|mutant| mutant.file == *file))
            {
                if !self.used.contains(&format!("{file} {} {}", entry.name, entry.code)) {
                    self.wrong
                        .push(format!("{file}: argued, but it does not survive: {}", entry.name));
                }
            }
        }
        if !self.wrong.is_empty() {
            bail!("{} is not what was found:\n{}", argued::PATH, self.wrong.join("\n"));
        }
        Ok(())
    }
}

fn row(figures: &Figures) -> String {
    let Figures {
        planted,
        alone,
        broken,
        left_out,
        killed,
        argued,
        survived,
    } = figures;
    format!("{planted:>7} {alone:>6} {killed:>7} {argued:>7} {survived:>9} {broken:>11} {left_out:>12}")
}
