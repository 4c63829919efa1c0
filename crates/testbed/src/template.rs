//! The node template: containerd's image store, filled once and lent to every
//! node, so that no node unpacks 800 MB when the testbed starts.
//!
//! A node gets its own copy of the two small databases, hard links to the
//! blobs, and a symbolic link per unpacked layer: layers are only ever the
//! lower side of an overlay, which nothing writes to.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::command::search_path;
use crate::containerd::Layout;
use crate::images::{self, PAUSE_IMAGE, POOLER_IMAGE, POSTGRES_IMAGE};
use crate::kubebox::{Programs, hash_files};
use crate::paths;
use crate::process;
use crate::progress::step;

/// Changed with each new layout of a template.
const FORMAT: &str = "template 1";

/// Prefix of template names in the cache.
const PREFIX: &str = "nodes-";

const SNAPSHOTS: &str = "io.containerd.snapshotter.v1.overlayfs";
const CONTENT: &str = "io.containerd.content.v1.content";
const METADATA: &str = "io.containerd.metadata.v1.bolt";

/// A filled image store.
#[derive(Clone, Debug)]
pub struct Template {
    dir: PathBuf,
}

impl Template {
    /// The path of the template of this source's images, made or not.
    ///
    /// # Errors
    /// When a source cannot be read.
    pub fn locate(programs: &Programs) -> Result<Self> {
        // The pause program's name holds the hash of its source.
        let salt = format!("{FORMAT} {}", programs.pause.display());
        let hash = hash_files(&images::containerfiles(), &salt)?;
        Ok(Self {
            dir: paths::cache_root().join(format!("{PREFIX}{hash}")),
        })
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The templates of all sources, including unfinished ones.
    ///
    /// # Errors
    /// When the cache cannot be read.
    pub fn all() -> Result<Vec<PathBuf>> {
        let root = paths::cache_root();
        let entries = fs::read_dir(&root).with_context(|| format!("list {}", root.display()))?;
        let named = entries
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().starts_with(PREFIX));
        Ok(named.map(|e| e.path()).collect())
    }

    /// True if it is made.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.dir.is_dir()
    }

    /// Makes it from the images in the store.
    ///
    /// # Errors
    /// When containerd does not take an image.
    pub async fn build(&self) -> Result<()> {
        let unfinished = self.dir.with_extension("new");
        let run = paths::cache_root().join("template-run");
        for dir in [&unfinished, &run] {
            if dir.exists() {
                fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))?;
            }
            fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        }
        let filled = fill(&unfinished, &run).await;
        fs::remove_dir_all(&run).with_context(|| format!("remove {}", run.display()))?;
        filled?;
        // Now, and not while a first Kubernetes starts and its etcd waits for the same disk.
        let written = fs::File::open(&unfinished).and_then(|dir| Ok(rustix::fs::syncfs(dir)?));
        written.with_context(|| format!("write {}", unfinished.display()))?;
        fs::rename(&unfinished, &self.dir).with_context(|| format!("write {}", self.dir.display()))
    }

    /// Lends the template to a containerd whose root will be `root`.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub fn lend(&self, root: &Path) -> Result<()> {
        copy_file(&self.dir, root, &Path::new(METADATA).join("meta.db"))?;
        copy_file(&self.dir, root, &Path::new(SNAPSHOTS).join("metadata.db"))?;
        let snapshots = Path::new(SNAPSHOTS).join("snapshots");
        for_each_entry(&self.dir.join(&snapshots), &root.join(&snapshots), |from, to| {
            symlink(from, to)
        })?;
        let blobs = Path::new(CONTENT).join("blobs/sha256");
        fs::create_dir_all(root.join(CONTENT).join("ingest")).context("make the ingest directory")?;
        for_each_entry(&self.dir.join(&blobs), &root.join(&blobs), |from, to| {
            // Hard links to here are not possible from another file system.
            fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop))
        })
    }
}

async fn fill(root: &Path, run: &Path) -> Result<()> {
    let layout = Layout {
        root: root.to_owned(),
        run: run.join("state"),
        socket: run.join("containerd.sock"),
        cni: None,
    };
    let config = run.join("containerd.toml");
    fs::write(&config, layout.config()).with_context(|| format!("write {}", config.display()))?;
    let log = fs::File::create(run.join("log")).context("make containerd's log")?;
    let mut containerd = tokio::process::Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "containerd"])
        .arg("-c")
        .arg(&config)
        .env("PATH", search_path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .context("start containerd")?;
    let imported = import_all(&layout, run).await;
    if let Some(pid) = containerd.id().and_then(|pid| i32::try_from(pid).ok()) {
        // Not killed, because it must close its databases.
        process::send(pid, Signal::TERM)?;
    }
    containerd.wait().await.context("wait for containerd")?;
    imported
}

async fn import_all(layout: &Layout, run: &Path) -> Result<()> {
    layout.wait().await?;
    for image in [PAUSE_IMAGE, POSTGRES_IMAGE, POOLER_IMAGE] {
        let archive = paths::cache_root().join("export.oci");
        let what = format!("unpacking {image} for the nodes");
        let moved = step(&what, async {
            images::export(image, &archive).await?;
            layout.import(&archive).await
        });
        let moved = moved.await;
        let _ = fs::remove_file(&archive);
        moved.with_context(|| format!("see {}", run.join("log").display()))?;
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path, name: &Path) -> Result<()> {
    let target = to.join(name);
    if let Some(dir) = target.parent() {
        fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    fs::copy(from.join(name), &target).with_context(|| format!("copy {}", name.display()))?;
    Ok(())
}

fn for_each_entry(from: &Path, to: &Path, link: impl Fn(&Path, &Path) -> std::io::Result<()>) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let entry = entry.with_context(|| format!("list {}", from.display()))?;
        link(&entry.path(), &to.join(entry.file_name())).with_context(|| format!("link {}", entry.path().display()))?;
    }
    Ok(())
}
