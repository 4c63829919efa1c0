//! Builds the Go programs: the components in one binary, and pause. Copies the definitions of snapshots from Go's module
//! cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::command::{self, Tool};
use crate::paths;
use crate::progress::step;

/// The version that the components report; it is that of the module in go.mod.
const VERSION: &str = "v1.34.4";

/// How long a cold build may take; on two free cores it takes about 5 minutes.
const BUILD_LIMIT: Duration = Duration::from_secs(40 * 60);

/// The module that has the definitions of snapshots.
const SNAPSHOT_CLIENT: &str = "github.com/kubernetes-csi/external-snapshotter/client/v8";

/// Its definitions, by the plural of each kind.
const SNAPSHOT_KINDS: [&str; 3] = ["volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"];

/// Separates the documents in a file of YAML.
const DOCUMENT: &str = "---\n";

/// The Go programs, and what comes with them.
#[derive(Clone, Debug)]
pub struct Programs {
    /// All components.
    pub kubebox: PathBuf,
    /// The program that holds a pod's namespaces.
    pub pause: PathBuf,
    /// The definitions of snapshots.
    pub snapshot_crds: PathBuf,
}

impl Programs {
    /// The directory of the programs of this source, made or not.
    ///
    /// # Errors
    /// When the source cannot be read.
    pub fn locate() -> Result<Self> {
        let source = source_dir();
        let kubebox = hash_files(&go_files(&source)?, VERSION)?;
        // Separate, because only images depend on it.
        let pause = hash_files(&go_files(&source.join("pause"))?, "")?;
        let dir = bin_dir();
        Ok(Self {
            kubebox: dir.join(format!("kubebox-{kubebox}")),
            pause: dir.join(format!("pause-{pause}")),
            snapshot_crds: dir.join(format!("snapshot-crds-{kubebox}.yaml")),
        })
    }

    /// The programs of all sources, including unfinished ones.
    ///
    /// # Errors
    /// When the cache cannot be read.
    pub fn all() -> Result<Vec<PathBuf>> {
        match fs::read_dir(bin_dir()) {
            Ok(entries) => Ok(entries.flatten().map(|e| e.path()).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).with_context(|| format!("list {}", bin_dir().display())),
        }
    }

    /// True if they are made.
    #[must_use]
    pub fn exist(&self) -> bool {
        [&self.kubebox, &self.pause, &self.snapshot_crds]
            .iter()
            .all(|path| path.is_file())
    }

    /// Makes them.
    ///
    /// # Errors
    /// When Go is missing or the build fails.
    pub async fn build(&self) -> Result<()> {
        ensure!(
            command::exists("go"),
            "Go is missing: install Go 1.25 or later (Debian 13's `golang-go` fetches that by itself) and try again"
        );
        if let Some(dir) = self.kubebox.parent() {
            fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        }
        let base = "k8s.io/component-base/version";
        let flags = format!("-s -w -X {base}.gitVersion={VERSION} -X {base}.gitMajor=1 -X {base}.gitMinor=34");
        let what = "compiling Kubernetes (Go, usually 8 minutes, once)";
        step(what, compile(".", &self.kubebox, Some(&flags))).await?;
        compile("./pause", &self.pause, None).await?;
        copy_snapshot_crds(&self.snapshot_crds).await
    }

    /// The definitions of snapshots, each a document of YAML.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn read_snapshot_crds(&self) -> Result<Vec<String>> {
        let path = &self.snapshot_crds;
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let documents = text.split(DOCUMENT).filter(|document| !document.is_empty());
        Ok(documents.map(str::to_owned).collect())
    }
}

/// Copies the definitions of snapshots out of Go's module cache.
async fn copy_snapshot_crds(to: &Path) -> Result<()> {
    let list = Tool::tied("go").words("list -m -f {{.Dir}}").arg(SNAPSHOT_CLIENT);
    let module = list.dir(&source_dir()).run().await?;
    let dir = Path::new(module.trim()).join("config/crd");
    let mut text = String::new();
    for kind in SNAPSHOT_KINDS {
        let path = dir.join(format!("snapshot.storage.k8s.io_{kind}.yaml"));
        text += &fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    }
    let unfinished = to.with_extension("new");
    fs::write(&unfinished, text)
        .and_then(|()| fs::rename(&unfinished, to))
        .with_context(|| format!("write {}", to.display()))
}

async fn compile(package: &str, to: &Path, flags: Option<&str>) -> Result<()> {
    let unfinished = to.with_extension("new");
    let mut tool = Tool::tied("go")
        .words("build -o")
        .arg(&unfinished)
        .dir(&source_dir())
        .limit(BUILD_LIMIT);
    tool = match flags {
        Some(flags) => tool.arg("-ldflags").arg(flags),
        // Static: its image holds nothing else.
        None => tool.arg("-ldflags").arg("-s -w").env("CGO_ENABLED", "0"),
    };
    tool.arg(package)
        .run()
        .await
        .context("build the testbed's Go programs")?;
    fs::rename(&unfinished, to).with_context(|| format!("write {}", to.display()))
}

fn bin_dir() -> PathBuf {
    paths::cache_root().join("bin")
}

fn source_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kubebox")
}

fn go_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry.with_context(|| format!("list {}", dir.display()))?.path();
        if path.extension().is_some_and(|e| e == "go" || e == "mod" || e == "sum") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// A short name for the content of `files`.
///
/// # Errors
/// When one cannot be read.
pub fn hash_files(files: &[PathBuf], salt: &str) -> Result<String> {
    let mut hasher = Sha256::new();
    hasher.update(salt);
    for file in files {
        let content = fs::read(file).with_context(|| format!("read {}", file.display()))?;
        // With its length, so that no two lists of files look the same.
        hasher.update(content.len().to_le_bytes());
        hasher.update(content);
    }
    Ok(hasher
        .finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect())
}
