//! Starts a testbed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;

use crate::cgroup::Hierarchies;
use crate::control_plane::ControlPlane;
use crate::kubebox::Programs;
use crate::node::Node;
use crate::options::Options;
use crate::paths::{self, Paths};
use crate::plan::MAX_INSTANCE;
use crate::process::Daemon;
use crate::progress::{say, step};
use crate::state::{Lock, State};
use crate::template::Template;
use crate::testbed::Testbed;
use crate::{cluster, down, images, network, pki, preflight};

/// How long a running API server may take to answer before it counts as stopped. This is generous, because the machine
/// may be compiling.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// Every kubelet creates this socket when it starts, whatever its own directory is.
const DEVICE_PLUGINS: &str = "/var/lib/kubelet/device-plugins/kubelet.sock";
/// How long a kubelet may take for that on a busy machine.
const KUBELET_LIMIT: Duration = Duration::from_secs(60);

/// What [`Testbed::up`] did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// It was running already.
    AlreadyUp,
    /// It was started; after this time all nodes were Ready and pods could be made.
    Started(Duration),
}

impl Testbed {
    /// Starts the testbed, or finds it running. Everything that is missing is
    /// installed or made first. What a killed `up` or a reboot left is removed.
    ///
    /// # Errors
    /// When the machine cannot run it, when another checkout holds it, or when a
    /// part does not start; the error says what to do.
    pub async fn up(options: Options) -> Result<(Self, Outcome)> {
        preflight::check_machine()?;
        let testbed = Self::new(&options)?;
        let lock = Lock::instance(&testbed.paths).await?;
        let outcome = testbed.up_locked(options).await;
        if outcome.is_err() && !testbed.paths.record().exists() {
            lock.remove();
        }
        Ok((testbed, outcome?))
    }

    /// Installs and makes what is slow to make and outlives a testbed, so that [`Testbed::up`] finds it.
    ///
    /// # Errors
    /// When the machine cannot run a testbed, or a part cannot be made; the error
    /// says what to do.
    pub async fn prepare() -> Result<()> {
        preflight::check_machine()?;
        prepare().await?;
        Ok(())
    }

    async fn up_locked(&self, options: Options) -> Result<Outcome> {
        let found = State::load(&self.paths)?;
        if found.as_ref().map_or(Ok(false), |state| keep(state, &options))? {
            tell_if_outdated(found.as_ref())?;
            ensure!(
                self.api_is_ready(ANSWER_LIMIT).await,
                "the testbed runs but its API server does not answer; if no test stopped it, \
                 start afresh with `cargo xtask testbed down` and `up`"
            );
            return Ok(Outcome::AlreadyUp);
        }
        let (programs, template) = prepare().await?;
        down::clean(&self.paths, options.instance)
            .await
            .context("remove what an earlier testbed left")?;
        let start = Instant::now();
        let what = format!("starting Kubernetes, nodes: {}", options.nodes);
        step(&what, Start::new(self, options, programs, template)?.run()).await?;
        Ok(Outcome::Started(start.elapsed()))
    }
}

/// True if the testbed that `state` records is kept and used.
fn keep(state: &State, options: &Options) -> Result<bool> {
    if !state.is_alive() {
        return Ok(false);
    }
    if state.belongs_to_other(&options.checkout) {
        bail!(
            "the testbed is held by the checkout {}: end it there with `cargo xtask testbed down`, \
             or start another one beside it with `--instance 1`",
            state.options.checkout.display()
        );
    }
    let dead = state.dead();
    if !state.complete {
        say("an earlier `up` did not finish; starting afresh");
        return Ok(false);
    }
    if !dead.is_empty() {
        say(&format!(
            "the testbed is not whole (ended: {}); starting afresh",
            dead.join(", ")
        ));
        return Ok(false);
    }
    ensure!(
        (options.nodes, &options.timing) == (state.options.nodes, &state.options.timing),
        "the testbed runs with {} nodes and other settings than asked for: \
         end it with `cargo xtask testbed down`, or start another one beside it with `--instance 1`",
        state.options.nodes
    );
    Ok(true)
}

/// Reports if the running testbed was made from other sources than these.
fn tell_if_outdated(state: Option<&State>) -> Result<()> {
    let programs = Programs::locate()?;
    let now = used(&programs, &Template::locate(&programs)?);
    if state.is_some_and(|state| state.uses != now) {
        say("it was started from other sources than these: `cargo xtask testbed down` and `up` brings their changes");
    }
    Ok(())
}

/// The files of the cache that a testbed uses.
fn used(programs: &Programs, template: &Template) -> Vec<PathBuf> {
    vec![
        programs.kubebox.clone(),
        programs.snapshot_crds.clone(),
        template.dir().to_owned(),
    ]
}

/// Makes what is slow to make and outlives the testbed.
async fn prepare() -> Result<(Programs, Template)> {
    preflight::install_packages().await?;
    let programs = Programs::locate()?;
    let template = Template::locate(&programs)?;
    preflight::check_space(!programs.exist() || !template.exists())?;
    if programs.exist() && template.exists() {
        return Ok((programs, template));
    }
    let _cache = Lock::cache().await?;
    images::tidy().await?;
    prune(&programs, &template)?;
    // The first computes, the second mostly waits for packages.
    let compiled = async {
        match programs.exist() {
            true => Ok(()),
            false => programs.build().await,
        }
    };
    let installed = async {
        match template.exists() {
            true => Ok(()),
            false => images::build_databases().await,
        }
    };
    tokio::try_join!(compiled, installed)?;
    if !template.exists() {
        images::build_pause(&programs).await?;
        template.build().await?;
    }
    Ok((programs, template))
}

