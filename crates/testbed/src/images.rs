//! Container images without a registry: a base from Debian's packages, the
//! rest from Containerfiles.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::command::Tool;
use crate::kubebox::Programs;
use crate::mounts;
use crate::paths;
use crate::progress::{say, step};

/// The image that every Containerfile here starts from, under the name that
/// those who build with Docker know it by.
pub const BASE_IMAGE: &str = "docker.io/library/debian:trixie-slim";
/// The PostgreSQL image that the nodes have.
pub const POSTGRES_IMAGE: &str = "localhost/cdb/postgres:17";
/// The PgBouncer image that the nodes have.
pub const POOLER_IMAGE: &str = "localhost/cdb/pooler:1.24";
/// The image of the container that holds a pod's namespaces.
pub const PAUSE_IMAGE: &str = "localhost/cdb/pause:1";

/// Debian's release of [`BASE_IMAGE`].
const RELEASE: &str = "trixie";

/// Where buildah keeps what users build; it leaves a mount there, too.
const USERS_STORE: &str = "/var/lib/containers/storage";

/// How long a build may take: packages are downloaded.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);

/// `buildah` with a store of the testbed's own, so that nothing of it shows in
/// the store of other users of buildah on this machine.
fn buildah() -> Tool {
    Tool::tied("buildah")
        .arg("--root")
        .arg(store())
        .arg("--runroot")
        .arg(run_store())
        .words("--storage-driver overlay")
        .env("BUILDAH_ISOLATION", "chroot")
        .limit(BUILD_LIMIT)
}

fn store() -> PathBuf {
    paths::cache_root().join("images")
}

fn run_store() -> PathBuf {
    paths::cache_root().join("images-run")
}

/// Builds an image from a Containerfile; the same file that works with Docker.
/// Images that it starts from must be there: nothing is fetched.
///
/// # Errors
/// When the build fails.
pub async fn build(containerfile: &Path, context: &Path, image: &str) -> Result<()> {
    if !exists(BASE_IMAGE).await {
        step("making the Debian base image (usually 1 minute)", build_base()).await?;
    }
    let tool = buildah()
        .words("bud --isolation chroot --network host --pull-never --layers=false -t")
        .arg(image)
        .arg("-f")
        .arg(containerfile)
        .arg(context);
    let built = step(&format!("building the image {image}"), tool.run()).await;
    tidy().await?;
    built.with_context(|| format!("build {image} from {}", containerfile.display()))?;
    Ok(())
}

/// Writes an image from the testbed's store, or from buildah's own, to `archive`.
///
/// # Errors
/// When neither store has it.
pub async fn export(image: &str, archive: &Path) -> Result<()> {
    let ours = exists(image).await;
    let mounted_before = mounts::all()?.iter().any(|m| m.point.starts_with(USERS_STORE));
    let tool = if ours {
        buildah()
    } else {
        Tool::new("buildah").limit(BUILD_LIMIT)
    };
    let target = format!("oci-archive:{}:{image}", archive.display());
    let push = tool
        .words("push --disable-compression")
        .arg(image)
        .arg(target)
        .run()
        .await;
    tidy().await?;
    if !mounted_before {
        mounts::unmount_below(Path::new(USERS_STORE)).await?;
    }
    push.with_context(|| format!("export {image}; build it first, with `buildah bud -t {image}` for example"))?;
    Ok(())
}

/// Makes the images of PostgreSQL and PgBouncer, and the base if it is not there.
///
/// # Errors
/// When a build fails.
pub async fn build_databases() -> Result<()> {
    // Containers of builds that were killed; usually there are none.
    let _ = buildah().words("rm --all").run().await;
    for (containerfile, image) in containerfiles().into_iter().zip([POSTGRES_IMAGE, POOLER_IMAGE]) {
        let context = containerfile.parent().context("find the image's directory")?;
        build(&containerfile, context, image).await?;
    }
    Ok(())
}

/// Makes the image of the container that holds a pod's namespaces.
///
/// # Errors
/// When the build fails.
pub async fn build_pause(programs: &Programs) -> Result<()> {
    let container = commit_scratch(
        &programs.pause,
        "/pause",
        PAUSE_IMAGE,
        &["--entrypoint", "[\"/pause\"]"],
    );
    let built = container.await;
    tidy().await?;
    built
}

/// The Containerfiles of [`POSTGRES_IMAGE`] and [`POOLER_IMAGE`].
#[must_use]
pub fn containerfiles() -> [PathBuf; 2] {
    ["postgres", "pooler"].map(|name| {
        let path = format!("../../images/{name}/Containerfile");
        Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
    })
}

async fn exists(image: &str) -> bool {
    store().is_dir() && buildah().words("inspect --type image").arg(image).run().await.is_ok()
}

async fn build_base() -> Result<()> {
    let root = paths::cache_root().join("debian.new");
    // A killed build leaves /proc and /sys mounted in it.
    mounts::unmount_below(&root).await?;
    remove_tree(&root)?;
    let tool = Tool::tied("debootstrap")
        .words("--variant=minbase")
        .arg(RELEASE)
        .arg(&root)
        .limit(BUILD_LIMIT);
    tool.run().await.context("install a Debian base with debootstrap")?;
    // The official slim image omits this too.
    for dir in [
        "var/cache/apt/archives",
        "var/lib/apt/lists",
        "usr/share/doc",
        "usr/share/man",
        "usr/share/locale",
    ] {
        remove_tree(&root.join(dir))?;
        fs::create_dir_all(root.join(dir)).with_context(|| format!("empty {dir}"))?;
    }
    let made = commit_scratch(&root, "/", BASE_IMAGE, &["--cmd", "bash"]).await;
    tidy().await?;
    remove_tree(&root)?;
    made
}

/// Makes an image of `content` alone.
async fn commit_scratch(content: &Path, at: &str, image: &str, config: &[&str]) -> Result<()> {
    let container = buildah().words("from scratch").run().await?.trim().to_owned();
    buildah()
        .words("add --quiet")
        .arg(&container)
        .arg(content)
        .arg(at)
        .run()
        .await?;
    let configure = config.iter().fold(buildah().arg("config"), |tool, arg| tool.arg(arg));
    configure.arg(&container).run().await?;
    buildah()
        .words("commit --quiet --rm")
        .arg(&container)
        .arg(image)
        .run()
        .await?;
    Ok(())
}

/// Removes the mount that buildah leaves behind on its store, and its counts of
/// mounts, which are wrong after it was killed.
///
/// # Errors
/// When something is in the way.
pub async fn tidy() -> Result<()> {
    mounts::unmount_below(&store()).await?;
    mounts::unmount_below(&run_store()).await?;
    remove_tree(&run_store())
}

fn remove_tree(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Removes the testbed's store; the next `up` makes it again.
///
/// # Errors
/// When something is in the way.
pub async fn forget() -> Result<()> {
    say("forgetting the image store");
    tidy().await?;
    ensure!(
        mounts::all()?.iter().all(|m| !m.point.starts_with(store())),
        "the image store is in use"
    );
    remove_tree(&store())
}
