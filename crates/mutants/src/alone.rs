//! A mutant for which there is no choice at run time: it is built alone, in another copy, which takes half a minute.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use crate::build::{self, FOLDER, PLANTED};
use crate::list::Mutant;
use crate::run::Outcome;
use suites::copies;
use suites::shell::cargo_command;

/// The unit tests take some seconds.
const LONGEST: Duration = Duration::from_secs(180);

/// The copy.
#[derive(Debug)]
pub struct Alone {
    sources: PathBuf,
    target: PathBuf,
    original: BTreeMap<PathBuf, Vec<u8>>,
    /// How many unit tests there are.
    tests: usize,
}

impl Alone {
    /// Makes the copy, and runs its tests without a mutant.
    ///
    /// # Errors
    /// When one fails.
    pub async fn new(repository: &Path) -> Result<Self> {
        let folder = repository.join(FOLDER).join("alone");
        let mut this = Self {
            sources: folder.join("tree"),
            target: folder.join("target"),
            original: build::copied(repository)?,
            tests: 0,
        };
        copies::write(&this.sources, &this.original)?;
        ensure!(this.build().await?, "{} is not built", this.sources.display());
        let (passed, said) = this.test().await?.context("its tests do not end")?;
        ensure!(passed, "without a mutant:\n{said}");
        this.tests = said.lines().filter(|line| line.ends_with(" ... ok")).count();
        Ok(this)
    }

    /// What its unit tests find; `None`: it is no program.
    ///
    /// # Errors
    /// When the copy cannot be written, or cargo not be started.
    pub async fn of_one(&self, mutant: &Mutant) -> Result<Option<Outcome>> {
        let mut copy = self.original.clone();
        let source = copy.get_mut(&Path::new(PLANTED).join(&mutant.file));
        let source = source.with_context(|| format!("find {}", mutant.file))?;
        source.splice(mutant.at.clone(), mutant.replacement.bytes());
        copies::write(&self.sources, &copy)?;
        if !self.build().await? {
            return Ok(None);
        }
        let Some((passed, said)) = self.test().await? else {
            return Ok(Some(Outcome::Hangs("the unit tests".to_owned())));
        };
        if passed {
            return Ok(Some(Outcome::Survived(self.tests)));
        }
        let failed = said
            .lines()
            .find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        Ok(Some(Outcome::Failed(
            failed.context("some test has failed")?.to_owned(),
        )))
    }

    async fn build(&self) -> Result<bool> {
        let mut cargo = self.cargo(&["--no-run"]);
        cargo.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(cargo.status().await.context("start cargo")?.success())
    }

    /// Whether all passed, and what was said; `None`: they do not end.
    async fn test(&self) -> Result<Option<(bool, String)>> {
        let mut cargo = self.cargo(&[]);
        cargo.stdin(Stdio::null()).kill_on_drop(true);
        match tokio::time::timeout(LONGEST, cargo.output()).await {
            Err(_) => Ok(None),
            Ok(output) => {
                let output = output.context("start cargo")?;
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                Ok(Some((output.status.success(), said)))
            }
        }
    }

    fn cargo(&self, more: &[&str]) -> Command {
        let mut command = cargo_command(&["test", "-p", "machine", "--lib"]);
        command.args(more);
        command.current_dir(&self.sources).env("CARGO_TARGET_DIR", &self.target);
        command.into()
    }
}
