//! A running testbed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;

use crate::containerd::{self, Layout};
use crate::options::Options;
use crate::paths::{self, Paths};
use crate::plan::Plan;
use crate::progress::step;
use crate::state::State;
use crate::{cluster, images};

/// A handle on a running testbed. Dropping it changes nothing.
#[derive(Clone, Debug)]
pub struct Testbed {
    pub(crate) plan: Plan,
    pub(crate) paths: Paths,
    pub(crate) kubeconfig: PathBuf,
}

impl Testbed {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let paths = Paths::new(options.instance);
        let kubeconfig = paths.kubeconfig();
        Ok(Self {
            plan: Plan::new(options.instance, options.nodes)?,
            paths,
            kubeconfig,
        })
    }

    /// Finds the testbed that runs as `instance`, even if another program started it.
    ///
    /// # Errors
    /// When there is none, or it is not complete.
    pub fn attach(instance: u8) -> Result<Self> {
        let paths = Paths::new(instance);
        let Some(state) = State::load(&paths)? else {
            bail!("there is no testbed {instance}; start it with `cargo xtask testbed up`");
        };
        let dead = state.dead();
        if !state.complete || !dead.is_empty() {
            bail!(
                "the testbed is not whole ({}); start it again with `cargo xtask testbed up`",
                if dead.is_empty() {
                    "`up` did not finish".to_owned()
                } else {
                    format!("ended: {}", dead.join(", "))
                }
            );
        }
        Self::new(&state.options)
    }

    /// The administrator's kubeconfig, for kubectl and kube alike.
    #[must_use]
    pub fn kubeconfig_path(&self) -> &Path {
        &self.kubeconfig
    }

    /// The API server's audit log: one JSON event per answered request, of level
    /// Metadata, reads included. `user.username` has the sender.
    #[must_use]
    pub fn audit_log_path(&self) -> PathBuf {
        self.paths.audit_log()
    }

    /// Directory with the logs of all components.
    #[must_use]
    pub fn log_dir(&self) -> PathBuf {
        self.paths.logs()
    }

    /// Directory with everything of this testbed; `down` removes it.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.paths.state()
    }

    /// Root directory, on this machine, of the volume called `volume` (a
    /// PersistentVolume's name).
    #[must_use]
    pub fn volume_dir(&self, volume: &str) -> PathBuf {
        self.paths.volumes().join("data").join(volume)
    }

    /// The instance number.
    #[must_use]
    pub fn instance(&self) -> u8 {
        self.plan.instance()
    }

    /// Names of the nodes.
    #[must_use]
    pub fn node_names(&self) -> Vec<String> {
        self.plan.node_names()
    }

    /// An administrator's client.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub async fn client(&self) -> Result<kube::Client> {
        cluster::client(&self.kubeconfig).await
    }

    /// Builds an image from a Containerfile; only [`images::BASE_IMAGE`] and
    /// images built before are there to start from.
    ///
    /// # Errors
    /// When the build fails.
    pub async fn build_image(containerfile: &Path, context: &Path, image: &str) -> Result<()> {
        let _cache = crate::state::Lock::cache().await?;
        images::build(containerfile, context, image).await
    }

    /// Loads an image into all nodes at the same time. `image` is the name of one
    /// that was built with [`Testbed::build_image`] or with buildah, or the path
    /// of an OCI or Docker archive.
    ///
    /// # Errors
    /// When there is no such image or a node refuses it.
    pub async fn load_image(&self, image: &str) -> Result<()> {
        let what = format!("loading {image}");
        if Path::new(image).is_file() {
            return step(&what, self.import(Path::new(image))).await;
        }
        let archive = self.paths.state().join(format!("load-{}.oci", std::process::id()));
        let loaded = step(&what, async {
            {
                let _cache = crate::state::Lock::cache().await?;
                images::export(image, &archive).await?;
            }
            self.import(&archive).await
        });
        let loaded = loaded.await;
        let _ = std::fs::remove_file(&archive);
        loaded
    }

    /// Gives an image of the nodes another name, on all of them.
    ///
    /// # Errors
    /// When a node does not have it.
    pub async fn tag_image(&self, image: &str, name: &str) -> Result<()> {
        let sockets: Vec<PathBuf> = self
            .node_names()
            .iter()
            .map(|n| self.paths.containerd_socket(n))
            .collect();
        try_join_all(sockets.iter().map(|socket| containerd::tag(socket, image, name))).await?;
        Ok(())
    }

    /// Waits until all nodes are Ready.
    ///
    /// # Errors
    /// When they are not within 90 s.
    pub async fn wait_nodes_ready(&self) -> Result<()> {
        cluster::wait_nodes(&self.client().await?, &self.node_names(), || Ok(())).await
    }

    /// True if the API server answers within `limit`.
    pub async fn api_is_ready(&self, limit: Duration) -> bool {
        match self.client().await {
            Ok(client) => cluster::is_ready(&client, limit).await,
            Err(_) => false,
        }
    }

    async fn import(&self, archive: &Path) -> Result<()> {
        let layouts: Vec<Layout> = self
            .node_names()
            .iter()
            .map(|node| Layout {
                root: PathBuf::new(),
                run: PathBuf::new(),
                socket: self.paths.containerd_socket(node),
                cni: None,
            })
            .collect();
        try_join_all(layouts.iter().map(|layout| layout.import(archive))).await?;
        Ok(())
    }

    /// Removes what survives `down`: programs, images and node templates.
    ///
    /// # Errors
    /// When a testbed of this machine still uses them.
    pub async fn forget_cache() -> Result<()> {
        for instance in 0..=crate::plan::MAX_INSTANCE {
            if State::load(&Paths::new(instance))?.is_some_and(|state| state.is_alive()) {
                bail!("testbed {instance} is running; end it with `cargo xtask testbed down --instance {instance}`");
            }
        }
        images::forget().await?;
        let root = paths::cache_root();
        std::fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))
    }
}