/// Removes programs and templates of earlier sources that no testbed uses.
fn prune(programs: &Programs, template: &Template) -> Result<()> {
    let mut keep = used(programs, template);
    keep.push(programs.pause.clone());
    for instance in 0..=MAX_INSTANCE {
        // A record of another version does not list what it uses.
        let Ok(state) = State::load(&Paths::new(instance)) else {
            return Ok(());
        };
        keep.extend(state.into_iter().flat_map(|state| state.uses));
    }
    for path in Programs::all()?
        .into_iter()
        .chain(Template::all()?)
        .filter(|path| !keep.contains(path))
    {
        let removed = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.with_context(|| format!("remove {}", path.display()))?;
    }
    Ok(())
}

/// A testbed that is being started.
struct Start<'a> {
    testbed: &'a Testbed,
    programs: Programs,
    template: Template,
    groups: Hierarchies,
    state: State,
}

impl<'a> Start<'a> {
    fn new(testbed: &'a Testbed, options: Options, programs: Programs, template: Template) -> Result<Self> {
        let groups = Hierarchies::detect()?;
        let mut state = State::new(options);
        state.uses = used(&programs, &template);
        Ok(Self {
            testbed,
            programs,
            template,
            groups,
            state,
        })
    }

    async fn run(mut self) -> Result<()> {
        self.lay_out().await?;
        let timing = self.state.options.timing.clone();
        let programs = self.programs.clone();
        let plane = ControlPlane {
            kubebox: &programs.kubebox,
            plan: &self.testbed.plan,
            paths: &self.testbed.paths,
            timing: &timing,
        };
        let node = |number| Node {
            kubebox: &programs.kubebox,
            plan: &self.testbed.plan,
            paths: &self.testbed.paths,
            timing: &timing,
            number,
        };
        let nodes: Vec<Node<'_>> = self.testbed.plan.node_numbers().map(node).collect();
        plane.write_files()?;
        self.start([plane.etcd(), plane.api_server()]).await?;
        self.start_containerds(&nodes).await?;
        let client = self.testbed.client().await?;
        cluster::wait_api(&client, || self.check()).await?;
        self.start([plane.controller_manager(), plane.scheduler()]).await?;
        try_join_all(nodes.iter().map(async |n| n.containerd_layout().wait().await)).await?;
        self.start_kubelets(&nodes).await?;
        cluster::create_objects(&client, programs.read_snapshot_crds()?).await?;
        self.start(nodes.iter().map(Node::proxy)).await?;
        self.start([plane.dns(), plane.provisioner(), plane.snapshotter()])
            .await?;
        cluster::wait_nodes(&client, &self.testbed.node_names(), || self.check()).await?;
        cluster::wait_controllers(&client, || self.check()).await?;
        cluster::wait_dns(self.testbed.plan.host(), || self.check()).await?;
        cluster::create_snapshot_class(&client, || self.check()).await?;
        self.state.complete = true;
        self.state.save(&self.testbed.paths)
    }

    /// Directories, record, keys, groups and network: everything that needs no process.
    async fn lay_out(&self) -> Result<()> {
        let (plan, paths) = (&self.testbed.plan, &self.testbed.paths);
        make_dirs(paths)?;
        // The record comes first, so that the next program finds it after a kill.
        self.state.save(paths)?;
        network::check_free(plan).await?;
        preflight::check_loopback_ports(plan)?;
        pki::write(plan, paths)?;
        self.groups.create(&plan.cgroup(), &plan.node_names())?;
        network::create(plan, paths).await?;
        preflight::check_bridge_ports(plan)
    }

    async fn start_containerds(&mut self, nodes: &[Node<'_>]) -> Result<()> {
        for node in nodes {
            node.write_files()?;
            self.template.lend(&node.containerd_layout().root)?;
            self.start([node.containerd()]).await?;
        }
        Ok(())
    }

    /// One after another: if two kubelets create the socket of device plugins at once, one takes it from the other,
    /// which ends.
    async fn start_kubelets(&mut self, nodes: &[Node<'_>]) -> Result<()> {
        let made = || {
            let socket = fs::metadata(DEVICE_PLUGINS).ok()?;
            Some((socket.ctime(), socket.ctime_nsec()))
        };
        for node in nodes {
            let (before, begun) = (made(), Instant::now());
            self.start([node.kubelet()]).await?;
            while made().is_none_or(|now| Some(now) == before) {
                self.check()?;
                ensure!(
                    begun.elapsed() < KUBELET_LIMIT,
                    "{} was not made within {KUBELET_LIMIT:?}",
                    DEVICE_PLUGINS
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    async fn start(&mut self, daemons: impl IntoIterator<Item = Daemon>) -> Result<()> {
        let procs = self.groups.daemons_file(&self.testbed.plan.cgroup());
        for daemon in daemons {
            self.state.processes.push(daemon.start(&procs).await?);
        }
        self.state.save(&self.testbed.paths)
    }

    /// Fails if a started process has ended.
    fn check(&self) -> Result<()> {
        let dead = self.state.dead();
        let Some(first) = dead.first() else {
            return Ok(());
        };
        let logs = self.testbed.log_dir();
        let log = fs::read_to_string(logs.join(format!("{first}.log"))).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        bail!(
            "{} ended; see {}. The last words of {first}, latest first:\n{}",
            dead.join(", "),
            logs.display(),
            lines.join("\n")
        );
    }
}

fn make_dirs(paths: &Paths) -> Result<()> {
    for dir in [
        paths.state(),
        paths.run(),
        paths.logs(),
        paths.volumes(),
        paths::cache_root(),
    ] {
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
    }
    Ok(())
}
